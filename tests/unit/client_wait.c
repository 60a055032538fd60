#include "client_world.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

static int is_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1 && (p.revents & POLLIN) != 0;
}

Test(client_wait, answers_at_once_when_the_room_has_ended)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_wait(w.client, room, 0), KVF_SUCCESS);
    world_end(&w);
}

Test(client_wait, timeout_changes_nothing_but_the_waiters_view)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    uint64_t begin_ns = kvf_client_now_ns();
    cr_assert_eq(kvf_wait(w.client, room, 0), -ETIMEDOUT);
    cr_assert_eq(kvf_wait(w.client, room, 150), -ETIMEDOUT);
    uint64_t spent_ns = kvf_client_now_ns() - begin_ns;
    cr_assert_geq(spent_ns, UINT64_C(150000000));
    cr_assert_eq(kvf_poll(w.client, room), KVF_BOOTSTRAPPING);
    cr_assert_eq(atomic_load(&w.fake.own.intents[fake_slot(room)].abort_cell), 0);
    cr_assert_eq(w.client->cold.has_leader, false);
    world_end(&w);
}

struct waiter {
    struct world *w;
    kvf_room room;
    int state;
    uint64_t woken_ns;
    pthread_t thread;
};

static void *wait_for_room(void *arg)
{
    struct waiter *waiter = arg;
    waiter->state = kvf_wait(waiter->w->client, waiter->room, 20000);
    waiter->woken_ns = kvf_client_now_ns();
    return NULL;
}

/* Four threads wait for rooms that end in an order nobody knows, while an engine's thread takes events and
 * datagrams away from them. The waiters' own look every 100 ms would hide a lost wake-up from a test that
 * asks only whether they wake; so it asks how many needed that look. */
Test(client_wait, wakes_every_waiter_without_its_slice)
{
    enum { WAITERS = 4, ROUNDS = 300 };
    struct world w;
    world_begin_with(&w, WAITERS, 64, 0);
    uint32_t late = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct waiter waiters[WAITERS];
        for (int i = 0; i < WAITERS; i++) {
            waiters[i] = (struct waiter){.w = &w, .room = world_sink(&w, i, 1)};
            cr_assert_eq(pthread_create(&waiters[i].thread, NULL, wait_for_room, &waiters[i]),
                         0);
        }
        struct kvf_cmd_shm cmd;
        while (fake_pop(&w.fake, &cmd) == 1) {
        }
        for (int i = 0; i < WAITERS; i++) {
            struct waiter *waiter = &waiters[(i + round) % WAITERS];
            struct kvf_event events[4];
            (void)kvf_events_next(w.client, events, 4);
            if (round % 3 == 0) {
                usleep(200);
            }
            uint64_t told_ns = kvf_client_now_ns();
            fake_succeed(&w.fake, waiter->room);
            (void)kvf_events_next(w.client, events, 4);
            pthread_join(waiter->thread, NULL);
            cr_assert_eq(waiter->state, KVF_SUCCESS);
            late += waiter->woken_ns - told_ns > UINT64_C(80000000);
            cr_assert_eq(kvf_release(w.client, waiter->room), 0);
        }
    }
    /* A busy machine may oversleep now and then; a lost wake-up shows in every third round. */
    cr_assert_lt(late, 20, "%u of %u", late, WAITERS * ROUNDS);
    world_end(&w);
}

Test(client_wait, descriptor_becomes_readable_after_the_next_change_and_not_before)
{
    struct world w;
    world_begin(&w);
    int fd = kvf_event_fd(w.client);
    kvf_room room = world_sink(&w, 0, 1);
    struct kvf_event events[8];
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0);
    cr_assert_not(is_readable(fd, 0));
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert(is_readable(fd, 1000));
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_events_next(w.client, events, 8), 2);
    cr_assert_eq(events[0].room, room);
    cr_assert_eq(events[0].state, KVF_TRANSFERRING);
    cr_assert_eq(events[0].is_drained, 0);
    cr_assert_eq(events[1].state, KVF_SUCCESS);
    cr_assert_eq(events[1].is_drained, 1);
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0);
    cr_assert_not(is_readable(fd, 0), "taken and armed again");
    cr_assert_eq(kvf_events_next(w.client, events, 0), -EINVAL);
    cr_assert_eq(kvf_events_next(w.client, NULL, 8), -EINVAL);
    world_end(&w);
}

Test(client_wait, waiter_that_takes_the_datagram_passes_it_on_to_the_engines_epoll)
{
    struct world w;
    world_begin(&w);
    int fd = kvf_event_fd(w.client);
    kvf_room room = world_sink(&w, 0, 1);
    struct kvf_event events[8];
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0); /* armed, and now busy elsewhere */
    struct waiter waiter = {.w = &w, .room = room};
    pthread_create(&waiter.thread, NULL, wait_for_room, &waiter);
    usleep(20000);
    fake_succeed(&w.fake, room);
    pthread_join(waiter.thread, NULL);
    cr_assert_eq(waiter.state, KVF_SUCCESS);
    cr_assert(is_readable(fd, 1000), "the waiter emptied the socket");
    cr_assert_eq(kvf_events_next(w.client, events, 8), 1);
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0);
    cr_assert_not(is_readable(fd, 0));
    world_end(&w);
}

/* The next four hold wait_lock to stop a thread between its first look and its sleep. */

static void *next_event(void *arg)
{
    struct waiter *waiter = arg;
    struct kvf_event event;
    waiter->state = kvf_events_next(waiter->w->client, &event, 1);
    return NULL;
}

Test(client_wait, change_between_look_and_arming_is_found_by_the_second_look)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    struct waiter waiter = {.w = &w, .room = room};
    pthread_mutex_lock(&w.client->cold.wait_lock);
    pthread_create(&waiter.thread, NULL, next_event, &waiter);
    usleep(20000);
    fake_succeed(&w.fake, room); /* nobody is armed: no datagram */
    pthread_mutex_unlock(&w.client->cold.wait_lock);
    pthread_join(waiter.thread, NULL);
    cr_assert_eq(waiter.state, 1);
    world_end(&w);
}

Test(client_wait, change_between_poll_and_arming_is_found_before_the_sleep)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    w.client->cold.has_leader = true; /* a follower would sleep on nobody's news */
    struct waiter waiter = {.w = &w, .room = room};
    pthread_mutex_lock(&w.client->cold.wait_lock);
    pthread_create(&waiter.thread, NULL, wait_for_room, &waiter);
    usleep(20000);
    fake_succeed(&w.fake, room);
    uint64_t told_ns = kvf_client_now_ns();
    pthread_mutex_unlock(&w.client->cold.wait_lock);
    pthread_join(waiter.thread, NULL);
    cr_assert_eq(waiter.state, KVF_SUCCESS);
    cr_assert_lt(waiter.woken_ns - told_ns, UINT64_C(90000000));
    world_end(&w);
}

Test(client_wait, waiter_that_sleeps_has_armed_the_descriptor)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    struct waiter waiter = {.w = &w, .room = room};
    pthread_create(&waiter.thread, NULL, wait_for_room, &waiter);
    for (int i = 0; i < 2000 && atomic_load(&w.fake.own.shm->events_armed) == 0; i++) {
        usleep(1000);
    }
    cr_assert_eq(atomic_load(&w.fake.own.shm->events_armed), 1);
    fake_succeed(&w.fake, room);
    pthread_join(waiter.thread, NULL);
    cr_assert_eq(waiter.state, KVF_SUCCESS);
    world_end(&w);
}

Test(client_wait, engine_that_takes_the_datagram_passes_it_on_to_the_leading_waiter)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    w.client->cold.has_leader = true; /* as one that is about to sleep */
    atomic_store(&w.fake.own.shm->events_armed, 1);
    fake_succeed(&w.fake, room);
    struct kvf_event events[4];
    cr_assert_eq(kvf_events_next(w.client, events, 4), 1);
    cr_assert_eq(kvf_events_next(w.client, events, 4), 0);
    cr_assert(is_readable(w.client->cold.leader_kick_fd, 0));
    w.client->cold.has_leader = false;
    world_end(&w);
}

struct pusher {
    struct world *w;
    kvf_room room;
    uint32_t count;
};

static void *push_changes(void *arg)
{
    struct pusher *pusher = arg;
    for (uint32_t i = 0; i < pusher->count; i++) {
        pusher->w->fake.own.rooms[fake_slot(pusher->room)].detail = i;
        fake_open(&pusher->w->fake, pusher->room,
                  i % 2 == 0 ? KVF_STATE_TRANSFERRING : KVF_STATE_WAITING_FOR_INPUT);
        if (i % 64 == 0) {
            usleep(50);
        }
    }
    fake_succeed(&pusher->w->fake, pusher->room);
    return NULL;
}

/* Sleeps on the descriptor after every 0, as an epoll loop does; one lost wake-up hangs it. */
Test(client_wait, epoll_loop_never_misses_the_last_change)
{
    struct world w;
    world_begin_with(&w, 4, 64, 0);
    int fd = kvf_event_fd(w.client);
    kvf_room room = world_sink(&w, 0, 1);
    struct pusher pusher = {.w = &w, .room = room, .count = 20000};
    pthread_t thread;
    pthread_create(&thread, NULL, push_changes, &pusher);
    uint32_t sleeps = 0;
    while (kvf_poll(w.client, room) != KVF_SUCCESS) {
        struct kvf_event events[16];
        int n = kvf_events_next(w.client, events, 16);
        cr_assert(n >= 0 || n == -EOVERFLOW);
        if (n == 0) {
            sleeps++;
            cr_assert(is_readable(fd, 5000), "nobody rang after sleep %u", sleeps);
        }
    }
    pthread_join(thread, NULL);
    cr_assert_gt(sleeps, 0);
    world_end(&w);
}

Test(client_wait, lost_events_are_told_once)
{
    struct world w;
    world_begin_with(&w, 4, 2, 0);
    kvf_room room = world_sink(&w, 0, 1);
    for (int i = 0; i < 5; i++) {
        fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    }
    struct kvf_event events[8];
    cr_assert_eq(kvf_events_next(w.client, events, 8), -EOVERFLOW);
    cr_assert_eq(kvf_events_next(w.client, events, 8), 2);
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0);
    struct kvf_daemon_info info = {.size_bytes = sizeof info};
    cr_assert_eq(kvf_daemon_info(w.client, &info), 0);
    cr_assert_eq(info.events_lost, 3);
    world_end(&w);
}

Test(client_wait, event_of_garbage_is_nobodys)
{
    struct world w;
    world_begin(&w);
    struct kvf_event_shm bad[] = {{.slot = WORLD_ROOMS, .generation = 1},
                                  {.slot = UINT32_MAX, .generation = 1},
                                  {.slot = 0, .generation = UINT64_MAX},
                                  {.slot = 0, .generation = 99}};
    cr_assert_eq(kvf_spsc_push_seq_cst(&w.fake.events, bad, 4), 4);
    struct kvf_event events[8];
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0);
    world_end(&w);
}

Test(client_wait, socket_whose_other_end_is_closed_keeps_nobody_busy)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    close(w.fake.event_fd);
    w.fake.event_fd = -1;
    struct timespec before;
    struct timespec after;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    cr_assert_eq(kvf_wait(w.client, room, 300), -ETIMEDOUT);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    double used_ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
                     (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    cr_assert_lt(used_ms, 20.0);
    struct kvf_event events[8];
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0);
    cr_assert_not(is_readable(kvf_event_fd(w.client), 0));
    world_end(&w);
}

/* Sleeping until something changes.
 *
 * The worker sends one datagram after a change if somebody armed the descriptor, and disarms it. Threads in
 * kvf_wait and the engine's own epoll may sleep on that one datagram at the same time, and whoever takes it
 * takes it from the others. So one waiter leads: it sleeps in the kernel, and wakes the rest through a
 * condition variable. A leader that takes the datagram passes it on to the engine's epoll, and an engine
 * that takes it passes it on to the leader, each through an eventfd of its own. Both happen under
 * wait_lock, and whoever wants to sleep arms and looks again after it has said under that lock that it will
 * be there; therefore no order of events loses the news. */
#include "client/internal.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define KVF_DATAGRAMS_PER_LOOK 64u
#define KVF_EVENTS_PER_POP 32u

/* ---- descriptors --------------------------------------------------------------------------------------- */

static int watch(int epoll_fd, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : -errno;
}

int kvf_client_wait_watch(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    cold->has_event_hang_up = false;
    return watch(cold->engine_fd, cold->event_fd);
}

int kvf_client_wait_init(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    pthread_condattr_t attr;
    int err = -pthread_condattr_init(&attr);
    if (err != 0) {
        return err;
    }
    err = -pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (err == 0) {
        err = -pthread_cond_init(&cold->wait_cond, &attr);
    }
    pthread_condattr_destroy(&attr);
    if (err != 0) {
        return err;
    }
    cold->engine_fd = epoll_create1(EPOLL_CLOEXEC);
    cold->engine_kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cold->leader_kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cold->engine_fd < 0 || cold->engine_kick_fd < 0 || cold->leader_kick_fd < 0) {
        err = -errno;
    } else {
        err = watch(cold->engine_fd, cold->engine_kick_fd);
    }
    if (err == 0) {
        err = kvf_client_wait_watch(client);
    }
    if (err != 0) {
        kvf_client_wait_close(client);
    }
    return err;
}

void kvf_client_wait_close(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    int *fds[] = {&cold->engine_fd, &cold->engine_kick_fd, &cold->leader_kick_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
            *fds[i] = -1;
        }
    }
    pthread_cond_destroy(&cold->wait_cond);
}

int kvf_event_fd(kvf_client *client)
{
    int err = kvf_client_enter(client);
    return err != 0 ? err : client->cold.engine_fd;
}

/* Empties the event socket; wait_lock held. True if there was something. */
static bool take_datagrams(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    bool has_taken = false;
    for (uint32_t i = 0; i < KVF_DATAGRAMS_PER_LOOK && !cold->has_event_hang_up; i++) {
        char bytes[64];
        ssize_t got = recv(cold->event_fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got > 0) {
            has_taken = true;
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else if (got < 0 && errno == EAGAIN) {
            break;
        } else {
            /* The other end is closed, which stays readable for ever: nobody may sleep on it again. */
            cold->has_event_hang_up = true;
            (void)epoll_ctl(cold->engine_fd, EPOLL_CTL_DEL, cold->event_fd, NULL);
        }
    }
    return has_taken;
}

static void reset(int event_fd)
{
    eventfd_t count;
    (void)eventfd_read(event_fd, &count);
}

/* From now on the worker's next change sends a datagram. The caller looks again after this. */
static void arm(kvf_client *client)
{
    /* D2 (seq_cst): stored before the words and the ring are looked at again; the worker stores those
     * first and then looks here. */
    atomic_store_explicit(&client->cold.segment.shm->events_armed, 1, memory_order_seq_cst);
}

/* The look at a room's word that follows the arming. An acquire load might be served before the store of
 * the flag is seen, and the worker, finding no flag, would send nothing. */
static void look_again(const kvf_client *client, kvf_room room)
{
    uint32_t slot = (uint16_t)room;
    if (atomic_load_explicit(&client->hot.handles[slot], memory_order_relaxed) == room) {
        /* D2 (seq_cst): stands after the arming in the one order of both sides. kvf_poll loads the same word
         * later and cannot see an older one. */
        (void)atomic_load_explicit(&kvf_client_hot_room(client, slot)->word,
                                   memory_order_seq_cst);
    }
}

/* ---- kvf_wait -------------------------------------------------------------------------------------------- */

static bool has_answer(int state)
{
    return state < 0 || state == KVF_FAILED || state == KVF_SUCCESS;
}

/* The leader's sleep; wait_lock is held on entry and on return, and not between. */
static void sleep_in_kernel(kvf_client *client, int ms)
{
    struct kvf_cold *cold = &client->cold;
    struct pollfd fds[2] = {{.fd = cold->leader_kick_fd, .events = POLLIN},
                            {.fd = cold->event_fd, .events = POLLIN}};
    nfds_t fd_count = cold->has_event_hang_up ? 1 : 2;
    pthread_mutex_unlock(&cold->wait_lock);
    (void)poll(fds, fd_count, ms);
    kvf_client_look_now_and_then(client);
    pthread_mutex_lock(&cold->wait_lock);
    reset(cold->leader_kick_fd);
    if (take_datagrams(client) && cold->is_armed_for_engine) {
        cold->is_armed_for_engine = false;
        (void)eventfd_write(cold->engine_kick_fd, 1);
    }
}

static void sleep_behind_leader(kvf_client *client, int ms)
{
    uint64_t until_ns = kvf_client_now_ns() + (uint64_t)ms * 1000000u;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};
    (void)pthread_cond_timedwait(&client->cold.wait_cond, &client->cold.wait_lock, &until);
}

static void stop_leading(struct kvf_cold *cold)
{
    cold->has_leader = false;
    pthread_cond_broadcast(&cold->wait_cond);
}

int kvf_wait(kvf_client *client, kvf_room room, uint32_t timeout_ms)
{
    int state = kvf_poll(client, room);
    if (has_answer(state)) {
        return state;
    }
    struct kvf_cold *cold = &client->cold;
    uint64_t deadline_ns = kvf_client_now_ns() + (uint64_t)timeout_ms * 1000000u;
    pthread_mutex_lock(&cold->wait_lock);
    for (;;) {
        bool is_leader = !cold->has_leader;
        cold->has_leader = true;
        arm(client);
        look_again(client, room);
        state = kvf_poll(client, room);
        int ms = kvf_client_ms_until(deadline_ns, KVF_WAIT_SLICE_MS);
        if (has_answer(state) || ms == 0) {
            if (is_leader) {
                stop_leading(cold);
            }
            break;
        }
        if (is_leader) {
            sleep_in_kernel(client, ms);
            stop_leading(cold);
        } else {
            sleep_behind_leader(client, ms);
        }
    }
    pthread_mutex_unlock(&cold->wait_lock);
    return has_answer(state) ? state : -ETIMEDOUT;
}

/* ---- events ------------------------------------------------------------------------------------------------ */

/* What the engine sees of one event; false if it is nobody's any more. */
static bool translate(const kvf_client *client, const struct kvf_event_shm *shm,
                      struct kvf_event *ret_event)
{
    const struct kvf_cold *cold = &client->cold;
    uint32_t slot = shm->slot;
    kvf_room room = kvf_client_handle(shm->generation, slot);
    if (slot >= cold->segment.limits.rooms_max || shm->generation > KVF_GENERATION_MAX ||
        atomic_load_explicit(&cold->slots[slot].handle, memory_order_relaxed) != room) {
        return false;
    }
    *ret_event = (struct kvf_event){.room = room,
                                    .state = (int32_t)kvf_word_poll(shm->word),
                                    .is_drained = kvf_word_is_drained(shm->word)};
    return true;
}

/* Lock held. */
static int pop_events(kvf_client *client, struct kvf_event *ret_events, int max)
{
    struct kvf_cold *cold = &client->cold;
    struct kvf_event_shm popped[KVF_EVENTS_PER_POP];
    int count = 0;
    /* D2 (seq_cst): after an arming, this look and the worker's at the flag cannot both miss. */
    while (count < max && kvf_spsc_is_pending(&cold->events) == 1) {
        uint32_t wanted = (uint32_t)(max - count);
        uint32_t got = kvf_spsc_pop(&cold->events, popped,
                                    wanted < KVF_EVENTS_PER_POP ? wanted : KVF_EVENTS_PER_POP);
        if (got == 0) {
            break;
        }
        for (uint32_t i = 0; i < got; i++) {
            count += translate(client, &popped[i], &ret_events[count]);
        }
    }
    atomic_store_explicit(&cold->segment.shm->events_consumed, cold->events.pos,
                          memory_order_relaxed);
    return count;
}

/* Says once that rooms may have changed without an event. Lock held. */
static bool has_lost(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    const struct kvf_segment_shm *shm = cold->segment.shm;
    /* D2 (seq_cst): it stands for the event that found no place, so it is looked at like the ring; and the
     * engine's scan of its rooms, which follows, finds the word that event was about. */
    uint32_t lost = atomic_load_explicit(&shm->events_lost, memory_order_seq_cst);
    uint64_t epoch = atomic_load_explicit(&shm->worker_epoch, memory_order_acquire); /* E1 */
    bool must_scan = atomic_exchange_explicit(&cold->must_scan, false, memory_order_relaxed);
    /* A worker's end changes words, and what it had pushed last may be lost with it. */
    must_scan = must_scan || lost != cold->events_lost_seen || epoch != cold->epoch_seen;
    cold->events_lost_seen = lost;
    cold->epoch_seen = epoch;
    return must_scan;
}

static int next_locked(kvf_client *client, struct kvf_event *ret_events, int max)
{
    if (has_lost(client)) {
        return -EOVERFLOW;
    }
    return pop_events(client, ret_events, max);
}

static int next_once(kvf_client *client, struct kvf_event *ret_events, int max)
{
    pthread_mutex_lock(&client->cold.lock);
    int rc = next_locked(client, ret_events, max);
    kvf_client_tidy(client, false);
    pthread_mutex_unlock(&client->cold.lock);
    return rc;
}

/* The engine was woken, or came by itself: the descriptor is quiet again until the next arming. */
static void take_for_engine(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    pthread_mutex_lock(&cold->wait_lock);
    cold->is_armed_for_engine = false;
    reset(cold->engine_kick_fd);
    if (take_datagrams(client) && cold->has_leader) {
        (void)eventfd_write(cold->leader_kick_fd, 1);
    }
    pthread_mutex_unlock(&cold->wait_lock);
}

int kvf_events_next(kvf_client *client, struct kvf_event *ret_events, int max)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (ret_events == NULL || max <= 0) {
        return -EINVAL;
    }
    int rc = next_once(client, ret_events, max);
    if (rc != 0) {
        return rc;
    }
    /* About to say "nothing": quiet the descriptor, arm it, and look once more. Events that came before
     * the arming are found by that look, later ones make the descriptor readable. */
    kvf_client_look_now_and_then(client);
    take_for_engine(client);
    pthread_mutex_lock(&client->cold.wait_lock);
    client->cold.is_armed_for_engine = true;
    pthread_mutex_unlock(&client->cold.wait_lock);
    arm(client);
    return next_once(client, ret_events, max);
}

/* A child has the handle and none of what it stands for. Children end with _exit. */
#include "client_world.h"

#include <sys/wait.h>
#include <unistd.h>

#define CHILD_EXPECT(actual, wanted)                                                           \
    do {                                                                                       \
        if ((actual) != (wanted)) {                                                            \
            _exit(__LINE__ & 0xff);                                                            \
        }                                                                                      \
    } while (0)

static void ask_everything(struct world *w, kvf_room room)
{
    kvf_client *c = w->client;
    int32_t page = 0;
    int64_t wide = 0;
    int32_t state;
    kvf_room other;
    uint32_t number;
    struct kvf_event event;
    struct kvf_room_info info = {.size_bytes = sizeof info};
    struct kvf_daemon_info daemon = {.size_bytes = sizeof daemon};
    struct kvf_group_opts group = {.size_bytes = sizeof group};
    struct kvf_region_opts region = {.size_bytes = sizeof region};
    kvf_room rooms[] = {room, 0, 1, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        CHILD_EXPECT(kvf_poll(c, rooms[i]), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_poll_many(c, &rooms[i], 1, &state), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_failed_early(c, rooms[i]), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_drained(c, rooms[i]), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_visible(c, rooms[i]), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_abort(c, rooms[i], 1), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_release(c, rooms[i]), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_wait(c, rooms[i], 1000), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_lease(c, rooms[i], 0), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_lease_give_back(c, rooms[i], 0), -KVF_E_FORKED);
        CHILD_EXPECT(kvf_room_info(c, rooms[i], &info), -KVF_E_FORKED);
        CHILD_EXPECT(fake_submit(c, rooms[i], w->memory.region, &page, 1, 0, 0), -KVF_E_FORKED);
    }
    CHILD_EXPECT(kvf_pages_are_idle(c, w->memory.region, &page, 1, NULL), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_pages_are_idle64(c, w->memory.region, &wide, 1, NULL), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_page_lender(c, w->memory.region, 0, &other), -KVF_E_FORKED);
    CHILD_EXPECT(fake_open_sink(c, w->memory.region, &page, 1, &other), -KVF_E_FORKED);
    CHILD_EXPECT(fake_open_source(c, w->memory.region, &other), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_events_next(c, &event, 1), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_event_fd(c), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_daemon_check(c), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_daemon_info(c, &daemon), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_reattach(c, 0), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_region_register(c, &region, &number), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_region_unregister(c, w->memory.region), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_last_refusal(c, NULL, 0), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_group_register(c, &group, &number), -KVF_E_FORKED);
    CHILD_EXPECT(kvf_pool_addr(w->memory.pool) == NULL, 1);
}

static int run_child(struct world *w, kvf_room room, bool is_locked, bool is_dropping)
{
    if (is_locked) {
        pthread_mutex_lock(
            &w->client->cold.lock); /* as another thread would hold it at the fork */
    }
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        ask_everything(w, room);
        if (is_dropping) {
            CHILD_EXPECT(kvf_detach(w->client, 1000, NULL), -KVF_E_FORKED);
            kvf_pool_destroy(w->memory.pool);
        }
        _exit(0);
    }
    if (is_locked) {
        pthread_mutex_unlock(&w->client->cold.lock);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Test(client_fork, childs_handle_answers_forked_and_its_end_detaches_nothing)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(run_child(&w, room, false, false), 0);
    cr_assert_eq(run_child(&w, room, true, true), 0);
    /* Slot 0 must be in use and free once each: a child's hot words are zero. */
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_daemon_check(w.client), 0);
    cr_assert_eq(world_is_idle(&w, 0), 0);
    kvf_room other = world_sink(&w, 1, 1);
    cr_assert_eq(kvf_poll(w.client, other), KVF_BOOTSTRAPPING);
    cr_assert_eq(atomic_load(&w.fake.detached_count), 0);
    cr_assert_eq(atomic_load(&w.fake.hung_up_count), 0);
    memset(kvf_pool_addr(w.memory.pool), 5, 4096);
    world_end(&w);
}

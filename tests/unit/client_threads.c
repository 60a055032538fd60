/* Many threads, one handle. Built with a thread sanitizer this also shows that nothing is read and written
 * without order: the fake worker then works through the library's own mapping. */
#include "client_world.h"

#include <unistd.h>

#define ENGINES 3
#define ROOMS_EACH 400u

struct shared {
    struct world w;
    _Atomic bool is_over;
    _Atomic uint32_t ended;
};

/* Publishes an end for every open it reads, sometimes without success, and acts on aborts. */
static void *work(void *arg)
{
    struct shared *s = arg;
    uint64_t generations[64] = {0};
    uint32_t turn = 0;
    while (!atomic_load(&s->is_over)) {
        struct kvf_cmd_shm cmd;
        uint32_t slots[8];
        uint32_t dirty = kvf_dirty_take(s->w.fake.view->dirty, 64, slots, 8);
        (void)dirty;
        if (fake_pop(&s->w.fake, &cmd) == 0) {
            usleep(20);
            continue;
        }
        kvf_room room = kvf_client_handle(cmd.generation, cmd.slot);
        if (cmd.op == KVF_CMD_SUBMIT) {
            if (generations[cmd.slot] == cmd.generation) {
                fake_succeed(&s->w.fake, room);
            }
            continue;
        }
        generations[cmd.slot] = cmd.generation;
        if (cmd.op == KVF_CMD_OPEN_SOURCE) {
            fake_open(&s->w.fake, room, KVF_STATE_WAITING_FOR_INPUT);
        } else if (turn++ % 2 == 0) {
            fake_succeed(&s->w.fake, room);
        } else {
            fake_fail(&s->w.fake, room, KVF_PROOF_REVOKED, KVF_E_PEER_LOST);
        }
    }
    return NULL;
}

struct engine {
    struct shared *shared;
    int32_t first; /* its own pages */
    pthread_t thread;
};

static void *live(void *arg)
{
    struct engine *engine = arg;
    struct shared *s = engine->shared;
    kvf_client *client = s->w.client;
    uint32_t region = s->w.memory.region;
    for (uint32_t i = 0; i < ROOMS_EACH; i++) {
        int32_t pages[4] = {engine->first, engine->first + 1, engine->first + 2, 60};
        kvf_room room;
        bool is_source = i % 3 == 0;
        int err;
        do {
            err = is_source ? fake_open_source(client, region, &room)
                            : fake_open_sink(client, region, pages, 3, &room);
        } while (err == -EAGAIN);
        cr_assert_eq(err, 0, "%s", kvf_code_name(err));
        if (is_source) {
            do {
                err = fake_submit(client, room, region, pages, 4, 0, KVF_LAST_PIECE);
            } while (err == -EAGAIN);
            cr_assert_eq(err, 0, "%s", kvf_code_name(err));
        }
        cr_assert_eq(kvf_lease(client, room, KVF_KIND_CPU), 0);
        cr_assert_eq(kvf_lease_give_back(client, room, KVF_KIND_CPU), 0);
        if (i % 7 == 0) {
            cr_assert_eq(kvf_abort(client, room, 3), 0);
        }
        int state = i % 2 == 0 ? kvf_wait(client, room, 20000) : KVF_TRANSFERRING;
        while (state != KVF_FAILED && state != KVF_SUCCESS) {
            state = kvf_poll(client, room);
            cr_assert_geq(state, 0, "%s", kvf_code_name(state));
        }
        cr_assert_gt(kvf_drained(client, room), 0);
        cr_assert_eq(kvf_pages_are_idle(client, region, pages, 3, NULL), 1);
        cr_assert_eq(kvf_release(client, room), 0);
        cr_assert_eq(kvf_poll(client, room), -KVF_E_STALE_ROOM);
        atomic_fetch_add(&s->ended, 1);
    }
    return NULL;
}

static void *watch(void *arg)
{
    struct shared *s = arg;
    while (!atomic_load(&s->is_over)) {
        struct kvf_event events[16];
        int n = kvf_events_next(s->w.client, events, 16);
        cr_assert(n >= 0 || n == -EOVERFLOW);
        (void)kvf_daemon_check(s->w.client);
        int32_t page = 60;
        (void)kvf_pages_are_idle(s->w.client, s->w.memory.region, &page, 1, NULL);
    }
    return NULL;
}

Test(client_threads, engines_share_a_handle_and_every_page_and_slot_comes_back)
{
    static struct shared s;
    world_begin_with(&s.w, 16, 16, 1u << 16);
    s.w.fake.view = &s.w.client->cold.segment;
    s.w.fake.cmds.slots = s.w.client->cold.segment.cmd_slots;
    s.w.fake.events.slots = s.w.client->cold.segment.event_slots;
    pthread_t worker;
    pthread_t watcher;
    pthread_create(&worker, NULL, work, &s);
    pthread_create(&watcher, NULL, watch, &s);
    struct engine engines[ENGINES];
    for (int i = 0; i < ENGINES; i++) {
        engines[i] = (struct engine){.shared = &s, .first = i * 8};
        pthread_create(&engines[i].thread, NULL, live, &engines[i]);
    }
    for (int i = 0; i < ENGINES; i++) {
        pthread_join(engines[i].thread, NULL);
    }
    atomic_store(&s.is_over, true);
    pthread_join(worker, NULL);
    pthread_join(watcher, NULL);
    cr_assert_eq(atomic_load(&s.ended), ENGINES * ROOMS_EACH);
    for (int32_t page = 0; page < (int32_t)WORLD_PAGES; page++) {
        cr_assert_eq(world_is_idle(&s.w, page), 1, "page %d", page);
    }
    pthread_mutex_lock(&s.w.client->cold.lock);
    kvf_client_tidy(s.w.client, true);
    pthread_mutex_unlock(&s.w.client->cold.lock);
    cr_assert_eq(s.w.client->cold.free_slots.count, 16);
    cr_assert_eq(s.w.client->cold.zombies.count, 0);
    cr_assert_eq(kvf_nodes_free_count(&s.w.client->cold.chunk_nodes),
                 s.w.client->cold.chunk_nodes.count);
    s.w.fake.view = &s.w.fake.own;
    world_end(&s.w);
}

struct releaser {
    struct world *w;
    kvf_room room;
    int rc;
    _Atomic bool is_back;
    pthread_t thread;
};

static void *release_once(void *arg)
{
    struct releaser *r = arg;
    r->rc = kvf_release(r->w->client, r->room);
    (void)world_is_idle(r->w, 0);
    return NULL;
}

Test(client_threads, h10_two_threads_that_release_one_room_undo_its_counts_once)
{
    struct world w;
    world_begin(&w);
    kvf_room reader = world_source(&w);
    cr_assert_eq(world_submit(&w, reader, 0, 2, 0, 0), 0);
    world_pop(&w);
    world_pop(&w);
    fake_open(&w.fake, reader, KVF_STATE_TRANSFERRING);
    for (int round = 0; round < 20; round++) {
        kvf_room room = world_source(&w);
        cr_assert_eq(world_submit(&w, room, 0, 2, 0, KVF_LAST_PIECE), 0);
        world_pop(&w);
        world_pop(&w);
        fake_succeed(&w.fake, room);
        struct releaser r[2];
        /* Both stand at the lock before either has passed it. */
        pthread_mutex_lock(&w.client->cold.lock);
        for (int i = 0; i < 2; i++) {
            r[i] = (struct releaser){.w = &w, .room = room};
            pthread_create(&r[i].thread, NULL, release_once, &r[i]);
        }
        usleep(3000);
        pthread_mutex_unlock(&w.client->cold.lock);
        pthread_join(r[0].thread, NULL);
        pthread_join(r[1].thread, NULL);
        cr_assert_eq(r[0].rc + r[1].rc, -KVF_E_STALE_ROOM, "one of them, once");
        cr_assert_eq(kvf_ledger_readers(w.client->cold.regions[0].words[0]), 1,
                     "the other room still reads the page");
    }
    cr_assert_eq(world_is_idle(&w, 0), 0);
    world_end(&w);
}

struct registrar {
    struct world *w;
    _Atomic bool *is_over;
};

static void *ask_on(void *arg)
{
    struct registrar *r = arg;
    uint32_t region = r->w->memory.region;
    while (!atomic_load(r->is_over)) {
        int32_t pages[64];
        for (int32_t i = 0; i < 64; i++) {
            pages[i] = i;
        }
        /* Handles of the slot as they come and go. */
        for (uint32_t epoch = 0; epoch < 60; epoch++) {
            int rc =
                kvf_pages_are_idle(r->w->client, region + (epoch << 8) + 1, pages, 4, NULL);
            cr_assert(rc == 1 || rc == -KVF_E_UNKNOWN_REGION, "%d", rc);
        }
    }
    return NULL;
}

Test(client_threads, ledger_is_not_unmapped_under_a_reader)
{
    struct world w;
    world_begin(&w);
    _Atomic bool is_over = false;
    struct registrar r = {.w = &w, .is_over = &is_over};
    pthread_t thread;
    pthread_create(&thread, NULL, ask_on, &r);
    for (int i = 0; i < 50; i++) {
        struct fake_memory memory;
        fake_memory_make(w.client, 64, &memory);
        usleep(500);
        cr_assert_eq(kvf_region_unregister(w.client, memory.region), 0);
        kvf_pool_destroy(memory.pool);
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    world_end(&w);
}

static void *unregister(void *arg)
{
    struct releaser *r = arg;
    r->rc = kvf_region_unregister(r->w->client, r->w->memory.region);
    atomic_store(&r->is_back, true);
    return NULL;
}

Test(client_threads, unregister_waits_for_a_reader_of_the_ledger)
{
    struct world w;
    world_begin(&w);
    struct kvf_client_region *region = &w.client->cold.regions[0];
    atomic_fetch_add(&region->users, 1); /* as a reader that was interrupted */
    struct releaser r = {.w = &w};
    pthread_create(&r.thread, NULL, unregister, &r);
    usleep(50000);
    cr_assert_eq(atomic_load(&r.is_back), false);
    atomic_fetch_sub(&region->users, 1);
    pthread_join(r.thread, NULL);
    cr_assert_eq(r.rc, 0);
    world_end(&w);
}

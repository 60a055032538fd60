/* What engines do with the library beside plain transfers: events, threads, full rings, memory of their
 * own, long lists. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

static void start_with(const struct geometry *g, uint32_t rooms_max)
{
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", NULL);
    from = engine_start(prefill, g, rooms_max);
    to = engine_start(decode, g, rooms_max);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- events ----------------------------------------------------------------------------------------- */

/* Takes what waits; true once an event says that this room is drained. */
static bool take_events(struct engine *e, kvf_room room)
{
    struct kvf_event events[16];
    bool is_drained = false;
    int n;
    while ((n = kvf_events_next(e->client, events, 16)) > 0) {
        for (int i = 0; i < n; i++) {
            is_drained = is_drained || (events[i].room == room && events[i].is_drained == 1);
        }
    }
    CHECK_IS(n, 0, "events_next");
    return is_drained;
}

static void event_descriptor(void)
{
    start_with(&geometry, 0);
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN};
    int event_fd = kvf_event_fd(to->client);
    CHECK(epoll_fd >= 0 && epoll_ctl(epoll_fd, EPOLL_CTL_ADD, event_fd, &wanted) == 0, "epoll");
    for (int i = 0; i < 100; i++) {
        uint64_t key = key_next();
        kvf_room in = engine_sink(to, key, 0, 4, prefill);
        kvf_room out = engine_source(from, key);
        engine_submit(from, out, 0, 4, 0, true);
        while (!take_events(to, in)) { /* it armed the descriptor */
            struct epoll_event event;
            CHECK_IS(epoll_wait(epoll_fd, &event, 1, 3000), 1,
                     "no wake-up, and the room is not told as drained");
        }
        CHECK_IS(kvf_poll(to->client, in), KVF_SUCCESS, "state");
        room_expect(from, out, KVF_SUCCESS, WAIT_MS);
        room_release(to, in);
        room_release(from, out);
    }
    CHECK(!take_events(to, 0), "an event of no room");
    struct pollfd quiet = {.fd = event_fd, .events = POLLIN};
    CHECK_IS(poll(&quiet, 1, 100), 0, "the descriptor is readable and nothing happened");
    close(epoll_fd);
    stop();
}

static void events_lost(void)
{
    start_with(&geometry, 0);
    struct kvf_attach_opts opts = {.size_bytes = sizeof opts,
                                   .timeout_ms = 1000,
                                   .socket_path = decode->socket_path,
                                   .event_slots = 2};
    static const struct geometry g = {.plane_count = 1, .page_bytes = 4096, .page_count = 64};
    struct engine small = {.daemon = decode, .geometry = g};
    kvf_room rooms[20];
    int32_t states[20];
    struct kvf_event events[64];
    kvf_pool *pool = pool_make(geometry_bytes(&g));
    CHECK_CODE(kvf_attach(&opts, &small.client), 0, "attach with two event slots");
    small.region = region_register(small.client, pool, &g);
    for (int i = 0; i < 20; i++) {
        rooms[i] = engine_sink(&small, key_next(), i, 1, prefill);
        CHECK_CODE(kvf_abort(small.client, rooms[i], 0), 0, "abort");
    }
    WAIT_FOR(kvf_poll_many(small.client, rooms, 20, states) == 20, WAIT_MS, "not all ended");
    CHECK_IS(kvf_events_next(small.client, events, 64), -EOVERFLOW, "lost events are told");
    CHECK(kvf_events_next(small.client, events, 64) >= 0, "and told once");
    struct kvf_daemon_info info = {.size_bytes = sizeof info};
    CHECK_CODE(kvf_daemon_info(small.client, &info), 0, "daemon_info");
    CHECK(info.events_lost > 0, "no events were lost");
    for (int i = 0; i < 20; i++) {
        CHECK_IS(kvf_poll(small.client, rooms[i]), KVF_FAILED, "the room's word is the truth");
        room_release(&small, rooms[i]);
    }
    CHECK_CODE(kvf_region_unregister(small.client, small.region), 0, "unregister");
    CHECK_CODE(kvf_detach(small.client, 5000, NULL), 0, "detach");
    kvf_pool_destroy(pool);
    stop();
}

/* ---- threads ------------------------------------------------------------------------------------------ */

#define THREADS 4
#define THREAD_ROOMS 150
#define THREAD_PAGES 6

struct worker_thread {
    pthread_t thread;
    int index;
    uint32_t successes;
    uint32_t failures;
};

/* Its own pages on both sides, the clients of all. */
static void *run_rooms(void *ctx)
{
    struct worker_thread *t = ctx;
    uint64_t state = (uint64_t)t->index + 1u;
    for (int i = 0; i < THREAD_ROOMS; i++) {
        uint64_t key = key_next();
        int32_t first = (t->index * 40 + (int)random_below(&state, 30)) % 1000;
        int32_t pages[THREAD_PAGES];
        pages_count_up(pages, THREAD_PAGES, first);
        engine_fill(from, key, pages, THREAD_PAGES, 0);
        kvf_room in = engine_sink(to, key, first, THREAD_PAGES, prefill);
        kvf_room out = engine_source(from, key);
        engine_submit(from, out, first, THREAD_PAGES, 0, true);
        if (random_below(&state, 4) == 0) {
            sleep_us(random_below(&state, 1000));
            CHECK_CODE(kvf_abort(to->client, in, 0), 0, "abort");
        }
        int sink_state = kvf_wait(to->client, in, WAIT_MS);
        int source_state = kvf_wait(from->client, out, WAIT_MS);
        CHECK(sink_state == KVF_SUCCESS || sink_state == KVF_FAILED, "sink %d", sink_state);
        CHECK(source_state == KVF_SUCCESS || source_state == KVF_FAILED, "source %d",
              source_state);
        if (sink_state == KVF_SUCCESS) {
            engine_verify(to, key, pages, THREAD_PAGES, 0);
            t->successes++;
        } else {
            t->failures++;
        }
        room_release(to, in);
        room_release(from, out);
    }
    return NULL;
}

static void threads(void)
{
    struct worker_thread workers[THREADS];
    uint32_t successes = 0;
    uint32_t failures = 0;
    start_with(&geometry, 0);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker_thread){.index = i};
        CHECK_IS(pthread_create(&workers[i].thread, NULL, run_rooms, &workers[i]), 0, "thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        successes += workers[i].successes;
        failures += workers[i].failures;
    }
    test_say("%u successes, %u aborted", successes, failures);
    CHECK(successes > THREADS * THREAD_ROOMS / 2 && failures > 0, "one of both is missing");
    stop();
}

/* ---- full ------------------------------------------------------------------------------------------------ */

static void full_ring(void)
{
    enum { SLOTS = 4 };
    start_with(&geometry, 0);
    struct kvf_attach_opts opts = {.size_bytes = sizeof opts,
                                   .timeout_ms = 1000,
                                   .socket_path = decode->socket_path,
                                   .cmd_slots = SLOTS};
    static const struct geometry g = {.plane_count = 1, .page_bytes = 4096, .page_count = 64};
    struct engine small = {.daemon = decode, .geometry = g};
    kvf_room rooms[SLOTS];
    kvf_room one_more = 0;
    const int32_t page = 50;
    kvf_pool *pool = pool_make(geometry_bytes(&g));
    CHECK_CODE(kvf_attach(&opts, &small.client), 0, "attach with four command slots");
    small.region = region_register(small.client, pool, &g);
    CHECK(kill(decode->worker, SIGSTOP) == 0, "stop"); /* nobody reads the ring */
    for (int i = 0; i < SLOTS; i++) {
        rooms[i] = engine_sink(&small, key_next(), i, 1, prefill);
    }
    CHECK_IS(engine_try_sink(&small, 9, &page, 1, prefill->listen, &one_more), -EAGAIN,
             "an open with a full ring");
    CHECK(one_more == 0, "a refusal touched its output");
    CHECK_IS(kvf_pages_are_idle(small.client, small.region, &page, 1, NULL), 1, "its page");
    for (int i = 0; i < SLOTS; i++) {
        CHECK_CODE(kvf_abort(small.client, rooms[i], 0), 0, "an abort always fits");
    }
    CHECK(kill(decode->worker, SIGCONT) == 0, "continue");
    for (int i = 0; i < SLOTS; i++) {
        room_expect_reason(&small, rooms[i], KVF_E_ABORTED, WAIT_MS);
        room_release(&small, rooms[i]);
    }
    (void)room_end(&small, engine_sink(&small, key_next(), 50, 1, prefill), WAIT_MS);
    CHECK_CODE(kvf_region_unregister(small.client, small.region), 0, "unregister");
    CHECK_CODE(kvf_detach(small.client, 5000, NULL), 0, "detach");
    kvf_pool_destroy(pool);
    stop();
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

/* Two regions of one memory of the engine's own, neither at its start. */
static void own_memory(void)
{
    static const struct geometry g = {.plane_count = 2, .page_bytes = 4096, .page_count = 16};
    start_with(&geometry, 0);
    uint64_t region_bytes = geometry_bytes(&g);
    uint64_t bytes = 8192 + 2 * region_bytes;
    int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    kvf_pool *pool = NULL;
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
          "memfd: %s", strerror(errno));
    CHECK_CODE(kvf_pool_adopt(fd, bytes, &pool), 0, "adopt");
    close(fd); /* it was duplicated */
    CHECK_IS(kvf_pool_bytes(pool), bytes, "bytes of the pool");
    struct engine parts[2];
    for (int i = 0; i < 2; i++) {
        struct kvf_plane planes[] = {{.stride = 4096, .page_bytes = 4096},
                                     {.off = 65536, .stride = 4096, .page_bytes = 4096}};
        uint64_t off = 4096 + (uint64_t)i * (region_bytes + 4096);
        struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                       .fd = kvf_pool_fd(pool),
                                       .memory_off = off,
                                       .memory_bytes = region_bytes,
                                       .page_count = 16,
                                       .planes = planes,
                                       .plane_count = 2};
        parts[i] = (struct engine){.daemon = decode,
                                   .client = to->client,
                                   .geometry = g,
                                   .page_bytes = 8192,
                                   .base = (unsigned char *)kvf_pool_addr(pool) + off};
        parts[i].plane_off[1] = 65536;
        CHECK_CODE(kvf_region_register(to->client, &opts, &parts[i].region), 0, "register");
    }
    /* From one to the other, through the daemon and back to itself. */
    int32_t pages[16];
    pages_count_up(pages, 16, 0);
    engine_fill(&parts[0], 4, pages, 16, 0);
    engine_set(&parts[1], pages, 16, 0);
    uint64_t key = key_next();
    kvf_room in = engine_sink(&parts[1], key, 0, 16, decode);
    kvf_room out = engine_source(&parts[0], key);
    engine_submit(&parts[0], out, 0, 16, 0, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(to, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(&parts[1], 4, pages, 16, 0);
    engine_verify(&parts[0], 4, pages, 16, 0);
    room_release(to, in);
    room_release(to, out);
    for (int i = 0; i < 2; i++) {
        CHECK_CODE(kvf_region_unregister(to->client, parts[i].region), 0, "unregister");
    }
    kvf_pool_destroy(pool);
    stop();
}

/* ---- long lists ------------------------------------------------------------------------------------------------ */

static void many_runs(void)
{
    enum { RUNS = 12000 };
    static const struct geometry g = {
        .plane_count = 1, .page_bytes = 64, .page_count = 2 * RUNS + 2};
    static int32_t from_pages[RUNS];
    static int32_t to_pages[RUNS];
    uint64_t state = 3;
    start_with(&g, 0);
    for (int i = 0; i < RUNS; i++) {
        from_pages[i] = 2 * i;
        to_pages[i] = 2 * i + 1; /* no two touch: each page is a run of its own */
    }
    pages_shuffle(to_pages, RUNS, &state);
    engine_fill(from, 9, from_pages, RUNS, 0);
    uint64_t key = key_next();
    kvf_room in = engine_sink_pages(to, key, to_pages, RUNS, prefill->listen);
    kvf_room out = engine_source(from, key);
    engine_submit_pages(from, out, from_pages, RUNS, 0, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, 9, to_pages, RUNS, 0);
    room_release(to, in);
    room_release(from, out);
    /* And aborted half-way. */
    in = engine_sink_pages(to, key_next(), to_pages, RUNS, prefill->listen);
    (void)room_end(to, in, WAIT_MS);
    stop();
}

static void many_pieces(void)
{
    enum { PIECES = 3000 };
    static const struct geometry g = {
        .plane_count = 2, .page_bytes = 512, .page_count = PIECES};
    static int32_t pages[PIECES];
    start_with(&g, 0);
    pages_count_up(pages, PIECES, 0);
    engine_fill(from, 2, pages, PIECES, 0);
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, PIECES, prefill);
    kvf_room out = engine_source(from, key);
    for (int i = 0; i < PIECES; i++) { /* page by page, as a prefill ends its chunks */
        engine_submit_pages(from, out, pages + i, 1, (uint32_t)i, i == PIECES - 1);
    }
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, 2, pages, PIECES, 0);
    room_release(to, in);
    room_release(from, out);
    stop();
}

/* The slot of a released room serves the next; a handle never means two rooms. */
static void slots_again(void)
{
    start_with(&geometry, 8);
    kvf_room seen[400];
    for (int i = 0; i < 400; i++) {
        uint64_t key = key_next();
        seen[i] = engine_sink(to, key, i % 64 * 4, 4, prefill);
        for (int k = 0; k < i; k++) {
            CHECK(seen[k] != seen[i], "room %d has the handle of room %d", i, k);
        }
        if (i % 2 == 0) {
            room_release(to, seen[i]); /* its slot comes back by itself */
        } else {
            (void)room_end(to, seen[i], WAIT_MS);
        }
    }
    WAIT_FOR(daemon_stat(decode, "rooms_open") == 0, WAIT_MS, "rooms are left open");
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"the_event_descriptor_wakes_an_epoll_loop", event_descriptor, 0},
        {"lost_events_are_told_and_the_rooms_are_the_truth", events_lost, 0},
        {"four_threads_share_two_clients", threads, 0},
        {"i7_a_full_ring_answers_eagain_and_an_abort_still_fits", full_ring, 0},
        {"memory_handed_over_by_descriptor_serves_in_parts", own_memory, 0},
        {"a_grant_of_12000_runs_arrives_in_order", many_runs, 0},
        {"three_thousand_pieces_make_one_room", many_pieces, 0},
        {"slots_come_back_and_handles_never_do", slots_again, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

#include "tests/torture/engine.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/torture/pattern.h"

#define ATTACH_MS 10000u
#define DETACH_MS 10000u
#define CLIENT_ROOMS 1024u
/* Asking the kernel who is alive costs system calls: now and then is enough. */
#define TURNS_PER_CHECK 256u

int kvf_engine_fail(struct kvf_engine *engine, int code, const char *what)
{
    char *error = engine->shm->error;
    if (error[0] != 0) {
        return -1;
    }
    if (code == 0) {
        snprintf(error, sizeof(engine->shm->error), "%s", what);
    } else {
        snprintf(error, sizeof(engine->shm->error), "%s: %s (%s)", what, kvf_strerror(code),
                 kvf_code_name_of(code));
    }
    return -1;
}

static int engine_attach(struct kvf_engine *e)
{
    char socket_path[sizeof(e->plan->run_dir) + 48];
    char name[32];
    struct kvf_attach_opts opts = {.size_bytes = sizeof(opts), .timeout_ms = ATTACH_MS};
    snprintf(name, sizeof(name), "%s%u", e->is_prefill ? "prefill" : "decode", e->index);
    snprintf(socket_path, sizeof(socket_path), "%s/%s.sock", e->plan->run_dir,
             e->plan->is_local ? KVF_LOCAL_DAEMON : name);
    opts.socket_path = socket_path;
    opts.client_name = name;
    opts.rooms_max = CLIENT_ROOMS;
    int rc = kvf_attach(&opts, &e->client);
    return rc == 0 ? 0 : kvf_engine_fail(e, rc, "cannot attach to its daemon");
}

static int engine_register(struct kvf_engine *e, uint32_t page_count)
{
    const struct kvf_geometry *g = &e->plan->geometry;
    struct kvf_pool_opts pool = {.size_bytes = sizeof(pool), .numa_node = -1};
    pool.bytes = kvf_geometry_region_bytes(g, page_count);
    int rc = kvf_pool_create(&pool, &e->pool);
    if (rc != 0) {
        return kvf_engine_fail(e, rc, "cannot make its page memory");
    }
    e->base = kvf_pool_addr(e->pool);
    /* Touched once before anything is measured: an engine's page memory is resident. */
    kvf_pattern_fill(e->base, kvf_pool_bytes(e->pool), 0);
    struct kvf_plane *planes = calloc(g->plane_count, sizeof(*planes));
    if (planes == NULL) {
        return kvf_engine_fail(e, -ENOMEM, "cannot list its planes");
    }
    for (uint32_t i = 0; i < g->plane_count; i++) {
        planes[i] = (struct kvf_plane){.off = kvf_geometry_piece_off(g, page_count, 0, i),
                                       .stride = g->piece_bytes,
                                       .page_bytes = g->piece_bytes};
    }
    struct kvf_region_opts region = {.size_bytes = sizeof(region),
                                     .fd = kvf_pool_fd(e->pool),
                                     .memory_bytes = kvf_pool_bytes(e->pool),
                                     .page_count = page_count,
                                     .planes = planes,
                                     .plane_count = g->plane_count};
    rc = kvf_region_register(e->client, &region, &e->region);
    free(planes);
    return rc == 0 ? 0 : kvf_engine_fail(e, rc, "cannot register its page memory");
}

static int engine_read_bound(struct kvf_engine *e)
{
    struct kvf_daemon_info info = {.size_bytes = sizeof(info)};
    int rc = kvf_daemon_info(e->client, &info);
    if (rc != 0) {
        return kvf_engine_fail(e, rc, "cannot read the daemon's bound");
    }
    atomic_store_explicit(&e->shm->bound_usual_us, info.bound_usual_us, memory_order_relaxed);
    atomic_store_explicit(&e->shm->bound_worst_us, info.bound_worst_us, memory_order_relaxed);
    return 0;
}

int kvf_engine_open(int fleet_fd, bool is_prefill, uint32_t index, struct kvf_engine *engine)
{
    memset(engine, 0, sizeof(*engine));
    if (index >= KVF_ENGINES_OF_KIND_MAX || kvf_fleet_open(fleet_fd, &engine->fleet) != 0) {
        return -1;
    }
    engine->plan = &engine->fleet.shm->plan;
    engine->shm =
        is_prefill ? &engine->fleet.shm->prefill[index] : &engine->fleet.shm->decode[index];
    engine->is_prefill = is_prefill;
    engine->index = index;
    uint32_t pages = is_prefill ? engine->plan->prefill_pages : engine->plan->decode_pages;
    int rc = kvf_allocator_init(&engine->allocator, pages);
    if (rc != 0) {
        return kvf_engine_fail(engine, rc, "cannot make its allocator");
    }
    if (engine_attach(engine) != 0 || engine_register(engine, pages) != 0 ||
        engine_read_bound(engine) != 0) {
        return -1;
    }
    /* Edge F1 (release): the engine's part of the fleet is set up. */
    atomic_store_explicit(&engine->shm->is_ready, 1, memory_order_release);
    return 0;
}

int kvf_engine_close(struct kvf_engine *engine)
{
    uint32_t undrained = 0;
    int rc;
    kvf_engine_tally(engine, KVF_TALLY_PAGES_LOST,
                     engine->allocator.page_count - engine->allocator.free_count);
    kvf_engine_tally(engine, KVF_TALLY_BAD_GIVES, engine->allocator.bad_gives);
    kvf_engine_tally(engine, KVF_TALLY_REFUSALS, engine->allocator.refusals);
    if (!kvf_engine_must_give_up(engine)) {
        rc = kvf_region_unregister(engine->client, engine->region);
        if (rc != 0) {
            kvf_engine_fail(engine, rc, "cannot unregister its page memory at the end");
        }
    }
    rc = kvf_detach(engine->client, DETACH_MS, &undrained);
    kvf_engine_tally(engine, KVF_TALLY_ROOMS_UNDRAINED, undrained);
    if (rc != 0) {
        kvf_engine_fail(engine, rc, "cannot detach from its daemon");
    }
    kvf_pool_destroy(engine->pool);
    kvf_allocator_free(&engine->allocator);
    rc = engine->shm->error[0] == 0 ? 0 : -1;
    kvf_fleet_close(&engine->fleet);
    return rc;
}

static bool is_mine(const struct kvf_engine *e, const struct kvf_request *r)
{
    return e->is_prefill ? r->prefill == e->index : r->decode == e->index;
}

uint32_t kvf_engine_next(struct kvf_engine *engine)
{
    /* Edge F2 (acquire): pairs with the coordinator's store. */
    uint32_t limit =
        atomic_load_explicit(&engine->fleet.shm->admit_limit, memory_order_acquire);
    while (engine->cursor < limit) {
        if (is_mine(engine, &engine->fleet.requests[engine->cursor])) {
            return engine->cursor;
        }
        engine->cursor++;
    }
    return KVF_REQUEST_NONE;
}

void kvf_engine_begin(struct kvf_engine *engine)
{
    engine->cursor++;
}

bool kvf_engine_is_dry(struct kvf_engine *engine)
{
    /* Edge F3 (acquire): after `stop` the limit stands still. */
    uint32_t stop = atomic_load_explicit(&engine->fleet.shm->stop, memory_order_acquire);
    return stop != 0 && kvf_engine_next(engine) == KVF_REQUEST_NONE;
}

bool kvf_engine_must_give_up(const struct kvf_engine *engine)
{
    return atomic_load_explicit(&engine->fleet.shm->stop, memory_order_relaxed) == 2;
}

void kvf_engine_tally(struct kvf_engine *engine, enum kvf_tally tally, uint64_t add)
{
    atomic_fetch_add_explicit(&engine->shm->tallies[tally], add, memory_order_relaxed);
}

unsigned char *kvf_engine_piece(const struct kvf_engine *engine, int32_t page, uint32_t plane)
{
    return engine->base + kvf_geometry_piece_off(&engine->plan->geometry,
                                                 engine->allocator.page_count, (uint64_t)page,
                                                 plane);
}

void kvf_engine_end(struct kvf_engine *engine, uint32_t request, uint32_t bit)
{
    /* Edge F4 (release): whoever sees the bit sees every count of this request. */
    atomic_fetch_or_explicit(&engine->fleet.progress[request].ended, bit, memory_order_release);
}

int kvf_engine_sleep(struct kvf_engine *engine, uint64_t timeout_ns)
{
    struct kvf_event events[64];
    uint64_t turns = atomic_fetch_add_explicit(&engine->shm->turns, 1, memory_order_relaxed);
    int got = turns % TURNS_PER_CHECK == 0 ? kvf_daemon_check(engine->client) : 0;
    if (got != 0) {
        return kvf_engine_fail(engine, got, "lost its daemon");
    }
    got = kvf_events_next(engine->client, events, 64);
    if (got > 0 || got == -EOVERFLOW) {
        return 0;
    }
    if (got < 0) {
        return kvf_engine_fail(engine, got, "cannot take events");
    }
    struct pollfd wait = {.fd = kvf_event_fd(engine->client), .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / UINT64_C(1000000000)),
                               .tv_nsec = (long)(timeout_ns % UINT64_C(1000000000))};
    if (ppoll(&wait, 1, &timeout, NULL) < 0 && errno != EINTR) {
        return kvf_engine_fail(engine, -errno, "cannot wait for events");
    }
    return 0;
}

#include "tests/daemon/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define END_MS 15000u

static _Atomic uint64_t next_key = 1000;

uint64_t key_next(void)
{
    return atomic_fetch_add_explicit(&next_key, 1, memory_order_relaxed);
}

/* ---- coming and going ------------------------------------------------------------------------------ */

static uint64_t stride_of(const struct geometry *g)
{
    return g->stride != 0 ? g->stride : g->page_bytes;
}

/* Planes lie one behind the other, each aligned to a line. */
static uint64_t plane_bytes(const struct geometry *g)
{
    return (g->page_count * stride_of(g) + 63u) & ~UINT64_C(63);
}

uint64_t geometry_bytes(const struct geometry *g)
{
    uint64_t bytes = g->plane_count * plane_bytes(g);
    return (bytes + 4095u) & ~UINT64_C(4095);
}

kvf_client *client_attach(const struct daemon *d, uint32_t rooms_max)
{
    struct kvf_attach_opts opts = {.size_bytes = sizeof opts,
                                   .timeout_ms = 20000,
                                   .socket_path = d->socket_path,
                                   .rooms_max = rooms_max};
    kvf_client *client = NULL;
    CHECK_CODE(kvf_attach(&opts, &client), 0, "attach");
    return client;
}

kvf_pool *pool_make(uint64_t bytes)
{
    struct kvf_pool_opts opts = {
        .size_bytes = sizeof opts, .numa_node = -1, .bytes = bytes, .huge_pages = 2};
    kvf_pool *pool = NULL;
    CHECK_CODE(kvf_pool_create(&opts, &pool), 0, "pool");
    return pool;
}

uint32_t region_register(kvf_client *client, const kvf_pool *pool, const struct geometry *g)
{
    struct kvf_plane planes[ENGINE_PLANES_MAX];
    CHECK(g->plane_count <= ENGINE_PLANES_MAX, "%u planes", g->plane_count);
    for (uint32_t i = 0; i < g->plane_count; i++) {
        planes[i] = (struct kvf_plane){
            .off = i * plane_bytes(g), .stride = stride_of(g), .page_bytes = g->page_bytes};
    }
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = kvf_pool_fd(pool),
                                   .memory_bytes = geometry_bytes(g),
                                   .page_count = g->page_count,
                                   .planes = planes,
                                   .plane_count = g->plane_count};
    uint32_t region = 0;
    CHECK_CODE(kvf_region_register(client, &opts, &region), 0, "register");
    return region;
}

struct engine *engine_start(struct daemon *d, const struct geometry *geometry,
                            uint32_t rooms_max)
{
    struct engine *e = calloc(1, sizeof *e);
    CHECK(e != NULL, "no memory");
    e->daemon = d;
    e->geometry = *geometry;
    e->rooms_max = rooms_max;
    e->client = client_attach(d, rooms_max);
    e->pool = pool_make(geometry_bytes(geometry));
    e->base = kvf_pool_addr(e->pool);
    e->region = region_register(e->client, e->pool, geometry);
    e->page_bytes = geometry->plane_count * geometry->page_bytes;
    for (uint32_t i = 0; i < geometry->plane_count; i++) {
        e->plane_off[i] = i * plane_bytes(geometry);
    }
    return e;
}

void engine_check_idle(struct engine *e)
{
    size_t n = e->geometry.page_count;
    int32_t *pages = malloc(n * sizeof *pages);
    size_t position = 0;
    CHECK(pages != NULL, "no memory");
    pages_count_up(pages, n, 0);
    int idle = kvf_pages_are_idle(e->client, e->region, pages, n, &position);
    kvf_room lender = 0;
    int rc = idle == 0 ? kvf_page_lender(e->client, e->region, (int64_t)position, &lender) : 0;
    CHECK(idle == 1, "%s: %d, page %zu is lent to room %llx (%d)", e->daemon->name, idle,
          position, (unsigned long long)lender, rc);
    free(pages);
}

void engine_stop(struct engine *e)
{
    uint32_t undrained = 99;
    engine_check_idle(e);
    CHECK_CODE(kvf_region_unregister(e->client, e->region), 0, "unregister");
    CHECK_CODE(kvf_detach(e->client, 5000, &undrained), 0, "detach");
    CHECK_IS(undrained, 0, "rooms undrained at detach");
    kvf_pool_destroy(e->pool);
    free(e);
}

void engine_drop(struct engine *e)
{
    (void)kvf_detach(e->client, 100, NULL);
    kvf_pool_destroy(e->pool);
    free(e);
}

/* ---- calls ----------------------------------------------------------------------------------------- */

void pages_count_up(int32_t *ret_pages, size_t n, int32_t first)
{
    for (size_t i = 0; i < n; i++) {
        ret_pages[i] = first + (int32_t)i;
    }
}

void pages_shuffle(int32_t *pages, size_t n, uint64_t *state)
{
    for (size_t i = n; i > 1; i--) {
        size_t k = (size_t)random_below(state, i);
        int32_t swap = pages[i - 1u];
        pages[i - 1u] = pages[k];
        pages[k] = swap;
    }
}

int engine_try_sink(struct engine *e, uint64_t key, const int32_t *pages, size_t n,
                    const char *writer, kvf_room *ret_room)
{
    const char *writers[] = {writer};
    struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                 .region = e->region,
                                 .label = key & 0xffff,
                                 .key = key,
                                 .pages = pages,
                                 .page_count = n,
                                 .writers = writers,
                                 .writer_count = 1};
    return kvf_open_sink(e->client, &opts, ret_room);
}

kvf_room engine_sink_pages(struct engine *e, uint64_t key, const int32_t *pages, size_t n,
                           const char *writer)
{
    kvf_room room = 0;
    int rc;
    WAIT_FOR((rc = engine_try_sink(e, key, pages, n, writer, &room)) != -EAGAIN, 5000,
             "open_sink answers EAGAIN");
    CHECK_CODE(rc, 0, "open_sink");
    return room;
}

kvf_room engine_sink(struct engine *e, uint64_t key, int32_t first, uint32_t count,
                     const struct daemon *writer)
{
    int32_t *pages = calloc(count, sizeof *pages);
    CHECK(pages != NULL, "no memory");
    pages_count_up(pages, count, first);
    kvf_room room = engine_sink_pages(e, key, pages, count, writer->listen);
    free(pages);
    return room;
}

kvf_room engine_source(struct engine *e, uint64_t key)
{
    struct kvf_source_opts opts = {
        .size_bytes = sizeof opts, .region = e->region, .label = key & 0xffff, .key = key};
    kvf_room room = 0;
    int rc;
    WAIT_FOR((rc = kvf_open_source(e->client, &opts, &room)) != -EAGAIN, 5000,
             "open_source answers EAGAIN");
    CHECK_CODE(rc, 0, "open_source");
    return room;
}

int engine_try_submit(struct engine *e, kvf_room room, const int32_t *pages, size_t n,
                      uint32_t start, bool is_last)
{
    struct kvf_piece_opts opts = {.size_bytes = sizeof opts,
                                  .region = e->region,
                                  .pages = pages,
                                  .page_count = n,
                                  .start = start,
                                  .flags = is_last ? KVF_LAST_PIECE : 0};
    return kvf_submit(e->client, room, &opts);
}

void engine_submit_pages(struct engine *e, kvf_room room, const int32_t *pages, size_t n,
                         uint32_t start, bool is_last)
{
    int rc;
    WAIT_FOR((rc = engine_try_submit(e, room, pages, n, start, is_last)) != -EAGAIN, 5000,
             "submit answers EAGAIN");
    CHECK_CODE(rc, 0, "submit");
}

void engine_submit(struct engine *e, kvf_room room, int32_t first, uint32_t count,
                   uint32_t start, bool is_last)
{
    int32_t *pages = calloc(count, sizeof *pages);
    CHECK(pages != NULL, "no memory");
    pages_count_up(pages, count, first);
    engine_submit_pages(e, room, pages, count, start, is_last);
    free(pages);
}

/* ---- bytes ----------------------------------------------------------------------------------------- */

static unsigned char *page_at(struct engine *e, int32_t page, uint32_t plane)
{
    return e->base + e->plane_off[plane] + (uint64_t)page * stride_of(&e->geometry);
}

/* Every word of every plane of every position is another one. */
static uint64_t word_base(uint64_t seed, uint64_t position, uint32_t plane)
{
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) ^ position << 20 ^ plane;
    return random_next(&state);
}

void engine_fill(struct engine *e, uint64_t seed, const int32_t *pages, size_t n,
                 uint32_t position)
{
    for (size_t i = 0; i < n; i++) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            unsigned char *to = page_at(e, pages[i], plane);
            uint64_t base = word_base(seed, position + i, plane);
            for (uint64_t off = 0; off < e->geometry.page_bytes; off += 8) {
                uint64_t word = base + off * UINT64_C(0x100000001b3);
                uint64_t left = e->geometry.page_bytes - off;
                memcpy(to + off, &word, left < 8 ? left : 8);
            }
        }
    }
}

void engine_verify(struct engine *e, uint64_t seed, const int32_t *pages, size_t n,
                   uint32_t position)
{
    for (size_t i = 0; i < n; i++) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            const unsigned char *from = page_at(e, pages[i], plane);
            uint64_t base = word_base(seed, position + i, plane);
            for (uint64_t off = 0; off < e->geometry.page_bytes; off += 8) {
                uint64_t word = base + off * UINT64_C(0x100000001b3);
                uint64_t left = e->geometry.page_bytes - off;
                CHECK(memcmp(from + off, &word, left < 8 ? left : 8) == 0,
                      "%s: wrong bytes at position %zu (page %d), plane %u, offset %llu",
                      e->daemon->name, position + i, (int)pages[i], plane,
                      (unsigned long long)off);
            }
        }
    }
}

void engine_set(struct engine *e, const int32_t *pages, size_t n, unsigned char byte)
{
    for (size_t i = 0; i < n; i++) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            memset(page_at(e, pages[i], plane), byte, e->geometry.page_bytes);
        }
    }
}

uint64_t engine_count_other(struct engine *e, const int32_t *pages, size_t n,
                            unsigned char byte)
{
    uint64_t other = 0;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            const unsigned char *at = page_at(e, pages[i], plane);
            for (uint64_t off = 0; off < e->geometry.page_bytes; off++) {
                other += at[off] != byte;
            }
        }
    }
    return other;
}

/* ---- rooms ------------------------------------------------------------------------------------------ */

struct kvf_room_info room_info(struct engine *e, kvf_room room)
{
    struct kvf_room_info info = {.size_bytes = sizeof info};
    CHECK_CODE(kvf_room_info(e->client, room, &info), 0, "room_info");
    return info;
}

void room_expect(struct engine *e, kvf_room room, int state, uint32_t limit_ms)
{
    int got = kvf_wait(e->client, room, limit_ms);
    struct kvf_room_info info = {.size_bytes = sizeof info};
    (void)kvf_room_info(e->client, room, &info);
    CHECK(got == state,
          "%s: the room is %s (%d %s) and not %s after %u ms; phase %d, reason %u %s, %llu of "
          "%llu bytes",
          e->daemon->name, kvf_state_name(got), got, got < 0 ? kvf_code_name_of(got) : "",
          kvf_state_name(state), limit_ms, info.phase, info.reason,
          kvf_code_name_of((int)info.reason), (unsigned long long)info.placed_bytes,
          (unsigned long long)info.total_bytes);
}

void room_expect_reason(struct engine *e, kvf_room room, uint32_t reason, uint32_t limit_ms)
{
    room_expect(e, room, KVF_FAILED, limit_ms);
    CHECK_CODE((int)room_info(e, room).reason, (int)reason, "reason of the failure");
}

void room_expect_proof(struct engine *e, kvf_room room, int proof)
{
    int got = kvf_drained(e->client, room);
    CHECK(got == proof, "%s: drained by %s (%d) and not %s", e->daemon->name,
          kvf_proof_name(got), got, kvf_proof_name(proof));
}

void room_wait_placed(struct engine *e, kvf_room room, uint64_t bytes, uint32_t limit_ms)
{
    WAIT_FOR(room_info(e, room).placed_bytes >= bytes, limit_ms,
             "%s: %llu of %llu bytes after %u ms", e->daemon->name,
             (unsigned long long)room_info(e, room).placed_bytes, (unsigned long long)bytes,
             limit_ms);
}

void room_wait_state(struct engine *e, kvf_room room, int state, uint32_t limit_ms)
{
    WAIT_FOR(kvf_poll(e->client, room) == state, limit_ms, "%s: the room is %s and not %s",
             e->daemon->name, kvf_state_name(kvf_poll(e->client, room)), kvf_state_name(state));
}

void room_release(struct engine *e, kvf_room room)
{
    CHECK_CODE(kvf_release(e->client, room), 0, "release");
}

int room_end(struct engine *e, kvf_room room, uint32_t limit_ms)
{
    CHECK_CODE(kvf_abort(e->client, room, 0), 0, "abort");
    int state = kvf_wait(e->client, room, limit_ms);
    CHECK(state == KVF_FAILED || state == KVF_SUCCESS, "%s: not drained after %u ms: %d",
          e->daemon->name, limit_ms, state);
    int proof = kvf_drained(e->client, room);
    CHECK(proof > 0, "ended and not drained: %d", proof);
    room_release(e, room);
    return proof;
}

void transfer_once(struct engine *source, struct engine *sink, uint64_t key, int32_t first,
                   uint32_t count)
{
    int32_t *pages = calloc(count, sizeof *pages);
    CHECK(pages != NULL, "no memory");
    pages_count_up(pages, count, first);
    engine_fill(source, key, pages, count, 0);
    kvf_room in = engine_sink(sink, key, first, count, source->daemon);
    kvf_room out = engine_source(source, key);
    engine_submit(source, out, first, count, 0, true);
    room_expect(sink, in, KVF_SUCCESS, END_MS);
    room_expect(source, out, KVF_SUCCESS, END_MS);
    engine_verify(sink, key, pages, count, 0);
    room_release(sink, in);
    room_release(source, out);
    free(pages);
}

/* ---- bystander ---------------------------------------------------------------------------------------- */

struct bystander {
    pthread_t thread;
    struct engine *source;
    struct engine *sink;
    _Atomic bool is_ending;
    _Atomic uint64_t count;
    uint64_t max_ns;
};

static void *bystander_run(void *ctx)
{
    struct bystander *b = ctx;
    while (!atomic_load_explicit(&b->is_ending, memory_order_relaxed)) {
        uint64_t start_ns = now_ns();
        transfer_once(b->source, b->sink, key_next() | UINT64_C(1) << 40, 0, 4);
        uint64_t took_ns = now_ns() - start_ns;
        b->max_ns = took_ns > b->max_ns ? took_ns : b->max_ns;
        atomic_fetch_add_explicit(&b->count, 1, memory_order_relaxed);
        sleep_us(500);
    }
    return NULL;
}

struct bystander *bystander_start(struct daemon *source, struct daemon *sink)
{
    static const struct geometry g = {.plane_count = 2, .page_bytes = 4096, .page_count = 8};
    struct bystander *b = calloc(1, sizeof *b);
    CHECK(b != NULL, "no memory");
    b->source = engine_start(source, &g, 16);
    b->sink = engine_start(sink, &g, 16);
    CHECK_IS(pthread_create(&b->thread, NULL, bystander_run, b), 0, "thread");
    return b;
}

uint64_t bystander_count(const struct bystander *b)
{
    return atomic_load_explicit(&b->count, memory_order_relaxed);
}

uint64_t bystander_stop(struct bystander *b, uint64_t rooms_min, uint64_t *ret_max_ns)
{
    WAIT_FOR(bystander_count(b) >= rooms_min, 10000, "the bystander made only %llu rooms",
             (unsigned long long)bystander_count(b));
    atomic_store_explicit(&b->is_ending, true, memory_order_relaxed);
    pthread_join(b->thread, NULL);
    uint64_t count = bystander_count(b);
    if (ret_max_ns != NULL) {
        *ret_max_ns = b->max_ns;
    }
    engine_stop(b->source);
    engine_stop(b->sink);
    free(b);
    return count;
}

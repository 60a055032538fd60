/* Bytes arrive where they belong: geometries, lists, pieces, fan-in, fan-out, lanes, both placements. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u

static const struct geometry sixteen_planes = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;

static void start_pair(const char *placement, const char *lanes)
{
    prefill = daemon_start("prefill", "--tcp-placement", placement, "--lanes", lanes, NULL);
    decode = daemon_start("decode", "--tcp-placement", placement, "--lanes", lanes, NULL);
}

/* Scattered pages on both sides, in shuffled order. */
static void move_scattered(struct engine *from, struct engine *to, uint32_t count,
                           uint64_t seed)
{
    uint64_t state = seed;
    size_t all = from->geometry.page_count;
    int32_t *from_pages = malloc(all * sizeof *from_pages);
    int32_t *to_pages = malloc(all * sizeof *to_pages);
    CHECK(from_pages != NULL && to_pages != NULL && count <= all, "no memory");
    pages_count_up(from_pages, all, 0);
    pages_count_up(to_pages, all, 0);
    pages_shuffle(from_pages, all, &state);
    pages_shuffle(to_pages, all, &state);
    engine_set(to, to_pages, all, 0xee);
    engine_fill(from, seed, from_pages, count, 0);
    uint64_t key = key_next();
    kvf_room in = engine_sink_pages(to, key, to_pages, count, from->daemon->listen);
    kvf_room out = engine_source(from, key);
    engine_submit_pages(from, out, from_pages, count, 0, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, seed, to_pages, count, 0);
    uint64_t other = engine_count_other(to, to_pages + count, all - count, 0xee);
    CHECK_IS(other, 0, "bytes changed outside the room's pages");
    CHECK_IS(room_info(to, in).placed_bytes, count * to->page_bytes, "placed bytes");
    CHECK_IS(room_info(to, in).total_bytes, count * to->page_bytes, "total bytes");
    room_release(to, in);
    room_release(from, out);
    free(from_pages);
    free(to_pages);
}

static void move_geometry(const struct geometry *g, uint32_t count)
{
    struct engine *from = engine_start(prefill, g, 0);
    struct engine *to = engine_start(decode, g, 0);
    move_scattered(from, to, count, 1);
    move_scattered(from, to, 1, 2);
    move_scattered(from, to, (uint32_t)g->page_count, 3);
    engine_stop(from);
    engine_stop(to);
}

static void one_plane(void)
{
    static const struct geometry g = {.plane_count = 1, .page_bytes = 65536, .page_count = 64};
    start_pair("checked", "1");
    move_geometry(&g, 24);
    daemons_stop();
}

static void llama_planes(void)
{
    static const struct geometry g = {.plane_count = 160, .page_bytes = 4096, .page_count = 32};
    start_pair("checked", "1");
    move_geometry(&g, 20);
    daemons_stop();
}

static void odd_pages(void)
{
    static const struct geometry sizes[] = {
        {.plane_count = 3, .page_bytes = 4097, .page_count = 40},
        {.plane_count = 1, .page_bytes = 1, .page_count = 100},
        {.plane_count = 2, .page_bytes = 36864, .stride = 40960, .page_count = 17},
        {.plane_count = 5, .page_bytes = 777, .stride = 1000, .page_count = 50},
        {.plane_count = 1, .page_bytes = 3 * MIB + 5, .page_count = 4}};
    start_pair("checked", "1");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        move_geometry(&sizes[i], (uint32_t)sizes[i].page_count / 2u);
    }
    daemons_stop();
}

static void posted_bytes(void)
{
    static const struct geometry g = {.plane_count = 160, .page_bytes = 4096, .page_count = 32};
    start_pair("posted", "1");
    move_geometry(&sixteen_planes, 200);
    move_geometry(&g, 20);
    daemons_stop();
}

static void four_lanes(void)
{
    static const struct geometry g = {.plane_count = 16, .page_bytes = 4096, .page_count = 600};
    prefill = daemon_start("prefill", "--lanes", "4", "--stripe-min", "1M", NULL);
    decode = daemon_start("decode", "--lanes", "4", "--stripe-min", "1M", NULL);
    /* A room goes over the lanes that are up: the first of all does not wait for four. */
    move_geometry(&g, 1);
    WAIT_FOR(daemon_stat(decode, "lanes_up") == 4, 2000, "%llu lanes are up and not 4",
             (unsigned long long)daemon_stat(decode, "lanes_up"));
    uint64_t before = daemon_stat(decode, "markers_end_total");
    move_geometry(&g, 400);
    /* One marker per lane of the mask: 400 and 600 pages are striped, a single page is not. */
    WAIT_FOR(daemon_stat(decode, "markers_end_total") - before == 9, 1000,
             "%llu END markers of three rooms and not 9",
             (unsigned long long)(daemon_stat(decode, "markers_end_total") - before));
    daemons_stop();
}

static void posted_four_lanes(void)
{
    prefill = daemon_start("prefill", "--lanes", "4", "--stripe-min", "1M", "--tcp-placement",
                           "posted", NULL);
    decode = daemon_start("decode", "--lanes", "4", "--stripe-min", "1M", "--tcp-placement",
                          "posted", NULL);
    move_geometry(&sixteen_planes, 400);
    daemons_stop();
}

/* ---- pieces --------------------------------------------------------------------------------------- */

enum when { BEFORE_GRANT, AFTER_GRANT, AROUND_GRANT };

static void move_pieces(struct engine *from, struct engine *to, enum when when, uint64_t seed)
{
    enum { PAGES = 60, PIECES = 12, EACH = PAGES / PIECES };
    uint64_t state = seed;
    int32_t order[PIECES];
    int32_t from_pages[PAGES];
    int32_t to_pages[PAGES];
    pages_count_up(order, PIECES, 0);
    pages_shuffle(order, PIECES, &state);
    pages_count_up(from_pages, PAGES, 100);
    pages_count_up(to_pages, PAGES, 300);
    pages_shuffle(from_pages, PAGES, &state);
    pages_shuffle(to_pages, PAGES, &state);
    engine_fill(from, seed, from_pages, PAGES, 0);
    uint64_t key = key_next();
    kvf_room in = 0;
    kvf_room out = engine_source(from, key);
    for (int i = 0; i < PIECES; i++) {
        bool is_turn = when == AFTER_GRANT ? i == 0 : when == AROUND_GRANT && i == PIECES / 2;
        if (is_turn) {
            in = engine_sink_pages(to, key, to_pages, PAGES, prefill->listen);
            room_wait_state(from, out, i == 0 ? KVF_WAITING_FOR_INPUT : KVF_TRANSFERRING,
                            WAIT_MS);
        }
        uint32_t start = (uint32_t)order[i] * EACH;
        engine_submit_pages(from, out, from_pages + start, EACH, start, i == PIECES - 1);
    }
    if (when == BEFORE_GRANT) {
        CHECK_IS(kvf_poll(from->client, out), KVF_BOOTSTRAPPING, "state before the grant");
        in = engine_sink_pages(to, key, to_pages, PAGES, prefill->listen);
    }
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, seed, to_pages, PAGES, 0);
    CHECK_IS(room_info(from, out).total_pages, PAGES, "length of the grant");
    room_release(to, in);
    room_release(from, out);
}

static void pieces(void)
{
    start_pair("checked", "1");
    struct engine *from = engine_start(prefill, &sixteen_planes, 0);
    struct engine *to = engine_start(decode, &sixteen_planes, 0);
    for (uint64_t seed = 0; seed < 9; seed++) {
        move_pieces(from, to, (enum when)(seed % 3), 10 + seed);
    }
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- aux region ------------------------------------------------------------------------------------- */

static void aux_pages(void)
{
    static const struct geometry small = {
        .plane_count = 1, .page_bytes = 512, .page_count = 16};
    static const struct geometry g = {.plane_count = 4, .page_bytes = 8192, .page_count = 64};
    start_pair("checked", "1");
    struct engine *from = engine_start(prefill, &g, 0);
    struct engine *to = engine_start(decode, &g, 0);
    struct engine from_aux = {.daemon = prefill, .client = from->client, .geometry = small};
    struct engine to_aux = {.daemon = decode, .client = to->client, .geometry = small};
    struct engine *aux[] = {&from_aux, &to_aux};
    for (int i = 0; i < 2; i++) {
        aux[i]->pool = pool_make(geometry_bytes(&small));
        aux[i]->base = kvf_pool_addr(aux[i]->pool);
        aux[i]->region = region_register(aux[i]->client, aux[i]->pool, &small);
    }
    const int32_t main_pages[] = {9, 3, 4, 5, 60};
    const int32_t slots[] = {7, 2};
    uint64_t key = key_next();
    const char *writers[] = {prefill->listen};
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink,
                                 .region = to->region,
                                 .label = 1,
                                 .key = key,
                                 .pages = main_pages,
                                 .page_count = 5,
                                 .aux_region = to_aux.region,
                                 .aux_count = 2,
                                 .aux_pages = slots,
                                 .writers = writers,
                                 .writer_count = 1};
    struct kvf_source_opts source = {.size_bytes = sizeof source,
                                     .region = from->region,
                                     .label = 1,
                                     .key = key,
                                     .has_aux = 1,
                                     .aux_region = from_aux.region};
    kvf_room in = 0;
    kvf_room out = 0;
    engine_fill(from, 5, main_pages, 5, 0);
    engine_fill(&from_aux, 6, slots, 2, 5);
    CHECK_CODE(kvf_open_sink(to->client, &sink, &in), 0, "open_sink with aux pages");
    CHECK_CODE(kvf_open_source(from->client, &source, &out), 0,
               "open_source with an aux region");
    CHECK_IS(kvf_pages_are_idle(to->client, to_aux.region, slots, 2, NULL), 0,
             "aux slots lent");
    engine_submit_pages(&from_aux, out, slots, 2, 5, false);
    engine_submit_pages(from, out, main_pages, 5, 0, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, 5, main_pages, 5, 0);
    engine_verify(&to_aux, 6, slots, 2, 5);
    room_release(to, in);
    room_release(from, out);
    for (int i = 0; i < 2; i++) {
        engine_check_idle(aux[i]);
        CHECK_CODE(kvf_region_unregister(aux[i]->client, aux[i]->region), 0, "unregister aux");
        kvf_pool_destroy(aux[i]->pool);
    }
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- more than two ------------------------------------------------------------------------------------ */

static void fan_in(void)
{
    struct daemon *other = daemon_start("prefill1", NULL);
    start_pair("checked", "1");
    struct engine *first = engine_start(prefill, &sixteen_planes, 0);
    struct engine *second = engine_start(other, &sixteen_planes, 0);
    struct engine *to = engine_start(decode, &sixteen_planes, 0);
    int32_t pages[50];
    pages_count_up(pages, 50, 200);
    const char *writers[] = {prefill->listen, other->listen};
    const uint32_t starts[] = {20, 0}; /* in whatever order they are given */
    const uint32_t counts[] = {30, 20};
    uint64_t key = key_next();
    struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                 .region = to->region,
                                 .label = 3,
                                 .key = key,
                                 .pages = pages,
                                 .page_count = 50,
                                 .writers = writers,
                                 .writer_count = 2,
                                 .range_starts = starts,
                                 .range_counts = counts};
    kvf_room in = 0;
    CHECK_CODE(kvf_open_sink(to->client, &opts, &in), 0, "open_sink with two writers");
    struct kvf_source_opts source = {
        .size_bytes = sizeof source, .region = first->region, .label = 3, .key = key};
    kvf_room out1 = 0;
    kvf_room out2 = 0;
    CHECK_CODE(kvf_open_source(first->client, &source, &out1), 0, "open_source");
    source.region = second->region;
    engine_fill(first, 31, pages, 30, 20);
    engine_fill(second, 31, pages, 20, 0);
    engine_submit_pages(first, out1, pages, 30, 0, true);
    room_expect(first, out1, KVF_SUCCESS, WAIT_MS);
    /* One writer's END is not Success. */
    CHECK(kvf_poll(to->client, in) != KVF_SUCCESS && kvf_drained(to->client, in) == -EAGAIN,
          "drained with one writer missing");
    CHECK_CODE(kvf_open_source(second->client, &source, &out2), 0, "open_source");
    engine_submit_pages(second, out2, pages, 20, 0, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(second, out2, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, 31, pages, 50, 0);
    room_release(to, in);
    room_release(first, out1);
    room_release(second, out2);
    engine_stop(first);
    engine_stop(second);
    engine_stop(to);
    daemons_stop();
}

static void fan_out(void)
{
    struct daemon *other = daemon_start("decode1", NULL);
    start_pair("checked", "1");
    struct engine *from = engine_start(prefill, &sixteen_planes, 0);
    struct engine *to[] = {engine_start(decode, &sixteen_planes, 0),
                           engine_start(other, &sixteen_planes, 0)};
    for (int round = 0; round < 3; round++) {
        int32_t pages[40];
        uint64_t key = key_next();
        pages_count_up(pages, 40, round * 50);
        engine_fill(from, key, pages, 40, 0);
        struct kvf_source_opts opts = {.size_bytes = sizeof opts,
                                       .region = from->region,
                                       .label = key & 0xffff,
                                       .key = key,
                                       .sink_count = 2};
        kvf_room out = 0;
        CHECK_CODE(kvf_open_source(from->client, &opts, &out), 0, "open_source for two sinks");
        engine_submit_pages(from, out, pages, 20, 0, false);
        kvf_room in0 = engine_sink_pages(to[0], key, pages, 40, prefill->listen);
        engine_submit_pages(from, out, pages + 20, 20, 20, true);
        room_expect(to[0], in0, KVF_SUCCESS, WAIT_MS);
        /* Its pages are kept for the second sink. */
        CHECK_IS(kvf_drained(from->client, out), -EAGAIN,
                 "source drained with one sink missing");
        CHECK_IS(kvf_pages_are_idle(from->client, from->region, pages, 40, NULL), 0, "ledger");
        kvf_room in1 = engine_sink_pages(to[1], key, pages, 40, prefill->listen);
        if (round == 2) {
            CHECK_CODE(kvf_abort(to[1]->client, in1, 7), 0, "abort");
            int state = kvf_wait(to[1]->client, in1, WAIT_MS);
            CHECK(state == KVF_FAILED || state == KVF_SUCCESS, "state %d", state);
        } else {
            room_expect(to[1], in1, KVF_SUCCESS, WAIT_MS);
            engine_verify(to[1], key, pages, 40, 0);
        }
        /* One sink's abort ends only its grant. */
        room_expect(from, out, KVF_SUCCESS, WAIT_MS);
        engine_verify(to[0], key, pages, 40, 0);
        room_release(to[0], in0);
        room_release(to[1], in1);
        room_release(from, out);
    }
    engine_stop(from);
    engine_stop(to[0]);
    engine_stop(to[1]);
    daemons_stop();
}

static void both_roles(void)
{
    enum { ROOMS = 40 };
    start_pair("checked", "1");
    struct engine *a = engine_start(prefill, &sixteen_planes, 0);
    struct engine *b = engine_start(decode, &sixteen_planes, 0);
    struct engine *engines[] = {a, b};
    kvf_room in[ROOMS];
    kvf_room out[ROOMS];
    int32_t pages[8];
    int32_t targets[8];
    for (int i = 0; i < ROOMS; i++) {
        struct engine *from = engines[i % 2];
        struct engine *to = engines[(i + 1) % 2];
        uint64_t key = key_next();
        pages_count_up(pages, 8, i * 8);
        pages_count_up(targets, 8, 512 + i * 8);
        engine_fill(from, (uint64_t)i, pages, 8, 0);
        in[i] = engine_sink_pages(to, key, targets, 8, from->daemon->listen);
        out[i] = engine_source(from, key);
        engine_submit_pages(from, out[i], pages, 8, 0, true);
    }
    for (int i = 0; i < ROOMS; i++) {
        struct engine *from = engines[i % 2];
        struct engine *to = engines[(i + 1) % 2];
        room_expect(to, in[i], KVF_SUCCESS, WAIT_MS);
        room_expect(from, out[i], KVF_SUCCESS, WAIT_MS);
        pages_count_up(targets, 8, 512 + i * 8);
        engine_verify(to, (uint64_t)i, targets, 8, 0);
        room_release(to, in[i]);
        room_release(from, out[i]);
    }
    engine_stop(a);
    engine_stop(b);
    daemons_stop();
}

/* One daemon, one engine, its own address as the writer. */
static void one_engine(void)
{
    prefill = daemon_start("alone", NULL);
    struct engine *e = engine_start(prefill, &sixteen_planes, 0);
    int32_t pages[30];
    int32_t targets[30];
    uint64_t key = key_next();
    pages_count_up(pages, 30, 0);
    pages_count_up(targets, 30, 100);
    engine_fill(e, 8, pages, 30, 0);
    kvf_room in = engine_sink_pages(e, key, targets, 30, prefill->listen);
    kvf_room out = engine_source(e, key);
    engine_submit_pages(e, out, pages, 30, 0, true);
    room_expect(e, in, KVF_SUCCESS, WAIT_MS);
    room_expect(e, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(e, 8, targets, 30, 0);
    room_release(e, in);
    room_release(e, out);
    engine_stop(e);
    daemons_stop();
}

/* ---- lists and flags ------------------------------------------------------------------------------------ */

static void wide_lists(void)
{
    start_pair("checked", "1");
    struct engine *from = engine_start(prefill, &sixteen_planes, 0);
    struct engine *to = engine_start(decode, &sixteen_planes, 0);
    const int64_t wide[] = {40, 2, 3, 4, 900};
    const int32_t narrow[] = {40, 2, 3, 4, 900};
    const char *writers[] = {prefill->listen};
    uint64_t key = key_next();
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink,
                                 .region = to->region,
                                 .label = 9,
                                 .key = key,
                                 .pages64 = wide,
                                 .page_count = 5,
                                 .writers = writers,
                                 .writer_count = 1};
    struct kvf_source_opts source = {
        .size_bytes = sizeof source, .region = from->region, .label = 9, .key = key};
    struct kvf_piece_opts piece = {.size_bytes = sizeof piece,
                                   .region = from->region,
                                   .pages64 = wide,
                                   .page_count = 5,
                                   .flags = KVF_LAST_PIECE};
    kvf_room in = 0;
    kvf_room out = 0;
    engine_fill(from, 12, narrow, 5, 0);
    CHECK_CODE(kvf_open_sink(to->client, &sink, &in), 0, "open_sink");
    CHECK_IS(kvf_pages_are_idle64(to->client, to->region, wide, 5, NULL), 0, "lent");
    CHECK_CODE(kvf_open_source(from->client, &source, &out), 0, "open_source");
    CHECK_CODE(kvf_submit(from->client, out, &piece), 0, "submit");
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(to, 12, narrow, 5, 0);
    CHECK_IS(kvf_pages_are_idle64(to->client, to->region, wide, 5, NULL), 1, "idle");
    room_release(to, in);
    room_release(from, out);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static void flags_and_proofs(void)
{
    start_pair("checked", "1");
    struct engine *from = engine_start(prefill, &sixteen_planes, 0);
    struct engine *to = engine_start(decode, &sixteen_planes, 0);
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 8, prefill);
    CHECK_IS(kvf_visible(to->client, in), 0, "visible before the end");
    CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained before the end");
    CHECK_IS(kvf_failed_early(to->client, in), 0, "failed early");
    CHECK_IS(kvf_wait(to->client, in, 20), -ETIMEDOUT, "wait with a deadline");
    kvf_room out = engine_source(from, key);
    room_wait_state(from, out, KVF_WAITING_FOR_INPUT, WAIT_MS);
    room_wait_state(to, in, KVF_WAITING_FOR_INPUT, WAIT_MS);
    engine_submit(from, out, 0, 4, 0, false);
    room_wait_state(to, in, KVF_TRANSFERRING, WAIT_MS);
    room_wait_placed(to, in, 4 * to->page_bytes, WAIT_MS);
    CHECK_IS(kvf_visible(to->client, in), 0, "visible half-way");
    CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained half-way");
    engine_submit(from, out, 4, 4, 4, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    room_expect_proof(to, in, KVF_LANDED);
    room_expect_proof(from, out, KVF_SOURCE_IDLE);
    CHECK_IS(kvf_visible(to->client, in), 1, "visible at Success");
    CHECK_IS(kvf_visible(from->client, out), 0, "visible on a source");
    const kvf_room rooms[] = {in, in};
    int32_t states[2];
    CHECK_IS(kvf_poll_many(to->client, rooms, 2, states), 2, "poll_many");
    CHECK(states[0] == KVF_SUCCESS && states[1] == KVF_SUCCESS, "states of poll_many");
    struct kvf_room_info info = room_info(to, in);
    CHECK_IS(info.phase, 5, "phase");
    CHECK_IS(info.proof, KVF_LANDED, "proof in room_info");
    CHECK_IS(info.reason, 0, "reason of a success");
    CHECK_IS(info.unproven, 0, "unproven");
    /* An event of each engine's is a hint; the descriptor is readable when there is one. */
    struct kvf_event events[64];
    int n = kvf_events_next(to->client, events, 64);
    CHECK(n > 0 || n == -EOVERFLOW, "no events: %d", n);
    bool has_seen = false;
    for (int i = 0; i < n; i++) {
        has_seen = has_seen || (events[i].room == in && events[i].is_drained == 1 &&
                                events[i].state == KVF_SUCCESS);
    }
    CHECK(has_seen, "no event said drained");
    room_release(to, in);
    room_release(from, out);
    WAIT_FOR(daemon_stat(decode, "proof_landed_total") == 1, 1000, "proof_landed_total");
    WAIT_FOR(daemon_stat(prefill, "proof_source_idle_total") == 1, 1000,
             "proof_source_idle_total");
    CHECK_IS(daemon_stat(decode, "rooms_succeeded_total"), 1, "rooms_succeeded_total");
    CHECK_IS(daemon_stat(decode, "bytes_placed_total"), 8 * to->page_bytes, "bytes placed");
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static void many_rooms(void)
{
    enum { ROOMS = 300, EACH = 3 };
    start_pair("checked", "2");
    struct engine *from = engine_start(prefill, &sixteen_planes, 0);
    struct engine *to = engine_start(decode, &sixteen_planes, 0);
    kvf_room in[ROOMS];
    kvf_room out[ROOMS];
    int32_t states[ROOMS];
    int32_t pages[EACH];
    for (int i = 0; i < ROOMS; i++) {
        uint64_t key = key_next();
        pages_count_up(pages, EACH, i * EACH);
        engine_fill(from, (uint64_t)i + 70, pages, EACH, 0);
        in[i] = engine_sink(to, key, i * EACH, EACH, prefill);
        out[i] = engine_source(from, key);
        engine_submit(from, out[i], i * EACH, EACH, 0, true);
    }
    WAIT_FOR(kvf_poll_many(to->client, in, ROOMS, states) == ROOMS, WAIT_MS, "not all ended");
    for (int i = 0; i < ROOMS; i++) {
        CHECK_IS(states[i], KVF_SUCCESS, "state");
        room_expect(from, out[i], KVF_SUCCESS, WAIT_MS);
        pages_count_up(pages, EACH, i * EACH);
        engine_verify(to, (uint64_t)i + 70, pages, EACH, 0);
        room_release(to, in[i]);
        room_release(from, out[i]);
    }
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"pages_of_one_plane_arrive_byte_for_byte", one_plane, 0},
        {"pages_of_160_planes_arrive_byte_for_byte", llama_planes, 0},
        {"odd_page_sizes_and_strides_arrive_byte_for_byte", odd_pages, 0},
        {"posted_placement_arrives_byte_for_byte", posted_bytes, 0},
        {"four_lanes_carry_one_room_with_one_marker_each", four_lanes, 0},
        {"posted_placement_over_four_lanes_arrives_byte_for_byte", posted_four_lanes, 0},
        {"pieces_come_in_any_order_before_and_after_the_grant", pieces, 0},
        {"aux_pages_of_a_second_region_arrive_with_the_room", aux_pages, 0},
        {"two_writers_fill_their_own_ranges", fan_in, 0},
        {"one_source_serves_two_decode_daemons_and_survives_the_abort_of_one", fan_out, 0},
        {"both_engines_are_source_and_sink_at_once", both_roles, 0},
        {"one_engine_sends_to_itself_through_one_daemon", one_engine, 0},
        {"lists_of_int64_are_as_good_as_int32", wide_lists, 0},
        {"visible_drained_and_proof_say_what_happened", flags_and_proofs, 0},
        {"three_hundred_rooms_at_once_all_arrive", many_rooms, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

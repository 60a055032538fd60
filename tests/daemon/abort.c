/* A room can be ended at any moment; what follows is a proof, soon, and no byte after it. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u
#define CANARY 0xc7
#define PROBE_MS 2000u
#define FLIGHT_PAGES 300u /* 20 MB: what is left at 65 % takes longer than a late wake-up */

static const struct geometry geometry = SIXTEEN_BY_FOUR; /* 1024 pages of 64 KiB */

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

static void start_with(const char *placement, const char *rate, const char *lane_rooms,
                       const char *room_window)
{
    prefill = daemon_start("prefill", "--tcp-placement", placement, "--lane-rate", rate,
                           "--lane-rooms", lane_rooms, "--room-window", room_window, NULL);
    decode = daemon_start("decode", "--tcp-placement", placement, "--lane-rate", rate,
                          "--lane-rooms", lane_rooms, "--room-window", room_window, NULL);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* Both rooms over [0, count), everything submitted. */
static void open_both(uint32_t count, kvf_room *ret_in, kvf_room *ret_out)
{
    uint64_t key = key_next();
    *ret_in = engine_sink(to, key, 0, count, prefill);
    *ret_out = engine_source(from, key);
    engine_submit(from, *ret_out, 0, count, 0, true);
}

static void abort_room(struct engine *e, kvf_room room, uint32_t reason)
{
    CHECK_CODE(kvf_abort(e->client, room, reason), 0, "abort");
}

static void release_both(kvf_room in, kvf_room out)
{
    room_release(to, in);
    room_release(from, out);
}

/* ---- moments --------------------------------------------------------------------------------------- */

/* Posted: the peer's DECLINE says that nothing was posted. Checked does not wait for it: what placed bytes
 * is on our side, and the grant is revoked at once. */
static void before_grant(const char *placement, int proof)
{
    start_with(placement, "0", "16", "1M");
    transfer_once(from, to, key_next(), 0, 4); /* so that both daemons know each other */
    /* A sink whose writer has no such room yet: its grant waits there. */
    kvf_room in = engine_sink(to, key_next(), 0, 20, prefill);
    WAIT_FOR(daemon_stat(prefill, "parked") == 1, WAIT_MS, "the grant is not parked");
    abort_room(to, in, 42);
    room_expect_reason(to, in, 42, WAIT_MS);
    room_expect_proof(to, in, proof);
    CHECK_IS(room_info(to, in).placed_bytes, 0, "placed bytes");
    WAIT_FOR(daemon_stat(prefill, "parked") == 0, WAIT_MS, "the grant stays parked");
    /* A source that no sink granted anything. */
    kvf_room out = engine_source(from, key_next());
    engine_submit(from, out, 0, 4, 0, false);
    CHECK_IS(kvf_poll(from->client, out), KVF_BOOTSTRAPPING, "state");
    abort_room(from, out, 0);
    room_expect_reason(from, out, KVF_E_ABORTED, WAIT_MS);
    room_expect_proof(from, out, KVF_NEVER_POSTED);
    room_release(to, in);
    room_release(from, out);
    /* A sink that is aborted in the same breath as it is opened: its GRANT may have left or not. */
    for (int i = 0; i < 50; i++) {
        in = engine_sink(to, key_next(), 0, 20, prefill);
        abort_room(to, in, 9);
        room_expect_reason(to, in, 9, WAIT_MS);
        int got = kvf_drained(to->client, in);
        CHECK(got == KVF_NEVER_POSTED || got == proof, "drained by %s", kvf_proof_name(got));
        room_release(to, in);
    }
    stop();
}

static void before_grant_checked(void)
{
    before_grant("checked", KVF_REVOKED);
}

static void before_grant_posted(void)
{
    before_grant("posted", KVF_NEVER_POSTED);
}

/* One side aborted; the other's room of that label and key meets nobody and ends too. */
static void late_partner(void)
{
    start_with("checked", "0", "16", "1M");
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 20, prefill);
    abort_room(to, in, 0);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    room_release(to, in);
    uint64_t gone = key_next();
    kvf_room out = engine_source(from, gone);
    abort_room(from, out, 0);
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(from, out);
    in = engine_sink(to, gone, 0, 20, prefill);
    room_expect_reason(to, in, KVF_E_PEER_ROOM_GONE, WAIT_MS);
    room_expect_proof(to, in, KVF_NEVER_POSTED);
    room_release(to, in);
    stop();
}

static void queued(void)
{
    start_with("posted", "50", "1", "1M");
    kvf_room in[2];
    kvf_room out[2];
    uint64_t keys[2] = {key_next(), key_next()};
    for (int i = 0; i < 2; i++) {
        in[i] = engine_sink(to, keys[i], i * 200, 100, prefill);
        out[i] = engine_source(from, keys[i]);
        engine_submit(from, out[i], i * 200, 100, 0, true);
    }
    room_wait_placed(to, in[0], to->page_bytes, WAIT_MS);
    /* The lane has one receive to spare: the second grant waits. */
    CHECK_IS(kvf_poll(to->client, in[1]), KVF_BOOTSTRAPPING, "state of the queued room");
    uint64_t start_ns = now_ns();
    abort_room(to, in[1], 0);
    room_expect(to, in[1], KVF_FAILED, WAIT_MS);
    CHECK(now_ns() - start_ns < 100 * UINT64_C(1000000) || !is_timed_build(),
          "a queued room waited %llu us", (unsigned long long)(now_ns() - start_ns) / 1000);
    room_expect_proof(to, in[1], KVF_NEVER_POSTED);
    room_expect(to, in[0], KVF_SUCCESS, WAIT_MS);
    room_expect(from, out[0], KVF_SUCCESS, WAIT_MS);
    /* Its source hears of it: nothing was granted, and nothing will be. */
    room_expect_reason(from, out[1], KVF_E_PEER_ABORTED, WAIT_MS);
    release_both(in[0], out[0]);
    release_both(in[1], out[1]);
    stop();
}

/* Aborts by the sink once a share of its bytes is there; the proof is as the placement promises. */
static void sink_in_flight(int proof)
{
    for (uint64_t per_cent = 5; per_cent <= 65; per_cent += 20) {
        kvf_room in;
        kvf_room out;
        open_both(FLIGHT_PAGES, &in, &out);
        room_wait_placed(to, in, FLIGHT_PAGES * to->page_bytes * per_cent / 100u, WAIT_MS);
        CHECK_IS(kvf_poll(to->client, in), KVF_TRANSFERRING, "state in flight");
        abort_room(to, in, 5);
        room_expect_reason(to, in, 5, WAIT_MS);
        room_expect_proof(to, in, proof);
        CHECK_IS(kvf_visible(to->client, in), 0, "visible after an abort");
        room_expect_reason(from, out, KVF_E_PEER_ABORTED, WAIT_MS);
        room_expect_proof(from, out, KVF_SOURCE_IDLE);
        struct kvf_room_info info = room_info(to, in);
        CHECK(info.placed_bytes < info.total_bytes, "everything was placed all the same");
        CHECK(info.close_to_drained_ns > 0 || proof == KVF_REVOKED,
              "no time from close to drained");
        release_both(in, out);
    }
}

static void source_in_flight(void)
{
    for (uint64_t per_cent = 5; per_cent <= 65; per_cent += 20) {
        kvf_room in;
        kvf_room out;
        open_both(FLIGHT_PAGES, &in, &out);
        room_wait_placed(to, in, FLIGHT_PAGES * to->page_bytes * per_cent / 100u, WAIT_MS);
        abort_room(from, out, 6);
        room_expect_reason(from, out, 6, WAIT_MS);
        room_expect_proof(from, out, KVF_SOURCE_IDLE);
        room_expect_reason(to, in, KVF_E_PEER_ABORTED, WAIT_MS);
        int proof = kvf_drained(to->client, in);
        CHECK(proof == KVF_PEER_DRAINED || proof == KVF_REVOKED, "drained by %s",
              kvf_proof_name(proof));
        release_both(in, out);
    }
}

static void in_flight_checked(void)
{
    start_with("checked", "100", "16", "1M");
    sink_in_flight(KVF_REVOKED);
    source_in_flight();
    CHECK_IS(daemon_stat(decode, "fences_total"), 0, "fences without a fault");
    stop();
}

static void in_flight_posted(void)
{
    start_with("posted", "100", "16", "1M");
    sink_in_flight(KVF_PEER_DRAINED);
    source_in_flight();
    CHECK_IS(daemon_stat(decode, "fences_total"), 0, "fences without a fault");
    stop();
}

static void near_end(void)
{
    start_with("posted", "100", "16", "1M");
    int successes = 0;
    for (int i = 0; i < 20; i++) {
        kvf_room in;
        kvf_room out;
        open_both(20, &in, &out);
        room_wait_placed(to, in, (uint64_t)(15 + i % 5) * to->page_bytes, WAIT_MS);
        sleep_us((uint64_t)(i % 5) * 200u);
        abort_room(i % 2 == 0 ? to : from, i % 2 == 0 ? in : out, 0);
        int sink_state = kvf_wait(to->client, in, WAIT_MS);
        int source_state = kvf_wait(from->client, out, WAIT_MS);
        CHECK(sink_state == KVF_FAILED || sink_state == KVF_SUCCESS, "sink %d", sink_state);
        CHECK(source_state == KVF_FAILED || source_state == KVF_SUCCESS, "source %d",
              source_state);
        CHECK(kvf_drained(to->client, in) > 0 && kvf_drained(from->client, out) > 0,
              "ended without proof");
        CHECK_IS(kvf_visible(to->client, in), sink_state == KVF_SUCCESS, "visible");
        successes += sink_state == KVF_SUCCESS;
        release_both(in, out);
    }
    test_say("%d of 20 won the race to success", successes);
    stop();
}

static void after_end(void)
{
    start_with("checked", "0", "16", "1M");
    kvf_room in;
    kvf_room out;
    open_both(10, &in, &out);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    for (int i = 0; i < 2; i++) {
        abort_room(to, in, 77);
        abort_room(from, out, 77);
    }
    sleep_us(20000);
    CHECK_IS(kvf_poll(to->client, in), KVF_SUCCESS, "sink");
    CHECK_IS(kvf_poll(from->client, out), KVF_SUCCESS, "source");
    CHECK_IS(room_info(to, in).reason, 0, "reason");
    CHECK_IS(kvf_visible(to->client, in), 1, "visible");
    room_expect_proof(to, in, KVF_LANDED);
    release_both(in, out);
    stop();
}

static void twice(void)
{
    start_with("posted", "50", "16", "1M");
    kvf_room in;
    kvf_room out;
    open_both(100, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    abort_room(to, in, 11);
    abort_room(to, in, 12);
    abort_room(to, in, 13);
    room_expect_reason(to, in, 11, WAIT_MS);
    abort_room(to, in, 14);
    CHECK_IS(room_info(to, in).reason, 11, "the first reason stays");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    release_both(in, out);
    WAIT_FOR(daemon_stat(decode, "aborts_total") == 1, 1000, "aborts_total is %llu",
             (unsigned long long)daemon_stat(decode, "aborts_total"));
    stop();
}

/* ---- both at once ------------------------------------------------------------------------------------- */

#define RACES 500
#define RACE_PAGES 8

struct racer {
    pthread_barrier_t *barrier;
    struct engine *engine;
    kvf_room room;
    uint64_t delay_us;
};

static void *race(void *ctx)
{
    struct racer *r = ctx;
    for (int i = 0; i < RACES; i++) {
        pthread_barrier_wait(r->barrier); /* the rooms are open */
        uint64_t until_ns = now_ns() + r->delay_us * 1000u;
        while (now_ns() < until_ns) {
        }
        abort_room(r->engine, r->room, 1);
        pthread_barrier_wait(r->barrier);
    }
    return NULL;
}

static void both_at_once(void)
{
    start_with("posted", "0", "16", "1M");
    pthread_barrier_t barrier;
    pthread_t threads[2];
    struct racer racers[2] = {{.barrier = &barrier, .engine = to},
                              {.barrier = &barrier, .engine = from}};
    uint64_t state = 7;
    int successes = 0;
    pthread_barrier_init(&barrier, NULL, 3);
    for (int i = 0; i < 2; i++) {
        CHECK_IS(pthread_create(&threads[i], NULL, race, &racers[i]), 0, "thread");
    }
    for (int i = 0; i < RACES; i++) {
        uint64_t key = key_next();
        int32_t first = (int32_t)(i % 64) * RACE_PAGES;
        racers[0].room = engine_sink(to, key, first, RACE_PAGES, prefill);
        racers[1].room = engine_source(from, key);
        engine_submit(from, racers[1].room, first, RACE_PAGES, 0, true);
        racers[0].delay_us = racers[1].delay_us = random_below(&state, 800);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        for (int k = 0; k < 2; k++) {
            struct racer *r = &racers[k];
            int ended = kvf_wait(r->engine->client, r->room, WAIT_MS);
            CHECK(ended == KVF_FAILED || ended == KVF_SUCCESS, "race %d, side %d: %d %s", i, k,
                  ended, kvf_code_name_of(ended));
            CHECK(kvf_drained(r->engine->client, r->room) > 0, "ended without proof");
            successes += k == 0 && ended == KVF_SUCCESS;
            room_release(r->engine, r->room);
        }
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&barrier);
    test_say("%d of %d sinks won the race to success", successes, RACES);
    engine_check_idle(to); /* free pages at the end equal free pages at the start */
    engine_check_idle(from);
    transfer_once(from, to, key_next(), 0, 100);
    stop();
}

/* ---- large and many ------------------------------------------------------------------------------------- */

#define GIB_PAGES 16384u
#define SOURCE_PAGES 1024u

static void one_gib(const char *placement)
{
    static const struct geometry large = {
        .plane_count = 1, .page_bytes = 65536, .page_count = GIB_PAGES};
    static const struct geometry small = {
        .plane_count = 1, .page_bytes = 65536, .page_count = SOURCE_PAGES};
    prefill = daemon_start("prefill", "--tcp-placement", placement, "--lane-rate", "100", NULL);
    decode = daemon_start("decode", "--tcp-placement", placement, "--lane-rate", "100", NULL);
    from = engine_start(prefill, &small, 0);
    to = engine_start(decode, &large, 0);
    uint64_t total = GIB_PAGES * to->page_bytes;
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, GIB_PAGES, prefill);
    kvf_room out = engine_source(from, key);
    /* A source may send a page several times: 64 MiB stand for the gibibyte. */
    for (uint32_t i = 0; i < GIB_PAGES / SOURCE_PAGES; i++) {
        engine_submit(from, out, 0, SOURCE_PAGES, i * SOURCE_PAGES,
                      i + 1u == GIB_PAGES / SOURCE_PAGES);
    }
    room_wait_placed(to, in, total / 10u, WAIT_MS);
    uint64_t start_ns = now_ns();
    abort_room(to, in, 0);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    uint64_t took_us = (now_ns() - start_ns) / 1000u;
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    uint64_t placed = room_info(to, in).placed_bytes;
    WAIT_FOR(daemon_stat(decode, "grants_out") == 0, WAIT_MS, "the marker never came");
    uint64_t moved =
        daemon_stat(decode, "bytes_placed_total") + daemon_stat(decode, "bytes_refused_total");
    test_say("%s: drained %llu us after the abort; %.2f %% placed, %.2f %% moved", placement,
             (unsigned long long)took_us, 100.0 * (double)placed / (double)total,
             100.0 * (double)moved / (double)total);
    CHECK(took_us < 200000 || !is_timed_build(), "drained after %llu us",
          (unsigned long long)took_us);
    CHECK(moved < total * 12u / 100u, "%llu bytes of 1 GiB moved", (unsigned long long)moved);
    release_both(in, out);
    stop();
}

static void one_gib_checked(void)
{
    one_gib("checked");
}

static void one_gib_posted(void)
{
    one_gib("posted");
}

static void one_of_fifty(void)
{
    enum { ROOMS = 50, EACH = 20, VICTIM = 23 };
    start_with("posted", "200", "16", "256K");
    kvf_room in[ROOMS];
    kvf_room out[ROOMS];
    int32_t pages[EACH];
    for (int i = 0; i < ROOMS; i++) {
        uint64_t key = key_next();
        pages_count_up(pages, EACH, i * EACH);
        engine_fill(from, (uint64_t)i, pages, EACH, 0);
        in[i] = engine_sink(to, key, i * EACH, EACH, prefill);
        out[i] = engine_source(from, key);
        /* The victim's last page never comes: it cannot win the race to success. */
        engine_submit(from, out[i], i * EACH, i == VICTIM ? EACH - 1 : EACH, 0, i != VICTIM);
    }
    room_wait_placed(to, in[VICTIM], to->page_bytes, WAIT_MS);
    abort_room(to, in[VICTIM], 0);
    int successes = 0;
    for (int i = 0; i < ROOMS; i++) {
        room_expect(to, in[i], i == VICTIM ? KVF_FAILED : KVF_SUCCESS, WAIT_MS);
        room_expect(from, out[i], i == VICTIM ? KVF_FAILED : KVF_SUCCESS, WAIT_MS);
        if (i != VICTIM) {
            pages_count_up(pages, EACH, i * EACH);
            engine_verify(to, (uint64_t)i, pages, EACH, 0);
            successes++;
        }
        release_both(in[i], out[i]);
    }
    CHECK_IS(successes, 49, "successes");
    stop();
}

/* ---- early, and late bytes ------------------------------------------------------------------------------- */

static void early(void)
{
    start_with("posted", "20", "16", "1M");
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    CHECK_IS(kvf_failed_early(to->client, in), 0, "early before the abort");
    abort_room(to, in, 3);
    WAIT_FOR(kvf_failed_early(to->client, in) == 1, 1000, "the failure was not told early");
    /* 1 MiB of this room is posted: at 20 MB/s its end is 50 ms away. */
    CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained when the failure was told");
    CHECK_IS(kvf_poll(to->client, in), KVF_TRANSFERRING, "state when the failure was told");
    int32_t page = 0;
    CHECK_IS(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL), 0, "ledger");
    room_expect_reason(to, in, 3, WAIT_MS);
    CHECK_IS(kvf_failed_early(to->client, in), 1, "early at the end");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    release_both(in, out);
    stop();
}

static void late_bytes(const char *placement)
{
    enum { ROOMS = 4, EACH = 200 };
    int32_t pages[ROOMS * EACH];
    kvf_room in[ROOMS];
    kvf_room out[ROOMS];
    bool is_reused[ROOMS] = {false};
    uint32_t reused = 0;
    start_with(placement, "25", "16", "1M");
    pages_count_up(pages, ROOMS * EACH, 0);
    engine_fill(from, 1, pages, ROOMS * EACH, 0);
    engine_set(to, pages, ROOMS * EACH, 0);
    for (int i = 0; i < ROOMS; i++) {
        uint64_t key = key_next();
        in[i] = engine_sink(to, key, i * EACH, EACH, prefill);
        out[i] = engine_source(from, key);
        engine_submit(from, out[i], i * EACH, EACH, 0, true);
    }
    for (int i = 0; i < ROOMS; i++) {
        room_wait_placed(to, in[i], 5 * to->page_bytes, WAIT_MS);
        abort_room(to, in[i], 0);
    }
    while (reused < ROOMS) {
        for (int i = 0; i < ROOMS; i++) {
            /* The next owner, in the same instant. */
            if (!is_reused[i] && kvf_drained(to->client, in[i]) > 0) {
                engine_set(to, pages + i * EACH, EACH, CANARY);
                is_reused[i] = true;
                reused++;
            }
        }
    }
    uint64_t until_ns = now_ns() + PROBE_MS * UINT64_C(1000000);
    while (now_ns() < until_ns) {
        uint64_t other = engine_count_other(to, pages, ROOMS * EACH, CANARY);
        CHECK_IS(other, 0, "foreign bytes in the next owner's pages");
    }
    for (int i = 0; i < ROOMS; i++) {
        room_expect(to, in[i], KVF_FAILED, WAIT_MS);
        CHECK(room_info(to, in[i]).placed_bytes < EACH * to->page_bytes,
              "nothing was in flight");
        room_expect(from, out[i], KVF_FAILED, WAIT_MS);
        release_both(in[i], out[i]);
    }
    stop();
}

static void late_bytes_checked(void)
{
    late_bytes("checked");
}

static void late_bytes_posted(void)
{
    late_bytes("posted");
}

/* The source's pages go to their next owner too: what it writes must never reach the sink. */
static void late_reads(const char *placement)
{
    enum { ROOMS = 12, EACH = 80 };
    int32_t pages[EACH];
    start_with(placement, "50", "16", "1M");
    pages_count_up(pages, EACH, 0);
    for (int i = 0; i < ROOMS; i++) {
        kvf_room in;
        kvf_room out;
        engine_set(from, pages, EACH, 1);
        engine_set(to, pages, EACH, 2);
        open_both(EACH, &in, &out);
        room_wait_placed(to, in, 5 * to->page_bytes, WAIT_MS);
        struct engine *aborter = i % 2 == 0 ? from : to;
        abort_room(aborter, i % 2 == 0 ? out : in, 0);
        while (kvf_drained(from->client, out) == -EAGAIN) {
        }
        engine_set(from, pages, EACH, CANARY);
        room_expect(to, in, KVF_FAILED, WAIT_MS);
        sleep_us(20000);
        uint64_t total = EACH * to->page_bytes;
        uint64_t foreign = total - engine_count_other(to, pages, EACH, CANARY);
        CHECK_IS(foreign, 0, "bytes of the source pages' next owner in the sink");
        room_expect(from, out, KVF_FAILED, WAIT_MS);
        release_both(in, out);
    }
    stop();
}

static void late_reads_checked(void)
{
    late_reads("checked");
}

static void late_reads_posted(void)
{
    late_reads("posted");
}

/* The same probe at the abort instead of the proof must see foreign bytes, or the one above proves nothing. */
static void late_bytes_control(void)
{
    int32_t pages[60];
    kvf_room in;
    kvf_room out;
    start_with("posted", "10", "16", "1M"); /* a posted window is 100 ms long */
    pages_count_up(pages, 60, 0);
    engine_fill(from, 1, pages, 60, 0);
    open_both(60, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    abort_room(to, in, 0);
    engine_set(to, pages, 60, CANARY);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    CHECK(engine_count_other(to, pages, 60, CANARY) > 0,
          "nothing landed between the abort and the proof: the probe cannot see");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    release_both(in, out);
    stop();
}

/* Released, not aborted: the room ends by itself, its pages stay lent until then. */
static void released_in_flight(void)
{
    start_with("posted", "50", "16", "1M");
    int32_t page = 0;
    for (int i = 0; i < 5; i++) {
        kvf_room in;
        kvf_room out;
        open_both(100, &in, &out);
        room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
        room_release(to, in);
        CHECK_CODE(kvf_poll(to->client, in), -KVF_E_STALE_ROOM, "poll of a released room");
        CHECK_IS(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL), 0,
                 "ledger of a released room");
        WAIT_FOR(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL) == 1, WAIT_MS,
                 "the pages never came back");
        room_expect(from, out, KVF_FAILED, WAIT_MS);
        room_release(from, out);
    }
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"abort_before_the_grant_is_answered_is_revoked_in_checked", before_grant_checked, 0},
        {"abort_before_the_grant_is_answered_is_never_posted_in_posted", before_grant_posted,
         0},
        {"a_room_whose_partner_has_ended_ends_too", late_partner, 0},
        {"abort_of_a_queued_room_is_never_posted_and_the_running_one_succeeds", queued, 0},
        {"abort_in_flight_is_revoked_in_checked", in_flight_checked, 0},
        {"abort_in_flight_is_peer_drained_in_posted", in_flight_posted, 0},
        {"abort_near_the_end_has_one_outcome", near_end, 0},
        {"abort_after_the_end_changes_nothing", after_end, 0},
        {"abort_twice_keeps_the_first_reason", twice, 0},
        {"both_sides_abort_at_once_500_times_and_every_page_comes_back", both_at_once, 60},
        {"a_gibibyte_aborted_at_a_tenth_is_drained_in_200_ms_checked", one_gib_checked, 0},
        {"a_gibibyte_aborted_at_a_tenth_is_drained_in_200_ms_posted", one_gib_posted, 0},
        {"one_aborted_room_of_50_leaves_49_successes", one_of_fifty, 0},
        {"failure_is_told_before_drained", early, 0},
        {"no_byte_lands_after_drained_checked", late_bytes_checked, 0},
        {"no_byte_lands_after_drained_posted", late_bytes_posted, 0},
        {"no_byte_is_read_after_the_sources_proof_checked", late_reads_checked, 0},
        {"no_byte_is_read_after_the_sources_proof_posted", late_reads_posted, 0},
        {"bytes_land_after_an_abort_without_proof", late_bytes_control, 0},
        {"a_room_released_in_flight_keeps_its_pages_until_proof", released_in_flight, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

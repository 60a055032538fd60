/* The page ledger: lent from the return of the lending call until proof, and cheap to ask. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

static void start_with(const char *placement, const char *rate)
{
    prefill = daemon_start("prefill", "--tcp-placement", placement, "--lane-rate", rate, NULL);
    decode = daemon_start("decode", "--tcp-placement", placement, "--lane-rate", rate, NULL);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static int is_idle(struct engine *e, int32_t page)
{
    return kvf_pages_are_idle(e->client, e->region, &page, 1, NULL);
}

/* ---- always in step with the proof --------------------------------------------------------------------- */

#define WATCH_ROOMS 150
#define WATCH_PAGES 24

/* What the sampler asks about: a room and its pages, while `room` does not change. */
struct watched {
    struct engine *engine;
    _Atomic uint64_t room; /* 0: nothing is lent */
    _Atomic uint64_t lent_samples;
    _Atomic uint64_t idle_samples;
    _Atomic bool *is_ending;
};

static void sample(struct watched *w, const int32_t *pages, size_t n)
{
    uint64_t room = atomic_load_explicit(&w->room, memory_order_acquire);
    if (room == 0) {
        return;
    }
    int proof_before = kvf_drained(w->engine->client, room);
    int idle = kvf_pages_are_idle(w->engine->client, w->engine->region, pages, n, NULL);
    int proof_after = kvf_drained(w->engine->client, room);
    if (atomic_load_explicit(&w->room, memory_order_acquire) != room) {
        return; /* the case went on meanwhile: the answers may be about different rooms */
    }
    CHECK(idle == 0 || idle == 1, "the ledger answers %d", idle);
    CHECK(idle == 0 || proof_after > 0, "%s: pages are idle and the room is not drained (%d)",
          w->engine->daemon->name, proof_after);
    CHECK(idle == 1 || proof_before <= 0, "%s: the room is drained and pages are lent",
          w->engine->daemon->name);
    atomic_fetch_add_explicit(idle == 1 ? &w->idle_samples : &w->lent_samples, 1,
                              memory_order_relaxed);
}

static void *watch(void *ctx)
{
    struct watched *w = ctx;
    int32_t pages[WATCH_PAGES];
    pages_count_up(pages, WATCH_PAGES, 0);
    for (uint32_t turn = 0; !atomic_load_explicit(w->is_ending, memory_order_relaxed); turn++) {
        sample(w, pages, WATCH_PAGES);
        sample(w, &pages[turn % WATCH_PAGES], 1); /* each alone: no page hides behind another */
    }
    return NULL;
}

static void in_step(const char *placement)
{
    static _Atomic bool is_ending;
    struct watched watched[2] = {{.is_ending = &is_ending}, {.is_ending = &is_ending}};
    pthread_t threads[2];
    uint64_t state = 5;
    start_with(placement, "400");
    watched[0].engine = to;
    watched[1].engine = from;
    for (int i = 0; i < 2; i++) {
        CHECK_IS(pthread_create(&threads[i], NULL, watch, &watched[i]), 0, "thread");
    }
    for (int i = 0; i < WATCH_ROOMS; i++) {
        uint64_t key = key_next();
        kvf_room out = engine_source(from, key);
        engine_submit(from, out, 0, WATCH_PAGES, 0, true);
        atomic_store_explicit(&watched[1].room, out, memory_order_release);
        kvf_room in = engine_sink(to, key, 0, WATCH_PAGES, prefill);
        atomic_store_explicit(&watched[0].room, in, memory_order_release);
        if (i % 3 != 0) {
            sleep_us(random_below(&state, 5000));
            CHECK_CODE(i % 3 == 1 ? kvf_abort(to->client, in, 0)
                                  : kvf_abort(from->client, out, 0),
                       0, "abort");
        }
        int sink_state = kvf_wait(to->client, in, WAIT_MS);
        int source_state = kvf_wait(from->client, out, WAIT_MS);
        CHECK(sink_state == KVF_FAILED || sink_state == KVF_SUCCESS, "sink %d", sink_state);
        CHECK(source_state == KVF_FAILED || source_state == KVF_SUCCESS, "source %d",
              source_state);
        sleep_us(300); /* so that the sampler also sees it idle */
        for (int k = 0; k < 2; k++) {
            atomic_store_explicit(&watched[k].room, 0, memory_order_release);
        }
        room_release(to, in);
        room_release(from, out);
    }
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        uint64_t lent = atomic_load_explicit(&watched[i].lent_samples, memory_order_relaxed);
        uint64_t idle = atomic_load_explicit(&watched[i].idle_samples, memory_order_relaxed);
        test_say("%s %s: %llu samples lent, %llu idle", placement, i == 0 ? "sink" : "source",
                 (unsigned long long)lent, (unsigned long long)idle);
        CHECK(lent > WATCH_ROOMS && idle > 0, "the sampler saw too little to say anything");
    }
    stop();
}

static void in_step_checked(void)
{
    in_step("checked");
}

static void in_step_posted(void)
{
    in_step("posted");
}

/* The ledger speaks before the daemon has read the command: it is stopped meanwhile. */
static void before_the_daemon(void)
{
    start_with("checked", "0");
    kill(decode->worker, SIGSTOP);
    kill(prefill->worker, SIGSTOP);
    kvf_room in = engine_sink(to, key_next(), 10, 4, prefill);
    CHECK_IS(is_idle(to, 10), 0, "sink page right after the call");
    CHECK_IS(is_idle(to, 14), 1, "page beside it");
    kvf_room lender = 0;
    CHECK_CODE(kvf_page_lender(to->client, to->region, 12, &lender), 0, "lender");
    CHECK(lender == in, "the lender is another room");
    CHECK_CODE(kvf_page_lender(to->client, to->region, 14, &lender), -ENOENT, "no lender");
    kvf_room out = engine_source(from, key_next());
    CHECK_IS(is_idle(from, 20), 1, "an open source lends nothing");
    engine_submit(from, out, 20, 4, 0, false);
    CHECK_IS(is_idle(from, 20), 0, "source page right after the call");
    CHECK_CODE(kvf_page_lender(from->client, from->region, 20, &lender), 0, "lender");
    CHECK(lender == 0, "a page lent for reading names a room");
    /* An abort alone frees nothing. */
    CHECK_CODE(kvf_abort(to->client, in, 0), 0, "abort");
    CHECK_CODE(kvf_abort(from->client, out, 0), 0, "abort");
    sleep_us(50000);
    CHECK_IS(is_idle(to, 10), 0, "sink page after an abort that nobody read");
    CHECK_IS(is_idle(from, 20), 0, "source page after an abort that nobody read");
    kill(decode->worker, SIGCONT);
    kill(prefill->worker, SIGCONT);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    stop();
}

/* ---- shared prefixes ------------------------------------------------------------------------------------ */

static void shared(void)
{
    enum { READERS = 3 };
    int32_t pages[8];
    kvf_room in[READERS];
    kvf_room out[READERS];
    uint64_t keys[READERS];
    start_with("checked", "0");
    pages_count_up(pages, 8, 40);
    engine_fill(from, 3, pages, 8, 0);
    for (int i = 0; i < READERS; i++) {
        keys[i] = key_next();
        out[i] = engine_source(from, keys[i]);
        engine_submit_pages(from, out[i], pages, 8, 0, true);
    }
    CHECK_IS(is_idle(from, 40), 0, "three readers");
    for (int i = 0; i < READERS; i++) {
        /* Read by the rooms that are left: no sink may have them. */
        kvf_room refused = 0;
        CHECK_CODE(engine_try_sink(from, key_next(), pages, 8, prefill->listen, &refused),
                   -KVF_E_PAGE_LENT, "a sink on pages that are read");
        in[i] = engine_sink(to, keys[i], i * 10, 8, prefill);
        if (i == 1) {
            CHECK_CODE(kvf_abort(from->client, out[i], 0), 0, "abort");
            CHECK(kvf_wait(from->client, out[i], WAIT_MS) >= 0, "reader %d", i);
            CHECK(kvf_wait(to->client, in[i], WAIT_MS) >= 0, "sink %d", i);
        } else {
            room_expect(from, out[i], KVF_SUCCESS, WAIT_MS);
            room_expect(to, in[i], KVF_SUCCESS, WAIT_MS);
        }
        CHECK_IS(is_idle(from, 40), i == READERS - 1, "pages idle with readers left");
        if (i == 0) {
            room_release(from, out[i]); /* released or not makes no difference */
            CHECK_IS(is_idle(from, 40), 0, "two readers are left");
        }
    }
    kvf_room in_own = 0;
    CHECK_CODE(engine_try_sink(from, key_next(), pages, 8, prefill->listen, &in_own), 0,
               "a sink on pages that nobody reads any more");
    kvf_room late = engine_source(from, key_next());
    CHECK_CODE(engine_try_submit(from, late, pages, 8, 0, true), -KVF_E_PAGE_LENT,
               "reading pages that are lent to a sink");
    (void)room_end(from, in_own, WAIT_MS);
    (void)room_end(from, late, WAIT_MS);
    for (int i = 0; i < READERS; i++) {
        room_release(to, in[i]);
        if (i != 0) {
            room_release(from, out[i]);
        }
    }
    stop();
}

/* A page may stand twice in a piece: it is undone as often. */
static void read_twice(void)
{
    const int32_t pages[] = {5, 6, 5, 5};
    start_with("checked", "0");
    uint64_t key = key_next();
    engine_fill(from, 1, pages, 2, 0);
    kvf_room in = engine_sink(to, key, 0, 4, prefill);
    kvf_room out = engine_source(from, key);
    engine_submit_pages(from, out, pages, 4, 0, true);
    CHECK_IS(is_idle(from, 5), 0, "lent three times");
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    CHECK_IS(is_idle(from, 5), 1, "idle after the room");
    room_release(to, in);
    room_release(from, out);
    stop();
}

/* ---- refusals leave it as it was --------------------------------------------------------------------------- */

static void refused_leave_idle(void)
{
    start_with("checked", "0");
    kvf_room room = 0;
    const int32_t twice[] = {1, 2, 3, 2};
    const int32_t outside[] = {1, 2, 3, 1024};
    const int32_t negative[] = {1, -1};
    CHECK_CODE(engine_try_sink(to, 1, twice, 4, prefill->listen, &room), -KVF_E_PAGE_TWICE,
               "a page twice");
    CHECK_CODE(engine_try_sink(to, 1, outside, 4, prefill->listen, &room), -KVF_E_PAGE_RANGE,
               "a page outside");
    CHECK_CODE(engine_try_sink(to, 1, negative, 2, prefill->listen, &room), -KVF_E_PAGE_RANGE,
               "a negative page");
    CHECK_CODE(engine_try_sink(to, 1, twice, 1, "no colon", &room), -KVF_E_PEER_UNRESOLVED,
               "an address");
    CHECK(room == 0, "an output was touched by a refusal");
    engine_check_idle(to);
    /* One lent page in the middle: what stands before it is taken back. */
    kvf_room in = engine_sink(to, key_next(), 102, 1, prefill);
    int32_t pages[5];
    pages_count_up(pages, 5, 100);
    CHECK_CODE(engine_try_sink(to, 1, pages, 5, prefill->listen, &room), -KVF_E_PAGE_LENT,
               "a lent page");
    size_t position = 99;
    CHECK_IS(kvf_pages_are_idle(to->client, to->region, pages, 2, NULL), 1, "pages before it");
    CHECK_IS(kvf_pages_are_idle(to->client, to->region, pages, 5, &position), 0, "the list");
    CHECK_IS(position, 2, "position of the lent page");
    (void)room_end(to, in, WAIT_MS);
    engine_check_idle(to);
    /* Pieces that are refused lend nothing. */
    kvf_room out = engine_source(from, key_next());
    CHECK_CODE(engine_try_submit(from, out, outside, 4, 0, false), -KVF_E_PAGE_RANGE,
               "a piece");
    CHECK_CODE(engine_try_submit(from, out, outside, 0, 0, false), -KVF_E_NO_PAGES, "a piece");
    engine_check_idle(from);
    engine_submit(from, out, 0, 2, 0, false);
    CHECK_CODE(engine_try_submit(from, out, twice, 2, 1, false), -KVF_E_PIECE_OVERLAP,
               "a piece");
    CHECK_IS(is_idle(from, 2), 1, "a page of the refused piece");
    (void)room_end(from, out, WAIT_MS);
    stop();
}

/* ---- cost ------------------------------------------------------------------------------------------------- */

#define MANY 4096
#define REPEATS 401

static uint64_t ask_picoseconds(struct engine *e, const int32_t *pages)
{
    uint64_t taken[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        uint64_t start_ns = now_ns();
        int idle = kvf_pages_are_idle(e->client, e->region, pages, MANY, NULL);
        taken[i] = now_ns() - start_ns;
        CHECK_IS(idle, 1, "idle");
    }
    return quantile(taken, REPEATS, 500) * 1000u / MANY;
}

static void cost_check(struct engine *e, const int32_t *pages, const char *what)
{
    uint64_t ps = ask_picoseconds(e, pages);
    test_say("%s: %.2f ns a page", what, (double)ps / 1000.0);
    CHECK(ps <= 5000 || !is_timed_build(), "%s costs %.2f ns a page, allowed are 5", what,
          (double)ps / 1000.0);
}

static void cost(void)
{
    static const struct geometry g = {.plane_count = 1, .page_bytes = 4096, .page_count = MANY};
    enum { ROOMS = MANY / 8 };
    static int32_t pages[MANY];
    static kvf_room in[ROOMS];
    static kvf_room out[ROOMS];
    uint64_t state = 11;
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", NULL);
    from = engine_start(prefill, &g, 0);
    to = engine_start(decode, &g, 0);
    pages_count_up(pages, MANY, 0);
    cost_check(to, pages, "4,096 pages never lent");
    pages_shuffle(pages, MANY, &state);
    cost_check(to, pages, "4,096 pages never lent, scattered");
    pages_count_up(pages, MANY, 0);
    transfer_once(from, to, key_next(), 0, MANY);
    cost_check(to, pages, "4,096 pages of one drained sink");
    cost_check(from, pages, "4,096 pages of one drained source");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < ROOMS; i++) {
            uint64_t key = key_next();
            in[i] = engine_sink(to, key, i * 8, 8, prefill);
            out[i] = engine_source(from, key);
            engine_submit(from, out[i], i * 8, 8, 0, true);
        }
        for (int i = 0; i < ROOMS; i++) {
            room_expect(to, in[i], KVF_SUCCESS, WAIT_MS);
            room_expect(from, out[i], KVF_SUCCESS, WAIT_MS);
        }
        cost_check(to, pages,
                   round == 0 ? "4,096 pages of 512 drained sinks"
                              : "4,096 pages of 512 drained sinks, again");
        for (int i = 0; i < ROOMS; i++) {
            room_release(to, in[i]);
            room_release(from, out[i]);
        }
        cost_check(to, pages, "the same, released");
        cost_check(from, pages, "4,096 pages of 512 released sources");
    }
    pages_shuffle(pages, MANY, &state);
    cost_check(to, pages, "4,096 pages of 512 drained sinks, scattered");
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"pages_are_lent_until_the_proof_and_no_longer_checked", in_step_checked, 0},
        {"pages_are_lent_until_the_proof_and_no_longer_posted", in_step_posted, 0},
        {"pages_are_lent_before_the_daemon_has_read_the_command", before_the_daemon, 0},
        {"source_pages_are_idle_when_their_last_reader_is_drained", shared, 0},
        {"a_page_read_twice_by_one_room_comes_back", read_twice, 0},
        {"refused_opens_and_pieces_lend_nothing", refused_leave_idle, 0},
        {"asking_costs_five_nanoseconds_a_page_at_most", cost, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

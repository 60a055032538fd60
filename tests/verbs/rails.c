/* Two daemons with both devices each: lane 0 goes over the router in one direction, lane 1 in the other, so that
 * either can be made late alone. And what devices hold for engines that come and go. */
#include <signal.h>
#include <stdlib.h>

#include "tests/daemon/engine.h"
#include "tests/verbs/guest.h"

#define ROOM_PAGES 16u
#define LATE_MS 4000u
/* What is late by LATE_MS: with room for a machine that is slow, and well before it lands. */
#define EARLY_MS (LATE_MS / 2u)
#define WAIT_MS 60000u
#define WATCH_MS 2500u
#define UNTOUCHED 0xee
#define CANARY 0x5a
#define RESTARTS 100u
#define LEFT_MS 10000u

static const struct geometry geometry = {
    .plane_count = 16, .page_bytes = 4096, .page_count = ROOM_PAGES};

struct scene {
    struct daemon *source;
    struct daemon *sink;
    struct engine *from;
    struct engine *to;
    int32_t pages[ROOM_PAGES];
};

static struct daemon *start(const char *name, const char *devices)
{
    return daemon_start(name, "--transport", "verbs", "--rdma-devices", devices, "--lanes", "2",
                        "--stripe-min", "64K", "--rdma-timeout", "20", "--cooperative-ms",
                        "20000", "--liveness-ms", "20000", "--watchdog-ms", "20000", "--cpu",
                        "none", "--spin", "off", NULL);
}

static void scene_start(struct scene *s)
{
    guest_expect();
    guest_net("clear");
    s->sink = start("sink", GUEST_FIRST "," GUEST_SECOND);
    s->source = start("source", GUEST_SECOND "," GUEST_FIRST);
    s->from = engine_start(s->source, &geometry, 0);
    s->to = engine_start(s->sink, &geometry, 0);
    pages_count_up(s->pages, ROOM_PAGES, 0);
    /* Lanes are there, and have carried something. */
    transfer_once(s->from, s->to, key_next(), 0, ROOM_PAGES);
}

static void scene_stop(struct scene *s)
{
    guest_net("clear");
    engine_stop(s->from);
    engine_stop(s->to);
    daemons_stop();
}

/* What goes to the sink over its second device is late from now on, and nothing else. */
static void delay_second_rail(const struct scene *s)
{
    struct guest_pair pairs[GUEST_PAIRS_MAX];
    CHECK_IS(guest_pairs(GUEST_SECOND, s->sink->worker, pairs), 1,
             "queue pairs on the second rail");
    guest_net("flow forth qpn:%u delay %ums", pairs[0].own, LATE_MS);
}

static uint64_t ms_since(uint64_t since_ns)
{
    return (now_ns() - since_ns) / 1000000u;
}

/* Of the bytes of the room, by the first one of every piece of a page. */
static uint64_t landed(const struct scene *s)
{
    const struct engine *e = s->to;
    uint64_t pieces = 0;
    for (uint32_t plane = 0; plane < geometry.plane_count; plane++) {
        for (uint32_t page = 0; page < ROOM_PAGES; page++) {
            pieces += e->base[e->plane_off[plane] + page * geometry.page_bytes] != UNTOUCHED;
        }
    }
    return pieces * geometry.page_bytes;
}

/* Opens a room whose second rail is late; returns when the first one's share is there, with both rooms. */
static uint64_t begin(struct scene *s, uint64_t key, kvf_room *ret_in, kvf_room *ret_out)
{
    uint64_t room_bytes = ROOM_PAGES * s->to->page_bytes;
    engine_fill(s->from, key, s->pages, ROOM_PAGES, 0);
    engine_set(s->to, s->pages, ROOM_PAGES, UNTOUCHED);
    *ret_in = engine_sink(s->to, key, 0, ROOM_PAGES, s->source);
    *ret_out = engine_source(s->from, key);
    uint64_t since_ns = now_ns();
    engine_submit(s->from, *ret_out, 0, ROOM_PAGES, 0, true);
    /* A byte in 256 of the pattern is as it was before. What a late lane has no room for, the other one takes. */
    WAIT_FOR(landed(s) >= room_bytes / 5u * 2u, WAIT_MS, "%llu bytes landed",
             (unsigned long long)landed(s));
    CHECK(landed(s) <= room_bytes / 16u * 15u,
          "%llu of %llu bytes landed within %llu ms: no rail was late",
          (unsigned long long)landed(s), (unsigned long long)room_bytes,
          (unsigned long long)ms_since(since_ns));
    return since_ns;
}

static void expect_not_drained(struct scene *s, kvf_room in)
{
    int state = kvf_poll(s->to->client, in);
    int drained = kvf_drained(s->to->client, in);
    int idle = kvf_pages_are_idle(s->to->client, s->to->region, s->pages, ROOM_PAGES, NULL);
    /* A sink hears of one-sided writes at a lane's marker: until the first one, it still waits for input. */
    CHECK(state == KVF_TRANSFERRING || state == KVF_WAITING_FOR_INPUT,
          "state %d while one rail is late", state);
    CHECK(drained <= 0, "drained by proof %d while one rail is late", drained);
    CHECK_IS(idle, 0, "pages are idle while one rail is late");
}

static void room_waits_for_both(void)
{
    struct scene s;
    kvf_room in;
    kvf_room out;
    scene_start(&s);
    delay_second_rail(&s);
    uint64_t key = key_next();
    uint64_t since_ns = begin(&s, key, &in, &out);
    while (ms_since(since_ns) < EARLY_MS) {
        expect_not_drained(&s, in);
        sleep_us(5000);
    }
    room_expect(s.to, in, KVF_SUCCESS, WAIT_MS);
    uint64_t took_ms = ms_since(since_ns);
    CHECK(took_ms >= LATE_MS, "in success after %llu ms: before the late rail's bytes",
          (unsigned long long)took_ms);
    engine_verify(s.to, key, s.pages, ROOM_PAGES, 0);
    test_say("in success after %llu ms", (unsigned long long)took_ms);
    room_expect(s.from, out, KVF_SUCCESS, WAIT_MS);
    room_release(s.to, in);
    room_release(s.from, out);
    scene_stop(&s);
}

static void abort_waits_for_both(void)
{
    struct scene s;
    kvf_room in;
    kvf_room out;
    scene_start(&s);
    delay_second_rail(&s);
    uint64_t key = key_next();
    uint64_t since_ns = begin(&s, key, &in, &out);
    uint64_t before = landed(&s);
    CHECK_CODE(kvf_abort(s.to->client, in, 7), 0, "abort");
    CHECK(ms_since(since_ns) < EARLY_MS, "the machine is too slow to show anything");
    while (ms_since(since_ns) < EARLY_MS) {
        CHECK(kvf_drained(s.to->client, in) <= 0, "drained while one rail is late");
        sleep_us(5000);
    }
    room_expect(s.to, in, KVF_FAILED, WAIT_MS);
    uint64_t took_ms = ms_since(since_ns);
    uint64_t after = landed(&s);
    engine_set(s.to, s.pages, ROOM_PAGES, CANARY);
    int proof = kvf_drained(s.to->client, in);
    CHECK(took_ms >= LATE_MS, "drained by %s after %llu ms: before the late rail's bytes",
          kvf_proof_name(proof), (unsigned long long)took_ms);
    CHECK(after > before, "nothing landed after the abort: this shows nothing");
    uint64_t until_ns = now_ns() + WATCH_MS * UINT64_C(1000000);
    while (now_ns() < until_ns) {
        CHECK_IS(engine_count_other(s.to, s.pages, ROOM_PAGES, CANARY), 0,
                 "bytes of the next owner changed");
        sleep_us(20000);
    }
    test_say("drained by %s after %llu ms; %llu bytes landed after the abort",
             kvf_proof_name(proof), (unsigned long long)took_ms,
             (unsigned long long)(after - before));
    room_end(s.from, out, WAIT_MS);
    room_release(s.to, in);
    scene_stop(&s);
}

/* ---- engines that come and go ------------------------------------------------------------------------------------ */

struct held {
    uint32_t memory;
    uint32_t pairs;
    uint32_t queues;
};

static struct held held_by(const struct daemon *d)
{
    return (struct held){guest_count("mr", d->worker), guest_count("qp", d->worker),
                         guest_count("cq", d->worker)};
}

static void expect_held(const struct daemon *d, const struct held *wanted)
{
    WAIT_FOR(held_by(d).memory == wanted->memory, LEFT_MS,
             "%s holds %u registrations and not %u", d->name, held_by(d).memory,
             wanted->memory);
    struct held now = held_by(d);
    CHECK_IS(now.pairs, wanted->pairs, "queue pairs");
    CHECK_IS(now.queues, wanted->queues, "completion queues");
}

static void engines_come_and_go(void)
{
    struct scene s;
    scene_start(&s);
    struct held source = held_by(s.source);
    struct held sink = held_by(s.sink);
    CHECK_IS(sink.memory, 2, "registrations of one region, one a rail");
    CHECK_IS(sink.pairs, 2, "queue pairs, one a lane");
    for (uint32_t i = 0; i < RESTARTS; i++) {
        struct engine *from = engine_start(s.source, &geometry, 0);
        struct engine *to = engine_start(s.sink, &geometry, 0);
        transfer_once(from, to, key_next(), 0, 1);
        engine_stop(from);
        engine_stop(to);
    }
    expect_held(s.source, &source);
    expect_held(s.sink, &sink);
    CHECK_IS(daemon_stat(s.sink, "device_memory_withheld_total"), 0, "regions withheld");
    scene_stop(&s);
}

/* ---- workers that come and go ------------------------------------------------------------------------------------ */

static void workers_come_and_go(void)
{
    struct scene s;
    scene_start(&s);
    struct held sink = held_by(s.sink);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_IS(kill(s.sink->worker, SIGKILL), 0, "kill");
        daemon_wait_worker(s.sink, WAIT_MS);
        WAIT_FOR(kvf_daemon_check(s.to->client) == 0, WAIT_MS,
                 "the next worker does not serve");
        transfer_once(s.from, s.to, key_next(), 0, ROOM_PAGES);
    }
    expect_held(s.sink, &sink);
    scene_stop(&s);
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"a_room_over_two_rails_ends_only_when_both_have_ended", room_waits_for_both, 120},
        {"an_aborted_room_over_two_rails_is_drained_only_when_both_are_proven",
         abort_waits_for_both, 120},
        {"engines_that_come_and_go_leave_no_registration_queue_pair_or_descriptor",
         engines_come_and_go, 300},
        {"the_next_worker_after_one_was_killed_holds_what_the_first_one_held",
         workers_come_and_go, 120},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

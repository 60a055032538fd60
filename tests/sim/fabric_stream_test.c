/* The simulated stream, and what both kinds share: clock, luck, hosts that come and go. */
#include <criterion/criterion.h>

#include <errno.h>

#include "tests/sim/bench.h"

#define SOURCE 0u
#define SINK 1u
#define OTHER 2u

static struct bench b;

static void start(void)
{
    bench_init(&b, SIM_STREAM, 3);
}

static void stop(void)
{
    bench_stop(&b);
}

static void up(void)
{
    bench_start(&b, 1);
    bench_connect(&b, SINK, SOURCE, 0, 1);
}

static const struct sim_link quick = {.delay_min_ns = 5 * BENCH_US,
                                      .delay_max_ns = 20 * BENCH_US};
static const struct sim_link slow = {.delay_min_ns = 800 * BENCH_MS,
                                     .delay_max_ns = 800 * BENCH_MS};
static const struct sim_link cut = {.is_cut = true};

static void reap(uint32_t host)
{
    sim_fabric_kill(b.fabric, host);
    b.process[host].is_stopped = true;
    sim_fabric_reap(b.fabric, host);
}

/* ---- streams ------------------------------------------------------------------------------------------------ */

/* A completion says that the kernel has the bytes, and nothing of the other side. */
Test(sim_stream_double, handed_bytes_arrive_after_the_writer_was_reaped, .init = start,
     .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, slow);
    uint32_t post = bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.process[SOURCE].status[post], 0);
    cr_assert_eq(b.landed_bytes, 0);
    reap(SOURCE);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.late_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.process[SINK].losses, 1, "and then the stream ends");
}

Test(sim_stream_double, a_fence_of_the_source_throws_away_what_was_not_sent, .init = start,
     .fini = stop)
{
    b.process_options[SINK].receive_buffer_bytes = 1024;
    up();
    b.process[SINK].is_stopped = true;
    bench_post(&b, SOURCE, 0, 0, 16);
    bench_run(&b, BENCH_MS);
    bench_fence(&b, SOURCE, 0, 1);
    b.process[SINK].is_stopped = false;
    bench_run(&b, BENCH_S);
    cr_assert(b.landed_bytes >= 1024 && b.landed_bytes < 2048);
    cr_assert_eq(b.process[SINK].losses, 1);
}

/* The same with a reap: a closed socket's bytes still leave, as far as somebody reads them. */
Test(sim_stream_double, a_reap_of_the_source_sends_all_that_was_handed_over, .init = start,
     .fini = stop)
{
    b.process_options[SINK].receive_buffer_bytes = 1024;
    up();
    b.process[SINK].is_stopped = true;
    bench_post(&b, SOURCE, 0, 0, 16);
    bench_run(&b, BENCH_MS);
    reap(SOURCE);
    b.process[SINK].is_stopped = false;
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, 16 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.process[SINK].losses, 1);
}

Test(sim_stream_double, place_is_asked_before_every_receive, .init = start, .fini = stop)
{
    b.process_options[SINK].short_receive_per_million = SIM_MILLION;
    up();
    bench_link(&b, SOURCE, SINK, (struct sim_link){.gap_ns = BENCH_MS});
    bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, 10 * BENCH_MS);
    uint64_t before = b.landed_bytes;
    cr_assert(before > 0 && before < 8 * BENCH_PAGE_BYTES, "%lu", (unsigned long)before);
    b.process[SINK].is_scratch = true;
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, before);
    cr_assert_eq(b.process[SINK].scratch_bytes, 8 * BENCH_PAGE_BYTES - before);
    cr_assert_eq(b.process[SINK].placed_bytes, before);
    cr_assert_geq(b.process[SINK].places, 8 * 4);
    cr_assert_eq(bench_counters(&b)->bytes_scratch, 8 * BENCH_PAGE_BYTES - before);
}

Test(sim_stream_double, nothing_lands_after_the_sinks_fence, .init = start, .fini = stop)
{
    up();
    b.process[SINK].is_stopped = true;
    bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_MS);
    bench_fence(&b, SINK, 0, 1);
    b.process[SINK].is_stopped = false;
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, 0);
    cr_assert_eq(bench_counters(&b)->refused_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.process[SOURCE].lost_err, ECONNRESET);
}

/* The control. */
Test(sim_stream_double, an_unstrict_fence_is_seen, .init = start, .fini = stop)
{
    b.process_options[SINK].unstrict_fence = true;
    b.process_options[SINK].place_max_ns = BENCH_MS;
    up();
    b.process[SINK].is_stopped = true;
    bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_MS);
    bench_fence(&b, SINK, 0, 1);
    cr_assert_eq(b.process[SINK].fences, 1);
    cr_assert_eq(b.landed_bytes, 0);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, BENCH_MTU);
}

/* The source has something to send and finds out; the sink waits for bytes that do not come, for ever. */
Test(sim_stream_double, a_cut_is_found_out_by_who_sends, .init = start, .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, cut);
    bench_link(&b, SINK, SOURCE, cut);
    bench_post(&b, SOURCE, 0, 0, 1);
    bench_run(&b, 9 * BENCH_S);
    cr_assert_eq(b.process[SOURCE].losses, 0);
    bench_run(&b, 2 * BENCH_S);
    cr_assert_eq(b.process[SOURCE].lost_err, ETIMEDOUT);
    bench_run(&b, 1000 * BENCH_S);
    cr_assert_eq(b.process[SINK].losses, 0);
}

Test(sim_stream_double, a_loss_or_a_short_cut_costs_time_and_nothing_else, .init = start,
     .fini = stop)
{
    up();
    struct sim_link bad = quick;
    bad.loss_per_million = 200000;
    bench_link(&b, SOURCE, SINK, bad);
    bench_link(&b, SINK, SOURCE, bad);
    for (uint32_t i = 0; i < 64; i++) {
        bench_post(&b, SOURCE, 0, i, 1);
    }
    bench_mark(&b, SOURCE, 0);
    bench_run(&b, 5 * BENCH_MS);
    bench_link(&b, SOURCE, SINK, cut);
    bench_run(&b, 3 * BENCH_S);
    bench_link(&b, SOURCE, SINK, bad);
    bench_run(&b, 60 * BENCH_S);
    cr_assert_eq(b.process[SINK].markers, 1);
    for (uint32_t i = 0; i < 64; i++) {
        cr_assert_eq(b.landed[SINK][i], BENCH_PAGE_BYTES);
    }
}

/* The time without an answer is counted anew after each one. */
Test(sim_stream_double, two_short_cuts_are_not_a_long_one, .init = start, .fini = stop)
{
    up();
    for (uint32_t round = 0; round < 3; round++) {
        bench_link(&b, SOURCE, SINK, cut);
        bench_post(&b, SOURCE, 0, round, 1);
        bench_run(&b, 6 * BENCH_S);
        bench_link(&b, SOURCE, SINK, quick);
        bench_run(&b, BENCH_S);
        cr_assert_eq(b.landed[SINK][round], BENCH_PAGE_BYTES);
    }
    cr_assert_eq(b.process[SOURCE].losses, 0);
}

Test(sim_stream_double, the_end_of_a_stream_is_told_once_the_cut_heals, .init = start,
     .fini = stop)
{
    up();
    bench_link(&b, SINK, SOURCE, cut);
    bench_fence(&b, SINK, 0, 1);
    bench_run(&b, 100 * BENCH_S);
    cr_assert_eq(b.process[SOURCE].losses, 0);
    bench_link(&b, SINK, SOURCE, quick);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SOURCE].lost_err, ECONNRESET);
}

/* ---- hosts ---------------------------------------------------------------------------------------------------- */

Test(sim_hosts, nobody_listens_or_the_listener_refuses, .init = start, .fini = stop)
{
    bench_start(&b, 1);
    struct kvf_lane_open open = {
        .lane = 3, .epoch = 1, .addr = {.family = 4, .addr = {1, 2, 3, 4}}, .accepted_fd = -1};
    cr_assert_eq(kvf_sim_ops.open(b.process[SINK].t, &open), 0);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SINK].lost_err, ECONNREFUSED);
    b.process[SOURCE].is_refusing = true;
    bench_open(&b, SINK, SOURCE, 0, 1);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SINK].losses, 2);
    cr_assert_eq(b.process[SINK].lost_err, ECONNREFUSED);
}

Test(sim_hosts, a_host_without_power_never_answers, .init = start, .fini = stop)
{
    up();
    sim_fabric_host_down(b.fabric, SOURCE);
    b.process[SOURCE].is_stopped = true;
    bench_open(&b, SINK, SOURCE, 1, 1);
    bench_run(&b, 9 * BENCH_S);
    cr_assert_eq(b.process[SINK].losses, 0);
    bench_run(&b, 2 * BENCH_S);
    cr_assert_eq(b.process[SINK].losses, 1,
                 "the connect times out, the open stream says nothing");
    cr_assert_eq(b.process[SINK].lost_err, ETIMEDOUT);
    cr_assert_eq(b.clock.count, 0, "and nothing goes round for ever");
}

Test(sim_hosts, a_frozen_listener_answers_when_it_thaws, .init = start, .fini = stop)
{
    bench_start(&b, 1);
    sim_fabric_freeze(b.fabric, SOURCE);
    bench_open(&b, SINK, SOURCE, 0, 1);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.hellos, 0);
    sim_fabric_thaw(b.fabric, SOURCE);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.hellos, 1);
    bench_post(&b, SOURCE, 0, 0, 1);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.landed_bytes, BENCH_PAGE_BYTES);
}

Test(sim_hosts, a_killed_listener_resets_when_it_is_reaped, .init = start, .fini = stop)
{
    bench_start(&b, 1);
    sim_fabric_kill(b.fabric, SOURCE);
    b.process[SOURCE].is_stopped = true;
    bench_open(&b, SINK, SOURCE, 0, 1);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SINK].losses, 0);
    sim_fabric_reap(b.fabric, SOURCE);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SINK].losses, 1);
    cr_assert_eq(b.hellos, 0);
}

Test(sim_hosts, a_replacement_takes_the_address_over, .init = start, .fini = stop)
{
    up();
    sim_fabric_host_down(b.fabric, SOURCE);
    b.process[SOURCE].is_stopped = true;
    struct kvf_addr_shm address = bench_address(SOURCE);
    sim_fabric_listen(b.fabric, OTHER, &address);
    cr_assert_eq(sim_fabric_host_at(b.fabric, &address), OTHER);
    bench_open(&b, SINK, SOURCE, 1, 1);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.process[OTHER].ups, 1);
    bench_post(&b, OTHER, 1, 0, 1);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.landed_bytes, BENCH_PAGE_BYTES);
}

Test(sim_hosts, a_new_process_of_a_host_has_nothing_of_the_old_one, .init = start, .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, slow);
    bench_post(&b, SOURCE, 0, 0, 4);
    bench_run(&b, BENCH_MS);
    reap(SINK);
    kvf_sim_ops.close(b.process[SINK].t);
    b.process[SINK].t = NULL;
    bench_process_start(&b, SINK);
    b.process[SINK].is_stopped = false;
    bench_run(&b, 5 * BENCH_S);
    cr_assert_eq(b.landed_bytes, 0);
    cr_assert_eq(b.process[SINK].losses, 0);
    cr_assert_eq(b.process[SOURCE].losses, 1);
    bench_fence(&b, SOURCE, 0, 1);
    bench_link(&b, SOURCE, SINK, quick);
    bench_connect(&b, SINK, SOURCE, 0, 1);
}

/* ---- the clock and luck ---------------------------------------------------------------------------------------- */

static uint64_t order;

static void append_digit(void *ctx, uint64_t a, uint64_t again)
{
    struct sim_clock *clock = ctx;
    order = order * 10 + a;
    if (again > 0) {
        sim_clock_at(clock, clock->now_ns, append_digit, clock, again, 0);
    }
}

Test(sim_clock, events_of_one_moment_run_in_the_order_they_came)
{
    struct sim_clock clock;
    sim_clock_init(&clock);
    order = 0;
    sim_clock_at(&clock, 20, append_digit, &clock, 5, 0);
    sim_clock_at(&clock, 10, append_digit, &clock, 1, 4);
    sim_clock_at(&clock, 10, append_digit, &clock, 2, 0);
    sim_clock_at(&clock, 10, append_digit, &clock, 3, 0);
    cr_assert_eq(sim_clock_next_ns(&clock), 10);
    sim_clock_run_until(&clock, 15);
    cr_assert_eq(order, 1234);
    cr_assert_eq(clock.now_ns, 15);
    cr_assert(sim_clock_run_one(&clock));
    cr_assert_not(sim_clock_run_one(&clock));
    cr_assert_eq(order, 12345);
    sim_clock_free(&clock);
}

static uint64_t last_ns;

static void assert_not_before(void *ctx, uint64_t when_ns, uint64_t unused)
{
    (void)ctx;
    (void)unused;
    cr_assert_geq(when_ns, last_ns);
    last_ns = when_ns;
}

Test(sim_clock, many_events_run_in_the_order_of_time)
{
    struct sim_clock clock;
    struct sim_random random = sim_random_stream(1, 2, 3);
    sim_clock_init(&clock);
    last_ns = 0;
    for (uint32_t i = 0; i < 20000; i++) {
        uint64_t when_ns = sim_random_below(&random, 5000);
        sim_clock_at(&clock, when_ns, assert_not_before, NULL, when_ns, 0);
    }
    while (sim_clock_run_one(&clock)) {
    }
    cr_assert_eq(clock.run_count, 20000);
    sim_clock_free(&clock);
}

Test(sim_random, streams_are_independent_and_repeat)
{
    struct sim_random a = sim_random_stream(1, 7, 0);
    struct sim_random same = sim_random_stream(1, 7, 0);
    struct sim_random others[3] = {sim_random_stream(2, 7, 0), sim_random_stream(1, 8, 0),
                                   sim_random_stream(1, 7, 1)};
    uint32_t hits = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint64_t x = sim_random_next(&a);
        cr_assert_eq(x, sim_random_next(&same));
        for (uint32_t k = 0; k < 3; k++) {
            cr_assert_neq(x, sim_random_next(&others[k]));
        }
    }
    for (uint32_t i = 0; i < 100000; i++) {
        cr_assert_lt(sim_random_below(&a, 7), 7);
        hits += sim_random_chance(&a, 250000);
    }
    cr_assert(hits > 24000 && hits < 26000);
    cr_assert_not(sim_random_chance(&a, 0));
    cr_assert(sim_random_chance(&a, SIM_MILLION));
}

/* ---- one seed, one history --------------------------------------------------------------------------------------- */

/* Everything that can go wrong on the way goes wrong, on `lanes` lanes; lane 0's own hash is what comes back if
 * only_first. */
static uint64_t history(enum sim_kind kind, uint64_t seed, uint32_t lanes)
{
    struct bench *x = &b;
    bench_init(x, kind, 2);
    x->options.link = (struct sim_link){.delay_min_ns = BENCH_US,
                                        .delay_max_ns = 100 * BENCH_US,
                                        .loss_per_million = 20000,
                                        .duplicate_per_million = 20000,
                                        .reorder_per_million = 20000};
    x->process_options[SINK].slow_place_per_million = 100000;
    x->process_options[SINK].place_max_ns = BENCH_MS;
    bench_start(x, seed);
    for (uint32_t lane = 0; lane < lanes; lane++) {
        bench_open(x, SINK, SOURCE, lane, 1);
    }
    bench_run(x, BENCH_S);
    for (uint32_t i = 0; i < 100; i++) {
        bench_post(x, SOURCE, i % lanes, i % BENCH_PAGES, 1);
        bench_run(x, 50 * BENCH_US);
    }
    bench_fence(x, SINK, 0, 1);
    bench_run(x, 10 * BENCH_S);
    bench_fence(x, SOURCE, 0, 1);
    uint64_t hash = x->hash;
    bench_stop(x);
    return hash;
}

Test(sim_fabric, the_same_seed_is_the_same_history)
{
    for (uint32_t kind = SIM_STREAM; kind <= SIM_NIC; kind++) {
        uint64_t once = history((enum sim_kind)kind, 42, 4);
        cr_assert_eq(history((enum sim_kind)kind, 42, 4), once);
        cr_assert_neq(history((enum sim_kind)kind, 43, 4), once);
    }
}

/* What a reset leaves behind would make a seed depend on the seeds before it. */
Test(sim_fabric, a_reset_fabric_is_a_new_one)
{
    uint64_t hash[3];
    for (uint32_t kind = SIM_STREAM; kind <= SIM_NIC; kind++) {
        bench_init(&b, (enum sim_kind)kind, 2);
        bench_start(&b, 1);
        for (uint32_t round = 0; round < 3; round++) {
            uint64_t seed = round == 1 ? 99 : 5;
            for (uint32_t i = 0; i < 2; i++) {
                kvf_sim_ops.close(b.process[i].t);
                b.process[i] = (struct bench_process){0};
            }
            sim_clock_reset(&b.clock, 0);
            b.options.link.duplicate_per_million = round == 1 ? 500000 : 100000;
            sim_fabric_reset(b.fabric, &b.options, seed);
            b.hash = 0;
            b.posts = 0;
            for (uint32_t i = 0; i < 2; i++) {
                struct kvf_addr_shm address = bench_address(i);
                sim_fabric_listen(b.fabric, i, &address);
                bench_process_start(&b, i);
            }
            bench_connect(&b, SINK, SOURCE, 0, 1);
            bench_post(&b, SOURCE, 0, 0, 16);
            bench_mark(&b, SOURCE, 0);
            bench_run(&b,
                      round == 1 ? 30 * BENCH_US : BENCH_S); /* the second ends in the middle */
            hash[round] = b.hash;
        }
        cr_assert_eq(hash[0], hash[2]);
        cr_assert_neq(hash[0], hash[1]);
        bench_stop(&b);
    }
}

/* The simulated NIC misbehaves as real ones were measured to: each test names its measurement in RDMA.md (Tn). If
 * the double became kinder than that, the simulator would prove less than it says. */
#include <criterion/criterion.h>

#include <errno.h>

#include "tests/sim/bench.h"
#include "tests/sim/fabric_internal.h"

#define SOURCE 0u
#define SINK 1u

static struct bench b;

static void up(void)
{
    bench_start(&b, 1);
    bench_connect(&b, SINK, SOURCE, 0, 1);
}

static void start(void)
{
    bench_init(&b, SIM_NIC, 2);
}

static void stop(void)
{
    bench_stop(&b);
}

static const struct sim_link slow = {.delay_min_ns = 800 * BENCH_MS,
                                     .delay_max_ns = 800 * BENCH_MS};
static const struct sim_link quick = {.delay_min_ns = 5 * BENCH_US,
                                      .delay_max_ns = 20 * BENCH_US};
static const struct sim_link cut = {.is_cut = true};

static void link_both(struct sim_link link)
{
    bench_link(&b, SOURCE, SINK, link);
    bench_link(&b, SINK, SOURCE, link);
}

static struct sim_qp *qp_of(uint32_t host, uint32_t lane)
{
    struct sim_transport *t = (struct sim_transport *)(void *)b.process[host].t;
    struct sim_duct *d = simnet_duct_of_lane(t, lane);
    return simnet_qp_of_end(b.fabric, &d->end[t->lanes[lane].is_sink ? SIM_SINK : SIM_SOURCE]);
}

static void assert_each_post_once(void)
{
    for (uint32_t i = 0; i < b.posts; i++) {
        cr_assert_eq(b.process[SOURCE].post_completions[i], 1, "post %u: %u completions", i,
                     b.process[SOURCE].post_completions[i]);
    }
}

/* ---- what a requester's end proves ------------------------------------------------------------------------- */

/* T1: the flush came at once, the data 0.8 s later. */
Test(sim_nic_double, late_landing_after_a_flush, .init = start, .fini = stop)
{
    up();
    link_both(slow);
    uint32_t post = bench_post(&b, SOURCE, 0, 3, 1);
    bench_run(&b, BENCH_MS);
    bench_fence(&b, SOURCE, 0, 1);
    cr_assert_eq(b.process[SOURCE].fences, 1);
    cr_assert_eq(b.process[SOURCE].status[post], -ECONNABORTED);
    cr_assert_eq(b.landed_bytes, 0);
    uint64_t read = b.read_bytes;
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed[SINK][3], BENCH_PAGE_BYTES);
    cr_assert_eq(b.late_bytes, BENCH_PAGE_BYTES);
    cr_assert_eq(b.read_bytes, read, "the source's pages were idle when the fence returned");
}

/* T2, T3: nor does it matter that the writer's queue pair, and its process, are gone. */
Test(sim_nic_double, late_landing_after_the_writer_was_reaped, .init = start, .fini = stop)
{
    up();
    link_both(slow);
    bench_post(&b, SOURCE, 0, 0, 4);
    bench_run(&b, BENCH_MS);
    sim_fabric_kill(b.fabric, SOURCE);
    b.process[SOURCE].is_stopped = true;
    sim_fabric_reap(b.fabric, SOURCE);
    cr_assert_eq(b.landed_bytes, 0);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.late_bytes, 4 * BENCH_PAGE_BYTES);
}

/* T34: only the ACKs were lost. */
Test(sim_nic_double, all_landed_with_retry_exc, .init = start, .fini = stop)
{
    up();
    bench_link(&b, SINK, SOURCE, cut);
    uint32_t post = bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SOURCE].status[post], -ETIMEDOUT);
    cr_assert_eq(b.process[SOURCE].lost_err, ETIMEDOUT);
    cr_assert_eq(b.landed_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(bench_counters(&b)->landed_unacked, 1);
    cr_assert_eq(bench_counters(&b)->retry_exceeded, 1);
}

/* T19: at 1 Mbit/s 18 KB of a message had landed when its flush came, and 64 KB later. */
Test(sim_nic_double, partial_message_keeps_growing, .init = start, .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, (struct sim_link){.gap_ns = BENCH_MS});
    uint32_t post = bench_post(&b, SOURCE, 0, 0, 16);
    bench_run(&b, 20 * BENCH_MS);
    bench_fence(&b, SOURCE, 0, 1);
    uint64_t at_flush = b.landed_bytes;
    cr_assert_eq(b.process[SOURCE].status[post], -ECONNABORTED);
    cr_assert(at_flush > 0 && at_flush < 16 * BENCH_PAGE_BYTES);
    bench_run(&b, 200 * BENCH_MS);
    cr_assert_eq(b.landed_bytes, 16 * BENCH_PAGE_BYTES);
}

/* T24: a stopped requester does not stop its traffic. */
Test(sim_nic_double, a_frozen_writer_writes_on, .init = start, .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, cut);
    bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_MS);
    sim_fabric_freeze(b.fabric, SOURCE);
    b.process[SOURCE].is_stopped = true;
    uint32_t wakes = b.wakes;
    bench_link(&b, SOURCE, SINK, quick);
    b.process[SINK].is_stopped = true;
    bench_run(&b, 200 * BENCH_MS);
    cr_assert_eq(b.landed_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.wakes, wakes, "nobody is told while it is frozen");
    sim_fabric_thaw(b.fabric, SOURCE);
    cr_assert_eq(b.wakes, wakes + 1);
}

/* T9: with (timeout 14, retry 2) the error took 0.203 s; with retry 7 there was none in 60 s. */
Test(sim_nic_double, retries_are_bounded_by_their_count_and_seven_is_for_ever, .init = start,
     .fini = stop)
{
    b.process_options[SOURCE].retry_cnt = 2;
    b.process_options[SOURCE].completion_deadline_ns = 1000 * BENCH_S;
    up();
    bench_connect(&b, SINK, SOURCE, 1, 1);
    bench_link(&b, SOURCE, SINK, cut);
    uint64_t begin_ns = b.clock.now_ns;
    bench_post(&b, SOURCE, 0, 0, 1);
    while (b.process[SOURCE].completions == 0) {
        bench_run(&b, BENCH_MS);
    }
    uint64_t took_ns = b.clock.now_ns - begin_ns;
    cr_assert(took_ns > 195 * BENCH_MS && took_ns < 210 * BENCH_MS, "%lu ns",
              (unsigned long)took_ns);
    b.process_options[SOURCE].retry_cnt = 7;
    sim_transport_set(b.process[SOURCE].t, &b.process_options[SOURCE]);
    bench_post(&b, SOURCE, 1, 0, 1);
    bench_run(&b, 60 * BENCH_S);
    cr_assert_eq(b.process[SOURCE].completions, 1);
}

/* T20: an idle lane notices nothing of its peer's death; a write finds out in (retry + 1) timeouts. */
Test(sim_nic_double, an_idle_lane_does_not_notice_that_its_peer_is_gone, .init = start,
     .fini = stop)
{
    up();
    sim_fabric_kill(b.fabric, SINK);
    b.process[SINK].is_stopped = true;
    sim_fabric_reap(b.fabric, SINK);
    bench_run(&b, 10 * BENCH_S);
    cr_assert_eq(b.process[SOURCE].losses, 0);
    uint32_t post = bench_post(&b, SOURCE, 0, 0, 1);
    bench_run(&b, 300 * BENCH_MS);
    cr_assert_eq(b.process[SOURCE].losses, 1);
    cr_assert_eq(b.process[SOURCE].status[post], -ETIMEDOUT);
    cr_assert_eq(b.landed_bytes, 0);
    cr_assert_gt(bench_counters(&b)->refused_no_qp, 0);
}

/* ---- fences of the responder ---------------------------------------------------------------------------------- */

/* T4: with a write in flight, nothing landed after the fence. */
Test(sim_nic_double, nothing_lands_after_the_sinks_fence, .init = start, .fini = stop)
{
    up();
    link_both(slow);
    bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_MS);
    bench_fence(&b, SINK, 0, 1);
    cr_assert_eq(b.process[SINK].fences, 1);
    bench_run(&b, 5 * BENCH_S);
    cr_assert_eq(b.landed_bytes, 0);
    cr_assert_geq(bench_counters(&b)->refused_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.process[SOURCE].losses, 1);
}

/* T4 once more, by modify alone: what arrives from then on is dropped silently, and the writer hears nothing. */
Test(sim_nic_double, a_responder_in_error_drops_silently, .init = start, .fini = stop)
{
    up();
    link_both(slow);
    uint32_t post = bench_post(&b, SOURCE, 0, 0, 8);
    bench_run(&b, BENCH_MS);
    simnet_qp_to_error(b.fabric, qp_of(SINK, 0));
    bench_run(&b, 5 * BENCH_S);
    cr_assert_eq(b.landed_bytes, 0);
    cr_assert_eq(b.process[SOURCE].status[post], -ETIMEDOUT);
    cr_assert_gt(bench_counters(&b)->refused_qp_state, 0);
}

static void accept_one_slowly(void)
{
    b.process_options[SINK].slow_place_per_million = SIM_MILLION;
    b.process_options[SINK].place_max_ns = 10 * BENCH_MS;
    b.page_bytes = BENCH_MTU;
    up();
    bench_post(&b, SOURCE, 0, 0, 1);
    while (b.process[SOURCE].completions == 0) {
        bench_run(&b, BENCH_US);
    }
}

/* By the code of rxe (and T38 for access flags): the call returns, and one packet is still being placed. */
Test(sim_nic_double, modify_returns_before_the_last_packet, .init = start, .fini = stop)
{
    accept_one_slowly();
    cr_assert_eq(b.landed_bytes, 0, "acknowledged and not yet placed");
    simnet_qp_to_error(b.fabric, qp_of(SINK, 0));
    cr_assert_eq(b.landed_bytes, 0);
    bench_run(&b, 20 * BENCH_MS);
    cr_assert_eq(b.landed_bytes, BENCH_MTU, "it changed after the call returned");
}

/* T38: 0 of 260 after destroy. */
Test(sim_nic_double, destroy_is_strict, .init = start, .fini = stop)
{
    accept_one_slowly();
    cr_assert_eq(b.landed_bytes, 0);
    bench_fence(&b, SINK, 0, 1);
    cr_assert_eq(b.process[SINK].fences, 1);
    cr_assert_eq(b.landed_bytes, BENCH_MTU, "waited for");
    bench_run(&b, 20 * BENCH_MS);
    cr_assert_eq(b.landed_bytes, BENCH_MTU);
}

/* The control: a transport that takes modify for a fence is seen to be wrong. */
Test(sim_nic_double, an_unstrict_fence_is_seen, .init = start, .fini = stop)
{
    b.process_options[SINK].unstrict_fence = true;
    accept_one_slowly();
    bench_fence(&b, SINK, 0, 1);
    cr_assert_eq(b.process[SINK].fences, 1);
    cr_assert_eq(b.landed_bytes, 0);
    bench_run(&b, 20 * BENCH_MS);
    cr_assert_eq(b.landed_bytes, BENCH_MTU, "after the fence returned");
}

Test(sim_nic_double, a_fence_that_only_flushes_is_seen, .init = start, .fini = stop)
{
    b.process_options[SINK].trust_flush = true;
    up();
    link_both(slow);
    bench_post(&b, SOURCE, 0, 0, 2);
    bench_run(&b, BENCH_MS);
    bench_fence(&b, SINK, 0, 1);
    cr_assert_eq(b.process[SINK].fences, 1);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, 2 * BENCH_PAGE_BYTES);
}

/* T18: a late packet for a dead key is refused, and both queue pairs are in error. */
Test(sim_nic_double, a_dead_key_stops_the_write_and_both_queue_pairs, .init = start,
     .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, (struct sim_link){.gap_ns = BENCH_MS});
    b.key = sim_fabric_register(b.fabric, SINK, 0, 0);
    uint32_t post = bench_post(&b, SOURCE, 0, 0, 8);
    uint32_t behind = bench_post(&b, SOURCE, 0, 8, 1);
    bench_run(&b, 10 * BENCH_MS);
    uint64_t before = b.landed_bytes;
    cr_assert(before > 0 && before < 8 * BENCH_PAGE_BYTES);
    sim_fabric_deregister(b.fabric, SINK, b.key);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, before);
    cr_assert_eq(b.process[SOURCE].status[post], -EACCES);
    cr_assert_eq(b.process[SOURCE].status[behind], -ECONNABORTED);
    cr_assert_eq(qp_of(SINK, 0)->state, SIM_QP_ERR);
    cr_assert_eq(qp_of(SOURCE, 0)->state, SIM_QP_ERR);
}

/* T16, T35, T28: killed is not gone. */
Test(sim_nic_double, a_killed_sink_is_written_to_until_it_is_reaped, .init = start,
     .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, (struct sim_link){.gap_ns = BENCH_MS});
    bench_post(&b, SOURCE, 0, 0, 16);
    bench_run(&b, 5 * BENCH_MS);
    sim_fabric_kill(b.fabric, SINK);
    b.process[SINK].is_stopped = true;
    uint64_t killed = b.landed_bytes;
    bench_run(&b, 10 * BENCH_MS);
    uint64_t reaped = b.landed_bytes;
    cr_assert_gt(reaped, killed);
    sim_fabric_reap(b.fabric, SINK);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, reaped);
}

Test(sim_nic_double, a_fence_that_hangs_fences_nothing_until_it_returns, .init = start,
     .fini = stop)
{
    up();
    bench_link(&b, SOURCE, SINK, (struct sim_link){.gap_ns = BENCH_MS});
    sim_fabric_fence_hang(b.fabric, SINK, b.clock.now_ns + 30 * BENCH_MS);
    bench_post(&b, SOURCE, 0, 0, 16);
    bench_run(&b, 5 * BENCH_MS);
    bench_fence(&b, SINK, 0, 1);
    uint64_t asked = b.landed_bytes;
    bench_run(&b, 20 * BENCH_MS);
    cr_assert_eq(b.process[SINK].fences, 0);
    cr_assert_gt(b.landed_bytes, asked);
    bench_run(&b, 10 * BENCH_MS);
    cr_assert_eq(b.process[SINK].fences, 1);
    uint64_t fenced = b.landed_bytes;
    cr_assert_lt(fenced, 16 * BENCH_PAGE_BYTES);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.landed_bytes, fenced);
    /* For ever: only a reap ends it. */
    sim_fabric_fence_hang(b.fabric, SOURCE, SIM_NEVER);
    bench_fence(&b, SOURCE, 0, 1);
    bench_run(&b, 100 * BENCH_S);
    cr_assert_eq(b.process[SOURCE].fences, 0);
    sim_fabric_kill(b.fabric, SOURCE);
    b.process[SOURCE].is_stopped = true;
    sim_fabric_reap(b.fabric, SOURCE);
}

/* The hang may also begin when the fence is half way. */
Test(sim_nic_double, a_fence_under_way_can_hang_too, .init = start, .fini = stop)
{
    b.process_options[SINK].fence_min_ns = 2 * BENCH_MS;
    b.process_options[SINK].fence_max_ns = 2 * BENCH_MS;
    up();
    bench_fence(&b, SINK, 0, 1);
    sim_fabric_fence_hang(b.fabric, SINK, b.clock.now_ns + 10 * BENCH_MS);
    bench_run(&b, 5 * BENCH_MS);
    cr_assert_eq(b.process[SINK].fences, 0);
    bench_run(&b, 6 * BENCH_MS);
    cr_assert_eq(b.process[SINK].fences, 1);
}

Test(sim_nic_double, a_fence_takes_its_time_and_tells_once, .init = start, .fini = stop)
{
    b.process_options[SINK].fence_min_ns = BENCH_MS;
    b.process_options[SINK].fence_max_ns = 2 * BENCH_MS;
    up();
    bench_fence(&b, SINK, 0, 1);
    bench_fence(&b, SINK, 0, 1);
    cr_assert_eq(b.process[SINK].fences, 0);
    struct kvf_lane_open open = {
        .lane = 0, .epoch = 2, .addr = bench_address(SOURCE), .accepted_fd = -1};
    cr_assert_eq(kvf_sim_ops.open(b.process[SINK].t, &open), -EBUSY);
    bench_run(&b, 3 * BENCH_MS);
    cr_assert_eq(b.process[SINK].fences, 1);
}

/* ---- ghosts ------------------------------------------------------------------------------------------------------ */

/* A packet of epoch 1 stays in the network while both ends are fenced and connected again. */
static uint64_t ghost_bytes(bool constant_psn, bool reuse_qpn)
{
    bench_init(&b, SIM_NIC, 2);
    b.page_bytes = BENCH_MTU;
    for (uint32_t i = 0; i < 2; i++) {
        b.process_options[i].constant_psn = constant_psn;
        b.process_options[i].reuse_qpn = reuse_qpn;
    }
    up();
    bench_link(&b, SOURCE, SINK, slow);
    bench_post(&b, SOURCE, 0, 5, 1);
    bench_run(&b, BENCH_MS);
    bench_link(&b, SOURCE, SINK, quick);
    bench_fence(&b, SOURCE, 0, 1);
    bench_fence(&b, SINK, 0, 1);
    bench_connect(&b, SINK, SOURCE, 0, 2);
    cr_assert_eq(b.landed_bytes, 0);
    bench_run(&b, BENCH_S);
    uint64_t bytes = b.landed_bytes;
    cr_assert_eq(b.ghost_bytes, bytes);
    cr_assert_eq(bench_counters(&b)->landings_ghost, bytes / BENCH_MTU);
    bench_stop(&b);
    return bytes;
}

/* T12: with the same QPN and a constant PSN the new connection executed it (512 bytes); T12b: with a fresh PSN
 * not. Either of the two is enough, and we have both. */
Test(sim_nic_double, ghost_packet_needs_fresh_qpn_and_psn)
{
    cr_assert_eq(ghost_bytes(true, true), BENCH_MTU);
    cr_assert_eq(ghost_bytes(false, true), 0);
    cr_assert_eq(ghost_bytes(true, false), 0);
    cr_assert_eq(ghost_bytes(false, false), 0);
}

/* A host that was without power hands the same numbers out again, whatever we do. */
static uint64_t ghost_bytes_after_power_off(bool constant_psn)
{
    bench_init(&b, SIM_NIC, 2);
    b.page_bytes = BENCH_MTU;
    b.process_options[SOURCE].constant_psn = constant_psn;
    up();
    bench_link(&b, SOURCE, SINK, slow);
    bench_post(&b, SOURCE, 0, 5, 1);
    bench_run(&b, BENCH_MS);
    bench_link(&b, SOURCE, SINK, quick);
    sim_fabric_host_down(b.fabric, SINK);
    kvf_sim_ops.close(b.process[SINK].t);
    sim_fabric_host_up(b.fabric, SINK);
    bench_process_start(&b, SINK);
    bench_fence(&b, SOURCE, 0, 1);
    bench_connect(&b, SINK, SOURCE, 0, 2);
    bench_run(&b, BENCH_S);
    uint64_t bytes = b.ghost_bytes;
    bench_stop(&b);
    return bytes;
}

Test(sim_nic_double, after_a_power_off_only_a_fresh_psn_stops_a_ghost)
{
    cr_assert_eq(ghost_bytes_after_power_off(true), BENCH_MTU);
    cr_assert_eq(ghost_bytes_after_power_off(false), 0);
}

/* ---- accounting ----------------------------------------------------------------------------------------------- */

/* T14: a queue of 4 got 32; the queue pair stayed as it was and all data arrived. */
Test(sim_nic_double, cq_overrun_loses_completions_and_is_noticed, .init = start, .fini = stop)
{
    b.process_options[SOURCE].cq_depth = 4;
    b.process_options[SOURCE].signal_every = 1;
    b.process_options[SOURCE].sq_depth = 64;
    up();
    for (uint32_t i = 0; i < 32; i++) {
        bench_post(&b, SOURCE, 0, i, 1);
    }
    kvf_sim_ops.poll(b.process[SOURCE].t);
    b.process[SOURCE].is_stopped = true;
    bench_run(&b, 10 * BENCH_MS);
    cr_assert_eq(qp_of(SOURCE, 0)->state, SIM_QP_RTS);
    cr_assert_eq(b.landed_bytes, 32 * BENCH_PAGE_BYTES);
    b.process[SOURCE].is_stopped = false;
    bench_run(&b, BENCH_MS);
    cr_assert_eq(bench_counters(&b)->cq_overruns, 1);
    cr_assert_eq(b.process[SOURCE].completions, 4);
    cr_assert_eq(b.process[SOURCE].lost_err, EOVERFLOW);
    bench_fence(&b, SOURCE, 0, 1);
    assert_each_post_once();
}

Test(sim_nic_double, completions_that_never_come_are_found_by_a_deadline, .init = start,
     .fini = stop)
{
    b.process_options[SOURCE].lose_cqe_per_million = SIM_MILLION;
    up();
    bench_connect(&b, SINK, SOURCE, 1, 1);
    bench_post(&b, SOURCE, 0, 0, 1);
    bench_run(&b, BENCH_S);
    bench_post(&b, SOURCE, 1, 1, 1);
    bench_run(&b, 990 * BENCH_MS);
    cr_assert_eq(b.process[SOURCE].losses, 0);
    bench_run(&b, 20 * BENCH_MS);
    cr_assert_eq(b.process[SOURCE].losses, 1);
    cr_assert_eq(b.process[SOURCE].lost_err, ETIMEDOUT);
    bench_run(&b, BENCH_S);
    cr_assert_eq(b.process[SOURCE].losses, 2, "the second lane in its own time");
    bench_fence(&b, SOURCE, 0, 1);
    bench_fence(&b, SOURCE, 1, 1);
    assert_each_post_once();
}

/* An error completion was lost, and the first one that comes is a flush: nothing before it may be taken for good. */
Test(sim_nic_double, a_flush_does_not_vouch_for_what_was_before_it, .init = start, .fini = stop)
{
    up();
    link_both(cut);
    uint32_t first = bench_post(&b, SOURCE, 0, 0, 1);
    bench_post(&b, SOURCE, 0, 1, 1);
    bench_run(&b, BENCH_MS);
    struct sim_transport *t = (struct sim_transport *)(void *)b.process[SOURCE].t;
    struct sim_cqe cqe = {
        .lane_serial = t->lanes[0].serial, .entry_seq = 1, .status = ECONNABORTED};
    struct sim_random luck = {0};
    simnet_cq_push(t, &luck, &cqe);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.process[SOURCE].completions, 2);
    cr_assert_eq(b.process[SOURCE].status[first], -ECONNABORTED);
    bench_run(&b, BENCH_S); /* the real ones come now, and are old news */
    cr_assert_eq(b.process[SOURCE].completions, 2);
}

/* T25: a list of 200 failed at the 32nd, and 31 landed. */
Test(sim_nic_double, a_list_is_taken_by_a_prefix, .init = start, .fini = stop)
{
    up();
    struct sim_wr list[200] = {0};
    for (uint32_t i = 0; i < 200; i++) {
        list[i].post = (struct kvf_post){.kind = KVF_LANE_DATA, .page_count = 1};
        list[i].page_bytes = BENCH_MTU;
    }
    cr_assert_eq(simnet_qp_post(b.fabric, qp_of(SOURCE, 0), list, 200), 31);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.landed_bytes, 31 * BENCH_MTU);
}

/* And the transport's books stay exact all the same. */
Test(sim_nic_double, what_a_full_send_queue_refuses_is_posted_later, .init = start,
     .fini = stop)
{
    b.process_options[SOURCE].sq_depth = 3;
    up();
    for (uint32_t i = 0; i < 200; i++) {
        bench_post(&b, SOURCE, 0, i % BENCH_PAGES, 1);
    }
    bench_mark(&b, SOURCE, 0);
    bench_run(&b, BENCH_S);
    assert_each_post_once();
    cr_assert_eq(b.landed_bytes, 200 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.process[SINK].markers, 1);
}

/* T10: 10 of 10 with only the last signalled. */
Test(sim_nic_double, unsignalled_posts_complete_on_error_too, .init = start, .fini = stop)
{
    b.process_options[SOURCE].signal_every = 31;
    up();
    link_both(cut);
    for (uint32_t i = 0; i < 10; i++) {
        bench_post(&b, SOURCE, 0, i, 1);
    }
    bench_run(&b, BENCH_S);
    assert_each_post_once();
    for (uint32_t i = 0; i < 10; i++) {
        cr_assert_eq(b.process[SOURCE].status[i], i == 0 ? -ETIMEDOUT : -ECONNABORTED);
    }
    cr_assert_eq(bench_counters(&b)->flushed, 9);
}

/* T33: the marker's completion came after all data before it, unsignalled data included. */
Test(sim_nic_double, a_marker_is_behind_all_data_of_its_lane, .init = start, .fini = stop)
{
    b.process_options[SINK].slow_place_per_million = 200000;
    b.process_options[SINK].place_max_ns = BENCH_MS;
    b.options.link.reorder_per_million = 100000;
    b.options.link.loss_per_million = 50000;
    b.process_options[SOURCE].retry_cnt = 6;
    bench_start(&b, 7);
    bench_open(&b, SINK, SOURCE, 0, 1);
    bench_run(&b, BENCH_S);
    for (uint32_t round = 1; round <= 10; round++) {
        for (uint32_t i = 0; i < 16; i++) {
            bench_post(&b, SOURCE, 0, i, 1);
        }
        bench_mark(&b, SOURCE, 0);
        while (b.process[SINK].markers < round) {
            bench_run(&b, BENCH_US);
        }
        cr_assert_eq(b.landed_bytes, round * 16 * BENCH_PAGE_BYTES);
    }
    cr_assert_eq(b.process[SOURCE].losses, 0);
}

/* A marker takes a receive. Without one the writer is told to wait, and gives up after rnr_retry. */
Test(sim_nic_double, a_marker_without_a_receive_waits_and_then_errs, .init = start,
     .fini = stop)
{
    b.process_options[SINK].receives = 1;
    up();
    b.process[SINK].is_stopped = true;
    bench_mark(&b, SOURCE, 0);
    uint32_t second = bench_mark(&b, SOURCE, 0);
    bench_run(&b, 2 * BENCH_MS);
    cr_assert_gt(bench_counters(&b)->rnr_naks, 0);
    b.process[SINK].is_stopped = false; /* takes the first, and posts its receive again */
    bench_run(&b, 5 * BENCH_MS);
    cr_assert_eq(b.process[SINK].markers, 2);
    cr_assert_eq(b.process[SOURCE].status[second], 0);
    b.process[SINK].is_stopped = true;
    bench_mark(&b, SOURCE, 0);
    uint32_t third = bench_mark(&b, SOURCE, 0);
    bench_run(&b, 50 * BENCH_MS);
    cr_assert_eq(b.process[SOURCE].status[third], -ENOBUFS);
    cr_assert_eq(b.process[SOURCE].lost_err, ENOBUFS);
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

/* T23: 323 duplicate requests, no late rewrite. */
Test(sim_nic_double, duplicates_are_acknowledged_and_not_executed, .init = start, .fini = stop)
{
    up();
    struct sim_link twice = quick;
    twice.duplicate_per_million = SIM_MILLION;
    link_both(twice);
    for (uint32_t i = 0; i < 32; i++) {
        bench_post(&b, SOURCE, 0, i, 1);
    }
    bench_run(&b, BENCH_S);
    assert_each_post_once();
    cr_assert_eq(b.landed_bytes, 32 * BENCH_PAGE_BYTES);
    cr_assert_geq(bench_counters(&b)->refused_psn, 32 * 4);
}

Test(sim_nic_double, lost_and_overtaking_packets_are_executed_once_and_in_order, .init = start,
     .fini = stop)
{
    up();
    struct sim_link bad = quick;
    bad.loss_per_million = 50000;
    bad.reorder_per_million = 50000;
    link_both(bad);
    for (uint32_t i = 0; i < 64; i++) {
        bench_post(&b, SOURCE, 0, i, 1);
    }
    bench_mark(&b, SOURCE, 0);
    bench_run(&b, 20 * BENCH_S);
    assert_each_post_once();
    cr_assert_eq(b.process[SOURCE].losses, 0);
    for (uint32_t i = 0; i < 64; i++) {
        cr_assert_eq(b.landed[SINK][i], BENCH_PAGE_BYTES);
        cr_assert_eq(b.landed_tag[SINK][i], i);
    }
    cr_assert_gt(bench_counters(&b)->packets_again, 0);
    cr_assert_gt(bench_counters(&b)->packets_lost, 0);
}

/* T36: a lane that stands still does not hold up another one. */
Test(sim_nic_double, lanes_do_not_wait_for_each_other, .init = start, .fini = stop)
{
    up();
    bench_connect(&b, SINK, SOURCE, 1, 1);
    bench_link(&b, SOURCE, SINK, slow);
    bench_post(&b, SOURCE, 0, 0, 1);
    bench_mark(&b, SOURCE, 0);
    bench_run(&b, BENCH_MS);
    bench_link(&b, SOURCE, SINK, quick);
    bench_post(&b, SOURCE, 1, 1, 1);
    bench_mark(&b, SOURCE, 1);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.process[SINK].markers, 1);
    cr_assert_eq(b.landed[SINK][1], BENCH_PAGE_BYTES);
    cr_assert_eq(b.landed[SINK][0], 0);
}

Test(sim_nic_double, what_a_stall_held_arrives_after_it, .init = start, .fini = stop)
{
    up();
    struct sim_link stalled = quick;
    stalled.is_stalled = true;
    bench_link(&b, SOURCE, SINK, stalled);
    bench_post(&b, SOURCE, 0, 0, 8);
    bench_mark(&b, SOURCE, 0);
    bench_run(&b, 50 * BENCH_MS);
    cr_assert_eq(b.landed_bytes, 0);
    bench_link(&b, SOURCE, SINK, quick);
    bench_run(&b, BENCH_MS);
    cr_assert_eq(b.landed_bytes, 8 * BENCH_PAGE_BYTES);
    cr_assert_eq(b.process[SINK].markers, 1);
    cr_assert_eq(b.process[SOURCE].losses, 0);
}

/* A refused post never existed: it has no completion and no packet. */
Test(sim_nic_double, a_refused_post_has_no_completion, .init = start, .fini = stop)
{
    b.process_options[SOURCE].refuse_post_per_million = SIM_MILLION;
    up();
    struct kvf_post post = {
        .kind = KVF_LANE_DATA, .page_count = 1, .payload_bytes = BENCH_PAGE_BYTES};
    cr_assert_eq(kvf_sim_ops.post(b.process[SOURCE].t, 0, &post), -ENOMEM);
    bench_run(&b, BENCH_S);
    bench_fence(&b, SOURCE, 0, 1);
    cr_assert_eq(b.process[SOURCE].completions, 0);
    cr_assert_eq(b.landed_bytes, 0);
}

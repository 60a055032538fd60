/* Many small histories in which everything fails, and what must hold in each: an accepted post completes once, nothing is
 * touched after a fence or a reap, no ghost lands, and nothing is left behind when all is over. */
#include <criterion/criterion.h>

#include "tests/sim/bench.h"
#include "tests/sim/fabric_internal.h"

#define SOURCE 0u
#define HOSTS 3u
#define STEPS 120u
#define SEEDS 2000u

static struct bench b;
static struct sim_random luck;
static uint32_t next_epoch;
static bool is_written_off[BENCH_POSTS]; /* its process was reaped */

static uint32_t below(uint32_t bound)
{
    return (uint32_t)sim_random_below(&luck, bound);
}

/* Lanes 0 to 3 lead from host 1 to the source, 4 to 7 from host 2. */
static uint32_t sink_of(uint32_t lane)
{
    return lane < BENCH_LANES / 2 ? 1 : 2;
}

static const struct sim_lane *lane_of(uint32_t host, uint32_t lane)
{
    const struct sim_transport *t = (const struct sim_transport *)(void *)b.process[host].t;
    return &t->lanes[lane];
}

static bool is_running(uint32_t host)
{
    return b.process[host].t != NULL && !b.process[host].is_stopped;
}

static void fence(uint32_t host, uint32_t lane)
{
    if (is_running(host) && lane_of(host, lane)->state != SIM_LANE_FREE) {
        bench_fence(&b, host, lane, lane_of(host, lane)->epoch);
    }
}

static void connect(uint32_t lane)
{
    uint32_t sink = sink_of(lane);
    if (is_running(sink) && is_running(SOURCE) && lane_of(sink, lane)->state == SIM_LANE_FREE) {
        bench_open(&b, sink, SOURCE, lane, ++next_epoch);
    }
}

static void post(uint32_t lane)
{
    for (uint32_t i = below(6); i > 0 && b.posts < BENCH_POSTS - 2; i--) {
        if (!is_running(SOURCE) || !kvf_sim_ops.can_post(b.process[SOURCE].t, lane)) {
            return;
        }
        if (below(4) == 0) {
            bench_mark(&b, SOURCE, lane);
        } else {
            uint32_t pages = 1 + below(4);
            bench_post(&b, SOURCE, lane, below(BENCH_PAGES - pages), pages);
        }
    }
}

static void start(uint32_t host)
{
    sim_fabric_host_up(b.fabric, host);
    bench_process_start(&b, host);
    b.process[host].is_stopped = false;
}

/* Dies, by itself or with its host, and comes back. */
static void crash(uint32_t host)
{
    if (b.process[host].t == NULL) {
        start(host);
        return;
    }
    if (below(3) == 0) {
        sim_fabric_host_down(b.fabric, host);
    } else {
        sim_fabric_kill(b.fabric, host);
        b.process[host].is_stopped = true;
        bench_run(&b, below(3) * BENCH_MS); /* its kernel goes on */
        sim_fabric_reap(b.fabric, host);
    }
    for (uint32_t i = 0; i < BENCH_LANES; i++) {
        if (lane_of(host, i)->state != SIM_LANE_FREE) {
            b.fenced_epoch[host][i] = lane_of(host, i)->epoch;
        }
    }
    for (uint32_t i = 0; host == SOURCE && i < b.posts; i++) {
        is_written_off[i] = is_written_off[i] || b.process[host].post_completions[i] == 0;
    }
    kvf_sim_ops.close(b.process[host].t);
    b.process[host].t = NULL;
    if (below(2) == 0) {
        start(host);
    }
}

static void worsen(void)
{
    struct sim_link link = {.delay_min_ns = BENCH_US,
                            .delay_max_ns = BENCH_US << below(14),
                            .gap_ns = below(3) == 0 ? below(50) * BENCH_US : 0,
                            .loss_per_million = below(3) == 0 ? below(200000) : 0,
                            .duplicate_per_million = below(3) == 0 ? below(200000) : 0,
                            .reorder_per_million = below(3) == 0 ? below(200000) : 0,
                            .is_cut = below(8) == 0,
                            .is_stalled = below(8) == 0};
    bench_link(&b, below(HOSTS), below(HOSTS), link);
}

static void freeze(uint32_t host)
{
    if (is_running(host)) {
        sim_fabric_freeze(b.fabric, host);
        b.process[host].is_stopped = true;
    } else if (b.process[host].t != NULL) {
        sim_fabric_thaw(b.fabric, host);
        b.process[host].is_stopped = false;
    }
}

static void step(void)
{
    uint32_t lane = below(BENCH_LANES);
    switch (below(16)) {
    case 0:
        worsen();
        break;
    case 1:
        fence(below(2) == 0 ? SOURCE : sink_of(lane), lane);
        break;
    case 2:
        if (below(4) == 0) {
            crash(below(HOSTS));
        }
        break;
    case 3:
        if (below(3) == 0) {
            freeze(below(HOSTS));
        }
        break;
    case 4:
        if (below(4) == 0 && is_running(below(HOSTS))) {
            sim_fabric_fence_hang(b.fabric, below(HOSTS),
                                  b.clock.now_ns + below(20) * BENCH_MS);
        }
        break;
    case 5:
        if (is_running(SOURCE) && below(3) == 0) {
            kvf_sim_ops.detach(b.process[SOURCE].t, lane, below(b.posts + 1));
        }
        break;
    case 6:
        sim_fabric_break_lane(b.fabric, below(HOSTS), lane);
        break;
    case 7:
    case 8:
    case 9:
        connect(lane);
        break;
    default:
        post(lane);
        break;
    }
    bench_run(&b, below(4) == 0 ? BENCH_US << below(15) : below(100) * BENCH_US);
    for (uint32_t i = 0; i < BENCH_LANES;
         i++) { /* as a core would: whatever is lost is fenced */
        for (uint32_t host = 0; host < HOSTS; host++) {
            if (is_running(host) && lane_of(host, i)->state == SIM_LANE_LOST && below(2) == 0) {
                fence(host, i);
            }
        }
    }
}

static void end_all(void)
{
    for (uint32_t host = 0; host < HOSTS; host++) {
        for (uint32_t to = 0; to < HOSTS; to++) {
            bench_link(&b, host, to, (struct sim_link){.delay_max_ns = BENCH_US});
        }
        sim_fabric_fence_hang(b.fabric, host, 0);
        if (b.process[host].t == NULL) {
            start(host);
        }
        sim_fabric_thaw(b.fabric, host);
        b.process[host].is_stopped = false;
    }
    bench_run(&b, 20 * BENCH_S);
    for (uint32_t lane = 0; lane < BENCH_LANES; lane++) {
        fence(sink_of(lane), lane);
        fence(SOURCE, lane);
    }
    bench_run(&b, 20 * BENCH_S);
}

static void assert_nothing_is_left(uint64_t seed)
{
    for (uint32_t i = 0; i < b.posts; i++) {
        uint32_t want = is_written_off[i] ? 0 : 1;
        cr_assert_eq(b.process[SOURCE].post_completions[i], want, "seed %lu: post %u: %u",
                     (unsigned long)seed, i, b.process[SOURCE].post_completions[i]);
    }
    cr_assert_eq(b.touches_after_end, 0, "seed %lu", (unsigned long)seed);
    cr_assert_eq(b.ghost_bytes, 0, "seed %lu", (unsigned long)seed);
    cr_assert_eq(b.clock.count, 0, "seed %lu: events go round for ever", (unsigned long)seed);
    cr_assert_eq(b.fabric->duct_free_count, b.fabric->duct_count, "seed %lu",
                 (unsigned long)seed);
    for (uint32_t host = 0; host < HOSTS; host++) {
        const struct sim_node *n = &b.fabric->nodes[host];
        for (uint32_t i = 0; i < n->qp_count; i++) {
            cr_assert_eq(n->qps[i]->state, SIM_QP_FREE, "seed %lu", (unsigned long)seed);
        }
        for (uint32_t lane = 0; lane < BENCH_LANES; lane++) {
            cr_assert_eq(lane_of(host, lane)->state, SIM_LANE_FREE, "seed %lu",
                         (unsigned long)seed);
        }
    }
    uint32_t packets = 0;
    uint32_t made = 0;
    for (const struct sim_packet *p = b.fabric->packet_free; p != NULL; p = p->next) {
        packets++;
    }
    for (const struct sim_chunk *c = b.fabric->chunks; c != NULL; c = c->next) {
        made += SIM_PACKETS_PER_CHUNK;
    }
    cr_assert_eq(packets, made, "seed %lu: packets are lost", (unsigned long)seed);
}

static struct sim_fabric_counters chaos(enum sim_kind kind, uint64_t seed)
{
    luck = sim_random_stream(seed, kind, 0);
    next_epoch = 0;
    for (uint32_t i = 0; i < BENCH_POSTS; i++) {
        is_written_off[i] = false;
    }
    bench_init(&b, kind, HOSTS);
    b.options.rto_ns = 5 * BENCH_MS;
    b.options.user_timeout_ns = 300 * BENCH_MS;
    for (uint32_t i = 0; i < HOSTS; i++) {
        b.process_options[i] = (struct sim_transport_options){
            .fence_max_ns = below(2) == 0 ? below(5) * BENCH_MS : 0,
            .send_buffer_bytes = 256u << below(6),
            .receive_buffer_bytes = 256u << below(6),
            .frame_bytes_max = 512,
            .short_receive_per_million = 200000,
            .sq_depth = 1 + below(20),
            .receives = 1 + below(8),
            .signal_every = 1 + below(20),
            .window_packets = 1 + below(64),
            .ack_every = 1 + below(8),
            .ack_timeout_ns = 2 * BENCH_MS,
            .completion_deadline_ns = 100 * BENCH_MS,
            .slow_place_per_million = 200000,
            .place_max_ns = BENCH_MS,
            .lose_cqe_per_million = below(4) == 0 ? 20000 : 0,
            .cq_depth = below(8) == 0 ? 1 + below(16) : 0};
    }
    bench_start(&b, seed);
    for (uint32_t i = 0; i < STEPS; i++) {
        step();
    }
    end_all();
    assert_nothing_is_left(seed);
    struct sim_fabric_counters counters = *bench_counters(&b);
    bench_stop(&b);
    return counters;
}

Test(sim_fabric, a_nic_in_chaos_keeps_the_contract)
{
    struct sim_fabric_counters sum = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim_fabric_counters c = chaos(SIM_NIC, seed);
        sum.landings_late += c.landings_late;
        sum.landed_unacked += c.landed_unacked;
        sum.refused_no_qp += c.refused_no_qp;
        sum.refused_psn += c.refused_psn;
        sum.refused_qp_state += c.refused_qp_state;
        sum.rnr_naks += c.rnr_naks;
        sum.retry_exceeded += c.retry_exceeded;
        sum.deadline_losses += c.deadline_losses;
        sum.cq_overruns += c.cq_overruns;
        sum.markers += c.markers;
    }
    /* A chaos in which nothing happened would pass as well. */
    cr_assert_gt(sum.landings_late, SEEDS);
    cr_assert_gt(sum.landed_unacked, SEEDS / 4);
    cr_assert_gt(sum.refused_no_qp, SEEDS);
    cr_assert_gt(sum.refused_psn, SEEDS);
    cr_assert_gt(sum.refused_qp_state, SEEDS / 4);
    cr_assert_gt(sum.rnr_naks, SEEDS / 4);
    cr_assert_gt(sum.retry_exceeded, SEEDS / 4);
    cr_assert_gt(sum.deadline_losses, 0);
    cr_assert_gt(sum.cq_overruns, 0);
    cr_assert_gt(sum.markers, SEEDS);
}

Test(sim_fabric, a_stream_in_chaos_keeps_the_contract)
{
    struct sim_fabric_counters sum = {0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct sim_fabric_counters c = chaos(SIM_STREAM, seed);
        sum.landings_late += c.landings_late;
        sum.segments_refused += c.segments_refused;
        sum.packets_lost += c.packets_lost;
        sum.markers += c.markers;
    }
    cr_assert_gt(sum.landings_late, SEEDS);
    cr_assert_gt(sum.segments_refused, SEEDS);
    cr_assert_gt(sum.packets_lost, SEEDS);
    cr_assert_gt(sum.markers, SEEDS);
}

/* Deadlines, in virtual time: what each one starts, that none of them proves anything, and that their sum
 * bounds every room that is not held by a living engine's own lease. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

static uint64_t wait_for(struct pair *p, const struct pair_room *r, uint64_t most_ms)
{
    uint64_t since_ns = p->now_ns;
    for (uint64_t ms = 0; ms < most_ms && !pair_is_drained(r); ms++) {
        pair_advance(p, PAIR_MS);
    }
    return (p->now_ns - since_ns) / PAIR_MS;
}

Test(core_time, a_room_whose_peer_never_opens_ends_at_the_bootstrap_deadline)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct pair_room *source = pair_source(p, 0, 8);
    pair_advance(p, 29999 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
    pair_advance(p, 1 * PAIR_MS);
    cr_assert(pair_is_drained(sink));
    cr_assert_eq(sink->view.reason, KVF_E_BOOTSTRAP_TIMEOUT);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_BOOTSTRAP_TIMEOUT);
    pair_finish(p);
}

Test(core_time, an_accepted_room_may_wait_for_its_pieces_as_long_as_it_likes)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_advance(p, 600000 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_time, a_peer_that_refuses_connections_fails_its_rooms_at_the_connect_deadline)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    p->daemons[1].is_unreachable = true;
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    uint64_t ms = wait_for(p, sink, 10000);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_UNREACHABLE);
    cr_assert_eq(sink->view.detail, ECONNREFUSED);
    cr_assert_geq(ms, 5000);
    cr_assert_leq(ms, 5100);
    /* And works as soon as it is there. */
    p->daemons[1].is_unreachable = false;
    struct pair_room *source = pair_source(p, 1, 8);
    struct pair_room *next = pair_sink(p, 0, 1, 8, 0, 4);
    pair_advance(p, 100 * PAIR_MS);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(next, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_time, a_peer_that_comes_within_the_connect_deadline_is_waited_for)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    p->daemons[1].is_unreachable = true;
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_advance(p, 4900 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    p->daemons[1].is_unreachable = false;
    struct pair_room *source = pair_source(p, 1, 7);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_advance(p, 100 * PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_time, a_peer_that_connects_and_never_says_hello_is_unreachable_too)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_make_raw(p, 1);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    uint64_t ms = wait_for(p, sink, 29000);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_UNREACHABLE);
    cr_assert_leq(ms, 5000 + 1250 + 100);
    pair_advance(p, 2000 * PAIR_MS);
    pair_finish(p);
}

Test(core_time, a_marker_that_does_not_come_is_followed_by_a_fence_at_the_cooperative_deadline)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(source, 0, 0, 32, true);
        pair_settle(p);
        uint64_t fences = pair_count(p, 0, KVF_COUNT_FENCES);
        pair_abort(sink);
        pair_advance(p, 499 * PAIR_MS);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), fences);
        cr_assert_eq(pair_is_drained(sink), placements[i] == KVF_PLACEMENT_CHECKED);
        pair_advance(p, 1 * PAIR_MS);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), fences + 1);
        pair_expect(sink, KVF_OUTCOME_FAILED,
                    placements[i] == KVF_PLACEMENT_CHECKED ? KVF_PROOF_REVOKED
                                                           : KVF_PROOF_FENCED,
                    KVF_E_ABORTED);
        pair_finish(p);
    }
}

Test(core_time, a_source_whose_peer_does_not_read_gets_its_pages_back_by_its_own_fence)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    pair_link(p, 0, 1)->hold_reset = 1;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    pair_link(p, 0, 1)->hold[PAIR_SINK] = true; /* the sink does not even hear of it */
    pair_abort(source);
    pair_advance(p, 499 * PAIR_MS);
    pair_expect_held(source);
    pair_advance(p, 1 * PAIR_MS);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
    pair_open_gates(p);
    pair_advance(p, 2000 * PAIR_MS);
    cr_assert(pair_is_drained(sink));
    pair_finish(p);
}

Test(core_time, a_fence_that_does_not_return_escalates_at_its_deadline_and_proves_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    p->is_bound_checked = false;
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    p->daemons[0].hold_fences = true;
    pair_abort(sink);
    pair_advance(p, 500 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_FENCING);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_ROOMS_FENCING), 1);
    pair_advance(p, 1999 * PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 0);
    pair_advance(p, 1 * PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 1);
    pair_advance(p, 60000 * PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 1);
    pair_expect_held(sink);
    pair_fences_return(p, 0);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    pair_finish(p);
}

/* The peer is silent in every way. Both sides end within detection + cooperative + fence, though each fence
 * takes as long as it may. */
static void silent_peer(uint8_t placement, uint32_t lanes, bool is_aborted, uint64_t fence_ms)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = placement, .lanes = lanes});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 0xff;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    p->daemons[1].is_frozen = true;
    p->daemons[0].hold_fences = true;
    if (is_aborted) {
        pair_abort(sink);
    }
    uint64_t bound_ns = kvf_core_bound_usual_ns(&p->config);
    uint64_t since_ns = p->now_ns;
    while (!pair_is_drained(sink) && p->now_ns - since_ns <= bound_ns) {
        pair_advance(p, PAIR_MS);
        /* Each fence returns so long after it was asked for. */
        for (uint32_t i = 0; i < PAIR_PEERS * KVF_LANES_MAX; i++) {
            const struct kvf_lane *lane = &p->daemons[0].core->lanes[i];
            if (lane->state == KVF_LANE_FENCING &&
                p->now_ns - lane->fence_since_ns >= fence_ms * PAIR_MS) {
                pair_fences_return(p, 0);
            }
        }
    }
    cr_assert(pair_is_drained(sink));
    cr_assert_leq(p->now_ns - since_ns, bound_ns);
    cr_assert_eq(p->daemons[0].escalations, 0);
    p->daemons[0].hold_fences = false;
    pair_fences_return(p, 0);
    p->is_bound_checked = false; /* the frozen one's own rooms were held by its freezing */
    pair_open_gates(p);
    pair_advance(p, 5000 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

Test(core_time, e4_a_frozen_peer_is_survived_within_the_bound)
{
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t lanes = 1; lanes <= 4; lanes += 3) {
            silent_peer(placements[i], lanes, true, 0);
            silent_peer(placements[i], lanes, false, 0);
            silent_peer(placements[i], lanes, true, 1990);
            silent_peer(placements[i], lanes, false, 1990);
        }
    }
}

/* One lane of two breaks and its fence takes nearly all its time; the other lane's marker never comes. */
Test(core_time, the_cooperative_deadline_of_healthy_lanes_runs_while_a_broken_one_is_fenced)
{
    struct pair *p = pair_new(&(struct pair_options){
        .has_no_regrants = true, .placement = KVF_PLACEMENT_POSTED, .lanes = 2});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 3;
    pair_link(p, 0, 1)->hold_reset = 3;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    p->daemons[0].hold_fences = true;
    uint64_t since_ns = p->now_ns;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
    pair_advance(p, 1900 * PAIR_MS);
    pair_fences_return(p, 0);
    p->daemons[0].hold_fences = false;
    while (!pair_is_drained(sink) && p->now_ns - since_ns < 10000 * PAIR_MS) {
        pair_advance(p, PAIR_MS);
    }
    cr_assert_leq(p->now_ns - since_ns, kvf_core_bound_usual_ns(&p->config));
    p->is_bound_checked = false;
    pair_open_gates(p);
    pair_advance(p, 5000 * PAIR_MS);
    pair_finish(p);
}

Test(core_time, liveness_asks_the_peers_loop_and_not_its_kernel)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    pair_advance(p, 60000 * PAIR_MS); /* idle for long: nobody is lost */
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PEERS_UP), 1);
    p->daemons[1].is_frozen = true; /* its kernel still takes every frame */
    pair_advance(p, 1249 * PAIR_MS - 417 * PAIR_MS);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
    pair_advance(p, 420 * PAIR_MS);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 1);
    pair_open_gates(p);
    pair_advance(p, 3000 * PAIR_MS);
    pair_finish(p);
}

Test(core_time, a_slow_lane_with_a_living_peer_is_left_alone)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_advance(p, 120000 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_time, a_lane_that_is_never_confirmed_is_tried_again)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_link(p, 0, 1)->hold_lane_hello = 1;
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_advance(p, 5100 * PAIR_MS);
    cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
    pair_link(p, 0, 1)->hold_lane_hello = 0;
    pair_advance(p, 5100 * PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_time, the_bound_follows_the_configuration)
{
    struct kvf_core_config config = {
        .liveness_ns = 3, .cooperative_ns = 40, .fence_ns = 500, .bootstrap_ns = 6000};
    cr_assert_eq(kvf_core_bound_usual_ns(&config), 543);
}

/* E9: durations and epochs are compared, never clocks. */
Test(core_time, e9_peers_whose_clocks_differ_by_hours_behave_as_with_equal_ones)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        p->daemons[1].clock_ns = UINT64_C(36000000000000);
        pair_warm(p, 0, 1);
        pair_warm(p, 1, 0);
        pair_advance(p, 10000 * PAIR_MS);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(source, 0, 0, 32, true);
        pair_settle(p);
        pair_abort(sink);
        pair_advance(p, 500 * PAIR_MS);
        cr_assert(pair_is_drained(sink));
        cr_assert(pair_is_drained(source));
        pair_finish(p);
    }
}

/* A sink may come long after its source's room has ended: its GRANT waited for credits. Then it is told so
 * at once, however many other rooms ended meanwhile. */
Test(core_time, a_sink_that_comes_late_is_told_at_once_that_its_source_has_ended)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    for (uint64_t key = 0; key < 64; key++) {
        pair_abort(pair_source(p, 1, 50000 + key));
    }
    for (uint64_t i = 0; i < 6000; i++) {
        pair_abort(pair_source(p, 1, 100000 + i));
        if (i % 16 == 0) {
            pair_settle(p);
        }
    }
    pair_settle(p);
    for (uint64_t key = 0; key < 64; key++) {
        struct pair_room *sink = pair_sink(p, 0, 1, 50000 + key, 0, 1);
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ROOM_GONE);
    }
    pair_finish(p);
}

Test(core_time, rooms_that_ended_unmet_outlast_any_number_that_were_met)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    kvf_tombstone_put(core, 7, 7, KVF_TOMB_ENDED, false);
    kvf_tombstone_put(core, 8, 8, KVF_TOMB_ABORTED, false);
    for (uint64_t i = 0; i < 4u * KVF_TOMBSTONES; i++) {
        kvf_tombstone_put(core, 1000 + i, i, KVF_TOMB_ENDED, true);
    }
    cr_assert_eq(kvf_tombstone_get(core, 7, 7), KVF_TOMB_ENDED);
    cr_assert_eq(kvf_tombstone_get(core, 8, 8), KVF_TOMB_ABORTED);
    for (uint64_t i = 0; i < 4u * KVF_TOMBSTONES; i++) {
        kvf_tombstone_put(core, 1000 + i, i + 1, KVF_TOMB_ENDED, false);
    }
    cr_assert_eq(kvf_tombstone_get(core, 7, 7), KVF_TOMB_NONE,
                 "the oldest goes, the table does not grow");
    cr_assert_eq(kvf_tombstone_get(core, 1000 + 4u * KVF_TOMBSTONES - 1, 4u * KVF_TOMBSTONES),
                 KVF_TOMB_ENDED);
    kvf_tombstone_put(core, 9, 9, KVF_TOMB_ABORTED, false);
    kvf_tombstone_put(core, 9, 9, KVF_TOMB_ENDED, true);
    cr_assert_eq(kvf_tombstone_get(core, 9, 9), KVF_TOMB_ENDED, "one place for one key");
    pair_finish(p);
}

/* New grants after a fence: a fence kills grants, not rooms. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"
#include "tests/core/pair.h"

#define POSTED (&(struct pair_options){.placement = KVF_PLACEMENT_POSTED})
#define ROOMS 8u

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

static void expect_success(struct pair_room *sink, struct pair_room *source)
{
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
}

/* A room of 16 pages whose lane is held half way. */
struct half_way {
    struct pair *p;
    struct pair_room *source;
    struct pair_room *sink;
};

static struct half_way start(const struct pair_options *options)
{
    struct half_way w = {.p = pair_new(options)};
    pair_warm(w.p, 0, 1);
    w.source = pair_source(w.p, 1, 7);
    w.sink = pair_sink(w.p, 0, 1, 7, 0, 16);
    pair_settle(w.p);
    pair_link(w.p, 0, 1)->hold_hand = 0xff;
    (void)pair_submit(w.source, 0, 0, 16, true);
    pair_settle(w.p);
    (void)pair_hand(w.p, pair_stream(w.p, 0, 1, 0), 5);
    pair_settle(w.p);
    return w;
}

static void let_go(struct half_way *w)
{
    pair_link(w->p, 0, 1)->hold_hand = 0;
    pair_advance(w->p, 100 * PAIR_MS);
}

static void cut(struct half_way *w, int side)
{
    pair_stream_lose(w->p, pair_stream(w->p, 0, 1, 0), side);
    pair_settle(w->p);
}

Test(regrant, h04_eight_co_rooms_of_a_fenced_lane_all_end_in_success_under_new_grants)
{
    for (uint32_t kind = 0; kind < 4; kind++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[kind % 2],
                                                         .post_bytes = PAIR_BYTES(1)});
        pair_warm(p, 0, 1);
        struct pair_room *sources[ROOMS];
        struct pair_room *sinks[ROOMS];
        for (uint32_t i = 0; i < ROOMS; i++) {
            sources[i] = pair_source(p, 1, 10 + i);
            sinks[i] = pair_sink(p, 0, 1, 10 + i, 20 * i, 20);
        }
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        for (uint32_t i = 0; i < ROOMS; i++) {
            (void)pair_submit(sources[i], 0, 20 * i, 20, true);
        }
        pair_settle(p);
        struct pair_stream *s = pair_stream(p, 0, 1, 0);
        cr_assert_eq(pair_hand(p, s, 21), 21);
        cr_assert_eq(pair_land(p, s, 19), 19); /* a frame half sent, one half landed */
        uint64_t placed = pair_count(p, 0, KVF_COUNT_BYTES_PLACED);
        pair_stream_lose(p, s, kind / 2 == 0 ? PAIR_SINK : PAIR_SOURCE);
        pair_link(p, 0, 1)->hold_hand = 0;
        pair_settle(p);
        for (uint32_t i = 0; i < ROOMS; i++) {
            cr_assert_eq(pair_phase(sinks[i]), KVF_PHASE_OPEN);
            cr_assert_eq(pair_phase(sources[i]), KVF_PHASE_OPEN);
        }
        pair_advance(p, 100 * PAIR_MS);
        for (uint32_t i = 0; i < ROOMS; i++) {
            expect_success(sinks[i], sources[i]);
            cr_assert_eq(sinks[i]->view.placed_bytes,
                         PAIR_BYTES(20)); /* of the new grant alone */
            cr_assert_eq(sources[i]->view.placed_bytes, PAIR_BYTES(20));
            cr_assert_eq(sources[i]->view.total_bytes, PAIR_BYTES(20));
        }
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), ROOMS);
        cr_assert_geq(pair_count(p, 0, KVF_COUNT_BYTES_PLACED) - placed,
                      ROOMS * PAIR_BYTES(20)); /* everything came again */
        pair_finish(p);
    }
}

Test(regrant, what_the_engines_see_never_goes_back)
{
    struct half_way w = start(POSTED);
    cr_assert_eq(pair_poll(w.sink), KVF_STATE_TRANSFERRING);
    cr_assert_eq(pair_poll(w.source), KVF_STATE_TRANSFERRING);
    cut(&w, PAIR_SINK);
    cr_assert_eq(pair_poll(w.sink), KVF_STATE_TRANSFERRING);
    cr_assert_eq(pair_poll(w.source), KVF_STATE_TRANSFERRING);
    let_go(&w);
    expect_success(w.sink, w.source);
    pair_finish(w.p);
    /* Granted, nothing submitted: waiting for input, and again after the loss. */
    struct pair *p = pair_new(POSTED);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(pair_poll(source), KVF_STATE_WAITING_FOR_INPUT);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_advance(p, 100 * PAIR_MS);
    expect_success(sink, source);
    pair_finish(p);
}

Test(regrant, a_room_aborted_while_its_new_grant_is_queued_is_drained_at_once_and_its_peer_told)
{
    for (size_t i = 0; i < 2; i++) {
        struct half_way w = start(&(struct pair_options){.placement = placements[i]});
        pair_link(w.p, 0, 1)->hold_lane_hello = 1; /* no lane comes back */
        cut(&w, PAIR_SINK);
        cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_REGRANTS), 1);
        cr_assert_eq(pair_phase(w.source), KVF_PHASE_OPEN);
        pair_abort(w.sink);
        pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
        pair_settle(w.p);
        pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_LANE_LOST);
        cr_assert_eq(pair_gauge(w.p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        cr_assert_eq(pair_gauge(w.p, 1, KVF_GAUGE_GRANTS_IN), 0);
        pair_finish(w.p);
    }
}

/* At every moment between the loss and the new success: the abort ends both rooms, and with proof. */
Test(regrant, an_abort_at_any_moment_of_a_regrant_ends_both_rooms)
{
    for (uint32_t kind = 0; kind < 8; kind++) {
        for (uint32_t moves = 0;; moves++) {
            struct half_way w =
                start(&(struct pair_options){.placement = placements[kind % 2], .lanes = 2});
            pair_stream_lose(w.p, pair_stream(w.p, 0, 1, 0), (int)(kind / 2 % 2));
            pair_link(w.p, 0, 1)->hold_hand = 0;
            uint32_t made = 0;
            while (made < moves && (pair_move_one(w.p) || pair_is_drained(w.sink) == false)) {
                if (!pair_move_one(w.p)) {
                    pair_advance(w.p, PAIR_MS);
                }
                made++;
            }
            bool was_over = pair_is_drained(w.sink);
            pair_abort(kind / 4 == 0 ? w.sink : w.source);
            pair_advance(w.p, 3000 * PAIR_MS);
            cr_assert(pair_is_drained(w.sink), "kind %u, after %u moves", kind, moves);
            cr_assert(pair_is_drained(w.source), "kind %u, after %u moves", kind, moves);
            cr_assert_eq(pair_gauge(w.p, 0, KVF_GAUGE_GRANTS_OUT), 0);
            pair_finish(w.p);
            if (was_over || moves > 400) {
                cr_assert_lt(moves, 400);
                break;
            }
        }
    }
}

Test(regrant, a_room_fenced_more_often_than_its_bound_fails_with_its_lane)
{
    for (int side = 0; side < 2; side++) {
        struct half_way w = start(POSTED);
        for (uint32_t i = 0; i < 3; i++) {
            cut(&w, side);
            pair_advance(w.p, 50 * PAIR_MS);
            cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_REGRANTS), i + 1);
            cr_assert_eq(pair_phase(w.sink), KVF_PHASE_OPEN);
        }
        cut(&w, side);
        pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
        cr_assert(pair_is_drained(w.source));
        cr_assert_eq(pair_outcome(w.source), KVF_OUTCOME_FAILED);
        cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_REGRANTS), 3);
        let_go(&w);
        pair_warm(w.p, 0, 1);
        pair_finish(w.p);
    }
}

/* The other lane is healthy and slow: its marker is the proof, and no fence is needed for it. */
Test(regrant, a_striped_grant_is_aborted_on_the_lane_that_lives_and_proven_there_by_its_marker)
{
    for (size_t i = 0; i < 2; i++) {
        struct half_way w =
            start(&(struct pair_options){.placement = placements[i], .lanes = 2});
        uint32_t epoch = pair_stream(w.p, 0, 1, 1)->epoch;
        uint64_t sent = pair_count(w.p, 0, KVF_COUNT_GRANTS_SENT);
        cut(&w, PAIR_SINK);
        pair_advance(w.p, 100 * PAIR_MS);
        cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_GRANTS_SENT),
                     sent); /* lane 1 may still write */
        cr_assert_eq(pair_unproven(w.sink), 1);
        let_go(&w);
        expect_success(w.sink, w.source);
        cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_FENCES), 1);
        cr_assert_eq(pair_stream(w.p, 0, 1, 1)->epoch, epoch);
        pair_finish(w.p);
    }
}

/* ... and if its marker does not come, the cooperative deadline orders its fence as for any abort. */
Test(regrant,
     a_lane_that_owes_the_marker_of_an_old_grant_is_fenced_after_the_cooperative_deadline)
{
    struct half_way w =
        start(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .lanes = 2});
    cut(&w, PAIR_SINK);
    pair_advance(w.p, 499 * PAIR_MS);
    cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_FENCES), 1);
    pair_advance(w.p, PAIR_MS);
    cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_FENCES), 2);
    let_go(&w);
    expect_success(w.sink, w.source);
    pair_finish(w.p);
}

Test(regrant,
     a_room_that_waits_for_a_new_grant_in_vain_fails_at_a_bootstrap_deadline_of_its_own)
{
    struct half_way w = start(POSTED);
    pair_advance(w.p, 20000 * PAIR_MS); /* long since granted: the first deadline is over */
    pair_link(w.p, 0, 1)->hold_lane_hello = 1;
    cut(&w, PAIR_SINK);
    pair_advance(w.p, 29990 * PAIR_MS);
    cr_assert_eq(pair_phase(w.sink), KVF_PHASE_OPEN);
    pair_advance(w.p, 20 * PAIR_MS);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
    pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_LANE_LOST);
    pair_finish(w.p);
}

/* The sink's daemon lives, and never comes again: the source keeps its pages for one bootstrap deadline. */
Test(regrant, a_source_whose_sink_does_not_come_again_lets_its_pages_go_at_its_own_deadline)
{
    struct half_way w = start(POSTED);
    w.p->daemons[1].core->config.bootstrap_ns = 700 * PAIR_MS; /* before it counts as dead */
    pair_link(w.p, 0, 1)->hold[PAIR_SOURCE] = true;
    pair_link(w.p, 0, 1)->hold_reset = 1;
    pair_stream_lose(w.p, pair_stream(w.p, 0, 1, 0), PAIR_SOURCE);
    pair_advance(w.p, 690 * PAIR_MS);
    cr_assert_eq(pair_phase(w.source), KVF_PHASE_OPEN);
    pair_advance(w.p, 20 * PAIR_MS);
    pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_LANE_LOST);
    pair_link(w.p, 0, 1)->hold[PAIR_SOURCE] = false;
    pair_link(w.p, 0, 1)->hold_reset = 0;
    let_go(&w);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_ROOM_GONE);
    pair_finish(w.p);
}

/* Until the one answer has come nobody knows whether the source holds a place for this sink. */
Test(regrant, h28_a_new_grant_waits_for_the_answer_to_the_old_one)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        pair_settle(p);
        pair_link(p, 0, 1)->hold[PAIR_SINK] = true;
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        pair_settle(p);
        cr_assert_eq(pair_poll(source), KVF_STATE_WAITING_FOR_INPUT);
        pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 0);
        pair_link(p, 0, 1)->hold[PAIR_SINK] = false;
        (void)pair_submit(source, 0, 0, 4, true);
        pair_advance(p, 100 * PAIR_MS);
        expect_success(sink, source);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 1);
        pair_finish(p);
    }
}

/* ---- fan-out, fan-in -------------------------------------------------------------------------------- */

struct fan_out {
    struct pair *p;
    struct pair_room *source; /* at daemon 0 */
    struct pair_room *sinks[2];
};

static struct fan_out fan_out(uint32_t sink_count)
{
    struct fan_out f = {
        .p = pair_new(&(struct pair_options){.daemons = 4, .placement = KVF_PLACEMENT_POSTED})};
    f.source =
        pair_open_source(f.p, 0, &(struct pair_open){.key = 7, .sink_count = sink_count});
    for (uint32_t d = 1; d < 3; d++) {
        pair_warm(f.p, d, 0);
        f.sinks[d - 1] = pair_sink(f.p, d, 0, 7, 0, 16);
    }
    pair_settle(f.p);
    pair_link(f.p, 1, 0)->hold_hand = 1;
    pair_link(f.p, 2, 0)->hold_hand = 1;
    (void)pair_submit(f.source, 0, 0, 16, true);
    pair_settle(f.p);
    return f;
}

Test(regrant, of_several_sinks_only_the_one_whose_lane_broke_is_served_again)
{
    struct fan_out f = fan_out(2);
    uint64_t second = pair_count(f.p, 2, KVF_COUNT_BYTES_PLACED);
    (void)pair_hand(f.p, pair_stream(f.p, 1, 0, 0), 7);
    (void)pair_hand(f.p, pair_stream(f.p, 2, 0, 0), 7);
    pair_settle(f.p);
    pair_stream_lose(f.p, pair_stream(f.p, 1, 0, 0), PAIR_SINK);
    pair_link(f.p, 2, 0)->hold_hand = 0;
    pair_settle(f.p);
    pair_expect(f.sinks[1], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_eq(pair_count(f.p, 2, KVF_COUNT_BYTES_PLACED) - second, PAIR_BYTES(16));
    cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN); /* its pieces are kept for the other */
    pair_link(f.p, 1, 0)->hold_hand = 0;
    pair_advance(f.p, 100 * PAIR_MS);
    expect_success(f.sinks[0], f.source);
    cr_assert_eq(pair_count(f.p, 1, KVF_COUNT_REGRANTS), 1);
    cr_assert_eq(pair_count(f.p, 2, KVF_COUNT_REGRANTS), 0);
    pair_finish(f.p);
}

/* The sink that lost its lane gives up instead of coming again: the source waits for the others alone. */
Test(regrant, a_sink_that_gives_up_between_two_grants_is_not_waited_for)
{
    struct fan_out f = fan_out(2);
    pair_link(f.p, 1, 0)->hold_lane_hello = 1;
    pair_stream_lose(f.p, pair_stream(f.p, 1, 0, 0), PAIR_SOURCE);
    pair_settle(f.p);
    pair_abort(f.sinks[0]);
    pair_settle(f.p);
    cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN);
    pair_link(f.p, 2, 0)->hold_hand = 0;
    pair_settle(f.p);
    expect_success(f.sinks[1], f.source);
    pair_finish(f.p);
}

/* A's END was acknowledged and lost; it asks anew before C has come. C's place is C's. */
Test(regrant, h05_a_sink_that_was_served_is_told_gone_and_takes_no_others_place)
{
    struct fan_out f = fan_out(3);
    struct pair_link *link = pair_link(f.p, 1, 0);
    link->hold_deliver = 1;
    link->hold_hand = 0;
    pair_settle(f.p); /* the kernel has everything of A, and the network loses it */
    pair_stream_lose(f.p, pair_stream(f.p, 1, 0, 0), PAIR_SINK);
    link->hold_deliver = 0;
    pair_advance(f.p, 100 * PAIR_MS);
    pair_expect(f.sinks[0], KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_ROOM_GONE);
    struct pair_room *third = pair_sink(f.p, 3, 0, 7, 0, 16);
    pair_link(f.p, 2, 0)->hold_hand = 0;
    pair_settle(f.p);
    pair_expect(f.sinks[1], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    expect_success(third, f.source);
    pair_finish(f.p);
}

Test(regrant, of_several_writers_only_the_one_whose_lane_broke_is_granted_anew)
{
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 3, .placement = KVF_PLACEMENT_POSTED});
    struct kvf_writer_shm writers[2] = {{.addr = pair_addr(1), .start = 0, .count = 6},
                                        {.addr = pair_addr(2), .start = 6, .count = 10}};
    struct kvf_run_shm run = {PAIR_R0, 0, 16};
    struct pair_room *sources[3] = {NULL, pair_source(p, 1, 7), pair_source(p, 2, 7)};
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = writers, .writer_count = 2, .runs = &run, .run_count = 1});
    pair_settle(p);
    (void)pair_submit(sources[1], 0, 0, 6, true);
    pair_link(p, 0, 2)->hold_hand = 1;
    (void)pair_submit(sources[2], 0, 0, 10, true);
    pair_settle(p);
    (void)pair_hand(p, pair_stream(p, 0, 2, 0), 5);
    pair_settle(p);
    cr_assert_eq(sources[1]->drained_count,
                 1); /* its part has landed, and is handed back there */
    pair_stream_lose(p, pair_stream(p, 0, 2, 0), PAIR_SOURCE);
    pair_link(p, 0, 2)->hold_hand = 0;
    pair_advance(p, 100 * PAIR_MS);
    expect_success(sink, sources[2]);
    cr_assert_eq(sink->view.placed_bytes, PAIR_BYTES(16));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 1);
    pair_finish(p);
}

/* ---- what a regrant must not survive ---------------------------------------------------------------- */

Test(regrant, a_connection_lost_between_two_grants_fails_both_rooms)
{
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct half_way w = start(&(struct pair_options){.placement = placements[kind]});
        pair_link(w.p, 0, 1)->hold_lane_hello = 1;
        cut(&w, PAIR_SINK);
        pair_conn_cut(w.p, pair_conn(w.p, 0, 1));
        pair_settle(w.p);
        pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_LOST);
        pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_PEER_LOST);
        pair_link(w.p, 0, 1)->hold_lane_hello = 0;
        let_go(&w);
        pair_warm(w.p, 0, 1);
        pair_finish(w.p);
    }
}

Test(regrant, another_incarnation_is_granted_nothing_of_an_old_room)
{
    struct half_way w = start(POSTED);
    cut(&w, PAIR_SINK);
    pair_kill(w.p, 1);
    pair_revive(w.p, 1, true);
    w.source = pair_source(w.p, 1, 7); /* of the same key, even */
    let_go(&w);
    cr_assert(pair_is_drained(w.sink));
    cr_assert_eq(w.sink->view.reason, KVF_E_PEER_LOST);
    cr_assert_eq(pair_count(w.p, 1, KVF_COUNT_POSTS), 0);
    pair_abort(w.source);
    pair_finish(w.p);
}

/* ---- DRAIN without a reason -------------------------------------------------------------------------- */

Test(regrant, a_drain_of_an_open_room_waits_for_its_reason)
{
    struct half_way w = {.p = pair_new(POSTED)};
    w.source = pair_source(w.p, 1, 7);
    w.sink = pair_sink(w.p, 0, 1, 7, 0, 16);
    pair_settle(w.p);
    (void)pair_submit(w.source, 0, 0, 8, false);
    pair_settle(w.p);
    struct pair_conn *c = pair_conn(w.p, 0, 1);
    c->hold[PAIR_SINK] = true;
    pair_abort_with(w.source, KVF_E_ENGINE_GONE);
    pair_settle(w.p);
    cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_MARKERS_DRAIN), 1);
    cr_assert_eq(pair_phase(w.sink), KVF_PHASE_OPEN);
    c->hold[PAIR_SINK] = false;
    pair_settle(w.p);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_ABORTED);
    pair_finish(w.p);
}

Test(regrant,
     a_source_that_drains_and_says_nothing_fails_the_room_after_the_cooperative_deadline)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
    for (uint32_t lane = 0; lane < 2; lane++) {
        cr_assert_eq(pair_raw_marker(p, pair_stream(p, 0, 1, lane), g.handle, KVF_LANE_DRAIN),
                     0);
    }
    pair_advance(p, 499 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_advance(p, PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_ABORTED);
    hostile_finish(p);
}

/* ---- frames of the old grant -------------------------------------------------------------------------- */

Test(regrant, a_frame_or_marker_with_the_old_handle_is_nobodys)
{
    struct half_way w = start(POSTED);
    struct pair_stream *s = pair_stream(w.p, 0, 1, 0);
    uint32_t handle = s->head->post.handle;
    cut(&w, PAIR_SINK);
    pair_advance(w.p, 100 * PAIR_MS);
    struct kvf_core *core = w.p->daemons[0].core;
    struct pair_stream *now = pair_stream(w.p, 0, 1, 0);
    struct kvf_placement_at at;
    uint32_t next = now->head->post.handle;
    cr_assert_neq(next, handle);
    cr_assert_eq(next & 0xffffu, handle & 0xffffu); /* the same place in the table */
    uint32_t lane = now->lane[PAIR_SINK];
    cr_assert_eq(kvf_core_place(core, lane, now->epoch, handle, 0, 1, &at), -EPROTO);
    cr_assert_eq(kvf_core_marker(core, w.p->now_ns, lane, now->epoch, handle, KVF_LANE_END),
                 -EPROTO);
    cr_assert_eq(kvf_core_place(core, lane, now->epoch, next, 0, 1, &at), 0);
    let_go(&w);
    expect_success(w.sink, w.source);
    pair_finish(w.p);
}

/* What the old grant placed does not make the new one whole: a source that sends the rest alone is short. */
Test(regrant, bytes_of_the_old_grant_do_not_count_for_the_new_one)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
    cr_assert_eq(pair_raw_data(p, pair_stream(p, 0, 1, 0), g.handle, 0, 3), 0);
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
    struct pair_stream *s = pair_stream(p, 0, 1, 1);
    cr_assert_eq(pair_raw_marker(p, s, g.handle, KVF_LANE_DRAIN), 0);
    pair_settle(p);
    struct kvf_wire_grant again = hostile_read_grant(&h); /* over the lane that is left */
    cr_assert_eq(again.past_nonce, g.nonce);
    cr_assert_eq(again.lane_mask, 2);
    hostile_send_simple(&h, KVF_WIRE_ACCEPT, again.nonce);
    cr_assert_eq(pair_raw_data(p, s, again.handle, 3, 1), 0);
    cr_assert_eq(pair_raw_marker(p, s, again.handle, KVF_LANE_END), 0);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_SHORT);
    cr_assert_eq(sink->view.word & KVF_WORD_VISIBLE, 0);
    hostile_finish(p);
}

/* The orders of events of HISTORIES.md that the core alone can meet, continued: from number 24. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define POSTED (&(struct pair_options){.placement = KVF_PLACEMENT_POSTED})
#define TWO_LANES (&(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .lanes = 2})

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

static uint32_t out_handle(struct pair *p, uint32_t daemon)
{
    const struct kvf_core *core = p->daemons[daemon].core;
    for (uint32_t i = 0; i < core->grant_fresh; i++) {
        if (core->grants[i].state != KVF_GRANT_FREE) {
            return kvf_grant_handle(i, &core->grants[i]);
        }
    }
    return KVF_NONE;
}

static void expect_success(struct pair_room *sink, struct pair_room *source)
{
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
}

Test(history, h24_last_is_said_but_page_12_was_never_covered)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
        pair_settle(p);
        cr_assert_eq(pair_submit(source, 0, 0, 12, false), 0);
        pair_settle(p);
        cr_assert_eq(pair_submit(source, 13, 13, 3, true), 0);
        cr_assert_eq(source->view.reason, KVF_E_PIECE_HOLE);
        pair_settle(p);
        cr_assert_eq(pair_outcome(source), KVF_OUTCOME_FAILED);
        cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END), 0);
        cr_assert_eq(sink->view.word & KVF_WORD_VISIBLE, 0);
        /* The same when the pieces were there before the grant. */
        struct pair_room *before = pair_source(p, 1, 8);
        (void)pair_submit(before, 0, 20, 3, false);
        (void)pair_submit(before, 4, 24, 4, true);
        struct pair_room *sink2 = pair_sink(p, 0, 1, 8, 20, 8);
        pair_settle(p);
        pair_expect(before, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PIECE_HOLE);
        cr_assert_eq(pair_outcome(sink2), KVF_OUTCOME_FAILED);
        pair_finish(p);
    }
}

Test(history, h25_the_outcome_is_fixed_at_close_on_each_side_alone)
{
    for (uint32_t order = 0; order < 2; order++) {
        struct pair *p = pair_new(POSTED);
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_deliver = 1;
        (void)pair_submit(source, 0, 0, 4, true);
        pair_settle(p);
        pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        if (order == 0) { /* the abort is first: Failed, though everything lands */
            pair_abort(sink);
            pair_link(p, 0, 1)->hold_deliver = 0;
            pair_settle(p);
            pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_LANDED, KVF_E_ABORTED);
        } else { /* the marker is first: the abort is stale */
            pair_link(p, 0, 1)->hold_deliver = 0;
            pair_settle(p);
            pair_abort(sink);
            pair_settle(p);
            pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        }
        pair_abort(source);
        pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_finish(p);
    }
}

/* More than one socket buffer of aborts and of their answers. */
#define STORM 2400u

Test(history, h26_a_storm_of_aborts_overflows_nothing_and_fails_no_healthy_peer)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i],
                                                         .rooms = STORM + 8,
                                                         .grants_max = 2 * STORM,
                                                         .lane_rooms = STORM + 8,
                                                         .parked_max = STORM,
                                                         .pages = 4 * STORM + 8,
                                                         .runs_max = 16384});
        pair_warm(p, 0, 1);
        static struct pair_room *sinks[STORM];
        for (uint32_t k = 0; k < STORM; k++) {
            sinks[k] = pair_sink(p, 0, 1, 10 + k, 4 * k, 4);
            if (k % 2 == 0) {
                (void)pair_source(p, 1, 10 + k);
            }
        }
        pair_settle(p);
        pair_link(p, 0, 1)->hold_write[PAIR_SINK] = true; /* neither socket takes anything */
        pair_link(p, 0, 1)->hold_write[PAIR_SOURCE] = true;
        for (uint32_t k = 0; k < STORM; k++) {
            pair_abort(sinks[k]);
        }
        pair_settle(p);
        pair_link(p, 0, 1)->hold_write[PAIR_SINK] = false;
        pair_settle(p);
        pair_link(p, 0, 1)->hold_write[PAIR_SOURCE] = false;
        pair_settle(p);
        for (uint32_t k = 0; k < STORM; k++) {
            cr_assert(pair_is_drained(sinks[k]));
        }
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
        cr_assert_eq(pair_count(p, 1, KVF_COUNT_PEERS_LOST), 0);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
        pair_warm(p, 0, 1);
        pair_finish(p);
    }
}

Test(history, h27_a_frozen_writer_thaws_after_its_grant_was_fenced_and_its_pages_reused)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p =
            pair_new(&(struct pair_options){.daemons = 3, .placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(source, 0, 0, 32, true);
        pair_settle(p);
        struct pair_stream *s = pair_stream(p, 0, 1, 0);
        (void)pair_hand(p, s, 5); /* these are in the network, more are queued behind */
        s->hold_deliver = true;
        p->daemons[1].is_frozen = true;
        pair_abort(sink);
        pair_advance(p, kvf_core_bound_usual_ns(&p->config));
        cr_assert(pair_is_drained(sink));
        /* The pages have their next tenant, from another daemon, before the thaw. */
        struct pair_room *other = pair_source(p, 2, 8);
        struct pair_room *next = pair_sink(p, 0, 2, 8, 0, 32);
        pair_settle(p);
        (void)pair_submit(other, 0, 0, 32, true);
        p->daemons[1].is_frozen = false;
        pair_link(p, 0, 1)->hold_hand = 0;
        s->hold_deliver = false;
        pair_advance(p, 100 * PAIR_MS);
        expect_success(next, other);
        cr_assert(pair_is_drained(source));
        cr_assert_eq(pair_outcome(source), KVF_OUTCOME_FAILED);
        pair_finish(p);
    }
}

Test(history, h28_a_grant_that_was_never_accepted_costs_neither_handle_nor_credit_nor_lane)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        pair_link(p, 0, 1)->hold[PAIR_SOURCE] = true;
        struct pair_room *unread = pair_sink(p, 0, 1, 7, 0, 8);
        pair_settle(p);
        pair_abort(unread); /* GRANT and ABORT will be read together */
        pair_settle(p);
        pair_link(p, 0, 1)->hold[PAIR_SOURCE] = false;
        struct pair_room *parked = pair_sink(p, 0, 1, 8, 8, 8);
        pair_settle(p);
        cr_assert(pair_is_drained(unread));
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
        pair_abort(parked);
        pair_advance(p, 3000 * PAIR_MS);
        cr_assert(pair_is_drained(parked));
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_DECLINED), 2);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        cr_assert_eq(p->daemons[0].core->lanes[0].credits_out, 0);
        pair_finish(p);
    }
}

Test(history, h28_a_parked_grant_whose_lane_broke_is_answered_too)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
        pair_settle(p);
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
        pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
        pair_settle(p);
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 0);
        cr_assert_eq(p->daemons[0].core->lanes[0].credits_out, 0);
        pair_advance(p, 100 * PAIR_MS); /* over the next lane it is parked again */
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
        cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
        struct pair_room *source = pair_source(p, 1, 7);
        (void)pair_submit(source, 0, 0, 8, true);
        pair_settle(p);
        expect_success(sink, source);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        pair_finish(p);
    }
}

Test(history, h29_an_error_on_one_lane_of_two_is_not_proven_by_the_other_lanes_marker)
{
    struct pair *p = pair_new(&(struct pair_options){
        .placement = KVF_PLACEMENT_POSTED, .lanes = 2, .has_no_regrants = true});
    struct pair_link *link = pair_link(p, 0, 1);
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    link->hold_post = 1; /* data on lane 1 alone */
    link->hold_hand = 3;
    (void)pair_submit(source, 0, 0, 4, false);
    pair_settle(p);
    struct pair_stream *broken = pair_stream(p, 0, 1, 1);
    cr_assert_eq(broken->count, 1);
    link->hold_reset = 3;
    p->daemons[0].hold_fences = true;
    p->daemons[1].hold_fences = true;
    pair_complete_with(p, broken, -EIO); /* the write failed; bytes of it may land yet */
    link->hold_post = 0;
    pair_settle(p);
    cr_assert_eq(broken->count, 0); /* no marker follows the error on the broken lane */
    link->hold_hand = 0;
    pair_settle(p);
    pair_expect_held(sink); /* lane 0's marker alone proves nothing */
    cr_assert_eq(pair_unproven(sink), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_DRAIN), 1);
    /* ENDED named the broken lane: the sink fences it at once, not after the cooperative deadline. */
    cr_assert_eq(pair_phase(sink), KVF_PHASE_FENCING);
    link->hold_reset = 0;
    pair_fences_return(p, 0);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
    pair_fences_return(p, 1);
    pair_settle(p);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_LANE_LOST);
    pair_finish(p);
}

Test(history, h31_an_external_lease_is_passed_by_no_other_proof)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    cr_assert(pair_lease(sink, 0, 1, 0));
    pair_abort(sink); /* NEVER_POSTED in itself */
    pair_expect_held(sink);
    pair_advance(p, 10000 * PAIR_MS);
    pair_expect_held(sink);
    pair_lease_return(sink);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
    /* Success waits as well: the copy may still write what the engine is about to read. */
    struct pair_room *source = pair_source(p, 1, 8);
    struct pair_room *good = pair_sink(p, 0, 1, 8, 0, 4);
    pair_settle(p);
    cr_assert(pair_lease(good, 0, 0, 1));
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect_held(good);
    cr_assert_eq(pair_outcome(good), KVF_OUTCOME_SUCCESS);
    cr_assert_eq(pair_poll(good), KVF_STATE_TRANSFERRING);
    pair_lease_return(good);
    expect_success(good, source);
    pair_finish(p);
}

Test(history, h33_a_lane_of_another_epoch_proves_nothing_of_an_old_grant)
{
    struct pair *p = pair_new(TWO_LANES);
    struct pair_link *link = pair_link(p, 0, 1);
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    uint32_t handle = out_handle(p, 0);
    link->hold_post = 1;
    link->hold_hand = 2;
    link->hold_deliver = 2;
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    struct pair_stream *lane1 = pair_stream(p, 0, 1, 1);
    cr_assert_eq(pair_hand(p, lane1, 3), 3); /* a frame of lane 1 is half sent */
    struct pair_stream *lane0 = pair_stream(p, 0, 1, 0);
    uint32_t id0 = lane0->lane[PAIR_SINK];
    uint32_t epoch0 = lane0->epoch;
    uint64_t sent = pair_count(p, 0, KVF_COUNT_GRANTS_SENT);
    pair_stream_lose(p, lane0, PAIR_SINK); /* lane 0 is fenced */
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_advance(p, 50 * PAIR_MS);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT),
                 sent);                           /* not before lane 1 is proven */
    cr_assert_neq(pair_stream(p, 0, 1, 0), NULL); /* lane 0 is back, at its next epoch */
    cr_assert_neq(pair_stream(p, 0, 1, 0)->epoch, epoch0);
    for (uint32_t epoch = epoch0; epoch <= epoch0 + 1; epoch++) {
        struct kvf_placement_at at;
        cr_assert_eq(
            kvf_core_marker(p->daemons[0].core, p->now_ns, id0, epoch, handle, KVF_LANE_END),
            -EPROTO);
        cr_assert_eq(kvf_core_place(p->daemons[0].core, id0, epoch, handle, 0, 1, &at),
                     -EPROTO);
    }
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    cr_assert_eq(pair_unproven(sink), 1);
    link->hold_hand = 0;
    link->hold_deliver = 0;
    link->hold_post = 0;
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), sent + 1);
    expect_success(sink, source);
    /* And an event of the old epoch proves nothing of a new grant on the same lane, handle or no handle. */
    struct pair_room *next = pair_source(p, 1, 8);
    struct pair_room *next_sink = pair_sink(p, 0, 1, 8, 0, 8);
    pair_settle(p);
    struct kvf_placement_at at;
    cr_assert_eq(
        kvf_core_place(p->daemons[0].core, id0, epoch0 + 1, out_handle(p, 0), 0, 1, &at), 0);
    cr_assert_eq(kvf_core_place(p->daemons[0].core, id0, epoch0, out_handle(p, 0), 0, 1, &at),
                 -EPROTO);
    cr_assert_eq(kvf_core_marker(p->daemons[0].core, p->now_ns, id0, epoch0, out_handle(p, 0),
                                 KVF_LANE_END),
                 -EPROTO);
    cr_assert_eq(pair_unproven(next_sink), 2);
    (void)pair_submit(next, 0, 20, 8, true);
    pair_settle(p);
    expect_success(next_sink, next);
    pair_finish(p);
}

Test(history, h36_an_abort_cell_scanned_before_the_open_was_read_is_not_lost)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 4};
    struct kvf_run_shm run = {PAIR_R0, 20, 4};
    kvf_core_abort(p->daemons[0].core, p->now_ns, 0, 0, 1, 77); /* the scan: nobody yet */
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_COMMANDS), 1);
    struct pair_room *sink = pair_open_sink(p, 0,
                                            &(struct pair_open){.key = 7,
                                                                .writers = &writer,
                                                                .writer_count = 1,
                                                                .runs = &run,
                                                                .run_count = 1,
                                                                .abort_reason = 77});
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, 77);
    pair_settle(p);
    struct pair_room *source = pair_source(p, 1, 7); /* and the peer heard of it */
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    struct pair_room *early = pair_open_source(
        p, 1, &(struct pair_open){.key = 8, .sink_count = 1, .abort_reason = 5});
    pair_expect(early, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, 5);
    struct pair_room *late = pair_sink(p, 0, 1, 8, 0, 4);
    pair_settle(p);
    pair_expect(late, KVF_OUTCOME_FAILED, pair_declined(p), KVF_E_PEER_ROOM_GONE);
    pair_finish(p);
}

Test(history, h37_lease_counts_of_another_generation_open_no_gate)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_open open = {.key = 7, .sink_count = 1, .has_slot = true, .slot = 3};
    open.generation = 1;
    struct pair_room *first = pair_open_source(p, 0, &open);
    pair_abort(first);
    open.generation = 2;
    open.key = 8;
    struct pair_room *second = pair_open_source(p, 0, &open);
    cr_assert(pair_lease(second, 1, 0, 0));
    pair_abort(second);
    pair_expect_held(second);
    kvf_core_leases(p->daemons[0].core, p->now_ns, 0, 3, 1, 0, 0,
                    0); /* late news of the first */
    kvf_core_leases(p->daemons[0].core, p->now_ns, 0, 3, 3, 0, 0, 0);
    pair_drain(p, 0);
    pair_expect_held(second);
    pair_lease_return(second);
    cr_assert(pair_is_drained(second));
    pair_finish(p);
}

/* A lane of one page a millisecond and rooms that want all of it. One is aborted in the middle. */
static void busy_lane(uint32_t rooms, uint64_t room_window_bytes)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED,
                                                     .pages = 20000,
                                                     .room_window_bytes = room_window_bytes,
                                                     .lane_window_bytes = PAIR_BYTES(1000)});
    p->post_queue_max = 4096;
    pair_warm(p, 0, 1);
    struct pair_room *sources[8];
    struct pair_room *sinks[8];
    for (uint32_t i = 0; i < rooms; i++) {
        sources[i] = pair_source(p, 1, 1 + i);
        sinks[i] = pair_sink(p, 0, 1, 1 + i, 2000 * i, 2000);
    }
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    for (uint32_t i = 0; i < rooms; i++) {
        (void)pair_submit(sources[i], 0, 2000 * i, 2000, true);
    }
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    for (uint32_t ms = 0; ms < 2000; ms++) {
        (void)pair_hand(p, s, 2);
        pair_advance(p, PAIR_MS);
    }
    /* A quarter of the cooperative deadline at the measured rate: 125 pages, and a post at most beyond. */
    cr_assert_leq(pair_gauge(p, 1, KVF_GAUGE_POSTED_BYTES), PAIR_BYTES(135));
    pair_abort(sinks[1]);
    uint64_t since_ns = p->now_ns;
    for (uint32_t ms = 0; ms < 1000 && !pair_is_drained(sinks[1]); ms++) {
        (void)pair_hand(p, s, 2);
        pair_advance(p, PAIR_MS);
    }
    pair_expect(sinks[1], KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
    cr_assert_lt(p->now_ns - since_ns, 250 * PAIR_MS);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_ROOMS_SUCCEEDED), rooms - 1 + 1);
    pair_finish(p);
}

Test(history, h38_an_abort_on_a_busy_healthy_lane_fences_nobody)
{
    busy_lane(8, PAIR_BYTES(400));
}

Test(history, h38_rooms_held_back_by_their_own_windows_keep_the_lane_short_too)
{
    busy_lane(2, PAIR_BYTES(450));
}

Test(history, h40_a_grant_before_its_source_opens_is_parked_and_never_refused_for_good)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_advance(p, 10000 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    struct pair_room *source = pair_source(p, 1, 7);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    expect_success(sink, source);
    pair_finish(p);
}

/* Every end that is not success passes one gate: how drained is earned, and when. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

/* A room of 32 pages, 16 of them posted, of which `halves` half pages have landed. */
struct half_way {
    struct pair *p;
    struct pair_room *sink;
    struct pair_room *source;
    struct pair_stream *s;
};

static struct half_way start(uint8_t placement, uint32_t halves)
{
    struct half_way w = {.p = pair_new(&(struct pair_options){.placement = placement})};
    w.source = pair_source(w.p, 1, 7);
    w.sink = pair_sink(w.p, 0, 1, 7, 0, 32);
    pair_settle(w.p);
    pair_link(w.p, 0, 1)->hold_hand = 1;
    pair_link(w.p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(w.source, 0, 0, 32, true);
    pair_settle(w.p);
    w.s = pair_stream(w.p, 0, 1, 0);
    cr_assert_eq(pair_hand(w.p, w.s, halves), halves);
    cr_assert_eq(pair_land(w.p, w.s, halves), halves);
    return w;
}

Test(core_abort, a_checked_sink_is_drained_at_once_and_later_bytes_go_to_scratch)
{
    struct half_way w = start(KVF_PLACEMENT_CHECKED, 11);
    pair_abort(w.sink);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_REVOKED, KVF_E_ABORTED);
    cr_assert_eq(w.sink->view.close_to_drained_ns, 0);
    uint32_t landed = w.p->landed_halves;
    /* The pages have a new tenant while the old frame is still on its way. */
    struct pair_room *next = pair_sink(w.p, 0, 1, 8, 0, 16);
    cr_assert_eq(pair_phase(next), KVF_PHASE_OPEN);
    pair_link(w.p, 0, 1)->hold_hand = 0;
    pair_link(w.p, 0, 1)->hold_deliver = 0;
    pair_settle(w.p);
    cr_assert_eq(w.p->landed_halves, landed);
    cr_assert_gt(w.p->scratch_halves, 0);
    cr_assert_gt(pair_count(w.p, 0, KVF_COUNT_BYTES_REFUSED), 0);
    pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_PEER_ABORTED);
    struct pair_room *other = pair_source(w.p, 1, 8);
    (void)pair_submit(other, 0, 64, 16, true);
    pair_settle(w.p);
    pair_expect(next, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(w.p);
}

Test(core_abort, a_posted_sink_waits_for_the_marker_behind_what_was_posted)
{
    struct half_way w = start(KVF_PLACEMENT_POSTED, 11);
    pair_abort(w.sink);
    pair_expect_held(w.sink);
    cr_assert_eq(pair_poll(w.sink), KVF_STATE_TRANSFERRING);
    cr_assert_neq(w.sink->view.word & KVF_WORD_FAILED_EARLY, 0);
    struct pair_room *next = pair_sink(w.p, 0, 1, 8, 0, 16);
    pair_expect(next, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PAGE_LENT);
    pair_link(w.p, 0, 1)->hold_hand = 0;
    pair_settle(w.p); /* all is in the network now, the marker behind it */
    pair_expect_held(w.sink);
    uint32_t before = w.p->landed_halves;
    while (w.s->head != NULL && w.s->head->kind == KVF_LANE_DATA) {
        pair_expect_held(w.sink);
        cr_assert_eq(pair_land(w.p, w.s, 1), 1);
    }
    cr_assert_gt(w.p->landed_halves, before);
    pair_expect_held(w.sink);
    cr_assert_eq(w.s->head->kind, KVF_LANE_DRAIN);
    cr_assert_eq(pair_land(w.p, w.s, 1), 1);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
    pair_link(w.p, 0, 1)->hold_deliver = 0;
    pair_finish(w.p);
}

Test(core_abort, a_drain_is_posted_behind_what_is_posted_without_waiting_for_completions)
{
    struct half_way w = start(KVF_PLACEMENT_POSTED, 0);
    pair_abort(w.sink);
    pair_settle(w.p);
    cr_assert_neq(w.s->tail, NULL);
    cr_assert_eq(w.s->tail->kind, KVF_LANE_DRAIN);
    cr_assert_eq(w.s->head->kind, KVF_LANE_DATA);
    cr_assert_eq(w.s->head->handed, 0);
    pair_finish(w.p);
}

Test(core_abort, an_abort_moves_no_byte_that_was_not_posted_yet)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){
            .placement = placements[i], .room_window_bytes = PAIR_BYTES(8), .pages = 256});
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 200);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(source, 0, 0, 200, true);
        pair_settle(p);
        pair_abort(sink);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 0;
        pair_settle(p);
        cr_assert_leq(pair_count(p, 1, KVF_COUNT_BYTES_POSTED), PAIR_BYTES(8));
        pair_finish(p);
    }
}

Test(core_abort, a_source_that_aborts_is_drained_when_no_post_names_its_pages)
{
    for (size_t i = 0; i < 2; i++) {
        struct half_way w = start(placements[i], 3);
        pair_abort(w.source);
        if (placements[i] == KVF_PLACEMENT_CHECKED) {
            /* Told to let go: what was not started is taken back, a started frame goes on from filler. */
            pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
        } else {
            pair_expect_held(w.source);
        }
        pair_link(w.p, 0, 1)->hold_hand = 0;
        pair_link(w.p, 0, 1)->hold_deliver = 0;
        pair_settle(w.p);
        pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
        cr_assert(pair_is_drained(w.sink));
        cr_assert_eq(pair_outcome(w.sink), KVF_OUTCOME_FAILED);
        cr_assert_eq(w.sink->view.reason, KVF_E_PEER_ABORTED);
        pair_finish(w.p);
    }
}

Test(core_abort, an_abort_before_the_grant_left_is_never_posted)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_abort(sink);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
    pair_settle(p);
    /* The peer was told all the same: its room ends at once. */
    struct pair_room *source = pair_source(p, 1, 7);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    pair_finish(p);
}

Test(core_abort, an_abort_of_a_room_that_waits_for_credits_is_never_posted_and_told)
{
    struct pair *p =
        pair_new(&(struct pair_options){.lane_rooms = 1, .placement = KVF_PLACEMENT_POSTED});
    struct pair_room *first = pair_source(p, 1, 1);
    struct pair_room *first_sink = pair_sink(p, 0, 1, 1, 0, 4);
    struct pair_room *source = pair_source(p, 1, 2);
    struct pair_room *sink = pair_sink(p, 0, 1, 2, 8, 4);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
    pair_abort(sink);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
    pair_settle(p);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    (void)pair_submit(first, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(first_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_abort, an_abort_while_parked_is_answered_by_decline)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
    pair_abort(sink);
    pair_expect_held(sink);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, pair_declined(p), KVF_E_ABORTED);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_DECLINED), 1);
    struct pair_room *source = pair_source(p, 1, 7);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    pair_finish(p);
}

Test(core_abort, an_abort_is_legal_twice_and_after_the_end)
{
    struct half_way w = start(KVF_PLACEMENT_POSTED, 2);
    pair_abort_with(w.sink, 4711);
    pair_abort(w.sink);
    pair_link(w.p, 0, 1)->hold_hand = 0;
    pair_link(w.p, 0, 1)->hold_deliver = 0;
    pair_settle(w.p);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, 4711);
    pair_abort(w.sink);
    pair_abort(w.source);
    cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_ABORTS), 1);
    cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_ABORTS_LATE), 2);
    cr_assert_eq(pair_count(w.p, 1, KVF_COUNT_ABORTS_LATE), 1);
    pair_finish(w.p);
}

Test(core_abort, end_on_one_lane_and_drain_on_the_other_is_not_success)
{
    struct pair *p =
        pair_new(&(struct pair_options){.lanes = 2, .placement = KVF_PLACEMENT_POSTED});
    pair_warm(p, 0, 1);
    uint64_t ends = pair_count(p, 0, KVF_COUNT_MARKERS_END);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 2;
    pair_link(p, 0, 1)->hold_post = 2; /* lane 1 takes no post: its marker is not posted yet */
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END) - ends, 1);
    pair_abort(source);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_link(p, 0, 1)->hold_post = 0;
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_DRAIN), 1);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_ABORTED);
    cr_assert_eq(pair_outcome(source), KVF_OUTCOME_FAILED);
    pair_finish(p);
}

Test(core_abort, a_fragmented_grant_aborted_half_way_is_never_posted)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){
            .pages = 25000, .runs_max = 65536, .placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        static struct kvf_run_shm runs[12000];
        for (uint32_t j = 0; j < 12000; j++) {
            runs[j] = (struct kvf_run_shm){PAIR_R0, 2 * j, 1};
        }
        struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 12000};
        struct pair_room *sink = pair_open_sink(p, 0,
                                                &(struct pair_open){.key = 7,
                                                                    .writers = &writer,
                                                                    .writer_count = 1,
                                                                    .runs = runs,
                                                                    .run_count = 12000});
        /* One buffer of the socket: one fragment of three. */
        struct pair_conn *c = pair_conn(p, 0, 1);
        static unsigned char buf[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];
        size_t bytes =
            kvf_core_emit(p->daemons[0].core, p->now_ns, c->peer[PAIR_SINK], buf, sizeof buf);
        struct kvf_wire_header h;
        cr_assert_eq(kvf_wire_get_header(buf, &h), 0);
        cr_assert_eq(h.type, KVF_WIRE_GRANT);
        cr_assert_eq(bytes, KVF_WIRE_HEADER_BYTES + h.payload_bytes);
        kvf_core_frame(p->daemons[1].core, p->now_ns, c->peer[PAIR_SOURCE], h.type, h.seq,
                       buf + KVF_WIRE_HEADER_BYTES, h.payload_bytes);
        pair_drain(p, 1);
        pair_abort(sink);
        pair_settle(p);
        cr_assert(pair_is_drained(sink));
        pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
        /* The connection goes on: the next GRANT is no violation. */
        struct pair_room *next = pair_source(p, 1, 8);
        struct pair_room *next_sink = pair_sink(p, 0, 1, 8, 0, 4);
        pair_settle(p);
        (void)pair_submit(next, 0, 0, 4, true);
        pair_settle(p);
        pair_expect(next_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        cr_assert_eq(pair_count(p, 1, KVF_COUNT_PROTOCOL_ERRORS), 0);
        pair_finish(p);
    }
}

Test(core_abort, a_fragmented_grant_whose_lane_is_fenced_half_way_ends_and_the_peer_hears_of_it)
{
    struct pair *p = pair_new(&(struct pair_options){.pages = 25000, .runs_max = 65536});
    pair_warm(p, 0, 1);
    static struct kvf_run_shm runs[12000];
    for (uint32_t j = 0; j < 12000; j++) {
        runs[j] = (struct kvf_run_shm){PAIR_R0, 2 * j, 1};
    }
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 12000};
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = &writer, .writer_count = 1, .runs = runs, .run_count = 12000});
    struct pair_conn *c = pair_conn(p, 0, 1);
    static unsigned char buf[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];
    (void)kvf_core_emit(p->daemons[0].core, p->now_ns, c->peer[PAIR_SINK], buf, sizeof buf);
    struct kvf_wire_header h;
    cr_assert_eq(kvf_wire_get_header(buf, &h), 0);
    kvf_core_frame(p->daemons[1].core, p->now_ns, c->peer[PAIR_SOURCE], h.type, h.seq,
                   buf + KVF_WIRE_HEADER_BYTES, h.payload_bytes);
    pair_drain(p, 1);
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GRANTS_IN), 0); /* declined: it stays half */
    pair_advance(p, 100 * PAIR_MS);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1); /* its successor is whole */
    pair_abort(sink);
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GRANTS_IN), 0);
    pair_warm(p, 0, 1);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_PROTOCOL_ERRORS), 0);
    pair_finish(p);
}

Test(core_abort, a_client_region_fault_fails_the_room_and_nothing_is_placed_any_more)
{
    for (size_t i = 0; i < 2; i++) {
        struct half_way w = start(placements[i], 4);
        uint32_t landed = w.p->landed_halves;
        uint32_t client =
            kvf_core_place_fault(w.p->daemons[0].core, w.p->now_ns, w.s->lane[PAIR_SINK],
                                 w.s->epoch, w.s->head->post.handle);
        cr_assert_eq(client, 0);
        pair_drain(w.p, 0);
        pair_link(w.p, 0, 1)->hold_hand = 0;
        pair_link(w.p, 0, 1)->hold_deliver = 0;
        pair_settle(w.p);
        cr_assert(pair_is_drained(w.sink));
        cr_assert_eq(w.sink->view.reason, KVF_E_MEMORY_FAULT);
        cr_assert_eq(w.sink->view.detail, EFAULT);
        cr_assert_eq(w.p->landed_halves, landed);
        pair_finish(w.p);
    }
}

Test(core_abort, a_source_page_that_cannot_be_read_fails_its_room_and_the_lane_goes_on)
{
    struct half_way w = start(KVF_PLACEMENT_POSTED, 0);
    pair_complete_with(w.p, w.s, -EFAULT);
    pair_expect_held(w.source);
    cr_assert_eq(w.source->view.reason, KVF_E_MEMORY_FAULT);
    while (w.s->head != NULL && w.s->head->kind == KVF_LANE_DATA) {
        pair_complete_with(w.p, w.s, -ECANCELED); /* what was queued behind it */
    }
    pair_expect(w.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_MEMORY_FAULT);
    pair_open_gates(w.p);
    pair_settle(w.p);
    pair_expect(w.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_ABORTED);
    cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_FENCES), 0);
    pair_warm(w.p, 0, 1);
    pair_finish(w.p);
}

Test(core_abort, a_lane_that_breaks_costs_its_rooms_time_and_no_more)
{
    for (size_t i = 0; i < 2; i++) {
        for (int side = 0; side < 2; side++) {
            struct half_way w = start(placements[i], 5);
            pair_stream_lose(w.p, w.s, side);
            pair_settle(w.p);
            pair_open_gates(w.p);
            pair_settle(w.p);
            cr_assert_eq(pair_phase(w.sink), KVF_PHASE_OPEN);
            cr_assert_eq(pair_phase(w.source), KVF_PHASE_OPEN);
            pair_advance(w.p, 100 * PAIR_MS);
            pair_expect(w.sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
            pair_expect(w.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
            cr_assert_eq(pair_count(w.p, 0, KVF_COUNT_REGRANTS), 1);
            pair_warm(w.p, 0, 1); /* E1: the peer is not banned for it */
            pair_finish(w.p);
        }
    }
}

Test(core_abort, a_lane_that_breaks_under_its_end_marker_is_told_as_lane_lost)
{
    struct pair *p = pair_new(
        &(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .has_no_regrants = true});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 2);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(source, 0, 0, 2, true);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    cr_assert_eq(pair_hand(p, s, 4), 4);
    cr_assert_eq(s->tail->kind, KVF_LANE_END);
    pair_stream_lose(p, s, PAIR_SOURCE);
    pair_settle(p);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_LANE_LOST);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
    pair_finish(p);
}

Test(core_abort, markers_leave_though_every_window_is_full)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED,
                                                     .post_bytes = PAIR_BYTES(1),
                                                     .room_window_bytes = PAIR_BYTES(4),
                                                     .lane_window_bytes = PAIR_BYTES(4)});
    struct pair_room *sources[4];
    struct pair_room *sinks[4];
    for (uint32_t i = 0; i < 4; i++) {
        sources[i] = pair_source(p, 1, 1 + i);
        sinks[i] = pair_sink(p, 0, 1, 1 + i, 20 * i, 20);
    }
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    for (uint32_t i = 0; i < 4; i++) {
        (void)pair_submit(sources[i], 0, 20 * i, 20, true);
    }
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_POSTED_BYTES), PAIR_BYTES(4));
    for (uint32_t i = 0; i < 4; i++) {
        pair_abort(sinks[i]);
    }
    pair_settle(p);
    uint32_t drains = 0;
    for (const struct pair_post *q = pair_stream(p, 0, 1, 0)->head; q != NULL; q = q->next) {
        drains += q->kind == KVF_LANE_DRAIN ? 1 : 0;
    }
    cr_assert_eq(drains, 4);
    pair_finish(p);
}

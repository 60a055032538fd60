/* Scenarios of SCENARIOS.md that the core alone can meet, each under its name there. Those that are one
 * of the histories, or plain behaviour, stand in the other files. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

/* ---- A: pages handed back while a write can still land ---------------------------------------------- */

Test(scenario, a1_pages_of_an_aborted_room_go_to_the_next_one_only_when_nothing_can_land)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p =
            pair_new(&(struct pair_options){.placement = placements[i], .pages = 64});
        pair_warm(p, 0, 1);
        struct pair_room *a = pair_source(p, 1, 1);
        struct pair_room *sink_a = pair_sink(p, 0, 1, 1, 0, 31);
        struct pair_room *b = pair_source(p, 1, 2);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_deliver = 1;
        (void)pair_submit(a, 0, 0, 31, true);
        pair_settle(p);
        pair_abort(sink_a);
        pair_advance(p, 400 * PAIR_MS);
        struct pair_room *sink_b = pair_sink(p, 0, 1, 2, 10, 30);
        bool is_reused = pair_phase(sink_b) == KVF_PHASE_OPEN;
        cr_assert_eq(is_reused, pair_is_drained(sink_a));
        pair_link(p, 0, 1)->hold_deliver = 0;
        pair_settle(p);
        cr_assert(pair_is_drained(sink_a));
        (void)pair_submit(b, 0, 31, 30, true);
        if (!is_reused) {
            struct pair_room *retry = pair_source(p, 1, 3);
            sink_b = pair_sink(p, 0, 1, 3, 10, 30);
            pair_abort(b);
            pair_settle(p);
            (void)pair_submit(retry, 0, 31, 30, true);
        }
        pair_settle(p);
        pair_expect(sink_b, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_finish(p);
    }
}

/* Sixteen slices on four lanes; one fails, the others are still in the network. */
static void one_slice_fails(bool is_failing_last)
{
    struct pair *p = pair_new(&(struct pair_options){.has_no_regrants = true,
                                                     .placement = KVF_PLACEMENT_POSTED,
                                                     .lanes = 4,
                                                     .post_bytes = PAIR_BYTES(1),
                                                     .room_window_bytes = PAIR_BYTES(64),
                                                     .lane_window_bytes = PAIR_BYTES(4)});
    pair_warm(p, 0, 1);
    struct pair_link *link = pair_link(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
    pair_settle(p);
    link->hold_hand = 0xf;
    link->hold_deliver = 0xf;
    (void)pair_submit(source, 0, 0, 16, true);
    pair_settle(p);
    for (uint32_t lane = 0; lane < 4; lane++) {
        cr_assert_geq(pair_stream(p, 0, 1, lane)->count, 4);
    }
    struct pair_stream *bad = pair_stream(p, 0, 1, 2);
    if (is_failing_last) { /* the others are all handed over by then */
        link->hold_hand = 1u << 2;
        pair_settle(p);
    }
    pair_complete_with(p, bad, -EIO);
    pair_settle(p);
    cr_assert_eq(pair_outcome(source), KVF_OUTCOME_FAILED); /* told early ... */
    pair_expect_held(sink);                                 /* ... released late */
    if (!is_failing_last) {
        pair_expect_held(source);
    }
    pair_advance(p, 100 * PAIR_MS);
    pair_expect_held(sink);
    link->hold_hand = 0;
    link->hold_deliver = 0;
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    cr_assert(pair_is_drained(source));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_BYTES_PLACED) % PAIR_PAGE_BYTES, 0);
    pair_finish(p);
}

Test(scenario, a3_one_slice_fails_and_drained_waits_for_its_siblings)
{
    one_slice_fails(false);
    one_slice_fails(true);
}

/* A5: nothing happens in the core when an engine stops waiting; the room lives until its completion. */
Test(scenario, a5_a_waiter_that_gives_up_changes_nothing_before_the_completion)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 16, true);
    pair_advance(p, 200 * PAIR_MS); /* the caller's patience */
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_advance(p, 2800 * PAIR_MS);
    struct pair_room *next = pair_sink(p, 0, 1, 8, 0, 16);
    pair_expect(next, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PAGE_LENT);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* A7: the engine asks for its source pages back while the send waits behind other work. */
Test(scenario, a7_source_pages_stay_until_their_last_local_read)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        struct pair_room *before = pair_source(p, 1, 6);
        struct pair_room *before_sink = pair_sink(p, 0, 1, 6, 40, 12);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 12);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(before, 0, 100, 12, true);
        (void)pair_submit(source, 0, 20, 12, true);
        pair_settle(p);
        struct pair_stream *s = pair_stream(p, 0, 1, 0);
        for (uint32_t step = 0; step < 47; step++) { /* half page by half page */
            (void)pair_hand(p, s, 1);
            pair_advance(p, 10 * PAIR_MS);
            cr_assert(!pair_is_drained(source) || s->head == NULL ||
                      s->tail->handed == s->tail->halves);
        }
        pair_link(p, 0, 1)->hold_hand = 0;
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_expect(before_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_finish(p);
    }
}

/* A10: seven ends that are not success, each with one write held back. */
enum end {
    END_ABORT,
    END_TRANSFER_ERROR,
    END_PEER_EXIT,
    END_PEER_TIMEOUT,
    END_ENGINE_DETACH,
    END_SHUTDOWN,
    END_REJECTED_SUBMIT,
    ENDS
};

static void end_it(struct pair *p, enum end end, struct pair_room *sink,
                   struct pair_room *source)
{
    switch (end) {
    case END_ABORT:
        pair_abort(sink);
        return;
    case END_TRANSFER_ERROR:
        pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
        return;
    case END_PEER_EXIT:
        pair_kill(p, 1);
        return;
    case END_PEER_TIMEOUT:
        p->daemons[1].is_frozen = true;
        return;
    case END_ENGINE_DETACH:
        pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
        return;
    case END_SHUTDOWN:
        kvf_core_shutdown(p->daemons[0].core, p->now_ns, true);
        pair_drain(p, 0);
        return;
    case END_REJECTED_SUBMIT:
        (void)pair_submit(source, 2, 100, 2, false); /* an overlap */
        return;
    case ENDS:
        return;
    }
}

Test(scenario, a10_all_seven_ends_pass_the_same_gate)
{
    uint32_t early = 0;
    for (size_t i = 0; i < 2; i++) {
        for (enum end end = END_ABORT; end < ENDS; end++) {
            struct pair *p = pair_new(
                &(struct pair_options){.has_no_regrants = true, .placement = placements[i]});
            struct pair_room *source = pair_source(p, 1, 7);
            struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
            pair_settle(p);
            pair_link(p, 0, 1)->hold_deliver = 1;
            (void)pair_submit(source, 0, 0, 8, false);
            pair_settle(p);
            struct pair_stream *s = pair_stream(p, 0, 1, 0);
            (void)pair_land(p, s, 3); /* the rest is the gated write */
            end_it(p, end, sink, source);
            pair_settle(p);
            bool may_land = s->is_used && s->is_open[PAIR_SINK] && s->head != NULL;
            if (placements[i] == KVF_PLACEMENT_POSTED && may_land && pair_is_drained(sink)) {
                early++;
            }
            pair_advance(p, kvf_core_bound_usual_ns(&p->config));
            cr_assert(pair_is_drained(sink), "end %d", (int)end);
            cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED);
            pair_link(p, 0, 1)->hold_deliver = 0; /* the gate opens: the oracle watches */
            pair_advance(p, 100 * PAIR_MS);
            pair_open_gates(p);
            pair_advance(p, 5000 * PAIR_MS);
            pair_finish(p);
        }
    }
    cr_assert_eq(early, 0);
}

/* ---- B: abort and its answers ------------------------------------------------------------------------ */

/* B1: the writer's engine forgets its room at once; the answer still goes out, once, behind the write. */
Test(scenario, b1_the_answer_outlives_the_writers_room)
{
    struct pair *p =
        pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .rooms = 2});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 8, false);
    pair_settle(p);
    pair_abort(sink);
    pair_abort(source);
    pair_settle(p);
    cr_assert(pair_is_drained(source)); /* its pages are read: its slot is used again at once */
    for (uint32_t i = 0; i < 6; i++) {
        struct pair_room *other = pair_source(p, 1, 20 + i);
        pair_abort(other);
    }
    pair_expect_held(sink);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_DRAIN), 1);
    pair_finish(p);
}

/* B3: three writes, two through, the writer's room cleared, and then the ABORT. */
Test(scenario, b3_no_answer_before_the_last_of_three_writes)
{
    struct pair *p = pair_new(
        &(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .post_bytes = PAIR_BYTES(1)});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(source, 0, 0, 3, false);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    cr_assert_eq(pair_hand(p, s, 5), 5); /* the third write has half a page to go */
    pair_link(p, 0, 1)->hold[PAIR_SINK] = true;
    pair_abort(source);
    pair_settle(p);
    pair_abort(sink);
    pair_settle(p);
    pair_expect_held(source);
    pair_expect_held(sink);
    cr_assert_eq(pair_hand(p, s, 1), 1);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
    pair_settle(p);
    pair_expect_held(sink);
    cr_assert_eq(pair_hand(p, s, 1), 1); /* the marker itself */
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
    pair_finish(p);
}

Test(scenario, b4_an_abort_before_the_writers_engine_opens_is_remembered_and_bounded)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_abort(sink);
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    struct pair_room *source = pair_source(p, 1, 7);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    struct pair_room *retry = pair_source(p, 1, 8); /* another attempt has another key */
    struct pair_room *retry_sink = pair_sink(p, 0, 1, 8, 0, 4);
    pair_settle(p);
    (void)pair_submit(retry, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(retry_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    for (uint32_t i = 0; i < 20000; i++) { /* tombstones are hints: overwritten, never grown */
        struct pair_room *r = pair_sink(p, 0, 1, 1000 + i, 0, 1);
        pair_abort(r);
        if (i % 16 == 0) {
            pair_settle(p);
        }
    }
    pair_settle(p);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* Puts a frame in front of a core as if its peer had sent it now. */
static void inject(struct pair *p, uint32_t daemon, uint32_t peer, const unsigned char *frame)
{
    struct kvf_wire_header h;
    cr_assert_eq(kvf_wire_get_header(frame, &h), 0);
    struct kvf_core *core = p->daemons[daemon].core;
    kvf_core_frame(core, p->now_ns, peer, h.type, core->peers[peer].seq_in,
                   frame + KVF_WIRE_HEADER_BYTES, h.payload_bytes);
    pair_drain(p, daemon);
}

/* A replayed frame shifts the numbers of the real ones: both sides are put right for the test's sake. */
static void skip_seq(struct pair *p, uint32_t daemon, uint32_t peer, uint32_t count)
{
    p->daemons[daemon].core->peers[peer].seq_out += count;
}

Test(scenario, b6_old_answers_and_old_aborts_meet_a_new_generation_and_are_counted)
{
    struct pair *p = pair_new(&(struct pair_options){.rooms = 1});
    struct pair_room *first = pair_source(p, 1, 1);
    struct pair_room *first_sink = pair_sink(p, 0, 1, 1, 0, 8);
    pair_settle(p);
    uint64_t nonce = p->daemons[0].core->grants[0].nonce;
    pair_abort(first_sink);
    pair_settle(p);
    cr_assert(pair_is_drained(first));
    struct pair_room *second = pair_source(p, 1, 2);
    struct pair_room *second_sink = pair_sink(p, 0, 1, 2, 0, 8);
    pair_settle(p);
    struct pair_conn *c = pair_conn(p, 0, 1);
    uint32_t out = c->peer[PAIR_SINK];
    uint32_t in = c->peer[PAIR_SOURCE];
    unsigned char frame[256];
    uint64_t stale = pair_count(p, 0, KVF_COUNT_STALE_MESSAGES);
    cr_assert_gt(
        kvf_wire_put_accept(frame, sizeof frame, 0, &(struct kvf_wire_accept){.nonce = nonce}),
        0);
    inject(p, 0, out, frame);
    cr_assert_gt(kvf_wire_put_decline(
                     frame, sizeof frame, 0,
                     &(struct kvf_wire_decline){.nonce = nonce, .reason = KVF_E_PEER_BUSY}),
                 0);
    inject(p, 0, out, frame);
    cr_assert_gt(
        kvf_wire_put_ended(frame, sizeof frame, 0,
                           &(struct kvf_wire_ended){.nonce = nonce, .broken_lanes = 1}),
        0);
    inject(p, 0, out, frame);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_MESSAGES), stale + 3);
    stale = pair_count(p, 1, KVF_COUNT_STALE_MESSAGES);
    struct kvf_wire_abort abort = {.nonce = nonce, .label = 1, .key = 1, .reason = 1024};
    cr_assert_gt(kvf_wire_put_abort(frame, sizeof frame, 0, &abort), 0);
    inject(p, 1, in, frame);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_STALE_MESSAGES), stale + 1);
    skip_seq(p, 1, in, 3);
    skip_seq(p, 0, out, 1);
    cr_assert_eq(pair_phase(second), KVF_PHASE_OPEN);
    cr_assert_eq(pair_phase(second_sink), KVF_PHASE_OPEN);
    (void)pair_submit(second, 0, 0, 8, true);
    pair_settle(p);
    pair_expect(second_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* B9: most requests are cancelled within a second while new ones keep coming. */
Test(scenario, b9_an_abort_storm_ends_every_owner_room_in_under_a_second)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i],
                                                         .rooms = 600,
                                                         .pages = 4096,
                                                         .grants_max = 1024,
                                                         .lane_rooms = 64,
                                                         .parked_max = 1024,
                                                         .lanes = 2,
                                                         .stripe_bytes = PAIR_BYTES(64)});
        static struct pair_room *sinks[2000];
        static struct pair_room *sources[2000];
        uint32_t aborted = 0;
        for (uint32_t k = 0; k < 2000; k++) {
            sources[k] = pair_source(p, 1, 10 + k);
            sinks[k] = pair_sink(p, 0, 1, 10 + k, 8 * (k % 500), 4);
            (void)pair_submit(sources[k], 0, 8 * (k % 500), 4, true);
            if (k % 10 != 0) {
                pair_abort(k % 3 == 0 ? sources[k] : sinks[k]);
                aborted++;
            }
            if (k % 4 == 3) {
                pair_advance(p, 2 * PAIR_MS);
            }
        }
        pair_advance(p, 100 * PAIR_MS);
        uint32_t good = 0;
        for (uint32_t k = 0; k < 2000; k++) {
            cr_assert(pair_is_drained(sinks[k]));
            cr_assert_lt(sinks[k]->drained_ns - sinks[k]->opened_ns, 1000 * PAIR_MS);
            good += pair_outcome(sinks[k]) == KVF_OUTCOME_SUCCESS ? 1 : 0;
        }
        cr_assert_geq(good, 2000 - aborted);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
        pair_finish(p);
    }
}

Test(scenario, b11_rooms_whose_ids_agree_in_their_low_32_bits_do_not_meet)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sources[3];
    struct pair_room *sinks[3];
    static const uint64_t keys[3] = {5, (UINT64_C(1) << 32) | 5, (UINT64_C(1) << 63) | 5};
    for (uint32_t i = 0; i < 3; i++) {
        sinks[i] = pair_sink(p, 0, 1, keys[i], 10 * i, 5);
    }
    pair_settle(p);
    for (uint32_t i = 3; i > 0; i--) {
        sources[i - 1] = pair_source(p, 1, keys[i - 1]);
        (void)pair_submit(sources[i - 1], 0, 20 * i, 5, true);
    }
    pair_settle(p);
    for (uint32_t i = 0; i < 3; i++) {
        pair_expect(sinks[i], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    }
    pair_finish(p);
}

Test(scenario, b12_late_and_repeated_events_of_ended_things_are_counted_and_dropped)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    uint32_t lane = s->lane[PAIR_SINK];
    uint32_t source_lane = s->lane[PAIR_SOURCE];
    uint32_t epoch = s->epoch;
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_placement_at at;
    for (uint32_t handle = 0; handle < 3; handle++) {
        cr_assert_eq(kvf_core_marker(core, p->now_ns, lane, epoch, handle, KVF_LANE_END),
                     -EPROTO);
        cr_assert_eq(kvf_core_place(core, lane, epoch, handle, 0, 1, &at), -EPROTO);
        cr_assert_eq(kvf_core_place_fault(core, p->now_ns, lane, epoch, handle), KVF_NONE);
        kvf_core_placed(core, p->now_ns, lane, epoch, handle, 0, true);
    }
    uint64_t stale = pair_count(p, 0, KVF_COUNT_STALE_LANE_EVENTS);
    kvf_core_lane_lost(core, p->now_ns, lane, epoch + 7, EIO);
    kvf_core_lane_fenced(core, p->now_ns, lane, epoch);
    kvf_core_lane_fenced(core, p->now_ns, lane, epoch + 1);
    kvf_core_lane_up(core, p->now_ns, lane, epoch + 1);
    kvf_core_peer_connected(core, p->now_ns, 0);
    kvf_core_peer_connect_failed(core, p->now_ns, 0, EIO);
    pair_drain(p, 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_LANE_EVENTS), stale + 4);
    kvf_core_lane_fenced(p->daemons[1].core, p->now_ns, source_lane, epoch);
    pair_warm(p, 0, 1);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* ---- C: identity ------------------------------------------------------------------------------------ */

Test(scenario, c1_a_queued_chunk_of_generation_1_never_reaches_generation_2)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p =
            pair_new(&(struct pair_options){.placement = placements[i], .rooms = 1});
        struct pair_room *first = pair_source(p, 1, 70);
        struct pair_room *first_sink = pair_sink(p, 0, 1, 70, 0, 8);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(first, 0, 0, 8, false);
        pair_settle(p);
        pair_abort(first);
        pair_abort(first_sink);
        if (placements[i] == KVF_PLACEMENT_POSTED) {
            pair_link(p, 0, 1)->hold_hand = 0;
            pair_settle(p);
            pair_link(p, 0, 1)->hold_hand = 1;
        }
        struct pair_room *second = pair_source(p, 1, 71); /* the same slots, generation 2 */
        struct pair_room *second_sink = pair_sink(p, 0, 1, 71, 0, 8);
        cr_assert_eq(second->slot, first->slot);
        cr_assert_eq(second_sink->generation, 2);
        pair_settle(p);
        (void)pair_submit(second, 0, 8, 8, true);
        pair_link(p, 0, 1)->hold_hand = 0;
        pair_settle(p);
        pair_expect(second_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        cr_assert_eq(pair_outcome(first_sink), KVF_OUTCOME_FAILED);
        pair_finish(p);
    }
}

/* ---- D: leaks and bounded drain ---------------------------------------------------------------------- */

static void writer_killed(uint8_t placement, uint32_t percent)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = placement, .pages = 256});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 100);
    pair_settle(p);
    struct pair_link *link = pair_link(p, 0, 1);
    link->hold_hand = 1;
    link->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 100, true);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    for (uint32_t halves = 2 * percent; halves > 0; halves--) {
        (void)pair_take_posts(p, s, 8);
        (void)pair_hand(p, s, 1);
        (void)pair_land(p, s, halves > 3 ? 1 : 0); /* a little is still in the network */
    }
    pair_kill(p, 1);
    uint64_t since_ns = p->now_ns;
    link->hold_deliver = 0;
    pair_settle(p);
    for (uint32_t ms = 0; ms < 2000 && !pair_is_drained(sink); ms++) {
        pair_advance(p, PAIR_MS);
    }
    cr_assert(pair_is_drained(sink));
    cr_assert_leq(p->now_ns - since_ns, 2000 * PAIR_MS);
    cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_ROOMS_QUARANTINED), 0);
    pair_advance(p, 100 * PAIR_MS);
    pair_finish(p);
}

Test(scenario, d1_a_writer_killed_at_10_50_and_99_percent)
{
    for (size_t i = 0; i < 2; i++) {
        writer_killed(placements[i], 10);
        writer_killed(placements[i], 50);
        writer_killed(placements[i], 99);
    }
}

/* The network is gone without a word: only silence tells. */
Test(scenario, d1_a_writer_behind_a_removed_network)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
        pair_settle(p);
        struct pair_link *link = pair_link(p, 0, 1);
        link->hold_deliver = 1;
        (void)pair_submit(source, 0, 0, 32, true);
        pair_settle(p);
        (void)pair_land(p, pair_stream(p, 0, 1, 0), 9);
        link->hold[PAIR_SINK] = true;
        link->hold[PAIR_SOURCE] = true;
        link->hold_reset = 0xff;
        pair_advance(p, kvf_core_bound_usual_ns(&p->config));
        cr_assert(pair_is_drained(sink));
        cr_assert(pair_is_drained(source));
        cr_assert_eq(sink->view.reason, KVF_E_PEER_LOST);
        pair_open_gates(p);
        pair_advance(p, 3000 * PAIR_MS);
        pair_warm(p, 0, 1);
        pair_finish(p);
    }
}

Test(scenario, d2_both_sides_abort_500_times_in_both_orders)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        for (uint32_t k = 0; k < 500; k++) {
            struct pair_room *source = pair_source(p, 1, 10 + k);
            struct pair_room *sink = pair_sink(p, 0, 1, 10 + k, 0, 20);
            for (uint64_t n = pair_random(p, 6); n > 0; n--) {
                (void)pair_move_one(p);
            }
            (void)pair_submit(source, 0, 0, 20, pair_random(p, 2) == 0);
            for (uint64_t n = pair_random(p, 10); n > 0; n--) {
                (void)pair_move_one(p);
            }
            pair_abort(k % 2 == 0 ? source : sink);
            for (uint64_t n = pair_random(p, 3); n > 0; n--) {
                (void)pair_move_one(p);
            }
            pair_abort(k % 2 == 0 ? sink : source);
            pair_settle(p);
            cr_assert(pair_is_drained(sink));
            cr_assert(pair_is_drained(source));
        }
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD), 0);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
        pair_finish(p);
    }
}

Test(scenario, d4_rooms_aborted_around_their_completion_all_add_up)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(
            &(struct pair_options){.placement = placements[i], .rooms = 16, .lanes = 2});
        pair_warm(p, 0, 1);
        uint32_t good = 0;
        for (uint32_t k = 0; k < 3000; k++) {
            struct pair_room *source = pair_source(p, 1, 10 + k);
            struct pair_room *sink = pair_sink(p, 0, 1, 10 + k, 4 * (k % 60), 2);
            (void)pair_submit(source, 0, 4 * (k % 60), 2, true);
            for (uint64_t n = pair_random(p, 12); n > 0; n--) {
                (void)pair_move_one(p);
            }
            pair_abort(pair_random(p, 4) == 0 ? source : sink);
            pair_settle(p);
            good += pair_outcome(sink) == KVF_OUTCOME_SUCCESS ? 1 : 0;
        }
        cr_assert_gt(good, 100);
        cr_assert_lt(good, 2900);
        pair_finish(p); /* opened = succeeded + failed, and as many proofs */
    }
}

/* D6: the source holds pages for a sink that waits for credits of a third. Nobody waits for ever. */
Test(scenario, d6_rooms_that_wait_for_each_other_are_unwound_by_one_abort)
{
    struct pair *p = pair_new(&(struct pair_options){.lane_rooms = 1, .parked_max = 1});
    struct pair_room *sink_a = pair_sink(p, 0, 1, 1, 0, 4); /* takes the only credit */
    struct pair_room *source_b = pair_source(p, 1, 2);
    struct pair_room *sink_b = pair_sink(p, 0, 1, 2, 8, 4);
    (void)pair_submit(source_b, 0, 0, 4, true);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink_b), KVF_STATE_BOOTSTRAPPING);
    pair_abort(sink_a);
    pair_settle(p);
    pair_expect(sink_b, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source_b, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(p);
}

/* ---- E: liveness ------------------------------------------------------------------------------------- */

Test(scenario, e1_one_failure_bans_nobody)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(source, 0, 0, 16, true);
        pair_settle(p);
        pair_complete_with(p, pair_stream(p, 0, 1, 0), -EIO);
        pair_link(p, 0, 1)->hold_hand = 0;
        pair_advance(p, 50 * PAIR_MS);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        for (uint32_t k = 0; k < 100; k++) {
            pair_warm(p, 0, 1);
        }
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
        pair_finish(p);
    }
}

Test(scenario, e3_a_peer_replaced_behind_the_same_address_50_times)
{
    for (uint32_t is_same = 0; is_same < 2; is_same++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
        for (uint32_t k = 0; k < 50; k++) {
            struct pair_room *source = pair_source(p, 1, 1000 + k);
            struct pair_room *sink = pair_sink(p, 0, 1, 1000 + k, 0, 32);
            struct pair_room *back = pair_source(p, 0, 2000 + k);
            struct pair_room *back_sink = pair_sink(p, 1, 0, 2000 + k, 0, 32);
            pair_advance(p, 100 * PAIR_MS);
            pair_link(p, 0, 1)->hold_hand = 1;
            pair_link(p, 1, 0)->hold_hand = 1;
            (void)pair_submit(source, 0, 40, 32, true);
            (void)pair_submit(back, 0, 40, 32, true);
            pair_settle(p);
            pair_kill(p, 1);
            pair_revive(p, 1, is_same != 0);
            memset(pair_link(p, 0, 1), 0, sizeof(struct pair_link));
            memset(pair_link(p, 1, 0), 0, sizeof(struct pair_link));
            uint64_t since_ns = p->now_ns;
            pair_settle(p);
            cr_assert(pair_is_drained(sink));
            cr_assert(pair_is_drained(back));
            cr_assert(back_sink->is_lost);
            struct pair_room *next = pair_source(p, 1, 3000 + k);
            struct pair_room *next_sink = pair_sink(p, 0, 1, 3000 + k, 0, 32);
            (void)pair_submit(next, 0, 100, 32, true);
            pair_advance(p, 200 * PAIR_MS);
            pair_expect(next_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
            cr_assert_lt(next_sink->drained_ns - since_ns, 1000 * PAIR_MS);
        }
        pair_finish(p);
    }
}

/* A ghost of the old incarnation may not push the new one out. */
Test(scenario, e3_an_older_incarnation_of_the_same_supervisor_is_refused)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    pair_kill(p, 0);
    pair_revive(p, 0, true); /* worker 2 of supervisor 1000 */
    pair_warm(p, 0, 1);
    struct kvf_wire_hello ghost = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                   .caps = KVF_CAP_DRAIN_PROOF,
                                   .supervisor_id = 1000,
                                   .worker_starts = 1,
                                   .session = 1,
                                   .transport = KVF_WIRE_SIM,
                                   .placement = KVF_PLACEMENT_CHECKED,
                                   .lane_count = 1,
                                   .receives_per_lane = 8};
    unsigned char frame[256];
    int bytes = kvf_wire_put_hello(frame, sizeof frame, 0, &ghost);
    cr_assert_gt(bytes, 0);
    uint32_t peer;
    cr_assert_eq(kvf_core_peer_accept(p->daemons[1].core, p->now_ns,
                                      frame + KVF_WIRE_HEADER_BYTES,
                                      (size_t)bytes - KVF_WIRE_HEADER_BYTES, &peer),
                 -KVF_E_PEER_REFUSED);
    pair_drain(p, 1);
    pair_warm(p, 0, 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
    pair_finish(p);
}

/* Lanes that break around the end of a grant: nobody waits for ever, nothing is leaked, and a sink that has
 * all its bytes is served. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"
#include "tests/core/pair.h"
#include "tests/core/pair_internal.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

/* A source of two sinks, over two lanes. END of the first sink's lane 0 is through and completed; then that
 * lane dies at the source, while lane 1 has taken nothing yet. */
static void end_on_a_lane_that_dies(bool is_accept_late, uint8_t placement)
{
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 3, .lanes = 2, .placement = placement});
    pair_warm(p, 0, 1);
    pair_warm(p, 2, 1);
    struct pair_room *source =
        pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
    struct pair_room *other = pair_sink(p, 2, 1, 7, 0, 16);
    struct pair_conn *c = pair_conn(p, 0, 1);
    c->hold[PAIR_SINK] = is_accept_late;
    pair_link(p, 0, 1)->hold_post = 2;
    pair_link(p, 2, 1)->hold_post = 3;
    pair_settle(p);
    (void)pair_submit(source, 0, 0, 16, true);
    pair_settle(p);
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_post = 0;
    pair_settle(p);
    c->hold[PAIR_SINK] = false;
    pair_settle(p);
    pair_link(p, 2, 1)->hold_post = 0;
    pair_advance(p, 600 * PAIR_MS);
    cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_SUCCESS, "reason %u", sink->view.reason);
    cr_assert_eq(pair_outcome(other), KVF_OUTCOME_SUCCESS, "reason %u", other->view.reason);
    cr_assert_eq(pair_outcome(source), KVF_OUTCOME_SUCCESS, "reason %u", source->view.reason);
    pair_finish(p);
}

Test(regrant_ends, a_lane_that_dies_behind_its_end_takes_no_end_from_the_others)
{
    for (size_t i = 0; i < 2; i++) {
        end_on_a_lane_that_dies(false, placements[i]);
        end_on_a_lane_that_dies(true, placements[i]);
    }
}

static struct kvf_wire_grant drain_everywhere(struct pair *p, struct hostile *h)
{
    struct kvf_wire_grant g = hostile_read_grant(h);
    for (uint32_t lane = 0; lane < 2; lane++) {
        if ((g.lane_mask >> lane & 1u) != 0) {
            cr_assert_eq(
                pair_raw_marker(p, pair_stream(p, 0, 1, lane), g.handle, KVF_LANE_DRAIN), 0);
        }
    }
    pair_settle(p);
    return g;
}

/* DRAIN on every lane, and not a word why: ACCEPT does not take away the deadline of that word. */
Test(regrant_ends, a_source_that_stops_and_accepts_late_is_not_waited_for)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = hostile_world(placements[i]);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        struct kvf_wire_grant g = drain_everywhere(p, &h);
        hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        pair_settle(p);
        cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
        pair_advance(p, 510 * PAIR_MS);
        cr_assert(pair_is_drained(sink));
        cr_assert_eq(sink->view.reason, KVF_E_PEER_ABORTED);
        hostile_finish(p);
    }
}

/* DRAIN on every lane and never an answer, while its connection lives: its record does not stay for ever. */
Test(regrant_ends, a_source_that_stops_and_never_answers_keeps_no_record)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = hostile_world(placements[i]);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        (void)drain_everywhere(p, &h);
        pair_advance(p, 510 * PAIR_MS);
        cr_assert(pair_is_drained(sink));
        pair_advance(p, 510 * PAIR_MS);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        hostile_finish(p);
    }
}

/* END of lane 0 has landed, but its acknowledgement is lost: the source is lost and stops on lane 1. The sink's
 * engine aborts before it reads why. The source learns of that at once, not by its deadline. */
static void abort_behind_a_lost_acknowledgement(uint8_t placement)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2, .placement = placement});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct pair_conn *c = pair_conn(p, 0, 1);
    c->hold[PAIR_SINK] = true;
    pair_link(p, 0, 1)->hold_post = 2;
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    struct kvf_post end = {0};
    for (struct pair_post *q = s->head; q != NULL; q = q->next) {
        if (q->kind == KVF_LANE_END) {
            end = q->post;
            q->is_completed = true;
        }
    }
    cr_assert_eq(end.kind, KVF_LANE_END);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    kvf_core_completed(p->daemons[1].core, pair_clock(p, 1), s->lane[PAIR_SOURCE], s->epoch,
                       &end, -EIO);
    pair_drain(p, 1);
    pair_link(p, 0, 1)->hold_post = 0;
    pair_settle(p);
    pair_abort(sink);
    c->hold[PAIR_SINK] = false;
    pair_settle(p);
    pair_advance(p, 1000 * PAIR_MS);
    cr_assert(pair_is_drained(sink));
    cr_assert(pair_is_drained(source));
    pair_finish(p);
}

Test(regrant_ends, a_sink_that_ends_before_it_knows_why_its_source_stopped_tells_it)
{
    for (size_t i = 0; i < 2; i++) {
        abort_behind_a_lost_acknowledgement(placements[i]);
    }
}

/* One of two sinks had gone before the source opened: the other one is all there is to wait for. */
Test(regrant_ends, b4_a_sink_that_aborted_before_the_open_is_not_waited_for_beside_others)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    pair_warm(p, 0, 1);
    pair_warm(p, 2, 1);
    struct pair_room *gone = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_abort(gone);
    pair_settle(p);
    struct pair_room *source =
        pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *sink = pair_sink(p, 2, 1, 7, 0, 4);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_eq(pair_outcome(source), KVF_OUTCOME_SUCCESS);
    pair_finish(p);
}

/* A room that still waits for one sink when it loses another one's lane waits anew from there. */
Test(regrant_ends, a_loss_late_in_the_first_wait_begins_a_wait_of_its_own)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    pair_warm(p, 0, 1);
    pair_warm(p, 2, 1);
    struct pair_room *source =
        pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *first = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_advance(p, 29000 * PAIR_MS);
    struct pair_room *late = pair_sink(p, 2, 1, 7, 0, 4);
    pair_link(p, 0, 1)->hold_lane_hello = 1;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
    pair_settle(p);
    pair_advance(p, 1500 * PAIR_MS);
    cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
    pair_link(p, 0, 1)->hold_lane_hello = 0;
    (void)pair_submit(source, 0, 0, 4, true);
    pair_advance(p, 2000 * PAIR_MS);
    cr_assert_eq(pair_outcome(late), KVF_OUTCOME_SUCCESS, "reason %u", late->view.reason);
    cr_assert_eq(pair_outcome(first), KVF_OUTCOME_SUCCESS, "reason %u", first->view.reason);
    pair_finish(p);
}

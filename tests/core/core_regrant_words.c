/* New grants after a fence, and the words of a source around them: a DRAIN, an ACCEPT, an ENDED or a DECLINE that
 * comes before or after the moment at which its sink knows. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

/* Daemon 0 is the sink, daemon 1 its source as the test plays it: nothing is answered yet. */
struct scene {
    struct pair *p;
    struct pair_room *sink;
    struct hostile h;
    struct kvf_wire_grant g; /* over both lanes */
};

static struct scene begin(uint8_t placement)
{
    struct scene s = {.p = hostile_world(placement)};
    s.sink = pair_sink(s.p, 0, 1, 7, 0, 4);
    s.h = hostile_as_source(s.p);
    s.g = hostile_read_grant(&s.h);
    cr_assert_eq(s.g.lane_mask, 3);
    return s;
}

static void drain(struct scene *s, uint32_t lane)
{
    cr_assert_eq(
        pair_raw_marker(s->p, pair_stream(s->p, 0, 1, lane), s->g.handle, KVF_LANE_DRAIN), 0);
    pair_settle(s->p);
}

static void say(struct scene *s, uint8_t type, uint64_t nonce)
{
    hostile_send_simple(&s->h, type, nonce);
    pair_settle(s->p);
}

static void lose_lane(struct scene *s, uint32_t lane)
{
    pair_stream_lose(s->p, pair_stream(s->p, 0, 1, lane), PAIR_SINK);
    pair_settle(s->p);
}

/* The next ABORT that the sink says, of this nonce: its reason. 0: it says none. */
static uint32_t abort_of(struct scene *s, uint64_t nonce)
{
    const unsigned char *payload;
    size_t bytes;
    uint8_t type;
    struct kvf_wire_abort m;
    while ((type = pair_raw_read(s->p, s->h.c, PAIR_SOURCE, &payload, &bytes)) != 0) {
        if (type == KVF_WIRE_ABORT && kvf_wire_get_abort(payload, bytes, &m) == 0 &&
            m.nonce == nonce) {
            return m.reason;
        }
    }
    return 0;
}

static void expect_again(struct scene *s)
{
    cr_assert_eq(pair_phase(s->sink), KVF_PHASE_OPEN);
    cr_assert_eq(pair_count(s->p, 0, KVF_COUNT_REGRANTS), 1);
    struct kvf_wire_grant again = hostile_read_grant(&s->h);
    cr_assert_eq(again.past_nonce, s->g.nonce);
    cr_assert_neq(again.nonce, s->g.nonce);
    cr_assert_neq(again.handle, s->g.handle);
}

/* ---- ENDED behind the last marker ---------------------------------------------------------------------------- */

/* Every lane is proven by a DRAIN when the source says that it was for a lane's sake. */
Test(regrant_words, a_source_that_stopped_for_a_lane_and_says_so_last_is_granted_anew)
{
    for (size_t i = 0; i < 2; i++) {
        struct scene s = begin(placements[i]);
        say(&s, KVF_WIRE_ACCEPT, s.g.nonce);
        drain(&s, 0);
        drain(&s, 1);
        cr_assert_eq(pair_count(s.p, 0, KVF_COUNT_REGRANTS), 0, "nobody knows why");
        s.h.c->hold_write[PAIR_SINK] = true; /* our ABORT waits, and that is not its fault */
        say(&s, KVF_WIRE_ENDED, s.g.nonce);
        pair_advance(s.p, 510 * PAIR_MS);
        cr_assert(s.h.c->is_open[PAIR_SINK], "the deadline was that of its reason");
        s.h.c->hold_write[PAIR_SINK] = false;
        pair_settle(s.p);
        expect_again(&s);
        pair_advance(s.p, 510 * PAIR_MS);
        cr_assert_eq(pair_phase(s.sink), KVF_PHASE_OPEN, "nor does the new one have it");
        pair_abort(s.sink);
        hostile_finish(s.p);
    }
}

/* ... and its ACCEPT comes behind that: until then nobody knows whether it holds a place. */
Test(regrant_words,
     a_new_grant_waits_for_the_answer_though_every_lane_is_proven_and_the_reason_known)
{
    for (size_t i = 0; i < 2; i++) {
        struct scene s = begin(placements[i]);
        drain(&s, 0);
        drain(&s, 1);
        say(&s, KVF_WIRE_ENDED, s.g.nonce);
        cr_assert_eq(pair_count(s.p, 0, KVF_COUNT_REGRANTS), 0);
        say(&s, KVF_WIRE_ACCEPT, s.g.nonce);
        expect_again(&s);
        pair_abort(s.sink);
        hostile_finish(s.p);
    }
}

/* ... or never: the connection ends at the deadline, and the room with it. */
Test(regrant_words,
     a_source_that_says_why_and_never_answers_costs_its_connection_and_keeps_no_record)
{
    for (size_t i = 0; i < 2; i++) {
        struct scene s = begin(placements[i]);
        drain(&s, 0);
        drain(&s, 1);
        say(&s, KVF_WIRE_ENDED, s.g.nonce);
        pair_advance(s.p, 510 * PAIR_MS);
        pair_expect(s.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_LOST);
        cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        cr_assert_not(s.h.c->is_open[PAIR_SINK]);
        hostile_finish(s.p);
    }
}

/* END has landed on lane 0 and its acknowledgement is lost: the source stops on lane 1, for lane 0's sake. At the sink
 * each lane has its marker before it hears of that. */
Test(regrant_words, an_acknowledgement_that_is_lost_behind_a_landed_end_leads_to_a_new_grant)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p =
            pair_new(&(struct pair_options){.lanes = 2, .placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        pair_settle(p);
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
        pair_link(p, 0, 1)->hold_reset = 1; /* nor does the sink hear that lane 0 ends */
        kvf_core_completed(p->daemons[1].core, pair_clock(p, 1), s->lane[PAIR_SOURCE], s->epoch,
                           &end, -EIO);
        pair_drain(p, 1);
        pair_conn(p, 0, 1)->hold[PAIR_SINK] = true;
        pair_link(p, 0, 1)->hold_post = 0;
        pair_settle(p);
        cr_assert_eq(pair_unproven(sink), 0);
        cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
        pair_conn(p, 0, 1)->hold[PAIR_SINK] = false;
        pair_settle(p);
        cr_assert_geq(pair_count(p, 0, KVF_COUNT_REGRANTS), 1);
        pair_link(p, 0, 1)->hold_reset = 0;
        pair_advance(p, 600 * PAIR_MS);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_finish(p);
    }
}

/* ---- ACCEPT behind the last marker ---------------------------------------------------------------------------- */

/* The engine aborts between the DRAINs and the ACCEPT: the answer is all that was awaited. */
Test(regrant_words, an_accept_behind_drains_and_an_abort_frees_the_record_and_its_deadline)
{
    for (size_t i = 0; i < 2; i++) {
        struct scene s = begin(placements[i]);
        drain(&s, 0);
        drain(&s, 1);
        s.h.c->hold_write[PAIR_SINK] = true;
        pair_abort(s.sink);
        pair_settle(s.p);
        pair_expect(s.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
        cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_OUT), 1);
        say(&s, KVF_WIRE_ACCEPT, s.g.nonce);
        pair_advance(s.p, 510 * PAIR_MS);
        cr_assert(s.h.c->is_open[PAIR_SINK], "it answered, and our ABORT waits");
        s.h.c->hold_write[PAIR_SINK] = false;
        pair_settle(s.p);
        cr_assert_eq(abort_of(&s, s.g.nonce), KVF_E_ABORTED);
        cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        hostile_finish(s.p);
    }
}

/* The other way round: accepted, stopped, aborted. The deadline of the reason that nobody waits for any more ends no
 * connection. */
Test(regrant_words, an_abort_behind_an_accept_and_drains_waits_for_its_socket_alone)
{
    for (size_t i = 0; i < 2; i++) {
        struct scene s = begin(placements[i]);
        say(&s, KVF_WIRE_ACCEPT, s.g.nonce);
        drain(&s, 0);
        drain(&s, 1);
        s.h.c->hold_write[PAIR_SINK] = true;
        pair_abort(s.sink);
        pair_settle(s.p);
        pair_expect(s.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
        pair_advance(s.p, 510 * PAIR_MS);
        cr_assert(s.h.c->is_open[PAIR_SINK], "it answered, and our ABORT waits");
        s.h.c->hold_write[PAIR_SINK] = false;
        pair_settle(s.p);
        cr_assert_eq(abort_of(&s, s.g.nonce), KVF_E_ABORTED);
        cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        hostile_finish(s.p);
    }
}

/* One lane stops and the other one breaks at the sink; the answer is the last thing that comes. */
Test(regrant_words, an_accept_behind_a_drain_and_a_fence_leads_to_a_new_grant)
{
    for (size_t i = 0; i < 2; i++) {
        struct scene s = begin(placements[i]);
        drain(&s, 1);
        lose_lane(&s, 0);
        cr_assert_eq(pair_unproven(s.sink), 0);
        cr_assert_eq(pair_count(s.p, 0, KVF_COUNT_REGRANTS), 0);
        say(&s, KVF_WIRE_ACCEPT, s.g.nonce);
        expect_again(&s);
        pair_abort(s.sink);
        hostile_finish(s.p);
    }
}

/* ---- DECLINE of the new one ------------------------------------------------------------------------------------- */

/* The source keeps the place of the grant before: it is told that nobody takes it, unless it has let go by itself. */
Test(regrant_words, a_new_grant_that_is_declined_gives_the_place_of_the_old_one_up)
{
    for (size_t i = 0; i < 4; i++) {
        bool is_gone = i / 2 == 1;
        struct scene s = begin(placements[i % 2]);
        say(&s, KVF_WIRE_ACCEPT, s.g.nonce);
        drain(&s, 1);
        lose_lane(&s, 0);
        struct kvf_wire_grant again = hostile_read_grant(&s.h);
        cr_assert_eq(again.past_nonce, s.g.nonce);
        unsigned char frame[256];
        struct kvf_wire_decline m = {
            .nonce = again.nonce, .reason = is_gone ? KVF_E_PEER_ROOM_GONE : KVF_E_PEER_BUSY};
        hostile_send(&s.h, frame, kvf_wire_put_decline(frame, sizeof frame, s.h.seq, &m));
        pair_settle(s.p);
        pair_expect(s.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED,
                    is_gone ? KVF_E_PEER_ROOM_GONE : KVF_E_PEER_BUSY);
        cr_assert_eq(abort_of(&s, s.g.nonce), is_gone ? 0 : KVF_E_ABORTED);
        cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        hostile_finish(s.p);
    }
}

/* ---- a part that is whole ---------------------------------------------------------------------------------------- */

/* One of two writers says END on every lane, and takes it back before its ACCEPT: what has landed is not granted
 * again, the room fails. */
Test(regrant_words, a_part_that_has_landed_whole_is_not_granted_again)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct kvf_writer_shm writers[2] = {{.addr = pair_addr(1), .start = 0, .count = 4},
                                        {.addr = pair_addr(2), .start = 4, .count = 4}};
    struct kvf_run_shm run = {PAIR_R0, 0, 8};
    struct pair_room *sink = pair_open_sink(p, 0,
                                            &(struct pair_open){.key = 7,
                                                                .writers = writers,
                                                                .writer_count = 2,
                                                                .runs = &run,
                                                                .run_count = 1,
                                                                .is_any_content = true});
    struct hostile h = hostile_as_source(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    cr_assert_eq(pair_raw_data(p, pair_stream(p, 0, 1, 0), g.handle, 0, 4), 0);
    for (uint32_t lane = 0; lane < 2; lane++) {
        cr_assert_eq(pair_raw_marker(p, pair_stream(p, 0, 1, lane), g.handle, KVF_LANE_END), 0);
    }
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN, "the other writer's part is to come");
    hostile_send_simple(&h, KVF_WIRE_ENDED, g.nonce);
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0, "nothing of it is on its way");
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_LANDED, KVF_E_LANE_LOST);
    hostile_finish(p);
}

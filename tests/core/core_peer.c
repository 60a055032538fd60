/* Control connections and lanes coming and going while rooms wait for them. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

Test(core_peer, a_room_whose_grant_never_left_survives_the_loss_of_the_connection)
{
    struct pair *p =
        pair_new(&(struct pair_options){.lane_rooms = 1, .placement = KVF_PLACEMENT_POSTED});
    pair_warm(p, 0, 1);
    struct pair_room *first = pair_source(p, 1, 1);
    struct pair_room *first_sink = pair_sink(p, 0, 1, 1, 0, 4);
    struct pair_room *second = pair_source(p, 1, 2);
    struct pair_room *second_sink = pair_sink(p, 0, 1, 2, 8, 4); /* waits for the credit */
    pair_settle(p);
    pair_conn_cut(p, pair_conn(p, 0, 1));
    pair_settle(p);
    cr_assert(pair_is_drained(first_sink));
    cr_assert_eq(first_sink->view.reason, KVF_E_PEER_LOST);
    cr_assert(pair_is_drained(first));
    cr_assert_eq(pair_phase(second_sink), KVF_PHASE_OPEN);
    (void)pair_submit(second, 0, 0, 4, true);
    pair_advance(p, 200 * PAIR_MS);
    pair_expect(second_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* The abort falls between the loss and the next attempt: the peer's room must not wait for nobody. */
Test(core_peer, an_abort_while_the_connection_is_away_is_told_when_it_is_back)
{
    struct pair *p = pair_new(&(struct pair_options){.lane_rooms = 1});
    pair_warm(p, 0, 1);
    struct pair_room *first = pair_source(p, 1, 1);
    struct pair_room *first_sink = pair_sink(p, 0, 1, 1, 0, 4);
    struct pair_room *second = pair_source(p, 1, 2);
    struct pair_room *second_sink = pair_sink(p, 0, 1, 2, 8, 4);
    struct pair_room *third = pair_source(p, 1, 3);
    struct pair_room *third_sink = pair_sink(p, 0, 1, 3, 16, 4);
    pair_settle(p);
    pair_conn_cut(p, pair_conn(p, 0, 1));
    pair_abort(second_sink);
    pair_expect(second_sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
    (void)pair_submit(third, 0, 0, 4, true);
    pair_advance(p, 200 * PAIR_MS);
    pair_expect(third_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert(pair_is_drained(first));
    cr_assert(pair_is_drained(first_sink));
    pair_expect(second, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    pair_finish(p);
}

/* The grant was parked, its lane broke, and only then the source's engine opens. */
Test(core_peer, a_source_room_whose_grant_lost_its_lane_before_the_open_gets_another)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_warm(p, 0, 1);
    struct pair_room *sink = pair_sink(p, 0, 1, 1, 0, 4);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
    pair_link(p, 0, 1)->hold_reset = 1; /* the sink has not noticed */
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
    struct pair_room *source = pair_source(p, 1, 1);
    pair_settle(p);
    cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
    pair_link(p, 0, 1)->hold_reset = 0;
    (void)pair_submit(source, 0, 8, 4, true);
    pair_advance(p, 100 * PAIR_MS);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_peer, waiting_rooms_go_to_the_next_incarnation_and_no_granted_one_does)
{
    for (uint32_t is_same = 0; is_same < 2; is_same++) {
        struct pair *p = pair_new(
            &(struct pair_options){.lane_rooms = 1, .placement = KVF_PLACEMENT_POSTED});
        struct pair_room *granted_source = pair_source(p, 1, 1);
        struct pair_room *granted = pair_sink(p, 0, 1, 1, 0, 4);
        struct pair_room *waiting = pair_sink(p, 0, 1, 2, 8, 4);
        pair_settle(p);
        pair_kill(p, 1);
        pair_revive(p, 1, is_same != 0);
        pair_settle(p);
        cr_assert(granted_source->is_lost);
        cr_assert(pair_is_drained(granted));
        cr_assert_eq(granted->view.reason, KVF_E_PEER_LOST);
        struct pair_room *source = pair_source(p, 1, 2);
        (void)pair_submit(source, 0, 0, 4, true);
        pair_advance(p, 200 * PAIR_MS);
        pair_expect(waiting, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_finish(p);
    }
}

Test(core_peer, a_connect_that_is_never_answered_is_given_up_and_a_late_answer_is_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    p->daemons[0].hold_connects = true;
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_advance(p, 4900 * PAIR_MS);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_advance(p, 200 * PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_UNREACHABLE);
    kvf_core_peer_connected(p->daemons[0].core, p->now_ns, 0);
    kvf_core_peer_connect_failed(p->daemons[0].core, p->now_ns, 0, EIO);
    pair_drain(p, 0);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PEERS_UP), 0);
    p->daemons[0].hold_connects = false;
    pair_advance(p, 100 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* The first one is refused, since an idle peer's lanes must be fenced before its place is free. */
Test(core_peer, an_idle_peer_makes_room_for_another_one)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .peers_max = 2});
    pair_warm(p, 0, 1);
    pair_warm(p, 0, 2);
    struct pair_room *refused = pair_sink(p, 0, 3, 7, 0, 4);
    pair_expect(refused, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
    pair_advance(p, 100 * PAIR_MS);
    pair_warm(p, 0, 3);
    struct pair_room *source = pair_source(p, 3, 8); /* a peer in use is not thrown out */
    struct pair_room *sink = pair_sink(p, 0, 3, 8, 0, 4);
    pair_settle(p);
    for (uint32_t i = 0; i < 6; i++) {
        struct pair_room *other = pair_sink(p, 0, 1 + i % 2, 20 + i, 8, 4);
        pair_advance(p, 100 * PAIR_MS);
        pair_abort(other);
        pair_settle(p);
    }
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_peer, an_accepting_daemon_without_a_place_refuses_and_goes_on)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .peers_max = 2});
    pair_warm(p, 1, 0);
    pair_warm(p, 2, 0);
    struct pair_room *sink = pair_sink(p, 3, 0, 7, 0, 4);
    pair_advance(p, 6000 * PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_UNREACHABLE);
    pair_warm(p, 1, 0);
    pair_warm(p, 2, 0);
    pair_finish(p);
}

Test(core_peer, a_lane_that_never_comes_up_holds_no_room_back_for_good)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2});
    pair_link(p, 0, 1)->hold_lane_hello = 2;
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    (void)pair_submit(source, 0, 0, 8, true);
    pair_advance(p, 6000 * PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_link(p, 0, 1)->hold_lane_hello = 0;
    pair_advance(p, 6000 * PAIR_MS);
    pair_finish(p);
}

Test(core_peer, rooms_use_the_lanes_that_are_left_and_the_lost_one_when_it_is_back)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2});
    pair_warm(p, 0, 1);
    pair_link(p, 0, 1)->hold_lane_hello = 2;
    pair_stream_lose(p, pair_stream(p, 0, 1, 1), PAIR_SINK);
    pair_settle(p);
    uint64_t ends = pair_count(p, 0, KVF_COUNT_MARKERS_END);
    pair_warm(p, 0, 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END) - ends, 1);
    pair_link(p, 0, 1)->hold_lane_hello = 0;
    pair_advance(p, 5100 * PAIR_MS);
    ends = pair_count(p, 0, KVF_COUNT_MARKERS_END);
    pair_warm(p, 0, 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END) - ends, 2);
    pair_finish(p);
}

Test(core_peer, a_connection_lost_before_its_lane_action_was_taken_leaves_no_lane_behind)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2});
    pair_link(p, 0, 1)->hold[PAIR_SINK] = true;
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct pair_conn *c = pair_conn(p, 0, 1);
    cr_assert_neq(c->to[PAIR_SINK].head, NULL);
    const unsigned char *hello = c->to[PAIR_SINK].head->data;
    struct kvf_wire_header h;
    cr_assert_eq(kvf_wire_get_header(hello, &h), 0);
    struct kvf_core *core = p->daemons[0].core;
    kvf_core_frame(core, p->now_ns, c->peer[PAIR_SINK], h.type, h.seq,
                   hello + KVF_WIRE_HEADER_BYTES, h.payload_bytes);
    pair_conn_lose(p, c, PAIR_SINK); /* both happen before the next action is asked for */
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        cr_assert_not(p->streams[i].is_used);
    }
    pair_link(p, 0, 1)->hold[PAIR_SINK] = false;
    struct pair_room *source = pair_source(p, 1, 7);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_advance(p, 6000 * PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_peer, frames_and_losses_of_a_connection_already_let_go_are_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    struct pair_conn *c = pair_conn(p, 0, 1);
    uint32_t out = c->peer[PAIR_SINK];
    pair_conn_cut(p, c);
    struct kvf_core *core = p->daemons[0].core;
    unsigned char frame[64];
    int bytes = kvf_wire_put_ping(frame, sizeof frame, 0, &(struct kvf_wire_ping){.seq = 1});
    cr_assert_gt(bytes, 0);
    kvf_core_frame(core, p->now_ns, out, KVF_WIRE_PING, 5, frame + KVF_WIRE_HEADER_BYTES,
                   (size_t)bytes - KVF_WIRE_HEADER_BYTES);
    kvf_core_peer_lost(core, p->now_ns, out, EIO);
    unsigned char buf[1];
    cr_assert_eq(kvf_core_emit(core, p->now_ns, out, buf, sizeof buf), 0);
    cr_assert_not(kvf_core_owes(core, out));
    pair_drain(p, 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 0);
    pair_advance(p, 100 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

Test(core_peer, a_frame_out_of_order_or_a_second_hello_ends_the_connection)
{
    for (uint32_t kind = 0; kind < 3; kind++) {
        struct pair *p = pair_new(&(struct pair_options){0});
        p->is_hostile = true;
        pair_warm(p, 0, 1);
        struct pair_conn *c = pair_conn(p, 0, 1);
        struct kvf_core *core = p->daemons[1].core;
        uint32_t in = c->peer[PAIR_SOURCE];
        unsigned char frame[256];
        int bytes;
        uint32_t seq = core->peers[in].seq_in;
        if (kind == 1) {
            struct kvf_wire_hello again = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                           .caps = KVF_CAP_DRAIN_PROOF,
                                           .transport = KVF_WIRE_SIM,
                                           .placement = KVF_PLACEMENT_CHECKED,
                                           .lane_count = 1,
                                           .receives_per_lane = 1};
            bytes = kvf_wire_put_hello(frame, sizeof frame, seq, &again);
        } else { /* kind 0: a number is missing; kind 2: a payload of a PING that is not one */
            bytes =
                kvf_wire_put_ping(frame, sizeof frame, seq, &(struct kvf_wire_ping){.seq = 1});
        }
        cr_assert_gt(bytes, 0);
        size_t payload = (size_t)bytes - KVF_WIRE_HEADER_BYTES - (kind == 2 ? 1 : 0);
        kvf_core_frame(core, p->now_ns, in, kind == 1 ? KVF_WIRE_HELLO : KVF_WIRE_PING,
                       seq + (kind == 0 ? 1 : 0), frame + KVF_WIRE_HEADER_BYTES, payload);
        pair_drain(p, 1);
        cr_assert_eq(pair_count(p, 1, KVF_COUNT_PROTOCOL_ERRORS), 1);
        cr_assert_not(c->is_open[PAIR_SOURCE]);
        pair_advance(p, 100 * PAIR_MS);
        pair_warm(p, 0, 1);
        pair_finish(p);
    }
}

/* A pong to a question that was not asked, or answered before, is no sign of life. */
/* The dialler has closed its first connection, whose HELLO the network delivers after the second's. */
Test(core_peer, a_late_hello_of_an_older_connection_does_not_end_the_newer)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    struct pair_conn *c = pair_conn(p, 0, 1);
    struct kvf_core *core = p->daemons[1].core;
    struct kvf_peer *mine = &core->peers[c->peer[PAIR_SOURCE]];
    struct kvf_wire_hello hello = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                   .caps = KVF_CAP_DRAIN_PROOF,
                                   .supervisor_id = p->daemons[0].supervisor_id,
                                   .worker_starts = p->daemons[0].worker_starts,
                                   .transport = p->config.transport,
                                   .placement = KVF_PLACEMENT_CHECKED,
                                   .lane_count = 1,
                                   .receives_per_lane = 8};
    uint64_t session = mine->session;
    static const uint16_t counts[] = {1, 2, 0x7fff, 0x8000, 0xffff, 0};
    for (uint32_t i = 0; i < 6; i++) { /* the count goes round */
        mine->session = (session & ~UINT64_C(0xffff0000)) | (uint64_t)counts[i] << 16;
        uint16_t older = (uint16_t)(counts[i] - 1u);
        hello.session = (session & ~UINT64_C(0xffffffff)) | (uint64_t)older << 16 | 0xabcd;
        unsigned char frame[256];
        int bytes = kvf_wire_put_hello(frame, sizeof frame, 0, &hello);
        uint32_t peer;
        int rc = kvf_core_peer_accept(core, p->now_ns, frame + KVF_WIRE_HEADER_BYTES,
                                      (size_t)bytes - KVF_WIRE_HEADER_BYTES, &peer);
        cr_assert_eq(rc, -KVF_E_PEER_REFUSED, "%u after %u", older, counts[i]);
        cr_assert(pair_conn(p, 0, 1) == c);
    }
    mine->session = session;
    pair_warm(p, 0, 1);
    pair_finish(p);
}

Test(core_peer, only_an_answer_to_the_last_questions_counts_as_life)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    p->is_hostile = true;
    pair_warm(p, 0, 1);
    struct pair_conn *c = pair_conn(p, 0, 1);
    struct kvf_core *core = p->daemons[0].core;
    uint32_t out = c->peer[PAIR_SINK];
    p->daemons[1].is_frozen = true;
    for (uint32_t ms = 0; ms < 1300; ms += 10) {
        pair_advance(p, 10 * PAIR_MS);
        unsigned char frame[64];
        uint64_t seq = ms % 20 == 0 ? 0 : 1u << 30; /* old news, and news of the future */
        int bytes =
            kvf_wire_put_pong(frame, sizeof frame, 0, &(struct kvf_wire_ping){.seq = seq});
        cr_assert_gt(bytes, 0);
        if (c->is_open[PAIR_SINK]) {
            kvf_core_frame(core, p->now_ns, out, KVF_WIRE_PONG, core->peers[out].seq_in,
                           frame + KVF_WIRE_HEADER_BYTES,
                           (size_t)bytes - KVF_WIRE_HEADER_BYTES);
        }
        pair_drain(p, 0);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 1);
    pair_open_gates(p);
    pair_advance(p, 3000 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

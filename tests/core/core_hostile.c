/* A peer that speaks the protocol as it likes. Nothing it says may crash the core, cost another peer
 * anything, or make a page idle that something accounted for can still touch. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

/* ---- HELLO ------------------------------------------------------------------------------------------ */

Test(hostile, a_hello_that_cannot_prove_drain_or_speaks_otherwise_is_refused)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct kvf_wire_hello bad[7];
    for (uint32_t i = 0; i < 7; i++) {
        bad[i] = hostile_hello(1);
    }
    bad[0].caps = 0;
    bad[1].version_major = KVF_WIRE_VERSION_MAJOR + 1;
    bad[2].transport = KVF_WIRE_TCP;
    bad[3].lane_count = 0;
    bad[4].lane_count = 200;
    bad[5].placement = 9;
    bad[6].auth_kind = 3;
    for (uint32_t i = 0; i < 7; i++) {
        struct hostile h = {.p = p, .side = PAIR_SINK};
        h.c = pair_raw_connect(p, 1, 0);
        unsigned char frame[256];
        int bytes = kvf_wire_put_hello(frame, sizeof frame, 0, &bad[i]);
        if (bytes < 0) {
            pair_conn_lose(p, h.c, PAIR_SINK);
            continue; /* not even to be written down */
        }
        hostile_send(&h, frame, bytes);
        cr_assert_not(h.c->is_open[PAIR_SOURCE], "hello %u", i);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PEERS_UP), 0);
        pair_conn_lose(p, h.c, PAIR_SINK);
    }
    hostile_finish(p);
}

Test(hostile, a_source_that_refuses_us_fails_the_room_with_its_code)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct hostile h = {.p = p, .side = PAIR_SOURCE, .c = pair_conn(p, 0, 1)};
    const unsigned char *payload;
    size_t bytes;
    struct kvf_wire_hello m;
    cr_assert_eq(pair_raw_read(p, h.c, PAIR_SOURCE, &payload, &bytes), KVF_WIRE_HELLO);
    cr_assert_eq(kvf_wire_get_hello(payload, bytes, &m), 0);
    struct kvf_wire_hello mine = hostile_hello(m.session);
    mine.code = KVF_E_PEER_REFUSED;
    hostile_say_hello(&h, &mine);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_REFUSED);
    hostile_finish(p);
}

/* ---- a hostile source ------------------------------------------------------------------------------- */

Test(hostile, bytes_outside_of_the_grant_end_the_stream_and_touch_nothing)
{
    static const struct {
        uint32_t handle_xor, position, pages;
    } bad[] = {{0, 4, 1},          {0, 3, 2}, {0, 0, 0},        {0, UINT32_MAX, 1},
               {0, 1, UINT32_MAX}, {1, 0, 1}, {1u << 16, 0, 1}, {UINT32_MAX, 0, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        struct kvf_wire_grant g = hostile_read_grant(&h);
        hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        struct kvf_placement_at at;
        struct pair_stream *s = pair_stream(p, 0, 1, (uint32_t)__builtin_ctz(g.lane_mask));
        cr_assert_eq(kvf_core_place(p->daemons[0].core, s->lane[PAIR_SINK], s->epoch,
                                    g.handle ^ bad[i].handle_xor, bad[i].position, bad[i].pages,
                                    &at),
                     -EPROTO);
        pair_stream_lose(p, s, PAIR_SINK); /* as the transport does on -EPROTO */
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 1);
        cr_assert_eq(p->landed_halves, 0);
        pair_abort(sink);
        hostile_finish(p);
    }
}

Test(hostile, an_end_without_all_bytes_is_not_success)
{
    for (uint32_t bytes_missing = 0; bytes_missing < 3; bytes_missing++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        struct kvf_wire_grant g = hostile_read_grant(&h);
        hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        for (uint32_t lane = 0; lane < 2; lane++) {
            struct pair_stream *s = pair_stream(p, 0, 1, lane);
            if ((g.lane_mask >> lane & 1u) == 0) {
                continue;
            }
            if (bytes_missing < 2 && g.lane_mask >> (lane + 1) == 0) {
                cr_assert_eq(pair_raw_data(p, s, g.handle, 0, 4 - bytes_missing), 0);
            }
            cr_assert_eq(pair_raw_marker(p, s, g.handle, KVF_LANE_END), 0);
        }
        if (bytes_missing == 0) {
            pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        } else {
            pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_LANDED, KVF_E_SHORT);
            cr_assert_eq(sink->view.word & KVF_WORD_VISIBLE, 0);
        }
        hostile_finish(p);
    }
}

Test(hostile, a_second_marker_on_a_lane_and_bytes_behind_a_marker_end_the_stream)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    cr_assert_eq(g.lane_mask, 3);
    cr_assert_eq(pair_raw_marker(p, s, g.handle, KVF_LANE_END), 0);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    struct kvf_placement_at at;
    cr_assert_eq(
        kvf_core_place(p->daemons[0].core, s->lane[PAIR_SINK], s->epoch, g.handle, 0, 1, &at),
        -EPROTO);
    cr_assert_eq(pair_raw_marker(p, s, g.handle, KVF_LANE_DRAIN), -EPROTO);
    pair_settle(p);
    pair_abort(sink);
    hostile_finish(p);
}

Test(hostile, a_marker_of_no_kind_is_refused)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    cr_assert_eq(pair_raw_marker(p, pair_stream(p, 0, 1, 0), g.handle, KVF_LANE_DATA), -EPROTO);
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 1);
    pair_abort(sink);
    hostile_finish(p);
}

Test(hostile, a_decline_after_bytes_or_after_an_accept_is_a_violation)
{
    for (uint32_t kind = 0; kind < 3; kind++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        struct kvf_wire_grant g = hostile_read_grant(&h);
        uint64_t errors = pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS);
        if (kind == 0) { /* "nothing was posted", yet something came */
            cr_assert_eq(pair_raw_data(p, pair_stream(p, 0, 1, 0), g.handle, 0, 1), 0);
        } else {
            hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        }
        hostile_send_simple(&h, kind == 2 ? KVF_WIRE_ACCEPT : KVF_WIRE_DECLINE, g.nonce);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), errors + 1);
        cr_assert_not(h.c->is_open[PAIR_SINK]);
        cr_assert(pair_is_drained(sink));
        cr_assert_eq(pair_proof(sink), KVF_PROOF_FENCED); /* its word is worth nothing now */
        hostile_finish(p);
    }
}

/* It answers PINGs, so it lives; it never answers a GRANT or an ABORT. It may not hold handles for ever. */
Test(hostile, a_peer_that_never_answers_its_grants_holds_no_handle_for_ever)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    (void)hostile_read_grant(&h);
    pair_abort(sink);
    for (uint32_t ms = 0; ms < 6000 && h.c->is_open[PAIR_SINK]; ms += 50) {
        pair_advance(p, 50 * PAIR_MS);
        const unsigned char *payload;
        size_t bytes;
        uint8_t type;
        while ((type = pair_raw_read(p, h.c, PAIR_SOURCE, &payload, &bytes)) != 0) {
            struct kvf_wire_ping ping;
            if (type == KVF_WIRE_PING && kvf_wire_get_ping(payload, bytes, &ping) == 0) {
                unsigned char frame[64];
                hostile_send(&h, frame, kvf_wire_put_pong(frame, sizeof frame, h.seq, &ping));
            }
        }
    }
    cr_assert(pair_is_drained(sink));
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
    hostile_finish(p);
}

/* ---- a hostile sink ---------------------------------------------------------------------------------- */

Test(hostile, grants_that_break_the_rules_cost_the_connection_and_nothing_else)
{
    for (uint32_t kind = 0; kind < 14; kind++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct pair_room *source = pair_source(p, 0, 9);
        struct hostile h = hostile_as_sink(p);
        hostile_send_region(&h, 3, 1, 16);
        struct kvf_wire_grant g = hostile_grant(1, 9);
        struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
        switch (kind) {
        case 0:
            run.region = 4; /* never announced */
            break;
        case 1:
            run.first = 13; /* past its end */
            break;
        case 2:
            run.first = UINT32_MAX;
            break;
        case 3:
            run.count = 5; /* more than the grant says */
            break;
        case 4:
            run.count = 3; /* less */
            break;
        case 5:
            run.count = 0;
            break;
        case 6:
            g.lane_mask = 4; /* no such lane */
            break;
        case 7:
            g.nonce = 0;
            break;
        case 8:
            g.first_run = 1; /* a fragment of nothing */
            g.total_runs = 2;
            break;
        case 9:
            g.total_runs = 5; /* more runs than pages */
            break;
        case 10:
            run.region = UINT32_MAX;
            break;
        case 11:
            run.count = UINT32_MAX;
            break;
        case 12:
            g.page_count = 0;
            break;
        default:
            g.lane_mask = 0;
            break;
        }
        uint64_t errors = pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS);
        static unsigned char frame[FRAME_MAX];
        int bytes = kvf_wire_put_grant(frame, sizeof frame, h.seq, &g, &run);
        if (bytes > 0) {
            hostile_send(&h, frame, bytes);
            cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), errors + 1, "%u", kind);
            cr_assert_not(h.c->is_open[PAIR_SOURCE], "%u", kind);
        }
        cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
        pair_abort(source);
        hostile_finish(p);
    }
}

Test(hostile, a_grant_with_a_known_nonce_or_inside_another_is_a_violation)
{
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct hostile h = hostile_as_sink(p);
        hostile_send_region(&h, 3, 1, 16);
        struct kvf_wire_grant g = hostile_grant(1, 9);
        struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
        if (kind == 1) { /* half of one, then another */
            g.total_runs = 2;
            g.page_count = 8;
        }
        hostile_send_grant(&h, &g, &run);
        cr_assert(h.c->is_open[PAIR_SOURCE]);
        struct kvf_wire_grant second = hostile_grant(kind == 0 ? 1 : 2, 10);
        hostile_send_grant(&h, &second, &run);
        cr_assert_not(h.c->is_open[PAIR_SOURCE]);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_IN), 0);
        hostile_finish(p);
    }
}

/* C3: it names rooms that nobody opens. Memory is bounded, the rest is told to come back. */
Test(hostile, c3_grants_for_rooms_nobody_opens_are_parked_up_to_a_bound)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct hostile h = hostile_as_sink(p);
    hostile_send_region(&h, 3, 1, 16);
    struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
    uint32_t busy = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        struct kvf_wire_grant g = hostile_grant(100 + i, 5000 + i);
        hostile_send_grant(&h, &g, &run);
        pair_settle(p);
        cr_assert_leq(pair_gauge(p, 0, KVF_GAUGE_PARKED), 4);
        const unsigned char *payload;
        size_t bytes;
        uint8_t type;
        while ((type = pair_raw_read(p, h.c, PAIR_SINK, &payload, &bytes)) != 0) {
            struct kvf_wire_decline d;
            if (type == KVF_WIRE_DECLINE && kvf_wire_get_decline(payload, bytes, &d) == 0) {
                cr_assert_eq(d.reason, KVF_E_PEER_BUSY);
                busy++;
            }
        }
        hostile_send_simple(&h, KVF_WIRE_ABORT, 0); /* and of rooms nobody knows */
    }
    cr_assert_eq(busy, 3000 - 4);
    cr_assert(h.c->is_open[PAIR_SOURCE]);
    for (uint32_t i = 0; i < 100; i++) {
        pair_warm(p, 2, 0);
    }
    hostile_finish(p);
}

/* Several such peers together do not fill the table that others need either. */
Test(hostile, many_parking_peers_do_not_cost_a_healthy_one_its_connection)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 3, .placement = KVF_PLACEMENT_POSTED, .parked_max = 16, .grants_max = 32});
    p->is_hostile = true;
    pair_make_raw(p, 1);
    struct hostile h[4];
    for (uint32_t k = 0; k < 4; k++) {
        h[k] = (struct hostile){.p = p, .side = PAIR_SINK, .session = 77 + k};
        h[k].c = pair_raw_connect(p, 1, 0);
        struct kvf_wire_hello m = hostile_hello(h[k].session);
        m.supervisor_id = 900 + k;
        hostile_say_hello(&h[k], &m);
        pair_settle(p);
        hostile_send_region(&h[k], 3, 1, 16);
        struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
        for (uint32_t i = 0; i < 16 && h[k].c->is_open[PAIR_SOURCE]; i++) {
            struct kvf_wire_grant g = hostile_grant(100 + i, 5000 + 100 * k + i);
            hostile_send_grant(&h[k], &g, &run);
            pair_settle(p);
        }
    }
    uint64_t lost = pair_count(p, 0, KVF_COUNT_PEERS_LOST);
    pair_warm(p, 2, 0);
    cr_assert_eq(pair_count(p, 2, KVF_COUNT_PEERS_LOST), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), lost);
    hostile_finish(p);
}

static void dial(struct hostile *h, struct pair *p, uint64_t session)
{
    *h = (struct hostile){.p = p, .side = PAIR_SINK, .session = session};
    h->c = pair_raw_connect(p, 1, 0);
    struct kvf_wire_hello m = hostile_hello(session);
    hostile_say_hello(h, &m);
    pair_settle(p);
}

/* One incarnation that reaches us by two addresses dials twice: neither connection ends the other. A
 * second HELLO of the same dial does. */
Test(hostile, a_daemon_with_two_addresses_keeps_both_connections)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct hostile first;
    struct hostile second;
    struct hostile again;
    dial(&first, p, UINT64_C(1) << 32 | 5);
    dial(&second, p, UINT64_C(2) << 32 | 5);
    cr_assert(first.c->is_open[PAIR_SOURCE]);
    cr_assert(second.c->is_open[PAIR_SOURCE]);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 0);
    dial(&again, p, UINT64_C(1) << 32 | 6);
    cr_assert(!first.c->is_open[PAIR_SOURCE]);
    cr_assert(second.c->is_open[PAIR_SOURCE]);
    cr_assert(again.c->is_open[PAIR_SOURCE]);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 1);
    hostile_finish(p);
}

/* C5: the list is of an older registration, which the sink itself has replaced since. */
Test(hostile, c5_a_grant_of_a_replaced_region_is_checked_against_the_new_one)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *source = pair_source(p, 0, 9);
    (void)pair_submit(source, 0, 0, 4, true);
    struct hostile h = hostile_as_sink(p);
    hostile_send_region(&h, 3, 1, 64);
    hostile_send_region(&h, 3, 2, 16);
    struct kvf_wire_grant g = hostile_grant(1, 9);
    struct kvf_wire_run run = {.region = 3, .first = 40, .count = 4};
    hostile_send_grant(&h, &g, &run);
    cr_assert_not(h.c->is_open[PAIR_SOURCE]);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_POSTS), 0);
    pair_abort(source);
    hostile_finish(p);
}

Test(hostile, lanes_of_strangers_old_epochs_and_no_index_are_refused)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct hostile h = hostile_as_sink(p);
    int rc;
    cr_assert_eq(pair_raw_lane(p, h.c, h.session + 1, 0, 1, &rc), NULL);
    cr_assert_eq(rc, -KVF_E_PEER_REFUSED);
    cr_assert_eq(pair_raw_lane(p, h.c, h.session, 2, 1, &rc), NULL);
    cr_assert_eq(pair_raw_lane(p, h.c, h.session, UINT32_MAX, 1, &rc), NULL);
    cr_assert_eq(pair_raw_lane(p, h.c, h.session, 0, 0, &rc), NULL);
    struct pair_stream *s = pair_raw_lane(p, h.c, h.session, 0, 5, &rc);
    cr_assert_neq(s, NULL);
    pair_stream_lose(p, s, PAIR_SOURCE);
    cr_assert_eq(pair_raw_lane(p, h.c, h.session, 0, 5, &rc), NULL); /* the same epoch again */
    cr_assert_eq(pair_raw_lane(p, h.c, h.session, 0, 4, &rc), NULL);
    cr_assert_neq(pair_raw_lane(p, h.c, h.session, 0, 6, &rc), NULL);
    hostile_finish(p);
}

/* A grant that names lanes as they are not is answered, not served. */
Test(hostile, a_grant_for_lanes_of_another_epoch_is_declined)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *source = pair_source(p, 0, 9);
    (void)pair_submit(source, 0, 0, 4, true);
    struct hostile h = hostile_as_sink(p);
    int rc;
    (void)pair_raw_lane(p, h.c, h.session, 0, 3, &rc);
    hostile_send_region(&h, 3, 1, 16);
    struct kvf_wire_grant g = hostile_grant(1, 9);
    struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
    hostile_send_grant(&h, &g, &run); /* epoch 1, the lane is at 3 */
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_POSTS), 0);
    cr_assert(h.c->is_open[PAIR_SOURCE]);
    pair_abort(source);
    hostile_finish(p);
}

Test(hostile, a_first_frame_of_random_bytes_is_refused)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    for (uint32_t i = 0; i < 5000; i++) {
        unsigned char payload[KVF_WIRE_HELLO_BYTES + 8];
        size_t bytes = pair_random(p, sizeof payload);
        for (size_t j = 0; j < bytes; j++) {
            payload[j] = (unsigned char)pair_random(p, 256);
        }
        uint32_t peer;
        cr_assert_lt(kvf_core_peer_accept(p->daemons[0].core, p->now_ns, payload, bytes, &peer),
                     0);
    }
    hostile_finish(p);
}

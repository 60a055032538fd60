/* A peer that speaks the protocol as it likes. Nothing it says may crash the core, cost another peer
 * anything, or make a page idle that something accounted for can still touch. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define FRAME_MAX (KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX)

/* Daemon 0 is honest, daemon 1 is the test, daemon 2 is an honest bystander. */
struct hostile {
    struct pair *p;
    struct pair_conn *c;
    int side; /* ours: PAIR_SINK when we asked daemon 0 to be our source */
    uint32_t seq;
    uint64_t session;
};

static struct pair *new_world(uint8_t placement)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 3, .lanes = 2, .placement = placement, .parked_max = 4, .grants_max = 64});
    p->is_hostile = true;
    pair_make_raw(p, 1);
    return p;
}

static void send_frame(struct hostile *h, const unsigned char *frame, int bytes)
{
    cr_assert_gt(bytes, 0);
    h->seq++;
    pair_raw_send(h->p, h->c, h->side, frame, (size_t)bytes);
}

static struct kvf_wire_hello hello_of(uint64_t session)
{
    struct kvf_wire_hello m = {.version_major = KVF_WIRE_VERSION_MAJOR,
                               .version_minor = KVF_WIRE_VERSION_MINOR,
                               .caps = KVF_CAP_DRAIN_PROOF,
                               .supervisor_id = 666,
                               .worker_starts = 1,
                               .session = session,
                               .transport = KVF_WIRE_SIM,
                               .placement = KVF_PLACEMENT_POSTED,
                               .lane_count = 2,
                               .receives_per_lane = 8};
    (void)snprintf(m.name, sizeof m.name, "mallory");
    return m;
}

static void say_hello(struct hostile *h, const struct kvf_wire_hello *m)
{
    unsigned char frame[256];
    send_frame(h, frame, kvf_wire_put_hello(frame, sizeof frame, h->seq, m));
}

/* A hostile sink: it connects, and daemon 0 is its source. */
static struct hostile as_sink(struct pair *p)
{
    struct hostile h = {.p = p, .side = PAIR_SINK, .session = 4242};
    h.c = pair_raw_connect(p, 1, 0);
    struct kvf_wire_hello m = hello_of(h.session);
    say_hello(&h, &m);
    pair_settle(p);
    return h;
}

/* A hostile source: daemon 0 has a sink room that names it, and waits for what it says. */
static struct hostile as_source(struct pair *p)
{
    struct hostile h = {.p = p, .side = PAIR_SOURCE};
    pair_settle(p);
    h.c = pair_conn(p, 0, 1);
    cr_assert_neq(h.c, NULL);
    const unsigned char *payload;
    size_t bytes;
    cr_assert_eq(pair_raw_read(p, h.c, PAIR_SOURCE, &payload, &bytes), KVF_WIRE_HELLO);
    struct kvf_wire_hello m;
    cr_assert_eq(kvf_wire_get_hello(payload, bytes, &m), 0);
    h.session = m.session;
    struct kvf_wire_hello mine = hello_of(h.session);
    say_hello(&h, &mine);
    pair_settle(p);
    for (uint32_t i = 0; i < 2; i++) {
        unsigned char frame[256];
        send_frame(&h, frame,
                   kvf_wire_put_lane(frame, sizeof frame, h.seq,
                                     &(struct kvf_wire_lane){.lane_idx = i, .epoch = 1}));
    }
    pair_settle(p);
    return h;
}

static struct kvf_wire_grant read_grant(struct hostile *h)
{
    const unsigned char *payload;
    size_t bytes;
    uint8_t type;
    struct kvf_wire_grant m = {0};
    while ((type = pair_raw_read(h->p, h->c, PAIR_SOURCE, &payload, &bytes)) != 0) {
        if (type == KVF_WIRE_GRANT) {
            cr_assert_eq(kvf_wire_get_grant(payload, bytes, &m), 0);
            return m;
        }
    }
    cr_assert_fail("no GRANT was sent");
    return m;
}

static void send_region(struct hostile *h, uint32_t region, uint32_t epoch, uint64_t pages)
{
    static unsigned char frame[FRAME_MAX];
    static struct kvf_wire_region m;
    m = (struct kvf_wire_region){
        .region = region, .epoch = epoch, .page_count = pages, .plane_count = 1};
    m.planes[0] =
        (struct kvf_wire_plane){.stride = PAIR_PAGE_BYTES, .page_bytes = PAIR_PAGE_BYTES};
    send_frame(h, frame, kvf_wire_put_region(frame, sizeof frame, h->seq, &m));
}

static void send_grant(struct hostile *h, const struct kvf_wire_grant *m,
                       const struct kvf_wire_run *runs)
{
    static unsigned char frame[FRAME_MAX];
    send_frame(h, frame, kvf_wire_put_grant(frame, sizeof frame, h->seq, m, runs));
}

static struct kvf_wire_grant small_grant(uint64_t nonce, uint64_t key)
{
    return (struct kvf_wire_grant){.nonce = nonce,
                                   .label = key,
                                   .key = key,
                                   .handle = (uint32_t)nonce,
                                   .lane_mask = 1,
                                   .lane_epochs = {1},
                                   .page_count = 4,
                                   .total_runs = 1,
                                   .run_count = 1};
}

static void send_simple(struct hostile *h, uint8_t type, uint64_t nonce)
{
    unsigned char frame[256];
    int bytes = 0;
    struct kvf_wire_abort abort = {.nonce = nonce, .reason = KVF_E_ABORTED};
    if (type == KVF_WIRE_ACCEPT) {
        bytes = kvf_wire_put_accept(frame, sizeof frame, h->seq,
                                    &(struct kvf_wire_accept){.nonce = nonce});
    } else if (type == KVF_WIRE_DECLINE) {
        bytes = kvf_wire_put_decline(
            frame, sizeof frame, h->seq,
            &(struct kvf_wire_decline){.nonce = nonce, .reason = KVF_E_PEER_BUSY});
    } else if (type == KVF_WIRE_ENDED) {
        bytes = kvf_wire_put_ended(frame, sizeof frame, h->seq,
                                   &(struct kvf_wire_ended){.nonce = nonce,
                                                            .reason = KVF_E_LANE_LOST,
                                                            .broken_lanes = 3});
    } else {
        bytes = kvf_wire_put_abort(frame, sizeof frame, h->seq, &abort);
    }
    send_frame(h, frame, bytes);
}

/* The bystander is served, whatever happened. */
static void finish(struct pair *p)
{
    pair_settle(p);
    pair_warm(p, 0, 2);
    pair_warm(p, 2, 0);
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *c = &p->conns[i];
        for (int side = 0; side < 2; side++) {
            if (c->is_used && c->daemon[side] == 1 && c->is_open[side]) {
                pair_conn_lose(p, c, side);
            }
        }
    }
    p->daemons[1].is_dead = true;
    p->daemons[1].is_raw = false;
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        for (int side = 0; side < 2; side++) {
            if (s->is_used && s->daemon[side] == 1 && s->is_open[side]) {
                pair_stream_lose(p, s, side);
            }
        }
    }
    pair_advance(p, 8000 * PAIR_MS);
    pair_finish(p);
}

/* ---- HELLO ------------------------------------------------------------------------------------------ */

Test(hostile, a_hello_that_cannot_prove_drain_or_speaks_otherwise_is_refused)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct kvf_wire_hello bad[7];
    for (uint32_t i = 0; i < 7; i++) {
        bad[i] = hello_of(1);
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
        send_frame(&h, frame, bytes);
        cr_assert_not(h.c->is_open[PAIR_SOURCE], "hello %u", i);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PEERS_UP), 0);
        pair_conn_lose(p, h.c, PAIR_SINK);
    }
    finish(p);
}

Test(hostile, a_source_that_refuses_us_fails_the_room_with_its_code)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct hostile h = {.p = p, .side = PAIR_SOURCE, .c = pair_conn(p, 0, 1)};
    const unsigned char *payload;
    size_t bytes;
    struct kvf_wire_hello m;
    cr_assert_eq(pair_raw_read(p, h.c, PAIR_SOURCE, &payload, &bytes), KVF_WIRE_HELLO);
    cr_assert_eq(kvf_wire_get_hello(payload, bytes, &m), 0);
    struct kvf_wire_hello mine = hello_of(m.session);
    mine.code = KVF_E_PEER_REFUSED;
    say_hello(&h, &mine);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_REFUSED);
    finish(p);
}

/* ---- a hostile source ------------------------------------------------------------------------------- */

Test(hostile, bytes_outside_of_the_grant_end_the_stream_and_touch_nothing)
{
    static const struct {
        uint32_t handle_xor, position, pages;
    } bad[] = {{0, 4, 1},          {0, 3, 2}, {0, 0, 0},        {0, UINT32_MAX, 1},
               {0, 1, UINT32_MAX}, {1, 0, 1}, {1u << 16, 0, 1}, {UINT32_MAX, 0, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pair *p = new_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = as_source(p);
        struct kvf_wire_grant g = read_grant(&h);
        send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        struct kvf_placement_at at;
        struct pair_stream *s = pair_stream(p, 0, 1, (uint32_t)__builtin_ctz(g.lane_mask));
        cr_assert_eq(kvf_core_place(p->daemons[0].core, s->lane[PAIR_SINK], s->epoch,
                                    g.handle ^ bad[i].handle_xor, bad[i].position, bad[i].pages,
                                    &at),
                     -EPROTO);
        pair_stream_lose(p, s, PAIR_SINK); /* as the transport does on -EPROTO */
        pair_settle(p);
        cr_assert_eq(sink->view.reason, KVF_E_LANE_LOST);
        cr_assert_eq(p->landed_halves, 0);
        pair_abort(sink);
        finish(p);
    }
}

Test(hostile, an_end_without_all_bytes_is_not_success)
{
    for (uint32_t bytes_missing = 0; bytes_missing < 3; bytes_missing++) {
        struct pair *p = new_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = as_source(p);
        struct kvf_wire_grant g = read_grant(&h);
        send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
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
        finish(p);
    }
}

Test(hostile, a_second_marker_on_a_lane_and_bytes_behind_a_marker_end_the_stream)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = as_source(p);
    struct kvf_wire_grant g = read_grant(&h);
    send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
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
    finish(p);
}

Test(hostile, a_marker_of_no_kind_is_refused)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = as_source(p);
    struct kvf_wire_grant g = read_grant(&h);
    cr_assert_eq(pair_raw_marker(p, pair_stream(p, 0, 1, 0), g.handle, KVF_LANE_DATA), -EPROTO);
    pair_settle(p);
    cr_assert_eq(sink->view.reason, KVF_E_LANE_LOST);
    finish(p);
}

Test(hostile, a_decline_after_bytes_or_after_an_accept_is_a_violation)
{
    for (uint32_t kind = 0; kind < 3; kind++) {
        struct pair *p = new_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = as_source(p);
        struct kvf_wire_grant g = read_grant(&h);
        uint64_t errors = pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS);
        if (kind == 0) { /* "nothing was posted", yet something came */
            cr_assert_eq(pair_raw_data(p, pair_stream(p, 0, 1, 0), g.handle, 0, 1), 0);
        } else {
            send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        }
        send_simple(&h, kind == 2 ? KVF_WIRE_ACCEPT : KVF_WIRE_DECLINE, g.nonce);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), errors + 1);
        cr_assert_not(h.c->is_open[PAIR_SINK]);
        cr_assert(pair_is_drained(sink));
        cr_assert_eq(pair_proof(sink), KVF_PROOF_FENCED); /* its word is worth nothing now */
        finish(p);
    }
}

/* It answers PINGs, so it lives; it never answers a GRANT or an ABORT. It may not hold handles for ever. */
Test(hostile, a_peer_that_never_answers_its_grants_holds_no_handle_for_ever)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = as_source(p);
    (void)read_grant(&h);
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
                send_frame(&h, frame, kvf_wire_put_pong(frame, sizeof frame, h.seq, &ping));
            }
        }
    }
    cr_assert(pair_is_drained(sink));
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
    finish(p);
}

/* ---- a hostile sink ---------------------------------------------------------------------------------- */

Test(hostile, grants_that_break_the_rules_cost_the_connection_and_nothing_else)
{
    for (uint32_t kind = 0; kind < 14; kind++) {
        struct pair *p = new_world(KVF_PLACEMENT_POSTED);
        struct pair_room *source = pair_source(p, 0, 9);
        struct hostile h = as_sink(p);
        send_region(&h, 3, 1, 16);
        struct kvf_wire_grant g = small_grant(1, 9);
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
            send_frame(&h, frame, bytes);
            cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), errors + 1, "%u", kind);
            cr_assert_not(h.c->is_open[PAIR_SOURCE], "%u", kind);
        }
        cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
        pair_abort(source);
        finish(p);
    }
}

Test(hostile, a_grant_with_a_known_nonce_or_inside_another_is_a_violation)
{
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct pair *p = new_world(KVF_PLACEMENT_POSTED);
        struct hostile h = as_sink(p);
        send_region(&h, 3, 1, 16);
        struct kvf_wire_grant g = small_grant(1, 9);
        struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
        if (kind == 1) { /* half of one, then another */
            g.total_runs = 2;
            g.page_count = 8;
        }
        send_grant(&h, &g, &run);
        cr_assert(h.c->is_open[PAIR_SOURCE]);
        struct kvf_wire_grant second = small_grant(kind == 0 ? 1 : 2, 10);
        send_grant(&h, &second, &run);
        cr_assert_not(h.c->is_open[PAIR_SOURCE]);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_IN), 0);
        finish(p);
    }
}

/* C3: it names rooms that nobody opens. Memory is bounded, the rest is told to come back. */
Test(hostile, c3_grants_for_rooms_nobody_opens_are_parked_up_to_a_bound)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct hostile h = as_sink(p);
    send_region(&h, 3, 1, 16);
    struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
    uint32_t busy = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        struct kvf_wire_grant g = small_grant(100 + i, 5000 + i);
        send_grant(&h, &g, &run);
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
        send_simple(&h, KVF_WIRE_ABORT, 0); /* and of rooms nobody knows */
    }
    cr_assert_eq(busy, 3000 - 4);
    cr_assert(h.c->is_open[PAIR_SOURCE]);
    for (uint32_t i = 0; i < 100; i++) {
        pair_warm(p, 2, 0);
    }
    finish(p);
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
        struct kvf_wire_hello m = hello_of(h[k].session);
        m.supervisor_id = 900 + k;
        say_hello(&h[k], &m);
        pair_settle(p);
        send_region(&h[k], 3, 1, 16);
        struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
        for (uint32_t i = 0; i < 16 && h[k].c->is_open[PAIR_SOURCE]; i++) {
            struct kvf_wire_grant g = small_grant(100 + i, 5000 + 100 * k + i);
            send_grant(&h[k], &g, &run);
            pair_settle(p);
        }
    }
    uint64_t lost = pair_count(p, 0, KVF_COUNT_PEERS_LOST);
    pair_warm(p, 2, 0);
    cr_assert_eq(pair_count(p, 2, KVF_COUNT_PEERS_LOST), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), lost);
    finish(p);
}

/* C5: the list is of an older registration, which the sink itself has replaced since. */
Test(hostile, c5_a_grant_of_a_replaced_region_is_checked_against_the_new_one)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct pair_room *source = pair_source(p, 0, 9);
    (void)pair_submit(source, 0, 0, 4, true);
    struct hostile h = as_sink(p);
    send_region(&h, 3, 1, 64);
    send_region(&h, 3, 2, 16);
    struct kvf_wire_grant g = small_grant(1, 9);
    struct kvf_wire_run run = {.region = 3, .first = 40, .count = 4};
    send_grant(&h, &g, &run);
    cr_assert_not(h.c->is_open[PAIR_SOURCE]);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_POSTS), 0);
    pair_abort(source);
    finish(p);
}

Test(hostile, lanes_of_strangers_old_epochs_and_no_index_are_refused)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct hostile h = as_sink(p);
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
    finish(p);
}

/* A grant that names lanes as they are not is answered, not served. */
Test(hostile, a_grant_for_lanes_of_another_epoch_is_declined)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
    struct pair_room *source = pair_source(p, 0, 9);
    (void)pair_submit(source, 0, 0, 4, true);
    struct hostile h = as_sink(p);
    int rc;
    (void)pair_raw_lane(p, h.c, h.session, 0, 3, &rc);
    send_region(&h, 3, 1, 16);
    struct kvf_wire_grant g = small_grant(1, 9);
    struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
    send_grant(&h, &g, &run); /* epoch 1, the lane is at 3 */
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_POSTS), 0);
    cr_assert(h.c->is_open[PAIR_SOURCE]);
    pair_abort(source);
    finish(p);
}

/* ---- random bytes ------------------------------------------------------------------------------------ */

static int random_frame(struct hostile *h, unsigned char *frame)
{
    struct pair *p = h->p;
    uint64_t nonce = pair_random(p, 2) == 0 ? pair_random(p, 8) : pair_random(p, UINT64_MAX);
    struct kvf_core *core = p->daemons[0].core;
    if (pair_random(p, 3) == 0 && core->grant_fresh > 0) {
        nonce = core->grants[pair_random(p, core->grant_fresh)].nonce;
    }
    struct kvf_wire_grant g = small_grant(nonce, pair_random(p, 8));
    struct kvf_wire_run runs[4];
    static struct kvf_wire_region region;
    switch (pair_random(p, 11)) {
    case 0:
        g.page_count = (uint32_t)pair_random(p, 16);
        g.lane_mask = (uint32_t)pair_random(p, 4);
        g.lane_epochs[0] = (g.lane_mask & 1u) != 0 ? (uint32_t)pair_random(p, 4) : 0;
        g.lane_epochs[1] = (g.lane_mask & 2u) != 0 ? (uint32_t)pair_random(p, 4) : 0;
        g.total_runs = (uint32_t)pair_random(p, 5);
        g.first_run = (uint32_t)pair_random(p, 3);
        g.run_count = (uint32_t)pair_random(p, 5);
        for (uint32_t i = 0; i < 4; i++) {
            runs[i] = (struct kvf_wire_run){.region = (uint32_t)pair_random(p, 5),
                                            .first = (uint32_t)pair_random(p, 20),
                                            .count = (uint32_t)pair_random(p, 8)};
        }
        return kvf_wire_put_grant(frame, FRAME_MAX, h->seq, &g, runs);
    case 1:
        region = (struct kvf_wire_region){.region = (uint32_t)pair_random(p, 5),
                                          .epoch = (uint32_t)pair_random(p, 3),
                                          .page_count = pair_random(p, 32),
                                          .plane_count = 1 + (uint32_t)pair_random(p, 3)};
        for (uint32_t i = 0; i < 3; i++) {
            region.planes[i].page_bytes = PAIR_PAGE_BYTES;
            region.planes[i].stride = PAIR_PAGE_BYTES;
        }
        return kvf_wire_put_region(frame, FRAME_MAX, h->seq, &region);
    case 2:
        return kvf_wire_put_accept(frame, FRAME_MAX, h->seq,
                                   &(struct kvf_wire_accept){.nonce = nonce});
    case 3:
        return kvf_wire_put_decline(
            frame, FRAME_MAX, h->seq,
            &(struct kvf_wire_decline){.nonce = nonce,
                                       .reason = (uint32_t)pair_random(p, 2000)});
    case 4:
        return kvf_wire_put_ended(
            frame, FRAME_MAX, h->seq,
            &(struct kvf_wire_ended){.nonce = nonce,
                                     .reason = (uint32_t)pair_random(p, 2000),
                                     .broken_lanes = (uint32_t)pair_random(p, 256)});
    case 5:
        return kvf_wire_put_abort(
            frame, FRAME_MAX, h->seq,
            &(struct kvf_wire_abort){.nonce = pair_random(p, 3) == 0 ? 0 : nonce,
                                     .label = g.label,
                                     .key = g.key,
                                     .reason = (uint32_t)pair_random(p, 2000)});
    case 6:
        return kvf_wire_put_lane(
            frame, FRAME_MAX, h->seq,
            &(struct kvf_wire_lane){.lane_idx = (uint32_t)pair_random(p, 3),
                                    .epoch = (uint32_t)pair_random(p, 4)});
    case 7:
        return kvf_wire_put_ping(frame, FRAME_MAX, h->seq,
                                 &(struct kvf_wire_ping){.seq = pair_random(p, 9)});
    case 8:
        return kvf_wire_put_pong(frame, FRAME_MAX, h->seq,
                                 &(struct kvf_wire_ping){.seq = pair_random(p, 9)});
    case 9: {
        struct kvf_wire_hello m = hello_of(pair_random(p, 3));
        return kvf_wire_put_hello(frame, FRAME_MAX, h->seq, &m);
    }
    default:
        return kvf_wire_put_lane_hello(frame, FRAME_MAX, h->seq,
                                       &(struct kvf_wire_lane_hello){.session = 1});
    }
}

/* One in four frames has some of its bytes turned; the header mostly stays, or nothing would be read. */
static void mutate(struct pair *p, unsigned char *frame, int bytes)
{
    if (pair_random(p, 4) != 0) {
        return;
    }
    for (uint64_t n = 1 + pair_random(p, 4); n > 0; n--) {
        uint64_t from = pair_random(p, 16) == 0 ? 0 : KVF_WIRE_HEADER_BYTES;
        if ((uint64_t)bytes > from) {
            frame[from + pair_random(p, (uint64_t)bytes - from)] ^=
                (unsigned char)(1u << pair_random(p, 8));
        }
    }
}

static void random_lane_event(struct hostile *h, struct pair_stream *s)
{
    struct pair *p = h->p;
    struct kvf_core *core = p->daemons[0].core;
    uint32_t handle = (uint32_t)pair_random(p, 70) | (uint32_t)pair_random(p, 4) << 16;
    if (pair_random(p, 2) == 0 && core->grant_fresh > 0) {
        uint32_t idx = (uint32_t)pair_random(p, core->grant_fresh);
        handle = kvf_grant_handle(idx, &core->grants[idx]);
    }
    if (!s->is_used || !s->is_open[PAIR_SINK] || s->daemon[PAIR_SOURCE] != 1 ||
        s->lane[PAIR_SINK] == KVF_NONE) {
        return; /* only lanes of the hostile one */
    }
    switch (pair_random(p, 4)) {
    case 0:
    case 1:
        (void)pair_raw_data(p, s, handle, (uint32_t)pair_random(p, 6),
                            1 + (uint32_t)pair_random(p, 3));
        return;
    case 2:
        (void)pair_raw_marker(p, s, handle, (uint8_t)pair_random(p, 5));
        return;
    default:
        (void)kvf_core_place_fault(core, p->now_ns, s->lane[PAIR_SINK], s->epoch, handle);
        pair_drain(p, 0);
        return;
    }
}

/* Reconnects as either side whenever the core has had enough. */
static void keep_talking(struct hostile *h, bool is_sink)
{
    struct pair *p = h->p;
    if (h->c != NULL && h->c->is_used && h->c->is_open[0] && h->c->is_open[1]) {
        return;
    }
    if (h->c != NULL && h->c->is_used && h->c->is_open[h->side]) {
        pair_conn_lose(p, h->c, h->side);
    }
    *h = (struct hostile){.p = p, .side = is_sink ? PAIR_SINK : PAIR_SOURCE};
    if (is_sink) {
        struct hostile fresh = {.p = p, .side = PAIR_SINK, .session = 4242};
        fresh.c = pair_raw_connect(p, 1, 0);
        struct kvf_wire_hello m = hello_of(fresh.session);
        say_hello(&fresh, &m);
        int rc;
        for (uint32_t i = 0; i < 2; i++) {
            (void)pair_raw_lane(p, fresh.c, fresh.session, i, 1 + i, &rc);
        }
        *h = fresh;
    } else {
        pair_advance(p, 60 * PAIR_MS);
        if (pair_conn(p, 0, 1) != NULL) {
            *h = as_source(p);
        }
    }
}

static void fuzz(uint64_t seed, bool is_sink)
{
    struct pair *p = new_world(seed % 2 == 0 ? KVF_PLACEMENT_CHECKED : KVF_PLACEMENT_POSTED);
    (void)snprintf(p->note, sizeof p->note, "seed %llu: ", (unsigned long long)seed);
    p->random = seed * 977 + 5;
    struct hostile h = {.p = p, .side = is_sink ? PAIR_SINK : PAIR_SOURCE};
    static unsigned char frame[FRAME_MAX];
    struct pair_room *rooms[32] = {0};
    for (uint32_t i = 0; i < 600; i++) {
        uint32_t at = (uint32_t)pair_random(p, 32);
        if (rooms[at] == NULL || pair_is_drained(rooms[at])) {
            uint64_t key = pair_random(p, 8);
            rooms[at] = pair_random(p, 2) == 0 && is_sink
                            ? pair_source(p, 0, key)
                            : pair_sink(p, 0, is_sink ? 2 : 1, key, 4 * at, 4);
            if (!rooms[at]->is_sink) {
                (void)pair_submit(rooms[at], 0, 4 * at, 4, pair_random(p, 2) == 0);
            }
        } else if (pair_random(p, 8) == 0) {
            pair_abort(rooms[at]);
        }
        keep_talking(&h, is_sink);
        if (h.c == NULL || !h.c->is_open[h.side == PAIR_SINK ? PAIR_SOURCE : PAIR_SINK]) {
            continue;
        }
        int bytes = random_frame(&h, frame);
        if (bytes > 0) {
            mutate(p, frame, bytes);
            send_frame(&h, frame, bytes);
        }
        random_lane_event(&h, &p->streams[pair_random(p, 8)]);
        if (pair_random(p, 16) == 0) {
            pair_advance(p, pair_random(p, 400 * PAIR_MS));
        }
        pair_settle(p);
    }
    for (uint32_t i = 0; i < 32; i++) {
        if (rooms[i] != NULL && !pair_is_drained(rooms[i])) {
            pair_abort(rooms[i]);
        }
    }
    finish(p);
}

Test(hostile, random_and_mutated_frames_of_a_sink_crash_nothing_and_everything_ends,
     .timeout = 1000)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fuzz(seed, true);
    }
}

Test(hostile, random_and_mutated_frames_of_a_source_crash_nothing_and_everything_ends,
     .timeout = 1000)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fuzz(seed, false);
    }
}

Test(hostile, a_first_frame_of_random_bytes_is_refused)
{
    struct pair *p = new_world(KVF_PLACEMENT_POSTED);
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
    finish(p);
}

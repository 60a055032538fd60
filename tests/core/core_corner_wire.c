/* Corners of the wire: what a peer may say once in a lifetime, and sockets that take a byte at a time. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

/* ---- what a peer may say -------------------------------------------------------------------------------- */

/* The source's answer to our HELLO: unreadable, of another kind, or to somebody else. */
Test(core_corner_wire, an_answer_to_hello_that_does_not_fit_fails_the_room)
{
    for (uint32_t kind = 0; kind < 4; kind++) {
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
        unsigned char frame[256];
        int frame_bytes;
        mine.caps = kind == 0 ? 0 : mine.caps;
        mine.session += kind == 1;
        if (kind == 3) { /* not a HELLO at all */
            frame_bytes = kvf_wire_put_ping(frame, sizeof frame, 0, &(struct kvf_wire_ping){1});
        } else {
            frame_bytes = kvf_wire_put_hello(frame, sizeof frame, 0, &mine);
            frame[KVF_WIRE_HEADER_BYTES + 34] = kind == 2 ? 0 : 2; /* lanes */
        }
        hostile_send(&h, frame, frame_bytes);
        cr_assert_not(h.c->is_open[PAIR_SINK], "%u", kind);
        if (kind < 2) {
            pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_REFUSED);
        }
        pair_abort(sink);
        hostile_finish(p);
    }
}

/* A source with one lane of the two we could use: the other is never opened. */
Test(core_corner_wire, a_peer_of_fewer_lanes_is_kept_to)
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
    mine.lane_count = 1;
    hostile_say_hello(&h, &mine);
    pair_settle(p);
    cr_assert_neq(pair_stream(p, 0, 1, 0), NULL);
    cr_assert_eq(pair_stream(p, 0, 1, 1), NULL);
    /* A LANE of an index it does not have. */
    unsigned char frame[256];
    hostile_send(&h, frame,
                 kvf_wire_put_lane(frame, sizeof frame, h.seq,
                                   &(struct kvf_wire_lane){.lane_idx = 1, .epoch = 1}));
    cr_assert_not(h.c->is_open[PAIR_SINK]);
    pair_abort(sink);
    hostile_finish(p);
}

Test(core_corner_wire, answers_that_break_the_rules_cost_the_connection)
{
    for (uint32_t kind = 0; kind < 3; kind++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        struct kvf_wire_grant g = hostile_read_grant(&h);
        if (kind == 0) { /* accepted twice */
            hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
            cr_assert(h.c->is_open[PAIR_SINK]);
            hostile_send_simple(&h, KVF_WIRE_ACCEPT, g.nonce);
        } else if (kind == 1) { /* "nothing was posted", and one of two lanes has its END */
            struct pair_stream *s = pair_stream(p, 0, 1, (uint32_t)__builtin_ctz(g.lane_mask));
            cr_assert_eq(pair_raw_marker(p, s, g.handle, KVF_LANE_END), 0);
            hostile_send_simple(&h, KVF_WIRE_DECLINE, g.nonce);
        } else { /* a grant to a sink */
            struct kvf_wire_run run = {.region = 3, .first = 0, .count = 4};
            struct kvf_wire_grant mine = hostile_grant(1, 9);
            hostile_send_grant(&h, &mine, &run);
        }
        cr_assert_not(h.c->is_open[PAIR_SINK], "%u", kind);
        pair_abort(sink);
        hostile_finish(p);
    }
}

Test(core_corner_wire, regions_and_fragments_that_break_the_rules_cost_the_connection)
{
    for (uint32_t kind = 0; kind < 8; kind++) {
        struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
        struct hostile h = hostile_as_sink(p);
        if (kind < 2) {
            hostile_send_region(&h, kind == 0 ? KVF_REGIONS_PER_WORKER_MAX : 3, 1 - kind, 16);
        } else {
            hostile_send_region(&h, 3, 1, 16);
            struct kvf_wire_grant g = hostile_grant(1, 9);
            struct kvf_wire_run runs[2] = {{3, 0, 4}, {3, 4, 4}};
            g.page_count = 12;
            g.total_runs = 3;
            hostile_send_grant(&h, &g, runs); /* the first of three */
            cr_assert(h.c->is_open[PAIR_SOURCE]);
            g.first_run = 1;
            switch (kind) {
            case 2:
                g.nonce = 2; /* another grant's */
                break;
            case 3:
                g.first_run = 2; /* one is missing */
                break;
            case 4: /* more runs than were announced, in a fragment that is sound by itself */
                g.total_runs = 4;
                g.run_count = 3;
                runs[0].count = 1;
                runs[1].count = 1;
                break;
            case 5: /* more pages than were announced, in a fragment that is sound by itself */
                g.page_count = 40;
                runs[0].count = 14;
                break;
            case 6:
                runs[0].region = KVF_REGIONS_PER_WORKER_MAX;
                break;
            default: /* whole, and too few pages */
                g.run_count = 2;
                runs[0].count = 1;
                runs[1].count = 1;
                break;
            }
            static struct kvf_wire_run three[3];
            memcpy(three, runs, sizeof runs);
            three[2] = (struct kvf_wire_run){3, 9, 1};
            hostile_send_grant(&h, &g, three);
        }
        cr_assert_not(h.c->is_open[PAIR_SOURCE], "%u", kind);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_IN), 0);
        hostile_finish(p);
    }
}

/* Its list does not fit beside those of our own engines: taken whole, and declined. */
Test(core_corner_wire, a_list_that_would_fill_half_of_the_pool_is_declined_as_busy)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 3, .lanes = 2, .placement = KVF_PLACEMENT_POSTED, .runs_max = 16});
    p->is_hostile = true;
    pair_make_raw(p, 1);
    struct hostile h = hostile_as_sink(p);
    hostile_send_region(&h, 3, 1, 64);
    struct kvf_wire_grant g = hostile_grant(1, 9);
    struct kvf_wire_run runs[9];
    for (uint32_t i = 0; i < 9; i++) {
        runs[i] = (struct kvf_wire_run){3, 2 * i, 1};
    }
    g.page_count = 9;
    g.total_runs = 9;
    g.run_count = 9;
    hostile_send_grant(&h, &g, runs);
    pair_settle(p);
    const unsigned char *payload;
    size_t bytes;
    uint8_t type;
    bool is_declined = false;
    while ((type = pair_raw_read(p, h.c, PAIR_SINK, &payload, &bytes)) != 0) {
        is_declined |= type == KVF_WIRE_DECLINE;
    }
    cr_assert(is_declined);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_RUNS_USED), 0);
    hostile_finish(p);
}

/* ---- a socket that takes a little at a time --------------------------------------------------------------- */

struct taken {
    unsigned char buf[4 * FRAME_MAX];
    size_t used;
};

/* Takes what is owed with a buffer of one byte, two bytes, ... whole frames come or nothing. */
static void take_little(struct pair *p, uint32_t daemon, uint32_t peer, struct taken *t)
{
    static unsigned char buf[FRAME_MAX];
    struct kvf_core *core = p->daemons[daemon].core;
    t->used = 0;
    size_t cap = 0;
    while (kvf_core_owes(core, peer) && cap < sizeof buf) {
        size_t n = kvf_core_emit(core, p->now_ns, peer, buf, cap);
        cr_assert_leq(n, cap);
        cr_assert_leq(n, sizeof t->buf - t->used);
        memcpy(t->buf + t->used, buf, n);
        t->used += n;
        cap = n > 0 ? 1 : cap + 1;
    }
    cr_assert_not(kvf_core_owes(core, peer));
    pair_drain(p, daemon);
}

/* The frames in it: whole, in the order of their numbers, this many of this type. */
static uint32_t frames_in(const struct taken *t, uint8_t type, uint32_t *seq)
{
    uint32_t count = 0;
    struct kvf_wire_header h;
    for (size_t at = 0; at < t->used; at += KVF_WIRE_HEADER_BYTES + h.payload_bytes) {
        cr_assert_eq(kvf_wire_get_header(t->buf + at, &h), 0);
        cr_assert_eq(h.seq, *seq);
        (*seq)++;
        cr_assert_leq(h.payload_bytes, t->used - at - KVF_WIRE_HEADER_BYTES);
        count += h.type == type;
    }
    return count;
}

Test(core_corner_wire, a_sink_whose_socket_takes_little_sends_whole_frames_in_order)
{
    static struct taken t;
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    pair_link(p, 0, 1)->hold_write[PAIR_SINK] = true;
    struct pair_room *first = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct hostile h = {.p = p, .side = PAIR_SOURCE, .c = pair_conn(p, 0, 1)};
    uint32_t peer = h.c->peer[PAIR_SINK];
    uint32_t seq = 0;
    take_little(p, 0, peer, &t); /* HELLO */
    cr_assert_eq(frames_in(&t, KVF_WIRE_HELLO, &seq), 1);
    struct kvf_wire_hello m;
    cr_assert_eq(
        kvf_wire_get_hello(t.buf + KVF_WIRE_HEADER_BYTES, t.used - KVF_WIRE_HEADER_BYTES, &m),
        0);
    struct kvf_wire_hello mine = hostile_hello(m.session);
    hostile_say_hello(&h, &mine);
    pair_settle(p);
    for (uint32_t i = 0; i < 2; i++) {
        unsigned char frame[256];
        hostile_send(&h, frame,
                     kvf_wire_put_lane(frame, sizeof frame, h.seq,
                                       &(struct kvf_wire_lane){.lane_idx = i, .epoch = 1}));
    }
    pair_settle(p);
    pair_advance(p, 400 * PAIR_MS); /* a question is due */
    unsigned char frame[256];
    hostile_send(&h, frame,
                 kvf_wire_put_ping(frame, sizeof frame, h.seq, &(struct kvf_wire_ping){1}));
    take_little(p, 0, peer, &t); /* PONG, PING, REGION, GRANT */
    uint32_t from = seq;
    cr_assert_eq(frames_in(&t, KVF_WIRE_PONG, &seq), 1);
    seq = from;
    cr_assert_eq(frames_in(&t, KVF_WIRE_REGION, &seq), 1);
    seq = from;
    cr_assert_eq(frames_in(&t, KVF_WIRE_GRANT, &seq), 1);
    pair_abort(first);
    take_little(p, 0, peer, &t);
    cr_assert_eq(frames_in(&t, KVF_WIRE_ABORT, &seq), 1);
    pair_link(p, 0, 1)->hold_write[PAIR_SINK] = false;
    hostile_finish(p);
}

Test(core_corner_wire, a_source_whose_socket_takes_little_sends_whole_frames_in_order)
{
    static struct taken t;
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *source = pair_source(p, 0, 9);
    struct hostile h = hostile_as_sink(p);
    uint32_t seq = 1; /* its HELLO is out */
    h.c->hold_write[PAIR_SOURCE] = true;
    uint32_t peer = h.c->peer[PAIR_SOURCE];
    int rc;
    struct pair_stream *s = pair_raw_lane(p, h.c, h.session, 0, 1, &rc);
    cr_assert_neq(s, NULL);
    hostile_send_region(&h, 3, 1, 16);
    struct kvf_wire_run run = {3, 0, 4};
    struct kvf_wire_grant g = hostile_grant(1, 9);
    hostile_send_grant(&h, &g, &run); /* ACCEPT */
    g = hostile_grant(2, 9);
    hostile_send_grant(&h, &g, &run); /* DECLINE: one sink too many */
    pair_abort(source);               /* ENDED */
    pair_settle(p);
    take_little(p, 0, peer, &t);
    uint32_t from = seq;
    cr_assert_eq(frames_in(&t, KVF_WIRE_LANE, &seq), 1);
    seq = from;
    cr_assert_eq(frames_in(&t, KVF_WIRE_ACCEPT, &seq), 1);
    seq = from;
    cr_assert_eq(frames_in(&t, KVF_WIRE_DECLINE, &seq), 1);
    seq = from;
    cr_assert_eq(frames_in(&t, KVF_WIRE_ENDED, &seq), 1);
    h.c->hold_write[PAIR_SOURCE] = false;
    hostile_finish(p);
}

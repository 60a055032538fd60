#include "tests/core/hostile.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "sidecar/core/internal.h"

static struct pair *world(const struct pair_options *options)
{
    struct pair *p = pair_new(options);
    p->is_hostile = true;
    pair_make_raw(p, 1);
    return p;
}

struct pair *hostile_world(uint8_t placement)
{
    return world(&(struct pair_options){
        .daemons = 3, .lanes = 2, .placement = placement, .parked_max = 4, .grants_max = 64});
}

struct pair *hostile_world_of_queue_pairs(void)
{
    return world(&(struct pair_options){.daemons = 3,
                                        .lanes = 2,
                                        .are_queue_pairs = true,
                                        .remotes_max = 8,
                                        .parked_max = 4,
                                        .grants_max = 64});
}

void hostile_send(struct hostile *h, const unsigned char *frame, int bytes)
{
    cr_assert_gt(bytes, 0);
    h->seq++;
    pair_raw_send(h->p, h->c, h->side, frame, (size_t)bytes);
}

struct kvf_wire_hello hostile_hello(uint64_t session)
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
    (void)snprintf(m.name, sizeof m.name, "hostile");
    return m;
}

void hostile_say_hello(struct hostile *h, const struct kvf_wire_hello *m)
{
    unsigned char frame[256];
    hostile_send(h, frame, kvf_wire_put_hello(frame, sizeof frame, h->seq, m));
}

/* A hostile sink: it connects, and daemon 0 is its source. */
struct hostile hostile_as_sink(struct pair *p)
{
    struct hostile h = {.p = p, .side = PAIR_SINK, .session = 4242};
    h.c = pair_raw_connect(p, 1, 0);
    struct kvf_wire_hello m = hostile_hello(h.session);
    m.transport = p->config.transport;
    hostile_say_hello(&h, &m);
    pair_settle(p);
    return h;
}

/* A hostile source: daemon 0 has a sink room that names it, and waits for what it says. */
struct hostile hostile_as_source(struct pair *p)
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
    struct kvf_wire_hello mine = hostile_hello(h.session);
    mine.transport = p->config.transport;
    hostile_say_hello(&h, &mine);
    pair_settle(p);
    for (uint32_t i = 0; i < 2 && !p->options.are_queue_pairs; i++) {
        hostile_send_lane(&h, i, 1, 0);
    }
    pair_settle(p);
    return h;
}

void hostile_send_lane(struct hostile *h, uint32_t lane_idx, uint32_t epoch, uint32_t qpn)
{
    unsigned char frame[256];
    hostile_send(h, frame,
                 kvf_wire_put_lane(frame, sizeof frame, h->seq,
                                   &(struct kvf_wire_lane){.lane_idx = lane_idx,
                                                           .epoch = epoch,
                                                           .end = {.qpn = qpn}}));
}

struct kvf_wire_grant hostile_read_grant(struct hostile *h)
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

void hostile_send_region(struct hostile *h, uint32_t region, uint32_t epoch, uint64_t pages)
{
    static unsigned char frame[FRAME_MAX];
    static struct kvf_wire_region m;
    m = (struct kvf_wire_region){
        .region = region, .epoch = epoch, .page_count = pages, .plane_count = 1};
    m.planes[0] =
        (struct kvf_wire_plane){.stride = PAIR_PAGE_BYTES, .page_bytes = PAIR_PAGE_BYTES};
    hostile_send(h, frame, kvf_wire_put_region(frame, sizeof frame, h->seq, &m));
}

void hostile_send_grant(struct hostile *h, const struct kvf_wire_grant *m,
                        const struct kvf_wire_run *runs)
{
    static unsigned char frame[FRAME_MAX];
    hostile_send(h, frame, kvf_wire_put_grant(frame, sizeof frame, h->seq, m, runs));
}

struct kvf_wire_grant hostile_grant(uint64_t nonce, uint64_t key)
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

void hostile_send_simple(struct hostile *h, uint8_t type, uint64_t nonce)
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
    hostile_send(h, frame, bytes);
}

/* The bystander is served, whatever happened. */
void hostile_finish(struct pair *p)
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

/* Random and mutated frames and lane events of a hostile peer: no crash, and everything ends. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

/* ---- random bytes ------------------------------------------------------------------------------------ */

static int random_frame(struct hostile *h, unsigned char *frame)
{
    struct pair *p = h->p;
    uint64_t nonce = pair_random(p, 2) == 0 ? pair_random(p, 8) : pair_random(p, UINT64_MAX);
    struct kvf_core *core = p->daemons[0].core;
    if (pair_random(p, 3) == 0 && core->grant_fresh > 0) {
        nonce = core->grants[pair_random(p, core->grant_fresh)].nonce;
    }
    struct kvf_wire_grant g = hostile_grant(nonce, pair_random(p, 8));
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
                                          .base = pair_random(p, UINT64_MAX),
                                          .key_count = (uint32_t)pair_random(p, 3),
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
                                    .epoch = (uint32_t)pair_random(p, 4),
                                    .end = {.qpn = pair_random(p, 3) == 0 ? 0 : HOSTILE_QPN}});
    case 7:
        return kvf_wire_put_ping(frame, FRAME_MAX, h->seq,
                                 &(struct kvf_wire_ping){.seq = pair_random(p, 9)});
    case 8:
        return kvf_wire_put_pong(frame, FRAME_MAX, h->seq,
                                 &(struct kvf_wire_ping){.seq = pair_random(p, 9)});
    case 9: {
        struct kvf_wire_hello m = hostile_hello(pair_random(p, 3));
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
        struct kvf_wire_hello m = hostile_hello(fresh.session);
        m.transport = p->config.transport;
        hostile_say_hello(&fresh, &m);
        int rc;
        for (uint32_t i = 0; i < 2; i++) {
            if (p->options.are_queue_pairs) {
                hostile_send_lane(&fresh, i, 1 + i, HOSTILE_QPN);
                continue;
            }
            (void)pair_raw_lane(p, fresh.c, fresh.session, i, 1 + i, &rc);
        }
        *h = fresh;
    } else {
        pair_advance(p, 60 * PAIR_MS);
        if (pair_conn(p, 0, 1) != NULL) {
            *h = hostile_as_source(p);
            for (uint32_t i = 0; i < 2 && p->options.are_queue_pairs; i++) {
                hostile_send_lane(h, i, p->daemons[0].core->lanes[i].epoch, HOSTILE_QPN);
            }
        }
    }
}

static void fuzz(uint64_t seed, bool is_sink)
{
    struct pair *p = seed % 3 == 0   ? hostile_world_of_queue_pairs()
                     : seed % 2 == 0 ? hostile_world(KVF_PLACEMENT_CHECKED)
                                     : hostile_world(KVF_PLACEMENT_POSTED);
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
            hostile_send(&h, frame, bytes);
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
    hostile_finish(p);
}

Test(fuzz, random_and_mutated_frames_of_a_sink_crash_nothing_and_everything_ends,
     .timeout = 1000)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fuzz(seed, true);
    }
}

Test(fuzz, random_and_mutated_frames_of_a_source_crash_nothing_and_everything_ends,
     .timeout = 1000)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fuzz(seed, false);
    }
}

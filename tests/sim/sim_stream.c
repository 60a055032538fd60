/* Two kernels and the bytes between them. What the source hands over is read from its pages at that moment and never
 * again; it then waits in the send buffer, is under way, and waits in the receive buffer, in order. The sink's process
 * takes it out piece by piece, asking before each piece where it goes.
 *
 * A loss costs time and nothing else. A link that is cut costs the source its stream after user_timeout_ns; the sink, which
 * has nothing to send, is never told. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fabric_internal.h"

#define SEND_BUFFER_BYTES (UINT64_C(64) << 10)
#define FRAME_BYTES_MAX (UINT32_C(256) << 10)
#define SEGMENTS_MIN 16u

static struct sim_segment *segment_at(const struct sim_duct *d, uint32_t seq)
{
    return &d->segments[seq & (d->segment_cap - 1)];
}

static uint64_t cost_of(const struct sim_segment *s)
{
    return s->bytes > SIM_SEGMENT_COST ? s->bytes : SIM_SEGMENT_COST;
}

static uint64_t name_of(const struct sim_duct *d)
{
    return (uint64_t)d->gen << 32 | (d->idx + 1);
}

static bool is_end_over(const struct sim_duct *d, enum sim_side side)
{
    return d->end[side].state == SIM_END_GONE || d->end[side].state == SIM_END_BROKEN;
}

/* ---- the ring of segments ------------------------------------------------------------------------------------ */

static struct sim_segment *append(struct sim_duct *d)
{
    if (d->tail - d->head == d->segment_cap) {
        uint32_t cap = d->segment_cap == 0 ? SEGMENTS_MIN : 2 * d->segment_cap;
        struct sim_segment *segments = malloc(cap * sizeof(*segments));
        assert(segments != NULL);
        for (uint32_t seq = d->head; seq != d->tail; seq++) {
            segments[seq & (cap - 1)] = *segment_at(d, seq);
        }
        free(d->segments);
        d->segments = segments;
        d->segment_cap = cap;
    }
    struct sim_segment *s = segment_at(d, d->tail++);
    *s = (struct sim_segment){0};
    return s;
}

void simnet_stream_drop(struct sim_fabric *f, struct sim_duct *d, uint32_t from_seq)
{
    for (uint32_t seq = from_seq; seq != d->tail; seq++) {
        simnet_buffer_put(f, segment_at(d, seq)->buffer);
    }
    if (d->sent - d->head > from_seq - d->head) {
        d->sent = from_seq;
    }
    if (d->arrived - d->head > from_seq - d->head) {
        d->arrived = from_seq;
    }
    d->tail = from_seq;
}

static void refuse_head(struct sim_fabric *f, struct sim_duct *d)
{
    struct sim_segment *s = segment_at(d, d->head++);
    f->counters.segments_refused += s->kind != 0;
    f->counters.refused_bytes += s->bytes - d->head_got;
    simnet_buffer_put(f, s->buffer);
    d->head_got = 0;
}

void simnet_stream_refuse_unread(struct sim_fabric *f, struct sim_duct *d)
{
    while (d->head != d->arrived) {
        refuse_head(f, d);
    }
}

/* ---- the source's kernel --------------------------------------------------------------------------------------- */

static void on_arrival(void *ctx, uint64_t name, uint64_t unused);

static void await_arrival(struct sim_fabric *f, struct sim_duct *d, uint64_t when_ns)
{
    d->has_arrival = true;
    sim_clock_at(f->clock, when_ns, on_arrival, f, name_of(d), 0);
}

static uint64_t receive_buffer(const struct sim_duct *d)
{
    const struct sim_transport *t = d->end[SIM_SINK].transport;
    return t != NULL && t->options.receive_buffer_bytes != 0 ? t->options.receive_buffer_bytes
                                                             : SEND_BUFFER_BYTES;
}

void simnet_stream_transmit(struct sim_fabric *f, struct sim_duct *d)
{
    const struct sim_link *link =
        &simnet_fabric_route(f, d->end[SIM_SOURCE].host, d->end[SIM_SINK].host)->link;
    uint64_t window = receive_buffer(d);
    while (d->sent != d->tail && d->sent_cost - d->read_known_cost < window) {
        struct sim_segment *s = segment_at(d, d->sent++);
        d->sent_cost += cost_of(s);
        f->counters.packets++;
        uint64_t when_ns = f->clock->now_ns + simnet_fabric_delay(link, &d->luck);
        if (sim_random_chance(&d->luck, link->loss_per_million)) {
            f->counters.packets_lost++;
            f->counters.packets_again++;
            when_ns += f->options.rto_ns;
        }
        uint64_t behind_ns = d->flow_ns[SIM_SINK] + link->gap_ns;
        d->flow_ns[SIM_SINK] = when_ns > behind_ns ? when_ns : behind_ns;
        s->arrive_ns = d->flow_ns[SIM_SINK];
        if (!d->has_arrival) {
            await_arrival(f, d, s->arrive_ns);
        }
    }
}

void simnet_stream_append_end(struct sim_fabric *f, struct sim_duct *d)
{
    (void)append(d);
    simnet_stream_transmit(f, d);
}

static void on_ack(void *ctx, uint64_t name, uint64_t unused);

static void send_ack(struct sim_fabric *f, struct sim_duct *d, uint64_t later_ns)
{
    const struct sim_link *link =
        &simnet_fabric_route(f, d->end[SIM_SINK].host, d->end[SIM_SOURCE].host)->link;
    d->has_ack = true;
    d->ack_arrived_cost = d->arrived_cost;
    d->ack_read_cost = d->read_cost;
    later_ns += simnet_fabric_delay(link, &d->luck);
    if (sim_random_chance(&d->luck, link->loss_per_million)) {
        f->counters.packets_lost++;
        later_ns += f->options.rto_ns;
    }
    sim_clock_at(f->clock, f->clock->now_ns + later_ns, on_ack, f, name_of(d), 0);
}

static void on_ack(void *ctx, uint64_t name, uint64_t unused)
{
    struct sim_fabric *f = ctx;
    struct sim_duct *d = simnet_duct_of(f, (uint32_t)name, (uint32_t)(name >> 32));
    if (d == NULL || f->nodes[d->end[SIM_SINK].host].is_down) {
        return;
    }
    bool is_held;
    if (!simnet_fabric_passes(f, d->end[SIM_SINK].host, d->end[SIM_SOURCE].host, on_ack, f,
                              name, unused, &is_held)) {
        if (!is_held && !f->nodes[d->end[SIM_SOURCE].host].is_down) {
            send_ack(f, d, f->options.rto_ns);
        }
        return;
    }
    d->has_ack = false;
    d->acked_cost = d->ack_arrived_cost;
    d->read_known_cost = d->ack_read_cost;
    simnet_stream_transmit(f, d);
    if (d->acked_cost != d->arrived_cost || d->read_known_cost != d->read_cost) {
        send_ack(f, d, 0);
    }
    const struct sim_end *end = &d->end[SIM_SOURCE];
    if (end->state == SIM_END_UP) {
        const struct sim_lane *lane = &end->transport->lanes[end->lane];
        if (lane->sent != lane->tail || lane->filler_left_pages > 0) {
            simnet_lane_mark(end->transport, end->lane);
        }
    }
}

/* ---- the sink's kernel ------------------------------------------------------------------------------------------ */

/* Nobody has answered for too long: the source's kernel gives the stream up. */
static void give_up(struct sim_fabric *f, struct sim_duct *d)
{
    simnet_stream_drop(f, d, d->arrived);
    if (d->end[SIM_SOURCE].state == SIM_END_UP) {
        simnet_duct_break(f, d, SIM_SOURCE, ETIMEDOUT);
    }
}

static void on_arrival(void *ctx, uint64_t name, uint64_t unused)
{
    struct sim_fabric *f = ctx;
    struct sim_duct *d = simnet_duct_of(f, (uint32_t)name, (uint32_t)(name >> 32));
    if (d == NULL) {
        return;
    }
    d->has_arrival = false;
    if (d->arrived == d->sent) {
        return;
    }
    bool is_held;
    uint64_t now_ns = f->clock->now_ns;
    if (!simnet_fabric_passes(f, d->end[SIM_SOURCE].host, d->end[SIM_SINK].host, on_arrival, f,
                              name, unused, &is_held)) {
        d->has_arrival = is_held;
        if (is_held) {
            return;
        }
        if (d->stuck_since_ns == SIM_NEVER) {
            d->stuck_since_ns = now_ns;
        }
        if (f->options.user_timeout_ns != SIM_NEVER &&
            now_ns - d->stuck_since_ns >= f->options.user_timeout_ns) {
            give_up(f, d);
            return;
        }
        f->counters.packets_again++;
        await_arrival(f, d, now_ns + f->options.rto_ns);
        return;
    }
    d->stuck_since_ns = SIM_NEVER;
    bool is_over = is_end_over(d, SIM_SINK);
    while (d->arrived != d->sent && segment_at(d, d->arrived)->arrive_ns <= now_ns) {
        d->arrived_cost += cost_of(segment_at(d, d->arrived));
        d->arrived++;
        if (is_over) {
            d->read_cost = d->arrived_cost;
            refuse_head(f, d);
        }
    }
    if (d->arrived != d->sent) {
        await_arrival(f, d, segment_at(d, d->arrived)->arrive_ns);
    }
    if (!d->has_ack && !is_over) {
        send_ack(f, d, 0);
    }
    if (d->end[SIM_SINK].state == SIM_END_UP) {
        simnet_lane_mark(d->end[SIM_SINK].transport, d->end[SIM_SINK].lane);
    }
}

/* ---- the source's process ---------------------------------------------------------------------------------------- */

struct piece {
    struct kvf_post post;
    uint64_t page_bytes;
    uint32_t page_idx;
    uint64_t off;
    uint32_t bytes;
    bool is_filler;
    bool is_last;
};

/* Reads the piece from its pages and hands it over. 0 or -EFAULT. */
static int hand(struct sim_transport *t, uint32_t lane_idx, struct sim_duct *d,
                const struct piece *p)
{
    struct sim_fabric *f = t->fabric;
    struct sim_touch touch = {.host = t->host,
                              .lane = lane_idx,
                              .epoch = t->lanes[lane_idx].epoch,
                              .client = p->post.client,
                              .region = p->post.region,
                              .page = p->post.page_first + p->page_idx,
                              .off = p->off,
                              .bytes = p->bytes,
                              .from_host = t->host,
                              .from_epoch = t->lanes[lane_idx].epoch,
                              .post = &p->post,
                              .is_last = p->is_last};
    unsigned char *buffer = simnet_buffer_get(f);
    uint64_t tag = SIM_FILLER_TAG;
    if (!p->is_filler) {
        int rc = simnet_fabric_read(f, t, &touch, &tag, buffer);
        if (rc != 0) {
            simnet_buffer_put(f, buffer);
            return rc;
        }
    } else if (buffer != NULL) {
        memset(buffer, SIM_FILLER_BYTE, p->bytes);
    }
    struct sim_segment *s = append(d);
    *s = (struct sim_segment){.post = p->post,
                              .kind = KVF_LANE_DATA,
                              .is_filler = p->is_filler,
                              .is_last = p->is_last,
                              .ends_page = p->off + p->bytes == p->page_bytes,
                              .page_idx = p->page_idx,
                              .off = p->off,
                              .bytes = p->bytes,
                              .tag = tag,
                              .buffer = buffer};
    d->handed_cost += cost_of(s);
    return 0;
}

static uint32_t piece_bytes(const struct sim_transport *t, uint64_t left, uint64_t budget)
{
    uint64_t bytes = t->fabric->options.mtu_bytes;
    bytes = left < bytes ? left : bytes;
    return (uint32_t)(budget < bytes ? budget : bytes);
}

/* The rest of a frame whose post is gone. */
static uint64_t hand_filler(struct sim_transport *t, uint32_t lane_idx, struct sim_duct *d,
                            uint64_t budget)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct piece p = {.post = lane->filler_post,
                      .page_bytes = lane->filler_page_bytes,
                      .page_idx = lane->filler_page,
                      .off = lane->filler_off,
                      .is_filler = true};
    p.bytes = piece_bytes(t, p.page_bytes - p.off, budget);
    (void)hand(t, lane_idx, d, &p);
    lane->filler_off += p.bytes;
    if (lane->filler_off == p.page_bytes) {
        lane->filler_off = 0;
        lane->filler_page++;
        lane->filler_left_pages--;
    }
    return p.bytes;
}

static uint64_t hand_marker(struct sim_lane *lane, struct sim_duct *d,
                            const struct sim_entry *entry)
{
    struct sim_segment *s = append(d);
    s->post = entry->post;
    s->kind = entry->is_cut ? KVF_LANE_DRAIN : entry->post.kind;
    d->handed_cost += cost_of(s);
    lane->sent++;
    return 1;
}

/* Hands over the next piece of the first unsent post. Bytes, or -EFAULT. */
static int64_t hand_data(struct sim_transport *t, uint32_t lane_idx, struct sim_duct *d,
                         const struct sim_entry *entry, uint64_t budget)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    const struct kvf_post *post = &entry->post;
    struct piece p = {.post = *post,
                      .page_bytes = entry->page_bytes,
                      .page_idx = lane->next_page,
                      .off = lane->next_off};
    p.bytes = piece_bytes(t, p.page_bytes - p.off, budget);
    bool ends_page = p.off + p.bytes == p.page_bytes;
    p.is_last = ends_page && p.page_idx + 1 == post->page_count;
    int rc = hand(t, lane_idx, d, &p);
    if (rc != 0) {
        return rc;
    }
    if (lane->frame_left_pages == 0) { /* begun with its first byte, as a header is a promise */
        uint64_t most =
            t->options.frame_bytes_max != 0 ? t->options.frame_bytes_max : FRAME_BYTES_MAX;
        uint64_t pages = most / p.page_bytes > 0 ? most / p.page_bytes : 1;
        uint64_t left = post->page_count - lane->next_page;
        lane->frame_left_pages = (uint32_t)(pages < left ? pages : left);
    }
    lane->next_off += p.bytes;
    if (ends_page) {
        lane->next_off = 0;
        lane->next_page++;
        lane->frame_left_pages--;
    }
    if (p.is_last) {
        lane->next_page = 0;
        lane->sent++;
    }
    return (int64_t)p.bytes;
}

static uint64_t send_buffer(const struct sim_transport *t)
{
    return t->options.send_buffer_bytes != 0 ? t->options.send_buffer_bytes : SEND_BUFFER_BYTES;
}

uint64_t simnet_stream_source_turn(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    uint32_t serial = lane->serial;
    uint64_t moved = 0;
    uint64_t most = t->config.turn_bytes_max;
    while (lane->serial == serial && lane->state == SIM_LANE_UP && moved < most &&
           (lane->filler_left_pages > 0 || lane->sent != lane->tail) &&
           d->handed_cost - d->acked_cost < send_buffer(t)) {
        if (lane->filler_left_pages > 0) {
            moved += hand_filler(t, lane_idx, d, most - moved);
            continue;
        }
        const struct sim_entry *entry = simnet_entry_at(t, lane, lane->sent);
        if (entry->post.kind != KVF_LANE_DATA) {
            moved += hand_marker(lane, d, entry);
        } else {
            int64_t n = hand_data(t, lane_idx, d, entry, most - moved);
            if (n < 0) {
                simnet_lane_read_fault(t, lane_idx);
                moved++;
                continue;
            }
            moved += (uint64_t)n;
        }
        simnet_stream_transmit(t->fabric, d);
        simnet_lane_complete(t, lane_idx, lane->sent, 0);
    }
    if (lane->serial == serial && lane->state == SIM_LANE_UP) {
        simnet_stream_transmit(t->fabric, d);
        if (moved >= most) { /* the budget is spent, not the buffer */
            simnet_lane_mark(t, lane_idx);
        }
    }
    return moved;
}

/* ---- the sink's process ------------------------------------------------------------------------------------------ */

static void fill_touch(const struct sim_transport *t, uint32_t lane_idx,
                       const struct sim_duct *d, const struct sim_segment *s,
                       const struct kvf_placement_at *at, struct sim_touch *ret_touch)
{
    *ret_touch = (struct sim_touch){.host = t->host,
                                    .lane = lane_idx,
                                    .epoch = t->lanes[lane_idx].epoch,
                                    .client = at->client,
                                    .region = at->region,
                                    .page = at->page_first,
                                    .off = s->off + d->head_got,
                                    .from_host = d->end[SIM_SOURCE].host,
                                    .from_epoch = d->hello.epoch,
                                    .post = &s->post,
                                    .is_late = is_end_over(d, SIM_SOURCE)};
}

/* Takes some bytes of the first segment. How many; 0: the lane was lost or has faulted. */
static uint64_t receive(struct sim_transport *t, uint32_t lane_idx, struct sim_duct *d,
                        uint64_t budget)
{
    struct sim_fabric *f = t->fabric;
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_segment *s = segment_at(d, d->head);
    const struct kvf_post post = s->post;
    struct kvf_placement_at at;
    if (t->calls.place_fn(t->calls.ctx, lane_idx, lane->epoch, post.handle,
                          post.position + s->page_idx, 1, &at) < 0) {
        simnet_lane_lose(t, lane_idx, EPROTO);
        return 0;
    }
    uint64_t bytes = s->bytes - d->head_got;
    if (sim_random_chance(&d->luck, t->options.short_receive_per_million)) {
        bytes = 1 + sim_random_below(&d->luck, bytes);
    }
    bytes = budget < bytes ? budget : bytes;
    bool is_scratch = lane->is_forced_scratch || at.where != KVF_PLACE_PAGES;
    if (!is_scratch) {
        struct sim_touch touch;
        fill_touch(t, lane_idx, d, s, &at, &touch);
        touch.bytes = bytes;
        touch.is_last = s->is_last && d->head_got + bytes == s->bytes;
        const unsigned char *from = s->buffer != NULL ? s->buffer + d->head_got : NULL;
        if (simnet_fabric_land(f, t, &touch, s->tag, from) != 0) {
            lane->is_forced_scratch = true;
            t->calls.place_fault_fn(t->calls.ctx, lane_idx, lane->epoch, post.handle);
            return 0;
        }
    }
    f->counters.bytes_scratch += is_scratch ? bytes : 0;
    d->head_got += (uint32_t)bytes;
    if (d->head_got == s->bytes) {
        d->read_cost += cost_of(s);
        simnet_buffer_put(f, s->buffer);
        lane->is_forced_scratch = lane->is_forced_scratch && !s->ends_page;
        d->head++;
        d->head_got = 0;
    }
    t->calls.placed_fn(t->calls.ctx, lane_idx, lane->epoch, post.handle, bytes, is_scratch);
    return bytes;
}

static void receive_marker(struct sim_transport *t, uint32_t lane_idx, struct sim_duct *d)
{
    const struct sim_segment s = *segment_at(d, d->head++);
    uint32_t serial = t->lanes[lane_idx].serial;
    d->read_cost += cost_of(&s);
    if (s.kind == 0) {
        simnet_lane_lose(t, lane_idx, ECONNRESET);
        return;
    }
    t->fabric->counters.markers++;
    int rc = t->calls.marker_fn(t->calls.ctx, lane_idx, t->lanes[lane_idx].epoch, s.post.handle,
                                s.kind);
    if (rc < 0 && t->lanes[lane_idx].serial == serial) {
        simnet_lane_lose(t, lane_idx, EPROTO);
    }
}

uint64_t simnet_stream_sink_turn(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    uint32_t serial = lane->serial;
    uint64_t moved = 0;
    uint64_t most = t->config.turn_bytes_max;
    while (lane->serial == serial && lane->state == SIM_LANE_UP && d->head != d->arrived &&
           moved < most) {
        if (segment_at(d, d->head)->kind != KVF_LANE_DATA) {
            receive_marker(t, lane_idx, d);
            moved++;
        } else {
            moved += receive(t, lane_idx, d, most - moved);
        }
    }
    if (lane->serial != serial || lane->state != SIM_LANE_UP) {
        return moved;
    }
    if (moved > 0 && !d->has_ack) {
        send_ack(t->fabric, d, 0); /* the window opens */
    }
    if (d->head != d->arrived) {
        simnet_lane_mark(t, lane_idx);
    }
    return moved;
}

/* ---- planted ------------------------------------------------------------------------------------------------------ */

static void on_leak(void *ctx, uint64_t packet, uint64_t unused)
{
    struct sim_fabric *f = ctx;
    struct sim_packet *p = (struct sim_packet *)(uintptr_t)packet;
    struct sim_transport *t = f->nodes[p->to_host].transport;
    (void)unused;
    if (t != NULL) {
        struct sim_touch touch = {.host = p->to_host,
                                  .lane = p->to_qpn,
                                  .epoch = p->from_epoch,
                                  .client = p->remote.client,
                                  .region = p->remote.region,
                                  .page = p->remote.page_first,
                                  .off = p->off,
                                  .bytes = p->bytes,
                                  .from_host = p->from_host,
                                  .from_epoch = p->from_epoch,
                                  .post = &p->post,
                                  .is_late = true};
        (void)simnet_fabric_land(f, t, &touch, p->tag, p->buffer);
    }
    simnet_packet_put(f, p);
}

void simnet_stream_leak(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_fabric *f = t->fabric;
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    if (d == NULL || d->head == d->arrived || segment_at(d, d->head)->kind != KVF_LANE_DATA) {
        return;
    }
    struct sim_segment *s = segment_at(d, d->head);
    struct kvf_placement_at at;
    if (t->calls.place_fn(t->calls.ctx, lane_idx, t->lanes[lane_idx].epoch, s->post.handle,
                          s->post.position + s->page_idx, 1, &at) < 0 ||
        at.where != KVF_PLACE_PAGES) {
        return;
    }
    struct sim_packet *p = simnet_packet_get(f);
    *p = (struct sim_packet){
        .from_host = d->end[SIM_SOURCE].host,
        .from_epoch = d->hello.epoch,
        .to_host = t->host,
        .to_qpn = lane_idx,
        .off = s->off + d->head_got,
        .bytes = s->bytes - d->head_got,
        .tag = s->tag,
        .buffer = simnet_buffer_get(f),
        .post = s->post,
        .remote = {.client = at.client, .region = at.region, .page_first = at.page_first}};
    if (p->buffer != NULL) {
        memcpy(p->buffer, s->buffer + d->head_got, p->bytes);
    }
    sim_clock_at(f->clock,
                 f->clock->now_ns + 1 + sim_random_below(&d->luck, t->options.place_max_ns),
                 on_leak, f, (uint64_t)(uintptr_t)p, 0);
}

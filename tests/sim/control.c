/* Control connections: ordered streams of whole frames with a kernel at each end. They are delayed, stalled, cut,
 * reset, refused; what was sent on one connection is never seen on another. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tests/sim/parts.h"

#define PIPE_FRAMES_MAX 12u    /* what two kernels hold of one direction */
#define AGAIN_NS (20 * SIM_MS) /* a handshake's next try */
#define FROZEN_AGAIN_NS (5 * SIM_MS)

static void pipe_event(void *world, uint64_t where, uint64_t serial);

struct kvf_addr_shm sim_addr(uint32_t host)
{
    return (struct kvf_addr_shm){
        .family = 4, .port = 7000, .addr = {10, 0, 0, (uint8_t)(host + 1u)}};
}

static uint32_t conn_idx(const struct sim_world *w, const struct sim_conn *c)
{
    return (uint32_t)(c - w->conns);
}

static struct sim_conn *conn_at(struct sim_world *w, uint64_t idx, uint64_t serial)
{
    struct sim_conn *c = &w->conns[idx];
    return c->is_used && c->serial == serial ? c : NULL;
}

static struct sim_host *host_at(struct sim_world *w, const struct sim_conn *c, int side)
{
    return &w->hosts[c->host[side]];
}

/* Whether the process that holds this side still is the one that opened it. */
static bool is_alive(struct sim_world *w, const struct sim_conn *c, int side)
{
    const struct sim_host *h = host_at(w, c, side);
    return h->life == c->life[side] && h->worker == SIM_WORKER_SERVING;
}

/* ---- frames ---------------------------------------------------------------------------------------------------- */

static uint32_t frame_take(struct sim_world *w)
{
    if (w->frame_free != KVF_NONE) {
        uint32_t idx = w->frame_free;
        w->frame_free = w->frames[idx].next;
        return idx;
    }
    assert(w->frames_fresh < SIM_FRAMES_MAX);
    return w->frames_fresh++;
}

static void frame_drop(struct sim_world *w, uint32_t idx)
{
    w->frames[idx].next = w->frame_free;
    w->frame_free = idx;
}

static void pipe_clear(struct sim_world *w, struct sim_pipe *pipe)
{
    while (pipe->head != KVF_NONE) {
        uint32_t next = w->frames[pipe->head].next;
        frame_drop(w, pipe->head);
        pipe->head = next;
    }
    pipe->tail = KVF_NONE;
    pipe->count = 0;
}

/* When something sent to that side now arrives; KVF_NO_TIME: not as things stand. */
static uint64_t arrival(struct sim_world *w, struct sim_conn *c, int to)
{
    return sim_link_arrival(w->fabric, c->host[1 - to], c->host[to], &w->luck, &c->flow_ns[to]);
}

static bool is_link_open(struct sim_world *w, const struct sim_conn *c, int to)
{
    struct sim_link link;
    sim_link_get(w->fabric, c->host[1 - to], c->host[to], &link);
    return !link.is_cut && !link.is_stalled && w->hosts[c->host[to]].is_up;
}

/* The pipe's next event, if it has something that can arrive. */
static void pipe_arm(struct sim_world *w, struct sim_conn *c, int side)
{
    struct sim_pipe *pipe = &c->to[side];
    if (pipe->has_event || c->is_dead || !c->is_open[side]) {
        return;
    }
    uint64_t *due_ns = pipe->head != KVF_NONE ? &w->frames[pipe->head].due_ns : &pipe->end_ns;
    if (pipe->head == KVF_NONE && !pipe->has_end) {
        return;
    }
    if (*due_ns == KVF_NO_TIME) {
        *due_ns = arrival(w, c, side);
    }
    if (*due_ns != KVF_NO_TIME) {
        pipe->has_event = true;
        sim_clock_at(&w->clock, *due_ns, pipe_event, w, 2u * conn_idx(w, c) + (uint32_t)side,
                     c->serial);
    }
}

static void pipe_push(struct sim_world *w, struct sim_conn *c, int side,
                      const unsigned char *data, uint32_t bytes)
{
    struct sim_pipe *pipe = &c->to[side];
    if (!c->is_open[side] && !c->is_dead && host_at(w, c, side)->is_up) {
        /* A kernel that knows nothing of this connection: its machine was switched off meanwhile. */
        c->to[1 - side].has_end = true;
        c->to[1 - side].end_ns = KVF_NO_TIME;
        pipe_arm(w, c, 1 - side);
    }
    if (!c->is_open[side] || c->is_dead) {
        return; /* nobody will read it */
    }
    assert(bytes <= SIM_FRAME_BYTES);
    uint32_t idx = frame_take(w);
    struct sim_frame *f = &w->frames[idx];
    memcpy(f->data, data, bytes);
    f->bytes = bytes;
    f->next = KVF_NONE;
    f->due_ns = arrival(w, c, side);
    if (pipe->tail != KVF_NONE) {
        w->frames[pipe->tail].next = idx;
    } else {
        pipe->head = idx;
    }
    pipe->tail = idx;
    pipe->count++;
    w->figures.frames++;
    pipe_arm(w, c, side);
}

static void push_frames(struct sim_world *w, struct sim_conn *c, int side,
                        const unsigned char *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct kvf_wire_header h;
        if (kvf_wire_get_header(data + at, &h) != 0) {
            sim_fail(w, SIM_PROTOCOL_ERROR, SIM_NO_ROOM, SIM_NO_ROOM,
                     "the core of h%u writes something that is no frame", c->host[1 - side]);
            return;
        }
        w->figures.group_messages += h.type == KVF_WIRE_GROUP ? 1u : 0u;
        uint32_t frame_bytes = KVF_WIRE_HEADER_BYTES + h.payload_bytes;
        pipe_push(w, c, side, data + at, frame_bytes);
        at += frame_bytes;
    }
}

/* ---- ends ------------------------------------------------------------------------------------------------------- */

static void conn_check_free(struct sim_world *w, struct sim_conn *c)
{
    if (!c->is_open[SIM_DIALS] && !c->is_open[SIM_ACCEPTS]) {
        pipe_clear(w, &c->to[SIM_DIALS]);
        pipe_clear(w, &c->to[SIM_ACCEPTS]);
        c->is_used = false;
        c->serial++;
    }
}

/* This side lets go; its kernel tells the other in order, or with a reset that overtakes what was sent. */
static void close_side(struct sim_world *w, struct sim_conn *c, int side, bool is_silent)
{
    struct sim_host *h = host_at(w, c, side);
    uint32_t peer = c->peer[side];
    int other = 1 - side;
    if (!c->is_open[side]) {
        return;
    }
    if (peer != KVF_NONE && is_alive(w, c, side) && h->conn_of_peer[peer] == conn_idx(w, c)) {
        h->conn_of_peer[peer] = KVF_NONE;
    }
    bool is_reset = c->to[side].head != KVF_NONE || sim_random_chance(&w->luck, 200000);
    c->is_open[side] = false;
    pipe_clear(w, &c->to[side]);
    sim_note(w, SIM_CONN_END, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, peer, c->host[other]);
    if (c->is_open[other] && !is_silent && !c->is_dead) {
        if (is_reset) {
            pipe_clear(w, &c->to[other]);
            c->to[other].has_event = false;
        }
        c->to[other].has_end = true;
        c->to[other].end_ns = arrival(w, c, other);
        pipe_arm(w, c, other);
    }
    conn_check_free(w, c);
}

/* This side is told that its connection broke. */
static void lose_side(struct sim_world *w, struct sim_conn *c, int side)
{
    struct sim_host *h = host_at(w, c, side);
    uint32_t peer = c->peer[side];
    bool is_known = is_alive(w, c, side) && peer != KVF_NONE && c->is_open[side];
    bool was_up = side == SIM_ACCEPTS || c->is_up;
    close_side(w, c, side, false);
    if (is_known) {
        if (was_up) {
            kvf_core_peer_lost(h->core, sim_host_clock(h), peer, ECONNRESET);
        } else {
            kvf_core_peer_connect_failed(h->core, sim_host_clock(h), peer, ECONNRESET);
        }
        sim_worker_after(w, h);
    }
}

static void lose_later(void *world, uint64_t where, uint64_t serial)
{
    struct sim_world *w = world;
    struct sim_conn *c = conn_at(w, where / 2u, serial);
    int side = (int)(where % 2u);
    if (c == NULL || !c->is_open[side]) {
        return;
    }
    if (is_alive(w, c, side) && host_at(w, c, side)->is_frozen) {
        sim_clock_at(&w->clock, w->clock.now_ns + FROZEN_AGAIN_NS, lose_later, w, where,
                     serial);
        return;
    }
    lose_side(w, c, side);
}

void sim_control_reset_between(struct sim_world *w, uint32_t a, uint32_t b,
                               struct sim_random *luck)
{
    for (uint32_t i = 0; i < SIM_CONNS_MAX; i++) {
        struct sim_conn *c = &w->conns[i];
        bool is_between =
            (c->host[0] == a && c->host[1] == b) || (c->host[0] == b && c->host[1] == a);
        if (!c->is_used || !is_between || c->is_dead || sim_random_chance(luck, 250000)) {
            continue;
        }
        c->is_dead = true;
        w->figures.cuts++;
        uint32_t deaf = (uint32_t)sim_random_below(luck, 8); /* one end may never hear of it */
        for (uint32_t side = 0; side < 2; side++) {
            if (side != deaf) {
                sim_clock_at(&w->clock, w->clock.now_ns + sim_random_below(luck, 10 * SIM_MS),
                             lose_later, w, 2u * i + side, c->serial);
            }
        }
    }
}

void sim_control_close(struct sim_world *w, struct sim_host *h, uint32_t peer)
{
    uint32_t idx = h->conn_of_peer[peer];
    if (idx != KVF_NONE) {
        struct sim_conn *c = &w->conns[idx];
        int side = c->host[SIM_DIALS] == h->idx && c->peer[SIM_DIALS] == peer ? SIM_DIALS
                                                                              : SIM_ACCEPTS;
        close_side(w, c, side, false);
    }
}

void sim_control_end_all(struct sim_world *w, struct sim_host *h, bool is_silent)
{
    for (uint32_t i = 0; i < SIM_CONNS_MAX; i++) {
        for (int side = 0; side < 2; side++) {
            struct sim_conn *c = &w->conns[i];
            if (c->is_used && c->is_open[side] && c->host[side] == h->idx &&
                c->life[side] == h->life) {
                close_side(w, c, side, is_silent);
            }
        }
    }
}

/* ---- connecting --------------------------------------------------------------------------------------------------- */

static void say_connected(void *world, uint64_t idx, uint64_t serial)
{
    struct sim_world *w = world;
    struct sim_conn *c = conn_at(w, idx, serial);
    if (c == NULL || !c->is_open[SIM_DIALS] || !is_alive(w, c, SIM_DIALS) || c->is_up) {
        return;
    }
    struct sim_host *h = host_at(w, c, SIM_DIALS);
    if (h->is_frozen) {
        sim_clock_at(&w->clock, w->clock.now_ns + FROZEN_AGAIN_NS, say_connected, w, idx,
                     serial);
        return;
    }
    c->is_up = true;
    sim_note(w, SIM_CONN_UP, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, c->peer[SIM_DIALS],
             c->host[SIM_ACCEPTS]);
    kvf_core_peer_connected(h->core, sim_host_clock(h), c->peer[SIM_DIALS]);
    if (c->is_open[SIM_DIALS] && c->serial == serial) {
        sim_control_write(w, h, c->peer[SIM_DIALS]);
        pipe_arm(w, c, SIM_DIALS);
    }
    sim_worker_after(w, h);
}

static void say_refused(void *world, uint64_t idx, uint64_t serial)
{
    struct sim_world *w = world;
    struct sim_conn *c = conn_at(w, idx, serial);
    if (c == NULL || !c->is_open[SIM_DIALS] || !is_alive(w, c, SIM_DIALS)) {
        return;
    }
    struct sim_host *h = host_at(w, c, SIM_DIALS);
    if (h->is_frozen) {
        sim_clock_at(&w->clock, w->clock.now_ns + FROZEN_AGAIN_NS, say_refused, w, idx, serial);
        return;
    }
    uint32_t peer = c->peer[SIM_DIALS];
    close_side(w, c, SIM_DIALS, true);
    kvf_core_peer_connect_failed(h->core, sim_host_clock(h), peer, ECONNREFUSED);
    sim_worker_after(w, h);
}

static void dial(void *world, uint64_t idx, uint64_t serial);

/* The kernel of the other side answers for its process, whether that runs or stands still. */
static void syn(void *world, uint64_t idx, uint64_t serial)
{
    struct sim_world *w = world;
    struct sim_conn *c = conn_at(w, idx, serial);
    if (c == NULL || !c->is_open[SIM_DIALS]) {
        return;
    }
    struct sim_host *to = host_at(w, c, SIM_ACCEPTS);
    uint64_t back_ns = to->is_up ? arrival(w, c, SIM_DIALS) : KVF_NO_TIME;
    if (back_ns == KVF_NO_TIME) {
        sim_clock_at(&w->clock, w->clock.now_ns + AGAIN_NS, dial, w, idx, serial);
        return;
    }
    if (to->worker != SIM_WORKER_SERVING || to->refusals > 0) {
        sim_clock_at(&w->clock, back_ns, say_refused, w, idx, serial);
        return;
    }
    if (!c->is_open[SIM_ACCEPTS]) {
        c->is_open[SIM_ACCEPTS] = true;
        c->life[SIM_ACCEPTS] = to->life;
    }
    sim_clock_at(&w->clock, back_ns, say_connected, w, idx, serial);
}

static void dial(void *world, uint64_t idx, uint64_t serial)
{
    struct sim_world *w = world;
    struct sim_conn *c = conn_at(w, idx, serial);
    if (c == NULL || !c->is_open[SIM_DIALS] || c->is_up) {
        return;
    }
    uint64_t due_ns = arrival(w, c, SIM_ACCEPTS);
    if (due_ns == KVF_NO_TIME) {
        sim_clock_at(&w->clock, w->clock.now_ns + AGAIN_NS, dial, w, idx, serial);
    } else {
        sim_clock_at(&w->clock, due_ns, syn, w, idx, serial);
    }
}

static struct sim_conn *conn_new(struct sim_world *w)
{
    for (uint32_t i = 0; i < SIM_CONNS_MAX; i++) {
        if (!w->conns[i].is_used) {
            uint32_t serial = w->conns[i].serial + 1u;
            w->conns[i] = (struct sim_conn){.is_used = true,
                                            .serial = serial,
                                            .peer = {KVF_NONE, KVF_NONE},
                                            .to = {{.head = KVF_NONE, .tail = KVF_NONE},
                                                   {.head = KVF_NONE, .tail = KVF_NONE}}};
            return &w->conns[i];
        }
    }
    return NULL;
}

void sim_control_connect(struct sim_world *w, struct sim_host *h, uint32_t peer,
                         const struct kvf_addr_shm *addr)
{
    sim_control_close(w, h, peer);
    struct sim_conn *c = conn_new(w);
    uint32_t to = addr->addr[3] - 1u;
    sim_note(w, SIM_CONNECT, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, peer, to);
    if (c == NULL || to >= w->scenario.hosts) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "too many connections, or a wrong address");
        return;
    }
    c->host[SIM_DIALS] = (uint8_t)h->idx;
    c->host[SIM_ACCEPTS] = (uint8_t)to;
    c->life[SIM_DIALS] = h->life;
    c->peer[SIM_DIALS] = peer;
    c->is_open[SIM_DIALS] = true;
    h->conn_of_peer[peer] = conn_idx(w, c);
    sim_clock_at(&w->clock, w->clock.now_ns, dial, w, conn_idx(w, c), c->serial);
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

void sim_control_write(struct sim_world *w, struct sim_host *h, uint32_t peer)
{
    uint32_t idx = h->conn_of_peer[peer];
    struct sim_conn *c = idx == KVF_NONE ? NULL : &w->conns[idx];
    if (c == NULL) {
        return;
    }
    int side =
        c->host[SIM_DIALS] == h->idx && c->peer[SIM_DIALS] == peer ? SIM_DIALS : SIM_ACCEPTS;
    if (side == SIM_DIALS && !c->is_up) {
        return;
    }
    int other = 1 - side;
    uint32_t serial = c->serial;
    c->wants_write[side] = false;
    while (c->is_used && c->serial == serial && c->is_open[side]) {
        if (c->to[other].count >= PIPE_FRAMES_MAX) {
            c->wants_write[side] = true;
            return;
        }
        size_t bytes = kvf_core_emit(h->core, sim_host_clock(h), peer, w->emit_buffer,
                                     sizeof w->emit_buffer);
        if (bytes == 0) {
            return;
        }
        push_frames(w, c, other, w->emit_buffer, bytes);
    }
}

/* The pipe has room again: its writer's socket says so. */
static void writable(struct sim_world *w, struct sim_conn *c, int side)
{
    struct sim_host *h = host_at(w, c, side);
    if (c->wants_write[side] && c->is_open[side] && is_alive(w, c, side) && !h->is_frozen &&
        c->to[1 - side].count < PIPE_FRAMES_MAX) {
        sim_control_write(w, h, c->peer[side]);
        sim_worker_after(w, h);
    }
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static void accept_hello(struct sim_world *w, struct sim_conn *c,
                         const struct kvf_wire_header *head, const unsigned char *payload)
{
    struct sim_host *h = host_at(w, c, SIM_ACCEPTS);
    uint32_t peer = KVF_NONE;
    int rc = head->type == KVF_WIRE_HELLO
                 ? kvf_core_peer_accept(h->core, sim_host_clock(h), payload,
                                        head->payload_bytes, &peer)
                 : -EPROTO;
    if (rc != 0) {
        unsigned char refusal[256];
        size_t bytes = kvf_core_refusal(h->core, (uint32_t)-rc, refusal, sizeof refusal);
        push_frames(w, c, SIM_DIALS, refusal, bytes);
        close_side(w, c, SIM_ACCEPTS, false);
        return;
    }
    sim_control_close(w, h, peer); /* the connection that this one replaces */
    c->peer[SIM_ACCEPTS] = peer;
    h->conn_of_peer[peer] = conn_idx(w, c);
    sim_control_write(w, h, peer);
}

static void deliver(struct sim_world *w, struct sim_conn *c, int side)
{
    struct sim_pipe *pipe = &c->to[side];
    struct sim_host *h = host_at(w, c, side);
    uint32_t idx = pipe->head;
    struct sim_frame *f = &w->frames[idx];
    struct kvf_wire_header head;
    pipe->head = f->next;
    pipe->tail = f->next == KVF_NONE ? KVF_NONE : pipe->tail;
    pipe->count--;
    (void)kvf_wire_get_header(f->data, &head);
    sim_note(w, SIM_FRAME, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, head.type, c->host[1 - side]);
    if (c->peer[side] == KVF_NONE) {
        accept_hello(w, c, &head, f->data + KVF_WIRE_HEADER_BYTES);
    } else {
        kvf_core_frame(h->core, sim_host_clock(h), c->peer[side], head.type, head.seq,
                       f->data + KVF_WIRE_HEADER_BYTES, head.payload_bytes);
    }
    frame_drop(w, idx);
    sim_worker_after(w, h);
}

static void pipe_event(void *world, uint64_t where, uint64_t serial)
{
    struct sim_world *w = world;
    struct sim_conn *c = conn_at(w, where / 2u, serial);
    int side = (int)(where % 2u);
    if (c == NULL) {
        return;
    }
    struct sim_pipe *pipe = &c->to[side];
    pipe->has_event = false;
    if (!c->is_open[side] || c->is_dead || !is_alive(w, c, side) ||
        host_at(w, c, side)->is_frozen || (side == SIM_DIALS && !c->is_up)) {
        return; /* the kernel keeps it; a thaw looks again */
    }
    if (!is_link_open(w, c, side)) {
        for (uint32_t i = pipe->head; i != KVF_NONE; i = w->frames[i].next) {
            w->frames[i].due_ns = KVF_NO_TIME;
        }
        pipe->end_ns = KVF_NO_TIME;
        return;
    }
    while (c->is_used && c->serial == serial && c->is_open[side] && pipe->head != KVF_NONE &&
           w->frames[pipe->head].due_ns <= w->clock.now_ns) {
        deliver(w, c, side);
    }
    if (!c->is_used || c->serial != serial) {
        return;
    }
    writable(w, c, 1 - side);
    if (!c->is_used || c->serial != serial || !c->is_open[side]) {
        return;
    }
    if (pipe->head == KVF_NONE && pipe->has_end && pipe->end_ns <= w->clock.now_ns) {
        lose_side(w, c, side);
        return;
    }
    pipe_arm(w, c, side);
}

void sim_control_resume(struct sim_world *w)
{
    for (uint32_t i = 0; i < SIM_CONNS_MAX; i++) {
        for (int side = 0; side < 2; side++) {
            struct sim_conn *c = &w->conns[i];
            if (c->is_used && c->is_open[side]) {
                pipe_arm(w, c, side);
            }
            if (c->is_used) {
                writable(w, c, side);
            }
        }
    }
}

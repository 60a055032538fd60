/* Control connections: whole frames in order, held, cut or lost at a test's word. */
#include "tests/core/pair_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- pipes ----------------------------------------------------------------------------------------- */

static void pipe_push(struct pair_pipe *pipe, const unsigned char *data, size_t bytes)
{
    struct pair_frame *f = malloc(sizeof *f + bytes);
    f->next = NULL;
    f->bytes = bytes;
    memcpy(f->data, data, bytes);
    if (pipe->tail != NULL) {
        pipe->tail->next = f;
    } else {
        pipe->head = f;
    }
    pipe->tail = f;
    pipe->count++;
}

static struct pair_frame *pipe_pop(struct pair_pipe *pipe)
{
    struct pair_frame *f = pipe->head;
    if (f != NULL) {
        pipe->head = f->next;
        pipe->tail = f->next == NULL ? NULL : pipe->tail;
        pipe->count--;
    }
    return f;
}

static void pipe_clear(struct pair_pipe *pipe)
{
    struct pair_frame *f;
    while ((f = pipe_pop(pipe)) != NULL) {
        free(f);
    }
}

static int side_other(int side)
{
    return side == PAIR_SINK ? PAIR_SOURCE : PAIR_SINK;
}

/* ---- finding --------------------------------------------------------------------------------------- */

struct pair_conn *pair_conn(struct pair *p, uint32_t sink, uint32_t source)
{
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *c = &p->conns[i];
        if (c->is_used && c->is_open[PAIR_SINK] && c->is_open[PAIR_SOURCE] &&
            c->daemon[PAIR_SINK] == sink && c->daemon[PAIR_SOURCE] == source) {
            return c;
        }
    }
    return NULL;
}

static struct pair_conn *conn_of_peer(struct pair *p, uint32_t daemon, uint32_t peer,
                                      int *ret_side)
{
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *c = &p->conns[i];
        for (int side = 0; side < 2; side++) {
            if (c->is_used && c->is_open[side] && c->daemon[side] == daemon &&
                c->peer[side] == peer) {
                *ret_side = side;
                return c;
            }
        }
    }
    return NULL;
}

uint32_t pair_frames_of(const struct pair_conn *c, int side, uint8_t type)
{
    uint32_t count = 0;
    for (const struct pair_frame *f = c->to[side].head; f != NULL; f = f->next) {
        struct kvf_wire_header h;
        count += kvf_wire_get_header(f->data, &h) == 0 && h.type == type ? 1 : 0;
    }
    return count;
}

/* ---- life of a connection --------------------------------------------------------------------------- */

struct pair_conn *pair_net_connect(struct pair *p, uint32_t daemon, uint32_t peer, uint32_t to)
{
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *c = &p->conns[i];
        if (!c->is_used) {
            *c = (struct pair_conn){.is_used = true,
                                    .daemon = {daemon, to},
                                    .peer = {peer, KVF_NONE},
                                    .is_open = {true, true}};
            return c;
        }
    }
    pair_fail(p, "more than %u connections", PAIR_CONNS_MAX);
}

static void close_side(struct pair_conn *c, int side)
{
    c->is_open[side] = false;
    pipe_clear(&c->to[side]);
}

void pair_net_close(struct pair *p, uint32_t daemon, uint32_t peer)
{
    int side;
    struct pair_conn *c = conn_of_peer(p, daemon, peer, &side);
    p->daemons[daemon].wants_connect[peer] = false; /* a connect that was given up */
    if (c != NULL) {
        close_side(c, side);
    }
}

static void lose_by(struct pair *p, struct pair_conn *c, int side, int err)
{
    uint32_t daemon = c->daemon[side];
    uint32_t peer = c->peer[side];
    close_side(c, side);
    if (pair_is_awake(p, daemon) && peer != KVF_NONE) {
        kvf_core_peer_lost(p->daemons[daemon].core, pair_clock(p, daemon), peer, err);
        pair_drain(p, daemon);
    }
}

void pair_conn_lose(struct pair *p, struct pair_conn *c, int side)
{
    lose_by(p, c, side, ECONNRESET);
}

void pair_conn_cut(struct pair *p, struct pair_conn *c)
{
    pipe_clear(&c->to[PAIR_SINK]);
    pipe_clear(&c->to[PAIR_SOURCE]);
    pair_conn_lose(p, c, PAIR_SINK);
    if (c->is_open[PAIR_SOURCE]) {
        pair_conn_lose(p, c, PAIR_SOURCE);
    }
}

void pair_net_daemon_died(struct pair *p, uint32_t daemon)
{
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *c = &p->conns[i];
        for (int side = 0; side < 2; side++) {
            if (c->is_used && c->daemon[side] == daemon && c->is_open[side]) {
                close_side(c, side);
            }
        }
    }
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        for (int side = 0; side < 2; side++) {
            if (p->streams[i].is_used && p->streams[i].daemon[side] == daemon) {
                pair_stream_close_side(&p->streams[i], side);
            }
        }
    }
}

void pair_net_free(struct pair *p)
{
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        pipe_clear(&p->conns[i].to[PAIR_SINK]);
        pipe_clear(&p->conns[i].to[PAIR_SOURCE]);
    }
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        if (p->streams[i].is_used) {
            pair_stream_free(&p->streams[i]);
        }
    }
}

/* ---- frames ---------------------------------------------------------------------------------------- */

static void push_frames(struct pair *p, struct pair_pipe *pipe, const unsigned char *buf,
                        size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct kvf_wire_header h;
        if (bytes - at < KVF_WIRE_HEADER_BYTES || kvf_wire_get_header(buf + at, &h) != 0 ||
            h.payload_bytes > bytes - at - KVF_WIRE_HEADER_BYTES) {
            pair_fail(p, "the core emitted something that is not whole frames");
        }
        size_t frame_bytes = KVF_WIRE_HEADER_BYTES + h.payload_bytes;
        pipe_push(pipe, buf + at, frame_bytes);
        at += frame_bytes;
    }
}

/* The socket takes what it can get: frames leave one call of emit at a time. */
static uint32_t write_side(struct pair *p, struct pair_conn *c, int side)
{
    uint32_t daemon = c->daemon[side];
    struct pair_daemon *d = &p->daemons[daemon];
    uint32_t peer = c->peer[side];
    const struct pair_link *link = &p->links[c->daemon[PAIR_SINK]][c->daemon[PAIR_SOURCE]];
    if (!c->is_open[side] || peer == KVF_NONE || !pair_is_awake(p, daemon) ||
        !d->wants_write[peer] || c->hold_write[side] || link->hold_write[side]) {
        return 0;
    }
    static unsigned char buf[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];
    d->wants_write[peer] = false;
    size_t bytes = kvf_core_emit(d->core, pair_clock(p, daemon), peer, buf, sizeof buf);
    if (bytes > 0) {
        d->wants_write[peer] = true; /* until it owes nothing */
        if (c->is_open[side_other(side)]) {
            push_frames(p, &c->to[side_other(side)], buf, bytes);
        }
    } else if (kvf_core_owes(d->core, peer)) {
        pair_fail(p, "daemon %u owes peer %u bytes but makes none", daemon, peer);
    }
    pair_drain(p, daemon);
    return bytes > 0 ? 1 : 0;
}

static void accept_side(struct pair *p, struct pair_conn *c, const struct kvf_wire_header *h,
                        const unsigned char *payload)
{
    uint32_t daemon = c->daemon[PAIR_SOURCE];
    struct kvf_core *core = p->daemons[daemon].core;
    uint32_t peer = KVF_NONE;
    int rc = h->type == KVF_WIRE_HELLO ? kvf_core_peer_accept(core, pair_clock(p, daemon),
                                                              payload, h->payload_bytes, &peer)
                                       : -EPROTO;
    if (rc == 0) {
        c->peer[PAIR_SOURCE] = peer;
    } else {
        unsigned char buf[256];
        if (rc == -KVF_E_PEER_REFUSED) {
            size_t bytes = kvf_core_refusal(core, KVF_E_PEER_REFUSED, buf, sizeof buf);
            push_frames(p, &c->to[PAIR_SINK], buf, bytes);
        }
        close_side(c, PAIR_SOURCE);
    }
}

static void deliver_one(struct pair *p, struct pair_conn *c, int side)
{
    struct pair_frame *f = pipe_pop(&c->to[side]);
    struct kvf_wire_header h;
    uint32_t daemon = c->daemon[side];
    c->delivered[side]++;
    int err = kvf_wire_get_header(f->data, &h);
    if (err != 0) { /* a raw side's garbage: a framing error, or another version */
        lose_by(p, c, side, -err);
    } else if (side == PAIR_SOURCE && c->peer[side] == KVF_NONE) {
        accept_side(p, c, &h, f->data + KVF_WIRE_HEADER_BYTES);
    } else {
        kvf_core_frame(p->daemons[daemon].core, pair_clock(p, daemon), c->peer[side], h.type,
                       h.seq, f->data + KVF_WIRE_HEADER_BYTES, h.payload_bytes);
    }
    free(f);
    pair_drain(p, daemon);
}

uint32_t pair_deliver(struct pair *p, struct pair_conn *c, int side, uint32_t frames)
{
    uint32_t count = 0;
    while (count < frames && c->is_open[side] && c->to[side].head != NULL &&
           pair_is_awake(p, c->daemon[side])) {
        deliver_one(p, c, side);
        count++;
    }
    return count;
}

static uint32_t move_side(struct pair *p, struct pair_conn *c, int side, uint32_t units)
{
    const struct pair_link *link = &p->links[c->daemon[PAIR_SINK]][c->daemon[PAIR_SOURCE]];
    uint32_t moved = write_side(p, c, side);
    if (c->is_open[side] && !c->hold[side] && !link->hold[side]) {
        moved += pair_deliver(p, c, side, units);
        if (c->is_open[side] && !c->is_open[side_other(side)] && c->to[side].head == NULL &&
            pair_is_awake(p, c->daemon[side])) {
            pair_conn_lose(p, c, side);
            moved++;
        }
    }
    return moved;
}

static uint32_t conn_move(struct pair *p, struct pair_conn *c, uint32_t units)
{
    uint32_t moved = move_side(p, c, PAIR_SINK, units);
    moved += move_side(p, c, PAIR_SOURCE, units);
    if (!c->is_open[PAIR_SINK] && !c->is_open[PAIR_SOURCE]) {
        pipe_clear(&c->to[PAIR_SINK]);
        pipe_clear(&c->to[PAIR_SOURCE]);
        c->is_used = false;
    }
    return moved;
}

uint32_t pair_net_move_all(struct pair *p)
{
    uint32_t moved = 0;
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        if (p->conns[i].is_used) {
            moved += conn_move(p, &p->conns[i], UINT32_MAX);
        }
    }
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        if (p->streams[i].is_used) {
            moved += pair_stream_move(p, &p->streams[i], UINT32_MAX);
        }
    }
    return moved;
}

bool pair_move_one(struct pair *p)
{
    uint32_t all = PAIR_CONNS_MAX + PAIR_STREAMS_MAX;
    uint32_t from = (uint32_t)pair_random(p, all);
    for (uint32_t i = 0; i < all; i++) {
        uint32_t at = (from + i) % all;
        uint32_t moved = 0;
        if (at >= PAIR_CONNS_MAX) {
            struct pair_stream *s = &p->streams[at - PAIR_CONNS_MAX];
            uint32_t units = 1 + (uint32_t)pair_random(p, 8);
            moved = s->is_used ? pair_stream_move(p, s, units) : 0;
        } else if (p->conns[at].is_used) {
            struct pair_conn *c = &p->conns[at];
            moved = move_side(p, c, pair_random(p, 2) == 0 ? PAIR_SINK : PAIR_SOURCE, 1);
            moved = moved == 0 ? conn_move(p, c, 1) : moved;
        }
        if (moved > 0) {
            return true;
        }
    }
    return false;
}

/* ---- raw sides ------------------------------------------------------------------------------------- */

struct pair_conn *pair_raw_connect(struct pair *p, uint32_t raw, uint32_t daemon)
{
    return pair_net_connect(p, raw, KVF_NONE, daemon);
}

void pair_raw_send(struct pair *p, struct pair_conn *c, int side, const unsigned char *frame,
                   size_t bytes)
{
    int to = side_other(side);
    if (c->is_open[to]) {
        pipe_push(&c->to[to], frame, bytes);
        (void)pair_deliver(p, c, to, 1);
    }
}

uint8_t pair_raw_read(struct pair *p, struct pair_conn *c, int side,
                      const unsigned char **ret_payload, size_t *ret_bytes)
{
    static unsigned char buf[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];
    struct pair_frame *f = pipe_pop(&c->to[side]);
    struct kvf_wire_header h;
    if (f == NULL) {
        return 0;
    }
    memcpy(buf, f->data, f->bytes);
    free(f);
    if (kvf_wire_get_header(buf, &h) != 0) {
        pair_fail(p, "the core sent a header nobody can read");
    }
    *ret_payload = buf + KVF_WIRE_HEADER_BYTES;
    *ret_bytes = h.payload_bytes;
    return h.type;
}

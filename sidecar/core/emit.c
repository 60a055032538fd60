/* Bytes owed to a peer. Nothing queues: an object stands at most once in its peer's send list with bits
 * for what it owes, and its bytes are made when the socket takes them. From the moment a GRANT's first
 * byte is written here it counts as sent, whatever the socket does with it. */
#include "sidecar/core/internal.h"

#include <string.h>

struct out {
    unsigned char *buf;
    size_t cap;
    size_t used;
};

static bool took(struct out *o, struct kvf_peer *p, int bytes)
{
    if (bytes < 0) {
        return false; /* does not fit now */
    }
    o->used += (size_t)bytes;
    p->seq_out++;
    return true;
}

/* How many grants a sink may have out on one of our lanes: all of a peer's together fill at most an eighth
 * of the table, so that a peer which keeps to it can never be the one that fills it. */
static uint32_t grants_per_lane(const struct kvf_core *core)
{
    uint32_t share = core->limits.grants_max / 8 / core->limits.lanes_per_peer;
    share = share == 0 ? 1 : share;
    return share < core->config.lane_rooms ? share : core->config.lane_rooms;
}

static struct kvf_wire_hello own_hello(const struct kvf_core *core)
{
    struct kvf_wire_hello h = {.version_major = KVF_WIRE_VERSION_MAJOR,
                               .version_minor = KVF_WIRE_VERSION_MINOR,
                               .caps = KVF_CAP_DRAIN_PROOF | KVF_CAP_GROUP,
                               .supervisor_id = core->config.supervisor_id,
                               .worker_starts = core->config.worker_starts,
                               .transport = core->config.transport,
                               .placement = core->config.placement,
                               .lane_count = (uint8_t)core->limits.lanes_per_peer,
                               .receives_per_lane = grants_per_lane(core)};
    memcpy(h.name, core->config.name, sizeof h.name);
    return h;
}

size_t kvf_core_refusal(const struct kvf_core *core, uint32_t code, unsigned char *buf,
                        size_t cap)
{
    struct kvf_wire_hello h = own_hello(core);
    h.code = code;
    int bytes = kvf_wire_put_hello(buf, cap, 0, &h);
    return bytes < 0 ? 0 : (size_t)bytes;
}

static bool emit_head(struct kvf_core *core, struct kvf_peer *p, struct out *o)
{
    if (p->owes_hello) {
        struct kvf_wire_hello h = own_hello(core);
        h.session = p->session;
        if (!took(o, p,
                  kvf_wire_put_hello(o->buf + o->used, o->cap - o->used, p->seq_out, &h))) {
            return false;
        }
        p->owes_hello = false;
    }
    if (p->state != KVF_PEER_UP) {
        return false; /* nothing else before the other's HELLO */
    }
    if (p->owes_pong) {
        struct kvf_wire_ping m = {.seq = p->pong_seq};
        if (!took(o, p,
                  kvf_wire_put_pong(o->buf + o->used, o->cap - o->used, p->seq_out, &m))) {
            return false;
        }
        p->owes_pong = false;
    }
    if (p->owes_ping) {
        struct kvf_wire_ping m = {.seq = p->ping_seq};
        if (!took(o, p,
                  kvf_wire_put_ping(o->buf + o->used, o->cap - o->used, p->seq_out, &m))) {
            return false;
        }
        p->owes_ping = false;
    }
    return true;
}

static bool emit_lanes(struct kvf_core *core, uint32_t peer, struct out *o)
{
    struct kvf_peer *p = &core->peers[peer];
    for (uint32_t i = 0; i < p->lane_count; i++) {
        struct kvf_lane *lane = &core->lanes[kvf_lane_id(peer, i)];
        if (!lane->owes_lane) {
            continue;
        }
        struct kvf_wire_lane m = {.lane_idx = i, .epoch = lane->epoch};
        if (lane->is_queue_pair) {
            m.end = lane->own;
        }
        if (!took(o, p,
                  kvf_wire_put_lane(o->buf + o->used, o->cap - o->used, p->seq_out, &m))) {
            return false;
        }
        lane->owes_lane = false;
    }
    return true;
}

/* ---- sink side ------------------------------------------------------------------------------------- */

static bool emit_region(struct kvf_core *core, uint32_t peer, uint32_t wire, struct out *o)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t handle = 0;
    const struct kvf_region *reg = kvf_region_by_wire(core, wire, &handle);
    assert(reg != NULL);
    struct kvf_wire_region *m = &core->region_scratch;
    *m = (struct kvf_wire_region){.region = wire,
                                  .epoch = handle >> 8,
                                  .page_count = reg->page_count,
                                  .base = reg->base,
                                  .plane_count = reg->plane_count,
                                  .key_count = reg->key_count};
    memcpy(m->keys, reg->keys, sizeof m->keys);
    for (uint32_t i = 0; i < reg->plane_count; i++) {
        m->planes[i] = (struct kvf_wire_plane){.off = reg->planes[i].off,
                                               .stride = reg->planes[i].stride,
                                               .page_bytes = reg->planes[i].page_bytes};
    }
    if (!took(o, p, kvf_wire_put_region(o->buf + o->used, o->cap - o->used, p->seq_out, m))) {
        return false;
    }
    p->announced[wire / 64] |= UINT64_C(1) << wire % 64;
    return true;
}

static bool announce_regions(struct kvf_core *core, uint32_t peer, uint32_t room, struct out *o)
{
    uint32_t client = kvf_room_client(core, room);
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        uint32_t wire = client * KVF_REGIONS_PER_CLIENT_MAX + i;
        bool is_named = (core->rooms[room].region_mask >> i & 1) != 0;
        bool is_known = (core->peers[peer].announced[wire / 64] >> wire % 64 & 1u) != 0;
        if (is_named && !is_known && !emit_region(core, peer, wire, o)) {
            return false;
        }
    }
    return true;
}

/* The grant's part of run `i` of the room's list. */
static struct kvf_wire_run part_of(const struct kvf_core *core, const struct kvf_grant *g,
                                   const struct kvf_run *run)
{
    uint32_t end = g->start + g->page_count;
    uint32_t from = run->position > g->start ? run->position : g->start;
    uint32_t to = run->position + run->count < end ? run->position + run->count : end;
    return (struct kvf_wire_run){
        .region = kvf_region_wire(kvf_room_client(core, g->room), run->region),
        .first = run->first + (from - run->position),
        .count = to - from};
}

/* One fragment; true when it fit. */
static bool emit_fragment(struct kvf_core *core, uint32_t grant, struct out *o)
{
    struct kvf_grant *g = &core->grants[grant];
    struct kvf_peer *p = &core->peers[g->peer];
    const struct kvf_room_rec *r = &core->rooms[g->room];
    const struct kvf_run *list = &core->runs.run[r->run_block];
    const struct kvf_run *first = kvf_runs_find(list, r->run_count, g->start);
    const struct kvf_run *last =
        kvf_runs_find(list, r->run_count, g->start + g->page_count - 1);
    uint32_t total = (uint32_t)(last - first) + 1;
    uint32_t count = total - g->run_cursor;
    if (count > KVF_WIRE_RUNS_PER_FRAME) {
        count = KVF_WIRE_RUNS_PER_FRAME;
    }
    if (kvf_wire_grant_bytes(count) > o->cap - o->used) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        core->run_scratch[i] = part_of(core, g, first + g->run_cursor + i);
    }
    struct kvf_wire_grant m = {.nonce = g->nonce,
                               .label = g->label,
                               .key = g->key,
                               .handle = kvf_grant_handle(grant, g),
                               .lane_mask = g->lane_mask,
                               .page_count = g->page_count,
                               .total_runs = total,
                               .first_run = g->run_cursor,
                               .run_count = count,
                               .past_nonce = g->past_nonce};
    memcpy(m.lane_epochs, g->lane_epochs, sizeof m.lane_epochs);
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        m.lane_epochs[i] = (g->lane_mask >> i & 1u) != 0 ? g->lane_epochs[i] : 0;
    }
    if (!took(o, p,
              kvf_wire_put_grant(o->buf + o->used, o->cap - o->used, p->seq_out, &m,
                                 core->run_scratch))) {
        return false;
    }
    g->run_cursor += count;
    g->state = g->run_cursor == total ? KVF_GRANT_SENT : KVF_GRANT_SENDING;
    return true;
}

/* LANE_LOST: this grant ends, and another one follows; the source's room stays open for it. */
static bool emit_abort(struct kvf_core *core, uint32_t grant, uint64_t nonce, struct out *o)
{
    struct kvf_grant *g = &core->grants[grant];
    struct kvf_peer *p = &core->peers[g->peer];
    struct kvf_wire_abort m = {.nonce = nonce,
                               .label = g->label,
                               .key = g->key,
                               .reason = kvf_grant_is_between(core, g) ? KVF_E_LANE_LOST
                                                                       : KVF_E_ABORTED};
    return took(o, p, kvf_wire_put_abort(o->buf + o->used, o->cap - o->used, p->seq_out, &m));
}

/* Everything this grant owes; false: the buffer is full, it stays in the list. */
static bool emit_sink(struct kvf_core *core, uint64_t now_ns, uint32_t grant, struct out *o)
{
    struct kvf_grant *g = &core->grants[grant];
    if (g->state == KVF_GRANT_TELL) {
        if (!emit_abort(core, grant, g->past_nonce, o)) {
            return false;
        }
        kvf_grant_forget(core, now_ns, grant);
        return true;
    }
    if (g->owes_abort) {
        if (!emit_abort(core, grant, g->nonce, o)) {
            return false;
        }
        g->owes_abort = false; /* a half-sent GRANT stays half: its answer is DECLINE */
        kvf_list_remove(&core->peers[g->peer].owed, grant);
        kvf_grant_settle(core, now_ns, grant);
        return true;
    }
    if (g->state != KVF_GRANT_QUEUED && g->state != KVF_GRANT_SENDING) {
        kvf_list_remove(&core->peers[g->peer].owed,
                        grant); /* what it owed was answered meanwhile */
        return true;
    }
    if (g->state == KVF_GRANT_QUEUED && !announce_regions(core, g->peer, g->room, o)) {
        return false;
    }
    while (g->state == KVF_GRANT_QUEUED || g->state == KVF_GRANT_SENDING) {
        if (!emit_fragment(core, grant, o)) {
            return false;
        }
    }
    kvf_count(core, KVF_COUNT_GRANTS_SENT);
    kvf_list_remove(&core->peers[g->peer].owed, grant);
    return true;
}

/* ---- source side ----------------------------------------------------------------------------------- */

static bool emit_source(struct kvf_core *core, uint64_t now_ns, uint32_t source, struct out *o)
{
    struct kvf_source_grant *s = &core->sources[source];
    struct kvf_peer *p = &core->peers[s->peer];
    if (s->owes_decline) {
        struct kvf_wire_decline m = {
            .nonce = s->nonce, .reason = s->reason, .detail = s->detail};
        if (!took(o, p,
                  kvf_wire_put_decline(o->buf + o->used, o->cap - o->used, p->seq_out, &m))) {
            return false;
        }
        s->owes_decline = false;
    }
    if (s->owes_accept) {
        struct kvf_wire_accept m = {.nonce = s->nonce};
        if (!took(o, p,
                  kvf_wire_put_accept(o->buf + o->used, o->cap - o->used, p->seq_out, &m))) {
            return false;
        }
        s->owes_accept = false;
    }
    if (s->owes_ended) {
        struct kvf_wire_ended m = {
            .nonce = s->nonce, .reason = s->reason, .broken_lanes = s->dead_mask};
        if (!took(o, p,
                  kvf_wire_put_ended(o->buf + o->used, o->cap - o->used, p->seq_out, &m))) {
            return false;
        }
        s->owes_ended = false;
    }
    kvf_list_remove(&p->owed, source);
    kvf_source_try_end(core, now_ns, source);
    return true;
}

/* ---- groups ------------------------------------------------------------------------------------------ */

static bool emit_group(struct kvf_core *core, uint32_t peer, struct out *o)
{
    struct kvf_peer *p = &core->peers[peer];
    struct kvf_wire_group m;
    while (kvf_group_owes(core, peer)) {
        if (o->cap - o->used < KVF_WIRE_HEADER_BYTES + KVF_WIRE_GROUP_BYTES) {
            return false;
        }
        if (kvf_group_next(core, peer, &m)) {
            kvf_count(core, KVF_COUNT_GROUP_SENT);
            (void)took(o, p,
                       kvf_wire_put_group(o->buf + o->used, o->cap - o->used, p->seq_out, &m));
        }
    }
    return true;
}

/* ---- the pull -------------------------------------------------------------------------------------- */

size_t kvf_core_emit(struct kvf_core *core, uint64_t now_ns, uint32_t peer, unsigned char *buf,
                     size_t cap)
{
    assert(peer < core->limits.peers_max);
    struct kvf_peer *p = &core->peers[peer];
    struct out o = {.buf = buf, .cap = cap};
    if (p->role == KVF_PEER_FREE || (p->state != KVF_PEER_UP && p->state != KVF_PEER_HELLO)) {
        return 0;
    }
    if (!emit_head(core, p, &o) || !emit_lanes(core, peer, &o) || !emit_group(core, peer, &o)) {
        return o.used;
    }
    uint32_t first;
    while ((first = kvf_list_first(&p->owed)) != KVF_LIST_NONE) {
        bool fit = p->role == KVF_PEER_OUT ? emit_sink(core, now_ns, first, &o)
                                           : emit_source(core, now_ns, first, &o);
        if (!fit) {
            break;
        }
    }
    return o.used;
}

bool kvf_core_owes(const struct kvf_core *core, uint32_t peer)
{
    const struct kvf_peer *p = &core->peers[peer];
    if (p->owes_hello) {
        return true;
    }
    if (p->state != KVF_PEER_UP) {
        return false;
    }
    if (p->owes_ping || p->owes_pong || p->owed.head != 0 || kvf_group_owes(core, peer)) {
        return true;
    }
    for (uint32_t i = 0; i < p->lane_count; i++) {
        if (core->lanes[kvf_lane_id(peer, i)].owes_lane) {
            return true;
        }
    }
    return false;
}

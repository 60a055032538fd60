/* What operators say and see. Their word can take a peer away, or end a quarantine; it never stands in for a
 * proof that could still be had: rooms close through the gate, lanes are fenced as at any other end. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

/* Those that wait for their first grant; one that lost a grant and waits for the next one is running. */
static void close_waiting(struct kvf_core *core, uint64_t now_ns)
{
    for (uint32_t client = 0; client < core->limits.clients_max; client++) {
        const struct kvf_client_rec *c = &core->clients[client];
        for (uint32_t slot = 0; slot < c->rooms_max && c->undrained > 0; slot++) {
            uint32_t room = kvf_room_idx(core, client, slot);
            if (kvf_list_has(&core->bootstrap, room) && !core->rooms[room].waits_again) {
                kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_SHUTDOWN, 0);
            }
        }
    }
}

void kvf_core_drain(struct kvf_core *core, uint64_t now_ns, bool is_draining)
{
    core->is_draining = is_draining;
    if (is_draining) {
        close_waiting(core, now_ns);
    }
}

int kvf_core_release(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                     uint64_t generation)
{
    if (client >= core->limits.clients_max || !core->clients[client].is_used ||
        slot >= core->clients[client].rooms_max) {
        return -KVF_E_UNKNOWN_ROOM;
    }
    uint32_t room = kvf_room_idx(core, client, slot);
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->phase == KVF_PHASE_FREE || r->generation != generation) {
        return -KVF_E_STALE_ROOM;
    }
    if (r->phase != KVF_PHASE_QUARANTINED) {
        return -EINVAL;
    }
    r->proof = KVF_PROOF_OPERATOR; /* the weakest: no other hides it */
    r->are_leases_idle = true;
    kvf_flush_forget(core, room);
    kvf_list_remove(&core->leases_close, room);
    kvf_room_set_phase(core, room, KVF_PHASE_CLOSING);
    kvf_room_try_drain(core, now_ns, room);
    return 0;
}

/* ---- peers that are down ----------------------------------------------------------------------------- */

static bool is_hold_of(const struct kvf_hold *h, const struct kvf_addr_shm *addr,
                       uint64_t peer_id)
{
    if (!h->is_used) {
        return false;
    }
    return peer_id != 0 ? h->addr.family == 0 && h->supervisor_id == peer_id
                        : h->addr.family != 0 && kvf_addr_is_same(&h->addr, addr);
}

static bool is_held(const struct kvf_core *core, const struct kvf_addr_shm *addr,
                    uint64_t supervisor_id)
{
    for (uint32_t i = 0; i < KVF_CORE_HOLDS_MAX; i++) {
        const struct kvf_hold *h = &core->holds[i];
        if (h->is_used &&
            ((supervisor_id != 0 && h->supervisor_id == supervisor_id) ||
             (addr != NULL && h->addr.family != 0 && kvf_addr_is_same(&h->addr, addr)))) {
            return true;
        }
    }
    return false;
}

bool kvf_hold_has_peer(const struct kvf_core *core, uint32_t peer)
{
    const struct kvf_peer *p = &core->peers[peer];
    return core->hold_count > 0 &&
           is_held(core, p->role == KVF_PEER_OUT ? &p->addr : NULL, p->supervisor_id);
}

bool kvf_hold_has_addr(const struct kvf_core *core, const struct kvf_addr_shm *addr)
{
    if (core->hold_count == 0) {
        return false;
    }
    uint32_t peer = kvf_peer_find(core, addr);
    return peer != KVF_NONE ? kvf_hold_has_peer(core, peer) : is_held(core, addr, 0);
}

/* Closing one room may end others and their grants, so the tables are walked and not a list. */
static void close_rooms(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    bool is_out = core->peers[peer].role == KVF_PEER_OUT;
    uint32_t count = is_out ? core->grant_fresh : core->source_fresh;
    for (uint32_t i = 0; i < count; i++) {
        const struct kvf_grant *g = &core->grants[i];
        const struct kvf_source_grant *s = &core->sources[i];
        bool is_its = is_out ? g->state != KVF_GRANT_FREE && g->peer == peer
                             : s->state == KVF_SOURCE_ACTIVE && s->peer == peer;
        uint32_t room = is_out ? g->room : s->room;
        if (is_its && room != KVF_NONE) {
            kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_PEER_HELD, 0);
        }
    }
}

/* Both directions: the daemon at an address is also the one that connected to us under the same supervisor. */
static void learn(struct kvf_core *core, uint32_t peer)
{
    const struct kvf_peer *p = &core->peers[peer];
    for (uint32_t i = 0; i < KVF_CORE_HOLDS_MAX; i++) {
        struct kvf_hold *h = &core->holds[i];
        if (h->is_used && p->role == KVF_PEER_OUT && p->supervisor_id != 0 &&
            h->addr.family != 0 && kvf_addr_is_same(&h->addr, &p->addr)) {
            h->supervisor_id = p->supervisor_id;
        }
    }
}

static void take_down(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    close_rooms(core, now_ns, peer);
    p->is_for_rooms = false; /* should a rank of a group be asked there: no lanes */
    if (p->state == KVF_PEER_UP || p->state == KVF_PEER_HELLO) {
        kvf_peer_drop(core, now_ns, peer, 0);
    }
}

void kvf_hold_check(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    if (core->hold_count > 0) {
        learn(core, peer);
        if (kvf_hold_has_peer(core, peer)) {
            close_rooms(core, now_ns, peer);
            core->peers[peer].is_for_rooms = false;
        }
    }
}

static void take_all_down(struct kvf_core *core, uint64_t now_ns)
{
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        learn(core,
              i); /* before the first is looked at: its other direction may stand ahead of it */
    }
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        if (core->peers[i].role != KVF_PEER_FREE && kvf_hold_has_peer(core, i)) {
            take_down(core, now_ns, i);
        }
    }
}

int kvf_core_peer_hold(struct kvf_core *core, uint64_t now_ns, const struct kvf_addr_shm *addr,
                       uint64_t peer_id, bool is_down)
{
    struct kvf_hold *free_one = NULL;
    for (uint32_t i = 0; i < KVF_CORE_HOLDS_MAX; i++) {
        struct kvf_hold *h = &core->holds[i];
        if (is_hold_of(h, addr, peer_id)) {
            if (!is_down) {
                *h = (struct kvf_hold){0};
                core->hold_count--;
            }
            return 0;
        }
        free_one = !h->is_used && free_one == NULL ? h : free_one;
    }
    if (!is_down) {
        return 0;
    }
    if (free_one == NULL) {
        return -KVF_E_RESOURCES;
    }
    *free_one = (struct kvf_hold){.is_used = true, .supervisor_id = peer_id};
    if (peer_id == 0) {
        free_one->addr = *addr;
    }
    core->hold_count++;
    take_all_down(core, now_ns);
    return 0;
}

/* ---- lists --------------------------------------------------------------------------------------------- */

static uint32_t lanes_up(const struct kvf_core *core, uint32_t peer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        count += core->lanes[kvf_lane_id(peer, i)].state == KVF_LANE_UP;
    }
    return count;
}

static const uint32_t shown_state[] = {
    [KVF_PEER_IDLE] = KVF_OPERATE_AT_IDLE,
    [KVF_PEER_CONNECTING] = KVF_OPERATE_AT_CONNECTING,
    [KVF_PEER_RETRY] = KVF_OPERATE_AT_RETRYING,
    [KVF_PEER_HELLO] = KVF_OPERATE_AT_HELLO,
    [KVF_PEER_UP] = KVF_OPERATE_AT_UP,
    [KVF_PEER_LOST] = KVF_OPERATE_AT_LOST,
};

static bool is_connected(const struct kvf_core *core, const struct kvf_hold *h)
{
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        const struct kvf_peer *p = &core->peers[i];
        if (p->role == KVF_PEER_FREE) {
            continue;
        }
        if (h->addr.family == 0
                ? p->supervisor_id == h->supervisor_id
                : p->role == KVF_PEER_OUT && kvf_addr_is_same(&p->addr, &h->addr)) {
            return true;
        }
    }
    return false;
}

uint32_t kvf_core_list_peers(const struct kvf_core *core, struct kvf_operate_peer *ret_rows,
                             uint32_t cap)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->limits.peers_max && count < cap; i++) {
        const struct kvf_peer *p = &core->peers[i];
        if (p->role == KVF_PEER_FREE) {
            continue;
        }
        struct kvf_operate_peer *row = &ret_rows[count++];
        *row = (struct kvf_operate_peer){.peer_id = p->supervisor_id,
                                         .worker_starts = p->worker_starts,
                                         .state = shown_state[p->state],
                                         .is_sink = p->role == KVF_PEER_IN,
                                         .is_down = kvf_hold_has_peer(core, i),
                                         .rooms = p->grants.count,
                                         .lanes_up = lanes_up(core, i)};
        if (p->role == KVF_PEER_OUT) {
            row->addr = p->addr;
        }
        _Static_assert(sizeof row->name == sizeof p->name, "the same bytes");
        memcpy(row->name, p->name, sizeof row->name);
    }
    for (uint32_t i = 0; i < KVF_CORE_HOLDS_MAX && count < cap; i++) {
        const struct kvf_hold *h = &core->holds[i];
        if (h->is_used && !is_connected(core, h)) {
            ret_rows[count++] = (struct kvf_operate_peer){
                .addr = h->addr, .peer_id = h->supervisor_id, .is_down = 1};
        }
    }
    return count;
}

static void fill_room(const struct kvf_core *core, uint64_t now_ns, uint32_t client,
                      uint32_t slot, struct kvf_operate_room *ret_row)
{
    const struct kvf_room_rec *r = &core->rooms[kvf_room_idx(core, client, slot)];
    bool is_sink = r->role == KVF_ROLE_SINK;
    *ret_row = (struct kvf_operate_room){
        .client = client,
        .slot = slot,
        .generation = r->generation,
        .label = r->label,
        .key = r->key,
        .age_ns = now_ns - (r->phase == KVF_PHASE_OPEN ? r->wait_since_ns : r->closed_ns),
        .pages = is_sink ? r->page_count : r->piece_pages,
        .phase = r->phase,
        .is_sink = r->is_adopted ? 2u : is_sink,
        .reason = r->reason,
        .unproven = is_sink ? r->pairs_unproven : r->leases,
        .is_engine_gone = core->clients[client].is_reaped};
}

uint32_t kvf_core_list_rooms(const struct kvf_core *core, uint64_t now_ns, uint32_t phases,
                             uint32_t *client, uint32_t *slot,
                             struct kvf_operate_room *ret_rows, uint32_t cap)
{
    uint32_t count = 0;
    uint32_t looks = 0;
    while (*client < core->limits.clients_max) {
        const struct kvf_client_rec *c = &core->clients[*client];
        if (c->undrained == 0 || *slot >= c->rooms_max) {
            (*client)++;
            *slot = 0;
            continue;
        }
        if (count == cap || looks++ == KVF_CORE_LIST_LOOKS) {
            break;
        }
        uint8_t phase = core->rooms[kvf_room_idx(core, *client, *slot)].phase;
        if (phase != KVF_PHASE_FREE && phase != KVF_PHASE_DRAINED &&
            (phases >> phase & 1u) != 0) {
            fill_room(core, now_ns, *client, *slot, &ret_rows[count++]);
        }
        (*slot)++;
    }
    return count;
}

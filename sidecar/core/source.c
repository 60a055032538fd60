/* The source's side of a grant: parked until its room opens, then posted piece by piece, and ended by
 * exactly one marker on every lane of its mask. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

/* ---- chains of hash buckets ------------------------------------------------------------------------ */

static struct kvf_chain room_chain(struct kvf_core *core)
{
    return KVF_CHAIN(core->room_buckets, core->rooms, hash, core->salt);
}
static struct kvf_chain park_chain(struct kvf_core *core)
{
    return KVF_CHAIN(core->park_buckets, core->sources, hash, core->salt);
}
static struct kvf_chain nonce_chain(struct kvf_core *core)
{
    return KVF_CHAIN(core->nonce_buckets, core->sources, nonce_hash, core->salt);
}

/* ---- tables ---------------------------------------------------------------------------------------- */

uint32_t kvf_source_room_find(struct kvf_core *core, uint64_t label, uint64_t key)
{
    struct kvf_chain c = room_chain(core);
    uint32_t link = *kvf_chain_head(&c, kvf_hash2(label, key));
    while (link != 0) {
        const struct kvf_room_rec *r = &core->rooms[link - 1];
        if (r->label == label && r->key == key) {
            return link - 1;
        }
        link = r->hash.next;
    }
    return KVF_NONE;
}

uint32_t kvf_source_by_nonce(struct kvf_core *core, uint32_t peer, uint64_t nonce)
{
    struct kvf_chain c = nonce_chain(core);
    uint32_t link = *kvf_chain_head(&c, kvf_hash2(nonce, peer));
    while (link != 0) {
        const struct kvf_source_grant *s = &core->sources[link - 1];
        if (s->nonce == nonce && s->peer == peer) {
            return link - 1;
        }
        link = s->nonce_hash.next;
    }
    return KVF_NONE;
}

bool kvf_source_has_place(const struct kvf_core *core)
{
    return core->source_free != 0 || core->source_fresh < core->limits.grants_max;
}

uint32_t kvf_source_alloc(struct kvf_core *core, uint32_t peer, uint64_t nonce)
{
    uint32_t idx;
    if (core->source_free != 0) {
        idx = core->source_free - 1;
        core->source_free = core->sources[idx].room_next;
    } else if (core->source_fresh < core->limits.grants_max) {
        idx = core->source_fresh++;
    } else {
        return KVF_NONE;
    }
    struct kvf_source_grant *s = &core->sources[idx];
    uint32_t incarnation = s->incarnation + 1;
    *s = (struct kvf_source_grant){.nonce = nonce,
                                   .incarnation = incarnation,
                                   .room = KVF_NONE,
                                   .peer = peer,
                                   .run_block = KVF_RUNS_NONE,
                                   .state = KVF_SOURCE_ASSEMBLING};
    struct kvf_chain c = nonce_chain(core);
    kvf_chain_push(&c, kvf_hash2(nonce, peer), idx);
    kvf_list_push(&core->peers[peer].grants, idx);
    kvf_gauge_add(core, KVF_GAUGE_GRANTS_IN, 1);
    return idx;
}

static void unpark(struct kvf_core *core, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    if (s->state == KVF_SOURCE_PARKED) {
        struct kvf_chain c = park_chain(core);
        kvf_chain_remove(&c, kvf_hash2(s->label, s->key), source);
        core->peers[s->peer].parked--;
        kvf_gauge_sub(core, KVF_GAUGE_PARKED, 1);
        s->state = KVF_SOURCE_ASSEMBLING; /* neither parked nor matched yet */
    }
}

static void free_runs(struct kvf_core *core, struct kvf_source_grant *s)
{
    if (s->run_block != KVF_RUNS_NONE) {
        kvf_core_runs_free(core, s->run_block);
        s->run_block = KVF_RUNS_NONE;
    }
}

void kvf_source_free(struct kvf_core *core, uint64_t now_ns, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint32_t peer = s->peer;
    (void)now_ns;
    assert(s->state != KVF_SOURCE_FREE);
    assert(s->leases == 0);
    unpark(core, source);
    if (core->peers[peer].assembling == source + 1) {
        core->peers[peer].assembling = 0;
    }
    if (s->room != KVF_NONE) {
        uint32_t *link = &core->rooms[s->room].grants;
        while (*link != source + 1) {
            assert(*link != 0);
            link = &core->sources[*link - 1].room_next;
        }
        *link = s->room_next;
    }
    free_runs(core, s);
    kvf_lane_forget_source(core, source);
    struct kvf_chain c = nonce_chain(core);
    kvf_chain_remove(&c, kvf_hash2(s->nonce, peer), source);
    kvf_list_remove(&core->peers[peer].grants, source);
    kvf_list_remove(&core->peers[peer].owed, source);
    kvf_list_remove(&core->source_deadlines, source);
    kvf_list_remove(&core->detaches, source);
    s->state = KVF_SOURCE_FREE;
    s->room_next = core->source_free;
    core->source_free = source + 1;
    kvf_gauge_sub(core, KVF_GAUGE_GRANTS_IN, 1);
    kvf_peer_check_free(core, peer);
}

void kvf_source_owe(struct kvf_core *core, uint32_t source)
{
    uint32_t peer = core->sources[source].peer;
    kvf_list_push(&core->peers[peer].owed, source);
    kvf_peer_owe(core, peer);
}

/* ---- one answer per GRANT --------------------------------------------------------------------------- */

/* Lanes of the mask that are not up here, or not in the epoch which the sink names. */
static uint32_t broken_lanes(const struct kvf_core *core, const struct kvf_source_grant *s)
{
    uint32_t broken = 0;
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        const struct kvf_lane *lane = &core->lanes[kvf_lane_id(s->peer, i)];
        if ((s->lane_mask >> i & 1u) != 0 &&
            (lane->state != KVF_LANE_UP || lane->epoch != s->lane_epochs[i])) {
            broken |= 1u << i;
        }
    }
    return broken;
}

/* A device places what comes and asks nobody, so at a queue pair's sink "nothing was posted" is no more than our
 * word. A DRAIN behind whatever was posted makes a proof of it. A stream's sink places by itself: the answer
 * alone ends what it takes. */
static void mark_declined(struct kvf_core *core, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint32_t left = kvf_left(s->lane_mask, broken_lanes(core, s));
    s->is_closing = true;
    s->dead_mask = s->lane_mask;
    for (; left != 0; left &= left - 1u) {
        uint32_t lane_idx = (uint32_t)__builtin_ctz(left);
        if (core->lanes[kvf_lane_id(s->peer, lane_idx)].is_queue_pair) {
            s->dead_mask &= (uint8_t) ~(1u << lane_idx);
            kvf_lane_push_mark(core, source, lane_idx);
        }
    }
}

void kvf_source_decline(struct kvf_core *core, uint32_t source, uint32_t reason,
                        uint32_t detail)
{
    struct kvf_source_grant *s = &core->sources[source];
    assert(s->room == KVF_NONE);
    assert(s->state == KVF_SOURCE_ASSEMBLING || s->state == KVF_SOURCE_PARKED);
    unpark(core, source);
    if (core->peers[s->peer].assembling == source + 1) {
        core->peers[s->peer].assembling = 0;
    }
    free_runs(core, s);
    s->state = KVF_SOURCE_DECLINED;
    s->reason = reason;
    s->detail = detail;
    s->owes_decline = true;
    mark_declined(core, source);
    kvf_source_owe(core, source);
}

/* The room ends: peers that ask for it later, or that are parked for it, learn that it is gone. */
void kvf_source_room_unhash(struct kvf_core *core, uint32_t room)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    uint64_t hash = kvf_hash2(r->label, r->key);
    struct kvf_chain c = room_chain(core);
    kvf_chain_remove(&c, hash, room);
    if (r->is_twin) {
        return; /* this is not the room peers mean */
    }
    kvf_tombstone_put(core, r->label, r->key, KVF_TOMB_ENDED, r->grant_count == r->sink_count);
    struct kvf_chain parked = park_chain(core);
    uint32_t next;
    for (uint32_t link = *kvf_chain_head(&parked, hash); link != 0; link = next) {
        const struct kvf_source_grant *s = &core->sources[link - 1];
        next = s->hash.next;
        if (s->label == r->label && s->key == r->key) {
            kvf_source_decline(core, link - 1, KVF_E_PEER_ROOM_GONE, 0);
        }
    }
}

/* A position's geometry must be that of the region a piece may come from. */
static bool is_geometry_known(struct kvf_core *core, uint32_t room,
                              const struct kvf_source_grant *s)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    uint32_t client = kvf_room_client(core, room);
    const struct kvf_region *main_region = kvf_region_of(core, client, r->region);
    const struct kvf_region *aux_region =
        r->aux_region == UINT32_MAX ? NULL : kvf_region_of(core, client, r->aux_region);
    for (uint32_t i = 0; i < s->total_runs; i++) {
        uint64_t geometry =
            core->peers[s->peer].remote[core->runs.run[s->run_block + i].region].geometry;
        if (geometry != main_region->geometry &&
            (aux_region == NULL || geometry != aux_region->geometry)) {
            return false;
        }
    }
    return true;
}

static uint64_t grant_bytes(const struct kvf_core *core, const struct kvf_source_grant *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->total_runs; i++) {
        const struct kvf_run *run = &core->runs.run[s->run_block + i];
        bytes += run->count * core->peers[s->peer].remote[run->region].page_bytes;
    }
    return bytes;
}

static void check_wait(struct kvf_core *core, uint32_t room)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    if (r->grant_count == r->sink_count && r->lost_count == 0) {
        kvf_room_wait_over(core, room);
    }
}

/* One of the sinks that this open room waits for will not come. */
static void sink_stays_away(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->grant_count < r->sink_count && r->sink_count > 1) {
        r->sink_count--; /* one sink fewer will come */
        check_wait(core, room);
        kvf_source_room_check_end(core, now_ns, room);
    } else if (r->grant_count == 0) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_PEER_ABORTED, 0);
    }
}

/* The lost grant `past` makes room for the sink's new one. Its posts may still be out: they are leases of the
 * room like all others, and nothing follows them. */
static void replace(struct kvf_core *core, uint64_t now_ns, uint32_t past)
{
    struct kvf_source_grant *s = &core->sources[past];
    struct kvf_room_rec *r = &core->rooms[s->room];
    assert(s->is_lost);
    s->is_replaced = true;
    s->is_counted_out = true;
    r->lost_count--;
    r->grant_count--;
    r->total_bytes -= s->total_bytes;
    r->placed_bytes -= s->sent_bytes;
    kvf_source_try_end(core, now_ns, past);
}

/* Its bytes would have to be copied by this process, which can reach neither of them. */
static bool is_uncopied(const struct kvf_core *core, uint32_t room,
                        const struct kvf_source_grant *s)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    const struct kvf_client_rec *c = &core->clients[kvf_room_client(core, room)];
    for (uint32_t left = r->region_mask; left != 0; left &= left - 1u) {
        if (c->regions[__builtin_ctz(left)].is_device) {
            return kvf_peer_is_copied(core, s->peer);
        }
    }
    return false;
}

/* A whole GRANT meets an open room of its label and key. past: the lost grant it follows, or KVF_NONE. */
static void match(struct kvf_core *core, uint64_t now_ns, uint32_t source, uint32_t room,
                  uint32_t past)
{
    struct kvf_source_grant *s = &core->sources[source];
    struct kvf_room_rec *r = &core->rooms[room];
    if (past == KVF_NONE && r->grant_count == r->sink_count) {
        kvf_source_decline(core, source, KVF_E_PEER_ROOM_GONE, 0);
        return;
    }
    uint32_t broken = broken_lanes(core, s);
    if (broken != 0) {
        /* The sink may not have noticed: it ends those lanes too, opens new ones, and comes again. */
        kvf_source_decline(core, source, KVF_E_LANE_LOST, broken);
        return;
    }
    uint32_t lack = kvf_remote_lack(core, s);
    if (lack != 0) {
        kvf_source_decline(core, source, lack, 0);
        return;
    }
    uint32_t refusal = is_uncopied(core, room, s)          ? KVF_E_DEVICE_COPY
                       : !is_geometry_known(core, room, s) ? KVF_E_GEOMETRY
                       : r->page_count != 0 && r->page_count != s->page_count
                           ? KVF_E_GRANT_LENGTH
                           : 0;
    if (refusal != 0) {
        kvf_source_decline(core, source, refusal, 0);
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, refusal, 0);
        return;
    }
    unpark(core, source);
    if (past != KVF_NONE) {
        s->losses = (uint8_t)(core->sources[past].losses + 1u);
        replace(core, now_ns, past);
    }
    s->state = KVF_SOURCE_ACTIVE;
    s->room = room;
    s->room_next = r->grants;
    r->grants = source + 1;
    r->grant_count++;
    r->page_count = s->page_count;
    s->total_bytes = grant_bytes(core, s);
    r->total_bytes += s->total_bytes;
    s->piece = r->piece_head;
    s->owes_accept = true;
    kvf_source_owe(core, source);
    r->was_granted = true;
    kvf_room_publish(core, room);
    check_wait(core, room);
    kvf_source_check_coverage(core, now_ns, room);
    if (r->phase == KVF_PHASE_OPEN) {
        kvf_lane_push_ready(core, source);
    }
}

/* The sink comes again, in the place of a grant that lost a lane. If that one ended here - in success, as far
 * as this side knows - its pages are handed back or may be, and nobody posts them again. */
static void match_again(struct kvf_core *core, uint64_t now_ns, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint32_t past = kvf_source_by_nonce(core, s->peer, s->past_nonce);
    const struct kvf_source_grant *lost = past == KVF_NONE ? NULL : &core->sources[past];
    bool has_place = lost != NULL && lost->is_lost && !lost->is_given_up &&
                     !lost->is_replaced && lost->room != KVF_NONE && lost->label == s->label &&
                     lost->key == s->key && core->rooms[lost->room].phase == KVF_PHASE_OPEN;
    if (!has_place) {
        kvf_source_decline(core, source, KVF_E_PEER_ROOM_GONE, 0);
        return;
    }
    match(core, now_ns, source, lost->room, past);
}

void kvf_source_whole(struct kvf_core *core, uint64_t now_ns, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    if (s->run_block == KVF_RUNS_NONE) {
        kvf_source_decline(core, source, KVF_E_RESOURCES, 0);
        return;
    }
    if (kvf_hold_has_peer(core, s->peer)) {
        kvf_source_decline(core, source, KVF_E_PEER_HELD, 0);
        return;
    }
    if (s->past_nonce != 0) {
        match_again(core, now_ns, source);
        return;
    }
    uint32_t room = kvf_source_room_find(core, s->label, s->key);
    if (room != KVF_NONE) {
        match(core, now_ns, source, room, KVF_NONE);
        return;
    }
    if (core->is_stopping || core->is_draining) {
        kvf_source_decline(core, source, KVF_E_SHUTDOWN, 0);
        return;
    }
    if (kvf_tombstone_get(core, s->label, s->key) == KVF_TOMB_ENDED) {
        kvf_source_decline(core, source, KVF_E_PEER_ROOM_GONE, 0);
        return;
    }
    struct kvf_peer *p = &core->peers[s->peer];
    if (p->parked >= core->limits.parked_per_peer_max ||
        core->gauges[KVF_GAUGE_PARKED] >= core->limits.grants_max / 2) {
        kvf_source_decline(core, source, KVF_E_PEER_BUSY, 0);
        return;
    }
    s->state = KVF_SOURCE_PARKED;
    p->parked++;
    kvf_gauge_add(core, KVF_GAUGE_PARKED, 1);
    kvf_count(core, KVF_COUNT_GRANTS_PARKED);
    struct kvf_chain c = park_chain(core);
    kvf_chain_push(&c, kvf_hash2(s->label, s->key), source);
}

void kvf_source_room_opened(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    struct kvf_chain rooms = room_chain(core);
    uint64_t hash = kvf_hash2(r->label, r->key);
    kvf_chain_push(&rooms, hash, room);
    if (kvf_tombstone_get(core, r->label, r->key) == KVF_TOMB_ABORTED) {
        sink_stays_away(core, now_ns, room);
        if (r->phase != KVF_PHASE_OPEN) {
            return;
        }
    }
    struct kvf_chain parked = park_chain(core);
    uint32_t next;
    for (uint32_t link = *kvf_chain_head(&parked, hash); link != 0; link = next) {
        struct kvf_source_grant *s = &core->sources[link - 1];
        next = s->hash.next;
        if (s->label == r->label && s->key == r->key && s->state == KVF_SOURCE_PARKED) {
            if (r->phase != KVF_PHASE_OPEN) {
                return; /* a match ended the room, which declined the others */
            }
            match(core, now_ns, link - 1, room, KVF_NONE);
        }
    }
}

/* ---- the end --------------------------------------------------------------------------------------- */

/* The room no longer waits for this sink: it has all, it aborted, or its lane is gone. */
static void count_out(struct kvf_core *core, uint64_t now_ns, struct kvf_source_grant *s)
{
    if (s->is_counted_out || s->room == KVF_NONE) {
        return;
    }
    s->is_counted_out = true;
    uint32_t room = s->room;
    struct kvf_room_rec *r = &core->rooms[room];
    r->sinks_ended++;
    if (s->end_ok_mask == s->lane_mask && !s->is_lost) {
        r->sinks_ok++;
    }
    kvf_source_room_check_end(core, now_ns, room);
}

void kvf_source_room_check_end(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->phase == KVF_PHASE_OPEN && r->sinks_ended == r->sink_count) {
        /* "My pages are no longer needed", never "the sink has it". */
        if (r->sinks_ok > 0) {
            kvf_room_close(core, now_ns, room, KVF_OUTCOME_SUCCESS, 0, 0);
        } else {
            kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_PEER_ABORTED, 0);
        }
    }
}

void kvf_source_try_end(struct kvf_core *core, uint64_t now_ns, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    if (s->leases > 0 ||
        kvf_left(s->lane_mask, (uint32_t)s->mark_done_mask | s->dead_mask) != 0) {
        return;
    }
    if (s->state == KVF_SOURCE_DECLINED && !s->owes_decline) {
        kvf_source_free(core, now_ns, source);
        return;
    }
    if (s->state != KVF_SOURCE_ACTIVE) {
        return;
    }
    if (s->is_lost && !s->is_given_up && !s->is_counted_out && s->room != KVF_NONE &&
        core->rooms[s->room].phase == KVF_PHASE_OPEN) {
        kvf_list_remove(&core->source_deadlines, source);
        return; /* keeps the sink's place in the room */
    }
    uint32_t incarnation = s->incarnation;
    count_out(core, now_ns,
              s); /* may drain the room, which tries to end this grant once more */
    if (s->state != KVF_SOURCE_ACTIVE || s->incarnation != incarnation) {
        return;
    }
    kvf_list_remove(&core->source_deadlines, source);
    bool can_answer = core->peers[s->peer].state == KVF_PEER_UP;
    if (!can_answer || (!s->owes_accept && !s->owes_ended)) {
        kvf_source_free(core, now_ns, source);
    }
}

void kvf_source_close(struct kvf_core *core, uint64_t now_ns, uint32_t source, uint32_t reason,
                      uint32_t detail)
{
    struct kvf_source_grant *s = &core->sources[source];
    if (s->state != KVF_SOURCE_ACTIVE || s->is_closing || s->end_ok_mask == s->lane_mask) {
        return;
    }
    s->is_closing = true;
    s->reason = reason;
    s->detail = detail;
    if (!s->is_aborted) { /* the sink knows of its own abort */
        s->owes_ended = true;
        kvf_source_owe(core, source);
    }
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        uint32_t owes = kvf_left(s->lane_mask, (uint32_t)s->marked_mask | s->dead_mask);
        if ((owes >> i & 1u) != 0) {
            kvf_lane_push_mark(core, source, i);
        }
    }
    if (core->peers[s->peer].placement == KVF_PLACEMENT_CHECKED && s->leases > 0) {
        kvf_list_push(&core->detaches, source);
    }
    s->deadline_ns = now_ns + core->config.cooperative_ns;
    kvf_list_push(&core->source_deadlines, source);
    kvf_core_due(core, s->deadline_ns);
}

/* Nothing more is posted under this grant, ever; the room stays open for the sink's new one. */
static void lose(struct kvf_core *core, uint64_t now_ns, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint32_t room = s->room;
    assert(!s->is_lost);
    if (s->losses >= KVF_SOURCE_LOSSES_MAX) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_LANE_LOST, 0);
        return;
    }
    s->is_lost = true;
    core->rooms[room].lost_count++;
    kvf_source_close(core, now_ns, source, KVF_E_LANE_LOST, 0);
    kvf_room_wait_again(core, now_ns, room);
}

static bool may_lose(const struct kvf_core *core, const struct kvf_source_grant *s)
{
    return s->room != KVF_NONE && !s->is_closing &&
           core->rooms[s->room].phase == KVF_PHASE_OPEN;
}

void kvf_source_lane_dead(struct kvf_core *core, uint64_t now_ns, uint32_t source,
                          uint32_t lane_idx)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint8_t bit = (uint8_t)(1u << lane_idx);
    if ((s->lane_mask & bit) == 0 || (s->dead_mask & bit) != 0) {
        return;
    }
    if (s->state != KVF_SOURCE_ACTIVE && s->state != KVF_SOURCE_DECLINED) {
        return; /* its epoch no longer matches; DECLINE follows when it is matched or aborted */
    }
    s->dead_mask |= bit;
    if ((s->end_ok_mask & bit) == 0 && s->state == KVF_SOURCE_ACTIVE) {
        if (may_lose(core, s)) { /* an aborted sink's lane is its own affair */
            lose(core, now_ns, source);
        }
        kvf_source_close(core, now_ns, source, KVF_E_LANE_LOST, 0);
    }
    kvf_source_try_end(core, now_ns, source);
}

/* ---- ABORT of the sink ----------------------------------------------------------------------------- */

/* The GRANT never left the sink: no nonce, only (label, key). */
static void aborted_unsent(struct kvf_core *core, uint64_t now_ns, uint64_t label, uint64_t key)
{
    uint32_t room = kvf_source_room_find(core, label, key);
    if (room == KVF_NONE) {
        if (kvf_tombstone_get(core, label, key) == KVF_TOMB_NONE) {
            kvf_tombstone_put(core, label, key, KVF_TOMB_ABORTED, false);
        }
        return;
    }
    sink_stays_away(core, now_ns, room);
}

/* A matched sink will take nothing more. */
static void sink_leaves(struct kvf_core *core, uint64_t now_ns, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint32_t room = s->room;
    uint32_t incarnation = s->incarnation;
    bool was_lost = s->is_lost;
    if (was_lost && (s->is_given_up || s->is_replaced)) {
        return;
    }
    s->is_aborted = true;
    s->owes_ended = false;
    if (was_lost) {
        s->is_given_up = true;
        if (room != KVF_NONE) {
            core->rooms[room].lost_count--;
        }
    }
    if (room != KVF_NONE && core->rooms[room].sink_count == 1) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED,
                       was_lost ? KVF_E_LANE_LOST : KVF_E_PEER_ABORTED, 0);
    }
    if (s->state != KVF_SOURCE_ACTIVE || s->incarnation != incarnation) {
        return;
    }
    if (!was_lost) {
        kvf_source_close(core, now_ns, source, KVF_E_PEER_ABORTED, 0);
        return;
    }
    if (room != KVF_NONE) {
        check_wait(core, room);
    }
    kvf_source_try_end(core, now_ns, source);
}

/* The sink ends a grant: for good, or (LANE_LOST) to come again with another one. */
static void aborted_active(struct kvf_core *core, uint64_t now_ns, uint32_t source,
                           bool is_again)
{
    struct kvf_source_grant *s = &core->sources[source];
    if (is_again) {
        if (may_lose(core, s) && s->end_ok_mask != s->lane_mask) {
            s->is_aborted = true; /* it needs no hint from us */
            lose(core, now_ns, source);
            kvf_source_try_end(core, now_ns, source);
        }
    } else if (!s->is_closing || s->is_lost) {
        sink_leaves(core, now_ns, source);
    }
}

void kvf_source_aborted(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                        const struct kvf_wire_abort *abort)
{
    if (abort->nonce == 0) {
        kvf_count(core, KVF_COUNT_PEER_ABORTS);
        aborted_unsent(core, now_ns, abort->label, abort->key);
        return;
    }
    uint32_t source = kvf_source_by_nonce(core, peer, abort->nonce);
    if (source == KVF_NONE) {
        kvf_count(core, KVF_COUNT_STALE_MESSAGES);
        return;
    }
    kvf_count(core, KVF_COUNT_PEER_ABORTS);
    struct kvf_source_grant *s = &core->sources[source];
    bool is_again = abort->reason == KVF_E_LANE_LOST;
    if (s->state == KVF_SOURCE_ACTIVE) {
        aborted_active(core, now_ns, source, is_again);
        return;
    }
    if (s->state != KVF_SOURCE_ASSEMBLING && s->state != KVF_SOURCE_PARKED) {
        return; /* the answer is on its way */
    }
    uint64_t past_nonce = s->past_nonce;
    kvf_source_decline(core, source, is_again ? KVF_E_LANE_LOST : KVF_E_PEER_ABORTED, 0);
    uint32_t past = past_nonce == 0 ? KVF_NONE : kvf_source_by_nonce(core, peer, past_nonce);
    if (is_again) {
        return;
    }
    if (past != KVF_NONE && core->sources[past].state == KVF_SOURCE_ACTIVE) {
        aborted_active(core, now_ns, past, false);
    } else if (past_nonce == 0) {
        aborted_unsent(core, now_ns, abort->label, abort->key);
    }
}

/* The sink's side of a grant: from the wish for credits to a proof on every lane of its mask.
 *
 * Two things end at different moments. The room stops waiting for a grant ("counted out") once nothing
 * of it can be placed any more: by markers, by fences, or, with checked placement, at once, because the
 * thread that closes it is the one that places. The handle stays taken until every lane of the mask is
 * marked or fenced and the one answer that each GRANT gets has come, so that no late marker or byte of
 * this grant can ever meet another. */
#include "sidecar/core/internal.h"

#include <errno.h>

uint32_t kvf_grant_handle(uint32_t idx, const struct kvf_grant *g)
{
    return idx | (uint32_t)g->handle_gen << 16;
}

static uint32_t grant_alloc(struct kvf_core *core)
{
    uint32_t idx;
    if (core->grant_free != 0) {
        idx = core->grant_free - 1;
        core->grant_free = core->grants[idx].room_next;
    } else if (core->grant_fresh < core->limits.grants_max) {
        idx = core->grant_fresh++;
    } else {
        return KVF_NONE;
    }
    return idx;
}

static uint64_t bytes_of(struct kvf_core *core, uint32_t room, uint32_t start,
                         uint32_t page_count)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    const struct kvf_run *runs = &core->runs.run[r->run_block];
    const struct kvf_run *run = kvf_runs_find(runs, r->run_count, start);
    uint64_t bytes = 0;
    uint32_t position = start;
    while (position < start + page_count) {
        const struct kvf_region *reg =
            kvf_region_of(core, kvf_room_client(core, room), run->region);
        uint32_t left = run->position + run->count - position;
        uint32_t wanted = start + page_count - position;
        uint32_t pages = left < wanted ? left : wanted;
        bytes += (uint64_t)pages * reg->page_bytes;
        position += pages;
        run++;
    }
    return bytes;
}

int kvf_grant_create(struct kvf_core *core, uint64_t now_ns, uint32_t room, uint32_t peer,
                     uint32_t start, uint32_t page_count)
{
    uint32_t idx = grant_alloc(core);
    if (idx == KVF_NONE) {
        kvf_peer_check_free(core, peer);
        return -KVF_E_RESOURCES;
    }
    struct kvf_room_rec *r = &core->rooms[room];
    struct kvf_grant *g = &core->grants[idx];
    uint16_t handle_gen = g->handle_gen;
    *g = (struct kvf_grant){.nonce = (kvf_core_random(core) << 16) | idx,
                            .label = r->label,
                            .key = r->key,
                            .room = room,
                            .peer = peer,
                            .start = start,
                            .page_count = page_count,
                            .total_bytes = bytes_of(core, room, start, page_count),
                            .room_next = r->grants,
                            .handle_gen = handle_gen,
                            .state = KVF_GRANT_QUEUED};
    r->grants = idx + 1;
    r->grant_count++;
    r->unproven_count++;
    kvf_gauge_add(core, KVF_GAUGE_GRANTS_OUT, 1);
    kvf_list_push(&core->peers[peer].grants, idx);
    kvf_list_push(&core->peers[peer].waiting, idx);
    kvf_peer_use_lanes(core, now_ns, peer);
    kvf_peer_need(core, now_ns, peer);
    return 0;
}

/* ---- credits and the choice of lanes --------------------------------------------------------------- */

static bool lane_has_credit(const struct kvf_core *core, uint32_t lane)
{
    return core->lanes[lane].state == KVF_LANE_UP &&
           core->lanes[lane].credits_out < core->config.lane_rooms &&
           core->lanes[lane].credits_out < core->peers[lane / KVF_LANES_MAX].receives_per_lane;
}

/* Large grants use every lane that has a receive to spare, small ones the least loaded. */
static uint32_t choose_lanes(const struct kvf_core *core, uint32_t peer, uint64_t bytes)
{
    uint32_t all = 0;
    uint32_t best = KVF_NONE;
    for (uint32_t i = 0; i < core->peers[peer].lane_count; i++) {
        uint32_t lane = kvf_lane_id(peer, i);
        if (core->lanes[lane].state == KVF_LANE_OPENING && core->lanes[lane].epoch == 1 &&
            bytes >= core->config.stripe_bytes_min) {
            return 0; /* its first confirmation is a round trip away: better striped than at once */
        }
        if (!lane_has_credit(core, lane)) {
            continue;
        }
        all |= UINT32_C(1) << i;
        if (best == KVF_NONE ||
            core->lanes[lane].credits_out < core->lanes[kvf_lane_id(peer, best)].credits_out) {
            best = i;
        }
    }
    if (best == KVF_NONE || bytes >= core->config.stripe_bytes_min) {
        return all;
    }
    return UINT32_C(1) << best;
}

void kvf_grants_admit(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    (void)now_ns;
    if (p->role != KVF_PEER_OUT || p->state != KVF_PEER_UP) {
        return;
    }
    uint32_t idx;
    while ((idx = kvf_list_first(&p->waiting)) != KVF_LIST_NONE) {
        struct kvf_grant *g = &core->grants[idx];
        uint32_t mask = choose_lanes(core, peer, g->total_bytes);
        if (mask == 0) {
            return;
        }
        g->lane_mask = (uint8_t)mask;
        g->is_by_device = false;
        if (core->rooms[g->room].flush_mask != 0) {
            core->rooms[g->room].flush_lanes |= (uint8_t)mask;
        }
        for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
            if ((mask >> i & 1u) != 0) {
                struct kvf_lane *lane = &core->lanes[kvf_lane_id(peer, i)];
                g->lane_epochs[i] = lane->epoch;
                g->is_by_device = g->is_by_device || lane->is_queue_pair;
                lane->credits_out++;
                core->rooms[g->room].pairs_unproven++;
            }
        }
        kvf_list_remove(&p->waiting, idx);
        kvf_list_push(&p->owed, idx);
        kvf_peer_owe(core, peer);
    }
}

static void give_credit_back(struct kvf_core *core, struct kvf_grant *g, uint32_t lane_idx)
{
    struct kvf_lane *lane = &core->lanes[kvf_lane_id(g->peer, lane_idx)];
    assert(lane->credits_out > 0);
    lane->credits_out--;
    if (g->room != KVF_NONE) {
        assert(core->rooms[g->room].pairs_unproven > 0);
        core->rooms[g->room].pairs_unproven--;
    }
}

/* Takes an unsent grant off the send list: its lanes are gone or its room is. */
static void give_lanes_back(struct kvf_core *core, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        if ((kvf_left(g->lane_mask, g->proven_mask) >> i & 1u) != 0) {
            give_credit_back(core, g, i);
        }
    }
    g->lane_mask = 0;
    kvf_list_remove(&core->peers[g->peer].owed, grant);
    kvf_list_remove(&core->peers[g->peer].waiting, grant);
}

void kvf_grant_unqueue(struct kvf_core *core, uint32_t grant)
{
    assert(core->grants[grant].state == KVF_GRANT_QUEUED);
    give_lanes_back(core, grant);
    kvf_list_push_front(&core->peers[core->grants[grant].peer].waiting, grant);
}

/* ---- the end of a grant ---------------------------------------------------------------------------- */

static void count_out(struct kvf_core *core, struct kvf_grant *g, enum kvf_proof proof)
{
    if (proof > g->proof) {
        g->proof = (uint8_t)proof;
    }
    if (g->is_counted_out || g->room == KVF_NONE) {
        return;
    }
    g->is_counted_out = true;
    struct kvf_room_rec *r = &core->rooms[g->room];
    assert(r->unproven_count > 0);
    r->unproven_count--;
    if (g->proof > r->proof) {
        r->proof = g->proof;
    }
}

static void unlink_from_room(struct kvf_core *core, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    if (g->room == KVF_NONE) {
        return;
    }
    uint32_t *link = &core->rooms[g->room].grants;
    while (*link != grant + 1) {
        assert(*link != 0);
        link = &core->grants[*link - 1].room_next;
    }
    *link = g->room_next;
    g->room = KVF_NONE;
}

void kvf_grant_forget(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    uint32_t peer = g->peer;
    assert(g->state != KVF_GRANT_FREE);
    assert(kvf_left(g->lane_mask, g->proven_mask) == 0);
    unlink_from_room(core, grant);
    kvf_list_remove(&core->peers[peer].grants, grant);
    kvf_list_remove(&core->peers[peer].waiting, grant);
    kvf_list_remove(&core->peers[peer].owed, grant);
    kvf_list_remove(&core->grant_deadlines, grant);
    g->state = KVF_GRANT_FREE;
    g->handle_gen++; /* a late frame with the old handle is nobody's */
    g->room_next = core->grant_free;
    core->grant_free = grant + 1;
    kvf_gauge_sub(core, KVF_GAUGE_GRANTS_OUT, 1);
    kvf_grants_admit(core, now_ns, peer);
    kvf_peer_check_free(core, peer);
}

/* The peer's room still learns that nobody comes. */
static void tell_or_forget(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    struct kvf_peer *p = &core->peers[g->peer];
    g->state = KVF_GRANT_TELL;
    kvf_list_remove(&core->grant_deadlines, grant);
    bool may_reach = p->state != KVF_PEER_IDLE; /* connected, or another try is on its way */
    /* Hints to a peer that is away are bounded, and to one that does not read they never take the
     * last quarter of the table: grants are everybody's. */
    bool is_away = p->state != KVF_PEER_UP && p->owed.count >= core->limits.grants_max / 64;
    bool is_full = core->gauges[KVF_GAUGE_GRANTS_OUT] >
                   core->limits.grants_max - core->limits.grants_max / 4;
    if (may_reach && !is_away && !is_full) {
        kvf_list_push(&p->owed, grant);
        kvf_peer_owe(core, g->peer);
    } else {
        kvf_grant_forget(core, now_ns, grant);
    }
}

void kvf_grant_settle(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    if (g->lane_mask == 0 || g->proven_mask != g->lane_mask || !g->is_answered ||
        g->owes_abort) {
        return;
    }
    if (kvf_grant_is_between(core, g)) {
        if (g->is_retired) {
            kvf_grant_renew(core, now_ns, grant);
        }
        return;
    }
    if (g->owes_tell) {
        tell_or_forget(core, now_ns, grant);
    } else {
        kvf_grant_forget(core, now_ns, grant);
    }
}

void kvf_grant_close(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    if (g->is_closed) {
        return;
    }
    g->is_closed = true;
    if (g->state == KVF_GRANT_QUEUED) {
        /* No byte of it was handed to a socket. */
        give_lanes_back(core, grant);
        count_out(core, g, KVF_PROOF_NEVER_POSTED);
        tell_or_forget(core, now_ns, grant);
        return;
    }
    bool is_proven = g->proven_mask == g->lane_mask;
    /* A grant that is proven ends with that, unless its room waits for another one, or for the reason. */
    assert(!is_proven || g->is_retired || g->is_stopped);
    if (g->is_declined) {
        g->owes_tell = true; /* the source let go of it, and its room waits for another */
    } else {
        g->owes_abort = true; /* once more, if it was told to keep its room open */
        kvf_list_push(&core->peers[g->peer].owed, grant);
        kvf_peer_owe(core, g->peer);
    }
    if (is_proven && g->is_answered) {
        kvf_list_remove(&core->grant_deadlines, grant); /* it was that of the reason */
    } else if (!kvf_list_has(&core->grant_deadlines, grant)) {
        g->deadline_ns = now_ns + core->config.cooperative_ns;
        kvf_list_push(&core->grant_deadlines, grant);
        kvf_core_due(core, g->deadline_ns);
    }
    if (is_proven) {
        count_out(core, g, KVF_PROOF_NONE);
        kvf_grant_settle(core, now_ns, grant);
    } else if (core->config.placement == KVF_PLACEMENT_CHECKED) {
        /* Whoever places asks kvf_core_place before every receive, on this thread. */
        g->is_revoked = true;
        count_out(core, g, KVF_PROOF_REVOKED);
    }
}

/* Proven before its one answer: behind an END an ACCEPT is on its way; otherwise the source may still hold
 * the GRANT parked, and an ABORT asks for the answer. Without it the handle would be taken for ever. */
static void await_answer(struct kvf_core *core, uint64_t now_ns, uint32_t grant, bool asks)
{
    struct kvf_grant *g = &core->grants[grant];
    g->deadline_ns = now_ns + core->config.cooperative_ns;
    kvf_list_push(&core->grant_deadlines, grant);
    kvf_core_due(core, g->deadline_ns);
    if (asks) {
        g->owes_abort = true;
        kvf_list_push(&core->peers[g->peer].owed, grant);
        kvf_peer_owe(core, g->peer);
    }
}

/* Every lane is proven, and the room is open: it goes on waiting, for a new grant or for the reason. */
static void proven_between(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    if (g->is_retired) {
        kvf_list_remove(&core->grant_deadlines, grant);
        if (!g->is_answered) {
            await_answer(core, now_ns, grant, false); /* its ABORT asks already */
        }
        kvf_grant_settle(core, now_ns, grant);
    }
}

/* A device placed it and told nobody how much: the source's END stands for all of its bytes. */
static void count_device_bytes(struct kvf_core *core, struct kvf_grant *g)
{
    uint64_t bytes = g->total_bytes - g->placed_bytes;
    g->placed_bytes += bytes;
    core->rooms[g->room].placed_bytes += bytes;
    core->counters[KVF_COUNT_BYTES_PLACED] += bytes;
}

/* Every lane is proven. */
static void grant_proven(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    uint32_t room = g->room;
    bool landed = g->end_mask == g->lane_mask && !g->is_retired;
    if (kvf_grant_is_between(core, g)) {
        proven_between(core, now_ns, grant);
        return;
    }
    kvf_list_remove(&core->grant_deadlines, grant);
    g->is_closed = true;
    /* After a fence the source may have seen no more than a broken lane, and would wait for us. */
    g->owes_abort = g->owes_abort && (g->is_retired || g->proof >= KVF_PROOF_FENCED);
    if (!g->is_answered) {
        await_answer(core, now_ns, grant, !landed);
    }
    if (room != KVF_NONE) {
        struct kvf_room_rec *r = &core->rooms[room];
        count_out(core, g, KVF_PROOF_NONE);
        if (landed && g->is_by_device) {
            count_device_bytes(core, g);
        }
        if (landed && r->phase == KVF_PHASE_OPEN && g->placed_bytes != g->total_bytes) {
            kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_SHORT, 0);
        } else if (landed) {
            r->landed_count++;
            if (r->landed_count == r->grant_count) {
                kvf_room_close(core, now_ns, room, KVF_OUTCOME_SUCCESS, 0, 0);
            }
        }
        kvf_room_try_drain(core, now_ns, room);
    }
    kvf_grant_settle(core, now_ns, grant);
}

void kvf_grant_prove(struct kvf_core *core, uint64_t now_ns, uint32_t grant, uint32_t lane_idx,
                     enum kvf_proof proof)
{
    struct kvf_grant *g = &core->grants[grant];
    uint8_t bit = (uint8_t)(1u << lane_idx);
    assert((g->lane_mask & bit) != 0);
    assert((g->proven_mask & bit) == 0);
    g->proven_mask |= bit;
    give_credit_back(core, g, lane_idx);
    if (proof > g->proof) {
        g->proof = (uint8_t)proof;
    }
    uint32_t peer = g->peer;
    if (g->proven_mask == g->lane_mask) {
        grant_proven(core, now_ns, grant);
    }
    kvf_grants_admit(core, now_ns, peer);
}

/* ---- answers of the source ------------------------------------------------------------------------- */

struct kvf_grant *kvf_grant_by_nonce(struct kvf_core *core, uint32_t peer, uint64_t nonce,
                                     uint32_t *ret_idx)
{
    uint32_t idx = (uint32_t)(nonce & 0xffff);
    if (idx >= core->grant_fresh) {
        return NULL;
    }
    struct kvf_grant *g = &core->grants[idx];
    if (g->state == KVF_GRANT_FREE || g->nonce != nonce || g->peer != peer) {
        return NULL;
    }
    *ret_idx = idx;
    return g;
}

/* A peer's reason in our words. */
static uint32_t reason_from_peer(uint32_t reason)
{
    switch (reason) {
    case KVF_E_GEOMETRY:
    case KVF_E_GRANT_LENGTH:
    case KVF_E_LANE_LOST:
    case KVF_E_NO_KEY:
    case KVF_E_DEVICE_COPY:
        return reason;
    case KVF_E_PEER_ROOM_GONE:
        return KVF_E_PEER_ROOM_GONE;
    case KVF_E_PEER_BUSY:
    case KVF_E_RESOURCES:
        return KVF_E_PEER_BUSY;
    case KVF_E_PEER_HELD:
        return KVF_E_PEER_REFUSED;
    default:
        return KVF_E_PEER_ABORTED;
    }
}

/* Lanes that broke at the source while nothing was under way: a queue pair's other end hears nothing of it,
 * and would be granted for ever. Lanes of another epoch than the grant's are not meant. */
static void fence_broken(struct kvf_core *core, uint64_t now_ns, const struct kvf_grant *g,
                         uint32_t broken)
{
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        uint32_t lane_id = kvf_lane_id(g->peer, i);
        if ((broken & g->lane_mask & 1u << i) != 0 &&
            core->lanes[lane_id].epoch == g->lane_epochs[i]) {
            kvf_lane_start_fence(core, now_ns, lane_id);
        }
    }
}

/* Lanes on which the peer's word is none of a proof: its device may have been told to write before it said that it
 * was not, and ours would place it. They await a marker, behind all that was posted, or their fence. */
static uint32_t lanes_of_devices(struct kvf_core *core, uint64_t now_ns, uint32_t grant,
                                 uint32_t left)
{
    struct kvf_grant *g = &core->grants[grant];
    uint32_t lanes = 0;
    for (uint32_t i = 0; g->is_by_device && i < KVF_LANES_MAX; i++) {
        bool is_one = core->lanes[kvf_lane_id(g->peer, i)].is_queue_pair;
        lanes |= is_one ? left & 1u << i : 0;
    }
    if (lanes != 0 && !kvf_list_has(&core->grant_deadlines, grant)) {
        g->deadline_ns = now_ns + core->config.cooperative_ns;
        kvf_list_push(&core->grant_deadlines, grant);
        kvf_core_due(core, g->deadline_ns);
    }
    return lanes;
}

static void declined_late(struct kvf_core *core, uint64_t now_ns, uint32_t grant, bool is_again)
{
    struct kvf_grant *g = &core->grants[grant];
    if (!is_again && g->room != KVF_NONE) {
        count_out(core, g, KVF_PROOF_NONE);
        kvf_room_try_drain(core, now_ns, g->room);
    }
    kvf_grant_settle(core, now_ns, grant);
}

void kvf_grant_declined(struct kvf_core *core, uint64_t now_ns, uint32_t grant, uint32_t reason,
                        uint32_t detail)
{
    struct kvf_grant *g = &core->grants[grant];
    kvf_count(core, KVF_COUNT_GRANTS_DECLINED);
    bool is_lane = reason == KVF_E_LANE_LOST;
    if (is_lane && kvf_grant_may_retire(core, g)) {
        kvf_grant_retire(core, now_ns, grant);
    }
    bool is_again = is_lane && kvf_grant_is_between(core, g);
    g->is_answered = true;
    g->is_declined = true;
    g->state = KVF_GRANT_ACCEPTED; /* answered; what is left is proof */
    g->owes_abort = false;
    if (!is_again) {
        g->is_closed = true;
        /* The source's room stays open for a lane's sake, or for the grant before this one. */
        g->owes_tell = is_lane || (g->past_nonce != 0 && reason != KVF_E_PEER_ROOM_GONE);
        if (g->room != KVF_NONE) {
            kvf_room_close(core, now_ns, g->room, KVF_OUTCOME_FAILED, reason_from_peer(reason),
                           reason);
        }
    }
    if (is_lane) {
        fence_broken(core, now_ns, g, detail); /* before its successor chooses lanes */
    }
    uint32_t left = kvf_left(g->lane_mask, g->proven_mask);
    if (left == 0) { /* its lanes were fenced before the answer came */
        declined_late(core, now_ns, grant, is_again);
        return;
    }
    left = kvf_left(left, lanes_of_devices(core, now_ns, grant, left));
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        if ((left >> i & 1u) != 0) {
            kvf_grant_prove(core, now_ns, grant, i, KVF_PROOF_NEVER_POSTED);
        }
    }
}

void kvf_grant_accepted(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    kvf_count(core, KVF_COUNT_GRANTS_ACCEPTED);
    g->state = KVF_GRANT_ACCEPTED;
    g->is_answered = true;
    g->is_accepted = true;
    if (g->proven_mask == g->lane_mask && (!g->is_stopped || g->is_retired || g->is_closed)) {
        kvf_list_remove(&core->grant_deadlines, grant); /* it was the answer's */
    }
    if (g->room != KVF_NONE && !g->is_retired) {
        struct kvf_room_rec *r = &core->rooms[g->room];
        r->accepted_count++;
        if (r->accepted_count == r->grant_count) {
            r->was_granted = true;
            kvf_room_wait_over(core, g->room);
            kvf_room_publish(core, g->room);
        }
    }
    kvf_grant_settle(core, now_ns, grant);
}

void kvf_grant_ended(struct kvf_core *core, uint64_t now_ns, uint32_t grant, uint32_t reason,
                     uint32_t broken_lanes)
{
    struct kvf_grant *g = &core->grants[grant];
    uint32_t fence = kvf_left(g->lane_mask & broken_lanes, g->proven_mask);
    uint32_t peer = g->peer;
    if (reason == KVF_E_LANE_LOST && kvf_grant_may_retire(core, g)) {
        kvf_grant_retire(core, now_ns, grant);
    } else if (g->room != KVF_NONE) {
        kvf_room_close(core, now_ns, g->room, KVF_OUTCOME_FAILED, reason_from_peer(reason),
                       reason);
    }
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        if ((fence >> i & 1u) != 0) {
            kvf_lane_start_fence(core, now_ns, kvf_lane_id(peer, i));
        }
    }
}

/* ---- what the lanes bring -------------------------------------------------------------------------- */

/* Its DECLINE has come; or will, since the rest of the GRANT was kept back, and what makes it a proof may come
 * first. */
static bool may_only_drain(const struct kvf_grant *g)
{
    bool is_half = g->state == KVF_GRANT_SENDING && (g->is_closed || g->is_retired);
    return g->is_by_device && (is_half || g->is_declined);
}

/* The grant a frame on this lane names: out, on this lane, of this epoch, and not yet proven there. */
static struct kvf_grant *grant_on_lane(const struct kvf_core *core, uint32_t lane,
                                       uint32_t epoch, uint32_t handle, uint32_t *ret_idx)
{
    uint32_t idx = handle & 0xffff;
    uint32_t lane_idx = lane % KVF_LANES_MAX;
    if (idx >= core->grant_fresh) {
        return NULL;
    }
    struct kvf_grant *g = &core->grants[idx];
    bool is_out = g->state == KVF_GRANT_SENT || g->state == KVF_GRANT_ACCEPTED;
    is_out = is_out || may_only_drain(g);
    if (!is_out || g->handle_gen != handle >> 16 || g->peer != lane / KVF_LANES_MAX ||
        (kvf_left(g->lane_mask, g->proven_mask) >> lane_idx & 1u) == 0 ||
        g->lane_epochs[lane_idx] != epoch) {
        return NULL;
    }
    *ret_idx = idx;
    return g;
}

int kvf_core_place(const struct kvf_core *core, uint32_t lane, uint32_t epoch, uint32_t handle,
                   uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    uint32_t idx;
    const struct kvf_grant *g = grant_on_lane(core, lane, epoch, handle, &idx);
    if (g == NULL || page_count == 0 || position >= g->page_count ||
        page_count > g->page_count - position) {
        return -EPROTO;
    }
    if (g->is_revoked || g->room == KVF_NONE) {
        *ret_at = (struct kvf_placement_at){.where = KVF_PLACE_SCRATCH};
        return 0;
    }
    const struct kvf_room_rec *r = &core->rooms[g->room];
    uint32_t at = g->start + position;
    const struct kvf_run *run = kvf_runs_find(&core->runs.run[r->run_block], r->run_count, at);
    if (page_count > run->position + run->count - at) {
        return -EPROTO;
    }
    *ret_at = (struct kvf_placement_at){.where = KVF_PLACE_PAGES,
                                        .client = kvf_room_client(core, g->room),
                                        .region = run->region,
                                        .page_first = run->first + (at - run->position)};
    return 0;
}

void kvf_core_placed(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                     uint32_t handle, uint64_t bytes, bool is_scratch)
{
    uint32_t idx;
    struct kvf_grant *g = grant_on_lane(core, lane, epoch, handle, &idx);
    (void)now_ns;
    core->counters[is_scratch ? KVF_COUNT_BYTES_REFUSED : KVF_COUNT_BYTES_PLACED] += bytes;
    if (g == NULL || is_scratch || g->room == KVF_NONE) {
        return;
    }
    struct kvf_room_rec *r = &core->rooms[g->room];
    core->lanes[lane].moved_bytes += bytes;
    g->placed_bytes += bytes;
    r->placed_bytes += bytes;
    if (!r->is_started) {
        r->is_started = true;
        kvf_room_publish(core, g->room);
    }
}

int kvf_core_marker(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                    uint32_t handle, uint8_t kind)
{
    uint32_t idx;
    uint32_t lane_idx = lane % KVF_LANES_MAX;
    struct kvf_grant *g = grant_on_lane(core, lane, epoch, handle, &idx);
    bool is_known = kind == KVF_LANE_END || kind == KVF_LANE_DRAIN;
    if (g == NULL || !is_known || (kind == KVF_LANE_END && may_only_drain(g))) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return -EPROTO;
    }
    if (kind == KVF_LANE_END) {
        kvf_count(core, KVF_COUNT_MARKERS_END);
        if (g->is_by_device && g->room != KVF_NONE && !core->rooms[g->room].is_started) {
            core->rooms[g->room].is_started = true; /* the first that is heard of its bytes */
            kvf_room_publish(core, g->room);
        }
        g->end_mask |= (uint8_t)(1u << lane_idx);
        kvf_grant_prove(core, now_ns, idx, lane_idx, KVF_PROOF_LANDED);
        return 0;
    }
    kvf_count(core, KVF_COUNT_MARKERS_DRAIN);
    if (!g->is_stopped && !g->is_retired && !g->is_closed) {
        /* ENDED is on its way with the reason: the room fails, or another lane of this grant broke and
         * it gets a new one. */
        g->is_stopped = true;
        g->deadline_ns = now_ns + core->config.cooperative_ns;
        kvf_list_push(&core->grant_deadlines, idx);
        kvf_core_due(core, g->deadline_ns);
    }
    kvf_grant_prove(core, now_ns, idx, lane_idx, KVF_PROOF_PEER_DRAINED);
    return 0;
}

uint32_t kvf_core_place_fault(struct kvf_core *core, uint64_t now_ns, uint32_t lane,
                              uint32_t epoch, uint32_t handle)
{
    uint32_t idx;
    struct kvf_grant *g = grant_on_lane(core, lane, epoch, handle, &idx);
    if (g == NULL || g->room == KVF_NONE) {
        return KVF_NONE;
    }
    uint32_t client = kvf_room_client(core, g->room);
    g->is_revoked =
        true; /* what still arrives is thrown away; the proof is awaited all the same */
    kvf_room_close(core, now_ns, g->room, KVF_OUTCOME_FAILED, KVF_E_MEMORY_FAULT, EFAULT);
    return client;
}

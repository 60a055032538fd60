/* New grants after a fence, on the sink's side. A fence kills grants, not rooms: a room still open gets a
 * new grant once the old one is proven on every lane of its mask, and not before - a frame of the old one
 * that lands later would land in what the new one has already called whole. The old one is aborted on the
 * lanes that were not fenced, in words that keep the source's room open. The new one has its own nonce, handle and
 * epochs and the same record; what the old one placed counts for nothing. */
#include "sidecar/core/internal.h"

static bool is_room_open(const struct kvf_core *core, const struct kvf_grant *g)
{
    return g->room != KVF_NONE && core->rooms[g->room].phase == KVF_PHASE_OPEN;
}

bool kvf_grant_is_between(const struct kvf_core *core, const struct kvf_grant *g)
{
    return (g->is_retired || g->is_stopped) && is_room_open(core, g);
}

/* Grants belong to one control connection: without it the room fails with its peer. */
bool kvf_grant_may_retire(const struct kvf_core *core, const struct kvf_grant *g)
{
    return is_room_open(core, g) && !g->is_closed && g->regrants < core->config.regrants_max &&
           core->peers[g->peer].state == KVF_PEER_UP;
}

void kvf_grant_retire(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    if (g->is_retired) {
        return;
    }
    g->is_retired = true;
    if (g->is_accepted) {
        core->rooms[g->room].accepted_count--;
    }
    kvf_room_wait_again(core, now_ns, g->room);
    /* What still comes is worth nothing; where we place ourselves it costs no memory either. */
    if (core->config.placement == KVF_PLACEMENT_CHECKED) {
        g->is_revoked = true;
    }
    g->owes_abort = true;
    kvf_list_push(&core->peers[g->peer].owed, grant);
    kvf_peer_owe(core, g->peer);
    if (g->proven_mask == g->lane_mask && g->is_answered) {
        kvf_list_remove(&core->grant_deadlines, grant);
    } else if (!kvf_list_has(&core->grant_deadlines, grant)) {
        g->deadline_ns = now_ns + core->config.cooperative_ns;
        kvf_list_push(&core->grant_deadlines, grant);
        kvf_core_due(core, g->deadline_ns);
    }
}

void kvf_grant_lane_lost(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    uint32_t room = g->room;
    if (g->state == KVF_GRANT_QUEUED) {
        kvf_grant_unqueue(core, grant); /* nothing of it ever left: other lanes may have it */
        return;
    }
    if (room == KVF_NONE) {
        return;
    }
    if (kvf_grant_may_retire(core, g)) {
        kvf_grant_retire(core, now_ns, grant);
        return;
    }
    kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_LANE_LOST, 0);
    if (core->rooms[room].phase == KVF_PHASE_CLOSING) {
        kvf_room_set_phase(core, room, KVF_PHASE_FENCING);
    }
}

void kvf_grant_renew(struct kvf_core *core, uint64_t now_ns, uint32_t grant)
{
    struct kvf_grant *g = &core->grants[grant];
    struct kvf_peer *p = &core->peers[g->peer];
    struct kvf_room_rec *r = &core->rooms[g->room];
    assert(kvf_grant_is_between(core, g));
    assert(g->proven_mask == g->lane_mask);
    assert(g->is_answered);
    assert(!g->owes_abort);
    if (g->proof > r->past_proof) {
        r->past_proof = g->proof;
    }
    r->placed_bytes -= g->placed_bytes;
    kvf_list_remove(&core->grant_deadlines, grant);
    kvf_list_remove(&p->owed, grant);
    g->past_nonce = g->is_accepted ? g->nonce : g->past_nonce;
    g->nonce = (kvf_core_random(core) << 16) | grant;
    g->handle_gen++; /* a late frame with the old handle is nobody's */
    g->regrants++;
    g->state = KVF_GRANT_QUEUED;
    g->placed_bytes = 0;
    g->run_cursor = 0;
    g->lane_mask = 0;
    g->proven_mask = 0;
    g->end_mask = 0;
    g->proof = KVF_PROOF_NONE;
    g->is_revoked = false;
    g->is_answered = false;
    g->is_accepted = false;
    g->is_declined = false;
    g->is_retired = false;
    g->is_stopped = false;
    kvf_count(core, KVF_COUNT_REGRANTS);
    kvf_room_publish(core, g->room);
    kvf_list_push(&p->waiting, grant);
    kvf_grants_admit(core, now_ns, g->peer);
}

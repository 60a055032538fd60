/* Memory that the host does not own: a proof says that no device writes it any more, and not that what was
 * written has arrived there. So a sink room with pages in it is drained, and visible, only after a flush of each
 * such region over each lane's device that its grants used. The flush is a device's work and the caller's; here
 * stands who waits for it, how long, and what happens if it fails.
 *
 * A room of this worker whose flush fails ends the worker: there is nothing else left to try here, and the next one
 * begins with devices of its own. A room that was adopted from an earlier worker has had that already: it goes to
 * quarantine, where a later proof or an operator's word ends it. So does one whose regions are not here within the
 * time that their registration may take, and one that was written through a device which this worker has not. */
#include "sidecar/core/internal.h"

#include <errno.h>

static struct kvf_region *first_region(struct kvf_core *core, uint32_t room)
{
    uint32_t slot = (uint32_t)__builtin_ctz(core->rooms[room].flush_mask);
    return &core->clients[kvf_room_client(core, room)].regions[slot];
}

static bool was_never_posted(const struct kvf_room_rec *r)
{
    return !r->is_adopted && r->proof <= KVF_PROOF_NEVER_POSTED &&
           r->past_proof <= KVF_PROOF_NEVER_POSTED;
}

static void give_up(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    r->is_flush_failed = true;
    kvf_list_remove(&core->flushing, room);
    kvf_count(core, KVF_COUNT_FLUSHES_FAILED);
    if (r->is_adopted) {
        kvf_room_set_phase(core, room, KVF_PHASE_QUARANTINED);
    } else {
        core->flush_failed = room + 1;
    }
}

static void await_until(struct kvf_core *core, uint32_t room, uint64_t end_ns)
{
    core->rooms[room].flush_end_ns = end_ns;
    kvf_list_push(&core->flushing, room);
    kvf_core_due(core, end_ns);
}

static bool are_all_here(const struct kvf_core *core, uint32_t room)
{
    const struct kvf_client_rec *c = &core->clients[kvf_room_client(core, room)];
    for (uint32_t left = core->rooms[room].flush_mask; left != 0; left &= left - 1u) {
        if (c->regions[__builtin_ctz(left)].handle == 0) {
            return false;
        }
    }
    return true;
}

/* Its engine said of the host's memory that it were a device's: what is known of these needs no flush. */
static void skip_host_regions(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    while (r->flush_mask != 0 && first_region(core, room)->handle != 0 &&
           !first_region(core, room)->is_device) {
        r->flush_mask &= (uint16_t)(r->flush_mask - 1u);
    }
}

/* In quarantine, and a region is there after all: no deadline waits for the answer, which ends the quarantine all
 * the same. */
static void ask_late(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    skip_host_regions(core, room);
    if (r->flush_mask == 0) {
        r->is_flush_failed = false;
        kvf_room_set_phase(core, room, KVF_PHASE_CLOSING);
        kvf_list_push(&core->leases_close, room); /* leases may be what keeps it there */
    } else if (!r->is_flush_asked && !r->is_rail_missing &&
               first_region(core, room)->handle != 0) {
        kvf_room_refer(core, room, (uint16_t)(r->flush_mask & -r->flush_mask));
        r->is_flush_asked = true;
        kvf_list_push(&core->act_flush, room);
    }
}

void kvf_flush_adopt(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->is_rail_missing) {
        give_up(core, room);
        return;
    }
    await_until(core, room, now_ns + core->config.register_ns + core->config.fence_ns);
}

static void ask(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    /* A term of its own in the bound, from the asking: a fence that returned just in time leaves it whole. */
    uint64_t end_ns = now_ns + core->config.fence_ns;
    r->is_flush_asked = true;
    kvf_list_push(&core->act_flush, room);
    bool is_first = !kvf_list_has(&core->flushing, room); /* one deadline for all its regions */
    if (is_first || (are_all_here(core, room) && end_ns < r->flush_end_ns)) {
        await_until(core, room, end_ns);
    }
}

bool kvf_flush_is_awaited(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->unproven_count > 0 || r->is_flush_asked || r->is_flush_failed) {
        return true;
    }
    if (was_never_posted(r)) {
        r->flush_mask = 0; /* nothing was ever written */
    }
    skip_host_regions(core, room);
    if (r->flush_mask == 0) {
        kvf_list_remove(&core->flushing, room); /* adopted: it waited for regions */
        return false;
    }
    if (first_region(core, room)->handle == 0) {
        return true; /* adopted: the region is still to come */
    }
    kvf_room_refer(core, room,
                   (uint16_t)(r->flush_mask & -r->flush_mask)); /* no more than once */
    ask(core, now_ns, room);
    return true;
}

void kvf_core_flushed(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                      uint64_t generation, int err)
{
    uint32_t room = kvf_room_idx(core, client, slot);
    struct kvf_room_rec *r = &core->rooms[room];
    assert(core->flushes_out > 0);
    core->flushes_out--;
    assert(core->clients[client].flushes_out > 0); /* it stays until all are answered */
    core->clients[client].flushes_out--;
    kvf_client_check_quiet(core, client); /* a released room may have been the last */
    if (r->generation != generation || !r->is_flush_asked) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    r->is_flush_asked = false;
    if (err != 0) {
        if (!r->is_flush_failed) {
            give_up(core, room);
        }
        return;
    }
    kvf_count(core, KVF_COUNT_FLUSHES);
    r->flush_mask &= (uint16_t)(r->flush_mask - 1u);
    if (r->is_flush_failed && r->is_adopted) { /* late, and a proof all the same */
        ask_late(core, room);
    }
    if (r->flush_mask == 0) {
        kvf_list_remove(&core->flushing, room);
        r->is_visible = r->outcome == KVF_OUTCOME_SUCCESS;
        kvf_room_publish(core, room);
    }
    kvf_room_try_drain(core, now_ns, room);
}

void kvf_flush_forget(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    bool is_hopeless =
        r->is_flush_failed || (r->flush_mask != 0 && first_region(core, room)->handle == 0);
    if (is_hopeless) {
        r->flush_mask = 0;
        r->is_flush_asked = false;
        r->is_flush_failed = false;
        kvf_list_remove(&core->act_flush, room);
        kvf_list_remove(&core->flushing, room);
    }
}

int kvf_core_region_ready(struct kvf_core *core, uint64_t now_ns, uint32_t client,
                          uint32_t region, bool is_device)
{
    assert(client < core->limits.clients_max);
    const struct kvf_client_rec *c = &core->clients[client];
    struct kvf_region *r = kvf_region_of(core, client, region);
    if (r == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    assert(r->refs == 0);
    r->is_device = is_device;
    uint16_t bit = (uint16_t)(1u << (region & 0xffu));
    for (uint32_t slot = 0; slot < c->rooms_max && c->undrained > 0; slot++) {
        uint32_t room = kvf_room_idx(core, client, slot);
        if (!core->rooms[room].is_adopted || (core->rooms[room].flush_mask & bit) == 0) {
            continue;
        }
        if (core->rooms[room].is_flush_failed) {
            ask_late(core, room);
        }
        kvf_room_try_drain(core, now_ns, room);
    }
    return 0;
}

void kvf_core_regions_whole(struct kvf_core *core, uint32_t client, uint32_t slots)
{
    const struct kvf_client_rec *c = &core->clients[client];
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        slots |= c->regions[i].handle != 0 ? UINT32_C(1) << i : 0;
    }
    for (uint32_t slot = 0; slot < c->rooms_max && c->undrained > 0; slot++) {
        uint32_t room = kvf_room_idx(core, client, slot);
        const struct kvf_room_rec *r = &core->rooms[room];
        if (r->is_adopted && kvf_left(r->flush_mask, slots) != 0 && !r->is_flush_failed) {
            give_up(core, room);
        }
    }
}

/* Its rooms may wait for it since before it was known whose end it is. Closing one may end others and their
 * grants, so the table is walked and not a list. */
void kvf_flush_refuse_copies(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    for (uint32_t i = 0; i < core->grant_fresh && kvf_peer_is_copied(core, peer); i++) {
        const struct kvf_grant *g = &core->grants[i];
        if (g->state != KVF_GRANT_FREE && g->peer == peer && g->room != KVF_NONE &&
            core->rooms[g->room].flush_mask != 0) {
            kvf_room_close(core, now_ns, g->room, KVF_OUTCOME_FAILED, KVF_E_DEVICE_COPY, 0);
        }
    }
}

void kvf_flush_tick(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns)
{
    uint32_t next;
    for (uint32_t room = kvf_list_first(&core->flushing); room != KVF_LIST_NONE; room = next) {
        uint64_t end_ns = core->rooms[room].flush_end_ns;
        next = kvf_list_next(&core->flushing, room);
        if (end_ns <= now_ns) {
            give_up(core, room);
        } else {
            *due_ns = end_ns < *due_ns ? end_ns : *due_ns;
        }
    }
}

bool kvf_flush_next(struct kvf_core *core, struct kvf_action *ret_action)
{
    uint32_t room = core->flushes_out < KVF_CORE_FLUSHES_MAX ? kvf_list_pop(&core->act_flush)
                                                             : KVF_LIST_NONE;
    if (room == KVF_LIST_NONE) {
        return false;
    }
    core->flushes_out++;
    core->clients[kvf_room_client(core, room)].flushes_out++;
    *ret_action = (struct kvf_action){.kind = KVF_ACT_FLUSH,
                                      .client = kvf_room_client(core, room),
                                      .slot = kvf_room_slot(core, room),
                                      .generation = core->rooms[room].generation,
                                      .region = first_region(core, room)->handle,
                                      .lanes = core->rooms[room].is_adopted
                                                   ? KVF_FLUSH_ALL_RAILS
                                                   : core->rooms[room].flush_lanes};
    return true;
}

bool kvf_flush_next_failure(struct kvf_core *core, struct kvf_action *ret_action)
{
    if (core->flush_failed == 0) {
        return false;
    }
    uint32_t room = core->flush_failed - 1u;
    core->flush_failed = 0;
    *ret_action = (struct kvf_action){.kind = KVF_ACT_ESCALATE,
                                      .client = kvf_room_client(core, room),
                                      .slot = kvf_room_slot(core, room),
                                      .generation = core->rooms[room].generation};
    return true;
}

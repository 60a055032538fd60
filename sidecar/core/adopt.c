/* Rooms of an earlier worker of the same supervisor, taken over with their client's segment; and those of a
 * dead engine whose OPEN was never read, but whose external leases nothing proves.
 *
 * The earlier worker's end proved all it had lent. What is left of such a room is what that end could not
 * prove: external leases of its engine, and the word of other ranks. It has no pages, grants or pieces
 * here; it waits at the same gate as every other room. */
#include "sidecar/core/internal.h"

#include <errno.h>

int kvf_core_adopt(struct kvf_core *core, uint64_t now_ns, const struct kvf_core_adopt *adopt)
{
    if (adopt->client >= core->limits.clients_max || !core->clients[adopt->client].is_used ||
        adopt->slot >= core->clients[adopt->client].rooms_max) {
        return -KVF_E_UNKNOWN_ROOM;
    }
    uint32_t room = kvf_room_idx(core, adopt->client, adopt->slot);
    struct kvf_room_rec *r = &core->rooms[room];
    bool is_over = r->phase == KVF_PHASE_DRAINED && adopt->generation > r->generation &&
                   !kvf_group_is_awaited(r);
    if (r->phase != KVF_PHASE_FREE && !is_over) {
        return -KVF_E_SLOT_IN_USE;
    }
    if (adopt->generation == 0 || adopt->generation > KVF_GENERATION_MAX) {
        return -KVF_E_STALE_ROOM;
    }
    if (is_over) {
        kvf_list_remove(&core->leases_close, room);
        kvf_list_remove(&core->publish, room);
        kvf_group_leave(core, room);
    }
    bool is_success = adopt->outcome == KVF_OUTCOME_SUCCESS; /* fixed when it closed */
    *r = (struct kvf_room_rec){
        .generation = adopt->generation,
        .key = adopt->key,
        .closed_ns = adopt->closed_ns != 0 ? adopt->closed_ns : now_ns,
        .close_to_drained_ns = adopt->close_to_drained_ns,
        .placed_bytes = adopt->placed_bytes,
        .total_bytes = adopt->total_bytes,
        .page_count = adopt->total_pages,
        .reason = adopt->reason,
        .detail = adopt->detail,
        .role = KVF_ROLE_SINK, /* it holds nothing, so either would do */
        .phase = KVF_PHASE_DRAINED,
        .outcome = is_success ? KVF_OUTCOME_SUCCESS : KVF_OUTCOME_FAILED,
        .proof = KVF_PROOF_WORKER_GONE,
        .run_block = KVF_RUNS_NONE,
        .group = adopt->group <= KVF_GROUPS_PER_CLIENT_MAX ? adopt->group : 0,
        .is_adopted = true,
        .flush_mask = adopt->is_drained ? 0 : adopt->device_regions,
        .flush_lanes = UINT8_MAX,
        .is_rail_missing = adopt->is_rail_missing,
        .is_visible = is_success && adopt->is_visible,
        .is_group_settled = is_success || (adopt->is_drained && adopt->is_group_settled)};
    if (adopt->is_drained) {
        bool is_proof = adopt->proof > KVF_PROOF_NONE && adopt->proof < KVF_PROOF_COUNT;
        r->proof = is_proof ? adopt->proof : KVF_PROOF_WORKER_GONE;
        r->are_leases_idle = true;
    } else {
        core->clients[adopt->client].undrained++;
        core->clients[adopt->client].is_quiet_told = false;
        kvf_count(core, KVF_COUNT_ROOMS_ADOPTED);
        kvf_room_set_phase(core, room,
                           adopt->is_quarantined ? KVF_PHASE_QUARANTINED : KVF_PHASE_CLOSING);
        kvf_list_push(&core->leases_close, room);
    }
    if (r->flush_mask != 0) {
        r->is_held_adopted = true;
        kvf_gauge_add(core, KVF_GAUGE_PAGES_HELD, r->page_count);
        kvf_flush_adopt(core, now_ns, room);
    }
    kvf_group_join(core, now_ns, room);
    return 0;
}

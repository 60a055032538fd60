/* Rooms and the one gate. Whatever ends a room - an abort, a failure, success, a dead engine, a refused
 * command - closes it here, once, and fixes its outcome; drained is published in one place only, when
 * nothing that was accounted for can touch its pages any more. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

static struct kvf_room_rec *find_room(struct kvf_core *core, uint32_t client, uint32_t slot,
                                      uint64_t generation)
{
    if (client >= core->limits.clients_max || !core->clients[client].is_used ||
        slot >= core->clients[client].rooms_max) {
        return NULL;
    }
    struct kvf_room_rec *r = &core->rooms[kvf_room_idx(core, client, slot)];
    return r->generation == generation && r->phase != KVF_PHASE_FREE ? r : NULL;
}

void kvf_room_publish(struct kvf_core *core, uint32_t room)
{
    kvf_list_push(&core->publish, room);
}

void kvf_room_wait_over(struct kvf_core *core, uint32_t room)
{
    kvf_list_remove(&core->bootstrap, room);
}

void kvf_room_wait_again(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    /* A loss begins a wait of its own, also within the first one. */
    core->rooms[room].waits_again |= !kvf_list_has(&core->bootstrap, room);
    kvf_list_remove(&core->bootstrap, room);
    core->rooms[room].wait_since_ns = now_ns;
    kvf_list_push(&core->bootstrap, room);
    kvf_core_due(core, now_ns + core->config.bootstrap_ns);
}

static const uint32_t phase_gauge[] = {
    [KVF_PHASE_FREE] = KVF_GAUGES,
    [KVF_PHASE_OPEN] = KVF_GAUGE_ROOMS_OPEN,
    [KVF_PHASE_CLOSING] = KVF_GAUGE_ROOMS_CLOSING,
    [KVF_PHASE_FENCING] = KVF_GAUGE_ROOMS_FENCING,
    [KVF_PHASE_QUARANTINED] = KVF_GAUGE_ROOMS_QUARANTINED,
    [KVF_PHASE_DRAINED] = KVF_GAUGES,
};

void kvf_room_set_phase(struct kvf_core *core, uint32_t room, enum kvf_phase phase)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->phase == phase) {
        return;
    }
    if (phase_gauge[r->phase] != KVF_GAUGES) {
        kvf_gauge_sub(core, phase_gauge[r->phase], 1);
    }
    if (phase_gauge[phase] != KVF_GAUGES) {
        kvf_gauge_add(core, phase_gauge[phase], 1);
    }
    bool is_holding = r->role == KVF_ROLE_SINK && (r->owns_pages || r->is_adopted);
    uint64_t held = is_holding ? r->page_count : 0;
    if (phase == KVF_PHASE_QUARANTINED) {
        kvf_gauge_add(core, KVF_GAUGE_PAGES_QUARANTINED, held);
    } else if (r->phase == KVF_PHASE_QUARANTINED) {
        kvf_gauge_sub(core, KVF_GAUGE_PAGES_QUARANTINED, held);
    }
    r->phase = (uint8_t)phase;
    kvf_room_publish(core, room);
}

/* ---- the gate -------------------------------------------------------------------------------------- */

void kvf_room_close(struct kvf_core *core, uint64_t now_ns, uint32_t room,
                    enum kvf_outcome outcome, uint32_t reason, uint32_t detail)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->phase != KVF_PHASE_OPEN) {
        return; /* the outcome was fixed at the first close */
    }
    r->outcome = (uint8_t)outcome;
    /* A sink succeeds by END on every lane, behind which nothing of it is on its way: safe to read from here
     * on, though leases may still keep it from being drained. */
    r->is_visible =
        outcome == KVF_OUTCOME_SUCCESS && r->role == KVF_ROLE_SINK && r->flush_mask == 0;
    r->reason = reason;
    r->detail = detail;
    r->closed_ns = now_ns;
    kvf_room_wait_over(core, room);
    kvf_room_set_phase(core, room, KVF_PHASE_CLOSING);
    kvf_list_push(&core->leases_close, room);
    if (r->role == KVF_ROLE_SOURCE) {
        kvf_source_room_unhash(core, room);
    }
    uint32_t next;
    for (uint32_t link = r->grants; link != 0; link = next) {
        if (r->role == KVF_ROLE_SINK) {
            next = core->grants[link - 1].room_next;
            kvf_grant_close(core, now_ns, link - 1);
        } else {
            next = core->sources[link - 1].room_next;
            kvf_source_close(core, now_ns, link - 1,
                             reason == 0 || reason < KVF_E_NO_DAEMON || reason > KVF_E_LAST
                                 ? KVF_E_ABORTED
                                 : reason,
                             detail);
            kvf_source_try_end(core, now_ns, link - 1); /* a lost one kept its sink's place */
        }
    }
    kvf_group_closed(core, now_ns, room);
    kvf_room_try_drain(core, now_ns, room);
}

static void free_sink_pages(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->owns_pages) {
        kvf_disown_sink(core, room, &core->runs.run[r->run_block], r->run_count);
        kvf_gauge_sub(core, KVF_GAUGE_PAGES_HELD, r->page_count);
        r->owns_pages = false;
    }
    if (r->is_held_adopted) {
        kvf_gauge_sub(core, KVF_GAUGE_PAGES_HELD, r->page_count);
        r->is_held_adopted = false;
    }
    if (r->run_block != KVF_RUNS_NONE) {
        kvf_core_runs_free(core, r->run_block);
        r->run_block = KVF_RUNS_NONE;
    }
}

static void detach_grants(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    uint32_t next;
    for (uint32_t link = r->grants; link != 0; link = next) {
        if (r->role == KVF_ROLE_SINK) {
            next = core->grants[link - 1].room_next;
            core->grants[link - 1].room = KVF_NONE;
            core->grants[link - 1].room_next = 0;
        } else {
            next = core->sources[link - 1].room_next;
            core->sources[link - 1].room = KVF_NONE;
            core->sources[link - 1].room_next = 0;
            kvf_source_try_end(core, now_ns, link - 1);
        }
    }
    r->grants = 0;
    r->pairs_unproven = 0;
}

static enum kvf_proof proof_of(const struct kvf_room_rec *r)
{
    if (r->role == KVF_ROLE_SOURCE) {
        enum kvf_proof own = r->has_posted ? KVF_PROOF_SOURCE_IDLE : KVF_PROOF_NEVER_POSTED;
        return r->proof > own ? (enum kvf_proof)r->proof : own;
    }
    /* Success is told by the current grants; what went before them was proven too. */
    uint8_t proof = r->outcome != KVF_OUTCOME_SUCCESS && r->past_proof > r->proof
                        ? r->past_proof
                        : r->proof;
    return proof == KVF_PROOF_NONE ? KVF_PROOF_NEVER_POSTED : (enum kvf_proof)proof;
}

void kvf_room_try_drain(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->phase == KVF_PHASE_FREE || r->phase == KVF_PHASE_OPEN ||
        r->phase == KVF_PHASE_DRAINED) {
        return;
    }
    if (r->flush_mask != 0 && kvf_flush_is_awaited(core, now_ns, room)) {
        return;
    }
    if (r->unproven_count > 0 || r->leases > 0 || !r->are_leases_idle) {
        return;
    }
    kvf_room_set_phase(core, room,
                       KVF_PHASE_CLOSING); /* leaves quarantine's books, if it was there */
    if (r->role == KVF_ROLE_SINK) {
        free_sink_pages(core, room);
    } else {
        kvf_source_room_free_pieces(core, room);
    }
    uint32_t client = kvf_room_client(core, room);
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        if ((r->region_mask >> i & 1) != 0) {
            assert(core->clients[client].regions[i].refs > 0);
            core->clients[client].regions[i].refs--;
        }
    }
    r->region_mask = 0;
    r->proof = (uint8_t)proof_of(r);
    r->close_to_drained_ns = now_ns - r->closed_ns;
    kvf_room_set_phase(core, room, KVF_PHASE_DRAINED);
    kvf_group_drained(core, now_ns, room);
    detach_grants(core, now_ns, room);
    kvf_count(core, KVF_COUNT_PROOF_FIRST + r->proof);
    kvf_count(core, r->outcome == KVF_OUTCOME_SUCCESS ? KVF_COUNT_ROOMS_SUCCEEDED
                                                      : KVF_COUNT_ROOMS_FAILED);
    assert(core->clients[client].undrained > 0);
    core->clients[client].undrained--;
    kvf_client_check_quiet(core, client);
}

void kvf_core_leases(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                     uint64_t generation, uint32_t cpu, uint32_t gpu, uint32_t direct_io)
{
    struct kvf_room_rec *r = find_room(core, client, slot, generation);
    if (r == NULL || r->phase == KVF_PHASE_DRAINED || r->phase == KVF_PHASE_OPEN ||
        r->are_leases_idle) {
        return;
    }
    uint32_t room = kvf_room_idx(core, client, slot);
    if (core->clients[client].is_reaped) {
        /* The reaped process can touch nothing; work it handed to a device can. */
        if (gpu + direct_io > 0) {
            kvf_room_set_phase(core, room, KVF_PHASE_QUARANTINED);
            return;
        }
        if (cpu > 0 && r->proof < KVF_PROOF_ENGINE_GONE) {
            r->proof = KVF_PROOF_ENGINE_GONE;
        }
        cpu = 0;
    }
    if (cpu + gpu + direct_io > 0) {
        return; /* the engine's return sets the dirty bit, and we are asked again */
    }
    r->are_leases_idle = true;
    kvf_room_try_drain(core, now_ns, room);
}

/* ---- abort ----------------------------------------------------------------------------------------- */

void kvf_core_abort(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                    uint64_t generation, uint32_t reason)
{
    struct kvf_room_rec *r = find_room(core, client, slot, generation);
    if (r == NULL) {
        kvf_count(core, KVF_COUNT_STALE_COMMANDS);
        return;
    }
    if (r->phase != KVF_PHASE_OPEN) {
        kvf_count(core, KVF_COUNT_ABORTS_LATE);
        return;
    }
    kvf_count(core, KVF_COUNT_ABORTS);
    kvf_room_close(core, now_ns, kvf_room_idx(core, client, slot), KVF_OUTCOME_FAILED,
                   reason == 0 ? KVF_E_ABORTED : reason, 0);
}

void kvf_core_shutdown(struct kvf_core *core, uint64_t now_ns, bool all)
{
    core->is_stopping = true;
    for (uint32_t client = 0; client < core->limits.clients_max; client++) {
        struct kvf_client_rec *c = &core->clients[client];
        for (uint32_t slot = 0; slot < c->rooms_max && c->undrained > 0; slot++) {
            uint32_t room = kvf_room_idx(core, client, slot);
            bool waits = kvf_list_has(&core->bootstrap, room) && !core->rooms[room].waits_again;
            if (core->rooms[room].phase == KVF_PHASE_OPEN && (all || waits)) {
                kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_SHUTDOWN, 0);
            }
        }
    }
}

/* ---- open ------------------------------------------------------------------------------------------ */

/* Takes the slot for the new generation. Everything refused from here on ends through the gate. */
static int begin_room(struct kvf_core *core, uint64_t now_ns, const struct kvf_core_open *open,
                      enum kvf_role role, uint32_t *ret_room)
{
    if (open->client >= core->limits.clients_max || !core->clients[open->client].is_used ||
        core->clients[open->client].is_closed ||
        open->slot >= core->clients[open->client].rooms_max) {
        kvf_count(core, KVF_COUNT_STALE_COMMANDS);
        return -KVF_E_UNKNOWN_ROOM;
    }
    uint32_t room = kvf_room_idx(core, open->client, open->slot);
    struct kvf_room_rec *r = &core->rooms[room];
    if ((r->phase != KVF_PHASE_FREE && r->phase != KVF_PHASE_DRAINED) ||
        kvf_group_is_awaited(r)) {
        kvf_count(core, KVF_COUNT_STALE_COMMANDS);
        return -KVF_E_SLOT_IN_USE;
    }
    if (open->generation <= r->generation || open->generation > KVF_GENERATION_MAX) {
        kvf_count(core, KVF_COUNT_STALE_COMMANDS);
        return -KVF_E_STALE_ROOM;
    }
    assert(r->grants == 0);
    assert(!kvf_list_has(&core->bootstrap, room));
    kvf_list_remove(&core->leases_close, room);
    kvf_list_remove(&core->publish, room);
    kvf_group_leave(core, room);
    *r = (struct kvf_room_rec){.generation = open->generation,
                               .label = open->label,
                               .key = open->key,
                               .opened_ns = now_ns,
                               .wait_since_ns = now_ns,
                               .role = (uint8_t)role,
                               .run_block = KVF_RUNS_NONE};
    core->clients[open->client].undrained++;
    kvf_count(core, KVF_COUNT_ROOMS_OPENED);
    kvf_room_set_phase(core, room, KVF_PHASE_OPEN);
    *ret_room = room;
    return 0;
}

/* It joins its group first: whatever it is refused for, its end is one of the group's. */
static int common_refusal(struct kvf_core *core, uint32_t room,
                          const struct kvf_core_open *open, bool *ret_is_ended)
{
    int err = kvf_group_open(core, room, open, ret_is_ended);
    if (open->is_old_epoch) {
        return -KVF_E_WORKER_GONE;
    }
    if (core->is_stopping || core->is_draining) {
        return -KVF_E_SHUTDOWN;
    }
    return err;
}

/* The end was there before the open; the peers still hear of it, and other ranks too. */
static bool end_at_once(struct kvf_core *core, uint64_t now_ns, uint32_t room,
                        const struct kvf_core_open *open, bool is_ended)
{
    if (open->abort_reason != 0) {
        kvf_core_abort(core, now_ns, open->client, open->slot, open->generation,
                       open->abort_reason);
    } else if (is_ended) {
        kvf_count(core, KVF_COUNT_GROUP_CLOSED);
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_GROUP_CLOSED, 0);
    }
    return open->abort_reason != 0 || is_ended;
}

static void refuse(struct kvf_core *core, uint64_t now_ns, uint32_t room, int err)
{
    kvf_count(core, KVF_COUNT_ROOMS_REFUSED);
    kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, (uint32_t)-err, 0);
}

/* Every run names a live region of this client and pages inside it; the sum fits. */
static int check_runs(struct kvf_core *core, uint32_t client, const struct kvf_run_shm *runs,
                      uint32_t run_count, uint32_t *ret_pages, uint64_t *ret_bytes,
                      uint16_t *ret_region_mask)
{
    uint64_t pages = 0;
    uint64_t bytes = 0;
    uint16_t mask = 0;
    for (uint32_t i = 0; i < run_count; i++) {
        const struct kvf_region *reg = kvf_region_of(core, client, runs[i].region);
        if (reg == NULL) {
            return -KVF_E_UNKNOWN_REGION;
        }
        if (runs[i].count == 0) {
            return -KVF_E_NO_PAGES;
        }
        if (runs[i].first >= reg->page_count ||
            runs[i].count > reg->page_count - runs[i].first) {
            return -KVF_E_PAGE_RANGE;
        }
        pages += runs[i].count;
        bytes += (uint64_t)runs[i].count * reg->page_bytes;
        mask |= (uint16_t)(1u << (runs[i].region & 0xffu));
        if (pages > KVF_LIST_PAGES_MAX) {
            return -KVF_E_RESOURCES;
        }
    }
    if (pages == 0) {
        return -KVF_E_NO_PAGES;
    }
    *ret_pages = (uint32_t)pages;
    *ret_bytes = bytes;
    *ret_region_mask = mask;
    return 0;
}

/* Copies checked runs into the core's own pool, with their positions. */
static uint32_t copy_runs(struct kvf_core *core, const struct kvf_run_shm *runs,
                          uint32_t run_count)
{
    uint32_t block = kvf_core_runs_alloc(core, run_count);
    if (block == KVF_RUNS_NONE) {
        return KVF_RUNS_NONE;
    }
    uint32_t position = 0;
    for (uint32_t i = 0; i < run_count; i++) {
        core->runs.run[block + i] = (struct kvf_run){.region = runs[i].region,
                                                     .first = runs[i].first,
                                                     .count = runs[i].count,
                                                     .position = position};
        position += runs[i].count;
    }
    return block;
}

/* Parts of the writers cover the list exactly once: pairwise apart, and their sum is the list. */
static int check_writers(const struct kvf_core_open *open, uint32_t page_count)
{
    if (open->writer_count == 0 || open->writer_count > KVF_PEERS_PER_ROOM_MAX) {
        return -KVF_E_PEER_COUNT;
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < open->writer_count; i++) {
        const struct kvf_writer_shm *w = &open->writers[i];
        if (w->count == 0 || w->start >= page_count || w->count > page_count - w->start) {
            return -KVF_E_PIECE_RANGE;
        }
        for (uint32_t j = 0; j < i; j++) {
            const struct kvf_writer_shm *o = &open->writers[j];
            if (w->start < o->start + o->count && o->start < w->start + w->count) {
                return -KVF_E_PIECE_OVERLAP;
            }
        }
        if (w->addr.family != 4 && w->addr.family != 6) {
            return -KVF_E_PEER_UNRESOLVED;
        }
        sum += w->count;
    }
    return sum == page_count ? 0 : -KVF_E_PIECE_HOLE;
}

void kvf_room_refer(struct kvf_core *core, uint32_t room, uint16_t mask)
{
    uint32_t client = kvf_room_client(core, room);
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        if ((mask >> i & 1) != 0 && (core->rooms[room].region_mask >> i & 1) == 0) {
            core->clients[client].regions[i].refs++;
        }
    }
    core->rooms[room].region_mask |= mask;
}

static uint16_t device_slots(const struct kvf_core *core, uint32_t client, uint16_t mask)
{
    uint16_t slots = 0;
    for (uint32_t left = mask; left != 0; left &= left - 1u) {
        uint32_t slot = (uint32_t)__builtin_ctz(left);
        if (core->clients[client].regions[slot].is_device) {
            slots |= (uint16_t)(1u << slot);
        }
    }
    return slots;
}

static int fill_sink(struct kvf_core *core, uint64_t now_ns, uint32_t room,
                     const struct kvf_core_open *open)
{
    struct kvf_room_rec *r = &core->rooms[room];
    uint16_t mask = 0;
    int err = check_runs(core, open->client, open->runs, open->run_count, &r->page_count,
                         &r->total_bytes, &mask);
    if (err != 0) {
        return err;
    }
    err = check_writers(open, r->page_count);
    if (err != 0) {
        return err;
    }
    r->run_block = copy_runs(core, open->runs, open->run_count);
    if (r->run_block == KVF_RUNS_NONE) {
        return -KVF_E_RESOURCES;
    }
    r->run_count = open->run_count;
    err = kvf_own_sink(core, room, &core->runs.run[r->run_block], r->run_count);
    if (err != 0) {
        return err;
    }
    r->owns_pages = true;
    kvf_gauge_add(core, KVF_GAUGE_PAGES_HELD, r->page_count);
    kvf_room_refer(core, room, mask);
    r->flush_mask = device_slots(core, open->client, mask);
    for (uint32_t i = 0; i < open->writer_count; i++) {
        if (kvf_hold_has_addr(core, &open->writers[i].addr)) {
            return -KVF_E_PEER_HELD;
        }
        uint32_t peer = kvf_peer_for_addr(core, now_ns, &open->writers[i].addr);
        if (peer == KVF_NONE) {
            return -KVF_E_RESOURCES;
        }
        if (r->flush_mask != 0 && kvf_peer_is_copied(core, peer)) {
            return -KVF_E_DEVICE_COPY;
        }
        err = kvf_grant_create(core, now_ns, room, peer, open->writers[i].start,
                               open->writers[i].count);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

static void start_waiting(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    if (core->rooms[room].phase == KVF_PHASE_OPEN) {
        kvf_list_push(&core->bootstrap, room);
        kvf_core_due(core, now_ns + core->config.bootstrap_ns);
    }
}

int kvf_core_open_sink(struct kvf_core *core, uint64_t now_ns, const struct kvf_core_open *open)
{
    uint32_t room;
    int err = begin_room(core, now_ns, open, KVF_ROLE_SINK, &room);
    if (err != 0) {
        return err;
    }
    bool is_ended;
    err = common_refusal(core, room, open, &is_ended);
    if (err == 0) {
        err = fill_sink(core, now_ns, room, open);
    }
    if (err != 0) {
        refuse(core, now_ns, room, err);
        return 0;
    }
    if (end_at_once(core, now_ns, room, open, is_ended)) {
        return 0;
    }
    start_waiting(core, now_ns, room);
    uint32_t next;
    for (uint32_t link = core->rooms[room].grants; link != 0; link = next) {
        next = core->grants[link - 1].room_next;
        kvf_grants_admit(core, now_ns, core->grants[link - 1].peer);
    }
    return 0;
}

static int fill_source(struct kvf_core *core, uint32_t room, const struct kvf_core_open *open)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (open->sink_count == 0 || open->sink_count > KVF_PEERS_PER_ROOM_MAX) {
        return -KVF_E_PEER_COUNT;
    }
    if (kvf_region_of(core, open->client, open->region) == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    uint16_t mask = (uint16_t)(1u << (open->region & 0xffu));
    if (open->aux_region != UINT32_MAX) {
        if (kvf_region_of(core, open->client, open->aux_region) == NULL) {
            return -KVF_E_UNKNOWN_REGION;
        }
        mask |= (uint16_t)(1u << (open->aux_region & 0xffu));
    }
    if (kvf_source_room_find(core, open->label, open->key) != KVF_NONE) {
        r->is_twin = true;
        return -KVF_E_KEY_IN_USE;
    }
    r->sink_count = open->sink_count;
    r->region = open->region;
    r->aux_region = open->aux_region;
    kvf_room_refer(core, room, mask);
    return 0;
}

int kvf_core_open_source(struct kvf_core *core, uint64_t now_ns,
                         const struct kvf_core_open *open)
{
    uint32_t room;
    int err = begin_room(core, now_ns, open, KVF_ROLE_SOURCE, &room);
    if (err != 0) {
        return err;
    }
    bool is_ended;
    err = common_refusal(core, room, open, &is_ended);
    if (err == 0) {
        err = fill_source(core, room, open);
    }
    if (err != 0) {
        refuse(core, now_ns, room, err);
        return 0;
    }
    /* Closing leaves the tombstone that its peer's grant will meet. */
    if (end_at_once(core, now_ns, room, open, is_ended)) {
        return 0;
    }
    start_waiting(core, now_ns, room);
    kvf_source_room_opened(core, now_ns, room);
    return 0;
}

/* ---- pieces of a source room ----------------------------------------------------------------------- */

int kvf_core_submit(struct kvf_core *core, uint64_t now_ns,
                    const struct kvf_core_submit *submit)
{
    struct kvf_room_rec *r = find_room(core, submit->client, submit->slot, submit->generation);
    if (r == NULL || r->phase != KVF_PHASE_OPEN) {
        kvf_count(core, KVF_COUNT_STALE_COMMANDS);
        return -KVF_E_STALE_ROOM;
    }
    uint32_t room = kvf_room_idx(core, submit->client, submit->slot);
    if (r->role != KVF_ROLE_SOURCE) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_ROLE, 0);
        return -KVF_E_ROLE;
    }
    uint32_t pages = 0;
    uint64_t bytes = 0;
    uint16_t mask = 0;
    int err = check_runs(core, submit->client, submit->runs, submit->run_count, &pages, &bytes,
                         &mask);
    uint16_t own = r->region_mask;
    if (err == 0 && (mask & ~own) != 0) {
        err = -KVF_E_UNKNOWN_REGION; /* not one of the regions named at open */
    }
    uint32_t block = KVF_RUNS_NONE;
    if (err == 0) {
        block = copy_runs(core, submit->runs, submit->run_count);
        err = block == KVF_RUNS_NONE ? -KVF_E_RESOURCES : 0;
    }
    if (err == 0) {
        err = kvf_source_add_piece(core, now_ns, room, submit, pages, block);
        if (err != 0) {
            kvf_core_runs_free(core, block);
        }
    }
    if (err != 0) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, (uint32_t)-err, 0);
    }
    return err;
}

/* ---- what the engine sees -------------------------------------------------------------------------- */

static enum kvf_poll_state poll_of(const struct kvf_room_rec *r)
{
    if (r->phase == KVF_PHASE_DRAINED && !kvf_group_is_awaited(r)) {
        return r->outcome == KVF_OUTCOME_SUCCESS ? KVF_STATE_SUCCESS : KVF_STATE_FAILED;
    }
    if (r->phase != KVF_PHASE_OPEN) {
        return KVF_STATE_TRANSFERRING;
    }
    if (r->role == KVF_ROLE_SINK) {
        if (!r->was_granted) {
            return KVF_STATE_BOOTSTRAPPING;
        }
        return r->is_started ? KVF_STATE_TRANSFERRING : KVF_STATE_WAITING_FOR_INPUT;
    }
    if (!r->was_granted) {
        return KVF_STATE_BOOTSTRAPPING;
    }
    return r->piece_head == 0 ? KVF_STATE_WAITING_FOR_INPUT : KVF_STATE_TRANSFERRING;
}

void kvf_core_room_view(const struct kvf_core *core, uint32_t client, uint32_t slot,
                        struct kvf_core_room_view *ret_view)
{
    const struct kvf_room_rec *r = &core->rooms[kvf_room_idx(core, client, slot)];
    uint64_t flags =
        (r->is_visible ? KVF_WORD_VISIBLE : 0) |
        (r->outcome == KVF_OUTCOME_FAILED ? KVF_WORD_FAILED_EARLY : 0) |
        (r->is_started ? KVF_WORD_STARTED : 0) |
        (r->phase == KVF_PHASE_DRAINED && kvf_group_is_awaited(r) ? KVF_WORD_GROUP_WAITS : 0);
    *ret_view = (struct kvf_core_room_view){
        .word = kvf_word_make(
            r->generation, (enum kvf_phase)r->phase, (enum kvf_outcome)r->outcome,
            r->phase == KVF_PHASE_DRAINED ? (enum kvf_proof)r->proof : KVF_PROOF_NONE,
            poll_of(r), flags),
        .reason = r->reason,
        .detail = r->detail,
        .placed_bytes = r->placed_bytes,
        .total_bytes = r->total_bytes,
        .total_pages = r->page_count,
        .unproven = r->role == KVF_ROLE_SINK ? r->pairs_unproven : r->leases,
        .close_to_drained_ns = r->close_to_drained_ns,
        .group_waits = r->group_waits,
        .is_sink = r->role == KVF_ROLE_SINK,
        .was_aborted = r->outcome == KVF_OUTCOME_FAILED,
    };
}

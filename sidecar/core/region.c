/* Clients, their regions, and the worker's private owner table: the second check that no page has two
 * lenders, made on memory no engine can write. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

#define OWNER_READ UINT32_C(0x80000000) /* | number of source pieces that read the page */

int kvf_core_client_add(struct kvf_core *core, uint32_t client, uint32_t rooms_max)
{
    if (client >= core->limits.clients_max || rooms_max > core->limits.rooms_per_client_max ||
        core->clients[client].is_used) {
        return -EINVAL;
    }
    core->clients[client] = (struct kvf_client_rec){.is_used = true, .rooms_max = rooms_max};
    return 0;
}

void kvf_core_client_close(struct kvf_core *core, uint64_t now_ns, uint32_t client,
                           uint32_t reason)
{
    assert(client < core->limits.clients_max);
    struct kvf_client_rec *c = &core->clients[client];
    if (!c->is_used || c->is_closed) {
        return;
    }
    c->is_closed = true;
    c->hold_ns = now_ns + KVF_GROUP_HOLD_ASKS * core->config.group_ask_ns;
    kvf_core_due(core, c->hold_ns);
    for (uint32_t slot = 0; slot < c->rooms_max && c->undrained > 0; slot++) {
        uint32_t room = kvf_room_idx(core, client, slot);
        if (core->rooms[room].phase == KVF_PHASE_OPEN) {
            kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, reason, 0);
        }
    }
    kvf_client_check_quiet(core, client);
}

void kvf_core_client_reaped(struct kvf_core *core, uint64_t now_ns, uint32_t client)
{
    assert(client < core->limits.clients_max);
    struct kvf_client_rec *c = &core->clients[client];
    if (!c->is_used || c->is_reaped) {
        return;
    }
    kvf_core_client_close(core, now_ns, client, KVF_E_ENGINE_GONE);
    c->is_reaped = true;
    /* Rooms that waited for leases of kind cpu ask for their lease word once more. */
    for (uint32_t slot = 0; slot < c->rooms_max && c->undrained > 0; slot++) {
        uint32_t room = kvf_room_idx(core, client, slot);
        uint8_t phase = core->rooms[room].phase;
        if (phase != KVF_PHASE_FREE && phase != KVF_PHASE_DRAINED &&
            !core->rooms[room].are_leases_idle) {
            kvf_list_push(&core->leases_close, room);
        }
    }
}

bool kvf_core_client_is_quiet(const struct kvf_core *core, uint32_t client)
{
    const struct kvf_client_rec *c = &core->clients[client];
    return c->is_used && c->is_closed && c->undrained == 0 && c->flushes_out == 0 &&
           (c->untold == 0 || c->is_hold_over);
}

void kvf_client_check_quiet(struct kvf_core *core, uint32_t client)
{
    if (kvf_core_client_is_quiet(core, client) && !core->clients[client].is_quiet_told) {
        core->clients[client].is_quiet_told = true;
        kvf_list_push(&core->quiet, client);
    }
}

void kvf_core_client_remove(struct kvf_core *core, uint32_t client)
{
    assert(kvf_core_client_is_quiet(core, client));
    struct kvf_client_rec *c = &core->clients[client];
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        if (c->regions[i].handle != 0) {
            int err = kvf_core_region_remove(core, client, c->regions[i].handle);
            assert(err == 0);
        }
    }
    for (uint32_t slot = 0; slot < c->rooms_max; slot++) {
        uint32_t room = kvf_room_idx(core, client, slot);
        kvf_list_remove(&core->publish, room);
        kvf_list_remove(&core->leases_close, room);
        if (core->rooms[room].generation != 0) {
            kvf_group_leave(core, room);
            memset(&core->rooms[room], 0, sizeof core->rooms[room]);
        }
    }
    kvf_group_client_removed(core, client);
    kvf_list_remove(&core->quiet, client);
    *c = (struct kvf_client_rec){0};
}

/* ---- regions --------------------------------------------------------------------------------------- */

uint32_t kvf_region_wire(uint32_t client, uint32_t handle)
{
    return client * KVF_REGIONS_PER_CLIENT_MAX + (handle & 0xffu);
}

struct kvf_region *kvf_region_of(struct kvf_core *core, uint32_t client, uint32_t handle)
{
    uint32_t slot = handle & 0xffu;
    if (handle == 0 || slot >= KVF_REGIONS_PER_CLIENT_MAX) {
        return NULL;
    }
    struct kvf_region *r = &core->clients[client].regions[slot];
    return r->handle == handle ? r : NULL;
}

static uint64_t geometry_of(uint32_t plane_count, const struct kvf_core_plane *planes,
                            uint64_t *ret_page_bytes)
{
    uint64_t hash = kvf_hash2(plane_count, KVF_GEOMETRY_SALT);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plane_count; i++) {
        hash = kvf_hash2(hash, planes[i].page_bytes);
        bytes += planes[i].page_bytes;
    }
    *ret_page_bytes = bytes;
    return hash;
}

int kvf_core_region_add(struct kvf_core *core, uint32_t client, uint32_t region,
                        uint64_t page_count, uint32_t plane_count,
                        const struct kvf_core_plane *planes, uint32_t *owners)
{
    assert(client < core->limits.clients_max);
    assert(page_count > 0);
    assert(page_count <= KVF_REGION_PAGES_MAX);
    uint32_t slot = region & 0xffu;
    if (region >> 8 == 0 || slot >= KVF_REGIONS_PER_CLIENT_MAX) {
        return -KVF_E_REGIONS_FULL;
    }
    struct kvf_region *r = &core->clients[client].regions[slot];
    if (r->handle != 0) {
        return -EEXIST;
    }
    *r = (struct kvf_region){.handle = region,
                             .plane_count = plane_count,
                             .page_count = page_count,
                             .planes = planes,
                             .owners = owners};
    r->geometry = geometry_of(plane_count, planes, &r->page_bytes);
    return 0;
}

int kvf_core_region_keys(struct kvf_core *core, uint32_t client, uint32_t region, uint64_t base,
                         const uint32_t *keys, uint32_t key_count)
{
    assert(client < core->limits.clients_max);
    assert(key_count <= KVF_WIRE_KEYS_MAX);
    struct kvf_region *r = kvf_region_of(core, client, region);
    if (r == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    assert(r->refs == 0);
    r->base = base;
    r->key_count = key_count;
    memcpy(r->keys, keys, key_count * sizeof r->keys[0]);
    return 0;
}

int kvf_core_region_remove(struct kvf_core *core, uint32_t client, uint32_t region)
{
    assert(client < core->limits.clients_max);
    struct kvf_region *r = kvf_region_of(core, client, region);
    if (r == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    if (r->refs > 0 || core->clients[client].flushes_out > 0) {
        return -KVF_E_REGION_BUSY;
    }
    /* Peers that know the old registration hear of the next one before any GRANT that names it. */
    uint32_t wire = kvf_region_wire(client, region);
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        if (core->peers[i].role == KVF_PEER_OUT) {
            core->peers[i].announced[wire / 64] &= ~(UINT64_C(1) << wire % 64);
        }
    }
    *r = (struct kvf_region){0};
    return 0;
}

/* ---- owners ---------------------------------------------------------------------------------------- */

/* Walks the pages of runs; visit returns 0 to go on. Returns how many pages were visited before the
 * stop, so that the caller can undo exactly those. */
typedef int (*visit_fn)(uint32_t *owner, uint32_t room);

static uint64_t walk(struct kvf_core *core, uint32_t client, const struct kvf_run *runs,
                     uint32_t count, uint64_t limit, uint32_t room, visit_fn visit,
                     int *ret_err)
{
    uint64_t visited = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct kvf_region *r = kvf_region_of(core, client, runs[i].region);
        assert(r != NULL);
        for (uint32_t p = 0; p < runs[i].count; p++) {
            if (visited == limit) {
                return visited;
            }
            int err = visit(&r->owners[runs[i].first + p], room);
            if (err != 0) {
                *ret_err = err;
                return visited;
            }
            visited++;
        }
    }
    return visited;
}

static int take_sink(uint32_t *owner, uint32_t room)
{
    if (*owner != 0) {
        return *owner == room + 1 ? -KVF_E_PAGE_TWICE : -KVF_E_PAGE_LENT;
    }
    *owner = room + 1;
    return 0;
}

static int give_sink(uint32_t *owner, uint32_t room)
{
    assert(*owner == room + 1);
    *owner = 0;
    return 0;
}

static int take_source(uint32_t *owner, uint32_t room)
{
    (void)room;
    if (*owner != 0 && (*owner & OWNER_READ) == 0) {
        return -KVF_E_PAGE_LENT;
    }
    *owner = *owner == 0 ? OWNER_READ | 1u : *owner + 1;
    return 0;
}

static int give_source(uint32_t *owner, uint32_t room)
{
    (void)room;
    assert((*owner & OWNER_READ) != 0);
    *owner = *owner == (OWNER_READ | 1u) ? 0 : *owner - 1;
    return 0;
}

int kvf_own_sink(struct kvf_core *core, uint32_t room, const struct kvf_run *runs,
                 uint32_t count)
{
    int err = 0;
    uint32_t client = kvf_room_client(core, room);
    uint64_t taken = walk(core, client, runs, count, UINT64_MAX, room, take_sink, &err);
    if (err != 0) {
        int ignored = 0;
        (void)walk(core, client, runs, count, taken, room, give_sink, &ignored);
    }
    return err;
}

void kvf_disown_sink(struct kvf_core *core, uint32_t room, const struct kvf_run *runs,
                     uint32_t count)
{
    int ignored = 0;
    (void)walk(core, kvf_room_client(core, room), runs, count, UINT64_MAX, room, give_sink,
               &ignored);
}

int kvf_own_source(struct kvf_core *core, uint32_t client, const struct kvf_run *runs,
                   uint32_t count)
{
    int err = 0;
    uint64_t taken = walk(core, client, runs, count, UINT64_MAX, 0, take_source, &err);
    if (err != 0) {
        int ignored = 0;
        (void)walk(core, client, runs, count, taken, 0, give_source, &ignored);
    }
    return err;
}

void kvf_disown_source(struct kvf_core *core, uint32_t client, const struct kvf_run *runs,
                       uint32_t count)
{
    int ignored = 0;
    (void)walk(core, client, runs, count, UINT64_MAX, 0, give_source, &ignored);
}

struct kvf_region *kvf_region_by_wire(struct kvf_core *core, uint32_t wire,
                                      uint32_t *ret_handle)
{
    uint32_t client = wire / KVF_REGIONS_PER_CLIENT_MAX;
    if (client >= core->limits.clients_max) {
        return NULL;
    }
    struct kvf_region *r = &core->clients[client].regions[wire % KVF_REGIONS_PER_CLIENT_MAX];
    if (r->handle == 0) {
        return NULL;
    }
    *ret_handle = r->handle;
    return r;
}

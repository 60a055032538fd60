/* Regions of peers, on the source's side: how large their pages are, and, for devices that write into them, where
 * each page of each plane lies and under which key. The latter takes 12 KiB a region, so its places are few,
 * and no peer has more than a quarter of them. A region without a place is granted over streams as always;
 * over queue pairs its grants are declined. */
#include "sidecar/core/internal.h"

#include <string.h>

static uint32_t place_alloc(struct kvf_core *core, struct kvf_peer *p)
{
    uint32_t most = (core->limits.remote_regions_max + 3) / 4;
    uint32_t place;
    if (p->place_count >= most) {
        return 0;
    }
    if (core->remote_free != 0) {
        place = core->remote_free;
        core->remote_free = core->remotes[place - 1].next;
    } else if (core->remote_fresh < core->limits.remote_regions_max) {
        place = ++core->remote_fresh;
    } else {
        return 0;
    }
    core->remotes[place - 1].next = p->places;
    p->places = place;
    p->place_count++;
    return place;
}

void kvf_remote_forget(struct kvf_core *core, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    while (p->places != 0) {
        uint32_t place = p->places;
        p->places = core->remotes[place - 1].next;
        core->remotes[place - 1].next = core->remote_free;
        core->remote_free = place;
    }
    p->place_count = 0;
}

static void keep(struct kvf_remote_place *at, const struct kvf_wire_region *m)
{
    at->base = m->base;
    memcpy(at->keys, m->keys, sizeof at->keys);
    at->plane_count = m->plane_count;
    for (uint32_t i = 0; i < m->plane_count; i++) {
        at->planes[i] = (struct kvf_core_plane){.off = m->planes[i].off,
                                                .stride = m->planes[i].stride,
                                                .page_bytes = m->planes[i].page_bytes};
    }
}

bool kvf_remote_take(struct kvf_core *core, uint32_t peer, const unsigned char *payload,
                     size_t bytes)
{
    struct kvf_wire_region *m = &core->region_scratch;
    if (core->peers[peer].role != KVF_PEER_IN || kvf_wire_get_region(payload, bytes, m) != 0 ||
        m->region >= KVF_REGIONS_PER_WORKER_MAX || m->epoch == 0 || m->plane_count == 0) {
        return false;
    }
    uint64_t hash = kvf_hash2(m->plane_count, KVF_GEOMETRY_SALT);
    uint64_t page_bytes = 0;
    for (uint32_t i = 0; i < m->plane_count; i++) {
        hash = kvf_hash2(hash, m->planes[i].page_bytes);
        page_bytes += m->planes[i].page_bytes;
    }
    struct kvf_remote_region *r = &core->peers[peer].remote[m->region];
    uint32_t place = r->place; /* once it has one it keeps it */
    if (place == 0 && m->key_count > 0) {
        place = place_alloc(core, &core->peers[peer]);
    }
    *r = (struct kvf_remote_region){.epoch = m->epoch,
                                    .page_bytes = page_bytes,
                                    .geometry = hash,
                                    .page_count = m->page_count,
                                    .key_count = m->key_count,
                                    .place = place};
    if (place != 0) {
        keep(&core->remotes[place - 1], m);
    }
    return true;
}

static uint32_t lack_of(const struct kvf_remote_region *r, uint32_t rail)
{
    if (rail >= r->key_count) {
        return KVF_E_NO_KEY;
    }
    return r->place == 0 ? KVF_E_RESOURCES : 0;
}

uint32_t kvf_remote_lack(const struct kvf_core *core, const struct kvf_source_grant *s)
{
    uint32_t lack = 0;
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        const struct kvf_lane *lane = &core->lanes[kvf_lane_id(s->peer, i)];
        if ((s->lane_mask >> i & 1u) == 0 || !lane->is_queue_pair) {
            continue;
        }
        for (uint32_t j = 0; lack == 0 && j < s->total_runs; j++) {
            uint32_t region = core->runs.run[s->run_block + j].region;
            lack = lack_of(&core->peers[s->peer].remote[region], lane->theirs.rail);
        }
    }
    return lack;
}

bool kvf_core_remote(const struct kvf_core *core, uint32_t lane, uint32_t remote_region,
                     struct kvf_remote_view *ret_view)
{
    assert(lane < core->limits.peers_max * KVF_LANES_MAX);
    const struct kvf_peer *p = &core->peers[lane / KVF_LANES_MAX];
    if (p->role != KVF_PEER_IN || remote_region >= KVF_REGIONS_PER_WORKER_MAX ||
        p->remote[remote_region].place == 0) {
        return false;
    }
    const struct kvf_remote_region *r = &p->remote[remote_region];
    const struct kvf_remote_place *at = &core->remotes[r->place - 1];
    *ret_view = (struct kvf_remote_view){.base = at->base,
                                         .keys = at->keys,
                                         .key_count = r->key_count,
                                         .page_count = r->page_count,
                                         .plane_count = at->plane_count,
                                         .planes = at->planes};
    return true;
}

/* Peers, lanes and quarantined rooms in the stats file, a few times a second and with no system call: an
 * operator's tool reads them there, so that looking costs the daemon nothing. */
#include "sidecar/core/show.h"
#include "sidecar/host/clock.h"
#include "sidecar/worker_internal.h"

#define ROWS_PERIOD_NS (250 * KVF_NS_PER_MS)

/* One step of the search for rooms in quarantine: a bounded look over the slots, so that the rows are whole some
 * steps later. Nothing is searched while there is none. Returns true if the rows of rooms are whole. */
static bool find_rooms(struct kvf_worker *w)
{
    struct kvf_worker_rows *r = &w->rows;
    struct kvf_operate_room found[KVF_STATS_ROOMS_MAX];
    if (kvf_core_gauges(w->core)[KVF_GAUGE_ROOMS_QUARANTINED] == 0) {
        r->client = 0;
        r->slot = 0;
        r->found = 0;
        return true;
    }
    uint32_t count =
        kvf_core_list_rooms(w->core, w->now_ns, 1u << KVF_PHASE_QUARANTINED, &r->client,
                            &r->slot, found, KVF_STATS_ROOMS_MAX - r->found);
    for (uint32_t i = 0; i < count; i++) {
        r->next[r->found++] =
            (struct kvf_stats_room_shm){.generation = found[i].generation,
                                        .label = found[i].label,
                                        .key = found[i].key,
                                        .closed_ns = w->now_ns - found[i].age_ns,
                                        .pages = found[i].pages,
                                        .client = found[i].client,
                                        .slot = found[i].slot,
                                        .phase = found[i].phase,
                                        .side = found[i].is_sink,
                                        .reason = found[i].reason,
                                        .is_engine_gone = found[i].is_engine_gone};
    }
    return r->client >= w->config.clients || r->found == KVF_STATS_ROOMS_MAX;
}

void kvf_worker_stats_rows(struct kvf_worker *w)
{
    struct kvf_worker_rows *r = &w->rows;
    if (r->image.written_ns != 0 && w->now_ns - r->image.written_ns < ROWS_PERIOD_NS) {
        return;
    }
    if (find_rooms(w)) {
        for (uint32_t i = 0; i < r->found; i++) {
            r->image.rooms[i] = r->next[i];
        }
        r->image.room_count = r->found;
        r->client = 0;
        r->slot = 0;
        r->found = 0;
    }
    kvf_core_show(w->core, &r->image);
    r->image.written_ns = w->now_ns;
    kvf_stats_set_rows(w->stats, &r->image);
}

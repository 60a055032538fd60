#include "client/stat/rates.h"

#include <string.h>

#include "client/stat/rows.h"

enum kvf_stat_change kvf_stat_change_of(const struct kvf_stat_daemon *before,
                                        const struct kvf_stat_daemon *now)
{
    if (before->started_ns != now->started_ns) {
        return KVF_CHANGE_DAEMON;
    }
    return before->worker_epoch != now->worker_epoch ? KVF_CHANGE_WORKER : KVF_CHANGE_NONE;
}

static bool is_one_life(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now)
{
    return before != NULL && now != NULL && now->read_ns > before->read_ns &&
           kvf_stat_change_of(before, now) != KVF_CHANGE_DAEMON;
}

static bool rate_of(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                    uint64_t was, uint64_t is, double *ret_per_s)
{
    if (is < was) {
        return false;
    }
    *ret_per_s = (double)(is - was) * 1e9 / (double)(now->read_ns - before->read_ns);
    return true;
}

static const struct kvf_stat_entry *find(const struct kvf_stat_daemon *daemon, const char *name)
{
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        if (daemon->entries[i].kind != KVF_STATS_HISTOGRAM &&
            strcmp(daemon->entries[i].name, name) == 0) {
            return &daemon->entries[i];
        }
    }
    return NULL;
}

bool kvf_stat_rate(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                   const char *name, double *ret_per_s)
{
    if (!is_one_life(before, now)) {
        return false;
    }
    const struct kvf_stat_entry *was = find(before, name);
    const struct kvf_stat_entry *is = find(now, name);
    return was != NULL && is != NULL && rate_of(before, now, was->value, is->value, ret_per_s);
}

bool kvf_stat_lane_rate(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                        uint64_t lane_row, double *ret_per_s)
{
    if (!is_one_life(before, now) || before->rows == NULL || now->rows == NULL) {
        return false;
    }
    const struct kvf_stats_lane_shm *is = &now->rows->lanes[lane_row];
    for (uint64_t i = 0; i < before->rows->lane_count; i++) {
        const struct kvf_stats_lane_shm *was = &before->rows->lanes[i];
        if (was->lane == is->lane && was->opened <= is->opened &&
            was->peer < before->rows->peer_count && is->peer < now->rows->peer_count &&
            kvf_row_is_same_peer(&before->rows->peers[was->peer],
                                 &now->rows->peers[is->peer])) {
            return rate_of(before, now, was->moved_bytes, is->moved_bytes, ret_per_s);
        }
    }
    return false;
}

bool kvf_stat_between(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                      const char *name, struct kvf_histogram_shm *ret_histogram)
{
    if (!is_one_life(before, now)) {
        return false;
    }
    const struct kvf_histogram_shm *was = kvf_stat_histogram(before, name);
    const struct kvf_histogram_shm *is = kvf_stat_histogram(now, name);
    struct kvf_histogram_shm between = {.count = 0};
    uint64_t count = 0;

    if (was == NULL || is == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < KVF_HISTOGRAM_BUCKETS; i++) {
        uint64_t a = atomic_load_explicit(&was->buckets[i], memory_order_relaxed);
        uint64_t b = atomic_load_explicit(&is->buckets[i], memory_order_relaxed);
        if (b < a) {
            return false;
        }
        atomic_store_explicit(&between.buckets[i], b - a, memory_order_relaxed);
        count += b - a;
        if (b > a) {
            uint64_t edge = kvf_histogram_bucket_floor(i + 1u);
            atomic_store_explicit(&between.max, edge > 0 ? edge - 1u : 0, memory_order_relaxed);
        }
    }
    uint64_t most = atomic_load_explicit(&is->max, memory_order_relaxed);
    if (atomic_load_explicit(&between.max, memory_order_relaxed) > most) {
        atomic_store_explicit(&between.max, most, memory_order_relaxed);
    }
    atomic_store_explicit(&between.count, count, memory_order_relaxed);
    *ret_histogram = between;
    return true;
}

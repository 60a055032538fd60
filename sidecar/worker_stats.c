/* What the worker shows: numbers copied into the stats file now and then, never on the path of a transfer
 * but for the histograms of ended rooms. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/numa.h"
#include "sidecar/worker_internal.h"

#define MASK_PERIOD_NS (5 * KVF_NS_PER_S)

void kvf_worker_stats_start(struct kvf_worker *w, uint32_t worker_starts)
{
    for (uint32_t i = 0; i < KVF_VALUES; i++) {
        w->base[i] = kvf_daemon_stats_get(w->stats, i);
    }
    w->off_cpu_max_ns = w->base[KVF_VALUE_OFF_CPU_MAX] * KVF_NS_PER_US;
    w->window_ns = w->now_ns;
    w->window_cpu_ns = kvf_clock_thread_cpu_ns();
    w->mask_ns = w->now_ns;
    kvf_stats_begin(w->stats);
    kvf_stats_set(w->stats, KVF_VALUE_WORKER_STARTS, worker_starts);
    kvf_stats_set(w->stats, KVF_VALUE_CPU, w->cpu >= 0 ? (uint64_t)w->cpu + 1u : 0);
    kvf_stats_set(w->stats, KVF_VALUE_NUMA_BOUND, w->is_numa_bound);
    /* T2 (release), both. */
    atomic_store_explicit(&w->stats->worker_epoch, w->epoch, memory_order_release);
    atomic_store_explicit(&w->stats->worker_pid, (uint32_t)getpid(), memory_order_release);
    kvf_daemon_stats_state(w->stats, KVF_STATS_RUNNING);
    kvf_stats_end(w->stats);
}

/* Time in which this thread wanted to run and did not: what of a window was neither spent running nor
 * waiting by choice. A stall of the whole host shows up here in full. */
static void look_off_cpu(struct kvf_worker *w)
{
    uint64_t cpu_ns = kvf_clock_thread_cpu_ns();
    uint64_t used_ns = cpu_ns - w->window_cpu_ns + w->window_blocked_ns;
    uint64_t wall_ns = w->now_ns - w->window_ns;
    if (wall_ns > used_ns && wall_ns - used_ns > w->off_cpu_max_ns) {
        w->off_cpu_max_ns = wall_ns - used_ns;
    }
    w->window_ns = w->now_ns;
    w->window_cpu_ns = cpu_ns;
    w->window_blocked_ns = 0;
}

/* Containers change the allowed processors; the kernel then moves us where it likes. */
static void look_at_mask(struct kvf_worker *w)
{
    if (w->now_ns - w->mask_ns < MASK_PERIOD_NS) {
        return;
    }
    w->mask_ns = w->now_ns;
    int cpus[1];
    int allowed = kvf_cpu_allowed(cpus, 1);
    if (w->cpu >= 0 && allowed > 0 && (allowed != 1 || cpus[0] != w->cpu)) {
        kvf_log(KVF_LOG_WARN, "processor %d was taken from this worker; it runs unpinned",
                w->cpu);
        w->cpu = KVF_CPU_NONE;
        w->cpus_allowed = allowed;
    } else if (w->cpu < 0 && allowed > 0) {
        w->cpus_allowed = allowed;
    }
}

static void copy_engine(struct kvf_worker *w, struct kvf_stats_shm *shm)
{
    uint64_t calls = 0;
    uint64_t enters = 0;
    if (w->ways[WAY_TCP].t != NULL) {
        kvf_tcp_engine_counts(w->ways[WAY_TCP].t, &calls, &enters);
    }
    kvf_stats_set(shm, KVF_VALUE_TCP_ENGINE,
                  w->is_uring ? KVF_TCP_ENGINE_URING : KVF_TCP_ENGINE_SOCKETS);
    kvf_stats_set(shm, KVF_VALUE_TCP_CALLS, w->base[KVF_VALUE_TCP_CALLS] + calls);
    kvf_stats_set(shm, KVF_VALUE_TCP_ENTERS, w->base[KVF_VALUE_TCP_ENTERS] + enters);
}

void kvf_worker_stats_copy(struct kvf_worker *w)
{
    if (w->is_uring && !kvf_worker_uses_uring(w)) {
        w->is_uring = false;
        kvf_log(KVF_LOG_WARN, "tcp engine: plain sockets from now on; io_uring takes no more "
                              "calls");
    }
    look_at_mask(w);
    look_off_cpu(w);
    uint64_t counters[KVF_COUNTERS];
    uint64_t bad = 0;
    memcpy(counters, kvf_core_counters(w->core), sizeof(counters));
    kvf_clients_count_into(w->clients, counters, &bad);
    const uint64_t *gauges = kvf_core_gauges(w->core);
    struct kvf_stats_shm *shm = w->stats;
    kvf_stats_begin(shm);
    for (uint32_t i = 0; i < KVF_COUNTERS; i++) {
        kvf_stats_set(shm, KVF_VALUE_CORE_COUNTERS + i, w->base[i] + counters[i]);
    }
    for (uint32_t i = 0; i < KVF_GAUGES; i++) {
        kvf_stats_set(shm, KVF_VALUE_CORE_GAUGES + i, gauges[i]);
    }
    kvf_stats_set(shm, KVF_VALUE_BAD_CLIENT_BYTES, w->base[KVF_VALUE_BAD_CLIENT_BYTES] + bad);
    kvf_stats_set(shm, KVF_VALUE_LOCAL_BYTES, w->base[KVF_VALUE_LOCAL_BYTES] + w->local_bytes);
    kvf_stats_set(shm, KVF_VALUE_CLIENTS, kvf_clients_count(w->clients));
    kvf_stats_set(shm, KVF_VALUE_REGIONS, kvf_regions_live(w->regions));
    kvf_stats_set(shm, KVF_VALUE_LOOP_COUNT, w->loop_count);
    copy_engine(w, shm);
    kvf_worker_verbs_stats(w, shm);
    kvf_stats_set(shm, KVF_VALUE_OFF_CPU_MAX, w->off_cpu_max_ns / KVF_NS_PER_US);
    kvf_stats_heartbeat(shm, w->now_ns);
    kvf_stats_end(shm);
    kvf_worker_stats_rows(w);
    w->stats_ns = w->now_ns;
    w->is_stats_due = false;
}

void kvf_worker_stats_count(struct kvf_worker *w, uint32_t value, uint64_t n)
{
    assert(value < KVF_COUNTERS);
    w->base[value] += n;
    kvf_worker_stats_copy(w);
}

void kvf_worker_stats_loop(struct kvf_worker *w, uint64_t turn_ns)
{
    kvf_stats_begin(w->stats);
    kvf_stats_record(w->stats, KVF_HISTOGRAM_LOOP, turn_ns / KVF_NS_PER_US);
    kvf_stats_end(w->stats);
}

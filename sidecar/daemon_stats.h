/* Which numbers a daemon shows, and where each stands in its stats file. The worker writes while it lives,
 * the supervisor before its start and after its reaping: never both. Counters go on over a worker's end. */
#ifndef KVF_SIDECAR_DAEMON_STATS_H
#define KVF_SIDECAR_DAEMON_STATS_H

#include <stdint.h>

#include "ring/stats.h"
#include "sidecar/core/core.h"
#include "sidecar/host/config.h"

/* Positions of values. The core's counters and gauges come first, in its order. */
enum kvf_daemon_value {
    KVF_VALUE_CORE_COUNTERS = 0,
    KVF_VALUE_CORE_GAUGES = KVF_COUNTERS,
    KVF_VALUE_BAD_CLIENT_BYTES = KVF_COUNTERS + KVF_GAUGES,
    KVF_VALUE_WORKER_STARTS,
    KVF_VALUE_CLIENTS,
    KVF_VALUE_REGIONS,
    KVF_VALUE_BOUND_USUAL,
    KVF_VALUE_BOUND_WORST,
    KVF_VALUE_BOUND_DETECTION,
    KVF_VALUE_BOUND_COOPERATIVE,
    KVF_VALUE_BOUND_FENCE,
    KVF_VALUE_BOUND_WATCHDOG,
    KVF_VALUE_BOUND_KILL,
    KVF_VALUE_BOUND_VISIBILITY,
    KVF_VALUE_LANE_RATE,
    KVF_VALUE_PLACEMENT,
    KVF_VALUE_LOOP_COUNT,
    KVF_VALUE_OFF_CPU_MAX,
    KVF_VALUE_CPU,
    KVF_VALUE_NUMA_BOUND,
    KVF_VALUE_TCP_ENGINE,
    KVF_VALUE_TCP_CALLS,
    KVF_VALUE_TCP_ENTERS,
    KVF_VALUE_TRANSPORT,
    KVF_VALUE_LOCAL_BYTES,
    KVF_VALUE_QUEUE_PAIRS_MADE,
    KVF_VALUE_QUEUE_PAIRS_DESTROYED,
    KVF_VALUE_WORK_POSTED,
    KVF_VALUE_WORK_REAPED,
    KVF_VALUE_WORK_WRITTEN_OFF,
    KVF_VALUE_COMPLETIONS_STALE,
    KVF_VALUE_DEVICE_EVENTS,
    KVF_VALUE_DEVICE_FENCES_FAILED,
    KVF_VALUE_MEMORY_REFUSED,
    KVF_VALUE_MEMORY_WITHHELD,
    KVF_VALUE_MEMORY_ASKED_AGAIN,
    KVF_VALUE_MEMORY_WITHHELD_NOW,
    KVF_VALUE_RAILS_UP,
    KVF_VALUE_VISIBILITY, /* memory of devices: 0 none can be, 1 flush read. The host's needs no step */
    KVF_VALUE_BOUND_FLUSH,       /* what a room in such memory has on top of the bound; ... */
    KVF_VALUE_BOUND_NEXT_WORKER, /* ... and on top of that, if its worker ends */
    KVF_VALUES
};

enum kvf_daemon_histogram {
    KVF_HISTOGRAM_ABORT_TO_DRAINED = 0,
    KVF_HISTOGRAM_OPEN_TO_SUCCESS,
    KVF_HISTOGRAM_LOOP,
    KVF_HISTOGRAMS
};

/* From drained being true to its word being stored: one turn of a loop that may be off its processor. */
#define KVF_VISIBILITY_MS 100u

/* Libraries of devices are found, loaded and tried before a worker is ready, on a machine that may be busy. A worker that
 * starts has lent nothing, so no page waits for it but those in a device's memory that its predecessor left. */
#define KVF_WORKER_START_MS 30000u
/* The longest pause before it, after many that ended soon. */
#define KVF_RESTART_DELAY_MAX_MS 3200u
/* All regions of all clients, one after the other on one thread: a device pins a GiB in 0.1 to 0.5 s. */
#define KVF_REGISTER_MS 60000u

/* The table a stats file is made from. */
const struct kvf_stats_def *kvf_daemon_stats_defs(uint32_t *ret_count);

uint64_t kvf_daemon_stats_get(const struct kvf_stats_shm *shm, uint32_t value);
/* Adds to a value; the caller is the writer, between begin and end. */
void kvf_daemon_stats_add(struct kvf_stats_shm *shm, uint32_t value, uint64_t n);
/* What the writer says of itself; between begin and end. */
void kvf_daemon_stats_state(struct kvf_stats_shm *shm, enum kvf_stats_state state);
/* The bound's terms and what else follows from the options alone. */
void kvf_daemon_stats_config(struct kvf_stats_shm *shm, const struct kvf_config *config);

uint64_t kvf_bound_usual_us(const struct kvf_config *config);
uint64_t kvf_bound_worst_us(const struct kvf_config *config);
/* Of rooms with pages in memory of devices, on top of both bounds: their flush. 0 where there are none. */
uint64_t kvf_bound_flush_us(const struct kvf_config *config);
/* ... and after their worker's end, from its reaping: the next one's start, the registration, its flush. Beyond it
 * they are in quarantine, which a later answer ends. */
uint64_t kvf_bound_next_worker_us(const struct kvf_config *config);
/* What the core is started with. */
void kvf_core_config_of(const struct kvf_config *config, uint64_t supervisor_id,
                        uint32_t worker_starts, struct kvf_core_config *ret_core);

#endif

#include "sidecar/daemon_stats.h"

#include <stdio.h>

#include "sidecar/host/clock.h"

#define GROUP_ASK_NS (250 * KVF_NS_PER_MS)
#define REGRANTS_MAX 3u /* lanes that break four times under one room are not worth a fifth */

#define COUNTER(value, name, unit) [value] = {name, unit, KVF_STATS_COUNTER}
#define GAUGE(value, name, unit)                                                               \
    [KVF_VALUE_CORE_GAUGES + (value)] = {name, unit, KVF_STATS_GAUGE}
#define OWN(value, name, unit, kind) [value] = {name, unit, kind}
#define PROOF(kind, name)                                                                      \
    COUNTER(KVF_COUNT_PROOF_FIRST + (kind), "proof_" name "_total", "rooms")
#define HISTOGRAM(value, name) [KVF_VALUES + (value)] = {name, "us", KVF_STATS_HISTOGRAM}

static const struct kvf_stats_def defs[] = {
    COUNTER(KVF_COUNT_ROOMS_OPENED, "rooms_opened_total", "rooms"),
    COUNTER(KVF_COUNT_ROOMS_SUCCEEDED, "rooms_succeeded_total", "rooms"),
    COUNTER(KVF_COUNT_ROOMS_FAILED, "rooms_failed_total", "rooms"),
    COUNTER(KVF_COUNT_ROOMS_REFUSED, "rooms_refused_total", "rooms"),
    COUNTER(KVF_COUNT_ABORTS, "aborts_total", "rooms"),
    COUNTER(KVF_COUNT_ABORTS_LATE, "aborts_late_total", "aborts"),
    COUNTER(KVF_COUNT_PEER_ABORTS, "peer_aborts_total", "aborts"),
    COUNTER(KVF_COUNT_STALE_COMMANDS, "stale_commands_total", "commands"),
    COUNTER(KVF_COUNT_STALE_MESSAGES, "stale_messages_total", "frames"),
    COUNTER(KVF_COUNT_STALE_LANE_EVENTS, "stale_lane_events_total", "events"),
    COUNTER(KVF_COUNT_GRANTS_SENT, "grants_sent_total", "grants"),
    COUNTER(KVF_COUNT_GRANTS_ACCEPTED, "grants_accepted_total", "grants"),
    COUNTER(KVF_COUNT_GRANTS_DECLINED, "grants_declined_total", "grants"),
    COUNTER(KVF_COUNT_GRANTS_PARKED, "grants_parked_total", "grants"),
    COUNTER(KVF_COUNT_MARKERS_END, "markers_end_total", "markers"),
    COUNTER(KVF_COUNT_MARKERS_DRAIN, "markers_drain_total", "markers"),
    COUNTER(KVF_COUNT_FENCES, "fences_total", "fences"),
    PROOF(KVF_PROOF_NONE, "none"),
    PROOF(KVF_PROOF_NEVER_POSTED, "never_posted"),
    PROOF(KVF_PROOF_LANDED, "landed"),
    PROOF(KVF_PROOF_SOURCE_IDLE, "source_idle"),
    PROOF(KVF_PROOF_PEER_DRAINED, "peer_drained"),
    PROOF(KVF_PROOF_REVOKED, "revoked"),
    PROOF(KVF_PROOF_FENCED, "fenced"),
    PROOF(KVF_PROOF_WORKER_GONE, "worker_gone"),
    PROOF(KVF_PROOF_ENGINE_GONE, "engine_gone"),
    PROOF(KVF_PROOF_OPERATOR, "operator"),
    COUNTER(KVF_COUNT_BYTES_POSTED, "bytes_posted_total", "bytes"),
    COUNTER(KVF_COUNT_BYTES_PLACED, "bytes_placed_total", "bytes"),
    COUNTER(KVF_COUNT_BYTES_REFUSED, "bytes_refused_total", "bytes"),
    COUNTER(KVF_COUNT_POSTS, "posts_total", "posts"),
    COUNTER(KVF_COUNT_COMPLETIONS, "completions_total", "posts"),
    COUNTER(KVF_COUNT_PEERS_LOST, "peers_lost_total", "peers"),
    COUNTER(KVF_COUNT_PROTOCOL_ERRORS, "protocol_errors_total", "errors"),
    COUNTER(KVF_COUNT_GROUP_SENT, "group_messages_sent_total", "frames"),
    COUNTER(KVF_COUNT_GROUP_RECEIVED, "group_messages_received_total", "frames"),
    COUNTER(KVF_COUNT_GROUP_STALE, "group_messages_stale_total", "frames"),
    COUNTER(KVF_COUNT_GROUP_CLOSED, "rooms_closed_by_group_total", "rooms"),
    COUNTER(KVF_COUNT_ROOMS_ADOPTED, "rooms_adopted_total", "rooms"),
    COUNTER(KVF_COUNT_REGRANTS, "regrants_total", "grants"),
    COUNTER(KVF_COUNT_FLUSHES, "flush_reads_total", "flushes"),
    COUNTER(KVF_COUNT_FLUSHES_FAILED, "flush_reads_failed_total", "flushes"),

    GAUGE(KVF_GAUGE_ROOMS_OPEN, "rooms_open", "rooms"),
    GAUGE(KVF_GAUGE_ROOMS_CLOSING, "rooms_closing", "rooms"),
    GAUGE(KVF_GAUGE_ROOMS_FENCING, "rooms_fencing", "rooms"),
    GAUGE(KVF_GAUGE_ROOMS_QUARANTINED, "rooms_quarantined", "rooms"),
    GAUGE(KVF_GAUGE_PAGES_HELD, "pages_held", "pages"),
    GAUGE(KVF_GAUGE_PAGES_QUARANTINED, "pages_quarantined", "pages"),
    GAUGE(KVF_GAUGE_GRANTS_OUT, "grants_out", "grants"),
    GAUGE(KVF_GAUGE_GRANTS_IN, "grants_in", "grants"),
    GAUGE(KVF_GAUGE_PARKED, "parked", "grants"),
    GAUGE(KVF_GAUGE_PEERS_UP, "peers_up", "peers"),
    GAUGE(KVF_GAUGE_LANES_UP, "lanes_up", "lanes"),
    GAUGE(KVF_GAUGE_POSTED_BYTES, "posted_bytes", "bytes"),
    GAUGE(KVF_GAUGE_RUNS_USED, "runs_used", "runs"),
    GAUGE(KVF_GAUGE_GROUP_WAITING, "group_rooms_waiting", "rooms"),
    GAUGE(KVF_GAUGE_GROUP_WAITS_ID, "group_waits_id", "group"),
    GAUGE(KVF_GAUGE_GROUP_WAITS_RANK, "group_waits_rank", "rank"),
    GAUGE(KVF_GAUGE_GROUP_TOMBSTONES, "group_tombstones", "keys"),

    OWN(KVF_VALUE_BAD_CLIENT_BYTES, "bad_client_bytes_total", "clients", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_WORKER_STARTS, "worker_starts", "starts", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_CLIENTS, "clients", "clients", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_REGIONS, "regions", "regions", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_USUAL, "bound_usual_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_WORST, "bound_worst_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_DETECTION, "bound_detection_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_COOPERATIVE, "bound_cooperative_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_FENCE, "bound_fence_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_WATCHDOG, "bound_watchdog_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_KILL, "bound_kill_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_VISIBILITY, "bound_visibility_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_LANE_RATE, "lane_rate_bytes_per_s", "bytes/s", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_PLACEMENT, "placement", "1chk 2post", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_LOOP_COUNT, "loop_count", "turns", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_OFF_CPU_MAX, "off_cpu_max_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_CPU, "pinned_cpu_plus_1", "cpu", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_NUMA_BOUND, "numa_bound", "0 or 1", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_TCP_ENGINE, "tcp_engine", "1skt 2uring", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_TCP_CALLS, "tcp_calls_total", "calls", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_TCP_ENTERS, "tcp_system_calls_total", "calls", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_TRANSPORT, "transport", "1t 2vrb 4lo", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_LOCAL_BYTES, "local_bytes_total", "bytes", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_QUEUE_PAIRS_MADE, "queue_pairs_made_total", "pairs", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_QUEUE_PAIRS_DESTROYED, "queue_pairs_destroyed_total", "pairs",
        KVF_STATS_COUNTER),
    OWN(KVF_VALUE_WORK_POSTED, "work_requests_posted_total", "requests", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_WORK_REAPED, "work_requests_reaped_total", "requests", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_WORK_WRITTEN_OFF, "work_requests_written_off_total", "requests",
        KVF_STATS_COUNTER),
    OWN(KVF_VALUE_COMPLETIONS_STALE, "stale_completions_total", "events", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_DEVICE_EVENTS, "device_events_total", "events", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_DEVICE_FENCES_FAILED, "device_fences_failed_total", "fences",
        KVF_STATS_COUNTER),
    OWN(KVF_VALUE_MEMORY_REFUSED, "device_memory_refused_total", "regions", KVF_STATS_COUNTER),
    OWN(KVF_VALUE_MEMORY_WITHHELD, "device_memory_withheld_total", "regions",
        KVF_STATS_COUNTER),
    OWN(KVF_VALUE_MEMORY_ASKED_AGAIN, "device_memory_asked_again_total", "calls",
        KVF_STATS_COUNTER),
    OWN(KVF_VALUE_MEMORY_WITHHELD_NOW, "device_memory_withheld", "regions", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_RAILS_UP, "rails_up", "rails", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_VISIBILITY, "visibility_step", "0non 1read", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_FLUSH, "bound_flush_us", "us", KVF_STATS_GAUGE),
    OWN(KVF_VALUE_BOUND_NEXT_WORKER, "bound_next_worker_us", "us", KVF_STATS_GAUGE),

    HISTOGRAM(KVF_HISTOGRAM_ABORT_TO_DRAINED, "abort_to_drained_us"),
    HISTOGRAM(KVF_HISTOGRAM_OPEN_TO_SUCCESS, "open_to_success_us"),
    HISTOGRAM(KVF_HISTOGRAM_LOOP, "loop_us"),
};
_Static_assert(sizeof(defs) / sizeof(defs[0]) == KVF_VALUES + KVF_HISTOGRAMS,
               "every value and histogram has its name");

const struct kvf_stats_def *kvf_daemon_stats_defs(uint32_t *ret_count)
{
    *ret_count = KVF_VALUES + KVF_HISTOGRAMS;
    return defs;
}

static _Atomic uint64_t *value_at(const struct kvf_stats_shm *shm, uint32_t value)
{
    const unsigned char *values = (const unsigned char *)shm + shm->values_off;
    return (_Atomic uint64_t *)(uintptr_t)values + value;
}

uint64_t kvf_daemon_stats_get(const struct kvf_stats_shm *shm, uint32_t value)
{
    return atomic_load_explicit(value_at(shm, value), memory_order_relaxed);
}

void kvf_daemon_stats_add(struct kvf_stats_shm *shm, uint32_t value, uint64_t n)
{
    kvf_stats_set(shm, value, kvf_daemon_stats_get(shm, value) + n);
}

void kvf_daemon_stats_state(struct kvf_stats_shm *shm, enum kvf_stats_state state)
{
    /* T2 (release): a reader of this state also sees the odd sequence. */
    atomic_store_explicit(&shm->state, (uint32_t)state, memory_order_release);
}

void kvf_core_config_of(const struct kvf_config *config, uint64_t supervisor_id,
                        uint32_t worker_starts, struct kvf_core_config *ret_core)
{
    *ret_core = (struct kvf_core_config){
        .supervisor_id = supervisor_id & ~UINT64_C(0xffffff),
        .worker_starts = worker_starts,
        .transport = (uint8_t)config->transport,
        .placement = (uint8_t)config->placement,
        .lane_rooms = config->lane_rooms,
        .room_window_bytes = kvf_config_room_window(config),
        .lane_window_bytes = kvf_config_lane_window(config),
        .post_bytes_max = config->post_bytes,
        .stripe_bytes_min = config->stripe_bytes_min,
        .bootstrap_ns = config->bootstrap_ms * KVF_NS_PER_MS,
        .connect_ns = config->connect_ms * KVF_NS_PER_MS,
        .cooperative_ns = config->cooperative_ms * KVF_NS_PER_MS,
        .fence_ns = config->fence_ms * KVF_NS_PER_MS,
        .register_ns = KVF_REGISTER_MS * KVF_NS_PER_MS,
        .liveness_ns = config->liveness_ms * KVF_NS_PER_MS,
        .group_ask_ns = GROUP_ASK_NS,
        .regrants_max = REGRANTS_MAX,
        .is_self_copied = config->local != 0,
    };
    snprintf(ret_core->name, sizeof(ret_core->name), "%s", config->name);
}

uint64_t kvf_bound_usual_us(const struct kvf_config *config)
{
    struct kvf_core_config core;
    kvf_core_config_of(config, 0, 0, &core);
    return kvf_core_bound_usual_ns(&core) / KVF_NS_PER_US + KVF_VISIBILITY_MS * UINT64_C(1000);
}

uint64_t kvf_bound_worst_us(const struct kvf_config *config)
{
    return kvf_bound_usual_us(config) +
           (config->watchdog_ms + (uint64_t)config->kill_ms) * 1000u;
}

uint64_t kvf_bound_flush_us(const struct kvf_config *config)
{
    struct kvf_core_config core;
    kvf_core_config_of(config, 0, 0, &core);
    return kvf_config_moves_device_memory(config)
               ? kvf_core_bound_flush_ns(&core) / KVF_NS_PER_US
               : 0;
}

uint64_t kvf_bound_next_worker_us(const struct kvf_config *config)
{
    uint64_t here_ms = KVF_RESTART_DELAY_MAX_MS + KVF_WORKER_START_MS + KVF_REGISTER_MS;
    uint64_t flush_us = kvf_bound_flush_us(config);
    return flush_us == 0 ? 0 : here_ms * 1000u + flush_us;
}

void kvf_daemon_stats_config(struct kvf_stats_shm *shm, const struct kvf_config *config)
{
    uint64_t usual_us = kvf_bound_usual_us(config);
    uint64_t cooperative_us = config->cooperative_ms * UINT64_C(1000);
    uint64_t fence_us = config->fence_ms * UINT64_C(1000);
    uint64_t visibility_us = KVF_VISIBILITY_MS * UINT64_C(1000);
    kvf_stats_set(shm, KVF_VALUE_BOUND_USUAL, usual_us);
    kvf_stats_set(shm, KVF_VALUE_BOUND_WORST, kvf_bound_worst_us(config));
    kvf_stats_set(shm, KVF_VALUE_BOUND_DETECTION,
                  usual_us - cooperative_us - fence_us - visibility_us);
    kvf_stats_set(shm, KVF_VALUE_BOUND_COOPERATIVE, cooperative_us);
    kvf_stats_set(shm, KVF_VALUE_BOUND_FENCE, fence_us);
    kvf_stats_set(shm, KVF_VALUE_BOUND_WATCHDOG, config->watchdog_ms * UINT64_C(1000));
    kvf_stats_set(shm, KVF_VALUE_BOUND_KILL, config->kill_ms * UINT64_C(1000));
    kvf_stats_set(shm, KVF_VALUE_BOUND_VISIBILITY, visibility_us);
    kvf_stats_set(shm, KVF_VALUE_LANE_RATE, config->lane_rate_bytes);
    kvf_stats_set(shm, KVF_VALUE_PLACEMENT, config->placement);
    kvf_stats_set(shm, KVF_VALUE_TRANSPORT, config->transport);
    kvf_stats_set(shm, KVF_VALUE_VISIBILITY, kvf_config_moves_device_memory(config));
    kvf_stats_set(shm, KVF_VALUE_BOUND_FLUSH, kvf_bound_flush_us(config));
    kvf_stats_set(shm, KVF_VALUE_BOUND_NEXT_WORKER, kvf_bound_next_worker_us(config));
    kvf_stats_set_wire(shm, KVF_WIRE_VERSION_MAJOR, KVF_WIRE_VERSION_MINOR);
}

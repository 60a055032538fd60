#include "client/stat/metrics.h"

#include <stddef.h>
#include <string.h>

#define COUNTER(name, labels, help)                                                            \
    {                                                                                          \
        "kvfence_" name "_total", KVF_METRIC_COUNTER, KVF_FROM_VALUES, NULL, labels, help      \
    }
#define GAUGE(name, labels, help)                                                              \
    {                                                                                          \
        "kvfence_" name, KVF_METRIC_GAUGE, KVF_FROM_VALUES, NULL, labels, help                 \
    }
#define HISTOGRAM(name, stat, help)                                                            \
    {                                                                                          \
        "kvfence_" name, KVF_METRIC_HISTOGRAM, KVF_FROM_HISTOGRAM, stat, "", help              \
    }
#define MAXIMUM(name, stat, help)                                                              \
    {                                                                                          \
        "kvfence_" name, KVF_METRIC_GAUGE, KVF_FROM_MAXIMUM, stat, "", help                    \
    }
#define ROW(name, type, source, labels, help)                                                  \
    {                                                                                          \
        "kvfence_" name, KVF_METRIC_##type, KVF_FROM_##source, NULL, labels, help              \
    }

#define PEER "peer, direction"
#define LANE "peer, direction, lane"

static const struct kvf_metric_family families[] = {
    ROW("up", GAUGE, DAEMON, "",
        "1 while the daemon beats, 0 if it is stale or stopped. Of one that is down only this, "
        "its "
        "state and its last beat are shown."),
    ROW("daemon_state", GAUGE, DAEMON, "state",
        "1 for the state it is in: starting, running, stopping, stopped, stale."),
    ROW("last_beat_age_seconds", GAUGE, DAEMON, "",
        "Time since its worker's last turn; absent if that was before this boot."),
    ROW("health", GAUGE, DAEMON, "verdict",
        "1 for what kvfence-stat --health says: healthy, not_ready, quarantine, bound_broken, "
        "stuck, stale, no_daemon."),
    ROW("start_time_seconds", GAUGE, DAEMON, "",
        "When its supervisor started, since 1970; clocks are set, so it may change by a "
        "second."),
    ROW("build_info", GAUGE, DAEMON, "version, layout, stats_layout, wire",
        "Always 1; labels say what it is and which versions it speaks."),
    ROW("config_info", GAUGE, DAEMON, "transport, placement, tcp_engine, visibility",
        "Always 1; labels say how it was started."),
    ROW("stats_torn", GAUGE, DAEMON, "",
        "1 if its writer stopped inside an update: numbers may be of two moments."),

    GAUGE("rooms", "phase", "Rooms that are not drained, by phase."),
    COUNTER("rooms_opened", "", "Rooms opened by engines."),
    COUNTER("rooms_ended", "outcome", "Rooms that ended, by outcome."),
    COUNTER("rooms_refused", "", "Opens that ended with a refusal."),
    COUNTER("rooms_drained", "proof",
            "How rooms earned drained. operator and none are no proofs: an operator's word."),
    COUNTER("rooms_closed_by_group", "", "Rooms closed since another rank of their key ended."),
    COUNTER("rooms_adopted", "", "Rooms taken over undrained from an earlier worker."),
    COUNTER("aborts", "by", "Aborts, by our engines and by peers."),
    COUNTER("aborts_late", "", "Aborts of rooms that had ended already."),
    GAUGE("pages_held", "", "Pages of sink rooms that are not drained."),
    GAUGE("pages_quarantined", "", "Pages withheld for want of a proof."),
    ROW("quarantined_rooms", GAUGE, ROOMS, "reason",
        "Rooms in quarantine by the reason of their close, of the 64 that the stats file "
        "lists."),
    ROW("quarantine_oldest_age_seconds", GAUGE, ROOMS, "reason",
        "Time since the close of the oldest of them."),

    HISTOGRAM("abort_to_drained_seconds", "abort_to_drained_us",
              "From close to drained, of rooms that ended Failed."),
    MAXIMUM("abort_to_drained_max_seconds", "abort_to_drained_us",
            "The longest of them since the daemon's start."),
    GAUGE(
        "bound_usual_seconds", "",
        "What abort to drained may take with a peer dead or silent: detection + cooperative + "
        "fence + visibility."),
    GAUGE("bound_worst_seconds", "",
          "What it may take at most: the usual bound + watchdog + kill. Above it a promise was "
          "broken."),
    GAUGE("bound_term_seconds", "term",
          "The terms of both bounds; flush and next_worker come on top of them for memory of "
          "devices."),
    HISTOGRAM("open_to_success_seconds", "open_to_success_us",
              "From open to Success, of rooms that ended so."),
    MAXIMUM("open_to_success_max_seconds", "open_to_success_us",
            "The longest of them since the daemon's start."),
    HISTOGRAM("loop_turn_seconds", "loop_us", "One turn of the worker's loop that had work."),
    MAXIMUM("loop_turn_max_seconds", "loop_us",
            "The longest of them since the daemon's start."),
    COUNTER("loop_turns", "", "Turns of this worker's loop."),
    GAUGE("off_cpu_max_seconds", "",
          "The longest that the worker wanted to run and did not, since the daemon's start."),
    COUNTER("worker_starts", "", "Starts of a worker by this supervisor; the first is one."),
    GAUGE("worker_cpu", "", "The processor its worker is pinned to; -1: none."),
    GAUGE("worker_numa_bound", "", "1 if the worker's memory is bound to a node."),

    COUNTER("posted_bytes", "", "Bytes posted as source."),
    COUNTER("placed_bytes", "", "Bytes placed as sink."),
    COUNTER("refused_bytes", "", "Payload of closed grants that was thrown away."),
    COUNTER("local_bytes", "", "Bytes copied between engines of this daemon."),
    GAUGE("in_flight_bytes", "", "Bytes posted and not completed."),
    COUNTER("posts", "", "Posts given to a lane."),
    COUNTER("completions", "", "Posts completed, with any status."),
    GAUGE("lane_rate_bytes_per_second", "", "The pace of one lane; 0: unpaced."),
    COUNTER("tcp_calls", "", "Sends and receives."),
    COUNTER("tcp_system_calls", "", "System calls that made them."),

    COUNTER("grants_sent", "", "Permissions to write, sent as sink."),
    COUNTER("grants_answered", "answer", "Grants answered as source."),
    COUNTER("grants_parked", "", "Grants that had to wait for their source room to open."),
    COUNTER("regrants", "", "Grants given anew to open rooms whose lane was fenced."),
    GAUGE("grants", "direction", "Grants that are out as sink, in as source."),
    GAUGE("grants_waiting", "", "Grants that wait here for their source room to open."),
    COUNTER("markers", "kind", "Markers received: end, all is there; drain, it stops here."),
    COUNTER("fences", "", "Fences: a writer's access was ended by the sink alone."),
    GAUGE("page_runs", "", "Page runs kept for all lists together."),
    GAUGE("clients", "", "Engines attached."),
    GAUGE("regions", "", "Regions registered."),
    COUNTER("clients_dropped", "", "Engines dropped for what they wrote."),

    COUNTER("peers_lost", "", "Peers declared dead."),
    COUNTER("protocol_errors", "", "Bytes of a peer that the protocol does not allow."),
    COUNTER("stale", "what",
            "What named a room, lane or group that is gone: counted and dropped."),
    GAUGE("peers_up", "", "Connections to peers that are up."),
    GAUGE("lanes_up", "", "Lanes that are up."),
    COUNTER("group_messages", "direction",
            "Frames between ranks of a group; none while nothing fails."),
    GAUGE("group_rooms_waiting", "",
          "Rooms drained and not shown as failed: a rank has not settled."),
    GAUGE("group_tombstones", "", "Keys ended by other ranks and not opened here yet."),

    COUNTER("queue_pairs", "what", "Queue pairs made and destroyed."),
    COUNTER("work_requests", "what",
            "Work requests of queue pairs that were destroyed; posted = reaped + written_off."),
    COUNTER("device_events", "", "Asynchronous events of devices that ask for nothing."),
    COUNTER("device_fences_failed", "", "Devices that did not destroy a queue pair."),
    COUNTER("device_regions", "what",
            "Regions that a device did not register, or did not let go of when asked first, "
            "and how "
            "often it was asked again."),
    GAUGE("device_regions_withheld", "", "Regions that a device does not let go of yet."),
    GAUGE("rails_up", "", "Devices that work."),
    COUNTER("flush_reads", "", "Flushes of a region of a device's memory, for a room."),
    COUNTER("flush_reads_failed", "", "Those of them that failed."),

    ROW("peer_info", GAUGE, PEERS, PEER ", name, id",
        "Always 1; what a peer calls itself and the id of its supervisor."),
    ROW("peer_up", GAUGE, PEERS, PEER, "1 while the connection to this peer is up."),
    ROW("peer_held", GAUGE, PEERS, PEER, "1 while an operator has taken it down."),
    ROW("peer_grants", GAUGE, PEERS, PEER, "Grants of this peer that are not proven."),
    ROW("peer_grants_waiting", GAUGE, PEERS, PEER,
        "Grants that wait for credits of its lanes."),
    ROW("peer_lanes_up", GAUGE, PEERS, PEER, "Lanes of this peer that are up."),
    ROW("peer_dials_total", COUNTER, PEERS, PEER, "Connections that we made to it."),
    ROW("peer_heard_age_seconds", GAUGE, PEERS, PEER, "Time since its last sign of progress."),
    ROW("lane_up", GAUGE, LANES, LANE, "1 while the lane is up."),
    ROW("lane_opened_total", COUNTER, LANES, LANE,
        "How often the lane was opened; all but the first are retries."),
    ROW("lane_moved_bytes_total", COUNTER, LANES, LANE,
        "Bytes placed as sink, completed as source; absent where a device places them unseen."),
    ROW("lane_in_flight_bytes", GAUGE, LANES, LANE, "Bytes posted and not completed."),
    ROW("lane_window_bytes", GAUGE, LANES, LANE, "What in flight stays below."),
    ROW("lane_credits_used", GAUGE, LANES, LANE,
        "Grants that hold a receive of this lane, as sink."),
    ROW("lane_credits", GAUGE, LANES, LANE, "How many may."),
    ROW("rows_left_out", GAUGE, DAEMON, "", "Lanes that found no row in the stats file."),

    ROW("unknown", GAUGE, OTHERS, "stat, unit",
        "Values of a newer daemon that this version has no name for."),
    ROW("stats_unreadable", GAUGE, READER, "why",
        "1 for a daemon whose stats could not be read: layout, another major version; file, "
        "anything else."),
    ROW("stat_info", GAUGE, READER, "version", "Always 1; the version of kvfence-stat."),
};

#define US KVF_SCALE_US
#define ONE KVF_SCALE_ONE

static const struct kvf_metric_value values[] = {
    {"rooms_open", "kvfence_rooms", "phase=\"open\"", ONE},
    {"rooms_closing", "kvfence_rooms", "phase=\"closing\"", ONE},
    {"rooms_fencing", "kvfence_rooms", "phase=\"fencing\"", ONE},
    {"rooms_quarantined", "kvfence_rooms", "phase=\"quarantined\"", ONE},
    {"rooms_opened_total", "kvfence_rooms_opened_total", "", ONE},
    {"rooms_succeeded_total", "kvfence_rooms_ended_total", "outcome=\"success\"", ONE},
    {"rooms_failed_total", "kvfence_rooms_ended_total", "outcome=\"failed\"", ONE},
    {"rooms_refused_total", "kvfence_rooms_refused_total", "", ONE},
    {"rooms_closed_by_group_total", "kvfence_rooms_closed_by_group_total", "", ONE},
    {"rooms_adopted_total", "kvfence_rooms_adopted_total", "", ONE},
    {"proof_none_total", "kvfence_rooms_drained_total", "proof=\"none\"", ONE},
    {"proof_never_posted_total", "kvfence_rooms_drained_total", "proof=\"never_posted\"", ONE},
    {"proof_landed_total", "kvfence_rooms_drained_total", "proof=\"landed\"", ONE},
    {"proof_source_idle_total", "kvfence_rooms_drained_total", "proof=\"source_idle\"", ONE},
    {"proof_peer_drained_total", "kvfence_rooms_drained_total", "proof=\"peer_drained\"", ONE},
    {"proof_revoked_total", "kvfence_rooms_drained_total", "proof=\"revoked\"", ONE},
    {"proof_fenced_total", "kvfence_rooms_drained_total", "proof=\"fenced\"", ONE},
    {"proof_worker_gone_total", "kvfence_rooms_drained_total", "proof=\"worker_gone\"", ONE},
    {"proof_engine_gone_total", "kvfence_rooms_drained_total", "proof=\"engine_gone\"", ONE},
    {"proof_operator_total", "kvfence_rooms_drained_total", "proof=\"operator\"", ONE},
    {"aborts_total", "kvfence_aborts_total", "by=\"engine\"", ONE},
    {"peer_aborts_total", "kvfence_aborts_total", "by=\"peer\"", ONE},
    {"aborts_late_total", "kvfence_aborts_late_total", "", ONE},
    {"pages_held", "kvfence_pages_held", "", ONE},
    {"pages_quarantined", "kvfence_pages_quarantined", "", ONE},
    {"bound_usual_us", "kvfence_bound_usual_seconds", "", US},
    {"bound_worst_us", "kvfence_bound_worst_seconds", "", US},
    {"bound_detection_us", "kvfence_bound_term_seconds", "term=\"detection\"", US},
    {"bound_cooperative_us", "kvfence_bound_term_seconds", "term=\"cooperative\"", US},
    {"bound_fence_us", "kvfence_bound_term_seconds", "term=\"fence\"", US},
    {"bound_visibility_us", "kvfence_bound_term_seconds", "term=\"visibility\"", US},
    {"bound_watchdog_us", "kvfence_bound_term_seconds", "term=\"watchdog\"", US},
    {"bound_kill_us", "kvfence_bound_term_seconds", "term=\"kill\"", US},
    {"bound_flush_us", "kvfence_bound_term_seconds", "term=\"flush\"", US},
    {"bound_next_worker_us", "kvfence_bound_term_seconds", "term=\"next_worker\"", US},
    {"loop_count", "kvfence_loop_turns_total", "", ONE},
    {"off_cpu_max_us", "kvfence_off_cpu_max_seconds", "", US},
    {"worker_starts", "kvfence_worker_starts_total", "", ONE},
    {"pinned_cpu_plus_1", "kvfence_worker_cpu", "", KVF_SCALE_PLUS_ONE},
    {"numa_bound", "kvfence_worker_numa_bound", "", ONE},
    {"bytes_posted_total", "kvfence_posted_bytes_total", "", ONE},
    {"bytes_placed_total", "kvfence_placed_bytes_total", "", ONE},
    {"bytes_refused_total", "kvfence_refused_bytes_total", "", ONE},
    {"local_bytes_total", "kvfence_local_bytes_total", "", ONE},
    {"posted_bytes", "kvfence_in_flight_bytes", "", ONE},
    {"posts_total", "kvfence_posts_total", "", ONE},
    {"completions_total", "kvfence_completions_total", "", ONE},
    {"lane_rate_bytes_per_s", "kvfence_lane_rate_bytes_per_second", "", ONE},
    {"tcp_calls_total", "kvfence_tcp_calls_total", "", ONE},
    {"tcp_system_calls_total", "kvfence_tcp_system_calls_total", "", ONE},
    {"grants_sent_total", "kvfence_grants_sent_total", "", ONE},
    {"grants_accepted_total", "kvfence_grants_answered_total", "answer=\"accepted\"", ONE},
    {"grants_declined_total", "kvfence_grants_answered_total", "answer=\"declined\"", ONE},
    {"grants_parked_total", "kvfence_grants_parked_total", "", ONE},
    {"regrants_total", "kvfence_regrants_total", "", ONE},
    {"grants_out", "kvfence_grants", "direction=\"out\"", ONE},
    {"grants_in", "kvfence_grants", "direction=\"in\"", ONE},
    {"parked", "kvfence_grants_waiting", "", ONE},
    {"markers_end_total", "kvfence_markers_total", "kind=\"end\"", ONE},
    {"markers_drain_total", "kvfence_markers_total", "kind=\"drain\"", ONE},
    {"fences_total", "kvfence_fences_total", "", ONE},
    {"runs_used", "kvfence_page_runs", "", ONE},
    {"clients", "kvfence_clients", "", ONE},
    {"regions", "kvfence_regions", "", ONE},
    {"bad_client_bytes_total", "kvfence_clients_dropped_total", "", ONE},
    {"peers_lost_total", "kvfence_peers_lost_total", "", ONE},
    {"protocol_errors_total", "kvfence_protocol_errors_total", "", ONE},
    {"stale_commands_total", "kvfence_stale_total", "what=\"command\"", ONE},
    {"stale_messages_total", "kvfence_stale_total", "what=\"message\"", ONE},
    {"stale_lane_events_total", "kvfence_stale_total", "what=\"lane_event\"", ONE},
    {"stale_completions_total", "kvfence_stale_total", "what=\"completion\"", ONE},
    {"group_messages_stale_total", "kvfence_stale_total", "what=\"group_message\"", ONE},
    {"peers_up", "kvfence_peers_up", "", ONE},
    {"lanes_up", "kvfence_lanes_up", "", ONE},
    {"group_messages_sent_total", "kvfence_group_messages_total", "direction=\"sent\"", ONE},
    {"group_messages_received_total", "kvfence_group_messages_total", "direction=\"received\"",
     ONE},
    {"group_rooms_waiting", "kvfence_group_rooms_waiting", "", ONE},
    {"group_tombstones", "kvfence_group_tombstones", "", ONE},
    {"queue_pairs_made_total", "kvfence_queue_pairs_total", "what=\"made\"", ONE},
    {"queue_pairs_destroyed_total", "kvfence_queue_pairs_total", "what=\"destroyed\"", ONE},
    {"work_requests_posted_total", "kvfence_work_requests_total", "what=\"posted\"", ONE},
    {"work_requests_reaped_total", "kvfence_work_requests_total", "what=\"reaped\"", ONE},
    {"work_requests_written_off_total", "kvfence_work_requests_total", "what=\"written_off\"",
     ONE},
    {"device_events_total", "kvfence_device_events_total", "", ONE},
    {"device_fences_failed_total", "kvfence_device_fences_failed_total", "", ONE},
    {"device_memory_refused_total", "kvfence_device_regions_total", "what=\"refused\"", ONE},
    {"device_memory_withheld_total", "kvfence_device_regions_total", "what=\"withheld\"", ONE},
    {"device_memory_asked_again_total", "kvfence_device_regions_total", "what=\"asked_again\"",
     ONE},
    {"device_memory_withheld", "kvfence_device_regions_withheld", "", ONE},
    {"rails_up", "kvfence_rails_up", "", ONE},
    {"flush_reads_total", "kvfence_flush_reads_total", "", ONE},
    {"flush_reads_failed_total", "kvfence_flush_reads_failed_total", "", ONE},
    {"transport", NULL, "", ONE},
    {"placement", NULL, "", ONE},
    {"tcp_engine", NULL, "", ONE},
    {"visibility_step", NULL, "", ONE},
    {"group_waits_id", NULL, "", ONE}, /* names, not amounts: kvfence-stat shows them */
    {"group_waits_rank", NULL, "", ONE},
};

const struct kvf_metric_family *kvf_metric_families(uint32_t *ret_count)
{
    *ret_count = sizeof families / sizeof families[0];
    return families;
}

const struct kvf_metric_value *kvf_metric_values(uint32_t *ret_count)
{
    *ret_count = sizeof values / sizeof values[0];
    return values;
}

const struct kvf_metric_value *kvf_metric_find(const char *stat)
{
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (strcmp(values[i].stat, stat) == 0) {
            return &values[i];
        }
    }
    return NULL;
}

void kvf_metric_print_table(FILE *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};

    fputs("| metric | type | labels | meaning |\n|---|---|---|---|\n", out);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const struct kvf_metric_family *f = &families[i];
        fprintf(out, "| `%s` | %s | %s | %s |\n", f->name, types[f->type], f->labels, f->help);
    }
}

/* Families outside, daemons inside: the format wants all samples of a family in one group. */
#include "client/stat/prometheus.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "client/stat/health.h"
#include "client/stat/metrics.h"
#include "client/stat/rows.h"

#define NS_PER_S UINT64_C(1000000000)

struct family_out {
    FILE *out;
    const struct kvf_metric_family *family;
    bool has_head;
};

/* Text in labels is printable ASCII already. */
static void print_escaped(FILE *out, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\n') {
            fputs("\\n", out);
            continue;
        }
        if (*c == '"' || *c == '\\') {
            fputc('\\', out);
        }
        fputc(*c, out);
    }
}

static void print_head(struct family_out *f)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};

    if (!f->has_head) {
        fprintf(f->out, "# HELP %s %s\n# TYPE %s %s\n", f->family->name, f->family->help,
                f->family->name, types[f->family->type]);
        f->has_head = true;
    }
}

/* name[suffix]{daemon="...",LABELS} and a space. `labels` are whole: name="escaped". */
static void print_name(struct family_out *f, const char *suffix, const char *daemon,
                       const char *labels)
{
    print_head(f);
    fprintf(f->out, "%s%s{", f->family->name, suffix);
    if (daemon != NULL) {
        fputs("daemon=\"", f->out);
        print_escaped(f->out, daemon);
        fputc('"', f->out);
    }
    fprintf(f->out, "%s%s} ", daemon != NULL && labels[0] != '\0' ? "," : "", labels);
}

static void print_count(struct family_out *f, const char *daemon, const char *labels,
                        uint64_t value)
{
    print_name(f, "", daemon, labels);
    fprintf(f->out, "%" PRIu64 "\n", value);
}

/* Microseconds as seconds, exactly, and without the zeros at the end. */
static const char *seconds_of(char *text, size_t bytes, uint64_t us)
{
    int n = snprintf(text, bytes, "%" PRIu64 ".%06" PRIu64, us / 1000000u, us % 1000000u);

    while (n > 0 && text[n - 1] == '0') {
        text[--n] = '\0';
    }
    if (n > 0 && text[n - 1] == '.') {
        text[n - 1] = '\0';
    }
    return text;
}

static void print_seconds(struct family_out *f, const char *daemon, const char *labels,
                          uint64_t us)
{
    char text[48];

    print_name(f, "", daemon, labels);
    fprintf(f->out, "%s\n", seconds_of(text, sizeof text, us));
}

/* A label pair appended to a text that has room for it: values come from a file or a peer. */
static void add_label(char *labels, size_t bytes, const char *name, const char *value)
{
    size_t used = strlen(labels);
    int n = snprintf(labels + used, bytes - used, "%s%s=\"", used != 0 ? "," : "", name);

    used += n > 0 ? (size_t)n : 0;
    for (const char *c = value; *c != '\0' && used + 4u < bytes; c++) {
        if (*c == '"' || *c == '\\') {
            labels[used++] = '\\';
        }
        labels[used++] = *c;
    }
    labels[used++] = '"';
    labels[used] = '\0';
}

static bool is_up(const struct kvf_stat_daemon *daemon)
{
    return daemon->health != KVF_STAT_STALE && daemon->health != KVF_STAT_STOPPED;
}

/* ---- values of the file ---------------------------------------------------------------------------- */

static void print_values(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    uint32_t count = 0;
    const struct kvf_metric_value *values = kvf_metric_values(&count);

    for (uint32_t i = 0; i < count; i++) {
        const struct kvf_metric_value *v = &values[i];
        if (v->family == NULL || strcmp(v->family, f->family->name) != 0) {
            continue;
        }
        for (uint32_t k = 0; k < daemon->entry_count; k++) {
            const struct kvf_stat_entry *entry = &daemon->entries[k];
            if (entry->kind == KVF_STATS_HISTOGRAM || strcmp(entry->name, v->stat) != 0) {
                continue;
            }
            if (v->scale == KVF_SCALE_US) {
                print_seconds(f, daemon->name, v->label, entry->value);
            } else if (v->scale == KVF_SCALE_PLUS_ONE && entry->value == 0) {
                print_name(f, "", daemon->name, v->label);
                fputs("-1\n", f->out);
            } else {
                print_count(f, daemon->name, v->label,
                            entry->value - (v->scale == KVF_SCALE_PLUS_ONE ? 1u : 0u));
            }
        }
    }
}

static void print_others(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        const struct kvf_stat_entry *entry = &daemon->entries[i];
        char labels[256] = "";
        if (entry->kind == KVF_STATS_HISTOGRAM || kvf_metric_find(entry->name) != NULL) {
            continue;
        }
        add_label(labels, sizeof labels, "stat", entry->name);
        add_label(labels, sizeof labels, "unit", entry->unit);
        print_count(f, daemon->name, labels, entry->value);
    }
}

/* Two steps to a power of two, from 1 us to 33 s: each is an edge of the file's own buckets, which count whole
 * microseconds, so that "below this edge" is exact. */
#define EDGE_LAST (UINT64_C(1) << 25)

static uint64_t next_edge(uint64_t us)
{
    bool is_power = (us & (us - 1u)) == 0;
    if (us < 2) {
        return us + 1u;
    }
    return is_power ? us + us / 2u : us / 3u * 4u;
}

static void print_histogram(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    const struct kvf_histogram_shm *h = kvf_stat_histogram(daemon, f->family->stat);
    char text[48];
    char labels[64];
    uint64_t seen = 0;
    uint32_t bucket = 0;

    if (h == NULL) {
        return;
    }
    for (uint64_t edge = 1; edge <= EDGE_LAST; edge = next_edge(edge)) {
        for (; bucket < kvf_histogram_bucket(edge); bucket++) {
            seen += atomic_load_explicit(&h->buckets[bucket], memory_order_relaxed);
        }
        (void)snprintf(labels, sizeof labels, "le=\"%s\"", seconds_of(text, sizeof text, edge));
        print_name(f, "_bucket", daemon->name, labels);
        fprintf(f->out, "%" PRIu64 "\n", seen);
    }
    for (; bucket < KVF_HISTOGRAM_BUCKETS; bucket++) {
        seen += atomic_load_explicit(&h->buckets[bucket], memory_order_relaxed);
    }
    print_name(f, "_bucket", daemon->name, "le=\"+Inf\"");
    fprintf(f->out, "%" PRIu64 "\n", seen);
    print_name(f, "_sum", daemon->name, "");
    fprintf(f->out, "%s\n",
            seconds_of(text, sizeof text, atomic_load_explicit(&h->sum, memory_order_relaxed)));
    /* The buckets' own sum: of a torn file the count may be of another moment. */
    print_name(f, "_count", daemon->name, "");
    fprintf(f->out, "%" PRIu64 "\n", seen);
}

static void print_maximum(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    const struct kvf_histogram_shm *h = kvf_stat_histogram(daemon, f->family->stat);

    if (h != NULL) {
        print_seconds(f, daemon->name, "", atomic_load_explicit(&h->max, memory_order_relaxed));
    }
}

/* ---- what is known of every daemon ----------------------------------------------------------------- */

static bool is_family(const struct family_out *f, const char *name)
{
    return strcmp(f->family->name, name) == 0;
}

static const char *word_of(const struct kvf_stat_daemon *daemon, const char *stat,
                           const char *const *words, uint64_t count)
{
    uint64_t value = kvf_stat_value(daemon, stat);
    return value < count && words[value] != NULL ? words[value] : "unknown";
}

static void print_build(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    char labels[512] = "";
    char text[32];

    add_label(labels, sizeof labels, "version", daemon->version);
    (void)snprintf(text, sizeof text, "%u.%u", daemon->layout_major, daemon->layout_minor);
    add_label(labels, sizeof labels, "layout", text);
    (void)snprintf(text, sizeof text, "%u.%u", KVF_STATS_MAJOR, daemon->stats_minor);
    add_label(labels, sizeof labels, "stats_layout", text);
    (void)snprintf(text, sizeof text, "%u.%u", daemon->wire_major, daemon->wire_minor);
    add_label(labels, sizeof labels, "wire", text);
    print_count(f, daemon->name, labels, 1);
}

static void print_config(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    static const char *const transports[] = {[1] = "tcp", [2] = "verbs", [4] = "local"};
    static const char *const placements[] = {[1] = "checked", [2] = "posted"};
    static const char *const engines[] = {[0] = "none", [1] = "sockets", [2] = "io_uring"};
    static const char *const steps[] = {"none", "flush_read"};
    char labels[256] = "";

    add_label(labels, sizeof labels, "transport", word_of(daemon, "transport", transports, 5));
    add_label(labels, sizeof labels, "placement", word_of(daemon, "placement", placements, 3));
    add_label(labels, sizeof labels, "tcp_engine", word_of(daemon, "tcp_engine", engines, 3));
    add_label(labels, sizeof labels, "visibility",
              word_of(daemon, "visibility_step", steps, 2));
    print_count(f, daemon->name, labels, 1);
}

static void print_state(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    char labels[64];

    for (int state = KVF_STAT_STARTING; state <= KVF_STAT_STALE; state++) {
        (void)snprintf(labels, sizeof labels, "state=\"%s\"",
                       kvf_stat_health_name((enum kvf_stat_health)state));
        print_count(f, daemon->name, labels, (int)daemon->health == state);
    }
}

static void print_health(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    static const enum kvf_stat_verdict verdicts[] = {
        KVF_STAT_HEALTHY, KVF_STAT_NOT_READY, KVF_STAT_QUARANTINE, KVF_STAT_BOUND_BROKEN,
        KVF_STAT_STUCK,   KVF_STAT_IS_STALE,  KVF_STAT_NO_DAEMON,
    };
    char sentence[KVF_STAT_SENTENCE_BYTES];
    char labels[64];
    enum kvf_stat_verdict verdict = kvf_stat_health_of(daemon, false, sentence);

    for (size_t i = 0; i < sizeof verdicts / sizeof verdicts[0]; i++) {
        (void)snprintf(labels, sizeof labels, "verdict=\"%s\"",
                       kvf_stat_verdict_name(verdicts[i]));
        print_count(f, daemon->name, labels, verdicts[i] == verdict);
    }
}

static void print_start_time(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    struct timespec unix_now;

    (void)clock_gettime(CLOCK_REALTIME, &unix_now);
    uint64_t unix_ns = (uint64_t)unix_now.tv_sec * NS_PER_S + (uint64_t)unix_now.tv_nsec;
    uint64_t up_ns = daemon->read_ns - daemon->started_ns;
    if (daemon->started_ns != 0 && daemon->started_ns <= daemon->read_ns && up_ns <= unix_ns) {
        print_count(f, daemon->name, "", (unix_ns - up_ns + NS_PER_S / 2u) / NS_PER_S);
    }
}

static void print_daemon(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    if (is_family(f, "kvfence_up")) {
        print_count(f, daemon->name, "", is_up(daemon));
    } else if (is_family(f, "kvfence_daemon_state")) {
        print_state(f, daemon);
    } else if (is_family(f, "kvfence_health")) {
        print_health(f, daemon);
    } else if (is_family(f, "kvfence_last_beat_age_seconds")) {
        if (daemon->has_silence) {
            print_seconds(f, daemon->name, "", daemon->silent_ns / 1000u);
        }
    } else if (!is_up(daemon)) {
        return;
    } else if (is_family(f, "kvfence_start_time_seconds")) {
        print_start_time(f, daemon);
    } else if (is_family(f, "kvfence_build_info")) {
        print_build(f, daemon);
    } else if (is_family(f, "kvfence_config_info")) {
        print_config(f, daemon);
    } else if (is_family(f, "kvfence_stats_torn")) {
        print_count(f, daemon->name, "", daemon->is_torn);
    } else if (is_family(f, "kvfence_rows_left_out") && daemon->rows != NULL) {
        print_count(f, daemon->name, "", daemon->rows->left_out);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static void label_peer(char *labels, size_t bytes, const struct kvf_stats_peer_shm *peer)
{
    char text[KVF_ROW_PEER_BYTES];

    add_label(labels, bytes, "peer", kvf_row_peer(peer, text));
    add_label(labels, bytes, "direction", kvf_row_direction(peer));
}

static void print_peer(struct family_out *f, const struct kvf_stat_daemon *daemon,
                       const struct kvf_stats_peer_shm *peer)
{
    char labels[512] = "";
    char text[sizeof peer->name + 1u];

    label_peer(labels, sizeof labels, peer);
    if (is_family(f, "kvfence_peer_info")) {
        kvf_stat_printable(peer->name, sizeof peer->name, text);
        add_label(labels, sizeof labels, "name", text);
        (void)snprintf(text, sizeof text, "%016" PRIx64, peer->peer_id);
        add_label(labels, sizeof labels, "id", peer->peer_id != 0 ? text : "");
        print_count(f, daemon->name, labels, 1);
    } else if (is_family(f, "kvfence_peer_up")) {
        print_count(f, daemon->name, labels, kvf_row_is_peer_up(peer));
    } else if (is_family(f, "kvfence_peer_held")) {
        print_count(f, daemon->name, labels, peer->is_down != 0);
    } else if (is_family(f, "kvfence_peer_grants")) {
        print_count(f, daemon->name, labels, peer->grants);
    } else if (is_family(f, "kvfence_peer_grants_waiting")) {
        print_count(f, daemon->name, labels, peer->waiting);
    } else if (is_family(f, "kvfence_peer_lanes_up")) {
        print_count(f, daemon->name, labels, peer->lanes_up);
    } else if (is_family(f, "kvfence_peer_dials_total")) {
        print_count(f, daemon->name, labels, peer->dials);
    } else if (peer->heard_ns != 0 && peer->heard_ns <= daemon->read_ns) {
        print_seconds(f, daemon->name, labels, (daemon->read_ns - peer->heard_ns) / 1000u);
    }
}

static void print_peers(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    for (uint64_t i = 0; daemon->rows != NULL && i < daemon->rows->peer_count; i++) {
        if (kvf_row_is_first_of_peer(daemon->rows, i)) {
            print_peer(f, daemon, &daemon->rows->peers[i]);
        }
    }
}

static void print_lane(struct family_out *f, const struct kvf_stat_daemon *daemon,
                       const struct kvf_stats_lane_shm *lane,
                       const struct kvf_stats_peer_shm *peer)
{
    char labels[512] = "";
    char text[16];

    label_peer(labels, sizeof labels, peer);
    (void)snprintf(text, sizeof text, "%" PRIu32, lane->lane);
    add_label(labels, sizeof labels, "lane", text);
    if (is_family(f, "kvfence_lane_up")) {
        print_count(f, daemon->name, labels, lane->state == KVF_STATS_LANE_UP);
    } else if (is_family(f, "kvfence_lane_opened_total")) {
        print_count(f, daemon->name, labels, lane->opened);
    } else if (is_family(f, "kvfence_lane_moved_bytes_total")) {
        if (kvf_row_is_moved_known(lane, peer)) {
            print_count(f, daemon->name, labels, lane->moved_bytes);
        }
    } else if (is_family(f, "kvfence_lane_in_flight_bytes")) {
        print_count(f, daemon->name, labels, lane->posted_bytes);
    } else if (is_family(f, "kvfence_lane_window_bytes")) {
        print_count(f, daemon->name, labels, lane->window_bytes);
    } else if (is_family(f, "kvfence_lane_credits_used")) {
        print_count(f, daemon->name, labels, lane->credits_out);
    } else if (is_family(f, "kvfence_lane_credits")) {
        print_count(f, daemon->name, labels, lane->credits_max);
    }
}

static void print_lanes(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    const struct kvf_stats_rows_shm *rows = daemon->rows;

    for (uint64_t i = 0; rows != NULL && i < rows->lane_count; i++) {
        const struct kvf_stats_lane_shm *lane = &rows->lanes[i];
        if (lane->peer < rows->peer_count && kvf_row_is_first_of_peer(rows, lane->peer) &&
            kvf_row_is_first_of_lane(rows, i)) {
            print_lane(f, daemon, lane, &rows->peers[lane->peer]);
        }
    }
}

/* Rooms of one reason together: a label per room would be a series per room. */
static void print_rooms(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    const struct kvf_stats_rows_shm *rows = daemon->rows;

    for (uint64_t i = 0; rows != NULL && i < rows->room_count; i++) {
        const struct kvf_stats_room_shm *room = &rows->rooms[i];
        uint64_t count = 0;
        uint64_t oldest_ns = room->closed_ns;
        bool is_first = true;
        for (uint64_t k = 0; k < rows->room_count; k++) {
            if (rows->rooms[k].reason == room->reason) {
                is_first = is_first && k >= i;
                count++;
                oldest_ns =
                    rows->rooms[k].closed_ns < oldest_ns ? rows->rooms[k].closed_ns : oldest_ns;
            }
        }
        if (!is_first) {
            continue;
        }
        char labels[128] = "";
        char reason[KVF_ROW_REASON_BYTES];
        add_label(labels, sizeof labels, "reason", kvf_row_reason(room->reason, reason));
        if (is_family(f, "kvfence_quarantined_rooms")) {
            print_count(f, daemon->name, labels, count);
        } else if (oldest_ns <= daemon->read_ns) {
            print_seconds(f, daemon->name, labels, (daemon->read_ns - oldest_ns) / 1000u);
        }
    }
}

static void print_reader(struct family_out *f, const struct kvf_stat_look *look)
{
    if (is_family(f, "kvfence_stat_info")) {
        print_count(f, NULL, "version=\"" KVF_VERSION "\"", 1);
        return;
    }
    for (uint32_t i = 0; i < look->problem_count; i++) {
        const struct kvf_stat_problem *problem = &look->problems[i];
        if (problem->code == -ENOENT) {
            continue; /* nothing is there, and so nothing is unreadable */
        }
        print_count(f, problem->name,
                    problem->code == -ENOTSUP ? "why=\"layout\"" : "why=\"file\"", 1);
    }
}

/* ---- all --------------------------------------------------------------------------------------------- */

static void print_family(struct family_out *f, const struct kvf_stat_daemon *daemon)
{
    switch (f->family->source) {
    case KVF_FROM_VALUES:
        print_values(f, daemon);
        break;
    case KVF_FROM_HISTOGRAM:
        print_histogram(f, daemon);
        break;
    case KVF_FROM_MAXIMUM:
        print_maximum(f, daemon);
        break;
    case KVF_FROM_OTHERS:
        print_others(f, daemon);
        break;
    case KVF_FROM_DAEMON:
        print_daemon(f, daemon);
        break;
    case KVF_FROM_PEERS:
        print_peers(f, daemon);
        break;
    case KVF_FROM_LANES:
        print_lanes(f, daemon);
        break;
    case KVF_FROM_ROOMS:
        print_rooms(f, daemon);
        break;
    case KVF_FROM_READER:
        break; /* once, and not per daemon */
    }
}

/* A stats file that was copied says the name of its first owner: one name, one set of series. */
static bool is_shown_before(const struct kvf_stat_look *look, uint32_t idx)
{
    for (uint32_t i = 0; i < idx; i++) {
        if (strcmp(look->daemons[i]->name, look->daemons[idx]->name) == 0) {
            return true;
        }
    }
    return false;
}

void kvf_prometheus_print(FILE *out, const struct kvf_stat_look *look)
{
    uint32_t count = 0;
    const struct kvf_metric_family *families = kvf_metric_families(&count);

    for (uint32_t i = 0; i < count; i++) {
        struct family_out f = {.out = out, .family = &families[i]};
        if (f.family->source == KVF_FROM_READER) {
            print_reader(&f, look);
        }
        for (uint32_t k = 0; k < look->daemon_count; k++) {
            const struct kvf_stat_daemon *daemon = look->daemons[k];
            if (!is_shown_before(look, k) &&
                (is_up(daemon) || f.family->source == KVF_FROM_DAEMON)) {
                print_family(&f, daemon);
            }
        }
    }
}

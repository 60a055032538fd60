#include "client/stat/json.h"

#include <inttypes.h>

#include "client/stat/collect.h"
#include "client/stat/health.h"
#include "client/stat/rows.h"

void kvf_json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c != 0; c++) {
        if (*c == '"' || *c == '\\') {
            fputc('\\', out);
            fputc(*c, out);
        } else if (*c < 0x20 || *c >= 0x7f) {
            fprintf(out, "\\u%04x", (unsigned)*c);
        } else {
            fputc(*c, out);
        }
    }
    fputc('"', out);
}

static void print_values(FILE *out, const struct kvf_stat_daemon *daemon,
                         enum kvf_stats_kind kind)
{
    const char *comma = "";

    fputc('{', out);
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        const struct kvf_stat_entry *entry = &daemon->entries[i];
        if (entry->kind == kind) {
            fprintf(out, "%s\n        ", comma);
            kvf_json_string(out, entry->name);
            fprintf(out, ": %" PRIu64, entry->value);
            comma = ",";
        }
    }
    fputs(*comma != '\0' ? "\n      }" : "}", out);
}

static void print_histograms(FILE *out, const struct kvf_stat_daemon *daemon)
{
    const char *comma = "";

    fputc('{', out);
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        const struct kvf_stat_entry *entry = &daemon->entries[i];
        const struct kvf_histogram_shm *h = entry->histogram;
        if (entry->kind == KVF_STATS_HISTOGRAM) {
            fprintf(out, "%s\n        ", comma);
            kvf_json_string(out, entry->name);
            fprintf(out,
                    ": {\"count\": %" PRIu64 ", \"sum\": %" PRIu64 ", \"p50\": %" PRIu64
                    ", \"p99\": %" PRIu64 ", \"p999\": %" PRIu64 ", \"max\": %" PRIu64 "}",
                    atomic_load_explicit(&h->count, memory_order_relaxed),
                    atomic_load_explicit(&h->sum, memory_order_relaxed),
                    kvf_histogram_quantile(h, 500), kvf_histogram_quantile(h, 990),
                    kvf_histogram_quantile(h, 999),
                    atomic_load_explicit(&h->max, memory_order_relaxed));
            comma = ",";
        }
    }
    fputs(*comma != '\0' ? "\n      }" : "}", out);
}

static double age_s(const struct kvf_stat_daemon *daemon, uint64_t since_ns)
{
    return since_ns <= daemon->read_ns ? (double)(daemon->read_ns - since_ns) / 1e9 : 0.0;
}

static void print_peers(FILE *out, const struct kvf_stat_daemon *daemon)
{
    char text[KVF_ROW_PEER_BYTES];
    char name[sizeof daemon->rows->peers[0].name + 1u];
    uint64_t count = daemon->rows != NULL ? daemon->rows->peer_count : 0;

    fputc('[', out);
    for (uint64_t i = 0; i < count; i++) {
        const struct kvf_stats_peer_shm *p = &daemon->rows->peers[i];
        fputs(i > 0 ? ",\n        " : "\n        ", out);
        kvf_stat_printable(p->name, sizeof p->name, name);
        fprintf(out,
                "{\"peer\": \"%s\", \"direction\": \"%s\", \"name\": ", kvf_row_peer(p, text),
                kvf_row_direction(p));
        kvf_json_string(out, name);
        fprintf(out,
                ", \"id\": \"%016" PRIx64 "\", \"worker_starts\": %" PRIu32
                ", \"state\": \"%s\", \"is_down\": %s, \"grants\": %" PRIu32
                ", \"grants_waiting\": %" PRIu32 ", \"lanes_up\": %" PRIu32
                ", \"dials\": %" PRIu32 ", \"heard_age_s\": ",
                p->peer_id, p->worker_starts, kvf_row_peer_state(p),
                p->is_down != 0 ? "true" : "false", p->grants, p->waiting, p->lanes_up,
                p->dials);
        if (p->heard_ns != 0) {
            fprintf(out, "%.3f}", age_s(daemon, p->heard_ns));
        } else {
            fputs("null}", out);
        }
    }
    fputs(count > 0 ? "\n      ]" : "]", out);
}

static void print_lanes(FILE *out, const struct kvf_stat_daemon *daemon)
{
    uint64_t count = daemon->rows != NULL ? daemon->rows->lane_count : 0;
    const char *comma = "";

    fputc('[', out);
    for (uint64_t i = 0; i < count; i++) {
        const struct kvf_stats_lane_shm *l = &daemon->rows->lanes[i];
        char text[KVF_ROW_PEER_BYTES];
        if (l->peer >= daemon->rows->peer_count) {
            continue; /* a row of nobody */
        }
        const struct kvf_stats_peer_shm *p = &daemon->rows->peers[l->peer];
        fprintf(out,
                "%s\n        {\"peer\": \"%s\", \"direction\": \"%s\", \"lane\": %" PRIu32
                ", \"state\": \"%s\", \"opened\": %" PRIu32 ", \"moved_bytes\": ",
                comma, kvf_row_peer(p, text), kvf_row_direction(p), l->lane,
                kvf_row_lane_state(l), l->opened);
        if (kvf_row_is_moved_known(l, p)) {
            fprintf(out, "%" PRIu64, l->moved_bytes);
        } else {
            fputs("null", out);
        }
        fprintf(out,
                ", \"in_flight_bytes\": %" PRIu64 ", \"window_bytes\": %" PRIu64
                ", \"credits_used\": %" PRIu32 ", \"credits\": %" PRIu32 "}",
                l->posted_bytes, l->window_bytes, l->credits_out, l->credits_max);
        comma = ",";
    }
    fputs(comma[0] != '\0' ? "\n      ]" : "]", out);
}

static void print_quarantine(FILE *out, const struct kvf_stat_daemon *daemon)
{
    static const char *const sides[] = {"source", "sink", "unknown"};
    char reason[KVF_ROW_REASON_BYTES];
    uint64_t count = daemon->rows != NULL ? daemon->rows->room_count : 0;

    fputc('[', out);
    for (uint64_t i = 0; i < count; i++) {
        const struct kvf_stats_room_shm *r = &daemon->rows->rooms[i];
        fprintf(out,
                "%s\n        {\"client\": %" PRIu32 ", \"slot\": %" PRIu32
                ", \"generation\": %" PRIu64 ", \"label\": \"%" PRIu64 "\", \"key\": \"%" PRIu64
                "\", \"side\": \"%s\", \"pages\": %" PRIu64
                ", \"age_s\": %.3f, \"reason\": \"%s\", \"is_engine_gone\": %s}",
                i > 0 ? "," : "", r->client, r->slot, r->generation, r->label, r->key,
                r->side < 3u ? sides[r->side] : "unknown", r->pages,
                age_s(daemon, r->closed_ns), kvf_row_reason(r->reason, reason),
                r->is_engine_gone != 0 ? "true" : "false");
    }
    fputs(count > 0 ? "\n      ]" : "]", out);
}

static void print_verdict(FILE *out, const struct kvf_stat_daemon *daemon)
{
    char sentence[KVF_STAT_SENTENCE_BYTES];
    enum kvf_stat_verdict verdict = kvf_stat_health_of(daemon, false, sentence);

    fprintf(out, ",\n      \"health\": {\"verdict\": \"%s\", \"code\": %d, \"sentence\": ",
            kvf_stat_verdict_name(verdict), (int)verdict);
    kvf_json_string(out, sentence);
    fputc('}', out);
}

static void print_daemon(FILE *out, const struct kvf_stat_daemon *daemon)
{
    fputs("    {\n      \"name\": ", out);
    kvf_json_string(out, daemon->name);
    fprintf(out, ",\n      \"state\": \"%s\"", kvf_stat_health_name(daemon->health));
    if (daemon->has_silence) {
        fprintf(out, ",\n      \"last_beat_s\": %.3f", (double)daemon->silent_ns / 1e9);
    } else {
        fputs(",\n      \"last_beat_s\": null", out);
    }
    fprintf(out, ",\n      \"torn\": %s", daemon->is_torn ? "true" : "false");
    fputs(",\n      \"version\": ", out);
    kvf_json_string(out, daemon->version);
    /* 64 random bits do not survive a reader whose numbers are doubles. */
    fprintf(out, ",\n      \"worker_epoch\": \"%" PRIu64 "\"", daemon->worker_epoch);
    fprintf(out, ",\n      \"worker_pid\": %" PRIu32, daemon->worker_pid);
    fprintf(out, ",\n      \"up_s\": %.3f", (double)daemon->up_ns / 1e9);
    fprintf(out,
            ",\n      \"layout\": \"%u.%u\",\n      \"stats_layout\": \"%u.%u\",\n"
            "      \"wire\": \"%u.%u\"",
            daemon->layout_major, daemon->layout_minor, KVF_STATS_MAJOR, daemon->stats_minor,
            daemon->wire_major, daemon->wire_minor);
    print_verdict(out, daemon);
    fputs(",\n      \"counters\": ", out);
    print_values(out, daemon, KVF_STATS_COUNTER);
    fputs(",\n      \"gauges\": ", out);
    print_values(out, daemon, KVF_STATS_GAUGE);
    fputs(",\n      \"histograms\": ", out);
    print_histograms(out, daemon);
    fputs(",\n      \"peers\": ", out);
    print_peers(out, daemon);
    fputs(",\n      \"lanes\": ", out);
    print_lanes(out, daemon);
    fputs(",\n      \"quarantine\": ", out);
    print_quarantine(out, daemon);
    fputs("\n    }", out);
}

void kvf_stat_print_json(FILE *out, struct kvf_stat_daemon *const *daemons,
                         uint32_t daemon_count, const struct kvf_stat_problem *problems,
                         uint32_t problem_count)
{
    fputs("{\n  \"schema\": 1,\n  \"daemons\": [", out);
    for (uint32_t i = 0; i < daemon_count; i++) {
        fputs(i == 0 ? "\n" : ",\n", out);
        print_daemon(out, daemons[i]);
    }
    fputs(daemon_count > 0 ? "\n  ],\n  \"errors\": [" : "],\n  \"errors\": [", out);
    for (uint32_t i = 0; i < problem_count; i++) {
        fputs(i == 0 ? "\n    {\"name\": " : ",\n    {\"name\": ", out);
        kvf_json_string(out, problems[i].name);
        fputs(", \"error\": ", out);
        kvf_json_string(out, problems[i].why);
        fputc('}', out);
    }
    fputs(problem_count > 0 ? "\n  ]\n}\n" : "]\n}\n", out);
}

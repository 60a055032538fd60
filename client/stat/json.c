#include "client/stat/json.h"

#include <inttypes.h>

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
    fputs(",\n      \"counters\": ", out);
    print_values(out, daemon, KVF_STATS_COUNTER);
    fputs(",\n      \"gauges\": ", out);
    print_values(out, daemon, KVF_STATS_GAUGE);
    fputs(",\n      \"histograms\": ", out);
    print_histograms(out, daemon);
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

#include "tests/torture/report.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#define LABEL_WIDTH 46
#define COLUMN_WIDTH 14
#define CELL_BYTES 40

/* Two windows of a lane: one that was posted, one round trip of the same order at the very most. */
#define ROUND_TRIP_US 1000u

static void with_commas(uint64_t value, char ret_text[CELL_BYTES])
{
    char digits[24];
    int n = snprintf(digits, sizeof(digits), "%" PRIu64, value);
    int at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) {
            ret_text[at++] = ',';
        }
        ret_text[at++] = digits[i];
    }
    ret_text[at] = 0;
}

/* What abort-to-drained may take at p99 while nothing fails: what a lane has posted, and a round trip,
 * twice. 0: unpaced, not known. */
static uint64_t fault_free_limit_us(const struct kvf_options *o)
{
    return o->lane_rate == 0 ? 0 : 2 * (o->lane_window_bytes / o->lane_rate + ROUND_TRIP_US);
}

/* ---- the table ------------------------------------------------------------------------------------ */

typedef void (*cell_fn)(const struct kvf_report *report, const struct kvf_result *r,
                        char ret_text[CELL_BYTES]);

static void print_row(FILE *out, const struct kvf_report *report, const char *label, cell_fn fn)
{
    fprintf(out, "  %-*s", LABEL_WIDTH, label);
    for (uint32_t i = 0; i < report->result_count; i++) {
        char text[CELL_BYTES] = "-";
        fn(report, &report->results[i], text);
        fprintf(out, "%*s", COLUMN_WIDTH, text);
    }
    fputc('\n', out);
}

static void print_tally(FILE *out, const struct kvf_report *report, const char *label,
                        enum kvf_tally tally, uint64_t divisor)
{
    fprintf(out, "  %-*s", LABEL_WIDTH, label);
    for (uint32_t i = 0; i < report->result_count; i++) {
        char text[CELL_BYTES];
        with_commas(report->results[i].tallies[tally] / divisor, text);
        fprintf(out, "%*s", COLUMN_WIDTH, text);
    }
    fputc('\n', out);
}

static void cell_name(const struct kvf_report *report, const struct kvf_result *r,
                      char *ret_text)
{
    (void)report;
    snprintf(ret_text, CELL_BYTES, "%s", r->policy.name);
}

static void cell_when(const struct kvf_report *report, const struct kvf_result *r,
                      char *ret_text)
{
    (void)report;
    switch (r->policy.mode) {
    case KVF_RELEASE_EARLY:
        snprintf(ret_text, CELL_BYTES, "at the abort");
        return;
    case KVF_RELEASE_TIMER:
        snprintf(ret_text, CELL_BYTES, "%u ms later", r->policy.timer_us / 1000);
        return;
    case KVF_RELEASE_DRAINED:
        snprintf(ret_text, CELL_BYTES, "on proof");
        return;
    case KVF_RELEASE_LEDGER:
        snprintf(ret_text, CELL_BYTES, "ledger asked");
        return;
    case KVF_RELEASE_FORGETFUL:
        snprintf(ret_text, CELL_BYTES, "nobody asked");
        return;
    case KVF_RELEASE_MODES:
        break;
    }
}

static void cell_ms(uint64_t us, char *ret_text)
{
    snprintf(ret_text, CELL_BYTES, "%.1f ms", (double)us / 1000);
}

static void cell_p50(const struct kvf_report *report, const struct kvf_result *r,
                     char *ret_text)
{
    (void)report;
    cell_ms(r->engine_us.p50, ret_text);
}

static void cell_p99(const struct kvf_report *report, const struct kvf_result *r,
                     char *ret_text)
{
    (void)report;
    cell_ms(r->engine_us.p99, ret_text);
}

static void cell_max(const struct kvf_report *report, const struct kvf_result *r,
                     char *ret_text)
{
    (void)report;
    cell_ms(r->engine_us.max, ret_text);
}

static void cell_usual(const struct kvf_report *report, const struct kvf_result *r,
                       char *ret_text)
{
    (void)report;
    cell_ms(r->bound_usual_us, ret_text);
}

static void cell_worst(const struct kvf_report *report, const struct kvf_result *r,
                       char *ret_text)
{
    (void)report;
    cell_ms(r->bound_worst_us, ret_text);
}

static void cell_rate(const struct kvf_report *report, const struct kvf_result *r,
                      char *ret_text)
{
    (void)report;
    if (r->seconds > 0) {
        snprintf(ret_text, CELL_BYTES, "%.0f MB/s",
                 (double)r->tallies[KVF_TALLY_BYTES_MOVED] / 1e6 / r->seconds);
    }
}

static void cell_seconds(const struct kvf_report *report, const struct kvf_result *r,
                         char *ret_text)
{
    (void)report;
    snprintf(ret_text, CELL_BYTES, "%.1f s", r->seconds);
}

static void print_heading(FILE *out, const struct kvf_report *report)
{
    const struct kvf_options *o = report->options;
    const struct kvf_geometry *g = &o->geometry;
    char rows[CELL_BYTES];
    with_commas(report->trace_rows, rows);
    fprintf(out, "kvfence-torture: %u prefill and %u decode engines, %s, %s placement, ",
            o->prefill_count, o->decode_count,
            o->is_local   ? "local"
            : o->is_verbs ? "verbs"
                          : "tcp",
            o->is_checked ? "checked" : "posted");
    if (o->lane_rate == 0) {
        fputs("unpaced", out);
    } else {
        fprintf(out, "%u MB/s a lane", o->lane_rate);
    }
    fprintf(out, ", seed %" PRIu64 "\n", o->seed);
    fprintf(out,
            "pages: %s, %u planes x %u bytes (planes / %u), tokens / %u, at most %u pages a "
            "request\n",
            g->name, g->plane_count, g->piece_bytes, g->plane_divisor, g->token_divisor,
            o->pages_max);
    fprintf(out, "trace: %s, %s requests, sha256 %.16s...\n", report->trace_path, rows,
            report->trace_sha256);
    fprintf(out, "schedule: %.16s... (the same for every policy)\n", report->schedule_hash);
    if (o->is_verbs) {
        fprintf(out,
                "devices: decode %s, prefill %s; windows: %" PRIu64 " bytes a room, %" PRIu64
                " a lane\n",
                report->results[0].rdma_devices[0], report->results[0].rdma_devices[1],
                o->room_window_bytes, o->lane_window_bytes);
    }
    for (uint32_t i = 0; i < o->daemon_option_count; i++) {
        fprintf(out, "%s%s%s", i == 0 ? "daemons: " : ", ", o->daemon_options[i],
                i + 1 == o->daemon_option_count ? "\n" : "");
    }
    if (o->proxy[0] != 0) {
        fprintf(out, "network: %s\n", o->proxy);
    }
    if (o->inject != KVF_INJECT_NOTHING) {
        fputs("a fault is planted on purpose\n", out);
    }
    fputc('\n', out);
}

static bool uses_ledger(const struct kvf_report *report)
{
    for (uint32_t i = 0; i < report->result_count; i++) {
        if (report->results[i].tallies[KVF_TALLY_FORGOTTEN] > 0) {
            return true;
        }
    }
    return false;
}

static void print_devices(FILE *out, const struct kvf_report *report)
{
    const struct kvf_result *r = &report->results[report->result_count - 1];
    const struct kvf_device_counts *d = &r->devices;
    if (report->options->is_verbs && r->has_stats) {
        fprintf(out,
                "\n  devices: %" PRIu64 " queue pairs made, %" PRIu64 " destroyed; %" PRIu64
                " work requests posted, %" PRIu64 " reaped, %" PRIu64 " written off\n",
                d->pairs_made, d->pairs_destroyed, d->work_posted, d->work_reaped,
                d->work_written_off);
    }
}

static void print_terms(FILE *out, const struct kvf_report *report)
{
    const struct kvf_result *r = &report->results[report->result_count - 1];
    const struct kvf_bound_terms *t = &r->terms;
    uint64_t limit_us = fault_free_limit_us(report->options);
    if (r->has_stats) {
        fprintf(out,
                "\n  bound = detection %.0f + cooperative %.0f + fence %.0f + visibility %.0f "
                "(usual) + "
                "watchdog %.0f + kill %.0f ms\n",
                (double)t->detection_us / 1e3, (double)t->cooperative_us / 1e3,
                (double)t->fence_us / 1e3, (double)t->visibility_us / 1e3,
                (double)t->watchdog_us / 1e3, (double)t->kill_us / 1e3);
    }
    if (limit_us > 0) {
        fprintf(
            out,
            "  for comparison, not judged: 2 x (window of a lane / its rate + a round trip) "
            "= %.0f ms;\n  a p99 above it means that daemons or engines had to wait for a "
            "CPU\n",
            (double)limit_us / 1e3);
    }
}

static void print_verdicts(FILE *out, const struct kvf_report *report)
{
    fputc('\n', out);
    for (uint32_t i = 0; i < report->result_count; i++) {
        char why[640];
        kvf_report_judge(&report->results[i], why, sizeof(why));
        fprintf(out, "  %-10s %s\n", report->results[i].policy.name, why);
    }
}

void kvf_report_table(FILE *out, const struct kvf_report *report)
{
    print_heading(out, report);
    print_row(out, report, "pages go to their next owner", cell_name);
    print_row(out, report, "", cell_when);
    print_tally(out, report, "requests", KVF_TALLY_REQUESTS, 1);
    print_tally(out, report, "  arrived, every byte checked", KVF_TALLY_SUCCESSES, 1);
    print_tally(out, report, "  aborted in flight (donors)", KVF_TALLY_DONORS, 1);
    print_tally(out, report, "  aborted before or after that", KVF_TALLY_ABORTED_ELSEWHERE, 1);
    print_tally(out, report, "  aborted too late, arrived all the same", KVF_TALLY_LOST_RACE,
                1);
    print_tally(out, report, "  failed although nobody aborted them",
                KVF_TALLY_UNPLANNED_FAILURES, 1);
    if (report->options->has_planned_faults) {
        print_tally(out, report, "  failed by the proxy's faults, as planned",
                    KVF_TALLY_PLANNED_FAILURES, 1);
    }
    print_tally(out, report, "reuse probes of donors' pages", KVF_TALLY_PROBES, 1);
    print_tally(out, report, "  exposed: bytes landed after the abort", KVF_TALLY_EXPOSED, 1);
    print_tally(out, report, "  FOREIGN: the new owner's canary was hit", KVF_TALLY_FOREIGN, 1);
    print_tally(out, report, "  foreign in probes of other aborted rooms",
                KVF_TALLY_OTHER_FOREIGN, 1);
    print_tally(out, report, "foreign bytes in canaries", KVF_TALLY_FOREIGN_BYTES, 1);
    print_tally(out, report, "wrong bytes in requests that arrived", KVF_TALLY_WRONG_BYTES, 1);
    print_tally(out, report, "donors' pages reused by real requests", KVF_TALLY_PAGES_REUSED,
                1);
    print_tally(out, report, "pages lost", KVF_TALLY_PAGES_LOST, 1);
    print_tally(out, report, "pages quarantined", KVF_TALLY_PAGES_QUARANTINED, 1);
    if (uses_ledger(report)) {
        print_tally(out, report, "releases that forgot to ask the room", KVF_TALLY_FORGOTTEN,
                    1);
        print_tally(out, report, "  kept back by the page ledger", KVF_TALLY_REFUSALS, 1);
        print_tally(out, report, "  opens that the library refused", KVF_TALLY_LENT_OPENS, 1);
    }
    print_row(out, report, "abort to drained, p50", cell_p50);
    print_row(out, report, "  p99", cell_p99);
    print_row(out, report, "  max", cell_max);
    print_row(out, report, "  bound, usual part", cell_usual);
    print_row(out, report, "  bound", cell_worst);
    print_tally(out, report, "MB landed after their abort", KVF_TALLY_LANDED_AFTER, 1000000);
    print_tally(out, report, "MB moved", KVF_TALLY_BYTES_MOVED, 1000000);
    print_tally(out, report, "MB checked byte by byte", KVF_TALLY_BYTES_CHECKED, 1000000);
    print_row(out, report, "time", cell_seconds);
    print_row(out, report, "rate", cell_rate);
    print_devices(out, report);
    print_terms(out, report);
    print_verdicts(out, report);
}

/* ---- the object ------------------------------------------------------------------------------------ */

static void json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c != 0; c++) {
        if (*c == '"' || *c == '\\') {
            fprintf(out, "\\%c", *c);
        } else if (*c < 0x20 || *c > 0x7e) {
            fprintf(out, "\\u%04x", *c);
        } else {
            fputc(*c, out);
        }
    }
    fputc('"', out);
}

static void json_quantiles(FILE *out, const char *name, const struct kvf_quantiles *q)
{
    fprintf(out,
            ",\n  \"%s\": {\"p50\": %" PRIu64 ", \"p99\": %" PRIu64 ", \"max\": %" PRIu64 "}",
            name, q->p50, q->p99, q->max);
}

static void json_setting(FILE *out, const struct kvf_report *report, const struct kvf_result *r)
{
    const struct kvf_options *o = report->options;
    const struct kvf_geometry *g = &o->geometry;
    fprintf(out, "{\n  \"release\": \"%s\"", r->policy.name);
    fprintf(out, ",\n  \"transport\": \"%s\",\n  \"transport_engine\": ",
            o->is_local   ? "local"
            : o->is_verbs ? "verbs"
                          : "tcp");
    json_string(out, r->transport_engine);
    fprintf(out, ",\n  \"placement\": \"%s\"", o->is_checked ? "checked" : "posted");
    fprintf(out, ",\n  \"seed\": %" PRIu64 ",\n  \"prefill\": %u,\n  \"decode\": %u", o->seed,
            o->prefill_count, o->decode_count);
    fprintf(out, ",\n  \"lane_rate_mb_per_s\": %u,\n  \"lanes\": %u,\n  \"lane_rooms\": %u",
            o->lane_rate, o->lanes, o->lane_rooms);
    fprintf(out, ",\n  \"room_window_bytes\": %" PRIu64 ",\n  \"lane_window_bytes\": %" PRIu64,
            o->room_window_bytes, o->lane_window_bytes);
    fprintf(out,
            ",\n  \"geometry\": {\"preset\": \"%s\", \"planes\": %u, \"piece_bytes\": %u, "
            "\"page_tokens\": %u, \"plane_divisor\": %u, \"token_divisor\": %u, "
            "\"page_bytes\": %u, "
            "\"pages_max\": %u}",
            g->name, g->plane_count, g->piece_bytes, g->page_tokens, g->plane_divisor,
            g->token_divisor, g->page_bytes, o->pages_max);
    fputs(",\n  \"proxy\": ", out);
    json_string(out, o->proxy);
    fputs(",\n  \"daemon_options\": [", out);
    for (uint32_t i = 0; i < o->daemon_option_count; i++) {
        fputs(i == 0 ? "" : ", ", out);
        json_string(out, o->daemon_options[i]);
    }
    fputs("]", out);
    if (o->is_verbs) {
        fputs(",\n  \"rdma_devices\": [", out);
        json_string(out, r->rdma_devices[0]);
        fputs(", ", out);
        json_string(out, r->rdma_devices[1]);
        fputs("]", out);
    }
    fputs(",\n  \"trace\": ", out);
    json_string(out, report->trace_path);
    fprintf(out, ",\n  \"trace_sha256\": \"%s\",\n  \"schedule_hash\": \"%s\"",
            report->trace_sha256, report->schedule_hash);
}

static void json_run(FILE *out, const struct kvf_report *report, const struct kvf_result *r)
{
    char why[640];
    enum kvf_exit status = kvf_report_judge(r, why, sizeof(why));
    const struct kvf_bound_terms *t = &r->terms;
    json_setting(out, report, r);
    for (int i = 0; i < KVF_TALLY_COUNT; i++) {
        fprintf(out, ",\n  \"%s\": %" PRIu64, kvf_tally_name((enum kvf_tally)i), r->tallies[i]);
    }
    json_quantiles(out, "abort_to_drained_us", &r->engine_us);
    json_quantiles(out, "close_to_drained_us", &r->daemon_us);
    fprintf(out, ",\n  \"fault_free_limit_us\": %" PRIu64,
            fault_free_limit_us(report->options));
    fprintf(out, ",\n  \"bound_us\": %" PRIu64 ",\n  \"bound_usual_us\": %" PRIu64,
            r->bound_worst_us, r->bound_usual_us);
    fprintf(out,
            ",\n  \"bound_terms_us\": {\"detection\": %" PRIu64 ", \"cooperative\": %" PRIu64
            ", \"fence\": %" PRIu64 ", \"visibility\": %" PRIu64 ", \"watchdog\": %" PRIu64
            ", \"kill\": %" PRIu64 "}",
            t->detection_us, t->cooperative_us, t->fence_us, t->visibility_us, t->watchdog_us,
            t->kill_us);
    fprintf(out,
            ",\n  \"daemons\": {\"asked\": %s, \"rooms_opened\": %" PRIu64
            ", \"rooms_ended\": %" PRIu64 ", \"still_held\": %" PRIu64
            ", \"unclean_ends\": %u}",
            r->has_stats ? "true" : "false", r->stat_opened, r->stat_ended, r->stat_left,
            r->daemons_unclean);
    if (report->options->is_verbs) {
        const struct kvf_device_counts *d = &r->devices;
        fprintf(out,
                ",\n  \"devices\": {\"queue_pairs_made\": %" PRIu64
                ", \"queue_pairs_destroyed\": %" PRIu64 ", \"work_posted\": %" PRIu64
                ", \"work_reaped\": %" PRIu64 ", \"work_written_off\": %" PRIu64
                ", \"fences_failed\": %" PRIu64 ", \"memory_refused\": %" PRIu64 "}",
                d->pairs_made, d->pairs_destroyed, d->work_posted, d->work_reaped,
                d->work_written_off, d->fences_failed, d->memory_refused);
    }
    fprintf(out, ",\n  \"seconds\": %.3f,\n  \"status\": %d,\n  \"why\": ", r->seconds,
            (int)status);
    json_string(out, why);
}

void kvf_report_json(FILE *out, const struct kvf_report *report, enum kvf_exit exit_status)
{
    if (!report->options->is_compare) {
        json_run(out, report, &report->results[0]);
        fprintf(out, ",\n  \"exit\": %d\n}\n", (int)exit_status);
        return;
    }
    fputs("{\"runs\": [", out);
    for (uint32_t i = 0; i < report->result_count; i++) {
        fputs(i == 0 ? "\n" : ",\n", out);
        json_run(out, report, &report->results[i]);
        fputs("\n}", out);
    }
    fprintf(out, "\n], \"exit\": %d}\n", (int)exit_status);
}

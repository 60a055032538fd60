#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/faults/faults.h"

#define COLUMNS 98u

static const char *verdict_of(const struct case_result *r, uint32_t share)
{
    if (r->is_passed || share < r->share) {
        return "kept";
    }
    if (share > r->share) {
        return "not run";
    }
    return r->violation[0] != '\0' ? "VIOLATED" : r->has_started ? "failed" : "no start";
}

static void show_ms(FILE *out, int width, uint64_t us)
{
    fprintf(out, " %*.*f", width, us < 100000 ? 1 : 0, (double)us / 1000);
}

static void show_row(FILE *out, const struct fault_case *fault, const struct case_result *r,
                     uint32_t share)
{
    static uint64_t values[SAMPLES_MAX];
    const struct share_result *s = &r->shares[share];
    for (uint32_t i = 0; i < s->drained_count; i++) {
        values[i] = s->drained_us[i];
    }
    uint64_t p50 = quantile(values, s->drained_count, 500);
    uint64_t max = quantile(values, s->drained_count, 1000);
    fprintf(out, "%-18s %3u %5u %8u", fault->name, settings.shares[share], s->rounds,
            s->affected);
    if (s->drained_count > 0) {
        show_ms(out, 7, p50);
        show_ms(out, 7, max);
    } else {
        fprintf(out, " %7s %7s", "-", "-");
    }
    fprintf(out, " %6.0f %10" PRIu64 " %6" PRIu64, (double)s->bound_us / 1000, s->refused_bytes,
            s->unaffected);
    if (s->new_room_us > 0) {
        show_ms(out, 6, s->new_room_us);
    } else {
        fprintf(out, " %6s", "-");
    }
    fprintf(out, " %s\n", verdict_of(r, share));
}

static void show_sentence(FILE *out, const char *text)
{
    size_t column = 0;
    for (text += strspn(text, " "); *text != '\0'; text += strspn(text, " ")) {
        size_t word = strcspn(text, " ");
        if (column > 0 && column + 1 + word > COLUMNS) {
            fputc('\n', out);
            column = 0;
        }
        fprintf(out, column == 0 ? "    %.*s" : " %.*s", (int)word, text);
        column += (column == 0 ? 4 : 1) + word;
        text += word;
    }
    fputc('\n', out);
}

void report_table(FILE *out, const struct fault_case *const *cases,
                  const struct case_result *results, uint32_t count)
{
    fprintf(out,
            "%-18s %3s %5s %8s %15s %6s %10s %6s %6s\n%-18s %3s %5s %8s %7s %7s %6s %10s %6s "
            "%6s\n",
            "", "at", "", "rooms", "drained, ms", "bound", "refused", "others", "new", "fault",
            "%", "times", "affected", "p50", "max", "ms", "bytes", "ok", "ms");
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t share = 0; share < settings.share_count; share++) {
            show_row(out, cases[i], &results[i], share);
        }
    }
    uint64_t probes = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t share = 0; share < settings.share_count; share++) {
            probes += results[i].shares[share].probes;
        }
    }
    fprintf(out,
            "%" PRIu64 " canaries in pages that went on at once were watched for %u ms each\n",
            probes, settings.probe_ms);
    for (uint32_t i = 0; i < count; i++) {
        if (results[i].violation[0] != '\0') {
            fprintf(out, "%s:\n", cases[i]->name);
            show_sentence(out, results[i].violation);
        }
    }
}

static void json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
    }
    fputc('"', out);
}

static void json_share(FILE *out, const struct case_result *r, uint32_t share)
{
    static uint64_t values[SAMPLES_MAX];
    const struct share_result *s = &r->shares[share];
    for (uint32_t i = 0; i < s->drained_count; i++) {
        values[i] = s->drained_us[i];
    }
    fprintf(
        out,
        "{\"at_percent\": %u, \"rounds\": %u, \"affected\": %u, \"affected_succeeded\": %u, "
        "\"drained_us\": {\"p50\": %" PRIu64 ", \"max\": %" PRIu64 "}, \"bound_us\": %u, "
        "\"refused_bytes\": %" PRIu64 ", \"others_succeeded\": %" PRIu64
        ", \"new_room_us\": %u, \"probes\": %u, \"verdict\": \"%s\"}",
        settings.shares[share], s->rounds, s->affected, s->succeeded,
        quantile(values, s->drained_count, 500), quantile(values, s->drained_count, 1000),
        s->bound_us, s->refused_bytes, s->unaffected, s->new_room_us, s->probes,
        verdict_of(r, share));
}

void report_json(FILE *out, const struct fault_case *const *cases,
                 const struct case_result *results, uint32_t count, int exit_status)
{
    fprintf(out, "{\"placement\": \"%s\", \"times\": %u, \"probe_ms\": %u, \"cases\": [",
            settings.is_checked ? "checked" : "posted", settings.times, settings.probe_ms);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%s\n  {\"name\": \"%s\", \"seconds\": %.1f, \"violation\": ",
                i == 0 ? "" : ",", cases[i]->name, results[i].seconds);
        json_string(out, results[i].violation);
        fputs(", \"shares\": [", out);
        for (uint32_t share = 0; share < settings.share_count; share++) {
            fputs(share == 0 ? "\n    " : ",\n    ", out);
            json_share(out, &results[i], share);
        }
        fputs("]}", out);
    }
    fprintf(out, "\n], \"exit\": %d}\n", exit_status);
}

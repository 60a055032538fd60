#include "tests/bench/report.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PROGRESS_NS UINT64_C(2000000000)

struct kvf_figure *kvf_report_figure(struct kvf_bench_report *report, const char *id,
                                     uint32_t samples, uint32_t beside_samples)
{
    struct kvf_figure *figure = &report->figures[report->figure_count];
    if (report->figure_count == KVF_FIGURES_MAX) {
        fprintf(stderr, "kvfence-bench: more figures than a report holds\n");
        return NULL;
    }
    memset(figure, 0, sizeof(*figure));
    figure->id = id;
    if (kvf_series_make(&figure->series, samples) != 0 ||
        (beside_samples > 0 && kvf_series_make(&figure->beside, beside_samples) != 0)) {
        kvf_series_free(&figure->series);
        fprintf(stderr, "kvfence-bench: no memory for %u samples\n", samples);
        return NULL;
    }
    report->figure_count++;
    return figure;
}

void kvf_report_free(struct kvf_bench_report *report)
{
    for (uint32_t i = 0; i < report->figure_count; i++) {
        kvf_series_free(&report->figures[i].series);
        kvf_series_free(&report->figures[i].beside);
    }
    report->figure_count = 0;
}

void kvf_report_close(struct kvf_bench_report *report)
{
    for (uint32_t i = 0; i < report->figure_count; i++) {
        struct kvf_figure *f = &report->figures[i];
        if (!f->has_ratio) {
            f->ratio = kvf_series_ratio(&f->series, &f->beside);
            f->has_ratio = f->ratio > 0;
        }
    }
    kvf_machine_read_end(&report->machine);
}

/* 1 met, 0 missed, -1 there is nothing to meet or nothing to meet it with. */
static int is_met(const struct kvf_figure *f)
{
    struct kvf_summary s;
    double value = f->ratio;
    if (f->target_kind == KVF_TARGET_NONE || (!f->is_target_absolute && !f->has_ratio)) {
        return -1;
    }
    if (f->is_target_absolute) {
        if (kvf_series_summarize(&f->series, f->is_rate, &s) != 0 || s.count == 0) {
            return -1;
        }
        value = s.median;
    }
    return f->target_kind == KVF_TARGET_AT_MOST ? value <= f->target : value >= f->target;
}

bool kvf_report_is_met(const struct kvf_bench_report *report)
{
    for (uint32_t i = 0; i < report->figure_count; i++) {
        if (is_met(&report->figures[i]) == 0) {
            return false;
        }
    }
    return true;
}

/* ---- for people ----------------------------------------------------------------------------------- */

static void print_value(FILE *out, double value)
{
    int digits = value >= 1000 ? 0 : value >= 100 ? 1 : 2;
    fprintf(out, " %9.*f", digits, value);
}

static void print_figure(FILE *out, const struct kvf_figure *f)
{
    struct kvf_summary s;
    struct kvf_summary b;
    int met = is_met(f);
    if (kvf_series_summarize(&f->series, f->is_rate, &s) != 0 ||
        kvf_series_summarize(&f->beside, f->is_rate, &b) != 0) {
        return;
    }
    fprintf(out, "%-46s %5s", f->name, f->unit);
    print_value(out, s.median);
    print_value(out, s.p99);
    print_value(out, s.p999);
    print_value(out, f->is_rate ? s.min : s.max);
    fprintf(out, "\n");
    if (b.count > 0) {
        fprintf(out, "    %-42s %5s", f->beside_name, f->unit);
        print_value(out, b.median);
        print_value(out, b.p99);
        print_value(out, b.p999);
        print_value(out, f->is_rate ? b.min : b.max);
        fprintf(out, "\n");
    }
    if (f->has_ratio) {
        fprintf(out, "    %s %.3f", f->ratio_name[0] != 0 ? f->ratio_name : "ratio", f->ratio);
    }
    if (f->target_kind != KVF_TARGET_NONE) {
        fprintf(out, "%starget: %s %.4g%s%s", f->has_ratio ? "; " : "    ",
                f->target_kind == KVF_TARGET_AT_MOST ? "at most" : "at least", f->target,
                f->is_target_absolute ? " " : "", f->is_target_absolute ? f->unit : "");
        fprintf(out, "%s", met == 1 ? ", met" : met == 0 ? ", MISSED" : ", nothing beside");
    }
    if (f->has_ratio || f->target_kind != KVF_TARGET_NONE) {
        fprintf(out, "\n");
    }
    if (f->note[0] != 0) {
        fprintf(out, "    %s\n", f->note);
    }
}

static void print_cpus(FILE *out, const struct kvf_cpus *cpus)
{
    if (cpus->source < 0) {
        fprintf(out, "pinned nowhere");
        return;
    }
    fprintf(out, "sides pinned to %d and %d", cpus->source, cpus->sink);
    if (cpus->engine >= 0) {
        fprintf(out, ", engine to %d", cpus->engine);
    }
}

static void print_table(FILE *out, const struct kvf_bench_report *report)
{
    const struct kvf_machine *m = &report->machine;
    fprintf(out, "kvfence-bench %s: %s\n", kvf_bench_command_name(report->options->command),
            report->setting);
    fprintf(out, "on %s, %u cores, %u allowed, %s\n", m->cpu, m->cores, m->allowed, m->kernel);
    fprintf(out, "   ");
    print_cpus(out, &report->cpus);
    fprintf(out, "; scheduler %s; load %.1f to %.1f%s\n", m->policy, m->load_begin, m->load_end,
            m->load_begin > 0.5 * m->allowed ? ": BUSY, times say little" : "");
    fprintf(out, "    kvfence %s, %s\n\n", KVF_VERSION, m->build);
    fprintf(out, "%-46s %5s %9s %9s %9s %9s\n", "", "unit", "median", "p99", "p99.9", "worst");
    for (uint32_t i = 0; i < report->figure_count; i++) {
        print_figure(out, &report->figures[i]);
    }
}

/* ---- for programs --------------------------------------------------------------------------------- */

static void print_text(FILE *out, const char *name, const char *text, const char *after)
{
    fprintf(out, "\"%s\": \"", name);
    for (const unsigned char *c = (const unsigned char *)text; *c != 0; c++) {
        if (*c == '"' || *c == '\\') {
            fprintf(out, "\\%c", *c);
        } else if (*c < 0x20 || *c >= 0x7f) {
            fprintf(out, "\\u%04x", *c);
        } else {
            fputc(*c, out);
        }
    }
    fprintf(out, "\"%s", after);
}

static void print_summary(FILE *out, const struct kvf_series *series, bool is_rate)
{
    struct kvf_summary s;
    if (kvf_series_summarize(series, is_rate, &s) != 0) {
        s = (struct kvf_summary){.count = 0};
    }
    fprintf(out,
            "\"samples\": %u, \"median\": %.6g, \"p99\": %.6g, \"p999\": %.6g, \"min\": %.6g, "
            "\"max\": %.6g",
            s.count, s.median, s.p99, s.p999, s.min, s.max);
}

static void print_figure_json(FILE *out, const struct kvf_figure *f)
{
    int met = is_met(f);
    fprintf(out, "    {");
    print_text(out, "id", f->id, ", ");
    fprintf(out, "\"of\": %llu, ", (unsigned long long)f->of);
    print_text(out, "name", f->name, ", ");
    print_text(out, "unit", f->unit, ",\n     ");
    fprintf(out, "\"more_is_better\": %s, ", f->is_rate ? "true" : "false");
    print_summary(out, &f->series, f->is_rate);
    if (f->beside.count > 0) {
        fprintf(out, ",\n     \"beside\": {");
        print_text(out, "name", f->beside_name, ", ");
        print_summary(out, &f->beside, f->is_rate);
        fprintf(out, "}");
    }
    if (f->has_ratio) {
        fprintf(out, ",\n     \"ratio\": %.6g, ", f->ratio);
        print_text(out, "ratio_of", f->ratio_name[0] != 0 ? f->ratio_name : "ratio", "");
    }
    if (f->target_kind != KVF_TARGET_NONE) {
        fprintf(out, ",\n     \"target\": {\"%s\": %.6g, \"of\": \"%s\", \"met\": %s}",
                f->target_kind == KVF_TARGET_AT_MOST ? "at_most" : "at_least", f->target,
                f->is_target_absolute ? "median" : "ratio",
                met == 1   ? "true"
                : met == 0 ? "false"
                           : "null");
    }
    if (f->note[0] != 0) {
        fprintf(out, ",\n     ");
        print_text(out, "note", f->note, "");
    }
    fprintf(out, "}");
}

static void print_json(FILE *out, const struct kvf_bench_report *report,
                       enum kvf_bench_exit status)
{
    const struct kvf_machine *m = &report->machine;
    fprintf(out, "{\n  \"program\": \"kvfence-bench\", \"version\": \"%s\", ", KVF_VERSION);
    print_text(out, "command", kvf_bench_command_name(report->options->command), ",\n  ");
    print_text(out, "setting", report->setting, ",\n  ");
    fprintf(out, "\"machine\": {");
    print_text(out, "cpu", m->cpu, ", ");
    print_text(out, "kernel", m->kernel, ",\n    ");
    print_text(out, "build", m->build, ", ");
    print_text(out, "scheduler", m->policy, ",\n    ");
    fprintf(out, "\"cores\": %u, \"allowed\": %u, \"load_begin\": %.2f, \"load_end\": %.2f,\n",
            m->cores, m->allowed, m->load_begin, m->load_end);
    fprintf(out, "    \"cpu_source\": %d, \"cpu_sink\": %d, \"cpu_engine\": %d},\n",
            report->cpus.source, report->cpus.sink, report->cpus.engine);
    fprintf(out, "  \"figures\": [\n");
    for (uint32_t i = 0; i < report->figure_count; i++) {
        print_figure_json(out, &report->figures[i]);
        fprintf(out, i + 1 < report->figure_count ? ",\n" : "\n");
    }
    fprintf(out, "  ],\n  \"exit\": %d\n}\n", (int)status);
}

void kvf_report_print(FILE *out, const struct kvf_bench_report *report,
                      enum kvf_bench_exit status)
{
    if (report->options->is_json) {
        print_json(out, report, status);
    } else {
        print_table(out, report);
    }
}

void kvf_progress(const struct kvf_bench_options *options, const char *what, uint64_t at,
                  uint64_t all)
{
    static uint64_t last_ns;
    uint64_t now_ns = kvf_bench_now_ns();
    if (last_ns == 0) {
        last_ns = now_ns;
    }
    if (options->is_quiet || now_ns - last_ns < PROGRESS_NS) {
        return;
    }
    last_ns = now_ns;
    fprintf(stderr, "kvfence-bench: %s, %llu of %llu\n", what, (unsigned long long)at,
            (unsigned long long)all);
}

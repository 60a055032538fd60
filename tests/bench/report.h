/* What a run came to: the table for people, the object for programs, the verdict. */
#ifndef KVF_BENCH_REPORT_H
#define KVF_BENCH_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "tests/bench/machine.h"
#include "tests/bench/options.h"
#include "tests/bench/series.h"

#define KVF_FIGURES_MAX 48u

enum kvf_bench_exit {
    KVF_BENCH_MEASURED = 0,
    KVF_BENCH_MISSED = 1,
    KVF_BENCH_USAGE = 2,
    KVF_BENCH_BROKEN = 3,
    KVF_BENCH_FAILED = 4
};

enum kvf_target { KVF_TARGET_NONE = 0, KVF_TARGET_AT_MOST, KVF_TARGET_AT_LEAST };

/* One number: samples of ours, and of what stands beside it. The target is of the ratio, or of our own median if
 * is_target_absolute. */
struct kvf_figure {
    const char *id; /* for programs: "transfer.rate". Static */
    uint64_t
        of; /* what distinguishes figures of one id: bytes of a page, open rooms; 0: nothing */
    char name[96];
    char unit[12];
    bool is_rate;             /* more is better */
    struct kvf_series series; /* owned by the report */
    char beside_name[48];     /* "": nothing */
    struct kvf_series beside;
    double ratio;   /* filled in by kvf_report_close unless has_ratio */
    bool has_ratio; /* the command reckons it in its own way, said in ratio_name */
    char ratio_name[64];
    char note[160]; /* a sentence, or "" */
    enum kvf_target target_kind;
    double target;
    bool is_target_absolute;
};

struct kvf_bench_report {
    const struct kvf_bench_options *options;
    struct kvf_machine machine;
    struct kvf_cpus cpus;
    char setting[200]; /* what was measured: lanes, room sizes, engine of the transport */
    struct kvf_figure figures[KVF_FIGURES_MAX];
    uint32_t figure_count;
};

/* A fresh figure with room for that many samples, or NULL (no memory; said on stderr). */
struct kvf_figure *kvf_report_figure(struct kvf_bench_report *report, const char *id,
                                     uint32_t samples, uint32_t beside_samples);
/* Reckons what is still to be reckoned. Before printing. */
void kvf_report_close(struct kvf_bench_report *report);
/* True if no figure misses its target. */
bool kvf_report_is_met(const struct kvf_bench_report *report);
void kvf_report_print(FILE *out, const struct kvf_bench_report *report,
                      enum kvf_bench_exit status);
void kvf_report_free(struct kvf_bench_report *report);

/* "what: done of all" on stderr, at most every two seconds and not before two seconds have passed. */
void kvf_progress(const struct kvf_bench_options *options, const char *what, uint64_t at,
                  uint64_t all);

#endif

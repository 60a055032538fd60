/* The five measurements. Each fills the report and returns 0, or an exit status after a sentence on stderr. */
#ifndef KVF_BENCH_COMMANDS_H
#define KVF_BENCH_COMMANDS_H

#include "tests/bench/report.h"
#include "tests/bench/world.h"

int kvf_bench_ring(const struct kvf_bench_options *options, struct kvf_bench_report *report);
int kvf_bench_poll(const struct kvf_bench_options *options, struct kvf_bench_report *report);
int kvf_bench_transfer(const struct kvf_bench_options *options,
                       struct kvf_bench_report *report);
int kvf_bench_abort(const struct kvf_bench_options *options, struct kvf_bench_report *report);
int kvf_bench_scale(const struct kvf_bench_options *options, struct kvf_bench_report *report);

#endif

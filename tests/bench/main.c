/* kvfence-bench: one number at a time, beside what this machine does without kvfence. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/about/about.h"
#include "tests/bench/commands.h"

typedef int (*measure_fn)(const struct kvf_bench_options *options,
                          struct kvf_bench_report *report);
static const measure_fn measures[KVF_BENCH_COMMANDS] = {
    [KVF_BENCH_RING] = kvf_bench_ring,         [KVF_BENCH_POLL] = kvf_bench_poll,
    [KVF_BENCH_TRANSFER] = kvf_bench_transfer, [KVF_BENCH_ABORT] = kvf_bench_abort,
    [KVF_BENCH_SCALE] = kvf_bench_scale,
};

static int run(const struct kvf_bench_options *options)
{
    static struct kvf_bench_report report;
    report.options = options;
    kvf_machine_read(&report.machine);
    if (kvf_cpus_choose(options->cpus, &report.cpus) != 0) {
        fprintf(stderr,
                "kvfence-bench: --cpus %s: two or three processors that this process "
                "may use, with commas\n",
                options->cpus);
        return KVF_BENCH_USAGE;
    }
    kvf_process_catch_signals();
    int rc = measures[options->command](options, &report);
    if (rc == 0) {
        kvf_report_close(&report);
        rc = options->is_judge && !kvf_report_is_met(&report) ? KVF_BENCH_MISSED
                                                              : KVF_BENCH_MEASURED;
        kvf_report_print(stdout, &report, (enum kvf_bench_exit)rc);
    }
    kvf_report_free(&report);
    if (fflush(stdout) != 0) {
        perror("kvfence-bench: standard output");
        return KVF_BENCH_BROKEN;
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct kvf_bench_options options;
    if (argc > 1 && strncmp(argv[1], "--role=", 7) == 0) {
        return kvf_world_role(argv[1] + 7, argc - 2, argv + 2);
    }
    int rc = kvf_bench_options_parse(argc, argv, stderr, &options);
    if (rc != 0) {
        return rc;
    }
    if (options.is_help) {
        kvf_bench_options_help(stdout, &options);
        return 0;
    }
    if (options.is_version) {
        kvf_about_print("kvfence-bench", stdout);
        return 0;
    }
    return run(&options);
}

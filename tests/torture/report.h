/* What a run came to: the verdict, the table for people, the object for programs. */
#ifndef KVF_TORTURE_REPORT_H
#define KVF_TORTURE_REPORT_H

#include <stdio.h>

#include "tests/torture/coordinator.h"

enum kvf_exit {
    KVF_EXIT_CLEAN = 0,
    KVF_EXIT_USAGE = 2,
    KVF_EXIT_BROKEN = 3,
    KVF_EXIT_WEAK = 4,
    KVF_EXIT_FOREIGN = 10,
    KVF_EXIT_LOST = 11,
    KVF_EXIT_BOUND = 12
};

struct kvf_report {
    const struct kvf_options *options;
    const char *trace_path;
    const char *trace_sha256;
    uint32_t trace_rows;
    const char *schedule_hash;
    const struct kvf_result *results;
    uint32_t result_count;
};

/* Of one policy run alone. The sentence says why. */
enum kvf_exit kvf_report_judge(const struct kvf_result *result, char *ret_why, size_t cap);
/* Of a comparison: controls must show the bug, the others must be clean. */
enum kvf_exit kvf_report_judge_all(const struct kvf_report *report, char *ret_why, size_t cap);

void kvf_report_table(FILE *out, const struct kvf_report *report);
/* One object; of a comparison one with an array "runs". exit_status goes in as "exit". */
void kvf_report_json(FILE *out, const struct kvf_report *report, enum kvf_exit exit_status);

#endif

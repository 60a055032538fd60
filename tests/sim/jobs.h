/* Seeds spread over processes. A seed that crashes its process costs that process; another goes on behind it. */
#ifndef KVF_TESTS_SIM_JOBS_H
#define KVF_TESTS_SIM_JOBS_H

#include "tests/sim/options.h"
#include "tests/sim/world.h"

#define SIM_FAILURES_KEPT 32u

struct sim_failed_seed {
    uint64_t seed;
    enum sim_verdict verdict;
    char text[256];
};

struct sim_totals {
    struct sim_figures figures;
    uint64_t seeds;
    uint64_t failed;
    uint64_t cpu_ns; /* of all processes */
    uint64_t wall_ns;
    uint32_t kept;
    struct sim_failed_seed failures[SIM_FAILURES_KEPT]; /* the smallest seeds */
};

/* 0, or -errno: processes or memory could not be had. */
int sim_jobs_run(const struct sim_options *options, struct sim_totals *ret_totals);

#endif

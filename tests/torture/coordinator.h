/* One run: a fleet of daemons and engines, one release policy, and what came of it. */
#ifndef KVF_TORTURE_COORDINATOR_H
#define KVF_TORTURE_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/torture/options.h"
#include "tests/torture/schedule.h"
#include "tests/torture/trace.h"

struct kvf_quantiles {
    uint64_t p50;
    uint64_t p99;
    uint64_t max;
};

/* The parts of the bound as the daemons show them; 0 where they do not. */
struct kvf_bound_terms {
    uint64_t detection_us;
    uint64_t cooperative_us;
    uint64_t fence_us;
    uint64_t watchdog_us;
    uint64_t kill_us;
    uint64_t visibility_us;
};

/* What the devices of all daemons were given and gave back, once no queue pair is left. */
struct kvf_device_counts {
    uint64_t pairs_made;
    uint64_t pairs_destroyed;
    uint64_t work_posted;
    uint64_t work_reaped;
    uint64_t work_written_off;
    uint64_t fences_failed;
    uint64_t memory_refused;
};

struct kvf_result {
    struct kvf_policy policy;
    bool has_run;       /* false: `broken` says why */
    bool is_bad_option; /* it could not run because a daemon knows no such option */
    char broken[512];
    char note[256]; /* of a room that failed by itself */
    uint64_t tallies[KVF_TALLY_COUNT];
    struct kvf_quantiles engine_us; /* abort to drained of donors, seen by the engine */
    struct kvf_quantiles daemon_us; /* close to drained, measured by the daemon */
    uint64_t bound_usual_us;
    uint64_t bound_worst_us;
    struct kvf_bound_terms terms;
    bool has_stats;       /* kvfence-stat could be asked; else the rest is 0 */
    uint64_t stat_opened; /* rooms, over all daemons */
    uint64_t stat_ended;
    uint64_t
        stat_left; /* rooms, grants, pages and bytes that the daemons still held at the end */
    uint32_t daemons_unclean; /* that ended with another status than 0 */
    double seconds;
    char transport_engine[32];
    char rdma_devices[2][64]; /* of decode and of prefill daemons; "": not verbs */
    struct kvf_device_counts devices;
};

struct kvf_plan_inputs {
    const struct kvf_options *options;
    const struct kvf_request *requests;
    uint32_t request_count;
};

/* Runs one policy. Always fills the result; returns 0 if it ran to its end, else -1. */
int kvf_coordinator_run(const struct kvf_plan_inputs *inputs, const struct kvf_policy *policy,
                        struct kvf_result *ret_result);

#endif

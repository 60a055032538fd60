/* Starts and ends the processes of a run. */
#ifndef KVF_TORTURE_LAUNCH_H
#define KVF_TORTURE_LAUNCH_H

#include <stdint.h>

#include "tests/proxy/driver.h"
#include "tests/torture/coordinator.h"
#include "tests/torture/process.h"

struct kvf_launch {
    const struct kvf_options *options;
    struct kvf_fleet *fleet; /* its plan gets the daemons' addresses */
    struct kvf_result *result;
    struct kvf_child daemons[KVF_ENGINES_MAX]; /* prefill first, then decode; or one */
    struct kvf_child engines[KVF_ENGINES_MAX];
    uint32_t count; /* of engines */
    uint32_t daemon_count;
    struct kvf_proxy proxies[KVF_ENGINES_OF_KIND_MAX]; /* in front of prefill, if asked for */
    char run_dir[96];
    char self_path[512];
    char daemon_path[512];
    char stat_path[512];
    char proxy_path[512];
    char ctl_path[512];
};

/* Writes the first reason why a run cannot go on; returns -1. */
int kvf_launch_fail(struct kvf_launch *launch, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fills in paths; makes the run directory. 0 or -1. */
int kvf_launch_prepare(struct kvf_launch *launch, const struct kvf_options *options,
                       struct kvf_result *result);
/* Starts every daemon and waits until all of them serve. 0 or -1. */
int kvf_launch_daemons(struct kvf_launch *launch, struct kvf_fleet *fleet);
int kvf_launch_engines(struct kvf_launch *launch);
/* -1 if a process ended that should not have. */
int kvf_launch_check(struct kvf_launch *launch);
/* Waits for the engines, which end by themselves. 0, or -1 if one of them broke. */
int kvf_launch_await_engines(struct kvf_launch *launch, uint32_t timeout_ms);
/* Over verbs: takes every connection between the daemons down, so that their queue pairs are destroyed and the
 * stats count all work there was. 0 or -1. */
int kvf_launch_end_lanes(struct kvf_launch *launch);
/* Asks kvfence-stat until the daemons hold nothing any more, for a bounded time; fills the result. */
void kvf_launch_read_stats(struct kvf_launch *launch);
/* Ends what still runs, in order, and removes the run directory. Safe at any stage. */
void kvf_launch_end(struct kvf_launch *launch);

/* What the hidden roles of this program do. Return an exit status. */
int kvf_launch_role(const char *role, int argc, char **argv);

#endif

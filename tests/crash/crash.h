/* Workers and daemons that are killed in the middle of their work, many times over, by one program.
 *
 *   receive   a sink's worker is killed while it places bytes; no byte changes after it was reaped
 *   ledger    the ledger is asked every 100 us meanwhile; no lent page is idle before the proof
 *
 * Engines and supervisors stay the same throughout; the daemons come from tests/daemon/harness.h. */
#ifndef KVF_TESTS_CRASH_CRASH_H
#define KVF_TESTS_CRASH_CRASH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/daemon/engine.h"

#define CRASH_DAEMON_OPTIONS_MAX 12u
#define CRASH_KILLS_MAX 100000u

/* What is taken for the proof that a killed worker touches nothing any more. */
enum crash_proof {
    CRASH_PROOF_REAPED, /* its pidfd is readable, or its rooms say WORKER_GONE: by turns */
    CRASH_PROOF_SIGNAL, /* kill() returned. The control: it proves nothing */
};

/* A bug planted into this program's own view, which the run must then report. */
enum crash_inject {
    CRASH_INJECT_NONE,
    CRASH_INJECT_LATE_BYTE,       /* receive: one byte changes between two looks */
    CRASH_INJECT_DRAINED_AT_ONCE, /* ledger: idle is answered from the signal on */
};

struct crash_options {
    bool is_ledger;
    uint32_t kills;
    uint64_t seed;
    enum crash_proof proof;
    enum crash_inject inject;
    const char *daemon_options[CRASH_DAEMON_OPTIONS_MAX];
    uint32_t daemon_option_count;
    FILE *json;    /* NULL: none wanted */
    FILE *verbose; /* a line per kill; NULL: none wanted */
};

/* 0 to go on, 1 the help was asked for, 2 with a sentence on standard error. */
int crash_options_parse(int argc, char **argv, struct crash_options *ret_options);

/* The two programs, as cases of the harness. They end in a CHECK that fails if anything was wrong. */
void crash_receive(const struct crash_options *options);
void crash_ledger(const struct crash_options *options);

/* A daemon with its own options ("--name=value"), NULL behind the last, and those of the command line. */
struct daemon *crash_daemon_start(const struct crash_options *options, const char *name,
                                  const char *const *own);
/* A descriptor that becomes readable when the process has ended; the caller's. */
int crash_pidfd(pid_t pid);
bool crash_has_ended(int pidfd);
/* Without the slack that sleeps have by default: 50 us, half of a sampling interval. */
void crash_sleep_exactly(void);

/* Median, p99 and the largest of n values; sorts them. */
struct crash_quantiles {
    uint64_t count;
    uint64_t median;
    uint64_t p99;
    uint64_t max;
};
struct crash_quantiles crash_quantiles_of(uint64_t *values, size_t n);
void crash_json_quantiles(FILE *out, const char *name, const struct crash_quantiles *q);

#endif

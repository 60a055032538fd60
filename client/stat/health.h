/* Is this daemon well? One verdict per daemon, each with its own exit status and one sentence. */
#ifndef KVF_STAT_HEALTH_H
#define KVF_STAT_HEALTH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/stat/collect.h"

/* Numbers are exit statuses of kvfence-stat, and never change. */
enum kvf_stat_verdict {
    KVF_STAT_HEALTHY = 0,
    KVF_STAT_NO_DAEMON = 3,    /* there is none, it was stopped, or its file cannot be read */
    KVF_STAT_IS_STALE = 4,     /* it did not say that it stopped, and no longer beats */
    KVF_STAT_LAYOUT = 5,       /* its stats are of another major version */
    KVF_STAT_STUCK = 6,        /* its worker lives, and its loop stands still */
    KVF_STAT_QUARANTINE = 7,   /* pages are withheld for want of a proof */
    KVF_STAT_BOUND_BROKEN = 8, /* since its start some room took longer than the worst bound */
    KVF_STAT_NOT_READY = 9,    /* it is starting */
};

#define KVF_STAT_SENTENCE_BYTES 512u

/* is_live_only: only what a restart may mend counts, as for a liveness probe: no bound, no quarantine. The
 * sentence begins with the daemon's name. */
enum kvf_stat_verdict kvf_stat_health_of(const struct kvf_stat_daemon *daemon,
                                         bool is_live_only,
                                         char ret_sentence[KVF_STAT_SENTENCE_BYTES]);
enum kvf_stat_verdict kvf_stat_health_of_problem(const struct kvf_stat_problem *problem,
                                                 char ret_sentence[KVF_STAT_SENTENCE_BYTES]);
const char *kvf_stat_verdict_name(enum kvf_stat_verdict verdict);
/* One line per daemon; returns the gravest verdict. Daemons that have stopped count only if they were named or
 * if there is no other. */
enum kvf_stat_verdict kvf_stat_print_health(FILE *out, const struct kvf_stat_look *look,
                                            bool is_named, bool is_live_only);

#endif

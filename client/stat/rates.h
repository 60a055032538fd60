/* Two looks at one daemon: what went on between them, and whether its counters began anew. A rate is never
 * negative and never the count of a whole life: over a reset there is none. */
#ifndef KVF_STAT_RATES_H
#define KVF_STAT_RATES_H

#include <stdbool.h>

#include "client/stat/snapshot.h"

enum kvf_stat_change {
    KVF_CHANGE_NONE,
    KVF_CHANGE_WORKER, /* another worker of the same daemon: its counters go on, but for a few */
    KVF_CHANGE_DAEMON, /* another daemon under this name: every counter begins at 0 */
};

enum kvf_stat_change kvf_stat_change_of(const struct kvf_stat_daemon *before,
                                        const struct kvf_stat_daemon *now);
/* Per second. False: no earlier look, another daemon, a value that went back, or no time between. */
bool kvf_stat_rate(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                   const char *name, double *ret_per_s);
/* Of the lane in this row of `now`: also false if it had no row, or its connection is another one. */
bool kvf_stat_lane_rate(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                        uint64_t lane_row, double *ret_per_s);
/* What was recorded between the two looks. Its max is not known: the upper edge of its last bucket. */
bool kvf_stat_between(const struct kvf_stat_daemon *before, const struct kvf_stat_daemon *now,
                      const char *name, struct kvf_histogram_shm *ret_histogram);

#endif

/* kvfence-stat --watch: a screen on a terminal, else lines. */
#ifndef KVF_STAT_WATCH_H
#define KVF_STAT_WATCH_H

#include <stdint.h>
#include <stdio.h>

/* Until the user ends it. `out` is what lines go to; a screen goes to the terminal. 0, or a negative errno: the
 * output can no longer be written. */
int kvf_watch_run(const char *run_dir, char *const *names, uint32_t name_count,
                  uint64_t interval_ns, FILE *out, FILE *err);

#endif

/* One screen of the watch as lines of text, without a terminal: what is shown, where, and what gives way when the
 * screen is small. */
#ifndef KVF_STAT_SCREEN_H
#define KVF_STAT_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/stat/watched.h"

#define KVF_SCREEN_ROWS_MAX 200u
#define KVF_SCREEN_COLUMNS_MAX 250u

enum kvf_screen_look { KVF_LOOK_PLAIN = 0, KVF_LOOK_HEAD, KVF_LOOK_DIM, KVF_LOOK_WARN };

struct kvf_screen {
    unsigned rows; /* set by the caller, as columns is */
    unsigned columns;
    unsigned used; /* lines that were drawn; never more than rows */
    enum kvf_screen_look looks[KVF_SCREEN_ROWS_MAX];
    char lines[KVF_SCREEN_ROWS_MAX][KVF_SCREEN_COLUMNS_MAX + 1u]; /* printable ASCII */
};

struct kvf_screen_state {
    uint32_t selected; /* index of the daemon that is shown in full */
    bool is_paused;
    double interval_s;
    char clock[16]; /* the time of day */
};

void kvf_screen_draw(struct kvf_screen *screen, const struct kvf_watch *watch,
                     const struct kvf_screen_state *state);
/* One line per daemon, for a log: the same in short. */
void kvf_screen_print_line(FILE *out, const struct kvf_watched *w, uint64_t now_ns,
                           const char *clock);

#endif

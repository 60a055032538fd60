/* The program behind main, callable with any streams. */
#ifndef KVF_STAT_RUN_H
#define KVF_STAT_RUN_H

#include <stdio.h>

/* Those of --health stand in health.h. */
enum kvf_stat_exit {
    KVF_STAT_EXIT_SHOWN = 0,
    KVF_STAT_EXIT_FAILED = 1, /* the output could not be written, or the port not be had */
    KVF_STAT_EXIT_USAGE = 2,
    KVF_STAT_EXIT_UNREADABLE = 3, /* nothing was found, or a file could not be read */
    KVF_STAT_EXIT_STALE = 4,      /* at least one shown daemon is stale */
};

int kvf_stat_run(int argc, char **argv, FILE *out, FILE *err);

#endif

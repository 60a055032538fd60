/* The program behind main, callable with any streams. */
#ifndef KVF_CTL_RUN_H
#define KVF_CTL_RUN_H

#include <stdio.h>

enum kvf_ctl_exit {
    KVF_CTL_EXIT_OK = 0,
    KVF_CTL_EXIT_USAGE = 2,
    KVF_CTL_EXIT_NO_ANSWER = 3, /* no daemon, or it did not answer */
    KVF_CTL_EXIT_REFUSED = 4,   /* it said no, and why */
    KVF_CTL_EXIT_TIMEOUT = 5,   /* drain --wait: rooms are left at the end of --timeout */
    KVF_CTL_EXIT_QUARANTINE =
        6, /* drain --wait: what is left is in quarantine; no time ends that */
};

int kvf_ctl_run(int argc, char **argv, FILE *out, FILE *err);

#endif

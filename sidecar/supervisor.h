/* The supervisor: owns what must outlive a worker - the Unix socket, client segments, region and ledger
 * descriptors, the stats file, pidfds - and nothing that can touch a page. One thread that never blocks. */
#ifndef KVF_SIDECAR_SUPERVISOR_H
#define KVF_SIDECAR_SUPERVISOR_H

#include "sidecar/host/config.h"

enum kvf_exit {
    KVF_EXIT_CLEAN = 0,
    KVF_EXIT_INTERNAL = 1,
    KVF_EXIT_USAGE = 2,
    KVF_EXIT_START = 3,
    KVF_EXIT_FENCED = 4, /* the grace period was over and rooms had to be ended */
};

/* Serves until it is told to stop. Returns an exit status. */
int kvf_supervisor_main(const struct kvf_config *config);

#endif

/* The worker: one pinned thread that owns what must die with it - sockets, streams, mappings.
 *
 * Each turn of the loop: client rings, messages and sockets, the core's actions, posts, the transport,
 * timers, each with a budget. Nothing here allocates or locks on the path of a transfer. */
#ifndef KVF_SIDECAR_WORKER_H
#define KVF_SIDECAR_WORKER_H

#include "sidecar/host/config.h"

/* What a process started as `kvfenced --worker` does. Its socket is KVF_LINK_FD. Returns an exit status. */
int kvf_worker_main(void);
/* --check: 0, or -errno for what a worker with these options would refuse to start with; it is logged. */
int kvf_worker_check(const struct kvf_config *config);

#endif

/* The worker: one pinned thread that owns what must die with it - sockets, streams, mappings.
 *
 * Each turn of the loop: client rings, messages and sockets, the core's actions, posts, the transport,
 * timers, each with a budget. Nothing here allocates or locks on the path of a transfer. */
#ifndef KVF_SIDECAR_WORKER_H
#define KVF_SIDECAR_WORKER_H

/* What a process started as `kvfenced --worker` does. Its socket is KVF_LINK_FD. Returns an exit status. */
int kvf_worker_main(void);

#endif

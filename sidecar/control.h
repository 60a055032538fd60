/* Control connections between daemons: the listener, framing, and the sockets behind the core's peers.
 *
 * Owns every control socket. Knows framing and nothing of rooms: a whole frame goes to the core, bytes
 * the core owes go to the socket when it takes them. Reading never waits for writing. The listener also
 * takes lanes: a first frame LANE_HELLO hands the stream on through lane_fn. A connection to our own address
 * may be two ends in memory (control_loop.c). Worker's loop thread only. */
#ifndef KVF_SIDECAR_CONTROL_H
#define KVF_SIDECAR_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "sidecar/core/core.h"

/* epoll data.u64 of everything the worker waits for: kind in the upper word, index in the lower. */
enum kvf_epoll_kind {
    KVF_EPOLL_KIND_LANE = 1, /* transport.h */
    KVF_EPOLL_KIND_PEER = 2,
    KVF_EPOLL_KIND_PENDING = 3, /* accepted, first frame not yet read */
    KVF_EPOLL_KIND_LISTENER = 4,
    KVF_EPOLL_KIND_DOORBELL = 5,
    KVF_EPOLL_KIND_SUPERVISOR = 6,
    KVF_EPOLL_KIND_HELPER = 7,
    KVF_EPOLL_KIND_VERBS = 8, /* completion channels, async events, the queue pairs' thread */
};

struct kvf_control;

struct kvf_control_config {
    struct kvf_addr_shm listen; /* port 0: the kernel chooses */
    uint32_t peers_max;         /* as the core's */
    uint32_t
        pending_max;     /* accepted connections without a first frame; the oldest goes first */
    uint64_t pending_ns; /* and they go after this long */
    bool
        is_loop_used; /* a connection to our own address needs no socket (kvf_control_is_loop) */
    bool
        has_no_streams; /* lanes are queue pairs: a stream that says LANE_HELLO is turned away */
    bool is_alone; /* no other daemon is spoken to: the port is taken, and nobody listens */
};

/* An accepted stream turned out to be a lane of the core (kvf_core_lane_accept said 0). The callee owns fd. */
typedef void (*kvf_control_lane_fn)(void *ctx, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                                    int fd);

/* Binds and, unless alone, listens. 0 or -errno (EADDRINUSE, EADDRNOTAVAIL, EACCES); the caller logs it. */
int kvf_control_create(const struct kvf_control_config *config, struct kvf_core *core,
                       int epoll_fd, kvf_control_lane_fn lane_fn, void *ctx,
                       struct kvf_control **ret_control);
void kvf_control_destroy(struct kvf_control *control);
/* The port listened on. */
uint16_t kvf_control_port(const struct kvf_control *control);

/* An epoll event of kind PEER, PENDING or LISTENER. Bounded work per call. */
void kvf_control_ready(struct kvf_control *control, uint64_t now_ns, uint32_t kind,
                       uint32_t idx, uint32_t epoll_events);
/* The core's actions. connect answers through kvf_core_peer_connected or _connect_failed. */
void kvf_control_connect(struct kvf_control *control, uint64_t now_ns, uint32_t peer,
                         const struct kvf_addr_shm *addr);
void kvf_control_close(struct kvf_control *control, uint32_t peer);
void kvf_control_write(struct kvf_control *control, uint64_t now_ns, uint32_t peer);
/* Moves what the ends of connections to ourselves owe each other. Bounded work, no system call. Returns how
 * much that was; once a turn, after the core's actions. */
uint32_t kvf_control_turn(struct kvf_control *control, uint64_t now_ns);
bool kvf_control_has_work(const struct kvf_control *control); /* for that: do not sleep */
/* Whether this peer is one end of a connection to ourselves: its lanes are transport local's. */
bool kvf_control_is_loop(const struct kvf_control *control, uint32_t peer);
/* Whether there is a socket besides the listener: epoll may have news of one at any time. */
bool kvf_control_has_sockets(const struct kvf_control *control);
/* Drops pending connections that said nothing for too long. */
void kvf_control_tick(struct kvf_control *control, uint64_t now_ns);
uint64_t kvf_control_deadline(const struct kvf_control *control);

#endif

/* What control.c (the listener, connections without a first frame), control_peer.c (connections that are a
 * peer of the core) and control_loop.c (those to ourselves) share. */
#ifndef KVF_SIDECAR_CONTROL_INTERNAL_H
#define KVF_SIDECAR_CONTROL_INTERNAL_H

#include <stdbool.h>

#include "sidecar/control.h"

#define KVF_CONTROL_FRAME_BYTES (KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX)
/* The longer of the two frames that may come first. */
#define KVF_CONTROL_FIRST_BYTES (KVF_WIRE_HEADER_BYTES + KVF_WIRE_HELLO_BYTES)
/* Work of one call: reads, writes and accepts. What is left over is reported by epoll again. */
#define KVF_CONTROL_READS_MAX 8u
#define KVF_CONTROL_WRITES_MAX 8u
#define KVF_CONTROL_ACCEPTS_MAX 16u
#define KVF_CONTROL_BACKLOG 128

_Static_assert(KVF_WIRE_LANE_HELLO_BYTES <= KVF_WIRE_HELLO_BYTES, "HELLO is the longer one");

enum kvf_control_state {
    KVF_CONTROL_FREE = 0,
    KVF_CONTROL_CONNECTING,
    KVF_CONTROL_UP,
};

struct kvf_control_peer {
    int fd; /* owned here while not FREE; -1 of a loop */
    uint8_t state;
    bool is_loop;         /* an end of a connection to ourselves; always UP */
    bool is_partner_gone; /* of a loop: the core is to be told */
    bool is_queued;       /* in loop_queue */
    uint32_t partner;     /* of a loop: the other end, KVF_NONE before its HELLO was accepted */
    uint32_t serial;      /* changes with every connection: seen through calls into the core */
    uint32_t epoll_events;
    uint32_t in_bytes;
    uint32_t out_bytes; /* filled by the core only when all of it was sent */
    uint32_t out_sent;
    unsigned char *in; /* KVF_CONTROL_FRAME_BYTES each; a loop uses out alone */
    unsigned char *out;
};

/* An accepted connection of unknown purpose. It reads its first frame and not a byte more, for what
 * follows belongs to somebody else. In a list by age while it has a descriptor. */
struct kvf_control_pending {
    int fd; /* owned here; -1: free */
    uint32_t got_bytes;
    uint64_t since_ns;
    uint32_t prev; /* older */
    uint32_t next; /* younger, or the next free one */
    unsigned char bytes[KVF_CONTROL_FIRST_BYTES];
};

struct kvf_control {
    struct kvf_control_config config;
    struct kvf_core *core;
    int epoll_fd; /* the worker's */
    kvf_control_lane_fn lane_fn;
    void *ctx;
    int listen_fd;
    int spare_fd; /* given up for a moment when descriptors run out, to turn a caller away */
    uint16_t port;
    struct kvf_control_peer *peers;
    unsigned char *buffers;
    struct kvf_control_pending *pendings;
    uint32_t pending_free;
    uint32_t pending_oldest;
    uint32_t pending_youngest;
    uint32_t socket_count; /* peers with a descriptor */
    uint32_t *loop_queue;  /* peers_max each; ends that may owe something, once each */
    uint32_t *loop_turn;   /* those of the turn that is running */
    uint32_t loop_count;
};

/* ---- control_peer.c ---- */

/* Takes a connected descriptor for this peer. On failure the descriptor is closed. 0 or -errno. */
int kvf_control_peer_adopt(struct kvf_control *control, uint32_t peer_idx, int fd,
                           uint8_t state);
void kvf_control_peer_end(struct kvf_control *control, uint32_t peer_idx);
void kvf_control_peer_ready(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx);

/* ---- control_loop.c ---- */

bool kvf_control_is_own(const struct kvf_control *control, const struct kvf_addr_shm *addr);
void kvf_control_loop_connect(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx);
void kvf_control_loop_end(struct kvf_control *control, uint32_t peer_idx);
void kvf_control_loop_want(struct kvf_control *control, uint32_t peer_idx);

#endif

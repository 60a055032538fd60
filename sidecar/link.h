/* What a supervisor and its worker say to each other over their socket pair (SOCK_SEQPACKET, one struct
 * per packet). Both are the same program image, so the structs need no version and no byte order.
 *
 * The supervisor sends what the worker is owed and never waits: each client and region carries flags of
 * what was sent and answered, so nothing queues and a new worker is told everything again. The worker
 * answers every ADD, REMOVE and CLOSE once, in any order between clients. */
#ifndef KVF_SIDECAR_LINK_H
#define KVF_SIDECAR_LINK_H

#include <stdint.h>

#include "ring/layout.h"
#include "ring/operate.h"
#include "sidecar/host/config.h"
#include "sidecar/host/placement.h"
#include "sidecar/run_dir.h"

#define KVF_PEERS_DOWN_MAX 64u
#define KVF_LINK_FD 3 /* the worker finds its end here after exec */

enum kvf_link_op {
    /* supervisor -> worker */
    KVF_LINK_START = 1,  /* struct kvf_link_start; fds: stats */
    KVF_LINK_CLIENT_ADD, /* fds: segment, doorbell, event socket */
    KVF_LINK_CLIENT_CLOSE, /* .code: the reason its rooms get; .value: mask of slots of its regions that this
                              worker has or gets. Again if that became less */
    KVF_LINK_CLIENT_REAPED, /* the engine's process has ended */
    KVF_LINK_REGION_ADD,    /* struct kvf_link_region; fds: memory */
    KVF_LINK_REGION_REMOVE,
    KVF_LINK_GROUP_ADD,      /* struct kvf_link_group, after CLIENT_ADDED */
    KVF_LINK_GROUP_SKIP,     /* .region: the group's handle, .value: the key */
    KVF_LINK_GROUP_DEPARTED, /* .value: a group's id, .code: a rank of it whose client left */
    KVF_LINK_GROUPS_WHOLE, /* every client of earlier workers was told with its groups: they may be
                                answered now */
    KVF_LINK_LOG_LEVEL,    /* .code */
    KVF_LINK_DRAIN,        /* .code: 1 = an operator drains this daemon, 0 = no more */
    KVF_LINK_PEER_HOLD,    /* struct kvf_link_hold, before any CLIENT_ADD of a new worker */
    KVF_LINK_OPERATE, /* struct kvf_link_operate: STATUS, PEERS, ROOMS or RELEASE; one at a time */
    KVF_LINK_COUNT, /* .code: a value of the stats, .value: what is to be added to it: only the worker writes
                       them while it lives */
    KVF_LINK_SHUTDOWN, /* .code: 0 = serve what runs for .value ns more; 1 = close everything now */

    /* worker -> supervisor */
    KVF_LINK_READY = 32,     /* .value: port listened on, .code: enum kvf_link_engine */
    KVF_LINK_CLIENT_ADDED,   /* .code: 0, or a positive code */
    KVF_LINK_CLIENT_QUIET,   /* all its rooms are drained, nothing of it is mapped any more */
    KVF_LINK_CLIENT_BAD,     /* .code: it broke the rules of its segment; its rooms close */
    KVF_LINK_REGION_ADDED,   /* .code */
    KVF_LINK_REGION_REMOVED, /* .code */
    KVF_LINK_GROUP_ADDED,    /* .region: its handle, .code */
    KVF_LINK_GROUP_SKIPPED,  /* .code */
    KVF_LINK_ESCALATE, /* end this worker. .code 0: the fence of lane .value missed its deadline; else: a
                          call on the memory of .client does not return, and the next worker must not make it */
    KVF_LINK_OPERATED, /* struct kvf_link_operated, .value: which OPERATE, .code */
    KVF_LINK_STOPPED, /* .value: rooms that were ended by the shutdown, .code: still undrained */
};

struct kvf_link_msg {
    uint32_t op;
    uint32_t client;
    uint32_t region; /* handle */
    uint32_t code;
    uint64_t value;
};

/* What moves bytes between this daemon and others. */
enum kvf_link_engine {
    KVF_LINK_ENGINE_SOCKETS = 0,
    KVF_LINK_ENGINE_URING,
    KVF_LINK_ENGINE_MEMORY, /* transport local: there are no others */
    KVF_LINK_ENGINE_VERBS,
};

struct kvf_link_start {
    struct kvf_link_msg h;
    struct kvf_config config;
    int32_t supervisor_pid;
    int32_t cpu;            /* to pin to, or KVF_CPU_NONE */
    struct kvf_rails rails; /* of transport verbs; else none, and a memory node of -1 */
    uint32_t pad_;
    uint32_t worker_starts;
    uint64_t supervisor_id; /* upper 40 bits */
    uint64_t worker_epoch;
    uint64_t past_epoch;        /* of the worker before it, 0: none of this supervisor ... */
    uint64_t past_ended_ns;     /* ... and when that was reaped */
    struct kvf_covered covered; /* whose writes a flush over these rails proves */
};

struct kvf_link_plane {
    uint64_t off;
    uint64_t stride;
    uint64_t page_bytes;
};

struct kvf_link_region { /* sent up to the last plane in use */
    struct kvf_link_msg h;
    uint64_t page_count;
    uint64_t memory_off;
    uint64_t memory_bytes;
    uint32_t plane_count;
    uint32_t memory;                              /* enum kvf_region_memory */
    struct kvf_link_plane planes[KVF_PLANES_MAX]; /* validated by the supervisor */
};

struct kvf_link_group {
    struct kvf_link_msg h; /* .region: its handle */
    uint64_t group_id;
    uint32_t rank;
    uint32_t member_count;
    struct kvf_addr_shm members[KVF_GROUP_MEMBERS_MAX]; /* validated by the supervisor */
};

struct kvf_link_hold {
    struct kvf_link_msg h; /* .code: 1 = down, 0 = up; .value: the peer's supervisor, 0: addr */
    struct kvf_addr_shm addr;
};

struct kvf_link_operate {
    struct kvf_link_msg h;      /* .value comes back with the answer */
    struct kvf_operate_req req; /* validated by the supervisor */
};

struct kvf_link_operated { /* sent up to the last row */
    struct kvf_link_msg h;
    struct kvf_operate_rep rep; /* what the worker knows of it */
};

static inline uint64_t kvf_link_epoch(uint64_t supervisor_id, uint32_t worker_starts)
{
    return (supervisor_id & ~UINT64_C(0xffffff)) | worker_starts;
}

#endif

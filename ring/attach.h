/* The messages on the Unix socket between a library and its supervisor. SOCK_SEQPACKET, one struct per
 * packet, descriptors by SCM_RIGHTS. After attach the socket carries regions and says who is alive.
 * Requests are answered in order, one reply each; notices (op >= KVF_NOTE) may come at any time.
 * Values from a client are the world's: the supervisor checks a copy and refuses with a code. */
#ifndef KVF_RING_ATTACH_H
#define KVF_RING_ATTACH_H

#include <stdint.h>

#include "ring/layout.h"

#define KVF_ATTACH_MAGIC UINT32_C(0x6b766661)

enum kvf_attach_op {
    KVF_REQ_ATTACH = 1,     /* -> struct kvf_attach_req; fds: [old segment] when re-attaching */
    KVF_REQ_REGION_ADD = 2, /* -> struct kvf_region_req; fds: memory[, old ledger] */
    KVF_REQ_REGION_REMOVE = 3, /* -> struct kvf_region_req with .region */
    KVF_REQ_GROUP_ADD = 4,     /* -> struct kvf_group_req */
    KVF_REQ_DETACH = 5,        /* rooms close, reply when the daemon will send nothing more */
    KVF_REQ_GROUP_SKIP = 6,    /* -> struct kvf_group_skip_req */
    KVF_REQ_OPERATE = 7,       /* an operator's, who attaches nothing: ring/operate.h */

    KVF_REP_ATTACHED = 101, /* fds: segment, stats (read-only), worker pidfd, doorbell eventfd,
                               event socket */
    KVF_REP_REGION = 102,   /* fds: ledger */
    KVF_REP_OK = 103,
    KVF_REP_GROUP = 105,    /* .region is the group's handle */
    KVF_REP_OPERATED = 106, /* -> struct kvf_operate_rep */
    KVF_REP_REFUSED = 104,  /* .code is a positive KVF_E_* or errno, .text a sentence */

    KVF_NOTE = 200,
    KVF_NOTE_WORKER = 201, /* a new worker serves: .epoch; fds: its pidfd */
};

struct kvf_attach_header {
    uint32_t magic;
    uint16_t op;
    uint16_t layout_major;
    uint32_t serial; /* replies carry the request's */
    uint32_t bytes;  /* whole packet */
};

struct kvf_attach_req {
    struct kvf_attach_header h;
    uint32_t layout_minor;
    uint32_t rooms_max;
    uint32_t cmd_slots;
    uint32_t event_slots;
    uint32_t arena_bytes;
    uint32_t pad_;
    char name[64]; /* for logs and stats */
};

struct kvf_region_req {
    struct kvf_attach_header h;
    uint32_t
        region; /* REMOVE, and ADD with an old ledger: the handle. Else ADD: how many ms to wait
                        for memory whose engine is gone, 0: as long as that may take */
    uint32_t plane_count;
    uint64_t page_count;
    uint64_t memory_off; /* start of the registered range in the descriptor */
    uint64_t memory_bytes;
    /* One per plane: page p covers [off + p * stride, + page_bytes). */
    struct {
        uint64_t off; /* from memory_off */
        uint64_t stride;
        uint64_t page_bytes;
    } planes[KVF_PLANES_MAX];
    uint32_t
        memory; /* enum kvf_region_memory. Since minor 3: a packet that ends before is about host memory */
    uint32_t pad_;
};
_Static_assert(sizeof(struct kvf_region_req) == 56 + 24 * KVF_PLANES_MAX, "region");

struct kvf_group_req { /* whole, whatever member_count is */
    struct kvf_attach_header h;
    uint32_t group; /* 0: the daemon chooses. Else the handle an earlier daemon chose */
    uint32_t rank;
    uint64_t group_id; /* never 0 */
    uint32_t member_count;
    uint32_t pad_;
    struct kvf_addr_shm members[KVF_GROUP_MEMBERS_MAX]; /* in rank order */
};
_Static_assert(sizeof(struct kvf_group_req) == 40 + 24 * KVF_GROUP_MEMBERS_MAX, "group");

struct kvf_group_skip_req {
    struct kvf_attach_header h;
    uint32_t group;
    uint32_t pad_;
    uint64_t key;
};
_Static_assert(sizeof(struct kvf_group_skip_req) == 32, "skip");

struct kvf_attach_rep {
    struct kvf_attach_header h;
    uint32_t code;
    uint32_t region; /* REGION, GROUP: the handle */
    uint64_t epoch;  /* ATTACHED, NOTE_WORKER */
    uint64_t lender; /* refused -EBUSY: room handle (generation << 24 | slot) */
    char text[232];
};
_Static_assert(sizeof(struct kvf_attach_rep) == 272, "reply");

#endif

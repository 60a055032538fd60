/* RDMA devices that do not exist, behind the table through which transport verbs calls libibverbs.
 *
 * Four devices (fake0 to fake3) on one network, all in this process, with a clock that the test moves. They behave
 * as real ones were measured to, where that is worse than one would hope:
 *  - a write travels and lands packet by packet, and what is on the network lands whatever became of its writer:
 *    after a flush, after RETRY_EXC, after the writer's destroy;
 *  - modify to ERR returns while the last packet is still being copied; destroy and dereg wait for that copy;
 *  - a work request that is not signalled completes silently, but not if it fails;
 *  - a list of posts can be taken in part; the send queue is longer than asked, a completion queue exactly as long;
 *  - a completion queue that is full loses completions, says CQ_ERR for each, and everything else goes on;
 *  - a destroy waits for events that were not acknowledged;
 *  - the lowest free queue pair number is given again at once, and who uses it gets the packets for it;
 *  - an RNR, a wrong key and a wrong address end both sides.
 * And on demand they refuse or forget things (knobs below).
 *
 * Any thread: one lock. Time passes and bytes land in fake_advance alone. */
#ifndef KVF_TESTS_FAKE_VERBS_H
#define KVF_TESTS_FAKE_VERBS_H

#include <stdbool.h>
#include <stdint.h>

#include "sidecar/transport/verbs_lib.h"

#define FAKE_DEVICES 4u
#define FAKE_NEVER UINT64_MAX

struct fake_knobs {
    uint64_t delay_ns;         /* of a packet, one way */
    uint64_t packet_ns;        /* between two packets of one queue pair */
    uint32_t packet_bytes;     /* less than the path's MTU: smaller packets; 0: the MTU */
    bool is_stalled;           /* nothing arrives anywhere; it waits on the network */
    bool loses_data;           /* requests vanish ... */
    bool loses_acks;           /* ... or what answers them */
    uint32_t destroys_refused; /* so many destroys of queue pairs answer EBUSY */
    uint32_t stops_refused;    /* so many modifies to ERR answer EIO */
    uint32_t makes_refused;    /* so many creates of queue pairs fail, ENOMEM */
    uint32_t
        posts_taken; /* with is_post_short: how many of the next list's work requests are taken */
    bool is_post_short;
    uint32_t completions_lost; /* so many completions find their queue full */
    uint32_t muted_qpn;        /* its completions are never written */
    bool takes_dmabuf;         /* else EOPNOTSUPP */
    bool loses_reads;          /* RDMA reads vanish */
    uint32_t reads_refused;    /* so many are answered with a NAK */
    uint32_t deregs_refused;   /* EINVAL, as with a window bound */
    uint32_t cq_slots_max;     /* what query_device says; 0: many */
    bool
        loops_need_link; /* a queue pair is joined to its own device only while the port is active */
    bool is_gated;       /* modifies, creates and destroys of queue pairs wait in the middle */
};

struct fake_counts {
    uint64_t landed_bytes;
    uint64_t packets_dropped; /* for a queue pair that is gone, in ERR, or at another number */
    uint64_t duplicates;
    uint64_t resets; /* modifies to RESET or SQD: never right */
    uint64_t overruns;
    uint64_t writes;        /* work requests of data that were posted */
    uint64_t pieces;        /* of them: scatter elements */
    uint64_t largest_write; /* bytes */
    uint64_t longest_list;
    uint64_t signalled;
    uint64_t markers;
    uint64_t gated; /* calls that wait at the gate now */
    uint64_t retries;
    uint64_t refusals_for_want_of_receives;
    uint64_t reads; /* that were answered */
    uint64_t last_read_addr;
    uint64_t qps_made;
    uint64_t objects; /* that exist now: queues, pairs, registrations, domains */
};

/* Forgets everything: no transport may exist. Knobs get their defaults: 20 us of delay, no troubles. */
void fake_reset(void);
const struct kvf_verbs_lib *fake_lib(void);
void fake_get(struct fake_knobs *ret_knobs);
void fake_set(const struct fake_knobs *knobs);
void fake_counts(struct fake_counts *ret_counts);

uint64_t fake_now_ns(void);
uint64_t fake_next_ns(void); /* when something happens; FAKE_NEVER */
void fake_advance(uint64_t until_ns);

struct fake_qp_view {
    bool exists;
    enum ibv_qp_state state;
    uint32_t access;
    uint32_t dest_qpn;
    uint32_t send_psn; /* the first */
    uint32_t expected_psn;
    uint32_t retry;
    uint32_t rnr_retry;
    uint32_t timeout;
    uint32_t mtu_bytes;
    uint32_t receives;
    uint32_t dlid;
    bool is_global;
    uint8_t sgid_index;
};
void fake_qp(uint32_t device, uint32_t qpn, struct fake_qp_view *ret_view);
/* To ERR from outside, as a device does on an error of its own; with or without an event. */
void fake_qp_break(uint32_t device, uint32_t qpn, bool has_event);
/* Uses up the receives of a queue pair: they vanish without completions. */
void fake_qp_starve(uint32_t device, uint32_t qpn);
/* A packet from nowhere: as if a dead connection's write or marker came late. */
void fake_ghost(uint32_t device, uint32_t qpn, uint32_t psn, uint64_t addr, uint32_t rkey,
                const void *bytes, uint32_t count);
/* An event without an object (of the port or the device), or of that queue pair (qpn not 0). */
void fake_event(uint32_t device, enum ibv_event_type type, uint32_t qpn);
void fake_gid(uint32_t device, uint32_t index, const uint8_t gid[16], enum ibv_gid_type type);
void fake_transport(uint32_t device, enum ibv_transport_type type);
void fake_port(uint32_t device, enum ibv_port_state state, uint8_t link_layer, uint16_t lid);

#endif

/* A simulated network with NICs and kernels, under virtual time, behind kvf_transport_ops.
 *
 * Two kinds of lane (struct sim_fabric_options.kind):
 *   SIM_STREAM  the double of tcp: ordered bytes, a send buffer (a post completes once its last byte is handed
 *               over), a receive buffer in the sink's kernel, place_fn asked before every receive.
 *   SIM_NIC     the double of RC verbs: packets with PSNs, ACKs, go-back retransmission, completions, a
 *               responder that writes where the packets say and asks nobody.
 *
 * Three things live apart and end apart, as in a machine:
 *   the process   a transport (sim_transport_create). It sees the world only inside its ops; poll moves.
 *   the kernel    its queue pairs and streams. They go on while the process is frozen, and while it is killed and not
 *                 yet reaped; sim_fabric_reap ends them.
 *   the network   packets under way. They go on when everything that sent them is gone.
 *
 * Whoever owns the process calls ops->poll when wake_fn said so or sim_transport_has_work says so. All callbacks
 * of kvf_transport_host come from within ops; lane_hello_fn, wake_fn, land_fn and read_fn also from within
 * clock events. No state outside a struct sim_fabric: two fabrics in one process never meet. One thread. */
#ifndef KVF_TESTS_SIM_FABRIC_H
#define KVF_TESTS_SIM_FABRIC_H

#include <stdbool.h>
#include <stdint.h>

#include "sidecar/transport/transport.h"
#include "tests/sim/clock.h"
#include "tests/sim/random.h"

#define SIM_HOSTS_MAX 32u
/* The rest of a started frame whose post was detached: its bytes, and its tag. */
#define SIM_FILLER_BYTE 0xfbu
#define SIM_FILLER_TAG UINT64_C(0xfbfbfbfbfbfbfbfb)

struct sim_fabric;

enum sim_kind { SIM_STREAM = 1, SIM_NIC = 2 };

/* ---- what the caller sees of every byte ------------------------------------------------------------- */

/* One access of a NIC or of a process to some bytes of one page. Bytes are counted within the page, over its
 * planes in order. A range never crosses a page. */
struct sim_touch {
    uint32_t host;  /* whose memory: reads, the source's host; landings, the sink's */
    uint32_t lane;  /* of that host's transport: the queue pair or stream that does it */
    uint32_t epoch; /* of that queue pair or stream */
    uint32_t client;
    uint32_t region; /* as kvf_post / kvf_placement_at / sim_remote name it */
    uint32_t page;
    uint64_t off;
    uint64_t bytes;
    uint32_t from_host;          /* landings: who sent it */
    uint32_t from_epoch;         /* landings: epoch of the lane on which it was sent */
    const struct kvf_post *post; /* the source's: handle, position and cookie */
    bool is_last;                /* last byte of its post */
    bool is_late; /* landings: its writer's queue pair or stream had ended or erred by then */
    bool
        is_ghost; /* landings: from_epoch or sender is not what this queue pair was connected to */
    bool is_again; /* reads: a retransmission reads the page once more */
};

/* Reads: put what these bytes are into *ret_tag (and into `buffer`, touch->bytes long, if
 * carries_bytes; else NULL). Landings get the same tag (and bytes) back. 0, or -EFAULT: memory that is not there.
 * Without hooks bytes are copied from and to the memory that region_fn of the transport's host names. */
typedef int (*sim_read_fn)(void *ctx, const struct sim_touch *touch, uint64_t *ret_tag,
                           void *buffer);
typedef int (*sim_land_fn)(void *ctx, const struct sim_touch *touch, uint64_t tag,
                           const void *buffer);

/* NIC only: what rkey + address of a post stand for at the sink. Asked when the post is handed to the NIC, and
 * never again: whatever happens to the grant, the packets go where this said. */
struct sim_remote {
    uint32_t client;
    uint32_t region;
    uint32_t page_first;
    uint32_t key; /* of sim_fabric_register; 0: not checked at landing */
};
/* lane, epoch: of the source's transport. 0 or -errno: the post then fails like a bad key at the NIC. */
typedef int (*sim_remote_fn)(void *ctx, uint32_t source_host, uint32_t sink_host, uint32_t lane,
                             uint32_t epoch, const struct kvf_post *post,
                             struct sim_remote *ret_remote);

/* A lane's LANE_HELLO reached a listening process. Answer, now or later, with ops->open(accepted_fd =
 * token) on its transport or with sim_fabric_refuse(token). Not called while the host is frozen. */
typedef void (*sim_lane_hello_fn)(void *ctx, uint32_t host,
                                  const struct kvf_wire_lane_hello *hello, int token);
/* The host's transport has something for poll. Told once until the next poll. Not while frozen or killed. */
typedef void (*sim_wake_fn)(void *ctx, uint32_t host);

/* ---- options ---------------------------------------------------------------------------------------- */

/* One direction between two hosts. Zero: at once and without a fault. */
struct sim_link {
    uint64_t delay_min_ns;
    uint64_t delay_max_ns;
    uint64_t gap_ns;           /* between two packets of one lane: a rate */
    uint32_t loss_per_million; /* of packets; a stream's kernel sends again after rto_ns */
    uint32_t
        duplicate_per_million; /* of packets: a second copy, delayed anew (streams: nothing to see) */
    uint32_t
        reorder_per_million; /* of packets: one is delayed anew and overtaken on its own lane */
    bool is_cut;             /* whatever arrives is lost */
    bool is_stalled;         /* whatever arrives waits, in order, until it is not */
};

struct sim_fabric_options {
    enum sim_kind kind;
    uint32_t hosts;
    struct sim_link link; /* all links at the beginning */
    uint32_t mtu_bytes;   /* largest packet or segment; 0: 4096 */
    bool carries_bytes;   /* hooks get buffers; without hooks always so */
    uint64_t rto_ns;      /* streams and handshakes: resend after a loss; 0: 200 ms, as Linux */
    uint64_t
        user_timeout_ns; /* a stream with bytes unacknowledged, or a handshake, gives up after it; 0:
                                 10 s; SIM_NEVER */
    void *ctx;           /* of all hooks below; each may be NULL but remote_fn of a NIC */
    sim_land_fn land_fn;
    sim_read_fn read_fn;
    sim_remote_fn remote_fn;
    sim_lane_hello_fn lane_hello_fn;
    sim_wake_fn wake_fn;
};

/* How one process, its kernel and its NIC behave. Zero is a working value for each; what it means is told. */
struct sim_transport_options {
    /* both kinds: a fence returns this long after its call; 0, 0: within it */
    uint64_t fence_min_ns;
    uint64_t fence_max_ns;
    uint32_t refuse_post_per_million; /* ops->post answers -ENOMEM */
    /* streams */
    uint64_t send_buffer_bytes;    /* 0: 64 KiB */
    uint64_t receive_buffer_bytes; /* 0: 64 KiB */
    uint32_t
        frame_bytes_max; /* a frame takes whole pages up to this, at least one; 0: 256 KiB */
    uint32_t short_receive_per_million; /* a receive takes a random part of what is there */
    /* NIC */
    uint32_t sq_depth;       /* send queue of the NIC: the rest waits in the transport; 0: 31 */
    uint32_t receives;       /* posted per queue pair, for markers; 0: 256 */
    uint32_t cq_depth;       /* one completion queue per transport; 0: enough for all */
    uint32_t signal_every;   /* 0: 16; the last of a doorbell always is signalled */
    uint32_t window_packets; /* unacknowledged at once; 0: 64 */
    uint32_t ack_every;      /* an ACK per so many packets and per last of a message; 0: 8 */
    uint64_t ack_timeout_ns; /* 0: 67,108,864 (timeout 14) */
    uint32_t retry_cnt;      /* 0: 3; 7: for ever [T9] */
    uint32_t rnr_retry;      /* 0: 6; 7: for ever */
    uint64_t rnr_wait_ns;    /* 0: 1 ms */
    uint64_t
        completion_deadline_ns; /* no progress with posts out for so long: the lane is lost; 0: 2 s */
    uint32_t
        slow_place_per_million; /* a packet accepted is placed only place_max_ns later at most */
    uint64_t place_max_ns;
    uint32_t lose_cqe_per_million; /* a completion never comes */
    /* planted faults, for controls and mutants */
    bool constant_psn; /* every queue pair begins at the same PSN */
    bool reuse_qpn;    /* a queue pair gets the number of the last one destroyed */
    bool
        unstrict_fence; /* NIC: answers after modify, without destroy. Streams: the kernel goes on placing what
                             it has received, though the fence returned */
    bool trust_flush; /* NIC: a sink's fence only flushes; its queue pair goes on answering */
};

/* ---- a fabric ----------------------------------------------------------------------------------------- */

/* The clock is the caller's. NULL without memory. */
struct sim_fabric *sim_fabric_create(struct sim_clock *clock,
                                     const struct sim_fabric_options *options, uint64_t seed);
/* As if newly made; keeps its memory. Every transport must be closed. The clock was reset by the caller:
 * events of before must not run any more. */
void sim_fabric_reset(struct sim_fabric *fabric, const struct sim_fabric_options *options,
                      uint64_t seed);
/* Every transport must be closed. */
void sim_fabric_destroy(struct sim_fabric *fabric);

/* The process of `host`; one at a time. -EBUSY if there is one that was not reaped or closed, -EHOSTDOWN.
 * ops->close ends the process in good order: kernel objects go with it, pages are proven idle, memory is freed.
 * It is also what frees the memory of a reaped one; then it calls nobody. */
int sim_transport_create(struct sim_fabric *fabric, uint32_t host,
                         const struct kvf_transport_config *config,
                         const struct kvf_transport_host *transport_host,
                         const struct sim_transport_options *options,
                         struct kvf_transport **ret_transport);
extern const struct kvf_transport_ops kvf_sim_ops;
/* Whether poll has something to do now. */
bool sim_transport_has_work(const struct kvf_transport *t);
/* Changes how it behaves from now on (depths: for lanes opened from now on). */
void sim_transport_set(struct kvf_transport *t, const struct sim_transport_options *options);

/* Connections to this address reach `host` from now on: also how a replacement takes an address over. */
void sim_fabric_listen(struct sim_fabric *fabric, uint32_t host,
                       const struct kvf_addr_shm *addr);
/* KVF_NONE: nobody has it. */
uint32_t sim_fabric_host_at(const struct sim_fabric *fabric, const struct kvf_addr_shm *addr);
/* Says no to a token of lane_hello_fn: the other end is lost with ECONNREFUSED. */
void sim_fabric_refuse(struct sim_fabric *fabric, int token);

/* NIC: a memory registration of `host`. Its key is checked for every packet that names it. 0 is no key. */
uint32_t sim_fabric_register(struct sim_fabric *fabric, uint32_t host, uint32_t client,
                             uint32_t region);
/* Strict: nothing lands through this key once it returned. */
void sim_fabric_deregister(struct sim_fabric *fabric, uint32_t host, uint32_t key);

/* ---- misfortune ----------------------------------------------------------------------------------------- */

void sim_link_get(const struct sim_fabric *fabric, uint32_t from, uint32_t to,
                  struct sim_link *ret_link);
/* What was held by a stall arrives now, in order, if this ends it. */
void sim_link_set(struct sim_fabric *fabric, uint32_t from, uint32_t to,
                  const struct sim_link *link);
/* For connections of the caller's own (control frames): when something that is sent now on an ordered,
 * reliable connection arrives, losses included. *flow_ns keeps the connection's order (begin with 0). SIM_NEVER:
 * the link is cut or stalled, or a host is down; ask again later. */
uint64_t sim_link_arrival(struct sim_fabric *fabric, uint32_t from, uint32_t to,
                          struct sim_random *luck, uint64_t *flow_ns);

/* The process stops and comes back: kernel and NIC go on. What it was to hear meanwhile it hears on thaw. */
void sim_fabric_freeze(struct sim_fabric *fabric, uint32_t host);
void sim_fabric_thaw(struct sim_fabric *fabric, uint32_t host);
/* SIGKILL: the process does nothing more; call none of its ops but close, after the reap. Its queue pairs and
 * streams go on. */
void sim_fabric_kill(struct sim_fabric *fabric, uint32_t host);
/* Its kernel has ended them, strictly: nothing of that process touches a page from here on. A new transport may
 * be created at once. */
void sim_fabric_reap(struct sim_fabric *fabric, uint32_t host);
/* Power off: no process, no kernel, no answer. The transport, if any, counts as reaped. */
void sim_fabric_host_down(struct sim_fabric *fabric, uint32_t host);
void sim_fabric_host_up(struct sim_fabric *fabric, uint32_t host);
/* Fences of this host called from now on, and those pending, do not return before until_ns (SIM_NEVER: not at all),
 * and their queue pairs go on as if nobody had asked. A reap ends it. 0: back to normal. */
void sim_fabric_fence_hang(struct sim_fabric *fabric, uint32_t host, uint64_t until_ns);
/* Something in the middle resets this lane's stream (both ends hear of it) or, NIC, puts the host's queue pair into
 * error. */
void sim_fabric_break_lane(struct sim_fabric *fabric, uint32_t host, uint32_t lane);

/* ---- counters ------------------------------------------------------------------------------------------- */

struct sim_fabric_counters {
    uint64_t packets;            /* sent: packets with payload or marker, or segments */
    uint64_t packets_lost;       /* by links */
    uint64_t packets_duplicated; /* by links */
    uint64_t packets_again;      /* retransmissions */
    uint64_t landings;           /* land_fn calls that returned 0 */
    uint64_t landings_late;      /* of those: the writer had ended or erred */
    uint64_t
        landings_ghost; /* of those: a packet of another epoch. Never, without planted faults */
    uint64_t bytes_landed;
    uint64_t bytes_scratch;    /* payload that place_fn sent to scratch */
    uint64_t refused_no_qp;    /* packets for a queue pair that is gone: the fence at work */
    uint64_t refused_qp_state; /* for one in error or not yet connected */
    uint64_t refused_psn;      /* out of the window, or a duplicate */
    uint64_t refused_key;      /* of a deregistered region */
    uint64_t
        refused_bytes; /* payload in the packets of the four lines above, plus segments for a stream that
                                     is gone */
    uint64_t segments_refused; /* for a stream that is gone */
    uint64_t reads;
    uint64_t markers;
    uint64_t rnr_naks;
    uint64_t retry_exceeded; /* queue pairs that gave up */
    uint64_t flushed;        /* posts that completed by a flush */
    uint64_t cq_overruns;
    uint64_t cqes_lost;
    uint64_t deadline_losses; /* lanes lost by the software deadline */
    uint64_t landed_unacked;  /* posts wholly placed whose writer got an error completion */
    uint64_t fences;
    uint64_t hellos;
};
const struct sim_fabric_counters *sim_fabric_counters(const struct sim_fabric *fabric);

#endif

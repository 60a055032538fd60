/* What the files of the simulated fabric share.
 *
 *   fabric.c          hosts, links, what is held, lives and deaths
 *   sim_duct.c        a duct: the two ends of one lane; how it comes up, how one end hears of the other's
 *   sim_stream.c      bytes of a duct of kind SIM_STREAM: the two kernels
 *   sim_nic.c         queue pairs and packets: the two NICs
 *   sim_nic_lane.c    the process' side of a queue pair: doorbells, completions, deadlines
 *   transport_sim.c   the ops table
 *
 * Events of the clock name objects by index and generation, never by address alone, unless the event itself
 * owns the object (a packet). So an object can go while events that meant it are still to come. */
#ifndef KVF_TESTS_SIM_FABRIC_INTERNAL_H
#define KVF_TESTS_SIM_FABRIC_INTERNAL_H

#include "tests/sim/fabric.h"

#define SIM_QP_SLOTS_BITS 12u
#define SIM_QP_SLOTS (UINT32_C(1) << SIM_QP_SLOTS_BITS)
#define SIM_PSN_MASK UINT32_C(0xffffff)
#define SIM_PSN_CONSTANT UINT32_C(0x1000)
#define SIM_SEGMENT_COST 32u /* bytes of buffer that even an empty segment takes */
#define SIM_PACKETS_PER_CHUNK 64u
#define SIM_TURN_CQES 256u /* completions of one poll */

struct sim_transport;

enum sim_side { SIM_SINK = 0, SIM_SOURCE = 1 };

/* ---- packets ---------------------------------------------------------------------------------------------- */

enum sim_packet_op {
    SIM_OP_WRITE = 1,
    SIM_OP_MARKER, /* write with immediate: takes a receive */
    SIM_OP_ACK,
    SIM_OP_NAK_SEQ,
    SIM_OP_NAK_RNR,
    SIM_OP_NAK_ACCESS,
};

struct sim_packet {
    struct sim_packet *next;
    uint8_t op;
    bool is_first;
    bool is_last;
    bool wants_ack;
    bool is_again;
    uint32_t from_host;
    uint32_t from_qpn;
    uint32_t from_epoch;
    uint32_t to_host;
    uint32_t to_qpn;
    uint32_t psn;
    uint64_t tie; /* of the connection it was sent on: what no real packet carries */
    uint32_t page_idx;
    uint64_t off;
    uint32_t bytes;
    uint64_t tag;
    uint64_t place_ns;
    unsigned char *buffer; /* mtu_bytes, or NULL */
    struct kvf_post post;
    struct sim_remote remote;
};

/* ---- queue pairs: what a NIC knows ------------------------------------------------------------------------ */

enum sim_qp_state { SIM_QP_FREE = 0, SIM_QP_INIT, SIM_QP_RTS, SIM_QP_ERR };

struct sim_wr {
    struct kvf_post post;
    struct sim_remote remote;
    uint32_t entry_seq; /* the transport's name of it */
    uint32_t psn;       /* of its first packet */
    uint32_t packets;
    uint32_t packets_per_page;
    uint64_t page_bytes;
    bool is_signalled;
    bool is_bad_key;
};

struct sim_qp {
    uint32_t host;
    uint32_t slot;
    uint32_t qpn;
    uint32_t gen; /* counts uses of the slot, for events */
    uint8_t state;
    bool is_sink;
    struct sim_transport *transport;
    uint32_t lane;
    uint32_t epoch;
    uint32_t lane_serial;
    uint64_t tie;
    uint32_t peer_host;
    uint32_t peer_qpn;
    struct sim_random luck;
    uint64_t
        flow_ns; /* arrival of the last packet sent: packets of a queue pair stay in order */
    /* requester */
    struct sim_wr *sq; /* sq_cap of them, a power of two at least sq_depth */
    uint32_t sq_cap;
    uint32_t sq_depth;
    uint32_t sq_head; /* free-running */
    uint32_t sq_tail;
    uint32_t sq_cursor; /* next to send: packet `cursor_packet` of this one */
    uint32_t cursor_packet;
    uint32_t una_psn;
    uint32_t cursor_psn;
    uint32_t next_psn; /* one beyond the last that was ever sent */
    uint32_t post_psn; /* of the next request to be posted */
    uint32_t retry_count;
    uint32_t rnr_count;
    uint64_t
        timer_ns; /* when the oldest unacknowledged packet is given up for lost; SIM_NEVER */
    uint64_t timer_event_ns; /* of the earliest event that is under way for it */
    uint64_t pause_ns;       /* sends nothing before: RNR */
    /* responder */
    uint32_t expected_psn;
    uint32_t unacked_count;
    uint32_t receives;
    bool in_message;
    bool has_naked;           /* one NAK per gap */
    struct sim_remote remote; /* of the message that is coming in */
    struct sim_packet *placing_head;
    struct sim_packet *placing_tail;
};

/* A completion queue entry. */
struct sim_cqe {
    uint32_t lane;
    uint32_t lane_serial;
    uint32_t entry_seq;  /* of a send */
    uint32_t handle;     /* of a receive */
    int status;          /* 0 or a positive errno of ours */
    uint8_t marker_kind; /* receive: KVF_LANE_END or _DRAIN; 0: a send */
    bool is_taken;
};

/* ---- ducts: one lane between two hosts ---------------------------------------------------------------------- */

enum sim_end_state {
    SIM_END_NONE = 0, /* source: not yet accepted */
    SIM_END_CONNECTING,
    SIM_END_UP,
    SIM_END_BROKEN, /* the kernel knows that it is over; the process may not */
    SIM_END_GONE,
};

struct sim_end {
    uint32_t host;
    uint32_t lane;
    uint32_t lane_serial;
    struct sim_transport *transport;
    uint32_t qp; /* slot + 1 */
    uint32_t qp_gen;
    uint8_t state;
};

/* Segments of a stream: [head, arrived) in the sink's receive buffer, [arrived, sent) under way, [sent, tail) in the
 * source's send buffer. */
struct sim_segment {
    struct kvf_post post;
    uint8_t kind; /* as it left: an END may leave as DRAIN; 0: the end of the stream */
    bool is_filler;
    bool is_last;
    bool ends_page;
    uint32_t page_idx;
    uint64_t off;
    uint32_t bytes;
    uint64_t tag;
    uint64_t arrive_ns;
    unsigned char *buffer;
};

struct sim_duct {
    uint32_t idx;
    uint32_t gen;
    bool is_used;
    uint64_t tie;
    struct kvf_wire_lane_hello hello;
    struct sim_end end[2];
    struct sim_random luck;
    uint64_t flow_ns[2]; /* order of what goes to each side */
    bool is_asking;      /* its LANE_HELLO waits for an answer */
    bool is_held;        /* its LANE_HELLO waits for the process to run */
    struct sim_duct *held_next;
    uint32_t sink_qpn;
    uint32_t source_qpn;
    uint32_t source_psn;
    /* stream */
    struct sim_segment *segments;
    uint32_t segment_cap;
    uint32_t head;
    uint32_t arrived;
    uint32_t sent;
    uint32_t tail;
    uint32_t head_got;    /* bytes of segment `head` that the sink has taken */
    uint64_t handed_cost; /* running totals, SIM_SEGMENT_COST at least per segment */
    uint64_t sent_cost;
    uint64_t arrived_cost;
    uint64_t read_cost;
    uint64_t acked_cost;       /* what the source's kernel knows of arrived_cost ... */
    uint64_t read_known_cost;  /* ... and of read_cost */
    uint64_t ack_arrived_cost; /* what the ACK under way says */
    uint64_t ack_read_cost;
    uint64_t stuck_since_ns; /* SIM_NEVER: moving */
    bool has_arrival;        /* an event is under way */
    bool has_ack;
};

/* ---- processes ------------------------------------------------------------------------------------------------ */

enum sim_lane_state {
    SIM_LANE_FREE = 0,
    SIM_LANE_OPENING,
    SIM_LANE_UP,
    SIM_LANE_LOST,
    SIM_LANE_FENCING,
};

struct sim_entry {
    struct kvf_post post;
    uint64_t page_bytes;
    bool is_dead; /* was completed where it stood; exists only while detach runs */
    bool is_cut;  /* an END whose data was taken back: leaves as DRAIN, completes -ECANCELED */
};

struct sim_lane {
    uint8_t state;
    bool is_sink;
    bool is_marked;
    bool owes_up;
    bool is_fence_due; /* the kernel has answered: poll tells */
    bool is_fence_begun;
    bool is_fence_parked; /* the kernel does not answer */
    int lost_err;         /* to be told */
    uint32_t epoch;
    uint32_t serial; /* changes when a lane begins or ends */
    uint32_t duct;   /* index + 1 */
    uint32_t duct_gen;
    uint32_t mark_next;
    /* posts: [head, sent) with the kernel or NIC and not told, [sent, tail) waiting */
    struct sim_entry *entries;
    uint32_t head;
    uint32_t sent;
    uint32_t tail;
    /* stream, source: where the first unsent post stands */
    uint32_t next_page;
    uint64_t next_off;
    uint32_t
        frame_left_pages; /* of a started frame, the page in hand included; 0: between frames */
    struct kvf_post filler_post; /* of a started frame whose post is gone: its rest is filler */
    uint64_t filler_page_bytes;
    uint32_t filler_page;
    uint64_t filler_off;
    uint32_t filler_left_pages; /* 0: none */
    uint8_t detach_depth;
    /* stream, sink */
    bool is_forced_scratch; /* the page in hand faulted */
    /* NIC, source: a place in the list of lanes by their last progress */
    uint64_t progress_ns;
    uint32_t wait_next; /* lane + 1 */
    uint32_t wait_prev;
    bool is_waiting;
};

struct sim_transport {
    struct sim_fabric *fabric;
    uint32_t host;
    uint64_t incarnation; /* unique in the fabric */
    struct kvf_transport_config config;
    struct kvf_transport_host calls;
    struct sim_transport_options options;
    bool is_gone;  /* reaped: only close is left */
    bool is_awake; /* wake_fn was told */
    struct sim_lane *lanes;
    uint32_t mark_head;
    uint32_t mark_tail;
    uint32_t mark_count;
    struct sim_cqe *cq;
    uint32_t cq_cap;
    uint32_t cq_head;
    uint32_t cq_tail;
    bool is_cq_broken;
    bool is_cq_told;
    uint32_t wait_head; /* lane + 1 */
    uint32_t wait_tail;
    bool has_deadline; /* an event is under way */
    bool is_deadline_due;
};

/* ---- hosts and the fabric ------------------------------------------------------------------------------------- */

struct sim_registration {
    uint32_t client;
    uint32_t region;
    bool is_live;
};

struct sim_node {
    bool is_down;
    bool is_frozen;
    bool is_killed; /* and not reaped */
    bool owes_wake;
    struct sim_transport *transport;
    uint64_t hang_until_ns;     /* 0: fences return */
    struct sim_duct *held_head; /* LANE_HELLOs of a process that does not run */
    struct sim_duct *held_tail;
    struct sim_qp **qps; /* qp_count in use or free */
    uint32_t qp_count;   /* slots used since the last reset */
    uint32_t qp_made;    /* slots that have memory */
    uint32_t qp_cap;
    uint32_t *qp_free; /* a ring of SIM_QP_SLOTS: oldest first */
    uint32_t qp_free_head;
    uint32_t qp_free_tail;
    struct sim_registration *registrations; /* key - 1 */
    uint32_t registration_count;
    uint32_t registration_cap;
};

struct sim_held {
    sim_event_fn fn;
    void *ctx;
    uint64_t a;
    uint64_t b;
};

struct sim_route {
    struct sim_link link;
    struct sim_held *held;
    uint32_t held_count;
    uint32_t held_cap;
};

struct sim_listener {
    struct kvf_addr_shm addr;
    uint32_t host;
};

struct sim_chunk {
    struct sim_chunk *next;
};

struct sim_fabric {
    struct sim_clock *clock;
    struct sim_fabric_options options;
    uint64_t seed;
    uint64_t next_tie;
    uint64_t next_incarnation;
    struct sim_fabric_counters counters;
    struct sim_node nodes[SIM_HOSTS_MAX];
    struct sim_route *routes; /* hosts x hosts */
    struct sim_listener listeners[SIM_HOSTS_MAX];
    uint32_t listener_count;
    struct sim_duct **ducts;
    uint32_t duct_count;
    uint32_t duct_cap;
    uint32_t *duct_free;
    uint32_t duct_free_count;
    struct sim_packet *packet_free;
    struct sim_chunk *chunks; /* all memory of packets */
    void *buffer_free;
    struct sim_chunk *buffer_chunks;
    uint32_t buffer_bytes;
};

/* ---- fabric.c ------------------------------------------------------------------------------------------------- */

struct sim_route *simnet_fabric_route(struct sim_fabric *f, uint32_t from, uint32_t to);
/* Whether what arrives now over this link gets through. False: it was held (fn will be called again when the stall
 * ends; *ret_held) or lost. */
bool simnet_fabric_passes(struct sim_fabric *f, uint32_t from, uint32_t to, sim_event_fn fn,
                          void *ctx, uint64_t a, uint64_t b, bool *ret_held);
uint64_t simnet_fabric_delay(const struct sim_link *link, struct sim_random *luck);
unsigned char *simnet_buffer_get(struct sim_fabric *f);
void simnet_buffer_put(struct sim_fabric *f, unsigned char *buffer);
struct sim_packet *simnet_packet_get(struct sim_fabric *f);
void simnet_packet_put(struct sim_fabric *f, struct sim_packet *packet);
/* Whether hooks move bytes, and not only tags. */
bool simnet_fabric_has_bytes(const struct sim_fabric *f);
int simnet_fabric_read(struct sim_fabric *f, struct sim_transport *t,
                       const struct sim_touch *touch, uint64_t *ret_tag, void *buffer);
/* Lands and counts. 0 or -EFAULT. */
int simnet_fabric_land(struct sim_fabric *f, struct sim_transport *t,
                       const struct sim_touch *touch, uint64_t tag, const void *buffer);
void simnet_fabric_wake(struct sim_fabric *f, uint32_t host);
/* The kernel takes back everything that this process had. */
void simnet_fabric_end_process(struct sim_fabric *f, struct sim_transport *t, bool is_silent);

/* ---- sim_duct.c ----------------------------------------------------------------------------------------------- */

struct sim_duct *simnet_duct_of(struct sim_fabric *f, uint32_t idx_plus_1, uint32_t gen);
struct sim_duct *simnet_duct_of_lane(struct sim_transport *t, uint32_t lane_idx);
int simnet_duct_connect(struct sim_transport *t, uint32_t lane_idx,
                        const struct kvf_lane_open *open);
int simnet_duct_accept(struct sim_transport *t, uint32_t lane_idx, int token);
/* A LANE_HELLO that waited for its process to run. */
void simnet_duct_ask(struct sim_fabric *f, struct sim_duct *d);
struct sim_duct *simnet_duct_of_token(struct sim_fabric *f, int token);
/* Takes back all that it had; its memory stays for the next one. */
void simnet_duct_forget(struct sim_duct *d);
void simnet_duct_refuse(struct sim_fabric *f, struct sim_duct *d);
/* Those that asked a process that is gone. */
void simnet_duct_refuse_all(struct sim_fabric *f, uint32_t host);
/* This end is over in its kernel: nothing comes in or goes out any more. is_abrupt: what was handed over and not sent
 * is thrown away. is_silent: the other end is not told. */
void simnet_duct_end(struct sim_fabric *f, struct sim_duct *d, enum sim_side side,
                     bool is_abrupt, bool is_silent);
/* The kernel of this end found out that it is over, and tells its process. */
void simnet_duct_break(struct sim_fabric *f, struct sim_duct *d, enum sim_side side, int err);
/* Tells the other end, over the network. */
void simnet_duct_tell(struct sim_fabric *f, struct sim_duct *d, enum sim_side to, int err);

/* ---- sim_stream.c --------------------------------------------------------------------------------------------- */

void simnet_stream_drop(struct sim_fabric *f, struct sim_duct *d, uint32_t from_seq);
/* What the sink's process will not read any more. */
void simnet_stream_refuse_unread(struct sim_fabric *f, struct sim_duct *d);
void simnet_stream_append_end(struct sim_fabric *f, struct sim_duct *d);
void simnet_stream_transmit(struct sim_fabric *f, struct sim_duct *d);
uint64_t simnet_stream_source_turn(struct sim_transport *t, uint32_t lane_idx);
uint64_t simnet_stream_sink_turn(struct sim_transport *t, uint32_t lane_idx);
/* Planted: what the kernel still places though the fence returned. */
void simnet_stream_leak(struct sim_transport *t, uint32_t lane_idx);

/* ---- sim_nic.c ------------------------------------------------------------------------------------------------ */

struct sim_qp *simnet_qp_create(struct sim_fabric *f, struct sim_transport *t,
                                uint32_t lane_idx, struct sim_duct *d, enum sim_side side);
struct sim_qp *simnet_qp_of_end(struct sim_fabric *f, const struct sim_end *end);
void simnet_qp_connect(struct sim_qp *qp, uint32_t peer_host, uint32_t peer_qpn,
                       uint32_t own_psn, uint32_t peer_psn);
/* To ERR: a requester's posts are flushed, a responder goes silent. What is being placed is still being placed. */
void simnet_qp_to_error(struct sim_fabric *f, struct sim_qp *qp);
/* Strict: what is being placed lands now, before it returns. */
void simnet_qp_destroy(struct sim_fabric *f, struct sim_qp *qp);
/* Lands what is being placed, now. */
void simnet_qp_place_all(struct sim_fabric *f, struct sim_qp *qp);
/* Posts a list; a prefix of it may be taken. Returns how many. */
uint32_t simnet_qp_post(struct sim_fabric *f, struct sim_qp *qp, const struct sim_wr *list,
                        uint32_t count);

/* ---- sim_nic_lane.c ------------------------------------------------------------------------------------------- */

void simnet_cq_push(struct sim_transport *t, struct sim_random *luck,
                    const struct sim_cqe *cqe);
bool simnet_cq_has_work(const struct sim_transport *t);
uint64_t simnet_cq_turn(struct sim_transport *t);
/* Completions of this lane that wait in the queue, now; markers of a fenced lane are dropped. */
void simnet_cq_reap_lane(struct sim_transport *t, uint32_t lane_idx);
void simnet_nic_doorbell(struct sim_transport *t, uint32_t lane_idx);
void simnet_wait_progress(struct sim_transport *t, uint32_t lane_idx);
void simnet_wait_remove(struct sim_transport *t, uint32_t lane_idx);
uint64_t simnet_wait_turn(struct sim_transport *t);

/* ---- transport_sim.c ------------------------------------------------------------------------------------------ */

void simnet_lane_mark(struct sim_transport *t, uint32_t lane_idx);
/* The lane is over: the process hears of it at its next poll, or now if it is in poll. */
void simnet_lane_lose(struct sim_transport *t, uint32_t lane_idx, int err);
struct sim_entry *simnet_entry_at(const struct sim_transport *t, const struct sim_lane *lane,
                                  uint32_t seq);
/* Tells what was sent, up to but without `to`, with status 0 (or the lane's own of a cut END). */
void simnet_lane_complete(struct sim_transport *t, uint32_t lane_idx, uint32_t to, int status);
/* The first unsent post's pages cannot be read. */
void simnet_lane_read_fault(struct sim_transport *t, uint32_t lane_idx);
/* Fences of a host whose kernel answers again. */
void simnet_fences_go_on(struct sim_transport *t);

#endif

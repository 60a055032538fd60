/* What two daemons say to each other: frames of the control connection and headers on a lane's stream.
 *
 * All integers little-endian. A control frame is a 16-byte header and at most KVF_WIRE_PAYLOAD_MAX bytes.
 * The first frame of an accepted connection says what the connection is: HELLO makes it a control
 * connection, LANE_HELLO makes it a lane, after which only lane frames follow.
 * Encoding and decoding are pure: bytes in, structs out. A decoder refuses what is short, long, out of
 * range or of an unknown type; it never reads past `bytes`. */
#ifndef KVF_CORE_WIRE_H
#define KVF_CORE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define KVF_WIRE_MAGIC UINT32_C(0x4366766b) /* "kvfC" */
#define KVF_LANE_MAGIC UINT32_C(0x4c66766b) /* "kvfL" */
#define KVF_WIRE_VERSION_MAJOR 2u
#define KVF_WIRE_VERSION_MINOR 0u
#define KVF_WIRE_HEADER_BYTES 16u
#define KVF_WIRE_PAYLOAD_MAX 65536u
#define KVF_LANE_HEADER_BYTES 32u
/* Payloads of the two first frames: a receiver can read exactly one of them and not a byte more. */
#define KVF_WIRE_HELLO_BYTES 72u
#define KVF_WIRE_LANE_HELLO_BYTES 16u
#define KVF_WIRE_GROUP_BYTES 28u
#define KVF_LANES_MAX 8u
#define KVF_WIRE_PLANES_MAX 512u
#define KVF_WIRE_KEYS_MAX 8u
#define KVF_WIRE_NAME_BYTES 32u
/* A GRANT fragment carries at most this many runs; a longer list spans frames and acts when whole. */
#define KVF_WIRE_RUNS_PER_FRAME 5000u

/* Capability bits of HELLO. A peer without DRAIN_PROOF is refused before any byte moves. */
#define KVF_CAP_DRAIN_PROOF 1u
#define KVF_CAP_GROUP                                                                          \
    2u /* speaks GROUP; one that does not is never settled, only out of reach */

enum kvf_wire_type {
    KVF_WIRE_HELLO = 1, /* both ways, first; the sink's side (the one that connects) begins */
    KVF_WIRE_LANE_HELLO = 2, /* first frame of a lane's stream, from the sink's side */
    KVF_WIRE_REGION = 3,     /* sink -> source, before the first GRANT that names it */
    KVF_WIRE_GRANT = 4,      /* sink -> source */
    KVF_WIRE_ACCEPT = 5,     /* source -> sink: one marker per lane of the mask follows */
    KVF_WIRE_DECLINE = 6,    /* source -> sink: nothing was or will be posted */
    KVF_WIRE_ABORT = 7,      /* sink -> source; nonce 0: the GRANT never left */
    KVF_WIRE_ENDED = 8,      /* source -> sink, a hint: reason and broken lanes */
    KVF_WIRE_LANE =
        9, /* source -> sink: this lane is up at this epoch. Queue pairs: first sink -> source
                          with its end, then back with the source's; a stream needs no first one */
    KVF_WIRE_GROUP = 10, /* a question from the side that connected, its answer back */
    KVF_WIRE_PING = 11,
    KVF_WIRE_PONG = 12,
};

struct kvf_wire_header {
    uint8_t version_major;
    uint8_t type;
    uint32_t payload_bytes;
    uint32_t seq; /* counts frames of this direction from 0 */
};

enum kvf_wire_transport {
    KVF_WIRE_TCP = 1,
    KVF_WIRE_VERBS = 2,
    KVF_WIRE_SIM = 3,
    KVF_WIRE_LOCAL = 4, /* speaks to itself alone */
};
enum kvf_placement { KVF_PLACEMENT_CHECKED = 1, KVF_PLACEMENT_POSTED = 2 };

struct kvf_wire_hello {
    uint16_t version_major;
    uint16_t version_minor;
    uint32_t caps;
    uint64_t supervisor_id; /* incarnation = supervisor_id + worker_starts */
    uint32_t worker_starts;
    uint32_t code;    /* the answering side: 0, or why it refuses (KVF_E_*) */
    uint64_t session; /* chosen by the connecting side, echoed */
    uint8_t transport;
    uint8_t placement; /* of the sink */
    uint8_t lane_count;
    uint8_t auth_kind;          /* 0: none */
    uint32_t receives_per_lane; /* grants this side, as source, takes on one lane at a time */
    char name[KVF_WIRE_NAME_BYTES];
};

struct kvf_wire_lane_hello {
    uint64_t session;
    uint32_t lane_idx;
    uint32_t epoch;
};

struct kvf_wire_plane {
    uint64_t off;
    uint64_t stride;
    uint32_t page_bytes;
};

struct kvf_wire_region {
    uint32_t region; /* the sink daemon's own number of it on this connection */
    uint32_t epoch;
    uint64_t page_count;
    uint64_t base; /* verbs: I/O virtual address of plane offset 0 */
    uint32_t plane_count;
    uint32_t key_count;
    uint32_t keys[KVF_WIRE_KEYS_MAX]; /* one per rail */
    struct kvf_wire_plane planes[KVF_WIRE_PLANES_MAX];
};

struct kvf_wire_run {
    uint32_t region;
    uint32_t first;
    uint32_t count;
};

/* Head of one GRANT fragment; its runs are read and written one by one with the functions below. */
struct kvf_wire_grant {
    uint64_t nonce;
    uint64_t label;
    uint64_t key;
    uint32_t handle;
    uint32_t lane_mask;                  /* never empty */
    uint32_t lane_epochs[KVF_LANES_MAX]; /* of the lanes in the mask; others 0 */
    uint32_t page_count;                 /* whole grant */
    uint32_t total_runs;                 /* whole grant */
    uint32_t first_run;                  /* of this fragment */
    uint32_t run_count;                  /* in this fragment */
    uint64_t past_nonce; /* the accepted grant whose place this one takes; 0: none */
};

/* One end of a lane that is a queue pair, as the other end must know it. All zero: the lane is a stream,
 * and there is nothing to know. */
struct kvf_lane_end {
    uint32_t qpn; /* 24 bits, never 0 for a queue pair */
    uint32_t psn; /* 24 bits: the first packet this end sends */
    uint8_t gid[16];
    uint32_t mtu_bytes; /* largest this end takes */
    uint16_t lid;       /* InfiniBand; 0 over Ethernet */
    uint8_t rail;       /* which of its device keys (struct kvf_wire_region) this lane uses */
};

struct kvf_wire_lane { /* 40 bytes of payload */
    uint32_t lane_idx;
    uint32_t epoch;
    struct kvf_lane_end end;
};
struct kvf_wire_accept {
    uint64_t nonce;
};
struct kvf_wire_decline {
    uint64_t nonce;
    uint32_t reason;
    uint32_t detail;
};
struct kvf_wire_abort {
    uint64_t nonce; /* 0: of a GRANT that never left */
    uint64_t label;
    uint64_t key;
    uint32_t
        reason; /* KVF_E_LANE_LOST: the room is open, another GRANT follows in this one's place */
};
struct kvf_wire_ended {
    uint64_t nonce;
    uint32_t reason;
    uint32_t broken_lanes;
};
struct kvf_wire_ping {
    uint64_t seq;
}; /* PONG too */

/* What a rank's room of one key is, as its own daemon knows it. Nothing less than "its pages are proven
 * idle, or it will never have any" settles a rank for the others. */
enum kvf_group_state {
    KVF_GROUP_CLOSED = 1,       /* ended or about to, not yet drained */
    KVF_GROUP_DRAINED = 2,      /* ended with proof; Success counts too */
    KVF_GROUP_NEVER_OPENED = 3, /* answers only: and a later open of this key ends at once */
};

struct kvf_wire_group { /* 28 bytes of payload */
    uint64_t group_id;
    uint64_t key;
    uint32_t from_rank; /* of whom `state` speaks */
    uint32_t to_rank;
    uint8_t state; /* enum kvf_group_state */
    uint8_t is_answer;
    uint8_t pad_[6];
};

/* Header. decode: 0, or -EPROTO (magic, reserved bits, payload over the maximum), -ENOTSUP (another
 * major version or an unknown type). `in` holds KVF_WIRE_HEADER_BYTES. */
void kvf_wire_put_header(unsigned char *out, const struct kvf_wire_header *h);
int kvf_wire_get_header(const unsigned char *in, struct kvf_wire_header *ret_h);

/* Whole frames: put_* writes header and payload into out (cap bytes) and returns the frame's bytes, or
 * -ENOSPC. get_* decodes a payload of exactly `bytes`; 0 or -EPROTO. */
#define KVF_WIRE_DECLARE(name)                                                                 \
    int kvf_wire_put_##name(unsigned char *out, size_t cap, uint32_t seq,                      \
                            const struct kvf_wire_##name *m);                                  \
    int kvf_wire_get_##name(const unsigned char *payload, size_t bytes,                        \
                            struct kvf_wire_##name *ret_m);
KVF_WIRE_DECLARE(hello)
KVF_WIRE_DECLARE(lane_hello)
KVF_WIRE_DECLARE(region)
KVF_WIRE_DECLARE(lane)
KVF_WIRE_DECLARE(accept)
KVF_WIRE_DECLARE(decline)
KVF_WIRE_DECLARE(abort)
KVF_WIRE_DECLARE(ended)
KVF_WIRE_DECLARE(group)
#undef KVF_WIRE_DECLARE
int kvf_wire_put_ping(unsigned char *out, size_t cap, uint32_t seq,
                      const struct kvf_wire_ping *m);
int kvf_wire_put_pong(unsigned char *out, size_t cap, uint32_t seq,
                      const struct kvf_wire_ping *m);
int kvf_wire_get_ping(const unsigned char *payload, size_t bytes, struct kvf_wire_ping *ret_m);

/* GRANT: the head says how many runs follow in this fragment. put writes header, head and `runs`. */
int kvf_wire_put_grant(unsigned char *out, size_t cap, uint32_t seq,
                       const struct kvf_wire_grant *m, const struct kvf_wire_run *runs);
/* Checks the head and that exactly run_count runs follow; runs stay in the payload. */
int kvf_wire_get_grant(const unsigned char *payload, size_t bytes,
                       struct kvf_wire_grant *ret_m);
void kvf_wire_get_run(const unsigned char *payload, uint32_t run_idx,
                      struct kvf_wire_run *ret_run);
/* Bytes of a GRANT fragment of run_count runs, header included. */
size_t kvf_wire_grant_bytes(uint32_t run_count);

/* ---- lane frames (tcp) --------------------------------------------------------------------------- */

enum kvf_lane_kind { KVF_LANE_DATA = 1, KVF_LANE_END = 2, KVF_LANE_DRAIN = 3 };

/* DATA carries the bytes of pages [position, position + page_count) of the grant's list, page by page,
 * each in planes [plane_first, plane_first + plane_count), plane by plane. More than one page only with
 * all planes. END and DRAIN are empty: they are the marker. */
struct kvf_lane_frame {
    uint8_t kind;
    uint16_t plane_first;
    uint16_t plane_count;
    uint32_t handle;
    uint32_t position;
    uint32_t page_count;
    uint32_t payload_bytes;
    uint32_t seq; /* strictly rising by one per stream */
};
void kvf_wire_put_lane_frame(unsigned char *out, const struct kvf_lane_frame *f);
int kvf_wire_get_lane_frame(const unsigned char *in,
                            struct kvf_lane_frame *ret_f); /* 0, -EPROTO */

#endif

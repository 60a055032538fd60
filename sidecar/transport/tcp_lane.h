/* What the files of transport tcp share. A lane is one stream: the sink's side connected it, the
 * source's side accepted it, and payload flows from source to sink only.
 *
 * Callbacks may call back into open, can_post, post, detach and fence, on this lane or another, but not
 * into poll or close. So after every callback a function looks whether the lane is still the one it was:
 * `serial` changes whenever a stream begins or ends. Nothing that a callback could change is kept in a
 * local variable across it. */
#ifndef KVF_TRANSPORT_TCP_LANE_H
#define KVF_TRANSPORT_TCP_LANE_H

#include <sys/uio.h>

#include "sidecar/transport/tcp_engine.h"
#include "sidecar/transport/transport.h"

/* As much as one sendmsg takes; IOV_MAX of Linux. */
#define KVF_TCP_IOVS_MAX 1024u
#define KVF_TCP_BATCH_BYTES_MAX (UINT32_C(1) << 20)
/* A frame carries at most this, unless one plane of one page alone is bigger. Small enough that the rest
 * of a frame from filler costs little, large enough that a header costs nothing. */
#define KVF_TCP_FRAME_BYTES_MAX (UINT32_C(256) << 10)
/* The biggest frame a sink takes when no region says what to expect, and the biggest piece of one plane. */
#define KVF_TCP_PAYLOAD_BYTES_MAX (UINT32_C(64) << 20)
/* Thrown-away payload goes here, filler comes from such a page; iovecs name it several times over. */
#define KVF_TCP_SCRATCH_BYTES (UINT32_C(64) << 10)
#define KVF_TCP_SOCKET_BYTES_MIN (UINT32_C(64) << 10)
#define KVF_TCP_SOCKET_BYTES_UNPACED (UINT32_C(4) << 20)
/* What lies before a small room's bytes on a busy lane: unsent here, unread there. Twice the receive buffer is
 * the window that the kernel offers, if net.core.rmem_max allows it: 512 KiB are 2.5 GB/s over a way of 200 us.
 * A longer way wants more; more would lie before a small room's bytes. */
#define KVF_TCP_UNSENT_BYTES (128 << 10)
#define KVF_TCP_UNSENT_BYTES_MIN (16 << 10)
#define KVF_TCP_RECEIVE_BYTES (256 << 10)
#define KVF_TCP_GREETING_BYTES (KVF_WIRE_HEADER_BYTES + KVF_WIRE_LANE_HELLO_BYTES)

/* FREE -> CONNECTING -> GREETING -> UP (sink), FREE -> UP (source); any of them -> LOST; every one of
 * them -> FENCING -> FREE. FENCING exists only while fence calls completed_fn. */
enum kvf_tcp_state {
    KVF_TCP_FREE = 0,
    KVF_TCP_CONNECTING,
    KVF_TCP_GREETING, /* connected, LANE_HELLO not wholly taken by the socket */
    KVF_TCP_UP,
    KVF_TCP_LOST, /* told the host; nothing is read or written until the fence */
    KVF_TCP_FENCING,
};

struct kvf_tcp_entry {
    struct kvf_post post;
    bool is_dead; /* was completed where it stood; exists only while detach runs */
    bool is_cut;  /* an END whose data was taken back: leaves as DRAIN, completes -ECANCELED */
};

/* Posts in [head, sent) were taken by the kernel and wait for their completion to be told, those in
 * [sent, tail) are to be sent. The indices run free.
 *
 * A frame is started once the kernel took its first byte. Its header is then a promise of so many bytes
 * to the other side, which is kept from the region or, once nobody may read the region, from filler. */
struct kvf_tcp_source {
    struct kvf_tcp_entry *entries; /* posts_per_lane_max of them */
    uint32_t head;
    uint32_t sent;
    uint32_t tail;
    uint32_t
        next_page; /* of entry `sent`: first page and plane that no frame was started for */
    uint32_t next_plane;
    uint32_t next_seq;
    /* the started frame, if has_frame */
    struct kvf_lane_frame frame;
    uint32_t header_sent;
    uint32_t payload_sent;
    bool has_frame;
    bool is_filler;       /* its post was completed; the payload is filler */
    bool ends_post;       /* the last frame of entry `sent` */
    uint8_t detach_depth; /* callbacks of a detach may detach; the outermost one sweeps */
    uint32_t edits; /* rises when entries of the queue are ended or moved before their turn */
};

struct kvf_tcp_sink {
    unsigned char header[KVF_LANE_HEADER_BYTES];
    uint32_t header_got;
    uint32_t next_seq;
    struct kvf_lane_frame frame; /* the DATA frame whose payload is due, if has_frame */
    uint32_t payload_got;
    bool has_frame;
    bool is_forced_scratch; /* its pages faulted */
    unsigned char greeting[KVF_TCP_GREETING_BYTES];
    uint32_t greeting_sent;
};

struct kvf_tcp_lane {
    int fd; /* owned here from open to fence; -1 otherwise */
    uint32_t epoch;
    uint32_t serial;
    uint32_t epoll_events; /* what epoll was told to watch */
    uint8_t state;
    bool is_sink;
    bool is_readable;
    bool is_writable; /* false: the socket refused bytes, EPOLLOUT will say */
    bool is_marked;   /* in the list of lanes that poll works through */
    bool owes_up;
    int open_err; /* a connect that failed at once, told by the next poll */
    uint32_t mark_next;
    struct kvf_tcp_source source;
    struct kvf_tcp_sink sink;
};

/* One planned frame of a sendmsg. */
struct kvf_tcp_plan {
    struct kvf_lane_frame frame;
    uint32_t next_page; /* where its post goes on after it */
    uint32_t next_plane;
    bool ends_post;
};

/* A list of iovecs under construction, limited in entries and bytes. */
struct kvf_tcp_iovs {
    struct iovec *iovs;
    uint32_t count;
    uint32_t count_max;
    uint64_t bytes;
    uint64_t bytes_max;
};

/* What a lane does in a round. */
enum kvf_tcp_step {
    KVF_TCP_STEP_NONE = 0,
    KVF_TCP_STEP_CALL,  /* planned: slot->call is to be made */
    KVF_TCP_STEP_MOVED, /* bytes moved and are booked; the host is to be told */
    KVF_TCP_STEP_FAULT, /* memory of a client could not be read or written */
    KVF_TCP_STEP_LOSE,  /* slot->err ended the stream */
};

/* A lane's place in the rounds of one poll, with the buffers of its call. Between planning and booking
 * nothing calls back. Once the calls of a round have returned, all of them are booked, and only then is
 * the host told of the first: so each lane is what it says it is when a callback fences or detaches it,
 * and a stream that a callback ended is told of nothing more. */
struct kvf_tcp_slot {
    uint32_t lane_idx;
    uint32_t serial; /* of the stream that this turn is for */
    uint64_t moved;  /* in this turn */
    uint8_t step;    /* enum kvf_tcp_step */
    int err;
    struct kvf_tcp_call call;
    struct kvf_tcp_iovs planned;
    struct iovec *iovs; /* KVF_TCP_IOVS_MAX */
    /* source */
    unsigned char *headers; /* KVF_TCP_IOVS_MAX x KVF_LANE_HEADER_BYTES */
    struct kvf_tcp_plan *plans;
    uint32_t frames;
    uint32_t edits; /* of the queue when the call was planned */
    bool is_alone;  /* something in the last call faulted: look at the first frame alone */
    /* sink */
    bool is_scratch;
    uint32_t handle;
    uint64_t payload; /* bytes of it asked for, then taken */
};

struct kvf_tcp {
    struct kvf_transport_config config;
    struct kvf_transport_host host;
    int epoll_fd; /* the worker's */
    struct kvf_tcp_engine *engine;
    int engine_refusal; /* why io_uring is not used though it was asked for; 0: it was not, or is */
    struct kvf_tcp_lane *lanes;
    struct kvf_tcp_entry *entries;
    uint32_t mark_head;
    uint32_t mark_tail;
    uint32_t mark_count;
    unsigned char *scratch; /* KVF_TCP_SCRATCH_BYTES, written by receives, never read */
    unsigned char *filler;  /* KVF_TCP_SCRATCH_BYTES, zero and read-only */
    /* engine->batch_max of each. The first slot_count of `turns` are lanes whose turn is not over. */
    struct kvf_tcp_slot *slots;
    struct kvf_tcp_slot **turns;
    struct kvf_tcp_call **calls;
    uint32_t slot_count;
    struct iovec *iovs; /* of all slots */
    unsigned char *headers;
    struct kvf_tcp_plan *plans;
};

/* ---- tcp_iovs.c ---- */

/* Appends bytes, joined to the last iovec where they touch it. Returns how many fitted. */
uint64_t kvf_tcp_iovs_add(struct kvf_tcp_iovs *iovs, unsigned char *base, uint64_t bytes);
/* The same for `bytes` bytes of one buffer, named as often as it takes. */
uint64_t kvf_tcp_iovs_repeat(struct kvf_tcp_iovs *iovs, unsigned char *buffer, uint64_t bytes);
/* Payload bytes of a frame that carries these planes of so many pages of region. */
uint64_t kvf_tcp_frame_bytes(const struct kvf_transport_region *region, uint32_t page_count,
                             uint32_t plane_first, uint32_t plane_count);
/* Appends what follows byte `skip` of a frame whose first page is page_first. Returns how much fitted. */
uint64_t kvf_tcp_iovs_add_pages(struct kvf_tcp_iovs *iovs,
                                const struct kvf_transport_region *region,
                                const struct kvf_lane_frame *frame, uint32_t page_first,
                                uint32_t skip);

/* ---- tcp.c ---- */

/* Puts the lane into the list of poll. */
void kvf_tcp_mark(struct kvf_tcp *tcp, uint32_t lane_idx);
/* Takes the first lane of that list off it. */
uint32_t kvf_tcp_unmark_first(struct kvf_tcp *tcp);
/* The stream ended: tells the host once. err is positive. */
void kvf_tcp_lose(struct kvf_tcp *tcp, uint32_t lane_idx, int err);
/* Tells epoll what the lane now waits for. */
void kvf_tcp_update_watch(struct kvf_tcp *tcp, uint32_t lane_idx);

/* ---- tcp_turn.c ---- */

int kvf_tcp_slots_create(struct kvf_tcp *tcp); /* 0 or -ENOMEM */
void kvf_tcp_slots_free(struct kvf_tcp *tcp);
uint64_t kvf_tcp_poll(struct kvf_transport *t);

/* ---- tcp_source.c ---- */

bool kvf_tcp_source_has_work(const struct kvf_tcp_lane *lane);
bool kvf_tcp_source_can_post(const struct kvf_tcp *tcp, const struct kvf_tcp_lane *lane);
int kvf_tcp_source_post(struct kvf_tcp *tcp, uint32_t lane_idx, const struct kvf_post *post);
void kvf_tcp_source_detach(struct kvf_tcp *tcp, uint32_t lane_idx, uint64_t cookie);
/* Completes everything that is queued, in order. The lane is FENCING. */
void kvf_tcp_source_complete_all(struct kvf_tcp *tcp, uint32_t lane_idx);
/* False, and the stream is lost: the sink ended it or spoke. Calls back. */
bool kvf_tcp_source_hears_nothing(struct kvf_tcp *tcp, uint32_t lane_idx);
/* The three parts of a round: the call to make, at most so many bytes; what came of it; and who is to
 * know. The first two do not call back. */
void kvf_tcp_source_plan(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot, uint64_t bytes_max);
void kvf_tcp_source_book(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot);
void kvf_tcp_source_tell(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot);

/* ---- tcp_sink.c ---- */

void kvf_tcp_sink_plan(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot, uint64_t bytes_max);
void kvf_tcp_sink_book(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot);
void kvf_tcp_sink_tell(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot);

#endif

/* What the files of transport verbs share: rails, completion queues, lanes and their jobs. For nobody else.
 *
 * Beside the loop the queue pairs have threads of their own ("hands"), which run the jobs of verbs_qp.c. A lane has
 * one job, with one of them at a time. From push until take it belongs to that thread, with the queue pair in it; the
 * loop then only remembers what it wants next (job_out). What a thread keeps for itself is in struct
 * kvf_verbs_rail under its name. */
#ifndef KVF_TRANSPORT_VERBS_LANE_H
#define KVF_TRANSPORT_VERBS_LANE_H

#include <pthread.h>

#include "sidecar/host/helper.h"
#include "sidecar/transport/transport.h"
#include "sidecar/transport/verbs_lib.h"

/* Work requests a source's queue holds; fewer where the device has no room. One of them is the marker's. */
#define KVF_VERBS_SEND_DEPTH 256u
/* Receives beyond the credits, and how many are posted again at once: a marker never finds the queue empty,
 * and a doorbell serves so many. */
#define KVF_VERBS_RECEIVE_BATCH 16u
/* Work requests of one doorbell; the last of them is signalled. */
#define KVF_VERBS_LIST_MAX 32u
#define KVF_VERBS_LISTS_PER_TURN 8u
#define KVF_VERBS_SGES_MAX 16u
/* A write has at most so many bytes, whatever the device takes: the length of a piece has 32 bits. */
#define KVF_VERBS_WRITE_BYTES_MAX (UINT64_C(1) << 30)
/* Slots of one completion queue, where the device allows it; lanes share it. */
#define KVF_VERBS_CQ_SLOTS 4096u
#define KVF_VERBS_CQS_MAX 128u    /* per rail */
#define KVF_VERBS_BATCH 32u       /* completions taken by one poll of a queue ... */
#define KVF_VERBS_TURN_BATCHES 8u /* ... and how often that is done in one turn */
/* A queue pair's number is not used again before so many others of its rail were destroyed. */
#define KVF_VERBS_NUMBERS_KEPT 64u
#define KVF_VERBS_GIDS_MAX 256u
#define KVF_VERBS_LANES_MAX 32768u
/* So often in a row the reads of a flusher are asked again whose completions were lost. */
#define KVF_VERBS_REPEATS_MAX 3u
/* Destroys that are under way at once: one that takes long holds up no other lane's. */
#define KVF_VERBS_DESTROYERS 4u

/* Who does which job. A stop takes no time, so all lanes that lose their port are in ERR before anybody waits for a
 * destroy; a join may take a second and a destroy several, and each has its thread. */
enum kvf_verbs_hand {
    KVF_VERBS_MAKER = 0, /* makes, joins, looks at addresses */
    KVF_VERBS_STOPPER,   /* to ERR */
    KVF_VERBS_READER,    /* makes flushers */
    KVF_VERBS_DESTROYER, /* the first of them: queue pairs and completion queues */
    KVF_VERBS_HANDS = KVF_VERBS_DESTROYER + KVF_VERBS_DESTROYERS,
};
struct kvf_verbs_hand_state {
    struct kvf_helper *helper;
    uint32_t out; /* jobs that it has */
};
_Static_assert(KVF_VERBS_HANDS <= KVF_VERBS_FDS_MAX - 2u * KVF_RAILS_MAX, "all can be watched");

/* FREE -> MAKING -> READY -> JOINING -> UP (sink), FREE -> MAKING -> UP (source); any of them -> LOST on an
 * error; any but FREE -> FENCING -> FREE. */
enum kvf_verbs_state {
    KVF_VERBS_FREE = 0,
    KVF_VERBS_MAKING,
    KVF_VERBS_READY,
    KVF_VERBS_JOINING,
    KVF_VERBS_UP,
    KVF_VERBS_LOST,
    KVF_VERBS_FENCING,
};

/* Within FENCING. */
enum kvf_verbs_phase {
    KVF_VERBS_WAITING = 0, /* for the job that was out when the fence came */
    KVF_VERBS_STOPPING,    /* job: to ERR */
    KVF_VERBS_REAPING,     /* completions of what was posted */
    KVF_VERBS_DESTROYING,  /* job */
    KVF_VERBS_ENDING,      /* no queue pair any more: poll tells the rest */
    KVF_VERBS_STUCK,       /* the device refused: no fence, ever; the core ends this worker */
};

enum kvf_verbs_work {
    KVF_VERBS_MAKE,
    KVF_VERBS_JOIN,
    KVF_VERBS_STOP,
    KVF_VERBS_DESTROY,
    KVF_VERBS_CQ_DESTROY,
    KVF_VERBS_LOOK, /* at the rail's addresses */
    KVF_VERBS_MAKE_FLUSHER,
};

struct kvf_verbs;
struct kvf_verbs_lane;
struct kvf_verbs_cq;

struct kvf_verbs_job {
    struct kvf_job job;
    enum kvf_verbs_work work;
    struct kvf_verbs *verbs;
    uint32_t rail;
    enum kvf_verbs_hand hand;    /* who has it, or had it last */
    struct kvf_verbs_lane *lane; /* NULL: a job of the rail's */
    struct kvf_verbs_cq *cq;
    bool is_sink;
    bool has_gid; /* JOIN and later: end.gid is this end's address */
    struct kvf_lane_end peer;
    uint64_t receive_id; /* wr_id of the first receive; the next have the numbers behind it */
    struct ibv_qp *qp;   /* NULL: none exists */
    struct kvf_lane_end end;
    int err; /* 0 or -errno */
    uint32_t receives_posted;
    uint32_t numbers_avoided;
    bool has_cq;          /* MAKE: the completion queue exists */
    bool replaces_cq;     /* MAKE_FLUSHER: the old one lost completions ... */
    bool has_replaced_cq; /* ... and is gone */
};

/* A completion queue and the lanes that share it: each has all its slots reserved, so it cannot overrun. */
struct kvf_verbs_cq {
    struct ibv_cq *cq; /* made by the first lane's job */
    uint32_t rail;
    uint32_t slots_used;
    bool is_made; /* the loop polls it */
    bool
        is_broken; /* the device said so: never polled again, destroyed when its lanes are gone */
    bool is_leaving; /* its destroy is with the helper, or failed */
    struct kvf_verbs_job job;
};

/* Reads of device memory that one rail has been asked for: [head, posted) are the device's, [posted, tail) wait.
 * Never more than there are requests. */
#define KVF_VERBS_FLUSHES_MAX 256u /* a power of two */
enum kvf_verbs_flusher_state {
    KVF_VERBS_FLUSHER_NONE = 0,
    KVF_VERBS_FLUSHER_MAKING, /* the reader's thread */
    KVF_VERBS_FLUSHER_UP,
    KVF_VERBS_FLUSHER_BROKEN, /* made again once nothing is out */
};
struct kvf_verbs_flusher {
    uint8_t state;
    uint8_t repeats;   /* in a row, of reads whose completions were lost */
    uint8_t landing;   /* what is read goes here, and nobody looks at it */
    struct ibv_mr *mr; /* of that byte; made by the first job */
    struct kvf_verbs_cq cq;
    struct kvf_verbs_job job; /* the queue pair is in it */
    uint32_t head;
    uint32_t posted;
    uint32_t tail;
    uint16_t queue[KVF_VERBS_FLUSHES_MAX]; /* of requests */
    /* the reader's thread */
    struct ibv_gid_entry entries[KVF_VERBS_GIDS_MAX];
};

struct kvf_verbs_flush {
    const struct kvf_verbs_memory *memory;
    uint64_t cookie;
    uint32_t rails; /* mask: not answered yet */
    uint32_t next;  /* free list */
    int err;
};

struct kvf_verbs_rail {
    uint32_t idx;
    struct kvf_verbs_flusher flusher;
    bool is_up; /* as far as the loop has heard: its port is active and has an address */
    struct ibv_context *context; /* NULL: no such device, or one that no lane could ever use */
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    uint64_t write_bytes_max;
    uint32_t send_depth;
    uint32_t receive_depth;
    uint32_t sges_max;
    uint32_t cq_slots;
    bool is_infiniband;
    struct kvf_verbs_cq cqs[KVF_VERBS_CQS_MAX];
    uint32_t cq_count; /* places in cqs ever used */
    /* addresses as the last LOOK found them: the job's while it is out */
    struct kvf_verbs_job look_job;
    bool look_out;
    bool look_again;
    uint32_t seen_count;
    uint8_t seen[KVF_VERBS_GIDS_MAX][16];
    /* maker */
    struct ibv_gid_entry entries[KVF_VERBS_GIDS_MAX];
    /* every thread that makes or destroys */
    pthread_mutex_t numbers_lock;
    uint32_t numbers[KVF_VERBS_NUMBERS_KEPT]; /* under the lock */
    uint32_t number_count;                    /* under the lock; runs free */
};

struct kvf_verbs_entry {
    struct kvf_post post;
    uint32_t wr_end; /* handed: number behind its last work request */
    /* cursor over what it covers: plane and page, or page and plane, and bytes into that page's plane */
    uint32_t outer;
    uint32_t inner;
    uint64_t cell_off;
    int status;         /* refused: what it completes with */
    bool is_page_major; /* the outer one counts pages */
    bool is_begun;      /* the device has some of it */
    bool is_dead;       /* was completed where it stood; exists only while detach runs */
    bool is_cut; /* an END whose data was taken back: leaves as DRAIN, completes -ECANCELED */
};

struct kvf_verbs_lane {
    uint32_t idx;
    uint32_t epoch;
    uint32_t serial; /* incarnation: 24 bits of it stand in every wr_id */
    uint8_t state;
    uint8_t phase;
    bool is_sink;
    bool job_out;
    bool is_marked;
    bool owes_ready;
    bool owes_up;
    int owes_lost; /* positive errno; 0: nothing */
    uint32_t mark_next;
    struct kvf_verbs_rail *rail;
    struct kvf_verbs_cq *cq; /* NULL: found no slots */
    uint32_t cq_slots;
    struct kvf_verbs_job job;
    /* a list by age: of lanes with work requests out, or of fences that reap */
    uint32_t age_next;
    uint32_t age_prev;
    uint64_t age_ns;
    struct kvf_verbs_ages *ages;
    /* source: [head, handed) is the device's, [handed, tail) waits; the indices run free */
    struct kvf_verbs_entry *entries;
    uint32_t head;
    uint32_t handed;
    uint32_t tail;
    uint32_t wr_posted;
    uint32_t wr_reaped;
    uint32_t detach_depth;
    bool has_failed; /* the work request wr_failed completed with an error ... */
    uint32_t wr_failed;
    int fail_status; /* ... and the next post that is told gets this */
    /* sink */
    uint32_t receives_posted;
    uint32_t receives_reaped;
};

struct kvf_verbs_ages {
    uint32_t head;
    uint32_t tail;
};

struct kvf_verbs {
    struct kvf_transport_config config;
    struct kvf_verbs_config verbs;
    struct kvf_transport_host host;
    const struct kvf_verbs_lib *lib;
    struct kvf_verbs_hand_state hands[KVF_VERBS_HANDS];
    uint32_t jobs_out;
    uint64_t now_ns;              /* of this poll */
    struct kvf_verbs_rail *rails; /* in the order they were named, which is that of keys */
    uint32_t rail_count;
    /* Those that lanes use, which worked at create before which did not: lane i uses the i-th, around and around. */
    uint8_t lane_rails[KVF_RAILS_MAX];
    uint32_t lane_rail_count;
    bool has_device_memory; /* flushes may be asked for */
    struct kvf_verbs_lane *lanes;
    struct kvf_verbs_entry *entries;
    uint32_t mark_head;
    uint32_t mark_tail;
    uint32_t mark_count;
    struct kvf_verbs_ages posted; /* lanes that wait for completions, the longest first */
    struct kvf_verbs_ages reaping;
    struct kvf_verbs_counts counts;
    uint32_t flush_count; /* asked for and not told */
    uint32_t flush_free;
    struct kvf_verbs_flush flushes[KVF_VERBS_FLUSHES_MAX];
    struct ibv_send_wr wrs[KVF_VERBS_LIST_MAX];
    struct ibv_sge sges[KVF_VERBS_LIST_MAX][KVF_VERBS_SGES_MAX];
};

struct kvf_verbs_memory {
    struct kvf_verbs *verbs;
    uint64_t base;
    uint64_t bytes;
    struct ibv_mr *mrs[KVF_RAILS_MAX]; /* NULL: deregistered, or no such rail */
    uint32_t local_keys[KVF_RAILS_MAX];
    uint32_t remote_keys[KVF_RAILS_MAX];
};

static inline struct kvf_verbs *kvf_verbs_of(struct kvf_transport *t)
{
    return (struct kvf_verbs *)(void *)t;
}

static inline const struct kvf_verbs *kvf_const_verbs_of(const struct kvf_transport *t)
{
    return (const struct kvf_verbs *)(const void *)t;
}

/* A wr_id: whose it is, in which incarnation, which one, and from which queue. */
#define KVF_VERBS_ID_RECEIVE (UINT64_C(1) << 63)
static inline uint64_t kvf_verbs_id(const struct kvf_verbs_lane *lane, uint32_t number)
{
    return (uint64_t)lane->idx << 48 | (uint64_t)(lane->serial & 0xffffffu) << 24 |
           (number & 0xffffffu);
}

static inline uint32_t kvf_verbs_sends_out(const struct kvf_verbs_lane *lane)
{
    return lane->wr_posted - lane->wr_reaped;
}

static inline bool kvf_verbs_is_reaped(const struct kvf_verbs_lane *lane)
{
    return lane->wr_posted == lane->wr_reaped && lane->receives_posted == lane->receives_reaped;
}

static inline struct kvf_verbs_rail *kvf_verbs_rail_of_lane(const struct kvf_verbs *v,
                                                            uint32_t lane_idx)
{
    return &v->rails[v->lane_rails[lane_idx % v->lane_rail_count]];
}

/* verbs.c */
void kvf_verbs_mark(struct kvf_verbs *v, struct kvf_verbs_lane *lane);
/* From here on nothing is posted on this lane; poll tells the host, once. Positive err. */
void kvf_verbs_lose(struct kvf_verbs *v, struct kvf_verbs_lane *lane, int err);
void kvf_verbs_push(struct kvf_verbs *v, struct kvf_verbs_job *job, enum kvf_verbs_work work);
/* A fence that waits for completions has them all, or has waited long enough. */
void kvf_verbs_destroy_lane(struct kvf_verbs *v, struct kvf_verbs_lane *lane);
void kvf_verbs_age_add(struct kvf_verbs *v, struct kvf_verbs_ages *ages,
                       struct kvf_verbs_lane *lane);
void kvf_verbs_age_remove(struct kvf_verbs *v, struct kvf_verbs_lane *lane);

/* verbs_rail.c */
int kvf_verbs_rails_open(struct kvf_verbs *v, char *ret_error, size_t error_cap);
void kvf_verbs_rails_close(struct kvf_verbs *v);
/* Reserves slots for a lane. NULL: no place left. */
struct kvf_verbs_cq *kvf_verbs_cq_take(struct kvf_verbs_rail *rail, uint32_t slots);
void kvf_verbs_cq_give(struct kvf_verbs *v, struct kvf_verbs_cq *cq, uint32_t slots);
/* Takes and acknowledges what devices have to tell: completion events, async events. */
void kvf_verbs_rail_events(struct kvf_verbs *v, struct kvf_verbs_rail *rail);
void kvf_verbs_look_back(struct kvf_verbs *v, struct kvf_verbs_rail *rail);
/* What came of the last attempt to use it: 0, or -errno. The host is told when that is news. */
void kvf_verbs_rail_note(struct kvf_verbs *v, struct kvf_verbs_rail *rail, int err);
/* Any thread, with entries of its own. The index of this end's address in the port's table now: the one given
 * (gid not NULL), else the configured one or the first. -EADDRNOTAVAIL. */
int kvf_verbs_gid_find(const struct kvf_verbs *v, const struct kvf_verbs_rail *rail,
                       struct ibv_gid_entry *entries, const uint8_t *gid, uint8_t ret_gid[16]);
int kvf_verbs_port_query(const struct kvf_verbs *v, const struct kvf_verbs_rail *rail,
                         struct ibv_port_attr *ret_attr);
/* What this end takes at most, of a port as it is now. */
uint32_t kvf_verbs_mtu(const struct kvf_verbs *v, const struct ibv_port_attr *port);

/* verbs_qp.c: the hands */
void kvf_verbs_work(struct kvf_job *job);
/* 0 or -EPROTO: what a peer says of its end. */
int kvf_verbs_check_end(const struct kvf_lane_end *end, bool is_infiniband);

/* verbs_post.c */
bool kvf_verbs_can_post(const struct kvf_verbs *v, const struct kvf_verbs_lane *lane);
int kvf_verbs_post(struct kvf_verbs *v, struct kvf_verbs_lane *lane,
                   const struct kvf_post *post);
void kvf_verbs_detach(struct kvf_verbs *v, struct kvf_verbs_lane *lane, uint64_t cookie);
/* Gives the device what waits and fits. Bytes handed over. Calls nobody back. */
uint64_t kvf_verbs_hand_over(struct kvf_verbs *v, struct kvf_verbs_lane *lane);
/* Whether hand_over could go on now. */
bool kvf_verbs_has_posts(const struct kvf_verbs *v, const struct kvf_verbs_lane *lane);
/* Tells the posts whose work requests are all reaped. */
void kvf_verbs_tell_completed(struct kvf_verbs *v, struct kvf_verbs_lane *lane);
/* Tells all that is left, in order: no queue pair exists any more. */
void kvf_verbs_complete_all(struct kvf_verbs *v, struct kvf_verbs_lane *lane);

/* verbs_flush.c */
void kvf_verbs_flushes_init(struct kvf_verbs *v);
uint64_t kvf_verbs_flush_poll(struct kvf_verbs *v);
bool kvf_verbs_flush_is_ready(const struct kvf_verbs *v); /* poll has something to do for one */
bool kvf_verbs_flush_arm(struct kvf_verbs *v);
void kvf_verbs_flusher_back(struct kvf_verbs *v, struct kvf_verbs_rail *rail);
/* Made before it is asked for, if it is not there. */
void kvf_verbs_flusher_prepare(struct kvf_verbs *v, struct kvf_verbs_rail *rail);
/* Its completions were lost: what is out is asked again; or its device is, and then nothing is. */
void kvf_verbs_flusher_lost(struct kvf_verbs_rail *rail, bool is_final);
void kvf_verbs_flusher_close(struct kvf_verbs *v, struct kvf_verbs_rail *rail);

/* verbs_poll.c: one round over all completion queues. How many completions. */
uint64_t kvf_verbs_poll_cqs(struct kvf_verbs *v);
/* Until it is empty, bounded by its slots. */
void kvf_verbs_cq_empty(struct kvf_verbs *v, struct kvf_verbs_cq *cq);

#endif

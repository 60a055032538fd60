/* Two ends of a transport in one process, with a host that only keeps books.
 *
 * The suite (suite.c) knows transports through struct rig_kind alone, so that every transport runs the same
 * tests: how an end is made, how a lane between the two ends comes up, and how events reach them. */
#ifndef KVF_TESTS_CONTRACT_RIG_H
#define KVF_TESTS_CONTRACT_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sidecar/transport/transport.h"

#define RIG_LANES 40u
#define RIG_REGIONS 4u
#define RIG_GRANTS 64u
#define RIG_POSTS_MAX 4096u
#define RIG_LOG_MAX 65536u
#define RIG_CANARY 0xc5u

struct rig_region {
    int fd;
    size_t bytes;
    struct kvf_core_plane planes[KVF_PLANES_MAX];
    struct kvf_transport_region region;
    bool is_gone; /* region_fn answers NULL */
};

/* Sink: where a handle's pages are, and what was asked and placed. */
struct rig_grant {
    uint32_t region;    /* index into regions */
    uint32_t page_base; /* page of position 0 */
    uint32_t page_count;
    enum { RIG_PAGES, RIG_SCRATCH, RIG_REFUSE } mode;
    uint64_t
        scratch_after_bytes; /* becomes RIG_SCRATCH once so many bytes were placed; 0: never */
    uint64_t placed_bytes;
    uint64_t scratch_bytes;
    uint64_t places_asked;
    uint64_t receives;
    uint32_t faults;
    bool is_asked;    /* and not yet used by a receive */
    bool was_scratch; /* the last answer */
};

enum rig_event_kind { RIG_UP, RIG_LOST, RIG_FENCED, RIG_COMPLETED, RIG_MARKER, RIG_READ_FAULT };
struct rig_event {
    enum rig_event_kind kind;
    uint32_t lane;
    uint32_t epoch;
    uint32_t handle;       /* MARKER; COMPLETED: number of the post */
    int value;             /* status, err, or marker kind */
    uint64_t placed_bytes; /* MARKER: of its handle so far */
};

struct rig;
struct rig_end {
    struct rig *rig;
    struct kvf_transport *transport;
    int epoll_fd;
    struct rig_region regions[RIG_REGIONS];
    struct rig_grant grants[RIG_GRANTS];
    struct rig_event log[RIG_LOG_MAX];
    uint32_t log_count;
    uint32_t completed[RIG_POSTS_MAX]; /* per number of the post */
    int status[RIG_POSTS_MAX];
    uint32_t posted_count;
    uint32_t completed_count;
    uint32_t fenced_count;
    uint32_t lost_count;
    uint32_t up_count;
    uint32_t read_fault_count;
    uint64_t errors; /* broken promises seen in callbacks: text on stderr */
    /* called from within completed_fn when set: for re-entrancy */
    void (*completed_hook)(struct rig_end *end, uint32_t lane, const struct kvf_post *post,
                           int status);
    /* the same from within placed_fn, marker_fn, up_fn and fenced_fn */
    void (*placed_hook)(struct rig_end *end, uint32_t lane, uint32_t epoch, uint64_t bytes);
    void (*marker_hook)(struct rig_end *end, uint32_t lane, uint32_t handle);
    void (*up_hook)(struct rig_end *end, uint32_t lane);
    void (*fenced_hook)(struct rig_end *end, uint32_t lane);
};

struct rig_options {
    struct kvf_transport_config config;
    uint32_t squeeze_bytes; /* streams move in random pieces of at most this; 0: as they like */
    uint64_t seed;
};

struct rig_kind {
    const char *name;
    const struct kvf_transport_ops *ops;
    bool has_streams;    /* squeeze and cut make sense */
    uint32_t patience_s; /* of rig_until; 0: a minute */
    /* What a kind cannot promise by its nature, and why; NULL: it can. A test of it is skipped with that
     * reason, or leaves the one check out. */
    const char *asks_no_place;   /* T4: the sink's side is asked before every receive */
    const char *calls_none_back; /* posts that were not started can be detached */
    const char *faults_never;    /* T7: memory that is gone is found out */
    const char *hears_no_end;    /* the sink is told when the source ends a lane */
    const char *never_stands;    /* a sink that is not polled takes nothing */
    /* Why this host does not allow it, NULL if it does. No function: always allowed. */
    const char *(*refused_because)(void);
    /* Makes end->transport for this end's host. */
    int (*end_create)(struct rig *rig, struct rig_end *end,
                      const struct kvf_transport_host *host);
    /* Memory that devices have to know, after it is mapped and before it is unmapped. NULL: they need not. */
    void (*region_made)(struct rig *rig, struct rig_end *end, uint32_t idx);
    void (*region_leaves)(struct rig *rig, struct rig_end *end, uint32_t idx);
    /* Brings the lane up between the two ends, until both said so. 0 or -errno. */
    int (*lane_open)(struct rig *rig, uint32_t lane, uint32_t epoch);
    /* Hands readiness to one end and moves what is between them. wait: may sleep a millisecond. */
    void (*end_events)(struct rig *rig, struct rig_end *end, bool wait);
    /* Breaks the lane's connection from outside, if has_streams. */
    void (*lane_cut)(struct rig *rig, uint32_t lane);
    void (*destroy)(struct rig *rig);
};

struct rig {
    const struct rig_kind *kind;
    struct rig_options options;
    struct rig_end source;
    struct rig_end sink;
    bool is_sink_stopped; /* rig_turn leaves the sink alone */
    void *own;            /* of the kind */
    uint64_t random;
};

struct rig *rig_create(const struct rig_kind *kind, const struct rig_options *options);
void rig_destroy(struct rig *rig);
struct rig_options rig_defaults(void);
uint64_t rig_random(struct rig *rig);

/* The same geometry on both ends as region `idx`: plane p has plane_bytes[p % n] bytes a page; pages lie
 * `gap` bytes apart. The source holds a pattern, the sink canaries. */
void rig_region(struct rig *rig, uint32_t idx, uint32_t pages, uint32_t planes,
                const uint32_t *plane_bytes, uint32_t n, uint32_t gap);
/* Sink: handle h may write `pages` pages of region from page_base on. */
void rig_grant(struct rig *rig, uint32_t handle, uint32_t region, uint32_t page_base,
               uint32_t pages);
/* Posts source pages [page, page + pages) as positions `position`... of the handle. Number of the post. */
uint32_t rig_post(struct rig *rig, uint32_t lane, uint64_t cookie, uint32_t handle,
                  uint32_t region, uint32_t page, uint32_t position, uint32_t pages);
uint32_t rig_mark(struct rig *rig, uint32_t lane, uint64_t cookie, uint32_t handle,
                  uint8_t kind);

/* Forgets posts and events so far: their numbers begin again. Every post must have completed. */
void rig_forget(struct rig *rig);

/* One turn of both ends. Bytes moved. */
uint64_t rig_turn(struct rig *rig, bool wait);
/* Turns until the condition holds or patience is over; says whether it holds. */
typedef bool (*rig_condition)(struct rig *rig, uint64_t arg);
bool rig_until(struct rig *rig, rig_condition condition, uint64_t arg);
void rig_turns(struct rig *rig, uint32_t count);
bool rig_all_completed(struct rig *rig, uint64_t arg);
bool rig_markers_seen(struct rig *rig, uint64_t count);
bool rig_is_lost(struct rig *rig, uint64_t is_source);

/* Pages of the sink against the source's pattern: 0, or how many bytes differ. */
uint64_t rig_wrong_bytes(struct rig *rig, uint32_t region, uint32_t sink_page,
                         uint32_t source_page, uint32_t pages);
/* Bytes of the sink's pages that are not canaries. */
uint64_t rig_touched_bytes(struct rig *rig, uint32_t region, uint32_t page, uint32_t pages);
void rig_paint(struct rig *rig, uint32_t region, uint32_t page, uint32_t pages);
uint32_t rig_count(const struct rig_end *end, enum rig_event_kind kind);
const struct rig_event *rig_last(const struct rig_end *end, enum rig_event_kind kind);

extern const struct rig_kind rig_tcp_kind;       /* over plain sockets */
extern const struct rig_kind rig_tcp_uring_kind; /* over io_uring */
extern const struct rig_kind rig_tcp_kind;
extern const struct rig_kind rig_local_kind;
/* The simulator's doubles: of tcp, and of RC verbs. */
extern const struct rig_kind rig_sim_kind;
extern const struct rig_kind rig_sim_nic_kind;
/* verbs over fake devices (tests/fake_verbs); or over the two real ones that the environment names:
 * KVF_RIG_VERBS=rxe0,rxe1 (source, sink). What only the fake can do is skipped then. */
extern const struct rig_kind rig_verbs_kind;
extern const struct rig_kind rig_verbs_real_kind;
/* tcp's accepted descriptor of a lane, for tests that shrink its buffers; owned by the transport. */
int rig_tcp_source_fd(struct rig *rig, uint32_t lane);
/* local's clock, for lanes with a rate; it stands still until set. When poll has something to do. */
void rig_local_set_now(struct rig *rig, uint64_t now_ns);
uint64_t rig_local_due_ns(struct rig *rig);

#endif

/* The tables behind core.h. Each object says here who points to it; the files say what they do:
 *
 *   core.c    memory, time, the pull of actions   room.c    the one gate all ends pass
 *   grant.c   sink side of a grant                source.c  source side of a grant
 *   regrant.c the sink's new grants after a fence
 *   piece.c   pieces of a source room, posts      lane.c    lanes, fences
 *   peer.c    control connections                 emit.c    bytes owed to a peer
 *   region.c  clients, regions, the owner table   runs.c    page lists
 *   group.c   agreement of a request's ranks      group_key.c  keys of ranks
 *   adopt.c   rooms of an earlier worker      operator.c  what operators say and see
 *   show.c    what they see without asking
 *   remote.c  regions of peers                flush.c     memory that is not the host's */
#ifndef KVF_CORE_INTERNAL_H
#define KVF_CORE_INTERNAL_H

#include "sidecar/core/chain.h"
#include "sidecar/core/core.h"
#include "sidecar/core/list.h"
#include "sidecar/core/runs.h"

#define KVF_REGIONS_PER_WORKER_MAX 4096u
#define KVF_LIST_PAGES_MAX                                                                     \
    (1u << 20) /* of one page list: a walk over it stays short of a deadline */
#define KVF_TOMBSTONE_SETS 4096u /* a power of two */
#define KVF_TOMBSTONE_WAYS 8u
#define KVF_TOMBSTONES (KVF_TOMBSTONE_SETS * KVF_TOMBSTONE_WAYS)
#define KVF_CONNECT_RETRY_NS UINT64_C(50000000)
/* A lane is opened again so long after its fence; after attempts in a row that never came up, twice as long for each
 * one more (so often at most), and by chance up to half as much on top. */
#define KVF_LANE_RETRY_NS UINT64_C(20000000)
#define KVF_LANE_RETRY_DOUBLINGS_MAX 5u
#define KVF_GEOMETRY_SALT UINT64_C(0x6b7666)
#define KVF_RATE_WINDOW_NS UINT64_C(50000000)
#define KVF_SOURCE_LOSSES_MAX                                                                  \
    64u                        /* so often a sink may come again; it keeps a bound of its own */
#define KVF_GROUP_HINTS 32768u /* keys of ended rooms, power of two; overwritten freely */
#define KVF_GROUP_HINT_WAYS 4u /* ... in sets of so many */
#define KVF_GROUP_HOLD_ASKS 4u /* so often ranks are asked for a client that left */
#define KVF_GROUP_DEPARTED_MAX 256u /* ranks whose client left; the oldest goes first */
#define KVF_GROUP_ROOMS_PER_KEY                                                                \
    4u /* of one rank: a sink, a source, and those of an earlier worker */
#define KVF_GROUP_QUESTIONS_PER_TURN                                                           \
    4096u                          /* between ranks of this daemon: about a millisecond */
#define KVF_GROUP_ANSWERS_MAX 256u /* owed to one peer; what finds no place is asked again */

enum kvf_role { KVF_ROLE_NONE = 0, KVF_ROLE_SINK = 1, KVF_ROLE_SOURCE = 2 };

struct kvf_region {
    uint32_t handle; /* 0: free. Slot in the low 8 bits, epoch above (epochs begin at 1) */
    uint32_t plane_count;
    uint64_t page_count;
    uint64_t page_bytes; /* over all planes */
    uint64_t geometry;   /* hash of plane_count and every plane's page_bytes */
    uint64_t base;       /* devices only: its address to them, and a key per rail */
    uint32_t key_count;
    uint32_t keys[KVF_WIRE_KEYS_MAX];
    bool is_device; /* not the host's memory: rooms with pages of it are flushed */
    const struct kvf_core_plane *planes;
    uint32_t *owners; /* per page: 0 idle; room index + 1 of a sink; OWNER_READ | readers */
    uint32_t refs;    /* undrained rooms that name it */
};

struct kvf_client_rec {
    bool is_used;
    bool is_closed;
    bool is_reaped;
    bool is_quiet_told;
    uint32_t rooms_max;
    uint32_t flushes_out; /* not answered: they name its regions and its index */
    uint32_t undrained;
    uint32_t tomb_count;
    uint32_t tomb_free; /* index + 1 in core->group_tombs, linked through next */
    uint32_t tomb_fresh;
    uint32_t untold;       /* rooms that other ranks may not know to have ended */
    bool is_hold_over;     /* closed for so long that the untold ranks count as out of reach */
    uint64_t hold_ns;      /* closed: until then the client stays for their sake */
    struct kvf_link quiet; /* in core->quiet_list */
    struct kvf_region regions[KVF_REGIONS_PER_CLIENT_MAX];
};

struct kvf_room_rec {
    uint64_t generation;
    uint64_t label;
    uint64_t key;
    uint64_t opened_ns;
    uint64_t flush_end_ns;  /* in the list of rooms whose flush is awaited: its deadline */
    uint64_t wait_since_ns; /* in the bootstrap list: opened, or a grant was lost */
    uint64_t closed_ns;
    uint64_t close_to_drained_ns;
    uint64_t placed_bytes;
    uint64_t total_bytes;
    uint32_t reason;
    uint32_t detail;
    uint8_t role;
    uint8_t phase;
    uint8_t outcome;
    uint8_t proof;
    bool is_started;
    bool is_visible;
    bool is_last_in;      /* source: the last piece was submitted */
    bool is_coverage_ok;  /* source: the pieces cover the grant exactly once */
    bool owns_pages;      /* sink: the owner table names us; source: pieces are counted */
    bool are_leases_idle; /* external leases: closed and zero */
    bool has_posted;      /* source: something was ever posted */
    bool is_twin;         /* source: refused, another open room has its (label, key) */
    bool was_granted; /* all its peers were there once: what the engine sees never goes back */
    bool waits_again; /* in the bootstrap list for a new grant */
    bool is_flush_asked;
    bool is_flush_failed; /* or its region will never come: nothing here proves this room */
    bool
        is_rail_missing; /* adopted: written through a device that is not ours to read through */
    bool is_held_adopted; /* adopted, and its pages stand in the books as held */
    uint8_t past_proof;   /* sink: weakest of the grants that new ones took the place of */
    uint8_t
        flush_lanes; /* sink, with a flush to come: lanes that its grants had, of any peer */
    uint16_t flush_mask;  /* sink: slots of regions that are a device's and not flushed yet */
    uint16_t region_mask; /* slots of the regions referenced */
    uint32_t run_block;   /* sink: page list */
    uint32_t run_count;
    uint32_t page_count; /* sink: list; source: the grants' length, 0 = not known */
    uint32_t grants; /* head of the room's grants, index + 1 (sink or source table by role) */
    uint32_t grant_count;    /* sink: writers; source: grants matched so far */
    uint32_t accepted_count; /* sink */
    uint32_t landed_count;   /* sink: grants proven with END on every lane */
    uint32_t unproven_count; /* sink: grants that may still place; source: none */
    uint32_t pairs_unproven; /* sink: (grant, lane) pairs, for the stats */
    uint32_t sink_count;     /* source: served sinks ... */
    uint32_t
        lost_count; /* ... of the matched grants so many lost a lane: their sinks come again */
    uint32_t sinks_ended; /* ... of which so many ended ... */
    uint32_t sinks_ok;    /* ... and so many with END on every lane */
    uint32_t leases;      /* source: posts accepted and not completed */
    uint32_t region;      /* source */
    uint32_t aux_region;
    uint32_t piece_head; /* source: index + 1 */
    uint32_t piece_tail;
    uint32_t piece_pages; /* sum over pieces */
    uint32_t piece_end;   /* largest start + count */
    uint32_t group;       /* handle, 0: none */
    bool is_in_group;     /* hashed; false: the group is not known (yet) */
    bool is_adopted;
    bool is_group_settled; /* adopted: an earlier worker settled it */
    bool is_untold;        /* counted in its client's `untold` */
    uint64_t group_waits;  /* ranks that have not settled since this room failed */
    uint64_t group_owed;   /* ranks that are owed a question */
    uint64_t group_untold; /* ranks not heard of since the close: they may not know */
    struct kvf_link group_hash;
    struct kvf_link group_talk;  /* group's list: asks, or is owed a word */
    struct kvf_link group_local; /* core list: owed to ranks of this very daemon */
    struct kvf_link group_stuck; /* core list: drained, waits for others; oldest first */
    struct kvf_link hash;        /* source, open: chain of its (label, key) bucket */
    struct kvf_link bootstrap;   /* open and waiting for a peer, in order of wait_since_ns */
    struct kvf_link publish;
    struct kvf_link leases_close;
    struct kvf_link act_flush;
    struct kvf_link flushing; /* its flush is awaited */
};

struct kvf_piece {
    uint32_t start;
    uint32_t count;
    uint32_t run_block;
    uint32_t run_count;
    uint32_t next; /* index + 1; also the free list */
};

/* Sink side. The table index is the low half of the handle, and the low 16 bits of the nonce. */
enum kvf_grant_state {
    KVF_GRANT_FREE = 0,
    KVF_GRANT_QUEUED,   /* no byte was handed to a socket; waits for credits or its turn */
    KVF_GRANT_SENDING,  /* some fragments were */
    KVF_GRANT_SENT,     /* all of it; no answer yet */
    KVF_GRANT_ACCEPTED, /* one marker per lane of the mask follows */
    KVF_GRANT_TELL,     /* proven NEVER_POSTED; the peer is owed (label, key) as a hint */
};

struct kvf_grant {
    uint64_t nonce;
    uint64_t past_nonce; /* the last one accepted for this writer, 0: none was */
    uint64_t label;
    uint64_t key;
    uint64_t deadline_ns; /* cooperative, once closed */
    uint64_t placed_bytes;
    uint64_t total_bytes;
    uint32_t room; /* index, KVF_NONE once the room is drained */
    uint32_t peer;
    uint32_t start; /* part of the room's list */
    uint32_t page_count;
    uint32_t run_cursor; /* next run to send, while SENDING */
    uint32_t room_next;  /* index + 1 */
    uint32_t lane_epochs[KVF_LANES_MAX];
    uint16_t handle_gen;
    uint16_t regrants; /* grants before this one, for the same writer of the room */
    uint8_t state;
    uint8_t lane_mask;
    uint8_t
        proven_mask; /* lanes with marker or fence: the handle is free when it equals lane_mask */
    uint8_t end_mask;
    uint8_t proof;       /* weakest so far */
    bool is_closed;      /* room closed, or this grant ended */
    bool is_revoked;     /* checked placement: nothing is placed any more */
    bool is_counted_out; /* the room no longer waits for it */
    bool is_answered;    /* ACCEPT or DECLINE came, or none can come: one answer per GRANT */
    bool is_accepted;    /* ... and it was ACCEPT ... */
    bool is_declined;    /* ... or DECLINE: a DRAIN may follow, on queue pairs, and no END */
    bool is_retired; /* a lane of it broke: proven everywhere, it makes room for a new grant */
    bool is_stopped; /* DRAIN came while the room is open; ENDED says why */
    bool is_by_device; /* a lane of its mask is a queue pair: nobody here sees its bytes */
    bool owes_abort;
    bool owes_tell; /* the source's room may wait for a grant that will not come */
    struct kvf_link in_peer;
    struct kvf_link waiting;  /* peer's list: wants credits */
    struct kvf_link owed;     /* peer's send list */
    struct kvf_link deadline; /* core list in order of deadline_ns */
};

/* Source side. */
enum kvf_source_state {
    KVF_SOURCE_FREE = 0,
    KVF_SOURCE_ASSEMBLING, /* fragments are missing */
    KVF_SOURCE_PARKED,     /* waits for its room */
    KVF_SOURCE_ACTIVE,     /* accepted */
    KVF_SOURCE_DECLINED,   /* owes the DECLINE, and DRAIN on its queue pairs; then it is free */
};

struct kvf_source_grant {
    uint64_t nonce;
    uint64_t past_nonce; /* the grant whose place this one takes, 0: none */
    uint64_t label;
    uint64_t key;
    uint64_t deadline_ns;
    uint64_t posted_bytes;                     /* posted and not completed */
    uint64_t lane_posted_bytes[KVF_LANES_MAX]; /* ... on each lane */
    uint64_t total_bytes;
    uint64_t sent_bytes;  /* completed with success */
    uint32_t incarnation; /* upper half of the cookie */
    uint32_t handle;      /* the sink's */
    uint32_t room;        /* index, KVF_NONE */
    uint32_t peer;
    uint32_t room_next; /* index + 1 */
    uint32_t run_block;
    uint32_t total_runs;
    uint32_t got_runs;
    uint32_t page_count;
    uint32_t got_pages;
    uint32_t piece; /* cursor: piece index + 1, and pages of it already posted */
    uint32_t piece_pages;
    uint32_t posted_pages;
    uint32_t leases;
    uint32_t reason;
    uint32_t detail;
    uint32_t lane_epochs[KVF_LANES_MAX];
    uint32_t ready_next[KVF_LANES_MAX]; /* index + 1: queue of grants with data, per lane */
    uint32_t
        mark_next[KVF_LANES_MAX]; /* index + 1: queue of grants that owe a marker, per lane */
    uint8_t ready_mask;
    uint8_t mark_mask;
    uint8_t state;
    uint8_t lane_mask;
    uint8_t marked_mask;    /* a marker was posted */
    uint8_t end_mask;       /* ... and it was END */
    uint8_t mark_done_mask; /* its completion came, good or bad */
    uint8_t end_ok_mask;    /* END completed with success */
    uint8_t dead_mask;      /* the lane broke: no marker may follow */
    uint8_t detached_mask;  /* lanes whose transport was told to let the source pages go */
    bool is_closing;        /* no more data: DRAIN goes on every unmarked lane */
    bool is_counted_out; /* the room no longer waits for this sink, or for this grant of it */
    bool is_aborted;     /* the sink said so itself */
    bool is_lost; /* a lane broke: keeps the sink's place until it comes again or gives up */
    bool is_given_up; /* ... which it did */
    bool is_replaced; /* ... or its new grant has the place */
    uint8_t losses;   /* grants before this one, for the same sink */
    bool owes_accept;
    bool owes_decline;
    bool owes_ended;
    struct kvf_link hash; /* parked: chain of (label, key) */
    struct kvf_link nonce_hash;
    struct kvf_link in_peer;
    struct kvf_link owed;
    struct kvf_link deadline;
    struct kvf_link detach; /* core list: source pages are to be let go now */
};

enum kvf_lane_state { KVF_LANE_DOWN = 0, KVF_LANE_OPENING, KVF_LANE_UP, KVF_LANE_FENCING };

struct kvf_queue { /* of source grants, linked through an array member; index + 1 */
    uint32_t head;
    uint32_t tail;
};

struct kvf_lane {
    uint8_t state;
    bool
        owes_lane; /* the peer is owed LANE: by the source, of a queue pair by the sink first */
    bool
        is_queue_pair; /* this epoch is, as the transport said; or the sink, if it asked for one */
    uint8_t failed_opens; /* sink: attempts in a row that never came up */
    uint32_t epoch;
    uint32_t theirs_epoch; /* source: newest that the sink asked for, open or to be opened */
    struct kvf_lane_end own;
    struct kvf_lane_end theirs; /* sink: with qpn 0 until the answer came */
    uint32_t credits_out;       /* sink: (grant, lane) pairs that hold a receive */
    uint64_t fence_since_ns;
    uint64_t retry_ns; /* sink: open again from then on */
    uint64_t posted_bytes;
    uint64_t window_bytes;
    uint64_t moved_bytes; /* for operators: placed, or completed with success */
    uint64_t rate_since_ns;
    uint64_t rate_bytes;
    struct kvf_queue ready;
    struct kvf_queue marks;
    struct kvf_link act_fence;
    struct kvf_link act_open;
    struct kvf_link act_join;
    struct kvf_link act_post;
    struct kvf_link act_escalate;
    struct kvf_link fencing; /* in order of fence_since_ns */
};

enum kvf_peer_role { KVF_PEER_FREE = 0, KVF_PEER_OUT /* we are the sink */, KVF_PEER_IN };
enum kvf_peer_state {
    KVF_PEER_IDLE = 0,   /* OUT: no connection, nobody needs one */
    KVF_PEER_CONNECTING, /* OUT: the CONNECT action is out */
    KVF_PEER_RETRY,      /* OUT: waits for retry_ns */
    KVF_PEER_HELLO,      /* OUT: connected, no HELLO from it yet */
    KVF_PEER_UP,
    KVF_PEER_LOST, /* IN: lanes are being fenced, grants end; then it is free */
};

struct kvf_remote_region {
    uint32_t epoch; /* 0: unknown */
    uint64_t page_bytes;
    uint64_t geometry;
    uint64_t page_count;
    uint32_t key_count;
    uint32_t place; /* index + 1 in core->remotes; 0: none */
};

/* What a device needs to write into a peer's region. The first `remote_fresh` are in use or in the free list. */
struct kvf_remote_place {
    uint64_t base;
    uint32_t keys[KVF_WIRE_KEYS_MAX];
    uint32_t plane_count;
    uint32_t next; /* index + 1: of the same peer, or the free list */
    struct kvf_core_plane planes[KVF_WIRE_PLANES_MAX];
};

struct kvf_peer {
    uint8_t role;
    uint8_t state;
    uint8_t lane_count;
    uint8_t placement; /* IN: of the peer, as sink */
    bool owes_hello;
    bool owes_ping;
    bool owes_pong;
    bool owes_group;   /* OUT: some room may owe a question to a rank behind it */
    bool is_for_rooms; /* OUT: had a grant; one that only asks opens no lanes and is let go */
    uint32_t caps;
    uint32_t answer_first; /* IN: ring of KVF_GROUP_ANSWERS_MAX in core->group_answers */
    uint32_t answer_count;
    uint32_t receives_per_lane;
    uint32_t seq_in;
    uint32_t seq_out;
    uint32_t worker_starts;
    uint64_t supervisor_id;
    char name[KVF_WIRE_NAME_BYTES]; /* what it calls itself: for operators only */
    uint64_t session;
    uint32_t dial_id; /* OUT: random, fixed with the peer; upper half of every session of it */
    uint16_t dial_count; /* OUT: connections made so far */
    uint64_t retry_ns;
    uint64_t unreachable_since_ns; /* 0: reachable */
    uint64_t heard_ns;             /* last PONG, or the start of the wait for one */
    uint64_t pinged_ns;
    uint64_t ping_seq;  /* last question asked */
    uint64_t heard_seq; /* last question answered */
    uint64_t pong_seq;
    struct kvf_addr_shm addr;
    uint32_t parked;
    uint32_t assembling;     /* IN: source grant index + 1 whose fragments arrive */
    uint32_t places;         /* IN: of its regions, index + 1 in core->remotes; ... */
    uint32_t place_count;    /* ... so many */
    struct kvf_list grants;  /* OUT: struct kvf_grant; IN: struct kvf_source_grant */
    struct kvf_list waiting; /* OUT */
    struct kvf_list owed;
    struct kvf_link act_connect;
    struct kvf_link act_close;
    struct kvf_link act_write;
    uint64_t announced[KVF_REGIONS_PER_WORKER_MAX / 64];         /* OUT: REGION was sent */
    struct kvf_remote_region remote[KVF_REGIONS_PER_WORKER_MAX]; /* IN, by wire number */
};

/* A registered group of one client: core->groups[client * KVF_GROUPS_PER_CLIENT_MAX + handle - 1]. */
struct kvf_group_rec {
    uint64_t id; /* 0: free */
    uint32_t rank;
    uint32_t member_count;
    uint64_t others;      /* every rank but our own */
    uint64_t local;       /* ... those behind our own address */
    uint64_t ask_ns;      /* with rooms in `talk`: when they ask again */
    uint64_t asking;      /* ranks that some room in `talk` waited for when it last asked */
    struct kvf_list talk; /* rooms */
    /* First room in `talk` that may owe this rank a question, index + 1; 0: none does. Rooms that come to
     * owe one go to the end of the list, so what owes is never behind a cursor. */
    uint32_t cursor[KVF_GROUP_MEMBERS_MAX];
    uint32_t peer[KVF_GROUP_MEMBERS_MAX]; /* index + 1 of the connection dialled last: a hint */
    struct kvf_addr_shm members[KVF_GROUP_MEMBERS_MAX];
    struct kvf_link used;
};

/* A key that other ranks ended before our engine opened it:
 * core->group_tombs[client * group_tombstones_max + index]. It is in the client's segment before any rank
 * is told "never opened", so that no worker's end lets a late open through. */
struct kvf_group_tomb {
    uint64_t group_id; /* 0: the group of an adopted one is not known yet */
    uint64_t key;
    uint32_t rank;
    uint32_t group; /* handle, 0: free */
    uint32_t next;  /* index + 1: the free list */
    struct kvf_link hash;
    struct kvf_link store; /* core list: to be stored, or cleared */
};

struct kvf_group_departed {
    uint64_t group_id; /* 0: unused */
    uint32_t rank;
};

enum kvf_tombstone_kind { KVF_TOMB_NONE = 0, KVF_TOMB_ENDED, KVF_TOMB_ABORTED };
struct kvf_tombstone {
    uint64_t label;
    uint64_t key;
    uint64_t order; /* the larger, the younger */
    uint8_t kind;   /* enum kvf_tombstone_kind */
    bool is_met;    /* ended, and all its sinks had come: hardly anybody asks again */
};
/* The room of this label and key is over: who asks later learns it. */
void kvf_tombstone_put(struct kvf_core *core, uint64_t label, uint64_t key,
                       enum kvf_tombstone_kind kind, bool is_met);
enum kvf_tombstone_kind kvf_tombstone_get(const struct kvf_core *core, uint64_t label,
                                          uint64_t key);

/* A peer that an operator took down. */
struct kvf_hold {
    bool is_used;
    struct kvf_addr_shm addr; /* family 0: named by its supervisor */
    uint64_t supervisor_id;   /* 0: nobody was reached at that address yet */
};

struct kvf_core {
    struct kvf_core_limits limits;
    struct kvf_core_config config;
    uint64_t random[4];
    uint64_t next_tick_ns; /* nothing is due before */
    bool is_stopping;
    bool is_draining; /* by an operator's word, which may be taken back */

    struct kvf_client_rec *clients;
    struct kvf_room_rec *rooms; /* client * rooms_per_client_max + slot */
    struct kvf_grant *grants;
    struct kvf_source_grant *sources;
    struct kvf_peer *peers;
    struct kvf_lane *lanes; /* peer * KVF_LANES_MAX + index */
    struct kvf_piece *pieces;
    struct kvf_runs runs;
    struct kvf_tombstone *tombstones;
    uint64_t tombstone_order;
    uint32_t *room_buckets; /* index + 1 */
    uint32_t *park_buckets;
    uint32_t *nonce_buckets;
    struct kvf_group_rec *groups;
    struct kvf_group_tomb *group_tombs;
    struct kvf_wire_group *group_answers; /* peer * KVF_GROUP_ANSWERS_MAX */
    uint64_t *group_hints;
    uint32_t *group_buckets;
    uint32_t *tomb_buckets;
    struct kvf_remote_place *remotes; /* remote_regions_max */

    uint32_t grant_free;  /* index + 1, linked through room_next */
    uint32_t grant_fresh; /* never used so far: tables are not walked at start */
    uint32_t source_free;
    uint32_t source_fresh;
    uint32_t piece_free;
    uint32_t piece_fresh;
    uint32_t remote_free;
    uint32_t remote_fresh;
    uint32_t flush_failed; /* room + 1: this worker must be ended */
    uint32_t flushes_out;
    bool is_tomb_pulled; /* the caller may not have stored it yet */
    uint32_t hold_count;
    struct kvf_hold holds[KVF_CORE_HOLDS_MAX];
    uint32_t departed_next;
    uint64_t group_now_ns; /* of the event that made rooms owe a word to ranks of this daemon */
    struct kvf_group_departed departed[KVF_GROUP_DEPARTED_MAX];

    struct kvf_list bootstrap;       /* rooms */
    struct kvf_list publish;         /* rooms */
    struct kvf_list leases_close;    /* rooms */
    struct kvf_list act_flush;       /* rooms */
    struct kvf_list flushing;        /* rooms, a few at a time: walked */
    struct kvf_list grant_deadlines; /* grants */
    struct kvf_list source_deadlines;
    struct kvf_list detaches; /* sources */
    struct kvf_list act_fence, act_open, act_join, act_post, act_escalate, fencing; /* lanes */
    struct kvf_list act_connect, act_close, act_write;                              /* peers */
    struct kvf_list quiet;       /* clients */
    struct kvf_list tomb_store;  /* tombstones */
    struct kvf_list groups_used; /* groups */
    uint64_t salt;               /* of hash chains */
    uint32_t group_budget;       /* questions within this daemon left before the next tick */
    bool are_groups_held;
    struct kvf_list group_local, group_stuck; /* rooms */

    struct kvf_wire_region
        region_scratch; /* too large for a stack frame; used within one call */
    struct kvf_wire_run run_scratch[KVF_WIRE_RUNS_PER_FRAME];

    uint64_t counters[KVF_COUNTERS];
    uint64_t gauges[KVF_GAUGES];
};

/* core.c */
uint64_t kvf_core_random(struct kvf_core *core);
void kvf_core_due(struct kvf_core *core, uint64_t when_ns); /* tick no later than that */
static inline void kvf_count(struct kvf_core *core, uint32_t counter)
{
    core->counters[counter]++;
}
static inline void kvf_gauge_add(struct kvf_core *core, uint32_t gauge, uint64_t n)
{
    core->gauges[gauge] += n;
}
static inline void kvf_gauge_sub(struct kvf_core *core, uint32_t gauge, uint64_t n)
{
    assert(core->gauges[gauge] >= n);
    core->gauges[gauge] -= n;
}
uint64_t kvf_hash2(uint64_t a, uint64_t b);
uint32_t kvf_core_runs_alloc(struct kvf_core *core, uint32_t count); /* and the gauge */
void kvf_core_runs_free(struct kvf_core *core, uint32_t block);

static inline uint32_t kvf_room_idx(const struct kvf_core *core, uint32_t client, uint32_t slot)
{
    return client * core->limits.rooms_per_client_max + slot;
}
static inline uint32_t kvf_room_client(const struct kvf_core *core, uint32_t room)
{
    return room / core->limits.rooms_per_client_max;
}
static inline uint32_t kvf_room_slot(const struct kvf_core *core, uint32_t room)
{
    return room % core->limits.rooms_per_client_max;
}

/* Bits of mask that are not in the other: lanes that still owe something. */
static inline uint32_t kvf_left(uint32_t mask, uint32_t not_these)
{
    return mask & ~not_these;
}

/* region.c */
struct kvf_region *kvf_region_of(struct kvf_core *core, uint32_t client, uint32_t handle);
uint32_t kvf_region_wire(uint32_t client, uint32_t handle); /* number on the wire */
struct kvf_region *kvf_region_by_wire(struct kvf_core *core, uint32_t wire,
                                      uint32_t *ret_handle);
/* Owner table. own_sink: 0, or -KVF_E_PAGE_LENT / -KVF_E_PAGE_TWICE and nothing changed. */
int kvf_own_sink(struct kvf_core *core, uint32_t room, const struct kvf_run *runs,
                 uint32_t count);
void kvf_disown_sink(struct kvf_core *core, uint32_t room, const struct kvf_run *runs,
                     uint32_t count);
int kvf_own_source(struct kvf_core *core, uint32_t client, const struct kvf_run *runs,
                   uint32_t count);
void kvf_disown_source(struct kvf_core *core, uint32_t client, const struct kvf_run *runs,
                       uint32_t count);
void kvf_client_check_quiet(struct kvf_core *core, uint32_t client);

/* room.c: the gate */
void kvf_room_close(struct kvf_core *core, uint64_t now_ns, uint32_t room,
                    enum kvf_outcome outcome, uint32_t reason, uint32_t detail);
void kvf_room_try_drain(struct kvf_core *core, uint64_t now_ns, uint32_t room);
void kvf_room_publish(struct kvf_core *core, uint32_t room);
void kvf_room_set_phase(struct kvf_core *core, uint32_t room, enum kvf_phase phase);
/* It names these slots of regions: they stay until it is drained. */
void kvf_room_refer(struct kvf_core *core, uint32_t room, uint16_t region_mask);
void kvf_room_wait_over(struct kvf_core *core,
                        uint32_t room); /* bootstrap deadline no longer runs */
/* A grant was lost: the bootstrap deadline runs anew, unless it still runs. */
void kvf_room_wait_again(struct kvf_core *core, uint64_t now_ns, uint32_t room);

/* grant.c: sink side */
int kvf_grant_create(struct kvf_core *core, uint64_t now_ns, uint32_t room, uint32_t peer,
                     uint32_t start, uint32_t page_count);
void kvf_grant_close(struct kvf_core *core, uint64_t now_ns, uint32_t grant);
void kvf_grant_prove(struct kvf_core *core, uint64_t now_ns, uint32_t grant, uint32_t lane_idx,
                     enum kvf_proof proof);
void kvf_grant_declined(struct kvf_core *core, uint64_t now_ns, uint32_t grant, uint32_t reason,
                        uint32_t detail);
void kvf_grant_accepted(struct kvf_core *core, uint64_t now_ns, uint32_t grant);
void kvf_grant_ended(struct kvf_core *core, uint64_t now_ns, uint32_t grant, uint32_t reason,
                     uint32_t broken_lanes);
void kvf_grant_unqueue(struct kvf_core *core,
                       uint32_t grant); /* back to waiting, credits too */
void kvf_grants_admit(struct kvf_core *core, uint64_t now_ns,
                      uint32_t peer); /* credits -> owed */
void kvf_grant_forget(struct kvf_core *core, uint64_t now_ns, uint32_t grant);
/* Proven everywhere, answered, nothing owed: the record is free, or a new grant's. */
void kvf_grant_settle(struct kvf_core *core, uint64_t now_ns, uint32_t grant);

/* flush.c: for rooms with a flush to come (flush_mask) */
/* Whether a closed room has to wait for it; asks for it once everything else of its grants is proven. */
bool kvf_flush_is_awaited(struct kvf_core *core, uint64_t now_ns, uint32_t room);
/* An earlier worker's room with pages to flush was taken over: how long it may wait for its regions. */
void kvf_flush_adopt(struct kvf_core *core, uint64_t now_ns, uint32_t room);
/* One that failed, or that nobody can do: an operator takes its place. */
void kvf_flush_forget(struct kvf_core *core, uint32_t room);
/* The peer turned out to be copied to and from: rooms in a device's memory fail. */
void kvf_flush_refuse_copies(struct kvf_core *core, uint64_t now_ns, uint32_t peer);
void kvf_flush_tick(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns);
bool kvf_flush_next(struct kvf_core *core, struct kvf_action *ret_action);
bool kvf_flush_next_failure(struct kvf_core *core, struct kvf_action *ret_action);

/* regrant.c: new grants of the sink after a fence */
/* A lane of this grant broke or is broken here: it is retired, or its room fails. */
void kvf_grant_lane_lost(struct kvf_core *core, uint64_t now_ns, uint32_t grant);
/* Its room is open and may have another grant in its place. */
bool kvf_grant_may_retire(const struct kvf_core *core, const struct kvf_grant *g);
void kvf_grant_retire(struct kvf_core *core, uint64_t now_ns, uint32_t grant);
/* Retired or stopped, and its room is open: whatever is proven of it, the room waits on. */
bool kvf_grant_is_between(const struct kvf_core *core, const struct kvf_grant *g);
void kvf_grant_renew(struct kvf_core *core, uint64_t now_ns, uint32_t grant);
struct kvf_grant *kvf_grant_by_nonce(struct kvf_core *core, uint32_t peer, uint64_t nonce,
                                     uint32_t *ret_idx);
uint32_t kvf_grant_handle(uint32_t idx, const struct kvf_grant *g);

/* source.c, and piece.c for pieces and posts */
uint32_t kvf_source_alloc(struct kvf_core *core, uint32_t peer, uint64_t nonce);
void kvf_source_free(struct kvf_core *core, uint64_t now_ns, uint32_t source);
void kvf_source_whole(struct kvf_core *core, uint64_t now_ns,
                      uint32_t source); /* GRANT is complete */
void kvf_source_decline(struct kvf_core *core, uint32_t source, uint32_t reason,
                        uint32_t detail);
void kvf_source_close(struct kvf_core *core, uint64_t now_ns, uint32_t source, uint32_t reason,
                      uint32_t detail);
void kvf_source_lane_dead(struct kvf_core *core, uint64_t now_ns, uint32_t source,
                          uint32_t lane_idx);
void kvf_source_aborted(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                        const struct kvf_wire_abort *abort);
enum kvf_next { KVF_NEXT_NOTHING, KVF_NEXT_POST, KVF_NEXT_LANE_FULL };
/* The next data post of this grant, counted as posted when KVF_NEXT_POST. */
enum kvf_next kvf_source_next_data(struct kvf_core *core, uint64_t now_ns, uint32_t source,
                                   uint32_t lane_idx, uint64_t lane_left_bytes,
                                   bool is_lane_idle, struct kvf_post *post);
void kvf_source_next_mark(struct kvf_core *core, uint32_t source, uint32_t lane_idx,
                          struct kvf_post *post);
void kvf_source_completed(struct kvf_core *core, uint64_t now_ns, uint32_t lane_idx,
                          const struct kvf_post *post, int status);
void kvf_source_check_coverage(struct kvf_core *core, uint64_t now_ns, uint32_t room);
void kvf_source_room_check_end(struct kvf_core *core, uint64_t now_ns, uint32_t room);
void kvf_source_try_end(struct kvf_core *core, uint64_t now_ns, uint32_t source);
uint32_t kvf_source_room_find(struct kvf_core *core, uint64_t label, uint64_t key);
void kvf_source_room_unhash(struct kvf_core *core, uint32_t room);
void kvf_source_room_free_pieces(struct kvf_core *core, uint32_t room);
/* Matches parked grants and tombstones of a room just opened. */
void kvf_source_room_opened(struct kvf_core *core, uint64_t now_ns, uint32_t room);
/* Takes the piece (block: its runs) or refuses: -KVF_E_PIECE_*, -KVF_E_PAGE_LENT, -KVF_E_RESOURCES. */
int kvf_source_add_piece(struct kvf_core *core, uint64_t now_ns, uint32_t room,
                         const struct kvf_core_submit *submit, uint32_t pages, uint32_t block);
bool kvf_source_has_place(const struct kvf_core *core);
void kvf_source_owe(struct kvf_core *core, uint32_t source);
uint32_t kvf_source_by_nonce(struct kvf_core *core, uint32_t peer, uint64_t nonce);

/* group_key.c: which keys are known of a rank */
uint64_t kvf_group_hash(uint64_t group_id, uint32_t rank, uint64_t key);
void kvf_group_hash_in(struct kvf_core *core, uint32_t room);
void kvf_group_hash_out(struct kvf_core *core, uint32_t room); /* leaves a hint */
/* Rooms of this rank and key, index + 1, 0: no more. A rank has several if its engine is both ends of one
 * transfer, or breaks the rule of keys: then they stand for one. */
uint32_t kvf_group_first_match(struct kvf_core *core, uint64_t group_id, uint32_t rank,
                               uint64_t key);
uint32_t kvf_group_next_match(struct kvf_core *core, uint32_t link, uint64_t group_id,
                              uint32_t rank, uint64_t key);
bool kvf_group_has_hint(struct kvf_core *core, uint64_t hash);
void kvf_group_put_hint(struct kvf_core *core, uint64_t hash);
uint32_t kvf_group_find_tomb(struct kvf_core *core, uint64_t group_id, uint32_t rank,
                             uint64_t key); /* KVF_NONE: none */
/* False at the client's cap: the question stays unanswered, and comes again. */
bool kvf_group_make_tomb(struct kvf_core *core, const struct kvf_group_rec *g, uint64_t key);
void kvf_group_free_tomb(struct kvf_core *core, uint32_t tomb);
void kvf_group_forget_tombs(struct kvf_core *core, uint32_t client);
/* Adopted ones of this group are found by their keys from now on. */
void kvf_group_join_tombs(struct kvf_core *core, uint32_t client, uint32_t handle);
static inline uint32_t kvf_tomb_client(const struct kvf_core *core, uint32_t tomb)
{
    return tomb / core->limits.group_tombstones_max;
}
/* Everything that was answered stands where the next worker will find it. */
static inline bool kvf_group_may_answer(const struct kvf_core *core)
{
    return core->tomb_store.count == 0 && !core->is_tomb_pulled;
}

static inline struct kvf_group_rec *kvf_group_of(struct kvf_core *core, uint32_t client,
                                                 uint32_t handle)
{
    return &core->groups[client * KVF_GROUPS_PER_CLIENT_MAX + handle - 1u];
}
static inline struct kvf_group_rec *kvf_group_of_room(struct kvf_core *core, uint32_t room)
{
    return kvf_group_of(core, kvf_room_client(core, room), core->rooms[room].group);
}
static inline uint32_t kvf_group_client(const struct kvf_core *core,
                                        const struct kvf_group_rec *g)
{
    return (uint32_t)(g - core->groups) / KVF_GROUPS_PER_CLIENT_MAX;
}

/* group.c: all of these do nothing for a room without a group */
/* A room begins: 0, or what to end it with. ret_is_ended: its key was ended by another rank. */
int kvf_group_open(struct kvf_core *core, uint32_t room, const struct kvf_core_open *open,
                   bool *ret_is_ended);
void kvf_group_closed(struct kvf_core *core, uint64_t now_ns, uint32_t room);
void kvf_group_drained(struct kvf_core *core, uint64_t now_ns, uint32_t room);
/* The slot is used again, or its client goes: other ranks are answered from a hint from now on. */
void kvf_group_leave(struct kvf_core *core, uint32_t room);
/* A room that was adopted before its group was known. */
void kvf_group_join(struct kvf_core *core, uint64_t now_ns, uint32_t room);
void kvf_group_client_removed(struct kvf_core *core, uint32_t client);
/* Frames: false if the peer broke the protocol. */
bool kvf_group_frame(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                     const unsigned char *payload, size_t bytes);
/* Takes the next message owed to this peer; false: none is. */
bool kvf_group_next(struct kvf_core *core, uint32_t peer, struct kvf_wire_group *ret_m);
/* Maybe: kvf_group_next knows. */
bool kvf_group_owes(const struct kvf_core *core, uint32_t peer);
/* Failed, but shown as Transferring: some rank has not settled, or the group is not known yet. */
static inline bool kvf_group_is_awaited(const struct kvf_room_rec *r)
{
    return r->group != 0 && r->outcome == KVF_OUTCOME_FAILED && !r->is_group_settled &&
           (r->group_waits != 0 || !r->is_in_group);
}
/* Some room waits for a rank behind this connection. */
bool kvf_group_needs(const struct kvf_core *core, uint32_t peer);
/* Delivers what rooms owe to ranks of this very daemon. */
void kvf_group_pump(struct kvf_core *core);
void kvf_group_tick(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns);

/* peer.c */
/* The connection to this address, or KVF_NONE: makes none. */
uint32_t kvf_peer_find(const struct kvf_core *core, const struct kvf_addr_shm *addr);
bool kvf_addr_is_same(const struct kvf_addr_shm *a, const struct kvf_addr_shm *b);
uint32_t kvf_peer_for_addr(struct kvf_core *core, uint64_t now_ns,
                           const struct kvf_addr_shm *addr);
/* Another lane's end of this very worker, between whose regions the daemon copies. */
bool kvf_peer_is_copied(const struct kvf_core *core, uint32_t peer);
void kvf_peer_need(struct kvf_core *core, uint64_t now_ns,
                   uint32_t peer); /* connect if not up */
void kvf_peer_drop(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                   int err); /* and CLOSE */
void kvf_peer_check_free(struct kvf_core *core, uint32_t peer);
/* A room has a grant for it: its lanes are opened, now or once it is up. */
void kvf_peer_use_lanes(struct kvf_core *core, uint64_t now_ns, uint32_t peer);
void kvf_peer_tick(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint64_t *due_ns);
void kvf_peer_owe(struct kvf_core *core, uint32_t peer);
void kvf_peer_violated(struct kvf_core *core, uint64_t now_ns, uint32_t peer);

/* remote.c: regions of peers, as source */
/* REGION: false if the peer broke the protocol. */
bool kvf_remote_take(struct kvf_core *core, uint32_t peer, const unsigned char *payload,
                     size_t bytes);
void kvf_remote_forget(struct kvf_core *core, uint32_t peer);
/* Why our devices cannot write what this grant names; 0: they can, or its lanes are streams. */
uint32_t kvf_remote_lack(const struct kvf_core *core, const struct kvf_source_grant *s);

/* operator.c */
bool kvf_hold_has_addr(const struct kvf_core *core, const struct kvf_addr_shm *addr);
bool kvf_hold_has_peer(const struct kvf_core *core, uint32_t peer);
/* A connection has just said who it is: one that is held down loses its rooms and gets no lanes. */
void kvf_hold_check(struct kvf_core *core, uint64_t now_ns, uint32_t peer);

/* lane.c */
void kvf_lane_start_fence(struct kvf_core *core, uint64_t now_ns, uint32_t lane);
void kvf_lane_want_open(struct kvf_core *core, uint64_t now_ns, uint32_t lane);
void kvf_lane_tick(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns);
/* LANE from the source, which answers what we opened; and from a sink, whose queue pair waits for ours. False if
 * the peer broke the protocol. */
bool kvf_lane_answered(struct kvf_core *core, uint64_t now_ns, uint32_t lane,
                       const struct kvf_wire_lane *m);
bool kvf_lane_asked(struct kvf_core *core, uint64_t now_ns, uint32_t lane,
                    const struct kvf_wire_lane *m);
void kvf_lane_push_mark(struct kvf_core *core, uint32_t source, uint32_t lane_idx);
void kvf_lane_push_ready(struct kvf_core *core, uint32_t source);
void kvf_lane_forget_source(struct kvf_core *core, uint32_t source);
static inline uint32_t kvf_lane_id(uint32_t peer, uint32_t lane_idx)
{
    return peer * KVF_LANES_MAX + lane_idx;
}

#endif

/* A world of daemons' cores under virtual time, for tests that decide the order of events themselves.
 *
 * Daemons are bare cores; between them run control connections (whole frames, both directions) and lanes
 * (ordered streams of posts). Everything moves only when a test lets it: pair_settle moves all that no
 * gate holds, pair_advance moves the clock as well. A lane's frame is handed to the kernel half a page at
 * a time and lands half a page at a time, each landing asked of kvf_core_place, so that an abort can fall
 * between any two bytes that matter. Lanes may be queue pairs instead (are_queue_pairs): two ends, told over the
 * control connection; bytes land where the sink's REGION said they would, and nobody is asked; an end that
 * nothing is posted on hears nothing of the other's.
 *
 * The oracle is a shadow of every page: who may write it now, who may read it now, and whose content it
 * holds. A byte that lands in a page whose room was published as drained, or is read from one, ends the
 * test at once; so does a room word that goes backwards. Contents are tags made of (content, position),
 * so a stranger's page is told from the right one. */
#ifndef KVF_TESTS_CORE_PAIR_H
#define KVF_TESTS_CORE_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sidecar/core/core.h"

#define PAIR_DAEMONS_MAX 4u
#define PAIR_CLIENTS 2u
#define PAIR_REGIONS 2u
#define PAIR_GROUPS 4u
#define PAIR_TOMBS_MAX 64u
#define PAIR_CONNS_MAX 64u
#define PAIR_STREAMS_MAX 128u
#define PAIR_PEERS 12u
#define PAIR_FLUSHES_MAX KVF_CORE_FLUSHES_MAX
#define PAIR_PAGE_BYTES 4096u
#define PAIR_LANES KVF_LANES_MAX
/* Handles of the regions every daemon has for each client. */
#define PAIR_REGION(slot, epoch) ((uint32_t)(slot) | (uint32_t)(epoch) << 8)
#define PAIR_R0 PAIR_REGION(0, 1)
#define PAIR_R1 PAIR_REGION(1, 1)
#define PAIR_MS UINT64_C(1000000)
#define PAIR_BYTES(pages) ((uint64_t)(pages)*PAIR_PAGE_BYTES)

struct pair;
struct kvf_core;

/* One incarnation of one room, as its engine knows it. */
struct pair_room {
    struct pair *pair;
    struct pair_room *next_room;
    uint32_t daemon;
    uint32_t client;
    uint32_t slot;
    uint64_t generation;
    uint64_t label;
    uint64_t key;
    uint32_t group;    /* handle, 0: none */
    uint64_t group_id; /* of a group its client has registered, 0: none */
    uint64_t content;  /* what source pages hold: the key, unless rooms share a prefix */
    bool is_sink;
    bool is_any_content; /* its writer is hostile: only where bytes land is checked */
    bool is_lost;        /* its daemon was killed */
    bool is_bound_off;   /* a lease of a living engine is not in the bound */
    bool are_leases_closed;
    bool is_flushed; /* in a device's memory: the last flush was answered, and with success */
    uint32_t cpu, gpu, direct_io; /* external leases out */
    int rc;                       /* of the open call */
    struct kvf_writer_shm writers[KVF_PEERS_PER_ROOM_MAX];
    uint32_t writer_count;
    uint32_t page_count;
    struct pair_at {
        uint32_t region;
        uint32_t page;
    } * pages; /* sink: by position. source: in the order submitted */
    uint32_t page_cap;
    /* what was published */
    uint32_t publishes;
    uint32_t drained_count;
    uint64_t opened_ns;
    uint64_t drained_ns;
    struct kvf_core_room_view view;
};

struct pair_page {
    uint64_t half[2];
    struct pair_room *owner; /* sink room that may be written now */
    uint32_t position;       /* in the owner's list */
    uint32_t readers;        /* source rooms that may be read now */
};

struct pair_region {
    uint32_t handle; /* 0: not registered */
    uint32_t page_count;
    bool is_device;
    uint32_t *owners; /* the core's */
    uint64_t base;    /* queue pairs: as devices know it, with this key at rail 0 */
    uint32_t key;
    struct kvf_core_plane plane;
    struct pair_page *pages;
};

struct pair_client {
    bool is_added;
    bool is_reaped;
    bool is_quiet; /* the core said so */
    struct pair_region regions[PAIR_REGIONS];
    struct pair_room **slots;
    uint64_t *generations; /* last used, by slot */
    uint32_t next_slot;
    struct kvf_core_group groups[PAIR_GROUPS]; /* handle - 1; group_id 0: none */
    struct pair_key {                          /* what its segment keeps for the next worker */
        uint32_t group;
        uint64_t key;
    } keys[PAIR_TOMBS_MAX];
};

struct pair_pending { /* a fence the core asked for and that has not returned */
    bool is_used;
    uint32_t lane;
    uint32_t epoch;
};

struct pair_daemon {
    struct kvf_core *core;
    bool is_dead;
    bool is_frozen;
    bool is_raw; /* no core: the test speaks for it */
    bool is_unreachable;
    bool hold_connects;   /* CONNECT stays open until pair_connect_now */
    bool hold_fences;     /* a fence returns only at pair_fences_return */
    bool hold_flushes;    /* ... and a flush is answered at pair_flushes_answer */
    bool hold_ready;      /* a queue pair is being made until pair_ready_now */
    uint32_t flushes;     /* asked for so far ... */
    uint32_t flushes_out; /* ... and not answered */
    struct kvf_action flush_out[PAIR_FLUSHES_MAX];
    uint8_t placement;
    uint32_t worker_starts;
    uint64_t supervisor_id;
    uint64_t clock_ns; /* its clock's lead over the world's */
    uint32_t clients_quiet;
    uint32_t escalations;
    uint32_t connects; /* CONNECT actions seen */
    bool wants_connect[PAIR_PEERS];
    struct kvf_addr_shm connect_addr[PAIR_PEERS];
    bool wants_write[PAIR_PEERS];
    struct pair_pending fences[PAIR_STREAMS_MAX];
    struct pair_client clients[PAIR_CLIENTS];
};

struct pair_frame {
    struct pair_frame *next;
    size_t bytes;
    unsigned char data[];
};

struct pair_pipe {
    struct pair_frame *head;
    struct pair_frame *tail;
    uint32_t count;
};

enum { PAIR_SINK = 0, PAIR_SOURCE = 1 };

/* A control connection. Side PAIR_SINK connected, side PAIR_SOURCE accepted. */
struct pair_conn {
    bool is_used;
    uint32_t daemon[2];
    uint32_t peer[2]; /* the daemon's own number; KVF_NONE: not accepted yet, or a raw side */
    bool is_open[2];
    struct pair_pipe to[2]; /* frames on their way to that side */
    bool hold[2];           /* nothing arrives at that side */
    bool hold_write[2];     /* that side's socket takes nothing */
    uint32_t delivered[2];
    uint32_t raw_seq; /* next number of a raw side's frame */
};

struct pair_post {
    struct pair_post *next;
    struct kvf_post post;
    uint8_t kind; /* as it leaves: an END let go of leaves as DRAIN */
    bool is_filler;
    bool is_completed;
    uint32_t halves;    /* of pages; a marker counts as one */
    uint32_t handed;    /* halves the kernel has */
    uint32_t delivered; /* halves landed or thrown away */
    uint64_t remote;    /* queue pairs: address and key of its first page at the sink */
    uint32_t remote_key;
    uint64_t *tags;
};

/* One epoch of one lane. */
struct pair_stream {
    bool is_used;
    uint32_t daemon[2];
    uint32_t lane[2]; /* the daemon's own id; KVF_NONE: not accepted yet, or a raw side */
    uint32_t epoch;
    uint32_t lane_idx;
    uint64_t session;
    bool is_open[2];
    bool is_accepted;
    uint32_t qpn[2]; /* 0: a stream */
    bool owes_ready[2];
    bool is_joined;
    bool wants_post;        /* the core said POST and has not answered "nothing now" since */
    struct pair_post *head; /* in order; the first ones are handed, the last ones not */
    struct pair_post *tail;
    uint32_t count;
    bool hold_hand;
    bool hold_deliver;
    /* what a raw sink saw */
    uint32_t raw_pages;
    uint32_t raw_ends;
    uint32_t raw_drains;
};

/* Gates from sink's daemon to source's daemon, and masks of lanes by index. */
struct pair_link {
    bool hold[2];
    bool hold_write[2];
    uint32_t hold_lane_hello;
    uint32_t hold_post;    /* the transport takes no posts */
    uint32_t hold_hand;    /* the kernel takes no bytes */
    uint32_t hold_deliver; /* bytes stay in the network */
    uint32_t hold_reset;   /* the end of a stream is not noticed by its other side */
};

struct pair_options {
    uint32_t daemons; /* 2 */
    uint32_t lanes;   /* 1 */
    uint8_t placement;
    uint32_t lane_rooms;   /* 8 */
    uint32_t pages;        /* 256 a region */
    uint32_t rooms;        /* 64 a client */
    uint32_t grants_max;   /* 256 */
    uint32_t runs_max;     /* 4096 */
    uint32_t pieces_max;   /* 512 */
    uint32_t parked_max;   /* 16 a peer */
    uint32_t peers_max;    /* PAIR_PEERS */
    uint32_t tombs_max;    /* 8 a client */
    uint64_t post_bytes;   /* 4 pages */
    uint64_t stripe_bytes; /* 0: every grant on all lanes */
    uint64_t room_window_bytes;
    uint64_t lane_window_bytes;
    bool has_no_regrants; /* a fenced lane fails its rooms at once */
    bool are_queue_pairs; /* the lanes; placement is posted */
    uint32_t rails;       /* 1: lane i uses rail i modulo this */
    uint32_t remotes_max; /* 32 */
    bool is_self_copied;
};

struct pair {
    uint64_t now_ns;
    uint64_t random;
    uint32_t last_qpn;
    struct pair_options options;
    struct kvf_core_limits limits;
    struct kvf_core_config config;
    struct pair_daemon daemons[PAIR_DAEMONS_MAX];
    struct pair_conn conns[PAIR_CONNS_MAX];
    struct pair_stream streams[PAIR_STREAMS_MAX];
    struct pair_link links[PAIR_DAEMONS_MAX][PAIR_DAEMONS_MAX]; /* [sink][source] */
    struct pair_room *rooms;
    uint32_t landed_halves; /* all that ever landed in a page */
    uint32_t scratch_halves;
    uint32_t post_queue_max; /* posts a transport takes at once */
    bool is_hostile;         /* somebody breaks the protocol on purpose */
    bool is_bound_checked;
    uint64_t bound_slack_ns; /* of a clock that moves in steps */
    char note[128];          /* put before every failure: the seed of a soak */
};

/* ---- world (pair.c) -------------------------------------------------------------------------------- */

struct pair *pair_new(const struct pair_options *options);
/* Lets everything go, checks that every daemon is clean, frees the world. */
void pair_finish(struct pair *p);
/* Frees without the checks of a clean end. */
void pair_free(struct pair *p);
_Noreturn void pair_fail(const struct pair *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t pair_random(struct pair *p, uint64_t below);
struct kvf_addr_shm pair_addr(uint32_t daemon);
uint64_t pair_tag(uint64_t content, uint32_t position, uint32_t half);

/* A daemon dies with all it knew; its peers see resets once what it had sent has arrived. */
void pair_kill(struct pair *p, uint32_t daemon);
/* A new worker at the same address: of the same supervisor, or of another. */
void pair_revive(struct pair *p, uint32_t daemon, bool is_same_supervisor);
/* From now on the test speaks for this daemon. Before anything was connected. */
void pair_make_raw(struct pair *p, uint32_t daemon);

/* What this daemon's clock shows. */
uint64_t pair_clock(const struct pair *p, uint32_t daemon);
uint64_t pair_count(const struct pair *p, uint32_t daemon, uint32_t counter);
uint64_t pair_gauge(const struct pair *p, uint32_t daemon, uint32_t gauge);

/* ---- movement (pair.c, pair_net.c) ----------------------------------------------------------------- */

/* Takes every action of this daemon's core. Called by everything below after each event. */
void pair_drain(struct pair *p, uint32_t daemon);
/* Moves all that no gate holds until nothing moves. The clock stands. */
void pair_settle(struct pair *p);
/* Moves the clock by ns, stopping at every deadline of every living core, and settles each time. */
void pair_advance(struct pair *p, uint64_t ns);
/* Makes one random move of what no gate holds; false if there was none. */
bool pair_move_one(struct pair *p);
/* All gates open, of links, connections, streams and daemons. */
void pair_open_gates(struct pair *p);

struct pair_link *pair_link(struct pair *p, uint32_t sink, uint32_t source);
/* The connection both ends hold, or NULL. */
struct pair_conn *pair_conn(struct pair *p, uint32_t sink, uint32_t source);
struct pair_stream *pair_stream(struct pair *p, uint32_t sink, uint32_t source,
                                uint32_t lane_idx);
/* Frames of this type on their way to that side. */
uint32_t pair_frames_of(const struct pair_conn *c, int side, uint8_t type);
/* Delivers at most `frames` frames to that side, whatever gates say. */
uint32_t pair_deliver(struct pair *p, struct pair_conn *c, int side, uint32_t frames);
/* That side sees its connection end; the other sees it once it has read what was sent. */
void pair_conn_lose(struct pair *p, struct pair_conn *c, int side);
/* Both sides see it, and nothing under way arrives. */
void pair_conn_cut(struct pair *p, struct pair_conn *c);
/* That side sees its stream break. */
void pair_stream_lose(struct pair *p, struct pair_stream *s, int side);
/* Asks the source for posts, hands halves to the kernel, lets halves land: at most so many. */
uint32_t pair_take_posts(struct pair *p, struct pair_stream *s, uint32_t posts);
uint32_t pair_hand(struct pair *p, struct pair_stream *s, uint32_t halves);
uint32_t pair_land(struct pair *p, struct pair_stream *s, uint32_t halves);
/* Completes the first post that is not completed with an error, as a failing NIC would. */
void pair_complete_with(struct pair *p, struct pair_stream *s, int status);
void pair_fences_return(struct pair *p, uint32_t daemon);
/* Queue pairs of this daemon that were being made exist now. */
void pair_ready_now(struct pair *p, uint32_t daemon);
void pair_connect_now(struct pair *p, uint32_t daemon, int err);
void pair_tick(struct pair *p, uint32_t daemon);

/* For raw daemons. A frame with its header, as kvf_wire_put_* made it. */
struct pair_conn *pair_raw_connect(struct pair *p, uint32_t raw, uint32_t daemon);
void pair_raw_send(struct pair *p, struct pair_conn *c, int side, const unsigned char *frame,
                   size_t bytes);
/* The next frame that arrived at the raw side: its type, or 0. Payload stays valid until the next call. */
uint8_t pair_raw_read(struct pair *p, struct pair_conn *c, int side,
                      const unsigned char **ret_payload, size_t *ret_bytes);
/* A raw source's frame on a lane, landing at once. 0, or the core's refusal. */
int pair_raw_data(struct pair *p, struct pair_stream *s, uint32_t handle, uint32_t position,
                  uint32_t pages);
int pair_raw_marker(struct pair *p, struct pair_stream *s, uint32_t handle, uint8_t kind);
struct pair_stream *pair_raw_lane(struct pair *p, struct pair_conn *c, uint64_t session,
                                  uint32_t lane_idx, uint32_t epoch, int *ret_rc);

/* ---- engines (pair_room.c) ------------------------------------------------------------------------- */

void pair_client_add(struct pair *p, uint32_t daemon, uint32_t client);
void pair_region_add(struct pair *p, uint32_t daemon, uint32_t client, uint32_t handle,
                     uint32_t page_count, uint32_t page_bytes);
int pair_region_remove(struct pair *p, uint32_t daemon, uint32_t client, uint32_t handle);
/* From now on, before its first room, it is memory of a device. */
void pair_region_device(struct pair *p, uint32_t daemon, uint32_t client, uint32_t handle);
/* Answers every flush that is out. */
void pair_flushes_answer(struct pair *p, uint32_t daemon, int err);
void pair_room_flush(struct pair *p, uint32_t daemon, const struct kvf_action *action);
void pair_client_close(struct pair *p, uint32_t daemon, uint32_t client, uint32_t reason);
void pair_client_reaped(struct pair *p, uint32_t daemon, uint32_t client);
void pair_client_remove(struct pair *p, uint32_t daemon, uint32_t client);

struct pair_open {
    uint32_t client;
    uint64_t label; /* 0: the key */
    uint64_t key;
    uint64_t content; /* 0: the key */
    uint32_t group;
    uint32_t abort_reason;
    bool is_old_epoch;
    bool is_any_content;
    bool has_slot; /* this slot and generation instead of the next ones */
    uint32_t slot;
    uint64_t generation;
    /* sink */
    const struct kvf_writer_shm *writers;
    uint32_t writer_count;
    const struct kvf_run_shm *runs;
    uint32_t run_count;
    /* source */
    uint32_t region;     /* 0: PAIR_R0 */
    uint32_t aux_region; /* 0: none */
    uint32_t sink_count;
};
struct pair_room *pair_open_sink(struct pair *p, uint32_t daemon, const struct pair_open *open);
struct pair_room *pair_open_source(struct pair *p, uint32_t daemon,
                                   const struct pair_open *open);
/* The usual ones: client 0, region PAIR_R0, one run, one peer. */
struct pair_room *pair_sink(struct pair *p, uint32_t daemon, uint32_t source, uint64_t key,
                            uint32_t first, uint32_t count);
struct pair_room *pair_source(struct pair *p, uint32_t daemon, uint64_t key);
/* Moves one page, so that the connection and all its lanes are up. */
void pair_warm(struct pair *p, uint32_t sink, uint32_t source);
/* Fills the pages and submits them. */
int pair_submit(struct pair_room *r, uint32_t start, uint32_t first, uint32_t count,
                bool is_last);
int pair_submit_runs(struct pair_room *r, uint32_t start, const struct kvf_run_shm *runs,
                     uint32_t run_count, bool is_last);
void pair_abort(struct pair_room *r);
void pair_abort_with(struct pair_room *r, uint32_t reason);
/* External leases: false once the word is closed. */
bool pair_lease(struct pair_room *r, uint32_t cpu, uint32_t gpu, uint32_t direct_io);
void pair_lease_return(struct pair_room *r);

/* ---- groups (pair_group.c) ------------------------------------------------------------------------- */

/* Registers rank `rank` of the group whose ranks sit behind these daemons, for client `client` of
 * daemons[rank]. 0, or the core's refusal. */
int pair_group_add(struct pair *p, uint32_t client, uint32_t handle, uint64_t group_id,
                   uint32_t rank, const uint32_t *daemons, uint32_t member_count);
/* A worker ends and the next one of its supervisor takes over: rooms without external leases are drained
 * by its end, the others and those that wait for their group are adopted, and all groups told again. */
void pair_restart(struct pair *p, uint32_t daemon);
/* The same in two steps: its rooms are reaped at once, the next worker comes later. */
void pair_reap(struct pair *p, uint32_t daemon);
void pair_takeover(struct pair *p, uint32_t daemon);
/* Drained, but shown as Transferring since another rank has not settled. */
bool pair_is_waiting(const struct pair_room *r);

/* What the engine sees. */
enum kvf_phase pair_phase(const struct pair_room *r);
enum kvf_outcome pair_outcome(const struct pair_room *r);
enum kvf_poll_state pair_poll(const struct pair_room *r);
enum kvf_proof pair_proof(const struct pair_room *r);
bool pair_is_drained(const struct pair_room *r);
/* (grant, lane) pairs without proof, as of now: what was published is a hint of the last change. */
uint32_t pair_unproven(const struct pair_room *r);
/* Ends the test unless the room is drained with just this. */
void pair_expect(const struct pair_room *r, enum kvf_outcome outcome, enum kvf_proof proof,
                 uint32_t reason);
/* What proves a grant that its source declined: over queue pairs a DRAIN behind whatever it may have posted. */
enum kvf_proof pair_declined(const struct pair *p);
void pair_expect_held(const struct pair_room *r);

/* Called by the movers. */
void pair_room_published(struct pair *p, uint32_t daemon, const struct kvf_action *action);
void pair_room_close_leases(struct pair *p, uint32_t daemon, const struct kvf_action *action);
struct pair_region *pair_region_of(struct pair *p, uint32_t daemon, uint32_t client,
                                   uint32_t handle);
/* The oracle's two questions. */
void pair_write_half(struct pair *p, uint32_t daemon, const struct kvf_placement_at *at,
                     uint32_t page, uint32_t half, uint64_t tag);
uint64_t pair_read_half(struct pair *p, uint32_t daemon, const struct kvf_post *post,
                        uint32_t half);

#define PAIR_FILLER UINT64_C(0xf111e4f111e4)
#define PAIR_POISON UINT64_C(0xdeadbeefdead)
#define PAIR_HOSTILE UINT64_C(0x1057111e57)

#endif

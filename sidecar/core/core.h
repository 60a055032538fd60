/* The pure protocol: who may touch which page, and when nobody can any more.
 *
 * The core makes no call whose answer could differ between two runs: no I/O, no clock, no allocation, no
 * global. Time comes in as now_ns, randomness as a seed, memory from the caller. Everything that happens
 * is told to it by one of the functions below; everything it wants is asked back from it:
 *
 *   kvf_core_next_action   fences, lease words to close, room words to publish, peers to connect, ...
 *   kvf_core_next_post     what to post next on a lane that has room
 *   kvf_core_emit          control bytes for a peer whose socket takes some
 *
 * All three are pulls from intrusive lists in which an object stands at most once, so nothing can
 * overflow and nothing waits for a queue. A caller drains kvf_core_next_action after every event.
 *
 * Return values: 0 or a negative errno / -KVF_E_* for the caller; refusals of an engine's command are
 * not returned but end the room with a reason (its word is the answer). Single-threaded: the worker's
 * loop, or the simulator. */
#ifndef KVF_CORE_CORE_H
#define KVF_CORE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/codes.h"
#include "ring/layout.h"
#include "ring/operate.h"
#include "ring/room_word.h"
#include "sidecar/core/wire.h"

#define KVF_NO_TIME UINT64_MAX
#define KVF_NONE UINT32_MAX

struct kvf_core;

/* Sizes of all tables, fixed at start. */
struct kvf_core_limits {
    uint32_t clients_max;          /* 16 */
    uint32_t rooms_per_client_max; /* 1024.. */
    uint32_t peers_max;            /* 64, both directions together */
    uint32_t lanes_per_peer;       /* 1 .. KVF_LANES_MAX */
    uint32_t grants_max;           /* 8192 of each side; at most 65,536 */
    uint32_t runs_max;             /* 1 << 20 runs of 16 bytes, for all page lists together */
    uint32_t pieces_max;           /* 16384 */
    uint32_t parked_per_peer_max;  /* 1024 grants that wait for their source's open */
    uint32_t group_tombstones_max; /* 1024 a client: keys other ranks ended before its open */
    uint32_t remote_regions_max;   /* 0 without queue pairs; peers' regions, 12 KiB each */
};

struct kvf_core_config {
    uint64_t supervisor_id;
    uint32_t worker_starts;
    uint8_t transport;          /* enum kvf_wire_transport */
    uint8_t placement;          /* enum kvf_placement, as sink */
    uint32_t lane_rooms;        /* credits: unproven grants per lane */
    uint64_t room_window_bytes; /* posted and not completed, per grant and lane */
    uint64_t lane_window_bytes; /* the same for a lane, all rooms together */
    uint64_t post_bytes_max;    /* a post covers more than one page only below this */
    uint64_t
        stripe_bytes_min; /* grants of at least this use all lanes of the peer, others one */
    uint64_t bootstrap_ns;
    uint64_t connect_ns; /* a peer unreachable for this long fails the rooms that wait for it */
    uint64_t cooperative_ns;
    uint64_t fence_ns; /* of a fence from its request, and of a flush from its own */
    uint64_t
        register_ns; /* an adopted room waits so long for its regions, and one flush longer */
    uint64_t liveness_ns;
    uint64_t group_ask_ns; /* a rank that has not settled is asked again this often */
    uint32_t regrants_max; /* new grants a writer of a room gets after fences; 0: none */
    bool is_self_copied;   /* lanes of this daemon to itself are copied: not by devices */
    char name[KVF_WIRE_NAME_BYTES];
};

size_t kvf_core_bytes(const struct kvf_core_limits *limits);
/* Lays a core out in `memory` (kvf_core_bytes, 64-byte aligned, zeroed). seed: four random words. */
struct kvf_core *kvf_core_init(void *memory, const struct kvf_core_limits *limits,
                               const struct kvf_core_config *config, const uint64_t seed[4]);

/* ---- clients and regions --------------------------------------------------------------------------- */

/* client: index below clients_max, free until now. */
int kvf_core_client_add(struct kvf_core *core, uint32_t client, uint32_t rooms_max);
/* Hang-up, detach, or dropped for bad bytes: every open room closes with `reason`. */
void kvf_core_client_close(struct kvf_core *core, uint64_t now_ns, uint32_t client,
                           uint32_t reason);
/* The engine's process was reaped: leases of kind cpu are proven. After kvf_core_client_close. */
void kvf_core_client_reaped(struct kvf_core *core, uint64_t now_ns, uint32_t client);
/* True once every room of a closed client is drained, no grant refers to its regions any more, and the
 * other ranks of its groups were told of its rooms (or were out of reach for a second). */
bool kvf_core_client_is_quiet(const struct kvf_core *core, uint32_t client);
/* Forgets a quiet client; its index is free again. */
void kvf_core_client_remove(struct kvf_core *core, uint32_t client);

struct kvf_core_plane {
    uint64_t off;
    uint64_t stride;
    uint32_t page_bytes;
};
/* region: the handle engines use (slot in the low 8 bits, epoch above). Geometry was validated.
 * planes and owners (page_count words, zeroed: the worker's private owner table) stay the caller's
 * memory and the core's to use until kvf_core_region_remove or kvf_core_client_remove.
 * -EEXIST if the slot is taken, -KVF_E_REGIONS_FULL. */
int kvf_core_region_add(struct kvf_core *core, uint32_t client, uint32_t region,
                        uint64_t page_count, uint32_t plane_count,
                        const struct kvf_core_plane *planes, uint32_t *owners);
/* Memory that devices know: REGION tells peers the address under which they do, and a key per rail. Before
 * the region's first room. key_count up to KVF_WIRE_KEYS_MAX. -KVF_E_UNKNOWN_REGION. */
int kvf_core_region_keys(struct kvf_core *core, uint32_t client, uint32_t region, uint64_t base,
                         const uint32_t *keys, uint32_t key_count);
/* Before the region's first room: whose memory it is. If the host does not own it, a sink room with pages of
 * it drains, and is visible, only after a flush (KVF_ACT_FLUSH); adopted rooms may have waited for it to come.
 * -KVF_E_UNKNOWN_REGION. */
int kvf_core_region_ready(struct kvf_core *core, uint64_t now_ns, uint32_t client,
                          uint32_t region, bool is_device);
/* No region of this client is to come any more but those of these slots: adopted rooms that would have to be
 * flushed in others are in quarantine. */
void kvf_core_regions_whole(struct kvf_core *core, uint32_t client, uint32_t slots);
/* Answers KVF_ACT_FLUSH, each once; so many are out at a time at most. 0: everything written to that region over those lanes is there. Else a negative
 * errno: nobody knows. */
#define KVF_CORE_FLUSHES_MAX 256u
/* In place of a mask of lanes: rooms of an earlier worker, whose lanes may have used any device. */
#define KVF_FLUSH_ALL_RAILS UINT32_MAX
void kvf_core_flushed(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                      uint64_t generation, int err);
/* -KVF_E_REGION_BUSY while an undrained room or unproven grant names it, -KVF_E_UNKNOWN_REGION. */
int kvf_core_region_remove(struct kvf_core *core, uint32_t client, uint32_t region);

/* ---- groups ---------------------------------------------------------------------------------------- */

/* The ranks of one request, each with a room of the same key. While all goes well nothing is sent. Once a
 * room of a group fails, its core closes the rooms of that key at the other ranks, and shows Failed only
 * when each of them has said "drained" or "never opened". Group handles are 1 .. KVF_GROUPS_PER_CLIENT_MAX. */
struct kvf_core_group {
    uint64_t group_id; /* equal on all ranks, never 0 */
    uint32_t rank;     /* of this client */
    uint32_t member_count;
    struct kvf_addr_shm
        members[KVF_GROUP_MEMBERS_MAX]; /* daemons, in rank order, own included */
};
/* Rooms adopted before, and opens of an older epoch, join their group now. 0 also for the same group once
 * more; -EEXIST (another group has this handle), -KVF_E_GROUPS_FULL (handle out of range),
 * -KVF_E_GROUP_MEMBERS (rank, count or an address of no family). */
int kvf_core_group_add(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t group,
                       const struct kvf_core_group *members);
/* This client will never open this key: other ranks that ask are told so, and nothing is kept for it.
 * -KVF_E_UNKNOWN_GROUP. */
int kvf_core_group_skip(struct kvf_core *core, uint32_t client, uint32_t group, uint64_t key);
/* What KVF_ACT_GROUP_KEY stored under an earlier worker: keys that other ranks ended and this client has
 * not opened. In rising order of idx, after kvf_core_client_add. -EINVAL (idx, group). */
int kvf_core_group_key(struct kvf_core *core, uint32_t client, uint32_t idx, uint32_t group,
                       uint64_t key);
/* Rooms that have ended and that other ranks may not know of yet: a worker that stops waits a moment. */
uint32_t kvf_core_untold(const struct kvf_core *core);
/* While held, nothing is asked, answered or told to other ranks, by frames or within this daemon. A worker
 * that follows another begins so, until it has every client of the earlier one with its rooms and groups:
 * before that "I have no such room" may be wrong. Released, every group that waits asks at once. */
void kvf_core_groups_hold(struct kvf_core *core, uint64_t now_ns, bool is_held);
/* A client that left under an earlier worker had this rank: it opens nothing any more. */
void kvf_core_group_departed(struct kvf_core *core, uint64_t group_id, uint32_t rank);

/* A room of an earlier worker of this supervisor, found in the segment: either still undrained because
 * external leases are out, or drained and named by a group that may ask for it. Or one of a dead engine whose
 * OPEN was never read: it is in quarantine if devices hold leases of it. */
struct kvf_core_adopt {
    uint32_t client;
    uint32_t slot;
    uint64_t generation;
    uint64_t key;
    uint32_t group;  /* 0: none. It joins when kvf_core_group_add names this handle */
    uint8_t outcome; /* enum kvf_outcome, fixed when it closed; none counts as failed */
    uint8_t proof;   /* enum kvf_proof, if drained */
    bool is_drained;
    bool is_visible;
    bool is_quarantined; /* undrained, and nothing proves the leases of its engine */
    uint16_t
        device_regions; /* undrained: slots of regions that must be flushed, over every device */
    bool
        is_rail_missing; /* ... one of which, known by name, is not here: nothing here proves it */
    bool is_group_settled; /* its word waits for no rank */
    uint32_t reason;
    uint32_t detail;
    uint64_t placed_bytes;
    uint64_t total_bytes;
    uint32_t total_pages;
    uint64_t close_to_drained_ns; /* if drained */
    uint64_t closed_ns;           /* when the worker ended that served it; 0: nobody knows */
};
/* After kvf_core_client_add and before the first command, or once commands are read no more. Undrained ones
 * close their lease word (KVF_ACT_CLOSE_LEASES) and drain, proof KVF_PROOF_WORKER_GONE at least, when nothing is
 * out.
 * -KVF_E_UNKNOWN_ROOM (slot out of range, unknown client), -KVF_E_STALE_ROOM (generation), -KVF_E_SLOT_IN_USE. */
int kvf_core_adopt(struct kvf_core *core, uint64_t now_ns, const struct kvf_core_adopt *adopt);

/* ---- commands of engines (validated copies of bytes; values are the world's) ----------------------- */

struct kvf_core_open {
    uint32_t client;
    uint32_t slot;
    uint64_t generation;
    uint64_t label;
    uint64_t key;
    uint32_t group; /* handle, 0: none */
    uint32_t
        abort_reason; /* the abort cell already named this generation: nonzero, ends it at once */
    bool is_old_epoch; /* written under an older worker epoch: ends NEVER_POSTED */
    /* sink */
    const struct kvf_writer_shm *writers;
    uint32_t writer_count;
    const struct kvf_run_shm *runs;
    uint32_t run_count;
    /* source */
    uint32_t region;
    uint32_t aux_region; /* UINT32_MAX: none */
    uint32_t sink_count;
};
/* A refused open still makes a room, which ends Failed through the gate with its reason: the engine
 * has lent pages and must see them come back. -KVF_E_SLOT_IN_USE (slot holds an undrained room),
 * -KVF_E_UNKNOWN_ROOM (slot out of range), -KVF_E_STALE_ROOM (generation not newer): nothing changed,
 * the caller counts it. */
int kvf_core_open_sink(struct kvf_core *core, uint64_t now_ns,
                       const struct kvf_core_open *open);
int kvf_core_open_source(struct kvf_core *core, uint64_t now_ns,
                         const struct kvf_core_open *open);

struct kvf_core_submit {
    uint32_t client;
    uint32_t slot;
    uint64_t generation;
    uint32_t start;
    bool is_last;
    const struct kvf_run_shm *runs;
    uint32_t run_count;
};
/* A bad piece ends its room with a reason. Stale ones are counted and dropped. */
int kvf_core_submit(struct kvf_core *core, uint64_t now_ns,
                    const struct kvf_core_submit *submit);
/* reason: 0 becomes KVF_E_ABORTED. Stale or ended: counted, nothing else. */
void kvf_core_abort(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                    uint64_t generation, uint32_t reason);
/* The caller closed the lease word of this room and found, or later finds, these counts out.
 * All zero: the gate may open. */
void kvf_core_leases(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                     uint64_t generation, uint32_t cpu, uint32_t gpu, uint32_t direct_io);

/* Grace is over, or SIGTERM: waiting rooms close (all == false) or every room closes (all == true).
 * From the first call on opens end with KVF_E_SHUTDOWN. */
void kvf_core_shutdown(struct kvf_core *core, uint64_t now_ns, bool all);

/* ---- operators ----------------------------------------------------------------------------------------- */

/* Draining: rooms that wait for a grant close with KVF_E_SHUTDOWN, and so do new ones; peers' grants are
 * declined unless their room runs. Rooms that run go on, and other ranks are answered. False: taken back. */
void kvf_core_drain(struct kvf_core *core, uint64_t now_ns, bool is_draining);
/* An operator's explicit word that the pages of a quarantined room may be used again: the leases that
 * nothing proves count as returned, with KVF_PROOF_OPERATOR, which is no proof. What else the room waits
 * for is proven as always. 0; -KVF_E_UNKNOWN_ROOM, -KVF_E_STALE_ROOM (another generation), -EINVAL (it is
 * not in quarantine): nothing changed. */
int kvf_core_release(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t slot,
                     uint64_t generation);
/* Takes a peer down, or lets it up again: the one at this address (peer_id 0), or the one of this
 * supervisor. Down: rooms with grants of it close with KVF_E_PEER_HELD, its lanes are fenced, opens that name it
 * and grants of it are refused. Talk between ranks of a group goes on: it frees nothing early. An address
 * also means the supervisor that was last reached there. 0, also if it was so before; -KVF_E_RESOURCES
 * (KVF_CORE_HOLDS_MAX are down). */
#define KVF_CORE_HOLDS_MAX 64u
int kvf_core_peer_hold(struct kvf_core *core, uint64_t now_ns, const struct kvf_addr_shm *addr,
                       uint64_t peer_id, bool is_down);
/* Connections, then what is held down without one. Returns how many rows, cap at most. */
uint32_t kvf_core_list_peers(const struct kvf_core *core, struct kvf_operate_peer *ret_rows,
                             uint32_t cap);
/* Undrained rooms whose phase has its bit in `phases`, from *client and *slot on, which then say where to go
 * on. Looks at KVF_CORE_LIST_LOOKS slots at most, so that one call delays no transfer; client equal to
 * clients_max: there are no more. Returns how many rows, cap at most. */
#define KVF_CORE_LIST_LOOKS 4096u
uint32_t kvf_core_list_rooms(const struct kvf_core *core, uint64_t now_ns, uint32_t phases,
                             uint32_t *client, uint32_t *slot,
                             struct kvf_operate_room *ret_rows, uint32_t cap);

/* ---- control connections ----------------------------------------------------------------------------- */

/* CONNECT action: the caller connects and answers with one of these. err: positive errno. */
void kvf_core_peer_connected(struct kvf_core *core, uint64_t now_ns, uint32_t peer);
void kvf_core_peer_connect_failed(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                                  int err);
/* An accepted connection sent its HELLO (payload of that frame). On 0 *ret_peer is its peer from now
 * on; an older connection of the same incarnation gets a CLOSE action first. On an error the caller sends
 * what kvf_core_refusal writes and closes: -KVF_E_PROTOCOL, -KVF_E_PEER_REFUSED, -KVF_E_RESOURCES: a code
 * both sides know, since errno numbers differ between machines. */
int kvf_core_peer_accept(struct kvf_core *core, uint64_t now_ns, const unsigned char *payload,
                         size_t bytes, uint32_t *ret_peer);
/* A whole frame arrived. A violation makes the core close the connection (CLOSE action). */
void kvf_core_frame(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint8_t type,
                    uint32_t seq, const unsigned char *payload, size_t bytes);
/* The connection ended or must not be read on (framing error). */
void kvf_core_peer_lost(struct kvf_core *core, uint64_t now_ns, uint32_t peer, int err);
/* Writes whole frames the peer is owed into buf; bytes written here count as handed to a socket.
 * cap at least KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX. 0: nothing owed. */
size_t kvf_core_emit(struct kvf_core *core, uint64_t now_ns, uint32_t peer, unsigned char *buf,
                     size_t cap);
bool kvf_core_owes(const struct kvf_core *core, uint32_t peer);
/* A HELLO frame that says why an accepted connection is refused. Returns its bytes. */
size_t kvf_core_refusal(const struct kvf_core *core, uint32_t code, unsigned char *buf,
                        size_t cap);

/* ---- lanes ----------------------------------------------------------------------------------------- */

/* lane = peer * KVF_LANES_MAX + index. Every transport event carries the lane's epoch; one of an older
 * epoch is counted and dropped. */
void kvf_core_lane_up(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch);
/* Queue pairs only. Sink: our end exists, receives are posted, and nobody can send to it yet: LANE leaves
 * with `end`; the peer's answer makes a LANE_JOIN action, and kvf_core_lane_up says that markers may come.
 * Source: our end is ready to send; LANE leaves with `end` and the lane is up. */
void kvf_core_lane_ready(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                         const struct kvf_lane_end *end);
/* The stream broke. The core answers with a FENCE action. */
void kvf_core_lane_lost(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                        int err);
/* The transport's fence returned: nothing of this epoch can touch a page any more, and every post was
 * completed before this call. */
void kvf_core_lane_fenced(struct kvf_core *core, uint64_t now_ns, uint32_t lane,
                          uint32_t epoch);
/* Source side: a stream with this LANE_HELLO was accepted. 0 and its lane, or -KVF_E_PEER_REFUSED. */
int kvf_core_lane_accept(struct kvf_core *core, uint64_t now_ns,
                         const struct kvf_wire_lane_hello *hello, uint32_t *ret_lane);

/* Source side: one post. Data covers contiguous pages of one local region and contiguous pages of one
 * remote region. */
struct kvf_post {
    uint64_t cookie; /* names (source grant, its incarnation); given back with the completion */
    uint8_t kind;    /* enum kvf_lane_kind */
    uint32_t handle; /* the sink's */
    uint32_t position;
    uint32_t page_count;
    uint64_t payload_bytes; /* 0 for markers */
    uint32_t client;        /* local region */
    uint32_t region;
    uint32_t page_first;
    uint32_t remote_region; /* wire number */
    uint32_t remote_page_first;
};
/* Next post for this lane within its windows, round-robin over grants. 1 and *ret_post: it now counts as
 * posted (a lease); the transport completes it exactly once. 0: nothing now. */
int kvf_core_next_post(struct kvf_core *core, uint64_t now_ns, uint32_t lane,
                       struct kvf_post *ret_post);
/* One completion per post, whatever its status: 0, -ECANCELED (detached), or another negative errno. */
void kvf_core_completed(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                        const struct kvf_post *post, int status);

/* Source side, queue pairs: the sink's region as its REGION told it. Valid until the next frame of that peer, and
 * another REGION may change it while a grant is under way: compare plane_count, page_bytes and key_count
 * at every post. page_count and planes are the peer's word: what lies outside its own keys its device refuses. */
struct kvf_remote_view {
    uint64_t base;
    const uint32_t *keys; /* one per rail of the peer */
    uint32_t key_count;
    uint64_t page_count;
    uint32_t plane_count;
    const struct kvf_core_plane *planes;
};
/* False: unknown, or no place was left to keep its planes. */
bool kvf_core_remote(const struct kvf_core *core, uint32_t lane, uint32_t remote_region,
                     struct kvf_remote_view *ret_view);

/* Sink side: where do these pages of this grant go? Asked before every receive. */
enum kvf_place { KVF_PLACE_PAGES, KVF_PLACE_SCRATCH };
struct kvf_placement_at {
    enum kvf_place where;
    uint32_t client;
    uint32_t region;
    uint32_t page_first; /* page_count contiguous pages from here */
};
/* 0, or -EPROTO: a handle that is not out on this lane, or positions outside its list or across two
 * runs: the stream must end. */
int kvf_core_place(const struct kvf_core *core, uint32_t lane, uint32_t epoch, uint32_t handle,
                   uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at);
/* Bytes of payload were put where kvf_core_place said (or thrown away: is_scratch). */
void kvf_core_placed(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                     uint32_t handle, uint64_t bytes, bool is_scratch);
/* END or DRAIN was received in order behind everything of that grant on that lane. 0 or -EPROTO. */
int kvf_core_marker(struct kvf_core *core, uint64_t now_ns, uint32_t lane, uint32_t epoch,
                    uint32_t handle, uint8_t kind);
/* Placing for this handle faulted in the client's memory. The room fails; returns its client. */
uint32_t kvf_core_place_fault(struct kvf_core *core, uint64_t now_ns, uint32_t lane,
                              uint32_t epoch, uint32_t handle);

/* ---- time -------------------------------------------------------------------------------------------- */

void kvf_core_tick(struct kvf_core *core, uint64_t now_ns);
/* Earliest time at which kvf_core_tick has something to do; KVF_NO_TIME: nothing. */
uint64_t kvf_core_deadline(const struct kvf_core *core);

/* ---- actions ----------------------------------------------------------------------------------------- */

enum kvf_action_kind {
    KVF_ACT_FENCE =
        1,          /* lane, epoch: end the stream, complete every post, answer lane_fenced */
    KVF_ACT_DETACH, /* lane, cookie: source pages of that grant are to be let go now (checked
                            placement): unstarted DATA posts complete -ECANCELED, a started frame goes
                            on from filler, an END becomes DRAIN; a marker always leaves */
    KVF_ACT_CLOSE_LEASES, /* client, slot, generation: close the lease word, answer kvf_core_leases */
    KVF_ACT_PUBLISH, /* client, slot: kvf_core_room_view has the line; then tell the engine */
    KVF_ACT_CONNECT, /* peer: connect a control connection to .addr */
    KVF_ACT_CLOSE,   /* peer: close its control connection, throw away its unread bytes */
    KVF_ACT_LANE_OPEN, /* lane, epoch: connect a stream to .addr, send LANE_HELLO (.session). Queue pairs:
                          make our end. .end with qpn 0: as sink; else as source, and join it to .end */
    KVF_ACT_LANE_JOIN, /* lane, epoch: join our end, made by LANE_OPEN as sink, to the peer's .end */
    KVF_ACT_WRITE,        /* peer: owes bytes; call kvf_core_emit when its socket takes some */
    KVF_ACT_POST,         /* lane: kvf_core_next_post may have something */
    KVF_ACT_CLIENT_QUIET, /* client: is quiet now; its memory may be unmapped */
    KVF_ACT_ESCALATE, /* this worker must be ended. generation 0: the fence of lane missed its deadline;
                             else the flush of the room client, slot, generation failed, or missed it */
    KVF_ACT_FLUSH, /* client, slot, generation: read from .region through each device that a lane in .lanes
                      (mask of indices, of any peer, or KVF_FLUSH_ALL_RAILS) may use; answer kvf_core_flushed */
    KVF_ACT_GROUP_KEY, /* client, slot: store (group, key) at this index of what its next worker
                             reads (group 0: nothing), before anything that was asked for later */
};

struct kvf_action {
    enum kvf_action_kind kind;
    uint32_t peer;
    uint32_t lane;
    uint32_t epoch;
    uint32_t client;
    uint32_t slot;
    uint64_t generation;
    uint64_t cookie;
    uint64_t session;
    uint32_t group;
    uint32_t region;
    uint32_t lanes;
    uint64_t key;
    struct kvf_addr_shm addr;
    struct kvf_lane_end end;
};
/* 1 and the next action, or 0. Fences and detaches come first. */
int kvf_core_next_action(struct kvf_core *core, struct kvf_action *ret_action);

struct kvf_core_room_view {
    uint64_t word;
    uint32_t reason;
    uint32_t detail;
    uint64_t placed_bytes;
    uint64_t total_bytes;
    uint32_t total_pages;
    uint32_t unproven;
    uint64_t close_to_drained_ns; /* 0 until drained */
    uint64_t group_waits; /* bit per rank that has not settled; 0 unless the room failed */
    bool is_sink;
    bool was_aborted; /* closed by an abort of its engine or peer, or a failure */
};
void kvf_core_room_view(const struct kvf_core *core, uint32_t client, uint32_t slot,
                        struct kvf_core_room_view *ret_view);

/* ---- what operators see ------------------------------------------------------------------------------ */

enum kvf_core_counter {
    KVF_COUNT_ROOMS_OPENED = 0,
    KVF_COUNT_ROOMS_SUCCEEDED,
    KVF_COUNT_ROOMS_FAILED,
    KVF_COUNT_ROOMS_REFUSED, /* opens that ended with a refusal */
    KVF_COUNT_ABORTS,        /* by our engines, first one per room */
    KVF_COUNT_ABORTS_LATE,   /* of rooms that had ended */
    KVF_COUNT_PEER_ABORTS,
    KVF_COUNT_STALE_COMMANDS, /* unknown room, other generation, older epoch */
    KVF_COUNT_STALE_MESSAGES, /* control frames whose nonce or room is not ours any more */
    KVF_COUNT_STALE_LANE_EVENTS,
    KVF_COUNT_GRANTS_SENT,
    KVF_COUNT_GRANTS_ACCEPTED,
    KVF_COUNT_GRANTS_DECLINED,
    KVF_COUNT_GRANTS_PARKED, /* as source, ever */
    KVF_COUNT_MARKERS_END,
    KVF_COUNT_MARKERS_DRAIN,
    KVF_COUNT_FENCES,
    KVF_COUNT_PROOF_FIRST, /* one per enum kvf_proof from here */
    KVF_COUNT_PROOF_LAST = KVF_COUNT_PROOF_FIRST + KVF_PROOF_COUNT - 1,
    KVF_COUNT_BYTES_POSTED,
    KVF_COUNT_BYTES_PLACED,
    KVF_COUNT_BYTES_REFUSED, /* payload of closed grants, thrown away */
    KVF_COUNT_POSTS,
    KVF_COUNT_COMPLETIONS,
    KVF_COUNT_PEERS_LOST,
    KVF_COUNT_PROTOCOL_ERRORS,
    KVF_COUNT_GROUP_SENT, /* GROUP frames */
    KVF_COUNT_GROUP_RECEIVED,
    KVF_COUNT_GROUP_STALE,   /* ... of them for a group, rank or room that is not here */
    KVF_COUNT_GROUP_CLOSED,  /* rooms closed because another rank's ended */
    KVF_COUNT_ROOMS_ADOPTED, /* of an earlier worker, undrained */
    KVF_COUNT_REGRANTS,      /* as sink: new grants in the place of fenced ones */
    KVF_COUNT_FLUSHES,       /* of a region, for a room with pages in a device's memory */
    KVF_COUNT_FLUSHES_FAILED,
    KVF_COUNTERS
};
enum kvf_core_gauge {
    KVF_GAUGE_ROOMS_OPEN = 0,
    KVF_GAUGE_ROOMS_CLOSING,
    KVF_GAUGE_ROOMS_FENCING,
    KVF_GAUGE_ROOMS_QUARANTINED,
    KVF_GAUGE_PAGES_HELD, /* of rooms that are not drained, as sink */
    KVF_GAUGE_PAGES_QUARANTINED,
    KVF_GAUGE_GRANTS_OUT, /* sink grants whose handle is taken */
    KVF_GAUGE_GRANTS_IN,  /* source grants */
    KVF_GAUGE_PARKED,
    KVF_GAUGE_PEERS_UP,
    KVF_GAUGE_LANES_UP,
    KVF_GAUGE_POSTED_BYTES, /* posted and not completed */
    KVF_GAUGE_RUNS_USED,
    KVF_GAUGE_GROUP_WAITING,  /* rooms that are drained and failed and wait for another rank */
    KVF_GAUGE_GROUP_WAITS_ID, /* of the one that waits longest: its group ... */
    KVF_GAUGE_GROUP_WAITS_RANK, /* ... and the first rank that is missing */
    KVF_GAUGE_GROUP_TOMBSTONES,
    KVF_GAUGES
};
const uint64_t *kvf_core_counters(const struct kvf_core *core); /* KVF_COUNTERS values */
const uint64_t *kvf_core_gauges(const struct kvf_core *core);   /* KVF_GAUGES values */

/* Sum of the deadlines: usual = liveness + cooperative + fence. The worst part (watchdog, kill) is the supervisor's
 * to add. */
uint64_t kvf_core_bound_usual_ns(const struct kvf_core_config *config);
/* What a room with pages in a device's memory has on top of it. */
uint64_t kvf_core_bound_flush_ns(const struct kvf_core_config *config);

#endif

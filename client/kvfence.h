/* kvfence: move KV pages between workers and know when they may be reused.
 *
 * One header, exported functions only; callable from C11, C++ and any foreign-function interface. A
 * program links libkvfence, attaches to the kvfenced beside it, registers the memory its KV pages live
 * in, and opens one room per request:
 *
 *   sink    pages are written by one or more peers   (a decode worker)
 *   source  pages are read and sent to one or more   (a prefill worker)
 *
 * The one rule: pages given to a room belong to the room until kvf_poll() answers Success or Failed,
 * or kvf_drained() answers a proof. Failure may be told early by kvf_failed_early(); release may not.
 *
 * KEYS. Two rooms meet when label and key are equal. The label is the engine's own room number and may
 * be recycled; the key must be unique per request and attempt and equal on both sides. An engine that
 * recycles keys loses the promise that a late room of an old request never meets a new one.
 *
 * THREADS. Every function may be called by any thread of the process that attached, at any time, unless
 * its comment says otherwise. kvf_poll, kvf_poll_many, kvf_drained, kvf_failed_early, kvf_visible and
 * kvf_pages_are_idle take no lock when the answer is "yes" or "not yet" and never make a system call.
 * After fork() the child's handle answers -KVF_E_FORKED everywhere and may only be dropped.
 * The library never prints, exits, starts threads, or touches signals.
 *
 * ERRORS. 0 or a count on success, a negative code otherwise: -KVF_E_*, or a negated errno where that
 * says it best (-EAGAIN: not yet or full, try again; -EBUSY; -ETIMEDOUT; -ESHUTDOWN: the daemon is
 * stopping; -ENOMEM; -EINVAL: a NULL where none is allowed). Outputs are untouched on failure.
 *
 * STRUCTS. Every option struct begins with its size in bytes; set it with sizeof. Fields that an older
 * program does not know take their defaults. All reserved fields are zero. */
#ifndef KVFENCE_H
#define KVFENCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codes (kvf_strerror has the sentences) ------------------------------------------------------ */
#define KVF_E_NO_DAEMON 1001
#define KVF_E_DAEMON_GONE 1002
#define KVF_E_LAYOUT 1003
#define KVF_E_UNKNOWN_ROOM 1004
#define KVF_E_STALE_ROOM 1005
#define KVF_E_PAGE_RANGE 1006
#define KVF_E_PAGE_TWICE 1007
#define KVF_E_NO_PAGES 1008
#define KVF_E_PAGE_LENT 1009
#define KVF_E_UNKNOWN_REGION 1010
#define KVF_E_NO_SEAL 1011
#define KVF_E_GEOMETRY 1012
#define KVF_E_SLOT_IN_USE 1013
#define KVF_E_ROOMS_FULL 1014
#define KVF_E_REGIONS_FULL 1015
#define KVF_E_PEER_UNRESOLVED 1016
#define KVF_E_PEER_UNREACHABLE 1017
#define KVF_E_PIECE_OVERLAP 1018
#define KVF_E_PIECE_HOLE 1019
#define KVF_E_PIECE_RANGE 1020
#define KVF_E_PEER_COUNT 1021
#define KVF_E_GROUP_UNSUPPORTED 1022
#define KVF_E_OPTION 1023
#define KVF_E_ABORTED 1024
#define KVF_E_PEER_ABORTED 1025
#define KVF_E_PEER_LOST 1026
#define KVF_E_PEER_REFUSED 1027
#define KVF_E_LANE_LOST 1028
#define KVF_E_BOOTSTRAP_TIMEOUT 1029
#define KVF_E_PEER_ROOM_GONE 1030
#define KVF_E_PEER_BUSY 1031
#define KVF_E_ENGINE_GONE 1032
#define KVF_E_WORKER_GONE 1033
#define KVF_E_SHUTDOWN 1034
#define KVF_E_MEMORY_FAULT 1035
#define KVF_E_REGION_BUSY 1036
#define KVF_E_MEMORY_REGISTERED 1037
#define KVF_E_SHORT 1038
#define KVF_E_PROTOCOL 1039
#define KVF_E_CLIENT_DROPPED 1040
#define KVF_E_FORKED 1041
#define KVF_E_PIECES_CLOSED 1042
#define KVF_E_KEY_IN_USE 1043
#define KVF_E_ROLE 1044
#define KVF_E_GRANT_LENGTH 1045
#define KVF_E_QUARANTINED 1046
#define KVF_E_CLIENTS_FULL 1047
#define KVF_E_RESOURCES 1048
#define KVF_E_MEMORY_RANGE 1049
#define KVF_E_LIMIT_RANGE 1050
#define KVF_E_LEASE_CLOSED 1051
#define KVF_E_LEASE_KIND 1052
#define KVF_E_UNKNOWN_GROUP 1053
#define KVF_E_GROUP_MEMBERS 1054
#define KVF_E_GROUPS_FULL 1055
#define KVF_E_GROUP_RANK_TAKEN 1056
#define KVF_E_GROUP_CLOSED 1057
#define KVF_E_GROUP_TOMBSTONES 1058
#define KVF_E_PEER_HELD 1059
#define KVF_E_NO_KEY 1060
#define KVF_E_DEVICE_MEMORY 1061
#define KVF_E_HOST_MEMORY_ONLY 1062
#define KVF_E_NO_DMABUF 1063
#define KVF_E_DMABUF_REFUSED 1064
#define KVF_E_DEVICE_COPY 1065

/* ---- states: SGLang's KVPoll numbers, so that engines may MIN-reduce them over ranks -------------- */
enum {
    KVF_FAILED = 0,            /* drained, after an abort or a failure */
    KVF_BOOTSTRAPPING = 1,     /* sink: not every writer has accepted; source: no grant yet */
    KVF_WAITING_FOR_INPUT = 2, /* sink: accepted; source: granted, nothing submitted */
    KVF_TRANSFERRING = 3,      /* moving, or closing and not yet proven */
    KVF_SUCCESS = 4            /* drained, everything there and visible */
};

/* ---- proofs, strongest first (kvf_drained) -------------------------------------------------------- */
enum {
    KVF_NEVER_POSTED = 1,
    KVF_LANDED = 2,
    KVF_SOURCE_IDLE = 3,
    KVF_PEER_DRAINED = 4,
    KVF_REVOKED = 5,
    KVF_FENCED = 6,
    KVF_WORKER_GONE = 7,
    KVF_ENGINE_GONE = 8,
    KVF_OPERATOR = 9
};

/* Kinds of external leases: the kind decides what the death of the engine proves. */
enum { KVF_KIND_CPU = 0, KVF_KIND_GPU = 1, KVF_KIND_DIRECT_IO = 2 };

/* Whose memory a region is. */
enum { KVF_MEMORY_HOST = 0, KVF_MEMORY_DMABUF = 1 };

/* Flags of kvf_submit. */
enum { KVF_LAST_PIECE = 1 };

typedef struct kvf_client kvf_client; /* one attachment to one daemon */
typedef struct kvf_pool kvf_pool;     /* memory made by kvf_pool_create or kvf_pool_adopt */
typedef uint64_t kvf_room;            /* one incarnation of one room; 0 is never a room */

/* ---- about ---------------------------------------------------------------------------------------- */

/* Version of the library, "MAJOR.MINOR.PATCH". Static. */
const char *kvf_version(void);
/* Version of the shared-memory layout, major << 16 | minor. A daemon of another major refuses. */
uint32_t kvf_layout_version(void);
/* A static sentence for a code (negative or positive): what was wrong and what is allowed. Never NULL. */
const char *kvf_strerror(int code);
/* The code's name, for example "KVF_E_PAGE_LENT". Static, never NULL. */
const char *kvf_code_name_of(int code);
/* Names of a state (0..4) and of a proof (1..9); "?" for other numbers. Static. */
const char *kvf_state_name(int state);
const char *kvf_proof_name(int proof);

/* ---- attach --------------------------------------------------------------------------------------- */

struct kvf_attach_opts {
    uint32_t size_bytes;
    uint32_t timeout_ms; /* how long to wait for a daemon that is not there yet; 0 = try once */
    const char *socket_path; /* NULL: $KVFENCE_SOCKET, then <run dir>/<name>.sock */
    /* NULL: "gpu0". <run dir> is $KVFENCE_RUN_DIR, /run/kvfence as root, or $XDG_RUNTIME_DIR/kvfence */
    const char *daemon_name;
    /* For logs and stats; NULL: the program's name. At most 63 bytes. */
    const char *client_name;
    uint32_t rooms_max;   /* 0: 1024. At most 65,536 open rooms */
    uint32_t cmd_slots;   /* 0: 1024. A power of two, 2 to 65,536 */
    uint32_t event_slots; /* 0: 1024. A power of two, 2 to 65,536 */
    /* 0: 4 MiB. A power of two, 4 KiB to 256 MiB; bounds what page lists may wait unread: 12 bytes per run
     * of contiguous pages. */
    uint32_t arena_bytes;
    uint32_t pad_[4];
};

/* Attaches to the daemon, waiting for it up to timeout_ms. May make system calls and block.
 * Errors: -KVF_E_NO_DAEMON (nobody listens there within the deadline), -KVF_E_LAYOUT (other major),
 * -KVF_E_CLIENTS_FULL, -KVF_E_LIMIT_RANGE (a limit above), -KVF_E_OPTION (size_bytes), -ESHUTDOWN,
 * -EACCES (no right to the socket), -ENOMEM. On 0 *ret_client is owned by the caller until
 * kvf_detach. */
int kvf_attach(const struct kvf_attach_opts *opts, kvf_client **ret_client);

/* Ends the attachment: all rooms are closed (aborted), then the handle and all its mappings are freed.
 * Returns when the daemon has let go of the memory or timeout_ms has passed; with -ETIMEDOUT the daemon
 * goes on draining by itself and the caller must not reuse pages of unproven rooms: kvf_detach says how
 * many those were through ret_undrained (may be NULL). Other ranks of its rooms' groups are told first,
 * which takes a second more if one is out of reach. No other thread may use the handle any more. */
int kvf_detach(kvf_client *client, uint32_t timeout_ms, uint32_t *ret_undrained);

/* After -KVF_E_DAEMON_GONE: attaches the same segment, regions and ledgers to the next daemon of that
 * name. Rooms that the old worker served read as drained with proof KVF_WORKER_GONE once it was reaped.
 * -KVF_E_NO_DAEMON within timeout_ms, -EBUSY while the old worker still lives, others as kvf_attach. */
int kvf_reattach(kvf_client *client, uint32_t timeout_ms);

/* Asks the kernel (system calls) who is alive: 0 all well; -KVF_E_DAEMON_GONE supervisor and worker are
 * gone (rooms in host memory without external leases then read as drained, KVF_WORKER_GONE); -KVF_E_WORKER_GONE the
 * worker is gone and the supervisor is starting the next; -ESHUTDOWN the daemon is stopping. Engines call
 * it from a slow loop, or let kvf_wait and kvf_events_next do so. */
int kvf_daemon_check(kvf_client *client);

struct kvf_daemon_info {
    uint32_t size_bytes;
    uint32_t lanes_per_peer;
    uint64_t worker_epoch;   /* 0: no worker serves now */
    uint64_t bound_usual_us; /* abort, error or death to drained, usual part */
    uint64_t bound_worst_us; /* and with watchdog and the worker's end */
    uint64_t loop_count;     /* turns of the worker's loop */
    uint64_t events_lost;
};
/* What the daemon says of itself in shared memory: no system call. Any thread. -KVF_E_OPTION (size_bytes). */
int kvf_daemon_info(kvf_client *client, struct kvf_daemon_info *ret_info);

/* ---- memory --------------------------------------------------------------------------------------- */

struct kvf_pool_opts {
    uint32_t size_bytes;
    int32_t
        numa_node; /* -1: anywhere. Otherwise the memory is bound there before its first touch */
    uint64_t bytes;      /* rounded up to the page size used */
    uint32_t huge_pages; /* 0: use 2 MiB pages if enough are free; 1: require them; 2: never */
    uint32_t pad_[5];
};

/* Makes memory that a daemon accepts: a memfd that cannot shrink, all of it reserved, mapped here.
 * -ENOMEM (or no huge pages although required), -EINVAL, -KVF_E_OPTION. */
int kvf_pool_create(const struct kvf_pool_opts *opts, kvf_pool **ret_pool);
/* Takes memory the engine made itself: a memfd with F_SEAL_SHRINK (and hugetlb if the engine likes).
 * The descriptor is duplicated. -KVF_E_NO_SEAL, -KVF_E_MEMORY_RANGE, -errno. */
int kvf_pool_adopt(int fd, uint64_t bytes, kvf_pool **ret_pool);
/* Where a pool is mapped here (NULL in a forked child), its bytes, its descriptor, its page size. Any thread; a NULL pool
 * has no address, no bytes and no descriptor. */
void *kvf_pool_addr(const kvf_pool *pool);
uint64_t kvf_pool_bytes(const kvf_pool *pool);
int kvf_pool_fd(const kvf_pool *pool);              /* owned by the pool */
uint32_t kvf_pool_page_bytes(const kvf_pool *pool); /* 4096 or 2 MiB */
/* Unmaps and closes. Regions that use it keep the memory alive in the daemon until unregistered. */
void kvf_pool_destroy(kvf_pool *pool);

struct kvf_plane {
    uint64_t off;        /* of page 0, from the start of the region's memory */
    uint64_t stride;     /* from page p to page p + 1, at least page_bytes */
    uint64_t page_bytes; /* of one page in this plane */
};

struct kvf_region_opts {
    uint32_t size_bytes;
    int32_t fd; /* the memory: a sealed memfd (kvf_pool_fd), or a dma-buf, see `memory` */
    uint64_t memory_off; /* start of the region in it, multiple of 4096 */
    uint64_t memory_bytes;
    uint64_t page_count; /* page indices 0 .. page_count - 1 */
    const struct kvf_plane *planes;
    uint32_t plane_count; /* 1 .. 512. Page index p covers p's bytes in every plane */
    uint32_t
        timeout_ms; /* how long to wait for memory whose engine is gone; 0: as long as that may take,
                             a little over the daemon's worst bound */
    uint32_t
        memory; /* KVF_MEMORY_HOST, or KVF_MEMORY_DMABUF: fd is a dma-buf that the memory of
                        a device (a GPU) was exported as */
    uint32_t pad_[1];
};

/* Registers memory whose pages rooms may name. Blocks until the daemon has mapped it. At most 16 live
 * regions per client. A memory object (or a part of it) has one live registration: while that of an engine
 * that is gone waits for proof of its rooms, a new one waits too, and begins with a fresh ledger. Meanwhile
 * other threads' registrations wait behind it; all other calls go on. Errors: -KVF_E_NO_SEAL,
 * -KVF_E_MEMORY_RANGE (a plane leaves the memory, planes overlap, page_count over 67,108,864),
 * -KVF_E_REGIONS_FULL, -KVF_E_MEMORY_REGISTERED (a living engine has it, or the timeout has passed),
 * -KVF_E_QUARANTINED (a dead engine's room that nothing proves holds it), -KVF_E_DEVICE_MEMORY (--transport
 * verbs: a device refuses it), -KVF_E_DAEMON_GONE.
 *
 * MEMORY OF DEVICES. The daemon maps none of it: its network devices read and write it by themselves, so
 * only a daemon with --transport verbs takes it (else -KVF_E_HOST_MEMORY_ONLY; -KVF_E_DMABUF_REFUSED if one of
 * its network devices does not; -KVF_E_NO_DMABUF if fd is none). Each dma-buf is a memory object of its own:
 * memory that was exported twice is known as two. Rooms with such pages drain, and become visible, after one
 * more step, a read through each network device that their grants used; and the end of both daemon processes
 * alone does not drain them: the next daemon does, after kvf_reattach. Rooms between two engines of
 * one daemon need host memory on both sides (KVF_E_DEVICE_COPY). */
int kvf_region_register(kvf_client *client, const struct kvf_region_opts *opts,
                        uint32_t *ret_region);
/* The daemon's own sentence for its last refusal of an attached client's registration, which names what
 * stands in the way: a client, a slot, a generation. Terminated, cut to text_bytes; "" if there was none.
 * Any thread. -EINVAL (text NULL, text_bytes 0), -KVF_E_FORKED. */
int kvf_last_refusal(kvf_client *client, char *text, size_t text_bytes);
/* Lets go of a region. -KVF_E_REGION_BUSY while a room still names a page of it, -KVF_E_UNKNOWN_REGION. */
int kvf_region_unregister(kvf_client *client, uint32_t region);

/* Asks the ledger about pages: 1 if none of the n pages is lent to a room, 0 if at least one is (its position in the list
 * through ret_position, may be NULL), negative for a bad region or page. An allocator asks this before
 * it hands pages out, and so catches every release path that forgot to ask the room. Lent lasts from the
 * return of the call that lends until proof, through a restart of the daemon too. No system call. On 1
 * the bytes that were placed are visible to the caller (acquire). */
int kvf_pages_are_idle(kvf_client *client, uint32_t region, const int32_t *pages, size_t n,
                       size_t *ret_position);
int kvf_pages_are_idle64(kvf_client *client, uint32_t region, const int64_t *pages, size_t n,
                         size_t *ret_position);
/* The sink room a page is lent to through ret_room (0: lent for reading), or -ENOENT if it is idle. */
int kvf_page_lender(kvf_client *client, uint32_t region, int64_t page, kvf_room *ret_room);

/* ---- rooms ---------------------------------------------------------------------------------------- */

struct kvf_sink_opts {
    uint32_t size_bytes;
    uint32_t region;
    uint64_t label;
    uint64_t key;
    const int32_t *pages;   /* in the order of the grant's positions; or pages64 */
    const int64_t *pages64; /* used if pages is NULL */
    size_t page_count;      /* at least 1 */
    /* Auxiliary slots (metadata): pages of another region, appended to the list. */
    uint32_t aux_region;
    uint32_t aux_count; /* 0: none */
    const int32_t *aux_pages;
    /* "host:port", "[v6]:port" of each source's daemon; names are resolved here, which may block. */
    const char *const *writers;
    /* 1 .. 16; every writer gets a grant for the whole list unless ranges say otherwise. */
    uint32_t writer_count;
    uint32_t group; /* 0: none, or a number of kvf_group_register */
    /* Per writer: first position and count of its own part of the list; parts must not overlap and cover
     * the list. NULL with one writer. */
    const uint32_t *range_starts;
    const uint32_t *range_counts;
    uint32_t pad_[4];
};

/* Opens a sink room and lends it the pages. When this returns 0 the ledger shows them lent.
 * No system call while the daemon is awake, if the addresses are numeric; one eventfd write if it sleeps.
 * Errors: -EAGAIN (ring or arena full), -KVF_E_ROOMS_FULL, -KVF_E_UNKNOWN_REGION, -KVF_E_NO_PAGES,
 * -KVF_E_PAGE_RANGE, -KVF_E_PAGE_TWICE, -KVF_E_PAGE_LENT (not idle; kvf_page_lender says to whom),
 * -KVF_E_PEER_UNRESOLVED, -KVF_E_PEER_COUNT, -KVF_E_UNKNOWN_GROUP, -KVF_E_OPTION, -ESHUTDOWN,
 * -KVF_E_WORKER_GONE (none serves at the moment). A refusal of the daemon's arrives as Failed with its
 * reason in kvf_room_info. */
int kvf_open_sink(kvf_client *client, const struct kvf_sink_opts *opts, kvf_room *ret_room);

struct kvf_source_opts {
    uint32_t size_bytes;
    uint32_t region; /* its pieces come from here */
    uint64_t label;
    uint64_t key;
    uint32_t sink_count; /* 0 = 1. How many sinks this room serves, at most 16 */
    uint32_t has_aux;    /* 1: aux_region is set, pieces may come from it too */
    uint32_t aux_region;
    uint32_t group;
    uint32_t pad_[4];
};

/* Opens a source room: it waits for the grants of its sinks. Lends nothing yet. Errors as kvf_open_sink,
 * and -KVF_E_KEY_IN_USE arrives as the reason of a failed room: an open source room of this daemon has
 * the same label and key. */
int kvf_open_source(kvf_client *client, const struct kvf_source_opts *opts, kvf_room *ret_room);

struct kvf_piece_opts {
    uint32_t size_bytes;
    uint32_t region;      /* the room's region or its aux_region */
    const int32_t *pages; /* source pages, or pages64 */
    const int64_t *pages64;
    size_t page_count;
    uint32_t start; /* position in the grant's page list of pages[0] */
    uint32_t flags; /* KVF_LAST_PIECE */
    uint32_t pad_[4];
};

/* Lends source pages and sends them to positions [start, start + page_count) of every grant. Legal from
 * open on, before the grant too. With KVF_LAST_PIECE the pieces must cover the grant exactly once, or
 * the room fails with KVF_E_PIECE_HOLE. Errors: -KVF_E_PIECE_OVERLAP, -KVF_E_PIECE_RANGE (beyond the
 * grant), -KVF_E_PIECES_CLOSED (after the last), -KVF_E_ROLE (a sink room), -KVF_E_STALE_ROOM,
 * -KVF_E_PAGE_LENT (lent to a sink), and those of kvf_open_sink. A refused piece changes nothing. */
int kvf_submit(kvf_client *client, kvf_room room, const struct kvf_piece_opts *opts);

/* Asks the daemon to end the room. Legal at any time, twice, and after the end (then it does nothing).
 * Needs no ring slot and always fits. reason: 1 .. 65535, the engine's own, shown to it again by
 * kvf_room_info; 0 means KVF_E_ABORTED. Returns at once; the pages stay lent until drained. */
int kvf_abort(kvf_client *client, kvf_room room, uint32_t reason);

/* The state, 0..4 (KVF_FAILED .. KVF_SUCCESS), or -KVF_E_STALE_ROOM, -KVF_E_UNKNOWN_ROOM. KVF_FAILED and
 * KVF_SUCCESS are given only with proof. One acquire load: on KVF_SUCCESS every byte is visible. */
int kvf_poll(kvf_client *client, kvf_room room);
/* kvf_poll of n rooms into ret_states (int32 each). Returns how many are KVF_FAILED or KVF_SUCCESS. */
int kvf_poll_many(kvf_client *client, const kvf_room *rooms, size_t n, int32_t *ret_states);

/* 1 once the room's failure is certain, maybe long before it is drained; 0 otherwise. */
int kvf_failed_early(kvf_client *client, kvf_room room);
/* The proof kind (KVF_NEVER_POSTED ..), or -EAGAIN while something may still touch the pages. On a
 * positive answer the caller owns the pages again. */
int kvf_drained(kvf_client *client, kvf_room room);
/* 1 if a sink's bytes are all there and safe to read, else 0. Apart from drained (safe to reuse). */
int kvf_visible(kvf_client *client, kvf_room room);

struct kvf_room_info {
    uint32_t size_bytes;
    int32_t state;         /* as kvf_poll */
    int32_t phase;         /* 0 free 1 open 2 closing 3 fencing 4 quarantined 5 drained */
    int32_t proof;         /* 0 while not drained */
    uint32_t reason;       /* 0, a KVF_E_* code, or the engine's own abort reason */
    uint32_t detail;       /* errno, or the peer's reason code */
    uint64_t placed_bytes; /* sink: landed so far; source: accepted by the lanes so far */
    uint64_t total_bytes;  /* 0: not known yet */
    uint64_t close_to_drained_ns;
    uint32_t total_pages; /* source: length of the grant's page list, 0 = no grant yet */
    uint32_t unproven;    /* (grant, lane) pairs still without proof */
    uint32_t leases_cpu;  /* external leases out */
    uint32_t leases_gpu;
    uint32_t leases_direct_io;
    uint32_t pad_;
    /* Bit per rank of its group that has not settled since the failure. 0 too while no daemon knows; the
     * state then still says so. */
    uint64_t group_waits;
};
/* More of a room than its state, for logs and for finding out why. No system call. Any thread.
 * -KVF_E_STALE_ROOM, -KVF_E_UNKNOWN_ROOM, -KVF_E_OPTION (size_bytes). */
int kvf_room_info(kvf_client *client, kvf_room room, struct kvf_room_info *ret_info);

/* Waits until the room is KVF_FAILED or KVF_SUCCESS: the state, or -ETIMEDOUT. A timeout changes
 * nothing but the waiter's view. Sleeps in the kernel; also notices a dead daemon. */
int kvf_wait(kvf_client *client, kvf_room room, uint32_t timeout_ms);

/* Drops the engine's interest. Legal at any time: an unfinished room is aborted first, its slot comes
 * back by itself once drained, its pages stay lent in the ledger until then. The handle is dead
 * afterwards (-KVF_E_STALE_ROOM). */
int kvf_release(kvf_client *client, kvf_room room);

/* ---- external leases ------------------------------------------------------------------------------ */

/* Work of the engine or another library that may touch the room's pages: the room is not drained while
 * a lease is out. -KVF_E_LEASE_CLOSED (the room is closing or drained: do not start), -EOVERFLOW (511
 * cpu, 127 of the other kinds), -KVF_E_LEASE_KIND, -KVF_E_STALE_ROOM. Lock-free, no system call. */
int kvf_lease(kvf_client *client, kvf_room room, int kind);
/* Gives one back: the work can touch the pages no more. -ENOENT if none of that kind is out. */
int kvf_lease_give_back(kvf_client *client, kvf_room room, int kind);

/* ---- events --------------------------------------------------------------------------------------- */

struct kvf_event {
    kvf_room room;
    int32_t state;
    int32_t is_drained;
};

/* A descriptor that becomes readable after the next change of a room, for epoll. Owned by the client. */
int kvf_event_fd(kvf_client *client);
/* Takes up to max events. Events are hints: after -EOVERFLOW (some were lost) ask every room. Returns how
 * many. Before it returns 0 it arms the descriptor, so wait only after a 0. May make system calls. */
int kvf_events_next(kvf_client *client, struct kvf_event *ret_events, int max);

/* ---- groups --------------------------------------------------------------------------------------- */

/* The ranks of one request (TP, PP, CP), each with its own daemon and its own room. Rooms that were
 * opened with a group and the same key belong together:
 *
 *   - when one of them fails, the others are closed (reason KVF_E_GROUP_CLOSED), wherever they are;
 *   - KVF_FAILED is given for none of them before every one is drained, or was never opened. Until then
 *     kvf_poll says KVF_TRANSFERRING, so that a MIN-reduction over ranks frees nobody's pages too early;
 *   - a rank that opens its room after the others have failed sees it fail at once.
 *
 * kvf_drained and the ledger speak of the room's own pages alone and do not wait for other ranks. While
 * nothing fails a group sends nothing and costs nothing. A rank whose daemon is out of reach or whose
 * pages are in quarantine keeps the others waiting, for any time: kvf_room_info names it. */
struct kvf_group_opts {
    uint32_t size_bytes;
    uint32_t rank; /* of this process, below member_count */
    /* Daemon addresses of all ranks in rank order, own included; as for writers. Several ranks may sit
     * behind one daemon. */
    const char *const *members;
    uint32_t member_count; /* 1 .. 64 */
    uint32_t pad0_;
    /* Equal on all ranks, unlike that of any other group; 0: made from the members' numeric addresses, so
     * every rank must pass the same list. */
    uint64_t group_id;
    uint32_t pad_[2];
};
/* Registers this process's rank once, for all rooms; there is no taking back but kvf_detach. The number
 * goes into the group field of an open; it stays good through restarts of the daemon. A group of one rank
 * is no group: *ret_group is 0. The same registration again gives the same number. A process that
 * registers a rank anew, after an earlier one ended, must not open keys that were meant for that one: hand
 * keys to a rank only after this call of its process has returned.
 * Blocks until the daemon has it. Any thread. Errors: -KVF_E_GROUP_MEMBERS, -KVF_E_PEER_UNRESOLVED (a
 * member), -KVF_E_GROUPS_FULL (16 of them), -KVF_E_GROUP_RANK_TAKEN (a living engine of this daemon holds
 * the rank), -KVF_E_GROUP_UNSUPPORTED (an older daemon), -KVF_E_OPTION, -KVF_E_DAEMON_GONE, -ESHUTDOWN. */
int kvf_group_register(kvf_client *client, const struct kvf_group_opts *opts,
                       uint32_t *ret_group);
/* Says that this rank will never open the key. Without it the daemon keeps every key that other ranks
 * ended and this one has not opened, 1024 at most; then opens in groups end with KVF_E_GROUP_TOMBSTONES.
 * For a key that was opened it does nothing. Blocks until the daemon has it, so on 0 it is not lost. Any
 * thread. -KVF_E_UNKNOWN_GROUP, -KVF_E_DAEMON_GONE (say it again after kvf_reattach). */
int kvf_group_skip(kvf_client *client, uint32_t group, uint64_t key);

#ifdef __cplusplus
}
#endif

#endif

/* Inside libkvfence.
 *
 * One mapping holds a client handle. Its first part, `hot`, is MADV_WIPEONFORK: in a forked child it
 * reads as zero, so that every call learns of the fork by the load it makes anyway. The rest is private
 * state under `lock`. Shared memory is reached through `segment`, whose mapping a child does not have.
 *
 * Locks, in the order in which they may be taken: socket_lock (one request and its reply at a time),
 * wait_lock (who sleeps on the event descriptor), lock (rooms, rings, arena, ledgers, workers). All are
 * plain mutexes: uncontended they cost no system call. */
#ifndef KVF_CLIENT_INTERNAL_H
#define KVF_CLIENT_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "client/kvfence.h"
#pragma GCC visibility pop

#include "ring/attach.h"
#include "ring/layout.h"
#include "ring/ledger.h"
#include "ring/room_word.h"
#include "ring/segment.h"
#include "ring/spsc.h"

#define KVF_NO_INDEX UINT32_MAX
#define KVF_WORKERS_KNOWN_MAX 8u /* worker epochs whose pidfd or end is remembered */
#define KVF_TIDY_ROOMS_MAX 8u    /* rooms one call looks at to take slots and counts back */
#define KVF_WAIT_SLICE_MS 100    /* a waiter looks after its daemon this often */
#define KVF_ATTACH_RETRY_MS 10
#define KVF_REPLY_MS_MIN 5000u /* a daemon that accepted gets at least this long to answer */

/* ---- pools of small nodes, made at attach: no call on the path of a transfer allocates ----------- */

/* Nodes are named by index; the first word of a free node links to the next free one. Never touched
 * memory costs nothing, so the pool is mapped for the worst case at once. */
struct kvf_nodes {
    unsigned char *base;
    uint32_t node_bytes;
    uint32_t count;
    uint32_t fresh; /* nodes from here on were never used */
    uint32_t free_head;
    uint32_t free_count; /* in the list, without the fresh ones */
};

#define KVF_RUNS_PER_CHUNK 10u
struct kvf_run_chunk { /* runs a source room has lent, newest chunk first */
    uint32_t next;
    uint32_t run_count;
    struct kvf_run_shm runs[KVF_RUNS_PER_CHUNK];
};
_Static_assert(sizeof(struct kvf_run_chunk) == 128, "two lines");

struct
    kvf_interval { /* positions [start, end) a source room has submitted; sorted, never adjacent */
    uint32_t next;
    uint32_t start;
    uint32_t end;
    uint32_t pad_;
};

/* ---- rooms --------------------------------------------------------------------------------------- */

enum kvf_slot_state {
    KVF_SLOT_FREE = 0,    /* in the free queue */
    KVF_SLOT_LIVE = 1,    /* the engine holds its handle */
    KVF_SLOT_ZOMBIE = 2,  /* released, not yet seen drained */
    KVF_SLOT_RETIRED = 3, /* generations are used up */
};
enum kvf_role { KVF_ROLE_SINK = 1, KVF_ROLE_SOURCE = 2 };

struct kvf_slot {
    _Atomic uint64_t handle; /* of the live room, 0 if none; written under the lock */
    uint64_t generation;     /* last one used */
    uint64_t epoch;          /* worker epoch its OPEN was written under */
    uint32_t next;           /* in the free or zombie queue */
    uint32_t chunks;         /* runs lent for reading and not yet undone */
    uint32_t intervals;
    uint32_t region;
    uint32_t aux_region; /* UINT32_MAX: none */
    uint32_t group;      /* handle, 0: none */
    uint8_t state;       /* enum kvf_slot_state */
    uint8_t role;        /* enum kvf_role */
    uint8_t has_last;    /* the last piece was submitted */
    uint8_t pad_;
};

struct kvf_slot_queue { /* first in, first out, through kvf_slot.next */
    uint32_t head;
    uint32_t tail;
    uint32_t count;
};

/* ---- arena --------------------------------------------------------------------------------------- */

struct kvf_arena_mark {
    uint64_t cmd_pos; /* the record may go once cmd_consumed is beyond this position */
    uint64_t end;     /* free-running offset behind it */
};
struct kvf_arena {
    unsigned char *base;
    uint32_t bytes;
    uint64_t head; /* free-running: next byte to use */
    uint64_t tail; /* free-running: oldest byte in use */
    struct kvf_arena_mark *marks;
    uint32_t mark_mask;
    uint64_t mark_head;
    uint64_t mark_tail;
};

/* ---- regions and workers --------------------------------------------------------------------------- */

struct kvf_client_region {
    _Atomic uint32_t handle; /* 0: free */
    _Atomic uint32_t users;  /* calls that read the ledger without the lock */
    bool is_leaving;         /* unregister is asking the daemon: opens find it unknown */
    uint64_t page_count;
    struct kvf_ledger_shm *ledger;
    _Atomic uint64_t *words;
    int memory_fd;              /* ours: a duplicate, handed on at re-attach */
    int ledger_fd;              /* ours */
    struct kvf_region_req *req; /* as registered, for re-attach */
};

struct kvf_worker_seen {
    uint64_t epoch; /* 0: entry unused */
    int pidfd;      /* ours; -1 once read as ended */
    bool has_ended;
};

/* ---- the handle ------------------------------------------------------------------------------------ */

struct kvf_hot { /* zero in a forked child */
    /* The live handle of each slot whose room word may be taken as it stands, else a value that no handle
     * of that slot has. Slots beyond rooms_max stay zero; 0 is no handle of theirs. */
    _Atomic uint64_t handles[KVF_ROOMS_PER_CLIENT_MAX];
    uint64_t rooms_off; /* daemon's lines, from the start of struct kvf_cold */
    uint64_t is_ours;   /* 1 in the process that attached */
};

struct kvf_cold {
    /* Read instead of a room word by a forked child that asks for room 0: matches no handle. */
    uint64_t not_a_word;

    struct kvf_segment segment;
    struct kvf_slot *slots;
    _Atomic uint64_t *counted; /* bit per slot: lends source pages (chunks is not empty) */
    uint32_t counted_cursor;
    pthread_mutex_t lock;
    struct kvf_slot_queue free_slots;
    struct kvf_slot_queue zombies;
    struct kvf_spsc_producer cmds;
    struct kvf_spsc_consumer events;
    uint32_t events_lost_seen;
    uint64_t epoch_seen; /* by kvf_events_next */
    struct kvf_arena arena;
    struct kvf_run_shm *runs; /* scratch of the call that holds the lock */
    uint32_t runs_max;
    struct kvf_nodes chunk_nodes;
    struct kvf_nodes interval_nodes;
    struct kvf_client_region regions[KVF_REGIONS_PER_CLIENT_MAX];
    _Atomic uint32_t groups_known; /* bit per handle: opens may name it */
    struct kvf_group_req groups[KVF_GROUPS_PER_CLIENT_MAX]; /* handle - 1; as registered, for
                                                               re-attach. Under socket_lock */

    /* Workers. ended_* is read without the lock: epochs whose worker is known to have been reaped while
     * no supervisor was left to say so. Append only, oldest overwritten. */
    struct kvf_worker_seen workers[KVF_WORKERS_KNOWN_MAX];
    _Atomic uint64_t ended_epochs[KVF_WORKERS_KNOWN_MAX];
    _Atomic uint32_t ended_count;
    _Atomic bool is_supervisor_gone;
    char refusal[232];             /* of the last request that was refused; under socket_lock */
    _Atomic uint32_t dropped_code; /* why the supervisor hung up, if it said so */

    pthread_mutex_t socket_lock;
    int segment_fd;  /* ours: handed on at re-attach */
    int socket_fd;   /* ours; keeps its number through a re-attach, like the next two */
    int doorbell_fd; /* ours */
    int event_fd;    /* ours: the worker's datagrams say that something changed */
    uint32_t serial;
    char socket_path[108];
    char client_name[64];

    /* Waiters. Whoever empties the event socket owes the news to those who may sleep on it: the leading
     * waiter through leader_kick_fd, the engine's own epoll through engine_kick_fd. */
    pthread_mutex_t wait_lock;
    pthread_cond_t wait_cond;
    int engine_fd; /* ours: the epoll descriptor engines get, over event_fd and engine_kick_fd */
    int engine_kick_fd; /* ours */
    int leader_kick_fd; /* ours */
    bool has_leader;    /* a waiter sleeps in the kernel, or is about to */
    bool is_armed_for_engine;
    bool has_event_hang_up;
    _Atomic bool
        must_scan; /* rooms changed without an event: the next kvf_events_next says so */
    _Atomic uint64_t next_look_ns;

    void *private_memory; /* slots, marks, scratch, nodes */
    uint64_t private_bytes;
};

struct kvf_client {
    struct kvf_hot hot;
    _Alignas(KVF_PAGE_BYTES) struct kvf_cold cold;
};

/* ---- inline -------------------------------------------------------------------------------------- */

#define KVF_LIKELY(x) __builtin_expect(!!(x), 1)
#define KVF_UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline kvf_room kvf_client_handle(uint64_t generation, uint32_t slot)
{
    return generation << KVF_GENERATION_SHIFT | slot;
}
static inline uint64_t kvf_client_no_handle(uint32_t slot)
{
    return slot ^ 1u;
}

/* Through an offset and not a pointer: in a child the offset is zero and the load harmless. */
static inline const struct kvf_room_shm *kvf_client_hot_room(const kvf_client *client,
                                                             uint32_t slot)
{
    uintptr_t off =
        (uintptr_t)slot * sizeof(struct kvf_room_shm) + (uintptr_t)client->hot.rooms_off;
    return (const struct kvf_room_shm *)((uintptr_t)&client->cold + off);
}

/* 0, -EINVAL or -KVF_E_FORKED: the first line of every call that is not hot. */
static inline int kvf_client_enter(const kvf_client *client)
{
    if (client == NULL) {
        return -EINVAL;
    }
    return KVF_LIKELY(client->hot.is_ours != 0) ? 0 : -KVF_E_FORKED;
}

/* ---- about.c ------------------------------------------------------------------------------------- */

/* Copies an option struct of the caller's version over ret (ret_bytes, this library's version).
 * -KVF_E_OPTION: shorter than the first version, or longer with something set that is not known here. */
int kvf_client_copy_opts(void *ret, size_t ret_bytes, const void *opts);
/* Copies a result of this library's version out to a caller's struct that begins with its size: as much
 * of it as the caller knows, which is first_bytes at least. */
int kvf_client_copy_out(void *ret, const void *from, size_t from_bytes, size_t first_bytes);
bool kvf_client_is_zero(const void *bytes, size_t n);
uint64_t kvf_client_now_ns(void);
/* Milliseconds until a deadline, rounded up, at most max_ms. */
int kvf_client_ms_until(uint64_t deadline_ns, int max_ms);

/* ---- nodes.c --------------------------------------------------------------------------------------- */

void kvf_nodes_init(struct kvf_nodes *nodes, void *base, uint32_t node_bytes, uint32_t count);
uint32_t kvf_nodes_free_count(const struct kvf_nodes *nodes);
uint32_t kvf_nodes_take(struct kvf_nodes *nodes); /* KVF_NO_INDEX if there is none */
void kvf_nodes_give_back(struct kvf_nodes *nodes, uint32_t idx);
static inline void *kvf_nodes_at(const struct kvf_nodes *nodes, uint32_t idx)
{
    return nodes->base + (size_t)idx * nodes->node_bytes;
}

/* ---- arena.c: the lock is held ----------------------------------------------------------------------- */

void kvf_arena_init(struct kvf_arena *arena, unsigned char *base, uint32_t bytes,
                    struct kvf_arena_mark *marks, uint32_t mark_count);
/* Finds place for one record; nothing is taken until kvf_arena_commit. 0 and its offset, -EAGAIN (full),
 * -E2BIG (larger than the arena). */
int kvf_arena_find(struct kvf_client *client, uint64_t bytes, uint32_t *ret_off);
/* The record at `off` belongs to the command of this position. */
void kvf_arena_commit(struct kvf_arena *arena, uint32_t off, uint64_t bytes, uint64_t cmd_pos);

/* ---- pages.c --------------------------------------------------------------------------------------- */

/* A page list as engines write it. */
struct kvf_page_list {
    const int32_t *pages;
    const int64_t *pages64;
    size_t count;
};
/* Appends the list's runs to the client's scratch. 0, -KVF_E_NO_PAGES, -KVF_E_PAGE_RANGE, -EINVAL,
 * -E2BIG (more runs than a list may have). Lock held. */
int kvf_client_runs_append(kvf_client *client, const struct kvf_client_region *region,
                           const struct kvf_page_list *list, uint32_t *run_count);
/* The live region of a handle, or NULL. Lock held. */
struct kvf_client_region *kvf_client_region_find(kvf_client *client, uint32_t handle);

/* ---- rooms.c: the lock is held, but for the first two --------------------------------------------------- */

/* The room's word as an engine may see it: 0, or -KVF_E_UNKNOWN_ROOM, -KVF_E_STALE_ROOM,
 * -KVF_E_FORKED. An OPEN the daemon has not read yet is an open room; a room whose worker and supervisor
 * are gone is drained once its leases are. Lock-free. */
int kvf_client_room_word(const kvf_client *client, kvf_room room, uint64_t *ret_word);
/* The same for a slot and generation that need not be held by the engine any more. Lock-free. */
bool kvf_client_is_drained(const kvf_client *client, uint32_t slot, uint64_t generation);

/* The slot of a live handle, or NULL with the refusal. */
struct kvf_slot *kvf_client_slot_find(kvf_client *client, kvf_room room, int *ret_err);
uint32_t kvf_client_slot_idx(const kvf_client *client, const struct kvf_slot *slot);
/* Takes slots and counts of drained rooms back: a few per call, or all. */
void kvf_client_tidy(kvf_client *client, bool all);
/* Undoes what drained source rooms still count. True if any was. */
bool kvf_client_sweep_counts(kvf_client *client, bool all);
/* -ESHUTDOWN, -KVF_E_WORKER_GONE, or 0 and the epoch a command is written under. */
int kvf_client_epoch(const kvf_client *client, bool is_open, uint64_t *ret_epoch);
bool kvf_client_epoch_has_ended(const kvf_client *client, uint64_t epoch);
/* Takes a slot for a new generation; kvf_client_slot_give_back undoes it. */
int kvf_client_slot_take(kvf_client *client, struct kvf_slot **ret_slot);
void kvf_client_slot_give_back(kvf_client *client, struct kvf_slot *slot);
void kvf_client_slot_queue_push(kvf_client *client, struct kvf_slot_queue *queue, uint32_t idx);
/* Tells the worker of an abort, and that something waits. */
void kvf_client_abort_slot(kvf_client *client, struct kvf_slot *slot, uint32_t reason);
void kvf_client_wake_worker(const kvf_client *client);
/* An epoch was added to those that have ended: its rooms are asked the slow way from now on, and take no
 * new leases. True if a room changed by that. */
bool kvf_client_rooms_conclude(kvf_client *client);

/* ---- alive.c --------------------------------------------------------------------------------------- */

/* Remembers a worker. Takes over pidfd. */
void kvf_client_worker_add(kvf_client *client, uint64_t epoch, int pidfd);
/* Reads waiting notices, asks the pidfds, and draws what follows. As kvf_daemon_check. */
int kvf_client_look(kvf_client *client);
/* The same, unless a thread looked a moment ago. */
void kvf_client_look_now_and_then(kvf_client *client);
/* Waits until no worker that is known runs any more. False: the deadline passed. */
bool kvf_client_wait_workers(kvf_client *client, uint64_t deadline_ns);
void kvf_client_workers_close(kvf_client *client);

/* ---- socket.c --------------------------------------------------------------------------------------- */

struct kvf_reply {
    struct kvf_attach_rep rep;
    int fds[8];
    int fd_count;
};
/* Connects within the deadline. 0 and a descriptor, -KVF_E_NO_DAEMON, -EACCES, -errno. */
int kvf_socket_connect(const char *path, uint64_t deadline_ns, int *ret_fd);
int kvf_socket_send(int fd, const void *packet, size_t bytes, const int *fds, int fd_count);
/* One packet. 0, -EAGAIN, -KVF_E_DAEMON_GONE (hung up), -KVF_E_PROTOCOL. */
int kvf_socket_receive(int fd, struct kvf_reply *ret_reply);
/* Sends a request and waits for its reply; 0 only for the wanted one. A refusal comes back as its code.
 * deadline_ns 0: as long as the daemon lives. socket_lock held. */
int kvf_socket_request(kvf_client *client, int fd, struct kvf_attach_header *request,
                       size_t bytes, const int *fds, int fd_count, uint16_t wanted_op,
                       uint64_t deadline_ns, struct kvf_reply *ret_reply);
void kvf_socket_notice(kvf_client *client, struct kvf_reply *reply);
void kvf_reply_close(struct kvf_reply *reply); /* closes what is still in it */
int kvf_reply_take(struct kvf_reply *reply, int idx);

/* ---- group.c, region.c, wait.c, addr.c ---------------------------------------------------------------------------- */

/* Tells the next daemon of every group, under its handle. socket_lock held. */
int kvf_client_groups_readd(kvf_client *client);
static inline bool kvf_client_has_group(const kvf_client *client, uint32_t group)
{
    /* relaxed: set before the call that gave the caller this handle returned. */
    uint32_t known = atomic_load_explicit(&client->cold.groups_known, memory_order_relaxed);
    return group == 0 ||
           (group <= KVF_GROUPS_PER_CLIENT_MAX && (known >> (group - 1u) & 1u) != 0);
}
/* Tells the next daemon of every region. socket_lock held. */
int kvf_client_regions_readd(kvf_client *client);
/* A child forgets its copies; the owner also unmaps and closes. */
void kvf_client_regions_free(kvf_client *client, bool is_child);
int kvf_client_wait_init(kvf_client *client);
/* The event socket has changed: watch it, emptied or not. */
int kvf_client_wait_watch(kvf_client *client);
void kvf_client_wait_close(kvf_client *client);
int kvf_client_addr_parse(const char *text, struct kvf_addr_shm *ret_addr);

#endif

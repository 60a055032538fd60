/* The small ops table between the worker's loop and whatever moves bytes, and its contract.
 *
 * For every implementation (tcp, local, verbs; the simulator's double):
 *  T1  Each accepted post yields exactly one completion, also through a fence.
 *  T2  Posts of one lane leave in order; a marker is behind everything posted before it.
 *  T3  A fence returns (fenced) only when nothing of that lane's epoch can touch a page any more, ours
 *      or the peer's, and after every post of the lane was completed.
 *  T4  The sink asks place before every receive and obeys the answer. (verbs: its device places, and asks
 *      nobody.)
 *  T5  Nothing is ever resent on a stream; any error ends the stream (lost), and only that stream.
 *  T6  Reading never waits for writing, and no call blocks.
 *  T7  Nothing here touches client memory except by a call that can fail, or through a device.
 * All calls come from the worker's loop thread. Events go to the host through callbacks of struct
 * kvf_transport_host, from within the ops, on the same thread. */
#ifndef KVF_TRANSPORT_TRANSPORT_H
#define KVF_TRANSPORT_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/layout.h"
#include "sidecar/core/core.h"

struct kvf_transport;    /* implementation's own */
struct kvf_verbs_memory; /* a registration */

/* A mapped region as transports see it. Validated: every plane lies in the mapping. */
struct kvf_transport_region {
    unsigned char *base; /* NULL: unknown */
    uint64_t page_count;
    uint32_t plane_count;
    const struct kvf_core_plane *planes;
    uint64_t page_bytes;                   /* over all planes */
    const struct kvf_verbs_memory *memory; /* verbs: its registration; NULL for others */
};

struct kvf_transport_host {
    void *ctx;
    /* sink side; as kvf_core_place, _placed, _marker, _place_fault */
    int (*place_fn)(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at);
    void (*placed_fn)(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch);
    int (*marker_fn)(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind);
    void (*place_fault_fn)(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle);
    /* source side */
    void (*completed_fn)(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status);
    void (*read_fault_fn)(void *ctx, uint32_t client); /* this client's memory cannot be read */
    /* both */
    void (*up_fn)(void *ctx, uint32_t lane, uint32_t epoch);
    /* verbs: our end exists; as kvf_core_lane_ready. The source's is up with it (no up_fn). */
    void (*ready_fn)(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_lane_end *end);
    void (*lost_fn)(void *ctx, uint32_t lane, uint32_t epoch, int err);
    void (*fenced_fn)(void *ctx, uint32_t lane, uint32_t epoch);
    /* NULL if this client or region is not mapped. */
    const struct kvf_transport_region *(*region_fn)(void *ctx, uint32_t client,
                                                    uint32_t region);
    /* verbs, source side: as kvf_core_remote. */
    bool (*remote_fn)(void *ctx, uint32_t lane, uint32_t remote_region,
                      struct kvf_remote_view *ret_view);
    /* verbs: answers kvf_verbs_flush, from within poll. As kvf_core_flushed; cookie names the room. */
    void (*flushed_fn)(void *ctx, uint64_t cookie, int err);
    /* verbs: a device works from now on (err 0), or does not (-errno) and is tried again with each lane, or never
     * can (-errno, is_final). From create, ready and poll, when it is news. NULL: nobody is told. */
    void (*rail_fn)(void *ctx, const char *device, int err, bool is_final, const char *why);
    /* The time of this turn, monotonic. Asked by transports that pace by themselves (local), and only if
     * lane_rate_bytes is set; may be NULL otherwise. A question, like place_fn and region_fn. */
    uint64_t (*now_fn)(void *ctx);
};

/* Who makes tcp's calls. auto: io_uring where the host allows it and a round has more than one call, else
 * plain sockets. uring: io_uring for every call, where the host allows it. */
enum kvf_tcp_engine_kind {
    KVF_TCP_ENGINE_AUTO = 0,
    KVF_TCP_ENGINE_SOCKETS = 1,
    KVF_TCP_ENGINE_URING = 2,
};

struct kvf_transport_config {
    uint32_t lanes_max;       /* lane ids below this */
    uint64_t lane_rate_bytes; /* per second; 0: unpaced */
    uint64_t lane_window_bytes;
    uint64_t turn_bytes_max;     /* budget of one poll, per lane and direction */
    uint32_t posts_per_lane_max; /* queue length; power of two */
    uint32_t tcp_engine;         /* enum kvf_tcp_engine_kind */
};

struct kvf_lane_open {
    uint32_t lane;
    uint32_t epoch;
    struct kvf_addr_shm addr; /* sink side: connect here ... */
    uint64_t session;         /* ... and say LANE_HELLO of this session */
    uint32_t lane_idx;
    int accepted_fd; /* source side: an accepted stream whose LANE_HELLO was read; -1: connect. The
                        transport owns the descriptor from here on, also on failure */
    uint32_t
        partner; /* local: `lane` is the sink's half and this the source's; one call opens both.
                         Others do not look at it */
    const struct kvf_lane_end
        *end; /* verbs: NULL as sink (join follows), else the sink's end */
};

struct kvf_transport_ops {
    const char *name; /* "tcp" */
    int (*open)(struct kvf_transport *t,
                const struct kvf_lane_open *open); /* 0 or -errno; up_fn later */
    /* verbs, sink: the peer's end is known; up_fn or lost_fn later. NULL for transports that connect in
     * open. 0, or -errno: a lane that is not waiting for this at this epoch. */
    int (*join)(struct kvf_transport *t, uint32_t lane, uint32_t epoch,
                const struct kvf_lane_end *end);
    bool (*can_post)(const struct kvf_transport *t, uint32_t lane);
    int (*post)(struct kvf_transport *t, uint32_t lane, const struct kvf_post *post);
    /* Lets go of the source pages of one grant, now (KVF_ACT_DETACH). Its DATA posts complete -ECANCELED
     * before this returns, and nothing of them is sent any more but the rest of a started frame, from
     * filler. Markers stay, so that the lane still gets its one: an END not yet started leaves as DRAIN
     * and then completes -ECANCELED. A DATA post whose memory faults (-EFAULT) does the same to what is
     * queued behind it for its grant. From within a callback of another lane, posts that are wholly sent and
     * not yet told complete 0 afterwards: nothing names their pages any more either.
     * verbs: what a device was given, wholly or in part, cannot be called back. Such posts go on and complete
     * as they would have; the others do as above. (The core detaches for checked placement only.) */
    void (*detach)(struct kvf_transport *t, uint32_t lane, uint64_t cookie);
    /* Moves bytes, both directions, within the budget. Returns how much was moved (bytes), 0 if idle. */
    uint64_t (*poll)(struct kvf_transport *t);
    void (*fence)(struct kvf_transport *t, uint32_t lane, uint32_t epoch);
    void (*close)(struct kvf_transport *t);
};

/* tcp. epoll_fd: the worker's; the transport adds its streams with data.u64 = KVF_EPOLL_LANE | lane and is
 * told of readiness through kvf_tcp_ready. An engine that the host refuses is no error of create: plain
 * sockets are used instead, kvf_tcp_engine_refusal says why, and what to think of it is the caller's. */
#define KVF_EPOLL_LANE (UINT64_C(1) << 32)
extern const struct kvf_transport_ops kvf_tcp_ops;
int kvf_tcp_create(const struct kvf_transport_config *config,
                   const struct kvf_transport_host *host, int epoll_fd,
                   struct kvf_transport **ret_transport);
void kvf_tcp_ready(struct kvf_transport *t, uint32_t lane, uint32_t epoll_events);
/* Whether poll has something to do without a further event: do not sleep then. True after open and post,
 * and while budgets are spent. */
bool kvf_tcp_has_work(const struct kvf_transport *t);
/* "uring" or "sockets": what makes the calls now. */
const char *kvf_tcp_engine_name(const struct kvf_transport *t);
/* 0, or the negative errno for which io_uring is not used though the configuration wants it. */
int kvf_tcp_engine_refusal(const struct kvf_transport *t);
/* Receives and sends made so far, and how many system calls that were. */
void kvf_tcp_engine_counts(const struct kvf_transport *t, uint64_t *ret_calls,
                           uint64_t *ret_enters);

/* local: both ends of a lane are in this process, and poll copies from pages to pages. Needs
 * kvf_guard_install. -EINVAL (a limit that is 0, a queue length that is no power of two, a rate without
 * now_fn), -ENOMEM. */
extern const struct kvf_transport_ops kvf_local_ops;
int kvf_local_create(const struct kvf_transport_config *config,
                     const struct kvf_transport_host *host,
                     struct kvf_transport **ret_transport);
/* When poll has something to do: 0 now, KVF_NO_TIME not before the next open, post or fence, else the time
 * at which a paced lane may go on. Do not sleep beyond it. */
uint64_t kvf_local_due_ns(const struct kvf_transport *t);

/* verbs: lanes are queue pairs (RC), one end here and one at the peer, over the devices ("rails") named at
 * create; lane i of a peer uses rail i modulo the number of those that can be used, first those that worked at
 * create. libibverbs is loaded then, so a daemon that uses no
 * verbs needs none. The sink's bytes are placed by its device: place_fn and placed_fn are never called, which is
 * what the `posted` placement means. END is a zero-length RDMA write with the handle as immediate, DRAIN a
 * zero-length send with it. Queue pairs are made, changed and destroyed on threads of their own: fence
 * answers with fenced_fn from a later poll. */
#define KVF_RAILS_MAX KVF_WIRE_KEYS_MAX
#define KVF_VERBS_FDS_MAX (8u + 2u * KVF_RAILS_MAX)
struct kvf_verbs_config {
    char rails[KVF_RAILS_MAX][32]; /* device names */
    uint32_t rail_count;           /* 1 .. KVF_RAILS_MAX */
    uint32_t port;                 /* 1 */
    uint8_t gid[16]; /* all zero: the device's first RoCE v2 address, IPv4 before IPv6 */
    uint32_t receives_per_lane; /* markers that may be under way: the sink's credits */
    uint32_t mtu_bytes;         /* 256 .. 4096; 0: the port's */
    uint8_t traffic_class;
    uint8_t service_level; /* 0 .. 7 */
    uint8_t timeout;       /* 4.096 us << timeout, 1 .. 31 */
    uint8_t retry;         /* 0 .. 6: 7 means for ever on some devices */
    uint64_t stall_ns;     /* posts without any completion for so long: the lane is lost */
    uint64_t reap_ns;      /* a fence waits so long for completions before it destroys */
};
struct kvf_verbs_lib; /* the library's functions: kvf_verbs_lib_load, or a test's own */
extern const struct kvf_transport_ops kvf_verbs_ops;
/* Opens the devices. lib NULL: libibverbs.so.1. now_fn is needed. One whose port is down, or has no address, is
 * waited for; one that can never be used is left out; rail_fn says so of each. Only if none is left is that an error.
 * -errno with a sentence in ret_error: -ENOENT (no library, or no such device or port), -EOPNOTSUPP (neither
 * InfiniBand nor RoCE), -EINVAL (a value out of range), -ENOMEM. */
int kvf_verbs_create(const struct kvf_transport_config *config,
                     const struct kvf_verbs_config *verbs,
                     const struct kvf_transport_host *host, const struct kvf_verbs_lib *lib,
                     struct kvf_transport **ret_transport, char *ret_error, size_t error_cap);
/* Descriptors that the worker watches, and what it calls when one is readable (any thread's epoll, loop only).
 * Returns how many; cap at least KVF_VERBS_FDS_MAX. */
uint32_t kvf_verbs_fds(const struct kvf_transport *t, int *ret_fds, uint32_t cap);
void kvf_verbs_ready(struct kvf_transport *t);
/* Before the loop sleeps: asks the devices for a wake-up, then polls once more. True: nothing came meanwhile,
 * sleeping is right. */
bool kvf_verbs_may_sleep(struct kvf_transport *t);
/* When poll has something to do without an event: a stalled lane, a fence that waited. KVF_NO_TIME: never. */
uint64_t kvf_verbs_due_ns(const struct kvf_transport *t);

/* What a log or the stats may want to know. Counted since create. Loop. */
struct kvf_verbs_counts {
    uint64_t queue_pairs_made;
    uint64_t queue_pairs_destroyed;
    uint64_t posted; /* work requests and receives of queue pairs that are destroyed ... */
    uint64_t reaped; /* ... and their completions: the rest is written off */
    uint64_t fences_failed;     /* the device refused to destroy: such a fence never answers */
    uint64_t written_off;       /* work requests whose completion never came, at a destroy */
    uint64_t receives_dropped;  /* markers that came for a lane that is lost or being fenced */
    uint64_t completions_stray; /* of no lane's work request: a device's fault */
    uint64_t events_other;      /* async events that ask for nothing */
    uint64_t queues_broken;     /* completion queues that the device gave up */
    uint64_t numbers_avoided; /* queue pairs made again because their number was used lately */
    uint64_t rails_up;        /* now: devices that work, as far as is known */
};
void kvf_verbs_counts(const struct kvf_transport *t, struct kvf_verbs_counts *ret_counts);

/* Registers [base, base + bytes) with every rail, for reading by ours and writing by peers. dmabuf_fd: a
 * device's memory instead, with `base` as the address peers name it by; -1: host memory mapped at base. Helper
 * thread; the queue pairs' thread is another one. -errno of the device (-EOPNOTSUPP: it takes no dma-buf); nothing
 * stays registered then, unless ret_memory was set: another device had it and does not let go, and it must be
 * unregistered as any other. The mapping must outlive the registration. */
int kvf_verbs_register(struct kvf_transport *t, void *base, uint64_t bytes, int dmabuf_fd,
                       uint64_t dmabuf_off, struct kvf_verbs_memory **ret_memory);
/* 0: no device reaches that memory any more. Else -errno: it still may, the memory stays as it is, and
 * unmapping it proves nothing; to be tried again, which asks only the devices that refused. Helper thread, before
 * close. */
int kvf_verbs_unregister(struct kvf_transport *t, struct kvf_verbs_memory *memory);
/* The visibility step of memory that the host does not own: reads its last byte through every rail that a lane
 * with its index in `lanes` uses, on a queue pair of the rail to itself. When the reads are back, what those
 * rails wrote to that memory before is there. KVF_FLUSH_ALL_RAILS: through every device that was named, since an
 * earlier worker may have used any; -ENODEV if one of them is not there. 0: flushed_fn follows from a later poll, once,
 * with 0 or -errno. -errno: it never does. The memory must stay registered until then. Loop thread. */
int kvf_verbs_flush(const struct kvf_verbs_memory *memory, uint32_t lanes, uint64_t cookie);
/* Memory of a device is registered: makes what its flushes need, while the links are up. Loop thread. */
void kvf_verbs_expect_flushes(struct kvf_transport *t);
/* What peers need: the address of its first byte, and a key per rail. Any thread. */
void kvf_verbs_keys(const struct kvf_verbs_memory *memory, uint64_t *ret_base,
                    uint32_t ret_keys[KVF_RAILS_MAX], uint32_t *ret_key_count);

#endif

/* Shared by worker.c (start and loop), worker_core.c (the core's actions and the transport's events),
 * worker_link.c (the supervisor), worker_operator.c and worker_stats.c. */
#ifndef KVF_SIDECAR_WORKER_INTERNAL_H
#define KVF_SIDECAR_WORKER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/stats.h"
#include "sidecar/clients.h"
#include "sidecar/control.h"
#include "sidecar/core/core.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/helper.h"
#include "sidecar/link.h"
#include "sidecar/regions.h"
#include "sidecar/transport/transport.h"

#define KVF_WORKER_PEERS_MAX 64u
#define KVF_WORKER_LANES_MAX (KVF_WORKER_PEERS_MAX * KVF_LANES_MAX)
#define KVF_WORKER_CLIENTS_MAX 64u
/* Answers that may wait for a supervisor that does not read: one per client, region, group and shutdown. */
#define KVF_WORKER_OUT_MAX                                                                     \
    (KVF_WORKER_CLIENTS_MAX *                                                                  \
         (KVF_REGIONS_PER_CLIENT_MAX * 2u + KVF_GROUPS_PER_CLIENT_MAX + 5u) +                  \
     8u)

enum stop_phase {
    STOP_NOT = 0,
    STOP_GRACE, /* waiting rooms are closed, the others go on */
    STOP_ALL,   /* all are closed */
    STOP_TOLD,  /* the supervisor knows; it ends us */
};

/* Rows of the stats file: what was written last, and the rooms of the next ones as far as they are found. */
struct kvf_worker_rows {
    struct kvf_stats_rows_shm image;
    struct kvf_stats_room_shm next[KVF_STATS_ROOMS_MAX];
    uint32_t found;
    uint32_t client; /* where the search goes on */
    uint32_t slot;
};

/* What moves the bytes of a lane. */
enum worker_way { WAY_TCP = 0, WAY_LOCAL, WAY_VERBS, WAYS };

struct kvf_worker {
    struct kvf_config config;
    struct kvf_rails rails; /* of transport verbs */
    uint64_t epoch;
    uint64_t past_epoch; /* of the worker before this one, 0: none; and when it was reaped */
    uint64_t past_ended_ns;
    struct kvf_covered covered; /* supervisors whose devices are all among our rails */
    uint64_t now_ns;            /* of this turn */
    uint64_t loop_count;
    int epoll_fd;
    int link_fd;

    struct kvf_core *core;
    struct {
        const struct kvf_transport_ops *ops;
        struct kvf_transport *t; /* NULL: not in use */
    } ways[WAYS];
    uint8_t
        lane_ways[KVF_WORKER_LANES_MAX]; /* of the last open; a lane never opened is tcp's */
    struct kvf_control *control;
    struct kvf_helper *helper;
    uint64_t helper_seq;       /* the job that its others wait for, ... */
    uint64_t helper_still_ns;  /* ... for so long, */
    uint64_t helper_looked_ns; /* as of then */
    bool is_helper_stuck;      /* the supervisor was told */
    struct kvf_clients *clients;
    struct kvf_regions *regions;
    bool is_leaving[KVF_WORKER_CLIENTS_MAX]; /* quiet; its regions are being unmapped */

    uint32_t post_lanes[KVF_WORKER_LANES_MAX]; /* lanes that may have something to post */
    bool is_post_lane[KVF_WORKER_LANES_MAX];
    uint32_t post_lane_count;
    uint32_t lane_epochs[KVF_WORKER_LANES_MAX]; /* of the streams that are up */
    uint64_t placed_bytes;                      /* since the last refresh of the room lines */
    uint64_t local_bytes;                       /* copied from region to region */
    bool is_busy;                               /* the last turn had something to do */
    uint64_t look_ns;                           /* while awake, epoll is not asked before */
    uint64_t socket_ns; /* when a socket was last heard of, or given something to do */

    struct kvf_link_operated answer; /* to an operator, sent once `out` is empty ... */
    size_t answer_bytes;             /* ... 0: none is owed */
    struct kvf_link_msg out[KVF_WORKER_OUT_MAX]; /* ring of answers not yet sent */
    uint32_t out_first;
    uint32_t out_count;

    enum stop_phase stop;
    uint64_t stop_deadline_ns;
    uint64_t stop_tell_ns; /* no room is left: until then other ranks are told; 0: not yet */
    uint32_t stop_ended;   /* rooms that the end of the grace period closed */

    struct kvf_stats_shm *stats;
    uint64_t base[KVF_VALUES]; /* counters of earlier workers */
    uint64_t stats_ns;         /* last copy */
    bool is_stats_due;         /* something happened since */
    struct kvf_worker_rows rows;
    uint64_t window_ns; /* start of the window in which time off the processor is looked for */
    uint64_t window_cpu_ns;
    uint64_t window_blocked_ns;
    uint64_t off_cpu_max_ns;
    uint64_t mask_ns; /* last look at the allowed processors */
    int cpu;          /* pinned here, or negative */
    int cpus_allowed;
    bool is_numa_bound;
    bool has_no_pwait2;
    bool is_uring; /* tcp's engine as last said */
};

/* worker_verbs.c: all of these do nothing where the transport is another one */
/* As rail_fn of struct kvf_transport_host: a line of log. */
void kvf_worker_verbs_rail(void *ctx, const char *device, int err, bool is_final,
                           const char *why);
int kvf_worker_verbs_create(struct kvf_worker *w, const struct kvf_transport_config *config,
                            const struct kvf_transport_host *host);
/* Fills *ret_device and returns it; NULL: no devices. */
const struct kvf_regions_device *kvf_worker_device(struct kvf_worker *w,
                                                   struct kvf_regions_device *ret_device);
/* False: something came while the devices were asked to wake us. */
bool kvf_worker_verbs_may_sleep(struct kvf_worker *w);
void kvf_worker_verbs_stats(struct kvf_worker *w, struct kvf_stats_shm *shm);

/* worker_core.c */
int kvf_worker_transport_create(struct kvf_worker *w);
/* What its ready line names. */
enum kvf_link_engine kvf_worker_engine(const struct kvf_worker *w);
/* Says which engine tcp has and why. -errno: not the one that was asked for by name. */
int kvf_worker_engine_check(struct kvf_worker *w);
bool kvf_worker_uses_uring(const struct kvf_worker *w);
/* One turn of every transport in use. Bytes moved. */
uint64_t kvf_worker_transport_poll(struct kvf_worker *w);
int kvf_worker_control_create(struct kvf_worker *w);
/* Does what the core wants until it wants nothing; returns how many actions that were. */
uint32_t kvf_worker_actions(struct kvf_worker *w);
/* Hands the transport what may be posted; returns how many posts. */
uint32_t kvf_worker_posts(struct kvf_worker *w);
/* Lets go of a client that has become quiet. */
void kvf_worker_check_quiet(struct kvf_worker *w, uint32_t client);

/* worker_link.c */
int kvf_worker_tables_create(struct kvf_worker *w);
void kvf_worker_tell(struct kvf_worker *w, uint32_t op, uint32_t client, uint32_t region,
                     uint32_t code, uint64_t value);
/* Reads the supervisor's messages; ends the process if it has hung up. */
void kvf_worker_link_ready(struct kvf_worker *w);
void kvf_worker_link_flush(struct kvf_worker *w);
void kvf_worker_helper_ready(struct kvf_worker *w);
/* The helper's own watchdog: a call on some client's memory that does not return holds up all the others. */
void kvf_worker_helper_watch(struct kvf_worker *w);
void kvf_worker_stop_turn(struct kvf_worker *w);

/* worker_operator.c */
void kvf_worker_set_draining(struct kvf_worker *w, bool is_draining);
void kvf_worker_hold_peer(struct kvf_worker *w, const struct kvf_link_hold *hold);
void kvf_worker_operate(struct kvf_worker *w, const struct kvf_link_operate *ask);

/* worker_stats.c */
void kvf_worker_stats_start(struct kvf_worker *w, uint32_t worker_starts);
void kvf_worker_stats_copy(struct kvf_worker *w);
/* Adds to a counter what happened outside this worker. */
void kvf_worker_stats_count(struct kvf_worker *w, uint32_t value, uint64_t n);
void kvf_worker_stats_loop(struct kvf_worker *w, uint64_t turn_ns);

/* worker_rows.c */
void kvf_worker_stats_rows(struct kvf_worker *w);

#endif

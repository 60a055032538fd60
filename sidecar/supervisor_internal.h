/* Shared by supervisor.c (start, signals, timers), supervisor_worker.c (the worker's life and what it is
 * owed), supervisor_clients.c (attach, detach, death of engines), supervisor_regions.c,
 * supervisor_groups.c and supervisor_operator.c. */
#ifndef KVF_SIDECAR_SUPERVISOR_INTERNAL_H
#define KVF_SIDECAR_SUPERVISOR_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ring/attach.h"
#include "ring/segment.h"
#include "ring/stats.h"
#include "sidecar/host/config.h"
#include "sidecar/host/notify.h"
#include "sidecar/link.h"
#include "sidecar/run_dir.h"
#include "sidecar/supervisor.h"

#define KVF_HALF_OPEN_MAX 16u
#define KVF_HALF_OPEN_MS 2000u
#define KVF_PACKETS_PER_EVENT 8u
#define KVF_DEPARTED_MAX 64u
#define KVF_OPERATORS_MAX 4u /* at a time, of different users */

/* What of a client or region the worker was told, and what it answered. A new worker starts at NOT. REFUSED:
 * this worker could not take what an earlier one had. It is kept, and the next worker is asked. */
enum told { TOLD_NOT = 0, TOLD_SENT, TOLD_ANSWERED, TOLD_REFUSED };

struct sup_region {
    uint32_t handle;
    int memory_fd;   /* ours while registered */
    int ledger_fd;   /* ours; the client has a duplicate */
    bool is_growing; /* its ledger is being made, step by step; the worker is told after that */
    uint64_t ledger_off; /* so far */
    uint64_t dev;        /* the memory object and the range in it that is registered */
    uint64_t ino;
    uint64_t memory_off;
    uint64_t memory_bytes;
    uint64_t page_count;
    uint32_t plane_count;
    uint32_t memory; /* enum kvf_region_memory */
    enum told add;
    enum told remove;
    bool
        is_serving; /* the client was told of it: the next worker must take it before it opens */
    bool is_removing; /* asked for */
    struct kvf_link_plane planes[];
};

struct sup_group {
    uint32_t rank;
    uint32_t member_count;
    uint64_t group_id;
    enum told add;
    bool is_serving; /* the client was told of it */
    struct kvf_addr_shm members[];
};

/* A rank whose client left with all its rooms drained: its group is told that it opens nothing more. */
struct sup_departed {
    uint64_t group_id; /* 0: unused */
    uint32_t rank;
    enum told told;
};

struct sup_client {
    bool is_used;
    uint32_t idx;
    char name[64];
    struct kvf_segment segment;
    int segment_fd; /* ours, like all below */
    int doorbell_fd;
    int event_fd;        /* the worker's end; kept for the next one */
    int client_event_fd; /* the client's end, until it is handed over */
    int socket_fd;       /* -1 once hung up */
    int engine_fd;       /* pidfd of the engine; -1: unknown or ended */
    int engine_pid;      /* for logs only */
    bool is_closing;     /* hung up, detaching, dropped or reaped */
    uint32_t close_code;
    bool is_reaped;
    bool is_stuck;  /* a call on its memory did not return: no other worker makes it */
    bool owes_note; /* a new worker serves and the socket would not take the notice yet */
    bool is_open;   /* this worker's epoch is in its segment */
    enum told add;
    enum told close;
    enum told reaped;
    uint16_t
        pending_op; /* request that waits for the worker, 0: none; nothing is read meanwhile */
    uint32_t pending_serial;
    uint32_t pending_region;
    uint32_t region_epoch;
    /* A registration that waits for memory whose engine is gone: answered when that is let go, or when the
     * deadline has passed. */
    struct sup_region *parked;
    uint64_t parked_until_ns;
    struct sup_region *regions[KVF_REGIONS_PER_CLIENT_MAX];
    struct sup_group *groups[KVF_GROUPS_PER_CLIENT_MAX]; /* handle - 1 */
    uint32_t skip_group;                                 /* a skip that waits for the worker */
    uint64_t skip_key;
    enum told skip;
};

/* A peer that an operator took down, or that the worker still must be told to let up. */
struct sup_hold {
    bool is_used;
    bool is_down;
    enum told told;
    uint64_t peer_id; /* 0: addr */
    struct kvf_addr_shm addr;
};

struct sup_operator {
    int fd; /* ours; -1: free */
    uint32_t uid;
    int32_t pid;    /* for logs only */
    bool is_asking; /* its request waits for the worker; nothing is read meanwhile */
    bool is_sent;   /* ... and is with the worker, as number `ask` */
    uint64_t ask;
    uint64_t deadline_ns; /* for its next request, or for the worker's answer */
    struct kvf_operate_req req;
};

struct half_open { /* connected, ATTACH not read yet */
    int fd;        /* ours; -1: free */
    uint64_t deadline_ns;
};

enum worker_state {
    WORKER_NONE = 0, /* none; the next one starts at start_at_ns */
    WORKER_STARTING, /* READY is awaited */
    WORKER_SERVING,
    WORKER_KILLED,  /* its end is awaited, the next one follows */
    WORKER_LEAVING, /* it has stopped; its end is awaited */
};

enum sup_epoll {
    SUP_EPOLL_LISTENER = 1,
    SUP_EPOLL_SIGNAL,
    SUP_EPOLL_HALF_OPEN, /* idx */
    SUP_EPOLL_CLIENT,    /* idx */
    SUP_EPOLL_ENGINE,    /* idx */
    SUP_EPOLL_OPERATOR,  /* idx */
    SUP_EPOLL_LINK,
    SUP_EPOLL_WORKER,
};

/* What rooms that a worker's end, or a re-attach, drained add to the stats. */
enum sup_count {
    SUP_COUNT_SUCCEEDED,
    SUP_COUNT_FAILED,
    SUP_COUNT_WORKER_GONE,
    SUP_COUNT_ENGINE_GONE,
    SUP_COUNTS,
};

struct kvf_supervisor {
    struct kvf_config config;
    struct kvf_run_dir dir;
    uint64_t supervisor_id;
    uint64_t now_ns;
    struct kvf_notify notify; /* the service manager, if there is one */
    int epoll_fd;
    int signal_fd;
    int stats_fd;                /* writable, for workers */
    int stats_read_fd;           /* read-only, for clients */
    struct kvf_stats_shm *stats; /* ours to write while there is no worker, else the worker's */
    uint64_t uncounted[SUP_COUNTS]; /* not in the stats yet */
    int cpu; /* where workers are pinned, and below, what they use: one choice for all of them */
    struct kvf_rails rails; /* none without transport verbs */
    struct kvf_covered
        covered; /* supervisors, this one too, whose rails are all among ours; likewise */
    uint64_t
        past_epoch; /* of the last worker that ended, 0: none did; and when it was reaped */
    uint64_t past_ended_ns;
    int exit_status; /* -1 while running */

    enum worker_state worker;
    pid_t worker_pid;
    int worker_fd; /* pidfd; ours until reaped */
    int link_fd;
    uint32_t worker_starts;
    uint64_t epoch;
    bool was_ready; /* some worker has served: the port is fixed from then on */
    bool is_told;   /* the ready line is out */
    uint64_t started_ns;
    uint64_t start_at_ns;
    uint64_t start_deadline_ns;
    uint64_t kill_deadline_ns;
    uint32_t quick_deaths;
    uint64_t beat_seen; /* watchdog */
    uint64_t beat_looked_ns;
    uint64_t beat_still_ns;

    bool is_stopping;
    bool is_hurried; /* second signal: no grace */
    enum told stop;  /* SHUTDOWN to this worker */
    enum told hurry;
    enum told groups_whole;
    uint64_t stop_ns;
    uint32_t fenced_rooms;
    uint32_t reaped_rooms; /* ended by the last worker's end */

    uint64_t parked_look_ns; /* next look at registrations that wait */
    bool is_memory_free;     /* some registration has gone since */
    bool has_growing;        /* some ledger is being made */
    uint32_t departed_next;
    struct sup_departed departed[KVF_DEPARTED_MAX]; /* the oldest is overwritten */

    bool is_draining; /* by an operator's word */
    enum told drain;  /* DRAIN to this worker */
    enum told level;  /* LOG_LEVEL, if it was changed after the worker's start */
    bool is_worker_asked;
    uint64_t asks;
    struct sup_hold holds[KVF_PEERS_DOWN_MAX];
    struct sup_operator operators[KVF_OPERATORS_MAX];

    uint64_t accept_again_ns; /* 0: the listener is watched */
    struct half_open half_open[KVF_HALF_OPEN_MAX];
    struct sup_client *clients; /* config.clients of them */
};

/* supervisor.c */
int kvf_sup_watch(struct kvf_supervisor *s, int fd, uint32_t events, enum sup_epoll kind,
                  uint32_t idx);
void kvf_sup_rewatch(struct kvf_supervisor *s, int fd, uint32_t events, enum sup_epoll kind,
                     uint32_t idx);
void kvf_sup_set_name(char *ret_name, const char *wire_name); /* printable, terminated */

/* supervisor_worker.c */
int kvf_sup_start_worker(struct kvf_supervisor *s);
void kvf_sup_worker_ended(struct kvf_supervisor *s);
void kvf_sup_kill_worker(struct kvf_supervisor *s, const char *why);
void kvf_sup_watchdog(struct kvf_supervisor *s);
/* Sends the worker what it is owed, as far as its socket takes it. Call after any change. */
void kvf_sup_sync(struct kvf_supervisor *s);
void kvf_sup_link_ready(struct kvf_supervisor *s);
/* Rooms whose worker was reaped: publishes what its end proves, and counts it. */
void kvf_sup_reap_rooms(struct kvf_supervisor *s, struct sup_client *c);

/* supervisor_clients.c */
void kvf_sup_accept(struct kvf_supervisor *s);
void kvf_sup_half_open_ready(struct kvf_supervisor *s, uint32_t idx);
void kvf_sup_half_open_expire(struct kvf_supervisor *s);
void kvf_sup_client_ready(struct kvf_supervisor *s, uint32_t idx, uint32_t events);
void kvf_sup_engine_ended(struct kvf_supervisor *s, uint32_t idx);
void kvf_sup_client_close(struct kvf_supervisor *s, struct sup_client *c, uint32_t code);
void kvf_sup_client_hang_up(struct kvf_supervisor *s, struct sup_client *c);
/* Opens the worker's epoch to a client whose segment and regions it has taken. */
void kvf_sup_client_open(struct kvf_supervisor *s, struct sup_client *c);
void kvf_sup_client_note(struct kvf_supervisor *s, struct sup_client *c);
/* The worker's answers. */
void kvf_sup_client_added(struct kvf_supervisor *s, struct sup_client *c, uint32_t code);
void kvf_sup_client_quiet(struct kvf_supervisor *s, struct sup_client *c);
void kvf_sup_client_bad(struct kvf_supervisor *s, struct sup_client *c, uint32_t code);

/* One reply to the pending or the given request. text NULL: the code's own sentence. */
void kvf_sup_reply(struct kvf_supervisor *s, struct sup_client *c,
                   const struct kvf_attach_rep *rep, const int *fds, int fd_count);
void kvf_sup_refuse(struct kvf_supervisor *s, struct sup_client *c, uint32_t serial,
                    uint32_t code, uint64_t lender, const char *text);

bool kvf_sup_has_hung_up(int socket_fd);
/* To a connection that attached nothing. 0 or -errno. */
int kvf_sup_send_refusal(int fd, uint32_t serial, uint32_t code, const char *text);

/* supervisor_operator.c */
/* The first request of a connection: 0, and it is ours; or why it is refused. */
uint32_t kvf_sup_operator_first(struct kvf_supervisor *s, int fd,
                                const struct kvf_operate_req *req, size_t bytes,
                                const char **ret_text);
void kvf_sup_operator_ready(struct kvf_supervisor *s, uint32_t idx, uint32_t events);
void kvf_sup_operators_expire(struct kvf_supervisor *s);
uint64_t kvf_sup_operators_deadline(const struct kvf_supervisor *s);
void kvf_sup_operated(struct kvf_supervisor *s, struct kvf_link_operated *msg);
/* What the worker is owed, before it hears of clients; then the question of one operator. False: its socket
 * takes no more. */
bool kvf_sup_operators_sync(struct kvf_supervisor *s);
bool kvf_sup_operators_ask(struct kvf_supervisor *s);
void kvf_sup_operators_worker_ended(struct kvf_supervisor *s);
/* Says in every segment whether opens are refused now. */
void kvf_sup_show_stopping(struct kvf_supervisor *s);

/* supervisor_regions.c: requests; a positive return is a code to refuse with, its sentence in ret_text */
uint32_t kvf_sup_region_add(struct kvf_supervisor *s, struct sup_client *c,
                            const struct kvf_region_req *req, size_t bytes, int *fds,
                            int fd_count, uint64_t *ret_lender, const char **ret_text);
uint32_t kvf_sup_region_remove(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                               const char **ret_text);
void kvf_sup_region_added(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                          uint32_t code);
void kvf_sup_region_removed(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                            uint32_t code);
void kvf_sup_region_free(struct kvf_supervisor *s, struct sup_client *c, uint32_t slot);
/* Registrations that wait: is it their turn, or is their time over? */
void kvf_sup_regions_look(struct kvf_supervisor *s);
uint64_t kvf_sup_regions_deadline(const struct kvf_supervisor *s);
void kvf_sup_region_unpark(struct sup_client *c); /* who waited has gone */
struct sup_region *kvf_sup_region_find(struct sup_client *c, uint32_t handle);

/* supervisor_groups.c: likewise */
uint32_t kvf_sup_group_add(struct kvf_supervisor *s, struct sup_client *c,
                           const struct kvf_group_req *req, size_t bytes,
                           const char **ret_text);
uint32_t kvf_sup_group_skip(struct sup_client *c, const struct kvf_group_skip_req *req,
                            size_t bytes, const char **ret_text);
void kvf_sup_group_added(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                         uint32_t code);
void kvf_sup_group_skipped(struct kvf_supervisor *s, struct sup_client *c, uint32_t code);
/* Sends what the worker is owed of this client's groups; false: its socket takes no more. */
bool kvf_sup_groups_sync(struct kvf_supervisor *s, struct sup_client *c);
bool kvf_sup_groups_departed_sync(struct kvf_supervisor *s);
/* The next worker is told everything again. */
void kvf_sup_groups_forget_told(struct sup_client *c);
void kvf_sup_departed_forget_told(struct kvf_supervisor *s);
/* Every group this client knows of is with the worker; and: was at least sent to it. */
bool kvf_sup_groups_are_served(const struct sup_client *c);
bool kvf_sup_groups_are_sent(const struct sup_client *c);
/* The client is quiet: its ranks have departed. */
void kvf_sup_groups_depart(struct kvf_supervisor *s, struct sup_client *c);
void kvf_sup_groups_free(struct sup_client *c);

#endif

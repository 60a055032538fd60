/* The worker's side of client segments: commands in, room lines and events out.
 *
 * Bytes of a segment are the world's. A command is copied out of the ring, its record out of the arena,
 * once; the copy is checked; the copy is acted on. Bytes that no library writes end that client: its
 * rooms close with KVF_E_CLIENT_DROPPED, it is counted and logged, and nobody else notices. */
#ifndef KVF_SIDECAR_CLIENTS_H
#define KVF_SIDECAR_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/segment.h"
#include "ring/stats.h"
#include "sidecar/core/core.h"
#include "sidecar/host/helper.h"

#define KVF_CLIENT_TURN_COMMANDS 64u                /* per client and turn */
#define KVF_CLIENT_TURN_NS UINT64_C(2000000)        /* ... and so much time, per client */
#define KVF_CLIENT_TURN_BYTES (UINT64_C(256) << 10) /* ... or so much of page lists */
#define KVF_CLIENT_TURN_DIRTY 256u

struct kvf_clients;

struct kvf_clients_host {
    void *ctx;
    /* 0, or a positive code and the place is free again. */
    void (*added_fn)(void *ctx, uint32_t client, uint32_t code);
    void (*bad_fn)(void *ctx, uint32_t client, uint32_t code);
    void (*removed_fn)(void *ctx, uint32_t client); /* nothing of it is mapped any more */
};

struct kvf_clients_config {
    uint32_t clients_max;
    uint64_t worker_epoch;
    uint64_t past_epoch; /* of the worker before this one, 0: none; and when it was reaped */
    uint64_t past_ended_ns;
    const struct kvf_covered *covered; /* supervisors whose devices are all ours too */
    int epoll_fd;
    struct kvf_stats_shm *stats; /* histograms and proofs of rooms taken over */
};

/* 0 or -ENOMEM. */
int kvf_clients_create(const struct kvf_clients_config *config, struct kvf_core *core,
                       struct kvf_helper *helper, const struct kvf_clients_host *host,
                       struct kvf_clients **ret_clients);

/* Starts taking a segment over; the descriptors (segment, doorbell, event socket) become ours, also on
 * failure. added_fn follows after 0; -EEXIST, -ENOMEM. */
int kvf_clients_add(struct kvf_clients *clients, uint32_t client, const int fds[3]);
/* Its rooms close with `reason`; commands are read no more. */
void kvf_clients_close(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                       uint32_t reason);
/* No region of it comes any more but those of these slots: rooms of an earlier worker that would have to be
 * flushed in another one are in quarantine. */
void kvf_clients_regions_whole(struct kvf_clients *clients, uint32_t client, uint32_t slots);
void kvf_clients_reaped(struct kvf_clients *clients, uint64_t now_ns, uint32_t client);
/* The core is through with it: rooms drained, those taken over from an earlier worker too. */
bool kvf_clients_is_quiet(struct kvf_clients *clients, uint64_t now_ns, uint32_t client);
/* Lets go of a quiet client whose regions are gone; removed_fn follows. */
void kvf_clients_remove(struct kvf_clients *clients, uint32_t client);
/* The client's memory faulted, or something else of it cannot be served. */
void kvf_clients_fail(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                      uint32_t code, const char *why);

bool kvf_clients_job_back(struct kvf_clients *clients, uint64_t now_ns, struct kvf_job *job);
/* Whose job this is; KVF_NONE: none of ours. */
uint32_t kvf_clients_client_of(const struct kvf_clients *clients, const struct kvf_job *job);

/* Commands, aborts and returned leases of all clients, within their budgets. Returns how many things
 * were taken: 0 means that nothing waited. */
uint32_t kvf_clients_turn(struct kvf_clients *clients, uint64_t now_ns);
/* Refreshes the counts of bytes in the lines of open rooms, some rooms at a time: a hint. */
void kvf_clients_refresh(struct kvf_clients *clients);

/* The core's actions. */
void kvf_clients_publish(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                         uint32_t slot);
/* A key that other ranks ended stands in the client's segment for the next worker; group 0: no more. */
void kvf_clients_keep_key(struct kvf_clients *clients, uint32_t client, uint32_t idx,
                          uint32_t group, uint64_t key);
void kvf_clients_close_leases(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                              uint32_t slot, uint64_t generation);

/* Idle ladder. sleep: says in every segment that a doorbell is needed, then looks once more; true if
 * nothing waits and the loop may block. awake: takes it back. */
bool kvf_clients_sleep(struct kvf_clients *clients);
void kvf_clients_awake(struct kvf_clients *clients);
void kvf_clients_beat(struct kvf_clients *clients, uint64_t loop_count);

uint32_t kvf_clients_count(const struct kvf_clients *clients);
/* Commands wait in some ring: an operator who counts rooms counts again. */
bool kvf_clients_has_unread(const struct kvf_clients *clients);
/* Adds what was counted here and not by the core. ret_bad: clients dropped for bad bytes. */
void kvf_clients_count_into(const struct kvf_clients *clients, uint64_t counters[KVF_COUNTERS],
                            uint64_t *ret_bad);

#endif

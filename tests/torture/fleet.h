/* What the coordinator and its engines share: one memfd with the plan, the requests, the progress that
 * a router would pass on between engines, and the counts. The engines of a run are trusted (they are this
 * program); kvfence itself is not involved here. */
#ifndef KVF_TORTURE_FLEET_H
#define KVF_TORTURE_FLEET_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/torture/geometry.h"
#include "tests/torture/process.h"
#include "tests/torture/schedule.h"
#include "tests/torture/tally.h"

#define KVF_ENGINES_OF_KIND_MAX 8u
/* The daemon of all engines, if there is one alone. */
#define KVF_LOCAL_DAEMON "local"
#define KVF_ENGINES_MAX (2 * KVF_ENGINES_OF_KIND_MAX)
#define KVF_SAMPLES_MAX (UINT32_C(1) << 22)

enum kvf_release_mode {
    KVF_RELEASE_EARLY = 0,
    KVF_RELEASE_TIMER,
    KVF_RELEASE_DRAINED,
    KVF_RELEASE_LEDGER,
    KVF_RELEASE_FORGETFUL,
    KVF_RELEASE_MODES
};

enum kvf_inject {
    KVF_INJECT_NOTHING = 0,
    KVF_INJECT_FLIP_BYTE,  /* prefill spoils one byte of a page it sends */
    KVF_INJECT_SKIP_PLANE, /* prefill leaves one plane of a page as the former tenant left it */
    KVF_INJECT_SWAP_PAGES, /* prefill sends two pages in each other's place */
    KVF_INJECT_DRAINED_AT_ONCE, /* decode takes the abort for the proof */
    KVF_INJECTS
};

/* Written by the coordinator before the engines start; plain values. */
struct kvf_fleet_plan {
    struct kvf_geometry geometry;
    uint64_t seed;
    uint64_t settle_ns;  /* how long a probe looks on after the proof */
    uint64_t resweep_ns; /* how often it looks before */
    uint32_t prefill_count;
    uint32_t decode_count;
    uint32_t request_count;
    uint32_t pages_max; /* of one request */
    uint32_t prefill_pages;
    uint32_t decode_pages;
    uint32_t seats;       /* requests that an engine serves at a time */
    uint32_t samples_max; /* of each decode engine */
    uint32_t release_mode;
    uint32_t timer_us;
    uint32_t inject;
    uint32_t has_planned_faults; /* the network fails on purpose */
    uint32_t is_local;           /* one daemon, called KVF_LOCAL_DAEMON */
    uint32_t is_verbs; /* nobody counts what devices place: engines look at their pages */
    char run_dir[96];
    char prefill_addr[KVF_ENGINES_OF_KIND_MAX][64];
};

/* One per request: what a router would carry between the two engines. */
struct kvf_progress_shm {
    _Atomic uint64_t
        placed_bytes; /* decode: how far the request is, while somebody wants to know */
    _Atomic uint64_t sink_abort_ns;   /* decode called kvf_abort */
    _Atomic uint64_t source_abort_ns; /* prefill called kvf_abort */
    _Atomic uint32_t ended;           /* KVF_ENDED_*; release: all counts of it are in */
    _Atomic uint32_t is_donor;
};
#define KVF_ENDED_SOURCE 1u
#define KVF_ENDED_SINK 2u

struct kvf_engine_shm {
    _Atomic uint64_t tallies[KVF_TALLY_COUNT];
    _Atomic uint64_t bound_usual_us;
    _Atomic uint64_t bound_worst_us;
    _Atomic uint64_t turns;
    _Atomic uint32_t sample_count;
    _Atomic uint32_t is_ready;
    char error[256]; /* a sentence, if the engine exits with another status than 0 */
    char note[256];  /* of the first room that failed although nobody aborted it */
};

/* From the abort to drained of one donor. */
struct kvf_sample_shm {
    uint32_t engine_us; /* kvf_abort called .. drained seen */
    uint32_t daemon_us; /* close .. drained, as the daemon measured */
};

struct kvf_fleet_shm {
    struct kvf_fleet_plan plan;
    _Atomic uint32_t admit_limit; /* requests below it may be begun */
    _Atomic uint32_t stop;        /* 1: no more will be admitted. 2: give up what is left */
    struct kvf_engine_shm prefill[KVF_ENGINES_OF_KIND_MAX];
    struct kvf_engine_shm decode[KVF_ENGINES_OF_KIND_MAX];
};

struct kvf_fleet {
    struct kvf_fleet_shm *shm;
    struct kvf_request *requests;
    struct kvf_progress_shm *progress;
    struct kvf_sample_shm *samples; /* decode d's begin at d * samples_max */
    size_t bytes;
    int fd; /* owned */
};

/* Makes the memory for a plan (copied into it). 0 or -errno. */
int kvf_fleet_create(const struct kvf_fleet_plan *plan, struct kvf_fleet *ret_fleet);
/* Maps it in an engine; takes the descriptor. */
int kvf_fleet_open(int fd, struct kvf_fleet *ret_fleet);
void kvf_fleet_close(struct kvf_fleet *fleet);

/* Sum over all engines. */
uint64_t kvf_fleet_sum(const struct kvf_fleet *fleet, enum kvf_tally tally);

#endif

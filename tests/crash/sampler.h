/* A thread of the engine that asks the ledger about every lent page each 100 us, and judges each "idle". */
#ifndef KVF_TESTS_CRASH_SAMPLER_H
#define KVF_TESTS_CRASH_SAMPLER_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/crash/crash.h"

#define SAMPLER_INTERVAL_NS 100000u
#define SAMPLER_ROOMS_MAX 16u
#define SAMPLER_INTERVALS_MAX 100000u

struct sampler_room {
    kvf_room room;
    int32_t first; /* its pages */
    uint32_t count;
    _Atomic bool
        is_leased; /* an external lease is out: not even the worker's end proves anything */
};

struct sampler {
    struct engine *engine;
    int pidfd; /* of the worker that serves the rooms */
    bool is_injected;
    struct sampler_room rooms[SAMPLER_ROOMS_MAX];
    uint32_t room_count;
    pthread_t thread;
    _Atomic uint64_t killed_ns; /* 0: not yet */
    _Atomic uint64_t reaped_ns; /* first sample that found the pidfd readable */
    _Atomic bool is_ending;
    /* The thread's; read after sampler_stop. */
    uint64_t samples_alive;  /* from the signal until the pidfd was readable */
    uint64_t samples_reaped; /* from there until every page was idle */
    uint64_t asked;          /* pages, in those samples */
    uint64_t early;          /* "idle" without proof */
    uint64_t
        edge; /* "idle" of a sample during which the pidfd became readable: cannot be judged */
    uint64_t idle;       /* pages found idle with proof */
    uint32_t early_room; /* of the first */
    int early_proof;
    uint64_t *intervals_ns; /* between samples from the signal until all was idle */
    uint32_t interval_count;
    bool is_real_time; /* it had a real-time priority */
};

/* Rooms and pidfd were set; the thread runs when this returns. */
void sampler_start(struct sampler *s);
void sampler_stop(struct sampler *s);

#endif

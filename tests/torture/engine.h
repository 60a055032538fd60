/* What both kinds of engine have: an attachment to the daemon beside it, one region of KV memory, a paged
 * allocator, and a place in the fleet. Everything goes through the public header of the library. */
#ifndef KVF_TORTURE_ENGINE_H
#define KVF_TORTURE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/kvfence.h"
#include "tests/torture/allocator.h"
#include "tests/torture/fleet.h"

#define KVF_REQUEST_NONE UINT32_MAX

/* Exit status of an engine that could not go on; its sentence stands in its part of the fleet. */
#define KVF_ENGINE_BROKEN 3

struct kvf_engine {
    struct kvf_fleet fleet;
    const struct kvf_fleet_plan *plan;
    struct kvf_engine_shm *shm;
    kvf_client *client;
    kvf_pool *pool;
    unsigned char *base; /* page memory */
    struct kvf_allocator allocator;
    uint32_t region;
    uint32_t index;
    uint32_t cursor; /* next request of the schedule to look at */
    bool is_prefill;
};

/* fleet_fd is taken. 0, or -1 with the sentence written. */
int kvf_engine_open(int fleet_fd, bool is_prefill, uint32_t index, struct kvf_engine *engine);
/* Counts what did not come back, detaches, frees. 0 or -1. */
int kvf_engine_close(struct kvf_engine *engine);
/* Writes the sentence (the first one stays) and returns -1. code: negative, of the library, or 0. */
int kvf_engine_fail(struct kvf_engine *engine, int code, const char *what);

/* The next request of this engine below the admission limit, or KVF_REQUEST_NONE. Stays the next until
 * kvf_engine_begin. */
uint32_t kvf_engine_next(struct kvf_engine *engine);
void kvf_engine_begin(struct kvf_engine *engine);
/* True once the coordinator stopped admission and this engine has begun all of its requests. */
bool kvf_engine_is_dry(struct kvf_engine *engine);
bool kvf_engine_must_give_up(const struct kvf_engine *engine);

void kvf_engine_tally(struct kvf_engine *engine, enum kvf_tally tally, uint64_t add);
unsigned char *kvf_engine_piece(const struct kvf_engine *engine, int32_t page, uint32_t plane);
/* Marks this engine's half of a request as ended: all counts of it are in. */
void kvf_engine_end(struct kvf_engine *engine, uint32_t request, uint32_t bit);

/* Takes the daemon's events (hints; the engine looks at its rooms anyway) and sleeps until the next one,
 * at most that long. 0, or -1 when the daemon is gone. */
int kvf_engine_sleep(struct kvf_engine *engine, uint64_t timeout_ns);

/* The two scheduler loops. Return an exit status. */
int kvf_prefill_main(int fleet_fd, uint32_t index);
int kvf_decode_main(int fleet_fd, uint32_t index);

#endif

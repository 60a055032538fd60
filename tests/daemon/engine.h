/* An engine of a test: one client, one pool, one region, and a pattern that knows where each byte belongs. */
#ifndef KVF_TESTS_DAEMON_ENGINE_H
#define KVF_TESTS_DAEMON_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvfence.h"
#include "tests/daemon/harness.h"

#define ENGINE_PLANES_MAX 256u

struct geometry {
    uint32_t plane_count;
    uint64_t page_bytes; /* of one plane */
    uint64_t stride;     /* 0: page_bytes */
    uint64_t page_count;
};

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define SIXTEEN_BY_FOUR                                                                        \
    {                                                                                          \
        .plane_count = 16, .page_bytes = 4096, .page_count = 1024                              \
    }

struct engine {
    struct daemon *daemon;
    kvf_client *client;
    kvf_pool *pool;
    uint32_t region;
    struct geometry geometry;
    uint64_t plane_off[ENGINE_PLANES_MAX];
    unsigned char *base;
    uint64_t page_bytes; /* over all planes */
    uint32_t rooms_max;
};

/* Attaches and registers. rooms_max 0: the library's default. */
struct engine *engine_start(struct daemon *d, const struct geometry *geometry,
                            uint32_t rooms_max);
kvf_client *client_attach(const struct daemon *d, uint32_t rooms_max);
uint32_t region_register(kvf_client *client, const kvf_pool *pool, const struct geometry *g);
uint64_t geometry_bytes(const struct geometry *g);
kvf_pool *pool_make(uint64_t bytes);

/* The account of an engine: every page idle, the region unregistered, nothing undrained at detach. */
void engine_stop(struct engine *e);
void engine_check_idle(struct engine *e);
/* Frees the handle only: for engines whose daemon is dead. */
void engine_drop(struct engine *e);

/* Opens; the page lists are [first, first + count) unless given. */
kvf_room engine_sink(struct engine *e, uint64_t key, int32_t first, uint32_t count,
                     const struct daemon *writer);
kvf_room engine_sink_pages(struct engine *e, uint64_t key, const int32_t *pages, size_t n,
                           const char *writer);
kvf_room engine_source(struct engine *e, uint64_t key);
/* A refused submit fails the case. */
void engine_submit(struct engine *e, kvf_room room, int32_t first, uint32_t count,
                   uint32_t start, bool is_last);
void engine_submit_pages(struct engine *e, kvf_room room, const int32_t *pages, size_t n,
                         uint32_t start, bool is_last);
/* Calls with every field as given; returns what the library says. */
int engine_try_sink(struct engine *e, uint64_t key, const int32_t *pages, size_t n,
                    const char *writer, kvf_room *ret_room);
int engine_try_submit(struct engine *e, kvf_room room, const int32_t *pages, size_t n,
                      uint32_t start, bool is_last);

/* Bytes that depend on seed, position in the list, plane and offset. */
void engine_fill(struct engine *e, uint64_t seed, const int32_t *pages, size_t n,
                 uint32_t position);
void engine_verify(struct engine *e, uint64_t seed, const int32_t *pages, size_t n,
                   uint32_t position);
void engine_set(struct engine *e, const int32_t *pages, size_t n, unsigned char byte);
/* The number of bytes of these pages that are not `byte`. */
uint64_t engine_count_other(struct engine *e, const int32_t *pages, size_t n,
                            unsigned char byte);
/* Writes first, first + 1, ... */
void pages_count_up(int32_t *ret_pages, size_t n, int32_t first);
void pages_shuffle(int32_t *pages, size_t n, uint64_t *state);

/* What a room is at its end. */
void room_expect(struct engine *e, kvf_room room, int state, uint32_t limit_ms);
void room_expect_reason(struct engine *e, kvf_room room, uint32_t reason, uint32_t limit_ms);
void room_expect_proof(struct engine *e, kvf_room room, int proof);
struct kvf_room_info room_info(struct engine *e, kvf_room room);
void room_wait_placed(struct engine *e, kvf_room room, uint64_t bytes, uint32_t limit_ms);
void room_wait_state(struct engine *e, kvf_room room, int state, uint32_t limit_ms);
void room_release(struct engine *e, kvf_room room);
/* Ends it if it has not ended, and releases it once drained. Returns the proof. */
int room_end(struct engine *e, kvf_room room, uint32_t limit_ms);

/* One whole transfer of [first, first + count) on both sides: fills, moves, checks, releases. */
void transfer_once(struct engine *source, struct engine *sink, uint64_t key, int32_t first,
                   uint32_t count);
uint64_t key_next(void); /* unique in this case */

/* Two engines that transfer all the time in a thread, with clients of their own, on the same daemons. They
 * must not notice anything. */
struct bystander;
struct bystander *bystander_start(struct daemon *source, struct daemon *sink);
/* Every room succeeded, at least `rooms_min` since the start. Returns how many, with the slowest in
 * ret_max_ns (may be NULL). */
uint64_t bystander_stop(struct bystander *b, uint64_t rooms_min, uint64_t *ret_max_ns);
uint64_t bystander_count(const struct bystander *b);

#endif

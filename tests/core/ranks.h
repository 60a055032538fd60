/* What the tests of groups begin with: daemons 0, 1 and 2 are the ranks of a request, each with a sink;
 * daemon 3 is the worker that fills all of them. */
#ifndef KVF_TESTS_CORE_RANKS_H
#define KVF_TESTS_CORE_RANKS_H

#include <criterion/criterion.h>

#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define RANKS 3u
#define WRITER 3u
#define GROUP 1u
#define ID UINT64_C(0x9a0e)
#define ALL 0x7u
#define MINUTE (UINT64_C(60000) * PAIR_MS)

static const uint32_t behind[] = {0, 1, 2};

struct request {
    uint64_t key;
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
};

static inline struct pair *ranks_new(uint8_t placement)
{
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 4, .placement = placement, .rooms = 32});
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_group_add(p, 0, GROUP, ID, rank, behind, RANKS), 0);
    }
    return p;
}

static inline uint64_t label_of(uint64_t key, uint32_t rank)
{
    return key << 8 | rank;
}

static inline struct pair_room *open_sink(struct pair *p, uint64_t key, uint32_t rank,
                                          uint32_t client, uint32_t daemon)
{
    uint32_t first = (uint32_t)(key % 16) * 8 + rank * 2 % 8;
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = first, .count = 2};
    return pair_open_sink(p, daemon,
                          &(struct pair_open){.client = client,
                                              .key = key,
                                              .label = label_of(key, rank),
                                              .group = GROUP,
                                              .writers = &writer,
                                              .writer_count = 1,
                                              .runs = &run,
                                              .run_count = 1});
}

static inline struct pair_room *open_source(struct pair *p, uint64_t key, uint32_t rank)
{
    return pair_open_source(
        p, WRITER,
        &(struct pair_open){.key = key, .label = label_of(key, rank), .sink_count = 1});
}

/* Opens the ranks of the mask; sources of all. */
static inline struct request open_request(struct pair *p, uint64_t key, uint32_t mask)
{
    struct request q = {.key = key};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        q.source[rank] = open_source(p, key, rank);
        if ((mask >> rank & 1u) != 0) {
            q.sink[rank] = open_sink(p, key, rank, 0, rank);
        }
    }
    return q;
}

static inline void submit(struct pair *p, struct request *q, uint32_t rank)
{
    (void)p;
    (void)pair_submit(q->source[rank], 0, 200 + rank * 2, 2, true);
}

/* Sources whose sink never came are of no interest to these tests. */
static inline void drop_sources(struct request *q)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (q->source[rank] != NULL && pair_phase(q->source[rank]) == KVF_PHASE_OPEN) {
            pair_abort(q->source[rank]);
        }
    }
}

static inline void expect_failed(const struct pair_room *r)
{
    cr_assert(pair_is_drained(r));
    cr_assert_eq(pair_outcome(r), KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_poll(r), KVF_STATE_FAILED);
    cr_assert(!pair_is_waiting(r));
}

static inline void expect_waiting(const struct pair_room *r, uint64_t ranks)
{
    struct kvf_core_room_view view;
    cr_assert(pair_is_drained(r));
    cr_assert_eq(pair_poll(r), KVF_STATE_TRANSFERRING);
    cr_assert(pair_is_waiting(r));
    kvf_core_room_view(r->pair->daemons[r->daemon].core, r->client, r->slot, &view);
    cr_assert_eq(view.group_waits, ranks);
}

static inline void finish(struct pair *p, struct request *q)
{
    drop_sources(q);
    pair_settle(p);
    pair_finish(p);
}

static inline uint64_t sent(const struct pair *p)
{
    uint64_t sum = 0;
    for (uint32_t d = 0; d < 4; d++) {
        sum += p->daemons[d].core != NULL ? pair_count(p, d, KVF_COUNT_GROUP_SENT) : 0;
    }
    return sum;
}

#endif

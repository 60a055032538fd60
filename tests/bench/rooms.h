/* Pairs of a source and a sink room that meet, as transfers and aborts use them. */
#ifndef KVF_BENCH_ROOMS_H
#define KVF_BENCH_ROOMS_H

#include <stdint.h>

#include "tests/bench/world.h"

#define KVF_ROOM_MS 60000u

struct kvf_room_pair {
    kvf_room rooms[KVF_ENDS]; /* 0: none */
    const int32_t *pages;
    uint32_t page_count;
    uint64_t begin_ns;    /* before the sink's open was called */
    uint64_t sink_end_ns; /* when the sink room was seen to have ended, if anyone noted it; 0 */
};

/* Page lists without two neighbours, so that every page is a piece of its own as in an allocator that has run for a
 * while: the even ones of [first, first + count), then the odd ones. */
void kvf_scatter(int32_t *ret_pages, uint32_t first, uint32_t count);

/* Opens the source room. 0, or an exit status after a sentence. */
int kvf_pair_open_source(struct kvf_world *world, struct kvf_room_pair *pair, uint64_t key);
/* All its pages in one last piece. */
int kvf_pair_submit(struct kvf_world *world, struct kvf_room_pair *pair);
/* Opens the sink room and notes the time before. */
int kvf_pair_open_sink(struct kvf_world *world, struct kvf_room_pair *pair, uint64_t key);
/* Waits until the source room has been granted and waits for input. */
int kvf_pair_await_grant(struct kvf_world *world, struct kvf_room_pair *pair);
/* Waits until both rooms read this state and lets go of them. */
int kvf_pair_end(struct kvf_world *world, struct kvf_room_pair *pair, int state);
/* A key that no pair of this process had. */
uint64_t kvf_pair_key(void);

#endif

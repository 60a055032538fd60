/* Page lists inside the core: arrays of runs in one preallocated pool (a buddy allocator, so a list is
 * contiguous and a position is found by binary search). */
#ifndef KVF_CORE_RUNS_H
#define KVF_CORE_RUNS_H

#include <stddef.h>
#include <stdint.h>

struct kvf_run {
    uint32_t region; /* handle, or the wire number in a source's grant */
    uint32_t first;  /* page */
    uint32_t count;
    uint32_t position; /* of `first` in the list */
};

#define KVF_RUNS_ORDERS 24u
#define KVF_RUNS_NONE UINT32_MAX

struct kvf_runs {
    struct kvf_run *run;
    uint8_t *order;                      /* of the block that begins here; high bit: free */
    uint32_t run_max;                    /* power of two */
    uint32_t free_head[KVF_RUNS_ORDERS]; /* index + 1 */
    uint32_t used;
};

size_t kvf_runs_bytes(uint32_t run_max);
void kvf_runs_init(struct kvf_runs *pool, void *memory, uint32_t run_max);
/* A block of at least `count` runs; KVF_RUNS_NONE if none is free. */
uint32_t kvf_runs_alloc(struct kvf_runs *pool, uint32_t count);
void kvf_runs_free(struct kvf_runs *pool, uint32_t block);
/* The run of a list that holds `position`; the list covers it. */
const struct kvf_run *kvf_runs_find(const struct kvf_run *runs, uint32_t count,
                                    uint32_t position);

#endif

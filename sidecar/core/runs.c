#include "sidecar/core/runs.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#define ORDER_FREE 0x80u
#define ORDER_NONE 0x7fu /* no block begins here */

/* A free block keeps its list links in its own first run. */
static uint32_t *block_next(struct kvf_runs *pool, uint32_t block)
{
    return &pool->run[block].region;
}
static uint32_t *block_prev(struct kvf_runs *pool, uint32_t block)
{
    return &pool->run[block].first;
}

static uint32_t order_of(uint32_t count)
{
    uint32_t order = 0;
    while (order < 31 && (UINT32_C(1) << order) < count) {
        order++;
    }
    return order;
}

size_t kvf_runs_bytes(uint32_t run_max)
{
    return (size_t)run_max * (sizeof(struct kvf_run) + 1);
}

static void push_free(struct kvf_runs *pool, uint32_t block, uint32_t order)
{
    pool->order[block] = (uint8_t)(order | ORDER_FREE);
    *block_prev(pool, block) = 0;
    *block_next(pool, block) = pool->free_head[order];
    if (pool->free_head[order] != 0) {
        *block_prev(pool, pool->free_head[order] - 1) = block + 1;
    }
    pool->free_head[order] = block + 1;
}

static void take_free(struct kvf_runs *pool, uint32_t block, uint32_t order)
{
    uint32_t next = *block_next(pool, block);
    uint32_t prev = *block_prev(pool, block);
    if (prev != 0) {
        *block_next(pool, prev - 1) = next;
    } else {
        pool->free_head[order] = next;
    }
    if (next != 0) {
        *block_prev(pool, next - 1) = prev;
    }
    pool->order[block] = ORDER_NONE;
}

void kvf_runs_init(struct kvf_runs *pool, void *memory, uint32_t run_max)
{
    assert(run_max != 0);
    assert((run_max & (run_max - 1)) == 0);
    assert(order_of(run_max) < KVF_RUNS_ORDERS);
    *pool = (struct kvf_runs){.run = memory, .run_max = run_max};
    /* The order bytes behind the runs are read only at block starts, and a block start is always
     * written before it is read; zeroed memory would read as a used block of order 0, which merges
     * with nothing. So a large pool is not touched here. */
    pool->order = (uint8_t *)(pool->run + run_max);
    push_free(pool, 0, order_of(run_max));
}

uint32_t kvf_runs_alloc(struct kvf_runs *pool, uint32_t count)
{
    uint32_t order = order_of(count == 0 ? 1 : count);
    uint32_t from = order;
    while (from < KVF_RUNS_ORDERS && pool->free_head[from] == 0) {
        from++;
    }
    if (from >= KVF_RUNS_ORDERS) {
        return KVF_RUNS_NONE;
    }
    uint32_t block = pool->free_head[from] - 1;
    take_free(pool, block, from);
    while (from > order) { /* split: the upper half becomes free */
        from--;
        push_free(pool, block + (UINT32_C(1) << from), from);
    }
    pool->order[block] = (uint8_t)order;
    pool->used += UINT32_C(1) << order;
    return block;
}

void kvf_runs_free(struct kvf_runs *pool, uint32_t block)
{
    assert(block < pool->run_max);
    uint32_t order = pool->order[block];
    assert(order < KVF_RUNS_ORDERS);
    pool->used -= UINT32_C(1) << order;
    while ((UINT32_C(1) << order) < pool->run_max) { /* merge with the buddy while it is free */
        uint32_t buddy = block ^ (UINT32_C(1) << order);
        if (pool->order[buddy] != (order | ORDER_FREE)) {
            break;
        }
        take_free(pool, buddy, order);
        pool->order[block] = ORDER_NONE;
        block = block < buddy ? block : buddy;
        order++;
    }
    push_free(pool, block, order);
}

const struct kvf_run *kvf_runs_find(const struct kvf_run *runs, uint32_t count,
                                    uint32_t position)
{
    assert(count > 0);
    uint32_t low = 0;
    uint32_t high = count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (runs[middle].position <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &runs[low];
}

/* The pool of page lists: blocks never overlap, are found by position, and all come back. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "sidecar/core/runs.h"

#define RUNS 1024u
#define LIVE 64u

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

struct block {
    uint32_t at;
    uint32_t count;
};

static void expect_apart(const struct block *blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_leq(blocks[i].at + blocks[i].count, RUNS);
        for (uint32_t j = 0; j < i; j++) {
            cr_assert(blocks[i].at + blocks[i].count <= blocks[j].at ||
                      blocks[j].at + blocks[j].count <= blocks[i].at);
        }
    }
}

Test(core_runs, blocks_never_overlap_and_all_of_them_come_back)
{
    struct kvf_runs pool;
    void *memory = calloc(1, kvf_runs_bytes(RUNS));
    uint64_t state = 88172645463325252u;
    kvf_runs_init(&pool, memory, RUNS);
    for (uint32_t round = 0; round < 200; round++) {
        struct block live[LIVE];
        uint32_t count = 0;
        for (uint32_t step = 0; step < 200; step++) {
            if (count < LIVE && next(&state) % 3 != 0) {
                uint32_t runs = 1 + (uint32_t)(next(&state) % 60);
                uint32_t at = kvf_runs_alloc(&pool, runs);
                if (at != KVF_RUNS_NONE) {
                    live[count++] = (struct block){at, runs};
                    memset(&pool.run[at], (int)(step & 0x7f), runs * sizeof pool.run[0]);
                }
            } else if (count > 0) {
                uint32_t i = (uint32_t)(next(&state) % count);
                kvf_runs_free(&pool, live[i].at);
                live[i] = live[--count];
            }
        }
        expect_apart(live, count);
        while (count > 0) {
            kvf_runs_free(&pool, live[--count].at);
        }
        cr_assert_eq(pool.used, 0);
        uint32_t all = kvf_runs_alloc(&pool, RUNS); /* merged to one again */
        cr_assert_eq(all, 0);
        cr_assert_eq(kvf_runs_alloc(&pool, 1), KVF_RUNS_NONE);
        kvf_runs_free(&pool, all);
    }
    cr_assert_eq(kvf_runs_alloc(&pool, RUNS + 1), KVF_RUNS_NONE);
    cr_assert_eq(kvf_runs_alloc(&pool, UINT32_MAX), KVF_RUNS_NONE);
    free(memory);
}

Test(core_runs, every_position_is_found_in_its_run)
{
    struct kvf_run runs[100];
    uint32_t position = 0;
    for (uint32_t i = 0; i < 100; i++) {
        runs[i] = (struct kvf_run){.first = 1000 * i, .count = 1 + i % 7, .position = position};
        position += runs[i].count;
    }
    for (uint32_t count = 1; count <= 100; count++) {
        uint32_t end = runs[count - 1].position + runs[count - 1].count;
        for (uint32_t at = 0; at < end; at++) {
            const struct kvf_run *run = kvf_runs_find(runs, count, at);
            cr_assert_geq(at, run->position);
            cr_assert_lt(at - run->position, run->count);
        }
    }
}

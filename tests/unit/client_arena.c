/* The ring of records against a plain list of what is in use. */
#include "client_world.h"

#include <stdlib.h>

#define RECORDS 64u

struct record {
    uint32_t off;
    uint64_t bytes;
    uint64_t pos;
};

static bool overlaps(const struct record *a, uint32_t off, uint64_t bytes)
{
    return off < a->off + a->bytes && a->off < off + bytes;
}

Test(client_arena, never_hands_out_bytes_of_a_record_that_waits)
{
    struct world w;
    world_begin_with(&w, 4, RECORDS, 4096);
    struct kvf_cold *cold = &w.client->cold;
    struct record live[2 * RECORDS];
    uint32_t live_count = 0;
    uint32_t taken = 0;
    uint32_t full = 0;
    uint64_t seed = 3;
    for (int i = 0; i < 200000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t bytes = 1 + (seed >> 40) % ((seed >> 20) % 4 == 0 ? 4096 : 300);
        uint32_t off;
        int err = kvf_arena_find(w.client, bytes, &off);
        if (err == 0) {
            cr_assert_eq(off % 8, 0);
            cr_assert_leq(off + bytes, 4096, "a record never wraps");
            for (uint32_t k = 0; k < live_count; k++) {
                cr_assert_not(overlaps(&live[k], off, bytes));
            }
            kvf_arena_commit(&cold->arena, off, bytes, cold->cmds.pos);
            live[live_count++] = (struct record){off, bytes, cold->cmds.pos};
            cold->cmds.pos++;
            taken++;
        } else {
            cr_assert_eq(err, -EAGAIN);
            cr_assert_gt(live_count, 0, "an empty arena takes any record that fits it");
            full++;
        }
        if ((seed >> 60) < 9 && live_count > 0) {
            uint32_t read = 1 + (uint32_t)((seed >> 50) % live_count);
            atomic_store(&w.fake.own.shm->cmd_consumed, live[read - 1].pos + 1);
            memmove(live, live + read, (live_count - read) * sizeof live[0]);
            live_count -= read;
        }
    }
    cr_assert_gt(taken, 50000);
    cr_assert_gt(full, 1000);
    uint32_t off;
    cr_assert_eq(kvf_arena_find(w.client, 4097, &off), -E2BIG);
    world_end(&w);
}

Test(client_arena, numbers_that_nobody_pushed_free_at_most_everything)
{
    struct world w;
    world_begin_with(&w, 4, RECORDS, 4096);
    struct kvf_cold *cold = &w.client->cold;
    uint64_t lies[] = {UINT64_MAX, INT64_MAX, (uint64_t)INT64_MIN, 1000000};
    uint32_t off;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        cr_assert_eq(kvf_arena_find(w.client, 4096, &off), 0);
        kvf_arena_commit(&cold->arena, off, 4096, cold->cmds.pos);
        cold->cmds.pos++;
        atomic_store(&w.fake.own.shm->cmd_consumed, lies[i]);
        int err = kvf_arena_find(w.client, 8, &off);
        cr_assert(err == 0 || err == -EAGAIN);
        cr_assert_leq(cold->arena.head - cold->arena.tail, 4096);
        cr_assert_leq(cold->arena.mark_tail, cold->arena.mark_head);
        atomic_store(&w.fake.own.shm->cmd_consumed, cold->cmds.pos);
    }
    world_end(&w);
}

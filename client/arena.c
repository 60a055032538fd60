/* Page lists on their way to the worker.
 *
 * The arena is a ring of records in the order of the commands that name them. A record never wraps: where
 * it does not fit before the end, the rest is skipped. The worker says how far it has read (edge C3); the
 * library keeps which bytes that frees in memory of its own, so nothing the other side writes can make it
 * overwrite a record that waits. */
#include "client/internal.h"

#define KVF_ARENA_ALIGN 8u

void kvf_arena_init(struct kvf_arena *arena, unsigned char *base, uint32_t bytes,
                    struct kvf_arena_mark *marks, uint32_t mark_count)
{
    *arena = (struct kvf_arena){
        .base = base, .bytes = bytes, .marks = marks, .mark_mask = mark_count - 1u};
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + KVF_ARENA_ALIGN - 1u) & ~(uint64_t)(KVF_ARENA_ALIGN - 1u);
}

static void reclaim(struct kvf_client *client)
{
    struct kvf_arena *arena = &client->cold.arena;
    /* C3 (acquire): the worker has copied every record below this position out. */
    uint64_t consumed =
        atomic_load_explicit(&client->cold.segment.shm->cmd_consumed, memory_order_acquire);
    while (arena->mark_tail != arena->mark_head) {
        const struct kvf_arena_mark *mark = &arena->marks[arena->mark_tail & arena->mark_mask];
        /* By difference: a number beyond what was pushed frees no more than everything, one from far behind
         * frees nothing. */
        if ((int64_t)(consumed - mark->cmd_pos) <= 0) {
            break;
        }
        arena->tail = mark->end;
        arena->mark_tail++;
    }
    if (arena->mark_tail == arena->mark_head) {
        /* Empty: begin at the start again, so that a record as large as the arena finds place. */
        arena->head = (arena->head + arena->bytes - 1u) & ~(uint64_t)(arena->bytes - 1u);
        arena->tail = arena->head;
    }
}

int kvf_arena_find(struct kvf_client *client, uint64_t bytes, uint32_t *ret_off)
{
    struct kvf_arena *arena = &client->cold.arena;
    uint64_t wanted = round_up(bytes);
    if (wanted > arena->bytes) {
        return -E2BIG;
    }
    reclaim(client);
    uint64_t off = arena->head & (arena->bytes - 1u);
    uint64_t skipped = off + wanted > arena->bytes ? arena->bytes - off : 0;
    if (arena->head - arena->tail + skipped + wanted > arena->bytes ||
        arena->mark_head - arena->mark_tail > arena->mark_mask) {
        return -EAGAIN;
    }
    *ret_off = (uint32_t)(skipped != 0 ? 0 : off);
    return 0;
}

void kvf_arena_commit(struct kvf_arena *arena, uint32_t off, uint64_t bytes, uint64_t cmd_pos)
{
    uint64_t at = arena->head & (arena->bytes - 1u);
    if (at != off) {
        arena->head += arena->bytes - at;
    }
    arena->head += round_up(bytes);
    arena->marks[arena->mark_head & arena->mark_mask] =
        (struct kvf_arena_mark){.cmd_pos = cmd_pos, .end = arena->head};
    arena->mark_head++;
}

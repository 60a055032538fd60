/* The dirty bits of segment.h: two levels of words, set by the client and cleared by the worker, both by
 * read-modify-write. The client sets the leaf first. So when the worker clears a summary bit and then
 * looks at the leaf, either it finds the room's bit, or the client has yet to set the summary bit again:
 * a mark may be announced once too often, never not at all. */
#include <stdatomic.h>

#include "ring/segment.h"

static inline uint32_t lowest_bit(uint64_t word)
{
    return (uint32_t)__builtin_ctzll(word);
}

void kvf_dirty_mark(_Atomic uint64_t *dirty, uint32_t slot)
{
    uint32_t leaf = slot / 64u;
    /* A1 (release): the abort cell, or the last lease's return, is behind this bit. */
    atomic_fetch_or_explicit(&dirty[KVF_DIRTY_SUMMARY_WORDS + leaf], UINT64_C(1) << slot % 64u,
                             memory_order_release);
    /* A1 (release), and D1 (seq_cst): the caller's load of the sleeping flag stands behind it in the
     * order in which the worker's flag and its look at this word stand too. */
    atomic_fetch_or_explicit(&dirty[leaf / 64u], UINT64_C(1) << leaf % 64u,
                             memory_order_seq_cst);
}

int kvf_dirty_is_pending(const _Atomic uint64_t *dirty)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < KVF_DIRTY_SUMMARY_WORDS; i++) {
        /* D1 (seq_cst): behind the store of the sleeping flag. */
        any |= atomic_load_explicit(&dirty[i], memory_order_seq_cst);
    }
    return any != 0;
}

/* The `count` lowest bits that are set. */
static uint64_t lowest_bits(uint64_t word, uint32_t count)
{
    uint64_t rest = word;
    while (rest != 0 && count > 0) {
        rest &= rest - 1u;
        count--;
    }
    return word & ~rest;
}

/* Takes up to `max` bits of one leaf. *ret_is_rest: some were left. */
static uint32_t take_leaf(_Atomic uint64_t *leaf, uint32_t first_slot, uint64_t allowed,
                          uint32_t *ret_slots, uint32_t max, int *ret_is_rest)
{
    uint64_t seen = atomic_load_explicit(leaf, memory_order_relaxed);
    uint64_t picked = lowest_bits(seen & allowed, max);
    /* A1 (acquire): the abort cells behind the picked bits are visible. Bits that name no room go too. */
    atomic_fetch_and_explicit(leaf, ~(picked | (seen & ~allowed)), memory_order_acquire);
    *ret_is_rest = (seen & allowed & ~picked) != 0;
    uint32_t taken = 0;
    for (uint64_t bits = picked; bits != 0; bits &= bits - 1u) {
        ret_slots[taken++] = first_slot + lowest_bit(bits);
    }
    return taken;
}

uint32_t kvf_dirty_take(_Atomic uint64_t *dirty, uint32_t rooms_max, uint32_t *ret_slots,
                        uint32_t max)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < KVF_DIRTY_SUMMARY_WORDS && taken < max; i++) {
        if (atomic_load_explicit(&dirty[i], memory_order_relaxed) == 0) {
            continue;
        }
        /* A1 (acquire): the leaf bits set before these are visible. */
        uint64_t summary = atomic_exchange_explicit(&dirty[i], 0, memory_order_acquire);
        while (summary != 0 && taken < max) {
            uint32_t leaf = i * 64u + lowest_bit(summary);
            uint32_t first_slot = leaf * 64u;
            int is_rest = 0;
            if (first_slot < rooms_max) {
                uint32_t room_count = rooms_max - first_slot;
                uint64_t allowed =
                    room_count >= 64u ? UINT64_MAX : (UINT64_C(1) << room_count) - 1u;
                taken += take_leaf(&dirty[KVF_DIRTY_SUMMARY_WORDS + leaf], first_slot, allowed,
                                   ret_slots + taken, max - taken, &is_rest);
            }
            if (!is_rest) {
                summary &= summary - 1u;
            }
        }
        if (summary != 0) {
            /* No room left: announce the rest again. */
            atomic_fetch_or_explicit(&dirty[i], summary, memory_order_relaxed);
        }
    }
    return taken;
}

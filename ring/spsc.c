/* The ring of spsc.h. A push and its pop meet in one cache line: the slot's own sequence number says
 * whose it is, so neither side ever looks for the other's index and a full or empty ring costs one load
 * of a line that would be needed next anyway. */
#include "ring/spsc.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* A scan that ran while the other side raced ahead of it looks spoiled; it is repeated this often. The
 * other side alone can move at most one ring's length, so an honest one soon stands still. */
#define KVF_SPSC_RECOVER_TRIES 64u

#define KVF_SLOT_SEQ_BYTES (KVF_SLOT_BYTES - KVF_SLOT_PAYLOAD_BYTES)

_Static_assert(sizeof(_Atomic uint64_t) == KVF_SLOT_SEQ_BYTES, "sequence number of a slot");

/* Assigned, not memcpy'd: the same instructions, but gcc's thread sanitizer does not see an inlined
 * memcpy. */
struct payload {
    uint64_t words[KVF_SLOT_PAYLOAD_BYTES / sizeof(uint64_t)];
};
_Static_assert(sizeof(struct payload) == KVF_SLOT_PAYLOAD_BYTES, "payload of a slot");

static inline void copy_payload(unsigned char *to, const unsigned char *from)
{
    *(struct payload *)(void *)(to + KVF_SLOT_SEQ_BYTES) =
        *(const struct payload *)(const void *)(from + KVF_SLOT_SEQ_BYTES);
}

static inline unsigned char *slot_at(unsigned char *slots, uint32_t mask, uint64_t pos)
{
    return slots + (pos & mask) * KVF_SLOT_BYTES;
}

static inline _Atomic uint64_t *seq_of(unsigned char *slot)
{
    return (_Atomic uint64_t *)(void *)slot;
}

static inline void check_slot_count(uint32_t slot_count)
{
    assert(slot_count >= KVF_SPSC_SLOTS_MIN);
    assert((slot_count & (slot_count - 1u)) == 0);
}

void kvf_spsc_format(void *slots, uint32_t slot_count, uint64_t start)
{
    check_slot_count(slot_count);
    uint32_t mask = slot_count - 1u;
    for (uint32_t i = 0; i < slot_count; i++) {
        uint64_t pos = start + i;
        /* relaxed: nobody else sees the slots before the segment's magic (edge S1). */
        atomic_store_explicit(seq_of(slot_at(slots, mask, pos)), pos, memory_order_relaxed);
    }
}

void kvf_spsc_producer_init(struct kvf_spsc_producer *p, void *slots, uint32_t slot_count,
                            uint64_t pos)
{
    check_slot_count(slot_count);
    *p = (struct kvf_spsc_producer){.slots = slots, .pos = pos, .mask = slot_count - 1u};
}

void kvf_spsc_consumer_init(struct kvf_spsc_consumer *c, void *slots, uint32_t slot_count,
                            uint64_t pos)
{
    check_slot_count(slot_count);
    *c = (struct kvf_spsc_consumer){.slots = slots, .pos = pos, .mask = slot_count - 1u};
}

/* One look at all sequence numbers, each loaded once. In a ring they name the n positions of one window
 * [c, c + n), the filled ones first. Slot i can only name positions that are i modulo n, or i + 1 when
 * filled, so n names within one window are n different positions. */
static int recover_once(const unsigned char *slots, uint32_t slot_count,
                        uint64_t *ret_producer_pos, uint64_t *ret_consumer_pos)
{
    uint64_t mask = slot_count - 1u;
    uint64_t base = 0;
    uint64_t filled_count = 0;
    int64_t limit = (int64_t)slot_count;
    int64_t low = limit;
    int64_t high = -limit;
    int64_t filled_high = -limit;
    int64_t free_low = limit;

    for (uint64_t i = 0; i < slot_count; i++) {
        const void *slot = slots + i * KVF_SLOT_BYTES;
        /* C1 and C2 (acquire): what the predecessor saw of the slot, its successor sees too. */
        uint64_t seq =
            atomic_load_explicit((const _Atomic uint64_t *)slot, memory_order_acquire);
        int is_filled = (seq & mask) == ((i + 1u) & mask);
        if (!is_filled && (seq & mask) != i) {
            return -EPROTO;
        }
        uint64_t pos = seq - (uint64_t)is_filled;
        if (i == 0) {
            base = pos;
        }
        int64_t distance = (int64_t)(pos - base);
        if (distance >= limit || distance <= -limit) {
            return -EPROTO;
        }
        low = distance < low ? distance : low;
        high = distance > high ? distance : high;
        if (is_filled) {
            filled_count++;
            filled_high = distance > filled_high ? distance : filled_high;
        } else {
            free_low = distance < free_low ? distance : free_low;
        }
    }
    if (high - low >= limit || filled_high >= free_low) {
        return -EPROTO;
    }
    *ret_consumer_pos = base + (uint64_t)low;
    *ret_producer_pos = base + (uint64_t)low + filled_count;
    return 0;
}

int kvf_spsc_recover(const void *slots, uint32_t slot_count, uint64_t *ret_producer_pos,
                     uint64_t *ret_consumer_pos)
{
    check_slot_count(slot_count);
    int err = -EPROTO;
    for (uint32_t i = 0; i < KVF_SPSC_RECOVER_TRIES && err != 0; i++) {
        err = recover_once(slots, slot_count, ret_producer_pos, ret_consumer_pos);
    }
    return err;
}

/* Fills free slots until `count` are filled. `order` is a constant at both places that inline this. */
static inline uint32_t fill(struct kvf_spsc_producer *p, const unsigned char *from,
                            uint32_t count, memory_order order)
{
    uint64_t pos = p->pos;
    uint32_t pushed = 0;
    for (; pushed < count; pushed++) {
        unsigned char *slot = slot_at(p->slots, p->mask, pos);
        /* C2 (acquire): the consumer has copied the former payload out. */
        if (atomic_load_explicit(seq_of(slot), memory_order_acquire) != pos) {
            break;
        }
        copy_payload(slot, from);
        from += KVF_SLOT_BYTES;
        pos++;
        /* C1 (release at least): the payload is whole, the consumer may copy it. */
        atomic_store_explicit(seq_of(slot), pos, order);
    }
    p->pos = pos;
    return pushed;
}

uint32_t kvf_spsc_push(struct kvf_spsc_producer *p, const void *slots, uint32_t count)
{
    return fill(p, slots, count, memory_order_release); /* C1 */
}

uint32_t kvf_spsc_push_seq_cst(struct kvf_spsc_producer *p, const void *slots, uint32_t count)
{
    /* D1, D2 (seq_cst): the slot stands in the one order in which the consumer's flag stands too. */
    return fill(p, slots, count, memory_order_seq_cst);
}

int kvf_spsc_has_room(const struct kvf_spsc_producer *p)
{
    /* C2 (acquire). */
    return atomic_load_explicit(seq_of(slot_at(p->slots, p->mask, p->pos)),
                                memory_order_acquire) == p->pos;
}

uint32_t kvf_spsc_pop(struct kvf_spsc_consumer *c, void *ret_slots, uint32_t count)
{
    unsigned char *to = ret_slots;
    uint64_t pos = c->pos;
    uint64_t slot_count = (uint64_t)c->mask + 1u;
    uint32_t popped = 0;
    for (; popped < count; popped++) {
        unsigned char *slot = slot_at(c->slots, c->mask, pos);
        /* C1 (acquire): the payload is whole. */
        uint64_t seq = atomic_load_explicit(seq_of(slot), memory_order_acquire);
        if (seq != pos + 1u) {
            break;
        }
        memcpy(to, &seq, KVF_SLOT_SEQ_BYTES);
        copy_payload(to, slot);
        to += KVF_SLOT_BYTES;
        /* C2 (release): the copy is made, the producer may overwrite the slot. */
        atomic_store_explicit(seq_of(slot), pos + slot_count, memory_order_release);
        pos++;
    }
    c->pos = pos;
    return popped;
}

int kvf_spsc_is_pending(const struct kvf_spsc_consumer *c)
{
    /* D1, D2 (seq_cst): stands after the store of the consumer's flag in the one order of both. */
    return atomic_load_explicit(seq_of(slot_at(c->slots, c->mask, c->pos)),
                                memory_order_seq_cst) == c->pos + 1u;
}

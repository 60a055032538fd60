/* Single-producer, single-consumer ring of 64-byte slots over two mappings.
 *
 * Each slot carries its own 64-bit sequence number beside 56 bytes of payload, so a push and its pop
 * touch one cache line and neither side reads the other's index. Slot i of a ring of n is free for the
 * push of position p (p mod n == i) when seq == p, and filled when seq == p + 1; the consumer hands it
 * back with seq = p + n. Positions run free in 64 bits and never wrap in practice, but all
 * comparisons are by equality or by difference, so they may.
 *
 * A ring has at least two slots: with one, "filled at p" and "free for p + n" would be the same number.
 * kvf_segment_check_limits refuses smaller rings.
 *
 * Both structs are private to their process: the other side can spoil only its own payload, which the
 * consumer copies out before it looks at it. A torn producer leaves seq unpublished, so nothing half
 * written is ever seen and nobody needs to repair anything. Not for two producers; callers lock. */
#ifndef KVF_RING_SPSC_H
#define KVF_RING_SPSC_H

#include <stdint.h>

#define KVF_SLOT_BYTES 64u
#define KVF_SLOT_PAYLOAD_BYTES 56u
#define KVF_SPSC_SLOTS_MIN 2u

struct kvf_spsc_producer {
    unsigned char *slots;
    uint64_t pos; /* next position to push */
    uint32_t mask;
};

struct kvf_spsc_consumer {
    unsigned char *slots;
    uint64_t pos; /* next position to pop */
    uint32_t mask;
};

/* Writes the sequence numbers of an empty ring whose first position is `start`. Only before the other
 * side can see the slots. slot_count is a power of two, at least KVF_SPSC_SLOTS_MIN. */
void kvf_spsc_format(void *slots, uint32_t slot_count, uint64_t start);

void kvf_spsc_producer_init(struct kvf_spsc_producer *p, void *slots, uint32_t slot_count,
                            uint64_t pos);
void kvf_spsc_consumer_init(struct kvf_spsc_consumer *c, void *slots, uint32_t slot_count,
                            uint64_t pos);

/* Finds the position of a producer or consumer that is taken over from its predecessor by reading the
 * sequence numbers: used at re-attach and by the next worker. The other side may go on meanwhile: its
 * position is then one it has passed through, while that of the side taken over is exact. Returns 0 and
 * the two positions, or -EPROTO if the numbers are not those of any ring (spoiled memory). Not for the
 * hot path: reads every slot, a bounded number of times. */
int kvf_spsc_recover(const void *slots, uint32_t slot_count, uint64_t *ret_producer_pos,
                     uint64_t *ret_consumer_pos);

/* Pushes up to `count` slots (count x 64 bytes at `slots`, aligned to 8, whose first 8 bytes each are
 * ignored).
 * Returns how many were pushed, 0 if full. Release per slot (edge C1). Does not order a later load of
 * the consumer's sleeping flag: use kvf_spsc_push_seq_cst where the consumer may sleep. */
uint32_t kvf_spsc_push(struct kvf_spsc_producer *p, const void *slots, uint32_t count);

/* The same, but slots are published by seq_cst stores, so that a seq_cst load of the consumer's flag
 * after it makes a Dekker pair with kvf_spsc_is_pending (edges D1, D2): either that
 * load sees the flag, or the consumer's check sees the slot. A release store cannot give this. */
uint32_t kvf_spsc_push_seq_cst(struct kvf_spsc_producer *p, const void *slots, uint32_t count);

/* 1 if at least one slot is free, else 0 (acquire, edge C2). */
int kvf_spsc_has_room(const struct kvf_spsc_producer *p);

/* Copies up to `count` filled slots out (64 bytes each, aligned to 8, sequence included), hands them back.
 * Returns how many, 0 if empty. Acquire per slot (edge C1), release when handing back (edge C2). */
uint32_t kvf_spsc_pop(struct kvf_spsc_consumer *c, void *ret_slots, uint32_t count);

/* 1 if a slot waits, else 0. With seq_cst, for the check after the sleeping flag was set by a seq_cst
 * store (edges D1, D2). */
int kvf_spsc_is_pending(const struct kvf_spsc_consumer *c);

#endif

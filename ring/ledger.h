/* The page ledger: what an allocator asks before it hands a page out.
 *
 * One 64-bit word per page of a registration, in its own memfd, written by the library alone under its
 * lock. 0 means idle. A sink page names its lender (slot and 40-bit generation): it is idle once that
 * room's word says DRAINED or is newer. A source page counts its readers; the library undoes a room's
 * counts exactly once, when it first sees that room drained.
 *
 *   63..62  61........22  21......0
 *   sink    generation    slot              (40 and 22 bits)
 *   source  zero          readers           (32 bits)
 *
 * Words are stored with release and loaded with acquire (edge G1): whoever reads 0 may refill the page,
 * because the thread that stored it had seen the last room drained. */
#ifndef KVF_RING_LEDGER_H
#define KVF_RING_LEDGER_H

#include <stdatomic.h>
#include <stdint.h>

#include "ring/layout.h"

#define KVF_LEDGER_MAGIC UINT64_C(0x31726764656c766b) /* "kvledgr1" */

struct kvf_ledger_shm { /* header of the memfd, then page_count words from byte 64 */
    _Atomic uint64_t magic;
    uint64_t page_count;
    uint32_t region;
    uint32_t pad0_;
    uint64_t pad_[5];
};
_Static_assert(sizeof(struct kvf_ledger_shm) == 64, "ledger header");

enum kvf_ledger_kind { KVF_LEDGER_IDLE = 0, KVF_LEDGER_SINK = 1, KVF_LEDGER_SOURCE = 2 };

static inline uint64_t kvf_ledger_sink(uint32_t slot, uint64_t generation)
{
    return UINT64_C(1) << 62 | generation << 22 | slot;
}
static inline enum kvf_ledger_kind kvf_ledger_kind_of(uint64_t word)
{
    return (enum kvf_ledger_kind)(word >> 62);
}
static inline uint32_t kvf_ledger_slot(uint64_t word)
{
    return (uint32_t)(word & 0x3fffff);
}
static inline uint64_t kvf_ledger_generation(uint64_t word)
{
    return word >> 22 & ((UINT64_C(1) << 40) - 1u);
}
static inline uint32_t kvf_ledger_readers(uint64_t word)
{
    return (uint32_t)word;
}

uint64_t kvf_ledger_bytes(uint64_t page_count);
/* Of fresh memory, which reads as zero: its words are those of idle pages. */
void kvf_ledger_format(struct kvf_ledger_shm *shm, uint64_t page_count, uint32_t region);
_Atomic uint64_t *kvf_ledger_words(struct kvf_ledger_shm *shm);

/* Is a page with this ledger word idle, given the daemon's lines of its client? 1 or 0. The caller loaded
 * the word with acquire (edge G1). One acquire load of the lender's room word (edge R1) when the page has
 * a lender, none when the word is 0. A source page with readers is not idle here: the library first
 * undoes what drained rooms still count. A word that names no room of this client is not idle. Newer is
 * by the distance modulo 2^40, less than half of it. */
int kvf_ledger_is_idle(uint64_t ledger_word, const struct kvf_room_shm *rooms,
                       uint32_t rooms_max);

/* Lends runs to a sink room, all or nothing. `words` is indexed by page and belongs to one region, so all
 * runs of one call do too (their region field is not read); the caller checked that they lie in it and
 * holds the library's lock. 0, or with nothing lent and the position in the runs' order in *ret_position:
 * -EBUSY, that page is not idle; -EEXIST, it is in the list twice (or the room holds it already). */
int kvf_ledger_lend_sink(_Atomic uint64_t *words, const struct kvf_room_shm *rooms,
                         uint32_t rooms_max, const struct kvf_run_shm *runs, uint32_t run_count,
                         uint32_t slot, uint64_t generation, uint64_t *ret_position);

/* Counts one reader on every page of the runs, all or nothing, under the same conditions; a page twice
 * counts twice. -EBUSY if one is lent to a sink; -EOVERFLOW at UINT32_MAX readers. */
int kvf_ledger_lend_source(_Atomic uint64_t *words, const struct kvf_room_shm *rooms,
                           uint32_t rooms_max, const struct kvf_run_shm *runs,
                           uint32_t run_count, uint64_t *ret_position);

/* Undo, for a push that failed (sink and source) and for a source room seen drained. Pages that name
 * another room, or have no readers, are left as they are. */
void kvf_ledger_undo_sink(_Atomic uint64_t *words, const struct kvf_run_shm *runs,
                          uint32_t run_count, uint32_t slot, uint64_t generation);
void kvf_ledger_undo_source(_Atomic uint64_t *words, const struct kvf_run_shm *runs,
                            uint32_t run_count);

#endif

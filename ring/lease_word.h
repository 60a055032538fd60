/* External leases of one room: work of the engine or of another library (a cache restore, a GPU copy)
 * that may still touch the room's pages. Generation, CLOSED bit and a count per kind share one word,
 * so "take fails once closed" and "drained only at closed and zero" are single compare-and-swaps.
 *
 *   63........24  23      22....14  13.....7  6......0
 *   generation    CLOSED  cpu       gpu       direct-io
 *
 * The library resets the word before it pushes OPEN. The side that leaves it at CLOSED and zero tells
 * the worker (the library: dirty bit and wake-up). */
#ifndef KVF_RING_LEASE_WORD_H
#define KVF_RING_LEASE_WORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Which process's end proves a lease of a dead engine: cpu, its own reaping; the others, nothing. */
enum kvf_lease_kind { KVF_LEASE_CPU = 0, KVF_LEASE_GPU = 1, KVF_LEASE_DIRECT_IO = 2 };

#define KVF_LEASE_CLOSED (UINT64_C(1) << 23)

uint64_t kvf_lease_word_make(uint64_t generation);

/* Takes one lease. 0, -ESTALE (another generation), -ESHUTDOWN (closed), -EOVERFLOW (count full),
 * -EINVAL (kind). Any thread of the engine; lock-free. Acquire on success (edge L1). */
int kvf_lease_take(_Atomic uint64_t *word, uint64_t generation, enum kvf_lease_kind kind);

/* Returns one lease. 0, or 1 if this return left the word CLOSED at zero: the caller wakes the worker.
 * -ESTALE, -EINVAL, -ENOENT (nothing of that kind is out). Release (edge L2). */
int kvf_lease_return(_Atomic uint64_t *word, uint64_t generation, enum kvf_lease_kind kind);

/* Closes the word for `generation`. The caller learns what is still out through ret_word (acquire, edge
 * L2; a later look at the word is an acquire load too). Idempotent. One read-modify-write and no loop, so
 * a hostile engine cannot keep the worker here.
 * 0, or -ESTALE if the word names another generation (a hostile or newer engine: nothing is out
 * for the one asked about, because the library resets the word only after drained). */
int kvf_lease_close(_Atomic uint64_t *word, uint64_t generation, uint64_t *ret_word);

uint32_t kvf_lease_count(uint64_t word, enum kvf_lease_kind kind);
bool kvf_lease_is_idle(uint64_t word); /* all counts zero */

#endif

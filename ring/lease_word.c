#include "ring/lease_word.h"

#include <errno.h>
#include <stddef.h>

#include "ring/room_word.h"

struct count_field {
    uint32_t shift;
    uint32_t max;
};

static const struct count_field count_fields[] = {
    [KVF_LEASE_CPU] = {.shift = 14, .max = 511},
    [KVF_LEASE_GPU] = {.shift = 7, .max = 127},
    [KVF_LEASE_DIRECT_IO] = {.shift = 0, .max = 127},
};

#define KVF_LEASE_COUNTS (KVF_LEASE_CLOSED - 1u)

_Static_assert((UINT64_C(511) << 14 | UINT64_C(127) << 7 | 127u) == KVF_LEASE_COUNTS,
               "the counts fill the bits below CLOSED");

/* An enum parameter may hold any number: it came through a foreign-function interface. */
static const struct count_field *field_of(enum kvf_lease_kind kind)
{
    uint32_t idx = (uint32_t)kind;
    return idx < sizeof count_fields / sizeof count_fields[0] ? &count_fields[idx] : NULL;
}

static uint64_t count_in(uint64_t word, const struct count_field *field)
{
    return word >> field->shift & field->max;
}

uint64_t kvf_lease_word_make(uint64_t generation)
{
    return generation << KVF_GENERATION_SHIFT;
}

int kvf_lease_take(_Atomic uint64_t *word, uint64_t generation, enum kvf_lease_kind kind)
{
    const struct count_field *field = field_of(kind);
    if (field == NULL) {
        return -EINVAL;
    }
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    uint64_t wanted;
    do {
        if (kvf_word_generation(seen) != generation) {
            return -ESTALE;
        }
        if ((seen & KVF_LEASE_CLOSED) != 0) {
            return -ESHUTDOWN;
        }
        if (count_in(seen, field) == field->max) {
            return -EOVERFLOW;
        }
        wanted = seen + (UINT64_C(1) << field->shift);
        /* L1 (acquire): what this thread now does to the pages comes after the open that reset the word
         * and after every lease returned before. */
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, wanted, memory_order_acquire,
                                                    memory_order_relaxed));
    return 0;
}

int kvf_lease_return(_Atomic uint64_t *word, uint64_t generation, enum kvf_lease_kind kind)
{
    const struct count_field *field = field_of(kind);
    if (field == NULL) {
        return -EINVAL;
    }
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    uint64_t wanted;
    do {
        if (kvf_word_generation(seen) != generation) {
            return -ESTALE;
        }
        if (count_in(seen, field) == 0) {
            return -ENOENT;
        }
        wanted = seen - (UINT64_C(1) << field->shift);
        /* L2 (release): the worker that reads this word, or a later one of the same chain of
         * compare-and-swaps, may let the pages go: this thread touches them no more. */
    } while (!atomic_compare_exchange_weak_explicit(word, &seen, wanted, memory_order_release,
                                                    memory_order_relaxed));
    return (wanted & KVF_LEASE_CLOSED) != 0 && kvf_lease_is_idle(wanted);
}

int kvf_lease_close(_Atomic uint64_t *word, uint64_t generation, uint64_t *ret_word)
{
    /* L2 (acquire): with the counts at zero, every lease's use of the pages is behind us. */
    uint64_t seen = atomic_load_explicit(word, memory_order_acquire);
    if (kvf_word_generation(seen) != generation) {
        return -ESTALE;
    }
    if ((seen & KVF_LEASE_CLOSED) == 0) {
        /* L2 (acquire). The generation cannot change under an honest engine before drained; one that
         * changes it spoils its own word only. */
        seen = atomic_fetch_or_explicit(word, KVF_LEASE_CLOSED, memory_order_acquire);
        if (kvf_word_generation(seen) != generation) {
            return -ESTALE;
        }
    }
    *ret_word = seen | KVF_LEASE_CLOSED;
    return 0;
}

uint32_t kvf_lease_count(uint64_t word, enum kvf_lease_kind kind)
{
    const struct count_field *field = field_of(kind);
    return field == NULL ? 0 : (uint32_t)count_in(word, field);
}

bool kvf_lease_is_idle(uint64_t word)
{
    return (word & KVF_LEASE_COUNTS) == 0;
}

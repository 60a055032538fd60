#include "ring/ledger.h"

#include <errno.h>

#include "ring/room_word.h"

#define KVF_GENERATION_HALF (UINT64_C(1) << 39)

uint64_t kvf_ledger_bytes(uint64_t page_count)
{
    return sizeof(struct kvf_ledger_shm) + page_count * sizeof(uint64_t);
}

_Atomic uint64_t *kvf_ledger_words(struct kvf_ledger_shm *shm)
{
    return (_Atomic uint64_t *)(void *)(shm + 1);
}

void kvf_ledger_format(struct kvf_ledger_shm *shm, uint64_t page_count, uint32_t region)
{
    *shm = (struct kvf_ledger_shm){.page_count = page_count, .region = region};
    /* S1 (release): whoever reads the magic sees the words of idle pages behind it. */
    atomic_store_explicit(&shm->magic, KVF_LEDGER_MAGIC, memory_order_release);
}

int kvf_ledger_is_idle(uint64_t ledger_word, const struct kvf_room_shm *rooms,
                       uint32_t rooms_max)
{
    if (ledger_word == 0) {
        return 1;
    }
    if (kvf_ledger_kind_of(ledger_word) != KVF_LEDGER_SINK) {
        return kvf_ledger_kind_of(ledger_word) == KVF_LEDGER_SOURCE &&
               kvf_ledger_readers(ledger_word) == 0;
    }
    uint32_t slot = kvf_ledger_slot(ledger_word);
    if (slot >= rooms_max) {
        return 0;
    }
    /* R1 (acquire): on "idle" every byte that was placed is behind us and none can follow. */
    uint64_t room_word = atomic_load_explicit(&rooms[slot].word, memory_order_acquire);
    uint64_t distance = (kvf_word_generation(room_word) - kvf_ledger_generation(ledger_word)) &
                        KVF_GENERATION_MAX;
    if (distance == 0) {
        return kvf_word_is_drained(room_word);
    }
    /* A newer generation of the slot was opened, which needed this one drained. An older one means that
     * the daemon has not yet read the OPEN that lent the page. */
    return distance < KVF_GENERATION_HALF;
}

/* Visits pages by their position in the runs' order, without an array of them. */
struct page_cursor {
    const struct kvf_run_shm *runs;
    uint32_t run_count;
    uint32_t run_idx;
    uint32_t page_idx; /* in the run */
    uint64_t position;
};

static int cursor_next(struct page_cursor *cursor, uint64_t *ret_page)
{
    while (cursor->run_idx < cursor->run_count) {
        const struct kvf_run_shm *run = &cursor->runs[cursor->run_idx];
        if (cursor->page_idx < run->count) {
            *ret_page = (uint64_t)run->first + cursor->page_idx;
            cursor->page_idx++;
            cursor->position++;
            return 1;
        }
        cursor->run_idx++;
        cursor->page_idx = 0;
    }
    return 0;
}

static void undo_sink(_Atomic uint64_t *words, const struct kvf_run_shm *runs,
                      uint32_t run_count, uint64_t position_count, uint64_t own_word)
{
    struct page_cursor cursor = {.runs = runs, .run_count = run_count};
    uint64_t page;
    while (cursor.position < position_count && cursor_next(&cursor, &page)) {
        if (atomic_load_explicit(&words[page], memory_order_relaxed) == own_word) {
            /* G1 (release): the lender before us was seen drained, or there was none. */
            atomic_store_explicit(&words[page], 0, memory_order_release);
        }
    }
}

static void undo_source(_Atomic uint64_t *words, const struct kvf_run_shm *runs,
                        uint32_t run_count, uint64_t position_count)
{
    struct page_cursor cursor = {.runs = runs, .run_count = run_count};
    uint64_t page;
    while (cursor.position < position_count && cursor_next(&cursor, &page)) {
        uint64_t word = atomic_load_explicit(&words[page], memory_order_relaxed);
        if (kvf_ledger_kind_of(word) != KVF_LEDGER_SOURCE || kvf_ledger_readers(word) == 0) {
            continue;
        }
        /* G1 (release): the last reader's room was seen drained, the page may be refilled. The chain
         * from earlier readers runs through the library's lock. */
        atomic_store_explicit(&words[page], kvf_ledger_readers(word) == 1 ? 0 : word - 1u,
                              memory_order_release);
    }
}

/* Lends as it goes and undoes on a refusal: marking is what finds a page that is listed twice, whatever
 * the length of the list. A concurrent reader of the ledger may see a page of a refused list lent for a
 * moment, never the other way round. */
int kvf_ledger_lend_sink(_Atomic uint64_t *words, const struct kvf_room_shm *rooms,
                         uint32_t rooms_max, const struct kvf_run_shm *runs, uint32_t run_count,
                         uint32_t slot, uint64_t generation, uint64_t *ret_position)
{
    uint64_t own_word = kvf_ledger_sink(slot, generation);
    struct page_cursor cursor = {.runs = runs, .run_count = run_count};
    uint64_t page;
    while (cursor_next(&cursor, &page)) {
        uint64_t word = atomic_load_explicit(&words[page], memory_order_relaxed);
        int err = 0;
        if (word == own_word) {
            err = -EEXIST;
        } else if (!kvf_ledger_is_idle(word, rooms, rooms_max)) {
            err = -EBUSY;
        }
        if (err != 0) {
            uint64_t position = cursor.position - 1u;
            undo_sink(words, runs, run_count, position, own_word);
            *ret_position = position;
            return err;
        }
        /* G1 (release). */
        atomic_store_explicit(&words[page], own_word, memory_order_release);
    }
    return 0;
}

int kvf_ledger_lend_source(_Atomic uint64_t *words, const struct kvf_room_shm *rooms,
                           uint32_t rooms_max, const struct kvf_run_shm *runs,
                           uint32_t run_count, uint64_t *ret_position)
{
    struct page_cursor cursor = {.runs = runs, .run_count = run_count};
    uint64_t page;
    while (cursor_next(&cursor, &page)) {
        uint64_t word = atomic_load_explicit(&words[page], memory_order_relaxed);
        uint64_t lent = (uint64_t)KVF_LEDGER_SOURCE << 62 | 1u;
        int err = 0;
        if (kvf_ledger_kind_of(word) == KVF_LEDGER_SOURCE) {
            lent = word + 1u;
            err = kvf_ledger_readers(word) == UINT32_MAX ? -EOVERFLOW : 0;
        } else if (!kvf_ledger_is_idle(word, rooms, rooms_max)) {
            err = -EBUSY;
        }
        if (err != 0) {
            uint64_t position = cursor.position - 1u;
            undo_source(words, runs, run_count, position);
            *ret_position = position;
            return err;
        }
        /* G1 (release). */
        atomic_store_explicit(&words[page], lent, memory_order_release);
    }
    return 0;
}

void kvf_ledger_undo_sink(_Atomic uint64_t *words, const struct kvf_run_shm *runs,
                          uint32_t run_count, uint32_t slot, uint64_t generation)
{
    undo_sink(words, runs, run_count, UINT64_MAX, kvf_ledger_sink(slot, generation));
}

void kvf_ledger_undo_source(_Atomic uint64_t *words, const struct kvf_run_shm *runs,
                            uint32_t run_count)
{
    undo_source(words, runs, run_count, UINT64_MAX);
}

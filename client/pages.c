/* Page lists and the page ledger. */
#include "client/internal.h"

/* Takes the lists apart into runs of contiguous ascending pages, in the engine's order. */
static int append_pages(kvf_client *client, uint64_t page_count, uint32_t handle,
                        const struct kvf_page_list *list, uint32_t *run_count)
{
    struct kvf_run_shm *runs = client->cold.runs;
    uint32_t first_idx = *run_count;
    uint32_t used = first_idx;
    for (size_t i = 0; i < list->count; i++) {
        /* A negative page becomes larger than any region. */
        uint64_t page = list->pages != NULL ? (uint64_t)(int64_t)list->pages[i]
                                            : (uint64_t)list->pages64[i];
        if (page >= page_count) {
            return -KVF_E_PAGE_RANGE;
        }
        if (used > first_idx &&
            (uint64_t)runs[used - 1u].first + runs[used - 1u].count == page) {
            runs[used - 1u].count++;
            continue;
        }
        if (used == client->cold.runs_max) {
            return -E2BIG;
        }
        runs[used++] =
            (struct kvf_run_shm){.region = handle, .first = (uint32_t)page, .count = 1};
    }
    *run_count = used;
    return 0;
}

int kvf_client_runs_append(kvf_client *client, const struct kvf_client_region *region,
                           const struct kvf_page_list *list, uint32_t *run_count)
{
    if (list->count == 0) {
        return -KVF_E_NO_PAGES;
    }
    if (list->pages == NULL && list->pages64 == NULL) {
        return -EINVAL;
    }
    if (list->count > UINT32_MAX) {
        return -E2BIG;
    }
    uint32_t handle = atomic_load_explicit(&region->handle, memory_order_relaxed);
    return append_pages(client, region->page_count, handle, list, run_count);
}

struct kvf_client_region *kvf_client_region_find(kvf_client *client, uint32_t handle)
{
    uint32_t idx = handle & 0xffu;
    if (handle == 0 || idx >= KVF_REGIONS_PER_CLIENT_MAX) {
        return NULL;
    }
    struct kvf_client_region *region = &client->cold.regions[idx];
    /* relaxed: changed under the lock, which is held. */
    if (atomic_load_explicit(&region->handle, memory_order_relaxed) != handle ||
        region->is_leaving) {
        return NULL;
    }
    return region;
}

/* Lets a call read a region's ledger without the lock: while it is counted as a user, unregister waits
 * before it unmaps. */
static struct kvf_client_region *region_enter(kvf_client *client, uint32_t handle)
{
    uint32_t idx = handle & 0xffu;
    if (handle == 0 || idx >= KVF_REGIONS_PER_CLIENT_MAX) {
        return NULL;
    }
    struct kvf_client_region *region = &client->cold.regions[idx];
    /* H1 (seq_cst): counted first, looked at the handle then; unregister clears the handle first and
     * looks at the count then. One of the two sees the other. */
    atomic_fetch_add_explicit(&region->users, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&region->handle, memory_order_seq_cst) != handle) {
        atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
        return NULL;
    }
    return region;
}

static void region_leave(struct kvf_client_region *region)
{
    /* H1 (release): the ledger is not read any more. */
    atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
}

/* Is some room that lends source pages drained, so that undoing its counts may change the answer? Without
 * the lock: a bit that goes meanwhile only makes this look in vain. */
static bool counts_are_stale(const kvf_client *client)
{
    uint32_t words = (client->cold.segment.limits.rooms_max + 63u) / 64u;
    for (uint32_t i = 0; i < words; i++) {
        uint64_t bits = atomic_load_explicit(&client->cold.counted[i], memory_order_relaxed);
        for (; bits != 0; bits &= bits - 1u) {
            uint32_t slot = i * 64u + (uint32_t)__builtin_ctzll(bits);
            /* O1 (relaxed): our own line; another thread's newer generation is not drained yet. */
            uint64_t generation = atomic_load_explicit(
                &client->cold.segment.intents[slot].generation, memory_order_relaxed);
            if (kvf_client_is_drained(client, slot, generation)) {
                return true;
            }
        }
    }
    return false;
}

#define KVF_LOCK_TRIES 200u

/* Undoes the counts of drained rooms on behalf of a reader of the ledger. Spins first: the holder of the
 * lock is in the middle of a short call, and the caller expects no system call. */
static bool undo_stale_counts(kvf_client *client)
{
    if (!counts_are_stale(client)) {
        return false;
    }
    uint32_t tries = 0;
    while (pthread_mutex_trylock(&client->cold.lock) != 0) {
        if (++tries == KVF_LOCK_TRIES) {
            pthread_mutex_lock(&client->cold.lock);
            break;
        }
    }
    kvf_client_sweep_counts(client, true);
    pthread_mutex_unlock(&client->cold.lock);
    /* Another thread may have undone them between the look and the lock: ask the ledger again. */
    return true;
}

/* The common case of a page that was ever lent, decided here without a call: its sink is drained, or newer
 * than the lender. What this does not know, kvf_ledger_is_idle does. */
static inline bool is_plainly_idle(const struct kvf_segment *segment, uint64_t word)
{
    uint32_t slot = kvf_ledger_slot(word);
    if (kvf_ledger_kind_of(word) != KVF_LEDGER_SINK || slot >= segment->limits.rooms_max) {
        return false;
    }
    /* R1 (acquire). */
    uint64_t room_word = atomic_load_explicit(&segment->rooms[slot].word, memory_order_acquire);
    uint64_t newer_by = kvf_word_generation(room_word) - kvf_ledger_generation(word);
    return newer_by == 0 ? kvf_word_is_drained(room_word) : newer_by <= KVF_GENERATION_MAX / 2u;
}

/* The rare half of asking for one page: lent, or lent for reading. */
static bool page_is_idle_slow(kvf_client *client, const struct kvf_client_region *region,
                              uint64_t page, uint64_t word, bool *has_swept)
{
    const struct kvf_segment *segment = &client->cold.segment;
    if (kvf_ledger_is_idle(word, segment->rooms, segment->limits.rooms_max)) {
        return true;
    }
    if (kvf_ledger_kind_of(word) == KVF_LEDGER_SINK) {
        return kvf_client_is_drained(client, kvf_ledger_slot(word),
                                     kvf_ledger_generation(word));
    }
    if (*has_swept || !undo_stale_counts(client)) {
        *has_swept = true;
        return false;
    }
    *has_swept = true;
    /* G1 (acquire). */
    word = atomic_load_explicit(&region->words[page], memory_order_acquire);
    return kvf_ledger_is_idle(word, segment->rooms, segment->limits.rooms_max);
}

static inline int pages_are_idle(kvf_client *client, uint32_t handle, const int32_t *pages,
                                 const int64_t *pages64, size_t n, size_t *ret_position)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (n > 0 && pages == NULL && pages64 == NULL) {
        return -EINVAL;
    }
    struct kvf_client_region *region = region_enter(client, handle);
    if (region == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    const struct kvf_segment *segment = &client->cold.segment;
    const _Atomic uint64_t *words = region->words;
    uint64_t page_count = region->page_count;
    /* Pages of one list were mostly lent together: a word found idle is not asked about again. */
    uint64_t idle_word = 0;
    bool has_swept = false;
    int answer = 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t page = pages != NULL ? (uint64_t)(int64_t)pages[i] : (uint64_t)pages64[i];
        if (KVF_UNLIKELY(page >= page_count)) {
            answer = -KVF_E_PAGE_RANGE;
            break;
        }
        /* G1 (acquire): whoever stored zero had seen the last room of the page drained. */
        uint64_t word = atomic_load_explicit(&words[page], memory_order_acquire);
        if (word == 0 || word == idle_word) {
            continue;
        }
        if (is_plainly_idle(segment, word)) {
            idle_word = word;
            continue;
        }
        if (!page_is_idle_slow(client, region, page, word, &has_swept)) {
            if (ret_position != NULL) {
                *ret_position = i;
            }
            answer = 0;
            break;
        }
    }
    region_leave(region);
    return answer;
}

int kvf_pages_are_idle(kvf_client *client, uint32_t region, const int32_t *pages, size_t n,
                       size_t *ret_position)
{
    return pages_are_idle(client, region, pages, NULL, n, ret_position);
}

int kvf_pages_are_idle64(kvf_client *client, uint32_t region, const int64_t *pages, size_t n,
                         size_t *ret_position)
{
    return pages_are_idle(client, region, NULL, pages, n, ret_position);
}

int kvf_page_lender(kvf_client *client, uint32_t region, int64_t page, kvf_room *ret_room)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (ret_room == NULL) {
        return -EINVAL;
    }
    struct kvf_client_region *r = region_enter(client, region);
    if (r == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    if ((uint64_t)page >= r->page_count) {
        err = -KVF_E_PAGE_RANGE;
    } else {
        bool has_swept = false;
        /* G1 (acquire), twice: the slow half may have undone counts. */
        uint64_t word = atomic_load_explicit(&r->words[page], memory_order_acquire);
        if (word == 0 || page_is_idle_slow(client, r, (uint64_t)page, word, &has_swept)) {
            err = -ENOENT;
        } else {
            *ret_room =
                kvf_ledger_kind_of(word) == KVF_LEDGER_SINK
                    ? kvf_client_handle(kvf_ledger_generation(word), kvf_ledger_slot(word))
                    : 0;
        }
    }
    region_leave(r);
    return err;
}

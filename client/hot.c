/* What schedulers ask all day. No lock, no system call.
 *
 * kvf_poll compares the handle with the live one of its slot and the room word's generation with the
 * handle's; the answer stands ready-made in the word. Everything unusual - another process, a stale or
 * foreign handle, an OPEN the daemon has not read yet, a daemon that is gone - fails one of the two
 * comparisons and is sorted out in kvf_client_room_word. */
#include "client/internal.h"

#include <limits.h>

/* The word of a live handle whose room the daemon knows: both comparisons hold. */
static inline bool has_plain_word(const kvf_client *client, kvf_room room, uint64_t *ret_word)
{
    uint32_t slot = (uint16_t)room;
    /* relaxed: written by the call that returned this handle to the caller. */
    uint64_t live = atomic_load_explicit(&client->hot.handles[slot], memory_order_relaxed);
    if (KVF_UNLIKELY(live != room)) {
        return false;
    }
    /* R1 (acquire): on Success every byte the worker placed is visible, on Failed none can follow. */
    *ret_word =
        atomic_load_explicit(&kvf_client_hot_room(client, slot)->word, memory_order_acquire);
    /* Reserved bits are zero in both; one that is not only costs the slow way. */
    return KVF_LIKELY((*ret_word ^ live) >> 16 == 0);
}

/* The slow halves are apart, so that the fast ones need no stack. */
static __attribute__((noinline, cold)) int poll_slow(const kvf_client *client, kvf_room room)
{
    uint64_t word;
    int err = client == NULL ? -EINVAL : kvf_client_room_word(client, room, &word);
    return err != 0 ? err : (int)kvf_word_poll(word);
}

static inline int poll_one(const kvf_client *client, kvf_room room)
{
    uint64_t word;
    if (KVF_LIKELY(has_plain_word(client, room, &word))) {
        return (int)kvf_word_poll(word);
    }
    return poll_slow(client, room);
}

int kvf_poll(kvf_client *client, kvf_room room)
{
    if (KVF_UNLIKELY(client == NULL)) {
        return poll_slow(client, room);
    }
    return poll_one(client, room);
}

int kvf_poll_many(kvf_client *client, const kvf_room *rooms, size_t n, int32_t *ret_states)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (n > INT_MAX || (n > 0 && (rooms == NULL || ret_states == NULL))) {
        return -EINVAL;
    }
    int ended = 0;
    for (size_t i = 0; i < n; i++) {
        int state = poll_one(client, rooms[i]);
        ret_states[i] = state;
        ended += state == KVF_FAILED || state == KVF_SUCCESS;
    }
    return ended;
}

/* ---- the other questions: the same word, other bits ------------------------------------------------ */

static inline int early_of(uint64_t word)
{
    return (word & KVF_WORD_FAILED_EARLY) != 0 || kvf_word_outcome(word) == KVF_OUTCOME_FAILED;
}

static inline int proof_of(uint64_t word)
{
    int proof = (int)kvf_word_proof(word);
    return kvf_word_is_drained(word) && proof != 0 ? proof : -EAGAIN;
}

static inline int visible_of(uint64_t word)
{
    return (word & KVF_WORD_VISIBLE) != 0;
}

static __attribute__((noinline, cold)) int ask_slow(const kvf_client *client, kvf_room room,
                                                    int (*answer_fn)(uint64_t word))
{
    uint64_t word;
    int err = client == NULL ? -EINVAL : kvf_client_room_word(client, room, &word);
    return err != 0 ? err : answer_fn(word);
}

int kvf_failed_early(kvf_client *client, kvf_room room)
{
    uint64_t word;
    return client != NULL && has_plain_word(client, room, &word)
               ? early_of(word)
               : ask_slow(client, room, early_of);
}

int kvf_drained(kvf_client *client, kvf_room room)
{
    uint64_t word;
    return client != NULL && has_plain_word(client, room, &word)
               ? proof_of(word)
               : ask_slow(client, room, proof_of);
}

int kvf_visible(kvf_client *client, kvf_room room)
{
    uint64_t word;
    return client != NULL && has_plain_word(client, room, &word)
               ? visible_of(word)
               : ask_slow(client, room, visible_of);
}

/* Slots, generations, and what a room's two lines mean together.
 *
 * A slot goes free -> live -> (zombie) -> free, first in first out. Its generation grows with every open,
 * also with one that is taken back, and continues from whatever the segment's lines say: a number that was
 * ever written there is never used again, so a word, a ledger entry or a late message can only name the
 * room it was meant for. A slot comes back only when its word itself says drained: what the library
 * concludes about a worker that is gone lets pages go, but not the slot, whose word is still to be stored. */
#include "client/internal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "ring/lease_word.h"

uint32_t kvf_client_slot_idx(const kvf_client *client, const struct kvf_slot *slot)
{
    return (uint32_t)(slot - client->cold.slots);
}

bool kvf_client_epoch_has_ended(const kvf_client *client, uint64_t epoch)
{
    /* W1 (acquire): entries up to the count are stored. */
    uint32_t count = atomic_load_explicit(&client->cold.ended_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        if (atomic_load_explicit(&client->cold.ended_epochs[i], memory_order_relaxed) ==
            epoch) {
            return true;
        }
    }
    return false;
}

/* Was the worker that served this room reaped, with no supervisor left to say so? */
static bool is_served_by_ended(const kvf_client *client, uint32_t slot, uint64_t generation,
                               uint64_t word)
{
    const struct kvf_intent_shm *intent = &client->cold.segment.intents[slot];
    uint64_t epoch = 0;
    if (kvf_word_generation(word) == generation) {
        epoch =
            atomic_load_explicit(&client->cold.segment.rooms[slot].epoch, memory_order_relaxed);
    }
    if (epoch == 0) {
        /* The worker took the OPEN or not, and stored nothing: the epoch it was written under says whose
         * end proves it. */
        if (atomic_load_explicit(&intent->generation, memory_order_relaxed) != generation) {
            return false;
        }
        epoch = atomic_load_explicit(&intent->epoch, memory_order_relaxed);
    }
    return kvf_client_epoch_has_ended(client, epoch);
}

/* What a device wrote into memory that is not the host's may still be on its way there when the worker has
 * been reaped: the next worker flushes it. */
static bool has_device_pages(const kvf_client *client, uint32_t slot, uint64_t generation)
{
    const struct kvf_intent_shm *intent = &client->cold.segment.intents[slot];
    /* O1 (acquire): behind the generation stands which of its regions are a device's. */
    return atomic_load_explicit(&intent->generation, memory_order_acquire) == generation &&
           atomic_load_explicit(&intent->device_regions, memory_order_relaxed) != 0;
}

/* Is the room, whose word is not drained, drained all the same: its own worker was reaped, no supervisor
 * is left to say so, no external lease is out, and all its pages are the host's? */
static bool has_lost_worker(const kvf_client *client, uint32_t slot, uint64_t generation,
                            uint64_t word)
{
    /* relaxed: epoch_has_ended looks again with acquire. */
    if (atomic_load_explicit(&client->cold.ended_count, memory_order_relaxed) == 0 ||
        !is_served_by_ended(client, slot, generation, word) ||
        has_device_pages(client, slot, generation)) {
        return false;
    }
    const struct kvf_intent_shm *intent = &client->cold.segment.intents[slot];
    /* L2 (acquire): the work of every lease that was returned is behind us. */
    uint64_t lease = atomic_load_explicit(&intent->lease_word, memory_order_acquire);
    return kvf_word_generation(lease) == generation && (lease & KVF_LEASE_CLOSED) != 0 &&
           kvf_lease_is_idle(lease);
}

bool kvf_client_is_drained(const kvf_client *client, uint32_t slot, uint64_t generation)
{
    if (slot >= client->cold.segment.limits.rooms_max) {
        return false;
    }
    /* R1 (acquire). */
    uint64_t word =
        atomic_load_explicit(&client->cold.segment.rooms[slot].word, memory_order_acquire);
    if (kvf_word_generation(word) > generation) {
        return true;
    }
    if (kvf_word_generation(word) == generation && kvf_word_is_drained(word)) {
        return true;
    }
    return has_lost_worker(client, slot, generation, word);
}

/* Its pages are idle. Whether other ranks of its group still move theirs only the next daemon finds out. */
static uint64_t lost_word(uint64_t generation, uint64_t word, bool has_group)
{
    bool was_closed =
        kvf_word_generation(word) == generation && kvf_word_phase(word) != KVF_PHASE_OPEN;
    if (was_closed && kvf_word_outcome(word) == KVF_OUTCOME_SUCCESS) { /* fixed at its close */
        return kvf_word_make(generation, KVF_PHASE_DRAINED, KVF_OUTCOME_SUCCESS,
                             KVF_PROOF_WORKER_GONE, KVF_STATE_SUCCESS, word & KVF_WORD_VISIBLE);
    }
    return kvf_word_make(generation, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED,
                         KVF_PROOF_WORKER_GONE,
                         has_group ? KVF_STATE_TRANSFERRING : KVF_STATE_FAILED,
                         KVF_WORD_FAILED_EARLY | (has_group ? KVF_WORD_GROUP_WAITS : 0));
}

int kvf_client_room_word(const kvf_client *client, kvf_room room, uint64_t *ret_word)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    const struct kvf_cold *cold = &client->cold;
    uint64_t slot = room & KVF_SLOT_MASK;
    uint64_t generation = room >> KVF_GENERATION_SHIFT;
    if (slot >= cold->segment.limits.rooms_max || generation == 0) {
        return -KVF_E_UNKNOWN_ROOM;
    }
    if (atomic_load_explicit(&cold->slots[slot].handle, memory_order_relaxed) != room) {
        /* O1 (relaxed): our own line. */
        uint64_t last =
            atomic_load_explicit(&cold->segment.intents[slot].generation, memory_order_relaxed);
        return generation > last ? -KVF_E_UNKNOWN_ROOM : -KVF_E_STALE_ROOM;
    }
    /* R1 (acquire). */
    uint64_t word = atomic_load_explicit(&cold->segment.rooms[slot].word, memory_order_acquire);
    uint64_t word_generation = kvf_word_generation(word);
    if (word_generation > generation) {
        return -KVF_E_STALE_ROOM;
    }
    if (word_generation == generation && kvf_word_is_drained(word)) {
        *ret_word = word;
    } else if (has_lost_worker(client, (uint32_t)slot, generation, word)) {
        *ret_word = lost_word(generation, word, cold->slots[slot].group != 0);
    } else if (word_generation == generation) {
        *ret_word = word;
    } else {
        *ret_word = kvf_word_make(generation, KVF_PHASE_OPEN, KVF_OUTCOME_NONE, KVF_PROOF_NONE,
                                  KVF_STATE_BOOTSTRAPPING, 0);
    }
    return 0;
}

int kvf_client_epoch(const kvf_client *client, bool is_open, uint64_t *ret_epoch)
{
    const struct kvf_segment_shm *shm = client->cold.segment.shm;
    /* W2 (acquire). */
    if (atomic_load_explicit(&client->cold.is_supervisor_gone, memory_order_acquire)) {
        return -KVF_E_WORKER_GONE;
    }
    if (is_open && atomic_load_explicit(&shm->stopping, memory_order_relaxed) != 0) {
        return -ESHUTDOWN;
    }
    /* E1 (acquire): the worker of this epoch serves, the regions are registered with it. */
    uint64_t epoch = atomic_load_explicit(&shm->worker_epoch, memory_order_acquire);
    if (epoch == 0 || kvf_client_epoch_has_ended(client, epoch)) {
        return -KVF_E_WORKER_GONE;
    }
    *ret_epoch = epoch;
    return 0;
}

struct kvf_slot *kvf_client_slot_find(kvf_client *client, kvf_room room, int *ret_err)
{
    uint64_t word;
    int err = kvf_client_room_word(client, room, &word);
    if (err != 0) {
        *ret_err = err;
        return NULL;
    }
    return &client->cold.slots[room & KVF_SLOT_MASK];
}

/* ---- queues ---------------------------------------------------------------------------------------- */

void kvf_client_slot_queue_push(kvf_client *client, struct kvf_slot_queue *queue, uint32_t idx)
{
    client->cold.slots[idx].next = KVF_NO_INDEX;
    if (queue->count == 0) {
        queue->head = idx;
    } else {
        client->cold.slots[queue->tail].next = idx;
    }
    queue->tail = idx;
    queue->count++;
}

static uint32_t queue_pop(kvf_client *client, struct kvf_slot_queue *queue)
{
    uint32_t idx = queue->head;
    queue->head = client->cold.slots[idx].next;
    queue->count--;
    return idx;
}

static void slot_free(kvf_client *client, uint32_t idx)
{
    client->cold.slots[idx].state = KVF_SLOT_FREE;
    kvf_client_slot_queue_push(client, &client->cold.free_slots, idx);
}

/* The word itself, not what we conclude from a worker's end: only a stored word frees the slot. */
static bool slot_has_drained(const kvf_client *client, uint32_t idx)
{
    /* R1 (acquire). */
    uint64_t word =
        atomic_load_explicit(&client->cold.segment.rooms[idx].word, memory_order_acquire);
    uint64_t generation = client->cold.slots[idx].generation;
    return kvf_word_generation(word) > generation ||
           (kvf_word_generation(word) == generation && kvf_word_is_drained(word));
}

/* ... and no other rank will ask for it: the slot may be used again. */
static bool slot_is_over(const kvf_client *client, uint32_t idx)
{
    /* R1 (acquire). */
    uint64_t word =
        atomic_load_explicit(&client->cold.segment.rooms[idx].word, memory_order_acquire);
    return slot_has_drained(client, idx) &&
           (kvf_word_generation(word) > client->cold.slots[idx].generation ||
            (word & KVF_WORD_GROUP_WAITS) == 0);
}

int kvf_client_slot_take(kvf_client *client, struct kvf_slot **ret_slot)
{
    struct kvf_cold *cold = &client->cold;
    while (cold->free_slots.count != 0) {
        uint32_t idx = queue_pop(client, &cold->free_slots);
        struct kvf_slot *slot = &cold->slots[idx];
        uint64_t word =
            atomic_load_explicit(&cold->segment.rooms[idx].word, memory_order_relaxed);
        if (kvf_word_generation(word) > slot->generation) {
            slot->generation = kvf_word_generation(word);
        }
        if (slot->generation >= KVF_GENERATION_MAX) {
            slot->state = KVF_SLOT_RETIRED;
            continue;
        }
        slot->generation++;
        slot->state = KVF_SLOT_LIVE;
        slot->chunks = KVF_NO_INDEX;
        slot->intervals = KVF_NO_INDEX;
        slot->has_last = 0;
        *ret_slot = slot;
        return 0;
    }
    return cold->zombies.count != 0 ? -EAGAIN : -KVF_E_ROOMS_FULL;
}

void kvf_client_slot_give_back(kvf_client *client, struct kvf_slot *slot)
{
    /* The generation stays used up: it may stand in our line already, where a scan after the worker's
     * end can have read it. */
    slot_free(client, kvf_client_slot_idx(client, slot));
}

/* ---- taking back ------------------------------------------------------------------------------------ */

static void undo_counts(kvf_client *client, uint32_t idx)
{
    struct kvf_cold *cold = &client->cold;
    struct kvf_slot *slot = &cold->slots[idx];
    uint32_t at = slot->chunks;
    while (at != KVF_NO_INDEX) {
        const struct kvf_run_chunk *chunk = kvf_nodes_at(&cold->chunk_nodes, at);
        for (uint32_t i = 0; i < chunk->run_count; i++) {
            const struct kvf_run_shm *run = &chunk->runs[i];
            struct kvf_client_region *region =
                &cold->regions[run->region & 0xffu]; /* alive: unregister waits for its rooms */
            if (atomic_load_explicit(&region->handle, memory_order_relaxed) == run->region) {
                kvf_ledger_undo_source(region->words, run, 1);
            }
        }
        uint32_t next = chunk->next;
        kvf_nodes_give_back(&cold->chunk_nodes, at);
        at = next;
    }
    slot->chunks = KVF_NO_INDEX;
    while (slot->intervals != KVF_NO_INDEX) {
        uint32_t gone = slot->intervals;
        slot->intervals =
            ((struct kvf_interval *)kvf_nodes_at(&cold->interval_nodes, gone))->next;
        kvf_nodes_give_back(&cold->interval_nodes, gone);
    }
    atomic_fetch_and_explicit(&cold->counted[idx / 64u], ~(UINT64_C(1) << (idx % 64u)),
                              memory_order_relaxed);
}

bool kvf_client_sweep_counts(kvf_client *client, bool all)
{
    struct kvf_cold *cold = &client->cold;
    uint32_t words = (cold->segment.limits.rooms_max + 63u) / 64u;
    uint32_t rooms_left = all ? UINT32_MAX : KVF_TIDY_ROOMS_MAX;
    uint32_t words_left = all || words < KVF_TIDY_ROOMS_MAX ? words : KVF_TIDY_ROOMS_MAX;
    bool has_undone = false;
    for (; words_left != 0 && rooms_left != 0; words_left--) {
        uint32_t i = cold->counted_cursor % words;
        uint64_t bits = atomic_load_explicit(&cold->counted[i], memory_order_relaxed);
        for (; bits != 0 && rooms_left != 0; bits &= bits - 1u) {
            uint32_t idx = i * 64u + (uint32_t)__builtin_ctzll(bits);
            if (kvf_client_is_drained(client, idx, cold->slots[idx].generation)) {
                undo_counts(client, idx);
                has_undone = true;
            }
            rooms_left--;
        }
        cold->counted_cursor = (i + 1u) % words;
    }
    return has_undone;
}

static void sweep_zombies(kvf_client *client, bool all)
{
    struct kvf_slot_queue *zombies = &client->cold.zombies;
    uint32_t left =
        all || zombies->count < KVF_TIDY_ROOMS_MAX ? zombies->count : KVF_TIDY_ROOMS_MAX;
    for (; left != 0; left--) {
        uint32_t idx = queue_pop(client, zombies);
        if (!slot_is_over(client, idx)) {
            kvf_client_slot_queue_push(client, zombies, idx);
            continue;
        }
        undo_counts(client, idx);
        slot_free(client, idx);
    }
}

void kvf_client_tidy(kvf_client *client, bool all)
{
    kvf_client_sweep_counts(client, all);
    sweep_zombies(client, all || client->cold.free_slots.count == 0);
}

bool kvf_client_rooms_conclude(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    bool has_changed = false;
    for (uint32_t idx = 0; idx < cold->segment.limits.rooms_max; idx++) {
        const struct kvf_slot *slot = &cold->slots[idx];
        if ((slot->state != KVF_SLOT_LIVE && slot->state != KVF_SLOT_ZOMBIE) ||
            slot_has_drained(client, idx)) {
            continue;
        }
        uint64_t word =
            atomic_load_explicit(&cold->segment.rooms[idx].word, memory_order_acquire); /* R1 */
        if (!is_served_by_ended(client, idx, slot->generation, word)) {
            continue;
        }
        /* Nobody else is left to close it: from now on no lease is taken, and with the last one back the
         * room is drained. */
        uint64_t leases;
        (void)kvf_lease_close(&cold->segment.intents[idx].lease_word, slot->generation,
                              &leases);
        atomic_store_explicit(&client->hot.handles[idx], kvf_client_no_handle(idx),
                              memory_order_relaxed);
        has_changed = true;
    }
    return has_changed;
}

/* ---- abort and release ------------------------------------------------------------------------------ */

void kvf_client_wake_worker(const kvf_client *client)
{
    /* D1 (seq_cst): after the push or the dirty bit. The worker sets the flag and then looks at both. */
    if (atomic_load_explicit(&client->cold.segment.shm->sleeping, memory_order_seq_cst) != 0) {
        /* The only failure is a counter that is full, and then it is readable anyway. */
        (void)eventfd_write(client->cold.doorbell_fd, 1);
    }
}

void kvf_client_abort_slot(kvf_client *client, struct kvf_slot *slot, uint32_t reason)
{
    struct kvf_segment *segment = &client->cold.segment;
    uint32_t idx = kvf_client_slot_idx(client, slot);
    _Atomic uint64_t *cell = &segment->intents[idx].abort_cell;
    uint64_t seen = atomic_load_explicit(cell, memory_order_relaxed);
    if (kvf_word_generation(seen) == slot->generation && (seen & KVF_ABORT_SET) != 0) {
        return; /* the first reason stays */
    }
    /* A1 (release): the mark that follows tells the worker to look here. */
    atomic_store_explicit(cell,
                          slot->generation << KVF_GENERATION_SHIFT | KVF_ABORT_SET | reason,
                          memory_order_release);
    kvf_dirty_mark(segment->dirty, idx);
    kvf_client_wake_worker(client);
}

int kvf_abort(kvf_client *client, kvf_room room, uint32_t reason)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (reason > KVF_ABORT_REASON_MASK) {
        return -KVF_E_OPTION;
    }
    pthread_mutex_lock(&client->cold.lock);
    struct kvf_slot *slot = kvf_client_slot_find(client, room, &err);
    if (slot != NULL &&
        !kvf_client_is_drained(client, kvf_client_slot_idx(client, slot), slot->generation)) {
        kvf_client_abort_slot(client, slot, reason != 0 ? reason : KVF_E_ABORTED);
    }
    pthread_mutex_unlock(&client->cold.lock);
    return err;
}

int kvf_release(kvf_client *client, kvf_room room)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    struct kvf_cold *cold = &client->cold;
    pthread_mutex_lock(&cold->lock);
    struct kvf_slot *slot = kvf_client_slot_find(client, room, &err);
    if (slot != NULL) {
        uint32_t idx = kvf_client_slot_idx(client, slot);
        atomic_store_explicit(&slot->handle, 0, memory_order_relaxed);
        atomic_store_explicit(&client->hot.handles[idx], kvf_client_no_handle(idx),
                              memory_order_relaxed);
        if (slot_is_over(client, idx)) {
            undo_counts(client, idx);
            slot_free(client, idx);
        } else {
            if (!kvf_client_is_drained(client, idx, slot->generation)) {
                kvf_client_abort_slot(client, slot, KVF_E_ABORTED);
            }
            slot->state = KVF_SLOT_ZOMBIE;
            kvf_client_slot_queue_push(client, &cold->zombies, idx);
        }
    }
    kvf_client_tidy(client, false);
    pthread_mutex_unlock(&cold->lock);
    return err;
}

/* ---- external leases -------------------------------------------------------------------------------- */

static int lease_refusal(int err)
{
    switch (err) {
    case -ESTALE:
        return -KVF_E_STALE_ROOM;
    case -ESHUTDOWN:
        return -KVF_E_LEASE_CLOSED;
    case -EINVAL:
        return -KVF_E_LEASE_KIND;
    default:
        return err;
    }
}

int kvf_lease(kvf_client *client, kvf_room room, int kind)
{
    uint64_t word;
    int err = client == NULL ? -EINVAL : kvf_client_room_word(client, room, &word);
    if (err != 0) {
        return err;
    }
    struct kvf_intent_shm *intent = &client->cold.segment.intents[room & KVF_SLOT_MASK];
    return lease_refusal(kvf_lease_take(&intent->lease_word, room >> KVF_GENERATION_SHIFT,
                                        (enum kvf_lease_kind)kind));
}

int kvf_lease_give_back(kvf_client *client, kvf_room room, int kind)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    /* Also for a room that was released meanwhile: its lease is still out, and the word names the
     * generation. */
    uint64_t slot = room & KVF_SLOT_MASK;
    if (slot >= client->cold.segment.limits.rooms_max) {
        return -KVF_E_UNKNOWN_ROOM;
    }
    struct kvf_intent_shm *intent = &client->cold.segment.intents[slot];
    int rc = kvf_lease_return(&intent->lease_word, room >> KVF_GENERATION_SHIFT,
                              (enum kvf_lease_kind)kind);
    if (rc == 1) {
        kvf_dirty_mark(client->cold.segment.dirty, (uint32_t)slot);
        kvf_client_wake_worker(client);
        rc = 0;
    }
    return lease_refusal(rc);
}

#include "sidecar/reap.h"

#include <errno.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/room_word.h"

/* The line may still speak of the slot's room before: its OPEN was never read. If anybody served it, then the worker
 * that it was written for: every other one refuses it. */
static void forget_earlier_room(const struct kvf_intent_shm *intent, struct kvf_room_shm *room)
{
    /* relaxed: stored before the generation, which was loaded with O1. */
    uint64_t epoch = atomic_load_explicit(&intent->epoch, memory_order_relaxed);
    atomic_store_explicit(&room->epoch, epoch, memory_order_relaxed);
    atomic_store_explicit(&room->detail, 0, memory_order_relaxed);
    atomic_store_explicit(&room->placed_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&room->total_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&room->total_pages, 0, memory_order_relaxed);
    atomic_store_explicit(&room->close_to_drained_ns, 0, memory_order_relaxed);
}

static void publish(const struct kvf_segment *segment, uint32_t slot, uint64_t word,
                    uint32_t reason)
{
    struct kvf_room_shm *room = &segment->rooms[slot];
    uint64_t before = atomic_load_explicit(&room->word, memory_order_relaxed);
    if (kvf_word_generation(before) != kvf_word_generation(word)) {
        forget_earlier_room(&segment->intents[slot], room);
    }
    atomic_store_explicit(&room->group_waits, 0, memory_order_relaxed); /* nobody knows it */
    atomic_store_explicit(&room->reason, reason, memory_order_relaxed);
    atomic_store_explicit(&room->unproven, 0, memory_order_relaxed);
    /* R1 (release): whoever sees the word sees the line, and every byte a dead worker placed: its stores
     * happened before its end, and its end before the reaping that let us come here. D2 (seq_cst): it stands before
     * the number of lost events and the datagram that follow. */
    atomic_store_explicit(&room->word, word, memory_order_seq_cst);
}

/* The outcome was fixed when the room closed: everything had arrived, and only leases were out. */
static bool has_succeeded(uint64_t generation, uint64_t before)
{
    return kvf_word_generation(before) == generation &&
           kvf_word_phase(before) != KVF_PHASE_OPEN &&
           kvf_word_outcome(before) == KVF_OUTCOME_SUCCESS;
}

/* A room of a group is drained like any other, and shown as failed only by a worker that has heard of the
 * other ranks: the next one asks them. */
static uint64_t ended_word(const struct kvf_segment *segment, uint32_t slot,
                           uint64_t generation, uint64_t before, enum kvf_phase phase,
                           enum kvf_proof proof)
{
    if (has_succeeded(generation, before)) {
        return kvf_word_make(generation, phase, KVF_OUTCOME_SUCCESS, proof,
                             phase == KVF_PHASE_DRAINED ? KVF_STATE_SUCCESS
                                                        : KVF_STATE_TRANSFERRING,
                             before & (KVF_WORD_VISIBLE | KVF_WORD_STARTED));
    }
    /* relaxed: stored before the generation, which was loaded with O1. */
    bool has_group =
        atomic_load_explicit(&segment->intents[slot].group, memory_order_relaxed) != 0;
    bool is_shown = phase == KVF_PHASE_DRAINED && !has_group;
    uint64_t waits = phase == KVF_PHASE_DRAINED && has_group ? KVF_WORD_GROUP_WAITS : 0;
    return kvf_word_make(generation, phase, KVF_OUTCOME_FAILED, proof,
                         is_shown ? KVF_STATE_FAILED : KVF_STATE_TRANSFERRING,
                         KVF_WORD_FAILED_EARLY | waits);
}

/* The generation of a room that was opened and does not read as drained, 0 if there is none. Its lease
 * word is closed; *ret_leases is what was found in it. */
static uint64_t find_undrained(const struct kvf_segment *segment, uint32_t slot,
                               uint64_t *ret_word, uint64_t *ret_leases)
{
    struct kvf_intent_shm *intent = &segment->intents[slot];
    /* O1 (acquire): the generation of an OPEN that was, or is about to be, pushed. */
    uint64_t generation = atomic_load_explicit(&intent->generation, memory_order_acquire);
    if (generation == 0 || generation > KVF_GENERATION_MAX) {
        return 0;
    }
    uint64_t word = atomic_load_explicit(&segment->rooms[slot].word, memory_order_relaxed);
    if (kvf_word_generation(word) > generation ||
        (kvf_word_generation(word) == generation && kvf_word_is_drained(word))) {
        return 0;
    }
    /* The library resets the lease word before it names the generation: another one in it is spoiled
     * memory, which hurts its own client only. */
    if (kvf_lease_close(&intent->lease_word, generation, ret_leases) != 0) {
        return 0;
    }
    *ret_word = word;
    return generation;
}

/* What a device wrote into another one's memory is proven by the next worker's flush, not by the end of this one.
 * The line is its engine's: what that may have made of it delays rooms of its own, or proves them to itself. */
static bool is_unflushed(const struct kvf_segment *segment, uint32_t slot)
{
    /* relaxed: stored before the generation, which was loaded with O1. */
    return atomic_load_explicit(&segment->intents[slot].device_regions, memory_order_relaxed) !=
           0;
}

enum kvf_reap kvf_reap_room(const struct kvf_segment *segment, uint32_t slot,
                            bool is_engine_gone, uint64_t *ret_generation)
{
    uint64_t word = 0;
    uint64_t leases = 0;
    uint64_t generation = find_undrained(segment, slot, &word, &leases);
    if (generation == 0) {
        return KVF_REAP_NOTHING;
    }
    if (ret_generation != NULL) {
        *ret_generation = generation;
    }
    uint32_t cpu = kvf_lease_count(leases, KVF_LEASE_CPU);
    uint32_t device =
        kvf_lease_count(leases, KVF_LEASE_GPU) + kvf_lease_count(leases, KVF_LEASE_DIRECT_IO);
    uint32_t reason = has_succeeded(generation, word) ? 0 : KVF_E_WORKER_GONE;
    bool are_leases_proven = device == 0 && (cpu == 0 || is_engine_gone);
    bool is_held = is_engine_gone && !are_leases_proven;
    if (are_leases_proven && !is_unflushed(segment, slot)) {
        enum kvf_proof proof = cpu == 0 ? KVF_PROOF_WORKER_GONE : KVF_PROOF_ENGINE_GONE;
        publish(segment, slot,
                ended_word(segment, slot, generation, word, KVF_PHASE_DRAINED, proof), reason);
        return cpu == 0 ? KVF_REAP_WORKER_GONE : KVF_REAP_ENGINE_GONE;
    }
    /* Quarantine ends by proof or by an operator's word, not because somebody who does not know of the
     * engine's end looks at the room. */
    bool was_quarantined = kvf_word_generation(word) == generation &&
                           kvf_word_phase(word) == KVF_PHASE_QUARANTINED;
    enum kvf_phase phase =
        is_held || was_quarantined ? KVF_PHASE_QUARANTINED : KVF_PHASE_CLOSING;
    if (kvf_word_generation(word) != generation || kvf_word_phase(word) != phase) {
        publish(segment, slot,
                ended_word(segment, slot, generation, word, phase, KVF_PROOF_NONE), reason);
    }
    return is_held ? KVF_REAP_HELD : KVF_REAP_LEASED;
}

bool kvf_reap_has_succeeded(const struct kvf_segment *segment, uint32_t slot)
{
    uint64_t word = atomic_load_explicit(&segment->rooms[slot].word, memory_order_relaxed);
    return kvf_word_outcome(word) == KVF_OUTCOME_SUCCESS;
}

void kvf_reap_unread(const struct kvf_segment *segment, uint32_t slot, uint32_t reason)
{
    uint64_t word = 0;
    uint64_t leases = 0;
    uint64_t generation = find_undrained(segment, slot, &word, &leases);
    if (generation != 0 && kvf_lease_is_idle(leases)) {
        publish(segment, slot,
                ended_word(segment, slot, generation, word, KVF_PHASE_DRAINED,
                           KVF_PROOF_NEVER_POSTED),
                reason);
    }
}

/* What a worker's end publishes, on a real segment. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "ring/segment.h"
#include "sidecar/reap.h"

static struct kvf_segment segment;

static void setup(void)
{
    struct kvf_segment_limits limits = {.rooms_max = 64,
                                        .cmd_slots = 16,
                                        .event_slots = 16,
                                        .arena_bytes = 4096,
                                        .regions_max = KVF_REGIONS_PER_CLIENT_MAX};
    int fd = -1;
    cr_assert_eq(kvf_segment_create(&limits, 1, &fd), 0);
    cr_assert_eq(kvf_segment_map(fd, true, &segment), 0);
    close(fd);
}
static void teardown(void)
{
    kvf_segment_unmap(&segment);
}
TestSuite(reap_room, .init = setup, .fini = teardown);

/* What a library writes before it pushes an OPEN. */
static void intend(uint32_t slot, uint64_t generation)
{
    struct kvf_intent_shm *intent = &segment.intents[slot];
    atomic_store(&intent->lease_word, kvf_lease_word_make(generation));
    atomic_store(&intent->generation, generation);
}

static void set_word(uint32_t slot, uint64_t generation, enum kvf_phase phase,
                     enum kvf_proof proof)
{
    atomic_store(&segment.rooms[slot].word, kvf_word_make(generation, phase, KVF_OUTCOME_NONE,
                                                          proof, KVF_STATE_TRANSFERRING, 0));
}

static uint64_t word_of(uint32_t slot)
{
    return atomic_load(&segment.rooms[slot].word);
}

static void expect_drained(uint32_t slot, uint64_t generation, enum kvf_proof proof)
{
    uint64_t word = word_of(slot);
    cr_assert_eq(kvf_word_generation(word), generation);
    cr_assert(kvf_word_is_drained(word));
    cr_assert_eq(kvf_word_poll(word), KVF_STATE_FAILED);
    cr_assert_eq(kvf_word_outcome(word), KVF_OUTCOME_FAILED);
    cr_assert_eq(kvf_word_proof(word), proof);
    cr_assert_neq(word & KVF_WORD_FAILED_EARLY, 0);
    cr_assert_eq(word & KVF_WORD_VISIBLE, 0);
}

Test(reap_room, an_unused_slot_stays_as_it_is)
{
    cr_assert_eq(kvf_reap_room(&segment, 0, false, NULL), KVF_REAP_NOTHING);
    cr_assert_eq(word_of(0), 0);
}

Test(reap_room, an_open_room_is_drained_by_the_workers_end)
{
    uint64_t generation = 0;
    intend(3, 7);
    set_word(3, 7, KVF_PHASE_OPEN, KVF_PROOF_NONE);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, &generation), KVF_REAP_WORKER_GONE);
    cr_assert_eq(generation, 7);
    expect_drained(3, 7, KVF_PROOF_WORKER_GONE);
    cr_assert_eq(atomic_load(&segment.rooms[3].reason), KVF_E_WORKER_GONE);
}

Test(reap_room, h35_an_open_that_was_taken_off_the_ring_and_never_answered_is_drained_too)
{
    set_word(3, 6, KVF_PHASE_DRAINED, KVF_PROOF_LANDED);
    intend(3, 7);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_WORKER_GONE);
    expect_drained(3, 7, KVF_PROOF_WORKER_GONE);
}

Test(reap_room, h30_a_word_already_drained_at_that_generation_is_never_written_over)
{
    intend(3, 7);
    set_word(3, 7, KVF_PHASE_DRAINED, KVF_PROOF_LANDED);
    uint64_t before = word_of(3);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_NOTHING);
    cr_assert_eq(word_of(3), before);
    kvf_reap_unread(&segment, 3, KVF_E_CLIENT_DROPPED);
    cr_assert_eq(word_of(3), before);
}

Test(reap_room, walking_twice_publishes_once)
{
    intend(3, 7);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_WORKER_GONE);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_NOTHING);
}

/* Memory that the host does not own: the next worker's flush is the proof. */
Test(reap_room, a_room_with_pages_of_a_device_is_left_to_the_next_worker)
{
    intend(3, 7);
    atomic_store(&segment.intents[3].device_regions, 2);
    set_word(3, 7, KVF_PHASE_OPEN, KVF_PROOF_NONE);
    for (int i = 0; i < 2;
         i++) { /* the supervisor, and the next worker as it takes the segment */
        cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_LEASED);
        cr_assert_eq(kvf_word_phase(word_of(3)), KVF_PHASE_CLOSING);
        cr_assert_eq(kvf_word_poll(word_of(3)), KVF_STATE_TRANSFERRING);
        cr_assert_eq(word_of(3) & KVF_WORD_VISIBLE, 0);
        cr_assert_neq(word_of(3) & KVF_WORD_FAILED_EARLY, 0);
    }
    cr_assert_eq(kvf_lease_take(&segment.intents[3].lease_word, 7, KVF_LEASE_CPU), -ESHUTDOWN);
    /* A dead engine's process proves its own work, and nothing of a device's. */
    cr_assert_eq(kvf_reap_room(&segment, 3, true, NULL), KVF_REAP_LEASED);
    cr_assert_eq(kvf_word_phase(word_of(3)), KVF_PHASE_CLOSING);
}

/* Whose devices wrote there decides who may prove it, and the line still names the writer of the slot's room before. */
Test(reap_room, a_room_whose_open_was_never_read_names_the_worker_it_was_for)
{
    set_word(5, 6, KVF_PHASE_DRAINED, KVF_PROOF_LANDED);
    atomic_store(&segment.rooms[5].epoch, 33);
    intend(5, 7);
    atomic_store(&segment.intents[5].epoch, 44);
    atomic_store(&segment.intents[5].device_regions, 1);
    cr_assert_eq(kvf_reap_room(&segment, 5, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(atomic_load(&segment.rooms[5].epoch), 44);
    atomic_store(&segment.intents[5].epoch, 55);
    cr_assert_eq(kvf_reap_room(&segment, 5, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(atomic_load(&segment.rooms[5].epoch), 44, "once it is published it stays");
}

Test(reap_room, a_room_of_a_device_that_had_succeeded_stays_a_success_and_is_not_visible)
{
    intend(3, 7);
    atomic_store(&segment.intents[3].device_regions, 1);
    atomic_store(&segment.rooms[3].word,
                 kvf_word_make(7, KVF_PHASE_CLOSING, KVF_OUTCOME_SUCCESS, KVF_PROOF_NONE,
                               KVF_STATE_TRANSFERRING, 0));
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(kvf_word_outcome(word_of(3)), KVF_OUTCOME_SUCCESS);
    cr_assert_not(kvf_word_is_drained(word_of(3)));
    cr_assert_eq(word_of(3) & KVF_WORD_VISIBLE, 0);
}

Test(reap_room, a_room_of_a_device_whose_flush_had_failed_stays_in_quarantine)
{
    intend(3, 7);
    atomic_store(&segment.intents[3].device_regions, 1);
    set_word(3, 7, KVF_PHASE_QUARANTINED, KVF_PROOF_NONE);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(kvf_word_phase(word_of(3)), KVF_PHASE_QUARANTINED);
}

Test(reap_room, the_lease_word_is_closed_before_anything_is_published)
{
    intend(3, 7);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_WORKER_GONE);
    cr_assert_lt(kvf_lease_take(&segment.intents[3].lease_word, 7, KVF_LEASE_CPU), 0);
}

Test(reap_room, a_lease_holds_the_room_until_it_is_returned)
{
    intend(3, 7);
    cr_assert_eq(kvf_lease_take(&segment.intents[3].lease_word, 7, KVF_LEASE_GPU), 0);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(kvf_word_phase(word_of(3)), KVF_PHASE_CLOSING);
    cr_assert_eq(kvf_word_poll(word_of(3)), KVF_STATE_TRANSFERRING);
    cr_assert_eq(kvf_lease_return(&segment.intents[3].lease_word, 7, KVF_LEASE_GPU), 1);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_WORKER_GONE);
    expect_drained(3, 7, KVF_PROOF_WORKER_GONE);
}

Test(reap_room, h13_the_engines_end_proves_leases_of_kind_cpu_and_no_others)
{
    intend(3, 7);
    intend(4, 7);
    cr_assert_eq(kvf_lease_take(&segment.intents[3].lease_word, 7, KVF_LEASE_CPU), 0);
    cr_assert_eq(kvf_lease_take(&segment.intents[4].lease_word, 7, KVF_LEASE_DIRECT_IO), 0);
    cr_assert_eq(kvf_reap_room(&segment, 3, true, NULL), KVF_REAP_ENGINE_GONE);
    expect_drained(3, 7, KVF_PROOF_ENGINE_GONE);
    cr_assert_eq(kvf_reap_room(&segment, 4, true, NULL), KVF_REAP_HELD);
    cr_assert_eq(kvf_word_phase(word_of(4)), KVF_PHASE_QUARANTINED);
}

/* Everything had arrived when the room closed, and only a lease of its engine was out. */
Test(reap_room, an_outcome_fixed_at_the_close_outlives_the_worker)
{
    uint64_t closing =
        kvf_word_make(7, KVF_PHASE_CLOSING, KVF_OUTCOME_SUCCESS, KVF_PROOF_NONE,
                      KVF_STATE_TRANSFERRING, KVF_WORD_VISIBLE | KVF_WORD_STARTED);
    intend(3, 7);
    atomic_store(&segment.rooms[3].word, closing);
    cr_assert_eq(kvf_lease_take(&segment.intents[3].lease_word, 7, KVF_LEASE_CPU), 0);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(word_of(3), closing);
    cr_assert_eq(kvf_lease_return(&segment.intents[3].lease_word, 7, KVF_LEASE_CPU), 1);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_WORKER_GONE);
    cr_assert_eq(word_of(3),
                 kvf_word_make(7, KVF_PHASE_DRAINED, KVF_OUTCOME_SUCCESS, KVF_PROOF_WORKER_GONE,
                               KVF_STATE_SUCCESS, KVF_WORD_VISIBLE | KVF_WORD_STARTED));
    cr_assert_eq(atomic_load(&segment.rooms[3].reason), 0);
    /* The word of an older room in the slot says nothing of this one. */
    intend(4, 8);
    atomic_store(&segment.rooms[4].word, closing);
    cr_assert_eq(kvf_reap_room(&segment, 4, false, NULL), KVF_REAP_WORKER_GONE);
    expect_drained(4, 8, KVF_PROOF_WORKER_GONE);
}

Test(reap_room, a_quarantine_is_not_lifted_by_who_does_not_know_of_the_engines_end)
{
    intend(4, 7);
    cr_assert_eq(kvf_lease_take(&segment.intents[4].lease_word, 7, KVF_LEASE_DIRECT_IO), 0);
    cr_assert_eq(kvf_reap_room(&segment, 4, true, NULL), KVF_REAP_HELD);
    uint64_t held = word_of(4);
    cr_assert_eq(kvf_reap_room(&segment, 4, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(word_of(4), held);
}

Test(reap_room, a_spoiled_generation_or_lease_word_publishes_nothing)
{
    intend(3, KVF_GENERATION_MAX + 1u);
    cr_assert_eq(kvf_reap_room(&segment, 3, false, NULL), KVF_REAP_NOTHING);
    intend(4, 7);
    atomic_store(&segment.intents[4].lease_word, kvf_lease_word_make(9));
    cr_assert_eq(kvf_reap_room(&segment, 4, false, NULL), KVF_REAP_NOTHING);
    cr_assert_eq(word_of(4), 0);
}

Test(reap_room, an_open_that_a_closed_client_left_unread_was_never_posted)
{
    intend(3, 7);
    intend(4, 7);
    cr_assert_eq(kvf_lease_take(&segment.intents[4].lease_word, 7, KVF_LEASE_CPU), 0);
    kvf_reap_unread(&segment, 3, KVF_E_CLIENT_DROPPED);
    expect_drained(3, 7, KVF_PROOF_NEVER_POSTED);
    cr_assert_eq(atomic_load(&segment.rooms[3].reason), KVF_E_CLIENT_DROPPED);
    kvf_reap_unread(&segment, 4, KVF_E_CLIENT_DROPPED);
    cr_assert_not(kvf_word_is_drained(word_of(4)));
}

/* ---- groups: drained by the same proof, and not shown as failed before the other ranks are heard ------ */

static void intend_in_group(uint32_t slot, uint64_t generation)
{
    atomic_store(&segment.intents[slot].group, 3);
    atomic_store(&segment.intents[slot].key, 0xabc);
    intend(slot, generation);
}

static void expect_waiting(uint32_t slot, uint64_t generation, enum kvf_proof proof)
{
    uint64_t word = word_of(slot);
    cr_assert_eq(kvf_word_generation(word), generation);
    cr_assert(kvf_word_is_drained(word));
    cr_assert_eq(kvf_word_poll(word), KVF_STATE_TRANSFERRING);
    cr_assert_neq(word & KVF_WORD_GROUP_WAITS, 0);
    cr_assert_eq(kvf_word_outcome(word), KVF_OUTCOME_FAILED);
    cr_assert_eq(kvf_word_proof(word), proof);
    cr_assert_eq(atomic_load(&segment.rooms[slot].group_waits), 0, "nobody knows yet");
}

Test(reap_room, a_room_of_a_group_is_drained_and_waits_for_the_next_worker)
{
    atomic_store(&segment.rooms[4].group_waits, 0x6); /* of an earlier generation */
    intend_in_group(4, 7);
    set_word(4, 7, KVF_PHASE_OPEN, KVF_PROOF_NONE);
    cr_assert_eq(kvf_reap_room(&segment, 4, false, NULL), KVF_REAP_WORKER_GONE);
    expect_waiting(4, 7, KVF_PROOF_WORKER_GONE);
    cr_assert_eq(kvf_reap_room(&segment, 4, false, NULL), KVF_REAP_NOTHING, "told once");
    expect_waiting(4, 7, KVF_PROOF_WORKER_GONE);
}

Test(reap_room, a_lease_on_a_room_of_a_group_holds_it_and_the_engines_end_proves_it)
{
    intend_in_group(5, 7);
    cr_assert_eq(kvf_lease_take(&segment.intents[5].lease_word, 7, KVF_LEASE_CPU), 0);
    cr_assert_eq(kvf_reap_room(&segment, 5, false, NULL), KVF_REAP_LEASED);
    cr_assert_eq(kvf_word_phase(word_of(5)), KVF_PHASE_CLOSING);
    cr_assert_eq(word_of(5) & KVF_WORD_GROUP_WAITS, 0);
    cr_assert_eq(kvf_reap_room(&segment, 5, true, NULL), KVF_REAP_ENGINE_GONE);
    expect_waiting(5, 7, KVF_PROOF_ENGINE_GONE);
}

Test(reap_room, an_unread_open_of_a_group_waits_too)
{
    intend_in_group(6, 7);
    kvf_reap_unread(&segment, 6, KVF_E_CLIENT_DROPPED);
    expect_waiting(6, 7, KVF_PROOF_NEVER_POSTED);
    /* The slot's next room has no group. */
    atomic_store(&segment.intents[6].group, 0);
    intend(6, 8);
    kvf_reap_unread(&segment, 6, KVF_E_CLIENT_DROPPED);
    expect_drained(6, 8, KVF_PROOF_NEVER_POSTED);
}

#include <criterion/criterion.h>

#include "ring/room_word.h"

Test(ring_room_word, every_field_comes_back_from_the_word)
{
    const uint64_t generations[] = {0, 1, 77, (UINT64_C(1) << 32) + 3, KVF_GENERATION_MAX};
    const uint64_t flags[] = {0,
                              KVF_WORD_VISIBLE,
                              KVF_WORD_GROUP_WAITS,
                              KVF_WORD_FAILED_EARLY,
                              KVF_WORD_STARTED,
                              KVF_WORD_VISIBLE | KVF_WORD_GROUP_WAITS | KVF_WORD_FAILED_EARLY |
                                  KVF_WORD_STARTED};
    const uint64_t flags_all = flags[5];
    for (size_t g = 0; g < sizeof generations / sizeof generations[0]; g++) {
        for (int phase = KVF_PHASE_FREE; phase <= KVF_PHASE_DRAINED; phase++) {
            for (int outcome = KVF_OUTCOME_NONE; outcome <= KVF_OUTCOME_FAILED; outcome++) {
                for (int proof = KVF_PROOF_NONE; proof < KVF_PROOF_COUNT; proof++) {
                    for (int poll = KVF_STATE_FAILED; poll <= KVF_STATE_SUCCESS; poll++) {
                        for (size_t f = 0; f < sizeof flags / sizeof flags[0]; f++) {
                            uint64_t word =
                                kvf_word_make(generations[g], (enum kvf_phase)phase,
                                              (enum kvf_outcome)outcome, (enum kvf_proof)proof,
                                              (enum kvf_poll_state)poll, flags[f]);
                            cr_assert_eq(kvf_word_generation(word), generations[g]);
                            cr_assert_eq((int)kvf_word_phase(word), phase);
                            cr_assert_eq((int)kvf_word_outcome(word), outcome);
                            cr_assert_eq((int)kvf_word_proof(word), proof);
                            cr_assert_eq((int)kvf_word_poll(word), poll);
                            cr_assert_eq(word & flags_all, flags[f]);
                            cr_assert_eq(kvf_word_is_drained(word), phase == KVF_PHASE_DRAINED);
                        }
                    }
                }
            }
        }
    }
}

Test(ring_room_word, a_fresh_word_is_a_free_slot_of_generation_0_and_not_drained)
{
    cr_assert_eq(
        kvf_word_make(0, KVF_PHASE_FREE, KVF_OUTCOME_NONE, KVF_PROOF_NONE, KVF_STATE_FAILED, 0),
        0);
    cr_assert(!kvf_word_is_drained(0));
}

Test(ring_room_word, a_proof_with_a_larger_number_is_the_weaker_one)
{
    cr_assert_lt(KVF_PROOF_NEVER_POSTED, KVF_PROOF_LANDED);
    cr_assert_lt(KVF_PROOF_LANDED, KVF_PROOF_PEER_DRAINED);
    cr_assert_lt(KVF_PROOF_PEER_DRAINED, KVF_PROOF_REVOKED);
    cr_assert_lt(KVF_PROOF_REVOKED, KVF_PROOF_FENCED);
    cr_assert_lt(KVF_PROOF_FENCED, KVF_PROOF_WORKER_GONE);
    cr_assert_lt(KVF_PROOF_WORKER_GONE, KVF_PROOF_ENGINE_GONE);
    cr_assert_lt(KVF_PROOF_ENGINE_GONE, KVF_PROOF_OPERATOR);
}

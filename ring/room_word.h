/* The 64-bit word in which the daemon tells an engine everything it may act on.
 *
 *   63........24  23.............16  15      14      13     12       11..8   7..6     5..3    2..0
 *   generation    reserved (zero)    started early   group  visible  proof   outcome  phase   poll
 *
 * One store publishes it (edge R1), one load reads it: whoever sees DRAINED with an acquire load also
 * sees every byte that the worker placed before. The poll number is stored ready-made so that asking
 * costs a load, a compare and a mask. */
#ifndef KVF_RING_ROOM_WORD_H
#define KVF_RING_ROOM_WORD_H

#include <stdbool.h>
#include <stdint.h>

#define KVF_GENERATION_SHIFT 24u
#define KVF_GENERATION_MAX ((UINT64_C(1) << 40) - 1u)
#define KVF_SLOT_MASK UINT64_C(0xffffff)

/* The numbers are those of SGLang's KVPoll: schedulers MIN-reduce them over ranks. */
enum kvf_poll_state {
    KVF_STATE_FAILED = 0,
    KVF_STATE_BOOTSTRAPPING = 1,
    KVF_STATE_WAITING_FOR_INPUT = 2,
    KVF_STATE_TRANSFERRING = 3,
    KVF_STATE_SUCCESS = 4,
};

enum kvf_phase {
    KVF_PHASE_FREE = 0,
    KVF_PHASE_OPEN = 1,
    KVF_PHASE_CLOSING = 2,
    KVF_PHASE_FENCING = 3,
    KVF_PHASE_QUARANTINED = 4,
    KVF_PHASE_DRAINED = 5,
};

enum kvf_outcome { KVF_OUTCOME_NONE = 0, KVF_OUTCOME_SUCCESS = 1, KVF_OUTCOME_FAILED = 2 };

/* Ordered from the strongest to the weakest: a room shows the largest number any of its
 * (grant, lane) pairs used. OPERATOR is no proof but a person's explicit word. */
enum kvf_proof {
    KVF_PROOF_NONE = 0,
    KVF_PROOF_NEVER_POSTED = 1,
    KVF_PROOF_LANDED = 2,
    KVF_PROOF_SOURCE_IDLE = 3,
    KVF_PROOF_PEER_DRAINED = 4,
    KVF_PROOF_REVOKED = 5,
    KVF_PROOF_FENCED = 6,
    KVF_PROOF_WORKER_GONE = 7,
    KVF_PROOF_ENGINE_GONE = 8,
    KVF_PROOF_OPERATOR = 9,
    KVF_PROOF_COUNT
};

#define KVF_WORD_VISIBLE (UINT64_C(1) << 12)
#define KVF_WORD_GROUP_WAITS (UINT64_C(1) << 13)
#define KVF_WORD_FAILED_EARLY (UINT64_C(1) << 14)
#define KVF_WORD_STARTED (UINT64_C(1) << 15)

static inline uint64_t kvf_word_make(uint64_t generation, enum kvf_phase phase,
                                     enum kvf_outcome outcome, enum kvf_proof proof,
                                     enum kvf_poll_state poll, uint64_t flags)
{
    return generation << KVF_GENERATION_SHIFT | flags | (uint64_t)proof << 8 |
           (uint64_t)outcome << 6 | (uint64_t)phase << 3 | (uint64_t)poll;
}
static inline uint64_t kvf_word_generation(uint64_t word)
{
    return word >> KVF_GENERATION_SHIFT;
}
static inline enum kvf_poll_state kvf_word_poll(uint64_t word)
{
    return (enum kvf_poll_state)(word & 7u);
}
static inline enum kvf_phase kvf_word_phase(uint64_t word)
{
    return (enum kvf_phase)(word >> 3 & 7u);
}
static inline enum kvf_outcome kvf_word_outcome(uint64_t word)
{
    return (enum kvf_outcome)(word >> 6 & 3u);
}
static inline enum kvf_proof kvf_word_proof(uint64_t word)
{
    return (enum kvf_proof)(word >> 8 & 15u);
}
static inline bool kvf_word_is_drained(uint64_t word)
{
    return kvf_word_phase(word) == KVF_PHASE_DRAINED;
}

#endif

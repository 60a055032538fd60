/* Luck in streams. A stream is made from (seed, entity, counter) and not from what was drawn before, so taking
 * one operation out of a scenario does not change the luck of all the others: a failing history shrinks. */
#ifndef KVF_TESTS_SIM_RANDOM_H
#define KVF_TESTS_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MILLION 1000000u

struct sim_random {
    uint64_t state;
};

/* splitmix64's mixer: every input bit moves half of the output bits. */
static inline uint64_t sim_random_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline struct sim_random sim_random_stream(uint64_t seed, uint64_t entity,
                                                  uint64_t counter)
{
    uint64_t x = sim_random_mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    x = sim_random_mix(x ^ (entity + UINT64_C(0xd1b54a32d192ed03)));
    x = sim_random_mix(x ^ (counter + UINT64_C(0x8cb92ba72f3d8dd7)));
    return (struct sim_random){x};
}

static inline uint64_t sim_random_next(struct sim_random *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_random_mix(random->state);
}

/* 0 .. bound - 1; 0 for a bound of 0. The bias of the multiplication is below 2^-32 for bounds of 32 bits. */
static inline uint64_t sim_random_below(struct sim_random *random, uint64_t bound)
{
    if (bound <= 1) {
        return 0;
    }
    uint64_t x = sim_random_next(random);
    return bound <= UINT32_MAX ? ((x >> 32) * bound) >> 32 : x % bound;
}

/* min .. max, both included. */
static inline uint64_t sim_random_between(struct sim_random *random, uint64_t min, uint64_t max)
{
    return max > min ? min + sim_random_below(random, max - min + 1) : min;
}

/* Draws only if the answer can be either. */
static inline bool sim_random_chance(struct sim_random *random, uint32_t per_million)
{
    if (per_million == 0) {
        return false;
    }
    return per_million >= SIM_MILLION || sim_random_below(random, SIM_MILLION) < per_million;
}

#endif

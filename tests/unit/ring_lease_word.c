#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "ring/lease_word.h"
#include "ring/room_word.h"

static const enum kvf_lease_kind kinds[] = {KVF_LEASE_CPU, KVF_LEASE_GPU, KVF_LEASE_DIRECT_IO};
static const uint32_t maxima[] = {511, 127, 127};

static uint64_t look(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

Test(ring_lease_word, each_kind_counts_up_to_its_maximum_and_apart_from_the_others)
{
    _Atomic uint64_t word = kvf_lease_word_make(KVF_GENERATION_MAX);
    for (int k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < maxima[k]; i++) {
            cr_assert_eq(kvf_lease_take(&word, KVF_GENERATION_MAX, kinds[k]), 0);
        }
        cr_assert_eq(kvf_lease_take(&word, KVF_GENERATION_MAX, kinds[k]), -EOVERFLOW);
    }
    for (int k = 0; k < 3; k++) {
        cr_assert_eq(kvf_lease_count(look(&word), kinds[k]), maxima[k]);
    }
    cr_assert_eq(kvf_word_generation(look(&word)), KVF_GENERATION_MAX);
    cr_assert_eq(look(&word) & KVF_LEASE_CLOSED, 0);
    for (int k = 0; k < 3; k++) {
        cr_assert_not(kvf_lease_is_idle(look(&word)));
        for (uint32_t i = 0; i < maxima[k]; i++) {
            cr_assert_eq(kvf_lease_return(&word, KVF_GENERATION_MAX, kinds[k]), 0);
        }
        cr_assert_eq(kvf_lease_return(&word, KVF_GENERATION_MAX, kinds[k]), -ENOENT);
    }
    cr_assert(kvf_lease_is_idle(look(&word)));
    cr_assert_eq(look(&word), kvf_lease_word_make(KVF_GENERATION_MAX));
}

Test(ring_lease_word, another_generation_is_stale_for_every_call_and_changes_nothing)
{
    _Atomic uint64_t word = kvf_lease_word_make(7);
    cr_assert_eq(kvf_lease_take(&word, 7, KVF_LEASE_GPU), 0);
    uint64_t before = look(&word);
    uint64_t out = 42;
    for (uint64_t generation = 6; generation <= 8; generation += 2) {
        cr_assert_eq(kvf_lease_take(&word, generation, KVF_LEASE_GPU), -ESTALE);
        cr_assert_eq(kvf_lease_return(&word, generation, KVF_LEASE_GPU), -ESTALE);
        cr_assert_eq(kvf_lease_close(&word, generation, &out), -ESTALE);
    }
    cr_assert_eq(out, 42);
    cr_assert_eq(look(&word), before);
}

Test(ring_lease_word, an_unknown_kind_is_refused)
{
    _Atomic uint64_t word = kvf_lease_word_make(7);
    cr_assert_eq(kvf_lease_take(&word, 7, (enum kvf_lease_kind)3), -EINVAL);
    cr_assert_eq(kvf_lease_return(&word, 7, (enum kvf_lease_kind) - 1), -EINVAL);
    cr_assert_eq(kvf_lease_count(look(&word), (enum kvf_lease_kind)9), 0);
}

Test(ring_lease_word, nothing_is_taken_once_closed_and_closing_twice_is_the_same)
{
    _Atomic uint64_t word = kvf_lease_word_make(3);
    cr_assert_eq(kvf_lease_take(&word, 3, KVF_LEASE_DIRECT_IO), 0);
    uint64_t out = 0;
    cr_assert_eq(kvf_lease_close(&word, 3, &out), 0);
    cr_assert_eq(kvf_lease_count(out, KVF_LEASE_DIRECT_IO), 1);
    cr_assert_neq(out & KVF_LEASE_CLOSED, 0);
    for (int k = 0; k < 3; k++) {
        cr_assert_eq(kvf_lease_take(&word, 3, kinds[k]), -ESHUTDOWN);
    }
    cr_assert_eq(kvf_lease_close(&word, 3, &out), 0);
    cr_assert_eq(out, look(&word));
}

Test(ring_lease_word, only_the_return_that_leaves_closed_at_zero_says_so)
{
    _Atomic uint64_t word = kvf_lease_word_make(3);
    cr_assert_eq(kvf_lease_take(&word, 3, KVF_LEASE_CPU), 0);
    cr_assert_eq(kvf_lease_return(&word, 3, KVF_LEASE_CPU), 0, "open at zero wakes nobody");
    for (int k = 0; k < 3; k++) {
        cr_assert_eq(kvf_lease_take(&word, 3, kinds[k]), 0);
    }
    uint64_t out;
    cr_assert_eq(kvf_lease_close(&word, 3, &out), 0);
    cr_assert_eq(kvf_lease_return(&word, 3, KVF_LEASE_CPU), 0);
    cr_assert_eq(kvf_lease_return(&word, 3, KVF_LEASE_GPU), 0);
    cr_assert_eq(kvf_lease_return(&word, 3, KVF_LEASE_DIRECT_IO), 1);
    cr_assert(kvf_lease_is_idle(look(&word)));
}

/* Each thread writes a plain word of its own while it holds a lease. The closer reads all of them once
 * the word is CLOSED at zero: TSan sees whether L2 carries the writes over. */
#define TAKERS 2

struct lease_race {
    _Atomic uint64_t word;
    uint64_t generation;
    uint64_t touched[TAKERS];
    _Atomic uint32_t said_idle;
};

struct taker {
    struct lease_race *race;
    int idx;
};

static void *take_until_closed(void *ctx)
{
    struct taker *taker = ctx;
    struct lease_race *race = taker->race;
    for (;;) {
        int err = kvf_lease_take(&race->word, race->generation, kinds[taker->idx]);
        if (err != 0) {
            cr_assert_eq(err, -ESHUTDOWN);
            return NULL;
        }
        race->touched[taker->idx]++;
        int said = kvf_lease_return(&race->word, race->generation, kinds[taker->idx]);
        cr_assert_geq(said, 0);
        atomic_fetch_add_explicit(&race->said_idle, (uint32_t)said, memory_order_relaxed);
        if (race->touched[taker->idx] % 64u == 0) {
            sched_yield(); /* few cores: let the closer in */
        }
    }
}

Test(ring_lease_word, after_closed_at_zero_no_lease_is_out_whatever_the_race)
{
    for (uint64_t round = 0; round < 200; round++) {
        struct lease_race race = {.word = kvf_lease_word_make(round), .generation = round};
        struct taker takers[TAKERS];
        pthread_t threads[TAKERS];
        for (int i = 0; i < TAKERS; i++) {
            takers[i] = (struct taker){.race = &race, .idx = i};
            cr_assert_eq(pthread_create(&threads[i], NULL, take_until_closed, &takers[i]), 0);
        }
        for (uint64_t spin = 0; spin < round % 50; spin++) {
            sched_yield();
        }
        uint64_t out;
        cr_assert_eq(kvf_lease_close(&race.word, round, &out), 0);
        int closer_saw_idle = kvf_lease_is_idle(out);
        while (!kvf_lease_is_idle(out)) {
            out = look(&race.word); /* L2 (acquire) */
        }
        uint64_t sum = race.touched[0] + race.touched[1];
        for (int i = 0; i < TAKERS; i++) {
            pthread_join(threads[i], NULL);
        }
        cr_assert_eq(race.touched[0] + race.touched[1], sum,
                     "a lease was taken after the word read closed at zero");
        cr_assert_eq((int)race.said_idle, closer_saw_idle ? 0 : 1,
                     "exactly one side notices the end");
    }
}

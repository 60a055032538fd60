#include <criterion/criterion.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/layout.h"
#include "ring/segment.h"

#define WORDS_MAX (KVF_DIRTY_SUMMARY_WORDS + KVF_ROOMS_PER_CLIENT_MAX / 64u)

static _Atomic uint64_t *dirty_make(void)
{
    return calloc(WORDS_MAX, sizeof(uint64_t));
}

Test(ring_dirty, every_slot_is_taken_exactly_once)
{
    _Atomic uint64_t *dirty = dirty_make();
    uint32_t slots[8];
    cr_assert_eq(kvf_dirty_is_pending(dirty), 0);
    for (uint32_t slot = 0; slot < KVF_ROOMS_PER_CLIENT_MAX; slot++) {
        kvf_dirty_mark(dirty, slot);
        kvf_dirty_mark(dirty, slot);
        cr_assert_eq(kvf_dirty_is_pending(dirty), 1);
        cr_assert_eq(kvf_dirty_take(dirty, KVF_ROOMS_PER_CLIENT_MAX, slots, 8), 1);
        cr_assert_eq(slots[0], slot);
        cr_assert_eq(kvf_dirty_is_pending(dirty), 0);
    }
    free((void *)dirty);
}

Test(ring_dirty, what_does_not_fit_stays_marked)
{
    const uint32_t maxima[] = {1, 3, 63, 64, 65, 1000};
    for (size_t m = 0; m < sizeof maxima / sizeof maxima[0]; m++) {
        _Atomic uint64_t *dirty = dirty_make();
        unsigned char *seen = calloc(KVF_ROOMS_PER_CLIENT_MAX, 1);
        uint32_t marked = 0;
        for (uint32_t slot = 0; slot < KVF_ROOMS_PER_CLIENT_MAX; slot += 1 + slot % 97) {
            kvf_dirty_mark(dirty, slot);
            seen[slot] = 1;
            marked++;
        }
        uint32_t slots[1000];
        while (kvf_dirty_is_pending(dirty)) {
            uint32_t taken = kvf_dirty_take(dirty, KVF_ROOMS_PER_CLIENT_MAX, slots, maxima[m]);
            cr_assert_leq(taken, maxima[m]);
            cr_assert(taken == maxima[m] || taken == marked);
            for (uint32_t i = 0; i < taken; i++) {
                cr_assert_eq(seen[slots[i]], 1);
                seen[slots[i]] = 0;
            }
            marked -= taken;
        }
        cr_assert_eq(marked, 0);
        free(seen);
        free((void *)dirty);
    }
}

Test(ring_dirty, bits_that_name_no_room_are_dropped_and_nothing_beyond_is_read)
{
    /* As large as a segment of 70 rooms makes it: ASan watches the end. */
    _Atomic uint64_t *dirty = calloc(KVF_DIRTY_SUMMARY_WORDS + 2, sizeof(uint64_t));
    for (uint32_t i = 0; i < KVF_DIRTY_SUMMARY_WORDS + 2; i++) {
        atomic_store(&dirty[i], UINT64_MAX);
    }
    uint32_t slots[200];
    cr_assert_eq(kvf_dirty_take(dirty, 70, slots, 200), 70);
    for (uint32_t i = 0; i < 70; i++) {
        cr_assert_eq(slots[i], i);
    }
    cr_assert_eq(kvf_dirty_is_pending(dirty), 0);
    cr_assert_eq(kvf_dirty_take(dirty, 70, slots, 200), 0);
    free((void *)dirty);
}

#define MARKERS 2
#define RACE_ROOMS 200u
#define RACE_MARKS 40000u

/* Abort cells as plain words: each marker writes its own half of them before the mark, the taker reads
 * them after the take. TSan sees whether A1 carries the write over; the counts show a lost mark. */
struct dirty_race {
    _Atomic uint64_t *dirty;
    _Atomic uint64_t cells[RACE_ROOMS];
    uint64_t plain[RACE_ROOMS];
    _Atomic uint32_t markers_left;
};

struct marker {
    struct dirty_race *race;
    uint32_t idx;
};

static void *mark_own_rooms(void *ctx)
{
    struct marker *marker = ctx;
    struct dirty_race *race = marker->race;
    for (uint64_t i = 1; i <= RACE_MARKS; i++) {
        uint32_t slot = (uint32_t)(i * 7u % (RACE_ROOMS / MARKERS)) * MARKERS + marker->idx;
        if (i <= RACE_ROOMS / MARKERS) {
            race->plain[slot] = slot + 1u; /* once, before its first mark */
        }
        atomic_store_explicit(&race->cells[slot], i, memory_order_relaxed);
        kvf_dirty_mark(race->dirty, slot);
    }
    atomic_fetch_sub_explicit(&race->markers_left, 1, memory_order_release);
    return NULL;
}

Test(ring_dirty, no_mark_is_lost_when_marking_races_with_taking)
{
    struct dirty_race *race = calloc(1, sizeof *race);
    race->dirty = dirty_make();
    race->markers_left = MARKERS;
    struct marker markers[MARKERS];
    pthread_t threads[MARKERS];
    uint64_t last[RACE_ROOMS] = {0};
    for (uint32_t i = 0; i < MARKERS; i++) {
        markers[i] = (struct marker){.race = race, .idx = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, mark_own_rooms, &markers[i]), 0);
    }
    int is_last_look = 0;
    while (!is_last_look || kvf_dirty_is_pending(race->dirty)) {
        is_last_look = atomic_load_explicit(&race->markers_left, memory_order_acquire) == 0;
        uint32_t slots[5];
        uint32_t taken = kvf_dirty_take(race->dirty, RACE_ROOMS, slots, 5);
        for (uint32_t i = 0; i < taken; i++) {
            cr_assert_eq(race->plain[slots[i]], slots[i] + 1u);
            last[slots[i]] = atomic_load_explicit(&race->cells[slots[i]], memory_order_relaxed);
        }
    }
    for (uint32_t i = 0; i < MARKERS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (uint32_t slot = 0; slot < RACE_ROOMS; slot++) {
        cr_assert_eq(last[slot], atomic_load(&race->cells[slot]),
                     "slot %u: its last mark was not taken", slot);
    }
    free((void *)race->dirty);
    free(race);
}

/* Races are tried for as many rounds as asked for, or as fit into this time on a busy machine. */
#define RACE_SECONDS 8

static time_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

struct announce {
    _Atomic uint64_t *dirty;
    uint64_t plain; /* what the mark announces */
    _Alignas(64) _Atomic uint64_t round_started;
    _Alignas(64) _Atomic uint64_t round_ended;
    _Atomic int is_stopping;
};

#define ANNOUNCE_ROUNDS 200000u

static void await(_Atomic uint64_t *counter, uint64_t value)
{
    for (uint32_t spins = 1; atomic_load_explicit(counter, memory_order_acquire) != value;
         spins++) {
        if (spins % 1000u == 0) {
            sched_yield();
        }
    }
}

static void *mark_once_a_round(void *ctx)
{
    struct announce *announce = ctx;
    for (uint64_t round = 1;; round++) {
        await(&announce->round_started, round);
        if (atomic_load_explicit(&announce->is_stopping, memory_order_relaxed)) {
            return NULL;
        }
        announce->plain = round;
        kvf_dirty_mark(announce->dirty, 70);
        atomic_store_explicit(&announce->round_ended, round, memory_order_release);
    }
}

static uint32_t take_all(struct announce *announce, uint64_t round)
{
    uint32_t slots[4];
    uint32_t taken = kvf_dirty_take(announce->dirty, 128, slots, 4);
    for (uint32_t i = 0; i < taken; i++) {
        cr_assert(slots[i] == 71 || (slots[i] == 70 && announce->plain == round));
    }
    return taken;
}

/* One mark a round beside one that is there already, so that the worker takes the summary bit while the
 * marker stands between leaf and summary. No later mark heals a lost one. */
Test(ring_dirty, a_mark_set_while_its_word_is_taken_is_announced_again, .timeout = 100)
{
    struct announce announce = {.dirty = dirty_make()};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, mark_once_a_round, &announce), 0);
    time_t end = seconds_now() + RACE_SECONDS;
    uint64_t round = 1;
    for (; round <= ANNOUNCE_ROUNDS && seconds_now() < end; round++) {
        uint32_t marks = 0;
        kvf_dirty_mark(announce.dirty, 71);
        atomic_store_explicit(&announce.round_started, round, memory_order_release);
        for (_Atomic uint64_t pause = 0; pause < round % 64u; pause++) {
        }
        marks += take_all(&announce, round);
        await(&announce.round_ended, round);
        while (kvf_dirty_is_pending(announce.dirty)) {
            marks += take_all(&announce, round);
        }
        cr_assert_eq(marks, 2, "round %llu", (unsigned long long)round);
    }
    atomic_store_explicit(&announce.is_stopping, 1, memory_order_relaxed);
    atomic_store_explicit(&announce.round_started, round, memory_order_release);
    pthread_join(thread, NULL);
    free((void *)announce.dirty);
}

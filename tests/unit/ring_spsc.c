/* The command ring: order, bounds, wrap-around, take-over, and what a torn side leaves behind. */
#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/spsc.h"

#define SLOTS_MAX 64u

struct slot {
    uint64_t seq;
    uint64_t words[7];
};
_Static_assert(sizeof(struct slot) == KVF_SLOT_BYTES, "slot");

struct ring {
    _Alignas(64) struct slot slots[SLOTS_MAX];
    struct kvf_spsc_producer producer;
    struct kvf_spsc_consumer consumer;
};

static void ring_init(struct ring *ring, uint32_t slot_count, uint64_t start)
{
    memset(ring->slots, 0, sizeof ring->slots);
    kvf_spsc_format(ring->slots, slot_count, start);
    kvf_spsc_producer_init(&ring->producer, ring->slots, slot_count, start);
    kvf_spsc_consumer_init(&ring->consumer, ring->slots, slot_count, start);
}

static struct slot slot_make(uint64_t number)
{
    struct slot slot = {.seq = UINT64_C(0xdeadbeef)};
    for (uint64_t i = 0; i < 7; i++) {
        slot.words[i] = number * 7u + i;
    }
    return slot;
}

static void expect_slot(const struct slot *slot, uint64_t number)
{
    for (uint64_t i = 0; i < 7; i++) {
        cr_assert_eq(slot->words[i], number * 7u + i, "word %d of command %llu", (int)i,
                     (unsigned long long)number);
    }
}

static uint32_t push_one(struct ring *ring, uint64_t number)
{
    struct slot slot = slot_make(number);
    return kvf_spsc_push(&ring->producer, &slot, 1);
}

static void expect_pop(struct ring *ring, uint64_t number)
{
    struct slot slot;
    cr_assert_eq(kvf_spsc_pop(&ring->consumer, &slot, 1), 1);
    expect_slot(&slot, number);
}

static const uint64_t starts[] = {0, (UINT64_C(1) << 32) - 3, UINT64_MAX - 2,
                                  (UINT64_C(1) << 63) - 3};
#define START_COUNT (sizeof starts / sizeof starts[0])

Test(ring_spsc, i6_commands_come_out_once_in_order_across_every_wrap)
{
    for (size_t s = 0; s < START_COUNT; s++) {
        for (uint32_t slot_count = 2; slot_count <= SLOTS_MAX; slot_count *= 2) {
            struct ring ring;
            ring_init(&ring, slot_count, starts[s]);
            uint64_t popped = 0;
            for (uint64_t pushed = 0; pushed < 300; pushed++) {
                cr_assert_eq(push_one(&ring, pushed), 1);
                if (pushed - popped + 1 == slot_count || pushed % 3 == 0) {
                    expect_pop(&ring, popped++);
                }
            }
        }
    }
}

Test(ring_spsc, a_full_ring_takes_nothing_and_loses_nothing)
{
    for (size_t s = 0; s < START_COUNT; s++) {
        for (uint32_t slot_count = 2; slot_count <= 8; slot_count *= 2) {
            struct ring ring;
            ring_init(&ring, slot_count, starts[s]);
            for (uint32_t i = 0; i < slot_count; i++) {
                cr_assert_eq(kvf_spsc_has_room(&ring.producer), 1);
                cr_assert_eq(push_one(&ring, i), 1);
            }
            cr_assert_eq(kvf_spsc_has_room(&ring.producer), 0);
            cr_assert_eq(push_one(&ring, 99), 0);
            expect_pop(&ring, 0);
            cr_assert_eq(kvf_spsc_has_room(&ring.producer), 1);
            cr_assert_eq(push_one(&ring, slot_count), 1);
            cr_assert_eq(push_one(&ring, 99), 0);
            for (uint32_t i = 1; i <= slot_count; i++) {
                expect_pop(&ring, i);
            }
        }
    }
}

Test(ring_spsc, an_empty_ring_gives_nothing_and_says_so)
{
    for (size_t s = 0; s < START_COUNT; s++) {
        struct ring ring;
        ring_init(&ring, 4, starts[s]);
        struct slot out = {.seq = 5};
        for (uint32_t i = 0; i < 11; i++) {
            cr_assert_eq(kvf_spsc_is_pending(&ring.consumer), 0);
            cr_assert_eq(kvf_spsc_pop(&ring.consumer, &out, 1), 0);
            cr_assert_eq(push_one(&ring, i), 1);
            cr_assert_eq(kvf_spsc_is_pending(&ring.consumer), 1);
            expect_pop(&ring, i);
        }
    }
}

Test(ring_spsc, a_batch_is_cut_at_what_fits_and_at_what_waits)
{
    for (size_t s = 0; s < START_COUNT; s++) {
        struct ring ring;
        ring_init(&ring, 8, starts[s]);
        struct slot in[12];
        for (uint32_t i = 0; i < 12; i++) {
            in[i] = slot_make(i);
        }
        struct slot out[12];
        cr_assert_eq(kvf_spsc_push(&ring.producer, in, 5), 5);
        cr_assert_eq(kvf_spsc_pop(&ring.consumer, out, 2), 2);
        cr_assert_eq(kvf_spsc_push_seq_cst(&ring.producer, in + 5, 7), 5);
        cr_assert_eq(kvf_spsc_pop(&ring.consumer, out + 2, 10), 8);
        cr_assert_eq(kvf_spsc_pop(&ring.consumer, out, 1), 0);
        for (uint32_t i = 0; i < 10; i++) {
            expect_slot(&out[i], i);
        }
    }
}

/* A producer that dies between its payload and the sequence number: the consumer sees an empty ring, and
 * the next producer writes over the remains. */
Test(ring_spsc, i1_what_a_torn_producer_wrote_is_invisible)
{
    struct ring ring;
    ring_init(&ring, 4, 0);
    cr_assert_eq(push_one(&ring, 0), 1);
    memset(ring.slots[1].words, 0xee, sizeof ring.slots[1].words);
    expect_pop(&ring, 0);
    cr_assert_eq(kvf_spsc_is_pending(&ring.consumer), 0);
    struct slot out;
    cr_assert_eq(kvf_spsc_pop(&ring.consumer, &out, 1), 0);

    uint64_t producer_pos;
    uint64_t consumer_pos;
    cr_assert_eq(kvf_spsc_recover(ring.slots, 4, &producer_pos, &consumer_pos), 0);
    cr_assert_eq(producer_pos, 1);
    kvf_spsc_producer_init(&ring.producer, ring.slots, 4, producer_pos);
    cr_assert_eq(push_one(&ring, 1), 1);
    expect_pop(&ring, 1);
}

/* A producer that is stopped, not dead, inside a push, for as long as it likes: its ring is its own, so the
 * others' are served, and its command comes out once when it goes on. */
Test(ring_spsc, i2_a_producer_stopped_inside_a_push_holds_up_its_own_ring_alone)
{
    static struct ring stopped;
    static struct ring other;
    ring_init(&stopped, 4, 0);
    ring_init(&other, 4, 0);
    struct slot half = slot_make(0);
    memcpy(stopped.slots[0].words, half.words, sizeof half.words / 2);
    for (uint64_t i = 0; i < 1000; i++) {
        struct slot out;
        cr_assert_eq(kvf_spsc_pop(&stopped.consumer, &out, 1), 0);
        cr_assert_eq(push_one(&other, i), 1);
        expect_pop(&other, i);
    }
    cr_assert_eq(push_one(&stopped, 0), 1); /* the rest of the same push */
    expect_pop(&stopped, 0);
    cr_assert_eq(kvf_spsc_is_pending(&stopped.consumer), 0);
}

Test(ring_spsc, recover_finds_both_positions_at_every_fill_and_wrap)
{
    for (size_t s = 0; s < START_COUNT; s++) {
        for (uint32_t slot_count = 2; slot_count <= 16; slot_count *= 2) {
            for (uint32_t filled = 0; filled <= slot_count; filled++) {
                struct ring ring;
                ring_init(&ring, slot_count, starts[s]);
                for (uint64_t i = 0; i < 3 * (uint64_t)slot_count; i++) {
                    for (uint32_t j = 0; j < filled; j++) {
                        cr_assert_eq(push_one(&ring, j), 1);
                    }
                    uint64_t producer_pos;
                    uint64_t consumer_pos;
                    cr_assert_eq(
                        kvf_spsc_recover(ring.slots, slot_count, &producer_pos, &consumer_pos),
                        0);
                    cr_assert_eq(producer_pos, ring.producer.pos);
                    cr_assert_eq(consumer_pos, ring.consumer.pos);
                    for (uint32_t j = 0; j < filled; j++) {
                        expect_pop(&ring, j);
                    }
                    cr_assert_eq(push_one(&ring, 0), 1);
                    expect_pop(&ring, 0);
                }
            }
        }
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Random changes of one or two sequence numbers, small and large: recover refuses, or what it answers is
 * a state that a ring can be in. */
Test(ring_spsc, recover_refuses_numbers_of_no_ring)
{
    uint64_t state = 88172645463325252u;
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        struct ring ring;
        uint32_t slot_count = 2u << random_next(&state) % 4u;
        ring_init(&ring, slot_count, starts[random_next(&state) % START_COUNT]);
        for (uint64_t i = random_next(&state) % slot_count; i > 0; i--) {
            cr_assert_eq(push_one(&ring, i), 1);
        }
        for (uint64_t i = 1 + random_next(&state) % 2; i > 0; i--) {
            uint64_t seq = ring.slots[random_next(&state) % slot_count].seq;
            uint64_t change = random_next(&state);
            seq += (change & 1) != 0 ? random_next(&state) : (change >> 1) % (4u * slot_count);
            ring.slots[random_next(&state) % slot_count].seq = seq;
        }
        uint64_t producer_pos;
        uint64_t consumer_pos;
        int err = kvf_spsc_recover(ring.slots, slot_count, &producer_pos, &consumer_pos);
        if (err != 0) {
            cr_assert_eq(err, -EPROTO);
            refused++;
            continue;
        }
        cr_assert_leq(producer_pos - consumer_pos, slot_count);
        for (uint64_t pos = consumer_pos; pos != consumer_pos + slot_count; pos++) {
            uint64_t seq = ring.slots[pos & (slot_count - 1u)].seq;
            cr_assert_eq(seq, pos - consumer_pos < producer_pos - consumer_pos ? pos + 1 : pos);
        }
    }
    cr_assert_gt(refused, 10000);
}

/* Races are tried for as many rounds as asked for, or as fit into this time on a busy machine. */
#define RACE_SECONDS 8

static time_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

struct race {
    struct ring ring;
    _Atomic int is_stopping;
    _Atomic uint64_t pushed;
};

static void *push_until_stopped(void *ctx)
{
    struct race *race = ctx;
    uint64_t number = 0;
    while (!atomic_load_explicit(&race->is_stopping, memory_order_relaxed)) {
        uint32_t pushed = push_one(&race->ring, number);
        number += pushed;
        if (pushed == 0) {
            sched_yield();
        }
    }
    atomic_store_explicit(&race->pushed, number, memory_order_relaxed);
    return NULL;
}

/* The next worker takes a ring over while the engine goes on pushing: again and again the consumer is
 * thrown away and found anew, and no command is lost or seen twice. */
Test(ring_spsc, a_consumer_is_taken_over_under_a_live_producer, .timeout = 100)
{
    struct race *race = aligned_alloc(64, (sizeof *race + 63u) & ~(size_t)63u);
    memset(race, 0, sizeof *race);
    ring_init(&race->ring, 16, UINT64_MAX - 40);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, push_until_stopped, race), 0);
    uint64_t popped = 0;
    time_t end = seconds_now() + RACE_SECONDS;
    for (uint32_t round = 0; popped < 200000 && seconds_now() < end; round++) {
        uint64_t producer_pos;
        uint64_t consumer_pos;
        int err = kvf_spsc_recover(race->ring.slots, 16, &producer_pos, &consumer_pos);
        cr_assert_eq(err, 0);
        cr_assert_eq(consumer_pos, race->ring.consumer.pos);
        kvf_spsc_consumer_init(&race->ring.consumer, race->ring.slots, 16, consumer_pos);
        struct slot out[3];
        uint32_t got = kvf_spsc_pop(&race->ring.consumer, out, 1 + round % 3);
        if (got == 0) {
            sched_yield();
        }
        for (uint32_t i = 0; i < got; i++) {
            expect_slot(&out[i], popped++);
        }
    }
    atomic_store_explicit(&race->is_stopping, 1, memory_order_relaxed);
    pthread_join(thread, NULL);
    struct slot out;
    while (kvf_spsc_pop(&race->ring.consumer, &out, 1) == 1) {
        expect_slot(&out, popped++);
    }
    cr_assert_eq(popped, atomic_load_explicit(&race->pushed, memory_order_relaxed));
    free(race);
}

/* Both sides at the same moment, again and again: the producer pushes and looks at the flag, the consumer
 * sets the flag and looks at the ring. At least one must see the other, or a wake-up would be lost. */
struct dekker {
    struct ring ring;
    _Alignas(64) _Atomic uint32_t sleeping;
    _Alignas(64) _Atomic uint64_t round_started;
    _Alignas(64) _Atomic uint64_t round_ended;
    _Atomic int is_stopping;
    uint32_t producer_saw_flag;
};

#define DEKKER_ROUNDS 200000u

static void await(_Atomic uint64_t *counter, uint64_t value)
{
    for (uint32_t spins = 1; atomic_load_explicit(counter, memory_order_acquire) != value;
         spins++) {
        if (spins % 1000u == 0) {
            sched_yield();
        }
    }
}

static void *push_and_look(void *ctx)
{
    struct dekker *dekker = ctx;
    for (uint64_t round = 1;; round++) {
        struct slot slot = slot_make(round);
        await(&dekker->round_started, round);
        if (atomic_load_explicit(&dekker->is_stopping, memory_order_relaxed)) {
            return NULL;
        }
        kvf_spsc_push_seq_cst(&dekker->ring.producer, &slot, 1);
        /* D1 (seq_cst). */
        dekker->producer_saw_flag =
            atomic_load_explicit(&dekker->sleeping, memory_order_seq_cst);
        atomic_store_explicit(&dekker->round_ended, round, memory_order_release);
    }
}

Test(ring_spsc, no_wake_up_is_lost_between_push_and_sleep, .timeout = 100)
{
    struct dekker *dekker = aligned_alloc(64, (sizeof *dekker + 63u) & ~(size_t)63u);
    memset(dekker, 0, sizeof *dekker);
    ring_init(&dekker->ring, 2, 0);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, push_and_look, dekker), 0);
    time_t end = seconds_now() + RACE_SECONDS;
    uint64_t round = 1;
    for (; round <= DEKKER_ROUNDS && seconds_now() < end; round++) {
        atomic_store_explicit(&dekker->sleeping, 0, memory_order_relaxed);
        atomic_store_explicit(&dekker->round_started, round, memory_order_release);
        for (_Atomic uint64_t pause = 0; pause < round % 64u; pause++) {
        }
        /* D1 (seq_cst). */
        atomic_store_explicit(&dekker->sleeping, 1, memory_order_seq_cst);
        int consumer_saw_slot = kvf_spsc_is_pending(&dekker->ring.consumer);
        await(&dekker->round_ended, round);
        cr_assert(consumer_saw_slot || dekker->producer_saw_flag, "round %llu: both missed",
                  (unsigned long long)round);
        expect_pop(&dekker->ring, round);
    }
    atomic_store_explicit(&dekker->is_stopping, 1, memory_order_relaxed);
    atomic_store_explicit(&dekker->round_started, round, memory_order_release);
    pthread_join(thread, NULL);
    free(dekker);
}

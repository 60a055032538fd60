/* What the other side of a shared word can do between any two instructions of ours. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "ring/segment.h"
#include "ring/spsc.h"
#include "tests/unit/step.h"

static void skip_without_steps(void)
{
    if (!STEP_IS_HERE) {
        cr_skip_test("single steps need x86-64, and no sanitizer beside them");
    }
}

/* ---- leases ---------------------------------------------------------------------------------------------- */

struct lease_pair {
    _Atomic uint64_t word;
    uint64_t closed_at; /* what the closer was told */
    int taken;          /* of the take beside it */
    int returned;
};

static void close_it(void *ctx)
{
    struct lease_pair *l = ctx;
    (void)kvf_lease_close(&l->word, 7, &l->closed_at);
}
static void take_it(void *ctx)
{
    struct lease_pair *l = ctx;
    l->taken = kvf_lease_take(&l->word, 7, KVF_LEASE_GPU);
}
static void take_and_return_it(void *ctx)
{
    struct lease_pair *l = ctx;
    take_it(l);
    l->returned = l->taken == 0 ? kvf_lease_return(&l->word, 7, KVF_LEASE_GPU) : 0;
}
static void return_it(void *ctx)
{
    struct lease_pair *l = ctx;
    l->returned = kvf_lease_return(&l->word, 7, KVF_LEASE_CPU);
}

Test(ring_steps, a_lease_taken_inside_a_close_is_counted_or_refused, .init = skip_without_steps)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        struct lease_pair l = {.word = kvf_lease_word_make(7), .taken = -1};
        is_inside = step_call(at, close_it, take_it, &l);
        uint64_t word = atomic_load_explicit(&l.word, memory_order_relaxed);
        cr_assert_neq(word & KVF_LEASE_CLOSED, 0);
        if (!is_inside) {
            break;
        }
        cr_assert(l.taken == 0 || l.taken == -ESHUTDOWN);
        cr_assert_eq(kvf_lease_count(word, KVF_LEASE_GPU), l.taken == 0 ? 1 : 0, "step %u", at);
        /* What the closer goes by says the same: there is one, or none can follow. */
        cr_assert_eq(kvf_lease_count(l.closed_at, KVF_LEASE_GPU), l.taken == 0 ? 1 : 0,
                     "step %u", at);
    }
    cr_assert_gt(at, 5);
}

Test(ring_steps, a_lease_that_comes_and_goes_inside_a_close_is_lost_to_nobody,
     .init = skip_without_steps)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        struct lease_pair l = {.word = kvf_lease_word_make(7)};
        is_inside = step_call(at, close_it, take_and_return_it, &l);
        uint64_t word = atomic_load_explicit(&l.word, memory_order_relaxed);
        cr_assert(kvf_lease_is_idle(word));
        cr_assert_geq(l.returned, 0, "step %u", at);
    }
    cr_assert_gt(at, 5);
}

/* Exactly one of the two sees CLOSED at zero: the return says so, or the close does. */
Test(ring_steps, one_side_sees_the_last_return_whichever_comes_first,
     .init = skip_without_steps)
{
    for (uint32_t order = 0; order < 2; order++) {
        uint32_t at = 1;
        for (bool is_inside = true; is_inside; at++) {
            struct lease_pair l = {.word = kvf_lease_word_make(7)};
            cr_assert_eq(kvf_lease_take(&l.word, 7, KVF_LEASE_CPU), 0);
            is_inside = order == 0 ? step_call(at, close_it, return_it, &l)
                                   : step_call(at, return_it, close_it, &l);
            if (is_inside) {
                cr_assert_eq((l.returned == 1) + kvf_lease_is_idle(l.closed_at), 1,
                             "order %u step %u", order, at);
            }
        }
        cr_assert_gt(at, 5);
    }
}

/* ---- dirty bits -------------------------------------------------------------------------------------------- */

#define SLOTS 200u
#define DIRTY_WORDS (KVF_DIRTY_SUMMARY_WORDS + (SLOTS + 63u) / 64u)

struct dirty_pair {
    _Atomic uint64_t words[DIRTY_WORDS];
    uint32_t found[SLOTS];
};

static void mark_it(void *ctx)
{
    kvf_dirty_mark(((struct dirty_pair *)ctx)->words, 70);
}
static void take_once(void *ctx)
{
    struct dirty_pair *d = ctx;
    uint32_t slots[4];
    uint32_t count = kvf_dirty_take(d->words, SLOTS, slots, 4);
    for (uint32_t i = 0; i < count; i++) {
        d->found[slots[i]]++;
    }
}
static void mark_another(void *ctx)
{
    kvf_dirty_mark(((struct dirty_pair *)ctx)->words, 71);
}

Test(ring_steps, a_mark_is_found_whenever_the_worker_looks, .init = skip_without_steps)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        struct dirty_pair d = {.found = {0}};
        is_inside = step_call(at, mark_it, take_once, &d);
        take_once(&d);
        cr_assert_eq(d.found[70], 1, "step %u: found %u times", at, d.found[70]);
    }
    cr_assert_gt(at, 5);
}

Test(ring_steps, a_mark_made_while_the_worker_looks_is_found_then_or_later,
     .init = skip_without_steps)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        struct dirty_pair d = {.found = {0}};
        kvf_dirty_mark(d.words, 70);
        is_inside = step_call(at, take_once, mark_another, &d);
        if (!is_inside) {
            break;
        }
        take_once(&d);
        cr_assert_eq(d.found[70], 1, "step %u", at);
        cr_assert_eq(d.found[71], 1, "step %u", at);
    }
    cr_assert_gt(at, 20);
}

/* ---- the ring ------------------------------------------------------------------------------------------------ */

struct ring_pair {
    _Alignas(64) unsigned char slots[2 * KVF_SLOT_BYTES];
    unsigned char in[KVF_SLOT_BYTES];
    unsigned char out[8][KVF_SLOT_BYTES];
    struct kvf_spsc_producer producer;
    struct kvf_spsc_consumer consumer;
    uint32_t pushed; /* all commands ever taken by the ring */
    uint32_t popped;
};

static void ring_start(struct ring_pair *r, uint32_t filled)
{
    *r = (struct ring_pair){.pushed = 0};
    kvf_spsc_format(r->slots, 2, 0);
    kvf_spsc_producer_init(&r->producer, r->slots, 2, 0);
    kvf_spsc_consumer_init(&r->consumer, r->slots, 2, 0);
    for (uint32_t i = 0; i < filled; i++) {
        memset(r->in, (int)r->pushed + 1, sizeof r->in);
        r->pushed += kvf_spsc_push(&r->producer, r->in, 1);
    }
    memset(r->in, (int)r->pushed + 1, sizeof r->in);
}
static void push_next(void *ctx)
{
    struct ring_pair *r = ctx;
    r->pushed += kvf_spsc_push(&r->producer, r->in, 1);
}
static void pop_next(void *ctx)
{
    struct ring_pair *r = ctx;
    r->popped += kvf_spsc_pop(&r->consumer, r->out[r->popped], 1);
}

/* All that went in came out, whole and in order. */
static void ring_end(struct ring_pair *r, uint32_t at)
{
    const size_t head = KVF_SLOT_BYTES - KVF_SLOT_PAYLOAD_BYTES;
    for (uint32_t i = 0; i < 3; i++) {
        pop_next(r);
    }
    cr_assert_eq(r->popped, r->pushed, "step %u", at);
    for (uint32_t i = 0; i < r->popped; i++) {
        unsigned char want[KVF_SLOT_PAYLOAD_BYTES];
        memset(want, (int)i + 1, sizeof want);
        cr_assert_arr_eq(r->out[i] + head, want, sizeof want, "command %u, step %u", i, at);
    }
}

/* I1: at whatever instruction a producer stands, or ends, its command is whole or not there. */
Test(ring_steps, i1_a_command_is_whole_or_not_there_at_every_step_of_its_push,
     .init = skip_without_steps)
{
    for (uint32_t filled = 0; filled < 3; filled++) { /* empty, half full, full */
        uint32_t at = 1;
        for (bool is_inside = true; is_inside; at++) {
            struct ring_pair r;
            ring_start(&r, filled);
            is_inside = step_call(at, push_next, pop_next, &r);
            ring_end(&r, at);
        }
        cr_assert_gt(at, 10);
    }
}

Test(ring_steps, a_command_is_copied_out_before_its_slot_is_filled_again,
     .init = skip_without_steps)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        struct ring_pair r;
        ring_start(&r, 2); /* full */
        is_inside = step_call(at, pop_next, push_next, &r);
        ring_end(&r, at);
    }
    cr_assert_gt(at, 10);
}

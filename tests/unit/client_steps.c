/* What the worker can do between any two instructions of a call of the library. */
#include "client_world.h"

#include <sys/socket.h>

#include "tests/unit/step.h"

struct stepped {
    struct world w;
    kvf_room room;
    bool is_seen;   /* the worker found what the call is about */
    bool is_asleep; /* it found nothing, and sleeps */
    bool is_lent;   /* what it found was lent by then */
    uint64_t abort_cell;
    uint64_t told_ns;
};

static struct stepped s;

static void begin(void)
{
    if (!STEP_IS_HERE) {
        cr_skip_test("single steps need x86-64, and no sanitizer beside them");
    }
    world_begin(&s.w);
}

static void next_round(void)
{
    s.is_seen = false;
    s.is_asleep = false;
    s.is_lent = false;
    s.abort_cell = 0;
    fake_sleep(&s.w.fake, false);
    (void)fake_rings(&s.w.fake);
    /* What an earlier round armed, and was told, is no news to this one. */
    char byte;
    atomic_store(&s.w.fake.own.shm->events_armed, 0);
    while (recv(s.w.client->cold.event_fd, &byte, 1, MSG_DONTWAIT) > 0) {
    }
}

/* As the worker does: what was marked, and for each the abort cell. */
static void look_at_aborts(void)
{
    struct kvf_segment *segment = &s.w.fake.own;
    uint32_t slots[WORLD_ROOMS];
    uint32_t count =
        kvf_dirty_take(segment->dirty, segment->limits.rooms_max, slots, WORLD_ROOMS);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t cell =
            atomic_load_explicit(&segment->intents[slots[i]].abort_cell, memory_order_acquire);
        if ((cell & KVF_ABORT_SET) != 0) {
            s.is_seen = true;
            s.abort_cell = cell;
        }
    }
}

static void abort_it(void *ctx)
{
    (void)ctx;
    /* The call's inner half, as it stands under the lock. */
    kvf_client_abort_slot(s.w.client, &s.w.client->cold.slots[fake_slot(s.room)], 33);
}
static void abort_look(void *ctx)
{
    (void)ctx;
    look_at_aborts();
}
/* Flag first, then the look: what the worker does before it sleeps. */
static void go_to_sleep(void *ctx)
{
    (void)ctx;
    struct kvf_segment *segment = &s.w.fake.own;
    atomic_store_explicit(&segment->shm->sleeping, 1, memory_order_seq_cst);
    s.is_asleep =
        kvf_dirty_is_pending(segment->dirty) == 0 && kvf_spsc_is_pending(&s.w.fake.cmds) == 0;
    if (!s.is_asleep) {
        atomic_store_explicit(&segment->shm->sleeping, 0, memory_order_relaxed);
    }
}

static void end_room(void)
{
    struct kvf_cmd_shm cmd;
    while (fake_pop(&s.w.fake, &cmd) == 1) {
    }
    fake_fail(&s.w.fake, s.room, KVF_PROOF_NEVER_POSTED, 33);
    (void)kvf_release(s.w.client, s.room);
    look_at_aborts();
}

/* A worker that takes the mark inside the call and finds no abort there must find another mark later. */
Test(client_steps, an_abort_is_found_whenever_the_worker_looks, .init = begin, .timeout = 200)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        s.room = world_sink(&s.w, 0, 4);
        next_round();
        is_inside = step_call(at, abort_it, abort_look, NULL);
        look_at_aborts();
        cr_assert(s.is_seen, "step %u", at);
        cr_assert_eq(s.abort_cell,
                     fake_generation(s.room) << KVF_GENERATION_SHIFT | KVF_ABORT_SET | 33);
        end_room();
    }
    cr_assert_gt(at, 20);
    world_end(&s.w);
}

Test(client_steps, a_worker_that_falls_asleep_inside_an_abort_is_rung, .init = begin,
     .timeout = 200)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        s.room = world_sink(&s.w, 0, 4);
        world_pop(&s.w);
        next_round();
        is_inside = step_call(at, abort_it, go_to_sleep, NULL);
        uint64_t rings = fake_rings(&s.w.fake);
        cr_assert(!s.is_asleep || rings > 0, "step %u", at);
        end_room();
    }
    cr_assert_gt(at, 20);
    world_end(&s.w);
}

static void open_it(void *ctx)
{
    (void)ctx;
    s.room = world_sink(&s.w, 8, 2);
}
/* The command is there: then the intent, the lease word and the ledger are, and the record is whole. */
static void open_look(void *ctx)
{
    (void)ctx;
    struct kvf_cmd_shm cmd;
    if (fake_pop_unread(&s.w.fake, &cmd) != 1) {
        return;
    }
    const struct kvf_intent_shm *intent = &s.w.fake.own.intents[cmd.slot];
    const struct kvf_open_shm *record = fake_record(&s.w.fake, &cmd);
    const _Atomic uint64_t *ledger = s.w.client->cold.regions[0].words;
    s.is_seen = true;
    s.is_lent = atomic_load(&intent->generation) == cmd.generation &&
                atomic_load(&intent->epoch) == cmd.worker_epoch &&
                atomic_load(&intent->lease_word) == kvf_lease_word_make(cmd.generation) &&
                atomic_load(&intent->abort_cell) == 0 && record->run_count == 1 &&
                atomic_load(&ledger[8]) == kvf_ledger_sink(cmd.slot, cmd.generation) &&
                atomic_load(&ledger[9]) == kvf_ledger_sink(cmd.slot, cmd.generation);
}

#define STRIDE 13 /* not every instruction: the call is long */

Test(client_steps, a_room_that_the_worker_sees_is_lent_and_named_in_its_line, .init = begin,
     .timeout = 200)
{
    uint32_t seen = 0;
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at += STRIDE) {
        next_round();
        is_inside = step_call(at, open_it, open_look, NULL);
        if (s.is_seen) {
            seen++;
            cr_assert(s.is_lent, "step %u", at);
        }
        end_room();
    }
    cr_assert_gt(seen, 0);
    world_end(&s.w);
}

Test(client_steps, a_worker_that_falls_asleep_inside_an_open_is_rung, .init = begin,
     .timeout = 200)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at += STRIDE) {
        next_round();
        is_inside = step_call(at, open_it, go_to_sleep, NULL);
        uint64_t rings = fake_rings(&s.w.fake);
        cr_assert(!s.is_asleep || rings > 0, "step %u", at);
        end_room();
    }
    cr_assert_gt(at, 20);
    world_end(&s.w);
}

static void end_it(void *ctx)
{
    (void)ctx;
    s.told_ns = kvf_client_now_ns();
    fake_succeed(&s.w.fake, s.room);
}
static void wait_for_it(void *ctx)
{
    (void)ctx;
    (void)kvf_wait(s.w.client, s.room, 10000);
}

/* From the change to the return; *ret_is_asleep: it came after the waiter's first sleep. */
static uint64_t wait_once(uint32_t at, bool *ret_is_asleep)
{
    s.room = world_sink(&s.w, 0, 4);
    fake_open(&s.w.fake, s.room, KVF_STATE_TRANSFERRING);
    next_round();
    uint64_t start_ns = kvf_client_now_ns();
    (void)step_call(at, wait_for_it, end_it, NULL);
    uint64_t end_ns = kvf_client_now_ns();
    *ret_is_asleep = s.told_ns - start_ns > UINT64_C(90000000);
    end_room();
    return end_ns - s.told_ns;
}

/* A waiter that is told between its look and its sleep would find out one slice later, each time. A busy
 * machine can be late too, at one step and once: so the least of three decides. */
Test(client_steps, a_change_inside_a_wait_ends_it_without_its_slice, .init = begin,
     .timeout = 200)
{
    uint32_t at = 1;
    bool is_asleep = false;
    for (; !is_asleep; at += 2) {
        uint64_t least_ns = UINT64_MAX;
        for (uint32_t i = 0; i < 3 && least_ns > UINT64_C(70000000) && !is_asleep; i++) {
            uint64_t took_ns = wait_once(at, &is_asleep);
            least_ns = took_ns < least_ns ? took_ns : least_ns;
        }
        cr_assert_lt(least_ns, UINT64_C(70000000), "step %u", at);
    }
    cr_assert_gt(at, 20);
    world_end(&s.w);
}

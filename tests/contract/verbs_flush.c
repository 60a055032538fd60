/* The visibility step of memory that the host does not own, over fake devices that take dma-bufs. */
#include <criterion/criterion.h>

#include <errno.h>

#include "tests/contract/verbs_world.h"

static void begin(struct world *w, const char *rails)
{
    fake_reset();
    world_begin(w, rails, NULL);
    cr_assert_eq(w->create_err, 0, "%s", w->why);
}

Test(verbs_flush, a_device_that_takes_no_dma_buf_says_so_and_keeps_nothing)
{
    struct world w;
    begin(&w, "01");
    cr_assert_eq(kvf_verbs_register(w.t, (void *)(uintptr_t)WORLD_BASE, WORLD_BYTES, w.memfd, 0,
                                    &w.memory),
                 -EOPNOTSUPP);
    cr_assert_null(w.memory);
    world_end(&w);
}

Test(verbs_flush, a_flush_reads_the_last_byte_through_each_rail_of_its_lanes)
{
    struct world w;
    struct fake_counts counts;
    begin(&w, "01");
    cr_assert_eq(world_take_memory(&w), 0);
    fake_counts(&counts);
    cr_assert_eq(counts.qps_made, 0, "nothing is made before it is asked for");
    cr_assert_eq(kvf_verbs_flush(w.memory, 0x5, 71), 0); /* lanes 0 and 2: rail 0 */
    world_wait_told(&w, 1);
    cr_assert_eq(w.cookies[0], 71);
    cr_assert_eq(w.errs[0], 0);
    fake_counts(&counts);
    cr_assert_eq(counts.reads, 1);
    cr_assert_eq(counts.qps_made, 1);
    cr_assert_eq(counts.last_read_addr, WORLD_BASE + WORLD_BYTES - 1u);
    cr_assert_eq(kvf_verbs_flush(w.memory, 0xff, 72), 0);
    world_wait_told(&w, 2);
    cr_assert_eq(w.cookies[1], 72);
    cr_assert_eq(w.errs[1], 0);
    cr_assert_eq(world_reads(), 3, "both rails, once each");
    cr_assert_eq(kvf_verbs_flush(w.memory, 0, 73), -EINVAL, "over no rail nothing is proven");
    world_end(&w);
}

/* Only what was told to be a device's can be read, and only by the rail itself. */
Test(verbs_flush, memory_of_the_host_cannot_be_read)
{
    struct world w;
    begin(&w, "0");
    static unsigned char host[4096];
    cr_assert_eq(kvf_verbs_register(w.t, host, sizeof host, -1, 0, &w.memory), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 5), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EIO);
    world_end(&w);
}

Test(verbs_flush, a_flush_that_fails_says_so_and_the_next_has_a_queue_pair_of_its_own)
{
    struct world w;
    struct fake_knobs knobs;
    struct fake_counts counts;
    begin(&w, "0");
    cr_assert_eq(world_take_memory(&w), 0);
    uint64_t objects = world_objects();
    fake_get(&knobs);
    knobs.reads_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 1), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 2), 0);
    world_wait_told(&w, 2);
    cr_assert_eq(w.errs[0], -EIO);
    cr_assert_eq(w.errs[1], -EIO, "what was out with it fails with it: nobody knows");
    cr_assert_eq(world_reads(), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 3), 0);
    world_wait_told(&w, 3);
    cr_assert_eq(w.cookies[2], 3);
    cr_assert_eq(w.errs[2], 0);
    fake_counts(&counts);
    cr_assert_eq(counts.objects, objects + 3u, "a queue pair, its queue, its byte");
    world_end(&w);
}

Test(verbs_flush, a_rail_without_room_for_a_queue_pair_fails_what_it_was_asked)
{
    struct world w;
    struct fake_knobs knobs;
    begin(&w, "01");
    cr_assert_eq(world_take_memory(&w), 0);
    fake_get(&knobs);
    knobs.makes_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 3, 1), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -ENOMEM, "one rail of two is not enough");
    cr_assert_eq(kvf_verbs_flush(w.memory, 3, 2), 0);
    world_wait_told(&w, 2);
    cr_assert_eq(w.errs[1], 0);
    world_end(&w);
}

Test(verbs_flush, a_flush_that_never_comes_back_is_never_told)
{
    struct world w;
    struct fake_knobs knobs;
    begin(&w, "0");
    cr_assert_eq(world_take_memory(&w), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 1), 0);
    world_wait_told(&w, 1);
    fake_get(&knobs);
    knobs.muted_qpn = 17; /* the first number there is */
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 2), 0);
    for (uint32_t i = 0; i < 50; i++) {
        world_turn(&w);
        fake_advance(fake_now_ns() + UINT64_C(1000000000));
    }
    cr_assert_eq(world_reads(), 2, "it was read ...");
    cr_assert_eq(w.told, 1, "... and nobody says so");
    cr_assert_eq(kvf_verbs_due_ns(w.t), KVF_NO_TIME, "no clock runs here");
    world_end(&w);
}

Test(verbs_flush, a_read_that_is_lost_on_its_way_fails_by_the_devices_own_retries)
{
    struct world w;
    struct fake_knobs knobs;
    begin(&w, "0");
    cr_assert_eq(world_take_memory(&w), 0);
    fake_get(&knobs);
    knobs.loses_reads = true;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 2), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EIO);
    cr_assert_eq(world_reads(), 0);
    world_end(&w);
}

Test(verbs_flush, as_many_flushes_as_there_may_be_are_answered_in_order)
{
    struct world w;
    begin(&w, "0");
    cr_assert_eq(world_take_memory(&w), 0);
    for (uint32_t i = 0; i < WORLD_TOLD; i++) {
        cr_assert_eq(kvf_verbs_flush(w.memory, 1, i), 0);
    }
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, WORLD_TOLD), -EAGAIN);
    cr_assert_eq(kvf_verbs_due_ns(w.t), 0, "poll has something to do");
    world_wait_told(&w, WORLD_TOLD);
    for (uint32_t i = 0; i < WORLD_TOLD; i++) {
        cr_assert_eq(w.cookies[i], i);
        cr_assert_eq(w.errs[i], 0);
    }
    cr_assert_eq(kvf_verbs_due_ns(w.t), KVF_NO_TIME);
    world_end(&w);
}

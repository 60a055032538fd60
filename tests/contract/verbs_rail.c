/* Rails of transport verbs that do not work, come back, or never will; and flushes of a device's memory over them. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "tests/contract/verbs_world.h"

static void set_port(uint32_t device, enum ibv_port_state state)
{
    fake_port(device, state, IBV_LINK_LAYER_ETHERNET, 0);
}

static uint64_t rails_up(const struct world *w)
{
    struct kvf_verbs_counts counts;
    kvf_verbs_counts(w->t, &counts);
    return counts.rails_up;
}

/* ---- the start ---------------------------------------------------------------------------------------------- */

Test(verbs_rail, a_worker_starts_with_the_rails_that_work_and_says_which_do_not)
{
    struct world w;
    fake_reset();
    set_port(0, IBV_PORT_DOWN);
    world_begin(&w, "029", NULL);
    cr_assert_eq(w.create_err, 0, "%s", w.why);
    cr_assert_eq(rails_up(&w), 1);
    cr_assert_eq(w.rail_errs[0], -ENETDOWN);
    cr_assert_not(w.rail_is_final[0]);
    cr_assert_eq(w.rail_errs[9], -ENOENT);
    cr_assert(w.rail_is_final[9]);
    cr_assert_eq(w.rail_told[2], 0, "of one that works there is nothing to say");
    /* With few lanes there is none that waits for the link, whatever the order of the names. */
    cr_assert_eq(world_open_sink(&w, 0), 0);
    cr_assert(world_until(&w, &w.ready[0]));
    cr_assert_eq(w.ends[0].rail, 1);
    cr_assert_eq(world_open_sink(&w, 1), 0);
    cr_assert(world_until(&w, &w.fenced[1]));
    cr_assert_eq(w.lost[1], ENETDOWN);
    cr_assert_eq(world_open_sink(&w, 2), 0);
    cr_assert(world_until(&w, &w.ready[2]));
    cr_assert_eq(w.ends[2].rail, 1);
    cr_assert_eq(w.rail_told[0], 1, "said once, however often it is tried");
    world_end(&w);
}

Test(verbs_rail, a_port_that_becomes_active_is_used_by_the_next_lane)
{
    struct world w;
    fake_reset();
    set_port(0, IBV_PORT_DOWN);
    world_begin(&w, "0", NULL);
    cr_assert_eq(w.create_err, 0, "a cable may be put in: %s", w.why);
    cr_assert_eq(world_open_sink(&w, 0), 0);
    cr_assert(world_until(&w, &w.fenced[0]));
    set_port(0, IBV_PORT_ACTIVE); /* and nobody says so */
    cr_assert_eq(world_open_sink(&w, 0), 0);
    cr_assert(world_until(&w, &w.ready[0]));
    cr_assert_eq(w.rail_errs[0], 0);
    cr_assert_eq(rails_up(&w), 1);
    world_end(&w);
}

Test(verbs_rail, the_loss_and_the_return_of_a_port_are_told)
{
    struct world w;
    fake_reset();
    world_begin(&w, "0", NULL);
    cr_assert_eq(world_open_sink(&w, 0), 0);
    cr_assert(world_until(&w, &w.ready[0]));
    set_port(0, IBV_PORT_DOWN);
    fake_event(0, IBV_EVENT_PORT_ERR, 0);
    cr_assert(world_until(&w, &w.fenced[0]));
    cr_assert_eq(w.rail_errs[0], -ENETDOWN);
    cr_assert_eq(rails_up(&w), 0);
    set_port(0, IBV_PORT_ACTIVE);
    fake_event(0, IBV_EVENT_PORT_ACTIVE, 0);
    world_turns(&w, 3);
    cr_assert_eq(w.rail_errs[0], 0);
    cr_assert_eq(w.rail_told[0], 2);
    cr_assert_eq(rails_up(&w), 1);
    world_end(&w);
}

Test(verbs_rail, only_if_no_device_can_ever_be_used_is_the_start_refused)
{
    struct world w;
    fake_reset();
    fake_transport(1, IBV_TRANSPORT_IWARP);
    world_begin(&w, "19", NULL);
    cr_assert_eq(w.create_err, -EOPNOTSUPP, "the first one's error");
    cr_assert_not_null(strstr(w.why, "fake1"));
    cr_assert_eq(world_objects(), 0);
}

/* ---- flushes ------------------------------------------------------------------------------------------------- */

/* Its lanes are fenced, and the read that they wait for goes to the device itself. */
Test(verbs_rail, a_link_that_is_down_keeps_no_flush_from_its_answer)
{
    struct world w;
    fake_reset();
    world_begin(&w, "0", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    set_port(0, IBV_PORT_DOWN);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 7), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], 0);
    world_end(&w);
}

Test(verbs_rail, where_a_device_needs_its_link_for_that_the_answer_is_an_error_and_no_proof)
{
    struct world w;
    struct fake_knobs knobs;
    fake_reset();
    fake_get(&knobs);
    knobs.loops_need_link = true;
    fake_set(&knobs);
    world_begin(&w, "0", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    set_port(0, IBV_PORT_DOWN);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 7), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EINVAL);
    cr_assert_eq(world_reads(), 0);
    set_port(0, IBV_PORT_ACTIVE);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 8), 0);
    world_wait_told(&w, 2);
    cr_assert_eq(w.errs[1], 0);
    world_end(&w);
}

/* ... so it is made while the link is there, and where it could not be, with the link's return. */
Test(verbs_rail, what_flushes_need_is_made_with_the_first_memory_of_a_device)
{
    struct world w;
    struct fake_knobs knobs;
    fake_reset();
    fake_get(&knobs);
    knobs.loops_need_link = true;
    fake_set(&knobs);
    set_port(2, IBV_PORT_DOWN);
    world_begin(&w, "02", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    cr_assert_eq(world_qps_made(), 0);
    kvf_verbs_expect_flushes(w.t);
    world_turns(&w, 200);
    cr_assert_eq(world_qps_made(), 2, "and one of them came no further than INIT");
    set_port(2, IBV_PORT_ACTIVE);
    fake_event(2, IBV_EVENT_PORT_ACTIVE, 0);
    world_turns(&w, 200);
    uint64_t made = world_qps_made();
    cr_assert_gt(made, 2);
    kvf_verbs_expect_flushes(w.t);
    set_port(0, IBV_PORT_DOWN);
    set_port(2, IBV_PORT_DOWN);
    cr_assert_eq(kvf_verbs_flush(w.memory, 3, 7), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], 0);
    cr_assert_eq(world_qps_made(), made, "all that it needs was there");
    world_end(&w);
}

/* Nothing is known of the reads; a later one comes behind the same writes. */
Test(verbs_rail, a_flush_whose_completion_was_lost_is_asked_again_through_a_new_queue)
{
    struct world w;
    struct fake_knobs knobs;
    struct kvf_verbs_counts counts;
    fake_reset();
    world_begin(&w, "0", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    uint64_t objects = world_objects();
    fake_get(&knobs);
    knobs.completions_lost = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 7), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], 0);
    cr_assert_eq(world_reads(), 2);
    kvf_verbs_counts(w.t, &counts);
    cr_assert_eq(counts.queues_broken, 1);
    cr_assert_eq(world_objects(), objects + 3u, "a queue pair, its queue, its byte");
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 8), 0);
    world_wait_told(&w, 2);
    cr_assert_eq(w.errs[1], 0);
    cr_assert_eq(world_reads(), 3);
    world_end(&w);
}

Test(verbs_rail, a_device_that_loses_every_completion_is_asked_a_few_times_and_then_fails)
{
    struct world w;
    struct fake_knobs knobs;
    fake_reset();
    world_begin(&w, "0", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    fake_get(&knobs);
    knobs.completions_lost = 1000;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 7), 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EIO);
    cr_assert_eq(world_reads(), 4);
    knobs.completions_lost = 0;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 8), 0);
    world_wait_told(&w, 2);
    cr_assert_eq(w.errs[1], 0);
    world_end(&w);
}

Test(verbs_rail, a_flush_that_is_out_when_its_device_dies_fails)
{
    struct world w;
    struct fake_knobs knobs;
    fake_reset();
    world_begin(&w, "0", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    fake_get(&knobs);
    knobs.loses_reads = true;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 7), 0);
    while (world_qps_made() == 0) {
        (void)kvf_verbs_ops.poll(w.t); /* time stands still: the device's own retries do not */
    }
    fake_event(0, IBV_EVENT_DEVICE_FATAL, 0);
    world_wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EIO);
    world_end(&w);
}

/* An earlier worker may have written through any of them. */
Test(verbs_rail, a_flush_over_all_rails_is_refused_while_one_of_them_is_not_there)
{
    struct world w;
    fake_reset();
    world_begin(&w, "09", NULL);
    cr_assert_eq(w.create_err, 0);
    cr_assert_eq(world_take_memory(&w), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, KVF_FLUSH_ALL_RAILS, 7), -ENODEV);
    cr_assert_eq(kvf_verbs_flush(w.memory, 0xff, 8), 0, "lanes of this worker never used it");
    world_wait_told(&w, 1);
    cr_assert_eq(w.cookies[0], 8);
    cr_assert_eq(w.errs[0], 0);
    world_end(&w);
}

/* ---- memory that is not let go of ------------------------------------------------------------------------------ */

Test(verbs_rail, a_deregistration_is_asked_again_of_the_devices_that_refused_it)
{
    struct world w;
    struct fake_knobs knobs;
    fake_reset();
    world_begin(&w, "02", NULL);
    cr_assert_eq(world_take_memory(&w), 0);
    uint64_t objects = world_objects();
    fake_get(&knobs);
    knobs.deregs_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_unregister(w.t, w.memory), -EINVAL);
    cr_assert_eq(world_objects(), objects - 1u);
    cr_assert_eq(kvf_verbs_unregister(w.t, w.memory), 0);
    cr_assert_eq(world_objects(), objects - 2u);
    w.memory = NULL;
    world_end(&w);
}

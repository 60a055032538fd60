/* Rooms in memory that the host does not own: drained, and visible, after a flush and not before. What is visible or
 * drained too early ends any of these tests (pair.h). */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define POSTED(lane_count)                                                                     \
    (&(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .lanes = (lane_count)})

static struct kvf_core *core_of(struct pair *p)
{
    return p->daemons[0].core;
}

/* Daemon 0 is the sink: PAIR_R0 is a device's, PAIR_R1 the host's. Flushes wait. */
static struct pair *begin(const struct pair_options *options)
{
    struct pair *p = pair_new(options);
    pair_region_device(p, 0, 0, PAIR_R0);
    pair_warm(p, 0, 1);
    p->daemons[0].hold_flushes = true;
    p->daemons[0].flushes = 0;
    return p;
}

/* All of it has landed, its END too, and its flush is out. */
static struct pair_room *landed(struct pair *p, uint64_t key, uint32_t first, uint32_t count)
{
    struct pair_room *source = pair_source(p, 1, key);
    struct pair_room *sink = pair_sink(p, 0, 1, key, first, count);
    pair_settle(p);
    (void)pair_submit(source, 0, 0, count, true);
    pair_settle(p);
    cr_assert(pair_is_drained(source));
    return sink;
}

static void expect_waiting(const struct pair_room *r, enum kvf_outcome outcome)
{
    cr_assert_not(pair_is_drained(r));
    cr_assert_eq(pair_phase(r), KVF_PHASE_CLOSING);
    cr_assert_eq(pair_outcome(r), outcome);
    cr_assert_eq(pair_poll(r), KVF_STATE_TRANSFERRING);
    cr_assert_eq(r->view.word & KVF_WORD_VISIBLE, 0);
}

Test(core_flush, a_room_that_has_landed_waits_for_its_flush_and_is_then_visible_and_drained)
{
    struct pair *p = begin(POSTED(2));
    struct pair_room *sink = landed(p, 7, 0, 8);
    expect_waiting(sink, KVF_OUTCOME_SUCCESS);
    cr_assert_eq(p->daemons[0].flushes_out, 1);
    const struct kvf_action *a = &p->daemons[0].flush_out[0];
    cr_assert_eq(a->client, 0);
    cr_assert_eq(a->slot, sink->slot);
    cr_assert_eq(a->generation, sink->generation);
    cr_assert_eq(a->region, PAIR_R0);
    cr_assert_eq(a->lanes, 3, "both lanes of its grant");
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_neq(sink->view.word & KVF_WORD_VISIBLE, 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FLUSHES), 2, "with the one that warmed up");
    pair_finish(p);
}

Test(core_flush, a_room_in_the_hosts_memory_asks_for_none_beside_one_that_does)
{
    struct pair *p = begin(POSTED(1));
    struct kvf_run_shm run = {.region = PAIR_R1, .first = 0, .count = 8};
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .start = 0, .count = 8};
    struct pair_room *source = pair_source(p, 1, 9);
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 9, .writers = &writer, .writer_count = 1, .runs = &run, .run_count = 1});
    struct pair_room *device = landed(p, 7, 0, 8);
    (void)pair_submit(source, 0, 8, 8, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    expect_waiting(device, KVF_OUTCOME_SUCCESS);
    cr_assert_eq(p->daemons[0].flushes, 1);
    pair_flushes_answer(p, 0, 0);
    pair_finish(p);
}

/* A list over two regions of devices is flushed in both, one after the other. */
Test(core_flush, each_region_of_a_list_that_is_a_devices_is_flushed)
{
    struct pair *p = pair_new(POSTED(1));
    pair_region_device(p, 0, 0, PAIR_R0);
    pair_region_device(p, 0, 0, PAIR_R1);
    pair_warm(p, 0, 1);
    p->daemons[0].hold_flushes = true;
    struct kvf_run_shm runs[] = {{.region = PAIR_R1, .first = 0, .count = 4},
                                 {.region = PAIR_R0, .first = 0, .count = 4}};
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .start = 0, .count = 8};
    struct pair_room *source = pair_source(p, 1, 9);
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 9, .writers = &writer, .writer_count = 1, .runs = runs, .run_count = 2});
    pair_settle(p);
    (void)pair_submit(source, 0, 8, 8, true);
    pair_settle(p);
    cr_assert_eq(p->daemons[0].flush_out[0].region, PAIR_R0);
    pair_flushes_answer(p, 0, 0);
    sink->is_flushed = false; /* one of two: neither visible nor drained */
    cr_assert_eq(p->daemons[0].flushes_out, 1);
    cr_assert_eq(p->daemons[0].flush_out[0].region, PAIR_R1);
    expect_waiting(sink, KVF_OUTCOME_SUCCESS);
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_flush, an_aborted_room_is_flushed_behind_its_proof_and_never_visible)
{
    struct pair *p = begin(POSTED(1));
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 0xff;
    (void)pair_submit(source, 0, 0, 16, true);
    pair_settle(p);
    pair_abort(sink);
    pair_settle(p);
    cr_assert_eq(p->daemons[0].flushes, 0,
                 "not before the proof: what is flushed may be written");
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    expect_waiting(sink, KVF_OUTCOME_FAILED);
    pair_flushes_answer(p, 0, 0);
    cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED);
    cr_assert(pair_is_drained(sink));
    cr_assert_eq(sink->view.word & KVF_WORD_VISIBLE, 0);
    pair_finish(p);
}

Test(core_flush, a_room_for_which_nothing_was_posted_needs_none)
{
    struct pair *p = begin(POSTED(1));
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    pair_abort(sink); /* its grant waits at the source, which declines it */
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
    cr_assert_eq(p->daemons[0].flushes, 0);
    pair_finish(p);
}

Test(core_flush, bytes_are_visible_while_a_lease_still_keeps_the_room_from_drained)
{
    struct pair *p = begin(POSTED(1));
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    cr_assert(pair_lease(sink, 1, 0, 0));
    pair_settle(p);
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    expect_waiting(sink, KVF_OUTCOME_SUCCESS);
    pair_flushes_answer(p, 0, 0);
    cr_assert_neq(sink->view.word & KVF_WORD_VISIBLE, 0);
    cr_assert_not(pair_is_drained(sink));
    pair_lease_return(sink);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_eq(p->daemons[0].flushes, 1);
    pair_finish(p);
}

/* Small grants have one lane, and a new one after a fence may have another: what any of them wrote is flushed. */
Test(core_flush, only_lanes_that_its_grants_had_are_flushed_those_of_fenced_ones_too)
{
    struct pair_options options = {
        .placement = KVF_PLACEMENT_POSTED, .lanes = 4, .stripe_bytes = UINT64_C(1) << 40};
    struct pair *p = begin(&options);
    struct pair_room *sink = landed(p, 7, 0, 4);
    uint32_t first = p->daemons[0].flush_out[0].lanes;
    cr_assert_eq(__builtin_popcount(first), 1);
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    struct pair_room *source = pair_source(p, 1, 8);
    sink = pair_sink(p, 0, 1, 8, 0, 8);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 0xff;
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    uint32_t lane = (uint32_t)__builtin_ctz(core_of(p)->rooms[sink->slot].flush_lanes);
    pair_stream_lose(p, pair_stream(p, 0, 1, lane), PAIR_SINK);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    cr_assert_eq(p->daemons[0].flushes_out, 1);
    cr_assert_eq(__builtin_popcount(p->daemons[0].flush_out[0].lanes), 2);
    cr_assert_neq(p->daemons[0].flush_out[0].lanes >> lane & 1u, 0);
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_advance(p, 100 * PAIR_MS);
    pair_finish(p);
}

Test(core_flush, one_that_fails_ends_the_worker_and_drains_nothing)
{
    struct pair *p = begin(POSTED(1));
    struct pair_room *sink = landed(p, 7, 0, 8);
    pair_flushes_answer(p, 0, -EIO);
    cr_assert_eq(p->daemons[0].escalations, 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FLUSHES_FAILED), 1);
    pair_advance(p, 60000 * PAIR_MS);
    expect_waiting(sink, KVF_OUTCOME_SUCCESS);
    cr_assert_eq(p->daemons[0].escalations, 1);
    cr_assert_eq(p->daemons[0].flushes, 1, "nor is it tried again here");
    pair_free(p);
}

Test(core_flush, one_that_is_never_answered_ends_the_worker_within_the_bound)
{
    struct pair *p = begin(POSTED(1));
    struct pair_room *sink = landed(p, 7, 0, 8);
    uint64_t limit_ns = kvf_core_bound_flush_ns(&p->config);
    pair_advance(p, limit_ns - PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 0);
    pair_advance(p, 2 * PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 1);
    pair_advance(p, 60000 * PAIR_MS);
    expect_waiting(sink, KVF_OUTCOME_SUCCESS);
    pair_free(p);
}

/* Its deadline begins when it is asked for, not when the room closed. */
Test(core_flush, a_fence_that_returns_just_in_time_leaves_the_flush_its_whole_time)
{
    struct pair *p = begin(POSTED(1));
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 0xff;
    (void)pair_submit(source, 0, 0, 16, true);
    pair_settle(p);
    p->daemons[0].hold_fences = true;
    pair_abort(sink);
    pair_settle(p);
    uint64_t fenced_ns = p->config.cooperative_ns + p->config.fence_ns - PAIR_MS;
    pair_advance(p, fenced_ns);
    cr_assert_eq(p->daemons[0].escalations, 0);
    p->daemons[0].hold_fences = false;
    pair_fences_return(p, 0);
    cr_assert_eq(p->daemons[0].flushes_out, 1);
    pair_advance(p, p->config.fence_ns - PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 0, "the fence was in time, and so is the flush");
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    cr_assert_leq(sink->view.close_to_drained_ns,
                  kvf_core_bound_usual_ns(&p->config) + kvf_core_bound_flush_ns(&p->config));
    cr_assert_gt(sink->view.close_to_drained_ns, fenced_ns + p->config.fence_ns / 2);
    pair_advance(p, 1000 * PAIR_MS);
    pair_finish(p);
}

Test(core_flush, so_many_are_out_at_a_time_and_the_others_follow)
{
    struct pair_options options = {.placement = KVF_PLACEMENT_POSTED,
                                   .rooms = KVF_CORE_FLUSHES_MAX + 20u,
                                   .pages = KVF_CORE_FLUSHES_MAX + 20u,
                                   .lane_rooms = 1024,
                                   .grants_max = 2048,
                                   .pieces_max = 2048};
    struct pair *p = begin(&options);
    uint32_t count = KVF_CORE_FLUSHES_MAX + 10u;
    struct pair_room *last = NULL;
    for (uint32_t i = 0; i < count; i++) {
        last = landed(p, 10 + i, i, 1);
    }
    cr_assert_eq(p->daemons[0].flushes_out, KVF_CORE_FLUSHES_MAX);
    expect_waiting(last, KVF_OUTCOME_SUCCESS);
    pair_flushes_answer(p, 0, 0);
    cr_assert_eq(p->daemons[0].flushes_out, 10);
    pair_flushes_answer(p, 0, 0);
    pair_expect(last, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* ---- rooms of an earlier worker ---------------------------------------------------------------------- */

#define SLOT 5u
#define GENERATION 9u

static struct kvf_core_adopt earlier(enum kvf_outcome outcome)
{
    return (struct kvf_core_adopt){.slot = SLOT,
                                   .generation = GENERATION,
                                   .outcome = (uint8_t)outcome,
                                   .device_regions = 1,
                                   .total_pages = 8};
}

/* The harness knows nothing of such rooms: their actions are taken here. */
static uint32_t take(struct pair *p, enum kvf_action_kind kind, struct kvf_action *ret_action)
{
    struct kvf_action a;
    uint32_t count = 0;
    while (kvf_core_next_action(core_of(p), &a) != 0) {
        if (a.kind == KVF_ACT_CLOSE_LEASES) {
            kvf_core_leases(core_of(p), p->now_ns, a.client, a.slot, a.generation, 0, 0, 0);
        }
        if (a.kind == kind) {
            *ret_action = a;
            count++;
        }
    }
    return count;
}

static uint64_t word_of(struct pair *p)
{
    struct kvf_core_room_view view;
    kvf_core_room_view(core_of(p), 0, SLOT, &view);
    return view.word;
}

static int adopt(struct pair *p, const struct kvf_core_adopt *room)
{
    return kvf_core_adopt(core_of(p), p->now_ns, room);
}

Test(core_flush, an_earlier_workers_room_waits_for_its_region_and_is_flushed_over_every_lane)
{
    struct pair *p = pair_new(POSTED(2));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_SUCCESS);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 0, "its region is not registered yet");
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_CLOSING);
    pair_region_add(p, 0, 0, PAIR_REGION(0, 2), 16, PAIR_PAGE_BYTES);
    cr_assert_eq(kvf_core_region_ready(core_of(p), p->now_ns, 0, PAIR_REGION(0, 2), true), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1);
    cr_assert_eq(a.region, PAIR_REGION(0, 2));
    cr_assert_eq(a.lanes, KVF_FLUSH_ALL_RAILS, "nobody knows over which it was written");
    cr_assert_eq(kvf_core_region_remove(core_of(p), 0, PAIR_REGION(0, 2)), -KVF_E_REGION_BUSY);
    cr_assert_eq(word_of(p) & KVF_WORD_VISIBLE, 0);
    kvf_core_flushed(core_of(p), p->now_ns, 0, SLOT, GENERATION, 0);
    cr_assert(kvf_word_is_drained(word_of(p)));
    cr_assert_eq(kvf_word_proof(word_of(p)), KVF_PROOF_WORKER_GONE);
    cr_assert_eq(kvf_word_poll(word_of(p)), KVF_STATE_SUCCESS);
    cr_assert_neq(word_of(p) & KVF_WORD_VISIBLE, 0);
    cr_assert_eq(kvf_core_region_remove(core_of(p), 0, PAIR_REGION(0, 2)), 0);
    pair_free(p);
}

Test(core_flush, an_earlier_workers_room_whose_region_is_the_hosts_needs_none)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 0);
    cr_assert(kvf_word_is_drained(word_of(p)), "its line said what is not so");
    pair_free(p);
}

Test(core_flush,
     an_earlier_workers_room_that_cannot_be_flushed_is_in_quarantine_until_somebody_speaks)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    pair_region_device(p, 0, 0, PAIR_R0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1);
    kvf_core_flushed(core_of(p), p->now_ns, 0, SLOT, GENERATION, -EIO);
    cr_assert_eq(take(p, KVF_ACT_ESCALATE, &a), 0, "another worker has tried already");
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 8);
    kvf_core_tick(core_of(p), p->now_ns + 60000 * PAIR_MS);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    cr_assert_eq(kvf_core_release(core_of(p), p->now_ns, 0, SLOT, GENERATION), 0);
    cr_assert(kvf_word_is_drained(word_of(p)));
    cr_assert_eq(kvf_word_proof(word_of(p)), KVF_PROOF_OPERATOR);
    pair_free(p);
}

Test(core_flush, an_answer_after_the_deadline_still_ends_the_quarantine)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    pair_region_device(p, 0, 0, PAIR_R0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1);
    kvf_core_tick(core_of(p), p->now_ns + p->config.fence_ns + PAIR_MS);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    kvf_core_flushed(core_of(p), p->now_ns, 0, SLOT, GENERATION, 0);
    (void)take(p, KVF_ACT_FLUSH, &a);
    cr_assert(kvf_word_is_drained(word_of(p)));
    cr_assert_eq(kvf_word_proof(word_of(p)), KVF_PROOF_WORKER_GONE);
    pair_free(p);
}

Test(core_flush, an_earlier_workers_room_whose_region_never_comes_is_in_quarantine)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 0);
    kvf_core_regions_whole(core_of(p), 0, 1);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_CLOSING, "it is still to come");
    kvf_core_regions_whole(core_of(p), 0, 0);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    cr_assert_eq(kvf_core_release(core_of(p), p->now_ns, 0, SLOT, GENERATION), 0);
    cr_assert(kvf_word_is_drained(word_of(p)));
    pair_free(p);
}

/* The end of the worker that served it begins its time: the next one's start, the registration and the flush. */
Test(core_flush, an_earlier_workers_room_is_in_the_books_of_pages_and_time_until_its_flush)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    struct kvf_core_room_view view;
    room.closed_ns = p->now_ns - 70 * PAIR_MS;
    pair_region_device(p, 0, 0, PAIR_R0);
    uint64_t held = pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD), held + 8);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1);
    kvf_core_flushed(core_of(p), p->now_ns + 30 * PAIR_MS, 0, SLOT, GENERATION, 0);
    cr_assert(kvf_word_is_drained(word_of(p)));
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD), held);
    kvf_core_room_view(core_of(p), 0, SLOT, &view);
    cr_assert_eq(view.close_to_drained_ns, 100 * PAIR_MS);
    pair_free(p);
}

Test(core_flush, a_region_that_is_not_registered_in_its_time_puts_its_rooms_in_quarantine)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    cr_assert_eq(adopt(p, &room), 0);
    uint64_t limit_ns = p->config.register_ns + p->config.fence_ns;
    kvf_core_tick(core_of(p), p->now_ns + limit_ns - PAIR_MS);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_CLOSING);
    kvf_core_tick(core_of(p), p->now_ns + limit_ns);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 8);

    pair_region_add(p, 0, 0, PAIR_REGION(0, 2), 16, PAIR_PAGE_BYTES); /* late, and here */
    cr_assert_eq(kvf_core_region_ready(core_of(p), p->now_ns, 0, PAIR_REGION(0, 2), true), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED, "until the answer");
    kvf_core_flushed(core_of(p), p->now_ns, 0, SLOT, GENERATION, 0);
    (void)take(p, KVF_ACT_FLUSH, &a);
    cr_assert(kvf_word_is_drained(word_of(p)));
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 0);
    pair_free(p);
}

Test(core_flush, a_region_that_comes_late_and_is_the_hosts_ends_the_quarantine_without_a_flush)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    cr_assert_eq(adopt(p, &room), 0);
    (void)take(p, KVF_ACT_FLUSH, &a);
    kvf_core_tick(core_of(p), p->now_ns + p->config.register_ns + p->config.fence_ns);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    pair_region_add(p, 0, 0, PAIR_REGION(0, 2), 16, PAIR_PAGE_BYTES);
    cr_assert_eq(kvf_core_region_ready(core_of(p), p->now_ns, 0, PAIR_REGION(0, 2), false), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 0);
    cr_assert(kvf_word_is_drained(word_of(p)));
    pair_free(p);
}

/* A read through other devices proves nothing of what that one wrote. */
Test(core_flush, a_room_that_was_written_through_a_device_which_is_not_here_is_never_flushed)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    room.is_rail_missing = true;
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    pair_region_add(p, 0, 0, PAIR_REGION(0, 2), 16, PAIR_PAGE_BYTES);
    cr_assert_eq(kvf_core_region_ready(core_of(p), p->now_ns, 0, PAIR_REGION(0, 2), true), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 0);
    kvf_core_tick(core_of(p), p->now_ns + 60000 * PAIR_MS);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    cr_assert_eq(kvf_core_release(core_of(p), p->now_ns, 0, SLOT, GENERATION), 0);
    cr_assert(kvf_word_is_drained(word_of(p)));
    cr_assert_eq(kvf_word_proof(word_of(p)), KVF_PROOF_OPERATOR);
    pair_free(p);
}

/* ---- rooms of one daemon -------------------------------------------------------------------------------- */

Test(core_flush, rooms_that_the_daemon_would_have_to_copy_are_refused_on_either_side)
{
    for (uint32_t role = 0; role < 2; role++) {
        struct pair_options options = {.placement = KVF_PLACEMENT_POSTED,
                                       .is_self_copied = true};
        struct pair *p = pair_new(&options);
        struct kvf_run_shm run = {
            .region = role == 0 ? PAIR_R0 : PAIR_R1, .first = 0, .count = 4};
        struct kvf_writer_shm writer = {.addr = pair_addr(0), .start = 0, .count = 4};
        pair_region_device(p, 0, 0, PAIR_R0);
        for (uint32_t i = 0; i < 2; i++) { /* the second finds the connection there */
            struct pair_open open = {.key = 7 + i,
                                     .writers = &writer,
                                     .writer_count = 1,
                                     .runs = &run,
                                     .run_count = 1};
            struct pair_open source_open = {
                .key = 7 + i, .region = role == 0 ? PAIR_R1 : PAIR_R0, .sink_count = 1};
            struct pair_room *source = pair_open_source(p, 0, &source_open);
            struct pair_room *sink = pair_open_sink(p, 0, &open);
            pair_settle(p);
            cr_assert(pair_is_drained(sink));
            cr_assert_eq(sink->view.reason, KVF_E_DEVICE_COPY, "role %u: %s", role,
                         kvf_code_name((int)sink->view.reason));
            pair_abort(source);
            pair_settle(p);
            cr_assert(pair_is_drained(source));
        }
        pair_finish(p);
    }
}

Test(core_flush, a_region_stays_while_a_flush_of_it_is_out_that_nobody_waits_for)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    pair_region_device(p, 0, 0, PAIR_R0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1); /* the transport has it, and never answers */
    kvf_core_tick(core_of(p), p->now_ns + p->config.fence_ns + PAIR_MS);
    cr_assert_eq(kvf_word_phase(word_of(p)), KVF_PHASE_QUARANTINED);
    cr_assert_eq(kvf_core_release(core_of(p), p->now_ns, 0, SLOT, GENERATION), 0);
    cr_assert_eq(kvf_core_region_remove(core_of(p), 0, PAIR_R0), -KVF_E_REGION_BUSY,
                 "the transport still names its memory");
    pair_free(p);
}

Test(core_flush, a_client_keeps_its_place_until_the_flush_of_a_released_room_is_answered)
{
    struct pair *p = pair_new(POSTED(1));
    struct kvf_core *core = core_of(p);
    struct kvf_action a;
    struct kvf_core_adopt room = earlier(KVF_OUTCOME_FAILED);
    pair_region_device(p, 0, 0, PAIR_R0);
    cr_assert_eq(adopt(p, &room), 0);
    cr_assert_eq(take(p, KVF_ACT_FLUSH, &a), 1);
    kvf_core_tick(core, p->now_ns + p->config.fence_ns + PAIR_MS);
    cr_assert_eq(kvf_core_release(core, p->now_ns, 0, SLOT, GENERATION), 0);
    kvf_core_client_close(core, p->now_ns, 0, KVF_E_ENGINE_GONE);
    kvf_core_client_reaped(core, p->now_ns, 0);
    (void)take(p, KVF_ACT_FLUSH, &a);
    cr_assert_not(kvf_core_client_is_quiet(core, 0), "the answer would be another engine's");
    kvf_core_flushed(core, p->now_ns, 0, SLOT, GENERATION, 0);
    cr_assert(kvf_core_client_is_quiet(core, 0));
    pair_free(p);
}

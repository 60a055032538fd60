/* Flushes of memory that the host does not own, and what falls beside them: answers that come late or for nobody, regions
 * that come for one room of many, leases that come back, operators that speak first, connections to this very worker. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define SLOT 5u
#define GENERATION 9u
#define R0_BIT 1u
#define R1_BIT 2u

static struct kvf_core *core_of(struct pair *p)
{
    return p->daemons[0].core;
}

/* Daemon 0 is the sink: PAIR_R0 is a device's, PAIR_R1 the host's. Flushes wait. */
static struct pair *begin(void)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_region_device(p, 0, 0, PAIR_R0);
    pair_warm(p, 0, 1);
    p->daemons[0].hold_flushes = true;
    p->daemons[0].flushes = 0;
    return p;
}

static struct pair_room *start(struct pair *p, uint64_t key, uint32_t count)
{
    struct pair_room *sink = pair_sink(p, 0, 1, key, 0, count);
    struct pair_room *source = pair_source(p, 1, key);
    (void)pair_submit(source, 0, 0, count, true);
    pair_settle(p);
    return sink;
}

static void pass_the_deadline(struct pair *p)
{
    pair_advance(p, p->config.cooperative_ns + 2 * p->config.fence_ns);
}

static uint64_t failed_flushes(struct pair *p)
{
    return pair_count(p, 0, KVF_COUNT_FLUSHES_FAILED);
}

/* ---- rooms of this worker ----------------------------------------------------------------------------------- */

/* Its second grant never left, its first one was fenced: what that had written is flushed before anybody has the pages. */
Test(flush_late, a_room_whose_last_grant_was_never_posted_is_flushed_for_the_one_before)
{
    struct pair *p = begin();
    pair_link(p, 0, 1)->hold_hand = 1;
    struct pair_room *sink = start(p, 7, 16);
    (void)pair_hand(p, pair_stream(p, 0, 1, 0), 5);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_lane_hello = 1;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 1);
    cr_assert_eq(p->daemons[0].flushes, 0, "it is open");
    pair_abort(sink);
    cr_assert_not(pair_is_drained(sink));
    cr_assert_eq(p->daemons[0].flushes_out, 1);
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    pair_open_gates(p);
    pair_advance(p, 1000 * PAIR_MS);
    pair_finish(p);
}

Test(flush_late, a_lease_that_comes_back_behind_a_failed_flush_drains_nothing)
{
    struct pair *p = begin();
    pair_link(p, 0, 1)->hold_post = 1;
    struct pair_room *sink = start(p, 7, 8);
    cr_assert(pair_lease(sink, 1, 0, 0));
    pair_link(p, 0, 1)->hold_post = 0;
    pair_settle(p);
    pair_flushes_answer(p, 0, -EIO);
    cr_assert_eq(failed_flushes(p), 1);
    pair_lease_return(sink);
    pair_expect_held(sink);
    cr_assert_eq(p->daemons[0].flushes, 1, "nor is it asked again");
    pair_free(p);
}

/* The deadline has ordered this worker's end; until that comes an answer is a proof like any other. */
Test(flush_late, an_answer_behind_the_deadline_of_this_workers_room_drains_it)
{
    struct pair *p = begin();
    struct pair_room *sink = start(p, 7, 8);
    sink->is_bound_off = true;
    pass_the_deadline(p);
    cr_assert_eq(failed_flushes(p), 1);
    cr_assert_eq(p->daemons[0].escalations, 1);
    pair_expect_held(sink);
    pair_flushes_answer(p, 0, 0);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(flush_late, a_failure_behind_the_deadline_is_counted_once)
{
    struct pair *p = begin();
    struct pair_room *sink = start(p, 7, 8);
    pass_the_deadline(p);
    pair_flushes_answer(p, 0, -EIO);
    pass_the_deadline(p);
    cr_assert_eq(failed_flushes(p), 1);
    cr_assert_eq(p->daemons[0].escalations, 1);
    pair_expect_held(sink);
    pair_free(p);
}

/* ---- rooms of an earlier worker --------------------------------------------------------------------------------- */

/* The harness knows nothing of such rooms: their actions are taken here. */
static uint32_t take_flushes(struct pair *p, uint32_t gpu)
{
    struct kvf_action a;
    uint32_t count = 0;
    while (kvf_core_next_action(core_of(p), &a) != 0) {
        if (a.kind == KVF_ACT_CLOSE_LEASES) {
            kvf_core_leases(core_of(p), p->now_ns, a.client, a.slot, a.generation, 0, gpu, 0);
        }
        count += a.kind == KVF_ACT_FLUSH;
    }
    return count;
}

static void adopt(struct pair *p, uint32_t slot, uint64_t generation, uint16_t device_regions,
                  bool is_quarantined)
{
    struct kvf_core_adopt room = {.slot = slot,
                                  .generation = generation,
                                  .outcome = KVF_OUTCOME_FAILED,
                                  .is_quarantined = is_quarantined,
                                  .device_regions = device_regions,
                                  .total_pages = 8};
    cr_assert_eq(kvf_core_adopt(core_of(p), p->now_ns, &room), 0);
}

static uint64_t word_at(struct pair *p, uint32_t slot)
{
    struct kvf_core_room_view view;
    kvf_core_room_view(core_of(p), 0, slot, &view);
    return view.word;
}

static void flushed(struct pair *p, uint32_t slot, int err)
{
    kvf_core_flushed(core_of(p), p->now_ns, 0, slot, kvf_word_generation(word_at(p, slot)),
                     err);
}

static void release(struct pair *p, uint32_t slot)
{
    cr_assert_eq(
        kvf_core_release(core_of(p), p->now_ns, 0, slot, kvf_word_generation(word_at(p, slot))),
        0);
    (void)take_flushes(p, 0);
}

/* A slot is used again while the flush of the room before it is out: its answer is not the new one's. */
Test(flush_late, an_answer_for_the_room_before_proves_nothing_of_the_next_one_in_its_slot)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_region_device(p, 0, 0, PAIR_R0);
    adopt(p, SLOT, GENERATION, R0_BIT, false);
    cr_assert_eq(take_flushes(p, 0), 1);
    kvf_core_tick(core_of(p), p->now_ns + p->config.fence_ns + PAIR_MS);
    cr_assert_eq(kvf_word_phase(word_at(p, SLOT)), KVF_PHASE_QUARANTINED);
    release(p, SLOT);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT)));
    adopt(p, SLOT, GENERATION + 1, R0_BIT, false);
    cr_assert_eq(take_flushes(p, 0), 1);
    uint64_t stale = pair_count(p, 0, KVF_COUNT_STALE_LANE_EVENTS);
    kvf_core_flushed(core_of(p), p->now_ns, 0, SLOT, GENERATION, 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_LANE_EVENTS), stale + 1);
    cr_assert_not(kvf_word_is_drained(word_at(p, SLOT)));
    flushed(p, SLOT, 0);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT)));
    pair_free(p);
}

/* What an operator takes upon himself is what nothing here can prove: the leases of a dead engine. What the flush can
 * prove is still waited for. */
Test(flush_late, a_release_from_the_quarantine_of_leases_waits_for_the_flush_that_is_to_come)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_region_device(p, 0, 0, PAIR_R0);
    adopt(p, SLOT, GENERATION, R0_BIT, true);
    (void)take_flushes(p, 1);
    release(p, SLOT);
    cr_assert_eq(core_of(p)->flushes_out, 1);
    cr_assert_not(kvf_word_is_drained(word_at(p, SLOT)));
    flushed(p, SLOT, 0);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT)));
    cr_assert_eq(kvf_word_proof(word_at(p, SLOT)), KVF_PROOF_OPERATOR);
    pair_free(p);
}

Test(flush_late, a_release_of_a_room_whose_region_is_not_here_waits_for_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    adopt(p, SLOT, GENERATION, R0_BIT, true);
    cr_assert_eq(take_flushes(p, 1), 0);
    release(p, SLOT);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT)));
    cr_assert_eq(kvf_word_proof(word_at(p, SLOT)), KVF_PROOF_OPERATOR);
    cr_assert_eq(core_of(p)->flushes_out, 0);
    pair_free(p);
}

/* ... and the deadline that ran for its region is nobody's any more: neither this room's, nor that of the next one in
 * its slot. */
Test(flush_late, a_release_takes_the_deadline_along_that_ran_for_the_region)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    adopt(p, SLOT, GENERATION, R0_BIT, true);
    adopt(p, SLOT + 1, GENERATION, R0_BIT, true);
    cr_assert_eq(take_flushes(p, 1), 0);
    release(p, SLOT);
    release(p, SLOT + 1);
    adopt(p, SLOT + 1, GENERATION + 1, 0, false);
    (void)take_flushes(p, 0);
    kvf_core_tick(core_of(p), p->now_ns + p->config.register_ns + p->config.fence_ns + PAIR_MS);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT)));
    cr_assert(kvf_word_is_drained(word_at(p, SLOT + 1)));
    cr_assert_eq(failed_flushes(p), 0);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_ROOMS_QUARANTINED), 0);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 0);
    pair_free(p);
}

/* Three rooms of one client: of this worker, of an earlier one and without pages there, and two that wait. */
Test(flush_late, a_region_that_comes_is_asked_for_by_the_rooms_that_wait_for_it_alone)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_region_device(p, 0, 0, PAIR_R1);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    struct pair_room *running = pair_open_source(
        p, 0, &(struct pair_open){.key = 7, .region = PAIR_R1, .sink_count = 1});
    adopt(p, SLOT, GENERATION, R0_BIT, false);
    adopt(p, SLOT + 1, GENERATION, R0_BIT, false);
    adopt(p, SLOT + 2, GENERATION, R1_BIT, false);
    adopt(p, SLOT + 3, GENERATION, 0, true);
    cr_assert_eq(take_flushes(p, 0), 1, "R1 is here");
    cr_assert_eq(core_of(p)->rooms[SLOT + 2].is_flush_asked, true);
    pair_region_add(p, 0, 0, PAIR_REGION(0, 2), 16, PAIR_PAGE_BYTES);
    cr_assert_eq(kvf_core_region_ready(core_of(p), p->now_ns, 0, PAIR_REGION(0, 2), true), 0);
    cr_assert_eq(take_flushes(p, 0), 2);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_not(kvf_word_is_drained(word_at(p, SLOT + i)));
        flushed(p, SLOT + i, 0);
        cr_assert(kvf_word_is_drained(word_at(p, SLOT + i)));
    }
    cr_assert_eq(kvf_word_phase(word_at(p, running->slot)), KVF_PHASE_OPEN);
    pair_free(p);
}

/* The client's list of regions is whole: rooms that need one beyond it wait for nobody, and the others go on. */
Test(flush_late, a_whole_list_of_regions_gives_up_the_rooms_beyond_it_once_and_no_others)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    kvf_core_regions_whole(core_of(p), 0, 0); /* a client without rooms */
    pair_region_device(p, 0, 0, PAIR_R1);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    struct pair_room *running = pair_open_source(
        p, 0, &(struct pair_open){.key = 7, .region = PAIR_R1, .sink_count = 1});
    adopt(p, SLOT, GENERATION, R0_BIT, false);
    adopt(p, SLOT + 1, GENERATION, R1_BIT, false);
    cr_assert_eq(take_flushes(p, 0), 1);
    for (uint32_t i = 0; i < 2; i++) {
        kvf_core_regions_whole(core_of(p), 0, 0);
        cr_assert_eq(failed_flushes(p), 1);
        cr_assert_eq(kvf_word_phase(word_at(p, SLOT)), KVF_PHASE_QUARANTINED);
        cr_assert_eq(kvf_word_phase(word_at(p, SLOT + 1)), KVF_PHASE_CLOSING);
        cr_assert_eq(kvf_word_phase(word_at(p, running->slot)), KVF_PHASE_OPEN);
    }
    flushed(p, SLOT + 1, 0);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT + 1)));
    pair_free(p);
}

/* ---- regions that come to a quarantine ------------------------------------------------------------------------------ */

/* A room of both regions, of which the one in this slot is not registered; its time to come is over. */
static struct pair *quarantined_without(uint32_t slot, bool is_rail_missing)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    uint32_t handle = slot == 0 ? PAIR_R0 : PAIR_R1;
    pair_region_device(p, 0, 0, slot == 0 ? PAIR_R1 : PAIR_R0);
    cr_assert_eq(pair_region_remove(p, 0, 0, handle), 0);
    struct kvf_core_adopt room = {.slot = SLOT,
                                  .generation = GENERATION,
                                  .outcome = KVF_OUTCOME_FAILED,
                                  .is_rail_missing = is_rail_missing,
                                  .device_regions = R0_BIT | R1_BIT,
                                  .total_pages = 8};
    cr_assert_eq(kvf_core_adopt(core_of(p), p->now_ns, &room), 0);
    cr_assert_eq(take_flushes(p, 0), slot == 1 && !is_rail_missing);
    kvf_core_tick(core_of(p), p->now_ns + p->config.register_ns + p->config.fence_ns + PAIR_MS);
    cr_assert_eq(take_flushes(p, 0), 0);
    cr_assert_eq(kvf_word_phase(word_at(p, SLOT)), KVF_PHASE_QUARANTINED);
    return p;
}

static void region_comes(struct pair *p, uint32_t slot, bool is_device)
{
    uint32_t handle = PAIR_REGION(slot, 2);
    pair_region_add(p, 0, 0, handle, 16, PAIR_PAGE_BYTES);
    cr_assert_eq(kvf_core_region_ready(core_of(p), p->now_ns, 0, handle, is_device), 0);
}

static void expect_quarantined(struct pair *p)
{
    cr_assert_eq(kvf_word_phase(word_at(p, SLOT)), KVF_PHASE_QUARANTINED);
}

static void expect_proven(struct pair *p)
{
    (void)take_flushes(p, 0);
    cr_assert(kvf_word_is_drained(word_at(p, SLOT)));
    cr_assert_eq(kvf_word_proof(word_at(p, SLOT)), KVF_PROOF_WORKER_GONE);
    pair_free(p);
}

Test(flush_late, a_region_that_comes_while_the_flush_of_another_is_out_follows_it)
{
    struct pair *p = quarantined_without(1, false);
    region_comes(p, 1, true);
    cr_assert_eq(take_flushes(p, 0), 0, "one flush of a room at a time");
    flushed(p, SLOT, 0);
    expect_quarantined(p);
    cr_assert_eq(take_flushes(p, 0), 1);
    flushed(p, SLOT, 0);
    expect_proven(p);
}

Test(flush_late, a_late_answer_for_one_region_leaves_the_room_waiting_for_the_other)
{
    struct pair *p = quarantined_without(1, false);
    flushed(p, SLOT, 0);
    expect_quarantined(p);
    cr_assert_eq(take_flushes(p, 0), 0, "it is not here");
    region_comes(p, 1, true);
    cr_assert_eq(take_flushes(p, 0), 1);
    flushed(p, SLOT, 0);
    expect_proven(p);
}

Test(flush_late,
     a_region_that_comes_late_and_is_the_hosts_ends_the_quarantine_with_the_others_flush)
{
    struct pair *p = quarantined_without(0, false);
    region_comes(p, 0, false);
    expect_quarantined(p);
    cr_assert_eq(take_flushes(p, 0), 1, "of the other one");
    flushed(p, SLOT, 0);
    expect_proven(p);
}

/* What was written through a device that is not here stays there, whatever regions come. */
Test(flush_late, no_region_ends_the_quarantine_of_a_room_whose_device_is_not_here)
{
    struct pair *p = quarantined_without(1, true);
    region_comes(p, 1, true);
    cr_assert_eq(take_flushes(p, 0), 0);
    expect_quarantined(p);
    pair_free(p);
}

/* ---- a connection to this very worker ------------------------------------------------------------------------------ */

static struct pair_room *sink_in(struct pair *p, uint32_t to, uint64_t key, uint32_t region,
                                 uint32_t first)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(to), .start = 0, .count = 4};
    struct kvf_run_shm run = {.region = region, .first = first, .count = 4};
    return pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = key, .writers = &writer, .writer_count = 1, .runs = &run, .run_count = 1});
}

/* Rooms waited before it was known who answers there: those in a device's memory with this worker end, and only they. */
Test(flush_late, of_the_rooms_that_waited_only_those_that_would_be_copied_are_refused)
{
    struct pair *p = pair_new(
        &(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .is_self_copied = true});
    pair_region_device(p, 0, 0, PAIR_R0);
    pair_warm(p, 0, 1);
    p->daemons[0].hold_connects = true;
    struct pair_room *over = sink_in(p, 0, 6, PAIR_R1, 40);
    struct pair_room *copied = sink_in(p, 0, 7, PAIR_R0, 0);
    struct pair_room *host = sink_in(p, 0, 8, PAIR_R1, 0);
    struct pair_room *other = sink_in(p, 1, 9, PAIR_R0, 8);
    pair_settle(p);
    pair_abort(over); /* its hint is still owed to whoever answers */
    struct pair_room *brief = sink_in(p, 1, 5, PAIR_R1, 80);
    pair_settle(p);
    pair_abort(brief); /* its record is free before the others are looked at */
    pair_settle(p);
    cr_assert_eq(pair_phase(copied), KVF_PHASE_OPEN);
    p->daemons[0].hold_connects = false;
    pair_connect_now(p, 0, 0);
    pair_settle(p);
    pair_expect(copied, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_DEVICE_COPY);
    cr_assert_eq(pair_phase(host), KVF_PHASE_OPEN);
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN);
    struct pair_room *sources[2] = {
        pair_open_source(p, 0,
                         &(struct pair_open){.key = 8, .region = PAIR_R1, .sink_count = 1}),
        pair_source(p, 1, 9)};
    struct kvf_run_shm run = {.region = PAIR_R1, .first = 60, .count = 4};
    cr_assert_eq(pair_submit_runs(sources[0], 0, &run, 1, true), 0);
    (void)pair_submit(sources[1], 0, 0, 4, true);
    pair_settle(p);
    pair_expect(host, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(other, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

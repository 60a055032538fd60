/* Fan-in: one sink room, several writers, each with its own part. Fan-out: one source room, several sinks. */
#include <criterion/criterion.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

/* One sink at daemon 0, writers 1..3 with the parts [0,6), [6,8), [8,16) of a list of three runs. */
static struct pair_room *fan_in(struct pair *p, uint64_t key)
{
    struct kvf_writer_shm writers[3] = {{.addr = pair_addr(1), .start = 0, .count = 6},
                                        {.addr = pair_addr(2), .start = 6, .count = 2},
                                        {.addr = pair_addr(3), .start = 8, .count = 8}};
    struct kvf_run_shm runs[3] = {{PAIR_R0, 30, 5}, {PAIR_R1, 2, 4}, {PAIR_R0, 50, 7}};
    return pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = key, .writers = writers, .writer_count = 3, .runs = runs, .run_count = 3});
}

static const uint32_t part[4] = {0, 6, 2, 8};

Test(core_fan, a_sink_with_three_writers_succeeds_when_all_three_ended)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p =
            pair_new(&(struct pair_options){.daemons = 4, .placement = placements[i]});
        struct pair_room *sources[4];
        for (uint32_t d = 1; d < 4; d++) {
            sources[d] = pair_source(p, d, 7);
        }
        struct pair_room *sink = fan_in(p, 7);
        pair_settle(p);
        cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
        for (uint32_t d = 3; d > 0; d--) {
            cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
            (void)pair_submit(sources[d], 0, 10, part[d], true);
            pair_settle(p);
        }
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        cr_assert_eq(sink->view.placed_bytes, PAIR_BYTES(16));
        for (uint32_t d = 1; d < 4; d++) {
            pair_expect(sources[d], KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        }
        pair_finish(p);
    }
}

Test(core_fan, a_sink_is_bootstrapping_until_every_writer_accepted)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4});
    struct pair_room *sink = fan_in(p, 7);
    struct pair_room *sources[4];
    for (uint32_t d = 1; d < 4; d++) {
        cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
        sources[d] = pair_source(p, d, 7);
        pair_settle(p);
    }
    cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
    pair_abort(sink);
    pair_settle(p);
    for (uint32_t d = 1; d < 4; d++) {
        cr_assert(pair_is_drained(sources[d]));
    }
    pair_finish(p);
}

Test(core_fan, one_writers_failure_waits_for_the_others_that_still_write)
{
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 4, .placement = KVF_PLACEMENT_POSTED});
    struct pair_room *sources[4];
    for (uint32_t d = 1; d < 4; d++) {
        sources[d] = pair_source(p, d, 7);
    }
    struct pair_room *sink = fan_in(p, 7);
    pair_settle(p);
    (void)pair_submit(sources[1], 0, 10, 6, true);
    pair_settle(p); /* writer 1 has ended well */
    pair_link(p, 0, 3)->hold_deliver = 1;
    (void)pair_submit(sources[3], 0, 10, 8, true);
    pair_settle(p); /* writer 3 is on its way */
    pair_abort(sources[2]);
    pair_settle(p);
    pair_expect_held(sink);
    cr_assert_neq(sink->view.word & KVF_WORD_FAILED_EARLY, 0); /* told early, not released */
    pair_link(p, 0, 3)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_ABORTED);
    pair_finish(p);
}

Test(core_fan, a_room_shows_the_weakest_proof_any_of_its_pairs_used)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 4, .placement = KVF_PLACEMENT_POSTED, .has_no_regrants = true});
    struct pair_room *sources[4];
    for (uint32_t d = 1; d < 4; d++) {
        pair_warm(p, 0, d);
        sources[d] = pair_source(p, d, 7);
    }
    struct pair_room *sink = fan_in(p, 7);
    pair_settle(p);
    (void)pair_submit(sources[1], 0, 10, 6, true); /* LANDED */
    pair_settle(p);
    pair_stream_lose(p, pair_stream(p, 0, 3, 0), PAIR_SINK); /* FENCED */
    pair_settle(p);                                          /* and writer 2 drains */
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
    cr_assert_eq(sources[1]->view.word & KVF_WORD_FAILED_EARLY, 0);
    cr_assert_eq(pair_outcome(sources[2]), KVF_OUTCOME_FAILED);
    pair_finish(p);
}

Test(core_fan, two_writers_may_be_the_same_daemon_when_their_parts_differ)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_writer_shm writers[2] = {{.addr = pair_addr(1), .start = 0, .count = 4},
                                        {.addr = pair_addr(1), .start = 4, .count = 4}};
    struct kvf_run_shm run = {PAIR_R0, 0, 8};
    struct pair_room *source =
        pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = writers, .writer_count = 2, .runs = &run, .run_count = 1});
    pair_settle(p);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(p);
}

/* ---- fan-out ---------------------------------------------------------------------------------------- */

struct fan_out {
    struct pair *p;
    struct pair_room *source;
    struct pair_room *sinks[3]; /* at daemons 1..3; the source is daemon 0 */
};

static struct fan_out fan_out(uint8_t placement, uint32_t pages)
{
    struct fan_out f = {
        .p = pair_new(&(struct pair_options){.daemons = 4, .placement = placement})};
    for (uint32_t d = 1; d < 4; d++) {
        pair_warm(f.p, d, 0);
    }
    f.source = pair_open_source(f.p, 0, &(struct pair_open){.key = 7, .sink_count = 3});
    for (uint32_t d = 1; d < 4; d++) {
        f.sinks[d - 1] = pair_sink(f.p, d, 0, 7, 10 * d, pages);
    }
    pair_settle(f.p);
    return f;
}

Test(core_fan, a_source_keeps_its_pages_until_every_sink_has_them)
{
    for (size_t i = 0; i < 2; i++) {
        struct fan_out f = fan_out(placements[i], 8);
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 1;
        }
        (void)pair_submit(f.source, 0, 0, 8, true);
        for (uint32_t d = 1; d < 4; d++) {
            cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN);
            pair_link(f.p, d, 0)->hold_hand = 0;
            pair_settle(f.p);
            pair_expect(f.sinks[d - 1], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        }
        pair_expect(f.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_finish(f.p);
    }
}

Test(core_fan, a_sink_that_comes_late_is_served_from_the_first_piece)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct pair_room *source =
        pair_open_source(p, 0, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *first = pair_sink(p, 1, 0, 7, 0, 8);
    pair_settle(p);
    (void)pair_submit(source, 0, 0, 5, false);
    (void)pair_submit(source, 5, 20, 3, true);
    pair_settle(p);
    pair_expect(first, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
    struct pair_room *second = pair_sink(p, 2, 0, 7, 40, 8);
    pair_settle(p);
    pair_expect(second, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(p);
}

/* The aborted sink's posts are under way; the others must not notice. */
Test(core_fan, one_sinks_abort_in_flight_ends_only_its_grant)
{
    for (size_t i = 0; i < 2; i++) {
        struct fan_out f = fan_out(placements[i], 8);
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 1;
        }
        (void)pair_submit(f.source, 0, 0, 4, false);
        pair_settle(f.p);
        (void)pair_hand(f.p, pair_stream(f.p, 2, 0, 0), 3);
        pair_abort(f.sinks[1]);
        pair_settle(f.p);
        cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN);
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 0;
        }
        pair_settle(f.p);
        cr_assert(pair_is_drained(f.sinks[1]));
        cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN);
        (void)pair_submit(f.source, 4, 4, 4, true);
        pair_settle(f.p);
        pair_expect(f.sinks[0], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_expect(f.sinks[2], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_expect(f.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_finish(f.p);
    }
}

Test(core_fan, the_fence_of_an_aborted_sinks_stuck_lane_ends_only_its_grant)
{
    struct fan_out f = fan_out(KVF_PLACEMENT_POSTED, 8);
    pair_link(f.p, 2, 0)->hold_hand = 1; /* its window stays shut: no marker gets through */
    (void)pair_submit(f.source, 0, 0, 4, false);
    pair_settle(f.p);
    pair_abort(f.sinks[1]);
    pair_advance(f.p, 600 * PAIR_MS);
    pair_expect(f.sinks[1], KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN);
    (void)pair_submit(f.source, 4, 4, 4, true);
    pair_settle(f.p);
    pair_expect(f.sinks[0], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(f.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(f.p);
}

Test(core_fan, an_aborted_sink_whose_daemon_dies_ends_only_its_grant)
{
    struct fan_out f = fan_out(KVF_PLACEMENT_POSTED, 8);
    pair_link(f.p, 2, 0)->hold_hand = 1;
    (void)pair_submit(f.source, 0, 0, 4, false);
    pair_settle(f.p);
    pair_abort(f.sinks[1]);
    pair_settle(f.p);
    pair_kill(f.p, 2);
    pair_settle(f.p);
    cr_assert_eq(pair_phase(f.source), KVF_PHASE_OPEN);
    (void)pair_submit(f.source, 4, 4, 4, true);
    pair_settle(f.p);
    pair_expect(f.sinks[0], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(f.sinks[2], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(f.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(f.p);
}

Test(core_fan, when_all_sinks_abort_the_source_ends_at_once)
{
    for (size_t i = 0; i < 2; i++) {
        struct fan_out f = fan_out(placements[i], 8);
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 1;
        }
        (void)pair_submit(f.source, 0, 0, 8, true);
        pair_settle(f.p);
        for (uint32_t d = 1; d < 4; d++) {
            pair_abort(f.sinks[d - 1]);
        }
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 0;
        }
        pair_settle(f.p);
        cr_assert(pair_is_drained(f.source));
        cr_assert_eq(pair_proof(f.source), KVF_PROOF_SOURCE_IDLE);
        pair_finish(f.p);
    }
}

Test(core_fan, a_sink_that_aborted_before_its_grant_left_is_not_waited_for)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct pair_room *source =
        pair_open_source(p, 0, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *first = pair_sink(p, 1, 0, 7, 0, 8);
    pair_settle(p);
    struct pair_room *second = pair_sink(p, 2, 0, 7, 0, 8);
    pair_abort(second); /* not even connected yet */
    pair_settle(p);
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    pair_expect(first, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(p);
}

Test(core_fan, one_sink_too_many_is_told_that_the_room_is_gone)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct pair_room *source = pair_source(p, 0, 7);
    struct pair_room *first = pair_sink(p, 1, 0, 7, 0, 8);
    pair_settle(p);
    struct pair_room *second = pair_sink(p, 2, 0, 7, 0, 8);
    pair_settle(p);
    pair_expect(second, KVF_OUTCOME_FAILED, pair_declined(p), KVF_E_PEER_ROOM_GONE);
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    pair_expect(first, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_fan, the_sources_own_abort_ends_all_its_grants)
{
    for (size_t i = 0; i < 2; i++) {
        struct fan_out f = fan_out(placements[i], 8);
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 1;
        }
        (void)pair_submit(f.source, 0, 0, 4, false);
        pair_settle(f.p);
        pair_abort(f.source);
        for (uint32_t d = 1; d < 4; d++) {
            pair_link(f.p, d, 0)->hold_hand = 0;
        }
        pair_settle(f.p);
        pair_expect(f.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
        for (uint32_t d = 0; d < 3; d++) {
            cr_assert(pair_is_drained(f.sinks[d]));
            cr_assert_eq(f.sinks[d]->view.reason, KVF_E_PEER_ABORTED);
        }
        pair_finish(f.p);
    }
}

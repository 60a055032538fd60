/* What a transfer does when nothing fails: pieces in every order, several lanes, long lists, windows. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

static void expect_success(const struct pair_room *sink, const struct pair_room *source)
{
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    cr_assert_eq(sink->view.placed_bytes, sink->view.total_bytes);
}

static void whole_transfer(uint8_t placement)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = placement});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 40, 12);
    cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
    cr_assert_eq(pair_poll(source), KVF_STATE_BOOTSTRAPPING);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(pair_poll(source), KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(sink->view.unproven, 1);
    cr_assert_eq(sink->view.total_pages, 12);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD), 12);
    cr_assert_eq(pair_submit(source, 0, 100, 12, true), 0);
    cr_assert_eq(pair_poll(source), KVF_STATE_TRANSFERRING);
    pair_settle(p);
    expect_success(sink, source);
    cr_assert_eq(sink->view.total_bytes, PAIR_BYTES(12));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_ACCEPTED), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_BYTES_PLACED), PAIR_BYTES(12));
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_BYTES_POSTED), PAIR_BYTES(12));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROOF_FIRST + KVF_PROOF_LANDED), 1);
    pair_finish(p);
}

Test(core_plain, one_transfer_lands_whole_and_both_rooms_end)
{
    for (size_t i = 0; i < 2; i++) {
        whole_transfer(placements[i]);
    }
}

Test(core_plain, the_happy_path_sends_one_grant_one_accept_and_one_marker_per_lane)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2});
    pair_warm(p, 0, 1);
    uint64_t markers = pair_count(p, 0, KVF_COUNT_MARKERS_END);
    struct pair_conn *c = pair_conn(p, 0, 1);
    uint32_t to_source = c->delivered[PAIR_SOURCE];
    uint32_t to_sink = c->delivered[PAIR_SINK];
    struct pair_room *source = pair_source(p, 1, 2);
    struct pair_room *sink = pair_sink(p, 0, 1, 2, 8, 4);
    pair_settle(p);
    (void)pair_submit(source, 0, 8, 4, true);
    pair_settle(p);
    expect_success(sink, source);
    cr_assert_eq(c->delivered[PAIR_SOURCE] - to_source, 1); /* GRANT: the region is known */
    cr_assert_eq(c->delivered[PAIR_SINK] - to_sink, 1);     /* ACCEPT */
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END) - markers, 2);
    pair_finish(p);
}

Test(core_plain, pieces_before_the_grant_wait_for_it)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    cr_assert_eq(pair_submit(source, 0, 10, 3, false), 0);
    cr_assert_eq(pair_submit(source, 3, 50, 5, true), 0);
    pair_settle(p);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 40, 8);
    pair_settle(p);
    expect_success(sink, source);
    pair_finish(p);
}

Test(core_plain, pieces_may_come_in_any_order_and_from_scattered_runs)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_run_shm to[3] = {{PAIR_R0, 9, 2}, {PAIR_R0, 3, 5}, {PAIR_R1, 20, 3}};
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 10};
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = &writer, .writer_count = 1, .runs = to, .run_count = 3});
    pair_settle(p);
    struct kvf_run_shm from[2] = {{PAIR_R0, 77, 1}, {PAIR_R0, 60, 2}};
    cr_assert_eq(pair_submit(source, 6, 100, 4, false), 0);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_TRANSFERRING);
    cr_assert_eq(pair_submit(source, 0, 110, 3, false), 0);
    cr_assert_eq(pair_submit_runs(source, 3, from, 2, true), 0);
    pair_settle(p);
    expect_success(sink, source);
    pair_finish(p);
}

Test(core_plain, an_auxiliary_region_rides_in_the_same_grant)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_run_shm to[2] = {{PAIR_R0, 0, 4}, {PAIR_R1, 5, 1}};
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 5};
    struct pair_room *source = pair_open_source(
        p, 1, &(struct pair_open){.key = 7, .sink_count = 1, .aux_region = PAIR_R1});
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = &writer, .writer_count = 1, .runs = to, .run_count = 2});
    pair_settle(p);
    struct kvf_run_shm aux = {PAIR_R1, 200, 1};
    (void)pair_submit(source, 0, 0, 4, false);
    (void)pair_submit_runs(source, 4, &aux, 1, true);
    pair_settle(p);
    expect_success(sink, source);
    pair_finish(p);
}

Test(core_plain, a_large_room_is_striped_and_every_lane_carries_its_end)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.lanes = 4,
                                                         .placement = placements[i],
                                                         .pages = 512,
                                                         .room_window_bytes = PAIR_BYTES(256)});
        pair_warm(p, 0, 1);
        uint64_t markers = pair_count(p, 0, KVF_COUNT_MARKERS_END);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 300);
        pair_settle(p);
        cr_assert_eq(sink->view.unproven, 4);
        pair_link(p, 0, 1)->hold_hand = 0xf;
        (void)pair_submit(source, 0, 0, 300, true);
        pair_settle(p);
        uint32_t used = 0;
        for (uint32_t lane = 0; lane < 4; lane++) {
            used += pair_stream(p, 0, 1, lane)->count > 0 ? 1 : 0;
        }
        cr_assert_gt(used, 1);
        pair_link(p, 0, 1)->hold_hand = 0;
        pair_settle(p);
        expect_success(sink, source);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END) - markers, 4);
        pair_finish(p);
    }
}

Test(core_plain, a_small_room_uses_one_lane_of_four_and_takes_turns)
{
    struct pair *p =
        pair_new(&(struct pair_options){.lanes = 4, .stripe_bytes = PAIR_BYTES(16)});
    pair_warm(p, 0, 1);
    struct pair_room *sinks[4];
    struct pair_room *sources[4];
    for (uint32_t i = 0; i < 4; i++) {
        sources[i] = pair_source(p, 1, 10 + i);
        sinks[i] = pair_sink(p, 0, 1, 10 + i, 8 * i, 8);
    }
    pair_settle(p);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(sinks[i]->view.unproven, 1);
        cr_assert_eq(p->daemons[0].core->lanes[i].credits_out, 1); /* the only OUT peer is 0 */
        (void)pair_submit(sources[i], 0, 8 * i, 8, true);
    }
    pair_settle(p);
    for (uint32_t i = 0; i < 4; i++) {
        expect_success(sinks[i], sources[i]);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END), 5);
    pair_finish(p);
}

static struct pair_room *scattered_sink(struct pair *p, uint64_t key, uint32_t pages)
{
    struct kvf_run_shm *runs = calloc(pages, sizeof *runs);
    for (uint32_t i = 0; i < pages; i++) { /* every other page: no two runs touch */
        runs[i] = (struct kvf_run_shm){.region = PAIR_R0, .first = 2 * i, .count = 1};
    }
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = pages};
    struct pair_room *r = pair_open_sink(p, 0,
                                         &(struct pair_open){.key = key,
                                                             .writers = &writer,
                                                             .writer_count = 1,
                                                             .runs = runs,
                                                             .run_count = pages});
    free(runs);
    return r;
}

Test(core_plain, a_grant_of_many_fragments_acts_when_it_is_whole)
{
    struct pair *p = pair_new(&(struct pair_options){.pages = 25000, .runs_max = 65536});
    struct pair_room *source = pair_source(p, 1, 7);
    pair_link(p, 0, 1)->hold[PAIR_SOURCE] = true;
    struct pair_room *sink = scattered_sink(p, 7, 12000);
    pair_settle(p);
    pair_link(p, 0, 1)->hold[PAIR_SOURCE] = false;
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 1);
    (void)pair_submit(source, 0, 0, 12000, true);
    pair_settle(p);
    expect_success(sink, source);
    pair_finish(p);
}

Test(core_plain, posts_of_a_room_and_of_a_lane_stay_inside_their_windows)
{
    struct pair *p = pair_new(&(struct pair_options){.post_bytes = PAIR_BYTES(1),
                                                     .room_window_bytes = PAIR_BYTES(4),
                                                     .lane_window_bytes = PAIR_BYTES(10)});
    struct pair_room *sinks[4];
    struct pair_room *sources[4];
    for (uint32_t i = 0; i < 4; i++) {
        sources[i] = pair_source(p, 1, 10 + i);
        sinks[i] = pair_sink(p, 0, 1, 10 + i, 20 * i, 20);
    }
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(sources[0], 0, 0, 20, true);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_POSTED_BYTES), PAIR_BYTES(4));
    for (uint32_t i = 1; i < 4; i++) {
        (void)pair_submit(sources[i], 0, 20 * i, 20, true);
    }
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_POSTED_BYTES), PAIR_BYTES(10));
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    for (uint32_t i = 0; i < 4; i++) {
        expect_success(sinks[i], sources[i]);
    }
    pair_finish(p);
}

Test(core_plain, a_lane_that_carried_markers_alone_keeps_its_window)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 4,
                                                     .post_bytes = PAIR_BYTES(1),
                                                     .room_window_bytes = PAIR_BYTES(64),
                                                     .lane_window_bytes = PAIR_BYTES(8)});
    for (uint32_t i = 0; i < 3; i++) {
        pair_warm(p, 0, 1); /* one page on one lane, an END on each */
        pair_advance(p, 1000 * PAIR_MS);
    }
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 64);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 0xf;
    (void)pair_submit(source, 0, 0, 64, true);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_POSTED_BYTES), PAIR_BYTES(32));
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    expect_success(sink, source);
    pair_finish(p);
}

Test(core_plain, rooms_of_one_lane_take_turns_post_by_post)
{
    struct pair *p = pair_new(&(struct pair_options){.post_bytes = PAIR_BYTES(1),
                                                     .room_window_bytes = PAIR_BYTES(8)});
    struct pair_room *a = pair_source(p, 1, 1);
    struct pair_room *b = pair_source(p, 1, 2);
    struct pair_room *sink_a = pair_sink(p, 0, 1, 1, 0, 8);
    struct pair_room *sink_b = pair_sink(p, 0, 1, 2, 8, 8);
    pair_settle(p);
    struct pair_link *link = pair_link(p, 0, 1);
    link->hold_post = 1;
    (void)pair_submit(a, 0, 0, 8, true);
    (void)pair_submit(b, 0, 8, 8, true);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    cr_assert_eq(pair_take_posts(p, s, 8), 8);
    uint32_t of_a = 0;
    for (const struct pair_post *q = s->head; q != NULL; q = q->next) {
        of_a += q->post.page_first < 8 ? 1 : 0;
    }
    cr_assert_eq(of_a, 4);
    link->hold_post = 0;
    pair_settle(p);
    expect_success(sink_a, a);
    expect_success(sink_b, b);
    pair_finish(p);
}

Test(core_plain, a_sink_grants_no_more_rooms_than_its_lane_has_receives)
{
    struct pair *p = pair_new(&(struct pair_options){.lane_rooms = 2});
    struct pair_room *sinks[5];
    struct pair_room *sources[5];
    for (uint32_t i = 0; i < 5; i++) {
        sources[i] = pair_source(p, 1, 10 + i);
        sinks[i] = pair_sink(p, 0, 1, 10 + i, 4 * i, 4);
    }
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 2);
    cr_assert_eq(pair_poll(sinks[2]), KVF_STATE_BOOTSTRAPPING);
    for (uint32_t i = 0; i < 5; i++) {
        (void)pair_submit(sources[i], 0, 4 * i, 4, true);
        pair_settle(p);
        cr_assert_leq(p->daemons[0].core->lanes[0].credits_out, 2);
    }
    for (uint32_t i = 0; i < 5; i++) {
        expect_success(sinks[i], sources[i]);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 5);
    pair_finish(p);
}

Test(core_plain, two_daemons_serve_each_other_and_one_serves_itself)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2});
    struct pair_room *sources[3] = {pair_source(p, 0, 1), pair_source(p, 1, 2),
                                    pair_source(p, 0, 3)};
    struct pair_room *sinks[3] = {pair_sink(p, 1, 0, 1, 0, 6), pair_sink(p, 0, 1, 2, 0, 6),
                                  pair_sink(p, 0, 0, 3, 10, 6)};
    pair_settle(p);
    for (uint32_t i = 0; i < 3; i++) {
        (void)pair_submit(sources[i], 0, 100 + 10 * i, 6, true);
    }
    pair_settle(p);
    for (uint32_t i = 0; i < 3; i++) {
        expect_success(sinks[i], sources[i]);
    }
    pair_finish(p);
}

Test(core_plain, rooms_may_share_source_pages)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sources[2];
    struct pair_room *sinks[2];
    for (uint32_t i = 0; i < 2; i++) {
        sources[i] = pair_open_source(
            p, 1, &(struct pair_open){.key = 1 + i, .content = 99, .sink_count = 1});
        sinks[i] = pair_sink(p, 0, 1, 1 + i, 10 * i, 5);
        sinks[i]->content = 99 << 8;
    }
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    cr_assert_eq(pair_submit(sources[0], 0, 50, 5, true), 0);
    cr_assert_eq(pair_submit(sources[1], 0, 50, 5, true), 0);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    expect_success(sinks[0], sources[0]);
    expect_success(sinks[1], sources[1]);
    pair_finish(p);
}

Test(core_plain, slots_and_handles_are_used_again_and_again)
{
    struct pair *p = pair_new(&(struct pair_options){.rooms = 3, .grants_max = 4});
    for (uint32_t i = 0; i < 500; i++) {
        struct pair_room *source = pair_source(p, 1, 100 + i);
        struct pair_room *sink = pair_sink(p, 0, 1, 100 + i, i % 200, 4);
        pair_settle(p);
        (void)pair_submit(source, 0, (i * 7) % 200, 4, true);
        pair_settle(p);
        expect_success(sink, source);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_MESSAGES), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_LANE_EVENTS), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 0);
    pair_finish(p);
}

Test(core_plain, an_end_that_overtakes_the_accept_is_success_all_the_same)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    pair_settle(p);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
    struct pair_room *source2 = pair_source(p, 1, 8);
    pair_link(p, 0, 1)->hold[PAIR_SINK] = true;
    struct pair_room *sink2 = pair_sink(p, 0, 1, 8, 10, 4);
    (void)pair_submit(source2, 0, 10, 4, true);
    pair_settle(p);
    expect_success(sink2, source2);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT),
                 2); /* the handle waits for its answer */
    pair_link(p, 0, 1)->hold[PAIR_SINK] = false;
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 1);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_finish(p);
}

Test(core_plain, both_ends_fit_the_memory_they_asked_for)
{
    struct kvf_core_limits limits = {.clients_max = 16,
                                     .rooms_per_client_max = 65536,
                                     .peers_max = 64,
                                     .lanes_per_peer = 8,
                                     .grants_max = 65536,
                                     .runs_max = 1u << 20,
                                     .pieces_max = 16384,
                                     .parked_per_peer_max = 1024};
    size_t bytes = kvf_core_bytes(&limits);
    /* Under 512 bytes a room, both sides, besides page runs and peers' tables. */
    cr_assert_lt(sizeof(struct kvf_room_rec) + sizeof(struct kvf_grant), 512);
    cr_assert_lt(bytes, (size_t)1 << 30);
}

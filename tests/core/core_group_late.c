/* Groups whose ranks come late, never, or leave; ranks behind one daemon. */
#include "tests/core/ranks.h"

/* ---- late, never, skipped, departed ---------------------------------------------------------------------- */

Test(group, a_late_joiner_ends_at_once)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x3);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[1]);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 1);
    pair_advance(p, 60 * MINUTE); /* a tombstone does not age */
    q.sink[2] = open_sink(p, 7, 2, 0, 2);
    pair_settle(p);
    expect_failed(q.sink[2]);
    pair_expect(q.sink[2], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_GROUP_CLOSED);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    cr_assert_eq(pair_count(p, 2, KVF_COUNT_GROUP_CLOSED), 1);
    finish(p, &q);
}

/* An abort of the engine's own that overtook its open has its own reason. */
Test(group, a_late_joiner_that_was_aborted_keeps_its_reason)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x3);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = 2, .count = 2};
    q.sink[2] = pair_open_sink(p, 2,
                               &(struct pair_open){.key = 7,
                                                   .label = label_of(7, 2),
                                                   .group = GROUP,
                                                   .abort_reason = 55,
                                                   .writers = &writer,
                                                   .writer_count = 1,
                                                   .runs = &run,
                                                   .run_count = 1});
    pair_settle(p);
    pair_expect(q.sink[2], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, 55);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    finish(p, &q);
}

/* A worker that follows another has this rank's group already, and not yet the client whose room is meant. */
Test(group, a_worker_that_has_not_heard_of_all_clients_says_nothing)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x3);
    pair_settle(p);
    kvf_core_groups_hold(p->daemons[1].core, p->now_ns, true);
    kvf_core_groups_hold(p->daemons[2].core, p->now_ns, true);
    pair_abort(q.sink[0]);
    pair_abort(q.sink[1]);
    pair_advance(p, MINUTE);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_GROUP_SENT), 0);
    cr_assert_eq(pair_count(p, 2, KVF_COUNT_GROUP_SENT), 0);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    expect_waiting(q.sink[0], 0x6);
    expect_waiting(q.sink[1], 0x5);
    for (uint32_t daemon = 1; daemon < RANKS; daemon++) {
        kvf_core_groups_hold(p->daemons[daemon].core, p->now_ns, false);
        pair_drain(p, daemon);
    }
    pair_advance(p, 300 * PAIR_MS);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[1]);
    finish(p, &q);
}

Test(group, a_rank_that_never_opens_does_not_hang_the_others)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x1);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    finish(p, &q);
}

Test(group, a_skipped_key_needs_no_tombstone)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct kvf_core *core = p->daemons[2].core;
    for (uint32_t order = 0; order < 2; order++) {
        struct request q = open_request(p, 7 + order, 0x3);
        if (order == 0) {
            cr_assert_eq(kvf_core_group_skip(core, 0, GROUP, 7 + order), 0);
        }
        pair_settle(p);
        pair_abort(q.sink[0]);
        pair_settle(p);
        expect_failed(q.sink[0]);
        cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), order);
        if (order == 1) {
            cr_assert_eq(kvf_core_group_skip(core, 0, GROUP, 7 + order), 0);
            cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 0);
        }
        drop_sources(&q);
        pair_settle(p);
    }
    cr_assert_eq(kvf_core_group_skip(core, 0, 2, 7), -KVF_E_UNKNOWN_GROUP);
    cr_assert_eq(kvf_core_group_skip(core, 0, 0, 7), -KVF_E_UNKNOWN_GROUP);
    cr_assert_eq(kvf_core_group_skip(core, 9, GROUP, 7), -KVF_E_UNKNOWN_GROUP);
    pair_finish(p);
}

Test(group, tombstones_have_a_cap_and_then_opens_are_refused)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q[9];
    for (uint32_t i = 0; i < 8; i++) {
        q[i] = open_request(p, i + 1, 0x1);
        pair_settle(p);
        pair_abort(q[i].sink[0]);
        pair_settle(p);
        expect_failed(q[i].sink[0]);
        drop_sources(&q[i]);
    }
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 8);
    /* The ninth finds no place: it waits, unanswered, and rank 1 opens nothing new. */
    q[8] = open_request(p, 9, 0x1);
    pair_settle(p);
    pair_abort(q[8].sink[0]);
    pair_advance(p, MINUTE);
    expect_waiting(q[8].sink[0], 0x6);
    struct pair_room *refused = open_sink(p, 40, 1, 0, 1);
    pair_settle(p);
    cr_assert_eq(refused->view.reason, KVF_E_GROUP_TOMBSTONES);
    cr_assert(pair_is_drained(refused));
    /* What is refused ends its group's request too; rooms without a group are none of this. */
    expect_waiting(refused, 1u << 2);
    struct pair_room *plain = pair_sink(p, 1, WRITER, 41, 100, 1);
    pair_settle(p);
    cr_assert_eq(pair_phase(plain), KVF_PHASE_OPEN);
    pair_abort(plain);
    /* A key that has its tombstone is let in: it goes, and so does its room. */
    struct pair_room *late = open_sink(p, 1, 1, 0, 1);
    pair_settle(p);
    cr_assert_eq(late->view.reason, KVF_E_GROUP_CLOSED);
    for (uint32_t i = 0; i < 8; i++) {
        (void)kvf_core_group_skip(p->daemons[1].core, 0, GROUP, i + 1);
        (void)kvf_core_group_skip(p->daemons[2].core, 0, GROUP, i + 1);
    }
    pair_advance(p, 1000 * PAIR_MS);
    expect_failed(q[8].sink[0]);
    expect_failed(refused);
    finish(p, &q[8]);
}

/* The engine of rank 1 has left in peace; its daemon serves on. */
Test(group, a_rank_whose_engine_left_is_answered_for_by_its_daemon)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x5);
    pair_settle(p);
    pair_client_close(p, 1, 0, KVF_E_ENGINE_GONE);
    cr_assert(p->daemons[1].clients[0].is_quiet);
    pair_client_remove(p, 1, 0);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[2]);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    finish(p, &q);
}

/* Its engine has left, and a lease of it is still out: it opens nothing any more either. */
Test(group, a_rank_that_is_leaving_keeps_no_keys)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *held = open_sink(p, 9, 1, 0, 1);
    pair_settle(p);
    cr_assert(pair_lease(held, 1, 0, 0));
    pair_client_close(p, 1, 0, KVF_E_ENGINE_GONE);
    struct request q = open_request(p, 7, 0x5);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[2]);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    pair_lease_return(held);
    pair_advance(p, 1000 * PAIR_MS);
    expect_failed(held);
    cr_assert(p->daemons[1].clients[0].is_quiet);
    finish(p, &q);
}

/* ... and a new engine of that rank ends the record: it may open keys of its own. */
Test(group, a_new_registration_ends_the_record_of_the_one_that_left)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct kvf_core *core = p->daemons[1].core;
    pair_client_close(p, 1, 0, KVF_E_ENGINE_GONE);
    pair_client_remove(p, 1, 0);
    pair_client_add(p, 1, 0);
    pair_region_add(p, 1, 0, PAIR_R0, p->options.pages, PAIR_PAGE_BYTES);
    cr_assert_eq(pair_group_add(p, 0, GROUP, ID, 1, behind, RANKS), 0);
    kvf_core_group_departed(core, ID, 1); /* told too late: a live one stands */
    struct request q = open_request(p, 7, 0x5);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 1);
    q.sink[1] = open_sink(p, 7, 1, 0, 1);
    pair_settle(p);
    cr_assert_eq(q.sink[1]->view.reason, KVF_E_GROUP_CLOSED);
    finish(p, &q);
}

/* An engine dies: its rooms drain at once, and are kept until the others were told. */
Test(group, a_dead_engines_rooms_close_the_others_before_its_client_goes)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
    cr_assert(pair_is_drained(q.sink[0]));
    cr_assert(!p->daemons[0].clients[0].is_quiet, "nobody has been told yet");
    pair_settle(p);
    expect_failed(q.sink[1]);
    expect_failed(q.sink[2]);
    cr_assert(p->daemons[0].clients[0].is_quiet);
    finish(p, &q);
}

Test(group, a_dead_engine_is_not_held_for_ranks_out_of_reach)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    p->daemons[1].is_unreachable = true;
    pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
    pair_advance(p, 900 * PAIR_MS);
    cr_assert(!p->daemons[0].clients[0].is_quiet);
    pair_advance(p, 200 * PAIR_MS);
    cr_assert(p->daemons[0].clients[0].is_quiet);
    pair_client_remove(p, 0, 0);
    q.sink[0]->is_lost = true;
    p->daemons[1].is_unreachable = false;
    pair_advance(p, 1000 * PAIR_MS);
    expect_failed(q.sink[2]); /* its daemon answers for the one that left */
    pair_abort(q.sink[1]);
    pair_settle(p);
    expect_failed(q.sink[1]);
    finish(p, &q);
}

/* ---- several ranks behind one daemon ---------------------------------------------------------------------- */

Test(group, ranks_behind_one_daemon_need_no_network)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 32});
    const uint32_t same[] = {0, 0, 1};
    cr_assert_eq(pair_group_add(p, 0, GROUP, ID, 0, same, 3), 0);
    cr_assert_eq(pair_group_add(p, 1, GROUP, ID, 1, same, 3), 0);
    cr_assert_eq(pair_group_add(p, 0, GROUP, ID, 2, same, 3), 0);
    p->daemons[1].is_unreachable = true;
    struct pair_room *a = open_sink(p, 7, 0, 0, 0);
    struct pair_room *b = open_sink(p, 7, 1, 1, 0);
    pair_settle(p);
    cr_assert(pair_lease(b, 1, 0, 0));
    pair_abort(a);
    cr_assert_eq(pair_outcome(b), KVF_OUTCOME_FAILED, "in the same turn of the loop");
    expect_waiting(a, 0x6);
    pair_lease_return(b);
    expect_waiting(a, 0x4);
    expect_waiting(b, 0x4);
    cr_assert_eq(sent(p), 0);
    p->daemons[1].is_unreachable = false;
    pair_advance(p, 500 * PAIR_MS);
    expect_failed(a);
    expect_failed(b);
    pair_finish(p);
}

Test(group, a_rank_of_this_daemon_that_is_not_registered_is_out_of_reach)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 32});
    const uint32_t same[] = {0, 0};
    cr_assert_eq(pair_group_add(p, 0, GROUP, ID, 0, same, 2), 0);
    struct pair_room *a = open_sink(p, 7, 0, 0, 0);
    pair_settle(p);
    pair_abort(a);
    pair_advance(p, MINUTE);
    expect_waiting(a, 0x2);
    cr_assert_gt(pair_count(p, 0, KVF_COUNT_GROUP_STALE), 0);
    cr_assert_eq(pair_group_add(p, 1, GROUP, ID, 1, same, 2), 0);
    pair_advance(p, 300 * PAIR_MS);
    expect_failed(a);
    pair_finish(p);
}

/* More questions than a buffer holds, more answers than are kept: it takes some periods, and ends. */
Test(group, three_thousand_rooms_fail_at_once_and_all_settle)
{
    enum { MANY = 3000 };
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 4, .rooms = MANY, .tombs_max = 8});
    static struct pair_room *room[2][MANY];
    for (uint32_t rank = 0; rank < 2; rank++) {
        cr_assert_eq(pair_group_add(p, 0, GROUP, ID, rank, behind, 2), 0);
        for (uint32_t i = 0; i < MANY; i++) {
            room[rank][i] = pair_open_source(
                p, rank, &(struct pair_open){.key = i + 1, .group = GROUP, .sink_count = 1});
        }
    }
    for (uint32_t i = 0; i < MANY; i++) {
        pair_abort(room[0][i]);
    }
    pair_settle(p);
    for (uint32_t i = 0; i < MANY; i++) {
        cr_assert_eq(pair_outcome(room[1][i]), KVF_OUTCOME_FAILED, "in the first round");
    }
    pair_advance(p, 5000 * PAIR_MS);
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t i = 0; i < MANY; i++) {
            expect_failed(room[rank][i]);
        }
        cr_assert_eq(pair_gauge(p, rank, KVF_GAUGE_GROUP_WAITING), 0);
    }
    pair_finish(p);
}

/* One engine that holds several ranks, each with a group number of its own. */
Test(group, eight_ranks_in_four_processes_agree)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 32});
    const uint32_t where[] = {0, 0, 1, 1, 2, 2, 3, 3};
    struct pair_room *room[8];
    for (uint32_t rank = 0; rank < 8; rank++) {
        cr_assert_eq(pair_group_add(p, 0, 1 + rank % 2, ID, rank, where, 8), 0);
    }
    for (uint32_t rank = 0; rank < 8; rank++) {
        room[rank] = pair_open_source(
            p, where[rank],
            &(struct pair_open){
                .key = 7, .label = rank + 1, .group = 1 + rank % 2, .sink_count = 1});
    }
    cr_assert(pair_lease(room[5], 1, 0, 0));
    pair_abort(room[2]);
    pair_settle(p);
    for (uint32_t rank = 0; rank < 8; rank++) {
        if (rank != 5) {
            expect_waiting(room[rank], 1u << 5);
        }
    }
    pair_lease_return(room[5]);
    pair_settle(p);
    for (uint32_t rank = 0; rank < 8; rank++) {
        expect_failed(room[rank]);
    }
    pair_finish(p);
}

/* No library opens five rooms of one key: bytes of a client that would make every question a long walk. */
Test(group, more_adopted_rooms_of_one_key_than_a_rank_has_join_no_group)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 32});
    struct kvf_core *core = p->daemons[0].core;
    for (uint32_t slot = 0; slot <= KVF_GROUP_ROOMS_PER_KEY; slot++) {
        struct kvf_core_adopt a = {.slot = slot,
                                   .generation = 1,
                                   .key = 7,
                                   .group = GROUP,
                                   .outcome = KVF_OUTCOME_FAILED,
                                   .proof = KVF_PROOF_WORKER_GONE,
                                   .is_drained = true};
        cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), 0);
    }
    struct kvf_core_group g = {.group_id = ID, .member_count = 2};
    g.members[0] = pair_addr(0);
    g.members[1] = pair_addr(1);
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, GROUP, &g), 0);
    for (uint32_t slot = 0; slot <= KVF_GROUP_ROOMS_PER_KEY; slot++) {
        struct kvf_core_room_view view;
        kvf_core_room_view(core, 0, slot, &view);
        bool is_waiting = (view.word & KVF_WORD_GROUP_WAITS) != 0;
        cr_assert_eq(is_waiting, slot < KVF_GROUP_ROOMS_PER_KEY);
    }
    pair_free(p);
}

/* A success without its bytes is no more visible than it was. */
Test(group, quarantine_and_success_are_adopted_as_they_were)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 32});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_core_room_view view;
    struct kvf_core_adopt a = {
        .slot = 3, .generation = 5, .outcome = KVF_OUTCOME_SUCCESS, .is_quarantined = true};
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), 0);
    kvf_core_room_view(core, 0, 3, &view);
    cr_assert_eq(kvf_word_phase(view.word), KVF_PHASE_QUARANTINED);
    cr_assert_eq(view.word & KVF_WORD_VISIBLE, 0);
    kvf_core_leases(core, p->now_ns, 0, 3, 5, 0, 0, 0);
    kvf_core_room_view(core, 0, 3, &view);
    cr_assert_eq(kvf_word_poll(view.word), KVF_STATE_SUCCESS);
    pair_free(p);
}

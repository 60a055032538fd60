/* Groups: the ranks of one request end together, and Failed is shown when the last of them is drained. The
 * oracle (pair_group_check) ends a test when one rank shows Failed while another still moves. */
#include "tests/core/ranks.h"

/* ---- the happy path ------------------------------------------------------------------------------------ */

Test(group, nothing_is_sent_while_all_goes_well)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    for (uint64_t key = 1; key <= 50; key++) {
        struct request q = open_request(p, key, ALL);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            submit(p, &q, rank);
        }
        pair_advance(p, 300 * PAIR_MS); /* longer than the period of questions */
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            pair_expect(q.sink[rank], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
            cr_assert_eq(q.sink[rank]->view.group_waits, 0);
        }
    }
    cr_assert_eq(sent(p), 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(p->daemons[rank].connects, 1, "ranks do not even know each other");
    }
    pair_finish(p);
}

/* ---- one rank fails -------------------------------------------------------------------------------------- */

Test(group, one_ranks_abort_closes_all)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    pair_abort_with(q.sink[0], 77);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(q.sink[rank]);
        cr_assert_eq(q.sink[rank]->view.reason, rank == 0 ? 77 : KVF_E_GROUP_CLOSED);
        cr_assert_eq(q.sink[rank]->view.detail, 0);
    }
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_GROUP_CLOSED), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GROUP_CLOSED), 0);
    /* And it is quiet afterwards. */
    uint64_t before = sent(p);
    pair_advance(p, 10 * MINUTE);
    cr_assert_eq(sent(p), before);
    finish(p, &q);
}

/* The others' pages are still being written while rank 0 has long been drained. */
Test(group, failed_shows_only_after_all_are_drained)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_POSTED);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pair_warm(p, rank, WRITER);
    }
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    pair_link(p, 1, WRITER)->hold_deliver = 1;
    submit(p, &q, 1);
    pair_settle(p);
    p->daemons[1].hold_fences = true;
    pair_abort(q.sink[0]);
    pair_advance(p, 700 * PAIR_MS); /* the cooperative deadline fences, and the fence hangs */
    expect_waiting(q.sink[0], 1u << 1);
    expect_waiting(q.sink[2], 1u << 1);
    cr_assert_eq(pair_phase(q.sink[1]), KVF_PHASE_FENCING);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITING), 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITS_ID), ID);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITS_RANK), 1);
    p->daemons[1].hold_fences = false;
    pair_fences_return(p, 1);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(q.sink[rank]);
    }
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITING), 0);
    finish(p, &q);
}

/* Told at once, without waiting for the next question. */
Test(group, the_last_drain_is_told_within_one_round_trip)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    cr_assert(pair_lease(q.sink[2], 1, 0, 0));
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_waiting(q.sink[0], 1u << 2);
    pair_lease_return(q.sink[2]);
    pair_settle(p); /* the clock stands */
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(q.sink[rank]);
    }
    finish(p, &q);
}

Test(group, a_lease_at_one_rank_holds_all_of_them_for_any_time)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    cr_assert(pair_lease(q.sink[1], 0, 1, 0));
    pair_abort(q.sink[0]);
    pair_advance(p, 60 * MINUTE);
    expect_waiting(q.sink[0], 1u << 1);
    expect_waiting(q.sink[2], 1u << 1);
    pair_lease_return(q.sink[1]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[2]);
    finish(p, &q);
}

Test(group, own_drain_is_the_same_with_and_without_a_group)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    p->daemons[1].is_unreachable = true;
    p->daemons[2].is_unreachable = true;
    pair_abort(q.sink[0]);
    pair_settle(p);
    pair_expect(q.sink[0], KVF_OUTCOME_FAILED, pair_proof(q.sink[0]), KVF_E_ABORTED);
    /* Its pages are idle: another room may have them, whatever the group says. */
    struct pair_room *next = pair_sink(p, 0, WRITER, 99, 56, 2);
    pair_settle(p);
    cr_assert_eq(pair_phase(next), KVF_PHASE_OPEN);
    pair_abort(next);
    pair_settle(p);
    cr_assert_eq(pair_poll(next), KVF_STATE_FAILED);
    p->daemons[1].is_unreachable = false;
    p->daemons[2].is_unreachable = false;
    pair_advance(p, 1000 * PAIR_MS);
    expect_failed(q.sink[0]);
    finish(p, &q);
}

Test(group, both_ranks_fail_at_the_same_moment)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pair_abort_with(q.sink[rank], 70 + rank);
    }
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(q.sink[rank]);
        cr_assert_eq(q.sink[rank]->view.reason, 70 + rank);
    }
    finish(p, &q);
}

/* The outcome was fixed before the others failed: it counts as drained, and stays Success. */
Test(group, a_rank_that_ended_in_success_counts_as_drained)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    submit(p, &q, 1);
    pair_settle(p);
    pair_expect(q.sink[1], KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[2]);
    cr_assert_eq(pair_poll(q.sink[1]), KVF_STATE_SUCCESS);
    finish(p, &q);
}

/* Connections that were made to ask open no lanes, and do not stay. */
Test(group, connections_that_only_ask_have_no_lanes_and_are_let_go)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    cr_assert(pair_lease(q.sink[2], 1, 0, 0));
    pair_abort(q.sink[0]);
    pair_advance(p, 5000 * PAIR_MS);
    expect_waiting(q.sink[0], 1u << 2);
    cr_assert_not_null(pair_conn(p, 0, 2), "who is waited for is asked on");
    cr_assert_null(pair_conn(p, 0, 1));
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1, "that of the worker that fills it");
    pair_lease_return(q.sink[2]);
    pair_advance(p, 2000 * PAIR_MS);
    expect_failed(q.sink[0]);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_gauge(p, rank, KVF_GAUGE_PEERS_UP), 1);
    }
    /* One of them is needed for a room later: then it has its lanes. */
    struct pair_room *from = pair_source(p, 1, 50);
    struct pair_room *to = pair_sink(p, 0, 1, 50, 100, 2);
    struct request next = open_request(p, 8, ALL);
    pair_settle(p);
    pair_abort(next.sink[0]);
    pair_settle(p);
    (void)pair_submit(from, 0, 210, 2, true);
    pair_settle(p);
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    drop_sources(&next);
    finish(p, &q);
}

/* ... also when the questions were there first. */
Test(group, a_connection_that_asks_serves_a_room_that_comes_later)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    cr_assert_not_null(pair_conn(p, 0, 1));
    struct pair_room *from = pair_source(p, 1, 50);
    struct pair_room *to = pair_sink(p, 0, 1, 50, 100, 2);
    (void)pair_submit(from, 0, 210, 2, true);
    pair_settle(p); /* the clock stands: nothing waits for a period */
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_advance(p, MINUTE);
    cr_assert_not_null(pair_conn(p, 0, 1), "and then it stays");
    finish(p, &q);
}

/* Its slot belongs to it until the last rank has settled, whatever a library does. */
Test(group, a_room_that_waits_keeps_its_slot)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    p->daemons[1].is_unreachable = true;
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_waiting(q.sink[0], 1u << 1);
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = 100, .count = 2};
    struct pair_open open = {.key = 60,
                             .has_slot = true,
                             .slot = q.sink[0]->slot,
                             .generation = q.sink[0]->generation + 1,
                             .writers = &writer,
                             .writer_count = 1,
                             .runs = &run,
                             .run_count = 1};
    cr_assert_eq(pair_open_sink(p, 0, &open)->rc, -KVF_E_SLOT_IN_USE);
    p->daemons[1].is_unreachable = false;
    pair_advance(p, 1000 * PAIR_MS);
    expect_failed(q.sink[0]);
    struct pair_room *next = pair_open_sink(p, 0, &open);
    cr_assert_eq(next->rc, 0);
    pair_abort(next);
    finish(p, &q);
}

/* Seven ranks out of reach and a table of eight peers: questions leave places for rooms. */
Test(group, questions_leave_places_for_rooms)
{
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 4, .rooms = 32, .peers_max = 8});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_core_group g = {.group_id = ID, .member_count = 8};
    for (uint32_t i = 0; i < 8; i++) {
        g.members[i] = pair_addr(i == 0 ? 0 : 10 + i);
    }
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, GROUP, &g), 0);
    struct pair_room *room =
        pair_open_source(p, 0, &(struct pair_open){.key = 7, .group = GROUP, .sink_count = 1});
    pair_abort(room);
    pair_advance(p, 1000 * PAIR_MS);
    uint32_t idle = 0;
    for (uint32_t i = 0; i < 8; i++) {
        idle += core->peers[i].role == KVF_PEER_FREE;
    }
    cr_assert_eq(idle, 4);
    struct pair_room *from = pair_source(p, WRITER, 50);
    struct pair_room *to = pair_sink(p, 0, WRITER, 50, 100, 2);
    (void)pair_submit(from, 0, 210, 2, true);
    pair_settle(p);
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert(pair_is_waiting(room));
    pair_free(p);
}

/* Connections of rooms hold three places of four; who only asks finds the last one, for one rank after the
 * other. */
Test(group, a_table_full_of_rooms_connections_still_lets_a_rank_ask)
{
    struct pair *p =
        pair_new(&(struct pair_options){.daemons = 4, .rooms = 32, .peers_max = 4});
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_group_add(p, 0, GROUP, ID, rank, behind, RANKS), 0);
    }
    pair_warm(p, 0, WRITER);
    pair_warm(p, WRITER, 0);
    pair_warm(p, 1, 0);
    struct pair_room *room =
        pair_open_source(p, 0, &(struct pair_open){.key = 7, .group = GROUP, .sink_count = 1});
    pair_abort(room);
    pair_advance(p, 5000 * PAIR_MS);
    expect_failed(room);
    pair_finish(p);
}

/* Rank 2's daemon answers in the name of rank 1, which another daemon speaks for. */
Test(group, an_answer_is_believed_of_its_own_daemon_alone)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x3);
    pair_settle(p);
    cr_assert(pair_lease(q.sink[1], 0, 1, 0));
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_waiting(q.sink[0], 0x2);
    struct kvf_wire_group lie = {.group_id = ID,
                                 .key = 7,
                                 .from_rank = 1,
                                 .to_rank = 0,
                                 .state = KVF_GROUP_DRAINED,
                                 .is_answer = 1};
    struct kvf_core *core = p->daemons[0].core;
    pair_warm(p, 0, 2);
    uint32_t peer = pair_conn(p, 0, 2)->peer[PAIR_SINK];
    unsigned char frame[128];
    int bytes = kvf_wire_put_group(frame, sizeof frame, 0, &lie);
    kvf_core_frame(core, p->now_ns, peer, KVF_WIRE_GROUP, core->peers[peer].seq_in,
                   frame + KVF_WIRE_HEADER_BYTES, (size_t)bytes - KVF_WIRE_HEADER_BYTES);
    core->peers[peer].seq_in--; /* the harness counts frames of its own */
    pair_drain(p, 0);
    pair_settle(p);
    expect_waiting(q.sink[0], 0x2);
    pair_lease_return(q.sink[1]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    finish(p, &q);
}

/* 63 ranks behind one daemon that nobody has registered, and 100 rooms that ask each of them. */
Test(group, ranks_of_one_daemon_ask_each_other_so_many_questions_a_turn)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 2, .rooms = 128});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_core_group g = {.group_id = ID, .member_count = KVF_GROUP_MEMBERS_MAX};
    for (uint32_t i = 0; i < KVF_GROUP_MEMBERS_MAX; i++) {
        g.members[i] = pair_addr(0);
    }
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, GROUP, &g), 0);
    for (uint64_t key = 1; key <= 100; key++) {
        struct pair_open open = {.key = key, .group = GROUP, .sink_count = 1};
        pair_abort(pair_open_source(p, 0, &open));
    }
    /* A room's questions are asked together, so the last one may go over by a room's. */
    uint64_t asked = pair_count(p, 0, KVF_COUNT_GROUP_STALE);
    cr_assert_geq(asked, KVF_GROUP_QUESTIONS_PER_TURN);
    cr_assert_lt(asked, KVF_GROUP_QUESTIONS_PER_TURN + KVF_GROUP_MEMBERS_MAX);
    cr_assert_leq(kvf_core_deadline(core), p->now_ns, "the next turn goes on");
    for (uint32_t turns = 0; core->group_budget == 0; turns++) {
        cr_assert_lt(turns, 4);
        pair_tick(p, 0);
        pair_drain(p, 0);
    }
    cr_assert_geq(pair_count(p, 0, KVF_COUNT_GROUP_STALE), 6300, "all of them");
    pair_free(p);
}

/* A sink and a source of one key at one rank; a third room of the key is refused. */
Test(group, a_ranks_rooms_of_one_key_end_together_and_are_two_at_most)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, 0x1);
    struct pair_open open = {.key = 7, .label = 99, .group = GROUP, .sink_count = 1};
    struct pair_room *other = pair_open_source(p, 0, &open);
    open.label = 98;
    struct pair_room *third = pair_open_source(p, 0, &open);
    pair_settle(p);
    pair_expect(third, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_KEY_IN_USE);
    cr_assert(!pair_is_drained(other));
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    expect_failed(other);
    cr_assert_eq(other->view.reason, KVF_E_GROUP_CLOSED);
    finish(p, &q);
}

/* ---- lost messages, members out of reach ----------------------------------------------------------------- */

/* One request has failed before, so that the ranks know each other. */
static struct pair *acquainted_new(void)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 3, ALL);
    pair_settle(p);
    pair_abort(q.sink[0]);
    pair_settle(p);
    expect_failed(q.sink[0]);
    drop_sources(&q);
    pair_settle(p);
    return p;
}

/* Cuts every connection between ranks; returns how many GROUP frames were lost with them. */
static uint32_t cut_all(struct pair *p)
{
    uint32_t lost = 0;
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *c = &p->conns[i];
        if (c->is_used && c->is_open[0] && c->is_open[1] && c->daemon[PAIR_SOURCE] != WRITER) {
            lost += pair_frames_of(c, PAIR_SOURCE, KVF_WIRE_GROUP) +
                    pair_frames_of(c, PAIR_SINK, KVF_WIRE_GROUP);
            pair_conn_cut(p, c);
        }
    }
    return lost;
}

static void hold_between_ranks(struct pair *p, int side, bool is_held)
{
    for (uint32_t from = 0; from < RANKS; from++) {
        for (uint32_t to = 0; to < RANKS; to++) {
            pair_link(p, from, to)->hold[side] = is_held;
        }
    }
}

Test(group, lost_questions_are_asked_again)
{
    struct pair *p = acquainted_new();
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    hold_between_ranks(p, PAIR_SOURCE, true);
    pair_abort(q.sink[0]);
    pair_settle(p);
    cr_assert_geq(cut_all(p), 2);
    hold_between_ranks(p, PAIR_SOURCE, false);
    pair_settle(p);
    cr_assert_eq(pair_phase(q.sink[2]), KVF_PHASE_OPEN);
    expect_waiting(q.sink[0], 0x6);
    pair_advance(p, 600 * PAIR_MS); /* the connections come back, the next period asks */
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(q.sink[rank]);
    }
    finish(p, &q);
}

/* The questions arrived and closed the rooms; what the others said is lost again and again. */
Test(group, lost_answers_are_asked_for_again)
{
    struct pair *p = acquainted_new();
    struct request q = open_request(p, 7, 0x3); /* rank 2 has only answers */
    pair_settle(p);
    hold_between_ranks(p, PAIR_SINK, true);
    pair_abort(q.sink[0]);
    pair_settle(p);
    cr_assert_geq(cut_all(p), 2);
    expect_waiting(q.sink[0], 0x4); /* rank 1 told by itself, as one that asks */
    hold_between_ranks(p, PAIR_SINK, false);
    pair_advance(p, 600 * PAIR_MS);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[1]);
    finish(p, &q);
}

Test(group, a_member_out_of_reach_keeps_them_waiting_and_is_named)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    p->daemons[1].is_unreachable = true;
    pair_abort(q.sink[0]);
    pair_advance(p, 30 * MINUTE);
    expect_waiting(q.sink[0], 1u << 1);
    expect_waiting(q.sink[2], 1u << 1);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_WAITS_RANK), 1);
    p->daemons[1].is_unreachable = false;
    pair_advance(p, 500 * PAIR_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(q.sink[rank]);
    }
    finish(p, &q);
}

/* Gone for good: nothing settles it, and nobody is asked less often than the period. */
Test(group, a_dead_daemon_is_out_of_reach_until_it_is_back)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    pair_kill(p, 1);
    pair_abort(q.sink[0]);
    pair_advance(p, 10 * MINUTE);
    expect_waiting(q.sink[0], 1u << 1);
    /* Another engine takes the rank over: it opens no key of before. */
    pair_revive(p, 1, false);
    pair_advance(p, 2000 * PAIR_MS);
    expect_waiting(q.sink[0], 1u << 1);
    cr_assert_eq(pair_group_add(p, 0, GROUP, ID, 1, behind, RANKS), 0);
    pair_advance(p, 2000 * PAIR_MS);
    expect_failed(q.sink[0]);
    expect_failed(q.sink[2]);
    finish(p, &q);
}

/* A peer that does not speak GROUP is out of reach, not in error. */
Test(group, a_peer_without_the_capability_is_never_asked)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct request q = open_request(p, 7, ALL);
    pair_settle(p);
    pair_make_raw(p, 2);
    p->rooms->is_lost = true;
    q.sink[2]->is_lost = true;
    pair_abort(q.sink[0]);
    pair_settle(p);
    struct pair_conn *c = NULL;
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        struct pair_conn *at = &p->conns[i];
        if (at->is_used && at->daemon[PAIR_SINK] == 0 && at->daemon[PAIR_SOURCE] == 2) {
            c = at;
        }
    }
    cr_assert_not_null(c);
    const unsigned char *payload;
    size_t bytes;
    cr_assert_eq(pair_raw_read(p, c, PAIR_SOURCE, &payload, &bytes), KVF_WIRE_HELLO);
    struct kvf_wire_hello hello;
    cr_assert_eq(kvf_wire_get_hello(payload, bytes, &hello), 0);
    cr_assert_eq(hello.caps, KVF_CAP_DRAIN_PROOF | KVF_CAP_GROUP);
    hello.caps = KVF_CAP_DRAIN_PROOF;
    unsigned char frame[256];
    int n = kvf_wire_put_hello(frame, sizeof frame, 0, &hello);
    pair_raw_send(p, c, PAIR_SOURCE, frame, (size_t)n);
    pair_advance(p, 1000 * PAIR_MS);
    uint8_t type;
    while ((type = pair_raw_read(p, c, PAIR_SOURCE, &payload, &bytes)) != 0) {
        cr_assert_neq(type, KVF_WIRE_GROUP);
    }
    expect_waiting(q.sink[0], 1u << 2);
    pair_free(p);
}

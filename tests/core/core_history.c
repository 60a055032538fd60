/* The orders of events of HISTORIES.md that the core alone can meet, each under its number. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define POSTED (&(struct pair_options){.placement = KVF_PLACEMENT_POSTED})
#define TWO_LANES (&(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .lanes = 2})

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

static uint32_t out_handle(struct pair *p, uint32_t daemon)
{
    const struct kvf_core *core = p->daemons[daemon].core;
    for (uint32_t i = 0; i < core->grant_fresh; i++) {
        if (core->grants[i].state != KVF_GRANT_FREE) {
            return kvf_grant_handle(i, &core->grants[i]);
        }
    }
    return KVF_NONE;
}

static void expect_success(struct pair_room *sink, struct pair_room *source)
{
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
}

Test(history, h01_accept_still_on_its_way_when_the_sink_aborts)
{
    struct pair *p = pair_new(POSTED);
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    pair_link(p, 0, 1)->hold[PAIR_SINK] = true;
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    cr_assert_eq(pair_frames_of(pair_conn(p, 0, 1), PAIR_SINK, KVF_WIRE_ACCEPT), 1);
    cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
    pair_abort(sink);
    pair_expect_held(sink);
    pair_advance(p, 100 * PAIR_MS);
    pair_expect_held(sink);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_LANDED, KVF_E_ABORTED);
    pair_finish(p);
}

Test(history, h02_last_piece_and_its_marker_on_lane_0_while_lane_1_still_writes)
{
    struct pair *p = pair_new(TWO_LANES);
    struct pair_link *link = pair_link(p, 0, 1);
    pair_warm(p, 0, 1);
    uint64_t ends = pair_count(p, 0, KVF_COUNT_MARKERS_END);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 12);
    pair_settle(p);
    link->hold_post = 1; /* the first piece goes over lane 1 ... */
    link->hold_deliver = 2;
    (void)pair_submit(source, 0, 0, 8, false);
    pair_settle(p);
    link->hold_post = 0; /* ... the last one fits on lane 0 */
    (void)pair_submit(source, 8, 8, 4, true);
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END) - ends, 1);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_abort(sink);
    pair_expect_held(sink);
    cr_assert_eq(pair_unproven(sink), 1);
    link->hold_deliver = 0;
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    pair_finish(p);
}

Test(history, h03_one_marker_per_grant_and_lane_and_handles_are_reused_only_when_proven)
{
    struct pair *p = pair_new(POSTED);
    struct pair_link *link = pair_link(p, 0, 1);
    pair_warm(p, 0, 1);
    struct pair_room *a = pair_source(p, 1, 7);
    struct pair_room *sink_a = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    uint32_t handle = out_handle(p, 0);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    link->hold_deliver = 1;
    (void)pair_submit(a, 0, 0, 4, true);
    pair_settle(p); /* END of A is handed to the kernel */
    pair_abort(sink_a);
    pair_settle(p); /* ABORT arrived */
    uint32_t markers = 0;
    for (const struct pair_post *q = s->head; q != NULL; q = q->next) {
        markers += q->kind == KVF_LANE_DATA ? 0 : 1;
    }
    cr_assert_eq(markers, 1);
    cr_assert_eq(s->tail->kind, KVF_LANE_END);
    pair_expect_held(sink_a);
    /* Its handle is taken until the proof: another grant gets another one. */
    struct pair_room *other = pair_sink(p, 0, 1, 8, 8, 4);
    pair_settle(p);
    cr_assert_eq(out_handle(p, 0), handle);
    pair_abort(other);
    pair_settle(p); /* its handle is free again before A's */
    link->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink_a, KVF_OUTCOME_FAILED, KVF_PROOF_LANDED, KVF_E_ABORTED);
    struct pair_room *b = pair_source(p, 1, 9);
    struct pair_room *sink_b = pair_sink(p, 0, 1, 9, 0, 4);
    pair_settle(p);
    /* The same place in the table, another handle. (Over queue pairs the declined one was proven last, behind A.) */
    cr_assert(p->options.are_queue_pairs || (out_handle(p, 0) & 0xffffu) == (handle & 0xffffu));
    cr_assert_neq(out_handle(p, 0), handle);
    /* A second marker of A is nobody's: it does not count as B's. */
    cr_assert_eq(kvf_core_marker(p->daemons[0].core, p->now_ns, s->lane[PAIR_SINK], s->epoch,
                                 handle, KVF_LANE_END),
                 -EPROTO);
    cr_assert_eq(pair_phase(sink_b), KVF_PHASE_OPEN);
    (void)pair_submit(b, 0, 8, 4, true);
    pair_settle(p);
    expect_success(sink_b, b);
    pair_finish(p);
}

/* R's engine aborts between its two grants, or does not. */
static void fence_of_q_under_r(bool is_r_aborted)
{
    struct pair *p = pair_new(POSTED);
    pair_warm(p, 0, 1);
    struct pair_room *q = pair_source(p, 1, 7);
    struct pair_room *r = pair_source(p, 1, 8);
    struct pair_room *sink_q = pair_sink(p, 0, 1, 7, 0, 32);
    struct pair_room *sink_r = pair_sink(p, 0, 1, 8, 32, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(q, 0, 0, 32, true);
    (void)pair_submit(r, 0, 32, 32, true);
    pair_settle(p);
    uint64_t posts = pair_count(p, 1, KVF_COUNT_POSTS);
    pair_link(p, 0, 1)->hold_post = 1; /* so that no marker leaves in time */
    pair_abort(sink_q);
    pair_advance(p, 500 * PAIR_MS);
    pair_expect(sink_q, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    cr_assert_eq(pair_phase(sink_r), KVF_PHASE_OPEN);
    pair_settle(p);
    cr_assert(pair_is_drained(q));
    cr_assert_eq(pair_phase(r), KVF_PHASE_OPEN);
    if (is_r_aborted) {
        pair_abort(sink_r);
        pair_expect(sink_r, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    }
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_link(p, 0, 1)->hold_post = 0;
    pair_settle(p); /* whatever the source still meant to post, it may now */
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_POSTS), posts);
    struct pair_room *next = pair_source(p, 1, 9);
    struct pair_room *next_sink =
        pair_sink(p, 0, 1, 9, is_r_aborted ? 32 : 64, 32); /* R's pages, if they are idle */
    pair_advance(p, 100 * PAIR_MS);
    (void)pair_submit(next, 0, 64, 32, true);
    pair_settle(p);
    expect_success(next_sink, next);
    if (is_r_aborted) {
        pair_expect(r, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_LANE_LOST);
    } else {
        expect_success(sink_r, r);
    }
    pair_finish(p);
}

Test(history, h04_a_fence_kills_grants_and_nothing_is_posted_again_under_an_old_one)
{
    fence_of_q_under_r(true);
    fence_of_q_under_r(false);
}

Test(history, h05_a_source_room_whose_leases_ended_answers_gone)
{
    struct pair *p = pair_new(POSTED);
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE,
                0);                                          /* and refilled at once */
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK); /* the marker is lost */
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_advance(p, 100 * PAIR_MS); /* it asks anew, and nothing is posted from those pages */
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_ROOM_GONE);
    struct pair_room *again = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_expect(again, KVF_OUTCOME_FAILED, pair_declined(p), KVF_E_PEER_ROOM_GONE);
    pair_finish(p);
}

Test(history, h06_a_recycled_label_does_not_meet_the_stale_room)
{
    struct pair *p = pair_new(POSTED);
    pair_warm(p, 0, 1);
    struct pair_room *stale =
        pair_open_source(p, 1, &(struct pair_open){.label = 7, .key = 1, .sink_count = 1});
    (void)pair_submit(stale, 0, 0, 4, true);
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 4};
    struct kvf_run_shm run = {PAIR_R0, 20, 4};
    struct pair_room *sink = pair_open_sink(p, 0,
                                            &(struct pair_open){.label = 7,
                                                                .key = 2,
                                                                .writers = &writer,
                                                                .writer_count = 1,
                                                                .runs = &run,
                                                                .run_count = 1});
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
    cr_assert_eq(pair_poll(stale), KVF_STATE_BOOTSTRAPPING);
    cr_assert_eq(p->landed_halves, 2); /* of the warm-up */
    struct pair_room *source =
        pair_open_source(p, 1, &(struct pair_open){.label = 7, .key = 2, .sink_count = 1});
    (void)pair_submit(source, 0, 4, 4, true);
    pair_settle(p);
    expect_success(sink, source);
    cr_assert_eq(pair_phase(stale), KVF_PHASE_OPEN);
    pair_abort(stale);
    pair_finish(p);
}

Test(history, h07_an_open_of_an_older_worker_epoch_is_never_posted_and_waits_for_its_leases)
{
    struct pair *p = pair_new(POSTED);
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 4};
    struct kvf_run_shm run = {PAIR_R0, 20, 4};
    struct pair_open open = {.key = 7,
                             .writers = &writer,
                             .writer_count = 1,
                             .runs = &run,
                             .run_count = 1,
                             .is_old_epoch = true};
    struct pair_room *sink = pair_open_sink(p, 0, &open);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_WORKER_GONE);
    struct pair_room *source = pair_open_source(
        p, 0, &(struct pair_open){.key = 8, .sink_count = 1, .is_old_epoch = true});
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_WORKER_GONE);
    pair_settle(p);
    cr_assert_eq(p->daemons[0].connects, 0);
    /* The same gate: an external lease taken before the daemon read the command holds it. */
    struct kvf_core_open raw = {.slot = 60,
                                .generation = 1,
                                .key = 9,
                                .is_old_epoch = true,
                                .writers = &writer,
                                .writer_count = 1,
                                .runs = &run,
                                .run_count = 1};
    cr_assert_eq(kvf_core_open_sink(p->daemons[0].core, p->now_ns, &raw), 0);
    struct kvf_action a;
    struct kvf_core_room_view view;
    while (kvf_core_next_action(p->daemons[0].core, &a) != 0) {
        if (a.kind == KVF_ACT_CLOSE_LEASES) {
            kvf_core_leases(p->daemons[0].core, p->now_ns, 0, 60, 1, 0, 1, 0);
        }
    }
    kvf_core_room_view(p->daemons[0].core, 0, 60, &view);
    cr_assert_eq(kvf_word_phase(view.word), KVF_PHASE_CLOSING);
    kvf_core_leases(p->daemons[0].core, p->now_ns, 0, 60, 1, 0, 0, 0);
    kvf_core_room_view(p->daemons[0].core, 0, 60, &view);
    cr_assert(kvf_word_is_drained(view.word));
    cr_assert_eq(kvf_word_proof(view.word), KVF_PROOF_NEVER_POSTED);
    while (kvf_core_next_action(p->daemons[0].core, &a) != 0) {
    }
    pair_finish(p);
}

Test(history, h08_an_abort_that_overtakes_a_lease_finds_it_and_no_lease_follows_the_close)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    cr_assert(pair_lease(sink, 0, 1, 0));
    cr_assert(pair_lease(source, 1, 0, 0));
    pair_abort(sink);
    pair_expect_held(sink); /* REVOKED is earned, the lease is not back */
    pair_settle(p);
    pair_expect_held(source);
    cr_assert_not(pair_lease(sink, 1, 0, 0));
    pair_advance(p, 20000 * PAIR_MS);
    pair_expect_held(sink);
    pair_lease_return(sink);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_REVOKED, KVF_E_ABORTED);
    pair_lease_return(source);
    cr_assert(pair_is_drained(source));
    pair_finish(p);
}

Test(history, h09_a_page_still_written_has_an_owner_whoever_asks_for_it)
{
    struct pair *p = pair_new(POSTED);
    pair_warm(p, 0, 1);
    struct pair_room *a = pair_source(p, 1, 7);
    struct pair_room *sink_a = pair_sink(p, 0, 1, 7, 0, 8);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(a, 0, 0, 8, true);
    pair_settle(p);
    pair_abort(sink_a);
    /* The engine forgot the gate: B on the same pages is refused, and B's end frees nothing of A's. */
    struct pair_room *b = pair_sink(p, 0, 1, 8, 4, 8);
    pair_expect(b, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PAGE_LENT);
    struct pair_room *c = pair_sink(p, 0, 1, 9, 7, 1);
    pair_expect(c, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PAGE_LENT);
    struct pair_room *reader = pair_source(p, 0, 10);
    cr_assert_eq(pair_submit(reader, 0, 2, 1, true), -KVF_E_PAGE_LENT);
    cr_assert_eq(reader->view.reason, KVF_E_PAGE_LENT);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    cr_assert(pair_is_drained(sink_a));
    struct pair_room *d = pair_sink(p, 0, 1, 11, 4, 8);
    cr_assert_eq(pair_phase(d), KVF_PHASE_OPEN);
    pair_abort(d);
    pair_settle(p);
    pair_finish(p);
}

Test(history, h11_generations_only_rise_and_use_all_forty_bits)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_open open = {.key = 7, .sink_count = 1, .has_slot = true, .slot = 5};
    open.generation = 3;
    struct pair_room *third = pair_open_source(p, 0, &open);
    cr_assert_eq(third->rc, 0);
    pair_abort(third);
    open.generation = 3;
    cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_STALE_ROOM);
    open.generation = 1; /* a restart that began at 0 */
    cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_STALE_ROOM);
    open.generation = (UINT64_C(1) << 32) + 3; /* agrees with the old one in its low 32 bits */
    struct pair_room *wide = pair_open_source(p, 0, &open);
    cr_assert_eq(wide->rc, 0);
    cr_assert_eq(kvf_word_generation(wide->view.word), (UINT64_C(1) << 32) + 3);
    kvf_core_abort(p->daemons[0].core, p->now_ns, 0, 5, 3, 0);
    pair_drain(p, 0);
    cr_assert_eq(pair_phase(wide), KVF_PHASE_OPEN);
    pair_abort(wide);
    open.generation = KVF_GENERATION_MAX;
    struct pair_room *last = pair_open_source(p, 0, &open);
    cr_assert_eq(last->rc, 0);
    pair_abort(last);
    open.generation = KVF_GENERATION_MAX + 1;
    cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_STALE_ROOM);
    pair_finish(p);
}

Test(history, h16_a_half_sent_frame_lets_go_of_its_source_page_and_the_lane_lives)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    struct pair_room *co = pair_source(p, 1, 8);
    struct pair_room *co_sink = pair_sink(p, 0, 1, 8, 8, 4);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 1; /* the peer's window is shut */
    (void)pair_submit(source, 0, 0, 8, false);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    cr_assert_eq(pair_hand(p, s, 3), 3); /* one and a half pages of four */
    pair_abort(source);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 0;
    (void)pair_submit(co, 0, 20, 4, true);
    pair_settle(p);
    expect_success(co_sink, co);
    cr_assert(pair_is_drained(sink));
    cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
    pair_finish(p);
}

Test(history, h17_a_grant_unread_on_the_old_connection_is_never_posted_after_a_reconnect)
{
    for (uint32_t is_read_late = 0; is_read_late < 2; is_read_late++) {
        struct pair *p = pair_new(POSTED);
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        (void)pair_submit(source, 0, 0, 4, true);
        struct pair_conn *first = pair_conn(p, 0, 1);
        first->hold[PAIR_SOURCE] = true;
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        pair_settle(p);
        cr_assert_eq(pair_frames_of(first, PAIR_SOURCE, KVF_WIRE_GRANT), 1);
        pair_link(p, 0, 1)->hold_reset = 1;
        pair_conn_lose(p, first, PAIR_SINK);
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_LOST);
        if (is_read_late != 0) { /* the old GRANT is read before the new HELLO comes */
            cr_assert_geq(pair_deliver(p, first, PAIR_SOURCE, 10), 1);
            pair_settle(p);
        }
        struct pair_room *next = pair_sink(p, 0, 1, 8, 0, 4);
        pair_advance(p, 60 * PAIR_MS); /* reconnects */
        cr_assert_not(first->is_open[PAIR_SOURCE]);
        if (is_read_late == 0) {
            cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
            cr_assert_eq(pair_count(p, 1, KVF_COUNT_GRANTS_PARKED), 1); /* the new room's */
        }
        cr_assert_eq(p->landed_halves, 2); /* of the warm-up */
        pair_abort(next);
        pair_abort(source);
        pair_link(p, 0, 1)->hold_reset = 0;
        pair_settle(p);
        pair_finish(p);
    }
}

Test(history, h20_one_fence_deadline_over_all_lanes_of_all_peers)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 4, .lanes = 8, .placement = KVF_PLACEMENT_POSTED, .grants_max = 1024});
    p->is_bound_checked = false; /* the fences never return: quarantine or the worker's end */
    struct pair_room *sinks[3];
    for (uint32_t d = 1; d < 4; d++) {
        pair_warm(p, 0, d);
    }
    for (uint32_t d = 1; d < 4; d++) {
        struct pair_room *source = pair_source(p, d, d);
        sinks[d - 1] = pair_sink(p, 0, d, d, 32 * d, 32);
        pair_settle(p);
        pair_link(p, 0, d)->hold_hand = 0xff;
        (void)pair_submit(source, 0, 0, 32, true);
        pair_settle(p);
        p->daemons[d].is_frozen = true;
    }
    p->daemons[0].hold_fences = true;
    for (uint32_t i = 0; i < 3; i++) {
        pair_abort(sinks[i]);
    }
    pair_advance(p, 2499 * PAIR_MS);
    cr_assert_eq(p->daemons[0].escalations, 0);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(pair_phase(sinks[i]), KVF_PHASE_FENCING);
    }
    pair_advance(p, 1 * PAIR_MS); /* cooperative + one fence deadline, whatever the number */
    cr_assert_eq(p->daemons[0].escalations, 24);
    for (uint32_t i = 0; i < 3; i++) {
        pair_expect_held(sinks[i]); /* no amount of time is a proof */
    }
    pair_fences_return(p, 0);
    for (uint32_t i = 0; i < 3; i++) {
        pair_expect(sinks[i], KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    }
    pair_open_gates(p);
    pair_advance(p, 5000 * PAIR_MS);
    pair_finish(p);
}

Test(history, h21_unproven_grants_hold_their_credits_also_after_an_abort)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(
            &(struct pair_options){.placement = placements[i], .lane_rooms = 2, .lanes = 2});
        pair_warm(p, 0, 1);
        uint64_t sent = pair_count(p, 0, KVF_COUNT_GRANTS_SENT);
        struct pair_room *sinks[4];
        for (uint32_t k = 0; k < 4; k++) {
            sinks[k] = pair_sink(p, 0, 1, 10 + k, 8 * k, 8);
        }
        p->daemons[1].is_frozen = true;
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT) - sent, 2);
        pair_abort(sinks[0]);
        pair_abort(sinks[1]);
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT) - sent, 2);
        p->daemons[1].is_frozen = false;
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT) - sent, 4);
        pair_abort(sinks[2]);
        pair_abort(sinks[3]);
        pair_settle(p);
        pair_finish(p);
    }
}

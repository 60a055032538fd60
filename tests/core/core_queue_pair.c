/* Lanes that are queue pairs: two ends, told over the control connection. Whatever falls between the steps of that
 * exchange, a lane comes up once at most for an epoch, no older epoch follows a newer one, and nothing leaks
 * (pair_finish looks). */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

static struct pair *world(uint32_t lanes, uint32_t rails)
{
    return pair_new(&(struct pair_options){
        .daemons = 3, .lanes = lanes, .rails = rails, .are_queue_pairs = true});
}

static struct pair_stream *sink_end(struct pair *p, uint32_t lane_idx)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        if (s->is_used && s->is_open[PAIR_SINK] && s->daemon[PAIR_SINK] == 0 &&
            s->lane_idx == lane_idx) {
            return s;
        }
    }
    return NULL;
}

struct request {
    struct pair_room *from;
    struct pair_room *to;
};

static struct request start(struct pair *p, uint64_t key, uint32_t first)
{
    struct request q = {pair_source(p, 1, key), pair_sink(p, 0, 1, key, first, 4)};
    (void)pair_submit(q.from, 0, first, 4, true);
    pair_settle(p);
    return q;
}

static void expect_success(const struct request *q)
{
    pair_expect(q->to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(q->from, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    cr_assert_eq(q->to->view.placed_bytes, q->to->view.total_bytes);
}

Test(queue_pair, the_bytes_of_a_success_are_the_rooms_whole_though_nobody_saw_them)
{
    struct pair *p = world(2, 2);
    struct request q = start(p, 7, 8);
    expect_success(&q);
    cr_assert_eq(q.to->view.placed_bytes, PAIR_BYTES(4));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_BYTES_PLACED), PAIR_BYTES(4));
    for (uint32_t i = 0; i < 4; i++) {
        const struct pair_page *page = &pair_region_of(p, 0, 0, PAIR_R0)->pages[8 + i];
        cr_assert_eq(page->half[1], pair_tag(q.to->content + 1, i, 1));
    }
    pair_finish(p);
}

/* Each end in turn is being made; what has to wait for it waits. */
Test(queue_pair, a_lane_is_up_at_the_source_before_and_at_the_sink_after_both_ends_are_joined)
{
    struct pair *p = world(1, 1);
    p->daemons[0].hold_ready = true;
    p->daemons[1].hold_ready = true;
    struct request q = start(p, 7, 0);
    struct pair_conn *c = pair_conn(p, 0, 1);
    cr_assert_eq(c->delivered[PAIR_SOURCE], 1, "a HELLO, and no LANE without an end");
    pair_ready_now(p, 0);
    pair_settle(p);
    cr_assert_eq(c->delivered[PAIR_SOURCE], 2);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_LANES_UP), 0);

    c->hold[PAIR_SINK] = true;
    pair_ready_now(p, 1);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_LANES_UP), 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 0);
    c->hold[PAIR_SINK] = false;
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1);
    expect_success(&q);
    pair_finish(p);
}

/* ---- faults between the steps ------------------------------------------------------------------------- */

enum stage { MAKING_SINK, LANE_OUT, MAKING_SOURCE, LANE_BACK, JOINED, STAGES };
enum fault { LANE_OF_SINK, LANE_OF_SOURCE, CONNECTION, SOURCE_DIES, SINK_ABORTS, FAULTS };

/* Stops the exchange of the first epoch at this stage. */
static struct request stop_at(struct pair *p, enum stage stage)
{
    p->daemons[0].hold_ready = stage == MAKING_SINK;
    p->daemons[1].hold_ready = stage == MAKING_SOURCE;
    pair_link(p, 0, 1)->hold_post = stage == JOINED ? 1 : 0;
    if (stage == LANE_OUT || stage == LANE_BACK) {
        p->daemons[stage == LANE_OUT ? 0 : 1].hold_ready = true;
        struct request q = start(p, 7, 0);
        pair_conn(p, 0, 1)->hold[stage == LANE_OUT ? PAIR_SOURCE : PAIR_SINK] = true;
        pair_ready_now(p, stage == LANE_OUT ? 0 : 1);
        pair_settle(p);
        return q;
    }
    return start(p, 7, 0);
}

static void hurt(struct pair *p, enum fault fault, const struct request *q)
{
    struct pair_stream *s = sink_end(p, 0);
    switch (fault) {
    case LANE_OF_SINK:
        pair_stream_lose(p, s, PAIR_SINK);
        return;
    case LANE_OF_SOURCE:
        if (s->is_open[PAIR_SOURCE] && s->lane[PAIR_SOURCE] != KVF_NONE) {
            pair_stream_lose(p, s, PAIR_SOURCE);
        }
        return;
    case CONNECTION:
        pair_conn_cut(p, pair_conn(p, 0, 1));
        return;
    case SOURCE_DIES:
        pair_kill(p, 1);
        return;
    case SINK_ABORTS:
        pair_abort(q->to);
        return;
    case FAULTS:
        break;
    }
    cr_assert_fail("no such fault");
}

Test(queue_pair, whatever_breaks_between_two_steps_the_next_room_is_served_and_nothing_leaks)
{
    for (int stage = 0; stage < STAGES; stage++) {
        for (int fault = 0; fault < FAULTS; fault++) {
            struct pair *p = world(1, 1);
            (void)snprintf(p->note, sizeof p->note, "stage %d fault %d: ", stage, fault);
            struct request q = stop_at(p, (enum stage)stage);
            hurt(p, (enum fault)fault, &q);
            pair_settle(p);
            pair_open_gates(p);
            pair_advance(p, 6000 * PAIR_MS); /* the sink's last resort is connect_ns */
            if (fault == SOURCE_DIES) {
                pair_revive(p, 1, true);
                pair_advance(p, 6000 * PAIR_MS);
            }
            if (!pair_is_drained(q.to)) {
                pair_abort(q.to);
            }
            if (!q.from->is_lost && !pair_is_drained(q.from)) {
                pair_abort(q.from);
            }
            pair_advance(p, 1000 * PAIR_MS);
            struct request next = start(p, 8, 16);
            pair_advance(p, 1000 * PAIR_MS);
            expect_success(&next);
            pair_finish(p);
        }
    }
}

/* The source's fence takes its time while the sink comes twice: only the last one that it asked for is made. */
Test(queue_pair, the_newest_epoch_is_opened_once_the_old_one_is_fenced_and_no_other)
{
    struct pair *p = world(1, 1);
    pair_warm(p, 0, 1);
    p->daemons[1].hold_fences = true;
    uint32_t qpn = p->last_qpn;
    for (uint32_t i = 0; i < 3; i++) {
        pair_stream_lose(p, sink_end(p, 0), PAIR_SINK);
        pair_advance(
            p, 80 * PAIR_MS); /* another end of ours, tried ever more rarely, and its LANE */
        cr_assert_neq(sink_end(p, 0), NULL);
        cr_assert_eq(sink_end(p, 0)->epoch, 2 + i);
    }
    cr_assert_eq(p->last_qpn, qpn + 3, "the source has made none");
    p->daemons[1].hold_fences = false;
    pair_fences_return(p, 1);
    pair_settle(p);
    cr_assert_eq(p->last_qpn, qpn + 4);
    cr_assert_eq(pair_stream(p, 0, 1, 0)->epoch, 4);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_FENCES), 1);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

Test(queue_pair, an_end_that_waits_for_a_fence_goes_with_its_connection)
{
    struct pair *p = world(1, 1);
    pair_warm(p, 0, 1);
    p->daemons[1].hold_fences = true;
    pair_stream_lose(p, sink_end(p, 0), PAIR_SINK);
    pair_advance(p, 30 * PAIR_MS);
    pair_conn_cut(p, pair_conn(p, 0, 1));
    uint32_t qpn = p->last_qpn;
    p->daemons[1].hold_fences = false;
    pair_fences_return(p, 1);
    pair_settle(p);
    cr_assert_eq(p->last_qpn, qpn, "nobody is there to be joined to");
    for (uint32_t i = 0; i < PAIR_PEERS; i++) {
        cr_assert_neq(p->daemons[1].core->peers[i].role, KVF_PEER_IN);
    }
    pair_advance(p, 1000 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* An answer to the epoch before is a message of the past, not the end of this one. */
Test(queue_pair, an_answer_to_an_older_epoch_is_counted_and_joins_nothing)
{
    struct pair *p = world(1, 1);
    struct request q = stop_at(p, LANE_BACK);
    pair_stream_lose(p, sink_end(p, 0), PAIR_SINK);
    pair_advance(p, 30 * PAIR_MS);
    cr_assert_eq(sink_end(p, 0)->epoch, 2);
    uint64_t stale = pair_count(p, 0, KVF_COUNT_STALE_MESSAGES);
    cr_assert_eq(pair_deliver(p, pair_conn(p, 0, 1), PAIR_SINK, 1), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_MESSAGES), stale + 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 0);
    pair_open_gates(p);
    pair_settle(p);
    expect_success(&q);
    pair_finish(p);
}

/* ---- keys and geometry ---------------------------------------------------------------------------------- */

static struct request start_in(struct pair *p, uint64_t key, uint32_t region)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 4};
    struct kvf_run_shm run = {region, 0, 4};
    struct request q = {.from = pair_source(p, 1, key)};
    q.to = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = key, .writers = &writer, .writer_count = 1, .runs = &run, .run_count = 1});
    (void)pair_submit(q.from, 0, 0, 4, true);
    pair_settle(p);
    return q;
}

Test(queue_pair, a_region_that_no_place_is_left_for_is_declined_and_the_others_are_served)
{
    struct pair *p = pair_new(&(struct pair_options){
        .lanes = 2, .rails = 2, .are_queue_pairs = true, .remotes_max = 1});
    struct request first = start_in(p, 7, PAIR_R0);
    expect_success(&first);
    struct request second = start_in(p, 8, PAIR_R1);
    pair_expect(second.to, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_BUSY);
    cr_assert_eq(second.to->view.detail, KVF_E_RESOURCES);
    cr_assert_eq(pair_phase(second.from), KVF_PHASE_OPEN);
    pair_abort(second.from);

    /* Registered anew, the first one keeps its place. */
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    pair_region_add(p, 0, 0, PAIR_REGION(0, 2), p->options.pages, PAIR_PAGE_BYTES);
    struct request third = start_in(p, 9, PAIR_REGION(0, 2));
    expect_success(&third);

    /* A peer's place is free again once the peer is gone. */
    pair_conn_cut(p, pair_conn(p, 0, 1));
    pair_advance(p, 1000 * PAIR_MS);
    struct request fourth = start_in(p, 10, PAIR_R1);
    expect_success(&fourth);
    pair_finish(p);
}

Test(queue_pair, a_rail_without_a_key_is_declined_with_its_code)
{
    struct pair *p = world(2, 2);
    pair_warm(p, 0, 1);
    uint32_t key = 77;
    for (uint32_t keys = 0; keys < 2; keys++) { /* none at all, then none for lane 1 */
        cr_assert_eq(kvf_core_region_keys(p->daemons[0].core, 0, PAIR_R1, 0, &key, keys), 0);
        struct request q = start_in(p, 7 + keys, PAIR_R1);
        pair_expect(q.to, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_NO_KEY);
        pair_abort(q.from);
        pair_conn_cut(p, pair_conn(p, 0, 1)); /* so that the region is told again */
        pair_advance(p, 1000 * PAIR_MS);
    }
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* ---- peers that break the rules ----------------------------------------------------------------------------- */

Test(queue_pair, what_no_sink_may_say_of_a_lane_costs_it_the_connection)
{
    static const struct {
        uint32_t lane, epoch, qpn;
    } bad[] = {
        {0, 4, 9},             /* the epoch it asked for already */
        {0, 3, 9},             /* an older one */
        {0, 0, 9},             /* none */
        {1, 0, 9},             /* none, on a lane that is down */
        {0, 5, 0},             /* a stream's sink does not ask */
        {2, 1, 9},             /* a lane that it does not have */
        {KVF_LANES_MAX, 1, 9}, /* nobody has */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pair *p = hostile_world_of_queue_pairs();
        struct hostile h = hostile_as_sink(p);
        hostile_send_lane(&h, 0, 4, 1);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1);
        hostile_send_lane(&h, bad[i].lane, bad[i].epoch, bad[i].qpn);
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 1, "case %zu", i);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 0);
        hostile_finish(p);
    }
}

/* A thousand of them in a row cost a fence each and leave one lane. */
Test(queue_pair, a_sink_that_asks_again_and_again_gets_one_lane)
{
    struct pair *p = hostile_world_of_queue_pairs();
    struct hostile h = hostile_as_sink(p);
    for (uint32_t epoch = 1; epoch <= 1000; epoch++) {
        hostile_send_lane(&h, 0, epoch == 1000 ? UINT32_MAX : epoch, HOSTILE_QPN + epoch);
        pair_settle(p);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 999);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 0);
    hostile_finish(p);
}

Test(queue_pair, a_stream_daemon_is_not_asked_for_queue_pairs)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct hostile h = hostile_as_sink(p);
    hostile_send_lane(&h, 0, 1, 9);
    pair_settle(p);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 1);
    hostile_finish(p);
}

Test(queue_pair, what_no_source_may_answer_costs_it_the_connection)
{
    for (uint32_t i = 0; i < 3; i++) {
        struct pair *p = hostile_world_of_queue_pairs();
        p->daemons[0].hold_ready = i == 2;
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        struct hostile h = hostile_as_source(p);
        if (i == 0) {
            hostile_send_lane(&h, 0, 1, 0); /* a stream's answer */
        } else if (i == 1) {
            hostile_send_lane(&h, 0, 1, 9);
            cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 0);
            cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1);
            hostile_send_lane(&h, 1, 1, 0);
        } else {
            hostile_send_lane(&h, 0, 1, 0); /* before it was asked, as a stream's */
            p->daemons[0].hold_ready = false;
            pair_ready_now(p, 0);
        }
        pair_settle(p);
        cr_assert_geq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 1, "case %u", i);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 0, "case %u", i);
        pair_abort(sink);
        hostile_finish(p);
    }
}

/* The sink is not joined yet when the second answer comes. */
Test(queue_pair, a_second_answer_joins_nothing_to_somebody_else)
{
    struct pair *p = hostile_world_of_queue_pairs();
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_wire_lane m = {.lane_idx = 0, .epoch = 1, .end = {.qpn = 9}};
    unsigned char frame[256];
    uint32_t peer = h.c->peer[PAIR_SINK];
    struct kvf_action a;
    for (uint32_t i = 0; i < 2; i++, m.end.qpn++) {
        int bytes = kvf_wire_put_lane(frame, sizeof frame, h.seq, &m);
        kvf_core_frame(core, pair_clock(p, 0), peer, KVF_WIRE_LANE, h.seq++,
                       frame + KVF_WIRE_HEADER_BYTES, (size_t)bytes - KVF_WIRE_HEADER_BYTES);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 1);
    while (kvf_core_next_action(core, &a) == 1) {
        cr_assert_neq(a.kind, KVF_ACT_LANE_JOIN);
        if (a.kind == KVF_ACT_FENCE) {
            pair_stream_lose(p, sink_end(p, a.lane % KVF_LANES_MAX), PAIR_SINK);
            kvf_core_lane_fenced(core, pair_clock(p, 0), a.lane, a.epoch);
        }
    }
    pair_settle(p);
    pair_abort(sink);
    hostile_finish(p);
}

/* What the source says of a device's bytes is all there is: its END is believed, and it may not take back that it
 * posted. */
Test(queue_pair, the_sources_end_stands_for_the_bytes_and_a_decline_after_it_breaks_the_rules)
{
    struct pair *p = hostile_world_of_queue_pairs();
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    hostile_send_lane(&h, 0, 1, 9);
    hostile_send_lane(&h, 1, 1, 10);
    pair_settle(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    cr_assert_eq(g.lane_mask, 3);
    cr_assert_eq(pair_raw_marker(p, sink_end(p, 0), g.handle, KVF_LANE_END), 0);
    cr_assert_eq(sink->view.placed_bytes, 0);
    hostile_send_simple(&h, KVF_WIRE_DECLINE, g.nonce);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 1);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_LOST);
    hostile_finish(p);
}

/* ---- "nothing was posted" ------------------------------------------------------------------------------------- */

struct declined {
    struct pair *p;
    struct hostile h;
    struct pair_room *sink;
    struct kvf_wire_grant g; /* over both lanes */
};

/* A source that may have posted whatever it likes, and now says that it has not. */
static struct declined begin_declined(void)
{
    struct declined d = {.p = hostile_world_of_queue_pairs()};
    d.sink = pair_sink(d.p, 0, 1, 7, 0, 4);
    d.h = hostile_as_source(d.p);
    hostile_send_lane(&d.h, 0, 1, 9);
    hostile_send_lane(&d.h, 1, 1, 10);
    pair_settle(d.p);
    d.g = hostile_read_grant(&d.h);
    cr_assert_eq(d.g.lane_mask, 3);
    return d;
}

static void decline(struct declined *d)
{
    hostile_send_simple(&d->h, KVF_WIRE_DECLINE, d->g.nonce);
    pair_settle(d->p);
    cr_assert_eq(pair_outcome(d->sink), KVF_OUTCOME_FAILED);
}

Test(queue_pair, a_decline_drains_nothing_before_a_marker_on_every_lane)
{
    struct declined d = begin_declined();
    decline(&d);
    cr_assert_not(pair_is_drained(d.sink), "its device may have been told to write before");
    for (uint32_t lane = 0; lane < 2; lane++) {
        cr_assert_not(pair_is_drained(d.sink));
        cr_assert_eq(pair_raw_marker(d.p, sink_end(d.p, lane), d.g.handle, KVF_LANE_DRAIN), 0);
    }
    pair_settle(d.p);
    pair_expect(d.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_BUSY);
    cr_assert_eq(pair_count(d.p, 0, KVF_COUNT_FENCES), 0);
    hostile_finish(d.p);
}

Test(queue_pair, a_decline_without_its_marker_ends_in_the_fence_of_that_lane)
{
    struct declined d = begin_declined();
    decline(&d);
    cr_assert_eq(pair_raw_marker(d.p, sink_end(d.p, 0), d.g.handle, KVF_LANE_DRAIN), 0);
    pair_advance(d.p, d.p->config.cooperative_ns - PAIR_MS);
    cr_assert_not(pair_is_drained(d.sink));
    cr_assert_eq(pair_count(d.p, 0, KVF_COUNT_FENCES), 0);
    pair_advance(d.p, 2 * PAIR_MS);
    pair_expect(d.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_BUSY);
    cr_assert_eq(pair_count(d.p, 0, KVF_COUNT_FENCES), 1);
    hostile_finish(d.p);
}

Test(queue_pair, a_marker_may_overtake_the_decline_that_it_proves)
{
    struct declined d = begin_declined();
    for (uint32_t lane = 0; lane < 2; lane++) {
        cr_assert_eq(pair_raw_marker(d.p, sink_end(d.p, lane), d.g.handle, KVF_LANE_DRAIN), 0);
    }
    pair_settle(d.p);
    cr_assert_not(pair_is_drained(d.sink), "the room waits for the reason");
    decline(&d);
    pair_expect(d.sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_BUSY);
    hostile_finish(d.p);
}

Test(queue_pair, an_end_behind_a_decline_costs_the_lane_and_proves_nothing)
{
    struct declined d = begin_declined();
    decline(&d);
    d.p->daemons[0].hold_fences = true;
    cr_assert_eq(pair_raw_marker(d.p, sink_end(d.p, 0), d.g.handle, KVF_LANE_END), -EPROTO);
    cr_assert_eq(pair_raw_marker(d.p, sink_end(d.p, 1), d.g.handle, KVF_LANE_DRAIN), 0);
    pair_settle(d.p);
    cr_assert_not(pair_is_drained(d.sink));
    d.p->daemons[0].hold_fences = false;
    pair_fences_return(d.p, 0);
    pair_settle(d.p);
    pair_expect(d.sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_PEER_BUSY);
    hostile_finish(d.p);
}

/* Whichever comes first, the answer or what makes a proof of it, an abort before the source opened costs no lane. */
Test(queue_pair, an_honest_source_puts_a_marker_behind_its_decline_on_every_lane)
{
    for (uint32_t first = 0; first < 2; first++) {
        struct pair *p = world(2, 2);
        pair_warm(p, 0, 1);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        pair_settle(p);
        uint64_t declined = pair_count(p, 0, KVF_COUNT_GRANTS_DECLINED);
        uint64_t drains = pair_count(p, 0, KVF_COUNT_MARKERS_DRAIN);
        pair_link(p, 0, 1)->hold_deliver = first == 0 ? 0xff : 0;
        pair_conn(p, 0, 1)->hold[PAIR_SINK] = first == 1;
        pair_abort(sink);
        pair_settle(p);
        cr_assert_eq(pair_is_drained(sink), first == 1, "the markers prove, not the answer");
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_DECLINED), declined + (first == 0));
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_DRAIN), drains + 2 * first);
        pair_link(p, 0, 1)->hold_deliver = 0;
        pair_conn(p, 0, 1)->hold[PAIR_SINK] = false;
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GRANTS_IN), 0);
        struct request next = start(p, 8, 16);
        expect_success(&next);
        pair_finish(p);
    }
}

/* Half a GRANT has left when its room ends: the source knows its lanes, and its marker comes before its answer. */
Test(queue_pair, a_grant_that_is_aborted_half_way_is_proven_by_markers_too)
{
    struct pair *p = pair_new(&(struct pair_options){
        .pages = 25000, .runs_max = 65536, .lanes = 2, .rails = 2, .are_queue_pairs = true});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    static struct kvf_run_shm runs[12000];
    for (uint32_t j = 0; j < 12000; j++) {
        runs[j] = (struct kvf_run_shm){PAIR_R0, 2 * j, 1};
    }
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 12000};
    struct pair_open open = {
        .key = 7, .writers = &writer, .writer_count = 1, .runs = runs, .run_count = 12000};
    struct pair_room *sink = pair_open_sink(p, 0, &open);
    struct pair_conn *c = pair_conn(p, 0, 1);
    static unsigned char buf[FRAME_MAX];
    size_t bytes =
        kvf_core_emit(p->daemons[0].core, p->now_ns, c->peer[PAIR_SINK], buf, sizeof buf);
    struct kvf_wire_header h;
    cr_assert_eq(kvf_wire_get_header(buf, &h), 0);
    cr_assert_eq(bytes, KVF_WIRE_HEADER_BYTES + h.payload_bytes);
    cr_assert_eq(h.type, KVF_WIRE_GRANT);
    kvf_core_frame(p->daemons[1].core, p->now_ns, c->peer[PAIR_SOURCE], h.type, h.seq,
                   buf + KVF_WIRE_HEADER_BYTES, h.payload_bytes);
    pair_drain(p, 1);
    c->hold[PAIR_SINK] = true; /* the answer */
    pair_abort(sink);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 0, "its markers were its own");
    c->hold[PAIR_SINK] = false;
    pair_settle(p);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ABORTED);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), 0);
    pair_finish(p);
}

/* The source's own end of a lane broke before its marker was posted: the sink's fence proves that lane. */
Test(queue_pair,
     a_declined_grant_whose_lane_breaks_is_forgotten_by_the_source_and_fenced_by_the_sink)
{
    struct pair *p = world(2, 2);
    pair_warm(p, 0, 1);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_hand = 0xff;
    pair_abort(sink);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GRANTS_IN), 1);
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
    pair_link(p, 0, 1)->hold_hand = 0;
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GRANTS_IN), 0);
    cr_assert_not(pair_is_drained(sink));
    pair_advance(p, p->config.cooperative_ns + PAIR_MS);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    pair_advance(p, 1000 * PAIR_MS);
    struct request next = start(p, 8, 16);
    expect_success(&next);
    pair_finish(p);
}

/* One peer names all the regions there can be; another one is served. */
Test(queue_pair, a_peer_that_names_many_regions_takes_no_more_than_its_share_of_places)
{
    struct pair *p = hostile_world_of_queue_pairs();
    struct hostile h = hostile_as_sink(p);
    static unsigned char frame[FRAME_MAX];
    static struct kvf_wire_region m;
    for (uint32_t i = 0; i < 20; i++) {
        m = (struct kvf_wire_region){.region = i,
                                     .epoch = 1,
                                     .page_count = 4,
                                     .plane_count = KVF_WIRE_PLANES_MAX,
                                     .key_count = KVF_WIRE_KEYS_MAX};
        for (uint32_t plane = 0; plane < KVF_WIRE_PLANES_MAX; plane++) {
            m.planes[plane] = (struct kvf_wire_plane){.stride = PAIR_PAGE_BYTES,
                                                      .page_bytes = PAIR_PAGE_BYTES};
        }
        hostile_send(&h, frame, kvf_wire_put_region(frame, sizeof frame, h.seq, &m));
    }
    cr_assert_eq(p->daemons[0].core->remote_fresh, 2, "a quarter of eight");
    pair_warm(p, 2, 0);
    hostile_finish(p);
}

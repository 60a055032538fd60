/* Queue pairs, and what the transport or a peer says of them too early, too late or twice: no lane is up before both of
 * its ends are known, and nothing that is said of another moment moves it. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

static struct pair *world(uint32_t remotes_max)
{
    return pair_new(&(struct pair_options){
        .daemons = 3, .are_queue_pairs = true, .remotes_max = remotes_max});
}

/* Lane 0 of the first peer of that role: a world has one of each here. */
static uint32_t lane_of(const struct pair *p, uint32_t daemon, enum kvf_peer_role role)
{
    const struct kvf_core *core = p->daemons[daemon].core;
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        if (core->peers[i].role == role) {
            return kvf_lane_id(i, 0);
        }
    }
    cr_assert_fail("no such peer");
    return KVF_NONE;
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

static void say_up(struct pair *p, uint32_t daemon, uint32_t lane)
{
    struct kvf_core *core = p->daemons[daemon].core;
    kvf_core_lane_up(core, pair_clock(p, daemon), lane, core->lanes[lane].epoch);
    pair_drain(p, daemon);
}

Test(queue_pair_late, an_end_that_is_joined_before_it_knows_the_other_is_not_up)
{
    struct pair *p = world(0);
    p->daemons[1].hold_ready = true;
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    /* The sink has an end, and no answer; the source has the answer, and no end. */
    say_up(p, 0, lane_of(p, 0, KVF_PEER_OUT));
    say_up(p, 1, lane_of(p, 1, KVF_PEER_IN));
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 0);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_LANES_UP), 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 0);
    p->daemons[1].hold_ready = false;
    pair_ready_now(p, 1);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    say_up(p, 0, lane_of(p, 0, KVF_PEER_OUT)); /* once more, and it is */
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1);
    pair_finish(p);
}

Test(queue_pair_late,
     an_end_that_is_ready_twice_or_for_another_epoch_is_counted_and_told_to_nobody)
{
    struct pair *p = world(0);
    pair_warm(p, 0, 1);
    p->daemons[0].hold_fences = true;
    p->daemons[1].hold_fences = true;
    for (uint32_t is_fencing = 0; is_fencing < 2; is_fencing++) {
        for (uint32_t d = 0; d < 2; d++) {
            struct kvf_core *core = p->daemons[d].core;
            uint32_t lane = lane_of(p, d, d == 0 ? KVF_PEER_OUT : KVF_PEER_IN);
            uint32_t epoch = core->lanes[lane].epoch;
            uint8_t state = core->lanes[lane].state;
            uint64_t stale = pair_count(p, d, KVF_COUNT_STALE_LANE_EVENTS);
            struct kvf_lane_end own = core->lanes[lane].own;
            struct kvf_lane_end end = {.qpn = 99};
            cr_assert_eq(state, is_fencing ? KVF_LANE_FENCING : KVF_LANE_UP);
            kvf_core_lane_ready(core, pair_clock(p, d), lane, epoch, &end);
            kvf_core_lane_ready(core, pair_clock(p, d), lane, epoch + 1, &end);
            cr_assert_eq(pair_count(p, d, KVF_COUNT_STALE_LANE_EVENTS), stale + 2);
            cr_assert_eq(core->lanes[lane].state, state);
            cr_assert_eq(core->lanes[lane].own.qpn, own.qpn);
            cr_assert_not(core->lanes[lane].owes_lane);
            if (is_fencing == 0) {
                kvf_core_lane_lost(core, pair_clock(p, d), lane, epoch, EIO);
                pair_drain(p, d);
            }
        }
    }
    pair_open_gates(p);
    pair_advance(p, 100 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* The old epoch is being fenced, the next one waits for that: it may be followed, and not be asked for again. */
Test(queue_pair_late, the_epoch_that_waits_for_a_fence_cannot_be_asked_for_again)
{
    for (uint32_t again = 5; again <= 7; again++) {
        struct pair *p = hostile_world_of_queue_pairs();
        struct hostile h = hostile_as_sink(p);
        hostile_send_lane(&h, 0, 4, HOSTILE_QPN);
        pair_settle(p);
        p->daemons[0].hold_fences = true;
        hostile_send_lane(&h, 0, 6, HOSTILE_QPN + 1);
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 0);
        hostile_send_lane(&h, 0, again, HOSTILE_QPN + 2);
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), again < 7, "%u", again);
        p->daemons[0].hold_fences = false;
        pair_fences_return(p, 0);
        pair_settle(p);
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), again == 7, "%u", again);
        hostile_finish(p);
    }
}

/* Another peer has what there is: no quarter is left for this one. */
Test(queue_pair_late, a_table_of_regions_that_other_peers_fill_declines_until_one_of_them_goes)
{
    struct pair *p = world(1);
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 2, 1, 7, 0, 4);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_PEER_DRAINED, KVF_E_PEER_BUSY);
    cr_assert_eq(sink->view.detail, KVF_E_RESOURCES);
    cr_assert_eq(p->daemons[1].core->remote_fresh, 1);
    pair_warm(p, 0, 1); /* who has a place keeps it */
    pair_conn_cut(p, pair_conn(p, 0, 1));
    pair_conn_cut(p, pair_conn(p, 2, 1)); /* it tells its regions again */
    pair_advance(p, 1000 * PAIR_MS);
    sink = pair_sink(p, 2, 1, 7, 0, 4);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(p);
}

/* The transport asks where a peer's device writes; of what was not told there is no answer. */
Test(queue_pair_late, a_region_that_no_peer_has_told_cannot_be_addressed)
{
    struct pair *p = world(0);
    pair_warm(p, 0, 1);
    const struct kvf_core *core = p->daemons[1].core;
    uint32_t lane = lane_of(p, 1, KVF_PEER_IN);
    uint32_t known = kvf_region_wire(0, PAIR_R0);
    struct kvf_remote_view view = {0};
    cr_assert(kvf_core_remote(core, lane, known, &view));
    cr_assert_eq(view.plane_count, 1);
    view = (struct kvf_remote_view){.key_count = 99};
    cr_assert_not(kvf_core_remote(core, lane, known + 1, &view));
    cr_assert_not(kvf_core_remote(core, lane, KVF_REGIONS_PER_WORKER_MAX, &view));
    cr_assert_not(kvf_core_remote(core, lane, UINT32_MAX, &view));
    cr_assert_not(
        kvf_core_remote(p->daemons[0].core, lane_of(p, 0, KVF_PEER_OUT), known, &view),
        "a sink writes nowhere");
    cr_assert_eq(view.key_count, 99, "and nothing was answered");
    pair_finish(p);
}

/* A source whose lane broke declines with that reason, and keeps its room open for a new grant. Where the sink's room
 * ends before there is one, nobody but us can tell it. */
Test(queue_pair_late, a_room_that_ends_between_a_decline_and_a_new_grant_tells_its_source)
{
    struct pair *p = hostile_world_of_queue_pairs();
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    hostile_send_lane(&h, 0, 1, 9);
    hostile_send_lane(&h, 1, 1, 10);
    pair_settle(p);
    struct kvf_wire_grant g = hostile_read_grant(&h);
    p->daemons[0].hold_fences = true;
    unsigned char frame[256];
    hostile_send(&h, frame,
                 kvf_wire_put_decline(frame, sizeof frame, h.seq,
                                      &(struct kvf_wire_decline){.nonce = g.nonce,
                                                                 .reason = KVF_E_LANE_LOST,
                                                                 .detail = 3}));
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN, "it waits for a new grant");
    pair_abort(sink);
    pair_settle(p);
    cr_assert_not(pair_is_drained(sink), "its fences are out");
    p->daemons[0].hold_fences = false;
    pair_fences_return(p, 0);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_ABORTED);
    const unsigned char *payload;
    size_t bytes;
    uint32_t tells = 0;
    for (uint8_t type; (type = pair_raw_read(p, h.c, PAIR_SOURCE, &payload, &bytes)) != 0;) {
        struct kvf_wire_abort m;
        if (type == KVF_WIRE_ABORT) {
            cr_assert_eq(kvf_wire_get_abort(payload, bytes, &m), 0);
            cr_assert_eq(m.nonce, 0, "the grant was answered");
            tells++;
        }
    }
    cr_assert_eq(tells, 1);
    hostile_finish(p);
}

/* Half of a GRANT has left when its room ends, and the rest is kept back: a source that knows that already may have its
 * DRAIN land before we read its DECLINE. Its END would claim what it was never told. */
Test(queue_pair_late, half_a_grant_is_proven_by_a_drain_that_comes_before_its_answer)
{
    for (uint32_t kind = KVF_LANE_END; kind <= KVF_LANE_DRAIN; kind++) {
        struct pair *p = pair_new(&(struct pair_options){.daemons = 3,
                                                         .lanes = 1,
                                                         .are_queue_pairs = true,
                                                         .remotes_max = 8,
                                                         .pages = 25000,
                                                         .runs_max = 65536});
        p->is_hostile = true;
        pair_make_raw(p, 1);
        static struct kvf_run_shm runs[12000];
        for (uint32_t j = 0; j < 12000; j++) {
            runs[j] = (struct kvf_run_shm){PAIR_R0, 2 * j, 1};
        }
        struct pair_room *first = pair_sink(p, 0, 1, 6, 0, 1); /* brings the lane up */
        struct hostile h = hostile_as_source(p);
        hostile_send_lane(&h, 0, 1, 9);
        pair_settle(p);
        struct kvf_wire_grant g = hostile_read_grant(&h);
        struct pair_stream *lane = sink_end(p, 0);
        cr_assert_eq(pair_raw_marker(p, lane, g.handle, KVF_LANE_DRAIN), 0);
        hostile_send_simple(&h, KVF_WIRE_DECLINE, g.nonce);
        pair_settle(p);
        cr_assert(pair_is_drained(first));
        struct pair_room *sink = pair_open_sink(
            p, 0,
            &(struct pair_open){
                .key = 7,
                .writers = &(struct kvf_writer_shm){.addr = pair_addr(1), .count = 12000},
                .writer_count = 1,
                .runs = runs,
                .run_count = 12000});
        static unsigned char buf[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];
        (void)kvf_core_emit(p->daemons[0].core, p->now_ns, h.c->peer[PAIR_SINK], buf,
                            sizeof buf);
        struct kvf_wire_header header;
        cr_assert_eq(kvf_wire_get_header(buf, &header), 0);
        cr_assert_eq(header.type, KVF_WIRE_GRANT);
        cr_assert_eq(kvf_wire_get_grant(buf + KVF_WIRE_HEADER_BYTES, header.payload_bytes, &g),
                     0);
        pair_abort(sink);
        cr_assert_eq(pair_raw_marker(p, lane, g.handle, (uint8_t)kind),
                     kind == KVF_LANE_DRAIN ? 0 : -EPROTO);
        hostile_send_simple(&h, KVF_WIRE_DECLINE, g.nonce);
        pair_advance(p, 100 * PAIR_MS);
        pair_expect(sink, KVF_OUTCOME_FAILED,
                    kind == KVF_LANE_DRAIN ? KVF_PROOF_PEER_DRAINED : KVF_PROOF_FENCED,
                    KVF_E_ABORTED);
        hostile_finish(p);
    }
}

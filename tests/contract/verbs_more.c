/* The pitfalls of RDMA that were measured on real devices, each through transport verbs over devices that have it.
 * pNN is the pitfall's number in the list of measurements. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/contract/rig_verbs.h"

static void skip_over_real_devices(void)
{
    const char *reason = rig_verbs_is_real();
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

TestSuite(verbs_more, .init = skip_over_real_devices);

static const uint32_t plane_4k[] = {4096};

static struct rig *rig_with(uint32_t pages, uint32_t planes)
{
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(&rig_verbs_kind, &options);
    rig_region(rig, 0, pages, planes, plane_4k, 1, 0);
    rig_grant(rig, 1, 0, 0, pages);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 5), 0);
    return rig;
}

static void fence(struct rig *rig, struct rig_end *end, uint32_t epoch)
{
    rig->kind->ops->fence(end->transport, 0, epoch);
}

static struct kvf_verbs_counts counts_of(struct rig_end *end)
{
    struct kvf_verbs_counts counts;
    kvf_verbs_counts(rig_verbs_transport(end), &counts);
    return counts;
}

static void each_completed_once(const struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], 1, "post %u completed %u times", i,
                     rig->source.completed[i]);
    }
}

/* Polls both ends without moving the network's time, until the queue pairs' thread has had its say. */
static void settle(struct rig *rig)
{
    for (uint32_t i = 0; i < 50; i++) {
        rig->kind->ops->poll(rig->source.transport);
        rig->kind->ops->poll(rig->sink.transport);
        usleep(200);
    }
}

static void advance(uint64_t ns)
{
    fake_advance(fake_now_ns() + ns);
}

static void set_delay(uint64_t delay_ns, uint64_t packet_ns)
{
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.delay_ns = delay_ns;
    knobs.packet_ns = packet_ns;
    fake_set(&knobs);
}

static struct fake_qp_view qp_of(const struct rig_end *end)
{
    bool is_sink = end == &end->rig->sink;
    struct fake_qp_view view;
    fake_qp(is_sink ? RIG_SINK_DEVICE : RIG_SOURCE_DEVICE, rig_verbs_lane_end(end, 0)->qpn,
            &view);
    return view;
}

/* ---- what a writer knows ---------------------------------------------------------------------------------- */

/* The flush says that the writer's pages are free. The sink's are not: the bytes come a moment later. */
Test(verbs_more, p01_a_flushed_write_lands_late_and_only_the_sinks_fence_ends_that)
{
    struct rig *rig = rig_with(64, 1);
    set_delay(800000, 0);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 32);
    rig->kind->ops->poll(rig->source.transport);
    advance(1000); /* the device takes it and sends */
    fence(rig, &rig->source, 5);
    cr_assert_eq(rig->source.status[0], -ECONNABORTED);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    advance(810000);
    cr_assert_gt(rig_touched_bytes(rig, 0, 0, 64), 0, "the double is not as bad as the truth");
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 0);
    fence(rig, &rig->sink, 5);
    rig_paint(rig, 0, 0, 64);
    rig_turns(rig, 50);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    rig_destroy(rig);
}

Test(verbs_more, p02_a_write_that_could_not_be_acknowledged_is_an_error_and_may_be_there)
{
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.loses_acks = true;
    fake_set(&knobs);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig_mark(rig, 0, 9, 1, KVF_LANE_DRAIN);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, EIO);
    cr_assert_eq(rig->source.status[0], -EIO, "not told as a success, nor as never sent");
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 4), 0);
    each_completed_once(rig);
    rig_destroy(rig);
}

Test(verbs_more, p03_the_writers_destroy_is_no_fence)
{
    struct rig *rig = rig_with(64, 1);
    set_delay(800000, 0);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 32);
    rig->kind->ops->poll(rig->source.transport);
    advance(1000);
    fence(rig, &rig->source, 5);
    cr_assert_not(qp_of(&rig->source).exists);
    fence(rig, &rig->sink, 5); /* before the bytes arrive */
    cr_assert_not(qp_of(&rig->sink).exists);
    rig_paint(rig, 0, 0, 64);
    advance(10000000);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    rig_destroy(rig);
}

/* Half a message is there; the other half may come at any time until the fence, and not one byte after. */
Test(verbs_more, p05_a_message_that_is_half_there_grows_until_the_fence_and_not_after)
{
    struct rig *rig = rig_with(64, 1);
    set_delay(20000, 100000);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 64); /* one write of 64 packets */
    rig->kind->ops->poll(rig->source.transport);
    advance(1000000);
    uint64_t first = rig_touched_bytes(rig, 0, 0, 64);
    advance(1000000);
    uint64_t second = rig_touched_bytes(rig, 0, 0, 64);
    cr_assert_gt(first, 0);
    cr_assert_gt(second, first);
    cr_assert_lt(second, 64 * 4096);
    fence(rig, &rig->sink, 5);
    uint64_t fenced = rig_touched_bytes(rig, 0, 0, 64);
    advance(50000000);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), fenced);
    rig_destroy(rig);
}

/* A reset forgets completions, and then the accounts never close. (The rig counts resets in every test.) */
Test(verbs_more, p06_a_fence_of_a_busy_lane_closes_its_accounts)
{
    struct rig *rig = rig_with(256, 16);
    rig->is_sink_stopped = true;
    for (uint32_t i = 0; i < 100; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    rig_turns(rig, 3);
    fence(rig, &rig->source, 5);
    fence(rig, &rig->sink, 5);
    each_completed_once(rig);
    cr_assert_eq(counts_of(&rig->source).written_off, 0);
    cr_assert_eq(counts_of(&rig->sink).written_off, 0);
    cr_assert_eq(counts_of(&rig->source).completions_stray, 0);
    cr_assert_eq(counts_of(&rig->sink).completions_stray, 0);
    rig_destroy(rig);
}

/* More completions than a turn takes, and fences that wait for none: those that are still in the queue when the
 * queue pairs are gone belong to them, and their slots are free only when they are out. */
Test(verbs_more, p06_completions_that_outlive_their_queue_pair_are_counted)
{
    rig_verbs_config.reap_ns = 0;
    struct rig *rig = rig_with(256, 16);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    rig->is_sink_stopped = true;
    for (uint32_t i = 0; i < 15; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
        rig_post(rig, 1, 9, 1, 0, i, i, 1);
    }
    rig_turns(rig, 3);
    rig_verbs_ask_fence(&rig->source, 0, 5);
    rig_verbs_ask_fence(&rig->source, 1, 5);
    struct fake_qp_view first;
    struct fake_qp_view second;
    do { /* both are stopped, and nobody has looked yet */
        usleep(100);
        fake_qp(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, 0)->qpn, &first);
        fake_qp(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, 1)->qpn, &second);
    } while (first.state != IBV_QPS_ERR || second.state != IBV_QPS_ERR);
    /* The jobs come back meanwhile; if they do not, a later look finds them, and this test shows less. */
    usleep(20000);
    uint32_t looks = 0;
    do { /* until both are gone */
        if (looks++ % 200 == 0) {
            rig->kind->ops->poll(rig->source.transport);
        }
        usleep(100);
        fake_qp(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, 0)->qpn, &first);
        fake_qp(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, 1)->qpn, &second);
    } while (first.exists || second.exists);
    settle(rig);
    cr_assert_eq(rig->source.fenced_count, 2);
    each_completed_once(rig);
    cr_assert_eq(counts_of(&rig->source).written_off, 0);
    cr_assert_eq(counts_of(&rig->source).completions_stray, 0);
    rig_destroy(rig);
}

/* The devices give the lowest free number again at once. */
Test(verbs_more, p07_numbers_are_not_used_again_soon_and_sequences_begin_anywhere)
{
    struct rig *rig = rig_with(4, 1);
    uint32_t qpns[90];
    uint32_t psns[90];
    for (uint32_t i = 0; i < 90; i++) {
        const struct kvf_lane_end *end = rig_verbs_lane_end(&rig->sink, 0);
        qpns[i] = end->qpn;
        psns[i] = end->psn;
        cr_assert_eq(qp_of(&rig->sink).send_psn, end->psn, "what is told is what is used");
        cr_assert_eq(qp_of(&rig->sink).expected_psn, rig_verbs_lane_end(&rig->source, 0)->psn);
        for (uint32_t j = i > 64 ? i - 64 : 0; j < i; j++) {
            cr_assert_neq(qpns[j], qpns[i], "%u was epoch %u's", qpns[i], j);
        }
        for (uint32_t j = 0; j < i; j++) {
            cr_assert_neq(psns[j], psns[i]); /* once in a thousand years of such runs it may */
        }
        fence(rig, &rig->source, 5 + i);
        fence(rig, &rig->sink, 5 + i);
        cr_assert_eq(rig->kind->lane_open(rig, 0, 6 + i), 0);
    }
    cr_assert_gt(counts_of(&rig->sink).numbers_avoided, 0);
    rig_destroy(rig);
}

/* A packet of the dead epoch reaches the device after the next one has begun. */
Test(verbs_more, p07_a_packet_of_a_dead_connection_finds_nobody)
{
    struct rig *rig = rig_with(64, 1);
    set_delay(30000000, 0);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 32);
    rig->kind->ops->poll(rig->source.transport);
    advance(1000);
    fence(rig, &rig->source, 5);
    fence(rig, &rig->sink, 5);
    rig_paint(rig, 0, 0, 64);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 6), 0);
    advance(40000000);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    cr_assert_eq(rig->sink.lost_count, 0);
    set_delay(20000, 0);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 32);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 32), 0);
    rig_destroy(rig);
}

Test(verbs_more, p08_no_retry_is_for_ever)
{
    struct rig *rig = rig_with(64, 1);
    cr_assert_leq(qp_of(&rig->source).retry, 6);
    cr_assert_leq(qp_of(&rig->source).rnr_retry, 6);
    cr_assert_gt(qp_of(&rig->source).timeout, 0);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.loses_data = true;
    fake_set(&knobs);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig->kind->ops->poll(rig->source.transport);
    advance(UINT64_C(4096) << 12 << 3); /* twice what four tries take */
    rig->kind->ops->poll(rig->source.transport);
    cr_assert_eq(rig->source.lost_count, 1);
    cr_assert_eq(rig->source.status[0], -EIO);
    rig_destroy(rig);
}

/* A zero-length write has no key that anybody looks at: behind a write that was refused it would arrive. */
Test(verbs_more, p10_no_end_follows_a_write_that_was_refused)
{
    struct rig *rig = rig_with(64, 1);
    uint32_t key = 0xabcdef;
    struct kvf_remote_view view = {.keys = &key,
                                   .key_count = 1,
                                   .page_count = 64,
                                   .plane_count = 1,
                                   .planes = rig->sink.regions[0].planes};
    view.base = (uint64_t)(uintptr_t)rig->sink.regions[0].region.base;
    rig_verbs_lie(rig, &view);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert(rig_until(rig, rig_is_lost, 0), "both ends hear of it");
    rig_turns(rig, 20);
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 0);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    cr_assert_eq(rig->source.status[0], -EIO);
    fence(rig, &rig->source, 5);
    each_completed_once(rig);
    rig_destroy(rig);
}

/* Of a list that fails, each work request has a completion, signalled or not. */
Test(verbs_more, p11_unsignalled_requests_that_fail_are_counted_once)
{
    struct rig *rig = rig_with(256, 16);
    set_delay(800000, 0);
    for (uint32_t i = 0; i < 15; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    rig->kind->ops->poll(rig->source.transport);
    struct fake_counts counts;
    fake_counts(&counts);
    cr_assert_eq(counts.writes, 240);
    cr_assert_eq(counts.signalled, 8, "one for each list of 32");
    advance(1000);
    fake_qp_break(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, 0)->qpn, false);
    rig_turns(rig, 5);
    each_completed_once(rig);
    cr_assert_eq(rig->source.status[0], -EIO, "the first is to blame");
    cr_assert_eq(rig->source.status[14], -ECONNABORTED);
    fence(rig, &rig->source, 5);
    each_completed_once(rig);
    cr_assert_eq(counts_of(&rig->source).written_off, 0);
    cr_assert_eq(counts_of(&rig->source).completions_stray, 0);
    rig_destroy(rig);
}

/* Sixteen lanes with full queues fail at once: a completion queue has a slot for each, signalled or not. */
Test(verbs_more, p12_every_work_request_has_a_slot)
{
    struct rig *rig = rig_with(256, 16);
    for (uint32_t lane = 1; lane < RIG_LANES; lane++) {
        cr_assert_eq(rig->kind->lane_open(rig, lane, 5), 0);
    }
    rig->is_sink_stopped = true;
    for (uint32_t lane = 0; lane < RIG_LANES; lane++) {
        for (uint32_t i = 0; i < 20; i++) {
            rig_post(rig, lane, 9, 1, 0, i, i, 1);
        }
    }
    rig_turns(rig, 3);
    for (uint32_t lane = 0; lane < RIG_LANES; lane++) {
        fake_qp_break(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, lane)->qpn, false);
        fake_qp_break(RIG_SINK_DEVICE, rig_verbs_lane_end(&rig->sink, lane)->qpn, false);
    }
    struct fake_counts counts;
    fake_counts(&counts);
    cr_assert_eq(counts.overruns, 0);
    cr_assert_gt(counts.writes, RIG_LANES * 200);
    for (uint32_t lane = 0; lane < RIG_LANES; lane++) {
        rig->kind->ops->fence(rig->source.transport, lane, 5);
    }
    each_completed_once(rig);
    rig_destroy(rig);
}

/* A queue that lost completions is of no use: its lanes are lost, their fences wait for nothing, and the next
 * lanes get another one. */
Test(verbs_more, p12_a_broken_completion_queue_takes_its_lanes_along_and_is_replaced)
{
    rig_verbs_config.reap_ns = UINT64_C(3600000000000);
    struct rig *rig = rig_with(64, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.completions_lost = 1;
    fake_set(&knobs);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    rig_turns(rig, 5);
    cr_assert_eq(rig->source.lost_count, 2, "both lanes share it");
    for (uint32_t lane = 0; lane < 2; lane++) {
        rig->kind->ops->fence(rig->source.transport, lane, 5);
        rig->kind->ops->fence(rig->sink.transport, lane, 5);
    }
    each_completed_once(rig);
    cr_assert_eq(counts_of(&rig->source).queues_broken, 1);
    cr_assert_eq(counts_of(&rig->source).written_off, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 6), 0);
    rig_post(rig, 0, 9, 1, 0, 8, 8, 4);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 8, 8, 4), 0);
    rig_destroy(rig);
}

/* Nothing fails, nothing comes: found by time, fenced by destroy, what is missing written off and counted. */
Test(verbs_more, p12_completions_that_never_come_cost_the_lane_and_no_more)
{
    rig_verbs_config.stall_ns = 5000000;
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.muted_qpn = rig_verbs_lane_end(&rig->source, 0)->qpn;
    fake_set(&knobs);
    rig_turns(rig, 20);
    cr_assert_eq(rig->source.lost_count, 0, "an idle lane stalls at nothing");
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig->kind->ops->poll(rig->source.transport);
    cr_assert_neq(kvf_verbs_due_ns(rig_verbs_transport(&rig->source)), KVF_NO_TIME);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, ETIMEDOUT);
    cr_assert_eq(rig->source.completed_count, 0);
    rig_verbs_ask_fence(&rig->source, 0, 5);
    settle(rig);
    cr_assert_eq(rig->source.fenced_count, 0, "reap_ns is not over");
    advance(rig_verbs_config.reap_ns);
    settle(rig);
    cr_assert_eq(rig->source.fenced_count, 1);
    each_completed_once(rig);
    cr_assert_eq(counts_of(&rig->source).written_off, 1);
    rig_destroy(rig);
}

/* Five of a list are the device's although the call failed. They land, and count until the queue pair is gone. */
Test(verbs_more, p13_what_stands_before_a_refused_request_was_posted)
{
    struct rig *rig = rig_with(64, 8);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.is_post_short = true;
    knobs.posts_taken = 20;
    fake_set(&knobs);
    for (uint32_t i = 0; i < 4; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1); /* 8 writes each */
    }
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    rig->kind->ops->poll(rig->source.transport);
    cr_assert_eq(rig->source.lost_count, 1);
    cr_assert_eq(rig->source.completed_count, 0);
    advance(1000000);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 20 * 4096);
    rig_turns(rig, 5);
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 0);
    rig_verbs_ask_fence(&rig->source, 0, 5);
    settle(rig);
    advance(rig_verbs_config.reap_ns);
    settle(rig);
    cr_assert_eq(rig->source.fenced_count, 1);
    each_completed_once(rig);
    cr_assert_eq(counts_of(&rig->source).written_off, 20,
                 "unsignalled, and silent about success");
    rig_destroy(rig);
}

/* The device's queue has 511 places where 256 were asked, and the completion queue has slots for 256. */
Test(verbs_more, p14_no_more_is_posted_than_was_asked_and_one_place_is_the_markers)
{
    struct rig *rig = rig_with(1024, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    rig->is_sink_stopped = true;
    struct fake_counts counts;
    for (uint32_t i = 0; i < 255; i++) {
        rig_post(rig, 0, 9, 1, 0, 2 * i, 2 * i, 1);
    }
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    rig_turns(rig, 5);
    fake_counts(&counts);
    cr_assert_eq(counts.writes, 255);
    cr_assert_eq(counts.markers, 1, "the marker waits for no room");
    for (uint32_t i = 0; i < 300; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
        rig_post(rig, 1, 9, 1, 0, i, i, 1);
    }
    rig_turns(rig, 5);
    fake_counts(&counts);
    cr_assert_eq(counts.writes, 510, "lane 0 is full, and lane 1 but for one");
    cr_assert_eq(counts.markers, 1);
    rig->is_sink_stopped = false;
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    fake_counts(&counts);
    cr_assert_eq(counts.overruns, 0);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 300), 0);
    rig_destroy(rig);
}

/* No event is waited for: these devices never send QP_FATAL, SQ_DRAINED or LAST_WQE_REACHED by themselves. One
 * that comes is read, acknowledged and counted. */
Test(verbs_more, p15_events_that_ask_for_nothing_are_counted)
{
    struct rig *rig = rig_with(64, 1);
    uint32_t qpn = rig_verbs_lane_end(&rig->sink, 0)->qpn;
    fake_event(RIG_SINK_DEVICE, IBV_EVENT_QP_LAST_WQE_REACHED, qpn);
    fake_event(RIG_SINK_DEVICE, IBV_EVENT_COMM_EST, qpn);
    fake_event(RIG_SINK_DEVICE, IBV_EVENT_PORT_ACTIVE, 0);
    rig_turns(rig, 3);
    cr_assert_eq(counts_of(&rig->sink).events_other, 3);
    cr_assert_eq(rig->sink.lost_count, 0);
    fence(rig, &rig->sink, 5);
    cr_assert_eq(rig->sink.fenced_count, 1);
    rig_destroy(rig);
}

/* Memory that the sink took away while a slow writer still names it: that lane dies, at both ends, and no other. */
Test(verbs_more, p17_a_key_that_is_gone_ends_the_lane_that_uses_it_alone)
{
    struct rig *rig = rig_with(64, 1);
    rig_region(rig, 1, 64, 1, plane_4k, 1, 0);
    rig_grant(rig, 2, 1, 0, 64);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    uint32_t key;
    uint32_t keys[KVF_RAILS_MAX];
    uint32_t key_count = 0;
    struct kvf_remote_view view = {
        .page_count = 64, .plane_count = 1, .planes = rig->sink.regions[0].planes};
    kvf_verbs_keys(rig_verbs_memory(&rig->sink, 0), &view.base, keys, &key_count);
    key = keys[0];
    view.keys = &key;
    view.key_count = 1;
    rig_region(rig, 0, 64, 1, plane_4k, 1, 0); /* the sink's and the source's, anew */
    rig_verbs_lie(rig, &view);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig_turns(rig, 5);
    rig_verbs_lie(rig, NULL);
    cr_assert_eq(rig->source.lost_count, 1);
    cr_assert_eq(rig->sink.lost_count, 1);
    rig_post(rig, 1, 10, 2, 1, 0, 0, 64);
    rig_mark(rig, 1, 10, 2, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 64), 0);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    rig_destroy(rig);
}

/* ---- fences ------------------------------------------------------------------------------------------------- */

/* What a device refuses is no fence: nobody is told that it was one. */
Test(verbs_more, p18_a_refused_destroy_is_no_fence)
{
    rig_verbs_leaves_something = true;
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.destroys_refused = 1;
    fake_set(&knobs);
    rig_verbs_ask_fence(&rig->sink, 0, 5);
    settle(rig);
    rig_turns(rig, 200);
    cr_assert_eq(rig->sink.fenced_count, 0);
    cr_assert_eq(counts_of(&rig->sink).fences_failed, 1);
    rig_verbs_ask_fence(&rig->sink, 0, 5);
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 0, "asking again proves nothing either");
    rig_destroy(rig);
}

/* The stop was never the proof, so that its refusal takes none away; nor does it give one. */
Test(verbs_more, p18_a_refused_stop_is_followed_by_the_destroy_which_alone_is_the_fence)
{
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    struct fake_counts counts;
    fake_get(&knobs);
    knobs.stops_refused = 1;
    knobs.is_gated = true;
    fake_set(&knobs);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig_turns(rig, 3);
    rig_verbs_ask_fence(&rig->source, 0, 5);
    for (uint32_t i = 0; i < 2; i++) { /* at the stop, then at the destroy */
        uint32_t turns = 0;
        do {
            rig->kind->ops->poll(rig->source.transport);
            usleep(50);
            fake_counts(&counts);
        } while (counts.gated == 0 && ++turns < 100000);
        cr_assert_neq(counts.gated, 0, "the destroy comes");
        settle(rig);
        cr_assert_eq(rig->source.fenced_count, 0);
        cr_assert(qp_of(&rig->source).exists);
        fake_get(&knobs);
        knobs.is_gated = false;
        fake_set(&knobs);
        while (counts.gated != 0) {
            fake_counts(&counts);
        }
        knobs.is_gated = i == 0;
        fake_set(&knobs);
    }
    settle(rig);
    cr_assert_eq(rig->source.fenced_count, 1);
    cr_assert_not(qp_of(&rig->source).exists);
    cr_assert_eq(counts_of(&rig->source).fences_failed, 0);
    each_completed_once(rig);
    rig_destroy(rig);
}

Test(verbs_more, p18_a_refused_stop_and_a_refused_destroy_are_no_fence)
{
    rig_verbs_leaves_something = true;
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.stops_refused = 1;
    knobs.destroys_refused = 1;
    fake_set(&knobs);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig_turns(rig, 3);
    rig_verbs_ask_fence(&rig->source, 0, 5);
    settle(rig);
    rig_turns(rig, 200);
    cr_assert_eq(rig->source.fenced_count, 0);
    cr_assert_eq(counts_of(&rig->source).fences_failed, 1);
    rig_destroy(rig);
}

Test(verbs_more, p18_a_refused_deregistration_is_told_and_may_be_tried_again)
{
    struct rig *rig = rig_with(64, 1);
    struct kvf_verbs_memory *memory = NULL;
    static unsigned char bytes[8192];
    struct kvf_transport *t = rig_verbs_transport(&rig->sink);
    cr_assert_eq(kvf_verbs_register(t, bytes, sizeof(bytes), -1, 0, &memory), 0);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.deregs_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_unregister(t, memory), -EINVAL);
    cr_assert_eq(kvf_verbs_unregister(t, memory), 0);
    rig_destroy(rig);
}

/* The queue pair is in ERR, its completions are all in, and a packet is still being copied. */
Test(verbs_more, p20_a_fence_answers_behind_the_destroy_and_not_behind_the_stop)
{
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    rig_post(rig, 0, 9, 1, 0, 0, 0, 1);
    rig->kind->ops->poll(rig->source.transport);
    fake_advance(fake_now_ns());
    fake_get(&knobs);
    fake_advance(fake_now_ns() + knobs.delay_ns); /* it arrives: being copied, not there */
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    fence(rig, &rig->sink, 5);
    uint64_t landed = rig_touched_bytes(rig, 0, 0, 64);
    cr_assert_eq(landed, 4096, "the copy ended before the fence answered");
    rig_paint(rig, 0, 0, 64);
    advance(10000000);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    rig_destroy(rig);
}

Test(verbs_more, p20_while_the_destroy_has_not_returned_there_is_no_fence)
{
    struct rig *rig = rig_with(64, 1);
    struct fake_knobs knobs;
    struct fake_counts counts;
    fake_get(&knobs);
    knobs.is_gated = true;
    fake_set(&knobs);
    rig_verbs_ask_fence(&rig->sink, 0, 5);
    for (uint32_t i = 0; i < 2; i++) { /* at the stop, then at the destroy */
        do {
            rig->kind->ops->poll(rig->sink.transport);
            usleep(50);
            fake_counts(&counts);
        } while (counts.gated == 0);
        settle(rig);
        cr_assert_eq(rig->sink.fenced_count, 0);
        cr_assert(qp_of(&rig->sink).exists);
        fake_get(&knobs);
        knobs.is_gated = false;
        fake_set(&knobs);
        while (counts.gated != 0) {
            fake_counts(&counts);
        }
        knobs.is_gated = i == 0;
        fake_set(&knobs);
    }
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 1);
    rig_destroy(rig);
}

/* A device's destroy waits for events that were taken and not acknowledged. */
Test(verbs_more, p42_events_do_not_stand_in_a_fences_way)
{
    struct rig *rig = rig_with(64, 1);
    fake_qp_break(RIG_SINK_DEVICE, rig_verbs_lane_end(&rig->sink, 0)->qpn, true);
    fake_event(RIG_SOURCE_DEVICE, IBV_EVENT_QP_ACCESS_ERR,
               rig_verbs_lane_end(&rig->source, 0)->qpn);
    rig_turns(rig, 3);
    cr_assert_eq(rig->sink.lost_count, 1, "once, though completions say it too");
    cr_assert_eq(rig->source.lost_count, 1);
    rig_verbs_ask_fence(&rig->sink, 0, 5);
    rig_verbs_ask_fence(&rig->source, 0, 5);
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 1);
    cr_assert_eq(rig->source.fenced_count, 1);
    rig_destroy(rig);
}

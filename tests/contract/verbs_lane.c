/* Lanes of transport verbs: how they begin and end, what a post becomes, what devices have to tell. Over fake
 * devices. */
#include <criterion/criterion.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/contract/rig_verbs.h"

static void skip_over_real_devices(void)
{
    const char *reason = rig_verbs_is_real();
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

TestSuite(verbs_lane, .init = skip_over_real_devices);

static const uint32_t plane_4k[] = {4096};

static struct rig *rig_bare(void)
{
    struct rig_options options = rig_defaults();
    return rig_create(&rig_verbs_kind, &options);
}

static struct rig *rig_with(uint32_t pages, uint32_t planes)
{
    struct rig *rig = rig_bare();
    rig_region(rig, 0, pages, planes, plane_4k, 1, 0);
    rig_grant(rig, 1, 0, 0, pages);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 5), 0);
    return rig;
}

static void each_completed_once(const struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], 1, "post %u completed %u times", i,
                     rig->source.completed[i]);
    }
}

static void settle(struct rig *rig)
{
    for (uint32_t i = 0; i < 50; i++) {
        rig->kind->ops->poll(rig->source.transport);
        rig->kind->ops->poll(rig->sink.transport);
        usleep(200);
    }
}

static struct fake_qp_view qp_of(const struct rig_end *end, uint32_t lane)
{
    bool is_sink = end == &end->rig->sink;
    struct fake_qp_view view;
    fake_qp(is_sink ? RIG_SINK_DEVICE : RIG_SOURCE_DEVICE, rig_verbs_lane_end(end, lane)->qpn,
            &view);
    return view;
}

static void move_all(struct rig *rig, uint32_t lane, uint32_t pages)
{
    uint64_t seen = rig_count(&rig->sink, RIG_MARKER);
    rig_post(rig, lane, 9, 1, 0, 0, 0, pages);
    rig_mark(rig, lane, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, seen + 1));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, pages), 0);
}

/* ---- beginning ----------------------------------------------------------------------------------------------- */

Test(verbs_lane, a_source_lets_nobody_reach_its_memory_and_a_sink_lets_write)
{
    struct rig *rig = rig_with(4, 1);
    cr_assert_eq(qp_of(&rig->source, 0).access, 0);
    cr_assert_eq(qp_of(&rig->sink, 0).access, IBV_ACCESS_REMOTE_WRITE);
    cr_assert_eq(qp_of(&rig->sink, 0).receives, rig_verbs_config.receives_per_lane + 16);
    cr_assert_eq(qp_of(&rig->source, 0).receives, 0);
    rig_destroy(rig);
}

Test(verbs_lane, the_smaller_mtu_of_the_two_ends_counts)
{
    struct rig *rig = rig_with(4, 1);
    cr_assert_eq(qp_of(&rig->source, 0).mtu_bytes, 4096);
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 5, NULL), 0);
    cr_assert(rig_verbs_wait_ready(&rig->sink, 1));
    struct kvf_lane_end end = *rig_verbs_lane_end(&rig->sink, 1);
    end.mtu_bytes = 512;
    cr_assert_eq(rig_verbs_open(&rig->source, 1, 5, &end), 0);
    cr_assert(rig_verbs_wait_ready(&rig->source, 1));
    cr_assert_eq(qp_of(&rig->source, 1).mtu_bytes, 512);
    rig_destroy(rig);
}

/* What a peer says of its end is a stranger's word. */
Test(verbs_lane, an_end_that_cannot_be_is_refused)
{
    struct rig *rig = rig_with(4, 1);
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 5, NULL), 0);
    cr_assert(rig_verbs_wait_ready(&rig->sink, 1));
    struct kvf_transport *sink = rig_verbs_transport(&rig->sink);
    for (uint32_t i = 0; i < 7; i++) {
        struct kvf_lane_end end = *rig_verbs_lane_end(&rig->source, 0);
        switch (i) {
        case 0:
            end.qpn = 0;
            break;
        case 1:
            end.qpn = 1u << 24;
            break;
        case 2:
            end.psn = 1u << 24;
            break;
        case 3:
            end.mtu_bytes = 0;
            break;
        case 4:
            end.mtu_bytes = 3000;
            break;
        case 5:
            memset(end.gid, 0, sizeof(end.gid));
            break;
        case 6:
            end.rail = KVF_WIRE_KEYS_MAX;
            break;
        }
        cr_assert_eq(rig_verbs_open(&rig->source, 1, 5, &end), -EPROTO, "end %u", i);
        cr_assert_eq(kvf_verbs_ops.join(sink, 1, 5, &end), -EPROTO, "end %u", i);
    }
    const struct kvf_lane_end *good = rig_verbs_lane_end(&rig->source, 0);
    cr_assert_eq(kvf_verbs_ops.join(sink, 1, 4, good), -ENOTCONN, "another epoch");
    cr_assert_eq(kvf_verbs_ops.join(sink, 0, 5, good), -ENOTCONN, "joined already");
    cr_assert_eq(kvf_verbs_ops.join(sink, 2, 5, good), -ENOTCONN, "no lane");
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 6, NULL), -EBUSY);
    rig_destroy(rig);
}

Test(verbs_lane, a_lane_that_cannot_be_made_is_lost_once_and_fenced_at_once)
{
    struct rig *rig = rig_with(4, 1);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.makes_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 5, NULL), 0);
    cr_assert(rig_until(rig, rig_is_lost, 0));
    cr_assert_eq(rig_last(&rig->sink, RIG_LOST)->value, ENOMEM);
    rig_turns(rig, 5);
    cr_assert_eq(rig->sink.lost_count, 1);
    rig->kind->ops->fence(rig->sink.transport, 1, 5);
    cr_assert_eq(rig->sink.fenced_count, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 6), 0);
    move_all(rig, 1, 4);
    rig_destroy(rig);
}

/* The queue pair is being made when the fence comes: it is destroyed when it is there, and only then told. */
Test(verbs_lane, a_fence_follows_the_job_that_was_under_way)
{
    struct rig *rig = rig_with(4, 1);
    struct fake_knobs knobs;
    struct fake_counts counts;
    fake_get(&knobs);
    knobs.is_gated = true;
    fake_set(&knobs);
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 5, NULL), 0);
    do {
        usleep(50);
        fake_counts(&counts);
    } while (counts.gated == 0);
    rig_verbs_ask_fence(&rig->sink, 1, 5);
    rig_verbs_ask_fence(&rig->sink, 1, 5);
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 0);
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 6, NULL), -EBUSY);
    knobs.is_gated = false;
    fake_set(&knobs);
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 1);
    fake_counts(&counts);
    cr_assert_eq(rig->sink.up_count, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 6), 0);
    rig_destroy(rig);
}

/* The devices have few slots, so few lanes share a queue; and there is an end to queues. */
Test(verbs_lane, a_lane_that_finds_no_slots_for_its_completions_is_lost)
{
    rig_verbs_config.receives_per_lane = 12000;
    struct rig_options options = rig_defaults();
    options.config.lanes_max = 140;
    struct rig *rig = rig_create(&rig_verbs_kind, &options);
    struct kvf_lane_open open = {.epoch = 5, .accepted_fd = -1};
    for (open.lane = 0; open.lane < 129; open.lane++) {
        cr_assert_eq(kvf_verbs_ops.open(rig_verbs_transport(&rig->sink), &open), 0);
    }
    cr_assert(rig_until(rig, rig_is_lost, 0));
    cr_assert_eq(rig_last(&rig->sink, RIG_LOST)->lane, 128);
    cr_assert_eq(rig_last(&rig->sink, RIG_LOST)->value, ENOBUFS);
    cr_assert_eq(rig->sink.lost_count, 1);
    rig_verbs_ask_fence(&rig->sink, 128, 5);
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 1);
    rig_destroy(rig);
}

/* Addresses come and go, and their indices with them. */
Test(verbs_lane, addresses_are_looked_up_anew_at_each_open)
{
    struct rig *rig = rig_with(4, 1);
    cr_assert_eq(qp_of(&rig->source, 0).sgid_index, 3, "IPv4, RoCE v2");
    uint8_t gid[16];
    memcpy(gid, rig_verbs_lane_end(&rig->source, 0)->gid, 16);
    fake_gid(RIG_SOURCE_DEVICE, 6, gid, IBV_GID_TYPE_ROCE_V2);
    fake_gid(RIG_SOURCE_DEVICE, 3, NULL, IBV_GID_TYPE_ROCE_V2);
    fake_event(RIG_SOURCE_DEVICE, IBV_EVENT_GID_CHANGE, 0);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    cr_assert_eq(qp_of(&rig->source, 1).sgid_index, 6);
    settle(rig);
    cr_assert_eq(rig->source.lost_count, 0, "the address is there, under another index");
    rig_destroy(rig);
}

Test(verbs_lane, lanes_whose_address_went_are_lost)
{
    struct rig *rig = rig_with(4, 1);
    fake_gid(RIG_SOURCE_DEVICE, 3, NULL, IBV_GID_TYPE_ROCE_V2);
    fake_event(RIG_SOURCE_DEVICE, IBV_EVENT_GID_CHANGE, 0);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, EADDRNOTAVAIL);
    cr_assert_eq(rig->sink.lost_count, 0);
    rig_destroy(rig);
}

Test(verbs_lane, infiniband_goes_by_lid)
{
    struct rig *rig = rig_bare();
    rig_destroy(rig);
    fake_port(RIG_SOURCE_DEVICE, IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND, 11);
    fake_port(RIG_SINK_DEVICE, IBV_PORT_ACTIVE, IBV_LINK_LAYER_INFINIBAND, 12);
    rig_verbs_keeps_fake = true;
    rig = rig_with(64, 1);
    cr_assert_eq(qp_of(&rig->source, 0).dlid, 12);
    cr_assert_eq(qp_of(&rig->sink, 0).dlid, 11);
    cr_assert_not(qp_of(&rig->source, 0).is_global);
    move_all(rig, 0, 64);
    rig_destroy(rig);
}

Test(verbs_lane, lanes_take_turns_over_the_rails_and_each_uses_its_own_keys)
{
    rig_verbs_rails = 2;
    struct rig *rig = rig_with(64, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    cr_assert_eq(rig_verbs_lane_end(&rig->sink, 0)->rail, 0);
    cr_assert_eq(rig_verbs_lane_end(&rig->sink, 1)->rail, 1);
    move_all(rig, 0, 64);
    rig_paint(rig, 0, 0, 64);
    move_all(rig, 1, 64);
    rig_destroy(rig);
}

/* ---- what a post becomes --------------------------------------------------------------------------------------- */

static void expect_writes(struct rig *rig, uint32_t pages, uint64_t writes, uint64_t pieces)
{
    struct fake_counts before;
    struct fake_counts after;
    fake_counts(&before);
    move_all(rig, 0, pages);
    fake_counts(&after);
    cr_assert_eq(after.writes - before.writes, writes, "%lu writes",
                 (unsigned long)(after.writes - before.writes));
    cr_assert_eq(after.pieces - before.pieces, pieces, "%lu pieces",
                 (unsigned long)(after.pieces - before.pieces));
    rig_paint(rig, 0, 0, pages);
}

Test(verbs_lane, pages_that_lie_together_are_one_write_a_plane)
{
    struct rig *rig = rig_with(64, 3);
    expect_writes(rig, 32, 3, 3);
    expect_writes(rig, 64, 1, 1); /* whole planes lie behind each other */
    rig_destroy(rig);
}

Test(verbs_lane, pages_with_gaps_are_a_write_each)
{
    struct rig *rig = rig_with(4, 1);
    rig_region(rig, 0, 64, 3, plane_4k, 1, 64);
    rig_grant(rig, 1, 0, 0, 64);
    expect_writes(rig, 10, 30, 30);
    rig_destroy(rig);
}

/* Planes of one page side by side, pages apart at the source and together at the sink, and the other way round. */
static void lay_out(struct rig_end *end, uint64_t stride)
{
    struct rig_region *region = &end->regions[0];
    for (uint32_t i = 0; i < 3; i++) {
        region->planes[i].off = (uint64_t)i * 4096;
        region->planes[i].stride = stride;
    }
}

static void fill_again(struct rig *rig)
{
    /* The pattern of a page is by plane, page and offset: laid out anew, it is written anew. */
    const struct rig_region *region = &rig->source.regions[0];
    static unsigned char copy[3][20][4096];
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t page = 0; page < 20; page++) {
            memcpy(copy[i][page], region->region.base + i * 64u * 4096u + page * 4096u, 4096);
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t page = 0; page < 20; page++) {
            memcpy(region->region.base + region->planes[i].off +
                       page * region->planes[i].stride,
                   copy[i][page], 4096);
        }
    }
}

Test(verbs_lane, planes_of_a_page_that_lie_together_are_one_write)
{
    struct rig *rig = rig_with(64, 3);
    lay_out(&rig->source, 9u * 4096u);
    lay_out(&rig->sink, 9u * 4096u);
    fill_again(rig);
    expect_writes(rig, 10, 10, 10);
    rig_destroy(rig);
}

Test(verbs_lane, what_lies_together_at_the_sink_alone_is_one_write_of_pieces)
{
    struct rig *rig = rig_with(64, 3);
    lay_out(&rig->source, 9u * 4096u);
    lay_out(&rig->sink, 3u * 4096u);
    fill_again(rig);
    expect_writes(rig, 10, 1, 10);
    expect_writes(rig, 20, 2, 20); /* a write has 16 pieces at most */
    rig_destroy(rig);
}

Test(verbs_lane, what_lies_together_at_the_source_alone_is_many_writes)
{
    struct rig *rig = rig_with(64, 3);
    lay_out(&rig->source, 3u * 4096u);
    lay_out(&rig->sink, 9u * 4096u);
    fill_again(rig);
    expect_writes(rig, 10, 10, 10);
    rig_destroy(rig);
}

Test(verbs_lane, no_write_is_larger_than_the_port_takes)
{
    static const uint32_t plane_large[] = {1u << 20};
    struct rig *rig = rig_bare();
    rig_region(rig, 0, 20, 1, plane_large, 1, 0);
    rig_grant(rig, 1, 0, 0, 20);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 5), 0);
    expect_writes(rig, 20, 3, 3); /* 8, 8 and 4 MiB */
    struct fake_counts counts;
    fake_counts(&counts);
    cr_assert_eq(counts.largest_write, 1u << 23);
    rig_destroy(rig);
}

/* One post of 2048 writes, through a queue of 256. */
Test(verbs_lane, a_post_larger_than_the_queue_pair_goes_bit_by_bit)
{
    struct rig *rig = rig_with(4, 1);
    rig_region(rig, 0, 128, 16, plane_4k, 1, 32);
    rig_grant(rig, 1, 0, 0, 128);
    expect_writes(rig, 128, 2048, 2048);
    struct fake_counts counts;
    fake_counts(&counts);
    cr_assert_eq(counts.overruns, 0);
    cr_assert_eq(counts.longest_list, 32);
    rig_destroy(rig);
}

/* ---- strangers' geometry ------------------------------------------------------------------------------------------ */

static void expect_refused(const struct kvf_remote_view *view, const char *what)
{
    struct rig *rig = rig_with(64, 2);
    uint32_t good = rig_post(rig, 0, 9, 1, 0, 0, 0, 1);
    rig->kind->ops->poll(rig->source.transport);
    rig_verbs_lie(rig, view);
    uint32_t bad = rig_post(rig, 0, 9, 1, 0, 8, 8, 8);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_is_lost, 1), "%s", what);
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, EPROTO, "%s", what);
    rig_turns(rig, 10);
    cr_assert_eq(rig->source.status[good], 0, "%s", what);
    cr_assert_eq(rig->source.status[bad], -EPROTO, "%s", what);
    cr_assert_eq(rig_touched_bytes(rig, 0, 1, 63), 0, "%s", what);
    cr_assert_eq(rig->sink.lost_count, 0, "%s: nothing of it left", what);
    rig->kind->ops->fence(rig->source.transport, 0, 5);
    each_completed_once(rig);
    cr_assert_eq(rig->source.status[bad + 1], -ECONNABORTED);
    rig_destroy(rig);
}

Test(verbs_lane, a_peers_geometry_is_checked_at_every_post)
{
    uint32_t keys[1] = {7};
    struct kvf_core_plane planes[3] = {{.off = 0, .stride = 4096, .page_bytes = 4096},
                                       {.off = 1u << 20, .stride = 4096, .page_bytes = 4096},
                                       {.off = 1u << 21, .stride = 4096, .page_bytes = 4096}};
    struct kvf_remote_view good = {.base = 1u << 30,
                                   .keys = keys,
                                   .key_count = 1,
                                   .page_count = 64,
                                   .plane_count = 2,
                                   .planes = planes};
    struct kvf_remote_view view = good;
    view.keys = NULL;
    expect_refused(&view, "a region that is not known");
    view = good;
    view.key_count = 0;
    expect_refused(&view, "no key for the rail");
    view = good;
    view.plane_count = 3;
    expect_refused(&view, "more planes");
    view.plane_count = 1;
    expect_refused(&view, "fewer planes");
    view = good;
    view.page_count = 15;
    expect_refused(&view, "a page too far");
    view.page_count = 8;
    expect_refused(&view, "pages beyond");
    view = good;
    planes[1].page_bytes = 2048;
    expect_refused(&view, "pages of another size");
    planes[1].page_bytes = 4096;
    planes[1].stride = UINT64_MAX / 8;
    expect_refused(&view, "a stride that wraps");
    planes[1].stride = 4096;
    planes[1].off = UINT64_MAX - 4096;
    expect_refused(&view, "an offset that wraps");
    planes[1].off = 0;
    view.base = UINT64_MAX - 4096 * 15;
    expect_refused(&view, "a base that wraps");
}

/* ---- posts taken back ------------------------------------------------------------------------------------------------ */

/* What the device has goes on. What it has not is let go, and an END behind it leaves as DRAIN. */
Test(verbs_lane, a_detach_takes_back_what_the_device_has_not)
{
    struct rig *rig = rig_with(256, 16);
    rig_grant(rig, 2, 0, 0, 256);
    rig->is_sink_stopped = true;
    for (uint32_t i = 0; i < 40; i++) {
        rig_post(rig, 0, i % 2 ? 10 : 9, i % 2 ? 2 : 1, 0, i, i,
                 1); /* 16 writes: 15 posts fit, and a part */
    }
    uint32_t end = rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    uint32_t other = rig_mark(rig, 0, 10, 2, KVF_LANE_END);
    rig_turns(rig, 3);
    rig->kind->ops->detach(rig->source.transport, 0, 9);
    for (uint32_t i = 0; i < 40; i++) {
        cr_assert_eq(rig->source.completed[i], i >= 16 && i % 2 == 0 ? 1u : 0u, "post %u", i);
        cr_assert_eq(rig->source.status[i], i >= 16 && i % 2 == 0 ? -ECANCELED : 0);
    }
    rig->is_sink_stopped = false;
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    each_completed_once(rig);
    cr_assert_eq(rig->source.status[end], -ECANCELED);
    cr_assert_eq(rig->source.status[other], 0);
    for (uint32_t i = 0; i < rig->sink.log_count; i++) {
        const struct rig_event *event = &rig->sink.log[i];
        if (event->kind == RIG_MARKER) {
            cr_assert_eq(event->value, event->handle == 1 ? KVF_LANE_DRAIN : KVF_LANE_END);
        }
    }
    cr_assert_eq(rig_touched_bytes(rig, 0, 16, 1), 0);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 14, 14, 1), 0);
    rig_destroy(rig);
}

/* ---- the sink --------------------------------------------------------------------------------------------------------- */

/* Receives go back in batches; as many markers as there are credits never find the queue empty. */
Test(verbs_lane, markers_without_end_always_find_a_receive)
{
    struct rig *rig = rig_with(64, 1);
    uint32_t batch = rig_verbs_config.receives_per_lane;
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < batch; i++) {
            rig_mark(rig, 0, 9, 1, i % 2 ? KVF_LANE_END : KVF_LANE_DRAIN);
        }
        cr_assert(rig_until(rig, rig_markers_seen, (round + 1) * batch));
    }
    cr_assert(rig_until(rig, rig_all_completed, 0));
    struct fake_counts counts;
    fake_counts(&counts);
    cr_assert_eq(counts.retries, 0);
    cr_assert_eq(counts.refusals_for_want_of_receives, 0);
    rig_destroy(rig);
}

Test(verbs_lane, a_marker_that_finds_no_receive_is_an_error_after_a_while)
{
    struct rig *rig = rig_with(64, 1);
    fake_qp_starve(RIG_SINK_DEVICE, rig_verbs_lane_end(&rig->sink, 0)->qpn);
    rig_mark(rig, 0, 9, 1, KVF_LANE_DRAIN);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig->source.status[0], -EIO);
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 0);
    rig_verbs_ask_fence(&rig->sink, 0, 5);
    settle(rig);
    fake_advance(fake_now_ns() + rig_verbs_config.reap_ns); /* the vanished receives */
    settle(rig);
    cr_assert_eq(rig->sink.fenced_count, 1);
    rig_destroy(rig);
}

Test(verbs_lane, a_marker_that_the_host_refuses_ends_the_lane)
{
    struct rig *rig = rig_with(64, 1);
    struct kvf_post post = {.kind = KVF_LANE_END, .handle = 60};
    post.remote_page_first = rig->source.posted_count++;
    cr_assert_eq(rig->kind->ops->post(rig->source.transport, 0, &post), 0);
    cr_assert(rig_until(rig, rig_is_lost, 0));
    cr_assert_eq(rig_last(&rig->sink, RIG_LOST)->value, EPROTO);
    rig_destroy(rig);
}

/* A fenced epoch's markers are nobody's. */
Test(verbs_lane, markers_that_come_behind_a_fence_are_dropped)
{
    struct rig *rig = rig_with(64, 1);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    rig->kind->ops->poll(rig->source.transport);
    fake_advance(fake_now_ns() + 1000000); /* its completion is in the sink's queue */
    rig->kind->ops->fence(rig->sink.transport, 0, 5);
    cr_assert_eq(rig->sink.fenced_count, 1);
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 0);
    struct kvf_verbs_counts counts;
    kvf_verbs_counts(rig_verbs_transport(&rig->sink), &counts);
    cr_assert_eq(counts.receives_dropped, 1);
    cr_assert_eq(counts.written_off, 0);
    rig_destroy(rig);
}

/* ---- what devices tell --------------------------------------------------------------------------------------------------- */

Test(verbs_lane, a_port_that_goes_down_takes_its_lanes_and_no_others)
{
    rig_verbs_rails = 2;
    struct rig *rig = rig_with(64, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    fake_event(RIG_SOURCE_DEVICE, IBV_EVENT_PORT_ERR, 0);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    rig_turns(rig, 3);
    cr_assert_eq(rig->source.lost_count, 1);
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->lane, 0);
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, ENETDOWN);
    move_all(rig, 1, 64);
    rig_destroy(rig);
}

Test(verbs_lane, a_device_that_dies_takes_all_its_lanes)
{
    struct rig *rig = rig_with(64, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    fake_event(RIG_SINK_DEVICE, IBV_EVENT_DEVICE_FATAL, 0);
    rig_turns(rig, 3);
    cr_assert_eq(rig->sink.lost_count, 2);
    rig_destroy(rig);
}

static bool is_readable(struct rig_end *end)
{
    int fds[KVF_VERBS_FDS_MAX];
    struct pollfd polled[KVF_VERBS_FDS_MAX];
    uint32_t count = kvf_verbs_fds(rig_verbs_transport(end), fds, KVF_VERBS_FDS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        polled[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    return poll(polled, count, 0) > 0;
}

/* A completion between the last poll and the arming wakes nobody, so sleeping is refused; one after it does. */
Test(verbs_lane, p38_nothing_is_slept_over)
{
    struct rig *rig = rig_with(64, 1);
    struct kvf_transport *sink = rig_verbs_transport(&rig->sink);
    while (!kvf_verbs_may_sleep(sink)) {
    }
    cr_assert_not(is_readable(&rig->sink));
    rig_mark(rig, 0, 9, 1, KVF_LANE_DRAIN);
    rig->kind->ops->poll(rig->source.transport);
    fake_advance(fake_now_ns() + 1000000);
    cr_assert(is_readable(&rig->sink), "armed: the completion wakes");
    kvf_verbs_ready(sink);
    cr_assert_not(is_readable(&rig->sink));
    cr_assert_not(kvf_verbs_may_sleep(sink), "it was there before");
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 1);
    cr_assert(kvf_verbs_may_sleep(sink));
    rig_destroy(rig);
}

/* ---- the end, memory, and the start ------------------------------------------------------------------------------------------ */

static uint32_t completed_in_close;

static void count_aborted(struct rig_end *end, uint32_t lane, const struct kvf_post *post,
                          int status)
{
    (void)lane;
    (void)post;
    cr_assert_eq(status, -ECONNABORTED);
    cr_assert_eq(end->fenced_count, 0);
    completed_in_close++;
}

Test(verbs_lane, close_completes_what_is_out)
{
    struct rig *rig = rig_with(256, 16);
    rig->is_sink_stopped = true;
    for (uint32_t i = 0; i < 40; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    rig_turns(rig, 3);
    cr_assert_eq(rig_verbs_open(&rig->sink, 1, 5, NULL), 0); /* and one that is being made */
    completed_in_close = 0;
    rig->source.completed_hook = count_aborted;
    rig_destroy(rig); /* which finds no object of the devices left */
    cr_assert_eq(completed_in_close, 40);
}

Test(verbs_lane, device_memory_is_registered_where_the_device_takes_it)
{
    struct rig *rig = rig_with(4, 1);
    struct kvf_transport *t = rig_verbs_transport(&rig->sink);
    struct kvf_verbs_memory *memory = NULL;
    int fd = memfd_create("device", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, 65536), 0);
    void *address = (void *)(uintptr_t)UINT64_C(0x7000000000);
    cr_assert_eq(kvf_verbs_register(t, address, 65536, fd, 0, &memory), -EOPNOTSUPP);
    cr_assert_null(memory);
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.takes_dmabuf = true;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_register(t, address, 65536, fd, 0, &memory), 0);
    uint64_t base = 0;
    uint32_t keys[KVF_RAILS_MAX];
    uint32_t key_count = 0;
    kvf_verbs_keys(memory, &base, keys, &key_count);
    cr_assert_eq(base, UINT64_C(0x7000000000));
    cr_assert_eq(key_count, 1);
    cr_assert_eq(kvf_verbs_unregister(t, memory), 0);
    close(fd);
    rig_destroy(rig);
}

static uint64_t no_time(void *ctx)
{
    (void)ctx;
    return 0;
}

static int create_with(const struct kvf_verbs_config *verbs, char *why, size_t cap)
{
    struct kvf_transport_config config = rig_defaults().config;
    struct kvf_transport_host host = {.now_fn = no_time};
    struct kvf_transport *t = NULL;
    why[0] = 0;
    int rc = kvf_verbs_create(&config, verbs, &host, fake_lib(), &t, why, cap);
    if (rc == 0) {
        kvf_verbs_ops.close(t);
    } else {
        cr_assert_neq(why[0], 0, "a sentence for %d", rc);
    }
    return rc;
}

Test(verbs_lane, what_cannot_be_is_refused_at_start_with_a_sentence)
{
    char why[200];
    fake_reset();
    struct kvf_verbs_config good = rig_verbs_config;
    good.rail_count = 1;
    (void)snprintf(good.rails[0], sizeof(good.rails[0]), "fake0");
    cr_assert_eq(create_with(&good, why, sizeof(why)), 0);
    struct kvf_verbs_config bad = good;
    bad.retry = 7;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -EINVAL, "p08: for ever");
    bad = good;
    bad.timeout = 0;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -EINVAL, "for ever too");
    bad = good;
    bad.mtu_bytes = 1500;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -EINVAL);
    bad = good;
    bad.rail_count = 0;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -EINVAL);
    bad = good;
    bad.stall_ns = 0;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -EINVAL);
    bad = good;
    bad.port = 2;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -ENOENT);
    bad = good;
    bad.gid[0] = 0x20;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), 0, "it may get that address");
    bad = good;
    (void)snprintf(bad.rails[0], sizeof(bad.rails[0]), "fake9");
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -ENOENT);
    cr_assert_not_null(strstr(why, "fake9"));
    bad = good;
    bad.receives_per_lane = 40000;
    cr_assert_eq(create_with(&bad, why, sizeof(why)), -EINVAL, "more than a queue holds");
    fake_transport(0, IBV_TRANSPORT_IWARP);
    cr_assert_eq(create_with(&good, why, sizeof(why)), -EOPNOTSUPP, "p28");
    fake_transport(0, IBV_TRANSPORT_IB);
    fake_port(0, IBV_PORT_DOWN, IBV_LINK_LAYER_ETHERNET, 0);
    cr_assert_eq(create_with(&good, why, sizeof(why)), 0, "or a link");
    struct fake_counts counts;
    fake_counts(&counts);
    cr_assert_eq(counts.objects, 0);
}

/* Pitfalls of RDMA about accounts, errors and fences of lanes, over soft-RoCE; pNN is the pitfall's number in the list of
 * measurements (README.md has the table). */
#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/verbs/net.h"

TestSuite(pitfalls_lane, .init = net_begin);

static const uint32_t plane_4k[] = {4096};

static void fence_both(struct rig *rig, uint32_t lane, uint32_t epoch)
{
    net_fence(&rig->source, lane, epoch);
    net_fence(&rig->sink, lane, epoch);
}

static void works_again(struct rig *rig, uint32_t lane, uint32_t handle)
{
    uint64_t markers = rig_count(&rig->sink, RIG_MARKER);
    rig_paint(rig, rig->sink.grants[handle].region, 0, 8);
    rig_post(rig, lane, 7, handle, rig->sink.grants[handle].region, 0, 0, 8);
    rig_mark(rig, lane, 7, handle, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, markers + 1));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert_eq(rig_wrong_bytes(rig, rig->sink.grants[handle].region, 0, 0, 8), 0);
}

/* What the sink said of a region, kept beyond that region. */
struct stale {
    struct kvf_core_plane plane;
    uint32_t keys[KVF_RAILS_MAX];
    struct kvf_remote_view view;
};

static void keep_view(struct rig *rig, uint32_t region, struct stale *stale)
{
    stale->plane = rig->sink.regions[region].planes[0];
    stale->view =
        (struct kvf_remote_view){.keys = stale->keys,
                                 .page_count = rig->sink.regions[region].region.page_count,
                                 .plane_count = 1,
                                 .planes = &stale->plane};
    kvf_verbs_keys(rig_verbs_memory(&rig->sink, region), &stale->view.base, stale->keys,
                   &stale->view.key_count);
}

static bool lost_by_both(struct rig *rig, uint64_t lanes)
{
    return rig->source.lost_count >= lanes && rig->sink.lost_count >= lanes;
}

/* ---- accounts ---------------------------------------------------------------------------------------------- */

/* 6: a queue pair that is reset forgets completions, and the accounts never close. A fence goes over ERR. */
Test(pitfalls_lane, p06_the_accounts_of_a_lane_fenced_while_busy_close)
{
    struct rig *rig = net_rig(256, 16);
    for (uint32_t i = 0; i < 100; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    rig_turns(rig, 3);
    fence_both(rig, 0, 5);
    net_each_completed_once(rig);
    net_accounts_are_closed(rig);
    cr_assert_gt(net_counts_of(&rig->source).posted, 16);
    cr_assert_gt(net_counts_of(&rig->sink).posted, 0);
    rig_destroy(rig);
}

static uint64_t any_time(void *ctx)
{
    (void)ctx;
    return 1;
}

/* 8: seven retries are for ever on these devices. They are refused, and six end. */
Test(pitfalls_lane, p08_seven_retries_are_refused_and_six_end)
{
    struct rig_options options = rig_defaults();
    struct kvf_transport *transport = NULL;
    struct kvf_transport_host host = {.ctx = NULL};
    struct kvf_verbs_config verbs = rig_verbs_config;
    char why[200] = "";
    verbs.rail_count = 1;
    (void)snprintf(verbs.rails[0], sizeof(verbs.rails[0]), "rxe0");
    verbs.retry = 7;
    host.now_fn = any_time;
    cr_assert_eq(
        kvf_verbs_create(&options.config, &verbs, &host, NULL, &transport, why, sizeof(why)),
        -EINVAL);
    cr_assert(strstr(why, "for ever") != NULL, "%s", why);

    rig_verbs_real_timeout = 14;
    struct rig *rig = net_rig(4, 1);
    net("cut");
    uint64_t begin_ns = net_now_ns();
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_lt(net_now_ns() - begin_ns, UINT64_C(30000000000), "67 ms, seven times");
    fence_both(rig, 0, 5);
    cr_assert_eq(rig->source.status[0], -EIO);
    rig_destroy(rig);
}

/* 9: a queue pair with nothing to send notices nothing: not a cut network, not the other one's end. Who is alive is
 * asked elsewhere (the control connection); what is told here is that posts stand still, by a time of our own. */
Test(pitfalls_lane, p09_an_idle_lane_notices_nothing_and_a_waiting_one_is_found_by_time)
{
    rig_verbs_real_timeout = 22; /* the device itself would say so after two minutes */
    rig_verbs_config.stall_ns = UINT64_C(2000000000);
    struct rig *rig = net_rig(4, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    net("cut");
    net_fence(&rig->source, 1, 5);
    net_turn_for(rig, UINT64_C(3000000000));
    cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 0);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, ETIMEDOUT);
    cr_assert_eq(rig->sink.lost_count, 0);
    fence_both(rig, 0, 5);
    net_fence(&rig->sink, 1, 5);
    net_each_completed_once(rig);
    rig_destroy(rig);
}

/* 10: a write of no bytes asks nobody for a key, so that it succeeded says nothing about one. An END is such a write, and
 * never follows a write that was refused. */
Test(pitfalls_lane, p10_no_end_comes_behind_a_write_that_was_refused)
{
    struct rig *rig = net_rig(8, 1);
    struct stale stale;
    keep_view(rig, 0, &stale);
    stale.keys[0] ^= 0x5a5a00;
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1), "no key is asked for it");
    rig_verbs_lie(rig, &stale.view);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, lost_by_both, 1));
    rig_turns(rig, 20);
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 1);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 8), 0);
    fence_both(rig, 0, 5);
    net_each_completed_once(rig);
    cr_assert_eq(rig->source.status[1], -EIO);
    cr_assert_eq(rig->source.status[2], -ECONNABORTED);
    rig_verbs_lie(rig, NULL);
    net_accounts_are_closed(rig);
    rig_destroy(rig);
}

/* 11: most work requests ask for no completion. After an error each of them has one all the same, and is counted once; so
 * are those before it, which have none. */
Test(pitfalls_lane, p11_unsignalled_requests_before_and_behind_an_error_count_once)
{
    struct rig *rig = net_rig(64, 1);
    struct stale stale;
    keep_view(rig, 0, &stale);
    stale.keys[0] ^= 0x5a5a00;
    net("delay forth 2s"); /* all are posted before the first is answered */
    for (uint32_t i = 0; i < 41; i++) {
        if (i == 20 || i == 21) {
            rig->kind->ops->poll(rig->source.transport);
            rig_verbs_lie(rig, i == 20 ? &stale.view : NULL);
        }
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    cr_assert(rig_until(rig, lost_by_both, 1));
    fence_both(rig, 0, 5);
    net_each_completed_once(rig);
    for (uint32_t i = 0; i < 41; i++) {
        cr_assert_eq(rig->source.status[i],
                     i < 20    ? 0
                     : i == 20 ? -EIO
                               : -ECONNABORTED,
                     "post %u: %d", i, rig->source.status[i]);
    }
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 20), 0);
    cr_assert_eq(rig_touched_bytes(rig, 0, 20, 44), 0);
    net_accounts_are_closed(rig);
    cr_assert_eq(net_counts_of(&rig->source).posted, 41);
    rig_destroy(rig);
}

/* 12: lanes with full queues, more than one completion queue holds, fail together while nobody looks. There is a slot for
 * every request, signalled or not. */
Test(pitfalls_lane, p12_every_request_of_every_lane_has_a_slot_when_all_fail_at_once)
{
    enum { LANES = 17 };
    struct rig *rig = net_rig(32, 16);
    for (uint32_t lane = 1; lane < LANES; lane++) {
        cr_assert_eq(rig->kind->lane_open(rig, lane, 5), 0);
    }
    net("cut-forth");
    for (uint32_t lane = 0; lane < LANES; lane++) {
        for (uint32_t i = 0; i < 20; i++) {
            rig_post(rig, lane, 9, 1, 0, i, i, 1); /* 16 writes */
        }
    }
    rig->kind->ops->poll(rig->source.transport);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        rig_verbs_ask_fence(&rig->source, lane, 5);
    }
    usleep(1000000); /* the queue pairs' thread stops them all, and the completions pile up */
    while (rig->source.fenced_count < LANES) {
        rig_turn(rig, true);
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        net_fence(&rig->sink, lane, 5);
    }
    net_each_completed_once(rig);
    net_accounts_are_closed(rig);
    cr_assert_eq(net_counts_of(&rig->source).posted, LANES * 255);
    rig_destroy(rig);
}

/* 14: a queue has more places than were asked for (511 for 256 here). No more is posted than was asked for, as that is what
 * completion queues have slots for; and one place is the marker's. */
Test(pitfalls_lane, p14_no_more_is_posted_than_was_asked_for)
{
    struct rig *rig = net_rig(1024, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    net("cut-forth");
    for (uint32_t i = 0; i < 255; i++) {
        rig_post(rig, 0, 9, 1, 0, 2 * i, 2 * i, 1);
    }
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    for (uint32_t i = 0; i < 300; i++) {
        rig_post(rig, 1, 9, 1, 0, 2 * i, 2 * i, 1);
    }
    rig_turns(rig, 5);
    fence_both(rig, 0, 5);
    cr_assert_eq(net_counts_of(&rig->source).posted, 256, "the marker waits for no place");
    fence_both(rig, 1, 5);
    cr_assert_eq(net_counts_of(&rig->source).posted, 256 + 255);
    net_each_completed_once(rig);
    net_accounts_are_closed(rig);
    rig_destroy(rig);
}

/* 15: a queue pair in ERR sends no LAST_WQE_REACHED, QP_FATAL or SQ_DRAINED here. No fence waits for one, and the receives
 * it flushes are all counted. */
Test(pitfalls_lane, p15_no_fence_waits_for_an_event)
{
    enum { LANES = 8 };
    struct rig *rig = net_rig(8, 1);
    for (uint32_t lane = 1; lane < LANES; lane++) {
        cr_assert_eq(rig->kind->lane_open(rig, lane, 5), 0);
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        fence_both(rig, lane, 5);
    }
    rig_turns(rig, 5);
    cr_assert_eq(net_counts_of(&rig->sink).events_other, 0);
    cr_assert_eq(net_counts_of(&rig->source).events_other, 0);
    net_accounts_are_closed(rig);
    cr_assert_geq(net_counts_of(&rig->sink).posted, LANES * 64);
    rig_destroy(rig);
}

/* ---- keys ---------------------------------------------------------------------------------------------------- */

/* 16: taking one room's memory away while its write is under way costs the lane, and with it what other rooms have on it. (So
 * the product takes no room's key away: it fences.) Other lanes go on. */
Test(pitfalls_lane, p16_memory_taken_from_a_write_under_way_costs_the_rooms_of_its_lane_alone)
{
    struct rig *rig = net_rig(8, 1);
    rig_region(rig, 1, 64, 1, plane_4k, 1, 0);
    rig_grant(rig, 2, 1, 0, 64);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    net("delay forth 3s");
    rig_post(rig, 0, 9, 1, 0, 0, 0, 8);
    uint32_t other = rig_post(rig, 0, 10, 2, 1, 0, 0, 64);
    rig->kind->ops->poll(rig->source.transport);
    cr_assert_gt(net_count("forth").queued, 0, "the machine was too slow for this test");
    rig_region(rig, 0, 8, 1, plane_4k, 1, 0); /* the sink's memory is another from now on */
    net("clear");
    cr_assert(rig_until(rig, lost_by_both, 1));
    fence_both(rig, 0, 5);
    cr_assert_eq(rig->source.status[other], -ECONNABORTED);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 8), 0);
    cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 2, "lane 0 at both ends");
    works_again(rig, 1, 2);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 6), 0);
    works_again(rig, 0, 2);
    rig_destroy(rig);
}

/* 17: a slow writer uses a key that is gone. Its lane ends, at both ends, and no other. */
Test(pitfalls_lane, p17_a_key_that_is_gone_ends_the_lane_that_uses_it_alone)
{
    struct rig *rig = net_rig(8, 1);
    struct stale stale;
    rig_region(rig, 1, 8, 1, plane_4k, 1, 0);
    rig_grant(rig, 2, 1, 0, 8);
    for (uint32_t lane = 1; lane < 3; lane++) {
        cr_assert_eq(rig->kind->lane_open(rig, lane, 5), 0);
    }
    keep_view(rig, 0, &stale);
    rig_region(rig, 0, 8, 1, plane_4k, 1, 0);
    rig_verbs_lie(rig, &stale.view);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    cr_assert(rig_until(rig, lost_by_both, 1));
    rig_verbs_lie(rig, NULL);
    for (uint32_t lane = 1; lane < 3; lane++) {
        works_again(rig, lane, 2);
    }
    cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 2);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 8), 0);
    fence_both(rig, 0, 5);
    cr_assert_eq(net_counts_of(&rig->source).written_off, 0);
    rig_destroy(rig);
}

/* ---- fences --------------------------------------------------------------------------------------------------- */

/* 19: a queue pair with a bound memory window takes 52 s to destroy here. There is none: a fence in the middle of a write
 * answers soon. */
Test(pitfalls_lane, p19_a_fence_in_the_middle_of_a_write_is_soon_over)
{
    struct rig *rig = net_rig(256, 16);
    for (uint32_t i = 0; i < 16; i++) {
        rig_post(rig, 0, 9, 1, 0, 16 * i, 16 * i, 16);
    }
    rig_turns(rig, 2);
    uint64_t begin_ns = net_now_ns();
    net_fence(&rig->sink, 0, 5);
    uint64_t took_ns = net_now_ns() - begin_ns;
    cr_assert_lt(took_ns, UINT64_C(20000000000), "%lu ms", took_ns / 1000000);
    net_fence(&rig->source, 0, 5);
    net_each_completed_once(rig);
    rig_destroy(rig);
}

#define HAMMER_PAGES 16u
#define HAMMER_ROUNDS 60u
static unsigned char snapshot[HAMMER_PAGES * 4096];
static uint32_t snapshots;

static void take_snapshot(struct rig_end *end, uint32_t lane)
{
    (void)lane;
    snapshots++;
    memcpy(snapshot, end->regions[0].region.base, sizeof(snapshot));
}

/* One write of one page after the other, each with other bytes than its page had, as fast as they go. */
static void hammer(struct rig *rig, uint32_t *next)
{
    while (rig->source.posted_count - rig->source.completed_count < 128 &&
           rig->source.posted_count < RIG_POSTS_MAX &&
           rig->kind->ops->can_post(rig->source.transport, 0)) {
        rig_post(rig, 0, 9, 1, 0, *next % 255, *next % HAMMER_PAGES, 1);
        (*next)++;
    }
    rig_turn(rig, false);
}

/* 20: a modify to ERR that returned, or an access flag taken away, lets a packet land that is being copied. What the fence
 * answers behind is strict: in no round a byte changes after it. */
Test(pitfalls_lane, p20_no_byte_changes_after_the_answer_of_a_fence_under_full_load)
{
    struct rig *rig = net_rig(255, 1);
    uint32_t next = 0;
    uint32_t changed = 0;
    uint64_t landed = 0;
    for (uint32_t round = 0; round < HAMMER_ROUNDS; round++) {
        uint64_t deadline_ns = net_now_ns() + UINT64_C(60000000000);
        uint32_t enough = 20u + round % 50u;
        rig_paint(rig, 0, 0, HAMMER_PAGES);
        while (rig->source.completed_count < enough) {
            cr_assert_lt(net_now_ns(), deadline_ns);
            hammer(rig, &next);
        }
        snapshots = 0;
        rig->sink.fenced_hook = take_snapshot;
        rig_verbs_ask_fence(&rig->sink, 0, 5 + round);
        while (snapshots == 0) {
            cr_assert_lt(net_now_ns(), deadline_ns);
            hammer(rig, &next);
        }
        usleep(3000);
        changed += memcmp(snapshot, rig->sink.regions[0].region.base, sizeof(snapshot)) != 0;
        rig->sink.fenced_hook = NULL;
        net_fence(&rig->source, 0, 5 + round);
        net_each_completed_once(rig);
        landed += rig_touched_bytes(rig, 0, 0, HAMMER_PAGES);
        rig_forget(rig);
        cr_assert_eq(rig->kind->lane_open(rig, 0, 6 + round), 0);
    }
    fprintf(stderr, "p20: %u of %u rounds changed after the fence, %lu bytes had landed\n",
            changed, HAMMER_ROUNDS, landed);
    cr_assert_eq(changed, 0);
    cr_assert_gt(landed, 0);
    rig_destroy(rig);
}

/* ---- events and links ------------------------------------------------------------------------------------------ */

static bool link_is_active(const char *device)
{
    char path[100];
    char state[32] = "";
    (void)snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state", device);
    FILE *stream = fopen(path, "re");
    cr_assert(stream != NULL);
    cr_assert(fgets(state, sizeof(state), stream) != NULL);
    fclose(stream);
    return strstr(state, "ACTIVE") != NULL;
}

static void wait_for_link(struct rig *rig, const char *device, bool is_active)
{
    uint64_t deadline_ns = net_now_ns() + UINT64_C(60000000000);
    while (link_is_active(device) != is_active) {
        cr_assert_lt(net_now_ns(), deadline_ns, "%s", device);
        rig_turn(rig, true);
    }
}

/* 42: an event that was taken and not acknowledged makes a destroy wait for ever. A link that comes and goes sends several:
 * all are taken, and neither fences nor the close of the device wait. (Of a queue pair or a completion queue these devices
 * send none that the product can provoke: contract/verbs_more.c has those.) */
Test(pitfalls_lane, p42_events_of_a_link_that_comes_and_goes_stand_in_no_fences_way)
{
    struct rig *rig = net_rig(8, 1);
    uint32_t epoch = 5;
    for (; epoch < 8; epoch++) {
        net("link-down rxe1");
        wait_for_link(rig, "rxe1", false);
        cr_assert(rig_until(rig, rig_is_lost, 0));
        net("link-up rxe1");
        wait_for_link(rig, "rxe1", true);
        fence_both(rig, 0, epoch);
        rig->sink.lost_count = 0;
        rig_turns(rig, 10);
        cr_assert_eq(rig->kind->lane_open(rig, 0, epoch + 1), 0);
    }
    cr_assert_gt(net_counts_of(&rig->sink).events_other, 0, "the link came back");
    works_again(rig, 0, 1);
    fence_both(rig, 0, epoch);
    net_accounts_are_closed(rig);
    rig_destroy(rig);
}

/* 43: while a link is down these devices fail at once what others would repeat. Either way the lane is lost, fenced, refused
 * while the port is down, and opens again with the same devices when the link is back. */
Test(pitfalls_lane, p43_a_lane_over_a_link_that_went_down_is_lost_and_opens_again)
{
    struct rig *rig = net_rig(8, 1);
    net("link-down rxe0");
    wait_for_link(rig, "rxe0", false);
    if (rig->source.lost_count == 0) {
        rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    }
    cr_assert(rig_until(rig, rig_is_lost, 1));
    fence_both(rig, 0, 5);
    net_each_completed_once(rig);
    cr_assert_eq(rig_verbs_open(&rig->source, 0, 6, rig_verbs_lane_end(&rig->sink, 0)), 0);
    rig->source.lost_count = 0;
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, ENETDOWN);
    net_fence(&rig->source, 0, 6);
    net("link-up rxe0");
    wait_for_link(rig, "rxe0", true);
    rig_turns(rig, 10);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 7), 0);
    works_again(rig, 0, 1);
    rig_destroy(rig);
}

/* ---- many rounds ------------------------------------------------------------------------------------------------- */

static uint32_t count_descriptors(void)
{
    uint32_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    cr_assert(dir != NULL);
    while (readdir(dir) != NULL) {
        count++;
    }
    closedir(dir);
    return count;
}

/* What the kernel keeps for both devices: "0: rxe0: pd 1 cq 2 qp 3 cm_id 0 mr 1 ctx 1". */
static void describe_objects(char *ret_text, size_t cap)
{
    FILE *stream = popen("rdma resource show", "re");
    cr_assert(stream != NULL);
    size_t count = fread(ret_text, 1, cap - 1, stream);
    ret_text[count] = 0;
    cr_assert_eq(pclose(stream), 0);
    cr_assert(strstr(ret_text, "mr ") != NULL, "%s", ret_text);
}

/* A round: connect, write, mark, fence at both ends. Every tenth under registrations of its own. */
static void round_once(struct rig *rig, uint32_t epoch)
{
    if (epoch % 10 == 0) {
        rig_region(rig, 0, 16, 1, plane_4k, 1, 0);
    }
    cr_assert_eq(rig->kind->lane_open(rig, 0, epoch), 0, "round %u", epoch);
    uint64_t markers = rig_count(&rig->sink, RIG_MARKER);
    rig_post(rig, 0, 9, 1, 0, epoch % 8, epoch % 8, 4);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, markers + 1), "round %u", epoch);
    cr_assert(rig_until(rig, rig_all_completed, 0));
    fence_both(rig, 0, epoch);
    net_each_completed_once(rig);
    rig_forget(rig);
}

Test(pitfalls_lane, a_thousand_rounds_leave_nothing_behind)
{
    char before[400];
    char after[400];
    struct rig *rig = net_rig(16, 1);
    fence_both(rig, 0, 5);
    for (uint32_t epoch = 6; epoch < 16; epoch++) {
        round_once(rig, epoch);
    }
    uint32_t descriptors = count_descriptors();
    describe_objects(before, sizeof(before));
    for (uint32_t epoch = 16; epoch < 1016; epoch++) {
        round_once(rig, epoch);
    }
    describe_objects(after, sizeof(after));
    cr_assert_eq(count_descriptors(), descriptors);
    cr_assert_str_eq(after, before);
    net_accounts_are_closed(rig);
    cr_assert_eq(net_counts_of(&rig->sink).queue_pairs_made, 1011);
    rig_destroy(rig);
}

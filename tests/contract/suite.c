/* T1, T2, T3: completions, order, fences. The others are in suite_bytes.c. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/contract/suite.h"

static const uint32_t kv_planes[] = {4096};

static struct rig *rig_with_pages(const struct rig_kind *kind, uint32_t pages, uint32_t planes)
{
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, pages, planes, kv_planes, 1, 0);
    rig_grant(rig, 1, 0, 0, pages);
    cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
    return rig;
}

static void skip_if(const char *reason)
{
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

static void assert_each_completed_once(const struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], 1, "post %u completed %u times", i,
                     rig->source.completed[i]);
    }
    cr_assert_eq(rig->source.completed_count, rig->source.posted_count);
}

/* Fills the lane until the transport can take no more bytes: then some post is half out. */
static uint32_t post_until_stuck(struct rig *rig, uint64_t cookie, uint32_t handle,
                                 uint32_t pages)
{
    uint32_t posts = 0;
    rig->is_sink_stopped = true;
    for (uint32_t round = 0; round < 200; round++) {
        if (rig->source.posted_count - rig->source.completed_count < 8) {
            for (uint32_t i = 0; i < 8; i++) {
                rig_post(rig, 0, cookie, handle, 0, (posts * 4u) % pages, (posts * 4u) % pages,
                         4);
                posts++;
            }
        }
        rig_turn(rig, false);
    }
    cr_assert_lt(rig->source.completed_count, rig->source.posted_count,
                 "the lane never filled");
    return posts;
}

void contract_t1_every_post_completes_once_when_nothing_fails(const struct rig_kind *kind)
{
    struct rig *rig = rig_with_pages(kind, 256, 16);
    for (uint32_t i = 0; i < 256; i++) {
        rig_post(rig, 0, 9, 1, 0, i, i, 1);
    }
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.status[i], 0);
    }
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 256), 0);
    cr_assert_eq(rig->sink.grants[1].placed_bytes, 256u * 16u * 4096u);
    rig_destroy(rig);
}

void contract_t1_every_post_completes_once_through_a_fence(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    uint32_t posts = post_until_stuck(rig, 9, 1, 256);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    uint32_t before = rig->source.completed_count;
    kind->ops->fence(rig->source.transport, 0, 5);
    cr_assert_eq(rig->source.fenced_count, 1);
    assert_each_completed_once(rig);
    cr_assert_eq(rig->source.status[posts], -ECONNABORTED);
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        int want = i < before ? 0 : -ECONNABORTED;
        cr_assert_eq(rig->source.status[i], want);
    }
    cr_assert_not(kind->ops->can_post(rig->source.transport, 0));
    rig_turns(rig, 20);
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

void contract_t1_every_post_completes_once_through_a_detach(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    skip_if(kind->calls_none_back);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    rig_grant(rig, 2, 0, 0, 256);
    post_until_stuck(rig, 9, 1, 256);
    uint32_t other = rig_post(rig, 0, 10, 2, 0, 8, 8, 4);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
    kind->ops->detach(rig->source.transport, 0, 9);
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], i == other ? 0u : 1u, "post %u", i);
    }
    cr_assert_eq(rig->source.status[other + 1], -ECANCELED);
    rig->is_sink_stopped = false;
    rig_paint(rig, 0, 0, 256);
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    cr_assert_eq(rig->source.status[other], 0);
    kind->ops->detach(rig->source.transport, 0, 9);
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

/* Source memory of one post cannot be read. It and what follows of its grant end with an error, the room
 * beside it is not touched. */
void contract_t1_every_post_completes_once_through_a_read_fault(const struct rig_kind *kind)
{
    skip_if(kind->faults_never);
    struct rig *rig = rig_with_pages(kind, 64, 16);
    rig_region(rig, 1, 64, 16, kv_planes, 1, 0);
    rig_grant(rig, 2, 1, 0, 64);
    int rc = ftruncate(rig->source.regions[0].fd, 10 * 64 * 4096 + 40 * 4096);
    cr_assert_eq(rc, 0); /* plane 10 ends at page 40, the planes behind it are gone */
    uint32_t first = rig_post(rig, 0, 10, 2, 1, 0, 0, 1); /* shares a call with the bad one */
    uint32_t bad = rig_post(rig, 0, 9, 1, 0, 0, 0, 2);
    rig_post(rig, 0, 9, 1, 0, 2, 2, 2);
    uint32_t good = rig_post(rig, 0, 10, 2, 1, 1, 1, 63);
    uint32_t bad_end = rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    rig_mark(rig, 0, 10, 2, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    cr_assert_eq(rig->source.status[bad], -EFAULT);
    cr_assert_eq(rig->source.status[bad + 1], -ECANCELED);
    cr_assert_eq(rig->source.status[first], 0);
    cr_assert_eq(rig->source.status[good], 0);
    cr_assert_eq(rig->source.status[bad_end], -ECANCELED,
                 "no END behind bytes that were not read");
    cr_assert_eq(rig->source.read_fault_count, 1);
    for (uint32_t i = 0; i < rig->sink.log_count; i++) {
        const struct rig_event *event = &rig->sink.log[i];
        if (event->kind == RIG_MARKER) {
            cr_assert_eq(event->value, event->handle == 1 ? KVF_LANE_DRAIN : KVF_LANE_END);
        }
    }
    cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 64), 0);
    rig_destroy(rig);
}

/* Posts so small that the kernel copies several at once: its answer does not say which one faulted. */
void contract_t1_a_read_fault_blames_its_own_post(const struct rig_kind *kind)
{
    skip_if(kind->faults_never);
    static const uint32_t small[] = {64};
    for (uint32_t ahead = 0; ahead < 5; ahead++) {
        struct rig *rig = rig_with_pages(kind, 64, 1);
        rig_region(rig, 1, 64, 1, small, 1, 0);
        rig_grant(rig, 2, 1, 0, 64);
        cr_assert_eq(ftruncate(rig->source.regions[0].fd, 0), 0);
        for (uint32_t i = 0; i < ahead; i++) {
            rig_post(rig, 0, 10, 2, 1, i, i, 1);
        }
        uint32_t bad = rig_post(rig, 0, 9, 1, 0, 0, 0, 2);
        rig_post(rig, 0, 10, 2, 1, ahead, ahead, 64 - ahead);
        rig_mark(rig, 0, 10, 2, KVF_LANE_END);
        cr_assert(rig_until(rig, rig_markers_seen, 1));
        cr_assert(rig_until(rig, rig_all_completed, 0));
        assert_each_completed_once(rig);
        for (uint32_t i = 0; i < rig->source.posted_count; i++) {
            cr_assert_eq(rig->source.status[i], i == bad ? -EFAULT : 0, "post %u of %u", i,
                         bad);
        }
        cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 64), 0);
        rig_destroy(rig);
    }
}

static uint32_t hooks_run;

static void detach_then_fence_hook(struct rig_end *end, uint32_t lane,
                                   const struct kvf_post *post, int status)
{
    const struct kvf_transport_ops *ops = end->rig->kind->ops;
    (void)status;
    hooks_run++;
    if (hooks_run == 3) {
        ops->detach(end->transport, lane, post->cookie);
    }
    if (hooks_run == 40) {
        ops->fence(end->transport, lane, 5);
        ops->fence(end->transport, lane, 5);
        cr_assert_eq(end->rig->sink.lost_count, 0);
    }
}

static bool source_is_fenced(struct rig *rig, uint64_t arg)
{
    (void)arg;
    return rig->source.fenced_count > 0;
}

/* The core reacts to a completion at once: detach from within one, and a fence, must neither lose a post
 * nor complete one twice. */
void contract_t1_a_callback_may_detach_fence_and_open_again(const struct rig_kind *kind)
{
    struct rig *rig = rig_with_pages(kind, 256, 16);
    rig->source.completed_hook = detach_then_fence_hook;
    hooks_run = 0;
    for (uint32_t i = 0; i < 200; i++) {
        rig_post(rig, 0, i % 2 == 0 ? 9 : 10, 1, 0, i, i, 1);
    }
    cr_assert(rig_until(rig, source_is_fenced, 0));
    assert_each_completed_once(rig);
    kind->ops->fence(rig->sink.transport, 0, 5);
    rig->source.completed_hook = NULL;
    cr_assert_eq(kind->lane_open(rig, 0, 6), 0);
    rig_paint(rig, 0, 0, 256);
    rig_post(rig, 0, 11, 1, 0, 0, 0, 256);
    rig_mark(rig, 0, 11, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 256), 0);
    rig_destroy(rig);
}

void contract_t1_a_full_queue_refuses_and_recovers(const struct rig_kind *kind)
{
    struct rig *rig = rig_with_pages(kind, 64, 1);
    struct kvf_post extra = {.cookie = 9, .kind = KVF_LANE_DATA, .handle = 1, .page_count = 1};
    for (uint32_t i = 0; i < rig->options.config.posts_per_lane_max; i++) {
        cr_assert(kind->ops->can_post(rig->source.transport, 0));
        rig_post(rig, 0, 9, 1, 0, i % 64, i % 64, 1);
    }
    cr_assert_not(kind->ops->can_post(rig->source.transport, 0));
    cr_assert_eq(kind->ops->post(rig->source.transport, 0, &extra), -EAGAIN);
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert(kind->ops->can_post(rig->source.transport, 0));
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert(rig_until(rig, rig_all_completed, 0)); /* of a NIC: behind the marker's ACK */
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

/* Nothing moves on the lane, so room in the queue can only come from the detach itself. */
void contract_t1_a_detach_makes_room_at_once(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    skip_if(kind->calls_none_back);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    rig_grant(rig, 2, 0, 0, 256);
    post_until_stuck(rig, 9, 1, 256);
    uint32_t kept = 0;
    while (kind->ops->can_post(rig->source.transport, 0)) {
        uint32_t number = rig->source.posted_count;
        rig_post(rig, 0, number % 3 ? 9 : 10, number % 3 ? 1 : 2, 0, number % 200, number % 200,
                 1);
        kept += number % 3 == 0;
    }
    kind->ops->detach(rig->source.transport, 0, 9);
    cr_assert(kind->ops->can_post(rig->source.transport, 0));
    cr_assert_eq(rig->source.posted_count - rig->source.completed_count, kept);
    rig->is_sink_stopped = false;
    rig_mark(rig, 0, 9, 1, KVF_LANE_DRAIN);
    rig_mark(rig, 0, 10, 2, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

/* ---- T2 ------------------------------------------------------------------------------------------------ */

void contract_t2_posts_complete_in_order_and_the_marker_is_behind_all_bytes(
    const struct rig_kind *kind)
{
    struct rig *rig = rig_with_pages(kind, 128, 16);
    for (uint32_t i = 2; i < 10; i++) {
        rig_grant(rig, i, 0, 0, 128);
    }
    uint64_t bytes[10] = {0};
    for (uint32_t i = 0; i < 120; i++) {
        uint32_t handle = 1 + i % 9;
        uint32_t pages = 1 + (uint32_t)(rig_random(rig) % 8);
        rig_post(rig, 0, handle, handle, 0, i, i, pages);
        bytes[handle] += pages * 16u * 4096u;
        if (i >= 111) {
            rig_mark(rig, 0, handle, handle, handle % 2 ? KVF_LANE_END : KVF_LANE_DRAIN);
        }
        rig_turn(rig, false);
    }
    cr_assert(rig_until(rig, rig_markers_seen, 9));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    uint32_t next = 0;
    for (uint32_t i = 0; i < rig->source.log_count; i++) {
        if (rig->source.log[i].kind == RIG_COMPLETED) {
            cr_assert_eq(rig->source.log[i].handle, next++);
        }
    }
    for (uint32_t i = 0; i < rig->sink.log_count; i++) {
        const struct rig_event *event = &rig->sink.log[i];
        if (event->kind == RIG_MARKER) {
            cr_assert_eq(event->placed_bytes, bytes[event->handle]);
            cr_assert_eq(event->value, event->handle % 2 ? KVF_LANE_END : KVF_LANE_DRAIN);
        }
    }
    rig_destroy(rig);
}

/* The sink waits for exactly one marker. If a detach swallowed it, a healthy lane would have to be fenced. */
void contract_t2_a_detached_end_leaves_as_drain(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    rig_grant(rig, 2, 0, 0, 256);
    post_until_stuck(rig, 9, 1, 256);
    uint32_t end = rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    uint32_t drain = rig_mark(rig, 0, 10, 2, KVF_LANE_DRAIN);
    kind->ops->detach(rig->source.transport, 0, 9);
    kind->ops->detach(rig->source.transport, 0, 10);
    rig->is_sink_stopped = false;
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    cr_assert_eq(rig->source.status[end], -ECANCELED);
    cr_assert_eq(rig->source.status[drain], 0);
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 2);
    cr_assert_eq(rig_last(&rig->sink, RIG_MARKER)->value, KVF_LANE_DRAIN);
    cr_assert_eq(rig_last(&rig->sink, RIG_MARKER)->handle, 2);
    for (uint32_t i = 0; i < rig->sink.log_count; i++) {
        cr_assert(rig->sink.log[i].kind != RIG_MARKER ||
                  rig->sink.log[i].value == KVF_LANE_DRAIN);
    }
    rig_destroy(rig);
}

/* ---- T3 ------------------------------------------------------------------------------------------------ */

/* A reader that stood still while its buffers filled fences, and its pages get canaries. A writer that
 * knows nothing of it goes on. */
void contract_t3_nothing_lands_after_the_sink_fenced(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 64);
    rig_turns(rig, 3);
    post_until_stuck(rig, 9, 1, 256);
    kind->ops->fence(rig->sink.transport, 0, 5);
    cr_assert_eq(rig->sink.fenced_count, 1);
    rig_paint(rig, 0, 0, 256);
    uint64_t placed = rig->sink.grants[1].placed_bytes;
    uint64_t asked = rig->sink.grants[1].places_asked;
    rig->is_sink_stopped = false;
    for (uint32_t i = 0; i < 50; i++) {
        if (kind->ops->can_post(rig->source.transport, 0)) {
            rig_post(rig, 0, 9, 1, 0, 0, 0, 4);
        }
        rig_turn(rig, true);
    }
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 256), 0);
    cr_assert_eq(rig->sink.grants[1].placed_bytes, placed);
    cr_assert_eq(rig->sink.grants[1].places_asked, asked);
    cr_assert_eq(rig->sink.lost_count, 0, "a fenced lane says no more");
    cr_assert_eq(rig->source.lost_count, 1, "the writer hears of it");
    kind->ops->fence(rig->source.transport, 0, 5);
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

/* The pages of a fenced source get another tenant's bytes, and none of those may reach the sink. */
void contract_t3_nothing_is_read_from_pages_after_the_source_fenced(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    post_until_stuck(rig, 9, 1, 256);
    kind->ops->fence(rig->source.transport, 0, 5);
    memset(rig->source.regions[0].region.base, 0xee, rig->source.regions[0].bytes);
    rig->is_sink_stopped = false;
    rig_turns(rig, 50);
    const unsigned char *at = rig->sink.regions[0].region.base;
    for (size_t i = 0; i < rig->sink.regions[0].bytes; i += 4096) {
        uint32_t run = 0;
        while (run < 64 && at[i + run] == 0xee) {
            run++;
        }
        cr_assert_lt(run, 64, "bytes of the next tenant at %zu", i);
    }
    cr_assert_eq(rig->sink.lost_count, kind->hears_no_end == NULL ? 1 : 0);
    rig_destroy(rig);
}

void contract_t3_all_completions_come_before_fenced(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    struct rig *rig = rig_with_pages(kind, 256, 16);
    post_until_stuck(rig, 9, 1, 256);
    kind->ops->fence(rig->source.transport, 0, 5);
    cr_assert_eq(rig->source.log[rig->source.log_count - 1].kind, RIG_FENCED);
    cr_assert_eq(rig->source.completed_count, rig->source.posted_count);
    uint32_t next = 0;
    for (uint32_t i = 0; i < rig->source.log_count; i++) {
        if (rig->source.log[i].kind == RIG_COMPLETED) {
            cr_assert_eq(rig->source.log[i].handle, next++, "in order");
        }
    }
    rig_destroy(rig);
}

void contract_t3_a_fence_of_another_epoch_answers_and_harms_nothing(const struct rig_kind *kind)
{
    struct rig *rig = rig_with_pages(kind, 64, 16);
    kind->ops->fence(rig->sink.transport, 0, 4);
    kind->ops->fence(rig->source.transport, 0, 4);
    kind->ops->fence(rig->source.transport, 3, 1);
    cr_assert_eq(rig->sink.fenced_count, 1);
    cr_assert_eq(rig->source.fenced_count, 2);
    cr_assert_eq(rig_last(&rig->sink, RIG_FENCED)->epoch, 4);
    rig_post(rig, 0, 9, 1, 0, 0, 0, 64);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 64), 0);
    rig_destroy(rig);
}

void contract_t3_a_fenced_lane_opens_again_under_the_next_epoch(const struct rig_kind *kind)
{
    struct rig *rig = rig_with_pages(kind, 64, 16);
    for (uint32_t epoch = 5; epoch < 15; epoch++) {
        rig_post(rig, 0, 9, 1, 0, 0, 0, 64);
        rig_turns(rig, (uint32_t)(rig_random(rig) % 3));
        kind->ops->fence(epoch % 2 ? rig->sink.transport : rig->source.transport, 0, epoch);
        rig_turns(rig, 2);
        kind->ops->fence(epoch % 2 ? rig->source.transport : rig->sink.transport, 0, epoch);
        rig_paint(rig, 0, 0, 64);
        cr_assert_eq(kind->lane_open(rig, 0, epoch + 1), 0);
        cr_assert_eq(rig_touched_bytes(rig, 0, 0, 64), 0);
    }
    rig_post(rig, 0, 9, 1, 0, 0, 0, 64);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig_last(&rig->sink, RIG_MARKER)->epoch, 15);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 64), 0);
    rig_destroy(rig);
}

/* Lanes that share a round: what a callback of one does to another whose call has returned and of which the
 * host has not been told yet. Also what an engine is: how many system calls, and what if the host takes it
 * away. Built for the io_uring engine; over plain sockets a round is one lane's, and all this holds too. */
#include <criterion/criterion.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sidecar/host/uring.h"
#include "tests/contract/rig.h"

#define LANES 8u
#define PAGES 16u /* of each lane, 64 KiB each */
#define PAGE_BYTES 65536u

static void skip_unless_allowed(void)
{
    const struct rig_kind *kind = &KVF_RIG_KIND;
    const char *reason = kind->refused_because == NULL ? NULL : kind->refused_because();
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

TestSuite(tcp_batch, .init = skip_unless_allowed);

static const struct kvf_transport_ops *const ops = &kvf_tcp_ops;

/* Lane i has handle 1 + i, which owns pages [16 i, 16 i + 16) on both sides. */
static struct rig *rig_with_lanes(uint64_t turn_bytes_max)
{
    static const uint32_t plane_bytes[] = {4096};
    struct rig_options options = rig_defaults();
    options.config.turn_bytes_max = turn_bytes_max;
    struct rig *rig = rig_create(&KVF_RIG_KIND, &options);
    rig_region(rig, 0, LANES * PAGES, 16, plane_bytes, 1, 0);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        rig_grant(rig, 1 + lane, 0, lane * PAGES, PAGES);
        cr_assert_eq(KVF_RIG_KIND.lane_open(rig, lane, 5), 0);
    }
    rig_turns(rig, 3);
    return rig;
}

static uint32_t post(struct rig *rig, uint32_t lane, uint32_t position, uint32_t pages)
{
    return rig_post(rig, lane, 100 + lane, 1 + lane, 0, lane * PAGES + position, position,
                    pages);
}

static void mark_all(struct rig *rig)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        rig_mark(rig, lane, 100 + lane, 1 + lane, KVF_LANE_END);
    }
}

static void assert_each_completed_once(const struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], 1, "post %u completed %u times", i,
                     rig->source.completed[i]);
    }
}

/* ---- source ------------------------------------------------------------------------------------------- */

static uint32_t hook_runs;

static void fence_the_others(struct rig_end *end, uint32_t lane, const struct kvf_post *post,
                             int status)
{
    (void)post, (void)status;
    if (hook_runs++ == 0) {
        for (uint32_t other = 0; other < LANES; other++) {
            if (other != lane) {
                ops->fence(end->transport, other, 5);
            }
        }
    }
}

/* All eight posts were taken by the kernel in one round. The first completion fences the other lanes: their
 * posts have completed by then, once, and as what they are, and nothing is told of a lane after its fence. */
Test(tcp_batch, t1_a_fence_from_another_lanes_completion_finds_what_was_sent)
{
    struct rig *rig = rig_with_lanes(256u << 10);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        post(rig, lane, 0, 1);
        post(rig, lane, 1, 1);
    }
    hook_runs = 0;
    rig->source.completed_hook = fence_the_others;
    ops->poll(rig->source.transport);
    assert_each_completed_once(rig);
    cr_assert_eq(rig->source.fenced_count, LANES - 1);
    uint32_t taken = 0;
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        taken += rig->source.status[i] == 0;
        cr_assert(rig->source.status[i] == 0 || rig->source.status[i] == -ECONNABORTED);
    }
    /* Over plain sockets the other lanes have not had their turn yet. */
    cr_assert_eq(taken, KVF_RIG_KIND.refused_because == NULL ? 2u : 2u * LANES);
    bool is_fenced[LANES] = {false};
    for (uint32_t i = 0; i < rig->source.log_count; i++) {
        const struct rig_event *event = &rig->source.log[i];
        cr_assert(event->kind == RIG_UP || !is_fenced[event->lane], "told after the fence");
        is_fenced[event->lane] = is_fenced[event->lane] || event->kind == RIG_FENCED;
    }
    rig_destroy(rig);
}

static void detach_the_others(struct rig_end *end, uint32_t lane, const struct kvf_post *post,
                              int status)
{
    (void)post, (void)status;
    if (hook_runs++ == 0) {
        for (uint32_t other = 0; other < LANES; other++) {
            if (other != lane) {
                ops->detach(end->transport, other, 100 + other);
            }
        }
    }
}

/* The same with detach: what the kernel took has left, the frame that is half out goes on from filler, and the
 * lane stays in step for the room behind it. */
Test(tcp_batch, t1_a_detach_from_another_lanes_completion_keeps_the_lanes_in_step)
{
    for (uint64_t turn_bytes = 1000; turn_bytes < 900000; turn_bytes = turn_bytes * 3 + 7) {
        struct rig *rig = rig_with_lanes(turn_bytes);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            post(rig, lane, 0, 4);
            post(rig, lane, 4, 4);
            rig_mark(rig, lane, 100 + lane, 1 + lane, KVF_LANE_END);
            /* the room behind it: the next handles, pages 8 to 15 of the lane */
            rig_grant(rig, 20 + lane, 0, lane * PAGES + 8, 8);
            rig_post(rig, lane, 200 + lane, 20 + lane, 0, lane * PAGES + 8, 0, 8);
            rig_mark(rig, lane, 200 + lane, 20 + lane, KVF_LANE_END);
        }
        hook_runs = 0;
        rig->source.completed_hook = detach_the_others;
        cr_assert(rig_until(rig, rig_markers_seen, 2 * LANES), "turns of %lu bytes",
                  (unsigned long)turn_bytes);
        cr_assert(rig_until(rig, rig_all_completed, 0));
        assert_each_completed_once(rig);
        cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 0);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            cr_assert_eq(rig_wrong_bytes(rig, 0, lane * PAGES + 8, lane * PAGES + 8, 8), 0);
        }
        rig_destroy(rig);
    }
}

/* Lane 1's first post faults in the round in which lane 0's completion takes that post back. What is first on
 * lane 1 then is somebody else's, and must not be blamed. */
static void detach_the_faulty(struct rig_end *end, uint32_t lane, const struct kvf_post *post,
                              int status)
{
    (void)post, (void)status;
    if (lane == 0 && hook_runs++ == 0) {
        ops->detach(end->transport, 1, 66);
    }
}

Test(tcp_batch, t1_a_read_fault_blames_no_post_that_took_its_place)
{
    static const uint32_t plane_bytes[] = {4096};
    struct rig *rig = rig_with_lanes(256u << 10);
    rig_region(rig, 1, 16, 16, plane_bytes, 1, 0);
    rig_grant(rig, 30, 1, 0, 16);
    cr_assert_eq(ftruncate(rig->source.regions[1].fd, 0), 0);
    post(rig, 0, 0, 1);
    uint32_t bad = rig_post(rig, 1, 66, 30, 1, 0, 0, 1);
    hook_runs = 0;
    rig->source.completed_hook = detach_the_faulty;
    uint32_t good = post(rig, 1, 0, 2);
    mark_all(rig);
    rig->is_sink_stopped = true;
    rig->source.regions[1].is_gone = true; /* found when the call is planned */
    rig_turn(rig, false);
    rig->is_sink_stopped = false;
    cr_assert(rig_until(rig, rig_markers_seen, LANES));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    cr_assert_eq(rig->source.status[good], 0);
    cr_assert(rig->source.status[bad] == -ECANCELED || rig->source.status[bad] == -EFAULT);
    cr_assert_eq(rig_wrong_bytes(rig, 0, PAGES, PAGES, 2), 0);
    rig_destroy(rig);
}

/* ---- sink --------------------------------------------------------------------------------------------- */

static uint64_t placed_after_fence;
static bool is_sink_fenced[LANES];

static void fence_the_other_sinks(struct rig_end *end, uint32_t lane, uint32_t epoch,
                                  uint64_t bytes)
{
    (void)epoch;
    placed_after_fence += is_sink_fenced[lane] ? bytes : 0;
    if (hook_runs++ == 0) {
        for (uint32_t other = 0; other < LANES; other++) {
            if (other != lane) {
                ops->fence(end->transport, other, 5);
                is_sink_fenced[other] = true;
                rig_paint(end->rig, 0, other * PAGES, PAGES); /* they have a new tenant */
            }
        }
    }
}

/* Every lane has payload in its socket when the sink polls. The first callback fences all others and hands
 * their pages on. */
Test(tcp_batch, t3_nothing_lands_behind_a_fence_from_another_lanes_receive)
{
    struct rig *rig = rig_with_lanes(256u << 10);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        post(rig, lane, 0, 8);
    }
    mark_all(rig);
    rig->is_sink_stopped = true;
    rig_turns(rig, 20);
    hook_runs = 0;
    placed_after_fence = 0;
    memset(is_sink_fenced, 0, sizeof(is_sink_fenced));
    rig->sink.placed_hook = fence_the_other_sinks;
    rig->is_sink_stopped = false;
    rig_turns(rig, 20);
    cr_assert_gt(hook_runs, 0);
    cr_assert_eq(rig->sink.fenced_count, LANES - 1);
    cr_assert_eq(placed_after_fence, 0, "placed was told of a stream that had been fenced");
    uint32_t touched = 0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        touched += rig_touched_bytes(rig, 0, lane * PAGES, PAGES) > 0;
    }
    cr_assert_eq(touched, 1, "only the lane that was not fenced has bytes in its pages");
    cr_assert_leq(rig_count(&rig->sink, RIG_MARKER), 1);
    rig_destroy(rig);
}

static void close_the_other_grants(struct rig_end *end, uint32_t lane, uint32_t epoch,
                                   uint64_t bytes)
{
    (void)epoch, (void)bytes;
    if (hook_runs++ == 0) {
        for (uint32_t other = 0; other < LANES; other++) {
            if (other != lane) {
                end->grants[1 + other].mode = RIG_SCRATCH;
                rig_paint(end->rig, 0, other * PAGES, PAGES);
            }
        }
    }
}

/* The same with grants that close, which proves their pages idle at once: the calls of this round have
 * returned, and the next round asks again. The lanes live, and stay in step. */
Test(tcp_batch, t4_a_grant_closed_by_another_lanes_receive_gets_not_one_byte_more)
{
    for (uint64_t turn_bytes = 1000; turn_bytes < 900000; turn_bytes = turn_bytes * 3 + 7) {
        struct rig *rig = rig_with_lanes(turn_bytes);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            post(rig, lane, 0, 8);
        }
        mark_all(rig);
        rig->is_sink_stopped = true;
        rig_turns(rig, 20);
        hook_runs = 0;
        rig->sink.placed_hook = close_the_other_grants;
        rig->is_sink_stopped = false;
        cr_assert(rig_until(rig, rig_markers_seen, LANES));
        uint32_t touched = 0;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const struct rig_grant *grant = &rig->sink.grants[1 + lane];
            touched += rig_touched_bytes(rig, 0, lane * PAGES, PAGES) > 0;
            cr_assert_eq(grant->placed_bytes + grant->scratch_bytes, 8u * PAGE_BYTES);
        }
        cr_assert_eq(touched, 1, "turns of %lu bytes", (unsigned long)turn_bytes);
        cr_assert_eq(rig->sink.lost_count, 0);
        rig_destroy(rig);
    }
}

static void reopen_the_next(struct rig_end *end, uint32_t lane, uint32_t handle)
{
    (void)handle;
    uint32_t next = (lane + 1) % LANES;
    if (hook_runs++ == 0) {
        ops->fence(end->transport, next, 5);
        struct kvf_lane_open open = {.lane = next,
                                     .epoch = 6,
                                     .addr = {.family = 4, .addr = {127, 0, 0, 1}, .port = 1},
                                     .accepted_fd = -1};
        cr_assert_eq(ops->open(end->transport, &open), 0);
    }
}

static void count_placed_of_the_new(struct rig_end *end, uint32_t lane, uint32_t epoch,
                                    uint64_t bytes)
{
    (void)end, (void)lane;
    placed_after_fence += epoch == 6 ? bytes : 0;
}

/* The descriptor of a fenced lane is closed and its number used again within the round: results of the old
 * stream must not be booked to the new one. */
Test(tcp_batch, t3_a_lane_opened_again_by_another_lanes_marker_has_nothing_of_the_old_stream)
{
    struct rig *rig = rig_with_lanes(256u << 10);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        post(rig, lane, 0, 1);
    }
    mark_all(rig);
    rig->is_sink_stopped = true;
    rig_turns(rig, 20);
    hook_runs = 0;
    placed_after_fence = 0;
    rig->sink.marker_hook = reopen_the_next;
    rig->sink.placed_hook = count_placed_of_the_new;
    rig->is_sink_stopped = false;
    rig_turns(rig, 50);
    cr_assert_gt(hook_runs, 0);
    for (uint32_t i = 0; i < rig->sink.log_count; i++) {
        const struct rig_event *event = &rig->sink.log[i];
        cr_assert(event->kind != RIG_MARKER || event->epoch == 5);
        cr_assert(event->kind != RIG_LOST || event->epoch == 6, "port 1 refuses");
    }
    cr_assert_eq(rig->sink.lost_count, 1);
    cr_assert_eq(placed_after_fence, 0, "bytes of the old stream were told of the new one");
    rig_destroy(rig);
}

static void fence_lane_0(struct rig_end *end, uint32_t lane)
{
    if (lane == 1) {
        hook_runs++;
        ops->fence(end->transport, 0, 5);
    }
}

/* Lane 0's turn has begun when lane 1, which begins its own in the same poll, says that it is up. */
Test(tcp_batch, t3_a_fence_from_another_lanes_up_ends_a_turn_that_has_begun)
{
    struct rig *rig = rig_with_lanes(256u << 10);
    ops->fence(rig->source.transport, 1, 5);
    cr_assert(rig_until(rig, rig_is_lost, 0));
    ops->fence(rig->sink.transport, 1, 5);
    uint32_t number = post(rig, 0, 0, 1);
    hook_runs = 0;
    rig->source.up_hook = fence_lane_0;
    rig->is_sink_stopped = true;
    int fds[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct kvf_lane_open open = {.lane = 1, .epoch = 6, .accepted_fd = fds[0]};
    cr_assert_eq(ops->open(rig->source.transport, &open), 0);
    ops->poll(rig->source.transport);
    cr_assert_eq(hook_runs, 1);
    /* Over plain sockets lane 0 was through before. */
    cr_assert_eq(rig->source.status[number],
                 KVF_RIG_KIND.refused_because == NULL ? 0 : -ECONNABORTED);
    assert_each_completed_once(rig);
    close(fds[1]);
    rig_destroy(rig);
}

/* ---- the engine ---------------------------------------------------------------------------------------- */

/* More lanes than a round takes: some wait for the first to be over, and every one of them moves in one poll. */
Test(tcp_batch, more_lanes_than_a_round_takes_all_get_their_turn)
{
    static const uint32_t plane_bytes[] = {4096};
    struct rig_options options = rig_defaults();
    options.config.turn_bytes_max = 5000; /* two rounds for each */
    struct rig *rig = rig_create(&KVF_RIG_KIND, &options);
    rig_region(rig, 0, RIG_LANES * 4, 1, plane_bytes, 1, 0);
    for (uint32_t lane = 0; lane < RIG_LANES; lane++) {
        rig_grant(rig, 1 + lane, 0, lane * 4, 4);
        cr_assert_eq(KVF_RIG_KIND.lane_open(rig, lane, 5), 0);
    }
    rig_turns(rig, 3);
    for (uint32_t lane = 0; lane < RIG_LANES; lane++) {
        for (uint32_t i = 0; i < 4; i++) {
            rig_post(rig, lane, lane, 1 + lane, 0, lane * 4 + i, i, 1);
        }
        rig_mark(rig, lane, lane, 1 + lane, KVF_LANE_END);
    }
    ops->poll(rig->source.transport);
    for (uint32_t i = 0; i < rig->source.posted_count; i += 5) {
        cr_assert_eq(rig->source.completed[i], 1, "lane %u had no turn", i / 5);
        cr_assert_eq(rig->source.completed[i + 3], 0, "lane %u had more than its turn", i / 5);
    }
    cr_assert(rig_until(rig, rig_markers_seen, RIG_LANES));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, RIG_LANES * 4), 0);
    rig_destroy(rig);
}

Test(tcp_batch, a_busy_turn_of_eight_lanes_is_a_few_system_calls)
{
    struct rig *rig = rig_with_lanes(256u << 10);
    uint64_t calls[2], enters[2];
    kvf_tcp_engine_counts(rig->source.transport, &calls[0], &enters[0]);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            post(rig, lane, round * 4, 4);
        }
        ops->poll(rig->source.transport);
        rig_turns(rig, 5);
    }
    kvf_tcp_engine_counts(rig->source.transport, &calls[1], &enters[1]);
    uint64_t made = calls[1] - calls[0], by = enters[1] - enters[0];
    fprintf(stderr, "%s: %lu sends of 8 lanes by %lu system calls\n",
            kvf_tcp_engine_name(rig->source.transport), (unsigned long)made, (unsigned long)by);
    cr_assert_eq(rig->source.completed_count, rig->source.posted_count);
    if (KVF_RIG_KIND.refused_because == NULL) {
        cr_assert_eq(made, by);
    } else {
        cr_assert_leq(by * 4, made);
    }
    rig_destroy(rig);
}

/* From here on this process's call `number` answers err. */
static void refuse_call(uint32_t number, uint32_t err)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) {
        cr_skip_test("this kernel takes no seccomp filter: %s", strerror(errno));
    }
}

static void move_something(struct rig *rig)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        post(rig, lane, 0, PAGES);
    }
    mark_all(rig);
    uint32_t want = rig_count(&rig->sink, RIG_MARKER) + LANES;
    cr_assert(rig_until(rig, rig_markers_seen, want));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    assert_each_completed_once(rig);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, LANES * PAGES), 0);
}

/* A container tightens its profile, or a kernel takes no more: the rooms under way never notice. */
Test(tcp_batch, an_engine_that_the_host_takes_away_leaves_every_byte_in_place)
{
    struct rig *rig = rig_with_lanes(256u << 10);
    move_something(rig);
    cr_assert_str_eq(kvf_tcp_engine_name(rig->source.transport),
                     KVF_RIG_KIND.refused_because == NULL ? "sockets" : "uring");
    for (uint32_t lane = 0; lane < LANES; lane++) {
        rig_grant(rig, 1 + lane, 0, lane * PAGES, PAGES);
        post(rig, lane, 0, PAGES);
    }
    ops->poll(rig->source.transport);
    refuse_call(SYS_io_uring_enter, EPERM);
    rig_paint(rig, 0, 0, LANES * PAGES);
    move_something(rig);
    cr_assert_str_eq(kvf_tcp_engine_name(rig->source.transport), "sockets");
    cr_assert_str_eq(kvf_tcp_engine_name(rig->sink.transport), "sockets");
    cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 0);
    rig_destroy(rig);
}

/* ---- k1: an engine that is not allowed ------------------------------------------------------------------ */

static void expect_fallback(int err, const char *word)
{
    struct kvf_transport_config config = {
        .lanes_max = 1, .turn_bytes_max = 65536, .posts_per_lane_max = 8};
    struct kvf_transport_host host = {0};
    struct kvf_transport *t = NULL;
    char text[200];
    config.tcp_engine = KVF_TCP_ENGINE_AUTO;
    cr_assert_eq(kvf_tcp_create(&config, &host, -1, &t), 0);
    cr_assert_eq(kvf_tcp_engine_refusal(t), -err, "%d", kvf_tcp_engine_refusal(t));
    cr_assert_str_eq(kvf_tcp_engine_name(t), "sockets");
    cr_assert_not_null(strstr(kvf_uring_refusal(-err, text, sizeof text), word), "%s", text);
    ops->close(t);
    config.tcp_engine = KVF_TCP_ENGINE_SOCKETS;
    cr_assert_eq(kvf_tcp_create(&config, &host, -1, &t), 0);
    cr_assert_eq(kvf_tcp_engine_refusal(t), 0, "what nobody asked for is not refused");
    ops->close(t);
}

Test(tcp_batch, k1_a_filter_that_forbids_the_ring_leaves_sockets)
{
    refuse_call(SYS_io_uring_setup, EPERM);
    expect_fallback(EPERM, "filter");
}

Test(tcp_batch, k1_a_kernel_without_rings_leaves_sockets)
{
    refuse_call(SYS_io_uring_setup, ENOSYS);
    expect_fallback(ENOSYS, "no io_uring");
}

Test(tcp_batch, k1_a_ring_that_may_be_made_and_not_used_leaves_sockets)
{
    refuse_call(SYS_io_uring_enter, EACCES);
    expect_fallback(EACCES, "filter");
}

Test(tcp_batch, k1_no_memory_for_a_ring_leaves_sockets)
{
    refuse_call(SYS_io_uring_setup, ENOMEM);
    expect_fallback(ENOMEM, "ulimit -l");
}

Test(tcp_batch, k1_no_descriptor_for_a_ring_is_said_so)
{
    struct rlimit before;
    char text[200];
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    struct kvf_uring *uring = NULL;
    int rc = setrlimit(RLIMIT_NOFILE, &none);
    int refusal = kvf_uring_create(8, &uring);
    rc |= setrlimit(RLIMIT_NOFILE, &before);
    cr_assert_eq(rc, 0);
    cr_assert_eq(refusal, -EMFILE);
    cr_assert_not_null(strstr(kvf_uring_refusal(refusal, text, sizeof(text)), "descriptor"));
}

/* Some filters forbid io_uring_register alone; nothing here needs it. */
Test(tcp_batch, k1_a_filter_that_forbids_only_registering_costs_nothing)
{
    refuse_call(SYS_io_uring_register, EPERM);
    struct kvf_uring *uring = NULL;
    int rc = kvf_uring_create(8, &uring);
    if (rc == 0) {
        kvf_uring_close(uring);
    }
    cr_assert(rc == 0 || KVF_RIG_KIND.refused_because == NULL, "%d", rc);
}

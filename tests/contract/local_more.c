/* What the suite cannot ask of every transport: halves, pieces, pace, and the guard beneath them. */
#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sidecar/host/guard.h"
#include "tests/contract/rig.h"

#define NS_PER_S UINT64_C(1000000000)

static const uint32_t kv_planes[] = {4096};

/* Two rooms on lane 0, 16 pages of 64 KiB each: cookie and handle 1 in region 0, 2 in region 1. */
static struct rig *two_rooms(struct rig_options options)
{
    struct rig *rig = rig_create(&rig_local_kind, &options);
    for (uint32_t i = 0; i < 2; i++) {
        rig_region(rig, i, 16, 16, kv_planes, 1, 0);
        rig_grant(rig, 1 + i, i, 0, 16);
    }
    cr_assert_eq(rig_local_kind.lane_open(rig, 0, 5), 0);
    for (uint32_t i = 0; i < 2; i++) {
        rig_post(rig, 0, 1 + i, 1 + i, i, 0, 0, 16);
        rig_mark(rig, 0, 1 + i, 1 + i, KVF_LANE_END);
    }
    return rig;
}

static struct rig *two_rooms_half_copied(void)
{
    struct rig_options options = rig_defaults();
    options.config.turn_bytes_max = 100000;
    struct rig *rig = two_rooms(options);
    rig_turns(rig, 2);
    cr_assert_gt(rig->sink.grants[1].placed_bytes, 0);
    cr_assert_lt(rig->sink.grants[1].placed_bytes, 16u * 65536u);
    return rig;
}

static int marker_of(const struct rig *rig, uint32_t handle)
{
    for (uint32_t i = 0; i < rig->sink.log_count; i++) {
        if (rig->sink.log[i].kind == RIG_MARKER && rig->sink.log[i].handle == handle) {
            return rig->sink.log[i].value;
        }
    }
    return -1;
}

static void assert_each_completed_once(const struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], 1, "post %u completed %u times", i,
                     rig->source.completed[i]);
    }
}

Test(local, a_post_half_copied_is_taken_back_where_it_stands)
{
    struct rig *rig = two_rooms_half_copied();
    uint64_t placed = rig->sink.grants[1].placed_bytes;
    rig_local_kind.ops->detach(rig->source.transport, 0, 1);
    cr_assert_eq(rig->source.completed[0], 1, "its pages are idle when detach returns");
    memset(rig->source.regions[0].region.base, 0xee, rig->source.regions[0].bytes);
    rig_paint(rig, 0, 0, 16);
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 16), 0);
    cr_assert_eq(rig->sink.grants[1].placed_bytes, placed);
    cr_assert_eq(marker_of(rig, 1), KVF_LANE_DRAIN);
    cr_assert_eq(marker_of(rig, 2), KVF_LANE_END);
    cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 16), 0);
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

Test(local, a_fence_of_either_half_ends_a_copy_between_two_pieces)
{
    for (uint32_t is_sink = 0; is_sink < 2; is_sink++) {
        struct rig *rig = two_rooms_half_copied();
        struct rig_end *ends[] = {&rig->source, &rig->sink};
        struct rig_end *fenced = ends[is_sink];
        struct rig_end *other = ends[1 - is_sink];
        rig_local_kind.ops->fence(fenced->transport, 0, 5);
        cr_assert_eq(fenced->fenced_count, 1);
        cr_assert_not(rig_local_kind.ops->can_post(rig->source.transport, 0));
        memset(rig->source.regions[0].region.base, 0xee, rig->source.regions[0].bytes);
        rig_paint(rig, 0, 0, 16);
        rig_paint(rig, 1, 0, 16);
        rig_turns(rig, 20);
        cr_assert_eq(rig_touched_bytes(rig, 0, 0, 16) + rig_touched_bytes(rig, 1, 0, 16), 0);
        cr_assert_eq(fenced->lost_count, 0);
        cr_assert_eq(other->lost_count, 1, "the other half hears of it, once");
        cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 0);
        rig_local_kind.ops->fence(other->transport, 0, 5);
        assert_each_completed_once(rig);
        rig_destroy(rig);
    }
}

Test(local, a_lane_that_ends_leaves_the_other_lanes_alone)
{
    struct rig_options options = rig_defaults();
    options.config.turn_bytes_max = 100000;
    struct rig *rig = rig_create(&rig_local_kind, &options);
    rig_region(rig, 0, 48, 16, kv_planes, 1, 0);
    for (uint32_t lane = 0; lane < 3; lane++) {
        rig_grant(rig, 1 + lane, 0, 16 * lane, 16);
        cr_assert_eq(rig_local_kind.lane_open(rig, lane, 5), 0);
        rig_post(rig, lane, lane, 1 + lane, 0, 16 * lane, 0, 16);
        rig_mark(rig, lane, lane, 1 + lane, KVF_LANE_END);
    }
    rig_turns(rig, 2);
    rig->sink.grants[2].mode = RIG_REFUSE; /* lane 1's */
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    rig_turns(rig, 20);
    cr_assert_eq(rig->sink.lost_count, 1);
    cr_assert_eq(rig->source.lost_count, 1);
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->lane, 1);
    cr_assert_eq(marker_of(rig, 2), -1);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 16), 0);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 32, 32, 16), 0);
    rig_destroy(rig);
}

Test(local, h23_source_memory_taken_away_in_mid_copy_costs_its_room_alone)
{
    struct rig *rig = two_rooms_half_copied();
    cr_assert_eq(ftruncate(rig->source.regions[0].fd, 0), 0);
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert_eq(rig->source.status[0], -EFAULT);
    cr_assert_eq(rig->source.read_fault_count, 1);
    cr_assert_eq(rig->sink.grants[1].faults, 0);
    cr_assert_eq(marker_of(rig, 1), KVF_LANE_DRAIN);
    cr_assert_eq(marker_of(rig, 2), KVF_LANE_END);
    cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 16), 0);
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

Test(local, h23_sink_memory_taken_away_in_mid_copy_costs_its_room_alone)
{
    struct rig *rig = two_rooms_half_copied();
    cr_assert_eq(ftruncate(rig->sink.regions[0].fd, 0), 0);
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert_eq(rig->source.read_fault_count, 0);
    cr_assert_eq(rig->sink.grants[1].faults, 1);
    cr_assert_eq(rig->sink.grants[1].placed_bytes + rig->sink.grants[1].scratch_bytes,
                 16u * 65536u);
    cr_assert_eq(marker_of(rig, 2), KVF_LANE_END);
    cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 16), 0);
    assert_each_completed_once(rig);
    rig_destroy(rig);
}

struct thief {
    int fd;
    uint64_t spin;
    _Atomic bool is_going;
};

static void *steal(void *arg)
{
    struct thief *thief = arg;
    atomic_store(&thief->is_going, true);
    for (uint64_t i = 0; i < thief->spin; i++) {
        atomic_load(&thief->is_going);
    }
    cr_assert_eq(ftruncate(thief->fd, 0), 0);
    return NULL;
}

/* The file loses its pages while memmove is in them, from another thread, at a moment nobody chose. */
Test(local, h23_memory_taken_away_within_a_copy_is_an_error_of_the_side_it_belonged_to)
{
    uint32_t faults = 0;
    for (uint32_t round = 0; round < 60; round++) {
        bool is_sink = round % 2 == 1;
        struct rig *rig = two_rooms(rig_defaults());
        pthread_t thread;
        struct thief thief = {.fd =
                                  is_sink ? rig->sink.regions[0].fd : rig->source.regions[0].fd,
                              .spin = 1000 * (round / 2)};
        cr_assert_eq(pthread_create(&thread, NULL, steal, &thief), 0);
        while (!atomic_load(&thief.is_going)) {
        }
        cr_assert(rig_until(rig, rig_markers_seen, 2));
        pthread_join(thread, NULL);
        faults += rig->source.read_fault_count + rig->sink.grants[1].faults;
        cr_assert(!is_sink || rig->source.read_fault_count == 0);
        cr_assert(is_sink || rig->sink.grants[1].faults == 0);
        cr_assert_eq(rig->sink.grants[2].faults, 0);
        cr_assert_eq(marker_of(rig, 2), KVF_LANE_END);
        cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 16), 0);
        assert_each_completed_once(rig);
        rig_destroy(rig);
    }
    cr_assert_gt(faults, 0, "the memory was never gone in time, so this showed nothing");
}

/* ---- pace --------------------------------------------------------------------------------------------- */

/* 100 MB/s by a clock that the test moves: no second holds more than its share and one millisecond's
 * worth, the lane says when it may go on, and the rate is reached. */
Test(local, a_paced_lane_keeps_its_rate_by_the_hosts_clock)
{
    struct rig_options options = rig_defaults();
    options.config.lane_rate_bytes = 100000000;
    uint64_t now = 7 * NS_PER_S;
    struct rig *rig = rig_create(&rig_local_kind, &options);
    rig_local_set_now(rig, now);
    rig_region(rig, 0, 64, 16, kv_planes, 1, 0);
    rig_grant(rig, 1, 0, 0, 64);
    cr_assert_eq(rig_local_kind.lane_open(rig, 0, 5), 0);
    for (uint32_t i = 0; i < 64; i++) {
        rig_post(rig, 0, 1, 1, 0, i, i, 1);
    }
    uint64_t total = 64u * 65536u;
    uint64_t piece =
        100000 + 65536; /* a millisecond's worth, and the post that it falls into */
    while (rig->sink.grants[1].placed_bytes < total) {
        for (uint32_t i = 0; i < 10; i++) {
            rig_turn(rig, false);
        }
        uint64_t gone_ns = now - 7 * NS_PER_S;
        cr_assert_leq(rig->sink.grants[1].placed_bytes, gone_ns / 10 + 2 * piece);
        uint64_t due_ns = rig_local_due_ns(rig);
        if (rig->sink.grants[1].placed_bytes < total) {
            cr_assert(due_ns > now && due_ns <= now + 2000000, "due in %ld ns",
                      (long)(due_ns - now));
            now = due_ns;
            rig_local_set_now(rig, now);
        }
    }
    uint64_t took_ns = now - 7 * NS_PER_S;
    cr_assert(took_ns > total * 10 * 9 / 10 - 2000000 && took_ns < total * 10 * 11 / 10,
              "%lu bytes took %lu ns", (unsigned long)total, (unsigned long)took_ns);
    rig_mark(rig, 0, 1, 1, KVF_LANE_END);
    cr_assert_eq(rig_local_due_ns(rig), 0, "a marker waits for no pace");
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig_local_due_ns(rig), KVF_NO_TIME);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 64), 0);
    rig_destroy(rig);
}

/* ---- the guard --------------------------------------------------------------------------------------------- */

static unsigned char *page_that_is_gone(void)
{
    int fd = memfd_create("gone", MFD_CLOEXEC);
    cr_assert(fd >= 0 && ftruncate(fd, 4096) == 0);
    void *base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(base, MAP_FAILED);
    cr_assert_eq(ftruncate(fd, 0), 0);
    close(fd);
    return base;
}

Test(guard, says_where_it_faulted_and_goes_on_copying_afterwards)
{
    unsigned char here[64] = {1};
    unsigned char there[64] = {0};
    unsigned char *gone = page_that_is_gone();
    const void *fault = NULL;
    cr_assert_eq(kvf_guard_install(), 0);
    cr_assert_eq(kvf_guard_install(), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        struct kvf_guard_run runs[] = {{there, here, 64}, {gone + 100, here, 64}};
        cr_assert_not(kvf_guard_copy(runs, 2, &fault));
        cr_assert(fault >= (void *)(gone + 100) && fault < (void *)(gone + 164));
        runs[1] = (struct kvf_guard_run){there, gone + i, 64};
        cr_assert_not(kvf_guard_copy(runs, 2, &fault));
        cr_assert(fault >= (void *)(gone + i) && fault < (void *)(gone + i + 64));
        runs[1] = (struct kvf_guard_run){there + 1, there, 63};
        cr_assert(kvf_guard_copy(runs, 2, &fault));
        cr_assert_eq(there[1], 1);
    }
    cr_assert_eq(there[0], 1);
}

/* A sanitizer's runtime has handlers of its own, which would report instead. */
static void forget_handlers(void)
{
    signal(SIGBUS, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
}

/* Under the guard or not, what was no copy of its own ends the process as ever. */
Test(guard, leaves_a_fault_outside_of_it_deadly, .signal = SIGBUS)
{
    forget_handlers();
    cr_assert_eq(kvf_guard_install(), 0);
    unsigned char *gone = page_that_is_gone();
    const struct kvf_guard_run run = {gone, gone, 0};
    const void *fault = NULL;
    cr_assert(kvf_guard_copy(&run, 1, &fault));
    memset(gone, 1, 64);
}

Test(guard, leaves_a_signal_that_somebody_sent_deadly, .signal = SIGSEGV)
{
    forget_handlers();
    cr_assert_eq(kvf_guard_install(), 0);
    raise(SIGSEGV);
}

/* The kernel may tell of lost memory that nobody touches. It names no access of this thread. */
Test(guard, outlives_word_of_lost_memory_that_nobody_touched)
{
    unsigned char there[64] = {0};
    unsigned char *gone = page_that_is_gone();
    const struct kvf_guard_run run = {there, gone, 64};
    const void *fault = NULL;
    cr_assert_eq(kvf_guard_install(), 0);
    siginfo_t told = {.si_signo = SIGBUS, .si_code = BUS_MCEERR_AO};
    cr_assert_eq(syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &told), 0);
    cr_assert_not(kvf_guard_copy(&run, 1, &fault), "the guard is still there");
}

/* Pitfalls of RDMA about packets that come late: who may say that a page is idle. Over soft-RoCE with a router
 * between the devices; pNN is the pitfall's number in the list of measurements (README.md has the table).
 *
 * Each test of a fence has a control in it: another lane under the same conditions, whose sink does not fence and
 * whose pages are written late. Without it, nothing late would prove nothing. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/verbs/net.h"
#include "tests/verbs/writer.h"

#define PAGES 32u /* a lane's */
#define DELAY_S 5u

TestSuite(pitfalls_late, .init = net_begin);

extern char **environ;

/* ---- lanes of this process ---------------------------------------------------------------------------------- */

/* Lanes 0 and 1 with pages of their own, each a write under way that the sink has not seen. */
static struct rig *two_late_lanes(void)
{
    struct rig *rig = net_rig(2 * PAGES, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    net("delay forth %us", DELAY_S);
    for (uint32_t lane = 0; lane < 2; lane++) {
        rig_post(rig, lane, 9, 1, 0, lane * PAGES, lane * PAGES, PAGES);
    }
    rig->kind->ops->poll(rig->source.transport);
    cr_assert_gt(net_count("forth").queued, 0, "nothing is late");
    return rig;
}

/* Of the sink's pages of a lane. */
static uint64_t touched(struct rig *rig, uint32_t lane)
{
    return rig_touched_bytes(rig, 0, lane * PAGES, PAGES);
}

/* What the sink's fence promises, after which lane 0's packets arrive; those of lane 1 show that they do. */
static void lane_0_is_idle_from_now_on(struct rig *rig)
{
    cr_assert_gt(net_count("forth").queued, 0, "the machine was too slow for this test");
    uint64_t before = touched(rig, 0);
    net_drain("forth");
    cr_assert_gt(touched(rig, 1), 0, "the control: without the sink's fence it lands");
    cr_assert_eq(touched(rig, 0), before);
}

/* 1: a flush completion is no proof. The writer's fence brings it, with nothing landed; the bytes come later, and only
 * the sink's own fence ends that. */
Test(pitfalls_late, p01_a_flushed_write_lands_later_unless_the_sink_fenced)
{
    struct rig *rig = two_late_lanes();
    net_fence(&rig->source, 0, 5);
    net_fence(&rig->source, 1, 5);
    net_each_completed_once(rig);
    cr_assert_eq(rig->source.status[0], -ECONNABORTED);
    cr_assert_eq(rig->source.status[1], -ECONNABORTED);
    net_fence(&rig->sink, 0, 5);
    cr_assert_eq(touched(rig, 0) + touched(rig, 1), 0);
    lane_0_is_idle_from_now_on(rig);
    net_fence(&rig->sink, 1, 5);
    net_accounts_are_closed(rig);
    rig_destroy(rig);
}

/* 1: the fence may also come in the middle of what lands: not one byte changes from fenced_fn on. */
static unsigned char at_fence[2 * PAGES * 4096];

static void keep_pages(struct rig_end *end, uint32_t lane)
{
    if (lane == 0) {
        memcpy(at_fence, end->regions[0].region.base, PAGES * 4096);
    }
}

Test(pitfalls_late, p01_not_one_byte_changes_from_the_fences_answer_on)
{
    struct rig *rig = two_late_lanes();
    rig->sink.fenced_hook = keep_pages;
    net_fence(&rig->sink, 0, 5);
    cr_assert_gt(net_count("forth").queued, 0, "the machine was too slow for this test");
    net_drain("forth");
    cr_assert_eq(memcmp(at_fence, rig->sink.regions[0].region.base, PAGES * 4096), 0);
    cr_assert_gt(touched(rig, 1), 0);
    for (uint32_t lane = 0; lane < 2; lane++) {
        net_fence(&rig->source, lane, 5);
    }
    net_each_completed_once(rig);
    rig_destroy(rig);
}

/* 2: acknowledgements alone are lost. The writer is told of an error, and everything is there. */
Test(pitfalls_late, p02_a_write_that_failed_is_there_when_only_acknowledgements_are_lost)
{
    rig_verbs_real_timeout = 14;
    rig_verbs_real_retry = 2;
    struct rig *rig = net_rig(PAGES, 1);
    net("cut-back");
    rig_post(rig, 0, 9, 1, 0, 0, 0, PAGES);
    cr_assert(rig_until(rig, rig_is_lost, 1));
    cr_assert_eq(rig_last(&rig->source, RIG_LOST)->value, EIO);
    net_fence(&rig->source, 0, 5);
    cr_assert_eq(rig->source.status[0], -EIO, "not told as a success, nor as never sent");
    net_each_completed_once(rig);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, PAGES), 0);
    cr_assert_eq(rig->sink.lost_count, 0, "the sink has seen nothing wrong");
    net_fence(&rig->sink, 0, 5);
    net_accounts_are_closed(rig);
    rig_destroy(rig);
}

/* 5: half a message is there. It grows until the fence, and the packets that still come change nothing. */
Test(pitfalls_late, p05_half_a_message_grows_until_the_fence_and_not_after)
{
    struct rig *rig = net_rig(128, 1);
    net("rate forth 2mbit");
    rig_post(rig, 0, 9, 1, 0, 0, 0, 128); /* one write of 128 packets: about two seconds */
    rig->kind->ops->poll(rig->source.transport);
    uint64_t deadline_ns = net_now_ns() + UINT64_C(60000000000);
    while (rig_touched_bytes(rig, 0, 0, 128) == 0) {
        cr_assert_lt(net_now_ns(), deadline_ns);
    }
    uint64_t first = rig_touched_bytes(rig, 0, 0, 128);
    while (rig_touched_bytes(rig, 0, 0, 128) == first) {
        cr_assert_lt(net_now_ns(), deadline_ns, "it does not grow");
    }
    net_fence(&rig->sink, 0, 5);
    uint64_t fenced = rig_touched_bytes(rig, 0, 0, 128);
    cr_assert_lt(fenced, 128 * 4096, "the machine was too slow for this test");
    struct net_count before = net_count("forth");
    cr_assert_gt(before.queued, 0);
    do {
        usleep(50000);
    } while (net_count("forth").sent < before.sent + 8);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 128), fenced);
    net_fence(&rig->source, 0, 5);
    net_each_completed_once(rig);
    rig_destroy(rig);
}

/* 7: packets of a dead epoch reach a device on which the next epoch of that lane lives. They find another number and
 * another sequence. */
Test(pitfalls_late, p07_packets_of_a_dead_epoch_do_nothing_to_the_next)
{
    struct rig *rig = net_rig(PAGES, 1);
    struct kvf_lane_end dead = *rig_verbs_lane_end(&rig->sink, 0);
    net("delay forth 12s");
    rig_post(rig, 0, 9, 1, 0, 0, 0, PAGES);
    rig->kind->ops->poll(rig->source.transport);
    net_fence(&rig->source, 0, 5);
    net_fence(&rig->sink, 0, 5);
    net("clear");
    cr_assert_eq(rig->kind->lane_open(rig, 0, 6), 0);
    const struct kvf_lane_end *end = rig_verbs_lane_end(&rig->sink, 0);
    cr_assert_neq(end->qpn, dead.qpn);
    cr_assert_neq(end->psn, dead.psn);
    cr_assert_gt(net_count("forth").queued, 0, "the machine was too slow for this test");
    net_drain("forth");
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, PAGES), 0);
    cr_assert_eq(rig->sink.lost_count + rig->source.lost_count, 0);
    rig_post(rig, 0, 9, 1, 0, 0, 0, PAGES);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, PAGES), 0);
    rig_destroy(rig);
}

/* 30: two lanes of one room, one late. What the other one says covers its own pages alone. */
Test(pitfalls_late, p30_a_marker_covers_its_own_lane_alone)
{
    struct rig *rig = net_rig(2 * PAGES, 1);
    cr_assert_eq(rig->kind->lane_open(rig, 1, 5), 0);
    net("flow forth qpn:%u delay 3s", rig_verbs_lane_end(&rig->sink, 1)->qpn);
    for (uint32_t lane = 0; lane < 2; lane++) {
        rig_post(rig, lane, 9, 1, 0, lane * PAGES, lane * PAGES, PAGES);
        rig_mark(rig, lane, 9, 1, KVF_LANE_END);
    }
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig_count(&rig->sink, RIG_MARKER), 1);
    cr_assert_eq(rig_last(&rig->sink, RIG_MARKER)->lane, 0);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, PAGES), 0);
    cr_assert_eq(touched(rig, 1), 0, "and would be written after a release by the first");
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert_eq(rig_last(&rig->sink, RIG_MARKER)->lane, 1);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 2 * PAGES), 0);
    net("clear");
    cr_assert(rig_until(rig, rig_all_completed, 0));
    rig_destroy(rig);
}

/* 44: the router's queue holds the packets, and no device of ours waits for them: a fence of the source is over while
 * they are late. On the sender's own device they would hold its destroy, and hide what comes late. */
Test(pitfalls_late, p44_late_packets_wait_in_the_router_and_hold_no_destroy)
{
    struct rig *rig = net_rig(PAGES, 1);
    uint64_t before = net_count("forth").sent;
    rig_post(rig, 0, 9, 1, 0, 0, 0, PAGES);
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert(rig_until(rig, rig_all_completed, 0));
    cr_assert_geq(net_count("forth").sent, before + PAGES, "they took another way");
    net("delay forth 60s"); /* nobody waits for them */
    rig_post(rig, 0, 9, 1, 0, 0, 0, PAGES);
    rig->kind->ops->poll(rig->source.transport);
    net_fence(&rig->source, 0, 5);
    cr_assert_gt(net_count("forth").queued, 0, "the destroy waited for the packets");
    net_fence(&rig->sink, 0, 5);
    rig_destroy(rig);
}

/* ---- a source in another process ----------------------------------------------------------------------------- */

struct writer {
    pid_t pid;
    int to;
    int from;
};

static void read_whole(int fd, void *bytes, size_t count)
{
    for (size_t got = 0; got < count;) {
        ssize_t n = read(fd, (char *)bytes + got, count - got);
        cr_assert_gt(n, 0, "the writer ended");
        got += (size_t)n;
    }
}

/* verbs_writer lies beside this program. */
static struct writer writer_start(void)
{
    char path[300];
    ssize_t count = readlink("/proc/self/exe", path, sizeof(path) - 20);
    cr_assert_gt(count, 0);
    path[count] = 0;
    (void)snprintf(strrchr(path, '/'), 20, "/verbs_writer");
    char *device = strndup(getenv("KVF_RIG_VERBS"), strcspn(getenv("KVF_RIG_VERBS"), ","));
    char *words[] = {path, device, NULL};
    int to[2];
    int from[2];
    cr_assert_eq(pipe2(to, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    struct writer writer = {.to = to[1], .from = from[0]};
    cr_assert_eq(posix_spawn(&writer.pid, path, &actions, NULL, words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    free(device);
    return writer;
}

static bool sink_is_up(struct rig *rig, uint64_t count)
{
    return rig->sink.up_count == count;
}

/* Its lane is the sink's `lane`, and its pages are all of region `lane`. */
static struct writer writer_join(struct rig *rig, uint32_t lane)
{
    struct writer writer = writer_start();
    struct writer_orders orders = {.page_count = PAGES};
    uint32_t keys[KVF_RAILS_MAX];
    uint32_t key_count = 0;
    struct kvf_lane_end end;
    uint32_t up_before = rig->sink.up_count;
    cr_assert_eq(rig_verbs_open(&rig->sink, lane, 5, NULL), 0);
    cr_assert(rig_verbs_wait_ready(&rig->sink, lane));
    orders.sink_end = *rig_verbs_lane_end(&rig->sink, lane);
    kvf_verbs_keys(rig_verbs_memory(&rig->sink, lane), &orders.base, keys, &key_count);
    orders.key = keys[0];
    cr_assert_eq(write(writer.to, &orders, sizeof(orders)), sizeof(orders));
    read_whole(writer.from, &end, sizeof(end));
    cr_assert_eq(kvf_verbs_ops.join(rig_verbs_transport(&rig->sink), lane, 5, &end), 0);
    cr_assert(rig_until(rig, sink_is_up, up_before + 1));
    return writer;
}

static void writer_writes(const struct writer *writer)
{
    char word = 'w';
    cr_assert_eq(write(writer->to, &word, 1), 1);
    read_whole(writer->from, &word, 1);
}

static void writer_reap(const struct writer *writer)
{
    int status = 0;
    cr_assert_eq(waitpid(writer->pid, &status, 0), writer->pid);
    close(writer->to);
    close(writer->from);
}

static struct rig *rig_for_writers(struct writer writers[2])
{
    static const uint32_t plane_4k[] = {4096};
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(&rig_verbs_real_kind, &options);
    for (uint32_t lane = 0; lane < 2; lane++) {
        rig_region(rig, lane, PAGES, 1, plane_4k, 1, 0);
        writers[lane] = writer_join(rig, lane);
    }
    return rig;
}

/* The sink fences lane 0 and not lane 1, while the writes of both are late. */
static void only_the_fence_counts(struct rig *rig)
{
    cr_assert_eq(rig->sink.lost_count, 0, "the device has heard of nothing");
    net_fence(&rig->sink, 0, 5);
    cr_assert_gt(net_count("forth").queued, 0, "the machine was too slow for this test");
    uint64_t before = rig_touched_bytes(rig, 0, 0, PAGES);
    net_drain("forth");
    cr_assert_gt(rig_touched_bytes(rig, 1, 0, PAGES), 0, "without the sink's fence it lands");
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, PAGES), before);
    net_fence(&rig->sink, 1, 5);
}

/* 3: the writer's process was killed and reaped, its queue pair and registration are gone, and what it wrote comes. */
Test(pitfalls_late, p03_a_writer_killed_and_reaped_still_writes_unless_the_sink_fenced)
{
    struct writer writers[2];
    struct rig *rig = rig_for_writers(writers);
    net("delay forth %us", DELAY_S);
    for (uint32_t i = 0; i < 2; i++) {
        writer_writes(&writers[i]);
        kill(writers[i].pid, SIGKILL);
        writer_reap(&writers[i]);
    }
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, PAGES), 0);
    cr_assert_eq(rig_touched_bytes(rig, 1, 0, PAGES), 0);
    only_the_fence_counts(rig);
    rig_destroy(rig);
}

/* 3: the same where the writer's transport was closed as it should be. */
Test(pitfalls_late, p03_a_writer_that_closed_its_transport_still_writes_unless_the_sink_fenced)
{
    struct writer writers[2];
    struct rig *rig = rig_for_writers(writers);
    net("delay forth 12s"); /* two programs end meanwhile */
    for (uint32_t i = 0; i < 2; i++) {
        writer_writes(&writers[i]);
        close(writers[i].to);
        int status = 0;
        cr_assert_eq(waitpid(writers[i].pid, &status, 0), writers[i].pid);
        cr_assert_eq(status, 0);
    }
    only_the_fence_counts(rig);
    rig_destroy(rig);
}

/* 4: a writer that is stopped runs no more, and its device sends on. */
Test(pitfalls_late, p04_a_stopped_writers_device_writes_on_unless_the_sink_fenced)
{
    struct writer writers[2];
    struct rig *rig = rig_for_writers(writers);
    net("delay forth %us", DELAY_S);
    for (uint32_t i = 0; i < 2; i++) {
        int status = 0;
        writer_writes(&writers[i]);
        kill(writers[i].pid, SIGSTOP);
        cr_assert_eq(waitpid(writers[i].pid, &status, WUNTRACED), writers[i].pid);
        cr_assert(WIFSTOPPED(status));
    }
    net_fence(&rig->sink, 0, 5);
    cr_assert_gt(net_count("forth").queued, 0, "the machine was too slow for this test");
    uint64_t before = rig_touched_bytes(rig, 0, 0, PAGES);
    uint64_t deadline_ns = net_now_ns() + UINT64_C(60000000000);
    while (rig_touched_bytes(rig, 1, 0, PAGES) < PAGES * 4096) {
        cr_assert_lt(net_now_ns(), deadline_ns, "a stopped writer's device should write");
        usleep(50000);
    }
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, PAGES), before);
    for (uint32_t i = 0; i < 2; i++) {
        kill(writers[i].pid, SIGKILL);
        writer_reap(&writers[i]);
    }
    net_fence(&rig->sink, 1, 5);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, PAGES), before);
    rig_destroy(rig);
}

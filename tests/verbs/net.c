#include "tests/verbs/net.h"

#include <criterion/criterion.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const uint32_t plane_4k[] = {4096};

void net_begin(void)
{
    if (rig_verbs_is_real() == NULL) {
        cr_skip_test("KVF_RIG_VERBS names no devices: this is for scripts/rdma-guest");
    }
    net("drop-queued both");
}

void net(const char *format, ...)
{
    char words[200];
    char command[240];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(words, sizeof(words), format, arguments);
    va_end(arguments);
    (void)snprintf(command, sizeof(command), "guest-net %s", words);
    int status = system(command);
    cr_assert_eq(status, 0, "%s: %d", command, status);
}

struct net_count net_count(const char *dir)
{
    struct net_count count = {0, 0, 0};
    char command[64];
    (void)snprintf(command, sizeof(command), "guest-net count %s", dir);
    FILE *stream = popen(command, "re");
    cr_assert(stream != NULL);
    int fields = fscanf(stream, "%lu %lu %lu", &count.sent, &count.dropped, &count.queued);
    pclose(stream);
    cr_assert_eq(fields, 3, "%s", command);
    return count;
}

/* A packet that left the queue is taken in by a soft interrupt, long before the next program has run. */
void net_drain(const char *dir)
{
    uint64_t deadline_ns = net_now_ns() + UINT64_C(120000000000);
    while (net_count(dir).queued > 0) {
        cr_assert_lt(net_now_ns(), deadline_ns, "packets wait for ever");
        usleep(50000);
    }
    usleep(100000);
}

struct rig *net_rig(uint32_t pages, uint32_t planes)
{
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(&rig_verbs_real_kind, &options);
    rig_region(rig, 0, pages, planes, plane_4k, 1, 0);
    rig_grant(rig, 1, 0, 0, pages);
    cr_assert_eq(rig->kind->lane_open(rig, 0, 5), 0);
    return rig;
}

struct kvf_verbs_counts net_counts_of(struct rig_end *end)
{
    struct kvf_verbs_counts counts;
    kvf_verbs_counts(rig_verbs_transport(end), &counts);
    return counts;
}

void net_fence(struct rig_end *end, uint32_t lane, uint32_t epoch)
{
    uint32_t before = end->fenced_count;
    end->rig->kind->ops->fence(end->transport, lane, epoch);
    cr_assert_eq(end->fenced_count, before + 1);
}

void net_each_completed_once(const struct rig *rig)
{
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        cr_assert_eq(rig->source.completed[i], 1, "post %u completed %u times", i,
                     rig->source.completed[i]);
    }
}

void net_accounts_are_closed(struct rig *rig)
{
    struct rig_end *ends[] = {&rig->source, &rig->sink};
    for (uint32_t i = 0; i < 2; i++) {
        struct kvf_verbs_counts counts = net_counts_of(ends[i]);
        cr_assert_eq(counts.queue_pairs_made, counts.queue_pairs_destroyed);
        cr_assert_eq(counts.posted, counts.reaped, "%s: %lu posted, %lu reaped",
                     i == 0 ? "source" : "sink", counts.posted, counts.reaped);
        cr_assert_eq(counts.written_off, 0);
        cr_assert_eq(counts.completions_stray, 0);
        cr_assert_eq(counts.fences_failed, 0);
        cr_assert_eq(counts.queues_broken, 0);
    }
}

uint64_t net_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void net_turn_for(struct rig *rig, uint64_t ns)
{
    uint64_t deadline_ns = net_now_ns() + ns;
    while (net_now_ns() < deadline_ns) {
        rig_turn(rig, true);
    }
}

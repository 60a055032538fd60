/* What asking costs. A call is timed in batches, since a clock costs more than it; the batches of all kinds take
 * turns. Everything is called through a pointer the compiler cannot see through, as a library's function is. */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/bench/commands.h"

#define CALLS_PER_BATCH 20000u
#define LEDGER_PAGES 4096u
#define LEDGER_PAGES_PER_ROOM 8u
#define COUNTED_CALLS 1000000u
#define ANSWER_MS 5000u

typedef int (*call_fn)(kvf_client *client, kvf_room room);

static _Alignas(64) _Atomic uint64_t loaded_word = 3;

__attribute__((noinline)) static int nothing(kvf_client *client, kvf_room room)
{
    __asm__ volatile("" : : "r"(client), "r"(room) : "memory");
    return KVF_BOOTSTRAPPING;
}

/* What a poll cannot do without: one acquire load of a word that another may write. */
__attribute__((noinline)) static int one_load(kvf_client *client, kvf_room room)
{
    (void)client, (void)room;
    return (int)atomic_load_explicit(&loaded_word, memory_order_acquire);
}

static double batch_ns(call_fn fn, kvf_client *client, kvf_room room, uint32_t calls)
{
    uint32_t sum = 0;
    __asm__ volatile("" : "+r"(fn));
    uint64_t begin = kvf_bench_now_ns();
    for (uint32_t i = 0; i < calls; i++) {
        sum += (uint32_t)fn(client, room);
    }
    uint64_t spent = kvf_bench_now_ns() - begin;
    __asm__ volatile("" : : "r"(sum));
    return (double)spent / calls;
}

/* ---- instructions --------------------------------------------------------------------------------- */

static int open_counter(void)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.type = PERF_TYPE_HARDWARE;
    attr.size = sizeof(attr);
    attr.config = PERF_COUNT_HW_INSTRUCTIONS;
    attr.exclude_kernel = 1;
    attr.exclude_hv = 1;
    attr.disabled = 1;
    long fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

static double instructions_per_call(int fd, call_fn fn, kvf_client *client, kvf_room room)
{
    uint64_t count = 0;
    ioctl(fd, PERF_EVENT_IOC_RESET, 0);
    ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
    (void)batch_ns(fn, client, room, COUNTED_CALLS);
    ioctl(fd, PERF_EVENT_IOC_DISABLE, 0);
    ssize_t n = read(fd, &count, sizeof(count));
    return n == (ssize_t)sizeof(count) ? (double)count / COUNTED_CALLS : 0;
}

static void count_instructions(struct kvf_bench_report *report, struct kvf_figure *poll,
                               kvf_client *client, kvf_room room)
{
    int fd = open_counter();
    if (fd < 0) {
        snprintf(poll->note, sizeof(poll->note),
                 "instructions are not counted here (%s); valgrind --tool=callgrind does",
                 strerror(-fd));
        return;
    }
    double beyond = instructions_per_call(fd, kvf_poll, client, room) -
                    instructions_per_call(fd, nothing, client, room);
    close(fd);
    struct kvf_figure *f = kvf_report_figure(report, "poll.instructions", 1, 0);
    if (f == NULL) {
        return;
    }
    snprintf(f->name, sizeof(f->name), "poll one room, beyond an empty call");
    snprintf(f->unit, sizeof(f->unit), "instr");
    f->target_kind = KVF_TARGET_AT_MOST;
    f->target = 8;
    f->is_target_absolute = true;
    kvf_series_add(&f->series, beyond);
}

/* ---- figures -------------------------------------------------------------------------------------- */

static int open_room(struct kvf_world *world, kvf_room *ret_room)
{
    struct kvf_source_opts opts = {
        .size_bytes = sizeof(opts), .region = world->ends[0].region, .label = 1, .key = 1};
    int rc = kvf_open_source(world->ends[0].client, &opts, ret_room);
    if (rc != 0) {
        fprintf(stderr, "kvfence-bench: cannot open a room: %s\n", kvf_strerror(rc));
        return KVF_BENCH_FAILED;
    }
    return 0;
}

static int measure_poll(struct kvf_world *world, struct kvf_bench_report *report, kvf_room room)
{
    uint32_t repeats = world->options->repeats;
    kvf_client *client = world->ends[0].client;
    struct kvf_figure *f = kvf_report_figure(report, "poll.room", repeats, repeats);
    struct kvf_figure *drained = kvf_report_figure(report, "poll.drained", repeats, repeats);
    if (f == NULL || drained == NULL) {
        return KVF_BENCH_BROKEN;
    }
    snprintf(f->name, sizeof(f->name), "poll one room");
    snprintf(f->beside_name, sizeof(f->beside_name), "one load, called the same way");
    f->target_kind = KVF_TARGET_AT_MOST;
    f->target = 2;
    f->is_target_absolute = true;
    snprintf(drained->name, sizeof(drained->name), "kvf_drained of one room");
    snprintf(drained->beside_name, sizeof(drained->beside_name), "an empty call");
    snprintf(f->unit, sizeof(f->unit), "ns");
    snprintf(drained->unit, sizeof(drained->unit), "ns");
    (void)batch_ns(kvf_poll, client, room, CALLS_PER_BATCH);
    for (uint32_t i = 0; i < repeats; i++) {
        kvf_series_add(&f->series, batch_ns(kvf_poll, client, room, CALLS_PER_BATCH));
        kvf_series_add(&f->beside, batch_ns(one_load, client, room, CALLS_PER_BATCH));
        kvf_series_add(&drained->series, batch_ns(kvf_drained, client, room, CALLS_PER_BATCH));
        kvf_series_add(&drained->beside, batch_ns(nothing, client, room, CALLS_PER_BATCH));
        kvf_progress(world->options, "poll", i, repeats);
    }
    count_instructions(report, f, client, room);
    return kvf_world_check(world);
}

/* Every page was lent to a room that has ended: what an allocator meets every day. */
static int use_pages(struct kvf_world *world)
{
    kvf_client *client = world->ends[0].client;
    const char *writers[] = {world->listen[0]};
    int32_t list[LEDGER_PAGES_PER_ROOM];
    for (uint32_t first = 0; first < LEDGER_PAGES; first += LEDGER_PAGES_PER_ROOM) {
        kvf_room room;
        struct kvf_sink_opts opts = {.size_bytes = sizeof(opts),
                                     .region = world->ends[0].region,
                                     .label = 2 + first,
                                     .key = 2 + first,
                                     .pages = list,
                                     .page_count = LEDGER_PAGES_PER_ROOM,
                                     .writers = writers,
                                     .writer_count = 1};
        for (uint32_t i = 0; i < LEDGER_PAGES_PER_ROOM; i++) {
            list[i] = (int32_t)(first + i);
        }
        int rc = kvf_open_sink(client, &opts, &room);
        if (rc != 0) {
            fprintf(stderr, "kvfence-bench: cannot open a room: %s\n", kvf_strerror(rc));
            return KVF_BENCH_FAILED;
        }
        (void)kvf_abort(client, room, 0);
        if (kvf_world_await(world, 0, room, ANSWER_MS) != KVF_FAILED) {
            return kvf_world_blame(world, 0, room, "after the abort");
        }
        (void)kvf_release(client, room);
    }
    return 0;
}

/* An allocator asks for many pages at once, in no order. */
static int measure_ledger(struct kvf_world *world, struct kvf_bench_report *report,
                          const char *id, const char *what)
{
    static int32_t pages[LEDGER_PAGES];
    uint32_t repeats = world->options->repeats;
    struct kvf_figure *f = kvf_report_figure(report, id, repeats, 0);
    if (f == NULL) {
        return KVF_BENCH_BROKEN;
    }
    snprintf(f->name, sizeof(f->name), "ledger: a page %s", what);
    snprintf(f->unit, sizeof(f->unit), "ns");
    snprintf(f->note, sizeof(f->note), "of %u in random order", LEDGER_PAGES);
    for (uint32_t i = 0; i < LEDGER_PAGES; i++) {
        pages[i] = (int32_t)(i * 2654435761u % LEDGER_PAGES);
    }
    for (uint32_t i = 0; i < repeats; i++) {
        uint64_t begin = kvf_bench_now_ns();
        int rc = kvf_pages_are_idle(world->ends[0].client, world->ends[0].region, pages,
                                    LEDGER_PAGES, NULL);
        kvf_series_add(&f->series, (double)(kvf_bench_now_ns() - begin) / LEDGER_PAGES);
        if (rc != 1) {
            fprintf(stderr, "kvfence-bench: pages read lent that no room holds\n");
            return KVF_BENCH_FAILED;
        }
    }
    return 0;
}

int kvf_bench_poll(const struct kvf_bench_options *options, struct kvf_bench_report *report)
{
    static struct kvf_world world;
    struct kvf_world_plan plan = {
        .name = "poll", .transport = KVF_BENCH_LOCAL, .is_single = true, .rooms_max = 64};
    kvf_room room = 0;
    snprintf(report->setting, sizeof(report->setting),
             "one open room of a real daemon, batches of %u calls", CALLS_PER_BATCH);
    int rc = kvf_world_start(&world, options, &report->cpus, &plan);
    rc = rc != 0 ? rc : kvf_world_regions(&world, 4096, LEDGER_PAGES);
    rc = rc != 0 ? rc : open_room(&world, &room);
    rc = rc != 0 ? rc : measure_poll(&world, report, room);
    rc = rc != 0 ? rc : measure_ledger(&world, report, "poll.ledger_fresh", "never lent");
    rc = rc != 0 ? rc : use_pages(&world);
    rc = rc != 0 ? rc : measure_ledger(&world, report, "poll.ledger_used", "of ended rooms");
    if (rc == 0) {
        (void)kvf_abort(world.ends[0].client, room, 0);
        int state = kvf_world_await(&world, 0, room, ANSWER_MS);
        rc = state == KVF_FAILED ? 0 : kvf_world_blame(&world, 0, room, "after the abort");
    }
    kvf_world_end(&world);
    return rc;
}

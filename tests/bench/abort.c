/* From kvf_abort until the sink's pages are proven idle, while its bytes are on the way. Beside it what cannot be had
 * for less: the bytes that were in flight at the line's rate, and one round trip between engine, daemons and back.
 * Three kinds take turns: a room that is let run, which gives the rate; a room that is aborted before anything was
 * sent, which gives the round trip; and the one in question. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/commands.h"
#include "tests/bench/rooms.h"

#define SHARE_MIN 10u /* per cent of its bytes at which a room is aborted */
#define SHARE_MAX 60u
#define LOOKS_PER_CLOCK 64u
#define RATE_EVERY 8u /* repeats */

struct run {
    const struct kvf_bench_options *options;
    struct kvf_bench_report *report;
    struct kvf_world world;
    int32_t *pages;
    uint32_t room_pages;
    uint64_t room_bytes;
    struct kvf_figure *loaded; /* beside: reckoned */
    struct kvf_figure *empty;  /* nothing in flight */
    struct kvf_figure *in_flight;
    struct kvf_series rates; /* bytes per microsecond */
    struct kvf_series landed_late;
};

static int open_both(struct run *run, struct kvf_room_pair *pair)
{
    uint64_t key = kvf_pair_key();
    *pair = (struct kvf_room_pair){.pages = run->pages, .page_count = run->room_pages};
    int rc = kvf_pair_open_source(&run->world, pair, key);
    rc = rc != 0 ? rc : kvf_pair_open_sink(&run->world, pair, key);
    return rc != 0 ? rc : kvf_pair_await_grant(&run->world, pair);
}

/* Bytes of the pair that have arrived. What a device places nobody counts; its writes' completions are known to the
 * source. */
static uint64_t placed_bytes(struct run *run, const struct kvf_room_pair *pair)
{
    uint32_t at = run->options->transport == KVF_BENCH_VERBS ? KVF_AT_SOURCE : KVF_AT_SINK;
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    int rc = kvf_room_info(run->world.ends[at].client, pair->rooms[at], &info);
    return rc == 0 ? info.placed_bytes : 0;
}

/* The rate of a room that nobody aborts. */
static int measure_rate(struct run *run)
{
    struct kvf_room_pair pair;
    int rc = open_both(run, &pair);
    uint64_t begin_ns = kvf_bench_now_ns();
    rc = rc != 0 ? rc : kvf_pair_submit(&run->world, &pair);
    if (rc != 0) {
        return rc;
    }
    (void)kvf_world_await(&run->world, KVF_AT_SINK, pair.rooms[KVF_AT_SINK], KVF_ROOM_MS);
    double us = (double)(kvf_bench_now_ns() - begin_ns) / 1e3;
    kvf_series_add(&run->rates, (double)run->room_bytes / us);
    return kvf_pair_end(&run->world, &pair, KVF_SUCCESS);
}

/* Aborts the sink's room and waits for the proof. */
static int abort_and_wait(struct run *run, struct kvf_room_pair *pair, double *ret_us)
{
    kvf_client *client = run->world.ends[KVF_AT_SINK].client;
    kvf_room sink = pair->rooms[KVF_AT_SINK];
    uint64_t begin_ns = kvf_bench_now_ns();
    uint64_t end_ns = begin_ns + KVF_ROOM_MS * UINT64_C(1000000);
    int rc = kvf_abort(client, sink, 0);
    for (uint32_t looks = 1; rc == 0; looks++) {
        int proof = kvf_drained(client, sink);
        if (proof > 0) {
            break;
        }
        if (proof != -EAGAIN || (looks % LOOKS_PER_CLOCK == 0 && kvf_bench_now_ns() > end_ns)) {
            rc = proof;
        }
        kvf_world_pause(&run->world);
    }
    *ret_us = (double)(kvf_bench_now_ns() - begin_ns) / 1e3;
    return rc == 0 ? 0 : kvf_world_blame(&run->world, KVF_AT_SINK, sink, "no proof came");
}

static int measure_empty(struct run *run)
{
    struct kvf_room_pair pair;
    double us;
    int rc = open_both(run, &pair);
    rc = rc != 0 ? rc : abort_and_wait(run, &pair, &us);
    if (rc == 0) {
        kvf_series_add(&run->empty->series, us);
        rc = kvf_pair_end(&run->world, &pair, KVF_FAILED);
    }
    return rc;
}

/* Waits until that many bytes have landed. False if the room ended before. */
static bool await_bytes(struct run *run, const struct kvf_room_pair *pair, uint64_t bytes)
{
    while (placed_bytes(run, pair) < bytes) {
        int state = kvf_poll(run->world.ends[KVF_AT_SINK].client, pair->rooms[KVF_AT_SINK]);
        if (state <= KVF_FAILED || state == KVF_SUCCESS) {
            return false;
        }
        kvf_world_pause(&run->world);
    }
    return true;
}

static int measure_loaded(struct run *run, uint32_t repeat)
{
    struct kvf_room_pair pair;
    double us;
    /* Spread over the range without a pattern that a window could fall in step with. */
    uint32_t share = SHARE_MIN + repeat * 37u % (SHARE_MAX - SHARE_MIN + 1);
    int rc = open_both(run, &pair);
    rc = rc != 0 ? rc : kvf_pair_submit(&run->world, &pair);
    if (rc != 0) {
        return rc;
    }
    kvf_room sink = pair.rooms[KVF_AT_SINK];
    (void)await_bytes(run, &pair, run->room_bytes * share / 100u);
    uint64_t before = placed_bytes(run, &pair);
    rc = abort_and_wait(run, &pair, &us);
    if (rc != 0) {
        return rc;
    }
    int state = kvf_world_await(&run->world, KVF_AT_SINK, sink, KVF_ROOM_MS);
    if (state == KVF_FAILED) {
        kvf_series_add(&run->loaded->series, us);
        kvf_series_add(&run->landed_late, (double)(placed_bytes(run, &pair) - before));
    }
    /* An abort that lost the race against the last byte is no abort in flight. */
    return kvf_pair_end(&run->world, &pair, state == KVF_SUCCESS ? KVF_SUCCESS : KVF_FAILED);
}

/* ---- figures -------------------------------------------------------------------------------------- */

static int reckon(struct run *run)
{
    struct kvf_summary rate;
    struct kvf_summary trip;
    struct kvf_summary mine;
    struct kvf_summary floor;
    if (kvf_series_summarize(&run->rates, true, &rate) != 0 ||
        kvf_series_summarize(&run->empty->series, false, &trip) != 0 || rate.median <= 0) {
        return KVF_BENCH_BROKEN;
    }
    for (uint32_t i = 0; i < run->landed_late.count; i++) {
        double bytes = run->landed_late.values[i];
        kvf_series_add(&run->in_flight->series, bytes / 1024.0);
        kvf_series_add(&run->loaded->beside, bytes / rate.median + trip.median);
    }
    if (run->loaded->series.count == 0) {
        fprintf(stderr, "kvfence-bench: every room had arrived before it could be aborted: a "
                        "larger --room-bytes or a smaller --lane-rate keeps them in flight\n");
        return KVF_BENCH_FAILED;
    }
    if (kvf_series_summarize(&run->loaded->series, false, &mine) != 0 ||
        kvf_series_summarize(&run->loaded->beside, false, &floor) != 0) {
        return KVF_BENCH_BROKEN;
    }
    run->loaded->ratio = floor.p99 > 0 ? mine.p99 / floor.p99 : 0;
    run->loaded->has_ratio = floor.p99 > 0;
    snprintf(run->loaded->ratio_name, sizeof(run->loaded->ratio_name), "ratio of the p99s");
    snprintf(run->loaded->note, sizeof(run->loaded->note),
             "%u rooms aborted in flight; the line moves %.1f MB/s", run->loaded->series.count,
             rate.median);
    return 0;
}

static int make_figures(struct run *run, uint64_t page_bytes)
{
    uint32_t repeats = run->options->repeats;
    run->loaded = kvf_report_figure(run->report, "abort.in_flight", repeats, repeats);
    run->empty = kvf_report_figure(run->report, "abort.empty", repeats, 0);
    run->in_flight = kvf_report_figure(run->report, "abort.landed_late", repeats, 0);
    if (run->loaded == NULL || run->empty == NULL || run->in_flight == NULL ||
        kvf_series_make(&run->rates, repeats) != 0 ||
        kvf_series_make(&run->landed_late, repeats) != 0) {
        return KVF_BENCH_BROKEN;
    }
    run->loaded->of = run->empty->of = run->in_flight->of = page_bytes;
    snprintf(run->loaded->name, sizeof(run->loaded->name), "abort to drained, bytes in flight");
    snprintf(run->loaded->unit, sizeof(run->loaded->unit), "us");
    snprintf(run->loaded->beside_name, sizeof(run->loaded->beside_name),
             "those bytes / rate + one round trip");
    run->loaded->target_kind = KVF_TARGET_AT_MOST;
    run->loaded->target = 2;
    snprintf(run->empty->name, sizeof(run->empty->name), "abort to drained, nothing in flight");
    snprintf(run->empty->unit, sizeof(run->empty->unit), "us");
    snprintf(run->in_flight->name, sizeof(run->in_flight->name), "landed after the abort");
    snprintf(run->in_flight->unit, sizeof(run->in_flight->unit), "KiB");
    return 0;
}

static int measure_size(struct run *run, uint64_t page_bytes)
{
    const struct kvf_bench_options *o = run->options;
    uint64_t room = o->room_bytes < page_bytes ? page_bytes : o->room_bytes;
    run->room_pages = (uint32_t)(room / page_bytes);
    run->room_bytes = run->room_pages * page_bytes;
    free(run->pages);
    run->pages = malloc(run->room_pages * sizeof(run->pages[0]));
    if (run->pages == NULL) {
        return KVF_BENCH_BROKEN;
    }
    kvf_scatter(run->pages, 0, run->room_pages);
    int rc = kvf_world_regions(&run->world, page_bytes, run->room_pages);
    rc = rc != 0 ? rc : make_figures(run, page_bytes);
    for (uint32_t i = 0; rc == 0 && i < o->repeats; i++) {
        kvf_progress(o, "aborts", i, o->repeats);
        rc = i % RATE_EVERY == 0 ? measure_rate(run) : 0;
        rc = rc != 0 ? rc : measure_empty(run);
        rc = rc != 0 ? rc : measure_loaded(run, i);
        rc = rc != 0 ? rc : kvf_world_check(&run->world);
    }
    rc = rc != 0 ? rc : reckon(run);
    kvf_series_free(&run->rates);
    kvf_series_free(&run->landed_late);
    return rc;
}

int kvf_bench_abort(const struct kvf_bench_options *options, struct kvf_bench_report *report)
{
    static struct run run;
    struct kvf_world_plan plan = {
        .name = "both", .transport = options->transport, .rooms_max = 64};
    const char *placement = kvf_bench_daemon_value(options, KVF_SIDE_SINK, "tcp-placement");
    run.options = options;
    run.report = report;
    int rc = kvf_world_start(&run.world, options, &report->cpus, &plan);
    snprintf(report->setting, sizeof(report->setting),
             "%s%s%s, %u lane%s, %u MB/s a lane (0: unpaced), %u repeats",
             kvf_bench_transport_name(options->transport), placement != NULL ? " " : "",
             placement != NULL ? placement : "", options->lanes, options->lanes == 1 ? "" : "s",
             options->lane_rate, options->repeats);
    for (uint32_t i = 0; rc == 0 && i < options->size_count; i++) {
        rc = measure_size(&run, options->sizes[i]);
    }
    kvf_world_end(&run.world);
    free(run.pages);
    return rc;
}

/* Rooms between two engines through real daemons: how many bytes a second with several rooms in flight, and how long
 * one room takes from the engine's call until it reads Success. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/commands.h"
#include "tests/bench/plain.h"
#include "tests/bench/rooms.h"
#include "tests/bench/tools.h"

#define IN_FLIGHT_MAX 64u

struct run {
    const struct kvf_bench_options *options;
    struct kvf_bench_report *report;
    struct kvf_world world;
    struct kvf_plain plain;
    enum kvf_bench_beside beside;
    uint64_t page_bytes;
    uint32_t room_pages;
    uint64_t rooms_per_repeat;
    int32_t *pages; /* in_flight lists of room_pages each */
    struct kvf_room_pair pairs[IN_FLIGHT_MAX];
    struct kvf_figure *rate;
    struct kvf_figure *room; /* one of several */
    struct kvf_figure *single_open;
    struct kvf_figure *single_submit;
};

/* ---- what stands beside --------------------------------------------------------------------------- */

static enum kvf_bench_beside choose_beside(const struct kvf_bench_options *o)
{
    char path[512];
    if (o->beside != KVF_BESIDE_AUTO) {
        return o->beside;
    }
    switch (o->transport) {
    case KVF_BENCH_LOCAL:
        return KVF_BESIDE_MEMCPY;
    case KVF_BENCH_VERBS:
        return KVF_BESIDE_PERFTEST;
    case KVF_BENCH_TCP:
        break;
    }
    return kvf_tool_find("iperf3", path, sizeof(path)) == 0 ? KVF_BESIDE_IPERF3
                                                            : KVF_BESIDE_PLAIN;
}

static const char *beside_name(enum kvf_bench_beside beside)
{
    switch (beside) {
    case KVF_BESIDE_PLAIN:
        return "a plain loop of write and read, one stream";
    case KVF_BESIDE_IPERF3:
        return "iperf3, one stream";
    case KVF_BESIDE_MEMCPY:
        return "memcpy of the same blocks";
    case KVF_BESIDE_PERFTEST:
        return "ib_write_bw, as many queue pairs";
    case KVF_BESIDE_AUTO:
    case KVF_BESIDE_NONE:
        break;
    }
    return "";
}

/* A run of perftest that could not tell its clock is no sample, and is said so. */
static void add_beside(struct kvf_figure *f, double value)
{
    if (value > 0) {
        kvf_series_add(&f->beside, value);
    } else {
        snprintf(f->note, sizeof(f->note),
                 "perftest (ib_write_bw, ib_write_lat) could not tell its clock in some runs");
    }
}

static int beside_rate(struct run *run)
{
    const struct kvf_bench_options *o = run->options;
    double mb_per_s = 0;
    int rc = 0;
    switch (run->beside) {
    case KVF_BESIDE_PLAIN:
        rc = kvf_plain_stream(&run->plain, o->bytes, &mb_per_s);
        if (rc != 0) {
            fprintf(stderr, "kvfence-bench: the plain stream broke: %s\n", strerror(-rc));
            return KVF_BENCH_BROKEN;
        }
        break;
    case KVF_BESIDE_IPERF3:
        rc = kvf_tool_iperf3(&run->world.cpus, o->bytes, &mb_per_s);
        break;
    case KVF_BESIDE_MEMCPY:
        mb_per_s = kvf_plain_copy(&run->plain, run->pages, o->in_flight * run->room_pages,
                                  run->page_bytes, o->bytes);
        break;
    case KVF_BESIDE_PERFTEST:
        rc = kvf_tool_write_bw(o, &run->world.cpus, run->page_bytes, &mb_per_s);
        break;
    case KVF_BESIDE_AUTO:
    case KVF_BESIDE_NONE:
        return 0;
    }
    if (rc == 0) {
        add_beside(run->rate, mb_per_s);
    }
    return rc;
}

static int beside_single(struct run *run)
{
    const struct kvf_bench_options *o = run->options;
    double us;
    int rc;
    switch (run->beside) {
    case KVF_BESIDE_PLAIN:
    case KVF_BESIDE_IPERF3:
        rc = kvf_plain_ask(&run->plain, run->page_bytes, o->single_rooms,
                           &run->single_open->beside);
        if (rc != 0) {
            fprintf(stderr, "kvfence-bench: the plain questions broke: %s\n", strerror(-rc));
            return KVF_BENCH_BROKEN;
        }
        return 0;
    case KVF_BESIDE_PERFTEST:
        rc = kvf_tool_write_lat(o, &run->world.cpus, run->page_bytes, &us);
        if (rc == 0) {
            add_beside(run->single_submit, us);
        }
        return rc;
    case KVF_BESIDE_MEMCPY: /* a room is no copy: what it costs beside one says nothing */
    case KVF_BESIDE_AUTO:
    case KVF_BESIDE_NONE:
        break;
    }
    return 0;
}

/* ---- ours ----------------------------------------------------------------------------------------- */

static int open_pair(struct run *run, struct kvf_room_pair *pair)
{
    uint64_t key = kvf_pair_key();
    int rc = kvf_pair_open_source(&run->world, pair, key);
    rc = rc != 0 ? rc : kvf_pair_submit(&run->world, pair);
    return rc != 0 ? rc : kvf_pair_open_sink(&run->world, pair, key);
}

/* Looks at a pair once. 1: both rooms have ended in Success and were let go; 0: not yet; else minus an exit status. */
static int look_at(struct run *run, struct kvf_room_pair *pair, uint64_t *ret_last_ns)
{
    int sink = kvf_poll(run->world.ends[KVF_AT_SINK].client, pair->rooms[KVF_AT_SINK]);
    if (sink > KVF_FAILED && sink < KVF_SUCCESS) {
        return 0;
    }
    if (pair->sink_end_ns == 0) {
        pair->sink_end_ns = kvf_bench_now_ns();
        *ret_last_ns = pair->sink_end_ns;
    }
    int source = kvf_poll(run->world.ends[KVF_AT_SOURCE].client, pair->rooms[KVF_AT_SOURCE]);
    if (sink == KVF_SUCCESS && source > KVF_FAILED && source < KVF_SUCCESS) {
        return 0;
    }
    uint64_t room_ns = pair->sink_end_ns - pair->begin_ns;
    int rc = kvf_pair_end(&run->world, pair, KVF_SUCCESS);
    if (rc == 0 && run->room != NULL) {
        kvf_series_add(&run->room->series, (double)room_ns / 1e3);
    }
    return rc == 0 ? 1 : -rc;
}

/* Keeps in_flight rooms open until rooms_per_repeat of them have succeeded. A sample for each room goes to
 * run->room unless it is NULL. */
static int move_rooms(struct run *run, double *ret_mb_per_s)
{
    uint64_t opened = 0;
    uint64_t ended = 0;
    uint32_t looks = 0;
    uint64_t begin_ns = kvf_bench_now_ns();
    uint64_t last_ns = begin_ns; /* when a sink room was seen to have ended */
    while (ended < run->rooms_per_repeat) {
        bool is_moved = false;
        for (uint32_t i = 0; i < run->options->in_flight; i++) {
            struct kvf_room_pair *pair = &run->pairs[i];
            int rc = pair->rooms[KVF_AT_SINK] == 0 ? 0 : look_at(run, pair, &last_ns);
            if (rc < 0) {
                return -rc;
            }
            ended += (uint64_t)rc;
            is_moved = is_moved || rc > 0;
            if (pair->rooms[KVF_AT_SINK] == 0 && opened < run->rooms_per_repeat) {
                rc = open_pair(run, pair);
                if (rc != 0) {
                    return rc;
                }
                opened++;
                is_moved = true;
            }
        }
        if (!is_moved) {
            kvf_world_pause(&run->world);
            if (++looks % 1024 == 0 &&
                (kvf_process_signal() != 0 ||
                 kvf_bench_now_ns() - last_ns > KVF_ROOM_MS * UINT64_C(1000000))) {
                return kvf_world_blame(&run->world, KVF_AT_SINK,
                                       run->pairs[0].rooms[KVF_AT_SINK], "nothing moves");
            }
        }
    }
    double bytes = (double)ended * run->room_pages * (double)run->page_bytes;
    *ret_mb_per_s = bytes * 1e3 / (double)(last_ns - begin_ns);
    return 0;
}

/* The source's pages were submitted before the sink asks: what a decode worker waits for after prefill. */
static int single_open(struct run *run, struct kvf_room_pair *pair, bool is_counted)
{
    int rc = open_pair(run, pair);
    if (rc != 0) {
        return rc;
    }
    int state =
        kvf_world_await(&run->world, KVF_AT_SINK, pair->rooms[KVF_AT_SINK], KVF_ROOM_MS);
    uint64_t now_ns = kvf_bench_now_ns();
    if (state == KVF_SUCCESS && is_counted) {
        kvf_series_add(&run->single_open->series, (double)(now_ns - pair->begin_ns) / 1e3);
    }
    return kvf_pair_end(&run->world, pair, KVF_SUCCESS);
}

/* The grant is there before the pages are: what is left to wait for when prefill ends. */
static int single_submit(struct run *run, struct kvf_room_pair *pair, bool is_counted)
{
    uint64_t key = kvf_pair_key();
    int rc = kvf_pair_open_source(&run->world, pair, key);
    rc = rc != 0 ? rc : kvf_pair_open_sink(&run->world, pair, key);
    rc = rc != 0 ? rc : kvf_pair_await_grant(&run->world, pair);
    uint64_t begin_ns = kvf_bench_now_ns();
    rc = rc != 0 ? rc : kvf_pair_submit(&run->world, pair);
    if (rc != 0) {
        return rc;
    }
    int state =
        kvf_world_await(&run->world, KVF_AT_SINK, pair->rooms[KVF_AT_SINK], KVF_ROOM_MS);
    uint64_t now_ns = kvf_bench_now_ns();
    if (state == KVF_SUCCESS && is_counted) {
        kvf_series_add(&run->single_submit->series, (double)(now_ns - begin_ns) / 1e3);
    }
    return kvf_pair_end(&run->world, pair, KVF_SUCCESS);
}

static int move_singles(struct run *run, uint32_t count, bool is_counted)
{
    uint32_t all = run->options->in_flight * run->room_pages;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        struct kvf_room_pair pair = {.pages = &run->pages[i % all], .page_count = 1};
        rc = single_open(run, &pair, is_counted);
        rc = rc != 0 ? rc : single_submit(run, &pair, is_counted);
    }
    return rc;
}

/* ---- figures -------------------------------------------------------------------------------------- */

static void size_text(uint64_t bytes, char *ret_text, size_t cap)
{
    static const char suffixes[] = " KMG";
    unsigned int i = 0;
    while (bytes % 1024 == 0 && bytes > 0 && i < 3) {
        bytes /= 1024;
        i++;
    }
    if (i == 0) {
        snprintf(ret_text, cap, "%llu", (unsigned long long)bytes);
    } else {
        snprintf(ret_text, cap, "%llu%c", (unsigned long long)bytes, suffixes[i]);
    }
}

/* The figure of a time in microseconds, with room for `samples` and as many beside it. */
static struct kvf_figure *time_figure(struct run *run, const char *id, const char *page,
                                      const char *what, uint32_t samples)
{
    struct kvf_figure *f =
        samples == 0 ? NULL : kvf_report_figure(run->report, id, samples, samples);
    if (f != NULL) {
        snprintf(f->name, sizeof(f->name), "%s pages: %s", page, what);
        snprintf(f->unit, sizeof(f->unit), "us");
        f->of = run->page_bytes;
    }
    return f;
}

static void set_targets(struct run *run)
{
    bool is_verbs = run->options->transport == KVF_BENCH_VERBS;
    if (run->page_bytes >= 65536 && run->options->lane_rate == 0) {
        run->rate->target_kind = KVF_TARGET_AT_LEAST;
        run->rate->target = is_verbs ? 0.97 : 0.95;
    }
    if (is_verbs && run->single_submit != NULL) {
        run->single_submit->target_kind = KVF_TARGET_AT_MOST;
        run->single_submit->target = 1.15;
        snprintf(
            run->single_submit->note, sizeof(run->single_submit->note),
            "the target allows a round trip of the command ring more (kvfence-bench ring)");
    }
}

static int make_figures(struct run *run)
{
    const struct kvf_bench_options *o = run->options;
    uint32_t singles = o->repeats * o->single_rooms;
    char page[24];
    char what[48];
    size_text(run->page_bytes, page, sizeof(page));
    run->rate = kvf_report_figure(run->report, "transfer.rate", o->repeats, o->repeats);
    snprintf(what, sizeof(what), "a room of %u, %u in flight", run->room_pages, o->in_flight);
    run->room = time_figure(run, "transfer.room", page, what,
                            (uint32_t)(run->rooms_per_repeat * o->repeats));
    run->single_open = time_figure(run, "transfer.open_to_success", page,
                                   "one alone, open to Success", singles);
    run->single_submit = time_figure(run, "transfer.submit_to_success", page,
                                     "one alone, submit to Success", singles);
    if (run->rate == NULL || run->room == NULL ||
        (singles > 0 && (run->single_open == NULL || run->single_submit == NULL))) {
        return KVF_BENCH_BROKEN;
    }
    snprintf(run->rate->name, sizeof(run->rate->name), "%s pages: %s", page, what);
    snprintf(run->rate->unit, sizeof(run->rate->unit), "MB/s");
    snprintf(run->rate->beside_name, sizeof(run->rate->beside_name), "%s",
             beside_name(run->beside));
    run->rate->is_rate = true;
    run->rate->of = run->page_bytes;
    if (run->single_open != NULL) {
        snprintf(run->single_open->beside_name, sizeof(run->single_open->beside_name),
                 "64 bytes there, a page back, plain sockets");
        snprintf(run->single_submit->beside_name, sizeof(run->single_submit->beside_name),
                 "ib_write_lat, typical");
    }
    set_targets(run);
    return 0;
}

/* ---- a size --------------------------------------------------------------------------------------- */

/* The first room of a size moves a pattern, and it must be there afterwards: a fast nothing is no figure. */
static int check_bytes(struct run *run)
{
    unsigned char *from = run->plain.from;
    double mb_per_s;
    for (uint64_t i = 0; i < run->plain.bytes; i++) {
        from[i] = (unsigned char)(i * 31 + i / 4096 + 7);
    }
    memset(run->plain.to, 0, run->plain.bytes);
    struct kvf_figure *room = run->room;
    uint64_t rooms = run->rooms_per_repeat;
    run->room = NULL;
    run->rooms_per_repeat = run->options->in_flight;
    int rc = move_rooms(run, &mb_per_s);
    run->room = room;
    run->rooms_per_repeat = rooms;
    if (rc == 0 && memcmp(from, run->plain.to, run->plain.bytes) != 0) {
        fprintf(stderr, "kvfence-bench: bytes that arrived are not those that were sent\n");
        rc = KVF_BENCH_FAILED;
    }
    return rc;
}

static int prepare_size(struct run *run, uint64_t page_bytes)
{
    const struct kvf_bench_options *o = run->options;
    uint64_t room = o->room_bytes < page_bytes ? page_bytes : o->room_bytes;
    run->page_bytes = page_bytes;
    run->room_pages = (uint32_t)(room / page_bytes);
    uint64_t room_bytes = run->room_pages * page_bytes;
    run->rooms_per_repeat = (o->bytes + room_bytes - 1) / room_bytes;
    uint64_t all = (uint64_t)o->in_flight * run->room_pages;
    free(run->pages);
    run->pages = malloc(all * sizeof(run->pages[0]));
    if (run->pages == NULL || run->rooms_per_repeat * o->repeats > UINT32_MAX) {
        fprintf(stderr, "kvfence-bench: no memory for page lists and samples\n");
        return KVF_BENCH_BROKEN;
    }
    for (uint32_t i = 0; i < o->in_flight; i++) {
        int32_t *list = &run->pages[(uint64_t)i * run->room_pages];
        kvf_scatter(list, i * run->room_pages, run->room_pages);
        run->pairs[i] = (struct kvf_room_pair){.pages = list, .page_count = run->room_pages};
    }
    int rc = kvf_world_regions(&run->world, page_bytes, all);
    if (rc != 0) {
        return rc;
    }
    run->plain = (struct kvf_plain){.from = kvf_pool_addr(run->world.ends[KVF_AT_SOURCE].pool),
                                    .to = kvf_pool_addr(run->world.ends[KVF_AT_SINK].pool),
                                    .bytes = all * page_bytes,
                                    .cpus = run->world.cpus};
    return 0;
}

static int measure_size(struct run *run, uint64_t page_bytes)
{
    const struct kvf_bench_options *o = run->options;
    char what[64];
    char page[24];
    double mb_per_s;
    int rc = prepare_size(run, page_bytes);
    rc = rc != 0 ? rc : make_figures(run);
    rc = rc != 0 ? rc : check_bytes(run);
    rc = rc != 0 ? rc : move_singles(run, o->single_rooms < 10 ? o->single_rooms : 10, false);
    size_text(page_bytes, page, sizeof(page));
    snprintf(what, sizeof(what), "pages of %s, repeats", page);
    for (uint32_t i = 0; rc == 0 && i < o->repeats; i++) {
        kvf_progress(o, what, i, o->repeats);
        rc = move_rooms(run, &mb_per_s);
        if (rc == 0) {
            kvf_series_add(&run->rate->series, mb_per_s);
            rc = beside_rate(run);
        }
        rc = rc != 0 ? rc : move_singles(run, o->single_rooms, true);
        if (rc == 0 && o->single_rooms > 0) {
            rc = beside_single(run);
        }
        rc = rc != 0 ? rc : kvf_world_check(&run->world);
    }
    return rc;
}

static void describe(const struct run *run)
{
    const struct kvf_bench_options *o = run->options;
    char room[24];
    char bytes[24];
    size_text(o->room_bytes, room, sizeof(room));
    size_text(o->bytes, bytes, sizeof(bytes));
    snprintf(run->report->setting, sizeof(run->report->setting),
             "%s%s%s, %u lane%s, rooms of %s, %s a repeat, %u repeats",
             kvf_bench_transport_name(o->transport), run->world.engine[0] != 0 ? " by " : "",
             run->world.engine, o->lanes, o->lanes == 1 ? "" : "s", room, bytes, o->repeats);
}

int kvf_bench_transfer(const struct kvf_bench_options *options, struct kvf_bench_report *report)
{
    static struct run run;
    struct kvf_world_plan plan = {
        .name = "both", .transport = options->transport, .rooms_max = 256};
    run.options = options;
    run.report = report;
    run.beside = choose_beside(options);
    int rc = kvf_world_start(&run.world, options, &report->cpus, &plan);
    if (rc == 0) {
        describe(&run);
    }
    for (uint32_t i = 0; rc == 0 && i < options->size_count; i++) {
        rc = measure_size(&run, options->sizes[i]);
    }
    kvf_world_end(&run.world);
    free(run.pages);
    return rc;
}

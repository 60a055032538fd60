/* What a command and a poll cost with few and with many rooms open. Each number of rooms has a daemon of its own, so
 * that the repeats of all numbers can take turns; a daemon whose turn it is not sleeps. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/commands.h"

#define ROOMS_MAX 65536u /* of a client */
#define LIVES_PER_SAMPLE 32u
#define POLLS_PER_SAMPLE 65536u
#define ANSWER_MS 60000u
#define TARGET 1.2

struct step {
    struct kvf_world world;
    uint32_t count;
    kvf_room *rooms; /* those that stay; one more comes and goes, at most ROOMS_MAX together */
    uint32_t room_count;
    struct kvf_figure *life;
    struct kvf_figure *poll_one;
    struct kvf_figure *poll_all;
};

static int open_room(struct kvf_world *world, uint64_t key, kvf_room *ret_room)
{
    struct kvf_source_opts opts = {
        .size_bytes = sizeof(opts), .region = world->ends[0].region, .label = key, .key = key};
    uint64_t end_ns = kvf_bench_now_ns() + ANSWER_MS * UINT64_C(1000000);
    int rc;
    /* -EAGAIN: the ring is full for as long as the daemon has not caught up. */
    while ((rc = kvf_open_source(world->ends[0].client, &opts, ret_room)) == -EAGAIN &&
           kvf_bench_now_ns() < end_ns) {
        kvf_world_pause(world);
    }
    if (rc != 0) {
        fprintf(stderr, "kvfence-bench: a room was refused: %s\n", kvf_strerror(rc));
        return KVF_BENCH_FAILED;
    }
    return 0;
}

/* A room's shortest life: opened, aborted, proven, released. Two commands, and the daemon's answer. */
static int live(struct kvf_world *world, uint64_t key)
{
    kvf_room room;
    int rc = open_room(world, key, &room);
    if (rc != 0) {
        return rc;
    }
    (void)kvf_abort(world->ends[0].client, room, 0);
    if (kvf_world_await(world, 0, room, ANSWER_MS) != KVF_FAILED) {
        return kvf_world_blame(world, 0, room, "an abort did not end the room");
    }
    (void)kvf_release(world->ends[0].client, room);
    return 0;
}

static int sample_lives(struct step *step)
{
    uint64_t begin_ns = kvf_bench_now_ns();
    for (uint32_t i = 0; i < LIVES_PER_SAMPLE; i++) {
        int rc = live(&step->world, UINT64_C(1) << 40);
        if (rc != 0) {
            return rc;
        }
    }
    double us = (double)(kvf_bench_now_ns() - begin_ns) / 1e3;
    kvf_series_add(&step->life->series, us / LIVES_PER_SAMPLE);
    return 0;
}

static double polls_ns(struct step *step, uint32_t rooms)
{
    kvf_client *client = step->world.ends[0].client;
    uint32_t sum = 0;
    uint32_t at = 0;
    uint64_t begin_ns = kvf_bench_now_ns();
    for (uint32_t i = 0; i < POLLS_PER_SAMPLE; i++) {
        sum += (uint32_t)kvf_poll(client, step->rooms[at]);
        at = at + 1 == rooms ? 0 : at + 1;
    }
    double ns = (double)(kvf_bench_now_ns() - begin_ns);
    __asm__ volatile("" : : "r"(sum));
    return ns / POLLS_PER_SAMPLE;
}

static int make_figures(struct kvf_bench_report *report, struct step *step, uint32_t repeats)
{
    struct kvf_figure **figures[] = {&step->life, &step->poll_one, &step->poll_all};
    static const char *const names[] = {"open, abort, proof, release", "poll one of them",
                                        "poll all of them in turn"};
    static const char *const ids[] = {"scale.life", "scale.poll_one", "scale.poll_all"};
    for (int i = 0; i < 3; i++) {
        struct kvf_figure *f = kvf_report_figure(report, ids[i], repeats, repeats);
        if (f == NULL) {
            return KVF_BENCH_BROKEN;
        }
        snprintf(f->name, sizeof(f->name), "%u open: %s", step->count, names[i]);
        snprintf(f->unit, sizeof(f->unit), i == 0 ? "us" : "ns");
        f->of = step->count;
        *figures[i] = f;
    }
    return 0;
}

static int start_step(struct step *step, uint32_t count,
                      const struct kvf_bench_options *options, struct kvf_bench_report *report)
{
    struct kvf_world_plan plan = {.name = "scale",
                                  .transport = KVF_BENCH_LOCAL,
                                  .is_single = true,
                                  .rooms_max = count < ROOMS_MAX ? count + 1 : ROOMS_MAX};
    step->count = count;
    step->room_count = plan.rooms_max - 1;
    step->rooms = calloc(step->room_count, sizeof(step->rooms[0]));
    if (step->rooms == NULL) {
        return KVF_BENCH_BROKEN;
    }
    int rc = kvf_world_start(&step->world, options, &report->cpus, &plan);
    rc = rc != 0 ? rc : kvf_world_regions(&step->world, 4096, 1);
    rc = rc != 0 ? rc : make_figures(report, step, options->repeats);
    for (uint32_t i = 0; rc == 0 && i < step->room_count; i++) {
        rc = open_room(&step->world, i + 1, &step->rooms[i]);
        if (i % 1024 == 0) {
            kvf_progress(options, "opening rooms", i, step->room_count);
        }
    }
    return rc != 0 ? rc : live(&step->world, UINT64_C(1) << 40); /* all before it were read */
}

static int measure(struct step *step)
{
    int rc = sample_lives(step);
    if (rc == 0) {
        kvf_series_add(&step->poll_one->series, polls_ns(step, 1));
        kvf_series_add(&step->poll_all->series, polls_ns(step, step->room_count));
        rc = kvf_world_check(&step->world);
    }
    return rc;
}

static void copy_beside(struct kvf_figure *to, const struct kvf_figure *from, uint32_t count,
                        bool is_judged)
{
    snprintf(to->beside_name, sizeof(to->beside_name), "the same with %u open", count);
    for (uint32_t i = 0; i < from->series.count; i++) {
        kvf_series_add(&to->beside, from->series.values[i]);
    }
    if (is_judged) {
        to->target_kind = KVF_TARGET_AT_MOST;
        to->target = TARGET;
    }
}

int kvf_bench_scale(const struct kvf_bench_options *options, struct kvf_bench_report *report)
{
    static struct step steps[KVF_BENCH_SIZES_MAX];
    uint32_t count = options->count_count;
    int rc = 0;
    snprintf(report->setting, sizeof(report->setting),
             "source rooms that wait, a daemon for each number, %u lives a sample, %u repeats",
             LIVES_PER_SAMPLE, options->repeats);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        rc = start_step(&steps[i], options->counts[i], options, report);
    }
    for (uint32_t repeat = 0; rc == 0 && repeat < options->repeats; repeat++) {
        kvf_progress(options, "repeats", repeat, options->repeats);
        for (uint32_t i = 0; rc == 0 && i < count; i++) {
            rc = measure(&steps[i]);
        }
    }
    for (uint32_t i = 1; rc == 0 && i < count; i++) {
        copy_beside(steps[i].life, steps[0].life, steps[0].count, true);
        copy_beside(steps[i].poll_one, steps[0].poll_one, steps[0].count, true);
        copy_beside(steps[i].poll_all, steps[0].poll_all, steps[0].count, false);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (steps[i].world.options != NULL) {
            kvf_world_end(&steps[i].world);
        }
        free(steps[i].rooms);
    }
    return rc;
}

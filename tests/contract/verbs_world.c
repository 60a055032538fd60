#include "tests/contract/verbs_world.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS UINT64_C(100000)
#define WAIT_TURNS 20000u

static uint64_t on_now(void *ctx)
{
    (void)ctx;
    return fake_now_ns();
}

static void on_ready(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_lane_end *end)
{
    struct world *w = ctx;
    (void)epoch;
    w->ends[lane] = *end;
    w->ready[lane] = true;
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct world *w = ctx;
    w->lost[lane] = err;
    kvf_verbs_ops.fence(w->t, lane, epoch);
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct world *w = ctx;
    (void)epoch;
    w->fenced[lane] = true;
}

static void on_flushed(void *ctx, uint64_t cookie, int err)
{
    struct world *w = ctx;
    cr_assert_lt(w->told, WORLD_TOLD);
    w->is_told = true;
    w->cookies[w->told] = cookie;
    w->errs[w->told++] = err;
}

static void on_rail(void *ctx, const char *device, int err, bool is_final, const char *why)
{
    struct world *w = ctx;
    uint32_t number = (uint32_t)(device[4] - '0');
    cr_assert_neq(why[0], 0);
    w->rail_told[number]++;
    w->rail_errs[number] = err;
    w->rail_is_final[number] = is_final;
}

void world_begin(struct world *w, const char *rails, const struct kvf_verbs_lib *lib)
{
    struct kvf_transport_config config = {
        .lanes_max = WORLD_LANES, .turn_bytes_max = 65536, .posts_per_lane_max = 64};
    struct kvf_verbs_config verbs = {.rail_count = (uint32_t)strlen(rails),
                                     .port = 1,
                                     .receives_per_lane = 16,
                                     .timeout = 12,
                                     .retry = 3,
                                     .stall_ns = UINT64_C(10000000000),
                                     .reap_ns = UINT64_C(200000000)};
    struct kvf_transport_host host = {.ctx = w,
                                      .now_fn = on_now,
                                      .ready_fn = on_ready,
                                      .up_fn = on_up,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_fenced,
                                      .flushed_fn = on_flushed,
                                      .rail_fn = on_rail};
    for (uint32_t i = 0; i < verbs.rail_count; i++) {
        (void)snprintf(verbs.rails[i], sizeof(verbs.rails[i]), "fake%c", rails[i]);
    }
    *w = (struct world){.memfd = memfd_create("device", MFD_CLOEXEC)};
    cr_assert_eq(ftruncate(w->memfd, (off_t)WORLD_BYTES), 0);
    w->create_err = kvf_verbs_create(&config, &verbs, &host, lib == NULL ? fake_lib() : lib,
                                     &w->t, w->why, sizeof(w->why));
}

void world_turn(struct world *w)
{
    const struct timespec pause = {.tv_nsec = 100000}; /* other threads make queue pairs */
    kvf_verbs_ready(w->t);
    (void)kvf_verbs_ops.poll(w->t);
    fake_advance(fake_now_ns() + TURN_NS);
    nanosleep(&pause, NULL);
}

void world_turns(struct world *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        world_turn(w);
    }
}

bool world_until(struct world *w, const bool *flag)
{
    for (uint32_t i = 0; i < WAIT_TURNS && !*flag; i++) {
        world_turn(w);
    }
    return *flag;
}

void world_wait_told(struct world *w, uint32_t count)
{
    for (uint32_t i = 0; i < WAIT_TURNS && w->told < count; i++) {
        world_turn(w);
    }
    cr_assert_eq(w->told, count);
}

int world_open_sink(struct world *w, uint32_t lane)
{
    struct kvf_lane_open open = {
        .lane = lane, .epoch = WORLD_EPOCH, .lane_idx = lane, .accepted_fd = -1};
    w->ready[lane] = false;
    w->fenced[lane] = false;
    w->lost[lane] = 0;
    return kvf_verbs_ops.open(w->t, &open);
}

int world_take_memory(struct world *w)
{
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.takes_dmabuf = true;
    fake_set(&knobs);
    return kvf_verbs_register(w->t, (void *)(uintptr_t)WORLD_BASE, WORLD_BYTES, w->memfd, 0,
                              &w->memory);
}

void world_end(struct world *w)
{
    if (w->memory != NULL) {
        cr_assert_eq(kvf_verbs_unregister(w->t, w->memory), 0);
    }
    kvf_verbs_ops.close(w->t);
    cr_assert_eq(world_objects(), 0, "%llu objects are left",
                 (unsigned long long)world_objects());
    close(w->memfd);
}

uint64_t world_reads(void)
{
    struct fake_counts counts;
    fake_counts(&counts);
    return counts.reads;
}

uint64_t world_objects(void)
{
    struct fake_counts counts;
    fake_counts(&counts);
    return counts.objects;
}

uint64_t world_qps_made(void)
{
    struct fake_counts counts;
    fake_counts(&counts);
    return counts.qps_made;
}

/* What an engine can do between any two instructions of the worker's turn over its segment. */
#include <criterion/criterion.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring/spsc.h"
#include "sidecar/clients.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "tests/unit/step.h"

#define EPOCH UINT64_C(0x1001)

/* Time stands still here, in place of host/clock.c: a step takes as long as a thousand instructions, and a turn
 * would end at its limit of time. */
uint64_t kvf_clock_now_ns(void)
{
    return 1;
}
uint64_t kvf_clock_thread_cpu_ns(void)
{
    return 1;
}

static struct {
    struct kvf_core *core;
    struct kvf_clients *clients;
    struct kvf_segment view; /* the engine's own mapping */
    struct kvf_spsc_producer commands;
    uint64_t generation;
    uint32_t added;
    uint32_t bad;
    bool may_sleep; /* what the worker concluded */
    bool is_rung;   /* what the engine did */
} s;

static void on_added(void *ctx, uint32_t client, uint32_t code)
{
    (void)ctx;
    (void)client;
    cr_assert_eq(code, 0);
    s.added++;
}
static void on_bad(void *ctx, uint32_t client, uint32_t code)
{
    (void)ctx;
    (void)client;
    (void)code;
    s.bad++;
}
static void on_removed(void *ctx, uint32_t client)
{
    (void)ctx;
    (void)client;
}

static struct kvf_core *make_core(void)
{
    const struct kvf_core_limits limits = {.clients_max = 1,
                                           .rooms_per_client_max = 8,
                                           .peers_max = 2,
                                           .lanes_per_peer = 1,
                                           .grants_max = 64,
                                           .runs_max = 64,
                                           .pieces_max = 16,
                                           .parked_per_peer_max = 4};
    const struct kvf_core_config config = {.supervisor_id = 1,
                                           .worker_starts = 1,
                                           .transport = KVF_WIRE_TCP,
                                           .placement = KVF_PLACEMENT_CHECKED,
                                           .lane_rooms = 4};
    const uint64_t seed[4] = {1, 2, 3, 4};
    size_t bytes =
        (kvf_core_bytes(&limits) + KVF_LINE_BYTES - 1) / KVF_LINE_BYTES * KVF_LINE_BYTES;
    void *memory = aligned_alloc(KVF_LINE_BYTES, bytes);
    cr_assert_neq(memory, NULL);
    memset(memory, 0, bytes);
    return kvf_core_init(memory, &limits, &config, seed);
}

static struct kvf_stats_shm *make_stats(void)
{
    uint32_t count = 0;
    const struct kvf_stats_def *defs = kvf_daemon_stats_defs(&count);
    struct kvf_stats_shm *stats = calloc(1, kvf_stats_bytes(defs, count));
    cr_assert_neq(stats, NULL);
    cr_assert_eq(kvf_stats_format(stats, "gpu0", "0", defs, count), 0);
    return stats;
}

/* One client, attached and served. */
static void begin(void)
{
    if (!STEP_IS_HERE) {
        cr_skip_test("single steps need x86-64, and no sanitizer beside them");
    }
    const struct kvf_segment_limits limits = {.rooms_max = 8,
                                              .cmd_slots = 8,
                                              .event_slots = 8,
                                              .arena_bytes = 4096,
                                              .regions_max = 1};
    const struct kvf_clients_config config = {.clients_max = 1,
                                              .worker_epoch = EPOCH,
                                              .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                                              .stats = make_stats()};
    const struct kvf_clients_host host = {
        .added_fn = on_added, .bad_fn = on_bad, .removed_fn = on_removed};
    struct kvf_helper *helper = NULL;
    int pair[2];
    int fds[3];
    s.core = make_core();
    cr_assert_eq(kvf_helper_create(&helper), 0);
    cr_assert_eq(kvf_clients_create(&config, s.core, helper, &host, &s.clients), 0);
    cr_assert_eq(kvf_segment_create(&limits, 1, &fds[0]), 0);
    cr_assert_eq(kvf_segment_map(fds[0], false, &s.view), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    fds[1] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fds[2] = pair[0];
    cr_assert_eq(kvf_clients_add(s.clients, 0, fds), 0);
    struct pollfd p = {.fd = kvf_helper_fd(helper), .events = POLLIN};
    struct kvf_job *job = NULL;
    while (job == NULL) {
        cr_assert_eq(poll(&p, 1, 10000), 1);
        job = kvf_helper_take(helper);
    }
    cr_assert(kvf_clients_job_back(s.clients, 1, job));
    cr_assert_eq(s.added, 1);
    kvf_spsc_producer_init(&s.commands, s.view.cmd_slots, limits.cmd_slots, 0);
}

/* ---- falling asleep ------------------------------------------------------------------------------------- */

static void sleep_it(void *ctx)
{
    (void)ctx;
    s.may_sleep = kvf_clients_sleep(s.clients);
}
static bool sees_sleeper(void)
{
    return atomic_load_explicit(&s.view.shm->sleeping, memory_order_seq_cst) != 0;
}
static void push_it(void *ctx)
{
    (void)ctx;
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_SUBMIT, .slot = 1, .generation = 1};
    (void)kvf_spsc_push_seq_cst(&s.commands, &cmd, 1);
    s.is_rung = sees_sleeper();
}
static void mark_it(void *ctx)
{
    (void)ctx;
    kvf_dirty_mark(s.view.dirty, 3);
    s.is_rung = sees_sleeper();
}

static void nobody_sleeps_over(void (*other_fn)(void *ctx))
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at++) {
        s.is_rung = false;
        is_inside = step_call(at, sleep_it, other_fn, NULL);
        cr_assert(!is_inside || !s.may_sleep || s.is_rung, "step %u", at);
        kvf_clients_awake(s.clients);
        (void)kvf_clients_turn(s.clients, 2);
    }
    cr_assert_gt(at, 30);
    cr_assert_eq(s.bad, 0);
}

Test(clients_steps, a_command_pushed_while_the_worker_falls_asleep_is_seen_or_rung,
     .init = begin, .timeout = 200)
{
    nobody_sleeps_over(push_it);
}

Test(clients_steps, a_mark_made_while_the_worker_falls_asleep_is_seen_or_rung, .init = begin,
     .timeout = 200)
{
    nobody_sleeps_over(mark_it);
}

/* ---- records ----------------------------------------------------------------------------------------------- */

static void turn_it(void *ctx)
{
    (void)ctx;
    (void)kvf_clients_turn(s.clients, 3);
}
/* The library writes over a record as soon as it is told that it was read. */
static void write_over(void *ctx)
{
    (void)ctx;
    if (atomic_load_explicit(&s.view.shm->cmd_consumed, memory_order_acquire) ==
        s.commands.pos) {
        memset(s.view.arena, 0xff, 256);
    }
}

#define STRIDE 7 /* not every instruction: the turn is long */

Test(clients_steps, a_record_is_copied_before_its_place_is_handed_back, .init = begin,
     .timeout = 200)
{
    uint32_t at = 1;
    for (bool is_inside = true; is_inside; at += STRIDE) {
        struct kvf_open_shm record = {.region = 0x100, .aux_region = UINT32_MAX};
        memcpy(s.view.arena, &record, sizeof record);
        s.generation++;
        struct kvf_cmd_shm cmd = {.op = KVF_CMD_OPEN_SOURCE,
                                  .sinks = 1,
                                  .slot = 2,
                                  .generation = s.generation,
                                  .worker_epoch = EPOCH,
                                  .key = 7,
                                  .arena_bytes = sizeof record};
        cr_assert_eq(kvf_spsc_push_seq_cst(&s.commands, &cmd, 1), 1);
        is_inside = step_call(at, turn_it, write_over, NULL);
        cr_assert_eq(s.bad, 0, "step %u", at);
        struct kvf_core_room_view view;
        kvf_core_room_view(s.core, 0, 2, &view);
        cr_assert_eq(kvf_word_generation(view.word), s.generation);
        /* It owns no such region; its leases are none: drained, and the slot is free again. */
        kvf_core_leases(s.core, 3, 0, 2, s.generation, 0, 0, 0);
    }
    cr_assert_gt(at, 100);
}

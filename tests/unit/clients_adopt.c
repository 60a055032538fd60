/* Rooms of an earlier worker with pages in a device's memory: who wrote them stands in their line, and only a worker
 * that has all of that one's devices may flush them. */
#include <criterion/criterion.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "sidecar/clients.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "sidecar/run_dir.h"

#define OURS (UINT64_C(5) << 24)
#define THEIRS (UINT64_C(3) << 24)
#define EPOCH (OURS | 2u)
#define GENERATION 9u
#define NOW_NS (100 * KVF_NS_PER_S)

static struct kvf_core *core;
static struct kvf_segment view; /* the engine's own mapping */

static void on_added(void *ctx, uint32_t client, uint32_t code)
{
    (void)ctx;
    (void)client;
    cr_assert_eq(code, 0);
}
static void on_bad(void *ctx, uint32_t client, uint32_t code)
{
    (void)ctx;
    (void)client;
    (void)code;
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
    const struct kvf_core_config config = {.supervisor_id = OURS,
                                           .worker_starts = 2,
                                           .transport = KVF_WIRE_VERBS,
                                           .placement = KVF_PLACEMENT_POSTED,
                                           .lane_rooms = 4,
                                           .fence_ns = KVF_NS_PER_S,
                                           .register_ns = KVF_NS_PER_S};
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

/* Slot i was open, in region 0, when the worker of epochs[i] ended. */
static int make_segment(const uint64_t *epochs, uint32_t count)
{
    const struct kvf_segment_limits limits = {.rooms_max = 8,
                                              .cmd_slots = 8,
                                              .event_slots = 8,
                                              .arena_bytes = 4096,
                                              .regions_max = 1};
    int fd = -1;
    cr_assert_eq(kvf_segment_create(&limits, 1, &fd), 0);
    cr_assert_eq(kvf_segment_map(fd, false, &view), 0);
    for (uint32_t i = 0; i < count; i++) {
        atomic_store(&view.intents[i].lease_word, kvf_lease_word_make(GENERATION));
        atomic_store(&view.intents[i].device_regions, 1);
        atomic_store(&view.intents[i].generation, GENERATION);
        atomic_store(&view.rooms[i].epoch, epochs[i]);
        atomic_store(&view.rooms[i].total_pages, 4);
        atomic_store(&view.rooms[i].word,
                     kvf_word_make(GENERATION, KVF_PHASE_OPEN, KVF_OUTCOME_NONE, KVF_PROOF_NONE,
                                   KVF_STATE_TRANSFERRING, 0));
    }
    return fd;
}

static void take_over(const uint64_t *epochs, uint32_t count)
{
    static const struct kvf_covered covered = {.count = 1, .ids = {OURS}};
    const struct kvf_clients_config config = {.clients_max = 1,
                                              .worker_epoch = EPOCH,
                                              .past_epoch = OURS | 1u,
                                              .past_ended_ns = NOW_NS - KVF_NS_PER_S,
                                              .covered = &covered,
                                              .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                                              .stats = make_stats()};
    const struct kvf_clients_host host = {
        .added_fn = on_added, .bad_fn = on_bad, .removed_fn = on_removed};
    struct kvf_clients *clients = NULL;
    struct kvf_helper *helper = NULL;
    int pair[2];
    core = make_core();
    cr_assert_eq(kvf_helper_create(&helper), 0);
    cr_assert_eq(kvf_clients_create(&config, core, helper, &host, &clients), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
    const int fds[3] = {make_segment(epochs, count), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                        pair[0]};
    cr_assert_eq(kvf_clients_add(clients, 0, fds), 0);
    struct pollfd p = {.fd = kvf_helper_fd(helper), .events = POLLIN};
    struct kvf_job *job = NULL;
    while (job == NULL) {
        cr_assert_eq(poll(&p, 1, 10000), 1);
        job = kvf_helper_take(helper);
    }
    cr_assert(kvf_clients_job_back(clients, NOW_NS, job));
}

static enum kvf_phase phase_of(uint32_t slot)
{
    struct kvf_core_room_view room;
    kvf_core_room_view(core, 0, slot, &room);
    return kvf_word_phase(room.word);
}

Test(clients_adopt, only_rooms_whose_writers_devices_are_all_here_wait_for_a_flush)
{
    const uint64_t epochs[] = {OURS | 1u, THEIRS | 1u, 0};
    take_over(epochs, 3);
    cr_assert_eq(phase_of(0), KVF_PHASE_CLOSING, "our own devices wrote it");
    cr_assert_eq(phase_of(1), KVF_PHASE_QUARANTINED, "and others that one");
    cr_assert_eq(phase_of(2), KVF_PHASE_CLOSING, "no worker ever read its open");
    cr_assert_eq(kvf_core_gauges(core)[KVF_GAUGE_PAGES_HELD], 12);
    cr_assert_eq(kvf_core_gauges(core)[KVF_GAUGE_PAGES_QUARANTINED], 4);
}

/* The next worker must not take it for a room that this one wrote. */
Test(clients_adopt, a_room_goes_on_naming_its_writer_until_it_is_flushed)
{
    const uint64_t epochs[] = {THEIRS | 1u};
    take_over(epochs, 1);
    cr_assert_eq(atomic_load(&view.rooms[0].epoch), THEIRS | 1u);
}

/* One seed from its scenario to its verdict. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ring/codes.h"
#include "ring/room_word.h"
#include "tests/sim/parts.h"

#define START_NS (1 * SIM_S)
#define LOOK_NS (2 * SIM_MS)
#define QUIET_NS (160 * SIM_MS) /* liveness has found by then whoever is gone */
#define SERVICE_NS (3 * SIM_S)
#define SETTLE_NS (2 * SIM_S)
#define EVENTS_MAX 600000u

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static const struct kvf_core_limits limits = {.clients_max = SIM_CLIENTS,
                                              .rooms_per_client_max = SIM_SLOTS,
                                              .peers_max = SIM_PEERS,
                                              .lanes_per_peer = KVF_LANES_MAX,
                                              .grants_max = 96,
                                              .runs_max = 2048,
                                              .pieces_max = 192,
                                              .parked_per_peer_max = 8,
                                              .remote_regions_max =
                                                  4 * SIM_CLIENTS * SIM_REGIONS,
                                              .group_tombstones_max = SIM_KEYS_MAX};

static void *map_zeroed(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

struct sim_world *sim_world_create(void)
{
    struct sim_world *w = map_zeroed(sizeof *w);
    w->limits = limits;
    w->core_bytes = kvf_core_bytes(&limits);
    sim_clock_init(&w->clock);
    for (uint32_t i = 0; i < SIM_WORLD_HOSTS; i++) {
        w->hosts[i].core_memory = map_zeroed(w->core_bytes);
    }
    return w;
}

static void close_all(struct sim_world *w)
{
    for (uint32_t i = 0; i < SIM_WORLD_HOSTS; i++) {
        struct sim_host *h = &w->hosts[i];
        if (h->transport != NULL) {
            kvf_sim_ops.close(h->transport);
            h->transport = NULL;
        }
        h->core = NULL;
    }
}

void sim_world_destroy(struct sim_world *w)
{
    close_all(w);
    for (uint32_t i = 0; i < SIM_WORLD_HOSTS; i++) {
        (void)munmap(w->hosts[i].core_memory, w->core_bytes);
    }
    if (w->fabric != NULL) {
        sim_fabric_destroy(w->fabric);
    }
    sim_clock_free(&w->clock);
    free(w->notes);
    (void)munmap(w, sizeof *w);
}

/* ---- before ------------------------------------------------------------------------------------------------------- */

static void configure(struct sim_world *w)
{
    const struct sim_scenario *s = &w->scenario;
    uint64_t page_bytes = SIM_PAGE_BYTES_MAX;
    w->limits.lanes_per_peer = s->lanes;
    w->config = (struct kvf_core_config){
        .transport = s->traffic == SIM_VERBS ? KVF_WIRE_VERBS : KVF_WIRE_SIM,
        .placement = s->traffic == SIM_CHECKED ? KVF_PLACEMENT_CHECKED : KVF_PLACEMENT_POSTED,
        .lane_rooms = s->lane_rooms,
        .room_window_bytes = s->window_pages * page_bytes,
        .lane_window_bytes = 4 * s->window_pages * page_bytes,
        .post_bytes_max = s->post_pages * page_bytes,
        .stripe_bytes_min = s->is_striped ? 2 * page_bytes : 64 * page_bytes,
        .bootstrap_ns = 1500 * SIM_MS,
        .connect_ns = 600 * SIM_MS,
        .cooperative_ns = 50 * SIM_MS,
        .fence_ns = 200 * SIM_MS,
        .liveness_ns = 125 * SIM_MS,
        .group_ask_ns = 20 * SIM_MS,
        .regrants_max = 3};
    w->watchdog_ns = 250 * SIM_MS;
    w->bound_usual_ns = kvf_core_bound_usual_ns(&w->config);
    /* Watchdog with its period, kill and reap, start of the next worker. */
    w->bound_worst_ns = w->bound_usual_ns + w->watchdog_ns * 5u / 4u + 250 * SIM_MS;
}

static void choose_weather(struct sim_world *w)
{
    struct sim_random r = sim_random_stream(w->scenario.seed, 4, 0);
    uint64_t base_ns = w->scenario.delay_ns;
    /* Half of the networks are so slow that a page takes as long as the way. */
    uint64_t gap_ns =
        sim_random_below(&r, 2) == 0 ? 0 : sim_random_below(&r, base_ns / 4u + 1u);
    w->calm = (struct sim_link){
        .delay_min_ns = base_ns, .delay_max_ns = base_ns * 3u, .gap_ns = gap_ns};
    w->storm = (struct sim_link){
        .gap_ns = gap_ns,
        .delay_min_ns = base_ns,
        .delay_max_ns = base_ns + (UINT64_C(100) << sim_random_below(&r, 10)) * SIM_US,
        .loss_per_million = (uint32_t)sim_random_below(&r, 250000),
        .duplicate_per_million = (uint32_t)sim_random_below(&r, 150000),
        .reorder_per_million = (uint32_t)sim_random_below(&r, 150000)};
}

static void wipe_host(struct sim_world *w, uint32_t idx)
{
    struct sim_host *h = &w->hosts[idx];
    *h = (struct sim_host){
        .world = w, .idx = idx, .core_memory = h->core_memory, .peers_off = h->peers_off};
    struct sim_random r = sim_random_stream(w->scenario.seed, 8, idx);
    h->clock_lead_ns = sim_random_below(&r, 100 * SIM_S);
    for (uint32_t i = 0; i < SIM_ENGINES; i++) {
        h->client_of[i] = KVF_NONE;
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
            h->clients[i].room_of[slot] = SIM_NO_ROOM;
        }
    }
}

static void wipe(struct sim_world *w)
{
    close_all(w);
    sim_clock_reset(&w->clock, START_NS);
    w->calm_from_ns = 0;
    w->luck = sim_random_stream(w->scenario.seed, 9, 0);
    w->phase = SIM_FAULTS;
    w->failure = (struct sim_failure){.room = SIM_NO_ROOM, .page = SIM_NO_ROOM};
    w->figures = (struct sim_figures){0};
    w->hash = w->scenario.seed;
    w->room_count = 0;
    w->undrained = 0;
    w->group_waiting = 0;
    w->lease_count = 0;
    w->service_rounds = 0;
    w->note_count = 0;
    memset(w->routes, 0, sizeof w->routes);
    for (uint32_t i = 0; i < SIM_CONNS_MAX; i++) {
        w->conns[i].is_used = false;
    }
    w->frame_free = KVF_NONE;
    w->frames_fresh = 0;
    configure(w);
    choose_weather(w);
    for (uint32_t i = 0; i < SIM_WORLD_HOSTS; i++) {
        wipe_host(w, i);
    }
    sim_lanes_fabric(w);
}

/* ---- after the faults --------------------------------------------------------------------------------------------- */

static void abort_what_is_open(struct sim_world *w)
{
    for (uint32_t i = 0; i < w->room_count; i++) {
        if (!w->rooms[i].is_drained && !w->rooms[i].is_moot) {
            sim_engine_abort(w, i, 0);
        }
    }
}

static void calm_transports(struct sim_world *w)
{
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        struct sim_transport_options calm = {.fence_max_ns = 100 * SIM_US,
                                             .ack_timeout_ns = 4 * SIM_MS,
                                             .receives = w->scenario.lane_rooms,
                                             .completion_deadline_ns = 100 * SIM_MS};
        if (w->hosts[i].transport != NULL) {
            sim_transport_set(w->hosts[i].transport, &calm);
        }
    }
}

/* An engine that can be opened on, of this host. KVF_NONE: none. */
static uint32_t serving_engine(const struct sim_host *h)
{
    for (uint32_t i = 0; i < SIM_ENGINES; i++) {
        uint32_t client = h->client_of[i];
        if (client != KVF_NONE && h->clients[client].process == SIM_RUNS &&
            h->clients[client].worker_epoch == h->epoch && sim_host_serves(h)) {
            return i;
        }
    }
    return KVF_NONE;
}

/* Places may all be in quarantine; else there is an engine, or one is on its way. */
static bool can_serve(struct sim_world *w, struct sim_host *h)
{
    uint32_t lost = 0;
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        lost += h->clients[i].process == SIM_REAPED ? 1u : 0u;
    }
    for (uint32_t i = 0; i < SIM_ENGINES; i++) {
        sim_engine_start(w, h->idx, i);
    }
    return lost < SIM_CLIENTS;
}

static bool is_service_ready(struct sim_world *w)
{
    bool is_ready = true;
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        is_ready = (serving_engine(&w->hosts[i]) != KVF_NONE || !can_serve(w, &w->hosts[i])) &&
                   is_ready;
    }
    return is_ready;
}

static void start_service(struct sim_world *w)
{
    calm_transports(w);
    w->service_first = w->request_count;
    w->service_rounds++;
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        uint32_t to = (i + 1u) % w->scenario.hosts;
        uint32_t sink = serving_engine(&w->hosts[i]);
        uint32_t source = serving_engine(&w->hosts[to]);
        if (sink == KVF_NONE || source == KVF_NONE) {
            continue;
        }
        (void)sim_request_extra(w,
                                &(struct sim_plan){.label = 100,
                                                   .sink_count = 1,
                                                   .writer_count = 1,
                                                   .sinks = {{(uint8_t)i, (uint8_t)sink}},
                                                   .writers = {{(uint8_t)to, (uint8_t)source}},
                                                   .part_pages = {3},
                                                   .pieces = {1}});
    }
}

/* A queue pair that broke at its source while nothing was posted is noticed by the first room that wants it; by the
 * second one it must have been replaced. */
static bool is_excused(const struct sim_world *w, uint32_t room)
{
    const struct sim_room *r = &w->rooms[room];
    const struct sim_client *c = &w->hosts[r->host].clients[r->client];
    return w->service_rounds <= w->scenario.lanes && w->scenario.traffic == SIM_VERBS &&
           atomic_load_explicit(&c->rooms[r->slot].reason, memory_order_relaxed) ==
               KVF_E_LANE_LOST;
}

static bool is_service_over(struct sim_world *w)
{
    for (uint32_t i = w->service_first; i < w->request_count; i++) {
        uint32_t room = w->requests[i].rooms[0];
        if (room == SIM_NO_ROOM || !w->rooms[room].is_drained) {
            return false;
        }
        if (kvf_word_outcome(w->rooms[room].word) != KVF_OUTCOME_SUCCESS &&
            !is_excused(w, room)) {
            sim_fail(w, SIM_NO_SERVICE, room, SIM_NO_ROOM,
                     "a transfer after the faults fails on h%u", w->rooms[room].host);
        }
    }
    return w->undrained == 0;
}

static void enter(struct sim_world *w, enum sim_phase phase, uint64_t for_ns)
{
    w->phase = phase;
    w->phase_end_ns = w->clock.now_ns + for_ns;
}

static void fail_undrained(struct sim_world *w)
{
    for (uint32_t i = 0; i < w->room_count; i++) {
        const struct sim_room *r = &w->rooms[i];
        if (!r->is_drained && !r->is_moot && !r->is_quarantined) {
            sim_fail(w, SIM_NEVER_ENDS, i, SIM_NO_ROOM,
                     "%s room %u on h%u never ends: word %llx, opened at %.3f ms",
                     r->is_sink ? "sink" : "source", i, r->host, (unsigned long long)r->word,
                     (double)r->opened_ns / 1e6);
            return;
        }
    }
    uint32_t room;
    if (!sim_ranks_are_settled(w, &room)) {
        sim_fail(w, SIM_GROUP_WRONG, room, SIM_NO_ROOM,
                 "room %u on h%u waits for other ranks of its group without a reason", room,
                 w->rooms[room].host);
    }
    sim_fail(w, SIM_NO_SERVICE, SIM_NO_ROOM, SIM_NO_ROOM,
             "after the faults no engine can be served again");
}

static void look(void *world, uint64_t unused1, uint64_t unused2)
{
    struct sim_world *w = world;
    (void)unused1;
    (void)unused2;
    bool is_late = w->clock.now_ns >= w->phase_end_ns;
    switch (w->phase) {
    case SIM_FAULTS:
        enter(w, SIM_ENDING,
              w->config.bootstrap_ns + w->config.connect_ns + w->bound_worst_ns + SIM_S);
        if (w->scenario.aborts_at_end) {
            abort_what_is_open(w);
        }
        w->quiet_since_ns = KVF_NO_TIME;
        break;
    case SIM_ENDING: {
        uint32_t room;
        bool is_quiet = w->clock.now_ns >= w->calm_from_ns && w->undrained == 0 &&
                        is_service_ready(w) && sim_ranks_are_settled(w, &room);
        if (!is_quiet) {
            w->quiet_since_ns = KVF_NO_TIME;
            if (is_late) {
                fail_undrained(w);
            }
        } else if (w->quiet_since_ns == KVF_NO_TIME) {
            w->quiet_since_ns = w->clock.now_ns;
        } else if (w->clock.now_ns - w->quiet_since_ns >= QUIET_NS) {
            enter(w, SIM_SERVICE, SERVICE_NS);
            start_service(w);
        }
        break;
    }
    case SIM_SERVICE:
        if (is_service_over(w) && w->service_rounds == w->scenario.lanes + 1u) {
            enter(w, SIM_SETTLING, SETTLE_NS);
        } else if (is_service_over(w)) {
            enter(w, SIM_SERVICE, SERVICE_NS);
            start_service(w);
        } else if (is_late) {
            fail_undrained(w);
        }
        break;
    case SIM_SETTLING:
        if (sim_is_settled(w) || is_late) {
            sim_verify_end(w);
            w->phase = SIM_OVER;
        }
        break;
    case SIM_OVER:
        return;
    }
    sim_clock_at(&w->clock, w->clock.now_ns + LOOK_NS, look, w, 0, 0);
}

/* ---- a seed -------------------------------------------------------------------------------------------------------- */

void sim_world_run(struct sim_world *w)
{
    wipe(w);
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        sim_host_boot(w, i);
    }
    sim_ops_schedule(w);
    sim_clock_at(&w->clock, START_NS + w->scenario.end_ns, look, w, 0, 0);
    while (w->failure.verdict == SIM_PASSED && w->phase != SIM_OVER) {
        if (!sim_clock_run_one(&w->clock) || w->clock.run_count > EVENTS_MAX) {
            sim_fail(w, SIM_NEVER_ENDS, SIM_NO_ROOM, SIM_NO_ROOM,
                     "no end in sight after %llu events",
                     (unsigned long long)w->clock.run_count);
        }
    }
    w->figures.events = w->clock.run_count;
    w->figures.history = w->hash & UINT32_MAX; /* summed up, it tells one run from another */
    sim_sum_up(w);
}

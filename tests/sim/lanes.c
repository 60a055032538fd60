/* Between a core and the simulated transport, as sidecar/worker_core.c does it for the real one. */
#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/sim/parts.h"

#define POSTS_PER_LANE_MAX 256u

/* ---- events of the transport ------------------------------------------------------------------------------------ */

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    struct sim_host *h = ctx;
    return kvf_core_place(h->core, lane, epoch, handle, position, page_count, ret_at);
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    struct sim_host *h = ctx;
    if (is_scratch) {
        h->world->figures.late_writes_refused++;
        sim_note(h->world, SIM_SCRATCH, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, handle, bytes);
    }
    kvf_core_placed(h->core, sim_host_clock(h), lane, epoch, handle, bytes, is_scratch);
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    struct sim_host *h = ctx;
    sim_note(h->world, SIM_MARKER, h->idx, SIM_NO_ROOM, SIM_NO_ROOM,
             (uint64_t)kind << 32 | handle, (uint64_t)epoch << 32 | lane);
    int err = kvf_core_marker(h->core, sim_host_clock(h), lane, epoch, handle, kind);
    return err;
}

static void on_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    struct sim_host *h = ctx;
    (void)kvf_core_place_fault(h->core, sim_host_clock(h), lane, epoch, handle);
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    struct sim_host *h = ctx;
    struct sim_world *w = h->world;
    sim_note(w, SIM_COMPLETE, h->idx, SIM_NO_ROOM, SIM_NO_ROOM,
             (uint64_t)post->kind << 32 | post->handle,
             (uint64_t)epoch << 32 | lane << 8 | (uint64_t)(uint8_t)-status);
    if (sim_has_plant(w, SIM_PLANT_COMPLETION_LOST) && sim_random_chance(&w->luck, 30000)) {
        return;
    }
    kvf_core_completed(h->core, sim_host_clock(h), lane, epoch, post, status);
    sim_lanes_want_post(h, lane);
}

static void on_read_fault(void *ctx, uint32_t client)
{
    struct sim_host *h = ctx;
    sim_fail(h->world, SIM_UNSAFE_READ, SIM_NO_ROOM, SIM_NO_ROOM,
             "memory of client %u on h%u cannot be read", client, h->idx);
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct sim_host *h = ctx;
    sim_note(h->world, SIM_LANE_UP, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, lane, epoch);
    h->lane_epochs[lane] = epoch;
    kvf_core_lane_up(h->core, sim_host_clock(h), lane, epoch);
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct sim_host *h = ctx;
    sim_note(h->world, SIM_LANE_LOST, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, lane, epoch);
    kvf_core_lane_lost(h->core, sim_host_clock(h), lane, epoch, err);
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct sim_host *h = ctx;
    sim_note(h->world, SIM_FENCED, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, lane, epoch);
    kvf_core_lane_fenced(h->core, sim_host_clock(h), lane, epoch);
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    const struct sim_host *h = ctx;
    uint32_t slot = region & 0xffu;
    if (client >= SIM_CLIENTS || slot >= SIM_REGIONS || !h->clients[client].is_in_core ||
        h->clients[client].regions[slot].handle != region) {
        return NULL;
    }
    return &h->clients[client].regions[slot].seen;
}

/* ---- events of the fabric ---------------------------------------------------------------------------------------- */

static int find_remote(void *ctx, uint32_t source_host, uint32_t sink_host, uint32_t lane,
                       uint32_t epoch, const struct kvf_post *post,
                       struct sim_remote *ret_remote)
{
    struct sim_world *w = ctx;
    (void)source_host;
    (void)lane;
    (void)epoch;
    uint32_t client = post->remote_region / KVF_REGIONS_PER_CLIENT_MAX;
    uint32_t slot = post->remote_region % KVF_REGIONS_PER_CLIENT_MAX;
    if (client >= SIM_CLIENTS || slot >= SIM_REGIONS ||
        w->hosts[sink_host].clients[client].regions[slot].key == 0) {
        return -EINVAL;
    }
    const struct sim_region *reg = &w->hosts[sink_host].clients[client].regions[slot];
    *ret_remote = (struct sim_remote){.client = client,
                                      .region = reg->handle,
                                      .page_first = post->remote_page_first,
                                      .key = reg->key};
    return 0;
}

/* A queue pair's source has been told of its lane by LANE, and waits for this connection. */
static bool is_awaited(const struct sim_host *h, const struct kvf_wire_lane_hello *hello,
                       uint32_t *ret_lane)
{
    for (uint32_t lane = 0; lane < SIM_LANES; lane++) {
        if (lane % KVF_LANES_MAX == hello->lane_idx && h->ends[lane].epoch == hello->epoch &&
            h->ends[lane].session == hello->session) {
            *ret_lane = lane;
            return true;
        }
    }
    return false;
}

static void on_lane_hello(void *ctx, uint32_t host, const struct kvf_wire_lane_hello *hello,
                          int token)
{
    struct sim_world *w = ctx;
    struct sim_host *h = &w->hosts[host];
    uint32_t lane;
    bool is_known = false;
    if (sim_host_serves(h) && h->refusals == 0) {
        is_known = w->scenario.traffic == SIM_VERBS
                       ? is_awaited(h, hello, &lane)
                       : kvf_core_lane_accept(h->core, sim_host_clock(h), hello, &lane) == 0;
    }
    if (!is_known) {
        sim_fabric_refuse(w->fabric, token);
    } else {
        sim_lanes_open(h, &(struct kvf_lane_open){.lane = lane,
                                                  .epoch = hello->epoch,
                                                  .lane_idx = lane % KVF_LANES_MAX,
                                                  .accepted_fd = token});
    }
    if (sim_host_serves(h)) {
        sim_worker_after(w, h);
    }
}

static void on_wake(void *ctx, uint32_t host)
{
    struct sim_world *w = ctx;
    sim_worker_kick(w, &w->hosts[host]);
}

void sim_lanes_fabric(struct sim_world *w)
{
    struct sim_random r = sim_random_stream(w->scenario.seed, 5, 0);
    struct sim_fabric_options options = {.kind = w->scenario.traffic == SIM_VERBS ? SIM_NIC
                                                                                  : SIM_STREAM,
                                         .hosts = w->scenario.hosts,
                                         .link = w->calm,
                                         .mtu_bytes = 64u << sim_random_below(&r, 3),
                                         .carries_bytes = true,
                                         .rto_ns = 5 * SIM_MS,
                                         .user_timeout_ns = 300 * SIM_MS,
                                         .ctx = w,
                                         .land_fn = sim_oracle_land,
                                         .read_fn = sim_oracle_read,
                                         .remote_fn = find_remote,
                                         .lane_hello_fn = on_lane_hello,
                                         .wake_fn = on_wake};
    if (w->fabric == NULL) {
        w->fabric = sim_fabric_create(&w->clock, &options, w->scenario.seed);
    } else {
        sim_fabric_reset(w->fabric, &options, w->scenario.seed);
    }
}

static struct sim_transport_options options_of(const struct sim_world *w,
                                               const struct sim_host *h)
{
    struct sim_random r = sim_random_stream(w->scenario.seed, 6, h->idx);
    bool is_slow = sim_random_below(&r, 3) == 0;
    /* A receive that never completes and is announced by nothing is for the engine to give up. */
    bool is_calm = w->scenario.flavour == SIM_CALM;
    bool may_lose = w->scenario.aborts_at_end && !is_calm;
    return (struct sim_transport_options){
        .fence_min_ns = 0,
        .fence_max_ns = is_slow ? 20 * SIM_MS : 200 * SIM_US,
        .refuse_post_per_million = !is_calm && sim_random_below(&r, 4) == 0 ? 5000 : 0,
        .send_buffer_bytes = UINT64_C(256) << (is_calm ? 6u : sim_random_below(&r, 6)),
        .receive_buffer_bytes = UINT64_C(256) << (is_calm ? 6u : sim_random_below(&r, 6)),
        .frame_bytes_max = 512,
        .short_receive_per_million = 100000,
        .sq_depth = 4u << sim_random_below(&r, 4),
        .receives = w->scenario.lane_rooms, /* as many as there are credits, and not one more */
        .cq_depth =
            !is_calm && sim_random_below(&r, 12) == 0 ? 12u << sim_random_below(&r, 3) : 0,
        .signal_every = 1u << sim_random_below(&r, 4),
        .window_packets = 8u << sim_random_below(&r, 3),
        .ack_every = 1u << sim_random_below(&r, 4),
        .ack_timeout_ns = 4 * SIM_MS,
        .retry_cnt = 3,
        .rnr_retry = 3,
        .completion_deadline_ns = 100 * SIM_MS,
        .slow_place_per_million = 100000,
        .place_max_ns = 300 * SIM_US,
        .lose_cqe_per_million = may_lose && sim_random_below(&r, 8) == 0 ? 2000 : 0,
        .constant_psn = sim_has_plant(w, SIM_PLANT_CONSTANT_PSN),
        .reuse_qpn = sim_has_plant(w, SIM_PLANT_CONSTANT_PSN),
        .unstrict_fence = sim_has_plant(w, SIM_PLANT_UNSTRICT_FENCE),
        .trust_flush = sim_has_plant(w, SIM_PLANT_TRUST_FLUSH)};
}

int sim_lanes_create(struct sim_world *w, struct sim_host *h)
{
    struct kvf_transport_config config = {.lanes_max = SIM_LANES,
                                          .lane_window_bytes = w->config.lane_window_bytes,
                                          .turn_bytes_max = 2048,
                                          .posts_per_lane_max = 32};
    struct kvf_transport_host host = {.ctx = h,
                                      .place_fn = on_place,
                                      .placed_fn = on_placed,
                                      .marker_fn = on_marker,
                                      .place_fault_fn = on_place_fault,
                                      .completed_fn = on_completed,
                                      .read_fault_fn = on_read_fault,
                                      .up_fn = on_up,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_fenced,
                                      .region_fn = on_region};
    struct sim_transport_options options = options_of(w, h);
    struct kvf_addr_shm addr = sim_addr(h->idx);
    sim_fabric_listen(w->fabric, h->idx, &addr);
    return sim_transport_create(w->fabric, h->idx, &config, &host, &options, &h->transport);
}

/* ---- what the worker wants ---------------------------------------------------------------------------------------- */

void sim_lanes_open(struct sim_host *h, const struct kvf_lane_open *open)
{
    h->lane_epochs[open->lane] = open->epoch; /* posts may come before the transport says up */
    int err = kvf_sim_ops.open(h->transport, open);
    if (err != 0) {
        kvf_core_lane_lost(h->core, sim_host_clock(h), open->lane, open->epoch, -err);
    }
}

void sim_lanes_connect(struct sim_host *h, const struct kvf_action *a)
{
    sim_lanes_open(h, &(struct kvf_lane_open){.lane = a->lane,
                                              .epoch = a->epoch,
                                              .addr = a->addr,
                                              .session = a->session,
                                              .lane_idx = a->lane % KVF_LANES_MAX,
                                              .accepted_fd = -1});
}

/* Numbers of queue pairs are the fabric's own; to the core an end is something to pass on. The two NICs are joined
 * when the sink joins: whoever has heard of the other by then has done so over the control connection alone. */
void sim_lanes_make_end(struct sim_host *h, const struct kvf_action *a)
{
    struct kvf_lane_end own = {.qpn = 1u + (a->epoch & 0xffffu), .mtu_bytes = 1024};
    h->lane_epochs[a->lane] = a->epoch;
    h->ends[a->lane].epoch = a->end.qpn != 0 ? a->epoch : 0;
    h->ends[a->lane].session = a->session;
    kvf_core_lane_ready(h->core, sim_host_clock(h), a->lane, a->epoch, &own);
}

void sim_lanes_want_post(struct sim_host *h, uint32_t lane)
{
    if (!h->is_post_lane[lane]) {
        h->is_post_lane[lane] = true;
        h->post_lanes[h->post_lane_count++] = lane;
    }
}

static void post_on(struct sim_world *w, struct sim_host *h, uint32_t lane)
{
    struct kvf_post post;
    uint32_t count = 0;
    while (count < POSTS_PER_LANE_MAX && kvf_sim_ops.can_post(h->transport, lane) &&
           kvf_core_next_post(h->core, sim_host_clock(h), lane, &post) == 1) {
        w->figures.posts++;
        int err = kvf_sim_ops.post(h->transport, lane, &post);
        sim_note(w, SIM_POST, h->idx, SIM_NO_ROOM, SIM_NO_ROOM,
                 (uint64_t)post.kind << 32 | post.handle,
                 (uint64_t)h->lane_epochs[lane] << 32 | lane << 8 | (uint64_t)(uint8_t)-err);
        if (err != 0) {
            /* A post the transport did not take has no completion of its own. */
            kvf_core_completed(h->core, sim_host_clock(h), lane, h->lane_epochs[lane], &post,
                               err);
            break;
        }
        count++;
    }
}

void sim_lanes_post(struct sim_world *w, struct sim_host *h)
{
    uint32_t lanes = h->post_lane_count;
    uint32_t list[SIM_LANES];
    h->post_lane_count = 0;
    for (uint32_t i = 0; i < lanes; i++) {
        list[i] = h->post_lanes[i];
        h->is_post_lane[list[i]] = false;
    }
    for (uint32_t i = 0; i < lanes; i++) {
        post_on(w, h, list[i]);
    }
}

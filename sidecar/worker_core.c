/* Between the core and the world: its actions carried out, the transport's events told to it. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "sidecar/host/clock.h"
#include "sidecar/host/guard.h"
#include "sidecar/host/log.h"
#include "sidecar/host/uring.h"
#include "sidecar/worker.h"
#include "sidecar/worker_internal.h"

#define ACTIONS_MAX 65536u /* per call; the rest waits for the next turn */
#define POSTS_PER_LANE_MAX 1024u
#define TURN_BYTES_MAX (UINT64_C(256) << 10)
#define PENDING_MAX 32u
#define PENDING_NS (2 * KVF_NS_PER_S)

/* ---- events of the transport -------------------------------------------------------------------------- */

static void want_post(struct kvf_worker *w, uint32_t lane)
{
    assert(lane < KVF_WORKER_LANES_MAX);
    if (!w->is_post_lane[lane]) {
        w->is_post_lane[lane] = true;
        w->post_lanes[w->post_lane_count++] = lane;
    }
}

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    struct kvf_worker *w = ctx;
    return kvf_core_place(w->core, lane, epoch, handle, position, page_count, ret_at);
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    struct kvf_worker *w = ctx;
    w->placed_bytes += bytes;
    w->local_bytes += w->lane_ways[lane] == WAY_LOCAL && !is_scratch ? bytes : 0;
    kvf_core_placed(w->core, w->now_ns, lane, epoch, handle, bytes, is_scratch);
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    struct kvf_worker *w = ctx;
    return kvf_core_marker(w->core, w->now_ns, lane, epoch, handle, kind);
}

static void on_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    struct kvf_worker *w = ctx;
    uint32_t client = kvf_core_place_fault(w->core, w->now_ns, lane, epoch, handle);
    if (client != KVF_NONE) {
        kvf_clients_fail(w->clients, w->now_ns, client, KVF_E_MEMORY_FAULT,
                         "its pages cannot be written: memory was taken out of the region");
    }
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    struct kvf_worker *w = ctx;
    w->placed_bytes += post->payload_bytes;
    kvf_core_completed(w->core, w->now_ns, lane, epoch, post, status);
    want_post(w, lane);
}

static void on_read_fault(void *ctx, uint32_t client)
{
    struct kvf_worker *w = ctx;
    kvf_clients_fail(w->clients, w->now_ns, client, KVF_E_MEMORY_FAULT,
                     "its pages cannot be read: memory was taken out of the region");
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct kvf_worker *w = ctx;
    w->lane_epochs[lane] = epoch;
    kvf_core_lane_up(w->core, w->now_ns, lane, epoch);
}

static void on_ready(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_lane_end *end)
{
    struct kvf_worker *w = ctx;
    kvf_core_lane_ready(w->core, w->now_ns, lane, epoch, end);
}

static bool on_remote(void *ctx, uint32_t lane, uint32_t remote_region,
                      struct kvf_remote_view *ret_view)
{
    struct kvf_worker *w = ctx;
    return kvf_core_remote(w->core, lane, remote_region, ret_view);
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct kvf_worker *w = ctx;
    kvf_core_lane_lost(w->core, w->now_ns, lane, epoch, err);
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct kvf_worker *w = ctx;
    kvf_core_lane_fenced(w->core, w->now_ns, lane, epoch);
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    struct kvf_worker *w = ctx;
    return kvf_regions_find(w->regions, client, region);
}

static uint64_t on_now(void *ctx)
{
    struct kvf_worker *w = ctx;
    return w->now_ns;
}

/* A room is named in 64 bits: of a client, its slot and its generation. */
#define FLUSH_CLIENT_SHIFT 56u
#define FLUSH_SLOT_SHIFT 40u
_Static_assert(KVF_GENERATION_MAX < UINT64_C(1) << FLUSH_SLOT_SHIFT, "a generation fits");
_Static_assert(KVF_ROOMS_PER_CLIENT_MAX - 1u <= 0xffffu, "a slot fits");
_Static_assert(KVF_CORE_FLUSHES_MAX <= 256u, "what transport verbs holds");

static void on_flushed(void *ctx, uint64_t cookie, int err)
{
    struct kvf_worker *w = ctx;
    uint32_t client = (uint32_t)(cookie >> FLUSH_CLIENT_SHIFT);
    uint32_t slot = (uint32_t)(cookie >> FLUSH_SLOT_SHIFT) & 0xffffu;
    if (err != 0) {
        kvf_log(KVF_LOG_ERROR,
                "the flush of a device's memory for client %u slot %u failed: %s", client, slot,
                strerror(-err));
    }
    kvf_core_flushed(w->core, w->now_ns, client, slot, cookie & KVF_GENERATION_MAX, err);
}

static void flush(struct kvf_worker *w, const struct kvf_action *a)
{
    const struct kvf_transport_region *region =
        kvf_regions_find(w->regions, a->client, a->region);
    uint64_t cookie = (uint64_t)a->client << FLUSH_CLIENT_SHIFT |
                      (uint64_t)a->slot << FLUSH_SLOT_SHIFT | a->generation;
    assert(a->client <= 0xffu);
    assert(region != NULL && region->memory != NULL); /* a device's is never anything else */
    int err = kvf_verbs_flush(region->memory, a->lanes, cookie);
    if (err != 0) {
        on_flushed(w, cookie, err);
    }
}

int kvf_worker_transport_create(struct kvf_worker *w)
{
    struct kvf_transport_config config = {.lanes_max = KVF_WORKER_LANES_MAX,
                                          .lane_rate_bytes = w->config.lane_rate_bytes,
                                          .lane_window_bytes =
                                              kvf_config_lane_window(&w->config),
                                          .turn_bytes_max = TURN_BYTES_MAX,
                                          .posts_per_lane_max = POSTS_PER_LANE_MAX,
                                          .tcp_engine = w->config.tcp_engine};
    struct kvf_transport_host host = {.ctx = w,
                                      .place_fn = on_place,
                                      .placed_fn = on_placed,
                                      .marker_fn = on_marker,
                                      .place_fault_fn = on_place_fault,
                                      .completed_fn = on_completed,
                                      .read_fault_fn = on_read_fault,
                                      .up_fn = on_up,
                                      .ready_fn = on_ready,
                                      .remote_fn = on_remote,
                                      .rail_fn = kvf_worker_verbs_rail,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_fenced,
                                      .region_fn = on_region,
                                      .flushed_fn = on_flushed,
                                      .now_fn = on_now};
    int err;
    if (w->config.transport == KVF_WIRE_VERBS) {
        err = kvf_worker_verbs_create(w, &config, &host);
    } else {
        w->ways[WAY_TCP].ops = &kvf_tcp_ops;
        err = kvf_tcp_create(&config, &host, w->epoll_fd, &w->ways[WAY_TCP].t);
    }
    if (err == 0 && w->config.local != 0) {
        err = kvf_guard_install();
    }
    if (err == 0 && w->config.local != 0) {
        w->ways[WAY_LOCAL].ops = &kvf_local_ops;
        err = kvf_local_create(&config, &host, &w->ways[WAY_LOCAL].t);
    }
    return err;
}

uint64_t kvf_worker_transport_poll(struct kvf_worker *w)
{
    uint64_t moved = 0;
    if (w->ways[WAY_TCP].t != NULL) {
        moved = w->ways[WAY_TCP].ops->poll(w->ways[WAY_TCP].t);
        w->socket_ns = moved > 0 ? w->now_ns : w->socket_ns;
    }
    if (w->ways[WAY_VERBS].t != NULL) {
        moved += w->ways[WAY_VERBS].ops->poll(w->ways[WAY_VERBS].t);
    }
    if (w->ways[WAY_LOCAL].t != NULL) {
        moved += w->ways[WAY_LOCAL].ops->poll(w->ways[WAY_LOCAL].t);
    }
    return moved;
}

static int refuse_engine(int refusal)
{
    char why[160];
    kvf_log(KVF_LOG_ERROR,
            "cannot start: --tcp-engine uring: %s; --tcp-engine auto uses plain sockets here",
            kvf_uring_refusal(refusal, why, sizeof(why)));
    return refusal;
}

int kvf_worker_check(const struct kvf_config *config)
{
    struct kvf_uring *uring = NULL;
    int refusal = config->tcp_engine == KVF_CONFIG_URING ? kvf_uring_create(1, &uring) : 0;
    if (uring != NULL) {
        kvf_uring_close(uring);
    }
    return refusal == 0 ? 0 : refuse_engine(refusal);
}

int kvf_worker_engine_check(struct kvf_worker *w)
{
    if (w->ways[WAY_TCP].t == NULL) {
        return 0;
    }
    int refusal = kvf_tcp_engine_refusal(w->ways[WAY_TCP].t);
    char why[160];
    w->is_uring = kvf_worker_uses_uring(w);
    if (refusal != 0 && w->config.tcp_engine == KVF_CONFIG_URING) {
        return refuse_engine(refusal);
    }
    if (refusal != 0) {
        kvf_log(KVF_LOG_INFO, "tcp engine: plain sockets, since %s",
                kvf_uring_refusal(refusal, why, sizeof(why)));
    } else {
        kvf_log(KVF_LOG_INFO, "tcp engine: %s",
                w->is_uring ? "io_uring" : "plain sockets, as asked for");
    }
    return 0;
}

bool kvf_worker_uses_uring(const struct kvf_worker *w)
{
    return w->ways[WAY_TCP].t != NULL &&
           strcmp(kvf_tcp_engine_name(w->ways[WAY_TCP].t), "uring") == 0;
}

enum kvf_link_engine kvf_worker_engine(const struct kvf_worker *w)
{
    if (w->ways[WAY_VERBS].t != NULL) {
        return KVF_LINK_ENGINE_VERBS;
    }
    if (w->config.transport == KVF_CONFIG_LOCAL) {
        return KVF_LINK_ENGINE_MEMORY;
    }
    return w->is_uring ? KVF_LINK_ENGINE_URING : KVF_LINK_ENGINE_SOCKETS;
}

/* ---- control --------------------------------------------------------------------------------------------- */

/* Sockets have something to do: epoll is asked at once, and every turn for a while. */
static void use_sockets(struct kvf_worker *w)
{
    w->socket_ns = w->now_ns;
    w->look_ns = w->now_ns;
}

static void open_lane(struct kvf_worker *w, const struct kvf_lane_open *open)
{
    uint8_t way = w->ways[WAY_VERBS].t != NULL ? WAY_VERBS : WAY_TCP;
    w->lane_epochs[open->lane] = open->epoch; /* posts may come before the transport says up */
    w->lane_ways[open->lane] = way;
    if (way == WAY_TCP) {
        use_sockets(w);
    }
    int err = w->ways[way].ops->open(w->ways[way].t, open);
    if (err != 0) {
        kvf_core_lane_lost(w->core, w->now_ns, open->lane, open->epoch, -err);
    }
}

static void join_lane(struct kvf_worker *w, const struct kvf_action *a)
{
    const struct kvf_transport_ops *ops = w->ways[w->lane_ways[a->lane]].ops;
    int err = ops->join == NULL
                  ? -EPROTO
                  : ops->join(w->ways[w->lane_ways[a->lane]].t, a->lane, a->epoch, &a->end);
    if (err != 0) {
        kvf_core_lane_lost(w->core, w->now_ns, a->lane, a->epoch, -err);
    }
}

/* A lane to ourselves. What its LANE_HELLO would say is said to the core here, which has the other half as a
 * lane of the peer that it accepted; then both come up at once. */
static void open_loop(struct kvf_worker *w, const struct kvf_action *a)
{
    struct kvf_wire_lane_hello hello = {
        .session = a->session, .lane_idx = a->lane % KVF_LANES_MAX, .epoch = a->epoch};
    struct kvf_lane_open open = {.lane = a->lane, .epoch = a->epoch, .accepted_fd = -1};
    w->lane_epochs[open.lane] = open.epoch;
    w->lane_ways[open.lane] = WAY_LOCAL;
    if (kvf_core_lane_accept(w->core, w->now_ns, &hello, &open.partner) != 0) {
        kvf_core_lane_lost(w->core, w->now_ns, open.lane, open.epoch, ECONNREFUSED);
        return;
    }
    w->lane_epochs[open.partner] = open.epoch;
    w->lane_ways[open.partner] = WAY_LOCAL;
    int err = w->ways[WAY_LOCAL].ops->open(w->ways[WAY_LOCAL].t, &open);
    if (err != 0) {
        kvf_core_lane_lost(w->core, w->now_ns, open.lane, open.epoch, -err);
        kvf_core_lane_lost(w->core, w->now_ns, open.partner, open.epoch, -err);
    }
}

static void on_lane_accepted(void *ctx, uint64_t now_ns, uint32_t lane, uint32_t epoch, int fd)
{
    (void)now_ns;
    struct kvf_lane_open open = {
        .lane = lane, .epoch = epoch, .lane_idx = lane % KVF_LANES_MAX, .accepted_fd = fd};
    open_lane(ctx, &open);
}

int kvf_worker_control_create(struct kvf_worker *w)
{
    struct kvf_control_config config = {.listen = w->config.listen,
                                        .peers_max = KVF_WORKER_PEERS_MAX,
                                        .pending_max = PENDING_MAX,
                                        .pending_ns = PENDING_NS,
                                        .is_loop_used = w->config.local != 0,
                                        .has_no_streams = w->ways[WAY_TCP].t == NULL,
                                        .is_alone = w->config.transport == KVF_WIRE_LOCAL};
    return kvf_control_create(&config, w->core, w->epoll_fd, on_lane_accepted, w, &w->control);
}

/* ---- actions ---------------------------------------------------------------------------------------------- */

void kvf_worker_check_quiet(struct kvf_worker *w, uint32_t client)
{
    if (w->is_leaving[client] || !kvf_clients_is_quiet(w->clients, w->now_ns, client)) {
        return;
    }
    /* Nothing can touch its pages any more: the core forgets it, then its memory is unmapped, then
     * the supervisor is told and closes the descriptors. */
    w->is_leaving[client] = true;
    kvf_core_client_remove(w->core, client);
    kvf_regions_drop_client(w->regions, client);
    if (kvf_regions_held(w->regions, client) == 0) {
        kvf_clients_remove(w->clients, client);
    }
}

static void act(struct kvf_worker *w, const struct kvf_action *a)
{
    uint8_t way = w->lane_ways[a->lane]; /* of the actions that name a lane; 0 in the others */
    switch (a->kind) {
    case KVF_ACT_FENCE:
        w->ways[way].ops->fence(w->ways[way].t, a->lane, a->epoch);
        return;
    case KVF_ACT_DETACH:
        w->ways[way].ops->detach(w->ways[way].t, a->lane, a->cookie);
        return;
    case KVF_ACT_CLOSE_LEASES:
        kvf_clients_close_leases(w->clients, w->now_ns, a->client, a->slot, a->generation);
        return;
    case KVF_ACT_PUBLISH:
        kvf_clients_publish(w->clients, w->now_ns, a->client, a->slot);
        return;
    case KVF_ACT_CONNECT:
        kvf_control_connect(w->control, w->now_ns, a->peer, &a->addr);
        if (!kvf_control_is_loop(w->control, a->peer)) {
            use_sockets(w);
        }
        return;
    case KVF_ACT_CLOSE:
        kvf_control_close(w->control, a->peer);
        return;
    case KVF_ACT_LANE_OPEN:
        if (kvf_control_is_loop(w->control, a->lane / KVF_LANES_MAX)) {
            open_loop(w, a);
            return;
        }
        open_lane(w, &(struct kvf_lane_open){.lane = a->lane,
                                             .epoch = a->epoch,
                                             .addr = a->addr,
                                             .session = a->session,
                                             .lane_idx = a->lane % KVF_LANES_MAX,
                                             .accepted_fd = -1,
                                             .end = a->end.qpn != 0 ? &a->end : NULL});
        return;
    case KVF_ACT_LANE_JOIN:
        join_lane(w, a);
        return;
    case KVF_ACT_WRITE:
        kvf_control_write(w->control, w->now_ns, a->peer);
        if (!kvf_control_is_loop(w->control, a->peer)) {
            use_sockets(w);
        }
        return;
    case KVF_ACT_POST:
        want_post(w, a->lane);
        return;
    case KVF_ACT_GROUP_KEY:
        kvf_clients_keep_key(w->clients, a->client, a->slot, a->group, a->key);
        return;
    case KVF_ACT_CLIENT_QUIET:
        kvf_worker_check_quiet(w, a->client);
        return;
    case KVF_ACT_FLUSH:
        flush(w, a);
        return;
    case KVF_ACT_ESCALATE:
        if (a->generation != 0) {
            kvf_log(
                KVF_LOG_ERROR,
                "client %u slot %u: its pages in a device's memory could not be flushed; this "
                "worker must be ended, the next one tries once more",
                a->client, a->slot);
            kvf_worker_tell(w, KVF_LINK_ESCALATE, 0, 0, 0, 0);
            return;
        }
        kvf_log(
            KVF_LOG_ERROR,
            "the fence of lane %u missed its deadline; this worker must be ended to prove its "
            "pages idle",
            a->lane);
        kvf_worker_tell(w, KVF_LINK_ESCALATE, 0, 0, 0, a->lane);
        return;
    }
}

uint32_t kvf_worker_actions(struct kvf_worker *w)
{
    struct kvf_action action;
    uint32_t count = 0;
    while (count < ACTIONS_MAX && kvf_core_next_action(w->core, &action) == 1) {
        act(w, &action);
        count++;
    }
    return count;
}

static uint32_t post_on(struct kvf_worker *w, uint32_t lane)
{
    struct kvf_post post;
    uint32_t count = 0;
    const struct kvf_transport_ops *ops = w->ways[w->lane_ways[lane]].ops;
    struct kvf_transport *t = w->ways[w->lane_ways[lane]].t;
    while (count < POSTS_PER_LANE_MAX && ops->can_post(t, lane) &&
           kvf_core_next_post(w->core, w->now_ns, lane, &post) == 1) {
        int err = ops->post(t, lane, &post);
        if (err != 0) {
            /* A post the transport did not take has no completion of its own. */
            kvf_core_completed(w->core, w->now_ns, lane, w->lane_epochs[lane], &post, err);
            break;
        }
        count++;
    }
    return count;
}

uint32_t kvf_worker_posts(struct kvf_worker *w)
{
    uint32_t count = 0;
    uint32_t lanes = w->post_lane_count;
    w->post_lane_count = 0;
    for (uint32_t i = 0; i < lanes; i++) {
        w->is_post_lane[w->post_lanes[i]] = false;
    }
    for (uint32_t i = 0; i < lanes; i++) {
        count += post_on(w, w->post_lanes[i]);
    }
    return count;
}

/* Both ends of local are one object, whose lanes are the source's halves and, RIG_LANES further, the sink's.
 * Each end of the rig is a window on it that turns lane ids around. Copies are made when the sink's end is
 * polled, so that a sink that stands still takes nothing, as everywhere else. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "sidecar/host/guard.h"
#include "tests/contract/rig.h"

#define SINK_CLIENT 1u

struct local_rig {
    struct kvf_transport *transport;
    struct kvf_transport_host hosts[2]; /* source, sink */
    struct local_window {
        struct local_rig *rig;
        bool is_sink;
    } windows[2];
    uint64_t now_ns;
};

static struct local_window *window_of(const struct kvf_transport *t)
{
    return (struct local_window *)(uintptr_t)t;
}

static uint32_t lane_in(const struct local_window *window, uint32_t lane)
{
    return window->is_sink ? lane + RIG_LANES : lane;
}

static const struct kvf_transport_host *host_of(const struct local_rig *own, uint32_t lane)
{
    return &own->hosts[lane >= RIG_LANES];
}

/* ---- the object's host ---------------------------------------------------------------------------------- */

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    const struct kvf_transport_host *sink = host_of(ctx, lane);
    assert(lane >= RIG_LANES);
    int rc = sink->place_fn(sink->ctx, lane - RIG_LANES, epoch, handle, position, page_count,
                            ret_at);
    if (rc == 0) {
        ret_at->client = SINK_CLIENT;
    }
    return rc;
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    const struct kvf_transport_host *sink = host_of(ctx, lane);
    sink->placed_fn(sink->ctx, lane - RIG_LANES, epoch, handle, bytes, is_scratch);
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    const struct kvf_transport_host *sink = host_of(ctx, lane);
    return sink->marker_fn(sink->ctx, lane - RIG_LANES, epoch, handle, kind);
}

static void on_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    const struct kvf_transport_host *sink = host_of(ctx, lane);
    sink->place_fault_fn(sink->ctx, lane - RIG_LANES, epoch, handle);
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    const struct kvf_transport_host *source = host_of(ctx, lane);
    assert(lane < RIG_LANES);
    source->completed_fn(source->ctx, lane, epoch, post, status);
}

static void on_read_fault(void *ctx, uint32_t client)
{
    const struct local_rig *own = ctx;
    assert(client != SINK_CLIENT);
    own->hosts[0].read_fault_fn(own->hosts[0].ctx, client);
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    const struct kvf_transport_host *host = host_of(ctx, lane);
    host->up_fn(host->ctx, lane % RIG_LANES, epoch);
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    const struct kvf_transport_host *host = host_of(ctx, lane);
    host->lost_fn(host->ctx, lane % RIG_LANES, epoch, err);
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    const struct kvf_transport_host *host = host_of(ctx, lane);
    host->fenced_fn(host->ctx, lane % RIG_LANES, epoch);
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    const struct local_rig *own = ctx;
    const struct kvf_transport_host *host = &own->hosts[client == SINK_CLIENT];
    return host->region_fn(host->ctx, 0, region);
}

static uint64_t on_now(void *ctx)
{
    return ((struct local_rig *)ctx)->now_ns;
}

/* ---- an end's window on it -------------------------------------------------------------------------------- */

static int window_open(struct kvf_transport *t, const struct kvf_lane_open *open)
{
    return kvf_local_ops.open(window_of(t)->rig->transport, open);
}

static bool window_can_post(const struct kvf_transport *t, uint32_t lane)
{
    const struct local_window *window = window_of(t);
    return kvf_local_ops.can_post(window->rig->transport, lane_in(window, lane));
}

static int window_post(struct kvf_transport *t, uint32_t lane, const struct kvf_post *post)
{
    const struct local_window *window = window_of(t);
    return kvf_local_ops.post(window->rig->transport, lane_in(window, lane), post);
}

static void window_detach(struct kvf_transport *t, uint32_t lane, uint64_t cookie)
{
    const struct local_window *window = window_of(t);
    kvf_local_ops.detach(window->rig->transport, lane_in(window, lane), cookie);
}

static uint64_t window_poll(struct kvf_transport *t)
{
    const struct local_window *window = window_of(t);
    return window->is_sink ? kvf_local_ops.poll(window->rig->transport) : 0;
}

static void window_fence(struct kvf_transport *t, uint32_t lane, uint32_t epoch)
{
    const struct local_window *window = window_of(t);
    kvf_local_ops.fence(window->rig->transport, lane_in(window, lane), epoch);
}

static void window_close(struct kvf_transport *t)
{
    struct local_rig *own = window_of(t)->rig;
    if (own->transport != NULL) {
        kvf_local_ops.close(own->transport);
        own->transport = NULL;
    }
}

static const struct kvf_transport_ops window_ops = {
    .name = "local",
    .open = window_open,
    .can_post = window_can_post,
    .post = window_post,
    .detach = window_detach,
    .poll = window_poll,
    .fence = window_fence,
    .close = window_close,
};

/* ---- the kind ---------------------------------------------------------------------------------------------- */

static int create_object(struct rig *rig, struct local_rig *own)
{
    struct kvf_transport_host host = {.ctx = own,
                                      .place_fn = on_place,
                                      .placed_fn = on_placed,
                                      .marker_fn = on_marker,
                                      .place_fault_fn = on_place_fault,
                                      .completed_fn = on_completed,
                                      .read_fault_fn = on_read_fault,
                                      .up_fn = on_up,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_fenced,
                                      .region_fn = on_region,
                                      .now_fn = on_now};
    struct kvf_transport_config config = rig->options.config;
    config.lanes_max = 2u * RIG_LANES;
    int rc = kvf_guard_install();
    return rc == 0 ? kvf_local_create(&config, &host, &own->transport) : rc;
}

/* The source's end comes first. */
static int local_end_create(struct rig *rig, struct rig_end *end,
                            const struct kvf_transport_host *host)
{
    struct local_rig *own = rig->own;
    bool is_sink = end == &rig->sink;
    if (own == NULL) {
        own = calloc(1, sizeof(*own));
        assert(own != NULL);
        rig->own = own;
        int rc = create_object(rig, own);
        if (rc != 0) {
            return rc;
        }
    }
    own->hosts[is_sink] = *host;
    own->windows[is_sink] = (struct local_window){.rig = own, .is_sink = is_sink};
    end->transport = (struct kvf_transport *)(void *)&own->windows[is_sink];
    return 0;
}

static bool both_up(struct rig *rig, uint64_t before)
{
    return rig->source.up_count + rig->sink.up_count == before + 2;
}

static int local_lane_open(struct rig *rig, uint32_t lane, uint32_t epoch)
{
    struct kvf_lane_open open = {
        .lane = lane + RIG_LANES, .epoch = epoch, .accepted_fd = -1, .partner = lane};
    uint64_t before = rig->source.up_count + rig->sink.up_count;
    int rc = window_open(rig->sink.transport, &open);
    if (rc != 0) {
        return rc;
    }
    return rig_until(rig, both_up, before) ? 0 : -ETIMEDOUT;
}

static void local_events(struct rig *rig, struct rig_end *end, bool wait)
{
    (void)rig;
    (void)end;
    (void)wait; /* nothing ever comes from outside */
}

static void local_destroy(struct rig *rig)
{
    free(rig->own);
}

uint64_t rig_local_due_ns(struct rig *rig)
{
    const struct local_rig *own = rig->own;
    return kvf_local_due_ns(own->transport);
}

void rig_local_set_now(struct rig *rig, uint64_t now_ns)
{
    struct local_rig *own = rig->own;
    own->now_ns = now_ns;
}

const struct rig_kind rig_local_kind = {
    .name = "local",
    .ops = &window_ops,
    .end_create = local_end_create,
    .lane_open = local_lane_open,
    .end_events = local_events,
    .destroy = local_destroy,
};

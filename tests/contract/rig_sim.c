/* Two simulated ends over a simulated network. A turn is 20 microseconds of virtual time; one that may wait goes to
 * the next event, at most 2 ms away. Bytes go to and from the rig's real regions by process_vm_readv and _writev on ourselves, so that memory
 * that was truncated answers EFAULT, as it does to a transport that uses system calls. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/contract/rig.h"
#include "tests/sim/fabric.h"

#define SOURCE 0u
#define SINK 1u
#define TURN_NS UINT64_C(20000)
#define WAIT_NS UINT64_C(2000000)

struct sim_rig {
    struct sim_clock clock;
    struct sim_fabric *fabric;
    int tokens[RIG_LANES];
    bool has_token[RIG_LANES];
    bool is_held; /* both directions: the far side does not answer */
};

static const struct kvf_addr_shm address = {.family = 4, .addr = {10, 0, 0, 1}, .port = 7};

/* ---- hooks ---------------------------------------------------------------------------------------------- */

static int copy(struct rig_end *end, const struct sim_touch *touch, void *out, const void *in)
{
    const struct rig_region *region = &end->regions[touch->region];
    uint64_t off = touch->off;
    uint64_t moved = 0;
    if (region->is_gone) {
        return -EFAULT;
    }
    for (uint32_t i = 0; i < region->region.plane_count && moved < touch->bytes; i++) {
        const struct kvf_core_plane *plane = &region->planes[i];
        if (off >= plane->page_bytes) {
            off -= plane->page_bytes;
            continue;
        }
        uint64_t n = plane->page_bytes - off;
        n = n < touch->bytes - moved ? n : touch->bytes - moved;
        struct iovec there = {.iov_base = region->region.base + plane->off +
                                          touch->page * plane->stride + off,
                              .iov_len = n};
        union {
            const void *in;
            void *out;
        } at = {.in = out != NULL ? (unsigned char *)out + moved
                                  : (const unsigned char *)in + moved};
        struct iovec here = {.iov_base = at.out, .iov_len = n};
        ssize_t rc = out != NULL ? process_vm_readv(getpid(), &here, 1, &there, 1, 0)
                                 : process_vm_writev(getpid(), &here, 1, &there, 1, 0);
        if (rc != (ssize_t)n) {
            return -EFAULT;
        }
        moved += n;
        off = 0;
    }
    return 0;
}

static int on_read(void *ctx, const struct sim_touch *touch, uint64_t *ret_tag, void *buffer)
{
    struct rig *rig = ctx;
    *ret_tag = 0;
    return copy(&rig->source, touch, buffer, NULL);
}

static int on_land(void *ctx, const struct sim_touch *touch, uint64_t tag, const void *buffer)
{
    struct rig *rig = ctx;
    (void)tag;
    int rc = copy(&rig->sink, touch, NULL, buffer);
    if (rc == 0 && rig->sink.transport != NULL && rig->kind->asks_no_place != NULL) {
        rig->sink.grants[touch->post->handle].placed_bytes +=
            touch->bytes; /* nobody else tells */
    }
    return rc;
}

static int on_remote(void *ctx, uint32_t source_host, uint32_t sink_host, uint32_t lane,
                     uint32_t epoch, const struct kvf_post *post, struct sim_remote *ret_remote)
{
    struct rig *rig = ctx;
    const struct rig_grant *grant = &rig->sink.grants[post->handle];
    (void)source_host;
    (void)sink_host;
    (void)lane;
    (void)epoch;
    *ret_remote = (struct sim_remote){.region = grant->region,
                                      .page_first = grant->page_base + post->position};
    return 0;
}

static void on_hello(void *ctx, uint32_t host, const struct kvf_wire_lane_hello *hello,
                     int token)
{
    struct rig *rig = ctx;
    struct sim_rig *own = rig->own;
    assert(host == SOURCE && hello->session == 77);
    own->tokens[hello->lane_idx] = token;
    own->has_token[hello->lane_idx] = true;
}

/* ---- the kind --------------------------------------------------------------------------------------------- */

static int end_create(struct rig *rig, struct rig_end *end,
                      const struct kvf_transport_host *host, enum sim_kind kind)
{
    struct sim_rig *own = rig->own;
    uint32_t squeeze = rig->options.squeeze_bytes;
    if (own == NULL) {
        own = calloc(1, sizeof(*own));
        assert(own != NULL);
        rig->own = own;
        sim_clock_init(&own->clock);
        struct sim_fabric_options options = {
            .kind = kind,
            .hosts = 2,
            .link = {.delay_min_ns = 5000, .delay_max_ns = 30000},
            .mtu_bytes = squeeze > 0 && squeeze < 4096 ? squeeze : 4096,
            .carries_bytes = true,
            .ctx = rig,
            .land_fn = on_land,
            .read_fn = on_read,
            .remote_fn = on_remote,
            .lane_hello_fn = on_hello};
        own->fabric = sim_fabric_create(&own->clock, &options, rig->options.seed);
        assert(own->fabric != NULL);
        sim_fabric_listen(own->fabric, SOURCE, &address);
    }
    struct sim_transport_options options = {
        .send_buffer_bytes = squeeze > 0 ? 4096 : 1u << 20,
        .receive_buffer_bytes = squeeze > 0 ? 4096 : 1u << 20,
        .short_receive_per_million = squeeze > 0 ? 300000 : 0,
        .sq_depth = 4,
        .window_packets = 1024,
        .ack_timeout_ns = 10000000};
    return sim_transport_create(own->fabric, end == &rig->source ? SOURCE : SINK,
                                &rig->options.config, host, &options, &end->transport);
}

static int stream_end_create(struct rig *rig, struct rig_end *end,
                             const struct kvf_transport_host *host)
{
    return end_create(rig, end, host, SIM_STREAM);
}

static int nic_end_create(struct rig *rig, struct rig_end *end,
                          const struct kvf_transport_host *host)
{
    return end_create(rig, end, host, SIM_NIC);
}

/* A NIC lands whatever its process does, so for "the sink is stopped" the network stands still instead. */
static void hold(struct sim_rig *own, bool is_held)
{
    if (own->is_held == is_held) {
        return;
    }
    own->is_held = is_held;
    for (uint32_t from = 0; from < 2; from++) {
        struct sim_link link;
        sim_link_get(own->fabric, from, 1 - from, &link);
        link.is_stalled = is_held;
        sim_link_set(own->fabric, from, 1 - from, &link);
    }
}

static void end_events(struct rig *rig, struct rig_end *end, bool wait)
{
    struct sim_rig *own = rig->own;
    uint64_t until_ns = own->clock.now_ns + TURN_NS;
    uint64_t next_ns = sim_clock_next_ns(&own->clock);
    (void)end;
    if (rig->kind->asks_no_place != NULL) {
        hold(own, rig->is_sink_stopped);
    }
    if (wait && next_ns != SIM_NEVER && next_ns > until_ns) {
        uint64_t most_ns = own->clock.now_ns + WAIT_NS;
        until_ns = next_ns < most_ns ? next_ns : most_ns;
    }
    sim_clock_run_until(&own->clock, until_ns);
}

static bool has_token(struct rig *rig, uint64_t lane)
{
    struct sim_rig *own = rig->own;
    return own->has_token[lane];
}

static bool both_up(struct rig *rig, uint64_t before)
{
    return rig->source.up_count + rig->sink.up_count == before + 2;
}

static int lane_open(struct rig *rig, uint32_t lane, uint32_t epoch)
{
    struct sim_rig *own = rig->own;
    struct kvf_lane_open open = {.lane = lane,
                                 .epoch = epoch,
                                 .addr = address,
                                 .session = 77,
                                 .lane_idx = lane,
                                 .accepted_fd = -1};
    uint64_t before = rig->source.up_count + rig->sink.up_count;
    own->has_token[lane] = false;
    int rc = kvf_sim_ops.open(rig->sink.transport, &open);
    if (rc != 0) {
        return rc;
    }
    if (!rig_until(rig, has_token, lane)) {
        return -ETIMEDOUT;
    }
    open.accepted_fd = own->tokens[lane];
    rc = kvf_sim_ops.open(rig->source.transport, &open);
    if (rc != 0) {
        return rc;
    }
    return rig_until(rig, both_up, before) ? 0 : -ETIMEDOUT;
}

static void lane_cut(struct rig *rig, uint32_t lane)
{
    struct sim_rig *own = rig->own;
    sim_fabric_break_lane(own->fabric, SOURCE, lane);
    sim_fabric_break_lane(own->fabric, SINK, lane);
}

static void destroy(struct rig *rig)
{
    struct sim_rig *own = rig->own;
    const struct sim_fabric_counters *counters = sim_fabric_counters(own->fabric);
    assert(counters->landings_ghost == 0);
    sim_fabric_destroy(own->fabric);
    sim_clock_free(&own->clock);
    free(own);
}

const struct rig_kind rig_sim_kind = {
    .name = "sim",
    .ops = &kvf_sim_ops,
    .has_streams = true,
    .end_create = stream_end_create,
    .lane_open = lane_open,
    .end_events = end_events,
    .lane_cut = lane_cut,
    .destroy = destroy,
};

const struct rig_kind rig_sim_nic_kind = {
    .name = "sim_nic",
    .ops = &kvf_sim_ops,
    .has_streams = true,
    .asks_no_place = "a NIC writes where a packet says and asks nobody",
    .calls_none_back = "what a NIC has been given cannot be called back",
    .faults_never = "memory of a registration is pinned and cannot go",
    .hears_no_end = "a responder hears nothing of its requester's end",
    .end_create = nic_end_create,
    .lane_open = lane_open,
    .end_events = end_events,
    .lane_cut = lane_cut,
    .destroy = destroy,
};

/* Two ends of transport verbs, over fake devices whose time moves with the turns, or over real ones.
 *
 * Each end of the rig is a window on its transport. It adds what a core would do (who tells whom of which end, the
 * sink's regions), waits for fences where the suite expects them to have answered, and checks at each marker that
 * the bytes which it is behind are in their pages: a device tells nobody what it placed. The number of a post
 * travels in post.client, since remote_page_first has to be true here. */
#include "tests/contract/rig_verbs.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS UINT64_C(20000)
#define WAIT_NS UINT64_C(2000000)

struct kvf_verbs_config rig_verbs_config = {.port = 1,
                                            .receives_per_lane = 64,
                                            .timeout = 12, /* 17 ms, four times */
                                            .retry = 3,
                                            .stall_ns = UINT64_C(10000000000),
                                            .reap_ns = UINT64_C(200000000)};
uint32_t rig_verbs_rails = 1;
bool rig_verbs_keeps_fake;
bool rig_verbs_leaves_something;
uint8_t rig_verbs_real_timeout = 18;
uint8_t rig_verbs_real_retry = 6;

struct window {
    struct rig *rig;
    struct rig_end *end;
    struct kvf_transport_host host; /* the rig's */
    struct kvf_transport *inner;
    uint32_t depth; /* within the transport's calls: no poll from there */
    struct kvf_lane_end ends[RIG_LANES];
    bool is_ready[RIG_LANES];
    struct kvf_verbs_memory *memory[RIG_REGIONS];
    uint64_t longest_fence_ns; /* in real time */
};

struct verbs_rig {
    struct window windows[2]; /* source, sink */
    struct kvf_post posts[RIG_POSTS_MAX];
    bool is_counted[RIG_POSTS_MAX];
    uint32_t keys[KVF_RAILS_MAX];
    const struct kvf_remote_view *lie;
};

static const char *real_names(void)
{
    return getenv("KVF_RIG_VERBS");
}

const char *rig_verbs_is_real(void)
{
    return real_names() != NULL ? "only a fake device can be made to do this" : NULL;
}

static uint64_t clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct window *window_of(const struct kvf_transport *t)
{
    return (struct window *)(uintptr_t)t;
}

static struct window *window_of_end(const struct rig_end *end)
{
    return window_of(end->transport);
}

struct kvf_transport *rig_verbs_transport(struct rig_end *end)
{
    return window_of_end(end)->inner;
}

const struct kvf_lane_end *rig_verbs_lane_end(const struct rig_end *end, uint32_t lane)
{
    return &window_of_end(end)->ends[lane];
}

struct kvf_verbs_memory *rig_verbs_memory(const struct rig_end *end, uint32_t region)
{
    return window_of_end(end)->memory[region];
}

void rig_verbs_lie(struct rig *rig, const struct kvf_remote_view *view)
{
    ((struct verbs_rig *)rig->own)->lie = view;
}

/* A device asks nobody, tells nobody what it placed, and has no faults of memory. */
static void complain(const char *what)
{
    fprintf(stderr, "rig_verbs: the host was %s\n", what);
    abort();
}

/* ---- the transport's host ---------------------------------------------------------------------------------- */

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
    (void)position;
    (void)page_count;
    (void)ret_at;
    complain("asked for a place");
    return -EPROTO;
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
    (void)bytes;
    (void)is_scratch;
    complain("told what was placed");
}

/* Whatever was posted for this handle and is not counted yet must be there now. */
static void count_placed(struct window *window, uint32_t handle)
{
    struct rig *rig = window->rig;
    struct verbs_rig *own = rig->own;
    struct rig_grant *grant = &rig->sink.grants[handle];
    for (uint32_t i = 0; i < rig->source.posted_count; i++) {
        const struct kvf_post *post = &own->posts[i];
        if (post->handle == handle && post->kind == KVF_LANE_DATA && !own->is_counted[i] &&
            rig_wrong_bytes(rig, grant->region, grant->page_base + post->position,
                            post->page_first, post->page_count) == 0) {
            own->is_counted[i] = true;
            grant->placed_bytes += post->payload_bytes;
        }
    }
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    struct window *window = ctx;
    if (handle < RIG_GRANTS) {
        count_placed(window, handle);
    }
    return window->host.marker_fn(window->host.ctx, lane, epoch, handle, kind);
}

static void on_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
    complain("told of a fault of memory");
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    struct window *window = ctx;
    struct kvf_post told = ((struct verbs_rig *)window->rig->own)->posts[post->client];
    assert(told.cookie == post->cookie && told.kind == post->kind);
    told.remote_page_first = post->client;
    window->host.completed_fn(window->host.ctx, lane, epoch, &told, status);
}

static void on_read_fault(void *ctx, uint32_t client)
{
    (void)ctx;
    (void)client;
    complain("told of a fault of memory");
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct window *window = ctx;
    assert(window->end == &window->rig->sink);
    window->host.up_fn(window->host.ctx, lane, epoch);
}

static void on_ready(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_lane_end *end)
{
    struct window *window = ctx;
    if (lane >= RIG_LANES) {
        return; /* a test's own */
    }
    window->ends[lane] = *end;
    window->is_ready[lane] = true;
    if (window->end == &window->rig->source) {
        window->host.up_fn(window->host.ctx, lane, epoch);
    }
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct window *window = ctx;
    if (real_names() != NULL) {
        fprintf(stderr, "rig_verbs: lane %u of the %s is lost: %s\n", lane,
                window->end == &window->rig->sink ? "sink" : "source", strerror(err));
    }
    window->host.lost_fn(window->host.ctx, lane, epoch, err);
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct window *window = ctx;
    window->host.fenced_fn(window->host.ctx, lane, epoch);
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    struct window *window = ctx;
    (void)client; /* a post's number */
    return window->host.region_fn(window->host.ctx, 0, region);
}

static bool on_remote(void *ctx, uint32_t lane, uint32_t remote_region,
                      struct kvf_remote_view *ret_view)
{
    struct window *window = ctx;
    struct verbs_rig *own = window->rig->own;
    const struct window *sink = &own->windows[1];
    (void)lane;
    if (own->lie != NULL) {
        *ret_view = *own->lie;
        return own->lie->keys != NULL;
    }
    if (remote_region >= RIG_REGIONS || sink->memory[remote_region] == NULL) {
        return false;
    }
    const struct rig_region *region = &window->rig->sink.regions[remote_region];
    *ret_view = (struct kvf_remote_view){.keys = own->keys,
                                         .page_count = region->region.page_count,
                                         .plane_count = region->region.plane_count,
                                         .planes = region->planes};
    kvf_verbs_keys(sink->memory[remote_region], &ret_view->base, own->keys,
                   &ret_view->key_count);
    return true;
}

static uint64_t on_now(void *ctx)
{
    (void)ctx;
    if (real_names() == NULL) {
        return fake_now_ns();
    }
    return clock_ns();
}

/* ---- the window ---------------------------------------------------------------------------------------------- */

static int window_open(struct kvf_transport *t, const struct kvf_lane_open *open)
{
    return kvf_verbs_ops.open(window_of(t)->inner, open);
}

static bool window_can_post(const struct kvf_transport *t, uint32_t lane)
{
    return kvf_verbs_ops.can_post(window_of(t)->inner, lane);
}

static int window_post(struct kvf_transport *t, uint32_t lane, const struct kvf_post *post)
{
    struct window *window = window_of(t);
    struct verbs_rig *own = window->rig->own;
    uint32_t number = post->remote_page_first;
    const struct rig_grant *grant = &window->rig->sink.grants[post->handle];
    struct kvf_post given = *post;
    given.client = number;
    given.remote_region = grant->region;
    given.remote_page_first = grant->page_base + post->position;
    own->posts[number] = *post;
    own->is_counted[number] = false;
    return kvf_verbs_ops.post(window->inner, lane, &given);
}

static void window_detach(struct kvf_transport *t, uint32_t lane, uint64_t cookie)
{
    kvf_verbs_ops.detach(window_of(t)->inner, lane, cookie);
}

static uint64_t window_poll(struct kvf_transport *t)
{
    struct window *window = window_of(t);
    window->depth++;
    uint64_t moved = kvf_verbs_ops.poll(window->inner);
    window->depth--;
    return moved;
}

void rig_verbs_ask_fence(struct rig_end *end, uint32_t lane, uint32_t epoch)
{
    kvf_verbs_ops.fence(window_of_end(end)->inner, lane, epoch);
}

/* Other transports answer at once, and the suite is written so. Time stands still meanwhile. */
static void window_fence(struct kvf_transport *t, uint32_t lane, uint32_t epoch)
{
    struct window *window = window_of(t);
    uint32_t before = window->end->fenced_count;
    uint64_t begin_ns = clock_ns();
    window->is_ready[lane] = false;
    kvf_verbs_ops.fence(window->inner, lane, epoch);
    for (uint32_t i = 0;
         i < 1000000 && window->depth == 0 && window->end->fenced_count == before; i++) {
        if (window_poll(t) == 0) {
            usleep(20);
        }
    }
    uint64_t took_ns = clock_ns() - begin_ns;
    if (took_ns > window->longest_fence_ns) {
        window->longest_fence_ns = took_ns;
    }
}

/* Of real devices nobody knows beforehand how long a fence takes and what it has to write off. */
static void report(const struct window *window)
{
    struct kvf_verbs_counts counts;
    kvf_verbs_counts(window->inner, &counts);
    fprintf(stderr,
            "rig_verbs: %s: longest fence %lu us, %lu written off, %lu stray, %lu numbers "
            "avoided\n",
            window->end == &window->rig->sink ? "sink" : "source",
            (unsigned long)(window->longest_fence_ns / 1000u),
            (unsigned long)counts.written_off, (unsigned long)counts.completions_stray,
            (unsigned long)counts.numbers_avoided);
}

static void window_close(struct kvf_transport *t)
{
    if (real_names() != NULL) {
        report(window_of(t));
    }
    kvf_verbs_ops.close(window_of(t)->inner);
}

static const struct kvf_transport_ops window_ops = {
    .name = "verbs",
    .open = window_open,
    .can_post = window_can_post,
    .post = window_post,
    .detach = window_detach,
    .poll = window_poll,
    .fence = window_fence,
    .close = window_close,
};

/* ---- the kind --------------------------------------------------------------------------------------------------- */

static void name_rails(struct kvf_verbs_config *verbs, bool is_sink)
{
    const char *names = real_names();
    if (names == NULL) {
        verbs->rail_count = rig_verbs_rails;
        for (uint32_t i = 0; i < rig_verbs_rails; i++) {
            (void)snprintf(verbs->rails[i], sizeof(verbs->rails[i]), "fake%u",
                           2u * i + (is_sink ? RIG_SINK_DEVICE : RIG_SOURCE_DEVICE));
        }
        return;
    }
    const char *comma = strchr(names, ',');
    assert(comma != NULL);
    verbs->rail_count = 1;
    (void)snprintf(verbs->rails[0], sizeof(verbs->rails[0]), "%.*s",
                   is_sink ? 31 : (int)(comma - names), is_sink ? comma + 1 : names);
}

/* The source's end comes first. */
static int end_create(struct rig *rig, struct rig_end *end,
                      const struct kvf_transport_host *host)
{
    struct verbs_rig *own = rig->own;
    bool is_sink = end == &rig->sink;
    char why[200] = "";
    if (own == NULL) {
        own = calloc(1, sizeof(*own));
        assert(own != NULL);
        rig->own = own;
        if (real_names() == NULL && !rig_verbs_keeps_fake) {
            fake_reset();
        }
        struct fake_knobs knobs;
        fake_get(&knobs);
        knobs.packet_bytes = rig->options.squeeze_bytes;
        fake_set(&knobs);
    }
    struct window *window = &own->windows[is_sink];
    *window = (struct window){.rig = rig, .end = end, .host = *host};
    struct kvf_transport_host inner = {.ctx = window,
                                       .place_fn = on_place,
                                       .placed_fn = on_placed,
                                       .marker_fn = on_marker,
                                       .place_fault_fn = on_place_fault,
                                       .completed_fn = on_completed,
                                       .read_fault_fn = on_read_fault,
                                       .up_fn = on_up,
                                       .ready_fn = on_ready,
                                       .lost_fn = on_lost,
                                       .fenced_fn = on_fenced,
                                       .region_fn = on_region,
                                       .remote_fn = on_remote,
                                       .now_fn = on_now};
    struct kvf_verbs_config verbs = rig_verbs_config;
    if (real_names() != NULL) {
        verbs.timeout = rig_verbs_real_timeout;
        verbs.retry = rig_verbs_real_retry;
    }
    name_rails(&verbs, is_sink);
    int rc = kvf_verbs_create(&rig->options.config, &verbs, &inner,
                              real_names() == NULL ? fake_lib() : NULL, &window->inner, why,
                              sizeof(why));
    if (rc != 0) {
        fprintf(stderr, "rig_verbs: %s\n", why);
    }
    end->transport = (struct kvf_transport *)(void *)window;
    return rc;
}

static void region_made(struct rig *rig, struct rig_end *end, uint32_t idx)
{
    struct window *window = window_of_end(end);
    struct rig_region *region = &end->regions[idx];
    (void)rig;
    int rc = kvf_verbs_register(window->inner, region->region.base, region->bytes, -1, 0,
                                &window->memory[idx]);
    assert(rc == 0);
    region->region.memory = window->memory[idx];
}

static void region_leaves(struct rig *rig, struct rig_end *end, uint32_t idx)
{
    struct window *window = window_of_end(end);
    (void)rig;
    int rc = kvf_verbs_unregister(window->inner, window->memory[idx]);
    assert(rc == 0 || rig_verbs_leaves_something);
    window->memory[idx] = NULL;
}

/* A device lands whatever its process does, so for "the sink is stopped" the network stands still instead. */
static void fake_events(struct rig *rig, bool wait)
{
    struct fake_knobs knobs;
    fake_get(&knobs);
    if (knobs.is_stalled != rig->is_sink_stopped) {
        knobs.is_stalled = rig->is_sink_stopped;
        fake_set(&knobs);
    }
    uint64_t now_ns = fake_now_ns();
    uint64_t until_ns = now_ns + TURN_NS;
    uint64_t next_ns = fake_next_ns();
    if (wait && next_ns != FAKE_NEVER && next_ns > until_ns) {
        until_ns = next_ns < now_ns + WAIT_NS ? next_ns : now_ns + WAIT_NS;
    }
    fake_advance(until_ns);
    if (wait) {
        usleep(20); /* queue pairs are made in real time */
    }
}

static void real_events(struct window *window, bool wait)
{
    int fds[KVF_VERBS_FDS_MAX];
    struct pollfd polled[KVF_VERBS_FDS_MAX];
    uint32_t count = kvf_verbs_fds(window->inner, fds, sizeof(fds) / sizeof(fds[0]));
    window->depth++;
    bool may_sleep = wait && kvf_verbs_may_sleep(window->inner);
    window->depth--;
    for (uint32_t i = 0; i < count; i++) {
        polled[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    (void)poll(polled, count, may_sleep ? 1 : 0);
}

static void end_events(struct rig *rig, struct rig_end *end, bool wait)
{
    struct window *window = window_of_end(end);
    if (real_names() == NULL) {
        fake_events(rig, wait);
    } else {
        real_events(window, wait);
    }
    kvf_verbs_ready(window->inner);
}

int rig_verbs_open(struct rig_end *end, uint32_t lane, uint32_t epoch,
                   const struct kvf_lane_end *peer)
{
    struct window *window = window_of_end(end);
    struct kvf_lane_open open = {
        .lane = lane, .epoch = epoch, .lane_idx = lane, .accepted_fd = -1, .end = peer};
    window->is_ready[lane] = false;
    return window_open(end->transport, &open);
}

static bool source_ready(struct rig *rig, uint64_t lane)
{
    return window_of_end(&rig->source)->is_ready[lane];
}

static bool sink_ready(struct rig *rig, uint64_t lane)
{
    return window_of_end(&rig->sink)->is_ready[lane];
}

bool rig_verbs_wait_ready(struct rig_end *end, uint32_t lane)
{
    return rig_until(end->rig, end == &end->rig->source ? source_ready : sink_ready, lane);
}

static bool both_up(struct rig *rig, uint64_t before)
{
    return rig->source.up_count + rig->sink.up_count == before + 2;
}

/* As two cores do: the sink makes its end and tells it, the source makes its own for it and tells that. */
static int lane_open(struct rig *rig, uint32_t lane, uint32_t epoch)
{
    uint64_t before = rig->source.up_count + rig->sink.up_count;
    int rc = rig_verbs_open(&rig->sink, lane, epoch, NULL);
    if (rc != 0) {
        return rc;
    }
    if (!rig_verbs_wait_ready(&rig->sink, lane)) {
        return -ETIMEDOUT;
    }
    rc = rig_verbs_open(&rig->source, lane, epoch, rig_verbs_lane_end(&rig->sink, lane));
    if (rc != 0) {
        return rc;
    }
    if (!rig_verbs_wait_ready(&rig->source, lane)) {
        return -ETIMEDOUT;
    }
    rc = kvf_verbs_ops.join(rig_verbs_transport(&rig->sink), lane, epoch,
                            rig_verbs_lane_end(&rig->source, lane));
    if (rc != 0) {
        return rc;
    }
    return rig_until(rig, both_up, before) ? 0 : -ETIMEDOUT;
}

static void lane_cut(struct rig *rig, uint32_t lane)
{
    fake_qp_break(RIG_SOURCE_DEVICE, rig_verbs_lane_end(&rig->source, lane)->qpn, false);
    fake_qp_break(RIG_SINK_DEVICE, rig_verbs_lane_end(&rig->sink, lane)->qpn, false);
}

static void destroy(struct rig *rig)
{
    if (real_names() == NULL) {
        struct fake_counts counts;
        fake_counts(&counts);
        assert(counts.resets == 0);
        assert(counts.objects == 0 || rig_verbs_leaves_something);
    }
    free(rig->own);
}

const struct rig_kind rig_verbs_kind = {
    .name = "verbs",
    .ops = &window_ops,
    .has_streams = true,
    .asks_no_place = "a device writes where a packet says and asks nobody",
    .calls_none_back = "what a device has been given cannot be called back",
    .faults_never = "memory of a registration is pinned and cannot go",
    .hears_no_end = "a responder hears nothing of its requester's end",
    .end_create = end_create,
    .region_made = region_made,
    .region_leaves = region_leaves,
    .lane_open = lane_open,
    .end_events = end_events,
    .lane_cut = lane_cut,
    .destroy = destroy,
};

const struct rig_kind rig_verbs_real_kind = {
    .name = "verbs",
    .ops = &window_ops,
    .has_streams = false,
    .patience_s = 280,
    .asks_no_place = "a device writes where a packet says and asks nobody",
    .calls_none_back = "what a device has been given cannot be called back",
    .faults_never = "memory of a registration is pinned and cannot go",
    .hears_no_end = "a responder hears nothing of its requester's end",
    .never_stands = "a device takes writes while its process stands still",
    .end_create = end_create,
    .region_made = region_made,
    .region_leaves = region_leaves,
    .lane_open = lane_open,
    .end_events = end_events,
    .destroy = destroy,
};

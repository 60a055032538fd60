#include "tests/sim/bench.h"

#include <assert.h>
#include <string.h>

#define SESSION UINT64_C(0x5e55)

/* ---- memory that only counts ------------------------------------------------------------------------------ */

static uint64_t tag_of(uint32_t host, uint32_t page)
{
    return (uint64_t)host << 32 | page;
}

static void note(struct bench *b, uint64_t what)
{
    b->hash = sim_random_mix(b->hash ^ what ^ b->clock.now_ns);
}

static void check_alive(struct bench *b, const struct sim_touch *touch)
{
    b->touches_after_end += touch->epoch <= b->fenced_epoch[touch->host][touch->lane];
}

static int on_read(void *ctx, const struct sim_touch *touch, uint64_t *ret_tag, void *buffer)
{
    struct bench *b = ctx;
    assert(buffer == NULL);
    assert(touch->page < BENCH_PAGES);
    check_alive(b, touch);
    b->touches_after_end += b->process[touch->host].post_completions[touch->post->cookie];
    b->read_bytes += touch->bytes;
    *ret_tag = tag_of(touch->host, touch->page);
    return 0;
}

static int on_land(void *ctx, const struct sim_touch *touch, uint64_t tag, const void *buffer)
{
    struct bench *b = ctx;
    assert(buffer == NULL);
    assert(touch->page < BENCH_PAGES);
    check_alive(b, touch);
    b->landed[touch->host][touch->page] += touch->bytes;
    b->landed_tag[touch->host][touch->page] = tag;
    b->landed_bytes += touch->bytes;
    b->late_bytes += touch->is_late ? touch->bytes : 0;
    b->ghost_bytes += touch->is_ghost ? touch->bytes : 0;
    note(b, touch->page ^ touch->off << 8);
    return 0;
}

static int on_remote(void *ctx, uint32_t source_host, uint32_t sink_host, uint32_t lane,
                     uint32_t epoch, const struct kvf_post *post, struct sim_remote *ret_remote)
{
    const struct bench *b = ctx;
    (void)source_host;
    (void)sink_host;
    (void)lane;
    (void)epoch;
    *ret_remote = (struct sim_remote){.page_first = post->remote_page_first, .key = b->key};
    return 0;
}

/* ---- a process --------------------------------------------------------------------------------------------- */

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    struct bench_process *p = ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
    (void)page_count;
    p->places++;
    *ret_at = (struct kvf_placement_at){
        .where = p->is_scratch ? KVF_PLACE_SCRATCH : KVF_PLACE_PAGES, .page_first = position};
    return 0;
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    struct bench_process *p = ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
    p->placed_bytes += is_scratch ? 0 : bytes;
    p->scratch_bytes += is_scratch ? bytes : 0;
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    struct bench_process *p = ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
    p->markers++;
    note(p->bench, kind);
    return 0;
}

static void on_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    (void)handle;
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    struct bench_process *p = ctx;
    (void)lane;
    (void)epoch;
    p->completions++;
    p->post_completions[post->cookie]++;
    p->status[post->cookie] = status;
    note(p->bench, post->cookie ^ (uint64_t)(uint32_t)status << 16);
}

static void on_read_fault(void *ctx, uint32_t client)
{
    (void)ctx;
    (void)client;
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct bench_process *p = ctx;
    p->ups++;
    note(p->bench, lane ^ (uint64_t)epoch << 8);
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct bench_process *p = ctx;
    p->losses++;
    p->lost_err = err;
    note(p->bench, lane ^ (uint64_t)epoch << 8 ^ (uint64_t)(uint32_t)err << 16);
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct bench_process *p = ctx;
    p->fences++;
    if (epoch > p->bench->fenced_epoch[p->host][lane]) {
        p->bench->fenced_epoch[p->host][lane] = epoch;
    }
    note(p->bench, lane ^ (uint64_t)epoch << 8);
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    (void)ctx;
    (void)client;
    (void)region;
    return NULL;
}

static void on_hello(void *ctx, uint32_t host, const struct kvf_wire_lane_hello *hello,
                     int token)
{
    struct bench *b = ctx;
    assert(hello->session == SESSION);
    b->hellos++;
    if (b->process[host].is_refusing) {
        sim_fabric_refuse(b->fabric, token);
        return;
    }
    struct kvf_lane_open open = {.lane = hello->lane_idx,
                                 .epoch = hello->epoch,
                                 .lane_idx = hello->lane_idx,
                                 .accepted_fd = token};
    (void)kvf_sim_ops.open(b->process[host].t, &open);
}

static void on_wake(void *ctx, uint32_t host)
{
    struct bench *b = ctx;
    (void)host;
    b->wakes++;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

struct kvf_addr_shm bench_address(uint32_t host)
{
    return (struct kvf_addr_shm){
        .family = 4, .addr = {10, 0, 0, (uint8_t)(1 + host)}, .port = 7};
}

void bench_init(struct bench *b, enum sim_kind kind, uint32_t hosts)
{
    memset(b, 0, sizeof(*b));
    sim_clock_init(&b->clock);
    b->page_bytes = BENCH_PAGE_BYTES;
    b->options = (struct sim_fabric_options){
        .kind = kind,
        .hosts = hosts,
        .link = {.delay_min_ns = 5 * BENCH_US, .delay_max_ns = 20 * BENCH_US},
        .mtu_bytes = BENCH_MTU,
        .ctx = b,
        .land_fn = on_land,
        .read_fn = on_read,
        .remote_fn = on_remote,
        .lane_hello_fn = on_hello,
        .wake_fn = on_wake};
}

void bench_process_start(struct bench *b, uint32_t host)
{
    struct bench_process *p = &b->process[host];
    struct kvf_transport_config config = {
        .lanes_max = BENCH_LANES, .turn_bytes_max = 1u << 20, .posts_per_lane_max = 256};
    struct kvf_transport_host calls = {.ctx = p,
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
    p->bench = b;
    p->host = host;
    int rc = sim_transport_create(b->fabric, host, &config, &calls, &b->process_options[host],
                                  &p->t);
    assert(rc == 0);
}

void bench_start(struct bench *b, uint64_t seed)
{
    b->fabric = sim_fabric_create(&b->clock, &b->options, seed);
    assert(b->fabric != NULL);
    for (uint32_t i = 0; i < b->options.hosts; i++) {
        struct kvf_addr_shm address = bench_address(i);
        sim_fabric_listen(b->fabric, i, &address);
        bench_process_start(b, i);
    }
}

void bench_stop(struct bench *b)
{
    for (uint32_t i = 0; i < b->options.hosts; i++) {
        if (b->process[i].t != NULL) {
            kvf_sim_ops.close(b->process[i].t);
        }
    }
    sim_fabric_destroy(b->fabric);
    sim_clock_free(&b->clock);
}

/* ---- what is done ------------------------------------------------------------------------------------------------ */

void bench_open(struct bench *b, uint32_t sink, uint32_t source, uint32_t lane, uint32_t epoch)
{
    struct kvf_lane_open open = {.lane = lane,
                                 .epoch = epoch,
                                 .addr = bench_address(source),
                                 .session = SESSION,
                                 .lane_idx = lane,
                                 .accepted_fd = -1};
    int rc = kvf_sim_ops.open(b->process[sink].t, &open);
    assert(rc == 0);
}

void bench_connect(struct bench *b, uint32_t sink, uint32_t source, uint32_t lane,
                   uint32_t epoch)
{
    uint32_t ups = b->process[sink].ups + b->process[source].ups;
    bench_open(b, sink, source, lane, epoch);
    bench_run(b, 200 * BENCH_US);
    assert(b->process[sink].ups + b->process[source].ups == ups + 2);
}

uint32_t bench_post(struct bench *b, uint32_t source, uint32_t lane, uint32_t page_first,
                    uint32_t pages)
{
    struct kvf_post post = {.cookie = b->posts++,
                            .kind = KVF_LANE_DATA,
                            .position = page_first,
                            .page_count = pages,
                            .payload_bytes = pages * b->page_bytes,
                            .page_first = page_first,
                            .remote_page_first = page_first};
    assert(b->posts <= BENCH_POSTS);
    int rc = kvf_sim_ops.post(b->process[source].t, lane, &post);
    assert(rc == 0);
    return b->posts - 1;
}

uint32_t bench_mark(struct bench *b, uint32_t source, uint32_t lane)
{
    struct kvf_post post = {.cookie = b->posts++, .kind = KVF_LANE_END};
    int rc = kvf_sim_ops.post(b->process[source].t, lane, &post);
    assert(rc == 0);
    return b->posts - 1;
}

void bench_fence(struct bench *b, uint32_t host, uint32_t lane, uint32_t epoch)
{
    kvf_sim_ops.fence(b->process[host].t, lane, epoch);
}

static void poll_all(struct bench *b)
{
    for (uint32_t i = 0; i < b->options.hosts; i++) {
        struct bench_process *p = &b->process[i];
        while (p->t != NULL && !p->is_stopped && sim_transport_has_work(p->t)) {
            kvf_sim_ops.poll(p->t);
        }
    }
}

void bench_run(struct bench *b, uint64_t ns)
{
    uint64_t until_ns = b->clock.now_ns + ns;
    poll_all(b);
    while (sim_clock_next_ns(&b->clock) <= until_ns) {
        sim_clock_run_one(&b->clock);
        poll_all(b);
    }
    sim_clock_run_until(&b->clock, until_ns);
}

void bench_link(struct bench *b, uint32_t from, uint32_t to, struct sim_link link)
{
    sim_link_set(b->fabric, from, to, &link);
}

const struct sim_fabric_counters *bench_counters(const struct bench *b)
{
    return sim_fabric_counters(b->fabric);
}

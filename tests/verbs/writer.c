/* A source in a process of its own, for tests that kill it or stop it: one lane, writes as ordered, then it polls
 * until its input ends. What it is told and tells: writer.h. */
#include "tests/verbs/writer.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u

static struct writer_orders orders;
static struct kvf_core_plane plane = {.stride = PAGE_BYTES, .page_bytes = PAGE_BYTES};
static struct kvf_transport_region region;

static void complain(const char *what, int rc)
{
    fprintf(stderr, "verbs_writer: %s: %s\n", what, strerror(-rc));
    exit(1);
}

static void tell(const void *bytes, size_t count)
{
    if (write(STDOUT_FILENO, bytes, count) != (ssize_t)count) {
        exit(1);
    }
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    (void)post;
    (void)status;
}

static void on_ready(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_lane_end *end)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    tell(end, sizeof(*end));
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
    (void)err;
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t idx)
{
    (void)ctx;
    (void)client;
    (void)idx;
    return &region;
}

static bool on_remote(void *ctx, uint32_t lane, uint32_t remote_region,
                      struct kvf_remote_view *ret_view)
{
    (void)ctx;
    (void)lane;
    (void)remote_region;
    *ret_view = (struct kvf_remote_view){.base = orders.base,
                                         .keys = &orders.key,
                                         .key_count = 1,
                                         .page_count = orders.page_count,
                                         .plane_count = 1,
                                         .planes = &plane};
    return true;
}

static uint64_t on_now(void *ctx)
{
    struct timespec ts;
    (void)ctx;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct kvf_transport *create(const char *device)
{
    struct kvf_transport_config config = {.lanes_max = 1,
                                          .turn_bytes_max = 4u << 20,
                                          .lane_window_bytes = 4u << 20,
                                          .posts_per_lane_max = 1024};
    struct kvf_verbs_config verbs = {.rail_count = 1,
                                     .port = 1,
                                     .receives_per_lane = 1,
                                     .timeout = 18,
                                     .retry = 6,
                                     .stall_ns = UINT64_C(60000000000),
                                     .reap_ns = UINT64_C(200000000)};
    struct kvf_transport_host host = {.completed_fn = on_completed,
                                      .ready_fn = on_ready,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_fenced,
                                      .region_fn = on_region,
                                      .remote_fn = on_remote,
                                      .now_fn = on_now};
    struct kvf_transport *transport = NULL;
    char why[200] = "";
    (void)snprintf(verbs.rails[0], sizeof(verbs.rails[0]), "%s", device);
    int rc = kvf_verbs_create(&config, &verbs, &host, NULL, &transport, why, sizeof(why));
    if (rc != 0) {
        complain(why, rc);
    }
    return transport;
}

static void make_pages(struct kvf_transport *transport)
{
    struct kvf_verbs_memory *memory = NULL;
    uint64_t bytes = (uint64_t)orders.page_count * PAGE_BYTES;
    unsigned char *base = aligned_alloc(PAGE_BYTES, bytes);
    if (base == NULL) {
        complain("pages", -ENOMEM);
    }
    memset(base, WRITER_BYTE, bytes);
    int rc = kvf_verbs_register(transport, base, bytes, -1, 0, &memory);
    if (rc != 0) {
        complain("registering pages", rc);
    }
    region = (struct kvf_transport_region){.base = base,
                                           .page_count = orders.page_count,
                                           .plane_count = 1,
                                           .planes = &plane,
                                           .page_bytes = PAGE_BYTES,
                                           .memory = memory};
}

/* One write of all pages, handed to the device before the byte is told. */
static void write_pages(struct kvf_transport *transport)
{
    struct kvf_post post = {.cookie = 1,
                            .kind = KVF_LANE_DATA,
                            .page_count = orders.page_count,
                            .payload_bytes = (uint64_t)orders.page_count * PAGE_BYTES};
    int rc = kvf_verbs_ops.post(transport, 0, &post);
    if (rc != 0) {
        complain("posting", rc);
    }
    (void)kvf_verbs_ops.poll(transport);
    tell("w", 1);
}

int main(int argc, char **argv)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    bool has_written = false;
    if (argc != 2 || read(STDIN_FILENO, &orders, sizeof(orders)) != (ssize_t)sizeof(orders)) {
        fprintf(stderr, "verbs_writer: wants a device, and orders as its input\n");
        return 2;
    }
    struct kvf_transport *transport = create(argv[1]);
    make_pages(transport);
    struct kvf_lane_open open = {.epoch = 1, .accepted_fd = -1, .end = &orders.sink_end};
    int rc = kvf_verbs_ops.open(transport, &open);
    if (rc != 0) {
        complain("opening", rc);
    }
    for (;;) {
        (void)kvf_verbs_ops.poll(transport);
        kvf_verbs_ready(transport);
        if (poll(&input, 1, 1) == 0) {
            continue;
        }
        char word;
        if (read(STDIN_FILENO, &word, 1) != 1) {
            break;
        }
        if (!has_written) {
            write_pages(transport);
            has_written = true;
        }
    }
    kvf_verbs_ops.close(transport);
    return 0;
}

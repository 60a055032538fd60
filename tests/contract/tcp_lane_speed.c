/* What one lane of tcp moves over loopback, from memfd to memfd, beside a plain loop of write and read of the
 * same memory in 128 KiB pieces (what iperf3 does). Source and sink are a thread each; the repeats of both
 * kinds are interleaved and the medians printed.
 *
 *   tcp_lane_speed [--planes N] [--plane-bytes B] [--pages-per-post N] [--rate MB/s] [--mib N] [--repeats N] */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sidecar/transport/tcp_socket.h"
#include "sidecar/transport/transport.h"

#define REPEATS_MAX 99u
#define PLAIN_BYTES 131072u
#define POSTS_OUT 64u

static uint32_t planes = 16, plane_bytes = 4096, pages_per_post = 1, repeats = 5;
static uint64_t rate_mb, mib = 2048;

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

struct side {
    struct kvf_core_plane plane_table[KVF_PLANES_MAX];
    struct kvf_transport_region region;
    struct kvf_transport *transport;
    int epoll_fd;
    size_t bytes;
    uint32_t out; /* posts under way */
    uint64_t completed;
    uint64_t placed_bytes;
    bool has_ended;
};

static struct side source, sink;
static struct kvf_addr_shm addr;
static int listen_fd;

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle, (void)page_count;
    *ret_at = (struct kvf_placement_at){
        .where = KVF_PLACE_PAGES, .page_first = position % (uint32_t)sink.region.page_count};
    return 0;
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle, (void)is_scratch;
    sink.placed_bytes += bytes;
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle, (void)kind;
    sink.has_ended = true;
    return 0;
}

static void on_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle;
    abort();
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    (void)ctx, (void)lane, (void)epoch, (void)post;
    assert(status == 0);
    source.out--;
    source.completed++;
}

static void on_read_fault(void *ctx, uint32_t client)
{
    (void)ctx, (void)client;
    abort();
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    (void)ctx, (void)lane, (void)epoch;
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    (void)ctx, (void)lane, (void)epoch;
    fprintf(stderr, "lane lost: %s\n", strerror(err));
    exit(1);
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    (void)client, (void)region;
    return &((struct side *)ctx)->region;
}

static void make_region(struct side *side)
{
    uint64_t page_bytes = (uint64_t)planes * plane_bytes;
    uint64_t pages = (UINT64_C(256) << 20) / page_bytes / pages_per_post * pages_per_post;
    side->bytes = pages * page_bytes;
    int fd = memfd_create("speed", MFD_CLOEXEC);
    assert(fd >= 0);
    int rc = ftruncate(fd, (off_t)side->bytes);
    assert(rc == 0);
    void *base =
        mmap(NULL, side->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    assert(base != MAP_FAILED);
    memset(base, 1, side->bytes);
    close(fd);
    for (uint32_t i = 0; i < planes; i++) {
        side->plane_table[i] = (struct kvf_core_plane){
            .off = i * pages * plane_bytes, .stride = plane_bytes, .page_bytes = plane_bytes};
    }
    side->region = (struct kvf_transport_region){.base = base,
                                                 .page_count = pages,
                                                 .plane_count = planes,
                                                 .planes = side->plane_table,
                                                 .page_bytes = page_bytes};
}

static void make_end(struct side *side)
{
    struct kvf_transport_config config = {.lanes_max = 1,
                                          .lane_rate_bytes = rate_mb * 1000000u,
                                          .lane_window_bytes = 4u << 20,
                                          .turn_bytes_max = 4u << 20,
                                          .posts_per_lane_max = 1024};
    struct kvf_transport_host host = {.ctx = side,
                                      .place_fn = on_place,
                                      .placed_fn = on_placed,
                                      .marker_fn = on_marker,
                                      .place_fault_fn = on_fault,
                                      .completed_fn = on_completed,
                                      .read_fault_fn = on_read_fault,
                                      .up_fn = on_up,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_up,
                                      .region_fn = on_region};
    side->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int rc = kvf_tcp_create(&config, &host, side->epoll_fd, &side->transport);
    assert(rc == 0);
}

static void turn_for(struct side *side, int idle_ms)
{
    struct epoll_event event;
    int wait_ms = kvf_tcp_has_work(side->transport) ? 0 : idle_ms;
    if (epoll_wait(side->epoll_fd, &event, 1, wait_ms) == 1) {
        kvf_tcp_ready(side->transport, 0, event.events);
    }
    kvf_tcp_ops.poll(side->transport);
}

static void turn(struct side *side)
{
    turn_for(side, -1);
}

static void *run_sink(void *arg)
{
    (void)arg;
    while (!sink.has_ended) {
        turn(&sink);
    }
    return NULL;
}

static void run_source(uint64_t total_bytes)
{
    uint64_t page_bytes = source.region.page_bytes;
    uint64_t posts = total_bytes / page_bytes / pages_per_post;
    uint64_t posted = 0;
    source.completed = 0;
    while (source.completed < posts) {
        while (posted < posts && source.out < POSTS_OUT) {
            uint32_t page = (uint32_t)(posted * pages_per_post % source.region.page_count);
            struct kvf_post post = {.kind = KVF_LANE_DATA,
                                    .position = page,
                                    .page_count = pages_per_post,
                                    .payload_bytes = pages_per_post * page_bytes,
                                    .page_first = page};
            int rc = kvf_tcp_ops.post(source.transport, 0, &post);
            assert(rc == 0);
            source.out++;
            posted++;
        }
        turn(&source);
    }
    struct kvf_post end = {.kind = KVF_LANE_END};
    source.out++;
    kvf_tcp_ops.post(source.transport, 0, &end);
    while (source.out > 0) {
        turn(&source);
    }
}

static int accept_lane(void)
{
    int fd = -1;
    unsigned char hello[KVF_WIRE_HEADER_BYTES + KVF_WIRE_LANE_HELLO_BYTES];
    while (fd < 0) {
        turn_for(&sink, 10);
        fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    }
    turn_for(&sink, 10);
    ssize_t n = recv(fd, hello, sizeof(hello), MSG_WAITALL);
    assert(n == (ssize_t)sizeof(hello));
    return fd;
}

static double lane_seconds(uint64_t total_bytes)
{
    pthread_t thread;
    sink.has_ended = false;
    uint64_t begin = now_ns();
    pthread_create(&thread, NULL, run_sink, NULL);
    run_source(total_bytes);
    pthread_join(thread, NULL);
    return (double)(now_ns() - begin) / 1e9;
}

static void *plain_reader(void *arg)
{
    int fd = *(int *)arg;
    uint64_t at = 0;
    for (;;) {
        ssize_t n = read(fd, sink.region.base + at, PLAIN_BYTES);
        if (n <= 0) {
            return NULL;
        }
        at = (at + PLAIN_BYTES) % (sink.bytes - PLAIN_BYTES);
    }
}

static double plain_seconds(uint64_t total_bytes)
{
    pthread_t thread;
    struct sockaddr_storage name;
    socklen_t name_bytes;
    kvf_socket_address(&addr, &name, &name_bytes);
    int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect(to, (struct sockaddr *)&name, name_bytes);
    assert(rc == 0);
    int from = -1;
    while (from < 0) {
        from = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    }
    uint64_t begin = now_ns();
    pthread_create(&thread, NULL, plain_reader, &from);
    uint64_t sent = 0, at = 0;
    while (sent < total_bytes) {
        ssize_t n = write(to, source.region.base + at, PLAIN_BYTES);
        assert(n > 0);
        sent += (uint64_t)n;
        at = (at + PLAIN_BYTES) % (source.bytes - PLAIN_BYTES);
    }
    close(to);
    pthread_join(thread, NULL);
    close(from);
    return (double)(now_ns() - begin) / 1e9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--planes") == 0) {
            planes = (uint32_t)value;
        } else if (strcmp(argv[i], "--plane-bytes") == 0) {
            plane_bytes = (uint32_t)value;
        } else if (strcmp(argv[i], "--pages-per-post") == 0) {
            pages_per_post = (uint32_t)value;
        } else if (strcmp(argv[i], "--rate") == 0) {
            rate_mb = value;
        } else if (strcmp(argv[i], "--mib") == 0) {
            mib = value;
        } else if (strcmp(argv[i], "--repeats") == 0) {
            repeats = (uint32_t)value;
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    if (planes == 0 || planes > KVF_PLANES_MAX || plane_bytes == 0 || pages_per_post == 0 ||
        repeats == 0 || repeats > REPEATS_MAX) {
        fprintf(stderr, "a value is out of range\n");
        exit(2);
    }
}

static void listen_somewhere(void)
{
    struct sockaddr_storage name;
    socklen_t name_bytes;
    addr = (struct kvf_addr_shm){.family = 4, .addr = {127, 0, 0, 1}};
    listen_fd = kvf_socket_stream(&addr);
    kvf_socket_address(&addr, &name, &name_bytes);
    int rc = bind(listen_fd, (struct sockaddr *)&name, name_bytes);
    assert(rc == 0);
    rc = listen(listen_fd, 4);
    assert(rc == 0);
    rc = getsockname(listen_fd, (struct sockaddr *)&name, &name_bytes);
    assert(rc == 0);
    addr.port = ntohs(((struct sockaddr_in *)(void *)&name)->sin_port);
}

int main(int argc, char **argv)
{
    double lane[REPEATS_MAX], plain[REPEATS_MAX];
    parse(argc, argv);
    listen_somewhere();
    make_region(&source);
    make_region(&sink);
    make_end(&source);
    make_end(&sink);
    struct kvf_lane_open open = {.addr = addr, .epoch = 1, .accepted_fd = -1};
    int rc = kvf_tcp_ops.open(sink.transport, &open);
    assert(rc == 0);
    open.accepted_fd = accept_lane();
    rc = kvf_tcp_ops.open(source.transport, &open);
    assert(rc == 0);
    uint64_t total_bytes = mib << 20;
    for (uint32_t i = 0; i < repeats; i++) {
        if (rate_mb == 0) {
            plain[i] = (double)total_bytes / plain_seconds(total_bytes) / 1e6;
        }
        lane[i] = (double)total_bytes / lane_seconds(total_bytes) / 1e6;
    }
    qsort(lane, repeats, sizeof(lane[0]), by_size);
    printf("pages of %u planes x %u bytes, %u pages a post, %" PRIu64 " MiB, median of %u\n",
           planes, plane_bytes, pages_per_post, mib, repeats);
    printf("lane   %9.1f MB/s (min %.1f, max %.1f)%s\n", lane[repeats / 2], lane[0],
           lane[repeats - 1], rate_mb ? ", paced" : "");
    if (rate_mb == 0) {
        qsort(plain, repeats, sizeof(plain[0]), by_size);
        printf("plain  %9.1f MB/s (min %.1f, max %.1f), ratio %.2f\n", plain[repeats / 2],
               plain[0], plain[repeats - 1], lane[repeats / 2] / plain[repeats / 2]);
    }
    kvf_tcp_ops.close(source.transport);
    kvf_tcp_ops.close(sink.transport);
    return 0;
}

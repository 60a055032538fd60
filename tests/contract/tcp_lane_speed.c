/* What lanes of tcp move over loopback, from memfd to memfd, over each engine, beside a plain loop of write and
 * read of the same memory in 128 KiB pieces (what iperf3 does). Source and sink are a thread each, on processors
 * of their own where there are two; the repeats of all kinds are interleaved and the medians printed. The
 * processor time of both sides together says the same on a machine that is busy with other things.
 *
 *   tcp_lane_speed [--lanes N] [--planes N] [--plane-bytes B] [--pages-per-post N] [--rate MB/s] [--mib N]
 *                  [--repeats N] [--turn-kib N] */
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sidecar/transport/tcp_socket.h"
#include "sidecar/transport/transport.h"
#include "tests/bench/plain.h"

#define REPEATS_MAX 99u
#define POSTS_OUT 64u
#define LANES_MAX 64u

static uint32_t lanes = 1, planes = 16, plane_bytes = 4096, pages_per_post = 1, repeats = 5;
static uint64_t rate_mb, mib = 2048, turn_kib = 256;

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

struct side {
    struct kvf_core_plane plane_table[KVF_PLANES_MAX];
    struct kvf_transport_region region;
    struct kvf_transport *transport;
    int epoll_fd;
    size_t bytes;
    uint32_t out[LANES_MAX]; /* posts under way */
    uint64_t completed;
    uint64_t placed_bytes;
    uint32_t up;
    uint32_t ended; /* lanes */
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
    sink.ended++;
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
    (void)ctx, (void)epoch, (void)post;
    assert(status == 0);
    source.out[lane]--;
    source.completed++;
}

static void on_read_fault(void *ctx, uint32_t client)
{
    (void)ctx, (void)client;
    abort();
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    (void)lane, (void)epoch;
    ((struct side *)ctx)->up++;
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
    uint64_t pages = (UINT64_C(64) << 20) / page_bytes / pages_per_post * pages_per_post;
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

static void make_end(struct side *side, enum kvf_tcp_engine_kind engine)
{
    struct kvf_transport_config config = {.lanes_max = lanes,
                                          .tcp_engine = engine,
                                          .lane_rate_bytes = rate_mb * 1000000u,
                                          .lane_window_bytes = 4u << 20,
                                          .turn_bytes_max = turn_kib << 10,
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

static void turn(struct side *side)
{
    struct epoll_event events[LANES_MAX];
    int wait_ms = kvf_tcp_has_work(side->transport) ? 0 : -1;
    int n = epoll_wait(side->epoll_fd, events, LANES_MAX, wait_ms);
    for (int i = 0; i < n; i++) {
        kvf_tcp_ready(side->transport, (uint32_t)events[i].data.u64, events[i].events);
    }
    kvf_tcp_ops.poll(side->transport);
}

static struct kvf_cpus cpus;

/* A child maps the pages of its parent anew, and not within the time that is measured. */
static void touch(const struct side *side)
{
    int rc = madvise(side->region.base, side->bytes, MADV_POPULATE_WRITE);
    assert(rc == 0);
}

static pthread_barrier_t ready;
static enum kvf_tcp_engine_kind sink_engine;

/* An end is made by the thread that turns it. */
static void *run_sink(void *arg)
{
    (void)arg;
    kvf_cpu_pin(cpus.sink);
    make_end(&sink, sink_engine);
    for (uint32_t i = 0; i < lanes; i++) {
        struct kvf_lane_open open = {
            .lane = i, .addr = addr, .epoch = 1, .lane_idx = i % 8u, .accepted_fd = -1};
        int rc = kvf_tcp_ops.open(sink.transport, &open);
        assert(rc == 0);
    }
    while (sink.up < lanes) {
        turn(&sink);
    }
    touch(&sink);
    pthread_barrier_wait(&ready);
    while (sink.ended < lanes) {
        turn(&sink);
    }
    return NULL;
}

static void open_source_lanes(void)
{
    for (uint32_t i = 0; i < lanes; i++) {
        unsigned char hello[KVF_WIRE_HEADER_BYTES + KVF_WIRE_LANE_HELLO_BYTES];
        struct kvf_lane_open open = {.lane = i, .epoch = 1, .accepted_fd = -1};
        while (open.accepted_fd < 0) {
            open.accepted_fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
        }
        ssize_t n = recv(open.accepted_fd, hello, sizeof(hello), MSG_WAITALL);
        assert(n == (ssize_t)sizeof(hello));
        int rc = kvf_tcp_ops.open(source.transport, &open);
        assert(rc == 0);
    }
}

static void run_source(uint64_t total_bytes)
{
    uint64_t page_bytes = source.region.page_bytes;
    uint64_t posts = total_bytes / page_bytes / pages_per_post;
    uint64_t posted = 0;
    while (source.completed < posts) {
        for (uint32_t lane = 0; lane < lanes; lane++) {
            while (posted < posts && source.out[lane] < POSTS_OUT) {
                uint32_t page = (uint32_t)(posted * pages_per_post % source.region.page_count);
                struct kvf_post post = {.kind = KVF_LANE_DATA,
                                        .position = page,
                                        .page_count = pages_per_post,
                                        .payload_bytes = pages_per_post * page_bytes,
                                        .page_first = page};
                int rc = kvf_tcp_ops.post(source.transport, lane, &post);
                assert(rc == 0);
                source.out[lane]++;
                posted++;
            }
        }
        turn(&source);
    }
    for (uint32_t lane = 0; lane < lanes; lane++) {
        struct kvf_post end = {.kind = KVF_LANE_END};
        source.out[lane]++;
        kvf_tcp_ops.post(source.transport, lane, &end);
    }
    while (source.completed < posts + lanes) {
        turn(&source);
    }
}

struct result {
    double seconds, cpu_seconds;
    uint64_t calls, enters;
    int refusal;
};

static struct result lane_result(enum kvf_tcp_engine_kind engine, uint64_t total_bytes)
{
    struct result result = {0};
    pthread_t thread;
    kvf_cpu_pin(cpus.source);
    pthread_barrier_init(&ready, NULL, 2);
    make_end(&source, engine);
    sink_engine = engine;
    result.refusal = kvf_tcp_engine_refusal(source.transport);
    pthread_create(&thread, NULL, run_sink, NULL);
    open_source_lanes();
    touch(&source);
    pthread_barrier_wait(&ready);
    uint64_t begin = kvf_bench_now_ns();
    double cpu_begin = cpu_seconds();
    run_source(total_bytes);
    pthread_join(thread, NULL);
    result.seconds = (double)(kvf_bench_now_ns() - begin) / 1e9;
    result.cpu_seconds = cpu_seconds() - cpu_begin;
    struct side *sides[] = {&source, &sink};
    for (int i = 0; i < 2; i++) {
        uint64_t calls, enters;
        kvf_tcp_engine_counts(sides[i]->transport, &calls, &enters);
        result.calls += calls;
        result.enters += enters;
    }
    return result;
}

static struct result plain_result(uint64_t total_bytes)
{
    struct kvf_plain plain = {.from = source.region.base,
                              .to = sink.region.base,
                              .bytes = source.bytes,
                              .cpus = cpus};
    struct result result = {0};
    double mb_per_s = 0;
    touch(&source);
    touch(&sink);
    double cpu_begin = cpu_seconds();
    int rc = kvf_plain_stream(&plain, total_bytes, &mb_per_s);
    assert(rc == 0);
    result.seconds = (double)total_bytes / mb_per_s / 1e6;
    result.cpu_seconds = cpu_seconds() - cpu_begin;
    return result;
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
        if (strcmp(argv[i], "--lanes") == 0) {
            lanes = (uint32_t)value;
        } else if (strcmp(argv[i], "--turn-kib") == 0) {
            turn_kib = value;
        } else if (strcmp(argv[i], "--planes") == 0) {
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
        repeats == 0 || repeats > REPEATS_MAX || lanes == 0 || lanes > LANES_MAX ||
        turn_kib == 0) {
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
    rc = listen(listen_fd, LANES_MAX);
    assert(rc == 0);
    rc = getsockname(listen_fd, (struct sockaddr *)&name, &name_bytes);
    assert(rc == 0);
    addr.port = ntohs(((struct sockaddr_in *)(void *)&name)->sin_port);
}

struct series {
    double mb_s[REPEATS_MAX];
    double cpu_s[REPEATS_MAX]; /* per GiB */
    struct result last;
};
enum { PLAIN, SOCKETS, URING, KINDS };
static struct series all[KINDS];

/* In a process of its own, so that each repeat begins anew. */
static struct result measure(int kind, uint64_t total_bytes)
{
    int fds[2];
    struct result result;
    int rc = pipe(fds);
    assert(rc == 0);
    pid_t child = fork();
    if (child == 0) {
        result = kind == PLAIN ? plain_result(total_bytes)
                               : lane_result(kind == SOCKETS ? KVF_TCP_ENGINE_SOCKETS
                                                             : KVF_TCP_ENGINE_URING,
                                             total_bytes);
        ssize_t n = write(fds[1], &result, sizeof(result));
        _exit(n == (ssize_t)sizeof(result) ? 0 : 1);
    }
    close(fds[1]);
    ssize_t n = read(fds[0], &result, sizeof(result));
    close(fds[0]);
    waitpid(child, NULL, 0);
    if (n != (ssize_t)sizeof(result)) {
        fprintf(stderr, "a measurement failed\n");
        exit(1);
    }
    return result;
}

static double median(double *values)
{
    qsort(values, repeats, sizeof(values[0]), by_size);
    return values[repeats / 2];
}

static void print_series(const char *name, struct series *of)
{
    if (of->last.refusal != 0) {
        printf("%-8s refused here: %s\n", name, strerror(-of->last.refusal));
        return;
    }
    double speed = median(of->mb_s), plain = median(all[PLAIN].mb_s);
    double cpu = median(of->cpu_s), plain_cpu = median(all[PLAIN].cpu_s);
    printf("%-8s %8.1f MB/s (%.1f to %.1f)", name, speed, of->mb_s[0], of->mb_s[repeats - 1]);
    if (rate_mb == 0) {
        printf(" %.2fx", speed / plain);
    }
    printf("   %.3f CPU s/GiB (%.3f to %.3f)", cpu, of->cpu_s[0], of->cpu_s[repeats - 1]);
    if (rate_mb == 0) {
        printf(" %.2fx", cpu / plain_cpu);
    }
    if (of != &all[PLAIN]) {
        printf("   %" PRIu64 " calls by %" PRIu64 " system calls", of->last.calls,
               of->last.enters);
    }
    printf("\n");
}

static void measure_once(uint32_t repeat, int kind, uint64_t total_bytes)
{
    struct series *of = &all[kind];
    if (kind == PLAIN && rate_mb > 0) {
        return;
    }
    of->last = measure(kind, total_bytes);
    of->mb_s[repeat] = (double)total_bytes / of->last.seconds / 1e6;
    of->cpu_s[repeat] = of->last.cpu_seconds * 1024.0 / (double)mib;
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    if (kvf_cpus_choose(NULL, &cpus) != 0) {
        return 1;
    }
    listen_somewhere();
    make_region(&source);
    make_region(&sink);
    for (uint32_t i = 0; i < repeats; i++) {
        for (uint32_t k = 0; k < KINDS; k++) {
            measure_once(i, (int)((k + i) % KINDS), mib << 20); /* each is first now and then */
        }
    }
    printf("%u lanes, pages of %u planes x %u bytes, %u pages a post, %" PRIu64
           " MiB, turns of %" PRIu64 " KiB, median of %u%s\n",
           lanes, planes, plane_bytes, pages_per_post, mib, turn_kib, repeats,
           rate_mb > 0 ? ", paced" : "");
    if (rate_mb == 0) {
        print_series("plain", &all[PLAIN]);
    }
    print_series("sockets", &all[SOCKETS]);
    print_series("uring", &all[URING]);
    return 0;
}

/* What local moves from region to region in pages of 64 KiB, beside memcpy of the same blocks in the same order.
 * The repeats of both kinds are interleaved and the medians printed.
 *
 *   local_copy_speed [--planes N] [--plane-bytes B] [--mib N] [--region-mib N] [--repeats N] */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "sidecar/host/guard.h"
#include "sidecar/transport/transport.h"

#define REPEATS_MAX 99u
#define POSTS_OUT 16u
#define SOURCE_LANE 0u
#define SINK_LANE 1u

static uint64_t planes = 1, plane_bytes = 65536, repeats = 41, mib = 256, region_mib = 256;

struct side {
    struct kvf_core_plane plane_table[KVF_PLANES_MAX];
    struct kvf_transport_region region;
};

static struct side sides[2]; /* client 0 is the source, 1 the sink */
static uint32_t posts_out;
static uint64_t completed;

/* Time on the processor: what others take of it is no part of a copy. */
static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- the host ---------------------------------------------------------------------------------------- */

static int on_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                    uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle, (void)page_count;
    *ret_at = (struct kvf_placement_at){
        .where = KVF_PLACE_PAGES, .client = 1, .page_first = position};
    return 0;
}

static void on_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint64_t bytes,
                      bool is_scratch)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle, (void)bytes, (void)is_scratch;
}

static int on_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle, (void)kind;
    return 0;
}

static void on_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    (void)ctx, (void)lane, (void)epoch, (void)handle;
    abort();
}

static void on_completed(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_post *post,
                         int status)
{
    (void)ctx, (void)lane, (void)epoch, (void)post;
    assert(status == 0);
    posts_out--;
    completed++;
}

static void on_read_fault(void *ctx, uint32_t client)
{
    (void)ctx, (void)client;
    abort();
}

static void on_lane(void *ctx, uint32_t lane, uint32_t epoch)
{
    (void)ctx, (void)lane, (void)epoch;
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    (void)ctx, (void)lane, (void)epoch, (void)err;
    abort();
}

static const struct kvf_transport_region *on_region(void *ctx, uint32_t client, uint32_t region)
{
    (void)ctx, (void)region;
    return &sides[client].region;
}

static struct kvf_transport *make_lane(void)
{
    struct kvf_transport_config config = {
        .lanes_max = 2, .turn_bytes_max = 256u << 10, .posts_per_lane_max = 1024};
    struct kvf_transport_host host = {.place_fn = on_place,
                                      .placed_fn = on_placed,
                                      .marker_fn = on_marker,
                                      .place_fault_fn = on_place_fault,
                                      .completed_fn = on_completed,
                                      .read_fault_fn = on_read_fault,
                                      .up_fn = on_lane,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_lane,
                                      .region_fn = on_region};
    struct kvf_lane_open open = {
        .lane = SINK_LANE, .partner = SOURCE_LANE, .epoch = 1, .accepted_fd = -1};
    struct kvf_transport *t = NULL;
    int rc = kvf_guard_install();
    assert(rc == 0);
    rc = kvf_local_create(&config, &host, &t);
    assert(rc == 0);
    rc = kvf_local_ops.open(t, &open);
    assert(rc == 0);
    kvf_local_ops.poll(t);
    return t;
}

static void make_region(struct side *side)
{
    uint64_t pages = (region_mib << 20) / (planes * plane_bytes);
    uint64_t bytes = pages * planes * plane_bytes;
    int fd = memfd_create("speed", MFD_CLOEXEC);
    assert(fd >= 0);
    int rc = ftruncate(fd, (off_t)bytes);
    assert(rc == 0);
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    assert(base != MAP_FAILED);
    memset(base, 1, bytes);
    close(fd);
    for (uint64_t i = 0; i < planes; i++) {
        side->plane_table[i] = (struct kvf_core_plane){.off = i * pages * plane_bytes,
                                                       .stride = plane_bytes,
                                                       .page_bytes = (uint32_t)plane_bytes};
    }
    side->region = (struct kvf_transport_region){.base = base,
                                                 .page_count = pages,
                                                 .plane_count = (uint32_t)planes,
                                                 .planes = side->plane_table,
                                                 .page_bytes = planes * plane_bytes};
}

/* ---- the two kinds ------------------------------------------------------------------------------------ */

static double lane_seconds(struct kvf_transport *t, uint64_t posts)
{
    uint64_t posted = 0;
    uint64_t begin = now_ns();
    completed = 0;
    while (completed < posts) {
        while (posted < posts && posts_out < POSTS_OUT) {
            uint32_t page = (uint32_t)(posted % sides[0].region.page_count);
            struct kvf_post post = {.kind = KVF_LANE_DATA,
                                    .position = page,
                                    .page_count = 1,
                                    .payload_bytes = planes * plane_bytes,
                                    .page_first = page};
            int rc = kvf_local_ops.post(t, SOURCE_LANE, &post);
            assert(rc == 0);
            posts_out++;
            posted++;
        }
        kvf_local_ops.poll(t);
    }
    return (double)(now_ns() - begin) / 1e9;
}

static double memcpy_seconds(uint64_t posts)
{
    uint64_t begin = now_ns();
    for (uint64_t i = 0; i < posts; i++) {
        uint64_t page = i % sides[0].region.page_count;
        for (uint64_t p = 0; p < planes; p++) {
            uint64_t off = sides[0].plane_table[p].off + page * plane_bytes;
            memcpy(sides[1].region.base + off, sides[0].region.base + off, plane_bytes);
        }
    }
    return (double)(now_ns() - begin) / 1e9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_kind(const char *name, double *mb_per_s)
{
    qsort(mb_per_s, repeats, sizeof(mb_per_s[0]), by_size);
    printf("%-7s %9.1f MB/s (min %.1f, max %.1f)\n", name, mb_per_s[repeats / 2], mb_per_s[0],
           mb_per_s[repeats - 1]);
}

static void parse(int argc, char **argv)
{
    static const struct {
        const char *name;
        uint64_t *value;
    } options[] = {{"--planes", &planes},
                   {"--plane-bytes", &plane_bytes},
                   {"--mib", &mib},
                   {"--region-mib", &region_mib},
                   {"--repeats", &repeats}};
    for (int i = 1; i + 1 < argc; i += 2) {
        bool is_known = false;
        for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++) {
            if (strcmp(argv[i], options[k].name) == 0) {
                *options[k].value = strtoull(argv[i + 1], NULL, 10);
                is_known = true;
            }
        }
        if (!is_known) {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            exit(2);
        }
    }
    if (planes == 0 || planes > KVF_PLANES_MAX || plane_bytes == 0 ||
        plane_bytes > UINT32_MAX || repeats == 0 || repeats > REPEATS_MAX ||
        (region_mib << 20) / (planes * plane_bytes) == 0) {
        fprintf(stderr, "a value is out of range\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    double lane[REPEATS_MAX], plain[REPEATS_MAX], ratio[REPEATS_MAX];
    parse(argc, argv);
    make_region(&sides[0]);
    make_region(&sides[1]);
    struct kvf_transport *t = make_lane();
    uint64_t posts = (mib << 20) / (planes * plane_bytes);
    double bytes = (double)(posts * planes * plane_bytes);
    (void)memcpy_seconds(posts / 4);
    for (uint64_t i = 0; i < repeats; i++) {
        plain[i] = bytes / memcpy_seconds(posts) / 1e6;
        lane[i] = bytes / lane_seconds(t, posts) / 1e6;
        ratio[i] = lane[i] / plain[i];
    }
    printf("pages of %" PRIu64 " planes x %" PRIu64 " bytes, regions of %" PRIu64
           " MiB, %" PRIu64 " MiB, median of %" PRIu64 "\n",
           planes, plane_bytes, region_mib, mib, repeats);
    print_kind("local", lane);
    print_kind("memcpy", plain);
    qsort(ratio, repeats, sizeof(ratio[0]), by_size);
    printf("ratio   %9.3f (min %.3f, max %.3f), of neighbouring repeats\n", ratio[repeats / 2],
           ratio[0], ratio[repeats - 1]);
    kvf_local_ops.close(t);
    return 0;
}

/* The visibility step of memory that the host does not own, over fake devices that take dma-bufs. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "sidecar/transport/transport.h"
#include "tests/fake_verbs/fake_verbs.h"

#define BYTES UINT64_C(65536)
#define BASE UINT64_C(0x700000000000)
#define TURN_NS UINT64_C(20000)
#define WAIT_TURNS 20000u
#define FLUSHES 256u

struct world {
    struct kvf_transport *t;
    struct kvf_verbs_memory *memory;
    int memfd;
    uint64_t objects; /* before anything was flushed */
    uint32_t told;
    uint64_t cookies[FLUSHES];
    int errs[FLUSHES];
};

static uint64_t on_now(void *ctx)
{
    (void)ctx;
    return fake_now_ns();
}

static void on_flushed(void *ctx, uint64_t cookie, int err)
{
    struct world *w = ctx;
    cr_assert_lt(w->told, FLUSHES);
    w->cookies[w->told] = cookie;
    w->errs[w->told++] = err;
}

static void begin(struct world *w, uint32_t rails)
{
    struct kvf_transport_config config = {
        .lanes_max = 8, .turn_bytes_max = 65536, .posts_per_lane_max = 64};
    struct kvf_verbs_config verbs = {.rails = {"fake0", "fake1"},
                                     .rail_count = rails,
                                     .port = 1,
                                     .receives_per_lane = 16,
                                     .timeout = 12,
                                     .retry = 3,
                                     .stall_ns = UINT64_C(10000000000),
                                     .reap_ns = UINT64_C(200000000)};
    struct kvf_transport_host host = {.ctx = w, .now_fn = on_now, .flushed_fn = on_flushed};
    char error[128];
    fake_reset();
    *w = (struct world){.memfd = memfd_create("device", MFD_CLOEXEC)};
    cr_assert_eq(ftruncate(w->memfd, (off_t)BYTES), 0);
    cr_assert_eq(
        kvf_verbs_create(&config, &verbs, &host, fake_lib(), &w->t, error, sizeof error), 0);
}

static int take_memory(struct world *w)
{
    struct fake_knobs knobs;
    fake_get(&knobs);
    knobs.takes_dmabuf = true;
    fake_set(&knobs);
    int rc = kvf_verbs_register(w->t, (void *)(uintptr_t)BASE, BYTES, w->memfd, 0, &w->memory);
    struct fake_counts counts;
    fake_counts(&counts);
    w->objects = counts.objects;
    return rc;
}

static void end(struct world *w)
{
    struct fake_counts counts;
    if (w->memory != NULL) {
        cr_assert_eq(kvf_verbs_unregister(w->t, w->memory), 0);
    }
    kvf_verbs_ops.close(w->t);
    fake_counts(&counts);
    cr_assert_eq(counts.objects, 0, "%llu objects are left",
                 (unsigned long long)counts.objects);
    close(w->memfd);
}

static void turn(struct world *w)
{
    const struct timespec pause = {.tv_nsec = 20000}; /* the other thread makes queue pairs */
    (void)kvf_verbs_ops.poll(w->t);
    fake_advance(fake_now_ns() + TURN_NS);
    nanosleep(&pause, NULL);
}

static void wait_told(struct world *w, uint32_t count)
{
    for (uint32_t i = 0; i < WAIT_TURNS && w->told < count; i++) {
        turn(w);
    }
    cr_assert_eq(w->told, count);
}

static uint64_t reads(void)
{
    struct fake_counts counts;
    fake_counts(&counts);
    return counts.reads;
}

Test(verbs_flush, a_device_that_takes_no_dma_buf_says_so_and_keeps_nothing)
{
    struct world w;
    begin(&w, 2);
    cr_assert_eq(kvf_verbs_register(w.t, (void *)(uintptr_t)BASE, BYTES, w.memfd, 0, &w.memory),
                 -EOPNOTSUPP);
    cr_assert_null(w.memory);
    end(&w);
}

Test(verbs_flush, a_flush_reads_the_last_byte_through_each_rail_of_its_lanes)
{
    struct world w;
    struct fake_counts counts;
    begin(&w, 2);
    cr_assert_eq(take_memory(&w), 0);
    fake_counts(&counts);
    cr_assert_eq(counts.qps_made, 0, "nothing is made before it is asked for");
    cr_assert_eq(kvf_verbs_flush(w.memory, 0x5, 71), 0); /* lanes 0 and 2: rail 0 */
    wait_told(&w, 1);
    cr_assert_eq(w.cookies[0], 71);
    cr_assert_eq(w.errs[0], 0);
    fake_counts(&counts);
    cr_assert_eq(counts.reads, 1);
    cr_assert_eq(counts.qps_made, 1);
    cr_assert_eq(counts.last_read_addr, BASE + BYTES - 1u);
    cr_assert_eq(kvf_verbs_flush(w.memory, 0xff, 72), 0);
    wait_told(&w, 2);
    cr_assert_eq(w.cookies[1], 72);
    cr_assert_eq(w.errs[1], 0);
    cr_assert_eq(reads(), 3, "both rails, once each");
    cr_assert_eq(kvf_verbs_flush(w.memory, 0, 73), -EINVAL, "over no rail nothing is proven");
    end(&w);
}

/* Only what was told to be a device's can be read, and only by the rail itself. */
Test(verbs_flush, memory_of_the_host_cannot_be_read)
{
    struct world w;
    begin(&w, 1);
    static unsigned char host[4096];
    cr_assert_eq(kvf_verbs_register(w.t, host, sizeof host, -1, 0, &w.memory), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 5), 0);
    wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EIO);
    end(&w);
}

Test(verbs_flush, a_flush_that_fails_says_so_and_the_next_has_a_queue_pair_of_its_own)
{
    struct world w;
    struct fake_knobs knobs;
    struct fake_counts counts;
    begin(&w, 1);
    cr_assert_eq(take_memory(&w), 0);
    fake_get(&knobs);
    knobs.reads_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 1), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 2), 0);
    wait_told(&w, 2);
    cr_assert_eq(w.errs[0], -EIO);
    cr_assert_eq(w.errs[1], -EIO, "what was out with it fails with it: nobody knows");
    cr_assert_eq(reads(), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 3), 0);
    wait_told(&w, 3);
    cr_assert_eq(w.cookies[2], 3);
    cr_assert_eq(w.errs[2], 0);
    fake_counts(&counts);
    cr_assert_eq(counts.objects, w.objects + 3u, "a queue pair, its queue, its byte");
    end(&w);
}

Test(verbs_flush, a_rail_without_room_for_a_queue_pair_fails_what_it_was_asked)
{
    struct world w;
    struct fake_knobs knobs;
    begin(&w, 2);
    cr_assert_eq(take_memory(&w), 0);
    fake_get(&knobs);
    knobs.makes_refused = 1;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 3, 1), 0);
    wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -ENOMEM, "one rail of two is not enough");
    cr_assert_eq(kvf_verbs_flush(w.memory, 3, 2), 0);
    wait_told(&w, 2);
    cr_assert_eq(w.errs[1], 0);
    end(&w);
}

Test(verbs_flush, a_flush_that_never_comes_back_is_never_told)
{
    struct world w;
    struct fake_knobs knobs;
    begin(&w, 1);
    cr_assert_eq(take_memory(&w), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 1), 0);
    wait_told(&w, 1);
    fake_get(&knobs);
    knobs.muted_qpn = 17; /* the first number there is */
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 2), 0);
    for (uint32_t i = 0; i < 50; i++) {
        turn(&w);
        fake_advance(fake_now_ns() + UINT64_C(1000000000));
    }
    cr_assert_eq(reads(), 2, "it was read ...");
    cr_assert_eq(w.told, 1, "... and nobody says so");
    cr_assert_eq(kvf_verbs_due_ns(w.t), KVF_NO_TIME, "no clock runs here");
    end(&w);
}

Test(verbs_flush, a_read_that_is_lost_on_its_way_fails_by_the_devices_own_retries)
{
    struct world w;
    struct fake_knobs knobs;
    begin(&w, 1);
    cr_assert_eq(take_memory(&w), 0);
    fake_get(&knobs);
    knobs.loses_reads = true;
    fake_set(&knobs);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 2), 0);
    wait_told(&w, 1);
    cr_assert_eq(w.errs[0], -EIO);
    cr_assert_eq(reads(), 0);
    end(&w);
}

Test(verbs_flush, as_many_flushes_as_there_may_be_are_answered_in_order)
{
    struct world w;
    begin(&w, 1);
    cr_assert_eq(take_memory(&w), 0);
    for (uint32_t i = 0; i < FLUSHES; i++) {
        cr_assert_eq(kvf_verbs_flush(w.memory, 1, i), 0);
    }
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, FLUSHES), -EAGAIN);
    cr_assert_eq(kvf_verbs_due_ns(w.t), 0, "poll has something to do");
    wait_told(&w, FLUSHES);
    for (uint32_t i = 0; i < FLUSHES; i++) {
        cr_assert_eq(w.cookies[i], i);
        cr_assert_eq(w.errs[i], 0);
    }
    cr_assert_eq(kvf_verbs_due_ns(w.t), KVF_NO_TIME);
    end(&w);
}

#include "client_world.h"
#include "tests/client/pretend_dmabuf.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_BYTES (UINT64_C(1) << 20)

static int make_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static struct kvf_region_opts good_region(int fd, const struct kvf_plane *planes)
{
    return (struct kvf_region_opts){.size_bytes = sizeof(struct kvf_region_opts),
                                    .fd = fd,
                                    .memory_bytes = MEMORY_BYTES,
                                    .page_count = 16,
                                    .planes = planes,
                                    .plane_count = 2};
}

static void expect(struct world *w, const struct kvf_region_opts *opts, int code)
{
    uint32_t region = 5;
    int err = kvf_region_register(w->client, opts, &region);
    cr_assert_eq(err, code, "%s and not %s", kvf_code_name(err), kvf_code_name(code));
    if (code != 0) {
        cr_assert_eq(region, 5, "outputs are untouched on failure");
        return;
    }
    cr_assert_eq(kvf_region_unregister(w->client, region), 0);
}

Test(client_region, memory_is_checked_before_the_daemon_is_asked)
{
    struct world w;
    world_begin(&w);
    struct kvf_plane planes[] = {{.off = 0, .stride = 4096, .page_bytes = 4096},
                                 {.off = 65536, .stride = 4096, .page_bytes = 4096}};
    int fd = make_memfd(MEMORY_BYTES, F_SEAL_SHRINK);
    struct kvf_region_opts o = good_region(fd, planes);
    expect(&w, &o, 0);
    o.memory_off = 4096;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o.memory_bytes -= 4096;
    expect(&w, &o, 0);
    o.memory_off = 100;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o.memory_off = UINT64_MAX - 4095;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o = good_region(fd, planes);
    o.memory_bytes = UINT64_MAX;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o.memory_bytes = 0;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o = good_region(fd, planes);
    o.page_count = 0;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o.page_count = UINT64_C(67108865);
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o = good_region(fd, planes);
    o.plane_count = 0;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o.plane_count = 513;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o = good_region(fd, planes);
    o.planes = NULL;
    expect(&w, &o, -EINVAL);
    o = good_region(fd, planes);
    o.pad_[0] = 1;
    expect(&w, &o, -KVF_E_OPTION);
    o = good_region(fd, planes);
    o.size_bytes--;
    expect(&w, &o, -KVF_E_OPTION);
    close(fd);
    o = good_region(make_memfd(MEMORY_BYTES, 0), planes);
    expect(&w, &o, -KVF_E_NO_SEAL);
    close(o.fd);
    o.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    expect(&w, &o, -KVF_E_NO_SEAL);
    close(o.fd);
    uint32_t region;
    cr_assert_eq(kvf_region_register(w.client, NULL, &region), -EINVAL);
    cr_assert_eq(kvf_region_register(w.client, &o, NULL), -EINVAL);
    world_end(&w);
}

Test(client_region, memory_of_a_device_is_a_dma_buf_and_nothing_else)
{
    struct world w;
    world_begin(&w);
    struct kvf_plane planes[] = {{.off = 0, .stride = 4096, .page_bytes = 4096},
                                 {.off = 65536, .stride = 4096, .page_bytes = 4096}};
    struct kvf_region_opts o = good_region(make_memfd(MEMORY_BYTES, F_SEAL_SHRINK), planes);
    o.memory = KVF_MEMORY_DMABUF;
    expect(&w, &o, -KVF_E_NO_DMABUF);
    o.memory = KVF_MEMORY_DMABUF + 1;
    expect(&w, &o, -KVF_E_OPTION);
    close(o.fd);
    /* Nothing of a memfd is asked for: no seal. Its size is what its end says. */
    o.fd = make_memfd(MEMORY_BYTES, 0);
    o.memory = KVF_MEMORY_DMABUF;
    pretend_dmabuf(o.fd);
    o.memory_bytes++;
    expect(&w, &o, -KVF_E_MEMORY_RANGE);
    o.memory_bytes--;
    uint32_t region = 0;
    cr_assert_eq(kvf_region_register(w.client, &o, &region), 0);
    cr_assert_eq(w.fake.regions[region & 0xffu].memory, KVF_REGION_MEMORY_DMABUF);
    cr_assert_eq(w.fake.regions[w.memory.region & 0xffu].memory, KVF_REGION_MEMORY_HOST);
    cr_assert_eq(kvf_region_unregister(w.client, region), 0);
    o.memory = KVF_MEMORY_HOST;
    expect(&w, &o, -KVF_E_NO_SEAL);
    close(o.fd);
    world_end(&w);
}

Test(client_region, rooms_say_which_of_their_regions_are_a_devices)
{
    struct world w;
    world_begin(&w);
    struct kvf_plane planes[] = {{.off = 0, .stride = 4096, .page_bytes = 4096},
                                 {.off = 65536, .stride = 4096, .page_bytes = 4096}};
    struct kvf_region_opts o = good_region(make_memfd(MEMORY_BYTES, 0), planes);
    o.memory = KVF_MEMORY_DMABUF;
    pretend_dmabuf(o.fd);
    uint32_t region = 0;
    cr_assert_eq(kvf_region_register(w.client, &o, &region), 0);
    const char *writer = "127.0.0.1:9";
    const int32_t page = 1;
    kvf_room room = 0;
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink,
                                 .region = w.memory.region,
                                 .pages = &page,
                                 .page_count = 1,
                                 .aux_region = region,
                                 .aux_count = 1,
                                 .aux_pages = &page,
                                 .writers = &writer,
                                 .writer_count = 1};
    cr_assert_eq(kvf_open_sink(w.client, &sink, &room), 0);
    const struct kvf_intent_shm *intents = w.client->cold.segment.intents;
    cr_assert_eq(atomic_load(&intents[fake_slot(room)].device_regions), 1u << (region & 0xffu));
    room = world_sink(&w, 2, 1);
    cr_assert_eq(atomic_load(&intents[fake_slot(room)].device_regions), 0);
    /* A source's pages are not written. */
    cr_assert_eq(fake_open_source(w.client, region, &room), 0);
    cr_assert_eq(atomic_load(&intents[fake_slot(room)].device_regions), 0);
    close(o.fd);
    world_end(&w);
}

/* The kernel's own, where it makes any. */
Test(client_region, a_real_dma_buf_is_taken_for_one)
{
    int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    if (device < 0) {
        cr_skip_test("no /dev/udmabuf here: %s", strerror(errno));
    }
    int memfd = make_memfd(MEMORY_BYTES, F_SEAL_SHRINK);
    struct udmabuf_create create = {
        .memfd = (uint32_t)memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = MEMORY_BYTES};
    int fd = ioctl(device, UDMABUF_CREATE, &create);
    cr_assert_geq(fd, 0, "%s", strerror(errno));
    uint64_t bytes = 0;
    cr_assert_eq(kvf_memory_dmabuf_bytes(fd, &bytes), 0);
    cr_assert_eq(bytes, MEMORY_BYTES);
    cr_assert_eq(kvf_memory_dmabuf_bytes(memfd, &bytes), -EINVAL);
    close(fd);
    close(memfd);
    close(device);
}

Test(client_region, planes_lie_in_the_memory_and_share_no_byte)
{
    static const struct {
        struct kvf_plane planes[2];
        bool is_good;
    } cases[] = {
        /* side by side, one behind the other */
        {{{0, 4096, 4096}, {65536, 4096, 4096}}, true},
        {{{65536, 4096, 4096}, {0, 4096, 4096}}, true},
        {{{0, 4096, 4096}, {65535, 4096, 4096}}, false},
        /* interleaved blocks */
        {{{0, 8192, 4096}, {4096, 8192, 4096}}, true},
        {{{4096, 8192, 4096}, {0, 8192, 4096}}, true},
        {{{0, 8192, 4097}, {4096, 8192, 4096}}, false},
        {{{0, 8192, 4096}, {4096, 8192, 4097}}, false},
        /* the second begins inside the last page's gap: it meets no next page */
        {{{0, 8192, 4096}, {15 * 8192 + 4096, 8192, 8192}}, true},
        {{{0, 8192, 4096}, {14 * 8192 + 4096, 8192, 8192}}, false},
        /* different strides must lie apart */
        {{{0, 8192, 4096}, {4096, 16384, 4096}}, false},
        {{{0, 8192, 4096}, {131072, 16384, 4096}}, true},
        /* beyond the memory, and beyond 64 bits */
        {{{0, 4096, 4096}, {MEMORY_BYTES - 65536, 4096, 4096}}, true},
        {{{0, 4096, 4096}, {MEMORY_BYTES - 65535, 4096, 4096}}, false},
        {{{0, 4096, 4096}, {UINT64_MAX - 4095, 4096, 4096}}, false},
        {{{0, 4096, 4096}, {65536, UINT64_MAX / 2, 4096}}, false},
        /* a page that is no page, or that reaches into the next */
        {{{0, 4096, 0}, {65536, 4096, 4096}}, false},
        {{{0, 4095, 4096}, {65536, 4096, 4096}}, false},
        {{{0, UINT64_C(1) << 33, UINT64_C(1) << 33}, {65536, 4096, 4096}}, false},
    };
    struct world w;
    world_begin(&w);
    int fd = make_memfd(MEMORY_BYTES, F_SEAL_SHRINK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvf_region_opts o = good_region(fd, cases[i].planes);
        uint32_t region;
        int err = kvf_region_register(w.client, &o, &region);
        cr_assert_eq(err, cases[i].is_good ? 0 : -KVF_E_MEMORY_RANGE, "case %zu: %s", i,
                     kvf_code_name(err));
        if (err == 0) {
            cr_assert_eq(kvf_region_unregister(w.client, region), 0);
        }
    }
    close(fd);
    world_end(&w);
}

/* The rule by which planes share bytes, against one that looks at every byte. */
Test(client_region, sharing_of_planes_agrees_with_counting_bytes)
{
    enum { PAGES = 4, BYTES = 256 };
    struct world w;
    world_begin(&w);
    int fd = make_memfd(BYTES, F_SEAL_SHRINK);
    uint64_t seed = 7;
    uint32_t good = 0;
    for (int i = 0; i < 3000; i++) {
        struct kvf_plane planes[2];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t stride = 1 + (seed >> 20) % 40;
        for (int k = 0; k < 2; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            planes[k] = (struct kvf_plane){.off = (seed >> 33) % 100,
                                           .stride = stride,
                                           .page_bytes = 1 + (seed >> 45) % stride};
        }
        uint8_t used[BYTES] = {0};
        bool is_sharing = false;
        for (int k = 0; k < 2; k++) {
            for (uint64_t p = 0; p < PAGES; p++) {
                for (uint64_t b = 0; b < planes[k].page_bytes; b++) {
                    is_sharing |= used[planes[k].off + p * stride + b]++ != 0;
                }
            }
        }
        struct kvf_region_opts o = {.size_bytes = sizeof o,
                                    .fd = fd,
                                    .memory_bytes = BYTES,
                                    .page_count = PAGES,
                                    .planes = planes,
                                    .plane_count = 2};
        uint32_t region;
        int err = kvf_region_register(w.client, &o, &region);
        cr_assert_eq(err, is_sharing ? -KVF_E_MEMORY_RANGE : 0, "round %d", i);
        if (err == 0) {
            good++;
            cr_assert_eq(kvf_region_unregister(w.client, region), 0);
        }
    }
    cr_assert(good > 100 && good < 2900, "%u", good);
    close(fd);
    world_end(&w);
}

Test(client_region, busy_while_a_room_names_it_and_unknown_afterwards)
{
    struct world w;
    world_begin(&w);
    kvf_room sink = world_sink(&w, 0, 1);
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), -KVF_E_REGION_BUSY);
    cr_assert_eq(kvf_release(w.client, sink), 0);
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), -KVF_E_REGION_BUSY,
                 "released is not drained");
    fake_fail(&w.fake, sink, KVF_PROOF_FENCED, 0);
    kvf_room source = world_source(&w);
    cr_assert_eq(world_submit(&w, source, 3, 1, 0, 0), 0);
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), -KVF_E_REGION_BUSY);
    fake_succeed(&w.fake, source);
    w.fake.refuse_op = KVF_REQ_REGION_REMOVE;
    w.fake.refuse_code = KVF_E_REGION_BUSY;
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), -KVF_E_REGION_BUSY,
                 "the daemon has its own reasons");
    cr_assert_eq(world_is_idle(&w, 3), 1, "a refused unregister changes nothing");
    w.fake.refuse_op = 0;
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), 0);
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), -KVF_E_UNKNOWN_REGION);
    int32_t page = 0;
    kvf_room room;
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, &page, 1, NULL),
                 -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room),
                 -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(kvf_region_unregister(w.client, 0), -KVF_E_UNKNOWN_REGION);
    world_end(&w);
}

Test(client_region, sixteen_are_live_and_the_seventeenth_is_refused)
{
    struct world w;
    world_begin(&w);
    struct fake_memory more[15];
    for (int i = 0; i < 15; i++) {
        fake_memory_make(w.client, 2, &more[i]);
    }
    struct kvf_plane plane = {.stride = 4096, .page_bytes = 4096};
    int fd = make_memfd(8192, F_SEAL_SHRINK);
    struct kvf_region_opts o = {.size_bytes = sizeof o,
                                .fd = fd,
                                .memory_bytes = 8192,
                                .page_count = 2,
                                .planes = &plane,
                                .plane_count = 1};
    expect(&w, &o, -KVF_E_REGIONS_FULL);
    uint32_t old = more[7].region;
    cr_assert_eq(kvf_region_unregister(w.client, old), 0);
    uint32_t region;
    cr_assert_eq(kvf_region_register(w.client, &o, &region), 0);
    cr_assert_eq(region & 0xff, old & 0xff);
    cr_assert_neq(region, old, "a handle of the slot's former region is not this one");
    int32_t page = 0;
    cr_assert_eq(kvf_pages_are_idle(w.client, old, &page, 1, NULL), -KVF_E_UNKNOWN_REGION);
    for (int i = 0; i < 15; i++) {
        kvf_pool_destroy(more[i].pool);
    }
    close(fd);
    world_end(&w);
}

Test(client_region, refusal_and_death_of_the_daemon_come_back_as_codes)
{
    struct world w;
    world_begin(&w);
    struct kvf_plane planes[] = {{.off = 0, .stride = 4096, .page_bytes = 4096},
                                 {.off = 65536, .stride = 4096, .page_bytes = 4096}};
    int fd = make_memfd(MEMORY_BYTES, F_SEAL_SHRINK);
    struct kvf_region_opts o = good_region(fd, planes);
    w.fake.refuse_op = KVF_REQ_REGION_ADD;
    w.fake.refuse_code = KVF_E_MEMORY_REGISTERED;
    expect(&w, &o, -KVF_E_MEMORY_REGISTERED);
    w.fake.refuse_code = EBUSY;
    expect(&w, &o, -EBUSY);
    w.fake.refuse_code = 0;
    expect(&w, &o, -KVF_E_PROTOCOL);
    w.fake.refuse_op = 0;
    w.fake.wrong_region = 1; /* not the handle that its ledger names */
    expect(&w, &o, -KVF_E_PROTOCOL);
    w.fake.wrong_region = 0;
    fake_supervisor_kill(&w.fake);
    expect(&w, &o, -KVF_E_DAEMON_GONE);
    expect(&w, &o, -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_region_unregister(w.client, w.memory.region), -KVF_E_DAEMON_GONE);
    close(fd);
    world_end(&w);
}

Test(client_region, notices_may_come_between_a_request_and_its_reply)
{
    struct world w;
    world_begin(&w);
    fake_worker_kill(&w.fake);
    fake_worker_start(&w.fake, 0x1002);
    fake_note_worker(&w.fake);
    struct fake_memory more;
    fake_memory_make(w.client, 4, &more);
    cr_assert_eq(kvf_daemon_check(w.client), 0, "the notice was not lost");
    cr_assert_eq(w.client->cold.workers[1].epoch, 0x1002);
    kvf_pool_destroy(more.pool);
    world_end(&w);
}

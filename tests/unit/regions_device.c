/* The worker's side of a registration of a device's memory: handed to devices, mapped nowhere. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/codes.h"
#include "sidecar/regions.h"

#define REGION UINT32_C(0x102) /* slot 2 */
#define BYTES UINT64_C(65536)
#define OFF UINT64_C(8192)

struct world {
    struct kvf_core *core;
    void *memory;
    struct kvf_helper *helper;
    struct kvf_regions *regions;
    int fd;
    int err;            /* what the device says */
    ino_t inode;        /* of the memory */
    uint32_t registers; /* calls */
    uint32_t unregisters;
    uint32_t refusals; /* of letting go: so many calls are refused */
    uint32_t expects;
    bool keeps;       /* a registration that fails leaves something behind */
    uint32_t answers; /* of the table */
    uint32_t code;
    bool was_mapped;
};

static int on_register(void *ctx, void *base, uint64_t bytes, int dmabuf_fd,
                       uint64_t dmabuf_off, struct kvf_regions_memory *ret_memory)
{
    struct world *w = ctx;
    struct stat st;
    w->registers++;
    w->was_mapped = base != NULL;
    if (w->err != 0) {
        ret_memory->memory = w->keeps ? (struct kvf_verbs_memory *)(void *)w : NULL;
        return w->err;
    }
    if (bytes != BYTES || dmabuf_off != OFF || fstat(dmabuf_fd, &st) != 0 ||
        st.st_ino != w->inode) {
        return -EBADF;
    }
    *ret_memory = (struct kvf_regions_memory){
        .memory = (struct kvf_verbs_memory *)(void *)w, .base = 77, .key_count = 1};
    return 0;
}

static int on_unregister(void *ctx, struct kvf_verbs_memory *memory)
{
    struct world *w = ctx;
    w->unregisters += (void *)memory == (void *)w ? 1u : 0u;
    if (w->refusals > 0) {
        w->refusals--;
        return -EBUSY;
    }
    return 0;
}

static void on_expect(void *ctx)
{
    ((struct world *)ctx)->expects++;
}

static void on_added(void *ctx, uint32_t client, uint32_t region, uint32_t code)
{
    struct world *w = ctx;
    (void)client;
    cr_assert_eq(region, REGION);
    w->answers++;
    w->code = code;
}

static void on_removed(void *ctx, uint32_t client, uint32_t region)
{
    on_added(ctx, client, region, 0);
}

static void begin(struct world *w, bool has_device)
{
    *w = (struct world){.err = 0};
    struct kvf_core_limits limits = {.clients_max = 1,
                                     .rooms_per_client_max = 4,
                                     .peers_max = 2,
                                     .lanes_per_peer = 1,
                                     .grants_max = 8,
                                     .runs_max = 64,
                                     .pieces_max = 8,
                                     .parked_per_peer_max = 2,
                                     .group_tombstones_max = 2};
    struct kvf_core_config config = {.transport = KVF_WIRE_VERBS,
                                     .placement = KVF_PLACEMENT_POSTED};
    const uint64_t seed[4] = {1, 2, 3, 4};
    size_t bytes = (kvf_core_bytes(&limits) + 63u) / 64u * 64u;
    w->memory = aligned_alloc(64, bytes);
    memset(w->memory, 0, bytes);
    w->core = kvf_core_init(w->memory, &limits, &config, seed);
    cr_assert_eq(kvf_core_client_add(w->core, 0, 4), 0);
    cr_assert_eq(kvf_helper_create(&w->helper), 0);
    struct kvf_regions_host host = {.ctx = w, .added_fn = on_added, .removed_fn = on_removed};
    struct kvf_regions_device device = {.ctx = w,
                                        .register_fn = on_register,
                                        .unregister_fn = on_unregister,
                                        .expect_flushes_fn = on_expect};
    cr_assert_eq(kvf_regions_create(1, w->core, w->helper, &host, has_device ? &device : NULL,
                                    &w->regions),
                 0);
}

#define NOW_NS UINT64_C(1)

/* Until the helper has nothing to do. */
static void wait_jobs(struct world *w, uint64_t now_ns)
{
    uint64_t seq;
    bool is_idle = false;
    while (!is_idle) {
        struct kvf_job *job;
        is_idle = kvf_helper_oldest(w->helper, &seq) == NULL;
        while ((job = kvf_helper_take(w->helper)) != NULL) {
            cr_assert(kvf_regions_job_back(w->regions, now_ns, job));
            is_idle = false;
        }
        sched_yield();
    }
}

/* Until the table has answered once more. */
static void wait_answer(struct world *w)
{
    uint32_t before = w->answers;
    while (w->answers == before) {
        struct pollfd p = {.fd = kvf_helper_fd(w->helper), .events = POLLIN};
        cr_assert_eq(poll(&p, 1, 10000), 1, "no answer");
        struct kvf_job *job;
        while ((job = kvf_helper_take(w->helper)) != NULL) {
            cr_assert(kvf_regions_job_back(w->regions, NOW_NS, job));
        }
    }
}

static void push_add(struct world *w)
{
    static struct kvf_link_region msg;
    struct stat st;
    msg = (struct kvf_link_region){.h = {.region = REGION},
                                   .page_count = 16,
                                   .memory_off = OFF,
                                   .memory_bytes = BYTES,
                                   .plane_count = 1,
                                   .memory = KVF_REGION_MEMORY_DMABUF};
    msg.planes[0] = (struct kvf_link_plane){.stride = 4096, .page_bytes = 4096};
    int fd = memfd_create("device", MFD_CLOEXEC); /* no seals, and never as long as it says */
    cr_assert_eq(fstat(fd, &st), 0);
    w->inode = st.st_ino;
    cr_assert_eq(kvf_regions_add(w->regions, &msg, fd), 0);
    w->fd = fd;
}

static void add(struct world *w)
{
    push_add(w);
    wait_answer(w);
    cr_assert_eq(fcntl(w->fd, F_GETFD), -1,
                 "whoever has the memory holds it, not its descriptor");
}

static struct kvf_regions_counts counts_of(const struct world *w)
{
    struct kvf_regions_counts counts;
    kvf_regions_count(w->regions, &counts);
    return counts;
}

static void end(struct world *w)
{
    kvf_helper_destroy(w->helper);
    free(w->regions);
    free(w->memory);
}

Test(regions_device, a_dma_buf_is_handed_to_the_devices_and_mapped_nowhere)
{
    struct world w;
    begin(&w, true);
    add(&w);
    cr_assert_eq(w.code, 0, "%s", kvf_code_name((int)w.code));
    cr_assert_eq(w.registers, 1);
    cr_assert_eq(w.expects, 1);
    cr_assert_not(w.was_mapped);
    const struct kvf_transport_region *view = kvf_regions_find(w.regions, 0, REGION);
    cr_assert_not_null(view);
    cr_assert_null(view->base);
    cr_assert_eq((const void *)view->memory, (const void *)&w);
    cr_assert_eq(kvf_regions_remove(w.regions, 0, REGION), 0);
    wait_answer(&w);
    cr_assert_eq(w.unregisters, 1);
    cr_assert_eq(kvf_regions_held(w.regions, 0), 0);
    end(&w);
}

Test(regions_device, a_device_that_takes_no_dma_bufs_has_a_code_of_its_own)
{
    static const struct {
        int err;
        uint32_t code;
    } cases[] = {{-EOPNOTSUPP, KVF_E_DMABUF_REFUSED}, {-ENOMEM, KVF_E_DEVICE_MEMORY}};
    for (size_t i = 0; i < 2; i++) {
        struct world w;
        begin(&w, true);
        w.err = cases[i].err;
        add(&w);
        cr_assert_eq(w.code, cases[i].code, "%s", kvf_code_name((int)w.code));
        cr_assert_eq(kvf_regions_held(w.regions, 0), 0);
        cr_assert_eq(counts_of(&w).refused, 1);
        cr_assert_eq(counts_of(&w).withheld, 0);
        cr_assert_eq(w.unregisters, 0, "nothing is registered");
        cr_assert_eq(w.expects, 0);
        end(&w);
    }
}

#define MS UINT64_C(1000000)

/* Nobody hears that it went before it did; and it is asked for again, ever more rarely, without end. */
Test(regions_device, memory_that_a_device_withholds_is_asked_for_again_and_told_of_when_it_went)
{
    struct world w;
    begin(&w, true);
    add(&w);
    w.refusals = 12;
    cr_assert_eq(kvf_regions_remove(w.regions, 0, REGION), 0);
    uint64_t now_ns = NOW_NS;
    wait_jobs(&w, now_ns);
    cr_assert_eq(counts_of(&w).withheld, 1);
    cr_assert_eq(counts_of(&w).withheld_now, 1);
    uint64_t wait_ns = 100 * MS;
    for (uint32_t asked = 1; asked <= 12; asked++) {
        kvf_regions_tick(w.regions, now_ns + wait_ns - 1u);
        wait_jobs(&w, now_ns + wait_ns - 1u);
        cr_assert_eq(w.unregisters, asked, "too early: %u", w.unregisters);
        now_ns += wait_ns;
        cr_assert_eq(w.answers, 1, "it was told of as gone");
        cr_assert_eq(kvf_regions_held(w.regions, 0), 1);
        cr_assert_null(kvf_regions_find(w.regions, 0, REGION));
        kvf_regions_tick(w.regions, now_ns);
        kvf_regions_tick(w.regions, now_ns); /* with the helper: not once more */
        wait_jobs(&w, now_ns);
        cr_assert_eq(w.unregisters, asked + 1u);
        cr_assert_eq(counts_of(&w).asked_again, asked);
        wait_ns = 2u * wait_ns < 30000 * MS ? 2u * wait_ns : 30000 * MS;
    }
    cr_assert_eq(w.answers, 2);
    cr_assert_eq(kvf_regions_held(w.regions, 0), 0);
    cr_assert_eq(counts_of(&w).withheld, 1, "one region, however often it was asked for");
    cr_assert_eq(counts_of(&w).withheld_now, 0);
    add(&w);
    cr_assert_eq(w.code, 0, "the place is free again");
    kvf_regions_drop_client(w.regions, 0);
    wait_answer(&w);
    end(&w);
}

/* One device took it and another did not, and the first does not let go: nothing is leaked silently. */
Test(regions_device, what_a_refused_registration_left_behind_is_taken_back_before_the_answer)
{
    struct world w;
    begin(&w, true);
    w.err = -ENOMEM;
    w.keeps = true;
    w.refusals = 1;
    push_add(&w);
    wait_jobs(&w, NOW_NS);
    cr_assert_eq(w.answers, 0, "a device has it still");
    cr_assert_eq(counts_of(&w).refused, 1);
    cr_assert_eq(counts_of(&w).withheld_now, 1);
    kvf_regions_tick(w.regions, NOW_NS + 100 * MS);
    wait_jobs(&w, NOW_NS + 100 * MS);
    cr_assert_eq(w.answers, 1);
    cr_assert_eq(w.code, KVF_E_DEVICE_MEMORY);
    cr_assert_eq(w.unregisters, 2);
    cr_assert_eq(kvf_regions_held(w.regions, 0), 0);
    end(&w);
}

/* A client that leaves holds its place until its memory is let go of. */
Test(regions_device, a_client_is_not_gone_while_a_device_withholds_its_memory)
{
    struct world w;
    begin(&w, true);
    add(&w);
    w.refusals = 1;
    kvf_regions_drop_client(w.regions, 0);
    wait_jobs(&w, NOW_NS);
    kvf_regions_drop_client(w.regions, 0);
    cr_assert_eq(kvf_regions_held(w.regions, 0), 1);
    cr_assert_eq(kvf_regions_remove(w.regions, 0, REGION), -KVF_E_UNKNOWN_REGION);
    kvf_regions_tick(w.regions, NOW_NS + 100 * MS);
    wait_jobs(&w, NOW_NS + 100 * MS);
    cr_assert_eq(kvf_regions_held(w.regions, 0), 0);
    cr_assert_eq(w.answers, 2);
    end(&w);
}

Test(regions_device, a_worker_without_devices_takes_none)
{
    struct world w;
    begin(&w, false);
    add(&w);
    cr_assert_eq(w.code, KVF_E_HOST_MEMORY_ONLY);
    cr_assert_eq(kvf_regions_held(w.regions, 0), 0);
    end(&w);
}

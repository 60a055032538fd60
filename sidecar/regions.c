#include "sidecar/regions.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/codes.h"
#include "ring/segment.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"

#define SLOT_MASK 0xffu
/* Touched in one go; then the helper's other jobs get their turn. An engine that attaches, or a dead one whose
 * memory is to go, does not wait for the whole of somebody's 80 gigabytes. */
#define TOUCH_STEP_BYTES (UINT64_C(64) << 20)
/* When a device is asked again to let go of memory: after the first refusal, and at most. */
#define ASK_AGAIN_NS UINT64_C(100000000)
#define ASK_AGAIN_MAX_NS UINT64_C(30000000000)

struct mapped_region {
    struct kvf_job job;
    enum kvf_region_state state;
    uint32_t client;
    uint32_t handle;
    uint32_t plane_count;
    uint64_t page_count;
    uint64_t memory_off;
    uint64_t memory_bytes;
    int memory_fd;    /* ours until mapped, or registered */
    uint32_t memory;  /* enum kvf_region_memory; what is not the host's is never mapped */
    int err;          /* of the job */
    int device_err;   /* of letting go */
    uint64_t ask_ns;  /* WITHHELD: asked again from then on ... */
    uint64_t wait_ns; /* ... which is so long after the last refusal */
    bool is_doomed;   /* unmap as soon as the helper gives it back */
    bool
        is_for_device; /* what the helper does now is one call of a device over all its bytes */
    struct kvf_regions *regions;
    struct kvf_regions_memory device; /* .memory NULL: not registered */
    void *base;
    uint64_t touched_bytes; /* mapped, and so far touched; memory_bytes: ready */
    uint32_t *owners;       /* page_count words for the core */
    struct kvf_core_plane *planes;
    struct kvf_transport_region view;
};

struct kvf_regions {
    uint32_t clients_max;
    uint32_t live;
    struct kvf_core *core;
    struct kvf_helper *helper;
    struct kvf_regions_host host;
    struct kvf_regions_device device; /* register_fn NULL: none */
    struct kvf_regions_counts counts;
    struct mapped_region table[]; /* client * KVF_REGIONS_PER_CLIENT_MAX + slot */
};

static struct mapped_region *entry_of(struct kvf_regions *regions, uint32_t client,
                                      uint32_t handle)
{
    uint32_t slot = handle & SLOT_MASK;
    if (client >= regions->clients_max || slot >= KVF_REGIONS_PER_CLIENT_MAX) {
        return NULL;
    }
    return &regions->table[client * KVF_REGIONS_PER_CLIENT_MAX + slot];
}

int kvf_regions_create(uint32_t clients_max, struct kvf_core *core, struct kvf_helper *helper,
                       const struct kvf_regions_host *host,
                       const struct kvf_regions_device *device,
                       struct kvf_regions **ret_regions)
{
    struct kvf_regions *r =
        calloc(1, sizeof(*r) + (size_t)clients_max * KVF_REGIONS_PER_CLIENT_MAX *
                                   sizeof(struct mapped_region));
    if (r == NULL) {
        return -ENOMEM;
    }
    r->clients_max = clients_max;
    r->core = core;
    r->helper = helper;
    r->host = *host;
    if (device != NULL) {
        r->device = *device;
    }
    *ret_regions = r;
    return 0;
}

/* ---- helper thread -------------------------------------------------------------------------------- */

/* Only memory that is all there: touching a sparse file would allocate what the engine never had. */
static bool is_all_there(int memory_fd)
{
    struct stat st;
    return fstat(memory_fd, &st) == 0 && (uint64_t)st.st_blocks * 512u >= (uint64_t)st.st_size;
}

/* The next step, here, on the helper's time: otherwise the loop pays for each page when it first places into it.
 * What cannot be touched now is found, and answered, when a transfer needs it. */
static void touch(struct mapped_region *m)
{
    uint64_t left = m->memory_bytes - m->touched_bytes;
    uint64_t step = left < TOUCH_STEP_BYTES ? left : TOUCH_STEP_BYTES;
    int err = kvf_memory_populate((unsigned char *)m->base + m->touched_bytes, step);
    m->touched_bytes += err == 0 ? step : left;
}

static void map_work(struct kvf_job *job)
{
    struct mapped_region *m = (struct mapped_region *)job;
    if (m->is_for_device) {
        m->err =
            m->regions->device.register_fn(m->regions->device.ctx, m->base, m->memory_bytes,
                                           m->memory_fd, m->memory_off, &m->device);
        kvf_close_fd(&m->memory_fd); /* the registration holds a device's memory */
        return;
    }
    if (m->base != NULL) {
        touch(m);
        return;
    }
    m->owners = calloc(m->page_count, sizeof(*m->owners));
    m->err = m->owners == NULL ? -ENOMEM : 0;
    if (m->memory != KVF_REGION_MEMORY_HOST) {
        m->touched_bytes = m->memory_bytes; /* by nobody here, ever */
        return;
    }
    if (m->err == 0) {
        m->err =
            kvf_memory_map(m->memory_fd, m->memory_off, m->memory_bytes, true, true, &m->base);
    }
    if (m->err == 0) {
        m->touched_bytes = is_all_there(m->memory_fd) ? 0 : m->memory_bytes;
    }
    kvf_close_fd(&m->memory_fd); /* the mapping holds the memory from here on */
}

static void unmap_work(struct kvf_job *job)
{
    struct mapped_region *m = (struct mapped_region *)job;
    if (m->device.memory != NULL) {
        m->device_err =
            m->regions->device.unregister_fn(m->regions->device.ctx, m->device.memory);
        if (m->device_err != 0) {
            return; /* a device still reaches it, so nobody else may have it */
        }
        m->device.memory = NULL;
    }
    if (m->base != NULL) {
        kvf_memory_unmap(m->base, m->memory_bytes);
        m->base = NULL;
    }
    kvf_close_fd(&m->memory_fd);
    free(m->owners);
    free(m->planes);
    m->owners = NULL;
    m->planes = NULL;
}

/* ---- loop ------------------------------------------------------------------------------------------ */

int kvf_regions_add(struct kvf_regions *regions, const struct kvf_link_region *msg,
                    int memory_fd)
{
    struct mapped_region *m = entry_of(regions, msg->h.client, msg->h.region);
    assert(m != NULL);
    assert(msg->plane_count >= 1 && msg->plane_count <= KVF_PLANES_MAX);
    struct kvf_core_plane *planes = calloc(msg->plane_count, sizeof(*planes));
    if (planes == NULL || m->state != KVF_REGION_FREE) {
        int err = planes == NULL ? -ENOMEM : -EEXIST;
        free(planes);
        close(memory_fd);
        return err;
    }
    *m = (struct mapped_region){.job = {.work_fn = map_work},
                                .regions = regions,
                                .state = KVF_REGION_MAPPING,
                                .client = msg->h.client,
                                .handle = msg->h.region,
                                .plane_count = msg->plane_count,
                                .page_count = msg->page_count,
                                .memory_off = msg->memory_off,
                                .memory_bytes = msg->memory_bytes,
                                .memory_fd = memory_fd,
                                .memory = msg->memory,
                                .planes = planes};
    uint64_t page_bytes = 0;
    for (uint32_t i = 0; i < msg->plane_count; i++) {
        planes[i] = (struct kvf_core_plane){.off = msg->planes[i].off,
                                            .stride = msg->planes[i].stride,
                                            .page_bytes = (uint32_t)msg->planes[i].page_bytes};
        page_bytes += msg->planes[i].page_bytes;
    }
    m->view = (struct kvf_transport_region){.page_count = m->page_count,
                                            .plane_count = m->plane_count,
                                            .planes = planes,
                                            .page_bytes = page_bytes};
    kvf_helper_push(regions->helper, &m->job);
    return 0;
}

static void start_unmap(struct kvf_regions *regions, struct mapped_region *m)
{
    if (m->state == KVF_REGION_LIVE) {
        regions->live--;
    }
    m->state = KVF_REGION_UNMAPPING;
    m->device_err = 0;
    m->is_for_device = m->device.memory != NULL;
    m->job.work_fn = unmap_work;
    kvf_helper_push(regions->helper, &m->job);
}

/* A device's errno says little to an engine; the log says all. */
static int device_refused(struct kvf_regions *regions, const struct mapped_region *m)
{
    regions->counts.refused++;
    kvf_log(KVF_LOG_WARN,
            "a device refuses to register the %" PRIu64
            " bytes of region %#x of client %u: %s%s",
            m->memory_bytes, m->handle, m->client, strerror(-m->err),
            m->err == -ENOMEM || m->err == -EPERM || m->err == -EAGAIN
                ? " (is the locked memory limit of the daemon, ulimit -l, large enough?)"
                : "");
    return m->memory == KVF_REGION_MEMORY_DMABUF && m->err == -EOPNOTSUPP
               ? -KVF_E_DMABUF_REFUSED
               : -KVF_E_DEVICE_MEMORY;
}

static void map_back(struct kvf_regions *regions, uint64_t now_ns, struct mapped_region *m)
{
    int err = m->err != 0 && m->is_for_device ? device_refused(regions, m) : m->err;
    if (err == 0 && m->is_doomed) {
        err = -KVF_E_CLIENT_DROPPED;
    }
    if (err == 0 && m->touched_bytes < m->memory_bytes) {
        kvf_helper_push(regions->helper,
                        &m->job); /* behind what others have pushed meanwhile */
        return;
    }
    if (err == 0 && regions->device.register_fn == NULL &&
        m->memory != KVF_REGION_MEMORY_HOST) {
        err = -KVF_E_HOST_MEMORY_ONLY; /* the supervisor knows, and refused it */
    }
    if (err == 0 && regions->device.register_fn != NULL && m->device.memory == NULL) {
        m->is_for_device = true;
        kvf_helper_push(regions->helper, &m->job);
        return;
    }
    if (err == 0) {
        err = kvf_core_region_add(regions->core, m->client, m->handle, m->page_count,
                                  m->plane_count, m->planes, m->owners);
    }
    if (err == 0 && m->device.memory != NULL) {
        err = kvf_core_region_keys(regions->core, m->client, m->handle, m->device.base,
                                   m->device.keys, m->device.key_count);
        assert(err == 0);
    }
    if (err != 0) {
        kvf_log(KVF_LOG_WARN, "region %#x of client %u not mapped: %s", m->handle, m->client,
                kvf_code_text(err));
        m->err = err;
        start_unmap(regions, m); /* and then the answer: the place is free by then */
        return;
    }
    m->view.base = m->base;
    m->view.memory = m->device.memory;
    m->state = KVF_REGION_LIVE;
    regions->live++;
    /* Behind the state: rooms that waited for it want it flushed, and look for it here. */
    bool is_device = m->memory != KVF_REGION_MEMORY_HOST;
    if (is_device && regions->device.expect_flushes_fn != NULL) {
        regions->device.expect_flushes_fn(regions->device.ctx);
    }
    err = kvf_core_region_ready(regions->core, now_ns, m->client, m->handle, is_device);
    assert(err == 0);
    regions->host.added_fn(regions->host.ctx, m->client, m->handle, 0);
}

/* Its memory stays as it is, and nobody is told that it went, until the device says so. */
static void withhold(struct kvf_regions *regions, uint64_t now_ns, struct mapped_region *m)
{
    m->state = KVF_REGION_WITHHELD;
    if (m->wait_ns == 0) { /* said once: it is asked for as long as this worker lives */
        m->wait_ns = ASK_AGAIN_NS;
        regions->counts.withheld++;
        regions->counts.withheld_now++;
        kvf_log(
            KVF_LOG_ERROR,
            "a device does not let go of region %#x of client %u (%s): its memory is withheld "
            "until it does, or this worker ends",
            m->handle, m->client, strerror(-m->device_err));
    } else {
        m->wait_ns = m->wait_ns < ASK_AGAIN_MAX_NS / 2u ? m->wait_ns * 2u : ASK_AGAIN_MAX_NS;
    }
    m->ask_ns = now_ns + m->wait_ns;
}

void kvf_regions_tick(struct kvf_regions *regions, uint64_t now_ns)
{
    if (regions->counts.withheld_now == 0) {
        return;
    }
    for (uint32_t i = 0; i < regions->clients_max * KVF_REGIONS_PER_CLIENT_MAX; i++) {
        struct mapped_region *m = &regions->table[i];
        if (m->state == KVF_REGION_WITHHELD && m->ask_ns <= now_ns) {
            regions->counts.asked_again++;
            start_unmap(regions, m);
        }
    }
}

bool kvf_regions_job_back(struct kvf_regions *regions, uint64_t now_ns, struct kvf_job *job)
{
    if (job->work_fn != map_work && job->work_fn != unmap_work) {
        return false;
    }
    struct mapped_region *m = (struct mapped_region *)job;
    if (m->state == KVF_REGION_MAPPING) {
        map_back(regions, now_ns, m);
        return true;
    }
    assert(m->state == KVF_REGION_UNMAPPING);
    if (m->device_err != 0) {
        withhold(regions, now_ns, m);
        return true;
    }
    if (m->wait_ns != 0) {
        regions->counts.withheld_now--;
        kvf_log(KVF_LOG_WARN, "the device has let go of region %#x of client %u", m->handle,
                m->client);
    }
    uint32_t client = m->client;
    uint32_t handle = m->handle;
    int err = m->err;
    memset(m, 0, sizeof(*m));
    if (err != 0) {
        regions->host.added_fn(regions->host.ctx, client, handle, (uint32_t)-err);
    } else {
        regions->host.removed_fn(regions->host.ctx, client, handle);
    }
    return true;
}

int kvf_regions_remove(struct kvf_regions *regions, uint32_t client, uint32_t region)
{
    struct mapped_region *m = entry_of(regions, client, region);
    if (m == NULL || m->state != KVF_REGION_LIVE || m->handle != region) {
        return -KVF_E_UNKNOWN_REGION;
    }
    int err = kvf_core_region_remove(regions->core, client, region);
    if (err == 0) {
        start_unmap(regions, m);
    }
    return err;
}

void kvf_regions_drop_client(struct kvf_regions *regions, uint32_t client)
{
    assert(client < regions->clients_max);
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        struct mapped_region *m = &regions->table[client * KVF_REGIONS_PER_CLIENT_MAX + slot];
        if (m->state == KVF_REGION_LIVE) {
            start_unmap(regions, m);
        } else if (m->state == KVF_REGION_MAPPING) {
            m->is_doomed = true;
        }
    }
}

uint32_t kvf_regions_client_of(const struct kvf_regions *regions, const struct kvf_job *job)
{
    for (uint32_t i = 0; i < regions->clients_max * KVF_REGIONS_PER_CLIENT_MAX; i++) {
        if (&regions->table[i].job == job) {
            return i / KVF_REGIONS_PER_CLIENT_MAX;
        }
    }
    return KVF_NONE;
}

uint64_t kvf_regions_device_bytes(const struct kvf_regions *regions, const struct kvf_job *job)
{
    uint32_t client = kvf_regions_client_of(regions, job);
    const struct mapped_region *m = (const struct mapped_region *)job;
    return client != KVF_NONE && m->is_for_device ? m->memory_bytes : 0;
}

void kvf_regions_count(const struct kvf_regions *regions, struct kvf_regions_counts *ret_counts)
{
    *ret_counts = regions->counts;
}

uint32_t kvf_regions_held(const struct kvf_regions *regions, uint32_t client)
{
    uint32_t held = 0;
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        const struct mapped_region *m =
            &regions->table[client * KVF_REGIONS_PER_CLIENT_MAX + slot];
        held += m->state != KVF_REGION_FREE;
    }
    return held;
}

uint32_t kvf_regions_live(const struct kvf_regions *regions)
{
    return regions->live;
}

const struct kvf_transport_region *kvf_regions_find(const struct kvf_regions *regions,
                                                    uint32_t client, uint32_t region)
{
    uint32_t slot = region & SLOT_MASK;
    if (client >= regions->clients_max || slot >= KVF_REGIONS_PER_CLIENT_MAX) {
        return NULL;
    }
    const struct mapped_region *m = &regions->table[client * KVF_REGIONS_PER_CLIENT_MAX + slot];
    return m->state == KVF_REGION_LIVE && m->handle == region ? &m->view : NULL;
}

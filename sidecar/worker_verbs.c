/* The worker and transport verbs: how its options become the transport's, registrations on the helper thread, and
 * the last look before a sleep. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/worker_internal.h"

/* Of the fence's deadline: completions are awaited for the accounts alone, destroying takes the rest. */
#define REAP_SHARE 4u

static int watch_all(struct kvf_worker *w)
{
    int fds[KVF_VERBS_FDS_MAX];
    uint32_t count = kvf_verbs_fds(w->ways[WAY_VERBS].t, fds, sizeof(fds) / sizeof(fds[0]));
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event ev = {.events = EPOLLIN,
                                 .data.u64 = (uint64_t)KVF_EPOLL_KIND_VERBS << 32};
        if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fds[i], &ev) != 0) {
            return -errno;
        }
    }
    return 0;
}

void kvf_worker_verbs_rail(void *ctx, const char *device, int err, bool is_final,
                           const char *why)
{
    (void)ctx;
    if (err == 0) {
        kvf_log(KVF_LOG_INFO, "rail %s works: %s", device, why);
    } else if (is_final) {
        kvf_log(KVF_LOG_ERROR, "rail %s is left out: %s", device, why);
    } else {
        kvf_log(KVF_LOG_WARN,
                "rail %s does not work: %s (%s); its lanes are tried again until it does",
                device, why, strerror(-err));
    }
}

int kvf_worker_verbs_create(struct kvf_worker *w, const struct kvf_transport_config *config,
                            const struct kvf_transport_host *host)
{
    const struct kvf_config *c = &w->config;
    uint32_t port = c->rdma_port != 0    ? c->rdma_port
                    : w->rails.count > 0 ? w->rails.at[0].port
                                         : 1;
    struct kvf_verbs_config verbs = {.rail_count = w->rails.count,
                                     .port = port,
                                     .receives_per_lane = c->lane_rooms,
                                     .mtu_bytes = c->rdma_mtu,
                                     .traffic_class = (uint8_t)c->rdma_traffic_class,
                                     .service_level = (uint8_t)c->rdma_service_level,
                                     .timeout = (uint8_t)c->rdma_timeout,
                                     .retry = (uint8_t)c->rdma_retry,
                                     .stall_ns = c->rdma_stall_ms * KVF_NS_PER_MS,
                                     .reap_ns = c->fence_ms * KVF_NS_PER_MS / REAP_SHARE};
    char why[256] = "";
    if (w->rails.count == 0) {
        kvf_log(KVF_LOG_ERROR,
                "cannot start: --transport verbs: there is no RDMA device with an "
                "active port here; --transport tcp needs none");
        return -ENODEV;
    }
    int err = kvf_config_gid(c, verbs.gid);
    assert(err == 0);
    for (uint32_t i = 0; i < w->rails.count && i < KVF_RAILS_MAX; i++) {
        if (strlen(w->rails.at[i].name) >= sizeof(verbs.rails[i])) {
            kvf_log(KVF_LOG_ERROR, "cannot start: device %s: its name is too long",
                    w->rails.at[i].name);
            return -EINVAL;
        }
        (void)snprintf(verbs.rails[i], sizeof(verbs.rails[i]), "%.31s", w->rails.at[i].name);
    }
    w->ways[WAY_VERBS].ops = &kvf_verbs_ops;
    err = kvf_verbs_create(config, &verbs, host, NULL, &w->ways[WAY_VERBS].t, why, sizeof(why));
    if (err != 0) {
        kvf_log(KVF_LOG_ERROR, "cannot start: --transport verbs: %s", why);
        return err;
    }
    return watch_all(w);
}

/* ---- memory, on the helper thread --------------------------------------------------------------------------- */

/* Memory that is mapped nowhere has its place in the dma-buf for an address: any would do that lies on a page as
 * the first byte does. */
static int on_register(void *ctx, void *base, uint64_t bytes, int dmabuf_fd,
                       uint64_t dmabuf_off, struct kvf_regions_memory *ret)
{
    void *address = dmabuf_fd < 0 ? base : (void *)(uintptr_t)dmabuf_off;
    int err = kvf_verbs_register(ctx, address, bytes, dmabuf_fd, dmabuf_off, &ret->memory);
    if (err == 0) {
        kvf_verbs_keys(ret->memory, &ret->base, ret->keys, &ret->key_count);
    }
    return err;
}

static int on_unregister(void *ctx, struct kvf_verbs_memory *memory)
{
    return kvf_verbs_unregister(ctx, memory);
}

static void on_expect_flushes(void *ctx)
{
    kvf_verbs_expect_flushes(ctx);
}

const struct kvf_regions_device *kvf_worker_device(struct kvf_worker *w,
                                                   struct kvf_regions_device *ret_device)
{
    if (w->ways[WAY_VERBS].t == NULL) {
        return NULL;
    }
    *ret_device = (struct kvf_regions_device){.ctx = w->ways[WAY_VERBS].t,
                                              .register_fn = on_register,
                                              .unregister_fn = on_unregister,
                                              .expect_flushes_fn = on_expect_flushes};
    return ret_device;
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

/* The last poll may tell the core of a lane that stood still, and what the core wants then does not wait for the
 * next event. */
bool kvf_worker_verbs_may_sleep(struct kvf_worker *w)
{
    bool may = kvf_verbs_may_sleep(w->ways[WAY_VERBS].t);
    return kvf_worker_actions(w) == 0 && may && w->post_lane_count == 0;
}

void kvf_worker_verbs_stats(struct kvf_worker *w, struct kvf_stats_shm *shm)
{
    struct kvf_verbs_counts n = {0};
    struct kvf_regions_counts r = {0};
    if (w->ways[WAY_VERBS].t != NULL) {
        kvf_verbs_counts(w->ways[WAY_VERBS].t, &n);
        kvf_regions_count(w->regions, &r);
    }
    const struct {
        uint32_t value;
        uint64_t count;
    } rows[] = {
        {KVF_VALUE_QUEUE_PAIRS_MADE, n.queue_pairs_made},
        {KVF_VALUE_QUEUE_PAIRS_DESTROYED, n.queue_pairs_destroyed},
        {KVF_VALUE_WORK_POSTED, n.posted},
        {KVF_VALUE_WORK_REAPED, n.reaped},
        {KVF_VALUE_WORK_WRITTEN_OFF, n.written_off},
        {KVF_VALUE_COMPLETIONS_STALE, n.receives_dropped + n.completions_stray},
        {KVF_VALUE_DEVICE_EVENTS, n.events_other + n.queues_broken},
        {KVF_VALUE_DEVICE_FENCES_FAILED, n.fences_failed},
        {KVF_VALUE_MEMORY_REFUSED, r.refused},
        {KVF_VALUE_MEMORY_WITHHELD, r.withheld},
        {KVF_VALUE_MEMORY_ASKED_AGAIN, r.asked_again},
    };
    kvf_stats_set(shm, KVF_VALUE_MEMORY_WITHHELD_NOW, r.withheld_now);
    kvf_stats_set(shm, KVF_VALUE_RAILS_UP, n.rails_up);
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kvf_stats_set(shm, rows[i].value, w->base[rows[i].value] + rows[i].count);
    }
}

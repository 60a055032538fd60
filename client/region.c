/* Regions: memory whose pages rooms may name, and the ledger that comes with it. */
#include "client/internal.h"

#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- geometry ---------------------------------------------------------------------------------------- */

/* Bytes from the start of the region's memory to behind the last page of the plane; false if it does not
 * fit 64 bits. */
static bool plane_end(const struct kvf_plane *plane, uint64_t page_count, uint64_t *ret_end)
{
    uint64_t span;
    return !__builtin_mul_overflow(plane->stride, page_count - 1u, &span) &&
           !__builtin_add_overflow(span, plane->page_bytes, &span) &&
           !__builtin_add_overflow(span, plane->off, ret_end);
}

/* Do the pages of two planes share a byte? Planes of one stride may interleave, as the blocks of a paged
 * cache do; planes of different strides have to lie apart. */
static bool is_sharing(const struct kvf_plane *a, const struct kvf_plane *b,
                       uint64_t page_count)
{
    if (a->off > b->off) {
        const struct kvf_plane *swap = a;
        a = b;
        b = swap;
    }
    uint64_t a_end =
        a->off + (page_count - 1u) * a->stride + a->page_bytes; /* checked before */
    if (b->off >= a_end) {
        return false;
    }
    if (a->stride != b->stride) {
        return true;
    }
    /* b begins inside a's extent, so some page of a lies at or before it; within one stride there is that
     * page and the start of the next, if there is one. */
    uint64_t into = (b->off - a->off) % a->stride;
    uint64_t pages_on = (b->off - a->off) / a->stride;
    return into < a->page_bytes ||
           (into + b->page_bytes > a->stride && pages_on + 1u < page_count);
}

static int check_planes(const struct kvf_region_opts *o)
{
    if (o->plane_count == 0 || o->plane_count > KVF_PLANES_MAX || o->page_count == 0 ||
        o->page_count > KVF_REGION_PAGES_MAX) {
        return -KVF_E_MEMORY_RANGE;
    }
    for (uint32_t i = 0; i < o->plane_count; i++) {
        const struct kvf_plane *plane = &o->planes[i];
        uint64_t end;
        if (plane->page_bytes == 0 || plane->page_bytes > UINT32_MAX ||
            plane->stride < plane->page_bytes || !plane_end(plane, o->page_count, &end) ||
            end > o->memory_bytes) {
            return -KVF_E_MEMORY_RANGE;
        }
    }
    for (uint32_t i = 0; i < o->plane_count; i++) {
        for (uint32_t k = i + 1u; k < o->plane_count; k++) {
            if (is_sharing(&o->planes[i], &o->planes[k], o->page_count)) {
                return -KVF_E_MEMORY_RANGE;
            }
        }
    }
    return 0;
}

static int host_bytes_of(int fd, uint64_t *ret_bytes)
{
    int err = kvf_memory_check_seal(fd);
    if (err != 0) {
        return err == -EPERM || err == -EINVAL ? -KVF_E_NO_SEAL : err;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return -errno;
    }
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

static int device_bytes_of(int fd, uint64_t *ret_bytes)
{
    int err = kvf_memory_dmabuf_bytes(fd, ret_bytes);
    return err == -EINVAL ? -KVF_E_NO_DMABUF : err;
}

static int check_memory(const struct kvf_region_opts *o)
{
    uint64_t file_bytes = 0;
    int err = o->memory == KVF_MEMORY_DMABUF ? device_bytes_of(o->fd, &file_bytes)
                                             : host_bytes_of(o->fd, &file_bytes);
    if (err != 0) {
        return err;
    }
    if (o->memory_off % KVF_PAGE_BYTES != 0 || o->memory_bytes == 0 ||
        o->memory_off > file_bytes || o->memory_bytes > file_bytes - o->memory_off) {
        return -KVF_E_MEMORY_RANGE;
    }
    return check_planes(o);
}

/* ---- ledger ------------------------------------------------------------------------------------------- */

static int map_ledger(int fd, uint32_t handle, uint64_t page_count,
                      struct kvf_ledger_shm **ret_shm)
{
    if (kvf_memory_check_seal(fd) != 0) {
        return -KVF_E_PROTOCOL; /* one that shrinks would end this process */
    }
    void *addr;
    int err = kvf_memory_map(fd, 0, kvf_ledger_bytes(page_count), true, true, &addr);
    if (err != 0) {
        return err == -EINVAL ? -KVF_E_PROTOCOL : err;
    }
    struct kvf_ledger_shm *shm = addr;
    /* S1 (acquire): behind the magic stand the words of idle pages. */
    if (atomic_load_explicit(&shm->magic, memory_order_acquire) != KVF_LEDGER_MAGIC ||
        shm->page_count != page_count || shm->region != handle) {
        kvf_memory_unmap(addr, kvf_ledger_bytes(page_count));
        return -KVF_E_PROTOCOL;
    }
    *ret_shm = shm;
    return 0;
}

/* ---- register ------------------------------------------------------------------------------------------- */

static struct kvf_region_req *make_request(const struct kvf_region_opts *o)
{
    struct kvf_region_req *req = calloc(1, sizeof *req);
    if (req == NULL) {
        return NULL;
    }
    req->plane_count = o->plane_count;
    req->page_count = o->page_count;
    req->memory_off = o->memory_off;
    req->memory_bytes = o->memory_bytes;
    req->memory = o->memory;
    req->region = o->timeout_ms; /* until it has a handle */
    for (uint32_t i = 0; i < o->plane_count; i++) {
        req->planes[i].off = o->planes[i].off;
        req->planes[i].stride = o->planes[i].stride;
        req->planes[i].page_bytes = o->planes[i].page_bytes;
    }
    return req;
}

/* As an older daemon knows it, but for what that could not serve. */
static size_t request_bytes(const struct kvf_region_req *req)
{
    return req->memory == KVF_REGION_MEMORY_HOST ? offsetof(struct kvf_region_req, memory)
                                                 : sizeof *req;
}

static uint32_t live_count(const kvf_client *client)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        count +=
            atomic_load_explicit(&client->cold.regions[i].handle, memory_order_relaxed) != 0;
    }
    return count;
}

/* Makes the daemon's answer a region of ours. Takes memory_fd, req and the ledger over on 0. */
static int adopt_reply(kvf_client *client, struct kvf_reply *reply, int memory_fd,
                       struct kvf_region_req *req, uint32_t *ret_region)
{
    uint32_t handle = reply->rep.region;
    uint32_t idx = handle & 0xffu;
    if (reply->fd_count != 1 || handle == 0 || idx >= KVF_REGIONS_PER_CLIENT_MAX) {
        return -KVF_E_PROTOCOL;
    }
    struct kvf_client_region *region = &client->cold.regions[idx];
    struct kvf_ledger_shm *shm = NULL;
    int err = map_ledger(reply->fds[0], handle, req->page_count, &shm);
    if (err != 0) {
        return err;
    }
    pthread_mutex_lock(&client->cold.lock);
    if (atomic_load_explicit(&region->handle, memory_order_relaxed) != 0) {
        err = -KVF_E_PROTOCOL;
    } else {
        region->is_leaving = false;
        region->page_count = req->page_count;
        region->ledger = shm;
        region->words = kvf_ledger_words(shm);
        region->memory_fd = memory_fd;
        region->ledger_fd = kvf_reply_take(reply, 0);
        region->req = req;
        /* H1 (seq_cst): whoever finds the handle finds the fields above. */
        atomic_store_explicit(&region->handle, handle, memory_order_seq_cst);
    }
    pthread_mutex_unlock(&client->cold.lock);
    if (err != 0) {
        kvf_memory_unmap(shm, kvf_ledger_bytes(req->page_count));
        return err;
    }
    *ret_region = handle;
    return 0;
}

static int daemon_refusal(kvf_client *client, int err)
{
    if (err == -KVF_E_DAEMON_GONE) {
        atomic_store_explicit(&client->cold.is_supervisor_gone, true, memory_order_relaxed);
    }
    return err;
}

static int register_locked(kvf_client *client, struct kvf_region_req *req, int memory_fd,
                           uint32_t *ret_region)
{
    struct kvf_cold *cold = &client->cold;
    if (atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
        return -KVF_E_DAEMON_GONE;
    }
    if (live_count(client) == cold->segment.limits.regions_max) {
        return -KVF_E_REGIONS_FULL;
    }
    if (req->memory != KVF_REGION_MEMORY_HOST && cold->segment.shm->layout_minor < 3) {
        return -KVF_E_HOST_MEMORY_ONLY; /* a daemon that knows no other would not say so */
    }
    struct kvf_reply reply;
    req->h.op = KVF_REQ_REGION_ADD;
    int err = kvf_socket_request(client, cold->socket_fd, &req->h, request_bytes(req),
                                 &memory_fd, 1, KVF_REP_REGION, 0, &reply);
    if (err != 0) {
        return daemon_refusal(client, err);
    }
    err = adopt_reply(client, &reply, memory_fd, req, ret_region);
    kvf_reply_close(&reply);
    return err;
}

int kvf_region_register(kvf_client *client, const struct kvf_region_opts *opts,
                        uint32_t *ret_region)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (opts == NULL || ret_region == NULL) {
        return -EINVAL;
    }
    struct kvf_region_opts o;
    err = kvf_client_copy_opts(&o, sizeof o, opts);
    if (err != 0) {
        return err;
    }
    if (!kvf_client_is_zero(o.pad_, sizeof o.pad_) || o.memory >= KVF_REGION_MEMORY_COUNT) {
        return -KVF_E_OPTION;
    }
    if (o.planes == NULL) {
        return -EINVAL;
    }
    err = check_memory(&o);
    if (err != 0) {
        return err;
    }
    struct kvf_region_req *req = make_request(&o);
    int memory_fd = fcntl(o.fd, F_DUPFD_CLOEXEC, 0);
    if (req == NULL || memory_fd < 0) {
        err = req == NULL ? -ENOMEM : -errno;
    } else {
        pthread_mutex_lock(&client->cold.socket_lock);
        err = register_locked(client, req, memory_fd, ret_region);
        pthread_mutex_unlock(&client->cold.socket_lock);
    }
    if (err != 0) {
        free(req);
        if (memory_fd >= 0) {
            close(memory_fd);
        }
    }
    return err;
}

int kvf_last_refusal(kvf_client *client, char *text, size_t text_bytes)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (text == NULL || text_bytes == 0) {
        return -EINVAL;
    }
    pthread_mutex_lock(&client->cold.socket_lock);
    (void)snprintf(text, text_bytes, "%s", client->cold.refusal);
    pthread_mutex_unlock(&client->cold.socket_lock);
    return 0;
}

/* ---- unregister ------------------------------------------------------------------------------------------ */

static bool is_named(const kvf_client *client, uint32_t handle)
{
    const struct kvf_cold *cold = &client->cold;
    for (uint32_t idx = 0; idx < cold->segment.limits.rooms_max; idx++) {
        const struct kvf_slot *slot = &cold->slots[idx];
        if (slot->state != KVF_SLOT_LIVE && slot->state != KVF_SLOT_ZOMBIE) {
            continue;
        }
        if ((slot->region == handle || slot->aux_region == handle) &&
            !kvf_client_is_drained(client, idx, slot->generation)) {
            return true;
        }
    }
    return false;
}

static void region_release(struct kvf_client_region *region)
{
    kvf_memory_unmap(region->ledger, kvf_ledger_bytes(region->page_count));
    close(region->ledger_fd);
    close(region->memory_fd);
    free(region->req);
    region->req = NULL;
    region->ledger = NULL;
    region->words = NULL;
}

/* Nobody finds the region any more; those who read its ledger just now are waited for. */
static void region_retire(kvf_client *client, struct kvf_client_region *region)
{
    pthread_mutex_lock(&client->cold.lock);
    /* H1 (seq_cst): cleared first, looked at the users then. */
    atomic_store_explicit(&region->handle, 0, memory_order_seq_cst);
    pthread_mutex_unlock(&client->cold.lock);
    while (atomic_load_explicit(&region->users, memory_order_seq_cst) != 0) {
        sched_yield();
    }
    region_release(region);
}

static int begin_leaving(kvf_client *client, uint32_t handle,
                         struct kvf_client_region **ret_region)
{
    int err = 0;
    pthread_mutex_lock(&client->cold.lock);
    kvf_client_tidy(client, true);
    struct kvf_client_region *region = kvf_client_region_find(client, handle);
    if (region == NULL) {
        err = -KVF_E_UNKNOWN_REGION;
    } else if (is_named(client, handle)) {
        err = -KVF_E_REGION_BUSY;
    } else {
        region->is_leaving = true;
        *ret_region = region;
    }
    pthread_mutex_unlock(&client->cold.lock);
    return err;
}

int kvf_region_unregister(kvf_client *client, uint32_t region)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    struct kvf_cold *cold = &client->cold;
    pthread_mutex_lock(&cold->socket_lock);
    struct kvf_client_region *r = NULL;
    err = begin_leaving(client, region, &r);
    if (err == 0) {
        struct kvf_region_req req = {.region = region};
        struct kvf_reply reply;
        req.h.op = KVF_REQ_REGION_REMOVE;
        err = -KVF_E_DAEMON_GONE;
        if (!atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
            err = kvf_socket_request(client, cold->socket_fd, &req.h, request_bytes(&req), NULL,
                                     0, KVF_REP_OK, 0, &reply);
        }
        err = daemon_refusal(client, err);
        if (err == 0) {
            kvf_reply_close(&reply);
            region_retire(client, r);
        } else {
            pthread_mutex_lock(&cold->lock);
            r->is_leaving = false;
            pthread_mutex_unlock(&cold->lock);
        }
    }
    pthread_mutex_unlock(&cold->socket_lock);
    return err;
}

/* ---- re-attach and end -------------------------------------------------------------------------------------- */

int kvf_client_regions_readd(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        struct kvf_client_region *region = &cold->regions[i];
        uint32_t handle = atomic_load_explicit(&region->handle, memory_order_relaxed);
        if (handle == 0) {
            continue;
        }
        /* The same handle, since open rooms and the ledger name it. */
        struct kvf_reply reply;
        int fds[2] = {region->memory_fd, region->ledger_fd};
        region->req->h.op = KVF_REQ_REGION_ADD;
        region->req->region = handle;
        int err =
            kvf_socket_request(client, cold->socket_fd, &region->req->h,
                               request_bytes(region->req), fds, 2, KVF_REP_REGION, 0, &reply);
        if (err != 0) {
            return daemon_refusal(client, err);
        }
        bool is_same = reply.rep.region == handle;
        kvf_reply_close(&reply);
        if (!is_same) {
            return -KVF_E_PROTOCOL;
        }
    }
    return 0;
}

void kvf_client_regions_free(kvf_client *client, bool is_child)
{
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        struct kvf_client_region *region = &client->cold.regions[i];
        if (atomic_load_explicit(&region->handle, memory_order_relaxed) == 0) {
            continue;
        }
        if (is_child) {
            free(region->req);
        } else {
            region_release(region);
        }
    }
}

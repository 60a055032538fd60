/* Registration of memory: everything about it is checked here, on a copy, before a worker maps it. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ring/codes.h"
#include "ring/ledger.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/supervisor_internal.h"

#define SLOT_MASK 0xffu
#define EPOCH_SHIFT 8u
#define EPOCH_MAX 0xffffffu

/* ---- geometry ----------------------------------------------------------------------------------------------- */

/* First byte behind the plane; false if it leaves 64 bits. */
static bool plane_end(const struct kvf_link_plane *p, uint64_t page_count, uint64_t *ret_end)
{
    uint64_t span = 0;
    uint64_t end = 0;
    if (__builtin_mul_overflow(p->stride, page_count - 1u, &span) ||
        __builtin_add_overflow(span, p->page_bytes, &span) ||
        __builtin_add_overflow(span, p->off, &end)) {
        return false;
    }
    *ret_end = end;
    return true;
}

/* Do two planes share a byte? Planes of one stride may lie within each other's gaps (pages that hold
 * all their planes side by side); of different strides they must lie apart. Both were checked to end
 * within the memory, so nothing here overflows. */
static bool is_sharing(const struct kvf_link_plane *a, const struct kvf_link_plane *b,
                       uint64_t page_count)
{
    if (a->off > b->off) {
        const struct kvf_link_plane *swap = a;
        a = b;
        b = swap;
    }
    uint64_t a_end = a->off + (page_count - 1u) * a->stride + a->page_bytes;
    if (b->off >= a_end) {
        return false;
    }
    if (a->stride != b->stride) {
        return true;
    }
    /* b's first page begins inside a's extent: between the page of a at or before it, and the next. */
    uint64_t pages_on = (b->off - a->off) / a->stride;
    uint64_t into = (b->off - a->off) % a->stride;
    bool has_next = pages_on + 1u < page_count;
    return into < a->page_bytes || (has_next && b->page_bytes > a->stride - into);
}

/* What one frame of a lane can carry (transport/tcp). */
#define PLANE_PAGE_BYTES_MAX (UINT64_C(64) << 20)

static uint32_t check_planes(const struct sup_region *r, const char **ret_text)
{
    for (uint32_t i = 0; i < r->plane_count; i++) {
        const struct kvf_link_plane *p = &r->planes[i];
        uint64_t end = 0;
        if (p->page_bytes == 0 || p->page_bytes > PLANE_PAGE_BYTES_MAX) {
            *ret_text = "a plane's pages must have 1 to 67108864 bytes";
            return KVF_E_MEMORY_RANGE;
        }
        if (p->stride < p->page_bytes) {
            *ret_text = "a plane's stride must be at least the bytes of its page";
            return KVF_E_MEMORY_RANGE;
        }
        if (!plane_end(p, r->page_count, &end) || end > r->memory_bytes) {
            *ret_text =
                "a plane leaves the registered memory: the last page must end inside it";
            return KVF_E_MEMORY_RANGE;
        }
    }
    for (uint32_t i = 0; i < r->plane_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (is_sharing(&r->planes[k], &r->planes[i], r->page_count)) {
                *ret_text =
                    "two planes share bytes: planes may interleave with one stride, or lie "
                    "apart";
                return KVF_E_MEMORY_RANGE;
            }
        }
    }
    return 0;
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static uint32_t check_memory(struct sup_region *r, const char **ret_text)
{
    int err = kvf_memory_check_seal(r->memory_fd);
    struct stat st;
    if (err != 0 || fstat(r->memory_fd, &st) != 0) {
        return KVF_E_NO_SEAL;
    }
    uint64_t file_bytes = (uint64_t)st.st_size;
    uint64_t align = st.st_blksize > 0 ? (uint64_t)st.st_blksize : KVF_PAGE_BYTES;
    if (r->memory_bytes == 0 || r->memory_off > file_bytes ||
        r->memory_bytes > file_bytes - r->memory_off) {
        *ret_text = "the range leaves the memory object";
        return KVF_E_MEMORY_RANGE;
    }
    if (r->memory_off % KVF_PAGE_BYTES != 0 || r->memory_off % align != 0) {
        *ret_text = "the range must begin at a multiple of the memory object's page size";
        return KVF_E_MEMORY_RANGE;
    }
    r->dev = (uint64_t)st.st_dev;
    r->ino = (uint64_t)st.st_ino;
    return 0;
}

static bool is_same_memory(const struct sup_region *a, const struct sup_region *b)
{
    return a->dev == b->dev && a->ino == b->ino &&
           a->memory_off < b->memory_off + b->memory_bytes &&
           b->memory_off < a->memory_off + a->memory_bytes;
}

/* One memory object has one live registration; that of a dead engine lives until its rooms are proven. */
static uint32_t check_registered(struct kvf_supervisor *s, const struct sup_region *r,
                                 const char **ret_text)
{
    for (uint32_t i = 0; i < s->config.clients; i++) {
        for (uint32_t k = 0; k < KVF_REGIONS_PER_CLIENT_MAX; k++) {
            const struct sup_region *other =
                s->clients[i].is_used ? s->clients[i].regions[k] : NULL;
            if (other != NULL && is_same_memory(other, r)) {
                *ret_text = s->clients[i].is_closing
                                ? "this memory is registered by an engine that is gone; its "
                                  "rooms are still "
                                  "being drained: try again"
                                : "this memory has a live registration: unregister that first";
                return KVF_E_MEMORY_REGISTERED;
            }
        }
    }
    return 0;
}

/* ---- ledger ------------------------------------------------------------------------------------------------------ */

static uint32_t create_ledger(struct sup_region *r)
{
    uint64_t bytes = kvf_ledger_bytes(r->page_count);
    int err = kvf_memory_create("kvfence-ledger", bytes, &r->ledger_fd);
    void *addr = NULL;
    if (err == 0) {
        err = kvf_memory_map(r->ledger_fd, 0, bytes, true, true, &addr);
    }
    if (err != 0) {
        return (uint32_t)-err;
    }
    kvf_ledger_format(addr, r->page_count, r->handle);
    kvf_memory_unmap(addr, bytes);
    return 0;
}

/* A ledger handed on at re-attach. Only libraries read it, but one that could shrink would kill its
 * own; and it must speak of this region. */
static uint32_t check_ledger(const struct sup_region *r, const char **ret_text)
{
    void *addr = NULL;
    *ret_text = "the ledger handed on is not one of this region";
    if (kvf_memory_check_seal(r->ledger_fd) != 0 || !kvf_memory_is_paged(r->ledger_fd) ||
        kvf_memory_map(r->ledger_fd, 0, kvf_ledger_bytes(r->page_count), false, true, &addr) !=
            0) {
        return KVF_E_PROTOCOL;
    }
    const struct kvf_ledger_shm *shm = addr;
    bool is_good =
        atomic_load_explicit(&shm->magic, memory_order_acquire) == KVF_LEDGER_MAGIC && /* S1 */
        shm->page_count == r->page_count && shm->region == r->handle;
    kvf_memory_unmap(addr, kvf_ledger_bytes(r->page_count));
    return is_good ? 0 : KVF_E_PROTOCOL;
}

/* ---- requests -------------------------------------------------------------------------------------------------------- */

struct sup_region *kvf_sup_region_find(struct sup_client *c, uint32_t handle)
{
    uint32_t slot = handle & SLOT_MASK;
    struct sup_region *r = slot < KVF_REGIONS_PER_CLIENT_MAX ? c->regions[slot] : NULL;
    return r != NULL && r->handle == handle ? r : NULL;
}

void kvf_sup_region_free(struct sup_client *c, uint32_t slot)
{
    struct sup_region *r = c->regions[slot];
    if (r != NULL) {
        kvf_close_fd(&r->memory_fd);
        kvf_close_fd(&r->ledger_fd);
        free(r);
        c->regions[slot] = NULL;
    }
}

/* A fresh handle, or, with an old ledger, the one that open rooms and the ledger name. */
static uint32_t choose_handle(struct sup_client *c, const struct kvf_region_req *req,
                              bool has_ledger, uint32_t *ret_handle, const char **ret_text)
{
    if (has_ledger) {
        uint32_t slot = req->region & SLOT_MASK;
        uint32_t epoch = req->region >> EPOCH_SHIFT;
        if (slot >= c->segment.limits.regions_max || epoch == 0 || c->regions[slot] != NULL) {
            *ret_text = "the region handed on names a handle that is no region's or is taken";
            return KVF_E_PROTOCOL;
        }
        c->region_epoch = epoch > c->region_epoch ? epoch : c->region_epoch;
        *ret_handle = req->region;
        return 0;
    }
    for (uint32_t slot = 0; slot < c->segment.limits.regions_max; slot++) {
        if (c->regions[slot] == NULL) {
            c->region_epoch = c->region_epoch % EPOCH_MAX + 1u;
            *ret_handle = c->region_epoch << EPOCH_SHIFT | slot;
            return 0;
        }
    }
    return KVF_E_REGIONS_FULL;
}

static uint32_t fill_region(struct kvf_supervisor *s, struct sup_client *c,
                            struct sup_region *r, const struct kvf_region_req *req,
                            bool has_ledger, const char **ret_text)
{
    uint32_t code = check_memory(r, ret_text);
    if (code == 0) {
        code = check_planes(r, ret_text);
    }
    if (code == 0) {
        code = check_registered(s, r, ret_text);
    }
    if (code == 0) {
        code = choose_handle(c, req, has_ledger, &r->handle, ret_text);
    }
    if (code == 0) {
        code = has_ledger ? check_ledger(r, ret_text) : create_ledger(r);
    }
    return code;
}

uint32_t kvf_sup_region_add(struct kvf_supervisor *s, struct sup_client *c,
                            const struct kvf_region_req *req, size_t bytes, int *fds,
                            int fd_count, const char **ret_text)
{
    size_t head = offsetof(struct kvf_region_req, planes);
    if (bytes < head || fd_count < 1 || fd_count > 2) {
        *ret_text =
            "a registration is one packet with one memory descriptor, and the old ledger "
            "when re-attaching";
        return KVF_E_PROTOCOL;
    }
    if (req->plane_count < 1 || req->plane_count > KVF_PLANES_MAX || req->page_count < 1 ||
        req->page_count > KVF_REGION_PAGES_MAX) {
        *ret_text = "a region has 1 to 512 planes and 1 to 67108864 pages";
        return KVF_E_MEMORY_RANGE;
    }
    size_t planes_bytes = req->plane_count * sizeof(req->planes[0]);
    if (bytes - head < planes_bytes) {
        *ret_text = "a registration is shorter than its planes";
        return KVF_E_PROTOCOL;
    }
    struct sup_region *r = calloc(1, sizeof(*r) + planes_bytes);
    if (r == NULL) {
        return ENOMEM;
    }
    r->page_count = req->page_count;
    r->plane_count = req->plane_count;
    r->memory_off = req->memory_off;
    r->memory_bytes = req->memory_bytes;
    r->memory_fd = fds[0];
    r->ledger_fd = fd_count == 2 ? fds[1] : -1;
    _Static_assert(sizeof(req->planes[0]) == sizeof(r->planes[0]), "the same three numbers");
    memcpy(r->planes, req->planes, planes_bytes);
    fds[0] = -1; /* ours from here on */
    fds[1] = -1;
    uint32_t code = fill_region(s, c, r, req, fd_count == 2, ret_text);
    if (code != 0) {
        kvf_close_fd(&r->memory_fd);
        kvf_close_fd(&r->ledger_fd);
        free(r);
        return code;
    }
    c->regions[r->handle & SLOT_MASK] = r;
    c->pending_region = r->handle;
    return 0;
}

uint32_t kvf_sup_region_remove(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                               const char **ret_text)
{
    (void)s;
    struct sup_region *r = kvf_sup_region_find(c, handle);
    if (r == NULL) {
        *ret_text = NULL;
        return KVF_E_UNKNOWN_REGION;
    }
    r->is_removing = true;
    r->remove = TOLD_NOT;
    c->pending_region = handle;
    return 0;
}

/* ---- answers of the worker ---------------------------------------------------------------------------------------------- */

void kvf_sup_region_added(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                          uint32_t code)
{
    struct sup_region *r = kvf_sup_region_find(c, handle);
    if (r == NULL || r->add != TOLD_SENT) {
        return;
    }
    bool is_asked = c->pending_op == KVF_REQ_REGION_ADD && c->pending_region == handle;
    uint32_t serial = c->pending_serial;
    if (is_asked) {
        c->pending_op = 0;
    }
    if (code != 0) {
        bool was_serving = r->is_serving;
        if (is_asked) {
            kvf_sup_refuse(s, c, serial, code, 0, NULL);
        }
        kvf_sup_region_free(c, handle & SLOT_MASK);
        if (was_serving && !c->is_closing) {
            /* A worker before this one had it: the engine's handle would now name nothing. */
            kvf_log(KVF_LOG_ERROR, "client %u (%s): region %#x was not taken by the new worker",
                    c->idx, c->name, handle);
            kvf_sup_client_bad(s, c, code);
        }
        return;
    }
    r->add = TOLD_ANSWERED;
    if (is_asked) {
        r->is_serving = true;
        struct kvf_attach_rep rep = {.h = {.op = KVF_REP_REGION, .serial = serial},
                                     .region = handle};
        kvf_sup_reply(s, c, &rep, &r->ledger_fd, 1);
    }
    kvf_sup_client_open(s, c);
}

void kvf_sup_region_removed(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                            uint32_t code)
{
    struct sup_region *r = kvf_sup_region_find(c, handle);
    if (r == NULL || r->remove != TOLD_SENT) {
        return;
    }
    r->is_removing = false;
    r->remove = TOLD_NOT;
    if (code == 0) {
        kvf_sup_region_free(c, handle & SLOT_MASK);
    }
    if (c->pending_op == KVF_REQ_REGION_REMOVE && c->pending_region == handle) {
        uint32_t serial = c->pending_serial;
        c->pending_op = 0;
        if (code == 0) {
            struct kvf_attach_rep rep = {.h = {.op = KVF_REP_OK, .serial = serial}};
            kvf_sup_reply(s, c, &rep, NULL, 0);
        } else {
            kvf_sup_refuse(s, c, serial, code, 0, NULL);
        }
    }
}

/* Registration of memory: everything about it is checked here, on a copy, before a worker maps it. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ring/codes.h"
#include "ring/ledger.h"
#include "ring/room_word.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/supervisor_internal.h"

#define SLOT_MASK 0xffu
#define EPOCH_SHIFT 8u
#define EPOCH_MAX 0xffffffu
#define LOOK_NS (50 * KVF_NS_PER_MS) /* at the rooms that a registration waits for */

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

static uint32_t check_host(const struct sup_region *r, const struct stat *st,
                           uint64_t *ret_bytes, uint64_t *ret_align)
{
    *ret_bytes = (uint64_t)st->st_size;
    *ret_align = st->st_blksize > 0 ? (uint64_t)st->st_blksize : KVF_PAGE_BYTES;
    return kvf_memory_check_seal(r->memory_fd) == 0 ? 0 : KVF_E_NO_SEAL;
}

/* Nobody maps it, so it has no seal to ask for, and no page size but the one that planes are named in. */
static uint32_t check_device(const struct kvf_supervisor *s, const struct sup_region *r,
                             uint64_t *ret_bytes)
{
    if (kvf_memory_dmabuf_bytes(r->memory_fd, ret_bytes) != 0) {
        return KVF_E_NO_DMABUF;
    }
    return kvf_config_moves_device_memory(&s->config) ? 0 : KVF_E_HOST_MEMORY_ONLY;
}

static uint32_t check_memory(const struct kvf_supervisor *s, struct sup_region *r,
                             const char **ret_text)
{
    uint64_t file_bytes = 0;
    uint64_t align = KVF_PAGE_BYTES;
    struct stat st;
    if (fstat(r->memory_fd, &st) != 0) {
        return KVF_E_NO_SEAL;
    }
    uint32_t code = r->memory == KVF_REGION_MEMORY_DMABUF
                        ? check_device(s, r, &file_bytes)
                        : check_host(r, &st, &file_bytes, &align);
    if (code != 0) {
        *ret_text = NULL; /* the code's own */
        return code;
    }
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

/* ---- one live registration of a memory object ----------------------------------------------------------------- */

/* Who stands in the way of a registration. */
struct in_the_way {
    const struct sup_client *client; /* NULL: nobody */
    bool is_leaving;                 /* it is let go once its rooms are proven */
    bool is_quarantined;             /* never, but by an operator's word */
    uint32_t slot;                   /* a room of it that is not drained, if there is one */
    uint64_t generation;             /* 0: there is none */
};

/* A room that holds the client's memory, one in quarantine first. The words are in its engine's memory too: what
 * that may have made of them delays, or refuses, a registration of this very memory. */
static void find_room(struct in_the_way *way)
{
    const struct kvf_segment *segment = &way->client->segment;
    for (uint32_t slot = 0; slot < segment->limits.rooms_max; slot++) {
        uint64_t word = atomic_load_explicit(&segment->rooms[slot].word, memory_order_relaxed);
        bool is_drained = kvf_word_phase(word) == KVF_PHASE_FREE || kvf_word_is_drained(word);
        bool is_quarantined =
            way->client->is_reaped && kvf_word_phase(word) == KVF_PHASE_QUARANTINED;
        if (is_quarantined || (!is_drained && way->generation == 0)) {
            way->slot = slot;
            way->generation = kvf_word_generation(word);
            way->is_quarantined = is_quarantined;
        }
        if (is_quarantined) {
            return;
        }
    }
}

static struct in_the_way find_in_the_way(const struct kvf_supervisor *s,
                                         const struct sup_region *r)
{
    struct in_the_way way = {.client = NULL};
    for (uint32_t i = 0; i < s->config.clients; i++) {
        const struct sup_client *c = &s->clients[i];
        for (uint32_t k = 0; c->is_used && k < KVF_REGIONS_PER_CLIENT_MAX; k++) {
            const struct sup_region *other = c->regions[k];
            if (other == NULL || !is_same_memory(other, r)) {
                continue;
            }
            bool is_leaving = c->is_closing || other->is_removing;
            if (way.client == NULL || !is_leaving) {
                way = (struct in_the_way){.client = c, .is_leaving = is_leaving};
            }
        }
    }
    if (way.client != NULL && way.client->is_closing) {
        find_room(&way);
    }
    return way;
}

static uint64_t room_handle(const struct in_the_way *way)
{
    return way->generation != 0 ? way->generation << KVF_GENERATION_SHIFT | way->slot : 0;
}

/* Why a registration is refused, or cannot wait any longer. */
static uint32_t refuse_way(const struct in_the_way *way, const char **ret_text)
{
    static char text[232];
    *ret_text = text;
    if (!way->is_leaving) {
        snprintf(
            text, sizeof(text),
            "this memory has a live registration by client %u (%.63s): unregister that first",
            way->client->idx, way->client->name);
        return KVF_E_MEMORY_REGISTERED;
    }
    if (way->is_quarantined) {
        snprintf(
            text, sizeof(text),
            "client %u slot %u generation %llu (%.63s) is in quarantine and holds this memory: "
            "kvfence-ctl release-quarantine is the only way out",
            way->client->idx, way->slot, (unsigned long long)way->generation,
            way->client->name);
        return KVF_E_QUARANTINED;
    }
    snprintf(text, sizeof(text),
             "this memory was client %u's (%.63s), which is gone and not drained yet: slot %u "
             "generation %llu; the time to wait for it is over",
             way->client->idx, way->client->name, way->slot,
             (unsigned long long)way->generation);
    return KVF_E_MEMORY_REGISTERED;
}

/* ---- ledger ------------------------------------------------------------------------------------------------------ */

static int format_ledger(const struct sup_region *r)
{
    void *addr = NULL;
    int err =
        kvf_memory_map(r->ledger_fd, 0, kvf_ledger_bytes(r->page_count), true, true, &addr);
    if (err == 0) {
        kvf_ledger_format(addr, r->page_count, r->handle);
        kvf_memory_unmap(addr, kvf_ledger_bytes(r->page_count));
    }
    return err;
}

/* A step of it. The largest has half a gigabyte: made at once, it would keep the watchdog and every other engine
 * waiting. 0: whole; 1: there is more to do; -errno. */
static int grow_ledger(struct sup_region *r)
{
    int err = kvf_memory_grow(r->ledger_fd, kvf_ledger_bytes(r->page_count), &r->ledger_off);
    r->is_growing = err == 1;
    return err == 0 ? format_ledger(r) : err;
}

static uint32_t create_ledger(struct kvf_supervisor *s, struct sup_region *r)
{
    int err =
        kvf_memory_begin("kvfence-ledger", kvf_ledger_bytes(r->page_count), &r->ledger_fd);
    if (err == 0) {
        err = grow_ledger(r);
    }
    s->has_growing = s->has_growing || err == 1;
    return err < 0 ? (uint32_t)-err : 0;
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

static void destroy(struct sup_region *r)
{
    kvf_close_fd(&r->memory_fd);
    kvf_close_fd(&r->ledger_fd);
    free(r);
}

void kvf_sup_region_free(struct kvf_supervisor *s, struct sup_client *c, uint32_t slot)
{
    if (c->regions[slot] != NULL) {
        destroy(c->regions[slot]);
        c->regions[slot] = NULL;
        s->is_memory_free = true;
    }
}

void kvf_sup_region_unpark(struct sup_client *c)
{
    if (c->parked != NULL) {
        destroy(c->parked);
        c->parked = NULL;
    }
}

/* A fresh handle, or, with an old ledger, the one that open rooms and the ledger name. */
static uint32_t choose_handle(struct sup_client *c, struct sup_region *r, bool has_ledger,
                              const char **ret_text)
{
    if (has_ledger) {
        uint32_t slot = r->handle & SLOT_MASK;
        uint32_t epoch = r->handle >> EPOCH_SHIFT;
        if (slot >= c->segment.limits.regions_max || epoch == 0 || c->regions[slot] != NULL) {
            *ret_text = "the region handed on names a handle that is no region's or is taken";
            return KVF_E_PROTOCOL;
        }
        c->region_epoch = epoch > c->region_epoch ? epoch : c->region_epoch;
        return 0;
    }
    for (uint32_t slot = 0; slot < c->segment.limits.regions_max; slot++) {
        if (c->regions[slot] == NULL) {
            c->region_epoch = c->region_epoch % EPOCH_MAX + 1u;
            r->handle = c->region_epoch << EPOCH_SHIFT | slot;
            return 0;
        }
    }
    return KVF_E_REGIONS_FULL;
}

/* Nobody is in the way: it gets its handle and ledger, and the worker is told. */
static uint32_t take_in(struct kvf_supervisor *s, struct sup_client *c, struct sup_region *r,
                        const char **ret_text)
{
    bool has_ledger = r->ledger_fd >= 0;
    *ret_text = NULL;
    uint32_t code = choose_handle(c, r, has_ledger, ret_text);
    if (code == 0) {
        code = has_ledger ? check_ledger(r, ret_text) : create_ledger(s, r);
    }
    if (code == 0) {
        c->regions[r->handle & SLOT_MASK] = r;
        c->pending_region = r->handle;
    }
    return code;
}

/* A registration waits as long as the worst bound says that a dead engine's rooms may need, and the second that
 * other ranks of its groups get; or as long as the engine says. */
static uint64_t wait_ns(const struct kvf_supervisor *s, uint32_t asked_ms)
{
    uint64_t bound_us = kvf_bound_worst_us(&s->config) + kvf_bound_flush_us(&s->config);
    uint64_t own_ns = bound_us * KVF_NS_PER_US + KVF_NS_PER_S;
    return asked_ms != 0 ? asked_ms * KVF_NS_PER_MS : own_ns;
}

static uint32_t place(struct kvf_supervisor *s, struct sup_client *c, struct sup_region *r,
                      uint32_t asked_ms, uint64_t *ret_lender, const char **ret_text)
{
    uint32_t code = check_memory(s, r, ret_text);
    if (code == 0) {
        code = check_planes(r, ret_text);
    }
    if (code != 0) {
        return code;
    }
    struct in_the_way way = find_in_the_way(s, r);
    if (way.client == NULL) {
        return take_in(s, c, r, ret_text);
    }
    if (!way.is_leaving || way.is_quarantined) {
        *ret_lender = room_handle(&way);
        return refuse_way(&way, ret_text);
    }
    kvf_log(KVF_LOG_INFO, "client %u (%s) waits for memory of client %u (%s), which leaves",
            c->idx, c->name, way.client->idx, way.client->name);
    c->parked = r;
    c->parked_until_ns = s->now_ns + wait_ns(s, asked_ms);
    s->parked_look_ns = s->now_ns + LOOK_NS;
    return 0;
}

uint32_t kvf_sup_region_add(struct kvf_supervisor *s, struct sup_client *c,
                            const struct kvf_region_req *req, size_t bytes, int *fds,
                            int fd_count, uint64_t *ret_lender, const char **ret_text)
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
    /* What an older library sends ends with the planes. */
    uint32_t memory = bytes >= sizeof(*req) ? req->memory : KVF_REGION_MEMORY_HOST;
    if (memory >= KVF_REGION_MEMORY_COUNT) {
        *ret_text = "memory is the host's (0) or a device's, exported as a dma-buf (1)";
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
    r->memory = memory;
    r->memory_fd = fds[0];
    bool has_ledger = fd_count == 2;
    r->ledger_fd = has_ledger ? fds[1] : -1;
    r->handle = has_ledger ? req->region : 0;
    _Static_assert(sizeof(req->planes[0]) == sizeof(r->planes[0]), "the same three numbers");
    memcpy(r->planes, req->planes, planes_bytes);
    fds[0] = -1; /* ours from here on */
    fds[1] = -1;
    uint32_t code = place(s, c, r, has_ledger ? 0 : req->region, ret_lender, ret_text);
    if (code != 0) {
        destroy(r);
    }
    return code;
}

static void look(struct kvf_supervisor *s, struct sup_client *c)
{
    struct sup_region *r = c->parked;
    const char *text = NULL;
    uint64_t lender = 0;
    uint32_t code = 0;
    struct in_the_way way = find_in_the_way(s, r);
    bool is_over = s->now_ns >= c->parked_until_ns;
    if (s->is_stopping) {
        code = ESHUTDOWN;
    } else if (way.client == NULL) {
        code = take_in(s, c, r, &text);
    } else if (way.is_leaving && !way.is_quarantined && !is_over) {
        return;
    } else {
        lender = room_handle(&way);
        code = refuse_way(&way, &text);
    }
    c->parked = NULL;
    if (code != 0) {
        uint32_t serial = c->pending_serial;
        destroy(r);
        c->pending_op = 0;
        kvf_sup_refuse(s, c, serial, code, lender, text);
        return;
    }
    kvf_sup_sync(s);
}

/* The next step of one ledger, if there is one to make. */
static bool grow_one(struct kvf_supervisor *s, struct sup_client *c)
{
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        struct sup_region *r = c->regions[slot];
        if (r == NULL || !r->is_growing || c->is_closing) {
            continue;
        }
        int err = grow_ledger(r);
        if (err < 0) {
            uint32_t serial = c->pending_serial;
            kvf_sup_region_free(s, c, slot);
            c->pending_op = 0;
            kvf_sup_refuse(s, c, serial, (uint32_t)-err, 0, NULL);
        } else if (err == 0) {
            kvf_sup_sync(s);
        }
        return true;
    }
    return false;
}

static void grow(struct kvf_supervisor *s)
{
    s->has_growing = false;
    for (uint32_t i = 0; i < s->config.clients && !s->has_growing; i++) {
        s->has_growing = s->clients[i].is_used && grow_one(s, &s->clients[i]);
    }
}

void kvf_sup_regions_look(struct kvf_supervisor *s)
{
    if (s->has_growing) {
        grow(s);
    }
    if (!s->is_memory_free && s->now_ns < kvf_sup_regions_deadline(s)) {
        return;
    }
    s->is_memory_free = false;
    s->parked_look_ns = s->now_ns + LOOK_NS;
    for (uint32_t i = 0; i < s->config.clients; i++) {
        if (s->clients[i].is_used && s->clients[i].parked != NULL) {
            look(s, &s->clients[i]);
        }
    }
}

uint64_t kvf_sup_regions_deadline(const struct kvf_supervisor *s)
{
    uint64_t deadline_ns = s->has_growing ? s->now_ns : UINT64_MAX;
    for (uint32_t i = 0; i < s->config.clients; i++) {
        const struct sup_client *c = &s->clients[i];
        if (c->is_used && c->parked != NULL) {
            uint64_t until_ns =
                c->parked_until_ns < s->parked_look_ns ? c->parked_until_ns : s->parked_look_ns;
            deadline_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
        }
    }
    return deadline_ns;
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
        if (!was_serving) {
            kvf_sup_region_free(s, c, handle & SLOT_MASK);
            return;
        }
        /* A worker before this one had it: the engine's handle would now name nothing. What the engine may
         * still do to its pages is unknown until the client is quiet: until then nobody gets them anew. */
        r->add = TOLD_REFUSED;
        c->close =
            TOLD_NOT; /* rooms that wait for it to be flushed hear that it does not come */
        if (!c->is_closing) {
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
        kvf_sup_region_free(s, c, handle & SLOT_MASK);
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

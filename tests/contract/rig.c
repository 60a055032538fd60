#include "tests/contract/rig.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t rig_random(struct rig *rig)
{
    rig->random ^= rig->random << 13;
    rig->random ^= rig->random >> 7;
    rig->random ^= rig->random << 17;
    return rig->random;
}

/* ---- the host ---------------------------------------------------------------------------------------- */

static void complain(struct rig_end *end, const char *what)
{
    fprintf(stderr, "rig: %s\n", what);
    end->errors++;
}

static struct rig_event *note(struct rig_end *end, enum rig_event_kind kind, uint32_t lane,
                              uint32_t epoch)
{
    assert(end->log_count < RIG_LOG_MAX);
    struct rig_event *event = &end->log[end->log_count++];
    *event = (struct rig_event){.kind = kind, .lane = lane, .epoch = epoch};
    return event;
}

static int host_place(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                      uint32_t position, uint32_t page_count, struct kvf_placement_at *ret_at)
{
    struct rig_end *end = ctx;
    (void)lane;
    (void)epoch;
    if (handle >= RIG_GRANTS || end->grants[handle].page_count == 0) {
        return -EPROTO;
    }
    struct rig_grant *grant = &end->grants[handle];
    grant->places_asked++;
    if (grant->mode == RIG_REFUSE || position >= grant->page_count ||
        page_count > grant->page_count - position) {
        return -EPROTO;
    }
    if (grant->scratch_after_bytes > 0 && grant->placed_bytes >= grant->scratch_after_bytes) {
        grant->mode = RIG_SCRATCH;
    }
    grant->is_asked = true;
    grant->was_scratch = grant->mode == RIG_SCRATCH;
    ret_at->where = grant->was_scratch ? KVF_PLACE_SCRATCH : KVF_PLACE_PAGES;
    ret_at->client = 0;
    ret_at->region = grant->region;
    ret_at->page_first = grant->page_base + position;
    return 0;
}

static void host_placed(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle,
                        uint64_t bytes, bool is_scratch)
{
    struct rig_end *end = ctx;
    struct rig_grant *grant = &end->grants[handle];
    if (!grant->is_asked) {
        complain(end, "placed without asking");
    }
    if (!is_scratch && grant->was_scratch) {
        complain(end, "placed in pages though told scratch");
    }
    grant->is_asked = false;
    grant->receives++;
    if (is_scratch) {
        grant->scratch_bytes += bytes;
    } else {
        grant->placed_bytes += bytes;
    }
    if (end->placed_hook != NULL) {
        end->placed_hook(end, lane, epoch, bytes);
    }
}

static int host_marker(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle, uint8_t kind)
{
    struct rig_end *end = ctx;
    if (handle >= RIG_GRANTS || end->grants[handle].page_count == 0) {
        return -EPROTO;
    }
    struct rig_event *event = note(end, RIG_MARKER, lane, epoch);
    event->handle = handle;
    event->value = kind;
    event->placed_bytes = end->grants[handle].placed_bytes + end->grants[handle].scratch_bytes;
    if (end->marker_hook != NULL) {
        end->marker_hook(end, lane, handle);
    }
    return 0;
}

static void host_place_fault(void *ctx, uint32_t lane, uint32_t epoch, uint32_t handle)
{
    struct rig_end *end = ctx;
    (void)lane;
    (void)epoch;
    end->grants[handle].faults++;
}

static void host_completed(void *ctx, uint32_t lane, uint32_t epoch,
                           const struct kvf_post *post, int status)
{
    struct rig_end *end = ctx;
    struct rig_event *event = note(end, RIG_COMPLETED, lane, epoch);
    uint32_t number = post->remote_page_first;
    assert(number < RIG_POSTS_MAX);
    event->handle = number;
    event->value = status;
    if (end->completed[number]++ != 0) {
        complain(end, "a post completed twice");
    }
    end->status[number] = status;
    end->completed_count++;
    if (end->completed_hook != NULL) {
        end->completed_hook(end, lane, post, status);
    }
}

static void host_read_fault(void *ctx, uint32_t client)
{
    struct rig_end *end = ctx;
    note(end, RIG_READ_FAULT, client, 0);
    end->read_fault_count++;
}

static void host_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct rig_end *end = ctx;
    note(end, RIG_UP, lane, epoch);
    end->up_count++;
    if (end->up_hook != NULL) {
        end->up_hook(end, lane);
    }
}

static void host_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct rig_end *end = ctx;
    note(end, RIG_LOST, lane, epoch)->value = err;
    if (err <= 0) {
        complain(end, "lost without a positive errno");
    }
    end->lost_count++;
}

static void host_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct rig_end *end = ctx;
    note(end, RIG_FENCED, lane, epoch);
    end->fenced_count++;
    if (end->fenced_hook != NULL) {
        end->fenced_hook(end, lane);
    }
}

static const struct kvf_transport_region *host_region(void *ctx, uint32_t client,
                                                      uint32_t region)
{
    struct rig_end *end = ctx;
    (void)client;
    if (region >= RIG_REGIONS || end->regions[region].is_gone) {
        return NULL;
    }
    return &end->regions[region].region;
}

/* ---- making and ending --------------------------------------------------------------------------------- */

struct rig_options rig_defaults(void)
{
    return (struct rig_options){
        .config = {.lanes_max = RIG_LANES,
                   .turn_bytes_max = 4u << 20,
                   .lane_window_bytes = 4u << 20,
                   .posts_per_lane_max = 1024},
        .seed = 1,
    };
}

static int end_create(struct rig *rig, struct rig_end *end)
{
    struct kvf_transport_host host = {
        .ctx = end,
        .place_fn = host_place,
        .placed_fn = host_placed,
        .marker_fn = host_marker,
        .place_fault_fn = host_place_fault,
        .completed_fn = host_completed,
        .read_fault_fn = host_read_fault,
        .up_fn = host_up,
        .lost_fn = host_lost,
        .fenced_fn = host_fenced,
        .region_fn = host_region,
    };
    end->rig = rig;
    end->epoll_fd = -1;
    return rig->kind->end_create(rig, end, &host);
}

struct rig *rig_create(const struct rig_kind *kind, const struct rig_options *options)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert(rig != NULL);
    rig->kind = kind;
    rig->options = *options;
    rig->random = options->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    int rc = end_create(rig, &rig->source);
    assert(rc == 0);
    rc = end_create(rig, &rig->sink);
    assert(rc == 0);
    return rig;
}

static void region_free(struct rig *rig, struct rig_end *end, uint32_t idx)
{
    struct rig_region *region = &end->regions[idx];
    if (region->bytes > 0) {
        if (rig->kind->region_leaves != NULL) {
            rig->kind->region_leaves(rig, end, idx);
        }
        munmap(region->region.base, region->bytes);
        close(region->fd);
        region->bytes = 0;
    }
}

void rig_destroy(struct rig *rig)
{
    for (uint32_t i = 0; i < RIG_REGIONS; i++) {
        region_free(rig, &rig->source, i);
        region_free(rig, &rig->sink, i);
    }
    rig->kind->ops->close(rig->source.transport);
    rig->kind->ops->close(rig->sink.transport);
    rig->kind->destroy(rig);
    assert(rig->source.errors == 0);
    assert(rig->sink.errors == 0);
    free(rig);
}

/* ---- regions --------------------------------------------------------------------------------------------- */

static unsigned char pattern(uint64_t page, uint32_t plane, uint64_t off)
{
    uint64_t x = (page * 2654435761u + plane * 40503u + off) * UINT64_C(0x9e3779b97f4a7c15);
    unsigned char byte = (unsigned char)(x >> 56);
    /* Never a canary and never filler, so that each can be told apart. */
    return byte == RIG_CANARY || byte == 0 ? 0x5a : byte;
}

static void region_make(struct rig *rig, struct rig_end *end, uint32_t idx, uint32_t pages,
                        uint32_t planes, const uint32_t *plane_bytes, uint32_t n, uint32_t gap)
{
    struct rig_region *region = &end->regions[idx];
    uint64_t off = 0;
    uint64_t page_bytes = 0;
    region_free(rig, end, idx);
    for (uint32_t i = 0; i < planes; i++) {
        struct kvf_core_plane *plane = &region->planes[i];
        plane->off = off;
        plane->page_bytes = plane_bytes[i % n];
        plane->stride = plane->page_bytes + gap;
        off += plane->stride * pages;
        page_bytes += plane->page_bytes;
    }
    region->bytes = (off + 4095u) & ~UINT64_C(4095);
    region->fd = memfd_create("rig", MFD_CLOEXEC);
    assert(region->fd >= 0);
    int rc = ftruncate(region->fd, (off_t)region->bytes);
    assert(rc == 0);
    void *base = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
    assert(base != MAP_FAILED);
    region->region = (struct kvf_transport_region){.base = base,
                                                   .page_count = pages,
                                                   .plane_count = planes,
                                                   .planes = region->planes,
                                                   .page_bytes = page_bytes};
    region->is_gone = false;
    memset(base, RIG_CANARY, region->bytes);
    if (rig->kind->region_made != NULL) {
        rig->kind->region_made(rig, end, idx);
    }
}

void rig_region(struct rig *rig, uint32_t idx, uint32_t pages, uint32_t planes,
                const uint32_t *plane_bytes, uint32_t n, uint32_t gap)
{
    region_make(rig, &rig->sink, idx, pages, planes, plane_bytes, n, gap);
    region_make(rig, &rig->source, idx, pages, planes, plane_bytes, n, gap);
    const struct rig_region *region = &rig->source.regions[idx];
    for (uint32_t i = 0; i < planes; i++) {
        const struct kvf_core_plane *plane = &region->planes[i];
        for (uint64_t page = 0; page < pages; page++) {
            unsigned char *at = region->region.base + plane->off + page * plane->stride;
            for (uint64_t off = 0; off < plane->page_bytes; off++) {
                at[off] = pattern(page, i, off);
            }
        }
    }
}

void rig_grant(struct rig *rig, uint32_t handle, uint32_t region, uint32_t page_base,
               uint32_t pages)
{
    assert(handle < RIG_GRANTS);
    rig->sink.grants[handle] =
        (struct rig_grant){.region = region, .page_base = page_base, .page_count = pages};
}

uint64_t rig_wrong_bytes(struct rig *rig, uint32_t region, uint32_t sink_page,
                         uint32_t source_page, uint32_t pages)
{
    const struct rig_region *sink = &rig->sink.regions[region];
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < sink->region.plane_count; i++) {
        const struct kvf_core_plane *plane = &sink->planes[i];
        for (uint32_t page = 0; page < pages; page++) {
            const unsigned char *at =
                sink->region.base + plane->off + (uint64_t)(sink_page + page) * plane->stride;
            for (uint32_t off = 0; off < plane->page_bytes; off++) {
                wrong += at[off] != pattern(source_page + page, i, off);
            }
        }
    }
    return wrong;
}

uint64_t rig_touched_bytes(struct rig *rig, uint32_t region, uint32_t page, uint32_t pages)
{
    const struct rig_region *sink = &rig->sink.regions[region];
    uint64_t touched = 0;
    for (uint32_t i = 0; i < sink->region.plane_count; i++) {
        const struct kvf_core_plane *plane = &sink->planes[i];
        for (uint64_t p = page; p < (uint64_t)page + pages; p++) {
            const unsigned char *at = sink->region.base + plane->off + p * plane->stride;
            for (uint32_t off = 0; off < plane->page_bytes; off++) {
                touched += at[off] != RIG_CANARY;
            }
        }
    }
    return touched;
}

void rig_paint(struct rig *rig, uint32_t region, uint32_t page, uint32_t pages)
{
    const struct rig_region *sink = &rig->sink.regions[region];
    for (uint32_t i = 0; i < sink->region.plane_count; i++) {
        const struct kvf_core_plane *plane = &sink->planes[i];
        for (uint64_t p = page; p < (uint64_t)page + pages; p++) {
            memset(sink->region.base + plane->off + p * plane->stride, RIG_CANARY,
                   plane->page_bytes);
        }
    }
}

/* ---- posting and turning ----------------------------------------------------------------------------------- */

static uint32_t post(struct rig *rig, uint32_t lane, struct kvf_post *post)
{
    struct rig_end *end = &rig->source;
    uint32_t number = end->posted_count++;
    assert(number < RIG_POSTS_MAX);
    post->remote_page_first = number; /* a transport hands it back and must not care */
    int rc = rig->kind->ops->post(end->transport, lane, post);
    assert(rc == 0);
    return number;
}

uint32_t rig_post(struct rig *rig, uint32_t lane, uint64_t cookie, uint32_t handle,
                  uint32_t region, uint32_t page, uint32_t position, uint32_t pages)
{
    struct kvf_post p = {
        .cookie = cookie,
        .kind = KVF_LANE_DATA,
        .handle = handle,
        .position = position,
        .page_count = pages,
        .payload_bytes = pages * rig->source.regions[region].region.page_bytes,
        .region = region,
        .page_first = page,
    };
    return post(rig, lane, &p);
}

uint32_t rig_mark(struct rig *rig, uint32_t lane, uint64_t cookie, uint32_t handle,
                  uint8_t kind)
{
    struct kvf_post p = {.cookie = cookie, .kind = kind, .handle = handle};
    return post(rig, lane, &p);
}

void rig_forget(struct rig *rig)
{
    assert(rig_all_completed(rig, 0));
    memset(rig->source.completed, 0, sizeof(rig->source.completed));
    rig->source.posted_count = 0;
    rig->source.completed_count = 0;
    rig->source.log_count = 0;
    rig->sink.log_count = 0;
}

uint64_t rig_turn(struct rig *rig, bool wait)
{
    rig->kind->end_events(rig, &rig->source, false);
    uint64_t moved = rig->kind->ops->poll(rig->source.transport);
    if (!rig->is_sink_stopped) {
        rig->kind->end_events(rig, &rig->sink, wait && moved == 0);
        moved += rig->kind->ops->poll(rig->sink.transport);
    }
    return moved;
}

void rig_turns(struct rig *rig, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        rig_turn(rig, true);
    }
}

bool rig_until(struct rig *rig, rig_condition condition, uint64_t arg)
{
    uint64_t patience_s = rig->kind->patience_s > 0 ? rig->kind->patience_s : 60;
    uint64_t deadline_ns = now_ns() + patience_s * 1000000000u;
    while (!condition(rig, arg)) {
        if (now_ns() > deadline_ns) {
            return false;
        }
        rig_turn(rig, true);
    }
    return true;
}

bool rig_all_completed(struct rig *rig, uint64_t arg)
{
    (void)arg;
    return rig->source.completed_count == rig->source.posted_count;
}

bool rig_markers_seen(struct rig *rig, uint64_t count)
{
    return rig_count(&rig->sink, RIG_MARKER) >= count;
}

bool rig_is_lost(struct rig *rig, uint64_t is_source)
{
    return is_source ? rig->source.lost_count > 0 : rig->sink.lost_count > 0;
}

uint32_t rig_count(const struct rig_end *end, enum rig_event_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < end->log_count; i++) {
        count += end->log[i].kind == kind;
    }
    return count;
}

const struct rig_event *rig_last(const struct rig_end *end, enum rig_event_kind kind)
{
    for (uint32_t i = end->log_count; i > 0; i--) {
        if (end->log[i - 1].kind == kind) {
            return &end->log[i - 1];
        }
    }
    return NULL;
}

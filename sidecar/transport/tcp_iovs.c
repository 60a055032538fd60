/* Where the bytes of a frame lie. Both sides build their iovecs here, so that they agree on the order:
 * page by page, and within a page plane by plane. */
#include <assert.h>

#include "sidecar/transport/tcp_lane.h"

uint64_t kvf_tcp_iovs_add(struct kvf_tcp_iovs *iovs, unsigned char *base, uint64_t bytes)
{
    if (bytes > iovs->bytes_max - iovs->bytes) {
        bytes = iovs->bytes_max - iovs->bytes;
    }
    if (bytes == 0) {
        return 0;
    }
    if (iovs->count > 0) {
        struct iovec *last = &iovs->iovs[iovs->count - 1];
        if ((unsigned char *)last->iov_base + last->iov_len == base) {
            last->iov_len += bytes;
            iovs->bytes += bytes;
            return bytes;
        }
    }
    if (iovs->count == iovs->count_max) {
        return 0;
    }
    iovs->iovs[iovs->count++] = (struct iovec){.iov_base = base, .iov_len = bytes};
    iovs->bytes += bytes;
    return bytes;
}

uint64_t kvf_tcp_iovs_repeat(struct kvf_tcp_iovs *iovs, unsigned char *buffer, uint64_t bytes)
{
    uint64_t added = 0;
    while (added < bytes) {
        uint64_t want = bytes - added;
        if (want > KVF_TCP_SCRATCH_BYTES) {
            want = KVF_TCP_SCRATCH_BYTES;
        }
        uint64_t got = kvf_tcp_iovs_add(iovs, buffer, want);
        added += got;
        if (got < want) {
            break;
        }
    }
    return added;
}

static uint64_t planes_bytes(const struct kvf_transport_region *region, uint32_t plane_first,
                             uint32_t plane_count)
{
    if (plane_count == region->plane_count) {
        return region->page_bytes;
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plane_count; i++) {
        bytes += region->planes[plane_first + i].page_bytes;
    }
    return bytes;
}

uint64_t kvf_tcp_frame_bytes(const struct kvf_transport_region *region, uint32_t page_count,
                             uint32_t plane_first, uint32_t plane_count)
{
    assert(plane_first <= region->plane_count);
    assert(plane_count <= region->plane_count - plane_first);
    return page_count * planes_bytes(region, plane_first, plane_count);
}

uint64_t kvf_tcp_iovs_add_pages(struct kvf_tcp_iovs *iovs,
                                const struct kvf_transport_region *region,
                                const struct kvf_lane_frame *frame, uint32_t page_first,
                                uint32_t skip)
{
    assert(page_first < region->page_count);
    assert(frame->page_count <= region->page_count - page_first);
    uint64_t per_page = planes_bytes(region, frame->plane_first, frame->plane_count);
    uint64_t page = page_first + skip / per_page;
    uint64_t page_end = (uint64_t)page_first + frame->page_count;
    uint64_t off = skip % per_page;
    uint64_t added = 0;
    for (; page < page_end; page++) {
        for (uint32_t i = 0; i < frame->plane_count; i++) {
            const struct kvf_core_plane *plane = &region->planes[frame->plane_first + i];
            if (off >= plane->page_bytes) {
                off -= plane->page_bytes;
                continue;
            }
            uint64_t want = plane->page_bytes - off;
            uint64_t got = kvf_tcp_iovs_add(
                iovs, region->base + plane->off + page * plane->stride + off, want);
            added += got;
            if (got < want) {
                return added;
            }
            off = 0;
        }
    }
    return added;
}

/* The reading side of a stream. Payload goes from the kernel straight into pages, and the host is asked
 * where it goes before every single receive: between two receives of one frame an engine may have
 * aborted, been told that its pages are idle, and given them to somebody else.
 *
 * The receive that ends a frame also takes the header of the next one, so a steady stream of frames costs
 * one system call each. Never more than that header is read ahead: its payload needs a new answer. */
#include <assert.h>
#include <errno.h>
#include <sys/socket.h>

#include "sidecar/transport/tcp_lane.h"

/* What the header in sink->header asks for. Positive errno: the stream is broken. */
static int take_header(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_sink *sink = &lane->sink;
    struct kvf_lane_frame frame;
    sink->header_got = 0;
    if (kvf_wire_get_lane_frame(sink->header, &frame) != 0 || frame.seq != sink->next_seq ||
        frame.payload_bytes > KVF_TCP_PAYLOAD_BYTES_MAX) {
        return EPROTO;
    }
    sink->next_seq++;
    if (frame.kind != KVF_LANE_DATA) {
        int rc =
            tcp->host.marker_fn(tcp->host.ctx, lane_idx, lane->epoch, frame.handle, frame.kind);
        return rc < 0 ? EPROTO : 0;
    }
    sink->frame = frame;
    sink->payload_got = 0;
    sink->has_frame = true;
    sink->is_forced_scratch = false;
    return 0;
}

/* Whether the frame is what these pages of this region look like. */
static bool frame_fits(const struct kvf_transport_region *region,
                       const struct kvf_lane_frame *frame, uint32_t page_first)
{
    assert(page_first < region->page_count);
    assert(frame->page_count <= region->page_count - page_first);
    if (frame->plane_first >= region->plane_count ||
        frame->plane_count > region->plane_count - frame->plane_first) {
        return false;
    }
    if (frame->page_count > 1 && frame->plane_count != region->plane_count) {
        return false;
    }
    return kvf_tcp_frame_bytes(region, frame->page_count, frame->plane_first,
                               frame->plane_count) == frame->payload_bytes;
}

/* Asks the host and appends where the rest of the payload goes. 0, or a positive errno. */
static int place(struct kvf_tcp *tcp, uint32_t lane_idx, struct kvf_tcp_iovs *iovs,
                 bool *ret_is_scratch, bool *ret_fault)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_sink *sink = &lane->sink;
    const struct kvf_lane_frame *frame = &sink->frame;
    struct kvf_placement_at at;
    *ret_fault = false;
    if (tcp->host.place_fn(tcp->host.ctx, lane_idx, lane->epoch, frame->handle, frame->position,
                           frame->page_count, &at) < 0) {
        return EPROTO;
    }
    *ret_is_scratch = sink->is_forced_scratch || at.where != KVF_PLACE_PAGES;
    if (*ret_is_scratch) {
        kvf_tcp_iovs_repeat(iovs, tcp->scratch, frame->payload_bytes - sink->payload_got);
        return 0;
    }
    const struct kvf_transport_region *region =
        tcp->host.region_fn(tcp->host.ctx, at.client, at.region);
    if (region == NULL || region->base == NULL) {
        *ret_fault = true;
        return 0;
    }
    if (!frame_fits(region, frame, at.page_first)) {
        return EPROTO;
    }
    kvf_tcp_iovs_add_pages(iovs, region, frame, at.page_first, sink->payload_got);
    return 0;
}

/* These pages cannot be written. The payload still has to be taken off the stream, or co-rooms would
 * stand behind it. */
static void place_fault(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    lane->sink.is_forced_scratch = true;
    tcp->host.place_fault_fn(tcp->host.ctx, lane_idx, lane->epoch, lane->sink.frame.handle);
}

static int64_t receive(int fd, struct kvf_tcp_iovs *iovs)
{
    struct msghdr msg = {.msg_iov = iovs->iovs, .msg_iovlen = iovs->count};
    ssize_t n;
    do {
        n = recvmsg(fd, &msg, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

/* One receive of at most about bytes_max. Bytes taken; 0 when the lane has nothing more now. */
static uint64_t receive_some(struct kvf_tcp *tcp, uint32_t lane_idx, uint64_t bytes_max)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_sink *sink = &lane->sink;
    uint32_t serial = lane->serial;
    bool is_scratch = false;
    uint64_t payload = 0;
    struct kvf_tcp_iovs iovs = {
        .iovs = tcp->iovs,
        .count_max = KVF_TCP_IOVS_MAX - 1u,
        .bytes_max = bytes_max < KVF_TCP_BATCH_BYTES_MAX ? bytes_max : KVF_TCP_BATCH_BYTES_MAX};
    if (sink->has_frame) {
        bool is_fault;
        int err = place(tcp, lane_idx, &iovs, &is_scratch, &is_fault);
        if (err != 0) {
            kvf_tcp_lose(tcp, lane_idx, err);
            return 1;
        }
        if (is_fault) {
            place_fault(tcp, lane_idx);
            return 1;
        }
        payload = iovs.bytes;
    }
    if (!sink->has_frame || payload == sink->frame.payload_bytes - sink->payload_got) {
        iovs.count_max++;
        iovs.bytes_max += KVF_LANE_HEADER_BYTES;
        kvf_tcp_iovs_add(&iovs, sink->header + sink->header_got,
                         KVF_LANE_HEADER_BYTES - sink->header_got);
    }
    int64_t n = receive(lane->fd, &iovs);
    if (n == -EAGAIN) {
        lane->is_readable = false;
        return 0;
    }
    if (n == -EFAULT && sink->has_frame && !is_scratch) {
        place_fault(tcp, lane_idx);
        return 1;
    }
    if (n <= 0) {
        kvf_tcp_lose(tcp, lane_idx, n == 0 ? ECONNRESET : (int)-n);
        return 1;
    }
    /* Less than asked for: the socket is empty, and epoll will say when it is not. */
    lane->is_readable = n == (int64_t)iovs.bytes;
    uint64_t placed = (uint64_t)n < payload ? (uint64_t)n : payload;
    sink->header_got += (uint32_t)((uint64_t)n - placed);
    if (placed > 0) {
        uint32_t handle = sink->frame.handle;
        sink->payload_got += (uint32_t)placed;
        sink->has_frame = sink->payload_got < sink->frame.payload_bytes;
        tcp->host.placed_fn(tcp->host.ctx, lane_idx, lane->epoch, handle, placed, is_scratch);
    }
    if (lane->serial == serial && lane->state == KVF_TCP_UP &&
        sink->header_got == KVF_LANE_HEADER_BYTES) {
        int err = take_header(tcp, lane_idx);
        if (err != 0 && lane->serial == serial) {
            kvf_tcp_lose(tcp, lane_idx, err);
        }
    }
    return (uint64_t)n;
}

uint64_t kvf_tcp_sink_turn(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    uint32_t serial = lane->serial;
    uint64_t moved = 0;
    while (lane->serial == serial && lane->state == KVF_TCP_UP && lane->is_readable &&
           moved < tcp->config.turn_bytes_max) {
        moved += receive_some(tcp, lane_idx, tcp->config.turn_bytes_max - moved);
    }
    return moved;
}

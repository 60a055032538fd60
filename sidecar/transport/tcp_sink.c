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
    const struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    const struct kvf_tcp_sink *sink = &lane->sink;
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

/* ---- the three parts of a round ---------------------------------------------------------------------- */

/* One receive of about bytes_max at most. */
void kvf_tcp_sink_plan(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot, uint64_t bytes_max)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    struct kvf_tcp_sink *sink = &lane->sink;
    struct kvf_tcp_iovs *iovs = &slot->planned;
    *iovs = (struct kvf_tcp_iovs){
        .iovs = slot->iovs, .count_max = KVF_TCP_IOVS_MAX - 1u, .bytes_max = bytes_max};
    slot->is_scratch = false;
    slot->payload = 0;
    if (sink->has_frame) {
        bool is_fault;
        slot->handle = sink->frame.handle;
        slot->err = place(tcp, slot->lane_idx, iovs, &slot->is_scratch, &is_fault);
        if (slot->err != 0 || is_fault) {
            slot->step = slot->err != 0 ? KVF_TCP_STEP_LOSE : KVF_TCP_STEP_FAULT;
            return;
        }
        slot->payload = iovs->bytes;
    }
    if (!sink->has_frame || slot->payload == sink->frame.payload_bytes - sink->payload_got) {
        iovs->count_max++;
        iovs->bytes_max += KVF_LANE_HEADER_BYTES;
        kvf_tcp_iovs_add(iovs, sink->header + sink->header_got,
                         KVF_LANE_HEADER_BYTES - sink->header_got);
    }
    slot->call = (struct kvf_tcp_call){
        .fd = lane->fd, .msg = {.msg_iov = iovs->iovs, .msg_iovlen = iovs->count}};
    slot->step = KVF_TCP_STEP_CALL;
}

void kvf_tcp_sink_book(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    struct kvf_tcp_sink *sink = &lane->sink;
    int64_t n = slot->call.result;
    if (n == -EAGAIN) {
        lane->is_readable = false;
        slot->step = KVF_TCP_STEP_NONE;
        return;
    }
    if (n == -EFAULT && sink->has_frame && !slot->is_scratch) {
        slot->step = KVF_TCP_STEP_FAULT;
        return;
    }
    if (n <= 0) {
        slot->step = KVF_TCP_STEP_LOSE;
        slot->err = n == 0 ? ECONNRESET : (int)-n;
        return;
    }
    /* Less than asked for: the socket is empty, and epoll will say when it is not. */
    lane->is_readable = n == (int64_t)slot->planned.bytes;
    slot->payload = (uint64_t)n < slot->payload ? (uint64_t)n : slot->payload;
    sink->header_got += (uint32_t)((uint64_t)n - slot->payload);
    if (slot->payload > 0) {
        sink->payload_got += (uint32_t)slot->payload;
        sink->has_frame = sink->payload_got < sink->frame.payload_bytes;
    }
    slot->moved += (uint64_t)n;
    slot->step = KVF_TCP_STEP_MOVED;
}

void kvf_tcp_sink_tell(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot)
{
    const struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    switch ((enum kvf_tcp_step)slot->step) {
    case KVF_TCP_STEP_NONE:
    case KVF_TCP_STEP_CALL:
        return;
    case KVF_TCP_STEP_FAULT:
        slot->moved++;
        place_fault(tcp, slot->lane_idx);
        return;
    case KVF_TCP_STEP_LOSE:
        slot->moved++;
        kvf_tcp_lose(tcp, slot->lane_idx, slot->err);
        return;
    case KVF_TCP_STEP_MOVED:
        break;
    }
    if (slot->payload > 0) {
        tcp->host.placed_fn(tcp->host.ctx, slot->lane_idx, lane->epoch, slot->handle,
                            slot->payload, slot->is_scratch);
    }
    if (lane->serial == slot->serial && lane->state == KVF_TCP_UP &&
        lane->sink.header_got == KVF_LANE_HEADER_BYTES) {
        int err = take_header(tcp, slot->lane_idx);
        if (err != 0 && lane->serial == slot->serial) {
            kvf_tcp_lose(tcp, slot->lane_idx, err);
        }
    }
}

/* The writing side of a stream: a ring of posts becomes frames, frames become sends.
 *
 * A call's worth of frames is planned first, with no callback in between; what the kernel took is then
 * booked against the plan; completions are told last. A frame gets its sequence number when its first
 * byte is taken, so planned frames that were not taken never existed and a detach can forget them. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "sidecar/transport/tcp_lane.h"

static struct kvf_tcp_entry *entry_at(const struct kvf_tcp *tcp, struct kvf_tcp_source *source,
                                      uint32_t seq)
{
    return &source->entries[seq & (tcp->config.posts_per_lane_max - 1u)];
}

bool kvf_tcp_source_has_work(const struct kvf_tcp_lane *lane)
{
    return lane->source.has_frame || lane->source.sent != lane->source.tail;
}

bool kvf_tcp_source_can_post(const struct kvf_tcp *tcp, const struct kvf_tcp_lane *lane)
{
    return lane->state == KVF_TCP_UP && !lane->is_sink &&
           lane->source.tail - lane->source.head < tcp->config.posts_per_lane_max;
}

static const struct kvf_transport_region *region_of(const struct kvf_tcp *tcp,
                                                    const struct kvf_post *post)
{
    const struct kvf_transport_region *region =
        tcp->host.region_fn(tcp->host.ctx, post->client, post->region);
    return region != NULL && region->base != NULL ? region : NULL;
}

/* The core says what to post, but geometry is the region's: both must agree. */
static int check_post(const struct kvf_tcp *tcp, const struct kvf_post *post)
{
    if (post->kind == KVF_LANE_END || post->kind == KVF_LANE_DRAIN) {
        return 0;
    }
    const struct kvf_transport_region *region = region_of(tcp, post);
    if (region == NULL) {
        return -EFAULT;
    }
    if (post->kind != KVF_LANE_DATA || post->page_count == 0 ||
        post->page_first >= region->page_count ||
        post->page_count > region->page_count - post->page_first ||
        post->page_count > UINT32_MAX - post->position || region->plane_count == 0 ||
        region->plane_count > KVF_WIRE_PLANES_MAX) {
        return -EINVAL;
    }
    for (uint32_t i = 0; i < region->plane_count; i++) {
        if (region->planes[i].page_bytes > KVF_TCP_PAYLOAD_BYTES_MAX) {
            return -EMSGSIZE;
        }
    }
    return 0;
}

int kvf_tcp_source_post(struct kvf_tcp *tcp, uint32_t lane_idx, const struct kvf_post *post)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    if (lane->state != KVF_TCP_UP || lane->is_sink) {
        return -ENOTCONN;
    }
    if (!kvf_tcp_source_can_post(tcp, lane)) {
        return -EAGAIN;
    }
    int rc = check_post(tcp, post);
    if (rc != 0) {
        return rc;
    }
    struct kvf_tcp_entry *entry = entry_at(tcp, &lane->source, lane->source.tail++);
    entry->post = *post;
    entry->is_dead = false;
    entry->is_cut = false;
    if (lane->is_writable) {
        kvf_tcp_mark(tcp, lane_idx);
    }
    return 0;
}

/* ---- planning ------------------------------------------------------------------------------------- */

/* The frame of `post` that begins at (page, plane), and where the post goes on behind it. */
static void plan_frame(const struct kvf_transport_region *region, const struct kvf_post *post,
                       uint32_t page, uint32_t plane, struct kvf_tcp_plan *ret_plan)
{
    struct kvf_tcp_plan plan = {.frame = {.kind = post->kind, .handle = post->handle}};
    if (post->kind != KVF_LANE_DATA) {
        plan.ends_post = true;
        *ret_plan = plan;
        return;
    }
    uint32_t pages = 1;
    uint32_t planes = 0;
    uint64_t bytes = 0;
    if (plane == 0 && region->page_bytes <= KVF_TCP_FRAME_BYTES_MAX) {
        pages = (uint32_t)(KVF_TCP_FRAME_BYTES_MAX / region->page_bytes);
        if (pages > post->page_count - page) {
            pages = post->page_count - page;
        }
        planes = region->plane_count;
        bytes = pages * region->page_bytes;
    } else {
        do {
            bytes += region->planes[plane + planes].page_bytes;
            planes++;
        } while (plane + planes < region->plane_count &&
                 bytes + region->planes[plane + planes].page_bytes <= KVF_TCP_FRAME_BYTES_MAX);
    }
    plan.frame.position = post->position + page;
    plan.frame.page_count = pages;
    plan.frame.plane_first = (uint16_t)plane;
    plan.frame.plane_count = (uint16_t)planes;
    plan.frame.payload_bytes = (uint32_t)bytes;
    plan.next_page = page;
    plan.next_plane = plane + planes;
    if (plan.next_plane == region->plane_count) {
        plan.next_page = page + pages;
        plan.next_plane = 0;
    }
    plan.ends_post = plan.next_page == post->page_count;
    *ret_plan = plan;
}

/* Appends the rest of a frame. True if all of it fitted. */
static bool add_frame(struct kvf_tcp *tcp, struct kvf_tcp_iovs *iovs,
                      const struct kvf_transport_region *region, const struct kvf_post *post,
                      const struct kvf_lane_frame *frame, unsigned char *header,
                      uint32_t header_sent, uint32_t payload_sent)
{
    uint64_t want = KVF_LANE_HEADER_BYTES - header_sent;
    kvf_wire_put_lane_frame(header, frame);
    if (kvf_tcp_iovs_add(iovs, header + header_sent, want) < want) {
        return false;
    }
    want = frame->payload_bytes - payload_sent;
    if (want == 0) {
        return true;
    }
    if (region == NULL) {
        return kvf_tcp_iovs_repeat(iovs, tcp->filler, want) == want;
    }
    uint32_t page_first = post->page_first + (frame->position - post->position);
    return kvf_tcp_iovs_add_pages(iovs, region, frame, page_first, payload_sent) == want;
}

/* Plans the frames of one call. plans[0] is the started frame if there is one. Returns the number of frames; 0 with
 * *ret_fault set: the region of the first post is gone. */
static uint32_t plan_frames(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot, uint32_t frames_max,
                            bool *ret_fault)
{
    struct kvf_tcp_source *source = &tcp->lanes[slot->lane_idx].source;
    struct kvf_tcp_iovs *iovs = &slot->planned;
    uint32_t count = 0;
    bool fits = true;
    *ret_fault = false;
    uint32_t entry_seq = source->sent;
    uint32_t page = source->next_page;
    uint32_t plane = source->next_plane;
    if (source->has_frame) {
        const struct kvf_post *post = &entry_at(tcp, source, entry_seq)->post;
        const struct kvf_transport_region *region = NULL;
        if (!source->is_filler && source->frame.payload_bytes > 0) {
            region = region_of(tcp, post);
            *ret_fault = region == NULL;
            if (*ret_fault) {
                return 0;
            }
        }
        fits = add_frame(tcp, iovs, region, post, &source->frame, slot->headers,
                         source->header_sent, source->payload_sent);
        count = 1;
        if (!source->is_filler && source->ends_post) {
            entry_seq++;
            page = 0;
            plane = 0;
        }
    }
    while (fits && count < frames_max && entry_seq != source->tail) {
        const struct kvf_tcp_entry *entry = entry_at(tcp, source, entry_seq);
        assert(!entry->is_dead);
        const struct kvf_transport_region *region = NULL;
        if (entry->post.kind == KVF_LANE_DATA) {
            region = region_of(tcp, &entry->post);
            if (region == NULL) {
                *ret_fault = count == 0;
                break;
            }
        }
        struct kvf_tcp_plan *plan = &slot->plans[count];
        plan_frame(region, &entry->post, page, plane, plan);
        if (entry->is_cut) {
            plan->frame.kind = KVF_LANE_DRAIN;
        }
        plan->frame.seq = source->next_seq + count - (source->has_frame ? 1u : 0u);
        fits = add_frame(tcp, iovs, region, &entry->post, &plan->frame,
                         slot->headers + (size_t)count * KVF_LANE_HEADER_BYTES, 0, 0);
        count++;
        page = plan->ends_post ? 0 : plan->next_page;
        plane = plan->ends_post ? 0 : plan->next_plane;
        entry_seq += plan->ends_post ? 1u : 0u;
    }
    return count;
}

/* ---- booking -------------------------------------------------------------------------------------- */

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Books `bytes` that the kernel took against the plan. No callbacks. */
static void book_bytes(struct kvf_tcp_source *source, const struct kvf_tcp_plan *plans,
                       uint64_t bytes)
{
    uint32_t count = 0;
    while (bytes > 0) {
        if (!source->has_frame) {
            const struct kvf_tcp_plan *plan = &plans[count];
            assert(source->sent != source->tail);
            assert(plan->frame.seq == source->next_seq);
            source->frame = plan->frame;
            source->header_sent = 0;
            source->payload_sent = 0;
            source->has_frame = true;
            source->is_filler = false;
            source->ends_post = plan->ends_post;
            source->next_page = plan->next_page;
            source->next_plane = plan->next_plane;
            source->next_seq++;
        }
        uint32_t header = (uint32_t)lesser(bytes, KVF_LANE_HEADER_BYTES - source->header_sent);
        source->header_sent += header;
        bytes -= header;
        uint32_t payload =
            (uint32_t)lesser(bytes, source->frame.payload_bytes - source->payload_sent);
        source->payload_sent += payload;
        bytes -= payload;
        if (source->header_sent < KVF_LANE_HEADER_BYTES ||
            source->payload_sent < source->frame.payload_bytes) {
            break;
        }
        source->has_frame = false;
        if (!source->is_filler && source->ends_post) {
            source->sent++;
            source->next_page = 0;
            source->next_plane = 0;
        }
        count++;
    }
    assert(bytes == 0);
}

/* Tells the host what was sent. Each entry leaves the ring before its callback, so that a fence from
 * within the callback completes the others and not this one again. */
static void complete_sent(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_source *source = &lane->source;
    uint32_t serial = lane->serial;
    while (lane->serial == serial && source->head != source->sent) {
        struct kvf_tcp_entry *entry = entry_at(tcp, source, source->head++);
        struct kvf_post post = entry->post;
        tcp->host.completed_fn(tcp->host.ctx, lane_idx, lane->epoch, &post,
                               entry->is_cut ? -ECANCELED : 0);
    }
}

void kvf_tcp_source_complete_all(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_source *source = &lane->source;
    while (source->head != source->tail) {
        bool was_sent = source->head != source->sent;
        struct kvf_tcp_entry *entry = entry_at(tcp, source, source->head++);
        if (!was_sent) {
            source->sent = source->head;
        }
        if (!entry->is_dead) {
            struct kvf_post post = entry->post;
            tcp->host.completed_fn(tcp->host.ctx, lane_idx, lane->epoch, &post,
                                   !was_sent       ? -ECONNABORTED
                                   : entry->is_cut ? -ECANCELED
                                                   : 0);
        }
    }
}

/* Ends one unsent entry where it stands; the rest of its started frame will be filler. False if the lane
 * is another one now. */
static bool end_entry(struct kvf_tcp *tcp, uint32_t lane_idx, uint32_t seq, int status)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_source *source = &lane->source;
    struct kvf_tcp_entry *entry = entry_at(tcp, source, seq);
    uint32_t serial = lane->serial;
    if (seq == source->sent) {
        source->is_filler = source->has_frame;
        source->next_page = 0;
        source->next_plane = 0;
    }
    entry->is_dead = true;
    struct kvf_post post = entry->post;
    tcp->host.completed_fn(tcp->host.ctx, lane_idx, lane->epoch, &post, status);
    return lane->serial == serial;
}

/* Dead entries leave the ring, so that it has room for others. */
static void sweep(const struct kvf_tcp *tcp, struct kvf_tcp_source *source)
{
    uint32_t to = source->sent;
    for (uint32_t from = source->sent; from != source->tail; from++) {
        const struct kvf_tcp_entry *entry = entry_at(tcp, source, from);
        if (!entry->is_dead) {
            *entry_at(tcp, source, to++) = *entry;
        }
    }
    source->tail = to;
}

/* Data is let go of where it stands. Markers name no pages, and the sink waits for exactly one: an END
 * whose data is taken back leaves as DRAIN, for a lane without its marker would have to be fenced with
 * all its co-rooms. One whose header is half out was behind all its data already, and stays END. */
void kvf_tcp_source_detach(struct kvf_tcp *tcp, uint32_t lane_idx, uint64_t cookie)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_source *source = &lane->source;
    source->detach_depth++;
    source->edits++;
    for (uint32_t seq = source->sent; seq != source->tail; seq++) {
        struct kvf_tcp_entry *entry = entry_at(tcp, source, seq);
        if (entry->is_dead || entry->post.cookie != cookie) {
            continue;
        }
        if (entry->post.kind == KVF_LANE_DATA) {
            if (!end_entry(tcp, lane_idx, seq, -ECANCELED)) {
                return; /* what was counted here went with the old stream */
            }
            continue;
        }
        bool is_started = seq == source->sent && source->has_frame && !source->is_filler;
        if (entry->post.kind == KVF_LANE_END && !is_started) {
            entry->is_cut = true;
        }
    }
    source->detach_depth--;
    if (source->detach_depth == 0) {
        sweep(tcp, source);
    }
    /* The rest of the frame needs no region and no further post to go out. */
    if (lane->is_writable && kvf_tcp_source_has_work(lane)) {
        kvf_tcp_mark(tcp, lane_idx);
    }
}

/* The first unsent post's memory cannot be read. Its grant must not end well on this lane: what is queued
 * behind it for the same grant, a marker above all, is taken back too. */
static void fault(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_post post = entry_at(tcp, &lane->source, lane->source.sent)->post;
    uint32_t serial = lane->serial;
    assert(!lane->source.has_frame || !lane->source.is_filler);
    if (end_entry(tcp, lane_idx, lane->source.sent, -EFAULT)) {
        kvf_tcp_source_detach(tcp, lane_idx, post.cookie);
    }
    tcp->host.read_fault_fn(tcp->host.ctx, post.client);
    if (lane->serial == serial && kvf_tcp_source_has_work(lane)) {
        kvf_tcp_mark(tcp, lane_idx);
    }
}

/* ---- the three parts of a round ---------------------------------------------------------------------- */

/* A sink says nothing after its LANE_HELLO: what can be read is its end, or a fault of its own. */
bool kvf_tcp_source_hears_nothing(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    unsigned char byte;
    ssize_t n;
    do {
        n = recv(lane->fd, &byte, 1, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        lane->is_readable = false;
        return true;
    }
    kvf_tcp_lose(tcp, lane_idx, n > 0 ? EPROTO : n == 0 ? ECONNRESET : errno);
    return false;
}

void kvf_tcp_source_plan(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot, uint64_t bytes_max)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    slot->planned = (struct kvf_tcp_iovs){
        .iovs = slot->iovs, .count_max = KVF_TCP_IOVS_MAX, .bytes_max = bytes_max};
    slot->edits = lane->source.edits;
    bool is_fault;
    slot->frames = plan_frames(tcp, slot, slot->is_alone ? 1u : KVF_TCP_IOVS_MAX, &is_fault);
    slot->is_alone = false;
    if (is_fault) {
        slot->step = KVF_TCP_STEP_FAULT;
        return;
    }
    assert(slot->frames > 0);
    slot->call = (struct kvf_tcp_call){
        .fd = lane->fd,
        .is_send = true,
        .msg = {.msg_iov = slot->planned.iovs, .msg_iovlen = slot->planned.count}};
    slot->step = KVF_TCP_STEP_CALL;
}

void kvf_tcp_source_book(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    int64_t n = slot->call.result;
    if (n == -EFAULT && slot->frames > 1) {
        /* Some page of the call faults, not necessarily the first post's. */
        slot->is_alone = true;
        slot->step = KVF_TCP_STEP_NONE;
        return;
    }
    if (n == -EFAULT) {
        slot->step = KVF_TCP_STEP_FAULT;
        return;
    }
    if (n < 0 && n != -EAGAIN) {
        slot->step = KVF_TCP_STEP_LOSE;
        slot->err = (int)-n;
        return;
    }
    /* Fewer than offered: the buffer is full, or memory further on faults, which the next call says. */
    lane->is_writable = n == (int64_t)slot->planned.bytes;
    slot->step = KVF_TCP_STEP_NONE;
    if (n > 0) {
        book_bytes(&lane->source, slot->plans, (uint64_t)n);
        slot->moved += (uint64_t)n;
        slot->step = KVF_TCP_STEP_MOVED;
    }
}

void kvf_tcp_source_tell(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot)
{
    switch ((enum kvf_tcp_step)slot->step) {
    case KVF_TCP_STEP_NONE:
    case KVF_TCP_STEP_CALL:
        return;
    case KVF_TCP_STEP_MOVED:
        complete_sent(tcp, slot->lane_idx);
        return;
    case KVF_TCP_STEP_FAULT:
        slot->moved++;
        if (slot->edits == tcp->lanes[slot->lane_idx].source.edits) {
            fault(tcp, slot->lane_idx);
        } else {
            /* Another lane's callback took posts back, perhaps this one: what stands first now is not
             * to blame before it has been tried itself. */
            slot->is_alone = true;
        }
        return;
    case KVF_TCP_STEP_LOSE:
        slot->moved++;
        kvf_tcp_lose(tcp, slot->lane_idx, slot->err);
        return;
    }
}

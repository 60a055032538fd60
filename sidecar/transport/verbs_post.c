/* From posts to work requests, and from reaped work requests to completed posts.
 *
 * Posts of a lane wait in one queue. A DATA post becomes RDMA writes, as few as its geometry allows: what lies
 * together on both sides is one write, what lies together at the sink alone is one write of several pieces. A post
 * may need more work requests than the queue pair has room for, so it is expanded bit by bit, with a cursor
 * that counts cells (a plane of a page, or the pages of a plane) and bytes and survives any change around it.
 *
 * The last work request of each list is signalled, so every one that was posted is some time covered by a
 * completion; one that fails has its own, whether it was signalled or not (verbs_poll.c counts). */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "sidecar/transport/verbs_lane.h"

/* ---- the queue ------------------------------------------------------------------------------------------ */

static struct kvf_verbs_entry *entry_at(const struct kvf_verbs *v,
                                        const struct kvf_verbs_lane *lane, uint32_t seq)
{
    return &lane->entries[seq & (v->config.posts_per_lane_max - 1u)];
}

bool kvf_verbs_can_post(const struct kvf_verbs *v, const struct kvf_verbs_lane *lane)
{
    return lane->state == KVF_VERBS_UP && !lane->is_sink &&
           lane->tail - lane->head < v->config.posts_per_lane_max;
}

static bool has_pages(uint64_t page_count, uint64_t first, uint64_t count)
{
    return first < page_count && count <= page_count - first;
}

static const struct kvf_transport_region *region_of(const struct kvf_verbs *v,
                                                    const struct kvf_verbs_lane *lane,
                                                    const struct kvf_post *post)
{
    const struct kvf_transport_region *region =
        v->host.region_fn(v->host.ctx, post->client, post->region);
    return region != NULL && region->memory != NULL &&
                   region->memory->mrs[lane->rail->idx] != NULL
               ? region
               : NULL;
}

/* The core says what to post, but geometry is the region's: both must agree. */
static int check_post(const struct kvf_verbs *v, const struct kvf_verbs_lane *lane,
                      const struct kvf_post *post)
{
    if (post->kind == KVF_LANE_END || post->kind == KVF_LANE_DRAIN) {
        return 0;
    }
    const struct kvf_transport_region *region = region_of(v, lane, post);
    if (region == NULL) {
        return -EFAULT;
    }
    return post->kind == KVF_LANE_DATA && post->page_count > 0 && region->plane_count > 0 &&
                   has_pages(region->page_count, post->page_first, post->page_count)
               ? 0
               : -EINVAL;
}

int kvf_verbs_post(struct kvf_verbs *v, struct kvf_verbs_lane *lane,
                   const struct kvf_post *post)
{
    if (lane->state != KVF_VERBS_UP || lane->is_sink) {
        return -ENOTCONN;
    }
    if (!kvf_verbs_can_post(v, lane)) {
        return -EAGAIN;
    }
    int rc = check_post(v, lane, post);
    if (rc != 0) {
        return rc;
    }
    *entry_at(v, lane, lane->tail++) = (struct kvf_verbs_entry){.post = *post};
    kvf_verbs_mark(v, lane);
    return 0;
}

/* ---- geometry -------------------------------------------------------------------------------------------- */

/* Both sides of one DATA post, checked. */
struct sides {
    const struct kvf_transport_region *from;
    struct kvf_remote_view to;
    uint64_t from_base;
    uint64_t from_page; /* of position 0 of the post */
    uint64_t to_page;
    uint32_t page_count;
    uint32_t local_key;
    uint32_t remote_key;
};

/* A stretch that lies together on both sides. */
struct cell {
    uint64_t from;
    uint64_t to;
    uint64_t bytes;
};

/* The peer's numbers: an address that wraps would name other memory than the one it was checked for. */
static bool fits_address_space(uint64_t base, const struct kvf_core_plane *plane,
                               uint64_t page_end)
{
    uint64_t at;
    return !__builtin_mul_overflow(page_end - 1u, plane->stride, &at) &&
           !__builtin_add_overflow(at, plane->off, &at) &&
           !__builtin_add_overflow(at, base, &at) &&
           !__builtin_add_overflow(at, (uint64_t)plane->page_bytes, &at);
}

static bool planes_touch(const struct kvf_core_plane *planes, uint32_t plane_count)
{
    return plane_count > 1 && planes[1].off == planes[0].off + planes[0].page_bytes;
}

static int look_up_sides(const struct kvf_verbs *v, const struct kvf_verbs_lane *lane,
                         const struct kvf_post *post, struct sides *ret_sides)
{
    struct sides s = {.from = region_of(v, lane, post),
                      .from_page = post->page_first,
                      .to_page = post->remote_page_first,
                      .page_count = post->page_count};
    if (s.from == NULL) {
        return -EFAULT;
    }
    if (!v->host.remote_fn(v->host.ctx, lane->idx, post->remote_region, &s.to) ||
        lane->job.peer.rail >= s.to.key_count || s.to.plane_count != s.from->plane_count ||
        !has_pages(s.to.page_count, s.to_page, s.page_count) ||
        !has_pages(s.from->page_count, s.from_page, s.page_count)) {
        return -EPROTO;
    }
    for (uint32_t i = 0; i < s.to.plane_count; i++) {
        if (s.to.planes[i].page_bytes == 0 ||
            s.to.planes[i].page_bytes != s.from->planes[i].page_bytes ||
            !fits_address_space(s.to.base, &s.to.planes[i], s.to_page + s.page_count)) {
            return -EPROTO;
        }
    }
    s.from_base = s.from->memory->base;
    s.local_key = s.from->memory->local_keys[lane->rail->idx];
    s.remote_key = s.to.keys[lane->job.peer.rail];
    *ret_sides = s;
    return 0;
}

static bool is_dense(const struct kvf_core_plane *plane)
{
    return plane->stride == plane->page_bytes;
}

/* The cell at the cursor, from where the cursor stands in it. False: there is none left. The cursor counts planes,
 * pages and bytes of a page, so that it means the same whatever else the peer says of its region meanwhile. */
static bool cell_at(const struct sides *s, const struct kvf_verbs_entry *entry,
                    struct cell *ret_cell)
{
    uint32_t plane = entry->is_page_major ? entry->inner : entry->outer;
    uint32_t page = entry->is_page_major ? entry->outer : entry->inner;
    if (plane >= s->from->plane_count || page >= s->page_count) {
        return false;
    }
    const struct kvf_core_plane *from = &s->from->planes[plane];
    const struct kvf_core_plane *to = &s->to.planes[plane];
    uint64_t pages =
        !entry->is_page_major && is_dense(from) && is_dense(to) ? s->page_count - page : 1u;
    ret_cell->from =
        s->from_base + from->off + (s->from_page + page) * from->stride + entry->cell_off;
    ret_cell->to = s->to.base + to->off + (s->to_page + page) * to->stride + entry->cell_off;
    ret_cell->bytes = pages * from->page_bytes - entry->cell_off;
    return true;
}

static void move_cursor(const struct sides *s, struct kvf_verbs_entry *entry, uint64_t bytes)
{
    bool is_page_major = entry->is_page_major;
    uint64_t page_bytes =
        s->from->planes[is_page_major ? entry->inner : entry->outer].page_bytes;
    uint64_t off = entry->cell_off + bytes;
    entry->inner += (uint32_t)(off / page_bytes);
    entry->cell_off = off % page_bytes;
    if (entry->inner == (is_page_major ? s->from->plane_count : s->page_count)) {
        entry->inner = 0;
        entry->outer++;
    }
}

/* ---- lists ------------------------------------------------------------------------------------------------ */

/* One write from the cursor on. Bytes in it. */
static uint64_t fill_write(const struct kvf_verbs_lane *lane, const struct sides *s,
                           struct kvf_verbs_entry *entry, struct ibv_send_wr *wr,
                           struct ibv_sge *sges)
{
    uint64_t bytes_max = lane->rail->write_bytes_max;
    uint64_t bytes = 0;
    uint64_t to = 0;
    uint32_t count = 0;
    struct cell cell;
    while (bytes < bytes_max && cell_at(s, entry, &cell)) {
        if (count == 0) {
            to = cell.to;
        } else if (cell.to != to + bytes) {
            break;
        }
        struct ibv_sge *last = count > 0 ? &sges[count - 1u] : NULL;
        uint64_t take = cell.bytes < bytes_max - bytes ? cell.bytes : bytes_max - bytes;
        if (last != NULL && last->addr + last->length == cell.from) {
            last->length += (uint32_t)take;
        } else if (count < lane->rail->sges_max) {
            sges[count++] = (struct ibv_sge){
                .addr = cell.from, .length = (uint32_t)take, .lkey = s->local_key};
        } else {
            break;
        }
        bytes += take;
        move_cursor(s, entry, take);
    }
    *wr = (struct ibv_send_wr){.sg_list = sges,
                               .num_sge = (int)count,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .wr.rdma = {.remote_addr = to, .rkey = s->remote_key}};
    return bytes;
}

static void fill_marker(const struct kvf_verbs_entry *entry, struct ibv_send_wr *wr)
{
    bool is_end = entry->post.kind == KVF_LANE_END && !entry->is_cut;
    *wr = (struct ibv_send_wr){.opcode =
                                   is_end ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM,
                               .imm_data = htonl(entry->post.handle)};
}

static void hand(struct kvf_verbs_lane *lane, struct kvf_verbs_entry *entry, uint32_t wr_end)
{
    entry->wr_end = wr_end;
    lane->handed++;
}

/* What became of an attempt to put an entry into the list. */
enum filled { FILLED_WHOLE, FILLED_PART, FILLED_BAD };

/* DATA leaves one slot of the queue pair alone: the marker behind it never waits for room. */
static enum filled fill_data(struct kvf_verbs *v, const struct kvf_verbs_lane *lane,
                             struct kvf_verbs_entry *entry, uint32_t *count, uint32_t room,
                             uint64_t *bytes)
{
    struct sides s;
    struct cell cell;
    int rc = look_up_sides(v, lane, &entry->post, &s);
    if (rc != 0) {
        entry->status = rc;
        return FILLED_BAD;
    }
    if (!entry->is_begun) {
        /* Any order is right; this one finds what lies together. */
        entry->is_page_major = planes_touch(s.from->planes, s.from->plane_count) &&
                               planes_touch(s.to.planes, s.to.plane_count);
    }
    while (cell_at(&s, entry, &cell)) {
        if (*count >= KVF_VERBS_LIST_MAX || *count + 1u >= room) {
            return FILLED_PART;
        }
        *bytes += fill_write(lane, &s, entry, &v->wrs[*count], v->sges[*count]);
        entry->is_begun = true;
        (*count)++;
    }
    return FILLED_WHOLE;
}

/* Fills v->wrs from the queue. `ret_err` is positive once an entry's geometry is refused: what is before it is
 * still posted. */
static uint32_t fill_list(struct kvf_verbs *v, struct kvf_verbs_lane *lane, uint64_t *bytes,
                          int *ret_err)
{
    uint32_t room = lane->rail->send_depth - kvf_verbs_sends_out(lane);
    uint32_t count = 0;
    while (lane->handed != lane->tail && count < KVF_VERBS_LIST_MAX && count < room) {
        struct kvf_verbs_entry *entry = entry_at(v, lane, lane->handed);
        if (entry->post.kind != KVF_LANE_DATA) {
            fill_marker(entry, &v->wrs[count++]);
            entry->is_begun = true;
        } else {
            enum filled filled = fill_data(v, lane, entry, &count, room, bytes);
            if (filled == FILLED_PART) {
                break;
            }
            if (filled == FILLED_BAD) {
                *ret_err = -entry->status;
                hand(lane, entry, lane->wr_posted + count);
                break;
            }
        }
        hand(lane, entry, lane->wr_posted + count);
    }
    return count;
}

static void link_list(struct kvf_verbs *v, const struct kvf_verbs_lane *lane, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bool is_last = i + 1u == count;
        v->wrs[i].wr_id = kvf_verbs_id(lane, lane->wr_posted + i);
        v->wrs[i].next = is_last ? NULL : &v->wrs[i + 1u];
        v->wrs[i].send_flags = is_last ? IBV_SEND_SIGNALED : 0;
    }
}

/* 0, or a positive errno with what stands before the refused one counted as posted: the device has it. */
static int post_list(struct kvf_verbs *v, struct kvf_verbs_lane *lane, uint32_t count)
{
    struct ibv_send_wr *bad = NULL;
    link_list(v, lane, count);
    int rc = ibv_post_send(lane->job.qp, v->wrs, &bad);
    uint32_t posted = count;
    if (rc != 0) {
        posted = 0;
        while (posted < count && &v->wrs[posted] != bad) {
            posted++;
        }
    }
    if (posted > 0 && lane->ages == NULL) {
        kvf_verbs_age_add(v, &v->posted, lane);
    }
    lane->wr_posted += posted;
    return rc < 0 ? -rc : rc;
}

bool kvf_verbs_has_posts(const struct kvf_verbs *v, const struct kvf_verbs_lane *lane)
{
    if (lane->state != KVF_VERBS_UP || lane->handed == lane->tail) {
        return false;
    }
    bool is_data = entry_at(v, lane, lane->handed)->post.kind == KVF_LANE_DATA;
    return lane->rail->send_depth - kvf_verbs_sends_out(lane) >= (is_data ? 2u : 1u);
}

uint64_t kvf_verbs_hand_over(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    uint64_t bytes = 0;
    for (uint32_t lists = 0; lists < KVF_VERBS_LISTS_PER_TURN; lists++) {
        if (!kvf_verbs_has_posts(v, lane) || bytes >= v->config.turn_bytes_max) {
            break;
        }
        int err = 0;
        uint32_t count = fill_list(v, lane, &bytes, &err);
        int rc = count > 0 ? post_list(v, lane, count) : 0;
        if (rc != 0 || err != 0) {
            kvf_verbs_lose(v, lane, rc != 0 ? rc : err);
        }
    }
    return bytes;
}

/* ---- completions ------------------------------------------------------------------------------------------- */

/* The post in which a work request failed gets the error. What is behind it never got to the device's end, or
 * was thrown out with it. */
static int status_of(struct kvf_verbs_lane *lane, const struct kvf_verbs_entry *entry)
{
    if (lane->has_failed && (int32_t)(entry->wr_end - lane->wr_failed) > 0) {
        int status = lane->fail_status;
        lane->fail_status = -ECONNABORTED;
        return status;
    }
    if (entry->status != 0) {
        return entry->status;
    }
    return entry->is_cut ? -ECANCELED : 0;
}

/* The entry leaves the ring before the callback, which may post, detach and fence. The lane stays this
 * incarnation: its queue pair's destroy is told by a later poll. */
void kvf_verbs_tell_completed(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    while (lane->head != lane->handed) {
        struct kvf_verbs_entry *entry = entry_at(v, lane, lane->head);
        if ((int32_t)(lane->wr_reaped - entry->wr_end) < 0) {
            break;
        }
        int status = status_of(lane, entry);
        struct kvf_post post = entry->post;
        lane->head++;
        v->host.completed_fn(v->host.ctx, lane->idx, lane->epoch, &post, status);
    }
}

void kvf_verbs_complete_all(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    kvf_verbs_tell_completed(v, lane);
    while (lane->head != lane->tail) {
        struct kvf_verbs_entry *entry = entry_at(v, lane, lane->head++);
        int status = -ECONNABORTED;
        if (lane->has_failed) {
            status = lane->fail_status;
            lane->fail_status = -ECONNABORTED;
        }
        if (!entry->is_dead) {
            struct kvf_post post = entry->post;
            v->host.completed_fn(v->host.ctx, lane->idx, lane->epoch, &post, status);
        }
    }
    lane->handed = lane->head;
}

/* ---- detach ------------------------------------------------------------------------------------------------ */

static void sweep(const struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    uint32_t to = lane->handed;
    for (uint32_t from = lane->handed; from != lane->tail; from++) {
        const struct kvf_verbs_entry *entry = entry_at(v, lane, from);
        if (!entry->is_dead) {
            *entry_at(v, lane, to++) = *entry;
        }
    }
    lane->tail = to;
}

void kvf_verbs_detach(struct kvf_verbs *v, struct kvf_verbs_lane *lane, uint64_t cookie)
{
    if (lane->state == KVF_VERBS_FREE ||
        (lane->state == KVF_VERBS_FENCING && lane->phase == KVF_VERBS_ENDING)) {
        return; /* everything is being completed just now */
    }
    lane->detach_depth++;
    for (uint32_t seq = lane->handed; seq != lane->tail; seq++) {
        struct kvf_verbs_entry *entry = entry_at(v, lane, seq);
        if (entry->is_dead || entry->is_begun || entry->post.cookie != cookie) {
            continue;
        }
        if (entry->post.kind == KVF_LANE_DATA) {
            entry->is_dead = true;
            struct kvf_post post = entry->post;
            v->host.completed_fn(v->host.ctx, lane->idx, lane->epoch, &post, -ECANCELED);
        } else if (entry->post.kind == KVF_LANE_END) {
            entry->is_cut = true;
        }
    }
    lane->detach_depth--;
    if (lane->detach_depth == 0) {
        sweep(v, lane);
    }
}

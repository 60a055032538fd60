/* Pieces of a source room, and what is posted of them: whole pages, contiguous here and there, within
 * the windows of grant and lane, each post a lease until its one completion. */
#include "sidecar/core/internal.h"

#include <errno.h>

/* ---- pieces ---------------------------------------------------------------------------------------- */

static bool overlaps(const struct kvf_core *core, const struct kvf_room_rec *r, uint32_t start,
                     uint32_t count)
{
    if (start >= r->piece_end) {
        return false; /* in order, the usual case */
    }
    for (uint32_t link = r->piece_head; link != 0; link = core->pieces[link - 1].next) {
        const struct kvf_piece *p = &core->pieces[link - 1];
        if (start < p->start + p->count && p->start < start + count) {
            return true;
        }
    }
    return false;
}

static uint32_t piece_alloc(struct kvf_core *core)
{
    if (core->piece_free != 0) {
        uint32_t idx = core->piece_free - 1;
        core->piece_free = core->pieces[idx].next;
        return idx;
    }
    return core->piece_fresh < core->limits.pieces_max ? core->piece_fresh++ : KVF_NONE;
}

int kvf_source_add_piece(struct kvf_core *core, uint64_t now_ns, uint32_t room,
                         const struct kvf_core_submit *submit, uint32_t pages, uint32_t block)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->is_last_in) {
        return -KVF_E_PIECES_CLOSED;
    }
    if (submit->start > KVF_REGION_PAGES_MAX || pages > KVF_REGION_PAGES_MAX - submit->start ||
        (r->page_count != 0 && submit->start + pages > r->page_count)) {
        return -KVF_E_PIECE_RANGE;
    }
    if (overlaps(core, r, submit->start, pages)) {
        return -KVF_E_PIECE_OVERLAP;
    }
    uint32_t idx = piece_alloc(core);
    if (idx == KVF_NONE) {
        return -KVF_E_RESOURCES;
    }
    const struct kvf_run *runs = &core->runs.run[block];
    int err = kvf_own_source(core, kvf_room_client(core, room), runs, submit->run_count);
    if (err != 0) {
        core->pieces[idx].next = core->piece_free;
        core->piece_free = idx + 1;
        return err;
    }
    core->pieces[idx] = (struct kvf_piece){.start = submit->start,
                                           .count = pages,
                                           .run_block = block,
                                           .run_count = submit->run_count};
    if (r->piece_tail != 0) {
        core->pieces[r->piece_tail - 1].next = idx + 1;
    } else {
        r->piece_head = idx + 1;
    }
    r->piece_tail = idx + 1;
    r->piece_pages += pages;
    if (submit->start + pages > r->piece_end) {
        r->piece_end = submit->start + pages;
    }
    r->is_last_in = submit->is_last;
    kvf_room_publish(core, room);
    kvf_source_check_coverage(core, now_ns, room);
    for (uint32_t link = r->grants; link != 0 && r->phase == KVF_PHASE_OPEN;
         link = core->sources[link - 1].room_next) {
        struct kvf_source_grant *s = &core->sources[link - 1];
        if (s->piece == 0) {
            s->piece = idx + 1; /* it had posted everything before */
            s->piece_pages = 0;
        }
        kvf_lane_push_ready(core, link - 1);
    }
    return 0;
}

void kvf_source_room_free_pieces(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    uint32_t client = kvf_room_client(core, room);
    uint32_t next;
    for (uint32_t link = r->piece_head; link != 0; link = next) {
        struct kvf_piece *p = &core->pieces[link - 1];
        next = p->next;
        kvf_disown_source(core, client, &core->runs.run[p->run_block], p->run_count);
        kvf_core_runs_free(core, p->run_block);
        p->next = core->piece_free;
        core->piece_free = link;
    }
    r->piece_head = 0;
    r->piece_tail = 0;
}

/* The pieces cover the grant's list exactly once, or the room ends: a hole would serve a former
 * tenant's bytes. */
void kvf_source_check_coverage(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->page_count == 0 || r->phase != KVF_PHASE_OPEN) {
        return;
    }
    if (r->piece_end > r->page_count) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_PIECE_RANGE, 0);
    } else if (r->is_last_in && r->piece_pages != r->page_count) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_PIECE_HOLE, 0);
    } else {
        r->is_coverage_ok = r->is_last_in;
    }
}

/* ---- posting --------------------------------------------------------------------------------------- */

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* What to post next for this grant: contiguous here and there, whole pages. false: nothing now.
 * A geometry that differs at a position ends the room (ret_geometry). */
static bool next_chunk(struct kvf_core *core, const struct kvf_source_grant *s,
                       struct kvf_post *post, bool *ret_geometry)
{
    if (s->piece == 0) {
        return false;
    }
    const struct kvf_piece *p = &core->pieces[s->piece - 1];
    uint32_t client = kvf_room_client(core, s->room);
    uint32_t position = p->start + s->piece_pages;
    const struct kvf_run *local =
        kvf_runs_find(&core->runs.run[p->run_block], p->run_count, s->piece_pages);
    const struct kvf_run *remote =
        kvf_runs_find(&core->runs.run[s->run_block], s->total_runs, position);
    const struct kvf_region *reg = kvf_region_of(core, client, local->region);
    if (reg->geometry != core->peers[s->peer].remote[remote->region].geometry) {
        *ret_geometry = true;
        return false;
    }
    uint32_t pages = min_u32(local->position + local->count - s->piece_pages,
                             remote->position + remote->count - position);
    uint64_t fit = core->config.post_bytes_max / reg->page_bytes;
    pages = min_u32(pages, fit == 0 ? 1 : fit > pages ? pages : (uint32_t)fit);
    post->kind = KVF_LANE_DATA;
    post->position = position;
    post->page_count = pages;
    post->payload_bytes = pages * reg->page_bytes;
    post->client = client;
    post->region = local->region;
    post->page_first = local->first + (s->piece_pages - local->position);
    post->remote_region = remote->region;
    post->remote_page_first = remote->first + (position - remote->position);
    return true;
}

static void advance(struct kvf_core *core, struct kvf_source_grant *s, uint32_t pages)
{
    const struct kvf_piece *p = &core->pieces[s->piece - 1];
    s->piece_pages += pages;
    s->posted_pages += pages;
    if (s->piece_pages == p->count) {
        s->piece = p->next;
        s->piece_pages = 0;
    }
}

/* Each lane has its own: it is what the bytes of other rooms on that lane wait behind. */
static bool is_window_full(const struct kvf_core *core, const struct kvf_source_grant *s,
                           uint32_t lane_idx, uint64_t bytes)
{
    uint64_t on_lane = s->lane_posted_bytes[lane_idx];
    return on_lane > 0 && on_lane + bytes > core->config.room_window_bytes;
}

enum kvf_next kvf_source_next_data(struct kvf_core *core, uint64_t now_ns, uint32_t source,
                                   uint32_t lane_idx, uint64_t lane_left_bytes,
                                   bool is_lane_idle, struct kvf_post *post)
{
    struct kvf_source_grant *s = &core->sources[source];
    bool is_other_geometry = false;
    if (s->is_closing || s->room == KVF_NONE) {
        return KVF_NEXT_NOTHING;
    }
    if (!next_chunk(core, s, post, &is_other_geometry)) {
        if (is_other_geometry) {
            kvf_room_close(core, now_ns, s->room, KVF_OUTCOME_FAILED, KVF_E_GEOMETRY, 0);
        }
        return KVF_NEXT_NOTHING;
    }
    if (!is_lane_idle && post->payload_bytes > lane_left_bytes) {
        return KVF_NEXT_LANE_FULL;
    }
    if (is_window_full(core, s, lane_idx, post->payload_bytes)) {
        return KVF_NEXT_NOTHING; /* its own window; a completion brings it back */
    }
    post->cookie = (uint64_t)s->incarnation << 32 | source;
    post->handle = s->handle;
    struct kvf_room_rec *r = &core->rooms[s->room];
    advance(core, s, post->page_count);
    s->leases++;
    s->posted_bytes += post->payload_bytes;
    s->lane_posted_bytes[lane_idx] += post->payload_bytes;
    r->leases++;
    r->has_posted = true;
    if (!r->is_started) {
        r->is_started = true;
        kvf_room_publish(core, s->room);
    }
    kvf_gauge_add(core, KVF_GAUGE_POSTED_BYTES, post->payload_bytes);
    if (r->is_coverage_ok && s->posted_pages == s->page_count) {
        for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
            if ((s->lane_mask >> i & 1u) != 0) {
                kvf_lane_push_mark(core, source, i);
            }
        }
    }
    return KVF_NEXT_POST;
}

/* The marker of this grant on this lane: END only if everything was posted and nothing failed. */
void kvf_source_next_mark(struct kvf_core *core, uint32_t source, uint32_t lane_idx,
                          struct kvf_post *post)
{
    struct kvf_source_grant *s = &core->sources[source];
    bool is_end = !s->is_closing && (s->dead_mask & ~s->end_ok_mask) == 0 &&
                  s->posted_pages == s->page_count;
    uint8_t bit = (uint8_t)(1u << lane_idx);
    assert((s->marked_mask & bit) == 0);
    s->marked_mask |= bit;
    if (is_end) {
        s->end_mask |= bit;
    }
    *post = (struct kvf_post){.cookie = (uint64_t)s->incarnation << 32 | source,
                              .kind = is_end ? KVF_LANE_END : KVF_LANE_DRAIN,
                              .handle = s->handle};
}

static struct kvf_source_grant *by_cookie(struct kvf_core *core, uint64_t cookie,
                                          uint32_t *ret_idx)
{
    uint32_t idx = (uint32_t)cookie;
    if (idx >= core->source_fresh) {
        return NULL;
    }
    struct kvf_source_grant *s = &core->sources[idx];
    if (s->state == KVF_SOURCE_FREE || s->incarnation != cookie >> 32) {
        return NULL;
    }
    *ret_idx = idx;
    return s;
}

/* The lease comes back, whatever the status says of the other side. */
static void data_completed(struct kvf_core *core, struct kvf_source_grant *s, uint32_t lane_idx,
                           const struct kvf_post *post, int status)
{
    assert(s->room != KVF_NONE);
    assert(s->leases > 0);
    struct kvf_room_rec *r = &core->rooms[s->room];
    s->leases--;
    s->posted_bytes -= post->payload_bytes;
    s->lane_posted_bytes[lane_idx] -= post->payload_bytes;
    r->leases--;
    kvf_gauge_sub(core, KVF_GAUGE_POSTED_BYTES, post->payload_bytes);
    if (status == 0 && !s->is_replaced) {
        s->sent_bytes += post->payload_bytes;
        r->placed_bytes += post->payload_bytes;
    }
}

static void mark_completed(struct kvf_source_grant *s, uint32_t lane_idx, int status)
{
    uint8_t bit = (uint8_t)(1u << lane_idx);
    s->mark_done_mask |= bit;
    if (status == 0 && (s->end_mask & bit) != 0) {
        s->end_ok_mask |= bit;
    }
}

void kvf_source_completed(struct kvf_core *core, uint64_t now_ns, uint32_t lane_idx,
                          const struct kvf_post *post, int status)
{
    uint32_t source;
    struct kvf_source_grant *s = by_cookie(core, post->cookie, &source);
    if (s == NULL) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    uint32_t room = s->room;
    if (post->kind == KVF_LANE_DATA) {
        data_completed(core, s, lane_idx, post, status);
    } else {
        mark_completed(s, lane_idx, status);
    }
    if (status == -EFAULT && !s->is_closing && room != KVF_NONE) {
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, KVF_E_MEMORY_FAULT, EFAULT);
    } else if (status != 0 && status != -ECANCELED && status != -EFAULT) {
        /* No marker may follow on that lane; the fence is the sink's and our only way on. */
        kvf_lane_start_fence(core, now_ns, kvf_lane_id(s->peer, lane_idx));
        kvf_source_lane_dead(core, now_ns, source, lane_idx);
    }
    if (room != KVF_NONE) {
        kvf_room_try_drain(core, now_ns, room);
    }
    s = by_cookie(core, post->cookie, &source);
    if (s != NULL) {
        if (!s->is_closing && post->kind == KVF_LANE_DATA) {
            kvf_lane_push_ready(core, source);
        }
        kvf_source_try_end(core, now_ns, source);
    }
}

/* Lanes of transport local: both halves are lanes of this object, and a byte that is posted on one is copied
 * into the pages behind the other by the thread that polls. Nothing is ever between the two: no buffer, no
 * kernel, no other thread. So what is posted and not yet copied can always be taken back whole, a fence has
 * nothing to wait for, and a grant that was revoked gets not one byte more.
 *
 * A copy touches the memory of two clients, either of which may have taken its own away. It is made in
 * guarded pieces (host/guard.h); the address of a fault tells whose fault it is.
 *
 * As in tcp.c callbacks may call back: `serial` changes whenever a half begins or ends, every post has a
 * number, and nothing that a callback could change is kept across it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/host/guard.h"
#include "sidecar/transport/transport.h"

/* A piece is what is copied between two questions to the host. Large enough that question and guard cost
 * nothing beside the copy. */
#define PIECE_BYTES_MAX (UINT64_C(128) << 10)
#define PIECE_BYTES_MIN UINT64_C(4096)
#define PIECE_RUNS_MAX 256u
/* Of a paced lane: a piece has at most so much time's worth, and this much that was missed is made up for. */
#define PACE_NS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)
/* What a marker counts in the budget of a turn, so that a turn ends whatever callbacks post. */
#define MARKER_COST 64u

/* FREE -> UP; UP -> LOST when the other half ends or the host refuses; UP, LOST -> FENCING -> FREE. FENCING
 * exists only while completions are told. */
enum local_state { LOCAL_FREE = 0, LOCAL_UP, LOCAL_LOST, LOCAL_FENCING };

struct local_entry {
    struct kvf_post post;
    uint64_t number;
    bool is_dead;  /* was completed where it stood; exists only while detach runs */
    bool is_cut;   /* an END whose data was taken back: leaves as DRAIN, completes -ECANCELED */
    bool is_begun; /* a marker that the sink is being told of */
};

/* Posts in [head, tail) wait; the indices run free. */
struct local_source {
    struct local_entry *entries; /* posts_per_lane_max of them */
    uint32_t head;
    uint32_t tail;
    uint64_t next_number;
    /* how far the first one is */
    uint32_t page;
    uint32_t plane;
    uint64_t plane_off;
    bool is_forced_scratch; /* its pages faulted */
    uint64_t next_ns;       /* a paced lane copies nothing before */
    uint32_t detach_depth;  /* callbacks of a detach may detach; the outermost one sweeps */
};

struct local_lane {
    uint32_t epoch;
    uint32_t serial;
    uint32_t partner; /* while UP */
    uint8_t state;
    bool is_sink;
    bool is_marked; /* in the list that poll works through */
    bool owes_up;
    int owes_lost; /* positive errno, 0: nothing */
    uint32_t mark_next;
    struct local_source source;
};

struct kvf_local {
    struct kvf_transport_config config;
    struct kvf_transport_host host;
    struct local_lane *lanes;
    struct local_entry *entries;
    uint32_t mark_head;
    uint32_t mark_tail;
    uint32_t mark_count;
    uint64_t piece_bytes_max;
    struct kvf_guard_run runs[PIECE_RUNS_MAX]; /* of one copy at a time */
};

static struct kvf_local *local_of(struct kvf_transport *t)
{
    return (struct kvf_local *)(void *)t;
}

static const struct kvf_local *const_local_of(const struct kvf_transport *t)
{
    return (const struct kvf_local *)(const void *)t;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- create ------------------------------------------------------------------------------------------ */

static void free_all(struct kvf_local *local)
{
    free(local->entries);
    free(local->lanes);
    free(local);
}

int kvf_local_create(const struct kvf_transport_config *config,
                     const struct kvf_transport_host *host,
                     struct kvf_transport **ret_transport)
{
    uint32_t posts_max = config->posts_per_lane_max;
    if (config->lanes_max == 0 || posts_max == 0 || (posts_max & (posts_max - 1u)) != 0 ||
        config->turn_bytes_max == 0 || (config->lane_rate_bytes > 0 && host->now_fn == NULL)) {
        return -EINVAL;
    }
    struct kvf_local *local = calloc(1, sizeof(*local));
    if (local == NULL) {
        return -ENOMEM;
    }
    local->config = *config;
    local->host = *host;
    local->mark_head = KVF_NONE;
    local->mark_tail = KVF_NONE;
    local->piece_bytes_max = PIECE_BYTES_MAX;
    if (config->lane_rate_bytes > 0) {
        uint64_t paced = config->lane_rate_bytes / (NS_PER_S / PACE_NS);
        paced = paced > PIECE_BYTES_MIN ? paced : PIECE_BYTES_MIN;
        local->piece_bytes_max = lesser(paced, PIECE_BYTES_MAX);
    }
    /* Zero pages until a lane is used. */
    local->lanes = calloc(config->lanes_max, sizeof(*local->lanes));
    local->entries = calloc((size_t)config->lanes_max * posts_max, sizeof(*local->entries));
    if (local->lanes == NULL || local->entries == NULL) {
        free_all(local);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < config->lanes_max; i++) {
        local->lanes[i].partner = KVF_NONE;
        local->lanes[i].source.entries = local->entries + (size_t)i * posts_max;
    }
    *ret_transport = (struct kvf_transport *)(void *)local;
    return 0;
}

/* ---- marks ------------------------------------------------------------------------------------------- */

static void mark(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    if (lane->is_marked) {
        return;
    }
    lane->is_marked = true;
    lane->mark_next = KVF_NONE;
    if (local->mark_tail == KVF_NONE) {
        local->mark_head = lane_idx;
    } else {
        local->lanes[local->mark_tail].mark_next = lane_idx;
    }
    local->mark_tail = lane_idx;
    local->mark_count++;
}

static uint32_t unmark_first(struct kvf_local *local)
{
    uint32_t lane_idx = local->mark_head;
    assert(lane_idx != KVF_NONE);
    struct local_lane *lane = &local->lanes[lane_idx];
    local->mark_head = lane->mark_next;
    if (local->mark_head == KVF_NONE) {
        local->mark_tail = KVF_NONE;
    }
    local->mark_count--;
    lane->is_marked = false;
    return lane_idx;
}

static struct local_entry *entry_at(const struct kvf_local *local,
                                    const struct local_source *source, uint32_t seq)
{
    return &source->entries[seq & (local->config.posts_per_lane_max - 1u)];
}

static bool has_posts(const struct local_lane *lane)
{
    return lane->state == LOCAL_UP && !lane->is_sink && lane->source.head != lane->source.tail;
}

uint64_t kvf_local_due_ns(const struct kvf_transport *t)
{
    const struct kvf_local *local = const_local_of(t);
    uint64_t due_ns = KVF_NO_TIME;
    for (uint32_t i = local->mark_head; i != KVF_NONE; i = local->lanes[i].mark_next) {
        const struct local_lane *lane = &local->lanes[i];
        if (lane->owes_up || lane->owes_lost != 0) {
            return 0;
        }
        if (has_posts(lane)) {
            const struct local_entry *first = entry_at(local, &lane->source, lane->source.head);
            bool is_data = first->post.kind == KVF_LANE_DATA;
            due_ns = lesser(due_ns, is_data ? lane->source.next_ns : 0);
        }
    }
    return due_ns;
}

/* ---- halves ------------------------------------------------------------------------------------------ */

static void begin_half(struct kvf_local *local, uint32_t lane_idx, uint32_t epoch,
                       uint32_t partner, bool is_sink)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_entry *entries = lane->source.entries;
    uint64_t next_number = lane->source.next_number;
    memset(&lane->source, 0, sizeof(lane->source));
    lane->source.entries = entries;
    lane->source.next_number = next_number;
    lane->serial++;
    lane->epoch = epoch;
    lane->partner = partner;
    lane->is_sink = is_sink;
    lane->owes_up = true;
    lane->owes_lost = 0;
    lane->state = LOCAL_UP;
    mark(local, lane_idx);
}

static int local_open(struct kvf_transport *t, const struct kvf_lane_open *open)
{
    struct kvf_local *local = local_of(t);
    if (open->lane >= local->config.lanes_max || open->partner >= local->config.lanes_max ||
        open->lane == open->partner) {
        return -EINVAL;
    }
    if (local->lanes[open->lane].state != LOCAL_FREE ||
        local->lanes[open->partner].state != LOCAL_FREE) {
        return -EBUSY;
    }
    begin_half(local, open->lane, open->epoch, open->partner, true);
    begin_half(local, open->partner, open->epoch, open->lane, false);
    return 0;
}

/* From here on nothing is copied on this half; the host hears of it from poll. */
static void lose_later(struct kvf_local *local, uint32_t lane_idx, int err)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    if (lane->state == LOCAL_UP) {
        lane->state = LOCAL_LOST;
        lane->partner = KVF_NONE;
        lane->owes_lost = err;
        mark(local, lane_idx);
    }
}

/* The host refused what a source's half brings: both halves are of no use any more. */
static void break_both(struct kvf_local *local, uint32_t lane_idx)
{
    uint32_t sink_idx = local->lanes[lane_idx].partner;
    lose_later(local, sink_idx, EPROTO);
    lose_later(local, lane_idx, ECONNRESET);
}

static void rewind_cursor(struct local_source *source)
{
    source->page = 0;
    source->plane = 0;
    source->plane_off = 0;
    source->is_forced_scratch = false;
}

static void end_half(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_source *source = &lane->source;
    if (lane->state == LOCAL_UP) {
        lose_later(local, lane->partner, ECONNRESET);
    }
    lane->state = LOCAL_FENCING;
    lane->partner = KVF_NONE;
    lane->owes_up = false;
    lane->owes_lost = 0;
    while (source->head != source->tail) {
        struct local_entry *entry = entry_at(local, source, source->head++);
        if (!entry->is_dead) {
            struct kvf_post post = entry->post;
            local->host.completed_fn(local->host.ctx, lane_idx, lane->epoch, &post,
                                     -ECONNABORTED);
        }
    }
    lane->serial++;
    lane->state = LOCAL_FREE;
}

static void local_fence(struct kvf_transport *t, uint32_t lane_idx, uint32_t epoch)
{
    struct kvf_local *local = local_of(t);
    assert(lane_idx < local->config.lanes_max);
    struct local_lane *lane = &local->lanes[lane_idx];
    if (lane->state == LOCAL_FENCING && lane->epoch == epoch) {
        return; /* from within its own completions: the outer call answers */
    }
    if (lane->state != LOCAL_FREE && lane->epoch == epoch) {
        end_half(local, lane_idx);
    }
    /* Copies are made in poll, which is not running, or has called this between two of them: the proof
     * holds. A half of another epoch was never opened, or ended before this one began. */
    local->host.fenced_fn(local->host.ctx, lane_idx, epoch);
}

static void local_close(struct kvf_transport *t)
{
    struct kvf_local *local = local_of(t);
    for (uint32_t i = 0; i < local->config.lanes_max; i++) {
        if (local->lanes[i].state != LOCAL_FREE) {
            end_half(local, i);
        }
    }
    free_all(local);
}

/* ---- posts ------------------------------------------------------------------------------------------- */

static bool can_post(const struct kvf_local *local, const struct local_lane *lane)
{
    return lane->state == LOCAL_UP && !lane->is_sink &&
           lane->source.tail - lane->source.head < local->config.posts_per_lane_max;
}

static bool local_can_post(const struct kvf_transport *t, uint32_t lane_idx)
{
    const struct kvf_local *local = const_local_of(t);
    return lane_idx < local->config.lanes_max && can_post(local, &local->lanes[lane_idx]);
}

static const struct kvf_transport_region *region_of(const struct kvf_local *local,
                                                    uint32_t client, uint32_t region_handle)
{
    const struct kvf_transport_region *region =
        local->host.region_fn(local->host.ctx, client, region_handle);
    return region != NULL && region->base != NULL ? region : NULL;
}

static bool has_pages(const struct kvf_transport_region *region, uint32_t page_first,
                      uint32_t page_count)
{
    return page_first < region->page_count && page_count <= region->page_count - page_first;
}

/* The core says what to post, but geometry is the region's: both must agree. */
static int check_post(const struct kvf_local *local, const struct kvf_post *post)
{
    if (post->kind == KVF_LANE_END || post->kind == KVF_LANE_DRAIN) {
        return 0;
    }
    const struct kvf_transport_region *region = region_of(local, post->client, post->region);
    if (region == NULL) {
        return -EFAULT;
    }
    return post->kind == KVF_LANE_DATA && post->page_count > 0 &&
                   has_pages(region, post->page_first, post->page_count) &&
                   post->page_count <= UINT32_MAX - post->position && region->plane_count > 0
               ? 0
               : -EINVAL;
}

static int local_post(struct kvf_transport *t, uint32_t lane_idx, const struct kvf_post *post)
{
    struct kvf_local *local = local_of(t);
    if (lane_idx >= local->config.lanes_max) {
        return -EINVAL;
    }
    struct local_lane *lane = &local->lanes[lane_idx];
    if (lane->state != LOCAL_UP || lane->is_sink) {
        return -ENOTCONN;
    }
    if (!can_post(local, lane)) {
        return -EAGAIN;
    }
    int rc = check_post(local, post);
    if (rc != 0) {
        return rc;
    }
    *entry_at(local, &lane->source, lane->source.tail++) =
        (struct local_entry){.post = *post, .number = lane->source.next_number++};
    mark(local, lane_idx);
    return 0;
}

/* Ends one entry where it stands. False if the half is another one now. */
static bool end_entry(struct kvf_local *local, uint32_t lane_idx, uint32_t seq, int status)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_entry *entry = entry_at(local, &lane->source, seq);
    uint32_t serial = lane->serial;
    if (seq == lane->source.head) {
        rewind_cursor(&lane->source);
    }
    entry->is_dead = true;
    struct kvf_post post = entry->post;
    local->host.completed_fn(local->host.ctx, lane_idx, lane->epoch, &post, status);
    return lane->serial == serial;
}

/* Dead entries leave the ring, so that it has room for others. */
static void sweep(const struct kvf_local *local, struct local_source *source)
{
    uint32_t to = source->head;
    for (uint32_t from = source->head; from != source->tail; from++) {
        const struct local_entry *entry = entry_at(local, source, from);
        if (!entry->is_dead) {
            *entry_at(local, source, to++) = *entry;
        }
    }
    source->tail = to;
}

/* Data is let go of where it stands, also a post that is half copied: the rest of it is simply not. The sink
 * waits for exactly one marker, so an END whose data is taken back leaves as DRAIN. */
static void detach(struct kvf_local *local, uint32_t lane_idx, uint64_t cookie)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_source *source = &lane->source;
    source->detach_depth++;
    for (uint32_t seq = source->head; seq != source->tail; seq++) {
        struct local_entry *entry = entry_at(local, source, seq);
        if (entry->is_dead || entry->post.cookie != cookie) {
            continue;
        }
        if (entry->post.kind == KVF_LANE_DATA) {
            if (!end_entry(local, lane_idx, seq, -ECANCELED)) {
                return; /* what was counted here went with the old half */
            }
        } else if (entry->post.kind == KVF_LANE_END && !entry->is_begun) {
            entry->is_cut = true;
        }
    }
    source->detach_depth--;
    if (source->detach_depth == 0) {
        sweep(local, source);
    }
}

static void local_detach(struct kvf_transport *t, uint32_t lane_idx, uint64_t cookie)
{
    struct kvf_local *local = local_of(t);
    if (lane_idx < local->config.lanes_max && local->lanes[lane_idx].state != LOCAL_FREE) {
        detach(local, lane_idx, cookie);
    }
}

/* ---- copying ------------------------------------------------------------------------------------------ */

/* Where a piece begins, and the two regions it lies in. */
struct local_piece {
    const struct kvf_transport_region *from;
    const struct kvf_transport_region *to;
    uint32_t from_page; /* of position 0 of the post */
    uint32_t to_page;
    uint32_t page; /* cursor: within the post */
    uint32_t plane;
    uint64_t plane_off;
    uint64_t bytes;
    uint32_t run_count;
};

static bool fits(const struct local_piece *piece, const struct kvf_post *post)
{
    if (!has_pages(piece->from, piece->from_page, post->page_count) ||
        !has_pages(piece->to, piece->to_page, post->page_count) ||
        piece->from->plane_count != piece->to->plane_count) {
        return false;
    }
    for (uint32_t i = 0; i < piece->from->plane_count; i++) {
        if (piece->from->planes[i].page_bytes != piece->to->planes[i].page_bytes) {
            return false;
        }
    }
    return true;
}

static void add_run(struct kvf_local *local, struct local_piece *piece, uint64_t bytes)
{
    const struct kvf_core_plane *from = &piece->from->planes[piece->plane];
    const struct kvf_core_plane *to = &piece->to->planes[piece->plane];
    uint64_t from_page = (uint64_t)piece->from_page + piece->page;
    uint64_t to_page = (uint64_t)piece->to_page + piece->page;
    const unsigned char *from_at =
        piece->from->base + from->off + from_page * from->stride + piece->plane_off;
    unsigned char *to_at = piece->to->base + to->off + to_page * to->stride + piece->plane_off;
    local->runs[piece->run_count++] =
        (struct kvf_guard_run){.to = to_at, .from = from_at, .bytes = bytes};
    piece->bytes += bytes;
}

/* Collects runs from the cursor on, page by page and within a page plane by plane, and moves the cursor. */
static void gather(struct kvf_local *local, struct local_piece *piece, uint32_t page_count,
                   uint64_t bytes_max)
{
    while (piece->page < page_count && piece->run_count < PIECE_RUNS_MAX &&
           piece->bytes < bytes_max) {
        uint64_t plane_bytes = piece->from->planes[piece->plane].page_bytes;
        uint64_t bytes = lesser(plane_bytes - piece->plane_off, bytes_max - piece->bytes);
        add_run(local, piece, bytes);
        piece->plane_off += bytes;
        if (piece->plane_off == plane_bytes) {
            piece->plane_off = 0;
            piece->plane++;
        }
        if (piece->plane == piece->from->plane_count) {
            piece->plane = 0;
            piece->page++;
        }
    }
}

/* How far an address lies before the nearest of the runs' bytes: 0 within them. What faults is said by
 * address, for huge pages perhaps the start of the page. */
static uint64_t distance(uintptr_t fault, uintptr_t begin, uint64_t bytes)
{
    if (fault >= begin + bytes) {
        return UINT64_MAX;
    }
    return fault >= begin ? 0 : begin - fault;
}

static bool is_sink_fault(const struct kvf_local *local, uint32_t run_count, const void *fault)
{
    uint64_t to = UINT64_MAX;
    uint64_t from = UINT64_MAX;
    for (uint32_t i = 0; i < run_count; i++) {
        const struct kvf_guard_run *run = &local->runs[i];
        to = lesser(to, distance((uintptr_t)fault, (uintptr_t)run->to, run->bytes));
        from = lesser(from, distance((uintptr_t)fault, (uintptr_t)run->from, run->bytes));
    }
    return to < from;
}

static uint64_t bytes_left(const struct local_source *source, const struct kvf_post *post,
                           const struct kvf_transport_region *from)
{
    uint64_t gone = (uint64_t)source->page * from->page_bytes + source->plane_off;
    for (uint32_t i = 0; i < source->plane; i++) {
        gone += from->planes[i].page_bytes;
    }
    return post->page_count * from->page_bytes - gone;
}

/* The first post's memory cannot be read. Its grant must not end well on this lane: what is queued behind
 * it for the same grant, a marker above all, is taken back too. */
static void read_fault(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct kvf_post post = entry_at(local, &lane->source, lane->source.head)->post;
    if (end_entry(local, lane_idx, lane->source.head, -EFAULT)) {
        detach(local, lane_idx, post.cookie);
    }
    local->host.read_fault_fn(local->host.ctx, post.client);
}

/* These pages cannot be written: the rest of the post is thrown away. */
static void place_fault(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    uint32_t sink_idx = lane->partner;
    uint32_t handle = entry_at(local, &lane->source, lane->source.head)->post.handle;
    lane->source.is_forced_scratch = true;
    local->host.place_fault_fn(local->host.ctx, sink_idx, local->lanes[sink_idx].epoch, handle);
}

static void pace(struct kvf_local *local, struct local_source *source, uint64_t bytes)
{
    if (local->config.lane_rate_bytes == 0) {
        return;
    }
    uint64_t now_ns = local->host.now_fn(local->host.ctx);
    uint64_t since_ns = now_ns > PACE_NS ? now_ns - PACE_NS : 0;
    since_ns = source->next_ns > since_ns ? source->next_ns : since_ns;
    source->next_ns = since_ns + bytes * NS_PER_S / local->config.lane_rate_bytes;
}

static bool is_too_early(const struct kvf_local *local, const struct local_source *source)
{
    return local->config.lane_rate_bytes > 0 &&
           source->next_ns > local->host.now_fn(local->host.ctx);
}

/* Whether the half is still the one it was, with the same post at its head. */
static bool is_still(const struct kvf_local *local, struct local_lane *lane, uint32_t serial,
                     uint64_t number)
{
    return lane->serial == serial && lane->source.head != lane->source.tail &&
           entry_at(local, &lane->source, lane->source.head)->number == number;
}

/* Takes the first post out and tells. It leaves the ring before the callback, so that a fence from within it
 * completes the others and not this one again. */
static void complete_first(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_entry *entry = entry_at(local, &lane->source, lane->source.head++);
    struct kvf_post post = entry->post;
    int status = entry->is_cut ? -ECANCELED : 0;
    rewind_cursor(&lane->source);
    local->host.completed_fn(local->host.ctx, lane_idx, lane->epoch, &post, status);
}

/* One piece of the first post, a DATA, of at most bytes_max bytes. What it counts in the budget. */
static uint64_t copy_some(struct kvf_local *local, uint32_t lane_idx, uint64_t bytes_max)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_source *source = &lane->source;
    struct local_entry *entry = entry_at(local, source, source->head);
    const struct kvf_post *post = &entry->post;
    uint32_t sink_idx = lane->partner;
    uint32_t sink_epoch = local->lanes[sink_idx].epoch;
    struct kvf_placement_at at;
    if (local->host.place_fn(local->host.ctx, sink_idx, sink_epoch, post->handle,
                             post->position, post->page_count, &at) < 0) {
        break_both(local, lane_idx);
        return 1;
    }
    struct local_piece piece = {.from = region_of(local, post->client, post->region),
                                .from_page = post->page_first,
                                .page = source->page,
                                .plane = source->plane,
                                .plane_off = source->plane_off};
    if (piece.from == NULL) {
        read_fault(local, lane_idx);
        return 1;
    }
    bool is_scratch = source->is_forced_scratch || at.where != KVF_PLACE_PAGES;
    if (is_scratch) {
        piece.bytes = bytes_left(source, post, piece.from); /* nobody wants them: not copied */
        piece.page = post->page_count;
    } else {
        piece.to = region_of(local, at.client, at.region);
        piece.to_page = at.page_first;
        if (piece.to == NULL) {
            place_fault(local, lane_idx);
            return 1;
        }
        if (!fits(&piece, post)) {
            break_both(local, lane_idx);
            return 1;
        }
        gather(local, &piece, post->page_count, bytes_max);
        const void *fault = NULL;
        if (!kvf_guard_copy(local->runs, piece.run_count, &fault)) {
            if (is_sink_fault(local, piece.run_count, fault)) {
                place_fault(local, lane_idx);
            } else {
                read_fault(local, lane_idx);
            }
            return bytes_max;
        }
        pace(local, source, piece.bytes);
    }
    source->page = piece.page;
    source->plane = piece.plane;
    source->plane_off = piece.plane_off;
    bool is_whole = piece.page == post->page_count;
    uint32_t serial = lane->serial;
    uint64_t number = entry->number;
    local->host.placed_fn(local->host.ctx, sink_idx, sink_epoch, post->handle, piece.bytes,
                          is_scratch);
    if (is_whole && is_still(local, lane, serial, number)) {
        complete_first(local, lane_idx);
    }
    return piece.bytes;
}

/* The first post is a marker, and everything before it on this lane is in its place. */
static uint64_t pass_marker(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    struct local_entry *entry = entry_at(local, &lane->source, lane->source.head);
    uint32_t sink_idx = lane->partner;
    uint8_t kind = entry->is_cut ? KVF_LANE_DRAIN : entry->post.kind;
    uint32_t serial = lane->serial;
    uint64_t number = entry->number;
    entry->is_begun = true;
    int rc = local->host.marker_fn(local->host.ctx, sink_idx, local->lanes[sink_idx].epoch,
                                   entry->post.handle, kind);
    if (!is_still(local, lane, serial, number)) {
        return MARKER_COST;
    }
    if (rc < 0) {
        if (lane->state == LOCAL_UP) {
            break_both(local, lane_idx);
        }
        return MARKER_COST;
    }
    complete_first(local, lane_idx);
    return MARKER_COST;
}

static uint64_t source_turn(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    uint32_t serial = lane->serial;
    uint64_t moved = 0;
    while (lane->serial == serial && has_posts(lane) && moved < local->config.turn_bytes_max) {
        const struct kvf_post *post = &entry_at(local, &lane->source, lane->source.head)->post;
        if (post->kind != KVF_LANE_DATA) {
            moved += pass_marker(local, lane_idx);
        } else if (is_too_early(local, &lane->source)) {
            break;
        } else {
            moved +=
                copy_some(local, lane_idx,
                          lesser(local->config.turn_bytes_max - moved, local->piece_bytes_max));
        }
    }
    return moved;
}

static uint64_t lane_turn(struct kvf_local *local, uint32_t lane_idx)
{
    struct local_lane *lane = &local->lanes[lane_idx];
    uint64_t moved = 0;
    if (lane->owes_up) {
        lane->owes_up = false;
        moved++;
        local->host.up_fn(local->host.ctx, lane_idx, lane->epoch);
    }
    if (lane->owes_lost != 0) {
        int err = lane->owes_lost;
        lane->owes_lost = 0;
        moved++;
        local->host.lost_fn(local->host.ctx, lane_idx, lane->epoch, err);
    }
    moved += source_turn(local, lane_idx);
    if (lane->owes_up || lane->owes_lost != 0 || has_posts(lane)) {
        mark(local, lane_idx);
    }
    return moved;
}

static uint64_t local_poll(struct kvf_transport *t)
{
    struct kvf_local *local = local_of(t);
    uint64_t moved = 0;
    /* Lanes marked on the way wait for the next poll: one turn each. */
    for (uint32_t left = local->mark_count; left > 0; left--) {
        moved += lane_turn(local, unmark_first(local));
    }
    return moved;
}

const struct kvf_transport_ops kvf_local_ops = {
    .name = "local",
    .open = local_open,
    .can_post = local_can_post,
    .post = local_post,
    .detach = local_detach,
    .poll = local_poll,
    .fence = local_fence,
    .close = local_close,
};

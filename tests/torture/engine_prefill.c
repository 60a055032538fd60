/* A prefill engine: computes KV pages (fills them with the pattern of their request), opens a source room
 * for each request and submits the pages in pieces. Its pages go back to the allocator only when the
 * library shows them drained; the allocator hands the hottest out first, so a page that the daemon still
 * read after its proof would reach the sink as another request's bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/torture/engine.h"
#include "tests/torture/inject.h"
#include "tests/torture/pattern.h"

#define TURN_NS UINT64_C(1000000)
#define TURN_WATCHING_NS UINT64_C(500000)

struct work {
    const struct kvf_request *request; /* NULL: free */
    uint32_t request_idx;
    uint32_t submitted; /* pages */
    kvf_room room;
    uint64_t opened_ns;
    int32_t *pages;
    bool is_aborted;
};

struct prefill {
    struct kvf_engine engine;
    struct work *works; /* plan.seats of them */
    int32_t *page_memory;
    uint32_t work_count;
};

static void fill_pages(struct prefill *p, const struct work *w)
{
    struct kvf_engine *e = &p->engine;
    const struct kvf_request *r = w->request;
    const struct kvf_geometry *g = &e->plan->geometry;
    bool is_hit = kvf_inject_hits((enum kvf_inject)e->plan->inject, r);
    for (uint32_t plane = 0; plane < g->plane_count; plane++) {
        for (uint32_t i = 0; i < r->page_count; i++) {
            if (is_hit && e->plan->inject == KVF_INJECT_SKIP_PLANE && i == 0 &&
                plane == g->plane_count - 1) {
                continue;
            }
            kvf_pattern_fill(kvf_engine_piece(e, w->pages[i], plane), g->piece_bytes,
                             kvf_pattern_seed(r->key, i, plane));
        }
    }
    if (is_hit && e->plan->inject == KVF_INJECT_FLIP_BYTE) {
        uint32_t plane = (uint32_t)(r->key >> 8) % g->plane_count;
        uint32_t page = (uint32_t)(r->key >> 24) % r->page_count;
        kvf_engine_piece(e, w->pages[page], plane)[(r->key >> 40) % g->piece_bytes] ^= 0x10;
    }
}

/* Submits what is left of the pages, piece by piece. The ring may be full: then the next turn goes on. */
static int submit_pages(struct prefill *p, struct work *w)
{
    struct kvf_engine *e = &p->engine;
    const struct kvf_request *r = w->request;
    uint32_t step = (r->page_count + r->piece_count - 1) / r->piece_count;
    while (w->submitted < r->page_count) {
        uint32_t left = r->page_count - w->submitted;
        struct kvf_piece_opts piece = {.size_bytes = sizeof(piece), .region = e->region};
        piece.pages = w->pages + w->submitted;
        piece.page_count = left < step ? left : step;
        piece.start = w->submitted;
        piece.flags = piece.page_count == left ? KVF_LAST_PIECE : 0;
        int rc = kvf_submit(e->client, w->room, &piece);
        if (rc == -EAGAIN) {
            return 0;
        }
        if (rc != 0) {
            /* A room that is closing takes no more pieces; anything else is a fault of ours. */
            int state = kvf_poll(e->client, w->room);
            if (state == KVF_FAILED || state == KVF_SUCCESS ||
                kvf_failed_early(e->client, w->room) == 1) {
                w->submitted = r->page_count;
                return 0;
            }
            return kvf_engine_fail(e, rc, "cannot submit a piece");
        }
        w->submitted += (uint32_t)piece.page_count;
    }
    return 0;
}

static int abort_room(struct prefill *p, struct work *w)
{
    struct kvf_engine *e = &p->engine;
    struct kvf_progress_shm *progress = &e->fleet.progress[w->request_idx];
    /* Stored before the call: whoever sees the room fail can see who aborted it (edge F5, release). */
    atomic_store_explicit(&progress->source_abort_ns, kvf_torture_now_ns(),
                          memory_order_release);
    int rc = kvf_abort(e->client, w->room, 200u + w->request->abort_kind);
    w->is_aborted = true;
    return rc == 0 ? 0 : kvf_engine_fail(e, rc, "cannot abort a source room");
}

/* Is it time for this engine to abort the request? */
static bool must_abort(struct prefill *p, const struct work *w, int state, uint64_t now_ns)
{
    const struct kvf_request *r = w->request;
    struct kvf_progress_shm *progress = &p->engine.fleet.progress[w->request_idx];
    if (w->is_aborted || r->abort_kind == KVF_ABORT_NONE || r->abort_side == KVF_SIDE_SINK) {
        return false;
    }
    if (r->abort_side == KVF_SIDE_BOTH) {
        return atomic_load_explicit(&progress->sink_abort_ns, memory_order_acquire) != 0;
    }
    uint64_t after_ns = now_ns - w->opened_ns;
    uint64_t total = (uint64_t)r->page_count * p->engine.plan->geometry.page_bytes;
    switch ((enum kvf_abort_kind)r->abort_kind) {
    case KVF_ABORT_IN_FLIGHT:
    case KVF_ABORT_NEAR_END:
        return atomic_load_explicit(&progress->placed_bytes, memory_order_relaxed) >=
               total / 1000000 * r->abort_ppm;
    case KVF_ABORT_BEFORE_GRANT:
        return true;
    case KVF_ABORT_QUEUED:
        return state != KVF_BOOTSTRAPPING || after_ns >= r->abort_delay_us * UINT64_C(1000);
    case KVF_ABORT_TIMEOUT:
        return after_ns >= r->abort_delay_us * UINT64_C(1000);
    case KVF_ABORT_NONE:
    case KVF_ABORT_KINDS:
        break;
    }
    return false;
}

static int begin_work(struct prefill *p, struct work *w, uint32_t request_idx)
{
    struct kvf_engine *e = &p->engine;
    const struct kvf_request *r = &e->fleet.requests[request_idx];
    struct kvf_source_opts opts = {.size_bytes = sizeof(opts), .region = e->region};
    if (kvf_allocator_take(&e->allocator, r->page_count, r->key, NULL, NULL, w->pages) != 0) {
        return -EAGAIN;
    }
    opts.label = r->label;
    opts.key = r->key;
    opts.sink_count = 1;
    int rc = kvf_open_source(e->client, &opts, &w->room);
    if (rc != 0) {
        kvf_allocator_give(&e->allocator, w->pages, r->page_count, r->key, false);
        return rc == -EAGAIN ? rc : kvf_engine_fail(e, rc, "cannot open a source room");
    }
    w->request = r;
    w->request_idx = request_idx;
    w->submitted = 0;
    w->is_aborted = false;
    w->opened_ns = kvf_torture_now_ns();
    kvf_engine_begin(e);
    kvf_engine_tally(e, KVF_TALLY_ROOMS_OPENED, 1);
    if (must_abort(p, w, KVF_BOOTSTRAPPING, w->opened_ns)) {
        return abort_room(p, w);
    }
    fill_pages(p, w);
    if (kvf_inject_hits((enum kvf_inject)e->plan->inject, r) &&
        e->plan->inject == KVF_INJECT_SWAP_PAGES) {
        int32_t first = w->pages[0];
        w->pages[0] = w->pages[1];
        w->pages[1] = first;
    }
    return submit_pages(p, w);
}

static int begin_works(struct prefill *p)
{
    for (uint32_t i = 0; i < p->work_count; i++) {
        if (p->works[i].request != NULL) {
            continue;
        }
        uint32_t request_idx = kvf_engine_next(&p->engine);
        if (request_idx == KVF_REQUEST_NONE) {
            return 0;
        }
        int rc = begin_work(p, &p->works[i], request_idx);
        if (rc == -EAGAIN) {
            return 0; /* no pages or no ring slot: requests are served in order, so wait */
        }
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int end_work(struct prefill *p, struct work *w)
{
    struct kvf_engine *e = &p->engine;
    int rc = kvf_release(e->client, w->room);
    if (rc != 0) {
        return kvf_engine_fail(e, rc, "cannot release a source room");
    }
    kvf_allocator_give(&e->allocator, w->pages, w->request->page_count, w->request->key, false);
    kvf_engine_tally(e, KVF_TALLY_ROOMS_ENDED, 1);
    w->request = NULL;
    kvf_engine_end(e, w->request_idx, KVF_ENDED_SOURCE);
    return 0;
}

static int turn_work(struct prefill *p, struct work *w, uint64_t now_ns, uint64_t *sleep_ns)
{
    int state = kvf_poll(p->engine.client, w->room);
    if (state < 0) {
        return kvf_engine_fail(&p->engine, state, "cannot poll a source room");
    }
    if (state == KVF_FAILED || state == KVF_SUCCESS) {
        return end_work(p, w);
    }
    if (must_abort(p, w, state, now_ns)) {
        return abort_room(p, w);
    }
    if (!w->is_aborted && w->request->abort_kind != KVF_ABORT_NONE &&
        w->request->abort_side != KVF_SIDE_SINK) {
        *sleep_ns = TURN_WATCHING_NS;
    }
    return w->is_aborted ? 0 : submit_pages(p, w);
}

/* One turn of the scheduler. 1: nothing is left to do. */
static int prefill_turn(struct prefill *p)
{
    uint64_t now_ns = kvf_torture_now_ns();
    uint64_t sleep_ns = TURN_NS;
    uint32_t busy = 0;
    if (begin_works(p) != 0) {
        return -1;
    }
    for (uint32_t i = 0; i < p->work_count; i++) {
        struct work *w = &p->works[i];
        if (w->request == NULL) {
            continue;
        }
        if (turn_work(p, w, now_ns, &sleep_ns) != 0) {
            return -1;
        }
        busy += w->request != NULL;
    }
    if ((busy == 0 && kvf_engine_is_dry(&p->engine)) || kvf_engine_must_give_up(&p->engine)) {
        return 1;
    }
    return kvf_engine_sleep(&p->engine, sleep_ns);
}

int kvf_prefill_main(int fleet_fd, uint32_t index)
{
    struct prefill p;
    int rc;
    memset(&p, 0, sizeof(p));
    if (kvf_engine_open(fleet_fd, true, index, &p.engine) != 0) {
        return KVF_ENGINE_BROKEN;
    }
    p.work_count = p.engine.plan->seats;
    p.works = calloc(p.work_count, sizeof(*p.works));
    p.page_memory =
        calloc((size_t)p.work_count * p.engine.plan->pages_max, sizeof(*p.page_memory));
    if (p.works == NULL || p.page_memory == NULL) {
        kvf_engine_fail(&p.engine, -ENOMEM, "cannot make its tables");
        return KVF_ENGINE_BROKEN;
    }
    for (uint32_t i = 0; i < p.work_count; i++) {
        p.works[i].pages = p.page_memory + (size_t)i * p.engine.plan->pages_max;
    }
    while ((rc = prefill_turn(&p)) == 0) {
    }
    free(p.works);
    free(p.page_memory);
    return rc == 1 && kvf_engine_close(&p.engine) == 0 ? 0 : KVF_ENGINE_BROKEN;
}

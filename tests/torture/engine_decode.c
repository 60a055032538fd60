/* A decode engine: a scheduler loop like a serving engine's. It takes requests in order, gives each pages
 * and a sink room, looks at all of its rooms every turn, aborts those that are to be aborted, checks
 * every byte of those that arrive, and gives pages back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/torture/decode.h"
#include "tests/torture/pattern.h"

#define TURN_NS UINT64_C(1000000)
#define TURN_WATCHING_NS UINT64_C(500000)

/* ---- arrival -------------------------------------------------------------------------------------- */

/* How many bytes of the request's pages are not what prefill filled in. */
static uint64_t count_wrong(struct kvf_decode *d, const struct kvf_seat *seat)
{
    const struct kvf_geometry *g = &d->engine.plan->geometry;
    const struct kvf_request *r = seat->request;
    uint64_t wrong = 0;
    for (uint32_t plane = 0; plane < g->plane_count; plane++) {
        for (uint32_t i = 0; i < r->page_count; i++) {
            wrong += kvf_pattern_check(kvf_engine_piece(&d->engine, seat->pages[i], plane),
                                       g->piece_bytes, kvf_pattern_seed(r->key, i, plane));
        }
    }
    return wrong;
}

uint64_t kvf_seat_landed(const struct kvf_decode *d, const struct kvf_seat *seat,
                         uint64_t placed)
{
    const struct kvf_geometry *g = &d->engine.plan->geometry;
    const struct kvf_request *r = seat->request;
    uint64_t landed = 0;
    if (!d->engine.plan->is_verbs) {
        return placed;
    }
    for (uint32_t plane = 0; plane < g->plane_count; plane++) {
        for (uint32_t i = 0; i < r->page_count; i++) {
            uint64_t wanted;
            kvf_pattern_fill(&wanted, sizeof(wanted), kvf_pattern_seed(r->key, i, plane));
            landed += memcmp(kvf_engine_piece(&d->engine, seat->pages[i], plane), &wanted,
                             sizeof(wanted)) == 0
                          ? g->piece_bytes
                          : 0;
        }
    }
    return landed;
}

static void tally_checked(struct kvf_decode *d, struct kvf_seat *seat, enum kvf_tally checked)
{
    uint64_t bytes = (uint64_t)seat->request->page_count * d->engine.plan->geometry.page_bytes;
    uint64_t wrong = count_wrong(d, seat);
    kvf_engine_tally(&d->engine, checked, bytes);
    kvf_engine_tally(&d->engine, KVF_TALLY_WRONG_BYTES, wrong);
    kvf_engine_tally(&d->engine, KVF_TALLY_WRONG_ROOMS, wrong != 0);
}

int kvf_seat_arrive(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    const struct kvf_request *r = seat->request;
    tally_checked(d, seat, KVF_TALLY_BYTES_CHECKED);
    kvf_engine_tally(e, KVF_TALLY_SUCCESSES, 1);
    kvf_engine_tally(e, KVF_TALLY_BYTES_MOVED,
                     (uint64_t)r->page_count * e->plan->geometry.page_bytes);
    for (uint32_t i = 0; i < r->page_count; i++) {
        kvf_engine_tally(e, KVF_TALLY_PAGES_REUSED, d->was_donated[seat->pages[i]]);
        d->was_donated[seat->pages[i]] = false;
    }
    int rc = kvf_release(e->client, seat->room);
    if (rc != 0) {
        return kvf_engine_fail(e, rc, "cannot release a room that arrived");
    }
    kvf_engine_tally(e, KVF_TALLY_ROOMS_ENDED, 1);
    seat->state = KVF_SEAT_ANSWER;
    seat->answer_until_ns = kvf_torture_now_ns() + r->hold_us * UINT64_C(1000);
    return 0;
}

void kvf_seat_end(struct kvf_decode *d, struct kvf_seat *seat)
{
    kvf_engine_tally(&d->engine, KVF_TALLY_REQUESTS, 1);
    seat->state = KVF_SEAT_FREE;
    kvf_engine_end(&d->engine, seat->request_idx, KVF_ENDED_SINK);
}

/* The answer is out. Its pages are checked once more: a write that came late would be in them now. */
static void end_answer(struct kvf_decode *d, struct kvf_seat *seat)
{
    tally_checked(d, seat, KVF_TALLY_BYTES_RECHECKED);
    kvf_allocator_give(&d->engine.allocator, seat->pages, seat->request->page_count,
                       seat->request->key, false);
    kvf_seat_end(d, seat);
}

/* ---- rooms ---------------------------------------------------------------------------------------- */

static bool has_reached(struct kvf_decode *d, const struct kvf_seat *seat, uint64_t placed)
{
    const struct kvf_request *r = seat->request;
    uint64_t total = (uint64_t)r->page_count * d->engine.plan->geometry.page_bytes;
    return placed > 0 && placed >= total / 1000000 * r->abort_ppm;
}

/* Is it time for this engine to abort the request? Tells the source how far it is, if the source is to. */
static int must_abort(struct kvf_decode *d, struct kvf_seat *seat, int state, bool *ret_must)
{
    const struct kvf_request *r = seat->request;
    struct kvf_progress_shm *progress = &d->engine.fleet.progress[seat->request_idx];
    uint64_t after_ns = kvf_torture_now_ns() - seat->opened_ns;
    bool is_by_progress =
        r->abort_kind == KVF_ABORT_IN_FLIGHT || r->abort_kind == KVF_ABORT_NEAR_END;
    bool must = false;
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    if (is_by_progress) {
        int rc = kvf_room_info(d->engine.client, seat->room, &info);
        if (rc != 0) {
            return kvf_engine_fail(&d->engine, rc, "cannot read a room's progress");
        }
        uint64_t landed = kvf_seat_landed(d, seat, info.placed_bytes);
        must = has_reached(d, seat, landed);
        atomic_store_explicit(&progress->placed_bytes, landed, memory_order_relaxed);
    } else if (r->abort_kind == KVF_ABORT_BEFORE_GRANT) {
        must = true;
    } else if (r->abort_kind == KVF_ABORT_QUEUED) {
        must = state != KVF_BOOTSTRAPPING || after_ns >= r->abort_delay_us * UINT64_C(1000);
    } else if (r->abort_kind == KVF_ABORT_TIMEOUT) {
        must = after_ns >= r->abort_delay_us * UINT64_C(1000);
    }
    *ret_must = must && r->abort_side != KVF_SIDE_SOURCE;
    return 0;
}

static int turn_room(struct kvf_decode *d, struct kvf_seat *seat, int state, uint64_t *sleep_ns)
{
    struct kvf_progress_shm *progress = &d->engine.fleet.progress[seat->request_idx];
    bool must = false;
    if (state == KVF_SUCCESS) {
        if (atomic_load_explicit(&progress->source_abort_ns, memory_order_acquire) != 0) {
            kvf_engine_tally(&d->engine, KVF_TALLY_LOST_RACE, 1);
        }
        return kvf_seat_arrive(d, seat);
    }
    if (state == KVF_FAILED || kvf_failed_early(d->engine.client, seat->room) == 1 ||
        atomic_load_explicit(&progress->source_abort_ns, memory_order_acquire) != 0) {
        return kvf_seat_observe_abort(d, seat);
    }
    if (seat->request->abort_kind == KVF_ABORT_NONE) {
        return 0;
    }
    if (must_abort(d, seat, state, &must) != 0) {
        return -1;
    }
    *sleep_ns = TURN_WATCHING_NS;
    return must ? kvf_seat_abort(d, seat) : 0;
}

static int open_room(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    const struct kvf_request *r = seat->request;
    const char *writers[1] = {e->plan->prefill_addr[r->prefill]};
    struct kvf_sink_opts opts = {.size_bytes = sizeof(opts),
                                 .region = e->region,
                                 .label = r->label,
                                 .key = r->key,
                                 .pages = seat->pages,
                                 .page_count = r->page_count,
                                 .writers = writers,
                                 .writer_count = 1};
    int rc = kvf_open_sink(e->client, &opts, &seat->room);
    if (rc == 0) {
        return 0;
    }
    /* The library refuses what an allocator that asked nobody handed out. */
    bool is_lent = rc == -KVF_E_PAGE_LENT && e->plan->release_mode == KVF_RELEASE_FORGETFUL;
    kvf_allocator_give(&e->allocator, seat->pages, r->page_count, r->key, is_lent);
    if (is_lent) {
        kvf_engine_tally(e, KVF_TALLY_LENT_OPENS, 1);
        return -EAGAIN;
    }
    return rc == -EAGAIN ? rc : kvf_engine_fail(e, rc, "cannot open a sink room");
}

/* 0, -EAGAIN (no pages, no ring slot: wait), or -1. */
static int begin_seat(struct kvf_decode *d, struct kvf_seat *seat, uint32_t request_idx)
{
    struct kvf_engine *e = &d->engine;
    const struct kvf_request *r = &e->fleet.requests[request_idx];
    int32_t *pages = seat->pages;
    kvf_allocator_ask_fn ask_fn =
        e->plan->release_mode == KVF_RELEASE_LEDGER ? kvf_ask_ledger : NULL;
    int rc = kvf_allocator_take(&e->allocator, r->page_count, r->key, ask_fn, e, pages);
    if (rc != 0) {
        return rc;
    }
    memset(seat, 0, sizeof(*seat));
    seat->pages = pages;
    seat->request = r;
    seat->request_idx = request_idx;
    rc = open_room(d, seat);
    if (rc != 0) {
        return rc;
    }
    kvf_engine_begin(e);
    kvf_engine_tally(e, KVF_TALLY_ROOMS_OPENED, 1);
    seat->opened_ns = kvf_torture_now_ns();
    seat->state = KVF_SEAT_ROOM;
    if (r->abort_kind == KVF_ABORT_BEFORE_GRANT && r->abort_side != KVF_SIDE_SOURCE) {
        return kvf_seat_abort(d, seat);
    }
    return 0;
}

static int begin_seats(struct kvf_decode *d)
{
    for (uint32_t i = 0; i < d->seat_count; i++) {
        if (d->seats[i].state != KVF_SEAT_FREE) {
            continue;
        }
        uint32_t request_idx = kvf_engine_next(&d->engine);
        if (request_idx == KVF_REQUEST_NONE) {
            return 0;
        }
        int rc = begin_seat(d, &d->seats[i], request_idx);
        if (rc == -EAGAIN) {
            return 0;
        }
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* ---- the loop --------------------------------------------------------------------------------------- */

static int turn_seat(struct kvf_decode *d, struct kvf_seat *seat, int state, uint64_t *sleep_ns)
{
    if (seat->state == KVF_SEAT_ROOM && turn_room(d, seat, state, sleep_ns) != 0) {
        return -1;
    }
    /* Also for an abort that was called or seen a moment ago: who releases early does so at once. */
    if (seat->state == KVF_SEAT_ABORTED) {
        return kvf_seat_turn_aborted(d, seat, kvf_poll(d->engine.client, seat->room));
    }
    return 0;
}

static int turn_seats(struct kvf_decode *d, uint64_t *sleep_ns, uint32_t *ret_busy)
{
    uint32_t n = 0;
    uint32_t answers = 0;
    for (uint32_t i = 0; i < d->seat_count; i++) {
        struct kvf_seat *seat = &d->seats[i];
        if (seat->state == KVF_SEAT_ROOM || seat->state == KVF_SEAT_ABORTED) {
            d->rooms[n] = seat->room;
            d->polled[n++] = seat;
        } else if (seat->state == KVF_SEAT_ANSWER) {
            answers++;
            if (kvf_torture_now_ns() >= seat->answer_until_ns) {
                end_answer(d, seat);
            }
        }
    }
    int rc = n == 0 ? 0 : kvf_poll_many(d->engine.client, d->rooms, n, d->states);
    if (rc < 0) {
        return kvf_engine_fail(&d->engine, rc, "cannot poll its rooms");
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kvf_seat *seat = d->polled[i];
        if (d->states[i] < 0) {
            return kvf_engine_fail(&d->engine, d->states[i], "cannot poll a sink room");
        }
        rc = turn_seat(d, seat, d->states[i], sleep_ns);
        if (rc != 0) {
            return rc;
        }
    }
    *ret_busy = n + answers;
    return 0;
}

/* One turn of the scheduler. 1: nothing is left to do. */
static int decode_turn(struct kvf_decode *d)
{
    uint64_t sleep_ns = TURN_NS;
    uint32_t busy = 0;
    if (begin_seats(d) != 0 || turn_seats(d, &sleep_ns, &busy) != 0) {
        return -1;
    }
    if (kvf_engine_must_give_up(&d->engine)) {
        for (uint32_t i = 0; i < d->seat_count; i++) {
            if (d->seats[i].state != KVF_SEAT_FREE) {
                kvf_seat_give_up(d, &d->seats[i]);
            }
        }
        return 1;
    }
    if (busy == 0 && kvf_engine_is_dry(&d->engine)) {
        return 1;
    }
    return kvf_engine_sleep(&d->engine, sleep_ns);
}

static int make_tables(struct kvf_decode *d)
{
    const struct kvf_fleet_plan *plan = d->engine.plan;
    d->seat_count = plan->seats;
    d->seats = calloc(d->seat_count, sizeof(*d->seats));
    d->page_memory = calloc((size_t)d->seat_count * plan->pages_max, sizeof(*d->page_memory));
    d->rooms = calloc(d->seat_count, sizeof(*d->rooms));
    d->states = calloc(d->seat_count, sizeof(*d->states));
    d->polled = calloc(d->seat_count, sizeof(struct kvf_seat *));
    d->was_donated = calloc(plan->decode_pages, sizeof(*d->was_donated));
    if (d->seats == NULL || d->page_memory == NULL || d->rooms == NULL || d->states == NULL ||
        d->polled == NULL || d->was_donated == NULL) {
        return kvf_engine_fail(&d->engine, -ENOMEM, "cannot make its tables");
    }
    for (uint32_t i = 0; i < d->seat_count; i++) {
        d->seats[i].pages = d->page_memory + (size_t)i * plan->pages_max;
    }
    return 0;
}

int kvf_decode_main(int fleet_fd, uint32_t index)
{
    struct kvf_decode d;
    int rc;
    memset(&d, 0, sizeof(d));
    if (kvf_engine_open(fleet_fd, false, index, &d.engine) != 0 || make_tables(&d) != 0) {
        return KVF_ENGINE_BROKEN;
    }
    while ((rc = decode_turn(&d)) == 0) {
    }
    free(d.seats);
    free(d.page_memory);
    free(d.rooms);
    free(d.states);
    free(d.polled);
    free(d.was_donated);
    return rc == 1 && kvf_engine_close(&d.engine) == 0 ? 0 : KVF_ENGINE_BROKEN;
}

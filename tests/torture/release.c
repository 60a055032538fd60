/* Aborted rooms of a decode engine, and the one thing in which the policies differ: when the pages go to
 * their next owner.
 *
 * Every policy calls kvf_abort. Then `early` hands the pages on at once, `timer` some time later,
 * `drained` when the library shows the room drained. `ledger` and `forgetful` do as `drained` does, but
 * some of their paths forget the room: there `ledger` asks kvf_pages_are_idle before a page goes out, and
 * `forgetful` asks nothing. Whatever the policy, the experiment itself goes on watching the room until it
 * is drained, and looks at the canary until a little after that. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/torture/decode.h"
#include "tests/torture/pattern.h"

#define PROBE_OWNER_BIT UINT64_C(1)

static uint64_t page_bytes_of(const struct kvf_decode *d)
{
    return d->engine.plan->geometry.page_bytes;
}

static uint64_t total_bytes(const struct kvf_decode *d, const struct kvf_seat *seat)
{
    return (uint64_t)seat->request->page_count * page_bytes_of(d);
}

/* The next owner of a request's pages is somebody else: its name must differ. */
static uint64_t next_owner(const struct kvf_seat *seat)
{
    return seat->request->key ^ PROBE_OWNER_BIT;
}

static int read_placed(struct kvf_decode *d, const struct kvf_seat *seat, uint64_t *ret_placed)
{
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    int rc = kvf_room_info(d->engine.client, seat->room, &info);
    if (rc != 0) {
        return kvf_engine_fail(&d->engine, rc, "cannot read a room's progress");
    }
    *ret_placed = kvf_seat_landed(d, seat, info.placed_bytes);
    return 0;
}

static void tally_plan(struct kvf_decode *d, const struct kvf_request *r)
{
    static const enum kvf_tally kinds[KVF_ABORT_KINDS] = {
        [KVF_ABORT_IN_FLIGHT] = KVF_TALLY_ABORTS_IN_FLIGHT,
        [KVF_ABORT_NEAR_END] = KVF_TALLY_ABORTS_NEAR_END,
        [KVF_ABORT_BEFORE_GRANT] = KVF_TALLY_ABORTS_BEFORE_GRANT,
        [KVF_ABORT_QUEUED] = KVF_TALLY_ABORTS_QUEUED,
        [KVF_ABORT_TIMEOUT] = KVF_TALLY_ABORTS_TIMEOUT};
    static const enum kvf_tally sides[KVF_ABORT_SIDES] = {
        [KVF_SIDE_SINK] = KVF_TALLY_ABORTS_BY_SINK,
        [KVF_SIDE_SOURCE] = KVF_TALLY_ABORTS_BY_SOURCE,
        [KVF_SIDE_BOTH] = KVF_TALLY_ABORTS_BY_BOTH};
    if (r->abort_kind != KVF_ABORT_NONE) {
        kvf_engine_tally(&d->engine, kinds[r->abort_kind], 1);
        kvf_engine_tally(&d->engine, sides[r->abort_side], 1);
    }
}

int kvf_seat_abort(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_progress_shm *progress = &d->engine.fleet.progress[seat->request_idx];
    seat->abort_ns = kvf_torture_now_ns();
    int rc = kvf_abort(d->engine.client, seat->room, 100u + seat->request->abort_kind);
    if (rc != 0) {
        return kvf_engine_fail(&d->engine, rc, "cannot abort a sink room");
    }
    atomic_store_explicit(&progress->sink_abort_ns, seat->abort_ns, memory_order_release);
    return kvf_seat_observe_abort(d, seat);
}

/* The room failed by itself. By a fault of the network that was asked for, or else it must not go unseen. */
static void note_unplanned(struct kvf_decode *d, const struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    if (e->plan->has_planned_faults) {
        kvf_engine_tally(e, KVF_TALLY_PLANNED_FAILURES, 1);
        return;
    }
    kvf_engine_tally(e, KVF_TALLY_UNPLANNED_FAILURES, 1);
    if (e->shm->note[0] == 0 && kvf_room_info(e->client, seat->room, &info) == 0) {
        snprintf(e->shm->note, sizeof(e->shm->note),
                 "request %u failed although nobody aborted it: %s (%s, detail %u)",
                 seat->request_idx, kvf_strerror((int)info.reason),
                 kvf_code_name_of((int)info.reason), info.detail);
    }
}

int kvf_seat_observe_abort(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    struct kvf_progress_shm *progress = &e->fleet.progress[seat->request_idx];
    seat->observed_ns = kvf_torture_now_ns();
    seat->state = KVF_SEAT_ABORTED;
    if (seat->abort_ns == 0) {
        /* Edge F5 (acquire): the source's engine stored its time before it aborted. */
        seat->abort_ns = atomic_load_explicit(&progress->source_abort_ns, memory_order_acquire);
    }
    if (seat->abort_ns == 0) {
        note_unplanned(d, seat);
        seat->abort_ns = seat->observed_ns;
    } else {
        tally_plan(d, seat->request);
    }
    /* Read after the abort, so that what landed between the two is not counted as landed after. */
    return read_placed(d, seat, &seat->placed_at_abort);
}

/* ---- proof ---------------------------------------------------------------------------------------- */

static void add_sample(struct kvf_decode *d, uint64_t engine_us, uint64_t daemon_us)
{
    struct kvf_engine *e = &d->engine;
    uint32_t count = atomic_load_explicit(&e->shm->sample_count, memory_order_relaxed);
    if (count < e->plan->samples_max) {
        struct kvf_sample_shm *samples =
            e->fleet.samples + (size_t)e->index * e->plan->samples_max;
        samples[count] = (struct kvf_sample_shm){(uint32_t)engine_us, (uint32_t)daemon_us};
        atomic_store_explicit(&e->shm->sample_count, count + 1, memory_order_relaxed);
    }
}

static void tally_donor(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    struct kvf_progress_shm *progress = &e->fleet.progress[seat->request_idx];
    uint64_t landed = seat->placed_in_all - seat->placed_at_abort;
    seat->is_donor = true;
    atomic_store_explicit(&progress->is_donor, 1, memory_order_relaxed);
    kvf_engine_tally(e, KVF_TALLY_DONORS, 1);
    seat->is_exposed = landed > 0;
    kvf_engine_tally(e, KVF_TALLY_LANDED_AFTER, landed);
}

/* A bound that was broken must not go unseen either; it comes before other notes. */
static void note_late(struct kvf_decode *d, const struct kvf_seat *seat,
                      const struct kvf_room_info *info, uint64_t engine_us)
{
    struct kvf_engine *e = &d->engine;
    snprintf(e->shm->note, sizeof(e->shm->note),
             "request %u, abort of kind %u by side %u: %" PRIu64 " us from the abort, %" PRIu64
             " from its close to drained, %s",
             seat->request_idx, seat->request->abort_kind, seat->request->abort_side, engine_us,
             info->close_to_drained_ns / 1000, kvf_code_name_of((int)info->reason));
}

/* The room is drained and failed: what kind of abort was it, and how long did the proof take? */
static int note_failed(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    int rc = kvf_room_info(e->client, seat->room, &info);
    if (rc != 0) {
        return kvf_engine_fail(e, rc, "cannot read a drained room");
    }
    uint64_t engine_us = (seat->drained_ns - seat->abort_ns) / 1000;
    uint64_t bound_us = atomic_load_explicit(&e->shm->bound_worst_us, memory_order_relaxed);
    uint64_t landed = seat->released_ns == 0 ? kvf_seat_landed(d, seat, info.placed_bytes)
                                             : info.placed_bytes;
    seat->placed_in_all = landed > seat->placed_at_abort ? landed : seat->placed_at_abort;
    kvf_engine_tally(e, KVF_TALLY_FAILURES, 1);
    kvf_engine_tally(e, KVF_TALLY_BYTES_MOVED, seat->placed_in_all);
    if (info.proof >= 1 && info.proof <= 9) {
        kvf_engine_tally(e, (enum kvf_tally)(KVF_TALLY_PROOF_1 + info.proof - 1), 1);
    }
    if (engine_us > bound_us || info.close_to_drained_ns / 1000 > bound_us) {
        kvf_engine_tally(e, KVF_TALLY_BOUND_BROKEN, 1);
        note_late(d, seat, &info, engine_us);
    }
    if (seat->placed_at_abort > 0 && seat->placed_at_abort < total_bytes(d, seat)) {
        tally_donor(d, seat);
        add_sample(d, engine_us, info.close_to_drained_ns / 1000);
    } else {
        kvf_engine_tally(e, KVF_TALLY_ABORTED_ELSEWHERE, 1);
    }
    return 0;
}

/* ---- release -------------------------------------------------------------------------------------- */

static bool takes_forgetful_path(const struct kvf_decode *d, const struct kvf_seat *seat)
{
    uint32_t mode = d->engine.plan->release_mode;
    return (mode == KVF_RELEASE_LEDGER || mode == KVF_RELEASE_FORGETFUL) &&
           seat->request->forget != KVF_FORGET_NOT;
}

bool kvf_ask_ledger(void *ctx, int32_t page)
{
    struct kvf_engine *e = ctx;
    return kvf_pages_are_idle(e->client, e->region, &page, 1, NULL) == 1;
}

/* On the path that forgets the room: does the allocator let the pages go to the next owner in line? */
static bool allocator_allows(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    if (!seat->is_forgotten) {
        seat->is_forgotten = true;
        kvf_engine_tally(e, KVF_TALLY_FORGOTTEN, 1);
    }
    if (e->plan->release_mode == KVF_RELEASE_FORGETFUL ||
        seat->request->forget == KVF_FORGET_FREE) {
        return true; /* nobody asks now; a free list asks when a page is handed out */
    }
    if (kvf_pages_are_idle(e->client, e->region, seat->pages, seat->request->page_count,
                           NULL) == 1) {
        return true;
    }
    kvf_engine_tally(e, KVF_TALLY_REFUSALS, 1);
    return false;
}

/* May the pages go to their next owner now? This is the policy, and the only place that knows it. */
static bool may_release(struct kvf_decode *d, struct kvf_seat *seat, uint64_t now_ns)
{
    const struct kvf_fleet_plan *plan = d->engine.plan;
    if (takes_forgetful_path(d, seat)) {
        return allocator_allows(d, seat);
    }
    switch ((enum kvf_release_mode)plan->release_mode) {
    case KVF_RELEASE_EARLY:
        return true;
    case KVF_RELEASE_TIMER:
        return now_ns - seat->observed_ns >= plan->timer_us * UINT64_C(1000);
    case KVF_RELEASE_DRAINED:
    case KVF_RELEASE_LEDGER:
    case KVF_RELEASE_FORGETFUL:
        return seat->drained_ns != 0 || plan->inject == KVF_INJECT_DRAINED_AT_ONCE;
    case KVF_RELEASE_MODES:
        break;
    }
    return false;
}

static int release_pages(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    const struct kvf_request *r = seat->request;
    int rc;
    if (takes_forgetful_path(d, seat) && r->forget == KVF_FORGET_FREE) {
        rc = kvf_allocator_give(&e->allocator, seat->pages, r->page_count, r->key, false);
        seat->has_no_pages = true;
        seat->released_ns = kvf_torture_now_ns();
    } else {
        rc = kvf_allocator_pass(&e->allocator, seat->pages, r->page_count, r->key,
                                next_owner(seat));
        kvf_probe_begin(e, &seat->probe, seat->pages, r->page_count, r->key);
        seat->released_ns = seat->probe.began_ns;
    }
    for (uint32_t i = 0; i < r->page_count; i++) {
        d->was_donated[seat->pages[i]] = true;
    }
    return rc == 0 ? 0 : kvf_engine_fail(e, rc, "released pages that it did not own");
}

/* ---- the end of a probe ----------------------------------------------------------------------------- */

static void tally_probe(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    bool is_foreign = seat->probe.foreign_bytes != 0;
    kvf_engine_tally(e, seat->is_donor ? KVF_TALLY_PROBES : KVF_TALLY_OTHER_PROBES, 1);
    kvf_engine_tally(e, KVF_TALLY_EXPOSED, seat->is_donor && seat->is_exposed);
    kvf_engine_tally(e, seat->is_donor ? KVF_TALLY_FOREIGN : KVF_TALLY_OTHER_FOREIGN,
                     is_foreign);
    kvf_engine_tally(e, KVF_TALLY_FOREIGN_BYTES, seat->probe.foreign_bytes);
    kvf_engine_tally(e, KVF_TALLY_FOREIGN_OWNED, seat->probe.owned_bytes);
}

static int end_aborted(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_engine *e = &d->engine;
    const struct kvf_request *r = seat->request;
    int rc = kvf_release(e->client, seat->room);
    if (rc != 0) {
        return kvf_engine_fail(e, rc, "cannot release a drained room");
    }
    kvf_engine_tally(e, KVF_TALLY_ROOMS_ENDED, 1);
    if (!seat->has_no_pages) {
        kvf_probe_sweep(e, &seat->probe, seat->pages, r->page_count);
        if (!seat->is_lost_race) {
            tally_probe(d, seat);
        }
        kvf_allocator_give(&e->allocator, seat->pages, r->page_count, next_owner(seat), false);
    }
    kvf_seat_end(d, seat);
    return 0;
}

int kvf_seat_turn_aborted(struct kvf_decode *d, struct kvf_seat *seat, int state)
{
    const struct kvf_fleet_plan *plan = d->engine.plan;
    bool is_ended = state == KVF_FAILED || state == KVF_SUCCESS;
    if (is_ended && seat->drained_ns == 0) {
        seat->drained_ns = kvf_torture_now_ns();
        seat->is_lost_race = state == KVF_SUCCESS;
        if (seat->is_lost_race) {
            kvf_engine_tally(&d->engine, KVF_TALLY_LOST_RACE, 1);
            if (seat->released_ns == 0) {
                return kvf_seat_arrive(d,
                                       seat); /* the pages are still ours, and all is there */
            }
            kvf_engine_tally(&d->engine, KVF_TALLY_BYTES_MOVED, total_bytes(d, seat));
        } else if (note_failed(d, seat) != 0) {
            return -1;
        }
    }
    uint64_t now_ns = kvf_torture_now_ns();
    if (seat->released_ns == 0) {
        if (!may_release(d, seat, now_ns)) {
            return 0;
        }
        return release_pages(d, seat);
    }
    uint64_t since_ns =
        seat->drained_ns > seat->released_ns ? seat->drained_ns : seat->released_ns;
    if (seat->drained_ns != 0 && now_ns - since_ns >= plan->settle_ns) {
        return end_aborted(d, seat);
    }
    if (!seat->has_no_pages && seat->probe.foreign_bytes == 0 &&
        now_ns - seat->probe.swept_ns >= plan->resweep_ns) {
        kvf_probe_sweep(&d->engine, &seat->probe, seat->pages, seat->request->page_count);
    }
    return 0;
}

void kvf_seat_give_up(struct kvf_decode *d, struct kvf_seat *seat)
{
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    if (seat->state == KVF_SEAT_ANSWER ||
        kvf_room_info(d->engine.client, seat->room, &info) != 0) {
        return;
    }
    if (info.phase == 4) {
        kvf_engine_tally(&d->engine, KVF_TALLY_PAGES_QUARANTINED, seat->request->page_count);
    }
}

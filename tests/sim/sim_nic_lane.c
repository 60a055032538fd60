/* The process' side of a queue pair, as a transport over verbs has it: posts are handed over in lists, a success is
 * told for some of them and means all before, an error is told for each, and a completion that never comes is
 * found by a deadline of software, because nothing else finds it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/sim/fabric_internal.h"

#define DOORBELL_MAX 64u
#define SIGNAL_EVERY 16u
#define COMPLETION_DEADLINE_NS UINT64_C(2000000000)

/* ---- completion queue ------------------------------------------------------------------------------------- */

static void grow(struct sim_transport *t)
{
    uint32_t cap = t->cq_cap == 0 ? 64 : 2 * t->cq_cap;
    struct sim_cqe *cq = malloc(cap * sizeof(*cq));
    assert(cq != NULL);
    for (uint32_t seq = t->cq_head; seq != t->cq_tail; seq++) {
        cq[seq & (cap - 1)] = t->cq[seq & (t->cq_cap - 1)];
    }
    free(t->cq);
    t->cq = cq;
    t->cq_cap = cap;
}

void simnet_cq_push(struct sim_transport *t, struct sim_random *luck, const struct sim_cqe *cqe)
{
    struct sim_fabric_counters *counters = &t->fabric->counters;
    if (sim_random_chance(luck, t->options.lose_cqe_per_million)) {
        counters->cqes_lost++;
        return;
    }
    if (t->options.cq_depth != 0 && t->cq_tail - t->cq_head >= t->options.cq_depth) {
        counters->cqes_lost++;
        counters->cq_overruns += !t->is_cq_broken;
        t->is_cq_broken = true; /* the queue pair goes on as if nothing were [T14] */
        simnet_fabric_wake(t->fabric, t->host);
        return;
    }
    if (t->cq_tail - t->cq_head == t->cq_cap) {
        grow(t);
    }
    t->cq[t->cq_tail++ & (t->cq_cap - 1)] = *cqe;
    simnet_fabric_wake(t->fabric, t->host);
}

bool simnet_cq_has_work(const struct sim_transport *t)
{
    return t->cq_head != t->cq_tail || (t->is_cq_broken && !t->is_cq_told);
}

static void take_send(struct sim_transport *t, uint32_t lane_idx, const struct sim_cqe *cqe)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    uint32_t serial = lane->serial;
    if (lane->sent - lane->head <= lane->sent - cqe->entry_seq - 1) {
        return; /* was told with a later one: some completion between them was lost */
    }
    /* A flush that comes first says nothing good of what should have come before it. Any other error does: a
     * queue pair errs at the first request that fails. */
    int before = cqe->status == ECONNABORTED ? -ECONNABORTED : 0;
    simnet_lane_complete(t, lane_idx, cqe->entry_seq, before);
    if (lane->serial == serial) {
        simnet_lane_complete(t, lane_idx, cqe->entry_seq + 1, -cqe->status);
    }
    if (lane->serial != serial) {
        return;
    }
    simnet_wait_progress(t, lane_idx);
    if (cqe->status != 0) {
        simnet_lane_lose(t, lane_idx, cqe->status);
    } else if (lane->sent != lane->tail) {
        simnet_lane_mark(t, lane_idx);
    }
}

static void take_marker(struct sim_transport *t, uint32_t lane_idx, const struct sim_cqe *cqe)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    uint32_t serial = lane->serial;
    if (lane->state != SIM_LANE_UP) {
        return;
    }
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    struct sim_qp *qp = d != NULL ? simnet_qp_of_end(t->fabric, &d->end[SIM_SINK]) : NULL;
    if (qp != NULL) {
        qp->receives++; /* posted again */
    }
    int rc =
        t->calls.marker_fn(t->calls.ctx, lane_idx, lane->epoch, cqe->handle, cqe->marker_kind);
    if (rc < 0 && lane->serial == serial) {
        simnet_lane_lose(t, lane_idx, EPROTO);
    }
}

uint64_t simnet_cq_turn(struct sim_transport *t)
{
    uint64_t taken = 0;
    while (taken < SIM_TURN_CQES && t->cq_head != t->cq_tail) {
        struct sim_cqe cqe = t->cq[t->cq_head++ & (t->cq_cap - 1)];
        taken++;
        if (cqe.is_taken || t->lanes[cqe.lane].serial != cqe.lane_serial) {
            continue; /* of a lane that was fenced: counted there, told nobody */
        }
        if (cqe.marker_kind != 0) {
            take_marker(t, cqe.lane, &cqe);
        } else {
            take_send(t, cqe.lane, &cqe);
        }
    }
    if (t->is_cq_broken && !t->is_cq_told) {
        t->is_cq_told =
            true; /* completions were lost, nobody knows whose: all lanes of the queue end */
        for (uint32_t i = 0; i < t->config.lanes_max; i++) {
            simnet_lane_lose(t, i, EOVERFLOW);
        }
        taken++;
    }
    return taken;
}

void simnet_cq_reap_lane(struct sim_transport *t, uint32_t lane_idx)
{
    for (uint32_t seq = t->cq_head; seq != t->cq_tail; seq++) {
        struct sim_cqe *at = &t->cq[seq & (t->cq_cap - 1)];
        if (at->lane != lane_idx || at->is_taken ||
            at->lane_serial != t->lanes[lane_idx].serial) {
            continue;
        }
        at->is_taken = true;
        if (at->marker_kind == 0 && at->status == 0) {
            struct sim_cqe cqe = *at;
            take_send(t, lane_idx,
                      &cqe); /* its callbacks may move the queue: no pointer is kept */
        }
    }
}

/* ---- doorbell ------------------------------------------------------------------------------------------------ */

static void make_wr(struct sim_transport *t, uint32_t lane_idx, const struct sim_duct *d,
                    uint32_t seq, bool is_last, struct sim_wr *ret_wr)
{
    struct sim_fabric *f = t->fabric;
    struct sim_lane *lane = &t->lanes[lane_idx];
    const struct sim_entry *entry = simnet_entry_at(t, lane, seq);
    uint32_t every = t->options.signal_every != 0 ? t->options.signal_every : SIGNAL_EVERY;
    uint32_t depth = t->options.sq_depth != 0 ? t->options.sq_depth : 31;
    every = every > depth ? depth : every; /* a full queue always has a signalled one in it */
    *ret_wr = (struct sim_wr){.post = entry->post,
                              .page_bytes = entry->page_bytes,
                              .entry_seq = seq,
                              .is_signalled = is_last || seq % every == every - 1};
    if (entry->post.kind != KVF_LANE_DATA) {
        ret_wr->post.kind = entry->is_cut ? KVF_LANE_DRAIN : entry->post.kind;
        ret_wr->is_signalled = true;
        return;
    }
    ret_wr->is_bad_key =
        f->options.remote_fn(f->options.ctx, t->host, d->end[SIM_SINK].host, lane_idx,
                             lane->epoch, &entry->post, &ret_wr->remote) != 0;
}

/* Hands over what waits, in lists. A list may be taken in part [T25]: what was taken is out, the rest still waits. */
void simnet_nic_doorbell(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    struct sim_qp *qp = d != NULL ? simnet_qp_of_end(t->fabric, &d->end[SIM_SOURCE]) : NULL;
    struct sim_wr list[DOORBELL_MAX];
    while (qp != NULL && lane->sent != lane->tail) {
        uint32_t count = lane->tail - lane->sent;
        count = count < DOORBELL_MAX ? count : DOORBELL_MAX;
        for (uint32_t i = 0; i < count; i++) {
            make_wr(t, lane_idx, d, lane->sent + i, i + 1 == count, &list[i]);
        }
        bool was_idle = lane->head == lane->sent;
        uint32_t taken = simnet_qp_post(t->fabric, qp, list, count);
        lane->sent += taken;
        if (was_idle && taken > 0) {
            simnet_wait_progress(t, lane_idx);
        }
        if (taken < count) {
            break; /* completions will make room */
        }
    }
}

/* ---- completions that never come ------------------------------------------------------------------------------ */

/* Lanes with posts out stand in the order of their last progress, so only the first can be overdue. */
static uint64_t deadline_of(const struct sim_transport *t, uint32_t lane_idx)
{
    uint64_t most = t->options.completion_deadline_ns != 0 ? t->options.completion_deadline_ns
                                                           : COMPLETION_DEADLINE_NS;
    return t->lanes[lane_idx].progress_ns + most;
}

static void on_deadline(void *ctx, uint64_t host, uint64_t incarnation)
{
    struct sim_fabric *f = ctx;
    struct sim_transport *t = f->nodes[host].transport;
    if (t == NULL || t->incarnation != incarnation) {
        return;
    }
    t->has_deadline = false;
    if (t->wait_head == 0) {
        return;
    }
    uint64_t due_ns = deadline_of(t, t->wait_head - 1);
    if (due_ns <= f->clock->now_ns) {
        t->is_deadline_due = true;
        simnet_fabric_wake(f, t->host);
        return;
    }
    t->has_deadline = true;
    sim_clock_at(f->clock, due_ns, on_deadline, f, host, incarnation);
}

void simnet_wait_remove(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    if (!lane->is_waiting) {
        return;
    }
    lane->is_waiting = false;
    if (lane->wait_prev != 0) {
        t->lanes[lane->wait_prev - 1].wait_next = lane->wait_next;
    } else {
        t->wait_head = lane->wait_next;
    }
    if (lane->wait_next != 0) {
        t->lanes[lane->wait_next - 1].wait_prev = lane->wait_prev;
    } else {
        t->wait_tail = lane->wait_prev;
    }
}

void simnet_wait_progress(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    simnet_wait_remove(t, lane_idx);
    if (lane->head == lane->sent || lane->state != SIM_LANE_UP) {
        return;
    }
    lane->is_waiting = true;
    lane->progress_ns = t->fabric->clock->now_ns;
    lane->wait_next = 0;
    lane->wait_prev = t->wait_tail;
    if (t->wait_tail != 0) {
        t->lanes[t->wait_tail - 1].wait_next = lane_idx + 1;
    } else {
        t->wait_head = lane_idx + 1;
    }
    t->wait_tail = lane_idx + 1;
    if (!t->has_deadline) {
        t->has_deadline = true;
        sim_clock_at(t->fabric->clock, deadline_of(t, t->wait_head - 1), on_deadline, t->fabric,
                     t->host, t->incarnation);
    }
}

uint64_t simnet_wait_turn(struct sim_transport *t)
{
    if (!t->is_deadline_due) {
        return 0;
    }
    t->is_deadline_due = false;
    while (t->wait_head != 0 && deadline_of(t, t->wait_head - 1) <= t->fabric->clock->now_ns) {
        t->fabric->counters.deadline_losses++;
        simnet_lane_lose(t, t->wait_head - 1, ETIMEDOUT); /* takes it off the list */
    }
    if (t->wait_head != 0 && !t->has_deadline) {
        t->has_deadline = true;
        sim_clock_at(t->fabric->clock, deadline_of(t, t->wait_head - 1), on_deadline, t->fabric,
                     t->host, t->incarnation);
    }
    return 1;
}

/* Completions.
 *
 * A completion is looked up by its wr_id alone, never by a queue pair's number: numbers are used again, and on an
 * error nothing but wr_id and status may be read. The accounts are exact. Sends of a queue pair complete in order:
 * a success covers all before it that were not signalled, and so does an error, since each one that fails has a
 * completion of its own. Each receive has one. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>

#include "sidecar/transport/verbs_lane.h"

static struct kvf_verbs_lane *lane_of(struct kvf_verbs *v, uint64_t id)
{
    uint32_t idx = (uint32_t)(id >> 48) & (KVF_VERBS_LANES_MAX - 1u);
    if (idx >= v->config.lanes_max) {
        return NULL;
    }
    struct kvf_verbs_lane *lane = &v->lanes[idx];
    uint32_t serial = (uint32_t)(id >> 24) & 0xffffffu;
    return lane->state != KVF_VERBS_FREE && serial == (lane->serial & 0xffffffu) ? lane : NULL;
}

/* The full number of a work request from the 24 bits of its id: it is one of those that are out. */
static bool number_of(const struct kvf_verbs_lane *lane, uint64_t id, uint32_t *ret_number)
{
    uint32_t ahead = ((uint32_t)id - lane->wr_reaped) & 0xffffffu;
    *ret_number = lane->wr_reaped + ahead;
    return ahead < kvf_verbs_sends_out(lane);
}

static void on_send(struct kvf_verbs *v, struct kvf_verbs_lane *lane, const struct ibv_wc *wc)
{
    uint32_t number = 0;
    if (!number_of(lane, wc->wr_id, &number)) {
        v->counts.completions_stray++;
        return;
    }
    lane->wr_reaped = number + 1u;
    if (wc->status != IBV_WC_SUCCESS && !lane->has_failed) {
        bool is_ours = lane->state == KVF_VERBS_FENCING && wc->status == IBV_WC_WR_FLUSH_ERR;
        lane->has_failed = true;
        lane->wr_failed = number;
        lane->fail_status = is_ours ? -ECONNABORTED : -EIO;
    }
    if (wc->status != IBV_WC_SUCCESS) {
        kvf_verbs_lose(v, lane, EIO);
    }
    if (lane->state == KVF_VERBS_UP) {
        kvf_verbs_age_remove(v, lane);
        if (kvf_verbs_sends_out(lane) > 0) {
            kvf_verbs_age_add(v, &v->posted, lane);
        }
    }
    kvf_verbs_tell_completed(v, lane);
    if (kvf_verbs_has_posts(v, lane)) {
        kvf_verbs_mark(v, lane);
    }
}

/* The opcode tells END and DRAIN apart. Anything else a peer might send says nothing that we know. */
static uint8_t kind_of(const struct ibv_wc *wc)
{
    if ((wc->wc_flags & IBV_WC_WITH_IMM) == 0) {
        return 0;
    }
    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        return KVF_LANE_END;
    }
    return wc->opcode == IBV_WC_RECV ? KVF_LANE_DRAIN : 0;
}

/* Receives that were used go back in batches; there are as many more of them than markers can be under way. */
static void repost(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    uint32_t depth = lane->rail->receive_depth;
    if (depth - (lane->receives_posted - lane->receives_reaped) < KVF_VERBS_RECEIVE_BATCH) {
        return;
    }
    struct ibv_recv_wr wrs[KVF_VERBS_RECEIVE_BATCH];
    struct ibv_recv_wr *bad = NULL;
    for (uint32_t i = 0; i < KVF_VERBS_RECEIVE_BATCH; i++) {
        bool is_last = i + 1u == KVF_VERBS_RECEIVE_BATCH;
        wrs[i] = (struct ibv_recv_wr){.wr_id = kvf_verbs_id(lane, lane->receives_posted + i) |
                                               KVF_VERBS_ID_RECEIVE,
                                      .next = is_last ? NULL : &wrs[i + 1u]};
    }
    int rc = ibv_post_recv(lane->job.qp, wrs, &bad);
    uint32_t posted = KVF_VERBS_RECEIVE_BATCH;
    if (rc != 0) {
        posted = 0;
        while (posted < KVF_VERBS_RECEIVE_BATCH && &wrs[posted] != bad) {
            posted++;
        }
        kvf_verbs_lose(v, lane, rc > 0 ? rc : -rc);
    }
    lane->receives_posted += posted;
}

static void on_receive(struct kvf_verbs *v, struct kvf_verbs_lane *lane,
                       const struct ibv_wc *wc)
{
    if (!lane->is_sink || lane->receives_posted == lane->receives_reaped) {
        v->counts.completions_stray++;
        return;
    }
    lane->receives_reaped++;
    if (wc->status != IBV_WC_SUCCESS) {
        kvf_verbs_lose(v, lane, ECONNRESET);
        return;
    }
    if (lane->state != KVF_VERBS_UP || lane->owes_up) {
        /* Nobody waits for it any more; or nobody does yet, and then no grant can have asked for it. */
        v->counts.receives_dropped++;
        kvf_verbs_lose(v, lane, EPROTO);
        return;
    }
    uint8_t kind = kind_of(wc);
    int rc = kind == 0 ? -EPROTO
                       : v->host.marker_fn(v->host.ctx, lane->idx, lane->epoch,
                                           ntohl(wc->imm_data), kind);
    if (rc < 0) {
        kvf_verbs_lose(v, lane, EPROTO);
    } else if (lane->state == KVF_VERBS_UP) {
        repost(v, lane);
    }
}

static void on_completion(struct kvf_verbs *v, const struct ibv_wc *wc)
{
    struct kvf_verbs_lane *lane = lane_of(v, wc->wr_id);
    if (lane == NULL) {
        v->counts.completions_stray++;
        return;
    }
    if ((wc->wr_id & KVF_VERBS_ID_RECEIVE) != 0) {
        on_receive(v, lane, wc);
    } else {
        on_send(v, lane, wc);
    }
    if (lane->state == KVF_VERBS_FENCING && lane->phase == KVF_VERBS_REAPING &&
        kvf_verbs_is_reaped(lane)) {
        kvf_verbs_destroy_lane(v, lane);
    }
}

/* Up to `batches` batches. How many completions. A callback may open lanes and fence them, but no queue pair is
 * made or destroyed here, so that what was taken stays true. */
static uint64_t poll_cq(struct kvf_verbs *v, struct kvf_verbs_cq *cq, uint32_t batches)
{
    struct ibv_wc wcs[KVF_VERBS_BATCH];
    uint64_t taken = 0;
    for (uint32_t i = 0; i < batches && !cq->is_broken; i++) {
        int count = ibv_poll_cq(cq->cq, (int)KVF_VERBS_BATCH, wcs);
        for (int j = 0; j < count; j++) {
            on_completion(v, &wcs[j]);
        }
        taken += count > 0 ? (uint64_t)count : 0;
        if (count < (int)KVF_VERBS_BATCH) {
            break;
        }
    }
    return taken;
}

uint64_t kvf_verbs_poll_cqs(struct kvf_verbs *v)
{
    uint64_t taken = 0;
    for (uint32_t i = 0; i < v->rail_count; i++) {
        struct kvf_verbs_rail *rail = &v->rails[i];
        for (uint32_t j = 0; j < rail->cq_count; j++) {
            if (rail->cqs[j].is_made && !rail->cqs[j].is_broken) {
                taken += poll_cq(v, &rail->cqs[j], KVF_VERBS_TURN_BATCHES);
            }
        }
    }
    return taken;
}

void kvf_verbs_cq_empty(struct kvf_verbs *v, struct kvf_verbs_cq *cq)
{
    uint32_t slots = v->rails[cq->rail].cq_slots;
    (void)poll_cq(v, cq, slots / KVF_VERBS_BATCH + 1u);
}

/* The visibility step of memory that the host does not own.
 *
 * A queue pair's completions, and its destroy, say that its device has passed on what was written; they do not say
 * that it has arrived in another device's memory. A read through the same device comes behind those writes: when
 * its answer is here, they are there. So each rail has a queue pair connected to itself, with a completion queue
 * and a byte of memory of its own, made when the first memory of a device is registered, or at the latest with the
 * first read that is asked of it. It has a thread of its own for that: no join to a silent peer stands before it. It
 * needs no link: a port that is down keeps no flush from its answer. Nothing of a lane is touched, and no peer can
 * read through it: it is connected to nobody else.
 *
 * One that failed is destroyed and made again for what is asked then. What was out fails with it: nobody knows. Only
 * where its completion queue lost completions nothing is said of the reads, and they are asked again: a later read comes
 * behind the same writes. A read that never comes back is waited for as long as the caller waits. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "sidecar/transport/verbs_lane.h"

/* ---- requests ------------------------------------------------------------------------------------------ */

void kvf_verbs_flushes_init(struct kvf_verbs *v)
{
    for (uint32_t i = 0; i < KVF_VERBS_FLUSHES_MAX; i++) {
        v->flushes[i].next = i + 1u; /* the last one's is no index */
    }
    v->flush_free = 0;
}

static uint32_t rails_of(const struct kvf_verbs *v, uint32_t lanes)
{
    uint32_t rails = 0;
    if (lanes == KVF_FLUSH_ALL_RAILS) {
        return (UINT32_C(1) << v->rail_count) - 1u;
    }
    for (uint32_t left = lanes; left != 0; left &= left - 1u) {
        rails |= UINT32_C(1) << kvf_verbs_rail_of_lane(v, (uint32_t)__builtin_ctz(left))->idx;
    }
    return rails;
}

int kvf_verbs_flush(const struct kvf_verbs_memory *memory, uint32_t lanes, uint64_t cookie)
{
    struct kvf_verbs *v = memory->verbs;
    uint32_t idx = v->flush_free;
    if (idx == KVF_VERBS_FLUSHES_MAX) {
        return -EAGAIN;
    }
    struct kvf_verbs_flush *flush = &v->flushes[idx];
    uint32_t rails = rails_of(v, lanes);
    if (rails == 0) {
        return -EINVAL; /* a flush over no device proves nothing */
    }
    for (uint32_t i = 0; i < v->rail_count; i++) {
        if ((rails >> i & 1u) != 0 && v->rails[i].context == NULL) {
            return -ENODEV; /* nor does one that leaves a device out */
        }
    }
    v->flush_free = flush->next;
    v->flush_count++;
    *flush = (struct kvf_verbs_flush){.memory = memory, .cookie = cookie, .rails = rails};
    for (uint32_t i = 0; i < v->rail_count; i++) {
        if ((rails >> i & 1u) != 0) {
            struct kvf_verbs_flusher *f = &v->rails[i].flusher;
            assert(f->tail - f->head < KVF_VERBS_FLUSHES_MAX);
            f->queue[f->tail++ % KVF_VERBS_FLUSHES_MAX] = (uint16_t)idx;
        }
    }
    return 0;
}

/* The oldest of this rail has its answer; told when it has that of every rail. */
static void settle(struct kvf_verbs *v, struct kvf_verbs_rail *rail, int err)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    uint32_t idx = f->queue[f->head++ % KVF_VERBS_FLUSHES_MAX];
    struct kvf_verbs_flush *flush = &v->flushes[idx];
    assert((flush->rails >> rail->idx & 1u) != 0);
    flush->rails &= ~(UINT32_C(1) << rail->idx);
    flush->err = flush->err == 0 ? err : flush->err;
    if (flush->rails != 0) {
        return;
    }
    struct kvf_verbs_flush told = *flush;
    flush->next = v->flush_free;
    v->flush_free = idx;
    v->flush_count--;
    v->host.flushed_fn(v->host.ctx, told.cookie, told.err);
}

/* All that this rail was asked for until now. */
static void fail_all(struct kvf_verbs *v, struct kvf_verbs_rail *rail, int err)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    uint32_t end = f->tail; /* what a callback asks for is tried anew */
    while (f->head != end) {
        f->posted += f->posted == f->head ? 1u : 0u;
        settle(v, rail, err);
    }
}

/* ---- the queue pair -------------------------------------------------------------------------------------- */

static void make(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    struct ibv_qp *broken = f->job.qp;
    f->state = KVF_VERBS_FLUSHER_MAKING;
    f->cq.rail = rail->idx;
    f->job = (struct kvf_verbs_job){
        .rail = rail->idx, .cq = &f->cq, .qp = broken, .replaces_cq = f->cq.is_broken};
    kvf_verbs_push(v, &f->job, KVF_VERBS_MAKE_FLUSHER);
}

void kvf_verbs_flusher_back(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    assert(f->state == KVF_VERBS_FLUSHER_MAKING && f->posted == f->head);
    int err = f->job.err;
    if (f->job.has_replaced_cq) {
        f->cq.is_broken = false;
    }
    f->state = err != 0          ? KVF_VERBS_FLUSHER_NONE
               : f->cq.is_broken ? KVF_VERBS_FLUSHER_BROKEN /* meanwhile */
                                 : KVF_VERBS_FLUSHER_UP;
    if (err != 0) {
        fail_all(v, rail, err);
    }
}

void kvf_verbs_flusher_prepare(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    if (rail->flusher.state == KVF_VERBS_FLUSHER_NONE) {
        make(v, rail);
    }
}

void kvf_verbs_expect_flushes(struct kvf_transport *t)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    v->has_device_memory = true;
    for (uint32_t i = 0; i < v->lane_rail_count; i++) {
        kvf_verbs_flusher_prepare(v, &v->rails[v->lane_rails[i]]);
    }
}

void kvf_verbs_flusher_lost(struct kvf_verbs_rail *rail, bool is_final)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    if (f->head != f->posted) {
        f->repeats = is_final ? KVF_VERBS_REPEATS_MAX + 1u : (uint8_t)(f->repeats + 1u);
    }
    if (f->state == KVF_VERBS_FLUSHER_UP) {
        f->state = KVF_VERBS_FLUSHER_BROKEN;
    }
    if (f->state == KVF_VERBS_FLUSHER_BROKEN) {
        f->posted = f->head; /* the queue pair goes, with what it still has out */
    }
}

static int post(const struct kvf_verbs_rail *rail, const struct kvf_verbs_memory *memory,
                uint32_t number)
{
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)&rail->flusher.landing,
                          .length = 1,
                          .lkey = rail->flusher.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = number,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad = NULL;
    wr.wr.rdma.remote_addr = memory->base + memory->bytes - 1u;
    wr.wr.rdma.rkey = memory->remote_keys[rail->idx];
    int rc = ibv_post_send(rail->flusher.job.qp, &wr, &bad);
    return rc > 0 ? -rc : rc;
}

static uint64_t post_some(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    uint64_t count = 0;
    while (f->state == KVF_VERBS_FLUSHER_UP && f->posted != f->tail &&
           f->posted - f->head < rail->send_depth) {
        const struct kvf_verbs_flush *flush =
            &v->flushes[f->queue[f->posted % KVF_VERBS_FLUSHES_MAX]];
        int rc = post(rail, flush->memory, f->posted);
        count++;
        if (rc != 0) {
            f->state = KVF_VERBS_FLUSHER_BROKEN;
            if (f->posted == f->head) { /* else those before it come back first */
                f->posted++;
                settle(v, rail, rc);
            }
            break;
        }
        f->posted++;
    }
    return count;
}

static uint64_t take_some(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    struct ibv_wc wcs[KVF_VERBS_BATCH];
    if (f->posted == f->head || f->cq.is_broken) {
        return 0;
    }
    int count = ibv_poll_cq(f->cq.cq, (int)KVF_VERBS_BATCH, wcs);
    for (int i = 0; i < count; i++) {
        if (f->posted == f->head || wcs[i].wr_id != f->head) {
            v->counts.completions_stray++;
            continue;
        }
        bool is_good = wcs[i].status == IBV_WC_SUCCESS;
        if (is_good) {
            f->repeats = 0;
        } else {
            f->state = KVF_VERBS_FLUSHER_BROKEN;
        }
        settle(v, rail, is_good ? 0 : -EIO);
    }
    return count > 0 ? (uint64_t)count : 0;
}

uint64_t kvf_verbs_flush_poll(struct kvf_verbs *v)
{
    uint64_t moved = 0;
    for (uint32_t i = 0; i < v->rail_count && v->flush_count > 0; i++) {
        struct kvf_verbs_rail *rail = &v->rails[i];
        struct kvf_verbs_flusher *f = &rail->flusher;
        moved += take_some(v, rail);
        if (f->repeats > KVF_VERBS_REPEATS_MAX) {
            f->repeats = 0;
            fail_all(v, rail, -EIO);
        }
        bool is_wanted = f->head != f->tail && f->head == f->posted;
        if (is_wanted &&
            (f->state == KVF_VERBS_FLUSHER_NONE || f->state == KVF_VERBS_FLUSHER_BROKEN)) {
            make(v, rail);
        }
        moved += post_some(v, rail);
    }
    return moved;
}

bool kvf_verbs_flush_is_ready(const struct kvf_verbs *v)
{
    for (uint32_t i = 0; i < v->rail_count && v->flush_count > 0; i++) {
        const struct kvf_verbs_flusher *f = &v->rails[i].flusher;
        bool is_idle = f->head == f->posted && f->state != KVF_VERBS_FLUSHER_MAKING;
        bool has_place =
            f->state == KVF_VERBS_FLUSHER_UP && f->posted - f->head < v->rails[i].send_depth;
        if (f->posted != f->tail && (is_idle || has_place)) {
            return true;
        }
    }
    return false;
}

bool kvf_verbs_flush_arm(struct kvf_verbs *v)
{
    for (uint32_t i = 0; i < v->rail_count && v->flush_count > 0; i++) {
        const struct kvf_verbs_flusher *f = &v->rails[i].flusher;
        if (f->posted != f->head && !f->cq.is_broken && ibv_req_notify_cq(f->cq.cq, 0) != 0) {
            return false;
        }
    }
    return true;
}

void kvf_verbs_flusher_close(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct kvf_verbs_flusher *f = &rail->flusher;
    if (f->job.qp != NULL) {
        (void)v->lib->destroy_qp(f->job.qp);
    }
    if (f->cq.cq != NULL) {
        (void)v->lib->destroy_cq(f->cq.cq);
    }
    if (f->mr != NULL) {
        (void)v->lib->dereg_mr(f->mr);
    }
}

/* The calls that make, change and destroy queue pairs: on threads of their own, one job at a time each.
 *
 * One call of a join may take a second, while the kernel looks for a neighbour that does not answer, and a destroy may
 * wait for its device. So stops, destroys and flushers have threads that nothing else uses, and stand behind no
 * registration, make or join of another lane. Nothing here calls back. Queue pairs are never reset: a reset forgets
 * completions, and the number would speak for two connections. */
#include <errno.h>
#include <string.h>

#include "sidecar/host/process.h"
#include "sidecar/transport/verbs_lane.h"

/* How long a writer that found no receive is told to wait, as the device encodes it: 0.64 ms. */
#define RNR_TIMER 12u
/* ... and how often it comes back. 7 would mean for ever. */
#define RNR_RETRY 6u
#define HOPS_MAX 64u

int kvf_verbs_check_end(const struct kvf_lane_end *end, bool is_infiniband)
{
    static const uint8_t zero[16];
    uint32_t mtu = end->mtu_bytes;
    bool has_address = is_infiniband ? end->lid != 0 : memcmp(end->gid, zero, 16) != 0;
    return end->qpn != 0 && end->qpn <= 0xffffffu && end->psn <= 0xffffffu && mtu >= 256 &&
                   mtu <= 4096 && (mtu & (mtu - 1u)) == 0 && end->rail < KVF_WIRE_KEYS_MAX &&
                   has_address
               ? 0
               : -EPROTO;
}

static struct kvf_verbs_rail *rail_of(const struct kvf_verbs_job *job)
{
    return &job->verbs->rails[job->rail];
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static bool was_used_lately(struct kvf_verbs_rail *rail, uint32_t qpn)
{
    bool was = false;
    pthread_mutex_lock(&rail->numbers_lock);
    uint32_t count = rail->number_count < KVF_VERBS_NUMBERS_KEPT ? rail->number_count
                                                                 : KVF_VERBS_NUMBERS_KEPT;
    for (uint32_t i = 0; i < count && !was; i++) {
        was = rail->numbers[i] == qpn;
    }
    pthread_mutex_unlock(&rail->numbers_lock);
    return was;
}

static void note_number(struct kvf_verbs_rail *rail, uint32_t qpn)
{
    pthread_mutex_lock(&rail->numbers_lock);
    rail->numbers[rail->number_count++ % KVF_VERBS_NUMBERS_KEPT] = qpn;
    pthread_mutex_unlock(&rail->numbers_lock);
}

static struct ibv_qp *create_one(struct kvf_verbs_job *job)
{
    const struct kvf_verbs_rail *rail = rail_of(job);
    struct ibv_qp_init_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_context = job->lane;
    attr.send_cq = job->cq->cq;
    attr.recv_cq = job->cq->cq;
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = job->is_sink ? 1u : rail->send_depth;
    attr.cap.max_recv_wr = job->is_sink ? rail->receive_depth : 1u;
    attr.cap.max_send_sge = job->is_sink ? 1u : rail->sges_max;
    attr.cap.max_recv_sge = 1;
    return job->verbs->lib->create_qp(rail->pd, &attr);
}

/* A packet of a dead connection may still be under way, and the number is what it asks for. So a number that was
 * used lately is held while another one is made. One more than the numbers kept is enough, unless others are given
 * back meanwhile: then it is refused, and the lane is tried again. */
static int create_fresh(struct kvf_verbs_job *job)
{
    struct kvf_verbs_rail *rail = rail_of(job);
    struct ibv_qp *held[KVF_VERBS_NUMBERS_KEPT];
    uint32_t held_count = 0;
    int rc = 0;
    struct ibv_qp *qp = create_one(job);
    while (qp != NULL && was_used_lately(rail, qp->qp_num) &&
           held_count < KVF_VERBS_NUMBERS_KEPT) {
        held[held_count++] = qp;
        qp = create_one(job);
    }
    if (qp == NULL) {
        rc = errno > 0 ? -errno : -ENOMEM;
    } else if (was_used_lately(rail, qp->qp_num)) {
        (void)job->verbs->lib->destroy_qp(qp);
        rc = -EAGAIN;
    }
    job->numbers_avoided = held_count;
    for (uint32_t i = 0; i < held_count; i++) {
        /* Never connected: nothing can reach pages through one that would stay. */
        (void)job->verbs->lib->destroy_qp(held[i]);
    }
    if (rc == 0) {
        job->qp = qp;
    }
    return rc;
}

/* ---- states -------------------------------------------------------------------------------------------- */

static int modify(const struct kvf_verbs_job *job, struct ibv_qp_attr *attr, int mask)
{
    int rc = job->verbs->lib->modify_qp(job->qp, attr, mask);
    return rc > 0 ? -rc : rc;
}

static int to_init(const struct kvf_verbs_job *job)
{
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = (uint8_t)job->verbs->verbs.port;
    attr.qp_access_flags = job->lane == NULL ? IBV_ACCESS_REMOTE_READ
                           : job->is_sink    ? IBV_ACCESS_REMOTE_WRITE
                                             : 0;
    return modify(job, &attr,
                  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

/* A marker brings no bytes of its own, so receives have no memory. */
static int post_receives(struct kvf_verbs_job *job)
{
    struct ibv_recv_wr wrs[KVF_VERBS_RECEIVE_BATCH];
    struct ibv_recv_wr *bad = NULL;
    uint32_t depth = rail_of(job)->receive_depth;
    while (job->receives_posted < depth) {
        uint32_t count = depth - job->receives_posted;
        count = count < KVF_VERBS_RECEIVE_BATCH ? count : KVF_VERBS_RECEIVE_BATCH;
        for (uint32_t i = 0; i < count; i++) {
            wrs[i] = (struct ibv_recv_wr){.wr_id = job->receive_id + job->receives_posted + i,
                                          .next = i + 1 < count ? &wrs[i + 1] : NULL};
        }
        int rc = ibv_post_recv(job->qp, wrs, &bad);
        if (rc != 0) {
            for (uint32_t i = 0; i < count && &wrs[i] != bad; i++) {
                job->receives_posted++;
            }
            return rc > 0 ? -rc : rc;
        }
        job->receives_posted += count;
    }
    return 0;
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && (128u << (mtu + 1)) <= bytes) {
        mtu++;
    }
    return mtu;
}

/* Where this thread lists addresses. */
static struct ibv_gid_entry *entries_of(const struct kvf_verbs_job *job)
{
    struct kvf_verbs_rail *rail = rail_of(job);
    return job->hand == KVF_VERBS_READER ? rail->flusher.entries : rail->entries;
}

static int to_rtr(struct kvf_verbs_job *job)
{
    const struct kvf_verbs_config *verbs = &job->verbs->verbs;
    struct kvf_verbs_rail *rail = rail_of(job);
    const struct kvf_lane_end *peer = &job->peer;
    uint32_t own_mtu = job->end.mtu_bytes;
    uint32_t mtu = peer->mtu_bytes < own_mtu ? peer->mtu_bytes : own_mtu;
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = mtu_code(mtu);
    attr.dest_qp_num = peer->qpn;
    attr.rq_psn = peer->psn;
    attr.max_dest_rd_atomic =
        1; /* flushes are reads; lanes make none, and some devices refuse 0 */
    attr.min_rnr_timer = RNR_TIMER;
    attr.ah_attr.port_num = (uint8_t)verbs->port;
    attr.ah_attr.sl = verbs->service_level;
    if (rail->is_infiniband) {
        attr.ah_attr.dlid = peer->lid;
    } else {
        uint8_t gid[16];
        int gid_idx = kvf_verbs_gid_find(job->verbs, rail, entries_of(job), job->end.gid, gid);
        if (gid_idx < 0) {
            return gid_idx;
        }
        attr.ah_attr.is_global = 1;
        memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, 16);
        attr.ah_attr.grh.sgid_index = (uint8_t)gid_idx;
        attr.ah_attr.grh.hop_limit = HOPS_MAX;
        attr.ah_attr.grh.traffic_class = verbs->traffic_class;
    }
    return modify(job, &attr,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(const struct kvf_verbs_job *job)
{
    const struct kvf_verbs_config *verbs = &job->verbs->verbs;
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = job->end.psn;
    attr.timeout = verbs->timeout;
    attr.retry_cnt = verbs->retry;
    attr.rnr_retry = RNR_RETRY;
    attr.max_rd_atomic = 1;
    return modify(job, &attr,
                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* ---- jobs ---------------------------------------------------------------------------------------------- */

/* What the peer is told of this end, from the port as it is now. A flusher talks to itself and needs no link: where
 * a device cannot do that without one, its own answers say so. */
static int describe(struct kvf_verbs_job *job)
{
    struct kvf_verbs_rail *rail = rail_of(job);
    struct ibv_port_attr port;
    uint32_t psn = 0;
    int rc = kvf_verbs_port_query(job->verbs, rail, &port);
    if (rc != 0) {
        return rc;
    }
    if (port.state != IBV_PORT_ACTIVE && job->work != KVF_VERBS_MAKE_FLUSHER) {
        return -ENETDOWN;
    }
    rc = kvf_random_bytes(&psn, sizeof(psn));
    if (rc != 0) {
        return rc;
    }
    job->end = (struct kvf_lane_end){.psn = psn & 0xffffffu,
                                     .mtu_bytes = kvf_verbs_mtu(job->verbs, &port),
                                     .lid = rail->is_infiniband ? port.lid : 0,
                                     .rail = (uint8_t)job->rail};
    if (!rail->is_infiniband) {
        rc = kvf_verbs_gid_find(job->verbs, rail, entries_of(job), NULL, job->end.gid);
        job->has_gid = rc >= 0;
    }
    return rc < 0 ? rc : 0;
}

static int make_cq(struct kvf_verbs_job *job)
{
    const struct kvf_verbs_rail *rail = rail_of(job);
    if (job->cq->cq == NULL) {
        job->cq->cq = job->verbs->lib->create_cq(rail->context, (int)rail->cq_slots, job->cq,
                                                 rail->channel, 0);
    }
    job->has_cq = job->cq->cq != NULL;
    return job->has_cq ? 0 : -ENOMEM;
}

/* In INIT, and described. A queue pair that could not be brought all the way stays in the job, and whoever has that
 * destroys it: the lane's fence, or the next attempt at a flusher. */
static int make_end(struct kvf_verbs_job *job)
{
    int rc = describe(job);
    if (rc == 0) {
        rc = make_cq(job);
    }
    if (rc == 0) {
        rc = create_fresh(job);
    }
    if (rc == 0) {
        job->end.qpn = job->qp->qp_num;
        rc = to_init(job);
    }
    return rc;
}

static int join(struct kvf_verbs_job *job)
{
    int rc = to_rtr(job);
    return rc == 0 ? to_rts(job) : rc;
}

static int make(struct kvf_verbs_job *job)
{
    int rc = make_end(job);
    if (rc != 0) {
        return rc;
    }
    return job->is_sink ? post_receives(job) : join(job);
}

static int stop(const struct kvf_verbs_job *job)
{
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_ERR;
    return modify(job, &attr, IBV_QP_STATE);
}

/* The proof: when this returned 0, the device does nothing for that queue pair any more. */
static int destroy(struct kvf_verbs_job *job)
{
    /* Noted first: the other thread may be given the number before this call has returned. */
    note_number(rail_of(job), job->qp->qp_num);
    int rc = job->verbs->lib->destroy_qp(job->qp);
    if (rc != 0) {
        return rc > 0 ? -rc : rc;
    }
    job->qp = NULL;
    return 0;
}

static int destroy_cq(const struct kvf_verbs_job *job)
{
    int rc = job->verbs->lib->destroy_cq(job->cq->cq);
    if (rc == 0) {
        job->cq->cq = NULL;
    }
    return rc > 0 ? -rc : rc;
}

/* A queue pair that is connected to itself, in the place of one that broke. */
static int make_flusher(struct kvf_verbs_job *job)
{
    struct kvf_verbs_flusher *f = &rail_of(job)->flusher;
    int rc = job->qp != NULL ? destroy(job) : 0;
    if (rc == 0 && job->replaces_cq) {
        rc = destroy_cq(job);
        job->has_replaced_cq = rc == 0;
    }
    if (rc == 0 && f->mr == NULL) {
        f->mr = job->verbs->lib->reg_mr(rail_of(job)->pd, &f->landing, sizeof(f->landing),
                                        IBV_ACCESS_LOCAL_WRITE);
        rc = f->mr == NULL ? -ENOMEM : 0;
    }
    if (rc == 0) {
        rc = make_end(job);
    }
    job->peer = job->end;
    return rc == 0 ? join(job) : rc;
}

static int look(struct kvf_verbs_job *job)
{
    struct kvf_verbs_rail *rail = rail_of(job);
    ssize_t count = job->verbs->lib->query_gid_table(
        rail->context, rail->entries, KVF_VERBS_GIDS_MAX, 0, sizeof(rail->entries[0]));
    rail->seen_count = 0;
    for (ssize_t i = 0; i < count; i++) {
        const struct ibv_gid_entry *entry = &rail->entries[i];
        if (entry->port_num == job->verbs->verbs.port &&
            entry->gid_type == IBV_GID_TYPE_ROCE_V2) {
            memcpy(rail->seen[rail->seen_count++], entry->gid.raw, 16);
        }
    }
    return 0;
}

void kvf_verbs_work(struct kvf_job *base)
{
    struct kvf_verbs_job *job = (struct kvf_verbs_job *)base;
    switch (job->work) {
    case KVF_VERBS_MAKE:
        job->err = make(job);
        break;
    case KVF_VERBS_JOIN:
        job->err = join(job);
        break;
    case KVF_VERBS_STOP:
        job->err = stop(job);
        break;
    case KVF_VERBS_DESTROY:
        job->err = destroy(job);
        break;
    case KVF_VERBS_CQ_DESTROY:
        job->err = destroy_cq(job);
        break;
    case KVF_VERBS_LOOK:
        job->err = look(job);
        break;
    case KVF_VERBS_MAKE_FLUSHER:
        job->err = make_flusher(job);
        break;
    }
}

/* The network and what a NIC does on its own: sending, landing, acknowledging, failing. All under the lock. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_verbs/fake_internal.h"

#define RNR_NS UINT64_C(640000)

static struct fake_qp *qp_at(const struct fake_device *device, uint32_t qpn)
{
    return qpn < FAKE_QPS ? device->qps[qpn] : NULL;
}

static int32_t psn_diff(uint32_t a, uint32_t b)
{
    return (int32_t)((a - b) << 8) >> 8;
}

/* ---- completions ----------------------------------------------------------------------------------------- */

void fake_raise(struct fake_device *device, const struct fake_async *event)
{
    uint64_t one = 1;
    assert(device->event_tail - device->event_head < FAKE_EVENTS);
    device->events[device->event_tail++ % FAKE_EVENTS] = *event;
    ssize_t put = write(device->context.async_fd, &one, sizeof(one));
    (void)put;
}

static void notify(struct fake_cq *cq)
{
    struct fake_channel *channel = (struct fake_channel *)(void *)cq->ibv.channel;
    uint64_t one = 1;
    if (!cq->is_armed || channel == NULL) {
        return;
    }
    cq->is_armed = false;
    assert(channel->tail - channel->head < FAKE_EVENTS);
    channel->events[channel->tail++ % FAKE_EVENTS] = cq;
    ssize_t put = write(channel->ibv.fd, &one, sizeof(one));
    (void)put;
}

void fake_push_wc(struct fake_qp *qp, struct fake_cq *cq, const struct ibv_wc *wc)
{
    if (fake.knobs.muted_qpn == qp->ibv.qp_num) {
        return;
    }
    bool is_lost = fake.knobs.completions_lost > 0;
    if (is_lost || cq->tail - cq->head == cq->cap) {
        fake.knobs.completions_lost -= is_lost ? 1u : 0u;
        fake.counts.overruns++;
        fake_raise(cq->device, &(struct fake_async){.type = IBV_EVENT_CQ_ERR, .cq = cq});
        return;
    }
    struct ibv_wc copy = *wc;
    copy.qp_num = qp->ibv.qp_num;
    if (wc->status != IBV_WC_SUCCESS) {
        /* On an error the rest may hold anything. */
        copy.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        copy.wc_flags = IBV_WC_WITH_IMM;
        copy.imm_data = 0xffffffffu;
    }
    cq->wcs[cq->tail++ % cq->cap] = copy;
    notify(cq);
}

int fake_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wcs)
{
    struct fake_cq *cq = (struct fake_cq *)(void *)ibv;
    int taken = 0;
    pthread_mutex_lock(&fake.lock);
    while (taken < count && cq->head != cq->tail) {
        wcs[taken++] = cq->wcs[cq->head++ % cq->cap];
    }
    pthread_mutex_unlock(&fake.lock);
    return taken;
}

int fake_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    (void)solicited_only;
    pthread_mutex_lock(&fake.lock);
    ((struct fake_cq *)(void *)ibv)->is_armed = true;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* Each work request that is out gets one, signalled or not. */
void fake_qp_to_err(struct fake_qp *qp)
{
    qp->state = IBV_QPS_ERR;
    while (qp->head != qp->tail) {
        const struct fake_wr *wr = &qp->sends[qp->head++ % qp->send_cap];
        fake_push_wc(qp, qp->send_cq,
                     &(struct ibv_wc){.wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR});
    }
    while (qp->recv_head != qp->recv_tail) {
        uint64_t wr_id = qp->receives[qp->recv_head++ % qp->recv_cap];
        fake_push_wc(qp, qp->recv_cq,
                     &(struct ibv_wc){.wr_id = wr_id, .status = IBV_WC_WR_FLUSH_ERR});
    }
}

/* Ends the work request at the head with an error and the queue pair with it. */
static void fail_head(struct fake_qp *qp, enum ibv_wc_status status)
{
    const struct fake_wr *wr = &qp->sends[qp->head++ % qp->send_cap];
    fake_push_wc(qp, qp->send_cq, &(struct ibv_wc){.wr_id = wr->wr_id, .status = status});
    fake_qp_to_err(qp);
}

/* ---- the network ------------------------------------------------------------------------------------------ */

void fake_packet_add(struct fake_packet *packet, uint64_t due_ns)
{
    struct fake_packet **at = &fake.packets;
    packet->due_ns = due_ns;
    while (*at != NULL && (*at)->due_ns <= due_ns) {
        at = &(*at)->next;
    }
    packet->next = *at;
    *at = packet;
}

static void packet_free(struct fake_packet *packet)
{
    free(packet->data);
    free(packet);
}

/* Whom a queue pair talks to: by address, or on InfiniBand by number. */
static struct fake_device *peer_of(const struct fake_qp *qp)
{
    if (qp->is_global) {
        return fake_device_by_gid(qp->dest_gid);
    }
    for (uint32_t i = 0; i < FAKE_DEVICES; i++) {
        if (fake.devices[i].lid != 0 && fake.devices[i].lid == qp->dlid) {
            return &fake.devices[i];
        }
    }
    return NULL;
}

static struct fake_packet *packet_make(enum fake_packet_kind kind, struct fake_qp *from)
{
    struct fake_packet *packet = calloc(1, sizeof(*packet));
    assert(packet != NULL);
    packet->kind = kind;
    packet->from = from->device;
    packet->from_qpn = from->ibv.qp_num;
    packet->to_qpn = from->dest_qpn;
    packet->to = peer_of(from);
    return packet;
}

static void answer(struct fake_qp *qp, enum fake_packet_kind kind, uint32_t psn)
{
    struct fake_packet *packet = packet_make(kind, qp);
    packet->psn = psn;
    if (packet->to == NULL || fake.knobs.loses_acks) {
        packet_free(packet);
        return;
    }
    fake_packet_add(packet, fake.now_ns + fake.knobs.delay_ns);
}

/* ---- the writer's side ------------------------------------------------------------------------------------- */

static uint32_t packet_bytes(const struct fake_qp *qp)
{
    uint32_t knob = fake.knobs.packet_bytes;
    return knob > 0 && knob < qp->mtu ? knob : qp->mtu;
}

/* Reads `bytes` at `off` of the pieces: a NIC reads the memory when it sends, and again when it resends. */
static bool gather(const struct fake_qp *qp, const struct fake_wr *wr, uint64_t off,
                   unsigned char *out, uint32_t bytes)
{
    for (uint32_t i = 0; i < wr->sge_count && bytes > 0; i++) {
        const struct ibv_sge *sge = &wr->sges[i];
        if (off >= sge->length) {
            off -= sge->length;
            continue;
        }
        uint32_t take = sge->length - (uint32_t)off;
        take = take < bytes ? take : bytes;
        const struct fake_mr *mr = fake_mr_find(qp->device, sge->lkey, sge->addr + off, take);
        if (mr == NULL) {
            return false;
        }
        memcpy(out, mr->ptr + (sge->addr + off - mr->iova), take);
        out += take;
        bytes -= take;
        off = 0;
    }
    return bytes == 0;
}

static bool is_marker(enum ibv_wr_opcode opcode)
{
    return opcode != IBV_WR_RDMA_WRITE && opcode != IBV_WR_RDMA_READ;
}

/* One packet of the work request at `sending`. False: memory that is not registered. */
static bool send_packet(struct fake_qp *qp, const struct fake_wr *wr)
{
    uint64_t off = (uint64_t)qp->sending_at * packet_bytes(qp);
    uint64_t left = wr->bytes - off;
    struct fake_packet *packet = packet_make(FAKE_REQUEST, qp);
    packet->bytes = left < packet_bytes(qp) ? (uint32_t)left : packet_bytes(qp);
    packet->is_last = qp->sending_at + 1 == wr->packets;
    packet->opcode = wr->opcode;
    packet->addr = wr->addr + off;
    packet->rkey = wr->rkey;
    packet->imm = wr->imm;
    packet->psn = (wr->first_psn + qp->sending_at) & 0xffffffu;
    packet->data = malloc(packet->bytes + 1u);
    assert(packet->data != NULL);
    if (!gather(qp, wr, off, packet->data, packet->bytes)) {
        packet_free(packet);
        return false;
    }
    uint64_t leaves_ns = qp->leaves_ns > fake.now_ns ? qp->leaves_ns : fake.now_ns;
    qp->leaves_ns = leaves_ns + fake.knobs.packet_ns;
    bool is_lost =
        fake.knobs.loses_data || (wr->opcode == IBV_WR_RDMA_READ && fake.knobs.loses_reads);
    if (packet->to == NULL || is_lost) {
        packet_free(packet);
    } else {
        fake_packet_add(packet, leaves_ns + fake.knobs.delay_ns);
    }
    return true;
}

static void assign_psn(struct fake_qp *qp, struct fake_wr *wr)
{
    if (!wr->has_psn) {
        wr->first_psn = qp->next_psn;
        uint64_t packets = (wr->bytes + packet_bytes(qp) - 1u) / packet_bytes(qp);
        wr->packets = packets == 0 ? 1u : (uint32_t)packets;
        qp->next_psn = (qp->next_psn + wr->packets) & 0xffffffu;
        wr->has_psn = true;
    }
}

static bool has_unacked(const struct fake_qp *qp)
{
    return qp->head != qp->tail && (qp->sending != qp->head || qp->sending_at > 0);
}

/* Sends what the window allows. Whether anything left. */
static bool send_some(struct fake_qp *qp)
{
    bool has_sent = false;
    while (qp->state == IBV_QPS_RTS && qp->sending != qp->tail && fake.now_ns >= qp->hold_ns) {
        struct fake_wr *wr = &qp->sends[qp->sending % qp->send_cap];
        assign_psn(qp, wr);
        uint32_t psn = (wr->first_psn + qp->sending_at) & 0xffffffu;
        if (psn_diff(psn, qp->acked_psn) >= (int32_t)FAKE_WINDOW) {
            break;
        }
        if (!has_unacked(qp)) {
            qp->progress_ns = fake.now_ns;
        }
        if (!send_packet(qp, wr)) {
            while (qp->head != qp->sending) { /* those before it fail with it, in order */
                const struct fake_wr *first = &qp->sends[qp->head++ % qp->send_cap];
                fake_push_wc(
                    qp, qp->send_cq,
                    &(struct ibv_wc){.wr_id = first->wr_id, .status = IBV_WC_WR_FLUSH_ERR});
            }
            fail_head(qp, IBV_WC_LOC_PROT_ERR);
            return true;
        }
        has_sent = true;
        if (++qp->sending_at == wr->packets) {
            qp->sending++;
            qp->sending_at = 0;
        }
    }
    return has_sent;
}

static void go_back(struct fake_qp *qp)
{
    const struct fake_wr *wr = &qp->sends[qp->head % qp->send_cap];
    qp->sending = qp->head;
    qp->sending_at = (uint32_t)psn_diff(qp->acked_psn, wr->first_psn);
    qp->progress_ns = fake.now_ns;
}

static uint64_t timer_ns(const struct fake_qp *qp)
{
    return qp->state == IBV_QPS_RTS && has_unacked(qp) && qp->timeout > 0
               ? qp->progress_ns + (UINT64_C(4096) << qp->timeout)
               : FAKE_NEVER;
}

static void on_timer(struct fake_qp *qp)
{
    fake.counts.retries++;
    if (qp->retries_left == 0) {
        fail_head(qp, IBV_WC_RETRY_EXC_ERR);
        return;
    }
    if (qp->retry != 7) {
        qp->retries_left--;
    }
    go_back(qp);
}

/* Everything before `psn` was accepted. */
static void acknowledge(struct fake_qp *qp, uint32_t psn)
{
    if (psn_diff(psn, qp->acked_psn) > 0) {
        qp->acked_psn = psn;
        qp->progress_ns = fake.now_ns;
        qp->retries_left = qp->retry;
        qp->rnr_left = qp->rnr_retry;
    }
    while (qp->head != qp->tail) {
        const struct fake_wr *wr = &qp->sends[qp->head % qp->send_cap];
        if (!wr->has_psn ||
            psn_diff(qp->acked_psn, (wr->first_psn + wr->packets) & 0xffffffu) < 0) {
            break;
        }
        if (qp->sending == qp->head) { /* it was being sent again */
            qp->sending++;
            qp->sending_at = 0;
        }
        qp->head++;
        if (wr->is_signalled) {
            fake_push_wc(qp, qp->send_cq,
                         &(struct ibv_wc){.wr_id = wr->wr_id,
                                          .status = IBV_WC_SUCCESS,
                                          .opcode = IBV_WC_RDMA_WRITE});
        }
    }
    if (qp->head != qp->tail && qp->sending == qp->head) {
        const struct fake_wr *wr = &qp->sends[qp->head % qp->send_cap];
        int32_t at = wr->has_psn ? psn_diff(qp->acked_psn, wr->first_psn) : 0;
        if (at > (int32_t)qp->sending_at) {
            qp->sending_at = (uint32_t)at;
        }
    }
}

static void on_answer(struct fake_qp *qp, const struct fake_packet *packet)
{
    if (qp->state != IBV_QPS_RTS) {
        return;
    }
    acknowledge(qp, packet->psn);
    if (packet->kind == FAKE_NAK && qp->head != qp->tail) {
        fail_head(qp, IBV_WC_REM_ACCESS_ERR);
    } else if (packet->kind == FAKE_RNR && qp->head != qp->tail) {
        if (qp->rnr_left == 0) {
            fail_head(qp, IBV_WC_RNR_RETRY_EXC_ERR);
            return;
        }
        if (qp->rnr_retry != 7) {
            qp->rnr_left--;
        }
        go_back(qp);
        qp->hold_ns = fake.now_ns + RNR_NS;
        qp->progress_ns = qp->hold_ns;
    }
}

/* ---- the responder's side ----------------------------------------------------------------------------------- */

/* The copy that is under way ends: the bytes are there, and only now they are acknowledged. */
void fake_land(struct fake_qp *qp, bool is_alive)
{
    struct fake_copy *copy = &qp->copy;
    if (!copy->is_under_way) {
        return;
    }
    copy->is_under_way = false;
    if (copy->bytes > 0) {
        memcpy(copy->to, copy->data, copy->bytes);
        fake.counts.landed_bytes += copy->bytes;
    }
    free(copy->data);
    copy->data = NULL;
    if (!is_alive) {
        return;
    }
    if (copy->takes_receive) {
        uint64_t wr_id = qp->receives[qp->recv_head++ % qp->recv_cap];
        fake_push_wc(
            qp, qp->recv_cq,
            &(struct ibv_wc){.wr_id = wr_id,
                             .status = IBV_WC_SUCCESS,
                             .opcode = copy->is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                             .wc_flags = IBV_WC_WITH_IMM,
                             .imm_data = copy->imm});
    }
    answer(qp, FAKE_ACK, (copy->psn + 1u) & 0xffffffu);
}

static void refuse(struct fake_qp *qp, uint32_t psn)
{
    answer(qp, FAKE_NAK, psn);
    fake_qp_to_err(qp);
}

/* Pushes ahead of it whatever this device still has on its way into memory. What is read nobody looks at, so the
 * answer is that of a write. */
static void on_read(struct fake_qp *qp, const struct fake_packet *packet)
{
    const struct fake_mr *mr =
        fake_mr_find(qp->device, packet->rkey, packet->addr, packet->bytes);
    bool is_allowed = mr != NULL && (mr->access & IBV_ACCESS_REMOTE_READ) != 0 &&
                      (qp->access & IBV_ACCESS_REMOTE_READ) != 0;
    if (!is_allowed || fake.knobs.reads_refused > 0) {
        fake.knobs.reads_refused -= is_allowed ? 1u : 0u;
        refuse(qp, packet->psn);
        return;
    }
    for (uint32_t i = FAKE_FIRST_QPN; i < FAKE_QPS; i++) {
        struct fake_qp *other = qp->device->qps[i];
        if (other != NULL) {
            fake_land(other, other->state == IBV_QPS_RTR || other->state == IBV_QPS_RTS);
        }
    }
    qp->expected_psn = (qp->expected_psn + 1u) & 0xffffffu;
    fake.counts.reads++;
    fake.counts.last_read_addr = packet->addr;
    answer(qp, FAKE_ACK, qp->expected_psn);
}

static void on_request(struct fake_qp *qp, struct fake_packet *packet)
{
    fake_land(qp, qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS);
    int32_t ahead = psn_diff(packet->psn, qp->expected_psn);
    if (ahead != 0) {
        fake.counts.packets_dropped += ahead > 0 ? 1u : 0u;
        if (ahead < 0) { /* a duplicate is acknowledged again, never executed again */
            fake.counts.duplicates++;
            answer(qp, FAKE_ACK, qp->expected_psn);
        }
        return;
    }
    if (packet->opcode == IBV_WR_RDMA_READ) {
        on_read(qp, packet);
        return;
    }
    bool takes_receive = packet->is_last && is_marker(packet->opcode);
    if (takes_receive && qp->recv_head == qp->recv_tail) {
        fake.counts.refusals_for_want_of_receives++;
        answer(qp, FAKE_RNR, packet->psn);
        return;
    }
    unsigned char *to = NULL;
    if (packet->bytes > 0) { /* no bytes: neither key nor address is looked at */
        const struct fake_mr *mr =
            fake_mr_find(qp->device, packet->rkey, packet->addr, packet->bytes);
        if (mr == NULL || (qp->access & IBV_ACCESS_REMOTE_WRITE) == 0) {
            refuse(qp, packet->psn);
            return;
        }
        to = mr->ptr + (packet->addr - mr->iova);
    }
    qp->expected_psn = (qp->expected_psn + 1u) & 0xffffffu;
    qp->copy = (struct fake_copy){.is_under_way = true,
                                  .to = to,
                                  .data = packet->data,
                                  .bytes = packet->bytes,
                                  .is_last = packet->is_last,
                                  .takes_receive = takes_receive,
                                  .is_write = packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM,
                                  .imm = packet->imm,
                                  .psn = packet->psn};
    packet->data = NULL;
}

static void arrive(struct fake_packet *packet)
{
    struct fake_qp *qp = qp_at(packet->to, packet->to_qpn);
    bool is_for = qp != NULL && (qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS) &&
                  (packet->from == NULL || peer_of(qp) == packet->from);
    if (!is_for) {
        fake.counts.packets_dropped++;
    } else if (packet->kind == FAKE_REQUEST) {
        on_request(qp, packet);
    } else {
        on_answer(qp, packet);
    }
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static bool for_each_qp(bool (*visit)(struct fake_qp *qp))
{
    bool any = false;
    for (uint32_t d = 0; d < FAKE_DEVICES; d++) {
        uint32_t left = fake.devices[d].qp_count;
        for (uint32_t i = FAKE_FIRST_QPN; i < FAKE_QPS && left > 0; i++) {
            if (fake.devices[d].qps[i] != NULL) {
                left--;
                any |= visit(fake.devices[d].qps[i]);
            }
        }
    }
    return any;
}

static bool land_one(struct fake_qp *qp)
{
    bool is_under_way = qp->copy.is_under_way;
    fake_land(qp, qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS);
    return is_under_way;
}

static bool time_one(struct fake_qp *qp)
{
    if (timer_ns(qp) <= fake.now_ns) {
        on_timer(qp);
        return true;
    }
    return false;
}

/* Everything that is due now. */
void fake_step(void)
{
    for_each_qp(land_one);
    while (fake.packets != NULL && fake.packets->due_ns <= fake.now_ns &&
           !fake.knobs.is_stalled) {
        struct fake_packet *packet = fake.packets;
        fake.packets = packet->next;
        arrive(packet);
        packet_free(packet);
    }
    for_each_qp(time_one);
    for_each_qp(send_some);
}

static uint64_t soonest_ns;

static bool find_soonest(struct fake_qp *qp)
{
    uint64_t due_ns = timer_ns(qp);
    if (qp->state == IBV_QPS_RTS && qp->sending != qp->tail && qp->hold_ns > fake.now_ns &&
        qp->hold_ns < due_ns) {
        due_ns = qp->hold_ns;
    }
    if (qp->copy.is_under_way && fake.now_ns < due_ns) {
        due_ns = fake.now_ns + 1u;
    }
    soonest_ns = due_ns < soonest_ns ? due_ns : soonest_ns;
    return false;
}

uint64_t fake_due_ns(void)
{
    soonest_ns = FAKE_NEVER;
    if (fake.packets != NULL && !fake.knobs.is_stalled) {
        soonest_ns = fake.packets->due_ns;
    }
    for_each_qp(find_soonest);
    return soonest_ns;
}

/* ---- posting ------------------------------------------------------------------------------------------------- */

static int take_send(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) {
        return EINVAL;
    }
    if (qp->tail - qp->head == qp->send_cap) {
        return ENOMEM;
    }
    if (wr->num_sge > (int)FAKE_SGES) {
        return EINVAL;
    }
    struct fake_wr *own = &qp->sends[qp->tail % qp->send_cap];
    *own = (struct fake_wr){.wr_id = wr->wr_id,
                            .opcode = wr->opcode,
                            .is_signalled = (wr->send_flags & IBV_SEND_SIGNALED) != 0,
                            .sge_count = (uint32_t)wr->num_sge,
                            .addr = wr->wr.rdma.remote_addr,
                            .rkey = wr->wr.rdma.rkey,
                            .imm = wr->imm_data};
    for (uint32_t i = 0; i < own->sge_count; i++) {
        own->sges[i] = wr->sg_list[i];
        own->bytes += wr->sg_list[i].length;
    }
    fake.counts.signalled += own->is_signalled ? 1u : 0u;
    fake.counts.markers += is_marker(own->opcode) ? 1u : 0u;
    fake.counts.writes += own->opcode == IBV_WR_RDMA_WRITE ? 1u : 0u;
    fake.counts.pieces += own->sge_count;
    if (own->bytes > fake.counts.largest_write) {
        fake.counts.largest_write = own->bytes;
    }
    qp->tail++;
    if (qp->state == IBV_QPS_ERR) {
        fake_qp_to_err(qp); /* flushes it */
    }
    return 0;
}

int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ibv;
    uint64_t count = 0;
    int rc = 0;
    pthread_mutex_lock(&fake.lock);
    bool is_short = fake.knobs.is_post_short;
    uint32_t most = fake.knobs.posts_taken;
    fake.knobs.is_post_short = false;
    for (; wr != NULL && rc == 0; wr = rc == 0 ? wr->next : wr) {
        rc = is_short && count == most ? ENOMEM : take_send(qp, wr);
        count++;
        if (rc != 0) {
            *bad = wr;
        }
    }
    if (count > fake.counts.longest_list) {
        fake.counts.longest_list = count;
    }
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ibv;
    int rc = 0;
    pthread_mutex_lock(&fake.lock);
    for (; wr != NULL; wr = wr->next) {
        if (qp->recv_tail - qp->recv_head == qp->recv_cap) {
            rc = ENOMEM;
            *bad = wr;
            break;
        }
        qp->receives[qp->recv_tail++ % qp->recv_cap] = wr->wr_id;
        if (qp->state == IBV_QPS_ERR) {
            fake_qp_to_err(qp);
        }
    }
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

/* Two NICs and the packets between them, with the habits that were measured on real ones (RDMA.md, tests Tn).
 *
 * The requester reads its pages when a packet leaves, each time it leaves, and stops when its queue pair errs. Packets
 * that have left go on whatever becomes of it. The responder executes a packet whose queue pair number exists and is
 * connected, whose PSN is the expected one and whose key is live. It looks at nothing else: neither the grant nor
 * the process that made the queue pair matter. An ACK says that a packet was accepted; it may be placed a little later.
 *
 * What no real packet carries, `tie`, is only looked at to count and to tell the oracle what is late or a ghost. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/fabric_internal.h"

#define ACK_TIMEOUT_NS UINT64_C(67108864) /* 4.096 us << 14 */
#define RNR_WAIT_NS UINT64_C(1000000)
#define FOR_EVER 7u

static uint32_t psn_add(uint32_t psn, uint32_t n)
{
    return (psn + n) & SIM_PSN_MASK;
}

/* How far `psn` is ahead of `from`; half the space and more: it is behind. */
static uint32_t psn_ahead(uint32_t psn, uint32_t from)
{
    return (psn - from) & SIM_PSN_MASK;
}

static bool is_behind(uint32_t ahead)
{
    return ahead > SIM_PSN_MASK / 2;
}

static uint32_t or_else(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

/* ---- queue pairs ---------------------------------------------------------------------------------------------- */

static struct sim_qp *find_qp(struct sim_fabric *f, uint32_t host, uint32_t qpn)
{
    const struct sim_node *n = &f->nodes[host];
    uint32_t slot = qpn & (SIM_QP_SLOTS - 1);
    if (slot >= n->qp_count) {
        return NULL;
    }
    struct sim_qp *qp = n->qps[slot];
    return qp->state != SIM_QP_FREE && qp->qpn == qpn ? qp : NULL;
}

struct sim_qp *simnet_qp_of_end(struct sim_fabric *f, const struct sim_end *end)
{
    if (end->qp == 0) {
        return NULL;
    }
    struct sim_qp *qp = f->nodes[end->host].qps[end->qp - 1];
    return qp->state != SIM_QP_FREE && qp->gen == end->qp_gen ? qp : NULL;
}

static struct sim_qp *new_slot(struct sim_node *n)
{
    if (n->qp_count == SIM_QP_SLOTS) {
        return NULL;
    }
    if (n->qp_count == n->qp_cap) {
        uint32_t cap = n->qp_cap == 0 ? 64 : 2 * n->qp_cap;
        n->qps = realloc(n->qps, cap * sizeof(struct sim_qp *));
        n->qp_free = realloc(n->qp_free, SIM_QP_SLOTS * sizeof(*n->qp_free));
        assert(n->qps != NULL && n->qp_free != NULL);
        n->qp_cap = cap;
    }
    if (n->qp_count == n->qp_made) {
        n->qps[n->qp_made] = calloc(1, sizeof(struct sim_qp));
        assert(n->qps[n->qp_made] != NULL);
        n->qps[n->qp_made]->slot = n->qp_made;
        n->qp_made++;
    }
    return n->qps[n->qp_count++];
}

/* The oldest free number comes again last, and never as it was: the upper bits count its uses. The planted fault
 * takes the youngest, unchanged. */
static struct sim_qp *take_slot(struct sim_node *n, bool is_number_reused)
{
    if (n->qp_free_head == n->qp_free_tail) {
        return new_slot(n);
    }
    uint32_t slot = is_number_reused ? n->qp_free[--n->qp_free_tail & (SIM_QP_SLOTS - 1)]
                                     : n->qp_free[n->qp_free_head++ & (SIM_QP_SLOTS - 1)];
    return n->qps[slot];
}

struct sim_qp *simnet_qp_create(struct sim_fabric *f, struct sim_transport *t,
                                uint32_t lane_idx, struct sim_duct *d, enum sim_side side)
{
    struct sim_node *n = &f->nodes[t->host];
    struct sim_qp *qp = take_slot(n, t->options.reuse_qpn);
    if (qp == NULL) {
        return NULL;
    }
    uint32_t uses = qp->qpn >> SIM_QP_SLOTS_BITS;
    uses += t->options.reuse_qpn && uses > 0 ? 0 : 1;
    uint32_t depth = or_else(t->options.sq_depth, 31);
    uint32_t cap = 1;
    while (cap < depth) {
        cap *= 2;
    }
    struct sim_wr *sq = qp->sq;
    if (side == SIM_SOURCE && (sq == NULL || qp->sq_cap < cap)) {
        sq = realloc(sq, cap * sizeof(*sq));
        assert(sq != NULL);
    } else {
        cap = qp->sq_cap;
    }
    *qp = (struct sim_qp){
        .host = t->host,
        .slot = qp->slot,
        .qpn = (uses << SIM_QP_SLOTS_BITS | qp->slot) & SIM_PSN_MASK,
        .gen = qp->gen,
        .state = SIM_QP_INIT,
        .is_sink = side == SIM_SINK,
        .transport = t,
        .lane = lane_idx,
        .epoch = t->lanes[lane_idx].epoch,
        .lane_serial = t->lanes[lane_idx].serial,
        .tie = d->tie,
        .luck = sim_random_stream(f->seed, sim_random_next(&d->luck), (uint64_t)side),
        .sq = sq,
        .sq_cap = cap,
        .sq_depth = depth,
        .timer_ns = SIM_NEVER,
        .timer_event_ns = SIM_NEVER,
        .receives = or_else(t->options.receives, 256),
    };
    d->end[side].qp = qp->slot + 1;
    d->end[side].qp_gen = qp->gen;
    return qp;
}

void simnet_qp_connect(struct sim_qp *qp, uint32_t peer_host, uint32_t peer_qpn,
                       uint32_t own_psn, uint32_t peer_psn)
{
    assert(qp->state == SIM_QP_INIT);
    qp->state = SIM_QP_RTS;
    qp->peer_host = peer_host;
    qp->peer_qpn = peer_qpn;
    qp->una_psn = own_psn;
    qp->cursor_psn = own_psn;
    qp->next_psn = own_psn;
    qp->post_psn = own_psn;
    qp->expected_psn = peer_psn;
}

static uint64_t name_of(const struct sim_qp *qp)
{
    return (uint64_t)qp->host << 32 | qp->slot;
}

static struct sim_qp *qp_named(struct sim_fabric *f, uint64_t name, uint64_t gen)
{
    const struct sim_node *n = &f->nodes[name >> 32];
    uint32_t slot = (uint32_t)name;
    struct sim_qp *qp = slot < n->qp_count ? n->qps[slot] : NULL;
    return qp != NULL && qp->state != SIM_QP_FREE && qp->gen == gen ? qp : NULL;
}

/* ---- the network ------------------------------------------------------------------------------------------------ */

static void on_packet(void *ctx, uint64_t packet, uint64_t unused);

static void fly(struct sim_fabric *f, struct sim_packet *p, uint64_t when_ns)
{
    sim_clock_at(f->clock, when_ns, on_packet, f, (uint64_t)(uintptr_t)p, 0);
}

static void send(struct sim_fabric *f, struct sim_qp *qp, struct sim_packet *p)
{
    const struct sim_link *link = &simnet_fabric_route(f, p->from_host, p->to_host)->link;
    uint64_t now_ns = f->clock->now_ns;
    uint64_t when_ns = now_ns + simnet_fabric_delay(link, &qp->luck);
    if (sim_random_chance(&qp->luck, link->loss_per_million)) {
        f->counters.packets_lost++;
        simnet_packet_put(f, p);
        return;
    }
    if (sim_random_chance(&qp->luck, link->duplicate_per_million)) {
        struct sim_packet *copy = simnet_packet_get(f);
        *copy = *p;
        copy->buffer = p->buffer != NULL ? simnet_buffer_get(f) : NULL;
        if (copy->buffer != NULL) {
            memcpy(copy->buffer, p->buffer, p->bytes);
        }
        f->counters.packets_duplicated++;
        fly(f, copy, when_ns + sim_random_below(&qp->luck, 4 * link->delay_max_ns + 1));
    }
    if (sim_random_chance(&qp->luck, link->reorder_per_million)) {
        fly(f, p, when_ns + sim_random_below(&qp->luck, 2 * link->delay_max_ns + 1));
        return;
    }
    uint64_t behind_ns = qp->flow_ns + link->gap_ns;
    qp->flow_ns = when_ns > behind_ns ? when_ns : behind_ns;
    fly(f, p, qp->flow_ns);
}

static void answer(struct sim_fabric *f, struct sim_qp *qp, enum sim_packet_op op, uint32_t psn)
{
    struct sim_packet *p = simnet_packet_get(f);
    p->op = (uint8_t)op;
    p->from_host = qp->host;
    p->from_qpn = qp->qpn;
    p->from_epoch = qp->epoch;
    p->to_host = qp->peer_host;
    p->to_qpn = qp->peer_qpn;
    p->psn = psn;
    p->tie = qp->tie;
    p->bytes = 0;
    send(f, qp, p);
}

/* ---- the responder ------------------------------------------------------------------------------------------------ */

static bool is_writer_over(struct sim_fabric *f, const struct sim_packet *p)
{
    const struct sim_qp *writer = find_qp(f, p->from_host, p->from_qpn);
    return writer == NULL || writer->tie != p->tie || writer->state != SIM_QP_RTS;
}

static void place(struct sim_fabric *f, struct sim_qp *qp, struct sim_packet *p)
{
    if (p->op == SIM_OP_MARKER) {
        struct sim_cqe cqe = {.lane = qp->lane,
                              .lane_serial = qp->lane_serial,
                              .handle = p->post.handle,
                              .marker_kind = p->post.kind};
        f->counters.markers++;
        simnet_cq_push(qp->transport, &qp->luck, &cqe);
    } else {
        struct sim_touch touch = {.host = qp->host,
                                  .lane = qp->lane,
                                  .epoch = qp->epoch,
                                  .client = p->remote.client,
                                  .region = p->remote.region,
                                  .page = p->remote.page_first + p->page_idx,
                                  .off = p->off,
                                  .bytes = p->bytes,
                                  .from_host = p->from_host,
                                  .from_epoch = p->from_epoch,
                                  .post = &p->post,
                                  .is_last = p->is_last,
                                  .is_late = is_writer_over(f, p),
                                  .is_ghost = p->tie != qp->tie};
        if (simnet_fabric_land(f, qp->transport, &touch, p->tag, p->buffer) != 0 &&
            qp->state == SIM_QP_RTS) {
            answer(f, qp, SIM_OP_NAK_ACCESS, p->psn);
            qp->state = SIM_QP_ERR;
        }
    }
    simnet_packet_put(f, p);
}

static void on_place(void *ctx, uint64_t name, uint64_t gen)
{
    struct sim_fabric *f = ctx;
    struct sim_qp *qp = qp_named(f, name, gen);
    while (qp != NULL && qp->placing_head != NULL) {
        struct sim_packet *p = qp->placing_head;
        if (p->place_ns > f->clock->now_ns) {
            sim_clock_at(f->clock, p->place_ns, on_place, f, name, gen);
            return;
        }
        qp->placing_head = p->next;
        place(f, qp, p);
    }
}

void simnet_qp_place_all(struct sim_fabric *f, struct sim_qp *qp)
{
    while (qp->placing_head != NULL) {
        struct sim_packet *p = qp->placing_head;
        qp->placing_head = p->next;
        place(f, qp, p);
    }
}

/* Placement keeps its order, so whatever follows a slow packet waits behind it. */
static void place_or_queue(struct sim_fabric *f, struct sim_qp *qp, struct sim_packet *p)
{
    const struct sim_transport_options *o = &qp->transport->options;
    bool is_first = qp->placing_head == NULL;
    if (is_first && !sim_random_chance(&qp->luck, o->slow_place_per_million)) {
        place(f, qp, p);
        return;
    }
    p->place_ns = f->clock->now_ns + 1 + sim_random_below(&qp->luck, o->place_max_ns);
    p->next = NULL;
    if (is_first) {
        qp->placing_head = p;
        sim_clock_at(f->clock, p->place_ns, on_place, f, name_of(qp), qp->gen);
    } else {
        if (p->place_ns < qp->placing_tail->place_ns) {
            p->place_ns = qp->placing_tail->place_ns;
        }
        qp->placing_tail->next = p;
    }
    qp->placing_tail = p;
}

static void refuse(struct sim_fabric *f, struct sim_packet *p, uint64_t *counter)
{
    (*counter)++;
    f->counters.refused_bytes += p->bytes;
    simnet_packet_put(f, p);
}

static bool is_key_live(const struct sim_fabric *f, uint32_t host, uint32_t key)
{
    const struct sim_node *n = &f->nodes[host];
    return key == 0 || (key <= n->registration_count && n->registrations[key - 1].is_live);
}

static void respond(struct sim_fabric *f, struct sim_qp *qp, struct sim_packet *p)
{
    uint32_t ahead = psn_ahead(p->psn, qp->expected_psn);
    if (qp->state != SIM_QP_RTS || !qp->is_sink) {
        refuse(f, p, &f->counters.refused_qp_state);
        return;
    }
    if (is_behind(ahead)) { /* a duplicate is acknowledged once more and not executed [T23] */
        answer(f, qp, SIM_OP_ACK, psn_add(qp->expected_psn, SIM_PSN_MASK));
        refuse(f, p, &f->counters.refused_psn);
        return;
    }
    if (ahead > 0) {
        if (!qp->has_naked) {
            qp->has_naked = true;
            answer(f, qp, SIM_OP_NAK_SEQ, qp->expected_psn);
        }
        refuse(f, p, &f->counters.refused_psn);
        return;
    }
    if (p->op == SIM_OP_MARKER && qp->receives == 0) {
        f->counters.rnr_naks++;
        answer(f, qp, SIM_OP_NAK_RNR, p->psn);
        simnet_packet_put(f, p);
        return;
    }
    if (p->is_first) {
        qp->remote = p->remote;
    }
    bool is_in_step = p->is_first || qp->in_message;
    if (!is_in_step || (p->op == SIM_OP_WRITE && !is_key_live(f, qp->host, qp->remote.key))) {
        answer(f, qp, SIM_OP_NAK_ACCESS, p->psn); /* and both queue pairs are in error [T18] */
        qp->state = SIM_QP_ERR;
        refuse(f, p, &f->counters.refused_key);
        return;
    }
    p->remote = qp->remote;
    qp->in_message = !p->is_last;
    qp->receives -= p->op == SIM_OP_MARKER;
    qp->expected_psn = psn_add(qp->expected_psn, 1);
    qp->has_naked = false;
    qp->unacked_count++;
    if (p->wants_ack || qp->unacked_count >= or_else(qp->transport->options.ack_every, 8)) {
        qp->unacked_count = 0;
        answer(f, qp, SIM_OP_ACK, p->psn);
    }
    place_or_queue(f, qp, p);
}

/* ---- the requester -------------------------------------------------------------------------------------------------- */

static struct sim_wr *wr_at(const struct sim_qp *qp, uint32_t seq)
{
    return &qp->sq[seq & (qp->sq_cap - 1)];
}

static void on_timer(void *ctx, uint64_t name, uint64_t gen);

/* At least one event is under way for the time that is armed; one that comes too early arms again. */
static void arm(struct sim_fabric *f, struct sim_qp *qp, uint64_t when_ns)
{
    qp->timer_ns = when_ns;
    if (when_ns < qp->timer_event_ns) {
        qp->timer_event_ns = when_ns;
        sim_clock_at(f->clock, when_ns, on_timer, f, name_of(qp), qp->gen);
    }
}

static uint64_t timeout_at(const struct sim_fabric *f, const struct sim_qp *qp)
{
    uint64_t timeout_ns = qp->transport->options.ack_timeout_ns;
    return f->clock->now_ns + (timeout_ns != 0 ? timeout_ns : ACK_TIMEOUT_NS);
}

/* On error every request gets a completion, signalled or not [T10]. `bad` gets err, the others a flush. */
static void fail(struct sim_fabric *f, struct sim_qp *qp, uint32_t bad, int err)
{
    const struct sim_qp *peer = find_qp(f, qp->peer_host, qp->peer_qpn);
    qp->state = SIM_QP_ERR;
    qp->timer_ns = SIM_NEVER;
    for (uint32_t seq = qp->sq_head; seq != qp->sq_tail; seq++) {
        const struct sim_wr *wr = wr_at(qp, seq);
        bool is_bad = seq == bad && err != 0;
        struct sim_cqe cqe = {.lane = qp->lane,
                              .lane_serial = qp->lane_serial,
                              .entry_seq = wr->entry_seq,
                              .status = is_bad ? err : ECONNABORTED};
        if (peer != NULL && peer->tie == qp->tie &&
            !is_behind(psn_ahead(peer->expected_psn, psn_add(wr->psn, wr->packets)))) {
            f->counters.landed_unacked++;
        }
        f->counters.flushed += !is_bad;
        simnet_cq_push(qp->transport, &qp->luck, &cqe);
    }
    qp->sq_head = qp->sq_tail;
    qp->sq_cursor = qp->sq_tail;
}

static void set_cursor(struct sim_qp *qp, uint32_t psn)
{
    uint32_t seq = qp->sq_head;
    while (seq != qp->sq_tail &&
           psn_ahead(psn, wr_at(qp, seq)->psn) >= wr_at(qp, seq)->packets) {
        seq++;
    }
    qp->sq_cursor = seq;
    qp->cursor_packet = seq != qp->sq_tail ? psn_ahead(psn, wr_at(qp, seq)->psn) : 0;
    qp->cursor_psn = psn;
}

/* The next packet, read from its page now. NULL: the page is not there. */
static struct sim_packet *next_packet(struct sim_fabric *f, struct sim_qp *qp)
{
    const struct sim_wr *wr = wr_at(qp, qp->sq_cursor);
    struct sim_packet *p = simnet_packet_get(f);
    bool is_marker = wr->post.kind != KVF_LANE_DATA;
    bool is_again = is_behind(psn_ahead(qp->cursor_psn, qp->next_psn));
    *p = (struct sim_packet){
        .op = is_marker ? SIM_OP_MARKER : SIM_OP_WRITE,
        .is_first = qp->cursor_packet == 0,
        .is_last = qp->cursor_packet + 1 == wr->packets,
        .is_again = is_again,
        .from_host = qp->host,
        .from_qpn = qp->qpn,
        .from_epoch = qp->epoch,
        .to_host = qp->peer_host,
        .to_qpn = qp->peer_qpn,
        .psn = qp->cursor_psn,
        .tie = qp->tie,
        .post = wr->post,
        .remote = wr->remote,
    };
    p->wants_ack = p->is_last;
    if (wr->is_bad_key) {
        p->remote.key = UINT32_MAX;
    }
    if (is_marker) {
        return p;
    }
    uint32_t mtu = f->options.mtu_bytes;
    p->page_idx = qp->cursor_packet / wr->packets_per_page;
    p->off = (uint64_t)(qp->cursor_packet % wr->packets_per_page) * mtu;
    uint64_t left = wr->page_bytes - p->off;
    p->bytes = left < mtu ? (uint32_t)left : mtu;
    p->buffer = simnet_buffer_get(f);
    struct sim_touch touch = {.host = qp->host,
                              .lane = qp->lane,
                              .epoch = qp->epoch,
                              .client = wr->post.client,
                              .region = wr->post.region,
                              .page = wr->post.page_first + p->page_idx,
                              .off = p->off,
                              .bytes = p->bytes,
                              .from_host = qp->host,
                              .from_epoch = qp->epoch,
                              .post = &wr->post,
                              .is_last = p->is_last,
                              .is_again = is_again};
    if (simnet_fabric_read(f, qp->transport, &touch, &p->tag, p->buffer) != 0) {
        simnet_packet_put(f, p);
        return NULL;
    }
    return p;
}

static void pump(struct sim_fabric *f, struct sim_qp *qp)
{
    uint32_t window = or_else(qp->transport->options.window_packets, 64);
    while (qp->state == SIM_QP_RTS && qp->pause_ns == 0 && qp->sq_cursor != qp->sq_tail &&
           psn_ahead(qp->cursor_psn, qp->una_psn) < window) {
        struct sim_packet *p = next_packet(f, qp);
        if (p == NULL) {
            fail(f, qp, qp->sq_cursor, EFAULT);
            return;
        }
        if (p->is_again) {
            f->counters.packets_again++;
        }
        f->counters.packets++;
        qp->cursor_psn = psn_add(qp->cursor_psn, 1);
        if (!p->is_again) {
            qp->next_psn = qp->cursor_psn;
        }
        qp->cursor_packet++;
        if (p->is_last) {
            qp->sq_cursor++;
            qp->cursor_packet = 0;
        }
        send(f, qp, p);
        if (qp->timer_ns == SIM_NEVER) {
            arm(f, qp, timeout_at(f, qp));
        }
    }
}

static void on_timer(void *ctx, uint64_t name, uint64_t gen)
{
    struct sim_fabric *f = ctx;
    struct sim_qp *qp = qp_named(f, name, gen);
    if (qp == NULL) {
        return;
    }
    if (qp->timer_event_ns <= f->clock->now_ns) {
        qp->timer_event_ns = SIM_NEVER;
    }
    if (qp->state != SIM_QP_RTS || qp->timer_ns == SIM_NEVER) {
        return;
    }
    if (qp->timer_ns > f->clock->now_ns) { /* something moved meanwhile */
        arm(f, qp, qp->timer_ns);
        return;
    }
    qp->timer_ns = SIM_NEVER;
    if (qp->pause_ns != 0) {
        qp->pause_ns = 0;
        pump(f, qp);
        return;
    }
    uint32_t retry_cnt = or_else(qp->transport->options.retry_cnt, 3);
    qp->retry_count++;
    if (retry_cnt < FOR_EVER && qp->retry_count > retry_cnt) {
        f->counters.retry_exceeded++;
        fail(f, qp, qp->sq_head, ETIMEDOUT);
        return;
    }
    set_cursor(qp, qp->una_psn);
    pump(f, qp);
}

/* Everything before psn was accepted. */
static void acknowledge(struct sim_fabric *f, struct sim_qp *qp, uint32_t psn)
{
    uint32_t n = psn_ahead(psn, qp->una_psn);
    if (n == 0 || n > psn_ahead(qp->next_psn, qp->una_psn)) {
        return; /* old, or a ghost's */
    }
    bool is_overtaken = psn_ahead(qp->cursor_psn, qp->una_psn) < n;
    qp->una_psn = psn;
    qp->retry_count = 0;
    qp->rnr_count = 0;
    while (qp->sq_head != qp->sq_tail) {
        const struct sim_wr *wr = wr_at(qp, qp->sq_head);
        if (is_behind(psn_ahead(psn, psn_add(wr->psn, wr->packets)))) {
            break;
        }
        if (wr->is_signalled) {
            struct sim_cqe cqe = {
                .lane = qp->lane, .lane_serial = qp->lane_serial, .entry_seq = wr->entry_seq};
            simnet_cq_push(qp->transport, &qp->luck, &cqe);
        }
        qp->sq_head++;
    }
    if (is_overtaken) { /* it was going back, and need not */
        set_cursor(qp, psn);
    }
    qp->timer_ns = SIM_NEVER;
    if (qp->una_psn != qp->next_psn) {
        arm(f, qp, timeout_at(f, qp));
    }
}

static void hear(struct sim_fabric *f, struct sim_qp *qp, const struct sim_packet *p)
{
    if (qp->state != SIM_QP_RTS || qp->is_sink) {
        f->counters.refused_qp_state++;
        return;
    }
    const struct sim_transport_options *o = &qp->transport->options;
    acknowledge(f, qp, p->op == SIM_OP_ACK ? psn_add(p->psn, 1) : p->psn);
    if (p->op == SIM_OP_ACK) {
        pump(f, qp);
        return;
    }
    if (p->psn != qp->una_psn || qp->sq_head == qp->sq_tail) {
        return; /* about something that was settled meanwhile */
    }
    if (p->op == SIM_OP_NAK_ACCESS) {
        fail(f, qp, qp->sq_head, EACCES);
        return;
    }
    uint32_t most =
        p->op == SIM_OP_NAK_RNR ? or_else(o->rnr_retry, 6) : or_else(o->retry_cnt, 3);
    uint32_t count = p->op == SIM_OP_NAK_RNR ? ++qp->rnr_count : ++qp->retry_count;
    if (most < FOR_EVER && count > most) {
        f->counters.retry_exceeded++;
        fail(f, qp, qp->sq_head, p->op == SIM_OP_NAK_RNR ? ENOBUFS : ETIMEDOUT);
        return;
    }
    set_cursor(qp, qp->una_psn);
    if (p->op == SIM_OP_NAK_RNR) {
        qp->pause_ns = f->clock->now_ns + (o->rnr_wait_ns != 0 ? o->rnr_wait_ns : RNR_WAIT_NS);
        arm(f, qp, qp->pause_ns);
        return;
    }
    pump(f, qp);
}

static void on_packet(void *ctx, uint64_t packet, uint64_t unused)
{
    struct sim_fabric *f = ctx;
    struct sim_packet *p = (struct sim_packet *)(uintptr_t)packet;
    bool is_held;
    if (!simnet_fabric_passes(f, p->from_host, p->to_host, on_packet, f, packet, unused,
                              &is_held)) {
        if (!is_held) {
            f->counters.packets_lost++;
            simnet_packet_put(f, p);
        }
        return;
    }
    struct sim_qp *qp = find_qp(f, p->to_host, p->to_qpn);
    bool is_request = p->op == SIM_OP_WRITE || p->op == SIM_OP_MARKER;
    if (qp == NULL) {
        refuse(f, p, &f->counters.refused_no_qp);
    } else if (is_request) {
        respond(f, qp, p);
    } else {
        hear(f, qp, p);
        simnet_packet_put(f, p);
    }
}

/* ---- verbs ------------------------------------------------------------------------------------------------------------ */

uint32_t simnet_qp_post(struct sim_fabric *f, struct sim_qp *qp, const struct sim_wr *list,
                        uint32_t count)
{
    uint32_t taken = 0;
    if (qp->state == SIM_QP_INIT) {
        return 0;
    }
    while (taken < count && qp->sq_tail - qp->sq_head < qp->sq_depth) {
        struct sim_wr *wr = wr_at(qp, qp->sq_tail);
        bool is_idle = qp->sq_cursor == qp->sq_tail;
        *wr = list[taken++];
        wr->packets_per_page =
            (uint32_t)((wr->page_bytes + f->options.mtu_bytes - 1) / f->options.mtu_bytes);
        wr->packets =
            wr->post.kind == KVF_LANE_DATA ? wr->post.page_count * wr->packets_per_page : 1;
        wr->psn = qp->post_psn;
        qp->post_psn = psn_add(qp->post_psn, wr->packets);
        if (is_idle) {
            qp->cursor_packet = 0;
        }
        qp->sq_tail++;
        if (qp->state == SIM_QP_ERR) {
            fail(f, qp, qp->sq_tail, 0); /* taken, and flushed at once [T10] */
        }
    }
    pump(f, qp);
    return taken;
}

void simnet_qp_to_error(struct sim_fabric *f, struct sim_qp *qp)
{
    if (qp->state == SIM_QP_FREE || qp->state == SIM_QP_ERR) {
        return;
    }
    if (qp->is_sink) {
        qp->state = SIM_QP_ERR;
    } else {
        fail(f, qp, qp->sq_tail, 0);
    }
}

void simnet_qp_destroy(struct sim_fabric *f, struct sim_qp *qp)
{
    struct sim_node *n = &f->nodes[qp->host];
    assert(qp->state != SIM_QP_FREE);
    qp->state = SIM_QP_ERR; /* nothing is accepted from here on, whatever landing calls */
    simnet_qp_place_all(f, qp);
    qp->state = SIM_QP_FREE;
    qp->gen++;
    n->qp_free[n->qp_free_tail++ & (SIM_QP_SLOTS - 1)] = qp->slot;
}

/* Both ends of a lane, and the little that they and their kernels say to each other: LANE_HELLO, its answer, and that
 * it is over. Those words are reliable and in order, as TCP's are: a lost one is sent again after rto_ns, for as
 * long as somebody is there to hear it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/sim/fabric_internal.h"

enum message { MESSAGE_HELLO = 1, MESSAGE_REPLY, MESSAGE_OVER };

#define TOKEN_IDX_BITS 16u
#define TOKEN_GEN_MASK UINT32_C(0x7fff)

/* ---- names ------------------------------------------------------------------------------------------------- */

struct sim_duct *simnet_duct_of(struct sim_fabric *f, uint32_t idx_plus_1, uint32_t gen)
{
    if (idx_plus_1 == 0 || idx_plus_1 > f->duct_count) {
        return NULL;
    }
    struct sim_duct *d = f->ducts[idx_plus_1 - 1];
    return d->is_used && d->gen == gen ? d : NULL;
}

struct sim_duct *simnet_duct_of_lane(struct sim_transport *t, uint32_t lane_idx)
{
    if (lane_idx >= t->config.lanes_max) {
        return NULL;
    }
    const struct sim_lane *lane = &t->lanes[lane_idx];
    return simnet_duct_of(t->fabric, lane->duct, lane->duct_gen);
}

static int token_of(const struct sim_duct *d)
{
    return (int)(d->idx | (d->gen & TOKEN_GEN_MASK) << TOKEN_IDX_BITS);
}

struct sim_duct *simnet_duct_of_token(struct sim_fabric *f, int token)
{
    uint32_t idx = (uint32_t)token & ((UINT32_C(1) << TOKEN_IDX_BITS) - 1);
    if (token < 0 || idx >= f->duct_count) {
        return NULL;
    }
    struct sim_duct *d = f->ducts[idx];
    return d->is_used && token_of(d) == token ? d : NULL;
}

static uint64_t event_name(const struct sim_duct *d)
{
    return (uint64_t)d->gen << 32 | (d->idx + 1);
}

/* ---- life -------------------------------------------------------------------------------------------------- */

void simnet_duct_forget(struct sim_duct *d)
{
    *d = (struct sim_duct){
        .idx = d->idx, .segments = d->segments, .segment_cap = d->segment_cap};
}

static struct sim_duct *duct_alloc(struct sim_fabric *f)
{
    if (f->duct_free_count == 0) {
        if (f->duct_count == f->duct_cap) {
            uint32_t cap = f->duct_cap == 0 ? 64 : 2 * f->duct_cap;
            assert(cap <= UINT32_C(1) << TOKEN_IDX_BITS);
            f->ducts = realloc(f->ducts, cap * sizeof(struct sim_duct *));
            f->duct_free = realloc(f->duct_free, cap * sizeof(*f->duct_free));
            assert(f->ducts != NULL && f->duct_free != NULL);
            f->duct_cap = cap;
        }
        struct sim_duct *fresh = calloc(1, sizeof(*fresh));
        assert(fresh != NULL);
        fresh->idx = f->duct_count;
        f->ducts[f->duct_count] = fresh;
        f->duct_free[f->duct_free_count++] = f->duct_count++;
    }
    struct sim_duct *d = f->ducts[f->duct_free[--f->duct_free_count]];
    d->is_used = true;
    d->tie = ++f->next_tie;
    d->stuck_since_ns = SIM_NEVER;
    return d;
}

/* Kept while anybody may still name it: an end that is not gone, or a LANE_HELLO without an answer. */
static void free_if_over(struct sim_fabric *f, struct sim_duct *d)
{
    if (d->end[SIM_SINK].state != SIM_END_GONE || d->end[SIM_SOURCE].state != SIM_END_GONE ||
        d->is_asking || d->is_held) {
        return;
    }
    for (uint32_t i = d->head; i != d->tail; i++) {
        simnet_buffer_put(f, d->segments[i & (d->segment_cap - 1)].buffer);
    }
    uint32_t gen = d->gen + 1;
    simnet_duct_forget(d);
    d->gen = gen;
    f->duct_free[f->duct_free_count++] = d->idx;
}

/* ---- words between the ends ---------------------------------------------------------------------------------- */

static void on_message(void *ctx, uint64_t name, uint64_t word);

static void say(struct sim_fabric *f, struct sim_duct *d, enum sim_side to,
                enum message message, int err)
{
    const struct sim_link *link =
        &simnet_fabric_route(f, d->end[!to].host, d->end[to].host)->link;
    if (f->nodes[d->end[!to].host].is_down) {
        return; /* a host without power says nothing */
    }
    uint64_t when_ns = f->clock->now_ns + simnet_fabric_delay(link, &d->luck);
    if (sim_random_chance(&d->luck, link->loss_per_million)) {
        when_ns += f->options.rto_ns;
    }
    d->flow_ns[to] = when_ns > d->flow_ns[to] ? when_ns : d->flow_ns[to];
    sim_clock_at(f->clock, d->flow_ns[to], on_message, f, event_name(d),
                 (uint64_t)to | (uint64_t)message << 8 | (uint64_t)(uint32_t)err << 32);
}

static void hello_arrived(struct sim_fabric *f, struct sim_duct *d)
{
    struct sim_node *n = &f->nodes[d->end[SIM_SOURCE].host];
    if (d->end[SIM_SINK].state != SIM_END_CONNECTING) { /* given up meanwhile */
        d->end[SIM_SOURCE].state = SIM_END_GONE;
        free_if_over(f, d);
        return;
    }
    if (n->transport == NULL) {
        simnet_duct_refuse(f, d);
        return;
    }
    if (f->options.kind == SIM_STREAM) {
        say(f, d, SIM_SINK, MESSAGE_REPLY, 0); /* the kernel's, whatever the process does */
    }
    if (!n->is_frozen && !n->is_killed) {
        simnet_duct_ask(f, d);
        return;
    }
    d->is_held = true;
    d->held_next = NULL;
    if (n->held_head == NULL) {
        n->held_head = d;
    } else {
        n->held_tail->held_next = d;
    }
    n->held_tail = d;
}

static void reply_arrived(struct sim_fabric *f, struct sim_duct *d)
{
    struct sim_end *end = &d->end[SIM_SINK];
    if (end->state != SIM_END_CONNECTING) {
        return;
    }
    end->state = SIM_END_UP;
    struct sim_qp *qp = simnet_qp_of_end(f, end);
    if (qp != NULL && qp->state == SIM_QP_INIT) {
        simnet_qp_connect(qp, d->end[SIM_SOURCE].host, d->source_qpn, 0, d->source_psn);
    }
    struct sim_lane *lane = &end->transport->lanes[end->lane];
    if (lane->serial == end->lane_serial && lane->state == SIM_LANE_OPENING) {
        lane->state = SIM_LANE_UP;
        lane->owes_up = true;
        simnet_lane_mark(end->transport, end->lane);
    }
}

static void on_message(void *ctx, uint64_t name, uint64_t word)
{
    struct sim_fabric *f = ctx;
    struct sim_duct *d = simnet_duct_of(f, (uint32_t)name, (uint32_t)(name >> 32));
    if (d == NULL) {
        return;
    }
    enum sim_side to = (enum sim_side)(word & 0xff);
    enum message message = (enum message)(word >> 8 & 0xff);
    if (d->end[to].state == SIM_END_GONE) {
        return; /* nobody is there to hear it */
    }
    if (f->nodes[d->end[to].host].is_down && message == MESSAGE_OVER) {
        return;
    }
    bool is_held;
    if (!simnet_fabric_passes(f, d->end[!to].host, d->end[to].host, on_message, f, name, word,
                              &is_held)) {
        if (!is_held && message == MESSAGE_HELLO &&
            d->end[SIM_SINK].state != SIM_END_CONNECTING) {
            d->end[SIM_SOURCE].state = SIM_END_GONE; /* nobody asks any more */
            free_if_over(f, d);
        } else if (!is_held) {
            sim_clock_at(f->clock, f->clock->now_ns + f->options.rto_ns, on_message, f, name,
                         word);
        }
        return;
    }
    switch (message) {
    case MESSAGE_HELLO:
        hello_arrived(f, d);
        return;
    case MESSAGE_REPLY:
        reply_arrived(f, d);
        return;
    case MESSAGE_OVER:
        simnet_duct_break(f, d, to, (int)(uint32_t)(word >> 32));
        return;
    }
}

void simnet_duct_tell(struct sim_fabric *f, struct sim_duct *d, enum sim_side to, int err)
{
    if (d->end[to].state == SIM_END_CONNECTING || d->end[to].state == SIM_END_UP) {
        say(f, d, to, MESSAGE_OVER, err);
    }
}

/* ---- how it comes up ------------------------------------------------------------------------------------------ */

static void on_connect_deadline(void *ctx, uint64_t name, uint64_t unused)
{
    struct sim_fabric *f = ctx;
    struct sim_duct *d = simnet_duct_of(f, (uint32_t)name, (uint32_t)(name >> 32));
    (void)unused;
    if (d != NULL && d->end[SIM_SINK].state == SIM_END_CONNECTING) {
        simnet_duct_break(f, d, SIM_SINK, ETIMEDOUT);
    }
}

static void take_end(struct sim_duct *d, enum sim_side side, struct sim_transport *t,
                     uint32_t lane_idx, enum sim_end_state state)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    d->end[side] = (struct sim_end){.host = t->host,
                                    .lane = lane_idx,
                                    .lane_serial = lane->serial,
                                    .transport = t,
                                    .state = (uint8_t)state};
    lane->duct = d->idx + 1;
    lane->duct_gen = d->gen;
}

int simnet_duct_connect(struct sim_transport *t, uint32_t lane_idx,
                        const struct kvf_lane_open *open)
{
    struct sim_fabric *f = t->fabric;
    uint32_t host = sim_fabric_host_at(f, &open->addr);
    if (host == KVF_NONE) {
        return -ECONNREFUSED;
    }
    struct sim_duct *d = duct_alloc(f);
    d->hello = (struct kvf_wire_lane_hello){
        .session = open->session, .lane_idx = open->lane_idx, .epoch = open->epoch};
    d->luck = sim_random_stream(f->seed,
                                (uint64_t)t->host << 48 | (uint64_t)host << 32 | open->lane_idx,
                                sim_random_mix(open->session) ^ open->epoch);
    take_end(d, SIM_SINK, t, lane_idx, SIM_END_CONNECTING);
    d->end[SIM_SOURCE] = (struct sim_end){.host = host};
    if (f->options.kind == SIM_NIC) {
        struct sim_qp *qp = simnet_qp_create(f, t, lane_idx, d, SIM_SINK);
        if (qp == NULL) {
            d->end[SIM_SINK].state = SIM_END_GONE;
            d->end[SIM_SOURCE].state = SIM_END_GONE;
            free_if_over(f, d);
            return -ENOMEM;
        }
        d->sink_qpn = qp->qpn;
    }
    if (f->options.user_timeout_ns != SIM_NEVER) {
        sim_clock_at(f->clock, f->clock->now_ns + f->options.user_timeout_ns,
                     on_connect_deadline, f, event_name(d), 0);
    }
    say(f, d, SIM_SOURCE, MESSAGE_HELLO, 0);
    return 0;
}

void simnet_duct_ask(struct sim_fabric *f, struct sim_duct *d)
{
    d->is_held = false;
    d->is_asking = true;
    f->counters.hellos++;
    if (f->options.lane_hello_fn == NULL) {
        sim_fabric_refuse(f, token_of(d));
        return;
    }
    f->options.lane_hello_fn(f->options.ctx, d->end[SIM_SOURCE].host, &d->hello, token_of(d));
}

int simnet_duct_accept(struct sim_transport *t, uint32_t lane_idx, int token)
{
    struct sim_fabric *f = t->fabric;
    struct sim_duct *d = simnet_duct_of_token(f, token);
    if (d == NULL || !d->is_asking || d->end[SIM_SOURCE].host != t->host) {
        return -ECONNRESET;
    }
    d->is_asking = false;
    take_end(d, SIM_SOURCE, t, lane_idx, SIM_END_UP);
    if (f->options.kind == SIM_NIC) {
        struct sim_qp *qp = simnet_qp_create(f, t, lane_idx, d, SIM_SOURCE);
        if (qp == NULL) {
            simnet_duct_refuse(f, d);
            return -ENOMEM;
        }
        d->source_qpn = qp->qpn;
        d->source_psn = t->options.constant_psn
                            ? SIM_PSN_CONSTANT
                            : (uint32_t)sim_random_next(&d->luck) & SIM_PSN_MASK;
        simnet_qp_connect(qp, d->end[SIM_SINK].host, d->sink_qpn, d->source_psn, 0);
        say(f, d, SIM_SINK, MESSAGE_REPLY, 0);
        return 0;
    }
    if (d->end[SIM_SINK].state == SIM_END_GONE || d->end[SIM_SINK].state == SIM_END_BROKEN) {
        simnet_duct_tell(f, d, SIM_SOURCE, ECONNRESET);
    }
    return 0;
}

/* ---- how it ends ------------------------------------------------------------------------------------------------ */

void simnet_duct_refuse(struct sim_fabric *f, struct sim_duct *d)
{
    d->is_asking = false;
    d->is_held = false;
    d->end[SIM_SOURCE].state = SIM_END_GONE;
    d->end[SIM_SOURCE].transport = NULL;
    simnet_duct_tell(f, d, SIM_SINK, ECONNREFUSED);
    free_if_over(f, d);
}

void simnet_duct_refuse_all(struct sim_fabric *f, uint32_t host)
{
    for (uint32_t i = 0; i < f->duct_count; i++) {
        struct sim_duct *d = f->ducts[i];
        if (d->is_used && d->is_asking && d->end[SIM_SOURCE].host == host) {
            simnet_duct_refuse(f, d);
        }
    }
}

void simnet_duct_break(struct sim_fabric *f, struct sim_duct *d, enum sim_side side, int err)
{
    struct sim_end *end = &d->end[side];
    if (end->state != SIM_END_CONNECTING && end->state != SIM_END_UP) {
        return;
    }
    end->state = SIM_END_BROKEN;
    if (f->options.kind == SIM_STREAM) {
        /* A sink that was reset reads no more; a source sends no more. */
        simnet_stream_drop(f, d, side == SIM_SINK ? d->head : d->sent);
    }
    simnet_lane_lose(end->transport, end->lane, err);
}

void simnet_duct_end(struct sim_fabric *f, struct sim_duct *d, enum sim_side side,
                     bool is_abrupt, bool is_silent)
{
    struct sim_end *end = &d->end[side];
    bool was_up = end->state == SIM_END_UP;
    struct sim_qp *qp = simnet_qp_of_end(f, end);
    if (end->state == SIM_END_GONE) {
        return;
    }
    if (end->transport != NULL) {
        end->transport->lanes[end->lane].duct = 0;
    }
    end->state = SIM_END_GONE;
    end->transport = NULL;
    if (qp != NULL) {
        simnet_qp_destroy(f, qp);
    }
    if (f->options.kind == SIM_STREAM && side == SIM_SOURCE) {
        if (is_abrupt || is_silent) {
            simnet_stream_drop(f, d, d->sent);
        }
        if (was_up && !is_silent) {
            simnet_stream_append_end(f, d);
        }
    } else if (f->options.kind == SIM_STREAM) {
        simnet_stream_refuse_unread(f, d);
        if (!is_silent) {
            simnet_duct_tell(f, d, SIM_SOURCE, ECONNRESET);
        }
    }
    free_if_over(f, d);
}

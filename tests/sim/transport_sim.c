/* The ops table over both kinds of lane: what a process keeps of its lanes, and its turns.
 *
 * Callbacks may call back into open, can_post, post, detach and fence. `serial` of a lane changes whenever it begins or
 * ends, so a function that called out looks whether the lane is still the one it was. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/sim/fabric_internal.h"

static struct sim_transport *sim_of(struct kvf_transport *t)
{
    return (struct sim_transport *)(void *)t;
}

static const struct sim_transport *const_sim_of(const struct kvf_transport *t)
{
    return (const struct sim_transport *)(const void *)t;
}

static enum sim_side side_of(const struct sim_lane *lane)
{
    return lane->is_sink ? SIM_SINK : SIM_SOURCE;
}

static bool is_nic(const struct sim_transport *t)
{
    return t->fabric->options.kind == SIM_NIC;
}

/* ---- create ------------------------------------------------------------------------------------------------ */

int sim_transport_create(struct sim_fabric *f, uint32_t host,
                         const struct kvf_transport_config *config,
                         const struct kvf_transport_host *transport_host,
                         const struct sim_transport_options *options,
                         struct kvf_transport **ret_transport)
{
    assert(host < f->options.hosts);
    uint32_t posts_max = config->posts_per_lane_max;
    if (config->lanes_max == 0 || posts_max == 0 || (posts_max & (posts_max - 1u)) != 0 ||
        config->turn_bytes_max == 0) {
        return -EINVAL;
    }
    if (f->nodes[host].is_down) {
        return -EHOSTDOWN;
    }
    if (f->nodes[host].transport != NULL) {
        return -EBUSY;
    }
    struct sim_transport *t = calloc(1, sizeof(*t));
    struct sim_lane *lanes = calloc(config->lanes_max, sizeof(*lanes));
    if (t == NULL || lanes == NULL) {
        free(lanes);
        free(t);
        return -ENOMEM;
    }
    *t = (struct sim_transport){.fabric = f,
                                .host = host,
                                .incarnation = ++f->next_incarnation,
                                .config = *config,
                                .calls = *transport_host,
                                .options = *options,
                                .lanes = lanes,
                                .mark_head = KVF_NONE,
                                .mark_tail = KVF_NONE};
    f->nodes[host].transport = t;
    *ret_transport = (struct kvf_transport *)(void *)t;
    return 0;
}

void sim_transport_set(struct kvf_transport *transport,
                       const struct sim_transport_options *options)
{
    sim_of(transport)->options = *options;
}

/* ---- marks --------------------------------------------------------------------------------------------------- */

void simnet_lane_mark(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    if (!lane->is_marked) {
        lane->is_marked = true;
        lane->mark_next = KVF_NONE;
        if (t->mark_tail == KVF_NONE) {
            t->mark_head = lane_idx;
        } else {
            t->lanes[t->mark_tail].mark_next = lane_idx;
        }
        t->mark_tail = lane_idx;
        t->mark_count++;
    }
    simnet_fabric_wake(t->fabric, t->host);
}

static uint32_t unmark_first(struct sim_transport *t)
{
    uint32_t lane_idx = t->mark_head;
    struct sim_lane *lane = &t->lanes[lane_idx];
    t->mark_head = lane->mark_next;
    if (t->mark_head == KVF_NONE) {
        t->mark_tail = KVF_NONE;
    }
    t->mark_count--;
    lane->is_marked = false;
    return lane_idx;
}

bool sim_transport_has_work(const struct kvf_transport *transport)
{
    const struct sim_transport *t = const_sim_of(transport);
    return t->mark_count > 0 || t->is_deadline_due || (is_nic(t) && simnet_cq_has_work(t));
}

/* ---- posts ----------------------------------------------------------------------------------------------------- */

struct sim_entry *simnet_entry_at(const struct sim_transport *t, const struct sim_lane *lane,
                                  uint32_t seq)
{
    return &lane->entries[seq & (t->config.posts_per_lane_max - 1u)];
}

/* Each entry leaves the ring before its callback, so that a fence from within completes the others and not this
 * one again. */
void simnet_lane_complete(struct sim_transport *t, uint32_t lane_idx, uint32_t to, int status)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    uint32_t serial = lane->serial;
    while (lane->serial == serial && lane->head != to) {
        const struct sim_entry *entry = simnet_entry_at(t, lane, lane->head++);
        const struct kvf_post post = entry->post;
        bool is_cut = entry->is_cut;
        t->calls.completed_fn(t->calls.ctx, lane_idx, lane->epoch, &post,
                              status == 0 && is_cut ? -ECANCELED : status);
    }
}

static void complete_all(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    while (lane->head != lane->tail) {
        const struct sim_entry *entry = simnet_entry_at(t, lane, lane->head++);
        if (lane->sent - lane->head > lane->tail - lane->head) {
            lane->sent = lane->head;
        }
        if (!entry->is_dead) {
            const struct kvf_post post = entry->post;
            t->calls.completed_fn(t->calls.ctx, lane_idx, lane->epoch, &post, -ECONNABORTED);
        }
    }
}

/* Ends one waiting entry where it stands; the rest of its started frame will be filler. False if the lane is another one
 * now. */
static bool end_entry(struct sim_transport *t, uint32_t lane_idx, uint32_t seq, int status)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_entry *entry = simnet_entry_at(t, lane, seq);
    uint32_t serial = lane->serial;
    if (seq == lane->sent) {
        if (lane->frame_left_pages > 0) {
            lane->filler_post = entry->post;
            lane->filler_page_bytes = entry->page_bytes;
            lane->filler_page = lane->next_page;
            lane->filler_off = lane->next_off;
            lane->filler_left_pages = lane->frame_left_pages;
        }
        lane->frame_left_pages = 0;
        lane->next_page = 0;
        lane->next_off = 0;
    }
    entry->is_dead = true;
    const struct kvf_post post = entry->post;
    t->calls.completed_fn(t->calls.ctx, lane_idx, lane->epoch, &post, status);
    return lane->serial == serial;
}

static void sweep(struct sim_transport *t, struct sim_lane *lane)
{
    uint32_t to = lane->sent;
    for (uint32_t from = lane->sent; from != lane->tail; from++) {
        const struct sim_entry *entry = simnet_entry_at(t, lane, from);
        if (!entry->is_dead) {
            *simnet_entry_at(t, lane, to++) = *entry;
        }
    }
    lane->tail = to;
}

/* What the kernel or the NIC has cannot be called back. A marker always leaves; an END whose data was taken back
 * leaves as DRAIN. */
static void detach(struct sim_transport *t, uint32_t lane_idx, uint64_t cookie)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    lane->detach_depth++;
    for (uint32_t seq = lane->sent; seq != lane->tail; seq++) {
        struct sim_entry *entry = simnet_entry_at(t, lane, seq);
        if (entry->is_dead || entry->post.cookie != cookie) {
            continue;
        }
        if (entry->post.kind == KVF_LANE_DATA) {
            if (!end_entry(t, lane_idx, seq, -ECANCELED)) {
                return;
            }
        } else if (entry->post.kind == KVF_LANE_END) {
            entry->is_cut = true;
        }
    }
    lane->detach_depth--;
    if (lane->detach_depth == 0) {
        sweep(t, lane);
    }
    if (lane->sent != lane->tail || lane->filler_left_pages > 0) {
        simnet_lane_mark(t, lane_idx);
    }
}

void simnet_lane_read_fault(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    const struct kvf_post post = simnet_entry_at(t, lane, lane->sent)->post;
    uint32_t serial = lane->serial;
    lane->detach_depth++; /* the entry is swept with the others of its grant */
    bool is_same = end_entry(t, lane_idx, lane->sent, -EFAULT);
    if (is_same) {
        lane->detach_depth--;
        detach(t, lane_idx, post.cookie);
    }
    t->calls.read_fault_fn(t->calls.ctx, post.client);
    if (lane->serial == serial && lane->sent != lane->tail) {
        simnet_lane_mark(t, lane_idx);
    }
}

static bool sim_can_post(const struct kvf_transport *transport, uint32_t lane_idx)
{
    const struct sim_transport *t = const_sim_of(transport);
    if (lane_idx >= t->config.lanes_max) {
        return false;
    }
    const struct sim_lane *lane = &t->lanes[lane_idx];
    return lane->state == SIM_LANE_UP && !lane->is_sink &&
           lane->tail - lane->head < t->config.posts_per_lane_max;
}

static int sim_post(struct kvf_transport *transport, uint32_t lane_idx,
                    const struct kvf_post *post)
{
    struct sim_transport *t = sim_of(transport);
    assert(!t->is_gone);
    if (lane_idx >= t->config.lanes_max) {
        return -EINVAL;
    }
    struct sim_lane *lane = &t->lanes[lane_idx];
    if (lane->state != SIM_LANE_UP || lane->is_sink) {
        return -ENOTCONN;
    }
    if (!sim_can_post(transport, lane_idx)) {
        return -EAGAIN;
    }
    bool is_marker = post->kind == KVF_LANE_END || post->kind == KVF_LANE_DRAIN;
    if (!is_marker &&
        (post->kind != KVF_LANE_DATA || post->page_count == 0 || post->payload_bytes == 0 ||
         post->payload_bytes % post->page_count != 0)) {
        return -EINVAL;
    }
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    if (d != NULL && sim_random_chance(&d->luck, t->options.refuse_post_per_million)) {
        return -ENOMEM;
    }
    *simnet_entry_at(t, lane, lane->tail++) = (struct sim_entry){
        .post = *post, .page_bytes = is_marker ? 0 : post->payload_bytes / post->page_count};
    simnet_lane_mark(t, lane_idx);
    return 0;
}

static void sim_detach(struct kvf_transport *transport, uint32_t lane_idx, uint64_t cookie)
{
    struct sim_transport *t = sim_of(transport);
    if (lane_idx < t->config.lanes_max && t->lanes[lane_idx].state != SIM_LANE_FREE) {
        detach(t, lane_idx, cookie);
    }
}

/* ---- open -------------------------------------------------------------------------------------------------------- */

static void reset_lane(struct sim_lane *lane)
{
    *lane = (struct sim_lane){.serial = lane->serial + 1,
                              .is_marked = lane->is_marked,
                              .mark_next = lane->mark_next,
                              .entries = lane->entries};
}

static int sim_open(struct kvf_transport *transport, const struct kvf_lane_open *open)
{
    struct sim_transport *t = sim_of(transport);
    bool is_sink = open->accepted_fd < 0;
    int rc = 0;
    assert(!t->is_gone);
    if (open->lane >= t->config.lanes_max) {
        rc = -EINVAL;
    } else if (t->lanes[open->lane].state != SIM_LANE_FREE) {
        rc = -EBUSY;
    }
    if (rc != 0) {
        if (!is_sink) {
            sim_fabric_refuse(t->fabric, open->accepted_fd);
        }
        return rc;
    }
    struct sim_lane *lane = &t->lanes[open->lane];
    reset_lane(lane);
    lane->epoch = open->epoch;
    lane->is_sink = is_sink;
    if (!is_sink && lane->entries == NULL) {
        lane->entries = calloc(t->config.posts_per_lane_max, sizeof(*lane->entries));
        assert(lane->entries != NULL);
    }
    if (!is_sink) {
        rc = simnet_duct_accept(t, open->lane, open->accepted_fd);
        if (rc == 0) {
            lane->state = SIM_LANE_UP;
            lane->owes_up = true;
        }
    } else {
        lane->state = SIM_LANE_OPENING;
        rc = simnet_duct_connect(t, open->lane, open);
        if (rc == -ECONNREFUSED) { /* as a connect that fails at once: told by the next poll */
            simnet_lane_lose(t, open->lane, ECONNREFUSED);
            rc = 0;
        }
    }
    if (rc != 0) {
        reset_lane(lane);
        return rc;
    }
    simnet_lane_mark(t, open->lane);
    return 0;
}

/* ---- fences -------------------------------------------------------------------------------------------------------- */

void simnet_lane_lose(struct sim_transport *t, uint32_t lane_idx, int err)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    assert(err > 0);
    if (lane->state == SIM_LANE_OPENING || lane->state == SIM_LANE_UP) {
        lane->state = SIM_LANE_LOST;
        lane->lost_err = err;
        simnet_wait_remove(t, lane_idx);
        simnet_lane_mark(t, lane_idx);
    }
}

/* The kernel's part: strict, unless a fault was planted. */
static void fence_kernel(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    if (d == NULL) {
        return;
    }
    if (is_nic(t) && (t->options.unstrict_fence || (t->options.trust_flush && lane->is_sink))) {
        d->end[side_of(lane)].qp = 0; /* left behind: the kernel destroys it with the process */
    }
    simnet_duct_end(t->fabric, d, side_of(lane), true, false);
}

static void fence_over(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    uint32_t epoch = lane->epoch;
    reset_lane(lane);
    t->calls.fenced_fn(t->calls.ctx, lane_idx, epoch);
}

static void on_fence_over(void *ctx, uint64_t name, uint64_t serial)
{
    struct sim_fabric *f = ctx;
    struct sim_node *n = &f->nodes[name >> 32];
    uint32_t lane_idx = (uint32_t)name;
    struct sim_transport *t = n->transport;
    if (t == NULL || (uint32_t)t->incarnation != (uint32_t)(serial >> 32)) {
        return;
    }
    struct sim_lane *lane = &t->lanes[lane_idx];
    if (lane->serial != (uint32_t)serial || lane->state != SIM_LANE_FENCING) {
        return;
    }
    if (n->hang_until_ns != 0) {
        lane->is_fence_parked = true;
        return;
    }
    fence_kernel(t, lane_idx);
    lane->is_fence_due = true;
    simnet_lane_mark(t, lane_idx);
}

/* Ends access: a stream is not read any more, a queue pair goes to error. Then the posts are completed, and the kernel
 * takes its time with the rest. Returns false if it is not over yet. */
static bool fence_begin(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_fabric *f = t->fabric;
    struct sim_lane *lane = &t->lanes[lane_idx];
    struct sim_duct *d = simnet_duct_of_lane(t, lane_idx);
    struct sim_random luck = {0};
    lane->is_fence_begun = true;
    if (d != NULL) {
        luck = d->luck;
        struct sim_qp *qp = simnet_qp_of_end(f, &d->end[side_of(lane)]);
        if (is_nic(t)) {
            simnet_cq_reap_lane(t, lane_idx);
            if (qp != NULL && !(t->options.trust_flush && lane->is_sink)) {
                simnet_qp_to_error(f, qp);
            }
        } else if (t->options.unstrict_fence && lane->is_sink) {
            simnet_stream_leak(t, lane_idx);
        }
    }
    complete_all(t, lane_idx);
    uint64_t takes_ns =
        sim_random_between(&luck, t->options.fence_min_ns, t->options.fence_max_ns);
    if (takes_ns == 0 || t->options.unstrict_fence) {
        fence_kernel(t, lane_idx);
        return true;
    }
    sim_clock_at(f->clock, f->clock->now_ns + takes_ns, on_fence_over, f,
                 (uint64_t)t->host << 32 | lane_idx, t->incarnation << 32 | lane->serial);
    return false;
}

static void sim_fence(struct kvf_transport *transport, uint32_t lane_idx, uint32_t epoch)
{
    struct sim_transport *t = sim_of(transport);
    assert(!t->is_gone);
    assert(lane_idx < t->config.lanes_max);
    struct sim_lane *lane = &t->lanes[lane_idx];
    if (lane->state == SIM_LANE_FENCING && lane->epoch == epoch) {
        return; /* asked for already; it is answered once */
    }
    if (lane->state == SIM_LANE_FREE || lane->epoch != epoch) {
        /* A lane of another epoch was never opened, or ended before this one began. */
        t->calls.fenced_fn(t->calls.ctx, lane_idx, epoch);
        return;
    }
    lane->state = SIM_LANE_FENCING;
    lane->owes_up = false;
    lane->lost_err = 0;
    t->fabric->counters.fences++;
    simnet_wait_remove(t, lane_idx);
    if (t->fabric->nodes[t->host].hang_until_ns != 0) {
        lane->is_fence_parked = true;
        return;
    }
    if (fence_begin(t, lane_idx)) {
        fence_over(t, lane_idx);
    }
}

void simnet_fences_go_on(struct sim_transport *t)
{
    for (uint32_t i = 0; i < t->config.lanes_max; i++) {
        struct sim_lane *lane = &t->lanes[i];
        if (lane->state != SIM_LANE_FENCING || !lane->is_fence_parked) {
            continue;
        }
        lane->is_fence_parked = false;
        if (lane->is_fence_begun) {
            fence_kernel(t, i);
        }
        lane->is_fence_due =
            true; /* one that had not begun begins in poll, where callbacks belong */
        simnet_lane_mark(t, i);
    }
}

/* ---- turns ---------------------------------------------------------------------------------------------------------- */

static uint64_t lane_turn(struct sim_transport *t, uint32_t lane_idx)
{
    struct sim_lane *lane = &t->lanes[lane_idx];
    if (lane->is_fence_due) {
        lane->is_fence_due = false;
        if (lane->is_fence_begun || fence_begin(t, lane_idx)) {
            fence_over(t, lane_idx);
        }
        return 1;
    }
    if (lane->lost_err != 0) {
        int err = lane->lost_err;
        lane->lost_err = 0;
        t->calls.lost_fn(t->calls.ctx, lane_idx, lane->epoch, err);
        return 1;
    }
    uint64_t moved = 0;
    uint32_t serial = lane->serial;
    if (lane->owes_up && lane->state == SIM_LANE_UP) {
        lane->owes_up = false;
        t->calls.up_fn(t->calls.ctx, lane_idx, lane->epoch);
        moved++;
    }
    if (lane->serial != serial || lane->state != SIM_LANE_UP) {
        return moved;
    }
    if (!is_nic(t)) {
        return moved + (lane->is_sink ? simnet_stream_sink_turn(t, lane_idx)
                                      : simnet_stream_source_turn(t, lane_idx));
    }
    if (!lane->is_sink) {
        uint32_t before = lane->sent;
        simnet_nic_doorbell(t, lane_idx);
        moved += lane->sent - before;
    }
    return moved;
}

static uint64_t sim_poll(struct kvf_transport *transport)
{
    struct sim_transport *t = sim_of(transport);
    uint64_t moved = 0;
    assert(!t->is_gone);
    t->is_awake = true; /* nobody need be told of what is seen here */
    if (is_nic(t)) {
        moved += simnet_cq_turn(t);
        moved += simnet_wait_turn(t);
    }
    /* Lanes marked on the way wait for the next poll: one turn each. */
    for (uint32_t left = t->mark_count; left > 0; left--) {
        moved += lane_turn(t, unmark_first(t));
    }
    t->is_awake = false;
    if (sim_transport_has_work(transport)) {
        simnet_fabric_wake(t->fabric, t->host);
    }
    return moved;
}

static void sim_close(struct kvf_transport *transport)
{
    struct sim_transport *t = sim_of(transport);
    if (!t->is_gone) {
        for (uint32_t i = 0; i < t->config.lanes_max; i++) {
            if (t->lanes[i].state != SIM_LANE_FREE) {
                t->lanes[i].state = SIM_LANE_FENCING;
                complete_all(t, i);
            }
        }
        simnet_fabric_end_process(t->fabric, t, false);
    }
    for (uint32_t i = 0; i < t->config.lanes_max; i++) {
        free(t->lanes[i].entries);
    }
    free(t->lanes);
    free(t->cq);
    free(t);
}

const struct kvf_transport_ops kvf_sim_ops = {
    .name = "sim",
    .open = sim_open,
    .can_post = sim_can_post,
    .post = sim_post,
    .detach = sim_detach,
    .poll = sim_poll,
    .fence = sim_fence,
    .close = sim_close,
};

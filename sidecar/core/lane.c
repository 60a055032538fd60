/* Lanes: what may be posted next, and the fence. A fence kills grants of one epoch of one lane and
 * nothing else; it is the answer to every doubt about a lane. */
#include "sidecar/core/internal.h"

#include <errno.h>

/* ---- queues of source grants, linked through an array member ---------------------------------------- */

static void queue_push(struct kvf_queue *q, uint32_t *links, size_t stride_words, uint32_t idx)
{
    links[stride_words * idx] = 0;
    if (q->tail != 0) {
        links[stride_words * (q->tail - 1)] = idx + 1;
    } else {
        q->head = idx + 1;
    }
    q->tail = idx + 1;
}

static uint32_t queue_pop(struct kvf_queue *q, const uint32_t *links, size_t stride_words)
{
    if (q->head == 0) {
        return KVF_NONE;
    }
    uint32_t idx = q->head - 1;
    q->head = links[stride_words * idx];
    if (q->head == 0) {
        q->tail = 0;
    }
    return idx;
}

static void queue_remove(struct kvf_queue *q, uint32_t *links, size_t stride_words,
                         uint32_t idx)
{
    uint32_t before = 0;
    for (uint32_t at = q->head; at != 0; before = at, at = links[stride_words * (at - 1)]) {
        if (at != idx + 1) {
            continue;
        }
        uint32_t next = links[stride_words * idx];
        if (before != 0) {
            links[stride_words * (before - 1)] = next;
        } else {
            q->head = next;
        }
        if (next == 0) {
            q->tail = before;
        }
        return;
    }
}

#define STRIDE_WORDS (sizeof(struct kvf_source_grant) / sizeof(uint32_t))
_Static_assert(sizeof(struct kvf_source_grant) % sizeof(uint32_t) == 0, "links are words");

static uint32_t *ready_links(struct kvf_core *core, uint32_t lane_idx)
{
    return &core->sources[0].ready_next[lane_idx];
}
static uint32_t *mark_links(struct kvf_core *core, uint32_t lane_idx)
{
    return &core->sources[0].mark_next[lane_idx];
}

void kvf_lane_push_ready(struct kvf_core *core, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        uint8_t bit = (uint8_t)(1u << i);
        if ((kvf_left(s->lane_mask, (uint32_t)s->dead_mask | s->ready_mask) & bit) == 0) {
            continue;
        }
        uint32_t lane = kvf_lane_id(s->peer, i);
        s->ready_mask |= bit;
        queue_push(&core->lanes[lane].ready, ready_links(core, i), STRIDE_WORDS, source);
        kvf_list_push(&core->act_post, lane);
    }
}

void kvf_lane_push_mark(struct kvf_core *core, uint32_t source, uint32_t lane_idx)
{
    struct kvf_source_grant *s = &core->sources[source];
    uint8_t bit = (uint8_t)(1u << lane_idx);
    if (((s->mark_mask | s->marked_mask | s->dead_mask) & bit) != 0) {
        return;
    }
    uint32_t lane = kvf_lane_id(s->peer, lane_idx);
    s->mark_mask |= bit;
    queue_push(&core->lanes[lane].marks, mark_links(core, lane_idx), STRIDE_WORDS, source);
    kvf_list_push(&core->act_post, lane);
}

void kvf_lane_forget_source(struct kvf_core *core, uint32_t source)
{
    struct kvf_source_grant *s = &core->sources[source];
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        struct kvf_lane *lane = &core->lanes[kvf_lane_id(s->peer, i)];
        if ((s->ready_mask >> i & 1u) != 0) {
            queue_remove(&lane->ready, ready_links(core, i), STRIDE_WORDS, source);
        }
        if ((s->mark_mask >> i & 1u) != 0) {
            queue_remove(&lane->marks, mark_links(core, i), STRIDE_WORDS, source);
        }
    }
    s->ready_mask = 0;
    s->mark_mask = 0;
}

/* ---- posting --------------------------------------------------------------------------------------- */

/* Markers have their reserved place: they go out whatever the windows say. */
static bool next_mark(struct kvf_core *core, uint32_t lane_id, struct kvf_post *post)
{
    uint32_t lane_idx = lane_id % KVF_LANES_MAX;
    struct kvf_lane *lane = &core->lanes[lane_id];
    uint8_t bit = (uint8_t)(1u << lane_idx);
    uint32_t source;
    while ((source = queue_pop(&lane->marks, mark_links(core, lane_idx), STRIDE_WORDS)) !=
           KVF_NONE) {
        struct kvf_source_grant *s = &core->sources[source];
        s->mark_mask &= (uint8_t)~bit;
        if ((s->dead_mask & bit) == 0) {
            kvf_source_next_mark(core, source, lane_idx, post);
            return true;
        }
    }
    return false;
}

int kvf_core_next_post(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                       struct kvf_post *ret_post)
{
    assert(lane_id < core->limits.peers_max * KVF_LANES_MAX);
    struct kvf_lane *lane = &core->lanes[lane_id];
    uint32_t lane_idx = lane_id % KVF_LANES_MAX;
    uint8_t bit = (uint8_t)(1u << lane_idx);
    if (lane->state != KVF_LANE_UP) {
        return 0;
    }
    struct kvf_post post = {0};
    if (next_mark(core, lane_id, &post)) {
        *ret_post = post;
        kvf_count(core, KVF_COUNT_POSTS);
        return 1;
    }
    while (lane->ready.head != 0) {
        uint32_t source = lane->ready.head - 1;
        struct kvf_source_grant *s = &core->sources[source];
        uint64_t left = lane->window_bytes > lane->posted_bytes
                            ? lane->window_bytes - lane->posted_bytes
                            : 0;
        enum kvf_next next = (s->dead_mask & bit) != 0
                                 ? KVF_NEXT_NOTHING
                                 : kvf_source_next_data(core, now_ns, source, lane_idx, left,
                                                        lane->posted_bytes == 0, &post);
        if (next == KVF_NEXT_LANE_FULL) {
            return 0;
        }
        /* Round-robin: who has posted goes to the end of the queue; who has nothing leaves it. A room
         * that ended inside next_data may have left the queue by itself. */
        if ((s->ready_mask & bit) != 0 && lane->ready.head == source + 1) {
            (void)queue_pop(&lane->ready, ready_links(core, lane_idx), STRIDE_WORDS);
            s->ready_mask &= (uint8_t)~bit;
        }
        if (next == KVF_NEXT_POST) {
            s->ready_mask |= bit;
            queue_push(&lane->ready, ready_links(core, lane_idx), STRIDE_WORDS, source);
            if (lane->posted_bytes == 0) {
                lane->rate_since_ns = now_ns;
                lane->rate_bytes = 0;
            }
            lane->posted_bytes += post.payload_bytes;
            core->counters[KVF_COUNT_BYTES_POSTED] += post.payload_bytes;
            kvf_count(core, KVF_COUNT_POSTS);
            *ret_post = post;
            return 1;
        }
    }
    return 0;
}

/* Posted bytes of a lane stay under what it moves in a quarter of the cooperative deadline, by its own
 * measured rate, so that a marker behind them comes in time and an abort fences no healthy lane. Only
 * stretches in which something was posted all the time are measured: what moved then is the lane's rate,
 * whichever window kept it short. */
static void measure(struct kvf_core *core, uint64_t now_ns, struct kvf_lane *lane,
                    uint64_t bytes)
{
    lane->rate_bytes += bytes;
    uint64_t took_ns = now_ns - lane->rate_since_ns;
    if (took_ns < KVF_RATE_WINDOW_NS) {
        return;
    }
    double per_ns = (double)lane->rate_bytes / (double)took_ns;
    uint64_t window = (uint64_t)(per_ns * (double)core->config.cooperative_ns / 4.0);
    uint64_t most = core->config.lane_window_bytes;
    uint64_t least = core->config.post_bytes_max;
    lane->window_bytes = window > most ? most : window < least ? least : window;
    lane->rate_since_ns = now_ns;
    lane->rate_bytes = 0;
}

void kvf_core_completed(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                        uint32_t epoch, const struct kvf_post *post, int status)
{
    assert(lane_id < core->limits.peers_max * KVF_LANES_MAX);
    struct kvf_lane *lane = &core->lanes[lane_id];
    kvf_count(core, KVF_COUNT_COMPLETIONS);
    if (lane->epoch != epoch) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    assert(lane->posted_bytes >= post->payload_bytes);
    lane->posted_bytes -= post->payload_bytes;
    if (status == 0 && post->payload_bytes > 0) { /* a marker tells nothing of the rate */
        measure(core, now_ns, lane, post->payload_bytes);
        lane->moved_bytes += post->payload_bytes;
    }
    kvf_source_completed(core, now_ns, lane_id % KVF_LANES_MAX, post, status);
    if (lane->state == KVF_LANE_UP && (lane->ready.head != 0 || lane->marks.head != 0)) {
        kvf_list_push(&core->act_post, lane_id);
    }
}

/* ---- life ------------------------------------------------------------------------------------------ */

static void set_up(struct kvf_core *core, struct kvf_lane *lane)
{
    assert(lane->posted_bytes == 0);
    lane->state = KVF_LANE_UP;
    lane->failed_opens = 0;
    lane->window_bytes = core->config.lane_window_bytes;
    kvf_gauge_add(core, KVF_GAUGE_LANES_UP, 1);
}

void kvf_lane_want_open(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id)
{
    struct kvf_lane *lane = &core->lanes[lane_id];
    assert(lane->state == KVF_LANE_DOWN);
    lane->epoch++;
    lane->state = KVF_LANE_OPENING;
    lane->is_queue_pair = false; /* until the transport says otherwise */
    lane->theirs = (struct kvf_lane_end){0};
    lane->retry_ns = now_ns + core->config.connect_ns; /* gives up then, and tries anew */
    kvf_list_push(&core->act_open, lane_id);
    kvf_core_due(core, lane->retry_ns);
}

/* A stream is connected: grants wait for the source's LANE, which says that it knows this epoch. A queue pair is
 * joined to the one that the source's LANE named: it can receive. */
void kvf_core_lane_up(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id, uint32_t epoch)
{
    if (lane_id >= core->limits.peers_max * KVF_LANES_MAX ||
        core->lanes[lane_id].epoch != epoch) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    struct kvf_lane *lane = &core->lanes[lane_id];
    if (lane->state == KVF_LANE_OPENING && lane->is_queue_pair && lane->theirs.qpn != 0 &&
        core->peers[lane_id / KVF_LANES_MAX].role == KVF_PEER_OUT) {
        set_up(core, lane);
        kvf_grants_admit(core, now_ns, lane_id / KVF_LANES_MAX);
    }
}

void kvf_core_lane_ready(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                         uint32_t epoch, const struct kvf_lane_end *end)
{
    assert(lane_id < core->limits.peers_max * KVF_LANES_MAX);
    assert(end->qpn != 0);
    struct kvf_lane *lane = &core->lanes[lane_id];
    uint32_t peer = lane_id / KVF_LANES_MAX;
    if (lane->epoch == epoch && lane->state == KVF_LANE_UP && !lane->is_queue_pair) {
        kvf_peer_violated(core, now_ns, peer); /* it answered before it could be asked */
        return;
    }
    if (lane->epoch != epoch || lane->state != KVF_LANE_OPENING) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    lane->is_queue_pair = true;
    lane->own = *end;
    lane->owes_lane = true;
    kvf_peer_owe(core, peer);
    if (core->peers[peer].role == KVF_PEER_IN) {
        set_up(core, lane);
    }
}

bool kvf_lane_answered(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                       const struct kvf_wire_lane *m)
{
    struct kvf_lane *lane = &core->lanes[lane_id];
    if (lane->state != KVF_LANE_OPENING || lane->epoch != m->epoch) {
        kvf_count(core, KVF_COUNT_STALE_MESSAGES);
        return true;
    }
    if (lane->is_queue_pair != (m->end.qpn != 0) || lane->theirs.qpn != 0) {
        return false; /* another kind of lane, or a second answer */
    }
    if (lane->is_queue_pair) {
        lane->theirs = m->end;
        kvf_list_push(&core->act_join, lane_id);
        return true;
    }
    set_up(core, lane);
    kvf_grants_admit(core, now_ns, lane_id / KVF_LANES_MAX);
    return true;
}

/* The source's end of what the sink asked for last. */
static void open_as_source(struct kvf_core *core, uint32_t lane_id)
{
    struct kvf_lane *lane = &core->lanes[lane_id];
    assert(lane->state == KVF_LANE_DOWN);
    assert(lane->theirs_epoch > lane->epoch);
    lane->epoch = lane->theirs_epoch;
    lane->state = KVF_LANE_OPENING;
    lane->is_queue_pair = true;
    kvf_list_push(&core->act_open, lane_id);
}

bool kvf_lane_asked(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                    const struct kvf_wire_lane *m)
{
    struct kvf_lane *lane = &core->lanes[lane_id];
    if (core->config.transport != KVF_WIRE_VERBS || m->end.qpn == 0 ||
        m->epoch <= lane->epoch || m->epoch <= lane->theirs_epoch) {
        return false;
    }
    lane->theirs = m->end;
    lane->theirs_epoch = m->epoch;
    /* A stream's sink connects once more if it comes too early. Of a queue pair nothing else would be heard: the
     * sink has fenced the epoch before, which ends here too, and then this one begins. */
    kvf_lane_start_fence(core, now_ns, lane_id);
    if (lane->state == KVF_LANE_DOWN) {
        open_as_source(core, lane_id);
    }
    return true;
}

int kvf_core_lane_accept(struct kvf_core *core, uint64_t now_ns,
                         const struct kvf_wire_lane_hello *hello, uint32_t *ret_lane)
{
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        struct kvf_peer *p = &core->peers[i];
        if (p->role != KVF_PEER_IN || p->state != KVF_PEER_UP || p->session != hello->session) {
            continue;
        }
        if (hello->lane_idx >= p->lane_count) {
            return -KVF_E_PEER_REFUSED;
        }
        uint32_t lane_id = kvf_lane_id(i, hello->lane_idx);
        struct kvf_lane *lane = &core->lanes[lane_id];
        if (lane->state != KVF_LANE_DOWN) {
            /* The sink fenced the old epoch before we noticed: end ours first, it will come again. */
            kvf_lane_start_fence(core, now_ns, lane_id);
            return -KVF_E_PEER_REFUSED;
        }
        if (hello->epoch <= lane->epoch) {
            return -KVF_E_PEER_REFUSED;
        }
        lane->epoch = hello->epoch;
        lane->is_queue_pair = false;
        set_up(core, lane);
        lane->owes_lane = true;
        kvf_peer_owe(core, i);
        *ret_lane = lane_id;
        return 0;
    }
    return -KVF_E_PEER_REFUSED;
}

void kvf_core_lane_lost(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                        uint32_t epoch, int err)
{
    (void)err;
    assert(lane_id < core->limits.peers_max * KVF_LANES_MAX);
    struct kvf_lane *lane = &core->lanes[lane_id];
    if (lane->epoch != epoch || lane->state == KVF_LANE_DOWN) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    kvf_lane_start_fence(core, now_ns, lane_id);
}

static bool is_on_lane(const struct kvf_grant *g, uint32_t lane_idx, uint32_t epoch)
{
    return (kvf_left(g->lane_mask, g->proven_mask) >> lane_idx & 1u) != 0 &&
           g->lane_epochs[lane_idx] == epoch;
}

/* Ending one grant may end its siblings, so a walk over a peer's grants checks that the next one is still
 * the one it saw, and begins anew if not. Grants already dealt with no longer match. */
static uint32_t next_or_first(const struct kvf_core *core, uint32_t peer, uint32_t next,
                              uint64_t next_nonce)
{
    bool is_same = next == KVF_LIST_NONE ||
                   (core->grants[next].state != KVF_GRANT_FREE &&
                    core->grants[next].nonce == next_nonce && core->grants[next].peer == peer);
    return is_same ? next : kvf_list_first(&core->peers[peer].grants);
}

/* The lane's grants end now, not when the fence returns: the time that their other lanes have for a marker
 * runs meanwhile. */
static void end_grants_of(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id)
{
    uint32_t peer = lane_id / KVF_LANES_MAX;
    struct kvf_peer *p = &core->peers[peer];
    uint32_t g = kvf_list_first(&p->grants);
    while (g != KVF_LIST_NONE) {
        uint32_t next = kvf_list_next(&p->grants, g);
        uint64_t next_nonce = next == KVF_LIST_NONE ? 0 : core->grants[next].nonce;
        if (is_on_lane(&core->grants[g], lane_id % KVF_LANES_MAX, core->lanes[lane_id].epoch)) {
            kvf_grant_lane_lost(core, now_ns, g);
            next = next_or_first(core, peer, next, next_nonce);
        }
        g = next;
    }
    kvf_grants_admit(core, now_ns, peer); /* what was not sent takes another lane */
}

void kvf_lane_start_fence(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id)
{
    struct kvf_lane *lane = &core->lanes[lane_id];
    struct kvf_peer *p = &core->peers[lane_id / KVF_LANES_MAX];
    if (lane->state == KVF_LANE_DOWN || lane->state == KVF_LANE_FENCING) {
        return;
    }
    if (kvf_list_has(&core->act_open,
                     lane_id)) { /* the transport has not heard of this epoch */
        kvf_list_remove(&core->act_open, lane_id);
        lane->state = KVF_LANE_DOWN;
        return;
    }
    if (lane->state == KVF_LANE_UP) {
        kvf_gauge_sub(core, KVF_GAUGE_LANES_UP, 1);
        kvf_count(core, KVF_COUNT_FENCES);
    }
    if (lane->state == KVF_LANE_OPENING && lane->failed_opens <= KVF_LANE_RETRY_DOUBLINGS_MAX) {
        lane->failed_opens++;
    }
    lane->state = KVF_LANE_FENCING;
    lane->fence_since_ns = now_ns;
    lane->owes_lane = false;
    kvf_list_remove(&core->act_post, lane_id);
    kvf_list_remove(&core->act_join, lane_id);
    kvf_list_push(&core->act_fence, lane_id);
    kvf_list_push(&core->fencing, lane_id);
    kvf_core_due(core, now_ns + core->config.fence_ns);
    if (p->role == KVF_PEER_OUT) {
        end_grants_of(core, now_ns, lane_id);
    }
}

static void fenced_as_sink(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                           uint32_t lane_idx, uint32_t epoch)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t g = kvf_list_first(&p->grants);
    while (g != KVF_LIST_NONE) {
        uint32_t next = kvf_list_next(&p->grants, g);
        uint64_t next_nonce = next == KVF_LIST_NONE ? 0 : core->grants[next].nonce;
        if (is_on_lane(&core->grants[g], lane_idx, epoch)) {
            kvf_grant_prove(core, now_ns, g, lane_idx, KVF_PROOF_FENCED);
            next = next_or_first(core, peer, next, next_nonce);
        }
        g = next;
    }
}

static void fenced_as_source(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                             uint32_t lane_idx)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t s = kvf_list_first(&p->grants);
    while (s != KVF_LIST_NONE) {
        uint32_t next = kvf_list_next(&p->grants, s);
        uint32_t next_incarnation = next == KVF_LIST_NONE ? 0 : core->sources[next].incarnation;
        bool was_dead = (core->sources[s].dead_mask >> lane_idx & 1u) != 0;
        kvf_source_lane_dead(core, now_ns, s, lane_idx);
        if (!was_dead && next != KVF_LIST_NONE &&
            (core->sources[next].state == KVF_SOURCE_FREE ||
             core->sources[next].incarnation != next_incarnation)) {
            next = kvf_list_first(&p->grants);
        }
        s = next;
    }
}

/* A peer whose lanes cannot be joined costs both sides queue pairs with each attempt; and lanes that failed together
 * do not come again together. */
static uint64_t retry_wait_ns(struct kvf_core *core, const struct kvf_lane *lane)
{
    if (lane->failed_opens == 0) {
        return KVF_LANE_RETRY_NS;
    }
    uint64_t wait_ns = KVF_LANE_RETRY_NS << (lane->failed_opens - 1u);
    return wait_ns + kvf_core_random(core) % (wait_ns / 2u + 1u);
}

void kvf_core_lane_fenced(struct kvf_core *core, uint64_t now_ns, uint32_t lane_id,
                          uint32_t epoch)
{
    assert(lane_id < core->limits.peers_max * KVF_LANES_MAX);
    struct kvf_lane *lane = &core->lanes[lane_id];
    uint32_t peer = lane_id / KVF_LANES_MAX;
    if (lane->state != KVF_LANE_FENCING || lane->epoch != epoch) {
        kvf_count(core, KVF_COUNT_STALE_LANE_EVENTS);
        return;
    }
    assert(lane->posted_bytes == 0);
    lane->state = KVF_LANE_DOWN;
    lane->retry_ns = now_ns + retry_wait_ns(core, lane);
    kvf_core_due(core, lane->retry_ns);
    kvf_list_remove(&core->fencing, lane_id);
    kvf_list_remove(&core->act_escalate, lane_id);
    if (core->peers[peer].role == KVF_PEER_OUT) {
        fenced_as_sink(core, now_ns, peer, lane_id % KVF_LANES_MAX, epoch);
        kvf_grants_admit(core, now_ns, peer); /* who waited for this lane takes another */
    } else if (core->peers[peer].role == KVF_PEER_IN) {
        fenced_as_source(core, now_ns, peer, lane_id % KVF_LANES_MAX);
        if (core->peers[peer].state == KVF_PEER_UP && lane->theirs_epoch > lane->epoch) {
            open_as_source(core, lane_id);
        }
    }
    kvf_peer_check_free(core, peer);
}

/* One deadline for every fence, from its request, over all lanes pending together. */
void kvf_lane_tick(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns)
{
    uint32_t lane_id;
    while ((lane_id = kvf_list_first(&core->fencing)) != KVF_LIST_NONE) {
        uint64_t end_ns = core->lanes[lane_id].fence_since_ns + core->config.fence_ns;
        if (end_ns > now_ns) {
            *due_ns = end_ns < *due_ns ? end_ns : *due_ns;
            return;
        }
        kvf_list_remove(&core->fencing, lane_id);
        kvf_list_push(&core->act_escalate, lane_id);
    }
}

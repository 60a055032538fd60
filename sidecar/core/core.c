/* Memory, randomness, time and the pull of actions. What the objects do stands in their own files. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------------- */

struct carver {
    unsigned char *base; /* NULL: only counts */
    size_t used;
};

static void *carve(struct carver *c, size_t count, size_t bytes)
{
    void *at = c->base == NULL ? NULL : c->base + c->used;
    size_t total = (count * bytes + KVF_LINE_BYTES - 1) / KVF_LINE_BYTES * KVF_LINE_BYTES;
    c->used += total;
    return at;
}

/* One place says what a core consists of; kvf_core_bytes and kvf_core_init both walk it. */
static void carve_all(struct carver *c, const struct kvf_core_limits *l, struct kvf_core *core)
{
    (void)carve(c, 1, sizeof(struct kvf_core));
    core->clients = carve(c, l->clients_max, sizeof *core->clients);
    core->rooms =
        carve(c, (size_t)l->clients_max * l->rooms_per_client_max, sizeof *core->rooms);
    core->grants = carve(c, l->grants_max, sizeof *core->grants);
    core->sources = carve(c, l->grants_max, sizeof *core->sources);
    core->peers = carve(c, l->peers_max, sizeof *core->peers);
    core->lanes = carve(c, (size_t)l->peers_max * KVF_LANES_MAX, sizeof *core->lanes);
    core->pieces = carve(c, l->pieces_max, sizeof *core->pieces);
    core->tombstones = carve(c, KVF_TOMBSTONES, sizeof *core->tombstones);
    core->room_buckets = carve(c, KVF_HASH_BUCKETS, sizeof *core->room_buckets);
    core->park_buckets = carve(c, KVF_HASH_BUCKETS, sizeof *core->park_buckets);
    core->nonce_buckets = carve(c, KVF_HASH_BUCKETS, sizeof *core->nonce_buckets);
    core->groups =
        carve(c, (size_t)l->clients_max * KVF_GROUPS_PER_CLIENT_MAX, sizeof *core->groups);
    core->group_tombs =
        carve(c, (size_t)l->clients_max * l->group_tombstones_max, sizeof *core->group_tombs);
    core->group_answers =
        carve(c, (size_t)l->peers_max * KVF_GROUP_ANSWERS_MAX, sizeof *core->group_answers);
    core->group_hints = carve(c, KVF_GROUP_HINTS, sizeof *core->group_hints);
    core->group_buckets = carve(c, KVF_HASH_BUCKETS, sizeof *core->group_buckets);
    core->tomb_buckets = carve(c, KVF_HASH_BUCKETS, sizeof *core->tomb_buckets);
    core->remotes = carve(c, l->remote_regions_max, sizeof *core->remotes);
    core->runs.run = carve(c, 1, kvf_runs_bytes(l->runs_max));
}

size_t kvf_core_bytes(const struct kvf_core_limits *limits)
{
    struct kvf_core scratch;
    struct carver c = {0};
    carve_all(&c, limits, &scratch);
    return c.used;
}

static void init_lists(struct kvf_core *core)
{
    KVF_LIST_INIT(&core->bootstrap, core->rooms, bootstrap);
    KVF_LIST_INIT(&core->publish, core->rooms, publish);
    KVF_LIST_INIT(&core->leases_close, core->rooms, leases_close);
    KVF_LIST_INIT(&core->act_flush, core->rooms, act_flush);
    KVF_LIST_INIT(&core->flushing, core->rooms, flushing);
    KVF_LIST_INIT(&core->grant_deadlines, core->grants, deadline);
    KVF_LIST_INIT(&core->source_deadlines, core->sources, deadline);
    KVF_LIST_INIT(&core->detaches, core->sources, detach);
    KVF_LIST_INIT(&core->act_fence, core->lanes, act_fence);
    KVF_LIST_INIT(&core->act_open, core->lanes, act_open);
    KVF_LIST_INIT(&core->act_join, core->lanes, act_join);
    KVF_LIST_INIT(&core->act_post, core->lanes, act_post);
    KVF_LIST_INIT(&core->act_escalate, core->lanes, act_escalate);
    KVF_LIST_INIT(&core->fencing, core->lanes, fencing);
    KVF_LIST_INIT(&core->act_connect, core->peers, act_connect);
    KVF_LIST_INIT(&core->act_close, core->peers, act_close);
    KVF_LIST_INIT(&core->act_write, core->peers, act_write);
    KVF_LIST_INIT(&core->quiet, core->clients, quiet);
    KVF_LIST_INIT(&core->tomb_store, core->group_tombs, store);
    KVF_LIST_INIT(&core->groups_used, core->groups, used);
    KVF_LIST_INIT(&core->group_local, core->rooms, group_local);
    KVF_LIST_INIT(&core->group_stuck, core->rooms, group_stuck);
}

struct kvf_core *kvf_core_init(void *memory, const struct kvf_core_limits *limits,
                               const struct kvf_core_config *config, const uint64_t seed[4])
{
    assert(((uintptr_t)memory & (KVF_LINE_BYTES - 1)) == 0);
    assert(limits->lanes_per_peer >= 1);
    assert(limits->lanes_per_peer <= KVF_LANES_MAX);
    assert(limits->grants_max <= 65536);
    assert(config->transport != KVF_WIRE_VERBS || config->placement == KVF_PLACEMENT_POSTED);
    assert((uint64_t)limits->clients_max * KVF_REGIONS_PER_CLIENT_MAX <=
           KVF_REGIONS_PER_WORKER_MAX);
    assert((uint64_t)limits->clients_max * limits->rooms_per_client_max < KVF_NONE / 2);
    assert((uint64_t)limits->clients_max * limits->group_tombstones_max < KVF_NONE / 2);
    struct kvf_core *core = memory;
    struct carver c = {.base = memory};
    carve_all(&c, limits, core);
    core->limits = *limits;
    core->config = *config;
    memcpy(core->random, seed, sizeof core->random);
    core->salt = kvf_hash2(seed[0], seed[3]) | 1u;
    core->group_budget = KVF_GROUP_QUESTIONS_PER_TURN;
    core->next_tick_ns = KVF_NO_TIME;
    kvf_runs_init(&core->runs, core->runs.run, limits->runs_max);
    init_lists(core);
    return core;
}

/* ---- randomness: xoshiro256**, seeded by the caller ------------------------------------------------ */

static uint64_t rotl(uint64_t x, unsigned k)
{
    return x << k | x >> (64 - k);
}

uint64_t kvf_core_random(struct kvf_core *core)
{
    uint64_t *s = core->random;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t kvf_hash2(uint64_t a, uint64_t b)
{
    uint64_t h = a * UINT64_C(0x9e3779b97f4a7c15) ^ rotl(b, 31);
    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    h ^= h >> 32;
    h *= UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 29;
}

uint32_t kvf_core_runs_alloc(struct kvf_core *core, uint32_t count)
{
    uint32_t block = kvf_runs_alloc(&core->runs, count);
    core->gauges[KVF_GAUGE_RUNS_USED] = core->runs.used;
    return block;
}

void kvf_core_runs_free(struct kvf_core *core, uint32_t block)
{
    kvf_runs_free(&core->runs, block);
    core->gauges[KVF_GAUGE_RUNS_USED] = core->runs.used;
}

/* ---- time ------------------------------------------------------------------------------------------ */

void kvf_core_due(struct kvf_core *core, uint64_t when_ns)
{
    if (when_ns < core->next_tick_ns) {
        core->next_tick_ns = when_ns;
    }
}

uint64_t kvf_core_deadline(const struct kvf_core *core)
{
    return core->next_tick_ns;
}

static void tick_bootstrap(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns)
{
    for (;;) {
        uint32_t room = kvf_list_first(&core->bootstrap);
        if (room == KVF_LIST_NONE) {
            return;
        }
        const struct kvf_room_rec *r = &core->rooms[room];
        uint64_t end_ns = r->wait_since_ns + core->config.bootstrap_ns;
        if (end_ns > now_ns) {
            *due_ns = end_ns < *due_ns ? end_ns : *due_ns;
            return;
        }
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED,
                       r->waits_again ? KVF_E_LANE_LOST : KVF_E_BOOTSTRAP_TIMEOUT, 0);
    }
}

static void fence_lanes(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint32_t lanes)
{
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        if ((lanes >> i & 1u) != 0) {
            kvf_lane_start_fence(core, now_ns, kvf_lane_id(peer, i));
        }
    }
}

/* The cooperative deadline proves nothing: it only orders the fence of the lanes that still owe. */
static void tick_cooperative(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns)
{
    uint32_t grant;
    while ((grant = kvf_list_first(&core->grant_deadlines)) != KVF_LIST_NONE) {
        struct kvf_grant *g = &core->grants[grant];
        if (g->deadline_ns > now_ns) {
            *due_ns = g->deadline_ns < *due_ns ? g->deadline_ns : *due_ns;
            break;
        }
        kvf_list_remove(&core->grant_deadlines, grant);
        if (g->is_stopped && !g->is_retired && kvf_grant_is_between(core, g)) {
            /* It stopped and does not say why: not for a lane's sake, then. */
            kvf_room_close(core, now_ns, g->room, KVF_OUTCOME_FAILED, KVF_E_PEER_ABORTED, 0);
            continue;
        }
        if (g->proven_mask == g->lane_mask) {
            /* Proven, but its one answer never came: the loss of the connection answers it. */
            kvf_peer_drop(core, now_ns, g->peer, ETIMEDOUT);
            continue;
        }
        fence_lanes(core, now_ns, g->peer, kvf_left(g->lane_mask, g->proven_mask));
    }
    uint32_t source;
    while ((source = kvf_list_first(&core->source_deadlines)) != KVF_LIST_NONE) {
        struct kvf_source_grant *s = &core->sources[source];
        if (s->deadline_ns > now_ns) {
            *due_ns = s->deadline_ns < *due_ns ? s->deadline_ns : *due_ns;
            break;
        }
        kvf_list_remove(&core->source_deadlines, source);
        fence_lanes(core, now_ns, s->peer,
                    kvf_left(s->lane_mask, (uint32_t)s->mark_done_mask | s->dead_mask));
    }
}

void kvf_core_tick(struct kvf_core *core, uint64_t now_ns)
{
    if (now_ns < core->next_tick_ns) {
        return;
    }
    core->next_tick_ns = KVF_NO_TIME;
    uint64_t due_ns = KVF_NO_TIME;
    tick_bootstrap(core, now_ns, &due_ns);
    tick_cooperative(core, now_ns, &due_ns);
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        if (core->peers[i].role != KVF_PEER_FREE) {
            kvf_peer_tick(core, now_ns, i, &due_ns);
        }
    }
    kvf_lane_tick(core, now_ns, &due_ns);
    kvf_flush_tick(core, now_ns, &due_ns);
    kvf_group_tick(core, now_ns, &due_ns);
    kvf_core_due(core, due_ns);
}

uint64_t kvf_core_bound_usual_ns(const struct kvf_core_config *config)
{
    return config->liveness_ns + config->cooperative_ns + config->fence_ns;
}

uint64_t kvf_core_bound_flush_ns(const struct kvf_core_config *config)
{
    return config->fence_ns;
}

/* ---- actions --------------------------------------------------------------------------------------- */

static void fill_lane(const struct kvf_core *core, uint32_t lane, struct kvf_action *ret_action)
{
    uint32_t peer = lane / KVF_LANES_MAX;
    ret_action->lane = lane;
    ret_action->peer = peer;
    ret_action->epoch = core->lanes[lane].epoch;
    ret_action->session = core->peers[peer].session;
    ret_action->addr = core->peers[peer].addr;
}

static bool next_lane_action(struct kvf_core *core, struct kvf_list *list,
                             enum kvf_action_kind kind, struct kvf_action *ret_action)
{
    uint32_t lane = kvf_list_pop(list);
    if (lane == KVF_LIST_NONE) {
        return false;
    }
    ret_action->kind = kind;
    fill_lane(core, lane, ret_action);
    ret_action->end =
        core->lanes[lane].theirs; /* zero for a sink that opens, and for streams */
    return true;
}

static bool next_peer_action(struct kvf_core *core, struct kvf_list *list,
                             enum kvf_action_kind kind, struct kvf_action *ret_action)
{
    uint32_t peer = kvf_list_pop(list);
    if (peer == KVF_LIST_NONE) {
        return false;
    }
    ret_action->kind = kind;
    ret_action->peer = peer;
    ret_action->addr = core->peers[peer].addr;
    kvf_peer_check_free(core, peer); /* a CLOSE that was pending kept its place taken */
    return true;
}

static bool next_room_action(struct kvf_core *core, struct kvf_list *list,
                             enum kvf_action_kind kind, struct kvf_action *ret_action)
{
    uint32_t room = kvf_list_pop(list);
    if (room == KVF_LIST_NONE) {
        return false;
    }
    ret_action->kind = kind;
    ret_action->client = kvf_room_client(core, room);
    ret_action->slot = kvf_room_slot(core, room);
    ret_action->generation = core->rooms[room].generation;
    return true;
}

/* A kept key, or the end of one. Answers that speak of it wait until the caller has come back. */
static bool next_tomb(struct kvf_core *core, struct kvf_action *ret_action)
{
    bool was_pulled = core->is_tomb_pulled;
    uint32_t tomb = kvf_list_pop(&core->tomb_store);
    core->is_tomb_pulled = tomb != KVF_LIST_NONE;
    if (tomb != KVF_LIST_NONE) {
        ret_action->kind = KVF_ACT_GROUP_KEY;
        ret_action->client = kvf_tomb_client(core, tomb);
        ret_action->slot = tomb % core->limits.group_tombstones_max;
        ret_action->group = core->group_tombs[tomb].group;
        ret_action->key = core->group_tombs[tomb].key;
        return true;
    }
    for (uint32_t i = 0; was_pulled && i < core->limits.peers_max; i++) {
        if (core->peers[i].role == KVF_PEER_IN && core->peers[i].answer_count > 0) {
            kvf_peer_owe(core, i);
        }
    }
    return false;
}

/* A detach is told once per lane of the grant: lanes still to be told are the upper loop's state. */
static bool next_detach(struct kvf_core *core, struct kvf_action *ret_action)
{
    uint32_t source = kvf_list_first(&core->detaches);
    if (source == KVF_LIST_NONE) {
        return false;
    }
    struct kvf_source_grant *s = &core->sources[source];
    uint32_t left = kvf_left(s->lane_mask, (uint32_t)s->dead_mask | s->detached_mask);
    if (left == 0) {
        kvf_list_remove(&core->detaches, source);
        return next_detach(core, ret_action);
    }
    uint32_t lane_idx = (uint32_t)__builtin_ctz(left);
    s->detached_mask |= (uint8_t)(1u << lane_idx);
    ret_action->kind = KVF_ACT_DETACH;
    fill_lane(core, kvf_lane_id(s->peer, lane_idx), ret_action);
    ret_action->cookie = (uint64_t)s->incarnation << 32 | source;
    return true;
}

int kvf_core_next_action(struct kvf_core *core, struct kvf_action *ret_action)
{
    struct kvf_action a = {0};
    kvf_group_pump(core); /* ranks behind one daemon talk without a wire */
    bool got = next_lane_action(core, &core->act_fence, KVF_ACT_FENCE, &a) ||
               next_detach(core, &a) || next_tomb(core, &a) ||
               next_room_action(core, &core->leases_close, KVF_ACT_CLOSE_LEASES, &a) ||
               next_room_action(core, &core->publish, KVF_ACT_PUBLISH, &a) ||
               next_peer_action(core, &core->act_close, KVF_ACT_CLOSE, &a) ||
               next_peer_action(core, &core->act_connect, KVF_ACT_CONNECT, &a) ||
               next_lane_action(core, &core->act_open, KVF_ACT_LANE_OPEN, &a) ||
               next_lane_action(core, &core->act_join, KVF_ACT_LANE_JOIN, &a) ||
               next_peer_action(core, &core->act_write, KVF_ACT_WRITE, &a) ||
               next_lane_action(core, &core->act_post, KVF_ACT_POST, &a) ||
               kvf_flush_next(core, &a) || kvf_flush_next_failure(core, &a) ||
               next_lane_action(core, &core->act_escalate, KVF_ACT_ESCALATE, &a);
    if (!got) {
        uint32_t client = kvf_list_pop(&core->quiet);
        if (client == KVF_LIST_NONE) {
            return 0;
        }
        a.kind = KVF_ACT_CLIENT_QUIET;
        a.client = client;
    }
    *ret_action = a;
    return 1;
}

/* ---- what operators see ---------------------------------------------------------------------------- */

const uint64_t *kvf_core_counters(const struct kvf_core *core)
{
    return core->counters;
}
const uint64_t *kvf_core_gauges(const struct kvf_core *core)
{
    return core->gauges;
}

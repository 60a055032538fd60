/* Control connections. A grant belongs to the connection it was sent on: losing the connection ends all
 * its grants on both sides and fences its lanes, so a lost GRANT or ACCEPT is no case of its own. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

/* ---- the table ------------------------------------------------------------------------------------- */

static bool are_lanes_down(const struct kvf_core *core, uint32_t peer)
{
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        if (core->lanes[kvf_lane_id(peer, i)].state != KVF_LANE_DOWN) {
            return false;
        }
    }
    return true;
}

void kvf_peer_check_free(struct kvf_core *core, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    bool is_idle = (p->role == KVF_PEER_OUT && p->state == KVF_PEER_IDLE) ||
                   (p->role == KVF_PEER_IN && p->state == KVF_PEER_LOST);
    if (is_idle && p->grants.count == 0 && !kvf_list_has(&core->act_close, peer) &&
        are_lanes_down(core, peer)) {
        kvf_list_remove(&core->act_connect, peer);
        kvf_list_remove(&core->act_write, peer);
        kvf_remote_forget(core, peer);
        p->role = KVF_PEER_FREE;
    }
}

static uint32_t peer_alloc(struct kvf_core *core, enum kvf_peer_role role)
{
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        struct kvf_peer *p = &core->peers[i];
        if (p->role != KVF_PEER_FREE) {
            continue;
        }
        memset(p, 0, offsetof(struct kvf_peer, remote));
        if (role == KVF_PEER_IN) {
            memset(p->remote, 0, sizeof p->remote);
            KVF_LIST_INIT(&p->grants, core->sources, in_peer);
            KVF_LIST_INIT(&p->owed, core->sources, owed);
        } else {
            KVF_LIST_INIT(&p->grants, core->grants, in_peer);
            KVF_LIST_INIT(&p->owed, core->grants, owed);
        }
        KVF_LIST_INIT(&p->waiting, core->grants, waiting);
        for (uint32_t j = 0; j < KVF_LANES_MAX; j++) {
            core->lanes[kvf_lane_id(i, j)] = (struct kvf_lane){0};
        }
        p->role = (uint8_t)role;
        p->dial_id = (uint32_t)kvf_core_random(core);
        return i;
    }
    return KVF_NONE;
}

bool kvf_addr_is_same(const struct kvf_addr_shm *a, const struct kvf_addr_shm *b)
{
    size_t bytes = a->family == 4 ? 4 : 16;
    return a->family == b->family && a->port == b->port &&
           (a->family == 4 || a->scope == b->scope) && memcmp(a->addr, b->addr, bytes) == 0;
}

uint32_t kvf_peer_find(const struct kvf_core *core, const struct kvf_addr_shm *addr)
{
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        const struct kvf_peer *p = &core->peers[i];
        if (p->role == KVF_PEER_OUT && kvf_addr_is_same(&p->addr, addr)) {
            return i;
        }
    }
    return KVF_NONE;
}

uint32_t kvf_peer_for_addr(struct kvf_core *core, uint64_t now_ns,
                           const struct kvf_addr_shm *addr)
{
    uint32_t peer = kvf_peer_find(core, addr);
    if (peer != KVF_NONE) {
        return peer;
    }
    uint32_t idle = KVF_NONE;
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        const struct kvf_peer *p = &core->peers[i];
        if (p->role == KVF_PEER_OUT && p->state == KVF_PEER_UP && p->grants.count == 0) {
            idle = i;
        }
    }
    peer = peer_alloc(core, KVF_PEER_OUT);
    if (peer == KVF_NONE && idle != KVF_NONE) {
        /* Makes room for the next open; this one is refused, since the idle peer's lanes must be
         * fenced before its place is free. */
        kvf_peer_drop(core, now_ns, idle, 0);
    }
    if (peer != KVF_NONE) {
        core->peers[peer].addr = *addr;
    }
    return peer;
}

void kvf_peer_owe(struct kvf_core *core, uint32_t peer)
{
    uint8_t state = core->peers[peer].state;
    if (state == KVF_PEER_UP || state == KVF_PEER_HELLO) {
        kvf_list_push(&core->act_write, peer);
    }
}

void kvf_peer_need(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    if (p->state != KVF_PEER_IDLE) {
        return;
    }
    p->state = KVF_PEER_CONNECTING;
    p->heard_ns =
        now_ns; /* nothing heard since the wish: the connect deadline runs from here */
    kvf_core_due(core, now_ns + core->config.connect_ns);
    if (p->unreachable_since_ns == 0) {
        p->unreachable_since_ns = now_ns;
    }
    kvf_list_push(&core->act_connect, peer);
}

/* ---- losing a connection --------------------------------------------------------------------------- */

/* Ends, one by one, what matches; ending one may end others, so every step begins at the head. */
static void fail_waiting(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint32_t reason,
                         uint32_t detail)
{
    uint32_t g;
    while ((g = kvf_list_first(&core->peers[peer].waiting)) != KVF_LIST_NONE) {
        uint32_t room = core->grants[g].room;
        assert(room != KVF_NONE);
        kvf_room_close(core, now_ns, room, KVF_OUTCOME_FAILED, reason, detail);
        assert(kvf_list_first(&core->peers[peer].waiting) != g);
    }
}

static void forget_hints(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t next;
    for (uint32_t g = kvf_list_first(&p->owed); g != KVF_LIST_NONE; g = next) {
        next = kvf_list_next(&p->owed, g);
        if (core->grants[g].state == KVF_GRANT_TELL) {
            kvf_grant_forget(core, now_ns, g);
        }
    }
}

/* Every grant of the old connection is answered by its loss: nothing more will come for it. */
static void lose_grants_out(struct kvf_core *core, uint64_t now_ns, uint32_t peer, int err)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t g = kvf_list_first(&p->grants);
    while (g != KVF_LIST_NONE) {
        struct kvf_grant *grant = &core->grants[g];
        uint32_t next = kvf_list_next(&p->grants, g);
        uint64_t next_nonce = next == KVF_LIST_NONE ? 0 : core->grants[next].nonce;
        if (grant->state == KVF_GRANT_QUEUED) {
            if (grant->lane_mask != 0) {
                kvf_grant_unqueue(core, g);
            }
            if (grant->past_nonce !=
                0) { /* the source's place for it goes with the connection */
                grant->past_nonce = 0;
                kvf_room_close(core, now_ns, grant->room, KVF_OUTCOME_FAILED, KVF_E_PEER_LOST,
                               (uint32_t)err);
            }
        } else if (!grant->is_answered || grant->state == KVF_GRANT_SENDING ||
                   !grant->is_closed) {
            grant->is_answered = true;
            grant->state = KVF_GRANT_ACCEPTED;
            if (grant->room != KVF_NONE) {
                kvf_room_close(core, now_ns, grant->room, KVF_OUTCOME_FAILED, KVF_E_PEER_LOST,
                               (uint32_t)err);
            }
        }
        if (grant->state == KVF_GRANT_ACCEPTED) {
            grant->owes_abort = false;
            kvf_list_remove(&p->owed, g);
            if (grant->proven_mask == grant->lane_mask) {
                kvf_grant_forget(core, now_ns, g);
            }
        }
        bool moved = next != KVF_LIST_NONE && (core->grants[next].state == KVF_GRANT_FREE ||
                                               core->grants[next].nonce != next_nonce ||
                                               core->grants[next].peer != peer);
        g = moved ? kvf_list_first(&p->grants) : next;
    }
}

static void lose_grants_in(struct kvf_core *core, uint64_t now_ns, uint32_t peer, int err)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t s = kvf_list_first(&p->grants);
    while (s != KVF_LIST_NONE) {
        struct kvf_source_grant *source = &core->sources[s];
        uint32_t next = kvf_list_next(&p->grants, s);
        uint32_t next_incarnation = next == KVF_LIST_NONE ? 0 : core->sources[next].incarnation;
        source->owes_accept = false;
        source->owes_ended = false;
        if (source->state != KVF_SOURCE_ACTIVE) {
            kvf_source_free(core, now_ns, s);
        } else {
            bool has_place = source->is_lost ? !source->is_given_up && !source->is_replaced
                                             : !source->is_closing &&
                                                   source->end_ok_mask != source->lane_mask;
            if (source->room != KVF_NONE && has_place) {
                kvf_room_close(core, now_ns, source->room, KVF_OUTCOME_FAILED, KVF_E_PEER_LOST,
                               (uint32_t)err);
            }
            kvf_source_close(core, now_ns, s, KVF_E_PEER_LOST, (uint32_t)err);
            source->owes_ended = false;
            kvf_source_try_end(core, now_ns, s);
        }
        bool moved =
            next != KVF_LIST_NONE && (core->sources[next].state == KVF_SOURCE_FREE ||
                                      core->sources[next].incarnation != next_incarnation);
        s = moved ? kvf_list_first(&p->grants) : next;
    }
}

static void lose(struct kvf_core *core, uint64_t now_ns, uint32_t peer, int err)
{
    struct kvf_peer *p = &core->peers[peer];
    bool is_unreachable = p->state == KVF_PEER_HELLO && p->unreachable_since_ns != 0 &&
                          now_ns - p->unreachable_since_ns >= core->config.connect_ns;
    bool is_foreign = p->state == KVF_PEER_HELLO && err == ENOTSUP;
    if (p->state == KVF_PEER_UP) {
        kvf_gauge_sub(core, KVF_GAUGE_PEERS_UP, 1);
        kvf_count(core, KVF_COUNT_PEERS_LOST);
    }
    p->owes_hello = false;
    p->owes_ping = false;
    p->owes_pong = false;
    p->owes_group = false;
    p->answer_count = 0;
    kvf_list_remove(&core->act_write, peer);
    if (p->role == KVF_PEER_IN) {
        p->state = KVF_PEER_LOST;
        lose_grants_in(core, now_ns, peer, err);
    } else {
        p->state = KVF_PEER_RETRY;
        p->retry_ns = now_ns + KVF_CONNECT_RETRY_NS;
        if (p->unreachable_since_ns == 0) {
            p->unreachable_since_ns = now_ns;
        }
        memset(p->announced, 0, sizeof p->announced);
        kvf_core_due(core, p->retry_ns);
        forget_hints(core, now_ns, peer);
        lose_grants_out(core, now_ns, peer, err);
        if (is_foreign) { /* another version of the wire: the next attempt ends as this one */
            fail_waiting(core, now_ns, peer, KVF_E_PEER_REFUSED, (uint32_t)err);
        } else if (is_unreachable) { /* it takes connections and never says HELLO */
            fail_waiting(core, now_ns, peer, KVF_E_PEER_UNREACHABLE, (uint32_t)err);
        }
    }
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        kvf_lane_start_fence(core, now_ns, kvf_lane_id(peer, i));
    }
    kvf_peer_check_free(core, peer);
}

void kvf_peer_drop(struct kvf_core *core, uint64_t now_ns, uint32_t peer, int err)
{
    kvf_list_push(&core->act_close, peer);
    lose(core, now_ns, peer, err);
}

void kvf_core_peer_lost(struct kvf_core *core, uint64_t now_ns, uint32_t peer, int err)
{
    assert(peer < core->limits.peers_max);
    uint8_t state = core->peers[peer].state;
    if (core->peers[peer].role == KVF_PEER_FREE ||
        (state != KVF_PEER_UP && state != KVF_PEER_HELLO)) {
        return; /* the core let go of it first */
    }
    lose(core, now_ns, peer, err);
}

void kvf_peer_violated(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    kvf_count(core, KVF_COUNT_PROTOCOL_ERRORS);
    kvf_peer_drop(core, now_ns, peer, EPROTO);
}

/* ---- connecting ------------------------------------------------------------------------------------ */

void kvf_core_peer_connected(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    if (p->role != KVF_PEER_OUT || p->state != KVF_PEER_CONNECTING) {
        return;
    }
    p->state = KVF_PEER_HELLO;
    /* Who dials, which of its connections (so that an older one is told from a newer), and luck. */
    p->session = (uint64_t)p->dial_id << 32 | (uint32_t)++p->dial_count << 16 |
                 (uint16_t)kvf_core_random(core);
    p->ping_seq = 0;
    p->heard_seq = 0;
    p->seq_in = 0;
    p->seq_out = 0;
    p->owes_hello = true;
    p->heard_ns = now_ns;
    p->pinged_ns = now_ns;
    kvf_core_due(core, now_ns + core->config.liveness_ns);
    kvf_peer_owe(core, peer);
}

void kvf_core_peer_connect_failed(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                                  int err)
{
    struct kvf_peer *p = &core->peers[peer];
    if (p->role != KVF_PEER_OUT || p->state != KVF_PEER_CONNECTING) {
        return;
    }
    p->state = KVF_PEER_RETRY;
    p->retry_ns = now_ns + KVF_CONNECT_RETRY_NS;
    p->owes_group = false; /* who still waits asks again, and so dials again */
    kvf_core_due(core, p->retry_ns);
    if (now_ns - p->unreachable_since_ns >= core->config.connect_ns) {
        fail_waiting(core, now_ns, peer, KVF_E_PEER_UNREACHABLE, (uint32_t)err);
    }
    forget_hints(core, now_ns, peer); /* nobody is there to be told */
}

/* Why a HELLO is not accepted; 0: it is. */
static uint32_t hello_refusal(const struct kvf_core *core, const struct kvf_wire_hello *h)
{
    if (h->version_major != KVF_WIRE_VERSION_MAJOR || h->auth_kind != 0) {
        return KVF_E_PEER_REFUSED;
    }
    if ((h->caps & KVF_CAP_DRAIN_PROOF) == 0 || h->transport != core->config.transport) {
        return KVF_E_PEER_REFUSED;
    }
    if (h->lane_count == 0 || h->lane_count > KVF_LANES_MAX ||
        (h->placement != KVF_PLACEMENT_CHECKED && h->placement != KVF_PLACEMENT_POSTED)) {
        return KVF_E_PEER_REFUSED;
    }
    if (h->transport == KVF_WIRE_VERBS && h->placement != KVF_PLACEMENT_POSTED) {
        return KVF_E_PEER_REFUSED; /* its device asks nobody */
    }
    return 0;
}

static void go_up(struct kvf_core *core, uint64_t now_ns, struct kvf_peer *p,
                  const struct kvf_wire_hello *h)
{
    uint32_t own = core->limits.lanes_per_peer;
    p->lane_count = (uint8_t)(h->lane_count < own ? h->lane_count : own);
    p->supervisor_id = h->supervisor_id;
    p->worker_starts = h->worker_starts;
    p->placement = h->placement;
    p->receives_per_lane = h->receives_per_lane;
    p->caps = h->caps;
    memcpy(p->name, h->name, sizeof p->name);
    p->state = KVF_PEER_UP;
    p->unreachable_since_ns = 0;
    p->heard_ns = now_ns;
    p->pinged_ns = now_ns;
    kvf_core_due(core, now_ns + core->config.liveness_ns / 3);
    kvf_gauge_add(core, KVF_GAUGE_PEERS_UP, 1);
}

/* Sessions of one dialler count its connections, modulo 65,536, in bits 16 to 31. */
static bool is_older_session(uint64_t session, uint64_t than)
{
    return (uint16_t)((session >> 16) - (than >> 16)) >= 0x8000u;
}

int kvf_core_peer_accept(struct kvf_core *core, uint64_t now_ns, const unsigned char *payload,
                         size_t bytes, uint32_t *ret_peer)
{
    struct kvf_wire_hello h;
    if (kvf_wire_get_hello(payload, bytes, &h) != 0) {
        kvf_count(core, KVF_COUNT_PROTOCOL_ERRORS);
        return -KVF_E_PROTOCOL;
    }
    if (hello_refusal(core, &h) != 0 || core->is_stopping) {
        return -KVF_E_PEER_REFUSED;
    }
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        struct kvf_peer *p = &core->peers[i];
        if (p->role != KVF_PEER_IN || p->state != KVF_PEER_UP ||
            p->supervisor_id != h.supervisor_id) {
            continue;
        }
        if (p->worker_starts > h.worker_starts) {
            return -KVF_E_PEER_REFUSED; /* a ghost of an incarnation that has been replaced */
        }
        if (p->worker_starts == h.worker_starts && p->session >> 32 != h.session >> 32) {
            continue; /* the same daemon, which reaches us by another address too */
        }
        if (p->worker_starts == h.worker_starts && is_older_session(h.session, p->session)) {
            return -KVF_E_PEER_REFUSED; /* sent before the one we have, and delivered late */
        }
        kvf_peer_drop(core, now_ns, i,
                      ECONNRESET); /* its unread bytes are thrown away with it */
    }
    uint32_t peer = peer_alloc(core, KVF_PEER_IN);
    if (peer == KVF_NONE) {
        return -KVF_E_RESOURCES;
    }
    struct kvf_peer *p = &core->peers[peer];
    p->session = h.session;
    p->seq_in = 1;
    p->owes_hello = true;
    go_up(core, now_ns, p, &h);
    kvf_peer_owe(core, peer);
    *ret_peer = peer;
    return 0;
}

/* ---- frames ---------------------------------------------------------------------------------------- */

static void open_lanes(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    for (uint32_t i = 0; i < core->peers[peer].lane_count; i++) {
        uint32_t lane = kvf_lane_id(peer, i);
        core->lanes[lane].failed_opens = 0; /* of another connection */
        if (core->lanes[lane].state == KVF_LANE_DOWN) {
            kvf_lane_want_open(core, now_ns, lane);
        }
    }
}

bool kvf_peer_is_copied(const struct kvf_core *core, uint32_t peer)
{
    const struct kvf_peer *p = &core->peers[peer];
    return core->config.is_self_copied && p->state == KVF_PEER_UP &&
           p->supervisor_id == core->config.supervisor_id &&
           p->worker_starts == core->config.worker_starts;
}

void kvf_peer_use_lanes(struct kvf_core *core, uint64_t now_ns, uint32_t peer)
{
    struct kvf_peer *p = &core->peers[peer];
    if (!p->is_for_rooms) {
        p->is_for_rooms = true;
        if (p->state == KVF_PEER_UP) {
            open_lanes(core, now_ns, peer);
        }
    }
}

static bool on_hello(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                     const unsigned char *payload, size_t bytes)
{
    struct kvf_peer *p = &core->peers[peer];
    struct kvf_wire_hello h;
    if (p->role != KVF_PEER_OUT || p->state != KVF_PEER_HELLO ||
        kvf_wire_get_hello(payload, bytes, &h) != 0) {
        return false;
    }
    if (h.code != 0 || hello_refusal(core, &h) != 0 || h.session != p->session) {
        fail_waiting(core, now_ns, peer, KVF_E_PEER_REFUSED, h.code);
        kvf_peer_drop(core, now_ns, peer, EPROTO);
        return true;
    }
    go_up(core, now_ns, p, &h);
    kvf_hold_check(core, now_ns, peer);
    kvf_flush_refuse_copies(core, now_ns, peer);
    if (p->is_for_rooms) {
        open_lanes(core, now_ns, peer);
    }
    kvf_peer_owe(core, peer);
    return true;
}

/* Begins a grant from its first fragment. KVF_NONE: the peer broke the protocol. */
static uint32_t begin_grant(struct kvf_core *core, uint32_t peer,
                            const struct kvf_wire_grant *m)
{
    struct kvf_peer *p = &core->peers[peer];
    uint32_t lanes = (UINT32_C(1) << p->lane_count) - 1u;
    if (p->assembling != 0 || m->nonce == 0 || m->lane_mask == 0 ||
        (m->lane_mask & ~lanes) != 0 || m->page_count == 0 || m->total_runs == 0 ||
        m->total_runs > m->page_count ||
        kvf_source_by_nonce(core, peer, m->nonce) != KVF_NONE) {
        return KVF_NONE;
    }
    uint32_t source = kvf_source_alloc(core, peer, m->nonce);
    if (source == KVF_NONE) {
        return KVF_NONE;
    }
    struct kvf_source_grant *s = &core->sources[source];
    s->label = m->label;
    s->key = m->key;
    s->handle = m->handle;
    s->lane_mask = (uint8_t)m->lane_mask;
    s->past_nonce = m->past_nonce;
    memcpy(s->lane_epochs, m->lane_epochs, sizeof s->lane_epochs);
    s->page_count = m->page_count;
    s->total_runs = m->total_runs;
    /* Half of the pool is ours: what peers park must not starve the rooms of our own engines. */
    if (m->total_runs <= core->limits.runs_max / 2 &&
        core->runs.used <= core->limits.runs_max / 2 - m->total_runs) {
        s->run_block = kvf_core_runs_alloc(core, m->total_runs); /* none: declined when whole */
    }
    p->assembling = source + 1;
    return source;
}

static bool take_runs(struct kvf_core *core, uint32_t peer, uint32_t source,
                      const unsigned char *payload, const struct kvf_wire_grant *m)
{
    struct kvf_source_grant *s = &core->sources[source];
    for (uint32_t i = 0; i < m->run_count; i++) {
        struct kvf_wire_run run;
        kvf_wire_get_run(payload, i, &run);
        if (run.region >= KVF_REGIONS_PER_WORKER_MAX || run.count == 0 ||
            run.count > s->page_count - s->got_pages) {
            return false;
        }
        const struct kvf_remote_region *remote = &core->peers[peer].remote[run.region];
        if (remote->epoch == 0 || run.first >= remote->page_count ||
            run.count > remote->page_count - run.first) {
            return false;
        }
        if (s->run_block != KVF_RUNS_NONE) {
            core->runs.run[s->run_block + s->got_runs] =
                (struct kvf_run){.region = run.region,
                                 .first = run.first,
                                 .count = run.count,
                                 .position = s->got_pages};
        }
        s->got_runs++;
        s->got_pages += run.count;
    }
    return true;
}

static bool on_grant(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                     const unsigned char *payload, size_t bytes)
{
    struct kvf_peer *p = &core->peers[peer];
    struct kvf_wire_grant m;
    if (p->role != KVF_PEER_IN || kvf_wire_get_grant(payload, bytes, &m) != 0) {
        return false;
    }
    if (m.first_run == 0 &&
        (p->grants.count >= core->limits.grants_max / 4 || !kvf_source_has_place(core))) {
        /* One peer that lets its answers lie may not fill the table for the others. */
        kvf_peer_drop(core, now_ns, peer, ENOBUFS);
        return true;
    }
    uint32_t source = m.first_run == 0 ? begin_grant(core, peer, &m) : p->assembling - 1;
    if (source == KVF_NONE) {
        return false;
    }
    struct kvf_source_grant *s = &core->sources[source];
    if (s->nonce != m.nonce || s->got_runs != m.first_run || m.run_count == 0 ||
        m.run_count > s->total_runs - s->got_runs ||
        !take_runs(core, peer, source, payload, &m)) {
        return false;
    }
    if (s->got_runs < s->total_runs) {
        return true;
    }
    p->assembling = 0;
    if (s->got_pages != s->page_count) {
        return false;
    }
    kvf_source_whole(core, now_ns, source);
    return true;
}

static bool on_answer(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint8_t type,
                      const unsigned char *payload, size_t bytes)
{
    struct kvf_wire_accept accept = {0};
    struct kvf_wire_decline decline = {0};
    struct kvf_wire_ended ended = {0};
    uint64_t nonce;
    int err;
    if (type == KVF_WIRE_ACCEPT) {
        err = kvf_wire_get_accept(payload, bytes, &accept);
        nonce = accept.nonce;
    } else if (type == KVF_WIRE_DECLINE) {
        err = kvf_wire_get_decline(payload, bytes, &decline);
        nonce = decline.nonce;
    } else {
        err = kvf_wire_get_ended(payload, bytes, &ended);
        nonce = ended.nonce;
    }
    if (err != 0 || core->peers[peer].role != KVF_PEER_OUT) {
        return false;
    }
    uint32_t idx;
    struct kvf_grant *g = kvf_grant_by_nonce(core, peer, nonce, &idx);
    if (g == NULL) {
        /* A hint may be overtaken by the marker that frees the grant; an answer may not. */
        kvf_count(core, KVF_COUNT_STALE_MESSAGES);
        return true;
    }
    if (type == KVF_WIRE_ENDED) {
        kvf_grant_ended(core, now_ns, idx, ended.reason, ended.broken_lanes);
        return true;
    }
    bool was_sent = g->state == KVF_GRANT_SENT ||
                    (type == KVF_WIRE_DECLINE && g->state == KVF_GRANT_SENDING);
    if (!was_sent || g->is_answered) {
        return false;
    }
    if (type == KVF_WIRE_ACCEPT) {
        kvf_grant_accepted(core, now_ns, idx);
        return true;
    }
    if (g->placed_bytes > 0 || g->end_mask != 0) {
        return false; /* "nothing was posted", yet something came */
    }
    kvf_grant_declined(core, now_ns, idx, decline.reason, decline.detail);
    return true;
}

static bool on_ping(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint8_t type,
                    const unsigned char *payload, size_t bytes)
{
    struct kvf_peer *p = &core->peers[peer];
    struct kvf_wire_ping m;
    if (kvf_wire_get_ping(payload, bytes, &m) != 0) {
        return false;
    }
    if (type == KVF_WIRE_PING) {
        p->owes_pong = true;
        p->pong_seq = m.seq;
        kvf_peer_owe(core, peer);
    } else if (m.seq > p->heard_seq && m.seq <= p->ping_seq) {
        p->heard_seq = m.seq; /* each question is answered by the peer's loop, once: it moves */
        p->heard_ns = now_ns;
    }
    return true;
}

static bool on_abort(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                     const unsigned char *payload, size_t bytes)
{
    struct kvf_wire_abort m;
    if (core->peers[peer].role != KVF_PEER_IN || kvf_wire_get_abort(payload, bytes, &m) != 0) {
        return false;
    }
    kvf_source_aborted(core, now_ns, peer, &m);
    return true;
}

static bool on_lane(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                    const unsigned char *payload, size_t bytes)
{
    struct kvf_wire_lane m;
    if (kvf_wire_get_lane(payload, bytes, &m) != 0 ||
        m.lane_idx >= core->peers[peer].lane_count) {
        return false;
    }
    uint32_t lane = kvf_lane_id(peer, m.lane_idx);
    return core->peers[peer].role == KVF_PEER_OUT ? kvf_lane_answered(core, now_ns, lane, &m)
                                                  : kvf_lane_asked(core, now_ns, lane, &m);
}

static bool dispatch(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint8_t type,
                     const unsigned char *payload, size_t bytes)
{
    if (core->peers[peer].state == KVF_PEER_HELLO && type != KVF_WIRE_HELLO) {
        return false;
    }
    switch (type) {
    case KVF_WIRE_HELLO:
        return on_hello(core, now_ns, peer, payload, bytes);
    case KVF_WIRE_REGION:
        return kvf_remote_take(core, peer, payload, bytes);
    case KVF_WIRE_GRANT:
        return on_grant(core, now_ns, peer, payload, bytes);
    case KVF_WIRE_ACCEPT:
    case KVF_WIRE_DECLINE:
    case KVF_WIRE_ENDED:
        return on_answer(core, now_ns, peer, type, payload, bytes);
    case KVF_WIRE_ABORT:
        return on_abort(core, now_ns, peer, payload, bytes);
    case KVF_WIRE_LANE:
        return on_lane(core, now_ns, peer, payload, bytes);
    case KVF_WIRE_PING:
    case KVF_WIRE_PONG:
        return on_ping(core, now_ns, peer, type, payload, bytes);
    case KVF_WIRE_GROUP:
        return kvf_group_frame(core, now_ns, peer, payload, bytes);
    default:
        return false; /* LANE_HELLO on a control connection, or nothing we know */
    }
}

void kvf_core_frame(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint8_t type,
                    uint32_t seq, const unsigned char *payload, size_t bytes)
{
    assert(peer < core->limits.peers_max);
    struct kvf_peer *p = &core->peers[peer];
    if (p->role == KVF_PEER_FREE || (p->state != KVF_PEER_UP && p->state != KVF_PEER_HELLO)) {
        return; /* bytes of a connection the core has already let go */
    }
    if (seq != p->seq_in++) {
        kvf_peer_violated(core, now_ns, peer);
        return;
    }
    if (!dispatch(core, now_ns, peer, type, payload, bytes)) {
        kvf_peer_violated(core, now_ns, peer);
    }
}

/* ---- time ------------------------------------------------------------------------------------------ */

static void tick_lanes(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint64_t *due_ns)
{
    struct kvf_peer *p = &core->peers[peer];
    for (uint32_t i = 0; i < p->lane_count; i++) {
        uint32_t lane_id = kvf_lane_id(peer, i);
        struct kvf_lane *lane = &core->lanes[lane_id];
        bool waits = lane->state == KVF_LANE_DOWN || lane->state == KVF_LANE_OPENING;
        if (!waits) {
            continue;
        }
        if (lane->retry_ns > now_ns) {
            *due_ns = lane->retry_ns < *due_ns ? lane->retry_ns : *due_ns;
        } else if (lane->state == KVF_LANE_DOWN) {
            kvf_lane_want_open(core, now_ns, lane_id);
        } else {
            kvf_lane_start_fence(core, now_ns, lane_id); /* never confirmed: begin anew */
        }
    }
}

void kvf_peer_tick(struct kvf_core *core, uint64_t now_ns, uint32_t peer, uint64_t *due_ns)
{
    struct kvf_peer *p = &core->peers[peer];
    if (p->role == KVF_PEER_OUT && p->state == KVF_PEER_RETRY) {
        if (p->retry_ns > now_ns) {
            *due_ns = p->retry_ns < *due_ns ? p->retry_ns : *due_ns;
            return;
        }
        p->state = KVF_PEER_IDLE;
        /* Owed: hints, told once it is back; and what other ranks are asked. */
        if (p->waiting.count > 0 || p->owed.count > 0 || p->owes_group) {
            kvf_peer_need(core, now_ns, peer);
        } else {
            p->unreachable_since_ns = 0;
            kvf_peer_check_free(core, peer);
        }
        return;
    }
    if (p->state == KVF_PEER_CONNECTING) {
        uint64_t end_ns = p->heard_ns + core->config.connect_ns;
        if (end_ns > now_ns) {
            *due_ns = end_ns < *due_ns ? end_ns : *due_ns;
            return;
        }
        kvf_list_remove(&core->act_connect, peer);
        kvf_list_push(&core->act_close,
                      peer); /* the attempt ends; an answer to it is too late */
        kvf_core_peer_connect_failed(core, now_ns, peer, ETIMEDOUT);
        return;
    }
    if (p->state != KVF_PEER_UP && p->state != KVF_PEER_HELLO) {
        return;
    }
    uint64_t lost_ns = p->heard_ns + core->config.liveness_ns;
    if (lost_ns <= now_ns) {
        kvf_peer_drop(core, now_ns, peer, ETIMEDOUT);
        return;
    }
    *due_ns = lost_ns < *due_ns ? lost_ns : *due_ns;
    if (p->state != KVF_PEER_UP) {
        return;
    }
    uint64_t ping_ns = p->pinged_ns + core->config.liveness_ns / 3;
    if (ping_ns <= now_ns && p->role == KVF_PEER_OUT && !p->is_for_rooms &&
        !kvf_group_needs(core, peer)) {
        kvf_peer_drop(core, now_ns, peer, 0); /* it asked what it had to ask */
        return;
    }
    if (ping_ns <= now_ns) {
        p->ping_seq++;
        p->pinged_ns = now_ns;
        p->owes_ping = true;
        kvf_peer_owe(core, peer);
        ping_ns = now_ns + core->config.liveness_ns / 3;
    }
    *due_ns = ping_ns < *due_ns ? ping_ns : *due_ns;
    if (p->role == KVF_PEER_OUT && p->is_for_rooms) {
        tick_lanes(core, now_ns, peer, due_ns);
    }
}

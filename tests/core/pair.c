/* The world: its daemons, the actions their cores ask for, time, and the check of a clean end. */
#include "tests/core/pair_internal.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/core/internal.h"

#define PORT_FIRST 7000u

/* ---- small things ---------------------------------------------------------------------------------- */

void pair_fail(const struct pair *p, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cr_assert_fail("%s%s (at %llu us)", p->note, text, (unsigned long long)(p->now_ns / 1000));
    abort();
}

/* splitmix64: the schedule of a seed is the same on every machine. */
uint64_t pair_random(struct pair *p, uint64_t below)
{
    uint64_t z = p->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % below;
}

uint64_t pair_tag(uint64_t content, uint32_t position, uint32_t half)
{
    return kvf_hash2(content, ((uint64_t)position << 1 | half) + 1);
}

struct kvf_addr_shm pair_addr(uint32_t daemon)
{
    return (struct kvf_addr_shm){
        .family = 4, .port = (uint16_t)(PORT_FIRST + daemon), .addr = {127, 0, 0, 1}};
}

uint32_t pair_daemon_at(const struct kvf_addr_shm *addr)
{
    return addr->port - PORT_FIRST;
}

bool pair_is_awake(const struct pair *p, uint32_t daemon)
{
    const struct pair_daemon *d = &p->daemons[daemon];
    return !d->is_dead && !d->is_frozen && !d->is_raw;
}

uint64_t pair_clock(const struct pair *p, uint32_t daemon)
{
    return p->now_ns + p->daemons[daemon].clock_ns;
}

/* Its core's next deadline on the world's clock. */
static uint64_t pair_due(const struct pair *p, uint32_t daemon)
{
    uint64_t due_ns = kvf_core_deadline(p->daemons[daemon].core);
    return due_ns == KVF_NO_TIME ? KVF_NO_TIME : due_ns - p->daemons[daemon].clock_ns;
}

struct pair_link *pair_link(struct pair *p, uint32_t sink, uint32_t source)
{
    return &p->links[sink][source];
}

uint64_t pair_count(const struct pair *p, uint32_t daemon, uint32_t counter)
{
    return kvf_core_counters(p->daemons[daemon].core)[counter];
}

uint64_t pair_gauge(const struct pair *p, uint32_t daemon, uint32_t gauge)
{
    return kvf_core_gauges(p->daemons[daemon].core)[gauge];
}

/* ---- birth and death of daemons --------------------------------------------------------------------- */

static void start_core(struct pair *p, uint32_t daemon)
{
    struct pair_daemon *d = &p->daemons[daemon];
    size_t bytes = kvf_core_bytes(&p->limits);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(memory, 0, bytes);
    uint64_t seed[4];
    for (int i = 0; i < 4; i++) {
        seed[i] = pair_random(p, UINT64_MAX) | 1u;
    }
    struct kvf_core_config config = p->config;
    config.supervisor_id = d->supervisor_id;
    config.worker_starts = d->worker_starts;
    config.placement = d->placement;
    (void)snprintf(config.name, sizeof config.name, "d%u", daemon);
    d->core = kvf_core_init(memory, &p->limits, &config, seed);
    for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
        pair_client_add(p, daemon, c);
        pair_region_add(p, daemon, c, PAIR_R0, p->options.pages, PAIR_PAGE_BYTES);
        pair_region_add(p, daemon, c, PAIR_R1, p->options.pages, PAIR_PAGE_BYTES);
    }
}

static void fill_defaults(struct pair_options *o)
{
#define DEFAULT(member, value) o->member = o->member == 0 ? (value) : o->member
    DEFAULT(daemons, 2);
    DEFAULT(lanes, 1);
    o->placement = o->are_queue_pairs ? KVF_PLACEMENT_POSTED : o->placement;
    DEFAULT(placement, KVF_PLACEMENT_CHECKED);
    DEFAULT(lane_rooms, 8);
    DEFAULT(pages, 256);
    DEFAULT(rooms, 64);
    DEFAULT(grants_max, 256);
    DEFAULT(runs_max, 4096);
    DEFAULT(pieces_max, 512);
    DEFAULT(parked_max, 16);
    DEFAULT(peers_max, PAIR_PEERS);
    DEFAULT(tombs_max, 8);
    if (o->tombs_max > PAIR_TOMBS_MAX) {
        abort();
    }
    DEFAULT(post_bytes, PAIR_BYTES(4));
    DEFAULT(room_window_bytes, PAIR_BYTES(16));
    DEFAULT(lane_window_bytes, PAIR_BYTES(64));
    DEFAULT(rails, 1);
    DEFAULT(remotes_max, 32);
#undef DEFAULT
}

struct pair *pair_new(const struct pair_options *options)
{
    struct pair *p = calloc(1, sizeof *p);
    p->options = *options;
    fill_defaults(&p->options);
    if (getenv("KVF_PAIR_QUEUE_PAIRS") != NULL) { /* a second run of tests that do not mind */
        p->options.are_queue_pairs = true;
        p->options.placement = KVF_PLACEMENT_POSTED;
    }
    const struct pair_options *o = &p->options;
    p->now_ns = UINT64_C(1000000000);
    p->random = 1;
    p->post_queue_max = 64;
    p->is_bound_checked = true;
    p->limits =
        (struct kvf_core_limits){.clients_max = PAIR_CLIENTS,
                                 .rooms_per_client_max = o->rooms,
                                 .peers_max = o->peers_max,
                                 .lanes_per_peer = o->lanes,
                                 .grants_max = o->grants_max,
                                 .runs_max = o->runs_max,
                                 .pieces_max = o->pieces_max,
                                 .parked_per_peer_max = o->parked_max,
                                 .group_tombstones_max = o->tombs_max,
                                 .remote_regions_max = o->are_queue_pairs ? o->remotes_max : 0};
    p->config = (struct kvf_core_config){.transport =
                                             o->are_queue_pairs ? KVF_WIRE_VERBS : KVF_WIRE_SIM,
                                         .lane_rooms = o->lane_rooms,
                                         .room_window_bytes = o->room_window_bytes,
                                         .lane_window_bytes = o->lane_window_bytes,
                                         .post_bytes_max = o->post_bytes,
                                         .stripe_bytes_min = o->stripe_bytes,
                                         .bootstrap_ns = 30000 * PAIR_MS,
                                         .connect_ns = 5000 * PAIR_MS,
                                         .cooperative_ns = 500 * PAIR_MS,
                                         .fence_ns = 2000 * PAIR_MS,
                                         .register_ns = 10000 * PAIR_MS,
                                         .liveness_ns = 1250 * PAIR_MS,
                                         .group_ask_ns = 250 * PAIR_MS,
                                         .regrants_max = o->has_no_regrants ? 0 : 3,
                                         .is_self_copied = o->is_self_copied};
    for (uint32_t d = 0; d < o->daemons; d++) {
        p->daemons[d].placement = o->placement;
        p->daemons[d].supervisor_id = 1000 + d;
        p->daemons[d].worker_starts = 1;
        start_core(p, d);
    }
    return p;
}

static void free_client(struct pair_client *c)
{
    for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
        free(c->regions[i].owners);
        free(c->regions[i].pages);
    }
    free(c->slots);
    free(c->generations);
    *c = (struct pair_client){0};
}

/* The core's memory goes at once, so that a late touch of it is a sanitizer's report. */
static void end_core(struct pair *p, uint32_t daemon)
{
    struct pair_daemon *d = &p->daemons[daemon];
    for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
        free_client(&d->clients[c]);
    }
    free(d->core);
    d->core = NULL;
    memset(d->wants_connect, 0, sizeof d->wants_connect);
    memset(d->wants_write, 0, sizeof d->wants_write);
    memset(d->fences, 0, sizeof d->fences);
    d->flushes_out = 0;
}

void pair_kill(struct pair *p, uint32_t daemon)
{
    for (struct pair_room *r = p->rooms; r != NULL; r = r->next_room) {
        if (r->daemon == daemon) {
            r->is_lost = true;
        }
    }
    pair_daemon_end(p, daemon);
}

void pair_daemon_end(struct pair *p, uint32_t daemon)
{
    pair_net_daemon_died(p, daemon);
    end_core(p, daemon);
    p->daemons[daemon].is_dead = true;
    p->daemons[daemon].is_frozen = false;
}

void pair_revive(struct pair *p, uint32_t daemon, bool is_same_supervisor)
{
    struct pair_daemon *d = &p->daemons[daemon];
    d->is_dead = false;
    if (is_same_supervisor) {
        d->worker_starts++;
    } else {
        d->supervisor_id += 100;
        d->worker_starts = 1;
    }
    start_core(p, daemon);
}

void pair_make_raw(struct pair *p, uint32_t daemon)
{
    end_core(p, daemon);
    p->daemons[daemon].is_raw = true;
}

void pair_free(struct pair *p)
{
    for (uint32_t d = 0; d < p->options.daemons; d++) {
        end_core(p, d);
    }
    pair_net_free(p);
    while (p->rooms != NULL) {
        struct pair_room *r = p->rooms;
        p->rooms = r->next_room;
        free(r->pages);
        free(r);
    }
    free(p);
}

/* ---- actions --------------------------------------------------------------------------------------- */

static void hold_fence(struct pair_daemon *d, const struct kvf_action *a)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        if (!d->fences[i].is_used) {
            d->fences[i] = (struct pair_pending){true, a->lane, a->epoch};
            return;
        }
    }
    abort();
}

static void take_action(struct pair *p, uint32_t daemon, const struct kvf_action *a)
{
    struct pair_daemon *d = &p->daemons[daemon];
    switch (a->kind) {
    case KVF_ACT_FENCE:
        if (d->hold_fences) {
            hold_fence(d, a);
        } else {
            pair_net_fence(p, daemon, a->lane, a->epoch);
        }
        return;
    case KVF_ACT_DETACH:
        pair_net_detach(p, daemon, a->lane, a->epoch, a->cookie);
        return;
    case KVF_ACT_LANE_JOIN:
        pair_net_lane_join(p, daemon, a);
        return;
    case KVF_ACT_CLOSE_LEASES:
        pair_room_close_leases(p, daemon, a);
        return;
    case KVF_ACT_PUBLISH:
        pair_room_published(p, daemon, a);
        return;
    case KVF_ACT_CONNECT:
        d->connects++;
        d->wants_connect[a->peer] = true;
        d->connect_addr[a->peer] = a->addr;
        if (!d->hold_connects) {
            pair_connect_now(p, daemon, 0);
        }
        return;
    case KVF_ACT_CLOSE:
        pair_net_close(p, daemon, a->peer);
        return;
    case KVF_ACT_LANE_OPEN:
        pair_net_lane_open(p, daemon, a);
        return;
    case KVF_ACT_WRITE:
        d->wants_write[a->peer] = true;
        return;
    case KVF_ACT_POST:
        pair_net_wants_post(p, daemon, a->lane, a->epoch);
        return;
    case KVF_ACT_CLIENT_QUIET:
        d->clients[a->client].is_quiet = true;
        d->clients_quiet++;
        return;
    case KVF_ACT_GROUP_KEY:
        pair_group_keep(p, daemon, a);
        return;
    case KVF_ACT_FLUSH:
        pair_room_flush(p, daemon, a);
        return;
    case KVF_ACT_ESCALATE:
        d->escalations++;
        return;
    }
    pair_fail(p, "an unknown action %d", (int)a->kind);
}

void pair_drain(struct pair *p, uint32_t daemon)
{
    struct kvf_action a;
    uint32_t guard = 0;
    if (!pair_is_awake(p, daemon)) {
        return;
    }
    while (kvf_core_next_action(p->daemons[daemon].core, &a) != 0) {
        take_action(p, daemon, &a);
        if (++guard > 1000000) {
            pair_fail(p, "daemon %u never runs out of actions (last kind %d)", daemon,
                      (int)a.kind);
        }
    }
}

void pair_fences_return(struct pair *p, uint32_t daemon)
{
    struct pair_daemon *d = &p->daemons[daemon];
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        if (d->fences[i].is_used) {
            struct pair_pending f = d->fences[i];
            d->fences[i].is_used = false;
            pair_net_fence(p, daemon, f.lane, f.epoch);
            pair_drain(p, daemon);
        }
    }
}

void pair_connect_now(struct pair *p, uint32_t daemon, int err)
{
    struct pair_daemon *d = &p->daemons[daemon];
    for (uint32_t peer = 0; peer < PAIR_PEERS; peer++) {
        if (!d->wants_connect[peer]) {
            continue;
        }
        d->wants_connect[peer] = false;
        uint32_t to = pair_daemon_at(&d->connect_addr[peer]);
        bool is_there = to < p->options.daemons && !p->daemons[to].is_dead;
        if (is_there && p->daemons[to].is_unreachable) {
            is_there = false;
        }
        if (err == 0 && is_there) {
            (void)pair_net_connect(p, daemon, peer, to);
            kvf_core_peer_connected(d->core, pair_clock(p, daemon), peer);
        } else {
            kvf_core_peer_connect_failed(d->core, pair_clock(p, daemon), peer,
                                         err == 0 ? ECONNREFUSED : err);
        }
    }
}

/* ---- time ------------------------------------------------------------------------------------------ */

void pair_settle(struct pair *p)
{
    uint32_t guard = 0;
    for (;;) {
        for (uint32_t d = 0; d < p->options.daemons; d++) {
            pair_drain(p, d);
        }
        if (pair_net_move_all(p) == 0) {
            return;
        }
        if (++guard > 100000) {
            pair_fail(p, "the world does not come to rest");
        }
    }
}

void pair_tick(struct pair *p, uint32_t daemon)
{
    struct kvf_core *core = p->daemons[daemon].core;
    if (!pair_is_awake(p, daemon)) {
        return;
    }
    kvf_core_tick(core, pair_clock(p, daemon));
    if (pair_due(p, daemon) <= p->now_ns) {
        pair_fail(p, "daemon %u has a deadline that ticking does not move", daemon);
    }
    pair_drain(p, daemon);
}

void pair_advance(struct pair *p, uint64_t ns)
{
    uint64_t end_ns = p->now_ns + ns;
    pair_settle(p);
    for (;;) {
        uint64_t due_ns = KVF_NO_TIME;
        for (uint32_t d = 0; d < p->options.daemons; d++) {
            if (pair_is_awake(p, d)) {
                uint64_t at_ns = pair_due(p, d);
                due_ns = at_ns < due_ns ? at_ns : due_ns;
            }
        }
        if (due_ns > end_ns) {
            p->now_ns = end_ns;
            return;
        }
        p->now_ns = due_ns > p->now_ns ? due_ns : p->now_ns;
        for (uint32_t d = 0; d < p->options.daemons; d++) {
            if (pair_is_awake(p, d) && pair_due(p, d) <= p->now_ns) {
                pair_tick(p, d);
            }
        }
        pair_settle(p);
    }
}

void pair_open_gates(struct pair *p)
{
    memset(p->links, 0, sizeof p->links);
    for (uint32_t d = 0; d < p->options.daemons; d++) {
        p->daemons[d].is_frozen = false;
        p->daemons[d].is_unreachable = false;
        p->daemons[d].hold_connects = false;
        p->daemons[d].hold_fences = false;
        p->daemons[d].hold_ready = false;
        if (pair_is_awake(p, d)) {
            pair_connect_now(p, d, 0);
            pair_fences_return(p, d);
            pair_ready_now(p, d);
        }
    }
    for (uint32_t i = 0; i < PAIR_CONNS_MAX; i++) {
        memset(p->conns[i].hold, 0, sizeof p->conns[i].hold);
        memset(p->conns[i].hold_write, 0, sizeof p->conns[i].hold_write);
    }
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        p->streams[i].hold_hand = false;
        p->streams[i].hold_deliver = false;
    }
}

/* ---- the clean end ---------------------------------------------------------------------------------- */

static uint32_t pieces_in_use(const struct kvf_core *core)
{
    uint32_t idle = 0;
    for (uint32_t link = core->piece_free; link != 0; link = core->pieces[link - 1].next) {
        idle++;
    }
    return core->piece_fresh - idle;
}

static void check_tables(struct pair *p, uint32_t d)
{
    const struct kvf_core *core = p->daemons[d].core;
    for (uint32_t i = 0; i < core->grant_fresh; i++) {
        if (core->grants[i].state != KVF_GRANT_FREE) {
            pair_fail(p, "daemon %u still holds sink grant %u, state %u", d, i,
                      core->grants[i].state);
        }
    }
    for (uint32_t i = 0; i < core->source_fresh; i++) {
        if (core->sources[i].state != KVF_SOURCE_FREE) {
            pair_fail(p, "daemon %u still holds source grant %u, state %u", d, i,
                      core->sources[i].state);
        }
    }
    if (pieces_in_use(core) != 0 || core->runs.used != 0) {
        pair_fail(p, "daemon %u: %u pieces, %u runs in use", d, pieces_in_use(core),
                  core->runs.used);
    }
    uint32_t places = 0;
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        places += core->peers[i].role == KVF_PEER_FREE ? 0 : core->peers[i].place_count;
    }
    for (uint32_t link = core->remote_free; link != 0; link = core->remotes[link - 1].next) {
        places++;
    }
    if (places != core->remote_fresh) {
        pair_fail(p, "daemon %u: of %u places for regions of peers %u are known", d,
                  core->remote_fresh, places);
    }
    for (uint32_t i = 0; i < core->limits.peers_max * KVF_LANES_MAX; i++) {
        const struct kvf_lane *lane = &core->lanes[i];
        if (lane->credits_out != 0 || lane->posted_bytes != 0 || lane->ready.head != 0 ||
            lane->marks.head != 0) {
            pair_fail(p, "daemon %u lane %u: %u credits out, %llu bytes posted", d, i,
                      lane->credits_out, (unsigned long long)lane->posted_bytes);
        }
    }
    for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
        for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
            const struct pair_region *reg = &p->daemons[d].clients[c].regions[i];
            for (uint32_t page = 0; reg->handle != 0 && page < reg->page_count; page++) {
                if (reg->owners[page] != 0) {
                    pair_fail(p, "daemon %u page %u of region %#x has an owner left", d, page,
                              reg->handle);
                }
            }
        }
    }
}

static void check_numbers(struct pair *p, uint32_t d)
{
    if (!p->is_hostile && pair_count(p, d, KVF_COUNT_PROTOCOL_ERRORS) != 0) {
        pair_fail(p, "daemon %u saw %llu protocol errors among its own kind", d,
                  (unsigned long long)pair_count(p, d, KVF_COUNT_PROTOCOL_ERRORS));
    }
    for (uint32_t g = 0; g < KVF_GAUGES; g++) {
        bool may_stay = g == KVF_GAUGE_PEERS_UP || g == KVF_GAUGE_LANES_UP ||
                        g == KVF_GAUGE_GROUP_TOMBSTONES;
        if (!may_stay && pair_gauge(p, d, g) != 0) {
            pair_fail(p, "daemon %u: gauge %u is %llu at the end", d, g,
                      (unsigned long long)pair_gauge(p, d, g));
        }
    }
    if (pair_count(p, d, KVF_COUNT_POSTS) != pair_count(p, d, KVF_COUNT_COMPLETIONS)) {
        pair_fail(p, "daemon %u: %llu posts, %llu completions", d,
                  (unsigned long long)pair_count(p, d, KVF_COUNT_POSTS),
                  (unsigned long long)pair_count(p, d, KVF_COUNT_COMPLETIONS));
    }
    uint64_t ended =
        pair_count(p, d, KVF_COUNT_ROOMS_SUCCEEDED) + pair_count(p, d, KVF_COUNT_ROOMS_FAILED);
    uint64_t proofs = 0;
    for (uint32_t i = KVF_COUNT_PROOF_FIRST; i <= KVF_COUNT_PROOF_LAST; i++) {
        proofs += pair_count(p, d, i);
    }
    uint64_t begun =
        pair_count(p, d, KVF_COUNT_ROOMS_OPENED) + pair_count(p, d, KVF_COUNT_ROOMS_ADOPTED);
    if (begun != ended || proofs != ended || pair_count(p, d, KVF_COUNT_PROOF_FIRST) != 0) {
        pair_fail(p, "daemon %u: %llu opened, %llu ended, %llu proofs", d,
                  (unsigned long long)begun, (unsigned long long)ended,
                  (unsigned long long)proofs);
    }
}

void pair_finish(struct pair *p)
{
    pair_open_gates(p);
    pair_settle(p);
    for (struct pair_room *r = p->rooms; r != NULL; r = r->next_room) {
        if (!r->is_lost && r->rc == 0 && r->drained_count != 1) {
            pair_fail(p, "room of key %llx at daemon %u, phase %d, was drained %u times",
                      (unsigned long long)r->key, r->daemon, (int)pair_phase(r),
                      r->drained_count);
        }
    }
    for (uint32_t d = 0; d < p->options.daemons; d++) {
        if (pair_is_awake(p, d)) {
            check_tables(p, d);
            check_numbers(p, d);
        }
    }
    pair_free(p);
}

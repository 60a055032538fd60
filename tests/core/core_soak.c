/* Random schedules: three daemons, requests that come, move, are aborted and lose their lanes, peers and
 * engines at any moment. The oracle watches every half page; at the end of a seed everything is proven.
 * KVF_SOAK_SEEDS and KVF_SOAK_FROM choose other seeds than the usual ones. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#ifdef __SANITIZE_ADDRESS__
#define SEEDS 60u /* the same schedules take five times as long */
#else
#define SEEDS 200u
#endif
#define LIVE_MAX 48u
#define DAEMONS 3u

#define SINKS_MAX 3u
#define WRITERS_MAX 2u

/* One source room: what its engine still means to submit. */
struct supply {
    struct pair_room *room;
    uint32_t pages;
    uint32_t split;     /* two pieces: [0, split) and [split, pages) */
    uint32_t order;     /* which comes first */
    uint32_t submitted; /* pieces */
    bool is_hole;       /* the engine forgets a page */
};

/* One key: up to three sinks, each fed by up to two writers. */
struct request {
    struct pair_room *sinks[SINKS_MAX];
    struct supply supplies[WRITERS_MAX];
};

struct soak {
    struct pair *p;
    struct request live[LIVE_MAX];
    uint32_t live_count;
    uint64_t next_key;
    uint32_t started;
    bool has_kills;
    bool has_freezes;
    uint32_t faults; /* one fault in so many operations; 0: none */
    uint64_t *sum;   /* counters of all daemons that lived to the end of their seed */
};

static uint32_t below(struct soak *k, uint64_t n)
{
    return (uint32_t)pair_random(k->p, n);
}

static uint32_t idle_pages(struct soak *k, uint32_t daemon, uint32_t client, uint32_t count)
{
    const struct pair_region *reg = &k->p->daemons[daemon].clients[client].regions[0];
    uint32_t run = 0;
    uint32_t from = below(k, reg->page_count);
    for (uint32_t i = 0; i < reg->page_count; i++) {
        uint32_t page = (from + i) % reg->page_count;
        const struct pair_page *shadow = &reg->pages[page];
        run = page == 0 ? 0 : run;
        run = shadow->owner == NULL && shadow->readers == 0 ? run + 1 : 0;
        if (run == count) {
            return page + 1 - count;
        }
    }
    return UINT32_MAX;
}

static bool has_idle_slot(const struct soak *k, uint32_t daemon, uint32_t client)
{
    const struct pair_client *c = &k->p->daemons[daemon].clients[client];
    for (uint32_t i = 0; c->is_added && i < k->p->options.rooms; i++) {
        if (c->slots[i] == NULL || c->slots[i]->drained_count > 0) {
            return true;
        }
    }
    return false;
}

static bool can_open(const struct soak *k, uint32_t daemon, uint32_t client)
{
    const struct pair_daemon *d = &k->p->daemons[daemon];
    return !d->is_dead && !d->is_frozen && has_idle_slot(k, daemon, client);
}

/* What a request is made of. Two writers at one daemon are two grants for the same room there, so their
 * parts must be of one length. */
struct plan {
    uint64_t key;
    uint32_t client;
    uint32_t sink_count;
    uint32_t writer_count;
    uint32_t sinks[SINKS_MAX];
    uint32_t writers[WRITERS_MAX];
    uint32_t parts[WRITERS_MAX];
};

static struct plan make_plan(struct soak *k)
{
    struct plan plan = {.key = k->next_key++, .client = below(k, PAIR_CLIENTS)};
    plan.sink_count = below(k, 4) == 0 ? 1 + below(k, SINKS_MAX) : 1;
    plan.writer_count = below(k, 4) == 0 ? 2 : 1;
    for (uint32_t i = 0; i < SINKS_MAX; i++) {
        plan.sinks[i] = below(k, DAEMONS);
    }
    for (uint32_t i = 0; i < WRITERS_MAX; i++) {
        plan.writers[i] = below(k, 8) == 0
                              ? plan.sinks[0]
                              : (plan.sinks[0] + 1 + below(k, DAEMONS - 1)) % DAEMONS;
        plan.parts[i] = 1 + below(k, 12);
    }
    if (plan.writer_count == 2 && plan.writers[0] == plan.writers[1]) {
        plan.parts[1] = plan.parts[0];
    }
    return plan;
}

static struct pair_room *open_sink(struct soak *k, const struct plan *plan, uint32_t daemon)
{
    uint32_t pages = plan->parts[0] + (plan->writer_count == 2 ? plan->parts[1] : 0);
    uint32_t first = can_open(k, daemon, plan->client)
                         ? idle_pages(k, daemon, plan->client, pages)
                         : UINT32_MAX;
    if (first == UINT32_MAX) {
        return NULL;
    }
    struct kvf_writer_shm writers[WRITERS_MAX] = {
        {.addr = pair_addr(plan->writers[0]), .count = plan->parts[0]},
        {.addr = pair_addr(plan->writers[1]),
         .start = plan->parts[0],
         .count = plan->parts[1]}};
    uint32_t cut = pages > 1 ? 1 + below(k, pages - 1) : pages;
    struct kvf_run_shm runs[2] = {{PAIR_R0, first, cut}, {PAIR_R0, first + cut, pages - cut}};
    return pair_open_sink(k->p, daemon,
                          &(struct pair_open){.client = plan->client,
                                              .key = plan->key,
                                              .writers = writers,
                                              .writer_count = plan->writer_count,
                                              .runs = runs,
                                              .run_count = cut < pages ? 2 : 1});
}

static struct supply open_source(struct soak *k, const struct plan *plan, uint32_t writer)
{
    uint32_t daemon = plan->writers[writer];
    uint32_t grants = plan->sink_count;
    struct supply s = {.pages = plan->parts[writer]};
    if (plan->writer_count == 2 && plan->writers[0] == plan->writers[1]) {
        grants *= 2;
    }
    if (can_open(k, daemon, plan->client)) {
        s.room = pair_open_source(k->p, daemon,
                                  &(struct pair_open){.client = plan->client,
                                                      .key = plan->key,
                                                      .sink_count = grants});
    }
    s.split = s.pages > 1 ? 1 + below(k, s.pages - 1) : 0;
    s.order = below(k, 2);
    s.is_hole = s.pages > 2 && below(k, 100) == 0;
    return s;
}

static void start_request(struct soak *k)
{
    if (k->live_count == LIVE_MAX) {
        return;
    }
    struct plan plan = make_plan(k);
    struct request r = {0};
    uint32_t missing = below(k, 20); /* now and then nobody comes for the other side */
    for (uint32_t i = 0; i < plan.sink_count && missing != 0; i++) {
        r.sinks[i] = below(k, 40) == 0 ? NULL : open_sink(k, &plan, plan.sinks[i]);
    }
    bool is_one_room = plan.writer_count == 2 && plan.writers[0] == plan.writers[1];
    uint32_t rooms = is_one_room ? 1 : plan.writer_count;
    for (uint32_t i = 0; i < rooms && missing != 1; i++) {
        r.supplies[i] = open_source(k, &plan, i);
    }
    k->live[k->live_count++] = r;
    k->started++;
}

static bool is_over(const struct pair_room *r)
{
    return r == NULL || r->is_lost || r->rc != 0 || r->drained_count > 0;
}

static bool is_reachable(const struct soak *k, const struct pair_room *r)
{
    return !is_over(r) && !k->p->daemons[r->daemon].is_frozen &&
           !k->p->daemons[r->daemon].is_dead;
}

/* Any idle pages will do: their content is written as they are submitted. */
static void submit_piece(struct soak *k, struct supply *s)
{
    uint32_t pieces = s->split > 0 ? 2 : 1;
    if (!is_reachable(k, s->room) || s->submitted == pieces) {
        return;
    }
    bool is_upper = pieces == 2 && (s->submitted == 0) == (s->order == 0);
    uint32_t start = is_upper ? s->split : 0;
    uint32_t end = pieces == 1 || is_upper ? s->pages : s->split;
    bool is_last = ++s->submitted == pieces;
    uint32_t count = end - start;
    if (s->is_hole && is_last && count > 1) {
        count--;
    }
    uint32_t first = idle_pages(k, s->room->daemon, s->room->client, count);
    if (first != UINT32_MAX) {
        (void)pair_submit_runs(s->room, start, &(struct kvf_run_shm){PAIR_R0, first, count}, 1,
                               is_last);
    } else {
        pair_abort(s->room);
    }
}

static void lease(struct soak *k, struct pair_room *r)
{
    if (!is_reachable(k, r)) {
        return;
    }
    if (r->cpu + r->gpu + r->direct_io > 0) {
        pair_lease_return(r);
    } else {
        (void)pair_lease(r, below(k, 2), below(k, 2), below(k, 2));
    }
}

static struct pair_room *room_of(const struct request *r, uint32_t i)
{
    return i < SINKS_MAX ? r->sinks[i] : r->supplies[i - SINKS_MAX].room;
}

static void act_on_request(struct soak *k)
{
    if (k->live_count == 0) {
        return;
    }
    struct request *r = &k->live[below(k, k->live_count)];
    struct pair_room *room = room_of(r, below(k, SINKS_MAX + WRITERS_MAX));
    switch (below(k, 8)) {
    case 0:
        if (is_reachable(k, room)) {
            pair_abort_with(room, below(k, 3) == 0 ? 1 + below(k, 2000) : 0);
        }
        break;
    case 1:
        lease(k, room);
        break;
    default:
        submit_piece(k, &r->supplies[below(k, WRITERS_MAX)]);
        break;
    }
}

static bool is_request_over(const struct request *r)
{
    for (uint32_t i = 0; i < SINKS_MAX + WRITERS_MAX; i++) {
        if (!is_over(room_of(r, i))) {
            return false;
        }
    }
    return true;
}

static void forget_ended(struct soak *k)
{
    for (uint32_t i = 0; i < k->live_count;) {
        if (is_request_over(&k->live[i])) {
            k->live[i] = k->live[--k->live_count];
        } else {
            i++;
        }
    }
}

/* ---- faults ---------------------------------------------------------------------------------------- */

static void lose_stream(struct soak *k)
{
    struct pair_stream *s = &k->p->streams[below(k, PAIR_STREAMS_MAX)];
    int side = below(k, 2) == 0 ? PAIR_SINK : PAIR_SOURCE;
    if (s->is_used && s->is_open[side] && s->lane[side] != KVF_NONE &&
        !k->p->daemons[s->daemon[side]].is_frozen) {
        pair_stream_lose(k->p, s, side);
    }
}

static void lose_conn(struct soak *k)
{
    struct pair_conn *c = &k->p->conns[below(k, PAIR_CONNS_MAX)];
    int side = below(k, 2) == 0 ? PAIR_SINK : PAIR_SOURCE;
    if (!c->is_used || !c->is_open[side] || k->p->daemons[c->daemon[side]].is_frozen) {
        return;
    }
    if (below(k, 2) == 0 && c->is_open[PAIR_SINK] && c->is_open[PAIR_SOURCE] &&
        !k->p->daemons[c->daemon[1 - side]].is_frozen) {
        pair_conn_cut(k->p, c);
    } else {
        pair_conn_lose(k->p, c, side);
    }
}

static void turn_gates(struct soak *k)
{
    struct pair_link *link = pair_link(k->p, below(k, DAEMONS), below(k, DAEMONS));
    if (below(k, 2) == 0) {
        *link = (struct pair_link){0};
        return;
    }
    link->hold[below(k, 2)] = below(k, 2) == 0;
    link->hold_write[below(k, 2)] = below(k, 2) == 0;
    link->hold_post = below(k, 256);
    link->hold_hand = below(k, 256);
    link->hold_deliver = below(k, 256);
    link->hold_lane_hello = below(k, 4) == 0 ? 1 : 0;
    link->hold_reset = below(k, 4) == 0 ? 255 : 0;
}

static void kill_or_revive(struct soak *k)
{
    uint32_t daemon = below(k, DAEMONS);
    if (k->p->daemons[daemon].is_dead) {
        pair_revive(k->p, daemon, below(k, 2) == 0);
    } else {
        pair_kill(k->p, daemon);
    }
}

static void freeze_or_thaw(struct soak *k)
{
    struct pair_daemon *d = &k->p->daemons[below(k, DAEMONS)];
    if (d->is_dead) {
        return;
    }
    if (below(k, 2) == 0) {
        d->is_frozen = !d->is_frozen;
    } else {
        d->hold_fences = !d->hold_fences;
        if (!d->hold_fences && !d->is_frozen) {
            pair_fences_return(k->p, (uint32_t)(d - k->p->daemons));
        }
    }
}

/* A byte of nobody: whatever old lane, epoch and handle it names, it may only be refused or be placed
 * where the core says a living grant wants it; markers of a closed epoch never count. */
static void ghost(struct soak *k)
{
    uint32_t daemon = below(k, DAEMONS);
    struct pair_daemon *d = &k->p->daemons[daemon];
    if (d->is_dead || d->is_frozen) {
        return;
    }
    uint32_t lane = below(k, PAIR_PEERS * KVF_LANES_MAX);
    const struct kvf_lane *rec = &d->core->lanes[lane];
    if (rec->epoch < 2) {
        return;
    }
    uint32_t idx = below(k, k->p->options.grants_max);
    uint32_t handle = kvf_grant_handle(idx, &d->core->grants[idx]);
    uint32_t epoch = rec->epoch - 1;
    struct kvf_placement_at at;
    if (kvf_core_place(d->core, lane, epoch, handle, 0, 1, &at) == 0 ||
        kvf_core_marker(d->core, pair_clock(k->p, daemon), lane, epoch, handle, KVF_LANE_END) ==
            0) {
        pair_fail(k->p, "a ghost of an older epoch is let in");
    }
}

/* An engine leaves and another takes its place once nothing of it is left. */
static void change_engine(struct soak *k)
{
    uint32_t daemon = below(k, DAEMONS);
    uint32_t client = below(k, PAIR_CLIENTS);
    struct pair_daemon *d = &k->p->daemons[daemon];
    if (d->is_dead || d->is_frozen) {
        return;
    }
    if (!d->clients[client].is_quiet) {
        if (below(k, 2) == 0) {
            pair_client_close(k->p, daemon, client, KVF_E_ENGINE_GONE);
        }
        pair_client_reaped(k->p, daemon, client);
        for (uint32_t i = 0; i < k->live_count * (SINKS_MAX + WRITERS_MAX); i++) {
            struct pair_room *r =
                room_of(&k->live[i / (SINKS_MAX + WRITERS_MAX)], i % (SINKS_MAX + WRITERS_MAX));
            if (is_reachable(k, r) && r->daemon == daemon && r->client == client) {
                pair_lease_return(r); /* its devices have come to rest too */
            }
        }
    }
    if (d->clients[client].is_quiet) {
        pair_client_remove(k->p, daemon, client);
        pair_client_add(k->p, daemon, client);
        pair_region_add(k->p, daemon, client, PAIR_R0, k->p->options.pages, PAIR_PAGE_BYTES);
    }
}

static void turn_connects(struct soak *k)
{
    uint32_t daemon = below(k, DAEMONS);
    struct pair_daemon *d = &k->p->daemons[daemon];
    if (below(k, 2) == 0) {
        d->is_unreachable = !d->is_unreachable;
    } else {
        d->hold_connects = !d->hold_connects;
        if (!d->hold_connects && !d->is_dead && !d->is_frozen) {
            pair_connect_now(k->p, daemon, 0);
            pair_drain(k->p, daemon);
        }
    }
}

static void fault(struct soak *k)
{
    switch (below(k, 10)) {
    case 8:
        turn_connects(k);
        break;
    case 9:
        if (below(k, 4) == 0) {
            change_engine(k);
        }
        break;
    case 0:
    case 1:
        lose_stream(k);
        break;
    case 2:
        lose_conn(k);
        break;
    case 3:
    case 4:
        turn_gates(k);
        break;
    case 5:
        ghost(k);
        break;
    case 6:
        if (k->has_kills && below(k, 4) == 0) {
            kill_or_revive(k);
        }
        break;
    default:
        if (k->has_freezes) {
            freeze_or_thaw(k);
        }
        break;
    }
}

/* ---- one seed -------------------------------------------------------------------------------------- */

/* Time moves while bytes are under way: nothing settles here. */
static void step_time(struct soak *k)
{
    k->p->now_ns += below(k, 5 * PAIR_MS);
    for (uint32_t d = 0; d < DAEMONS; d++) {
        const struct pair_daemon *daemon = &k->p->daemons[d];
        if (!daemon->is_dead && !daemon->is_frozen &&
            kvf_core_deadline(daemon->core) <= pair_clock(k->p, d)) {
            pair_tick(k->p, d);
        }
    }
}

static void operate(struct soak *k)
{
    switch (below(k, 8)) {
    case 0:
    case 1:
        start_request(k);
        break;
    case 2:
    case 3:
        act_on_request(k);
        break;
    case 4:
        step_time(k);
        break;
    default:
        for (uint32_t moves = below(k, 24); moves > 0 && pair_move_one(k->p); moves--) {
        }
        break;
    }
    if (k->faults != 0 && below(k, k->faults) == 0) {
        fault(k);
    }
    forget_ended(k);
}

static void end_seed(struct soak *k)
{
    struct pair *p = k->p;
    pair_open_gates(p);
    for (uint32_t d = 0; d < DAEMONS; d++) {
        if (p->daemons[d].is_dead) {
            pair_revive(p, d, true);
        }
    }
    pair_settle(p);
    for (uint32_t i = 0; i < k->live_count; i++) {
        for (uint32_t j = 0; j < SINKS_MAX + WRITERS_MAX; j++) {
            struct pair_room *room = room_of(&k->live[i], j);
            if (is_reachable(k, room)) {
                pair_abort(room);
                pair_lease_return(room);
            }
        }
    }
    p->is_bound_checked = false;
    pair_advance(p, 5000 * PAIR_MS);
    for (uint32_t d = 0; d < DAEMONS; d++) {
        for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
            if (p->daemons[d].clients[c].is_quiet) {
                pair_client_remove(p, d, c);
                pair_client_add(p, d, c);
                pair_region_add(p, d, c, PAIR_R0, p->options.pages, PAIR_PAGE_BYTES);
            }
        }
    }
    for (uint32_t d = 0; d < DAEMONS; d++) {
        pair_warm(p, d, (d + 1) % DAEMONS); /* nobody is banned */
    }
    for (uint32_t d = 0; d < DAEMONS; d++) {
        for (uint32_t c = 0; c < KVF_COUNTERS; c++) {
            k->sum[c] += pair_count(p, d, c);
        }
    }
    pair_finish(p);
}

static uint32_t one_seed(uint64_t seed, uint32_t rooms, uint64_t *sum)
{
    struct soak k = {.next_key = (seed << 32) | 1, .sum = sum};
    k.p = pair_new(&(struct pair_options){.daemons = DAEMONS,
                                          .lanes = 1 + (uint32_t)(seed % 4),
                                          .placement = seed / 4 % 2 == 0 ? KVF_PLACEMENT_CHECKED
                                                                         : KVF_PLACEMENT_POSTED,
                                          .lane_rooms = 1 + (uint32_t)(seed % 5),
                                          .pages = 96,
                                          .rooms = 24,
                                          .grants_max = 40,
                                          .runs_max = 512,
                                          .pieces_max = 96,
                                          .parked_max = 4,
                                          .post_bytes = PAIR_BYTES(1 + seed % 4),
                                          .stripe_bytes = seed % 3 == 0 ? PAIR_BYTES(6) : 0,
                                          .room_window_bytes = PAIR_BYTES(4),
                                          .lane_window_bytes = PAIR_BYTES(8)});
    (void)snprintf(k.p->note, sizeof k.p->note, "seed %llu: ", (unsigned long long)seed);
    k.p->random = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    k.p->post_queue_max = 1 + below(&k, 12);
    k.faults = seed % 7 == 0 ? 0 : 2 + (uint32_t)(seed % 40);
    k.has_kills = seed % 3 == 1;
    k.has_freezes = seed % 3 == 2; /* a daemon that stands still cannot keep its own bound */
    k.p->is_bound_checked = !k.has_freezes;
    k.p->bound_slack_ns = 30 * PAIR_MS;
    uint32_t guard = 0;
    while (k.started < rooms && guard++ < rooms * 200) {
        operate(&k);
    }
    uint32_t started = k.started;
    end_seed(&k);
    return started;
}

static uint64_t number_of(const char *name, uint64_t usual)
{
    const char *text = getenv(name);
    return text == NULL ? usual : strtoull(text, NULL, 10);
}

Test(core_soak, d9_random_schedules_end_proven, .timeout = 3000)
{
    uint64_t from = number_of("KVF_SOAK_FROM", 1);
    uint64_t seeds = number_of("KVF_SOAK_SEEDS", SEEDS);
    uint32_t requests = (uint32_t)number_of("KVF_SOAK_REQUESTS", 400);
    uint64_t sum[KVF_COUNTERS] = {0};
    uint64_t started = 0;
    for (uint64_t seed = from; seed < from + seeds; seed++) {
        started += one_seed(seed, requests, sum);
    }
    if (seeds < SEEDS) {
        return;
    }
    /* The schedules were what they are meant to be: every kind of proof was needed. */
    cr_assert_geq(started, seeds * requests / 2);
    static const uint32_t kinds[] = {KVF_PROOF_NEVER_POSTED, KVF_PROOF_LANDED,
                                     KVF_PROOF_SOURCE_IDLE,  KVF_PROOF_PEER_DRAINED,
                                     KVF_PROOF_REVOKED,      KVF_PROOF_FENCED};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        cr_assert_geq(sum[KVF_COUNT_PROOF_FIRST + kinds[i]], seeds, "proof %u was hardly seen",
                      kinds[i]);
    }
    cr_assert_geq(sum[KVF_COUNT_PEERS_LOST], seeds);
    cr_assert_geq(sum[KVF_COUNT_GRANTS_PARKED], seeds);
    cr_assert_geq(sum[KVF_COUNT_GRANTS_DECLINED], seeds);
    cr_assert_geq(sum[KVF_COUNT_REGRANTS], seeds);
}

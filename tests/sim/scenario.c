/* Seed in, list of operations out. The weights below decide what a flavour feels like. */
#include "tests/sim/scenario.h"

#include <stdio.h>
#include <string.h>

#include "ring/codes.h"
#include "tests/sim/random.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

const char *const sim_flavour_names[SIM_FLAVOURS] = {
    [SIM_CALM] = "calm",     [SIM_ABORTS] = "aborts",
    [SIM_DEATHS] = "deaths", [SIM_PARTITIONS] = "partitions",
    [SIM_LEASES] = "leases", [SIM_MIXED] = "mixed"};
const char *const sim_traffic_names[SIM_TRAFFICS] = {
    [SIM_CHECKED] = "checked", [SIM_POSTED] = "posted", [SIM_VERBS] = "nic"};
const char *const sim_op_names[SIM_OP_KINDS] = {
    [SIM_OP_REQUEST] = "request",
    [SIM_OP_ABORT] = "abort",
    [SIM_OP_LEASE] = "lease",
    [SIM_OP_CUT_LINK] = "cut-link",
    [SIM_OP_STALL_LINK] = "stall-link",
    [SIM_OP_STORM] = "storm",
    [SIM_OP_RESET] = "reset",
    [SIM_OP_BREAK_LANE] = "break-lane",
    [SIM_OP_REFUSE] = "refuse",
    [SIM_OP_KILL_WORKER] = "kill-worker",
    [SIM_OP_FREEZE_WORKER] = "freeze-worker",
    [SIM_OP_HANG_FENCE] = "hang-fence",
    [SIM_OP_KILL_SUPERVISOR] = "kill-supervisor",
    [SIM_OP_STOP] = "stop",
    [SIM_OP_CRASH_HOST] = "crash-host",
    [SIM_OP_KILL_ENGINE] = "kill-engine",
    [SIM_OP_FREEZE_ENGINE] = "freeze-engine",
    [SIM_OP_DETACH_ENGINE] = "detach-engine",
};

/* Per thousand requests: how many operations of each kind come with them. */
static const uint16_t weights[SIM_FLAVOURS][SIM_OP_KINDS] = {
    [SIM_CALM] = {[SIM_OP_ABORT] = 100, [SIM_OP_LEASE] = 60},
    [SIM_ABORTS] = {[SIM_OP_ABORT] = 900,
                    [SIM_OP_LEASE] = 60,
                    [SIM_OP_BREAK_LANE] = 30,
                    [SIM_OP_RESET] = 20,
                    [SIM_OP_STORM] = 40,
                    [SIM_OP_STALL_LINK] = 40},
    [SIM_DEATHS] = {[SIM_OP_ABORT] = 200,
                    [SIM_OP_LEASE] = 200,
                    [SIM_OP_KILL_WORKER] = 130,
                    [SIM_OP_FREEZE_WORKER] = 90,
                    [SIM_OP_HANG_FENCE] = 80,
                    [SIM_OP_BREAK_LANE] = 30,
                    [SIM_OP_KILL_SUPERVISOR] = 40,
                    [SIM_OP_STOP] = 40,
                    [SIM_OP_CRASH_HOST] = 30,
                    [SIM_OP_KILL_ENGINE] = 120,
                    [SIM_OP_FREEZE_ENGINE] = 40,
                    [SIM_OP_DETACH_ENGINE] = 30},
    [SIM_PARTITIONS] = {[SIM_OP_ABORT] = 250,
                        [SIM_OP_LEASE] = 20,
                        [SIM_OP_CUT_LINK] = 160,
                        [SIM_OP_STALL_LINK] = 160,
                        [SIM_OP_STORM] = 90,
                        [SIM_OP_RESET] = 70,
                        [SIM_OP_BREAK_LANE] = 70,
                        [SIM_OP_REFUSE] = 40},
    [SIM_LEASES] = {[SIM_OP_ABORT] = 350,
                    [SIM_OP_LEASE] = 900,
                    [SIM_OP_KILL_WORKER] = 40,
                    [SIM_OP_KILL_ENGINE] = 200,
                    [SIM_OP_FREEZE_ENGINE] = 40,
                    [SIM_OP_KILL_SUPERVISOR] = 20,
                    [SIM_OP_DETACH_ENGINE] = 20},
    [SIM_MIXED] = {[SIM_OP_ABORT] = 350,
                   [SIM_OP_LEASE] = 200,
                   [SIM_OP_CUT_LINK] = 60,
                   [SIM_OP_STALL_LINK] = 60,
                   [SIM_OP_STORM] = 40,
                   [SIM_OP_RESET] = 30,
                   [SIM_OP_BREAK_LANE] = 40,
                   [SIM_OP_REFUSE] = 15,
                   [SIM_OP_KILL_WORKER] = 60,
                   [SIM_OP_FREEZE_WORKER] = 30,
                   [SIM_OP_HANG_FENCE] = 20,
                   [SIM_OP_KILL_SUPERVISOR] = 15,
                   [SIM_OP_STOP] = 15,
                   [SIM_OP_CRASH_HOST] = 15,
                   [SIM_OP_KILL_ENGINE] = 80,
                   [SIM_OP_FREEZE_ENGINE] = 20,
                   [SIM_OP_DETACH_ENGINE] = 15},
};

/* ---- draws -------------------------------------------------------------------------------------------- */

static uint32_t below(struct sim_random *r, uint64_t bound)
{
    return (uint32_t)sim_random_below(r, bound);
}

static bool one_in(struct sim_random *r, uint32_t n)
{
    return below(r, n) == 0;
}

/* Mostly short, sometimes long: the interesting moments of a transfer last microseconds, those of a
 * deadline tenths of a second. */
static uint64_t some_time(struct sim_random *r, uint64_t longest_ns)
{
    uint64_t limit_ns = longest_ns >> (2u * below(r, 6));
    return sim_random_below(r, limit_ns + 1);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

static struct sim_party some_party(struct sim_random *r, const struct sim_scenario *s)
{
    return (struct sim_party){.host = (uint8_t)below(r, s->hosts),
                              .engine = (uint8_t)below(r, SIM_ENGINES)};
}

/* A daemon grants nothing to itself, and two rooms of one key on one engine would be twins. */
static bool is_free_for(const struct sim_plan *p, struct sim_party party, bool is_writer)
{
    for (uint32_t i = 0; i < p->sink_count; i++) {
        if (is_writer ? p->sinks[i].host == party.host
                      : p->sinks[i].host == party.host && p->sinks[i].engine == party.engine) {
            return false;
        }
    }
    for (uint32_t i = 0; i < p->writer_count; i++) {
        if (p->writers[i].host == party.host) {
            return false;
        }
    }
    return true;
}

static void add_sinks(struct sim_random *r, const struct sim_scenario *s, struct sim_plan *p,
                      uint32_t wanted)
{
    for (uint32_t tries = 0; tries < 20 && p->sink_count < wanted; tries++) {
        struct sim_party party = some_party(r, s);
        if (is_free_for(p, party, false)) {
            p->sinks[p->sink_count++] = party;
        }
    }
    if (p->sink_count == 0) {
        p->sinks[p->sink_count++] =
            (struct sim_party){.host = (uint8_t)((p->writers[0].host + 1u) % s->hosts),
                               .engine = p->writers[0].engine};
    }
}

static void add_writers(struct sim_random *r, const struct sim_scenario *s, struct sim_plan *p,
                        uint32_t wanted)
{
    for (uint32_t tries = 0; tries < 20 && p->writer_count < wanted; tries++) {
        struct sim_party party = some_party(r, s);
        if (is_free_for(p, party, true)) {
            p->writers[p->writer_count++] = party;
        }
    }
    for (uint32_t i = 0; p->writer_count == 0; i++) { /* a group leaves one host free */
        struct sim_party party = {.host = (uint8_t)i};
        if (is_free_for(p, party, true)) {
            p->writers[p->writer_count++] = party;
        }
    }
}

static void choose_parties(struct sim_random *r, const struct sim_scenario *s,
                           struct sim_plan *p)
{
    uint32_t sinks = one_in(r, 4) ? 1 + below(r, SIM_SINKS_MAX) : 1;
    uint32_t writers = one_in(r, 4) ? 1 + below(r, SIM_WRITERS_MAX) : 1;
    p->group = (uint8_t)(one_in(r, 3) ? 1 + below(r, SIM_GROUPS) : 0);
    if (p->group == 0) {
        p->writers[p->writer_count++] = some_party(r, s);
    } else if (p->group == SIM_GROUPS) {
        for (uint32_t i = 0; i < s->groups[SIM_GROUPS - 1u].count; i++) {
            p->writers[p->writer_count++] = s->groups[SIM_GROUPS - 1u].ranks[i];
        }
    } else {
        for (uint32_t i = 0; i < s->groups[p->group - 1u].count; i++) {
            p->sinks[p->sink_count++] = s->groups[p->group - 1u].ranks[i];
        }
    }
    if (p->group == 0 || p->group == SIM_GROUPS) {
        add_sinks(r, s, p, sinks);
    }
    if (p->group != SIM_GROUPS) {
        add_writers(r, s, p, writers);
    }
}

static void make_request(struct sim_random *r, const struct sim_scenario *s, struct sim_op *op)
{
    struct sim_plan *p = &op->plan;
    choose_parties(r, s, p);
    p->label = 1 + below(r, 6); /* few labels: they are recycled all the time */
    uint32_t most = SIM_ROOM_PAGES_MAX / p->writer_count;
    most = one_in(r, 4) ? most : (most > 5 ? 5 : most);
    for (uint32_t i = 0; i < p->writer_count; i++) {
        p->part_pages[i] = (uint8_t)(1 + below(r, most));
        p->pieces[i] = (uint8_t)(1 + below(r, one_in(r, 3) ? SIM_PIECES_MAX : 1));
        p->piece_after_ns[i] = some_time(r, 4 * MS);
    }
    uint8_t *last = &p->part_pages[p->writer_count - 1u];
    if (one_in(r, 6)) {
        p->aux_pages = (uint8_t)(*last > 2 ? 2 : 1);
    }
    if (one_in(r, 5)) {
        p->prefix_id = 1 + below(r, 3);
        p->prefix_pages = (uint8_t)(1 + below(r, SIM_PREFIX_PAGES_MAX));
    }
    for (uint32_t i = 0; i < SIM_MEMBERS; i++) {
        p->open_after_ns[i] = some_time(r, 6 * MS);
    }
    p->is_backwards = one_in(r, 4);
    p->is_early = one_in(r, 3);
    p->has_hole = one_in(r, 60);
    if (s->flavour != SIM_CALM && one_in(r, 14)) {
        p->missing = (uint8_t)(1u << below(r, SIM_MEMBERS));
    }
}

/* ---- faults ------------------------------------------------------------------------------------------- */

/* When the last of a request's parties is there and has submitted something. */
static uint64_t bytes_move_ns(const struct sim_scenario *s, const struct sim_op *request)
{
    const struct sim_plan *p = &request->plan;
    uint64_t latest_ns = 0;
    for (uint32_t i = 0; i < p->sink_count; i++) {
        latest_ns = p->open_after_ns[i] > latest_ns ? p->open_after_ns[i] : latest_ns;
    }
    for (uint32_t i = 0; i < p->writer_count; i++) {
        uint64_t ready_ns = p->open_after_ns[SIM_SINKS_MAX + i] + p->piece_after_ns[i];
        latest_ns = ready_ns > latest_ns ? ready_ns : latest_ns;
    }
    return request->at_ns + latest_ns + s->delay_ns;
}

/* The course of a transfer: a connection, a grant, data, markers, each a few trips over the network. */
static uint64_t some_trips(struct sim_random *r, const struct sim_scenario *s)
{
    return sim_random_below(r, (UINT64_C(3) << below(r, 5)) * s->delay_ns + 20 * US);
}

static void make_aimed(struct sim_random *r, const struct sim_scenario *s, uint32_t request,
                       struct sim_op *op)
{
    const struct sim_op *at = &s->ops[request];
    const struct sim_plan *p = &at->plan;
    op->request = (uint16_t)request;
    op->member = (uint8_t)(one_in(r, 3) ? SIM_SINKS_MAX + below(r, p->writer_count)
                                        : below(r, p->sink_count));
    /* Around the open, or around the moment in which bytes begin to move, until long after the end. */
    uint64_t open_ns = at->at_ns + p->open_after_ns[op->member];
    uint64_t early_ns = one_in(r, 10) ? some_time(r, p->open_after_ns[op->member]) : 0;
    op->at_ns = one_in(r, 3) ? open_ns - early_ns + some_time(r, 12 * MS)
                             : bytes_move_ns(s, at) + some_trips(r, s);
    op->reason = one_in(r, 3) ? 1 + below(r, KVF_E_LAST) : 0;
    op->lease_kind = (uint8_t)(one_in(r, 2) ? 0 : 1 + below(r, 2));
    op->for_ns = some_time(r, op->kind == SIM_OP_LEASE && one_in(r, 8) ? 400 * MS : 20 * MS);
}

static void make_fault(struct sim_random *r, const struct sim_scenario *s, uint32_t request,
                       struct sim_op *op)
{
    const struct sim_op *at = &s->ops[request];
    op->at_ns = one_in(r, 2) ? at->at_ns + some_time(r, 10 * MS)
                             : bytes_move_ns(s, at) + some_trips(r, s);
    op->a = (uint8_t)below(r, s->hosts);
    op->b = (uint8_t)((op->a + 1u + below(r, s->hosts - 1u)) % s->hosts);
    op->engine = (uint8_t)below(r, SIM_ENGINES);
    op->member = (uint8_t)below(r, 255);
    op->is_both_ways = one_in(r, 2);
    switch ((enum sim_op_kind)op->kind) {
    case SIM_OP_FREEZE_WORKER:
    case SIM_OP_HANG_FENCE:
    case SIM_OP_CUT_LINK:
    case SIM_OP_STALL_LINK:
        /* Short ones hit moments, long ones hit deadlines. */
        op->for_ns = one_in(r, 2) ? some_time(r, 100 * MS) : sim_random_below(r, 600 * MS);
        break;
    case SIM_OP_STORM:
    case SIM_OP_REFUSE:
    case SIM_OP_FREEZE_ENGINE:
        op->for_ns = some_time(r, 200 * MS);
        break;
    case SIM_OP_KILL_WORKER:
    case SIM_OP_KILL_ENGINE:
        op->for_ns = some_time(r, one_in(r, 5) ? 200 * MS : 5 * MS);
        break;
    case SIM_OP_KILL_SUPERVISOR:
    case SIM_OP_STOP:
    case SIM_OP_CRASH_HOST:
        op->for_ns = some_time(r, 100 * MS);
        break;
    case SIM_OP_REQUEST:
    case SIM_OP_ABORT:
    case SIM_OP_LEASE:
    case SIM_OP_RESET:
    case SIM_OP_BREAK_LANE:
    case SIM_OP_DETACH_ENGINE:
    case SIM_OP_KINDS:
        op->for_ns = some_time(r, 20 * MS);
        break;
    }
}

static void make_company(const struct sim_scenario *s, uint32_t request, enum sim_op_kind kind,
                         uint32_t nth, struct sim_op *op)
{
    struct sim_random r =
        sim_random_stream(s->seed, 100u + request, 16u * (uint32_t)kind + nth);
    *op = (struct sim_op){.kind = (uint8_t)kind};
    if (kind == SIM_OP_ABORT || kind == SIM_OP_LEASE) {
        make_aimed(&r, s, request, op);
    } else {
        make_fault(&r, s, request, op);
    }
    op->request = (uint16_t)request;
    if (one_in(&r, 2)) { /* into the middle of it, wherever that is */
        op->trigger = (uint16_t)(1 + below(&r, 2u << below(&r, 5)));
        op->at_ns = s->ops[request].at_ns;
    }
}

/* ---- a scenario --------------------------------------------------------------------------------------- */

/* Ranks sit on all hosts but one at most, so that a request has where to come from. A group of sources has one rank
 * a host: its daemon grants to each of them. */
static void make_groups(struct sim_random *r, struct sim_scenario *s)
{
    for (uint32_t g = 0; g < SIM_GROUPS; g++) {
        struct sim_group *group = &s->groups[g];
        uint32_t free_host = below(r, s->hosts);
        uint32_t wanted = 2 + below(r, SIM_SINKS_MAX - 1u);
        for (uint32_t tries = 0; tries < 30 && group->count < wanted; tries++) {
            struct sim_party party = some_party(r, s);
            bool is_taken = party.host == free_host;
            for (uint32_t i = 0; i < group->count; i++) {
                is_taken = is_taken ||
                           (group->ranks[i].host == party.host &&
                            (g == SIM_GROUPS - 1u || group->ranks[i].engine == party.engine));
            }
            if (!is_taken) {
                group->ranks[group->count++] = party;
            }
        }
    }
}

static void make_frame(struct sim_random *r, struct sim_scenario *s)
{
    static const uint8_t hosts[] = {2, 2, 3, 3, 4, 5};
    static const uint8_t lanes[] = {1, 1, 2, 2, 3, 4};
    s->hosts = hosts[below(r, sizeof hosts)];
    s->lanes = lanes[below(r, sizeof lanes)];
    s->lane_rooms = 1 + below(r, 6);
    s->post_pages = 1 + below(r, 4);
    s->window_pages = 1 + below(r, 6);
    s->delay_ns = (UINT64_C(4) << below(r, 8)) * US;
    s->are_actions_late = !one_in(r, 3);
    s->aborts_at_end = !one_in(r, 6);
    s->is_striped = !one_in(r, 3);
    make_groups(r, s);
}

void sim_scenario_make(uint64_t seed, enum sim_flavour flavour, enum sim_traffic traffic,
                       struct sim_scenario *ret_scenario)
{
    struct sim_scenario *s = ret_scenario;
    struct sim_random r = sim_random_stream(seed, 1, 0);
    *s = (struct sim_scenario){.seed = seed};
    uint32_t any_flavour = below(&r, SIM_FLAVOURS);
    uint32_t any_traffic = below(&r, SIM_TRAFFICS);
    s->flavour = flavour < SIM_FLAVOURS ? flavour : (enum sim_flavour)any_flavour;
    s->traffic = traffic < SIM_TRAFFICS ? traffic : (enum sim_traffic)any_traffic;
    make_frame(&r, s);
    uint32_t requests = 6 + below(&r, 22);
    uint64_t gap_ns = (UINT64_C(100) << below(&r, 6)) * US;
    uint64_t at_ns = 2 * MS;
    /* Requests first, so that those that come with them can look at them. */
    for (uint32_t i = 0; i < requests; i++) {
        struct sim_random own = sim_random_stream(seed, 2, i);
        at_ns += some_time(&own, 2 * gap_ns);
        s->ops[i] = (struct sim_op){.kind = SIM_OP_REQUEST, .at_ns = at_ns};
        make_request(&own, s, &s->ops[i]);
    }
    s->request_count = requests;
    s->op_count = requests;
    for (uint32_t i = 0; i < requests; i++) {
        for (uint32_t kind = 1; kind < SIM_OP_KINDS; kind++) {
            struct sim_random own = sim_random_stream(seed, 3, i * SIM_OP_KINDS + kind);
            uint32_t times = 0;
            while (times < 3 && s->op_count < SIM_OPS_MAX &&
                   below(&own, 1000) < weights[s->flavour][kind]) {
                make_company(s, i, (enum sim_op_kind)kind, times, &s->ops[s->op_count++]);
                times++;
            }
        }
    }
    for (uint32_t i = 0; i < s->op_count; i++) {
        uint64_t until_ns = s->ops[i].at_ns + s->ops[i].for_ns + 8 * MS;
        s->end_ns = until_ns > s->end_ns ? until_ns : s->end_ns;
    }
}

/* ---- simpler ----------------------------------------------------------------------------------------- */

static bool to_zero(uint8_t *value, uint8_t wanted)
{
    bool is_new = *value > wanted;
    *value = is_new ? wanted : *value;
    return is_new;
}

static bool times_to_zero(uint64_t *times_ns, uint32_t count)
{
    bool is_new = false;
    for (uint32_t i = 0; i < count; i++) {
        is_new = is_new || times_ns[i] != 0;
        times_ns[i] = 0;
    }
    return is_new;
}

static bool ease_flags(struct sim_plan *p)
{
    bool is_new = p->is_backwards || p->is_early || p->has_hole;
    p->is_backwards = false;
    p->is_early = false;
    p->has_hole = false;
    return is_new;
}

static bool ease_pages(struct sim_plan *p)
{
    bool is_new = false;
    for (uint32_t i = 0; i < SIM_WRITERS_MAX; i++) {
        is_new = to_zero(&p->part_pages[i], (uint8_t)(1u + p->aux_pages)) || is_new;
    }
    return is_new;
}

static bool ease_pieces(struct sim_plan *p)
{
    bool is_new = false;
    for (uint32_t i = 0; i < SIM_WRITERS_MAX; i++) {
        is_new = to_zero(&p->pieces[i], 1) || is_new;
    }
    return is_new;
}

static bool ease_request(struct sim_plan *p, uint32_t step)
{
    switch (step) {
    case 0:
        return to_zero(&p->sink_count, 1);
    case 1:
        p->part_pages[0] =
            p->part_pages[p->writer_count - 1u]; /* which holds the auxiliary ones */
        return to_zero(&p->writer_count, 1);
    case 2:
        return to_zero(&p->aux_pages, 0);
    case 3:
        return to_zero(&p->prefix_pages, 0);
    case 4:
        return ease_pieces(p);
    case 5:
        return ease_flags(p);
    case 6:
        return times_to_zero(p->open_after_ns, SIM_MEMBERS);
    case 7:
        return times_to_zero(p->piece_after_ns, SIM_WRITERS_MAX);
    case 8:
        return ease_pages(p);
    default: /* a number of a list */
        return false;
    }
}

bool sim_op_ease(struct sim_op *op, uint32_t step)
{
    if (op->kind == SIM_OP_REQUEST) {
        return ease_request(&op->plan, step);
    }
    bool is_new = false;
    switch (step) {
    case 9:
        is_new = op->for_ns > 0;
        op->for_ns = 0;
        return is_new;
    case 10:
        is_new = op->for_ns > MS;
        op->for_ns = is_new ? MS : op->for_ns;
        return is_new;
    case 11:
        is_new = op->is_both_ways || op->reason != 0;
        op->is_both_ways = false;
        op->reason = 0;
        return is_new;
    default: /* a number of a list */
        return false;
    }
}

/* ---- for people --------------------------------------------------------------------------------------- */

static void request_text(const struct sim_plan *p, char *text, uint32_t text_bytes)
{
    int at = snprintf(text, text_bytes, "label %u,", p->label);
    for (uint32_t i = 0; i < p->sink_count; i++) {
        at += snprintf(text + at, text_bytes - (uint32_t)at, " sink h%u.%u", p->sinks[i].host,
                       p->sinks[i].engine);
    }
    for (uint32_t i = 0; i < p->writer_count; i++) {
        at +=
            snprintf(text + at, text_bytes - (uint32_t)at, " source h%u.%u %u pages in %u",
                     p->writers[i].host, p->writers[i].engine, p->part_pages[i], p->pieces[i]);
    }
    (void)snprintf(text + at, text_bytes - (uint32_t)at, "%s%s%s%s%s",
                   p->aux_pages > 0 ? " aux" : "", p->prefix_id > 0 ? " prefix" : "",
                   p->has_hole ? " hole" : "", p->group > 0 ? " group" : "",
                   p->missing > 0 ? " somebody stays away" : "");
}

void sim_op_text(const struct sim_scenario *s, uint32_t op, char *text, uint32_t text_bytes)
{
    const struct sim_op *o = &s->ops[op];
    char when[32];
    if (o->trigger != 0) {
        (void)snprintf(when, sizeof when, "%u.%u landed", o->request, o->trigger);
    } else {
        (void)snprintf(when, sizeof when, "%9.3f ms", (double)o->at_ns / 1e6);
    }
    int at = snprintf(text, text_bytes, "%3u  %12s  %-15s ", op, when, sim_op_names[o->kind]);
    char *rest = text + at;
    uint32_t left = text_bytes - (uint32_t)at;
    double for_ms = (double)o->for_ns / 1e6;
    switch ((enum sim_op_kind)o->kind) {
    case SIM_OP_REQUEST:
        request_text(&o->plan, rest, left);
        return;
    case SIM_OP_ABORT:
    case SIM_OP_LEASE:
        (void)snprintf(rest, left, "of request %u, %s %u%s", o->request,
                       o->member < SIM_SINKS_MAX ? "sink" : "source", o->member % SIM_SINKS_MAX,
                       o->kind == SIM_OP_ABORT ? ""
                       : o->lease_kind == 0    ? ", cpu"
                       : o->lease_kind == 1    ? ", gpu"
                                               : ", direct-io");
        return;
    case SIM_OP_CUT_LINK:
    case SIM_OP_STALL_LINK:
    case SIM_OP_STORM:
    case SIM_OP_RESET:
        (void)snprintf(rest, left, "h%u %s h%u for %.3f ms", o->a,
                       o->is_both_ways ? "and" : "to", o->b, for_ms);
        return;
    case SIM_OP_KILL_ENGINE:
    case SIM_OP_FREEZE_ENGINE:
    case SIM_OP_DETACH_ENGINE:
        (void)snprintf(rest, left, "h%u.%u, %.3f ms", o->a, o->engine, for_ms);
        return;
    case SIM_OP_BREAK_LANE:
    case SIM_OP_REFUSE:
    case SIM_OP_KILL_WORKER:
    case SIM_OP_FREEZE_WORKER:
    case SIM_OP_HANG_FENCE:
    case SIM_OP_KILL_SUPERVISOR:
    case SIM_OP_STOP:
    case SIM_OP_CRASH_HOST:
    case SIM_OP_KINDS:
        (void)snprintf(rest, left, "h%u, %.3f ms", o->a, for_ms);
        return;
    }
}

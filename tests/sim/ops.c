/* Operations of a scenario, carried out at their time and taken back when they are over. */
#include "tests/sim/parts.h"

static void heal(void *world, uint64_t op, uint64_t unused);

/* ---- links ----------------------------------------------------------------------------------------------------- */

static void apply_route(struct sim_world *w, uint32_t from, uint32_t to)
{
    const struct sim_route *route = &w->routes[from][to];
    struct sim_link link = route->storms > 0 ? w->storm : w->calm;
    link.is_cut = route->cuts > 0;
    link.is_stalled = route->stalls > 0;
    sim_link_set(w->fabric, from, to, &link);
}

static void change_route(struct sim_world *w, const struct sim_op *op, uint32_t from,
                         uint32_t to, int by)
{
    struct sim_route *route = &w->routes[from][to];
    uint16_t *count = op->kind == SIM_OP_CUT_LINK     ? &route->cuts
                      : op->kind == SIM_OP_STALL_LINK ? &route->stalls
                                                      : &route->storms;
    *count = (uint16_t)(*count + by);
    apply_route(w, from, to);
    sim_note(w, SIM_ROUTE, from, SIM_NO_ROOM, SIM_NO_ROOM, to,
             route->cuts | (uint64_t)route->stalls << 8 | (uint64_t)route->storms << 16);
}

static void change_routes(struct sim_world *w, const struct sim_op *op, int by)
{
    change_route(w, op, op->a, op->b, by);
    if (op->is_both_ways) {
        change_route(w, op, op->b, op->a, by);
    }
    sim_control_resume(w);
}

/* ---- one operation ------------------------------------------------------------------------------------------------ */

/* An engine that will never open the key of its group says so, half of the time. */
static void skip(void *world, uint64_t request, uint64_t member)
{
    struct sim_world *w = world;
    const struct sim_plan *p = sim_plan_of(w, (uint32_t)request);
    struct sim_party party =
        member < SIM_SINKS_MAX ? p->sinks[member] : p->writers[member - SIM_SINKS_MAX];
    struct sim_host *h = &w->hosts[party.host];
    uint32_t client = h->client_of[party.engine];
    uint32_t group = sim_group_of(w, (uint32_t)request, (uint32_t)member);
    if (group != 0 && client != KVF_NONE && sim_worker_is_awake(h) &&
        h->clients[client].is_in_core && !h->clients[client].is_closing) {
        (void)kvf_core_group_skip(h->core, client, group, w->requests[request].key);
        sim_worker_after(w, h);
    }
}

static void start_request(struct sim_world *w, uint32_t request)
{
    const struct sim_plan *p = sim_plan_of(w, request);
    w->figures.requests++;
    for (uint32_t m = 0; m < SIM_MEMBERS; m++) {
        bool is_there =
            m < SIM_SINKS_MAX ? m < p->sink_count : m - SIM_SINKS_MAX < p->writer_count;
        struct sim_party party =
            m < SIM_SINKS_MAX ? p->sinks[m] : p->writers[m - SIM_SINKS_MAX];
        /* Which process of that rank is to open the key: only one that is registered already. */
        const struct sim_host *h = &w->hosts[party.host];
        uint32_t client = h->client_of[party.engine];
        w->requests[request].engine_starts[m] =
            client != KVF_NONE && h->clients[client].was_served ? h->engine_starts[party.engine]
                                                                : UINT32_MAX;
        bool is_missing = (p->missing >> m & 1u) != 0;
        if (is_there && (!is_missing || request % 2u == 0)) {
            sim_clock_at(&w->clock, w->clock.now_ns + p->open_after_ns[m],
                         is_missing ? skip : sim_engine_open, w, request, m);
        }
    }
}

static void abort_member(struct sim_world *w, const struct sim_op *op)
{
    struct sim_request *req = &w->requests[op->request];
    if (req->rooms[op->member] != SIM_NO_ROOM) {
        sim_engine_abort(w, req->rooms[op->member], op->reason);
    } else { /* the open finds it in the abort cell */
        req->is_abort_wished[op->member] = true;
        req->abort_reason[op->member] = op->reason;
    }
}

static void break_lane(struct sim_world *w, const struct sim_op *op)
{
    struct sim_host *h = &w->hosts[op->a];
    for (uint32_t i = 0; i < SIM_LANES && h->worker == SIM_WORKER_SERVING; i++) {
        uint32_t lane = (i + op->member) % SIM_LANES;
        if (h->lane_epochs[lane] != 0) {
            sim_fabric_break_lane(w->fabric, op->a, lane);
            return;
        }
    }
}

static void carry_out(struct sim_world *w, uint32_t idx)
{
    const struct sim_op *op = &w->scenario.ops[idx];
    struct sim_host *h = &w->hosts[op->a];
    uint64_t over_ns = w->clock.now_ns + op->for_ns;
    w->calm_from_ns = over_ns > w->calm_from_ns ? over_ns : w->calm_from_ns;
    struct sim_random luck = sim_random_stream(w->scenario.seed, 7, idx);
    uint32_t room;
    switch ((enum sim_op_kind)op->kind) {
    case SIM_OP_REQUEST:
        start_request(w, idx);
        return;
    case SIM_OP_ABORT:
        abort_member(w, op);
        return;
    case SIM_OP_LEASE:
        room = w->requests[op->request].rooms[op->member];
        if (room != SIM_NO_ROOM) {
            sim_lease_start(w, room, op->lease_kind, op->for_ns);
        }
        return;
    case SIM_OP_CUT_LINK:
    case SIM_OP_STALL_LINK:
        w->figures.partitions++;
        change_routes(w, op, 1);
        break;
    case SIM_OP_STORM:
        change_routes(w, op, 1);
        break;
    case SIM_OP_RESET:
        sim_control_reset_between(w, op->a, op->b, &luck);
        return;
    case SIM_OP_BREAK_LANE:
        break_lane(w, op);
        return;
    case SIM_OP_REFUSE:
        h->refusals++;
        break;
    case SIM_OP_KILL_WORKER:
        sim_worker_kill(w, op->a, op->for_ns);
        return;
    case SIM_OP_FREEZE_WORKER:
        sim_worker_freeze(w, op->a, op->for_ns);
        return;
    case SIM_OP_HANG_FENCE:
        sim_fence_hang(w, op->a, op->for_ns);
        break_lane(w, op); /* or there might be none */
        return;
    case SIM_OP_KILL_SUPERVISOR:
        sim_supervisor_kill(w, op->a, op->for_ns);
        return;
    case SIM_OP_STOP:
        sim_supervisor_stop(w, op->a, op->for_ns);
        return;
    case SIM_OP_CRASH_HOST:
        sim_host_crash(w, op->a, op->for_ns);
        return;
    case SIM_OP_KILL_ENGINE:
        sim_engine_kill(w, h, op->engine, op->for_ns);
        return;
    case SIM_OP_FREEZE_ENGINE:
        sim_engine_freeze(w, h, op->engine, op->for_ns);
        return;
    case SIM_OP_DETACH_ENGINE:
        sim_engine_detach(w, h, op->engine);
        return;
    case SIM_OP_KINDS:
        return;
    }
    sim_clock_at(&w->clock, w->clock.now_ns + op->for_ns, heal, w, idx, 0);
}

static void heal(void *world, uint64_t idx, uint64_t unused)
{
    struct sim_world *w = world;
    const struct sim_op *op = &w->scenario.ops[idx];
    (void)unused;
    if (op->kind == SIM_OP_REFUSE) {
        w->hosts[op->a].refusals--;
    } else {
        change_routes(w, op, -1);
    }
}

static void begin(void *world, uint64_t idx, uint64_t unused)
{
    struct sim_world *w = world;
    (void)unused;
    sim_note(w, SIM_OP, w->scenario.ops[idx].a, SIM_NO_ROOM, SIM_NO_ROOM, idx, 0);
    carry_out(w, (uint32_t)idx);
}

/* An operation that waited for bytes to land. */
static void begin_late(void *world, uint64_t idx, uint64_t unused)
{
    struct sim_world *w = world;
    if (w->phase == SIM_FAULTS) {
        begin(world, idx, unused);
    }
}

void sim_ops_landed(struct sim_world *w, uint32_t request)
{
    struct sim_request *req = &w->requests[request];
    req->landings++;
    for (uint32_t i = 0; i < req->armed_count; i++) {
        if (w->scenario.ops[req->armed[i]].trigger == req->landings) {
            sim_clock_at(&w->clock, w->clock.now_ns + sim_random_below(&w->luck, 4 * SIM_US),
                         begin_late, w, req->armed[i], 0);
        }
    }
}

static bool arm(struct sim_world *w, uint32_t idx)
{
    const struct sim_op *op = &w->scenario.ops[idx];
    struct sim_request *req = &w->requests[op->request];
    if (op->trigger == 0 || req->armed_count == SIM_ARMED_MAX) {
        return false;
    }
    req->armed[req->armed_count++] = (uint16_t)idx;
    return true;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------- */

static void prepare_request(struct sim_world *w, uint32_t request, const struct sim_plan *plan)
{
    struct sim_request *req = &w->requests[request];
    *req = (struct sim_request){
        .plan = plan, .key = sim_random_mix(w->scenario.seed * 4096u + request + 1u) | 1u};
    for (uint32_t m = 0; m < SIM_MEMBERS; m++) {
        req->rooms[m] = SIM_NO_ROOM;
    }
}

void sim_ops_schedule(struct sim_world *w)
{
    w->request_count = w->scenario.request_count;
    for (uint32_t i = 0; i < w->scenario.op_count; i++) {
        const struct sim_op *op = &w->scenario.ops[i];
        if (op->kind == SIM_OP_REQUEST) { /* they come before all that is about them */
            prepare_request(w, i, &op->plan);
        }
        if (!op->is_off && !arm(w, i)) {
            sim_clock_at(&w->clock, w->clock.now_ns + op->at_ns, begin, w, i, 0);
        }
    }
    w->extra_count = 0;
}

uint32_t sim_request_extra(struct sim_world *w, const struct sim_plan *plan)
{
    if (w->extra_count == SIM_EXTRA_MAX) {
        return SIM_NO_ROOM;
    }
    w->extra_plans[w->extra_count] = *plan;
    uint32_t request = w->request_count++;
    prepare_request(w, request, &w->extra_plans[w->extra_count++]);
    start_request(w, request);
    return request;
}

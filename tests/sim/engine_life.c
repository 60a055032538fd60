/* Engines that die, freeze, leave and come back. */
#include "ring/codes.h"
#include "tests/sim/parts.h"

#define COME_BACK_NS (3 * SIM_MS)
#define LATEST_HANG_UP_NS (1 * SIM_MS)

static uint64_t luck_between(struct sim_world *w, uint64_t min, uint64_t max)
{
    return sim_random_between(&w->luck, min, max);
}

static void come_back(void *world, uint64_t host, uint64_t engine)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    sim_engine_start(w, (uint32_t)host, (uint32_t)engine);
    if (h->client_of[engine] == KVF_NONE && h->is_up && w->phase == SIM_FAULTS) {
        sim_clock_at(&w->clock, w->clock.now_ns + COME_BACK_NS, come_back, w, host, engine);
    }
}

/* Events name the place by host and client, and the engine by its incarnation. */
static struct sim_client *client_at(struct sim_world *w, uint64_t place, uint64_t incarnation,
                                    struct sim_host **ret_host)
{
    struct sim_host *h = &w->hosts[place / SIM_CLIENTS];
    struct sim_client *c = &h->clients[place % SIM_CLIENTS];
    *ret_host = h;
    return c->incarnation == incarnation ? c : NULL;
}

static uint64_t place_of(const struct sim_host *h, uint32_t client)
{
    return (uint64_t)h->idx * SIM_CLIENTS + client;
}

/* Its socket closes: its rooms are closed, which says nothing yet about what it still writes. */
static void hang_up(void *world, uint64_t place, uint64_t incarnation)
{
    struct sim_world *w = world;
    struct sim_host *h;
    struct sim_client *c = client_at(w, place, incarnation, &h);
    if (c == NULL || !c->is_used || c->is_closing) {
        return;
    }
    sim_note(w, SIM_ENGINE_HANG_UP, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, c->engine,
             place % SIM_CLIENTS);
    c->is_closing = true;
    c->close_reason = KVF_E_ENGINE_GONE;
    c->worker_epoch = 0;
    if (sim_has_plant(w, SIM_PLANT_HANG_UP_IS_REAPED)) {
        c->is_reaped_known = true;
    }
    sim_supervisor_sync(w, h);
}

static void reap(void *world, uint64_t place, uint64_t incarnation)
{
    struct sim_world *w = world;
    struct sim_host *h;
    struct sim_client *c = client_at(w, place, incarnation, &h);
    if (c == NULL || c->process != SIM_DYING) {
        return;
    }
    sim_note(w, SIM_ENGINE_REAP, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, c->engine,
             place % SIM_CLIENTS);
    c->process = SIM_REAPED;
    if (!c->is_used) { /* no supervisor knows of it */
        sim_engine_orphaned(w, h, (uint32_t)(place % SIM_CLIENTS));
        return;
    }
    hang_up(w, place, incarnation);
    c->is_reaped_known = true;
    sim_supervisor_sync(w, h);
}

static void close_rooms(struct sim_world *w, const struct sim_client *c)
{
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        if (c->room_of[slot] != SIM_NO_ROOM) {
            sim_oracle_closed(w, c->room_of[slot]);
        }
    }
}

static void kill_client(struct sim_world *w, struct sim_host *h, uint32_t client,
                        uint64_t reap_after_ns)
{
    struct sim_client *c = &h->clients[client];
    c->process = SIM_DYING;
    close_rooms(w, c);
    uint64_t latest_ns = reap_after_ns < LATEST_HANG_UP_NS ? reap_after_ns : LATEST_HANG_UP_NS;
    uint64_t now_ns = w->clock.now_ns;
    sim_clock_at(&w->clock, now_ns + luck_between(w, 0, latest_ns), hang_up, w,
                 place_of(h, client), c->incarnation);
    sim_clock_at(&w->clock, now_ns + reap_after_ns, reap, w, place_of(h, client),
                 c->incarnation);
}

void sim_engine_kill(struct sim_world *w, struct sim_host *h, uint32_t engine,
                     uint64_t reap_after_ns)
{
    uint32_t client = h->client_of[engine];
    if (client == KVF_NONE) {
        return;
    }
    w->figures.engine_deaths++;
    kill_client(w, h, client, reap_after_ns);
    h->client_of[engine] = KVF_NONE;
    sim_clock_at(&w->clock, w->clock.now_ns + luck_between(w, 10 * SIM_US, 2 * COME_BACK_NS),
                 come_back, w, h->idx, engine);
}

void sim_engine_orphaned(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    if (c->process == SIM_REAPED || c->process == SIM_ABSENT) {
        bool is_old_worker_there = !h->has_supervisor && h->worker == SIM_WORKER_KILLED;
        if (!is_old_worker_there) { /* else its memory is nobody's before that worker is reaped */
            sim_client_free(w, h, client);
        }
    } else if (c->has_detached) {
        /* A library that was leaving waits for the worker's end and then exits. */
        kill_client(w, h, client, SIM_MS);
    }
}

void sim_engine_detach(struct sim_world *w, struct sim_host *h, uint32_t engine)
{
    uint32_t client = h->client_of[engine];
    if (client == KVF_NONE) {
        return;
    }
    struct sim_client *c = &h->clients[client];
    if (c->process != SIM_RUNS || !c->is_used) {
        return;
    }
    c->has_detached = true;
    c->is_closing = true;
    c->close_reason = KVF_E_ENGINE_GONE;
    c->worker_epoch = 0;
    close_rooms(w, c);
    h->client_of[engine] = KVF_NONE;
    sim_supervisor_sync(w, h);
    sim_clock_at(&w->clock, w->clock.now_ns + COME_BACK_NS, come_back, w, h->idx, engine);
}

static void thaw(void *world, uint64_t place, uint64_t incarnation)
{
    struct sim_world *w = world;
    struct sim_host *h;
    struct sim_client *c = client_at(w, place, incarnation, &h);
    if (c != NULL && c->process == SIM_FROZEN) {
        sim_note(w, SIM_ENGINE_THAW, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, c->engine, 0);
        c->process = SIM_RUNS;
        sim_engine_look(w, h, (uint32_t)(place % SIM_CLIENTS));
    }
}

void sim_engine_freeze(struct sim_world *w, struct sim_host *h, uint32_t engine,
                       uint64_t for_ns)
{
    uint32_t client = h->client_of[engine];
    if (client == KVF_NONE || h->clients[client].process != SIM_RUNS) {
        return;
    }
    struct sim_client *c = &h->clients[client];
    sim_note(w, SIM_ENGINE_FREEZE, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, engine, 0);
    w->figures.engine_freezes++;
    c->process = SIM_FROZEN;
    sim_clock_at(&w->clock, w->clock.now_ns + for_ns, thaw, w, place_of(h, client),
                 c->incarnation);
}

/* Machines and supervisors: what they start, watch, end, and conclude from an end. Follows sidecar/supervisor_*.c;
 * the walk over a dead worker's rooms is the daemon's own (sidecar/reap.c). */
#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "sidecar/reap.h"
#include "tests/sim/parts.h"

#define LINK_MIN_NS (20 * SIM_US) /* a message between supervisor and worker */
#define LINK_MAX_NS (300 * SIM_US)
#define START_MIN_NS (300 * SIM_US)
#define START_MAX_NS (4 * SIM_MS)
#define ATTACH_MAX_NS (3 * SIM_MS)

static uint64_t luck_between(struct sim_world *w, uint64_t min, uint64_t max)
{
    return sim_random_between(&w->luck, min, max);
}

static void at(struct sim_world *w, uint64_t after_ns, sim_event_fn fn, uint64_t a, uint64_t b)
{
    sim_clock_at(&w->clock, w->clock.now_ns + after_ns, fn, w, a, b);
}

static void note(struct sim_world *w, const struct sim_host *h, enum sim_happening kind,
                 uint64_t a, uint64_t b)
{
    sim_note(w, kind, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, a, b);
}

/* ---- what the worker is told ---------------------------------------------------------------------------------- */

static void tell_client(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    if (!c->is_used) {
        return;
    }
    if (!c->is_closing && c->worker_epoch != h->epoch) {
        /* Rooms of earlier epochs are published, segment and regions are with the worker. */
        c->worker_epoch = h->epoch;
        c->was_served = true;
    }
    if (c->is_closing) {
        sim_worker_client_closed(w, h, client);
    }
    if (c->is_reaped_known) {
        sim_worker_client_reaped(w, h, client);
    }
}

/* All clients with their groups before anything else happens: for a rank that was registered anew nobody may
 * answer while a room of the one before it is not taken over yet. */
static void tell_all(struct sim_world *w, struct sim_host *h)
{
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        if (h->clients[i].is_used && !h->clients[i].is_in_core) {
            sim_worker_take_client(w, h, i);
        }
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        tell_client(w, h, i);
    }
}

static void sync(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    h->is_syncing = false;
    if (h->life != life || !h->has_supervisor || !sim_host_serves(h)) {
        return;
    }
    tell_all(w, h);
    sim_worker_kick(w, h);
}

void sim_supervisor_sync(struct sim_world *w, struct sim_host *h)
{
    if (!h->is_syncing && h->has_supervisor && sim_host_serves(h)) {
        h->is_syncing = true;
        at(w, luck_between(w, LINK_MIN_NS, LINK_MAX_NS), sync, h->idx, h->life);
    }
}

/* A dead engine's opens that no worker will read: nobody was told of their pages, and nobody looks at their words. But
 * a device may know the pages: their memory must stay. */
static void check_unread(struct sim_world *w, const struct sim_client *c)
{
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        uint32_t room = c->room_of[slot];
        if (room == SIM_NO_ROOM || sim_room_at(w, room)->word != 0) {
            continue;
        }
        const struct sim_room *r = sim_room_at(w, room);
        if (r->leases[KVF_LEASE_GPU] + r->leases[KVF_LEASE_DIRECT_IO] > 0) {
            sim_fail(
                w, SIM_UNSAFE_LEASE, room, SIM_NO_ROOM,
                "memory is let go under a device lease of room %u, whose open was never read",
                room);
        }
    }
}

void sim_client_quiet(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    check_unread(w, c);
    for (uint32_t i = 0; i < SIM_REGIONS; i++) {
        for (uint32_t page = 0; page < c->regions[i].page_count; page++) {
            const struct sim_page *p = &c->regions[i].pages[page];
            if (p->owner != SIM_NO_ROOM || p->readers != 0 || c->regions[i].owners[page] != 0) {
                sim_fail(w, SIM_NOT_CLEAN, p->owner, sim_page_id(h->idx, client, i, page),
                         "client %u of h%u is called quiet while page %u is lent", client,
                         h->idx, page);
            }
        }
    }
    sim_client_free(w, h, client);
}

/* ---- the worker's start ---------------------------------------------------------------------------------------- */

static void worker_serves(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life != life || h->worker != SIM_WORKER_STARTING) {
        return;
    }
    sim_worker_create(w, h);
    h->worker = SIM_WORKER_SERVING;
    sim_ranks_tell_departed(w, h);
    note(w, h, SIM_WORKER_SERVES, h->worker_starts, h->epoch);
    sim_supervisor_sync(w, h);
}

static void worker_start(void *world, uint64_t host, uint64_t supervisor_life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (!h->has_supervisor || h->supervisor_life != supervisor_life ||
        h->worker != SIM_WORKER_NONE) {
        return;
    }
    h->worker = SIM_WORKER_STARTING;
    h->life++;
    h->worker_starts++;
    h->epoch = (h->supervisor_id & ~UINT64_C(0xffffff)) | h->worker_starts;
    note(w, h, SIM_WORKER_START, h->worker_starts, h->epoch);
    at(w, luck_between(w, START_MIN_NS, START_MAX_NS), worker_serves, h->idx, h->life);
}

/* ---- and its end ------------------------------------------------------------------------------------------------ */

static void close_epochs(struct sim_host *h)
{
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        h->clients[i].worker_epoch = 0;
    }
}

static void reap_rooms(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        if (kvf_reap_room(&c->segment, slot, c->is_reaped_known, NULL) != KVF_REAP_NOTHING) {
            sim_oracle_word(w, h->idx, client, slot, NULL);
            sim_engine_see(w, h, client, slot);
        }
    }
}

static void reap_all_rooms(struct sim_world *w, struct sim_host *h)
{
    close_epochs(h);
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        if (h->clients[i].is_used) {
            reap_rooms(w, h, i);
        }
    }
}

static void stand_still_ends(struct sim_world *w, struct sim_host *h)
{
    if (h->is_frozen) {
        h->is_frozen = false;
        h->frozen_total_ns += w->clock.now_ns - h->frozen_since_ns;
    }
}

/* Without a supervisor the libraries look at the worker's pidfd themselves. */
static void libraries_look(void *world, uint64_t host, uint64_t epoch)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &h->clients[i];
        if (c->process == SIM_RUNS && c->is_supervisor_gone) {
            sim_library_conclude(w, h, i, epoch);
        }
    }
}

static void supervisor_start(void *world, uint64_t host, uint64_t supervisor_life);

static void worker_gone(struct sim_world *w, struct sim_host *h)
{
    stand_still_ends(w, h);
    h->worker = SIM_WORKER_NONE;
    h->life++;
    h->is_syncing = false;
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        h->clients[i].is_in_core = false;
    }
}

static void worker_reap(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life != life || h->worker != SIM_WORKER_KILLED) {
        return;
    }
    note(w, h, SIM_WORKER_REAP, h->worker_starts, h->epoch);
    sim_fabric_reap(w->fabric, h->idx);
    sim_control_end_all(w, h, false);
    sim_worker_destroy(w, h);
    worker_gone(w, h);
    if (h->has_supervisor) {
        reap_all_rooms(w, h);
        at(w, luck_between(w, 0, SIM_MS), worker_start, h->idx, h->supervisor_life);
        return;
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        if (h->clients[i].process == SIM_REAPED) {
            sim_engine_orphaned(w, h, i);
        }
    }
    at(w, luck_between(w, 0, ATTACH_MAX_NS), libraries_look, h->idx, h->epoch);
}

void sim_worker_kill(struct sim_world *w, uint32_t host, uint64_t reap_after_ns)
{
    struct sim_host *h = &w->hosts[host];
    if (h->worker != SIM_WORKER_SERVING) {
        return;
    }
    note(w, h, SIM_WORKER_KILL, h->worker_starts, reap_after_ns);
    w->figures.worker_kills++;
    sim_oracle_worker_lost(w, host);
    sim_fabric_kill(w->fabric, host);
    h->worker = SIM_WORKER_KILLED;
    if (sim_has_plant(w, SIM_PLANT_REAP_AT_KILL)) {
        reap_all_rooms(w, h);
    }
    at(w, reap_after_ns + 10 * SIM_US, worker_reap, host, h->life);
}

/* ---- standing still ---------------------------------------------------------------------------------------------- */

static void watchdog(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    bool is_still = h->life == life && h->worker == SIM_WORKER_SERVING && h->is_frozen &&
                    w->clock.now_ns - h->frozen_since_ns >= w->watchdog_ns;
    if (is_still && h->has_supervisor && !sim_has_plant(w, SIM_PLANT_NO_WATCHDOG)) {
        w->figures.watchdog_kills++;
        close_epochs(h);
        sim_worker_kill(w, (uint32_t)host, luck_between(w, 0, 20 * SIM_MS));
    }
}

static void thaw(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life != life || !h->is_frozen || h->worker != SIM_WORKER_SERVING) {
        return;
    }
    stand_still_ends(w, h);
    note(w, h, SIM_WORKER_THAW, 0, 0);
    sim_fabric_thaw(w->fabric, h->idx);
    sim_control_resume(w);
    sim_supervisor_sync(w, h);
    h->is_kicked = false;
    h->timer_ns = KVF_NO_TIME;
    sim_worker_kick(w, h);
}

void sim_worker_freeze(struct sim_world *w, uint32_t host, uint64_t for_ns)
{
    struct sim_host *h = &w->hosts[host];
    if (h->is_frozen || h->worker != SIM_WORKER_SERVING) {
        return;
    }
    note(w, h, SIM_WORKER_FREEZE, for_ns, 0);
    w->figures.worker_freezes++;
    h->is_frozen = true;
    h->frozen_since_ns = w->clock.now_ns;
    sim_fabric_freeze(w->fabric, host);
    at(w, for_ns, thaw, host, h->life);
    at(w, w->watchdog_ns + luck_between(w, 0, w->watchdog_ns / 4u), watchdog, host, h->life);
}

void sim_fence_hang(struct sim_world *w, uint32_t host, uint64_t for_ns)
{
    struct sim_host *h = &w->hosts[host];
    if (h->worker == SIM_WORKER_SERVING) {
        w->figures.fences_hung++;
        sim_fabric_fence_hang(w->fabric, host, w->clock.now_ns + for_ns);
    }
}

static void escalate(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life == life && h->has_supervisor && h->worker == SIM_WORKER_SERVING) {
        close_epochs(h);
        sim_worker_kill(w, (uint32_t)host, luck_between(w, 0, 50 * SIM_MS));
    }
}

void sim_supervisor_escalated(struct sim_world *w, struct sim_host *h)
{
    if (!sim_has_plant(w, SIM_PLANT_NO_WATCHDOG)) {
        at(w, luck_between(w, LINK_MIN_NS, LINK_MAX_NS), escalate, h->idx, h->life);
    }
}

/* ---- supervisors -------------------------------------------------------------------------------------------------- */

static void re_attach(void *world, uint64_t place, uint64_t supervisor_life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[place / SIM_CLIENTS];
    uint32_t client = (uint32_t)(place % SIM_CLIENTS);
    struct sim_client *c = &h->clients[client];
    if (!h->has_supervisor || h->supervisor_life != supervisor_life || c->is_used ||
        c->process == SIM_ABSENT || c->process == SIM_DYING || c->process == SIM_REAPED) {
        return;
    }
    if (c->process == SIM_FROZEN) {
        at(w, ATTACH_MAX_NS, re_attach, place, supervisor_life);
        return;
    }
    c->is_used = true;
    c->is_attached = true;
    c->is_supervisor_gone = false;
    c->worker_epoch = 0;
    reap_rooms(w, h, client); /* its earlier worker was reaped before this supervisor began */
    sim_supervisor_sync(w, h);
}

static void supervisor_start(void *world, uint64_t host, uint64_t supervisor_life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (!h->is_up || h->has_supervisor || h->supervisor_life != supervisor_life) {
        return;
    }
    if (h->worker != SIM_WORKER_NONE) { /* it registers nothing until that process has ended */
        at(w, SIM_MS, supervisor_start, host, supervisor_life);
        return;
    }
    h->has_supervisor = true;
    h->supervisor_life++;
    h->supervisor_id = sim_random_next(&w->luck) | UINT64_C(1) << 63;
    h->worker_starts = 0;
    note(w, h, SIM_SUPERVISOR_START, h->supervisor_id >> 24, 0);
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        at(w, luck_between(w, 0, ATTACH_MAX_NS), re_attach, host * SIM_CLIENTS + i,
           h->supervisor_life);
    }
    worker_start(w, host, h->supervisor_life);
}

/* Its worker exits with it; its clients hold the worker's pidfd. */
void sim_supervisor_kill(struct sim_world *w, uint32_t host, uint64_t for_ns)
{
    struct sim_host *h = &w->hosts[host];
    if (!h->has_supervisor || h->worker == SIM_WORKER_STARTING) {
        return;
    }
    note(w, h, SIM_SUPERVISOR_KILL, for_ns, 0);
    w->figures.supervisor_kills++;
    h->has_supervisor = false;
    h->supervisor_life++;
    sim_worker_kill(w, host, luck_between(w, 0, 5 * SIM_MS));
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &h->clients[i];
        if (c->process == SIM_ABSENT && !c->is_used) {
            continue;
        }
        c->is_used = false;
        c->is_attached = false;
        c->is_supervisor_gone = true;
        sim_engine_orphaned(w, h, i);
    }
    if (h->worker == SIM_WORKER_NONE) {
        at(w, luck_between(w, 0, ATTACH_MAX_NS), libraries_look, host, h->epoch);
    }
    at(w, for_ns + SIM_MS, supervisor_start, host, h->supervisor_life);
}

/* ---- SIGTERM --------------------------------------------------------------------------------------------- */

#define LAST_WORDS_NS (40 * SIM_MS)

static void stop_ends(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    if (w->hosts[host].life == life && w->hosts[host].has_supervisor) {
        sim_supervisor_kill(w, (uint32_t)host, LAST_WORDS_NS);
    }
}

static void grace_is_over(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life != life || h->worker != SIM_WORKER_SERVING) {
        return;
    }
    if (sim_worker_is_awake(h)) {
        kvf_core_shutdown(h->core, sim_host_clock(h), true);
        sim_worker_after(w, h);
    }
    at(w, LAST_WORDS_NS, stop_ends, host, life);
}

void sim_supervisor_stop(struct sim_world *w, uint32_t host, uint64_t grace_ns)
{
    struct sim_host *h = &w->hosts[host];
    if (!h->has_supervisor || h->worker != SIM_WORKER_SERVING || h->is_frozen) {
        return;
    }
    w->figures.stops++;
    kvf_core_shutdown(h->core, sim_host_clock(h), false);
    sim_worker_after(w, h);
    at(w, grace_ns, grace_is_over, host, h->life);
}

/* ---- machines ------------------------------------------------------------------------------------------------------ */

static void engines_start(void *world, uint64_t host, uint64_t engine)
{
    sim_engine_start(world, (uint32_t)host, (uint32_t)engine);
}

static void boot(void *world, uint64_t host, uint64_t machine_life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->is_up || h->machine_life != machine_life) {
        return;
    }
    h->is_up = true;
    sim_fabric_host_up(w->fabric, h->idx);
    sim_control_resume(w);
    supervisor_start(w, host, h->supervisor_life);
    for (uint32_t i = 0; i < SIM_ENGINES; i++) {
        at(w, luck_between(w, 0, SIM_MS), engines_start, host, i);
    }
}

void sim_host_boot(struct sim_world *w, uint32_t host)
{
    boot(w, host, w->hosts[host].machine_life);
}

void sim_host_crash(struct sim_world *w, uint32_t host, uint64_t for_ns)
{
    struct sim_host *h = &w->hosts[host];
    if (!h->is_up) {
        return;
    }
    note(w, h, SIM_HOST_CRASH, for_ns, 0);
    w->figures.host_crashes++;
    h->is_up = false;
    h->machine_life++;
    h->has_supervisor = false;
    h->supervisor_life++;
    sim_fabric_host_down(w->fabric, host);
    sim_control_end_all(w, h, true);
    sim_worker_destroy(w, h);
    worker_gone(w, h);
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        if (h->clients[i].process != SIM_ABSENT || h->clients[i].is_used) {
            sim_client_free(w, h, i);
        }
    }
    at(w, for_ns + SIM_MS, boot, host, h->machine_life);
}

/* Work under external leases: a copy by the engine's own threads (cpu), a device (gpu), a restore from a disk
 * (direct-io). Each really touches the room's pages in virtual time. The engine's end stops its threads once it is
 * reaped, and neither the device nor the disk. */
#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "tests/sim/parts.h"

#define TOUCHES 5u
#define ASK_AGAIN_NS (1 * SIM_MS)

static void take_step(void *world, uint64_t idx, uint64_t step);

static void next_step(struct sim_world *w, uint64_t idx, uint64_t step, uint64_t after_ns)
{
    sim_clock_at(&w->clock, w->clock.now_ns + after_ns, take_step, w, idx, step);
}

void sim_lease_start(struct sim_world *w, uint32_t room, uint32_t kind, uint64_t for_ns)
{
    struct sim_room *r = sim_room_at(w, room);
    struct sim_client *c = &w->hosts[r->host].clients[r->client];
    if (r->is_seen || r->is_moot || c->process != SIM_RUNS || c->room_of[r->slot] != room ||
        w->lease_count == SIM_LEASES_MAX) {
        return;
    }
    if (kvf_lease_take(&c->intents[r->slot].lease_word, r->generation,
                       (enum kvf_lease_kind)kind) != 0) {
        return; /* closed: the work is not begun */
    }
    r->leases[kind]++;
    r->is_bound_off = true;
    w->figures.leases++;
    sim_note(w, SIM_LEASE_TAKE, r->host, room, SIM_NO_ROOM, kind, for_ns);
    w->leases[w->lease_count] = (struct sim_lease){.is_used = true,
                                                   .kind = (uint8_t)kind,
                                                   .host = r->host,
                                                   .client = r->client,
                                                   .incarnation = c->incarnation,
                                                   .room = room,
                                                   .step_ns = for_ns / (TOUCHES + 1u) + 1u};
    next_step(w, w->lease_count, 0, w->leases[w->lease_count].step_ns);
    w->lease_count++;
}

static void give_back(struct sim_world *w, struct sim_lease *l, struct sim_client *c)
{
    struct sim_room *r = sim_room_at(w, l->room);
    struct sim_host *h = &w->hosts[l->host];
    l->is_used = false;
    r->leases[l->kind]--;
    sim_note(w, SIM_LEASE_RETURN, l->host, l->room, SIM_NO_ROOM, l->kind, 0);
    if (kvf_lease_return(&c->intents[r->slot].lease_word, r->generation,
                         (enum kvf_lease_kind)l->kind) == 1) {
        c->dirty |= 1u << r->slot;
        sim_worker_kick(w, h);
        sim_engine_look(w, h,
                        l->client); /* with no daemon left, it was the last thing to wait for */
    }
}

static void take_step(void *world, uint64_t idx, uint64_t step)
{
    struct sim_world *w = world;
    struct sim_lease *l = &w->leases[idx];
    struct sim_client *c = &w->hosts[l->host].clients[l->client];
    if (!l->is_used || c->incarnation != l->incarnation) {
        return; /* its memory is gone with its machine */
    }
    bool is_thread = l->kind == KVF_LEASE_CPU;
    if (c->process == SIM_FROZEN && (is_thread || step == TOUCHES)) {
        next_step(w, idx, step, ASK_AGAIN_NS);
        return;
    }
    if (is_thread && c->process == SIM_REAPED) {
        return;
    }
    if (step < TOUCHES) {
        sim_oracle_touch(w, l->room, (uint32_t)step);
        next_step(w, idx, step + 1u, l->step_ns);
    } else if (c->process == SIM_RUNS) {
        give_back(w, l, c);
    }
}

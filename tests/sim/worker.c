/* A worker: its loop around the core, and what it does for engines. Follows sidecar/worker.c, worker_core.c, clients.c
 * and client_rooms.c step by step, so that a history found here is one of the real daemon. */
#include <errno.h>
#include <string.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "sidecar/reap.h"
#include "tests/sim/parts.h"

#define TURN_MIN_NS (1 * SIM_US)
#define TURN_MAX_NS (12 * SIM_US)
#define HICCUP_NS (1 * SIM_MS)
#define ACTIONS_MAX 4096u

static void take_actions(struct sim_world *w, struct sim_host *h);

/* ---- birth and end ------------------------------------------------------------------------------------------ */

void sim_worker_create(struct sim_world *w, struct sim_host *h)
{
    struct kvf_core_config config = w->config;
    struct sim_random luck = sim_random_stream(w->scenario.seed, 1000u + h->idx,
                                               (h->supervisor_id << 8) + h->worker_starts);
    uint64_t seed[4];
    for (int i = 0; i < 4; i++) {
        seed[i] = sim_random_next(&luck) | 1u;
    }
    config.supervisor_id = h->supervisor_id;
    config.worker_starts = h->worker_starts;
    config.name[0] = 'h';
    config.name[1] = (char)('0' + h->idx);
    sim_core_make(w, h, &config, seed);
    h->timer_ns = KVF_NO_TIME;
    h->is_kicked = false;
    h->post_lane_count = 0;
    memset(h->is_post_lane, 0, sizeof h->is_post_lane);
    memset(h->lane_epochs, 0, sizeof h->lane_epochs);
    memset(h->ends, 0, sizeof h->ends);
    for (uint32_t i = 0; i < SIM_PEERS; i++) {
        h->conn_of_peer[i] = KVF_NONE;
    }
    int err = sim_lanes_create(w, h);
    if (err != 0) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM, "h%u gets no transport: %d",
                 h->idx, err);
    }
}

void sim_worker_destroy(struct sim_world *w, struct sim_host *h)
{
    if (h->core != NULL) {
        sim_count_core(w, h);
        h->core = NULL;
    }
    if (h->transport != NULL) {
        kvf_sim_ops.close(h->transport);
        h->transport = NULL;
    }
}

/* ---- the loop ------------------------------------------------------------------------------------------------ */

static void turn(void *world, uint64_t host, uint64_t life);
static void timer(void *world, uint64_t host, uint64_t life);

void sim_worker_kick(struct sim_world *w, struct sim_host *h)
{
    if (h->is_kicked || !sim_worker_is_awake(h)) {
        return;
    }
    h->is_kicked = true;
    uint64_t after_ns = sim_random_between(&w->luck, TURN_MIN_NS, TURN_MAX_NS);
    if (sim_random_chance(&w->luck, 3000)) {
        after_ns = sim_random_below(&w->luck, HICCUP_NS);
    }
    sim_clock_at(&w->clock, w->clock.now_ns + after_ns, turn, w, h->idx, h->life);
}

void sim_worker_after(struct sim_world *w, struct sim_host *h)
{
    if (!w->scenario.are_actions_late) {
        take_actions(w, h);
    }
    sim_worker_kick(w, h);
}

static void set_timer(struct sim_world *w, struct sim_host *h)
{
    uint64_t due_ns = kvf_core_deadline(h->core);
    if (due_ns == KVF_NO_TIME) {
        return;
    }
    uint64_t at_ns = due_ns > h->clock_lead_ns ? due_ns - h->clock_lead_ns : 0;
    at_ns = at_ns < w->clock.now_ns ? w->clock.now_ns : at_ns;
    if (at_ns < h->timer_ns) {
        h->timer_ns = at_ns;
        sim_clock_at(&w->clock, at_ns, timer, w, h->idx, h->life);
    }
}

static void timer(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life == life && h->timer_ns <= w->clock.now_ns) {
        h->timer_ns = KVF_NO_TIME;
        sim_worker_kick(w, h);
    }
}

/* ---- commands ------------------------------------------------------------------------------------------------ */

/* Whatever the ring's order was, an abort that was called before this OPEN is read ends it at once. */
static uint32_t abort_of(struct sim_client *c, uint32_t slot, uint64_t generation)
{
    uint64_t cell = atomic_load_explicit(&c->intents[slot].abort_cell, memory_order_acquire);
    if ((cell & KVF_ABORT_SET) == 0 || cell >> KVF_GENERATION_SHIFT != generation) {
        return 0;
    }
    c->slots[slot].abort_seen = cell;
    uint32_t reason = (uint32_t)(cell & KVF_ABORT_REASON_MASK);
    return reason == 0 ? KVF_E_ABORTED : reason;
}

static bool has_ended(const struct sim_client *c, uint32_t slot, uint64_t generation)
{
    uint64_t word = atomic_load_explicit(&c->rooms[slot].word, memory_order_relaxed);
    return kvf_word_generation(word) > generation ||
           (kvf_word_generation(word) == generation && kvf_word_is_drained(word));
}

static void take_open(struct sim_world *w, struct sim_host *h, uint32_t client,
                      const struct sim_cmd *cmd)
{
    struct sim_client *c = &h->clients[client];
    bool is_blind = sim_has_plant(w, SIM_PLANT_OLD_EPOCH);
    if (!is_blind && has_ended(c, cmd->slot, cmd->generation)) {
        w->figures.stale_commands++;
        return;
    }
    struct kvf_core_open open = {.client = client,
                                 .slot = cmd->slot,
                                 .generation = cmd->generation,
                                 .label = cmd->label,
                                 .key = cmd->key,
                                 .group = cmd->group,
                                 .abort_reason = abort_of(c, cmd->slot, cmd->generation),
                                 .is_old_epoch = cmd->epoch != h->epoch && !is_blind,
                                 .writers = cmd->writers,
                                 .writer_count = cmd->writer_count,
                                 .runs = cmd->runs,
                                 .run_count = cmd->run_count,
                                 .region = cmd->region,
                                 .aux_region = cmd->aux_region,
                                 .sink_count = cmd->sinks};
    atomic_store_explicit(&c->rooms[cmd->slot].epoch, h->epoch, memory_order_relaxed);
    sim_note(w, SIM_OPEN_READ, h->idx, cmd->room, SIM_NO_ROOM, open.abort_reason,
             open.is_old_epoch);
    int err = cmd->op == KVF_CMD_OPEN_SINK
                  ? kvf_core_open_sink(h->core, sim_host_clock(h), &open)
                  : kvf_core_open_source(h->core, sim_host_clock(h), &open);
    if (err == 0) {
        c->slots[cmd->slot].generation = cmd->generation;
    }
}

static void take_submit(struct sim_world *w, struct sim_host *h, uint32_t client,
                        const struct sim_cmd *cmd)
{
    if (cmd->epoch != h->epoch) {
        w->figures.stale_commands++;
        return;
    }
    struct kvf_core_submit submit = {.client = client,
                                     .slot = cmd->slot,
                                     .generation = cmd->generation,
                                     .start = cmd->start,
                                     .is_last = cmd->is_last,
                                     .runs = cmd->runs,
                                     .run_count = cmd->run_count};
    sim_note(w, SIM_SUBMIT_READ, h->idx, cmd->room, SIM_NO_ROOM, cmd->start, cmd->is_last);
    (void)kvf_core_submit(h->core, sim_host_clock(h), &submit);
}

static void tell_leases(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t slot,
                        uint64_t generation, uint64_t word)
{
    bool is_blind = sim_has_plant(w, SIM_PLANT_LEASE_IGNORED);
    kvf_core_leases(h->core, sim_host_clock(h), client, slot, generation,
                    is_blind ? 0 : kvf_lease_count(word, KVF_LEASE_CPU),
                    is_blind ? 0 : kvf_lease_count(word, KVF_LEASE_GPU),
                    is_blind ? 0 : kvf_lease_count(word, KVF_LEASE_DIRECT_IO));
}

static void take_dirty(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t slot)
{
    struct sim_client *c = &h->clients[client];
    struct kvf_intent_shm *intent = &c->intents[slot];
    uint64_t generation = c->slots[slot].generation;
    uint64_t cell = atomic_load_explicit(&intent->abort_cell, memory_order_acquire);
    if ((cell & KVF_ABORT_SET) != 0 && cell >> KVF_GENERATION_SHIFT == generation &&
        cell != c->slots[slot].abort_seen) {
        c->slots[slot].abort_seen = cell;
        kvf_core_abort(h->core, sim_host_clock(h), client, slot, generation,
                       (uint32_t)(cell & KVF_ABORT_REASON_MASK));
    }
    uint64_t leases = atomic_load_explicit(&intent->lease_word, memory_order_acquire);
    if ((leases & KVF_LEASE_CLOSED) != 0 && kvf_word_generation(leases) == generation) {
        tell_leases(w, h, client, slot, generation, leases);
    }
}

static void serve_client(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    while (c->is_in_core && !c->is_closed_told && c->cmd_head != c->cmd_tail) {
        const struct sim_cmd *cmd = &c->cmds[c->cmd_head % SIM_CMDS];
        if (cmd->op == KVF_CMD_SUBMIT) {
            take_submit(w, h, client, cmd);
        } else {
            take_open(w, h, client, cmd);
        }
        c->cmd_head++;
    }
    uint32_t dirty = c->is_in_core ? c->dirty : 0;
    c->dirty &= ~dirty;
    for (; dirty != 0; dirty &= dirty - 1u) {
        take_dirty(w, h, client, (uint32_t)__builtin_ctz(dirty));
    }
}

/* ---- clients come and go -------------------------------------------------------------------------------------- */

/* Drained, and other ranks may still ask for it. */
static bool is_of_a_group(const struct sim_client *c, uint32_t slot)
{
    uint64_t generation =
        atomic_load_explicit(&c->intents[slot].generation, memory_order_acquire);
    uint64_t word = atomic_load_explicit(&c->rooms[slot].word, memory_order_relaxed);
    return generation != 0 && kvf_word_generation(word) == generation &&
           kvf_word_is_drained(word) &&
           atomic_load_explicit(&c->intents[slot].group, memory_order_relaxed) != 0;
}

static void adopt_room(struct sim_host *h, uint32_t client, uint32_t slot)
{
    struct sim_client *c = &h->clients[client];
    uint64_t word = atomic_load_explicit(&c->rooms[slot].word, memory_order_relaxed);
    struct kvf_core_adopt adopt = {
        .client = client,
        .slot = slot,
        .generation = kvf_word_generation(word),
        .key = atomic_load_explicit(&c->intents[slot].key, memory_order_relaxed),
        .group = atomic_load_explicit(&c->intents[slot].group, memory_order_relaxed),
        .outcome = (uint8_t)kvf_word_outcome(word),
        .proof = (uint8_t)kvf_word_proof(word),
        .is_drained = kvf_word_is_drained(word),
        .is_visible = (word & KVF_WORD_VISIBLE) != 0,
        .is_quarantined = kvf_word_phase(word) == KVF_PHASE_QUARANTINED,
        .is_group_settled = (word & KVF_WORD_GROUP_WAITS) == 0,
        .reason = atomic_load_explicit(&c->rooms[slot].reason, memory_order_relaxed)};
    if (kvf_core_adopt(h->core, sim_host_clock(h), &adopt) == 0) {
        c->slots[slot].generation = adopt.generation;
    }
}

/* The walk of sidecar/client_rooms.c over a segment that an earlier worker may have served. */
static void adopt_rooms(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    for (uint32_t i = 0; i < SIM_KEYS_MAX; i++) {
        if (c->keys[i].group != 0) {
            (void)kvf_core_group_key(h->core, client, i, c->keys[i].group, c->keys[i].key);
        }
    }
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        enum kvf_reap reap = kvf_reap_room(&c->segment, slot, false, NULL);
        if (reap != KVF_REAP_NOTHING) {
            sim_oracle_word(w, h->idx, client, slot, NULL);
        }
        if (reap == KVF_REAP_LEASED || is_of_a_group(c, slot)) {
            adopt_room(h, client, slot);
        }
        sim_engine_see(w, h, client, slot);
    }
}

void sim_worker_take_client(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    memset(c->slots, 0, sizeof c->slots);
    c->is_in_core = true;
    c->is_closed_told = false;
    c->is_reaped_told = false;
    int err = kvf_core_client_add(h->core, client, SIM_SLOTS);
    if (err == 0) {
        adopt_rooms(w, h, client);
        sim_ranks_tell(w, h, client);
    }
    for (uint32_t i = 0; i < SIM_REGIONS && err == 0; i++) {
        struct sim_region *reg = &c->regions[i];
        memset(reg->owners, 0, sizeof reg->owners);
        err = kvf_core_region_add(h->core, client, reg->handle, reg->page_count, 1, &reg->plane,
                                  reg->owners);
        reg->key = w->scenario.traffic == SIM_VERBS
                       ? sim_fabric_register(w->fabric, h->idx, client, reg->handle)
                       : 0;
        if (err == 0 && reg->key != 0) {
            err = kvf_core_region_keys(h->core, client, reg->handle, 0, &reg->key, 1);
        }
    }
    if (err != 0) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "h%u: client %u is not taken by its worker: %d", h->idx, client, err);
    }
}

/* As kvf_client_has_unread_leases of sidecar/client_rooms.c. */
static bool has_unread_leases(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    bool has_leases = false;
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        uint64_t generation =
            atomic_load_explicit(&c->intents[slot].generation, memory_order_acquire);
        uint64_t leases = 0;
        if (generation == 0 || generation == c->slots[slot].generation ||
            has_ended(c, slot, generation) ||
            kvf_lease_close(&c->intents[slot].lease_word, generation, &leases) != 0) {
            continue;
        }
        bool has_device = kvf_lease_count(leases, KVF_LEASE_GPU) > 0 ||
                          kvf_lease_count(leases, KVF_LEASE_DIRECT_IO) > 0;
        if (has_device && c->is_reaped_told) {
            (void)kvf_reap_room(&c->segment, slot, true, NULL);
            if (c->room_of[slot] !=
                SIM_NO_ROOM) { /* the core, and so its group, never knew it */
                sim_room_at(w, c->room_of[slot])->is_stillborn = true;
            }
            sim_oracle_word(w, h->idx, client, slot, NULL);
        }
        has_leases = has_leases || has_device ||
                     (!c->is_reaped_told && kvf_lease_count(leases, KVF_LEASE_CPU) > 0);
    }
    return has_leases;
}

static void check_quiet(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    if (!c->is_in_core || !c->is_closed_told || !kvf_core_client_is_quiet(h->core, client) ||
        has_unread_leases(w, h, client)) {
        return;
    }
    kvf_core_client_remove(h->core, client);
    for (uint32_t i = 0; i < SIM_REGIONS; i++) {
        if (c->regions[i].key != 0) {
            sim_fabric_deregister(w->fabric, h->idx, c->regions[i].key);
        }
    }
    for (uint32_t slot = 0; slot < SIM_SLOTS && !c->is_reaped_told; slot++) {
        uint64_t before = atomic_load_explicit(&c->rooms[slot].word, memory_order_relaxed);
        kvf_reap_unread(&c->segment, slot, c->close_reason);
        if (atomic_load_explicit(&c->rooms[slot].word, memory_order_relaxed) != before) {
            sim_oracle_word(w, h->idx, client, slot, NULL);
            sim_engine_see(w, h, client, slot);
        }
    }
    c->is_in_core = false;
    sim_ranks_depart(w, h, client);
    sim_note(w, SIM_CLIENT_QUIET, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, client, 0);
    sim_client_quiet(w, h, client);
}

void sim_worker_client_closed(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    if (!c->is_closed_told) {
        c->is_closed_told = true;
        kvf_core_client_close(h->core, sim_host_clock(h), client, c->close_reason);
        sim_worker_after(w, h);
    }
}

void sim_worker_client_reaped(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    if (c->is_reaped_told) {
        return;
    }
    c->is_reaped_told = true;
    sim_worker_client_closed(w, h, client);
    for (uint32_t slot = 0; slot < SIM_SLOTS && sim_has_plant(w, SIM_PLANT_DEVICE_LEASE_FREED);
         slot++) {
        kvf_core_leases(h->core, sim_host_clock(h), client, slot, c->slots[slot].generation, 0,
                        0, 0);
    }
    kvf_core_client_reaped(h->core, sim_host_clock(h), client);
    (void)has_unread_leases(w, h, client); /* shows what is in quarantine */
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        uint32_t room = c->room_of[slot];
        if (room != SIM_NO_ROOM && sim_room_at(w, room)->word == 0) {
            sim_oracle_moot(
                w, room); /* its open will not be read, and nobody waits for an answer */
        }
    }
    sim_worker_after(w, h);
}

/* ---- actions --------------------------------------------------------------------------------------------------- */

static void close_leases(struct sim_world *w, struct sim_host *h, const struct kvf_action *a)
{
    struct sim_client *c = &h->clients[a->client];
    uint64_t word = 0;
    if (kvf_lease_close(&c->intents[a->slot].lease_word, a->generation, &word) != 0) {
        word = 0;
    }
    sim_note(w, SIM_LEASE_CLOSE, h->idx, c->room_of[a->slot], SIM_NO_ROOM,
             word & (KVF_LEASE_CLOSED - 1u), 0);
    tell_leases(w, h, a->client, a->slot, a->generation, word);
}

static void publish(struct sim_world *w, struct sim_host *h, const struct kvf_action *a)
{
    struct kvf_core_room_view view;
    struct kvf_room_shm *room = &h->clients[a->client].rooms[a->slot];
    kvf_core_room_view(h->core, a->client, a->slot, &view);
    atomic_store_explicit(&room->reason, view.reason, memory_order_relaxed);
    atomic_store_explicit(&room->unproven, view.unproven, memory_order_relaxed);
    atomic_store_explicit(&room->word, view.word, memory_order_release);
    sim_oracle_word(w, h->idx, a->client, a->slot, &view);
    sim_engine_see(w, h, a->client, a->slot);
}

static void act(struct sim_world *w, struct sim_host *h, const struct kvf_action *a)
{
    switch (a->kind) {
    case KVF_ACT_FENCE:
        w->figures.fences++;
        sim_note(w, SIM_FENCE, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, a->lane, a->epoch);
        h->ends[a->lane].epoch = 0;
        kvf_sim_ops.fence(h->transport, a->lane, a->epoch);
        return;
    case KVF_ACT_DETACH:
        kvf_sim_ops.detach(h->transport, a->lane, a->cookie);
        return;
    case KVF_ACT_CLOSE_LEASES:
        close_leases(w, h, a);
        return;
    case KVF_ACT_PUBLISH:
        publish(w, h, a);
        return;
    case KVF_ACT_CONNECT:
        sim_control_connect(w, h, a->peer, &a->addr);
        return;
    case KVF_ACT_CLOSE:
        sim_control_close(w, h, a->peer);
        return;
    case KVF_ACT_LANE_OPEN:
        if (w->scenario.traffic == SIM_VERBS) {
            sim_lanes_make_end(h, a);
        } else {
            sim_lanes_connect(h, a);
        }
        return;
    case KVF_ACT_LANE_JOIN:
        sim_lanes_connect(h, a);
        return;
    case KVF_ACT_WRITE:
        sim_control_write(w, h, a->peer);
        return;
    case KVF_ACT_POST:
        sim_lanes_want_post(h, a->lane);
        return;
    case KVF_ACT_CLIENT_QUIET:
        check_quiet(w, h, a->client);
        return;
    case KVF_ACT_GROUP_KEY:
        h->clients[a->client].keys[a->slot].group = a->group;
        h->clients[a->client].keys[a->slot].key = a->key;
        return;
    case KVF_ACT_FLUSH:
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM, "h%u flushes host memory", h->idx);
        return;
    case KVF_ACT_ESCALATE:
        sim_note(w, SIM_ESCALATE, h->idx, SIM_NO_ROOM, SIM_NO_ROOM, a->lane, a->epoch);
        w->figures.escalations++;
        sim_supervisor_escalated(w, h);
        return;
    }
}

static void take_actions(struct sim_world *w, struct sim_host *h)
{
    struct kvf_action action;
    uint32_t count = 0;
    while (count < ACTIONS_MAX && kvf_core_next_action(h->core, &action) == 1) {
        act(w, h, &action);
        count++;
    }
    if (count == ACTIONS_MAX) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "the core of h%u never stops acting", h->idx);
    }
}

static void turn(void *world, uint64_t host, uint64_t life)
{
    struct sim_world *w = world;
    struct sim_host *h = &w->hosts[host];
    if (h->life != life) {
        return;
    }
    h->is_kicked = false;
    if (!sim_worker_is_awake(h)) {
        return;
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        serve_client(w, h, i);
    }
    take_actions(w, h);
    sim_lanes_post(w, h);
    (void)kvf_sim_ops.poll(h->transport);
    take_actions(w, h);
    sim_lanes_post(w, h);
    if (sim_host_clock(h) >= kvf_core_deadline(h->core)) {
        kvf_core_tick(h->core, sim_host_clock(h));
    }
    take_actions(w, h);
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        check_quiet(w, h, i); /* rooms of an earlier worker may have been the last */
    }
    set_timer(w, h);
    if (h->post_lane_count > 0 || sim_transport_has_work(h->transport)) {
        sim_worker_kick(w, h);
    }
}

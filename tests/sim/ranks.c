/* Groups: which engines are the ranks of a request, what workers are told of them, and what must hold.
 *
 * A schedulers' MIN over ranks turns one rank's Failed into everybody's, and then everybody frees its pages. So no
 * rank may show Failed while a room of that key is not drained at another rank. */
#include "ring/room_word.h"
#include "tests/sim/parts.h"

#define GROUP_ID(g) (UINT64_C(7000) + (g))

uint32_t sim_group_of(const struct sim_world *w, uint32_t request, uint32_t member)
{
    const struct sim_plan *p = sim_plan_of(w, request);
    bool is_of_sinks = p->group != SIM_GROUPS;
    if (p->group == 0 || w->scenario.groups[p->group - 1u].count < 2) {
        return 0; /* one rank is no group */
    }
    return is_of_sinks == (member < SIM_SINKS_MAX) ? p->group : 0;
}

void sim_ranks_tell(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    uint32_t engine = h->clients[client].engine;
    for (uint32_t g = 0; g < SIM_GROUPS; g++) {
        const struct sim_group *group = &w->scenario.groups[g];
        struct kvf_core_group members = {.group_id = GROUP_ID(g), .member_count = group->count};
        bool is_member = false;
        for (uint32_t i = 0; i < group->count; i++) {
            members.members[i] = sim_addr(group->ranks[i].host);
            if (group->ranks[i].host == h->idx && group->ranks[i].engine == engine) {
                members.rank = i;
                is_member = true;
            }
        }
        /* One rank is no group: its rooms are like others. */
        int err = is_member && group->count > 1
                      ? kvf_core_group_add(h->core, sim_host_clock(h), client, g + 1u, &members)
                      : 0;
        if (err != 0) {
            sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                     "h%u: group %u of client %u is not taken: %d", h->idx, g, client, err);
        }
        if (is_member) {
            h->has_departed[g][members.rank] = false;
        }
    }
}

void sim_ranks_tell_departed(struct sim_world *w, struct sim_host *h)
{
    for (uint32_t g = 0; g < SIM_GROUPS; g++) {
        for (uint32_t i = 0; i < w->scenario.groups[g].count; i++) {
            if (h->has_departed[g][i]) {
                kvf_core_group_departed(h->core, GROUP_ID(g), i);
            }
        }
    }
}

void sim_ranks_depart(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    const struct sim_client *c = &h->clients[client];
    for (uint32_t g = 0; g < SIM_GROUPS; g++) {
        for (uint32_t i = 0; i < w->scenario.groups[g].count; i++) {
            struct sim_party rank = w->scenario.groups[g].ranks[i];
            if (rank.host == h->idx && rank.engine == c->engine &&
                h->client_of[rank.engine] == KVF_NONE) {
                h->has_departed[g][i] = true;
            }
        }
    }
}

/* ---- what must hold --------------------------------------------------------------------------------------------- */

/* Rooms of the same key at other ranks; SIM_NO_ROOM: none, or not open. */
static uint32_t other_room(const struct sim_world *w, uint32_t room, uint32_t member)
{
    const struct sim_room *r = &w->rooms[room];
    uint32_t other = w->requests[r->request].rooms[member];
    bool is_rank = sim_group_of(w, r->request, member) != 0 && member != r->member;
    return is_rank ? other : SIM_NO_ROOM;
}

/* No daemon can touch its pages any more, whether or not its word was stored already. One whose open no worker has read
 * yet will be ended when it is; one that was ended when it was read joined a request that had failed: its rank had
 * said "never opened", which is what the others act upon, and only its own engine's leases can keep it. */
static bool is_idle(const struct sim_world *w, uint32_t room)
{
    const struct sim_room *r = &w->rooms[room];
    const struct sim_host *h = &w->hosts[r->host];
    if (r->is_drained || r->is_moot || r->word == 0 || r->is_stillborn) {
        return true;
    }
    const struct sim_client *c = &h->clients[r->client];
    if (h->core == NULL || !c->is_in_core) {
        /* Its supervisor, its worker and its engine ended together, and nobody will hear of it. */
        return !c->is_used && c->process != SIM_RUNS && c->process != SIM_FROZEN &&
               h->worker != SIM_WORKER_KILLED;
    }
    struct kvf_core_room_view view;
    kvf_core_room_view(h->core, r->client, r->slot, &view);
    return kvf_word_generation(view.word) == r->generation && kvf_word_is_drained(view.word);
}

void sim_ranks_check(struct sim_world *w, uint32_t room)
{
    const struct sim_room *r = sim_room_at(w, room);
    if (sim_group_of(w, r->request, r->member) == 0) {
        return;
    }
    if (kvf_word_outcome(r->word) == KVF_OUTCOME_FAILED) {
        w->figures.group_rooms_failed++;
    }
    if (kvf_word_poll(r->word) != KVF_STATE_FAILED) {
        return;
    }
    for (uint32_t m = 0; m < SIM_MEMBERS; m++) {
        uint32_t other = other_room(w, room, m);
        if (other != SIM_NO_ROOM && !is_idle(w, other)) {
            sim_fail(w, SIM_GROUP_WRONG, other, SIM_NO_ROOM,
                     "room %u on h%u shows Failed while room %u on h%u, of its group, is not "
                     "drained",
                     room, r->host, other, w->rooms[other].host);
        }
    }
}

/* Somebody is in quarantine, or its rank has no engine any more. */
static bool has_reason_to_wait(const struct sim_world *w, uint32_t room)
{
    const struct sim_room *r = &w->rooms[room];
    const struct sim_plan *p = sim_plan_of(w, r->request);
    const struct sim_group *group = &w->scenario.groups[p->group - 1u];
    for (uint32_t m = 0; m < SIM_MEMBERS; m++) {
        uint32_t other = other_room(w, room, m);
        if (other != SIM_NO_ROOM && w->rooms[other].is_quarantined) {
            return true;
        }
    }
    for (uint32_t i = 0; i < group->count; i++) {
        if (w->hosts[group->ranks[i].host].client_of[group->ranks[i].engine] == KVF_NONE) {
            return true;
        }
    }
    return false;
}

bool sim_ranks_are_settled(struct sim_world *w, uint32_t *ret_room)
{
    for (uint32_t i = 0; w->group_waiting > 0 && i < w->room_count; i++) {
        if ((w->rooms[i].word & KVF_WORD_GROUP_WAITS) != 0 && !w->rooms[i].is_moot &&
            !has_reason_to_wait(w, i)) {
            *ret_room = i;
            return false;
        }
    }
    return true;
}

/* Agreement of the ranks of one request, without the engine's collectives.
 *
 * A room of a group that fails asks every other rank the same question until each has settled: "I am
 * closed (or drained); what are you?" The question itself closes the other's room of that key, through
 * the gate like every end, so one rank's failure reaches all of them in one message. What is owed are
 * bits of a room, made into bytes when a socket takes them; a lost message is healed by asking again.
 * Only a word settles a rank: "drained", or "never opened" with a tombstone that ends a later open.
 * Time only asks again. A later HELLO settles nobody either: the worker behind it may have taken rooms
 * over whose external leases are out, so its answer is the evidence, not its birth.
 *
 * A room's own drain knows nothing of all this; its group only decides when Failed may be shown. */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

static uint64_t bit_of(uint32_t rank)
{
    return UINT64_C(1) << rank;
}

static uint32_t first_rank(uint64_t mask)
{
    return (uint32_t)__builtin_ctzll(mask);
}

#define EACH_MATCH(link, core, id, rank, key)                                                  \
    for (uint32_t link = kvf_group_first_match((core), (id), (rank), (key)); link != 0;        \
         link = kvf_group_next_match((core), (core)->rooms[link - 1].group_hash.next, (id),    \
                                     (rank), (key)))

/* What this rank is for the others, or 0 if it has no such room here. */
static uint8_t state_of(struct kvf_core *core, uint64_t group_id, uint32_t rank, uint64_t key)
{
    uint8_t state = 0;
    EACH_MATCH(link, core, group_id, rank, key)
    {
        bool is_drained = core->rooms[link - 1].phase == KVF_PHASE_DRAINED;
        state = is_drained && state != KVF_GROUP_CLOSED ? KVF_GROUP_DRAINED : KVF_GROUP_CLOSED;
    }
    return state;
}

/* ---- what a room owes and waits for ------------------------------------------------------------------------ */

static void show_stuck(struct kvf_core *core)
{
    uint32_t oldest = kvf_list_first(&core->group_stuck);
    core->gauges[KVF_GAUGE_GROUP_WAITING] = core->group_stuck.count;
    core->gauges[KVF_GAUGE_GROUP_WAITS_ID] = 0;
    core->gauges[KVF_GAUGE_GROUP_WAITS_RANK] = 0;
    if (oldest != KVF_LIST_NONE) {
        core->gauges[KVF_GAUGE_GROUP_WAITS_ID] = kvf_group_of_room(core, oldest)->id;
        core->gauges[KVF_GAUGE_GROUP_WAITS_RANK] = first_rank(core->rooms[oldest].group_waits);
    }
}

/* A client that leaves stays until its last words are out. */
static void count_untold(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    struct kvf_client_rec *c = &core->clients[kvf_room_client(core, room)];
    bool is_untold = (r->group_untold | r->group_owed) != 0;
    if (is_untold == r->is_untold) {
        return;
    }
    r->is_untold = is_untold;
    if (is_untold) {
        c->untold++;
    } else if (--c->untold == 0) {
        kvf_client_check_quiet(core, kvf_room_client(core, room));
    }
}

static void unlist(struct kvf_group_rec *g, uint32_t room)
{
    if (!kvf_list_has(&g->talk, room)) {
        return;
    }
    uint32_t next = kvf_list_next(&g->talk, room);
    for (uint32_t rank = 0; rank < g->member_count; rank++) {
        if (g->cursor[rank] == room + 1) {
            g->cursor[rank] = next + 1;
        }
    }
    kvf_list_remove(&g->talk, room);
}

static void unlist_if_silent(struct kvf_core *core, uint32_t room)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    if ((r->group_owed | r->group_waits) == 0) {
        unlist(kvf_group_of_room(core, room), room);
    }
    count_untold(core, room);
}

/* Connections that only ask take half of the places, so that rooms that move pages find the others. */
static bool has_places(const struct kvf_core *core)
{
    uint32_t asking = 0;
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        asking += core->peers[i].role == KVF_PEER_OUT && !core->peers[i].is_for_rooms;
    }
    return asking < core->limits.peers_max / 2u;
}

static void dial(struct kvf_core *core, uint64_t now_ns, struct kvf_group_rec *g, uint32_t rank)
{
    const struct kvf_addr_shm *addr = &g->members[rank];
    uint32_t peer = g->peer[rank] - 1u;
    if (g->peer[rank] == 0 || core->peers[peer].role != KVF_PEER_OUT ||
        !kvf_addr_is_same(&core->peers[peer].addr, addr)) {
        peer = kvf_peer_find(core, addr);
    }
    if (peer == KVF_NONE && has_places(core)) {
        peer = kvf_peer_for_addr(core, now_ns, addr);
    }
    if (peer == KVF_NONE) {
        return; /* asked again later */
    }
    g->peer[rank] = peer + 1;
    core->peers[peer].owes_group = true;
    kvf_peer_need(core, now_ns, peer);
    kvf_peer_owe(core, peer);
}

/* The room owes these ranks a word, from the end of the list on. */
static void owe(struct kvf_core *core, uint64_t now_ns, uint32_t room, uint64_t mask)
{
    struct kvf_room_rec *r = &core->rooms[room];
    struct kvf_group_rec *g = kvf_group_of_room(core, room);
    if (g->talk.count == 0) {
        g->ask_ns = now_ns + core->config.group_ask_ns;
        kvf_core_due(core, g->ask_ns);
    }
    unlist(g, room);
    g->asking |= mask;
    r->group_owed |= mask;
    kvf_list_push(&g->talk, room);
    for (uint64_t left = r->group_owed & ~g->local; left != 0; left &= left - 1) {
        uint32_t rank = first_rank(left);
        g->cursor[rank] = g->cursor[rank] == 0 ? room + 1 : g->cursor[rank];
        if ((mask & bit_of(rank)) != 0) {
            dial(core, now_ns, g, rank);
        }
    }
    if ((mask & g->local) != 0) {
        core->group_now_ns = now_ns;
        kvf_list_push(&core->group_local, room);
    }
    count_untold(core, room);
}

static void settle(struct kvf_core *core, uint32_t room, uint32_t rank)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if ((r->group_waits & bit_of(rank)) == 0) {
        return;
    }
    r->group_waits &= ~bit_of(rank);
    if (r->group_waits == 0) {
        kvf_list_remove(&core->group_stuck, room);
    }
    kvf_room_publish(core, room); /* its line names the ranks that are missing */
    show_stuck(core);
}

/* A word of this rank about our room. */
static void hear(struct kvf_core *core, uint32_t room, uint32_t rank, uint8_t state)
{
    core->rooms[room].group_untold &= ~bit_of(rank);
    if (state != KVF_GROUP_CLOSED) {
        settle(core, room, rank);
    }
    unlist_if_silent(core, room);
}

/* ---- a room's life ------------------------------------------------------------------------------------------ */

/* Keys are unique: a rank has a sink and a source of one at most, and what it had of it under an earlier
 * worker. More would make every question about the key a walk over all of them. */
static bool is_crowded(struct kvf_core *core, const struct kvf_group_rec *g, uint32_t room)
{
    const struct kvf_room_rec *r = &core->rooms[room];
    uint32_t count = 0;
    EACH_MATCH(link, core, g->id, g->rank, r->key)
    {
        const struct kvf_room_rec *other = &core->rooms[link - 1];
        count++;
        if (count >= KVF_GROUP_ROOMS_PER_KEY ||
            (!r->is_adopted && !other->is_adopted && other->role == r->role)) {
            return true;
        }
    }
    return false;
}

int kvf_group_open(struct kvf_core *core, uint32_t room, const struct kvf_core_open *open,
                   bool *ret_is_ended)
{
    struct kvf_room_rec *r = &core->rooms[room];
    *ret_is_ended = false;
    if (open->group == 0) {
        return 0;
    }
    bool is_handle = open->group <= KVF_GROUPS_PER_CLIENT_MAX;
    if (!is_handle || kvf_group_of(core, open->client, open->group)->id == 0) {
        if (!is_handle || !open->is_old_epoch) {
            return -KVF_E_UNKNOWN_GROUP;
        }
        r->group = open->group; /* this worker will be told of the group in a moment */
        return 0;
    }
    const struct kvf_group_rec *g = kvf_group_of(core, open->client, open->group);
    if (is_crowded(core, g, room)) {
        return -KVF_E_KEY_IN_USE;
    }
    r->group = open->group;
    kvf_group_hash_in(core, room);
    uint32_t tomb = kvf_group_find_tomb(core, g->id, g->rank, open->key);
    if (tomb != KVF_NONE) {
        kvf_group_free_tomb(core, tomb);
        *ret_is_ended = true;
        return 0;
    }
    bool is_full = core->clients[open->client].tomb_count >= core->limits.group_tombstones_max;
    return is_full ? -KVF_E_GROUP_TOMBSTONES : 0;
}

void kvf_group_closed(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (!r->is_in_group || r->outcome != KVF_OUTCOME_FAILED) {
        return;
    }
    const struct kvf_group_rec *g = kvf_group_of_room(core, room);
    r->group_waits = g->others;
    r->group_untold = r->group_waits;
    owe(core, now_ns, room, r->group_waits);
    EACH_MATCH(link, core, g->id, g->rank, r->key)
    {
        if (core->rooms[link - 1].phase ==
            KVF_PHASE_OPEN) { /* this rank's other room of the key */
            kvf_count(core, KVF_COUNT_GROUP_CLOSED);
            kvf_room_close(core, now_ns, link - 1, KVF_OUTCOME_FAILED, KVF_E_GROUP_CLOSED,
                           g->rank);
        }
    }
}

void kvf_group_drained(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (!r->is_in_group || r->outcome != KVF_OUTCOME_FAILED) {
        return;
    }
    if (r->group_waits != 0) {
        kvf_list_push(&core->group_stuck, room);
        show_stuck(core);
    }
    /* Also those that have settled: they may wait for us, and then need not ask. */
    owe(core, now_ns, room, kvf_group_of_room(core, room)->others);
}

void kvf_group_join(struct kvf_core *core, uint64_t now_ns, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->group == 0 || r->is_in_group || kvf_group_of_room(core, room)->id == 0) {
        return;
    }
    if (is_crowded(core, kvf_group_of_room(core, room), room)) {
        r->group = 0; /* no library wrote this: its own engine's loss */
        kvf_room_publish(core, room);
        return;
    }
    kvf_group_hash_in(core, room);
    if (r->phase != KVF_PHASE_OPEN && !r->is_group_settled) {
        kvf_group_closed(core, now_ns, room);
        if (r->phase == KVF_PHASE_DRAINED) {
            kvf_group_drained(core, now_ns, room);
            kvf_room_publish(core, room); /* its line now names who is missing */
        }
    }
}

void kvf_group_leave(struct kvf_core *core, uint32_t room)
{
    struct kvf_room_rec *r = &core->rooms[room];
    if (r->is_in_group) {
        unlist(kvf_group_of_room(core, room), room);
        kvf_list_remove(&core->group_local, room);
        kvf_list_remove(&core->group_stuck, room);
        r->group_owed = 0;
        r->group_untold = 0;
        count_untold(core, room);
        show_stuck(core);
        kvf_group_hash_out(core, room);
    }
    r->group = 0;
    r->group_waits = 0;
}

/* ---- messages ------------------------------------------------------------------------------------------------ */

/* The registration of this rank: that of a client which still opens rooms, if there is one. */
static struct kvf_group_rec *find_registered(struct kvf_core *core, uint64_t group_id,
                                             uint32_t rank)
{
    struct kvf_group_rec *found = NULL;
    for (uint32_t i = kvf_list_first(&core->groups_used); i != KVF_LIST_NONE;
         i = kvf_list_next(&core->groups_used, i)) {
        struct kvf_group_rec *g = &core->groups[i];
        if (g->id != group_id || g->rank != rank) {
            continue;
        }
        if (!core->clients[kvf_group_client(core, g)].is_closed) {
            return g;
        }
        found = g;
    }
    return found;
}

static bool has_departed(const struct kvf_core *core, uint64_t group_id, uint32_t rank)
{
    for (uint32_t i = 0; i < KVF_GROUP_DEPARTED_MAX; i++) {
        if (core->departed[i].group_id == group_id && core->departed[i].rank == rank) {
            return true;
        }
    }
    return false;
}

/* Without a room of this key: what can be said, or 0 for silence. */
static uint8_t state_without_room(struct kvf_core *core, const struct kvf_group_rec *g,
                                  const struct kvf_wire_group *q)
{
    if (kvf_group_has_hint(core, kvf_group_hash(q->group_id, q->to_rank, q->key))) {
        return KVF_GROUP_DRAINED;
    }
    if (core->clients[kvf_group_client(core, g)].is_closed) {
        return KVF_GROUP_NEVER_OPENED; /* nor will it */
    }
    return kvf_group_make_tomb(core, g, q->key) ? KVF_GROUP_NEVER_OPENED : 0;
}

/* Closes what a question closes, settles its sender if it says so. True and the answer, or silence. */
static bool take_question(struct kvf_core *core, uint64_t now_ns,
                          const struct kvf_wire_group *q, struct kvf_wire_group *ret_answer)
{
    const struct kvf_group_rec *g = find_registered(core, q->group_id, q->to_rank);
    if (core->are_groups_held) {
        return false; /* asked again later */
    }
    *ret_answer = (struct kvf_wire_group){.group_id = q->group_id,
                                          .key = q->key,
                                          .from_rank = q->to_rank,
                                          .to_rank = q->from_rank,
                                          .is_answer = 1};
    if (g == NULL && has_departed(core, q->group_id, q->to_rank)) {
        ret_answer->state = KVF_GROUP_NEVER_OPENED;
        return true;
    }
    if (g == NULL || q->from_rank >= g->member_count) {
        kvf_count(core, KVF_COUNT_GROUP_STALE);
        return false;
    }
    EACH_MATCH(link, core, q->group_id, q->to_rank, q->key)
    {
        if (core->rooms[link - 1].phase == KVF_PHASE_OPEN) {
            kvf_count(core, KVF_COUNT_GROUP_CLOSED);
            kvf_room_close(core, now_ns, link - 1, KVF_OUTCOME_FAILED, KVF_E_GROUP_CLOSED,
                           q->from_rank);
        }
        hear(core, link - 1, q->from_rank, q->state);
    }
    ret_answer->state = state_of(core, q->group_id, q->to_rank, q->key);
    if (ret_answer->state == 0) {
        ret_answer->state = state_without_room(core, g, q);
    }
    return ret_answer->state != 0;
}

/* from: the address that answered; NULL: this very daemon. A rank is spoken for by its own daemon alone. */
static void take_answer(struct kvf_core *core, const struct kvf_addr_shm *from,
                        const struct kvf_wire_group *a)
{
    bool is_stale = true;
    EACH_MATCH(link, core, a->group_id, a->to_rank, a->key)
    {
        const struct kvf_group_rec *g = kvf_group_of_room(core, link - 1);
        if (a->from_rank < g->member_count &&
            (from == NULL || kvf_addr_is_same(from, &g->members[a->from_rank]))) {
            hear(core, link - 1, a->from_rank, a->state);
            is_stale = false;
        }
    }
    if (is_stale) {
        kvf_count(core, KVF_COUNT_GROUP_STALE);
    }
}

static void owe_answer(struct kvf_core *core, uint32_t peer, const struct kvf_wire_group *m)
{
    struct kvf_peer *p = &core->peers[peer];
    if (p->answer_count < KVF_GROUP_ANSWERS_MAX) { /* else it is asked again */
        uint32_t at = (p->answer_first + p->answer_count++) % KVF_GROUP_ANSWERS_MAX;
        core->group_answers[peer * KVF_GROUP_ANSWERS_MAX + at] = *m;
        kvf_peer_owe(core, peer);
    }
}

bool kvf_group_frame(struct kvf_core *core, uint64_t now_ns, uint32_t peer,
                     const unsigned char *payload, size_t bytes)
{
    struct kvf_wire_group m;
    struct kvf_wire_group answer;
    if (kvf_wire_get_group(payload, bytes, &m) != 0) {
        return false;
    }
    /* Who connected asks, who accepted answers: so both know the other's address without naming it. */
    bool is_question = m.is_answer == 0;
    if (is_question != (core->peers[peer].role == KVF_PEER_IN)) {
        return false;
    }
    kvf_count(core, KVF_COUNT_GROUP_RECEIVED);
    if (!is_question) {
        take_answer(core, &core->peers[peer].addr, &m);
    } else if (take_question(core, now_ns, &m, &answer)) {
        owe_answer(core, peer, &answer);
    }
    return true;
}

/* What the room says to this rank now. */
static struct kvf_wire_group question_of(struct kvf_core *core, uint32_t room, uint32_t rank)
{
    const struct kvf_group_rec *g = kvf_group_of_room(core, room);
    uint64_t key = core->rooms[room].key;
    return (struct kvf_wire_group){.group_id = g->id,
                                   .key = key,
                                   .from_rank = g->rank,
                                   .to_rank = rank,
                                   .state = state_of(core, g->id, g->rank, key)};
}

/* The next question of this group to this rank. */
static bool next_of(struct kvf_core *core, struct kvf_group_rec *g, uint32_t rank,
                    struct kvf_wire_group *ret_m)
{
    while (g->cursor[rank] != 0) {
        uint32_t room = g->cursor[rank] - 1;
        g->cursor[rank] = kvf_list_next(&g->talk, room) + 1;
        if ((core->rooms[room].group_owed & bit_of(rank)) != 0) {
            *ret_m = question_of(core, room, rank);
            core->rooms[room].group_owed &= ~bit_of(rank);
            unlist_if_silent(core, room);
            return true;
        }
    }
    return false;
}

bool kvf_group_next(struct kvf_core *core, uint32_t peer, struct kvf_wire_group *ret_m)
{
    struct kvf_peer *p = &core->peers[peer];
    if (p->answer_count > 0 && kvf_group_may_answer(core)) {
        *ret_m = core->group_answers[peer * KVF_GROUP_ANSWERS_MAX + p->answer_first];
        p->answer_first = (p->answer_first + 1) % KVF_GROUP_ANSWERS_MAX;
        p->answer_count--;
        return true;
    }
    bool is_able = p->owes_group && (p->caps & KVF_CAP_GROUP) != 0 && !core->are_groups_held;
    for (uint32_t i = is_able ? kvf_list_first(&core->groups_used) : KVF_LIST_NONE;
         i != KVF_LIST_NONE; i = kvf_list_next(&core->groups_used, i)) {
        struct kvf_group_rec *g = &core->groups[i];
        for (uint32_t rank = 0; g->talk.count > 0 && rank < g->member_count; rank++) {
            if (g->cursor[rank] != 0 && g->peer[rank] == peer + 1 &&
                kvf_addr_is_same(&p->addr, &g->members[rank]) &&
                next_of(core, g, rank, ret_m)) {
                return true;
            }
        }
    }
    p->owes_group = false;
    return false;
}

bool kvf_group_owes(const struct kvf_core *core, uint32_t peer)
{
    return core->peers[peer].owes_group ||
           (core->peers[peer].answer_count > 0 && kvf_group_may_answer(core));
}

bool kvf_group_needs(const struct kvf_core *core, uint32_t peer)
{
    for (uint32_t i = kvf_list_first(&core->groups_used); i != KVF_LIST_NONE;
         i = kvf_list_next(&core->groups_used, i)) {
        const struct kvf_group_rec *g = &core->groups[i];
        for (uint64_t left = g->talk.count > 0 ? g->asking : 0; left != 0; left &= left - 1) {
            if (g->peer[first_rank(left)] == peer + 1) {
                return true;
            }
        }
    }
    return core->peers[peer].owes_group;
}

void kvf_group_pump(struct kvf_core *core)
{
    uint32_t room;
    while (!core->are_groups_held && core->group_budget > 0 &&
           (room = kvf_list_pop(&core->group_local)) != KVF_LIST_NONE) {
        struct kvf_room_rec *r = &core->rooms[room];
        uint64_t mask = r->group_owed & kvf_group_of_room(core, room)->local;
        r->group_owed &= ~mask;
        for (; mask != 0; mask &= mask - 1) {
            core->group_budget -= core->group_budget > 0 ? 1u : 0u;
            struct kvf_wire_group q = question_of(core, room, first_rank(mask));
            struct kvf_wire_group answer;
            if (take_question(core, core->group_now_ns, &q, &answer)) {
                take_answer(core, NULL, &answer);
            }
        }
        unlist_if_silent(core, room);
    }
    if (core->group_budget == 0) {
        kvf_core_due(core,
                     core->group_now_ns); /* the rest in the next turn, behind everybody else */
    }
}

/* ---- time ----------------------------------------------------------------------------------------------------- */

static void ask_again(struct kvf_core *core, uint64_t now_ns, struct kvf_group_rec *g)
{
    uint64_t ranks = 0;
    uint32_t next;
    for (uint32_t room = kvf_list_first(&g->talk); room != KVF_LIST_NONE; room = next) {
        struct kvf_room_rec *r = &core->rooms[room];
        next = kvf_list_next(&g->talk, room);
        /* A last word that found no connection is not kept: who misses it asks for it. */
        r->group_owed = r->group_waits;
        ranks |= r->group_owed;
        if ((r->group_owed & g->local) != 0) {
            core->group_now_ns = now_ns;
            kvf_list_push(&core->group_local, room);
        }
        unlist_if_silent(core, room);
    }
    g->asking = ranks;
    for (uint64_t left = ranks & ~g->local; left != 0; left &= left - 1) {
        uint32_t rank = first_rank(left);
        g->cursor[rank] = kvf_list_first(&g->talk) + 1;
        dial(core, now_ns, g, rank);
    }
}

/* Clients that left are held for ranks that can be told, not for those out of reach. */
static void end_holds(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns)
{
    for (uint32_t client = 0; client < core->limits.clients_max; client++) {
        struct kvf_client_rec *c = &core->clients[client];
        if (!c->is_used || !c->is_closed || c->is_hold_over || c->untold == 0) {
            continue;
        }
        if (c->hold_ns > now_ns) {
            *due_ns = c->hold_ns < *due_ns ? c->hold_ns : *due_ns;
            continue;
        }
        c->is_hold_over = true;
        kvf_client_check_quiet(core, client);
    }
}

void kvf_group_tick(struct kvf_core *core, uint64_t now_ns, uint64_t *due_ns)
{
    core->group_budget = KVF_GROUP_QUESTIONS_PER_TURN;
    for (uint32_t i = kvf_list_first(&core->groups_used); i != KVF_LIST_NONE;
         i = kvf_list_next(&core->groups_used, i)) {
        struct kvf_group_rec *g = &core->groups[i];
        if (g->talk.count == 0) {
            continue;
        }
        if (g->ask_ns <= now_ns) {
            g->ask_ns = now_ns + core->config.group_ask_ns;
            ask_again(core, now_ns, g);
        }
        *due_ns = g->talk.count > 0 && g->ask_ns < *due_ns ? g->ask_ns : *due_ns;
    }
    end_holds(core, now_ns, due_ns);
}

void kvf_core_groups_hold(struct kvf_core *core, uint64_t now_ns, bool is_held)
{
    core->are_groups_held = is_held;
    core->group_now_ns = now_ns;
    for (uint32_t i = kvf_list_first(&core->groups_used); i != KVF_LIST_NONE && !is_held;
         i = kvf_list_next(&core->groups_used, i)) {
        core->groups[i].ask_ns = now_ns;
        kvf_core_due(core, now_ns);
    }
}

/* ---- registration --------------------------------------------------------------------------------------------- */

static bool is_sound(const struct kvf_core_group *m)
{
    if (m->group_id == 0 || m->member_count < 2 || m->member_count > KVF_GROUP_MEMBERS_MAX ||
        m->rank >= m->member_count) {
        return false;
    }
    for (uint32_t i = 0; i < m->member_count; i++) {
        if (m->members[i].family != 4 && m->members[i].family != 6) {
            return false;
        }
    }
    return true;
}

static void fill(struct kvf_core *core, struct kvf_group_rec *g, const struct kvf_core_group *m)
{
    *g = (struct kvf_group_rec){
        .id = m->group_id, .rank = m->rank, .member_count = m->member_count};
    memcpy(g->members, m->members, m->member_count * sizeof m->members[0]);
    for (uint32_t i = 0; i < m->member_count; i++) {
        if (i != m->rank) {
            g->others |= bit_of(i);
            g->local |= kvf_addr_is_same(&m->members[i], &m->members[m->rank]) ? bit_of(i) : 0;
        }
    }
    KVF_LIST_INIT(&g->talk, core->rooms, group_talk);
}

static void set_departed(struct kvf_core *core, uint64_t group_id, uint32_t rank, bool is_set)
{
    for (uint32_t i = 0; i < KVF_GROUP_DEPARTED_MAX; i++) {
        if (core->departed[i].group_id == group_id && core->departed[i].rank == rank) {
            core->departed[i] = (struct kvf_group_departed){0};
        }
    }
    if (is_set) {
        core->departed[core->departed_next++ % KVF_GROUP_DEPARTED_MAX] =
            (struct kvf_group_departed){.group_id = group_id, .rank = rank};
    }
}

int kvf_core_group_add(struct kvf_core *core, uint64_t now_ns, uint32_t client, uint32_t group,
                       const struct kvf_core_group *members)
{
    if (client >= core->limits.clients_max || !core->clients[client].is_used || group == 0 ||
        group > KVF_GROUPS_PER_CLIENT_MAX) {
        return -KVF_E_GROUPS_FULL;
    }
    if (!is_sound(members)) {
        return -KVF_E_GROUP_MEMBERS;
    }
    struct kvf_group_rec *g = kvf_group_of(core, client, group);
    if (g->id != 0) {
        bool is_same = g->id == members->group_id && g->rank == members->rank &&
                       g->member_count == members->member_count;
        for (uint32_t i = 0; is_same && i < g->member_count; i++) {
            is_same = kvf_addr_is_same(&g->members[i], &members->members[i]);
        }
        return is_same ? 0 : -EEXIST;
    }
    fill(core, g, members);
    kvf_list_push(&core->groups_used, (uint32_t)(g - core->groups));
    set_departed(core, g->id, g->rank, false);
    for (uint32_t slot = 0; slot < core->clients[client].rooms_max; slot++) {
        uint32_t room = kvf_room_idx(core, client, slot);
        if (core->rooms[room].group == group) {
            kvf_group_join(core, now_ns, room);
        }
    }
    kvf_group_join_tombs(core, client,
                         group); /* after the rooms: they tell which are needless */
    return 0;
}

int kvf_core_group_skip(struct kvf_core *core, uint32_t client, uint32_t group, uint64_t key)
{
    if (client >= core->limits.clients_max || !core->clients[client].is_used || group == 0 ||
        group > KVF_GROUPS_PER_CLIENT_MAX || kvf_group_of(core, client, group)->id == 0) {
        return -KVF_E_UNKNOWN_GROUP;
    }
    const struct kvf_group_rec *g = kvf_group_of(core, client, group);
    uint32_t tomb = kvf_group_find_tomb(core, g->id, g->rank, key);
    if (tomb != KVF_NONE) {
        kvf_group_free_tomb(core, tomb);
    }
    if (kvf_group_first_match(core, g->id, g->rank, key) == 0) {
        kvf_group_put_hint(core, kvf_group_hash(g->id, g->rank, key));
    }
    return 0;
}

uint32_t kvf_core_untold(const struct kvf_core *core)
{
    uint32_t untold = 0;
    for (uint32_t client = 0; client < core->limits.clients_max; client++) {
        untold += core->clients[client].untold;
    }
    return untold;
}

void kvf_core_group_departed(struct kvf_core *core, uint64_t group_id, uint32_t rank)
{
    if (group_id != 0 && find_registered(core, group_id, rank) == NULL) {
        set_departed(core, group_id, rank, true);
    }
}

void kvf_group_client_removed(struct kvf_core *core, uint32_t client)
{
    kvf_group_forget_tombs(core, client);
    for (uint32_t handle = 1; handle <= KVF_GROUPS_PER_CLIENT_MAX; handle++) {
        struct kvf_group_rec *g = kvf_group_of(core, client, handle);
        if (g->id == 0) {
            continue;
        }
        assert(g->talk.count == 0);
        uint64_t group_id = g->id;
        uint32_t rank = g->rank;
        kvf_list_remove(&core->groups_used, (uint32_t)(g - core->groups));
        *g = (struct kvf_group_rec){0};
        kvf_core_group_departed(core, group_id, rank);
    }
}

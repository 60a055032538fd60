/* Which keys are known of which rank: rooms in their slots, keys that have ended (hints), and keys that
 * other ranks ended before our engine opened them (tombstones). */
#include "sidecar/core/internal.h"

#include <errno.h>
#include <string.h>

uint64_t kvf_group_hash(uint64_t group_id, uint32_t rank, uint64_t key)
{
    return kvf_hash2(kvf_hash2(group_id, rank), key);
}

/* ---- hints: keys whose room is not in a slot any more ------------------------------------------------ */

static uint64_t *hint_set(struct kvf_core *core, uint64_t hash)
{
    return &core->group_hints[hash & (KVF_GROUP_HINTS - KVF_GROUP_HINT_WAYS)];
}

bool kvf_group_has_hint(struct kvf_core *core, uint64_t hash)
{
    const uint64_t *set = hint_set(core, hash);
    for (uint32_t i = 0; i < KVF_GROUP_HINT_WAYS; i++) {
        if (set[i] == (hash | 1u)) {
            return true;
        }
    }
    return false;
}

/* A hint that is overwritten costs a tombstone that nobody will need, never a wrong answer. */
void kvf_group_put_hint(struct kvf_core *core, uint64_t hash)
{
    uint64_t *set = hint_set(core, hash);
    if (!kvf_group_has_hint(core, hash)) {
        memmove(set + 1, set, (KVF_GROUP_HINT_WAYS - 1u) * sizeof set[0]);
        set[0] = hash | 1u; /* zero is an empty place */
    }
}

/* ---- tombstones ---------------------------------------------------------------------------------------- */

static struct kvf_chain tomb_chain(struct kvf_core *core)
{
    return KVF_CHAIN(core->tomb_buckets, core->group_tombs, hash, core->salt);
}

uint32_t kvf_group_find_tomb(struct kvf_core *core, uint64_t group_id, uint32_t rank,
                             uint64_t key)
{
    struct kvf_chain c = tomb_chain(core);
    uint32_t link = *kvf_chain_head(&c, kvf_group_hash(group_id, rank, key));
    while (link != 0) {
        const struct kvf_group_tomb *t = &core->group_tombs[link - 1];
        if (t->group_id == group_id && t->rank == rank && t->key == key) {
            return link - 1;
        }
        link = t->hash.next;
    }
    return KVF_NONE;
}

/* Out of its chain, and free. Its place in the segment is cleared by the action that follows. */
void kvf_group_free_tomb(struct kvf_core *core, uint32_t tomb)
{
    struct kvf_group_tomb *t = &core->group_tombs[tomb];
    struct kvf_client_rec *c = &core->clients[kvf_tomb_client(core, tomb)];
    struct kvf_chain chain = tomb_chain(core);
    kvf_chain_remove(&chain, kvf_group_hash(t->group_id, t->rank, t->key), tomb);
    c->tomb_count--;
    kvf_gauge_sub(core, KVF_GAUGE_GROUP_TOMBSTONES, 1);
    t->group = 0;
    t->group_id = 0;
    t->next = c->tomb_free;
    c->tomb_free = tomb + 1;
    kvf_list_push(&core->tomb_store, tomb);
}

/* Takes a free place of the client, or KVF_NONE at its cap. */
static uint32_t alloc_tomb(struct kvf_core *core, uint32_t client)
{
    struct kvf_client_rec *c = &core->clients[client];
    uint32_t tomb = c->tomb_free - 1;
    if (c->tomb_free != 0) {
        c->tomb_free = core->group_tombs[tomb].next;
    } else if (c->tomb_fresh < core->limits.group_tombstones_max) {
        tomb = client * core->limits.group_tombstones_max + c->tomb_fresh++;
    } else {
        return KVF_NONE;
    }
    c->tomb_count++;
    kvf_gauge_add(core, KVF_GAUGE_GROUP_TOMBSTONES, 1);
    return tomb;
}

static void hash_tomb(struct kvf_core *core, uint32_t tomb, const struct kvf_group_rec *g)
{
    struct kvf_group_tomb *t = &core->group_tombs[tomb];
    struct kvf_chain c = tomb_chain(core);
    t->group_id = g->id;
    t->rank = g->rank;
    kvf_chain_push(&c, kvf_group_hash(g->id, g->rank, t->key), tomb);
}

bool kvf_group_make_tomb(struct kvf_core *core, const struct kvf_group_rec *g, uint64_t key)
{
    if (kvf_group_find_tomb(core, g->id, g->rank, key) != KVF_NONE) {
        return true;
    }
    uint32_t tomb = alloc_tomb(core, kvf_group_client(core, g));
    if (tomb == KVF_NONE) {
        return false;
    }
    struct kvf_group_tomb *t = &core->group_tombs[tomb];
    t->key = key;
    t->group = (uint32_t)(g - core->groups) % KVF_GROUPS_PER_CLIENT_MAX + 1u;
    hash_tomb(core, tomb, g);
    kvf_list_push(&core->tomb_store, tomb);
    return true;
}

int kvf_core_group_key(struct kvf_core *core, uint32_t client, uint32_t idx, uint32_t group,
                       uint64_t key)
{
    if (client >= core->limits.clients_max || !core->clients[client].is_used || group == 0 ||
        group > KVF_GROUPS_PER_CLIENT_MAX || idx < core->clients[client].tomb_fresh ||
        idx >= core->limits.group_tombstones_max) {
        return -EINVAL;
    }
    struct kvf_client_rec *c = &core->clients[client];
    uint32_t tomb = client * core->limits.group_tombstones_max + idx;
    for (; c->tomb_fresh < idx; c->tomb_fresh++) { /* those between are free */
        uint32_t between = tomb - idx + c->tomb_fresh;
        core->group_tombs[between].next = c->tomb_free;
        c->tomb_free = between + 1;
    }
    c->tomb_fresh++;
    c->tomb_count++;
    kvf_gauge_add(core, KVF_GAUGE_GROUP_TOMBSTONES, 1);
    core->group_tombs[tomb].key = key;
    core->group_tombs[tomb].group = group;
    if (kvf_group_of(core, client, group)->id != 0) {
        kvf_group_join_tombs(core, client, group);
    }
    return 0;
}

void kvf_group_join_tombs(struct kvf_core *core, uint32_t client, uint32_t handle)
{
    const struct kvf_group_rec *g = kvf_group_of(core, client, handle);
    for (uint32_t i = 0; i < core->clients[client].tomb_fresh; i++) {
        uint32_t tomb = client * core->limits.group_tombstones_max + i;
        struct kvf_group_tomb *t = &core->group_tombs[tomb];
        if (t->group != handle || t->group_id != 0) {
            continue;
        }
        /* Twice, or opened just before the last worker ended: nothing that a library wrote. */
        bool is_needless = kvf_group_find_tomb(core, g->id, g->rank, t->key) != KVF_NONE ||
                           kvf_group_first_match(core, g->id, g->rank, t->key) != 0;
        hash_tomb(core, tomb, g);
        if (is_needless) {
            kvf_group_free_tomb(core, tomb);
        }
    }
}

void kvf_group_forget_tombs(struct kvf_core *core, uint32_t client)
{
    for (uint32_t i = 0; i < core->clients[client].tomb_fresh; i++) {
        uint32_t tomb = client * core->limits.group_tombstones_max + i;
        struct kvf_group_tomb *t = &core->group_tombs[tomb];
        if (t->group_id != 0) {
            struct kvf_chain c = tomb_chain(core);
            kvf_chain_remove(&c, kvf_group_hash(t->group_id, t->rank, t->key), tomb);
        }
        if (t->group != 0) {
            kvf_gauge_sub(core, KVF_GAUGE_GROUP_TOMBSTONES, 1);
        }
        kvf_list_remove(&core->tomb_store, tomb); /* its segment goes with it */
        *t = (struct kvf_group_tomb){0};
    }
}

/* ---- rooms by (group, rank, key) ------------------------------------------------------------------------- */

static struct kvf_chain room_chain(struct kvf_core *core)
{
    return KVF_CHAIN(core->group_buckets, core->rooms, group_hash, core->salt);
}

void kvf_group_hash_in(struct kvf_core *core, uint32_t room)
{
    const struct kvf_group_rec *g = kvf_group_of_room(core, room);
    struct kvf_chain c = room_chain(core);
    kvf_chain_push(&c, kvf_group_hash(g->id, g->rank, core->rooms[room].key), room);
    core->rooms[room].is_in_group = true;
}

/* The next room of this rank and key from `link` (index + 1) on, or 0. A rank has several if its engine
 * is both ends of one transfer, or breaks the rule of keys: then they stand for one. */
uint32_t kvf_group_next_match(struct kvf_core *core, uint32_t link, uint64_t group_id,
                              uint32_t rank, uint64_t key)
{
    while (link != 0) {
        const struct kvf_room_rec *r = &core->rooms[link - 1];
        const struct kvf_group_rec *g = kvf_group_of_room(core, link - 1);
        if (r->key == key && g->id == group_id && g->rank == rank) {
            return link;
        }
        link = r->group_hash.next;
    }
    return 0;
}

uint32_t kvf_group_first_match(struct kvf_core *core, uint64_t group_id, uint32_t rank,
                               uint64_t key)
{
    struct kvf_chain c = room_chain(core);
    return kvf_group_next_match(core, *kvf_chain_head(&c, kvf_group_hash(group_id, rank, key)),
                                group_id, rank, key);
}

void kvf_group_hash_out(struct kvf_core *core, uint32_t room)
{
    const struct kvf_group_rec *g = kvf_group_of_room(core, room);
    uint64_t hash = kvf_group_hash(g->id, g->rank, core->rooms[room].key);
    struct kvf_chain c = room_chain(core);
    kvf_group_put_hint(core, hash);
    kvf_chain_remove(&c, hash, room);
    core->rooms[room].is_in_group = false;
}

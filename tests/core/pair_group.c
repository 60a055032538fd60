/* Groups: their registration, what a worker's end means for their rooms, and the oracle's question. */
#include "tests/core/pair_internal.h"

#include <stdlib.h>
#include <string.h>

uint64_t pair_group_id_of(const struct pair *p, uint32_t daemon, uint32_t client,
                          uint32_t handle)
{
    bool is_known = handle >= 1 && handle <= PAIR_GROUPS;
    return is_known ? p->daemons[daemon].clients[client].groups[handle - 1].group_id : 0;
}

int pair_group_add(struct pair *p, uint32_t client, uint32_t handle, uint64_t group_id,
                   uint32_t rank, const uint32_t *daemons, uint32_t member_count)
{
    struct kvf_core_group g = {
        .group_id = group_id, .rank = rank, .member_count = member_count};
    for (uint32_t i = 0; i < member_count; i++) {
        g.members[i] = pair_addr(daemons[i]);
    }
    uint32_t daemon = daemons[rank];
    int rc =
        kvf_core_group_add(p->daemons[daemon].core, pair_clock(p, daemon), client, handle, &g);
    if (rc == 0 && handle <= PAIR_GROUPS) {
        p->daemons[daemon].clients[client].groups[handle - 1] = g;
    }
    pair_drain(p, daemon);
    return rc;
}

void pair_group_keep(struct pair *p, uint32_t daemon, const struct kvf_action *action)
{
    struct pair_client *c = &p->daemons[daemon].clients[action->client];
    if (action->slot >= p->options.tombs_max) {
        pair_fail(p, "a key is to be kept at %u", action->slot);
    }
    c->keys[action->slot] = (struct pair_key){.group = action->group, .key = action->key};
}

bool pair_is_waiting(const struct pair_room *r)
{
    return (r->view.word & KVF_WORD_GROUP_WAITS) != 0;
}

void pair_group_check(struct pair *p, const struct pair_room *r)
{
    for (const struct pair_room *o = p->rooms; r->group_id != 0 && o != NULL;
         o = o->next_room) {
        /* Two rooms of one engine are its own to tell apart. */
        bool is_own = o->daemon == r->daemon && o->client == r->client;
        bool is_other = !is_own && o->group_id == r->group_id && o->key == r->key;
        if (is_other && o->rc == 0 && !o->is_lost && o->drained_count == 0) {
            pair_fail(p, "key %llx is shown as Failed at daemon %u while daemon %u moves it",
                      (unsigned long long)r->key, r->daemon, o->daemon);
        }
    }
}

/* ---- a worker's end -------------------------------------------------------------------------------- */

static uint64_t reaped_word(const struct pair_room *r, bool is_leased)
{
    uint64_t flags = KVF_WORD_FAILED_EARLY;
    if (is_leased) {
        return kvf_word_make(r->generation, KVF_PHASE_CLOSING, KVF_OUTCOME_FAILED,
                             KVF_PROOF_NONE, KVF_STATE_TRANSFERRING, flags);
    }
    enum kvf_poll_state poll = r->group_id != 0 ? KVF_STATE_TRANSFERRING : KVF_STATE_FAILED;
    flags |= r->group_id != 0 ? KVF_WORD_GROUP_WAITS : 0;
    return kvf_word_make(r->generation, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED,
                         KVF_PROOF_WORKER_GONE, poll, flags);
}

void pair_reap(struct pair *p, uint32_t daemon)
{
    struct pair_daemon *d = &p->daemons[daemon];
    struct pair_client kept[PAIR_CLIENTS];
    for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
        kept[c] = d->clients[c];
        d->clients[c].slots = NULL; /* the segment outlives the worker */
        d->clients[c].generations = NULL;
    }
    pair_daemon_end(p, daemon);
    for (struct pair_room *r = p->rooms; r != NULL; r = r->next_room) {
        if (r->daemon != daemon || r->is_lost || r->rc != 0 || r->drained_count > 0) {
            continue;
        }
        bool is_leased = r->cpu + r->gpu + r->direct_io > 0;
        r->are_leases_closed = true;
        pair_room_reaped(p, r, reaped_word(r, is_leased));
    }
    for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
        d->clients[c].slots = kept[c].slots;
        d->clients[c].generations = kept[c].generations;
        d->clients[c].next_slot = kept[c].next_slot;
        memcpy(d->clients[c].groups, kept[c].groups, sizeof kept[c].groups);
        memcpy(d->clients[c].keys, kept[c].keys, sizeof kept[c].keys);
    }
}

static void adopt(struct pair *p, struct pair_room *r)
{
    struct pair_client *c = &p->daemons[r->daemon].clients[r->client];
    bool is_drained = r->drained_count > 0;
    if (c->slots[r->slot] != r || (is_drained && r->group_id == 0)) {
        return;
    }
    struct kvf_core_adopt a = {.client = r->client,
                               .slot = r->slot,
                               .generation = r->generation,
                               .key = r->key,
                               .group = r->group,
                               .outcome = (uint8_t)kvf_word_outcome(r->view.word),
                               .proof = (uint8_t)kvf_word_proof(r->view.word),
                               .is_drained = is_drained,
                               .is_visible = (r->view.word & KVF_WORD_VISIBLE) != 0,
                               .is_quarantined =
                                   kvf_word_phase(r->view.word) == KVF_PHASE_QUARANTINED,
                               .is_group_settled = !pair_is_waiting(r),
                               .reason = r->view.reason};
    int rc = kvf_core_adopt(p->daemons[r->daemon].core, pair_clock(p, r->daemon), &a);
    if (rc != 0) {
        pair_fail(p, "the room of key %llx is not adopted: %d", (unsigned long long)r->key, rc);
    }
}

void pair_takeover(struct pair *p, uint32_t daemon)
{
    struct pair_client kept[PAIR_CLIENTS];
    memcpy(kept, p->daemons[daemon].clients, sizeof kept);
    pair_revive(p, daemon, true);
    struct pair_daemon *d = &p->daemons[daemon];
    for (uint32_t i = 0; i < PAIR_CLIENTS; i++) {
        struct pair_client *c = &d->clients[i];
        free(c->slots);
        free(c->generations);
        c->slots = kept[i].slots;
        c->generations = kept[i].generations;
        c->next_slot = kept[i].next_slot;
        memcpy(c->groups, kept[i].groups, sizeof c->groups);
        memcpy(c->keys, kept[i].keys, sizeof c->keys);
        for (uint32_t k = 0; k < PAIR_TOMBS_MAX; k++) {
            if (c->keys[k].group != 0 &&
                kvf_core_group_key(d->core, i, k, c->keys[k].group, c->keys[k].key) != 0) {
                pair_fail(p, "kept key %u is not taken by the next worker", k);
            }
        }
    }
    for (struct pair_room *r = p->rooms; r != NULL; r = r->next_room) {
        if (r->daemon == daemon && !r->is_lost && r->rc == 0) {
            adopt(p, r);
        }
    }
    pair_drain(p, daemon);
    for (uint32_t i = 0; i < PAIR_CLIENTS; i++) {
        for (uint32_t h = 1; h <= PAIR_GROUPS; h++) {
            const struct kvf_core_group *g = &d->clients[i].groups[h - 1];
            if (g->group_id != 0 &&
                kvf_core_group_add(d->core, pair_clock(p, daemon), i, h, g) != 0) {
                pair_fail(p, "group %u is not taken by the next worker", h);
            }
        }
    }
    pair_drain(p, daemon);
}

void pair_restart(struct pair *p, uint32_t daemon)
{
    pair_reap(p, daemon);
    pair_takeover(p, daemon);
}

/* Commands of engines on their way into the core, and room lines on their way out. */
#include <assert.h>
#include <string.h>
#include <sys/socket.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "sidecar/clients_internal.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "sidecar/reap.h"
#include "sidecar/run_dir.h"

/* ---- records ---------------------------------------------------------------------------------------- */

/* Copies a record out of the arena, once: the client may go on writing over the original. */
static const char *copy_record(struct kvf_clients *all, const struct client *c,
                               const struct kvf_cmd_shm *cmd)
{
    uint32_t limit = c->segment.limits.arena_bytes;
    if (cmd->arena_off % 8u != 0) {
        return "a record of its arena does not begin at a multiple of 8 bytes";
    }
    if (cmd->arena_off > limit || cmd->arena_bytes > limit - cmd->arena_off) {
        return "a record leaves its arena";
    }
    if (cmd->arena_bytes > sizeof(all->record)) {
        return "a record is longer than the longest page list";
    }
    memcpy(all->record, c->segment.arena + cmd->arena_off, cmd->arena_bytes);
    return NULL;
}

/* Records may be rounded up to a multiple of 8 bytes, no further. */
static bool is_exactly(uint32_t arena_bytes, uint64_t bytes)
{
    return arena_bytes >= bytes && arena_bytes < bytes + 8u;
}

static const char *parse_open(struct kvf_clients *all, const struct kvf_cmd_shm *cmd,
                              struct kvf_core_open *open)
{
    struct kvf_open_shm head;
    if (cmd->arena_bytes < sizeof(head)) {
        return "a record of an open is shorter than its head";
    }
    memcpy(&head, all->record, sizeof(head));
    if (head.writer_count > KVF_PEERS_PER_ROOM_MAX || head.run_count > KVF_RUNS_PER_LIST_MAX) {
        return "a record of an open counts more writers or runs than there may be";
    }
    uint64_t writers_off = sizeof(head);
    uint64_t runs_off = writers_off + head.writer_count * sizeof(struct kvf_writer_shm);
    if (!is_exactly(cmd->arena_bytes, runs_off + head.run_count * sizeof(struct kvf_run_shm))) {
        return "a record of an open is not as long as its counts say";
    }
    open->writers = (const struct kvf_writer_shm *)(const void *)(all->record + writers_off);
    open->writer_count = head.writer_count;
    open->runs = (const struct kvf_run_shm *)(const void *)(all->record + runs_off);
    open->run_count = head.run_count;
    open->region = head.region;
    open->aux_region = head.aux_region;
    open->sink_count = cmd->sinks;
    if (cmd->op == KVF_CMD_OPEN_SOURCE && (head.writer_count != 0 || head.run_count != 0)) {
        return "an open of a source names writers or pages";
    }
    return NULL;
}

/* ---- commands ------------------------------------------------------------------------------------------ */

/* Whatever the ring's order was, an abort that was called before this OPEN is read ends it at once. */
static uint32_t abort_of(struct client *c, uint32_t slot, uint64_t generation)
{
    /* A1 (acquire). */
    uint64_t cell =
        atomic_load_explicit(&c->segment.intents[slot].abort_cell, memory_order_acquire);
    if ((cell & KVF_ABORT_SET) == 0 || cell >> KVF_GENERATION_SHIFT != generation) {
        return 0;
    }
    c->slots[slot].abort_seen = cell;
    uint32_t reason = (uint32_t)(cell & KVF_ABORT_REASON_MASK);
    return reason == 0 ? KVF_E_ABORTED : reason;
}

/* A room that reads as drained is never opened: the engine may have reused its pages. This happens
 * when a worker ended between an engine's writing down its intent and its push. */
static bool has_ended(const struct client *c, uint32_t slot, uint64_t generation)
{
    uint64_t word = atomic_load_explicit(&c->segment.rooms[slot].word, memory_order_relaxed);
    return kvf_word_generation(word) > generation ||
           (kvf_word_generation(word) == generation && kvf_word_is_drained(word));
}

static const char *take_open(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                             const struct kvf_cmd_shm *cmd)
{
    struct kvf_core_open open = {.client = c->idx,
                                 .slot = cmd->slot,
                                 .generation = cmd->generation,
                                 .label = cmd->label,
                                 .key = cmd->key,
                                 .group = cmd->group};
    const char *why = copy_record(all, c, cmd);
    if (why == NULL) {
        why = parse_open(all, cmd, &open);
    }
    if (why != NULL) {
        return why;
    }
    struct client_slot *s = &c->slots[cmd->slot];
    if (has_ended(c, cmd->slot, cmd->generation)) {
        all->stale_count++;
        return NULL;
    }
    open.abort_reason = abort_of(c, cmd->slot, cmd->generation);
    open.is_old_epoch = cmd->worker_epoch != all->config.worker_epoch;
    atomic_store_explicit(&c->segment.rooms[cmd->slot].epoch, all->config.worker_epoch,
                          memory_order_relaxed);
    int err = cmd->op == KVF_CMD_OPEN_SINK ? kvf_core_open_sink(all->core, now_ns, &open)
                                           : kvf_core_open_source(all->core, now_ns, &open);
    if (err == 0) {
        s->generation = cmd->generation;
        s->opened_ns = now_ns;
        s->is_end_recorded = false;
    }
    return NULL; /* the core counted what it dropped */
}

static const char *take_submit(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                               const struct kvf_cmd_shm *cmd)
{
    const char *why = copy_record(all, c, cmd);
    if (why != NULL) {
        return why;
    }
    uint32_t run_count = cmd->arena_bytes / (uint32_t)sizeof(struct kvf_run_shm);
    if (run_count > KVF_RUNS_PER_LIST_MAX ||
        !is_exactly(cmd->arena_bytes, run_count * sizeof(struct kvf_run_shm))) {
        return "a record of a piece is no list of runs";
    }
    if (cmd->worker_epoch != all->config.worker_epoch) {
        all->stale_count++;
        return NULL;
    }
    struct kvf_core_submit submit = {.client = c->idx,
                                     .slot = cmd->slot,
                                     .generation = cmd->generation,
                                     .start = cmd->start,
                                     .is_last = (cmd->flags & KVF_SUBMIT_LAST) != 0,
                                     .runs =
                                         (const struct kvf_run_shm *)(const void *)all->record,
                                     .run_count = run_count};
    (void)kvf_core_submit(all->core, now_ns, &submit); /* a bad piece ends its room */
    return NULL;
}

const char *kvf_client_take_command(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                                    const struct kvf_cmd_shm *cmd)
{
    if (cmd->slot >= c->segment.limits.rooms_max) {
        return "a command names a slot beyond its room table";
    }
    if (cmd->generation == 0 || cmd->generation > KVF_GENERATION_MAX) {
        return "a command names no generation";
    }
    if ((cmd->flags & ~KVF_SUBMIT_LAST) != 0) {
        return "a command carries unknown flags";
    }
    switch (cmd->op) {
    case KVF_CMD_OPEN_SINK:
    case KVF_CMD_OPEN_SOURCE:
        return take_open(all, c, now_ns, cmd);
    case KVF_CMD_SUBMIT:
        return take_submit(all, c, now_ns, cmd);
    default: /* a byte of the client's, not one of our states */
        return "a command is unknown";
    }
}

/* ---- aborts and leases ----------------------------------------------------------------------------------- */

static void tell_leases(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                        uint32_t slot, uint64_t generation, uint64_t word)
{
    kvf_core_leases(all->core, now_ns, c->idx, slot, generation,
                    kvf_lease_count(word, KVF_LEASE_CPU), kvf_lease_count(word, KVF_LEASE_GPU),
                    kvf_lease_count(word, KVF_LEASE_DIRECT_IO));
}

void kvf_clients_close_leases(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                              uint32_t slot, uint64_t generation)
{
    struct client *c = &clients->table[client];
    uint64_t word = 0;
    /* Another generation in the word is an engine that broke the rules: nothing is out for this one. */
    if (kvf_lease_close(&c->segment.intents[slot].lease_word, generation, &word) != 0) {
        word = 0;
    }
    tell_leases(clients, c, now_ns, slot, generation, word);
}

void kvf_client_take_dirty(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                           uint32_t slot)
{
    struct client_slot *s = &c->slots[slot];
    struct kvf_intent_shm *intent = &c->segment.intents[slot];
    /* A1 (acquire). */
    uint64_t cell = atomic_load_explicit(&intent->abort_cell, memory_order_acquire);
    /* An abort of a generation whose OPEN is not read yet is found by that OPEN. */
    if ((cell & KVF_ABORT_SET) != 0 && cell >> KVF_GENERATION_SHIFT == s->generation &&
        cell != s->abort_seen) {
        s->abort_seen = cell;
        kvf_core_abort(all->core, now_ns, c->idx, slot, s->generation,
                       (uint32_t)(cell & KVF_ABORT_REASON_MASK));
    }
    /* L2 (acquire): with the counts at zero every use under a lease is behind us. */
    uint64_t leases = atomic_load_explicit(&intent->lease_word, memory_order_acquire);
    if ((leases & KVF_LEASE_CLOSED) != 0 && kvf_word_generation(leases) == s->generation) {
        tell_leases(all, c, now_ns, slot, s->generation, leases);
    }
}

/* ---- rooms of an earlier worker ------------------------------------------------------------------------------ */

/* Drained, and other ranks may still ask for it. */
static bool is_of_a_group(const struct client *c, uint32_t slot)
{
    const struct kvf_intent_shm *intent = &c->segment.intents[slot];
    /* O1 (acquire): the group is that of this generation. */
    uint64_t generation = atomic_load_explicit(&intent->generation, memory_order_acquire);
    uint64_t word = atomic_load_explicit(&c->segment.rooms[slot].word, memory_order_relaxed);
    return generation != 0 && kvf_word_generation(word) == generation &&
           kvf_word_is_drained(word) &&
           atomic_load_explicit(&intent->group, memory_order_relaxed) != 0;
}

void kvf_client_find_rooms(struct client *c)
{
    for (uint32_t slot = 0; slot < c->segment.limits.rooms_max; slot++) {
        enum kvf_reap reap = kvf_reap_room(&c->segment, slot, false, NULL);
        if (reap == KVF_REAP_WORKER_GONE) {
            c->ended_on_take++;
            c->succeeded_on_take += kvf_reap_has_succeeded(&c->segment, slot);
        }
        if (reap == KVF_REAP_LEASED || is_of_a_group(c, slot)) {
            c->slots[slot].is_found = true;
            c->found_count++;
        }
    }
}

/* The lines are the client's memory: what is copied from them is checked by the core, and can only spoil
 * rooms of this client. */
static void adopt_room(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                       uint32_t slot)
{
    const struct kvf_intent_shm *intent = &c->segment.intents[slot];
    const struct kvf_room_shm *room = &c->segment.rooms[slot];
    struct client_slot *s = &c->slots[slot];
    uint64_t word = atomic_load_explicit(&room->word, memory_order_relaxed);
    /* Whose lanes its pages were written through: stored before its OPEN came to the core. 0: none ever was. */
    uint64_t served = atomic_load_explicit(&room->epoch, memory_order_relaxed);
    struct kvf_core_adopt adopt = {
        .client = c->idx,
        .slot = slot,
        .generation = kvf_word_generation(word),
        .key = atomic_load_explicit(&intent->key, memory_order_relaxed),
        .group = atomic_load_explicit(&intent->group, memory_order_relaxed),
        .outcome = (uint8_t)kvf_word_outcome(word),
        .proof = (uint8_t)kvf_word_proof(word),
        .is_drained = kvf_word_is_drained(word),
        .is_visible = (word & KVF_WORD_VISIBLE) != 0,
        .is_quarantined = kvf_word_phase(word) == KVF_PHASE_QUARANTINED,
        .device_regions =
            (uint16_t)atomic_load_explicit(&intent->device_regions, memory_order_relaxed),
        .is_group_settled = (word & KVF_WORD_GROUP_WAITS) == 0,
        .is_rail_missing = served != 0 && !kvf_covered_has(all->config.covered, served),
        .closed_ns = served == all->config.past_epoch ? all->config.past_ended_ns : 0,
        .reason = atomic_load_explicit(&room->reason, memory_order_relaxed),
        .detail = atomic_load_explicit(&room->detail, memory_order_relaxed),
        .placed_bytes = atomic_load_explicit(&room->placed_bytes, memory_order_relaxed),
        .total_bytes = atomic_load_explicit(&room->total_bytes, memory_order_relaxed),
        .total_pages = atomic_load_explicit(&room->total_pages, memory_order_relaxed),
        .close_to_drained_ns =
            atomic_load_explicit(&room->close_to_drained_ns, memory_order_relaxed)};
    if (kvf_core_adopt(all->core, now_ns, &adopt) == 0) {
        bool is_unflushed = !adopt.is_drained && adopt.device_regions != 0;
        /* relaxed: E2, carried by the word's next store; until then the earlier worker's end is as good. What waits
         * for a flush goes on naming who wrote it, for the next one too: no library concludes anything of it. */
        atomic_store_explicit(&c->segment.rooms[slot].epoch,
                              is_unflushed ? served : all->config.worker_epoch,
                              memory_order_relaxed);
        s->generation = adopt.generation;
        s->opened_ns = now_ns;
        /* Else its time was counted by another worker, or by nobody. */
        s->is_end_recorded = !is_unflushed || adopt.outcome == KVF_OUTCOME_SUCCESS;
    }
}

void kvf_clients_keep_key(struct kvf_clients *clients, uint32_t client, uint32_t idx,
                          uint32_t group, uint64_t key)
{
    struct kvf_group_key_shm *keys = clients->table[client].segment.group_keys;
    assert(idx < KVF_GROUP_KEYS_MAX);
    if (keys != NULL) {
        /* relaxed: read by a process that begins after this one was reaped. The key first, so that an end
         * between the two leaves the place unused. */
        atomic_store_explicit(&keys[idx].key, key, memory_order_relaxed);
        atomic_store_explicit(&keys[idx].group, group, memory_order_relaxed);
    }
}

/* Nonsense in it ends keys of this client, or keeps places taken: its own loss. */
static void adopt_keys(struct kvf_clients *all, struct client *c)
{
    const struct kvf_group_key_shm *keys = c->segment.group_keys;
    for (uint32_t i = 0; keys != NULL && i < KVF_GROUP_KEYS_MAX; i++) {
        uint32_t group = atomic_load_explicit(&keys[i].group, memory_order_relaxed);
        if (group != 0) {
            (void)kvf_core_group_key(all->core, c->idx, i, group,
                                     atomic_load_explicit(&keys[i].key, memory_order_relaxed));
        }
    }
}

void kvf_client_adopt_rooms(struct kvf_clients *all, struct client *c, uint64_t now_ns)
{
    adopt_keys(all, c);
    for (uint32_t slot = 0; slot < c->segment.limits.rooms_max && c->found_count > 0; slot++) {
        if (c->slots[slot].is_found) {
            c->slots[slot].is_found = false;
            c->found_count--;
            adopt_room(all, c, now_ns, slot);
        }
    }
}

/* Leases that may touch the pages of a room whose OPEN the core never had. */
static bool has_unread_leases(const struct client *c, uint32_t slot)
{
    struct kvf_intent_shm *intent = &c->segment.intents[slot];
    /* O1 (acquire): a generation in the line whose OPEN the core never had. */
    uint64_t generation = atomic_load_explicit(&intent->generation, memory_order_acquire);
    uint64_t leases = 0;
    if (generation == 0 || generation == c->slots[slot].generation ||
        has_ended(c, slot, generation) ||
        kvf_lease_close(&intent->lease_word, generation, &leases) != 0) {
        return false;
    }
    return kvf_lease_count(leases, KVF_LEASE_GPU) > 0 ||
           kvf_lease_count(leases, KVF_LEASE_DIRECT_IO) > 0 ||
           (!c->is_reaped && kvf_lease_count(leases, KVF_LEASE_CPU) > 0);
}

bool kvf_client_has_unread_leases(const struct client *c)
{
    bool has_leases = false;
    for (uint32_t slot = 0; slot < c->segment.limits.rooms_max; slot++) {
        has_leases = has_unread_leases(c, slot) || has_leases;
    }
    return has_leases;
}

void kvf_client_quarantine_unread(struct kvf_clients *all, struct client *c, uint64_t now_ns)
{
    assert(c->is_reaped);
    assert(c->state == CLIENT_CLOSED);
    for (uint32_t slot = 0; slot < c->segment.limits.rooms_max; slot++) {
        if (has_unread_leases(c, slot) &&
            kvf_reap_room(&c->segment, slot, true, NULL) == KVF_REAP_HELD) {
            adopt_room(all, c, now_ns, slot);
        }
    }
}

/* ---- lines ------------------------------------------------------------------------------------------------ */

static void set_moving(struct client *c, uint32_t slot, bool is_moving)
{
    struct client_slot *s = &c->slots[slot];
    if (is_moving && s->moving_idx == 0) {
        c->moving[c->moving_count++] = slot;
        s->moving_idx = c->moving_count;
    } else if (!is_moving && s->moving_idx != 0) {
        uint32_t last = c->moving[--c->moving_count];
        c->moving[s->moving_idx - 1u] = last;
        c->slots[last].moving_idx = s->moving_idx;
        s->moving_idx = 0;
    }
}

static void push_event(struct client *c, uint32_t slot, uint64_t word)
{
    struct kvf_event_shm event = {
        .slot = slot, .generation = kvf_word_generation(word), .word = word};
    struct kvf_segment_shm *shm = c->segment.shm;
    if (kvf_spsc_push_seq_cst(&c->events, &event, 1) == 0) {
        /* An event is a hint: the engine that finds this number changed looks at its rooms. D2 (seq_cst):
         * it stands for the event that found no place. */
        atomic_fetch_add_explicit(&shm->events_lost, 1, memory_order_seq_cst);
    }
    /* D2 (seq_cst): of this look and the library's arming, one sees the other side's store. */
    if (atomic_load_explicit(&shm->events_armed, memory_order_seq_cst) != 0 &&
        atomic_exchange_explicit(&shm->events_armed, 0, memory_order_seq_cst) != 0) {
        char byte = 1;
        ssize_t put = send(c->event_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)put; /* full: it is readable already */
    }
}

static void record_end(struct kvf_clients *all, const struct client_slot *s, uint64_t now_ns,
                       const struct kvf_core_room_view *view)
{
    kvf_stats_begin(all->config.stats);
    if (view->was_aborted) {
        kvf_stats_record(all->config.stats, KVF_HISTOGRAM_ABORT_TO_DRAINED,
                         view->close_to_drained_ns / KVF_NS_PER_US);
    } else {
        kvf_stats_record(all->config.stats, KVF_HISTOGRAM_OPEN_TO_SUCCESS,
                         (now_ns - s->opened_ns) / KVF_NS_PER_US);
    }
    kvf_stats_end(all->config.stats);
}

void kvf_clients_publish(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                         uint32_t slot)
{
    struct client *c = &clients->table[client];
    struct kvf_core_room_view view;
    kvf_core_room_view(clients->core, client, slot, &view);
    struct kvf_room_shm *room = &c->segment.rooms[slot];
    atomic_store_explicit(&room->reason, view.reason, memory_order_relaxed);
    atomic_store_explicit(&room->detail, view.detail, memory_order_relaxed);
    atomic_store_explicit(&room->placed_bytes, view.placed_bytes, memory_order_relaxed);
    atomic_store_explicit(&room->total_bytes, view.total_bytes, memory_order_relaxed);
    atomic_store_explicit(&room->total_pages, view.total_pages, memory_order_relaxed);
    atomic_store_explicit(&room->unproven, view.unproven, memory_order_relaxed);
    atomic_store_explicit(&room->close_to_drained_ns, view.close_to_drained_ns,
                          memory_order_relaxed);
    atomic_store_explicit(&room->group_waits, view.group_waits, memory_order_relaxed);
    /* R1 (release). After a DRAINED word the engine may hand the pages out again: the core has no lease
     * and no unproven lane left, and every byte that was placed is placed before this store.
     * D2 (seq_cst): a thread that armed and found the old word is seen by push_event's look. */
    atomic_store_explicit(&room->word, view.word, memory_order_seq_cst);
    bool is_drained = kvf_word_is_drained(view.word);
    set_moving(c, slot, !is_drained && kvf_word_poll(view.word) == KVF_STATE_TRANSFERRING);
    if (is_drained && !c->slots[slot].is_end_recorded) {
        c->slots[slot].is_end_recorded = true;
        record_end(clients, &c->slots[slot], now_ns, &view);
    }
    push_event(c, slot, view.word);
}

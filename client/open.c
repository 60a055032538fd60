/* Opening rooms.
 *
 * The order is the promise: the ledger shows the pages lent before the worker can see the command, the
 * client's line names generation and epoch before the push (edge O1), so that a scan after the worker's
 * end also ends a room whose OPEN was read and never answered, and whatever is refused on the way takes
 * back what was done before it. */
#include "client/internal.h"

#include <string.h>

#include "ring/lease_word.h"

struct open_sink {
    struct kvf_sink_opts opts;
    struct kvf_writer_shm writers[KVF_PEERS_PER_ROOM_MAX];
    struct kvf_client_region *region;
    struct kvf_client_region *aux;
    uint32_t main_run_count;
    uint32_t run_count;
};

/* ---- what can be checked without the lock ------------------------------------------------------------ */

/* The parts of the writers must cover [0, total) without overlap, in whatever order they are given. */
static int check_ranges(const struct open_sink *open, uint64_t total)
{
    uint32_t writer_count = open->opts.writer_count;
    uint64_t covered = 0;
    for (uint32_t round = 0; round < writer_count; round++) {
        uint32_t i = 0;
        while (i < writer_count && open->writers[i].start != covered) {
            i++;
        }
        if (i == writer_count || open->writers[i].count == 0) {
            return -KVF_E_PEER_COUNT;
        }
        covered += open->writers[i].count;
    }
    return covered == total ? 0 : -KVF_E_PEER_COUNT;
}

static int fill_writers(struct open_sink *open)
{
    const struct kvf_sink_opts *o = &open->opts;
    if (o->writer_count == 0 || o->writer_count > KVF_PEERS_PER_ROOM_MAX) {
        return -KVF_E_PEER_COUNT;
    }
    if (o->writers == NULL) {
        return -EINVAL;
    }
    bool has_ranges = o->range_starts != NULL;
    if (has_ranges != (o->range_counts != NULL)) {
        return -EINVAL;
    }
    uint64_t total = (uint64_t)o->page_count + o->aux_count;
    if (o->page_count > UINT32_MAX || total > UINT32_MAX) {
        return -E2BIG;
    }
    if (!has_ranges && o->writer_count > 1) {
        return -KVF_E_PEER_COUNT;
    }
    for (uint32_t i = 0; i < o->writer_count; i++) {
        if (o->writers[i] == NULL) {
            return -EINVAL;
        }
        int err = kvf_client_addr_parse(o->writers[i], &open->writers[i].addr);
        if (err != 0) {
            return err;
        }
        open->writers[i].start = has_ranges ? o->range_starts[i] : 0;
        open->writers[i].count = has_ranges ? o->range_counts[i] : (uint32_t)total;
    }
    return check_ranges(open, total);
}

static int check_sink(kvf_client *client, const struct kvf_sink_opts *opts,
                      struct open_sink *open)
{
    *open = (struct open_sink){.run_count = 0};
    int err = kvf_client_copy_opts(&open->opts, sizeof open->opts, opts);
    if (err != 0) {
        return err;
    }
    if (!kvf_client_is_zero(open->opts.pad_, sizeof open->opts.pad_)) {
        return -KVF_E_OPTION;
    }
    if (open->opts.page_count == 0) {
        return -KVF_E_NO_PAGES;
    }
    if ((open->opts.pages == NULL && open->opts.pages64 == NULL) ||
        (open->opts.aux_count != 0 && open->opts.aux_pages == NULL)) {
        return -EINVAL;
    }
    return kvf_client_has_group(client, open->opts.group) ? fill_writers(open)
                                                          : -KVF_E_UNKNOWN_GROUP;
}

/* ---- with the lock ----------------------------------------------------------------------------------- */

static int find_pages(kvf_client *client, struct open_sink *open)
{
    const struct kvf_sink_opts *o = &open->opts;
    open->region = kvf_client_region_find(client, o->region);
    if (open->region == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    struct kvf_page_list list = {
        .pages = o->pages, .pages64 = o->pages64, .count = o->page_count};
    int err = kvf_client_runs_append(client, open->region, &list, &open->run_count);
    if (err != 0) {
        return err;
    }
    open->main_run_count = open->run_count;
    if (o->aux_count == 0) {
        return 0;
    }
    open->aux = kvf_client_region_find(client, o->aux_region);
    if (open->aux == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    struct kvf_page_list aux = {.pages = o->aux_pages, .count = o->aux_count};
    return kvf_client_runs_append(client, open->aux, &aux, &open->run_count);
}

static void unlend_sink(kvf_client *client, const struct open_sink *open, uint32_t slot,
                        uint64_t generation)
{
    const struct kvf_run_shm *runs = client->cold.runs;
    kvf_ledger_undo_sink(open->region->words, runs, open->main_run_count, slot, generation);
    if (open->aux != NULL) {
        kvf_ledger_undo_sink(open->aux->words, runs + open->main_run_count,
                             open->run_count - open->main_run_count, slot, generation);
    }
}

static int lend_once(kvf_client *client, const struct open_sink *open, uint32_t slot,
                     uint64_t generation)
{
    const struct kvf_segment *segment = &client->cold.segment;
    const struct kvf_run_shm *runs = client->cold.runs;
    uint64_t position;
    int err =
        kvf_ledger_lend_sink(open->region->words, segment->rooms, segment->limits.rooms_max,
                             runs, open->main_run_count, slot, generation, &position);
    if (err != 0 || open->aux == NULL) {
        return err;
    }
    err = kvf_ledger_lend_sink(open->aux->words, segment->rooms, segment->limits.rooms_max,
                               runs + open->main_run_count,
                               open->run_count - open->main_run_count, slot, generation,
                               &position);
    if (err != 0) {
        kvf_ledger_undo_sink(open->region->words, runs, open->main_run_count, slot, generation);
    }
    return err;
}

static int lend_sink(kvf_client *client, const struct open_sink *open, uint32_t slot,
                     uint64_t generation)
{
    int err = lend_once(client, open, slot, generation);
    /* A page may only look lent because nobody yet undid what a drained source room counts. */
    if (err == -EBUSY && kvf_client_sweep_counts(client, true)) {
        err = lend_once(client, open, slot, generation);
    }
    switch (err) {
    case -EBUSY:
        return -KVF_E_PAGE_LENT;
    case -EEXIST:
        return -KVF_E_PAGE_TWICE;
    default:
        return err;
    }
}

/* Both lines of the slot now speak of the new generation. */
static void write_intent(kvf_client *client, uint32_t idx, uint64_t generation,
                         const struct kvf_cmd_shm *cmd, uint32_t device_regions)
{
    struct kvf_intent_shm *intent = &client->cold.segment.intents[idx];
    /* L1 (release): a lease taken from now on belongs to this generation. */
    atomic_store_explicit(&intent->lease_word, kvf_lease_word_make(generation),
                          memory_order_release);
    atomic_store_explicit(&intent->epoch, cmd->worker_epoch, memory_order_relaxed);
    atomic_store_explicit(&intent->key, cmd->key, memory_order_relaxed);
    atomic_store_explicit(&intent->group, cmd->group, memory_order_relaxed);
    atomic_store_explicit(&intent->device_regions, device_regions, memory_order_relaxed);
    /* O1 (release): whoever reads this generation after the worker's end finds its epoch too, the group
     * that must not see it fail before the other ranks are drained, and what that end does not prove. */
    atomic_store_explicit(&intent->generation, generation, memory_order_release);
    atomic_store_explicit(&intent->abort_cell, 0, memory_order_relaxed);
}

static void write_sink_record(kvf_client *client, const struct open_sink *open, uint32_t off)
{
    unsigned char *to = client->cold.arena.base + off;
    struct kvf_open_shm record = {.writer_count = open->opts.writer_count,
                                  .run_count = open->run_count,
                                  .region = open->opts.region,
                                  .aux_region =
                                      open->aux != NULL ? open->opts.aux_region : UINT32_MAX};
    memcpy(to, &record, sizeof record);
    to += sizeof record;
    memcpy(to, open->writers, record.writer_count * sizeof open->writers[0]);
    to += record.writer_count * sizeof open->writers[0];
    memcpy(to, client->cold.runs, record.run_count * sizeof client->cold.runs[0]);
}

static uint32_t device_bit(const struct kvf_client_region *region)
{
    /* relaxed: changed under the lock, which is held. */
    return region != NULL && region->req->memory != KVF_REGION_MEMORY_HOST
               ? UINT32_C(1) << (atomic_load_explicit(&region->handle, memory_order_relaxed) &
                                 0xffu)
               : 0;
}

/* Pushes the command of a slot whose pages are lent. On 0 the room is the engine's. */
static int push_open(kvf_client *client, struct kvf_slot *slot, struct kvf_cmd_shm *cmd,
                     uint32_t region, uint32_t aux_region, uint32_t device_regions)
{
    struct kvf_cold *cold = &client->cold;
    uint32_t idx = kvf_client_slot_idx(client, slot);
    uint64_t pos = cold->cmds.pos;
    write_intent(client, idx, slot->generation, cmd, device_regions);
    cmd->slot = idx;
    cmd->generation = slot->generation;
    /* D1 (seq_cst): the worker sees the slot when it looks after setting its flag, or we see the flag. */
    if (kvf_spsc_push_seq_cst(&cold->cmds, cmd, 1) != 1) {
        return -EAGAIN;
    }
    kvf_arena_commit(&cold->arena, cmd->arena_off, cmd->arena_bytes, pos);
    slot->epoch = cmd->worker_epoch;
    slot->role = cmd->op == KVF_CMD_OPEN_SINK ? KVF_ROLE_SINK : KVF_ROLE_SOURCE;
    slot->region = region;
    slot->aux_region = aux_region;
    slot->group = cmd->group;
    kvf_room handle = kvf_client_handle(slot->generation, idx);
    atomic_store_explicit(&slot->handle, handle, memory_order_relaxed);
    atomic_store_explicit(&client->hot.handles[idx], handle, memory_order_relaxed);
    kvf_client_wake_worker(client);
    return 0;
}

/* Room for the record and the command; nothing is taken yet. */
static int find_place(kvf_client *client, uint64_t bytes, uint32_t *ret_off)
{
    int err = kvf_arena_find(client, bytes, ret_off);
    if (err == 0 && !kvf_spsc_has_room(&client->cold.cmds)) {
        err = -EAGAIN;
    }
    return err;
}

static int open_sink_locked(kvf_client *client, struct open_sink *open, kvf_room *ret_room)
{
    uint64_t epoch;
    int err = kvf_client_epoch(client, true, &epoch);
    if (err == 0) {
        err = find_pages(client, open);
    }
    if (err != 0) {
        return err;
    }
    kvf_client_tidy(client, false);
    uint64_t bytes = sizeof(struct kvf_open_shm) +
                     open->opts.writer_count * sizeof(struct kvf_writer_shm) +
                     open->run_count * sizeof(struct kvf_run_shm);
    uint32_t off;
    err = find_place(client, bytes, &off);
    if (err != 0) {
        return err;
    }
    struct kvf_slot *slot;
    err = kvf_client_slot_take(client, &slot);
    if (err != 0) {
        return err;
    }
    uint32_t idx = kvf_client_slot_idx(client, slot);
    err = lend_sink(client, open, idx, slot->generation);
    if (err != 0) {
        goto give_back;
    }
    write_sink_record(client, open, off);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_OPEN_SINK,
                              .worker_epoch = epoch,
                              .label = open->opts.label,
                              .key = open->opts.key,
                              .group = open->opts.group,
                              .arena_off = off,
                              .arena_bytes = (uint32_t)bytes};
    err = push_open(client, slot, &cmd, open->opts.region,
                    open->aux != NULL ? open->opts.aux_region : UINT32_MAX,
                    device_bit(open->region) | device_bit(open->aux));
    if (err != 0) {
        goto unlend;
    }
    *ret_room = kvf_client_handle(slot->generation, idx);
    return 0;
unlend:
    unlend_sink(client, open, idx, slot->generation);
give_back:
    kvf_client_slot_give_back(client, slot);
    return err;
}

int kvf_open_sink(kvf_client *client, const struct kvf_sink_opts *opts, kvf_room *ret_room)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (opts == NULL || ret_room == NULL) {
        return -EINVAL;
    }
    struct open_sink open;
    err = check_sink(client, opts, &open);
    if (err != 0) {
        return err;
    }
    pthread_mutex_lock(&client->cold.lock);
    err = open_sink_locked(client, &open, ret_room);
    pthread_mutex_unlock(&client->cold.lock);
    return err;
}

/* ---- sources ------------------------------------------------------------------------------------------- */

static int open_source_locked(kvf_client *client, const struct kvf_source_opts *o,
                              kvf_room *ret_room)
{
    uint64_t epoch;
    int err = kvf_client_epoch(client, true, &epoch);
    if (err != 0) {
        return err;
    }
    if (kvf_client_region_find(client, o->region) == NULL ||
        (o->has_aux != 0 && kvf_client_region_find(client, o->aux_region) == NULL)) {
        return -KVF_E_UNKNOWN_REGION;
    }
    kvf_client_tidy(client, false);
    struct kvf_open_shm record = {.region = o->region,
                                  .aux_region = o->has_aux != 0 ? o->aux_region : UINT32_MAX};
    uint32_t off;
    err = find_place(client, sizeof record, &off);
    if (err != 0) {
        return err;
    }
    struct kvf_slot *slot;
    err = kvf_client_slot_take(client, &slot);
    if (err != 0) {
        return err;
    }
    memcpy(client->cold.arena.base + off, &record, sizeof record);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_OPEN_SOURCE,
                              .sinks = (uint16_t)(o->sink_count != 0 ? o->sink_count : 1),
                              .worker_epoch = epoch,
                              .label = o->label,
                              .key = o->key,
                              .group = o->group,
                              .arena_off = off,
                              .arena_bytes = sizeof record};
    err = push_open(client, slot, &cmd, record.region, record.aux_region, 0);
    if (err != 0) {
        kvf_client_slot_give_back(client, slot);
        return err;
    }
    *ret_room = kvf_client_handle(slot->generation, kvf_client_slot_idx(client, slot));
    return 0;
}

int kvf_open_source(kvf_client *client, const struct kvf_source_opts *opts, kvf_room *ret_room)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (opts == NULL || ret_room == NULL) {
        return -EINVAL;
    }
    struct kvf_source_opts o;
    err = kvf_client_copy_opts(&o, sizeof o, opts);
    if (err != 0) {
        return err;
    }
    if (o.has_aux > 1 || !kvf_client_is_zero(o.pad_, sizeof o.pad_)) {
        return -KVF_E_OPTION;
    }
    if (o.sink_count > KVF_PEERS_PER_ROOM_MAX) {
        return -KVF_E_PEER_COUNT;
    }
    if (!kvf_client_has_group(client, o.group)) {
        return -KVF_E_UNKNOWN_GROUP;
    }
    pthread_mutex_lock(&client->cold.lock);
    err = open_source_locked(client, &o, ret_room);
    pthread_mutex_unlock(&client->cold.lock);
    return err;
}

/* Pieces of source rooms.
 *
 * Which positions were submitted and which pages are lent for reading is kept here, in memory of the
 * library alone: the worker checks for itself, and neither believes the other. */
#include "client/internal.h"

#include <string.h>

struct piece {
    struct kvf_piece_opts opts;
    struct kvf_client_region *region;
    uint32_t run_count;
    uint32_t end; /* behind the last position */
};

/* ---- positions ----------------------------------------------------------------------------------------- */

/* The last interval that begins before `start`, or KVF_NO_INDEX. */
static uint32_t interval_before(const kvf_client *client, const struct kvf_slot *slot,
                                uint32_t start)
{
    uint32_t before = KVF_NO_INDEX;
    for (uint32_t at = slot->intervals; at != KVF_NO_INDEX;) {
        const struct kvf_interval *interval = kvf_nodes_at(&client->cold.interval_nodes, at);
        if (interval->start >= start) {
            break;
        }
        before = at;
        at = interval->next;
    }
    return before;
}

static bool is_overlapping(const kvf_client *client, const struct kvf_slot *slot,
                           const struct piece *piece)
{
    uint32_t before_idx = interval_before(client, slot, piece->opts.start);
    uint32_t after_idx = slot->intervals;
    if (before_idx != KVF_NO_INDEX) {
        const struct kvf_interval *before =
            kvf_nodes_at(&client->cold.interval_nodes, before_idx);
        if (before->end > piece->opts.start) {
            return true;
        }
        after_idx = before->next;
    }
    return after_idx != KVF_NO_INDEX &&
           ((const struct kvf_interval *)kvf_nodes_at(&client->cold.interval_nodes, after_idx))
                   ->start < piece->end;
}

/* Adds [start, end), which overlaps nothing, and joins it with its neighbours: pieces that come in order
 * need one node. A free node is there: the caller looked. */
static void interval_add(kvf_client *client, struct kvf_slot *slot, const struct piece *piece)
{
    struct kvf_nodes *nodes = &client->cold.interval_nodes;
    uint32_t before_idx = interval_before(client, slot, piece->opts.start);
    struct kvf_interval *before =
        before_idx != KVF_NO_INDEX ? kvf_nodes_at(nodes, before_idx) : NULL;
    uint32_t after_idx = before != NULL ? before->next : slot->intervals;
    uint32_t end = piece->end;
    if (after_idx != KVF_NO_INDEX) {
        const struct kvf_interval *after = kvf_nodes_at(nodes, after_idx);
        if (after->start == end) {
            end = after->end;
            uint32_t behind = after->next;
            kvf_nodes_give_back(nodes, after_idx);
            after_idx = behind;
        }
    }
    if (before != NULL && before->end == piece->opts.start) {
        before->end = end;
        before->next = after_idx;
        return;
    }
    uint32_t idx = kvf_nodes_take(nodes);
    struct kvf_interval *interval = kvf_nodes_at(nodes, idx);
    *interval =
        (struct kvf_interval){.next = after_idx, .start = piece->opts.start, .end = end};
    if (before != NULL) {
        before->next = idx;
    } else {
        slot->intervals = idx;
    }
}

/* ---- pages lent for reading ------------------------------------------------------------------------------ */

static void remember_runs(kvf_client *client, struct kvf_slot *slot, uint32_t run_count)
{
    struct kvf_cold *cold = &client->cold;
    const struct kvf_run_shm *runs = cold->runs;
    uint32_t idx = kvf_client_slot_idx(client, slot);
    uint32_t kept = 0;
    while (kept < run_count) {
        struct kvf_run_chunk *chunk = slot->chunks != KVF_NO_INDEX
                                          ? kvf_nodes_at(&cold->chunk_nodes, slot->chunks)
                                          : NULL;
        if (chunk == NULL || chunk->run_count == KVF_RUNS_PER_CHUNK) {
            uint32_t fresh = kvf_nodes_take(&cold->chunk_nodes);
            chunk = kvf_nodes_at(&cold->chunk_nodes, fresh);
            chunk->next = slot->chunks;
            chunk->run_count = 0;
            slot->chunks = fresh;
        }
        chunk->runs[chunk->run_count++] = runs[kept++];
    }
    atomic_fetch_or_explicit(&cold->counted[idx / 64u], UINT64_C(1) << (idx % 64u),
                             memory_order_relaxed);
}

static int lend_source(kvf_client *client, const struct piece *piece)
{
    const struct kvf_segment *segment = &client->cold.segment;
    uint64_t position;
    int err =
        kvf_ledger_lend_source(piece->region->words, segment->rooms, segment->limits.rooms_max,
                               client->cold.runs, piece->run_count, &position);
    return err == -EBUSY ? -KVF_E_PAGE_LENT : err;
}

/* ---- the call ---------------------------------------------------------------------------------------------- */

/* What the room's word says about pieces. An ended room answers with the reason it has, where it has one. */
static int check_room(const kvf_client *client, const struct kvf_slot *slot, kvf_room room,
                      const struct piece *piece)
{
    uint64_t word;
    int err = kvf_client_room_word(client, room, &word);
    if (err != 0) {
        return err;
    }
    if (slot->role != KVF_ROLE_SOURCE) {
        return -KVF_E_ROLE;
    }
    if (slot->has_last != 0) {
        return -KVF_E_PIECES_CLOSED;
    }
    uint32_t idx = kvf_client_slot_idx(client, slot);
    const struct kvf_room_shm *line = &client->cold.segment.rooms[idx];
    if (kvf_word_phase(word) != KVF_PHASE_OPEN || (word & KVF_WORD_FAILED_EARLY) != 0) {
        uint32_t reason = atomic_load_explicit(&line->reason, memory_order_relaxed);
        return reason >= KVF_E_NO_DAEMON && reason <= KVF_E_LEASE_KIND ? -(int)reason
                                                                       : -KVF_E_PIECES_CLOSED;
    }
    uint64_t cell = atomic_load_explicit(&client->cold.segment.intents[idx].abort_cell,
                                         memory_order_relaxed);
    if ((cell & KVF_ABORT_SET) != 0 && kvf_word_generation(cell) == slot->generation) {
        return -KVF_E_ABORTED;
    }
    /* The line is of this generation only once its word is. */
    uint64_t stored = atomic_load_explicit(&line->word, memory_order_acquire); /* R1 */
    uint32_t total = kvf_word_generation(stored) == slot->generation
                         ? atomic_load_explicit(&line->total_pages, memory_order_relaxed)
                         : 0;
    if (total != 0 && piece->end > total) {
        return -KVF_E_PIECE_RANGE;
    }
    return is_overlapping(client, slot, piece) ? -KVF_E_PIECE_OVERLAP : 0;
}

static int find_region(kvf_client *client, const struct kvf_slot *slot, struct piece *piece)
{
    uint32_t handle = piece->opts.region;
    if (handle != slot->region && handle != slot->aux_region) {
        return -KVF_E_UNKNOWN_REGION;
    }
    piece->region = kvf_client_region_find(client, handle);
    if (piece->region == NULL) {
        return -KVF_E_UNKNOWN_REGION;
    }
    struct kvf_page_list list = {.pages = piece->opts.pages,
                                 .pages64 = piece->opts.pages64,
                                 .count = piece->opts.page_count};
    return kvf_client_runs_append(client, piece->region, &list, &piece->run_count);
}

/* Everything the piece will need: taken only when nothing can be refused any more. */
static int find_place(kvf_client *client, const struct piece *piece, uint64_t bytes,
                      uint32_t *ret_off)
{
    const struct kvf_cold *cold = &client->cold;
    uint32_t chunks_wanted = piece->run_count / KVF_RUNS_PER_CHUNK + 1u;
    if (kvf_nodes_free_count(&cold->chunk_nodes) < chunks_wanted ||
        kvf_nodes_free_count(&cold->interval_nodes) == 0 || !kvf_spsc_has_room(&cold->cmds)) {
        return -EAGAIN;
    }
    return kvf_arena_find(client, bytes, ret_off);
}

static int submit_locked(kvf_client *client, kvf_room room, struct piece *piece)
{
    struct kvf_cold *cold = &client->cold;
    int err = 0;
    struct kvf_slot *slot = kvf_client_slot_find(client, room, &err);
    if (slot == NULL) {
        return err;
    }
    err = check_room(client, slot, room, piece);
    if (err != 0) {
        return err;
    }
    uint64_t epoch;
    err = kvf_client_epoch(client, false, &epoch);
    if (err == 0 && epoch != slot->epoch) {
        err = -KVF_E_WORKER_GONE; /* the next worker would drop the command */
    }
    if (err == 0) {
        err = find_region(client, slot, piece);
    }
    if (err != 0) {
        return err;
    }
    kvf_client_tidy(client, false);
    uint32_t off;
    uint64_t bytes = piece->run_count * sizeof(struct kvf_run_shm);
    err = find_place(client, piece, bytes, &off);
    if (err == 0) {
        err = lend_source(client, piece);
    }
    if (err != 0) {
        return err;
    }
    memcpy(cold->arena.base + off, cold->runs, bytes);
    bool is_last = (piece->opts.flags & KVF_LAST_PIECE) != 0;
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_SUBMIT,
                              .flags = is_last ? KVF_SUBMIT_LAST : 0,
                              .slot = kvf_client_slot_idx(client, slot),
                              .generation = slot->generation,
                              .worker_epoch = epoch,
                              .arena_off = off,
                              .arena_bytes = (uint32_t)bytes,
                              .start = piece->opts.start};
    uint64_t pos = cold->cmds.pos;
    /* D1 (seq_cst), as in push_open. */
    if (kvf_spsc_push_seq_cst(&cold->cmds, &cmd, 1) != 1) {
        kvf_ledger_undo_source(piece->region->words, cold->runs, piece->run_count);
        return -EAGAIN;
    }
    kvf_arena_commit(&cold->arena, off, bytes, pos);
    remember_runs(client, slot, piece->run_count);
    interval_add(client, slot, piece);
    slot->has_last = is_last;
    kvf_client_wake_worker(client);
    return 0;
}

int kvf_submit(kvf_client *client, kvf_room room, const struct kvf_piece_opts *opts)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (opts == NULL) {
        return -EINVAL;
    }
    struct piece piece = {.run_count = 0};
    err = kvf_client_copy_opts(&piece.opts, sizeof piece.opts, opts);
    if (err != 0) {
        return err;
    }
    if ((piece.opts.flags & ~(uint32_t)KVF_LAST_PIECE) != 0 ||
        !kvf_client_is_zero(piece.opts.pad_, sizeof piece.opts.pad_)) {
        return -KVF_E_OPTION;
    }
    if (piece.opts.page_count == 0) {
        return -KVF_E_NO_PAGES;
    }
    if (piece.opts.page_count > UINT32_MAX - piece.opts.start) {
        return -KVF_E_PIECE_RANGE;
    }
    piece.end = piece.opts.start + (uint32_t)piece.opts.page_count;
    pthread_mutex_lock(&client->cold.lock);
    err = submit_locked(client, room, &piece);
    pthread_mutex_unlock(&client->cold.lock);
    return err;
}

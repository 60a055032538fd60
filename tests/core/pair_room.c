/* Engines: rooms, their pages, and the oracle that watches both. */
#include "tests/core/pair_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- clients and regions ---------------------------------------------------------------------------- */

void pair_client_add(struct pair *p, uint32_t daemon, uint32_t client)
{
    struct pair_client *c = &p->daemons[daemon].clients[client];
    *c = (struct pair_client){.is_added = true,
                              .slots = calloc(p->options.rooms, sizeof(struct pair_room *)),
                              .generations = calloc(p->options.rooms, sizeof(uint64_t))};
    if (kvf_core_client_add(p->daemons[daemon].core, client, p->options.rooms) != 0) {
        pair_fail(p, "client %u of daemon %u is not taken", client, daemon);
    }
}

struct pair_region *pair_region_of(struct pair *p, uint32_t daemon, uint32_t client,
                                   uint32_t handle)
{
    uint32_t slot = handle & 0xffu;
    struct pair_region *reg = &p->daemons[daemon].clients[client].regions[slot % PAIR_REGIONS];
    return slot < PAIR_REGIONS && reg->handle == handle && handle != 0 ? reg : NULL;
}

void pair_region_add(struct pair *p, uint32_t daemon, uint32_t client, uint32_t handle,
                     uint32_t page_count, uint32_t page_bytes)
{
    struct pair_region *reg = &p->daemons[daemon].clients[client].regions[handle & 0xffu];
    *reg = (struct pair_region){.handle = handle,
                                .page_count = page_count,
                                .owners = calloc(page_count, sizeof(uint32_t)),
                                .pages = calloc(page_count, sizeof(struct pair_page)),
                                .plane = {.stride = page_bytes, .page_bytes = page_bytes}};
    int err = kvf_core_region_add(p->daemons[daemon].core, client, handle, page_count, 1,
                                  &reg->plane, reg->owners);
    if (err == 0 && p->options.are_queue_pairs) {
        uint32_t slot = handle & 0xffu;
        reg->base = (uint64_t)(daemon + 1) << 48 | (uint64_t)client << 46 |
                    (uint64_t)slot << 45 | (uint64_t)(handle >> 8) << 36;
        reg->key = (uint32_t)(reg->base >> 36) * 16u;
        uint32_t keys[KVF_WIRE_KEYS_MAX];
        for (uint32_t i = 0; i < p->options.rails; i++) {
            keys[i] = reg->key + i;
        }
        err = kvf_core_region_keys(p->daemons[daemon].core, client, handle, reg->base, keys,
                                   p->options.rails);
    }
    if (err != 0) {
        pair_fail(p, "region %#x of daemon %u is not taken: %d", handle, daemon, err);
    }
}

int pair_region_remove(struct pair *p, uint32_t daemon, uint32_t client, uint32_t handle)
{
    int err = kvf_core_region_remove(p->daemons[daemon].core, client, handle);
    if (err == 0) {
        struct pair_region *reg = pair_region_of(p, daemon, client, handle);
        for (uint32_t i = 0; i < reg->page_count; i++) {
            if (reg->pages[i].owner != NULL || reg->pages[i].readers != 0) {
                pair_fail(p, "a region with lent pages was removed");
            }
        }
        free(reg->owners);
        free(reg->pages);
        *reg = (struct pair_region){0};
    }
    return err;
}

void pair_client_close(struct pair *p, uint32_t daemon, uint32_t client, uint32_t reason)
{
    kvf_core_client_close(p->daemons[daemon].core, pair_clock(p, daemon), client, reason);
    pair_drain(p, daemon);
}

void pair_client_reaped(struct pair *p, uint32_t daemon, uint32_t client)
{
    p->daemons[daemon].clients[client].is_reaped = true;
    kvf_core_client_reaped(p->daemons[daemon].core, pair_clock(p, daemon), client);
    pair_drain(p, daemon);
}

void pair_client_remove(struct pair *p, uint32_t daemon, uint32_t client)
{
    struct pair_client *c = &p->daemons[daemon].clients[client];
    kvf_core_client_remove(p->daemons[daemon].core, client);
    for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
        free(c->regions[i].owners);
        free(c->regions[i].pages);
    }
    free(c->slots);
    free(c->generations);
    *c = (struct pair_client){0};
}

/* ---- the oracle ------------------------------------------------------------------------------------- */

static uint64_t content_of_writer(const struct pair_room *r, uint32_t position,
                                  uint32_t *ret_position)
{
    for (uint32_t i = 0; i < r->writer_count; i++) {
        const struct kvf_writer_shm *w = &r->writers[i];
        if (position >= w->start && position - w->start < w->count) {
            *ret_position = position - w->start;
            return r->content + pair_daemon_at(&w->addr);
        }
    }
    return 0;
}

static uint64_t expected_tag(const struct pair_room *r, uint32_t position, uint32_t half)
{
    uint32_t at = 0;
    uint64_t content = content_of_writer(r, position, &at);
    return pair_tag(content, at, half);
}

void pair_write_half(struct pair *p, uint32_t daemon, const struct kvf_placement_at *at,
                     uint32_t page, uint32_t half, uint64_t tag)
{
    struct pair_region *reg = pair_region_of(p, daemon, at->client, at->region);
    if (reg == NULL || at->page_first >= reg->page_count ||
        page >= reg->page_count - at->page_first) {
        pair_fail(p, "a byte lands outside of every region");
    }
    struct pair_page *shadow = &reg->pages[at->page_first + page];
    const struct pair_room *owner = shadow->owner;
    if (owner == NULL) {
        pair_fail(p, "a byte lands in page %u, which is idle", at->page_first + page);
    }
    bool is_right = tag == PAIR_FILLER || owner->is_any_content ||
                    tag == expected_tag(owner, shadow->position, half);
    if (!is_right) {
        pair_fail(p, "a stranger's byte lands in page %u of the room of key %llx",
                  at->page_first + page, (unsigned long long)owner->key);
    }
    shadow->half[half] = tag;
}

uint64_t pair_read_half(struct pair *p, uint32_t daemon, const struct kvf_post *post,
                        uint32_t half)
{
    struct pair_region *reg = pair_region_of(p, daemon, post->client, post->region);
    uint32_t page = post->page_first + half / 2;
    if (reg == NULL || page >= reg->page_count) {
        pair_fail(p, "a read outside of every region");
    }
    if (reg->pages[page].readers == 0) {
        pair_fail(p, "a post reads source page %u after its room drained", page);
    }
    return reg->pages[page].half[half % 2];
}

static void sink_drained(struct pair *p, struct pair_room *r, bool is_success)
{
    for (uint32_t i = 0; i < r->page_count; i++) {
        struct pair_region *reg = pair_region_of(p, r->daemon, r->client, r->pages[i].region);
        if (reg == NULL || r->pages[i].page >= reg->page_count) {
            continue; /* a refused list */
        }
        struct pair_page *page = &reg->pages[r->pages[i].page];
        if (page->owner != r) {
            continue;
        }
        for (uint32_t half = 0; is_success && !r->is_any_content && half < 2; half++) {
            if (page->half[half] != expected_tag(r, page->position, half)) {
                pair_fail(p, "Success of key %llx with wrong bytes at position %u",
                          (unsigned long long)r->key, page->position);
            }
        }
        page->owner = NULL;
    }
}

/* The engine overwrites its pages the moment it may: a late read would send poison. */
static void source_drained(struct pair *p, struct pair_room *r)
{
    for (uint32_t i = 0; i < r->page_count; i++) {
        struct pair_region *reg = pair_region_of(p, r->daemon, r->client, r->pages[i].region);
        if (reg == NULL || r->pages[i].page >= reg->page_count) {
            continue;
        }
        struct pair_page *page = &reg->pages[r->pages[i].page];
        if (page->readers > 0 && --page->readers == 0) {
            page->half[0] = PAIR_POISON;
            page->half[1] = PAIR_POISON;
        }
    }
}

/* Somewhere in it: pages that only a flush makes visible, and idle. */
static bool is_in_device(struct pair *p, const struct pair_room *r)
{
    for (uint32_t i = 0; r->is_sink && i < r->page_count; i++) {
        const struct pair_region *reg =
            pair_region_of(p, r->daemon, r->client, r->pages[i].region);
        if (reg != NULL && reg->is_device) {
            return true;
        }
    }
    return false;
}

static void check_word(struct pair *p, const struct pair_room *r, uint64_t word)
{
    uint64_t old = r->view.word;
    enum kvf_phase phase = kvf_word_phase(word);
    enum kvf_outcome outcome = kvf_word_outcome(word);
    bool is_waiting = (word & KVF_WORD_GROUP_WAITS) != 0;
    /* The one word after drained: that every other rank has settled. */
    if (r->drained_count > 0 && (!pair_is_waiting(r) || phase != KVF_PHASE_DRAINED)) {
        pair_fail(p, "the room of key %llx is published after drained",
                  (unsigned long long)r->key);
    }
    if (r->publishes > 0 && kvf_word_outcome(old) != KVF_OUTCOME_NONE &&
        kvf_word_outcome(old) != outcome) {
        pair_fail(p, "an outcome changed");
    }
    if ((phase == KVF_PHASE_OPEN) != (outcome == KVF_OUTCOME_NONE) || phase == KVF_PHASE_FREE ||
        (r->publishes > 0 && kvf_word_phase(old) != KVF_PHASE_OPEN &&
         phase == KVF_PHASE_OPEN)) {
        pair_fail(p, "phase %d, outcome %d", (int)phase, (int)outcome);
    }
    if ((phase == KVF_PHASE_DRAINED) != (kvf_word_proof(word) != KVF_PROOF_NONE)) {
        pair_fail(p, "phase %d with proof %d", (int)phase, (int)kvf_word_proof(word));
    }
    bool is_success = phase == KVF_PHASE_DRAINED && outcome == KVF_OUTCOME_SUCCESS;
    bool is_whole =
        outcome == KVF_OUTCOME_SUCCESS && r->is_sink && (r->is_flushed || !is_in_device(p, r));
    if (((word & KVF_WORD_VISIBLE) != 0) != is_whole ||
        (kvf_word_poll(word) == KVF_STATE_SUCCESS) != is_success ||
        (kvf_word_poll(word) == KVF_STATE_FAILED) !=
            (phase == KVF_PHASE_DRAINED && !is_success && !is_waiting)) {
        pair_fail(p, "word %llx says visible or ended too early", (unsigned long long)word);
    }
}

static void check_drained(struct pair *p, const struct pair_room *r)
{
    bool is_reaped = p->daemons[r->daemon].clients[r->client].is_reaped;
    if (!r->are_leases_closed || r->gpu + r->direct_io > 0 || (r->cpu > 0 && !is_reaped)) {
        pair_fail(p, "drained under an external lease");
    }
    if (is_in_device(p, r) && !r->is_flushed &&
        kvf_word_proof(r->view.word) != KVF_PROOF_NEVER_POSTED &&
        kvf_word_proof(r->view.word) != KVF_PROOF_OPERATOR) {
        pair_fail(p, "drained before its pages were flushed");
    }
    if (r->view.unproven != 0) {
        pair_fail(p, "drained with %u (grant, lane) pairs shown as unproven", r->view.unproven);
    }
    uint64_t flush_ns = is_in_device(p, r) ? kvf_core_bound_flush_ns(&p->config) : 0;
    uint64_t bound_ns = kvf_core_bound_usual_ns(&p->config) + flush_ns;
    if (p->is_bound_checked && !r->is_bound_off &&
        r->view.close_to_drained_ns > bound_ns + p->bound_slack_ns) {
        pair_fail(p, "the bound is broken: %llu us from close to drained",
                  (unsigned long long)(r->view.close_to_drained_ns / 1000));
    }
}

void pair_room_published(struct pair *p, uint32_t daemon, const struct kvf_action *action)
{
    struct pair_room *r = p->daemons[daemon].clients[action->client].slots[action->slot];
    struct kvf_core_room_view view;
    kvf_core_room_view(p->daemons[daemon].core, action->client, action->slot, &view);
    if (r == NULL || r->generation != kvf_word_generation(view.word) ||
        action->generation != r->generation) {
        pair_fail(p, "daemon %u publishes slot %u for nobody", daemon, action->slot);
    }
    check_word(p, r, view.word);
    r->view = view;
    r->publishes++;
    if (kvf_word_poll(view.word) == KVF_STATE_FAILED) {
        pair_group_check(p, r);
    }
    if (kvf_word_is_drained(view.word) && r->drained_count == 0) {
        r->drained_count++;
        r->drained_ns = p->now_ns;
        check_drained(p, r);
        if (r->is_sink) {
            sink_drained(p, r, kvf_word_outcome(view.word) == KVF_OUTCOME_SUCCESS);
        } else {
            source_drained(p, r);
        }
    }
}

/* Its worker has ended and was reaped: this word was stored by the supervisor. */
void pair_room_reaped(struct pair *p, struct pair_room *r, uint64_t word)
{
    r->view = (struct kvf_core_room_view){.word = word, .reason = KVF_E_WORKER_GONE};
    if (kvf_word_is_drained(word)) {
        r->drained_count = 1;
        r->drained_ns = p->now_ns;
        r->is_bound_off = true;
    }
}

/* ---- memory of devices ---- */

void pair_region_device(struct pair *p, uint32_t daemon, uint32_t client, uint32_t handle)
{
    struct pair_daemon *d = &p->daemons[daemon];
    pair_region_of(p, daemon, client, handle)->is_device = true;
    if (kvf_core_region_ready(d->core, pair_clock(p, daemon), client, handle, true) != 0) {
        pair_fail(p, "no region to make a device's");
    }
    pair_drain(p, daemon);
}

static void answer_flush(struct pair *p, uint32_t daemon, const struct kvf_action *a, int err)
{
    struct pair_daemon *d = &p->daemons[daemon];
    struct pair_room *r = d->clients[a->client].slots[a->slot];
    if (r != NULL && r->generation == a->generation) {
        r->is_flushed = err == 0;
    }
    kvf_core_flushed(d->core, pair_clock(p, daemon), a->client, a->slot, a->generation, err);
}

void pair_room_flush(struct pair *p, uint32_t daemon, const struct kvf_action *a)
{
    struct pair_daemon *d = &p->daemons[daemon];
    const struct pair_region *reg = pair_region_of(p, daemon, a->client, a->region);
    if (reg == NULL || !reg->is_device || a->lanes == 0 || d->flushes_out == PAIR_FLUSHES_MAX) {
        pair_fail(p, "a flush of region %#x over lanes %#x", a->region, a->lanes);
    }
    d->flushes++;
    if (d->hold_flushes) {
        d->flush_out[d->flushes_out++] = *a;
    } else {
        answer_flush(p, daemon, a, 0);
    }
}

void pair_flushes_answer(struct pair *p, uint32_t daemon, int err)
{
    struct pair_daemon *d = &p->daemons[daemon];
    struct kvf_action out[PAIR_FLUSHES_MAX];
    uint32_t count = d->flushes_out;
    memcpy(out, d->flush_out, count * sizeof out[0]);
    d->flushes_out = 0;
    for (uint32_t i = 0; i < count; i++) {
        answer_flush(p, daemon, &out[i], err);
    }
    pair_drain(p, daemon);
}

/* ---- leases ---------------------------------------------------------------------------------------- */

void pair_room_close_leases(struct pair *p, uint32_t daemon, const struct kvf_action *action)
{
    struct pair_room *r = p->daemons[daemon].clients[action->client].slots[action->slot];
    if (r == NULL || r->generation != action->generation) {
        pair_fail(p, "a lease word of nobody is to be closed");
    }
    r->are_leases_closed = true;
    kvf_core_leases(p->daemons[daemon].core, pair_clock(p, daemon), r->client, r->slot,
                    r->generation, r->cpu, r->gpu, r->direct_io);
}

bool pair_lease(struct pair_room *r, uint32_t cpu, uint32_t gpu, uint32_t direct_io)
{
    if (r->are_leases_closed) {
        return false;
    }
    r->cpu += cpu;
    r->gpu += gpu;
    r->direct_io += direct_io;
    r->is_bound_off = true;
    return true;
}

void pair_lease_return(struct pair_room *r)
{
    r->cpu = 0;
    r->gpu = 0;
    r->direct_io = 0;
    if (r->are_leases_closed) {
        kvf_core_leases(r->pair->daemons[r->daemon].core, pair_clock(r->pair, r->daemon),
                        r->client, r->slot, r->generation, 0, 0, 0);
        pair_drain(r->pair, r->daemon);
    }
}

/* ---- open ------------------------------------------------------------------------------------------ */

static void add_page(struct pair_room *r, uint32_t region, uint32_t page)
{
    if (r->page_count == r->page_cap) {
        r->page_cap = r->page_cap == 0 ? 8 : 2 * r->page_cap;
        r->pages = realloc(r->pages, r->page_cap * sizeof *r->pages);
    }
    r->pages[r->page_count++] = (struct pair_at){.region = region, .page = page};
}

/* Slots first-in first-out, as the library hands them out. */
static void choose_slot(struct pair *p, struct pair_room *r, const struct pair_open *open)
{
    struct pair_client *c = &p->daemons[r->daemon].clients[r->client];
    if (open->has_slot) {
        r->slot = open->slot;
        r->generation = open->generation;
        return;
    }
    for (uint32_t i = 0; i < p->options.rooms; i++) {
        uint32_t slot = (c->next_slot + i) % p->options.rooms;
        const struct pair_room *last = c->slots[slot];
        if (last == NULL || (last->drained_count > 0 && !pair_is_waiting(last))) {
            c->next_slot = slot + 1;
            r->slot = slot;
            r->generation = ++c->generations[slot];
            return;
        }
    }
    pair_fail(p, "no idle slot");
}

static struct pair_room *new_room(struct pair *p, uint32_t daemon, const struct pair_open *open)
{
    struct pair_room *r = calloc(1, sizeof *r);
    *r = (struct pair_room){.pair = p,
                            .next_room = p->rooms,
                            .daemon = daemon,
                            .client = open->client,
                            .label = open->label == 0 ? open->key : open->label,
                            .key = open->key,
                            .group = open->group,
                            .group_id = pair_group_id_of(p, daemon, open->client, open->group),
                            .content = open->content == 0 ? open->key << 8 : open->content << 8,
                            .is_any_content = open->is_any_content,
                            .opened_ns = p->now_ns};
    p->rooms = r;
    choose_slot(p, r, open);
    return r;
}

static struct kvf_core_open open_of(const struct pair_room *r, const struct pair_open *open)
{
    return (struct kvf_core_open){.client = r->client,
                                  .slot = r->slot,
                                  .generation = r->generation,
                                  .label = r->label,
                                  .key = r->key,
                                  .group = open->group,
                                  .abort_reason = open->abort_reason,
                                  .is_old_epoch = open->is_old_epoch,
                                  .writers = open->writers,
                                  .writer_count = open->writer_count,
                                  .runs = open->runs,
                                  .run_count = open->run_count,
                                  .region = open->region == 0 ? PAIR_R0 : open->region,
                                  .aux_region =
                                      open->aux_region == 0 ? UINT32_MAX : open->aux_region,
                                  .sink_count = open->sink_count};
}

/* Puts the room into its slot for the call, and takes it out again if the call changed nothing. */
static struct pair_room *call_open(struct pair *p, struct pair_room *r,
                                   const struct kvf_core_open *open)
{
    struct pair_client *c = &p->daemons[r->daemon].clients[r->client];
    struct pair_room *before = NULL;
    bool has_slot = c->is_added && r->slot < p->options.rooms;
    if (has_slot) {
        before = c->slots[r->slot];
        c->slots[r->slot] = r;
    }
    struct kvf_core *core = p->daemons[r->daemon].core;
    r->rc = r->is_sink ? kvf_core_open_sink(core, pair_clock(p, r->daemon), open)
                       : kvf_core_open_source(core, pair_clock(p, r->daemon), open);
    if (has_slot && r->rc != 0) {
        c->slots[r->slot] = before;
        sink_drained(p, r, false);
    } else if (has_slot && r->generation > c->generations[r->slot]) {
        c->generations[r->slot] = r->generation;
    }
    pair_drain(p, r->daemon);
    return r;
}

struct pair_room *pair_open_sink(struct pair *p, uint32_t daemon, const struct pair_open *open)
{
    struct pair_room *r = new_room(p, daemon, open);
    r->is_sink = true;
    r->writer_count = open->writer_count < KVF_PEERS_PER_ROOM_MAX ? open->writer_count
                                                                  : KVF_PEERS_PER_ROOM_MAX;
    for (uint32_t i = 0; i < r->writer_count; i++) {
        r->writers[i] = open->writers[i];
    }
    for (uint32_t i = 0; i < open->run_count; i++) {
        const struct kvf_run_shm *run = &open->runs[i];
        struct pair_region *reg = pair_region_of(p, daemon, r->client, run->region);
        for (uint32_t j = 0; reg != NULL && j < run->count && j < reg->page_count; j++) {
            uint32_t page = run->first + j;
            if (page >= run->first && page < reg->page_count &&
                reg->pages[page].owner == NULL) {
                reg->pages[page].owner = r;
                reg->pages[page].position = r->page_count;
            }
            add_page(r, run->region, page);
        }
    }
    struct kvf_core_open call = open_of(r, open);
    return call_open(p, r, &call);
}

struct pair_room *pair_open_source(struct pair *p, uint32_t daemon,
                                   const struct pair_open *open)
{
    struct pair_room *r = new_room(p, daemon, open);
    struct kvf_core_open call = open_of(r, open);
    return call_open(p, r, &call);
}

struct pair_room *pair_sink(struct pair *p, uint32_t daemon, uint32_t source, uint64_t key,
                            uint32_t first, uint32_t count)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(source), .start = 0, .count = count};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = first, .count = count};
    return pair_open_sink(p, daemon,
                          &(struct pair_open){.key = key,
                                              .writers = &writer,
                                              .writer_count = 1,
                                              .runs = &run,
                                              .run_count = 1,
                                              .is_any_content = p->daemons[source].is_raw});
}

struct pair_room *pair_source(struct pair *p, uint32_t daemon, uint64_t key)
{
    return pair_open_source(p, daemon, &(struct pair_open){.key = key, .sink_count = 1});
}

void pair_warm(struct pair *p, uint32_t sink, uint32_t source)
{
    uint64_t key = UINT64_C(0xaaaa0000) + pair_random(p, 65536);
    uint32_t last = p->options.pages - 1;
    struct pair_room *from = pair_source(p, source, key);
    struct pair_room *to = pair_sink(p, sink, source, key, last, 1);
    (void)pair_submit(from, 0, last, 1, true);
    pair_settle(p);
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(from, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
}

/* ---- submit and abort ------------------------------------------------------------------------------- */

int pair_submit_runs(struct pair_room *r, uint32_t start, const struct kvf_run_shm *runs,
                     uint32_t run_count, bool is_last)
{
    struct pair *p = r->pair;
    uint32_t position = start;
    for (uint32_t i = 0; i < run_count && r->drained_count == 0; i++) {
        struct pair_region *reg = pair_region_of(p, r->daemon, r->client, runs[i].region);
        for (uint32_t j = 0; reg != NULL && j < runs[i].count; j++, position++) {
            uint32_t page = runs[i].first + j;
            if (page >= reg->page_count) {
                break;
            }
            struct pair_page *shadow = &reg->pages[page];
            if (shadow->owner == NULL && shadow->readers == 0) {
                uint64_t content = r->content + r->daemon;
                shadow->half[0] = pair_tag(content, position, 0);
                shadow->half[1] = pair_tag(content, position, 1);
            }
            shadow->readers++;
            add_page(r, runs[i].region, page);
        }
    }
    int err = kvf_core_submit(p->daemons[r->daemon].core, pair_clock(p, r->daemon),
                              &(struct kvf_core_submit){.client = r->client,
                                                        .slot = r->slot,
                                                        .generation = r->generation,
                                                        .start = start,
                                                        .is_last = is_last,
                                                        .runs = runs,
                                                        .run_count = run_count});
    pair_drain(p, r->daemon);
    return err;
}

int pair_submit(struct pair_room *r, uint32_t start, uint32_t first, uint32_t count,
                bool is_last)
{
    struct kvf_run_shm run = {.region = PAIR_R0, .first = first, .count = count};
    return pair_submit_runs(r, start, &run, 1, is_last);
}

void pair_abort_with(struct pair_room *r, uint32_t reason)
{
    kvf_core_abort(r->pair->daemons[r->daemon].core, pair_clock(r->pair, r->daemon), r->client,
                   r->slot, r->generation, reason);
    pair_drain(r->pair, r->daemon);
}

void pair_abort(struct pair_room *r)
{
    pair_abort_with(r, 0);
}

/* ---- what the engine sees --------------------------------------------------------------------------- */

enum kvf_phase pair_phase(const struct pair_room *r)
{
    return kvf_word_phase(r->view.word);
}
enum kvf_outcome pair_outcome(const struct pair_room *r)
{
    return kvf_word_outcome(r->view.word);
}
enum kvf_poll_state pair_poll(const struct pair_room *r)
{
    return kvf_word_poll(r->view.word);
}
enum kvf_proof pair_proof(const struct pair_room *r)
{
    return kvf_word_proof(r->view.word);
}
bool pair_is_drained(const struct pair_room *r)
{
    return r->drained_count > 0;
}

uint32_t pair_unproven(const struct pair_room *r)
{
    struct kvf_core_room_view view;
    kvf_core_room_view(r->pair->daemons[r->daemon].core, r->client, r->slot, &view);
    return view.unproven;
}

enum kvf_proof pair_declined(const struct pair *p)
{
    return p->options.are_queue_pairs ? KVF_PROOF_PEER_DRAINED : KVF_PROOF_NEVER_POSTED;
}

void pair_expect(const struct pair_room *r, enum kvf_outcome outcome, enum kvf_proof proof,
                 uint32_t reason)
{
    if (!pair_is_drained(r) || pair_outcome(r) != outcome || pair_proof(r) != proof ||
        r->view.reason != reason) {
        pair_fail(
            r->pair,
            "%s room of key %llx: phase %d outcome %d proof %d reason %u; wanted drained, "
            "outcome %d proof %d reason %u",
            r->is_sink ? "sink" : "source", (unsigned long long)r->key, (int)pair_phase(r),
            (int)pair_outcome(r), (int)pair_proof(r), r->view.reason, (int)outcome, (int)proof,
            reason);
    }
}

void pair_expect_held(const struct pair_room *r)
{
    if (pair_is_drained(r) || pair_phase(r) == KVF_PHASE_OPEN) {
        pair_fail(r->pair, "the room of key %llx is not closed and held: phase %d",
                  (unsigned long long)r->key, (int)pair_phase(r));
    }
}

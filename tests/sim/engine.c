/* Engines: a small allocator each, and the shadow of the library between it and the daemon.
 *
 * The library's side of the segment is the real one where it matters: lease words, ledger words, intents and the
 * order in which they are written are those of client/open.c. The engine is as greedy as one can be: pages
 * go to the next request in the very event that stores their room's word. */
#include <errno.h>
#include <string.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/ledger.h"
#include "ring/room_word.h"
#include "tests/sim/parts.h"

#define RETRY_NS (2 * SIM_MS)
#define TRIES_MAX 20u
#define MAIN_PAGES 36u
#define AUX_PAGES 8u
#define MAIN_PAGE_BYTES 256u
#define AUX_PAGE_BYTES 64u

static struct sim_host *host_of(struct sim_world *w, struct sim_party party)
{
    return &w->hosts[party.host];
}

static struct sim_party party_of(const struct sim_plan *p, uint32_t member)
{
    return member < SIM_SINKS_MAX ? p->sinks[member] : p->writers[member - SIM_SINKS_MAX];
}

/* The engine of this member, if it is there. */
static struct sim_client *client_of_member(struct sim_world *w, uint32_t request,
                                           uint32_t member, uint32_t *ret_client)
{
    struct sim_party party = party_of(sim_plan_of(w, request), member);
    struct sim_host *h = host_of(w, party);
    *ret_client = h->client_of[party.engine];
    return *ret_client == KVF_NONE ? NULL : &h->clients[*ret_client];
}

/* ---- birth ---------------------------------------------------------------------------------------------- */

static void make_region(struct sim_client *c, uint32_t slot, uint32_t pages,
                        uint32_t page_bytes)
{
    struct sim_region *reg = &c->regions[slot];
    uint32_t epoch = (reg->handle >> 8) + 1u;
    memset(reg, 0, sizeof *reg);
    reg->handle = slot | epoch << 8;
    reg->page_count = pages;
    reg->page_bytes = page_bytes;
    reg->plane = (struct kvf_core_plane){.stride = page_bytes, .page_bytes = page_bytes};
    reg->seen = (struct kvf_transport_region){.base = (unsigned char *)reg->pages,
                                              .page_count = pages,
                                              .plane_count = 1,
                                              .planes = &reg->plane,
                                              .page_bytes = page_bytes};
    for (uint32_t i = 0; i < pages; i++) {
        reg->pages[i].owner = SIM_NO_ROOM;
        sim_oracle_poison(reg, i);
        reg->free_pages[reg->free_count++] = (uint8_t)(pages - 1u - i);
    }
}

static void make_client(struct sim_client *c, uint32_t engine)
{
    uint32_t incarnation = c->incarnation + 1u;
    uint32_t handles[SIM_REGIONS] = {c->regions[0].handle, c->regions[1].handle};
    memset(c, 0, sizeof *c);
    c->incarnation = incarnation;
    c->regions[0].handle = handles[0];
    c->regions[1].handle = handles[1];
    c->engine = (uint8_t)engine;
    make_region(c, 0, MAIN_PAGES, MAIN_PAGE_BYTES);
    make_region(c, 1, AUX_PAGES, AUX_PAGE_BYTES);
    for (uint32_t i = 0; i < SIM_SLOTS; i++) {
        c->room_of[i] = SIM_NO_ROOM;
        c->slot_queue[c->slot_count++] = i;
    }
    c->segment.rooms = c->rooms;
    c->segment.intents = c->intents;
    c->segment.limits.rooms_max = SIM_SLOTS;
}

void sim_engine_start(struct sim_world *w, uint32_t host, uint32_t engine)
{
    struct sim_host *h = &w->hosts[host];
    if (!h->is_up || h->client_of[engine] != KVF_NONE) {
        return;
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &h->clients[i];
        if (c->process == SIM_ABSENT && !c->is_used) {
            make_client(c, engine);
            c->process = SIM_RUNS;
            c->is_supervisor_gone = !h->has_supervisor;
            c->is_attached = h->has_supervisor;
            c->is_used = h->has_supervisor;
            h->client_of[engine] = i;
            h->engine_starts[engine]++;
            sim_note(w, SIM_ENGINE_START, host, SIM_NO_ROOM, SIM_NO_ROOM, engine, i);
            sim_supervisor_sync(w, h);
            return;
        }
    }
}

void sim_client_free(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    struct sim_client *c = &h->clients[client];
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        if (c->room_of[slot] != SIM_NO_ROOM) {
            sim_oracle_moot(w, c->room_of[slot]);
            c->room_of[slot] = SIM_NO_ROOM;
        }
    }
    if (h->client_of[c->engine] == client) {
        h->client_of[c->engine] = KVF_NONE;
    }
    c->process = SIM_ABSENT;
    c->incarnation++;
    c->is_used = false;
    c->is_in_core = false;
    c->is_attached = false;
}

/* ---- what the library knows -------------------------------------------------------------------------------- */

static bool has_epoch_ended(const struct sim_client *c, uint64_t epoch)
{
    for (uint32_t i = 0; i < c->ended_count && i < 8u; i++) {
        if (c->ended_epochs[i] == epoch) {
            return true;
        }
    }
    return false;
}

static bool has_stored_drained(const struct sim_client *c, uint32_t slot, uint64_t generation)
{
    uint64_t word = atomic_load_explicit(&c->rooms[slot].word, memory_order_acquire);
    return kvf_word_generation(word) > generation ||
           (kvf_word_generation(word) == generation && kvf_word_is_drained(word));
}

/* As is_served_by_ended of client/rooms.c. */
static bool is_served_by_ended(const struct sim_client *c, uint32_t slot, uint64_t generation)
{
    uint64_t word = atomic_load_explicit(&c->rooms[slot].word, memory_order_acquire);
    uint64_t epoch = 0;
    if (kvf_word_generation(word) == generation) {
        epoch = atomic_load_explicit(&c->rooms[slot].epoch, memory_order_relaxed);
    }
    if (epoch == 0) {
        epoch = atomic_load_explicit(&c->intents[slot].epoch, memory_order_relaxed);
    }
    return has_epoch_ended(c, epoch);
}

bool sim_library_is_drained(const struct sim_client *c, uint32_t slot, uint64_t generation)
{
    if (has_stored_drained(c, slot, generation)) {
        return true;
    }
    uint64_t lease = atomic_load_explicit(&c->intents[slot].lease_word, memory_order_acquire);
    return c->ended_count != 0 && is_served_by_ended(c, slot, generation) &&
           kvf_word_generation(lease) == generation && (lease & KVF_LEASE_CLOSED) != 0 &&
           kvf_lease_is_idle(lease);
}

void sim_library_conclude(struct sim_world *w, struct sim_host *h, uint32_t client,
                          uint64_t epoch)
{
    struct sim_client *c = &h->clients[client];
    if (!has_epoch_ended(c, epoch)) {
        c->ended_epochs[c->ended_count % 8u] = epoch;
        c->ended_count++;
    }
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        uint32_t room = c->room_of[slot];
        if (room != SIM_NO_ROOM && !sim_room_at(w, room)->is_drained &&
            is_served_by_ended(c, slot, sim_room_at(w, room)->generation)) {
            uint64_t leases;
            (void)kvf_lease_close(&c->intents[slot].lease_word,
                                  sim_room_at(w, room)->generation, &leases);
        }
    }
    sim_engine_look(w, h, client);
}

/* ---- pages come back ---------------------------------------------------------------------------------------- */

static void free_page(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t region,
                      uint32_t page)
{
    struct sim_region *reg = &h->clients[client].regions[region];
    reg->pages[page].is_held = 0;
    sim_oracle_poison(reg, page);
    reg->free_pages[reg->free_count++] = (uint8_t)page;
    w->figures.pages_reused++;
    sim_note(w, SIM_REUSE, h->idx, SIM_NO_ROOM, sim_page_id(h->idx, client, region, page), 0,
             0);
}

static void take_back_sink(struct sim_world *w, struct sim_host *h, uint32_t client,
                           uint32_t room)
{
    struct sim_client *c = &h->clients[client];
    const struct sim_room *r = sim_room_at(w, room);
    for (uint32_t i = 0; i < r->page_count; i++) {
        const struct sim_page_at *at = &r->pages[i];
        struct sim_region *reg = &c->regions[at->region];
        uint64_t word = atomic_load_explicit(&reg->ledger[at->page], memory_order_acquire);
        if (kvf_ledger_is_idle(word, c->rooms, SIM_SLOTS) != 1) {
            sim_fail(w, SIM_LEDGER_WRONG, room,
                     sim_page_id(r->host, r->client, at->region, at->page),
                     "the ledger calls page %u lent though its room is drained", at->page);
        }
        free_page(w, h, client, at->region, at->page);
    }
}

static void drop_prefix(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t idx)
{
    struct sim_prefix *prefix = &h->clients[client].prefixes[idx];
    if (--prefix->refs == 0) {
        for (uint32_t i = 0; i < prefix->count; i++) {
            free_page(w, h, client, 0, prefix->pages[i]);
        }
        *prefix = (struct sim_prefix){0};
    }
}

/* Prefix pages are the engine's until the last room that counted them is drained. */
static void take_back_source(struct sim_world *w, struct sim_host *h, uint32_t client,
                             uint32_t room)
{
    struct sim_client *c = &h->clients[client];
    const struct sim_room *r = sim_room_at(w, room);
    struct sim_request *req = &w->requests[r->request];
    uint32_t writer = r->member - SIM_SINKS_MAX;
    for (uint32_t i = 0; i < r->page_count; i++) {
        const struct sim_page_at *at = &r->pages[i];
        struct kvf_run_shm run = {
            .region = c->regions[at->region].handle, .first = at->page, .count = 1};
        kvf_ledger_undo_source(c->regions[at->region].ledger, &run, 1);
        if (c->regions[at->region].pages[at->page].is_held == 1) {
            free_page(w, h, client, at->region, at->page);
        }
    }
    if (req->prefix_of[writer] != 0) {
        drop_prefix(w, h, client, req->prefix_of[writer] - 1u);
        req->prefix_of[writer] = 0;
    }
}

static void retry_waiting(struct sim_world *w, uint32_t host, uint32_t client);

/* A page of a concluded room may be used by its engine, but no daemon lends it again before the word is stored. */
static void use_again(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t room)
{
    const struct sim_room *r = sim_room_at(w, room);
    for (uint32_t i = 0; i < r->page_count; i++) {
        struct sim_region *reg = &h->clients[client].regions[r->pages[i].region];
        const struct sim_page *page = &reg->pages[r->pages[i].page];
        if (page->readers == 0 && page->is_held == 1) { /* a prefix serves other rooms too */
            sim_oracle_poison(reg, r->pages[i].page);
        }
    }
}

static bool see(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t slot)
{
    struct sim_client *c = &h->clients[client];
    uint32_t room = c->room_of[slot];
    if (room == SIM_NO_ROOM || c->process != SIM_RUNS) {
        return false;
    }
    struct sim_room *r = sim_room_at(w, room);
    if (!r->is_drained && sim_library_is_drained(c, slot, r->generation)) {
        sim_oracle_concluded(w, room);
        use_again(w, h, client, room);
    }
    /* Only a stored word frees the slot: the next room's word follows it. */
    if (!has_stored_drained(c, slot, r->generation)) {
        return false;
    }
    bool is_new = !r->is_seen;
    if (is_new) {
        r->is_seen = true;
        if (r->is_sink) {
            take_back_sink(w, h, client, room);
        } else {
            take_back_source(w, h, client, room);
        }
    }
    if ((r->word & KVF_WORD_GROUP_WAITS) == 0) {
        c->room_of[slot] = SIM_NO_ROOM;
        c->slot_queue[c->slot_count++] = slot;
    }
    return is_new;
}

/* Planted: the engine does not wait for drained. */
static void reuse_early(struct sim_world *w, uint32_t room)
{
    const struct sim_room *r = sim_room_at(w, room);
    for (uint32_t i = 0; i < r->page_count && r->is_sink && !r->is_drained; i++) {
        struct sim_region *reg =
            &w->hosts[r->host].clients[r->client].regions[r->pages[i].region];
        reg->pages[r->pages[i].page].owner = SIM_NO_ROOM;
    }
}

void sim_engine_see(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t slot)
{
    uint32_t room = h->clients[client].room_of[slot];
    if (sim_has_plant(w, SIM_PLANT_REUSE_ON_EARLY_FAIL) && room != SIM_NO_ROOM &&
        (sim_room_at(w, room)->word & KVF_WORD_FAILED_EARLY) != 0) {
        reuse_early(w, room);
    }
    if (see(w, h, client, slot)) {
        retry_waiting(w, h->idx, client);
    }
}

void sim_engine_look(struct sim_world *w, struct sim_host *h, uint32_t client)
{
    bool is_any = false;
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        is_any = see(w, h, client, slot) || is_any;
    }
    if (is_any) {
        retry_waiting(w, h->idx, client);
    }
}

/* ---- opens ------------------------------------------------------------------------------------------------- */

static int library_epoch(const struct sim_client *c, uint64_t *ret_epoch)
{
    if (c->is_supervisor_gone || c->worker_epoch == 0 || has_epoch_ended(c, c->worker_epoch)) {
        return -KVF_E_WORKER_GONE;
    }
    *ret_epoch = c->worker_epoch;
    return 0;
}

static struct sim_cmd *cmd_place(struct sim_client *c)
{
    return c->cmd_tail - c->cmd_head == SIM_CMDS ? NULL : &c->cmds[c->cmd_tail % SIM_CMDS];
}

static void push_cmd(struct sim_world *w, struct sim_host *h, struct sim_client *c)
{
    c->cmd_tail++;
    sim_worker_kick(w, h);
}

static uint32_t take_slot(struct sim_client *c)
{
    uint32_t slot = c->slot_queue[0];
    memmove(&c->slot_queue[0], &c->slot_queue[1], (--c->slot_count) * sizeof c->slot_queue[0]);
    return slot;
}

/* Adds a page to a list of runs; neighbours become one run. */
static bool add_run(struct sim_cmd *cmd, uint32_t handle, uint32_t page)
{
    struct kvf_run_shm *last = cmd->run_count > 0 ? &cmd->runs[cmd->run_count - 1u] : NULL;
    if (last != NULL && last->region == handle && last->first + last->count == page) {
        last->count++;
        return true;
    }
    if (cmd->run_count == SIM_RUNS_MAX) {
        return false;
    }
    cmd->runs[cmd->run_count++] =
        (struct kvf_run_shm){.region = handle, .first = page, .count = 1};
    return true;
}

static void write_intent(struct sim_client *c, const struct sim_cmd *cmd)
{
    struct kvf_intent_shm *intent = &c->intents[cmd->slot];
    uint64_t generation = cmd->generation;
    atomic_store_explicit(&intent->lease_word, kvf_lease_word_make(generation),
                          memory_order_release);
    atomic_store_explicit(&intent->epoch, cmd->epoch, memory_order_relaxed);
    atomic_store_explicit(&intent->key, cmd->key, memory_order_relaxed);
    atomic_store_explicit(&intent->group, cmd->group, memory_order_relaxed);
    atomic_store_explicit(&intent->generation, generation, memory_order_release);
    atomic_store_explicit(&intent->abort_cell, 0, memory_order_relaxed);
}

static uint32_t main_pages(const struct sim_plan *p)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < p->writer_count; i++) {
        pages += p->part_pages[i];
    }
    return pages - p->aux_pages;
}

static void sink_command(struct sim_world *w, uint32_t request, struct sim_cmd *cmd)
{
    const struct sim_plan *p = sim_plan_of(w, request);
    uint32_t start = 0;
    cmd->op = KVF_CMD_OPEN_SINK;
    cmd->writer_count = p->writer_count;
    for (uint32_t i = 0; i < p->writer_count; i++) {
        cmd->writers[i] = (struct kvf_writer_shm){
            .addr = sim_addr(p->writers[i].host), .start = start, .count = p->part_pages[i]};
        start += p->part_pages[i];
    }
}

/* Lends `count` pages of a region to the room: ledger first, as the library does. */
static void lend_sink(struct sim_world *w, struct sim_client *c, struct sim_cmd *cmd,
                      uint32_t region, uint32_t count)
{
    struct sim_region *reg = &c->regions[region];
    uint32_t first_run = cmd->run_count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = reg->free_pages[--reg->free_count];
        reg->pages[page].is_held = 1;
        (void)add_run(cmd, reg->handle, page);
        sim_oracle_lend_sink(w, cmd->room, region, page);
    }
    uint64_t position = 0;
    int err =
        kvf_ledger_lend_sink(reg->ledger, c->rooms, SIM_SLOTS, cmd->runs + first_run,
                             cmd->run_count - first_run, cmd->slot, cmd->generation, &position);
    if (err != 0 && count > 0) {
        sim_fail(w, SIM_LEDGER_WRONG, cmd->room, SIM_NO_ROOM,
                 "the ledger refuses (%d) position %llu of pages that are idle", err,
                 (unsigned long long)position);
    }
}

static void start_room(struct sim_world *w, struct sim_client *c, struct sim_cmd *cmd,
                       uint32_t request, uint32_t member)
{
    struct sim_room *r = sim_room_at(w, cmd->room);
    cmd->slot = take_slot(c);
    cmd->generation = ++c->generations[cmd->slot];
    r->slot = cmd->slot;
    r->generation = cmd->generation;
    c->room_of[cmd->slot] = cmd->room;
    w->requests[request].rooms[member] = cmd->room;
    w->figures.rooms++;
    w->figures.group_rooms += cmd->group != 0 ? 1u : 0u;
}

/* 0, or -EAGAIN: not now. */
static int open_room(struct sim_world *w, uint32_t request, uint32_t member)
{
    const struct sim_plan *p = sim_plan_of(w, request);
    uint32_t client;
    struct sim_client *c = client_of_member(w, request, member, &client);
    uint64_t epoch = 0;
    if (c == NULL || c->process != SIM_RUNS || library_epoch(c, &epoch) != 0 ||
        c->slot_count == 0 || cmd_place(c) == NULL) {
        return -EAGAIN;
    }
    struct sim_party party = party_of(p, member);
    if (sim_group_of(w, request, member) != 0 &&
        w->requests[request].engine_starts[member] !=
            w->hosts[party.host].engine_starts[party.engine]) {
        return 0; /* a rank registered anew opens no key that the one before it was to open */
    }
    uint32_t pages = main_pages(p);
    bool is_sink = member < SIM_SINKS_MAX;
    if (is_sink &&
        (c->regions[0].free_count < pages || c->regions[1].free_count < p->aux_pages)) {
        return -EAGAIN;
    }
    struct sim_host *h = host_of(w, party_of(p, member));
    struct sim_cmd *cmd = cmd_place(c);
    uint32_t room = sim_room_new(w, request, member, h->idx, client);
    if (room == SIM_NO_ROOM) {
        return 0; /* a seed has room for so many; the others are not played */
    }
    *cmd = (struct sim_cmd){.op = KVF_CMD_OPEN_SOURCE,
                            .room = room,
                            .epoch = epoch,
                            .label = p->label,
                            .key = w->requests[request].key,
                            .group = sim_group_of(w, request, member),
                            .sinks = p->sink_count,
                            .region = c->regions[0].handle,
                            .aux_region = c->regions[1].handle};
    start_room(w, c, cmd, request, member);
    if (is_sink) {
        sink_command(w, request, cmd);
        lend_sink(w, c, cmd, 0, pages);
        lend_sink(w, c, cmd, 1, p->aux_pages);
    }
    write_intent(c, cmd);
    push_cmd(w, h, c);
    if (w->requests[request].is_abort_wished[member]) {
        sim_engine_abort(w, room, w->requests[request].abort_reason[member]);
    }
    return 0;
}

static void plan_submits(struct sim_world *w, uint32_t request, uint32_t member)
{
    const struct sim_plan *p = sim_plan_of(w, request);
    uint32_t writer = member - SIM_SINKS_MAX;
    sim_clock_at(&w->clock, w->clock.now_ns + p->piece_after_ns[writer], sim_engine_submit, w,
                 request, writer);
}

static bool is_opening_over(const struct sim_world *w, uint32_t request)
{
    return w->phase != SIM_FAULTS && request < w->scenario.request_count;
}

void sim_engine_open(void *world, uint64_t request, uint64_t member)
{
    struct sim_world *w = world;
    struct sim_request *req = &w->requests[request];
    if (req->rooms[member] != SIM_NO_ROOM || is_opening_over(w, (uint32_t)request)) {
        return;
    }
    if (open_room(w, (uint32_t)request, (uint32_t)member) == 0) {
        if (member >= SIM_SINKS_MAX && req->rooms[member] != SIM_NO_ROOM) {
            plan_submits(w, (uint32_t)request, (uint32_t)member);
        }
        return;
    }
    if (req->tries[member]++ < TRIES_MAX) {
        sim_clock_at(&w->clock, w->clock.now_ns + RETRY_NS, sim_engine_open, w, request,
                     member);
    } else {
        w->figures.opens_refused++;
    }
}

/* Pages came back: who waited for pages of this engine gets them in this very moment. */
static void retry_waiting(struct sim_world *w, uint32_t host, uint32_t client)
{
    const struct sim_client *c = &w->hosts[host].clients[client];
    for (uint32_t i = 0; i < w->request_count; i++) {
        const struct sim_plan *p = sim_plan_of(w, i);
        for (uint32_t m = 0; m < p->sink_count; m++) {
            struct sim_request *req = &w->requests[i];
            bool is_waiting =
                req->rooms[m] == SIM_NO_ROOM && req->tries[m] > 0 && req->tries[m] <= TRIES_MAX;
            if (is_waiting && p->sinks[m].host == host && p->sinks[m].engine == c->engine &&
                !is_opening_over(w, i)) {
                (void)open_room(w, i, m);
            }
        }
    }
}

/* ---- pieces ------------------------------------------------------------------------------------------------ */

struct piece {
    uint32_t start;
    uint32_t end;
    bool is_last;
};

static struct piece next_piece(const struct sim_plan *p, uint32_t writer, uint32_t nth)
{
    uint32_t pages = p->part_pages[writer];
    uint32_t pieces = p->pieces[writer] < pages ? p->pieces[writer] : pages;
    uint32_t idx = p->is_backwards ? pieces - 1u - nth : nth;
    struct piece piece = {.start = pages * idx / pieces,
                          .end = pages * (idx + 1u) / pieces,
                          .is_last = nth + 1u == pieces};
    if (piece.is_last && p->has_hole && piece.end - piece.start > 1u) {
        piece.end--;
    }
    return piece;
}

/* The prefix cache of this engine: made by the first room that wants it. NULL: no place or no pages. */
static struct sim_prefix *prefix_of(struct sim_client *c, uint32_t host,
                                    const struct sim_plan *p)
{
    struct sim_prefix *place = NULL;
    for (uint32_t i = 0; i < SIM_PREFIXES; i++) {
        struct sim_prefix *x = &c->prefixes[i];
        if (x->id == p->prefix_id && x->count >= p->prefix_pages) {
            return x;
        }
        place = x->id == 0 && place == NULL ? x : place;
    }
    struct sim_region *reg = &c->regions[0];
    if (place == NULL || reg->free_count < SIM_PREFIX_PAGES_MAX) {
        return NULL;
    }
    place->id = p->prefix_id;
    for (uint32_t i = 0; i < SIM_PREFIX_PAGES_MAX; i++) {
        uint32_t page = reg->free_pages[--reg->free_count];
        reg->pages[page].is_held = 2;
        place->pages[place->count++] = (uint8_t)page;
        sim_oracle_fill_prefix(p->prefix_id, host, i, reg, page);
    }
    return place;
}

/* From this position on a part's pages are auxiliary. */
static uint32_t first_aux(const struct sim_plan *p, uint32_t writer)
{
    bool is_last = writer + 1u == p->writer_count;
    return is_last ? (uint32_t)p->part_pages[writer] - p->aux_pages : UINT32_MAX;
}

static uint32_t pages_wanted(const struct sim_plan *p, uint32_t writer,
                             const struct piece *piece, uint32_t *ret_aux)
{
    uint32_t wanted = 0;
    uint32_t aux_from = first_aux(p, writer);
    *ret_aux = 0;
    for (uint32_t at = piece->start; at < piece->end; at++) {
        if (at >= aux_from) {
            (*ret_aux)++;
        } else {
            wanted++;
        }
    }
    return wanted;
}

static void lend_source(struct sim_world *w, struct sim_client *c, struct sim_cmd *cmd,
                        uint32_t region, uint32_t page)
{
    struct sim_region *reg = &c->regions[region];
    struct kvf_run_shm run = {.region = reg->handle, .first = page, .count = 1};
    uint64_t position;
    (void)add_run(cmd, reg->handle, page);
    sim_oracle_lend_source(w, cmd->room, region, page);
    int err = kvf_ledger_lend_source(reg->ledger, c->rooms, SIM_SLOTS, &run, 1, &position);
    if (err != 0) {
        sim_fail(w, SIM_LEDGER_WRONG, cmd->room, SIM_NO_ROOM,
                 "the ledger refuses (%d) to count source page %u, which is idle", err, page);
    }
}

static void fill_piece(struct sim_world *w, struct sim_client *c, struct sim_cmd *cmd,
                       uint32_t request, uint32_t writer, const struct piece *piece,
                       const struct sim_prefix *prefix)
{
    const struct sim_plan *p = sim_plan_of(w, request);
    uint32_t aux_from = first_aux(p, writer);
    for (uint32_t at = piece->start; at < piece->end; at++) {
        uint32_t region = at >= aux_from ? 1 : 0;
        struct sim_region *reg = &c->regions[region];
        if (region == 0 && prefix != NULL && at < p->prefix_pages) {
            lend_source(w, c, cmd, 0, prefix->pages[at]);
            continue;
        }
        uint32_t page = reg->free_pages[--reg->free_count];
        reg->pages[page].is_held = 1;
        sim_oracle_fill(w, cmd->room, writer, at, reg, page);
        lend_source(w, c, cmd, region, page);
    }
}

/* 0, or -EAGAIN: not now. */
static int submit_piece(struct sim_world *w, uint32_t request, uint32_t writer)
{
    struct sim_request *req = &w->requests[request];
    const struct sim_plan *p = sim_plan_of(w, request);
    uint32_t room = req->rooms[SIM_SINKS_MAX + writer];
    struct sim_room *r = sim_room_at(w, room);
    struct sim_host *h = &w->hosts[r->host];
    struct sim_client *c = &h->clients[r->client];
    struct sim_cmd *cmd = c->has_detached ? NULL : cmd_place(c);
    bool is_early = kvf_word_poll(r->word) == KVF_STATE_BOOTSTRAPPING || r->word == 0;
    if (cmd == NULL || c->process != SIM_RUNS || (is_early && !p->is_early)) {
        return -EAGAIN;
    }
    struct piece piece = next_piece(p, writer, req->pieces_out[writer]);
    uint32_t aux;
    uint32_t pages = pages_wanted(p, writer, &piece, &aux);
    bool wants_prefix = p->prefix_id != 0 && piece.start < p->prefix_pages;
    uint32_t spare = wants_prefix ? SIM_PREFIX_PAGES_MAX : 0;
    if (c->regions[0].free_count < pages + spare || c->regions[1].free_count < aux) {
        return -EAGAIN;
    }
    struct sim_prefix *prefix = wants_prefix ? prefix_of(c, h->idx, p) : NULL;
    if (prefix != NULL && req->prefix_of[writer] == 0) {
        prefix->refs++;
        req->prefix_of[writer] = (uint8_t)(prefix - c->prefixes + 1);
    }
    *cmd = (struct sim_cmd){
        .op = KVF_CMD_SUBMIT,
        .room = room,
        .slot = r->slot,
        .generation = r->generation,
        .epoch = atomic_load_explicit(&c->intents[r->slot].epoch, memory_order_relaxed),
        .start = piece.start,
        .is_last = piece.is_last};
    fill_piece(w, c, cmd, request, writer, &piece, prefix);
    push_cmd(w, h, c);
    return 0;
}

void sim_engine_submit(void *world, uint64_t request, uint64_t writer)
{
    struct sim_world *w = world;
    struct sim_request *req = &w->requests[request];
    const struct sim_plan *p = sim_plan_of(w, (uint32_t)request);
    uint32_t member = SIM_SINKS_MAX + (uint32_t)writer;
    uint32_t room = req->rooms[member];
    uint32_t pieces =
        p->pieces[writer] < p->part_pages[writer] ? p->pieces[writer] : p->part_pages[writer];
    if (room == SIM_NO_ROOM || req->pieces_out[writer] == pieces) {
        return;
    }
    const struct sim_room *r = sim_room_at(w, room);
    if (r->is_drained || r->is_moot || r->is_seen ||
        w->hosts[r->host].clients[r->client].room_of[r->slot] != room) {
        return;
    }
    uint64_t again_ns = RETRY_NS / 4u;
    if (submit_piece(w, (uint32_t)request, (uint32_t)writer) == 0) {
        req->pieces_out[writer]++;
        again_ns = p->piece_after_ns[writer] / 4u + 1u;
    } else if (request < w->scenario.request_count &&
               w->hosts[r->host].clients[r->client].process == SIM_RUNS &&
               req->submit_tries[writer]++ == 4u * TRIES_MAX) {
        sim_engine_abort(w, room, 0);
        return;
    }
    sim_clock_at(&w->clock, w->clock.now_ns + again_ns, sim_engine_submit, w, request, writer);
}

/* ---- aborts ------------------------------------------------------------------------------------------------- */

void sim_engine_abort(struct sim_world *w, uint32_t room, uint32_t reason)
{
    struct sim_room *r = sim_room_at(w, room);
    struct sim_host *h = &w->hosts[r->host];
    struct sim_client *c = &h->clients[r->client];
    if (r->is_seen || r->is_moot || c->process != SIM_RUNS || c->room_of[r->slot] != room) {
        return;
    }
    sim_note(w, SIM_ABORT, r->host, room, SIM_NO_ROOM, reason, 0);
    w->figures.aborts++;
    if (!r->is_drained) {
        sim_oracle_closed(w, room);
    }
    atomic_store_explicit(&c->intents[r->slot].abort_cell,
                          r->generation << KVF_GENERATION_SHIFT | KVF_ABORT_SET |
                              (reason & KVF_ABORT_REASON_MASK),
                          memory_order_release);
    c->dirty |= 1u << r->slot;
    if (sim_has_plant(w, SIM_PLANT_REUSE_EARLY)) {
        reuse_early(w, room);
    }
    sim_worker_kick(w, h);
}

/* The oracle: who owns a page, independent of every table of the core.
 *
 * A sink page belongs to its room from the library call that lends it until that room's word says drained (or
 * the library may conclude so); a source page may be read while rooms count it. Contents are bytes made of
 * (content, writer, position), so a stranger's page is told from the right one, and pages are overwritten with
 * poison the moment their engine has them back, so that a late read sends something nobody expects. */
#include <errno.h>
#include <string.h>

#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "tests/sim/parts.h"

#define POISON UINT64_C(0x9015099015099015)
#define SIM_BOUND_SLACK_NS (15 * SIM_MS) /* turns of loops, publishing */

/* ---- rooms --------------------------------------------------------------------------------------------- */

uint32_t sim_room_new(struct sim_world *w, uint32_t request, uint32_t member, uint32_t host,
                      uint32_t client)
{
    if (w->room_count == SIM_ROOMS_MAX) {
        return SIM_NO_ROOM;
    }
    uint32_t idx = w->room_count++;
    const struct sim_plan *p = sim_plan_of(w, request);
    w->rooms[idx] = (struct sim_room){.key = w->requests[request].key,
                                      .label = p->label,
                                      .opened_ns = w->clock.now_ns,
                                      .closed_ns = KVF_NO_TIME,
                                      .request = (uint16_t)request,
                                      .member = (uint8_t)member,
                                      .host = (uint8_t)host,
                                      .client = (uint8_t)client,
                                      .is_sink = member < SIM_SINKS_MAX};
    w->undrained++;
    return idx;
}

static struct sim_client *client_of(struct sim_world *w, const struct sim_room *r)
{
    return &w->hosts[r->host].clients[r->client];
}

static struct sim_page *page_of(struct sim_world *w, const struct sim_room *r, uint32_t at,
                                uint32_t *ret_id)
{
    const struct sim_page_at *p = &r->pages[at];
    *ret_id = sim_page_id(r->host, r->client, p->region, p->page);
    return &client_of(w, r)->regions[p->region].pages[p->page];
}

void sim_oracle_closed(struct sim_world *w, uint32_t room)
{
    struct sim_room *r = sim_room_at(w, room);
    if (r->closed_ns == KVF_NO_TIME) {
        const struct sim_host *h = &w->hosts[r->host];
        r->closed_ns = w->clock.now_ns;
        r->frozen_before_ns = h->frozen_total_ns;
        r->has_lost_worker =
            r->has_lost_worker || h->worker != SIM_WORKER_SERVING || h->is_frozen;
    }
}

/* ---- lending ------------------------------------------------------------------------------------------- */

static void add_page(struct sim_world *w, struct sim_room *r, uint32_t region, uint32_t page)
{
    if (r->page_count < SIM_ROOM_PAGES_MAX) {
        r->pages[r->page_count++] =
            (struct sim_page_at){.region = (uint8_t)region, .page = (uint8_t)page};
    } else {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM, "a room of too many pages");
    }
}

void sim_oracle_lend_sink(struct sim_world *w, uint32_t room, uint32_t region, uint32_t page)
{
    struct sim_room *r = sim_room_at(w, room);
    struct sim_page *p = &client_of(w, r)->regions[region].pages[page];
    uint32_t id = sim_page_id(r->host, r->client, region, page);
    if (p->owner != SIM_NO_ROOM || p->readers != 0) {
        sim_fail(w, SIM_LEDGER_WRONG, room, id,
                 "the ledger lends page %u, which room %d owns and %u rooms read", page,
                 (int)p->owner, p->readers);
    }
    p->owner = room;
    p->position = r->page_count;
    add_page(w, r, region, page);
    sim_note(w, SIM_LEND, r->host, room, id, p->position, 0);
}

void sim_oracle_lend_source(struct sim_world *w, uint32_t room, uint32_t region, uint32_t page)
{
    struct sim_room *r = sim_room_at(w, room);
    struct sim_page *p = &client_of(w, r)->regions[region].pages[page];
    uint32_t id = sim_page_id(r->host, r->client, region, page);
    if (p->owner != SIM_NO_ROOM) {
        sim_fail(w, SIM_LEDGER_WRONG, room, id,
                 "the ledger lets page %u be read, which sink room %u owns", page, p->owner);
    }
    p->readers++;
    add_page(w, r, region, page);
    sim_note(w, SIM_LEND, r->host, room, id, p->readers, 0);
}

/* Back to the engine: from now on nothing may touch the page for this room. */
static void give_back(struct sim_world *w, uint32_t room)
{
    struct sim_room *r = sim_room_at(w, room);
    for (uint32_t i = 0; i < r->page_count; i++) {
        uint32_t id;
        struct sim_page *p = page_of(w, r, i, &id);
        if (r->is_sink && p->owner == room) {
            p->owner = SIM_NO_ROOM;
        } else if (!r->is_sink && p->readers > 0) {
            p->readers--;
        }
    }
}

void sim_oracle_unlend(struct sim_world *w, uint32_t room)
{
    give_back(w, room);
    sim_room_at(w, room)->page_count = 0;
}

/* ---- contents ------------------------------------------------------------------------------------------ */

static uint64_t tag_of_content(uint64_t content, uint32_t host, uint32_t position)
{
    return sim_random_mix(content + (uint64_t)(host + 1u) * 1000003u +
                          ((uint64_t)position << 40));
}

static uint64_t prefix_content(uint32_t prefix_id)
{
    return UINT64_C(0x70726566) << 32 | prefix_id;
}

static uint64_t tag_of(const struct sim_plan *p, uint64_t key, uint32_t writer,
                       uint32_t position)
{
    bool is_prefix = p->prefix_id != 0 && position < p->prefix_pages;
    return tag_of_content(is_prefix ? prefix_content(p->prefix_id) : key,
                          p->writers[writer].host, position);
}

static uint64_t word_of(uint64_t tag, uint32_t idx)
{
    return tag + idx * UINT64_C(0x9e3779b97f4a7c15);
}

/* The writer whose part holds this position of a sink's list. */
static uint64_t expected_tag(struct sim_world *w, const struct sim_room *r, uint32_t position)
{
    const struct sim_plan *p = sim_plan_of(w, r->request);
    uint32_t writer = 0;
    while (writer + 1u < p->writer_count && position >= p->part_pages[writer]) {
        position -= p->part_pages[writer++];
    }
    return tag_of(p, r->key, writer, position);
}

static void fill(struct sim_region *reg, uint32_t page, uint64_t tag)
{
    for (uint32_t i = 0; i < reg->page_bytes / 8u; i++) {
        reg->pages[page].words[i] = word_of(tag, i);
    }
}

void sim_oracle_fill(struct sim_world *w, uint32_t room, uint32_t writer, uint32_t position,
                     struct sim_region *reg, uint32_t page)
{
    const struct sim_room *r = sim_room_at(w, room);
    fill(reg, page, tag_of(sim_plan_of(w, r->request), r->key, writer, position));
}

void sim_oracle_fill_prefix(uint32_t prefix_id, uint32_t host, uint32_t position,
                            struct sim_region *reg, uint32_t page)
{
    fill(reg, page, tag_of_content(prefix_content(prefix_id), host, position));
}

void sim_oracle_poison(struct sim_region *reg, uint32_t page)
{
    for (uint32_t i = 0; i < reg->page_bytes / 8u; i++) {
        reg->pages[page].words[i] = POISON;
    }
}

static bool is_range_of(uint64_t tag, const void *buffer, uint64_t off, uint64_t bytes)
{
    uint64_t image[SIM_WORDS_PER_PAGE + 1u];
    uint64_t first = off / 8u;
    for (uint64_t i = first; i < (off + bytes + 7u) / 8u; i++) {
        image[i - first] = word_of(tag, (uint32_t)i);
    }
    return memcmp((const unsigned char *)image + off % 8u, buffer, bytes) == 0;
}

static bool is_filler(const void *buffer, uint64_t bytes)
{
    const unsigned char *at = buffer;
    for (uint64_t i = 0; i < bytes; i++) {
        if (at[i] != SIM_FILLER_BYTE) {
            return false;
        }
    }
    return true;
}

static void check_content(struct sim_world *w, uint32_t room)
{
    struct sim_room *r = sim_room_at(w, room);
    for (uint32_t i = 0; i < r->page_count; i++) {
        uint32_t id;
        const struct sim_page *p = page_of(w, r, i, &id);
        uint64_t tag = expected_tag(w, r, i);
        uint32_t words = client_of(w, r)->regions[r->pages[i].region].page_bytes / 8u;
        for (uint32_t k = 0; k < words; k++) {
            if (p->words[k] != word_of(tag, k)) {
                sim_fail(w, SIM_WRONG_CONTENT, room, id,
                         "Success with wrong bytes at position %u (word %u is %s)", i, k,
                         p->words[k] == POISON ? "what was there before" : "a stranger's");
                return;
            }
        }
    }
}

/* ---- landings and reads --------------------------------------------------------------------------------- */

static struct sim_page *touched(struct sim_world *w, const struct sim_touch *t,
                                uint32_t *ret_id)
{
    struct sim_client *c =
        t->client < SIM_CLIENTS ? &w->hosts[t->host].clients[t->client] : NULL;
    uint32_t region = t->region & 0xffu;
    *ret_id = SIM_NO_ROOM;
    if (c == NULL || region >= SIM_REGIONS || t->page >= c->regions[region].page_count ||
        t->off + t->bytes > c->regions[region].page_bytes) {
        return NULL;
    }
    *ret_id = sim_page_id(t->host, t->client, region, t->page);
    return &c->regions[region].pages[t->page];
}

int sim_oracle_land(void *ctx, const struct sim_touch *touch, uint64_t tag, const void *buffer)
{
    struct sim_world *w = ctx;
    uint32_t id;
    (void)tag;
    struct sim_page *p = touched(w, touch, &id);
    w->figures.landings++;
    if (p == NULL) {
        sim_fail(w, SIM_UNSAFE_LANDING, SIM_NO_ROOM, SIM_NO_ROOM,
                 "a byte lands outside of every region of h%u", touch->host);
        return -EFAULT;
    }
    sim_note(w, SIM_LAND, touch->host, p->owner, id,
             (uint64_t)touch->is_late << 32 | (touch->off << 16 & 0xffff0000u) | touch->bytes,
             (uint64_t)touch->epoch << 32 | touch->lane);
    if (touch->is_ghost) {
        w->figures.unsafe_landings++;
        sim_fail(w, SIM_UNSAFE_LANDING, p->owner, id,
                 "a ghost of epoch %u lands on h%u, in page %u of client %u", touch->from_epoch,
                 touch->host, touch->page, touch->client);
    } else if (p->owner == SIM_NO_ROOM) {
        w->figures.unsafe_landings++;
        sim_fail(w, SIM_UNSAFE_LANDING, SIM_NO_ROOM, id,
                 "%llu bytes land in page %u of client %u on h%u, which is idle%s",
                 (unsigned long long)touch->bytes, touch->page, touch->client, touch->host,
                 touch->is_late ? ", late" : "");
    } else {
        struct sim_room *r = sim_room_at(w, p->owner);
        if (!is_range_of(expected_tag(w, r, p->position), buffer, touch->off, touch->bytes) &&
            !is_filler(buffer, touch->bytes)) {
            w->figures.unsafe_landings++;
            sim_fail(w, SIM_UNSAFE_LANDING, p->owner, id,
                     "a stranger's %llu bytes land in page %u of client %u on h%u%s",
                     (unsigned long long)touch->bytes, touch->page, touch->client, touch->host,
                     touch->is_late ? ", late" : "");
        }
    }
    memcpy((unsigned char *)p->words + touch->off, buffer, touch->bytes);
    if (p->owner != SIM_NO_ROOM) {
        sim_ops_landed(w, sim_room_at(w, p->owner)->request);
    }
    return 0;
}

int sim_oracle_read(void *ctx, const struct sim_touch *touch, uint64_t *ret_tag, void *buffer)
{
    struct sim_world *w = ctx;
    uint32_t id;
    const struct sim_page *p = touched(w, touch, &id);
    w->figures.reads++;
    *ret_tag = 0;
    if (p == NULL) {
        sim_fail(w, SIM_UNSAFE_READ, SIM_NO_ROOM, SIM_NO_ROOM,
                 "a byte is read outside of every region of h%u", touch->host);
        return -EFAULT;
    }
    sim_note(w, SIM_READ, touch->host, SIM_NO_ROOM, id,
             (touch->off << 16 & 0xffff0000u) | touch->bytes,
             (uint64_t)touch->epoch << 32 | touch->lane);
    if (p->readers == 0) {
        sim_fail(w, SIM_UNSAFE_READ, SIM_NO_ROOM, id,
                 "page %u of client %u on h%u is read%s though no room counts it", touch->page,
                 touch->client, touch->host, touch->is_again ? " again" : "");
    }
    memcpy(buffer, (const unsigned char *)p->words + touch->off, touch->bytes);
    return 0;
}

void sim_oracle_touch(struct sim_world *w, uint32_t room, uint32_t nth)
{
    struct sim_room *r = sim_room_at(w, room);
    if (r->page_count == 0 || r->is_moot) {
        return; /* a source that has not submitted, or an engine whose end nobody sees */
    }
    uint32_t id;
    const struct sim_page *p = page_of(w, r, nth % r->page_count, &id);
    w->figures.lease_touches++;
    sim_note(w, SIM_LEASE_TOUCH, r->host, room, id, nth, 0);
    if (r->is_sink ? p->owner != room : p->readers == 0 || r->is_drained) {
        sim_fail(w, SIM_UNSAFE_LEASE, room, id,
                 "work under a lease of room %u touches page %u after the room drained", room,
                 r->pages[nth % r->page_count].page);
    }
}

/* ---- words --------------------------------------------------------------------------------------------- */

static bool is_legal_next(uint64_t old, uint64_t word)
{
    enum kvf_phase phase = kvf_word_phase(word);
    enum kvf_outcome outcome = kvf_word_outcome(word);
    bool is_first = kvf_word_generation(old) != kvf_word_generation(word);
    enum kvf_phase before = is_first ? KVF_PHASE_OPEN : kvf_word_phase(old);
    enum kvf_outcome outcome_before = is_first ? KVF_OUTCOME_NONE : kvf_word_outcome(old);
    if (phase == KVF_PHASE_FREE || (phase == KVF_PHASE_OPEN) != (outcome == KVF_OUTCOME_NONE) ||
        (phase == KVF_PHASE_DRAINED) != (kvf_word_proof(word) != KVF_PROOF_NONE)) {
        return false;
    }
    if (before != KVF_PHASE_OPEN && phase == KVF_PHASE_OPEN) {
        return false;
    }
    return outcome_before == KVF_OUTCOME_NONE || outcome_before == outcome;
}

/* The poll number and the visible bit say no more than phase and outcome allow. */
static bool is_poll_right(uint64_t word, bool is_sink)
{
    bool is_drained = kvf_word_is_drained(word);
    bool is_success = is_drained && kvf_word_outcome(word) == KVF_OUTCOME_SUCCESS;
    bool waits = (word & KVF_WORD_GROUP_WAITS) != 0;
    enum kvf_poll_state poll = kvf_word_poll(word);
    bool is_whole = kvf_word_outcome(word) == KVF_OUTCOME_SUCCESS && is_sink;
    if (((word & KVF_WORD_VISIBLE) != 0) != is_whole) {
        return false;
    }
    if (waits && (!is_drained || is_success || poll != KVF_STATE_TRANSFERRING)) {
        return false;
    }
    return (poll == KVF_STATE_SUCCESS) == is_success &&
           (poll == KVF_STATE_FAILED) == (is_drained && !is_success && !waits);
}

static uint64_t promised_ns(const struct sim_world *w, const struct sim_room *r)
{
    const struct sim_host *h = &w->hosts[r->host];
    uint64_t frozen_ns = h->frozen_total_ns - r->frozen_before_ns;
    return (r->has_lost_worker || frozen_ns > 0 ? w->bound_worst_ns + frozen_ns
                                                : w->bound_usual_ns) +
           SIM_BOUND_SLACK_NS;
}

static void check_bound(struct sim_world *w, uint32_t room)
{
    const struct sim_room *r = sim_room_at(w, room);
    if (r->is_bound_off || r->closed_ns == KVF_NO_TIME) {
        return;
    }
    uint64_t took_ns = w->clock.now_ns - r->closed_ns;
    if (took_ns > promised_ns(w, r)) {
        w->figures.bound_violations++;
        sim_fail(w, SIM_BOUND_BROKEN, room, SIM_NO_ROOM,
                 "%s room %u took %llu us from close to drained; %llu are promised",
                 r->is_sink ? "sink" : "source", room, (unsigned long long)(took_ns / SIM_US),
                 (unsigned long long)(promised_ns(w, r) / SIM_US));
    }
}

static void check_leases(struct sim_world *w, uint32_t room, uint64_t word)
{
    const struct sim_room *r = sim_room_at(w, room);
    bool is_reaped = client_of(w, r)->process == SIM_REAPED;
    bool is_cpu_right = r->leases[KVF_LEASE_CPU] == 0 || is_reaped;
    if (!is_cpu_right || r->leases[KVF_LEASE_GPU] + r->leases[KVF_LEASE_DIRECT_IO] > 0) {
        sim_fail(w, SIM_UNSAFE_LEASE, room, SIM_NO_ROOM,
                 "room %u drains (proof %d) with leases out: %u cpu, %u gpu, %u direct-io%s",
                 room, (int)kvf_word_proof(word), r->leases[0], r->leases[1], r->leases[2],
                 is_reaped ? ", engine reaped" : "");
    }
}

static void count_proof(struct sim_figures *f, enum kvf_proof proof)
{
    uint64_t *const counts[KVF_PROOF_COUNT] = {[KVF_PROOF_NEVER_POSTED] = &f->never_posted,
                                               [KVF_PROOF_LANDED] = &f->landed,
                                               [KVF_PROOF_SOURCE_IDLE] = &f->source_idle,
                                               [KVF_PROOF_PEER_DRAINED] = &f->peer_drained,
                                               [KVF_PROOF_REVOKED] = &f->revoked,
                                               [KVF_PROOF_FENCED] = &f->fenced,
                                               [KVF_PROOF_WORKER_GONE] = &f->worker_gone,
                                               [KVF_PROOF_ENGINE_GONE] = &f->engine_gone};
    if (counts[proof] != NULL) {
        (*counts[proof])++;
    }
}

static void drained(struct sim_world *w, uint32_t room, uint64_t word)
{
    struct sim_room *r = sim_room_at(w, room);
    sim_note(w, SIM_DRAINED, r->host, room, SIM_NO_ROOM, word, 0);
    check_leases(w, room, word);
    check_bound(w, room);
    count_proof(&w->figures, kvf_word_proof(word));
    if (kvf_word_outcome(word) == KVF_OUTCOME_SUCCESS) {
        w->figures.rooms_succeeded++;
        if (r->is_sink) {
            check_content(w, room);
        }
    } else {
        w->figures.rooms_failed++;
    }
    r->is_drained = true;
    r->drained_ns = w->clock.now_ns;
    if (!r->is_quarantined && !r->is_moot) {
        w->undrained--;
    }
    if (!r->is_moot) { /* else its pages were given back, and may be another's */
        give_back(w, room);
    }
}

static void quarantined(struct sim_world *w, uint32_t room)
{
    struct sim_room *r = sim_room_at(w, room);
    if (!r->is_quarantined && !r->is_moot) {
        r->is_quarantined = true;
        w->undrained--;
        w->figures.quarantines++;
        if (r->leases[KVF_LEASE_GPU] + r->leases[KVF_LEASE_DIRECT_IO] == 0 ||
            client_of(w, r)->process != SIM_REAPED) {
            sim_fail(w, SIM_QUARANTINE_WRONG, room, SIM_NO_ROOM,
                     "room %u is in quarantine without a dead engine's device lease", room);
        }
    }
}

static void check_core_view(struct sim_world *w, uint32_t room,
                            const struct kvf_core_room_view *view)
{
    const struct sim_room *r = sim_room_at(w, room);
    if (view->unproven != 0) {
        sim_fail(w, SIM_WORD_BACKWARDS, room, SIM_NO_ROOM,
                 "room %u is drained with %u (grant, lane) pairs unproven", room,
                 view->unproven);
    }
    const struct sim_host *h = &w->hosts[r->host];
    uint64_t frozen_ns = h->frozen_total_ns - r->frozen_before_ns;
    if (!r->is_bound_off && !r->has_lost_worker &&
        view->close_to_drained_ns > w->bound_usual_ns + frozen_ns + SIM_BOUND_SLACK_NS) {
        w->figures.bound_violations++;
        sim_fail(w, SIM_BOUND_BROKEN, room, SIM_NO_ROOM,
                 "room %u says it took %llu us from close to drained", room,
                 (unsigned long long)(view->close_to_drained_ns / SIM_US));
    }
}

void sim_oracle_word(struct sim_world *w, uint32_t host, uint32_t client, uint32_t slot,
                     const struct kvf_core_room_view *view)
{
    struct sim_client *c = &w->hosts[host].clients[client];
    uint64_t word = atomic_load_explicit(&c->rooms[slot].word, memory_order_relaxed);
    uint32_t room = c->room_of[slot];
    if (room == SIM_NO_ROOM || sim_room_at(w, room)->generation != kvf_word_generation(word)) {
        sim_fail(w, SIM_WORD_BACKWARDS, room, SIM_NO_ROOM,
                 "slot %u of client %u on h%u speaks of generation %llu, which is not its own",
                 slot, client, host, (unsigned long long)kvf_word_generation(word));
        return;
    }
    struct sim_room *r = sim_room_at(w, room);
    if (word == r->word) {
        return;
    }
    sim_note(w, SIM_WORD, host, room, SIM_NO_ROOM, word,
             atomic_load_explicit(&c->rooms[slot].reason, memory_order_relaxed));
    bool is_news_only = kvf_word_is_drained(r->word) && kvf_word_is_drained(word) &&
                        kvf_word_outcome(r->word) == kvf_word_outcome(word);
    bool was_waiting = (r->word & KVF_WORD_GROUP_WAITS) != 0;
    if (kvf_word_is_drained(r->word) && !(is_news_only && was_waiting)) {
        sim_fail(w, SIM_WORD_BACKWARDS, room, SIM_NO_ROOM,
                 "room %u was drained and is published again: %llx after %llx", room,
                 (unsigned long long)word, (unsigned long long)r->word);
    } else if (!is_legal_next(r->word, word) || !is_poll_right(word, r->is_sink)) {
        sim_fail(w, SIM_WORD_BACKWARDS, room, SIM_NO_ROOM, "room %u: word %llx after %llx",
                 room, (unsigned long long)word, (unsigned long long)r->word);
    }
    bool waits = (word & KVF_WORD_GROUP_WAITS) != 0;
    w->group_waiting += waits && !was_waiting ? 1u : 0u;
    w->group_waiting -= was_waiting && !waits ? 1u : 0u;
    w->figures.group_waits += waits && !was_waiting ? 1u : 0u;
    r->is_stillborn = r->is_stillborn ||
                      (r->word == 0 && kvf_word_phase(word) != KVF_PHASE_OPEN && view != NULL);
    r->word = word;
    sim_ranks_check(w, room);
    if (kvf_word_phase(word) != KVF_PHASE_OPEN) {
        sim_oracle_closed(w, room);
    }
    if (kvf_word_is_drained(word) && !r->is_drained) {
        if (view != NULL) {
            check_core_view(w, room, view);
        }
        drained(w, room, word);
    } else if (kvf_word_phase(word) == KVF_PHASE_QUARANTINED) {
        quarantined(w, room);
    }
}

void sim_oracle_concluded(struct sim_world *w, uint32_t room)
{
    struct sim_room *r = sim_room_at(w, room);
    if (!r->is_drained && !r->is_moot) {
        drained(w, room,
                kvf_word_make(r->generation, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED,
                              KVF_PROOF_WORKER_GONE, KVF_STATE_FAILED, 0));
    }
}

void sim_oracle_moot(struct sim_world *w, uint32_t room)
{
    struct sim_room *r = sim_room_at(w, room);
    if ((r->word & KVF_WORD_GROUP_WAITS) != 0) { /* nobody waits any more */
        r->word &= ~KVF_WORD_GROUP_WAITS;
        w->group_waiting--;
    }
    if (!r->is_drained && !r->is_moot) {
        r->is_moot = true;
        if (!r->is_quarantined) {
            w->undrained--;
        }
        give_back(w, room);
    }
}

void sim_oracle_worker_lost(struct sim_world *w, uint32_t host)
{
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &w->hosts[host].clients[i];
        for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
            uint32_t room = c->room_of[slot];
            if (room != SIM_NO_ROOM && !sim_room_at(w, room)->is_drained) {
                sim_room_at(w, room)->has_lost_worker = true;
                sim_oracle_closed(w, room);
            }
        }
    }
}

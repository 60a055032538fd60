/* One round: rooms in flight, a fault at a share of their bytes, and what must be true from then on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/faults/faults.h"

#define SHARE_MS 15000u
#define LOOK_US 300u
#define CHECK_NS UINT64_C(2000000)
#define SWEEP_NS UINT64_C(500000000)
#define OTHERS_MS 8000u
#define NEW_ROOM_MS 1000u
#define NEW_ROOM_PAGES 8u
#define HELD_BACK_AFTER 40u /* percent more than the share */
#define HELD_BACK_LATEST 97u
#define HELD_BACK_FROM 80u
#define WORKER_ENDS_FREE 4u /* the first restarts are immediate */
#define REST_MS 2100u
#define SUCCESS_MS 20000u
#define MISSED_FACTOR 3u
#define CANARY_FAMILY UINT64_C(0xca9a)
#define POISON_FAMILY UINT64_C(0x9015)

struct end {               /* one side of a transfer */
    struct engine *engine; /* NULL: its engine is one that is killed */
    kvf_room room;
    bool is_open;
    bool is_frozen; /* its daemon cannot end it now */
    bool was_frozen;
    bool is_ended;
    bool is_affected;
};

struct transfer {
    uint64_t key;
    uint32_t slot;
    int32_t sink_first;
    int32_t source_first;
    struct end sink;
    struct end source;
};

/* Pages that went to their next owner: what it wrote stays, or something else still writes. */
struct probe {
    uint64_t key;
    uint64_t since_ns;
    uint64_t until_ns;
    uint32_t share;
    int proof; /* 0: none, its engine took the pages back without */
    bool is_out;
};

struct round {
    struct scene *s;
    struct share_result *result;
    struct transfer transfers[CO_ROOMS_MAX];
    uint32_t count;
    uint32_t share;
    uint64_t sink_bound_us;
    uint64_t source_bound_us;
    uint64_t flows_before[FLOWS_MAX];
    bool is_memory_held; /* the registration of a killed engine */
    uint64_t checked_ns;
};

static struct probe probes[SINK_SLOTS_MAX]; /* by slot; a case has a process of its own */
static uint64_t swept_ns;

static int32_t first_of(uint32_t slot)
{
    return (int32_t)(slot * ROOM_PAGES);
}

/* ---- probes ----------------------------------------------------------------------------------------- */

static void probe_begin(struct round *r, const struct transfer *t, int proof)
{
    struct scene *s = r->s;
    uint64_t now = now_ns();
    pattern_fill(s->to, t->key ^ CANARY_FAMILY, t->sink_first, ROOM_PAGES);
    probes[t->slot] =
        (struct probe){.key = t->key,
                       .since_ns = now,
                       .until_ns = now_ns() + settings.probe_ms * UINT64_C(1000000),
                       .share = r->share,
                       .proof = proof,
                       .is_out = true};
}

static void probe_look(struct scene *s, uint32_t slot)
{
    struct probe *p = &probes[slot];
    uint64_t wrong =
        pattern_count_wrong(s->to, p->key ^ CANARY_FAMILY, first_of(slot), ROOM_PAGES);
    PROMISE(s, wrong == 0,
            "P1 Safety: %llu bytes changed in pages of the sink room of key %llu, seen %llu ms "
            "after their next owner had them (%s)",
            (unsigned long long)wrong, (unsigned long long)p->key,
            (unsigned long long)(now_ns() - p->since_ns) / 1000000u,
            p->proof > 0 ? kvf_proof_name(p->proof) : "taken without a proof, as planted");
}

static void probes_turn(struct scene *s, bool is_all)
{
    uint64_t now = now_ns();
    bool is_sweep = is_all || now - swept_ns >= SWEEP_NS;
    swept_ns = is_sweep ? now : swept_ns;
    for (uint32_t i = 0; i < settings.sink_slots; i++) {
        if (probes[i].is_out && (is_sweep || now >= probes[i].until_ns)) {
            probe_look(s, i);
            if (now >= probes[i].until_ns) {
                probes[i].is_out = false;
                s->result->shares[probes[i].share].probes++;
            }
        }
    }
}

static void probes_await(struct scene *s)
{
    for (uint32_t i = 0; i < settings.sink_slots; i++) {
        while (probes[i].is_out) {
            sleep_us(20000);
            probes_turn(s, false);
        }
    }
}

static uint32_t take_slot(struct scene *s, const struct round *r)
{
    for (;;) {
        for (uint32_t i = 0; i < settings.sink_slots; i++) {
            bool is_taken = probes[i].is_out;
            for (uint32_t k = 0; k < r->count; k++) {
                is_taken = is_taken || r->transfers[k].slot == i;
            }
            if (!is_taken) {
                return i;
            }
        }
        sleep_us(5000);
        probes_turn(s, false);
    }
}

/* ---- in flight -------------------------------------------------------------------------------------- */

static bool holds_back(const struct round *r)
{
    const struct fault_case *fault = r->s->fault;
    return fault->always_holds_back ||
           (!fault->never_holds_back && settings.shares[r->share] >= HELD_BACK_FROM);
}

static void submit(struct round *r, const struct transfer *t)
{
    uint32_t share = settings.shares[r->share] + HELD_BACK_AFTER;
    uint32_t pages = ROOM_PAGES * (share < HELD_BACK_LATEST ? share : HELD_BACK_LATEST) / 100u;
    bool is_last = !holds_back(r);
    engine_submit(r->s->from, t->source.room, t->source_first, is_last ? ROOM_PAGES : pages, 0,
                  is_last);
}

static void open_rooms(struct round *r)
{
    struct scene *s = r->s;
    uint64_t keys[CO_ROOMS_MAX];
    int32_t firsts[CO_ROOMS_MAX];
    uint32_t wanted = s->fault->rooms != 0 ? s->fault->rooms : ROOMS;
    while (r->count < wanted) {
        struct transfer *t = &r->transfers[r->count];
        *t = (struct transfer){.key = key_next(), .slot = take_slot(s, r)};
        t->sink_first = first_of(t->slot);
        t->source_first = first_of(r->count);
        keys[r->count] = t->key;
        firsts[r->count] = s->fault->kills_source_engine ? t->source_first : t->sink_first;
        pattern_fill(s->from, t->key, t->source_first, ROOM_PAGES);
        r->count++;
    }
    if (s->fault->kills_sink_engine || s->fault->kills_source_engine) {
        scene_start_helper(s, keys, firsts);
        r->is_memory_held = true;
    }
    for (uint32_t i = 0; i < r->count; i++) {
        struct transfer *t = &r->transfers[i];
        if (!s->fault->kills_sink_engine) {
            t->sink = (struct end){.engine = s->to, .is_open = true};
            t->sink.room = engine_sink(s->to, t->key, t->sink_first, ROOM_PAGES, &s->via);
        }
        if (!s->fault->kills_source_engine) {
            t->source = (struct end){.engine = s->from, .is_open = true};
            t->source.room = engine_source(s->from, t->key);
            submit(r, t);
        }
    }
}

/* The room by which the round knows how far its transfers are. */
static const struct end *leader(const struct round *r)
{
    const struct transfer *t = &r->transfers[0];
    return t->sink.is_open ? &t->sink : &t->source;
}

/* True at the share; false if everything had arrived before anybody looked. */
static bool await_share(struct round *r)
{
    const struct end *e = leader(r);
    uint64_t wanted =
        (uint64_t)ROOM_PAGES * e->engine->page_bytes * settings.shares[r->share] / 100u;
    uint64_t until_ns = now_ns() + settings.patience * SHARE_MS * UINT64_C(1000000);
    for (;;) {
        struct kvf_room_info info = room_info(e->engine, e->room);
        if (settings.is_verbs && e == &r->transfers[0].sink) { /* nobody counts what lands */
            info.placed_bytes = pattern_count_begun(e->engine, r->transfers[0].key,
                                                    r->transfers[0].sink_first, ROOM_PAGES);
        }
        if (info.state == KVF_SUCCESS) {
            return false;
        }
        PROMISE(r->s, info.state != KVF_FAILED,
                "P5 Independence: a room failed before any fault: %s (%s)",
                kvf_strerror((int)info.reason), kvf_code_name_of((int)info.reason));
        if (info.placed_bytes >= wanted) {
            return true;
        }
        CHECK(now_ns() < until_ns, "only %llu of %llu bytes after %u ms",
              (unsigned long long)info.placed_bytes, (unsigned long long)wanted, SHARE_MS);
        sleep_us(LOOK_US);
    }
}

/* ---- after the fault -------------------------------------------------------------------------------- */

static bool note_end(struct round *r, struct end *e, uint64_t bound_us, const char *side,
                     int *ret_state, int *ret_proof)
{
    struct scene *s = r->s;
    uint64_t since_ns = e->was_frozen ? s->ready_ns : s->strike_ns;
    uint64_t took_us = (now_ns() - since_ns) / 1000u;
    int state = kvf_poll(e->engine->client, e->room);
    if (state != KVF_FAILED && state != KVF_SUCCESS) {
        PROMISE(
            s, s->fault->needs_success || took_us <= bound_us,
            "P2 Bound: the %s room %llx is not drained %llu ms after the fault; the bound is "
            "%llu ms (poll %d, phase %d)",
            side, (unsigned long long)e->room, (unsigned long long)took_us / 1000u,
            (unsigned long long)bound_us / 1000u, state, room_info(e->engine, e->room).phase);
        PROMISE(s, took_us <= settings.patience * SUCCESS_MS * 1000u,
                "P2 Bound: the %s room %llx has not ended after %u ms", side,
                (unsigned long long)e->room, settings.patience * SUCCESS_MS);
        return false;
    }
    int proof = kvf_drained(e->engine->client, e->room);
    PROMISE(s, proof > 0, "P7 Truth: the %s room is %s and not drained (%d)", side,
            kvf_state_name(state), proof);
    PROMISE(s, state == KVF_SUCCESS || took_us <= bound_us,
            "P2 Bound: the %s room drained by %s after %llu ms; the bound is %llu ms", side,
            kvf_proof_name(proof), (unsigned long long)took_us / 1000u,
            (unsigned long long)bound_us / 1000u);
    if (s->fault->needs_success && state != KVF_SUCCESS) {
        struct kvf_room_info info = room_info(e->engine, e->room);
        violated(s, __FILE__, __LINE__,
                 "P5 Independence: the %s room of a fenced stream is not granted anew but "
                 "fails: %s (%s)",
                 side, kvf_strerror((int)info.reason), kvf_code_name_of((int)info.reason));
    }
    e->is_ended = true;
    if (e->is_affected) {
        struct share_result *result = r->result;
        result->succeeded += state == KVF_SUCCESS;
        if (state == KVF_FAILED && !e->was_frozen && result->drained_count < SAMPLES_MAX) {
            result->drained_us[result->drained_count++] = (uint32_t)took_us;
        }
    }
    *ret_state = state;
    *ret_proof = proof;
    return true;
}

static void end_sink(struct round *r, struct transfer *t, int state, int proof)
{
    struct scene *s = r->s;
    int32_t pages[ROOM_PAGES];
    pages_count_up(pages, ROOM_PAGES, t->sink_first);
    int idle = kvf_pages_are_idle(s->to->client, s->to->region, pages, ROOM_PAGES, NULL);
    PROMISE(s, idle == 1,
            "P1 Safety: the room is drained and the ledger shows its pages lent (%d)", idle);
    if (settings.is_drained_at_once) {
        return; /* their next owner has been there since the fault */
    }
    if (state == KVF_SUCCESS) {
        uint64_t wrong = pattern_count_wrong(s->to, t->key, t->sink_first, ROOM_PAGES);
        PROMISE(s, wrong == 0, "P7 Truth: %llu wrong bytes in a room that ended in success",
                (unsigned long long)wrong);
    }
    uint64_t poison =
        pattern_count_right(s->to, t->key ^ POISON_FAMILY, t->sink_first, ROOM_PAGES);
    PROMISE(
        s, poison == 0,
        "P1 Safety: %llu bytes arrived that were written into source pages after their room "
        "was drained",
        (unsigned long long)poison);
    probe_begin(r, t, proof);
}

static bool is_due(const struct end *e)
{
    return e->is_open && !e->is_ended && !e->is_frozen;
}

static void look_at(struct round *r, struct transfer *t)
{
    int state;
    int proof;
    if (is_due(&t->source) &&
        note_end(r, &t->source, r->source_bound_us, "source", &state, &proof)) {
        /* The next owner of the source pages writes at once: nobody may send that. */
        pattern_fill(r->s->from, t->key ^ POISON_FAMILY, t->source_first, ROOM_PAGES);
    }
    if (is_due(&t->sink) && note_end(r, &t->sink, r->sink_bound_us, "sink", &state, &proof)) {
        end_sink(r, t, state, proof);
    }
}

/* The memory of a killed engine is let go once nothing can touch it. */
static void look_at_memory(struct round *r)
{
    struct scene *s = r->s;
    bool is_sink = s->fault->kills_sink_engine;
    const struct daemon *d = is_sink ? s->sink : s->source;
    uint64_t wanted = is_sink ? s->sink_regions : s->source_regions;
    uint64_t bound_us = is_sink ? r->sink_bound_us : r->source_bound_us;
    uint64_t took_us = (now_ns() - s->strike_ns) / 1000u;
    if (daemon_stat(d, "regions") > wanted) {
        PROMISE(
            s, took_us <= bound_us,
            "P2 Bound: daemon %s still holds the memory of an engine killed %llu ms ago; the "
            "bound is %llu ms",
            d->name, (unsigned long long)took_us / 1000u, (unsigned long long)bound_us / 1000u);
        return;
    }
    r->is_memory_held = false;
    if (r->result->drained_count < SAMPLES_MAX) {
        r->result->drained_us[r->result->drained_count++] = (uint32_t)took_us;
    }
    for (uint32_t i = 0; i < r->count; i++) {
        struct transfer *t = &r->transfers[i];
        if (!is_sink) {
            pattern_fill(s->from, t->key ^ POISON_FAMILY, t->source_first, ROOM_PAGES);
        } else if (!settings.is_drained_at_once) {
            probe_begin(r, t, KVF_ENGINE_GONE);
        }
    }
}

static void ask_kernel(struct round *r)
{
    uint64_t now = now_ns();
    struct engine *engines[] = {r->s->from, r->s->to};
    if (now - r->checked_ns < CHECK_NS) {
        return;
    }
    r->checked_ns = now;
    for (uint32_t i = 0; i < 2; i++) {
        if (engines[i]->client != NULL) {
            (void)kvf_daemon_check(engines[i]->client);
        }
    }
}

static bool have_all_ended(const struct round *r)
{
    bool all = !r->is_memory_held;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct transfer *t = &r->transfers[i];
        all = all && !is_due(&t->sink) && !is_due(&t->source);
    }
    return all;
}

static void watch(struct round *r)
{
    while (!have_all_ended(r)) {
        ask_kernel(r);
        for (uint32_t i = 0; i < r->count; i++) {
            look_at(r, &r->transfers[i]);
        }
        if (r->is_memory_held) {
            look_at_memory(r);
        }
        probes_turn(r->s, false);
        sleep_us(LOOK_US);
    }
}

/* ---- the round -------------------------------------------------------------------------------------- */

static uint64_t refused_now(struct scene *s)
{
    return kvf_proxy_count(&s->network, "refused_back") +
           (s->sink->pid != 0 ? daemon_stat(s->sink, "bytes_refused_total") : 0);
}

static uint32_t mark_affected(struct round *r)
{
    uint32_t count = r->is_memory_held ? r->count : 0;
    for (uint32_t i = 0; i < r->count; i++) {
        struct end *ends[] = {&r->transfers[i].sink, &r->transfers[i].source};
        for (uint32_t k = 0; k < 2; k++) {
            if (ends[k]->is_open) {
                int state = kvf_poll(ends[k]->engine->client, ends[k]->room);
                ends[k]->is_affected = state != KVF_SUCCESS && state != KVF_FAILED;
                count += ends[k]->is_affected;
            }
        }
    }
    return count;
}

static void strike(struct round *r)
{
    struct scene *s = r->s;
    const struct fault_case *fault = s->fault;
    r->sink_bound_us = scene_bound_us(s->sink, fault->sink_bound);
    r->source_bound_us = scene_bound_us(s->source, fault->source_bound);
    uint64_t bound_us =
        r->sink_bound_us > r->source_bound_us ? r->sink_bound_us : r->source_bound_us;
    r->result->bound_us = (uint32_t)bound_us;
    for (uint32_t i = 0; i < s->flow_count; i++) {
        r->flows_before[i] = flow_count(s->flows[i]);
    }
    s->refused_before = refused_now(s);
    s->ready_ns = 0;
    r->result->affected += mark_affected(r);
    machine_begin();
    s->strike_ns = now_ns();
    fault->strike_fn(s);
    if (settings.is_verbs) { /* it may take its time, and is a fault only when it is there */
        s->strike_ns = now_ns();
    }
    for (uint32_t i = 0; fault->aborts && i < r->count; i++) {
        CHECK_CODE(kvf_abort(s->to->client, r->transfers[i].sink.room, 0), 0, "abort");
    }
    for (uint32_t i = 0; settings.is_drained_at_once && i < r->count; i++) {
        probe_begin(r, &r->transfers[i], 0);
    }
}

static void await_others(struct round *r)
{
    struct scene *s = r->s;
    for (uint32_t i = 0; i < s->flow_count; i++) {
        uint64_t until_ns = now_ns() + settings.patience * OTHERS_MS * UINT64_C(1000000);
        while (flow_count(s->flows[i]) <= r->flows_before[i]) {
            PROMISE(s, now_ns() < until_ns,
                    "P5 Independence: others stand still since the fault");
            sleep_us(1000);
        }
        r->result->unaffected += flow_count(s->flows[i]) - r->flows_before[i];
    }
}

/* One whole transfer between the same engines, which were not started again. */
static void try_new_room(struct round *r)
{
    struct scene *s = r->s;
    if (s->from->client == NULL || s->to->client == NULL) {
        return; /* the next round's engine is the new one */
    }
    scene_await_engine(s, s->from);
    scene_await_engine(s, s->to);
    uint64_t key = key_next();
    int32_t in_first = (int32_t)(settings.sink_slots * ROOM_PAGES);
    int32_t out_first = (int32_t)(CO_ROOMS_MAX * ROOM_PAGES);
    pattern_fill(s->from, key, out_first, NEW_ROOM_PAGES);
    kvf_room in = engine_sink(s->to, key, in_first, NEW_ROOM_PAGES, &s->via);
    kvf_room out = engine_source(s->from, key);
    engine_submit(s->from, out, out_first, NEW_ROOM_PAGES, 0, true);
    int state = kvf_wait(s->to->client, in, settings.patience * SUCCESS_MS);
    uint64_t took_us = (now_ns() - s->ready_ns) / 1000u;
    struct kvf_room_info info = room_info(s->to, in);
    PROMISE(s, state == KVF_SUCCESS, "P6 Death: a new room after the fault is %s: %s (%s)",
            kvf_state_name(state), kvf_strerror((int)info.reason),
            kvf_code_name_of((int)info.reason));
    PROMISE(s, pattern_count_wrong(s->to, key, in_first, NEW_ROOM_PAGES) == 0,
            "P7 Truth: wrong bytes in a new room after the fault");
    PROMISE(s, took_us <= settings.patience * NEW_ROOM_MS * 1000u,
            "P6 Death: a new room works %llu ms after somebody serves again, not within %u ms",
            (unsigned long long)took_us / 1000u, settings.patience * NEW_ROOM_MS);
    PROMISE(s, kvf_wait(s->from->client, out, settings.patience * SUCCESS_MS) == KVF_SUCCESS,
            "P6 Death: the source of a new room after the fault does not end in success");
    room_release(s->to, in);
    room_release(s->from, out);
    if (took_us > r->result->new_room_us) {
        r->result->new_room_us = (uint32_t)took_us;
    }
}

static void freeze_ends(struct round *r, bool is_frozen)
{
    const struct fault_case *fault = r->s->fault;
    for (uint32_t i = 0; i < r->count; i++) {
        struct transfer *t = &r->transfers[i];
        t->sink.is_frozen = is_frozen && fault->freezes_sink;
        t->source.is_frozen = is_frozen && fault->freezes_source;
        t->sink.was_frozen = fault->freezes_sink;
        t->source.was_frozen = fault->freezes_source;
    }
}

static void release_rooms(struct round *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        struct end *ends[] = {&r->transfers[i].sink, &r->transfers[i].source};
        for (uint32_t k = 0; k < 2; k++) {
            if (ends[k]->is_open) {
                room_release(ends[k]->engine, ends[k]->room);
            }
        }
    }
}

static void count_refused(struct round *r)
{
    struct scene *s = r->s;
    uint64_t now = refused_now(s);
    if (now > s->refused_before) {
        r->result->refused_bytes += now - s->refused_before;
    }
}

/* Workers that die young again and again are started ever later: that is no fault to be measured here. */
static void rest(struct scene *s)
{
    uint64_t until_ns = now_ns() + REST_MS * UINT64_C(1000000);
    if (!s->fault->ends_workers || ++s->worker_ends <= WORKER_ENDS_FREE) {
        return;
    }
    while (now_ns() < until_ns) {
        sleep_us(20000);
        probes_turn(s, false);
    }
}

/* False if the transfers were over before the fault could strike: the round does not count. */
static bool run_round(struct scene *s, uint32_t share)
{
    struct round r = {.s = s, .result = &s->result->shares[share], .share = share};
    s->result->share = share;
    open_rooms(&r);
    if (!await_share(&r)) {
        s->strike_ns = now_ns();
        r.sink_bound_us = r.source_bound_us = settings.patience * SUCCESS_MS * 1000u;
        if (r.is_memory_held) {
            helper_kill(s->helper);
        }
        watch(&r);
        release_rooms(&r);
        return false;
    }
    strike(&r);
    if (s->fault->mends_at_once) {
        s->fault->mend_fn(s);
    }
    freeze_ends(&r, true);
    watch(&r);
    if (!s->fault->mends_at_once) {
        s->fault->mend_fn(s);
    }
    freeze_ends(&r, false);
    watch(&r);
    release_rooms(&r);
    try_new_room(&r);
    count_refused(&r);
    await_others(&r);
    rest(s);
    r.result->rounds++;
    return true;
}

void rounds_run(struct scene *s)
{
    for (uint32_t share = 0; share < settings.share_count; share++) {
        struct share_result *result = &s->result->shares[share];
        uint32_t missed = 0;
        while (result->rounds < settings.times) {
            if (!run_round(s, share)) {
                CHECK(++missed <= MISSED_FACTOR * settings.times + MISSED_FACTOR,
                      "%u times everything had arrived before the fault could strike", missed);
            }
            if (!settings.is_quiet) {
                fprintf(stderr, "     %s at %u %%: %u of %u\n", s->fault->name,
                        settings.shares[share], result->rounds, settings.times);
            }
        }
        /* Where the last pages are held back, all that was sent may have arrived before the strike. */
        bool is_shown = result->refused_bytes > 0 || settings.shares[share] >= HELD_BACK_FROM;
        /* Of what reaches a destroyed queue pair nobody keeps count. */
        PROMISE(s, !s->fault->needs_late_bytes || is_shown || settings.is_verbs,
                "this case shows nothing: no byte came after the proof");
    }
    probes_await(s);
}

/* Bad input, each with its own reason: the room ends at once through the gate, no other notices, nothing
 * leaks. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

struct bad_sink {
    const char *name;
    struct kvf_run_shm runs[3];
    uint32_t run_count;
    struct kvf_writer_shm writers[2];
    uint32_t writer_count;
    uint32_t reason;
};

#define W(from, n)                                                                             \
    {                                                                                          \
        .addr = {.family = 4, .port = 7001, .addr = {127, 0, 0, 1}}, .start = (from),          \
        .count = (n)                                                                           \
    }

static const struct bad_sink bad_sinks[] = {
    {"no runs", {{0}}, 0, {W(0, 1)}, 1, KVF_E_NO_PAGES},
    {"an empty run", {{PAIR_R0, 3, 0}}, 1, {W(0, 1)}, 1, KVF_E_NO_PAGES},
    {"an unknown region", {{PAIR_REGION(7, 1), 0, 4}}, 1, {W(0, 4)}, 1, KVF_E_UNKNOWN_REGION},
    {"a stale region", {{PAIR_REGION(0, 9), 0, 4}}, 1, {W(0, 4)}, 1, KVF_E_UNKNOWN_REGION},
    {"region 0", {{0, 0, 4}}, 1, {W(0, 4)}, 1, KVF_E_UNKNOWN_REGION},
    {"a wild region", {{UINT32_MAX, 0, 4}}, 1, {W(0, 4)}, 1, KVF_E_UNKNOWN_REGION},
    {"first past the end", {{PAIR_R0, 256, 1}}, 1, {W(0, 1)}, 1, KVF_E_PAGE_RANGE},
    {"last past the end", {{PAIR_R0, 250, 7}}, 1, {W(0, 7)}, 1, KVF_E_PAGE_RANGE},
    {"index 2^32-1", {{PAIR_R0, UINT32_MAX, 1}}, 1, {W(0, 1)}, 1, KVF_E_PAGE_RANGE},
    {"count 2^32-1", {{PAIR_R0, 1, UINT32_MAX}}, 1, {W(0, 1)}, 1, KVF_E_PAGE_RANGE},
    {"a page twice", {{PAIR_R0, 0, 4}, {PAIR_R0, 3, 2}}, 2, {W(0, 6)}, 1, KVF_E_PAGE_TWICE},
    {"no writer", {{PAIR_R0, 0, 4}}, 1, {W(0, 4)}, 0, KVF_E_PEER_COUNT},
    {"parts that overlap", {{PAIR_R0, 0, 4}}, 1, {W(0, 3), W(2, 2)}, 2, KVF_E_PIECE_OVERLAP},
    {"a hole between parts", {{PAIR_R0, 0, 4}}, 1, {W(0, 1), W(2, 2)}, 2, KVF_E_PIECE_HOLE},
    {"an uncovered end", {{PAIR_R0, 0, 4}}, 1, {W(0, 3)}, 1, KVF_E_PIECE_HOLE},
    {"a part past the list", {{PAIR_R0, 0, 4}}, 1, {W(0, 5)}, 1, KVF_E_PIECE_RANGE},
    {"a part that begins past it", {{PAIR_R0, 0, 4}}, 1, {W(4, 1)}, 1, KVF_E_PIECE_RANGE},
    {"a part that wraps", {{PAIR_R0, 0, 4}}, 1, {W(2, UINT32_MAX)}, 1, KVF_E_PIECE_RANGE},
    {"an empty part", {{PAIR_R0, 0, 4}}, 1, {W(0, 4), W(2, 0)}, 2, KVF_E_PIECE_RANGE},
    {"an address of no family",
     {{PAIR_R0, 0, 4}},
     1,
     {{.start = 0, .count = 4}},
     1,
     KVF_E_PEER_UNRESOLVED},
};

Test(core_refusal, every_bad_sink_ends_with_its_own_reason_and_leaks_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 100, 4);
    pair_settle(p);
    for (size_t i = 0; i < sizeof bad_sinks / sizeof bad_sinks[0]; i++) {
        const struct bad_sink *b = &bad_sinks[i];
        struct pair_room *r =
            pair_open_sink(p, 0,
                           &(struct pair_open){.key = 100 + i,
                                               .runs = b->runs,
                                               .run_count = b->run_count,
                                               .writers = b->writers,
                                               .writer_count = b->writer_count});
        cr_assert_eq(r->rc, 0);
        cr_assert(pair_is_drained(r), "%s", b->name);
        cr_assert_eq(r->view.reason, b->reason, "%s: %u", b->name, r->view.reason);
        cr_assert_eq(pair_proof(r), KVF_PROOF_NEVER_POSTED);
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_ROOMS_REFUSED),
                 sizeof bad_sinks / sizeof bad_sinks[0]);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD), 4);
    cr_assert_eq(p->daemons[0].connects, 1);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

Test(core_refusal, seventeen_writers_are_one_too_many)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_writer_shm writers[17];
    for (uint32_t i = 0; i < 17; i++) {
        writers[i] = (struct kvf_writer_shm){.addr = pair_addr(1), .start = i, .count = 1};
    }
    struct kvf_run_shm run = {PAIR_R0, 0, 17};
    struct pair_room *r = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .runs = &run, .run_count = 1, .writers = writers, .writer_count = 17});
    pair_expect(r, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_COUNT);
    pair_finish(p);
}

Test(core_refusal, pages_lent_to_another_room_are_refused_until_it_is_drained)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    struct pair_room *second = pair_sink(p, 0, 1, 8, 7, 2);
    pair_expect(second, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PAGE_LENT);
    struct pair_room *reader = pair_source(p, 0, 9);
    cr_assert_eq(pair_submit(reader, 0, 20, 4, false), 0);
    struct pair_room *third = pair_sink(p, 0, 1, 10, 23, 2); /* a page that is being read */
    pair_expect(third, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PAGE_LENT);
    pair_abort(reader);
    struct pair_room *fourth = pair_sink(p, 0, 1, 11, 23, 2);
    cr_assert_eq(pair_phase(fourth), KVF_PHASE_OPEN);
    pair_abort(fourth);
    pair_abort(sink);
    pair_settle(p);
    pair_finish(p);
}

struct bad_source {
    const char *name;
    struct pair_open open;
    uint32_t reason;
};

static const struct bad_source bad_sources[] = {
    {"no sink", {.sink_count = 0}, KVF_E_PEER_COUNT},
    {"seventeen sinks", {.sink_count = 17}, KVF_E_PEER_COUNT},
    {"an unknown region", {.sink_count = 1, .region = PAIR_REGION(5, 1)}, KVF_E_UNKNOWN_REGION},
    {"an unknown auxiliary region",
     {.sink_count = 1, .aux_region = PAIR_REGION(5, 1)},
     KVF_E_UNKNOWN_REGION},
    {"a group", {.sink_count = 1, .group = 4}, KVF_E_UNKNOWN_GROUP},
    {"an older worker epoch", {.sink_count = 1, .is_old_epoch = true}, KVF_E_WORKER_GONE},
    {"label and key of a living room", {.sink_count = 1, .key = 7}, KVF_E_KEY_IN_USE},
};

Test(core_refusal, every_bad_source_ends_with_its_own_reason_and_leaks_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 100, 4);
    pair_settle(p);
    for (size_t i = 0; i < sizeof bad_sources / sizeof bad_sources[0]; i++) {
        struct pair_open open = bad_sources[i].open;
        open.key = open.key == 0 ? 100 + i : open.key;
        struct pair_room *r = pair_open_source(p, 1, &open);
        cr_assert(pair_is_drained(r), "%s", bad_sources[i].name);
        cr_assert_eq(r->view.reason, bad_sources[i].reason, "%s: %u", bad_sources[i].name,
                     r->view.reason);
        cr_assert_eq(pair_proof(r), KVF_PROOF_NEVER_POSTED);
    }
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    pair_finish(p);
}

struct bad_piece {
    const char *name;
    uint32_t start;
    struct kvf_run_shm run;
    bool is_last;
    uint32_t reason;
};

/* After [0, 4) of a list of 16. */
static const struct bad_piece bad_pieces[] = {
    {"an overlap", 3, {PAIR_R0, 20, 4}, false, KVF_E_PIECE_OVERLAP},
    {"the same again", 0, {PAIR_R0, 0, 4}, false, KVF_E_PIECE_OVERLAP},
    {"past the end", 14, {PAIR_R0, 20, 4}, false, KVF_E_PIECE_RANGE},
    {"a start of 2^32-1", UINT32_MAX, {PAIR_R0, 20, 4}, false, KVF_E_PIECE_RANGE},
    {"last with a hole", 5, {PAIR_R0, 20, 11}, true, KVF_E_PIECE_HOLE},
    {"last and too short", 4, {PAIR_R0, 20, 4}, true, KVF_E_PIECE_HOLE},
    {"pages out of range", 4, {PAIR_R0, 255, 4}, false, KVF_E_PAGE_RANGE},
    {"no pages", 4, {PAIR_R0, 20, 0}, false, KVF_E_NO_PAGES},
    {"a region it did not name", 4, {PAIR_R1, 20, 4}, false, KVF_E_UNKNOWN_REGION},
    {"a region nobody has", 4, {PAIR_REGION(9, 1), 20, 4}, false, KVF_E_UNKNOWN_REGION},
    {"pages lent to a sink", 4, {PAIR_R0, 200, 4}, false, KVF_E_PAGE_LENT},
};

Test(core_refusal, every_bad_piece_ends_its_room_and_its_sink)
{
    for (uint32_t is_granted = 0; is_granted < 2; is_granted++) {
        struct pair *p = pair_new(&(struct pair_options){0});
        struct pair_room *lent = pair_sink(p, 1, 0, 5, 200, 2);
        for (size_t i = 0; i < sizeof bad_pieces / sizeof bad_pieces[0]; i++) {
            const struct bad_piece *b = &bad_pieces[i];
            struct pair_room *source = pair_source(p, 1, 100 + i);
            struct pair_room *sink = NULL;
            if (is_granted != 0) {
                sink = pair_sink(p, 0, 1, 100 + i, 0, 16);
                pair_settle(p);
            }
            cr_assert_eq(pair_submit(source, 0, 0, 4, false), 0);
            int rc = pair_submit_runs(source, b->start, &b->run, 1, b->is_last);
            if (is_granted == 0) { /* what the grant's length decides shows when it comes */
                sink = pair_sink(p, 0, 1, 100 + i, 0, 16);
            }
            pair_settle(p);
            cr_assert(pair_is_drained(source), "%s", b->name);
            cr_assert_eq(source->view.reason, b->reason, "%s: %u", b->name,
                         source->view.reason);
            cr_assert(rc == 0 || rc == -(int)b->reason, "%s: %d", b->name, rc);
            cr_assert(pair_is_drained(sink), "%s", b->name);
            cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED, "%s", b->name);
        }
        pair_abort(lent);
        pair_settle(p);
        pair_finish(p);
    }
}

Test(core_refusal, a_piece_after_the_last_and_a_piece_of_a_sink_are_refused)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    cr_assert_eq(pair_submit(source, 0, 0, 4, true), 0);
    cr_assert_eq(pair_submit(source, 4, 4, 4, false), -KVF_E_PIECES_CLOSED);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PIECES_CLOSED);
    struct pair_room *sink = pair_sink(p, 0, 1, 8, 0, 4);
    struct kvf_run_shm run = {PAIR_R0, 30, 4};
    cr_assert_eq(kvf_core_submit(p->daemons[0].core, p->now_ns,
                                 &(struct kvf_core_submit){.client = 0,
                                                           .slot = sink->slot,
                                                           .generation = sink->generation,
                                                           .runs = &run,
                                                           .run_count = 1}),
                 -KVF_E_ROLE);
    pair_drain(p, 0);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ROLE);
    pair_settle(p);
    pair_finish(p);
}

Test(core_refusal, commands_for_rooms_that_are_not_there_are_counted_and_change_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    struct pair_room *source = pair_source(p, 0, 7);
    struct pair_open open = {.key = 8, .sink_count = 1, .has_slot = true};
    open.slot = source->slot;
    open.generation = source->generation + 1;
    cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_SLOT_IN_USE);
    open.slot = 64;
    cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_UNKNOWN_ROOM);
    open.slot = UINT32_MAX;
    cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_UNKNOWN_ROOM);
    struct kvf_run_shm run = {PAIR_R0, 0, 1};
    struct kvf_core_submit submit = {.slot = source->slot, .runs = &run, .run_count = 1};
    submit.generation = source->generation + 1;
    cr_assert_eq(kvf_core_submit(core, p->now_ns, &submit), -KVF_E_STALE_ROOM);
    submit.slot = 9999;
    cr_assert_eq(kvf_core_submit(core, p->now_ns, &submit), -KVF_E_STALE_ROOM);
    submit.client = 77;
    cr_assert_eq(kvf_core_submit(core, p->now_ns, &submit), -KVF_E_STALE_ROOM);
    kvf_core_abort(core, p->now_ns, 0, source->slot, source->generation + 1, 0);
    kvf_core_abort(core, p->now_ns, 0, 9999, 1, 0);
    kvf_core_abort(core, p->now_ns, 77, 0, 1, 0);
    kvf_core_leases(core, p->now_ns, 77, 0, 1, 0, 0, 0);
    kvf_core_leases(core, p->now_ns, 0, source->slot, source->generation, 0, 0, 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_COMMANDS), 9);
    cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
    pair_abort(source);
    pair_finish(p);
}

Test(core_refusal, a_geometry_that_differs_is_declined_before_any_byte_moves)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    uint32_t wide = PAIR_REGION(0, 2);
    cr_assert_eq(pair_region_remove(p, 1, 0, PAIR_R0), 0);
    pair_region_add(p, 1, 0, wide, 256, 2 * PAIR_PAGE_BYTES);
    struct pair_room *source =
        pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 1, .region = wide});
    struct kvf_run_shm run = {wide, 0, 4};
    (void)pair_submit_runs(source, 0, &run, 1, true);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_GEOMETRY);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_GEOMETRY);
    cr_assert_eq(p->landed_halves, 0);
    pair_finish(p);
}

Test(core_refusal, a_piece_from_the_wrong_region_for_its_position_ends_both_rooms)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    uint32_t wide = PAIR_REGION(1, 2);
    for (uint32_t d = 0; d < 2; d++) {
        cr_assert_eq(pair_region_remove(p, d, 0, PAIR_R1), 0);
        pair_region_add(p, d, 0, wide, 256, 2 * PAIR_PAGE_BYTES);
    }
    struct kvf_run_shm to[2] = {{PAIR_R0, 0, 4}, {wide, 5, 1}};
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 5};
    struct pair_room *source = pair_open_source(
        p, 1, &(struct pair_open){.key = 7, .sink_count = 1, .aux_region = wide});
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = &writer, .writer_count = 1, .runs = to, .run_count = 2});
    pair_settle(p);
    (void)pair_submit(source, 0, 0, 5, true);
    pair_settle(p);
    cr_assert(pair_is_drained(source));
    cr_assert_eq(source->view.reason, KVF_E_GEOMETRY);
    /* The marker may overtake the hint that says why. */
    cr_assert_eq(pair_outcome(sink), KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_proof(sink), KVF_PROOF_PEER_DRAINED);
    pair_finish(p);
}

Test(core_refusal, a_grant_of_another_length_is_declined_and_both_rooms_say_so)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct pair_room *source =
        pair_open_source(p, 0, &(struct pair_open){.key = 7, .sink_count = 2});
    struct pair_room *first = pair_sink(p, 1, 0, 7, 0, 8);
    pair_settle(p);
    struct pair_room *second = pair_sink(p, 2, 0, 7, 0, 9);
    pair_settle(p);
    pair_expect(second, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_GRANT_LENGTH);
    cr_assert(pair_is_drained(source));
    cr_assert_eq(source->view.reason, KVF_E_GRANT_LENGTH);
    cr_assert(pair_is_drained(first));
    pair_finish(p);
}

/* Tables that are full refuse the next one and nobody else; what is freed serves again. */
Test(core_refusal, full_tables_refuse_with_resources_and_serve_again_later)
{
    struct pair *p = pair_new(&(struct pair_options){
        .grants_max = 8, .lane_rooms = 1, .pieces_max = 2, .runs_max = 64, .rooms = 32});
    for (uint32_t round = 0; round < 3; round++) {
        struct pair_room *sinks[9];
        for (uint32_t i = 0; i < 9; i++) {
            sinks[i] = pair_sink(p, 0, 1, 100 * round + 10 + i, 8 * i, 4);
        }
        pair_expect(sinks[8], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
        struct pair_room *reader = pair_source(p, 0, 100 * round + 20);
        cr_assert_eq(pair_submit(reader, 0, 100, 1, false), 0);
        cr_assert_eq(pair_submit(reader, 1, 101, 1, false), 0);
        cr_assert_eq(pair_submit(reader, 2, 102, 1, false), -KVF_E_RESOURCES);
        pair_expect(reader, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
        for (uint32_t i = 0; i < 8; i++) {
            pair_abort(sinks[i]);
        }
        pair_settle(p);
        struct kvf_run_shm runs[65];
        for (uint32_t i = 0; i < 65; i++) {
            runs[i] = (struct kvf_run_shm){PAIR_R0, 2 * i, 1};
        }
        struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 65};
        struct pair_room *wide = pair_open_sink(p, 0,
                                                &(struct pair_open){.key = 100 * round + 30,
                                                                    .writers = &writer,
                                                                    .writer_count = 1,
                                                                    .runs = runs,
                                                                    .run_count = 65});
        pair_expect(wide, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
        pair_warm(p, 0, 1);
    }
    pair_finish(p);
}

Test(core_refusal, a_source_without_room_for_the_list_declines_as_busy)
{
    struct pair *p = pair_new(&(struct pair_options){.runs_max = 128});
    struct pair_room *hog = pair_source(p, 1, 5);
    struct kvf_run_shm runs[60];
    for (uint32_t i = 0; i < 60; i++) {
        runs[i] = (struct kvf_run_shm){PAIR_R0, 2 * i, 1};
    }
    cr_assert_eq(pair_submit_runs(hog, 0, runs, 60, false), 0);
    struct pair_room *hog2 = pair_source(p, 1, 6);
    cr_assert_eq(pair_submit_runs(hog2, 0, runs, 60, false), 0);
    struct pair_room *source = pair_source(p, 1, 7);
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 60};
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = &writer, .writer_count = 1, .runs = runs, .run_count = 60});
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_BUSY);
    pair_abort(hog);
    pair_abort(hog2);
    pair_abort(source);
    pair_settle(p);
    pair_finish(p);
}

Test(core_refusal, more_peers_than_the_table_holds_are_refused_and_an_idle_one_makes_room)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *rooms[PAIR_PEERS + 1];
    for (uint32_t i = 0; i < PAIR_PEERS + 1; i++) {
        struct kvf_writer_shm writer = {.addr = pair_addr(100 + i), .count = 1};
        struct kvf_run_shm run = {PAIR_R0, i, 1};
        rooms[i] = pair_open_sink(p, 0,
                                  &(struct pair_open){.key = 10 + i,
                                                      .writers = &writer,
                                                      .writer_count = 1,
                                                      .runs = &run,
                                                      .run_count = 1});
    }
    pair_expect(rooms[PAIR_PEERS], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
    pair_advance(p, 5100 * PAIR_MS);
    for (uint32_t i = 0; i < PAIR_PEERS; i++) {
        pair_expect(rooms[i], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED,
                    KVF_E_PEER_UNREACHABLE);
    }
    pair_advance(p, 100 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* C6: whatever numbers an engine writes, what is accepted lies in the region, and pages are accounted. */
Test(core_refusal, c6_random_page_lists_are_inside_the_region_or_refused)
{
    struct pair *p = pair_new(&(struct pair_options){.rooms = 8});
    p->daemons[1].is_unreachable = true;
    static const uint32_t edges[] = {0, 1, 2, 127, 255, 256, 257, 65535, 1u << 31, UINT32_MAX};
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        struct kvf_run_shm runs[4];
        uint32_t count = (uint32_t)pair_random(p, 4);
        uint64_t pages = 0;
        bool is_inside = count > 0;
        for (uint32_t j = 0; j < count; j++) {
            bool is_edge = pair_random(p, 3) == 0;
            runs[j].region = pair_random(p, 8) == 0 ? (uint32_t)pair_random(p, 1u << 31)
                                                    : PAIR_REGION(pair_random(p, 2), 1);
            runs[j].first = is_edge ? edges[pair_random(p, 10)] : (uint32_t)pair_random(p, 256);
            runs[j].count = is_edge ? edges[pair_random(p, 10)] : (uint32_t)pair_random(p, 16);
            is_inside = is_inside && pair_region_of(p, 0, 0, runs[j].region) != NULL &&
                        runs[j].count > 0 && (uint64_t)runs[j].first + runs[j].count <= 256;
            pages += runs[j].count;
        }
        struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = (uint32_t)pages};
        struct pair_room *r = pair_open_sink(p, 0,
                                             &(struct pair_open){.key = 10 + i,
                                                                 .writers = &writer,
                                                                 .writer_count = 1,
                                                                 .runs = runs,
                                                                 .run_count = count});
        bool is_taken = pair_phase(r) == KVF_PHASE_OPEN;
        cr_assert(!is_taken || is_inside);
        cr_assert(is_taken || !is_inside || r->view.reason == KVF_E_PAGE_TWICE);
        accepted += is_taken ? 1 : 0;
        cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_HELD), is_taken ? pages : 0);
        if (is_taken) {
            pair_abort(r);
        }
    }
    cr_assert_gt(accepted, 200);
    pair_advance(p, 6000 * PAIR_MS);
    pair_finish(p);
}

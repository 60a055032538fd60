/* Groups when workers, engines and good manners end: what the next worker must take up, what a dead engine
 * leaves behind, and what a peer may say without hurting anybody. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define RANKS 3u
#define WRITER 3u
#define GROUP 1u
#define ID UINT64_C(0x9a0e)
#define MINUTE (UINT64_C(60000) * PAIR_MS)

static const uint32_t behind[] = {0, 1, 2};

static struct pair *ranks_new(uint8_t placement)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 4, .placement = placement, .rooms = 32, .peers_max = PAIR_PEERS});
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_group_add(p, 0, GROUP, ID, rank, behind, RANKS), 0);
    }
    return p;
}

static struct pair_room *open_sink(struct pair *p, uint64_t key, uint32_t rank)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = (uint32_t)(key % 16) * 8, .count = 2};
    return pair_open_sink(p, rank,
                          &(struct pair_open){.key = key,
                                              .label = key << 8 | rank,
                                              .group = GROUP,
                                              .writers = &writer,
                                              .writer_count = 1,
                                              .runs = &run,
                                              .run_count = 1});
}

static struct pair_room *open_source(struct pair *p, uint64_t key, uint32_t rank)
{
    return pair_open_source(
        p, WRITER, &(struct pair_open){.key = key, .label = key << 8 | rank, .sink_count = 1});
}

static void open_all(struct pair *p, uint64_t key, struct pair_room **sinks,
                     struct pair_room **sources)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        sources[rank] = open_source(p, key, rank);
        sinks[rank] = open_sink(p, key, rank);
    }
}

static void expect_failed(const struct pair_room *r)
{
    cr_assert(pair_is_drained(r));
    cr_assert_eq(pair_poll(r), KVF_STATE_FAILED);
    cr_assert(!pair_is_waiting(r));
}

static void expect_waiting(const struct pair_room *r)
{
    cr_assert(pair_is_drained(r));
    cr_assert_eq(pair_poll(r), KVF_STATE_TRANSFERRING);
    cr_assert(pair_is_waiting(r));
}

static void finish(struct pair *p, struct pair_room **sources)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (pair_phase(sources[rank]) == KVF_PHASE_OPEN) {
            pair_abort(sources[rank]);
        }
    }
    pair_settle(p);
    pair_finish(p);
}

/* ---- workers ------------------------------------------------------------------------------------------- */

/* The worker of rank 1 ends in the middle: its rooms are drained by its end, and shown by nobody as failed
 * before its successor has told the others. */
Test(history, h18_a_killed_workers_successor_takes_the_agreement_up)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    pair_reap(p, 1);
    expect_waiting(sink[1]);
    pair_advance(p, 1000 * PAIR_MS); /* nobody is there, and nobody has been told */
    cr_assert_eq(pair_phase(sink[0]), KVF_PHASE_OPEN);
    pair_takeover(p, 1);
    pair_advance(p, 100 * PAIR_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(sink[rank]);
    }
    cr_assert_eq(sink[1]->view.reason, KVF_E_WORKER_GONE);
    cr_assert_eq(pair_proof(sink[1]), KVF_PROOF_WORKER_GONE);
    cr_assert_eq(sink[0]->view.reason, KVF_E_GROUP_CLOSED);
    finish(p, source);
}

/* The other way round: rank 0 has failed and waits for rank 1, whose worker is killed meanwhile. */
Test(history, h18_who_waits_for_a_killed_worker_is_answered_by_the_next)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    pair_reap(p, 1);
    pair_abort(sink[0]);
    pair_advance(p, MINUTE);
    expect_waiting(sink[0]);
    expect_waiting(sink[2]);
    pair_takeover(p, 1);
    pair_advance(p, 500 * PAIR_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(sink[rank]);
    }
    finish(p, source);
}

/* Rank 1's copy to a GPU is still under way when its worker ends: the next worker waits for it, and so do
 * the others. A later HELLO alone must not settle it. */
Test(history, h18_a_lease_that_outlives_the_worker_still_holds_the_group)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    cr_assert(pair_lease(sink[1], 0, 1, 0));
    pair_restart(p, 1);
    pair_advance(p, MINUTE);
    cr_assert(!pair_is_drained(sink[1]));
    cr_assert_eq(pair_phase(sink[1]), KVF_PHASE_CLOSING);
    expect_waiting(sink[0]);
    expect_waiting(sink[2]);
    pair_lease_return(sink[1]);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(sink[rank]);
    }
    cr_assert_eq(pair_proof(sink[1]), KVF_PROOF_WORKER_GONE);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_ROOMS_ADOPTED), 1);
    finish(p, source);
}

/* Rank 2 said "never opened", then its worker was replaced, then its engine opened after all. */
Test(history, h18_a_late_joiner_ends_at_once_under_the_next_worker_too)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *source[RANKS];
    struct pair_room *sink[RANKS] = {0};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        source[rank] = open_source(p, 7, rank);
    }
    sink[0] = open_sink(p, 7, 0);
    sink[1] = open_sink(p, 7, 1);
    pair_settle(p);
    pair_abort(sink[0]);
    pair_settle(p);
    expect_failed(sink[0]);
    for (uint32_t i = 0; i < 3; i++) {
        pair_restart(p, 2);
        cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 1);
        pair_advance(p, MINUTE);
    }
    sink[2] = open_sink(p, 7, 2);
    pair_settle(p);
    pair_expect(sink[2], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_GROUP_CLOSED);
    expect_failed(sink[2]);
    pair_restart(p, 2);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 0, "it was opened: no more");
    finish(p, source);
}

/* Whatever the next worker finds, in whatever order: places between are free again. */
Test(group_death, kept_keys_are_checked_and_take_their_places)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct kvf_core *core = p->daemons[0].core;
    cr_assert_eq(kvf_core_group_key(core, 0, 8, 1, 5), -EINVAL, "beyond the cap");
    cr_assert_eq(kvf_core_group_key(core, 9, 0, 1, 5), -EINVAL);
    cr_assert_eq(kvf_core_group_key(core, 0, 0, 0, 5), -EINVAL);
    cr_assert_eq(kvf_core_group_key(core, 0, 0, 17, 5), -EINVAL);
    cr_assert_eq(kvf_core_group_key(core, 0, 2, GROUP, 5), 0);
    cr_assert_eq(kvf_core_group_key(core, 0, 1, GROUP, 6), -EINVAL, "not rising");
    cr_assert_eq(kvf_core_group_key(core, 0, 3, GROUP, 5), 0, "twice: forgotten again");
    cr_assert_eq(kvf_core_group_key(core, 0, 4, 2, 6), 0, "a group that is never told");
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_TOMBSTONES), 2);
    struct pair_room *late = open_sink(p, 5, 0);
    pair_settle(p);
    cr_assert_eq(late->view.reason, KVF_E_GROUP_CLOSED);
    cr_assert_eq(p->daemons[0].clients[0].keys[2].group, 0);
    for (uint64_t key = 30; key < 37; key++) { /* seven of eight places are left */
        struct pair_room *other = open_sink(p, key, 1);
        pair_abort(other);
        pair_settle(p);
    }
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_TOMBSTONES), 8);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 8; i++) {
        kept += p->daemons[0].clients[0].keys[i].group == GROUP;
    }
    cr_assert_eq(kept, 7);
    pair_advance(p, MINUTE);
    pair_finish(p);
}

/* The worker that waits is the one that ends: its successor asks on, several times over. */
Test(group_death, a_waiting_room_outlives_its_workers)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    cr_assert(pair_lease(sink[2], 1, 0, 0));
    pair_abort(sink[0]);
    pair_settle(p);
    for (uint32_t i = 0; i < 3; i++) {
        expect_waiting(sink[0]);
        pair_restart(p, 0);
        pair_advance(p, 1000 * PAIR_MS);
    }
    expect_waiting(sink[0]);
    expect_waiting(sink[1]);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITING), 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITS_RANK), 2);
    pair_lease_return(sink[2]);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(sink[rank]);
    }
    cr_assert_eq(sink[0]->view.reason, KVF_E_ABORTED, "what was known of it is handed on");
    finish(p, source);
}

/* A room that had ended in Success is asked for after its worker was replaced. */
Test(group_death, a_success_of_an_earlier_worker_counts_as_drained)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    (void)pair_submit(source[1], 0, 200, 2, true);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink[1]), KVF_STATE_SUCCESS);
    uint32_t publishes = sink[1]->publishes;
    pair_restart(p, 1);
    pair_abort(sink[0]);
    pair_advance(p, 500 * PAIR_MS);
    expect_failed(sink[0]);
    expect_failed(sink[2]);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    cr_assert_eq(sink[1]->publishes, publishes, "its word is left alone");
    finish(p, source);
}

/* Taken over with its group settled: it waits for nobody and asks nobody. */
Test(group_death, what_was_settled_stays_settled)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    pair_abort(sink[0]);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pair_restart(p, rank);
        expect_failed(sink[rank]);
    }
    pair_advance(p, MINUTE);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_count(p, rank, KVF_COUNT_GROUP_SENT), 0);
    }
    finish(p, source);
}

/* A group that is known already when the room is taken over. */
Test(group_death, a_room_adopted_after_its_group_asks_at_once)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *other = open_sink(p, 7, 1);
    pair_settle(p);
    struct kvf_core_adopt a = {.slot = 5,
                               .generation = 3,
                               .key = 7,
                               .group = GROUP,
                               .outcome = KVF_OUTCOME_FAILED,
                               .proof = KVF_PROOF_WORKER_GONE,
                               .is_drained = true};
    cr_assert_eq(kvf_core_adopt(p->daemons[0].core, p->now_ns, &a), 0);
    struct kvf_core_room_view view;
    kvf_core_room_view(p->daemons[0].core, 0, 5, &view);
    cr_assert_eq(view.group_waits, 0x6);
    cr_assert_eq(kvf_word_poll(view.word), KVF_STATE_TRANSFERRING);
    p->daemons[2].is_unreachable =
        true; /* so that the room, which no engine has, is not published */
    struct kvf_action action;
    while (kvf_core_next_action(p->daemons[0].core, &action) != 0) {
        if (action.kind == KVF_ACT_CONNECT) {
            cr_assert_neq(action.addr.port, pair_addr(WRITER).port);
        }
    }
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN);
    pair_free(p);
}

/* All workers at once. */
Test(group_death, every_worker_is_replaced_at_the_same_moment)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pair_reap(p, rank);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_waiting(sink[rank]);
        pair_takeover(p, rank);
    }
    pair_advance(p, 1000 * PAIR_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(sink[rank]);
    }
    finish(p, source);
}

/* An OPEN written under the old epoch and read by the new worker before it was told of the group. */
Test(group_death, an_open_of_an_older_epoch_joins_its_group_when_that_is_known)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    pair_kill(p, 1);
    pair_revive(p, 1, true);
    struct pair_room *other = open_sink(p, 7, 0);
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = 0, .count = 2};
    struct pair_room *old = pair_open_sink(p, 1,
                                           &(struct pair_open){.key = 7,
                                                               .group = GROUP,
                                                               .is_old_epoch = true,
                                                               .writers = &writer,
                                                               .writer_count = 1,
                                                               .runs = &run,
                                                               .run_count = 1});
    pair_advance(p, 1000 * PAIR_MS);
    expect_waiting(old);
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN);
    cr_assert_eq(pair_group_add(p, 0, GROUP, ID, 1, behind, RANKS), 0);
    pair_settle(p);
    pair_expect(old, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_WORKER_GONE);
    expect_failed(old);
    expect_failed(other);
    pair_finish(p);
}

Test(group_death, adoption_refuses_what_is_no_room_and_survives_what_is_nonsense)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 32});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_core_adopt a = {.client = 0, .slot = 40, .generation = 1};
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), -KVF_E_UNKNOWN_ROOM);
    a = (struct kvf_core_adopt){.client = 9, .slot = 1, .generation = 1};
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), -KVF_E_UNKNOWN_ROOM);
    a = (struct kvf_core_adopt){.slot = 1, .generation = 0};
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), -KVF_E_STALE_ROOM);
    a.generation = KVF_GENERATION_MAX + 1;
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), -KVF_E_STALE_ROOM);
    /* Bytes of the client's own memory: any outcome, proof and group. */
    a = (struct kvf_core_adopt){
        .slot = 2, .generation = 5, .group = 77, .outcome = 3, .proof = 15, .is_drained = true};
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), 0);
    cr_assert_eq(kvf_core_adopt(core, p->now_ns, &a), -KVF_E_SLOT_IN_USE);
    struct kvf_core_room_view view;
    kvf_core_room_view(core, 0, 2, &view);
    cr_assert_eq(kvf_word_poll(view.word), KVF_STATE_FAILED);
    cr_assert_eq(kvf_word_proof(view.word), KVF_PROOF_WORKER_GONE);
    /* A slot taken over is opened again like any other. */
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = 0, .count = 2};
    struct pair_room *next = pair_open_sink(p, 0,
                                            &(struct pair_open){.key = 7,
                                                                .has_slot = true,
                                                                .slot = 2,
                                                                .generation = 6,
                                                                .writers = &writer,
                                                                .writer_count = 1,
                                                                .runs = &run,
                                                                .run_count = 1});
    cr_assert_eq(next->rc, 0);
    pair_abort(next);
    pair_settle(p);
    pair_finish(p);
}

/* ---- engines -------------------------------------------------------------------------------------------- */

/* The engine died under leases that nothing can prove: its pages are in quarantine, the others wait in
 * plain sight and are told for whom. */
Test(group_death, a_rank_in_quarantine_keeps_the_others_waiting_and_is_named)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    cr_assert(pair_lease(sink[1], 0, 1, 0));
    pair_client_reaped(p, 1, 0);
    pair_advance(p, 60 * MINUTE);
    cr_assert_eq(pair_phase(sink[1]), KVF_PHASE_QUARANTINED);
    expect_waiting(sink[0]);
    expect_waiting(sink[2]);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITS_RANK), 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_WAITS_ID), ID);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_ROOMS_QUARANTINED), 1);
    /* Its worker is replaced: quarantine and waiting go on. */
    pair_restart(p, 1);
    pair_client_reaped(p, 1, 0);
    pair_advance(p, MINUTE);
    cr_assert_eq(pair_phase(sink[1]), KVF_PHASE_QUARANTINED);
    expect_waiting(sink[0]);
    pair_free(p);
}

/* ... and leases of kind cpu are proven by its end. */
Test(group_death, a_rank_whose_engine_died_with_cpu_leases_settles)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    cr_assert(pair_lease(sink[1], 3, 0, 0));
    pair_client_close(p, 1, 0, KVF_E_ENGINE_GONE);
    pair_settle(p);
    expect_waiting(sink[0]);
    pair_client_reaped(p, 1, 0);
    pair_settle(p);
    pair_expect(sink[1], KVF_OUTCOME_FAILED, KVF_PROOF_ENGINE_GONE, KVF_E_ENGINE_GONE);
    expect_failed(sink[0]);
    expect_failed(sink[2]);
    finish(p, source);
}

/* Worker and engine of one rank die together; the leases were of kind cpu. */
Test(group_death, an_engine_that_dies_after_its_worker_is_proven_by_the_next_worker)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    cr_assert(pair_lease(sink[1], 2, 0, 0));
    pair_restart(p, 1);
    pair_settle(p);
    expect_waiting(sink[0]);
    pair_client_reaped(p, 1, 0);
    pair_settle(p);
    cr_assert_eq(pair_proof(sink[1]), KVF_PROOF_ENGINE_GONE);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_failed(sink[rank]);
    }
    cr_assert(p->daemons[1].clients[0].is_quiet);
    finish(p, source);
}

/* ---- labels, keys, twins ------------------------------------------------------------------------------- */

/* The engine's room numbers go round; the key tells the requests apart. */
Test(group_death, a_recycled_label_is_another_request)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    open_all(p, 7, sink, source);
    pair_settle(p);
    p->daemons[2].is_unreachable = true;
    pair_abort(sink[0]);
    pair_settle(p);
    expect_waiting(sink[0]);
    /* The same labels under another key, while the first request still waits. */
    struct pair_room *next[RANKS];
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
        struct kvf_run_shm run = {.region = PAIR_R0, .first = 100, .count = 2};
        next[rank] = pair_open_sink(p, rank,
                                    &(struct pair_open){.key = 8,
                                                        .label = sink[rank]->label,
                                                        .group = GROUP,
                                                        .writers = &writer,
                                                        .writer_count = 1,
                                                        .runs = &run,
                                                        .run_count = 1});
        (void)pair_open_source(
            p, WRITER,
            &(struct pair_open){.key = 8, .label = sink[rank]->label, .sink_count = 1});
    }
    p->daemons[2].is_unreachable = false;
    pair_advance(p, 1000 * PAIR_MS);
    expect_failed(sink[0]);
    expect_failed(sink[2]);
    cr_assert_eq(pair_phase(next[0]), KVF_PHASE_OPEN);
    cr_assert_eq(pair_phase(next[1]), KVF_PHASE_OPEN);
    for (struct pair_room *r = p->rooms; r != NULL; r = r->next_room) {
        if (r->key == 8 && !r->is_sink) {
            (void)pair_submit(r, 0, (uint32_t)(210 + r->label % 2 * 2), 2, true);
        }
    }
    pair_settle(p);
    cr_assert_eq(pair_poll(next[0]), KVF_STATE_SUCCESS);
    cr_assert_eq(pair_poll(next[1]), KVF_STATE_SUCCESS);
    finish(p, source);
}

/* Slots are used again and again: what has ended long ago is answered as drained, and leaves nothing. */
Test(group_death, an_ended_key_whose_slot_was_used_again_needs_no_tombstone)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4, .rooms = 2});
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_group_add(p, 0, GROUP, ID, rank, behind, RANKS), 0);
    }
    struct pair_room *slow = open_sink(p, 7, 0);
    struct pair_room *slow_source = open_source(p, 7, 0);
    struct pair_room *quick_source = open_source(p, 7, 1);
    struct pair_room *quick = open_sink(p, 7, 1);
    (void)pair_submit(quick_source, 0, 200, 2, true);
    pair_settle(p);
    cr_assert_eq(pair_poll(quick), KVF_STATE_SUCCESS);
    for (uint64_t key = 20; key < 30; key++) {
        struct pair_room *next = pair_sink(p, 1, WRITER, key, 50, 1);
        pair_abort(next);
        pair_settle(p);
    }
    pair_abort(slow);
    pair_settle(p);
    expect_failed(slow);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    cr_assert_eq(pair_gauge(p, 2, KVF_GAUGE_GROUP_TOMBSTONES), 1);
    pair_abort(slow_source);
    pair_settle(p);
    pair_finish(p);
}

/* An engine that is both ends of one transfer has two rooms of the key: they stand for one rank. */
Test(group_death, two_rooms_of_one_rank_stand_for_one)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = 0, .count = 2};
    struct pair_room *to = pair_open_sink(p, 1,
                                          &(struct pair_open){.key = 7,
                                                              .group = GROUP,
                                                              .writers = &writer,
                                                              .writer_count = 1,
                                                              .runs = &run,
                                                              .run_count = 1});
    struct pair_room *from =
        pair_open_source(p, 1, &(struct pair_open){.key = 7, .group = GROUP, .sink_count = 1});
    struct pair_room *other = open_sink(p, 7, 0);
    pair_settle(p);
    cr_assert(pair_lease(from, 1, 0, 0));
    pair_abort(other);
    pair_settle(p);
    cr_assert_eq(pair_outcome(to), KVF_OUTCOME_FAILED);
    cr_assert_eq(pair_outcome(from), KVF_OUTCOME_FAILED);
    expect_waiting(other); /* one of the two is drained, the other is not */
    pair_lease_return(from);
    pair_advance(p, 300 * PAIR_MS);
    expect_failed(other);
    expect_failed(to);
    expect_failed(from);
    pair_finish(p);
}

/* ---- registration ---------------------------------------------------------------------------------------- */

Test(group_death, registrations_are_checked)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 4});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_core_group g = {.group_id = ID, .rank = 0, .member_count = 2};
    g.members[0] = pair_addr(0);
    g.members[1] = pair_addr(1);
    struct kvf_core_group bad = g;
    bad.member_count = 1;
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -KVF_E_GROUP_MEMBERS);
    bad.member_count = 65;
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -KVF_E_GROUP_MEMBERS);
    bad = g;
    bad.rank = 2;
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -KVF_E_GROUP_MEMBERS);
    bad = g;
    bad.group_id = 0;
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -KVF_E_GROUP_MEMBERS);
    bad = g;
    bad.members[1].family = 5;
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -KVF_E_GROUP_MEMBERS);
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 0, &g), -KVF_E_GROUPS_FULL);
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 17, &g), -KVF_E_GROUPS_FULL);
    cr_assert_eq(kvf_core_group_add(core, 0, 9, 1, &g), -KVF_E_GROUPS_FULL);
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &g), 0);
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &g), 0, "the same again");
    bad = g;
    bad.rank = 1;
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -EEXIST);
    bad = g;
    bad.members[1] = pair_addr(2);
    cr_assert_eq(kvf_core_group_add(core, 0, 0, 1, &bad), -EEXIST);
    pair_finish(p);
}

/* ---- what a peer may say ------------------------------------------------------------------------------------ */

struct talk {
    struct pair *p;
    struct pair_conn *c;
    uint32_t seq;
};

static void say(struct talk *t, const struct kvf_wire_group *m)
{
    unsigned char frame[64];
    int n = kvf_wire_put_group(frame, sizeof frame, t->seq++, m);
    cr_assert_gt(n, 0);
    pair_raw_send(t->p, t->c, PAIR_SINK, frame, (size_t)n);
}

/* Daemon 3 is raw and has connected to daemon 0, which is rank 0. */
static struct talk talk_to_rank_0(struct pair *p)
{
    struct talk t = {.p = p};
    pair_make_raw(p, 3);
    t.c = pair_raw_connect(p, 3, 0);
    struct kvf_wire_hello hello = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                   .caps = KVF_CAP_DRAIN_PROOF | KVF_CAP_GROUP,
                                   .supervisor_id = 77,
                                   .worker_starts = 1,
                                   .session = 5,
                                   .transport = KVF_WIRE_SIM,
                                   .placement = KVF_PLACEMENT_CHECKED,
                                   .lane_count = 1,
                                   .receives_per_lane = 8,
                                   .name = "raw"};
    unsigned char frame[256];
    int n = kvf_wire_put_hello(frame, sizeof frame, t.seq++, &hello);
    pair_raw_send(p, t.c, PAIR_SINK, frame, (size_t)n);
    pair_settle(p);
    const unsigned char *payload;
    size_t bytes;
    cr_assert_eq(pair_raw_read(p, t.c, PAIR_SINK, &payload, &bytes), KVF_WIRE_HELLO);
    return t;
}

static struct kvf_wire_group question(uint64_t key)
{
    return (struct kvf_wire_group){
        .group_id = ID, .key = key, .from_rank = 1, .to_rank = 0, .state = KVF_GROUP_CLOSED};
}

static bool read_answer(struct talk *t, struct kvf_wire_group *ret_m)
{
    const unsigned char *payload;
    size_t bytes;
    pair_settle(t->p);
    uint8_t type = pair_raw_read(t->p, t->c, PAIR_SINK, &payload, &bytes);
    cr_assert(type == 0 || kvf_wire_get_group(payload, bytes, ret_m) == 0);
    return type == KVF_WIRE_GROUP;
}

Test(group_death, messages_that_fit_nothing_are_counted_and_dropped)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct talk t = talk_to_rank_0(p);
    struct kvf_wire_group answer;
    struct kvf_wire_group q = question(7);
    q.group_id = 0xdead;
    say(&t, &q); /* a group nobody here has */
    cr_assert(!read_answer(&t, &answer));
    q = question(7);
    q.to_rank = 2;
    say(&t, &q); /* a rank of it that sits elsewhere */
    cr_assert(!read_answer(&t, &answer));
    q = question(7);
    q.from_rank = 60;
    say(&t, &q); /* from a rank that the group does not have */
    cr_assert(!read_answer(&t, &answer));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GROUP_STALE), 3);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GROUP_RECEIVED), 3);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    q = question(7);
    say(&t, &q);
    cr_assert(read_answer(&t, &answer));
    cr_assert_eq(answer.state, KVF_GROUP_NEVER_OPENED);
    cr_assert_eq(answer.from_rank, 0);
    cr_assert_eq(answer.to_rank, 1);
    cr_assert_eq(answer.is_answer, 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 0);
    pair_free(p);
}

/* "Never opened" leaves only when the key stands where the next worker reads it. */
Test(group_death, no_answer_overtakes_the_key_it_speaks_of)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct talk t = talk_to_rank_0(p);
    struct kvf_core *core = p->daemons[0].core;
    uint32_t peer = t.c->peer[PAIR_SOURCE];
    unsigned char frame[64];
    static unsigned char out[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];
    struct kvf_wire_group q = question(7);
    int n = kvf_wire_put_group(frame, sizeof frame, t.seq, &q);
    kvf_core_frame(core, p->now_ns, peer, KVF_WIRE_GROUP, t.seq, frame + KVF_WIRE_HEADER_BYTES,
                   (size_t)n - KVF_WIRE_HEADER_BYTES);
    cr_assert_eq(kvf_core_emit(core, p->now_ns, peer, out, sizeof out), 0, "not stored yet");
    struct kvf_action a;
    cr_assert_eq(kvf_core_next_action(core, &a), 1);
    cr_assert_eq(a.kind, KVF_ACT_GROUP_KEY);
    cr_assert_eq(a.group, GROUP);
    cr_assert_eq(a.key, 7);
    cr_assert_eq(kvf_core_emit(core, p->now_ns, peer, out, sizeof out), 0, "nor now, perhaps");
    cr_assert_eq(kvf_core_next_action(core, &a), 1);
    cr_assert_eq(a.kind, KVF_ACT_WRITE);
    cr_assert_gt(kvf_core_emit(core, p->now_ns, peer, out, sizeof out), 0);
    pair_free(p);
}

/* One of these costs its sender the connection; the room of the key is left alone. */
Test(group_death, a_frame_that_breaks_the_rules_ends_its_connection)
{
    for (uint32_t way = 0; way < 4; way++) {
        struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
        p->is_hostile = true;
        struct pair_room *room = open_sink(p, 7, 0);
        struct talk t = talk_to_rank_0(p);
        unsigned char frame[64];
        struct kvf_wire_group q = question(7);
        int n = kvf_wire_put_group(frame, sizeof frame, t.seq, &q);
        unsigned char *payload = frame + KVF_WIRE_HEADER_BYTES;
        switch (way) {
        case 0:
            payload[24] = 9; /* no such state */
            break;
        case 1:
            payload[16] = 64; /* no such rank */
            break;
        case 2:
            payload[25] = 1; /* an answer from the side that asks */
            break;
        default:
            payload[26] = 1; /* reserved */
            break;
        }
        pair_raw_send(p, t.c, PAIR_SINK, frame, (size_t)n);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROTOCOL_ERRORS), 1, "way %u", way);
        cr_assert(!t.c->is_open[PAIR_SOURCE]);
        cr_assert_eq(pair_phase(room), KVF_PHASE_OPEN);
        pair_free(p);
    }
}

/* Questions come faster than their sender reads the answers: memory stays bounded, nothing else waits. */
Test(group_death, answers_owed_to_one_peer_are_bounded)
{
    struct pair *p = ranks_new(KVF_PLACEMENT_CHECKED);
    struct talk t = talk_to_rank_0(p);
    struct pair_room *room = open_sink(p, 7, 0);
    pair_abort(room);
    t.c->hold_write[PAIR_SOURCE] = true;
    struct kvf_wire_group q = question(7);
    q.state = KVF_GROUP_DRAINED;
    for (uint32_t i = 0; i < KVF_GROUP_ANSWERS_MAX + 100; i++) {
        say(&t, &q);
    }
    t.c->hold_write[PAIR_SOURCE] = false;
    struct kvf_wire_group answer;
    uint32_t answers = 0;
    while (read_answer(&t, &answer)) {
        answers++;
        cr_assert_eq(answer.state, KVF_GROUP_DRAINED);
    }
    cr_assert_eq(answers, KVF_GROUP_ANSWERS_MAX);
    say(&t, &q);
    cr_assert(read_answer(&t, &answer), "and it goes on");
    pair_free(p);
}

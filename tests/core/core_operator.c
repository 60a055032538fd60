/* What operators say: a drain, a peer that is down, a release from quarantine. None of it passes the gate by
 * itself, and all of it can be taken back but the release. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#define ROWS 8u
#define FIRST_ID UINT64_C(0x5000000000)
#define ANY_PHASE UINT32_MAX

static struct kvf_core *core_of(struct pair *p, uint32_t daemon)
{
    return p->daemons[daemon].core;
}

static int hold(struct pair *p, uint32_t daemon, uint32_t other, bool is_down)
{
    struct kvf_addr_shm addr = pair_addr(other);
    int rc = kvf_core_peer_hold(core_of(p, daemon), p->now_ns, &addr, 0, is_down);
    pair_drain(p, daemon);
    return rc;
}

static int release(struct pair *p, uint32_t client, uint32_t slot, uint64_t generation)
{
    int rc = kvf_core_release(core_of(p, 0), p->now_ns, client, slot, generation);
    pair_drain(p, 0);
    return rc;
}

static void quarantine(struct pair *p)
{
    pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
    pair_client_reaped(p, 0, 0);
    pair_settle(p);
}

/* ---- quarantine ------------------------------------------------------------------------------------------- */

Test(core_operator,
     a_release_lets_exactly_one_quarantined_room_go_and_says_that_it_has_no_proof)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *gpu = pair_sink(p, 0, 1, 1, 0, 4);
    struct pair_room *disk = pair_sink(p, 0, 1, 2, 4, 5);
    cr_assert(pair_lease(gpu, 0, 1, 0));
    cr_assert(pair_lease(disk, 1, 0, 1));
    pair_settle(p);
    cr_assert_eq(release(p, 0, gpu->slot, gpu->generation), -EINVAL, "it is open");
    quarantine(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 9);
    cr_assert_eq(release(p, 9, 0, 1), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(release(p, 1, UINT32_MAX, 1), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(release(p, 0, gpu->slot, gpu->generation + 1), -KVF_E_STALE_ROOM);
    cr_assert_eq(release(p, 0, 63, 0), -KVF_E_STALE_ROOM, "never used");
    cr_assert_eq(pair_phase(gpu), KVF_PHASE_QUARANTINED);

    gpu->gpu = 0; /* the oracle's: the operator has said so */
    cr_assert_eq(release(p, 0, gpu->slot, gpu->generation), 0);
    pair_expect(gpu, KVF_OUTCOME_FAILED, KVF_PROOF_OPERATOR, KVF_E_ENGINE_GONE);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_PROOF_FIRST + KVF_PROOF_OPERATOR), 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 5);
    cr_assert_eq(pair_phase(disk), KVF_PHASE_QUARANTINED);
    cr_assert_not(kvf_core_client_is_quiet(core_of(p, 0), 0));
    cr_assert_eq(release(p, 0, gpu->slot, gpu->generation), -EINVAL, "once");

    disk->direct_io = 0;
    disk->cpu = 0;
    cr_assert_eq(release(p, 0, disk->slot, disk->generation), 0);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_ROOMS_QUARANTINED), 0);
    cr_assert(kvf_core_client_is_quiet(core_of(p, 0), 0), "its memory may go");
    pair_client_remove(p, 0, 0);
    cr_assert_eq(release(p, 0, disk->slot, disk->generation), -KVF_E_UNKNOWN_ROOM, "nobody's");
    pair_client_add(p, 0, 0);
    pair_region_add(p, 0, 0, PAIR_R0, 256, PAIR_PAGE_BYTES);
    pair_finish(p);
}

/* Posted placement: the peer's bytes are under way and land until the fence, whatever an operator says. */
Test(core_operator, a_release_stands_in_for_no_proof_that_can_still_be_had)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 8);
    cr_assert(pair_lease(sink, 0, 1, 0));
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
    pair_client_reaped(p, 0, 0);
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_QUARANTINED);
    sink->gpu = 0;
    cr_assert_eq(release(p, 0, sink->slot, sink->generation), 0);
    cr_assert_not(pair_is_drained(sink), "its grant is not proven");
    /* A lease word that is looked at once more does not put it back. */
    kvf_core_leases(core_of(p, 0), p->now_ns, 0, sink->slot, sink->generation, 0, 1, 0);
    pair_drain(p, 0);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_CLOSING);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_OPERATOR, KVF_E_ENGINE_GONE);
    pair_client_remove(p, 0, 0);
    pair_client_add(p, 0, 0);
    pair_region_add(p, 0, 0, PAIR_R0, 256, PAIR_PAGE_BYTES);
    pair_finish(p);
}

/* A dead engine's room whose OPEN was never read, in a slot that this worker has served before. */
Test(core_operator, a_room_whose_open_was_never_read_is_adopted_over_a_drained_one)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *before = pair_sink(p, 0, 1, 1, 0, 4);
    pair_settle(p);
    pair_abort(before);
    pair_settle(p);
    cr_assert(pair_is_drained(before));
    pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
    pair_client_reaped(p, 0, 0);
    cr_assert(kvf_core_client_is_quiet(core_of(p, 0), 0));
    struct kvf_core_adopt adopt = {.slot = before->slot,
                                   .generation = before->generation,
                                   .is_quarantined = true,
                                   .total_pages = 6};
    cr_assert_eq(kvf_core_adopt(core_of(p, 0), p->now_ns, &adopt), -KVF_E_SLOT_IN_USE);
    adopt.generation++;
    cr_assert_eq(kvf_core_adopt(core_of(p, 0), p->now_ns, &adopt), 0);
    cr_assert_not(kvf_core_client_is_quiet(core_of(p, 0), 0));
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_ROOMS_QUARANTINED), 1);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 6);
    adopt.generation++;
    cr_assert_eq(kvf_core_adopt(core_of(p, 0), p->now_ns, &adopt), -KVF_E_SLOT_IN_USE);
    cr_assert_eq(
        kvf_core_release(core_of(p, 0), p->now_ns, 0, before->slot, before->generation + 1), 0);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 0);
    cr_assert(kvf_core_client_is_quiet(core_of(p, 0), 0));
    pair_free(p);
}

/* ---- peers that are down ---------------------------------------------------------------------------------- */

Test(core_operator, a_peer_that_is_down_loses_its_rooms_in_both_directions_and_gets_no_new_ones)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct pair_room *sources[2] = {pair_source(p, 1, 1), pair_source(p, 0, 2)};
    struct pair_room *sinks[2] = {pair_sink(p, 0, 1, 1, 0, 8), pair_sink(p, 1, 0, 2, 0, 8)};
    struct pair_room *other_source = pair_source(p, 2, 3);
    struct pair_room *other = pair_sink(p, 0, 2, 3, 100, 8);
    struct pair_room *third = pair_source(p, 0, 4);
    struct pair_room *third_sink = pair_sink(p, 2, 0, 4, 0, 8);
    pair_settle(p);
    uint64_t fences = pair_count(p, 0, KVF_COUNT_FENCES);
    cr_assert_eq(hold(p, 0, 1, true), 0);
    cr_assert_eq(hold(p, 0, 1, true), 0, "twice is once");
    pair_settle(p);
    cr_assert(pair_is_drained(sinks[0]));
    cr_assert(pair_is_drained(sources[1]));
    cr_assert_eq(sinks[0]->view.reason, KVF_E_PEER_HELD);
    cr_assert_eq(sources[1]->view.reason, KVF_E_PEER_HELD);
    cr_assert_gt(pair_count(p, 0, KVF_COUNT_FENCES), fences, "its lanes are fenced");
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN, "another peer's room goes on");
    cr_assert_eq(pair_phase(third), KVF_PHASE_OPEN);
    (void)pair_submit(third, 0, 50, 8, true);
    pair_settle(p);
    pair_expect(third_sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);

    /* Opens that name it are refused; its grants too, when it comes back with some. */
    p->daemons[0].hold_connects = true;
    struct pair_room *refused = pair_sink(p, 0, 1, 5, 20, 4);
    pair_expect(refused, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_HELD);
    p->daemons[0].hold_connects = false;
    struct pair_room *wanted = pair_source(p, 0, 6);
    struct pair_room *declined = pair_sink(p, 1, 0, 6, 20, 4);
    pair_advance(p, 200 * PAIR_MS);
    cr_assert(pair_is_drained(declined));
    cr_assert_eq(declined->view.reason, KVF_E_PEER_REFUSED);
    cr_assert_eq(declined->view.detail, KVF_E_PEER_HELD, "and it hears why");
    cr_assert_eq(pair_phase(wanted), KVF_PHASE_OPEN, "it waits for whom it may");
    pair_abort(wanted);

    (void)pair_submit(other_source, 0, 0, 8, true);
    pair_settle(p);
    pair_expect(other, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_eq(hold(p, 0, 1, false), 0);
    cr_assert_eq(hold(p, 0, 1, false), 0, "twice is once");
    pair_advance(p, 200 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_warm(p, 1, 0);
    pair_finish(p);
}

Test(core_operator, a_peer_named_by_its_id_is_down_wherever_it_is_reached)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    uint64_t id = p->daemons[1].supervisor_id;
    struct kvf_addr_shm none = {.family = 0};
    struct pair_room *source =
        pair_source(p, 0, 2); /* it connects to us, and to it we never do */
    struct pair_room *sink = pair_sink(p, 1, 0, 2, 0, 8);
    pair_settle(p);
    cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, id, true), 0);
    pair_drain(p, 0);
    pair_settle(p);
    cr_assert(pair_is_drained(source));
    cr_assert_eq(source->view.reason, KVF_E_PEER_HELD);
    cr_assert(pair_is_drained(sink));
    /* By its address too: nobody knows that it is the same before it has said so. */
    struct pair_room *late = pair_sink(p, 0, 1, 5, 20, 4);
    pair_advance(p, 100 * PAIR_MS);
    cr_assert(pair_is_drained(late));
    cr_assert_eq(late->view.reason, KVF_E_PEER_HELD);
    cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, id, false), 0);
    pair_advance(p, 200 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

Test(core_operator, so_many_peers_may_be_down_and_no_more)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_addr_shm none = {.family = 0};
    for (uint32_t i = 0; i < KVF_CORE_HOLDS_MAX; i++) {
        cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, FIRST_ID + i, true),
                     0);
    }
    cr_assert_eq(hold(p, 0, 1, true), -KVF_E_RESOURCES);
    cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, FIRST_ID, true), 0);
    pair_warm(p, 0, 1);
    struct kvf_operate_peer rows[KVF_OPERATE_PEERS_MAX];
    uint32_t count = kvf_core_list_peers(core_of(p, 0), rows, KVF_OPERATE_PEERS_MAX);
    cr_assert_eq(count, KVF_CORE_HOLDS_MAX + 1u, "each is listed though none is connected");
    cr_assert_eq(kvf_core_list_peers(core_of(p, 0), rows, ROWS), ROWS);
    for (uint32_t i = 0; i < KVF_CORE_HOLDS_MAX; i++) {
        cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, FIRST_ID + i, false),
                     0);
    }
    cr_assert_eq(kvf_core_list_peers(core_of(p, 0), rows, ROWS), 1);
    cr_assert_eq(rows[0].state, KVF_OPERATE_AT_UP);
    cr_assert_eq(rows[0].peer_id, p->daemons[1].supervisor_id);
    cr_assert_eq(rows[0].is_down, 0);
    cr_assert_eq(rows[0].lanes_up, 1);
    pair_finish(p);
}

/* ---- drain ---------------------------------------------------------------------------------------------------- */

Test(core_operator, a_drain_closes_what_waits_lets_what_runs_go_on_and_is_taken_back)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 1);
    struct pair_room *running = pair_sink(p, 0, 1, 1, 0, 8);
    pair_settle(p);
    struct pair_room *waiting = pair_sink(p, 0, 1, 2, 20, 4);
    struct pair_room *wanting = pair_source(p, 0, 3);
    pair_settle(p);
    /* The running one has just lost its lane and waits for a new grant: that is no wait for a first one. */
    p->daemons[0].hold_fences = true;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
    pair_fences_return(p, 0);
    p->daemons[0].hold_fences = false;
    cr_assert(core_of(p, 0)->rooms[running->slot].waits_again);
    kvf_core_drain(core_of(p, 0), p->now_ns, true);
    pair_drain(p, 0);
    pair_advance(p, 100 * PAIR_MS);
    cr_assert_eq(waiting->view.reason, KVF_E_SHUTDOWN);
    pair_expect(wanting, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_SHUTDOWN);
    cr_assert_eq(pair_phase(running), KVF_PHASE_OPEN);
    struct pair_room *late = pair_sink(p, 0, 1, 4, 40, 4);
    pair_expect(late, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_SHUTDOWN);
    struct pair_room *theirs = pair_sink(p, 1, 0, 5, 40, 4);
    pair_settle(p);
    cr_assert(pair_is_drained(theirs), "a grant for a room that never comes is answered");
    cr_assert_eq(theirs->view.detail, KVF_E_SHUTDOWN);
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    pair_expect(running, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    kvf_core_drain(core_of(p, 0), p->now_ns, false);
    pair_warm(p, 0, 1);
    pair_warm(p, 1, 0);
    pair_finish(p);
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

Test(core_operator, every_undrained_room_is_listed_once_whatever_fits_one_answer)
{
    enum { ROOMS = 40 };
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *rooms[ROOMS];
    bool is_seen[ROOMS] = {false};
    for (uint32_t i = 0; i < ROOMS; i++) {
        struct pair_open open = {.client = i % 2, .key = i + 1u, .sink_count = 1};
        rooms[i] = pair_open_source(p, 0, &open);
    }
    pair_abort(rooms[5]);
    pair_settle(p);
    p->now_ns += 5 * PAIR_MS;
    struct kvf_operate_room rows[ROWS];
    uint32_t client = 0;
    uint32_t slot = 0;
    uint32_t seen = 0;
    while (client < p->limits.clients_max) {
        uint32_t count = kvf_core_list_rooms(core_of(p, 0), p->now_ns, ANY_PHASE, &client,
                                             &slot, rows, ROWS);
        cr_assert(count > 0 || client == p->limits.clients_max);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t at = (uint32_t)rows[i].key - 1u;
            cr_assert_not(is_seen[at]);
            is_seen[at] = true;
            cr_assert_eq(rows[i].client, rooms[at]->client);
            cr_assert_eq(rows[i].slot, rooms[at]->slot);
            cr_assert_eq(rows[i].generation, rooms[at]->generation);
            cr_assert_eq(rows[i].phase, KVF_PHASE_OPEN);
            cr_assert_eq(rows[i].age_ns, 5 * PAIR_MS);
            seen++;
        }
    }
    cr_assert_eq(seen, ROOMS - 1);
    cr_assert_not(is_seen[5], "a drained one is not listed");
    client = 0;
    slot = 0;
    cr_assert_eq(kvf_core_list_rooms(core_of(p, 0), p->now_ns, 1u << KVF_PHASE_QUARANTINED,
                                     &client, &slot, rows, ROWS),
                 0);
    cr_assert_eq(client, p->limits.clients_max);
    pair_free(p);
}

static uint32_t list_rooms(struct pair *p, uint32_t phases, struct kvf_operate_room *rows)
{
    uint32_t client = 0;
    uint32_t slot = 0;
    uint32_t count =
        kvf_core_list_rooms(core_of(p, 0), p->now_ns, phases, &client, &slot, rows, ROWS);
    cr_assert_eq(client, p->limits.clients_max);
    return count;
}

Test(core_operator, a_list_says_what_kind_of_room_it_is_and_since_when)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct kvf_operate_room rows[ROWS];
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 12);
    struct pair_room *reader = pair_source(p, 0, 8);
    (void)pair_submit(reader, 0, 100, 6, true);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 12, true);
    pair_settle(p);
    pair_abort(sink);
    p->now_ns += 3 * PAIR_MS;
    cr_assert_eq(list_rooms(p, ANY_PHASE, rows), 2);
    cr_assert_eq(rows[0].is_sink, 1);
    cr_assert_eq(rows[0].phase, KVF_PHASE_CLOSING);
    cr_assert_eq(rows[0].age_ns, 3 * PAIR_MS);
    cr_assert_eq(rows[0].pages, 12);
    cr_assert_eq(rows[0].unproven, 1);
    cr_assert_eq(rows[0].reason, KVF_E_ABORTED);
    cr_assert_eq(rows[1].is_sink, 0);
    cr_assert_eq(rows[1].pages, 6);
    cr_assert_eq(list_rooms(p, 1u << KVF_PHASE_CLOSING, rows), 1);
    /* From beyond the end of a client's slots, as an operator may ask. */
    uint32_t client = 0;
    uint32_t slot = UINT32_MAX;
    cr_assert_eq(
        kvf_core_list_rooms(core_of(p, 0), p->now_ns, ANY_PHASE, &client, &slot, rows, ROWS),
        0);
    cr_assert_eq(client, p->limits.clients_max);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_abort(reader);
    pair_settle(p);
    struct kvf_core_adopt adopt = {.client = 1, .slot = 3, .generation = 9, .total_pages = 2};
    cr_assert_eq(kvf_core_adopt(core_of(p, 0), p->now_ns, &adopt), 0);
    cr_assert_eq(list_rooms(p, ANY_PHASE, rows), 1);
    cr_assert_eq(rows[0].is_sink, 2, "an earlier worker's: nobody knows");
    pair_free(p);
}

Test(core_operator, one_answer_looks_at_so_many_slots_and_no_more)
{
    struct pair *p = pair_new(&(struct pair_options){.rooms = KVF_CORE_LIST_LOOKS + 10u});
    struct kvf_operate_room rows[ROWS];
    struct pair_open open = {.key = 1,
                             .sink_count = 1,
                             .has_slot = true,
                             .slot = KVF_CORE_LIST_LOOKS + 5u,
                             .generation = 1};
    (void)pair_open_source(p, 0, &open);
    uint32_t client = 0;
    uint32_t slot = 0;
    struct kvf_core *core = core_of(p, 0);
    cr_assert_eq(kvf_core_list_rooms(core, 0, ANY_PHASE, &client, &slot, rows, ROWS), 0);
    cr_assert_eq(client, 0);
    cr_assert_eq(slot, KVF_CORE_LIST_LOOKS);
    cr_assert_eq(kvf_core_list_rooms(core, 0, ANY_PHASE, &client, &slot, rows, ROWS), 1);
    cr_assert_eq(rows[0].slot, KVF_CORE_LIST_LOOKS + 5u);
    pair_free(p);
}

Test(core_operator, a_peer_that_is_down_is_listed_once_connected_or_not)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct kvf_operate_peer rows[ROWS];
    struct kvf_addr_shm none = {.family = 0};
    pair_warm(p, 0, 1);
    pair_warm(p, 1, 0);
    pair_warm(p, 0, 2);
    cr_assert_eq(kvf_core_list_peers(core_of(p, 0), rows, ROWS), 3);
    uint32_t connected_to_us = 0;
    for (uint32_t i = 0; i < 3; i++) {
        connected_to_us += rows[i].is_sink;
        cr_assert_eq(rows[i].is_sink != 0, rows[i].addr.family == 0);
        cr_assert_eq(rows[i].is_down, 0);
    }
    cr_assert_eq(connected_to_us, 1);
    cr_assert_eq(kvf_core_list_peers(core_of(p, 0), rows, 1), 1, "no more than fit");
    /* By address, and by id: the rows are those of its connections while they are being taken apart. */
    p->daemons[0].hold_fences = true;
    cr_assert_eq(hold(p, 0, 1, true), 0);
    cr_assert_eq(
        kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, p->daemons[2].supervisor_id, true),
        0);
    pair_drain(p, 0);
    uint32_t count = kvf_core_list_peers(core_of(p, 0), rows, ROWS);
    cr_assert_eq(count, 3);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_eq(rows[i].is_down, 1);
    }
    /* An address that is up has nothing to do with those that are down. */
    cr_assert_eq(hold(p, 0, 2, false), 0, "it is down by its id, not by its address");
    struct pair_room *still = pair_sink(p, 0, 2, 9, 0, 4);
    cr_assert_eq(still->view.reason, KVF_E_PEER_HELD);
    p->daemons[0].hold_fences = false;
    pair_fences_return(p, 0);
    pair_advance(p, 2000 * PAIR_MS);
    cr_assert_eq(kvf_core_list_peers(core_of(p, 0), rows, ROWS), 2);
    cr_assert_eq(rows[0].state, KVF_OPERATE_AT_NONE);
    cr_assert_eq(hold(p, 0, 1, false), 0);
    cr_assert_eq(
        kvf_core_peer_hold(core_of(p, 0), p->now_ns, &none, p->daemons[2].supervisor_id, false),
        0);
    cr_assert_eq(kvf_core_list_peers(core_of(p, 0), rows, ROWS), 0);
    pair_finish(p);
}

/* Taken down in the middle of the dial, with grants of ended rooms and of other peers in the tables. */
Test(core_operator, a_peer_that_is_still_being_dialled_is_taken_down_too)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    pair_warm(p, 0, 2);
    pair_warm(p, 2, 0);
    struct pair_room *other = pair_source(p, 0, 3);
    struct pair_room *theirs = pair_sink(p, 2, 0, 3, 100, 8);
    struct pair_room *mine = pair_sink(p, 0, 2, 4, 100, 8);
    pair_settle(p);
    p->daemons[0].hold_connects = true;
    struct pair_room *waiting = pair_sink(p, 0, 1, 5, 0, 8);
    pair_settle(p);
    cr_assert_eq(pair_phase(waiting), KVF_PHASE_OPEN);
    cr_assert_eq(hold(p, 0, 1, true), 0);
    pair_expect(waiting, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_HELD);
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN);
    cr_assert_eq(pair_phase(theirs), KVF_PHASE_OPEN);
    cr_assert_eq(pair_phase(mine), KVF_PHASE_OPEN);
    p->daemons[0].hold_connects = false;
    pair_connect_now(p, 0, 0);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 2, "the lanes of the other peer alone");
    /* An address where nobody was ever reached is listed beside connections of others, both ways. */
    struct kvf_operate_peer rows[ROWS];
    struct kvf_addr_shm nobody = pair_addr(3);
    cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &nobody, 0, true), 0);
    uint32_t count = kvf_core_list_peers(core_of(p, 0), rows, ROWS);
    cr_assert_eq(rows[count - 1u].state, KVF_OPERATE_AT_NONE);
    cr_assert_eq(kvf_core_peer_hold(core_of(p, 0), p->now_ns, &nobody, 0, false), 0);
    /* Connected, and it has not said who it is. */
    cr_assert_eq(hold(p, 0, 1, false), 0);
    pair_advance(p, 2000 * PAIR_MS);
    pair_link(p, 0, 1)->hold[PAIR_SOURCE] = true;
    waiting = pair_sink(p, 0, 1, 6, 0, 8);
    pair_settle(p);
    cr_assert_eq(hold(p, 0, 1, true), 0);
    pair_expect(waiting, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_HELD);
    pair_link(p, 0, 1)->hold[PAIR_SOURCE] = false;
    pair_abort(mine);
    pair_abort(theirs);
    pair_abort(other);
    pair_advance(p, 2000 * PAIR_MS);
    cr_assert_eq(hold(p, 0, 1, false), 0);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

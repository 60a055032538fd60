/* Engines that leave: closed, reaped, with leases out, with regions registered, and daemons that stop. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

Test(core_client, a_hang_up_closes_every_room_and_none_is_released_early)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *moving = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
        struct pair_room *waiting = pair_sink(p, 0, 1, 8, 40, 4);
        struct pair_room *reader = pair_source(p, 0, 9);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_deliver = 1;
        (void)pair_submit(moving, 0, 0, 32, true);
        pair_settle(p);
        pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
        pair_expect(reader, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_ENGINE_GONE);
        bool is_checked = placements[i] == KVF_PLACEMENT_CHECKED;
        cr_assert_eq(kvf_core_client_is_quiet(p->daemons[0].core, 0), is_checked);
        cr_assert_eq(p->daemons[0].clients[0].is_quiet, is_checked);
        pair_link(p, 0, 1)->hold_deliver = 0;
        pair_settle(p);
        cr_assert(pair_is_drained(sink));
        cr_assert_eq(sink->view.reason, KVF_E_ENGINE_GONE);
        cr_assert(pair_is_drained(waiting));
        cr_assert_eq(p->daemons[0].clients_quiet, 1);
        cr_assert(kvf_core_client_is_quiet(p->daemons[0].core, 0));
        cr_assert(pair_is_drained(moving));
        /* A closed client opens nothing any more, and its place is free once it is forgotten. */
        struct pair_open open = {.key = 10, .sink_count = 1};
        cr_assert_eq(pair_open_source(p, 0, &open)->rc, -KVF_E_UNKNOWN_ROOM);
        pair_client_remove(p, 0, 0);
        pair_client_add(p, 0, 0);
        pair_region_add(p, 0, 0, PAIR_R0, 256, PAIR_PAGE_BYTES);
        pair_warm(p, 0, 1);
        pair_finish(p);
    }
}

Test(core_client, a_client_that_was_idle_is_quiet_at_once_and_told_once)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_client_close(p, 0, 1, KVF_E_ENGINE_GONE);
    pair_client_close(p, 0, 1, KVF_E_CLIENT_DROPPED);
    cr_assert_eq(p->daemons[0].clients_quiet, 1);
    pair_client_remove(p, 0, 1);
    pair_finish(p);
}

Test(core_client, one_clients_end_is_nothing_to_another)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
    struct pair_room *other =
        pair_open_source(p, 0, &(struct pair_open){.client = 1, .key = 8, .sink_count = 1});
    pair_settle(p);
    pair_client_close(p, 0, 1, KVF_E_CLIENT_DROPPED);
    pair_expect(other, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_CLIENT_DROPPED);
    (void)pair_submit(source, 0, 0, 16, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* H13: a reaped process touches nothing itself, but work it handed to a device goes on. */
Test(core_client, a_reaped_engines_cpu_leases_are_proven_and_its_device_leases_are_quarantined)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *cpu = pair_sink(p, 0, 1, 1, 0, 4);
    struct pair_room *gpu = pair_sink(p, 0, 1, 2, 4, 4);
    struct pair_room *disk = pair_sink(p, 0, 1, 3, 8, 4);
    struct pair_room *mixed = pair_sink(p, 0, 1, 4, 12, 4);
    struct pair_room *none = pair_sink(p, 0, 1, 5, 16, 4);
    (void)pair_lease(cpu, 2, 0, 0);
    (void)pair_lease(gpu, 0, 1, 0);
    (void)pair_lease(disk, 0, 0, 1);
    (void)pair_lease(mixed, 1, 1, 0);
    pair_settle(p);
    pair_client_close(p, 0, 0, KVF_E_ENGINE_GONE);
    pair_settle(p);
    cr_assert(pair_is_drained(none));
    pair_expect_held(cpu);
    pair_expect_held(gpu);
    pair_client_reaped(p, 0, 0);
    pair_expect(cpu, KVF_OUTCOME_FAILED, KVF_PROOF_ENGINE_GONE, KVF_E_ENGINE_GONE);
    cr_assert_eq(pair_phase(gpu), KVF_PHASE_QUARANTINED);
    cr_assert_eq(pair_phase(disk), KVF_PHASE_QUARANTINED);
    cr_assert_eq(pair_phase(mixed), KVF_PHASE_QUARANTINED);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_ROOMS_QUARANTINED), 3);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_PAGES_QUARANTINED), 12);
    pair_advance(p, 100000 * PAIR_MS);
    cr_assert_eq(pair_phase(gpu), KVF_PHASE_QUARANTINED); /* no amount of time frees them */
    cr_assert_not(kvf_core_client_is_quiet(p->daemons[0].core, 0));
    /* Later proof: whoever can tell that the device is at rest returns the lease. */
    pair_lease_return(gpu);
    pair_lease_return(disk);
    pair_lease_return(mixed);
    cr_assert(pair_is_drained(gpu));
    cr_assert(pair_is_drained(mixed));
    cr_assert_eq(p->daemons[0].clients_quiet, 1);
    pair_finish(p);
}

Test(core_client, a_reap_without_a_hang_up_closes_the_rooms_too)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    (void)pair_lease(sink, 1, 0, 0);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    pair_client_reaped(p, 0, 0);
    pair_expect_held(sink); /* the engine is gone, the NIC's writes are not */
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_ENGINE_GONE, KVF_E_ENGINE_GONE);
    pair_finish(p);
}

Test(core_client, a6_a_region_is_busy_while_a_room_names_it)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), -KVF_E_REGION_BUSY);
    cr_assert_eq(pair_region_remove(p, 1, 0, PAIR_R0), -KVF_E_REGION_BUSY);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_REGION(0, 2)), -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_REGION(9, 1)), -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(pair_region_remove(p, 0, 0, 0), -KVF_E_UNKNOWN_REGION);
    pair_link(p, 0, 1)->hold_deliver = 1;
    pair_link(p, 0, 1)->hold_hand = 1;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    pair_abort(sink);
    pair_settle(p);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), -KVF_E_REGION_BUSY);
    cr_assert_eq(pair_region_remove(p, 1, 0, PAIR_R0), -KVF_E_REGION_BUSY);
    pair_open_gates(p);
    pair_settle(p);
    cr_assert_eq(pair_region_remove(p, 0, 0, PAIR_R0), 0);
    cr_assert_eq(pair_region_remove(p, 1, 0, PAIR_R0), 0);
    pair_finish(p);
}

/* C5, F6: the pool is registered again under a new epoch; peers hear of it before any grant names it. */
Test(core_client, a_region_registered_again_is_announced_again_and_its_old_handle_is_unknown)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    for (uint32_t epoch = 2; epoch < 6; epoch++) {
        uint32_t before = PAIR_REGION(0, epoch - 1);
        uint32_t handle = PAIR_REGION(0, epoch);
        cr_assert_eq(pair_region_remove(p, 0, 0, before), 0);
        pair_region_add(p, 0, 0, handle, 64 * epoch, PAIR_PAGE_BYTES);
        struct kvf_writer_shm writer = {.addr = pair_addr(1), .count = 4};
        struct kvf_run_shm runs[2] = {{before, 0, 4}, {handle, 64 * epoch - 4, 4}};
        struct pair_open open = {.key = 100 + epoch,
                                 .writers = &writer,
                                 .writer_count = 1,
                                 .runs = &runs[0],
                                 .run_count = 1};
        struct pair_room *stale = pair_open_sink(p, 0, &open);
        pair_expect(stale, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_UNKNOWN_REGION);
        struct pair_room *source = pair_source(p, 1, 200 + epoch);
        open.key = 200 + epoch;
        open.runs =
            &runs[1]; /* the last pages: a peer that knew the old size would refuse them */
        struct pair_room *sink = pair_open_sink(p, 0, &open);
        pair_settle(p);
        (void)pair_submit(source, 0, 0, 4, true);
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    }
    pair_finish(p);
}

Test(core_client, a_region_of_a_revoked_grant_may_go_while_its_last_bytes_arrive)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
    pair_settle(p);
    pair_link(p, 0, 1)->hold_deliver = 1;
    (void)pair_submit(source, 0, 0, 32, true);
    pair_settle(p);
    pair_abort(sink);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_REVOKED, KVF_E_ABORTED);
    if (pair_region_remove(p, 0, 0, PAIR_R0) == 0) {
        pair_region_add(p, 0, 0, PAIR_REGION(0, 2), 256, PAIR_PAGE_BYTES);
    }
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p); /* all of it to scratch */
    cr_assert_gt(p->scratch_halves, 0);
    pair_finish(p);
}

Test(core_client, region_slots_are_bounded_and_named_once)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    static uint32_t owners[8];
    struct kvf_core_plane plane = {.stride = 4096, .page_bytes = 4096};
    cr_assert_eq(kvf_core_region_add(core, 0, PAIR_REGION(0, 3), 8, 1, &plane, owners),
                 -EEXIST);
    cr_assert_eq(kvf_core_region_add(core, 0, PAIR_REGION(16, 1), 8, 1, &plane, owners),
                 -KVF_E_REGIONS_FULL);
    cr_assert_eq(kvf_core_region_add(core, 0, 5, 8, 1, &plane, owners), -KVF_E_REGIONS_FULL);
    cr_assert_eq(kvf_core_client_add(core, 0, 8), -EINVAL);
    cr_assert_eq(kvf_core_client_add(core, 99, 8), -EINVAL);
    pair_finish(p);
}

/* ---- shutdown --------------------------------------------------------------------------------------- */

Test(core_client, a_daemon_that_stops_refuses_opens_ends_waiting_rooms_and_serves_running_ones)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 16);
        pair_settle(p);
        struct pair_room *waiting = pair_sink(p, 0, 1, 8, 20, 4);
        struct pair_room *reader = pair_source(p, 0, 9);
        kvf_core_shutdown(p->daemons[0].core, p->now_ns, false);
        pair_drain(p, 0);
        pair_settle(p);
        cr_assert(pair_is_drained(waiting));
        cr_assert_eq(waiting->view.reason, KVF_E_SHUTDOWN);
        pair_expect(reader, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_SHUTDOWN);
        struct pair_room *late = pair_sink(p, 0, 1, 10, 30, 4);
        pair_expect(late, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_SHUTDOWN);
        struct pair_room *late_source = pair_source(p, 0, 11);
        pair_expect(late_source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_SHUTDOWN);
        cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
        (void)pair_submit(source, 0, 0, 16, true);
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_finish(p);
    }
}

/* D7, second case: grace is over. */
Test(core_client, d7_a_daemon_out_of_grace_ends_every_room_with_proof)
{
    for (size_t i = 0; i < 2; i++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = placements[i]});
        pair_warm(p, 0, 1);
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 32);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_hand = 1;
        (void)pair_submit(source, 0, 0, 32, true);
        pair_settle(p);
        kvf_core_shutdown(p->daemons[0].core, p->now_ns, false);
        kvf_core_shutdown(p->daemons[1].core, p->now_ns, false);
        pair_advance(p, 1000 * PAIR_MS);
        cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
        kvf_core_shutdown(p->daemons[0].core, p->now_ns, true);
        kvf_core_shutdown(p->daemons[1].core, p->now_ns, true);
        pair_advance(p, 500 * PAIR_MS);
        cr_assert(pair_is_drained(sink));
        cr_assert(pair_is_drained(source));
        cr_assert_eq(sink->view.reason, KVF_E_SHUTDOWN);
        cr_assert_eq(source->view.reason, KVF_E_SHUTDOWN);
        pair_finish(p);
    }
}

Test(core_client, a_source_that_stops_declines_grants_of_rooms_it_does_not_have)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    kvf_core_shutdown(p->daemons[1].core, p->now_ns, false);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    cr_assert_eq(sink->view.detail, KVF_E_SHUTDOWN);
    /* A new peer is refused by HELLO. */
    struct pair *q = pair_new(&(struct pair_options){0});
    kvf_core_shutdown(q->daemons[1].core, q->now_ns, false);
    struct pair_room *refused = pair_sink(q, 0, 1, 7, 0, 4);
    pair_settle(q);
    pair_expect(refused, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_REFUSED);
    pair_finish(q);
    pair_finish(p);
}

#include "client_world.h"

static uint64_t cell_of(const struct world *w, kvf_room room)
{
    return atomic_load(&w->fake.own.intents[fake_slot(room)].abort_cell);
}

static uint32_t dirty_slots(struct world *w, uint32_t *ret_slots)
{
    return kvf_dirty_take(w->fake.own.dirty, w->fake.own.limits.rooms_max, ret_slots, 64);
}

Test(client_abort, needs_no_ring_slot_and_names_generation_and_reason)
{
    struct world w;
    world_begin_with(&w, 8, 2, 0);
    kvf_room a = world_sink(&w, 0, 1);
    kvf_room b = world_sink(&w, 1, 1); /* the ring is full now */
    cr_assert_eq(kvf_abort(w.client, b, 4242), 0);
    cr_assert_eq(cell_of(&w, b), fake_generation(b) << 24 | KVF_ABORT_SET | 4242);
    cr_assert_eq(cell_of(&w, a), 0);
    uint32_t slots[64];
    cr_assert_eq(dirty_slots(&w, slots), 1);
    cr_assert_eq(slots[0], fake_slot(b));
    cr_assert_eq(world_is_idle(&w, 1), 0, "aborted is not drained");
    /* Twice is legal; the first reason stays. */
    cr_assert_eq(kvf_abort(w.client, b, 1), 0);
    cr_assert_eq(cell_of(&w, b) & KVF_ABORT_REASON_MASK, 4242);
    cr_assert_eq(kvf_abort(w.client, a, 0), 0);
    cr_assert_eq(cell_of(&w, a) & KVF_ABORT_REASON_MASK, KVF_E_ABORTED);
    cr_assert_eq(kvf_abort(w.client, a, 65536), -KVF_E_OPTION);
    world_end(&w);
}

Test(client_abort, after_the_end_does_nothing)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_abort(w.client, room, 9), 0);
    cr_assert_eq(cell_of(&w, room), 0);
    cr_assert_eq(kvf_poll(w.client, room), KVF_SUCCESS);
    world_end(&w);
}

Test(client_abort, cell_of_an_old_room_is_cleared_by_the_next_open)
{
    struct world w;
    world_begin_with(&w, 1, 8, 0);
    kvf_room first = world_sink(&w, 0, 1);
    cr_assert_eq(kvf_abort(w.client, first, 9), 0);
    fake_fail(&w.fake, first, KVF_PROOF_NEVER_POSTED, 9);
    cr_assert_eq(kvf_release(w.client, first), 0);
    kvf_room second = world_sink(&w, 0, 1);
    cr_assert_eq(cell_of(&w, second), 0);
    cr_assert_eq(kvf_abort(w.client, second, 10), 0);
    cr_assert_eq(cell_of(&w, second), fake_generation(second) << 24 | KVF_ABORT_SET | 10);
    world_end(&w);
}

Test(client_abort, doorbell_rings_only_for_a_worker_that_sleeps)
{
    struct world w;
    world_begin(&w);
    kvf_room sink = world_sink(&w, 0, 1);
    kvf_room source = world_source(&w);
    cr_assert_eq(world_submit(&w, source, 5, 1, 0, 0), 0);
    cr_assert_eq(kvf_abort(w.client, sink, 0), 0);
    cr_assert_eq(fake_rings(&w.fake), 0);
    fake_sleep(&w.fake, true);
    kvf_room second = world_sink(&w, 1, 1);
    cr_assert_eq(fake_rings(&w.fake), 1, "open");
    cr_assert_eq(world_submit(&w, source, 6, 1, 1, 0), 0);
    cr_assert_eq(fake_rings(&w.fake), 1, "submit");
    cr_assert_eq(kvf_abort(w.client, second, 0), 0);
    cr_assert_eq(fake_rings(&w.fake), 1, "abort");
    cr_assert_eq(kvf_release(w.client, source), 0);
    cr_assert_eq(fake_rings(&w.fake), 1, "release of a running room");
    fake_fail(&w.fake, second, KVF_PROOF_REVOKED, 0);
    cr_assert_eq(kvf_release(w.client, second), 0);
    cr_assert_eq(fake_rings(&w.fake), 0, "release of a drained room");
    world_end(&w);
}

Test(client_abort, release_of_a_running_room_aborts_it_and_keeps_pages_and_slot)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 2);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(kvf_release(w.client, room), 0);
    cr_assert_eq(cell_of(&w, room),
                 fake_generation(room) << 24 | KVF_ABORT_SET | KVF_E_ABORTED);
    cr_assert_eq(kvf_poll(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_release(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(world_is_idle(&w, 1), 0);
    cr_assert_eq(w.client->cold.zombies.count, 1);
    fake_fail(&w.fake, room, KVF_PROOF_FENCED, KVF_E_ABORTED);
    cr_assert_eq(world_is_idle(&w, 1), 1);
    struct kvf_event events[8];
    cr_assert_eq(kvf_events_next(w.client, events, 8), 0,
                 "events of a released room are dropped");
    cr_assert_eq(w.client->cold.zombies.count, 0, "the slot is back");
    cr_assert_eq(w.client->cold.free_slots.count, WORLD_ROOMS);
    world_end(&w);
}

Test(client_abort, leases_hold_the_room_and_the_last_one_back_wakes_the_worker)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_CPU), 0);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_DIRECT_IO), 0);
    cr_assert_eq(kvf_lease(w.client, room, 3), -KVF_E_LEASE_KIND);
    cr_assert_eq(kvf_lease(w.client, room, -1), -KVF_E_LEASE_KIND);
    cr_assert_eq(kvf_lease_give_back(w.client, room, KVF_KIND_GPU), -ENOENT);
    for (int i = 1; i < 127; i++) {
        cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_DIRECT_IO), 0);
    }
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_DIRECT_IO), -EOVERFLOW);
    for (int i = 0; i < 127; i++) {
        cr_assert_eq(kvf_lease_give_back(w.client, room, KVF_KIND_DIRECT_IO), 0);
    }
    uint32_t slots[64];
    cr_assert_eq(dirty_slots(&w, slots), 0);
    /* The worker closes. */
    uint64_t word;
    cr_assert_eq(kvf_lease_close(&w.fake.own.intents[fake_slot(room)].lease_word,
                                 fake_generation(room), &word),
                 0);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_CPU), -KVF_E_LEASE_CLOSED);
    cr_assert_eq(kvf_release(w.client, room), 0);
    cr_assert_eq(dirty_slots(&w, slots), 1, "the release aborted it");
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_CPU), -KVF_E_STALE_ROOM);
    fake_sleep(&w.fake, true);
    cr_assert_eq(kvf_lease_give_back(w.client, room, KVF_KIND_CPU), 0, "also when released");
    cr_assert_eq(dirty_slots(&w, slots), 1);
    cr_assert_eq(slots[0], fake_slot(room));
    cr_assert_eq(fake_rings(&w.fake), 1);
    cr_assert_eq(kvf_lease_give_back(w.client, room, KVF_KIND_CPU), -ENOENT);
    cr_assert_eq(kvf_lease_give_back(w.client, room + (UINT64_C(1) << 24), KVF_KIND_CPU),
                 -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_lease_give_back(w.client, kvf_client_handle(1, 500), KVF_KIND_CPU),
                 -KVF_E_UNKNOWN_ROOM);
    world_end(&w);
}

Test(client_abort, late_lease_cannot_hit_the_slots_next_room)
{
    struct world w;
    world_begin_with(&w, 1, 8, 0);
    kvf_room first = world_sink(&w, 0, 1);
    fake_succeed(&w.fake, first);
    cr_assert_eq(kvf_release(w.client, first), 0);
    kvf_room second = world_sink(&w, 0, 1);
    cr_assert_eq(kvf_lease(w.client, first, KVF_KIND_CPU), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_lease_give_back(w.client, first, KVF_KIND_CPU), -KVF_E_STALE_ROOM);
    cr_assert_eq(w.fake.own.intents[0].lease_word,
                 kvf_lease_word_make(fake_generation(second)));
    world_end(&w);
}

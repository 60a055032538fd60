/* What is left of rooms when the daemon is not. */
#include "client_world.h"

#include <signal.h>
#include <unistd.h>

Test(client_gone, check_tells_who_is_alive)
{
    struct world w;
    world_begin(&w);
    cr_assert_eq(kvf_daemon_check(w.client), 0);
    atomic_store(&w.fake.own.shm->stopping, 1);
    cr_assert_eq(kvf_daemon_check(w.client), -ESHUTDOWN);
    atomic_store(&w.fake.own.shm->stopping, 0);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_WORKER_GONE);
    fake_worker_start(&w.fake, 0x1002);
    fake_note_worker(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), 0);
    fake_note_refused(&w.fake, KVF_E_CLIENT_DROPPED);
    fake_supervisor_kill(&w.fake);
    int check = kvf_daemon_check(w.client);
    cr_assert_eq(check, -KVF_E_CLIENT_DROPPED, "%s: its worker still lives",
                 kvf_code_name(check));
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    world_end(&w);
}

Test(client_gone, end_of_the_worker_alone_concludes_nothing)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_WORKER_GONE);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING, "its supervisor has the word");
    cr_assert_eq(world_is_idle(&w, 0), 0);
    world_end(&w);
}

Test(client_gone, end_of_the_supervisor_alone_proves_nothing)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    fake_supervisor_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -EBUSY);
    cr_assert_eq(kvf_drained(w.client, room), -EAGAIN, "the worker may still write");
    cr_assert_eq(world_is_idle(&w, 0), 0);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_drained(w.client, room), -EAGAIN, "nobody has asked the kernel");
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE);
    world_end(&w);
}

Test(client_gone, rooms_read_as_drained_in_poll_and_ledger_alike)
{
    struct world w;
    world_begin_with(&w, 8, 32, 0);
    kvf_room unread = world_sink(&w, 0, 1);
    kvf_room open = world_sink(&w, 1, 1);
    kvf_room ended = world_sink(&w, 2, 1);
    kvf_room source = world_source(&w);
    cr_assert_eq(world_submit(&w, source, 8, 2, 0, 0), 0);
    kvf_room zombie = world_sink(&w, 3, 1);
    fake_open(&w.fake, open, KVF_STATE_TRANSFERRING);
    fake_succeed(&w.fake, ended);
    cr_assert_eq(kvf_release(w.client, zombie), 0);
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_poll(w.client, unread), KVF_BOOTSTRAPPING);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    kvf_room gone[] = {unread, open, source};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(kvf_poll(w.client, gone[i]), KVF_FAILED);
        cr_assert_eq(kvf_drained(w.client, gone[i]), KVF_WORKER_GONE);
        cr_assert_eq(kvf_failed_early(w.client, gone[i]), 1);
        cr_assert_eq(kvf_wait(w.client, gone[i], 0), KVF_FAILED);
        struct kvf_room_info info = {.size_bytes = sizeof info};
        cr_assert_eq(kvf_room_info(w.client, gone[i], &info), 0);
        cr_assert_eq(info.reason, KVF_E_WORKER_GONE);
        cr_assert_eq(info.phase, KVF_PHASE_DRAINED);
    }
    cr_assert_eq(kvf_poll(w.client, ended), KVF_SUCCESS,
                 "what was proven before stays as it is");
    cr_assert_eq(kvf_drained(w.client, ended), KVF_LANDED);
    for (int32_t page = 0; page < 10; page++) {
        cr_assert_eq(world_is_idle(&w, page), 1, "page %d", page);
    }
    /* The slot of a room whose word is not stored is not given on; opens wait. */
    kvf_room room;
    int32_t page = 20;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room),
                 -KVF_E_WORKER_GONE);
    cr_assert_eq(kvf_lease(w.client, open, KVF_KIND_CPU), -KVF_E_LEASE_CLOSED);
    struct kvf_event events[4];
    cr_assert_eq(kvf_events_next(w.client, events, 4), -EOVERFLOW, "ask every room");
    cr_assert_eq(kvf_release(w.client, unread), 0);
    cr_assert_eq(w.client->cold.zombies.count, 2);
    world_end(&w);
}

/* What a device wrote into another one's memory may be under way still when both processes are gone. */
Test(client_gone, room_with_pages_of_a_device_waits_for_the_next_daemon)
{
    struct world w;
    world_begin(&w);
    kvf_room host = world_sink(&w, 0, 1);
    kvf_room device = world_sink(&w, 1, 1);
    fake_open(&w.fake, host, KVF_STATE_TRANSFERRING);
    fake_open(&w.fake, device, KVF_STATE_TRANSFERRING);
    atomic_store(&w.client->cold.segment.intents[fake_slot(device)].device_regions, 1);
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_drained(w.client, host), KVF_WORKER_GONE);
    cr_assert_eq(kvf_drained(w.client, device), -EAGAIN);
    cr_assert_eq(kvf_poll(w.client, device), KVF_TRANSFERRING);
    cr_assert_eq(kvf_visible(w.client, device), 0);
    cr_assert_eq(world_is_idle(&w, 0), 1);
    cr_assert_eq(world_is_idle(&w, 1), 0);
    cr_assert_eq(kvf_lease(w.client, device, KVF_KIND_CPU), -KVF_E_LEASE_CLOSED);
    world_end(&w);
}

Test(client_gone, room_that_had_succeeded_and_waited_for_a_lease_stays_a_success)
{
    struct world w;
    world_begin_with(&w, 8, 32, 0);
    kvf_room room = world_sink(&w, 0, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_CPU), 0);
    uint32_t slot = (uint16_t)room;
    struct kvf_segment *segment = &w.client->cold.segment;
    uint64_t generation = room >> KVF_GENERATION_SHIFT;
    uint64_t leases;
    cr_assert_eq(kvf_lease_close(&segment->intents[slot].lease_word, generation, &leases), 0);
    atomic_store(&segment->rooms[slot].word,
                 kvf_word_make(generation, KVF_PHASE_CLOSING, KVF_OUTCOME_SUCCESS,
                               KVF_PROOF_NONE, KVF_STATE_TRANSFERRING, KVF_WORD_VISIBLE));
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_lease_give_back(w.client, room, KVF_KIND_CPU), 0);
    cr_assert_eq(kvf_poll(w.client, room), KVF_SUCCESS);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE);
    cr_assert_eq(kvf_failed_early(w.client, room), 0);
    world_end(&w);
}

Test(client_gone, external_lease_that_is_out_holds_the_room_until_it_is_back)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_GPU), 0);
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_drained(w.client, room), -EAGAIN);
    cr_assert_eq(world_is_idle(&w, 0), 0);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_CPU), -KVF_E_LEASE_CLOSED);
    cr_assert_eq(kvf_lease_give_back(w.client, room, KVF_KIND_GPU), 0);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE);
    cr_assert_eq(world_is_idle(&w, 0), 1);
    world_end(&w);
}

Test(client_gone, h32_room_is_judged_by_its_own_workers_end_and_no_other)
{
    struct world w;
    world_begin_with(&w, 8, 32, 0);
    kvf_room old = world_sink(&w, 0, 1);
    fake_open(&w.fake, old, KVF_STATE_TRANSFERRING);
    fake_worker_kill(&w.fake); /* 0x1001, and the library has seen it end */
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_WORKER_GONE);
    fake_worker_start(&w.fake, 0x1002);
    /* Opened under the new epoch before its notice was read: its worker lives. */
    kvf_room fresh = world_sink(&w, 1, 1);
    kvf_room unread = world_sink(&w, 2, 1);
    fake_open(&w.fake, fresh, KVF_STATE_TRANSFERRING);
    fake_supervisor_kill(&w.fake); /* without ever sending the notice */
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_drained(w.client, old), KVF_WORKER_GONE);
    cr_assert_eq(kvf_drained(w.client, fresh), -EAGAIN, "a live room must not read as drained");
    cr_assert_eq(kvf_drained(w.client, unread), -EAGAIN);
    cr_assert_eq(world_is_idle(&w, 0), 1);
    cr_assert_eq(world_is_idle(&w, 1), 0);
    cr_assert_eq(world_is_idle(&w, 2), 0);
    world_end(&w);
}

Test(client_gone, closing_room_that_the_next_worker_took_over_waits_for_that_ones_end)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_worker_kill(&w.fake);
    fake_worker_start(&w.fake, 0x1002);
    fake_note_worker(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), 0);
    fake_publish(&w.fake, room, KVF_PHASE_CLOSING, KVF_OUTCOME_FAILED, KVF_PROOF_NONE,
                 KVF_STATE_TRANSFERRING, 0); /* its line now names 0x1002 */
    fake_supervisor_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -EBUSY);
    cr_assert_eq(kvf_drained(w.client, room), -EAGAIN);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE);
    world_end(&w);
}

static void *kill_soon(void *arg)
{
    struct world *w = arg;
    usleep(50000); /* let the waiter sleep first; correct without, too */
    fake_supervisor_kill(&w->fake);
    fake_worker_kill(&w->fake);
    return NULL;
}

Test(client_gone, waiter_notices_within_its_slices)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    pthread_t thread;
    pthread_create(&thread, NULL, kill_soon, &w);
    uint64_t begin_ns = kvf_client_now_ns();
    cr_assert_eq(kvf_wait(w.client, room, 10000), KVF_FAILED);
    cr_assert_lt(kvf_client_now_ns() - begin_ns, UINT64_C(2000000000));
    pthread_join(thread, NULL);
    world_end(&w);
}

Test(client_gone, next_daemon_takes_segment_regions_and_ledgers_back)
{
    struct world w;
    world_begin(&w);
    int fd = kvf_event_fd(w.client);
    kvf_room room = world_sink(&w, 5, 2);
    kvf_room held = world_sink(&w, 9, 1);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(kvf_lease(w.client, held, KVF_KIND_CPU), 0);
    cr_assert_eq(kvf_reattach(w.client, 100), 0, "all is well: nothing to do");
    fake_supervisor_kill(&w.fake);
    cr_assert_eq(kvf_reattach(w.client, 50), -EBUSY, "the old worker still lives");
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_reattach(w.client, 50), -KVF_E_NO_DAEMON);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE);
    fake_worker_start(&w.fake, 0x2001);
    fake_supervisor_start(&w.fake);
    cr_assert_eq(kvf_reattach(w.client, 2000), 0);
    cr_assert_eq(atomic_load(&w.fake.attached_count), 2);
    cr_assert_eq(atomic_load(&w.fake.readded_count), 1);
    cr_assert_eq(kvf_daemon_check(w.client), 0);
    cr_assert_eq(kvf_event_fd(w.client), fd);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE, "a proof is not taken back");
    /* The new daemon stores the words; generations go on, the ledger is the old one. */
    fake_fail(&w.fake, room, KVF_PROOF_WORKER_GONE, KVF_E_WORKER_GONE);
    cr_assert_eq(world_is_idle(&w, 9), 0, "a lease is out");
    int32_t page = 9;
    kvf_room other;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &other), -KVF_E_PAGE_LENT);
    cr_assert_eq(kvf_release(w.client, room), 0);
    uint64_t last = fake_generation(room);
    for (uint32_t i = 0; i < WORLD_ROOMS - 1; i++) {
        other = world_sink(&w, 5, 2);
        if (fake_slot(other) == fake_slot(room)) {
            cr_assert_eq(fake_generation(other), last + 1);
        }
        cr_assert_eq(kvf_poll(w.client, other), KVF_BOOTSTRAPPING);
        fake_succeed(&w.fake, other);
        cr_assert_eq(kvf_poll(w.client, other), KVF_SUCCESS);
        cr_assert_eq(kvf_release(w.client, other), 0);
    }
    /* The two old OPENs first, then those of the new epoch: positions went on. */
    struct kvf_cmd_shm cmd;
    cr_assert_eq(fake_pop(&w.fake, &cmd), 1);
    cr_assert_eq(cmd.worker_epoch, 0x1001);
    cr_assert_eq(fake_pop(&w.fake, &cmd), 1);
    cr_assert_eq(fake_pop(&w.fake, &cmd), 1);
    cr_assert_eq(cmd.worker_epoch, 0x2001);
    cr_assert_eq(kvf_lease_give_back(w.client, held, KVF_KIND_CPU), 0);
    world_end(&w);
}

Test(client_gone, failed_reattach_leaves_the_client_to_try_again)
{
    struct world w;
    world_begin(&w);
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    fake_worker_start(&w.fake, 0x2001);
    w.fake.refuse_op = KVF_REQ_REGION_ADD;
    w.fake.refuse_code = KVF_E_MEMORY_REGISTERED;
    fake_supervisor_start(&w.fake);
    cr_assert_eq(kvf_reattach(w.client, 1000), -KVF_E_MEMORY_REGISTERED);
    kvf_room room;
    int32_t page = 1;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room),
                 -KVF_E_WORKER_GONE);
    w.fake.refuse_op = 0;
    cr_assert_eq(kvf_reattach(w.client, 1000), 0);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room), 0);
    world_end(&w);
}

Test(client_gone, detach_waits_for_the_daemon_and_counts_what_is_not_proven)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    kvf_room other = world_sink(&w, 1, 1);
    world_sink(&w, 2, 1);
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_release(w.client, other), 0);
    uint32_t undrained = 99;
    cr_assert_eq(kvf_detach(w.client, 1000, &undrained), 0);
    cr_assert_eq(undrained, 2, "one held, one released");
    cr_assert_eq(atomic_load(&w.fake.detached_count), 1);
    kvf_pool_destroy(w.memory.pool);
    fake_stop(&w.fake);
}

Test(client_gone, detach_does_not_wait_for_ever)
{
    struct world w;
    world_begin(&w);
    world_sink(&w, 0, 1);
    w.fake.is_silent = true;
    uint32_t undrained = 99;
    cr_assert_eq(kvf_detach(w.client, 100, &undrained), -ETIMEDOUT);
    cr_assert_eq(undrained, 1);
    kvf_pool_destroy(w.memory.pool);
    fake_stop(&w.fake);
}

Test(client_gone, detach_from_a_dead_daemon_is_answered_by_the_workers_end)
{
    struct world w;
    world_begin(&w);
    world_sink(&w, 0, 1);
    fake_supervisor_kill(&w.fake);
    uint32_t undrained = 99;
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_detach(w.client, 1000, &undrained), 0);
    cr_assert_eq(undrained, 0);
    kvf_pool_destroy(w.memory.pool);
    fake_stop(&w.fake);

    world_begin(&w);
    world_sink(&w, 0, 1);
    fake_supervisor_kill(&w.fake);
    cr_assert_eq(kvf_detach(w.client, 100, &undrained), -ETIMEDOUT, "its worker still lives");
    cr_assert_eq(undrained, 1);
    kvf_pool_destroy(w.memory.pool);
    fake_stop(&w.fake);
}

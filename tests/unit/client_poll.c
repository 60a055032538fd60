#include "client_world.h"

Test(client_poll, answers_each_state_as_the_word_says_it)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    cr_assert_eq(kvf_poll(w.client, room), KVF_BOOTSTRAPPING, "the OPEN is not read yet");
    static const int states[] = {KVF_STATE_BOOTSTRAPPING, KVF_STATE_WAITING_FOR_INPUT,
                                 KVF_STATE_TRANSFERRING};
    for (int i = 0; i < 3; i++) {
        fake_open(&w.fake, room, (enum kvf_poll_state)states[i]);
        cr_assert_eq(kvf_poll(w.client, room), states[i]);
        cr_assert_eq(kvf_drained(w.client, room), -EAGAIN);
        cr_assert_eq(kvf_visible(w.client, room), 0);
        cr_assert_eq(kvf_failed_early(w.client, room), 0);
    }
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_poll(w.client, room), KVF_SUCCESS);
    cr_assert_eq(kvf_drained(w.client, room), KVF_LANDED);
    cr_assert_eq(kvf_visible(w.client, room), 1);
    world_end(&w);
}

Test(client_poll, failure_is_told_early_and_release_is_not)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_publish(&w.fake, room, KVF_PHASE_CLOSING, KVF_OUTCOME_NONE, KVF_PROOF_NONE,
                 KVF_STATE_TRANSFERRING, KVF_WORD_FAILED_EARLY);
    cr_assert_eq(kvf_failed_early(w.client, room), 1);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_drained(w.client, room), -EAGAIN);
    cr_assert_eq(world_is_idle(&w, 0), 0);
    /* Own drain proven and the group not settled: the pages may go, the request may not. */
    fake_publish(&w.fake, room, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED, KVF_PROOF_REVOKED,
                 KVF_STATE_TRANSFERRING, KVF_WORD_FAILED_EARLY | KVF_WORD_GROUP_WAITS);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_drained(w.client, room), KVF_REVOKED);
    for (int proof = KVF_NEVER_POSTED; proof <= KVF_OPERATOR; proof++) {
        fake_fail(&w.fake, room, (enum kvf_proof)proof, 0);
        cr_assert_eq(kvf_drained(w.client, room), proof);
        cr_assert_eq(kvf_poll(w.client, room), KVF_FAILED);
    }
    world_end(&w);
}

Test(client_poll, word_of_an_older_room_says_nothing_about_the_next)
{
    struct world w;
    world_begin_with(&w, 1, 8, 0);
    kvf_room first = world_sink(&w, 0, 1);
    world_pop(&w);
    fake_succeed(&w.fake, first);
    cr_assert_eq(kvf_release(w.client, first), 0);
    kvf_room second = world_sink(&w, 0, 1);
    cr_assert_eq(fake_slot(first), fake_slot(second));
    cr_assert_eq(kvf_poll(w.client, second), KVF_BOOTSTRAPPING);
    cr_assert_eq(kvf_drained(w.client, second), -EAGAIN);
    cr_assert_eq(kvf_visible(w.client, second), 0);
    cr_assert_eq(kvf_failed_early(w.client, second), 0);
    cr_assert_eq(kvf_poll(w.client, first), -KVF_E_STALE_ROOM);
    world_end(&w);
}

Test(client_poll, handle_is_dead_after_release_and_unknown_before_open)
{
    struct world w;
    world_begin(&w);
    cr_assert_eq(kvf_poll(w.client, 0), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(kvf_poll(w.client, UINT64_MAX), -KVF_E_UNKNOWN_ROOM);
    kvf_room room = world_sink(&w, 0, 1);
    kvf_room foreign[] = {room + (UINT64_C(1) << 24),
                          room ^ 0x10000,
                          room ^ 0x800000,
                          kvf_client_handle(1, WORLD_ROOMS),
                          kvf_client_handle(1, 65535),
                          kvf_client_handle(0, 0)};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        cr_assert_eq(kvf_poll(w.client, foreign[i]), -KVF_E_UNKNOWN_ROOM, "%zu", i);
        cr_assert_eq(kvf_drained(w.client, foreign[i]), -KVF_E_UNKNOWN_ROOM);
        cr_assert_eq(kvf_abort(w.client, foreign[i], 1), -KVF_E_UNKNOWN_ROOM);
        cr_assert_eq(kvf_release(w.client, foreign[i]), -KVF_E_UNKNOWN_ROOM);
        cr_assert_eq(kvf_lease(w.client, foreign[i], KVF_KIND_CPU), -KVF_E_UNKNOWN_ROOM);
        cr_assert_eq(kvf_wait(w.client, foreign[i], 10), -KVF_E_UNKNOWN_ROOM);
    }
    /* Drained, then released: a stale word that still says Success must not be told again. */
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_poll(w.client, room), KVF_SUCCESS);
    cr_assert_eq(kvf_release(w.client, room), 0);
    cr_assert_eq(kvf_poll(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_drained(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_visible(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_failed_early(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_abort(w.client, room, 1), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_lease(w.client, room, KVF_KIND_CPU), -KVF_E_STALE_ROOM);
    struct kvf_room_info info = {.size_bytes = sizeof info};
    cr_assert_eq(kvf_room_info(w.client, room, &info), -KVF_E_STALE_ROOM);
    world_end(&w);
}

Test(client_poll, word_newer_than_the_handle_makes_it_stale)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_succeed(&w.fake, room + (UINT64_C(1) << 24));
    cr_assert_eq(kvf_poll(w.client, room), -KVF_E_STALE_ROOM);
    cr_assert_eq(kvf_drained(w.client, room), -KVF_E_STALE_ROOM);
    world_end(&w);
}

Test(client_poll, reserved_bits_of_a_later_version_are_ignored)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_sink(&w, 0, 1);
    fake_publish(&w.fake, room, KVF_PHASE_DRAINED, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED,
                 KVF_STATE_SUCCESS, KVF_WORD_VISIBLE | UINT64_C(0x5) << 16);
    cr_assert_eq(kvf_poll(w.client, room), KVF_SUCCESS);
    cr_assert_eq(kvf_drained(w.client, room), KVF_LANDED);
    world_end(&w);
}

Test(client_poll, many_rooms_are_polled_in_one_call)
{
    struct world w;
    world_begin(&w);
    kvf_room rooms[WORLD_ROOMS + 1];
    for (uint32_t i = 0; i < WORLD_ROOMS; i++) {
        rooms[i] = world_sink(&w, (int32_t)i, 1);
    }
    rooms[WORLD_ROOMS] = 1;
    fake_succeed(&w.fake, rooms[1]);
    fake_fail(&w.fake, rooms[2], KVF_PROOF_FENCED, 0);
    fake_open(&w.fake, rooms[3], KVF_STATE_TRANSFERRING);
    int32_t states[WORLD_ROOMS + 1];
    cr_assert_eq(kvf_poll_many(w.client, rooms, WORLD_ROOMS + 1, states), 2);
    cr_assert_eq(states[0], KVF_BOOTSTRAPPING);
    cr_assert_eq(states[1], KVF_SUCCESS);
    cr_assert_eq(states[2], KVF_FAILED);
    cr_assert_eq(states[3], KVF_TRANSFERRING);
    cr_assert_eq(states[4], -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(kvf_poll_many(w.client, NULL, 0, NULL), 0);
    cr_assert_eq(kvf_poll_many(w.client, NULL, 1, states), -EINVAL);
    cr_assert_eq(kvf_poll_many(w.client, rooms, 1, NULL), -EINVAL);
    world_end(&w);
}

Test(client_poll, info_tells_the_line_of_this_room_only)
{
    struct world w;
    world_begin_with(&w, 1, 8, 0);
    kvf_room first = world_sink(&w, 0, 1);
    struct kvf_room_shm *line = &w.fake.own.rooms[0];
    line->detail = 111;
    line->placed_bytes = 4096;
    line->total_bytes = 8192;
    line->total_pages = 2;
    line->unproven = 3;
    line->close_to_drained_ns = 55;
    fake_fail(&w.fake, first, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
    struct kvf_room_info info = {.size_bytes = sizeof info};
    cr_assert_eq(kvf_room_info(w.client, first, &info), 0);
    cr_assert_eq(info.size_bytes, sizeof info);
    cr_assert_eq(info.state, KVF_FAILED);
    cr_assert_eq(info.phase, KVF_PHASE_DRAINED);
    cr_assert_eq(info.proof, KVF_FENCED);
    cr_assert_eq(info.reason, KVF_E_LANE_LOST);
    cr_assert_eq(info.detail, 111);
    cr_assert_eq(info.placed_bytes, 4096);
    cr_assert_eq(info.total_bytes, 8192);
    cr_assert_eq(info.total_pages, 2);
    cr_assert_eq(info.unproven, 3);
    cr_assert_eq(info.close_to_drained_ns, 55);
    world_pop(&w);
    cr_assert_eq(kvf_release(w.client, first), 0);
    kvf_room second = world_sink(&w, 0, 1);
    cr_assert_eq(kvf_lease(w.client, second, KVF_KIND_GPU), 0);
    cr_assert_eq(kvf_room_info(w.client, second, &info), 0);
    cr_assert_eq(info.state, KVF_BOOTSTRAPPING);
    cr_assert_eq(info.phase, KVF_PHASE_OPEN);
    cr_assert_eq(info.reason, 0);
    cr_assert_eq(info.placed_bytes, 0);
    cr_assert_eq(info.leases_gpu, 1);
    info.size_bytes = 8;
    cr_assert_eq(kvf_room_info(w.client, second, &info), -KVF_E_OPTION);
    cr_assert_eq(kvf_room_info(w.client, second, NULL), -EINVAL);
    world_end(&w);
}

Test(client_poll, ledger_answers_with_the_position_of_the_first_lent_page)
{
    struct world w;
    world_begin(&w);
    world_sink(&w, 30, 2);
    int32_t pages[] = {1, 2, 31, 30};
    size_t position = 99;
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, pages, 2, &position), 1);
    cr_assert_eq(position, 99);
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, pages, 4, &position), 0);
    cr_assert_eq(position, 2);
    int64_t wide[] = {1, 64};
    cr_assert_eq(kvf_pages_are_idle64(w.client, w.memory.region, wide, 2, NULL),
                 -KVF_E_PAGE_RANGE);
    pages[0] = -1;
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, pages, 1, NULL),
                 -KVF_E_PAGE_RANGE);
    cr_assert_eq(kvf_pages_are_idle(w.client, 12345, pages, 1, NULL), -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, NULL, 1, NULL), -EINVAL);
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, NULL, 0, NULL), 1);
    kvf_room lender;
    cr_assert_eq(kvf_page_lender(w.client, w.memory.region, -1, &lender), -KVF_E_PAGE_RANGE);
    cr_assert_eq(kvf_page_lender(w.client, 12345, 1, &lender), -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(kvf_page_lender(w.client, w.memory.region, 1, NULL), -EINVAL);
    world_end(&w);
}

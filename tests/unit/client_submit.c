#include "client_world.h"

Test(client_submit, piece_counts_its_pages_until_the_room_is_drained)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_source(&w);
    cr_assert_eq(world_is_idle(&w, 3), 1);
    cr_assert_eq(world_submit(&w, room, 3, 4, 8, KVF_LAST_PIECE), 0);
    cr_assert_eq(world_is_idle(&w, 3), 0);
    kvf_room lender = 9;
    cr_assert_eq(kvf_page_lender(w.client, w.memory.region, 6, &lender), 0);
    cr_assert_eq(lender, 0, "lent for reading");
    world_pop(&w);
    struct kvf_cmd_shm cmd = world_pop(&w);
    cr_assert_eq(cmd.op, KVF_CMD_SUBMIT);
    cr_assert_eq(cmd.flags, KVF_SUBMIT_LAST);
    cr_assert_eq(cmd.start, 8);
    cr_assert_eq(cmd.generation, fake_generation(room));
    struct kvf_run_shm run;
    cr_assert_eq(cmd.arena_bytes, sizeof run);
    memcpy(&run, fake_record(&w.fake, &cmd), sizeof run);
    cr_assert_eq(run.region, w.memory.region);
    cr_assert_eq(run.first, 3);
    cr_assert_eq(run.count, 4);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(world_is_idle(&w, 3), 0);
    fake_succeed(&w.fake, room);
    /* No other call saw the room drained: asking for the page is the first. */
    cr_assert_eq(world_is_idle(&w, 3), 1);
    cr_assert_eq(world_is_idle(&w, 6), 1);
    world_end(&w);
}

Test(client_submit, many_rooms_read_one_page_and_the_last_one_frees_it)
{
    struct world w;
    world_begin_with(&w, 200, 1024, 0);
    kvf_room rooms[100];
    for (int i = 0; i < 100; i++) {
        rooms[i] = world_source(&w);
        cr_assert_eq(world_submit(&w, rooms[i], 7, 2, 0, 0), 0);
        world_pop(&w);
        world_pop(&w);
    }
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(world_is_idle(&w, 7), 0, "room %d", i);
        cr_assert_eq(kvf_ledger_readers(w.client->cold.regions[0].words[8]),
                     (uint32_t)(100 - i));
        fake_fail(&w.fake, rooms[i], KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
        /* However it is seen first, it is undone once. */
        if (i % 3 == 0) {
            cr_assert_eq(kvf_release(w.client, rooms[i]), 0);
            cr_assert_eq(kvf_release(w.client, rooms[i]), -KVF_E_STALE_ROOM);
        }
        (void)world_is_idle(&w, 7);
        cr_assert_eq(kvf_ledger_readers(w.client->cold.regions[0].words[8]),
                     (uint32_t)(100 - i - 1));
    }
    cr_assert_eq(world_is_idle(&w, 7), 1);
    world_end(&w);
}

Test(client_submit, count_of_a_drained_room_does_not_block_the_next_sink)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_source(&w);
    cr_assert_eq(world_submit(&w, room, 0, 8, 0, KVF_LAST_PIECE), 0);
    int32_t page = 5;
    kvf_room sink;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &sink), -KVF_E_PAGE_LENT);
    fake_succeed(&w.fake, room);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &sink), 0);
    /* The other way round: a page that a sink may be writing is not read. */
    kvf_room other = world_source(&w);
    cr_assert_eq(world_submit(&w, other, 4, 2, 0, 0), -KVF_E_PAGE_LENT);
    cr_assert_eq(world_is_idle(&w, 4), 1, "a refused piece changes nothing");
    cr_assert_eq(world_submit(&w, other, 6, 2, 0, 0), 0);
    world_end(&w);
}

Test(client_submit, release_keeps_the_pages_of_a_room_that_is_not_drained_lent)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_source(&w);
    cr_assert_eq(world_submit(&w, room, 3, 4, 0, KVF_LAST_PIECE), 0);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(kvf_release(w.client, room), 0);
    cr_assert_eq(world_is_idle(&w, 3), 0);
    fake_fail(&w.fake, room, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
    cr_assert_eq(world_is_idle(&w, 3), 1);
    world_end(&w);
}

Test(client_submit, positions_are_submitted_once_and_within_the_grant)
{
    struct world w;
    world_begin_with(&w, 4, 64, 0);
    kvf_room room = world_source(&w);
    cr_assert_eq(world_submit(&w, room, 0, 4, 10, 0), 0);
    cr_assert_eq(world_submit(&w, room, 0, 1, 13, 0), -KVF_E_PIECE_OVERLAP);
    cr_assert_eq(world_submit(&w, room, 0, 4, 7, 0), -KVF_E_PIECE_OVERLAP);
    cr_assert_eq(world_submit(&w, room, 0, 8, 8, 0), -KVF_E_PIECE_OVERLAP);
    cr_assert_eq(world_submit(&w, room, 0, 1, 10, 0), -KVF_E_PIECE_OVERLAP);
    cr_assert_eq(world_submit(&w, room, 0, 2, 14, 0), 0);
    cr_assert_eq(world_submit(&w, room, 0, 2, 20, 0), 0);
    cr_assert_eq(world_submit(&w, room, 0, 4, 16, 0), 0, "fills a gap to both sides");
    cr_assert_eq(world_submit(&w, room, 0, 1, 21, 0), -KVF_E_PIECE_OVERLAP);
    cr_assert_eq(world_submit(&w, room, 0, 10, 0, 0), 0);
    const struct kvf_slot *slot = &w.client->cold.slots[fake_slot(room)];
    const struct kvf_interval *only =
        kvf_nodes_at(&w.client->cold.interval_nodes, slot->intervals);
    cr_assert_eq(only->start, 0);
    cr_assert_eq(only->end, 22);
    cr_assert_eq(only->next, KVF_NO_INDEX, "neighbours are joined");
    cr_assert_eq(world_submit(&w, room, 0, 2, UINT32_MAX - 1, 0), -KVF_E_PIECE_RANGE);
    cr_assert_eq(world_submit(&w, room, 0, 1, UINT32_MAX - 1, 0), 0, "no grant yet");
    /* Now the grant is known. */
    w.fake.own.rooms[fake_slot(room)].total_pages = 24;
    fake_open(&w.fake, room, KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(world_submit(&w, room, 0, 3, 22, 0), -KVF_E_PIECE_RANGE);
    cr_assert_eq(world_submit(&w, room, 0, 1, 21, 0), -KVF_E_PIECE_OVERLAP);
    cr_assert_eq(world_submit(&w, room, 0, 2, 22, KVF_LAST_PIECE), 0);
    cr_assert_eq(world_submit(&w, room, 0, 1, 22, 0), -KVF_E_PIECES_CLOSED);
    world_end(&w);
}

Test(client_submit, random_pieces_are_taken_exactly_when_they_overlap_nothing)
{
    struct world w;
    world_begin_with(&w, 2, 4096, 1u << 20);
    uint64_t seed = 42;
    for (int round = 0; round < 30; round++) {
        kvf_room room = world_source(&w);
        bool is_taken[256] = {false};
        for (int i = 0; i < 100; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            uint32_t start = (uint32_t)(seed >> 33) % 250;
            uint32_t count = 1 + (uint32_t)(seed >> 50) % 5;
            bool is_free = true;
            for (uint32_t k = start; k < start + count; k++) {
                is_free = is_free && !is_taken[k];
            }
            cr_assert_eq(world_submit(&w, room, 0, count, start, 0),
                         is_free ? 0 : -KVF_E_PIECE_OVERLAP);
            for (uint32_t k = start; is_free && k < start + count; k++) {
                is_taken[k] = true;
            }
        }
        struct kvf_cmd_shm cmd;
        while (fake_pop(&w.fake, &cmd) == 1) {
        }
        fake_fail(&w.fake, room, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
        cr_assert_eq(kvf_release(w.client, room), 0);
    }
    cr_assert_eq(kvf_nodes_free_count(&w.client->cold.interval_nodes),
                 w.client->cold.interval_nodes.count, "every node came back");
    cr_assert_eq(kvf_nodes_free_count(&w.client->cold.chunk_nodes),
                 w.client->cold.chunk_nodes.count);
    cr_assert_eq(world_is_idle(&w, 0), 1);
    world_end(&w);
}

Test(client_submit, refuses_each_bad_piece_with_its_own_code)
{
    struct world w;
    world_begin_with(&w, 4, 64, 0);
    kvf_room sink = world_sink(&w, 40, 1);
    kvf_room room = world_source(&w);
    cr_assert_eq(world_submit(&w, sink, 0, 1, 0, 0), -KVF_E_ROLE);
    cr_assert_eq(world_submit(&w, room, 0, 0, 0, 0), -KVF_E_NO_PAGES);
    cr_assert_eq(world_submit(&w, room, 62, 4, 0, 0), -KVF_E_PAGE_RANGE);
    cr_assert_eq(world_submit(&w, room, -1, 1, 0, 0), -KVF_E_PAGE_RANGE);
    int32_t page = 1;
    cr_assert_eq(fake_submit(w.client, room, w.memory.region + 0x100, &page, 1, 0, 0),
                 -KVF_E_UNKNOWN_REGION);
    cr_assert_eq(fake_submit(w.client, room, w.memory.region, NULL, 1, 0, 0), -EINVAL);
    cr_assert_eq(world_submit(&w, room, 0, 1, 0, 2), -KVF_E_OPTION);
    cr_assert_eq(kvf_submit(w.client, room, NULL), -EINVAL);
    cr_assert_eq(world_submit(&w, 0, 0, 1, 0, 0), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(world_submit(&w, room + (UINT64_C(1) << 24), 0, 1, 0, 0), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(world_submit(&w, kvf_client_handle(1, 4), 0, 1, 0, 0), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(world_is_idle(&w, 0), 1);

    /* Aborted here, then closing with a reason of the daemon's, then ended. */
    kvf_room aborted = world_source(&w);
    cr_assert_eq(kvf_abort(w.client, aborted, 0), 0);
    cr_assert_eq(world_submit(&w, aborted, 0, 1, 0, 0), -KVF_E_ABORTED);
    w.fake.own.rooms[fake_slot(room)].reason = KVF_E_PEER_LOST;
    fake_publish(&w.fake, room, KVF_PHASE_CLOSING, KVF_OUTCOME_FAILED, KVF_PROOF_NONE,
                 KVF_STATE_TRANSFERRING, KVF_WORD_FAILED_EARLY);
    cr_assert_eq(world_submit(&w, room, 0, 1, 0, 0), -KVF_E_PEER_LOST);
    fake_fail(&w.fake, room, KVF_PROOF_SOURCE_IDLE, KVF_E_PEER_LOST);
    cr_assert_eq(world_submit(&w, room, 0, 1, 0, 0), -KVF_E_PEER_LOST);
    cr_assert_eq(kvf_release(w.client, room), 0);
    cr_assert_eq(world_submit(&w, room, 0, 1, 0, 0), -KVF_E_STALE_ROOM);
    cr_assert_eq(world_is_idle(&w, 0), 1);
    world_end(&w);
}

Test(client_submit, next_worker_would_drop_the_piece_of_an_older_rooms_epoch)
{
    struct world w;
    world_begin(&w);
    kvf_room room = world_source(&w);
    atomic_store(&w.fake.own.shm->worker_epoch, w.fake.epoch + 1);
    cr_assert_eq(world_submit(&w, room, 0, 1, 0, 0), -KVF_E_WORKER_GONE);
    cr_assert_eq(world_is_idle(&w, 0), 1);
    world_end(&w);
}

Test(client_submit, full_ring_refuses_the_piece_and_counts_nothing)
{
    struct world w;
    world_begin_with(&w, 4, 2, 0);
    kvf_room room = world_source(&w);
    cr_assert_eq(world_submit(&w, room, 0, 2, 0, 0), 0);
    cr_assert_eq(world_submit(&w, room, 2, 2, 2, KVF_LAST_PIECE), -EAGAIN);
    cr_assert_eq(world_is_idle(&w, 2), 1);
    world_pop(&w);
    cr_assert_eq(world_submit(&w, room, 2, 2, 2, KVF_LAST_PIECE), 0);
    world_end(&w);
}

Test(client_submit, aux_region_is_one_a_piece_may_name)
{
    struct world w;
    world_begin(&w);
    struct fake_memory aux;
    fake_memory_make(w.client, 8, &aux);
    struct kvf_source_opts opts = {.size_bytes = sizeof opts,
                                   .region = w.memory.region,
                                   .has_aux = 1,
                                   .aux_region = aux.region};
    kvf_room room;
    cr_assert_eq(kvf_open_source(w.client, &opts, &room), 0);
    int32_t page = 2;
    cr_assert_eq(fake_submit(w.client, room, aux.region, &page, 1, 0, 0), 0);
    cr_assert_eq(kvf_pages_are_idle(w.client, aux.region, &page, 1, NULL), 0);
    cr_assert_eq(world_is_idle(&w, 2), 1);
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_pages_are_idle(w.client, aux.region, &page, 1, NULL), 1);
    kvf_pool_destroy(aux.pool);
    world_end(&w);
}

Test(client_submit, runs_of_many_chunks_are_all_undone)
{
    struct world w;
    world_begin_with(&w, 4, 64, 0);
    kvf_room room = world_source(&w);
    int64_t pages[32];
    for (int i = 0; i < 32; i++) {
        pages[i] = i * 2;
    }
    struct kvf_piece_opts opts = {.size_bytes = sizeof opts,
                                  .region = w.memory.region,
                                  .pages64 = pages,
                                  .page_count = 32};
    cr_assert_eq(kvf_submit(w.client, room, &opts), 0);
    cr_assert_eq(world_submit(&w, room, 0, 64, 32, KVF_LAST_PIECE), 0);
    size_t position = 0;
    cr_assert_eq(kvf_pages_are_idle64(w.client, w.memory.region, pages, 32, &position), 0);
    fake_succeed(&w.fake, room);
    cr_assert_eq(kvf_pages_are_idle64(w.client, w.memory.region, pages, 32, NULL), 1);
    for (uint32_t i = 0; i < WORLD_PAGES; i++) {
        cr_assert_eq(w.client->cold.regions[0].words[i], 0);
    }
    world_end(&w);
}

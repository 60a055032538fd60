#include "client_world.h"

#include <netdb.h>

Test(client_open, sink_lends_its_pages_before_the_worker_has_read_a_thing)
{
    struct world w;
    world_begin(&w);
    cr_assert_eq(world_is_idle(&w, 5), 1);
    kvf_room room = world_sink(&w, 5, 3);
    cr_assert_neq(room, 0);
    for (int32_t page = 5; page < 8; page++) {
        cr_assert_eq(world_is_idle(&w, page), 0);
        kvf_room lender = 0;
        cr_assert_eq(kvf_page_lender(w.client, w.memory.region, page, &lender), 0);
        cr_assert_eq(lender, room);
    }
    cr_assert_eq(world_is_idle(&w, 4), 1);
    cr_assert_eq(world_is_idle(&w, 8), 1);
    /* Read, and not yet answered: still lent. Open, closing: lent. Drained: idle. */
    world_pop(&w);
    cr_assert_eq(world_is_idle(&w, 5), 0);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(world_is_idle(&w, 5), 0);
    fake_publish(&w.fake, room, KVF_PHASE_QUARANTINED, KVF_OUTCOME_FAILED, KVF_PROOF_NONE,
                 KVF_STATE_TRANSFERRING, KVF_WORD_FAILED_EARLY);
    cr_assert_eq(world_is_idle(&w, 5), 0);
    fake_fail(&w.fake, room, KVF_PROOF_FENCED, KVF_E_ABORTED);
    cr_assert_eq(world_is_idle(&w, 5), 1);
    kvf_room lender = 1;
    cr_assert_eq(kvf_page_lender(w.client, w.memory.region, 5, &lender), -ENOENT);
    cr_assert_eq(lender, 1, "outputs are untouched on failure");
    world_end(&w);
}

Test(client_open, command_names_room_epoch_and_runs)
{
    struct world w;
    world_begin(&w);
    const char *writers[] = {"10.1.2.3:7000", "[2001:db8::1]:7001"};
    uint32_t starts[] = {4, 0};
    uint32_t counts[] = {2, 4};
    int32_t pages[] = {7, 8, 9, 3};
    int32_t aux[] = {20, 21};
    struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                 .region = w.memory.region,
                                 .label = 11,
                                 .key = 22,
                                 .pages = pages,
                                 .page_count = 4,
                                 .aux_region = w.memory.region,
                                 .aux_count = 2,
                                 .aux_pages = aux,
                                 .writers = writers,
                                 .writer_count = 2,
                                 .range_starts = starts,
                                 .range_counts = counts};
    kvf_room room;
    cr_assert_eq(kvf_open_sink(w.client, &opts, &room), 0);
    struct kvf_cmd_shm cmd = world_pop(&w);
    cr_assert_eq(cmd.op, KVF_CMD_OPEN_SINK);
    cr_assert_eq(cmd.slot, fake_slot(room));
    cr_assert_eq(cmd.generation, fake_generation(room));
    cr_assert_eq(cmd.worker_epoch, w.fake.epoch);
    cr_assert_eq(cmd.label, 11);
    cr_assert_eq(cmd.key, 22);
    cr_assert_eq(cmd.arena_off % 8, 0);
    struct kvf_open_shm record;
    const unsigned char *at = fake_record(&w.fake, &cmd);
    memcpy(&record, at, sizeof record);
    cr_assert_eq(record.writer_count, 2);
    cr_assert_eq(record.run_count, 3, "7-9, 3, 20-21");
    cr_assert_eq(cmd.arena_bytes, sizeof record + 2 * sizeof(struct kvf_writer_shm) +
                                      3 * sizeof(struct kvf_run_shm));
    struct kvf_writer_shm writer[2];
    memcpy(writer, at + sizeof record, sizeof writer);
    cr_assert_eq(writer[0].addr.family, 4);
    cr_assert_eq(writer[0].addr.port, 7000);
    cr_assert_arr_eq(writer[0].addr.addr, ((uint8_t[]){10, 1, 2, 3}), 4);
    cr_assert_eq(writer[0].start, 4);
    cr_assert_eq(writer[0].count, 2);
    cr_assert_eq(writer[1].addr.family, 6);
    cr_assert_eq(writer[1].addr.addr[15], 1);
    cr_assert_eq(writer[1].start, 0);
    struct kvf_run_shm runs[3];
    memcpy(runs, at + sizeof record + sizeof writer, sizeof runs);
    cr_assert_eq(runs[0].first, 7);
    cr_assert_eq(runs[0].count, 3);
    cr_assert_eq(runs[1].first, 3);
    cr_assert_eq(runs[2].first, 20);
    cr_assert_eq(runs[2].region, w.memory.region);
    /* The client's line was written too. */
    const struct kvf_intent_shm *intent = &w.fake.own.intents[fake_slot(room)];
    cr_assert_eq(intent->generation, fake_generation(room));
    cr_assert_eq(intent->epoch, w.fake.epoch);
    cr_assert_eq(intent->abort_cell, 0);
    cr_assert_eq(intent->lease_word, kvf_lease_word_make(fake_generation(room)));
    world_end(&w);
}

/* One sink with everything right, for tests that spoil one thing. */
static struct kvf_sink_opts good_sink(const struct world *w)
{
    static const int32_t pages[] = {0, 1};
    static const char *const writers[] = {"127.0.0.1:1", "127.0.0.1:2"};
    return (struct kvf_sink_opts){.size_bytes = sizeof(struct kvf_sink_opts),
                                  .region = w->memory.region,
                                  .pages = pages,
                                  .page_count = 2,
                                  .writers = writers,
                                  .writer_count = 1};
}

static void expect_refused(struct world *w, const struct kvf_sink_opts *opts, int code)
{
    kvf_room room = 77;
    uint64_t pos = w->client->cold.cmds.pos;
    uint32_t free_count = w->client->cold.free_slots.count;
    int err = kvf_open_sink(w->client, opts, &room);
    cr_assert_eq(err, code, "%s and not %s", kvf_code_name(err), kvf_code_name(code));
    cr_assert_eq(room, 77, "outputs are untouched on failure");
    cr_assert_eq(w->client->cold.cmds.pos, pos);
    cr_assert_eq(w->client->cold.free_slots.count, free_count);
    for (int32_t page = 0; page < (int32_t)WORLD_PAGES; page++) {
        cr_assert_eq(world_is_idle(w, page), 1, "page %d after %s", page, kvf_code_name(code));
    }
}

Test(client_open, refuses_each_bad_list_with_its_own_code_and_lends_nothing)
{
    struct world w;
    world_begin(&w);
    struct kvf_sink_opts o = good_sink(&w);
    o.page_count = 0;
    expect_refused(&w, &o, -KVF_E_NO_PAGES);

    o = good_sink(&w);
    int32_t beyond[] = {1, (int32_t)WORLD_PAGES};
    o.pages = beyond;
    expect_refused(&w, &o, -KVF_E_PAGE_RANGE);
    int32_t negative[] = {1, -1};
    o.pages = negative;
    expect_refused(&w, &o, -KVF_E_PAGE_RANGE);
    int64_t huge[] = {1, INT64_C(0x100000001)};
    o.pages = NULL;
    o.pages64 = huge;
    expect_refused(&w, &o, -KVF_E_PAGE_RANGE);

    o = good_sink(&w);
    int32_t twice[] = {3, 4, 5, 3};
    o.pages = twice;
    o.page_count = 4;
    expect_refused(&w, &o, -KVF_E_PAGE_TWICE);
    o = good_sink(&w);
    int32_t aux[] = {1};
    o.aux_region = w.memory.region;
    o.aux_count = 1;
    o.aux_pages = aux;
    expect_refused(&w, &o, -KVF_E_PAGE_TWICE);

    o = good_sink(&w);
    o.region += 0x100;
    expect_refused(&w, &o, -KVF_E_UNKNOWN_REGION);
    o.region = 0;
    expect_refused(&w, &o, -KVF_E_UNKNOWN_REGION);
    o.region = 0x1ff;
    expect_refused(&w, &o, -KVF_E_UNKNOWN_REGION);
    o = good_sink(&w);
    o.aux_count = 1;
    o.aux_pages = (int32_t[]){9};
    o.aux_region = 5;
    expect_refused(&w, &o, -KVF_E_UNKNOWN_REGION);
    o = good_sink(&w);
    o.aux_count = 1;
    o.aux_pages = (int32_t[]){64};
    o.aux_region = w.memory.region;
    expect_refused(&w, &o, -KVF_E_PAGE_RANGE);
    world_end(&w);
}

Test(client_open, refuses_each_bad_option_with_its_own_code)
{
    struct world w;
    world_begin(&w);
    struct kvf_sink_opts o = good_sink(&w);
    o.pages = NULL;
    expect_refused(&w, &o, -EINVAL);
    o = good_sink(&w);
    o.writers = NULL;
    expect_refused(&w, &o, -EINVAL);
    o = good_sink(&w);
    o.aux_count = 1;
    o.aux_region = w.memory.region;
    expect_refused(&w, &o, -EINVAL);
    o = good_sink(&w);
    o.size_bytes -= 4;
    expect_refused(&w, &o, -KVF_E_OPTION);
    o = good_sink(&w);
    o.pad_[1] = 1;
    expect_refused(&w, &o, -KVF_E_OPTION);
    o = good_sink(&w);
    o.writer_count = 0;
    expect_refused(&w, &o, -KVF_E_PEER_COUNT);
    o.writer_count = KVF_PEERS_PER_ROOM_MAX + 1;
    expect_refused(&w, &o, -KVF_E_PEER_COUNT);
    o.writer_count = 2; /* two writers of everything would write the same pages */
    expect_refused(&w, &o, -KVF_E_PEER_COUNT);
    o = good_sink(&w);
    o.group = 1;
    expect_refused(&w, &o, -KVF_E_UNKNOWN_GROUP);
    world_end(&w);
}

Test(client_open, parts_of_writers_cover_the_list_exactly_once)
{
    struct world w;
    world_begin(&w);
    static const struct {
        uint32_t starts[2];
        uint32_t counts[2];
        bool is_good;
    } cases[] = {
        {{0, 2}, {2, 2}, true},  {{2, 0}, {2, 2}, true},          {{0, 1}, {2, 3}, false},
        {{0, 3}, {2, 1}, false}, {{0, 2}, {2, 1}, false},         {{0, 2}, {2, 3}, false},
        {{0, 4}, {4, 0}, false}, {{0, 0}, {4, 4}, false},         {{1, 3}, {2, 1}, false},
        {{0, 2}, {2, 0}, false}, {{0, 2}, {2, UINT32_MAX}, false}};
    int32_t pages[] = {0, 1, 2, 3};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvf_sink_opts o = good_sink(&w);
        o.pages = pages;
        o.page_count = 4;
        o.writer_count = 2;
        o.range_starts = cases[i].starts;
        o.range_counts = cases[i].counts;
        if (!cases[i].is_good) {
            expect_refused(&w, &o, -KVF_E_PEER_COUNT);
            continue;
        }
        kvf_room room;
        cr_assert_eq(kvf_open_sink(w.client, &o, &room), 0, "case %zu", i);
        world_pop(&w);
        fake_fail(&w.fake, room, KVF_PROOF_NEVER_POSTED, KVF_E_ABORTED);
        cr_assert_eq(kvf_release(w.client, room), 0);
    }
    struct kvf_sink_opts o = good_sink(&w);
    o.range_starts = cases[0].starts;
    expect_refused(&w, &o, -EINVAL);
    world_end(&w);
}

Test(client_open, addresses_that_cannot_be_used_are_refused)
{
    struct world w;
    world_begin(&w);
    static const char *const bad[] = {"",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      "127.0.0.1:0",
                                      "127.0.0.1:65536",
                                      "127.0.0.1:7x",
                                      "127.0.0.1:-1",
                                      ":7000",
                                      "::1:7000",
                                      "[::1]",
                                      "[::1]7000",
                                      "[::1:7000",
                                      "[]:7000",
                                      "[127.0.0.1]:7000",
                                      "no.such.host.invalid:7000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvf_sink_opts o = good_sink(&w);
        const char *writers[] = {bad[i]};
        o.writers = writers;
        expect_refused(&w, &o, -KVF_E_PEER_UNRESOLVED);
    }
    struct kvf_sink_opts o = good_sink(&w);
    const char *writers[] = {NULL};
    o.writers = writers;
    expect_refused(&w, &o, -EINVAL);
    struct kvf_addr_shm addr;
    cr_assert_eq(kvf_client_addr_parse("[fe80::1%3]:9", &addr), 0);
    cr_assert_eq(addr.scope, 3);
    world_end(&w);
}

Test(client_open, names_are_resolved_to_the_kind_a_daemon_listens_on)
{
    struct addrinfo *found;
    if (getaddrinfo("localhost", NULL, NULL, &found) != 0) {
        cr_skip_test("this machine resolves no name at all, not even localhost");
    }
    freeaddrinfo(found);
    struct kvf_addr_shm addr;
    cr_assert_eq(kvf_client_addr_parse("localhost:9", &addr), 0);
    cr_assert_eq(addr.port, 9);
    cr_assert_eq(addr.family, 4, "the kind a daemon listens on by default");
}

Test(client_open, page_lent_to_a_room_is_refused_until_that_room_is_drained)
{
    struct world w;
    world_begin(&w);
    kvf_room first = world_sink(&w, 10, 4);
    int32_t pages[] = {14, 13};
    kvf_room second = 5;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, pages, 2, &second),
                 -KVF_E_PAGE_LENT);
    cr_assert_eq(second, 5);
    cr_assert_eq(world_is_idle(&w, 14), 1, "the rest of a refused list is not lent");
    world_pop(&w);
    /* Aborted and forgotten is not drained. */
    cr_assert_eq(kvf_abort(w.client, first, 0), 0);
    cr_assert_eq(kvf_release(w.client, first), 0);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, pages, 2, &second),
                 -KVF_E_PAGE_LENT);
    fake_fail(&w.fake, first, KVF_PROOF_PEER_DRAINED, KVF_E_ABORTED);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, pages, 2, &second), 0);
    world_end(&w);
}

Test(client_open, slots_are_reused_first_in_first_out_and_generations_grow)
{
    struct world w;
    world_begin(&w);
    uint32_t order[3 * WORLD_ROOMS];
    uint64_t last_generation[WORLD_ROOMS] = {0};
    for (uint32_t i = 0; i < 3 * WORLD_ROOMS; i++) {
        kvf_room room = world_sink(&w, 0, 1);
        order[i] = fake_slot(room);
        cr_assert_eq(fake_generation(room), last_generation[order[i]] + 1);
        last_generation[order[i]] = fake_generation(room);
        world_pop(&w);
        fake_succeed(&w.fake, room);
        cr_assert_eq(kvf_release(w.client, room), 0);
    }
    for (uint32_t i = 0; i + WORLD_ROOMS < 3 * WORLD_ROOMS; i++) {
        cr_assert_eq(order[i], order[i + WORLD_ROOMS], "every other slot comes first");
    }
    world_end(&w);
}

Test(client_open, generation_continues_from_what_the_daemons_line_says)
{
    struct world w;
    world_begin(&w);
    for (uint32_t slot = 0; slot < WORLD_ROOMS; slot++) {
        fake_succeed(&w.fake, kvf_client_handle(1000 + slot, slot));
    }
    kvf_room room = world_sink(&w, 0, 1);
    cr_assert_eq(fake_generation(room), 1001 + fake_slot(room));
    world_end(&w);
}

Test(client_open, slot_whose_generations_are_used_up_is_never_opened_again)
{
    struct world w;
    world_begin(&w);
    fake_succeed(&w.fake, kvf_client_handle(KVF_GENERATION_MAX, 0));
    kvf_room rooms[WORLD_ROOMS - 1];
    for (uint32_t i = 0; i < WORLD_ROOMS - 1; i++) {
        rooms[i] = world_sink(&w, (int32_t)i, 1);
        cr_assert_neq(fake_slot(rooms[i]), 0);
    }
    kvf_room room;
    int32_t page = 40;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room), -KVF_E_ROOMS_FULL);
    world_end(&w);
}

Test(client_open, too_many_rooms_say_so_and_released_ones_that_are_not_drained_say_again)
{
    struct world w;
    world_begin(&w);
    kvf_room rooms[WORLD_ROOMS];
    for (uint32_t i = 0; i < WORLD_ROOMS; i++) {
        rooms[i] = world_sink(&w, (int32_t)i, 1);
        world_pop(&w);
    }
    kvf_room room;
    int32_t page = 40;
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room), -KVF_E_ROOMS_FULL);
    cr_assert_eq(world_is_idle(&w, 40), 1);
    cr_assert_eq(kvf_release(w.client, rooms[2]), 0);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room), -EAGAIN);
    fake_fail(&w.fake, rooms[2], KVF_PROOF_REVOKED, KVF_E_ABORTED);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, &page, 1, &room), 0);
    cr_assert_eq(fake_slot(room), fake_slot(rooms[2]));
    cr_assert_eq(fake_generation(room), fake_generation(rooms[2]) + 1);
    world_end(&w);
}

Test(client_open, full_ring_refuses_and_lends_nothing)
{
    struct world w;
    world_begin_with(&w, 64, 4, 0);
    for (uint32_t i = 0; i < 4; i++) {
        world_sink(&w, (int32_t)i, 1);
    }
    struct kvf_sink_opts o = good_sink(&w);
    int32_t pages[] = {30, 31};
    o.pages = pages;
    kvf_room room = 77;
    cr_assert_eq(kvf_open_sink(w.client, &o, &room), -EAGAIN);
    cr_assert_eq(world_is_idle(&w, 30), 1);
    kvf_room source;
    cr_assert_eq(fake_open_source(w.client, w.memory.region, &source), -EAGAIN);
    cr_assert_eq(w.client->cold.free_slots.count, 60);
    world_pop(&w);
    cr_assert_eq(kvf_open_sink(w.client, &o, &room), 0);
    world_end(&w);
}

/* An open that is taken back late has written its generation into the client's line already. */
Test(client_open, slot_that_is_given_back_keeps_its_generation_used_up)
{
    struct world w;
    world_begin(&w);
    struct kvf_cold *cold = &w.client->cold;
    pthread_mutex_lock(&cold->lock);
    struct kvf_slot *slot;
    cr_assert_eq(kvf_client_slot_take(w.client, &slot), 0);
    uint64_t generation = slot->generation;
    kvf_client_slot_give_back(w.client, slot);
    pthread_mutex_unlock(&cold->lock);
    cr_assert_eq(cold->free_slots.count, WORLD_ROOMS);
    cr_assert_eq(slot->generation, generation, "a number once written is never used again");
    kvf_room room = 0;
    for (uint32_t i = 0; i < WORLD_ROOMS; i++) {
        room = world_sink(&w, (int32_t)i, 1);
    }
    cr_assert_eq(fake_generation(room), generation + 1);
    world_end(&w);
}

Test(client_open, full_arena_refuses_until_the_worker_has_read_on)
{
    struct world w;
    world_begin_with(&w, 64, 64, 4096);
    /* 32 runs of one page each: 16 + 32 + 384 bytes, nine of them fill 4 KiB. */
    int32_t pages[32];
    kvf_room rooms[10];
    uint32_t opened = 0;
    for (; opened < 10; opened++) {
        for (int32_t i = 0; i < 32; i++) {
            pages[i] = i * 2;
        }
        int err = fake_open_sink(w.client, w.memory.region, pages, 32, &rooms[opened]);
        if (err != 0) {
            cr_assert_eq(err, -EAGAIN);
            break;
        }
        struct kvf_cmd_shm cmd;
        cr_assert_eq(fake_pop_unread(&w.fake, &cmd), 1);
        fake_succeed(&w.fake, rooms[opened]);
    }
    cr_assert_eq(opened, 9);
    atomic_store(&w.fake.view->shm->cmd_consumed, 1);
    cr_assert_eq(fake_open_sink(w.client, w.memory.region, pages, 32, &rooms[9]), 0);
    world_end(&w);
}

Test(client_open, list_that_no_arena_holds_is_not_asked_for_again)
{
    struct world w;
    world_begin_with(&w, 4, 8, 4096);
    struct fake_memory big;
    fake_memory_make(w.client, 4096, &big);
    static int32_t pages[1024];
    for (int32_t i = 0; i < 1024; i++) {
        pages[i] = i * 2;
    }
    kvf_room room;
    cr_assert_eq(fake_open_sink(w.client, big.region, pages, 1024, &room), -E2BIG);
    cr_assert_eq(fake_open_sink(w.client, big.region, pages, 340, &room), -E2BIG);
    cr_assert_eq(fake_open_sink(w.client, big.region, pages, 300, &room), 0);
    kvf_pool_destroy(big.pool);
    world_end(&w);
}

Test(client_open, no_worker_and_stopping_daemon_have_their_own_codes)
{
    struct world w;
    world_begin(&w);
    struct kvf_sink_opts o = good_sink(&w);
    atomic_store(&w.fake.own.shm->worker_epoch, 0);
    expect_refused(&w, &o, -KVF_E_WORKER_GONE);
    atomic_store(&w.fake.own.shm->worker_epoch, w.fake.epoch);
    atomic_store(&w.fake.own.shm->stopping, 1);
    expect_refused(&w, &o, -ESHUTDOWN);
    kvf_room room;
    cr_assert_eq(fake_open_source(w.client, w.memory.region, &room), -ESHUTDOWN);
    world_end(&w);
}

Test(client_open, source_options_are_checked)
{
    struct world w;
    world_begin(&w);
    struct kvf_source_opts good = {.size_bytes = sizeof good, .region = w.memory.region};
    kvf_room room = 9;
    struct kvf_source_opts o = good;
    o.region = 1;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_UNKNOWN_REGION);
    o = good;
    o.has_aux = 1;
    o.aux_region = 1;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_UNKNOWN_REGION);
    o = good;
    o.has_aux = 2;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_OPTION);
    o = good;
    o.sink_count = 17;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_PEER_COUNT);
    o = good;
    o.group = 1;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_UNKNOWN_GROUP);
    o = good;
    o.size_bytes = 8;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_OPTION);
    o = good;
    o.pad_[0] = 1;
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_OPTION);
    cr_assert_eq(room, 9);
    cr_assert_eq(kvf_open_source(w.client, &good, &room), 0);
    struct kvf_cmd_shm cmd = world_pop(&w);
    cr_assert_eq(cmd.op, KVF_CMD_OPEN_SOURCE);
    cr_assert_eq(cmd.sinks, 1);
    struct kvf_open_shm record;
    memcpy(&record, fake_record(&w.fake, &cmd), sizeof record);
    cr_assert_eq(record.region, w.memory.region);
    cr_assert_eq(record.aux_region, UINT32_MAX);
    world_end(&w);
}

Test(client_open, struct_of_a_newer_program_is_taken_when_its_news_are_zero)
{
    struct world w;
    world_begin(&w);
    struct {
        struct kvf_source_opts known;
        uint64_t news;
    } opts = {.known = {.size_bytes = sizeof opts, .region = w.memory.region}};
    kvf_room room;
    cr_assert_eq(kvf_open_source(w.client, &opts.known, &room), 0);
    opts.news = 1;
    cr_assert_eq(kvf_open_source(w.client, &opts.known, &room), -KVF_E_OPTION);
    world_end(&w);
}

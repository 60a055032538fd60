/* What the library does for groups: registration, opens, and what a room of one shows when its daemon is
 * gone. */
#include "tests/unit/client_world.h"

#include <string.h>

static const char *const two[] = {"127.0.0.1:7001", "127.0.0.2:7002"};

static struct kvf_group_opts good_group(void)
{
    return (struct kvf_group_opts){.size_bytes = sizeof(struct kvf_group_opts),
                                   .rank = 1,
                                   .members = two,
                                   .member_count = 2};
}

static uint32_t register_group(struct world *w)
{
    struct kvf_group_opts o = good_group();
    uint32_t group = 0;
    cr_assert_eq(kvf_group_register(w->client, &o, &group), 0);
    return group;
}

static kvf_room open_source(struct world *w, uint32_t group, uint64_t key)
{
    struct kvf_source_opts o = {.size_bytes = sizeof o,
                                .region = w->memory.region,
                                .label = 3,
                                .key = key,
                                .group = group};
    kvf_room room;
    cr_assert_eq(kvf_open_source(w->client, &o, &room), 0);
    return room;
}

#define WAITS KVF_WORD_GROUP_WAITS
static void publish_waiting(struct world *w, kvf_room room)
{
    fake_publish(&w->fake, room, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED, KVF_PROOF_REVOKED,
                 KVF_STATE_TRANSFERRING, WAITS);
}

Test(client_group, a_group_of_one_is_no_group)
{
    struct world w;
    world_begin(&w);
    struct kvf_group_opts o = good_group();
    o.member_count = 1;
    o.rank = 0;
    uint32_t group = 9;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), 0);
    cr_assert_eq(group, 0);
    cr_assert_eq(atomic_load(&w.fake.group_requests), 0);
    cr_assert_eq(kvf_group_skip(w.client, 0, 1), 0);
    (void)open_source(&w, group, 5);
    cr_assert_eq(world_pop(&w).group, 0);
    world_end(&w);
}

Test(client_group, what_is_wrong_is_refused_and_nothing_is_registered)
{
    struct world w;
    world_begin(&w);
    struct kvf_group_opts o = good_group();
    uint32_t group = 9;
    o.rank = 2;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_GROUP_MEMBERS);
    o = good_group();
    o.member_count = 0;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_GROUP_MEMBERS);
    o.member_count = 65;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_GROUP_MEMBERS);
    o = good_group();
    o.members = NULL;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -EINVAL);
    const char *hole[] = {"127.0.0.1:7001", NULL};
    o.members = hole;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -EINVAL);
    const char *portless[] = {"127.0.0.1:7001", "127.0.0.2"};
    o.members = portless;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_PEER_UNRESOLVED);
    o = good_group();
    o.pad0_ = 1;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_OPTION);
    o = good_group();
    o.pad_[1] = 1;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_OPTION);
    o = good_group();
    o.size_bytes = 24;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_OPTION);
    cr_assert_eq(atomic_load(&w.fake.group_requests), 0);
    o = good_group();
    atomic_store(&w.fake.refuse_op, KVF_REQ_GROUP_ADD);
    atomic_store(&w.fake.refuse_code, KVF_E_GROUP_RANK_TAKEN);
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_GROUP_RANK_TAKEN);
    atomic_store(&w.fake.refuse_op, 0);
    atomic_store(&w.fake.wrong_region, 40); /* a number no group can have */
    cr_assert_eq(kvf_group_register(w.client, &o, &group), -KVF_E_PROTOCOL);
    cr_assert_eq(group, 9);
    cr_assert_eq(kvf_group_skip(w.client, 1, 5), -KVF_E_UNKNOWN_GROUP);
    cr_assert_eq(kvf_group_skip(w.client, 17, 5), -KVF_E_UNKNOWN_GROUP);
    world_end(&w);
}

Test(client_group, every_rank_derives_the_same_id_from_the_same_members)
{
    struct world w;
    world_begin(&w);
    struct kvf_group_opts o = good_group();
    uint32_t group;
    uint64_t ids[2];
    for (uint32_t rank = 0; rank < 2; rank++) {
        o.rank = rank;
        cr_assert_eq(kvf_group_register(w.client, &o, &group), 0);
        cr_assert_eq(w.fake.group.rank, rank);
        cr_assert_eq(w.fake.group.member_count, 2);
        cr_assert_eq(w.fake.group.members[1].port, 7002);
        ids[rank] = w.fake.group.group_id;
    }
    cr_assert_eq(ids[0], ids[1]);
    cr_assert_neq(ids[0], 0);
    const char *turned[] = {two[1], two[0]};
    o.members = turned;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), 0);
    cr_assert_neq(w.fake.group.group_id, ids[0], "the order is part of it");
    o.group_id = 77;
    cr_assert_eq(kvf_group_register(w.client, &o, &group), 0);
    cr_assert_eq(w.fake.group.group_id, 77);
    cr_assert_eq(atomic_load(&w.fake.group_requests), 4);
    uint32_t again;
    cr_assert_eq(kvf_group_register(w.client, &o, &again), 0);
    cr_assert_eq(again, group, "the same registration has the same number");
    cr_assert_eq(atomic_load(&w.fake.group_requests), 4);
    world_end(&w);
}

Test(client_group, an_open_names_group_and_key_in_command_and_line)
{
    struct world w;
    world_begin(&w);
    uint32_t group = register_group(&w);
    kvf_room room = open_source(&w, group, 0xabcd);
    struct kvf_cmd_shm cmd = world_pop(&w);
    cr_assert_eq(cmd.group, group);
    cr_assert_eq(cmd.key, 0xabcd);
    const struct kvf_intent_shm *intent = &w.fake.view->intents[fake_slot(room)];
    cr_assert_eq(atomic_load(&intent->group), group);
    cr_assert_eq(atomic_load(&intent->key), 0xabcd);
    /* The next room of that slot is another one's. */
    fake_fail(&w.fake, room, KVF_PROOF_NEVER_POSTED, 1);
    cr_assert_eq(kvf_release(w.client, room), 0);
    struct kvf_source_opts o = {.size_bytes = sizeof o, .region = w.memory.region, .group = 2};
    cr_assert_eq(kvf_open_source(w.client, &o, &room), -KVF_E_UNKNOWN_GROUP);
    world_end(&w);
}

Test(client_group, skip_is_a_request_and_comes_back_answered)
{
    struct world w;
    world_begin(&w);
    uint32_t group = register_group(&w);
    cr_assert_eq(kvf_group_skip(w.client, group, 0x1234), 0);
    cr_assert_eq(w.fake.skip.group, group);
    cr_assert_eq(w.fake.skip.key, 0x1234);
    atomic_store(&w.fake.refuse_op, KVF_REQ_GROUP_SKIP);
    atomic_store(&w.fake.refuse_code, KVF_E_UNKNOWN_GROUP);
    cr_assert_eq(kvf_group_skip(w.client, group, 1), -KVF_E_UNKNOWN_GROUP);
    atomic_store(&w.fake.refuse_op, 0);
    fake_supervisor_kill(&w.fake);
    cr_assert_eq(kvf_group_skip(w.client, group, 1), -KVF_E_DAEMON_GONE);
    world_end(&w);
}

/* Drained, pages idle, and still Transferring: another rank has not settled. */
Test(client_group, a_waiting_room_is_drained_and_not_failed)
{
    struct world w;
    world_begin(&w);
    uint32_t group = register_group(&w);
    kvf_room room = open_source(&w, group, 5);
    (void)world_pop(&w);
    const int32_t page = 3;
    cr_assert_eq(fake_submit(w.client, room, w.memory.region, &page, 1, 0, KVF_LAST_PIECE), 0);
    atomic_store(&w.fake.view->rooms[fake_slot(room)].group_waits, 0x5);
    publish_waiting(&w, room);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_drained(w.client, room), KVF_REVOKED);
    cr_assert_eq(kvf_failed_early(w.client, room), 1);
    cr_assert_eq(kvf_wait(w.client, room, 1), -ETIMEDOUT);
    struct kvf_room_info info = {.size_bytes = sizeof info};
    cr_assert_eq(kvf_room_info(w.client, room, &info), 0);
    cr_assert_eq(info.group_waits, 0x5);
    cr_assert_eq(info.phase, 5);
    cr_assert_eq(info.state, KVF_TRANSFERRING);
    size_t position;
    cr_assert_eq(kvf_pages_are_idle(w.client, w.memory.region, &page, 1, &position), 1);
    fake_fail(&w.fake, room, KVF_PROOF_REVOKED, 1);
    cr_assert_eq(kvf_poll(w.client, room), KVF_FAILED);
    world_end(&w);
}

/* A program of before has a shorter struct. */
Test(client_group, room_info_of_the_first_version_is_still_filled)
{
    struct world w;
    world_begin(&w);
    uint32_t group = register_group(&w);
    kvf_room room = open_source(&w, group, 5);
    (void)world_pop(&w);
    fake_open(&w.fake, room, KVF_STATE_BOOTSTRAPPING);
    struct kvf_room_info info;
    memset(&info, 0xee, sizeof info);
    info.size_bytes = offsetof(struct kvf_room_info, group_waits);
    cr_assert_eq(kvf_room_info(w.client, room, &info), 0);
    cr_assert_eq(info.state, KVF_BOOTSTRAPPING);
    cr_assert_eq(info.group_waits, UINT64_C(0xeeeeeeeeeeeeeeee));
    info.size_bytes -= 4;
    cr_assert_eq(kvf_room_info(w.client, room, &info), -KVF_E_OPTION);
    world_end(&w);
}

/* Other ranks may still ask for the room: its slot is not another one's before they have settled. */
Test(client_group, a_slot_that_waits_is_not_used_again)
{
    struct world w;
    world_begin(&w);
    uint32_t group = register_group(&w);
    kvf_room room = open_source(&w, group, 5);
    (void)world_pop(&w);
    publish_waiting(&w, room);
    cr_assert_eq(kvf_release(w.client, room), 0);
    cr_assert_eq(kvf_poll(w.client, room), -KVF_E_STALE_ROOM);
    uint32_t rooms = w.fake.view->limits.rooms_max;
    for (uint32_t i = 0; i < 2 * rooms; i++) {
        kvf_room other = open_source(&w, 0, 100 + i);
        (void)world_pop(&w);
        cr_assert_neq(fake_slot(other), fake_slot(room));
        fake_fail(&w.fake, other, KVF_PROOF_NEVER_POSTED, 1);
        cr_assert_eq(kvf_release(w.client, other), 0);
    }
    fake_fail(&w.fake, room, KVF_PROOF_REVOKED, 1);
    bool is_back = false;
    for (uint32_t i = 0; i < 2 * rooms && !is_back; i++) {
        kvf_room other = open_source(&w, 0, 1000 + i);
        (void)world_pop(&w);
        is_back = fake_slot(other) == fake_slot(room);
        fake_fail(&w.fake, other, KVF_PROOF_NEVER_POSTED, 1);
        cr_assert_eq(kvf_release(w.client, other), 0);
    }
    cr_assert(is_back);
    world_end(&w);
}

/* Worker and supervisor are gone: the room's pages are proven idle, the other ranks' are anybody's guess. */
Test(client_group, a_room_without_any_daemon_is_drained_and_waits)
{
    struct world w;
    world_begin(&w);
    uint32_t group = register_group(&w);
    kvf_room room = open_source(&w, group, 5);
    kvf_room plain = open_source(&w, 0, 6);
    const int32_t page = 3;
    cr_assert_eq(fake_submit(w.client, room, w.memory.region, &page, 1, 0, KVF_LAST_PIECE), 0);
    fake_open(&w.fake, room, KVF_STATE_TRANSFERRING);
    cr_assert_eq(world_is_idle(&w, page), 0, "lent for reading");
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    cr_assert_eq(kvf_daemon_check(w.client), -KVF_E_DAEMON_GONE);
    cr_assert_eq(kvf_poll(w.client, plain), KVF_FAILED);
    cr_assert_eq(kvf_poll(w.client, room), KVF_TRANSFERRING);
    cr_assert_eq(kvf_drained(w.client, room), KVF_WORKER_GONE);
    cr_assert_eq(kvf_wait(w.client, room, 1), -ETIMEDOUT);
    kvf_client_tidy(w.client, true);
    cr_assert_eq(world_is_idle(&w, page), 1);
    world_end(&w);
}

Test(client_group, the_next_daemon_is_told_of_every_group_under_its_number)
{
    struct world w;
    world_begin(&w);
    struct kvf_group_opts o = good_group();
    uint32_t first = register_group(&w);
    o.group_id = 99;
    uint32_t second;
    cr_assert_eq(kvf_group_register(w.client, &o, &second), 0);
    cr_assert_neq(first, second);
    fake_supervisor_kill(&w.fake);
    fake_worker_kill(&w.fake);
    uint32_t third = 9;
    o.group_id = 100;
    cr_assert_eq(kvf_group_register(w.client, &o, &third), -KVF_E_DAEMON_GONE);
    fake_worker_start(&w.fake, 0x2001);
    atomic_store(&w.fake.refuse_op, KVF_REQ_GROUP_ADD);
    atomic_store(&w.fake.refuse_code, KVF_E_GROUP_RANK_TAKEN);
    fake_supervisor_start(&w.fake);
    cr_assert_eq(kvf_reattach(w.client, 1000), -KVF_E_GROUP_RANK_TAKEN);
    struct kvf_source_opts source = {
        .size_bytes = sizeof source, .region = w.memory.region, .key = 1, .group = second};
    kvf_room room;
    cr_assert_eq(kvf_open_source(w.client, &source, &room), -KVF_E_WORKER_GONE);
    atomic_store(&w.fake.refuse_op, 0);
    uint32_t before = atomic_load(&w.fake.group_requests);
    cr_assert_eq(kvf_reattach(w.client, 1000), 0);
    cr_assert_eq(atomic_load(&w.fake.group_requests), before + 2);
    cr_assert_eq(w.fake.group.group_id, 99);
    cr_assert_eq(w.fake.group.group, second);
    cr_assert_eq(kvf_open_source(w.client, &source, &room), 0);
    cr_assert_eq(kvf_release(w.client, room), 0);
    world_end(&w);
}

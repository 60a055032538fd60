/* Corners: combinations that a transfer, an abort or a hostile peer reaches only by a rare meeting. Each is
 * a sentence of its own; together they are why the branches of the core that nothing reaches are few. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

/* ---- keys that share a bucket ------------------------------------------------------------------------ */

/* Another key whose rooms stand in the same bucket as those of (label, key). */
static uint64_t bucket_mate(uint64_t label, uint64_t key, uint64_t after)
{
    uint64_t bucket = kvf_hash2(label, key) & (KVF_HASH_BUCKETS - 1);
    for (uint64_t other = after + 1;; other++) {
        if (other != key && (kvf_hash2(label, other) & (KVF_HASH_BUCKETS - 1)) == bucket) {
            return other;
        }
    }
}

static struct pair_room *labelled_sink(struct pair *p, uint64_t label, uint64_t key,
                                       uint32_t first)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .start = 0, .count = 4};
    struct kvf_run_shm run = {PAIR_R0, first, 4};
    return pair_open_sink(p, 0,
                          &(struct pair_open){.label = label,
                                              .key = key,
                                              .writers = &writer,
                                              .writer_count = 1,
                                              .runs = &run,
                                              .run_count = 1});
}

/* Three rooms and their three grants in one chain: found, parked, matched and taken out in every order. */
Test(core_corner, rooms_of_one_label_whose_keys_share_a_bucket_are_told_apart)
{
    uint64_t keys[3] = {100};
    keys[1] = bucket_mate(7, keys[0], keys[0]);
    keys[2] = bucket_mate(7, keys[0], keys[1]);
    for (uint32_t order = 0; order < 6; order++) {
        uint32_t first = order % 3;
        uint32_t second = (first + 1 + order / 3) % 3;
        uint32_t turn[3] = {first, second, 3 - first - second};
        struct pair *p = pair_new(&(struct pair_options){0});
        struct pair_room *sinks[3];
        struct pair_room *sources[3];
        for (uint32_t i = 0; i < 3; i++) { /* parked, all three */
            sinks[i] = labelled_sink(p, 7, keys[i], 8 * i);
        }
        pair_settle(p);
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 3);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t k = turn[i];
            sources[k] = pair_open_source(
                p, 1, &(struct pair_open){.label = 7, .key = keys[k], .sink_count = 1});
        }
        pair_settle(p);
        cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 0);
        pair_abort(sinks[turn[1]]); /* out of the middle, the other two go on */
        pair_settle(p);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t k = turn[i];
            (void)pair_submit(sources[k], 0, 8 * k, 4, true);
            pair_settle(p);
        }
        for (uint32_t i = 0; i < 3; i++) {
            cr_assert(pair_is_drained(sinks[i]));
            cr_assert_eq(pair_outcome(sinks[i]),
                         i == turn[1] ? KVF_OUTCOME_FAILED : KVF_OUTCOME_SUCCESS);
        }
        pair_finish(p);
    }
}

/* The abort was called before the OPEN was read, and the grant is there already. */
Test(core_corner, an_open_that_ends_at_once_declines_the_grant_that_was_parked_for_it)
{
    uint64_t mate = bucket_mate(7, 7, 7);
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *sink = labelled_sink(p, 7, 7, 0);
    struct pair_room *other = labelled_sink(p, 7, mate, 8);
    pair_settle(p);
    struct pair_room *source = pair_open_source(
        p, 1, &(struct pair_open){.key = 7, .sink_count = 1, .abort_reason = 99});
    pair_settle(p);
    pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, 99);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_ROOM_GONE);
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_PARKED), 1);
    pair_abort(other);
    pair_settle(p);
    pair_finish(p);
}

/* ---- one peer, several grants of one room ------------------------------------------------------------ */

/* Ending one grant of the room ends the next one of the list too, under the walk over that list. */
Test(core_corner,
     a_room_with_three_parts_of_one_daemon_ends_whole_when_its_lane_or_peer_is_lost)
{
    for (uint32_t kind = 0; kind < 12; kind++) {
        uint32_t fault = kind / 2 % 3;
        struct pair *p = pair_new(&(struct pair_options){
            .placement = kind % 2 == 0 ? KVF_PLACEMENT_POSTED : KVF_PLACEMENT_CHECKED,
            .has_no_regrants = kind < 6,
            .lane_rooms = 8});
        struct kvf_writer_shm writers[3];
        for (uint32_t i = 0; i < 3; i++) {
            writers[i] =
                (struct kvf_writer_shm){.addr = pair_addr(1), .start = 4 * i, .count = 4};
        }
        struct kvf_run_shm run = {PAIR_R0, 0, 12};
        pair_warm(p, 0, 1);
        if (fault == 2) {
            pair_link(p, 0, 1)->hold_write[PAIR_SINK] = true; /* none of them leaves */
        }
        struct pair_room *sink = pair_open_sink(
            p, 0,
            &(struct pair_open){
                .key = 7, .writers = writers, .writer_count = 3, .runs = &run, .run_count = 1});
        struct pair_room *source =
            pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 3});
        struct pair_room *bystander = pair_sink(p, 0, 1, 8, 100, 4);
        pair_settle(p);
        if (fault == 0) {
            pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
        } else if (fault == 1) {
            pair_conn_cut(p, pair_conn(p, 0, 1));
        } else {
            pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
            pair_link(p, 0, 1)->hold_write[PAIR_SINK] = false;
        }
        pair_settle(p);
        if (fault == 1 || (fault == 0 && kind < 6)) {
            cr_assert(pair_is_drained(sink), "%u", kind);
        }
        pair_abort(sink);
        pair_abort(bystander);
        pair_abort(source);
        pair_advance(p, 3000 * PAIR_MS);
        pair_finish(p);
    }
}

/* Two engines of one daemon are the two sinks of a source room: both grants come over one connection. */
Test(core_corner, a_source_whose_two_sinks_share_a_connection_ends_whole_when_it_is_lost)
{
    for (uint32_t kind = 0; kind < 2; kind++) {
        struct pair *p = pair_new(
            &(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .has_no_regrants = true});
        pair_warm(p, 0, 1);
        struct pair_room *source =
            pair_open_source(p, 1, &(struct pair_open){.key = 7, .sink_count = 2});
        struct kvf_writer_shm writer = {.addr = pair_addr(1), .start = 0, .count = 4};
        struct pair_room *sinks[2];
        for (uint32_t i = 0; i < 2; i++) {
            struct kvf_run_shm run = {PAIR_R0, 16 * i, 4};
            sinks[i] = pair_open_sink(p, 0,
                                      &(struct pair_open){.client = i,
                                                          .key = 7,
                                                          .writers = &writer,
                                                          .writer_count = 1,
                                                          .runs = &run,
                                                          .run_count = 1});
        }
        pair_settle(p);
        cr_assert_eq(pair_poll(source), KVF_STATE_WAITING_FOR_INPUT);
        if (kind == 0) {
            pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
        } else {
            pair_conn_cut(p, pair_conn(p, 0, 1));
        }
        pair_settle(p);
        pair_expect(source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED,
                    kind == 0 ? KVF_E_PEER_ABORTED : KVF_E_PEER_LOST);
        pair_advance(p, 3000 * PAIR_MS);
        cr_assert(pair_is_drained(sinks[0]) && pair_is_drained(sinks[1]));
        pair_finish(p);
    }
}

/* A second sink of that label and key aborts before its grant left: its hint is nobody's. */
Test(core_corner, the_hint_of_a_sink_too_many_ends_no_room_that_has_its_own)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    pair_link(p, 2, 1)->hold_write[PAIR_SINK] = true;
    struct pair_room *stranger = pair_sink(p, 2, 1, 7, 0, 4);
    pair_settle(p);
    pair_abort(stranger);
    pair_link(p, 2, 1)->hold_write[PAIR_SINK] = false;
    pair_settle(p);
    cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* ---- addresses ---------------------------------------------------------------------------------------- */

Test(core_corner, one_address_is_one_peer_in_either_family)
{
    struct kvf_addr_shm addrs[6];
    for (uint32_t i = 0; i < 6; i++) {
        addrs[i] = (struct kvf_addr_shm){.family = 6, .port = 7001, .addr = {0xfe, 0x80, 1}};
    }
    addrs[1].scope = 2;   /* another link */
    addrs[2].port = 7002; /* another daemon */
    addrs[3].addr[15] = 1;
    addrs[4].family = 4; /* the first four bytes alone */
    addrs[5] = addrs[0];
    struct pair *p = pair_new(&(struct pair_options){0});
    struct pair_room *rooms[6];
    for (uint32_t i = 0; i < 6; i++) {
        struct kvf_writer_shm writer = {.addr = addrs[i], .start = 0, .count = 4};
        struct kvf_run_shm run = {PAIR_R0, 8 * i, 4};
        p->daemons[0].hold_connects = true;
        rooms[i] = pair_open_sink(p, 0,
                                  &(struct pair_open){.key = 7 + i,
                                                      .writers = &writer,
                                                      .writer_count = 1,
                                                      .runs = &run,
                                                      .run_count = 1});
    }
    cr_assert_eq(p->daemons[0].connects, 5);
    p->daemons[0].hold_connects = false;
    pair_advance(p, 6000 * PAIR_MS);
    for (uint32_t i = 0; i < 6; i++) {
        pair_expect(rooms[i], KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED,
                    KVF_E_PEER_UNREACHABLE);
    }
    pair_finish(p);
}

/* ---- events of what is no more ------------------------------------------------------------------------ */

Test(core_corner, lane_events_of_another_epoch_are_counted_and_change_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
    pair_warm(p, 0, 1);
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    for (int side = 0; side < 2; side++) {
        uint32_t d = s->daemon[side];
        uint32_t lane = s->lane[side];
        struct kvf_core *core = p->daemons[d].core;
        uint64_t stale = pair_count(p, d, KVF_COUNT_STALE_LANE_EVENTS);
        struct kvf_post post = {.kind = KVF_LANE_DATA};
        struct kvf_placement_at at;
        kvf_core_lane_up(core, p->now_ns, lane, s->epoch + 1);
        kvf_core_lane_lost(core, p->now_ns, lane, s->epoch + 1, ECONNRESET);
        kvf_core_lane_fenced(core, p->now_ns, lane, s->epoch + 1);
        kvf_core_lane_fenced(core, p->now_ns, lane, s->epoch); /* none was asked for */
        kvf_core_completed(core, p->now_ns, lane, s->epoch + 1, &post, 0);
        cr_assert_eq(pair_count(p, d, KVF_COUNT_STALE_LANE_EVENTS), stale + 5);
        kvf_core_placed(core, p->now_ns, lane, s->epoch + 1, 0, 0, false);
        cr_assert_eq(kvf_core_place(core, lane, s->epoch + 1, 0, 0, 1, &at), -EPROTO);
        cr_assert_eq(kvf_core_place_fault(core, p->now_ns, lane, s->epoch + 1, 0), KVF_NONE);
        cr_assert_eq(kvf_core_marker(core, p->now_ns, lane, s->epoch + 1, 0, KVF_LANE_END),
                     -EPROTO);
        kvf_core_tick(core, p->now_ns); /* and nothing is due */
        pair_drain(p, d);
        /* The books of the oracle: what was told here was no post of its own. */
        ((uint64_t *)(uintptr_t)kvf_core_counters(core))[KVF_COUNT_COMPLETIONS]--;
    }
    kvf_core_lane_up(p->daemons[0].core, p->now_ns, UINT32_MAX, 1);
    (void)pair_submit(source, 0, 0, 4, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_finish(p);
}

/* A fence of that lane while none is open, and a stream that ends twice. */
Test(core_corner, a_lane_that_is_down_cannot_be_lost)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    pair_warm(p, 0, 1);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    uint32_t lane = s->lane[PAIR_SOURCE];
    uint32_t epoch = s->epoch;
    pair_stream_lose(p, s, PAIR_SOURCE);
    pair_settle(p);
    uint64_t stale = pair_count(p, 1, KVF_COUNT_STALE_LANE_EVENTS);
    kvf_core_lane_lost(p->daemons[1].core, p->now_ns, lane, epoch, ECONNRESET);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_STALE_LANE_EVENTS), stale + 1);
    pair_advance(p, 200 * PAIR_MS);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* The fence of today is out; what returns is that of another epoch. */
Test(core_corner, the_fence_of_another_epoch_proves_nothing_of_this_one)
{
    struct pair *p = pair_new(
        &(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .has_no_regrants = true});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    p->daemons[0].hold_fences = true;
    pair_link(p, 0, 1)->hold_deliver = 1; /* no marker comes either */
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    uint32_t lane = s->lane[PAIR_SINK];
    uint32_t epoch = s->epoch;
    pair_stream_lose(p, s, PAIR_SINK);
    pair_settle(p);
    pair_expect_held(sink);
    for (uint32_t other = epoch - 1; other <= epoch + 1; other += 2) {
        kvf_core_lane_fenced(p->daemons[0].core, p->now_ns, lane, other);
        pair_drain(p, 0);
        pair_expect_held(sink);
    }
    p->daemons[0].hold_fences = false;
    pair_fences_return(p, 0);
    pair_link(p, 0, 1)->hold_deliver = 0;
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_FENCED, KVF_E_LANE_LOST);
    cr_assert(pair_is_drained(source));
    pair_advance(p, 1000 * PAIR_MS);
    pair_finish(p);
}

/* Nonces are random and handles are not. A peer that has learnt both of another one's grant still speaks
 * for its own grants alone. */
Test(core_corner, a_peer_that_names_the_grant_of_another_reaches_nothing)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *mine = pair_sink(p, 0, 1, 7, 0, 4);
    struct hostile h = hostile_as_source(p);
    (void)hostile_read_grant(&h);
    pair_warm(p, 0, 2);
    pair_link(p, 0, 2)->hold[PAIR_SOURCE] = true; /* its GRANT is on its way */
    struct pair_room *other = pair_sink(p, 0, 2, 8, 16, 4);
    pair_settle(p);
    struct kvf_core *core = p->daemons[0].core;
    uint32_t idx = 0;
    while (core->grants[idx].state == KVF_GRANT_FREE || core->grants[idx].key != 8) {
        idx++;
        cr_assert_lt(idx, p->limits.grants_max);
    }
    uint64_t stale = pair_count(p, 0, KVF_COUNT_STALE_MESSAGES);
    hostile_send_simple(&h, KVF_WIRE_ENDED, core->grants[idx].nonce);
    hostile_send_simple(&h, KVF_WIRE_DECLINE, core->grants[idx].nonce);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_MESSAGES), stale + 2);
    cr_assert_eq(pair_phase(other), KVF_PHASE_OPEN);
    uint32_t lane_idx = (uint32_t)__builtin_ctz(core->grants[idx].lane_mask);
    struct pair_stream *s = pair_stream(p, 0, 1, lane_idx);
    struct kvf_placement_at at;
    cr_assert_eq(kvf_core_place(core, s->lane[PAIR_SINK], s->epoch,
                                kvf_grant_handle(idx, &core->grants[idx]), 0, 1, &at),
                 -EPROTO);
    pair_link(p, 0, 2)->hold[PAIR_SOURCE] = false;
    pair_abort(mine);
    pair_abort(other);
    hostile_finish(p);
}

Test(core_corner, commands_and_connections_of_nobody_change_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    unsigned char buf[64];
    uint64_t stale = pair_count(p, 0, KVF_COUNT_STALE_COMMANDS);
    struct kvf_core_open open = {.client = 0, .slot = 0, .generation = 1};
    uint32_t clients_max = p->limits.clients_max;
    kvf_core_abort(core, p->now_ns, clients_max, 0, 1, 0);
    kvf_core_abort(core, p->now_ns, 0, p->limits.rooms_per_client_max, 1, 0);
    kvf_core_abort(core, p->now_ns, 0, 0, 0, 0); /* generation 0 of a free slot */
    open.client = clients_max;
    cr_assert_eq(kvf_core_open_sink(core, p->now_ns, &open), -KVF_E_UNKNOWN_ROOM);
    pair_client_close(p, 0, 1, KVF_E_ENGINE_GONE);
    kvf_core_client_close(core, p->now_ns, 1, KVF_E_ENGINE_GONE); /* twice */
    open.client = 1;
    cr_assert_eq(kvf_core_open_source(core, p->now_ns, &open), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_STALE_COMMANDS), stale + 5);
    pair_client_reaped(p, 0, 1);
    kvf_core_client_reaped(core, p->now_ns, 1); /* twice */
    pair_client_remove(p, 0, 1);
    kvf_core_client_close(core, p->now_ns, 1, KVF_E_ENGINE_GONE);
    kvf_core_client_reaped(core, p->now_ns, 1);
    open.client = 1;
    cr_assert_eq(kvf_core_open_source(core, p->now_ns, &open), -KVF_E_UNKNOWN_ROOM);
    cr_assert_eq(kvf_core_client_add(core, clients_max, 1), -EINVAL);
    cr_assert_eq(kvf_core_client_add(core, 1, p->limits.rooms_per_client_max + 1), -EINVAL);
    cr_assert_eq(kvf_core_client_add(core, 0, 1), -EINVAL);
    kvf_core_peer_lost(core, p->now_ns, 0, ECONNRESET); /* no peer stands there */
    kvf_core_frame(core, p->now_ns, 0, KVF_WIRE_PING, 0, buf, 8);
    cr_assert_eq(kvf_core_emit(core, p->now_ns, 0, buf, sizeof buf), 0);
    cr_assert_not(kvf_core_owes(core, 0));
    pair_client_add(p, 0, 1);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* ---- groups --------------------------------------------------------------------------------------------- */

static struct pair_room *ranked_sink(struct pair *p, uint32_t daemon, uint64_t key,
                                     uint32_t first)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(2), .start = 0, .count = 4};
    struct kvf_run_shm run = {PAIR_R0, first, 4};
    return pair_open_sink(p, daemon,
                          &(struct pair_open){.key = key,
                                              .group = 1,
                                              .writers = &writer,
                                              .writer_count = 1,
                                              .runs = &run,
                                              .run_count = 1});
}

/* Its rank had answered "never opened" twice, and opened one of the two late; with the engine goes what would
 * have ended the other. */
Test(core_corner, a_client_that_goes_takes_its_tombstones_along)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    const uint32_t daemons[2] = {0, 1};
    cr_assert_eq(pair_group_add(p, 0, 1, 0x77, 0, daemons, 2), 0);
    cr_assert_eq(pair_group_add(p, 0, 1, 0x77, 1, daemons, 2), 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct pair_room *sink = ranked_sink(p, 0, 7 + i, 8 * i);
        pair_settle(p);
        pair_abort(sink);
        pair_settle(p);
        cr_assert(pair_is_drained(sink));
    }
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 2);
    struct pair_room *late = ranked_sink(p, 1, 7, 0);
    pair_settle(p);
    pair_expect(late, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_GROUP_CLOSED);
    pair_client_close(p, 1, 0, KVF_E_ENGINE_GONE);
    pair_client_reaped(p, 1, 0);
    pair_settle(p);
    cr_assert_eq(kvf_core_untold(p->daemons[1].core), 0);
    pair_client_remove(p, 1, 0);
    cr_assert_eq(pair_gauge(p, 1, KVF_GAUGE_GROUP_TOMBSTONES), 0);
    pair_client_add(p, 1, 0);
    pair_finish(p);
}

Test(core_corner, group_calls_of_nobody_are_refused)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_core_group g = {.group_id = 0x77, .member_count = 2};
    g.members[0] = pair_addr(0);
    g.members[1] = pair_addr(1);
    pair_client_close(p, 0, 1, KVF_E_ENGINE_GONE);
    pair_client_reaped(p, 0, 1);
    pair_client_remove(p, 0, 1);
    const uint32_t clients[3] = {1, p->limits.clients_max, 0};
    for (uint32_t i = 0; i < 3; i++) { /* gone, out of range, and with a handle out of range */
        uint32_t handle = i < 2 ? 1 : KVF_GROUPS_PER_CLIENT_MAX + 1;
        cr_assert_lt(kvf_core_group_add(core, p->now_ns, clients[i], handle, &g), 0);
        cr_assert_lt(kvf_core_group_skip(core, clients[i], handle, 7), 0);
        cr_assert_lt(kvf_core_group_key(core, clients[i], 0, handle, 7), 0);
        cr_assert_lt(
            kvf_core_adopt(core, p->now_ns,
                           &(struct kvf_core_adopt){.client = clients[i],
                                                    .slot = p->limits.rooms_per_client_max}),
            0);
    }
    cr_assert_lt(kvf_core_group_skip(core, 0, 0, 7), 0);
    cr_assert_lt(kvf_core_group_skip(core, 0, 1, 7), 0); /* not registered */
    g.members[1].family = 6;
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, 1, &g), 0);
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, 1, &g), 0, "the same again");
    g.group_id = 0x78;
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, 1, &g), -EEXIST);
    g.group_id = 0x77;
    g.rank = 1;
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, 1, &g), -EEXIST);
    g.rank = 0;
    kvf_core_group_departed(core, 0, 0);    /* no group has that number */
    kvf_core_group_departed(core, 0x77, 0); /* it is registered */
    g.member_count = 3;
    g.members[2] = pair_addr(2);
    cr_assert_eq(kvf_core_group_add(core, p->now_ns, 0, 1, &g), -EEXIST);
    pair_client_add(p, 0, 1);
    pair_finish(p);
}

/* ---- lists ---------------------------------------------------------------------------------------------- */

Test(core_corner, parts_of_writers_may_come_in_any_order)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 3});
    struct kvf_writer_shm writers[3] = {{.addr = pair_addr(2), .start = 6, .count = 2},
                                        {.addr = pair_addr(1), .start = 0, .count = 3},
                                        {.addr = pair_addr(1), .start = 3, .count = 3}};
    struct kvf_run_shm run = {PAIR_R0, 0, 8};
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = writers, .writer_count = 3, .runs = &run, .run_count = 1});
    pair_settle(p);
    cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
    pair_abort(sink);
    pair_settle(p);
    pair_finish(p);
}

/* What the core works through at one go stays short of a deadline, however large the region. */
Test(core_corner, a_list_of_more_than_a_million_pages_is_refused)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    static const uint32_t pages = KVF_LIST_PAGES_MAX / 2 + 1;
    cr_assert_eq(pair_region_remove(p, 0, 1, PAIR_R1), 0);
    pair_region_add(p, 0, 1, PAIR_REGION(1, 2), 2 * pages, 64);
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .start = 0, .count = 2 * pages};
    struct kvf_run_shm runs[2] = {{PAIR_REGION(1, 2), 0, pages},
                                  {PAIR_REGION(1, 2), pages, pages}};
    struct pair_room *sink = pair_open_sink(p, 0,
                                            &(struct pair_open){.client = 1,
                                                                .key = 7,
                                                                .writers = &writer,
                                                                .writer_count = 1,
                                                                .runs = runs,
                                                                .run_count = 2});
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
    pair_finish(p);
}

Test(core_corner, a_piece_that_starts_beyond_every_list_and_one_without_place_are_refused)
{
    struct pair *p = pair_new(&(struct pair_options){.runs_max = 16});
    struct pair_room *far = pair_source(p, 0, 7);
    cr_assert_eq(pair_submit(far, UINT32_MAX, 0, 1, false), -KVF_E_PIECE_RANGE);
    struct pair_room *farther = pair_source(p, 0, 8);
    cr_assert_eq(pair_submit(farther, KVF_REGION_PAGES_MAX, 0, 2, false), -KVF_E_PIECE_RANGE);
    struct kvf_run_shm runs[17];
    for (uint32_t i = 0; i < 17; i++) {
        runs[i] = (struct kvf_run_shm){PAIR_R0, 2 * i, 1};
    }
    struct pair_room *large = pair_source(p, 0, 9);
    cr_assert_eq(pair_submit_runs(large, 0, runs, 17, true), -KVF_E_RESOURCES);
    pair_expect(large, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_RESOURCES);
    pair_finish(p);
}

/* Pages larger than a post should be go one by one, and pages of two runs never in one frame. */
Test(core_corner, a_post_is_whole_pages_of_one_run_here_and_there)
{
    struct pair *p = pair_new(&(struct pair_options){.post_bytes = PAIR_PAGE_BYTES / 2});
    struct kvf_writer_shm writer = {.addr = pair_addr(1), .start = 0, .count = 8};
    struct kvf_run_shm runs[2] = {{PAIR_R0, 0, 3}, {PAIR_R0, 10, 5}};
    struct pair_room *sink = pair_open_sink(
        p, 0,
        &(struct pair_open){
            .key = 7, .writers = &writer, .writer_count = 1, .runs = runs, .run_count = 2});
    struct pair_room *source = pair_source(p, 1, 7);
    pair_settle(p);
    uint64_t posts = pair_count(p, 1, KVF_COUNT_POSTS);
    struct pair_stream *s = pair_stream(p, 0, 1, 0);
    struct kvf_grant *g = &p->daemons[0].core->grants[0];
    struct kvf_placement_at at;
    uint32_t handle = kvf_grant_handle(0, g);
    cr_assert_eq(
        kvf_core_place(p->daemons[0].core, s->lane[PAIR_SINK], s->epoch, handle, 0, 3, &at), 0);
    cr_assert_eq(
        kvf_core_place(p->daemons[0].core, s->lane[PAIR_SINK], s->epoch, handle, 1, 3, &at),
        -EPROTO);
    (void)pair_submit(source, 0, 0, 8, true);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    cr_assert_eq(pair_count(p, 1, KVF_COUNT_POSTS), posts + 8 + 1);
    pair_finish(p);
}

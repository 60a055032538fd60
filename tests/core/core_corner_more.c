/* More corners: combinations that hardly ever meet, each a sentence of its own. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

/* ---- stopping ------------------------------------------------------------------------------------------- */

/* A room between two grants is running: its engine was told of the first one long ago. */
Test(corner_more, a_daemon_that_stops_still_serves_a_room_that_waits_for_its_second_grant)
{
    for (uint32_t d = 0; d < 2; d++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
        struct pair_room *source = pair_source(p, 1, 7);
        struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_lane_hello = 1;
        pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SINK);
        pair_settle(p);
        cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 1);
        cr_assert(
            kvf_list_has(&p->daemons[d].core->bootstrap, d == 0 ? sink->slot : source->slot));
        kvf_core_shutdown(p->daemons[d].core, pair_clock(p, d), false);
        pair_drain(p, d);
        cr_assert_eq(pair_phase(sink), KVF_PHASE_OPEN);
        cr_assert_eq(pair_phase(source), KVF_PHASE_OPEN);
        pair_link(p, 0, 1)->hold_lane_hello = 0;
        (void)pair_submit(source, 0, 0, 4, true);
        pair_advance(p, 100 * PAIR_MS);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_finish(p);
    }
}

/* ---- who this very worker is ------------------------------------------------------------------------------ */

/* A daemon that would copy between its own regions refuses rooms in a device's memory with itself alone: neither with
 * another daemon, nor with another worker of its supervisor, which an address may still lead to. */
Test(corner_more, rooms_with_another_worker_are_not_copied_and_so_not_refused)
{
    for (uint32_t kind = 0; kind < 4; kind++) {
        struct pair *p = pair_new(
            &(struct pair_options){.placement = KVF_PLACEMENT_POSTED, .is_self_copied = true});
        struct kvf_core_config *own = &p->daemons[0].core->config;
        if (kind % 2 == 1) {
            p->daemons[1].core->config.supervisor_id = own->supervisor_id;
            p->daemons[1].core->config.worker_starts = own->worker_starts + 1u;
        }
        pair_region_device(p, 0, 0, PAIR_R0);
        uint32_t sink_daemon = kind / 2;
        struct pair_room *source = pair_source(p, 1 - sink_daemon, 7);
        struct pair_room *sink = pair_sink(p, sink_daemon, 1 - sink_daemon, 7, 0, 4);
        (void)pair_submit(source, 0, 0, 4, true);
        pair_settle(p);
        pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
        pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
        pair_finish(p);
    }
}

/* ---- regions that are not there ------------------------------------------------------------------------------ */

Test(corner_more,
     what_is_said_of_a_region_that_is_not_registered_is_refused_and_changes_nothing)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    uint32_t key = 77;
    const uint32_t wrong[] = {PAIR_REGION(0, 2), PAIR_REGION(9, 1), PAIR_REGION(0, 0),
                              UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_assert_eq(kvf_core_region_keys(core, 0, wrong[i], 5, &key, 1), -KVF_E_UNKNOWN_REGION,
                     "%zu", i);
        cr_assert_eq(kvf_core_region_ready(core, p->now_ns, 0, wrong[i], true),
                     -KVF_E_UNKNOWN_REGION, "%zu", i);
    }
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        cr_assert_not(core->clients[0].regions[i].is_device);
        cr_assert_neq(core->clients[0].regions[i].base, 5);
    }
    pair_finish(p);
}

/* ---- slots of an earlier worker -------------------------------------------------------------------------------- */

/* A drained room that waits for its group keeps its slot: the next one of it would take the word that says so. */
Test(corner_more, no_room_is_adopted_in_the_slot_of_one_whose_group_is_awaited)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    for (uint32_t is_settled = 0; is_settled < 2; is_settled++) {
        struct kvf_core_adopt room = {.slot = is_settled,
                                      .generation = 5,
                                      .key = 7 + is_settled,
                                      .group = 1,
                                      .outcome = KVF_OUTCOME_FAILED,
                                      .proof = KVF_PROOF_FENCED,
                                      .is_drained = true,
                                      .is_group_settled = is_settled};
        cr_assert_eq(kvf_core_adopt(core, p->now_ns, &room), 0);
        struct kvf_core_room_view view;
        kvf_core_room_view(core, 0, is_settled, &view);
        cr_assert_eq((view.word & KVF_WORD_GROUP_WAITS) != 0, !is_settled);
        struct kvf_core_adopt next = room;
        next.generation++;
        cr_assert_eq(kvf_core_adopt(core, p->now_ns, &next),
                     is_settled ? 0 : -KVF_E_SLOT_IN_USE);
        struct kvf_core_room_view after;
        kvf_core_room_view(core, 0, is_settled, &after);
        cr_assert_eq(kvf_word_generation(after.word), is_settled ? 6 : 5);
    }
    pair_free(p);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* What a peer calls itself is printed: a name that fills its field has no end there. */
Test(corner_more, a_hello_whose_name_fills_its_field_is_refused)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    struct kvf_core *core = p->daemons[0].core;
    struct kvf_wire_hello m = {.version_major = KVF_WIRE_VERSION_MAJOR,
                               .version_minor = KVF_WIRE_VERSION_MINOR,
                               .caps = KVF_CAP_DRAIN_PROOF,
                               .supervisor_id = 666,
                               .worker_starts = 1,
                               .session = 4242,
                               .transport = p->config.transport,
                               .placement = KVF_PLACEMENT_POSTED,
                               .lane_count = 1,
                               .receives_per_lane = 8};
    memset(m.name, 'n', sizeof m.name - 1);
    unsigned char frame[256];
    int bytes = kvf_wire_put_hello(frame, sizeof frame, 0, &m);
    cr_assert_gt(bytes, 0);
    size_t payload_bytes = (size_t)bytes - KVF_WIRE_HEADER_BYTES;
    unsigned char *payload = frame + KVF_WIRE_HEADER_BYTES;
    unsigned char *last = NULL;
    for (size_t i = 1; i < payload_bytes; i++) {
        last = payload[i - 1] == 'n' && payload[i] == 0 ? &payload[i] : last;
    }
    cr_assert_neq(last, NULL);
    *last = 'n';
    uint32_t peer;
    cr_assert_eq(kvf_core_peer_accept(core, p->now_ns, payload, payload_bytes, &peer),
                 -KVF_E_PROTOCOL);
    *last = 0;
    cr_assert_eq(kvf_core_peer_accept(core, p->now_ns, payload, payload_bytes, &peer), 0);
    pair_free(p);
}

/* The next attempt would end as this one: the room does not wait for connect_ns. */
Test(corner_more, a_source_of_another_wire_version_is_refused_at_once)
{
    struct pair *p = hostile_world(KVF_PLACEMENT_POSTED);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 0, 4);
    pair_settle(p);
    struct hostile h = {.p = p, .side = PAIR_SOURCE, .c = pair_conn(p, 0, 1)};
    unsigned char frame[256];
    struct kvf_wire_hello m = hostile_hello(1);
    int bytes = kvf_wire_put_hello(frame, sizeof frame, 0, &m);
    frame[4]++; /* version_major */
    uint64_t since_ns = p->now_ns;
    hostile_send(&h, frame, bytes);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_PEER_REFUSED);
    cr_assert_lt(p->now_ns - since_ns, p->config.connect_ns);
    hostile_finish(p);
}

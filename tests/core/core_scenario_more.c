/* Scenarios taken from public reports, by their number: the ones that need traffic in both directions. */
#include <criterion/criterion.h>

#include <errno.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

/* One request with an inbound and an outbound transfer, both in flight, aborted. Their ends come in each of
 * the three orders; each room tells its engine once, and pages come back once, after its own end. */
Test(scenario, a9_a_request_that_sends_and_receives_ends_once_on_each_side)
{
    for (uint32_t order = 0; order < 3; order++) {
        struct pair *p = pair_new(&(struct pair_options){.placement = KVF_PLACEMENT_POSTED});
        pair_warm(p, 0, 1);
        pair_warm(p, 1, 0);
        struct pair_room *in = pair_sink(p, 0, 1, 7, 0, 16);
        struct pair_room *in_source = pair_source(p, 1, 7);
        struct pair_room *out = pair_source(p, 0, 8);
        struct pair_room *out_sink = pair_sink(p, 1, 0, 8, 0, 16);
        pair_settle(p);
        pair_link(p, 0, 1)->hold_deliver = 1;
        pair_link(p, 1, 0)->hold_hand =
            1; /* the kernel takes no bytes: source pages are read yet */
        (void)pair_submit(in_source, 0, 64, 16, true);
        (void)pair_submit(out, 0, 128, 16, true);
        pair_settle(p);
        pair_abort(in);
        pair_abort(out);
        pair_settle(p);
        pair_expect_held(in);
        pair_expect_held(out);
        if (order != 1) {
            pair_link(p, 0, 1)->hold_deliver = 0;
        }
        if (order != 0) {
            pair_link(p, 1, 0)->hold_hand = 0;
        }
        pair_settle(p);
        cr_assert_eq(pair_is_drained(in), order != 1, "order %u", order);
        cr_assert_eq(pair_is_drained(out), order != 0, "order %u", order);
        pair_link(p, 0, 1)->hold_deliver = 0;
        pair_link(p, 1, 0)->hold_hand = 0;
        pair_settle(p);
        cr_assert_eq(in->drained_count, 1);
        cr_assert_eq(out->drained_count, 1);
        cr_assert(pair_is_drained(in_source) && pair_is_drained(out_sink));
        pair_finish(p);
    }
}

/* It takes connections and reads nothing. Ten thousand rooms are opened towards it and aborted: what waits
 * for it stays bounded, rooms with another peer are served without a moment's wait, and the bound ends it. */
Test(scenario, b8_a_peer_that_never_reads_fills_nothing_and_holds_up_nobody)
{
    struct pair *p = pair_new(&(struct pair_options){
        .daemons = 3, .placement = KVF_PLACEMENT_POSTED, .lane_rooms = 8});
    pair_warm(p, 0, 1);
    pair_warm(p, 0, 2);
    pair_link(p, 0, 1)->hold_write[PAIR_SINK] = true;
    uint64_t started_ns = p->now_ns;
    for (uint32_t i = 0; i < 10000; i++) {
        struct pair_room *sink = pair_sink(p, 0, 1, 1000 + i, 0, 4);
        pair_abort(sink);
        cr_assert(pair_is_drained(sink)); /* no byte of its grant had left */
        cr_assert_leq(pair_gauge(p, 0, KVF_GAUGE_GRANTS_OUT), p->limits.grants_max);
        if (i % 500 == 0) {
            pair_warm(p, 0, 2);
        }
    }
    cr_assert_eq(p->now_ns, started_ns); /* nobody waited */
    struct pair_room *stuck = pair_sink(p, 0, 1, 7, 0, 4);
    pair_advance(p, 1300 * PAIR_MS); /* its silence ends the connection */
    cr_assert_geq(pair_count(p, 0, KVF_COUNT_PEERS_LOST), 1);
    pair_abort(stuck);
    cr_assert(pair_is_drained(stuck));
    pair_warm(p, 0, 2);
    pair_link(p, 0, 1)->hold_write[PAIR_SINK] = false;
    pair_advance(p, 4000 * PAIR_MS);
    pair_finish(p);
}

/* Both daemons have thousands of aborts to tell the other, through sockets that take nothing for a while,
 * and no engine polls: reading never waits for writing, so all are answered. */
Test(scenario, b14_two_daemons_that_abort_at_each_other_through_full_sockets_both_go_on)
{
    struct pair *p = pair_new(&(struct pair_options){
        .placement = KVF_PLACEMENT_POSTED, .lane_rooms = 32, .parked_max = 64});
    pair_warm(p, 0, 1);
    pair_warm(p, 1, 0);
    enum { ROOMS = 24 };
    for (uint32_t round = 0; round < 100; round++) {
        struct pair_room *rooms[2][ROOMS];
        for (uint32_t i = 0; i < ROOMS; i++) {
            uint64_t key = 1000 + round * 2 * ROOMS + 2 * i;
            rooms[0][i] = pair_sink(p, 0, 1, key, 4 * i, 4);
            rooms[1][i] = pair_sink(p, 1, 0, key + 1, 4 * i, 4);
        }
        pair_settle(p); /* granted, and parked at the other side */
        for (uint32_t d = 0; d < 2; d++) {
            pair_link(p, d, 1 - d)->hold_write[PAIR_SINK] = true;
            pair_link(p, d, 1 - d)->hold_write[PAIR_SOURCE] = true;
        }
        for (uint32_t i = 0; i < ROOMS; i++) {
            pair_abort(rooms[0][i]);
            pair_abort(rooms[1][i]);
        }
        pair_settle(p);
        for (uint32_t d = 0; d < 2; d++) { /* only one direction takes bytes, then the other */
            uint32_t first = round % 2 == 0 ? d : 1 - d;
            pair_link(p, first, 1 - first)->hold_write[PAIR_SINK] = false;
            pair_settle(p);
            pair_link(p, first, 1 - first)->hold_write[PAIR_SOURCE] = false;
            pair_settle(p);
        }
        for (uint32_t i = 0; i < ROOMS; i++) {
            for (uint32_t d = 0; d < 2; d++) {
                pair_expect(rooms[d][i], KVF_OUTCOME_FAILED, pair_declined(p), KVF_E_ABORTED);
            }
        }
    }
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES) + pair_count(p, 1, KVF_COUNT_FENCES), 0);
    pair_finish(p);
}

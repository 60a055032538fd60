/* What a transfer does when nothing fails. */
#include <criterion/criterion.h>

#include "tests/core/pair.h"

static const uint8_t placements[] = {KVF_PLACEMENT_CHECKED, KVF_PLACEMENT_POSTED};

static void whole_transfer(uint8_t placement)
{
    struct pair *p = pair_new(&(struct pair_options){.placement = placement});
    struct pair_room *source = pair_source(p, 1, 7);
    struct pair_room *sink = pair_sink(p, 0, 1, 7, 40, 12);
    cr_assert_eq(pair_poll(sink), KVF_STATE_BOOTSTRAPPING);
    pair_settle(p);
    cr_assert_eq(pair_poll(sink), KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(pair_poll(source), KVF_STATE_WAITING_FOR_INPUT);
    cr_assert_eq(pair_submit(source, 0, 100, 12, true), 0);
    cr_assert_eq(pair_poll(source), KVF_STATE_TRANSFERRING);
    pair_settle(p);
    pair_expect(sink, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    cr_assert_eq(sink->view.placed_bytes, PAIR_BYTES(12));
    cr_assert_eq(sink->view.total_bytes, PAIR_BYTES(12));
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_MARKERS_END), 1);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_GRANTS_SENT), 1);
    pair_finish(p);
}

Test(core_plain, one_transfer_lands_whole_and_both_rooms_end)
{
    for (size_t i = 0; i < 2; i++) {
        whole_transfer(placements[i]);
    }
}

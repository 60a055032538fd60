/* Lanes that break where nobody listens. */
#include <criterion/criterion.h>

#include "ring/codes.h"
#include "tests/core/pair.h"

/* A queue pair breaks at the source while nothing is under way: the sink hears nothing of it, as of a stream whose
 * reset was lost. The first room learns of it, and gets another grant over the next lane. */
Test(core_lane, one_that_broke_at_an_idle_source_is_replaced)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 1});
    pair_warm(p, 0, 1);
    pair_link(p, 0, 1)->hold_reset = 1;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
    pair_settle(p);

    struct pair_room *from = pair_source(p, 1, 7);
    struct pair_room *to = pair_sink(p, 0, 1, 7, 0, 2);
    (void)pair_submit(from, 0, 8, 2, true);
    pair_settle(p);
    cr_assert_eq(pair_phase(to), KVF_PHASE_OPEN);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_FENCES), 1);

    pair_link(p, 0, 1)->hold_reset = 0;
    pair_advance(p, 100 * PAIR_MS);
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(from, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    cr_assert_eq(pair_count(p, 0, KVF_COUNT_REGRANTS), 1);
    pair_warm(p, 0, 1);
    pair_finish(p);
}

/* Of several lanes only the broken one goes: rooms of the other go on. */
Test(core_lane, a_declined_grant_fences_no_healthy_lane)
{
    struct pair *p = pair_new(&(struct pair_options){.lanes = 2});
    pair_warm(p, 0, 1);
    struct pair_stream *healthy = pair_stream(p, 0, 1, 1);
    uint32_t epoch = healthy->epoch;
    pair_link(p, 0, 1)->hold_reset = 1;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), PAIR_SOURCE);
    pair_settle(p);

    struct pair_room *from = pair_source(p, 1, 7); /* granted over both lanes */
    struct pair_room *to = pair_sink(p, 0, 1, 7, 0, 2);
    (void)pair_submit(from, 0, 8, 2, true);
    pair_settle(p);
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0); /* at once, over the other one */

    pair_link(p, 0, 1)->hold_reset = 0;
    pair_advance(p, 100 * PAIR_MS);
    pair_warm(p, 0, 1);
    cr_assert_eq(pair_stream(p, 0, 1, 1)->epoch, epoch);
    pair_finish(p);
}

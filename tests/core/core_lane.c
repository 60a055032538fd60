/* Lanes that break where nobody listens. */
#include <criterion/criterion.h>

#include "ring/codes.h"
#include "sidecar/core/internal.h"
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

static struct pair_stream *sink_end(struct pair *p)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        if (s->is_used && s->is_open[PAIR_SINK] && s->daemon[PAIR_SINK] == 0) {
            return s;
        }
    }
    return NULL;
}

/* How often a lane is tried within that time, if each attempt fails as soon as it is made. */
static uint32_t attempts_within(struct pair *p, uint32_t ms)
{
    uint32_t attempts = 0;
    for (uint32_t i = 0; i < ms; i++) {
        struct pair_stream *s = sink_end(p);
        if (s != NULL) {
            attempts++;
            pair_stream_lose(p, s, PAIR_SINK);
        }
        pair_settle(p);
        pair_advance(p, PAIR_MS);
    }
    return attempts;
}

/* Each attempt costs both sides a queue pair, and a peer that cannot be joined may stay so for hours. */
Test(core_lane, one_that_never_comes_up_is_tried_ever_more_rarely_until_it_does)
{
    struct pair *p = pair_new(
        &(struct pair_options){.daemons = 2, .lanes = 1, .rails = 1, .are_queue_pairs = true});
    p->daemons[0].hold_ready = true;
    struct pair_room *from = pair_source(p, 1, 7);
    struct pair_room *to = pair_sink(p, 0, 1, 7, 0, 2);
    (void)pair_submit(from, 0, 8, 2, true);
    pair_settle(p);
    uint32_t first =
        attempts_within(p, 320); /* 20, 40, 80, 160 ms, and up to half as much more */
    cr_assert_geq(first, 3);
    cr_assert_leq(first, 5);
    uint32_t then = attempts_within(p, 2000);
    cr_assert_geq(then, 2, "without end: %u", then);
    cr_assert_leq(then, 6, "%u", then);

    p->daemons[0].hold_ready = false;
    pair_advance(p, 1000 * PAIR_MS); /* the longest pause there is */
    pair_expect(to, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(from, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);

    /* One that was up is back soon. */
    pair_stream_lose(p, sink_end(p), PAIR_SINK);
    pair_settle(p);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 0);
    pair_advance(p, 40 * PAIR_MS);
    cr_assert_eq(pair_gauge(p, 0, KVF_GAUGE_LANES_UP), 1);
    pair_finish(p);
}

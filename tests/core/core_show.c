/* What operators see of peers and lanes without asking. */
#include <criterion/criterion.h>

#include "sidecar/core/internal.h"
#include "sidecar/core/show.h"
#include "tests/core/pair.h"

static struct kvf_stats_rows_shm rows;

static void show(struct pair *p, uint32_t daemon)
{
    kvf_core_show(p->daemons[daemon].core, &rows);
}

Test(core_show, nothing_is_shown_before_anybody_was_spoken_to)
{
    struct pair *p = pair_new(&(struct pair_options){0});
    rows.peer_count = 9;
    rows.lane_count = 9;
    show(p, 0);
    cr_assert_eq(rows.peer_count, 0);
    cr_assert_eq(rows.lane_count, 0);
    pair_finish(p);
}

Test(core_show, both_sides_of_a_connection_see_its_lanes_and_the_bytes_of_each)
{
    struct pair *p = pair_new(
        &(struct pair_options){.daemons = 2, .lanes = 2, .placement = KVF_PLACEMENT_POSTED});
    struct pair_room *source = pair_source(p, 1, 5);
    struct pair_room *sink = pair_sink(p, 0, 1, 5, 0, 16);
    cr_assert_eq(pair_submit(source, 0, 0, 16, true), 0);
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    uint64_t placed = pair_count(p, 0, KVF_COUNT_BYTES_PLACED);
    uint64_t at_sink[2];
    cr_assert_gt(placed, 0);
    for (uint32_t daemon = 0; daemon < 2; daemon++) {
        show(p, daemon);
        cr_assert_eq(rows.peer_count, 1);
        cr_assert_eq(rows.peers[0].state, KVF_OPERATE_AT_UP);
        cr_assert_eq(rows.peers[0].is_sink, daemon);
        cr_assert_eq(rows.peers[0].peer_id, p->daemons[1 - daemon].supervisor_id);
        cr_assert_eq(rows.peers[0].addr.family != 0, daemon == 0,
                     "who connected has no address");
        cr_assert_eq(rows.peers[0].lanes_up, 2);
        cr_assert_eq(rows.peers[0].grants, 0);
        cr_assert_eq(rows.lane_count, 2);
        cr_assert_eq(rows.left_out, 0);
        uint64_t moved = 0;
        for (uint32_t i = 0; i < 2; i++) {
            cr_assert_eq(rows.lanes[i].peer, 0);
            cr_assert_eq(rows.lanes[i].lane, i);
            cr_assert_eq(rows.lanes[i].state, KVF_STATS_LANE_UP);
            cr_assert_eq(rows.lanes[i].posted_bytes, 0);
            cr_assert(daemon == 0 || rows.lanes[i].moved_bytes == at_sink[i], "lane %u", i);
            at_sink[i] = rows.lanes[i].moved_bytes;
            cr_assert_gt(rows.lanes[i].window_bytes, 0);
            moved += rows.lanes[i].moved_bytes;
        }
        cr_assert_eq(moved, placed);
    }
    pair_finish(p);
}

Test(core_show, a_lane_that_breaks_is_seen_fencing_and_then_opened_once_more)
{
    struct pair *p = pair_new(&(struct pair_options){.daemons = 2});
    pair_warm(p, 0, 1);
    show(p, 0);
    uint32_t opened = rows.lanes[0].opened;
    struct pair_room *sink = pair_sink(p, 0, 1, 5, 0, 4);
    pair_settle(p);
    show(p, 0);
    cr_assert_eq(rows.lanes[0].credits_out, 1);
    cr_assert_leq(rows.lanes[0].credits_out, rows.lanes[0].credits_max);
    cr_assert_eq(rows.peers[0].grants, 1);
    p->daemons[0].hold_fences = true;
    pair_stream_lose(p, pair_stream(p, 0, 1, 0), 0);
    pair_drain(p, 0);
    show(p, 0);
    cr_assert_eq(rows.lanes[0].state, KVF_STATS_LANE_FENCING);
    cr_assert_eq(rows.lanes[0].fence_since_ns, p->now_ns);
    cr_assert_eq(rows.peers[0].lanes_up, 0);
    p->daemons[0].hold_fences = false;
    pair_fences_return(p, 0);
    show(p, 0);
    cr_assert_eq(rows.lanes[0].fence_since_ns, 0);
    pair_advance(p, 100 * PAIR_MS);
    show(p, 0);
    cr_assert_eq(rows.lanes[0].state, KVF_STATS_LANE_UP);
    cr_assert_eq(rows.lanes[0].opened, opened + 1);
    pair_abort(sink);
    pair_settle(p);
    cr_assert(pair_is_drained(sink));
    pair_finish(p);
}

/* More lanes than rows: what finds none is counted. The tables are filled by hand, since nobody has so many. */
Test(core_show, lanes_beyond_the_rows_are_counted)
{
    struct pair *p = pair_new(&(struct pair_options){.peers_max = 32});
    struct kvf_core *core = p->daemons[0].core;
    uint32_t peers = core->limits.peers_max;
    cr_assert_gt(peers * KVF_LANES_MAX, KVF_STATS_LANES_MAX);
    for (uint32_t i = 0; i < peers; i++) {
        core->peers[i].role = KVF_PEER_OUT;
        for (uint32_t k = 0; k < KVF_LANES_MAX; k++) {
            core->lanes[kvf_lane_id(i, k)].epoch = 1;
        }
    }
    show(p, 0);
    cr_assert_eq(rows.peer_count, peers);
    cr_assert_eq(rows.lane_count, KVF_STATS_LANES_MAX);
    cr_assert_eq(rows.left_out, peers * KVF_LANES_MAX - KVF_STATS_LANES_MAX);
    cr_assert_eq(rows.lanes[0].state, KVF_STATS_LANE_WAITING);
    pair_free(p);
}

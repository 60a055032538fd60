/* A sink that comes again in the place of a grant that lost a lane, or that leaves it, and says so at the wrong
 * moment, in the wrong name, or twice. Its place is its own: it costs no other sink anything, nobody posts again what
 * was served, and nothing is kept for it that it gave up. */
#include <criterion/criterion.h>

#include "sidecar/core/internal.h"
#include "tests/core/hostile.h"

#define KEY 9u
#define REGION 3u
#define PAGES 4u

/* Daemon 0 is the source, daemon 1 its hostile sink over two lanes, daemon 2 an honest one. */
struct scene {
    struct pair *p;
    struct hostile h;
    struct pair_room *source;
    struct pair_link *link;
};

static struct scene begin(uint32_t sink_count)
{
    struct scene s = {.p = hostile_world(KVF_PLACEMENT_POSTED)};
    int rc;
    s.source =
        pair_open_source(s.p, 0, &(struct pair_open){.key = KEY, .sink_count = sink_count});
    s.h = hostile_as_sink(s.p);
    s.link = pair_link(s.p, 1, 0);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_neq(pair_raw_lane(s.p, s.h.c, s.h.session, i, 1, &rc), NULL);
    }
    hostile_send_region(&s.h, REGION, 1, 64);
    pair_settle(s.p);
    return s;
}

/* Posts of lane 0 stay out: they are leases until it is let go. */
static struct scene begin_with_posts_out(uint32_t sink_count)
{
    struct scene s = begin(sink_count);
    s.link->hold_hand = 1;
    (void)pair_submit(s.source, 0, 0, PAGES, true);
    return s;
}

struct named {
    uint64_t nonce;
    uint64_t past_nonce;
    uint64_t label;
    uint64_t key;
    uint32_t lane;
    bool is_half; /* its first fragment alone */
};

static void grant_named(struct scene *s, const struct named *n)
{
    struct kvf_wire_grant g = hostile_grant(n->nonce, n->key);
    struct kvf_wire_run run = {.region = REGION, .first = 0, .count = n->is_half ? 1 : PAGES};
    g.label = n->label;
    g.past_nonce = n->past_nonce;
    g.lane_mask = 1u << n->lane;
    g.lane_epochs[0] = n->lane == 0;
    g.lane_epochs[1] = n->lane == 1;
    g.total_runs = n->is_half ? 2 : 1;
    hostile_send_grant(&s->h, &g, &run);
    cr_assert(s->h.c->is_open[PAIR_SOURCE]);
    pair_settle(s->p);
}

static void grant(struct scene *s, uint64_t nonce, uint64_t past_nonce, uint32_t lane)
{
    grant_named(
        s,
        &(struct named){
            .nonce = nonce, .past_nonce = past_nonce, .label = KEY, .key = KEY, .lane = lane});
}

static void end(struct scene *s, uint64_t nonce, uint32_t reason)
{
    unsigned char frame[256];
    struct kvf_wire_abort m = {.nonce = nonce, .label = KEY, .key = KEY, .reason = reason};
    hostile_send(&s->h, frame, kvf_wire_put_abort(frame, sizeof frame, s->h.seq, &m));
    cr_assert(s->h.c->is_open[PAIR_SOURCE]);
    pair_settle(s->p);
}

/* What this GRANT was answered: 0 for ACCEPT, else the reason of the DECLINE. Frames before it are gone then. */
static uint32_t answer_of(struct scene *s, uint64_t nonce)
{
    const unsigned char *payload;
    size_t bytes;
    uint8_t type;
    while ((type = pair_raw_read(s->p, s->h.c, PAIR_SINK, &payload, &bytes)) != 0) {
        struct kvf_wire_accept accept;
        struct kvf_wire_decline decline;
        if (type == KVF_WIRE_ACCEPT) {
            cr_assert_eq(kvf_wire_get_accept(payload, bytes, &accept), 0);
            if (accept.nonce == nonce) {
                return 0;
            }
        } else if (type == KVF_WIRE_DECLINE) {
            cr_assert_eq(kvf_wire_get_decline(payload, bytes, &decline), 0);
            if (decline.nonce == nonce) {
                return decline.reason;
            }
        }
    }
    cr_assert_fail("GRANT %llu has no answer", (unsigned long long)nonce);
    return UINT32_MAX;
}

static struct kvf_room_rec *room_of(const struct scene *s)
{
    return &s->p->daemons[0].core->rooms[kvf_room_idx(s->p->daemons[0].core, s->source->client,
                                                      s->source->slot)];
}

static void finish(struct scene *s)
{
    pair_open_gates(s->p);
    pair_settle(s->p);
    if (!pair_is_drained(s->source)) {
        pair_abort(s->source);
    }
    hostile_finish(s->p);
}

/* ---- in whose place ------------------------------------------------------------------------------------- */

enum past {
    UNKNOWN,
    NOT_LOST,
    GIVEN_UP,
    REPLACED,
    OTHER_LABEL,
    OTHER_KEY,
    ROOM_CLOSING,
    ROOM_GONE,
    PASTS
};

static void make_past(struct scene *s, enum past past)
{
    if (past == ROOM_GONE) { /* a DRAIN is out, no lease: the room does not wait for it */
        s->link->hold_hand = 1;
    }
    grant(s, 1, 0, 0);
    cr_assert_eq(answer_of(s, 1), 0);
    if (past == NOT_LOST) {
        return;
    }
    end(s, 1, KVF_E_LANE_LOST);
    if (past == GIVEN_UP) {
        end(s, 1, KVF_E_ABORTED);
    } else if (past == REPLACED) {
        grant(s, 2, 1, 1);
        cr_assert_eq(answer_of(s, 2), 0);
    } else if (past >= ROOM_CLOSING) {
        pair_abort(s->source);
    }
}

Test(core_again, a_grant_in_the_place_of_one_that_has_none_is_declined_and_nothing_is_posted)
{
    for (int past = 0; past < PASTS; past++) {
        struct scene s = past == ROOM_GONE ? begin(2) : begin_with_posts_out(2);
        make_past(&s, (enum past)past);
        cr_assert_eq(pair_phase(s.source),
                     past == ROOM_CLOSING ? KVF_PHASE_CLOSING
                     : past == ROOM_GONE  ? KVF_PHASE_DRAINED
                                          : KVF_PHASE_OPEN,
                     "case %d", past);
        uint64_t posts = pair_count(s.p, 0, KVF_COUNT_POSTS);
        uint32_t matched = room_of(&s)->grant_count;
        uint32_t lost = room_of(&s)->lost_count;
        grant_named(&s, &(struct named){.nonce = 9,
                                        .past_nonce = past == UNKNOWN ? 77 : 1,
                                        .label = past == OTHER_LABEL ? KEY + 1 : KEY,
                                        .key = past == OTHER_KEY ? KEY + 1 : KEY,
                                        .lane = 1});
        cr_assert_eq(answer_of(&s, 9), KVF_E_PEER_ROOM_GONE, "case %d", past);
        cr_assert_eq(pair_count(s.p, 0, KVF_COUNT_POSTS), posts, "case %d", past);
        cr_assert_eq(room_of(&s)->grant_count, matched, "case %d", past);
        cr_assert_eq(room_of(&s)->lost_count, lost, "case %d", past);
        finish(&s);
    }
}

/* It may lose its lanes as often as it likes, but not keep the pages by it. */
Test(core_again, a_sink_that_comes_again_without_end_is_ended_by_the_sources_own_bound)
{
    struct scene s = begin(1);
    for (uint64_t nonce = 1; nonce <= KVF_SOURCE_LOSSES_MAX + 1u; nonce++) {
        grant(&s, nonce, nonce - 1, 0);
        cr_assert_eq(answer_of(&s, nonce), 0);
        cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN, "grant %u", (unsigned)nonce);
        end(&s, nonce, KVF_E_LANE_LOST);
    }
    pair_expect(s.source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_LANE_LOST);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 0);
    finish(&s);
}

/* ---- that it leaves -------------------------------------------------------------------------------------- */

Test(core_again, an_abort_of_a_grant_that_another_one_replaced_ends_nothing)
{
    struct scene s = begin_with_posts_out(1);
    make_past(&s, REPLACED);
    end(&s, 1, KVF_E_ABORTED);
    end(&s, 1, KVF_E_LANE_LOST);
    cr_assert_eq(room_of(&s)->lost_count, 0);
    s.link->hold_hand = 0;
    pair_settle(s.p);
    pair_expect(s.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    finish(&s);
}

Test(core_again, a_sink_that_gives_up_twice_gives_up_one_place)
{
    struct scene s = begin_with_posts_out(2);
    make_past(&s, GIVEN_UP);
    cr_assert_eq(room_of(&s)->lost_count, 0);
    end(&s, 1, KVF_E_ABORTED);
    cr_assert_eq(room_of(&s)->lost_count, 0);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
    s.link->hold_hand = 0;
    pair_settle(s.p);
    cr_assert_eq(room_of(&s)->sinks_ended, 1);
    struct pair_room *other = pair_sink(s.p, 2, 0, KEY, 0, PAGES);
    pair_settle(s.p);
    pair_expect(other, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(s.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    finish(&s);
}

/* Its END was acknowledged after it had said that the lane is lost: it counts as served by nobody's word. */
Test(core_again,
     a_sink_that_lost_its_lane_and_gave_up_was_not_served_though_its_end_went_through)
{
    struct scene s = begin_with_posts_out(2);
    make_past(&s, NOT_LOST);
    end(&s, 1, KVF_E_LANE_LOST);
    s.link->hold_hand = 0;
    pair_settle(s.p);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
    end(&s, 1, KVF_E_ABORTED);
    cr_assert_eq(room_of(&s)->sinks_ended, 1);
    cr_assert_eq(room_of(&s)->sinks_ok, 0);
    s.link->hold_post = 3;
    grant(&s, 2, 0, 1);
    cr_assert_eq(answer_of(&s, 2), 0);
    end(&s, 2, KVF_E_ABORTED);
    s.link->hold_post = 0;
    pair_settle(s.p);
    pair_expect(s.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_PEER_ABORTED);
    finish(&s);
}

/* ---- in the middle of its next GRANT ---------------------------------------------------------------------- */

static void half_of(struct scene *s, uint64_t past_nonce)
{
    grant_named(s, &(struct named){.nonce = 5,
                                   .past_nonce = past_nonce,
                                   .label = KEY,
                                   .key = KEY,
                                   .lane = 1,
                                   .is_half = true});
}

Test(core_again, a_sink_that_ends_in_the_middle_of_its_next_grant_gives_its_place_up)
{
    struct scene s = begin(1);
    make_past(&s, NOT_LOST);
    end(&s, 1, KVF_E_LANE_LOST);
    half_of(&s, 1);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
    end(&s, 5, KVF_E_ABORTED);
    cr_assert_eq(answer_of(&s, 5), KVF_E_PEER_ABORTED);
    pair_expect(s.source, KVF_OUTCOME_FAILED, KVF_PROOF_NEVER_POSTED, KVF_E_LANE_LOST);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 0);
    finish(&s);
}

Test(core_again, a_sink_that_loses_a_lane_in_the_middle_of_its_next_grant_keeps_its_place)
{
    struct scene s = begin(1);
    make_past(&s, NOT_LOST);
    end(&s, 1, KVF_E_LANE_LOST);
    half_of(&s, 1);
    end(&s, 5, KVF_E_LANE_LOST);
    cr_assert_eq(answer_of(&s, 5), KVF_E_LANE_LOST);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
    grant(&s, 6, 1, 1);
    cr_assert_eq(answer_of(&s, 6), 0);
    (void)pair_submit(s.source, 0, 0, PAGES, true);
    pair_settle(s.p);
    pair_expect(s.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    finish(&s);
}

/* Half a GRANT that names what it never had ends neither the room of that label and key nor what it names. */
Test(core_again, half_a_grant_in_a_place_that_is_not_there_ends_nothing_with_it)
{
    struct scene s = begin(1);
    grant_named(&s, &(struct named){.nonce = 3, .label = KEY + 1, .key = KEY + 1, .lane = 0});
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_PARKED), 1);
    for (uint32_t i = 0; i < 2; i++) {
        half_of(&s, i == 0 ? 77 : 3); /* nobody's, and one that waits for its room */
        end(&s, 5, KVF_E_ABORTED);
        cr_assert_eq(answer_of(&s, 5), KVF_E_PEER_ABORTED);
        cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
        cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_PARKED), 1);
    }
    /* The one that waited is none the worse for it: its own source still tells it of its end. */
    struct pair_room *late =
        pair_open_source(s.p, 0, &(struct pair_open){.key = KEY + 1, .sink_count = 1});
    pair_settle(s.p);
    cr_assert_eq(answer_of(&s, 3), 0);
    pair_abort(late);
    pair_settle(s.p);
    cr_assert_eq(pair_frames_of(s.h.c, PAIR_SINK, KVF_WIRE_ENDED), 1);
    finish(&s);
}

/* ---- that it lost a lane, and has all --------------------------------------------------------------------- */

/* Served, and its ACCEPT waits for the socket, so the grant is still known. */
static struct scene served_with_an_answer_owed(void)
{
    struct scene s = begin(2);
    s.link->hold_write[PAIR_SOURCE] = true;
    (void)pair_submit(s.source, 0, 0, PAGES, true);
    grant(&s, 1, 0, 0);
    cr_assert_eq(room_of(&s)->sinks_ok, 1);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 1);
    return s;
}

Test(core_again, a_sink_that_has_all_has_no_lane_to_lose)
{
    struct scene s = served_with_an_answer_owed();
    end(&s, 1, KVF_E_LANE_LOST);
    cr_assert_eq(room_of(&s)->lost_count, 0);
    s.link->hold_write[PAIR_SOURCE] = false;
    pair_settle(s.p);
    cr_assert_eq(answer_of(&s, 1), 0);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 0);
    uint64_t posts = pair_count(s.p, 0, KVF_COUNT_POSTS);
    grant(&s, 2, 1, 1);
    cr_assert_eq(answer_of(&s, 2), KVF_E_PEER_ROOM_GONE);
    cr_assert_eq(pair_count(s.p, 0, KVF_COUNT_POSTS), posts);
    struct pair_room *other = pair_sink(s.p, 2, 0, KEY, 0, PAGES);
    pair_settle(s.p);
    pair_expect(other, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(s.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    finish(&s);
}

Test(core_again,
     a_lane_lost_behind_the_end_of_a_room_that_closes_for_another_sink_changes_nothing)
{
    struct scene s = served_with_an_answer_owed();
    s.link->hold_hand = 2;
    grant(&s, 2, 0, 1);
    pair_abort(s.source);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_CLOSING);
    end(&s, 1, KVF_E_LANE_LOST);
    cr_assert_eq(room_of(&s)->lost_count, 0);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_CLOSING);
    pair_open_gates(s.p);
    pair_settle(s.p);
    pair_expect(s.source, KVF_OUTCOME_FAILED, KVF_PROOF_SOURCE_IDLE, KVF_E_ABORTED);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 0);
    finish(&s);
}

/* ---- its connection ---------------------------------------------------------------------------------------- */

/* The grant before is out on a lane that hangs, the one in its place has served the sink: what the connection's end
 * takes with it is nobody's place any more. */
Test(core_again,
     a_connection_lost_behind_a_sink_that_was_served_again_costs_the_other_sinks_nothing)
{
    struct scene s = begin_with_posts_out(2);
    make_past(&s, REPLACED);
    cr_assert_eq(room_of(&s)->sinks_ok, 1);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 1);
    pair_conn_cut(s.p, s.h.c);
    pair_settle(s.p);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
    cr_assert_eq(pair_gauge(s.p, 0, KVF_GAUGE_GRANTS_IN), 0);
    struct pair_room *other = pair_sink(s.p, 2, 0, KEY, 0, PAGES);
    pair_settle(s.p);
    pair_expect(other, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(s.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    finish(&s);
}

Test(core_again, a_connection_lost_behind_a_sink_that_gave_up_costs_the_other_sinks_nothing)
{
    struct scene s = begin_with_posts_out(2);
    make_past(&s, GIVEN_UP);
    pair_conn_cut(s.p, s.h.c);
    pair_settle(s.p);
    cr_assert_eq(pair_phase(s.source), KVF_PHASE_OPEN);
    struct pair_room *other = pair_sink(s.p, 2, 0, KEY, 0, PAGES);
    pair_settle(s.p);
    pair_expect(other, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED, 0);
    pair_expect(s.source, KVF_OUTCOME_SUCCESS, KVF_PROOF_SOURCE_IDLE, 0);
    finish(&s);
}

/* T4 to T7: where bytes go, what one lane or client may cost the others; and that all bytes arrive, whatever
 * the geometry. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/contract/suite.h"

static const uint32_t kv_planes[] = {4096};

static void skip_if(const char *reason)
{
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- T4 ------------------------------------------------------------------------------------------------ */

/* The answer changes in the middle of a frame, as when an engine aborts between two receives. Once it
 * says scratch, the pages belong to somebody else: canaries go in, and have to stay. */
void contract_t4_a_closed_grant_gets_not_one_byte_more(const struct rig_kind *kind)
{
    skip_if(kind->asks_no_place);
    for (uint64_t limit = 1; limit < 200000; limit = limit * 3 + 1) {
        struct rig_options options = rig_defaults();
        options.config.turn_bytes_max = 3000; /* several turns for one frame */
        options.squeeze_bytes = kind->has_streams ? 1500 : 0;
        options.seed = limit;
        struct rig *rig = rig_create(kind, &options);
        rig_region(rig, 0, 16, 16, kv_planes, 1, 0);
        rig_grant(rig, 1, 0, 0, 8);
        rig_grant(rig, 2, 0, 8, 8);
        cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
        rig->sink.grants[1].scratch_after_bytes = limit;
        rig_post(rig, 0, 9, 1, 0, 0, 0, 8);
        rig_mark(rig, 0, 9, 1, KVF_LANE_END);
        rig_post(rig, 0, 10, 2, 0, 8, 0, 8);
        rig_mark(rig, 0, 10, 2, KVF_LANE_END);
        while (rig->sink.grants[1].placed_bytes < limit) {
            rig_turn(rig, true);
        }
        uint64_t placed = rig->sink.grants[1].placed_bytes;
        cr_assert_lt(placed, 8u * 65536u, "still in the middle");
        rig_paint(rig, 0, 0, 8);
        cr_assert(rig_until(rig, rig_markers_seen, 2));
        cr_assert_eq(rig_touched_bytes(rig, 0, 0, 8), 0, "limit %lu", (unsigned long)limit);
        cr_assert_eq(rig->sink.grants[1].placed_bytes, placed);
        cr_assert_eq(rig->sink.grants[1].scratch_bytes, 8u * 65536u - placed);
        cr_assert_geq(rig->sink.grants[1].places_asked, rig->sink.grants[1].receives);
        cr_assert_eq(rig_wrong_bytes(rig, 0, 8, 8, 8), 0);
        rig_destroy(rig);
    }
}

void contract_t4_a_refused_place_ends_the_stream(const struct rig_kind *kind)
{
    skip_if(kind->asks_no_place);
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, 16, 16, kv_planes, 1, 0);
    rig_grant(rig, 1, 0, 0, 8);
    cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
    rig->sink.grants[1].mode = RIG_REFUSE;
    rig_post(rig, 0, 9, 1, 0, 0, 0, 8);
    cr_assert(rig_until(rig, rig_is_lost, 0));
    cr_assert_eq(rig_last(&rig->sink, RIG_LOST)->value, EPROTO);
    rig->sink.grants[1].mode = RIG_PAGES;
    rig_turns(rig, 20);
    cr_assert_eq(rig_touched_bytes(rig, 0, 0, 16), 0);
    cr_assert_eq(rig->sink.lost_count, 1, "told once");
    rig_destroy(rig);
}

/* ---- T5, T6 -------------------------------------------------------------------------------------------- */

void contract_t5_a_broken_lane_leaves_the_other_lanes_alone(const struct rig_kind *kind)
{
    if (!kind->has_streams) {
        cr_skip_test("no streams to cut");
    }
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, 256, 16, kv_planes, 1, 0);
    for (uint32_t lane = 0; lane < 3; lane++) {
        rig_grant(rig, 1 + lane, 0, 64 * lane, 64);
        cr_assert_eq(kind->lane_open(rig, lane, 5), 0);
        rig_post(rig, lane, lane, 1 + lane, 0, 64 * lane, 0, 64);
    }
    rig_turns(rig, 1);
    kind->lane_cut(rig, 1);
    for (uint32_t lane = 0; lane < 3; lane += 2) {
        rig_mark(rig, lane, lane, 1 + lane, KVF_LANE_END);
    }
    cr_assert(rig_until(rig, rig_markers_seen, 2));
    cr_assert(rig_until(rig, rig_is_lost, 0));
    cr_assert(rig_until(rig, rig_is_lost, 1));
    rig_turns(rig, 20);
    cr_assert_eq(rig->sink.lost_count, 1);
    cr_assert_eq(rig->source.lost_count, 1);
    cr_assert_eq(rig_last(&rig->sink, RIG_LOST)->lane, 1);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 64), 0);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 128, 128, 64), 0);
    cr_assert_not(kind->ops->can_post(rig->source.transport, 1));
    kind->ops->fence(rig->source.transport, 1, 5);
    kind->ops->fence(rig->sink.transport, 1, 5);
    cr_assert_eq(rig->source.completed_count, rig->source.posted_count);
    rig_destroy(rig);
}

static bool second_marker(struct rig *rig, uint64_t handle)
{
    const struct rig_event *event = rig_last(&rig->sink, RIG_MARKER);
    return event != NULL && event->handle == handle;
}

void contract_t6_a_stopped_reader_blocks_no_call_and_no_other_lane(const struct rig_kind *kind)
{
    skip_if(kind->never_stands);
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, 256, 16, kv_planes, 1, 0);
    rig_grant(rig, 1, 0, 0, 256);
    rig_grant(rig, 2, 0, 0, 256);
    cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
    rig->is_sink_stopped = true;
    double longest = 0;
    for (uint32_t i = 0; i < 1000 && kind->ops->can_post(rig->source.transport, 0); i++) {
        rig_post(rig, 0, 9, 1, 0, 0, 0, 64);
        double begin = seconds();
        rig_turn(rig, false);
        double took = seconds() - begin;
        longest = took > longest ? took : longest;
    }
    cr_assert_lt(rig->source.completed_count, rig->source.posted_count);
    cr_assert_lt(longest, 5.0, "a turn took %f s", longest);
    rig->is_sink_stopped = false;
    rig->sink.grants[1].mode = RIG_SCRATCH;
    cr_assert_eq(kind->lane_open(rig, 1, 5), 0);
    rig_post(rig, 1, 10, 2, 0, 0, 0, 64);
    rig_mark(rig, 1, 10, 2, KVF_LANE_END);
    cr_assert(rig_until(rig, second_marker, 2));
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, 64), 0);
    rig_destroy(rig);
}

/* ---- T7 ------------------------------------------------------------------------------------------------ */

void contract_t7_truncated_source_memory_is_an_error_and_no_signal(const struct rig_kind *kind)
{
    skip_if(kind->faults_never);
    for (uint32_t cut = 0; cut < 16; cut += 3) {
        struct rig_options options = rig_defaults();
        struct rig *rig = rig_create(kind, &options);
        rig_region(rig, 0, 16, 16, kv_planes, 1, 0);
        rig_region(rig, 1, 16, 16, kv_planes, 1, 0);
        rig_grant(rig, 1, 0, 0, 16);
        rig_grant(rig, 2, 1, 0, 16);
        cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
        cr_assert_eq(ftruncate(rig->source.regions[0].fd, cut * 16 * 4096), 0);
        uint32_t bad = rig_post(rig, 0, 9, 1, 0, 0, 0, 16);
        rig_mark(rig, 0, 9, 1, KVF_LANE_END);
        rig_post(rig, 0, 10, 2, 1, 0, 0, 16);
        rig_mark(rig, 0, 10, 2, KVF_LANE_END);
        cr_assert(rig_until(rig, rig_markers_seen, 2));
        cr_assert(rig_until(rig, rig_all_completed, 0));
        cr_assert_eq(rig->source.status[bad], -EFAULT);
        cr_assert_eq(rig->source.status[bad + 1], -ECANCELED);
        cr_assert_eq(rig->source.status[bad + 3], 0);
        cr_assert_eq(rig->source.read_fault_count, 1);
        cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 16), 0);
        cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 0);
        rig_destroy(rig);
    }
}

void contract_t7_truncated_sink_memory_is_an_error_and_no_signal(const struct rig_kind *kind)
{
    skip_if(kind->faults_never);
    for (uint32_t cut = 0; cut < 16; cut += 3) {
        struct rig_options options = rig_defaults();
        options.seed = cut;
        options.squeeze_bytes = cut % 2 && kind->has_streams ? 3000 : 0;
        struct rig *rig = rig_create(kind, &options);
        rig_region(rig, 0, 16, 16, kv_planes, 1, 0);
        rig_region(rig, 1, 16, 16, kv_planes, 1, 0);
        rig_grant(rig, 1, 0, 0, 16);
        rig_grant(rig, 2, 1, 0, 16);
        cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
        cr_assert_eq(ftruncate(rig->sink.regions[0].fd, cut * 16 * 4096), 0);
        rig_post(rig, 0, 9, 1, 0, 0, 0, 16);
        rig_mark(rig, 0, 9, 1, KVF_LANE_END);
        rig_post(rig, 0, 10, 2, 1, 0, 0, 16);
        rig_mark(rig, 0, 10, 2, KVF_LANE_END);
        cr_assert(rig_until(rig, rig_markers_seen, 2));
        cr_assert_geq(rig->sink.grants[1].faults, 1);
        cr_assert_eq(rig->sink.grants[2].faults, 0);
        cr_assert_eq(rig->sink.grants[1].placed_bytes + rig->sink.grants[1].scratch_bytes,
                     16u * 65536u);
        cr_assert_eq(rig_wrong_bytes(rig, 1, 0, 0, 16), 0);
        cr_assert_eq(rig->source.lost_count + rig->sink.lost_count, 0);
        rig_destroy(rig);
    }
}

void contract_t7_a_region_that_is_gone_is_an_error(const struct rig_kind *kind)
{
    skip_if(kind->faults_never);
    struct rig_options options = rig_defaults();
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, 16, 16, kv_planes, 1, 0);
    rig_region(rig, 1, 16, 16, kv_planes, 1, 0);
    rig_grant(rig, 1, 0, 0, 16);
    rig_grant(rig, 2, 1, 0, 16);
    cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
    uint32_t bad = rig_post(rig, 0, 9, 1, 0, 0, 0, 16);
    rig->source.regions[0].is_gone = true;
    rig->sink.regions[1].is_gone = true;
    uint32_t good = rig_post(rig, 0, 10, 2, 1, 0, 0, 16);
    rig_mark(rig, 0, 10, 2, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1));
    cr_assert_eq(rig->source.status[bad], -EFAULT);
    cr_assert_eq(rig->source.status[good], 0);
    cr_assert_eq(rig->sink.grants[2].scratch_bytes, 16u * 65536u);
    cr_assert_geq(rig->sink.grants[2].faults, 1);
    rig_destroy(rig);
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* A frame that was begun is a promise of so many bytes. They come from filler, never from the pages, and
 * whatever is behind them arrives whole. */
void contract_a_detached_frame_goes_on_from_filler_and_the_lane_stays_in_step(
    const struct rig_kind *kind)
{
    skip_if(kind->calls_none_back);
    for (uint64_t seed = 1; seed < 30; seed++) {
        struct rig_options options = rig_defaults();
        options.squeeze_bytes = kind->has_streams ? 4000 : 0;
        options.seed = seed;
        options.config.turn_bytes_max = 1000 + seed * 7919;
        struct rig *rig = rig_create(kind, &options);
        rig_region(rig, 0, 64, 16, kv_planes, 1, 0);
        rig_grant(rig, 1, 0, 0, 32);
        rig_grant(rig, 2, 0, 32, 32);
        cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
        rig_post(rig, 0, 9, 1, 0, 0, 0, 16);
        rig_post(rig, 0, 9, 1, 0, 16, 16, 16);
        rig_post(rig, 0, 10, 2, 0, 32, 0, 32);
        rig_mark(rig, 0, 9, 1, KVF_LANE_END);
        rig_mark(rig, 0, 10, 2, KVF_LANE_END);
        rig_turns(rig, (uint32_t)(rig_random(rig) % 40));
        kind->ops->detach(rig->source.transport, 0, 9);
        uint32_t still = rig->source.completed[1] == 1;
        cr_assert_eq(still, 1, "source pages are idle when detach returns");
        const struct rig_region *region = &rig->source.regions[0];
        for (uint32_t i = 0; i < 16; i++) { /* the next tenant of pages 0 to 31 */
            memset(region->region.base + region->planes[i].off, 0xee, 32 * 4096);
        }
        cr_assert(rig_until(rig, rig_markers_seen, 2));
        cr_assert_eq(rig_wrong_bytes(rig, 0, 32, 32, 32), 0, "seed %lu", (unsigned long)seed);
        bool was_cut = rig->source.status[3] != 0;
        const struct rig_region *sink = &rig->sink.regions[0];
        for (uint32_t i = 0; i < 16; i++) {
            const unsigned char *at = sink->region.base + sink->planes[i].off;
            for (uint32_t off = 0; off < 32 * 4096; off += 64) {
                unsigned char foreign[64];
                memset(foreign, 0xee, sizeof(foreign));
                cr_assert_neq(memcmp(at + off, foreign, sizeof(foreign)), 0,
                              "the next tenant's bytes went out");
            }
        }
        cr_assert(was_cut || rig_wrong_bytes(rig, 0, 0, 0, 32) == 0);
        rig_destroy(rig);
    }
}

static void move_all(const struct rig_kind *kind, uint32_t pages, uint32_t planes,
                     const uint32_t *plane_bytes, uint32_t n, uint32_t gap, uint32_t per_post,
                     uint32_t squeeze)
{
    struct rig_options options = rig_defaults();
    options.squeeze_bytes = kind->has_streams ? squeeze : 0;
    options.seed = pages + planes;
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, pages, planes, plane_bytes, n, gap);
    rig_grant(rig, 1, 0, 0, pages);
    cr_assert_eq(kind->lane_open(rig, 0, 5), 0);
    for (uint32_t page = 0; page < pages; page += per_post) {
        uint32_t count = pages - page < per_post ? pages - page : per_post;
        rig_post(rig, 0, 9, 1, 0, page, page, count);
    }
    rig_mark(rig, 0, 9, 1, KVF_LANE_END);
    cr_assert(rig_until(rig, rig_markers_seen, 1), "%u pages of %u planes of %u", pages, planes,
              plane_bytes[0]);
    cr_assert_eq(rig_wrong_bytes(rig, 0, 0, 0, pages), 0, "%u pages of %u planes of %u", pages,
                 planes, plane_bytes[0]);
    if (gap > 0) {
        /* What lies between the pages is nobody's to write. */
        const struct rig_region *sink = &rig->sink.regions[0];
        for (uint32_t i = 0; i < planes; i++) {
            for (uint32_t page = 0; page < pages; page++) {
                const unsigned char *at = sink->region.base + sink->planes[i].off +
                                          page * sink->planes[i].stride +
                                          sink->planes[i].page_bytes;
                for (uint32_t off = 0; off < gap; off++) {
                    cr_assert_eq(at[off], RIG_CANARY);
                }
            }
        }
    }
    rig_destroy(rig);
}

void contract_pages_of_every_odd_size_arrive_whole(const struct rig_kind *kind)
{
    static const uint32_t sizes[] = {1,    2,     3,    31,   32,   33,    63,
                                     64,   511,   512,  513,  1000, 4095,  4096,
                                     4097, 65535, 8191, 8193, 9999, 16384, 65537};
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        move_all(kind, 7, 3, &sizes[i], 1, 0, 7, 0);
        move_all(kind, 5, 2, &sizes[i], 1, 13, 2, 0);
        move_all(kind, 3, 2, &sizes[i], 1, 5, 1, 700);
    }
}

void contract_many_planes_and_many_pages_arrive_whole(const struct rig_kind *kind)
{
    static const uint32_t piece_4k[] = {4096};
    static const uint32_t mixed[] = {4096, 1, 513, 8192, 77};
    static const uint32_t large[] = {300000, 4096, 300000};
    static const uint32_t tiny[] = {8};
    move_all(kind, 9, 160, piece_4k, 1, 0, 1, 0); /* a page is more than one frame */
    move_all(kind, 9, 160, piece_4k, 1, 64, 3, 0);
    move_all(kind, 1000, 1, piece_4k, 1, 0, 1000, 0); /* many pages are one frame */
    move_all(kind, 1000, 1, piece_4k, 1, 32, 333, 0);
    move_all(kind, 40, 37, mixed, 5, 3, 7, 0);
    move_all(kind, 4, 5, large, 3, 0, 2, 0);      /* a plane is more than a frame should be */
    move_all(kind, 700, 100, tiny, 1, 8, 700, 0); /* a frame is more iovecs than a call takes */
    move_all(kind, 3, 512, mixed, 5, 1, 2, 0);
    move_all(kind, 4, 160, piece_4k, 1, 0, 4, 900);
    move_all(kind, 6, 37, mixed, 5, 3, 4, 64);
}

/* Many rooms on several lanes, random pieces, random turns: each page arrives where its room wanted it. */
void contract_scattered_posts_of_many_rooms_arrive_whole(const struct rig_kind *kind)
{
    struct rig_options options = rig_defaults();
    options.config.turn_bytes_max = 100000;
    struct rig *rig = rig_create(kind, &options);
    rig_region(rig, 0, 512, 16, kv_planes, 1, 0);
    for (uint32_t lane = 0; lane < 4; lane++) {
        cr_assert_eq(kind->lane_open(rig, lane, 5), 0);
    }
    /* Room r owns sink pages [16 r, 16 r + 16), filled from source page 16 (r * 7 % 32). */
    uint32_t next[32] = {0};
    uint32_t left = 32 * 16;
    for (uint32_t r = 0; r < 32; r++) {
        rig_grant(rig, 1 + r, 0, 16 * r, 16);
    }
    while (left > 0) {
        uint32_t r = (uint32_t)(rig_random(rig) % 32);
        uint32_t count = 1 + (uint32_t)(rig_random(rig) % 4);
        count = count > 16 - next[r] ? 16 - next[r] : count;
        if (count > 0) {
            rig_post(rig, r % 4, r, 1 + r, 0, 16 * (r * 7 % 32) + next[r], next[r], count);
            next[r] += count;
            left -= count;
            if (next[r] == 16) {
                rig_mark(rig, r % 4, r, 1 + r, KVF_LANE_END);
            }
        }
        rig_turn(rig, false);
    }
    cr_assert(rig_until(rig, rig_markers_seen, 32));
    for (uint32_t r = 0; r < 32; r++) {
        cr_assert_eq(rig_wrong_bytes(rig, 0, 16 * r, 16 * (r * 7 % 32), 16), 0);
    }
    rig_destroy(rig);
}

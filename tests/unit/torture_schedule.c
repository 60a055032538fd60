/* The schedule follows from trace, geometry and seed alone, and asks for what the experiment needs. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/torture/schedule.h"

#define COUNT 20000

static struct kvf_trace_row rows[1000];
static struct kvf_request requests[COUNT];

static struct kvf_schedule_config make_config(struct kvf_trace *trace)
{
    struct kvf_schedule_config config = {.seed = 1,
                                         .prefill_count = 2,
                                         .decode_count = 3,
                                         .pages_max = 40,
                                         .donor_pages_min = 16,
                                         .room_window_bytes = 1 << 20};
    cr_assert_eq(kvf_geometry_make("llama3-70b-tp8", 0, 0, &config.geometry), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        rows[i].input_tokens = 1 + i * 20;
        rows[i].output_tokens = i;
    }
    trace->rows = rows;
    trace->row_count = 1000;
    return config;
}

Test(schedule, same_seed_same_hash_and_another_seed_another)
{
    struct kvf_trace trace;
    struct kvf_schedule_config config = make_config(&trace);
    char hash[3][KVF_SHA256_HEX_BYTES];
    for (int i = 0; i < 3; i++) {
        config.seed = i == 2 ? 2 : 1;
        memset(requests, i, sizeof(requests));
        kvf_schedule_make(&config, &trace, COUNT, requests);
        kvf_schedule_hash(requests, COUNT, hash[i]);
    }
    cr_assert_str_eq(hash[0], hash[1]);
    cr_assert_neq(strcmp(hash[0], hash[2]), 0);
    kvf_schedule_hash(requests, COUNT - 1, hash[0]);
    cr_assert_neq(strcmp(hash[0], hash[2]), 0);
}

Test(schedule, a_longer_schedule_begins_with_the_shorter)
{
    struct kvf_trace trace;
    struct kvf_schedule_config config = make_config(&trace);
    struct kvf_request few[100];
    kvf_schedule_make(&config, &trace, 100, few);
    kvf_schedule_make(&config, &trace, COUNT, requests);
    cr_assert_eq(memcmp(few, requests, sizeof(few)), 0);
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = ((const struct kvf_request *)a)->key;
    uint64_t y = ((const struct kvf_request *)b)->key;
    return x < y ? -1 : x > y;
}

Test(schedule, keys_are_unique_although_labels_come_again)
{
    struct kvf_trace trace;
    struct kvf_schedule_config config = make_config(&trace);
    kvf_schedule_make(&config, &trace, COUNT, requests);
    cr_assert_eq(requests[0].label, requests[KVF_LABELS].label);
    qsort(requests, COUNT, sizeof(requests[0]), compare_keys);
    for (uint32_t i = 1; i < COUNT; i++) {
        cr_assert_neq(requests[i].key, requests[i - 1].key);
    }
}

Test(schedule, aborts_are_of_the_size_side_and_moment_they_must_be)
{
    struct kvf_trace trace;
    struct kvf_schedule_config config = make_config(&trace);
    uint32_t kinds[KVF_ABORT_KINDS] = {0};
    uint32_t sides[KVF_ABORT_SIDES] = {0};
    uint32_t low = 0;
    uint32_t high = 0;
    kvf_schedule_make(&config, &trace, COUNT, requests);
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct kvf_request *r = &requests[i];
        kinds[r->abort_kind]++;
        cr_assert(r->page_count >= 1 && r->page_count <= 40);
        cr_assert(r->piece_count >= 1 && r->piece_count <= r->page_count);
        cr_assert(r->prefill < 2 && r->decode < 3);
        if (r->abort_kind != KVF_ABORT_IN_FLIGHT) {
            continue;
        }
        sides[r->abort_side]++;
        cr_assert_geq(r->page_count, 16);
        cr_assert(r->abort_ppm >= 50000 && r->abort_ppm <= 650000);
        low += r->abort_ppm < 350000;
        high += r->abort_ppm >= 350000;
        if (r->abort_side == KVF_SIDE_SOURCE) {
            cr_assert_gt(r->page_count, 16 + 4);
        }
    }
    for (int kind = 0; kind < KVF_ABORT_KINDS; kind++) {
        cr_assert_gt(kinds[kind], 50, "kind %d: %u", kind, kinds[kind]);
    }
    for (int side = 0; side < KVF_ABORT_SIDES; side++) {
        cr_assert_gt(sides[side], 200, "side %d: %u", side, sides[side]);
    }
    cr_assert_lt((double)low / high, 1.05);
    cr_assert_gt((double)low / high, 0.95);
}

Test(schedule, every_pair_of_engines_gets_the_same_number)
{
    struct kvf_trace trace;
    struct kvf_schedule_config config = make_config(&trace);
    uint32_t pairs[2][3] = {{0}};
    kvf_schedule_make(&config, &trace, 6000, requests);
    for (uint32_t i = 0; i < 6000; i++) {
        pairs[requests[i].prefill][requests[i].decode]++;
    }
    for (int p = 0; p < 2; p++) {
        for (int d = 0; d < 3; d++) {
            cr_assert_eq(pairs[p][d], 1000);
        }
    }
}

Test(geometry, presets_divide_as_stated_and_planes_do_not_overlap)
{
    struct kvf_geometry g;
    cr_assert_eq(kvf_geometry_make("llama3-70b-tp8", 0, 0, &g), 0);
    cr_assert_eq(g.page_bytes, 65536);
    cr_assert_eq(kvf_geometry_pages(&g, 6758), 27);
    cr_assert_eq(kvf_geometry_pages(&g, 1), 1);
    cr_assert_eq(kvf_geometry_piece_off(&g, 10, 9, 0) + g.piece_bytes,
                 kvf_geometry_piece_off(&g, 10, 0, 1));
    cr_assert_eq(kvf_geometry_piece_off(&g, 10, 9, 15) + g.piece_bytes,
                 kvf_geometry_region_bytes(&g, 10));
    cr_assert_eq(kvf_geometry_make("deepseek-v3-mla", 1, 1, &g), 0);
    cr_assert_eq(g.page_bytes, 61 * 64 * 576 * 2);
    cr_assert_neq(kvf_geometry_make("llama3-70b-tp8", 161, 0, &g), 0);
    cr_assert_neq(kvf_geometry_make("gpt-1", 0, 0, &g), 0);
}

/* The engines' paged allocator: no page is ever out twice, none is lost, and a page the question keeps
 * back is not handed out. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/torture/allocator.h"

#define PAGES 100

Test(allocator, hands_out_the_page_that_came_back_last)
{
    struct kvf_allocator a;
    int32_t first[3];
    int32_t again[3];
    cr_assert_eq(kvf_allocator_init(&a, PAGES), 0);
    cr_assert_eq(kvf_allocator_take(&a, 3, 7, NULL, NULL, first), 0);
    cr_assert_eq(first[0], 0);
    cr_assert_eq(kvf_allocator_give(&a, first, 3, 7, false), 0);
    cr_assert_eq(kvf_allocator_take(&a, 3, 8, NULL, NULL, again), 0);
    cr_assert_eq(memcmp(first, again, sizeof(first)), 0);
    kvf_allocator_free(&a);
}

Test(allocator, cold_pages_go_out_last)
{
    struct kvf_allocator a;
    int32_t one;
    int32_t page;
    cr_assert_eq(kvf_allocator_init(&a, 5), 0);
    cr_assert_eq(kvf_allocator_take(&a, 1, 1, NULL, NULL, &one), 0);
    cr_assert_eq(kvf_allocator_give(&a, &one, 1, 1, true), 0);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(kvf_allocator_take(&a, 1, 2, NULL, NULL, &page), 0);
        cr_assert_neq(page, one);
    }
    cr_assert_eq(kvf_allocator_take(&a, 1, 2, NULL, NULL, &page), 0);
    cr_assert_eq(page, one);
    cr_assert_eq(kvf_allocator_take(&a, 1, 2, NULL, NULL, &page), -EAGAIN);
    kvf_allocator_free(&a);
}

Test(allocator, giving_back_twice_or_as_a_stranger_is_refused)
{
    struct kvf_allocator a;
    int32_t pages[2];
    int32_t outside = PAGES;
    cr_assert_eq(kvf_allocator_init(&a, PAGES), 0);
    cr_assert_eq(kvf_allocator_take(&a, 2, 7, NULL, NULL, pages), 0);
    cr_assert_eq(kvf_allocator_give(&a, pages, 1, 8, false), -EPERM);
    cr_assert_eq(kvf_allocator_pass(&a, pages, 2, 8, 9), -EPERM);
    cr_assert_eq(kvf_allocator_pass(&a, pages, 2, 7, 9), 0);
    cr_assert_eq(kvf_allocator_give(&a, pages, 2, 9, false), 0);
    cr_assert_eq(kvf_allocator_give(&a, pages, 2, 9, false), -EPERM);
    cr_assert_eq(kvf_allocator_give(&a, &outside, 1, 9, false), -EPERM);
    cr_assert_eq(a.bad_gives, 5);
    cr_assert_eq(a.free_count, PAGES);
    kvf_allocator_free(&a);
}

static bool is_allowed(void *ctx, int32_t page)
{
    return page % *(int32_t *)ctx != 0;
}

Test(allocator, pages_that_the_question_keeps_back_stay_in)
{
    struct kvf_allocator a;
    int32_t third = 3;
    int32_t pages[PAGES];
    cr_assert_eq(kvf_allocator_init(&a, PAGES), 0);
    cr_assert_eq(kvf_allocator_take(&a, 66, 1, is_allowed, &third, pages), 0);
    for (int i = 0; i < 66; i++) {
        cr_assert_neq(pages[i] % 3, 0);
    }
    cr_assert_eq(a.refusals, 33);
    cr_assert_eq(kvf_allocator_take(&a, 1, 2, is_allowed, &third, pages), -EAGAIN);
    cr_assert_eq(a.free_count, 34);
    cr_assert_eq(kvf_allocator_take(&a, 34, 2, NULL, NULL, pages), 0);
    cr_assert_eq(a.free_count, 0);
    kvf_allocator_free(&a);
}

Test(allocator, a_refused_take_changes_nothing)
{
    struct kvf_allocator a;
    int32_t two = 2;
    int32_t pages[PAGES];
    cr_assert_eq(kvf_allocator_init(&a, 10), 0);
    cr_assert_eq(kvf_allocator_take(&a, 6, 1, is_allowed, &two, pages), -EAGAIN);
    cr_assert_eq(a.free_count, 10);
    cr_assert_eq(kvf_allocator_take(&a, 11, 1, NULL, NULL, pages), -EAGAIN);
    cr_assert_eq(kvf_allocator_take(&a, 10, 1, NULL, NULL, pages), 0);
    kvf_allocator_free(&a);
}

/* Random takes and gives against a plain array of owners. */
Test(allocator, no_page_is_ever_out_twice)
{
    struct kvf_allocator a;
    int32_t held[16][8];
    uint32_t counts[16] = {0};
    bool is_out[PAGES] = {false};
    uint32_t random = 12345;
    cr_assert_eq(kvf_allocator_init(&a, PAGES), 0);
    for (int step = 0; step < 200000; step++) {
        random = random * 1664525u + 1013904223u;
        uint32_t who = random >> 28;
        uint32_t n = 1 + (random >> 20) % 8;
        if (counts[who] == 0) {
            if (kvf_allocator_take(&a, n, who, NULL, NULL, held[who]) != 0) {
                continue;
            }
            counts[who] = n;
            for (uint32_t i = 0; i < n; i++) {
                cr_assert(!is_out[held[who][i]]);
                is_out[held[who][i]] = true;
            }
        } else {
            cr_assert_eq(
                kvf_allocator_give(&a, held[who], counts[who], who, (random & 1024) != 0), 0);
            for (uint32_t i = 0; i < counts[who]; i++) {
                is_out[held[who][i]] = false;
            }
            counts[who] = 0;
        }
    }
    kvf_allocator_free(&a);
}

/* The checker must see: every kind of misplaced byte is wrong, and whose it is can be told. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/torture/pattern.h"

#define BYTES 4096

Test(pattern, a_piece_as_filled_is_right_and_one_changed_byte_is_seen)
{
    unsigned char piece[BYTES];
    for (size_t bytes = 1; bytes < 64; bytes++) {
        kvf_pattern_fill(piece, bytes, 99);
        cr_assert_eq(kvf_pattern_check(piece, bytes, 99), 0);
        for (size_t i = 0; i < bytes; i++) {
            piece[i] ^= 1;
            cr_assert_eq(kvf_pattern_check(piece, bytes, 99), 1);
            piece[i] ^= 1;
        }
    }
}

Test(pattern, request_page_plane_and_offset_all_count)
{
    unsigned char piece[BYTES];
    uint64_t seed = kvf_pattern_seed(1000, 3, 5);
    kvf_pattern_fill(piece, BYTES, seed);
    cr_assert_eq(kvf_pattern_check(piece, BYTES, kvf_pattern_seed(1000, 3, 5)), 0);
    cr_assert_gt(kvf_pattern_check(piece, BYTES, kvf_pattern_seed(1001, 3, 5)), BYTES * 9 / 10);
    cr_assert_gt(kvf_pattern_check(piece, BYTES, kvf_pattern_seed(1000, 4, 5)), BYTES * 9 / 10);
    cr_assert_gt(kvf_pattern_check(piece, BYTES, kvf_pattern_seed(1000, 3, 6)), BYTES * 9 / 10);
    cr_assert_gt(kvf_pattern_check(piece, BYTES, kvf_pattern_seed(1000, 5, 3)), BYTES * 9 / 10);
    cr_assert_gt(kvf_pattern_check(piece, BYTES, kvf_canary_seed(1000, 3, 5)), BYTES * 9 / 10);
    memmove(piece, piece + 8, BYTES - 8);
    cr_assert_gt(kvf_pattern_check(piece, BYTES, seed), BYTES / 2);
}

Test(pattern, foreign_bytes_are_attributed_to_their_owner)
{
    unsigned char piece[BYTES];
    unsigned char other[BYTES];
    uint64_t canary = kvf_canary_seed(7, 0, 0);
    uint64_t donor = kvf_pattern_seed(8, 0, 0);
    kvf_pattern_fill(piece, BYTES, canary);
    kvf_pattern_fill(other, BYTES, donor);
    memcpy(piece + 1021, other + 1021, 512); /* from the middle of a word to that of another */
    size_t wrong = kvf_pattern_check(piece, BYTES, canary);
    cr_assert_gt(wrong, 480);
    cr_assert_leq(wrong, 512);
    cr_assert_eq(kvf_pattern_attribute(piece, BYTES, canary, donor), wrong);
    cr_assert_lt(kvf_pattern_attribute(piece, BYTES, canary, kvf_pattern_seed(9, 0, 0)), 20);
}

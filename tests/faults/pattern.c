#include <string.h>

#include "tests/faults/faults.h"

static uint64_t base_of(uint64_t seed, uint32_t position, uint32_t plane)
{
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)position << 20 ^ plane;
    return random_next(&state);
}

static unsigned char *page_at(const struct engine *e, int32_t page, uint32_t plane)
{
    return e->base + e->plane_off[plane] + (uint64_t)page * e->geometry.page_bytes;
}

static uint64_t word_of(uint64_t base, uint64_t off)
{
    return base + off * UINT64_C(0x100000001b3);
}

/* The last page first: what is still under way to it has the longest to go, so that a canary in it is there
 * before what would spoil it. */
void pattern_fill(struct engine *e, uint64_t seed, int32_t first, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            unsigned char *to = page_at(e, first + (int32_t)i, plane);
            uint64_t base = base_of(seed, i, plane);
            for (uint64_t off = 0; off < e->geometry.page_bytes; off += 8) {
                uint64_t word = word_of(base, off);
                memcpy(to + off, &word, 8);
            }
        }
    }
}

/* Bytes of one page's plane that are the pattern's, or are not. Words that agree cost one comparison. */
static uint64_t count_plane(const unsigned char *from, uint64_t bytes, uint64_t base,
                            bool counts_right)
{
    uint64_t count = 0;
    for (uint64_t off = 0; off < bytes; off += 8) {
        uint64_t word = word_of(base, off);
        bool is_right = memcmp(from + off, &word, 8) == 0;
        if (counts_right) {
            count += is_right ? 8 : 0;
        } else if (!is_right) {
            for (uint32_t i = 0; i < 8; i++) {
                count += from[off + i] != (unsigned char)(word >> 8 * i);
            }
        }
    }
    return count;
}

static uint64_t count_pages(struct engine *e, uint64_t seed, int32_t first, uint32_t count,
                            bool counts_right)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            sum += count_plane(page_at(e, first + (int32_t)i, plane), e->geometry.page_bytes,
                               base_of(seed, i, plane), counts_right);
        }
    }
    return sum;
}

uint64_t pattern_count_wrong(struct engine *e, uint64_t seed, int32_t first, uint32_t count)
{
    return count_pages(e, seed, first, count, false);
}

uint64_t pattern_count_right(struct engine *e, uint64_t seed, int32_t first, uint32_t count)
{
    return count_pages(e, seed, first, count, true);
}

uint64_t pattern_count_begun(const struct engine *e, uint64_t seed, int32_t first,
                             uint32_t count)
{
    uint64_t pieces = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t plane = 0; plane < e->geometry.plane_count; plane++) {
            uint64_t word = word_of(base_of(seed, i, plane), 0);
            pieces += memcmp(page_at(e, first + (int32_t)i, plane), &word, 8) == 0;
        }
    }
    return pieces * e->geometry.page_bytes;
}

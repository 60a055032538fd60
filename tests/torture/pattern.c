#include "tests/torture/pattern.h"

#include <string.h>

/* Word i of a piece is seed + i * STEP: odd, so no two words of a piece are equal. */
#define STEP UINT64_C(0x9e3779b97f4a7c15)
#define REQUEST_FAMILY UINT64_C(0x6b765f7265717565)
#define CANARY_FAMILY UINT64_C(0x63616e6172796b76)

uint64_t kvf_pattern_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t seed_of(uint64_t family, uint64_t key, uint32_t position, uint32_t plane)
{
    uint64_t place = (uint64_t)position << 32 | plane;
    return kvf_pattern_mix(kvf_pattern_mix(key ^ family) + kvf_pattern_mix(place + STEP));
}

uint64_t kvf_pattern_seed(uint64_t request_key, uint32_t position, uint32_t plane)
{
    return seed_of(REQUEST_FAMILY, request_key, position, plane);
}

uint64_t kvf_canary_seed(uint64_t owner_key, uint32_t position, uint32_t plane)
{
    return seed_of(CANARY_FAMILY, owner_key, position, plane);
}

void kvf_pattern_fill(void *piece, size_t bytes, uint64_t seed)
{
    unsigned char *to = piece;
    uint64_t word = seed;
    size_t i = 0;
    for (; i + sizeof(word) <= bytes; i += sizeof(word), word += STEP) {
        memcpy(to + i, &word, sizeof(word));
    }
    memcpy(to + i, &word, bytes - i);
}

static size_t count_bytes(uint64_t difference)
{
    size_t count = 0;
    for (; difference != 0; difference >>= 8) {
        count += (difference & 0xff) != 0;
    }
    return count;
}

static size_t check_exactly(const unsigned char *from, size_t bytes, uint64_t seed)
{
    size_t wrong = 0;
    uint64_t word = seed;
    for (size_t i = 0; i < bytes; i += sizeof(word), word += STEP) {
        size_t part = bytes - i < sizeof(word) ? bytes - i : sizeof(word);
        uint64_t there = word;
        memcpy(&there, from + i, part);
        wrong += count_bytes(there ^ word);
    }
    return wrong;
}

size_t kvf_pattern_check(const void *piece, size_t bytes, uint64_t seed)
{
    const unsigned char *from = piece;
    uint64_t difference = 0;
    uint64_t word = seed;
    size_t whole = bytes - bytes % sizeof(word);
    for (size_t i = 0; i < whole; i += sizeof(word), word += STEP) {
        uint64_t there;
        memcpy(&there, from + i, sizeof(there));
        difference |= there ^ word;
    }
    if (difference == 0 && memcmp(from + whole, &word, bytes - whole) == 0) {
        return 0;
    }
    return check_exactly(from, bytes, seed);
}

/* Byte by byte: what landed may begin in the middle of a word, where a receive ended. */
static size_t count_owned(uint64_t there, uint64_t word, uint64_t foreign)
{
    size_t count = 0;
    for (unsigned int shift = 0; shift < 64; shift += 8) {
        uint64_t byte = (there >> shift) & 0xff;
        count += byte != ((word >> shift) & 0xff) && byte == ((foreign >> shift) & 0xff);
    }
    return count;
}

size_t kvf_pattern_attribute(const void *piece, size_t bytes, uint64_t seed, uint64_t other)
{
    const unsigned char *from = piece;
    size_t owned = 0;
    uint64_t word = seed;
    uint64_t foreign = other;
    for (size_t i = 0; i < bytes; i += sizeof(word)) {
        size_t part = bytes - i < sizeof(word) ? bytes - i : sizeof(word);
        uint64_t there = word;
        memcpy(&there, from + i, part);
        owned += count_owned(there, word, foreign);
        word += STEP;
        foreign += STEP;
    }
    return owned;
}

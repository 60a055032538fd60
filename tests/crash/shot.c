#include "tests/crash/shot.h"

#include <stdlib.h>
#include <string.h>

#define EMPTY_WORD (UINT64_C(0x0101010101010101) * SHOT_EMPTY)
/* Lanes run beside each other, so what is about to arrive begins somewhat before the page last seen. */
#define POSITIONS_BEFORE 32u

static uint64_t piece_bytes(const struct shot *s)
{
    return s->engine->geometry.page_bytes;
}

static uint64_t piece_off(const struct shot *s, int32_t page, uint32_t plane)
{
    return s->engine->plane_off[plane] + (uint64_t)page * piece_bytes(s);
}

/* Another process writes these bytes. */
static uint64_t word_at(const struct shot *s, uint64_t off)
{
    return __atomic_load_n((const uint64_t *)(const void *)(s->engine->base + off),
                           __ATOMIC_RELAXED);
}

struct shot *shot_make(struct engine *e, const int32_t *pages, uint32_t page_count)
{
    const struct geometry *g = &e->geometry;
    struct shot *s = calloc(1, sizeof *s);
    CHECK(s != NULL, "no memory");
    /* Pieces follow one another without a gap, so that the region is one run of bytes. */
    CHECK(g->stride == 0 && g->page_bytes % 64u == 0 && page_count == g->page_count,
          "a geometry with gaps");
    s->engine = e;
    s->pages = pages;
    s->page_count = page_count;
    s->pieces = page_count * g->plane_count;
    s->bytes = s->pieces * g->page_bytes;
    s->copy = malloc(s->bytes);
    s->samples = calloc((size_t)s->pieces * 2u, sizeof *s->samples);
    CHECK(s->copy != NULL && s->samples != NULL, "no memory");
    return s;
}

void shot_free(struct shot *s)
{
    free(s->copy);
    free(s->samples);
    free(s);
}

void shot_arm(struct shot *s)
{
    memset(s->engine->base, SHOT_EMPTY, s->bytes);
}

bool shot_has_arrived(const struct shot *s, uint32_t position)
{
    uint32_t last_plane = s->engine->geometry.plane_count - 1u;
    uint64_t off = piece_off(s, s->pages[position], last_plane);
    return word_at(s, off + piece_bytes(s) - 8u) != EMPTY_WORD;
}

static void take_samples(struct shot *s, uint32_t position)
{
    uint32_t planes = s->engine->geometry.plane_count;
    uint32_t first = position > POSITIONS_BEFORE ? position - POSITIONS_BEFORE : 0;
    s->begun = 0;
    s->whole = 0;
    for (uint32_t i = 0; i < s->page_count; i++) {
        uint32_t at = (first + i) % s->page_count;
        for (uint32_t plane = 0; plane < planes; plane++) {
            uint64_t off = piece_off(s, s->pages[at], plane);
            uint64_t *sample = &s->samples[(at * planes + plane) * 2u];
            sample[0] = word_at(s, off);
            sample[1] = word_at(s, off + piece_bytes(s) - 8u);
            s->begun += sample[0] != EMPTY_WORD;
            s->whole += sample[1] != EMPTY_WORD;
        }
    }
}

static void note(struct shot_change *change, uint64_t off, uint64_t was, uint64_t is)
{
    for (uint32_t i = 0; i < 8; i++) {
        unsigned char a = (unsigned char)(was >> (8u * i));
        unsigned char b = (unsigned char)(is >> (8u * i));
        if (a == b) {
            continue;
        }
        if (change->bytes == 0 || off + i < change->off) {
            change->off = off + i;
            change->was = a;
            change->is = b;
        }
        change->bytes++;
    }
}

struct shot_change shot_take(struct shot *s, enum shot_mode mode, uint32_t position)
{
    struct shot_change change = {0};
    uint32_t planes = s->engine->geometry.plane_count;
    uint32_t first = position > POSITIONS_BEFORE ? position - POSITIONS_BEFORE : 0;
    s->mode = mode;
    take_samples(s, position);
    for (uint32_t i = 0; i < s->page_count; i++) {
        uint32_t at = (first + i) % s->page_count;
        for (uint32_t plane = 0; plane < planes; plane++) {
            uint64_t off = piece_off(s, s->pages[at], plane);
            const uint64_t *sample = &s->samples[(at * planes + plane) * 2u];
            note(&change, off, sample[0], word_at(s, off));
            note(&change, off + piece_bytes(s) - 8u, sample[1],
                 word_at(s, off + piece_bytes(s) - 8u));
            if (mode == SHOT_COPY) {
                memcpy(s->copy + off, s->engine->base + off, piece_bytes(s));
            } else {
                memset(s->engine->base + off, SHOT_REFILL, piece_bytes(s));
            }
        }
    }
    return change;
}

static bool is_as_taken(const struct shot *s)
{
    const unsigned char *base = s->engine->base;
    if (s->mode == SHOT_COPY) {
        return memcmp(base, s->copy, s->bytes) == 0;
    }
    /* All bytes are the first one's, if each is its neighbour's. */
    return base[0] == SHOT_REFILL && memcmp(base, base + 1, s->bytes - 1u) == 0;
}

struct shot_change shot_look(const struct shot *s)
{
    struct shot_change change = {0};
    if (is_as_taken(s)) {
        return change;
    }
    for (uint64_t off = 0; off < s->bytes; off++) {
        unsigned char was = s->mode == SHOT_COPY ? s->copy[off] : SHOT_REFILL;
        unsigned char is = s->engine->base[off];
        if (was != is) {
            if (change.bytes == 0) {
                change = (struct shot_change){.off = off, .was = was, .is = is};
            }
            change.bytes++;
        }
    }
    return change;
}

uint32_t shot_count_wrong(const struct shot *s, const struct engine *source)
{
    uint32_t planes = s->engine->geometry.plane_count;
    uint32_t wrong = 0;
    if (s->mode != SHOT_COPY) {
        return 0;
    }
    for (uint32_t at = 0; at < s->page_count; at++) {
        for (uint32_t plane = 0; plane < planes; plane++) {
            /* Bytes arrive one by one: only the last of all says that none is missing. */
            bool is_whole =
                s->samples[(at * planes + plane) * 2u + 1u] >> 56 != (uint64_t)SHOT_EMPTY;
            /* Position p of every list is page p of the source. */
            const unsigned char *from =
                source->base + source->plane_off[plane] + at * piece_bytes(s);
            const unsigned char *is = s->copy + piece_off(s, s->pages[at], plane);
            wrong += is_whole && memcmp(is, from, piece_bytes(s)) != 0;
        }
    }
    return wrong;
}

void shot_spoil(struct shot *s, uint32_t position)
{
    s->engine->base[piece_off(s, s->pages[position], 0)] ^= 1u;
}

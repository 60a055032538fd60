/* What a region held at the moment of a proof, and whether a byte of it has changed since.
 *
 * The region is looked at in pieces: one plane's part of one page. Before a kill each byte of it is EMPTY;
 * what the worker places is something else. */
#ifndef KVF_TESTS_CRASH_SHOT_H
#define KVF_TESTS_CRASH_SHOT_H

#include "tests/daemon/engine.h"

#define SHOT_EMPTY 0x5d
#define SHOT_REFILL 0xc5

enum shot_mode {
    SHOT_COPY, /* all of it is copied: whatever changes from there on differs from the copy */
    SHOT_REFILL_ALL, /* all of it is written anew, as the next owner of the pages would */
};

struct shot_change {
    uint64_t bytes; /* 0: nothing has changed, and the rest means nothing */
    uint64_t off;   /* of the first, from the start of the region */
    unsigned char was;
    unsigned char is;
};

struct shot {
    struct engine *engine;
    const int32_t *pages; /* the order in which bytes arrive; all pages of the region */
    uint32_t page_count;
    enum shot_mode mode;
    unsigned char *copy;
    uint64_t *samples; /* first and last word of each piece */
    uint64_t bytes;
    /* What the samples said: pieces that had begun, and those that were whole. */
    uint32_t pieces;
    uint32_t begun;
    uint32_t whole;
};

/* pages stay the caller's. */
struct shot *shot_make(struct engine *e, const int32_t *pages, uint32_t page_count);
void shot_free(struct shot *s);
/* Makes all bytes EMPTY. */
void shot_arm(struct shot *s);
/* Has the last byte of the page at this position of the list arrived? */
bool shot_has_arrived(const struct shot *s, uint32_t position);
/* The moment: reads the ends of every piece, beginning with the page at `position` and those about to
 * arrive there, which takes a fraction of what reading all bytes does. Then takes the whole in `mode`.
 * Returns what changed between the two. */
struct shot_change shot_take(struct shot *s, enum shot_mode mode, uint32_t position);
/* What has changed since. */
struct shot_change shot_look(const struct shot *s);
/* Pieces that were whole when the copy was taken and are not what the source holds; 0 after a refill. */
uint32_t shot_count_wrong(const struct shot *s, const struct engine *source);
/* Changes one byte: the bug that a look must find. */
void shot_spoil(struct shot *s, uint32_t position);

#endif

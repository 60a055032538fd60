/* The paged allocator of an engine: a free list with a hot end, so that a page that came back is the
 * next one handed out (the worst case for a late write), and the owner of every page that is out.
 *
 * It may ask a question about each page before it hands it out (kvf_pages_are_idle in the engines that
 * ask the ledger). Pages about which the answer is no go back to the cold end and are counted. Giving a
 * page back twice, or one that somebody else owns, is refused and counted: never silently repaired. */
#ifndef KVF_TORTURE_ALLOCATOR_H
#define KVF_TORTURE_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_NO_OWNER UINT64_MAX

struct kvf_allocator {
    uint32_t page_count;
    uint32_t free_count;
    uint32_t hot_seq;   /* free-running; the hot page is at (hot_seq - 1) % page_count */
    int32_t *ring;      /* page_count entries, free_count of them in use */
    uint64_t *owners;   /* per page; KVF_NO_OWNER: in the free list */
    int32_t *refused;   /* scratch of one take */
    uint64_t refusals;  /* pages that the question kept back */
    uint64_t bad_gives; /* pages given back by somebody who did not own them */
};

/* true: this page may be handed out. */
typedef bool (*kvf_allocator_ask_fn)(void *ctx, int32_t page);

/* 0, -EINVAL (no pages), -ENOMEM. All pages are free, page 0 hottest. */
int kvf_allocator_init(struct kvf_allocator *allocator, uint32_t page_count);
void kvf_allocator_free(struct kvf_allocator *allocator);

/* Hands out the n hottest pages that ask_fn (may be NULL) allows. 0, or -EAGAIN with nothing taken. */
int kvf_allocator_take(struct kvf_allocator *allocator, uint32_t n, uint64_t owner,
                       kvf_allocator_ask_fn ask_fn, void *ctx, int32_t *ret_pages);
/* Gives pages back to the hot end, or to the cold end. 0, or -EPERM if some were not the owner's: the
 * others are taken back all the same. */
int kvf_allocator_give(struct kvf_allocator *allocator, const int32_t *pages, uint32_t n,
                       uint64_t owner, bool is_cold);
/* The same pages, from one owner straight to the next. 0 or -EPERM with nothing changed. */
int kvf_allocator_pass(struct kvf_allocator *allocator, const int32_t *pages, uint32_t n,
                       uint64_t from, uint64_t to);

#endif

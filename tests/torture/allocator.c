#include "tests/torture/allocator.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int kvf_allocator_init(struct kvf_allocator *allocator, uint32_t page_count)
{
    struct kvf_allocator a = {.page_count = page_count};
    if (page_count == 0 || page_count > INT32_MAX) {
        return -EINVAL;
    }
    a.ring = calloc(page_count, sizeof(*a.ring));
    a.refused = calloc(page_count, sizeof(*a.refused));
    a.owners = calloc(page_count, sizeof(*a.owners));
    if (a.ring == NULL || a.refused == NULL || a.owners == NULL) {
        kvf_allocator_free(&a);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < page_count; i++) {
        a.ring[i] = (int32_t)(page_count - 1 - i);
        a.owners[i] = KVF_NO_OWNER;
    }
    a.free_count = page_count;
    a.hot_seq = page_count;
    *allocator = a;
    return 0;
}

void kvf_allocator_free(struct kvf_allocator *allocator)
{
    free(allocator->ring);
    free(allocator->refused);
    free(allocator->owners);
    memset(allocator, 0, sizeof(*allocator));
}

/* hot_seq never wraps past a multiple of page_count by accident: it is kept below 2 * page_count. */
static int32_t pop_hot(struct kvf_allocator *a)
{
    a->hot_seq = (a->hot_seq == 0 ? a->page_count : a->hot_seq) - 1;
    a->free_count--;
    return a->ring[a->hot_seq];
}

static void push_hot(struct kvf_allocator *a, int32_t page)
{
    a->ring[a->hot_seq % a->page_count] = page;
    a->hot_seq = a->hot_seq % a->page_count + 1;
    a->free_count++;
}

static void push_cold(struct kvf_allocator *a, int32_t page)
{
    uint32_t hot = a->hot_seq % a->page_count;
    uint32_t cold = (hot + a->page_count - a->free_count % a->page_count) % a->page_count;
    a->ring[(cold + a->page_count - 1) % a->page_count] = page;
    a->free_count++;
}

int kvf_allocator_take(struct kvf_allocator *allocator, uint32_t n, uint64_t owner,
                       kvf_allocator_ask_fn ask_fn, void *ctx, int32_t *ret_pages)
{
    uint32_t taken = 0;
    uint32_t refused = 0;
    if (n > allocator->free_count) {
        return -EAGAIN;
    }
    while (taken < n && allocator->free_count > 0) {
        int32_t page = pop_hot(allocator);
        if (ask_fn != NULL && !ask_fn(ctx, page)) {
            allocator->refused[refused++] = page;
            continue;
        }
        ret_pages[taken++] = page;
    }
    allocator->refusals += refused;
    for (uint32_t i = 0; i < refused; i++) {
        push_cold(allocator, allocator->refused[i]);
    }
    if (taken < n) {
        while (taken > 0) {
            push_hot(allocator, ret_pages[--taken]);
        }
        return -EAGAIN;
    }
    for (uint32_t i = 0; i < n; i++) {
        allocator->owners[ret_pages[i]] = owner;
    }
    return 0;
}

static bool is_owned(const struct kvf_allocator *a, int32_t page, uint64_t owner)
{
    return page >= 0 && (uint32_t)page < a->page_count && owner != KVF_NO_OWNER &&
           a->owners[page] == owner;
}

int kvf_allocator_give(struct kvf_allocator *allocator, const int32_t *pages, uint32_t n,
                       uint64_t owner, bool is_cold)
{
    int rc = 0;
    for (uint32_t i = n; i > 0; i--) {
        int32_t page = pages[i - 1];
        if (!is_owned(allocator, page, owner)) {
            allocator->bad_gives++;
            rc = -EPERM;
            continue;
        }
        allocator->owners[page] = KVF_NO_OWNER;
        if (is_cold) {
            push_cold(allocator, page);
        } else {
            push_hot(allocator, page);
        }
    }
    return rc;
}

int kvf_allocator_pass(struct kvf_allocator *allocator, const int32_t *pages, uint32_t n,
                       uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!is_owned(allocator, pages[i], from)) {
            allocator->bad_gives++;
            return -EPERM;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        allocator->owners[pages[i]] = to;
    }
    return 0;
}

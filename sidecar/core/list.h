/* Intrusive FIFO lists over arrays, by index. Links hold index + 1 and 0 means none, so zeroed memory is
 * an unlinked object; an object stands at most once in a list, which is why no list can overflow. */
#ifndef KVF_CORE_LIST_H
#define KVF_CORE_LIST_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_link {
    uint32_t next;
    uint32_t prev;
};

struct kvf_list {
    unsigned char *links; /* address of the link of object 0 */
    uint32_t stride;
    uint32_t head;
    uint32_t tail;
    uint32_t count;
};

#define KVF_LIST_NONE UINT32_MAX
#define KVF_LIST_INIT(list, array, member)                                                     \
    kvf_list_init((list), (unsigned char *)&(array)[0].member, sizeof((array)[0]))

static inline void kvf_list_init(struct kvf_list *l, unsigned char *links, size_t stride)
{
    *l = (struct kvf_list){.links = links, .stride = (uint32_t)stride};
}

static inline struct kvf_link *kvf_list_link(const struct kvf_list *l, uint32_t idx)
{
    return (struct kvf_link *)(void *)(l->links + (size_t)l->stride * idx);
}

static inline bool kvf_list_has(const struct kvf_list *l, uint32_t idx)
{
    return kvf_list_link(l, idx)->prev != 0 || l->head == idx + 1;
}

static inline uint32_t kvf_list_first(const struct kvf_list *l)
{
    return l->head - 1;
}
static inline uint32_t kvf_list_next(const struct kvf_list *l, uint32_t idx)
{
    return kvf_list_link(l, idx)->next - 1;
}

/* Nothing happens if it stands there already. */
static inline void kvf_list_push(struct kvf_list *l, uint32_t idx)
{
    if (kvf_list_has(l, idx)) {
        return;
    }
    struct kvf_link *link = kvf_list_link(l, idx);
    link->next = 0;
    link->prev = l->tail;
    if (l->tail != 0) {
        kvf_list_link(l, l->tail - 1)->next = idx + 1;
    } else {
        l->head = idx + 1;
    }
    l->tail = idx + 1;
    l->count++;
}

static inline void kvf_list_push_front(struct kvf_list *l, uint32_t idx)
{
    if (kvf_list_has(l, idx)) {
        return;
    }
    struct kvf_link *link = kvf_list_link(l, idx);
    link->prev = 0;
    link->next = l->head;
    if (l->head != 0) {
        kvf_list_link(l, l->head - 1)->prev = idx + 1;
    } else {
        l->tail = idx + 1;
    }
    l->head = idx + 1;
    l->count++;
}

static inline void kvf_list_remove(struct kvf_list *l, uint32_t idx)
{
    if (!kvf_list_has(l, idx)) {
        return;
    }
    struct kvf_link *link = kvf_list_link(l, idx);
    if (link->prev != 0) {
        kvf_list_link(l, link->prev - 1)->next = link->next;
    } else {
        l->head = link->next;
    }
    if (link->next != 0) {
        kvf_list_link(l, link->next - 1)->prev = link->prev;
    } else {
        l->tail = link->prev;
    }
    *link = (struct kvf_link){0};
    assert(l->count > 0);
    l->count--;
}

static inline uint32_t kvf_list_pop(struct kvf_list *l)
{
    uint32_t idx = kvf_list_first(l);
    if (idx != KVF_LIST_NONE) {
        kvf_list_remove(l, idx);
    }
    return idx;
}

#endif

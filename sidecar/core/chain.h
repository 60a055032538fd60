/* Hash chains over arrays, by index, as list.h does lists: KVF_HASH_BUCKETS heads that hold index + 1, and
 * a link in every object. Whoever walks one compares the keys itself. */
#ifndef KVF_CORE_CHAIN_H
#define KVF_CORE_CHAIN_H

#include "sidecar/core/list.h"

#define KVF_HASH_BUCKET_BITS 14u
#define KVF_HASH_BUCKETS (1u << KVF_HASH_BUCKET_BITS)

struct kvf_chain {
    uint32_t *buckets;
    unsigned char *links; /* address of the link of object 0 */
    size_t stride;
    uint64_t
        salt; /* odd and secret: engines and peers choose the keys, and could else fill one bucket */
};

#define KVF_CHAIN(heads, array, member, salt)                                                  \
    ((struct kvf_chain){(heads), (unsigned char *)&(array)[0].member, sizeof((array)[0]),      \
                        (salt)})

static inline struct kvf_link *kvf_chain_link(const struct kvf_chain *c, uint32_t idx)
{
    return (struct kvf_link *)(void *)(c->links + c->stride * idx);
}

/* First object of the hash's bucket, index + 1; 0: none. The next one stands in its link. */
static inline uint32_t *kvf_chain_head(const struct kvf_chain *c, uint64_t hash)
{
    return &c->buckets[(hash * c->salt) >> (64u - KVF_HASH_BUCKET_BITS)];
}

static inline void kvf_chain_push(const struct kvf_chain *c, uint64_t hash, uint32_t idx)
{
    uint32_t *head = kvf_chain_head(c, hash);
    *kvf_chain_link(c, idx) = (struct kvf_link){.next = *head};
    if (*head != 0) {
        kvf_chain_link(c, *head - 1)->prev = idx + 1;
    }
    *head = idx + 1;
}

/* Nothing happens if it does not stand there. */
static inline void kvf_chain_remove(const struct kvf_chain *c, uint64_t hash, uint32_t idx)
{
    uint32_t *head = kvf_chain_head(c, hash);
    struct kvf_link *link = kvf_chain_link(c, idx);
    if (link->prev == 0 && *head != idx + 1) {
        return;
    }
    if (link->prev != 0) {
        kvf_chain_link(c, link->prev - 1)->next = link->next;
    } else {
        *head = link->next;
    }
    if (link->next != 0) {
        kvf_chain_link(c, link->next - 1)->prev = link->prev;
    }
    *link = (struct kvf_link){0};
}

#endif

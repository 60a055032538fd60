/* Pools of equal nodes in memory that was mapped at attach. */
#include "client/internal.h"

#include <string.h>

void kvf_nodes_init(struct kvf_nodes *nodes, void *base, uint32_t node_bytes, uint32_t count)
{
    *nodes = (struct kvf_nodes){
        .base = base, .node_bytes = node_bytes, .count = count, .free_head = KVF_NO_INDEX};
}

uint32_t kvf_nodes_free_count(const struct kvf_nodes *nodes)
{
    return nodes->count - nodes->fresh + nodes->free_count;
}

uint32_t kvf_nodes_take(struct kvf_nodes *nodes)
{
    uint32_t idx = nodes->free_head;
    if (idx != KVF_NO_INDEX) {
        memcpy(&nodes->free_head, kvf_nodes_at(nodes, idx), sizeof nodes->free_head);
        nodes->free_count--;
        return idx;
    }
    return nodes->fresh < nodes->count ? nodes->fresh++ : KVF_NO_INDEX;
}

void kvf_nodes_give_back(struct kvf_nodes *nodes, uint32_t idx)
{
    memcpy(kvf_nodes_at(nodes, idx), &nodes->free_head, sizeof nodes->free_head);
    nodes->free_head = idx;
    nodes->free_count++;
}

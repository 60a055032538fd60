/* What is remembered of rooms that are over for a peer that has not come yet: that a source's room ended, or
 * that a sink closed before its GRANT left. Bounded, and a hint: forgetting one is safe, but its room then
 * waits for the bootstrap deadline, far beyond the bound of an abort. So what is forgotten first is what
 * nobody is likely to ask for. */
#include "sidecar/core/internal.h"

static struct kvf_tombstone *set_of(const struct kvf_core *core, uint64_t label, uint64_t key)
{
    uint64_t set = kvf_hash2(label, key) ^ core->salt;
    return &core->tombstones[(set & (KVF_TOMBSTONE_SETS - 1u)) * KVF_TOMBSTONE_WAYS];
}

/* An empty place; then a room that all its sinks have met; then the oldest. */
static bool is_forgotten_before(const struct kvf_tombstone *a, const struct kvf_tombstone *b)
{
    if ((a->kind == KVF_TOMB_NONE) != (b->kind == KVF_TOMB_NONE)) {
        return a->kind == KVF_TOMB_NONE;
    }
    if (a->is_met != b->is_met) {
        return a->is_met;
    }
    return a->order < b->order;
}

void kvf_tombstone_put(struct kvf_core *core, uint64_t label, uint64_t key,
                       enum kvf_tombstone_kind kind, bool is_met)
{
    struct kvf_tombstone *set = set_of(core, label, key);
    struct kvf_tombstone *place = &set[0];
    for (uint32_t i = 0; i < KVF_TOMBSTONE_WAYS; i++) {
        if (set[i].kind != KVF_TOMB_NONE && set[i].label == label && set[i].key == key) {
            place = &set[i];
            break;
        }
        if (is_forgotten_before(&set[i], place)) {
            place = &set[i];
        }
    }
    *place = (struct kvf_tombstone){.label = label,
                                    .key = key,
                                    .order = ++core->tombstone_order,
                                    .kind = (uint8_t)kind,
                                    .is_met = is_met};
}

enum kvf_tombstone_kind kvf_tombstone_get(const struct kvf_core *core, uint64_t label,
                                          uint64_t key)
{
    const struct kvf_tombstone *set = set_of(core, label, key);
    for (uint32_t i = 0; i < KVF_TOMBSTONE_WAYS; i++) {
        if (set[i].kind != KVF_TOMB_NONE && set[i].label == label && set[i].key == key) {
            return (enum kvf_tombstone_kind)set[i].kind;
        }
    }
    return KVF_TOMB_NONE;
}

/* Everything a room's lines say, for logs and people. */
#include "client/internal.h"

#include "ring/lease_word.h"

/* What the daemon's line adds to the word; it is of this generation only while its word is. */
static void fill_from_line(const kvf_client *client, uint32_t slot, uint64_t generation,
                           struct kvf_room_info *info)
{
    const struct kvf_room_shm *line = &client->cold.segment.rooms[slot];
    /* R1 (acquire): what was stored in the line before the word. */
    uint64_t word = atomic_load_explicit(&line->word, memory_order_acquire);
    if (kvf_word_generation(word) != generation) {
        return;
    }
    info->reason = atomic_load_explicit(&line->reason, memory_order_relaxed);
    info->detail = atomic_load_explicit(&line->detail, memory_order_relaxed);
    info->placed_bytes = atomic_load_explicit(&line->placed_bytes, memory_order_relaxed);
    info->total_bytes = atomic_load_explicit(&line->total_bytes, memory_order_relaxed);
    info->total_pages = atomic_load_explicit(&line->total_pages, memory_order_relaxed);
    info->unproven = atomic_load_explicit(&line->unproven, memory_order_relaxed);
    info->close_to_drained_ns =
        atomic_load_explicit(&line->close_to_drained_ns, memory_order_relaxed);
    info->group_waits = atomic_load_explicit(&line->group_waits, memory_order_relaxed);
}

static void fill_leases(const kvf_client *client, uint32_t slot, uint64_t generation,
                        struct kvf_room_info *info)
{
    uint64_t lease = atomic_load_explicit(&client->cold.segment.intents[slot].lease_word,
                                          memory_order_acquire); /* L2 */
    if (kvf_word_generation(lease) != generation) {
        return;
    }
    info->leases_cpu = kvf_lease_count(lease, KVF_LEASE_CPU);
    info->leases_gpu = kvf_lease_count(lease, KVF_LEASE_GPU);
    info->leases_direct_io = kvf_lease_count(lease, KVF_LEASE_DIRECT_IO);
}

int kvf_room_info(kvf_client *client, kvf_room room, struct kvf_room_info *ret_info)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (ret_info == NULL) {
        return -EINVAL;
    }
    struct kvf_cold *cold = &client->cold;
    struct kvf_room_info info = {.size_bytes = 0};
    uint32_t slot = (uint32_t)(room & KVF_SLOT_MASK);
    uint64_t generation = room >> KVF_GENERATION_SHIFT;
    /* With the lock the slot cannot be opened again between the looks. */
    pthread_mutex_lock(&cold->lock);
    uint64_t word;
    err = kvf_client_room_word(client, room, &word);
    if (err == 0) {
        fill_from_line(client, slot, generation, &info);
        fill_leases(client, slot, generation, &info);
        info.state = (int32_t)kvf_word_poll(word);
        info.phase = (int32_t)kvf_word_phase(word);
        info.proof = kvf_word_is_drained(word) ? (int32_t)kvf_word_proof(word) : 0;
        if (info.proof == KVF_WORKER_GONE && info.reason == 0) {
            info.reason = KVF_E_WORKER_GONE;
        }
        if (kvf_word_is_drained(word)) {
            kvf_client_tidy(client, false);
        }
    }
    pthread_mutex_unlock(&cold->lock);
    return err != 0 ? err
                    : kvf_client_copy_out(ret_info, &info, sizeof info,
                                          offsetof(struct kvf_room_info, group_waits));
}

/* Every mapping of shared memory in the product is made here, and nowhere else. */
#ifndef KVF_RING_SEGMENT_H
#define KVF_RING_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/layout.h"

struct kvf_segment_limits {
    uint32_t rooms_max;
    uint32_t cmd_slots;
    uint32_t event_slots;
    uint32_t arena_bytes;
    uint32_t regions_max;
};

/* A checked view of a mapped segment. The limits are copied once at map time and never read again
 * from shared memory. */
struct kvf_segment {
    struct kvf_segment_shm *shm;
    uint64_t bytes;
    struct kvf_segment_limits limits;
    uint64_t client_id;
    unsigned char *cmd_slots;
    unsigned char *arena;
    struct kvf_room_shm *rooms;
    struct kvf_intent_shm *intents;
    _Atomic uint64_t *dirty; /* KVF_DIRTY_SUMMARY_WORDS, then a leaf per 64 rooms */
    unsigned char *event_slots;
    struct kvf_group_key_shm *group_keys; /* NULL in a segment of layout minor 0 */
};

#define KVF_ARENA_BYTES_MIN 4096u

/* Limits a segment may have, with the refusal of each: 0, -EINVAL (zero, not a power of two where it must
 * be, a ring below KVF_SPSC_SLOTS_MIN slots, an arena below KVF_ARENA_BYTES_MIN), -E2BIG (over the
 * KVF_*_MAX of layout.h). */
int kvf_segment_check_limits(const struct kvf_segment_limits *limits);

/* Makes a sealed memfd (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), lays the segment out and stores
 * magic last. All memory is reserved, so a full tmpfs is an error here and never a signal later.
 * Returns 0 and an O_CLOEXEC descriptor owned by the caller. */
int kvf_segment_create(const struct kvf_segment_limits *limits, uint64_t client_id,
                       int *ret_fd);

/* Maps and validates. Every offset of the table is checked against the file's size; nothing is trusted
 * afterwards. dont_fork: MADV_DONTFORK (the library). 0, -EAGAIN (magic not there yet), -EPROTO
 * (table, limits or order spoiled), -ENOTSUP (another major version), -EPERM (seals missing), -errno. */
int kvf_segment_map(int fd, bool dont_fork, struct kvf_segment *ret_segment);
void kvf_segment_unmap(struct kvf_segment *segment);

/* Gives an empty file of a memory file system `bytes` bytes and reserves them all, so that a full one is
 * -ENOSPC (or -ENOMEM, -EFBIG) here and never SIGBUS later. For files that are not memfds: the stats. */
int kvf_memory_reserve(int fd, uint64_t bytes);
/* Plain memory: a sealed memfd of `bytes` (rounded up to a page), reserved. -EINVAL for 0 bytes, -ENOMEM
 * (more than the machine has, too), -errno. */
int kvf_memory_create(const char *name, uint64_t bytes, int *ret_fd);
/* The same in steps, for who must not be held up: begin, then grow from *off = 0 until it answers 0 (whole
 * and sealed). 1: a step of at most 16 MiB was made, and there are more. Until then the memory is not to be
 * handed on. */
int kvf_memory_begin(const char *name, uint64_t bytes, int *ret_fd);
int kvf_memory_grow(int fd, uint64_t bytes, uint64_t *off);
/* Maps [off, off + bytes) of a descriptor shared. -EINVAL unless it lies in the file and off is a
 * multiple of the page size. */
int kvf_memory_map(int fd, uint64_t off, uint64_t bytes, bool writable, bool dont_fork,
                   void **ret_addr);
void kvf_memory_unmap(void *addr, uint64_t bytes);
/* Touches every page of a writable mapping for the caller, so that nobody pays for it later: by a system
 * call that answers a hole or a full tmpfs with an error and never with a signal. 0, -ENOMEM, -EFAULT;
 * -EINVAL on kernels before 5.14, which the caller may ignore. Can take long; not for a loop. */
int kvf_memory_populate(void *addr, uint64_t bytes);
/* Maps zeroed memory of this process alone (segment_private.c). It costs what is touched of it. The first
 * wipe_bytes, a multiple of the page size, read as zero in a forked child. -EINVAL, -errno. Unmapped by
 * kvf_memory_unmap. */
int kvf_memory_map_private(uint64_t bytes, uint64_t wipe_bytes, void **ret_addr);
/* Whether fd is on tmpfs, whose holes read as zero pages: a hugetlb file's hole can be a signal when the
 * pool of huge pages is empty. For what is touched by plain loads and stores (segments, ledgers). */
bool kvf_memory_is_paged(int fd);
/* 0 if fd's file cannot shrink; -EPERM if the seal is missing; -EINVAL not a file that knows seals. */
int kvf_memory_check_seal(int fd);
/* The bytes of a dma-buf, which never change. -EINVAL: fd is none; -errno. */
int kvf_memory_dmabuf_bytes(int fd, uint64_t *ret_bytes);

/* Dirty bits (edge A1): the client marks, the worker takes. Taking visits each marked slot once. Mark,
 * then load the sleeping flag with seq_cst; set the flag with a seq_cst store, then ask is_pending: the
 * same Dekker pair as the ring's (edge D1). The slot is below the segment's rooms_max. */
void kvf_dirty_mark(_Atomic uint64_t *dirty, uint32_t slot);
int kvf_dirty_is_pending(const _Atomic uint64_t *dirty);
/* Takes up to `max` marked slots into ret_slots; what does not fit stays marked. Returns how many. */
uint32_t kvf_dirty_take(_Atomic uint64_t *dirty, uint32_t rooms_max, uint32_t *ret_slots,
                        uint32_t max);

#endif

/* Mappings, and the one place where a segment's table is believed. After kvf_segment_map the process
 * works with pointers and limits of its own; whatever is written over the header later changes nothing. */
#include "ring/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ring/spsc.h"

#define KVF_SEGMENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* One load each, which the compiler may not repeat after the check. */
#define LOAD_ONCE(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1u) & ~(unit - 1u);
}

/* ---- plain memory -------------------------------------------------------------------------------- */

/* A signal makes the kernel give back all that one call has reserved. Steps are small enough for a server
 * with a profiling timer to get each of them through. */
#define KVF_RESERVE_STEP_BYTES (UINT64_C(16) << 20)
#define KVF_RESERVE_TRIES 1000u

static int reserve_step(int fd, uint64_t off, uint64_t bytes)
{
    int err = EINTR;
    for (uint32_t i = 0; i < KVF_RESERVE_TRIES && err == EINTR; i++) {
        err = posix_fallocate(fd, (off_t)off, (off_t)bytes);
    }
    return -err;
}

int kvf_memory_reserve(int fd, uint64_t bytes)
{
    if (bytes == 0) {
        return -EINVAL;
    }
    if (bytes > INT64_MAX) {
        return -EFBIG;
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        return -errno;
    }
    for (uint64_t off = 0; off < bytes; off += KVF_RESERVE_STEP_BYTES) {
        uint64_t step =
            bytes - off < KVF_RESERVE_STEP_BYTES ? bytes - off : KVF_RESERVE_STEP_BYTES;
        int err = reserve_step(fd, off, step);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

/* A request beyond the machine would be met page by page until something was killed for it. */
static int is_beyond_machine(uint64_t bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 && bytes / (uint64_t)page_bytes > (uint64_t)pages;
}

int kvf_memory_begin(const char *name, uint64_t bytes, int *ret_fd)
{
    if (bytes == 0) {
        return -EINVAL;
    }
    if (bytes > INT64_MAX - KVF_PAGE_BYTES || is_beyond_machine(bytes)) {
        return -ENOMEM;
    }
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -errno;
    }
    if (ftruncate(fd, (off_t)round_up(bytes, KVF_PAGE_BYTES)) != 0) {
        int err = -errno;
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return 0;
}

int kvf_memory_grow(int fd, uint64_t bytes, uint64_t *off)
{
    uint64_t whole = round_up(bytes, KVF_PAGE_BYTES);
    uint64_t left = whole - *off;
    uint64_t step = left < KVF_RESERVE_STEP_BYTES ? left : KVF_RESERVE_STEP_BYTES;
    int err = reserve_step(fd, *off, step);
    if (err != 0) {
        return err;
    }
    *off += step;
    if (*off < whole) {
        return 1;
    }
    return fcntl(fd, F_ADD_SEALS, KVF_SEGMENT_SEALS) == 0 ? 0 : -errno;
}

int kvf_memory_create(const char *name, uint64_t bytes, int *ret_fd)
{
    int fd = -1;
    uint64_t off = 0;
    int err = kvf_memory_begin(name, bytes, &fd);
    if (err != 0) {
        return err;
    }
    do {
        err = kvf_memory_grow(fd, bytes, &off);
    } while (err == 1);
    if (err != 0) {
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return 0;
}

static int file_bytes_of(int fd, uint64_t *ret_bytes)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return -errno;
    }
    *ret_bytes = status.st_size < 0 ? 0 : (uint64_t)status.st_size;
    return 0;
}

int kvf_memory_map(int fd, uint64_t off, uint64_t bytes, bool writable, bool dont_fork,
                   void **ret_addr)
{
    uint64_t file_bytes;
    int err = file_bytes_of(fd, &file_bytes);
    if (err != 0) {
        return err;
    }
    if (bytes == 0 || off % KVF_PAGE_BYTES != 0 || off > file_bytes ||
        bytes > file_bytes - off || bytes > SIZE_MAX) {
        return -EINVAL;
    }
    void *addr = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                      MAP_SHARED, fd, (off_t)off);
    if (addr == MAP_FAILED) {
        return -errno;
    }
    if (dont_fork && madvise(addr, (size_t)bytes, MADV_DONTFORK) != 0) {
        err = -errno;
        munmap(addr, (size_t)bytes);
        return err;
    }
    *ret_addr = addr;
    return 0;
}

void kvf_memory_unmap(void *addr, uint64_t bytes)
{
    if (addr != NULL) {
        munmap(addr, (size_t)bytes);
    }
}

bool kvf_memory_is_paged(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

int kvf_memory_populate(void *addr, uint64_t bytes)
{
    return madvise(addr, (size_t)bytes, MADV_POPULATE_WRITE) == 0 ? 0 : -errno;
}

static int check_seals(int fd, int wanted)
{
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        return -errno;
    }
    return (seals & wanted) == wanted ? 0 : -EPERM;
}

int kvf_memory_check_seal(int fd)
{
    return check_seals(fd, F_SEAL_SHRINK);
}

/* Files of this kind live in a file system of their own, which nobody else can put files into. */
int kvf_memory_dmabuf_bytes(int fd, uint64_t *ret_bytes)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0) {
        return -errno;
    }
    if (fs.f_type != DMA_BUF_MAGIC) {
        return -EINVAL;
    }
    off_t end = lseek(fd, 0, SEEK_END); /* the one way to ask: its inode says nothing */
    if (end < 0) {
        return -errno;
    }
    *ret_bytes = (uint64_t)end;
    return 0;
}

/* ---- the segment's layout ------------------------------------------------------------------------ */

static int check_limit(uint32_t value, uint32_t min, uint32_t max, bool is_power_of_two)
{
    if (value > max) {
        return -E2BIG;
    }
    if (value < min || (is_power_of_two && (value & (value - 1u)) != 0)) {
        return -EINVAL;
    }
    return 0;
}

int kvf_segment_check_limits(const struct kvf_segment_limits *limits)
{
    int err = check_limit(limits->rooms_max, 1, KVF_ROOMS_PER_CLIENT_MAX, false);
    if (err == 0) {
        err = check_limit(limits->cmd_slots, KVF_SPSC_SLOTS_MIN, KVF_CMD_SLOTS_MAX, true);
    }
    if (err == 0) {
        err = check_limit(limits->event_slots, KVF_SPSC_SLOTS_MIN, KVF_EVENT_SLOTS_MAX, true);
    }
    if (err == 0) {
        err = check_limit(limits->arena_bytes, KVF_ARENA_BYTES_MIN, KVF_ARENA_BYTES_MAX, true);
    }
    if (err == 0) {
        err = check_limit(limits->regions_max, 1, KVF_REGIONS_PER_CLIENT_MAX, false);
    }
    return err;
}

static uint64_t dirty_leaf_count(uint32_t rooms_max)
{
    return ((uint64_t)rooms_max + 63u) / 64u;
}

/* Whole lines, so that no line has writers of two sections. */
static uint64_t section_bytes(const struct kvf_segment_limits *limits, enum kvf_section section)
{
    switch (section) {
    case KVF_SECTION_CMD_RING:
        return (uint64_t)limits->cmd_slots * sizeof(struct kvf_cmd_shm);
    case KVF_SECTION_ARENA:
        return limits->arena_bytes;
    case KVF_SECTION_DAEMON_LINES:
        return (uint64_t)limits->rooms_max * sizeof(struct kvf_room_shm);
    case KVF_SECTION_CLIENT_LINES:
        return (uint64_t)limits->rooms_max * sizeof(struct kvf_intent_shm);
    case KVF_SECTION_DIRTY:
        return round_up((KVF_DIRTY_SUMMARY_WORDS + dirty_leaf_count(limits->rooms_max)) *
                            sizeof(uint64_t),
                        KVF_LINE_BYTES);
    case KVF_SECTION_EVENT_RING:
        return (uint64_t)limits->event_slots * sizeof(struct kvf_event_shm);
    case KVF_SECTION_GROUP_KEYS:
        return KVF_GROUP_KEYS_MAX * sizeof(struct kvf_group_key_shm);
    case KVF_SECTION_COUNT:
        break;
    }
    return 0;
}

static uint64_t segment_bytes_of(const struct kvf_segment_limits *limits)
{
    uint64_t bytes = sizeof(struct kvf_segment_shm);
    for (uint32_t i = 0; i < KVF_SECTION_COUNT; i++) {
        bytes += section_bytes(limits, (enum kvf_section)i);
    }
    return round_up(bytes, KVF_PAGE_BYTES);
}

static void format_segment(struct kvf_segment_shm *shm, uint64_t bytes,
                           const struct kvf_segment_limits *limits, uint64_t client_id)
{
    shm->layout_major = KVF_LAYOUT_MAJOR;
    shm->layout_minor = KVF_LAYOUT_MINOR;
    shm->endian_tag = KVF_ENDIAN_TAG;
    shm->segment_bytes = bytes;
    shm->client_id = client_id;
    shm->rooms_max = limits->rooms_max;
    shm->cmd_slots = limits->cmd_slots;
    shm->event_slots = limits->event_slots;
    shm->arena_bytes = limits->arena_bytes;
    shm->regions_max = limits->regions_max;

    uint64_t off = sizeof *shm;
    for (uint32_t i = 0; i < KVF_SECTION_COUNT; i++) {
        uint64_t section = section_bytes(limits, (enum kvf_section)i);
        shm->sections[i] = (struct kvf_section_shm){.id = i, .off = off, .bytes = section};
        off += section;
    }
    unsigned char *base = (unsigned char *)shm;
    kvf_spsc_format(base + shm->sections[KVF_SECTION_CMD_RING].off, limits->cmd_slots, 0);
    kvf_spsc_format(base + shm->sections[KVF_SECTION_EVENT_RING].off, limits->event_slots, 0);
    /* S1 (release): whoever reads the magic sees table, limits and empty rings. */
    atomic_store_explicit(&shm->magic, KVF_SEGMENT_MAGIC, memory_order_release);
}

int kvf_segment_create(const struct kvf_segment_limits *limits, uint64_t client_id, int *ret_fd)
{
    int err = kvf_segment_check_limits(limits);
    if (err != 0) {
        return err;
    }
    uint64_t bytes = segment_bytes_of(limits);
    int fd;
    err = kvf_memory_create("kvfence-segment", bytes, &fd);
    if (err != 0) {
        return err;
    }
    void *addr;
    err = kvf_memory_map(fd, 0, bytes, true, false, &addr);
    if (err != 0) {
        close(fd);
        return err;
    }
    format_segment(addr, bytes, limits, client_id);
    kvf_memory_unmap(addr, bytes);
    *ret_fd = fd;
    return 0;
}

/* ---- validation ---------------------------------------------------------------------------------- */

static int read_limits(const struct kvf_segment_shm *shm, uint64_t file_bytes,
                       struct kvf_segment_limits *ret_limits)
{
    /* S1 (acquire): all of the header that format_segment wrote is there. */
    uint64_t magic = atomic_load_explicit(&shm->magic, memory_order_acquire);
    if (magic == 0) {
        return -EAGAIN;
    }
    if (magic != KVF_SEGMENT_MAGIC || LOAD_ONCE(shm->endian_tag) != KVF_ENDIAN_TAG) {
        return -EPROTO;
    }
    if (LOAD_ONCE(shm->layout_major) != KVF_LAYOUT_MAJOR) {
        return -ENOTSUP;
    }
    struct kvf_segment_limits limits = {
        .rooms_max = LOAD_ONCE(shm->rooms_max),
        .cmd_slots = LOAD_ONCE(shm->cmd_slots),
        .event_slots = LOAD_ONCE(shm->event_slots),
        .arena_bytes = LOAD_ONCE(shm->arena_bytes),
        .regions_max = LOAD_ONCE(shm->regions_max),
    };
    if (LOAD_ONCE(shm->segment_bytes) != file_bytes || kvf_segment_check_limits(&limits) != 0) {
        return -EPROTO;
    }
    *ret_limits = limits;
    return 0;
}

/* Copies the table's offsets out and checks the copy: each section whole lines, of the size its limits
 * ask for, behind the header, inside the file, and apart from every other. */
static int read_sections(const struct kvf_segment_shm *shm, uint64_t file_bytes,
                         const struct kvf_segment_limits *limits, uint32_t section_count,
                         uint64_t ret_offs[KVF_SECTION_COUNT])
{
    uint64_t offs[KVF_SECTION_COUNT] = {0};
    for (uint32_t i = 0; i < section_count; i++) {
        uint64_t bytes = LOAD_ONCE(shm->sections[i].bytes);
        offs[i] = LOAD_ONCE(shm->sections[i].off);
        if (LOAD_ONCE(shm->sections[i].id) != i ||
            bytes != section_bytes(limits, (enum kvf_section)i)) {
            return -EPROTO;
        }
        if (offs[i] % KVF_LINE_BYTES != 0 || offs[i] < sizeof *shm || offs[i] > file_bytes ||
            bytes > file_bytes - offs[i]) {
            return -EPROTO;
        }
        for (uint32_t j = 0; j < i; j++) {
            uint64_t other = section_bytes(limits, (enum kvf_section)j);
            if (offs[i] < offs[j] + other && offs[j] < offs[i] + bytes) {
                return -EPROTO;
            }
        }
    }
    memcpy(ret_offs, offs, sizeof offs);
    return 0;
}

int kvf_segment_map(int fd, bool dont_fork, struct kvf_segment *ret_segment)
{
    uint64_t bytes = 0;
    int err = check_seals(fd, F_SEAL_SHRINK | F_SEAL_GROW);
    if (err == 0 && !kvf_memory_is_paged(fd)) {
        err = -EPROTO;
    }
    if (err == 0) {
        err = file_bytes_of(fd, &bytes);
    }
    if (err != 0) {
        return err;
    }
    if (bytes < sizeof(struct kvf_segment_shm) || bytes % KVF_PAGE_BYTES != 0) {
        return -EPROTO;
    }
    void *addr;
    err = kvf_memory_map(fd, 0, bytes, true, dont_fork, &addr);
    if (err != 0) {
        return err;
    }
    struct kvf_segment_shm *shm = addr;
    struct kvf_segment_limits limits;
    uint64_t offs[KVF_SECTION_COUNT];
    uint32_t section_count = 0;
    err = read_limits(shm, bytes, &limits);
    if (err == 0) {
        /* One that an older daemon made, handed in at re-attach, has fewer. */
        section_count =
            LOAD_ONCE(shm->layout_minor) >= 1 ? KVF_SECTION_COUNT : KVF_SECTIONS_BEFORE;
        err = read_sections(shm, bytes, &limits, section_count, offs);
    }
    if (err != 0) {
        kvf_memory_unmap(addr, bytes);
        return err;
    }
    unsigned char *base = addr;
    *ret_segment = (struct kvf_segment){
        .shm = shm,
        .bytes = bytes,
        .limits = limits,
        .client_id = LOAD_ONCE(shm->client_id),
        .cmd_slots = base + offs[KVF_SECTION_CMD_RING],
        .arena = base + offs[KVF_SECTION_ARENA],
        .rooms = (void *)(base + offs[KVF_SECTION_DAEMON_LINES]),
        .intents = (void *)(base + offs[KVF_SECTION_CLIENT_LINES]),
        .dirty = (void *)(base + offs[KVF_SECTION_DIRTY]),
        .event_slots = base + offs[KVF_SECTION_EVENT_RING],
        .group_keys = section_count > KVF_SECTION_GROUP_KEYS
                          ? (void *)(base + offs[KVF_SECTION_GROUP_KEYS])
                          : NULL,
    };
    return 0;
}

void kvf_segment_unmap(struct kvf_segment *segment)
{
    kvf_memory_unmap(segment->shm, segment->bytes);
    *segment = (struct kvf_segment){0};
}

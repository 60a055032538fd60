#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/room_word.h"
#include "ring/segment.h"
#include "ring/spsc.h"

static const struct kvf_segment_limits usual = {
    .rooms_max = 100, .cmd_slots = 16, .event_slots = 8, .arena_bytes = 8192, .regions_max = 4};

static int segment_fd(void)
{
    int fd = -1;
    cr_assert_eq(kvf_segment_create(&usual, 77, &fd), 0);
    return fd;
}

Test(ring_segment, two_mappings_see_one_segment)
{
    int fd = segment_fd();
    struct kvf_segment a;
    struct kvf_segment b;
    cr_assert_eq(kvf_segment_map(fd, false, &a), 0);
    cr_assert_eq(kvf_segment_map(fd, true, &b), 0);
    cr_assert_neq(a.shm, b.shm);
    cr_assert_eq(a.client_id, 77);
    cr_assert_eq(b.limits.rooms_max, 100);
    cr_assert_eq(b.limits.cmd_slots, 16);
    cr_assert_eq(b.limits.event_slots, 8);
    cr_assert_eq(b.limits.arena_bytes, 8192);
    cr_assert_eq(b.limits.regions_max, 4);
    cr_assert_neq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);

    struct kvf_cmd_shm in = {.op = KVF_CMD_SUBMIT, .slot = 42};
    struct kvf_cmd_shm out;
    struct kvf_spsc_producer producer;
    struct kvf_spsc_consumer consumer;
    kvf_spsc_producer_init(&producer, a.cmd_slots, a.limits.cmd_slots, 0);
    kvf_spsc_consumer_init(&consumer, b.cmd_slots, b.limits.cmd_slots, 0);
    cr_assert_eq(kvf_spsc_push(&producer, &in, 1), 1);
    cr_assert_eq(kvf_spsc_pop(&consumer, &out, 1), 1);
    cr_assert_eq(out.slot, 42);

    a.arena[8191] = 5;
    cr_assert_eq(b.arena[8191], 5);
    kvf_dirty_mark(a.dirty, 99);
    uint32_t slot;
    cr_assert_eq(kvf_dirty_take(b.dirty, b.limits.rooms_max, &slot, 1), 1);
    cr_assert_eq(slot, 99);
    atomic_store(&a.rooms[99].word, 1);
    cr_assert_eq(atomic_load(&b.rooms[99].word), 1);
    atomic_store(&a.intents[99].lease_word, 2);
    cr_assert_eq(atomic_load(&b.intents[99].lease_word), 2);
    kvf_segment_unmap(&a);
    kvf_segment_unmap(&b);
    cr_assert_null(a.shm);
    close(fd);
}

Test(ring_segment, a_fresh_segment_is_empty_and_a_segment_cannot_change_its_size)
{
    int fd = segment_fd();
    struct kvf_segment segment;
    cr_assert_eq(kvf_segment_map(fd, false, &segment), 0);
    uint64_t producer_pos = 1;
    uint64_t consumer_pos = 1;
    cr_assert_eq(kvf_spsc_recover(segment.cmd_slots, 16, &producer_pos, &consumer_pos), 0);
    cr_assert_eq(producer_pos, 0);
    cr_assert_eq(consumer_pos, 0);
    cr_assert_eq(kvf_spsc_recover(segment.event_slots, 8, &producer_pos, &consumer_pos), 0);
    cr_assert_eq(producer_pos, 0);
    cr_assert_eq(kvf_dirty_is_pending(segment.dirty), 0);
    cr_assert_eq(atomic_load(&segment.shm->worker_epoch), 0);
    for (uint32_t i = 0; i < usual.rooms_max; i++) {
        cr_assert_eq(atomic_load(&segment.rooms[i].word), 0);
        cr_assert_eq(atomic_load(&segment.intents[i].lease_word), 0);
    }
    cr_assert_neq(ftruncate(fd, 4096), 0);
    cr_assert_eq(errno, EPERM);
    cr_assert_neq(ftruncate(fd, 1 << 20), 0);
    cr_assert_neq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0, "nobody may seal it further");
    kvf_segment_unmap(&segment);
    close(fd);
}

Test(ring_segment, every_limit_has_its_refusal)
{
    struct limit_case {
        struct kvf_segment_limits limits;
        int err;
    } cases[] = {
        {{1, 2, 2, 4096, 1}, 0},
        {{65536, 65536, 65536, 1u << 28, 16}, 0},
        {{100, 16, 16, 4096, 3}, 0},
        {{0, 16, 16, 4096, 1}, -EINVAL},
        {{65537, 16, 16, 4096, 1}, -E2BIG},
        {{1, 0, 16, 4096, 1}, -EINVAL},
        {{1, 1, 16, 4096, 1}, -EINVAL},
        {{1, 24, 16, 4096, 1}, -EINVAL},
        {{1, 131072, 16, 4096, 1}, -E2BIG},
        {{1, 16, 0, 4096, 1}, -EINVAL},
        {{1, 16, 1, 4096, 1}, -EINVAL},
        {{1, 16, 3, 4096, 1}, -EINVAL},
        {{1, 16, 131072, 4096, 1}, -E2BIG},
        {{1, 16, 16, 0, 1}, -EINVAL},
        {{1, 16, 16, 2048, 1}, -EINVAL},
        {{1, 16, 16, 4097, 1}, -EINVAL},
        {{1, 16, 16, 1u << 29, 1}, -E2BIG},
        {{1, 16, 16, 4096, 0}, -EINVAL},
        {{1, 16, 16, 4096, 17}, -E2BIG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(kvf_segment_check_limits(&cases[i].limits), cases[i].err, "case %zu", i);
        int fd = -7;
        if (cases[i].err != 0) {
            cr_assert_eq(kvf_segment_create(&cases[i].limits, 1, &fd), cases[i].err);
            cr_assert_eq(fd, -7);
        }
    }
}

static int raw_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

Test(ring_segment, memory_that_is_no_segment_is_refused_by_name)
{
    struct kvf_segment segment = {.bytes = 3};
    const int missing[] = {0, F_SEAL_SHRINK, F_SEAL_GROW};
    for (int i = 0; i < 3; i++) {
        int fd = raw_memfd(8192, missing[i]);
        cr_assert_eq(kvf_segment_map(fd, true, &segment), -EPERM);
        close(fd);
    }
    int fd = raw_memfd(8192, F_SEAL_SHRINK | F_SEAL_GROW);
    cr_assert_eq(kvf_segment_map(fd, true, &segment), -EAGAIN, "no magic yet");
    close(fd);
    const uint64_t sizes[] = {0, 100, 511, 4095, 4097};
    for (int i = 0; i < 5; i++) {
        fd = raw_memfd(sizes[i], F_SEAL_SHRINK | F_SEAL_GROW);
        cr_assert_eq(kvf_segment_map(fd, true, &segment), -EPROTO);
        close(fd);
    }
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(kvf_segment_map(ends[0], true, &segment), -EINVAL);
    cr_assert_eq(kvf_memory_check_seal(ends[0]), -EINVAL);
    close(ends[0]);
    close(ends[1]);
    cr_assert_eq(kvf_segment_map(ends[0], true, &segment), -EBADF);
    cr_assert_eq(segment.bytes, 3, "outputs are untouched on failure");
}

static int map_with(uint64_t off, const void *bytes, size_t count)
{
    int fd = segment_fd();
    cr_assert_eq(pwrite(fd, bytes, count, (off_t)off), (ssize_t)count);
    struct kvf_segment segment = {0};
    int err = kvf_segment_map(fd, false, &segment);
    if (err == 0) {
        kvf_segment_unmap(&segment);
    }
    close(fd);
    return err;
}

Test(ring_segment, a_segment_of_another_kind_is_refused_by_name)
{
    uint16_t major = KVF_LAYOUT_MAJOR + 1;
    uint16_t minor = KVF_LAYOUT_MINOR + 1;
    uint32_t tag = 0x04030201;
    uint64_t magic = 1;
    uint64_t bytes = 4096;
    cr_assert_eq(map_with(offsetof(struct kvf_segment_shm, layout_major), &major, 2), -ENOTSUP);
    cr_assert_eq(map_with(offsetof(struct kvf_segment_shm, layout_minor), &minor, 2), 0);
    cr_assert_eq(map_with(offsetof(struct kvf_segment_shm, endian_tag), &tag, 4), -EPROTO);
    cr_assert_eq(map_with(offsetof(struct kvf_segment_shm, magic), &magic, 8), -EPROTO);
    cr_assert_eq(map_with(offsetof(struct kvf_segment_shm, segment_bytes), &bytes, 8), -EPROTO);
    uint64_t pad = UINT64_MAX;
    cr_assert_eq(map_with(offsetof(struct kvf_segment_shm, pad1_), &pad, 8), 0);
}

Test(ring_segment, each_lie_of_the_table_is_refused)
{
    int fd = segment_fd();
    struct kvf_segment_shm good;
    cr_assert_eq(pread(fd, &good, sizeof good, 0), (ssize_t)sizeof good);
    close(fd);
    for (uint32_t i = 0; i < KVF_SECTION_COUNT; i++) {
        uint64_t at = offsetof(struct kvf_segment_shm, sections) + i * sizeof good.sections[0];
        struct kvf_section_shm lies[8];
        for (int j = 0; j < 8; j++) {
            lies[j] = good.sections[i];
        }
        lies[0].id++;
        lies[1].off += 8;
        lies[2].off = 0;
        lies[3].off = good.segment_bytes;
        lies[4].off = UINT64_MAX - 63;
        lies[5].bytes -= 64;
        lies[6].bytes = UINT64_MAX;
        lies[7].off = good.sections[(i + 1) % KVF_SECTION_COUNT].off;
        for (int j = 0; j < 8; j++) {
            cr_assert_eq(map_with(at, &lies[j], sizeof lies[j]), -EPROTO, "section %u lie %d",
                         i, j);
        }
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void expect_inside(const struct kvf_segment *segment, const void *section,
                          uint64_t bytes)
{
    uint64_t off = (uint64_t)((const unsigned char *)section - (unsigned char *)segment->shm);
    cr_assert(off >= sizeof(struct kvf_segment_shm) && off % 64 == 0);
    cr_assert(off <= segment->bytes && bytes <= segment->bytes - off);
}

/* Random changes of header bytes: the map is refused, or every section of the view lies in the file and
 * the library's first steps in it are safe. */
Test(ring_segment, a_hostile_header_is_refused_or_harmless)
{
    const uint64_t liked[] = {0,          1,          2,         8,   63,   64,
                              512,        576,        1024,      16,  4096, 8192,
                              UINT32_MAX, UINT64_MAX, INT64_MAX, 100, 65536};
    int fd = segment_fd();
    struct kvf_segment_shm good;
    cr_assert_eq(pread(fd, &good, sizeof good, 0), (ssize_t)sizeof good);
    uint64_t state = 2463534242u;
    uint32_t accepted = 0;
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 6000; round++) {
        struct kvf_segment_shm bad;
        memcpy(&bad, &good, sizeof bad);
        for (uint64_t i = 1 + random_next(&state) % 3; i > 0; i--) {
            uint64_t pick = random_next(&state);
            uint64_t number = pick % 4 == 0
                                  ? random_next(&state)
                                  : liked[pick / 4 % (sizeof liked / sizeof liked[0])];
            uint64_t width = 1u << random_next(&state) % 4;
            uint64_t off = random_next(&state) % 400 / width * width;
            memcpy((unsigned char *)&bad + off, &number, width);
        }
        cr_assert_eq(pwrite(fd, &bad, sizeof bad, 0), (ssize_t)sizeof bad);
        struct kvf_segment s;
        int err = kvf_segment_map(fd, round % 2 == 0, &s);
        if (err != 0) {
            cr_assert(err == -EPROTO || err == -EAGAIN || err == -ENOTSUP);
            refused++;
            continue;
        }
        accepted++;
        cr_assert_eq(kvf_segment_check_limits(&s.limits), 0);
        expect_inside(&s, s.cmd_slots, (uint64_t)s.limits.cmd_slots * 64);
        expect_inside(&s, s.arena, s.limits.arena_bytes);
        expect_inside(&s, s.rooms, (uint64_t)s.limits.rooms_max * 64);
        expect_inside(&s, s.intents, (uint64_t)s.limits.rooms_max * 64);
        expect_inside(&s, (const void *)s.dirty,
                      (KVF_DIRTY_SUMMARY_WORDS + (s.limits.rooms_max + 63u) / 64u) * 8u);
        expect_inside(&s, s.event_slots, (uint64_t)s.limits.event_slots * 64);
        kvf_segment_unmap(&s);
    }
    close(fd);
    cr_assert_gt(accepted, 600);
    cr_assert_gt(refused, 1500);
}

Test(ring_segment, limits_are_not_read_again_after_the_map)
{
    int fd = segment_fd();
    struct kvf_segment segment;
    cr_assert_eq(kvf_segment_map(fd, false, &segment), 0);
    memset(segment.shm, 0xff, sizeof *segment.shm);
    cr_assert_eq(segment.limits.rooms_max, 100);
    cr_assert_eq(segment.bytes % 4096, 0);
    kvf_segment_unmap(&segment);
    close(fd);
}

Test(ring_segment, plain_memory_is_sealed_reserved_and_mapped_within_its_bounds)
{
    int fd = -1;
    cr_assert_eq(kvf_memory_create("pool", 5000, &fd), 0);
    struct stat status;
    cr_assert_eq(fstat(fd, &status), 0);
    cr_assert_eq(status.st_size, 8192);
    cr_assert_geq(status.st_blocks * 512, 8192, "every page is there before the first touch");
    cr_assert_eq(kvf_memory_check_seal(fd), 0);
    void *addr = NULL;
    cr_assert_eq(kvf_memory_map(fd, 4096, 4096, true, false, &addr), 0);
    memset(addr, 1, 4096);
    kvf_memory_unmap(addr, 4096);
    addr = NULL;
    cr_assert_eq(kvf_memory_map(fd, 0, 8193, true, false, &addr), -EINVAL);
    cr_assert_eq(kvf_memory_map(fd, 8192, 1, true, false, &addr), -EINVAL);
    cr_assert_eq(kvf_memory_map(fd, 100, 100, true, false, &addr), -EINVAL);
    cr_assert_eq(kvf_memory_map(fd, 0, 0, true, false, &addr), -EINVAL);
    cr_assert_eq(kvf_memory_map(fd, 4096, UINT64_MAX - 4095, true, false, &addr), -EINVAL);
    cr_assert_null(addr);
    close(fd);
    int unsealed = raw_memfd(4096, 0);
    cr_assert_eq(kvf_memory_check_seal(unsealed), -EPERM);
    close(unsealed);
}

Test(ring_segment, memory_beyond_the_machine_is_an_errno_at_once)
{
    int fd = -7;
    cr_assert_eq(kvf_memory_create("pool", 0, &fd), -EINVAL);
    cr_assert_eq(kvf_memory_create("pool", UINT64_C(1) << 50, &fd), -ENOMEM);
    cr_assert_eq(kvf_memory_create("pool", UINT64_MAX, &fd), -ENOMEM);
    cr_assert_eq(fd, -7);
}

/* A tmpfs of 64 KiB in a mount namespace of this test's own. */
Test(ring_segment, a_full_memory_file_system_is_an_errno_and_never_a_signal)
{
    char dir[] = "/tmp/kvf-small-XXXXXX";
    if (mkdtemp(dir) == NULL) {
        cr_skip_test("no temporary folder: %s", strerror(errno));
    }
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", dir, "tmpfs", 0, "size=64k") != 0) {
        int err = errno;
        rmdir(dir);
        cr_skip_test("mounting a small tmpfs needs root: %s", strerror(err));
    }
    char path[64];
    snprintf(path, sizeof path, "%s/stats", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    cr_assert_geq(fd, 0);
    cr_assert_eq(kvf_memory_reserve(fd, 1 << 20), -ENOSPC);
    cr_assert_eq(kvf_memory_reserve(fd, 0), -EINVAL);
    cr_assert_eq(ftruncate(fd, 0), 0);
    cr_assert_eq(kvf_memory_reserve(fd, 32768), 0);
    void *addr;
    cr_assert_eq(kvf_memory_map(fd, 0, 32768, true, false, &addr), 0);
    memset(addr, 1, 32768);
    kvf_memory_unmap(addr, 32768);
    close(fd);
    cr_assert_eq(umount(dir), 0);
    cr_assert_eq(rmdir(dir), 0);
}

static int is_mapped_in_child(const void *addr)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        /* write(2) answers EFAULT for an address that is not mapped. */
        _exit(write(ends[1], addr, 1) == 1 ? 1 : 0);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    close(ends[0]);
    close(ends[1]);
    return WEXITSTATUS(status);
}

Test(ring_segment, a_child_does_not_inherit_what_was_mapped_not_to_fork)
{
    int fd = segment_fd();
    struct kvf_segment library;
    struct kvf_segment daemon;
    cr_assert_eq(kvf_segment_map(fd, true, &library), 0);
    cr_assert_eq(kvf_segment_map(fd, false, &daemon), 0);
    cr_assert_eq(is_mapped_in_child(daemon.shm), 1);
    cr_assert_eq(is_mapped_in_child(library.shm), 0);
    kvf_segment_unmap(&library);
    kvf_segment_unmap(&daemon);
    close(fd);
}

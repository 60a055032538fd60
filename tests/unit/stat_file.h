/* A stats file as a daemon would write it, for the tests of its reader. */
#ifndef KVF_TESTS_STAT_FILE_H
#define KVF_TESTS_STAT_FILE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ring/stats.h"

#define STAT_VALUES 4u

static const struct kvf_stats_def stat_defs[] = {
    {"rooms_opened_total", "rooms", KVF_STATS_COUNTER},
    {"proof_landed_total", "rooms", KVF_STATS_COUNTER},
    {"rooms_open", "rooms", KVF_STATS_GAUGE},
    {"moons_seen", "moons", KVF_STATS_GAUGE}, /* of a build that is newer than this reader */
    {"abort_to_drained_us", "us", KVF_STATS_HISTOGRAM},
};
#define STAT_DEFS (sizeof stat_defs / sizeof stat_defs[0])

struct stat_dir {
    char path[64];
};

static inline uint64_t stat_now_ns(void)
{
    struct timespec now;
    cr_assert_eq(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static inline void stat_dir_make(struct stat_dir *dir)
{
    (void)snprintf(dir->path, sizeof dir->path, "/tmp/kvf-stat-XXXXXX");
    cr_assert_not_null(mkdtemp(dir->path));
}

static inline void stat_dir_remove(const struct stat_dir *dir)
{
    char path[512];
    struct dirent *entry;
    DIR *opened = opendir(dir->path);

    cr_assert_not_null(opened);
    while ((entry = readdir(opened)) != NULL) {
        (void)snprintf(path, sizeof path, "%s/%s", dir->path, entry->d_name);
        (void)unlink(path);
    }
    (void)closedir(opened);
    cr_assert_eq(rmdir(dir->path), 0);
}

/* A formatted image with numbers in it; the caller frees it. */
static inline struct kvf_stats_shm *stat_image(const char *name, enum kvf_stats_state state,
                                               uint64_t beat_ns, uint64_t *ret_bytes)
{
    uint64_t bytes = kvf_stats_bytes(stat_defs, STAT_DEFS);
    struct kvf_stats_shm *shm = calloc(1, bytes);

    cr_assert_not_null(shm);
    cr_assert_eq(kvf_stats_format(shm, name, "9.8.7", stat_defs, STAT_DEFS), 0);
    kvf_stats_begin(shm);
    kvf_stats_set(shm, 0, 1234567);
    kvf_stats_set(shm, 1, 42);
    kvf_stats_set(shm, 2, 3);
    kvf_stats_set(shm, 3, 2);
    for (uint64_t us = 1; us <= 1000; us++) {
        kvf_stats_record(shm, 0, us * 10u);
    }
    shm->started_ns = beat_ns > UINT64_C(10000000000) ? beat_ns - UINT64_C(10000000000) : 1;
    shm->heartbeat_ns = beat_ns;
    shm->worker_epoch = UINT64_MAX - 1u;
    shm->worker_pid = 4711;
    shm->state = state;
    kvf_stats_end(shm);
    *ret_bytes = bytes;
    return shm;
}

static inline void stat_write(const struct stat_dir *dir, const char *name, const void *image,
                              uint64_t bytes)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s.stats", dir->path, name);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(image, 1, bytes, file), bytes);
    cr_assert_eq(fclose(file), 0);
}

/* The daemon `name`, last heard of `silent_ns` ago. */
static inline void stat_put(const struct stat_dir *dir, const char *name,
                            enum kvf_stats_state state, uint64_t silent_ns)
{
    uint64_t bytes = 0;
    struct kvf_stats_shm *shm = stat_image(name, state, stat_now_ns() - silent_ns, &bytes);

    stat_write(dir, name, shm, bytes);
    free(shm);
}

#endif

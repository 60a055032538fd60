/* Reading a stats file that may be anything. Order matters: first what the kernel says of the file, then
 * a mapping of exactly that many bytes, then a copy, and from there on only the copy is looked at, with
 * every offset checked against its size again: the header in a copy of a torn file proves nothing. */
#include "client/stat/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ring/segment.h"

static sigjmp_buf shrunk_jump;

static void on_bus_error(int signum)
{
    siglongjmp(shrunk_jump, signum);
}

/* A file cut short between fstat and the copy raises SIGBUS; here it becomes -ENODATA. On -ENOTSUP the version
 * is known. */
static int guarded_snapshot(const struct kvf_stats_shm *shm, uint64_t bytes, void *ret_copy,
                            uint16_t ret_version[2])
{
    struct sigaction ours = {.sa_handler = on_bus_error};
    struct sigaction before;
    int rc;

    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, &ours, &before) != 0) {
        return -errno;
    }
    if (sigsetjmp(shrunk_jump, 1) == 0) {
        rc = kvf_stats_snapshot(shm, bytes, ret_copy);
        ret_version[0] = __atomic_load_n(&shm->major, __ATOMIC_RELAXED);
        ret_version[1] = __atomic_load_n(&shm->minor, __ATOMIC_RELAXED);
    } else {
        rc = -ENODATA;
    }
    (void)sigaction(SIGBUS, &before, NULL);
    return rc;
}

static const char *snapshot_sentence(int rc)
{
    switch (-rc) {
    case EAGAIN:
        return "its daemon has not written it yet; try again in a moment";
    case EPROTO:
        return "it is not a stats file of this machine, or its header is spoiled";
    case ENODATA:
        return "it became shorter while it was read";
    default:
        return strerror(-rc);
    }
}

/* Copies a name of at most `bytes` bytes and makes it safe to print. False if it is empty or not
 * terminated. */
static bool take_text(char *ret_text, const unsigned char *from, size_t bytes)
{
    if (memchr(from, 0, bytes) == NULL) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = from[i];
        if (c == 0) {
            ret_text[i] = '\0';
            return i > 0;
        }
        ret_text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    return false;
}

static bool lies_within(uint64_t off, uint64_t count, uint64_t each, uint64_t bytes)
{
    return off % 8u == 0 && off <= bytes && count <= (bytes - off) / each;
}

/* NULL, or what is wrong with the copy's table. */
static const char *take_entry(struct kvf_stat_daemon *daemon,
                              const struct kvf_stats_shm *header, uint32_t idx)
{
    const unsigned char *copy = daemon->copy;
    struct kvf_stat_entry *entry = &daemon->entries[daemon->entry_count];
    struct kvf_stats_name_shm name;

    memcpy(&name, copy + header->names_off + (uint64_t)idx * sizeof name, sizeof name);
    if (!take_text(entry->name, (const unsigned char *)name.name, sizeof name.name)) {
        return "a name in it is empty or does not end";
    }
    if (name.unit[0] != '\0' &&
        !take_text(entry->unit, (const unsigned char *)name.unit, sizeof name.unit)) {
        return "a unit in it does not end";
    }
    if (kvf_stat_find(daemon, entry->name) != NULL) {
        return "it holds one name twice";
    }
    switch (name.kind) {
    case KVF_STATS_COUNTER:
    case KVF_STATS_GAUGE:
        if (name.index >= header->value_count) {
            return "a name in it points behind its values";
        }
        memcpy(&entry->value, copy + header->values_off + (uint64_t)name.index * 8u, 8u);
        break;
    case KVF_STATS_HISTOGRAM:
        if (name.index >= header->histogram_count) {
            return "a name in it points behind its histograms";
        }
        entry->histogram =
            (const struct kvf_histogram_shm *)(const void *)(copy + header->histograms_off +
                                                             (uint64_t)name.index *
                                                                 sizeof(
                                                                     struct kvf_histogram_shm));
        break;
    default:
        return NULL; /* a kind that a newer daemon added: the others still show */
    }
    entry->kind = (enum kvf_stats_kind)name.kind;
    daemon->entry_count++;
    return NULL;
}

static const char *take_copy(struct kvf_stat_daemon *daemon, uint64_t bytes)
{
    struct kvf_stats_shm header;

    memcpy(&header, daemon->copy, sizeof header);
    if (header.name_count > KVF_STAT_ENTRIES_MAX || header.value_count > KVF_STATS_VALUES_MAX ||
        header.histogram_count > KVF_STATS_HISTOGRAMS_MAX) {
        return "it claims more values than a daemon can have";
    }
    if (!lies_within(header.names_off, header.name_count, sizeof(struct kvf_stats_name_shm),
                     bytes) ||
        !lies_within(header.values_off, header.value_count, 8u, bytes) ||
        !lies_within(header.histograms_off, header.histogram_count,
                     sizeof(struct kvf_histogram_shm), bytes)) {
        return "a table in it lies outside the file";
    }
    if (!take_text(daemon->name, (const unsigned char *)header.daemon_name,
                   sizeof header.daemon_name) ||
        !take_text(daemon->version, (const unsigned char *)header.version,
                   sizeof header.version)) {
        return "the daemon's name or version in it is empty or does not end";
    }
    for (uint32_t i = 0; i < header.name_count; i++) {
        const char *wrong = take_entry(daemon, &header, i);
        if (wrong != NULL) {
            return wrong;
        }
    }
    daemon->worker_epoch = header.worker_epoch;
    daemon->worker_pid = header.worker_pid;
    daemon->started_ns = header.started_ns;
    daemon->stats_minor = header.minor;
    daemon->layout_major = header.layout_major;
    daemon->layout_minor = header.layout_minor;
    daemon->wire_major = header.wire_major;
    daemon->wire_minor = header.wire_minor;
    daemon->rows = kvf_stats_rows(daemon->copy);
    return NULL;
}

void kvf_stat_judge(struct kvf_stat_daemon *daemon, uint64_t now_ns)
{
    const struct kvf_stats_shm *header = daemon->copy;
    uint64_t started_ns = atomic_load_explicit(&header->started_ns, memory_order_relaxed);
    uint64_t beat_ns = atomic_load_explicit(&header->heartbeat_ns, memory_order_relaxed);
    uint32_t state = atomic_load_explicit(&header->state, memory_order_relaxed);

    if (beat_ns == 0) {
        beat_ns = started_ns; /* it has just been made: its start is the only sign of life */
    }
    /* A beat of the future was written before this machine booted. */
    daemon->has_silence = beat_ns != 0 && beat_ns <= now_ns;
    daemon->silent_ns = daemon->has_silence ? now_ns - beat_ns : 0;
    switch (state) {
    case KVF_STATS_STARTING:
        daemon->health = KVF_STAT_STARTING;
        break;
    case KVF_STATS_STOPPING:
        daemon->health = KVF_STAT_STOPPING;
        break;
    case KVF_STATS_STOPPED:
        daemon->health = KVF_STAT_STOPPED;
        break;
    case KVF_STATS_RUNNING:
    default: /* a state of a newer daemon: its beat says whether it lives */
        daemon->health = KVF_STAT_RUNNING;
        break;
    }
    if (daemon->health != KVF_STAT_STOPPED &&
        (!daemon->has_silence || daemon->silent_ns > KVF_STAT_STALE_NS)) {
        daemon->health = KVF_STAT_STALE;
    }
    uint64_t until_ns = beat_ns;
    if (daemon->health != KVF_STAT_STOPPED && daemon->health != KVF_STAT_STALE) {
        until_ns = now_ns;
    }
    daemon->up_ns = started_ns != 0 && started_ns <= until_ns ? until_ns - started_ns : 0;
}

const char *kvf_stat_health_name(enum kvf_stat_health health)
{
    switch (health) {
    case KVF_STAT_STARTING:
        return "starting";
    case KVF_STAT_RUNNING:
        return "running";
    case KVF_STAT_STOPPING:
        return "stopping";
    case KVF_STAT_STOPPED:
        return "stopped";
    case KVF_STAT_STALE:
        return "stale";
    }
    return "?";
}

struct kvf_stat_entry *kvf_stat_find(struct kvf_stat_daemon *daemon, const char *name)
{
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        if (strcmp(daemon->entries[i].name, name) == 0) {
            return &daemon->entries[i];
        }
    }
    return NULL;
}

uint64_t kvf_stat_value(const struct kvf_stat_daemon *daemon, const char *name)
{
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        const struct kvf_stat_entry *entry = &daemon->entries[i];
        if (entry->kind != KVF_STATS_HISTOGRAM && strcmp(entry->name, name) == 0) {
            return entry->value;
        }
    }
    return 0;
}

const struct kvf_histogram_shm *kvf_stat_histogram(const struct kvf_stat_daemon *daemon,
                                                   const char *name)
{
    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        const struct kvf_stat_entry *entry = &daemon->entries[i];
        if (entry->kind == KVF_STATS_HISTOGRAM && strcmp(entry->name, name) == 0) {
            return entry->histogram;
        }
    }
    return NULL;
}

void kvf_stat_printable(const char *from, size_t bytes, char *ret_text)
{
    size_t i = 0;

    for (; i < bytes && from[i] != '\0'; i++) {
        ret_text[i] = from[i] >= 0x20 && from[i] < 0x7f ? from[i] : '?';
    }
    ret_text[i] = '\0';
}

uint64_t kvf_stat_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* O_NONBLOCK: a FIFO put there must not hang an operator's tool. */
static int open_checked(const char *path, int *ret_fd, uint64_t *ret_bytes, char *ret_why)
{
    struct stat st;
    int rc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0) {
        rc = -errno;
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: cannot be opened: %s", path,
                       strerror(-rc));
        return rc;
    }
    if (fstat(fd, &st) != 0) {
        rc = -errno;
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: %s", path, strerror(-rc));
    } else if (!S_ISREG(st.st_mode)) {
        rc = -EINVAL;
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: is not a regular file", path);
    } else if ((uint64_t)st.st_size < sizeof(struct kvf_stats_shm)) {
        rc = -EPROTO;
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES,
                       "%.200s: has %" PRIu64 " bytes; a stats file has at least %zu", path,
                       (uint64_t)st.st_size, sizeof(struct kvf_stats_shm));
    } else if ((uint64_t)st.st_size > KVF_STAT_FILE_BYTES_MAX) {
        rc = -EFBIG;
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES,
                       "%.200s: has %" PRIu64 " bytes; a stats file has at most %" PRIu64, path,
                       (uint64_t)st.st_size, KVF_STAT_FILE_BYTES_MAX);
    }
    if (rc != 0) {
        (void)close(fd);
        return rc;
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

static void say_version(const uint16_t version[2], const char *path, char *ret_why)
{
    (void)snprintf(ret_why, KVF_STAT_WHY_BYTES,
                   "%.200s: it was written by a daemon of another major version (stats layout "
                   "%u.%u, this program reads %u.x); use the kvfence-stat that came with that "
                   "daemon",
                   path, version[0], version[1], KVF_STATS_MAJOR);
}

static int copy_file(const char *path, void **ret_copy, uint64_t *ret_bytes, bool *ret_is_torn,
                     char *ret_why)
{
    uint64_t bytes = 0;
    void *map = NULL;
    void *copy = NULL;
    uint16_t version[2] = {0, 0};
    int fd = -1;
    int rc = open_checked(path, &fd, &bytes, ret_why);

    if (rc != 0) {
        return rc;
    }
    rc = kvf_memory_map(fd, 0, bytes, false, false, &map);
    if (rc != 0) {
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: cannot be mapped: %s", path,
                       strerror(-rc));
        goto out_close;
    }
    copy = calloc(1, (size_t)bytes);
    if (copy == NULL) {
        rc = -ENOMEM;
    } else {
        rc = guarded_snapshot(map, bytes, copy, version);
    }
    /* The writer died inside an update, or is too fast for a reader: shown, and marked. */
    bool is_torn = rc == -EBUSY;
    if (rc == -ENOTSUP) {
        say_version(version, path, ret_why);
        goto out_unmap;
    }
    if (rc != 0 && !is_torn) {
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: %s", path, snapshot_sentence(rc));
        goto out_unmap;
    }
    rc = 0;
    *ret_copy = copy;
    *ret_bytes = bytes;
    *ret_is_torn = is_torn;
    copy = NULL;

out_unmap:
    free(copy);
    kvf_memory_unmap(map, bytes);
out_close:
    (void)close(fd);
    return rc;
}

int kvf_stat_read(const char *path, struct kvf_stat_daemon **ret_daemon, char *ret_why)
{
    struct kvf_stat_daemon *daemon = calloc(1, sizeof *daemon);
    uint64_t bytes = 0;
    int rc;

    if (daemon == NULL) {
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: out of memory", path);
        return -ENOMEM;
    }
    rc = copy_file(path, &daemon->copy, &bytes, &daemon->is_torn, ret_why);
    if (rc != 0) {
        goto out_free;
    }
    const char *wrong = take_copy(daemon, bytes);
    if (wrong != NULL) {
        rc = -EPROTO;
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES, "%.200s: %s", path, wrong);
        goto out_free;
    }
    /* Read behind the copy, so that a beat in the copy is never of the future. */
    daemon->read_ns = kvf_stat_now_ns();
    kvf_stat_judge(daemon, daemon->read_ns);
    *ret_daemon = daemon;
    return 0;

out_free:
    kvf_stat_free(daemon);
    return rc;
}

void kvf_stat_free(struct kvf_stat_daemon *daemon)
{
    if (daemon != NULL) {
        free(daemon->copy);
        free(daemon);
    }
}

/* One stats file, read once and checked: what the table and the JSON are made from.
 *
 * A stats file is the world's. It may be cut short, hostile, of another version, or written to while it
 * is read; every such case is refused by a sentence, and nothing of it reaches a terminal unfiltered. */
#ifndef KVF_STAT_SNAPSHOT_H
#define KVF_STAT_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/stats.h"

/* A running daemon beats at least every 500 ms; four missed beats are silence. */
#define KVF_STAT_STALE_NS UINT64_C(2000000000)
/* Far above what any build writes, far below what would hurt a reader. */
#define KVF_STAT_FILE_BYTES_MAX (UINT64_C(16) << 20)
#define KVF_STAT_ENTRIES_MAX (KVF_STATS_VALUES_MAX + KVF_STATS_HISTOGRAMS_MAX)
#define KVF_STAT_WHY_BYTES 384u

enum kvf_stat_health {
    KVF_STAT_STARTING = 0,
    KVF_STAT_RUNNING = 1,
    KVF_STAT_STOPPING = 2,
    KVF_STAT_STOPPED = 3,
    KVF_STAT_STALE = 4, /* did not say that it stopped, and has been silent for too long */
};

struct kvf_stat_entry {
    char name[44]; /* printable ASCII, other bytes replaced by '?' */
    char unit[12];
    enum kvf_stats_kind kind;
    uint64_t value;                            /* counters and gauges */
    const struct kvf_histogram_shm *histogram; /* histograms; points into the copy */
    bool is_shown; /* the table's: what nobody took goes to "other" */
};

struct kvf_stat_daemon {
    char name[64];
    char version[64];
    enum kvf_stat_health health;
    bool is_torn;       /* its writer stopped inside an update: numbers may be of two moments */
    bool has_silence;   /* silent_ns is known; not so after a reboot or before a first beat */
    uint64_t silent_ns; /* since the last beat */
    uint64_t up_ns;     /* start to now, or to the last beat of one that runs no more */
    uint64_t worker_epoch;
    uint32_t worker_pid;
    uint64_t
        started_ns; /* of the supervisor: another value is another daemon, which counts from 0 */
    uint64_t read_ns; /* CLOCK_MONOTONIC behind the copy */
    uint16_t stats_minor;
    uint16_t layout_major; /* 0.0: an older daemon did not say */
    uint16_t layout_minor;
    uint16_t wire_major;
    uint16_t wire_minor;
    const struct kvf_stats_rows_shm
        *rows; /* NULL: there are none to be had; points into the copy */
    uint32_t entry_count;
    void *copy; /* owned; histograms and rows point into it */
    struct kvf_stat_entry entries[KVF_STAT_ENTRIES_MAX];
};

/* Reads and checks the file at `path`, and judges its age by the monotonic clock. Needs read rights
 * only. 0 and a daemon owned by the caller; else a negative errno, and ret_why (KVF_STAT_WHY_BYTES) has
 * a sentence that begins with the path. Not for two threads at once: it guards its reads against a file
 * that shrinks under them with a signal handler. */
int kvf_stat_read(const char *path, struct kvf_stat_daemon **ret_daemon, char *ret_why);
void kvf_stat_free(struct kvf_stat_daemon *daemon);

/* The part of kvf_stat_read that depends on the time, for tests. */
void kvf_stat_judge(struct kvf_stat_daemon *daemon, uint64_t now_ns);

const char *kvf_stat_health_name(enum kvf_stat_health health);
struct kvf_stat_entry *kvf_stat_find(struct kvf_stat_daemon *daemon, const char *name);
/* Of a counter or gauge; 0 if the file has none of that name. */
uint64_t kvf_stat_value(const struct kvf_stat_daemon *daemon, const char *name);
/* NULL if the file has none of that name. */
const struct kvf_histogram_shm *kvf_stat_histogram(const struct kvf_stat_daemon *daemon,
                                                   const char *name);
/* Bytes that may be anything and may not end, as printable ASCII. ret_text has bytes + 1. */
void kvf_stat_printable(const char *from, size_t bytes, char *ret_text);
uint64_t kvf_stat_now_ns(void); /* CLOCK_MONOTONIC */

#endif

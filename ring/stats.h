/* The stats file: how operators see a daemon without being able to disturb it.
 *
 * The supervisor creates <run dir>/<name>.stats (mode 0644) and hands the mapping to the worker; exactly
 * one process writes at a time (worker, or supervisor after it reaped the worker). Names and units stand
 * in the file, so a reader of another build shows what it finds. A sequence counter around every update
 * makes a torn snapshot detectable; a reader retries a bounded number of times and then says so. */
#ifndef KVF_RING_STATS_H
#define KVF_RING_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_STATS_MAGIC UINT64_C(0x317374617473766b) /* "kvstats1" */
#define KVF_STATS_MAJOR 1u
#define KVF_STATS_MINOR 0u
#define KVF_STATS_VALUES_MAX 256u
#define KVF_STATS_HISTOGRAMS_MAX 16u

/* Log-scale buckets: 4 per power of two, so a value is known within 25 %; bucket 0..3 are exact. */
#define KVF_HISTOGRAM_BUCKETS 256u

enum kvf_stats_kind { KVF_STATS_COUNTER = 1, KVF_STATS_GAUGE = 2, KVF_STATS_HISTOGRAM = 3 };

/* What the writer last said of itself. STOPPED is a clean end; a writer that died says RUNNING and its
 * heartbeat stands still. */
enum kvf_stats_state {
    KVF_STATS_STARTING = 0,
    KVF_STATS_RUNNING = 1,
    KVF_STATS_STOPPING = 2,
    KVF_STATS_STOPPED = 3,
};

struct kvf_stats_name_shm { /* one per value or histogram */
    char name[44];          /* lower_case_with_units_last, NUL-terminated */
    char unit[12];
    uint32_t kind;
    uint32_t index; /* into values or histograms */
};
_Static_assert(sizeof(struct kvf_stats_name_shm) == 64, "name entry");

struct kvf_histogram_shm {
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
    _Atomic uint64_t max;
    uint64_t pad_[5];
    _Atomic uint64_t buckets[KVF_HISTOGRAM_BUCKETS];
};
_Static_assert(sizeof(struct kvf_histogram_shm) == 64 + 8 * KVF_HISTOGRAM_BUCKETS, "histogram");

struct kvf_stats_shm {
    _Atomic uint64_t magic; /* stored last */
    uint16_t major;
    uint16_t minor;
    uint32_t endian_tag;
    uint64_t file_bytes;
    uint32_t name_count;
    uint32_t value_count;
    uint32_t histogram_count;
    uint32_t pad0_;
    uint64_t names_off;
    uint64_t values_off;
    uint64_t histograms_off;
    /* line 1 */
    uint64_t pad1_[8];
    /* line 2: the writer */
    _Atomic uint64_t seq;          /* odd while an update runs (edges T1, T2) */
    _Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of this host, at least every 500 ms */
    _Atomic uint64_t started_ns;
    _Atomic uint64_t worker_epoch;
    _Atomic uint32_t state;
    _Atomic uint32_t worker_pid;
    uint64_t pad2_[3];
    /* line 3, 4: who it is */
    char daemon_name[64];
    char version[64];
};
_Static_assert(offsetof(struct kvf_stats_shm, seq) == 128, "line 2");
_Static_assert(sizeof(struct kvf_stats_shm) == 320, "stats header");

/* One entry of the table a writer is created from. */
struct kvf_stats_def {
    const char *name;
    const char *unit;
    enum kvf_stats_kind kind;
};

/* Bytes of a file for these definitions. Values (counters and gauges) and histograms are numbered
 * separately, each in the order of the definitions. */
uint64_t kvf_stats_bytes(const struct kvf_stats_def *defs, uint32_t def_count);
int kvf_stats_format(struct kvf_stats_shm *shm, const char *daemon_name, const char *version,
                     const struct kvf_stats_def *defs, uint32_t def_count);

/* Writer: everything between begin and end is seen by a reader as one change (T1, T2). begin also takes
 * over after a writer that died between the two. The heartbeat is one value and needs neither. */
void kvf_stats_begin(struct kvf_stats_shm *shm);
void kvf_stats_end(struct kvf_stats_shm *shm);
void kvf_stats_set(struct kvf_stats_shm *shm, uint32_t value_idx, uint64_t value);
void kvf_stats_record(struct kvf_stats_shm *shm, uint32_t histogram_idx, uint64_t value);
void kvf_stats_heartbeat(struct kvf_stats_shm *shm, uint64_t now_ns);

uint32_t kvf_histogram_bucket(uint64_t value);
uint64_t kvf_histogram_bucket_floor(uint32_t bucket);
/* Upper edge of the bucket in which the given share (0..1000 per mille) lies, capped at max. */
uint64_t kvf_histogram_quantile(const struct kvf_histogram_shm *h, uint32_t per_mille);

/* Reader: checks every offset of a mapping of `bytes` bytes against the mapping, then copies the file
 * into `ret_copy` (same bytes). 0; -EAGAIN not yet formatted; -EPROTO spoiled or of another order;
 * -ENOTSUP another major; -EBUSY torn in each of a bounded number of tries (the writer died inside an
 * update: the copy is then filled but may be mixed). After another error the copy holds nothing of use.
 * A filled copy is safe to walk: its header, offsets, names (NUL-terminated) and indices were checked. */
int kvf_stats_snapshot(const struct kvf_stats_shm *shm, uint64_t bytes, void *ret_copy);
/* In a copy made by kvf_stats_snapshot. NULL, or -ENOENT, if there is no such name of that kind. */
const struct kvf_histogram_shm *kvf_stats_find_histogram(const void *copy, const char *name);
int kvf_stats_find_value(const void *copy, const char *name, uint64_t *ret_value);

#endif

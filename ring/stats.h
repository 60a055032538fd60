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

#include "ring/layout.h"

#define KVF_STATS_MAGIC UINT64_C(0x317374617473766b) /* "kvstats1" */
#define KVF_STATS_MAJOR 1u
#define KVF_STATS_MINOR 1u
#define KVF_STATS_VALUES_MAX 256u
#define KVF_STATS_HISTOGRAMS_MAX 16u
#define KVF_STATS_PEERS_MAX 128u
#define KVF_STATS_LANES_MAX 128u
#define KVF_STATS_ROOMS_MAX 64u

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

/* ---- rows: what there is one of per peer, lane and room. Since minor 1 -------------------------------- */

struct kvf_stats_peer_shm {
    uint64_t peer_id;  /* its supervisor; 0: not known */
    uint64_t heard_ns; /* CLOCK_MONOTONIC: its last answer, or the connect; 0: not asked */
    struct kvf_addr_shm addr; /* where it listens; family 0: it connected to us */
    uint32_t worker_starts;   /* with peer_id: its incarnation */
    uint32_t state;           /* enum kvf_operate_peer_state */
    uint32_t is_sink; /* it writes nothing here: it connected to us, as sink of our sources */
    uint32_t is_down; /* by an operator's word */
    uint32_t grants;  /* not proven yet */
    uint32_t waiting; /* grants that wait for credits */
    uint32_t lanes_up;
    uint32_t dials; /* connections that we made to it so far */
    char name[32];  /* what it calls itself, any bytes */
    uint64_t pad_[3];
};
_Static_assert(sizeof(struct kvf_stats_peer_shm) == 128, "peer row");

enum kvf_stats_lane_state {
    KVF_STATS_LANE_OPENING = 1,
    KVF_STATS_LANE_UP = 2,
    KVF_STATS_LANE_FENCING = 3,
    KVF_STATS_LANE_WAITING = 4, /* was fenced, and is to be opened again */
};

struct kvf_stats_lane_shm {
    uint64_t moved_bytes;    /* placed as sink, completed with success as source */
    uint64_t posted_bytes;   /* posted and not completed */
    uint64_t window_bytes;   /* posted_bytes stays below */
    uint64_t fence_since_ns; /* FENCING */
    uint32_t peer;           /* its row */
    uint32_t lane;           /* among its peer's */
    uint32_t state;          /* enum kvf_stats_lane_state */
    uint32_t opened;         /* so often, the first time included */
    uint32_t credits_out;    /* sink: grants that hold a receive of it ... */
    uint32_t credits_max;    /* ... and how many may */
    uint32_t is_device;      /* a queue pair: as sink nobody here sees its bytes */
    uint32_t pad0_;
    uint64_t pad_[4];
};
_Static_assert(sizeof(struct kvf_stats_lane_shm) == 96, "lane row");

struct kvf_stats_room_shm { /* in quarantine */
    uint64_t generation;
    uint64_t label;
    uint64_t key;
    uint64_t
        closed_ns;  /* CLOCK_MONOTONIC; of a room of an earlier worker when it was taken over */
    uint64_t pages; /* 0: not known */
    uint32_t client;
    uint32_t slot;
    uint32_t phase;  /* enum kvf_phase */
    uint32_t side;   /* 1: a sink, 0: a source, 2: of an earlier worker, not known */
    uint32_t reason; /* 0, a KVF_E_*, or its engine's */
    uint32_t is_engine_gone;
    uint64_t pad_[4];
};
_Static_assert(sizeof(struct kvf_stats_room_shm) == 96, "room row");

/* Has a sequence of its own: the values change with every turn of a busy worker, these a few times a second. */
struct kvf_stats_rows_shm {
    _Atomic uint64_t seq; /* odd while an update runs (edges T1, T2) */
    uint64_t peer_count;
    uint64_t lane_count;
    uint64_t room_count;
    uint64_t left_out;   /* lanes that found no row */
    uint64_t written_ns; /* CLOCK_MONOTONIC; 0: never, since the last worker ended */
    uint64_t pad_[2];
    struct kvf_stats_peer_shm peers[KVF_STATS_PEERS_MAX];
    struct kvf_stats_lane_shm lanes[KVF_STATS_LANES_MAX];
    struct kvf_stats_room_shm rooms[KVF_STATS_ROOMS_MAX];
};
_Static_assert(sizeof(struct kvf_stats_rows_shm) == 64 + 128 * 128 + 128 * 96 + 64 * 96,
               "rows");

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
    /* line 1. Since minor 1; of an older file all of it is 0 */
    uint64_t rows_off; /* struct kvf_stats_rows_shm; 0: none */
    uint64_t rows_bytes;
    uint16_t layout_major; /* of client segments */
    uint16_t layout_minor;
    uint16_t wire_major; /* of frames between daemons; 0.0: not said yet */
    uint16_t wire_minor;
    uint64_t pad1_[5];
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
/* Which frames this daemon speaks; once, by who made the file. */
void kvf_stats_set_wire(struct kvf_stats_shm *shm, uint16_t major, uint16_t minor);
/* Puts these rows in place of the earlier ones, as one change of its own: outside begin and end. `rows` is
 * private memory; its counts are within the arrays, its seq is not looked at. */
void kvf_stats_set_rows(struct kvf_stats_shm *shm, const struct kvf_stats_rows_shm *rows);

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
/* NULL: the file is older, or its rows were torn in each of the tries. Counts are within the arrays; names are
 * any bytes, and may not end. */
const struct kvf_stats_rows_shm *kvf_stats_rows(const void *copy);

#endif

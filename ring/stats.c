/* One writer, any number of readers that may not write: a sequence lock without fences. The usual fences
 * are replaced by an order on every access of a value. The writer stores values with release, so a reader
 * that loads a new value with acquire also sees the odd sequence stored before it (edge T2), and its
 * second look at the sequence cannot answer the old number. Release stores and acquire loads are plain
 * moves on x86. */
#include "ring/stats.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

#include "ring/layout.h"

/* A writer that was put off its CPU inside an update comes back within some time slices. */
#define KVF_STATS_SNAPSHOT_TRIES 1024u

_Static_assert(sizeof(_Atomic uint64_t) == 8, "values are plain words in the file");

/* ---- writer -------------------------------------------------------------------------------------- */

struct stats_counts {
    uint32_t values;
    uint32_t histograms;
};

static struct stats_counts count_defs(const struct kvf_stats_def *defs, uint32_t def_count)
{
    struct stats_counts counts = {0};
    for (uint32_t i = 0; i < def_count; i++) {
        if (defs[i].kind == KVF_STATS_HISTOGRAM) {
            counts.histograms++;
        } else {
            counts.values++;
        }
    }
    return counts;
}

static uint64_t line_up(uint64_t off)
{
    return (off + KVF_LINE_BYTES - 1u) & ~(uint64_t)(KVF_LINE_BYTES - 1u);
}

static uint64_t values_off_of(uint32_t name_count)
{
    return sizeof(struct kvf_stats_shm) +
           (uint64_t)name_count * sizeof(struct kvf_stats_name_shm);
}

static uint64_t histograms_off_of(uint32_t name_count, uint32_t value_count)
{
    return line_up(values_off_of(name_count) + (uint64_t)value_count * sizeof(uint64_t));
}

static uint64_t rows_off_of(uint32_t def_count, struct stats_counts counts)
{
    return histograms_off_of(def_count, counts.values) +
           (uint64_t)counts.histograms * sizeof(struct kvf_histogram_shm);
}

uint64_t kvf_stats_bytes(const struct kvf_stats_def *defs, uint32_t def_count)
{
    struct stats_counts counts = count_defs(defs, def_count);
    return rows_off_of(def_count, counts) + sizeof(struct kvf_stats_rows_shm);
}

static int check_def(const struct kvf_stats_def *defs, uint32_t idx)
{
    const struct kvf_stats_def *def = &defs[idx];
    const struct kvf_stats_name_shm *entry = NULL;
    if (def->kind != KVF_STATS_COUNTER && def->kind != KVF_STATS_GAUGE &&
        def->kind != KVF_STATS_HISTOGRAM) {
        return -EINVAL;
    }
    if (def->name[0] == '\0' || strlen(def->name) >= sizeof entry->name ||
        strlen(def->unit) >= sizeof entry->unit) {
        return -EINVAL;
    }
    for (uint32_t i = 0; i < idx; i++) {
        if (strcmp(defs[i].name, def->name) == 0) {
            return -EEXIST;
        }
    }
    return 0;
}

static int check_defs(const struct kvf_stats_def *defs, uint32_t def_count)
{
    struct stats_counts counts = count_defs(defs, def_count);
    if (counts.values > KVF_STATS_VALUES_MAX || counts.histograms > KVF_STATS_HISTOGRAMS_MAX) {
        return -E2BIG;
    }
    for (uint32_t i = 0; i < def_count; i++) {
        int err = check_def(defs, i);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

int kvf_stats_format(struct kvf_stats_shm *shm, const char *daemon_name, const char *version,
                     const struct kvf_stats_def *defs, uint32_t def_count)
{
    int err = check_defs(defs, def_count);
    if (err != 0) {
        return err;
    }
    if (strlen(daemon_name) >= sizeof shm->daemon_name ||
        strlen(version) >= sizeof shm->version) {
        return -EINVAL;
    }
    struct stats_counts counts = count_defs(defs, def_count);
    uint64_t file_bytes = kvf_stats_bytes(defs, def_count);
    memset(shm, 0, file_bytes);
    shm->major = KVF_STATS_MAJOR;
    shm->minor = KVF_STATS_MINOR;
    shm->endian_tag = KVF_ENDIAN_TAG;
    shm->file_bytes = file_bytes;
    shm->name_count = def_count;
    shm->value_count = counts.values;
    shm->histogram_count = counts.histograms;
    shm->names_off = sizeof *shm;
    shm->values_off = values_off_of(def_count);
    shm->histograms_off = histograms_off_of(def_count, counts.values);
    shm->rows_off = rows_off_of(def_count, counts);
    shm->rows_bytes = sizeof(struct kvf_stats_rows_shm);
    shm->layout_major = KVF_LAYOUT_MAJOR;
    shm->layout_minor = KVF_LAYOUT_MINOR;
    strcpy(shm->daemon_name, daemon_name);
    strcpy(shm->version, version);

    struct kvf_stats_name_shm *names = (struct kvf_stats_name_shm *)(void *)(shm + 1);
    uint32_t value_idx = 0;
    uint32_t histogram_idx = 0;
    for (uint32_t i = 0; i < def_count; i++) {
        strcpy(names[i].name, defs[i].name);
        strcpy(names[i].unit, defs[i].unit);
        names[i].kind = (uint32_t)defs[i].kind;
        names[i].index = defs[i].kind == KVF_STATS_HISTOGRAM ? histogram_idx++ : value_idx++;
    }
    /* S1 (release): whoever reads the magic sees names and offsets. */
    atomic_store_explicit(&shm->magic, KVF_STATS_MAGIC, memory_order_release);
    return 0;
}

void kvf_stats_begin(struct kvf_stats_shm *shm)
{
    /* A writer that died inside an update left an odd number: it stays odd until this update ends. */
    uint64_t seq = atomic_load_explicit(&shm->seq, memory_order_relaxed);
    /* T2: carried by the release stores of values that follow. */
    atomic_store_explicit(&shm->seq, seq | 1u, memory_order_relaxed);
}

void kvf_stats_end(struct kvf_stats_shm *shm)
{
    uint64_t seq = atomic_load_explicit(&shm->seq, memory_order_relaxed);
    assert((seq & 1u) == 1u);
    /* T1 (release): a reader that sees this number sees all values of the update. */
    atomic_store_explicit(&shm->seq, seq + 1u, memory_order_release);
}

static unsigned char *at(struct kvf_stats_shm *shm, uint64_t off)
{
    return (unsigned char *)shm + off;
}

static void store(_Atomic uint64_t *word, uint64_t value)
{
    /* T2 (release): a reader of this value also sees the odd sequence. */
    atomic_store_explicit(word, value, memory_order_release);
}

static void add(_Atomic uint64_t *word, uint64_t value)
{
    store(word, atomic_load_explicit(word, memory_order_relaxed) + value);
}

void kvf_stats_set(struct kvf_stats_shm *shm, uint32_t value_idx, uint64_t value)
{
    assert(value_idx < shm->value_count);
    _Atomic uint64_t *values = (_Atomic uint64_t *)(void *)at(shm, shm->values_off);
    store(&values[value_idx], value);
}

void kvf_stats_record(struct kvf_stats_shm *shm, uint32_t histogram_idx, uint64_t value)
{
    assert(histogram_idx < shm->histogram_count);
    struct kvf_histogram_shm *h =
        (struct kvf_histogram_shm *)(void *)at(shm, shm->histograms_off) + histogram_idx;
    add(&h->count, 1);
    add(&h->sum, value);
    if (value > atomic_load_explicit(&h->max, memory_order_relaxed)) {
        store(&h->max, value);
    }
    add(&h->buckets[kvf_histogram_bucket(value)], 1);
}

void kvf_stats_heartbeat(struct kvf_stats_shm *shm, uint64_t now_ns)
{
    store(&shm->heartbeat_ns, now_ns);
}

void kvf_stats_set_wire(struct kvf_stats_shm *shm, uint16_t major, uint16_t minor)
{
    __atomic_store_n(&shm->wire_minor, minor, __ATOMIC_RELAXED);
    __atomic_store_n(&shm->wire_major, major, __ATOMIC_RELAXED);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static void store_words(void *to, const void *from, size_t bytes)
{
    _Atomic uint64_t *words = to;
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        uint64_t word;
        memcpy(&word, (const unsigned char *)from + i * sizeof word, sizeof word);
        store(&words[i], word);
    }
}

void kvf_stats_set_rows(struct kvf_stats_shm *shm, const struct kvf_stats_rows_shm *rows)
{
    assert(rows->peer_count <= KVF_STATS_PEERS_MAX);
    assert(rows->lane_count <= KVF_STATS_LANES_MAX);
    assert(rows->room_count <= KVF_STATS_ROOMS_MAX);
    struct kvf_stats_rows_shm *to = (struct kvf_stats_rows_shm *)(void *)at(shm, shm->rows_off);
    uint64_t seq = atomic_load_explicit(&to->seq, memory_order_relaxed);
    /* T2: carried by the release stores of the words that follow. */
    atomic_store_explicit(&to->seq, seq | 1u, memory_order_relaxed);
    store_words(&to->peer_count, &rows->peer_count,
                offsetof(struct kvf_stats_rows_shm, peers) -
                    offsetof(struct kvf_stats_rows_shm, peer_count));
    store_words(to->peers, rows->peers, rows->peer_count * sizeof rows->peers[0]);
    store_words(to->lanes, rows->lanes, rows->lane_count * sizeof rows->lanes[0]);
    store_words(to->rooms, rows->rooms, rows->room_count * sizeof rows->rooms[0]);
    /* T1 (release): a reader that sees this number sees all rows. */
    atomic_store_explicit(&to->seq, (seq | 1u) + 1u, memory_order_release);
}

/* ---- histograms ---------------------------------------------------------------------------------- */

/* Values of 4 and more: the power of two and the two bits below it. The last bucket in use is 251. */
#define KVF_HISTOGRAM_LAST 251u

uint32_t kvf_histogram_bucket(uint64_t value)
{
    if (value < 4) {
        return (uint32_t)value;
    }
    uint32_t exponent = 63u - (uint32_t)__builtin_clzll(value);
    return 4u * (exponent - 1u) + (uint32_t)(value >> (exponent - 2u) & 3u);
}

uint64_t kvf_histogram_bucket_floor(uint32_t bucket)
{
    if (bucket < 4) {
        return bucket;
    }
    if (bucket > KVF_HISTOGRAM_LAST) {
        return UINT64_MAX;
    }
    return (UINT64_C(4) + bucket % 4u) << (bucket / 4u - 1u);
}

static uint64_t bucket_ceiling(uint32_t bucket)
{
    return bucket >= KVF_HISTOGRAM_LAST ? UINT64_MAX
                                        : kvf_histogram_bucket_floor(bucket + 1u) - 1u;
}

uint64_t kvf_histogram_quantile(const struct kvf_histogram_shm *h, uint32_t per_mille)
{
    /* relaxed: in a copy of the caller's own nothing changes any more. */
    uint64_t max = atomic_load_explicit(&h->max, memory_order_relaxed);
    uint64_t share = per_mille > 1000u ? 1000u : per_mille;
    uint64_t total = 0;
    for (uint32_t i = 0; i < KVF_HISTOGRAM_BUCKETS; i++) {
        total += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
    }
    if (total == 0) {
        return 0;
    }
    /* The rank, rounded up and at least 1, without the product that could overflow. */
    uint64_t rank = total / 1000u * share + (total % 1000u * share + 999u) / 1000u;
    rank = rank == 0 ? 1 : rank;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < KVF_HISTOGRAM_BUCKETS; i++) {
        seen += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        if (seen >= rank) {
            uint64_t ceiling = bucket_ceiling(i);
            return ceiling < max ? ceiling : max;
        }
    }
    return max;
}

/* ---- reader -------------------------------------------------------------------------------------- */

/* The header's numbers, read once. What is checked here is what the copy's header will say. */
struct stats_shape {
    uint16_t major;
    uint16_t minor;
    uint32_t endian_tag;
    uint64_t file_bytes;
    uint32_t name_count;
    uint32_t value_count;
    uint32_t histogram_count;
    uint64_t names_off;
    uint64_t values_off;
    uint64_t histograms_off;
    uint64_t rows_off;
    uint64_t rows_bytes;
    uint16_t layout_major;
    uint16_t layout_minor;
    uint16_t wire_major;
    uint16_t wire_minor;
};

/* One load each, which the compiler may not repeat after the check: the file may be hostile. */
#define LOAD_ONCE(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

static struct stats_shape read_shape(const struct kvf_stats_shm *shm)
{
    return (struct stats_shape){
        .major = LOAD_ONCE(shm->major),
        .minor = LOAD_ONCE(shm->minor),
        .endian_tag = LOAD_ONCE(shm->endian_tag),
        .file_bytes = LOAD_ONCE(shm->file_bytes),
        .name_count = LOAD_ONCE(shm->name_count),
        .value_count = LOAD_ONCE(shm->value_count),
        .histogram_count = LOAD_ONCE(shm->histogram_count),
        .names_off = LOAD_ONCE(shm->names_off),
        .values_off = LOAD_ONCE(shm->values_off),
        .histograms_off = LOAD_ONCE(shm->histograms_off),
        .rows_off = LOAD_ONCE(shm->rows_off),
        .rows_bytes = LOAD_ONCE(shm->rows_bytes),
        .layout_major = LOAD_ONCE(shm->layout_major),
        .layout_minor = LOAD_ONCE(shm->layout_minor),
        .wire_major = LOAD_ONCE(shm->wire_major),
        .wire_minor = LOAD_ONCE(shm->wire_minor),
    };
}

/* Does [off, off + bytes) lie in [from, to), aligned to words? */
static int is_inside(uint64_t off, uint64_t bytes, uint64_t from, uint64_t to)
{
    return off % sizeof(uint64_t) == 0 && off >= from && off <= to && bytes <= to - off;
}

/* Sections follow each other in the order of the header and do not overlap: in the copy, none may be
 * overwritten by another after it was checked. */
static int check_shape(const struct stats_shape *shape, uint64_t bytes)
{
    if (shape->endian_tag != KVF_ENDIAN_TAG) {
        return -EPROTO;
    }
    if (shape->major != KVF_STATS_MAJOR) {
        return -ENOTSUP;
    }
    if (shape->value_count > KVF_STATS_VALUES_MAX ||
        shape->histogram_count > KVF_STATS_HISTOGRAMS_MAX ||
        shape->name_count > KVF_STATS_VALUES_MAX + KVF_STATS_HISTOGRAMS_MAX) {
        return -EPROTO;
    }
    uint64_t names_bytes = (uint64_t)shape->name_count * sizeof(struct kvf_stats_name_shm);
    uint64_t values_bytes = (uint64_t)shape->value_count * sizeof(uint64_t);
    uint64_t histograms_bytes =
        (uint64_t)shape->histogram_count * sizeof(struct kvf_histogram_shm);
    if (shape->file_bytes > bytes ||
        !is_inside(shape->names_off, names_bytes, sizeof(struct kvf_stats_shm),
                   shape->file_bytes) ||
        !is_inside(shape->values_off, values_bytes, shape->names_off + names_bytes,
                   shape->file_bytes) ||
        !is_inside(shape->histograms_off, histograms_bytes, shape->values_off + values_bytes,
                   shape->file_bytes)) {
        return -EPROTO;
    }
    if (shape->rows_off != 0 &&
        (shape->rows_bytes < sizeof(struct kvf_stats_rows_shm) ||
         !is_inside(shape->rows_off, shape->rows_bytes,
                    shape->histograms_off + histograms_bytes, shape->file_bytes))) {
        return -EPROTO;
    }
    return 0;
}

/* The parts that do not change after format: checked in the copy, so that nobody can change them between
 * the check and their use. */
static int copy_names(const struct kvf_stats_shm *shm, const struct stats_shape *shape,
                      struct kvf_stats_shm *copy)
{
    atomic_store_explicit(&copy->magic, KVF_STATS_MAGIC, memory_order_relaxed);
    copy->major = shape->major;
    copy->minor = shape->minor;
    copy->endian_tag = shape->endian_tag;
    copy->file_bytes = shape->file_bytes;
    copy->name_count = shape->name_count;
    copy->value_count = shape->value_count;
    copy->histogram_count = shape->histogram_count;
    copy->names_off = shape->names_off;
    copy->values_off = shape->values_off;
    copy->histograms_off = shape->histograms_off;
    copy->rows_off = shape->rows_off;
    copy->rows_bytes = shape->rows_bytes;
    copy->layout_major = shape->layout_major;
    copy->layout_minor = shape->layout_minor;
    copy->wire_major = shape->wire_major;
    copy->wire_minor = shape->wire_minor;
    memcpy(copy->daemon_name, shm->daemon_name, sizeof copy->daemon_name);
    memcpy(copy->version, shm->version, sizeof copy->version);
    copy->daemon_name[sizeof copy->daemon_name - 1u] = '\0';
    copy->version[sizeof copy->version - 1u] = '\0';

    struct kvf_stats_name_shm *names =
        (struct kvf_stats_name_shm *)(void *)at(copy, shape->names_off);
    memcpy(names, (const unsigned char *)shm + shape->names_off,
           (size_t)shape->name_count * sizeof *names);
    for (uint32_t i = 0; i < shape->name_count; i++) {
        uint32_t limit =
            names[i].kind == KVF_STATS_HISTOGRAM ? shape->histogram_count : shape->value_count;
        if (names[i].kind < KVF_STATS_COUNTER || names[i].kind > KVF_STATS_HISTOGRAM ||
            names[i].index >= limit || memchr(names[i].name, 0, sizeof names[i].name) == NULL ||
            memchr(names[i].unit, 0, sizeof names[i].unit) == NULL) {
            return -EPROTO;
        }
    }
    return 0;
}

/* Word by word, each an acquire load (T2). */
static void copy_words(const struct kvf_stats_shm *shm, uint64_t off, uint64_t bytes,
                       unsigned char *ret_copy)
{
    const _Atomic uint64_t *from =
        (const _Atomic uint64_t *)(const void *)((const unsigned char *)shm + off);
    for (uint64_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        uint64_t word = atomic_load_explicit(&from[i], memory_order_acquire);
        memcpy(ret_copy + off + i * sizeof word, &word, sizeof word);
    }
}

/* The writer's own words, which have no neighbours to be torn from; acquire loads like the rest (T2). */
static void copy_writer_line(const struct kvf_stats_shm *shm, struct kvf_stats_shm *copy)
{
    const memory_order t2 = memory_order_acquire; /* T2 */
    const memory_order own = memory_order_relaxed;
    atomic_store_explicit(&copy->heartbeat_ns, atomic_load_explicit(&shm->heartbeat_ns, t2),
                          own);
    atomic_store_explicit(&copy->started_ns, atomic_load_explicit(&shm->started_ns, t2), own);
    atomic_store_explicit(&copy->worker_epoch, atomic_load_explicit(&shm->worker_epoch, t2),
                          own);
    atomic_store_explicit(&copy->state, atomic_load_explicit(&shm->state, t2), own);
    atomic_store_explicit(&copy->worker_pid, atomic_load_explicit(&shm->worker_pid, t2), own);
}

/* An odd sequence in the copy says that there are no rows to be had: the writer died inside an update. */
static void copy_rows(const struct kvf_stats_shm *shm, const struct stats_shape *shape,
                      void *ret_copy)
{
    struct kvf_stats_rows_shm *copy =
        (struct kvf_stats_rows_shm *)(void *)at(ret_copy, shape->rows_off);
    const struct kvf_stats_rows_shm *rows =
        (const void *)((const unsigned char *)shm + shape->rows_off);
    uint64_t before = 1;
    uint64_t after = 0;
    for (uint32_t i = 0; i < KVF_STATS_SNAPSHOT_TRIES && before != after; i++) {
        /* T1 (acquire): all rows of the update that stored this number are there. */
        before = atomic_load_explicit(&rows->seq, memory_order_acquire);
        if ((before & 1u) != 0) {
            sched_yield();
            continue;
        }
        copy_words(shm, shape->rows_off, sizeof *rows, ret_copy);
        /* T2: the acquire loads above keep this one behind them. */
        after = atomic_load_explicit(&rows->seq, memory_order_relaxed);
    }
    bool is_sane = before == after && copy->peer_count <= KVF_STATS_PEERS_MAX &&
                   copy->lane_count <= KVF_STATS_LANES_MAX &&
                   copy->room_count <= KVF_STATS_ROOMS_MAX;
    atomic_store_explicit(&copy->seq, is_sane ? after : 1u, memory_order_relaxed);
}

int kvf_stats_snapshot(const struct kvf_stats_shm *shm, uint64_t bytes, void *ret_copy)
{
    if (bytes < sizeof *shm) {
        return -EPROTO;
    }
    /* S1 (acquire): names and offsets are there. */
    uint64_t magic = atomic_load_explicit(&shm->magic, memory_order_acquire);
    if (magic != KVF_STATS_MAGIC) {
        return magic == 0 ? -EAGAIN : -EPROTO;
    }
    struct stats_shape shape = read_shape(shm);
    int err = check_shape(&shape, bytes);
    if (err != 0) {
        return err;
    }
    struct kvf_stats_shm *copy = ret_copy;
    memset(copy, 0, bytes);
    err = copy_names(shm, &shape, copy);
    if (err != 0) {
        return err;
    }
    if (shape.rows_off != 0) {
        copy_rows(shm, &shape, ret_copy);
    }
    for (uint32_t i = 0; i < KVF_STATS_SNAPSHOT_TRIES; i++) {
        /* T1 (acquire): all values of the update that stored this number are there. */
        uint64_t before = atomic_load_explicit(&shm->seq, memory_order_acquire);
        if ((before & 1u) != 0 && i + 1u < KVF_STATS_SNAPSHOT_TRIES) {
            sched_yield();
            continue;
        }
        copy_writer_line(shm, copy);
        copy_words(shm, shape.values_off, (uint64_t)shape.value_count * sizeof(uint64_t),
                   ret_copy);
        copy_words(shm, shape.histograms_off,
                   (uint64_t)shape.histogram_count * sizeof(struct kvf_histogram_shm),
                   ret_copy);
        /* T2: the acquire loads above keep this one behind them. */
        uint64_t after = atomic_load_explicit(&shm->seq, memory_order_relaxed);
        atomic_store_explicit(&copy->seq, after, memory_order_relaxed);
        if ((before & 1u) == 0 && before == after) {
            return 0;
        }
    }
    return -EBUSY;
}

const struct kvf_stats_rows_shm *kvf_stats_rows(const void *copy)
{
    const struct kvf_stats_shm *stats = copy;
    const struct kvf_stats_rows_shm *rows =
        (const void *)((const unsigned char *)copy + stats->rows_off);
    if (stats->rows_off == 0 ||
        (atomic_load_explicit(&rows->seq, memory_order_relaxed) & 1u) != 0) {
        return NULL;
    }
    return rows;
}

static const struct kvf_stats_name_shm *find_name(const struct kvf_stats_shm *copy,
                                                  const char *name)
{
    const struct kvf_stats_name_shm *names =
        (const void *)((const unsigned char *)copy + copy->names_off);
    for (uint32_t i = 0; i < copy->name_count; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return &names[i];
        }
    }
    return NULL;
}

const struct kvf_histogram_shm *kvf_stats_find_histogram(const void *copy, const char *name)
{
    const struct kvf_stats_shm *stats = copy;
    const struct kvf_stats_name_shm *entry = find_name(stats, name);
    if (entry == NULL || entry->kind != KVF_STATS_HISTOGRAM) {
        return NULL;
    }
    const struct kvf_histogram_shm *histograms =
        (const void *)((const unsigned char *)copy + stats->histograms_off);
    return &histograms[entry->index];
}

int kvf_stats_find_value(const void *copy, const char *name, uint64_t *ret_value)
{
    const struct kvf_stats_shm *stats = copy;
    const struct kvf_stats_name_shm *entry = find_name(stats, name);
    if (entry == NULL || entry->kind == KVF_STATS_HISTOGRAM) {
        return -ENOENT;
    }
    const unsigned char *values = (const unsigned char *)copy + stats->values_off;
    memcpy(ret_value, values + (size_t)entry->index * sizeof *ret_value, sizeof *ret_value);
    return 0;
}

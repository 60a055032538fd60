#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring/stats.h"

static const struct kvf_stats_def defs[] = {
    {"rooms_opened_total", "rooms", KVF_STATS_COUNTER},
    {"abort_to_drained_us", "us", KVF_STATS_HISTOGRAM},
    {"rooms_open", "rooms", KVF_STATS_GAUGE},
    {"loop_us", "us", KVF_STATS_HISTOGRAM},
    {"bytes_posted_total", "bytes", KVF_STATS_COUNTER},
};
#define DEFS (sizeof defs / sizeof defs[0])

static struct kvf_stats_shm *stats_make(uint64_t *ret_bytes)
{
    *ret_bytes = kvf_stats_bytes(defs, DEFS);
    struct kvf_stats_shm *shm = aligned_alloc(64, (*ret_bytes + 63u) & ~UINT64_C(63));
    cr_assert_eq(kvf_stats_format(shm, "gpu0", "0.1.0", defs, DEFS), 0);
    return shm;
}

Test(ring_stats, what_was_written_is_found_by_name)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    kvf_stats_begin(shm);
    kvf_stats_set(shm, 0, 11);
    kvf_stats_set(shm, 1, 22);
    kvf_stats_set(shm, 2, 33);
    kvf_stats_record(shm, 0, 100);
    kvf_stats_record(shm, 1, 7);
    kvf_stats_record(shm, 1, 9);
    kvf_stats_end(shm);
    kvf_stats_heartbeat(shm, 4242);

    struct kvf_stats_shm *copy = malloc(bytes);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    uint64_t value = 0;
    cr_assert_eq(kvf_stats_find_value(copy, "rooms_opened_total", &value), 0);
    cr_assert_eq(value, 11);
    cr_assert_eq(kvf_stats_find_value(copy, "rooms_open", &value), 0);
    cr_assert_eq(value, 22);
    cr_assert_eq(kvf_stats_find_value(copy, "bytes_posted_total", &value), 0);
    cr_assert_eq(value, 33);
    cr_assert_eq(kvf_stats_find_value(copy, "loop_us", &value), -ENOENT);
    cr_assert_eq(kvf_stats_find_value(copy, "nothing", &value), -ENOENT);
    cr_assert_eq(kvf_stats_find_histogram(copy, "abort_to_drained_us")->sum, 100);
    cr_assert_eq(kvf_stats_find_histogram(copy, "loop_us")->count, 2);
    cr_assert_eq(kvf_stats_find_histogram(copy, "loop_us")->max, 9);
    cr_assert_null(kvf_stats_find_histogram(copy, "rooms_open"));
    cr_assert_eq(copy->heartbeat_ns, 4242);
    cr_assert_str_eq(copy->daemon_name, "gpu0");
    cr_assert_str_eq(copy->version, "0.1.0");
    free(copy);
    free(shm);
}

Test(ring_stats, definitions_that_do_not_fit_are_refused)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    const struct kvf_stats_def twice[] = {{"a", "", KVF_STATS_GAUGE},
                                          {"a", "", KVF_STATS_GAUGE}};
    const struct kvf_stats_def kind = {"a", "", (enum kvf_stats_kind)4};
    const struct kvf_stats_def unit = {"a", "twelve_bytes", KVF_STATS_GAUGE};
    const struct kvf_stats_def name = {"a_name_of_44_bytes_has_no_place_for_its_zero", "",
                                       KVF_STATS_GAUGE};
    struct kvf_stats_def many[KVF_STATS_HISTOGRAMS_MAX + 1];
    for (size_t i = 0; i < KVF_STATS_HISTOGRAMS_MAX + 1; i++) {
        many[i] = defs[1];
    }
    cr_assert_eq(strlen(name.name), 44);
    cr_assert_eq(kvf_stats_format(shm, "x", "y", twice, 2), -EEXIST);
    cr_assert_eq(kvf_stats_format(shm, "x", "y", &kind, 1), -EINVAL);
    cr_assert_eq(kvf_stats_format(shm, "x", "y", &unit, 1), -EINVAL);
    cr_assert_eq(kvf_stats_format(shm, "x", "y", &name, 1), -EINVAL);
    cr_assert_eq(kvf_stats_format(shm, "x", "y", many, KVF_STATS_HISTOGRAMS_MAX + 1), -E2BIG);
    cr_assert_str_eq(shm->daemon_name, "gpu0", "a refusal changes nothing");
    free(shm);
}

Test(ring_stats, a_bucket_holds_its_values_within_a_quarter)
{
    cr_assert_eq(kvf_histogram_bucket(0), 0);
    cr_assert_eq(kvf_histogram_bucket(3), 3);
    cr_assert_eq(kvf_histogram_bucket(4), 4);
    cr_assert_eq(kvf_histogram_bucket(UINT64_MAX), 251);
    uint32_t previous = 0;
    for (uint64_t value = 0; value < 100000; value++) {
        uint32_t bucket = kvf_histogram_bucket(value);
        cr_assert(bucket == previous || bucket == previous + 1);
        previous = bucket;
        uint64_t floor = kvf_histogram_bucket_floor(bucket);
        uint64_t next = kvf_histogram_bucket_floor(bucket + 1);
        cr_assert(floor <= value && value < next);
        cr_assert(next - floor == 1 || (next - floor) * 4 <= floor);
    }
    for (uint32_t bucket = 0; bucket < 252; bucket++) {
        cr_assert_eq(kvf_histogram_bucket(kvf_histogram_bucket_floor(bucket)), bucket);
        cr_assert_lt(kvf_histogram_bucket_floor(bucket),
                     kvf_histogram_bucket_floor(bucket + 1));
    }
}

Test(ring_stats, quantiles_are_upper_edges_capped_at_the_maximum)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    struct kvf_stats_shm *copy = malloc(bytes);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    cr_assert_eq(kvf_histogram_quantile(kvf_stats_find_histogram(copy, "loop_us"), 990), 0);

    kvf_stats_begin(shm);
    for (uint64_t value = 1; value <= 1000; value++) {
        kvf_stats_record(shm, 1, value);
    }
    kvf_stats_end(shm);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    const struct kvf_histogram_shm *h = kvf_stats_find_histogram(copy, "loop_us");
    cr_assert_eq(kvf_histogram_quantile(h, 0), 1);
    for (uint32_t per_mille = 1; per_mille <= 1000; per_mille++) {
        uint64_t value = kvf_histogram_quantile(h, per_mille);
        cr_assert(value >= per_mille && value * 4 <= (uint64_t)per_mille * 5 + 4,
                  "%u per mille of 1..1000 is %llu", per_mille, (unsigned long long)value);
    }
    cr_assert_eq(kvf_histogram_quantile(h, 1000), 1000);
    cr_assert_eq(kvf_histogram_quantile(h, 5000), 1000);

    kvf_stats_begin(shm);
    kvf_stats_record(shm, 0, UINT64_MAX);
    kvf_stats_end(shm);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    h = kvf_stats_find_histogram(copy, "abort_to_drained_us");
    cr_assert_eq(kvf_histogram_quantile(h, 500), UINT64_MAX);
    free(copy);
    free(shm);
}

/* Races are tried for as many rounds as asked for, or as fit into this time on a busy machine. */
#define RACE_SECONDS 8

static time_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

struct writer {
    struct kvf_stats_shm *shm;
    _Atomic int is_stopping;
};

static void *write_equal_values(void *ctx)
{
    struct writer *writer = ctx;
    for (uint64_t i = 1; !atomic_load_explicit(&writer->is_stopping, memory_order_relaxed);
         i++) {
        kvf_stats_begin(writer->shm);
        kvf_stats_set(writer->shm, 0, i);
        kvf_stats_record(writer->shm, 1, UINT64_MAX); /* its bucket is the last word but four */
        kvf_stats_set(writer->shm, 1, i);
        kvf_stats_set(writer->shm, 2, i);
        kvf_stats_end(writer->shm);
        for (_Atomic int pause = 0; pause < 1000; pause++) {
        }
    }
    return NULL;
}

/* Every update sets three values and a count to the same number: a snapshot that was accepted and shows
 * two numbers is torn. */
Test(ring_stats, an_accepted_snapshot_is_never_torn, .timeout = 100)
{
    uint64_t bytes;
    struct writer writer = {.shm = stats_make(&bytes)};
    struct kvf_stats_shm *copy = malloc(bytes);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, write_equal_values, &writer), 0);
    uint64_t last = 0;
    time_t end = seconds_now() + RACE_SECONDS;
    for (uint32_t changes = 0; changes < 5000 && seconds_now() < end;) {
        if (kvf_stats_snapshot(writer.shm, bytes, copy) != 0) {
            continue;
        }
        uint64_t a = 0;
        uint64_t b = 0;
        uint64_t c = 0;
        cr_assert_eq(kvf_stats_find_value(copy, "rooms_opened_total", &a), 0);
        cr_assert_eq(kvf_stats_find_value(copy, "rooms_open", &b), 0);
        cr_assert_eq(kvf_stats_find_value(copy, "bytes_posted_total", &c), 0);
        cr_assert(a == b && b == c);
        changes += a != last;
        last = a;
        const struct kvf_histogram_shm *h = kvf_stats_find_histogram(copy, "loop_us");
        cr_assert(h->count == a && h->buckets[kvf_histogram_bucket(UINT64_MAX)] == a);
    }
    atomic_store(&writer.is_stopping, 1);
    pthread_join(thread, NULL);
    free(copy);
    free(writer.shm);
}

Test(ring_stats, a_writer_that_died_inside_an_update_is_told_and_its_successor_heals)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    struct kvf_stats_shm *copy = malloc(bytes);
    kvf_stats_begin(shm);
    kvf_stats_set(shm, 0, 5);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EBUSY);
    uint64_t value = 0;
    cr_assert_eq(kvf_stats_find_value(copy, "rooms_opened_total", &value), 0);
    cr_assert_eq(value, 5, "filled, though maybe mixed");
    kvf_stats_begin(shm);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EBUSY);
    kvf_stats_set(shm, 0, 6);
    kvf_stats_end(shm);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    cr_assert_eq(kvf_stats_find_value(copy, "rooms_opened_total", &value), 0);
    cr_assert_eq(value, 6);
    free(copy);
    free(shm);
}

Test(ring_stats, each_way_of_being_no_stats_file_has_its_answer)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    struct kvf_stats_shm *copy = malloc(bytes);
    cr_assert_eq(kvf_stats_snapshot(shm, sizeof *shm - 1, copy), -EPROTO);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes - 1, copy), -EPROTO);
    shm->major++;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -ENOTSUP);
    shm->major--;
    shm->endian_tag = 0x04030201;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO);
    shm->endian_tag = 0x01020304;
    uint64_t values_off = shm->values_off;
    uint64_t histograms_off = shm->histograms_off;
    uint64_t names_off = shm->names_off;
    shm->names_off = 0; /* a section over another could change it after its check */
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO);
    shm->names_off = names_off;
    shm->values_off = names_off;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO);
    shm->values_off = values_off;
    shm->histograms_off = names_off;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO);
    shm->histograms_off = histograms_off;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    shm->magic++;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO);
    shm->magic = 0;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EAGAIN);
    free(copy);
    free(shm);
}

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t random_number(uint64_t *state)
{
    const uint64_t liked[] = {0,        1,   8,    63,         64,         320,
                              321,      328, 4096, UINT32_MAX, UINT64_MAX, UINT64_MAX - 319,
                              INT64_MAX};
    uint64_t pick = random_next(state);
    return pick % 3 == 0 ? random_next(state) : liked[pick % (sizeof liked / sizeof liked[0])];
}

/* Random changes anywhere in header and names. Both buffers end where ASan watches; an accepted copy is
 * walked as a tool would. */
Test(ring_stats, a_hostile_file_is_never_read_out_of_bounds)
{
    uint64_t bytes;
    struct kvf_stats_shm *good = stats_make(&bytes);
    uint64_t state = 362436069u;
    uint32_t accepted = 0;
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 10000; round++) {
        uint64_t cut = round % 4 == 0 ? random_next(&state) % (bytes + 1) : bytes;
        unsigned char *copy = malloc(cut + 1);
        struct kvf_stats_shm *aligned = malloc(cut == 0 ? 1 : cut);
        memcpy(aligned, good, cut);
        for (uint64_t i = random_next(&state) % 4; i > 0 && cut >= 1024; i--) {
            uint64_t number = random_number(&state);
            uint64_t width = 1u << random_next(&state) % 4;
            uint64_t off = random_next(&state) % (320 + 64 * DEFS) / width * width;
            memcpy((unsigned char *)aligned + off, &number, width);
        }
        int err = kvf_stats_snapshot(aligned, cut, copy);
        if (err == 0) {
            accepted++;
            const struct kvf_stats_shm *header = (const void *)copy;
            const struct kvf_stats_name_shm *names = (const void *)(copy + header->names_off);
            for (uint32_t i = 0; i < header->name_count; i++) {
                uint64_t value;
                const struct kvf_histogram_shm *h =
                    kvf_stats_find_histogram(copy, names[i].name);
                if (h != NULL) {
                    kvf_histogram_quantile(h, 990);
                } else {
                    kvf_stats_find_value(copy, names[i].name, &value);
                }
            }
        } else {
            refused++;
        }
        free(aligned);
        free(copy);
    }
    cr_assert_gt(accepted, 400);
    cr_assert_gt(refused, 2000);
    free(good);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static struct kvf_stats_rows_shm *rows_make(uint64_t mark)
{
    struct kvf_stats_rows_shm *rows = calloc(1, sizeof *rows);
    rows->peer_count = 2;
    rows->lane_count = KVF_STATS_LANES_MAX;
    rows->room_count = 1;
    rows->written_ns = mark;
    for (uint32_t i = 0; i < KVF_STATS_LANES_MAX; i++) {
        rows->lanes[i].moved_bytes = mark;
        rows->lanes[i].posted_bytes = mark;
    }
    rows->peers[1].peer_id = mark;
    rows->rooms[0].pages = mark;
    return rows;
}

Test(ring_stats, rows_are_read_as_they_were_put_and_an_older_file_has_none)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    struct kvf_stats_rows_shm *rows = rows_make(7);
    struct kvf_stats_shm *copy = malloc(bytes);
    kvf_stats_set_wire(shm, 2, 5);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    cr_assert_eq(kvf_stats_rows(copy)->peer_count, 0, "nothing was put yet");
    kvf_stats_set_rows(shm, rows);
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    const struct kvf_stats_rows_shm *seen = kvf_stats_rows(copy);
    cr_assert_not_null(seen);
    cr_assert_eq(memcmp(&seen->peer_count, &rows->peer_count,
                        sizeof *rows - offsetof(struct kvf_stats_rows_shm, peer_count)),
                 0);
    cr_assert_eq(copy->wire_major, 2);
    cr_assert_eq(copy->wire_minor, 5);
    cr_assert_eq(copy->layout_major, KVF_LAYOUT_MAJOR);
    shm->rows_off = 0; /* minor 0 */
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    cr_assert_null(kvf_stats_rows(copy));
    free(copy);
    free(rows);
    free(shm);
}

Test(ring_stats, rows_that_lie_or_are_torn_are_not_there_and_the_values_still_are)
{
    uint64_t bytes;
    struct kvf_stats_shm *shm = stats_make(&bytes);
    struct kvf_stats_rows_shm *in_file = (void *)((char *)shm + shm->rows_off);
    struct kvf_stats_shm *copy = malloc(bytes);
    uint64_t *const counts[] = {&in_file->peer_count, &in_file->lane_count,
                                &in_file->room_count};
    for (size_t i = 0; i < 3; i++) {
        *counts[i] = UINT64_MAX;
        cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
        cr_assert_null(kvf_stats_rows(copy), "count %zu", i);
        *counts[i] = 0;
    }
    in_file->seq |= 1u; /* its writer died in the middle */
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    cr_assert_null(kvf_stats_rows(copy));
    struct kvf_stats_rows_shm *rows = rows_make(9);
    kvf_stats_set_rows(shm, rows); /* the next writer mends it */
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), 0);
    cr_assert_not_null(kvf_stats_rows(copy));
    const uint64_t offs[] = {8, shm->rows_off + 4, shm->rows_off + 64, UINT64_MAX - 7};
    uint64_t rows_off = shm->rows_off;
    for (size_t i = 0; i < 4; i++) {
        shm->rows_off = offs[i];
        cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO, "offset %zu", i);
    }
    shm->rows_off = rows_off;
    shm->rows_bytes -= 8;
    cr_assert_eq(kvf_stats_snapshot(shm, bytes, copy), -EPROTO, "shorter than its rows");
    free(rows);
    free(copy);
    free(shm);
}

struct row_writer {
    struct kvf_stats_shm *shm;
    _Atomic int is_over;
};

static void *put_rows(void *ctx)
{
    struct row_writer *w = ctx;
    struct kvf_stats_rows_shm *rows[2] = {rows_make(1), rows_make(2)};
    for (uint32_t i = 0; atomic_load_explicit(&w->is_over, memory_order_relaxed) == 0; i++) {
        kvf_stats_set_rows(w->shm, rows[i % 2u]);
    }
    free(rows[0]);
    free(rows[1]);
    return NULL;
}

/* Rows of one mark or of the other, never of both, and the values beside them are not torn by it. */
Test(ring_stats, no_mixture_of_two_sets_of_rows_is_ever_accepted, .timeout = 60)
{
    uint64_t bytes;
    struct row_writer w = {.shm = stats_make(&bytes)};
    struct kvf_stats_shm *copy = malloc(bytes);
    pthread_t thread;
    uint32_t accepted = 0;
    cr_assert_eq(pthread_create(&thread, NULL, put_rows, &w), 0);
    for (uint32_t i = 0; i < 20000 && accepted < 2000; i++) {
        cr_assert_eq(kvf_stats_snapshot(w.shm, bytes, copy), 0);
        const struct kvf_stats_rows_shm *rows = kvf_stats_rows(copy);
        if (rows == NULL || rows->written_ns == 0) {
            continue;
        }
        accepted++;
        for (uint64_t k = 0; k < rows->lane_count; k++) {
            cr_assert_eq(rows->lanes[k].moved_bytes, rows->written_ns);
            cr_assert_eq(rows->lanes[k].posted_bytes, rows->written_ns);
        }
        cr_assert_eq(rows->peers[1].peer_id, rows->written_ns);
        cr_assert_eq(rows->rooms[0].pages, rows->written_ns);
    }
    atomic_store_explicit(&w.is_over, 1, memory_order_relaxed);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_gt(accepted, 0, "no set of rows was ever whole: this test shows nothing here");
    free(copy);
    free(w.shm);
}

/* kvfence-stat reads what a daemon wrote, says what became of it, and refuses everything else by a
 * sentence. Files are made by the product's own writer, then spoiled byte by byte. */
#include "tests/unit/stat_file.h"

#include <pthread.h>
#include <stdatomic.h>

#include "client/stat/run.h"
#include "client/stat/snapshot.h"

static struct kvf_stat_daemon *read_ok(const struct stat_dir *dir, const char *name)
{
    char path[512];
    char why[KVF_STAT_WHY_BYTES] = "";
    struct kvf_stat_daemon *daemon = NULL;

    (void)snprintf(path, sizeof path, "%s/%s.stats", dir->path, name);
    cr_assert_eq(kvf_stat_read(path, &daemon, why), 0, "%s", why);
    return daemon;
}

/* Writes the image, expects a refusal whose sentence holds `expected`. */
static void refuse(const struct stat_dir *dir, const void *image, uint64_t bytes,
                   const char *expected)
{
    char path[512];
    char why[KVF_STAT_WHY_BYTES] = "";
    struct kvf_stat_daemon *daemon = NULL;

    stat_write(dir, "bad", image, bytes);
    (void)snprintf(path, sizeof path, "%s/bad.stats", dir->path);
    cr_assert_lt(kvf_stat_read(path, &daemon, why), 0, "expected: %s", expected);
    cr_assert_null(daemon);
    cr_assert_not_null(strstr(why, expected), "\"%s\" does not say \"%s\"", why, expected);
    cr_assert_not_null(strstr(why, "bad.stats"), "\"%s\" does not name the file", why);
}

Test(stat, reads_what_a_daemon_wrote)
{
    struct stat_dir dir;
    stat_dir_make(&dir);
    stat_put(&dir, "gpu0", KVF_STATS_RUNNING, 0);
    struct kvf_stat_daemon *daemon = read_ok(&dir, "gpu0");

    cr_assert_str_eq(daemon->name, "gpu0");
    cr_assert_str_eq(daemon->version, "9.8.7");
    cr_assert_eq(daemon->health, KVF_STAT_RUNNING);
    cr_assert_not(daemon->is_torn);
    cr_assert_eq(daemon->worker_pid, 4711);
    cr_assert_eq(daemon->worker_epoch, UINT64_MAX - 1u);
    cr_assert_eq(daemon->entry_count, STAT_DEFS);
    cr_assert_eq(kvf_stat_find(daemon, "rooms_opened_total")->value, 1234567);
    cr_assert_eq(kvf_stat_find(daemon, "moons_seen")->value, 2);
    cr_assert_str_eq(kvf_stat_find(daemon, "moons_seen")->unit, "moons");
    cr_assert_null(kvf_stat_find(daemon, "no_such_name"));
    const struct kvf_histogram_shm *h = kvf_stat_find(daemon, "abort_to_drained_us")->histogram;
    cr_assert_eq(h->count, 1000);
    cr_assert_eq(h->max, 10000);
    kvf_stat_free(daemon);
    stat_dir_remove(&dir);
}

Test(stat, silence_of_two_seconds_is_stale_unless_the_daemon_said_it_stopped)
{
    struct stat_dir dir;
    stat_dir_make(&dir);
    stat_put(&dir, "quiet", KVF_STATS_RUNNING, UINT64_C(2500000000));
    stat_put(&dir, "alive", KVF_STATS_RUNNING, UINT64_C(500000000));
    stat_put(&dir, "ended", KVF_STATS_STOPPED, UINT64_C(9000000000));
    struct kvf_stat_daemon *quiet = read_ok(&dir, "quiet");
    struct kvf_stat_daemon *alive = read_ok(&dir, "alive");
    struct kvf_stat_daemon *ended = read_ok(&dir, "ended");

    cr_assert_eq(quiet->health, KVF_STAT_STALE);
    cr_assert_geq(quiet->silent_ns, UINT64_C(2500000000));
    cr_assert_eq(quiet->up_ns, UINT64_C(10000000000), "up until its last beat");
    cr_assert_eq(alive->health, KVF_STAT_RUNNING);
    cr_assert_eq(ended->health, KVF_STAT_STOPPED);
    kvf_stat_free(quiet);
    kvf_stat_free(alive);
    kvf_stat_free(ended);
    stat_dir_remove(&dir);
}

Test(stat, a_beat_from_before_this_boot_is_stale)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm =
        stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns() + UINT64_C(3600000000000), &bytes);
    stat_write(&dir, "gpu0", shm, bytes);
    struct kvf_stat_daemon *daemon = read_ok(&dir, "gpu0");

    cr_assert_eq(daemon->health, KVF_STAT_STALE);
    cr_assert_not(daemon->has_silence);
    kvf_stat_free(daemon);
    free(shm);
    stat_dir_remove(&dir);
}

Test(stat, a_writer_that_died_inside_an_update_is_shown_and_marked)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);
    kvf_stats_begin(shm);
    stat_write(&dir, "gpu0", shm, bytes);
    struct kvf_stat_daemon *daemon = read_ok(&dir, "gpu0");

    cr_assert(daemon->is_torn);
    cr_assert_eq(kvf_stat_find(daemon, "rooms_open")->value, 3);
    kvf_stat_free(daemon);
    free(shm);
    stat_dir_remove(&dir);
}

Test(stat, every_shorter_file_is_refused)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);

    for (uint64_t cut = 0; cut < bytes; cut += cut < 400 ? 1u : 97u) {
        refuse(&dir, shm, cut, "bad.stats: ");
    }
    refuse(&dir, shm, 0, "has 0 bytes; a stats file has at least 320");
    free(shm);
    stat_dir_remove(&dir);
}

Test(stat, a_foreign_or_older_or_newer_file_is_refused)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);

    shm->magic ^= 1u;
    refuse(&dir, shm, bytes, "not a stats file");
    shm->magic = 0;
    refuse(&dir, shm, bytes, "not written it yet");
    shm->magic = KVF_STATS_MAGIC;
    shm->major++;
    refuse(&dir, shm, bytes, "another major version");
    shm->major--;
    shm->endian_tag = UINT32_C(0x04030201);
    refuse(&dir, shm, bytes, "not a stats file");
    free(shm);
    stat_dir_remove(&dir);
}

Test(stat, a_table_that_leaves_the_file_is_refused)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *good = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);
    struct kvf_stats_shm *shm = malloc(bytes);
    static const uint64_t offs[] = {UINT64_MAX, UINT64_MAX - 7u, UINT64_C(1) << 40, 4};

    cr_assert_not_null(shm);
    for (size_t i = 0; i < sizeof offs / sizeof offs[0]; i++) {
        memcpy(shm, good, bytes);
        shm->names_off = offs[i];
        refuse(&dir, shm, bytes, "bad.stats: ");
        memcpy(shm, good, bytes);
        shm->values_off = offs[i];
        refuse(&dir, shm, bytes, "bad.stats: ");
        memcpy(shm, good, bytes);
        shm->histograms_off = offs[i];
        refuse(&dir, shm, bytes, "bad.stats: ");
    }
    memcpy(shm, good, bytes);
    shm->name_count = UINT32_MAX;
    refuse(&dir, shm, bytes, "bad.stats: ");
    memcpy(shm, good, bytes);
    shm->histogram_count = 16;
    refuse(&dir, shm, bytes, "bad.stats: ");
    free(shm);
    free(good);
    stat_dir_remove(&dir);
}

Test(stat, a_spoiled_name_table_is_refused)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);
    struct kvf_stats_name_shm *names = (void *)((char *)shm + shm->names_off);
    struct kvf_stats_name_shm first = names[0];

    memset(names[0].name, 'x', sizeof names[0].name);
    refuse(&dir, shm, bytes, "bad.stats: ");
    names[0] = first;
    names[0].index = STAT_VALUES;
    refuse(&dir, shm, bytes, "bad.stats: ");
    names[0] = first;
    memcpy(names[0].name, names[1].name, sizeof names[0].name);
    refuse(&dir, shm, bytes, "one name twice");
    names[0] = first;
    memset(shm->version, 0, sizeof shm->version);
    refuse(&dir, shm, bytes, "name or version in it is empty");
    free(shm);
    stat_dir_remove(&dir);
}

/* Any single flipped byte either is refused or reads as a file with other numbers; nothing crashes. */
Test(stat, no_flipped_byte_can_hurt)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);
    unsigned char *raw = (unsigned char *)shm;
    uint64_t table_end = sizeof *shm + STAT_DEFS * sizeof(struct kvf_stats_name_shm);
    char path[512];

    (void)snprintf(path, sizeof path, "%s/bad.stats", dir.path);
    for (uint64_t i = 0; i < table_end && i < bytes; i++) {
        char why[KVF_STAT_WHY_BYTES] = "";
        struct kvf_stat_daemon *daemon = NULL;
        raw[i] ^= 0xffu;
        stat_write(&dir, "bad", raw, bytes);
        raw[i] ^= 0xffu;
        int rc = kvf_stat_read(path, &daemon, why);
        cr_assert(rc == 0 ? daemon != NULL : why[0] != '\0', "byte %lu", (unsigned long)i);
        kvf_stat_free(daemon);
    }
    free(shm);
    stat_dir_remove(&dir);
}

Test(stat, what_is_no_regular_file_is_refused_at_once, .timeout = 10)
{
    struct stat_dir dir;
    char path[512];
    char why[KVF_STAT_WHY_BYTES] = "";
    struct kvf_stat_daemon *daemon = NULL;
    stat_dir_make(&dir);

    (void)snprintf(path, sizeof path, "%s/pipe.stats", dir.path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_lt(kvf_stat_read(path, &daemon, why), 0);
    cr_assert_not_null(strstr(why, "is not a regular file"), "%s", why);
    (void)snprintf(path, sizeof path, "%s/none.stats", dir.path);
    cr_assert_lt(kvf_stat_read(path, &daemon, why), 0);
    cr_assert_not_null(strstr(why, "cannot be opened: No such file"), "%s", why);
    stat_dir_remove(&dir);
}

struct shrinker {
    const char *path;
    uint64_t bytes;
    const void *image;
    uint64_t image_bytes;
    _Atomic int is_over;
};

static void *shrink_and_grow(void *ctx)
{
    struct shrinker *s = ctx;
    int fd = open(s->path, O_WRONLY | O_CLOEXEC);

    while (fd >= 0 && atomic_load_explicit(&s->is_over, memory_order_relaxed) == 0) {
        (void)!ftruncate(fd, 0);
        (void)!pwrite(fd, s->image, s->image_bytes, 0);
        (void)!ftruncate(fd, (off_t)s->bytes);
    }
    (void)close(fd);
    return NULL;
}

/* The file is large, so that a read lasts long enough for its end to move. A mapping of a file that
 * lost its pages raises SIGBUS; the reader says so instead of dying of it. */
Test(stat, a_file_that_shrinks_while_it_is_read_is_refused, .timeout = 60)
{
    struct stat_dir dir;
    char path[512];
    pthread_t thread;
    struct shrinker s = {.path = path, .bytes = UINT64_C(4) << 20};
    uint32_t shrunk = 0;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm =
        stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &s.image_bytes);

    stat_write(&dir, "gpu0", shm, s.image_bytes);
    (void)snprintf(path, sizeof path, "%s/gpu0.stats", dir.path);
    s.image = shm;
    cr_assert_eq(pthread_create(&thread, NULL, shrink_and_grow, &s), 0);
    for (int i = 0; i < 20000 && shrunk < 3; i++) {
        char why[KVF_STAT_WHY_BYTES] = "";
        struct kvf_stat_daemon *daemon = NULL;
        int rc = kvf_stat_read(path, &daemon, why);
        cr_assert(rc == 0 ? daemon != NULL : why[0] != '\0');
        shrunk += strstr(why, "it became shorter while it was read") != NULL ? 1u : 0u;
        kvf_stat_free(daemon);
    }
    atomic_store_explicit(&s.is_over, 1, memory_order_relaxed);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_geq(shrunk, 1, "no read met a shrinking file: this test shows nothing here");
    free(shm);
    stat_dir_remove(&dir);
}

/* ---- the program's answers ---------------------------------------------------------------------- */

struct said {
    char *out;
    char *err;
    size_t out_bytes;
    size_t err_bytes;
    int rc;
};

static struct said run(const char *a, const char *b, const char *c, const char *d)
{
    struct said said = {0};
    char *argv[6] = {(char *)(uintptr_t) "kvfence-stat", NULL, NULL, NULL, NULL, NULL};
    const char *args[4] = {a, b, c, d};
    int argc = 1;
    FILE *out = open_memstream(&said.out, &said.out_bytes);
    FILE *err = open_memstream(&said.err, &said.err_bytes);

    cr_assert_not_null(out);
    cr_assert_not_null(err);
    for (int i = 0; i < 4 && args[i] != NULL; i++) {
        argv[argc++] = (char *)(uintptr_t)args[i];
    }
    said.rc = kvf_stat_run(argc, argv, out, err);
    (void)fclose(out);
    (void)fclose(err);
    return said;
}

static void forget(struct said *said)
{
    free(said->out);
    free(said->err);
}

static void expect(const struct said *said, int rc, const char *out, const char *err)
{
    cr_assert_eq(said->rc, rc, "exit %d instead of %d: %s%s", said->rc, rc, said->out,
                 said->err);
    cr_assert_not_null(strstr(said->out, out), "\"%s\" not in: %s", out, said->out);
    cr_assert_not_null(strstr(said->err, err), "\"%s\" not in: %s", err, said->err);
}

Test(stat, exit_status_tells_shown_stale_and_unreadable_apart)
{
    struct stat_dir dir;
    struct said said;
    stat_dir_make(&dir);

    said = run("--run-dir", dir.path, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_UNREADABLE, "", "no daemon has run here");
    forget(&said);
    stat_put(&dir, "gpu1", KVF_STATS_RUNNING, 0);
    stat_put(&dir, "gpu0", KVF_STATS_STOPPED, UINT64_C(60000000000));
    said = run("--run-dir", dir.path, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_SHOWN, "gpu1   running", "");
    cr_assert_lt(strstr(said.out, "gpu0   stopped 1 m 00 s ago"), strstr(said.out, "gpu1"));
    forget(&said);
    stat_put(&dir, "gpu2", KVF_STATS_RUNNING, UINT64_C(7100000000));
    said = run("--run-dir", dir.path, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_STALE, "gpu2   stale since 7 s", "");
    forget(&said);
    said = run("--run-dir", dir.path, "gpu1", NULL);
    expect(&said, KVF_STAT_EXIT_SHOWN, "gpu1", "");
    cr_assert_null(strstr(said.out, "gpu2"));
    forget(&said);
    said = run("--run-dir", dir.path, "gpu1", "gpu7");
    expect(&said, KVF_STAT_EXIT_UNREADABLE, "gpu1", "gpu7.stats: cannot be opened");
    forget(&said);
    stat_dir_remove(&dir);
}

Test(stat, bad_options_are_usage_errors_with_a_sentence)
{
    struct said said = run("--what", NULL, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_USAGE, "", "--what is no option");
    forget(&said);
    said = run("--run-dir", NULL, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_USAGE, "", "--run-dir needs a value");
    forget(&said);
    said = run("--run-dir", "/tmp", "../etc/passwd", NULL);
    expect(&said, KVF_STAT_EXIT_USAGE, "", "is no daemon's name");
    forget(&said);
    said = run("--run-dir", "/does/not/exist", NULL, NULL);
    expect(&said, KVF_STAT_EXIT_UNREADABLE, "", "/does/not/exist: No such file");
    forget(&said);
    said = run("--version", NULL, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_SHOWN, "kvfence-stat " KVF_VERSION "\nlayout ", "");
    forget(&said);
    said = run("--help", NULL, NULL, NULL);
    expect(&said, KVF_STAT_EXIT_SHOWN, "How to read the table", "");
    forget(&said);
}

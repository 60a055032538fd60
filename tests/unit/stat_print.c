/* What kvfence-stat prints: a table that fits its columns and hides nothing, and JSON that parses. */
#include "tests/unit/stat_file.h"

#include <ctype.h>

#include "client/stat/format.h"
#include "client/stat/json.h"
#include "client/stat/table.h"

static struct kvf_stat_daemon *read_one(const struct stat_dir *dir, const char *name)
{
    char path[512];
    char why[KVF_STAT_WHY_BYTES] = "";
    struct kvf_stat_daemon *daemon = NULL;

    (void)snprintf(path, sizeof path, "%s/%s.stats", dir->path, name);
    cr_assert_eq(kvf_stat_read(path, &daemon, why), 0, "%s", why);
    return daemon;
}

/* ---- a parser of JSON's grammar, and of nothing else ------------------------------------------------ */

static const char *skip_value(const char *at);

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') {
        at++;
    }
    return at;
}

static const char *skip_string(const char *at)
{
    cr_assert_eq(*at, '"', "no string at: %.40s", at);
    for (at++; *at != '"'; at++) {
        cr_assert((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f,
                  "raw byte in a string");
        if (*at == '\\') {
            at++;
            cr_assert_not_null(strchr("\"\\/bfnrtu", *at), "escape at: %.40s", at);
            if (*at == 'u') {
                for (int i = 0; i < 4; i++) {
                    at++;
                    cr_assert(isxdigit((unsigned char)*at), "escape at: %.40s", at);
                }
            }
        }
    }
    return at + 1;
}

static const char *skip_list(const char *at, char end, bool has_names)
{
    at = skip_space(at + 1);
    if (*at == end) {
        return at + 1;
    }
    for (;;) {
        if (has_names) {
            at = skip_space(skip_string(at));
            cr_assert_eq(*at, ':', "no colon at: %.40s", at);
            at = skip_space(at + 1);
        }
        at = skip_space(skip_value(at));
        if (*at == end) {
            return at + 1;
        }
        cr_assert_eq(*at, ',', "no comma at: %.40s", at);
        at = skip_space(at + 1);
    }
}

static const char *skip_value(const char *at)
{
    static const char *const words[] = {"true", "false", "null"};

    if (*at == '{') {
        return skip_list(at, '}', true);
    }
    if (*at == '[') {
        return skip_list(at, ']', false);
    }
    if (*at == '"') {
        return skip_string(at);
    }
    for (size_t i = 0; i < 3; i++) {
        if (strncmp(at, words[i], strlen(words[i])) == 0) {
            return at + strlen(words[i]);
        }
    }
    char *end = NULL;
    cr_assert(isdigit((unsigned char)*at) || *at == '-', "no value at: %.40s", at);
    (void)strtod(at, &end);
    return end;
}

static void assert_json(const char *text)
{
    cr_assert_eq(*skip_space(skip_value(skip_space(text))), '\0');
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static char *to_json(struct kvf_stat_daemon *const *daemons, uint32_t n,
                     const struct kvf_stat_problem *problems, uint32_t problem_count)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    cr_assert_not_null(out);
    kvf_stat_print_json(out, daemons, n, problems, problem_count);
    (void)fclose(out);
    return text;
}

static void expect_in(const char *text, const char *part)
{
    cr_assert_not_null(strstr(text, part), "\"%s\" not in: %s", part, text);
}

Test(stat_json, has_every_number_by_name)
{
    struct stat_dir dir;
    stat_dir_make(&dir);
    stat_put(&dir, "gpu0", KVF_STATS_RUNNING, 0);
    struct kvf_stat_daemon *daemon = read_one(&dir, "gpu0");
    char *text = to_json(&daemon, 1, NULL, 0);

    assert_json(text);
    expect_in(text, "\"schema\": 1");
    expect_in(text, "\"state\": \"running\"");
    expect_in(text, "\"rooms_opened_total\": 1234567");
    expect_in(text, "\"moons_seen\": 2");
    expect_in(text, "\"worker_epoch\": \"18446744073709551614\"");
    expect_in(text, "\"abort_to_drained_us\": {\"count\": 1000, \"sum\": 5005000, \"p50\": ");
    expect_in(text, "\"max\": 10000}");
    expect_in(text, "\"errors\": []");
    free(text);
    kvf_stat_free(daemon);
    stat_dir_remove(&dir);
}

Test(stat_json, is_an_object_without_daemons_too)
{
    struct kvf_stat_problem problem = {.name = "a\"b\\",
                                       .why = "tab\there, bell \a, \xff\xc3\xa9"};
    char *text = to_json(NULL, 0, &problem, 1);

    assert_json(text);
    expect_in(text, "\"daemons\": []");
    expect_in(text, "\"name\": \"a\\\"b\\\\\"");
    expect_in(text, "tab\\u0009here, bell \\u0007, \\u00ff\\u00c3\\u00a9");
    free(text);
}

/* ---- the table ----------------------------------------------------------------------------------- */

static char *to_table(struct kvf_stat_daemon *daemon)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    cr_assert_not_null(out);
    kvf_stat_print_table(out, daemon);
    (void)fclose(out);
    return text;
}

Test(stat_table, shows_known_numbers_in_rows_and_unknown_ones_under_other)
{
    struct stat_dir dir;
    stat_dir_make(&dir);
    stat_put(&dir, "gpu0", KVF_STATS_RUNNING, 0);
    struct kvf_stat_daemon *daemon = read_one(&dir, "gpu0");
    char *text = to_table(daemon);

    expect_in(text, "gpu0   running   up 10 s   version 9.8.7\n");
    expect_in(text, "  worker      pid 4711   epoch 18446744073709551614\n");
    expect_in(text, "  rooms now   open 3\n");
    expect_in(text, "  rooms ever  opened 1,234,567\n");
    expect_in(text, "  proofs      landed 42\n");
    expect_in(text, "max 10 ms   of 1,000");
    expect_in(text, "  other       moons_seen 2 moons\n");
    free(text);
    kvf_stat_free(daemon);
    stat_dir_remove(&dir);
}

static struct kvf_stat_daemon *daemon_with(const char *const *names, const uint64_t *values,
                                           uint32_t n)
{
    struct kvf_stat_daemon *daemon = calloc(1, sizeof *daemon);

    cr_assert_not_null(daemon);
    daemon->copy = calloc(1, sizeof(struct kvf_stats_shm));
    cr_assert_not_null(daemon->copy);
    (void)snprintf(daemon->name, sizeof daemon->name, "gpu0");
    (void)snprintf(daemon->version, sizeof daemon->version, "9.8.7");
    for (uint32_t i = 0; i < n; i++) {
        struct kvf_stat_entry *entry = &daemon->entries[daemon->entry_count++];
        entry->kind = KVF_STATS_GAUGE;
        entry->value = values[i];
        (void)snprintf(entry->name, sizeof entry->name, "%s", names[i]);
    }
    return daemon;
}

/* Whom an operator has to look after, in one line; and no line where no group ever had a word to say. */
Test(stat_table, names_the_rank_that_is_waited_for)
{
    static const char *const names[] = {"group_rooms_waiting",
                                        "group_waits_id",
                                        "group_waits_rank",
                                        "group_messages_sent_total",
                                        "group_tombstones",
                                        "group_messages_stale_total",
                                        "group_messages_received_total",
                                        "rooms_closed_by_group_total"};
    static const uint64_t busy[] = {12, 0x9a0e, 3, 5, 0, 0, 4, 11};
    static const uint64_t quiet[8] = {0};
    struct kvf_stat_daemon *daemon = daemon_with(names, busy, 8);
    char *text = to_table(daemon);

    expect_in(text,
              "  group       12 rooms wait, the oldest for rank 3 of group 9a0e   messages");
    cr_assert_null(strstr(text, "\n  other"), "%s", text);
    free(text);
    kvf_stat_free(daemon);
    daemon = daemon_with(names, quiet, 8);
    text = to_table(daemon);
    cr_assert_null(strstr(text, "group"), "%s", text);
    free(text);
    kvf_stat_free(daemon);
}

/* Every number at its largest, many unknown names, the longest texts. */
Test(stat_table, never_leaves_its_columns)
{
    struct kvf_stat_daemon *daemon = calloc(1, sizeof *daemon);
    struct kvf_stats_shm *header = calloc(1, sizeof *header);
    static const char *const known[] = {
        "rooms_open",          "rooms_closing",      "rooms_fencing",
        "rooms_quarantined",   "bytes_placed_total", "bytes_posted_total",
        "bytes_refused_total", "posted_bytes",       "posts_total",
        "completions_total",   "grants_sent_total",  "grants_accepted_total",
        "fences_total",        "markers_end_total",  "markers_drain_total",
        "bound_usual_us",      "bound_worst_us",     "bound_fence_us",
        "bound_kill_us",       "bound_watchdog_us",
    };

    cr_assert_not_null(daemon);
    cr_assert_not_null(header);
    daemon->copy = header;
    (void)snprintf(daemon->name, sizeof daemon->name, "gpu0");
    (void)snprintf(daemon->version, sizeof daemon->version, "9.8.7");
    for (uint32_t i = 0; i < 60; i++) {
        struct kvf_stat_entry *entry = &daemon->entries[i];
        entry->kind = KVF_STATS_GAUGE;
        entry->value = UINT64_MAX;
        if (i < 20) {
            (void)snprintf(entry->name, sizeof entry->name, "%s", known[i]);
        } else {
            (void)snprintf(entry->name, sizeof entry->name, "proof_or_other_name_of_a_build_%u",
                           i);
            (void)snprintf(entry->unit, sizeof entry->unit, "unitsunits");
        }
        daemon->entry_count++;
    }
    char *text = to_table(daemon);
    uint32_t shown = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        cr_assert_leq(strlen(line), KVF_TABLE_COLUMNS, "%s", line);
        for (char *at = line; (at = strstr(at, "18,446,744,073,709,551,615")) != NULL; at++) {
            shown++;
        }
    }
    cr_assert_geq(shown, 40, "every unknown name is shown, not only the first row's");
    free(text);
    kvf_stat_free(daemon);
}

/* A daemon measures in whole microseconds: what it took for 0 did take something. */
Test(stat_table, a_measured_zero_is_under_one_microsecond)
{
    static const char *const names[] = {"abort_to_drained_us"};
    static const uint64_t none[] = {0};
    struct kvf_histogram_shm histogram = {.count = 4};
    struct kvf_stat_daemon *daemon = daemon_with(names, none, 1);

    histogram.buckets[0] = 4;
    daemon->entries[0].kind = KVF_STATS_HISTOGRAM;
    daemon->entries[0].histogram = &histogram;
    char *text = to_table(daemon);
    expect_in(text, "p50 under 1 us   p99 under 1 us   max under 1 us   of 4");
    free(text);
    kvf_stat_free(daemon);
}

Test(stat_table, terminal_escapes_in_a_file_do_not_reach_the_terminal)
{
    uint64_t bytes = 0;
    struct stat_dir dir;
    stat_dir_make(&dir);
    struct kvf_stats_shm *shm = stat_image("gpu0", KVF_STATS_RUNNING, stat_now_ns(), &bytes);
    struct kvf_stats_name_shm *names = (void *)((char *)shm + shm->names_off);

    (void)snprintf(names[3].name, sizeof names[3].name, "%s", "\x1b[2Jmoons\xff");
    (void)snprintf(shm->version, sizeof shm->version, "%s", "1\r\n2");
    stat_write(&dir, "gpu0", shm, bytes);
    struct kvf_stat_daemon *daemon = read_one(&dir, "gpu0");
    char *text = to_table(daemon);

    expect_in(text, "?[2Jmoons? 2 moons");
    expect_in(text, "version 1??2\n");
    cr_assert_null(strchr(text, 0x1b));
    free(text);
    kvf_stat_free(daemon);
    free(shm);
    stat_dir_remove(&dir);
}

Test(stat_format, numbers_read_well)
{
    char text[KVF_FORMAT_BYTES];

    cr_assert_str_eq(kvf_format_count(text, 0), "0");
    cr_assert_str_eq(kvf_format_count(text, 999), "999");
    cr_assert_str_eq(kvf_format_count(text, 1000), "1,000");
    cr_assert_str_eq(kvf_format_count(text, UINT64_MAX), "18,446,744,073,709,551,615");
    cr_assert_str_eq(kvf_format_us(text, 999), "999 us");
    cr_assert_str_eq(kvf_format_us(text, 26140), "26.1 ms");
    cr_assert_str_eq(kvf_format_us(text, 3750000), "3.75 s");
    cr_assert_str_eq(kvf_format_us(text, 2000000), "2 s");
    cr_assert_str_eq(kvf_format_us(text, 500000), "500 ms");
    cr_assert_str_eq(kvf_format_age(text, UINT64_C(59999999999)), "59 s");
    cr_assert_str_eq(kvf_format_age(text, UINT64_C(60000000000)), "1 m 00 s");
    cr_assert_str_eq(kvf_format_age(text, UINT64_C(7384000000000)), "2 h 03 m");
    cr_assert_str_eq(kvf_format_bytes(text, 1023), "1023 B");
    cr_assert_str_eq(kvf_format_bytes(text, 1536), "1.5 KiB");
    cr_assert_str_eq(kvf_format_bytes(text, UINT64_MAX), "16 EiB");
    cr_assert_str_eq(kvf_format_rate(text, 0), "unpaced");
    cr_assert_str_eq(kvf_format_rate(text, 100000000), "100 MB/s");
}

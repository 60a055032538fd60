/* What is said over time and to machines: rates between two looks, the screen at every size, verdicts, and rows of
 * a file that anybody may have written. */
#include "tests/unit/stat_file.h"

#include <netinet/in.h>
#include <sys/prctl.h>

#include "client/stat/health.h"
#include "client/stat/prometheus.h"
#include "client/stat/rates.h"
#include "client/stat/screen.h"
#include "client/stat/serve.h"
#include "ring/codes.h"
#include "ring/operate.h"

#define NS_PER_S UINT64_C(1000000000)

static const struct kvf_stats_def watch_defs[] = {
    {"bytes_placed_total", "bytes", KVF_STATS_COUNTER},
    {"bytes_posted_total", "bytes", KVF_STATS_COUNTER},
    {"bound_usual_us", "us", KVF_STATS_GAUGE},
    {"bound_worst_us", "us", KVF_STATS_GAUGE},
    {"bound_watchdog_us", "us", KVF_STATS_GAUGE},
    {"rooms_quarantined", "rooms", KVF_STATS_GAUGE},
    {"pages_quarantined", "pages", KVF_STATS_GAUGE},
    {"group_rooms_waiting", "rooms", KVF_STATS_GAUGE},
    {"abort_to_drained_us", "us", KVF_STATS_HISTOGRAM},
    {"loop_us", "us", KVF_STATS_HISTOGRAM},
};
#define WATCH_DEFS (sizeof watch_defs / sizeof watch_defs[0])
enum { PLACED, POSTED, USUAL, WORST, WATCHDOG, ROOMS, PAGES, GROUP };

/* A daemon's file in memory, changed by the test and written anew for each look. */
struct world {
    struct stat_dir dir;
    uint64_t bytes;
    struct kvf_stats_shm *shm;
    struct kvf_watch watch;
};

static struct world *world_make(void)
{
    struct world *w = calloc(1, sizeof *w);

    cr_assert_not_null(w);
    stat_dir_make(&w->dir);
    w->bytes = kvf_stats_bytes(watch_defs, WATCH_DEFS);
    w->shm = calloc(1, w->bytes);
    cr_assert_not_null(w->shm);
    cr_assert_eq(kvf_stats_format(w->shm, "gpu0", "1.2.3", watch_defs, WATCH_DEFS), 0);
    w->shm->started_ns = stat_now_ns() - NS_PER_S;
    w->shm->worker_epoch = 77;
    w->shm->state = KVF_STATS_RUNNING;
    w->watch.run_dir = w->dir.path;
    return w;
}

static void world_set(struct world *w, uint32_t value, uint64_t to)
{
    kvf_stats_begin(w->shm);
    kvf_stats_set(w->shm, value, to);
    kvf_stats_end(w->shm);
}

static void world_write(struct world *w)
{
    w->shm->heartbeat_ns = stat_now_ns();
    stat_write(&w->dir, "gpu0", w->shm, w->bytes);
}

static struct kvf_watched *world_look(struct world *w)
{
    world_write(w);
    kvf_watch_look(&w->watch);
    cr_assert_eq(w->watch.count, 1);
    return &w->watch.daemons[0];
}

static void world_free(struct world *w)
{
    kvf_watch_forget(&w->watch);
    stat_dir_remove(&w->dir);
    free(w->shm);
    free(w);
}

/* ---- rates ------------------------------------------------------------------------------------------- */

Test(stat_watch, a_rate_is_what_was_counted_between_two_looks)
{
    struct world *w = world_make();
    double per_s = -1.0;

    world_set(w, PLACED, 1000);
    struct kvf_watched *d = world_look(w);
    cr_assert_not(kvf_stat_rate(d->before, d->now, "bytes_placed_total", &per_s), "one look");
    world_set(w, PLACED, 3000);
    d = world_look(w);
    double took_s = (double)(d->now->read_ns - d->before->read_ns) / 1e9;
    cr_assert(kvf_stat_rate(d->before, d->now, "bytes_placed_total", &per_s));
    cr_assert_float_eq(per_s, 2000.0 / took_s, 1e-3 / took_s);
    cr_assert_not(kvf_stat_rate(d->before, d->now, "no_such_name", &per_s));
    world_free(w);
}

Test(stat_watch, a_new_daemon_has_no_rate_and_is_marked_even_if_its_counters_are_larger)
{
    char said[KVF_STAT_WHY_BYTES];
    struct world *w = world_make();
    double per_s = -1.0;
    const uint64_t after[] = {0, 2000, UINT64_MAX};

    for (size_t i = 0; i < 3; i++) {
        world_set(w, PLACED, 1000);
        (void)world_look(w);
        struct kvf_watched *d = world_look(w);
        cr_assert(kvf_stat_rate(d->before, d->now, "bytes_placed_total", &per_s));
        w->shm->started_ns++;
        world_set(w, PLACED, after[i]);
        d = world_look(w);
        cr_assert_not(kvf_stat_rate(d->before, d->now, "bytes_placed_total", &per_s));
        cr_assert_eq(d->change, KVF_CHANGE_DAEMON);
        cr_assert(kvf_watched_say(d, w->watch.now_ns, said, sizeof said));
        cr_assert_not_null(strstr(said, "counters began anew 0 s ago"), "%s", said);
        cr_assert_not(kvf_watched_say(d, w->watch.now_ns + 60u * NS_PER_S, said, sizeof said),
                      "an old reset is no news: %s", said);
    }
    world_free(w);
}

Test(stat_watch, a_new_worker_goes_on_counting_and_what_goes_back_has_no_rate)
{
    char said[KVF_STAT_WHY_BYTES];
    struct world *w = world_make();
    double per_s = -1.0;

    world_set(w, PLACED, 1000);
    world_set(w, POSTED, 1000);
    (void)world_look(w);
    w->shm->worker_epoch++;
    world_set(w, PLACED, 1500);
    world_set(w, POSTED, 10);
    struct kvf_watched *d = world_look(w);
    cr_assert_eq(d->change, KVF_CHANGE_WORKER);
    cr_assert(kvf_watched_say(d, w->watch.now_ns, said, sizeof said));
    cr_assert_not_null(strstr(said, "another worker serves since 0 s"), "%s", said);
    cr_assert(kvf_stat_rate(d->before, d->now, "bytes_placed_total", &per_s));
    cr_assert_gt(per_s, 0.0);
    cr_assert_not(kvf_stat_rate(d->before, d->now, "bytes_posted_total", &per_s));
    world_free(w);
}

Test(stat_watch, a_window_of_a_histogram_holds_what_was_recorded_in_it)
{
    struct world *w = world_make();
    struct kvf_histogram_shm between;

    kvf_stats_begin(w->shm);
    kvf_stats_record(w->shm, 0, 1000000);
    kvf_stats_end(w->shm);
    (void)world_look(w);
    kvf_stats_begin(w->shm);
    kvf_stats_record(w->shm, 0, 10);
    kvf_stats_record(w->shm, 0, 10);
    kvf_stats_end(w->shm);
    struct kvf_watched *d = world_look(w);
    cr_assert(kvf_stat_between(d->before, d->now, "abort_to_drained_us", &between));
    cr_assert_eq(between.count, 2);
    cr_assert_leq(kvf_histogram_quantile(&between, 990), 11, "the old second is not in it");
    w->shm->started_ns++;
    d = world_look(w);
    cr_assert_not(kvf_stat_between(d->before, d->now, "abort_to_drained_us", &between));
    world_free(w);
}

/* Whoever keeps looks of two daemons under one name gets no rate of them either. */
Test(stat_watch, looks_at_two_daemons_are_never_compared)
{
    struct world *w = world_make();
    struct kvf_stat_daemon *looks[2] = {NULL, NULL};
    struct kvf_histogram_shm between;
    char why[KVF_STAT_WHY_BYTES];
    double per_s = -1.0;

    for (uint32_t i = 0; i < 2; i++) {
        w->shm->started_ns += i;
        world_set(w, PLACED, 1000u * (i + 1u));
        world_write(w);
        cr_assert_eq(kvf_stat_read_name(w->dir.path, "gpu0", &looks[i], why), 0, "%s", why);
    }
    cr_assert_eq(kvf_stat_change_of(looks[0], looks[1]), KVF_CHANGE_DAEMON);
    cr_assert_not(kvf_stat_rate(looks[0], looks[1], "bytes_placed_total", &per_s));
    cr_assert_not(kvf_stat_between(looks[0], looks[1], "loop_us", &between));
    kvf_stat_free(looks[0]);
    kvf_stat_free(looks[1]);
    world_free(w);
}

/* ---- rows of anybody ----------------------------------------------------------------------------------- */

/* Peers twice, lanes of nobody, states and sides that there are not, names without an end, times of the future. */
static void put_hostile_rows(struct world *w)
{
    struct kvf_stats_rows_shm *rows = calloc(1, sizeof *rows);

    cr_assert_not_null(rows);
    memset(&rows->peers, 0xff, sizeof rows->peers);
    memset(&rows->lanes, 0xff, sizeof rows->lanes);
    memset(&rows->rooms, 0xff, sizeof rows->rooms);
    rows->peer_count = KVF_STATS_PEERS_MAX;
    rows->lane_count = KVF_STATS_LANES_MAX;
    rows->room_count = KVF_STATS_ROOMS_MAX;
    rows->left_out = UINT64_MAX;
    for (uint32_t i = 0; i < 8; i++) { /* four peers, each with an old and a new connection */
        rows->peers[i] = (struct kvf_stats_peer_shm){.addr = {.family = 4, .port = 7000},
                                                     .state = i < 4 ? KVF_OPERATE_AT_LOST
                                                                    : KVF_OPERATE_AT_UP};
        rows->peers[i].addr.addr[3] = (uint8_t)(i % 4u);
        memcpy(rows->peers[i].name, "a\"b\\c\n\x1b[2J", 10);
        rows->lanes[i] = (struct kvf_stats_lane_shm){.peer = i, .lane = 1, .opened = 1};
        rows->lanes[i + 8u] = rows->lanes[i]; /* and each of its lanes twice */
        rows->rooms[i] = (struct kvf_stats_room_shm){
            .closed_ns = 1, .reason = i % 2u == 0 ? KVF_E_ENGINE_GONE : 0, .is_engine_gone = 1};
    }
    kvf_stats_set_rows(w->shm, rows);
    free(rows);
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The name and labels of every sample, sorted: no two may be equal. */
static void expect_unique_series(char *text)
{
    static char *series[65536];
    size_t count = 0;

    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        for (const char *c = line; *c != '\0'; c++) {
            cr_assert(*c >= 0x20 && *c < 0x7f, "a byte that is no text: %s", line);
        }
        if (line[0] != '#') {
            *strrchr(line, ' ') = '\0';
            series[count++] = line;
        }
    }
    cr_assert_gt(count, 50);
    qsort(series, count, sizeof series[0], compare_lines);
    for (size_t i = 1; i < count; i++) {
        cr_assert_neq(strcmp(series[i - 1], series[i]), 0, "twice: %s", series[i]);
    }
}

Test(stat_watch, metrics_of_hostile_rows_are_text_and_no_series_comes_twice)
{
    struct world *w = world_make();
    char *text = NULL;
    size_t bytes = 0;

    put_hostile_rows(w);
    world_write(w);
    struct kvf_stat_look *look = kvf_stat_look_at(w->dir.path, NULL, 0);
    FILE *out = open_memstream(&text, &bytes);
    kvf_prometheus_print(out, look);
    (void)fclose(out);
    cr_assert_not_null(strstr(text, "peer=\"0.0.0.3:7000\",direction=\"from\"} 1"), "%s", text);
    cr_assert_not_null(strstr(text, "name=\"a\\\"b\\\\c??[2J\""), "%s", text);
    expect_unique_series(text);
    free(text);
    kvf_stat_look_free(look);
    world_free(w);
}

/* ---- the screen ---------------------------------------------------------------------------------------- */

static void expect_fits(struct kvf_screen *s, const struct kvf_watch *watch, unsigned rows,
                        unsigned columns)
{
    struct kvf_screen_state state = {.interval_s = 1.0, .clock = "12:00:00"};

    s->rows = rows;
    s->columns = columns;
    kvf_screen_draw(s, watch, &state);
    cr_assert_leq(s->used, rows);
    for (unsigned i = 0; i < s->used; i++) {
        cr_assert_leq(strlen(s->lines[i]), columns, "%u x %u: %s", rows, columns, s->lines[i]);
        for (const char *c = s->lines[i]; *c != '\0'; c++) {
            cr_assert(*c >= 0x20 && *c < 0x7f);
        }
    }
}

Test(stat_watch, the_screen_fits_every_terminal_whatever_the_file_says)
{
    static struct kvf_screen screen;
    struct world *w = world_make();

    put_hostile_rows(w);
    for (uint32_t i = 0; i < 8; i++) {
        world_set(w, i, UINT64_MAX);
    }
    (void)world_look(w);
    (void)world_look(w);
    for (unsigned rows = 0; rows <= 45; rows++) {
        for (unsigned columns = 0; columns <= 140; columns += 7) {
            expect_fits(&screen, &w->watch, rows, columns);
        }
    }
    expect_fits(&screen, &w->watch, 2000, 2000);
    world_free(w);
}

static void print_screen(const struct kvf_screen *screen)
{
    for (unsigned i = 0; i < screen->used; i++) {
        fprintf(stderr, "%2u %s\n", i, screen->lines[i]);
    }
}

static bool has_line(const struct kvf_screen *screen, const char *part)
{
    for (unsigned i = 0; i < screen->used; i++) {
        if (strstr(screen->lines[i], part) != NULL) {
            return true;
        }
    }
    return false;
}

Test(stat_watch, thirty_rows_have_a_place_for_every_kind_of_row_and_say_what_is_left_out)
{
    static struct kvf_screen screen;
    struct world *w = world_make();

    put_hostile_rows(w);
    (void)world_look(w);
    expect_fits(&screen, &w->watch, 30, 100);
    static const char *const parts[] = {
        "gpu0 running",      "rooms ", "moved ",
        "drained in",        "bound ", "loop ",
        "QUARANTINE",        "PEERS",  "LANES",
        "and 57 more rooms", "q quit", "KVF_E_ENGINE_GONE, engine dead",
        "0.0.0.0:7000"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!has_line(&screen, parts[i])) {
            print_screen(&screen);
            cr_assert_fail("\"%s\" is not shown", parts[i]);
        }
    }
    world_free(w);
}

/* ---- verdicts ------------------------------------------------------------------------------------------- */

static enum kvf_stat_verdict verdict_of(struct world *w, bool is_live_only, const char *part)
{
    char sentence[KVF_STAT_SENTENCE_BYTES];
    struct kvf_stat_daemon *daemon = NULL;
    char why[KVF_STAT_WHY_BYTES];

    stat_write(&w->dir, "gpu0", w->shm, w->bytes);
    cr_assert_eq(kvf_stat_read_name(w->dir.path, "gpu0", &daemon, why), 0, "%s", why);
    enum kvf_stat_verdict verdict = kvf_stat_health_of(daemon, is_live_only, sentence);
    cr_assert_not_null(strstr(sentence, part), "\"%s\" not in: %s", part, sentence);
    kvf_stat_free(daemon);
    return verdict;
}

Test(stat_watch, each_ill_has_its_own_verdict_and_a_probe_for_life_asks_for_less)
{
    struct world *w = world_make();

    w->shm->heartbeat_ns = stat_now_ns();
    world_set(w, WORST, 1000);
    cr_assert_eq(verdict_of(w, false, "healthy"), KVF_STAT_HEALTHY);
    world_set(w, ROOMS, 2);
    world_set(w, PAGES, 30);
    cr_assert_eq(verdict_of(w, false, "2 rooms are in quarantine with 30 pages"),
                 KVF_STAT_QUARANTINE);
    cr_assert_eq(verdict_of(w, true, "healthy"), KVF_STAT_HEALTHY);
    kvf_stats_begin(w->shm);
    kvf_stats_record(w->shm, 0, 1001);
    kvf_stats_end(w->shm);
    cr_assert_eq(verdict_of(w, false, "the bound was broken"), KVF_STAT_BOUND_BROKEN);
    cr_assert_eq(verdict_of(w, true, "healthy"), KVF_STAT_HEALTHY);
    w->shm->state = KVF_STATS_STARTING;
    cr_assert_eq(verdict_of(w, false, "is starting"), KVF_STAT_NOT_READY);
    cr_assert_eq(verdict_of(w, true, "is starting"), KVF_STAT_HEALTHY);
    w->shm->state = KVF_STATS_STOPPED;
    cr_assert_eq(verdict_of(w, true, "was stopped"), KVF_STAT_NO_DAEMON);
    world_free(w);
}

/* The difference is whether a process of that number, and of the daemon's name, is still there. */
Test(stat_watch, silence_is_a_stuck_worker_while_it_lives_and_a_stale_daemon_when_it_does_not)
{
    struct world *w = world_make();

    world_set(w, WATCHDOG, 60u * 1000000u);
    w->shm->worker_pid = (uint32_t)getpid();
    w->shm->started_ns = 1;
    w->shm->heartbeat_ns = stat_now_ns() - 5u * NS_PER_S;
    cr_assert_eq(prctl(PR_SET_NAME, "kvfenced"), 0);
    cr_assert_eq(verdict_of(w, true, "stale since"), KVF_STAT_IS_STALE,
                 "within its watchdog nobody calls it stuck");
    world_set(w, WATCHDOG, 1000000);
    cr_assert_eq(verdict_of(w, true, "has made no turn for"), KVF_STAT_STUCK);
    cr_assert_eq(prctl(PR_SET_NAME, "another"), 0);
    cr_assert_eq(verdict_of(w, true, "stale since"), KVF_STAT_IS_STALE);
    world_free(w);
}

/* ---- addresses ------------------------------------------------------------------------------------------ */

Test(stat_watch, an_address_to_listen_at_is_numeric_and_on_this_machine_unless_said)
{
    static const char *const bad[] = {
        "",    "x",           ":",     "1.2.3.4:",    "1.2.3:80", "host:80",
        "-1",  "65536",       "80x",   "[::1]",       "[::1:80",  "::1:80",
        " 80", "1.2.3.4: 80", "[]:80", "[1.2.3.4]:80"};
    struct sockaddr_storage addr;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_lt(kvf_serve_parse(bad[i], &addr), 0, "\"%s\" is taken", bad[i]);
    }
    cr_assert_eq(kvf_serve_parse("9464", &addr), 0);
    const struct sockaddr_in *v4 = (const void *)&addr;
    cr_assert_eq(v4->sin_family, AF_INET);
    cr_assert_eq(ntohl(v4->sin_addr.s_addr), INADDR_LOOPBACK);
    cr_assert_eq(ntohs(v4->sin_port), 9464);
    cr_assert_eq(kvf_serve_parse("0.0.0.0:0", &addr), 0);
    cr_assert_eq(kvf_serve_parse("[::1]:80", &addr), 0);
    cr_assert_eq(addr.ss_family, AF_INET6);
}

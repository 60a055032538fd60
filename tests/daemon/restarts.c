/* Engines and daemons that are started again and again, killed and ended cleanly in turn: descriptors, mappings,
 * shared memory, files and processes are back at the number they began with, on every side.
 *
 * usage: daemon_restarts [--full] [WORDS]     --full: 500 engines and 100 daemons instead of 20 and 5 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 20000u
#define PAGES 60
#define WARM_UP 3 /* rounds before the first count: tables and arenas that grow once */

static const struct geometry geometry = SIXTEEN_BY_FOUR;
static bool is_full;

static struct daemon *prefill;
static struct daemon *decode;

/* ---- counts ------------------------------------------------------------------------------------------------------ */

struct counts {
    uint32_t fds;
    uint32_t maps;
    uint32_t memfds; /* of the mappings */
};

struct house {
    struct counts supervisor;
    struct counts worker;
    struct counts library;
    uint32_t files; /* in the run directory */
    uint32_t shm;   /* in /dev/shm */
    uint32_t children;
};

static uint32_t count_entries(const char *path)
{
    uint32_t count = 0;
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        count += entry->d_name[0] != '.' || entry->d_name[1] == 'c'; /* .cpu-N.lock */
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static struct counts count_process(pid_t pid)
{
    struct counts c = {0};
    char path[64];
    char line[512];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    c.fds = count_entries(path);
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        c.maps++;
        c.memfds += strstr(line, "memfd:") != NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return c;
}

static uint32_t count_children(pid_t parent)
{
    uint32_t count = 0;
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[300];
        int ppid = 0;
        snprintf(path, sizeof path, "/proc/%s/status", entry->d_name);
        FILE *file =
            entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        char line[128];
        while (file != NULL && fgets(line, sizeof line, file) != NULL) {
            if (sscanf(line, "PPid: %d", &ppid) == 1) {
                break;
            }
        }
        if (file != NULL) {
            fclose(file);
        }
        count += ppid == parent;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static struct house count_house(void)
{
    return (struct house){.supervisor = count_process(decode->pid),
                          .worker = count_process(decode->worker),
                          .library = count_process(getpid()),
                          .files = count_entries(case_dir()),
                          .shm = count_entries("/dev/shm"),
                          .children = count_children(decode->pid)};
}

/* A sanitizer maps memory of its own as it goes: its maps are shown, and not judged. */
static bool is_at_most(const struct counts *a, const struct counts *b)
{
    return a->fds <= b->fds && (a->maps <= b->maps || is_sanitized_build()) &&
           a->memfds <= b->memfds;
}

/* /dev/shm is everybody's: shown, and not judged. */
static bool is_back(const struct house *now, const struct house *start)
{
    return is_at_most(&now->supervisor, &start->supervisor) &&
           is_at_most(&now->worker, &start->worker) &&
           is_at_most(&now->library, &start->library) && now->files <= start->files &&
           now->children <= start->children;
}

static void show(const char *when, const struct house *h)
{
    test_say("%-20s supervisor %3u fds %3u maps %2u memfds   worker %3u %3u %2u   library %3u "
             "%3u %2u   "
             "files %2u   /dev/shm %u   workers %u",
             when, h->supervisor.fds, h->supervisor.maps, h->supervisor.memfds, h->worker.fds,
             h->worker.maps, h->worker.memfds, h->library.fds, h->library.maps,
             h->library.memfds, h->files, h->shm, h->children);
}

/* Closing takes a moment after the last engine has gone. */
static void expect_back(const struct house *start, const char *what)
{
    struct house now = count_house();
    for (uint32_t ms = 0; !is_back(&now, start) && ms < 4000; ms += 20) {
        sleep_us(20000);
        now = count_house();
    }
    show("before", start);
    show(what, &now);
    CHECK(is_back(&now, start), "something is left");
}

/* ---- engines ------------------------------------------------------------------------------------------------------ */

/* argv: socket, address of the other daemon, path of the memory, key, "clean" or "kill". */
static int role_engine(int argc, char **argv)
{
    struct daemon own = {.name = "own"};
    CHECK_IS(argc, 5, "arguments");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    kvf_client *client = client_attach(&own, 64);
    struct kvf_plane plane = {.stride = 4096, .page_bytes = 4096};
    struct kvf_plane planes[16];
    for (uint64_t i = 0; i < 16; i++) {
        planes[i] = plane;
        planes[i].off = i * 4096 * geometry.page_count;
    }
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = open(argv[2], O_RDWR | O_CLOEXEC),
                                   .memory_bytes = geometry_bytes(&geometry),
                                   .page_count = geometry.page_count,
                                   .planes = planes,
                                   .plane_count = 16};
    uint32_t region = 0;
    CHECK_CODE(kvf_region_register(client, &opts, &region), 0, "the memory of the one before");
    int32_t pages[PAGES];
    pages_count_up(pages, PAGES, 0);
    CHECK_IS(kvf_pages_are_idle(client, region, pages, PAGES, NULL), 1, "a fresh ledger");
    const char *writers[] = {argv[1]};
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink,
                                 .region = region,
                                 .label = 1,
                                 .key = strtoull(argv[3], NULL, 10),
                                 .pages = pages,
                                 .page_count = PAGES,
                                 .writers = writers,
                                 .writer_count = 1};
    kvf_room room = 0;
    CHECK_CODE(kvf_open_sink(client, &sink, &room), 0, "open");
    role_say("open");
    while (strcmp(argv[4], "kill") == 0) {
        pause();
    }
    CHECK_IS(kvf_wait(client, room, WAIT_MS), KVF_SUCCESS, "the room");
    CHECK_CODE(kvf_release(client, room), 0, "release");
    CHECK_CODE(kvf_region_unregister(client, region), 0, "unregister");
    CHECK_CODE(kvf_detach(client, WAIT_MS, NULL), 0, "detach");
    return 0;
}

static void restart_engine(struct engine *from, const char *memory, uint32_t round,
                           uint64_t *random)
{
    char key_text[32];
    bool is_killed = round % 2 == 0;
    uint64_t key = key_next();
    snprintf(key_text, sizeof key_text, "%llu", (unsigned long long)key);
    struct helper *h = helper_start("engine", decode->socket_path, prefill->listen, memory,
                                    key_text, is_killed ? "kill" : "clean", NULL);
    struct kvf_source_opts source = {
        .size_bytes = sizeof source, .region = from->region, .label = 1, .key = key};
    kvf_room out = 0;
    helper_expect(h, "open", WAIT_MS);
    CHECK_CODE(kvf_open_source(from->client, &source, &out), 0, "source");
    engine_submit(from, out, 0, PAGES, 0, true);
    if (is_killed) {
        sleep_us(random_below(random, 20000));
        helper_kill(h);
    } else {
        CHECK_IS(helper_wait(h, WAIT_MS), 0, "a clean engine");
    }
    int state = kvf_wait(from->client, out, WAIT_MS);
    CHECK(state == KVF_SUCCESS || (is_killed && state == KVF_FAILED), "round %u: %s", round,
          kvf_state_name(state));
    room_release(from, out);
}

static void start_daemons(void)
{
    prefill = daemon_start("prefill", "--lane-rate", "200", NULL);
    decode = daemon_start("decode", "--lane-rate", "200", "--tcp-placement", "posted", NULL);
}

static void engines_come_and_go(void)
{
    uint32_t rounds = is_full ? 500 : 20;
    uint64_t random = 1;
    char memory[64];
    start_daemons();
    struct engine *from = engine_start(prefill, &geometry, 0);
    struct engine *to = engine_start(decode, &geometry, 0);
    kvf_pool *pool = pool_make(geometry_bytes(&geometry));
    snprintf(memory, sizeof memory, "/proc/%d/fd/%d", (int)getpid(), kvf_pool_fd(pool));
    struct house start = {0};
    uint64_t start_ns = 0;
    for (uint32_t round = 0; round < rounds + WARM_UP; round++) {
        if (round == WARM_UP) {
            WAIT_FOR(daemon_stat(decode, "clients") == 1, WAIT_MS, "an engine is left");
            transfer_once(from, to, key_next(), 100, 4);
            sleep_us(300000);
            start = count_house();
            start_ns = now_ns();
        }
        restart_engine(from, memory, round, &random);
    }
    test_say("%u engines, one after the other, with the same memory: %llu ms each", rounds,
             (unsigned long long)((now_ns() - start_ns) / 1000000u / rounds));
    WAIT_FOR(daemon_stat(decode, "clients") == 1, WAIT_MS, "an engine is left");
    transfer_once(from, to, key_next(), 100, 4);
    expect_back(&start, "after the engines");
    CHECK_IS(daemon_stat(decode, "worker_starts"), 1, "workers");
    kvf_pool_destroy(pool);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- daemons ------------------------------------------------------------------------------------------------------ */

/* Four ends in turn: killed, stopped cleanly, its worker killed, both killed. */
static void restart_daemon(struct engine *to, uint32_t round)
{
    if (round % 4 == 2) {
        CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
        daemon_wait_worker(decode, WAIT_MS);
        WAIT_FOR(kvf_daemon_check(to->client) == 0, WAIT_MS, "the next worker does not serve");
        return;
    }
    if (round % 4 == 1) {
        daemon_signal(decode, SIGTERM);
        CHECK_IS(daemon_wait(decode, WAIT_MS), 0, "exit status");
    } else {
        if (round % 4 == 3) {
            CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
        }
        daemon_kill(decode);
    }
    daemon_start_again(decode);
    CHECK_CODE(kvf_reattach(to->client, WAIT_MS), 0, "re-attach");
}

static void daemons_come_and_go(void)
{
    uint32_t rounds = is_full ? 100 : 5;
    start_daemons();
    struct engine *from = engine_start(prefill, &geometry, 0);
    struct engine *to = engine_start(decode, &geometry, 0);
    struct house start = {0};
    uint64_t start_ns = 0;
    for (uint32_t round = 0; round < rounds + WARM_UP; round++) {
        if (round == WARM_UP) {
            sleep_us(300000);
            start = count_house();
            start_ns = now_ns();
        }
        kvf_room in = engine_sink(to, key_next(), 200, 40, prefill); /* nobody sends it */
        restart_daemon(to, round);
        room_expect(to, in, KVF_FAILED, WAIT_MS);
        room_release(to, in);
        transfer_once(from, to, key_next(), 0, 20);
    }
    test_say("%u daemons, with one engine attached through all of them: %llu ms each", rounds,
             (unsigned long long)((now_ns() - start_ns) / 1000000u / rounds));
    expect_back(&start, "after the daemons");
    engine_check_idle(to);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {{"engine", role_engine}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"j2_engines_of_one_name_and_memory_come_and_go_and_leave_nothing", engines_come_and_go,
         600},
        {"j1_daemons_come_and_go_under_an_attached_engine_and_leave_nothing",
         daemons_come_and_go, 600},
        {NULL, NULL, 0}};
    if (argc >= 2 && strcmp(argv[1], "--full") == 0) {
        is_full = true;
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    return test_main(argc, argv, cases, roles);
}

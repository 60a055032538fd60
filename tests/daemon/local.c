/* Rooms between engines of one daemon: their bytes are copied from memory to memory, and every promise of a
 * room between two daemons holds for them. */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u
#define CANARY 0xc7
#define FLIGHT_PAGES 300u

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *both;
static struct engine *from;
static struct engine *to;

static void start_engines(void)
{
    from = engine_start(both, &geometry, 0);
    to = engine_start(both, &geometry, 0);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static uint64_t usual_ms(void)
{
    return daemon_stat(both, "bound_usual_us") / 1000u;
}

static void open_both(uint32_t count, kvf_room *ret_in, kvf_room *ret_out)
{
    uint64_t key = key_next();
    *ret_in = engine_sink(to, key, 0, count, both);
    *ret_out = engine_source(from, key);
    engine_submit(from, *ret_out, 0, count, 0, true);
}

/* Copied bytes as shown; the numbers are written now and then. */
static void expect_local_bytes(struct daemon *d, uint64_t bytes)
{
    WAIT_FOR(daemon_stat(d, "local_bytes_total") == bytes, 2000,
             "%llu bytes were copied and not %llu",
             (unsigned long long)daemon_stat(d, "local_bytes_total"),
             (unsigned long long)bytes);
}

/* ---- bytes -------------------------------------------------------------------------------------------- */

static uint64_t move_geometries(void)
{
    static const struct geometry sizes[] = {
        SIXTEEN_BY_FOUR,
        {.plane_count = 160, .page_bytes = 4096, .page_count = 32},
        {.plane_count = 1, .page_bytes = 65536, .page_count = 64},
        {.plane_count = 5, .page_bytes = 777, .stride = 1000, .page_count = 50},
        {.plane_count = 1, .page_bytes = 3 * MIB + 5, .page_count = 4}};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        from = engine_start(both, &sizes[i], 0);
        to = engine_start(both, &sizes[i], 0);
        uint32_t all = (uint32_t)sizes[i].page_count;
        transfer_once(from, to, key_next(), 0, 1);
        transfer_once(from, to, key_next(), 0, all);
        transfer_once(to, from, key_next(), 0, all);
        bytes += (1u + 2u * (uint64_t)all) * to->page_bytes;
        engine_stop(from);
        engine_stop(to);
    }
    return bytes;
}

static void bytes_beside_tcp(void)
{
    both = daemon_start("both", NULL);
    expect_local_bytes(both, move_geometries());
    daemons_stop();
}

static void bytes_posted_four_lanes(void)
{
    both = daemon_start("both", "--tcp-placement", "posted", "--lanes", "4", "--stripe-min",
                        "1M", NULL);
    expect_local_bytes(both, move_geometries());
    daemons_stop();
}

static void bytes_through_the_socket(void)
{
    both = daemon_start("both", "--local", "off", NULL);
    (void)move_geometries();
    expect_local_bytes(both, 0);
    daemons_stop();
}

/* The same engine on both sides of a room; but no page is written by the room that reads it. */
static void one_client(void)
{
    both = daemon_start("both", NULL);
    from = engine_start(both, &geometry, 0);
    int32_t pages[30];
    int32_t targets[30];
    uint64_t key = key_next();
    pages_count_up(pages, 30, 0);
    pages_count_up(targets, 30, 30);
    engine_fill(from, 8, pages, 30, 0);
    kvf_room in = engine_sink_pages(from, key, targets, 30, both->listen);
    kvf_room out = engine_source(from, key);
    CHECK_CODE(engine_try_submit(from, out, targets, 30, 0, true), -KVF_E_PAGE_LENT,
               "submit of pages that the sink is being written to");
    engine_submit_pages(from, out, pages, 30, 0, true);
    room_expect(from, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    engine_verify(from, 8, targets, 30, 0);
    room_release(from, in);
    room_release(from, out);
    expect_local_bytes(both, 30 * from->page_bytes);
    engine_stop(from);
    daemons_stop();
}

/* ---- two daemons ---------------------------------------------------------------------------------------- */

/* Nobody can stop another process's copy: whatever two daemons of one host share, here the port, a room between
 * them goes through a socket, whose end ends it. */
static void two_daemons(void)
{
    both = daemon_start("both", "--lane-rate", "50", NULL);
    char listen[64];
    snprintf(listen, sizeof listen, "127.0.0.2%s", strrchr(both->listen, ':'));
    struct daemon *other = daemon_start("other", "--lane-rate", "50", "--listen", listen, NULL);
    start_engines();
    struct engine *there = engine_start(other, &geometry, 0);
    transfer_once(there, to, key_next(), 0, 40);
    transfer_once(to, there, key_next(), 0, 40);
    expect_local_bytes(both, 0);
    expect_local_bytes(other, 0);
    transfer_once(from, to, key_next(), 0, 40);
    expect_local_bytes(both, 40 * to->page_bytes);
    /* The writer's daemon stands still in mid-transfer; the room is proven without it, and when it goes on
     * not one byte more is written. */
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, FLIGHT_PAGES, other);
    kvf_room out = engine_source(there, key);
    engine_submit(there, out, 0, FLIGHT_PAGES, 0, true);
    room_wait_placed(to, in, 20 * to->page_bytes, WAIT_MS);
    CHECK(kill(other->worker, SIGSTOP) == 0, "SIGSTOP: %s", strerror(errno));
    CHECK_CODE(kvf_abort(to->client, in, 7), 0, "abort");
    room_expect_reason(to, in, 7, (uint32_t)usual_ms() + 500);
    int32_t pages[FLIGHT_PAGES];
    pages_count_up(pages, FLIGHT_PAGES, 0);
    engine_set(to, pages, FLIGHT_PAGES, CANARY);
    room_release(to, in);
    CHECK(kill(other->worker, SIGCONT) == 0, "SIGCONT: %s", strerror(errno));
    room_expect(there, out, KVF_FAILED, 10000);
    sleep_us(500000);
    CHECK_IS(engine_count_other(to, pages, FLIGHT_PAGES, CANARY), 0,
             "bytes changed after the proof");
    room_release(there, out);
    engine_stop(there);
    stop();
}

/* ---- aborts ---------------------------------------------------------------------------------------------- */

/* Moments from the first byte to the last; canaries go in as soon as the pages are said to be idle. */
static void abort_moments(const char *placement, bool is_sink)
{
    both = daemon_start("both", "--tcp-placement", placement, "--lane-rate", "100", NULL);
    start_engines();
    int32_t pages[100];
    pages_count_up(pages, 100, 0);
    struct engine *aborter = is_sink ? to : from;
    for (uint32_t percent = 0; percent < 100; percent += 9) {
        kvf_room in;
        kvf_room out;
        engine_set(to, pages, 100, 0);
        open_both(100, &in, &out);
        room_wait_placed(to, in, percent * to->page_bytes, WAIT_MS);
        CHECK_CODE(kvf_abort(aborter->client, is_sink ? in : out, 7), 0, "abort");
        WAIT_FOR(kvf_drained(to->client, in) > 0, usual_ms() + 500, "the sink is not drained");
        engine_set(to, pages, 100, CANARY);
        WAIT_FOR(kvf_drained(from->client, out) > 0, usual_ms() + 500,
                 "the source is not drained");
        sleep_us(20000);
        CHECK_IS(engine_count_other(to, pages, 100, CANARY), 0,
                 "bytes changed after the proof");
        int proof = kvf_drained(to->client, in);
        CHECK(proof == KVF_LANDED || proof == KVF_PEER_DRAINED ||
                  (proof == KVF_REVOKED && strcmp(placement, "checked") == 0) ||
                  proof == KVF_NEVER_POSTED,
              "at %u %% drained by %s", percent, kvf_proof_name(proof));
        room_release(to, in);
        room_release(from, out);
    }
    transfer_once(from, to, key_next(), 0, 100);
    stop();
}

static void sink_aborts_checked(void)
{
    abort_moments("checked", true);
}

static void sink_aborts_posted(void)
{
    abort_moments("posted", true);
}

static void source_aborts(void)
{
    abort_moments("checked", false);
}

/* ---- engines that die ------------------------------------------------------------------------------------ */

/* argv: socket, listen, key, pages. */
static struct engine *role_engine(int argc, char **argv, struct daemon *own)
{
    CHECK_IS(argc, 4, "arguments");
    memset(own, 0, sizeof *own);
    snprintf(own->name, sizeof own->name, "helper");
    snprintf(own->socket_path, sizeof own->socket_path, "%s", argv[0]);
    snprintf(own->listen, sizeof own->listen, "%s", argv[1]);
    return engine_start(own, &geometry, 0);
}

static int role_sink(int argc, char **argv)
{
    struct daemon own;
    struct engine *e = role_engine(argc, argv, &own);
    (void)engine_sink(e, strtoull(argv[2], NULL, 10), 0, (uint32_t)atoi(argv[3]), &own);
    role_say("open");
    while (pause() != 0) {
    }
    return 1;
}

static int role_source(int argc, char **argv)
{
    struct daemon own;
    struct engine *e = role_engine(argc, argv, &own);
    uint32_t count = (uint32_t)atoi(argv[3]);
    kvf_room out = engine_source(e, strtoull(argv[2], NULL, 10));
    engine_submit(e, out, 0, count, 0, true);
    role_say("open");
    while (pause() != 0) {
    }
    return 1;
}

static void kill_engine(bool is_sink_killed)
{
    char key_text[32];
    char count_text[32];
    both = daemon_start("both", "--lane-rate", "50", NULL);
    uint64_t key = key_next();
    snprintf(key_text, sizeof key_text, "%llu", (unsigned long long)key);
    snprintf(count_text, sizeof count_text, "%u", FLIGHT_PAGES);
    struct engine *e = engine_start(both, &geometry, 0);
    struct bystander *b = bystander_start(both, both);
    struct helper *h = helper_start(is_sink_killed ? "sink" : "source", both->socket_path,
                                    both->listen, key_text, count_text, NULL);
    helper_expect(h, "open", WAIT_MS);
    kvf_room room;
    if (is_sink_killed) {
        room = engine_source(e, key);
        engine_submit(e, room, 0, FLIGHT_PAGES, 0, true);
    } else {
        room = engine_sink(e, key, 0, FLIGHT_PAGES, both);
    }
    room_wait_placed(e, room, 20 * e->page_bytes, WAIT_MS);
    helper_kill(h);
    room_expect(e, room, KVF_FAILED, (uint32_t)usual_ms() + 500);
    int32_t pages[FLIGHT_PAGES];
    pages_count_up(pages, FLIGHT_PAGES, 0);
    engine_set(e, pages, FLIGHT_PAGES, CANARY);
    WAIT_FOR(daemon_stat(both, "regions") == 3 && daemon_stat(both, "clients") == 3,
             usual_ms() + 500, "the dead engine's memory is held: %llu regions, %llu clients",
             (unsigned long long)daemon_stat(both, "regions"),
             (unsigned long long)daemon_stat(both, "clients"));
    CHECK_IS(engine_count_other(e, pages, FLIGHT_PAGES, CANARY), 0,
             "bytes changed after the proof");
    room_release(e, room);
    struct engine *next = engine_start(both, &geometry, 0);
    transfer_once(is_sink_killed ? e : next, is_sink_killed ? next : e, key_next(), 0, 50);
    bystander_stop(b, 5, NULL);
    engine_stop(next);
    engine_stop(e);
    daemons_stop();
}

static void sink_engine_killed(void)
{
    kill_engine(true);
}

static void source_engine_killed(void)
{
    kill_engine(false);
}

static void worker_killed(void)
{
    both = daemon_start("both", "--transport", "local", "--lane-rate", "50", NULL);
    start_engines();
    kvf_room in;
    kvf_room out;
    open_both(FLIGHT_PAGES, &in, &out);
    room_wait_placed(to, in, 20 * to->page_bytes, WAIT_MS);
    CHECK(kill(both->worker, SIGKILL) == 0, "SIGKILL: %s", strerror(errno));
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    room_expect_proof(to, in, KVF_WORKER_GONE);
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_expect_proof(from, out, KVF_WORKER_GONE);
    room_release(to, in);
    room_release(from, out);
    daemon_wait_worker(both, WAIT_MS);
    WAIT_FOR(kvf_daemon_check(to->client) == 0 && kvf_daemon_check(from->client) == 0, WAIT_MS,
             "the next worker does not serve");
    transfer_once(from, to, key_next(), 0, 40); /* by the same address */
    stop();
}

/* ---- transport local ------------------------------------------------------------------------------------- */

static void alone(void)
{
    both = daemon_start("both", "--transport", "local", "--connect-ms", "300", NULL);
    struct daemon *other = daemon_start("other", NULL);
    start_engines();
    CHECK_IS(daemon_stat(both, "transport"), 4, "transport");
    transfer_once(from, to, key_next(), 0, 200);
    expect_local_bytes(both, 200 * to->page_bytes);
    /* Nobody listens at its address, and it dials nobody. */
    struct sockaddr_in addr = {.sin_family = AF_INET};
    const char *colon = strrchr(both->listen, ':');
    addr.sin_port = htons((uint16_t)atoi(colon + 1));
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = connect(fd, (struct sockaddr *)&addr, sizeof addr);
    CHECK(rc != 0 && errno == ECONNREFUSED, "connect: %d, %s", rc, strerror(errno));
    close(fd);
    kvf_room in = engine_sink(to, key_next(), 0, 20, other);
    room_expect_reason(to, in, KVF_E_PEER_UNREACHABLE, WAIT_MS);
    room_expect_proof(to, in, KVF_NEVER_POSTED);
    room_release(to, in);
    stop();
}

static void alone_with_local_off(void)
{
    char out[256];
    char err[512];
    int status = daemon_try(out, sizeof out, err, sizeof err, "--transport", "local", "--local",
                            "off", "--check", NULL);
    CHECK_IS(status, 2, "exit status");
    CHECK(strstr(err, "--local off") != NULL, "it says: %s", err);
}

/* ---- system calls of the worker ---------------------------------------------------------------------------- */

#define CALLS_MAX 65536
#define SYSCALL_ROOMS 1000

struct calls {
    _Atomic uint32_t count;
    _Atomic uint32_t is_on;
    _Atomic uint32_t is_ending;
    pid_t worker;
    int trace_errno;
    uint64_t at_ns[CALLS_MAX];
    long number[CALLS_MAX];
};

static struct calls *calls;

/* In a process of its own: a tracer waits for its tracee in one thread, and must not wait for anything else. */
static void trace_body(void)
{
    int status;
    if (ptrace(PTRACE_SEIZE, calls->worker, NULL, (void *)(uintptr_t)PTRACE_O_TRACESYSGOOD) !=
            0 ||
        ptrace(PTRACE_INTERRUPT, calls->worker, NULL, NULL) != 0) {
        calls->trace_errno = errno;
        atomic_store(&calls->is_on, 1);
        _exit(0);
    }
    bool is_entry = false;
    while (waitpid(calls->worker, &status, __WALL) == calls->worker && WIFSTOPPED(status)) {
        atomic_store(&calls->is_on, 1);
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            ptrace(PTRACE_GET_SYSCALL_INFO, calls->worker, (void *)sizeof info, &info);
            is_entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
            uint32_t count = atomic_load(&calls->count);
            if (is_entry && count < CALLS_MAX) {
                calls->number[count] = (long)info.entry.nr;
                calls->at_ns[count] = now_ns();
                atomic_store(&calls->count, count + 1);
            }
        }
        if (atomic_load(&calls->is_ending) != 0) {
            break;
        }
        ptrace(PTRACE_SYSCALL, calls->worker, NULL, NULL);
    }
    ptrace(PTRACE_DETACH, calls->worker, NULL, NULL);
    _exit(0);
}

static void room_window(int i, uint64_t *ret_begin_ns, uint64_t *ret_end_ns)
{
    uint64_t key = key_next();
    int32_t first = i % 100 * 8;
    *ret_begin_ns = now_ns();
    kvf_room in = engine_sink(to, key, first, 8, both);
    kvf_room out = engine_source(from, key);
    engine_submit(from, out, first, 8, 0, true);
    while (kvf_poll(to->client, in) != KVF_SUCCESS) {
        CHECK(kvf_poll(to->client, in) != KVF_FAILED, "room %d failed", i);
    }
    *ret_end_ns = now_ns();
    /* Asking, not waiting: who sleeps has the worker wake it, which is a call. */
    while (kvf_poll(from->client, out) != KVF_SUCCESS) {
        CHECK(kvf_poll(from->client, out) != KVF_FAILED, "room %d failed", i);
    }
    room_release(to, in);
    room_release(from, out);
}

static uint64_t begin_ns[SYSCALL_ROOMS];
static uint64_t end_ns[SYSCALL_ROOMS];

static void trace_rooms(uint32_t *ret_first, uint32_t *ret_end)
{
    calls =
        mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(calls != MAP_FAILED, "mmap: %s", strerror(errno));
    calls->worker = both->worker;
    fflush(stdout);
    pid_t tracer = fork();
    if (tracer == 0) {
        trace_body();
    }
    WAIT_FOR(atomic_load(&calls->is_on) != 0, WAIT_MS, "the tracer does not come up");
    if (calls->trace_errno != 0) {
        test_skip("this machine lets nobody trace: %s", strerror(calls->trace_errno));
    }
    room_window(0, &begin_ns[0],
                &end_ns[0]); /* wakes once more who waited for the one before */
    *ret_first = atomic_load(&calls->count);
    for (int i = 0; i < SYSCALL_ROOMS; i++) {
        room_window(i, &begin_ns[i], &end_ns[i]);
    }
    *ret_end = atomic_load(&calls->count);
    CHECK(*ret_end < CALLS_MAX, "more calls than can be noted");
    atomic_store(&calls->is_ending, 1);
    CHECK(waitpid(tracer, NULL, 0) == tracer, "waitpid: %s", strerror(errno));
}

/* A daemon that is busy with local rooms looks up from its rings once a millisecond or less, to hear of
 * attaches, asks for its processor time with each copy of the stats and for its processors every five
 * seconds. Between open and success of a room that is short beside these lies nothing. */
static void no_system_call(void)
{
    if (is_sanitized_build()) {
        test_skip("a sanitizer's runtime makes system calls of its own");
    }
    both = daemon_start("both", "--spin", "on", NULL);
    start_engines();
    transfer_once(from, to, key_next(), 0, 8);
    uint32_t first;
    uint32_t end;
    trace_rooms(&first, &end);
    uint64_t looks = 0;
    uint64_t clocks = 0;
    uint64_t masks = 0;
    for (uint32_t i = first; i < end; i++) {
        long number = calls->number[i];
        looks += number == SYS_epoll_wait || number == SYS_epoll_pwait;
        clocks += number == SYS_clock_gettime;
        masks += number == SYS_sched_getaffinity;
        CHECK(looks + clocks + masks == i - first + 1, "the worker made system call %ld",
              number);
    }
    uint32_t silent = 0;
    uint32_t brief = 0;
    uint32_t brief_silent = 0;
    for (int i = 0; i < SYSCALL_ROOMS; i++) {
        bool is_silent = true;
        for (uint32_t k = first; k < end; k++) {
            is_silent =
                is_silent && (calls->at_ns[k] < begin_ns[i] || calls->at_ns[k] > end_ns[i]);
        }
        bool is_brief = end_ns[i] - begin_ns[i] < 300000;
        silent += is_silent;
        brief += is_brief;
        brief_silent += is_brief && is_silent;
    }
    uint64_t took_ms = (end_ns[SYSCALL_ROOMS - 1] - begin_ns[0]) / 1000000u + 1u;
    test_say(
        "%u of %d rooms without a call, %u of %u that took less than 300 us; %llu looks in "
        "%llu ms",
        silent, SYSCALL_ROOMS, brief_silent, brief, (unsigned long long)looks,
        (unsigned long long)took_ms);
    CHECK(looks <= took_ms + 2, "%llu looks in %llu ms", (unsigned long long)looks,
          (unsigned long long)took_ms);
    CHECK(clocks <= took_ms / 50 + 2, "%llu clocks in %llu ms", (unsigned long long)clocks,
          (unsigned long long)took_ms);
    CHECK(masks <= took_ms / 5000 + 1, "%llu masks in %llu ms", (unsigned long long)masks,
          (unsigned long long)took_ms);
    if (!is_timed_build() || brief < 100) {
        test_say("too busy a machine to judge more");
    } else {
        CHECK(brief_silent * 10 >= brief * 7, "%u of %u brief rooms without a call",
              brief_silent, brief);
    }
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {
        {"sink", role_sink}, {"source", role_source}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"rooms_between_engines_of_one_daemon_are_copied", bytes_beside_tcp, 0},
        {"the_same_with_placement_posted_and_four_lanes", bytes_posted_four_lanes, 0},
        {"with_local_off_they_go_through_the_daemons_own_socket", bytes_through_the_socket, 0},
        {"one_engine_is_source_and_sink_but_not_of_the_same_pages", one_client, 0},
        {"h14_two_daemons_of_one_host_speak_tcp_and_never_local", two_daemons, 60},
        {"a_sink_that_aborts_is_idle_at_once_and_gets_no_byte_more", sink_aborts_checked, 0},
        {"a_sink_that_aborts_gets_no_byte_behind_the_marker", sink_aborts_posted, 0},
        {"a_source_that_aborts_ends_both_rooms_with_proof", source_aborts, 0},
        {"a_sink_engine_killed_in_mid_copy_costs_nobody_else_anything", sink_engine_killed, 0},
        {"a_source_engine_killed_in_mid_copy_costs_nobody_else_anything", source_engine_killed,
         0},
        {"a_worker_killed_in_mid_copy_proves_both_rooms_and_the_next_serves", worker_killed, 0},
        {"transport_local_listens_to_nobody_and_dials_nobody", alone, 0},
        {"transport_local_without_local_is_refused", alone_with_local_off, 0},
        {"a_busy_worker_makes_no_system_call_for_local_rooms", no_system_call, 60},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

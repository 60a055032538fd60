/* The engine's way makes no system call: a filter traps any.
 *
 * The filtered engine is a child of the case with clients of its own; what happened to it stands in a page
 * that both share, since it cannot even print. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define EXIT_TRAPPED 3
#define EXIT_WRONG 4
#define ROOMS 50
#define ROOM_PAGES 8
#define NO_CALL (-1)

static const struct geometry geometry = SIXTEEN_BY_FOUR;

struct report {
    int call;  /* the trapped one */
    int line;  /* of the check that failed */
    int value; /* what it saw */
    int rooms; /* that went through */
    _Atomic int stage;
};
static struct report *report;

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

static void on_trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    report->call = info->si_syscall;
    _exit(EXIT_TRAPPED);
}

/* From here on every system call but exit_group, and `allowed`, ends this process. */
static void trap_calls(int allowed)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)allowed, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0, "sigaction: %s", strerror(errno));
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) {
        test_skip("this kernel takes no seccomp filter: %s", strerror(errno));
    }
}

#define MUST(condition, seen)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            report->line = __LINE__;                                                           \
            report->value = (int)(seen);                                                       \
            _exit(EXIT_WRONG);                                                                 \
        }                                                                                      \
    } while (0)

static void attach_both(void)
{
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
    transfer_once(from, to, key_next() | UINT64_C(1) << 41, 0, ROOM_PAGES);
}

/* Everything an engine does between open and success. */
static void one_room(int i, const char *writer)
{
    int32_t pages[ROOM_PAGES];
    kvf_room in = 0;
    kvf_room out = 0;
    uint64_t key = (UINT64_C(1) << 42) + (uint64_t)i;
    struct kvf_source_opts opts = {
        .size_bytes = sizeof opts, .region = from->region, .label = key & 0xffff, .key = key};
    pages_count_up(pages, ROOM_PAGES, i % 100 * ROOM_PAGES);
    int rc = engine_try_sink(to, key, pages, ROOM_PAGES, writer, &in);
    MUST(rc == 0, rc);
    MUST(kvf_pages_are_idle(to->client, to->region, pages, ROOM_PAGES, NULL) == 0, 0);
    rc = kvf_open_source(from->client, &opts, &out);
    MUST(rc == 0, rc);
    rc = engine_try_submit(from, out, pages, 3, 0, false);
    MUST(rc == 0, rc);
    rc = engine_try_submit(from, out, pages + 3, ROOM_PAGES - 3, 3, true);
    MUST(rc == 0, rc);
    int32_t states[1] = {0};
    for (int state = -1; state != KVF_SUCCESS; state = kvf_poll(to->client, in)) {
        MUST(state != KVF_FAILED, state);
        (void)kvf_poll_many(to->client, &in, 1, states);
        (void)kvf_drained(to->client, in);
        (void)kvf_failed_early(to->client, in);
        (void)kvf_visible(to->client, in);
    }
    while ((rc = kvf_poll(from->client, out)) != KVF_SUCCESS) {
        MUST(rc != KVF_FAILED, rc);
    }
    rc = kvf_drained(to->client, in);
    MUST(rc == KVF_LANDED, rc);
    MUST(kvf_visible(to->client, in) == 1, 0);
    MUST(kvf_pages_are_idle(to->client, to->region, pages, ROOM_PAGES, NULL) == 1, 0);
    MUST(kvf_pages_are_idle(from->client, from->region, pages, ROOM_PAGES, NULL) == 1, 0);
    MUST(kvf_release(to->client, in) == 0, 0);
    MUST(kvf_release(from->client, out) == 0, 0);
    report->rooms++;
}

/* Runs `body` in a filtered child and returns its wait status. */
static int run_filtered(void (*body_fn)(void))
{
    if (is_sanitized_build()) {
        test_skip("a sanitizer's runtime makes system calls of its own");
    }
    report =
        mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(report != MAP_FAILED, "mmap: %s", strerror(errno));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        body_fn();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        _exit(77);
    }
    return status;
}

static void expect_clean(int status)
{
    CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_TRAPPED),
          "the engine made system call %d after %d rooms", report->call, report->rooms);
    CHECK(!(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_WRONG),
          "line %d of the filtered engine saw %d %s after %d rooms", report->line,
          report->value, kvf_code_name_of(report->value), report->rooms);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the filtered engine ended with %x",
          (unsigned)status);
}

/* ---- awake -------------------------------------------------------------------------------------------- */

static void rooms_body(void)
{
    attach_both();
    trap_calls(NO_CALL);
    for (int i = 0; i < ROOMS; i++) {
        one_room(i, prefill->listen);
    }
}

static void open_to_success(void)
{
    prefill = daemon_start("prefill", "--spin", "on", NULL);
    decode = daemon_start("decode", "--spin", "on", NULL);
    int status = run_filtered(rooms_body);
    expect_clean(status);
    CHECK_IS(report->rooms, ROOMS, "rooms under the filter");
    daemons_stop();
}

static void abort_body(void)
{
    attach_both();
    trap_calls(NO_CALL);
    for (int i = 0; i < ROOMS; i++) {
        int32_t pages[ROOM_PAGES];
        kvf_room in = 0;
        pages_count_up(pages, ROOM_PAGES, i * ROOM_PAGES);
        int rc = engine_try_sink(to, (UINT64_C(1) << 43) + (uint64_t)i, pages, ROOM_PAGES,
                                 prefill->listen, &in);
        MUST(rc == 0, rc);
        MUST(kvf_lease(to->client, in, KVF_KIND_CPU) == 0, 0);
        MUST(kvf_lease_give_back(to->client, in, KVF_KIND_CPU) == 0, 0);
        MUST(kvf_abort(to->client, in, 1) == 0, 0);
        while (kvf_drained(to->client, in) == -EAGAIN) {
        }
        MUST(kvf_poll(to->client, in) == KVF_FAILED, 0);
        MUST(kvf_pages_are_idle(to->client, to->region, pages, ROOM_PAGES, NULL) == 1, 0);
        MUST(kvf_release(to->client, in) == 0, 0);
        report->rooms++;
    }
}

static void abort_and_leases(void)
{
    prefill = daemon_start("prefill", "--spin", "on", NULL);
    decode = daemon_start("decode", "--spin", "on", NULL);
    expect_clean(run_filtered(abort_body));
    CHECK_IS(report->rooms, ROOMS, "rooms under the filter");
    daemons_stop();
}

/* ---- asking never makes one, whatever the daemon does ---------------------------------------------------- */

static void asking_body(void)
{
    int32_t pages[64];
    kvf_room in[4];
    int32_t states[4];
    attach_both();
    pages_count_up(pages, 64, 0);
    for (int i = 0; i < 4; i++) {
        in[i] = engine_sink(to, key_next(), i * 16, 16, prefill); /* nobody answers these */
    }
    kvf_room ended = engine_sink(to, key_next(), 100, 4, prefill);
    CHECK_CODE(kvf_abort(to->client, ended, 1), 0, "abort");
    room_expect(to, ended, KVF_FAILED, 5000);
    kvf_room stale = ended;
    room_release(to, ended);
    trap_calls(NO_CALL);
    for (int i = 0; i < 2000000; i++) {
        MUST(kvf_poll(to->client, in[i % 4]) == KVF_BOOTSTRAPPING, 0);
        MUST(kvf_poll_many(to->client, in, 4, states) == 0, 0);
        MUST(kvf_drained(to->client, in[i % 4]) == -EAGAIN, 0);
        MUST(kvf_failed_early(to->client, in[i % 4]) == 0, 0);
        MUST(kvf_visible(to->client, in[i % 4]) == 0, 0);
        MUST(kvf_poll(to->client, stale) == -KVF_E_STALE_ROOM, 0);
        MUST(kvf_poll(to->client, 12345) < 0, 0);
        MUST(kvf_pages_are_idle(to->client, to->region, pages, 64, NULL) == 0, 0);
        MUST(kvf_pages_are_idle(to->client, to->region, pages, 1, NULL) == 0, 0);
    }
    report->rooms++;
}

static void asking(void)
{
    prefill = daemon_start("prefill", "--spin", "off", NULL);
    decode = daemon_start("decode", "--spin", "off", NULL);
    expect_clean(run_filtered(asking_body));
    daemons_stop();
}

/* ---- asleep ------------------------------------------------------------------------------------------- */

static uint64_t writes_made(void)
{
    FILE *file = fopen("/proc/self/io", "re");
    char line[128];
    unsigned long long writes = 0;
    bool is_found = false;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        is_found = is_found || sscanf(line, "syscw: %llu", &writes) == 1;
    }
    if (file != NULL) {
        fclose(file);
    }
    if (!is_found) {
        test_skip("this kernel does not count the write calls of a process");
    }
    return writes;
}

static void asleep_body(void)
{
    attach_both();
    uint64_t before = writes_made();
    for (int i = 0; i < 20; i++) {
        sleep_us(5000); /* both daemons block meanwhile */
        one_room(i, prefill->listen);
    }
    uint64_t calls = 20u * 4u; /* two opens and two submits a room */
    uint64_t writes = writes_made() - before;
    MUST(writes <= calls, writes);
    MUST(writes >= 20, writes); /* else the daemons never slept, and this showed nothing */
    report->value = (int)writes;
}

static void asleep(void)
{
    prefill = daemon_start("prefill", "--spin", "off", NULL);
    decode = daemon_start("decode", "--spin", "off", NULL);
    expect_clean(run_filtered(asleep_body));
    test_say("%d writes for 80 calls to daemons that sleep", report->value);
    daemons_stop();
}

static void asleep_only_write_body(void)
{
    attach_both();
    trap_calls(SYS_write);
    for (int i = 0; i < ROOMS; i++) {
        one_room(i, prefill->listen);
    }
}

static void asleep_only_write(void)
{
    prefill = daemon_start("prefill", "--spin", "off", NULL);
    decode = daemon_start("decode", "--spin", "off", NULL);
    expect_clean(run_filtered(asleep_only_write_body));
    CHECK_IS(report->rooms, ROOMS, "rooms under the filter");
    daemons_stop();
}

/* ---- control ------------------------------------------------------------------------------------------- */

static void control_body(void)
{
    attach_both();
    trap_calls(NO_CALL);
    one_room(0, prefill->listen);
    (void)syscall(SYS_getpid);
}

static void control(void)
{
    prefill = daemon_start("prefill", "--spin", "on", NULL);
    decode = daemon_start("decode", "--spin", "on", NULL);
    int status = run_filtered(control_body);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_TRAPPED &&
              report->call == SYS_getpid,
          "the filter let getpid through: status %x, call %d", (unsigned)status, report->call);
    CHECK_IS(report->rooms, 1, "rooms before it");
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"the_filter_traps_a_system_call", control, 0},
        {"no_system_call_between_open_and_success_while_the_daemon_is_awake", open_to_success,
         0},
        {"no_system_call_in_abort_leases_and_release_while_the_daemon_is_awake",
         abort_and_leases, 0},
        {"poll_drained_visible_and_idle_never_make_a_system_call", asking, 0},
        {"a_daemon_that_sleeps_costs_one_write_a_call_at_most", asleep, 0},
        {"a_daemon_that_sleeps_costs_writes_and_nothing_else", asleep_only_write, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

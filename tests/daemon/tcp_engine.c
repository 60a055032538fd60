/* Which engine makes tcp's calls: chosen, refused, counted. The filters that stand for a container's are set in
 * the case itself; its daemons inherit them. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define SOCKETS 1
#define URING 2
#define ROOMS 6
#define ROOM_PAGES 256

static const struct geometry geometry = SIXTEEN_BY_FOUR;

/* From here on io_uring_setup answers err, here and in every daemon that is started. */
static void forbid_rings(uint32_t err)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) {
        test_skip("this kernel takes no seccomp filter: %s", strerror(errno));
    }
}

static void skip_unless_allowed(void)
{
    int fd = (int)syscall(SYS_io_uring_setup, 0, NULL);
    if (fd < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS)) {
        test_skip("this host forbids io_uring: %s", strerror(errno));
    }
}

static uint32_t lines_with(const struct daemon *d, const char *words, char *ret_line,
                           size_t cap)
{
    char path[160];
    char line[512];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/%s.log", case_dir(), d->name);
    FILE *file = fopen(path, "re");
    CHECK(file != NULL, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL) {
        if (strstr(line, words) != NULL) {
            count++;
            snprintf(ret_line, cap, "%s", line);
        }
    }
    fclose(file);
    return count;
}

static void expect_engine(const struct daemon *d, uint64_t engine, const char *why)
{
    char line[512] = "";
    CHECK_IS(daemon_stat(d, "tcp_engine"), engine, "engine in the stats");
    CHECK_IS(lines_with(d, "tcp engine: ", line, sizeof line), 1, "lines about the engine");
    CHECK(strstr(line, why) != NULL, "\"%s\" does not say \"%s\"", line, why);
    line[strcspn(line, "\n")] = '\0';
    test_say("%s", strstr(line, "tcp engine: "));
}

static void move_rooms(struct daemon *prefill, struct daemon *decode)
{
    struct engine *from = engine_start(prefill, &geometry, 0);
    struct engine *to = engine_start(decode, &geometry, 0);
    for (int i = 0; i < ROOMS; i++) {
        transfer_once(from, to, key_next(), 0, ROOM_PAGES);
    }
    engine_stop(from);
    engine_stop(to);
}

static void by_name(void)
{
    skip_unless_allowed();
    struct daemon *prefill = daemon_start("prefill", "--tcp-engine", "sockets", NULL);
    struct daemon *decode = daemon_start("decode", "--tcp-engine", "uring", NULL);
    expect_engine(prefill, SOCKETS, "plain sockets, as asked for");
    expect_engine(decode, URING, "io_uring");
    move_rooms(prefill, decode);
    move_rooms(decode, prefill);
    daemons_stop();
}

/* Both daemons are as busy as they can be: the lanes of a turn share its system calls. */
static void fewer_calls(void)
{
    skip_unless_allowed();
    struct daemon *prefill =
        daemon_start("prefill", "--tcp-engine", "uring", "--lanes", "8", NULL);
    struct daemon *decode =
        daemon_start("decode", "--tcp-engine", "uring", "--lanes", "8", NULL);
    move_rooms(prefill, decode);
    struct daemon *both[] = {prefill, decode};
    for (int i = 0; i < 2; i++) {
        uint64_t calls = 0;
        WAIT_FOR((calls = daemon_stat(both[i], "tcp_calls_total")) > 0, 2000,
                 "no call counted");
        uint64_t enters = daemon_stat(both[i], "tcp_system_calls_total");
        test_say("%s: %llu sends and receives by %llu system calls", both[i]->name,
                 (unsigned long long)calls, (unsigned long long)enters);
        CHECK(enters < calls, "eight lanes share no system call");
    }
    daemons_stop();
}

static void forbidden(uint32_t err, const char *why)
{
    forbid_rings(err);
    struct daemon *prefill = daemon_start("prefill", NULL);
    struct daemon *decode = daemon_start("decode", "--tcp-engine", "auto", NULL);
    expect_engine(prefill, SOCKETS, why);
    expect_engine(decode, SOCKETS, why);
    move_rooms(prefill, decode);
    daemons_stop();
}

static void forbidden_by_a_profile(void)
{
    forbidden(EPERM, "plain sockets, since a filter forbids io_uring");
}

static void missing(void)
{
    forbidden(ENOSYS, "plain sockets, since this kernel has no io_uring");
}

static void no_memory(void)
{
    forbidden(ENOMEM, "plain sockets, since no memory for its ring");
}

static void asked_for_and_refused(void)
{
    char out[4096];
    char err[8192];
    forbid_rings(EPERM);
    int status = daemon_try(out, sizeof out, err, sizeof err, "--name", "alone", "--run-dir",
                            case_dir(), "--tcp-engine", "uring", NULL);
    CHECK_IS(status, 3, "exit status");
    CHECK(strstr(err, "cannot start: --tcp-engine uring: a filter forbids io_uring") != NULL,
          "\"%s\"", err);
    uint32_t errors = 0;
    for (const char *at = err; (at = strstr(at, " error: ")) != NULL; at++) {
        errors++;
    }
    CHECK_IS(errors, 1, "errors in its log");
    CHECK(strstr(out, "ready") == NULL, "it said that it was ready");
    CHECK(strstr(err, "effective configuration") == NULL, "the reason is buried");
    status = daemon_try(out, sizeof out, err, sizeof err, "--check", "--name", "alone",
                        "--run-dir", case_dir(), "--tcp-engine", "uring", NULL);
    CHECK_IS(status, 3, "exit status of --check");
    CHECK(strstr(err, "--tcp-engine uring: a filter forbids io_uring") != NULL, "\"%s\"", err);
    status = daemon_try(out, sizeof out, err, sizeof err, "--check", "--name", "alone",
                        "--run-dir", case_dir(), NULL);
    CHECK_IS(status, 0, "exit status of --check of auto");
}

/* The ring belongs to the worker, and ends with it: the next one makes its own. */
static void next_worker(void)
{
    skip_unless_allowed();
    struct daemon *prefill = daemon_start("prefill", "--tcp-engine", "uring", NULL);
    struct daemon *decode = daemon_start("decode", "--tcp-engine", "uring", NULL);
    move_rooms(prefill, decode);
    uint64_t before = daemon_stat(decode, "tcp_calls_total");
    kill(decode->worker, SIGKILL);
    daemon_wait_worker(decode, 5000);
    move_rooms(prefill, decode);
    WAIT_FOR(daemon_stat(decode, "tcp_calls_total") > before, 2000,
             "the count of calls began anew");
    CHECK_IS(daemon_stat(decode, "tcp_engine"), URING, "engine in the stats");
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"each_engine_moves_bytes_to_and_from_the_other", by_name, 0},
        {"eight_lanes_share_system_calls", fewer_calls, 0},
        {"k1_a_profile_that_forbids_io_uring_leaves_sockets_and_one_line",
         forbidden_by_a_profile, 0},
        {"k1_a_kernel_without_io_uring_leaves_sockets_and_one_line", missing, 0},
        {"k1_no_memory_for_a_ring_leaves_sockets_and_one_line", no_memory, 0},
        {"k1_io_uring_asked_for_by_name_and_refused_is_no_start", asked_for_and_refused, 0},
        {"the_next_worker_has_a_ring_of_its_own", next_worker, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

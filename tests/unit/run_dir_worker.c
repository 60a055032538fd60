/* What the next daemon of a name does about the worker of an earlier one: nothing may be registered while
 * that process can still write, and only its end says that it cannot. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sidecar/host/clock.h"
#include "sidecar/host/process.h"
#include "sidecar/run_dir.h"

static char folder[] = "/tmp/kvfence-run-dir-XXXXXX";
static struct kvf_config config;
static struct kvf_run_dir dir;

static void setup(void)
{
    cr_assert_neq(mkdtemp(folder), NULL);
    memset(&config, 0, sizeof config);
    (void)snprintf(config.name, sizeof config.name, "gpu0");
    (void)snprintf(config.run_dir, sizeof config.run_dir, "%s", folder);
    config.kill_ms = 5000;
    cr_assert_eq(kvf_run_dir_open(&config, &dir), 0);
}

static void teardown(void)
{
    static const char *const names[] = {".lock", ".worker"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/gpu0%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

/* A process that lives on whatever happens to its parent, as a worker that hangs in the kernel would. */
static pid_t start_process(void)
{
    char *argv[] = {"sleep", "60", NULL};
    extern char **environ;
    pid_t pid = -1;
    cr_assert_eq(posix_spawnp(&pid, "sleep", NULL, NULL, argv, environ), 0);
    return pid;
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == pid;
}

static void name_worker(pid_t pid, uint64_t start_off)
{
    struct kvf_process_id id;
    cr_assert_eq(kvf_process_identify(pid, &id), 0);
    id.start_ticks += start_off;
    cr_assert_eq(kvf_run_dir_write_worker(&dir, &id), 0);
}

Test(run_dir_worker, h34_nothing_is_registered_before_the_worker_of_an_earlier_daemon_has_ended,
     .init = setup, .fini = teardown)
{
    pid_t pid = start_process();
    name_worker(pid, 0);
    cr_assert_not(has_ended(pid));
    int rc = kvf_run_dir_await_worker(&dir);
    bool is_ended = has_ended(pid);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    cr_assert_eq(rc, 0);
    cr_assert(is_ended, "it answered while that process lives");
}

Test(run_dir_worker, a_worker_that_has_ended_is_not_waited_for, .init = setup, .fini = teardown)
{
    pid_t pid = start_process();
    name_worker(pid, 0);
    cr_assert_eq(kill(pid, SIGKILL), 0);
    (void)waitpid(pid, NULL, 0);
    uint64_t since_ns = kvf_clock_now_ns();
    cr_assert_eq(kvf_run_dir_await_worker(&dir), 0);
    cr_assert_lt(kvf_clock_now_ns() - since_ns, 900 * KVF_NS_PER_MS);
}

/* Pids are recycled: another process of that number is nobody's worker, and is left alone. */
Test(run_dir_worker, another_process_with_the_workers_number_is_left_alone, .init = setup,
     .fini = teardown)
{
    pid_t pid = start_process();
    name_worker(pid, 1);
    int rc = kvf_run_dir_await_worker(&dir);
    bool is_ended = has_ended(pid);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    cr_assert_eq(rc, 0);
    cr_assert_not(is_ended);
}

Test(run_dir_worker, no_worker_on_file_is_waited_for, .init = setup, .fini = teardown)
{
    cr_assert_eq(kvf_run_dir_await_worker(&dir), 0);
    char path[128];
    (void)snprintf(path, sizeof path, "%s/gpu0.worker", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, "nobody\n", 7), 7);
    (void)close(fd);
    cr_assert_eq(kvf_run_dir_await_worker(&dir), 0);
    kvf_run_dir_remove_worker(&dir);
    cr_assert_neq(access(path, F_OK), 0);
}

#include "tests/torture/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WAIT_STEP_NS 2000000L

extern char **environ;

static _Atomic int caught_signal;

static void note_signal(int number)
{
    atomic_store_explicit(&caught_signal, number, memory_order_relaxed);
}

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
#define ENDING_COUNT (sizeof(ending_signals) / sizeof(ending_signals[0]))

void kvf_process_catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = note_signal;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < ENDING_COUNT; i++) {
        sigaction(ending_signals[i], &action, NULL);
    }
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

int kvf_process_signal(void)
{
    return atomic_load_explicit(&caught_signal, memory_order_relaxed);
}

uint64_t kvf_torture_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- children ------------------------------------------------------------------------------------- */

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t standard;
    sigset_t none;
    sigemptyset(&none);
    sigemptyset(&standard);
    sigaddset(&standard, SIGPIPE);
    for (size_t i = 0; i < ENDING_COUNT; i++) {
        sigaddset(&standard, ending_signals[i]);
    }
    int rc = posix_spawnattr_setsigdefault(attributes, &standard);
    rc = rc != 0 ? rc : posix_spawnattr_setsigmask(attributes, &none);
    /* A group of its own: the terminal's interrupt reaches the coordinator alone, which decides. */
    rc = rc != 0 ? rc : posix_spawnattr_setpgroup(attributes, 0);
    return rc != 0 ? rc
                   : posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF |
                                                              POSIX_SPAWN_SETSIGMASK |
                                                              POSIX_SPAWN_SETPGROUP);
}

static int set_files(posix_spawn_file_actions_t *files, const struct kvf_spawn *spawn,
                     int pipe_fd)
{
    int rc = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
    if (rc == 0 && pipe_fd >= 0) {
        rc = posix_spawn_file_actions_adddup2(files, pipe_fd, 1);
    }
    if (rc == 0 && spawn->log_path != NULL) {
        rc = posix_spawn_file_actions_addopen(files, 2, spawn->log_path,
                                              O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    if (rc == 0 && spawn->handed_fd >= 0) {
        rc = posix_spawn_file_actions_adddup2(files, spawn->handed_fd, KVF_HANDED_FD);
    }
    return rc;
}

int kvf_child_spawn(struct kvf_child *child, const struct kvf_spawn *spawn)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    int pipes[2] = {-1, -1};
    int rc;
    child->out_fd = -1;
    child->is_reaped = false;
    child->pid = 0;
    if (spawn->has_output && pipe2(pipes, O_CLOEXEC) != 0) {
        return -errno;
    }
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    rc = set_files(&files, spawn, pipes[1]);
    rc = rc != 0 ? rc : set_attributes(&attributes);
    rc = rc != 0
             ? rc
             : posix_spawn(&child->pid, spawn->path, &files, &attributes, spawn->argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (pipes[1] >= 0) {
        close(pipes[1]);
    }
    if (rc != 0) {
        child->pid = 0;
        if (pipes[0] >= 0) {
            close(pipes[0]);
        }
        return -rc;
    }
    child->out_fd = pipes[0];
    return 0;
}

bool kvf_child_has_ended(struct kvf_child *child)
{
    if (child->pid == 0 || child->is_reaped) {
        return true;
    }
    pid_t got = waitpid(child->pid, &child->status, WNOHANG);
    if (got == child->pid || (got < 0 && errno == ECHILD)) {
        child->is_reaped = true;
    }
    return child->is_reaped;
}

bool kvf_child_wait(struct kvf_child *child, uint32_t timeout_ms)
{
    uint64_t end_ns = kvf_torture_now_ns() + timeout_ms * UINT64_C(1000000);
    bool is_killed = false;
    while (!kvf_child_has_ended(child)) {
        struct timespec step = {.tv_nsec = WAIT_STEP_NS};
        if (!is_killed && kvf_torture_now_ns() >= end_ns) {
            kill(child->pid, SIGKILL);
            is_killed = true;
        }
        nanosleep(&step, NULL);
    }
    if (child->out_fd >= 0) {
        close(child->out_fd);
        child->out_fd = -1;
    }
    return !is_killed;
}

/* Waits until the output can be read. 0 or -ETIMEDOUT, -EINTR (a signal asked us to stop). */
static int wait_output(const struct kvf_child *child, uint64_t end_ns)
{
    for (;;) {
        uint64_t now_ns = kvf_torture_now_ns();
        struct pollfd wait = {.fd = child->out_fd, .events = POLLIN};
        if (kvf_process_signal() != 0) {
            return -EINTR;
        }
        if (now_ns >= end_ns) {
            return -ETIMEDOUT;
        }
        int left_ms = (int)((end_ns - now_ns) / 1000000) + 1;
        if (poll(&wait, 1, left_ms) > 0) {
            return 0;
        }
    }
}

/* A byte at a time: it is one short line per daemon, and what follows it stays in the pipe. */
int kvf_child_read_line(struct kvf_child *child, uint32_t timeout_ms, char *ret_line,
                        size_t cap)
{
    uint64_t end_ns = kvf_torture_now_ns() + timeout_ms * UINT64_C(1000000);
    size_t count = 0;
    while (count + 1 < cap) {
        int rc = wait_output(child, end_ns);
        if (rc != 0) {
            return rc;
        }
        char c;
        ssize_t got = read(child->out_fd, &c, 1);
        if (got == 0) {
            return -EPIPE;
        }
        if (got < 0) {
            return -errno;
        }
        if (c == '\n') {
            break;
        }
        ret_line[count++] = c;
    }
    ret_line[count] = 0;
    return (int)count;
}

int kvf_child_read_all(struct kvf_child *child, uint32_t timeout_ms, char *ret_text, size_t cap)
{
    uint64_t end_ns = kvf_torture_now_ns() + timeout_ms * UINT64_C(1000000);
    size_t count = 0;
    while (count + 1 < cap) {
        int rc = wait_output(child, end_ns);
        if (rc != 0) {
            return rc;
        }
        ssize_t got = read(child->out_fd, ret_text + count, cap - 1 - count);
        if (got < 0) {
            return -errno;
        }
        if (got == 0) {
            break;
        }
        count += (size_t)got;
    }
    ret_text[count] = 0;
    return (int)count;
}

int kvf_process_tie_to_parent(pid_t parent, int signal_number)
{
    if (prctl(PR_SET_PDEATHSIG, signal_number) != 0) {
        return -errno;
    }
    /* It may have gone between our start and the call. */
    return getppid() == parent ? 0 : -ESRCH;
}

/* ---- files ---------------------------------------------------------------------------------------- */

int kvf_run_dir_create(char *ret_path, size_t cap)
{
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] != '/' || strlen(base) > 40) {
        base = "/tmp"; /* a socket's path is short: 107 bytes with the name */
    }
    int n = snprintf(ret_path, cap, "%s/%s.XXXXXX", base, program_invocation_short_name);
    if (n < 0 || (size_t)n >= cap) {
        return -ENAMETOOLONG;
    }
    return mkdtemp(ret_path) == NULL ? -errno : 0;
}

static void copy_file(int from_dir, const char *name, const char *keep_logs, const char *prefix)
{
    char to[512];
    struct stat st;
    int n = snprintf(to, sizeof(to), "%s/%s-%s", keep_logs, prefix, name);
    if (n < 0 || (size_t)n >= sizeof(to)) {
        return;
    }
    int in = openat(from_dir, name, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (in >= 0 && out >= 0 && fstat(in, &st) == 0) {
        size_t left = (size_t)st.st_size;
        while (left > 0) {
            ssize_t sent = sendfile(out, in, NULL, left);
            if (sent <= 0) {
                break;
            }
            left -= (size_t)sent;
        }
    } else {
        fprintf(stderr, "%s: cannot keep %s: %s\n", program_invocation_short_name, to,
                strerror(errno));
    }
    if (in >= 0) {
        close(in);
    }
    if (out >= 0) {
        close(out);
    }
}

void kvf_run_dir_remove(const char *path, const char *keep_logs, const char *prefix)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    if (dir == NULL) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (keep_logs != NULL && dot != NULL && strcmp(dot, ".log") == 0) {
            copy_file(dirfd(dir), entry->d_name, keep_logs, prefix);
        }
        unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
    if (rmdir(path) != 0) {
        fprintf(stderr, "%s: cannot remove %s: %s\n", program_invocation_short_name, path,
                strerror(errno));
    }
}

int kvf_program_path(const char *beside, char *ret_path, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", ret_path, cap - 1);
    if (n < 0) {
        return -errno;
    }
    ret_path[n] = 0;
    if (beside == NULL) {
        return 0;
    }
    /* Built, all programs lie in one folder; installed, the daemon and the proxy have their own. */
    static const char *const folders[] = {"", "../sbin/", "../libexec/kvfence/"};
    size_t used = (size_t)(strrchr(ret_path, '/') + 1 - ret_path);
    char found[PATH_MAX];
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        int bytes =
            snprintf(found, sizeof(found), "%.*s%s%s", (int)used, ret_path, folders[i], beside);
        if (bytes < 0 || (size_t)bytes >= cap || (size_t)bytes >= sizeof(found)) {
            return -ENAMETOOLONG;
        }
        bool is_there = access(found, F_OK) == 0;
        if (is_there || i == 0) { /* nowhere: the place beside is what is complained of */
            memcpy(ret_path, found, (size_t)bytes + 1u);
        }
        if (is_there) {
            return 0;
        }
    }
    return 0;
}

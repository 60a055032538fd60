#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/segment.h"
#include "ring/stats.h"
#include "tests/daemon/harness.h"

#define DAEMONS_MAX 8u
#define READY_MS 40000u
#define ACCOUNT_MS 4000u
#define STOP_MS 3000u
#define EXIT_TEXT_MS 10000u

struct record { /* what it takes to start one again */
    struct daemon daemon;
    char *args[DAEMON_ARGS_MAX];
    uint32_t arg_count;
    bool is_used;
};
static struct record records[DAEMONS_MAX];

static struct record *record_of(struct daemon *d)
{
    return (struct record *)d; /* its first member */
}

static const char *daemon_program(void)
{
    const char *given = getenv("KVFENCED");
    return given != NULL ? given : KVF_TEST_KVFENCED;
}

/* ---- processes --------------------------------------------------------------------------------------- */

static void exec_daemon(char *const *args, int out_fd, int err_fd, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(127);
    }
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null_fd, 0);
    dup2(out_fd, 1);
    dup2(err_fd, 2);
    signal(SIGPIPE, SIG_DFL);
    execv(args[0], args);
    _exit(127);
}

/* Reads what comes until the text holds `wanted`, the end, or the deadline. */
static size_t read_until(int fd, char *text, size_t cap, const char *wanted, uint32_t limit_ms)
{
    uint64_t until_ns = now_ns() + limit_ms * UINT64_C(1000000);
    size_t got = 0;
    text[0] = '\0';
    while (got + 1u < cap && (wanted == NULL || strstr(text, wanted) == NULL)) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        uint64_t now = now_ns();
        if (now >= until_ns || poll(&wait, 1, (int)((until_ns - now) / 1000000u) + 1) <= 0) {
            break;
        }
        ssize_t n = read(fd, text + got, cap - got - 1u);
        if (n <= 0) {
            break;
        }
        got += (size_t)n;
        text[got] = '\0';
    }
    return got;
}

static void read_ready(struct daemon *d, const char *text)
{
    const char *ready = strstr(text, "kvfenced: ready ");
    char name[64];
    int pid = 0;
    int worker = 0;
    unsigned long long epoch = 0;
    CHECK(ready != NULL, "%s printed no ready line within %u ms: \"%s\"", d->name, READY_MS,
          text);
    int got = sscanf(
        ready, "kvfenced: ready name=%63s socket=%159s listen=%63s epoch=%llu pid=%d worker=%d",
        name, d->socket_path, d->listen, &epoch, &pid, &worker);
    CHECK_IS(got, 6, "fields of the ready line");
    CHECK(strcmp(name, d->name) == 0, "the ready line names %s and not %s", name, d->name);
    CHECK_IS(pid, d->pid, "pid of the ready line");
    d->worker = (pid_t)worker;
    d->epoch = epoch;
}

/* Open descriptors that are no TCP or Unix connection of a peer or client: those come and go. */
static uint32_t count_descriptors(pid_t pid, uint32_t *ret_sockets)
{
    char path[64];
    uint32_t others = 0;
    uint32_t sockets = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char target[128];
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1u);
        if (n <= 0) {
            continue;
        }
        target[n] = '\0';
        if (strncmp(target, "socket:", 7) == 0) {
            sockets++;
        } else {
            others++;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    *ret_sockets += sockets;
    return others;
}

/* Mappings of clients' memory and segments: memfds, all of them. */
static uint32_t count_memfds(pid_t pid)
{
    char path[64];
    char line[512];
    uint32_t count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        count += strstr(line, "memfd:") != NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return count;
}

static uint32_t memfds_of(const struct daemon *d)
{
    return count_memfds(d->pid) + count_memfds(d->worker);
}

static uint32_t descriptors_of(const struct daemon *d, uint32_t *ret_sockets)
{
    *ret_sockets = 0;
    return count_descriptors(d->pid, ret_sockets) + count_descriptors(d->worker, ret_sockets);
}

static void start(struct record *r)
{
    struct daemon *d = &r->daemon;
    int out[2];
    char log_path[96];
    char text[1024];
    CHECK(pipe2(out, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
    snprintf(log_path, sizeof log_path, "%s/%s.log", case_dir(), d->name);
    int log_fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(log_fd >= 0, "%s: %s", log_path, strerror(errno));
    r->args[r->arg_count] = NULL;
    pid_t parent = getpid();
    d->pid = fork();
    if (d->pid == 0) {
        exec_daemon(r->args, out[1], log_fd, parent);
    }
    close(out[1]);
    close(log_fd);
    read_until(out[0], text, sizeof text, "\n", READY_MS);
    close(out[0]);
    read_ready(d, text);
    snprintf(d->stats_path, sizeof d->stats_path, "%s/%s.stats", case_dir(), d->name);
    uint32_t sockets;
    d->descriptors_at_start = descriptors_of(d, &sockets);
    d->memfds_at_start = memfds_of(d);
}

static void add_arg(struct record *r, const char *text)
{
    CHECK(r->arg_count + 1u < DAEMON_ARGS_MAX, "more than %d arguments", DAEMON_ARGS_MAX);
    r->args[r->arg_count++] = strdup(text);
}

struct daemon *daemon_start(const char *name, ...)
{
    struct record *r = records;
    while (r < records + DAEMONS_MAX && r->is_used) {
        r++;
    }
    CHECK(r < records + DAEMONS_MAX, "more than %u daemons", DAEMONS_MAX);
    *r = (struct record){.is_used = true};
    snprintf(r->daemon.name, sizeof r->daemon.name, "%s", name);
    add_arg(r, daemon_program());
    add_arg(r, "--name");
    add_arg(r, name);
    add_arg(r, "--run-dir");
    add_arg(r, case_dir());
    add_arg(r, "--log-level");
    add_arg(r, "info");
    const char *more = getenv("KVFENCED_OPTIONS"); /* what all daemons of this run have */
    char *words = strdup(more != NULL ? more : "");
    char *rest = NULL;
    for (char *o = strtok_r(words, " ", &rest); o != NULL; o = strtok_r(NULL, " ", &rest)) {
        add_arg(r, o);
    }
    free(words);
    va_list options;
    va_start(options, name);
    for (const char *o = va_arg(options, const char *); o != NULL;
         o = va_arg(options, const char *)) {
        add_arg(r, o);
    }
    va_end(options);
    start(r);
    return &r->daemon;
}

void daemon_start_again(struct daemon *d)
{
    struct record *r = record_of(d);
    CHECK(d->pid == 0, "%s still runs", d->name);
    bool has_listen = false;
    for (uint32_t i = 0; i < r->arg_count; i++) {
        has_listen = has_listen || strcmp(r->args[i], "--listen") == 0;
    }
    if (!has_listen) {
        add_arg(r, "--listen");
        add_arg(r, d->listen);
    }
    start(r);
}

void daemon_set_listen(struct daemon *d, const char *listen)
{
    snprintf(d->listen, sizeof d->listen, "%s", listen);
}

int daemon_try(char *ret_out, size_t out_cap, char *ret_err, size_t err_cap, ...)
{
    char *args[DAEMON_ARGS_MAX] = {(char *)(uintptr_t)daemon_program()};
    uint32_t count = 1;
    va_list options;
    va_start(options, err_cap);
    for (char *o = va_arg(options, char *); o != NULL; o = va_arg(options, char *)) {
        CHECK(count + 1u < DAEMON_ARGS_MAX, "more than %d arguments", DAEMON_ARGS_MAX);
        args[count++] = o;
    }
    va_end(options);
    int out[2];
    int err[2];
    CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0, "pipe: %s",
          strerror(errno));
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        exec_daemon(args, out[1], err[1], parent);
    }
    close(out[1]);
    close(err[1]);
    read_until(out[0], ret_out, out_cap, NULL, EXIT_TEXT_MS);
    read_until(err[0], ret_err, err_cap, NULL, 1000);
    close(out[0]);
    close(err[0]);
    struct daemon once = {.pid = pid};
    snprintf(once.name, sizeof once.name, "kvfenced");
    return daemon_wait(&once, 1000);
}

void daemon_signal(struct daemon *d, int signal_number)
{
    CHECK(d->pid > 0 && kill(d->pid, signal_number) == 0, "cannot signal %s", d->name);
}

/* An orphaned worker is ours to reap: the case is its subreaper. */
static bool is_gone(pid_t pid)
{
    return pid <= 0 || waitpid(pid, NULL, WNOHANG) == pid ||
           (kill(pid, 0) != 0 && errno == ESRCH);
}

int daemon_wait(struct daemon *d, uint32_t limit_ms)
{
    int status = 0;
    WAIT_FOR(waitpid(d->pid, &status, WNOHANG) == d->pid, limit_ms,
             "%s has not ended after %u ms", d->name, limit_ms);
    d->pid = 0;
    WAIT_FOR(is_gone(d->worker), 2000, "worker %d of %s outlives its supervisor",
             (int)d->worker, d->name);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1 - WTERMSIG(status);
}

void daemon_kill(struct daemon *d)
{
    daemon_signal(d, SIGKILL);
    (void)daemon_wait(d, 5000);
}

pid_t daemon_worker_now(const struct daemon *d)
{
    return (pid_t)daemon_stat(d, "worker_pid");
}

void daemon_wait_worker(struct daemon *d, uint32_t limit_ms)
{
    pid_t old = d->worker;
    WAIT_FOR(daemon_worker_now(d) != old && daemon_worker_now(d) != 0, limit_ms,
             "%s has no new worker after %u ms", d->name, limit_ms);
    d->worker = daemon_worker_now(d);
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* A snapshot, freed by the caller. */
static void *snapshot(const struct daemon *d)
{
    int fd = open(d->stats_path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0, "%s: %s", d->stats_path,
          strerror(errno));
    uint64_t bytes = (uint64_t)st.st_size;
    void *shm = NULL;
    CHECK_IS(kvf_memory_map(fd, 0, bytes, false, true, &shm), 0, "map of the stats");
    void *copy = malloc(bytes);
    CHECK(copy != NULL, "no memory");
    int rc = -EBUSY;
    for (int i = 0; i < 1000 && rc == -EBUSY; i++) {
        rc = kvf_stats_snapshot(shm, bytes, copy);
        if (rc == -EBUSY) {
            sleep_us(100);
        }
    }
    CHECK_IS(rc, 0, "snapshot of the stats");
    kvf_memory_unmap(shm, bytes);
    close(fd);
    return copy;
}

uint64_t daemon_stat(const struct daemon *d, const char *name)
{
    struct kvf_stats_shm *copy = snapshot(d);
    uint64_t value = 0;
    if (strcmp(name, "worker_pid") == 0) {
        value = atomic_load_explicit(&copy->worker_pid, memory_order_relaxed);
    } else if (strcmp(name, "worker_epoch") == 0) {
        value = atomic_load_explicit(&copy->worker_epoch, memory_order_relaxed);
    } else {
        CHECK_IS(kvf_stats_find_value(copy, name, &value), 0, name);
    }
    free(copy);
    return value;
}

uint64_t daemon_quantile(const struct daemon *d, const char *name, uint32_t per_mille)
{
    void *copy = snapshot(d);
    const struct kvf_histogram_shm *h = kvf_stats_find_histogram(copy, name);
    CHECK(h != NULL, "no histogram %s", name);
    uint64_t value = kvf_histogram_quantile(h, per_mille);
    free(copy);
    return value;
}

uint64_t daemon_histogram_count(const struct daemon *d, const char *name)
{
    void *copy = snapshot(d);
    const struct kvf_histogram_shm *h = kvf_stats_find_histogram(copy, name);
    CHECK(h != NULL, "no histogram %s", name);
    uint64_t count = atomic_load_explicit(&h->count, memory_order_relaxed);
    free(copy);
    return count;
}

/* ---- account ------------------------------------------------------------------------------------------- */

static const char *const zero_gauges[] = {
    "rooms_open", "rooms_closing",     "rooms_fencing", "rooms_quarantined",
    "pages_held", "pages_quarantined", "grants_out",    "grants_in",
    "parked",     "posted_bytes",      "runs_used",     "clients",
    "regions"};

static const char *first_gauge_not_zero(const struct daemon *d, uint64_t *ret_value)
{
    void *copy = snapshot(d);
    const char *name = NULL;
    for (size_t i = 0; i < sizeof zero_gauges / sizeof zero_gauges[0] && name == NULL; i++) {
        CHECK_IS(kvf_stats_find_value(copy, zero_gauges[i], ret_value), 0, zero_gauges[i]);
        if (*ret_value != 0) {
            name = zero_gauges[i];
        }
    }
    free(copy);
    return name;
}

/* Sockets of both processes: the Unix listener and the link between the two, the TCP listener, and one
 * per peer and lane that is up. 6 leaves room for how the two are linked. */
#define OWN_SOCKETS_MAX 6u

static bool descriptors_are_back(const struct daemon *d, uint32_t *ret_others,
                                 uint32_t *ret_sockets)
{
    *ret_others = descriptors_of(d, ret_sockets);
    uint64_t streams = daemon_stat(d, "peers_up") + daemon_stat(d, "lanes_up");
    return *ret_others <= d->descriptors_at_start && *ret_sockets <= OWN_SOCKETS_MAX + streams;
}

void daemon_show(const struct daemon *d)
{
    struct kvf_stats_shm *copy = snapshot(d);
    const struct kvf_stats_name_shm *names =
        (const void *)((const unsigned char *)copy + copy->names_off);
    for (uint32_t i = 0; i < copy->name_count; i++) {
        uint64_t value = 0;
        const struct kvf_histogram_shm *h = names[i].kind == KVF_STATS_HISTOGRAM
                                                ? kvf_stats_find_histogram(copy, names[i].name)
                                                : NULL;
        if (h != NULL) {
            printf("     %s: %s median %llu, largest %llu\n", d->name, names[i].name,
                   (unsigned long long)kvf_histogram_quantile(h, 500),
                   (unsigned long long)kvf_histogram_quantile(h, 1000));
        } else if (kvf_stats_find_value(copy, names[i].name, &value) == 0 && value != 0 &&
                   strncmp(names[i].name, "bound_", 6) != 0) {
            printf("     %s: %s %llu\n", d->name, names[i].name, (unsigned long long)value);
        }
    }
    free(copy);
}

static void account(const struct daemon *d)
{
    uint64_t value = 0;
    uint32_t others = 0;
    uint32_t sockets = 0;
    const char *name = first_gauge_not_zero(d, &value);
    for (uint32_t ms = 0; name != NULL && ms < ACCOUNT_MS; ms += 5) {
        sleep_us(5000);
        name = first_gauge_not_zero(d, &value);
    }
    if (name != NULL) {
        daemon_show(d);
    }
    CHECK(name == NULL, "%s: %s is still %llu", d->name, name, (unsigned long long)value);
    WAIT_FOR(descriptors_are_back(d, &others, &sockets), ACCOUNT_MS,
             "%s: %u descriptors (%u at the start) and %u sockets are open", d->name, others,
             d->descriptors_at_start, sockets);
    WAIT_FOR(memfds_of(d) <= d->memfds_at_start, ACCOUNT_MS,
             "%s: %u mappings of clients' memory are left (%u at the start)", d->name,
             memfds_of(d), d->memfds_at_start);
}

void daemon_stop(struct daemon *d)
{
    account(d);
    daemon_signal(d, SIGTERM);
    int status = daemon_wait(d, STOP_MS);
    CHECK_IS(status, 0, "exit status on SIGTERM");
}

void daemons_stop(void)
{
    for (uint32_t i = 0; i < DAEMONS_MAX; i++) {
        if (records[i].is_used && records[i].daemon.pid > 0) {
            account(&records[i].daemon);
        }
    }
    for (uint32_t i = 0; i < DAEMONS_MAX; i++) {
        if (records[i].is_used && records[i].daemon.pid > 0) {
            daemon_stop(&records[i].daemon);
        }
    }
}

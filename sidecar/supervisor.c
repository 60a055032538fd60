#include "sidecar/supervisor.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/host/process.h"
#include "sidecar/supervisor_internal.h"

#define EPOLL_EVENTS_MAX 32
#define WAIT_MAX_NS KVF_NS_PER_S
#define KILL_COMPLAIN_NS (5 * KVF_NS_PER_S)

/* ---- small things -------------------------------------------------------------------------------------------- */

int kvf_sup_watch(struct kvf_supervisor *s, int fd, uint32_t events, enum sup_epoll kind,
                  uint32_t idx)
{
    struct epoll_event ev = {.events = events, .data.u64 = (uint64_t)kind << 32 | idx};
    return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : -errno;
}

void kvf_sup_rewatch(struct kvf_supervisor *s, int fd, uint32_t events, enum sup_epoll kind,
                     uint32_t idx)
{
    struct epoll_event ev = {.events = events, .data.u64 = (uint64_t)kind << 32 | idx};
    int rc = epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fd, &ev);
    assert(rc == 0);
    (void)rc;
}

void kvf_sup_set_name(char *ret_name, const char *wire_name)
{
    size_t i = 0;
    for (; i < 63 && wire_name[i] != '\0'; i++) {
        char ch = wire_name[i];
        ret_name[i] = ch > ' ' && ch <= '~' ? ch : '?'; /* it goes into logs */
    }
    ret_name[i] = '\0';
}

/* ---- signals ---------------------------------------------------------------------------------------------------- */

static void stop(struct kvf_supervisor *s, int signo)
{
    if (s->is_stopping) {
        kvf_log(KVF_LOG_WARN, "signal %d again: rooms are ended now", signo);
        s->is_hurried = true;
        kvf_sup_sync(s);
        return;
    }
    kvf_log(KVF_LOG_INFO, "signal %d: stopping; running rooms have %u ms", signo,
            s->config.grace_ms);
    s->is_stopping = true;
    kvf_sup_show_stopping(s);
    kvf_notify_stopping(&s->notify,
                        s->config.grace_ms * UINT64_C(1000) + kvf_bound_worst_us(&s->config));
    kvf_notify_status(&s->notify, "stops; running rooms have %u ms", s->config.grace_ms);
    s->is_memory_free = true; /* nobody waits for memory any more */
    if (s->worker == WORKER_NONE) {
        s->exit_status = s->reaped_rooms > 0 ? KVF_EXIT_FENCED : KVF_EXIT_CLEAN;
    } else if (s->worker == WORKER_STARTING) {
        kvf_sup_kill_worker(s, "told to stop before it served");
    }
    kvf_sup_sync(s);
}

static void take_signals(struct kvf_supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        stop(s, (int)info.ssi_signo);
    }
}

static int block_signals(struct kvf_supervisor *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) {
        return -errno;
    }
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? -errno : 0;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static void dispatch(struct kvf_supervisor *s, const struct epoll_event *ev)
{
    uint32_t idx = (uint32_t)ev->data.u64;
    switch ((enum sup_epoll)(ev->data.u64 >> 32)) {
    case SUP_EPOLL_LISTENER:
        kvf_sup_accept(s);
        return;
    case SUP_EPOLL_SIGNAL:
        take_signals(s);
        return;
    case SUP_EPOLL_HALF_OPEN:
        kvf_sup_half_open_ready(s, idx);
        return;
    case SUP_EPOLL_CLIENT:
        kvf_sup_client_ready(s, idx, ev->events);
        return;
    case SUP_EPOLL_ENGINE:
        kvf_sup_engine_ended(s, idx);
        return;
    case SUP_EPOLL_OPERATOR:
        kvf_sup_operator_ready(s, idx, ev->events);
        return;
    case SUP_EPOLL_LINK:
        kvf_sup_link_ready(s);
        return;
    case SUP_EPOLL_WORKER:
        if (s->worker_fd >= 0) {
            kvf_sup_worker_ended(s);
        }
        return;
    }
    assert(false && "an event of an unknown kind");
}

static void run_timers(struct kvf_supervisor *s)
{
    kvf_sup_half_open_expire(s);
    kvf_sup_operators_expire(s);
    kvf_sup_regions_look(s);
    kvf_sup_watchdog(s);
    switch (s->worker) {
    case WORKER_NONE:
        if (!s->is_stopping && s->now_ns >= s->start_at_ns && kvf_sup_start_worker(s) != 0) {
            s->start_at_ns = s->now_ns + KVF_NS_PER_S;
        }
        return;
    case WORKER_STARTING:
        if (s->now_ns >= s->start_deadline_ns) {
            kvf_sup_kill_worker(s, "it was not ready in time");
        }
        return;
    case WORKER_SERVING:
        return;
    case WORKER_LEAVING:
        if (s->now_ns >= s->kill_deadline_ns) {
            kvf_sup_kill_worker(s, "it did not leave in time");
        }
        return;
    case WORKER_KILLED:
        if (s->now_ns >= s->kill_deadline_ns) {
            /* Nothing proves its pages idle but its end: they stay lent, in plain sight. */
            kvf_log(KVF_LOG_ERROR,
                    "worker %d was killed and has not ended (--kill-ms %u): the kernel holds "
                    "it; the "
                    "pages of its rooms stay withheld",
                    (int)s->worker_pid, s->config.kill_ms);
            s->kill_deadline_ns = s->now_ns + KILL_COMPLAIN_NS;
        }
        return;
    }
}

static int wait_ms(const struct kvf_supervisor *s)
{
    uint64_t until_ns = s->now_ns + WAIT_MAX_NS;
    uint64_t ends_ns[] = {
        s->worker == WORKER_NONE ? s->start_at_ns : UINT64_MAX,
        s->worker == WORKER_STARTING ? s->start_deadline_ns : UINT64_MAX,
        s->worker == WORKER_KILLED || s->worker == WORKER_LEAVING ? s->kill_deadline_ns
                                                                  : UINT64_MAX,
        s->worker == WORKER_SERVING
            ? s->beat_looked_ns + s->config.watchdog_ms * KVF_NS_PER_MS / 4u
            : UINT64_MAX,
        s->accept_again_ns != 0 ? s->accept_again_ns : UINT64_MAX,
        kvf_notify_deadline(&s->notify),
        kvf_sup_operators_deadline(s),
        s->is_memory_free ? s->now_ns : kvf_sup_regions_deadline(s),
    };
    for (size_t i = 0; i < sizeof(ends_ns) / sizeof(ends_ns[0]); i++) {
        until_ns = ends_ns[i] < until_ns ? ends_ns[i] : until_ns;
    }
    for (uint32_t i = 0; i < KVF_HALF_OPEN_MAX; i++) {
        if (s->half_open[i].fd >= 0 && s->half_open[i].deadline_ns < until_ns) {
            until_ns = s->half_open[i].deadline_ns;
        }
    }
    uint64_t wait_ns = until_ns > s->now_ns ? until_ns - s->now_ns : 0;
    return (int)((wait_ns + KVF_NS_PER_MS - 1u) / KVF_NS_PER_MS);
}

static void log_config(const struct kvf_config *config)
{
    char line[KVF_CONFIG_LINE_BYTES];
    kvf_log(KVF_LOG_INFO, "kvfenced %s, effective configuration:", KVF_VERSION);
    for (uint32_t i = 0; kvf_config_line(config, i, line, sizeof(line)) != NULL; i++) {
        kvf_log(KVF_LOG_INFO, "  %s", line);
    }
    uint64_t lane_window = kvf_config_lane_window(config);
    if (lane_window != config->lane_window_bytes) {
        kvf_log(
            KVF_LOG_WARN,
            "lane window held at %llu bytes: more would take over a quarter of the cooperative "
            "deadline at this lane rate",
            (unsigned long long)lane_window);
    }
    kvf_log(KVF_LOG_INFO, "  abort to drained: usually at most %llu us, at worst %llu us",
            (unsigned long long)kvf_bound_usual_us(config),
            (unsigned long long)kvf_bound_worst_us(config));
    if (kvf_bound_flush_us(config) != 0) {
        kvf_log(KVF_LOG_INFO,
                "  in memory of devices: %llu us more, and another %llu us if a worker ends",
                (unsigned long long)kvf_bound_flush_us(config),
                (unsigned long long)kvf_bound_next_worker_us(config));
    }
}

static void run(struct kvf_supervisor *s)
{
    struct epoll_event events[EPOLL_EVENTS_MAX];
    bool is_config_logged = false;
    while (s->exit_status < 0) {
        if (s->was_ready && !is_config_logged) {
            is_config_logged =
                true; /* not before: it would bury the reason of a failed start */
            log_config(&s->config);
        }
        int n = epoll_wait(s->epoll_fd, events, EPOLL_EVENTS_MAX, wait_ms(s));
        assert(n >= 0 || errno == EINTR);
        s->now_ns = kvf_clock_now_ns();
        for (int i = 0; i < n && s->exit_status < 0; i++) {
            dispatch(s, &events[i]);
        }
        if (s->exit_status < 0) {
            run_timers(s);
        }
        kvf_notify_turn(&s->notify, s->now_ns);
    }
}

/* ---- start and end ---------------------------------------------------------------------------------------------- */

/* Each client and region is a handful of descriptors. */
static void raise_limits(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int prepare(struct kvf_supervisor *s)
{
    int err = kvf_random_bytes(&s->supervisor_id, sizeof(s->supervisor_id));
    s->supervisor_id &= ~UINT64_C(0xffffff);
    /* Never 0: epoch 0 means that nobody serves. Positive as a signed number, for those who read it so. */
    s->supervisor_id = (s->supervisor_id & ~(UINT64_C(1) << 63)) | UINT64_C(1) << 62;
    if (err == 0) {
        err = block_signals(s);
    }
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (err == 0 && s->epoll_fd < 0) {
        err = -errno;
    }
    s->clients = calloc(s->config.clients, sizeof(*s->clients));
    if (err == 0 && s->clients == NULL) {
        err = -ENOMEM;
    }
    if (err != 0) {
        kvf_log(KVF_LOG_ERROR, "cannot start: %s", strerror(-err));
        return err;
    }
    for (uint32_t i = 0; i < s->config.clients; i++) {
        s->clients[i].idx = i;
    }
    for (uint32_t i = 0; i < KVF_HALF_OPEN_MAX; i++) {
        s->half_open[i].fd = -1;
    }
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX; i++) {
        s->operators[i].fd = -1;
    }
    return 0;
}

static int open_house(struct kvf_supervisor *s)
{
    int err = kvf_run_dir_open(&s->config, &s->dir);
    if (err == 0) {
        err = kvf_run_dir_await_worker(&s->dir);
    }
    if (err == 0) {
        err = kvf_run_dir_place(&s->dir, &s->rails, &s->cpu);
    }
    if (err == 0 && s->rails.count > 0) {
        uint32_t port = s->config.rdma_port != 0 ? s->config.rdma_port : s->rails.at[0].port;
        err = kvf_run_dir_note_rails(&s->dir, s->supervisor_id, &s->rails, port, &s->covered);
    }
    if (err == 0) {
        err = kvf_run_dir_create_stats(&s->dir, &s->stats_fd, &s->stats_read_fd, &s->stats);
    }
    if (err == 0) {
        err = kvf_run_dir_listen(&s->dir);
    }
    if (err == 0) {
        err = kvf_sup_watch(s, s->dir.listener_fd, EPOLLIN, SUP_EPOLL_LISTENER, 0);
    }
    if (err == 0) {
        err = kvf_sup_watch(s, s->signal_fd, EPOLLIN, SUP_EPOLL_SIGNAL, 0);
    }
    return err;
}

static void start_stats(struct kvf_supervisor *s)
{
    kvf_stats_begin(s->stats);
    kvf_daemon_stats_config(s->stats, &s->config);
    /* T2 (release). */
    atomic_store_explicit(&s->stats->started_ns, s->now_ns, memory_order_release);
    kvf_daemon_stats_state(s->stats, KVF_STATS_STARTING);
    kvf_stats_heartbeat(s->stats, s->now_ns);
    kvf_stats_end(s->stats);
}

/* The reason stands in the log already, and there is nothing to show of a daemon that never served. */
static int leave_failed_start(struct kvf_supervisor *s)
{
    kvf_run_dir_unlisten(&s->dir);
    if (s->stats != NULL) {
        kvf_run_dir_remove_stats(&s->dir);
        kvf_run_dir_remove_worker(&s->dir);
    }
    return KVF_EXIT_START;
}

/* What was published stays: the engines' segments and pidfds speak for the rooms from here on. */
static void close_house(struct kvf_supervisor *s)
{
    kvf_run_dir_unlisten(&s->dir);
    kvf_run_dir_remove_worker(&s->dir);
    kvf_stats_begin(s->stats);
    kvf_daemon_stats_state(s->stats, KVF_STATS_STOPPED);
    kvf_stats_heartbeat(s->stats, s->now_ns);
    kvf_stats_end(s->stats);
    kvf_log(s->exit_status == KVF_EXIT_CLEAN ? KVF_LOG_INFO : KVF_LOG_WARN,
            "ends with status %d; %u rooms had to be ended", s->exit_status, s->fenced_rooms);
}

int kvf_supervisor_main(const struct kvf_config *config)
{
    static struct kvf_supervisor supervisor;
    struct kvf_supervisor *s = &supervisor;
    s->config = *config;
    s->exit_status = -1;
    s->worker_fd = -1;
    s->link_fd = -1;
    s->dir.listener_fd = -1;
    s->now_ns = kvf_clock_now_ns();
    char who[64];
    snprintf(who, sizeof(who), "%s/supervisor", config->name);
    kvf_log_init(who, (enum kvf_log_level)config->log_level);
    kvf_notify_open(&s->notify, s->now_ns);
    raise_limits();
    if (prepare(s) != 0 || open_house(s) != 0) {
        return leave_failed_start(s);
    }
    start_stats(s);
    if (kvf_sup_start_worker(s) != 0) {
        s->exit_status = KVF_EXIT_START;
    }
    run(s);
    if (s->exit_status == KVF_EXIT_START) {
        return leave_failed_start(s);
    }
    close_house(s);
    return s->exit_status;
}

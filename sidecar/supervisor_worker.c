/* The worker's life: started by exec, watched, ended if it stands still, and what its end proves. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/codes.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/host/process.h"
#include "sidecar/reap.h"
#include "sidecar/supervisor_internal.h"

#define START_LIMIT_NS (KVF_WORKER_START_MS * KVF_NS_PER_MS)
/* Restarts are immediate, unless worker after worker ends soon after its start: then ever slower. */
#define QUICK_DEATH_NS (2 * KVF_NS_PER_S)
#define QUICK_DEATHS_FREE 5u
#define RESTART_DELAY_NS (100 * KVF_NS_PER_MS)
#define RESTART_DELAY_SHIFT_MAX 5u
_Static_assert(RESTART_DELAY_NS << RESTART_DELAY_SHIFT_MAX ==
                   KVF_RESTART_DELAY_MAX_MS * KVF_NS_PER_MS,
               "a term of a bound");
#define MESSAGES_PER_EVENT 64u

/* ---- start -------------------------------------------------------------------------------------------------- */

/* fork and exec in one step: the worker never shares memory with us, and inherits no descriptor but
 * its end of the link. */
static int spawn(const char *name, int child_fd, pid_t *ret_pid)
{
    char *argv[] = {"kvfenced", "--worker", "--name", (char *)(uintptr_t)name, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    int rc = posix_spawn_file_actions_adddup2(&actions, child_fd, KVF_LINK_FD);
    if (rc == 0) {
        rc = posix_spawnattr_setsigmask(&attr, &none);
    }
    if (rc == 0) {
        rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    }
    if (rc == 0) {
        rc = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attr, argv, environ);
    }
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return -rc;
}

static int send_start(struct kvf_supervisor *s)
{
    struct kvf_link_start start = {.h = {.op = KVF_LINK_START},
                                   .config = s->config,
                                   .supervisor_pid = getpid(),
                                   .cpu = s->cpu,
                                   .rails = s->rails,
                                   .covered = s->covered,
                                   .past_epoch = s->past_epoch,
                                   .past_ended_ns = s->past_ended_ns,
                                   .worker_starts = s->worker_starts,
                                   .supervisor_id = s->supervisor_id,
                                   .worker_epoch = s->epoch};
    return kvf_packet_send(s->link_fd, &start, sizeof(start), &s->stats_fd, 1);
}

/* Its pid, start and boot are on file before it is told to open anything. */
static int introduce(struct kvf_supervisor *s)
{
    struct kvf_process_id id;
    int err = kvf_pidfd_open(s->worker_pid, &s->worker_fd);
    if (err == 0) {
        err = kvf_process_identify(s->worker_pid, &id);
    }
    if (err == 0) {
        err = kvf_run_dir_write_worker(&s->dir, &id);
    }
    if (err == 0) {
        err = kvf_sup_watch(s, s->worker_fd, EPOLLIN, SUP_EPOLL_WORKER, 0);
    }
    if (err == 0) {
        err = kvf_sup_watch(s, s->link_fd, EPOLLIN, SUP_EPOLL_LINK, 0);
    }
    return err == 0 ? send_start(s) : err;
}

int kvf_sup_start_worker(struct kvf_supervisor *s)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return -errno;
    }
    int err = spawn(s->config.name, pair[1], &s->worker_pid);
    close(pair[1]);
    if (err != 0) {
        close(pair[0]);
        kvf_log(KVF_LOG_ERROR, "cannot start a worker: %s", strerror(-err));
        return err;
    }
    s->link_fd = pair[0];
    s->worker_starts++;
    s->epoch = kvf_link_epoch(s->supervisor_id, s->worker_starts);
    s->worker = WORKER_STARTING;
    s->started_ns = s->now_ns;
    s->start_deadline_ns = s->now_ns + START_LIMIT_NS;
    s->groups_whole = TOLD_NOT;
    s->stop = TOLD_NOT;
    s->hurry = TOLD_NOT;
    err = introduce(s);
    if (err != 0) {
        /* A child of ours until it is waited for: killing by pid is exact. */
        kvf_log(KVF_LOG_ERROR, "cannot introduce the worker: %s", strerror(-err));
        (void)kill(s->worker_pid, SIGKILL);
        (void)waitpid(s->worker_pid, NULL, 0);
        kvf_close_fd(&s->worker_fd);
        kvf_close_fd(&s->link_fd);
        s->worker = WORKER_NONE;
    }
    return err;
}

/* ---- end ------------------------------------------------------------------------------------------------------ */

static void close_epochs(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < s->config.clients; i++) {
        struct sup_client *c = &s->clients[i];
        if (c->is_used && c->segment.shm != NULL) {
            /* E1 (release): an OPEN written from now on is refused by the library, or carries the old
             * epoch and is answered by the next worker; the walk that follows misses neither. */
            atomic_store_explicit(&c->segment.shm->worker_epoch, 0, memory_order_release);
            c->is_open = false;
        }
    }
}

void kvf_sup_kill_worker(struct kvf_supervisor *s, const char *why)
{
    if (s->worker == WORKER_NONE || s->worker == WORKER_KILLED) {
        return;
    }
    kvf_log(KVF_LOG_ERROR, "worker %d is ended: %s", (int)s->worker_pid, why);
    close_epochs(s);
    int err = kvf_pidfd_kill(s->worker_fd);
    if (err != 0 && err != -ESRCH) {
        kvf_log(KVF_LOG_ERROR, "cannot kill worker %d: %s", (int)s->worker_pid, strerror(-err));
    }
    s->worker = WORKER_KILLED;
    s->kill_deadline_ns = s->now_ns + s->config.kill_ms * KVF_NS_PER_MS;
}

static const uint32_t count_values[SUP_COUNTS] = {
    [SUP_COUNT_SUCCEEDED] = KVF_COUNT_ROOMS_SUCCEEDED,
    [SUP_COUNT_FAILED] = KVF_COUNT_ROOMS_FAILED,
    [SUP_COUNT_WORKER_GONE] = KVF_COUNT_PROOF_FIRST + KVF_PROOF_WORKER_GONE,
    [SUP_COUNT_ENGINE_GONE] = KVF_COUNT_PROOF_FIRST + KVF_PROOF_ENGINE_GONE,
};

/* The stats have one writer. A worker that lives is it, and its copies would overwrite what somebody else had
 * added: kvf_sup_sync tells it. */
static void count_reaped(struct kvf_supervisor *s)
{
    if (s->worker != WORKER_NONE) {
        return;
    }
    kvf_stats_begin(s->stats);
    for (uint32_t i = 0; i < SUP_COUNTS; i++) {
        kvf_daemon_stats_add(s->stats, count_values[i], s->uncounted[i]);
        s->uncounted[i] = 0;
    }
    kvf_stats_end(s->stats);
}

/* Whoever would have sent it is dead, and an engine may sleep on its descriptor alone. The worker may have ended
 * between any two of its steps: behind a word and before the event, or with the flag taken and no datagram sent. So
 * the engine is woken whether a room was left to reap or not, and whatever the flag says. There are no events of
 * these rooms: the number of lost ones makes the engine look at all. */
static void wake_engine(const struct sup_client *c)
{
    struct kvf_segment_shm *shm = c->segment.shm;
    /* D2 (seq_cst): it stands for the words that were stored before it, and before the datagram. */
    atomic_fetch_add_explicit(&shm->events_lost, 1, memory_order_seq_cst);
    atomic_store_explicit(&shm->events_armed, 0, memory_order_seq_cst);
    char byte = 1;
    ssize_t put = send(c->event_fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)put; /* full: it is readable already; no descriptor yet: its engine is attaching */
}

void kvf_sup_reap_rooms(struct kvf_supervisor *s, struct sup_client *c)
{
    uint32_t worker_gone = 0;
    uint32_t engine_gone = 0;
    uint32_t succeeded = 0; /* of those two: their outcome was fixed before */
    uint32_t leased = 0;
    for (uint32_t slot = 0; slot < c->segment.limits.rooms_max; slot++) {
        switch (kvf_reap_room(&c->segment, slot, c->is_reaped, NULL)) {
        case KVF_REAP_NOTHING:
            break;
        case KVF_REAP_WORKER_GONE:
            worker_gone++;
            succeeded += kvf_reap_has_succeeded(&c->segment, slot);
            break;
        case KVF_REAP_ENGINE_GONE:
            engine_gone++;
            succeeded += kvf_reap_has_succeeded(&c->segment, slot);
            break;
        case KVF_REAP_LEASED:
        case KVF_REAP_HELD:
            leased++;
            break;
        }
    }
    s->uncounted[SUP_COUNT_SUCCEEDED] += succeeded;
    s->uncounted[SUP_COUNT_FAILED] += worker_gone + engine_gone - succeeded;
    s->uncounted[SUP_COUNT_WORKER_GONE] += worker_gone;
    s->uncounted[SUP_COUNT_ENGINE_GONE] += engine_gone;
    count_reaped(s);
    wake_engine(c);
    if (worker_gone + engine_gone + leased > 0) {
        kvf_log(KVF_LOG_WARN,
                "client %u (%s): %u rooms drained by the worker's end, %u wait for external "
                "leases or "
                "the next worker's flush",
                c->idx, c->name, worker_gone + engine_gone, leased);
    }
    s->reaped_rooms += worker_gone + engine_gone + leased;
}

static void forget_told(struct sup_client *c)
{
    c->add = TOLD_NOT;
    c->close = TOLD_NOT;
    c->reaped = TOLD_NOT;
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        if (c->regions[slot] != NULL) {
            c->regions[slot]->add = TOLD_NOT;
            c->regions[slot]->remove = TOLD_NOT;
        }
    }
    kvf_sup_groups_forget_told(c);
}

static void log_end(struct kvf_supervisor *s, const siginfo_t *info)
{
    bool is_expected = s->worker == WORKER_LEAVING;
    if (!s->was_ready && info->si_code == CLD_EXITED && info->si_status == KVF_EXIT_START) {
        return; /* it has said itself why it could not start */
    }
    if (info->si_code == CLD_EXITED) {
        kvf_log(is_expected ? KVF_LOG_INFO : KVF_LOG_ERROR,
                "worker %d has ended with status %d", (int)s->worker_pid, info->si_status);
    } else {
        kvf_log(KVF_LOG_ERROR, "worker %d was ended by signal %d (%s)", (int)s->worker_pid,
                info->si_status, strsignal(info->si_status));
    }
}

static void schedule_next(struct kvf_supervisor *s)
{
    bool was_quick = s->now_ns - s->started_ns < QUICK_DEATH_NS;
    s->quick_deaths = was_quick ? s->quick_deaths + 1u : 0;
    uint64_t delay_ns = 0;
    if (s->quick_deaths > QUICK_DEATHS_FREE) {
        uint32_t shift = s->quick_deaths - QUICK_DEATHS_FREE - 1u;
        delay_ns = RESTART_DELAY_NS
                   << (shift < RESTART_DELAY_SHIFT_MAX ? shift : RESTART_DELAY_SHIFT_MAX);
        kvf_log(KVF_LOG_WARN,
                "%u workers ended soon after their start; the next starts in %u ms",
                s->quick_deaths, (unsigned)(delay_ns / KVF_NS_PER_MS));
    }
    s->start_at_ns = s->now_ns + delay_ns;
}

void kvf_sup_worker_ended(struct kvf_supervisor *s)
{
    siginfo_t info = {0};
    if (waitid(P_PIDFD, (id_t)s->worker_fd, &info, WEXITED | WNOHANG) != 0 ||
        info.si_pid == 0) {
        return;
    }
    log_end(s, &info);
    bool is_failed_start = !s->was_ready && !s->is_stopping;
    s->past_epoch = s->epoch;
    s->past_ended_ns = s->now_ns;
    s->worker = WORKER_NONE;
    kvf_close_fd(&s->worker_fd);
    kvf_close_fd(&s->link_fd);
    /* From here on nothing that this worker lent can be touched by it. The next epoch is not open yet, so
     * no room can begin while the old ones are ended. */
    close_epochs(s);
    s->reaped_rooms = 0;
    for (uint32_t i = 0; i < s->config.clients; i++) {
        struct sup_client *c = &s->clients[i];
        if (c->is_used && c->segment.shm != NULL) {
            kvf_sup_reap_rooms(s, c);
            forget_told(c);
        }
    }
    count_reaped(s); /* what it was not told any more, too */
    kvf_sup_departed_forget_told(s);
    kvf_sup_operators_worker_ended(s);
    kvf_stats_begin(s->stats);
    kvf_stats_set(s->stats, KVF_VALUE_CLIENTS, 0);
    kvf_stats_set(s->stats, KVF_VALUE_REGIONS, 0);
    for (uint32_t i = 0; i < KVF_GAUGES; i++) {
        kvf_stats_set(s->stats, KVF_VALUE_CORE_GAUGES + i, 0);
    }
    kvf_stats_end(s->stats);
    static const struct kvf_stats_rows_shm no_rows;
    kvf_stats_set_rows(s->stats, &no_rows);
    if (is_failed_start) {
        s->exit_status = KVF_EXIT_START;
    } else if (s->is_stopping) {
        s->fenced_rooms += s->reaped_rooms;
        s->exit_status = s->fenced_rooms > 0 ? KVF_EXIT_FENCED : KVF_EXIT_CLEAN;
    } else {
        schedule_next(s);
        kvf_notify_status(&s->notify, "worker %d has ended, the next one follows",
                          (int)s->worker_pid);
    }
}

/* ---- watchdog ---------------------------------------------------------------------------------------------------- */

/* The worker's heartbeat is stored every turn of its loop, and its sleeps are a quarter of the deadline at
 * most. Time is counted in looks that were not late themselves: if this process was stopped too, the
 * worker is not to blame. */
void kvf_sup_watchdog(struct kvf_supervisor *s)
{
    uint64_t limit_ns = s->config.watchdog_ms * KVF_NS_PER_MS;
    uint64_t period_ns = limit_ns / 4u;
    if (s->worker != WORKER_SERVING || s->now_ns - s->beat_looked_ns < period_ns) {
        return;
    }
    uint64_t since_ns = s->now_ns - s->beat_looked_ns;
    s->beat_looked_ns = s->now_ns;
    uint64_t beat = atomic_load_explicit(&s->stats->heartbeat_ns, memory_order_relaxed);
    if (beat != s->beat_seen) {
        s->beat_seen = beat;
        s->beat_still_ns = 0;
        return;
    }
    s->beat_still_ns += since_ns < 2u * period_ns ? since_ns : 2u * period_ns;
    if (s->beat_still_ns >= limit_ns) {
        kvf_sup_kill_worker(s, "its loop stands still (--watchdog-ms)");
    }
}

/* ---- what the worker is owed ---------------------------------------------------------------------------------------- */

static bool send_msg(struct kvf_supervisor *s, const struct kvf_link_msg *msg, const int *fds,
                     int fd_count, enum told *ret_told)
{
    if (kvf_packet_send(s->link_fd, msg, sizeof(*msg), fds, fd_count) != 0) {
        return false; /* full: told when the worker has read; hung up: its pidfd speaks next */
    }
    *ret_told = TOLD_SENT;
    return true;
}

static bool send_region(struct kvf_supervisor *s, struct sup_client *c, struct sup_region *r)
{
    static struct kvf_link_region msg;
    msg.h =
        (struct kvf_link_msg){.op = KVF_LINK_REGION_ADD, .client = c->idx, .region = r->handle};
    msg.page_count = r->page_count;
    msg.memory_off = r->memory_off;
    msg.memory_bytes = r->memory_bytes;
    msg.plane_count = r->plane_count;
    msg.memory = r->memory;
    size_t planes_bytes = r->plane_count * sizeof(r->planes[0]);
    memcpy(msg.planes, r->planes, planes_bytes);
    size_t bytes = offsetof(struct kvf_link_region, planes) + planes_bytes;
    if (kvf_packet_send(s->link_fd, &msg, bytes, &r->memory_fd, 1) != 0) {
        return false;
    }
    r->add = TOLD_SENT;
    return true;
}

/* Memory of a device also for a client that leaves: rooms of an earlier worker wait for a flush of it. */
static bool is_for_worker(const struct sup_client *c, const struct sup_region *r)
{
    return !c->is_closing ||
           (r->memory != KVF_REGION_MEMORY_HOST && r->is_serving && !c->is_stuck);
}

static uint32_t slots_for_worker(const struct sup_client *c)
{
    uint32_t slots = 0;
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        const struct sup_region *r = c->regions[slot];
        bool is_coming = r != NULL && r->add != TOLD_REFUSED && is_for_worker(c, r);
        slots |= is_coming ? UINT32_C(1) << slot : 0;
    }
    return slots;
}

static bool sync_regions(struct kvf_supervisor *s, struct sup_client *c)
{
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        struct sup_region *r = c->regions[slot];
        if (r == NULL) {
            continue;
        }
        if (r->add == TOLD_NOT && !r->is_growing && is_for_worker(c, r) &&
            !send_region(s, c, r)) {
            return false;
        }
        struct kvf_link_msg remove = {
            .op = KVF_LINK_REGION_REMOVE, .client = c->idx, .region = r->handle};
        if (r->is_removing && r->add == TOLD_ANSWERED && r->remove == TOLD_NOT &&
            !send_msg(s, &remove, NULL, 0, &r->remove)) {
            return false;
        }
    }
    return true;
}

static bool sync_client(struct kvf_supervisor *s, struct sup_client *c)
{
    if (c->add == TOLD_REFUSED) {
        return true;
    }
    if (c->add == TOLD_NOT) {
        struct kvf_link_msg add = {.op = KVF_LINK_CLIENT_ADD, .client = c->idx};
        int fds[] = {c->segment_fd, c->doorbell_fd, c->event_fd};
        if (!send_msg(s, &add, fds, 3, &c->add)) {
            return false;
        }
    }
    /* Its groups also when it is closing: the rooms it leaves behind have other ranks to tell. */
    if (c->add == TOLD_ANSWERED && (!kvf_sup_groups_sync(s, c) || !sync_regions(s, c))) {
        return false;
    }
    if (!kvf_sup_groups_are_sent(c)) {
        return true; /* no end is told before they are */
    }
    struct kvf_link_msg close_msg = {.op = KVF_LINK_CLIENT_CLOSE,
                                     .client = c->idx,
                                     .code = c->close_code,
                                     .value = slots_for_worker(c)};
    if (c->is_closing && c->close == TOLD_NOT && !send_msg(s, &close_msg, NULL, 0, &c->close)) {
        return false;
    }
    struct kvf_link_msg reaped = {.op = KVF_LINK_CLIENT_REAPED, .client = c->idx};
    return !c->is_reaped || c->reaped != TOLD_NOT || send_msg(s, &reaped, NULL, 0, &c->reaped);
}

static bool sync_counts(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < SUP_COUNTS; i++) {
        struct kvf_link_msg msg = {
            .op = KVF_LINK_COUNT, .code = count_values[i], .value = s->uncounted[i]};
        enum told told = TOLD_NOT;
        if (s->uncounted[i] != 0 && !send_msg(s, &msg, NULL, 0, &told)) {
            return false;
        }
        s->uncounted[i] = 0;
    }
    return true;
}

static bool are_groups_sent(const struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < s->config.clients; i++) {
        if (s->clients[i].is_used && !kvf_sup_groups_are_sent(&s->clients[i])) {
            return false;
        }
    }
    return true;
}

void kvf_sup_sync(struct kvf_supervisor *s)
{
    if (s->worker != WORKER_SERVING || s->link_fd < 0) {
        return;
    }
    bool is_all = sync_counts(s) && kvf_sup_operators_sync(s);
    for (uint32_t i = 0; i < s->config.clients && is_all; i++) {
        if (s->clients[i].is_used) {
            is_all = sync_client(s, &s->clients[i]);
        }
    }
    is_all = is_all && kvf_sup_groups_departed_sync(s);
    struct kvf_link_msg whole = {.op = KVF_LINK_GROUPS_WHOLE};
    if (is_all && s->groups_whole == TOLD_NOT && are_groups_sent(s)) {
        is_all = send_msg(s, &whole, NULL, 0, &s->groups_whole);
    }
    struct kvf_link_msg stop = {.op = KVF_LINK_SHUTDOWN,
                                .value = s->config.grace_ms * KVF_NS_PER_MS};
    if (is_all && s->is_stopping && s->stop == TOLD_NOT) {
        is_all = send_msg(s, &stop, NULL, 0, &s->stop);
    }
    stop.code = 1;
    if (is_all && s->is_hurried && s->hurry == TOLD_NOT) {
        is_all = send_msg(s, &stop, NULL, 0, &s->hurry);
    }
    is_all = is_all && kvf_sup_operators_ask(s);
    kvf_sup_rewatch(s, s->link_fd, is_all ? EPOLLIN : EPOLLIN | EPOLLOUT, SUP_EPOLL_LINK, 0);
}

/* ---- what the worker says -------------------------------------------------------------------------------------------- */

static const char *engine_name(uint32_t engine)
{
    static const char *const names[] = {[KVF_LINK_ENGINE_SOCKETS] = "sockets",
                                        [KVF_LINK_ENGINE_URING] = "uring",
                                        [KVF_LINK_ENGINE_MEMORY] = "memory",
                                        [KVF_LINK_ENGINE_VERBS] = "verbs"};
    return engine < sizeof(names) / sizeof(names[0]) ? names[engine] : "unknown";
}

static void on_ready(struct kvf_supervisor *s, const struct kvf_link_msg *msg)
{
    s->config.listen.port = (uint16_t)msg->value; /* the next worker listens there too */
    s->worker = WORKER_SERVING;
    s->was_ready = true;
    s->beat_looked_ns = s->now_ns;
    s->beat_still_ns = 0;
    char listen[64];
    kvf_addr_format(&s->config.listen, listen, sizeof(listen));
    kvf_log(KVF_LOG_INFO, "worker %d serves on %s, epoch %" PRIu64, (int)s->worker_pid, listen,
            s->epoch);
    if (!s->is_told) {
        s->is_told = true;
        printf("kvfenced: ready name=%s socket=%s/%s.sock listen=%s epoch=%" PRIu64
               " pid=%d worker=%d engine=%s\n",
               s->config.name, s->config.run_dir, s->config.name, listen, s->epoch,
               (int)getpid(), (int)s->worker_pid, engine_name(msg->code));
        fflush(stdout);
        kvf_notify_ready(&s->notify);
    }
    kvf_notify_status(&s->notify, "serves on %s, worker %d, start %u", listen,
                      (int)s->worker_pid, s->worker_starts);
}

static void on_stopped(struct kvf_supervisor *s, const struct kvf_link_msg *msg)
{
    s->fenced_rooms += (uint32_t)msg->value;
    kvf_log(msg->value == 0 && msg->code == 0 ? KVF_LOG_INFO : KVF_LOG_WARN,
            "stopped: %" PRIu64
            " rooms were ended by the end of the grace period, %u are not proven",
            msg->value, msg->code);
    s->worker = WORKER_LEAVING;
    s->kill_deadline_ns = s->now_ns + s->config.kill_ms * KVF_NS_PER_MS;
    close_epochs(s);
    kvf_close_fd(&s->link_fd); /* the worker exits when it reads the end of it */
}

static void take_answer(struct kvf_supervisor *s, const struct kvf_link_msg *msg)
{
    struct sup_client *c = msg->client < s->config.clients ? &s->clients[msg->client] : NULL;
    bool has_client = c != NULL && c->is_used;
    switch ((enum kvf_link_op)msg->op) {
    case KVF_LINK_READY:
        on_ready(s, msg);
        return;
    case KVF_LINK_ESCALATE:
        if (has_client && msg->code != 0) {
            c->is_stuck = true; /* its regions are told to no other worker */
            kvf_sup_client_bad(s, c, msg->code);
        }
        kvf_sup_kill_worker(s, msg->code == 0
                                   ? "a fence, or a flush of a device's memory, failed or "
                                     "missed its deadline (--fence-ms)"
                                   : "its helper stands still");
        return;
    case KVF_LINK_STOPPED:
        on_stopped(s, msg);
        return;
    case KVF_LINK_CLIENT_ADDED:
        if (has_client) {
            kvf_sup_client_added(s, c, msg->code);
        }
        return;
    case KVF_LINK_CLIENT_QUIET:
        if (has_client) {
            kvf_sup_client_quiet(s, c);
        }
        return;
    case KVF_LINK_CLIENT_BAD:
        if (has_client) {
            kvf_sup_client_bad(s, c, msg->code);
        }
        return;
    case KVF_LINK_REGION_ADDED:
        if (has_client) {
            kvf_sup_region_added(s, c, msg->region, msg->code);
        }
        return;
    case KVF_LINK_REGION_REMOVED:
        if (has_client) {
            kvf_sup_region_removed(s, c, msg->region, msg->code);
        }
        return;
    case KVF_LINK_GROUP_ADDED:
        if (has_client) {
            kvf_sup_group_added(s, c, msg->region, msg->code);
        }
        return;
    case KVF_LINK_GROUP_SKIPPED:
        if (has_client) {
            kvf_sup_group_skipped(s, c, msg->code);
        }
        return;
    case KVF_LINK_START:
    case KVF_LINK_CLIENT_ADD:
    case KVF_LINK_CLIENT_CLOSE:
    case KVF_LINK_CLIENT_REAPED:
    case KVF_LINK_REGION_ADD:
    case KVF_LINK_REGION_REMOVE:
    case KVF_LINK_GROUP_ADD:
    case KVF_LINK_GROUP_SKIP:
    case KVF_LINK_GROUP_DEPARTED:
    case KVF_LINK_GROUPS_WHOLE:
    case KVF_LINK_LOG_LEVEL:
    case KVF_LINK_DRAIN:
    case KVF_LINK_PEER_HOLD:
    case KVF_LINK_OPERATE:
    case KVF_LINK_OPERATED: /* longer, and taken before */
    case KVF_LINK_COUNT:
    case KVF_LINK_SHUTDOWN:
        break;
    }
    kvf_sup_kill_worker(s, "it sent a message of the wrong direction");
}

void kvf_sup_link_ready(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < MESSAGES_PER_EVENT && s->link_fd >= 0; i++) {
        static struct kvf_link_operated packet; /* the longest message */
        int fds[KVF_PACKET_FDS_MAX];
        int fd_count = 0;
        int got = kvf_packet_receive(s->link_fd, &packet, sizeof(packet), fds, &fd_count);
        if (got < (int)sizeof(packet.h)) {
            if (got == 0 || (got < 0 && got != -EAGAIN)) {
                kvf_close_fd(&s->link_fd); /* it is ending; its pidfd says when it has */
            }
            break;
        }
        kvf_close_fds(fds, fd_count);
        if (packet.h.op == KVF_LINK_OPERATED &&
            got >= (int)offsetof(struct kvf_link_operated, rep.rows)) {
            kvf_sup_operated(s, &packet);
        } else {
            take_answer(s, &packet.h);
        }
    }
    if (s->link_fd >= 0) {
        kvf_sup_sync(s);
    }
}

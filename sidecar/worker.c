#include "sidecar/worker.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "ring/segment.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/numa.h"
#include "sidecar/host/packet.h"
#include "sidecar/host/process.h"
#include "sidecar/worker_internal.h"

_Static_assert((int)KVF_CONFIG_TCP == (int)KVF_WIRE_TCP, "option and wire agree");
_Static_assert((int)KVF_CONFIG_VERBS == (int)KVF_WIRE_VERBS, "option and wire agree");
_Static_assert((int)KVF_CONFIG_LOCAL == (int)KVF_WIRE_LOCAL, "option and wire agree");
_Static_assert((int)KVF_CONFIG_CHECKED == (int)KVF_PLACEMENT_CHECKED, "option and wire agree");
_Static_assert((int)KVF_CONFIG_POSTED == (int)KVF_PLACEMENT_POSTED, "option and wire agree");
_Static_assert((int)KVF_CONFIG_AUTO == (int)KVF_TCP_ENGINE_AUTO, "option and transport agree");
_Static_assert((int)KVF_CONFIG_SOCKETS == (int)KVF_TCP_ENGINE_SOCKETS,
               "option and transport agree");
_Static_assert((int)KVF_CONFIG_URING == (int)KVF_TCP_ENGINE_URING,
               "option and transport agree");
_Static_assert(KVF_CONFIG_LANES_MAX == KVF_LANES_MAX, "option and wire agree");
_Static_assert(KVF_PLACEMENT_RAILS_MAX == KVF_RAILS_MAX, "placement and transport agree");

#define START_WAIT_MS 10000
#define EPOLL_EVENTS_MAX 64
#define STATS_PERIOD_NS (50 * KVF_NS_PER_MS)
#define SLEEP_MAX_NS                                                                           \
    (250 * KVF_NS_PER_MS) /* a heartbeat at least every 500 ms, with room to be late */
#define SPIN_AUTO_NS (50 * KVF_NS_PER_US)
/* While awake epoll is asked every turn as long as sockets are in use, that is until so long after ... */
#define SOCKETS_ACTIVE_NS KVF_NS_PER_MS
/* ... then this often while there are any. Without any only attaches and the helper's answers come that way:
 * so often in turns that have nothing to do, and so much later in a row of turns that have. */
#define LOOK_SOCKETS_NS (20 * KVF_NS_PER_US)
#define LOOK_NS KVF_NS_PER_MS
#define LOOK_LATER_NS (4 * KVF_NS_PER_MS)
#define GRANTS_MAX 8192u
#define RUNS_MAX (1u << 20)
#define PIECES_MAX 16384u
#define PARKED_PER_PEER_MAX 1024u
#define REMOTE_REGIONS_MAX 1024u /* 12 MiB, where they are used */

/* ---- the loop ---------------------------------------------------------------------------------------------- */

static void dispatch(struct kvf_worker *w, const struct epoll_event *ev)
{
    uint32_t kind = (uint32_t)(ev->data.u64 >> 32);
    uint32_t idx = (uint32_t)ev->data.u64;
    switch ((enum kvf_epoll_kind)kind) {
    case KVF_EPOLL_KIND_LANE:
        w->socket_ns = w->now_ns;
        kvf_tcp_ready(w->ways[WAY_TCP].t, idx, ev->events);
        return;
    case KVF_EPOLL_KIND_PEER:
    case KVF_EPOLL_KIND_PENDING:
    case KVF_EPOLL_KIND_LISTENER:
        w->socket_ns = w->now_ns;
        kvf_control_ready(w->control, w->now_ns, kind, idx, ev->events);
        return;
    case KVF_EPOLL_KIND_DOORBELL:
        return; /* never read; that it rang is why we are awake */
    case KVF_EPOLL_KIND_SUPERVISOR:
        kvf_worker_link_ready(w);
        return;
    case KVF_EPOLL_KIND_HELPER:
        kvf_worker_helper_ready(w);
        return;
    case KVF_EPOLL_KIND_VERBS:
        kvf_verbs_ready(w->ways[WAY_VERBS].t);
        return;
    }
    assert(false && "an event of an unknown kind");
}

static int wait_events(struct kvf_worker *w, struct epoll_event *events, uint64_t timeout_ns)
{
    int n = -1;
    if (timeout_ns > 0 && !w->has_no_pwait2) {
        struct timespec ts = {.tv_sec = (time_t)(timeout_ns / KVF_NS_PER_S),
                              .tv_nsec = (long)(timeout_ns % KVF_NS_PER_S)};
        n = epoll_pwait2(w->epoll_fd, events, EPOLL_EVENTS_MAX, &ts, NULL);
        if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
            w->has_no_pwait2 = true; /* an older kernel, or a filter: milliseconds will do */
        }
    }
    if (timeout_ns == 0 || (n < 0 && w->has_no_pwait2)) {
        int timeout_ms = (int)((timeout_ns + KVF_NS_PER_MS - 1u) / KVF_NS_PER_MS);
        n = epoll_wait(w->epoll_fd, events, EPOLL_EVENTS_MAX, timeout_ms);
    }
    assert(n >= 0 || errno == EINTR);
    return n > 0 ? n : 0;
}

static uint64_t next_look_ns(const struct kvf_worker *w)
{
    if (w->now_ns - w->socket_ns < SOCKETS_ACTIVE_NS) {
        return w->now_ns;
    }
    return w->now_ns + (kvf_control_has_sockets(w->control) ? LOOK_SOCKETS_NS : LOOK_NS);
}

/* Rings and local lanes need no system call. */
static bool is_look_due(const struct kvf_worker *w)
{
    if (w->now_ns < w->look_ns) {
        return false;
    }
    return !w->is_busy || w->now_ns >= w->look_ns + LOOK_LATER_NS ||
           w->now_ns - w->socket_ns < SOCKETS_ACTIVE_NS || kvf_control_has_sockets(w->control);
}

static uint32_t take_events(struct kvf_worker *w, uint64_t timeout_ns)
{
    struct epoll_event events[EPOLL_EVENTS_MAX];
    if (timeout_ns == 0 && !is_look_due(w)) {
        return 0;
    }
    int n = wait_events(w, events, timeout_ns);
    if (timeout_ns > 0) {
        uint64_t woke_ns = kvf_clock_now_ns();
        uint64_t slept_ns = woke_ns - w->now_ns;
        w->window_blocked_ns += slept_ns < timeout_ns ? slept_ns : timeout_ns;
        w->now_ns = woke_ns;
        kvf_clients_awake(w->clients);
    }
    for (int i = 0; i < n; i++) {
        dispatch(w, &events[i]);
    }
    w->look_ns = next_look_ns(w);
    return (uint32_t)n;
}

/* Returns how much there was to do: what the core wants now may want posts and turns of its own. */
static uint64_t tick(struct kvf_worker *w)
{
    uint64_t work = 0;
    if (w->now_ns >= kvf_core_deadline(w->core)) {
        kvf_core_tick(w->core, w->now_ns);
    }
    if (w->now_ns >= kvf_control_deadline(w->control)) {
        kvf_control_tick(w->control, w->now_ns);
    }
    kvf_worker_stop_turn(w);
    if (w->now_ns - w->stats_ns >= STATS_PERIOD_NS) {
        work += kvf_worker_actions(w); /* words that wait to be published go first */
        for (uint32_t i = 0; i < w->config.clients; i++) {
            kvf_worker_check_quiet(w,
                                   i); /* rooms of an earlier worker may have been the last */
        }
        kvf_regions_tick(w->regions, w->now_ns);
        kvf_worker_helper_watch(w);
        kvf_worker_stats_copy(w);
    }
    return work;
}

/* Everything that is to be done now. Returns 0 if that was nothing. */
static uint64_t turn(struct kvf_worker *w, uint64_t timeout_ns)
{
    uint64_t work = take_events(w, timeout_ns);
    uint64_t begin_ns = w->now_ns;
    work += kvf_clients_turn(w->clients, w->now_ns);
    work += kvf_worker_actions(w);
    if (kvf_control_has_work(w->control)) {
        work += kvf_control_turn(w->control, w->now_ns);
        work += kvf_worker_actions(w);
    }
    work += kvf_worker_posts(w);
    work += kvf_worker_transport_poll(w);
    work += kvf_worker_actions(w);
    work += kvf_worker_posts(w);
    if (w->placed_bytes > 0) {
        w->placed_bytes = 0;
        kvf_clients_refresh(w->clients);
    }
    w->now_ns = kvf_clock_now_ns();
    work += tick(w);
    work += kvf_worker_actions(w);
    kvf_worker_link_flush(w);
    w->loop_count++;
    kvf_clients_beat(w->clients, w->loop_count);
    kvf_stats_heartbeat(w->stats, w->now_ns);
    if (work > 0) {
        w->is_stats_due = true;
        kvf_worker_stats_loop(w, w->now_ns - begin_ns);
    }
    return work;
}

static uint64_t spin_ns(const struct kvf_worker *w)
{
    switch ((enum kvf_spin)w->config.spin) {
    case KVF_SPIN_ON:
        return UINT64_MAX;
    case KVF_SPIN_OFF:
        return 0;
    case KVF_SPIN_AUTO:
        break;
    }
    return w->cpus_allowed >= 2 ? SPIN_AUTO_NS : 0;
}

/* How long the loop may sleep: never beyond a deadline, never so long that it looks dead. */
static uint64_t sleep_ns(const struct kvf_worker *w)
{
    uint64_t watchdog_ns = w->config.watchdog_ms * KVF_NS_PER_MS / 4u;
    uint64_t cap_ns = watchdog_ns < SLEEP_MAX_NS ? watchdog_ns : SLEEP_MAX_NS;
    uint64_t until_ns = w->now_ns + cap_ns;
    uint64_t local_ns = KVF_NO_TIME;
    if (w->ways[WAY_LOCAL].t != NULL) {
        local_ns = kvf_local_due_ns(w->ways[WAY_LOCAL].t);
    }
    uint64_t verbs_ns = KVF_NO_TIME;
    if (w->ways[WAY_VERBS].t != NULL) {
        verbs_ns = kvf_verbs_due_ns(w->ways[WAY_VERBS].t);
    }
    if (kvf_control_has_work(w->control) || w->post_lane_count > 0 ||
        (w->ways[WAY_TCP].t != NULL && kvf_tcp_has_work(w->ways[WAY_TCP].t))) {
        return 0;
    }
    uint64_t ends_ns[] = {kvf_core_deadline(w->core),
                          kvf_control_deadline(w->control),
                          local_ns,
                          verbs_ns,
                          w->is_stats_due ? w->stats_ns + STATS_PERIOD_NS : UINT64_MAX,
                          w->stop == STOP_GRACE || w->stop == STOP_ALL ? w->stop_deadline_ns
                                                                       : UINT64_MAX};
    for (size_t i = 0; i < sizeof(ends_ns) / sizeof(ends_ns[0]); i++) {
        until_ns = ends_ns[i] < until_ns ? ends_ns[i] : until_ns;
    }
    return until_ns > w->now_ns ? until_ns - w->now_ns : 0;
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static _Noreturn void run(struct kvf_worker *w)
{
    uint64_t busy_ns = w->now_ns;
    uint64_t timeout_ns = 0;
    for (;;) {
        w->now_ns = kvf_clock_now_ns();
        w->is_busy = turn(w, timeout_ns) > 0;
        if (w->is_busy) {
            busy_ns = w->now_ns;
            timeout_ns = 0;
            continue;
        }
        timeout_ns = 0;
        uint64_t limit_ns = spin_ns(w);
        if (limit_ns == UINT64_MAX || w->now_ns - busy_ns < limit_ns) {
            relax();
            continue;
        }
        uint64_t wanted_ns = sleep_ns(w);
        if (wanted_ns > 0 && kvf_clients_sleep(w->clients) &&
            (w->ways[WAY_VERBS].t == NULL || kvf_worker_verbs_may_sleep(w))) {
            timeout_ns = wanted_ns;
        } else {
            kvf_clients_awake(w->clients);
        }
    }
}

/* ---- start --------------------------------------------------------------------------------------------------- */

static void pin(struct kvf_worker *w, int cpu)
{
    int cpus[1];
    w->cpus_allowed = kvf_cpu_allowed(cpus, 1);
    w->cpu = KVF_CPU_NONE;
    if (cpu < 0) {
        return;
    }
    int err = kvf_cpu_pin(cpu);
    if (err != 0) {
        kvf_log(KVF_LOG_WARN, "cannot pin to processor %d: %s; running unpinned", cpu,
                strerror(-err));
        return;
    }
    w->cpu = cpu;
}

/* What came of preferring a node: that of the first rail, where the device writes its queues, else that of the
 * processor. */
static void note_memory(struct kvf_worker *w, int err)
{
    w->is_numa_bound = err > 0;
    if (err < 0) {
        kvf_log(KVF_LOG_WARN,
                "the host refuses memory policies (%s); memory is not bound to a node",
                strerror(-err));
    }
}

static int create_core(struct kvf_worker *w, const struct kvf_link_start *start)
{
    struct kvf_core_limits limits = {
        .clients_max = w->config.clients,
        .rooms_per_client_max = w->config.rooms,
        .peers_max = KVF_WORKER_PEERS_MAX,
        .lanes_per_peer = w->config.lanes,
        .grants_max = GRANTS_MAX,
        .runs_max = RUNS_MAX,
        .pieces_max = PIECES_MAX,
        .parked_per_peer_max = PARKED_PER_PEER_MAX,
        .group_tombstones_max = KVF_GROUP_KEYS_MAX,
        .remote_regions_max = w->config.transport == KVF_WIRE_VERBS ? REMOTE_REGIONS_MAX : 0};
    struct kvf_core_config config;
    kvf_core_config_of(&w->config, start->supervisor_id, start->worker_starts, &config);
    uint64_t seed[4];
    int err = kvf_random_bytes(seed, sizeof(seed));
    if (err != 0) {
        return err;
    }
    /* Zero pages come from the kernel as they are touched: what is never used costs nothing. */
    unsigned char *memory = calloc(1, kvf_core_bytes(&limits) + KVF_LINE_BYTES);
    if (memory == NULL) {
        return -ENOMEM;
    }
    memory += KVF_LINE_BYTES - (uintptr_t)memory % KVF_LINE_BYTES;
    w->core = kvf_core_init(memory, &limits, &config, seed);
    /* Until the supervisor has told all it keeps of earlier workers' clients. */
    kvf_core_groups_hold(w->core, w->now_ns, true);
    return 0;
}

static int watch(struct kvf_worker *w, int fd, uint32_t kind)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)kind << 32};
    return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0 ? 0 : -errno;
}

static int fail(const char *what, int err)
{
    kvf_log(KVF_LOG_ERROR, "cannot start: %s: %s", what, strerror(-err));
    return err;
}

static int start_worker(struct kvf_worker *w, const struct kvf_link_start *start, int stats_fd)
{
    w->config = start->config;
    w->rails = start->rails;
    w->epoch = start->worker_epoch;
    w->past_epoch = start->past_epoch;
    w->past_ended_ns = start->past_ended_ns;
    w->covered = start->covered;
    w->link_fd = KVF_LINK_FD;
    w->now_ns = kvf_clock_now_ns();
    void *stats = NULL;
    uint32_t def_count = 0;
    const struct kvf_stats_def *defs = kvf_daemon_stats_defs(&def_count);
    int err = kvf_memory_map(stats_fd, 0, kvf_stats_bytes(defs, def_count), true, true, &stats);
    if (err != 0) {
        return fail("map the stats file", err);
    }
    close(stats_fd);
    w->stats = stats;
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll_fd < 0) {
        return fail("create an epoll descriptor", -errno);
    }
    /* Queues are allocated by calls of the helper too, which inherits the node. */
    bool has_node = start->rails.memory_node >= 0;
    if (has_node) {
        note_memory(w, kvf_numa_prefer_node(start->rails.memory_node));
    }
    /* Before pinning: the helper may use every processor that we may. */
    err = kvf_helper_create(&w->helper);
    if (err != 0) {
        return fail("start the helper thread", err);
    }
    pin(w, start->cpu);
    if (!has_node) {
        note_memory(w, kvf_numa_prefer_near(w->cpu));
    }
    err = create_core(w, start);
    if (err != 0) {
        return fail("allocate the room tables", err);
    }
    err = kvf_worker_transport_create(w);
    if (err != 0) {
        return fail("create the transport", err);
    }
    err = kvf_worker_tables_create(w); /* behind the devices that regions are registered with */
    if (err != 0) {
        return fail("allocate the client tables", err);
    }
    err = kvf_worker_engine_check(w);
    if (err != 0) {
        return err;
    }
    err = kvf_worker_control_create(w);
    if (err != 0) {
        char text[64];
        kvf_log(KVF_LOG_ERROR, "cannot listen on %s: %s; choose another --listen%s",
                kvf_addr_format(&w->config.listen, text, sizeof(text)), strerror(-err),
                err == -EADDRINUSE ? " (port 0 is any free one)" : "");
        return err;
    }
    err = watch(w, w->link_fd, KVF_EPOLL_KIND_SUPERVISOR);
    if (err == 0) {
        err = watch(w, kvf_helper_fd(w->helper), KVF_EPOLL_KIND_HELPER);
    }
    return err == 0 ? 0 : fail("watch the supervisor", err);
}

/* What makes a reaped worker proof for everything it lent: nobody can take its descriptors or memory,
 * and it does not outlive its supervisor. Called before anything is opened. */
static int shield(void)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    (void)prctl(PR_SET_NAME, "kvfenced-worker");
    if (prctl(PR_SET_DUMPABLE, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        return -errno;
    }
    return 0;
}

static int receive_start(struct kvf_link_start *ret_start, int *ret_stats_fd)
{
    struct pollfd p = {.fd = KVF_LINK_FD, .events = POLLIN};
    if (poll(&p, 1, START_WAIT_MS) != 1) {
        return -ETIMEDOUT;
    }
    int fds[KVF_PACKET_FDS_MAX];
    int fd_count = 0;
    int got = kvf_packet_receive(KVF_LINK_FD, ret_start, sizeof(*ret_start), fds, &fd_count);
    if (got != (int)sizeof(*ret_start) || ret_start->h.op != KVF_LINK_START || fd_count != 1) {
        return -EPROTO;
    }
    *ret_stats_fd = fds[0];
    return 0;
}

int kvf_worker_main(void)
{
    static struct kvf_worker worker;
    struct kvf_link_start start;
    int stats_fd = -1;
    int err = shield();
    if (err == 0) {
        err = receive_start(&start, &stats_fd);
    }
    if (err != 0) {
        kvf_log(KVF_LOG_ERROR, "this worker was not started by a supervisor: %s",
                strerror(-err));
        return 1;
    }
    /* It may have ended before the kernel knew that we want to end with it. */
    if (getppid() != start.supervisor_pid) {
        return 1;
    }
    char who[64];
    snprintf(who, sizeof(who), "%s/worker", start.config.name);
    kvf_log_init(who, (enum kvf_log_level)start.config.log_level);
    if (start_worker(&worker, &start, stats_fd) != 0) {
        return 3;
    }
    worker.now_ns = kvf_clock_now_ns();
    kvf_worker_stats_start(&worker, start.worker_starts);
    kvf_worker_stats_copy(&worker);
    kvf_worker_tell(&worker, KVF_LINK_READY, 0, 0, (uint32_t)kvf_worker_engine(&worker),
                    kvf_control_port(worker.control));
    run(&worker);
}

/* Lanes of transport tcp: opening, readiness, fences. Their turns are in tcp_turn.c.
 *
 * Everything is allocated at create. Lanes with something to do stand in one list, at most once each, and
 * poll works through it; a lane whose budget is spent goes to the end of it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring/segment.h"
#include "sidecar/transport/tcp_lane.h"
#include "sidecar/transport/tcp_socket.h"

static struct kvf_tcp *tcp_of(struct kvf_transport *t)
{
    return (struct kvf_tcp *)(void *)t;
}

static const struct kvf_tcp *const_tcp_of(const struct kvf_transport *t)
{
    return (const struct kvf_tcp *)(const void *)t;
}

/* ---- create and close ------------------------------------------------------------------------------ */

static void free_all(struct kvf_tcp *tcp)
{
    if (tcp->filler != NULL) {
        kvf_memory_unmap(tcp->filler, KVF_TCP_SCRATCH_BYTES);
    }
    kvf_tcp_slots_free(tcp);
    if (tcp->engine != NULL) {
        tcp->engine->ops->close(tcp->engine);
    }
    free(tcp->scratch);
    free(tcp->entries);
    free(tcp->lanes);
    free(tcp);
}

static int create_engine(struct kvf_tcp *tcp)
{
    bool wants_uring = false;
    switch ((enum kvf_tcp_engine_kind)tcp->config.tcp_engine) {
    case KVF_TCP_ENGINE_SOCKETS:
        break;
    case KVF_TCP_ENGINE_AUTO:
    case KVF_TCP_ENGINE_URING:
        wants_uring = true;
        break;
    }
    if (wants_uring) {
        tcp->engine_refusal =
            kvf_tcp_uring_create(tcp->config.tcp_engine == KVF_TCP_ENGINE_AUTO, &tcp->engine);
        if (tcp->engine_refusal == 0) {
            return 0;
        }
    }
    return kvf_tcp_sockets_create(&tcp->engine);
}

int kvf_tcp_create(const struct kvf_transport_config *config,
                   const struct kvf_transport_host *host, int epoll_fd,
                   struct kvf_transport **ret_transport)
{
    uint32_t posts_max = config->posts_per_lane_max;
    if (config->lanes_max == 0 || posts_max == 0 || (posts_max & (posts_max - 1u)) != 0 ||
        config->turn_bytes_max == 0 || config->tcp_engine > KVF_TCP_ENGINE_URING) {
        return -EINVAL;
    }
    struct kvf_tcp *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL) {
        return -ENOMEM;
    }
    tcp->config = *config;
    tcp->host = *host;
    tcp->epoll_fd = epoll_fd;
    tcp->mark_head = KVF_NONE;
    tcp->mark_tail = KVF_NONE;
    /* Zero pages until a lane is used: most of these tables is never touched. */
    tcp->lanes = calloc(config->lanes_max, sizeof(*tcp->lanes));
    tcp->entries = calloc((size_t)config->lanes_max * posts_max, sizeof(*tcp->entries));
    tcp->scratch = calloc(1, KVF_TCP_SCRATCH_BYTES);
    void *filler = NULL; /* never written: every page of it is the zero page */
    (void)kvf_memory_map_private(KVF_TCP_SCRATCH_BYTES, 0, &filler);
    tcp->filler = filler;
    if (tcp->lanes == NULL || tcp->entries == NULL || tcp->scratch == NULL ||
        tcp->filler == NULL || create_engine(tcp) != 0 || kvf_tcp_slots_create(tcp) != 0) {
        free_all(tcp);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < config->lanes_max; i++) {
        tcp->lanes[i].fd = -1;
        tcp->lanes[i].source.entries = tcp->entries + (size_t)i * posts_max;
    }
    *ret_transport = (struct kvf_transport *)(void *)tcp;
    return 0;
}

const char *kvf_tcp_engine_name(const struct kvf_transport *t)
{
    return const_tcp_of(t)->engine->name;
}

int kvf_tcp_engine_refusal(const struct kvf_transport *t)
{
    return const_tcp_of(t)->engine_refusal;
}

void kvf_tcp_engine_counts(const struct kvf_transport *t, uint64_t *ret_calls,
                           uint64_t *ret_enters)
{
    *ret_calls = const_tcp_of(t)->engine->calls;
    *ret_enters = const_tcp_of(t)->engine->enters;
}

/* ---- marks ------------------------------------------------------------------------------------------ */

void kvf_tcp_mark(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    if (lane->is_marked) {
        return;
    }
    lane->is_marked = true;
    lane->mark_next = KVF_NONE;
    if (tcp->mark_tail == KVF_NONE) {
        tcp->mark_head = lane_idx;
    } else {
        tcp->lanes[tcp->mark_tail].mark_next = lane_idx;
    }
    tcp->mark_tail = lane_idx;
    tcp->mark_count++;
}

uint32_t kvf_tcp_unmark_first(struct kvf_tcp *tcp)
{
    uint32_t lane_idx = tcp->mark_head;
    assert(lane_idx != KVF_NONE);
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    tcp->mark_head = lane->mark_next;
    if (tcp->mark_head == KVF_NONE) {
        tcp->mark_tail = KVF_NONE;
    }
    tcp->mark_count--;
    lane->is_marked = false;
    return lane_idx;
}

bool kvf_tcp_has_work(const struct kvf_transport *t)
{
    return const_tcp_of(t)->mark_count > 0;
}

/* ---- epoll ------------------------------------------------------------------------------------------ */

static int watch(struct kvf_tcp *tcp, uint32_t lane_idx, int op, uint32_t events)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct epoll_event event = {.events = events, .data.u64 = KVF_EPOLL_LANE | lane_idx};
    if (epoll_ctl(tcp->epoll_fd, op, lane->fd, &event) != 0) {
        return -errno;
    }
    lane->epoll_events = events;
    return 0;
}

static void unwatch(struct kvf_tcp *tcp, struct kvf_tcp_lane *lane)
{
    if (lane->epoll_events != 0) {
        (void)epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, lane->fd, NULL);
        lane->epoll_events = 0;
    }
}

/* EPOLLOUT is asked for once the socket refused bytes, and until it has taken all there is: a lane that
 * is always full then costs no call of epoll_ctl. */
void kvf_tcp_update_watch(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    uint32_t events = EPOLLIN | EPOLLRDHUP;
    bool is_watched = (lane->epoll_events & EPOLLOUT) != 0;
    if (lane->state != KVF_TCP_UP || !lane->is_writable ||
        (is_watched && !lane->is_sink && kvf_tcp_source_has_work(lane))) {
        events |= EPOLLOUT;
    }
    if (events != lane->epoll_events) {
        int rc = watch(tcp, lane_idx, EPOLL_CTL_MOD, events);
        if (rc != 0) {
            kvf_tcp_lose(tcp, lane_idx, -rc);
        }
    }
}

void kvf_tcp_ready(struct kvf_transport *t, uint32_t lane_idx, uint32_t epoll_events)
{
    struct kvf_tcp *tcp = tcp_of(t);
    assert(lane_idx < tcp->config.lanes_max);
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    if (lane->state == KVF_TCP_FREE || lane->state == KVF_TCP_LOST) {
        return; /* an event of the same epoll_wait, older than the fence */
    }
    if (epoll_events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        lane->is_readable = true;
    }
    if (epoll_events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
        lane->is_writable = true;
    }
    kvf_tcp_mark(tcp, lane_idx);
}

/* ---- open ------------------------------------------------------------------------------------------- */

/* How much the kernel may hold of a stream, beyond the posts that the core counts. Paced: 4 ms' worth, so
 * that what is behind an abort stays small. Unpaced: what one connection needs to run at full speed, but
 * not more than the window of posts. The kernel doubles what it is told, and with large frames fills it. */
static int socket_bytes(const struct kvf_transport_config *config)
{
    uint64_t bytes = KVF_TCP_SOCKET_BYTES_UNPACED;
    if (config->lane_rate_bytes > 0) {
        bytes = config->lane_rate_bytes / 500u; /* 2 ms, which the kernel doubles */
    } else if (config->lane_window_bytes > 0 && config->lane_window_bytes < bytes) {
        bytes = config->lane_window_bytes;
    }
    if (bytes < KVF_TCP_SOCKET_BYTES_MIN) {
        bytes = KVF_TCP_SOCKET_BYTES_MIN;
    }
    if (bytes > (UINT64_C(1) << 30)) {
        bytes = UINT64_C(1) << 30;
    }
    return (int)bytes;
}

/* Paced: a quarter of a millisecond's worth, unsent bytes being those that wait for their pace. */
static int unsent_bytes(const struct kvf_transport_config *config)
{
    uint64_t bytes = config->lane_rate_bytes / 4000u;
    if (config->lane_rate_bytes == 0 || bytes > KVF_TCP_UNSENT_BYTES) {
        return KVF_TCP_UNSENT_BYTES;
    }
    return bytes < KVF_TCP_UNSENT_BYTES_MIN ? KVF_TCP_UNSENT_BYTES_MIN : (int)bytes;
}

static int set_source_options(const struct kvf_tcp *tcp, int fd)
{
    int rc = kvf_socket_adopt(fd);
    if (rc != 0) {
        return rc;
    }
    int bytes = socket_bytes(&tcp->config);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) != 0) {
        return -errno;
    }
    rc = kvf_socket_limit_unsent(fd, unsent_bytes(&tcp->config));
    if (rc != 0) {
        return rc;
    }
    if (tcp->config.lane_rate_bytes > 0) {
        unsigned long rate = tcp->config.lane_rate_bytes;
        if (setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)) != 0) {
            return -errno;
        }
    }
    return 0;
}

/* Before the connect, because the window is agreed on in it. */
static int set_sink_options(const struct kvf_tcp *tcp, int fd)
{
    int bytes =
        tcp->config.lane_rate_bytes > 0 ? socket_bytes(&tcp->config) : KVF_TCP_RECEIVE_BYTES;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) != 0) {
        return -errno;
    }
    return 0;
}

static void reset_lane(struct kvf_tcp_lane *lane)
{
    struct kvf_tcp_entry *entries = lane->source.entries;
    memset(&lane->source, 0, sizeof(lane->source));
    memset(&lane->sink, 0, sizeof(lane->sink));
    lane->source.entries = entries;
    lane->serial++;
    lane->epoll_events = 0;
    lane->is_sink = false;
    lane->is_readable = false;
    lane->is_writable = false;
    lane->owes_up = false;
    lane->open_err = 0;
}

static int open_source(struct kvf_tcp *tcp, const struct kvf_lane_open *open)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[open->lane];
    int rc = set_source_options(tcp, open->accepted_fd);
    if (rc != 0) {
        close(open->accepted_fd);
        return rc;
    }
    lane->fd = open->accepted_fd;
    lane->state = KVF_TCP_UP;
    lane->is_writable = true;
    lane->owes_up = true;
    return 0;
}

static int open_sink(struct kvf_tcp *tcp, const struct kvf_lane_open *open)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[open->lane];
    int fd = kvf_socket_stream(&open->addr);
    if (fd < 0) {
        return fd;
    }
    int rc = set_sink_options(tcp, fd);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    lane->fd = fd;
    lane->is_sink = true;
    struct kvf_wire_lane_hello hello = {
        .session = open->session, .lane_idx = open->lane_idx, .epoch = open->epoch};
    rc = kvf_wire_put_lane_hello(lane->sink.greeting, sizeof(lane->sink.greeting), 0, &hello);
    assert(rc == (int)sizeof(lane->sink.greeting));
    rc = kvf_socket_connect(fd, &open->addr);
    lane->state = rc == 0 ? KVF_TCP_GREETING : KVF_TCP_CONNECTING;
    lane->is_writable = rc == 0;
    /* A connect that fails at once is reported like one that fails later: by poll. */
    lane->open_err = rc != 0 && rc != -EINPROGRESS ? -rc : 0;
    return 0;
}

static int tcp_open(struct kvf_transport *t, const struct kvf_lane_open *open)
{
    struct kvf_tcp *tcp = tcp_of(t);
    bool is_sink = open->accepted_fd < 0;
    int rc = 0;
    if (open->lane >= tcp->config.lanes_max) {
        rc = -EINVAL;
    } else if (tcp->lanes[open->lane].state != KVF_TCP_FREE) {
        rc = -EBUSY;
    }
    if (rc != 0) {
        if (!is_sink) {
            close(open->accepted_fd);
        }
        return rc;
    }
    struct kvf_tcp_lane *lane = &tcp->lanes[open->lane];
    reset_lane(lane);
    lane->epoch = open->epoch;
    rc = is_sink ? open_sink(tcp, open) : open_source(tcp, open);
    if (rc != 0) {
        return rc;
    }
    uint32_t events = EPOLLIN | EPOLLRDHUP | (lane->state == KVF_TCP_UP ? 0u : EPOLLOUT);
    rc = watch(tcp, open->lane, EPOLL_CTL_ADD, events);
    if (rc != 0) {
        close(lane->fd);
        lane->fd = -1;
        lane->state = KVF_TCP_FREE;
        return rc;
    }
    kvf_tcp_mark(tcp, open->lane);
    return 0;
}

/* ---- losing ------------------------------------------------------------------------------------------ */

void kvf_tcp_lose(struct kvf_tcp *tcp, uint32_t lane_idx, int err)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    assert(err > 0);
    if (lane->state == KVF_TCP_LOST || lane->state == KVF_TCP_FENCING ||
        lane->state == KVF_TCP_FREE) {
        return;
    }
    lane->state = KVF_TCP_LOST;
    unwatch(tcp, lane); /* or epoll would report the hang-up again and again */
    tcp->host.lost_fn(tcp->host.ctx, lane_idx, lane->epoch, err);
}

/* ---- posts and the end ------------------------------------------------------------------------------- */

static bool tcp_can_post(const struct kvf_transport *t, uint32_t lane_idx)
{
    const struct kvf_tcp *tcp = const_tcp_of(t);
    return lane_idx < tcp->config.lanes_max &&
           kvf_tcp_source_can_post(tcp, &tcp->lanes[lane_idx]);
}

static int tcp_post(struct kvf_transport *t, uint32_t lane_idx, const struct kvf_post *post)
{
    struct kvf_tcp *tcp = tcp_of(t);
    return lane_idx < tcp->config.lanes_max ? kvf_tcp_source_post(tcp, lane_idx, post)
                                            : -EINVAL;
}

static void tcp_detach(struct kvf_transport *t, uint32_t lane_idx, uint64_t cookie)
{
    struct kvf_tcp *tcp = tcp_of(t);
    if (lane_idx < tcp->config.lanes_max && tcp->lanes[lane_idx].state != KVF_TCP_FREE) {
        kvf_tcp_source_detach(tcp, lane_idx, cookie);
    }
}

/* Ends the stream. After shutdown nothing is read from or written to the socket, and the calls that
 * touched pages were synchronous: none is outstanding. */
static void end_stream(struct kvf_tcp *tcp, uint32_t lane_idx, bool is_abrupt)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    lane->state = KVF_TCP_FENCING;
    unwatch(tcp, lane);
    if (is_abrupt) {
        /* Bytes that the kernel still holds are of no use to anybody: reset instead of sending them. */
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(lane->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    (void)shutdown(lane->fd, SHUT_RDWR);
    kvf_tcp_source_complete_all(tcp, lane_idx);
    (void)close(lane->fd);
    lane->fd = -1;
    reset_lane(lane);
    lane->state = KVF_TCP_FREE;
}

static void tcp_fence(struct kvf_transport *t, uint32_t lane_idx, uint32_t epoch)
{
    struct kvf_tcp *tcp = tcp_of(t);
    assert(lane_idx < tcp->config.lanes_max);
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    if (lane->state == KVF_TCP_FENCING && lane->epoch == epoch) {
        return; /* from within its own completions: the outer call answers */
    }
    if (lane->state != KVF_TCP_FREE && lane->epoch == epoch) {
        end_stream(tcp, lane_idx, true);
    }
    /* A stream of another epoch was never opened, or ended before this one began. */
    tcp->host.fenced_fn(tcp->host.ctx, lane_idx, epoch);
}

static void tcp_close(struct kvf_transport *t)
{
    struct kvf_tcp *tcp = tcp_of(t);
    for (uint32_t i = 0; i < tcp->config.lanes_max; i++) {
        if (tcp->lanes[i].state != KVF_TCP_FREE) {
            end_stream(tcp, i, false);
        }
    }
    free_all(tcp);
}

const struct kvf_transport_ops kvf_tcp_ops = {
    .name = "tcp",
    .open = tcp_open,
    .can_post = tcp_can_post,
    .post = tcp_post,
    .detach = tcp_detach,
    .poll = kvf_tcp_poll,
    .fence = tcp_fence,
    .close = tcp_close,
};

#include "tests/proxy/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "sidecar/core/wire.h"
#include "tests/proxy/stream.h"

#define CONNECTIONS_MAX 128u
#define EVENTS_MAX 64
#define BACKLOG 64
#define FIRST_FRAME_BYTES (KVF_WIRE_HEADER_BYTES + KVF_WIRE_LANE_HELLO_BYTES)
#define ID_LISTEN (UINT64_C(1) << 40)
#define ID_WATCHED (UINT64_C(1) << 41)
/* A network holds little: who sends into a stall is to notice soon. */
#define SOCKET_BYTES (256 * 1024)
#define SLEEP_NS_MAX UINT64_C(1000000000)

/* An end of a connection: the socket that bytes of streams[end] come from and those of the other stream go to.
 * End 0 is who connected to us. */
struct connection {
    struct kvf_stream streams[2];
    struct kvf_seen seen;
    int fds[2];         /* owned */
    uint32_t events[2]; /* what epoll was told; 0: the socket is not in it */
    bool is_connecting; /* end 1 */
    bool is_used;
};

struct kvf_relay {
    struct connection connections[CONNECTIONS_MAX];
    struct kvf_ruling ruling;
    struct kvf_relay_address listens;
    struct kvf_relay_address to;
    struct kvf_relay_counts counts; /* of what has gone; open ones are added when asked */
    uint64_t seed;
    int epoll_fd;
    int listen_fd;
    bool is_refusing;
};

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- addresses -------------------------------------------------------------------------------------- */

int kvf_relay_address_parse(const char *text, struct kvf_relay_address *ret_address)
{
    struct kvf_relay_address a = {.bytes = 0};
    char host[64];
    char *end;
    const char *colon = strrchr(text, ':');
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof host ||
        colon[1] < '0' || colon[1] > '9') {
        return -EINVAL;
    }
    unsigned long port = strtoul(colon + 1, &end, 10);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    if (*end != '\0' || port > 65535) {
        return -EINVAL;
    }
    struct sockaddr_in *v4 = (void *)&a.address;
    struct sockaddr_in6 *v6 = (void *)&a.address;
    size_t bytes = strlen(host);
    if (host[0] == '[' && host[bytes - 1u] == ']') {
        host[bytes - 1u] = '\0';
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        a.bytes = sizeof *v6;
        if (inet_pton(AF_INET6, host + 1, &v6->sin6_addr) != 1) {
            return -EINVAL;
        }
    } else {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        a.bytes = sizeof *v4;
        if (inet_pton(AF_INET, host, &v4->sin_addr) != 1) {
            return -EINVAL;
        }
    }
    *ret_address = a;
    return 0;
}

void kvf_relay_address_text(const struct kvf_relay_address *address, char *ret_text, size_t cap)
{
    const struct sockaddr_in *v4 = (const void *)&address->address;
    const struct sockaddr_in6 *v6 = (const void *)&address->address;
    char host[INET6_ADDRSTRLEN];
    if (address->address.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(ret_text, cap, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(ret_text, cap, "%s:%u", host, ntohs(v4->sin_port));
    }
}

/* ---- listening -------------------------------------------------------------------------------------- */

static int bind_at(const struct kvf_relay_address *at, int *ret_fd)
{
    int one = 1;
    int fd = socket(at->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    int bytes = SOCKET_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes,
               sizeof bytes); /* what it accepts inherits it */
    if (bind(fd, (const struct sockaddr *)&at->address, at->bytes) != 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

/* The port is bound by its number also if it was any: only so the kernel keeps it ours while connecting is
 * refused. */
static int start_listening(struct kvf_relay *relay, const struct kvf_relay_address *at)
{
    int fd;
    relay->listens = *at;
    int rc = bind_at(at, &fd);
    if (rc != 0) {
        return rc;
    }
    if (getsockname(fd, (struct sockaddr *)&relay->listens.address, &relay->listens.bytes) !=
        0) {
        rc = -errno;
    }
    close(fd);
    rc = rc != 0 ? rc : bind_at(&relay->listens, &relay->listen_fd);
    if (rc == 0 && listen(relay->listen_fd, BACKLOG) != 0) {
        rc = -errno;
    }
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = ID_LISTEN}};
    if (rc == 0 && epoll_ctl(relay->epoll_fd, EPOLL_CTL_ADD, relay->listen_fd, &event) != 0) {
        rc = -errno;
    }
    return rc;
}

int kvf_relay_create(const struct kvf_relay_address *listen_at,
                     const struct kvf_relay_address *to, uint64_t seed,
                     struct kvf_relay **ret_relay)
{
    struct kvf_relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL) {
        return -ENOMEM;
    }
    relay->seed = seed;
    relay->to = *to;
    relay->listen_fd = -1;
    relay->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    int rc = relay->epoll_fd < 0 ? -errno : start_listening(relay, listen_at);
    if (rc != 0) {
        kvf_relay_destroy(relay);
        return rc;
    }
    *ret_relay = relay;
    return 0;
}

void kvf_relay_listens_at(const struct kvf_relay *relay, char *ret_text, size_t cap)
{
    kvf_relay_address_text(&relay->listens, ret_text, cap);
}

int kvf_relay_watch(struct kvf_relay *relay, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = ID_WATCHED}};
    return epoll_ctl(relay->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

void kvf_relay_aim(struct kvf_relay *relay, const struct kvf_relay_address *to)
{
    relay->to = *to;
}

/* ---- rules ------------------------------------------------------------------------------------------ */

int kvf_relay_add(struct kvf_relay *relay, const struct kvf_rule *rules, uint32_t count)
{
    struct kvf_ruling *ruling = &relay->ruling;
    uint64_t now_ns = clock_ns();
    if (count > KVF_RULES_MAX - ruling->count) {
        return -ENOSPC;
    }
    for (uint32_t i = 0; i < count; i++) {
        ruling->rules[ruling->count] = rules[i];
        ruling->since_ns[ruling->count++] = now_ns;
    }
    return 0;
}

/* ---- connections ------------------------------------------------------------------------------------ */

/* What struck a connection, by rules that are still there. */
static void add_strikes(struct kvf_relay_counts *counts, const struct kvf_ruling *ruling,
                        const struct kvf_seen *seen)
{
    for (uint32_t i = 0; i < ruling->count; i++) {
        if ((seen->struck >> i & 1u) != 0) {
            counts->struck++;
            counts->flipped += ruling->rules[i].action == KVF_RULE_CORRUPT;
        }
    }
}

static void add_counts(struct kvf_relay_counts *counts, const struct kvf_ruling *ruling,
                       const struct connection *c)
{
    add_strikes(counts, ruling, &c->seen);
    for (uint32_t d = 0; d < 2; d++) {
        counts->bytes[d] += c->streams[d].sent_count - c->streams[d].refused_count;
        counts->refused[d] += c->streams[d].refused_count;
    }
}

void kvf_relay_clear(struct kvf_relay *relay)
{
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++) {
        struct kvf_seen *seen = &relay->connections[i].seen;
        if (relay->connections[i].is_used) {
            add_strikes(&relay->counts, &relay->ruling, seen);
        }
        seen->reached = 0;
        seen->struck = 0;
    }
    relay->ruling.count = 0;
}

static void end_connection(struct kvf_relay *relay, struct connection *c, bool is_reset)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    for (uint32_t d = 0; d < 2; d++) {
        if (c->streams[1u - d].is_reset) {
            kvf_stream_refuse(&c->streams[d]); /* whom it was held for is gone */
        }
    }
    add_counts(&relay->counts, &relay->ruling, c);
    for (uint32_t end = 0; end < 2; end++) {
        if (is_reset) {
            setsockopt(c->fds[end], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        }
        close(c->fds[end]);
        kvf_stream_destroy(&c->streams[end]);
    }
    *c = (struct connection){.is_used = false};
}

static void watch_end(struct kvf_relay *relay, struct connection *c, uint32_t end,
                      uint32_t wanted)
{
    if (c->events[end] == wanted) {
        return;
    }
    uint64_t id = (uint64_t)(c - relay->connections) * 2u + end;
    struct epoll_event event = {.events = wanted, .data = {.u64 = id}};
    int how = c->events[end] == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (epoll_ctl(relay->epoll_fd, how, c->fds[end], &event) == 0) {
        c->events[end] = wanted;
    }
}

static void prepare_socket(int fd)
{
    int one = 1;
    int bytes = SOCKET_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void accept_one(struct kvf_relay *relay, int fd)
{
    struct connection *c = relay->connections;
    while (c < relay->connections + CONNECTIONS_MAX && c->is_used) {
        c++;
    }
    int out =
        socket(relay->to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c == relay->connections + CONNECTIONS_MAX || out < 0) {
        close(fd);
        if (out >= 0) {
            close(out);
        }
        return;
    }
    uint64_t seed = relay->seed * UINT64_C(0x100000001b3) + relay->counts.accepted * 2u;
    *c = (struct connection){.seen = {.born_ns = clock_ns()},
                             .fds = {fd, out},
                             .is_connecting = true,
                             .is_used = true};
    int rc = kvf_stream_create(&c->streams[KVF_FORTH], KVF_FORTH, seed);
    rc = rc != 0 ? rc : kvf_stream_create(&c->streams[KVF_BACK], KVF_BACK, seed + 1u);
    relay->counts.accepted++;
    prepare_socket(fd);
    prepare_socket(out);
    if (rc != 0 ||
        (connect(out, (const struct sockaddr *)&relay->to.address, relay->to.bytes) != 0 &&
         errno != EINPROGRESS)) {
        end_connection(relay, c, true);
    }
}

static void accept_all(struct kvf_relay *relay)
{
    for (uint32_t i = 0; i < BACKLOG; i++) {
        int fd = accept4(relay->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            return;
        }
        accept_one(relay, fd);
    }
}

/* What the first frame of the side that connected says. Until it is known nothing goes on: a rule for lanes
 * would come too late. */
static void look_for_kind(struct connection *c)
{
    const struct kvf_stream *forth = &c->streams[KVF_FORTH];
    unsigned char bytes[FIRST_FRAME_BYTES];
    struct kvf_wire_header header;
    struct kvf_wire_lane_hello hello;
    uint32_t n = kvf_stream_peek(forth, bytes, sizeof bytes);
    bool is_over = forth->is_ended || c->streams[KVF_BACK].is_ended;
    if (n < KVF_WIRE_HEADER_BYTES) {
        static const unsigned char magic[] = {0x6b, 0x76, 0x66, 0x43};
        if (is_over || memcmp(bytes, magic, n < sizeof magic ? n : sizeof magic) != 0) {
            c->seen.kind = KVF_KIND_OTHER;
        }
        return;
    }
    if (kvf_wire_get_header(bytes, &header) != 0) {
        c->seen.kind = KVF_KIND_OTHER;
    } else if (header.type != KVF_WIRE_LANE_HELLO) {
        c->seen.kind = KVF_KIND_CONTROL;
    } else if (n == sizeof bytes &&
               kvf_wire_get_lane_hello(bytes + KVF_WIRE_HEADER_BYTES, KVF_WIRE_LANE_HELLO_BYTES,
                                       &hello) == 0) {
        c->seen.kind = KVF_KIND_LANE;
        c->seen.lane = (uint8_t)hello.lane_idx;
    } else if (n == sizeof bytes || is_over) {
        c->seen.kind = KVF_KIND_OTHER;
    }
}

/* 0, or -1: the connection is no more. */
static int turn_stream(struct kvf_relay *relay, struct connection *c, uint32_t d,
                       uint64_t now_ns, uint64_t *wake_ns)
{
    struct kvf_stream *stream = &c->streams[d];
    uint32_t to = 1u - d;
    if (to == 1u && c->is_connecting) {
        return 0;
    }
    enum kvf_strike strike =
        kvf_stream_write(stream, c->fds[to], &relay->ruling, &c->seen, now_ns, wake_ns);
    if (strike != KVF_STRIKE_NOTHING) {
        end_connection(relay, c, strike == KVF_STRIKE_RESET);
        return -1;
    }
    if (!kvf_stream_may_tell_end(stream, &relay->ruling, &c->seen, now_ns, wake_ns)) {
        return 0;
    }
    if (stream->is_reset) {
        end_connection(relay, c, true);
        return -1;
    }
    stream->is_end_told = true;
    shutdown(c->fds[to], SHUT_WR);
    return 0;
}

static void turn_connection(struct kvf_relay *relay, struct connection *c, uint64_t now_ns,
                            uint64_t *wake_ns)
{
    if (c->seen.kind == 0) {
        look_for_kind(c);
        if (c->seen.kind == 0) {
            watch_end(relay, c, 0, EPOLLIN);
            watch_end(relay, c, 1, c->is_connecting ? EPOLLOUT : EPOLLIN);
            return;
        }
    }
    kvf_ruling_wake(&relay->ruling, &c->seen, now_ns, wake_ns);
    if (turn_stream(relay, c, KVF_FORTH, now_ns, wake_ns) != 0 ||
        turn_stream(relay, c, KVF_BACK, now_ns, wake_ns) != 0) {
        return;
    }
    if (c->streams[0].is_end_told && c->streams[1].is_end_told) {
        end_connection(relay, c, false);
        return;
    }
    for (uint32_t end = 0; end < 2; end++) {
        const struct kvf_stream *in = &c->streams[end];
        const struct kvf_stream *out = &c->streams[1u - end];
        bool wants_in =
            !in->is_ended && kvf_stream_has_room(in, &relay->ruling, &c->seen, now_ns);
        bool wants_out = out->is_blocked || (end == 1u && c->is_connecting);
        /* An end that was reset would report that for ever. */
        bool is_dead = in->is_ended && (in->is_reset || out->is_end_told || out->is_deaf);
        watch_end(relay, c, end,
                  is_dead ? 0 : (wants_in ? EPOLLIN : 0u) | (wants_out ? EPOLLOUT : 0u));
    }
}

static void take_event(struct kvf_relay *relay, struct connection *c, uint32_t end,
                       uint32_t events, uint64_t now_ns)
{
    if (end == 1u && c->is_connecting) {
        int err = 0;
        socklen_t bytes = sizeof err;
        getsockopt(c->fds[1], SOL_SOCKET, SO_ERROR, &err, &bytes);
        if (err != 0) {
            end_connection(relay, c, true);
            return;
        }
        c->is_connecting = (events & EPOLLOUT) == 0;
        return;
    }
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
        c->streams[1u - end].is_blocked = false; /* it takes more, or is gone and will say so */
    }
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
        struct kvf_stream *in = &c->streams[end];
        kvf_stream_read(in, c->fds[end], &relay->ruling, &c->seen, now_ns);
        if ((events & EPOLLERR) != 0 && !in->is_ended) {
            /* No room for what came before the reset: it is lost, as resets lose what is not read. */
            kvf_stream_end(in, true, now_ns);
        }
    }
}

/* ---- turns ------------------------------------------------------------------------------------------ */

/* Off: connecting is refused and the port stays ours. */
static void set_refusing(struct kvf_relay *relay, bool is_refusing)
{
    if (relay->is_refusing != is_refusing) {
        relay->is_refusing = is_refusing;
        if (is_refusing) {
            shutdown(relay->listen_fd, SHUT_RDWR);
        } else {
            listen(relay->listen_fd, BACKLOG);
        }
        struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = ID_LISTEN}};
        epoll_ctl(relay->epoll_fd, is_refusing ? EPOLL_CTL_DEL : EPOLL_CTL_ADD,
                  relay->listen_fd, &event);
    }
}

static uint64_t turn_all(struct kvf_relay *relay)
{
    uint64_t now_ns = clock_ns();
    uint64_t wake_ns = now_ns + SLEEP_NS_MAX;
    set_refusing(relay, kvf_ruling_refuses(&relay->ruling, now_ns, &wake_ns));
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (relay->connections[i].is_used) {
            turn_connection(relay, &relay->connections[i], now_ns, &wake_ns);
        }
    }
    now_ns = clock_ns();
    return wake_ns > now_ns ? wake_ns - now_ns : 0;
}

int kvf_relay_turn(struct kvf_relay *relay, bool *ret_readable)
{
    struct epoll_event events[EVENTS_MAX];
    uint64_t sleep_ns = turn_all(relay);
    struct timespec timeout = {.tv_sec = (time_t)(sleep_ns / 1000000000u),
                               .tv_nsec = (long)(sleep_ns % 1000000000u)};
    *ret_readable = false;
    int n = epoll_pwait2(relay->epoll_fd, events, EVENTS_MAX, &timeout, NULL);
    if (n < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    uint64_t now_ns = clock_ns();
    for (int i = 0; i < n; i++) {
        uint64_t id = events[i].data.u64;
        if (id == ID_LISTEN) {
            accept_all(relay);
        } else if (id == ID_WATCHED) {
            *ret_readable = true;
        } else if (relay->connections[id / 2u].is_used) {
            take_event(relay, &relay->connections[id / 2u], (uint32_t)(id % 2u),
                       events[i].events, now_ns);
        }
    }
    return 0;
}

void kvf_relay_count(const struct kvf_relay *relay, struct kvf_relay_counts *ret_counts)
{
    struct kvf_relay_counts counts = relay->counts;
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *c = &relay->connections[i];
        if (!c->is_used) {
            continue;
        }
        counts.open++;
        counts.control += c->seen.kind == KVF_KIND_CONTROL;
        counts.lanes += c->seen.kind == KVF_KIND_LANE;
        add_counts(&counts, &relay->ruling, c);
        for (uint32_t d = 0; d < 2; d++) {
            counts.held[d] += c->streams[d].read_count - c->streams[d].sent_count;
        }
    }
    *ret_counts = counts;
}

void kvf_relay_destroy(struct kvf_relay *relay)
{
    for (uint32_t i = 0; i < CONNECTIONS_MAX; i++) {
        if (relay->connections[i].is_used) {
            end_connection(relay, &relay->connections[i], false);
        }
    }
    if (relay->listen_fd >= 0) {
        close(relay->listen_fd);
    }
    if (relay->epoll_fd >= 0) {
        close(relay->epoll_fd);
    }
    free(relay);
}

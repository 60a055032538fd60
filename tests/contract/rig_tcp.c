/* Two tcp ends over loopback. With squeeze_bytes set a relay stands between them and forwards the stream in
 * random small pieces through small buffers, so that reads and writes are short everywhere. */
#include <assert.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sidecar/host/uring.h"
#include "sidecar/transport/tcp_socket.h"
#include "tests/contract/rig.h"

#define PATIENCE_MS 60000u

struct relay {
    int from_fd; /* the source's stream; -1: no relay on this lane */
    int to_fd;   /* the sink's stream */
    unsigned char bytes[4096];
    uint32_t got;
    uint32_t sent;
};

struct tcp_rig {
    int listen_fd;
    struct kvf_addr_shm addr;
    int source_fds[RIG_LANES];
    struct relay relays[RIG_LANES];
};

static int end_create(struct rig *rig, struct rig_end *end,
                      const struct kvf_transport_host *host, enum kvf_tcp_engine_kind engine)
{
    if (rig->own == NULL) {
        struct tcp_rig *own = calloc(1, sizeof(*own));
        assert(own != NULL);
        for (uint32_t i = 0; i < RIG_LANES; i++) {
            own->relays[i].from_fd = -1;
            own->relays[i].to_fd = -1;
        }
        own->addr = (struct kvf_addr_shm){.family = 4, .addr = {127, 0, 0, 1}};
        own->listen_fd = kvf_socket_stream(&own->addr);
        struct sockaddr_storage address;
        socklen_t bytes;
        kvf_socket_address(&own->addr, &address, &bytes);
        int rc = bind(own->listen_fd, (struct sockaddr *)&address, bytes);
        assert(rc == 0);
        rc = listen(own->listen_fd, 8);
        assert(rc == 0);
        rc = getsockname(own->listen_fd, (struct sockaddr *)&address, &bytes);
        assert(rc == 0);
        own->addr.port = ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
        rig->own = own;
    }
    end->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct kvf_transport_config config = rig->options.config;
    config.tcp_engine = engine;
    int rc = kvf_tcp_create(&config, host, end->epoll_fd, &end->transport);
    return rc != 0 ? rc : kvf_tcp_engine_refusal(end->transport);
}

static int tcp_end_create(struct rig *rig, struct rig_end *end,
                          const struct kvf_transport_host *host)
{
    return end_create(rig, end, host, KVF_TCP_ENGINE_SOCKETS);
}

static int uring_end_create(struct rig *rig, struct rig_end *end,
                            const struct kvf_transport_host *host)
{
    return end_create(rig, end, host, KVF_TCP_ENGINE_URING);
}

/* The kernel's own word: a refusal by our code on a host that allows rings is a failure and no skip. */
static const char *uring_refused_because(void)
{
    static char text[160];
    struct io_uring_params params = {0};
    long fd = syscall(SYS_io_uring_setup, 1, &params);
    if (fd < 0) {
        return kvf_uring_refusal(-errno, text, sizeof(text));
    }
    close((int)fd);
    return NULL;
}

static int accept_one(struct tcp_rig *own)
{
    for (uint32_t i = 0; i < PATIENCE_MS; i++) {
        int fd = accept4(own->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            return fd;
        }
        usleep(1000);
    }
    return -1;
}

/* A second connection for the source's end; the relay forwards it to the sink's. */
static int relay_open(struct tcp_rig *own, struct relay *relay, int sink_fd)
{
    int small = 4096;
    relay->to_fd = sink_fd;
    relay->from_fd = kvf_socket_stream(&own->addr);
    setsockopt(relay->from_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    int rc = kvf_socket_connect(relay->from_fd, &own->addr);
    assert(rc == 0 || rc == -EINPROGRESS);
    relay->got = 0;
    relay->sent = 0;
    return accept_one(own);
}

static void relay_close(struct relay *relay)
{
    if (relay->from_fd >= 0) {
        close(relay->from_fd);
        close(relay->to_fd);
        relay->from_fd = -1;
    }
}

static void relay_turn(struct rig *rig, struct relay *relay)
{
    for (uint32_t i = 0; i < 64 && relay->from_fd >= 0; i++) {
        if (relay->sent == relay->got) {
            uint32_t want = 1u + (uint32_t)(rig_random(rig) % rig->options.squeeze_bytes);
            want = want > sizeof(relay->bytes) ? (uint32_t)sizeof(relay->bytes) : want;
            ssize_t n = recv(relay->from_fd, relay->bytes, want, MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN) {
                return;
            }
            if (n <= 0) {
                relay_close(relay);
                return;
            }
            relay->got = (uint32_t)n;
            relay->sent = 0;
        }
        ssize_t n = send(relay->to_fd, relay->bytes + relay->sent, relay->got - relay->sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            return;
        }
        if (n < 0) {
            relay_close(relay);
            return;
        }
        relay->sent += (uint32_t)n;
    }
}

static void tcp_events(struct rig *rig, struct rig_end *end, bool wait)
{
    struct tcp_rig *own = rig->own;
    struct epoll_event events[RIG_LANES];
    for (uint32_t i = 0; i < RIG_LANES; i++) {
        relay_turn(rig, &own->relays[i]);
    }
    bool has_relay = rig->options.squeeze_bytes > 0;
    int n = epoll_wait(end->epoll_fd, events, RIG_LANES, wait && !has_relay ? 1 : 0);
    for (int i = 0; i < n; i++) {
        kvf_tcp_ready(end->transport, (uint32_t)events[i].data.u64, events[i].events);
    }
}

static bool both_up(struct rig *rig, uint64_t before)
{
    return rig->source.up_count + rig->sink.up_count == before + 2;
}

static int tcp_lane_open(struct rig *rig, uint32_t lane, uint32_t epoch)
{
    struct tcp_rig *own = rig->own;
    struct kvf_lane_open open = {.lane = lane,
                                 .epoch = epoch,
                                 .addr = own->addr,
                                 .session = 77,
                                 .lane_idx = lane % KVF_LANES_MAX,
                                 .accepted_fd = -1};
    uint64_t before = rig->source.up_count + rig->sink.up_count;
    int rc = kvf_tcp_ops.open(rig->sink.transport, &open);
    if (rc != 0) {
        return rc;
    }
    int fd = accept_one(own);
    assert(fd >= 0);
    unsigned char hello[KVF_WIRE_HEADER_BYTES + KVF_WIRE_LANE_HELLO_BYTES];
    uint32_t got = 0;
    struct pollfd arrives = {.fd = fd, .events = POLLIN};
    for (uint32_t i = 0; i < PATIENCE_MS && got < sizeof(hello); i++) {
        tcp_events(rig, &rig->sink, true);
        kvf_tcp_ops.poll(rig->sink.transport);
        (void)poll(&arrives, 1, 1); /* beside a relay, tcp_events does not wait */
        ssize_t n = recv(fd, hello + got, sizeof(hello) - got, MSG_DONTWAIT);
        got += n > 0 ? (uint32_t)n : 0;
    }
    assert(got == sizeof(hello));
    struct kvf_wire_lane_hello m;
    rc = kvf_wire_get_lane_hello(hello + KVF_WIRE_HEADER_BYTES, KVF_WIRE_LANE_HELLO_BYTES, &m);
    assert(rc == 0);
    assert(m.session == 77 && m.lane_idx == lane % KVF_LANES_MAX && m.epoch == epoch);
    relay_close(&own->relays[lane]);
    open.accepted_fd =
        rig->options.squeeze_bytes > 0 ? relay_open(own, &own->relays[lane], fd) : fd;
    own->source_fds[lane] = open.accepted_fd;
    rc = kvf_tcp_ops.open(rig->source.transport, &open);
    if (rc != 0) {
        return rc;
    }
    if (rig->options.squeeze_bytes > 0) {
        int tiny = 1; /* the kernel makes the least of it */
        setsockopt(open.accepted_fd, SOL_SOCKET, SO_SNDBUF, &tiny, sizeof(tiny));
    }
    return rig_until(rig, both_up, before) ? 0 : -ETIMEDOUT;
}

static void tcp_lane_cut(struct rig *rig, uint32_t lane)
{
    struct tcp_rig *own = rig->own;
    if (own->relays[lane].from_fd >= 0) {
        relay_close(&own->relays[lane]);
    } else {
        shutdown(own->source_fds[lane], SHUT_RDWR);
    }
}

static void tcp_destroy(struct rig *rig)
{
    struct tcp_rig *own = rig->own;
    for (uint32_t i = 0; i < RIG_LANES; i++) {
        relay_close(&own->relays[i]);
    }
    close(own->listen_fd);
    close(rig->source.epoll_fd);
    close(rig->sink.epoll_fd);
    free(own);
}

int rig_tcp_source_fd(struct rig *rig, uint32_t lane)
{
    struct tcp_rig *own = rig->own;
    return own->source_fds[lane];
}

const struct rig_kind rig_tcp_kind = {
    .name = "tcp",
    .ops = &kvf_tcp_ops,
    .has_streams = true,
    .end_create = tcp_end_create,
    .lane_open = tcp_lane_open,
    .end_events = tcp_events,
    .lane_cut = tcp_lane_cut,
    .destroy = tcp_destroy,
};

const struct rig_kind rig_tcp_uring_kind = {
    .name = "tcp-uring",
    .ops = &kvf_tcp_ops,
    .has_streams = true,
    .refused_because = uring_refused_because,
    .end_create = uring_end_create,
    .lane_open = tcp_lane_open,
    .end_events = tcp_events,
    .lane_cut = tcp_lane_cut,
    .destroy = tcp_destroy,
};

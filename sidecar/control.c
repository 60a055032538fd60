/* The listener, and accepted connections until their first frame says what they are. */
#include "sidecar/control.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/control_internal.h"
#include "sidecar/transport/tcp_socket.h"

#define PENDING_KEY(idx) ((uint64_t)KVF_EPOLL_KIND_PENDING << 32 | (idx))
#define LISTENER_KEY ((uint64_t)KVF_EPOLL_KIND_LISTENER << 32)

/* ---- pending connections ----------------------------------------------------------------------------- */

static void unlink_pending(struct kvf_control *control, uint32_t idx)
{
    struct kvf_control_pending *pending = &control->pendings[idx];
    if (pending->prev == KVF_NONE) {
        control->pending_oldest = pending->next;
    } else {
        control->pendings[pending->prev].next = pending->next;
    }
    if (pending->next == KVF_NONE) {
        control->pending_youngest = pending->prev;
    } else {
        control->pendings[pending->next].prev = pending->prev;
    }
}

/* Gives the slot back; the descriptor is the caller's from here on, and no longer watched. */
static int release_pending(struct kvf_control *control, uint32_t idx)
{
    struct kvf_control_pending *pending = &control->pendings[idx];
    int fd = pending->fd;
    (void)epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    unlink_pending(control, idx);
    pending->fd = -1;
    pending->next = control->pending_free;
    control->pending_free = idx;
    return fd;
}

static void drop_pending(struct kvf_control *control, uint32_t idx)
{
    close(release_pending(control, idx));
}

static void add_pending(struct kvf_control *control, uint64_t now_ns, int fd)
{
    if (control->pending_free == KVF_NONE) {
        drop_pending(control, control->pending_oldest);
    }
    uint32_t idx = control->pending_free;
    struct kvf_control_pending *pending = &control->pendings[idx];
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = PENDING_KEY(idx)};
    if (kvf_socket_adopt(fd) != 0 ||
        epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return;
    }
    control->pending_free = pending->next;
    pending->fd = fd;
    pending->got_bytes = 0;
    pending->since_ns = now_ns;
    pending->next = KVF_NONE;
    pending->prev = control->pending_youngest;
    if (control->pending_youngest == KVF_NONE) {
        control->pending_oldest = idx;
    } else {
        control->pendings[control->pending_youngest].next = idx;
    }
    control->pending_youngest = idx;
}

/* Says why before it hangs up, if the socket takes it at once. */
static void refuse(struct kvf_control *control, int fd, int code)
{
    unsigned char frame[KVF_CONTROL_FIRST_BYTES];
    size_t bytes = kvf_core_refusal(control->core, (uint32_t)code, frame, sizeof(frame));
    (void)send(fd, frame, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    close(fd);
}

static void accept_hello(struct kvf_control *control, uint64_t now_ns, uint32_t idx,
                         const unsigned char *payload, size_t bytes)
{
    uint32_t peer_idx;
    int rc = kvf_core_peer_accept(control->core, now_ns, payload, bytes, &peer_idx);
    int fd = release_pending(control, idx);
    if (rc != 0) {
        refuse(control, fd, -rc);
        return;
    }
    assert(peer_idx < control->config.peers_max);
    kvf_control_peer_end(control, peer_idx); /* the connection that this one replaces */
    rc = kvf_control_peer_adopt(control, peer_idx, fd, KVF_CONTROL_UP);
    if (rc != 0) {
        kvf_core_peer_lost(control->core, now_ns, peer_idx, -rc);
        return;
    }
    kvf_control_write(control, now_ns, peer_idx);
}

static void accept_lane(struct kvf_control *control, uint64_t now_ns, uint32_t idx,
                        const unsigned char *payload, size_t bytes)
{
    struct kvf_wire_lane_hello hello;
    uint32_t lane;
    int rc = kvf_wire_get_lane_hello(payload, bytes, &hello);
    rc = control->config.has_no_streams ? -KVF_E_PEER_REFUSED : rc;
    if (rc == 0) {
        rc = kvf_core_lane_accept(control->core, now_ns, &hello, &lane);
    }
    int fd = release_pending(control, idx);
    if (rc != 0) {
        close(fd);
        return;
    }
    control->lane_fn(control->ctx, now_ns, lane, hello.epoch, fd);
}

/* How many bytes the first frame has, as far as it is known; 0: it is none that may come first. */
static uint32_t first_frame_bytes(struct kvf_control *control, uint32_t idx)
{
    struct kvf_control_pending *pending = &control->pendings[idx];
    struct kvf_wire_header header;
    if (pending->got_bytes < KVF_WIRE_HEADER_BYTES) {
        return KVF_WIRE_HEADER_BYTES;
    }
    int rc = kvf_wire_get_header(pending->bytes, &header);
    if (rc == -ENOTSUP) {
        refuse(control, release_pending(control, idx), ENOTSUP);
        return 0;
    }
    if (rc == 0 && header.seq == 0 &&
        ((header.type == KVF_WIRE_HELLO && header.payload_bytes == KVF_WIRE_HELLO_BYTES) ||
         (header.type == KVF_WIRE_LANE_HELLO &&
          header.payload_bytes == KVF_WIRE_LANE_HELLO_BYTES))) {
        return KVF_WIRE_HEADER_BYTES + header.payload_bytes;
    }
    drop_pending(control, idx);
    return 0;
}

static void read_pending(struct kvf_control *control, uint64_t now_ns, uint32_t idx)
{
    struct kvf_control_pending *pending = &control->pendings[idx];
    for (;;) { /* ends: every round reads at least a byte of one bounded frame, or returns */
        uint32_t want = first_frame_bytes(control, idx);
        if (want == 0) {
            return;
        }
        if (pending->got_bytes == want) {
            break;
        }
        ssize_t n = recv(pending->fd, pending->bytes + pending->got_bytes,
                         want - pending->got_bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return;
        }
        if (n <= 0) {
            drop_pending(control, idx);
            return;
        }
        pending->got_bytes += (uint32_t)n;
    }
    unsigned char payload[KVF_WIRE_HELLO_BYTES];
    size_t bytes = pending->got_bytes - KVF_WIRE_HEADER_BYTES;
    for (size_t i = 0; i < bytes; i++) {
        payload[i] = pending->bytes[KVF_WIRE_HEADER_BYTES + i];
    }
    if (bytes == KVF_WIRE_HELLO_BYTES) {
        accept_hello(control, now_ns, idx, payload, bytes);
    } else {
        accept_lane(control, now_ns, idx, payload, bytes);
    }
}

/* ---- the listener -------------------------------------------------------------------------------------- */

/* Out of descriptors the caller would stay in the backlog and epoll would never be silent: let it in
 * with the spare one and turn it away. */
static void turn_away(struct kvf_control *control)
{
    if (control->spare_fd < 0) {
        return;
    }
    close(control->spare_fd);
    int fd = accept4(control->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        close(fd);
    }
    control->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_some(struct kvf_control *control, uint64_t now_ns)
{
    for (uint32_t i = 0; i < KVF_CONTROL_ACCEPTS_MAX; i++) {
        int fd = accept4(control->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            add_pending(control, now_ns, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE) {
            turn_away(control);
            return;
        }
        /* Anything but "none" is the fault of one caller, who is gone already. */
        if (errno == EAGAIN) {
            return;
        }
    }
}

static int listen_on(struct kvf_control *control)
{
    struct sockaddr_storage address;
    socklen_t address_bytes;
    int on = 1;
    int rc = kvf_socket_address(&control->config.listen, &address, &address_bytes);
    if (rc != 0) {
        return rc;
    }
    int fd = kvf_socket_stream(&control->config.listen);
    if (fd < 0) {
        return fd;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = LISTENER_KEY};
    /* Alone: the port is held so that it is nobody else's, which REUSEADDR among those who do not listen
     * would allow. */
    if ((!control->config.is_alone &&
         setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) ||
        bind(fd, (const struct sockaddr *)&address, address_bytes) != 0 ||
        (!control->config.is_alone && listen(fd, KVF_CONTROL_BACKLOG) != 0) ||
        getsockname(fd, (struct sockaddr *)&address, &address_bytes) != 0 ||
        (!control->config.is_alone &&
         epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)) {
        rc = -errno;
        close(fd);
        return rc;
    }
    /* The port stands at the same place in both families. */
    _Static_assert(offsetof(struct sockaddr_in, sin_port) ==
                       offsetof(struct sockaddr_in6, sin6_port),
                   "port of a socket address");
    control->port = ntohs(((const struct sockaddr_in *)(const void *)&address)->sin_port);
    control->listen_fd = fd;
    return 0;
}

bool kvf_control_has_sockets(const struct kvf_control *control)
{
    return control->socket_count > 0 || control->pending_oldest != KVF_NONE;
}

uint16_t kvf_control_port(const struct kvf_control *control)
{
    return control->port;
}

/* ---- create, destroy, events ---------------------------------------------------------------------------- */

static void free_all(struct kvf_control *control)
{
    if (control->spare_fd >= 0) {
        close(control->spare_fd);
    }
    free(control->loop_turn);
    free(control->loop_queue);
    free(control->pendings);
    free(control->buffers);
    free(control->peers);
    free(control);
}

static void init_tables(struct kvf_control *control)
{
    for (uint32_t i = 0; i < control->config.peers_max; i++) {
        control->peers[i].fd = -1;
        control->peers[i].partner = KVF_NONE;
        control->peers[i].in = control->buffers + (size_t)i * 2u * KVF_CONTROL_FRAME_BYTES;
        control->peers[i].out = control->peers[i].in + KVF_CONTROL_FRAME_BYTES;
    }
    control->pending_free = KVF_NONE;
    control->pending_oldest = KVF_NONE;
    control->pending_youngest = KVF_NONE;
    for (uint32_t i = control->config.pending_max; i > 0; i--) {
        control->pendings[i - 1].fd = -1;
        control->pendings[i - 1].next = control->pending_free;
        control->pending_free = i - 1;
    }
}

int kvf_control_create(const struct kvf_control_config *config, struct kvf_core *core,
                       int epoll_fd, kvf_control_lane_fn lane_fn, void *ctx,
                       struct kvf_control **ret_control)
{
    if (config->peers_max == 0 || config->pending_max == 0) {
        return -EINVAL;
    }
    struct kvf_control *control = calloc(1, sizeof(*control));
    if (control == NULL) {
        return -ENOMEM;
    }
    control->config = *config;
    control->core = core;
    control->epoll_fd = epoll_fd;
    control->lane_fn = lane_fn;
    control->ctx = ctx;
    control->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    control->peers = calloc(config->peers_max, sizeof(*control->peers));
    /* Zero pages until a peer speaks. */
    control->buffers = calloc((size_t)config->peers_max * 2u, KVF_CONTROL_FRAME_BYTES);
    control->pendings = calloc(config->pending_max, sizeof(*control->pendings));
    control->loop_queue = calloc(config->peers_max, sizeof(*control->loop_queue));
    control->loop_turn = calloc(config->peers_max, sizeof(*control->loop_turn));
    int rc = -ENOMEM;
    if (control->loop_queue == NULL || control->loop_turn == NULL || control->peers == NULL ||
        control->buffers == NULL || control->pendings == NULL) {
        goto fail;
    }
    init_tables(control);
    rc = listen_on(control);
    if (rc != 0) {
        goto fail;
    }
    *ret_control = control;
    return 0;
fail:
    free_all(control);
    return rc;
}

void kvf_control_destroy(struct kvf_control *control)
{
    for (uint32_t i = 0; i < control->config.peers_max; i++) {
        kvf_control_peer_end(control, i);
    }
    while (control->pending_oldest != KVF_NONE) {
        drop_pending(control, control->pending_oldest);
    }
    (void)epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, control->listen_fd, NULL);
    close(control->listen_fd);
    free_all(control);
}

void kvf_control_ready(struct kvf_control *control, uint64_t now_ns, uint32_t kind,
                       uint32_t idx, uint32_t epoll_events)
{
    (void)epoll_events; /* a reason to look; what is there the sockets say */
    if (kind == KVF_EPOLL_KIND_LISTENER) {
        accept_some(control, now_ns);
    } else if (kind == KVF_EPOLL_KIND_PENDING) {
        assert(idx < control->config.pending_max);
        if (control->pendings[idx].fd >= 0) {
            read_pending(control, now_ns, idx);
        }
    } else {
        assert(kind == KVF_EPOLL_KIND_PEER);
        assert(idx < control->config.peers_max);
        kvf_control_peer_ready(control, now_ns, idx);
    }
}

void kvf_control_tick(struct kvf_control *control, uint64_t now_ns)
{
    while (control->pending_oldest != KVF_NONE && kvf_control_deadline(control) <= now_ns) {
        drop_pending(control, control->pending_oldest);
    }
}

uint64_t kvf_control_deadline(const struct kvf_control *control)
{
    if (control->pending_oldest == KVF_NONE) {
        return KVF_NO_TIME;
    }
    return control->pendings[control->pending_oldest].since_ns + control->config.pending_ns;
}

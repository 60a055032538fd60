/* Connections that are a peer of the core: whole frames in, owed bytes out.
 *
 * The buffer for input holds one frame of the largest kind, and a frame is given to the core as soon as it
 * is whole. Output is pulled: the core is asked for bytes only when the socket has taken all the last
 * ones, so a peer that does not read holds up one buffer and nothing else. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/control_internal.h"
#include "sidecar/transport/tcp_socket.h"

#define PEER_KEY(idx) ((uint64_t)KVF_EPOLL_KIND_PEER << 32 | (idx))

int kvf_control_peer_adopt(struct kvf_control *control, uint32_t peer_idx, int fd,
                           uint8_t state)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    assert(peer->state == KVF_CONTROL_FREE);
    uint32_t events = EPOLLIN | EPOLLRDHUP | (state == KVF_CONTROL_UP ? 0u : EPOLLOUT);
    struct epoll_event event = {.events = events, .data.u64 = PEER_KEY(peer_idx)};
    if (epoll_ctl(control->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        int err = errno;
        close(fd);
        return -err;
    }
    control->socket_count++;
    peer->fd = fd;
    peer->state = state;
    peer->serial++;
    peer->epoll_events = events;
    peer->in_bytes = 0;
    peer->out_bytes = 0;
    peer->out_sent = 0;
    return 0;
}

/* Unread and unsent bytes go with the connection. */
void kvf_control_peer_end(struct kvf_control *control, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    if (peer->state == KVF_CONTROL_FREE) {
        return;
    }
    if (peer->is_loop) {
        kvf_control_loop_end(control, peer_idx);
        return;
    }
    (void)epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, peer->fd, NULL);
    close(peer->fd);
    control->socket_count--;
    peer->fd = -1;
    peer->state = KVF_CONTROL_FREE;
    peer->serial++;
}

static void lose(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx, int err)
{
    kvf_control_peer_end(control, peer_idx);
    kvf_core_peer_lost(control->core, now_ns, peer_idx, err);
}

static void watch_out(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx,
                      bool is_wanted)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    uint32_t events = EPOLLIN | EPOLLRDHUP | (is_wanted ? (uint32_t)EPOLLOUT : 0u);
    if (events == peer->epoll_events) {
        return;
    }
    struct epoll_event event = {.events = events, .data.u64 = PEER_KEY(peer_idx)};
    if (epoll_ctl(control->epoll_fd, EPOLL_CTL_MOD, peer->fd, &event) != 0) {
        lose(control, now_ns, peer_idx, errno);
        return;
    }
    peer->epoll_events = events;
}

/* ---- input ------------------------------------------------------------------------------------------ */

/* Gives every whole frame of the buffer to the core, and moves a begun one to the front. A positive
 * errno if what stands there is no frame. */
static int take_frames(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    uint32_t serial = peer->serial;
    uint32_t off = 0;
    while (peer->in_bytes - off >= KVF_WIRE_HEADER_BYTES) {
        struct kvf_wire_header header;
        int rc = kvf_wire_get_header(peer->in + off, &header);
        if (rc != 0) {
            return -rc;
        }
        if (peer->in_bytes - off - KVF_WIRE_HEADER_BYTES < header.payload_bytes) {
            break;
        }
        kvf_core_frame(control->core, now_ns, peer_idx, header.type, header.seq,
                       peer->in + off + KVF_WIRE_HEADER_BYTES, header.payload_bytes);
        if (peer->serial != serial) {
            return 0;
        }
        off += KVF_WIRE_HEADER_BYTES + header.payload_bytes;
    }
    peer->in_bytes -= off;
    if (off > 0 && peer->in_bytes > 0) {
        memmove(peer->in, peer->in + off, peer->in_bytes);
    }
    return 0;
}

static void read_peer(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    uint32_t serial = peer->serial;
    for (uint32_t i = 0; i < KVF_CONTROL_READS_MAX; i++) {
        /* Never full here: a whole frame would have been taken. */
        size_t room_bytes = KVF_CONTROL_FRAME_BYTES - peer->in_bytes;
        assert(room_bytes > 0);
        ssize_t n = recv(peer->fd, peer->in + peer->in_bytes, room_bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return;
        }
        if (n <= 0) {
            lose(control, now_ns, peer_idx, n == 0 ? ECONNRESET : errno);
            return;
        }
        peer->in_bytes += (uint32_t)n;
        int err = take_frames(control, now_ns, peer_idx);
        if (peer->serial != serial) {
            return;
        }
        if (err != 0) {
            lose(control, now_ns, peer_idx, err);
            return;
        }
        if ((size_t)n < room_bytes) {
            return;
        }
    }
}

/* ---- output ----------------------------------------------------------------------------------------- */

/* True if the socket took all of it. */
static bool flush(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    while (peer->out_sent < peer->out_bytes) {
        ssize_t n = send(peer->fd, peer->out + peer->out_sent, peer->out_bytes - peer->out_sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return false;
        }
        if (n < 0) {
            lose(control, now_ns, peer_idx, errno);
            return false;
        }
        peer->out_sent += (uint32_t)n;
    }
    return true;
}

static void write_peer(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    uint32_t serial = peer->serial;
    bool is_wanted = true;
    for (uint32_t i = 0; i < KVF_CONTROL_WRITES_MAX; i++) {
        if (!flush(control, now_ns, peer_idx)) {
            break;
        }
        peer->out_sent = 0;
        size_t bytes =
            kvf_core_emit(control->core, now_ns, peer_idx, peer->out, KVF_CONTROL_FRAME_BYTES);
        assert(bytes <= KVF_CONTROL_FRAME_BYTES);
        peer->out_bytes = (uint32_t)bytes;
        if (bytes == 0) {
            is_wanted = false;
            break;
        }
    }
    /* With bytes left, or a budget used up, the socket says when to go on. */
    if (peer->serial == serial) {
        watch_out(control, now_ns, peer_idx, is_wanted);
    }
}

/* ---- what the worker calls --------------------------------------------------------------------------- */

static void finish_connect(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    int rc = kvf_socket_connect_result(peer->fd);
    if (rc == -EINPROGRESS) {
        return;
    }
    if (rc != 0) {
        kvf_control_peer_end(control, peer_idx);
        kvf_core_peer_connect_failed(control->core, now_ns, peer_idx, -rc);
        return;
    }
    peer->state = KVF_CONTROL_UP;
    uint32_t serial = peer->serial;
    kvf_core_peer_connected(control->core, now_ns, peer_idx);
    if (peer->serial == serial) {
        write_peer(control, now_ns, peer_idx);
    }
}

/* What epoll saw is only a reason to look: the socket's own answers decide, for an event may be older than
 * the descriptor that now has its index. */
void kvf_control_peer_ready(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    if (peer->is_loop) {
        return; /* an event of the socket that this place had before */
    }
    if (peer->state == KVF_CONTROL_CONNECTING) {
        finish_connect(control, now_ns, peer_idx);
        return;
    }
    if (peer->state == KVF_CONTROL_UP) {
        read_peer(control, now_ns, peer_idx);
    }
    if (peer->state == KVF_CONTROL_UP && (peer->epoll_events & EPOLLOUT) != 0) {
        write_peer(control, now_ns, peer_idx);
    }
}

void kvf_control_connect(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx,
                         const struct kvf_addr_shm *addr)
{
    assert(peer_idx < control->config.peers_max);
    kvf_control_peer_end(control, peer_idx);
    if (control->config.is_loop_used && kvf_control_is_own(control, addr)) {
        kvf_control_loop_connect(control, now_ns, peer_idx);
        return;
    }
    if (control->config.is_alone) {
        kvf_core_peer_connect_failed(control->core, now_ns, peer_idx, ENETUNREACH);
        return;
    }
    int fd = kvf_socket_stream(addr);
    if (fd < 0) {
        kvf_core_peer_connect_failed(control->core, now_ns, peer_idx, -fd);
        return;
    }
    int rc = kvf_socket_connect(fd, addr);
    if (rc != 0 && rc != -EINPROGRESS) {
        close(fd);
        kvf_core_peer_connect_failed(control->core, now_ns, peer_idx, -rc);
        return;
    }
    rc = kvf_control_peer_adopt(control, peer_idx, fd, KVF_CONTROL_CONNECTING);
    if (rc != 0) {
        kvf_core_peer_connect_failed(control->core, now_ns, peer_idx, -rc);
        return;
    }
    finish_connect(control, now_ns, peer_idx);
}

void kvf_control_close(struct kvf_control *control, uint32_t peer_idx)
{
    assert(peer_idx < control->config.peers_max);
    kvf_control_peer_end(control, peer_idx);
}

void kvf_control_write(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    assert(peer_idx < control->config.peers_max);
    if (control->peers[peer_idx].is_loop) {
        kvf_control_loop_want(control, peer_idx);
    } else if (control->peers[peer_idx].state == KVF_CONTROL_UP) {
        write_peer(control, now_ns, peer_idx);
    }
}

#include "sidecar/host/packet.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union fd_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * KVF_PACKET_FDS_MAX)];
};

int kvf_packet_send(int fd, const void *packet, size_t bytes, const int *fds, int fd_count)
{
    assert(fd_count >= 0 && fd_count <= KVF_PACKET_FDS_MAX);
    struct iovec iov = {.iov_base = (void *)(size_t)packet, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union fd_space space;
    if (fd_count > 0) {
        memset(&space, 0, sizeof(space));
        msg.msg_control = space.bytes;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)fd_count);
    }
    ssize_t put;
    do {
        put = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    if (put < 0) {
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    }
    assert((size_t)put == bytes);
    return 0;
}

static int take_fds(struct msghdr *msg, int *ret_fds)
{
    int count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        assert(here <= (size_t)(KVF_PACKET_FDS_MAX - count));
        memcpy(ret_fds + count, CMSG_DATA(c), here * sizeof(int));
        count += (int)here;
    }
    return count;
}

int kvf_packet_receive(int fd, void *ret_packet, size_t cap, int *ret_fds, int *ret_fd_count)
{
    struct iovec iov = {.iov_base = ret_packet, .iov_len = cap};
    union fd_space space;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = space.bytes,
                         .msg_controllen = sizeof(space.bytes)};
    ssize_t got;
    do {
        got = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    }
    int fds[KVF_PACKET_FDS_MAX];
    int count = take_fds(&msg, fds);
    /* An empty packet reads like a hang-up and is treated as one. */
    if (got == 0 || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
        kvf_close_fds(fds, count);
        return got == 0 ? 0 : -EPROTO;
    }
    memcpy(ret_fds, fds, sizeof(int) * (size_t)count);
    *ret_fd_count = count;
    return (int)got;
}

void kvf_close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void kvf_close_fds(int *fds, int fd_count)
{
    for (int i = 0; i < fd_count; i++) {
        kvf_close_fd(&fds[i]);
    }
}

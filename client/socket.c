/* Packets between the library and its supervisor: one struct each, descriptors beside it. */
#include "client/internal.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KVF_REPLY_FDS_MAX 8

void kvf_reply_close(struct kvf_reply *reply)
{
    for (int i = 0; i < reply->fd_count; i++) {
        if (reply->fds[i] >= 0) {
            close(reply->fds[i]);
            reply->fds[i] = -1;
        }
    }
    reply->fd_count = 0;
}

int kvf_reply_take(struct kvf_reply *reply, int idx)
{
    int fd = reply->fds[idx];
    reply->fds[idx] = -1;
    return fd;
}

/* Is this what the system says while a daemon is not there yet? */
static bool is_absence(int err)
{
    return err == ENOENT || err == ECONNREFUSED || err == EAGAIN;
}

int kvf_socket_connect(const char *path, uint64_t deadline_ns, int *ret_fd)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof addr.sun_path) {
        return -KVF_E_OPTION;
    }
    memcpy(addr.sun_path, path, strlen(path) + 1u);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            return -errno;
        }
        if (connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0) {
            *ret_fd = fd;
            return 0;
        }
        int err = errno;
        close(fd);
        if (err != EINTR && !is_absence(err)) {
            return -err;
        }
        int ms = kvf_client_ms_until(deadline_ns, KVF_ATTACH_RETRY_MS);
        if (ms == 0) {
            return -KVF_E_NO_DAEMON;
        }
        (void)poll(NULL, 0, ms);
    }
}

int kvf_socket_send(int fd, const void *packet, size_t bytes, const int *fds, int fd_count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KVF_REPLY_FDS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)packet, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, (size_t)fd_count * sizeof(int));
    }
    ssize_t sent;
    do {
        sent = sendmsg(fd, &msg, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        return errno == EPIPE || errno == ECONNRESET ? -KVF_E_DAEMON_GONE : -errno;
    }
    return 0;
}

static void take_fds(struct msghdr *msg, struct kvf_reply *reply)
{
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg != NULL;
         cmsg = CMSG_NXTHDR(msg, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && reply->fd_count < KVF_REPLY_FDS_MAX; i++) {
            memcpy(&reply->fds[reply->fd_count++], CMSG_DATA(cmsg) + i * sizeof(int),
                   sizeof(int));
        }
    }
}

int kvf_socket_receive(int fd, struct kvf_reply *ret_reply)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KVF_REPLY_FDS_MAX * sizeof(int))];
    } control;
    struct kvf_reply reply = {.fd_count = 0};
    struct iovec iov = {.iov_base = &reply.rep, .iov_len = sizeof reply.rep};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return -EAGAIN;
        }
        return -KVF_E_DAEMON_GONE;
    }
    if (got == 0) {
        return -KVF_E_DAEMON_GONE;
    }
    take_fds(&msg, &reply);
    const struct kvf_attach_header *h = &reply.rep.h;
    if ((msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || (size_t)got < sizeof *h ||
        h->magic != KVF_ATTACH_MAGIC || h->bytes != (uint32_t)got) {
        kvf_reply_close(&reply);
        return -KVF_E_PROTOCOL;
    }
    /* What a shorter packet does not say stays zero. */
    *ret_reply = reply;
    return 0;
}

void kvf_socket_notice(kvf_client *client, struct kvf_reply *reply)
{
    const struct kvf_attach_rep *rep = &reply->rep;
    if (rep->h.op == KVF_NOTE_WORKER && reply->fd_count >= 1 && rep->epoch != 0) {
        kvf_client_worker_add(client, rep->epoch, kvf_reply_take(reply, 0));
    } else if (rep->h.op == KVF_REP_REFUSED && rep->h.serial == 0 && rep->code <= INT32_MAX) {
        atomic_store_explicit(&client->cold.dropped_code, rep->code, memory_order_relaxed);
    }
    /* A reply nobody waits for any more, or a notice of a later version: nothing to keep. */
    kvf_reply_close(reply);
}

static int refusal_of(kvf_client *client, const struct kvf_attach_rep *rep)
{
    char *text = client->cold.refusal;
    _Static_assert(sizeof client->cold.refusal == sizeof rep->text, "the same bytes");
    memcpy(text, rep->text, sizeof rep->text);
    text[sizeof rep->text - 1u] = '\0';
    return rep->code != 0 && rep->code <= INT32_MAX ? -(int)rep->code : -KVF_E_PROTOCOL;
}

int kvf_socket_request(kvf_client *client, int fd, struct kvf_attach_header *request,
                       size_t bytes, const int *fds, int fd_count, uint16_t wanted_op,
                       uint64_t deadline_ns, struct kvf_reply *ret_reply)
{
    uint32_t serial = ++client->cold.serial;
    if (serial == 0) {
        serial = ++client->cold.serial; /* 0 is nobody's */
    }
    uint16_t op = request->op;
    *request = (struct kvf_attach_header){.magic = KVF_ATTACH_MAGIC,
                                          .op = op,
                                          .layout_major = KVF_LAYOUT_MAJOR,
                                          .serial = serial,
                                          .bytes = (uint32_t)bytes};
    int err = kvf_socket_send(fd, request, bytes, fds, fd_count);
    while (err == 0) {
        struct kvf_reply reply;
        err = kvf_socket_receive(fd, &reply);
        if (err == -EAGAIN) {
            int ms = deadline_ns != 0 ? kvf_client_ms_until(deadline_ns, 1000) : 1000;
            struct pollfd p = {.fd = fd, .events = POLLIN};
            err = -ETIMEDOUT;
            if (ms != 0) {
                (void)poll(&p, 1, ms);
                err = 0;
            }
            continue;
        }
        if (err != 0) {
            break;
        }
        if (reply.rep.h.serial != serial || reply.rep.h.op >= KVF_NOTE) {
            kvf_socket_notice(client, &reply);
            continue;
        }
        if (reply.rep.h.op == wanted_op) {
            *ret_reply = reply;
            return 0;
        }
        err = reply.rep.h.op == KVF_REP_REFUSED ? refusal_of(client, &reply.rep)
                                                : -KVF_E_PROTOCOL;
        kvf_reply_close(&reply);
    }
    return err;
}

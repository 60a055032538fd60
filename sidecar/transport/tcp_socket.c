#include "sidecar/transport/tcp_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

int kvf_socket_address(const struct kvf_addr_shm *addr, struct sockaddr_storage *ret_address,
                       socklen_t *ret_bytes)
{
    if (addr->family == 4) {
        struct sockaddr_in in4 = {.sin_family = AF_INET, .sin_port = htons(addr->port)};
        memcpy(&in4.sin_addr, addr->addr, sizeof(in4.sin_addr));
        memset(ret_address, 0, sizeof(*ret_address));
        memcpy(ret_address, &in4, sizeof(in4));
        *ret_bytes = sizeof(in4);
        return 0;
    }
    if (addr->family == 6) {
        struct sockaddr_in6 in6 = {.sin6_family = AF_INET6,
                                   .sin6_port = htons(addr->port),
                                   .sin6_scope_id = addr->scope};
        memcpy(&in6.sin6_addr, addr->addr, sizeof(in6.sin6_addr));
        memset(ret_address, 0, sizeof(*ret_address));
        memcpy(ret_address, &in6, sizeof(in6));
        *ret_bytes = sizeof(in6);
        return 0;
    }
    return -EAFNOSUPPORT;
}

/* Without it a marker or a small frame would wait for the acknowledgement of what is before it. A socket
 * that is no TCP socket (a test's socket pair) has no such delay, so a refusal is no fault. */
static void set_no_delay(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int kvf_socket_limit_unsent(int fd, int bytes)
{
    int rc = setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
    return rc == 0 || errno == EOPNOTSUPP || errno == ENOPROTOOPT ? 0 : -errno;
}

int kvf_socket_stream(const struct kvf_addr_shm *addr)
{
    if (addr->family != 4 && addr->family != 6) {
        return -EAFNOSUPPORT;
    }
    int fd = socket(addr->family == 4 ? AF_INET : AF_INET6,
                    SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    set_no_delay(fd);
    return fd;
}

int kvf_socket_connect(int fd, const struct kvf_addr_shm *addr)
{
    struct sockaddr_storage address;
    socklen_t address_bytes;
    int rc = kvf_socket_address(addr, &address, &address_bytes);
    if (rc != 0) {
        return rc;
    }
    if (connect(fd, (const struct sockaddr *)&address, address_bytes) == 0) {
        return 0;
    }
    /* An interrupted connect goes on by itself. */
    return errno == EINTR ? -EINPROGRESS : -errno;
}

int kvf_socket_connect_result(int fd)
{
    int err = 0;
    socklen_t err_bytes = sizeof(err);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &err_bytes) != 0) {
        return -errno;
    }
    if (err != 0) {
        return -err;
    }
    struct sockaddr_storage peer;
    socklen_t peer_bytes = sizeof(peer);
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) == 0) {
        return 0;
    }
    return errno == ENOTCONN ? -EINPROGRESS : -errno;
}

int kvf_socket_adopt(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return -errno;
    }
    set_no_delay(fd);
    return 0;
}

/* The few socket calls that lanes and control connections share. Plain Linux sockets, never blocking. */
#ifndef KVF_TRANSPORT_TCP_SOCKET_H
#define KVF_TRANSPORT_TCP_SOCKET_H

#include <stdint.h>
#include <sys/socket.h>

#include "ring/layout.h"

/* Writes the socket address of `addr`. 0, or -EAFNOSUPPORT for a family that is neither 4 nor 6. */
int kvf_socket_address(const struct kvf_addr_shm *addr, struct sockaddr_storage *ret_address,
                       socklen_t *ret_bytes);
/* A new stream socket of addr's family: close-on-exec, non-blocking, no delay. The descriptor or -errno. */
int kvf_socket_stream(const struct kvf_addr_shm *addr);
/* 0: connected. -EINPROGRESS: not yet. Another negative errno: it failed, and stays so. */
int kvf_socket_connect(int fd, const struct kvf_addr_shm *addr);
/* The same answers for a connect that was begun earlier. It trusts the socket alone: an event of epoll
 * may be left over from an older descriptor of the same number. */
int kvf_socket_connect_result(int fd);
/* Marks an accepted or inherited descriptor non-blocking, close-on-exec and without delay. */
int kvf_socket_adopt(int fd);
/* The kernel takes at most about this much beyond what it has sent, so that what is posted next is not far
 * behind. 0 or -errno; a socket that is no TCP socket has nothing unsent, so its refusal is no fault. */
int kvf_socket_limit_unsent(int fd, int bytes);

#endif

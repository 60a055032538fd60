/* One struct per packet over a SOCK_SEQPACKET Unix socket, descriptors beside it. Never blocks. */
#ifndef KVF_HOST_PACKET_H
#define KVF_HOST_PACKET_H

#include <stddef.h>

#define KVF_PACKET_FDS_MAX 8

/* The descriptors stay the caller's. 0; -EAGAIN: the other side does not read; -errno. */
int kvf_packet_send(int fd, const void *packet, size_t bytes, const int *fds, int fd_count);

/* Returns the packet's bytes, 0 when the other side has hung up, -EAGAIN: nothing yet, -EPROTO: longer
 * than cap or with too many descriptors (all of them are closed then), -errno. The caller owns the
 * *ret_fd_count descriptors, which are O_CLOEXEC. */
int kvf_packet_receive(int fd, void *ret_packet, size_t cap, int *ret_fds, int *ret_fd_count);

void kvf_close_fds(int *fds, int fd_count); /* and sets them to -1 */
void kvf_close_fd(int *fd);

#endif

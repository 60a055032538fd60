/* Processes by what the kernel holds, never by a number alone. */
#ifndef KVF_HOST_PROCESS_H
#define KVF_HOST_PROCESS_H

#include <stddef.h>
#include <stdint.h>

/* Random bytes for identities and seeds. Blocks only before the kernel's pool is ready. 0 or -errno. */
int kvf_random_bytes(void *ret_bytes, size_t bytes);

/* Which process a pid names: pids are recycled, a pid together with the boot and its start is not. */
struct kvf_process_id {
    int pid;
    uint64_t start_ticks; /* field 22 of /proc/PID/stat */
    char boot_id[40];
};
/* 0; -ESRCH: no such process; -errno. */
int kvf_process_identify(int pid, struct kvf_process_id *ret_id);

/* A descriptor that becomes readable when the process has ended. O_CLOEXEC. 0 or -errno. */
int kvf_pidfd_open(int pid, int *ret_fd);
/* The same for the process at the other end of a Unix socket: named by the kernel where it can
 * (Linux 6.5), else through the credentials. */
int kvf_pidfd_of_peer(int socket_fd, int *ret_fd);
/* 1 if it has ended, 0 if not within timeout_ms, -errno. */
int kvf_pidfd_wait(int pidfd, int timeout_ms);
int kvf_pidfd_kill(int pidfd);

#endif

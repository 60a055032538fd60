#include "sidecar/host/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

int kvf_random_bytes(void *ret_bytes, size_t bytes)
{
    unsigned char *at = ret_bytes;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -errno : -EIO;
        }
        at += got;
        bytes -= (size_t)got;
    }
    return 0;
}

static int read_small_file(const char *path, char *ret_text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    ssize_t got = read(fd, ret_text, cap - 1u);
    int err = got < 0 ? -errno : 0;
    close(fd);
    if (err != 0) {
        return err;
    }
    ret_text[got] = '\0';
    return 0;
}

/* The second field is the program's name in parentheses and may hold anything, so fields are counted
 * from the last parenthesis on. */
static int parse_start_ticks(const char *stat_text, uint64_t *ret_ticks)
{
    const char *at = strrchr(stat_text, ')');
    if (at == NULL) {
        return -EPROTO;
    }
    for (int field = 2; field < 22; field++) {
        at = strchr(at + 1, ' ');
        if (at == NULL) {
            return -EPROTO;
        }
    }
    return sscanf(at, " %" SCNu64, ret_ticks) == 1 ? 0 : -EPROTO;
}

int kvf_process_identify(int pid, struct kvf_process_id *ret_id)
{
    struct kvf_process_id id = {.pid = pid};
    char path[64];
    char text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    int rc = read_small_file(path, text, sizeof(text));
    if (rc != 0) {
        return rc == -ENOENT ? -ESRCH : rc;
    }
    rc = parse_start_ticks(text, &id.start_ticks);
    if (rc != 0) {
        return rc;
    }
    rc = read_small_file("/proc/sys/kernel/random/boot_id", text, sizeof(text));
    if (rc != 0) {
        return rc;
    }
    text[strcspn(text, "\n")] = '\0';
    snprintf(id.boot_id, sizeof(id.boot_id), "%.36s", text);
    *ret_id = id;
    return 0;
}

int kvf_pidfd_open(int pid, int *ret_fd)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0) {
        return -errno;
    }
    *ret_fd = fd;
    return 0;
}

int kvf_pidfd_of_peer(int socket_fd, int *ret_fd)
{
    int fd = -1;
    socklen_t bytes = sizeof(fd);
    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) == 0 && fd >= 0) {
        *ret_fd = fd;
        return 0;
    }
    struct ucred peer;
    bytes = sizeof(peer);
    if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
        return -errno;
    }
    if (peer.pid <= 0) {
        return -ESRCH; /* it lives in a pid namespace that we cannot see */
    }
    return kvf_pidfd_open(peer.pid, ret_fd);
}

int kvf_pidfd_wait(int pidfd, int timeout_ms)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    int n;
    do {
        n = poll(&p, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

int kvf_pidfd_kill(int pidfd)
{
    return syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) == 0 ? 0 : -errno;
}

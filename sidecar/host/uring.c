#include "sidecar/host/uring.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALLS_MAX 4096u
/* A kernel short of memory says so now and then; one that says it this often in a row means it. */
#define ERRORS_MAX 64u

struct kvf_uring {
    struct io_uring ring;
    uint32_t calls_max;
    uint32_t queued; /* calls of this batch */
    uint64_t enters;
    unsigned char probe_byte;
};

/* ---- the batch ------------------------------------------------------------------------------------- */

static struct io_uring_sqe *next_entry(struct kvf_uring *u)
{
    assert(u->queued < u->calls_max);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    assert(sqe !=
           NULL); /* the ring has calls_max entries, and run leaves none of them in use */
    return sqe;
}

void kvf_uring_send(struct kvf_uring *u, int fd, struct msghdr *msg)
{
    struct io_uring_sqe *sqe = next_entry(u);
    io_uring_prep_sendmsg(sqe, fd, msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    io_uring_sqe_set_data64(sqe, u->queued++);
}

void kvf_uring_receive(struct kvf_uring *u, int fd, struct msghdr *msg)
{
    struct io_uring_sqe *sqe = next_entry(u);
    io_uring_prep_recvmsg(sqe, fd, msg, MSG_DONTWAIT);
    io_uring_sqe_set_data64(sqe, u->queued++);
}

/* Takes the results that are there; returns how many. */
static uint32_t reap(struct kvf_uring *u, int32_t *results)
{
    struct io_uring_cqe *cqe;
    unsigned head;
    uint32_t count = 0;
    io_uring_for_each_cqe(&u->ring, head, cqe)
    {
        uint64_t number = io_uring_cqe_get_data64(cqe);
        assert(number < u->queued);
        assert(results[number] == KVF_URING_NOT_MADE);
        results[number] = cqe->res;
        count++;
    }
    io_uring_cq_advance(&u->ring, count);
    return count;
}

int kvf_uring_run(struct kvf_uring *u, int32_t *ret_results)
{
    uint32_t reaped = 0;
    uint32_t errors = 0;
    int err = 0;
    for (uint32_t i = 0; i < u->queued; i++) {
        ret_results[i] = KVF_URING_NOT_MADE;
    }
    while (reaped < u->queued) {
        int rc = io_uring_submit_and_wait(&u->ring, u->queued - reaped);
        u->enters++;
        uint32_t got = reap(u, ret_results);
        reaped += got;
        errors = rc < 0 && got == 0 ? errors + 1u : 0;
        err = rc < 0 && rc != -EINTR ? rc : err;
        /* Given up only while the kernel has nothing of ours: a call that it took may still write to a
         * page, and no error of another call says that it does not. Should that ever last, the loop
         * stands still here, and the supervisor ends this process: that is proof. */
        uint32_t taken = u->queued - io_uring_sq_ready(&u->ring);
        if (errors > ERRORS_MAX && err != 0 && reaped == taken) {
            return err;
        }
    }
    u->queued = 0;
    return 0;
}

uint64_t kvf_uring_enters(const struct kvf_uring *u)
{
    return u->enters;
}

/* ---- create ---------------------------------------------------------------------------------------- */

/* The best a kernel can do for one thread that waits for each batch; older ones know fewer of the flags. */
static int make_ring(struct kvf_uring *u)
{
    static const unsigned flags[] = {
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN,
        0,
    };
    int rc = -EINVAL;
    for (size_t i = 0; rc == -EINVAL && i < sizeof(flags) / sizeof(flags[0]); i++) {
        struct io_uring_params params = {.flags = flags[i]};
        rc = io_uring_queue_init_params(u->calls_max, &u->ring, &params);
    }
    return rc;
}

/* What everything here rests on: a receive that finds nothing is answered at once, and not kept. */
static int check_nothing_is_kept(struct kvf_uring *u, int fd, int other_fd)
{
    struct iovec iov = {.iov_base = &u->probe_byte, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    struct io_uring_cqe *cqe = NULL;
    kvf_uring_receive(u, fd, &msg);
    u->queued = 0;
    int rc = io_uring_submit(&u->ring);
    if (rc != 1) {
        return rc < 0 ? rc : -EOPNOTSUPP; /* not taken: gone with the ring */
    }
    bool is_kept = io_uring_peek_cqe(&u->ring, &cqe) != 0;
    if (is_kept) {
        /* Only its own answer says that it will not write to probe_byte any more. */
        (void)shutdown(other_fd, SHUT_RDWR);
        do {
            rc = io_uring_wait_cqe(&u->ring, &cqe);
        } while (rc == -EINTR);
        if (rc != 0) {
            return rc;
        }
    }
    int answer = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    if (is_kept) {
        return -EOPNOTSUPP;
    }
    return answer == -EAGAIN ? 0 : answer < 0 ? answer : -EOPNOTSUPP;
}

static int check_a_byte_arrives(struct kvf_uring *u, int fd, int other_fd)
{
    unsigned char sent = 0x6b;
    struct iovec iovs[] = {{.iov_base = &sent, .iov_len = 1},
                           {.iov_base = &u->probe_byte, .iov_len = 1}};
    struct msghdr msgs[] = {{.msg_iov = &iovs[0], .msg_iovlen = 1},
                            {.msg_iov = &iovs[1], .msg_iovlen = 1}};
    for (int i = 0; i < 2; i++) {
        int32_t result = 0;
        if (i == 0) {
            kvf_uring_send(u, other_fd, &msgs[i]);
        } else {
            kvf_uring_receive(u, fd, &msgs[i]);
        }
        int rc = kvf_uring_run(u, &result);
        if (rc != 0 || result != 1) {
            return rc != 0 ? rc : result < 0 ? result : -EOPNOTSUPP;
        }
    }
    return u->probe_byte == sent ? 0 : -EOPNOTSUPP;
}

static int check_calls(struct kvf_uring *u)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
        return -errno;
    }
    int rc = check_nothing_is_kept(u, fds[0], fds[1]);
    if (rc == 0) {
        rc = check_a_byte_arrives(u, fds[0], fds[1]);
    }
    close(fds[0]);
    close(fds[1]);
    return rc;
}

int kvf_uring_create(uint32_t calls_max, struct kvf_uring **ret_uring)
{
    if (calls_max == 0 || calls_max > CALLS_MAX) {
        return -ERANGE;
    }
    struct kvf_uring *u = calloc(1, sizeof(*u));
    if (u == NULL) {
        return -ENOMEM;
    }
    u->calls_max = calls_max;
    int rc = make_ring(u);
    if (rc != 0) {
        free(u);
        return rc;
    }
    rc = check_calls(u);
    if (rc != 0) {
        kvf_uring_close(u);
        return rc;
    }
    u->enters = 0;
    *ret_uring = u;
    return 0;
}

void kvf_uring_close(struct kvf_uring *u)
{
    io_uring_queue_exit(&u->ring);
    free(u);
}

/* ---- refusals --------------------------------------------------------------------------------------- */

static int sysctl_disabled(void)
{
    FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
    int value = 0;
    if (file == NULL) {
        return 0; /* a kernel before it had the switch */
    }
    if (fscanf(file, "%d", &value) != 1) {
        value = 0;
    }
    fclose(file);
    return value;
}

const char *kvf_uring_refusal(int err, char *ret_text, size_t cap)
{
    int disabled = err == -EPERM || err == -EACCES ? sysctl_disabled() : 0;
    const char *cause = "this kernel's io_uring does not work as needed";
    if (disabled != 0) {
        snprintf(ret_text, cap, "the host forbids io_uring (kernel.io_uring_disabled is %d)",
                 disabled);
        return ret_text;
    }
    switch (-err) {
    case EPERM:
    case EACCES:
        cause = "a filter forbids io_uring, as containers' usual profile of system calls does";
        break;
    case ENOSYS:
        cause = "this kernel has no io_uring, or a container's filter says so";
        break;
    case ENOMEM:
        cause = "no memory for its ring; older kernels count it against ulimit -l";
        break;
    case EMFILE:
    case ENFILE:
        cause = "no descriptor is left for its ring";
        break;
    case EINVAL:
    case EOPNOTSUPP:
        cause = "this kernel's io_uring lacks what is needed";
        break;
    default:
        break;
    }
    snprintf(ret_text, cap, "%s (%s)", cause, strerror(-err));
    return ret_text;
}

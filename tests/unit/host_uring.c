/* io_uring as a batch of calls that do not block: each is answered once, and none is kept. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sidecar/host/uring.h"

#define CALLS 8u

static struct kvf_uring *uring;
static int pair[2];

/* A refusal of kvf_uring_create is no reason to skip: it may be the wrapper's own mistake. */
static void setup(void)
{
    struct io_uring_params params = {0};
    long fd = syscall(SYS_io_uring_setup, 1, &params);
    if (fd < 0) {
        cr_skip_test("this host has no io_uring for us: %s", strerror(errno));
    }
    close((int)fd);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    cr_assert_eq(kvf_uring_create(CALLS, &uring), 0);
}

static void teardown(void)
{
    if (uring != NULL) {
        kvf_uring_close(uring);
        close(pair[0]);
        close(pair[1]);
    }
}
TestSuite(host_uring, .init = setup, .fini = teardown);

struct call {
    struct iovec iov;
    struct msghdr msg;
};

static struct msghdr *call_of(struct call *call, void *base, size_t bytes)
{
    call->iov = (struct iovec){.iov_base = base, .iov_len = bytes};
    call->msg = (struct msghdr){.msg_iov = &call->iov, .msg_iovlen = 1};
    return &call->msg;
}

/* What REVOKED and a fence rest on: an answered receive writes nothing afterwards, whatever arrives. */
Test(host_uring, a_receive_that_found_nothing_is_answered_and_never_writes)
{
    unsigned char buffer[64];
    struct call call;
    int32_t result;
    for (int i = 0; i < 50; i++) {
        memset(buffer, 0xc5, sizeof(buffer));
        kvf_uring_receive(uring, pair[0], call_of(&call, buffer, sizeof(buffer)));
        cr_assert_eq(kvf_uring_run(uring, &result), 0);
        cr_assert_eq(result, -EAGAIN);
        cr_assert_eq(send(pair[1], "late", 4, 0), 4);
        usleep(1000);
        /* Other batches of this ring must not finish it either. */
        struct call other;
        unsigned char byte = 1;
        kvf_uring_send(uring, pair[0], call_of(&other, &byte, 1));
        cr_assert_eq(kvf_uring_run(uring, &result), 0);
        for (size_t k = 0; k < sizeof(buffer); k++) {
            cr_assert_eq(buffer[k], 0xc5);
        }
        char taken[8];
        cr_assert_eq(recv(pair[0], taken, sizeof(taken), MSG_DONTWAIT), 4);
        cr_assert_eq(recv(pair[1], taken, sizeof(taken), MSG_DONTWAIT), 1);
    }
}

Test(host_uring, k3_a_full_socket_takes_part_of_a_send_and_then_nothing)
{
    static unsigned char bytes[4u << 20];
    struct call call;
    int32_t result;
    uint64_t taken = 0;
    uint32_t runs = 0;
    do {
        kvf_uring_send(uring, pair[0], call_of(&call, bytes, sizeof(bytes)));
        cr_assert_eq(kvf_uring_run(uring, &result), 0);
        taken += result > 0 ? (uint64_t)result : 0;
        runs++;
    } while (result > 0 && runs < 100);
    cr_assert_eq(result, -EAGAIN);
    cr_assert_gt(taken, 0);
    cr_assert_lt(taken, sizeof(bytes));
    cr_assert_eq(kvf_uring_enters(uring), runs);
}

/* One bad call among good ones is its own affair. */
Test(host_uring, a_call_that_fails_stops_no_other_of_its_batch)
{
    struct call calls[CALLS];
    int32_t results[CALLS];
    unsigned char out = 7;
    unsigned char in = 0;
    kvf_uring_send(uring, pair[1], call_of(&calls[0], &out, 1));
    kvf_uring_send(uring, -1, call_of(&calls[1], &out, 1));
    kvf_uring_send(uring, STDIN_FILENO, call_of(&calls[2], &out, 1));
    kvf_uring_receive(uring, pair[0], call_of(&calls[3], (void *)16, 1));
    kvf_uring_receive(uring, pair[0], call_of(&calls[4], &in, 1));
    cr_assert_eq(kvf_uring_run(uring, results), 0);
    cr_assert_eq(results[0], 1);
    cr_assert_eq(results[1], -EBADF);
    cr_assert_lt(results[2], 0);
    cr_assert_eq(results[3], -EFAULT);
    cr_assert_eq(results[4], 1);
    cr_assert_eq(in, 7);
    /* An end of the other side is an error of the call and no signal. */
    close(pair[1]);
    kvf_uring_send(uring, pair[0], call_of(&calls[0], &out, 1));
    cr_assert_eq(kvf_uring_run(uring, results), 0);
    cr_assert_eq(results[0], -EPIPE);
    pair[1] = -1;
}

/* Full batches, far more answers in all than the completion queue holds. */
Test(host_uring, k6_every_call_of_many_full_batches_is_answered)
{
    struct call calls[CALLS];
    int32_t results[CALLS];
    unsigned char out[CALLS / 2];
    unsigned char in[CALLS / 2];
    for (uint32_t round = 0; round < 10000; round++) {
        for (uint32_t i = 0; i < CALLS; i++) {
            if (i % 2 == 0) {
                out[i / 2] = (unsigned char)(round + i);
                kvf_uring_send(uring, pair[1], call_of(&calls[i], &out[i / 2], 1));
            } else {
                in[i / 2] = 0;
                kvf_uring_receive(uring, pair[0], call_of(&calls[i], &in[i / 2], 1));
            }
        }
        cr_assert_eq(kvf_uring_run(uring, results), 0);
        for (uint32_t i = 0; i < CALLS; i++) {
            cr_assert_eq(results[i], 1, "call %u of round %u: %d", i, round, results[i]);
            cr_assert_eq(in[i / 2], out[i / 2]);
        }
    }
    cr_assert_eq(kvf_uring_enters(uring), 10000, "one system call a batch");
}

/* One buffer for all: it is the caller's again as soon as the batch was made. */
Test(host_uring, k8_memory_of_a_call_is_free_again_when_the_batch_was_made)
{
    struct call call;
    int32_t result;
    uint32_t message;
    for (uint32_t i = 0; i < 1000; i++) {
        message = i;
        kvf_uring_send(uring, pair[0], call_of(&call, &message, sizeof(message)));
        cr_assert_eq(kvf_uring_run(uring, &result), 0);
        cr_assert_eq(result, (int32_t)sizeof(message));
        message = UINT32_MAX;
        if (i % 10 == 9) {
            for (uint32_t k = i - 9; k <= i; k++) {
                uint32_t got;
                cr_assert_eq(recv(pair[1], &got, sizeof(got), 0), (ssize_t)sizeof(got));
                cr_assert_eq(got, k);
            }
        }
    }
}

Test(host_uring, its_descriptor_is_closed_on_exec_and_gone_after_close)
{
    char target[64];
    char path[64];
    uint32_t rings = 0;
    for (int pass = 0; pass < 2; pass++) {
        rings = 0;
        for (int fd = 0; fd < 256; fd++) {
            snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
            ssize_t n = readlink(path, target, sizeof(target) - 1u);
            target[n > 0 ? n : 0] = '\0';
            if (n > 0 && strstr(target, "io_uring") != NULL) {
                rings++;
                cr_assert((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
            }
        }
        cr_assert_eq(rings, pass == 0 ? 1 : 0);
        if (pass == 0) {
            kvf_uring_close(uring);
            uring = NULL;
        }
    }
}

Test(host_uring, a_ring_of_no_call_or_too_many_is_refused)
{
    struct kvf_uring *other = NULL;
    cr_assert_eq(kvf_uring_create(0, &other), -ERANGE);
    cr_assert_eq(kvf_uring_create(4097, &other), -ERANGE);
    cr_assert_null(other);
    cr_assert_eq(kvf_uring_create(1, &other), 0);
    kvf_uring_close(other);
    cr_assert_eq(kvf_uring_create(4096, &other), 0);
    kvf_uring_close(other);
}

Test(host_uring, each_refusal_says_its_probable_cause)
{
    static const struct {
        int err;
        const char *words;
    } cases[] = {
        {EPERM, "(Operation not permitted)"},
        {EACCES, "(Permission denied)"},
        {ENOSYS, "has no io_uring"},
        {ENOMEM, "ulimit -l"},
        {EMFILE, "descriptor"},
        {EINVAL, "lacks what is needed"},
        {EOPNOTSUPP, "lacks"},
        {EIO, "does not work as needed"},
    };
    char text[200];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kvf_uring_refusal(-cases[i].err, text, sizeof(text));
        bool is_sysctl = strstr(text, "kernel.io_uring_disabled") != NULL;
        cr_assert(is_sysctl || strstr(text, cases[i].words) != NULL, "%s", text);
    }
}

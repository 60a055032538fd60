/* io_uring as one thing only: a batch of calls that do not block, made by one system call.
 *
 * Every call carries MSG_DONTWAIT, so the kernel makes it while it is submitted and never keeps it: it is
 * not armed, not handed to another thread, and its memory is not registered. kvf_uring_run returns when
 * each call has its result. So nothing of a ring is ever under way outside that call, a page is touched
 * by nothing after it, and the end of the process ends whatever was in it. kvf_uring_create tries this
 * out on the running kernel and refuses one that behaves otherwise.
 *
 * One thread: the one that created the ring. The descriptor is close-on-exec. */
#ifndef KVF_HOST_URING_H
#define KVF_HOST_URING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct kvf_uring;

/* What kvf_uring_run leaves for a call that was not made. No errno of a socket call. */
#define KVF_URING_NOT_MADE INT32_MIN

/* A ring for up to calls_max calls at a time (at most 4096). Allocates; nothing later does. 0, or -errno:
 * -EPERM, -EACCES (a filter or kernel.io_uring_disabled), -ENOSYS (no io_uring), -ENOMEM (limit of locked
 * memory), -EMFILE, -ENFILE, -EINVAL or -EOPNOTSUPP (this kernel lacks the calls, or keeps those that
 * would block), -ERANGE (calls_max). kvf_uring_refusal has a sentence for each. */
int kvf_uring_create(uint32_t calls_max, struct kvf_uring **ret_uring);

/* Adds a call to the batch. msg and all it names stay untouched until kvf_uring_run. Sends carry
 * MSG_NOSIGNAL. No more than calls_max until the next run. */
void kvf_uring_send(struct kvf_uring *u, int fd, struct msghdr *msg);
void kvf_uring_receive(struct kvf_uring *u, int fd, struct msghdr *msg);

/* Makes the whole batch. ret_results[i], of the i-th call added: bytes, a negative errno, or
 * KVF_URING_NOT_MADE. 0; or -errno of a kernel that takes no more calls: those marked NOT_MADE never
 * happened and never will, and the ring must be closed. */
int kvf_uring_run(struct kvf_uring *u, int32_t *ret_results);

/* System calls made by kvf_uring_run so far. */
uint64_t kvf_uring_enters(const struct kvf_uring *u);

/* Not within a batch. */
void kvf_uring_close(struct kvf_uring *u);

/* Why kvf_uring_create answered err (negative), as the end of a sentence: the probable cause and what an
 * operator can change. Reads kernel.io_uring_disabled. Returns ret_text. */
const char *kvf_uring_refusal(int err, char *ret_text, size_t cap);

#endif

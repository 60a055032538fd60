/* How the calls of a round are made: one by one, or all by one system call.
 *
 * A turn of the transport hands over a batch of receives and sends, at most one of each stream, and gets
 * their results. No call waits for anything, and when run returns none is under way: what a callback does
 * afterwards (a fence, a room that closes) meets no call in a page, whichever engine it is. An engine
 * knows sockets and memory; lanes, frames and hosts it does not. One thread. */
#ifndef KVF_TRANSPORT_TCP_ENGINE_H
#define KVF_TRANSPORT_TCP_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct kvf_tcp_call {
    int fd;
    bool is_send;
    struct msghdr msg;
    int64_t result; /* bytes, or -errno; never -EINTR */
};

struct kvf_tcp_engine;
struct kvf_tcp_engine_ops {
    /* Makes these calls; count is at most batch_max. */
    void (*run)(struct kvf_tcp_engine *engine, struct kvf_tcp_call *const *calls,
                uint32_t count);
    void (*close)(struct kvf_tcp_engine *engine);
};

/* The head of each engine's own struct. */
struct kvf_tcp_engine {
    const struct kvf_tcp_engine_ops *ops;
    const char *name;
    uint32_t batch_max; /* fixed at create */
    uint64_t calls;     /* made so far ... */
    uint64_t enters;    /* ... and how many system calls that were */
};

/* Plain calls, one after another: a batch of one is as good as any. 0 or -ENOMEM. */
int kvf_tcp_sockets_create(struct kvf_tcp_engine **ret_engine);
/* io_uring, where the host allows it: 0, or what kvf_uring_create answered. Must be created by the thread
 * that runs it. is_one_plain: a batch of one call is made plainly, which is cheaper. Should the kernel take
 * no more calls later on, it makes them plainly and is called so. */
int kvf_tcp_uring_create(bool is_one_plain, struct kvf_tcp_engine **ret_engine);

/* One call, plainly. */
void kvf_tcp_call_plainly(struct kvf_tcp_call *call);

#endif

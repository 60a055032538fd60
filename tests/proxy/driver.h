/* Starts a kvfence-proxy as a child and talks to it. It ends with whoever holds its standard input, so
 * nothing is left behind whatever happens. */
#ifndef KVF_TESTS_PROXY_DRIVER_H
#define KVF_TESTS_PROXY_DRIVER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct kvf_proxy {
    pid_t pid; /* 0: none */
    int fd;    /* owned: commands to it, answers from it */
    char listen[64];
};

/* path: the program. listen, to: ADDR:PORT. rules: NULL for none. 0 or -errno (-EPROTO: it said no ready
 * line within 10 s). */
int kvf_proxy_start(struct kvf_proxy *proxy, const char *path, const char *listen,
                    const char *to, const char *rules, uint64_t seed);
/* One command; its answer without "ok " goes to ret_answer (may be NULL). 0, -EINVAL (it refused; the answer
 * says why), -EPIPE (it is gone), -ETIMEDOUT. */
int kvf_proxy_tell(struct kvf_proxy *proxy, const char *command, char *ret_answer, size_t cap);
/* A number of its counts by name, "refused_back". 0 if there is none. */
uint64_t kvf_proxy_count(struct kvf_proxy *proxy, const char *name);
void kvf_proxy_stop(struct kvf_proxy *proxy);

#endif

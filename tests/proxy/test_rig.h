/* A server, a proxy in front of it, and clients: what the proxy's tests need. */
#ifndef KVF_TESTS_PROXY_TEST_RIG_H
#define KVF_TESTS_PROXY_TEST_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/proxy/driver.h"

struct rig {
    struct kvf_proxy proxy;
    int listen_fd;
    char server[64];
};

enum first_frame { FIRST_NOTHING = 0, FIRST_HELLO, FIRST_LANE };

/* One connection through the proxy: our end and the server's. */
struct pair {
    int client;
    int server;
};

void rig_start(struct rig *rig, const char *rules, uint64_t seed);
void rig_stop(struct rig *rig);
/* Connects; says a first frame of that kind (FIRST_LANE: of lane `lane`), which the server's end has read when
 * this returns. */
struct pair rig_connect(struct rig *rig, enum first_frame first, uint32_t lane);
/* Connects and no more. The descriptor, or -errno. */
int rig_knock(const struct rig *rig);
int rig_accept(struct rig *rig);
void rig_tell(struct rig *rig, const char *command);
void pair_close(struct pair *pair);

uint64_t rig_now_ms(void);
/* Reads exactly so many bytes, at most limit_ms; how many came. */
size_t rig_read(int fd, unsigned char *out, size_t bytes, uint32_t limit_ms);
void rig_write(int fd, const unsigned char *bytes, size_t count);
/* How the stream ended within limit_ms: 0 by a close, -ECONNRESET, or -EAGAIN: it goes on. Data before it is
 * thrown away. */
int rig_end_of(int fd, uint32_t limit_ms);
void rig_fill(unsigned char *bytes, size_t count, uint64_t seed);

#endif

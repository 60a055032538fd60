/* A client that speaks to the daemon by hand: over the socket of ring/attach.h and the segment of
 * ring/layout.h, without the library that would refuse most of what it does. */
#ifndef KVF_TESTS_DAEMON_HOSTILE_H
#define KVF_TESTS_DAEMON_HOSTILE_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/attach.h"
#include "ring/segment.h"
#include "ring/spsc.h"
#include "tests/daemon/engine.h"

struct hostile {
    int socket_fd;
    int doorbell_fd;
    int other_fds[8];
    int other_count;
    uint64_t epoch;
    uint32_t serial;
    struct kvf_segment segment;
    struct kvf_spsc_producer commands;
    kvf_pool *pool;
    uint32_t region;
    struct geometry geometry;
};

/* Attaches and registers a region of this geometry. */
struct hostile *hostile_start(const struct daemon *d, const struct geometry *g);
/* One request and its reply; descriptors of the reply are closed but for the wanted ones. Returns the
 * reply's op, -1 when the daemon hung up. */
int hostile_request(struct hostile *h, void *packet, uint32_t bytes, int fd,
                    struct kvf_attach_rep *ret_rep);
/* A command as it stands, and the bell. False when the ring is full. */
bool hostile_push(struct hostile *h, const struct kvf_cmd_shm *cmd);
/* A well-formed OPEN_SINK of a slot and generation on [first, first + count) of `region`. */
void hostile_open_sink(struct hostile *h, uint32_t slot, uint64_t generation, uint64_t key,
                       uint32_t region, uint32_t first, uint32_t count, const char *writer);
void hostile_bell(struct hostile *h);
uint64_t hostile_word(const struct hostile *h, uint32_t slot);
/* Waits until the slot's word says drained at this generation. Returns its reason. */
uint32_t hostile_wait_drained(struct hostile *h, uint32_t slot, uint64_t generation,
                              uint32_t limit_ms);
/* Whether the daemon has hung up; waits for it. */
bool hostile_is_dropped(struct hostile *h, uint32_t limit_ms);
/* Closes everything of it: the daemon sees a client that went away. */
void hostile_end(struct hostile *h);

#endif

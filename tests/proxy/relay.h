/* A proxy between two daemons: takes connections, makes one of its own for each, and forwards both ways,
 * except where its rules say otherwise. One thread, one epoll. */
#ifndef KVF_TESTS_PROXY_RELAY_H
#define KVF_TESTS_PROXY_RELAY_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/proxy/rule.h"

struct kvf_relay;

struct kvf_relay_address {
    struct sockaddr_storage address;
    socklen_t bytes;
};

/* "127.0.0.1:7000", "[::1]:7000". 0 or -EINVAL. */
int kvf_relay_address_parse(const char *text, struct kvf_relay_address *ret_address);
void kvf_relay_address_text(const struct kvf_relay_address *address, char *ret_text,
                            size_t cap);

struct kvf_relay_counts {
    uint32_t open; /* connections now */
    uint32_t control;
    uint32_t lanes;
    uint64_t accepted;
    uint64_t bytes[2];   /* handed on, per direction */
    uint64_t refused[2]; /* came for an end that was gone */
    uint64_t held[2];    /* wait in the proxy now */
    uint64_t struck;     /* resets, drops and flipped bits */
    uint64_t flipped;    /* of them */
};

/* Listens (port 0: any free one). 0 or -errno. */
int kvf_relay_create(const struct kvf_relay_address *listen, const struct kvf_relay_address *to,
                     uint64_t seed, struct kvf_relay **ret_relay);
/* Where it listens. */
void kvf_relay_listens_at(const struct kvf_relay *relay, char *ret_text, size_t cap);
/* Waits for one more descriptor too; kvf_relay_turn says when it can be read. */
int kvf_relay_watch(struct kvf_relay *relay, int fd);
/* One turn: sleeps until something is due, then does it. *ret_readable: the watched descriptor. */
int kvf_relay_turn(struct kvf_relay *relay, bool *ret_readable);
/* More rules, counted from now. 0 or -ENOSPC. */
int kvf_relay_add(struct kvf_relay *relay, const struct kvf_rule *rules, uint32_t count);
/* No rules any more: what was held back goes on. */
void kvf_relay_clear(struct kvf_relay *relay);
/* New connections go there. */
void kvf_relay_aim(struct kvf_relay *relay, const struct kvf_relay_address *to);
void kvf_relay_count(const struct kvf_relay *relay, struct kvf_relay_counts *ret_counts);
void kvf_relay_destroy(struct kvf_relay *relay);

#endif

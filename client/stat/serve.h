/* The numbers over HTTP: GET /metrics, /json, /health, and / which names them. */
#ifndef KVF_STAT_SERVE_H
#define KVF_STAT_SERVE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

/* At most so many connections at a time; one that neither sends nor takes anything for so long is closed. */
#define KVF_SERVE_CONNECTIONS_MAX 64u
#define KVF_SERVE_IDLE_S 10u

struct kvf_serve_config {
    struct sockaddr_storage addr;
    const char *run_dir;
    char *const *names; /* none: all daemons */
    uint32_t name_count;
};

/* "PORT" (on 127.0.0.1), "ADDR:PORT" or "[ADDR]:PORT", numeric. 0 or -EINVAL. */
int kvf_serve_parse(const char *text, struct sockaddr_storage *ret_addr);
/* False: this build is without it. */
bool kvf_serve_is_built(void);
/* Serves until SIGINT or SIGTERM; says on `err` where. 0, or a negative errno after a sentence on `err`. Blocks
 * these signals, and ignores SIGPIPE: for a program's main, before it has threads. */
int kvf_serve(const struct kvf_serve_config *config, FILE *err);

#endif

/* The command line, read and checked: what leaves here is a request that makes sense. */
#ifndef KVF_CTL_OPTIONS_H
#define KVF_CTL_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ring/operate.h"

#define KVF_CTL_PATH_BYTES 108u /* of a Unix socket, with its end */

struct kvf_ctl_options {
    char socket_path[KVF_CTL_PATH_BYTES];
    const char *name; /* the daemon's */
    bool is_json;
    bool is_waiting;    /* drain --wait */
    uint32_t timeout_s; /* 0: none */
    char peer[64];      /* as it was named, for what is printed */
    struct kvf_operate_req req;
};

/* 0 go on, 1 all said (--help, --version), -1 wrong, and said why. */
int kvf_ctl_parse(int argc, char **argv, FILE *out, FILE *err,
                  struct kvf_ctl_options *ret_options);

/* The word of a log level; NULL behind the last. */
const char *kvf_ctl_level_name(uint32_t level);

#endif

/* The command line of kvfence-stat. */
#ifndef KVF_STAT_OPTIONS_H
#define KVF_STAT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/stat/collect.h"
#include "client/stat/serve.h"

enum kvf_stat_mode {
    KVF_MODE_TABLE,
    KVF_MODE_JSON,
    KVF_MODE_PROMETHEUS,
    KVF_MODE_HEALTH,
    KVF_MODE_WATCH,
    KVF_MODE_LISTEN,
    KVF_MODE_METRICS, /* the table of all metrics */
};

struct kvf_stat_options {
    const char *run_dir;
    char dir_buf[KVF_STAT_PATH_BYTES]; /* run_dir may point here */
    enum kvf_stat_mode mode;
    bool is_live_only; /* --health=live */
    uint64_t interval_ns;
    struct sockaddr_storage listen;
    char *const *names; /* in argv; none: all */
    uint32_t name_count;
};

/* 0 go on; 1 all is said (--help, --version); -1 wrong, and `err` has a sentence. Permutes argv. */
int kvf_stat_options_parse(struct kvf_stat_options *ret_options, int argc, char **argv,
                           FILE *out, FILE *err);

#endif

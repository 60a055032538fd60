/* The machine's view. Its shape is a contract: members are added, never renamed or removed. */
#ifndef KVF_STAT_JSON_H
#define KVF_STAT_JSON_H

#include <stdint.h>
#include <stdio.h>

#include "client/stat/snapshot.h"

struct kvf_stat_problem {
    int code; /* negative errno of kvf_stat_read; -ENOENT also if there is no daemon at all */
    char name[256];
    char why[KVF_STAT_WHY_BYTES];
};

/* One object: {"schema": 1, "daemons": [...], "errors": [...]}. client/stat/README.md has its members. */
void kvf_stat_print_json(FILE *out, struct kvf_stat_daemon *const *daemons,
                         uint32_t daemon_count, const struct kvf_stat_problem *problems,
                         uint32_t problem_count);

/* A JSON string with its quotes. Bytes outside printable ASCII become \u00XX, so that the output is valid
 * JSON whatever the bytes are. */
void kvf_json_string(FILE *out, const char *text);

#endif

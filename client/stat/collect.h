/* Which daemons there are, and what their files say: the run directory, and one look at all of it. */
#ifndef KVF_STAT_COLLECT_H
#define KVF_STAT_COLLECT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/stat/json.h"
#include "client/stat/snapshot.h"

#define KVF_STAT_DAEMONS_MAX 256u
#define KVF_STAT_NAME_BYTES 32u /* with its end: what kvfenced --name takes */
#define KVF_STAT_PATH_BYTES 512u

struct kvf_stat_look {
    uint32_t daemon_count;
    uint32_t problem_count;
    struct kvf_stat_daemon *daemons[KVF_STAT_DAEMONS_MAX]; /* owned, in order of their names */
    struct kvf_stat_problem problems[KVF_STAT_DAEMONS_MAX];
};

/* The same default as kvfenced's and the library's. NULL if there is none. */
const char *kvf_stat_default_run_dir(char *buf, size_t bytes);
bool kvf_stat_is_name(const char *name);
/* Names of the *.stats files of a run directory, sorted. Returns how many, or a negative errno. */
int kvf_stat_list(const char *run_dir, char ret_names[][KVF_STAT_NAME_BYTES], uint32_t cap);
/* Reads one daemon's file by its name, as kvf_stat_read. */
int kvf_stat_read_name(const char *run_dir, const char *name,
                       struct kvf_stat_daemon **ret_daemon, char *ret_why);

/* Looks at these daemons, or at all if there are no names. What cannot be read is a problem with a sentence; so
 * is a directory without daemons. The caller frees it. NULL: no memory. */
struct kvf_stat_look *kvf_stat_look_at(const char *run_dir, char *const *names,
                                       uint32_t name_count);
void kvf_stat_look_free(struct kvf_stat_look *look);

#endif

#include "client/stat/collect.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char suffix[] = ".stats";

const char *kvf_stat_default_run_dir(char *buf, size_t bytes)
{
    const char *set = getenv("KVFENCE_RUN_DIR");
    const char *user = getenv("XDG_RUNTIME_DIR");

    if (set != NULL && set[0] != '\0') {
        return set;
    }
    if (geteuid() == 0) {
        return "/run/kvfence";
    }
    if (user == NULL || user[0] == '\0') {
        return NULL;
    }
    int n = snprintf(buf, bytes, "%s/kvfence", user);
    return n > 0 && (size_t)n < bytes ? buf : NULL;
}

bool kvf_stat_is_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < KVF_STAT_NAME_BYTES && strchr(name, '/') == NULL && name[0] != '.';
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

int kvf_stat_list(const char *run_dir, char ret_names[][KVF_STAT_NAME_BYTES], uint32_t cap)
{
    uint32_t count = 0;
    struct dirent *entry;
    DIR *dir = opendir(run_dir);

    if (dir == NULL) {
        return -errno;
    }
    while ((entry = readdir(dir)) != NULL && count < cap) {
        size_t n = strlen(entry->d_name);
        if (n <= sizeof suffix - 1u ||
            strcmp(entry->d_name + n - (sizeof suffix - 1u), suffix) != 0) {
            continue;
        }
        entry->d_name[n - (sizeof suffix - 1u)] = '\0';
        if (kvf_stat_is_name(entry->d_name)) {
            (void)snprintf(ret_names[count++], KVF_STAT_NAME_BYTES, "%.31s", entry->d_name);
        }
    }
    (void)closedir(dir);
    qsort(ret_names, count, KVF_STAT_NAME_BYTES, compare_names);
    return (int)count;
}

int kvf_stat_read_name(const char *run_dir, const char *name,
                       struct kvf_stat_daemon **ret_daemon, char *ret_why)
{
    char path[KVF_STAT_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s%s", run_dir, name, suffix);

    if (n < 0 || (size_t)n >= sizeof path) {
        (void)snprintf(ret_why, KVF_STAT_WHY_BYTES,
                       "the run directory's path is longer than 400 bytes");
        return -ENAMETOOLONG;
    }
    return kvf_stat_read(path, ret_daemon, ret_why);
}

static void add_problem(struct kvf_stat_look *look, int code, const char *name, const char *why)
{
    if (look->problem_count < KVF_STAT_DAEMONS_MAX) {
        struct kvf_stat_problem *problem = &look->problems[look->problem_count++];
        problem->code = code;
        kvf_stat_printable(name, sizeof problem->name - 1u, problem->name);
        kvf_stat_printable(why, sizeof problem->why - 1u, problem->why);
    }
}

static void read_one(struct kvf_stat_look *look, const char *run_dir, const char *name)
{
    char why[KVF_STAT_WHY_BYTES];
    struct kvf_stat_daemon *daemon = NULL;

    if (look->daemon_count == KVF_STAT_DAEMONS_MAX) {
        add_problem(look, -E2BIG, name, "more than 256 daemons: name those to show");
        return;
    }
    int rc = kvf_stat_read_name(run_dir, name, &daemon, why);
    if (rc != 0) {
        add_problem(look, rc, name, why);
    } else {
        look->daemons[look->daemon_count++] = daemon;
    }
}

static void read_all(struct kvf_stat_look *look, const char *run_dir)
{
    char why[KVF_STAT_WHY_BYTES];
    char names[KVF_STAT_DAEMONS_MAX][KVF_STAT_NAME_BYTES];
    int count = kvf_stat_list(run_dir, names, KVF_STAT_DAEMONS_MAX);

    if (count < 0) {
        (void)snprintf(why, sizeof why, "%.200s: %s; --run-dir says where daemons run", run_dir,
                       strerror(-count));
        add_problem(look, count, run_dir, why);
    } else if (count == 0) {
        (void)snprintf(why, sizeof why, "%.200s: no daemon has run here (no *.stats file)",
                       run_dir);
        add_problem(look, -ENOENT, run_dir, why);
    }
    for (int i = 0; i < count; i++) {
        read_one(look, run_dir, names[i]);
    }
}

static bool is_named_before(char *const *names, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++) {
        if (strcmp(names[k], names[i]) == 0) {
            return true;
        }
    }
    return false;
}

struct kvf_stat_look *kvf_stat_look_at(const char *run_dir, char *const *names,
                                       uint32_t name_count)
{
    struct kvf_stat_look *look = calloc(1, sizeof *look);

    if (look == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < name_count; i++) {
        if (!is_named_before(names, i)) {
            read_one(look, run_dir, names[i]);
        }
    }
    if (name_count == 0) {
        read_all(look, run_dir);
    }
    return look;
}

void kvf_stat_look_free(struct kvf_stat_look *look)
{
    if (look != NULL) {
        for (uint32_t i = 0; i < look->daemon_count; i++) {
            kvf_stat_free(look->daemons[i]);
        }
        free(look);
    }
}

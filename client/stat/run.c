#include "client/stat/run.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/stat/json.h"
#include "client/stat/snapshot.h"
#include "client/stat/table.h"
#include "ring/about/about.h"

#define DAEMONS_MAX 256u
#define NAME_MAX_BYTES 32u /* with its end: what kvfenced --name takes */
#define PATH_BYTES 512u

static const char suffix[] = ".stats";

static const char help_text[] =
    "usage: kvfence-stat [--json] [--run-dir DIR] [NAME...]\n"
    "\n"
    "Shows what kvfenced says of itself. Without a NAME, every daemon of the run directory;\n"
    "those that have stopped then take one line each.\n"
    "It reads DIR/NAME.stats and needs read rights only: it cannot disturb a daemon.\n"
    "\n"
    "  --json         one JSON object with every counter, gauge and histogram by name\n"
    "  --run-dir DIR  where the daemons run. Default: $KVFENCE_RUN_DIR, else /run/kvfence as "
    "root,\n"
    "                 else $XDG_RUNTIME_DIR/kvfence\n"
    "  --version      versions of program, layout and wire, and the build\n"
    "  -h, --help     this text\n"
    "\n"
    "How to read the table:\n"
    "  rooms now      a room is one request's transfer on this worker. open: may move bytes. "
    "closing:\n"
    "                 ended, its proof is awaited. fencing: access is being cut. quarantined: "
    "no proof\n"
    "                 could be had, its pages are withheld.\n"
    "  pages          held: lent to rooms that are not drained. They return by proof, never by "
    "time.\n"
    "  group          drained rooms that another rank of their request keeps from being shown "
    "as\n"
    "                 failed, and which rank that is. No row: no group ever had to say a "
    "word.\n"
    "  proofs         how rooms earned \"nothing can touch these pages any more\".\n"
    "  drained in     from abort or failure to that proof, beside the bound computed from the\n"
    "                 daemon's own deadlines. usual: peer dead or silent. worst: this worker "
    "too.\n"
    "  stale          messages and commands of rooms that are gone. Counted and dropped.\n"
    "  loop           time of one turn of the worker, and its longest time without a CPU.\n"
    "\n"
    "A daemon that did not say that it stopped and has not beaten for 2 s is shown as stale.\n"
    "\n"
    "exit status:  0 shown   2 usage   3 nothing found, or a file could not be read\n"
    "              4 at least one shown daemon is stale\n";

struct stat_run {
    const char *run_dir;
    bool is_json;
    bool is_all; /* nobody was named */
    FILE *out;
    FILE *err;
    uint32_t daemon_count;
    uint32_t problem_count;
    uint32_t stale_count;
    struct kvf_stat_daemon *daemons[DAEMONS_MAX];
    struct kvf_stat_problem problems[DAEMONS_MAX];
};

/* The same default as kvfenced's and the library's. NULL if there is none. */
static const char *default_run_dir(char *buf, size_t bytes)
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

static bool is_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < NAME_MAX_BYTES && strchr(name, '/') == NULL && name[0] != '.';
}

static bool is_named_before(char *const *argv, int i)
{
    for (int k = optind; k < i; k++) {
        if (strcmp(argv[k], argv[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void add_problem(struct stat_run *run, const char *name, const char *why)
{
    if (!run->is_json) {
        fprintf(run->err, "kvfence-stat: %s\n", why);
    }
    if (run->problem_count < DAEMONS_MAX) {
        struct kvf_stat_problem *problem = &run->problems[run->problem_count];
        (void)snprintf(problem->name, sizeof problem->name, "%s", name);
        (void)snprintf(problem->why, sizeof problem->why, "%s", why);
        run->problem_count++;
    }
}

static void read_one(struct stat_run *run, const char *name)
{
    char path[PATH_BYTES];
    char why[KVF_STAT_WHY_BYTES];
    struct kvf_stat_daemon *daemon = NULL;
    int n = snprintf(path, sizeof path, "%s/%s%s", run->run_dir, name, suffix);

    if (n < 0 || (size_t)n >= sizeof path) {
        add_problem(run, name, "the run directory's path is longer than 400 bytes");
    } else if (run->daemon_count == DAEMONS_MAX) {
        add_problem(run, name, "more than 256 daemons: name those to show");
    } else if (kvf_stat_read(path, &daemon, why) != 0) {
        add_problem(run, name, why);
    } else {
        run->daemons[run->daemon_count++] = daemon;
        run->stale_count += daemon->health == KVF_STAT_STALE ? 1u : 0u;
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_all(struct stat_run *run)
{
    char why[KVF_STAT_WHY_BYTES];
    char *names[DAEMONS_MAX];
    uint32_t name_count = 0;
    struct dirent *entry;
    DIR *dir = opendir(run->run_dir);

    if (dir == NULL) {
        (void)snprintf(why, sizeof why, "%.200s: %s", run->run_dir, strerror(errno));
        add_problem(run, run->run_dir, why);
        return;
    }
    while ((entry = readdir(dir)) != NULL && name_count < DAEMONS_MAX) {
        size_t n = strlen(entry->d_name);
        if (n <= sizeof suffix - 1u ||
            strcmp(entry->d_name + n - (sizeof suffix - 1u), suffix) != 0) {
            continue;
        }
        entry->d_name[n - (sizeof suffix - 1u)] = '\0';
        char *name = is_name(entry->d_name) ? strdup(entry->d_name) : NULL;
        if (name != NULL) {
            names[name_count++] = name;
        }
    }
    (void)closedir(dir);
    if (name_count == 0) {
        (void)snprintf(why, sizeof why, "%.200s: no daemon has run here (no *.stats file)",
                       run->run_dir);
        add_problem(run, run->run_dir, why);
        return;
    }
    qsort(names, name_count, sizeof names[0], compare_names);
    for (uint32_t i = 0; i < name_count; i++) {
        read_one(run, names[i]);
        free(names[i]);
    }
}

static void show_table(const struct stat_run *run, uint32_t i)
{
    struct kvf_stat_daemon *daemon = run->daemons[i];
    bool is_line = run->is_all && daemon->health == KVF_STAT_STOPPED;
    bool was_line = i > 0 && run->is_all && run->daemons[i - 1]->health == KVF_STAT_STOPPED;

    fputs(i > 0 && !(is_line && was_line) ? "\n" : "", run->out);
    if (is_line) {
        kvf_stat_print_line(run->out, daemon); /* its last numbers are there for who names it */
    } else {
        kvf_stat_print_table(run->out, daemon);
    }
}

static void show(struct stat_run *run)
{
    if (run->is_json) {
        kvf_stat_print_json(run->out, run->daemons, run->daemon_count, run->problems,
                            run->problem_count);
    }
    for (uint32_t i = 0; i < run->daemon_count; i++) {
        if (!run->is_json) {
            show_table(run, i);
        }
    }
    for (uint32_t i = 0; i < run->daemon_count; i++) {
        kvf_stat_free(run->daemons[i]);
    }
}

/* 0 go on, 1 all said (--help, --version), -1 wrong. */
static int parse(struct stat_run *run, int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},
        {"run-dir", required_argument, NULL, 'd'},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;

    optind = 0; /* a fresh start, also for a second run in one process */
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        switch (option) {
        case 'j':
            run->is_json = true;
            break;
        case 'd':
            run->run_dir = optarg;
            break;
        case 'V':
            kvf_about_print("kvfence-stat", run->out);
            return 1;
        case 'h':
            fputs(help_text, run->out);
            return 1;
        case ':':
            fprintf(run->err, "kvfence-stat: %s needs a value\n", argv[optind - 1]);
            return -1;
        default:
            fprintf(run->err, "kvfence-stat: %s is no option of it; --help lists them\n",
                    argv[optind - 1]);
            return -1;
        }
    }
    for (int i = optind; i < argc; i++) {
        if (!is_name(argv[i])) {
            fprintf(run->err,
                    "kvfence-stat: \"%s\" is no daemon's name: 1 to 31 bytes, no \"/\", not "
                    "beginning with \".\"\n",
                    argv[i]);
            return -1;
        }
    }
    return 0;
}

int kvf_stat_run(int argc, char **argv, FILE *out, FILE *err)
{
    char dir[PATH_BYTES];
    struct stat_run *run = calloc(1, sizeof *run);
    int rc;

    if (run == NULL) {
        fputs("kvfence-stat: out of memory\n", err);
        return KVF_STAT_EXIT_UNREADABLE;
    }
    run->out = out;
    run->err = err;
    rc = parse(run, argc, argv);
    if (rc != 0) {
        rc = rc > 0 ? KVF_STAT_EXIT_SHOWN : KVF_STAT_EXIT_USAGE;
        goto out_free;
    }
    if (run->run_dir == NULL) {
        run->run_dir = default_run_dir(dir, sizeof dir);
    }
    if (run->run_dir == NULL) {
        fputs("kvfence-stat: no run directory: set --run-dir, KVFENCE_RUN_DIR or "
              "XDG_RUNTIME_DIR\n",
              err);
        rc = KVF_STAT_EXIT_USAGE;
        goto out_free;
    }
    for (int i = optind; i < argc; i++) {
        if (!is_named_before(argv, i)) {
            read_one(run, argv[i]);
        }
    }
    run->is_all = optind == argc;
    if (run->is_all) {
        read_all(run);
    }
    show(run);
    if (run->problem_count > 0) {
        rc = KVF_STAT_EXIT_UNREADABLE;
    } else {
        rc = run->stale_count > 0 ? KVF_STAT_EXIT_STALE : KVF_STAT_EXIT_SHOWN;
    }

out_free:
    free(run);
    return rc;
}

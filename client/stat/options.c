#include "client/stat/options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "ring/about/about.h"

#define NS_PER_MS UINT64_C(1000000)
#define INTERVAL_MS_MIN 100u
#define INTERVAL_MS_MAX 3600000u

static const char help_text[] =
    "usage: kvfence-stat [--watch [SECONDS] | --json | --prometheus | --health |\n"
    "                     --listen [ADDR:]PORT] [--run-dir DIR] [NAME...]\n"
    "\n"
    "Shows what kvfenced says of itself. Without a NAME, every daemon of the run directory;\n"
    "those that have stopped then take one line each.\n"
    "It reads DIR/NAME.stats and needs read rights only: it cannot disturb a daemon.\n"
    "\n"
    "  --watch [SECONDS]\n"
    "                 a screen that follows them, every second or as told (0.1 to 3600):\n"
    "                 rates, drain times beside the bound, peers, lanes, quarantine.\n"
    "                 Keys: q quit, space pause, n and p another daemon. Lines instead of\n"
    "                 a screen if the output is no terminal\n"
    "  --json         one JSON object with every counter, gauge, histogram, peer and lane\n"
    "  --prometheus   Prometheus' text format\n"
    "  --listen [ADDR:]PORT\n"
    "                 serves /metrics, /json and /health over HTTP, on 127.0.0.1 unless ADDR\n"
    "                 says otherwise; ends at SIGINT or SIGTERM\n"
    "  --health[=live]\n"
    "                 one sentence per daemon, and the gravest of these exit statuses. live:\n"
    "                 7, 8 and 9 do not count, for a probe that restarts what it finds ill\n"
    "  --metrics      the table of all metrics\n"
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
    "exit status (5 to 9: of --health alone):\n"
    "   0  shown, healthy\n"
    "   1  the output or the port failed\n"
    "   2  usage\n"
    "   3  nothing found, stopped, or a file could not be read\n"
    "   4  at least one shown daemon is stale\n"
    "   5  stats of another major version\n"
    "   6  a worker is stuck\n"
    "   7  pages are in quarantine\n"
    "   8  the bound was broken\n"
    "   9  starting\n";

/* "--watch 2": a number behind it is its interval, and no daemon's name. */
static int parse_interval(struct kvf_stat_options *o, const char *text)
{
    char *end = NULL;
    double seconds = text[0] >= '0' && text[0] <= '9' ? strtod(text, &end) : -1.0;

    if (end == NULL || *end != '\0' || end == text ||
        !(seconds * 1000.0 >= (double)INTERVAL_MS_MIN) ||
        !(seconds * 1000.0 <= (double)INTERVAL_MS_MAX)) {
        return -1;
    }
    o->interval_ns = (uint64_t)(seconds * 1000.0) * NS_PER_MS;
    return 0;
}

static bool is_number(const char *text)
{
    return text != NULL && text[0] >= '0' && text[0] <= '9' &&
           strspn(text, "0123456789.") == strlen(text);
}

static int set_mode(struct kvf_stat_options *o, enum kvf_stat_mode mode, FILE *err)
{
    if (o->mode != KVF_MODE_TABLE && o->mode != mode) {
        fputs("kvfence-stat: only one of --watch, --json, --prometheus, --health, --listen and "
              "--metrics at a time\n",
              err);
        return -1;
    }
    o->mode = mode;
    return 0;
}

static int take_watch(struct kvf_stat_options *o, int argc, char **argv, FILE *err)
{
    const char *text = optarg;

    if (text == NULL && optind < argc && is_number(argv[optind])) {
        text = argv[optind++];
    }
    if (text != NULL && parse_interval(o, text) != 0) {
        fprintf(err, "kvfence-stat: --watch %s: 0.1 to 3600 seconds are allowed\n", text);
        return -1;
    }
    return set_mode(o, KVF_MODE_WATCH, err);
}

static int take_health(struct kvf_stat_options *o, FILE *err)
{
    if (optarg != NULL && strcmp(optarg, "live") != 0 && strcmp(optarg, "all") != 0) {
        fprintf(err, "kvfence-stat: --health=%s: live or all\n", optarg);
        return -1;
    }
    o->is_live_only = optarg != NULL && strcmp(optarg, "live") == 0;
    return set_mode(o, KVF_MODE_HEALTH, err);
}

static int take_listen(struct kvf_stat_options *o, FILE *err)
{
    if (kvf_serve_parse(optarg, &o->listen) != 0) {
        fprintf(err, "kvfence-stat: --listen %s: PORT, ADDR:PORT or [ADDR]:PORT, numeric\n",
                optarg);
        return -1;
    }
    if (!kvf_serve_is_built()) {
        fputs("kvfence-stat: built without libmicrohttpd, so there is no --listen\n", err);
        return -1;
    }
    return set_mode(o, KVF_MODE_LISTEN, err);
}

static int take_names(struct kvf_stat_options *o, int argc, char **argv, FILE *err)
{
    for (int i = optind; i < argc; i++) {
        if (!kvf_stat_is_name(argv[i])) {
            fprintf(err,
                    "kvfence-stat: \"%s\" is no daemon's name: 1 to 31 bytes, no \"/\", not "
                    "beginning with \".\"\n",
                    argv[i]);
            return -1;
        }
    }
    o->names = &argv[optind];
    o->name_count = (uint32_t)(argc - optind);
    return 0;
}

static int take_run_dir(struct kvf_stat_options *o, FILE *err)
{
    if (o->run_dir == NULL) {
        o->run_dir = kvf_stat_default_run_dir(o->dir_buf, sizeof o->dir_buf);
    }
    if (o->run_dir == NULL && o->mode != KVF_MODE_METRICS) {
        fputs("kvfence-stat: no run directory: set --run-dir, KVFENCE_RUN_DIR or "
              "XDG_RUNTIME_DIR\n",
              err);
        return -1;
    }
    return 0;
}

int kvf_stat_options_parse(struct kvf_stat_options *ret_options, int argc, char **argv,
                           FILE *out, FILE *err)
{
    static const struct option options[] = {
        {"watch", optional_argument, NULL, 'w'},   {"json", no_argument, NULL, 'j'},
        {"prometheus", no_argument, NULL, 'p'},    {"health", optional_argument, NULL, 'H'},
        {"listen", required_argument, NULL, 'l'},  {"metrics", no_argument, NULL, 'm'},
        {"run-dir", required_argument, NULL, 'd'}, {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
    };
    struct kvf_stat_options *o = ret_options;
    int option;
    int rc = 0;

    *o = (struct kvf_stat_options){.interval_ns = 1000u * NS_PER_MS};
    optind = 0; /* a fresh start, also for a second run in one process */
    opterr = 0;
    while (rc == 0 && (option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        switch (option) {
        case 'w':
            rc = take_watch(o, argc, argv, err);
            break;
        case 'j':
            rc = set_mode(o, KVF_MODE_JSON, err);
            break;
        case 'p':
            rc = set_mode(o, KVF_MODE_PROMETHEUS, err);
            break;
        case 'H':
            rc = take_health(o, err);
            break;
        case 'l':
            rc = take_listen(o, err);
            break;
        case 'm':
            rc = set_mode(o, KVF_MODE_METRICS, err);
            break;
        case 'd':
            o->run_dir = optarg;
            break;
        case 'V':
            kvf_about_print("kvfence-stat", out);
            return 1;
        case 'h':
            fputs(help_text, out);
            return 1;
        case ':':
            fprintf(err, "kvfence-stat: %s needs a value\n", argv[optind - 1]);
            return -1;
        default:
            fprintf(err, "kvfence-stat: %s is no option of it; --help lists them\n",
                    argv[optind - 1]);
            return -1;
        }
    }
    if (rc == 0) {
        rc = take_names(o, argc, argv, err);
    }
    return rc == 0 ? take_run_dir(o, err) : rc;
}

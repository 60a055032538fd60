#include "client/stat/run.h"

#include <stdlib.h>

#include "client/stat/collect.h"
#include "client/stat/health.h"
#include "client/stat/json.h"
#include "client/stat/metrics.h"
#include "client/stat/options.h"
#include "client/stat/prometheus.h"
#include "client/stat/serve.h"
#include "client/stat/table.h"
#include "client/stat/watch.h"

static void show_table(const struct kvf_stat_look *look, uint32_t i, bool is_all, FILE *out)
{
    struct kvf_stat_daemon *daemon = look->daemons[i];
    bool is_line = is_all && daemon->health == KVF_STAT_STOPPED;
    bool was_line = i > 0 && is_all && look->daemons[i - 1]->health == KVF_STAT_STOPPED;

    fputs(i > 0 && !(is_line && was_line) ? "\n" : "", out);
    if (is_line) {
        kvf_stat_print_line(out, daemon); /* its last numbers are there for who names it */
    } else {
        kvf_stat_print_table(out, daemon);
    }
}

static int status_of(const struct kvf_stat_look *look)
{
    if (look->problem_count > 0) {
        return KVF_STAT_EXIT_UNREADABLE;
    }
    for (uint32_t i = 0; i < look->daemon_count; i++) {
        if (look->daemons[i]->health == KVF_STAT_STALE) {
            return KVF_STAT_EXIT_STALE;
        }
    }
    return KVF_STAT_EXIT_SHOWN;
}

/* What is said once about one look. */
static int show(const struct kvf_stat_options *o, FILE *out, FILE *err)
{
    struct kvf_stat_look *look = kvf_stat_look_at(o->run_dir, o->names, o->name_count);
    int rc;

    if (look == NULL) {
        fputs("kvfence-stat: out of memory\n", err);
        return KVF_STAT_EXIT_FAILED;
    }
    for (uint32_t i = 0; o->mode == KVF_MODE_TABLE || o->mode == KVF_MODE_PROMETHEUS; i++) {
        if (i == look->problem_count) {
            break;
        }
        fprintf(err, "kvfence-stat: %s\n", look->problems[i].why);
    }
    rc = status_of(look);
    if (o->mode == KVF_MODE_JSON) {
        kvf_stat_print_json(out, look->daemons, look->daemon_count, look->problems,
                            look->problem_count);
    } else if (o->mode == KVF_MODE_PROMETHEUS) {
        kvf_prometheus_print(out, look);
    } else if (o->mode == KVF_MODE_HEALTH) {
        rc = (int)kvf_stat_print_health(out, look, o->name_count > 0, o->is_live_only);
    } else {
        for (uint32_t i = 0; i < look->daemon_count; i++) {
            show_table(look, i, o->name_count == 0, out);
        }
    }
    kvf_stat_look_free(look);
    return rc;
}

static int serve(const struct kvf_stat_options *o, FILE *err)
{
    struct kvf_serve_config config = {.addr = o->listen,
                                      .run_dir = o->run_dir,
                                      .names = o->names,
                                      .name_count = o->name_count};
    return kvf_serve(&config, err) == 0 ? KVF_STAT_EXIT_SHOWN : KVF_STAT_EXIT_FAILED;
}

int kvf_stat_run(int argc, char **argv, FILE *out, FILE *err)
{
    struct kvf_stat_options options;
    int rc = kvf_stat_options_parse(&options, argc, argv, out, err);

    if (rc != 0) {
        return rc > 0 ? KVF_STAT_EXIT_SHOWN : KVF_STAT_EXIT_USAGE;
    }
    switch (options.mode) {
    case KVF_MODE_WATCH:
        return kvf_watch_run(options.run_dir, options.names, options.name_count,
                             options.interval_ns, out, err) == 0
                   ? KVF_STAT_EXIT_SHOWN
                   : KVF_STAT_EXIT_FAILED;
    case KVF_MODE_LISTEN:
        return serve(&options, err);
    case KVF_MODE_METRICS:
        kvf_metric_print_table(out);
        return KVF_STAT_EXIT_SHOWN;
    case KVF_MODE_TABLE:
    case KVF_MODE_JSON:
    case KVF_MODE_PROMETHEUS:
    case KVF_MODE_HEALTH:
        break;
    }
    return show(&options, out, err);
}

#include "client/stat/watched.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/stat/format.h"

#define CHANGE_SHOWN_NS UINT64_C(10000000000)

static struct kvf_watched *find_or_add(struct kvf_watch *watch, const char *name)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        if (strcmp(watch->daemons[i].name, name) == 0) {
            return &watch->daemons[i];
        }
    }
    if (watch->count == KVF_STAT_DAEMONS_MAX) {
        return NULL;
    }
    struct kvf_watched *w = &watch->daemons[watch->count++];
    *w = (struct kvf_watched){.changed_ns = 0};
    (void)snprintf(w->name, sizeof w->name, "%.31s", name);
    return w;
}

/* Two looks are compared if they are of one daemon; else the older one says nothing of the newer. */
static void take(struct kvf_watched *w, struct kvf_stat_daemon *daemon, uint64_t now_ns)
{
    bool is_other = w->last_started_ns != 0 && w->last_started_ns != daemon->started_ns;
    bool is_worker = !is_other && w->last_epoch != 0 && w->last_epoch != daemon->worker_epoch;

    if (is_other || is_worker) {
        w->change = is_other ? KVF_CHANGE_DAEMON : KVF_CHANGE_WORKER;
        w->changed_ns = now_ns;
    }
    kvf_stat_free(w->before);
    w->before = w->now;
    w->now = daemon;
    if (is_other) {
        kvf_stat_free(w->before);
        w->before = NULL;
    }
    w->last_started_ns = daemon->started_ns;
    w->last_epoch = daemon->worker_epoch;
    w->problem[0] = '\0';
}

static void look_at(struct kvf_watch *watch, struct kvf_watched *w)
{
    struct kvf_stat_daemon *daemon = NULL;
    char why[KVF_STAT_WHY_BYTES];
    int rc = kvf_stat_read_name(watch->run_dir, w->name, &daemon, why);

    if (rc == 0) {
        take(w, daemon, watch->now_ns);
        return;
    }
    kvf_stat_free(w->before);
    kvf_stat_free(w->now);
    w->before = NULL;
    w->now = NULL;
    if (rc == -ENOENT) {
        (void)snprintf(w->problem, sizeof w->problem,
                       "its stats file is not there; waiting for a daemon of that name");
    } else {
        kvf_stat_printable(why, sizeof w->problem - 1u, w->problem);
    }
}

void kvf_watch_look(struct kvf_watch *watch)
{
    char names[KVF_STAT_DAEMONS_MAX][KVF_STAT_NAME_BYTES];
    int count = 0;

    watch->now_ns = kvf_stat_now_ns();
    watch->problem[0] = '\0';
    if (watch->name_count == 0) {
        count = kvf_stat_list(watch->run_dir, names, KVF_STAT_DAEMONS_MAX);
    }
    if (count < 0) {
        (void)snprintf(watch->problem, sizeof watch->problem,
                       "%.200s: %s; waiting for a daemon to make it", watch->run_dir,
                       strerror(-count));
    }
    for (int i = 0; i < count; i++) {
        (void)find_or_add(watch, names[i]);
    }
    for (uint32_t i = 0; i < watch->name_count; i++) {
        (void)find_or_add(watch, watch->names[i]);
    }
    for (uint32_t i = 0; i < watch->count; i++) {
        look_at(watch, &watch->daemons[i]);
    }
    if (watch->count == 0 && watch->problem[0] == '\0') {
        (void)snprintf(watch->problem, sizeof watch->problem,
                       "%.200s: no daemon has run here; waiting for one", watch->run_dir);
    }
}

void kvf_watch_forget(struct kvf_watch *watch)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        kvf_stat_free(watch->daemons[i].before);
        kvf_stat_free(watch->daemons[i].now);
    }
    watch->count = 0;
}

bool kvf_watched_say(const struct kvf_watched *w, uint64_t now_ns, char *ret_text, size_t bytes)
{
    char age[KVF_FORMAT_BYTES];
    const struct kvf_stat_daemon *d = w->now;
    bool is_recent = w->changed_ns != 0 && now_ns - w->changed_ns < CHANGE_SHOWN_NS;

    ret_text[0] = '\0';
    if (d == NULL) {
        (void)snprintf(ret_text, bytes, "%s", w->problem);
    } else if (d->health == KVF_STAT_STALE && d->has_silence) {
        (void)snprintf(ret_text, bytes, "stale since %s: it did not say that it stopped",
                       kvf_format_age(age, d->silent_ns));
    } else if (d->health == KVF_STAT_STALE) {
        (void)snprintf(ret_text, bytes, "stale since before this boot, or never alive");
    } else if (d->health == KVF_STAT_STOPPED) {
        (void)snprintf(ret_text, bytes, "stopped %s ago; waiting for the next daemon",
                       kvf_format_age(age, d->silent_ns));
    } else if (is_recent && w->change == KVF_CHANGE_DAEMON) {
        (void)snprintf(ret_text, bytes,
                       "counters began anew %s ago: another daemon has this name",
                       kvf_format_age(age, now_ns - w->changed_ns));
    } else if (is_recent && w->change == KVF_CHANGE_WORKER) {
        (void)snprintf(ret_text, bytes, "another worker serves since %s; counters go on",
                       kvf_format_age(age, now_ns - w->changed_ns));
    } else if (d->is_torn) {
        (void)snprintf(ret_text, bytes, "torn: numbers may be of two moments");
    }
    return ret_text[0] != '\0';
}

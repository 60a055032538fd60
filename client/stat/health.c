#include "client/stat/health.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "client/stat/format.h"

#define NS_PER_US UINT64_C(1000)

/* True if a process of that number runs kvfenced here. In a container of its own the daemon's numbers mean
 * nothing, so "no" means "not known" to the caller. */
static bool is_worker_there(uint32_t pid)
{
    char path[64];
    char text[128];
    bool is_there = false;

    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    FILE *file = pid != 0 ? fopen(path, "re") : NULL;
    if (file != NULL) {
        size_t n = fread(text, 1, sizeof text - 1u, file);
        text[n] = '\0';
        const char *state = strstr(text, " (kvfenced) ");
        is_there = state != NULL && strchr("ZX", state[strlen(" (kvfenced) ")]) == NULL;
        (void)fclose(file);
    }
    return is_there;
}

static enum kvf_stat_verdict judge_silence(const struct kvf_stat_daemon *daemon,
                                           char *ret_sentence)
{
    char age[KVF_FORMAT_BYTES];
    char allowed[KVF_FORMAT_BYTES];
    uint64_t watchdog_us = kvf_stat_value(daemon, "bound_watchdog_us");
    bool is_late =
        daemon->has_silence && watchdog_us != 0 && daemon->silent_ns > watchdog_us * NS_PER_US;

    if (is_late && is_worker_there(daemon->worker_pid)) {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES,
                       "%s: its worker (pid %" PRIu32
                       ") has made no turn for %s; its supervisor "
                       "ends it after %s",
                       daemon->name, daemon->worker_pid, kvf_format_age(age, daemon->silent_ns),
                       kvf_format_us(allowed, watchdog_us));
        return KVF_STAT_STUCK;
    }
    if (daemon->health != KVF_STAT_STALE) {
        return KVF_STAT_HEALTHY;
    }
    if (daemon->has_silence) {
        (void)snprintf(
            ret_sentence, KVF_STAT_SENTENCE_BYTES,
            "%s: stale since %s: it did not say that it stopped; look for a crash in "
            "its log and start it again",
            daemon->name, kvf_format_age(age, daemon->silent_ns));
    } else {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES,
                       "%s: stale since before this boot, or never alive; start it",
                       daemon->name);
    }
    return KVF_STAT_IS_STALE;
}

static enum kvf_stat_verdict judge_promise(const struct kvf_stat_daemon *daemon,
                                           char *ret_sentence)
{
    char max_text[KVF_FORMAT_BYTES];
    char worst_text[KVF_FORMAT_BYTES];
    const struct kvf_histogram_shm *drained = kvf_stat_histogram(daemon, "abort_to_drained_us");
    uint64_t worst_us = kvf_stat_value(daemon, "bound_worst_us");
    uint64_t max_us =
        drained != NULL ? atomic_load_explicit(&drained->max, memory_order_relaxed) : 0;
    uint64_t rooms = kvf_stat_value(daemon, "rooms_quarantined");

    if (worst_us != 0 && max_us > worst_us) {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES,
                       "%s: the bound was broken: a room took %s from its end to drained, and "
                       "the worst bound is %s",
                       daemon->name, kvf_format_us(max_text, max_us),
                       kvf_format_us(worst_text, worst_us));
        return KVF_STAT_BOUND_BROKEN;
    }
    if (rooms != 0) {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES,
                       "%s: %" PRIu64 " rooms are in quarantine with %" PRIu64
                       " pages; kvfence-ctl rooms --quarantined says whose and why",
                       daemon->name, rooms, kvf_stat_value(daemon, "pages_quarantined"));
        return KVF_STAT_QUARANTINE;
    }
    return KVF_STAT_HEALTHY;
}

enum kvf_stat_verdict kvf_stat_health_of(const struct kvf_stat_daemon *daemon,
                                         bool is_live_only,
                                         char ret_sentence[KVF_STAT_SENTENCE_BYTES])
{
    char age[KVF_FORMAT_BYTES];
    enum kvf_stat_verdict verdict;

    if (daemon->health == KVF_STAT_STOPPED) {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES, "%s: was stopped; start it",
                       daemon->name);
        return KVF_STAT_NO_DAEMON;
    }
    verdict = judge_silence(daemon, ret_sentence);
    if (verdict == KVF_STAT_HEALTHY && daemon->health == KVF_STAT_STARTING) {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES, "%s: is starting", daemon->name);
        return is_live_only ? KVF_STAT_HEALTHY : KVF_STAT_NOT_READY;
    }
    if (verdict == KVF_STAT_HEALTHY && !is_live_only) {
        verdict = judge_promise(daemon, ret_sentence);
    }
    if (verdict == KVF_STAT_HEALTHY) {
        (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES, "%s: healthy, %s for %s",
                       daemon->name, kvf_stat_health_name(daemon->health),
                       kvf_format_age(age, daemon->up_ns));
    }
    return verdict;
}

enum kvf_stat_verdict kvf_stat_health_of_problem(const struct kvf_stat_problem *problem,
                                                 char ret_sentence[KVF_STAT_SENTENCE_BYTES])
{
    (void)snprintf(ret_sentence, KVF_STAT_SENTENCE_BYTES, "%s", problem->why);
    return problem->code == -ENOTSUP ? KVF_STAT_LAYOUT : KVF_STAT_NO_DAEMON;
}

const char *kvf_stat_verdict_name(enum kvf_stat_verdict verdict)
{
    switch (verdict) {
    case KVF_STAT_HEALTHY:
        return "healthy";
    case KVF_STAT_NO_DAEMON:
        return "no_daemon";
    case KVF_STAT_IS_STALE:
        return "stale";
    case KVF_STAT_LAYOUT:
        return "layout";
    case KVF_STAT_STUCK:
        return "stuck";
    case KVF_STAT_QUARANTINE:
        return "quarantine";
    case KVF_STAT_BOUND_BROKEN:
        return "bound_broken";
    case KVF_STAT_NOT_READY:
        return "not_ready";
    }
    return "?";
}

/* What says least about the others comes first: of an unreadable daemon nothing else is known. */
static int gravity_of(enum kvf_stat_verdict verdict)
{
    static const enum kvf_stat_verdict order[] = {
        KVF_STAT_HEALTHY, KVF_STAT_NOT_READY, KVF_STAT_QUARANTINE, KVF_STAT_BOUND_BROKEN,
        KVF_STAT_STUCK,   KVF_STAT_IS_STALE,  KVF_STAT_NO_DAEMON,  KVF_STAT_LAYOUT,
    };
    int gravity = 0;
    while (order[gravity] != verdict) {
        gravity++;
    }
    return gravity;
}

static bool has_other_than_stopped(const struct kvf_stat_look *look)
{
    for (uint32_t i = 0; i < look->daemon_count; i++) {
        if (look->daemons[i]->health != KVF_STAT_STOPPED) {
            return true;
        }
    }
    return false;
}

enum kvf_stat_verdict kvf_stat_print_health(FILE *out, const struct kvf_stat_look *look,
                                            bool is_named, bool is_live_only)
{
    char sentence[KVF_STAT_SENTENCE_BYTES];
    enum kvf_stat_verdict worst = KVF_STAT_HEALTHY;
    bool is_stopped_skipped = !is_named && has_other_than_stopped(look);

    for (uint32_t i = 0; i < look->daemon_count + look->problem_count; i++) {
        enum kvf_stat_verdict verdict;
        if (i < look->daemon_count) {
            if (is_stopped_skipped && look->daemons[i]->health == KVF_STAT_STOPPED) {
                continue;
            }
            verdict = kvf_stat_health_of(look->daemons[i], is_live_only, sentence);
        } else {
            verdict =
                kvf_stat_health_of_problem(&look->problems[i - look->daemon_count], sentence);
        }
        fprintf(out, "%s\n", sentence);
        worst = gravity_of(verdict) > gravity_of(worst) ? verdict : worst;
    }
    return worst;
}

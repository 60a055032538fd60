/* The daemons that are watched, over time: each with its last two looks, and what happened to it. */
#ifndef KVF_STAT_WATCHED_H
#define KVF_STAT_WATCHED_H

#include "client/stat/collect.h"
#include "client/stat/rates.h"

struct kvf_watched {
    char name[KVF_STAT_NAME_BYTES];
    struct kvf_stat_daemon
        *before; /* owned; NULL: there was no look, or it was of another daemon */
    struct kvf_stat_daemon *now;      /* owned; NULL: it could not be read this time */
    char problem[KVF_STAT_WHY_BYTES]; /* why not; "" it could */
    enum kvf_stat_change change;      /* the last one seen ... */
    uint64_t changed_ns;              /* ... then; 0: none yet */
    uint64_t last_started_ns;         /* of the last look that could be read; 0: none */
    uint64_t last_epoch;
};

struct kvf_watch {
    const char *run_dir;
    char *const *names; /* none: all that come up */
    uint32_t name_count;
    uint64_t now_ns;                  /* of the last look */
    char problem[KVF_STAT_WHY_BYTES]; /* of the run directory; "" none */
    uint32_t count;
    struct kvf_watched daemons[KVF_STAT_DAEMONS_MAX];
};

/* Looks at all of them once more. A daemon stays in the list when its file goes, with a sentence, and is found
 * again when it is back. */
void kvf_watch_look(struct kvf_watch *watch);
void kvf_watch_forget(struct kvf_watch *watch);

/* What there is to say of it beside its numbers: unreadable, stale, counters that began anew. Returns false, and
 * "", if that is nothing. */
bool kvf_watched_say(const struct kvf_watched *w, uint64_t now_ns, char *ret_text,
                     size_t bytes);

#endif

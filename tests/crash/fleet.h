/* Two sources and the sinks whose workers die: one for each kind of placement, pace and number of lanes. */
#ifndef KVF_TESTS_CRASH_FLEET_H
#define KVF_TESTS_CRASH_FLEET_H

#include "tests/crash/crash.h"
#include "tests/crash/shot.h"

#define FLEET_SITES 6u

struct site_kind {
    const char *name;
    const char *placement;
    const char *lanes;
    bool is_paced;
    bool is_shuffled; /* its pages stand in the list in no order */
};

struct site {
    const struct site_kind *kind;
    struct daemon *daemon;
    struct engine *engine;
    struct engine *source; /* shared with other sites */
    int32_t *pages;        /* all of the region, in the order of its lists */
    struct shot *shot;
    bool has_shot; /* a shot that was taken, and is looked at once more before the next kill */
    uint64_t served_ns;    /* since when the worker is known to serve; 0: not yet */
    uint32_t quick_deaths; /* as the supervisor counts them, or more */
    uint32_t restarts;
    pid_t killed; /* the last worker that was */
};

struct fleet {
    const struct crash_options *options;
    struct engine *sources[2]; /* unpaced, paced */
    struct site sites[FLEET_SITES];
    uint32_t site_count;
    uint32_t next;
    uint32_t page_count;
};

void fleet_start(struct fleet *f, const struct crash_options *options, bool has_paced);
/* A site whose worker serves and may die without its supervisor putting off the next one: workers that die
 * within two seconds of their start, more than five in a row, are replaced ever later. Waits for one. */
struct site *fleet_next(struct fleet *f);
/* Its worker was killed. */
void fleet_killed(struct site *site);
/* Every site serves again, transfers right bytes, and adds up. */
void fleet_stop(struct fleet *f);

#endif

#include "tests/crash/fleet.h"

#include <stdlib.h>

#define PLANES 4u
#define PIECE_BYTES (16u * KIB)
#define PAGES 512u

/* The supervisor's rule (sidecar/README.md, "Restarts"), and a margin for who sees a start later than it. */
#define QUICK_DEATHS_FREE 5u
#define LIFE_NS UINT64_C(2200000000)
#define RESTART_MS 8000u

static const struct site_kind kinds[FLEET_SITES] = {
    {"checked-1-lane", "--tcp-placement=checked", "--lanes=1", false, false},
    {"posted-1-lane", "--tcp-placement=posted", "--lanes=1", false, true},
    {"checked-4-lanes", "--tcp-placement=checked", "--lanes=4", false, true},
    {"posted-4-lanes", "--tcp-placement=posted", "--lanes=4", false, false},
    {"checked-2-paced", "--tcp-placement=checked", "--lanes=2", true, false},
    {"posted-2-paced", "--tcp-placement=posted", "--lanes=2", true, true},
};

static const struct geometry geometry = {
    .plane_count = PLANES, .page_bytes = PIECE_BYTES, .page_count = PAGES};

static void start_source(struct fleet *f, uint32_t idx)
{
    /* 32 MiB through two lanes of 150 MB/s take a tenth of a second. */
    const char *own[] = {"--lanes=4", idx == 1 ? "--lane-rate=150" : "--lane-rate=0", NULL};
    struct daemon *d = crash_daemon_start(f->options, idx == 1 ? "paced" : "unpaced", own);
    struct engine *e = engine_start(d, &geometry, 0);
    int32_t *pages = calloc(PAGES, sizeof *pages);
    CHECK(pages != NULL, "no memory");
    pages_count_up(pages, PAGES, 0);
    engine_fill(e, f->options->seed, pages, PAGES, 0);
    free(pages);
    f->sources[idx] = e;
}

static void start_site(struct fleet *f, struct site *site, const struct site_kind *kind)
{
    const char *own[] = {kind->placement, kind->lanes, NULL};
    uint64_t state = f->options->seed;
    *site = (struct site){.kind = kind};
    site->daemon = crash_daemon_start(f->options, kind->name, own);
    site->engine = engine_start(site->daemon, &geometry, 0);
    site->source = f->sources[kind->is_paced ? 1 : 0];
    site->pages = calloc(PAGES, sizeof *site->pages);
    CHECK(site->pages != NULL, "no memory");
    pages_count_up(site->pages, PAGES, 0);
    if (kind->is_shuffled) {
        pages_shuffle(site->pages, PAGES, &state);
    }
    site->shot = shot_make(site->engine, site->pages, PAGES);
}

void fleet_start(struct fleet *f, const struct crash_options *options, bool has_paced)
{
    *f = (struct fleet){.options = options, .page_count = PAGES};
    start_source(f, 0);
    if (has_paced) {
        start_source(f, 1);
    }
    for (uint32_t i = 0; i < FLEET_SITES; i++) {
        if (!kinds[i].is_paced || has_paced) {
            start_site(f, &f->sites[f->site_count++], &kinds[i]);
        }
    }
}

/* Notices a worker that has begun to serve. */
static bool serves(struct site *site)
{
    if (site->served_ns == 0 && kvf_daemon_check(site->engine->client) == 0) {
        pid_t worker = daemon_worker_now(site->daemon);
        if (worker != 0 && worker != site->killed) {
            site->daemon->worker = worker;
            site->served_ns = now_ns();
        }
    }
    return site->served_ns != 0;
}

struct site *fleet_next(struct fleet *f)
{
    uint64_t until_ns = now_ns() + RESTART_MS * UINT64_C(1000000);
    for (;;) {
        struct site *found = NULL;
        for (uint32_t i = 0; i < f->site_count; i++) {
            struct site *site = &f->sites[(f->next + i) % f->site_count];
            bool may_die = serves(site) && (site->quick_deaths < QUICK_DEATHS_FREE ||
                                            now_ns() - site->served_ns >= LIFE_NS);
            if (found == NULL && may_die) {
                found = site;
            }
        }
        if (found != NULL) {
            f->next = (uint32_t)(found - f->sites) + 1u;
            return found;
        }
        CHECK(now_ns() < until_ns, "no worker serves %u ms after its kill", RESTART_MS);
        sleep_us(2000);
    }
}

void fleet_killed(struct site *site)
{
    bool was_quick = now_ns() - site->served_ns < LIFE_NS;
    site->quick_deaths = was_quick ? site->quick_deaths + 1u : 0;
    site->served_ns = 0;
    site->killed = site->daemon->worker;
    site->restarts++;
}

void fleet_stop(struct fleet *f)
{
    for (uint32_t i = 0; i < f->site_count; i++) {
        struct site *site = &f->sites[i];
        WAIT_FOR(serves(site), RESTART_MS, "%s does not serve again", site->kind->name);
        transfer_once(site->source, site->engine, key_next(), 0, PAGES / 4u);
        CHECK_IS(daemon_stat(site->daemon, "worker_starts"), site->restarts + 1u,
                 "worker starts");
        engine_stop(site->engine);
        shot_free(site->shot);
        free(site->pages);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (f->sources[i] != NULL) {
            engine_stop(f->sources[i]);
        }
    }
    daemons_stop();
}

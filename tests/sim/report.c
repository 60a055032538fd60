/* Tables of at most 100 columns, and one JSON object. */
#include "tests/sim/report.h"

#include <stdio.h>

#include "tests/sim/parts.h"

#define SEEDS_THAT_COUNT 200u

struct line {
    const char *name;
    uint64_t value;
    const char *what;
};

static void print_lines(const struct line *lines, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        printf("  %-22s %14llu   %s\n", lines[i].name, (unsigned long long)lines[i].value,
               lines[i].what);
    }
}

static void print_work(const struct sim_figures *f)
{
    const struct line lines[] = {
        {"rooms", f->rooms, "opened by engines"},
        {"  succeeded", f->rooms_succeeded, "every byte checked"},
        {"  failed", f->rooms_failed, "drained all the same"},
        {"aborts", f->aborts, "by engines, at every moment of a room's life"},
        {"external leases", f->leases, "with work that touches pages meanwhile"},
        {"pages reused", f->pages_reused, "in the moment their word said drained"},
        {"landings", f->landings, "ranges of bytes, each asked of its page's owner"},
        {"late writes refused", f->late_writes_refused, "payload of closed or fenced grants"},
        {"fences", f->fences, "lanes ended by their own side"},
        {"regrants", f->regrants, "new grants in the place of fenced ones"},
        {"partitions", f->partitions, "links cut or stalled, one way or both"},
    };
    print_lines(lines, sizeof lines / sizeof lines[0]);
}

static void print_deaths(const struct sim_figures *f)
{
    const struct line lines[] = {
        {"crashes", f->crashes, "of the four kinds below"},
        {"  workers killed", f->worker_kills,
         "some by the watchdog, some by a fence that hung"},
        {"  supervisors killed", f->supervisor_kills, "their workers end with them"},
        {"  hosts crashed", f->host_crashes, "nothing answers any more"},
        {"  engines killed", f->engine_deaths, "hang-up first, reaped later"},
        {"workers frozen", f->worker_freezes, "kernel and NIC go on"},
        {"fences that hung", f->escalations, "escalated to the worker's end"},
        {"quarantines", f->quarantines, "a dead engine's gpu or direct-io lease"},
        {"group messages", f->group_messages, "none while all goes well"},
    };
    print_lines(lines, sizeof lines / sizeof lines[0]);
}

static void print_proofs(const struct sim_figures *f)
{
    printf("\n  proofs: never posted %llu, landed %llu, source idle %llu, peer drained %llu,\n"
           "          revoked %llu, fenced %llu, worker gone %llu, engine gone %llu\n",
           (unsigned long long)f->never_posted, (unsigned long long)f->landed,
           (unsigned long long)f->source_idle, (unsigned long long)f->peer_drained,
           (unsigned long long)f->revoked, (unsigned long long)f->fenced,
           (unsigned long long)f->worker_gone, (unsigned long long)f->engine_gone);
}

void sim_report_text(const struct sim_options *options, const struct sim_totals *totals)
{
    const struct sim_figures *f = &totals->figures;
    double wall = (double)totals->wall_ns / 1e9;
    double cpu = (double)totals->cpu_ns / 1e9;
    printf("kvfence-sim: seeds %llu to %llu\n", (unsigned long long)options->from,
           (unsigned long long)(options->from + options->seeds - 1u));
    print_work(f);
    print_deaths(f);
    print_proofs(f);
    printf("\n  %llu events in %.1f s by %u processes: %.0f seeds/s, %.0f events/s, %.0f "
           "events/s of\n"
           "  processor time\n",
           (unsigned long long)f->events, wall, options->jobs, (double)totals->seeds / wall,
           (double)f->events / wall, cpu > 0 ? (double)f->events / cpu : 0);
    printf("\n%s: %llu seeds, %llu failed, %llu unsafe landings, %llu bound violations\n",
           totals->failed == 0 ? "PASSED" : "FAILED", (unsigned long long)totals->seeds,
           (unsigned long long)totals->failed, (unsigned long long)f->unsafe_landings,
           (unsigned long long)f->bound_violations);
    for (uint32_t i = 0; i < totals->kept; i++) {
        const struct sim_failed_seed *x = &totals->failures[i];
        printf("  seed %llu: %s: %s\n", (unsigned long long)x->seed,
               sim_verdict_names[x->verdict], x->text);
    }
}

void sim_report_json(const struct sim_totals *totals)
{
    const struct sim_figures *f = &totals->figures;
    double wall = (double)totals->wall_ns / 1e9;
    printf("{\"seeds\": %llu, \"failed\": %llu, ", (unsigned long long)totals->seeds,
           (unsigned long long)totals->failed);
#define SIM_FIGURE(name) printf("\"" #name "\": %llu, ", (unsigned long long)f->name);
    SIM_FIGURES(SIM_FIGURE)
#undef SIM_FIGURE
    printf("\"wall_seconds\": %.3f, \"cpu_seconds\": %.3f, \"seeds_per_second\": %.1f, "
           "\"events_per_second\": %.0f, \"failed_seeds\": [",
           wall, (double)totals->cpu_ns / 1e9, (double)totals->seeds / wall,
           (double)f->events / wall);
    for (uint32_t i = 0; i < totals->kept; i++) {
        printf("%s%llu", i > 0 ? ", " : "", (unsigned long long)totals->failures[i].seed);
    }
    puts("]}");
}

const char *sim_report_shortfall(const struct sim_options *options,
                                 const struct sim_totals *totals)
{
    const struct sim_figures *f = &totals->figures;
    bool is_whole = options->flavour == SIM_FLAVOURS && options->traffic == SIM_TRAFFICS &&
                    options->plants == 0;
    uint64_t n = totals->seeds;
    if (!is_whole || n < SEEDS_THAT_COUNT) {
        return NULL;
    }
    const struct line wanted[] = {
        {"rooms", f->rooms < 10 * n, NULL},
        {"aborts", f->aborts < n, NULL},
        {"external leases", f->leases < n / 2, NULL},
        {"fences", f->fences < n / 2, NULL},
        {"regrants", f->regrants < n / 8, NULL},
        {"crashes", f->crashes < n / 2, NULL},
        {"late writes refused", f->late_writes_refused < n / 2, NULL},
        {"partitions", f->partitions < n / 4, NULL},
        {"quarantines", f->quarantines < n / 40, NULL},
        {"rooms closed by their group", f->group_closed < n / 10, NULL},
        {"worker gone", f->worker_gone < n / 10, NULL},
        {"engine gone", f->engine_gone < n / 100, NULL},
        {"peer drained", f->peer_drained < n / 4, NULL},
        {"revoked", f->revoked < n / 4, NULL},
        {"fenced", f->fenced < n / 10, NULL},
    };
    for (uint32_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (wanted[i].value != 0) {
            return wanted[i].name;
        }
    }
    return NULL;
}

/* kvfence-sim: many seeds in parallel, or one seed with its history. */
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/history.h"
#include "tests/sim/options.h"
#include "tests/sim/parts.h"
#include "tests/sim/report.h"
#include "tests/sim/shrink.h"

#define HISTORY_LINES 120u

/* ---- one seed --------------------------------------------------------------------------------------------------- */

static struct sim_world *shown; /* for the handler alone: a crash shows what led to it */
static bool is_shown_whole;

static void print_history(void)
{
    puts("\nhistory:");
    if (is_shown_whole) {
        sim_history_print_all(stdout, shown);
    } else {
        sim_history_print(stdout, shown, HISTORY_LINES);
    }
}

/* After an assert nothing can be done but to tell; the process ends by the same signal. */
static void on_crash(int sig)
{
    signal(sig, SIG_DFL);
    print_history();
    (void)fflush(stdout);
    (void)raise(sig);
}

static void print_ops(const struct sim_scenario *s)
{
    char text[512];
    printf("seed %llu: %s, %s, %u hosts, %u lanes\noperations:\n", (unsigned long long)s->seed,
           sim_flavour_names[s->flavour], sim_traffic_names[s->traffic], s->hosts, s->lanes);
    for (uint32_t i = 0; i < s->op_count; i++) {
        if (!s->ops[i].is_off) {
            sim_op_text(s, i, text, sizeof text);
            printf("  %s\n", text);
        }
    }
}

/* Plays it here, with a history. */
static int show(const struct sim_options *o, const struct sim_scenario *scenario)
{
    struct sim_world *w = sim_world_create();
    w->scenario = *scenario;
    w->plants = o->plants;
    w->notes = malloc(SIM_NOTES_MAX * sizeof *w->notes);
    assert(w->notes != NULL);
    print_ops(scenario);
    (void)fflush(stdout);
    shown = w;
    is_shown_whole = o->is_traced;
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    sim_world_run(w);
    bool has_failed = w->failure.verdict != SIM_PASSED;
    if (has_failed || o->is_traced) {
        print_history();
    }
    printf("\n%s%s%s\n%llu events, %llu rooms, history %016llx\n",
           sim_verdict_names[w->failure.verdict], has_failed ? ": " : "", w->failure.text,
           (unsigned long long)w->figures.events, (unsigned long long)w->figures.rooms,
           (unsigned long long)w->hash);
    sim_world_destroy(w);
    return has_failed ? SIM_EXIT_FAILED : SIM_EXIT_PASSED;
}

static int play_one(const struct sim_options *o)
{
    static struct sim_scenario scenario;
    sim_scenario_make(o->from, o->flavour, o->traffic, &scenario);
    sim_options_apply(o, &scenario);
    return show(o, &scenario);
}

/* ---- the first failure, made smaller ---------------------------------------------------------------------------- */

static void shrink_first(const struct sim_options *o, const struct sim_totals *totals)
{
    static struct sim_scenario scenario;
    uint16_t easy[SIM_OPS_MAX] = {0};
    uint64_t seed = totals->failures[0].seed;
    sim_scenario_make(seed, o->flavour, o->traffic, &scenario);
    fprintf(stderr, "kvfence-sim: making seed %llu smaller (%u operations) ...\n",
            (unsigned long long)seed, scenario.op_count);
    uint32_t plays = sim_shrink(&scenario, o->plants, easy);
    printf("\n---- seed %llu, made smaller in %u plays ", (unsigned long long)seed, plays);
    puts("-------------------------------------------------");
    struct sim_options one = *o;
    (void)fflush(stdout);
    pid_t pid = fork(); /* a crash must not take the rest of the report with it */
    if (pid == 0) {
        (void)show(&one, &scenario);
        (void)fflush(stdout);
        _exit(0);
    }
    int status = 0;
    if (pid > 0) {
        (void)waitpid(pid, &status, 0);
    }
    fputs("\nplay it again: ", stdout);
    sim_options_print(o, seed, &scenario, easy);
}

static int play_many(const struct sim_options *o)
{
    static struct sim_totals totals;
    int err = sim_jobs_run(o, &totals);
    if (err != 0) {
        fprintf(stderr, "kvfence-sim: cannot run %u processes: %s\n", o->jobs, strerror(-err));
        return SIM_EXIT_USAGE;
    }
    if (o->is_json) {
        sim_report_json(&totals);
    } else {
        sim_report_text(o, &totals);
    }
    if (totals.failed > 0) {
        if (!o->has_no_shrink && !o->is_json) {
            shrink_first(o, &totals);
        }
        return SIM_EXIT_FAILED;
    }
    const char *shortfall = sim_report_shortfall(o, &totals);
    if (shortfall != NULL) {
        fprintf(stderr, "kvfence-sim: this run does not count: too few %s\n", shortfall);
        return SIM_EXIT_DOES_NOT_COUNT;
    }
    return SIM_EXIT_PASSED;
}

int main(int argc, char **argv)
{
    static struct sim_options options;
    int status = sim_options_parse(argc, argv, &options);
    if (status != SIM_EXIT_GO_ON) {
        return status;
    }
    return options.is_one ? play_one(&options) : play_many(&options);
}

/* The parent forks one process per job; job j plays seeds from + j, from + j + jobs, ... and adds up in memory that
 * both see. Real time is read here, for progress and speed, and nowhere in a seed. */
#include "tests/sim/jobs.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/parts.h"

#define SEED_SECONDS_MAX 60u
#define LOOK_NS 100000000
#define PROGRESS_AFTER_NS (2 * SIM_S)

struct job {
    _Atomic uint64_t next; /* how many of its seeds were begun */
    _Atomic uint64_t played;
    struct sim_totals totals;
};

static uint64_t real_now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * SIM_S + (uint64_t)ts.tv_nsec;
}

static void add_figures(struct sim_figures *to, const struct sim_figures *from)
{
#define SIM_FIGURE(name) to->name += from->name;
    SIM_FIGURES(SIM_FIGURE)
#undef SIM_FIGURE
}

static void keep_failure(struct sim_totals *t, const struct sim_failed_seed *failed)
{
    t->failed++;
    uint32_t at = t->kept;
    if (t->kept == SIM_FAILURES_KEPT) {
        at = 0;
        for (uint32_t i = 1; i < t->kept; i++) {
            at = t->failures[i].seed > t->failures[at].seed ? i : at;
        }
        if (t->failures[at].seed < failed->seed) {
            return;
        }
    } else {
        t->kept++;
    }
    t->failures[at] = *failed;
}

static uint64_t seed_of(const struct sim_options *o, uint32_t job, uint64_t nth)
{
    return o->from + nth * o->jobs + job;
}

static uint64_t seeds_of(const struct sim_options *o, uint32_t job)
{
    return o->seeds > job ? (o->seeds - job - 1u) / o->jobs + 1u : 0;
}

static _Noreturn void play_seeds(const struct sim_options *o, struct job *j, uint32_t job)
{
    struct sim_world *w = sim_world_create();
    uint64_t count = seeds_of(o, job);
    w->plants = o->plants;
    for (uint64_t nth = atomic_load(&j->next); nth < count; nth++) {
        atomic_store(&j->next, nth + 1u);
        alarm(SEED_SECONDS_MAX);
        sim_scenario_make(seed_of(o, job, nth), o->flavour, o->traffic, &w->scenario);
        sim_world_run(w);
        add_figures(&j->totals.figures, &w->figures);
        j->totals.seeds++;
        if (w->failure.verdict != SIM_PASSED) {
            struct sim_failed_seed failed = {.seed = w->scenario.seed,
                                             .verdict = w->failure.verdict};
            memcpy(failed.text, w->failure.text, sizeof failed.text);
            keep_failure(&j->totals, &failed);
        }
        atomic_store(&j->played, nth + 1u);
    }
    _exit(0);
}

static int start_job(const struct sim_options *o, struct job *jobs, uint32_t job,
                     pid_t *ret_pid)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        return -errno;
    }
    if (pid == 0) {
        play_seeds(o, &jobs[job], job);
    }
    *ret_pid = pid;
    return 0;
}

static void note_crash(const struct sim_options *o, struct job *j, uint32_t job, int status)
{
    uint64_t nth = atomic_load(&j->next);
    struct sim_failed_seed failed = {.seed = seed_of(o, job, nth == 0 ? 0 : nth - 1u),
                                     .verdict = SIM_CRASHED};
    (void)snprintf(failed.text, sizeof failed.text, "ended by %s",
                   WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit");
    j->totals.seeds++;
    keep_failure(&j->totals, &failed);
}

static void print_progress(const struct sim_options *o, const struct job *jobs,
                           uint64_t since_ns, uint64_t *last_ns)
{
    uint64_t now_ns = real_now_ns();
    if (now_ns - since_ns < PROGRESS_AFTER_NS || now_ns - *last_ns < SIM_S) {
        return;
    }
    *last_ns = now_ns;
    uint64_t played = 0;
    uint64_t failed = 0;
    for (uint32_t i = 0; i < o->jobs; i++) {
        played += atomic_load(&jobs[i].played);
        failed += jobs[i].totals.failed;
    }
    double seconds = (double)(now_ns - since_ns) / 1e9;
    fprintf(stderr, "\rkvfence-sim: %llu of %llu seeds, %.0f a second, %llu failed ",
            (unsigned long long)played, (unsigned long long)o->seeds, (double)played / seconds,
            (unsigned long long)failed);
    (void)fflush(stderr);
}

/* Waits for all; a crashed one is noted and followed by another. */
static int wait_for_jobs(const struct sim_options *o, struct job *jobs, pid_t *pids,
                         uint64_t since_ns)
{
    uint32_t running = o->jobs;
    uint64_t last_ns = since_ns;
    int err = 0;
    while (running > 0) {
        for (uint32_t i = 0; i < o->jobs; i++) {
            int status = 0;
            if (pids[i] == 0 || waitpid(pids[i], &status, WNOHANG) != pids[i]) {
                continue;
            }
            pids[i] = 0;
            running--;
            if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
                continue;
            }
            note_crash(o, &jobs[i], i, status);
            if (err == 0 && atomic_load(&jobs[i].next) < seeds_of(o, i)) {
                err = start_job(o, jobs, i, &pids[i]);
                running += err == 0 ? 1u : 0u;
            }
        }
        print_progress(o, jobs, since_ns, &last_ns);
        if (running > 0) {
            struct timespec pause = {.tv_nsec = LOOK_NS / 10};
            (void)nanosleep(&pause, NULL);
        }
    }
    if (last_ns != since_ns) {
        fputc('\n', stderr);
    }
    return err;
}

static int by_seed(const void *a, const void *b)
{
    const struct sim_failed_seed *x = a;
    const struct sim_failed_seed *y = b;
    return x->seed < y->seed ? -1 : x->seed > y->seed ? 1 : 0;
}

static void add_up(const struct sim_options *o, const struct job *jobs, uint64_t since_ns,
                   struct sim_totals *ret_totals)
{
    *ret_totals = (struct sim_totals){0};
    for (uint32_t i = 0; i < o->jobs; i++) {
        const struct sim_totals *t = &jobs[i].totals;
        add_figures(&ret_totals->figures, &t->figures);
        ret_totals->seeds += t->seeds;
        for (uint32_t k = 0; k < t->kept; k++) {
            keep_failure(ret_totals, &t->failures[k]);
        }
    }
    ret_totals->failed = 0;
    for (uint32_t i = 0; i < o->jobs; i++) {
        ret_totals->failed += jobs[i].totals.failed;
    }
    qsort(ret_totals->failures, ret_totals->kept, sizeof ret_totals->failures[0], by_seed);
    ret_totals->wall_ns = real_now_ns() - since_ns;
    struct rusage usage;
    (void)getrusage(RUSAGE_CHILDREN, &usage);
    ret_totals->cpu_ns = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * SIM_S +
                         (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * SIM_US;
}

int sim_jobs_run(const struct sim_options *options, struct sim_totals *ret_totals)
{
    uint64_t since_ns = real_now_ns();
    size_t bytes = options->jobs * sizeof(struct job);
    struct job *jobs =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (jobs == MAP_FAILED) {
        return -errno;
    }
    pid_t pids[SIM_JOBS_MAX] = {0};
    int err = 0;
    for (uint32_t i = 0; i < options->jobs && err == 0; i++) {
        err = start_job(options, jobs, i, &pids[i]);
    }
    if (err == 0) {
        err = wait_for_jobs(options, jobs, pids, since_ns);
    } else {
        for (uint32_t i = 0; i < options->jobs && pids[i] != 0; i++) {
            (void)kill(pids[i], SIGKILL);
            (void)waitpid(pids[i], NULL, 0);
        }
    }
    if (err == 0) {
        add_up(options, jobs, since_ns, ret_totals);
    }
    (void)munmap(jobs, bytes);
    return err;
}

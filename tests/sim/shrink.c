/* Delta debugging over the list of operations: chunks first, then single ones, then parameters. Luck does not depend
 * on what is left (random.h), so most of a failing history stays as it was. */
#include "tests/sim/shrink.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/parts.h"

#define PLAYS_MAX 1500u
#define PLAY_SECONDS_MAX 20u

struct shrinker {
    struct sim_scenario *scenario;
    struct sim_scenario *trial;
    uint16_t *easy;
    uint32_t plants;
    uint32_t plays;
    enum sim_verdict verdict;
};

void sim_play(const struct sim_scenario *scenario, uint32_t plants, bool is_loud,
              struct sim_outcome *ret_outcome)
{
    struct sim_outcome *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(shared != MAP_FAILED);
    shared->failure =
        (struct sim_failure){.verdict = SIM_CRASHED, .room = SIM_NO_ROOM, .page = SIM_NO_ROOM};
    (void)fflush(NULL);
    pid_t pid = fork();
    assert(pid >= 0);
    if (pid == 0) {
        int null_fd = is_loud ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (null_fd >= 0) {
            (void)dup2(null_fd, STDERR_FILENO);
        }
        alarm(PLAY_SECONDS_MAX); /* a loop without an end is a crash too */
        struct sim_world *w = sim_world_create();
        w->scenario = *scenario;
        w->plants = plants;
        sim_world_run(w);
        shared->failure = w->failure;
        shared->figures = w->figures;
        shared->hash = w->hash;
        _exit(0);
    }
    int status = 0;
    (void)waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) {
        (void)snprintf(shared->failure.text, sizeof shared->failure.text,
                       "ended by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    }
    *ret_outcome = *shared;
    (void)munmap(shared, sizeof *shared);
}

/* Whether the trial fails in the same way. */
static bool fails(struct shrinker *k)
{
    struct sim_outcome outcome;
    k->plays++;
    sim_play(k->trial, k->plants, false, &outcome);
    return outcome.failure.verdict == k->verdict;
}

/* Ops still in, as indices. */
static uint32_t list_ops(const struct sim_scenario *s, uint32_t *ret_list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->op_count; i++) {
        if (!s->ops[i].is_off) {
            ret_list[count++] = i;
        }
    }
    return count;
}

/* Tries to take out each chunk of so many operations. True if one went. */
static bool remove_chunks(struct shrinker *k, uint32_t chunk)
{
    uint32_t list[SIM_OPS_MAX];
    uint32_t count = list_ops(k->scenario, list);
    bool is_any = false;
    for (uint32_t at = 0; at < count && k->plays < PLAYS_MAX; at += chunk) {
        *k->trial = *k->scenario;
        for (uint32_t i = at; i < count && i < at + chunk; i++) {
            k->trial->ops[list[i]].is_off = true;
        }
        if (fails(k)) {
            *k->scenario = *k->trial;
            is_any = true;
        }
    }
    return is_any;
}

static bool ease_ops(struct shrinker *k)
{
    bool is_any = false;
    for (uint32_t i = 0; i < k->scenario->op_count; i++) {
        for (uint32_t step = 0; step < SIM_EASY_STEPS && k->plays < PLAYS_MAX; step++) {
            *k->trial = *k->scenario;
            if (k->trial->ops[i].is_off || (k->easy[i] >> step & 1u) != 0 ||
                !sim_op_ease(&k->trial->ops[i], step) || !fails(k)) {
                continue;
            }
            *k->scenario = *k->trial;
            k->easy[i] = (uint16_t)(k->easy[i] | 1u << step);
            is_any = true;
        }
    }
    return is_any;
}

uint32_t sim_shrink(struct sim_scenario *scenario, uint32_t plants, uint16_t *ret_easy)
{
    struct sim_outcome outcome;
    sim_play(scenario, plants, false, &outcome);
    struct shrinker k = {.scenario = scenario,
                         .trial = malloc(sizeof *k.trial),
                         .easy = ret_easy,
                         .plants = plants,
                         .plays = 1,
                         .verdict = outcome.failure.verdict};
    assert(k.trial != NULL && k.verdict != SIM_PASSED);
    bool is_any = true;
    while (is_any && k.plays < PLAYS_MAX) {
        is_any = false;
        uint32_t list[SIM_OPS_MAX];
        for (uint32_t chunk = (list_ops(scenario, list) + 1u) / 2u; chunk >= 1; chunk /= 2u) {
            is_any = remove_chunks(&k, chunk) || is_any;
        }
        is_any = ease_ops(&k) || is_any;
    }
    free(k.trial);
    return k.plays;
}

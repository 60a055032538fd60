#include "tests/torture/coordinator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/torture/launch.h"

#define STEP_NS 1000000L
#define ENGINE_READY_NS UINT64_C(60000000000)
#define ENGINE_END_MS 20000u
/* Beyond the bound: a request may wait for its other half until the bootstrap deadline. */
#define STALL_EXTRA_NS UINT64_C(40000000000)
#define SETTLE_NS UINT64_C(2000000)
#define RESWEEP_NS UINT64_C(4000000)
#define PROGRESS_TTY_NS UINT64_C(250000000)
#define PROGRESS_LINE_NS UINT64_C(5000000000)
/* Requests under way: so many times what the lanes' credits allow, so that some always queue. */
#define WAITING_FACTOR 3u
#define SEATS_MAX 256u
/* A fleet warms up: so many at first, one more for each that ended. */
#define RAMP_START 4u

struct run {
    const struct kvf_plan_inputs *inputs;
    struct kvf_launch launch;
    struct kvf_fleet fleet;
    struct kvf_result *result;
    uint32_t oldest; /* all requests before it have ended */
    uint32_t limit;  /* admission */
    uint32_t ended;
    uint64_t began_ns;
    uint64_t moved_ns; /* when the number of ended requests last grew */
    uint64_t told_ns;
    bool has_fleet;
};

static void make_plan(const struct run *run, const struct kvf_policy *policy,
                      struct kvf_fleet_plan *ret_plan)
{
    const struct kvf_options *o = run->inputs->options;
    struct kvf_fleet_plan plan = {.geometry = o->geometry, .seed = o->seed};
    uint32_t pairs = o->is_local ? 1 : o->prefill_count * o->decode_count; /* of daemons */
    uint32_t lanes = pairs * o->lanes;
    uint32_t seats = lanes * o->lane_rooms * WAITING_FACTOR;
    plan.settle_ns = SETTLE_NS;
    plan.resweep_ns = RESWEEP_NS;
    plan.prefill_count = o->prefill_count;
    plan.decode_count = o->decode_count;
    plan.request_count = run->inputs->request_count;
    plan.pages_max = o->pages_max;
    plan.seats = seats > SEATS_MAX ? SEATS_MAX : seats;
    plan.samples_max = run->inputs->request_count;
    plan.release_mode = (uint32_t)policy->mode;
    plan.timer_us = policy->timer_us;
    plan.inject = (uint32_t)o->inject;
    plan.has_planned_faults = o->has_planned_faults;
    plan.is_local = o->is_local;
    plan.is_verbs = o->is_verbs;
    /* Three quarters of what all seats could want at once: now and then a request waits for pages,
     * and the hot end of the free list is never far from the last abort. */
    plan.prefill_pages = plan.seats * o->pages_max * 3 / 4 / o->prefill_count + o->pages_max;
    plan.decode_pages = plan.seats * o->pages_max * 3 / 4 / o->decode_count + o->pages_max;
    snprintf(plan.run_dir, sizeof(plan.run_dir), "%s", run->launch.run_dir);
    *ret_plan = plan;
}

/* ---- admission ------------------------------------------------------------------------------------ */

static bool has_ended(const struct run *run, uint32_t request)
{
    /* Edge F4 (acquire): pairs with kvf_engine_end. */
    return atomic_load_explicit(&run->fleet.progress[request].ended, memory_order_acquire) ==
           (KVF_ENDED_SOURCE | KVF_ENDED_SINK);
}

/* Counts what is under way, and how much of it may yet become a donor. */
static void look_at_requests(struct run *run, uint32_t *ret_under_way, uint32_t *ret_hopes)
{
    uint32_t under_way = 0;
    uint32_t hopes = 0;
    while (run->oldest < run->limit && has_ended(run, run->oldest)) {
        run->oldest++;
    }
    for (uint32_t i = run->oldest; i < run->limit; i++) {
        uint32_t bits =
            atomic_load_explicit(&run->fleet.progress[i].ended, memory_order_acquire);
        under_way += bits != (KVF_ENDED_SOURCE | KVF_ENDED_SINK);
        hopes += (bits & KVF_ENDED_SINK) == 0 &&
                 run->inputs->requests[i].abort_kind != KVF_ABORT_NONE;
    }
    uint32_t ended = run->limit - under_way;
    if (ended != run->ended) {
        run->ended = ended;
        run->moved_ns = kvf_torture_now_ns();
    }
    *ret_under_way = under_way;
    *ret_hopes = hopes;
}

/* Lets requests in, in order, so that exactly the wanted number of donors comes out: one that is to be
 * aborted waits while those under way might already be enough. 1: all that is wanted was let in. */
static int admit(struct run *run)
{
    const struct kvf_options *o = run->inputs->options;
    uint32_t under_way;
    uint32_t hopes;
    look_at_requests(run, &under_way, &hopes);
    uint64_t donors = kvf_fleet_sum(&run->fleet, KVF_TALLY_DONORS);
    if (donors >= o->donors) {
        return 1;
    }
    uint32_t ramp = RAMP_START + run->ended;
    uint32_t seats = run->fleet.shm->plan.seats;
    while (run->limit < run->inputs->request_count &&
           under_way < (ramp < seats ? ramp : seats)) {
        bool is_hope = run->inputs->requests[run->limit].abort_kind != KVF_ABORT_NONE;
        if (is_hope && donors + hopes >= o->donors) {
            break;
        }
        hopes += is_hope;
        under_way++;
        run->limit++;
    }
    /* Edge F2 (release). */
    atomic_store_explicit(&run->fleet.shm->admit_limit, run->limit, memory_order_release);
    if (run->limit == run->inputs->request_count && under_way == 0) {
        return kvf_launch_fail(&run->launch, "%u requests gave only %llu donors of %u wanted",
                               run->limit, (unsigned long long)donors, o->donors);
    }
    return 0;
}

/* ---- progress ------------------------------------------------------------------------------------- */

static void tell_progress(struct run *run, uint64_t now_ns)
{
    const struct kvf_options *o = run->inputs->options;
    bool is_tty = isatty(STDERR_FILENO) == 1;
    if (o->is_quiet || now_ns - run->told_ns < (is_tty ? PROGRESS_TTY_NS : PROGRESS_LINE_NS)) {
        return;
    }
    double seconds = (double)(now_ns - run->began_ns) / 1e9;
    double moved = (double)kvf_fleet_sum(&run->fleet, KVF_TALLY_BYTES_MOVED) / 1e6;
    run->told_ns = now_ns;
    fprintf(stderr, "%s%-10s %llu of %u aborted in flight, %llu foreign, %.0f MB/s, %.0f s%s",
            is_tty ? "\r\033[K" : "", run->result->policy.name,
            (unsigned long long)kvf_fleet_sum(&run->fleet, KVF_TALLY_DONORS), o->donors,
            (unsigned long long)kvf_fleet_sum(&run->fleet, KVF_TALLY_FOREIGN), moved / seconds,
            seconds, is_tty ? "" : "\n");
    fflush(stderr);
}

static void end_progress(const struct run *run)
{
    if (!run->inputs->options->is_quiet && isatty(STDERR_FILENO) == 1) {
        fprintf(stderr, "\r\033[K");
    }
}

/* ---- the run -------------------------------------------------------------------------------------- */

static uint64_t bound_us(const struct run *run)
{
    uint64_t worst = 0;
    for (uint32_t i = 0; i < KVF_ENGINES_OF_KIND_MAX; i++) {
        struct kvf_engine_shm *both[] = {&run->fleet.shm->prefill[i],
                                         &run->fleet.shm->decode[i]};
        for (uint32_t k = 0; k < 2; k++) {
            uint64_t us = atomic_load_explicit(&both[k]->bound_worst_us, memory_order_relaxed);
            worst = us > worst ? us : worst;
        }
    }
    return worst;
}

static uint64_t time_limit_ns(const struct kvf_options *o)
{
    uint64_t seconds = o->time_limit_s != 0 ? o->time_limit_s : 120 + o->donors / 10;
    return seconds * UINT64_C(1000000000);
}

/* Lets the engines count what they still hold, and end. */
static void give_up(struct run *run)
{
    atomic_store_explicit(&run->fleet.shm->stop, 2, memory_order_release);
    kvf_launch_await_engines(&run->launch, ENGINE_END_MS);
}

/* 0: go on. -1: it cannot. */
static int check_run(struct run *run, uint64_t now_ns)
{
    if (kvf_process_signal() != 0) {
        return kvf_launch_fail(&run->launch, "interrupted by signal %d", kvf_process_signal());
    }
    if (kvf_launch_check(&run->launch) != 0) {
        return -1;
    }
    if (now_ns - run->began_ns > time_limit_ns(run->inputs->options)) {
        give_up(run);
        return kvf_launch_fail(&run->launch, "the time limit of %.0f s is over",
                               (double)time_limit_ns(run->inputs->options) / 1e9);
    }
    return 0;
}

static bool is_stalled(const struct run *run, uint64_t now_ns)
{
    return now_ns > run->moved_ns + bound_us(run) * 1000 + STALL_EXTRA_NS;
}

static void pause_step(void)
{
    struct timespec step = {.tv_nsec = STEP_NS};
    nanosleep(&step, NULL);
}

static int await_ready(struct run *run)
{
    uint64_t end_ns = kvf_torture_now_ns() + ENGINE_READY_NS;
    uint32_t ready = 0;
    while (ready < run->launch.count) {
        ready = 0;
        for (uint32_t i = 0; i < KVF_ENGINES_OF_KIND_MAX; i++) {
            struct kvf_fleet_shm *shm = run->fleet.shm;
            /* Edge F1 (acquire). */
            ready += atomic_load_explicit(&shm->prefill[i].is_ready, memory_order_acquire);
            ready += atomic_load_explicit(&shm->decode[i].is_ready, memory_order_acquire);
        }
        if (check_run(run, run->began_ns) != 0) {
            return -1;
        }
        if (kvf_torture_now_ns() > end_ns) {
            return kvf_launch_fail(&run->launch, "only %u of %u engines became ready", ready,
                                   run->launch.count);
        }
        pause_step();
    }
    return 0;
}

/* Admits until there are enough donors, then waits until all that was admitted has ended. */
static int replay(struct run *run)
{
    int rc = 0;
    run->began_ns = kvf_torture_now_ns();
    run->moved_ns = run->began_ns;
    run->told_ns = run->began_ns;
    for (;;) {
        uint64_t now_ns = kvf_torture_now_ns();
        uint32_t under_way = 0;
        uint32_t hopes;
        rc = rc == 1 ? 1 : admit(run);
        if (rc == 1) {
            look_at_requests(run, &under_way, &hopes);
        }
        if (rc < 0 || check_run(run, now_ns) != 0) {
            return -1;
        }
        if (rc == 1 && under_way == 0) {
            break;
        }
        if (is_stalled(run, now_ns)) {
            give_up(run); /* not broken: what is left counts as lost */
            return 0;
        }
        tell_progress(run, now_ns);
        pause_step();
    }
    run->result->seconds = (double)(kvf_torture_now_ns() - run->began_ns) / 1e9;
    /* Edge F3 (release). */
    atomic_store_explicit(&run->fleet.shm->stop, 1, memory_order_release);
    return kvf_launch_await_engines(&run->launch, ENGINE_END_MS);
}

/* ---- results -------------------------------------------------------------------------------------- */

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the values. The q-quantile is the smallest value that at least that share does not pass. */
static struct kvf_quantiles quantiles(uint32_t *values, uint32_t count)
{
    struct kvf_quantiles q = {0, 0, 0};
    if (count > 0) {
        qsort(values, count, sizeof(*values), compare_u32);
        q.p50 = values[((uint64_t)count * 50 + 99) / 100 - 1];
        q.p99 = values[((uint64_t)count * 99 + 99) / 100 - 1];
        q.max = values[count - 1];
    }
    return q;
}

static void take_samples(const struct run *run)
{
    const struct kvf_fleet_plan *plan = &run->fleet.shm->plan;
    uint32_t *engine_us =
        calloc((size_t)plan->decode_count * plan->samples_max, sizeof(uint32_t));
    uint32_t *daemon_us =
        calloc((size_t)plan->decode_count * plan->samples_max, sizeof(uint32_t));
    uint32_t count = 0;
    for (uint32_t d = 0; engine_us != NULL && daemon_us != NULL && d < plan->decode_count;
         d++) {
        const struct kvf_sample_shm *samples =
            run->fleet.samples + (size_t)d * plan->samples_max;
        uint32_t own =
            atomic_load_explicit(&run->fleet.shm->decode[d].sample_count, memory_order_relaxed);
        for (uint32_t i = 0; i < own; i++, count++) {
            engine_us[count] = samples[i].engine_us;
            daemon_us[count] = samples[i].daemon_us;
        }
    }
    run->result->engine_us = quantiles(engine_us, count);
    run->result->daemon_us = quantiles(daemon_us, count);
    free(engine_us);
    free(daemon_us);
}

static void collect(const struct run *run)
{
    struct kvf_result *result = run->result;
    for (int t = 0; t < KVF_TALLY_COUNT; t++) {
        result->tallies[t] = kvf_fleet_sum(&run->fleet, (enum kvf_tally)t);
    }
    take_samples(run);
    result->bound_worst_us = bound_us(run);
    for (uint32_t i = 0; i < KVF_ENGINES_OF_KIND_MAX; i++) {
        const struct kvf_engine_shm *decode = &run->fleet.shm->decode[i];
        uint64_t us = atomic_load_explicit(&decode->bound_usual_us, memory_order_relaxed);
        result->bound_usual_us = us > result->bound_usual_us ? us : result->bound_usual_us;
        if (result->note[0] == 0) {
            snprintf(result->note, sizeof(result->note), "%s", decode->note);
        }
    }
}

int kvf_coordinator_run(const struct kvf_plan_inputs *inputs, const struct kvf_policy *policy,
                        struct kvf_result *ret_result)
{
    struct run run = {.inputs = inputs, .result = ret_result};
    struct kvf_fleet_plan plan;
    int rc;
    memset(ret_result, 0, sizeof(*ret_result));
    ret_result->policy = *policy;
    rc = kvf_launch_prepare(&run.launch, inputs->options, ret_result);
    if (rc == 0) {
        make_plan(&run, policy, &plan);
        rc = kvf_fleet_create(&plan, &run.fleet);
        if (rc != 0) {
            rc = kvf_launch_fail(&run.launch, "cannot make the fleet's memory: %s",
                                 strerror(-rc));
        } else {
            run.has_fleet = true;
            memcpy(run.fleet.requests, inputs->requests,
                   inputs->request_count * sizeof(*inputs->requests));
            rc = kvf_launch_daemons(&run.launch, &run.fleet);
        }
    }
    if (rc == 0 && (rc = kvf_launch_engines(&run.launch)) == 0 &&
        (rc = await_ready(&run)) == 0) {
        rc = replay(&run);
    }
    end_progress(&run);
    if (rc == 0) {
        rc = kvf_launch_end_lanes(&run.launch);
    }
    if (rc == 0) {
        kvf_launch_read_stats(&run.launch);
    }
    kvf_launch_end(&run.launch);
    if (run.has_fleet) {
        collect(&run);
        kvf_fleet_close(&run.fleet);
    }
    ret_result->has_run = rc == 0;
    return rc == 0 ? 0 : -1;
}

/* Lanes of transport verbs: opening, joining, turns, fences.
 *
 * A lane is a queue pair. What can take long (making, changing and destroying it) is done by threads of their own
 * (verbs_qp.c), and the loop only polls completion queues (verbs_poll.c) and posts (verbs_post.c). The proof of a
 * fence is the destroy that returned: until then a write that is on its way may still land, whatever the
 * completions say, whatever state the queue pair is in, and however long ago that was.
 *
 * Lanes with something to tell or to post stand in one list, at most once each; lanes whose completions are
 * waited for stand in a list by age, so that the one that waits longest is found without looking at others. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/transport/verbs_lane.h"

/* ---- create and close ------------------------------------------------------------------------------- */

static const char *config_fault(const struct kvf_transport_config *config,
                                const struct kvf_verbs_config *verbs,
                                const struct kvf_transport_host *host)
{
    uint32_t posts_max = config->posts_per_lane_max;
    uint32_t mtu = verbs->mtu_bytes;
    if (config->lanes_max == 0 || config->lanes_max > KVF_VERBS_LANES_MAX) {
        return "the number of lanes is out of range";
    }
    if (posts_max == 0 || (posts_max & (posts_max - 1u)) != 0) {
        return "the length of a lane's queue is no power of two";
    }
    if (config->turn_bytes_max == 0) {
        return "a turn that moves nothing";
    }
    if (host->now_fn == NULL || verbs->stall_ns == 0) {
        return "lanes that stand still would not be noticed";
    }
    if (verbs->rail_count == 0 || verbs->rail_count > KVF_RAILS_MAX) {
        return "the number of devices is out of range";
    }
    if (verbs->port == 0 || verbs->port > 255) {
        return "ports have the numbers 1 to 255";
    }
    if (mtu != 0 && (mtu < 256 || mtu > 4096 || (mtu & (mtu - 1u)) != 0)) {
        return "the MTU is none of 256, 512, 1024, 2048, 4096";
    }
    if (verbs->timeout == 0 || verbs->timeout > 31) {
        return "the ACK timeout is not in 1 .. 31 (0 means for ever)";
    }
    if (verbs->retry > 6) {
        return "more than 6 retries mean for ever on some devices";
    }
    if (verbs->service_level > 7) {
        return "service levels are 0 to 7";
    }
    if (verbs->receives_per_lane == 0 || verbs->receives_per_lane > (1u << 16)) {
        return "the number of receives per lane is out of range";
    }
    for (uint32_t i = 0; i < verbs->rail_count; i++) {
        if (memchr(verbs->rails[i], 0, sizeof(verbs->rails[i])) == NULL ||
            verbs->rails[i][0] == 0) {
            return "a device's name is empty or too long";
        }
    }
    return NULL;
}

static int hands_create(struct kvf_verbs *v)
{
    int rc = 0;
    for (uint32_t i = 0; i < KVF_VERBS_HANDS && rc == 0; i++) {
        rc = kvf_helper_create(&v->hands[i].helper);
    }
    return rc;
}

/* Each with the jobs it had. */
static void hands_destroy(struct kvf_verbs *v)
{
    for (uint32_t i = 0; i < KVF_VERBS_HANDS; i++) {
        if (v->hands[i].helper != NULL) {
            kvf_helper_destroy(v->hands[i].helper);
            v->hands[i].helper = NULL;
        }
    }
}

static void free_all(struct kvf_verbs *v)
{
    hands_destroy(v);
    if (v->rails != NULL) {
        kvf_verbs_rails_close(v);
    }
    free(v->rails);
    free(v->entries);
    free(v->lanes);
    free(v);
}

static int allocate(struct kvf_verbs *v)
{
    uint32_t lanes_max = v->config.lanes_max;
    uint32_t posts_max = v->config.posts_per_lane_max;
    /* Zero pages until a lane is used. */
    v->lanes = calloc(lanes_max, sizeof(*v->lanes));
    v->entries = calloc((size_t)lanes_max * posts_max, sizeof(*v->entries));
    v->rails = calloc(v->verbs.rail_count, sizeof(*v->rails));
    if (v->lanes == NULL || v->entries == NULL || v->rails == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < lanes_max; i++) {
        struct kvf_verbs_lane *lane = &v->lanes[i];
        lane->idx = i;
        lane->entries = v->entries + (size_t)i * posts_max;
        lane->age_next = KVF_NONE;
        lane->age_prev = KVF_NONE;
    }
    return 0;
}

int kvf_verbs_create(const struct kvf_transport_config *config,
                     const struct kvf_verbs_config *verbs,
                     const struct kvf_transport_host *host, const struct kvf_verbs_lib *lib,
                     struct kvf_transport **ret_transport, char *ret_error, size_t error_cap)
{
    const char *fault = config_fault(config, verbs, host);
    if (fault != NULL) {
        (void)snprintf(ret_error, error_cap, "%s", fault);
        return -EINVAL;
    }
    if (lib == NULL) {
        int rc = kvf_verbs_lib_load(&lib, ret_error, error_cap);
        if (rc != 0) {
            return rc;
        }
    }
    struct kvf_verbs *v = calloc(1, sizeof(*v));
    if (v == NULL) {
        (void)snprintf(ret_error, error_cap, "no memory");
        return -ENOMEM;
    }
    v->config = *config;
    v->verbs = *verbs;
    v->host = *host;
    v->lib = lib;
    v->mark_head = KVF_NONE;
    v->mark_tail = KVF_NONE;
    kvf_verbs_flushes_init(v);
    v->posted = (struct kvf_verbs_ages){.head = KVF_NONE, .tail = KVF_NONE};
    v->reaping = v->posted;
    int rc = allocate(v);
    if (rc == 0) {
        rc = hands_create(v);
    }
    if (rc != 0) {
        (void)snprintf(ret_error, error_cap, "no memory or no thread for lanes");
    } else {
        rc = kvf_verbs_rails_open(v, ret_error, error_cap);
    }
    if (rc != 0) {
        free_all(v);
        return rc;
    }
    *ret_transport = (struct kvf_transport *)(void *)v;
    return 0;
}

void kvf_verbs_counts(const struct kvf_transport *t, struct kvf_verbs_counts *ret_counts)
{
    const struct kvf_verbs *v = kvf_const_verbs_of(t);
    *ret_counts = v->counts;
    for (uint32_t i = 0; i < v->rail_count; i++) {
        ret_counts->rails_up += v->rails[i].is_up;
    }
}

/* ---- lists ------------------------------------------------------------------------------------------- */

void kvf_verbs_mark(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    if (lane->is_marked) {
        return;
    }
    lane->is_marked = true;
    lane->mark_next = KVF_NONE;
    if (v->mark_tail == KVF_NONE) {
        v->mark_head = lane->idx;
    } else {
        v->lanes[v->mark_tail].mark_next = lane->idx;
    }
    v->mark_tail = lane->idx;
    v->mark_count++;
}

static struct kvf_verbs_lane *unmark_first(struct kvf_verbs *v)
{
    assert(v->mark_head != KVF_NONE);
    struct kvf_verbs_lane *lane = &v->lanes[v->mark_head];
    v->mark_head = lane->mark_next;
    if (v->mark_head == KVF_NONE) {
        v->mark_tail = KVF_NONE;
    }
    v->mark_count--;
    lane->is_marked = false;
    return lane;
}

/* Times only grow, so who comes last is the youngest. */
void kvf_verbs_age_add(struct kvf_verbs *v, struct kvf_verbs_ages *ages,
                       struct kvf_verbs_lane *lane)
{
    assert(lane->ages == NULL);
    lane->ages = ages;
    lane->age_ns = v->now_ns;
    lane->age_next = KVF_NONE;
    lane->age_prev = ages->tail;
    if (ages->tail == KVF_NONE) {
        ages->head = lane->idx;
    } else {
        v->lanes[ages->tail].age_next = lane->idx;
    }
    ages->tail = lane->idx;
}

void kvf_verbs_age_remove(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    struct kvf_verbs_ages *ages = lane->ages;
    if (ages == NULL) {
        return;
    }
    if (lane->age_prev == KVF_NONE) {
        ages->head = lane->age_next;
    } else {
        v->lanes[lane->age_prev].age_next = lane->age_next;
    }
    if (lane->age_next == KVF_NONE) {
        ages->tail = lane->age_prev;
    } else {
        v->lanes[lane->age_next].age_prev = lane->age_prev;
    }
    lane->ages = NULL;
}

/* When the first of a list has waited for that long; KVF_NO_TIME: nobody waits. */
static uint64_t age_due_ns(const struct kvf_verbs *v, const struct kvf_verbs_ages *ages,
                           uint64_t after_ns)
{
    if (ages->head == KVF_NONE) {
        return KVF_NO_TIME;
    }
    uint64_t since_ns = v->lanes[ages->head].age_ns;
    return after_ns > KVF_NO_TIME - since_ns ? KVF_NO_TIME : since_ns + after_ns;
}

/* ---- jobs -------------------------------------------------------------------------------------------- */

/* The destroyer with the fewest jobs. One whose call does not return keeps its own, and gets no more than its share. */
static enum kvf_verbs_hand least_busy_destroyer(const struct kvf_verbs *v)
{
    uint32_t best = KVF_VERBS_DESTROYER;
    for (uint32_t i = best + 1u; i < KVF_VERBS_HANDS; i++) {
        best = v->hands[i].out < v->hands[best].out ? i : best;
    }
    return (enum kvf_verbs_hand)best;
}

static enum kvf_verbs_hand hand_for(const struct kvf_verbs *v, enum kvf_verbs_work work)
{
    switch (work) {
    case KVF_VERBS_STOP:
        return KVF_VERBS_STOPPER;
    case KVF_VERBS_DESTROY:
    case KVF_VERBS_CQ_DESTROY:
        return least_busy_destroyer(v);
    case KVF_VERBS_MAKE_FLUSHER:
        return KVF_VERBS_READER;
    case KVF_VERBS_MAKE:
    case KVF_VERBS_JOIN:
    case KVF_VERBS_LOOK:
        break;
    }
    return KVF_VERBS_MAKER;
}

/* The loop has it again. */
static void job_returned(struct kvf_verbs *v, const struct kvf_verbs_job *job)
{
    assert(v->jobs_out > 0 && v->hands[job->hand].out > 0);
    v->jobs_out--;
    v->hands[job->hand].out--;
}

void kvf_verbs_push(struct kvf_verbs *v, struct kvf_verbs_job *job, enum kvf_verbs_work work)
{
    job->work = work;
    job->verbs = v;
    job->err = 0;
    job->receives_posted = 0;
    job->numbers_avoided = 0;
    job->has_cq = false;
    job->has_replaced_cq = false;
    job->hand = hand_for(v, work);
    job->job.work_fn = kvf_verbs_work;
    v->jobs_out++;
    v->hands[job->hand].out++;
    if (job->lane != NULL) {
        assert(!job->lane->job_out);
        job->lane->job_out = true;
    }
    kvf_helper_push(v->hands[job->hand].helper, &job->job);
}

/* ---- open and join ----------------------------------------------------------------------------------- */

static void lane_begin(struct kvf_verbs *v, const struct kvf_lane_open *open)
{
    struct kvf_verbs_lane *lane = &v->lanes[open->lane];
    lane->epoch = open->epoch;
    lane->state = KVF_VERBS_MAKING;
    lane->phase = KVF_VERBS_WAITING;
    lane->is_sink = open->end == NULL;
    lane->rail = kvf_verbs_rail_of_lane(v, open->lane_idx);
    lane->owes_ready = false;
    lane->owes_up = false;
    lane->owes_lost = 0;
    lane->head = 0;
    lane->handed = 0;
    lane->tail = 0;
    lane->wr_posted = 0;
    lane->wr_reaped = 0;
    lane->detach_depth = 0;
    lane->has_failed = false;
    lane->fail_status = 0;
    lane->receives_posted = 0;
    lane->receives_reaped = 0;
    /* A queue of one work request for the direction that is not used: some devices refuse none. */
    lane->cq_slots = 1u + (lane->is_sink ? lane->rail->receive_depth : lane->rail->send_depth);
    lane->cq = kvf_verbs_cq_take(lane->rail, lane->cq_slots);
    lane->job =
        (struct kvf_verbs_job){.rail = lane->rail->idx,
                               .lane = lane,
                               .cq = lane->cq,
                               .is_sink = lane->is_sink,
                               .receive_id = kvf_verbs_id(lane, 0) | KVF_VERBS_ID_RECEIVE};
}

static int verbs_open(struct kvf_transport *t, const struct kvf_lane_open *open)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    if (open->lane >= v->config.lanes_max || open->accepted_fd >= 0) {
        return -EINVAL; /* a queue pair is never a stream that somebody accepted */
    }
    struct kvf_verbs_lane *lane = &v->lanes[open->lane];
    if (lane->state != KVF_VERBS_FREE) {
        return -EBUSY;
    }
    if (open->end != NULL) {
        bool is_infiniband = kvf_verbs_rail_of_lane(v, open->lane_idx)->is_infiniband;
        int rc = kvf_verbs_check_end(open->end, is_infiniband);
        if (rc != 0) {
            return rc;
        }
    }
    lane_begin(v, open);
    if (lane->cq == NULL) {
        kvf_verbs_lose(v, lane, ENOBUFS);
        return 0;
    }
    if (open->end != NULL) {
        lane->job.peer = *open->end;
    }
    kvf_verbs_push(v, &lane->job, KVF_VERBS_MAKE);
    return 0;
}

static int verbs_join(struct kvf_transport *t, uint32_t lane_idx, uint32_t epoch,
                      const struct kvf_lane_end *end)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    if (lane_idx >= v->config.lanes_max) {
        return -EINVAL;
    }
    struct kvf_verbs_lane *lane = &v->lanes[lane_idx];
    if (lane->state != KVF_VERBS_READY || lane->epoch != epoch || lane->job_out) {
        return -ENOTCONN;
    }
    int rc = kvf_verbs_check_end(end, lane->rail->is_infiniband);
    if (rc != 0) {
        return rc;
    }
    lane->state = KVF_VERBS_JOINING;
    lane->job.peer = *end;
    kvf_verbs_push(v, &lane->job, KVF_VERBS_JOIN);
    return 0;
}

/* ---- losing and fences ------------------------------------------------------------------------------- */

void kvf_verbs_lose(struct kvf_verbs *v, struct kvf_verbs_lane *lane, int err)
{
    assert(err > 0);
    if (lane->state == KVF_VERBS_FREE || lane->state == KVF_VERBS_LOST ||
        lane->state == KVF_VERBS_FENCING) {
        return;
    }
    lane->state = KVF_VERBS_LOST;
    lane->owes_ready = false;
    lane->owes_up = false;
    lane->owes_lost = err;
    kvf_verbs_age_remove(v, lane);
    kvf_verbs_mark(v, lane);
}

/* The device could not do what the proof needs. Whatever it did instead is none: this lane is never fenced, and
 * whoever waits for it ends the worker. */
static void get_stuck(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    kvf_verbs_age_remove(v, lane);
    lane->phase = KVF_VERBS_STUCK;
    v->counts.fences_failed++;
}

void kvf_verbs_destroy_lane(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    assert(lane->state == KVF_VERBS_FENCING && lane->phase == KVF_VERBS_REAPING);
    kvf_verbs_age_remove(v, lane);
    lane->phase = KVF_VERBS_DESTROYING;
    kvf_verbs_push(v, &lane->job, KVF_VERBS_DESTROY);
}

/* The lane is not in the helper's hands. */
static void fence_begin(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    if (lane->job.qp == NULL) {
        lane->phase = KVF_VERBS_ENDING;
        kvf_verbs_mark(v, lane);
        return;
    }
    lane->phase = KVF_VERBS_STOPPING;
    kvf_verbs_push(v, &lane->job, KVF_VERBS_STOP);
}

static void verbs_fence(struct kvf_transport *t, uint32_t lane_idx, uint32_t epoch)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    assert(lane_idx < v->config.lanes_max);
    struct kvf_verbs_lane *lane = &v->lanes[lane_idx];
    if (lane->state == KVF_VERBS_FREE || lane->epoch != epoch) {
        /* A queue pair of another epoch was never made, or destroyed before this one was. */
        v->host.fenced_fn(v->host.ctx, lane_idx, epoch);
        return;
    }
    if (lane->state == KVF_VERBS_FENCING) {
        return; /* one answer */
    }
    lane->state = KVF_VERBS_FENCING;
    lane->phase = KVF_VERBS_WAITING;
    lane->owes_ready = false;
    lane->owes_up = false;
    lane->owes_lost = 0;
    kvf_verbs_age_remove(v, lane);
    if (lane->job_out && kvf_helper_cancel(v->hands[lane->job.hand].helper, &lane->job.job)) {
        lane->job_out = false; /* a make or a join that nobody needs any more */
        job_returned(v, &lane->job);
    }
    if (!lane->job_out) {
        fence_begin(v, lane);
    }
}

/* The helper moved the queue pair to ERR: what is posted comes back as completions, for the accounts. They
 * prove nothing about the pages. A stop that was refused (there is no way to ERR from RESET, where a pair stays that
 * could not be set up) brings no completions to wait for, and the proof never was the stop: the destroy is next. */
static void on_stopped(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    lane->phase = KVF_VERBS_REAPING;
    kvf_verbs_age_add(v, &v->reaping, lane);
    if (lane->job.err != 0 || kvf_verbs_is_reaped(lane) || lane->cq->is_broken) {
        kvf_verbs_destroy_lane(v, lane);
    }
}

/* The queue pair is gone, and this is the proof. Its completions that are still in the queue are taken out, so
 * that its slots are free in truth; what did not come will never come. */
static void on_destroyed(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    if (lane->job.err != 0) {
        get_stuck(v, lane);
        return;
    }
    assert(lane->job.qp == NULL);
    if (!kvf_verbs_is_reaped(lane) && !lane->cq->is_broken) {
        kvf_verbs_cq_empty(v, lane->cq);
    }
    v->counts.queue_pairs_destroyed++;
    v->counts.posted += lane->wr_posted + (uint64_t)lane->receives_posted;
    v->counts.reaped += lane->wr_reaped + (uint64_t)lane->receives_reaped;
    v->counts.written_off += kvf_verbs_sends_out(lane);
    v->counts.written_off += lane->receives_posted - lane->receives_reaped;
    lane->phase = KVF_VERBS_ENDING;
    kvf_verbs_mark(v, lane);
}

/* Completes what is left and answers. */
static void lane_end(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    assert(lane->job.qp == NULL && !lane->job_out);
    kvf_verbs_complete_all(v, lane);
    if (lane->cq != NULL) {
        kvf_verbs_cq_give(v, lane->cq, lane->cq_slots);
        lane->cq = NULL;
    }
    lane->serial++;
    lane->state = KVF_VERBS_FREE;
    v->host.fenced_fn(v->host.ctx, lane->idx, lane->epoch);
}

/* ---- what the helper brings back ---------------------------------------------------------------------- */

static void on_made(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    struct kvf_verbs_job *job = &lane->job;
    v->counts.numbers_avoided += job->numbers_avoided;
    v->counts.queue_pairs_made += job->qp != NULL ? 1u : 0u;
    lane->receives_posted = job->receives_posted;
    lane->cq->is_made |= job->has_cq;
    if (lane->state != KVF_VERBS_MAKING) {
        return; /* lost meanwhile */
    }
    if (job->err == 0 || job->err == -ENETDOWN || job->err == -EADDRNOTAVAIL) {
        kvf_verbs_rail_note(v, lane->rail, job->err);
    }
    if (job->err != 0) {
        kvf_verbs_lose(v, lane, -job->err);
        return;
    }
    lane->state = lane->is_sink ? KVF_VERBS_READY : KVF_VERBS_UP;
    lane->owes_ready = true;
    kvf_verbs_mark(v, lane);
}

static void on_joined(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    if (lane->state != KVF_VERBS_JOINING) {
        return;
    }
    if (lane->job.err != 0) {
        kvf_verbs_lose(v, lane, -lane->job.err);
        return;
    }
    lane->state = KVF_VERBS_UP;
    lane->owes_up = true;
    kvf_verbs_mark(v, lane);
}

static void lane_job_back(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    lane->job_out = false;
    switch (lane->job.work) {
    case KVF_VERBS_MAKE:
        on_made(v, lane);
        break;
    case KVF_VERBS_JOIN:
        on_joined(v, lane);
        break;
    case KVF_VERBS_STOP:
        on_stopped(v, lane);
        return;
    case KVF_VERBS_DESTROY:
        on_destroyed(v, lane);
        return;
    case KVF_VERBS_CQ_DESTROY:
    case KVF_VERBS_LOOK:
    case KVF_VERBS_MAKE_FLUSHER:
        assert(false); /* never a lane's */
    }
    if (lane->state == KVF_VERBS_FENCING) {
        fence_begin(v, lane);
    }
}

static uint64_t take_from(struct kvf_verbs *v, struct kvf_helper *helper)
{
    uint64_t taken = 0;
    struct kvf_job *back = NULL;
    /* To the end: the take that finds nothing makes the descriptor unreadable. */
    while ((back = kvf_helper_take(helper)) != NULL) {
        struct kvf_verbs_job *job = (struct kvf_verbs_job *)back;
        job_returned(v, job);
        taken++;
        if (job->lane != NULL) {
            lane_job_back(v, job->lane);
        } else if (job->work == KVF_VERBS_LOOK) {
            kvf_verbs_look_back(v, &v->rails[job->rail]);
        } else if (job->work == KVF_VERBS_MAKE_FLUSHER) {
            kvf_verbs_flusher_back(v, &v->rails[job->rail]);
        } else if (job->err == 0) {
            *job->cq = (struct kvf_verbs_cq){.rail = job->rail};
        } /* a queue that cannot be destroyed keeps its place */
    }
    return taken;
}

static uint64_t take_jobs(struct kvf_verbs *v)
{
    uint64_t taken = 0;
    /* The question alone costs a call of the system. */
    for (uint32_t i = 0; i < KVF_VERBS_HANDS && v->jobs_out > 0; i++) {
        taken += v->hands[i].out > 0 ? take_from(v, v->hands[i].helper) : 0;
    }
    return taken;
}

/* ---- turns ------------------------------------------------------------------------------------------- */

static uint64_t lane_turn(struct kvf_verbs *v, struct kvf_verbs_lane *lane)
{
    uint64_t moved = 0;
    if (lane->owes_ready) {
        struct kvf_lane_end end = lane->job.end;
        lane->owes_ready = false;
        moved++;
        v->host.ready_fn(v->host.ctx, lane->idx, lane->epoch, &end);
    }
    if (lane->owes_up) {
        lane->owes_up = false;
        moved++;
        v->host.up_fn(v->host.ctx, lane->idx, lane->epoch);
    }
    if (lane->state == KVF_VERBS_UP && kvf_verbs_has_posts(v, lane)) {
        moved += kvf_verbs_hand_over(v, lane);
        kvf_verbs_tell_completed(v, lane);
    }
    if (lane->owes_lost != 0) {
        int err = lane->owes_lost;
        lane->owes_lost = 0;
        moved++;
        v->host.lost_fn(v->host.ctx, lane->idx, lane->epoch, err);
    }
    if (lane->state == KVF_VERBS_FENCING && lane->phase == KVF_VERBS_ENDING) {
        moved++;
        lane_end(v, lane);
    }
    if (kvf_verbs_has_posts(v, lane)) {
        kvf_verbs_mark(v, lane);
    }
    return moved;
}

/* Of each list the first has waited longest. */
static void check_ages(struct kvf_verbs *v)
{
    while (age_due_ns(v, &v->posted, v->verbs.stall_ns) <= v->now_ns) {
        kvf_verbs_lose(v, &v->lanes[v->posted.head], ETIMEDOUT);
    }
    while (age_due_ns(v, &v->reaping, v->verbs.reap_ns) <= v->now_ns) {
        kvf_verbs_destroy_lane(v, &v->lanes[v->reaping.head]);
    }
}

static uint64_t verbs_poll(struct kvf_transport *t)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    uint64_t now_ns = v->host.now_fn(v->host.ctx);
    v->now_ns = now_ns > v->now_ns ? now_ns : v->now_ns;
    uint64_t moved = take_jobs(v);
    moved += kvf_verbs_poll_cqs(v);
    if (v->flush_count > 0) {
        moved += kvf_verbs_flush_poll(v);
    }
    check_ages(v);
    /* Lanes marked on the way wait for the next poll: one turn each. */
    for (uint32_t left = v->mark_count; left > 0; left--) {
        moved += lane_turn(v, unmark_first(v));
    }
    return moved;
}

uint64_t kvf_verbs_due_ns(const struct kvf_transport *t)
{
    const struct kvf_verbs *v = kvf_const_verbs_of(t);
    if (v->mark_count > 0 || kvf_verbs_flush_is_ready(v)) {
        return 0;
    }
    uint64_t stalled_ns = age_due_ns(v, &v->posted, v->verbs.stall_ns);
    uint64_t reaped_ns = age_due_ns(v, &v->reaping, v->verbs.reap_ns);
    return stalled_ns < reaped_ns ? stalled_ns : reaped_ns;
}

/* ---- events ------------------------------------------------------------------------------------------- */

uint32_t kvf_verbs_fds(const struct kvf_transport *t, int *ret_fds, uint32_t cap)
{
    const struct kvf_verbs *v = kvf_const_verbs_of(t);
    uint32_t count = 0;
    assert(cap >= KVF_VERBS_FDS_MAX);
    for (uint32_t i = 0; i < KVF_VERBS_HANDS; i++) {
        ret_fds[count++] = kvf_helper_fd(v->hands[i].helper);
    }
    for (uint32_t i = 0; i < v->rail_count; i++) {
        if (v->rails[i].context != NULL) {
            ret_fds[count++] = v->rails[i].channel->fd;
            ret_fds[count++] = v->rails[i].context->async_fd;
        }
    }
    return count;
}

void kvf_verbs_ready(struct kvf_transport *t)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    for (uint32_t i = 0; i < v->lane_rail_count; i++) {
        kvf_verbs_rail_events(v, &v->rails[v->lane_rails[i]]);
    }
}

bool kvf_verbs_may_sleep(struct kvf_transport *t)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    for (uint32_t i = 0; i < v->rail_count; i++) {
        struct kvf_verbs_rail *rail = &v->rails[i];
        for (uint32_t j = 0; j < rail->cq_count; j++) {
            struct kvf_verbs_cq *cq = &rail->cqs[j];
            if (cq->is_made && !cq->is_broken && ibv_req_notify_cq(cq->cq, 0) != 0) {
                return false;
            }
        }
    }
    if (!kvf_verbs_flush_arm(v)) {
        return false;
    }
    /* What came before a queue was armed wakes nobody: it is found here. */
    return verbs_poll(t) == 0 && v->mark_count == 0 && !kvf_verbs_flush_is_ready(v);
}

/* ---- the rest of the table ------------------------------------------------------------------------------ */

static bool verbs_can_post(const struct kvf_transport *t, uint32_t lane_idx)
{
    const struct kvf_verbs *v = kvf_const_verbs_of(t);
    return lane_idx < v->config.lanes_max && kvf_verbs_can_post(v, &v->lanes[lane_idx]);
}

static int verbs_post(struct kvf_transport *t, uint32_t lane_idx, const struct kvf_post *post)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    return lane_idx < v->config.lanes_max ? kvf_verbs_post(v, &v->lanes[lane_idx], post)
                                          : -EINVAL;
}

static void verbs_detach(struct kvf_transport *t, uint32_t lane_idx, uint64_t cookie)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    if (lane_idx < v->config.lanes_max) {
        kvf_verbs_detach(v, &v->lanes[lane_idx], cookie);
    }
}

/* Destroys every queue pair and waits for it: the loop has ended, and nothing else waits for this thread. What
 * cannot be destroyed ends with the process. */
static void verbs_close(struct kvf_transport *t)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    hands_destroy(v);
    for (uint32_t i = 0; i < v->config.lanes_max; i++) {
        struct kvf_verbs_lane *lane = &v->lanes[i];
        if (lane->state == KVF_VERBS_FREE) {
            continue;
        }
        lane->state = KVF_VERBS_FENCING;
        lane->phase = KVF_VERBS_ENDING;
        if (lane->job.qp != NULL && v->lib->destroy_qp(lane->job.qp) != 0) {
            continue; /* its posts are never told: their pages may still be read */
        }
        lane->job.qp = NULL;
        kvf_verbs_complete_all(v, lane);
        lane->state = KVF_VERBS_FREE;
    }
    free_all(v);
}

const struct kvf_transport_ops kvf_verbs_ops = {
    .name = "verbs",
    .open = verbs_open,
    .join = verbs_join,
    .can_post = verbs_can_post,
    .post = verbs_post,
    .detach = verbs_detach,
    .poll = verbs_poll,
    .fence = verbs_fence,
    .close = verbs_close,
};

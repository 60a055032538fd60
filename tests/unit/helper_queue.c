/* The helper's thread takes what can take long, so that the loop never does. */
#include <criterion/criterion.h>

#include <poll.h>
#include <semaphore.h>
#include <stdint.h>
#include <time.h>

#include "sidecar/host/helper.h"

struct slow_job {
    struct kvf_job job;
    sem_t begun;
    sem_t may_end;
};

static void wait_for_leave(struct kvf_job *job)
{
    struct slow_job *slow = (struct slow_job *)job;
    sem_post(&slow->begun);
    while (sem_wait(&slow->may_end) != 0) {
    }
}

static void slow_init(struct slow_job *slow)
{
    *slow = (struct slow_job){.job = {.work_fn = wait_for_leave}};
    cr_assert_eq(sem_init(&slow->begun, 0, 0), 0);
    cr_assert_eq(sem_init(&slow->may_end, 0, 0), 0);
}

/* The descriptor stays readable until a take finds nothing, so the last look may be in vain. */
static struct kvf_job *take_within(struct kvf_helper *helper, int ms)
{
    struct pollfd p = {.fd = kvf_helper_fd(helper), .events = POLLIN};
    struct kvf_job *job = kvf_helper_take(helper);
    while (job == NULL && poll(&p, 1, ms) == 1) {
        job = kvf_helper_take(helper);
    }
    return job;
}

/* Pushing and asking return while the job is in the middle: a registration of 80 GB costs the loop nothing. */
Test(helper_queue, h19_a_job_that_takes_long_runs_beside_the_loop)
{
    struct kvf_helper *helper = NULL;
    struct slow_job jobs[3];
    cr_assert_eq(kvf_helper_create(&helper), 0);
    for (uint32_t i = 0; i < 3; i++) {
        slow_init(&jobs[i]);
        kvf_helper_push(helper, &jobs[i].job);
    }
    cr_assert_eq(sem_wait(&jobs[0].begun), 0);
    cr_assert_eq(kvf_helper_take(helper), NULL); /* begun, not ended: still the helper's */
    for (uint32_t i = 0; i < 3; i++) {
        /* The one that the others wait for, under a number that tells a later job at the same place. */
        uint64_t seq = 0;
        cr_assert_eq(kvf_helper_oldest(helper, &seq), &jobs[i].job);
        cr_assert_eq(seq, i + 1u);
        sem_post(&jobs[i].may_end);
        cr_assert_eq(take_within(helper, 10000), &jobs[i].job, "in order of push");
    }
    cr_assert_eq(take_within(helper, 0), NULL);
    uint64_t seq = 0;
    cr_assert_eq(kvf_helper_oldest(helper, &seq), NULL);
    cr_assert_eq(seq, 4);
}

/* What must never stand behind a long registration, a fence say, has a helper of its own. */
Test(helper_queue, h39_a_second_helper_does_not_queue_behind_the_first)
{
    struct kvf_helper *registrations = NULL;
    struct kvf_helper *fences = NULL;
    struct slow_job slow;
    struct slow_job quick;
    cr_assert_eq(kvf_helper_create(&registrations), 0);
    cr_assert_eq(kvf_helper_create(&fences), 0);
    slow_init(&slow);
    slow_init(&quick);
    kvf_helper_push(registrations, &slow.job);
    cr_assert_eq(sem_wait(&slow.begun), 0);
    sem_post(&quick.may_end);
    kvf_helper_push(fences, &quick.job);
    cr_assert_eq(take_within(fences, 10000), &quick.job);
    cr_assert_eq(kvf_helper_take(registrations), NULL);
    sem_post(&slow.may_end);
    cr_assert_eq(take_within(registrations, 10000), &slow.job);
}

/* What has not begun is given back, from wherever it stands, and the others go on in their order. */
Test(helper_queue, a_job_that_has_not_begun_can_be_taken_back)
{
    struct kvf_helper *helper = NULL;
    struct slow_job jobs[5];
    cr_assert_eq(kvf_helper_create(&helper), 0);
    for (uint32_t i = 0; i < 4; i++) {
        slow_init(&jobs[i]);
        sem_post(&jobs[i].may_end);
    }
    slow_init(&jobs[4]);
    kvf_helper_push(helper, &jobs[4].job);
    cr_assert_eq(sem_wait(&jobs[4].begun), 0);
    for (uint32_t i = 0; i < 4; i++) {
        kvf_helper_push(helper, &jobs[i].job);
    }
    cr_assert_not(kvf_helper_cancel(helper, &jobs[4].job), "at work");
    cr_assert(kvf_helper_cancel(helper, &jobs[0].job), "the first");
    cr_assert(kvf_helper_cancel(helper, &jobs[2].job), "in the middle");
    cr_assert(kvf_helper_cancel(helper, &jobs[3].job), "the last");
    cr_assert_not(kvf_helper_cancel(helper, &jobs[3].job), "not there any more");
    kvf_helper_push(helper, &jobs[0].job);
    sem_post(&jobs[4].may_end);
    cr_assert_eq(take_within(helper, 10000), &jobs[4].job);
    cr_assert_eq(take_within(helper, 10000), &jobs[1].job);
    cr_assert_eq(take_within(helper, 10000), &jobs[0].job);
    cr_assert_eq(take_within(helper, 0), NULL);
    kvf_helper_destroy(helper);
}

/* What fences of transport verbs do not wait for: the state a queue pair is in, and what is done for other lanes. */
#include <criterion/criterion.h>

#include <errno.h>
#include <semaphore.h>
#include <string.h>

#include "tests/contract/verbs_world.h"

#define BLOCKED 4u /* as many destroys as are under way at once */

static int (*real_modify)(struct ibv_qp *, struct ibv_qp_attr *, int);
static bool refuses_init;
static struct ibv_qp *in_reset;
static sem_t join_begun;
static sem_t join_may_end;
static int (*real_destroy)(struct ibv_qp *);
static sem_t destroys_to_block;
static sem_t destroy_begun;
static sem_t destroy_may_end;

/* As real devices do: from RESET there is no way to ERR. And as the kernel: an address on the link that nobody
 * answers for is looked for within modify to RTR, here until the test has seen enough. */
static int modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    if (attr->qp_state == IBV_QPS_RTR && attr->ah_attr.grh.dgid.raw[15] == 99) {
        sem_post(&join_begun);
        while (sem_wait(&join_may_end) != 0) {
        }
        return ETIMEDOUT;
    }
    if (attr->qp_state == IBV_QPS_INIT && refuses_init) {
        in_reset = qp;
        refuses_init = false;
        return ENOMEM;
    }
    if (attr->qp_state == IBV_QPS_ERR && qp == in_reset) {
        return EINVAL;
    }
    return real_modify(qp, attr, mask);
}

/* As a device that takes long: so many destroys wait until the test has seen enough. */
static int destroy(struct ibv_qp *qp)
{
    if (sem_trywait(&destroys_to_block) == 0) {
        sem_post(&destroy_begun);
        while (sem_wait(&destroy_may_end) != 0) {
        }
    }
    return real_destroy(qp);
}

static void begin(struct world *w)
{
    static struct kvf_verbs_lib lib;
    sem_t *sems[] = {&join_begun, &join_may_end, &destroys_to_block, &destroy_begun,
                     &destroy_may_end};
    for (size_t i = 0; i < sizeof(sems) / sizeof(sems[0]); i++) {
        cr_assert_eq(sem_init(sems[i], 0, 0), 0);
    }
    fake_reset();
    lib = *fake_lib();
    real_modify = lib.modify_qp;
    real_destroy = lib.destroy_qp;
    lib.modify_qp = modify;
    lib.destroy_qp = destroy;
    world_begin(w, "0", &lib);
    cr_assert_eq(w->create_err, 0, "%s", w->why);
}

static void open_ready(struct world *w, uint32_t lane)
{
    cr_assert_eq(world_open_sink(w, lane), 0);
    cr_assert(world_until(w, &w->ready[lane]));
}

static struct kvf_lane_end silent_end(const struct world *w, uint32_t lane)
{
    struct kvf_lane_end silent = w->ends[lane];
    memset(silent.gid, 0, 16);
    silent.gid[10] = 0xff;
    silent.gid[11] = 0xff;
    silent.gid[15] = 99;
    return silent;
}

/* It cannot go to ERR, and need not: its destroy is the proof. */
Test(verbs_fence, a_queue_pair_that_could_not_be_set_up_is_fenced_all_the_same)
{
    struct world w;
    struct kvf_verbs_counts counts;
    begin(&w);
    refuses_init = true;
    cr_assert_eq(world_open_sink(&w, 0), 0);
    cr_assert(world_until(&w, &w.fenced[0]));
    cr_assert_eq(w.lost[0], ENOMEM);
    kvf_verbs_counts(w.t, &counts);
    cr_assert_eq(counts.fences_failed, 0);
    cr_assert_eq(counts.queue_pairs_destroyed, 1);
    world_end(&w);
}

/* One peer's address is silent, and a join to it is under way; what others wait for goes on meanwhile. */
Test(verbs_fence, a_join_that_takes_long_delays_no_fence_but_its_own_lanes)
{
    struct world w;
    begin(&w);
    for (uint32_t i = 0; i < 3; i++) {
        open_ready(&w, i);
    }
    struct kvf_lane_end silent = silent_end(&w, 2);
    cr_assert_eq(kvf_verbs_ops.join(w.t, 0, WORLD_EPOCH, &silent), 0);
    cr_assert_eq(kvf_verbs_ops.join(w.t, 1, WORLD_EPOCH, &silent), 0);
    cr_assert_eq(world_open_sink(&w, 3), 0);
    cr_assert_eq(sem_wait(&join_begun), 0);
    for (uint32_t i = 0; i < 4; i++) {
        kvf_verbs_ops.fence(w.t, i, WORLD_EPOCH);
    }
    cr_expect(world_until(&w, &w.fenced[2]), "another peer's lane");
    cr_expect(world_until(&w, &w.fenced[1]), "a join that has not begun");
    cr_expect(world_until(&w, &w.fenced[3]), "a make that has not begun");
    cr_assert_not(w.fenced[0], "its queue pair is in the call");
    cr_expect_eq(world_qps_made(), 3);
    sem_post(&join_may_end);
    sem_post(&join_may_end);
    cr_assert(world_until(&w, &w.fenced[0]));
    world_end(&w);
}

/* ... and no flush of a device's memory either, which finds that what it needs is not made yet. */
Test(verbs_fence, a_join_that_takes_long_delays_no_flush)
{
    struct world w;
    begin(&w);
    cr_assert_eq(world_take_memory(&w), 0);
    open_ready(&w, 0);
    struct kvf_lane_end silent = silent_end(&w, 0);
    cr_assert_eq(kvf_verbs_ops.join(w.t, 0, WORLD_EPOCH, &silent), 0);
    cr_assert_eq(sem_wait(&join_begun), 0);
    cr_assert_eq(kvf_verbs_flush(w.memory, 1, 7), 0);
    cr_expect(world_until(&w, &w.is_told));
    cr_expect_eq(w.errs[0], 0);
    sem_post(&join_may_end);
    cr_assert(world_until(&w, &w.fenced[0]));
    world_end(&w);
}

static bool is_in_err(const struct world *w, uint32_t lane)
{
    struct fake_qp_view view;
    fake_qp(0, w->ends[lane].qpn, &view);
    return !view.exists || view.state == IBV_QPS_ERR;
}

/* As many destroys as there can be are in their device's hands when the port of the others goes: what is left of a
 * writer's time ends with the first step, and that waits for nobody. */
Test(verbs_fence, h20_all_lanes_of_a_lost_port_are_in_err_before_any_destroy_has_returned)
{
    struct world w;
    begin(&w);
    for (uint32_t i = 0; i < 2u * BLOCKED; i++) {
        open_ready(&w, i);
    }
    for (uint32_t i = 0; i < BLOCKED; i++) {
        sem_post(&destroys_to_block);
        kvf_verbs_ops.fence(w.t, i, WORLD_EPOCH);
        while (sem_trywait(&destroy_begun) != 0) {
            world_turn(&w);
        }
    }
    fake_event(0, IBV_EVENT_PORT_ERR, 0);
    uint32_t in_err = 0;
    for (uint32_t turns = 0; turns < 2000 && in_err < BLOCKED; turns++) {
        world_turn(&w);
        in_err = 0;
        for (uint32_t i = BLOCKED; i < 2u * BLOCKED; i++) {
            in_err += is_in_err(&w, i);
        }
    }
    cr_expect_eq(in_err, BLOCKED, "%u lanes of %u", in_err, BLOCKED);
    for (uint32_t i = 0; i < 2u * BLOCKED; i++) {
        cr_expect_not(w.fenced[i], "the proof is the destroy");
    }
    for (uint32_t i = 0; i < BLOCKED; i++) {
        sem_post(&destroy_may_end);
    }
    for (uint32_t i = 0; i < 2u * BLOCKED; i++) {
        cr_assert(world_until(&w, &w.fenced[i]));
    }
    world_end(&w);
}

Test(verbs_fence, a_destroy_that_takes_long_delays_no_fence_but_its_own_lanes)
{
    struct world w;
    begin(&w);
    for (uint32_t i = 0; i < 6; i++) {
        open_ready(&w, i);
    }
    sem_post(&destroys_to_block);
    for (uint32_t i = 0; i < 6; i++) {
        kvf_verbs_ops.fence(w.t, i, WORLD_EPOCH);
    }
    while (sem_trywait(&destroy_begun) != 0) {
        world_turn(&w);
    }
    world_turns(&w, 200);
    uint32_t fenced = 0;
    for (uint32_t i = 0; i < 6; i++) {
        fenced += w.fenced[i];
    }
    cr_expect_geq(fenced, 4, "only %u; one and at most one behind it wait", fenced);
    sem_post(&destroy_may_end);
    for (uint32_t i = 0; i < 6; i++) {
        cr_assert(world_until(&w, &w.fenced[i]));
    }
    world_end(&w);
}

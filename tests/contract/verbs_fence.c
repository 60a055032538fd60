/* What fences of transport verbs do not wait for: the state a queue pair is in, and what is done for other lanes. */
#include <criterion/criterion.h>

#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

#include "sidecar/transport/transport.h"
#include "tests/fake_verbs/fake_verbs.h"

#define LANES 16u
#define EPOCH 1u
#define TURN_NS UINT64_C(200000)
#define WAIT_TURNS 20000u

static int (*real_modify)(struct ibv_qp *, struct ibv_qp_attr *, int);
static bool refuses_init;
static struct ibv_qp *in_reset;
static sem_t join_begun;
static sem_t join_may_end;

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

struct world {
    struct kvf_transport *t;
    struct kvf_lane_end ends[LANES];
    bool ready[LANES];
    int lost[LANES];
    bool fenced[LANES];
};

static uint64_t on_now(void *ctx)
{
    (void)ctx;
    return fake_now_ns();
}

static void on_ready(void *ctx, uint32_t lane, uint32_t epoch, const struct kvf_lane_end *end)
{
    struct world *w = ctx;
    (void)epoch;
    w->ends[lane] = *end;
    w->ready[lane] = true;
}

static void on_up(void *ctx, uint32_t lane, uint32_t epoch)
{
    (void)ctx;
    (void)lane;
    (void)epoch;
}

static void on_lost(void *ctx, uint32_t lane, uint32_t epoch, int err)
{
    struct world *w = ctx;
    w->lost[lane] = err;
    kvf_verbs_ops.fence(w->t, lane, epoch); /* as the core does, with its next action */
}

static void on_fenced(void *ctx, uint32_t lane, uint32_t epoch)
{
    struct world *w = ctx;
    (void)epoch;
    w->fenced[lane] = true;
}

static void begin(struct world *w)
{
    static struct kvf_verbs_lib lib;
    struct kvf_transport_config config = {
        .lanes_max = LANES, .turn_bytes_max = 65536, .posts_per_lane_max = 64};
    struct kvf_verbs_config verbs = {.rails = {"fake0"},
                                     .rail_count = 1,
                                     .port = 1,
                                     .receives_per_lane = 16,
                                     .timeout = 12,
                                     .retry = 3,
                                     .stall_ns = UINT64_C(10000000000),
                                     .reap_ns = UINT64_C(500000000)};
    struct kvf_transport_host host = {.ctx = w,
                                      .now_fn = on_now,
                                      .ready_fn = on_ready,
                                      .up_fn = on_up,
                                      .lost_fn = on_lost,
                                      .fenced_fn = on_fenced};
    char error[128];
    fake_reset();
    cr_assert_eq(sem_init(&join_begun, 0, 0), 0);
    cr_assert_eq(sem_init(&join_may_end, 0, 0), 0);
    lib = *fake_lib();
    real_modify = lib.modify_qp;
    lib.modify_qp = modify;
    *w = (struct world){0};
    cr_assert_eq(kvf_verbs_create(&config, &verbs, &host, &lib, &w->t, error, sizeof error), 0,
                 "%s", error);
}

/* Until that is true, or for as long as such a thing ever takes. */
static bool until(struct world *w, const bool *flag)
{
    for (uint32_t i = 0; i < WAIT_TURNS && !*flag; i++) {
        (void)kvf_verbs_ops.poll(w->t);
        fake_advance(fake_now_ns() + TURN_NS);
        usleep(200);
    }
    return *flag;
}

static void open_sink(struct world *w, uint32_t lane)
{
    struct kvf_lane_open open = {
        .lane = lane, .epoch = EPOCH, .lane_idx = 0, .accepted_fd = -1};
    cr_assert_eq(kvf_verbs_ops.open(w->t, &open), 0);
}

static void end(struct world *w)
{
    struct fake_counts counts;
    kvf_verbs_ops.close(w->t);
    fake_counts(&counts);
    cr_assert_eq(counts.objects, 0);
}

/* It cannot go to ERR, and need not: its destroy is the proof. */
Test(verbs_fence, a_queue_pair_that_could_not_be_set_up_is_fenced_all_the_same)
{
    struct world w;
    struct kvf_verbs_counts counts;
    begin(&w);
    refuses_init = true;
    open_sink(&w, 0);
    cr_assert(until(&w, &w.fenced[0]));
    cr_assert_eq(w.lost[0], ENOMEM);
    kvf_verbs_counts(w.t, &counts);
    cr_assert_eq(counts.fences_failed, 0);
    cr_assert_eq(counts.queue_pairs_destroyed, 1);
    end(&w);
}

/* One peer's address is silent, and a join to it is under way; what others wait for goes on meanwhile. */
Test(verbs_fence, a_join_that_takes_long_delays_no_fence_but_its_own_lanes)
{
    struct world w;
    struct fake_counts counts;
    begin(&w);
    for (uint32_t i = 0; i < 3; i++) {
        open_sink(&w, i);
        cr_assert(until(&w, &w.ready[i]));
    }
    struct kvf_lane_end silent = w.ends[2];
    memset(silent.gid, 0, 16);
    silent.gid[10] = 0xff;
    silent.gid[11] = 0xff;
    silent.gid[15] = 99;
    cr_assert_eq(kvf_verbs_ops.join(w.t, 0, EPOCH, &silent), 0);
    cr_assert_eq(kvf_verbs_ops.join(w.t, 1, EPOCH, &silent), 0);
    open_sink(&w, 3);
    cr_assert_eq(sem_wait(&join_begun), 0);
    for (uint32_t i = 0; i < 4; i++) {
        kvf_verbs_ops.fence(w.t, i, EPOCH);
    }
    cr_expect(until(&w, &w.fenced[2]), "another peer's lane");
    cr_expect(until(&w, &w.fenced[1]), "a join that has not begun");
    cr_expect(until(&w, &w.fenced[3]), "a make that has not begun");
    cr_assert_not(w.fenced[0], "its queue pair is in the call");
    fake_counts(&counts);
    cr_expect_eq(counts.qps_made, 3);
    sem_post(&join_may_end);
    sem_post(&join_may_end);
    cr_assert(until(&w, &w.fenced[0]));
    end(&w);
}

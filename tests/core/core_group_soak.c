/* Groups under random schedules: requests of three ranks that open late or never, fail, hold leases, lose
 * their connections, their workers and their reach, in every order the seeds find. The oracle ends a seed
 * when a rank shows Failed while another may still move; in the end nobody waits for anybody.
 * KVF_SOAK_SEEDS and KVF_SOAK_FROM choose other seeds than the usual ones. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>

#include "sidecar/core/internal.h"
#include "tests/core/pair.h"

#ifdef __SANITIZE_ADDRESS__
#define SEEDS 40u
#else
#define SEEDS 200u
#endif
#define RANKS 3u
#define WRITER 3u
#define GROUP 1u
#define ID UINT64_C(0x9a0e)
#define LIVE_MAX 12u
#define STEPS 250u

struct request {
    uint64_t key; /* 0: free */
    uint32_t page;
    struct pair_room *sink[RANKS];
    struct pair_room *source[RANKS];
    bool is_submitted[RANKS];
};

struct soak {
    struct pair *p;
    struct request live[LIVE_MAX];
    uint64_t next_key;
    uint32_t failed;
    uint32_t succeeded;
    uint32_t restarts;
    uint32_t late;
};

static uint32_t below(struct soak *k, uint64_t n)
{
    return (uint32_t)pair_random(k->p, n);
}

static void open_sink(struct soak *k, struct request *q, uint32_t rank)
{
    struct kvf_writer_shm writer = {.addr = pair_addr(WRITER), .count = 2};
    struct kvf_run_shm run = {.region = PAIR_R0, .first = q->page, .count = 2};
    q->sink[rank] = pair_open_sink(k->p, rank,
                                   &(struct pair_open){.key = q->key,
                                                       .label = q->key << 8 | rank,
                                                       .group = GROUP,
                                                       .writers = &writer,
                                                       .writer_count = 1,
                                                       .runs = &run,
                                                       .run_count = 1});
}

static void begin(struct soak *k, struct request *q)
{
    q->key = k->next_key++;
    q->page = (uint32_t)(q - k->live) * 4;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        q->source[rank] = pair_open_source(
            k->p, WRITER,
            &(struct pair_open){.key = q->key, .label = q->key << 8 | rank, .sink_count = 1});
        if (below(k, 5) != 0) {
            open_sink(k, q, rank);
        }
    }
}

static bool is_over(const struct pair_room *r)
{
    return r == NULL || (pair_is_drained(r) && !pair_is_waiting(r));
}

/* Its slots and pages are another request's from now on. A rank that never opened says so, or leaves. */
static void forget(struct soak *k, struct request *q)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (!is_over(q->sink[rank]) || !is_over(q->source[rank])) {
            return;
        }
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (q->sink[rank] == NULL) {
            (void)kvf_core_group_skip(k->p->daemons[rank].core, 0, GROUP, q->key);
        } else {
            k->failed += pair_outcome(q->sink[rank]) == KVF_OUTCOME_FAILED;
            k->succeeded += pair_outcome(q->sink[rank]) == KVF_OUTCOME_SUCCESS;
        }
    }
    *q = (struct request){0};
}

static void move_request(struct soak *k, struct request *q)
{
    uint32_t rank = below(k, RANKS);
    struct pair_room *sink = q->sink[rank];
    switch (below(k, 9)) {
    case 0:
    case 1:
    case 2:
        if (!q->is_submitted[rank] && pair_phase(q->source[rank]) == KVF_PHASE_OPEN) {
            q->is_submitted[rank] = true;
            (void)pair_submit(q->source[rank], 0, 100 + q->page, 2, true);
        }
        return;
    case 3:
        if (sink == NULL) {
            open_sink(k, q, rank);
            k->late++;
        }
        return;
    case 4:
        if (sink != NULL && pair_phase(sink) == KVF_PHASE_OPEN) {
            pair_abort(sink);
        }
        return;
    case 5:
        if (pair_phase(q->source[rank]) == KVF_PHASE_OPEN) {
            pair_abort(q->source[rank]);
        }
        return;
    case 6:
        if (sink != NULL && !pair_is_drained(sink)) {
            (void)pair_lease(sink, 1, below(k, 2), 0);
        }
        return;
    default:
        if (sink != NULL && sink->cpu + sink->gpu > 0) {
            pair_lease_return(sink);
        }
        forget(k, q);
        return;
    }
}

static void fault(struct soak *k)
{
    struct pair *p = k->p;
    uint32_t daemon = below(k, RANKS + 1);
    struct pair_conn *c = &p->conns[below(k, 12)];
    switch (below(k, 5)) {
    case 0:
        pair_restart(p, daemon);
        k->restarts++;
        return;
    case 1:
    case 2:
        if (c->is_used && c->is_open[0] && c->is_open[1]) {
            pair_conn_cut(p, c);
        }
        return;
    default:
        p->daemons[daemon].is_unreachable = !p->daemons[daemon].is_unreachable;
        return;
    }
}

static void step(struct soak *k)
{
    struct request *q = &k->live[below(k, LIVE_MAX)];
    uint32_t what = below(k, 40);
    if (what == 0) {
        fault(k);
    } else if (what < 8) {
        pair_advance(k->p, below(k, 400) * PAIR_MS);
    } else if (what < 20) {
        for (uint32_t i = below(k, 6); i > 0 && pair_move_one(k->p); i--) {
            pair_drain(k->p, 0);
        }
    } else if (q->key == 0) {
        begin(k, q);
    } else {
        move_request(k, q);
    }
}

static void heal(struct soak *k)
{
    for (uint32_t i = 0; i < LIVE_MAX; i++) {
        struct request *q = &k->live[i];
        for (uint32_t rank = 0; q->key != 0 && rank < RANKS; rank++) {
            if (q->sink[rank] != NULL) {
                pair_lease_return(q->sink[rank]);
                pair_abort(q->sink[rank]); /* nobody will fill it any more */
            }
            pair_abort(q->source[rank]);
        }
    }
    pair_open_gates(k->p);
    pair_advance(k->p, 40000 * PAIR_MS); /* bootstrap and all deadlines behind it */
    for (uint32_t i = 0; i < LIVE_MAX; i++) {
        for (uint32_t rank = 0; k->live[i].key != 0 && rank < RANKS; rank++) {
            if (!is_over(k->live[i].sink[rank])) {
                pair_fail(k->p, "key %llx still waits at rank %u for %llx",
                          (unsigned long long)k->live[i].key, rank,
                          (unsigned long long)k->live[i].sink[rank]->view.group_waits);
            }
        }
        if (k->live[i].key != 0) {
            forget(k, &k->live[i]);
        }
    }
}

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void soak(struct soak *k, uint64_t seed, uint8_t placement)
{
    const uint32_t behind[] = {0, 1, 2};
    k->p = pair_new(&(struct pair_options){
        .daemons = 4, .placement = placement, .rooms = 64, .tombs_max = 64});
    struct pair *p = k->p;
    p->random = seed * UINT64_C(0x9e3779b97f4a7c15);
    p->is_bound_checked = false; /* faults never stop for long enough */
    (void)snprintf(p->note, sizeof p->note, "seed %llu: ", (unsigned long long)seed);
    k->next_key = 1;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cr_assert_eq(pair_group_add(p, 0, GROUP, ID, rank, behind, RANKS), 0);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        step(k);
    }
    heal(k);
    pair_finish(p);
}

static void run(uint8_t placement)
{
    struct soak k = {0};
    uint64_t from = env_number("KVF_SOAK_FROM", 1);
    uint64_t seeds = env_number("KVF_SOAK_SEEDS", SEEDS);
    for (uint64_t seed = from; seed < from + seeds; seed++) {
        struct soak one = {0};
        soak(&one, seed, placement);
        k.failed += one.failed;
        k.succeeded += one.succeeded;
        k.restarts += one.restarts;
        k.late += one.late;
    }
    fprintf(stderr, "%u rooms failed, %u succeeded, %u workers replaced, %u opened late\n",
            k.failed, k.succeeded, k.restarts, k.late);
    if (seeds >= 20) {
        cr_assert_gt(k.failed, seeds);
        cr_assert_gt(k.succeeded, seeds / 4);
        cr_assert_gt(k.restarts, seeds / 4);
        cr_assert_gt(k.late, seeds / 4);
    }
}

Test(group_soak, ranks_agree_whatever_happens_checked)
{
    run(KVF_PLACEMENT_CHECKED);
}

Test(group_soak, ranks_agree_whatever_happens_posted)
{
    run(KVF_PLACEMENT_POSTED);
}

/* Workers, supervisors and both are killed while pages are lent in every way there is. The ledger, asked each
 * 100 us, says "idle" of none of them before the worker's pidfd is readable, and of none with an external
 * lease before that is back. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/crash/sampler.h"

#define PAGES_EACH 32u
#define MOVING 6u  /* sinks that are written to */
#define WAITING 2u /* sinks whose writer never comes */
#define READING 2u /* sources that are read */
#define LEASED 0u  /* the moving room with an external lease */
#define ROOMS (MOVING + WAITING + READING)
#define WAIT_MS 15000u
#define BEFORE_US 3000u
#define AFTER_US 3000u
/* How long a stopped supervisor keeps WORKER_GONE from being published. */
#define STOPPED_NS 20000000u

_Static_assert(ROOMS <= SAMPLER_ROOMS_MAX, "rooms of the sampler");

enum victim { KILL_WORKER, KILL_WORKER_LATE_WORD, KILL_SUPERVISOR, KILL_BOTH, VICTIMS };
static const char *const victim_names[VICTIMS] = {"worker", "worker, word late", "supervisor",
                                                  "both"};

static const struct geometry geometry = {
    .plane_count = 4, .page_bytes = 16384, .page_count = (ROOMS + 1u) * PAGES_EACH};

struct scene {
    const struct crash_options *options;
    struct daemon *prefill;
    struct daemon *decode; /* the victim */
    struct engine *from;
    struct engine *to;
    kvf_room
        here[ROOMS]; /* rooms of the engine whose daemon dies, in the order of their pages */
    kvf_room there[ROOMS]; /* their other halves, 0: none */
    uint64_t state;
};

struct tally {
    uint32_t kills;
    uint64_t samples_alive;
    uint64_t samples_reaped;
    uint64_t asked;
    uint64_t early;
    uint32_t early_kills;
    uint64_t edge;
    uint64_t *interval_ns;
    size_t interval_count;
    uint64_t *reap_us;
    uint64_t *drain_us;
    bool is_real_time;
};

/* ---- one kill ---------------------------------------------------------------------------------------- */

static void open_rooms(struct scene *c)
{
    for (uint32_t i = 0; i < ROOMS; i++) {
        uint64_t key = key_next();
        int32_t first = (int32_t)(i * PAGES_EACH);
        c->there[i] = 0;
        if (i < MOVING + WAITING) {
            c->here[i] = engine_sink(c->to, key, first, PAGES_EACH, c->prefill);
        } else {
            c->here[i] = engine_source(c->to, key);
            engine_submit(c->to, c->here[i], first, PAGES_EACH, 0, true);
            c->there[i] = engine_sink(c->from, key, first, PAGES_EACH, c->decode);
        }
        if (i < MOVING) {
            c->there[i] = engine_source(c->from, key);
            engine_submit(c->from, c->there[i], first, PAGES_EACH, 0, true);
        }
    }
    CHECK_CODE(kvf_lease(c->to->client, c->here[LEASED], KVF_KIND_CPU), 0, "lease");
    room_wait_placed(c->to, c->here[0], 1, WAIT_MS);
    room_wait_placed(c->from, c->there[ROOMS - 1u], 1, WAIT_MS);
}

static void watch(struct scene *c, struct sampler *s)
{
    s->engine = c->to;
    s->pidfd = crash_pidfd(c->decode->worker);
    s->is_injected = c->options->inject == CRASH_INJECT_DRAINED_AT_ONCE;
    s->room_count = ROOMS;
    for (uint32_t i = 0; i < ROOMS; i++) {
        s->rooms[i].room = c->here[i];
        s->rooms[i].first = (int32_t)(i * PAGES_EACH);
        s->rooms[i].count = PAGES_EACH;
        atomic_init(&s->rooms[i].is_leased, i == LEASED);
    }
    sampler_start(s);
    sleep_us(BEFORE_US + random_below(&c->state, BEFORE_US));
}

static void send_kill(pid_t pid)
{
    CHECK(kill(pid, SIGKILL) == 0, "kill: %s", strerror(errno));
}

static void kill_victim(struct scene *c, enum victim victim)
{
    siginfo_t stopped;
    switch (victim) {
    case KILL_WORKER_LATE_WORD:
        daemon_signal(c->decode, SIGSTOP);
        CHECK(waitid(P_PID, (id_t)c->decode->pid, &stopped, WSTOPPED) == 0, "waitid: %s",
              strerror(errno));
        send_kill(c->decode->worker);
        return;
    case KILL_WORKER:
        send_kill(c->decode->worker);
        return;
    case KILL_SUPERVISOR:
        send_kill(c->decode->pid);
        return;
    case KILL_BOTH:
        if (random_below(&c->state, 2) == 0) {
            send_kill(c->decode->worker);
            send_kill(c->decode->pid);
        } else {
            send_kill(c->decode->pid);
            /* Dies of its parent's end too, perhaps before this. */
            CHECK(kill(c->decode->worker, SIGKILL) == 0 || errno == ESRCH, "kill: %s",
                  strerror(errno));
        }
        return;
    case VICTIMS:
        break;
    }
}

/* Whether every room but the leased one is drained. */
static bool are_drained(const struct scene *c)
{
    for (uint32_t i = 0; i < ROOMS; i++) {
        if (i != LEASED && kvf_drained(c->to->client, c->here[i]) <= 0) {
            return false;
        }
    }
    return true;
}

/* As an engine with nothing better to do: it looks after its daemon all the time. */
static void wait_for_drained(struct scene *c, enum victim victim, uint64_t kill_ns)
{
    bool is_stopped = victim == KILL_WORKER_LATE_WORD;
    while (!are_drained(c)) {
        uint64_t now = now_ns();
        CHECK(now - kill_ns < WAIT_MS * UINT64_C(1000000),
              "rooms are not drained %u ms after "
              "the kill",
              WAIT_MS);
        if (is_stopped && now - kill_ns > STOPPED_NS) {
            daemon_signal(c->decode, SIGCONT);
            is_stopped = false;
        }
        (void)kvf_daemon_check(c->to->client);
        sleep_us(20);
    }
    CHECK(!is_stopped, "rooms were drained while their supervisor stood still");
}

static void end_rooms(struct scene *c)
{
    for (uint32_t i = 0; i < ROOMS; i++) {
        room_expect(c->to, c->here[i], KVF_FAILED, WAIT_MS);
        int proof = kvf_drained(c->to->client, c->here[i]);
        CHECK(proof == KVF_WORKER_GONE, "room %u is drained by %s", i, kvf_proof_name(proof));
        room_release(c->to, c->here[i]);
        if (c->there[i] != 0) {
            int state = kvf_wait(c->from->client, c->there[i], WAIT_MS);
            CHECK(state == KVF_FAILED, "the other half of room %u: %d", i, state);
            room_release(c->from, c->there[i]);
        }
    }
    engine_check_idle(c->to);
}

static void serve_again(struct scene *c, enum victim victim)
{
    if (victim == KILL_SUPERVISOR || victim == KILL_BOTH) {
        (void)daemon_wait(c->decode, WAIT_MS);
        daemon_start_again(c->decode);
        CHECK_CODE(kvf_reattach(c->to->client, WAIT_MS), 0, "re-attach");
        return;
    }
    daemon_wait_worker(c->decode, WAIT_MS);
    WAIT_FOR(kvf_daemon_check(c->to->client) == 0, WAIT_MS, "the next worker does not serve");
}

static void add_up(struct tally *t, const struct sampler *s, uint64_t kill_ns,
                   uint64_t drained_ns)
{
    uint64_t reaped_ns = atomic_load_explicit(&s->reaped_ns, memory_order_relaxed);
    t->reap_us[t->kills] = (reaped_ns - kill_ns) / 1000u;
    t->drain_us[t->kills] = (drained_ns - kill_ns) / 1000u;
    t->kills++;
    t->samples_alive += s->samples_alive;
    t->samples_reaped += s->samples_reaped;
    t->asked += s->asked;
    t->early += s->early;
    t->early_kills += s->early != 0;
    t->edge += s->edge;
    t->is_real_time = s->is_real_time;
    size_t bytes = (t->interval_count + s->interval_count) * sizeof *t->interval_ns;
    t->interval_ns = realloc(t->interval_ns, bytes + 1u);
    CHECK(t->interval_ns != NULL, "no memory");
    memcpy(t->interval_ns + t->interval_count, s->intervals_ns,
           s->interval_count * sizeof *t->interval_ns);
    t->interval_count += s->interval_count;
}

static void kill_one(struct scene *c, enum victim victim, struct tally *tally)
{
    static struct sampler s;
    memset(&s, 0, sizeof s);
    open_rooms(c);
    watch(c, &s);
    uint64_t kill_ns = now_ns();
    /* Release: a sample that sees this counts as one after the signal. */
    atomic_store_explicit(&s.killed_ns, kill_ns, memory_order_release);
    kill_victim(c, victim);
    wait_for_drained(c, victim, kill_ns);
    uint64_t drained_ns = now_ns();
    sleep_us(AFTER_US);
    /* Release, before the call: no answer that it allows finds the mark still there. */
    atomic_store_explicit(&s.rooms[LEASED].is_leased, false, memory_order_release);
    CHECK_CODE(kvf_lease_give_back(c->to->client, c->here[LEASED], KVF_KIND_CPU), 0,
               "give the lease back");
    room_expect(c->to, c->here[LEASED], KVF_FAILED, WAIT_MS);
    sleep_us(AFTER_US);
    sampler_stop(&s);
    CHECK(s.is_injected || s.idle > 0, "the ledger was never seen idle");
    if (s.early != 0 && !s.is_injected) {
        test_say("%s killed: a page of room %u read idle %llu times without proof (%s)",
                 victim_names[victim], s.early_room, (unsigned long long)s.early,
                 s.early_proof > 0 ? kvf_proof_name(s.early_proof) : "none");
    }
    add_up(tally, &s, kill_ns, drained_ns);
    close(s.pidfd);
    free(s.intervals_ns);
    end_rooms(c);
    serve_again(c, victim);
}

/* ---- what came of it -------------------------------------------------------------------------------------- */

static void show_victim(FILE *json, const char *name, struct tally *t)
{
    struct crash_quantiles reap = crash_quantiles_of(t->reap_us, t->kills);
    struct crash_quantiles drain = crash_quantiles_of(t->drain_us, t->kills);
    test_say("%-18s %5u %9llu %9llu %9llu %9llu %9llu %6llu %5llu", name, t->kills,
             (unsigned long long)reap.median, (unsigned long long)drain.median,
             (unsigned long long)drain.max, (unsigned long long)t->samples_alive,
             (unsigned long long)t->samples_reaped, (unsigned long long)t->early,
             (unsigned long long)t->edge);
    if (json == NULL) {
        return;
    }
    fprintf(json,
            "{\"name\": \"%s\", \"kills\": %u, \"samples_before_reaping\": %llu, "
            "\"samples_until_word\": %llu, \"pages_asked\": %llu, \"early\": %llu, "
            "\"kills_with_early\": %u, \"edge\": %llu, ",
            name, t->kills, (unsigned long long)t->samples_alive,
            (unsigned long long)t->samples_reaped, (unsigned long long)t->asked,
            (unsigned long long)t->early, t->early_kills, (unsigned long long)t->edge);
    crash_json_quantiles(json, "kill_to_reaped_us", &reap);
    fprintf(json, ", ");
    crash_json_quantiles(json, "kill_to_drained_us", &drain);
    fprintf(json, "}");
}

static void show_intervals(FILE *json, struct tally *tallies)
{
    size_t n = 0;
    for (uint32_t v = 0; v < VICTIMS; v++) {
        n += tallies[v].interval_count;
    }
    uint64_t *all = calloc(n + 1u, sizeof *all);
    CHECK(all != NULL, "no memory");
    n = 0;
    for (uint32_t v = 0; v < VICTIMS; v++) {
        for (size_t i = 0; i < tallies[v].interval_count; i++) {
            all[n++] = tallies[v].interval_ns[i] / 1000u;
        }
    }
    struct crash_quantiles q = crash_quantiles_of(all, n);
    test_say("%llu intervals between samples of %u pages: median %llu us, p99 %llu, max %llu%s",
             (unsigned long long)q.count, ROOMS * PAGES_EACH, (unsigned long long)q.median,
             (unsigned long long)q.p99, (unsigned long long)q.max,
             tallies[0].is_real_time ? "" : " (no real-time priority here)");
    if (json != NULL) {
        crash_json_quantiles(json, "sample_interval_us", &q);
        fprintf(json, "}\n");
        fflush(json);
    }
    free(all);
}

static void show(const struct crash_options *options, struct tally *tallies)
{
    FILE *json = options->json;
    test_say("killed             kills  reaped us, drained us, (max)  samples: alive, reaped  "
             "early  edge");
    if (json != NULL) {
        fprintf(json, "{\"what\": \"ledger\", \"seed\": %llu, \"killed\": [",
                (unsigned long long)options->seed);
    }
    for (uint32_t v = 0; v < VICTIMS; v++) {
        if (json != NULL && v != 0) {
            fprintf(json, ", ");
        }
        show_victim(json, victim_names[v], &tallies[v]);
    }
    if (json != NULL) {
        fprintf(json, "], ");
    }
    show_intervals(json, tallies);
}

static void judge(const struct crash_options *options, const struct tally *tallies)
{
    uint64_t alive = 0;
    uint64_t early = 0;
    uint32_t early_kills = 0;
    for (uint32_t v = 0; v < VICTIMS; v++) {
        alive += tallies[v].samples_alive;
        early += tallies[v].early;
        early_kills += tallies[v].early_kills;
    }
    CHECK(alive >= options->kills, "%llu samples between %u signals and their reaping: too few",
          (unsigned long long)alive, options->kills);
    if (options->inject == CRASH_INJECT_DRAINED_AT_ONCE) {
        CHECK_IS(early_kills, options->kills, "kills after which the planted bug was found");
        test_say("the planted bug was found after each of %u kills", early_kills);
        return;
    }
    CHECK_IS(early, 0, "answers that a lent page is idle, before its proof");
}

static void start(struct scene *c)
{
    /* Slow enough that no room ends by itself, with the deadlines of tests for what must end. */
    static const char *const own[] = {"--lane-rate=10", "--liveness-ms=1000", NULL};
    c->prefill = crash_daemon_start(c->options, "prefill", own);
    c->decode = crash_daemon_start(c->options, "decode", own);
    c->from = engine_start(c->prefill, &geometry, 0);
    c->to = engine_start(c->decode, &geometry, 0);
}

void crash_ledger(const struct crash_options *options)
{
    struct scene c = {.options = options, .state = options->seed};
    struct tally tallies[VICTIMS] = {{0}};
    crash_sleep_exactly();
    start(&c);
    for (uint32_t v = 0; v < VICTIMS; v++) {
        tallies[v].reap_us = calloc(options->kills, sizeof(uint64_t));
        tallies[v].drain_us = calloc(options->kills, sizeof(uint64_t));
        CHECK(tallies[v].reap_us != NULL && tallies[v].drain_us != NULL, "no memory");
    }
    for (uint32_t i = 0; i < options->kills; i++) {
        enum victim victim = (enum victim)(i % VICTIMS);
        kill_one(&c, victim, &tallies[victim]);
        if (options->verbose != NULL) {
            fprintf(options->verbose, "%4u %s killed\n", i, victim_names[victim]);
        }
    }
    show(options, tallies);
    judge(options, tallies);
    transfer_once(c.from, c.to, key_next(), 0, PAGES_EACH);
    engine_stop(c.from);
    engine_stop(c.to);
    daemons_stop();
    for (uint32_t v = 0; v < VICTIMS; v++) {
        free(tallies[v].reap_us);
        free(tallies[v].drain_us);
        free(tallies[v].interval_ns);
    }
}

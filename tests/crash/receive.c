/* A sink's worker is killed while it places bytes. From the moment that its pidfd is readable, or that its
 * rooms say WORKER_GONE, no byte of their pages may change: the next owner has them already. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/crash/crash.h"
#include "tests/crash/fleet.h"
#include "tests/crash/shot.h"

#define ARRIVE_MS 10000u
#define DEATH_MS 8000u
#define END_MS 20000u
#define ROOMS_MAX 4u
#define CHANGES_SHOWN 10u
/* Below this share of kills in mid-receive a run says too little. */
#define MID_RECEIVE_PERCENT_MIN 80u
/* The moment of the kill, as parts of a thousand of what is submitted. */
#define MOMENT_MIN 20u
#define MOMENT_SPAN 850u
#define JITTER_NS_MAX 200000u

enum look {
    LOOK_AT_ONCE, /* between the samples and the whole */
    LOOK_REAPED,  /* only for the control: at the reaping */
    LOOK_1_MS,
    LOOK_10_MS,
    LOOK_50_MS,
    LOOK_LAST, /* before the next kill of the same sink */
    LOOKS
};
static const char *const look_names[LOOKS] = {"at once",     "at the reaping",
                                              "after 1 ms",  "after 10 ms",
                                              "after 50 ms", "at the last look"};

/* What is told by the worker's end. */
enum told { TOLD_PIDFD, TOLD_PIDFD_SPIN, TOLD_ROOM, TOLDS };
static const char *const told_names[TOLDS] = {"pidfd", "pidfd, spinning", "room word"};

struct kill_record {
    uint32_t site;
    enum told told;
    enum shot_mode mode;
    bool is_mid_receive;
    bool is_torn; /* a piece had begun and was not whole */
    bool goes_on; /* its source submitted the rest after the death */
    uint32_t whole;
    uint32_t submitted;
    uint32_t wrong;
    uint64_t reap_us; /* from kill() to the proof */
    struct shot_change changes[LOOKS];
};

struct attempt {
    struct site *site;
    struct kill_record *record;
    uint64_t state; /* of the random numbers */
    uint32_t room_count;
    uint32_t room_pages;
    uint32_t held_back; /* pages of each room that are submitted after the death */
    uint32_t target;    /* its arrival is the moment */
    kvf_room in[ROOMS_MAX];
    kvf_room out[ROOMS_MAX];
    int pidfd;
};

struct run {
    const struct crash_options *options;
    struct fleet fleet;
    struct kill_record *records;
    uint32_t last_record[FLEET_SITES];
};

/* ---- one kill ------------------------------------------------------------------------------------------ */

static void pause_ns(long ns)
{
    struct timespec wait = {.tv_nsec = ns};
    (void)nanosleep(&wait, NULL);
}

static void choose(struct attempt *a, const struct fleet *f)
{
    a->room_count = random_below(&a->state, 2) == 0 ? 1 : ROOMS_MAX;
    a->room_pages = f->page_count / a->room_count;
    a->held_back = random_below(&a->state, 4) == 0 ? a->room_pages / 8u : 0;
    uint64_t moment = MOMENT_MIN + random_below(&a->state, MOMENT_SPAN);
    uint32_t submitted = a->room_pages - a->held_back;
    uint32_t room = (uint32_t)random_below(&a->state, a->room_count);
    a->target = room * a->room_pages + (uint32_t)(submitted * moment / 1000u);
    a->record->goes_on = a->held_back != 0;
    a->record->submitted = submitted * a->room_count * a->site->engine->geometry.plane_count;
    a->record->told = (enum told)random_below(&a->state, TOLDS);
    a->record->mode = random_below(&a->state, 2) == 0 ? SHOT_COPY : SHOT_REFILL_ALL;
}

static void open_rooms(struct attempt *a)
{
    struct site *site = a->site;
    for (uint32_t i = 0; i < a->room_count; i++) {
        uint64_t key = key_next();
        uint32_t first = i * a->room_pages;
        a->in[i] = engine_sink_pages(site->engine, key, site->pages + first, a->room_pages,
                                     site->source->daemon->listen);
        a->out[i] = engine_source(site->source, key);
        engine_submit(site->source, a->out[i], (int32_t)first, a->room_pages - a->held_back, 0,
                      a->held_back == 0);
    }
}

static bool is_any_open(const struct attempt *a)
{
    bool is_open = false;
    for (uint32_t i = 0; i < a->room_count; i++) {
        is_open = is_open || kvf_drained(a->site->engine->client, a->in[i]) <= 0;
    }
    return is_open;
}

/* Until the page of the chosen moment has arrived, and a moment more. A room may be faster than this
 * thread: then the kill counts, and not as one in mid-receive. */
static void wait_for_moment(struct attempt *a)
{
    uint64_t until_ns = now_ns() + ARRIVE_MS * UINT64_C(1000000);
    while (!shot_has_arrived(a->site->shot, a->target) && is_any_open(a)) {
        CHECK(now_ns() < until_ns, "%s: position %u has not arrived after %u ms",
              a->site->kind->name, a->target, ARRIVE_MS);
        pause_ns(10000);
    }
    uint64_t moment_ns = now_ns() + random_below(&a->state, JITTER_NS_MAX);
    while (now_ns() < moment_ns) {
    }
}

static void wait_for_death(const struct attempt *a, bool is_spinning)
{
    if (is_spinning) {
        uint64_t until_ns = now_ns() + DEATH_MS * UINT64_C(1000000);
        while (!crash_has_ended(a->pidfd)) {
            CHECK(now_ns() < until_ns, "the worker outlives its kill by %u ms", DEATH_MS);
        }
        return;
    }
    struct pollfd p = {.fd = a->pidfd, .events = POLLIN};
    CHECK_IS(poll(&p, 1, (int)DEATH_MS), 1, "poll of the killed worker");
}

static bool are_told(const struct attempt *a)
{
    for (uint32_t i = 0; i < a->room_count; i++) {
        int proof = kvf_drained(a->site->engine->client, a->in[i]);
        /* Told to end is not ended: only the kernel's word on the process is. */
        CHECK(proof != KVF_WORKER_GONE || crash_has_ended(a->pidfd),
              "a room is proven by the end of a worker that lives");
        if (proof <= 0) {
            return false;
        }
    }
    return true;
}

static void wait_for_proof(const struct attempt *a)
{
    uint64_t until_ns = now_ns() + DEATH_MS * UINT64_C(1000000);
    if (a->record->told != TOLD_ROOM) {
        wait_for_death(a, a->record->told == TOLD_PIDFD_SPIN);
        return;
    }
    while (!are_told(a)) {
        CHECK(now_ns() < until_ns, "no WORKER_GONE %u ms after the kill", DEATH_MS);
        pause_ns(10000);
    }
}

static void look(struct run *run, const struct attempt *a, enum look look)
{
    struct shot *shot = a->site->shot;
    if (look == LOOK_10_MS && run->options->inject == CRASH_INJECT_LATE_BYTE) {
        shot_spoil(shot, a->target);
    }
    a->record->changes[look] = shot_look(shot);
}

static void look_at_times(struct run *run, const struct attempt *a, uint64_t proof_ns)
{
    static const struct {
        enum look look;
        uint64_t ns;
    } at[] = {{LOOK_1_MS, 1000000}, {LOOK_10_MS, 10000000}, {LOOK_50_MS, 50000000}};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        uint64_t now = now_ns();
        uint64_t due_ns = proof_ns + at[i].ns;
        if (now < due_ns) {
            sleep_us((due_ns - now) / 1000u);
        }
        look(run, a, at[i].look);
    }
}

/* Its source lives on, and has more to send. */
static void go_on_sending(const struct attempt *a)
{
    for (uint32_t i = 0; i < a->room_count && a->held_back != 0; i++) {
        int32_t pages[1024];
        uint32_t start = a->room_pages - a->held_back;
        CHECK(a->held_back <= 1024, "%u pages", a->held_back);
        pages_count_up(pages, a->held_back, (int32_t)(i * a->room_pages + start));
        /* Refused if the room has closed by now; both are right. */
        (void)engine_try_submit(a->site->source, a->out[i], pages, a->held_back, start, true);
    }
}

static void check_end(const struct attempt *a)
{
    struct engine *to = a->site->engine;
    for (uint32_t i = 0; i < a->room_count; i++) {
        int state = kvf_wait(to->client, a->in[i], END_MS);
        int proof = kvf_drained(to->client, a->in[i]);
        CHECK((state == KVF_FAILED && proof == KVF_WORKER_GONE) ||
                  (state == KVF_SUCCESS && proof == KVF_LANDED),
              "%s: room %u of a killed worker is %s by %s", a->site->kind->name, i,
              kvf_state_name(state), kvf_proof_name(proof));
        int source = kvf_wait(a->site->source->client, a->out[i], END_MS);
        CHECK(source == KVF_FAILED || source == KVF_SUCCESS, "its source: %d %s", source,
              kvf_code_name_of(source));
        room_release(to, a->in[i]);
        room_release(a->site->source, a->out[i]);
    }
    engine_check_idle(to);
}

static void kill_one(struct run *run, struct attempt *a)
{
    struct shot *shot = a->site->shot;
    struct kill_record *r = a->record;
    bool is_control = run->options->proof == CRASH_PROOF_SIGNAL;
    a->pidfd = crash_pidfd(a->site->daemon->worker);
    choose(a, &run->fleet);
    shot_arm(shot);
    open_rooms(a);
    wait_for_moment(a);
    uint64_t kill_ns = now_ns();
    CHECK(kill(a->site->daemon->worker, SIGKILL) == 0, "kill: %s", strerror(errno));
    if (!is_control) {
        wait_for_proof(a);
    }
    uint64_t proof_ns = now_ns();
    r->changes[LOOK_AT_ONCE] = shot_take(shot, r->mode, a->target);
    if (is_control) {
        wait_for_death(a, false);
        r->changes[LOOK_REAPED] = shot_look(shot);
    }
    r->reap_us = ((is_control ? now_ns() : proof_ns) - kill_ns) / 1000u;
    r->whole = shot->whole;
    r->is_torn = shot->begun > shot->whole;
    r->is_mid_receive = shot->begun > 0 && shot->whole < r->submitted;
    r->wrong = is_control ? 0 : shot_count_wrong(shot, a->site->source);
    fleet_killed(a->site);
    go_on_sending(a);
    look_at_times(run, a, proof_ns);
    check_end(a);
    close(a->pidfd);
}

/* ---- what came of it -------------------------------------------------------------------------------------- */

static uint64_t bytes_changed(const struct kill_record *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < LOOKS; i++) {
        bytes = r->changes[i].bytes > bytes ? r->changes[i].bytes : bytes;
    }
    return bytes;
}

struct sum {
    uint32_t kills;
    uint32_t mid_receive;
    uint32_t torn;
    uint32_t goes_on;
    uint32_t changed;
    uint32_t wrong;
    uint64_t placed_percent; /* median */
    struct crash_quantiles reap_us;
};

/* Of one site, or of all with SITE_ALL. */
#define SITE_ALL UINT32_MAX
static struct sum sum_of(const struct run *run, uint32_t site)
{
    struct sum sum = {0};
    uint32_t kills = run->options->kills;
    uint64_t *reap = calloc(kills, sizeof *reap);
    uint64_t *placed = calloc(kills, sizeof *placed);
    CHECK(reap != NULL && placed != NULL, "no memory");
    for (uint32_t i = 0; i < kills; i++) {
        const struct kill_record *r = &run->records[i];
        if (site != SITE_ALL && r->site != site) {
            continue;
        }
        reap[sum.kills] = r->reap_us;
        placed[sum.kills] = r->whole * UINT64_C(100) / r->submitted;
        sum.kills++;
        sum.mid_receive += r->is_mid_receive;
        sum.torn += r->is_torn;
        sum.goes_on += r->goes_on;
        sum.changed += bytes_changed(r) != 0;
        sum.wrong += r->wrong;
    }
    sum.reap_us = crash_quantiles_of(reap, sum.kills);
    sum.placed_percent = quantile(placed, sum.kills, 500);
    free(reap);
    free(placed);
    return sum;
}

static void show_changes(const struct run *run)
{
    uint32_t shown = 0;
    for (uint32_t i = 0; i < run->options->kills && shown < CHANGES_SHOWN; i++) {
        const struct kill_record *r = &run->records[i];
        for (uint32_t look = 0; look < LOOKS; look++) {
            const struct shot_change *c = &r->changes[look];
            if (c->bytes == 0) {
                continue;
            }
            test_say("kill %u (%s, %s, %s): %llu bytes had changed %s; the first at %llu: "
                     "0x%02x was 0x%02x",
                     i, run->fleet.sites[r->site].kind->name, told_names[r->told],
                     r->mode == SHOT_COPY ? "copied" : "refilled", (unsigned long long)c->bytes,
                     look_names[look], (unsigned long long)c->off, c->is, c->was);
            shown++;
            break;
        }
    }
}

static void show_row(const char *name, const struct sum *s)
{
    test_say("%-16s %5u %12u %5u %8llu %% %8llu %8llu %8llu %8u", name, s->kills,
             s->mid_receive, s->torn, (unsigned long long)s->placed_percent,
             (unsigned long long)s->reap_us.median, (unsigned long long)s->reap_us.p99,
             (unsigned long long)s->reap_us.max, s->changed);
}

static void json_row(FILE *out, const char *name, const struct sum *s)
{
    fprintf(out,
            "{\"name\": \"%s\", \"kills\": %u, \"mid_receive\": %u, \"torn\": %u, "
            "\"source_went_on\": %u, \"changed\": %u, \"wrong\": %u, "
            "\"placed_percent_median\": %llu, ",
            name, s->kills, s->mid_receive, s->torn, s->goes_on, s->changed, s->wrong,
            (unsigned long long)s->placed_percent);
    crash_json_quantiles(out, "kill_to_proof_us", &s->reap_us);
    fprintf(out, "}");
}

static void show(const struct run *run, const struct sum *all)
{
    FILE *json = run->options->json;
    const char *proof = run->options->proof == CRASH_PROOF_SIGNAL ? "signal" : "reaped";
    if (json != NULL) {
        fprintf(json, "{\"what\": \"receive\", \"proof\": \"%s\", \"seed\": %llu, \"sinks\": [",
                proof, (unsigned long long)run->options->seed);
    }
    test_say("proof: %s; pieces are of 16 KiB, 4 to a page; a room's pages are 8 to 32 MiB",
             proof);
    test_say("sink             kills mid-receive  torn     placed kill-to-proof us, p99, max "
             "changed");
    for (uint32_t i = 0; i < run->fleet.site_count; i++) {
        struct sum sum = sum_of(run, i);
        show_row(run->fleet.sites[i].kind->name, &sum);
        if (json != NULL) {
            json_row(json, run->fleet.sites[i].kind->name, &sum);
            fprintf(json, ", ");
        }
    }
    show_row("all", all);
    if (json != NULL) {
        json_row(json, "all", all);
        fprintf(json, "]}\n");
        fflush(json);
    }
    show_changes(run);
}

static void judge(const struct run *run, const struct sum *all)
{
    CHECK(all->mid_receive * 100u >= all->kills * MID_RECEIVE_PERCENT_MIN,
          "%u of %u kills were in mid-receive: the others prove nothing", all->mid_receive,
          all->kills);
    if (run->options->proof == CRASH_PROOF_SIGNAL) {
        test_say("control: after %u of %u kills bytes changed although kill() had returned",
                 all->changed, all->kills);
        return;
    }
    if (run->options->inject == CRASH_INJECT_LATE_BYTE) {
        CHECK_IS(all->changed, all->kills, "kills after which the planted byte was found");
        test_say("the planted byte was found after each of %u kills", all->kills);
        return;
    }
    CHECK_IS(all->wrong, 0, "pieces that arrived whole and are not the source's");
    CHECK_IS(all->changed, 0, "kills after which bytes changed although the worker was reaped");
}

static void last_look(struct run *run, struct site *site, uint32_t idx)
{
    if (site->has_shot) {
        run->records[run->last_record[idx]].changes[LOOK_LAST] = shot_look(site->shot);
    }
    site->has_shot = true;
}

void crash_receive(const struct crash_options *options)
{
    struct run run = {.options = options};
    uint64_t state = options->seed;
    run.records = calloc(options->kills, sizeof *run.records);
    CHECK(run.records != NULL, "no memory");
    crash_sleep_exactly();
    /* The control wants much under way at the moment of the kill. */
    fleet_start(&run.fleet, options, options->proof == CRASH_PROOF_REAPED);
    for (uint32_t i = 0; i < options->kills; i++) {
        struct attempt a = {.site = fleet_next(&run.fleet), .record = &run.records[i]};
        uint32_t idx = (uint32_t)(a.site - run.fleet.sites);
        a.state = random_next(&state);
        a.record->site = idx;
        last_look(&run, a.site, idx);
        kill_one(&run, &a);
        run.last_record[idx] = i;
        if (options->verbose != NULL) {
            fprintf(options->verbose,
                    "%4u %-16s %3u %% placed, %s, %llu us, %llu bytes changed\n", i,
                    a.site->kind->name, a.record->whole * 100u / a.record->submitted,
                    told_names[a.record->told], (unsigned long long)a.record->reap_us,
                    (unsigned long long)bytes_changed(a.record));
        }
    }
    for (uint32_t i = 0; i < run.fleet.site_count; i++) {
        last_look(&run, &run.fleet.sites[i], i);
    }
    struct sum all = sum_of(&run, SITE_ALL);
    show(&run, &all);
    judge(&run, &all);
    fleet_stop(&run.fleet);
    free(run.records);
}

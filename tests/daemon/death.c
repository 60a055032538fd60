/* Engines, workers and whole daemons that die, freeze or leave: every room ends, with proof, in time, and
 * those who stay go on. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 12000u
#define CANARY 0x5d

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

/* Shorter deadlines than by default, so that the bound is short too; not where everything is slow. */
static void start_daemons(const char *placement, const char *rate)
{
    struct daemon **daemons[] = {&prefill, &decode};
    const char *names[] = {"prefill", "decode"};
    bool is_slow = is_sanitized_build();
    for (int i = 0; i < 2; i++) {
        *daemons[i] = daemon_start(names[i], "--tcp-placement", placement, "--lane-rate", rate,
                                   "--liveness-ms", is_slow ? "3000" : "600",
                                   "--cooperative-ms", is_slow ? "500" : "300", "--fence-ms",
                                   "1000", "--watchdog-ms", is_slow ? "2500" : "500", NULL);
    }
}

static void start_with(const char *placement, const char *rate)
{
    start_daemons(placement, rate);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void open_both(uint32_t count, kvf_room *ret_in, kvf_room *ret_out)
{
    uint64_t key = key_next();
    *ret_in = engine_sink(to, key, 0, count, prefill);
    *ret_out = engine_source(from, key);
    engine_submit(from, *ret_out, 0, count, 0, true);
}

static uint64_t usual_ms(const struct daemon *d)
{
    return daemon_stat(d, "bound_usual_us") / 1000u;
}

static uint64_t worst_ms(const struct daemon *d)
{
    return daemon_stat(d, "bound_worst_us") / 1000u;
}

/* ---- engines ------------------------------------------------------------------------------------------- */

/* argv: socket, address of the other daemon, key, pages, lease kind or "-". */
static struct engine *role_engine(char **argv, struct daemon *own, struct daemon *other)
{
    memset(own, 0, sizeof *own);
    memset(other, 0, sizeof *other);
    snprintf(own->name, sizeof own->name, "helper");
    snprintf(own->socket_path, sizeof own->socket_path, "%s", argv[0]);
    snprintf(other->listen, sizeof other->listen, "%s", argv[1]);
    return engine_start(own, &geometry, 0);
}

static int role_sink(int argc, char **argv)
{
    struct daemon own;
    struct daemon other;
    CHECK_IS(argc, 4, "arguments");
    struct engine *e = role_engine(argv, &own, &other);
    (void)engine_sink(e, strtoull(argv[2], NULL, 10), 0, (uint32_t)atoi(argv[3]), &other);
    role_say("open");
    for (;;) {
        pause();
    }
}

static int role_source(int argc, char **argv)
{
    struct daemon own;
    struct daemon other;
    CHECK_IS(argc, 4, "arguments");
    struct engine *e = role_engine(argv, &own, &other);
    uint32_t count = (uint32_t)atoi(argv[3]);
    kvf_room out = engine_source(e, strtoull(argv[2], NULL, 10));
    engine_submit(e, out, 0, count, 0, true);
    role_say("open");
    for (;;) {
        pause();
    }
}

static void kill_engine(const char *placement, bool is_sink_killed)
{
    enum { PAGES = 300 };
    char key_text[32];
    char count_text[32];
    start_daemons(placement, "50");
    uint64_t key = key_next();
    snprintf(key_text, sizeof key_text, "%llu", (unsigned long long)key);
    snprintf(count_text, sizeof count_text, "%d", PAGES);
    struct daemon *own = is_sink_killed ? decode : prefill;
    struct daemon *other = is_sink_killed ? prefill : decode;
    struct engine *e = engine_start(other, &geometry, 0);
    struct bystander *b = bystander_start(prefill, decode);
    struct helper *h = helper_start(is_sink_killed ? "sink" : "source", own->socket_path,
                                    other->listen, key_text, count_text, NULL);
    helper_expect(h, "open", WAIT_MS);
    kvf_room room;
    if (is_sink_killed) {
        room = engine_source(e, key);
        engine_submit(e, room, 0, PAGES, 0, true);
    } else {
        room = engine_sink(e, key, 0, PAGES, prefill);
    }
    room_wait_placed(e, room, 20 * e->page_bytes, WAIT_MS);
    uint64_t start_ns = now_ns();
    helper_kill(h);
    room_expect(e, room, KVF_FAILED, (uint32_t)usual_ms(other) + 500);
    uint32_t reason = room_info(e, room).reason;
    CHECK(reason == KVF_E_PEER_ABORTED, "reason %s", kvf_code_name_of((int)reason));
    test_say("%s engine killed (%s): the other's room drained by %s after %llu ms",
             is_sink_killed ? "sink" : "source", placement,
             kvf_proof_name(kvf_drained(e->client, room)),
             (unsigned long long)(now_ns() - start_ns) / 1000000u);
    WAIT_FOR(daemon_stat(own, "regions") == 1 && daemon_stat(own, "clients") == 1,
             usual_ms(own) + 500,
             "the dead engine's memory is held: %llu regions, %llu clients",
             (unsigned long long)daemon_stat(own, "regions"),
             (unsigned long long)daemon_stat(own, "clients"));
    room_release(e, room);
    /* A new engine is as good as the first. */
    struct engine *next = engine_start(own, &geometry, 0);
    transfer_once(is_sink_killed ? e : next, is_sink_killed ? next : e, key_next(), 0, 50);
    bystander_stop(b, 5, NULL);
    engine_stop(next);
    engine_stop(e);
    daemons_stop();
}

static void sink_engine_killed(void)
{
    kill_engine("posted", true);
}

static void source_engine_killed(void)
{
    kill_engine("posted", false);
}

static void sink_engine_killed_checked(void)
{
    kill_engine("checked", true);
}

static void engine_forks(void)
{
    start_with("posted", "50");
    kvf_room in;
    kvf_room out;
    open_both(100, &in, &out);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct kvf_daemon_info info = {.size_bytes = sizeof info};
        const int32_t page = 0;
        kvf_room room = 0;
        CHECK_CODE(kvf_poll(to->client, in), -KVF_E_FORKED, "poll in the child");
        CHECK_CODE(kvf_drained(to->client, in), -KVF_E_FORKED, "drained in the child");
        CHECK_CODE(kvf_abort(to->client, in, 0), -KVF_E_FORKED, "abort in the child");
        CHECK_CODE(kvf_release(to->client, in), -KVF_E_FORKED, "release in the child");
        CHECK_CODE(kvf_wait(to->client, in, 10), -KVF_E_FORKED, "wait in the child");
        CHECK_CODE(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL), -KVF_E_FORKED,
                   "the ledger in the child");
        CHECK_CODE(kvf_daemon_info(to->client, &info), -KVF_E_FORKED,
                   "daemon_info in the child");
        CHECK_CODE(engine_try_sink(to, 1, &page, 1, prefill->listen, &room), -KVF_E_FORKED,
                   "open in the child");
        if (is_sanitized_build()) {
            _exit(0); /* a leak checker would look for what the child cannot see */
        }
        exit(0); /* with everything that runs at an exit */
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "the child ended with %x", (unsigned)status);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    transfer_once(from, to, key_next(), 0, 20);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static void detach_with_rooms(void)
{
    start_with("posted", "50");
    uint32_t undrained = 99;
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    (void)engine_sink(to, key_next(), 300, 4, prefill);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    CHECK_CODE(kvf_detach(to->client, 5000, &undrained), 0, "detach in flight");
    CHECK_IS(undrained, 0, "undrained rooms");
    room_expect_reason(from, out, KVF_E_PEER_ABORTED, WAIT_MS);
    room_release(from, out);
    kvf_pool_destroy(to->pool);
    free(to);
    WAIT_FOR(daemon_stat(decode, "clients") == 0, 2000, "the client is still known");
    to = engine_start(decode, &geometry, 0);
    /* The other side too, with its pages being read. */
    open_both(200, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    CHECK_CODE(kvf_detach(from->client, 5000, &undrained), 0, "detach in flight");
    CHECK_IS(undrained, 0, "undrained rooms");
    room_expect_reason(to, in, KVF_E_PEER_ABORTED, WAIT_MS);
    room_release(to, in);
    kvf_pool_destroy(from->pool);
    free(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- attach --------------------------------------------------------------------------------------------- */

static void *attach_late(void *ctx)
{
    kvf_client **ret_client = ctx;
    char path[160];
    snprintf(path, sizeof path, "%s/late.sock", case_dir());
    struct kvf_attach_opts opts = {
        .size_bytes = sizeof opts, .timeout_ms = 8000, .socket_path = path};
    CHECK_CODE(kvf_attach(&opts, ret_client), 0, "attach before the daemon is there");
    return NULL;
}

static void attach_waits(void)
{
    char path[160];
    kvf_client *client = NULL;
    snprintf(path, sizeof path, "%s/late.sock", case_dir());
    struct kvf_attach_opts opts = {.size_bytes = sizeof opts, .socket_path = path};
    uint64_t start_ns = now_ns();
    CHECK_CODE(kvf_attach(&opts, &client), -KVF_E_NO_DAEMON, "attach to nobody");
    CHECK((now_ns() - start_ns) / 1000000u < 200, "a single try took too long");
    opts.timeout_ms = 400;
    start_ns = now_ns();
    CHECK_CODE(kvf_attach(&opts, &client), -KVF_E_NO_DAEMON, "attach to nobody");
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    CHECK(took_ms >= 395 && took_ms < 1500, "gave up after %llu ms, the deadline is 400",
          (unsigned long long)took_ms);
    pthread_t thread;
    CHECK_IS(pthread_create(&thread, NULL, attach_late, &client), 0, "thread");
    sleep_us(200000);
    struct daemon *d = daemon_start("late", NULL);
    pthread_join(thread, NULL);
    CHECK(client != NULL, "not attached");
    CHECK_CODE(kvf_daemon_check(client), 0, "daemon_check");
    CHECK_CODE(kvf_detach(client, 5000, NULL), 0, "detach");
    daemon_stop(d);
}

/* Which of the broken streams is noticed first is chance: the lane's or the control connection's. */
static void expect_peer_lost(struct engine *e, kvf_room room, uint32_t limit_ms)
{
    room_expect(e, room, KVF_FAILED, limit_ms);
    int reason = (int)room_info(e, room).reason;
    CHECK(reason == KVF_E_PEER_LOST || reason == KVF_E_LANE_LOST, "reason %s",
          kvf_code_name_of(reason));
}

/* ---- daemons ------------------------------------------------------------------------------------------------ */

/* The source's daemon dies while it writes. */
static void peer_killed(const char *placement)
{
    int32_t pages[200];
    start_with(placement, "50");
    pages_count_up(pages, 200, 0);
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    kvf_room waiting = engine_sink(to, key_next(), 300, 4, prefill);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    uint64_t start_ns = now_ns();
    daemon_kill(prefill);
    expect_peer_lost(to, in, (uint32_t)usual_ms(decode) + 500);
    engine_set(to, pages, 200, CANARY);
    test_say("%s: drained by %s %llu ms after the death", placement,
             kvf_proof_name(kvf_drained(to->client, in)),
             (unsigned long long)(now_ns() - start_ns) / 1000000u);
    room_expect(to, waiting, KVF_FAILED, (uint32_t)usual_ms(decode) + 6000);
    /* The dead daemon's engine draws its own conclusion. */
    int rc = 0;
    WAIT_FOR((rc = kvf_daemon_check(from->client)) == -KVF_E_DAEMON_GONE, 2000,
             "daemon_check says %d %s", rc, kvf_code_name_of(rc));
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_expect_proof(from, out, KVF_WORKER_GONE);
    engine_check_idle(from);
    const int32_t page = 0;
    kvf_room refused = 0;
    CHECK(engine_try_sink(from, 1, &page, 1, decode->listen, &refused) < 0,
          "an open without a daemon");
    room_release(to, in);
    room_release(to, waiting);
    /* The next daemon at the same address works at once. */
    daemon_start_again(prefill);
    struct engine *next = engine_start(prefill, &geometry, 0);
    transfer_once(next, to, key_next(), 300, 50);
    CHECK_IS(engine_count_other(to, pages, 200, CANARY), 0, "bytes changed after drained");
    engine_drop(from);
    engine_stop(next);
    engine_stop(to);
    daemons_stop();
}

static void peer_killed_checked(void)
{
    peer_killed("checked");
}

static void peer_killed_posted(void)
{
    peer_killed("posted");
}

/* The sink's daemon dies while it is written to. */
static void sink_daemon_killed(void)
{
    start_with("posted", "50");
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    daemon_kill(decode);
    expect_peer_lost(from, out, (uint32_t)usual_ms(prefill) + 500);
    room_expect_proof(from, out, KVF_SOURCE_IDLE);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    room_expect_proof(to, in, KVF_WORKER_GONE);
    room_release(from, out);
    daemon_start_again(decode);
    /* The engine hands its segment, region and ledger on. */
    CHECK_CODE(kvf_reattach(to->client, 5000), 0, "re-attach");
    CHECK_IS(kvf_poll(to->client, in), KVF_FAILED, "the old room after the re-attach");
    room_release(to, in);
    transfer_once(from, to, key_next(), 0, 50);
    /* Drained by the supervisor while a worker serves, who alone writes the stats. */
    WAIT_FOR(daemon_stat(decode, "proof_worker_gone_total") == 1, WAIT_MS,
             "rooms drained by the worker's end: %llu and not 1",
             (unsigned long long)daemon_stat(decode, "proof_worker_gone_total"));
    WAIT_FOR(daemon_stat(decode, "rooms_succeeded_total") == 1, WAIT_MS,
             "the transfer behind it is not counted");
    CHECK_IS(daemon_stat(decode, "proof_worker_gone_total"), 1, "and in the copy behind that");
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static void freeze(struct daemon *d, int signal_number)
{
    if (signal_number == SIGSTOP) {
        daemon_signal(d, SIGSTOP); /* the supervisor first, or its watchdog ends the worker */
        CHECK(kill(d->worker, SIGSTOP) == 0, "stop");
    } else {
        CHECK(kill(d->worker, SIGCONT) == 0, "continue");
        daemon_signal(d, SIGCONT);
    }
}

static void peer_frozen(const char *placement)
{
    int32_t pages[200];
    start_with(placement, "50");
    pages_count_up(pages, 200, 0);
    struct engine *own = engine_start(decode, &geometry, 0); /* sends to itself meanwhile */
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    uint64_t bound_ms = usual_ms(decode);
    uint64_t start_ns = now_ns();
    freeze(prefill, SIGSTOP);
    expect_peer_lost(to, in, (uint32_t)bound_ms + 500);
    engine_set(to, pages, 200, CANARY);
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    test_say("%s: drained by %s %llu ms after the freeze, the bound is %llu ms", placement,
             kvf_proof_name(kvf_drained(to->client, in)), (unsigned long long)took_ms,
             (unsigned long long)bound_ms);
    CHECK(took_ms <= bound_ms, "%llu ms are over the bound of %llu",
          (unsigned long long)took_ms, (unsigned long long)bound_ms);
    transfer_once(own, to, key_next(), 300, 10);
    uint64_t thaw_ns = now_ns();
    freeze(prefill, SIGCONT);
    while (now_ns() - thaw_ns < UINT64_C(1000000000)) {
        CHECK_IS(engine_count_other(to, pages, 200, CANARY), 0,
                 "bytes of a thawed writer landed");
    }
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    engine_stop(own);
    /* Its supervisor may have found the worker asleep too long and started the next. */
    WAIT_FOR(kvf_daemon_check(from->client) == 0, WAIT_MS, "the thawed daemon does not serve");
    prefill->worker = daemon_worker_now(prefill);
    transfer_once(from, to, key_next(), 300, 50);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static void peer_frozen_checked(void)
{
    peer_frozen("checked");
}

static void peer_frozen_posted(void)
{
    peer_frozen("posted");
}

/* ---- workers ------------------------------------------------------------------------------------------------- */

#define DYING_ROOMS 10
#define DYING_PAGES 30

/* Asks the ledger and the rooms all the time: no page is idle before its room is proven. */
struct watch {
    struct engine *engine;
    kvf_room rooms[DYING_ROOMS];
    int worker_fd; /* of the worker that serves them */
    _Atomic bool is_ending;
    uint64_t lent;
    uint64_t idle;
};

static bool has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void *watch_rooms(void *ctx)
{
    struct watch *w = ctx;
    while (!atomic_load_explicit(&w->is_ending, memory_order_relaxed)) {
        for (int i = 0; i < DYING_ROOMS; i++) {
            int32_t page = i * DYING_PAGES;
            int idle = kvf_pages_are_idle(w->engine->client, w->engine->region, &page, 1, NULL);
            int proof = kvf_drained(w->engine->client, w->rooms[i]);
            CHECK(idle == 0 || proof > 0, "page of room %d is idle before its proof (%d)", i,
                  proof);
            /* Told to end is not ended: only the kernel's word on the process is. */
            CHECK(proof != KVF_WORKER_GONE || has_ended(w->worker_fd),
                  "room %d is proven by the end of a worker that lives", i);
            w->lent += idle == 0;
            w->idle += idle == 1;
        }
    }
    return NULL;
}

/* The decode worker ends in flight, by whatever `end_fn` does. */
static void worker_ends(int signal_number, uint64_t limit_ms)
{
    struct watch watch = {.engine = to,
                          .worker_fd = (int)syscall(SYS_pidfd_open, decode->worker, 0)};
    kvf_room out[DYING_ROOMS];
    CHECK(watch.worker_fd >= 0, "pidfd_open: %s", strerror(errno));
    pthread_t thread;
    for (int i = 0; i < DYING_ROOMS; i++) {
        uint64_t key = key_next();
        watch.rooms[i] = engine_sink(to, key, i * DYING_PAGES, DYING_PAGES, prefill);
        out[i] = engine_source(from, key);
        engine_submit(from, out[i], i * DYING_PAGES, DYING_PAGES, 0, true);
    }
    room_wait_placed(to, watch.rooms[0], 2 * to->page_bytes, WAIT_MS);
    CHECK_IS(pthread_create(&thread, NULL, watch_rooms, &watch), 0, "thread");
    uint64_t start_ns = now_ns();
    CHECK(kill(decode->worker, signal_number) == 0, "signal to the worker");
    uint32_t gone = 0;
    for (int i = 0; i < DYING_ROOMS; i++) {
        int state = kvf_wait(to->client, watch.rooms[i], (uint32_t)limit_ms);
        CHECK(state == KVF_FAILED || state == KVF_SUCCESS, "room %d: %d %s after %llu ms", i,
              state, kvf_code_name_of(state),
              (unsigned long long)(now_ns() - start_ns) / 1000000u);
        if (state == KVF_FAILED) {
            room_expect_proof(to, watch.rooms[i], KVF_WORKER_GONE);
            CHECK_CODE((int)room_info(to, watch.rooms[i]).reason, KVF_E_WORKER_GONE, "reason");
            gone++;
        }
    }
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    atomic_store_explicit(&watch.is_ending, true, memory_order_relaxed);
    pthread_join(thread, NULL);
    close(watch.worker_fd);
    test_say("%u of %d rooms drained by the worker's end, all after %llu ms", gone, DYING_ROOMS,
             (unsigned long long)took_ms);
    CHECK(gone > 0 && watch.lent > 0, "no room was in flight");
    CHECK(took_ms <= worst_ms(decode), "over the worst bound");
    for (int i = 0; i < DYING_ROOMS; i++) {
        int state = kvf_wait(from->client, out[i], WAIT_MS);
        CHECK(state == KVF_FAILED || state == KVF_SUCCESS, "source %d: %d", i, state);
        room_release(to, watch.rooms[i]);
        room_release(from, out[i]);
    }
    engine_check_idle(to);
    /* Engines do nothing: the next worker has their regions. */
    daemon_wait_worker(decode, 5000);
    int rc = 0;
    WAIT_FOR((rc = kvf_daemon_check(to->client)) == 0, 5000, "daemon_check: %d %s", rc,
             kvf_code_name_of(rc));
    struct kvf_daemon_info info = {.size_bytes = sizeof info};
    CHECK_CODE(kvf_daemon_info(to->client, &info), 0, "daemon_info");
    CHECK(info.worker_epoch > decode->epoch, "the epoch did not grow");
    CHECK_IS(daemon_stat(decode, "worker_starts"), 2, "worker starts");
    transfer_once(from, to, key_next(), 0, 50);
}

static void worker_killed(void)
{
    start_with("posted", "50");
    worker_ends(SIGKILL, 3000);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

static void worker_stuck(void)
{
    start_with("posted", "50");
    worker_ends(SIGSTOP, worst_ms(decode));
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* Nobody calls kvf_wait here, and the next worker has nothing to say of rooms that its predecessor's end has drained. */
static void descriptor_tells_of_a_workers_end(void)
{
    start_with("posted", "50");
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    int fd = kvf_event_fd(to->client);
    CHECK(fd >= 0, "event_fd: %d", fd);
    struct kvf_event events[16];
    int n;
    while ((n = kvf_events_next(to->client, events, 16)) != 0) {
        CHECK(n > 0 || n == -EOVERFLOW, "events_next: %d", n);
    }
    CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained before the kill");
    uint64_t start_ns = now_ns();
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    struct pollfd sleep_on = {.fd = fd, .events = POLLIN};
    bool must_scan = false;
    while (kvf_drained(to->client, in) == -EAGAIN) {
        uint64_t gone_ms = (now_ns() - start_ns) / 1000000u;
        CHECK(gone_ms < 3000 && poll(&sleep_on, 1, (int)(3000 - gone_ms)) == 1,
              "the descriptor is quiet");
        while ((n = kvf_events_next(to->client, events, 16)) != 0) {
            must_scan = must_scan || n == -EOVERFLOW;
        }
    }
    CHECK(must_scan, "rooms changed without an event, and it was not said");
    room_expect_proof(to, in, KVF_WORKER_GONE);
    room_release(to, in);
    room_end(from, out, WAIT_MS);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* The source's worker: its pages are read no more, and the sink's room is fenced or drained. */
static void source_worker_killed(void)
{
    start_with("posted", "50");
    kvf_room in;
    kvf_room out;
    open_both(200, &in, &out);
    room_wait_placed(to, in, 10 * to->page_bytes, WAIT_MS);
    CHECK(kill(prefill->worker, SIGKILL) == 0, "kill");
    room_expect_reason(from, out, KVF_E_WORKER_GONE, 3000);
    room_expect_proof(from, out, KVF_WORKER_GONE);
    expect_peer_lost(to, in, (uint32_t)usual_ms(decode) + 500);
    room_release(from, out);
    room_release(to, in);
    daemon_wait_worker(prefill, 5000);
    WAIT_FOR(kvf_daemon_check(from->client) == 0, 5000, "the next worker does not serve");
    /* Its address may be another: the ready line of a daemon names the first. */
    transfer_once(from, to, key_next(), 0, 50);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- SIGTERM ---------------------------------------------------------------------------------------------------- */

static void term_within_grace(void)
{
    start_with("posted", "50");
    kvf_room in;
    kvf_room out;
    open_both(100, &in, &out);
    kvf_room waiting = engine_sink(to, key_next(), 300, 4, prefill);
    room_wait_placed(to, in, 5 * to->page_bytes, WAIT_MS);
    daemon_signal(decode, SIGTERM);
    room_expect_reason(to, waiting, KVF_E_SHUTDOWN, WAIT_MS);
    const int32_t page = 400;
    kvf_room refused = 0;
    int rc = engine_try_sink(to, 1, &page, 1, prefill->listen, &refused);
    CHECK(rc == -ESHUTDOWN || rc == -KVF_E_DAEMON_GONE || rc == -KVF_E_WORKER_GONE,
          "an open after SIGTERM: %d %s", rc, kvf_code_name_of(rc));
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    CHECK_IS(daemon_wait(decode, 3000), 0,
             "exit status when every room ended in the grace period");
    CHECK_IS(kvf_poll(to->client, in), KVF_SUCCESS, "the room after the daemon's end");
    CHECK_IS(kvf_visible(to->client, in), 1, "visible after the daemon's end");
    room_release(from, out);
    engine_drop(to);
    engine_stop(from);
    daemons_stop();
}

static void term_beyond_grace(void)
{
    start_daemons("posted", "20");
    daemon_stop(decode);
    decode = daemon_start("decode2", "--tcp-placement", "posted", "--lane-rate", "20",
                          "--grace-ms", "300", NULL);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
    kvf_room in;
    kvf_room out;
    open_both(900, &in, &out);
    room_wait_placed(to, in, 5 * to->page_bytes, WAIT_MS);
    uint64_t start_ns = now_ns();
    daemon_signal(decode, SIGTERM);
    room_expect_reason(to, in, KVF_E_SHUTDOWN, WAIT_MS);
    CHECK(now_ns() - start_ns >= UINT64_C(290000000), "ended before the grace period was over");
    CHECK(kvf_drained(to->client, in) > 0, "no proof");
    CHECK_IS(daemon_wait(decode, 5000), 4, "exit status when rooms had to be ended");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(from, out);
    engine_drop(to);
    engine_stop(from);
    daemons_stop();
}

static void term_twice(void)
{
    start_with("posted", "20");
    kvf_room in;
    kvf_room out;
    open_both(900, &in, &out);
    room_wait_placed(to, in, 5 * to->page_bytes, WAIT_MS);
    daemon_signal(decode, SIGTERM);
    sleep_us(100000);
    CHECK_IS(kvf_poll(to->client, in), KVF_TRANSFERRING, "in the grace period of 5 s");
    daemon_signal(decode, SIGTERM);
    room_expect_reason(to, in, KVF_E_SHUTDOWN, 2000);
    CHECK_IS(daemon_wait(decode, 5000), 4, "exit status");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(from, out);
    engine_drop(to);
    engine_stop(from);
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {
        {"sink", role_sink}, {"source", role_source}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"a_killed_sink_engine_ends_the_peers_room_and_its_memory_is_let_go",
         sink_engine_killed, 0},
        {"a_killed_sink_engine_ends_the_peers_room_checked", sink_engine_killed_checked, 0},
        {"a_killed_source_engine_ends_the_peers_room_and_its_memory_is_let_go",
         source_engine_killed, 0},
        {"a_forked_childs_handle_answers_and_its_exit_detaches_nothing", engine_forks, 0},
        {"detach_with_open_rooms_drains_them", detach_with_rooms, 0},
        {"attach_waits_for_a_daemon_until_its_deadline", attach_waits, 0},
        {"a_killed_peer_daemon_fails_its_rooms_and_the_next_works_checked", peer_killed_checked,
         0},
        {"a_killed_peer_daemon_fails_its_rooms_and_the_next_works_posted", peer_killed_posted,
         0},
        {"a_killed_sink_daemon_proves_by_its_end_and_its_engine_re_attaches",
         sink_daemon_killed, 0},
        {"a_frozen_peer_daemon_is_fenced_and_refused_when_it_thaws_checked",
         peer_frozen_checked, 0},
        {"a_frozen_peer_daemon_is_fenced_and_refused_when_it_thaws_posted", peer_frozen_posted,
         0},
        {"a_killed_worker_drains_its_rooms_and_the_next_serves", worker_killed, 0},
        {"a_sleeper_on_the_descriptor_alone_hears_of_its_workers_end",
         descriptor_tells_of_a_workers_end, 0},
        {"e7_a_stuck_worker_is_ended_within_the_worst_bound", worker_stuck, 0},
        {"a_killed_source_worker_lets_go_of_the_pages_it_read", source_worker_killed, 0},
        {"sigterm_serves_running_rooms_within_the_grace_period", term_within_grace, 0},
        {"sigterm_ends_rooms_that_outlast_the_grace_period", term_beyond_grace, 0},
        {"a_second_sigterm_ends_the_grace_period", term_twice, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

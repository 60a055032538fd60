/* External leases: work of the engine or another library that the daemon cannot see holds a room's pages
 * too, and what the engine's death proves depends on the kind. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u
#define HOLD_US 150000u

static const struct geometry geometry = SIXTEEN_BY_FOUR;
static const int kinds[] = {KVF_KIND_CPU, KVF_KIND_GPU, KVF_KIND_DIRECT_IO};

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

static void start_with(const char *placement, const char *rate)
{
    prefill = daemon_start("prefill", "--tcp-placement", placement, "--lane-rate", rate, NULL);
    decode = daemon_start("decode", "--tcp-placement", placement, "--lane-rate", rate, NULL);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* Not drained, now and a while later; the ledger agrees. */
static void expect_held(struct engine *e, kvf_room room, int32_t page)
{
    sleep_us(HOLD_US);
    CHECK_IS(kvf_drained(e->client, room), -EAGAIN, "drained with a lease out");
    int state = kvf_poll(e->client, room);
    CHECK(state == KVF_TRANSFERRING, "state %s with a lease out", kvf_state_name(state));
    CHECK_IS(kvf_pages_are_idle(e->client, e->region, &page, 1, NULL), 0,
             "the ledger with a lease out");
}

static void holds_aborted(void)
{
    start_with("checked", "0");
    for (size_t k = 0; k < 3; k++) {
        kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
        CHECK_CODE(kvf_lease(to->client, in, kinds[k]), 0, "lease");
        CHECK_CODE(kvf_lease(to->client, in, kinds[k]), 0, "a second lease");
        CHECK_CODE(kvf_abort(to->client, in, 0), 0, "abort");
        WAIT_FOR(kvf_failed_early(to->client, in) == 1, 1000, "not told early");
        expect_held(to, in, 0);
        struct kvf_room_info info = room_info(to, in);
        const uint32_t out[] = {info.leases_cpu, info.leases_gpu, info.leases_direct_io};
        for (size_t i = 0; i < 3; i++) {
            CHECK_IS(out[i], i == k ? 2 : 0, "leases in room_info");
        }
        CHECK_CODE(kvf_lease(to->client, in, kinds[k]), -KVF_E_LEASE_CLOSED, "after the close");
        CHECK_CODE(kvf_lease_give_back(to->client, in, kinds[k]), 0, "give back");
        expect_held(to, in, 0);
        CHECK_CODE(kvf_lease_give_back(to->client, in, kinds[k]), 0, "give back");
        room_expect(to, in, KVF_FAILED, 1000);
        CHECK_CODE(kvf_lease_give_back(to->client, in, kinds[k]), -ENOENT, "one too many");
        CHECK_CODE(kvf_lease(to->client, in, kinds[k]), -KVF_E_LEASE_CLOSED, "after the end");
        room_release(to, in);
    }
    stop();
}

static void holds_success(void)
{
    start_with("checked", "0");
    uint64_t key = key_next();
    int32_t pages[8];
    pages_count_up(pages, 8, 0);
    engine_fill(from, 1, pages, 8, 0);
    kvf_room in = engine_sink(to, key, 0, 8, prefill);
    kvf_room out = engine_source(from, key);
    CHECK_CODE(kvf_lease(to->client, in, KVF_KIND_GPU), 0, "lease of the sink");
    CHECK_CODE(kvf_lease(from->client, out, KVF_KIND_CPU), 0, "lease of the source");
    engine_submit_pages(from, out, pages, 8, 0, true);
    room_wait_placed(to, in, 8 * to->page_bytes, WAIT_MS);
    expect_held(to, in, 0);
    expect_held(from, out, 0);
    CHECK_CODE(kvf_lease_give_back(to->client, in, KVF_KIND_GPU), 0, "give back");
    CHECK_CODE(kvf_lease_give_back(from->client, out, KVF_KIND_CPU), 0, "give back");
    room_expect(to, in, KVF_SUCCESS, 1000);
    room_expect(from, out, KVF_SUCCESS, 1000);
    engine_verify(to, 1, pages, 8, 0);
    CHECK_CODE(kvf_lease(to->client, in, KVF_KIND_GPU), -KVF_E_LEASE_CLOSED, "after Success");
    room_release(to, in);
    room_release(from, out);
    stop();
}

static void counts_are_bounded(void)
{
    start_with("checked", "0");
    const int most[] = {511, 127, 127};
    kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
    for (size_t k = 0; k < 3; k++) {
        for (int i = 0; i < most[k]; i++) {
            CHECK_CODE(kvf_lease(to->client, in, kinds[k]), 0, "lease");
        }
        CHECK_IS(kvf_lease(to->client, in, kinds[k]), -EOVERFLOW, "one over the most");
    }
    CHECK_CODE(kvf_abort(to->client, in, 0), 0, "abort");
    for (size_t k = 0; k < 3; k++) {
        for (int i = 0; i < most[k]; i++) {
            CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained with leases out");
            CHECK_CODE(kvf_lease_give_back(to->client, in, kinds[k]), 0, "give back");
        }
    }
    room_expect(to, in, KVF_FAILED, 1000);
    room_release(to, in);
    stop();
}

/* A released handle: its lease is still out, and gives back by the old handle. */
static void released_with_lease(void)
{
    const int32_t page = 0;
    start_with("checked", "0");
    kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
    CHECK_CODE(kvf_lease(to->client, in, KVF_KIND_CPU), 0, "lease");
    room_release(to, in);
    sleep_us(HOLD_US);
    CHECK_IS(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL), 0, "ledger");
    CHECK_CODE(kvf_lease_give_back(to->client, in, KVF_KIND_CPU), 0, "give back");
    WAIT_FOR(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL) == 1, 1000,
             "the page never came back");
    stop();
}

/* ---- races ---------------------------------------------------------------------------------------------- */

#define TAKERS 3
#define RACES 300

struct taker {
    pthread_t thread;
    _Atomic uint64_t *room;
    _Atomic bool *is_ending;
    uint64_t taken;
    uint64_t refused;
};

static void *take_leases(void *ctx)
{
    struct taker *t = ctx;
    while (!atomic_load_explicit(t->is_ending, memory_order_relaxed)) {
        uint64_t room = atomic_load_explicit(t->room, memory_order_acquire);
        if (room == 0) {
            continue;
        }
        int rc = kvf_lease(to->client, room, KVF_KIND_CPU);
        if (rc == 0) {
            CHECK_IS(kvf_drained(to->client, room), -EAGAIN, "drained while we hold a lease");
            CHECK_CODE(kvf_lease_give_back(to->client, room, KVF_KIND_CPU), 0, "give back");
            t->taken++;
        } else {
            CHECK(rc == -KVF_E_LEASE_CLOSED || rc == -KVF_E_STALE_ROOM, "lease: %d %s", rc,
                  kvf_code_name_of(rc));
            t->refused++;
        }
    }
    return NULL;
}

static void races(void)
{
    static _Atomic uint64_t room;
    static _Atomic bool is_ending;
    struct taker takers[TAKERS];
    uint64_t taken = 0;
    uint64_t refused = 0;
    start_with("checked", "0");
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (struct taker){.room = &room, .is_ending = &is_ending};
        CHECK_IS(pthread_create(&takers[i].thread, NULL, take_leases, &takers[i]), 0, "thread");
    }
    for (int i = 0; i < RACES; i++) {
        kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
        atomic_store_explicit(&room, in, memory_order_release);
        sleep_us(500);
        CHECK_CODE(kvf_abort(to->client, in, 0), 0, "abort");
        room_expect(to, in, KVF_FAILED, WAIT_MS);
        atomic_store_explicit(&room, 0, memory_order_release);
        room_release(to, in);
    }
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(takers[i].thread, NULL);
        taken += takers[i].taken;
        refused += takers[i].refused;
    }
    test_say("%llu leases taken, %llu refused", (unsigned long long)taken,
             (unsigned long long)refused);
    CHECK(taken > RACES && refused > 0, "too little happened to say anything");
    stop();
}

/* ---- deaths ------------------------------------------------------------------------------------------------ */

/* argv: socket, address of the other daemon, kind. Opens a room with a lease and says its pool's number. */
static int role_holder(int argc, char **argv)
{
    struct daemon own = {.name = "holder"};
    struct daemon other = {.name = "other"};
    char line[32];
    CHECK_IS(argc, 3, "arguments");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    snprintf(other.listen, sizeof other.listen, "%s", argv[1]);
    struct engine *e = engine_start(&own, &geometry, 0);
    kvf_room in = engine_sink(e, 77, 0, 5, &other);
    CHECK_CODE(kvf_lease(e->client, in, atoi(argv[2])), 0, "lease");
    CHECK_CODE(kvf_abort(e->client, in, 0), 0, "abort");
    snprintf(line, sizeof line, "%d", kvf_pool_fd(e->pool));
    role_say(line);
    for (;;) {
        pause();
    }
}

/* A lease of a living process is waited for. Returns a descriptor of its memory. */
static int kill_holder(int kind)
{
    char kind_text[8];
    char line[64];
    char path[128];
    snprintf(kind_text, sizeof kind_text, "%d", kind);
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", NULL);
    struct helper *h =
        helper_start("holder", decode->socket_path, prefill->listen, kind_text, NULL);
    helper_read(h, line, sizeof line, WAIT_MS);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h->pid, atoi(line));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0, "%s: %s", path, strerror(errno));
    sleep_us(HOLD_US);
    CHECK_IS(daemon_stat(decode, "rooms_closing"), 1,
             "the room with a lease of a living engine");
    CHECK_IS(daemon_stat(decode, "pages_held"), 5, "its pages");
    helper_kill(h);
    return fd;
}

static int try_register(kvf_client *client, int fd, uint32_t *ret_region)
{
    struct kvf_plane plane = {.stride = 4096, .page_bytes = 4096};
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = fd,
                                   .memory_bytes = geometry_bytes(&geometry),
                                   .page_count = 16,
                                   .planes = &plane,
                                   .plane_count = 1};
    return kvf_region_register(client, &opts, ret_region);
}

/* Worker first, engine then: the next worker, which took the room over, finds out what that proves. */
static void holder_killed_after_worker(int kind)
{
    char kind_text[8];
    char line[64];
    snprintf(kind_text, sizeof kind_text, "%d", kind);
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", NULL);
    struct helper *h =
        helper_start("holder", decode->socket_path, prefill->listen, kind_text, NULL);
    helper_read(h, line, sizeof line, WAIT_MS);
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode, 5000);
    WAIT_FOR(daemon_stat(decode, "rooms_closing") == 1, 5000, "the room was not taken over");
    CHECK_IS(daemon_stat(decode, "rooms_adopted_total"), 1, "rooms taken over");
    sleep_us(HOLD_US);
    CHECK_IS(daemon_stat(decode, "rooms_closing"), 1, "the lease of a living engine");
    helper_kill(h);
}

static void cpu_holder_killed_after_worker(void)
{
    holder_killed_after_worker(KVF_KIND_CPU);
    WAIT_FOR(daemon_stat(decode, "proof_engine_gone_total") == 1, 3000, "no proof by its end");
    WAIT_FOR(daemon_stat(decode, "clients") == 0, 3000, "its memory is held");
    daemons_stop();
}

static void gpu_holder_killed_after_worker(void)
{
    holder_killed_after_worker(KVF_KIND_GPU);
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "no room in quarantine");
    CHECK_IS(daemon_stat(decode, "proof_engine_gone_total"), 0, "proofs by the engine's end");
    /* One more worker: it stays what it is, in plain sight. */
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode, 5000);
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "the quarantine was lost");
    struct bystander *b = bystander_start(prefill, decode);
    bystander_stop(b, 20, NULL);
    daemon_stop(prefill);
    daemon_signal(decode, SIGTERM);
    int status = daemon_wait(decode, 8000);
    CHECK(status == 0 || status == 4, "exit status of a daemon with a quarantine: %d", status);
}

static void cpu_holder_killed(void)
{
    int fd = kill_holder(KVF_KIND_CPU);
    uint32_t region = 0;
    int rc = 0;
    WAIT_FOR(daemon_stat(decode, "proof_engine_gone_total") == 1, 2000, "no proof by its end");
    CHECK_IS(daemon_stat(decode, "rooms_quarantined"), 0, "rooms in quarantine");
    kvf_client *client = client_attach(decode, 4);
    WAIT_FOR((rc = try_register(client, fd, &region)) == 0, 2000,
             "the dead engine's memory is not free: %d %s", rc, kvf_code_name_of(rc));
    CHECK_CODE(kvf_region_unregister(client, region), 0, "unregister");
    CHECK_CODE(kvf_detach(client, 5000, NULL), 0, "detach");
    close(fd);
    daemons_stop();
}

static void holder_quarantines(int kind)
{
    int fd = kill_holder(kind);
    uint32_t region = 0;
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "no room in quarantine");
    CHECK_IS(daemon_stat(decode, "pages_quarantined"), 5, "pages in quarantine");
    CHECK_IS(daemon_stat(decode, "proof_engine_gone_total"), 0, "proofs by the engine's end");
    kvf_client *client = client_attach(decode, 4);
    CHECK_CODE(try_register(client, fd, &region), -KVF_E_QUARANTINED, "memory in quarantine");
    CHECK_CODE(kvf_detach(client, 5000, NULL), 0, "detach");
    close(fd);
    /* It stays in plain sight, and the others go on. */
    struct bystander *b = bystander_start(prefill, decode);
    bystander_stop(b, 20, NULL);
    CHECK_IS(daemon_stat(decode, "rooms_quarantined"), 1, "rooms in quarantine after a while");
    daemon_stop(prefill);
    daemon_signal(decode, SIGTERM);
    int status = daemon_wait(decode, 8000);
    CHECK(status == 0 || status == 4, "exit status of a daemon with a quarantine: %d", status);
    test_say("a daemon with a quarantine ends with %d", status);
}

static void gpu_holder_killed(void)
{
    holder_quarantines(KVF_KIND_GPU);
}

static void direct_io_holder_killed(void)
{
    holder_quarantines(KVF_KIND_DIRECT_IO);
}

/* The worker's end proves the daemon's part; the engine's own lease is still out. */
static void worker_killed_with_lease(void)
{
    start_with("posted", "50");
    kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
    kvf_room plain = engine_sink(to, key_next(), 8, 4, prefill);
    CHECK_CODE(kvf_lease(to->client, in, KVF_KIND_GPU), 0, "lease");
    room_wait_state(to, in, KVF_BOOTSTRAPPING, WAIT_MS);
    WAIT_FOR(daemon_stat(decode, "rooms_open") == 2, WAIT_MS, "the opens were not taken");
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    room_expect(to, plain, KVF_FAILED, 3000);
    room_expect_proof(to, plain, KVF_WORKER_GONE);
    sleep_us(HOLD_US);
    CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained with a lease out");
    const int32_t page = 0;
    CHECK_IS(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL), 0, "ledger");
    daemon_wait_worker(decode, 5000);
    WAIT_FOR(kvf_daemon_check(to->client) == 0, 5000, "the next worker does not serve");
    CHECK_IS(kvf_drained(to->client, in), -EAGAIN, "drained under the next worker");
    CHECK_CODE(kvf_lease(to->client, in, KVF_KIND_GPU), -KVF_E_LEASE_CLOSED,
               "a lease after the close");
    transfer_once(from, to, key_next(), 100, 10);
    CHECK_CODE(kvf_lease_give_back(to->client, in, KVF_KIND_GPU), 0, "give back");
    room_expect(to, in, KVF_FAILED, 2000);
    room_expect_proof(to, in, KVF_WORKER_GONE);
    room_release(to, in);
    room_release(to, plain);
    stop();
}

/* All bytes are there, a lease is out; it comes back while the worker stands still, and then the worker ends: its
 * reaping drains the room, which is a success like any other. */
static void success_outlives_worker(void)
{
    start_with("checked", "0");
    uint64_t key = key_next();
    int32_t pages[8];
    pages_count_up(pages, 8, 0);
    engine_fill(from, 1, pages, 8, 0);
    kvf_room in = engine_sink(to, key, 0, 8, prefill);
    kvf_room out = engine_source(from, key);
    CHECK_CODE(kvf_lease(to->client, in, KVF_KIND_GPU), 0, "lease");
    engine_submit_pages(from, out, pages, 8, 0, true);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    expect_held(to, in, 0);
    CHECK(kill(decode->worker, SIGSTOP) == 0, "stop");
    CHECK_CODE(kvf_lease_give_back(to->client, in, KVF_KIND_GPU), 0, "give back");
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    room_expect(to, in, KVF_SUCCESS, 5000);
    room_expect_proof(to, in, KVF_WORKER_GONE);
    engine_verify(to, 1, pages, 8, 0);
    daemon_wait_worker(decode, 5000);
    CHECK_IS(daemon_stat(decode, "rooms_succeeded_total"), 1, "rooms that succeeded");
    CHECK_IS(daemon_stat(decode, "rooms_failed_total"), 0, "rooms that failed");
    CHECK_IS(daemon_stat(decode, "proof_worker_gone_total"), 1, "rooms drained by its end");
    WAIT_FOR(kvf_daemon_check(to->client) == 0, 5000, "the next worker does not serve");
    room_release(to, in);
    room_release(from, out);
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {{"holder", role_holder}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"a_lease_of_any_kind_holds_an_aborted_room", holds_aborted, 0},
        {"a_lease_holds_a_room_that_has_all_its_bytes", holds_success, 0},
        {"counts_of_leases_are_bounded", counts_are_bounded, 0},
        {"a_lease_outlives_the_handle", released_with_lease, 0},
        {"no_room_is_drained_while_a_thread_holds_a_lease", races, 0},
        {"an_engine_killed_with_a_cpu_lease_is_proven_by_its_end", cpu_holder_killed, 0},
        {"h12_an_engine_killed_with_a_gpu_lease_leaves_a_quarantine", gpu_holder_killed, 0},
        {"h13_an_engine_killed_with_a_direct_io_lease_leaves_a_quarantine",
         direct_io_holder_killed, 0},
        {"a_lease_outlives_the_worker_and_holds_the_room", worker_killed_with_lease, 0},
        {"a_success_that_waited_for_a_lease_is_counted_as_one_by_the_workers_end",
         success_outlives_worker, 0},
        {"an_engine_killed_after_its_worker_with_a_cpu_lease_is_proven_by_the_next",
         cpu_holder_killed_after_worker, 0},
        {"an_engine_killed_after_its_worker_with_a_gpu_lease_leaves_a_quarantine",
         gpu_holder_killed_after_worker, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

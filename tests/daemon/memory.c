/* One live registration per memory object. An engine that is started again brings the memory of the one that
 * died: it gets it when nothing can touch it any more, and not before; whoever cannot have it is told why. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "tests/daemon/engine.h"
#include "tests/daemon/hostile.h"

#define WAIT_MS 12000u
#define PAGES 300
#define CANARY 0x5d
#define LINE 4096u

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;

static void start_daemons(void)
{
    struct daemon **daemons[] = {&prefill, &decode};
    const char *names[] = {"prefill", "decode"};
    for (int i = 0; i < 2; i++) {
        *daemons[i] = daemon_start(names[i], "--tcp-placement", "posted", "--lane-rate", "50",
                                   "--liveness-ms", is_sanitized_build() ? "3000" : "600",
                                   "--cooperative-ms", "300", "--fence-ms", "1000", NULL);
    }
}

/* ---- engines that die ------------------------------------------------------------------------------------------ */

/* argv: socket, address of the other daemon, key, what. Says its pool's number, then "open". */
static int role_holder(int argc, char **argv)
{
    struct daemon own = {.name = "holder"};
    struct daemon other = {.name = "other"};
    char line[32];
    CHECK_IS(argc, 4, "arguments");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    snprintf(other.listen, sizeof other.listen, "%s", argv[1]);
    struct engine *e = engine_start(&own, &geometry, 0);
    kvf_room in = engine_sink(e, strtoull(argv[2], NULL, 10), 0, PAGES, &other);
    if (strcmp(argv[3], "gpu") == 0) {
        CHECK_CODE(kvf_lease(e->client, in, KVF_KIND_GPU), 0, "lease");
    }
    snprintf(line, sizeof line, "%d", kvf_pool_fd(e->pool));
    role_say(line);
    role_wait(line, sizeof line);
    if (strcmp(line, "detach") == 0) {
        CHECK_CODE(kvf_detach(e->client, 100, NULL), -ETIMEDOUT, "detach with a lease out");
        role_say("detached");
    }
    for (;;) {
        pause();
    }
}

/* argv: socket, path of the memory. Waits for the memory, for ever if it must. */
static int role_waiter(int argc, char **argv)
{
    struct daemon own = {.name = "waiter"};
    CHECK_IS(argc, 2, "arguments");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    kvf_client *client = client_attach(&own, 4);
    struct kvf_plane plane = {.stride = LINE, .page_bytes = LINE};
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = open(argv[1], O_RDWR | O_CLOEXEC),
                                   .memory_bytes = 16 * LINE,
                                   .page_count = 16,
                                   .planes = &plane,
                                   .plane_count = 1,
                                   .timeout_ms = 3600000};
    uint32_t region;
    role_say("waits");
    (void)kvf_region_register(client, &opts, &region);
    role_say("back");
    for (;;) {
        pause();
    }
}

struct holder {
    struct helper *helper;
    char path[64]; /* of its memory */
    int fd;        /* ours */
};

static struct holder holder_start(uint64_t key, const char *what)
{
    struct holder h;
    char key_text[32];
    char line[64];
    snprintf(key_text, sizeof key_text, "%llu", (unsigned long long)key);
    h.helper =
        helper_start("holder", decode->socket_path, prefill->listen, key_text, what, NULL);
    helper_read(h.helper, line, sizeof line, WAIT_MS);
    snprintf(h.path, sizeof h.path, "/proc/%d/fd/%d", (int)h.helper->pid, atoi(line));
    h.fd = open(h.path, O_RDWR | O_CLOEXEC);
    CHECK(h.fd >= 0, "%s: %s", h.path, strerror(errno));
    return h;
}

struct part {
    kvf_client *client;
    int fd;
    uint64_t off;
    uint64_t bytes;
    uint32_t timeout_ms;
    int rc;
    uint32_t region;
    uint64_t took_ms;
    _Atomic bool is_back;
};

static void register_part(struct part *p)
{
    struct kvf_plane plane = {.stride = LINE, .page_bytes = LINE};
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = p->fd,
                                   .memory_off = p->off,
                                   .memory_bytes = p->bytes,
                                   .page_count = p->bytes / LINE,
                                   .planes = &plane,
                                   .plane_count = 1,
                                   .timeout_ms = p->timeout_ms};
    uint64_t start_ns = now_ns();
    p->rc = kvf_region_register(p->client, &opts, &p->region);
    p->took_ms = (now_ns() - start_ns) / 1000000u;
    atomic_store_explicit(&p->is_back, true, memory_order_release);
}

static void *register_thread(void *ctx)
{
    register_part(ctx);
    return NULL;
}

static void expect_refused(struct part *p, int code, const char *text)
{
    char said[232];
    CHECK_CODE(p->rc, -code, "register");
    CHECK_CODE(kvf_last_refusal(p->client, said, sizeof said), 0, "last refusal");
    CHECK(strstr(said, text) != NULL, "says \"%s\" and not \"%s\"", said, text);
}

static void part_leave(struct part *p)
{
    if (p->rc == 0) {
        CHECK_CODE(kvf_region_unregister(p->client, p->region), 0, "unregister");
    }
    CHECK_CODE(kvf_detach(p->client, 5000, NULL), 0, "detach");
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* The writer's daemon is frozen with bytes under way: only a fence proves the dead engine's room, and until then
 * its memory is nobody's. */
static void restarted_engine_waits(void)
{
    start_daemons();
    struct engine *from = engine_start(prefill, &geometry, 0);
    uint64_t key = key_next();
    struct holder h = holder_start(key, "plain");
    kvf_room out = engine_source(from, key);
    engine_submit(from, out, 0, PAGES, 0, true);
    WAIT_FOR(daemon_stat(decode, "bytes_placed_total") > 10 * from->page_bytes, WAIT_MS,
             "nothing was placed");
    daemon_signal(prefill, SIGSTOP);
    CHECK(kill(prefill->worker, SIGSTOP) == 0, "stop");
    helper_kill(h.helper);
    uint64_t start_ns = now_ns();
    struct part whole = {
        .client = client_attach(decode, 4), .fd = h.fd, .bytes = geometry_bytes(&geometry)};
    register_part(&whole);
    CHECK_CODE(whole.rc, 0, "the restarted engine's memory");
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    uint64_t bound_ms = daemon_stat(decode, "bound_usual_us") / 1000u;
    test_say("the memory of the dead engine was free after %llu ms, the bound is %llu ms",
             (unsigned long long)took_ms, (unsigned long long)bound_ms);
    /* What is shown is copied now and then. */
    WAIT_FOR(daemon_stat(decode, "rooms_closing") + daemon_stat(decode, "rooms_fencing") == 0,
             1000, "rooms that are not proven");
    CHECK(!is_timed_build() || took_ms <= bound_ms + 500, "over the bound");
    CHECK_IS(daemon_stat(decode, "fences_total"), 1, "fences, without which nothing is proven");
    /* A fresh ledger, and no byte of the thawed writer. */
    int32_t pages[16];
    pages_count_up(pages, 16, 0);
    CHECK_IS(kvf_pages_are_idle(whole.client, whole.region, pages, 16, NULL), 1,
             "fresh ledger");
    unsigned char block[LINE];
    memset(block, CANARY, sizeof block);
    for (uint64_t at = 0; at < whole.bytes; at += LINE) {
        CHECK(pwrite(h.fd, block, LINE, (off_t)at) == (ssize_t)LINE, "write");
    }
    CHECK(kill(prefill->worker, SIGCONT) == 0, "continue");
    daemon_signal(prefill, SIGCONT);
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    sleep_us(500000);
    for (uint64_t at = 0; at < whole.bytes; at += LINE) {
        CHECK(pread(h.fd, block, LINE, (off_t)at) == (ssize_t)LINE, "read");
        for (uint32_t i = 0; i < LINE; i++) {
            CHECK(block[i] == CANARY, "a byte of the dead engine's room landed at %llu",
                  (unsigned long long)at + i);
        }
    }
    room_release(from, out);
    part_leave(&whole);
    close(h.fd);
    engine_stop(from);
    daemons_stop();
}

static void living_engine_is_not_waited_for(void)
{
    start_daemons();
    struct holder h = holder_start(key_next(), "plain");
    const struct {
        uint64_t off;
        uint64_t bytes;
        bool is_taken;
    } parts[] = {
        {0, 16 * LINE, true}, {LINE, LINE, true}, {0, geometry_bytes(&geometry), true}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct part p = {.client = client_attach(decode, 4),
                         .fd = h.fd,
                         .off = parts[i].off,
                         .bytes = parts[i].bytes};
        register_part(&p);
        expect_refused(&p, KVF_E_MEMORY_REGISTERED, "live registration by client 0");
        CHECK(p.took_ms < 1000, "refused after %llu ms", (unsigned long long)p.took_ms);
        part_leave(&p);
    }
    /* Other memory is nobody's business. */
    struct part own = {.client = client_attach(decode, 4), .bytes = 16 * LINE};
    kvf_pool *pool = pool_make(32 * LINE);
    own.fd = kvf_pool_fd(pool);
    register_part(&own);
    CHECK_CODE(own.rc, 0, "other memory");
    /* The other half of the same object is free, the same half is not. */
    struct part half = {
        .client = client_attach(decode, 4), .fd = own.fd, .off = 16 * LINE, .bytes = 16 * LINE};
    register_part(&half);
    CHECK_CODE(half.rc, 0, "the other half");
    struct part both = {.client = client_attach(decode, 4), .fd = own.fd, .bytes = 17 * LINE};
    register_part(&both);
    expect_refused(&both, KVF_E_MEMORY_REGISTERED, "live registration");
    part_leave(&both);
    part_leave(&half);
    part_leave(&own);
    kvf_pool_destroy(pool);
    helper_kill(h.helper);
    close(h.fd);
    daemons_stop();
}

/* The engine has left with a lease out and lives on: its memory is waited for as long as was said; the others are
 * served meanwhile. */
static void waiting_ends_with_its_deadline(void)
{
    start_daemons();
    struct engine *from = engine_start(prefill, &geometry, 0);
    struct engine *to = engine_start(decode, &geometry, 0);
    struct holder h = holder_start(key_next(), "gpu");
    helper_say(h.helper, "detach");
    helper_expect(h.helper, "detached", WAIT_MS);
    struct part p = {
        .client = client_attach(decode, 4), .fd = h.fd, .bytes = 16 * LINE, .timeout_ms = 700};
    pthread_t thread;
    CHECK_IS(pthread_create(&thread, NULL, register_thread, &p), 0, "thread");
    sleep_us(100000);
    transfer_once(from, to, key_next(), 0, 20);
    struct engine *late = engine_start(decode, &geometry, 0);
    CHECK(!atomic_load_explicit(&p.is_back, memory_order_acquire), "it did not wait: %d", p.rc);
    engine_stop(late);
    pthread_join(thread, NULL);
    expect_refused(&p, KVF_E_MEMORY_REGISTERED, "the time to wait for it is over");
    CHECK(p.took_ms >= 690 && p.took_ms < 3000, "refused after %llu ms",
          (unsigned long long)p.took_ms);
    part_leave(&p);

    /* A waiter that dies leaves nothing. */
    WAIT_FOR(daemon_stat(decode, "clients") == 2, 4000, "the engine and who left the lease");
    struct helper *waiter = helper_start("waiter", decode->socket_path, h.path, NULL);
    helper_expect(waiter, "waits", WAIT_MS);
    WAIT_FOR(daemon_stat(decode, "clients") == 3, 4000, "not attached");
    sleep_us(100000);
    helper_kill(waiter);
    WAIT_FOR(daemon_stat(decode, "clients") == 2, 4000, "the dead waiter is still known");

    /* The memory goes into quarantine under the eyes of one who waits. */
    p = (struct part){.client = client_attach(decode, 4), .fd = h.fd, .bytes = 16 * LINE};
    CHECK_IS(pthread_create(&thread, NULL, register_thread, &p), 0, "thread");
    sleep_us(100000);
    CHECK(!atomic_load_explicit(&p.is_back, memory_order_acquire), "it did not wait: %d", p.rc);
    helper_kill(h.helper);
    pthread_join(thread, NULL);
    expect_refused(&p, KVF_E_QUARANTINED, "generation 1");
    char said[20];
    CHECK_CODE(kvf_last_refusal(p.client, said, sizeof said), 0, "last refusal");
    CHECK(strlen(said) == sizeof said - 1u, "a short buffer is filled and terminated");
    /* And at once for who comes later. */
    register_part(&p);
    expect_refused(&p, KVF_E_QUARANTINED, "release-quarantine");
    CHECK(p.took_ms < 1000, "refused after %llu ms", (unsigned long long)p.took_ms);
    part_leave(&p);
    close(h.fd);
    engine_stop(from);
    engine_stop(to);
    daemon_stop(prefill);
    daemon_signal(decode, SIGTERM);
    CHECK_IS(daemon_wait(decode, 8000), 4, "exit status of a daemon with a quarantine");
}

/* An engine with a lease out has spoiled its command ring, so that no later worker can take its segment. What it
 * copies may still land: nobody gets its memory as fresh. */
static void spoiled_segment_withholds_its_memory(void)
{
    start_daemons();
    static const struct geometry plain = {
        .plane_count = 1, .page_bytes = LINE, .page_count = 64};
    struct hostile *h = hostile_start(decode, &plain);
    hostile_open_sink(h, 0, 1, key_next(), h->region, 0, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 0)) == 1, WAIT_MS, "the open was not taken");
    CHECK_IS(kvf_lease_take(&h->segment.intents[0].lease_word, 1, KVF_LEASE_GPU), 0, "lease");
    pid_t worker = decode->worker;
    CHECK(kill(worker, SIGSTOP) == 0, "stop");
    memset(h->segment.cmd_slots, 0x5a, (size_t)h->segment.limits.cmd_slots * KVF_SLOT_BYTES);
    CHECK(kill(worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode, 5000);
    CHECK(hostile_is_dropped(h, 5000), "a client whose segment cannot be taken stays");
    CHECK(!kvf_word_is_drained(hostile_word(h, 0)), "drained with a lease out");
    struct part p = {.client = client_attach(decode, 4),
                     .fd = kvf_pool_fd(h->pool),
                     .bytes = 16 * LINE,
                     .timeout_ms = 500};
    register_part(&p);
    expect_refused(&p, KVF_E_MEMORY_REGISTERED, "the time to wait for it is over");
    part_leave(&p);
    /* Everybody else is served. */
    struct engine *from = engine_start(prefill, &geometry, 0);
    struct engine *to = engine_start(decode, &geometry, 0);
    transfer_once(from, to, key_next(), 0, 20);
    engine_stop(from);
    engine_stop(to);
    hostile_end(h);
    daemon_stop(prefill);
    daemon_signal(decode, SIGTERM);
    (void)daemon_wait(decode, 8000);
}

/* Two wait for the same memory: one gets it, the other one is told that it is taken. And a daemon that stops lets
 * nobody wait. */
static void two_wait(void)
{
    start_daemons();
    struct holder h = holder_start(key_next(), "gpu");
    helper_say(h.helper, "detach");
    helper_expect(h.helper, "detached", WAIT_MS);
    struct part parts[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        parts[i] = (struct part){.client = client_attach(decode, 4),
                                 .fd = h.fd,
                                 .off = (uint64_t)i * 8 * LINE, /* they share half */
                                 .bytes = 16 * LINE,
                                 .timeout_ms = 8000};
        CHECK_IS(pthread_create(&threads[i], NULL, register_thread, &parts[i]), 0, "thread");
    }
    sleep_us(200000);
    daemon_signal(decode, SIGTERM);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        CHECK(parts[i].rc == -ESHUTDOWN || parts[i].rc == -KVF_E_DAEMON_GONE,
              "who waits for a daemon that stops: %d %s", parts[i].rc,
              kvf_code_name_of(parts[i].rc));
        CHECK(parts[i].took_ms < 3000, "after %llu ms", (unsigned long long)parts[i].took_ms);
        CHECK_CODE(kvf_detach(parts[i].client, 15000, NULL), 0, "detach");
    }
    CHECK_IS(daemon_wait(decode, 12000), 4, "exit status with a lease out");
    helper_kill(h.helper);
    close(h.fd);

    daemon_start_again(decode);
    h = holder_start(key_next(), "plain");
    daemon_signal(decode, SIGSTOP); /* the supervisor: it hears of the death when both wait */
    helper_kill(h.helper);
    for (int i = 0; i < 2; i++) {
        parts[i] = (struct part){.fd = h.fd, .off = (uint64_t)i * 8 * LINE, .bytes = 16 * LINE};
    }
    daemon_signal(decode, SIGCONT);
    for (int i = 0; i < 2; i++) {
        parts[i].client = client_attach(decode, 4);
        CHECK_IS(pthread_create(&threads[i], NULL, register_thread, &parts[i]), 0, "thread");
    }
    int got = 0;
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        got += parts[i].rc == 0;
    }
    CHECK_IS(got, 1, "registrations that share a page");
    expect_refused(&parts[parts[0].rc == 0 ? 1 : 0], KVF_E_MEMORY_REGISTERED,
                   "live registration");
    for (int i = 0; i < 2; i++) {
        part_leave(&parts[i]);
    }
    close(h.fd);
    daemons_stop();
}

struct largest {
    struct part *part;
    const struct kvf_region_opts *opts;
};

static void *register_largest(void *ctx)
{
    struct largest *l = ctx;
    uint64_t start_ns = now_ns();
    l->part->rc = kvf_region_register(l->part->client, l->opts, &l->part->region);
    l->part->took_ms = (now_ns() - start_ns) / 1000000u;
    atomic_store_explicit(&l->part->is_back, true, memory_order_release);
    return NULL;
}

/* The supervisor alone answers it, at once if it is there. */
static int connect_and_say_nonsense(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%.100s", decode->socket_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0, "connect");
    CHECK(send(fd, "nonsense", 8, MSG_NOSIGNAL) == 8, "send");
    return fd;
}

/* 67,108,864 pages of one byte: a ledger of half a gigabyte. Whoever attaches meanwhile waits for a step of it. */
static void largest_ledger(void)
{
    decode = daemon_start("decode", NULL);
    kvf_pool *pool = pool_make(64 * MIB);
    kvf_client *client = client_attach(decode, 4);
    struct kvf_plane plane = {.stride = 1, .page_bytes = 1};
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = kvf_pool_fd(pool),
                                   .memory_bytes = 64 * MIB,
                                   .page_count = 64 * MIB,
                                   .planes = &plane,
                                   .plane_count = 1};
    struct part p = {.client = client};
    struct largest l = {.part = &p, .opts = &opts};
    pthread_t thread;
    CHECK_IS(pthread_create(&thread, NULL, register_largest, &l), 0, "thread");
    uint64_t longest_ns = 0;
    uint32_t count = 0;
    while (!atomic_load_explicit(&p.is_back, memory_order_acquire)) {
        uint64_t start_ns = now_ns();
        char byte = 0;
        int fd = connect_and_say_nonsense();
        CHECK_IS(recv(fd, &byte, 1, 0), 1, "the refusal");
        close(fd);
        uint64_t took_ns = now_ns() - start_ns;
        longest_ns = took_ns > longest_ns ? took_ns : longest_ns;
        count++;
        sleep_us(1000);
    }
    pthread_join(thread, NULL);
    CHECK_CODE(p.rc, 0, "register");
    test_say("the largest ledger took %llu ms; the supervisor answered %u others meanwhile, "
             "after %llu ms at "
             "most",
             (unsigned long long)p.took_ms, count, (unsigned long long)longest_ns / 1000000u);
    CHECK(count >= 5, "it answered nobody meanwhile");
    CHECK(!is_timed_build() || longest_ns < UINT64_C(250000000),
          "somebody waited for all of it");
    const int64_t last = 64 * (int64_t)MIB - 1;
    CHECK_IS(kvf_pages_are_idle64(client, p.region, &last, 1, NULL), 1, "the last page");
    part_leave(&p);
    kvf_pool_destroy(pool);
    daemons_stop();
}

/* ---- the helper ------------------------------------------------------------------------------------------------- */

/* While somebody's gigabyte is being mapped and touched, others attach. */
static void large_memory_holds_up_nobody(void)
{
    enum { ATTACHES = 5 };
    decode = daemon_start("decode", NULL);
    kvf_pool *pool = pool_make(768 * MIB);
    struct part p = {
        .client = client_attach(decode, 4), .fd = kvf_pool_fd(pool), .bytes = 768 * MIB};
    pthread_t thread;
    CHECK_IS(pthread_create(&thread, NULL, register_thread, &p), 0, "thread");
    uint32_t count = 0;
    while (!atomic_load_explicit(&p.is_back, memory_order_acquire)) {
        CHECK_CODE(kvf_detach(client_attach(decode, 4), 5000, NULL), 0, "detach");
        count++;
    }
    pthread_join(thread, NULL);
    CHECK_CODE(p.rc, 0, "register");
    test_say("768 MiB were registered in %llu ms; %u clients attached and left meanwhile",
             (unsigned long long)p.took_ms, count);
    CHECK(count >= ATTACHES, "they waited for it");
    part_leave(&p);
    kvf_pool_destroy(pool);
    daemons_stop();
}

/* A thread of that process which is not its first, 0: none yet. */
static pid_t second_thread(pid_t pid)
{
    char path[64];
    pid_t found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        pid_t tid = (pid_t)atoi(entry->d_name);
        found = tid > 0 && tid != pid ? tid : found;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

static uint32_t count_in_log(const char *words)
{
    char path[96];
    char line[512];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/decode.log", case_dir());
    FILE *log = fopen(path, "re");
    CHECK(log != NULL, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, log) != NULL) {
        count += strstr(line, words) != NULL;
    }
    fclose(log);
    return count;
}

/* The worker's helper is stopped, and its loop goes on: a registration does not come back. It costs that client,
 * and the worker; everybody else's engine goes on with the next one. */
static void helper_stands_still(void)
{
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", "--watchdog-ms", "500", NULL);
    struct engine *from = engine_start(prefill, &geometry, 0);
    struct engine *to = engine_start(decode, &geometry, 0);
    kvf_pool *pool = pool_make(16 * LINE);
    struct part p = {
        .client = client_attach(decode, 4), .fd = kvf_pool_fd(pool), .bytes = 16 * LINE};
    pid_t helper = second_thread(decode->worker);
    CHECK(helper > 0, "no second thread");
    if (ptrace(PTRACE_SEIZE, helper, NULL, NULL) != 0) {
        test_skip("may not stop a thread of another process: %s", strerror(errno));
    }
    CHECK(ptrace(PTRACE_INTERRUPT, helper, NULL, NULL) == 0, "interrupt: %s", strerror(errno));
    uint64_t start_ns = now_ns();
    register_part(&p);
    CHECK_CODE(p.rc, -KVF_E_DAEMON_GONE, "a registration that does not come back");
    /* Told to go by a packet of its own, then the connection ends. */
    CHECK(p.took_ms >= 4000 && p.took_ms < 15000, "after %llu ms",
          (unsigned long long)p.took_ms);
    int status =
        0; /* its stop, then its end, which we have to take before the process may be reaped */
    WAIT_FOR(waitpid(helper, &status, WNOHANG | __WALL) == helper && WIFSIGNALED(status), 5000,
             "the thread lives on");
    WAIT_FOR(kvf_daemon_check(to->client) == 0, 10000, "the next worker does not serve");
    decode->worker = daemon_worker_now(decode);
    test_say("a helper that stood still was replaced after %llu ms",
             (unsigned long long)(now_ns() - start_ns) / 1000000u);
    transfer_once(from, to, key_next(), 0, 20);
    sleep_us(6000000);
    /* Not by the number of workers: a watchdog may end one on a busy machine too. */
    CHECK_IS(count_in_log("its helper stands still"), 1, "the next worker made the same call");
    (void)kvf_detach(p.client, 1000, NULL);
    kvf_pool_destroy(pool);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {
        {"holder", role_holder}, {"waiter", role_waiter}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"h12_a_restarted_engine_gets_its_memory_only_when_the_dead_ones_rooms_are_proven",
         restarted_engine_waits, 0},
        {"memory_of_a_living_engine_is_refused_at_once", living_engine_is_not_waited_for, 0},
        {"who_waits_for_memory_is_answered_at_its_deadline_or_by_a_quarantine",
         waiting_ends_with_its_deadline, 0},
        {"h12_memory_of_a_segment_that_no_worker_can_take_is_nobodys",
         spoiled_segment_withholds_its_memory, 0},
        {"of_two_who_wait_for_one_page_one_gets_it_and_a_stop_ends_the_wait", two_wait, 60},
        {"large_memory_is_mapped_in_steps_that_hold_up_nobody", large_memory_holds_up_nobody,
         60},
        {"h19_a_helper_that_stands_still_costs_its_client_and_no_other", helper_stands_still,
         60},
        {"the_largest_ledger_is_made_in_steps_that_hold_up_nobody", largest_ledger, 60},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

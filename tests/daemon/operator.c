/* kvfence-ctl and the daemon it speaks to: what operators see, what their word changes, and what it outlives. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/operate.h"
#include "tests/daemon/engine.h"

#define WAIT_MS 10000u
#define SAID_BYTES 8192u
#define OTHER_USER 65534

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;

static void start_with(const char *rate)
{
    prefill = daemon_start("prefill", "--lane-rate", rate, NULL);
    decode = daemon_start("decode", "--lane-rate", rate, NULL);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* ---- the program --------------------------------------------------------------------------------------------- */

static char said[SAID_BYTES]; /* both streams of the last call */

static void exec_ctl(char *const *args, int uid, int out_fd)
{
    dup2(out_fd, 1);
    dup2(out_fd, 2);
    if (uid != 0 && (setgid((gid_t)uid) != 0 || setuid((uid_t)uid) != 0)) {
        _exit(126);
    }
    execv(KVF_TEST_CTL, args);
    _exit(127);
}

static int run_ctl(int uid, const struct daemon *d, va_list words)
{
    char *args[16] = {"kvfence-ctl", "--run-dir", (char *)(uintptr_t)case_dir(), "--name",
                      (char *)(uintptr_t)d->name};
    int count = 5;
    for (char *word = va_arg(words, char *); word != NULL; word = va_arg(words, char *)) {
        CHECK(count < 15, "too many words");
        args[count++] = word;
    }
    int out[2];
    CHECK(pipe2(out, O_CLOEXEC) == 0, "pipe: %s", strerror(errno));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        exec_ctl(args, uid, out[1]);
    }
    close(out[1]);
    size_t got = 0;
    ssize_t n;
    while ((n = read(out[0], said + got, sizeof said - 1u - got)) > 0) {
        got += (size_t)n;
    }
    said[got] = '\0';
    close(out[0]);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "kvfence-ctl: %x",
          (unsigned)status);
    return WEXITSTATUS(status);
}

static int ctl(const struct daemon *d, ...)
{
    va_list words;
    va_start(words, d);
    int rc = run_ctl(0, d, words);
    va_end(words);
    return rc;
}

static int ctl_as_other(const struct daemon *d, ...)
{
    va_list words;
    va_start(words, d);
    int rc = run_ctl(OTHER_USER, d, words);
    va_end(words);
    return rc;
}

#define EXPECT_CTL(wanted, ...)                                                                \
    do {                                                                                       \
        int ctl_rc = ctl(__VA_ARGS__, NULL);                                                   \
        if (ctl_rc != (wanted)) {                                                              \
            test_fail(__FILE__, __LINE__, "kvfence-ctl " #__VA_ARGS__,                         \
                      "ended with %d and not %d: %s", ctl_rc, (wanted), said);                 \
        }                                                                                      \
    } while (0)
#define EXPECT_SAID(text)                                                                      \
    CHECK(strstr(said, (text)) != NULL, "does not say \"%s\": %s", text, said)

/* ---- drain ------------------------------------------------------------------------------------------------------ */

static void expect_draining(void)
{
    const int32_t page = 800;
    kvf_room refused = 0;
    CHECK_CODE(engine_try_sink(to, key_next(), &page, 1, prefill->listen, &refused), -ESHUTDOWN,
               "an open while it drains");
    EXPECT_CTL(0, decode, "status");
    EXPECT_SAID("draining");
}

static void drain_and_back(void)
{
    start_with("20"); /* two seconds */
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 600, prefill);
    kvf_room out = engine_source(from, key);
    kvf_room waiting = engine_sink(to, key_next(), 700, 4, prefill);
    engine_submit(from, out, 0, 600, 0, true);
    room_wait_placed(to, in, 5 * to->page_bytes, WAIT_MS);
    EXPECT_CTL(5, decode, "drain", "--wait", "--timeout", "1");
    room_expect_reason(to, waiting, KVF_E_SHUTDOWN, 1000);
    expect_draining();
    EXPECT_CTL(0, decode, "drain", "--wait");
    room_expect(to, in, KVF_SUCCESS, 0);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    room_release(to, waiting);
    EXPECT_CTL(0, decode, "undrain");
    transfer_once(from, to, key_next(), 0, 20);
    stop();
}

static void drain_outlives_worker(void)
{
    start_with("0");
    EXPECT_CTL(0, decode, "drain");
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode, 5000);
    WAIT_FOR(kvf_daemon_check(to->client) == -ESHUTDOWN, 5000, "the next worker's client");
    sleep_us(100000);
    expect_draining();
    /* An engine that comes while it drains attaches, and opens nothing. */
    struct engine *late = engine_start(decode, &geometry, 0);
    const int32_t page = 1;
    kvf_room refused = 0;
    CHECK_CODE(engine_try_sink(late, 1, &page, 1, prefill->listen, &refused), -ESHUTDOWN,
               "an open of a late engine");
    EXPECT_CTL(0, decode, "undrain");
    WAIT_FOR(kvf_daemon_check(to->client) == 0, 5000, "undrain");
    transfer_once(from, late, key_next(), 0, 20);
    engine_stop(late);
    stop();
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

static void peer_down(void)
{
    start_with("50");
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 400, prefill);
    kvf_room out = engine_source(from, key);
    engine_submit(from, out, 0, 400, 0, true);
    room_wait_placed(to, in, 5 * to->page_bytes, WAIT_MS);
    EXPECT_CTL(0, decode, "peers");
    EXPECT_SAID(prefill->listen);
    EXPECT_SAID("prefill");
    EXPECT_CTL(0, decode, "peer", "down", prefill->listen);
    room_expect_reason(to, in, KVF_E_PEER_HELD, 5000);
    CHECK(kvf_drained(to->client, in) > 0, "no proof");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    kvf_room refused = engine_sink(to, key_next(), 0, 4, prefill);
    room_expect_reason(to, refused, KVF_E_PEER_HELD, 2000);
    room_release(to, refused);
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode, 5000);
    WAIT_FOR(kvf_daemon_check(to->client) == 0, 5000, "the next worker does not serve");
    refused = engine_sink(to, key_next(), 0, 4, prefill);
    room_expect_reason(to, refused, KVF_E_PEER_HELD, 2000);
    room_release(to, refused);
    EXPECT_CTL(0, decode, "peers");
    EXPECT_SAID("DOWN");
    EXPECT_CTL(0, decode, "status", "--json");
    EXPECT_SAID("\"peers_down\": 1");
    EXPECT_CTL(0, decode, "peer", "up", prefill->listen);
    EXPECT_CTL(4, decode, "peer", "up", prefill->listen);
    EXPECT_SAID("not down");
    transfer_once(from, to, key_next(), 0, 20);
    stop();
}

/* The daemon that is connected to has no address to name the other by: its id does. */
static void peer_down_by_id(void)
{
    start_with("0");
    transfer_once(from, to, key_next(), 0, 20);
    EXPECT_CTL(0, prefill, "peers", "--json");
    char *at = strstr(said, "\"id\": \"");
    CHECK(at != NULL, "no id: %s", said);
    char id[17];
    snprintf(id, sizeof id, "%.16s", at + 7);
    EXPECT_CTL(0, prefill, "peer", "down", id);
    uint64_t key = key_next();
    kvf_room out = engine_source(from, key);
    engine_submit(from, out, 0, 20, 0, true);
    kvf_room in = engine_sink(to, key, 0, 20, prefill);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    CHECK_CODE((int)room_info(to, in).detail, KVF_E_PEER_HELD, "what the refused peer hears");
    CHECK_CODE(kvf_abort(from->client, out, 0), 0, "abort");
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    EXPECT_CTL(0, prefill, "peer", "up", id);
    transfer_once(from, to, key_next(), 0, 20);
    stop();
}

/* Down and up, from either side and from both at once, under traffic and idle: up means up. */
static void peer_down_and_up_again(void)
{
    char id[2][20]; /* what each calls the other */
    start_with("0");
    transfer_once(from, to, key_next(), 0, 20);
    struct daemon *daemons[2] = {decode, prefill};
    for (int i = 0; i < 2; i++) {
        EXPECT_CTL(0, daemons[i], "peers", "--json");
        char *at = strstr(said, "\"id\": \"");
        CHECK(at != NULL, "no id: %s", said);
        snprintf(id[i], sizeof id[i], "%.16s", at + 7);
    }
    for (uint32_t round = 0; round < 20; round++) {
        uint64_t key = key_next();
        kvf_room in = 0;
        kvf_room out = 0;
        bool is_busy = round % 2 == 0;
        if (is_busy) {
            in = engine_sink(to, key, 0, 200, prefill);
            out = engine_source(from, key);
            engine_submit(from, out, 0, 200, 0, true);
        }
        for (int i = 0; i < 2; i++) {
            if (round % 3 == 2 || round % 3 == (uint32_t)i) {
                EXPECT_CTL(0, daemons[i], "peer", "down", id[i]);
            }
        }
        if (is_busy) {
            int state = kvf_wait(to->client, in, WAIT_MS);
            CHECK(state == KVF_FAILED || state == KVF_SUCCESS, "round %u: %s", round,
                  kvf_state_name(state));
            room_end(from, out, WAIT_MS);
            room_release(to, in);
        }
        for (int i = 0; i < 2; i++) {
            if (round % 3 == 2 || round % 3 == (uint32_t)i) {
                EXPECT_CTL(0, daemons[i], "peer", "up", id[i]);
            }
        }
        transfer_once(from, to, key_next(), 300, 20);
    }
    stop();
}

/* ---- quarantine ------------------------------------------------------------------------------------------------- */

/* argv: socket, address of the other daemon, rooms. Opens so many rooms, then one with a GPU lease. */
static int role_holder(int argc, char **argv)
{
    struct daemon own = {.name = "holder"};
    struct daemon other = {.name = "other"};
    char line[32];
    CHECK_IS(argc, 3, "arguments");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    snprintf(other.listen, sizeof other.listen, "%s", argv[1]);
    struct engine *e = engine_start(&own, &geometry, 0);
    snprintf(line, sizeof line, "%d", kvf_pool_fd(e->pool));
    role_say(line);
    role_wait(line, sizeof line);
    for (int i = 0; i < atoi(argv[2]); i++) {
        (void)engine_sink(e, 100u + (uint64_t)i, 100 + i, 1, &other);
    }
    kvf_room in = engine_sink(e, 77, 0, 5, &other);
    CHECK_CODE(kvf_lease(e->client, in, KVF_KIND_GPU), 0, "lease");
    role_say("open");
    for (;;) {
        pause();
    }
}

static struct helper *holder_start(const char *rooms, int *ret_memory_fd)
{
    char line[64];
    char path[128];
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", "--watchdog-ms", "10000", NULL);
    struct helper *h =
        helper_start("holder", decode->socket_path, prefill->listen, rooms, NULL);
    helper_read(h, line, sizeof line, WAIT_MS);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h->pid, atoi(line));
    *ret_memory_fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(*ret_memory_fd >= 0, "%s: %s", path, strerror(errno));
    return h;
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

static void release_it(int memory_fd, const char *pages)
{
    char client_text[16];
    char slot_text[16];
    char generation_text[24];
    unsigned client = 0;
    unsigned slot = 0;
    unsigned long long generation = 0;
    uint32_t region = 0;
    EXPECT_CTL(0, decode, "rooms", "--quarantined", "--json");
    EXPECT_SAID("\"phase\": \"quarantined\"");
    EXPECT_SAID("\"is_engine_gone\": true");
    EXPECT_SAID(pages);
    const char *at = strstr(said, "\"client\": ");
    CHECK(at != NULL && sscanf(at, "\"client\": %u, \"slot\": %u, \"generation\": %llu",
                               &client, &slot, &generation) == 3,
          "%s", said);
    EXPECT_CTL(0, decode, "rooms");
    EXPECT_SAID("quarantined");
    EXPECT_SAID("dead");
    EXPECT_CTL(6, decode, "drain", "--wait");
    EXPECT_CTL(0, decode, "undrain");
    snprintf(client_text, sizeof client_text, "%u", client);
    snprintf(slot_text, sizeof slot_text, "%u", slot);
    snprintf(generation_text, sizeof generation_text, "%llu", generation + 1);
    EXPECT_CTL(2, decode, "release-quarantine", client_text, slot_text, generation_text);
    EXPECT_CTL(4, decode, "release-quarantine", client_text, slot_text, generation_text,
               "--yes-pages-may-be-overwritten");
    EXPECT_SAID("another generation");
    CHECK_IS(daemon_stat(decode, "rooms_quarantined"), 1, "rooms in quarantine");
    snprintf(generation_text, sizeof generation_text, "%llu", generation);
    EXPECT_CTL(0, decode, "release-quarantine", client_text, slot_text, generation_text,
               "--yes-pages-may-be-overwritten");
    WAIT_FOR(daemon_stat(decode, "proof_operator_total") == 1, 2000, "it is not counted");
    WAIT_FOR(daemon_stat(decode, "clients") == 0 && daemon_stat(decode, "regions") == 0, 2000,
             "the memory is held: %llu clients",
             (unsigned long long)daemon_stat(decode, "clients"));
    kvf_client *next = client_attach(decode, 4);
    CHECK_CODE(try_register(next, memory_fd, &region), 0, "its memory");
    CHECK_CODE(kvf_region_unregister(next, region), 0, "unregister");
    CHECK_CODE(kvf_detach(next, 5000, NULL), 0, "detach");
    close(memory_fd);
}

static void release(void)
{
    int fd = -1;
    struct helper *h = holder_start("0", &fd);
    helper_say(h, "go");
    helper_expect(h, "open", WAIT_MS);
    WAIT_FOR(daemon_stat(decode, "rooms_open") == 1, 2000, "not open");
    helper_kill(h);
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "no quarantine");
    release_it(fd, "\"pages\": 5,");
    daemons_stop();
}

/* The worker's end in between: what the next one takes over is as visible, and as releasable. */
static void release_adopted(void)
{
    int fd = -1;
    struct helper *h = holder_start("0", &fd);
    helper_say(h, "go");
    helper_expect(h, "open", WAIT_MS);
    WAIT_FOR(daemon_stat(decode, "rooms_open") == 1, 2000, "not open");
    helper_kill(h);
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "no quarantine");
    CHECK(kill(decode->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode, 5000);
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "the quarantine was lost");
    CHECK_IS(daemon_stat(decode, "pages_quarantined"), 5, "its pages");
    release_it(fd, "\"pages\": 5,");
    daemons_stop();
}

/* Its OPEN lies in the ring of a client that died before the worker looked: nobody posted for it, but the
 * engine's own GPU may still write. A worker that goes on may read one turn's commands before it hears of the
 * death, so as many stand before it. */
#define FILLERS "64"
static void release_unread(void)
{
    int fd = -1;
    struct helper *h = holder_start(FILLERS, &fd);
    CHECK(kill(decode->worker, SIGSTOP) == 0, "stop");
    helper_say(h, "go");
    helper_expect(h, "open", WAIT_MS);
    helper_kill(h);
    sleep_us(200000);
    CHECK(kill(decode->worker, SIGCONT) == 0, "continue");
    WAIT_FOR(daemon_stat(decode, "rooms_quarantined") == 1, 3000, "no quarantine");
    CHECK(daemon_stat(decode, "rooms_opened_total") <= 64, "it was read after all");
    release_it(fd, "\"pages\": 0,");
    daemons_stop();
}

/* ---- who may ---------------------------------------------------------------------------------------------------- */

static void other_users_look_and_touch_nothing(void)
{
    if (geteuid() != 0) {
        test_skip("needs root, to become another user");
    }
    decode = daemon_start("decode", NULL);
    CHECK(chmod(case_dir(), 0755) == 0, "chmod");
    CHECK_IS(ctl_as_other(decode, "status", NULL), 3, "no right to the socket");
    EXPECT_SAID("no right to the socket");
    CHECK(chmod(decode->socket_path, 0666) == 0, "chmod");
    CHECK_IS(ctl_as_other(decode, "status", NULL), 0, "status");
    CHECK_IS(ctl_as_other(decode, "peers", NULL), 0, "peers");
    CHECK_IS(ctl_as_other(decode, "rooms", NULL), 0, "rooms");
    CHECK_IS(ctl_as_other(decode, "drain", NULL), 4, "drain");
    EXPECT_SAID("only root");
    CHECK_IS(ctl_as_other(decode, "peer", "down", "127.0.0.1:9", NULL), 4, "peer down");
    CHECK_IS(ctl_as_other(decode, "log-level", "error", NULL), 4, "log-level");
    CHECK_IS(ctl_as_other(decode, "release-quarantine", "0", "0", "1",
                          "--yes-pages-may-be-overwritten", NULL),
             4, "release");
    EXPECT_CTL(0, decode, "status", "--json");
    EXPECT_SAID("\"is_draining\": false");
    EXPECT_SAID("\"peers_down\": 0");
    EXPECT_SAID("\"log_level\": \"info\"");
    EXPECT_CTL(0, decode, "log-level", "debug");
    EXPECT_CTL(0, decode, "status");
    EXPECT_SAID("log level debug");
    daemons_stop();
}

/* ---- bytes that no tool sends ---------------------------------------------------------------------------------- */

static int connect_to(const struct daemon *d)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%.100s", d->socket_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0, "connect: %s",
          strerror(errno));
    return fd;
}

static struct kvf_operate_req request_of(uint32_t command)
{
    return (struct kvf_operate_req){.h = {.magic = KVF_ATTACH_MAGIC,
                                          .op = KVF_REQ_OPERATE,
                                          .layout_major = KVF_LAYOUT_MAJOR,
                                          .serial = 7,
                                          .bytes = sizeof(struct kvf_operate_req)},
                                    .command = command,
                                    .phases = UINT32_MAX,
                                    .client = UINT32_MAX,
                                    .slot = UINT32_MAX,
                                    .level = UINT32_MAX,
                                    .generation = UINT64_MAX};
}

/* The code it is refused with, 0 if it is answered, -1 if the daemon hangs up. */
static int send_bytes(int fd, const void *bytes, size_t count)
{
    static struct kvf_operate_rep rep;
    CHECK(send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count, "send: %s", strerror(errno));
    ssize_t got = recv(fd, &rep, sizeof rep, 0);
    if (got <= 0) {
        return -1;
    }
    struct kvf_attach_rep refusal;
    memcpy(&refusal, &rep, sizeof refusal);
    return rep.h.op == KVF_REP_REFUSED ? (int)refusal.code : 0;
}

static int send_alone(const void *bytes, size_t count)
{
    int fd = connect_to(decode);
    int rc = send_bytes(fd, bytes, count);
    close(fd);
    sleep_us(20000); /* one at a time: until the daemon has seen us go */
    return rc;
}

static void hostile_operators(void)
{
    start_with("0");
    struct kvf_operate_req req = request_of(KVF_OPERATE_STATUS);
    CHECK_IS(send_alone(&req, sizeof req), 0, "a plain status");
    CHECK_IS(send_alone(&req, sizeof req - 1u), KVF_E_PROTOCOL, "one byte short");
    req.h.bytes = sizeof req - 8u;
    CHECK_IS(send_alone(&req, sizeof req - 8u), KVF_E_PROTOCOL, "eight bytes short");
    const uint32_t commands[] = {0, KVF_OPERATE_LOG_LEVEL + 1u, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        req = request_of(commands[i]);
        CHECK_IS(send_alone(&req, sizeof req), KVF_E_PROTOCOL, "a command that is none");
    }
    req = request_of(KVF_OPERATE_ROOMS);
    CHECK_IS(send_alone(&req, sizeof req), 0, "rooms from beyond the end");
    req = request_of(KVF_OPERATE_LOG_LEVEL);
    CHECK_IS(send_alone(&req, sizeof req), KVF_E_OPTION, "a level that is none");
    req = request_of(KVF_OPERATE_PEER_DOWN);
    CHECK_IS(send_alone(&req, sizeof req), KVF_E_OPTION, "no peer at all");
    req.addr.family = 9;
    CHECK_IS(send_alone(&req, sizeof req), KVF_E_OPTION, "a family that is none");
    req = request_of(KVF_OPERATE_RELEASE);
    CHECK_IS(send_alone(&req, sizeof req), EPERM, "a release without the word");
    req.word = KVF_OPERATE_WORD;
    CHECK_IS(send_alone(&req, sizeof req), KVF_E_UNKNOWN_ROOM, "a release of nothing");

    /* One connection of a user at a time; its second request may be nonsense, which ends it. */
    req = request_of(KVF_OPERATE_STATUS);
    int fd = connect_to(decode);
    CHECK_IS(send_bytes(fd, &req, sizeof req), 0, "a plain status");
    CHECK_IS(send_alone(&req, sizeof req), EBUSY, "a second one beside it");
    CHECK_IS(send_bytes(fd, &req, sizeof req), 0, "it may go on");
    CHECK_IS(send_bytes(fd, "nonsense", 8), -1, "nonsense");
    close(fd);
    fd = connect_to(decode);
    CHECK_IS(send_bytes(fd, &req, sizeof req), 0, "the next one");
    uint64_t start_ns = now_ns();
    char byte;
    CHECK_IS(recv(fd, &byte, 1, 0), 0, "silence");
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    CHECK(took_ms >= 1500 && took_ms < 4000, "a silent operator is let go after %llu ms",
          (unsigned long long)took_ms);
    close(fd);
    EXPECT_CTL(0, decode, "status", "--json");
    EXPECT_SAID("\"is_draining\": false");
    EXPECT_SAID("\"peers_down\": 0");
    transfer_once(from, to, key_next(), 0, 20);
    stop();
}

/* The worker is stopped: the operator waits, and nobody else does. */
static void frozen_worker_delays_the_operator_only(void)
{
    prefill = daemon_start("prefill", NULL);
    decode = daemon_start("decode", "--watchdog-ms", "10000", NULL);
    to = engine_start(decode, &geometry, 0);
    CHECK(kill(decode->worker, SIGSTOP) == 0, "stop");
    struct kvf_operate_req req = request_of(KVF_OPERATE_PEERS);
    int fd = connect_to(decode);
    CHECK(send(fd, &req, sizeof req, MSG_NOSIGNAL) == (ssize_t)sizeof req, "send");
    sleep_us(50000);
    /* The supervisor goes on: an attach is refused at once where it is full of nonsense. */
    CHECK_IS(send_alone("nonsense", 8), KVF_E_PROTOCOL, "another connection");
    static struct kvf_operate_rep rep;
    struct kvf_attach_rep refusal;
    uint64_t start_ns = now_ns();
    CHECK(recv(fd, &rep, sizeof rep, 0) > 0, "an answer: %s", strerror(errno));
    memcpy(&refusal, &rep, sizeof refusal);
    CHECK_IS(refusal.code, ETIMEDOUT, "the answer");
    CHECK((now_ns() - start_ns) / 1000000u < 7000, "it took too long");
    close(fd);
    CHECK(kill(decode->worker, SIGCONT) == 0, "continue");
    EXPECT_CTL(0, decode, "peers");
    engine_stop(to);
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {{"holder", role_holder}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"a_drain_refuses_opens_lets_running_rooms_end_and_is_taken_back", drain_and_back, 0},
        {"a_drain_outlives_the_worker", drain_outlives_worker, 0},
        {"a_peer_that_is_down_loses_its_rooms_and_stays_down_over_a_workers_end", peer_down, 0},
        {"a_peer_that_connected_to_us_is_taken_down_by_its_id", peer_down_by_id, 0},
        {"j6_a_peer_taken_down_and_up_20_times_is_up_each_time", peer_down_and_up_again, 120},
        {"an_operator_releases_a_quarantine_and_the_memory_goes", release, 0},
        {"an_operator_releases_what_an_earlier_worker_left", release_adopted, 0},
        {"an_operator_releases_a_room_whose_open_was_never_read", release_unread, 0},
        {"other_users_may_look_and_change_nothing", other_users_look_and_touch_nothing, 0},
        {"bytes_that_no_tool_sends_are_refused_and_change_nothing", hostile_operators, 0},
        {"an_operator_who_waits_for_a_frozen_worker_holds_up_nobody",
         frozen_worker_delays_the_operator_only, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

/* Strangers at the listener: whatever they send, a running room does not notice. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/core/wire.h"
#include "tests/daemon/engine.h"

#define WAIT_MS 10000u
#define CROWD 1000
#define FRAME_BYTES (KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX)

static struct daemon *prefill;
static struct daemon *decode;
static struct bystander *bystander;

static void start(void)
{
    prefill = daemon_start("prefill", "--liveness-ms", "600", NULL);
    decode = daemon_start("decode", "--liveness-ms", "600", NULL);
    bystander = bystander_start(prefill, decode);
    WAIT_FOR(bystander_count(bystander) > 0, WAIT_MS, "the bystander does not get going");
}

static void stop(void)
{
    uint64_t max_ns = 0;
    uint64_t rooms = bystander_stop(bystander, bystander_count(bystander) + 5, &max_ns);
    test_say("%llu rooms beside it, the slowest took %.1f ms", (unsigned long long)rooms,
             (double)max_ns / 1e6);
    daemons_stop();
}

/* ---- a stranger ----------------------------------------------------------------------------------------- */

static int knock(const struct daemon *d)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    char host[64];
    snprintf(host, sizeof host, "%s", d->listen);
    char *colon = strrchr(host, ':');
    CHECK(colon != NULL, "%s", d->listen);
    *colon = '\0';
    CHECK_IS(inet_pton(AF_INET, host, &addr.sin_addr), 1, "address");
    addr.sin_port = htons((uint16_t)atoi(colon + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0, "connect: %s",
          strerror(errno));
    return fd;
}

static void say(int fd, const void *bytes, size_t n)
{
    (void)!send(fd, bytes, n, MSG_NOSIGNAL);
}

/* Reads away whatever comes; true once the daemon has closed. */
static bool is_closed(int fd, uint32_t limit_ms)
{
    uint64_t until_ns = now_ns() + limit_ms * UINT64_C(1000000);
    char bytes[4096];
    while (now_ns() < until_ns) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, 20) == 1) {
            ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN)) {
                return true;
            }
        }
    }
    return false;
}

static struct kvf_wire_hello hello_of_ours(void)
{
    static uint64_t next_id = UINT64_C(0x5157) << 32;
    next_id += UINT64_C(1) << 24;
    return (struct kvf_wire_hello){.version_major = KVF_WIRE_VERSION_MAJOR,
                                   .version_minor = KVF_WIRE_VERSION_MINOR,
                                   .caps = KVF_CAP_DRAIN_PROOF,
                                   .supervisor_id = next_id,
                                   .worker_starts = 1,
                                   .session = 99,
                                   .transport = KVF_WIRE_TCP,
                                   .placement = KVF_PLACEMENT_CHECKED,
                                   .lane_count = 1,
                                   .receives_per_lane = 16,
                                   .name = "stranger"};
}

/* Says HELLO; returns the code of the answer, -1 if the connection was closed without one. */
static int introduce(int fd, const struct kvf_wire_hello *hello)
{
    unsigned char out[256];
    unsigned char in[KVF_WIRE_HEADER_BYTES + KVF_WIRE_HELLO_BYTES];
    struct kvf_wire_header header;
    struct kvf_wire_hello answer;
    int bytes = kvf_wire_put_hello(out, sizeof out, 0, hello);
    CHECK(bytes > 0, "put_hello: %d", bytes);
    say(fd, out, (size_t)bytes);
    ssize_t n = recv(fd, in, sizeof in, MSG_WAITALL);
    if (n != (ssize_t)sizeof in) {
        return -1;
    }
    CHECK_IS(kvf_wire_get_header(in, &header), 0, "header of the answer");
    CHECK_IS(header.type, KVF_WIRE_HELLO, "type of the answer");
    CHECK_IS(kvf_wire_get_hello(in + KVF_WIRE_HEADER_BYTES, header.payload_bytes, &answer), 0,
             "answer");
    return (int)answer.code;
}

/* ---- cases ------------------------------------------------------------------------------------------------ */

static void loopback_only(void)
{
    char out[512];
    char err[4096];
    const char *open[] = {"0.0.0.0:0", "[::]:0", "10.1.2.3:7000"};
    for (size_t i = 0; i < 3; i++) {
        int status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(),
                                "--listen", open[i], NULL);
        CHECK(status == 2 && strstr(err, "--insecure-listen") != NULL, "%s: exit %d, \"%s\"",
              open[i], status, err);
    }
    struct daemon *d = daemon_start("open", "--listen", "0.0.0.0:0", "--insecure-listen", NULL);
    const char *port = strrchr(d->listen, ':');
    char address[64];
    CHECK(port != NULL, "%s", d->listen);
    snprintf(address, sizeof address, "127.0.0.1%s", port);
    daemon_set_listen(d, address);
    close(knock(d));
    daemons_stop();
}

static void garbage(void)
{
    start();
    uint64_t state = 17;
    for (int i = 0; i < 60; i++) {
        unsigned char bytes[4096];
        for (size_t k = 0; k < sizeof bytes; k++) {
            bytes[k] = (unsigned char)random_next(&state);
        }
        int fd = knock(i % 2 == 0 ? prefill : decode);
        say(fd, bytes, 1 + random_below(&state, sizeof bytes));
        if (i % 3 == 0) {
            say(fd, bytes, sizeof bytes);
            CHECK(is_closed(fd, 3000), "garbage %d did not cost the connection", i);
        }
        close(fd);
    }
    stop();
}

/* Nearly a frame: every prefix of a HELLO, left open. */
static void half_frames(void)
{
    enum { HALVES = 40 };
    unsigned char bytes[256];
    int fds[HALVES];
    start();
    struct kvf_wire_hello hello = hello_of_ours();
    int n = kvf_wire_put_hello(bytes, sizeof bytes, 0, &hello);
    CHECK(n > HALVES, "put_hello: %d", n);
    for (int i = 0; i < HALVES; i++) {
        fds[i] = knock(prefill);
        say(fds[i], bytes, (size_t)(i * 2));
    }
    sleep_us(100000);
    for (int i = 0; i < HALVES; i++) {
        CHECK(is_closed(fds[i], 15000), "half a frame (%d bytes) is waited for too long",
              i * 2);
        close(fds[i]);
    }
    stop();
}

static void wrong_hello(void)
{
    start();
    for (int i = 0; i < 6; i++) {
        struct kvf_wire_hello hello = hello_of_ours();
        switch (i) {
        case 0:
            hello.version_major = 7;
            break;
        case 1:
            hello.caps = 0; /* cannot prove drain */
            break;
        case 2:
            hello.transport = KVF_WIRE_VERBS;
            break;
        case 3:
            hello.lane_count = 0;
            break;
        case 4:
            hello.lane_count = 200;
            break;
        default:
            hello.placement = 9;
            break;
        }
        int fd = knock(prefill);
        int code = introduce(fd, &hello);
        CHECK(code != 0, "HELLO %d was accepted", i);
        CHECK(code == -1 || code == KVF_E_PEER_REFUSED || code == KVF_E_PROTOCOL,
              "HELLO %d: code %d %s", i, code, kvf_code_name_of(code));
        CHECK(is_closed(fd, 3000), "HELLO %d: not closed", i);
        close(fd);
    }
    struct kvf_wire_hello good = hello_of_ours();
    int fd = knock(prefill);
    CHECK_IS(introduce(fd, &good), 0, "answer to a good HELLO");
    close(fd);
    stop();
}

/* The first frame as a daemon of another wire version writes it. Its header says so, and nothing behind that
 * need be as ours. */
static size_t foreign_hello(unsigned char *ret_frame, size_t cap, int step)
{
    struct kvf_wire_hello hello = hello_of_ours();
    int bytes = kvf_wire_put_hello(ret_frame, cap, 0, &hello);
    CHECK(bytes > 0, "put_hello: %d", bytes);
    ret_frame[4] = (unsigned char)(KVF_WIRE_VERSION_MAJOR + (unsigned)step);
    return (size_t)bytes;
}

/* An older and a newer daemon connect: each is answered before it is hung up on, so that it can say why. */
static void other_version_knocks(void)
{
    start();
    for (int step = -1; step <= 1; step += 2) {
        unsigned char frame[256];
        unsigned char in[KVF_WIRE_HEADER_BYTES + KVF_WIRE_HELLO_BYTES];
        size_t bytes = foreign_hello(frame, sizeof frame, step);
        struct kvf_wire_hello answer;
        int fd = knock(prefill);
        say(fd, frame, bytes);
        CHECK_IS(recv(fd, in, sizeof in, MSG_WAITALL), (ssize_t)sizeof in, "its answer");
        CHECK_IS(kvf_wire_get_hello(in + KVF_WIRE_HEADER_BYTES, KVF_WIRE_HELLO_BYTES, &answer),
                 0, "a HELLO");
        CHECK_IS(answer.code, ENOTSUP, "what it says");
        CHECK_IS(in[4], KVF_WIRE_VERSION_MAJOR, "the version that would do");
        CHECK(is_closed(fd, 3000), "not closed");
        close(fd);
    }
    stop();
}

/* And where such a daemon is the one that a room names: the room fails at once, and says that it was refused. */
static void other_version_answers(void)
{
    struct daemon *alone = daemon_start("decode", "--connect-ms", "600000", NULL);
    struct geometry geometry = SIXTEEN_BY_FOUR;
    struct engine *sink = engine_start(alone, &geometry, 0);
    for (int step = -1; step <= 1; step += 2) {
        struct sockaddr_in addr = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t addr_bytes = sizeof addr;
        unsigned char frame[256];
        size_t bytes = foreign_hello(frame, sizeof frame, step);
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(bind(listener, (struct sockaddr *)&addr, sizeof addr) == 0 &&
                  listen(listener, 4) == 0 &&
                  getsockname(listener, (struct sockaddr *)&addr, &addr_bytes) == 0,
              "listen: %s", strerror(errno));
        char writer[64];
        snprintf(writer, sizeof writer, "127.0.0.1:%u", (unsigned)ntohs(addr.sin_port));
        int32_t pages[4];
        pages_count_up(pages, 4, 0);
        kvf_room room = engine_sink_pages(sink, key_next(), pages, 4, writer);
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0, "accept: %s", strerror(errno));
        say(fd, frame, bytes);
        room_expect_reason(sink, room, KVF_E_PEER_REFUSED,
                           WAIT_MS); /* and not at --connect-ms */
        CHECK_IS(room_info(sink, room).detail, ENOTSUP, "why");
        room_expect_proof(sink, room, KVF_NEVER_POSTED);
        room_release(sink, room);
        close(fd);
        close(listener);
    }
    engine_stop(sink);
    daemons_stop();
}

static void unknown_lane(void)
{
    start();
    for (uint32_t i = 0; i < 20; i++) {
        unsigned char bytes[128];
        struct kvf_wire_lane_hello hello = {
            .session = i * 77u, .lane_idx = i % 3 == 0 ? 4000000000u : i % 8, .epoch = i};
        int n = kvf_wire_put_lane_hello(bytes, sizeof bytes, 0, &hello);
        CHECK(n > 0, "put_lane_hello: %d", n);
        int fd = knock(decode);
        say(fd, bytes, (size_t)n);
        CHECK(is_closed(fd, 3000), "a lane of no session was kept");
        close(fd);
    }
    stop();
}

/* Well introduced, then out of order, of a wrong length, of an unknown type, or naming what is not there. */
static void bad_frames(void)
{
    static unsigned char frame[FRAME_BYTES];
    start();
    for (int i = 0; i < 8; i++) {
        struct kvf_wire_hello hello = hello_of_ours();
        struct kvf_wire_grant grant = {.nonce = 5,
                                       .label = 1,
                                       .key = 1,
                                       .handle = 3,
                                       .lane_mask = i == 0 ? 0 : 1,
                                       .lane_epochs = {1},
                                       .page_count = 4,
                                       .total_runs = 1,
                                       .run_count = 1};
        struct kvf_wire_run run = {.region = 40, .first = 0, .count = 4};
        struct kvf_wire_header header = {.version_major = KVF_WIRE_VERSION_MAJOR,
                                         .type = (uint8_t)(i == 3 ? 77 : KVF_WIRE_GRANT),
                                         .payload_bytes =
                                             i == 4 ? KVF_WIRE_PAYLOAD_MAX + 1u : 10,
                                         .seq = 1};
        int n;
        memset(frame, 0, sizeof frame);
        if (i < 2) {
            n = kvf_wire_put_grant(frame, sizeof frame, 1, &grant, &run);
        } else if (i == 2) {
            n = kvf_wire_put_grant(frame, sizeof frame, 55, &grant, &run); /* sequence */
        } else if (i == 7) {
            struct kvf_wire_accept accept = {.nonce = 123456}; /* no such grant */
            n = kvf_wire_put_accept(frame, sizeof frame, 1, &accept);
        } else {
            kvf_wire_put_header(frame, &header);
            n = i == 5 ? 4000 : 26;
        }
        CHECK(n > 0, "frame %d: %d", i, n);
        int fd = knock(prefill);
        CHECK_IS(introduce(fd, &hello), 0, "answer to HELLO");
        say(fd, frame, (size_t)n);
        if (i != 7) { /* a stale nonce is counted and dropped, no more */
            CHECK(is_closed(fd, 3000), "frame %d did not cost the connection", i);
        }
        close(fd);
    }
    stop();
}

/* A peer that says HELLO and then neither speaks nor reads. */
static void silent_peer(void)
{
    start();
    WAIT_FOR(daemon_stat(prefill, "peers_up") == 1, 2000, "the bystander's peer is not up");
    struct kvf_wire_hello hello = hello_of_ours();
    int fd = knock(prefill);
    CHECK_IS(introduce(fd, &hello), 0, "answer to HELLO");
    WAIT_FOR(daemon_stat(prefill, "peers_up") == 2, 1000, "not up");
    uint64_t start_ns = now_ns();
    WAIT_FOR(daemon_stat(prefill, "peers_up") == 1, 3000, "a silent peer is kept");
    test_say("a silent peer is dropped after %llu ms; its deadline is 600",
             (unsigned long long)(now_ns() - start_ns) / 1000000u);
    close(fd);
    stop();
}

static void crowd(void)
{
    struct rlimit limit;
    static int fds[CROWD];
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    if (limit.rlim_max < CROWD + 200) {
        test_skip("at most %llu descriptors are allowed here",
                  (unsigned long long)limit.rlim_max);
    }
    limit.rlim_cur = limit.rlim_max;
    start(); /* the daemons keep the usual limit */
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    uint64_t before = bystander_count(bystander);
    for (int i = 0; i < CROWD; i++) {
        fds[i] = knock(prefill);
    }
    /* Daemons that did not know each other find through. */
    struct daemon *other = daemon_start("decode1", NULL);
    static const struct geometry g = SIXTEEN_BY_FOUR;
    struct engine *from = engine_start(prefill, &g, 0);
    struct engine *to = engine_start(other, &g, 0);
    transfer_once(from, to, key_next(), 0, 20);
    engine_stop(from);
    engine_stop(to);
    WAIT_FOR(bystander_count(bystander) > before + 20, 5000, "the running rooms stand still");
    for (int i = 0; i < CROWD; i++) {
        close(fds[i]);
    }
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"an_address_that_others_reach_needs_insecure_listen", loopback_only, 0},
        {"garbage_costs_the_connection_and_nobody_else", garbage, 0},
        {"half_a_frame_is_not_waited_for_for_ever", half_frames, 0},
        {"a_hello_that_does_not_fit_is_refused", wrong_hello, 0},
        {"an_older_and_a_newer_wire_version_are_answered_and_refused", other_version_knocks, 0},
        {"a_room_that_names_a_daemon_of_another_wire_version_is_refused_at_once",
         other_version_answers, 0},
        {"a_lane_of_no_session_is_refused", unknown_lane, 0},
        {"bad_frames_cost_the_connection_and_nobody_else", bad_frames, 0},
        {"a_peer_that_says_nothing_is_dropped_at_its_deadline", silent_peer, 0},
        {"a_thousand_connections_do_not_disturb_a_running_room", crowd, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

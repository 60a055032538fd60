/* Lanes that are cut under running rooms: a fence kills grants, not rooms. Between the daemons stands a relay
 * that knows lanes from control connections by their first bytes and resets what it is told to. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sidecar/core/wire.h"
#include "tests/daemon/engine.h"

#define WAIT_MS 20000u
#define ROOMS 8u
#define ROOM_PAGES 100u
#define PAIRS_MAX 32u
#define CHUNK_BYTES 65536u

static const struct geometry geometry = SIXTEEN_BY_FOUR;

/* ---- the relay ---------------------------------------------------------------------------------------- */

struct way {
    unsigned char bytes[CHUNK_BYTES];
    size_t from;
    size_t to;
};

struct pair {
    int fd[2];     /* the sink's side, the source's side; -1: unused */
    bool is_known; /* its first frame was seen */
    bool is_lane;
    struct way way[2]; /* read from that side, on its way to the other */
};

struct relay {
    int listener;
    uint16_t target_port;
    char address[64];
    pthread_t thread;
    _Atomic bool is_ending;
    _Atomic uint32_t cuts_asked;
    _Atomic uint32_t lanes_cut;
    uint32_t cuts_made;
    struct pair pairs[PAIRS_MAX];
};

static void close_pair(struct pair *p, bool is_reset)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    for (int side = 0; side < 2; side++) {
        if (is_reset) {
            (void)setsockopt(p->fd[side], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        close(p->fd[side]);
        p->fd[side] = -1;
    }
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in in = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0, "socket");
    if (connect(fd, (struct sockaddr *)&in, sizeof in) != 0) {
        close(fd);
        return -1;
    }
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "fcntl");
    return fd;
}

static void take(struct relay *r)
{
    int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    struct pair *p = NULL;
    for (uint32_t i = 0; i < PAIRS_MAX && p == NULL; i++) {
        p = r->pairs[i].fd[0] < 0 ? &r->pairs[i] : NULL;
    }
    CHECK(p != NULL, "more connections than the relay has places for");
    int other = connect_to(r->target_port);
    if (other < 0) {
        close(fd);
        return;
    }
    *p = (struct pair){.fd = {fd, other}};
}

/* Reads what there is room for, writes what there is. False: that way is over. */
static bool move(struct pair *p, int side)
{
    struct way *w = &p->way[side];
    if (w->from == w->to) {
        ssize_t n = read(p->fd[side], w->bytes, sizeof w->bytes);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            return false;
        }
        w->from = 0;
        w->to = n < 0 ? 0 : (size_t)n;
        struct kvf_wire_header first;
        if (side == 0 && !p->is_known && w->to >= KVF_WIRE_HEADER_BYTES) {
            p->is_known = true;
            p->is_lane =
                kvf_wire_get_header(w->bytes, &first) == 0 && first.type == KVF_WIRE_LANE_HELLO;
        }
    }
    while (w->from < w->to) {
        ssize_t n = write(p->fd[1 - side], w->bytes + w->from, w->to - w->from);
        if (n < 0) {
            return errno == EAGAIN;
        }
        w->from += (size_t)n;
    }
    return true;
}

static void cut_lanes(struct relay *r)
{
    for (uint32_t i = 0; i < PAIRS_MAX; i++) {
        struct pair *p = &r->pairs[i];
        if (p->fd[0] >= 0 && p->is_lane) {
            close_pair(p, true);
            atomic_fetch_add_explicit(&r->lanes_cut, 1, memory_order_relaxed);
        }
    }
}

static void *run_relay(void *ctx)
{
    struct relay *r = ctx;
    while (!atomic_load_explicit(&r->is_ending, memory_order_relaxed)) {
        struct pollfd fds[1 + 2 * PAIRS_MAX] = {{.fd = r->listener, .events = POLLIN}};
        for (uint32_t i = 0; i < 2 * PAIRS_MAX; i++) {
            struct pair *p = &r->pairs[i / 2];
            int side = (int)(i % 2);
            bool is_full = p->way[side].from < p->way[side].to;
            bool is_other_full = p->way[1 - side].from < p->way[1 - side].to;
            fds[1 + i] = (struct pollfd){
                .fd = p->fd[side],
                .events = (short)((is_full ? 0 : POLLIN) | (is_other_full ? POLLOUT : 0))};
        }
        (void)poll(fds, 1 + 2 * PAIRS_MAX, 1);
        uint32_t asked = atomic_load_explicit(&r->cuts_asked, memory_order_acquire);
        if (asked != r->cuts_made) {
            r->cuts_made = asked;
            cut_lanes(r);
        }
        if ((fds[0].revents & POLLIN) != 0) {
            take(r);
        }
        for (uint32_t i = 0; i < PAIRS_MAX; i++) {
            struct pair *p = &r->pairs[i];
            if (p->fd[0] >= 0 && (!move(p, 0) || !move(p, 1))) {
                close_pair(p, true);
            }
        }
    }
    return NULL;
}

/* Stands before d: `via` is d as its peers are told to find it. */
static struct relay *relay_start(const struct daemon *d, struct daemon *via)
{
    struct relay *r = calloc(1, sizeof *r);
    CHECK(r != NULL, "calloc");
    for (uint32_t i = 0; i < PAIRS_MAX; i++) {
        r->pairs[i].fd[0] = -1;
        r->pairs[i].fd[1] = -1;
    }
    const char *colon = strrchr(d->listen, ':');
    CHECK(colon != NULL, "no port in %s", d->listen);
    r->target_port = (uint16_t)strtoul(colon + 1, NULL, 10);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof in;
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(r->listener >= 0, "socket");
    CHECK(bind(r->listener, (struct sockaddr *)&in, sizeof in) == 0, "bind");
    CHECK(listen(r->listener, 64) == 0, "listen");
    CHECK(getsockname(r->listener, (struct sockaddr *)&in, &bytes) == 0, "getsockname");
    snprintf(r->address, sizeof r->address, "127.0.0.1:%u", ntohs(in.sin_port));
    *via = *d;
    daemon_set_listen(via, r->address);
    CHECK_IS(pthread_create(&r->thread, NULL, run_relay, r), 0, "thread");
    return r;
}

static void relay_cut_lanes(struct relay *r)
{
    uint32_t before = atomic_load_explicit(&r->lanes_cut, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->cuts_asked, 1, memory_order_release);
    WAIT_FOR(atomic_load_explicit(&r->lanes_cut, memory_order_relaxed) > before, 2000,
             "there was no lane to cut");
}

static void relay_stop(struct relay *r)
{
    atomic_store_explicit(&r->is_ending, true, memory_order_relaxed);
    pthread_join(r->thread, NULL);
    for (uint32_t i = 0; i < PAIRS_MAX; i++) {
        if (r->pairs[i].fd[0] >= 0) {
            close_pair(&r->pairs[i], false);
        }
    }
    close(r->listener);
    free(r);
}

/* ---- rooms ----------------------------------------------------------------------------------------------- */

static struct daemon *prefill;
static struct daemon *decode;
static struct daemon via;
static struct relay *relay;
static struct engine *from;
static struct engine *to;

static void start_with(const char *placement, const char *lanes)
{
    prefill = daemon_start("prefill", "--tcp-placement", placement, "--lane-rate", "40",
                           "--lanes", lanes, NULL);
    decode = daemon_start("decode", "--tcp-placement", placement, "--lane-rate", "40",
                          "--lanes", lanes, NULL);
    relay = relay_start(prefill, &via);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void stop(void)
{
    engine_stop(from);
    engine_stop(to);
    relay_stop(relay);
    daemons_stop();
}

static uint64_t failed_rooms(void)
{
    return daemon_stat(prefill, "rooms_failed_total") +
           daemon_stat(decode, "rooms_failed_total");
}

static void co_rooms(const char *placement, const char *lanes)
{
    kvf_room in[ROOMS];
    kvf_room out[ROOMS];
    uint64_t keys[ROOMS];
    int32_t pages[ROOM_PAGES];
    start_with(placement, lanes);
    for (uint32_t i = 0; i < ROOMS; i++) {
        pages_count_up(pages, ROOM_PAGES, (int32_t)(i * ROOM_PAGES));
        keys[i] = key_next();
        engine_set(to, pages, ROOM_PAGES, 0xee);
        engine_fill(from, keys[i], pages, ROOM_PAGES, 0);
    }
    for (uint32_t i = 0; i < ROOMS; i++) {
        int32_t first = (int32_t)(i * ROOM_PAGES);
        in[i] = engine_sink(to, keys[i], first, ROOM_PAGES, &via);
        out[i] = engine_source(from, keys[i]);
        engine_submit(from, out[i], first, ROOM_PAGES, 0, true);
    }
    for (uint32_t i = 0; i < ROOMS; i++) {
        room_wait_placed(to, in[i], 5 * to->page_bytes, WAIT_MS);
    }
    relay_cut_lanes(relay);
    for (uint32_t i = 0; i < ROOMS; i++) {
        room_expect(to, in[i], KVF_SUCCESS, WAIT_MS);
        room_expect(from, out[i], KVF_SUCCESS, WAIT_MS);
        pages_count_up(pages, ROOM_PAGES, (int32_t)(i * ROOM_PAGES));
        engine_verify(to, keys[i], pages, ROOM_PAGES, 0);
        room_release(to, in[i]);
        room_release(from, out[i]);
    }
    CHECK_IS(failed_rooms(), 0, "rooms that failed");
    /* A room may be granted anew over the second lane in the moment before that one is cut too. */
    uint64_t anew = daemon_stat(decode, "regrants_total");
    CHECK(anew >= ROOMS && anew <= ROOMS * strtoul(lanes, NULL, 10), "%llu new grants",
          (unsigned long long)anew);
    CHECK(daemon_stat(decode, "fences_total") > 0, "no lane was fenced");
    test_say("%s, %s lanes: %llu of %llu bytes placed twice, every room in success", placement,
             lanes,
             (unsigned long long)(daemon_stat(decode, "bytes_placed_total") -
                                  ROOMS * ROOM_PAGES * to->page_bytes),
             (unsigned long long)(ROOMS * ROOM_PAGES * to->page_bytes));
    stop();
}

static void co_rooms_checked(void)
{
    co_rooms("checked", "1");
}

static void co_rooms_posted(void)
{
    co_rooms("posted", "1");
}

static void co_rooms_striped(void)
{
    co_rooms("posted", "2");
}

static void cut_too_often(void)
{
    start_with("checked", "1");
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 1000, &via);
    kvf_room out = engine_source(from, key);
    engine_submit(from, out, 0, 1000, 0, true);
    for (uint32_t i = 0; i < 4; i++) {
        WAIT_FOR(daemon_stat(decode, "lanes_up") == 1 &&
                     daemon_stat(prefill, "posted_bytes") > 0,
                 WAIT_MS, "no lane came back");
        CHECK_IS(kvf_poll(to->client, in), KVF_TRANSFERRING, "sink, after some cuts");
        CHECK_IS(kvf_poll(from->client, out), KVF_TRANSFERRING, "source, after some cuts");
        relay_cut_lanes(relay);
        WAIT_FOR(daemon_stat(decode, "fences_total") > i, WAIT_MS, "the cut is not noticed");
    }
    room_expect_reason(to, in, KVF_E_LANE_LOST, WAIT_MS);
    room_expect(from, out, KVF_FAILED, WAIT_MS);
    CHECK_IS(daemon_stat(decode, "regrants_total"), 3, "new grants");
    room_release(to, in);
    room_release(from, out);
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"eight_rooms_of_a_cut_lane_end_in_success_under_new_grants_checked", co_rooms_checked,
         60},
        {"eight_rooms_of_a_cut_lane_end_in_success_under_new_grants_posted", co_rooms_posted,
         60},
        {"eight_rooms_of_two_cut_lanes_end_in_success_under_new_grants", co_rooms_striped, 60},
        {"a_room_whose_lane_is_cut_for_the_fourth_time_fails", cut_too_often, 60},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

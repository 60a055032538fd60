/* Two daemons over a network that cuts bytes to pieces, flips bits, or is the only thing that is left after a
 * daemon died: cases of their own, since they are not about a share of the bytes. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/engine.h"
#include "tests/proxy/driver.h"

#define WAIT_MS 15000u
#define CANARY 0x6e

static struct daemon *prefill;
static struct daemon *decode;
static struct daemon via; /* prefill, by the proxy's address */
static struct kvf_proxy network;

static void tell(const char *command)
{
    char answer[200] = "";
    int rc = kvf_proxy_tell(&network, command, answer, sizeof answer);
    CHECK(rc == 0, "%s: %s", command, answer);
}

static void start(const char *rules, const char *placement)
{
    bool is_slow = is_sanitized_build();
    struct daemon **daemons[] = {&prefill, &decode};
    const char *names[] = {"prefill", "decode"};
    for (int i = 0; i < 2; i++) {
        *daemons[i] = daemon_start(names[i], "--tcp-placement", placement, "--cooperative-ms",
                                   "2000", "--liveness-ms", is_slow ? "6000" : "2500", NULL);
    }
    int rc =
        kvf_proxy_start(&network, KVF_TEST_PROXY, "127.0.0.1:0", prefill->listen, rules, 3);
    CHECK(rc == 0, "%s: %s", KVF_TEST_PROXY, strerror(-rc));
    via = *prefill;
    snprintf(via.listen, sizeof via.listen, "%s", network.listen);
}

static void stop(void)
{
    daemons_stop();
    kvf_proxy_stop(&network);
}

/* ---- pieces ----------------------------------------------------------------------------------------- */

/* Rooms of random lengths in pages of this size, each checked byte by byte. */
static void move_pages_of(uint64_t page_bytes, uint32_t rooms, uint64_t *random)
{
    uint64_t count_max = page_bytes > 100000 ? 2 : page_bytes > 4000 ? 8 : 24;
    struct geometry g = {.plane_count = 2, .page_bytes = page_bytes, .page_count = 64};
    struct engine *from = engine_start(&via, &g, 0);
    struct engine *to = engine_start(decode, &g, 0);
    for (uint32_t i = 0; i < rooms; i++) {
        uint32_t count = 1u + (uint32_t)random_below(random, count_max);
        int32_t first = (int32_t)random_below(random, 64 - count);
        transfer_once(from, to, key_next(), first, count);
    }
    engine_stop(from);
    engine_stop(to);
}

static void short_pieces(void)
{
    static const uint64_t sizes[] = {1, 7, 511, 512, 513, 4095, 4097, 65537};
    uint64_t random = 11;
    start("split:3/control,split:40/lane", "posted");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        move_pages_of(sizes[i], 25, &random);
    }
    tell("clear");
    tell("split:3/control,split:5000/lane");
    move_pages_of(1048577, 10, &random);
    CHECK_IS(daemon_stat(decode, "protocol_errors_total"), 0, "protocol errors");
    CHECK_IS(daemon_stat(decode, "rooms_failed_total"), 0, "failed rooms");
    stop();
}

/* ---- flipped bits ----------------------------------------------------------------------------------- */

#define FLIP_PAGES 8
#define FLIP_FIRST 8

/* One bit of the n-th byte of every connection of that kind, from here on. True if there was such a byte. Whatever it does to the room, no
 * byte outside its pages changes, it ends with proof, and both daemons go on. */
static bool flip(struct engine *from, struct engine *to, const char *where, uint32_t at)
{
    int32_t inside[FLIP_PAGES];
    int32_t outside[2 * FLIP_PAGES];
    char command[64];
    pages_count_up(inside, FLIP_PAGES, FLIP_FIRST);
    pages_count_up(outside, FLIP_PAGES, 0);
    pages_count_up(outside + FLIP_PAGES, FLIP_PAGES, FLIP_FIRST + FLIP_PAGES);
    engine_set(to, outside, 2 * FLIP_PAGES, CANARY);
    /* New connections begin at byte 0; those of before do not live to meet the second rule. */
    snprintf(command, sizeof command, "reset,corrupt@%u%s", at, where);
    uint64_t before = kvf_proxy_count(&network, "flipped");
    tell(command);
    uint64_t key = key_next();
    engine_fill(from, key, inside, FLIP_PAGES, 0);
    kvf_room in = engine_sink(to, key, FLIP_FIRST, FLIP_PAGES, &via);
    kvf_room out = engine_source(from, key);
    engine_submit(from, out, FLIP_FIRST, FLIP_PAGES, 0, true);
    for (uint32_t ms = 0; ms < 400; ms++) {
        int state = kvf_poll(to->client, in);
        if (state == KVF_SUCCESS || state == KVF_FAILED) {
            break;
        }
        sleep_us(1000);
    }
    bool is_hit = kvf_proxy_count(&network, "flipped") > before;
    tell("clear"); /* a reconnect must not meet it again */
    CHECK(room_end(to, in, WAIT_MS) > 0, "%s: no proof", command);
    CHECK(room_end(from, out, WAIT_MS) > 0, "%s: no proof at the source", command);
    CHECK_IS(engine_count_other(to, outside, 2 * FLIP_PAGES, CANARY), 0,
             "bytes outside the pages of the room");
    return is_hit;
}

/* Right after a flip a connection may have to be made again first. */
static void expect_works(struct engine *from, struct engine *to, const char *after)
{
    uint64_t until_ns = now_ns() + UINT64_C(10000000000);
    for (;;) {
        uint64_t key = key_next();
        int32_t pages[4];
        pages_count_up(pages, 4, 40);
        engine_fill(from, key, pages, 4, 0);
        kvf_room in = engine_sink(to, key, 40, 4, &via);
        kvf_room out = engine_source(from, key);
        engine_submit(from, out, 40, 4, 0, true);
        int state = kvf_wait(to->client, in, WAIT_MS);
        if (state == KVF_SUCCESS) {
            engine_verify(to, key, pages, 4, 0);
        }
        room_end(from, out, WAIT_MS);
        room_release(to, in);
        if (state == KVF_SUCCESS) {
            return;
        }
        CHECK(now_ns() < until_ns, "no room succeeds any more after %s", after);
    }
}

static void flipped_bits(const char *where, uint32_t count, uint32_t step)
{
    static const struct geometry g = {.plane_count = 2, .page_bytes = 4096, .page_count = 64};
    start(NULL, "posted");
    struct engine *from = engine_start(&via, &g, 0);
    struct engine *to = engine_start(decode, &g, 0);
    uint32_t hits = 0;
    uint32_t tries = 0;
    pid_t workers[] = {prefill->worker, decode->worker};
    for (uint32_t at = 0; at < count; at += step) {
        hits += flip(from, to, where, at);
        tries++;
        expect_works(from, to, where);
    }
    test_say("%u of %u bytes were sent and spoiled", hits, tries);
    CHECK(hits * 10 >= tries * 8, "too few were there to be spoiled");
    CHECK(daemon_worker_now(prefill) == workers[0] && daemon_worker_now(decode) == workers[1],
          "a worker ended");
    engine_stop(from);
    engine_stop(to);
    stop();
}

static void flipped_in_lane_headers(void)
{
    flipped_bits("/back/lane", 32, 1);
}

static void flipped_in_hello(void)
{
    flipped_bits("/back/control", 88, 5);
}

static void flipped_in_requests(void)
{
    flipped_bits("/forth/control", 240, 7);
}

/* ---- a daemon that is gone --------------------------------------------------------------------------- */

#define LOST_ROOMS 10

static void lost_after(uint32_t pause_ms)
{
    static const struct geometry g = {.plane_count = 4, .page_bytes = 4096, .page_count = 512};
    start("rate:20", "posted");
    struct engine *from = engine_start(&via, &g, 0);
    struct engine *engines[] = {engine_start(decode, &g, 0), engine_start(decode, &g, 0)};
    kvf_room in[2][LOST_ROOMS];
    kvf_room out[2][LOST_ROOMS];
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < LOST_ROOMS; i++) {
            uint64_t key = key_next();
            in[e][i] = engine_sink(engines[e], key, i * 40, 40, &via);
            out[e][i] = engine_source(from, key);
            engine_submit(from, out[e][i], i * 40, 40, 0, true);
        }
    }
    room_wait_placed(engines[1], in[1][0], 1, WAIT_MS);
    uint64_t start_ns = now_ns();
    daemon_signal(decode, SIGKILL);
    for (int e = 0; e < 2; e++) {
        WAIT_FOR(kvf_daemon_check(engines[e]->client) == -KVF_E_DAEMON_GONE, 1000,
                 "engine %d does not see the loss within a second", e);
        const int32_t page = 500;
        kvf_room refused = 0;
        CHECK(engine_try_sink(engines[e], 1, &page, 1, via.listen, &refused) < 0,
              "an open without a daemon");
        for (int i = 0; i < LOST_ROOMS; i++) {
            /* Idle by proof and by nothing else. */
            int32_t first = i * 40;
            int idle =
                kvf_pages_are_idle(engines[e]->client, engines[e]->region, &first, 1, NULL);
            int proof = kvf_drained(engines[e]->client, in[e][i]);
            CHECK(idle == (proof > 0), "idle %d, proof %d", idle, proof);
            CHECK(proof > 0, "room %d of engine %d has no proof %d", i, e, proof);
        }
    }
    test_say("both engines knew %llu ms after the kill",
             (unsigned long long)(now_ns() - start_ns) / 1000000u);
    (void)daemon_wait(decode, 5000);
    sleep_us(pause_ms * 1000u);
    daemon_start_again(decode);
    for (int e = 0; e < 2; e++) {
        CHECK_CODE(kvf_reattach(engines[e]->client, 5000), 0, "re-attach");
        for (int i = 0; i < LOST_ROOMS; i++) {
            room_release(engines[e], in[e][i]);
            CHECK(room_end(from, out[e][i], WAIT_MS) > 0, "no proof at the source");
        }
        transfer_once(from, engines[e], key_next(), 0, 50);
        engine_stop(engines[e]);
    }
    engine_stop(from);
    stop();
}

static void lost_for_a_moment(void)
{
    lost_after(100);
}

static void lost_for_2_seconds(void)
{
    lost_after(2000);
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {{NULL, NULL}};
    static const struct test_case cases[] = {
        {"k3_bytes_that_come_in_pieces_are_placed_byte_for_byte", short_pieces, 60},
        {"a_flipped_bit_in_a_lane_header_touches_no_other_page", flipped_in_lane_headers, 90},
        {"a_flipped_bit_in_an_answer_touches_no_other_page", flipped_in_hello, 90},
        {"a_flipped_bit_in_a_request_touches_no_other_page", flipped_in_requests, 90},
        {"j1_engines_outlive_a_daemon_that_comes_back_at_once", lost_for_a_moment, 0},
        {"j1_engines_outlive_a_daemon_that_is_away_for_2_seconds", lost_for_2_seconds, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

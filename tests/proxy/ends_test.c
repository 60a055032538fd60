/* How connections end, or do not: stalls, cuts, resets, refusals, and which connections they meet. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/proxy/test_rig.h"

#define LIMIT_MS 5000
#define QUIET_MS 150

static unsigned char hello[100];
static unsigned char got[100];

static void expect_flows(int from, int to)
{
    rig_fill(hello, sizeof hello, (uint64_t)from);
    rig_write(from, hello, sizeof hello);
    cr_assert_eq(rig_read(to, got, sizeof got, LIMIT_MS), sizeof got);
    cr_assert_eq(memcmp(hello, got, sizeof got), 0);
}

static void expect_held(int from, int to)
{
    rig_write(from, hello, sizeof hello);
    cr_assert_eq(rig_read(to, got, 1, QUIET_MS), 0u, "a byte came through");
}

Test(ends, a_stall_keeps_the_connection_and_hands_on_nothing_until_it_is_over)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    rig_tell(&rig, "stall");
    expect_held(pair.client, pair.server);
    expect_held(pair.server, pair.client);
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "held_forth"), sizeof hello);
    rig_tell(&rig, "clear");
    cr_assert_eq(rig_read(pair.server, got, sizeof got, LIMIT_MS), sizeof got);
    cr_assert_eq(rig_read(pair.client, got, sizeof got, LIMIT_MS), sizeof got);
    expect_flows(pair.client, pair.server);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(ends, a_stall_of_some_time_is_over_by_itself)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    uint64_t start_ms = rig_now_ms();
    rig_tell(&rig, "stall@0ms:300ms");
    rig_write(pair.client, hello, sizeof hello);
    cr_assert_eq(rig_read(pair.server, got, sizeof got, LIMIT_MS), sizeof got);
    cr_assert_geq(rig_now_ms() - start_ms, 299u);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(ends, a_cut_stops_one_direction_alone)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    rig_tell(&rig, "cut/back");
    expect_held(pair.server, pair.client);
    expect_flows(pair.client, pair.server);
    rig_tell(&rig, "clear");
    cr_assert_eq(rig_read(pair.client, got, sizeof got, LIMIT_MS), sizeof got);
    rig_tell(&rig, "cut/forth");
    expect_held(pair.client, pair.server);
    expect_flows(pair.server, pair.client);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(ends, behind_a_cut_the_end_of_the_other_side_is_not_heard)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    rig_tell(&rig, "cut/forth");
    setsockopt(pair.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(pair.client);
    cr_assert_eq(rig_end_of(pair.server, QUIET_MS), -EAGAIN, "the reset passed the cut");
    rig_write(pair.server, hello, sizeof hello); /* what a thawed writer does */
    for (int i = 0; i < 100 && kvf_proxy_count(&rig.proxy, "refused_back") < sizeof hello;
         i++) {
        usleep(5000);
    }
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "refused_back"), sizeof hello);
    rig_tell(&rig, "clear");
    cr_assert_eq(rig_end_of(pair.server, LIMIT_MS), -ECONNRESET);
    close(pair.server);
    rig_stop(&rig);
}

Test(ends, a_reset_meets_those_that_are_open_and_no_later_one)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    rig_tell(&rig, "reset");
    cr_assert_eq(rig_end_of(pair.client, LIMIT_MS), -ECONNRESET);
    cr_assert_eq(rig_end_of(pair.server, LIMIT_MS), -ECONNRESET);
    struct pair next = rig_connect(&rig, FIRST_HELLO, 0);
    expect_flows(next.client, next.server);
    pair_close(&pair);
    pair_close(&next);
    rig_stop(&rig);
}

Test(ends, a_reset_of_lane_1_leaves_lane_0_and_the_control_connection)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair control = rig_connect(&rig, FIRST_HELLO, 0);
    struct pair lane_0 = rig_connect(&rig, FIRST_LANE, 0);
    struct pair lane_1 = rig_connect(&rig, FIRST_LANE, 1);
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "control"), 1u);
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "lanes"), 2u);
    rig_tell(&rig, "reset/lane1");
    cr_assert_eq(rig_end_of(lane_1.client, LIMIT_MS), -ECONNRESET);
    expect_flows(lane_0.server, lane_0.client);
    expect_flows(control.client, control.server);
    rig_tell(&rig, "reset/lane");
    cr_assert_eq(rig_end_of(lane_0.server, LIMIT_MS), -ECONNRESET);
    expect_flows(control.server, control.client);
    pair_close(&control);
    pair_close(&lane_0);
    pair_close(&lane_1);
    rig_stop(&rig);
}

Test(ends, a_place_in_a_stream_is_met_to_the_byte)
{
    static unsigned char bytes[3000];
    struct rig rig;
    rig_start(&rig, "stall@1000/back", 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    rig_write(pair.server, bytes, sizeof bytes);
    cr_assert_eq(rig_read(pair.client, bytes, sizeof bytes, QUIET_MS), 1000u);
    expect_flows(pair.client, pair.server);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(ends, a_drop_closes_and_refuses_until_it_is_over)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    rig_tell(&rig, "drop");
    cr_assert_eq(rig_end_of(pair.client, LIMIT_MS), 0);
    cr_assert_eq(rig_end_of(pair.server, LIMIT_MS), 0);
    cr_assert_eq(rig_knock(&rig), -ECONNREFUSED);
    rig_tell(&rig, "clear");
    rig_tell(&rig, "stat"); /* answered in the turn after */
    struct pair next = rig_connect(&rig, FIRST_HELLO, 0);
    expect_flows(next.client, next.server);
    pair_close(&pair);
    pair_close(&next);
    rig_stop(&rig);
}

Test(ends, a_close_of_one_direction_leaves_the_other)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    shutdown(pair.client, SHUT_WR);
    cr_assert_eq(rig_end_of(pair.server, LIMIT_MS), 0);
    expect_flows(pair.server, pair.client);
    close(pair.server);
    cr_assert_eq(rig_end_of(pair.client, LIMIT_MS), 0);
    close(pair.client);
    for (int i = 0; i < 200 && kvf_proxy_count(&rig.proxy, "open") != 0; i++) {
        usleep(5000);
    }
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "open"), 0u);
    rig_stop(&rig);
}

Test(ends, an_end_travels_as_long_as_bytes_do)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    struct pair other = rig_connect(&rig, FIRST_HELLO, 0);
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    rig_tell(&rig, "delay:80");
    uint64_t start_ms = rig_now_ms();
    close(pair.server);
    setsockopt(other.server, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(other.server);
    cr_assert_eq(rig_end_of(pair.client, LIMIT_MS), 0);
    cr_assert_geq(rig_now_ms() - start_ms, 79u);
    cr_assert_eq(rig_end_of(other.client, LIMIT_MS), -ECONNRESET);
    cr_assert_geq(rig_now_ms() - start_ms, 79u);
    close(pair.client);
    close(other.client);
    rig_stop(&rig);
}

Test(ends, nobody_behind_it_is_a_reset_and_a_new_target_serves_new_connections)
{
    struct rig rig;
    struct rig other;
    char command[80];
    rig_start(&rig, NULL, 1);
    rig_start(&other, NULL, 1);
    close(rig.listen_fd);
    int fd = rig_knock(&rig);
    cr_assert_geq(fd, 0);
    cr_assert_eq(rig_end_of(fd, LIMIT_MS), -ECONNRESET);
    close(fd);
    snprintf(command, sizeof command, "to %s", other.server);
    rig_tell(&rig, command);
    rig.listen_fd = dup(other.listen_fd);
    struct pair pair = rig_connect(&rig, FIRST_LANE, 2);
    expect_flows(pair.server, pair.client);
    pair_close(&pair);
    rig_stop(&other);
    rig_stop(&rig);
}

Test(ends, what_it_does_not_know_is_refused_with_a_sentence_and_changes_nothing)
{
    char answer[200];
    struct rig rig;
    rig_start(&rig, NULL, 1);
    cr_assert_eq(kvf_proxy_tell(&rig.proxy, "explode", answer, sizeof answer), -EINVAL);
    cr_assert(strstr(answer, "no action is called 'explode'") != NULL, "%s", answer);
    cr_assert_eq(kvf_proxy_tell(&rig.proxy, "to nowhere", answer, sizeof answer), -EINVAL);
    struct pair pair = rig_connect(&rig, FIRST_HELLO, 0);
    expect_flows(pair.client, pair.server);
    pair_close(&pair);
    rig_stop(&rig);
}

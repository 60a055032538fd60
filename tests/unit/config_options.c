#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/host/config.h"
#include "sidecar/host/numa.h"

#define ARGS_MAX 16

static struct kvf_config config;
static char error[512];

/* Splits at spaces; `line` lives as long as the test. */
static int parse(const char *line)
{
    static char text[512];
    char *argv[ARGS_MAX + 1] = {"kvfenced"};
    int argc = 1;
    snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok(text, " "); word != NULL && argc < ARGS_MAX;
         word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    error[0] = '\0';
    return kvf_config_parse(argc, argv, &config, error, sizeof(error));
}

static void expect_refused(const char *line, const char *sentence)
{
    struct kvf_config before;
    memset(&config, 0x5a, sizeof(config));
    before = config;
    cr_assert_eq(parse(line), -EINVAL, "%s: accepted", line);
    cr_assert_neq(strstr(error, sentence), NULL, "%s: said \"%s\"", line, error);
    cr_assert_eq(memcmp(&before, &config, sizeof(config)), 0, "%s: output touched", line);
}

static void setup(void)
{
    setenv("KVFENCE_RUN_DIR", "/tmp/kvf-test", 1);
}
TestSuite(config_options, .init = setup);

Test(config_options, defaults_are_those_of_the_documentation)
{
    cr_assert_eq(parse(""), 0, "%s", error);
    cr_assert_str_eq(config.name, "gpu0");
    cr_assert_str_eq(config.run_dir, "/tmp/kvf-test");
    cr_assert_eq(config.listen.family, 4);
    cr_assert_eq(config.listen.port, 0);
    cr_assert(kvf_addr_is_loopback(&config.listen));
    cr_assert_eq(config.placement, KVF_CONFIG_CHECKED);
    cr_assert_eq(config.tcp_engine, KVF_CONFIG_AUTO);
    cr_assert_eq(config.lane_rate_bytes, 0);
    cr_assert_eq(config.bootstrap_ms, 30000);
    cr_assert_eq(config.connect_ms, 5000);
    cr_assert_eq(config.cooperative_ms, 500);
    cr_assert_eq(config.fence_ms, 2000);
    cr_assert_eq(config.liveness_ms, 1250);
    cr_assert_eq(config.watchdog_ms, 1000);
    cr_assert_eq(config.kill_ms, 5000);
    cr_assert_eq(config.grace_ms, 5000);
    cr_assert_eq(config.cpu, KVF_CPU_AUTO);
    cr_assert_str_eq(config.rdma_devices, "auto");
    cr_assert_str_eq(config.rdma_near, "auto");
    cr_assert_eq(config.rdma_rails, 8);
    cr_assert_str_eq(config.sysfs, "/sys");
    cr_assert_eq(config.clients, 16);
    cr_assert_eq(config.rooms, 65536);
    cr_assert_not(config.is_listen_insecure);
}

Test(config_options, values_may_follow_a_space_or_an_equals_sign)
{
    cr_assert_eq(parse("--name=gpu7 --lanes 8 --cpu=3 --tcp-placement posted"), 0, "%s", error);
    cr_assert_str_eq(config.name, "gpu7");
    cr_assert_eq(config.lanes, 8);
    cr_assert_eq(config.cpu, 3);
    cr_assert_eq(config.placement, KVF_CONFIG_POSTED);
    cr_assert_eq(parse("--cpu none --spin on"), 0, "%s", error);
    cr_assert_eq(config.cpu, KVF_CPU_NONE);
    cr_assert_eq(config.spin, KVF_SPIN_ON);
}

Test(config_options, sizes_take_suffixes_and_rates_are_decimal)
{
    cr_assert_eq(
        parse("--room-window 512k --lane-window 4M --post-bytes 65536 --stripe-min 1G"), 0,
        "%s", error);
    cr_assert_eq(config.room_window_bytes, 512u << 10);
    cr_assert_eq(config.lane_window_bytes, 4u << 20);
    cr_assert_eq(config.post_bytes, 65536);
    cr_assert_eq(config.stripe_bytes_min, UINT64_C(1) << 30);
    cr_assert_eq(parse("--lane-rate 100"), 0, "%s", error);
    cr_assert_eq(config.lane_rate_bytes, 100000000);
}

Test(config_options, values_out_of_range_name_the_range)
{
    expect_refused("--lanes 0", "--lanes 0: must be a whole number from 1 to 8");
    expect_refused("--lanes 9", "from 1 to 8");
    expect_refused("--lane-rooms 4097", "from 1 to 4096");
    expect_refused("--clients 65", "from 1 to 64");
    expect_refused("--rooms 65537", "from 1 to 65536");
    expect_refused("--fence-ms 9", "from 10 to 60000 (milliseconds)");
    expect_refused("--lane-rate 1000001", "from 0 to 1000000 (MB/s)");
    expect_refused("--lane-window 4095", "from 4K to 1G");
    expect_refused("--lane-window 2G", "from 4K to 1G");
    expect_refused("--cpu 4096", "a processor from 0 to 4095");
}

Test(config_options, what_is_no_number_is_refused)
{
    static const char *const bad[] = {
        "--lanes -1",
        "--lanes +1",
        "--lanes 1.5",
        "--lanes 0x1",
        "--lanes 1K",
        "--lane-window 4MB",
        "--lane-window M",
        "--lane-window 18014398509481985G", /* 2^54 + 1: would wrap to 1G */
        "--lanes 18446744073709551620",     /* 2^64 + 4: would wrap to 4 */
        "--lane-window 99999999999999999999",
        "--bootstrap-ms 18446744073709551617",
        "--cpu -1",
        "--cpu 1x",
        "--lane-rate 18446744073709551615"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        expect_refused(bad[i], "must be");
    }
}

Test(config_options, words_are_those_of_the_list)
{
    expect_refused("--spin maybe", "must be auto|on|off");
    expect_refused("--tcp-engine io_uring", "must be auto|uring|sockets");
    expect_refused("--tcp-placement Checked", "must be checked|posted");
    expect_refused("--transport rdma", "must be tcp|verbs|local");
    expect_refused("--rdma-mtu 1500", "must be auto|256|512|1024|2048|4096");
    expect_refused("--log-level 3", "must be error|warn|info|debug");
}

/* Devices ask nobody before they write; the option says so instead of being ignored. */
Test(config_options, lanes_of_verbs_are_posted_and_give_up_in_time)
{
    cr_assert_eq(parse("--transport verbs"), 0, "%s", error);
    cr_assert_eq(config.placement, KVF_CONFIG_POSTED);
    cr_assert_eq(config.rdma_timeout, 14);
    cr_assert_eq(config.rdma_retry, 6);
    cr_assert_gt(config.rdma_stall_ms, kvf_config_retries_ms(&config));
    cr_assert_eq(parse("--transport verbs --tcp-placement posted"), 0, "%s", error);
    expect_refused("--transport verbs --tcp-placement checked", "ask nobody");
    expect_refused("--rdma-retry 7", "for ever");
    expect_refused("--rdma-timeout 0", "for ever");
    expect_refused("--transport verbs --rdma-stall-ms 1880", "must be longer");
    cr_assert_eq(parse("--transport verbs --rdma-stall-ms 1881"), 0, "%s", error);
    cr_assert_eq(parse("--transport verbs --rdma-timeout 31"), 0, "%s", error);
}

Test(config_options, an_address_of_lanes_is_ipv4_or_ipv6_or_any)
{
    uint8_t gid[16];
    static const uint8_t v4[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 7};
    static const uint8_t any[16];
    cr_assert_eq(parse("--rdma-gid 10.0.0.7"), 0);
    cr_assert_eq(kvf_config_gid(&config, gid), 0);
    cr_assert_eq(memcmp(gid, v4, sizeof(gid)), 0);
    cr_assert_eq(parse("--rdma-gid fe80::1"), 0);
    cr_assert_eq(kvf_config_gid(&config, gid), 0);
    cr_assert_eq(gid[0], 0xfe);
    cr_assert_eq(parse(""), 0);
    cr_assert_eq(kvf_config_gid(&config, gid), 0);
    cr_assert_eq(memcmp(gid, any, sizeof(gid)), 0);
    expect_refused("--rdma-gid host", "numeric IPv4 or IPv6");
    expect_refused("--rdma-gid 10.0.0.7:80", "no port");
}

Test(config_options, unknown_missing_and_surplus_words_are_refused)
{
    expect_refused("--nope", "--nope: unknown option");
    expect_refused("--lane 1", "unknown option");
    expect_refused("lanes", "takes options only");
    expect_refused("-x", "-x: unknown option");
    expect_refused("--", "unknown option");
    expect_refused("--lanes", "needs a value");
    expect_refused("--check=yes", "takes no value");
}

Test(config_options, names_are_safe_as_file_names)
{
    expect_refused("--name ..", "--name");
    expect_refused("--name a/b", "--name");
    expect_refused("--name .hidden", "--name");
    expect_refused("--name -x", "--name");
    expect_refused("--name=", "--name");
    expect_refused("--name abcdefghijklmnopqrstuvwxyz0123456789", "longer than 31 bytes");
    cr_assert_eq(parse("--name GPU_0.prefill-1"), 0, "%s", error);
}

Test(config_options, rails_are_names_with_commas_and_memory_is_an_address_or_a_node)
{
    cr_assert_eq(parse("--rdma-devices mlx5_0,rocep1s0f1 --rdma-near 3B:00.0 --rdma-rails 2"),
                 0, "%s", error);
    cr_assert_str_eq(config.rdma_devices, "mlx5_0,rocep1s0f1");
    cr_assert_str_eq(config.rdma_near, "3B:00.0");
    cr_assert_eq(config.rdma_rails, 2);
    cr_assert_eq(parse("--rdma-near node1 --sysfs /host/sys"), 0, "%s", error);
    cr_assert_str_eq(config.sysfs, "/host/sys");
    expect_refused("--rdma-devices=", "names '', which is no device");
    expect_refused("--rdma-devices mlx5_0,", "names '', which is no device");
    expect_refused("--rdma-devices mlx5_0,,mlx5_1", "must be auto, or names of devices");
    expect_refused("--rdma-devices ../mlx5_0", "names '../mlx5_0', which is no device");
    expect_refused("--rdma-devices mlx5_0,mlx5_1,mlx5_0", "names mlx5_0 twice");
    expect_refused("--rdma-devices a,b,c,d,e,f,g,h,i", "names more than 8 devices");
    expect_refused("--rdma-near gpu0",
                   "must be auto, a PCI address as in 0000:3b:00.0, or nodeN");
    expect_refused("--rdma-rails 9", "from 1 to 8");
    expect_refused("--sysfs sys", "must be an absolute path");
}

Test(config_options, addresses_that_other_hosts_reach_need_an_explicit_word)
{
    expect_refused("--listen 0.0.0.0:7000", "--insecure-listen");
    expect_refused("--listen 192.168.1.1:7000", "not authenticated");
    expect_refused("--listen [::]:7000", "--insecure-listen");
    expect_refused("--listen [fe80::1]:7000", "--insecure-listen");
    cr_assert_eq(parse("--listen 0.0.0.0:7000 --insecure-listen"), 0, "%s", error);
    cr_assert_eq(parse("--listen 127.1.2.3:7000"), 0, "%s", error);
    cr_assert_eq(parse("--listen [::1]:7000"), 0, "%s", error);
    cr_assert_eq(parse("--listen [::ffff:127.0.0.1]:7000"), 0, "%s", error);
    expect_refused("--listen [::ffff:10.0.0.1]:7000", "--insecure-listen");
}

Test(config_options, the_run_directory_comes_from_option_or_environment)
{
    cr_assert_eq(parse("--run-dir /tmp/other"), 0, "%s", error);
    cr_assert_str_eq(config.run_dir, "/tmp/other");
    unsetenv("KVFENCE_RUN_DIR");
    setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
    cr_assert_eq(parse(""), 0, "%s", error);
    cr_assert(strcmp(config.run_dir, "/run/kvfence") == 0 ||
              strcmp(config.run_dir, "/run/user/1/kvfence") == 0);
}

Test(config_options, a_path_too_long_for_a_socket_is_refused_at_the_start)
{
    char line[256];
    char dir[112];
    memset(dir, 'd', sizeof(dir));
    dir[0] = '/';
    dir[97] = '\0'; /* 97 + '/' + "gpu0" + ".sock" = 107 */
    snprintf(line, sizeof(line), "--run-dir %s", dir);
    cr_assert_eq(parse(line), 0, "%s", error);
    dir[97] = 'd';
    dir[98] = '\0';
    snprintf(line, sizeof(line), "--run-dir %s", dir);
    expect_refused(line, "a Unix socket's path takes at most 107");
}

Test(config_options, help_and_version_work_without_a_valid_rest)
{
    unsetenv("KVFENCE_RUN_DIR");
    cr_assert_eq(parse("--listen 1.2.3.4:5 --help"), 0, "%s", error);
    cr_assert(config.is_help);
    cr_assert_eq(parse("-h"), 0, "%s", error);
    cr_assert(config.is_help);
    cr_assert_eq(parse("--version"), 0, "%s", error);
    cr_assert(config.is_version);
}

/* What is printed can be given back: the printed configuration is the whole one. */
Test(config_options, the_printed_configuration_reads_back_as_itself)
{
    cr_assert_eq(parse("--lanes 3 --lane-rate 250 --lane-window 3M --cpu 5 --spin off"), 0,
                 "%s", error);
    cr_assert_eq(parse("--listen 127.0.0.1:9 --insecure-listen --grace-ms 0 --post-bytes 4100 "
                       "--rdma-devices mlx5_1,mlx5_0 --rdma-near node3 --transport verbs "
                       "--rdma-gid ::ffff:10.0.0.1 --rdma-mtu 1024 --rdma-timeout 12"),
                 0);
    struct kvf_config first = config;
    char *argv[128] = {"kvfenced"};
    int argc = 1;
    char line[KVF_CONFIG_LINE_BYTES];
    for (uint32_t i = 0; kvf_config_line(&first, i, line, sizeof(line)) != NULL; i++) {
        char *equals = strstr(line, " = ");
        cr_assert_neq(equals, NULL);
        *equals = '\0';
        if (strcmp(equals + 3, "no") == 0) {
            continue;
        }
        char word[KVF_CONFIG_LINE_BYTES + 8];
        bool is_flag = strcmp(equals + 3, "yes") == 0;
        snprintf(word, sizeof(word), is_flag ? "--%s" : "--%s=%s", line, equals + 3);
        argv[argc++] = strdup(word);
    }
    cr_assert_eq(kvf_config_parse(argc, argv, &config, error, sizeof(error)), 0, "%s", error);
    cr_assert_eq(memcmp(&first, &config, sizeof(config)), 0);
    while (--argc > 0) {
        free(argv[argc]);
    }
}

static bool has_line(const char *wanted)
{
    char line[KVF_CONFIG_LINE_BYTES];
    for (uint32_t i = 0; kvf_config_line(&config, i, line, sizeof(line)) != NULL; i++) {
        if (strcmp(line, wanted) == 0) {
            return true;
        }
    }
    return false;
}

Test(config_options, the_printed_configuration_is_the_effective_one)
{
    cr_assert_eq(parse("--lane-rate 10 --room-window 2M"), 0);
    cr_assert(has_line("lane-window = 1250000   (asked 4M)"));
    cr_assert(has_line("room-window = 1250000   (asked 2M)"));
    cr_assert(has_line("lane-rate = 10"));
    cr_assert_eq(parse("--room-window 8M"), 0);
    cr_assert(has_line("lane-window = 4M"));
    cr_assert(has_line("room-window = 4M   (asked 8M)"));
}

Test(config_options, the_lane_window_is_held_under_a_quarter_of_the_cooperative_deadline)
{
    cr_assert_eq(parse("--lane-rate 100 --lane-window 4M"), 0);
    cr_assert_eq(kvf_config_lane_window(&config), 4u << 20); /* 42 ms of 125 */
    cr_assert_eq(parse("--lane-rate 10 --lane-window 4M --room-window 2M"), 0);
    cr_assert_eq(kvf_config_lane_window(&config), 1250000);
    cr_assert_eq(kvf_config_room_window(&config), 1250000);
    cr_assert_eq(parse("--lane-rate 1 --cooperative-ms 10 --post-bytes 64K"), 0);
    cr_assert_eq(kvf_config_lane_window(&config), 65536); /* one post must fit */
    cr_assert_eq(parse("--lane-window 256M --room-window 512M"), 0);
    cr_assert_eq(kvf_config_lane_window(&config), 256u << 20);
    cr_assert_eq(kvf_config_room_window(&config), 256u << 20);
}

#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sidecar/host/config.h"
#include "sidecar/host/numa.h"

static struct kvf_config config;
static struct kvf_config_origins origins;
static char error[KVF_CONFIG_ERROR_BYTES];
static char path[64];

static void write_file(const void *bytes, size_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, bytes, count), (ssize_t)count);
    close(fd);
}

static void setup(void)
{
    setenv("KVFENCE_RUN_DIR", "/tmp/kvf-test", 1);
    snprintf(path, sizeof(path), "/tmp/kvf-conf.XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
}

static void teardown(void)
{
    unlink(path);
}
TestSuite(config_file, .init = setup, .fini = teardown);

static int read_with(const char *option, const char *value)
{
    char *argv[] = {
        "kvfenced", "--config", path, (char *)(uintptr_t)option, (char *)(uintptr_t)value,
        NULL};
    error[0] = '\0';
    return kvf_config_read(option == NULL  ? 3
                           : value == NULL ? 4
                                           : 5,
                           argv, &config, &origins, error, sizeof(error));
}

static int read_text(const char *text)
{
    write_file(text, strlen(text));
    return read_with(NULL, NULL);
}

/* Refused with these words behind "PATH:LINE: ", and the output untouched. */
static void expect_line(const char *text, size_t bytes, uint32_t line, const char *sentence)
{
    char wanted[512];
    struct kvf_config before;
    memset(&config, 0x5a, sizeof(config));
    before = config;
    write_file(text, bytes);
    cr_assert_eq(read_with(NULL, NULL), -EINVAL, "accepted: %s", text);
    snprintf(wanted, sizeof(wanted), "%s:%u: %s", path, line, sentence);
    cr_assert_neq(strstr(error, wanted), NULL, "\"%s\" is not in \"%s\"", wanted, error);
    cr_assert_eq(memcmp(&before, &config, sizeof(config)), 0, "output touched");
}

static void expect_refused(const char *text, uint32_t line, const char *sentence)
{
    expect_line(text, strlen(text), line, sentence);
}

Test(config_file, keys_are_the_names_of_the_options)
{
    cr_assert_eq(read_text("# a comment\n"
                           "\n"
                           "name = decode-1\n"
                           "  lanes=4   # behind white space a comment too\n"
                           "\tlane-window\t=\t2M\n"
                           "listen = 10.0.0.7:7001\n"
                           "insecure-listen = yes\n"
                           "cpu = none"),
                 0, "%s", error);
    cr_assert_str_eq(config.name, "decode-1");
    cr_assert_eq(config.lanes, 4);
    cr_assert_eq(config.lane_window_bytes, 2u << 20);
    cr_assert(config.is_listen_insecure);
    cr_assert_eq(config.cpu, KVF_CPU_NONE);
    cr_assert_str_eq(config.config_file, path);
}

Test(config_file, the_command_line_wins_over_the_file)
{
    write_file("lanes = 4\nlog-level = warn\n", 27);
    cr_assert_eq(read_with("--lanes", "2"), 0, "%s", error);
    cr_assert_eq(config.lanes, 2);
    cr_assert_eq(config.log_level, 1);
    cr_assert_eq(read_with("--lanes=3", NULL), 0, "%s", error);
    cr_assert_eq(config.lanes, 3);
    const char *open_file = "listen = 0.0.0.0:7000\ninsecure-listen = yes\n";
    write_file(open_file, strlen(open_file));
    cr_assert_eq(read_with(NULL, NULL), 0, "%s", error);
    cr_assert_eq(read_with("--insecure-listen=no", NULL), -EINVAL);
    cr_assert_neq(strstr(error, "not authenticated"), NULL, "%s", error);
}

Test(config_file, lines_of_other_systems_and_the_mark_before_utf8_are_read)
{
    cr_assert_eq(read_text("\xef\xbb\xbfname = x\r\nlanes = 2\r\n\r\n"), 0, "%s", error);
    cr_assert_str_eq(config.name, "x");
    cr_assert_eq(config.lanes, 2);
    cr_assert_eq(read_text(""), 0, "%s", error);
    cr_assert_eq(read_text("\n\n#\n   \t\n"), 0, "%s", error);
    cr_assert_eq(read_text("run-dir = /tmp/a#b\n"), 0, "%s", error);
    cr_assert_str_eq(config.run_dir, "/tmp/a#b");
}

Test(config_file, a_bad_line_says_its_number_what_is_wrong_and_what_is_allowed)
{
    expect_refused("lanes = 4\nlanes = 4\n", 2,
                   "duplicate-key: 'lanes' stands in line 1 already");
    expect_refused("\n\nlanes = 99\n", 3,
                   "bad-value: lanes 99: must be a whole number from 1 to 8");
    expect_refused("spin = often", 1, "bad-value: spin often: must be auto|on|off");
    expect_refused("insecure-listen = 1\n", 1,
                   "bad-value: insecure-listen 1: must be yes or no");
    expect_refused("lanes =\n", 1, "no-value: 'lanes' needs a value, N");
    expect_refused("lanes = # four\n", 1, "no-value:");
    expect_refused("lanes 4\n", 1, "no-key: must be \"name = value\"");
    expect_refused("= 4\n", 1, "no-key:");
    expect_refused("[section]\n", 1, "no-key:");
    expect_refused("name = \"gpu0\"\n", 1, "bad-value: name '\"gpu0\"'");
}

Test(config_file, an_unknown_key_is_offered_the_nearest_name)
{
    expect_refused("lanse = 4\n", 1,
                   "unknown-key: 'lanse' is no option, the nearest one is 'lanes'");
    expect_refused("--lanes = 4\n", 1,
                   "unknown-key: '--lanes' is no option, the nearest one is 'lanes'");
    expect_refused("lane_rate = 4\n", 1,
                   "unknown-key: 'lane_rate' is no option, the nearest one is 'lane-rate'");
    expect_refused("Transport = tcp\n", 1,
                   "unknown-key: 'Transport' is no option, the nearest one is 'transport'");
    expect_refused(
        "cooperative-msec = 4\n", 1,
        "unknown-key: 'cooperative-msec' is no option, the nearest one is 'cooperative-ms'");
    expect_refused("zzzzzzzzzzzz = 4\n", 1,
                   "unknown-key: 'zzzzzzzzzzzz' is no option; kvfenced");
    char *argv[] = {"kvfenced", "--lanse=4", NULL};
    cr_assert_eq(kvf_config_parse(2, argv, &config, error, sizeof(error)), -EINVAL);
    cr_assert_neq(strstr(error, "did you mean --lanes?"), NULL, "%s", error);
}

Test(config_file, what_is_done_instead_of_serving_is_for_the_command_line)
{
    static const char *const keys[] = {"check", "print-config", "version", "help", "config"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s = yes\n", keys[i]);
        expect_refused(text, 1, "not-in-a-file:");
    }
}

Test(config_file, bytes_that_are_no_text_are_refused_by_line)
{
    expect_line("lanes = 4\nname = a\0b\n", 21, 2, "nul-byte:");
    expect_line("n\0a\0m\0e\0", 8, 1, "nul-byte:"); /* UTF-16 */
    expect_refused("name = a\x1b[31m\n", 1,
                   "control-byte: holds a control character of value 27");
    expect_refused("lanes = 4\rname = x\n", 1, "control-byte:");
    char text[2048];
    memset(text, 'x', sizeof(text));
    memcpy(text, "name = ", 7);
    text[sizeof(text) - 1] = '\n';
    expect_line(text, sizeof(text), 1, "line-too-long: has 2047 bytes; must be at most 512");
    text[512] = '\n'; /* just fits, and is judged as what it is; then a line that does not */
    expect_line(text, sizeof(text), 1, "bad-value: name: longer than 31 bytes");
    expect_line(text, sizeof(text), 2, "line-too-long:");
}

Test(config_file, every_bad_line_is_named_and_nothing_of_the_file_is_used)
{
    expect_refused("lanes = 0\nlanse = 1\nname = ok\nspin = x\n", 1, "bad-value:");
    cr_assert_neq(strstr(error, ":2: unknown-key:"), NULL, "%s", error);
    cr_assert_neq(strstr(error, ":4: bad-value:"), NULL, "%s", error);
    cr_assert_eq(strstr(error, ":3:"), NULL, "%s", error);
    char text[4096] = "";
    for (int i = 0; i < 400; i++) {
        strcat(text, "x = 1\n");
    }
    expect_refused(text, KVF_CONFIG_FAULTS_MAX, "unknown-key:");
    cr_assert_neq(strstr(error, "and 384 more lines like these"), NULL, "%s", error);
    cr_assert_lt(strlen(error), sizeof(error) - 1);
}

Test(config_file, values_that_do_not_go_together_are_found_in_their_line)
{
    expect_refused("lanes = 2\nlisten = 192.168.0.1:7000\n", 2,
                   "bad-value: listen 192.168.0.1");
    expect_refused("transport = local\nlocal = off\n", 2, "bad-value: local off");
    expect_refused("\nname = a/b\n", 2, "bad-value: name 'a/b'");
    cr_assert_eq(read_with("--name", "../x"), -EINVAL);
    cr_assert_eq(strncmp(error, "--name '../x'", 13), 0,
                 "an option's fault is not the file's: %s", error);
}

static void expect_no_file(const char *sentence)
{
    char wanted[512];
    cr_assert_eq(read_with(NULL, NULL), -EINVAL);
    snprintf(wanted, sizeof(wanted), "%s: %s", path, sentence);
    cr_assert_eq(strncmp(error, wanted, strlen(wanted)), 0, "\"%s\" is not \"%s\"", error,
                 wanted);
}

Test(config_file, what_is_no_readable_file_is_refused_and_never_waited_for, .timeout = 20)
{
    char *big = calloc(1, 65538);
    memset(big, '\n', 65538);
    write_file(big, 65536);
    cr_assert_eq(read_with(NULL, NULL), 0, "%s", error);
    write_file(big, 65537);
    expect_no_file("file-too-large: must be at most 65536 bytes");
    free(big);
    unlink(path);
    expect_no_file("unreadable: No such file or directory");
    cr_assert_eq(mkdir(path, 0700), 0);
    expect_no_file("not-a-file: is a directory");
    cr_assert_eq(rmdir(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_no_file("not-a-file: is something else"); /* nobody writes into it */
    unlink(path);
    write_file("lanes = 2\n", 10);
    if (geteuid() == 0) { /* root reads everything */
        cr_assert_eq(seteuid(65534), 0);
    }
    cr_assert_eq(access(path, F_OK), 0);
    chmod(path, 0);
    expect_no_file("unreadable: Permission denied");
    if (getuid() == 0) {
        cr_assert_eq(seteuid(0), 0);
    }
}

static char *printed(void)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    kvf_config_print(&config, &origins, out);
    fclose(out);
    return text;
}

Test(config_file, the_printed_configuration_says_where_each_value_came_from)
{
    write_file("\nlanes = 4\nlane-rate = 10\n", 26);
    cr_assert_eq(read_with("--spin", "off"), 0, "%s", error);
    char *text = printed();
    char wanted[128];
    snprintf(wanted, sizeof(wanted), "\nlanes = 4                                # %s:2\n",
             path);
    cr_assert_neq(strstr(text, wanted), NULL, "%s", text);
    cr_assert_neq(strstr(text, "\nspin = off                               # command line\n"),
                  NULL, "%s", text);
    cr_assert_neq(strstr(text, "# $KVFENCE_RUN_DIR\n"), NULL, "%s", text);
    cr_assert_neq(
        strstr(text, "\nlane-window = 1250000                    # default, asked 4M\n"), NULL,
        "%s", text);
    free(text);
}

Test(config_file, the_printed_configuration_is_a_file_that_reads_back_as_itself)
{
    const char *text = "lanes = 3\nlane-rate = 10\ntransport = verbs\nrdma-near = node1\n"
                       "listen = [::1]:7\ncpu = 3\nrun-dir = /tmp/kvf x\n";
    cr_assert_eq(read_text(text), 0, "%s", error);
    char *first = printed();
    write_file(first, strlen(first));
    cr_assert_eq(read_with(NULL, NULL), 0, "%s", error);
    char *second = printed();
    for (char *a = first, *b = second; *a != '\0' || *b != '\0';) {
        size_t a_bytes = strcspn(a, "#\n");
        size_t b_bytes = strcspn(b, "#\n");
        cr_assert(a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0, "%.40s, %.40s", a, b);
        a += strcspn(a, "\n") + 1;
        b += strcspn(b, "\n") + 1;
    }
    free(first);
    free(second);
}

/* What kvfence-ctl makes of its command line: a request that makes sense, or one sentence that says what is
 * allowed; and a daemon that is not there. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/options.h"
#include "client/ctl/run.h"
#include "ring/room_word.h"

#define WORDS_MAX 12

static char *said;
static size_t said_bytes;

/* The words of one line, apart at spaces. */
static int split(char *line, char **ret_argv)
{
    int argc = 0;
    ret_argv[argc++] = "kvfence-ctl";
    for (char *word = strtok(line, " "); word != NULL; word = strtok(NULL, " ")) {
        cr_assert(argc < WORDS_MAX);
        ret_argv[argc++] = word;
    }
    ret_argv[argc] = NULL;
    return argc;
}

static int parse(const char *text, struct kvf_ctl_options *ret_options)
{
    char line[256];
    char *argv[WORDS_MAX + 1];
    snprintf(line, sizeof line, "%s", text);
    int argc = split(line, argv);
    free(said);
    FILE *err = open_memstream(&said, &said_bytes);
    int rc = kvf_ctl_parse(argc, argv, err, err, ret_options);
    fclose(err);
    return rc;
}

static void expect_wrong(const char *line, const char *sentence)
{
    struct kvf_ctl_options o;
    cr_expect_eq(parse(line, &o), -1, "%s: taken", line);
    cr_expect(strstr(said, sentence) != NULL, "%s: says \"%s\" and not \"%s\"", line, said,
              sentence);
    cr_expect_eq(strchr(said, '\n') - said, (long)said_bytes - 1, "%s: one line", line);
}

static struct kvf_ctl_options expect_right(const char *line)
{
    struct kvf_ctl_options o;
    cr_assert_eq(parse(line, &o), 0, "%s: %s", line, said);
    return o;
}

Test(ctl_options, commands_become_requests)
{
    setenv("KVFENCE_RUN_DIR", "/tmp/x", 1);
    cr_expect_eq(expect_right("status").req.command, KVF_OPERATE_STATUS);
    cr_expect_str_eq(expect_right("status").socket_path, "/tmp/x/gpu0.sock");
    cr_expect_str_eq(expect_right("--run-dir /tmp/y --name g peers").socket_path,
                     "/tmp/y/g.sock");
    cr_expect_eq(expect_right("peers --json").is_json, true);
    cr_expect_eq(expect_right("undrain").req.command, KVF_OPERATE_UNDRAIN);
    struct kvf_ctl_options o = expect_right("drain --wait --timeout 86400");
    cr_expect_eq(o.req.command, KVF_OPERATE_DRAIN);
    cr_expect_eq(o.timeout_s, 86400);
    cr_expect(o.is_waiting);
    o = expect_right("peer down 10.0.0.7:7000");
    cr_expect_eq(o.req.command, KVF_OPERATE_PEER_DOWN);
    cr_expect_eq(o.req.addr.family, 4);
    cr_expect_eq(o.req.addr.port, 7000);
    cr_expect_eq(o.req.peer_id, 0);
    o = expect_right("peer up 4ef3a1b2c3000000");
    cr_expect_eq(o.req.command, KVF_OPERATE_PEER_UP);
    cr_expect_eq(o.req.addr.family, 0);
    cr_expect_eq(o.req.peer_id, UINT64_C(0x4ef3a1b2c3000000));
    cr_expect_eq(expect_right("rooms --quarantined").req.phases, 1u << KVF_PHASE_QUARANTINED);
    cr_expect_eq(expect_right("rooms").req.phases, UINT32_MAX);
    cr_expect_eq(expect_right("log-level debug").req.level, 3);
    o = expect_right("release-quarantine 2 9 1099511627775 --yes-pages-may-be-overwritten");
    cr_expect_eq(o.req.client, 2);
    cr_expect_eq(o.req.slot, 9);
    cr_expect_eq(o.req.generation, KVF_GENERATION_MAX);
    cr_expect_eq(o.req.word, KVF_OPERATE_WORD);
}

Test(ctl_options, what_makes_no_sense_is_refused_by_one_sentence)
{
    setenv("KVFENCE_RUN_DIR", "/tmp/x", 1);
    expect_wrong("", "needs a command");
    expect_wrong("stop", "is no command of it: status, drain");
    expect_wrong("--frob status", "--frob is no option");
    expect_wrong("status --run-dir", "--run-dir needs a value");
    expect_wrong("status now", "takes 0 words");
    expect_wrong("--name ../x status", "a daemon's name has 1 to 31 bytes");
    expect_wrong("status --wait", "belong to drain");
    expect_wrong("drain --timeout 3", "belongs to drain --wait");
    expect_wrong("drain --wait --timeout 0", "1 to 86400 seconds");
    expect_wrong("drain --wait --timeout -3", "1 to 86400 seconds");
    expect_wrong("drain --wait --timeout 86401", "1 to 86400 seconds");
    expect_wrong("peers --quarantined", "belong to rooms");
    expect_wrong("rooms --quarantined --undrained", "exclude each other");
    expect_wrong("peer 10.0.0.7:7000", "needs down or up");
    expect_wrong("peer down 10.0.0.7", "is no peer");
    expect_wrong("peer down 0000000000000000", "no peer's id");
    expect_wrong("log-level loud", "one of error, warn, info and debug");
    expect_wrong("release-quarantine 0 1 2", "--yes-pages-may-be-overwritten");
    expect_wrong("release-quarantine 0 1 --yes-pages-may-be-overwritten", "needs CLIENT SLOT");
    expect_wrong("release-quarantine 0 x 2 --yes-pages-may-be-overwritten",
                 "needs CLIENT SLOT");
    expect_wrong("release-quarantine 0 1 1099511627776 --yes-pages-may-be-overwritten",
                 "needs CLIENT SLOT");
    expect_wrong("rooms --yes-pages-may-be-overwritten", "belongs to release-quarantine");
    setenv(
        "KVFENCE_RUN_DIR",
        "/tmp/a/very/long/name/of/a/directory/that/leaves/no/place/for/the/name/of/a/socket/in/"
        "the/address/and/more",
        1);
    expect_wrong("status", "longer than 107 bytes");
}

Test(ctl_options, help_and_version_are_all_that_is_said)
{
    struct kvf_ctl_options o;
    cr_expect_eq(parse("--help", &o), 1);
    cr_expect(strstr(said, "exit status:") != NULL);
    for (const char *line = said; *line != '\0'; line += strcspn(line, "\n") + 1) {
        cr_expect_leq(strcspn(line, "\n"), 84, "%.60s", line);
    }
    cr_expect_eq(parse("--version", &o), 1);
    cr_expect_eq(strstr(said, "kvfence-ctl " KVF_VERSION "\nlayout "), said, "%s", said);
}

Test(ctl_options, a_daemon_that_is_not_there_is_no_answer)
{
    char *argv[] = {"kvfence-ctl", "--run-dir", "/tmp/no-such-run-dir", "status", NULL};
    FILE *err = open_memstream(&said, &said_bytes);
    cr_expect_eq(kvf_ctl_run(4, argv, err, err), KVF_CTL_EXIT_NO_ANSWER);
    fclose(err);
    cr_expect(strstr(said, "no daemon serves there") != NULL, "%s", said);
}

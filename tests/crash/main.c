/* Wiring: options, then one case of the harness. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/crash/crash.h"

#define KILLS_RECEIVE 700u
#define KILLS_LEDGER 50u
#define ARGS_OF_DAEMON 24u

static struct crash_options options;

/* ---- options --------------------------------------------------------------------------------------- */

static const char help[] =
    "usage: kvfence-crash receive|ledger [OPTION...]\n"
    "  receive   kills the sink's worker in mid-receive; no byte may change once it was "
    "reaped\n"
    "  ledger    kills workers, supervisors and both; no lent page may be idle before the "
    "proof\n"
    "\n"
    "  --kills N             receive: 700, ledger: 50\n"
    "  --seed S              moments and modes follow it; 1\n"
    "  --proof reaped|signal receive: what is taken for the proof. signal is the control: "
    "kill()\n"
    "                        returned. It prints how often bytes still changed, and fails "
    "nothing\n"
    "  --inject BUG          plants a bug into this program's own view, which it must report "
    "then:\n"
    "                        late-byte (receive), drained-at-once (ledger)\n"
    "  --daemon-option NAME=VALUE  one more option for every daemon; up to 12\n"
    "  --json                one JSON object on standard output, all else on standard error\n"
    "  --verbose             a line per kill\n"
    "\n"
    "KVFENCED=PATH in the environment names another daemon than the one built beside this.\n"
    "exit status: 0 as promised (with --inject: the bug was found), 1 not, 2 usage, 77 "
    "skipped\n";

static int refuse(const char *name, const char *value, const char *allowed)
{
    fprintf(stderr, "kvfence-crash: %s %s: %s; --help says more\n", name, value, allowed);
    return 2;
}

static int parse_number(const char *name, const char *text, uint64_t min, uint64_t max,
                        uint64_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < min ||
        value > max) {
        return refuse(name, text, "is no number in its range");
    }
    *ret_value = value;
    return 0;
}

static int parse_inject(const char *text, struct crash_options *o)
{
    if (strcmp(text, "late-byte") == 0 && !o->is_ledger) {
        o->inject = CRASH_INJECT_LATE_BYTE;
        return 0;
    }
    if (strcmp(text, "drained-at-once") == 0 && o->is_ledger) {
        o->inject = CRASH_INJECT_DRAINED_AT_ONCE;
        return 0;
    }
    return refuse("--inject", text, "receive has late-byte, ledger has drained-at-once");
}

static int parse_one(int option, const char *text, struct crash_options *o)
{
    uint64_t value = 0;
    int rc;
    switch (option) {
    case 'k':
        rc = parse_number("--kills", text, 1, CRASH_KILLS_MAX, &value);
        o->kills = rc == 0 ? (uint32_t)value : o->kills;
        return rc;
    case 's':
        return parse_number("--seed", text, 0, UINT64_MAX, &o->seed);
    case 'p':
        if (o->is_ledger || (strcmp(text, "reaped") != 0 && strcmp(text, "signal") != 0)) {
            return refuse("--proof", text, "is reaped or signal, and of receive alone");
        }
        o->proof = strcmp(text, "signal") == 0 ? CRASH_PROOF_SIGNAL : CRASH_PROOF_REAPED;
        return 0;
    case 'i':
        return parse_inject(text, o);
    case 'd':
        if (strchr(text, '=') == NULL || o->daemon_option_count == CRASH_DAEMON_OPTIONS_MAX) {
            return refuse("--daemon-option", text, "is NAME=VALUE, twelve of them at most");
        }
        o->daemon_options[o->daemon_option_count++] = text;
        return 0;
    case 'j':
        o->json = stdout;
        return 0;
    case 'v':
        o->verbose = stderr;
        return 0;
    case 'h':
        fputs(help, stdout);
        return 1;
    default:
        fprintf(stderr, "kvfence-crash: unknown option or missing value; --help says more\n");
        return 2;
    }
}

int crash_options_parse(int argc, char **argv, struct crash_options *ret_options)
{
    static const struct option known[] = {{"kills", required_argument, NULL, 'k'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"proof", required_argument, NULL, 'p'},
                                          {"inject", required_argument, NULL, 'i'},
                                          {"daemon-option", required_argument, NULL, 'd'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"verbose", no_argument, NULL, 'v'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct crash_options o = {.seed = 1};
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) {
        fputs(help, stdout);
        return 1;
    }
    if (strcmp(what, "receive") != 0 && strcmp(what, "ledger") != 0) {
        return refuse("what to do", what[0] != '\0' ? what : "is missing",
                      "it is receive or ledger");
    }
    o.is_ledger = strcmp(what, "ledger") == 0;
    o.kills = o.is_ledger ? KILLS_LEDGER : KILLS_RECEIVE;
    opterr = 0;
    optind = 2;
    int option;
    while ((option = getopt_long(argc, argv, "+h", known, NULL)) != -1) {
        int rc = parse_one(option, optarg, &o);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind != argc) {
        return refuse("what is", argv[optind], "there is nothing to name here");
    }
    *ret_options = o;
    return 0;
}

/* ---- what both use ----------------------------------------------------------------------------------- */

struct daemon *crash_daemon_start(const struct crash_options *o, const char *name,
                                  const char *const *own)
{
    static char texts[CRASH_DAEMON_OPTIONS_MAX][128];
    const char *a[ARGS_OF_DAEMON + 1] = {NULL};
    uint32_t n = 0;
    for (; own[n] != NULL; n++) {
        CHECK(n + CRASH_DAEMON_OPTIONS_MAX < ARGS_OF_DAEMON, "too many options of %s", name);
        a[n] = own[n];
    }
    for (uint32_t i = 0; i < o->daemon_option_count; i++) {
        snprintf(texts[i], sizeof texts[i], "--%s", o->daemon_options[i]);
        a[n++] = texts[i];
    }
    /* The first NULL ends the list. */
    return daemon_start(name, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                        a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20],
                        a[21], a[22], a[23], NULL);
}

int crash_pidfd(pid_t pid)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    CHECK(pidfd >= 0, "pidfd_open(%d): %s", (int)pid, strerror(errno));
    return pidfd;
}

bool crash_has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

void crash_sleep_exactly(void)
{
    prctl(PR_SET_TIMERSLACK, 1);
}

struct crash_quantiles crash_quantiles_of(uint64_t *values, size_t n)
{
    struct crash_quantiles q = {.count = n,
                                .median = quantile(values, n, 500),
                                .p99 = quantile(values, n, 990),
                                .max = quantile(values, n, 1000)};
    return q;
}

void crash_json_quantiles(FILE *out, const char *name, const struct crash_quantiles *q)
{
    fprintf(out, "\"%s\": {\"count\": %llu, \"median\": %llu, \"p99\": %llu, \"max\": %llu}",
            name, (unsigned long long)q->count, (unsigned long long)q->median,
            (unsigned long long)q->p99, (unsigned long long)q->max);
}

/* ---- main ---------------------------------------------------------------------------------------------- */

static void run_receive(void)
{
    crash_receive(&options);
}

static void run_ledger(void)
{
    crash_ledger(&options);
}

/* The harness speaks on standard output, which belongs to the JSON if that is wanted. */
static bool move_output(void)
{
    int out = dup(STDOUT_FILENO);
    options.json = out >= 0 ? fdopen(out, "w") : NULL;
    return options.json != NULL && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

int main(int argc, char **argv)
{
    int rc = crash_options_parse(argc, argv, &options);
    if (rc != 0) {
        return rc == 1 ? 0 : 2;
    }
    if (options.json != NULL && !move_output()) {
        fprintf(stderr, "kvfence-crash: no descriptor for the JSON: %s\n", strerror(errno));
        return 1;
    }
    /* A tenth of a second per kill is usual; a loaded machine may take ten times that. */
    const struct test_case cases[] = {
        {options.is_ledger ? "no_lent_page_reads_idle_before_the_proof"
                           : "no_byte_changes_after_its_worker_was_reaped",
         options.is_ledger ? run_ledger : run_receive, 120u + 2u * options.kills},
        {NULL, NULL, 0}};
    return test_main(1, argv, cases, NULL);
}

/* kvfence-faults: see README.md of this folder. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/faults.h"

#define EXIT_KEPT 0
#define EXIT_VIOLATED 1
#define EXIT_USAGE 2
#define EXIT_NO_START 3
#define QUICK_PROBE_MS 500u
#define ROUND_LIMIT_S 20u
#define CASE_EXTRA_S 90u
#define JOBS_MAX 8u

struct settings settings = {.times = 20,
                            .jobs = 1,
                            .shares = {10, 50, 90},
                            .share_count = 3,
                            .probe_ms = 5000,
                            .seed = 1,
                            .sink_slots = SINK_SLOTS_MAX,
                            .patience = 1};

static const struct fault_case *chosen[CASES_MAX];
static uint32_t chosen_count;
static struct case_result *results; /* shared with the processes of the cases */
static uint32_t current;
static int quiet_fd = -1; /* owned: what would have been progress; -1: it is shown */

static const char help_text[] =
    "usage: kvfence-faults [--cases A,B,...] [--times N] [--at P,P,...] [options]\n"
    "\n"
    "Strikes faults into real daemons and engines while bytes are under way, and checks what "
    "must\n"
    "hold: every affected room drained within its bound; no byte of a page changes after its "
    "room\n"
    "was drained; rooms of others end in success with right bytes; new rooms work within a "
    "second\n"
    "of a daemon's ready line; the engines that live go on and are never started again.\n"
    "\n"
    "  --cases LIST          which; --list shows all. Default: all\n"
    "  --times N             how often each, at each share. Default 20\n"
    "  --at LIST             shares of the bytes, in percent. Default 10,50,90\n"
    "  --quick               once at 50 %, pages watched for 0.5 s, two cases at a time\n"
    "  --placement WORD      posted (default): as an RDMA NIC places; or checked\n"
    "  --transport WORD      tcp (default); or verbs, in the guest of scripts/rdma-guest\n"
    "  --jobs N              cases at a time; they mostly wait. Default 1\n"
    "  --probe-ms MS         how long pages are watched after drained. Default 5000\n"
    "  --inject drained-at-once   engines take the fault for the proof: must end with 1\n"
    "  --daemon-option NAME=VALUE   one more option for every daemon, at most 4\n"
    "  --kvfenced PATH       the daemon to start\n"
    "  --seed S              of the proxy. Default 1\n"
    "  --json                one object instead of the table\n"
    "  --quiet               no progress on standard error\n"
    "  --list                the cases, and what is done in each\n"
    "  --help (-h)\n"
    "\n"
    "exit status: 0 all kept, 1 a promise was broken or a case failed, 2 usage, 3 could not "
    "start\n";

static int refuse(const char *option, const char *value, const char *why)
{
    fprintf(stderr, "kvfence-faults: --%s %s: %s\n", option, value, why);
    return EXIT_USAGE;
}

/* ---- options ---------------------------------------------------------------------------------------- */

static bool read_number(const char *text, uint64_t max, uint64_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || errno != 0 || *end != '\0' || value > max) {
        return false;
    }
    *ret_value = value;
    return true;
}

static int take_cases(char *list)
{
    char *word;
    chosen_count = 0;
    while ((word = strsep(&list, ",")) != NULL) {
        uint32_t i = 0;
        while (i < fault_case_count && strcmp(fault_cases[i].name, word) != 0) {
            i++;
        }
        if (i == fault_case_count || chosen_count == CASES_MAX) {
            return refuse("cases", word, "is none of them; --list shows all");
        }
        chosen[chosen_count++] = &fault_cases[i];
    }
    return 0;
}

static void choose_all(void)
{
    for (uint32_t i = 0; i < fault_case_count; i++) {
        if (settings.is_verbs || !fault_cases[i].wants_devices) {
            chosen[chosen_count++] = &fault_cases[i];
        }
    }
}

static int take_shares(char *list)
{
    char *word;
    settings.share_count = 0;
    while ((word = strsep(&list, ",")) != NULL) {
        uint64_t percent;
        if (!read_number(word, 95, &percent) || percent == 0 ||
            settings.share_count == SHARES_MAX) {
            return refuse("at", word, "one to three whole numbers, 1 to 95");
        }
        settings.shares[settings.share_count++] = (uint32_t)percent;
    }
    return 0;
}

static int take_daemon_option(const char *text)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || equals - text > 40 || text[0] == '-') {
        return refuse("daemon-option", text, "it is NAME=VALUE, for example fence-ms=500");
    }
    if (settings.daemon_option_count == DAEMON_OPTIONS_MAX) {
        return refuse("daemon-option", text, "at most 4 of them");
    }
    settings.daemon_options[settings.daemon_option_count++] = text;
    return 0;
}

static int take_placement(const char *text)
{
    settings.is_checked = strcmp(text, "checked") == 0;
    return settings.is_checked || strcmp(text, "posted") == 0
               ? 0
               : refuse("placement", text, "it is posted or checked");
}

static int take_transport(const char *text)
{
    settings.is_verbs = strcmp(text, "verbs") == 0;
    settings.patience = settings.is_verbs ? PATIENCE_VERBS : 1u;
    settings.sink_slots = settings.is_verbs ? SINK_SLOTS_VERBS : SINK_SLOTS_MAX;
    return settings.is_verbs || strcmp(text, "tcp") == 0
               ? 0
               : refuse("transport", text, "it is tcp or verbs");
}

static void list_cases(void)
{
    for (uint32_t i = 0; i < fault_case_count; i++) {
        printf("%-18s %s\n", fault_cases[i].name, fault_cases[i].what);
    }
}

static void be_quick(void)
{
    settings.is_quick = true;
    settings.times = 1;
    settings.jobs = 2;
    settings.probe_ms = QUICK_PROBE_MS;
    settings.shares[0] = 50;
    settings.share_count = 1;
}

static int take_option(int id, char *text)
{
    uint64_t number = 0;
    switch (id) {
    case 'c':
        return take_cases(text);
    case 't':
        settings.times = read_number(text, 400, &number) ? (uint32_t)number : 0;
        return settings.times != 0 ? 0 : refuse("times", text, "a whole number, 1 to 400");
    case 'J':
        settings.jobs = read_number(text, JOBS_MAX, &number) ? (uint32_t)number : 0;
        return settings.jobs != 0 ? 0 : refuse("jobs", text, "a whole number, 1 to 8");
    case 'a':
        return take_shares(text);
    case 'q':
        be_quick();
        return 0;
    case 'p':
        return take_placement(text);
    case 'T':
        return take_transport(text);
    case 'm':
        if (!read_number(text, 60000, &number) || number == 0) {
            return refuse("probe-ms", text, "a whole number, 1 to 60000");
        }
        settings.probe_ms = (uint32_t)number;
        return 0;
    case 'i':
        settings.is_drained_at_once = true;
        return strcmp(text, "drained-at-once") == 0
                   ? 0
                   : refuse("inject", text, "the only one is drained-at-once");
    case 'd':
        return take_daemon_option(text);
    case 'k':
        return setenv("KVFENCED", text, 1) == 0 ? 0 : EXIT_USAGE;
    case 's':
        return read_number(text, UINT64_MAX - 1u, &settings.seed)
                   ? 0
                   : refuse("seed", text, "a number of 64 bits");
    case 'j':
        settings.is_json = true;
        return 0;
    default:
        settings.is_quiet = true;
        return 0;
    }
}

/* 0: go on; -1: it has said what was asked for; else an exit status. */
static int parse(int argc, char **argv)
{
    static const struct option options[] = {{"cases", required_argument, NULL, 'c'},
                                            {"times", required_argument, NULL, 't'},
                                            {"jobs", required_argument, NULL, 'J'},
                                            {"at", required_argument, NULL, 'a'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"placement", required_argument, NULL, 'p'},
                                            {"transport", required_argument, NULL, 'T'},
                                            {"probe-ms", required_argument, NULL, 'm'},
                                            {"inject", required_argument, NULL, 'i'},
                                            {"daemon-option", required_argument, NULL, 'd'},
                                            {"kvfenced", required_argument, NULL, 'k'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"quiet", no_argument, NULL, 'Q'},
                                            {"list", no_argument, NULL, 'l'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int id;
    opterr = 0;
    while ((id = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (id == 'h') {
            fputs(help_text, stdout);
            return -1;
        }
        if (id == 'l') {
            list_cases();
            return -1;
        }
        if (id == '?' || id == ':') {
            fprintf(stderr, "kvfence-faults: %s %s; --help lists its options\n",
                    argv[optind - 1], id == ':' ? "needs a value" : "is no option of it");
            return EXIT_USAGE;
        }
        int rc = take_option(id, optarg);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "kvfence-faults: '%s': only options are taken; --help lists them\n",
                argv[optind]);
        return EXIT_USAGE;
    }
    return 0;
}

/* ---- cases ------------------------------------------------------------------------------------------ */

/* What a case said comes out after all if it failed. */
static void show_progress(off_t from)
{
    char text[4096];
    ssize_t n;
    fflush(stdout);
    while (quiet_fd >= 0 && (n = pread(quiet_fd, text, sizeof text, from)) > 0) {
        fwrite(text, 1, (size_t)n, stderr);
        from += n;
    }
}

static void run_current(void)
{
    struct scene scene;
    scene_start(&scene, chosen[current], &results[current]);
    rounds_run(&scene);
    scene_stop(&scene);
}

static const struct test_role roles[] = {{"engine", role_engine}, {NULL, NULL}};

/* Each in a process of its own, by the harness, which cleans up after it and shows its daemons' logs if it
 * fails. True if it passed. */
static void run_case(uint32_t i)
{
    char program[] = "kvfence-faults";
    char *argv[] = {program, NULL};
    uint32_t rounds = settings.times * settings.share_count * settings.patience;
    const struct test_case cases[] = {
        {chosen[i]->name, run_current,
         rounds * ROUND_LIMIT_S + settings.patience * CASE_EXTRA_S},
        {NULL, NULL, 0}};
    uint64_t start_ns = now_ns();
    off_t said = quiet_fd >= 0 ? lseek(quiet_fd, 0, SEEK_END) : 0;
    current = i;
    results[i].is_passed = test_main(1, argv, cases, roles) == 0;
    if (!results[i].is_passed) {
        show_progress(said);
    }
    results[i].seconds = (double)(now_ns() - start_ns) / 1e9;
    if (!results[i].is_passed && results[i].violation[0] == '\0' && results[i].has_started) {
        snprintf(results[i].violation, sizeof results[i].violation,
                 "the case failed; standard error says where, and what its daemons said");
    }
}

static void start_job(uint32_t i)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        run_case(i);
    } else if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() == parent) {
            run_case(i);
        }
        fflush(stdout);
        _exit(0);
    }
}

/* Results come back in shared memory. A case that could not start is the last: the others could not either. */
static int run_all(void)
{
    uint32_t running = 0;
    int status = EXIT_KEPT;
    for (uint32_t i = 0; i < chosen_count; i++) {
        if (settings.jobs == 1) {
            run_case(i);
            if (!results[i].is_passed && !results[i].has_started) {
                break;
            }
            continue;
        }
        start_job(i);
        if (++running >= settings.jobs && wait(NULL) > 0) {
            running--;
        }
    }
    while (settings.jobs > 1 && wait(NULL) > 0) {
    }
    for (uint32_t i = 0; i < chosen_count; i++) {
        if (!results[i].is_passed && !results[i].has_started) {
            return EXIT_NO_START;
        }
        status = results[i].is_passed ? status : EXIT_VIOLATED;
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && strcmp(argv[1], "--role") == 0) {
        return test_main(argc, argv, NULL, roles);
    }
    int rc = parse(argc, argv);
    if (rc != 0) {
        return rc < 0 ? EXIT_KEPT : rc;
    }
    if (chosen_count == 0) {
        choose_all();
    }
    for (uint32_t i = 0; i < chosen_count; i++) {
        if (chosen[i]->wants_devices && !settings.is_verbs) {
            return refuse("cases", chosen[i]->name, "is a case of --transport verbs");
        }
    }
    settings.jobs = settings.is_verbs ? 1 : settings.jobs; /* there is one network */
    results = mmap(NULL, CASES_MAX * sizeof *results, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    /* Standard output is the report's; the harness and the cases talk on standard error. */
    FILE *out = fdopen(dup(STDOUT_FILENO), "w");
    quiet_fd = settings.is_quiet ? memfd_create("progress", MFD_CLOEXEC) : -1;
    if (results == MAP_FAILED || out == NULL ||
        dup2(quiet_fd >= 0 ? quiet_fd : STDERR_FILENO, STDOUT_FILENO) < 0) {
        fprintf(stderr, "kvfence-faults: %s\n", strerror(errno));
        return EXIT_NO_START;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    int status = run_all();
    if (settings.is_json) {
        report_json(out, chosen, results, chosen_count, status);
    } else {
        report_table(out, chosen, results, chosen_count);
    }
    if (fclose(out) != 0) {
        perror("kvfence-faults: standard output");
        return EXIT_NO_START;
    }
    return status;
}

#include "tests/daemon/harness.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXIT_SKIPPED 77
#define LIMIT_S_DEFAULT 30u
#define LEFTOVER_GRACE_MS 500u
#define LOG_LINES_MAX 25

static char run_dir[64];

const char *case_dir(void)
{
    return run_dir;
}

/* ---- small things --------------------------------------------------------------------------------- */

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sleep_us(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000u),
                            .tv_nsec = (long)(us % 1000000u) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

uint64_t random_next(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t random_below(uint64_t *state, uint64_t bound)
{
    return bound == 0 ? 0 : random_next(state) % bound;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t *x = a;
    const uint64_t *y = b;
    return (*x > *y) - (*x < *y);
}

uint64_t quantile(uint64_t *values, size_t n, uint32_t per_mille)
{
    if (n == 0) {
        return 0;
    }
    qsort(values, n, sizeof *values, compare_u64);
    size_t at = n * per_mille / 1000u;
    return values[at < n ? at : n - 1u];
}

bool is_sanitized_build(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

bool is_timed_build(void)
{
#if defined(__OPTIMIZE__)
    return !is_sanitized_build();
#else
    return false;
#endif
}

uint32_t own_descriptors(void)
{
    uint32_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

/* ---- what a case says ------------------------------------------------------------------------------- */

void test_fail(const char *file, int line, const char *condition, const char *format, ...)
{
    const char *name = strrchr(file, '/');
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("     FAILED %s:%d: %s\n            not so: %s\n", name != NULL ? name + 1 : file,
           line, text, condition);
    fflush(stdout);
    _exit(1);
}

void test_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("     skipped: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
    _exit(EXIT_SKIPPED);
}

void test_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("     ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
}

/* ---- what a case leaves ------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_run_dir(void)
{
    if (run_dir[0] != '\0') {
        nftw(run_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
        run_dir[0] = '\0';
    }
}

static void show_log(const char *path, const char *name)
{
    FILE *log = fopen(path, "re");
    char lines[LOG_LINES_MAX][256];
    uint32_t count = 0;
    if (log == NULL) {
        return;
    }
    while (fgets(lines[count % LOG_LINES_MAX], sizeof lines[0], log) != NULL) {
        /* All but its configuration. */
        count += strstr(lines[count % LOG_LINES_MAX], "info:   ") == NULL;
    }
    fclose(log);
    uint32_t first = count > LOG_LINES_MAX ? count - LOG_LINES_MAX : 0;
    for (uint32_t i = first; i < count; i++) {
        char *line = lines[i % LOG_LINES_MAX];
        line[strcspn(line, "\n")] = '\0';
        printf("     | %s: %s\n", name, line);
    }
}

static void show_logs(void)
{
    DIR *dir = opendir(run_dir);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        char path[sizeof run_dir + sizeof entry->d_name + 2];
        if (dot != NULL && strcmp(dot, ".log") == 0) {
            snprintf(path, sizeof path, "%s/%s", run_dir, entry->d_name);
            show_log(path, entry->d_name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

/* Children of this process: the case's own orphans come here, the runner is their subreaper. Returns the
 * first, 0 if there is none. */
static pid_t find_child(char *ret_name, size_t cap)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    pid_t found = 0;
    while (dir != NULL && found == 0 && (entry = readdir(dir)) != NULL) {
        char path[300];
        char text[512];
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') {
            continue;
        }
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file == NULL) {
            continue;
        }
        size_t got = fread(text, 1, sizeof text - 1u, file);
        fclose(file);
        text[got] = '\0';
        char *open = strchr(text, '(');
        char *close = strrchr(text, ')');
        char state = 0;
        int parent = 0;
        if (open != NULL && close != NULL &&
            sscanf(close + 1, " %c %d", &state, &parent) == 2 && parent == getpid()) {
            found = (pid_t)atoi(entry->d_name);
            *close = '\0';
            snprintf(ret_name, cap, "%s", open + 1);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return found;
}

/* Waits for the orphans of a case a moment, then ends them. True if none had to be ended. */
static bool reap_leftovers(bool is_told)
{
    uint64_t until_ns = now_ns() + LEFTOVER_GRACE_MS * UINT64_C(1000000);
    bool is_clean = true;
    for (;;) {
        int status;
        pid_t got = waitpid(-1, &status, WNOHANG);
        if (got < 0) {
            return is_clean;
        }
        if (got > 0) {
            continue;
        }
        char name[64];
        pid_t child = now_ns() > until_ns ? find_child(name, sizeof name) : 0;
        if (child != 0) {
            if (is_told) {
                printf("     FAILED left a process behind: %d (%s)\n", (int)child, name);
            }
            is_clean = false;
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
        }
        sleep_us(2000);
    }
}

/* ---- runner ------------------------------------------------------------------------------------------- */

static void run_child(const struct test_case *test)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* The worker of a killed daemon comes to the case, which wants to see it end. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGPIPE, SIG_IGN);
    uint32_t descriptors = own_descriptors();
    test->run_fn();
    CHECK_IS(own_descriptors(), descriptors, "descriptors of the engines' process at the end");
    fflush(stdout);
    _exit(0);
}

/* The exit status of a case: 0, 1 or 77. */
static int run_case(const struct test_case *test)
{
    uint32_t limit_s = test->limit_s != 0 ? test->limit_s : LIMIT_S_DEFAULT;
    limit_s *= is_sanitized_build() ? 5u : 1u;
    snprintf(run_dir, sizeof run_dir, "/tmp/kvfence-test-XXXXXX");
    if (mkdtemp(run_dir) == NULL) {
        printf("     FAILED cannot make a run directory: %s\n", strerror(errno));
        run_dir[0] = '\0';
        return 1;
    }
    uint64_t start_ns = now_ns();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        run_child(test);
    }
    int status = 0;
    int result = 1;
    for (;;) {
        pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child) {
            result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
            if (WIFSIGNALED(status)) {
                printf("     FAILED ended by signal %d (%s)\n", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
            }
            break;
        }
        if (now_ns() - start_ns > limit_s * UINT64_C(1000000000)) {
            printf("     FAILED not at its end after %u s\n", limit_s);
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            break;
        }
        sleep_us(2000);
    }
    if (!reap_leftovers(result == 0) && result == 0) {
        result = 1;
    }
    if (result != 0 && result != EXIT_SKIPPED) {
        result = 1;
        show_logs();
    }
    printf("%s %s (%.1f s)\n",
           result == 0   ? "ok  "
           : result == 1 ? "FAIL"
                         : "skip",
           test->sentence, (double)(now_ns() - start_ns) / 1e9);
    fflush(stdout);
    remove_run_dir();
    return result;
}

static void remove_at_signal(int number)
{
    /* The case dies with us (PDEATHSIG); what it left in the file system goes here. */
    remove_run_dir();
    signal(number, SIG_DFL);
    raise(number);
}

static int run_role(int argc, char **argv, const struct test_role *roles)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    snprintf(run_dir, sizeof run_dir, "%s", argv[3]);
    for (const struct test_role *role = roles; role != NULL && role->name != NULL; role++) {
        if (strcmp(role->name, argv[2]) == 0) {
            int rc = role->run_fn(argc - 4, argv + 4);
            fflush(stdout);
            return rc;
        }
    }
    printf("     FAILED no role %s\n", argv[2]);
    return 1;
}

int test_main(int argc, char **argv, const struct test_case *cases,
              const struct test_role *roles)
{
    if (argc >= 4 && strcmp(argv[1], "--role") == 0) {
        return run_role(argc, argv, roles);
    }
    const char *wanted = argc > 1 ? argv[1] : "";
    uint32_t passed = 0;
    uint32_t failed = 0;
    uint32_t skipped = 0;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGINT, remove_at_signal);
    signal(SIGTERM, remove_at_signal);
    for (const struct test_case *test = cases; test->sentence != NULL; test++) {
        if (strstr(test->sentence, wanted) == NULL) {
            continue;
        }
        int result = run_case(test);
        passed += result == 0;
        failed += result == 1;
        skipped += result == EXIT_SKIPPED;
    }
    printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped);
    if (failed != 0 || passed + skipped == 0) {
        return 1;
    }
    return passed == 0 ? EXIT_SKIPPED : 0;
}

/* Real daemons for tests: started in a run directory of their own, watched, and accounted for at the end.
 *
 * A test program is a table of cases whose names are sentences. Each case runs in a child process, so that
 * one that fails or hangs takes nothing with it: its daemons and helpers die with it (PR_SET_PDEATHSIG), the
 * runner reaps whatever is left, says so, and removes the run directory. CHECK ends the case at once. */
#ifndef KVF_TESTS_DAEMON_HARNESS_H
#define KVF_TESTS_DAEMON_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- cases --------------------------------------------------------------------------------------- */

struct test_case {
    const char *sentence;
    void (*run_fn)(void);
    uint32_t limit_s; /* 0: 30 */
};

/* A part that a test plays in a process of its own, by executing itself again. argv: what role_start
 * was given. Returns the exit status. */
struct test_role {
    const char *name;
    int (*run_fn)(int argc, char **argv);
};

/* Runs the cases, or those whose sentence contains argv[1]; or the role that argv names. 0 all passed, 1
 * one failed, 77 all were skipped. Tables end with a NULL. */
int test_main(int argc, char **argv, const struct test_case *cases,
              const struct test_role *roles);

/* Ends the case. Legal in every thread and role. */
__attribute__((format(printf, 4, 5), noreturn)) void
test_fail(const char *file, int line, const char *condition, const char *format, ...);
__attribute__((format(printf, 1, 2), noreturn)) void test_skip(const char *format, ...);
/* A line of what was measured, printed under the case. */
__attribute__((format(printf, 1, 2))) void test_say(const char *format, ...);

#define CHECK(condition, ...)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            test_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                            \
        }                                                                                      \
    } while (0)

/* Both sides are integers; says what they were. */
#define CHECK_IS(actual, wanted, what)                                                         \
    do {                                                                                       \
        long long check_actual = (long long)(actual);                                          \
        long long check_wanted = (long long)(wanted);                                          \
        if (check_actual != check_wanted) {                                                    \
            test_fail(__FILE__, __LINE__, #actual " == " #wanted, "%s: %lld and not %lld",     \
                      (what), check_actual, check_wanted);                                     \
        }                                                                                      \
    } while (0)

/* The same for what the library answers; says the code's name. */
#define CHECK_CODE(actual, wanted, what)                                                       \
    do {                                                                                       \
        int check_actual = (actual);                                                           \
        int check_wanted = (wanted);                                                           \
        if (check_actual != check_wanted) {                                                    \
            test_fail(__FILE__, __LINE__, #actual " == " #wanted, "%s: %d %s and not %d %s",   \
                      (what), check_actual, kvf_code_name_of(check_actual), check_wanted,      \
                      kvf_code_name_of(check_wanted));                                         \
        }                                                                                      \
    } while (0)

/* Waits until the condition holds, looking every millisecond. */
#define WAIT_FOR(condition, limit_ms, ...)                                                     \
    do {                                                                                       \
        uint64_t wait_until_ns = now_ns() + (uint64_t)(limit_ms)*1000000u;                     \
        while (!(condition)) {                                                                 \
            if (now_ns() > wait_until_ns) {                                                    \
                test_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                        \
            }                                                                                  \
            sleep_us(1000);                                                                    \
        }                                                                                      \
    } while (0)

uint64_t now_ns(void);
void sleep_us(uint64_t us);
uint64_t random_next(uint64_t *state);
uint64_t random_below(uint64_t *state, uint64_t bound);
/* The value below which `per_mille` of the n values lie. Sorts them. */
uint64_t quantile(uint64_t *values, size_t n, uint32_t per_mille);
/* Whether limits of time mean something in this build: optimised and without sanitizers. */
bool is_timed_build(void);
bool is_sanitized_build(void);
/* The run directory of this case. */
const char *case_dir(void);
/* Open descriptors of this process. */
uint32_t own_descriptors(void);

/* ---- daemons --------------------------------------------------------------------------------------- */

#define DAEMON_ARGS_MAX 40

struct daemon {
    char name[24];
    char listen[64];
    char socket_path[160];
    char stats_path[160];
    pid_t pid; /* the supervisor; 0: not running */
    pid_t worker;
    uint64_t epoch;
    uint32_t descriptors_at_start; /* of both processes, TCP sockets apart */
    uint32_t memfds_at_start;      /* mapped by both */
};

/* Starts kvfenced and waits for its ready line. Options follow, NULL at the end. */
struct daemon *daemon_start(const char *name, ...);
/* The same command line and address again, after it died. */
void daemon_start_again(struct daemon *d);
void daemon_set_listen(struct daemon *d, const char *listen); /* a relay's address, say */
/* Runs kvfenced with these options to its end (at most 10 s). Its exit status; stdout and stderr. */
int daemon_try(char *ret_out, size_t out_cap, char *ret_err, size_t err_cap, ...);

void daemon_signal(struct daemon *d, int signal);
void daemon_kill(struct daemon *d); /* SIGKILL to the supervisor; returns when both are gone */
int daemon_wait(struct daemon *d, uint32_t limit_ms); /* its exit status; -1 - signal */
/* Waits for the next worker after one was killed, and takes its pid over. */
void daemon_wait_worker(struct daemon *d, uint32_t limit_ms);
pid_t daemon_worker_now(const struct daemon *d);

uint64_t daemon_stat(const struct daemon *d, const char *name);
/* Prints what the stats say that is not zero. */
void daemon_show(const struct daemon *d);
uint64_t daemon_quantile(const struct daemon *d, const char *name, uint32_t per_mille);
uint64_t daemon_histogram_count(const struct daemon *d, const char *name);

/* The account of a daemon whose engines have left: every gauge is zero again, as many descriptors as at
 * the start, a clean end on SIGTERM within 3 s, no process left. */
void daemon_stop(struct daemon *d);
/* The same for every daemon of the case that still runs. */
void daemons_stop(void);

/* ---- helpers ---------------------------------------------------------------------------------------- */

struct helper {
    pid_t pid;
    int fd; /* ours: lines from and to the role, which has the other end as descriptor 3 */
};

/* Plays a role in a new process; arguments end with NULL. It dies with this one. */
struct helper *helper_start(const char *role, ...);
/* Waits for the helper's next line. */
void helper_expect(struct helper *h, const char *line, uint32_t limit_ms);
void helper_read(struct helper *h, char *ret_line, size_t cap, uint32_t limit_ms);
void helper_say(struct helper *h, const char *line);
void helper_kill(struct helper *h);                   /* SIGKILL, reaped on return */
int helper_wait(struct helper *h, uint32_t limit_ms); /* exit status, -1 - signal */

/* In a role: a line to and from the test. */
void role_say(const char *line);
void role_wait(char *ret_line, size_t cap);

#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

#define ROLE_FD 3
#define HELPER_ARGS_MAX 24
#define LINE_BYTES 256

struct helper *helper_start(const char *role, ...)
{
    struct helper *h = calloc(1, sizeof *h);
    char program[] = "/proc/self/exe";
    char flag[] = "--role";
    char *args[HELPER_ARGS_MAX] = {program, flag, strdup(role), strdup(case_dir())};
    uint32_t count = 4;
    int ends[2];
    CHECK(h != NULL, "no memory");
    va_list list;
    va_start(list, role);
    for (const char *a = va_arg(list, const char *); a != NULL;
         a = va_arg(list, const char *)) {
        CHECK(count + 1u < HELPER_ARGS_MAX, "more than %d arguments", HELPER_ARGS_MAX);
        args[count++] = strdup(a);
    }
    va_end(list);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair: %s",
          strerror(errno));
    pid_t parent = getpid();
    h->pid = fork();
    if (h->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(127);
        }
        if (ends[1] == ROLE_FD) {
            fcntl(ROLE_FD, F_SETFD, 0);
        } else {
            dup2(ends[1], ROLE_FD);
        }
        execv(program, args);
        _exit(127);
    }
    close(ends[1]);
    h->fd = ends[0];
    for (uint32_t i = 2; i < count; i++) {
        free(args[i]);
    }
    return h;
}

static void read_line(int fd, char *line, size_t cap, int limit_ms, const char *who)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int got = poll(&wait, 1, limit_ms);
    CHECK(got == 1, "%s said nothing within %d ms", who, limit_ms);
    ssize_t n = read(fd, line, cap - 1u);
    CHECK(n > 0, "%s ended instead of speaking", who);
    line[n] = '\0';
}

void helper_read(struct helper *h, char *ret_line, size_t cap, uint32_t limit_ms)
{
    read_line(h->fd, ret_line, cap, (int)limit_ms, "the helper");
}

void helper_expect(struct helper *h, const char *line, uint32_t limit_ms)
{
    char got[LINE_BYTES];
    helper_read(h, got, sizeof got, limit_ms);
    CHECK(strcmp(got, line) == 0, "the helper said \"%s\" and not \"%s\"", got, line);
}

void helper_say(struct helper *h, const char *line)
{
    ssize_t n = send(h->fd, line, strlen(line), MSG_NOSIGNAL);
    CHECK(n == (ssize_t)strlen(line), "the helper does not listen: %s", strerror(errno));
}

int helper_wait(struct helper *h, uint32_t limit_ms)
{
    int status = 0;
    WAIT_FOR(waitpid(h->pid, &status, WNOHANG) == h->pid, limit_ms,
             "the helper has not ended after %u ms", limit_ms);
    close(h->fd);
    free(h);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1 - WTERMSIG(status);
}

void helper_kill(struct helper *h)
{
    kill(h->pid, SIGKILL);
    (void)helper_wait(h, 5000);
}

void role_say(const char *line)
{
    (void)!send(ROLE_FD, line, strlen(line), MSG_NOSIGNAL);
}

void role_wait(char *ret_line, size_t cap)
{
    read_line(ROLE_FD, ret_line, cap, -1, "the test");
}

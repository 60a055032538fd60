#include "tests/verbs/guest.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define LINE_BYTES 512u

void guest_expect(void)
{
    if (access("/sys/class/infiniband/" GUEST_FIRST, F_OK) != 0 ||
        access("/sys/class/infiniband/" GUEST_SECOND, F_OK) != 0) {
        test_skip("there are no " GUEST_FIRST " and " GUEST_SECOND
                  ": it is for the guest of scripts/rdma-guest");
    }
}

void guest_net(const char *format, ...)
{
    char command[160] = "guest-net ";
    size_t used = strlen(command);
    va_list args;
    va_start(args, format);
    vsnprintf(command + used, sizeof command - used, format, args);
    va_end(args);
    int status = system(command);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "\"%s\" ends with %d: is this the guest of scripts/rdma-guest?", command, status);
}

/* A tc that waits for lines on its standard input. */
static FILE *router_in; /* both owned until guest_router_stop */
static FILE *router_out;
static pid_t router;

static void start_router(void)
{
    char tc[] = "/usr/sbin/tc";
    char *argv[] = {tc, "-n", "R", "-batch", "-", NULL};
    int in[2];
    int out[2];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0, "pipe");
    router = fork();
    CHECK(router >= 0, "fork");
    if (router == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execv(argv[0], argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    router_in = fdopen(in[1], "w");
    router_out = fdopen(out[0], "r");
    CHECK(router_in != NULL && router_out != NULL, "pipe");
}

/* The first band of the queue is what no flow is named for. Its line of the list that follows says that it is as
 * wanted; lines of other bands may be left unread. */
static void set_band(const char *device, const char *netem)
{
    char line[LINE_BYTES];
    fprintf(router_in,
            "qdisc change dev %s parent 1:1 handle 11: netem limit 100000 %s\n"
            "qdisc show dev %s\n",
            device, netem, device);
    fflush(router_in);
    do {
        CHECK(fgets(line, sizeof line, router_out) != NULL,
              "tc does not answer for %s: is this the guest of scripts/rdma-guest?", device);
    } while (strstr(line, "netem 11: parent 1:1 ") == NULL);
}

void guest_router(const char *direction, const char *netem)
{
    if (router_in == NULL) {
        start_router();
    }
    if (strcmp(direction, "back") != 0) {
        set_band("r1", netem);
    }
    if (strcmp(direction, "forth") != 0) {
        set_band("r0", netem);
    }
}

void guest_router_stop(void)
{
    if (router_in != NULL) {
        fclose(router_in); /* tc ends with its input */
        fclose(router_out);
        CHECK(waitpid(router, NULL, 0) == router, "tc cannot be awaited");
        router_in = NULL;
    }
}

/* The number behind a word of the line: "lqpn 17". False if it is not there. */
static bool find_number(const char *line, const char *word, uint32_t *ret_number)
{
    const char *at = strstr(line, word);
    if (at == NULL) {
        return false;
    }
    *ret_number = (uint32_t)strtoul(at + strlen(word), NULL, 10);
    return true;
}

/* The kernel names the thread that made the thing, and most are made by a helper's thread. */
static bool is_thread_of(pid_t pid, uint32_t thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%u", (int)pid, thread);
    return access(path, F_OK) == 0;
}

/* Lines of `rdma resource show`: "link rxe0/1 lqpn 17 rqpn 18 type RC ... pid 123 comm kvfenced-worker". */
static FILE *ask(const char *what)
{
    char command[64];
    snprintf(command, sizeof command, "rdma resource show %s", what);
    FILE *out = popen(command, "re");
    CHECK(out != NULL, "%s", command);
    return out;
}

uint32_t guest_pairs(const char *device, pid_t pid, struct guest_pair *ret_pairs)
{
    char line[LINE_BYTES];
    char link[64];
    uint32_t count = 0;
    FILE *out = ask("qp");
    snprintf(link, sizeof link, "link %s/", device);
    while (fgets(line, sizeof line, out) != NULL && count < GUEST_PAIRS_MAX) {
        struct guest_pair pair;
        uint32_t owner;
        if (strstr(line, link) != NULL && find_number(line, " lqpn ", &pair.own) &&
            find_number(line, " rqpn ", &pair.other) && find_number(line, " pid ", &owner) &&
            is_thread_of(pid, owner)) {
            ret_pairs[count++] = pair;
        }
    }
    CHECK_IS(pclose(out), 0, "rdma resource show qp");
    return count;
}

uint32_t guest_count(const char *what, pid_t pid)
{
    char line[LINE_BYTES];
    uint32_t count = 0;
    FILE *out = ask(what);
    while (fgets(line, sizeof line, out) != NULL) {
        uint32_t owner;
        count += find_number(line, " pid ", &owner) && is_thread_of(pid, owner);
    }
    CHECK_IS(pclose(out), 0, "rdma resource show");
    return count;
}

#include "tests/verbs/guest.h"

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
            owner == (uint32_t)pid) {
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
        count += find_number(line, " pid ", &owner) && owner == (uint32_t)pid;
    }
    CHECK_IS(pclose(out), 0, "rdma resource show");
    return count;
}

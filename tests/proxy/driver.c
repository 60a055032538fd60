#include "tests/proxy/driver.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_MS 10000
#define ANSWER_BYTES 512

extern char **environ;

static int spawn(struct kvf_proxy *proxy, char *const *argv, int fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&files, fd, 0);
    posix_spawn_file_actions_adddup2(&files, fd, 1);
    posix_spawnattr_setsigmask(&attributes, &none);
    /* A group of its own: a terminal's interrupt reaches whoever started it, which then ends it. */
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    int rc = posix_spawn(&proxy->pid, argv[0], &files, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return -rc;
}

/* One line, without its end. */
static int read_line(struct kvf_proxy *proxy, char *ret_line, size_t cap)
{
    size_t count = 0;
    while (count + 1u < cap) {
        struct pollfd wait = {.fd = proxy->fd, .events = POLLIN};
        int ready = poll(&wait, 1, ANSWER_MS);
        if (ready < 0 && errno == EINTR) {
            continue;
        }
        if (ready <= 0) {
            return -ETIMEDOUT;
        }
        char c;
        if (read(proxy->fd, &c, 1) != 1) {
            return -EPIPE;
        }
        if (c == '\n') {
            break;
        }
        ret_line[count++] = c;
    }
    ret_line[count] = '\0';
    return 0;
}

int kvf_proxy_start(struct kvf_proxy *proxy, const char *path, const char *listen,
                    const char *to, const char *rules, uint64_t seed)
{
    char texts[5][512];
    char line[ANSWER_BYTES];
    int ends[2];
    snprintf(texts[0], sizeof texts[0], "%s", path);
    snprintf(texts[1], sizeof texts[1], "--listen=%s", listen);
    snprintf(texts[2], sizeof texts[2], "--to=%s", to);
    snprintf(texts[3], sizeof texts[3], "--seed=%llu", (unsigned long long)seed);
    snprintf(texts[4], sizeof texts[4], "--rule=%s", rules != NULL ? rules : "");
    char *argv[] = {texts[0], texts[1], texts[2], texts[3], rules != NULL ? texts[4] : NULL,
                    NULL};
    *proxy = (struct kvf_proxy){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return -errno;
    }
    int rc = spawn(proxy, argv, ends[1]);
    close(ends[1]);
    proxy->fd = ends[0];
    if (rc != 0) {
        proxy->pid = 0;
        close(ends[0]);
        return rc;
    }
    rc = read_line(proxy, line, sizeof line);
    const char *at = rc == 0 ? strstr(line, " listen=") : NULL;
    if (at == NULL || strncmp(line, "kvfence-proxy: ready ", 21) != 0) {
        kvf_proxy_stop(proxy);
        return -EPROTO;
    }
    at += strlen(" listen=");
    snprintf(proxy->listen, sizeof proxy->listen, "%.*s", (int)strcspn(at, " "), at);
    return 0;
}

int kvf_proxy_tell(struct kvf_proxy *proxy, const char *command, char *ret_answer, size_t cap)
{
    char line[ANSWER_BYTES];
    snprintf(line, sizeof line, "%s\n", command);
    if (send(proxy->fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line)) {
        return -EPIPE;
    }
    int rc = read_line(proxy, line, sizeof line);
    if (rc != 0) {
        return rc;
    }
    bool is_ok = strncmp(line, "ok", 2) == 0;
    if (ret_answer != NULL) {
        snprintf(ret_answer, cap, "%s", is_ok && line[2] == ' ' ? line + 3 : line);
    }
    return is_ok ? 0 : -EINVAL;
}

uint64_t kvf_proxy_count(struct kvf_proxy *proxy, const char *name)
{
    char answer[ANSWER_BYTES];
    char wanted[40];
    snprintf(wanted, sizeof wanted, "%s=", name);
    if (kvf_proxy_tell(proxy, "stat", answer, sizeof answer) != 0) {
        return 0;
    }
    for (char *word = strtok(answer, " "); word != NULL; word = strtok(NULL, " ")) {
        if (strncmp(word, wanted, strlen(wanted)) == 0) {
            return strtoull(word + strlen(wanted), NULL, 10);
        }
    }
    return 0;
}

void kvf_proxy_stop(struct kvf_proxy *proxy)
{
    if (proxy->pid == 0) {
        return;
    }
    close(proxy->fd); /* its standard input ends */
    for (int i = 0; i < 500 && waitpid(proxy->pid, NULL, WNOHANG) == 0; i++) {
        if (i == 499) {
            kill(proxy->pid, SIGKILL);
            waitpid(proxy->pid, NULL, 0);
        }
        poll(NULL, 0, 2);
    }
    proxy->pid = 0;
}

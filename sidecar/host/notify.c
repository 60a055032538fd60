#include "sidecar/host/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"

#define AGAIN_NS (100 * KVF_NS_PER_MS)
#define BEATS_PER_WATCHDOG 3u
#define WATCHDOG_US_MAX (UINT64_C(86400) * 1000000u)

/* A path, or '@' and a name without a file. */
static int read_address(struct kvf_notify *n, const char *text)
{
    size_t bytes = strlen(text);
    if ((text[0] != '/' && text[0] != '@') || bytes < 2 || bytes >= sizeof(n->addr.sun_path)) {
        return -EINVAL;
    }
    n->addr = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(n->addr.sun_path, text, bytes);
    n->addr_bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes + (text[0] == '/'));
    if (text[0] == '@') {
        n->addr.sun_path[0] = '\0';
    }
    return 0;
}

static uint64_t read_number(const char *name, uint64_t max)
{
    const char *text = getenv(name);
    char *end = NULL;
    errno = 0;
    unsigned long long value = text != NULL ? strtoull(text, &end, 10) : 0;
    bool is_number = text != NULL && text[0] >= '0' && text[0] <= '9' && *end == '\0';
    return is_number && errno == 0 && value <= max ? value : 0;
}

void kvf_notify_open(struct kvf_notify *notify, uint64_t now_ns)
{
    *notify = (struct kvf_notify){.fd = -1};
    const char *text = getenv("NOTIFY_SOCKET");
    if (text != NULL && text[0] != '\0') {
        int err = read_address(notify, text);
        if (err == 0) {
            notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            err = notify->fd < 0 ? -errno : 0;
        }
        if (err != 0) {
            kvf_log(KVF_LOG_WARN, "cannot tell the service manager anything, NOTIFY_SOCKET: %s",
                    strerror(-err));
        }
    }
    const char *pid = getenv("WATCHDOG_PID");
    bool is_ours = pid == NULL || read_number("WATCHDOG_PID", INT32_MAX) == (uint64_t)getpid();
    if (notify->fd >= 0 && is_ours) {
        notify->watchdog_ns = read_number("WATCHDOG_USEC", WATCHDOG_US_MAX) * 1000u;
        notify->beat_at_ns = now_ns;
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void kvf_notify_ready(struct kvf_notify *notify)
{
    notify->owes_ready = true;
}

void kvf_notify_status(struct kvf_notify *notify, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(notify->status, sizeof(notify->status), format, args);
    va_end(args);
    /* A newline would begin another assignment. */
    for (char *at = notify->status; *at != '\0'; at++) {
        *at = *at == '\n' ? ' ' : *at;
    }
    notify->owes_status = true;
}

void kvf_notify_stopping(struct kvf_notify *notify, uint64_t most_us)
{
    notify->owes_stopping = true;
    notify->extend_us = most_us;
}

void kvf_notify_turn(struct kvf_notify *notify, uint64_t now_ns)
{
    bool is_beat = notify->watchdog_ns != 0 && now_ns >= notify->beat_at_ns;
    bool is_owed = notify->owes_ready || notify->owes_status || notify->owes_stopping;
    if (notify->fd < 0 || (!is_beat && (!is_owed || now_ns < notify->again_at_ns))) {
        return;
    }
    char text[KVF_NOTIFY_STATUS_BYTES + 128];
    char stopping[64] = "";
    if (notify->owes_stopping) {
        snprintf(stopping, sizeof(stopping), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64 "\n",
                 notify->extend_us);
    }
    int bytes =
        snprintf(text, sizeof(text), "%s%s%s%s%s%s", notify->owes_ready ? "READY=1\n" : "",
                 stopping, is_beat ? "WATCHDOG=1\n" : "", notify->owes_status ? "STATUS=" : "",
                 notify->owes_status ? notify->status : "", notify->owes_status ? "\n" : "");
    ssize_t sent = sendto(notify->fd, text, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT,
                          (const struct sockaddr *)&notify->addr, notify->addr_bytes);
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR)) {
        notify->again_at_ns = now_ns + AGAIN_NS;
        notify->beat_at_ns = is_beat ? notify->again_at_ns : notify->beat_at_ns;
        return;
    }
    if (sent < 0) {
        kvf_log(KVF_LOG_WARN, "the service manager does not listen, it is told nothing: %s",
                strerror(errno));
        close(notify->fd);
        notify->fd = -1;
        return;
    }
    notify->again_at_ns = 0;
    notify->owes_ready = false;
    notify->owes_stopping = false;
    notify->owes_status = false;
    if (is_beat) {
        notify->beat_at_ns = now_ns + notify->watchdog_ns / BEATS_PER_WATCHDOG;
    }
}

uint64_t kvf_notify_deadline(const struct kvf_notify *notify)
{
    bool is_owed = notify->owes_ready || notify->owes_status || notify->owes_stopping;
    uint64_t at_ns = is_owed ? notify->again_at_ns : UINT64_MAX;
    if (notify->watchdog_ns != 0 && notify->beat_at_ns < at_ns) {
        at_ns = notify->beat_at_ns;
    }
    return notify->fd >= 0 ? at_ns : UINT64_MAX;
}

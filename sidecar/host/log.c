#include "sidecar/host/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sidecar/host/clock.h"

#define LOG_LINE_BYTES 1024u

static char log_who[64] = "?";
static _Atomic uint32_t log_level = KVF_LOG_INFO; /* of its own: orders nothing */

void kvf_log_init(const char *who, enum kvf_log_level level)
{
    snprintf(log_who, sizeof(log_who), "%s", who);
    kvf_log_set_level(level);
}

void kvf_log_set_level(enum kvf_log_level level)
{
    atomic_store_explicit(&log_level, (uint32_t)level, memory_order_relaxed);
}

void kvf_log(enum kvf_log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    if ((uint32_t)level > atomic_load_explicit(&log_level, memory_order_relaxed)) {
        return;
    }
    uint64_t now_ms = kvf_clock_now_ns() / KVF_NS_PER_MS;
    char line[LOG_LINE_BYTES];
    int head = snprintf(line, sizeof(line), "kvfenced[%s] %llu.%03llu %s: ", log_who,
                        (unsigned long long)(now_ms / 1000u),
                        (unsigned long long)(now_ms % 1000u), names[level]);
    size_t used = head > 0 ? (size_t)head : 0u;
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + used, sizeof(line) - used - 1u, format, args);
    va_end(args);
    size_t room = sizeof(line) - used - 2u;
    used += body > 0 ? ((size_t)body < room ? (size_t)body : room) : 0u;
    line[used++] = '\n';
    /* A full or closed stderr must not stop a daemon that is serving rooms. */
    ssize_t put = write(STDERR_FILENO, line, used);
    (void)put;
}

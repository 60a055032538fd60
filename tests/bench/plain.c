#include "tests/bench/plain.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PIECE_BYTES 131072u
#define QUESTION_BYTES 64u
#define WARM_QUESTIONS 10u

/* The far end's work; the near end runs in the caller's thread. */
struct far_end {
    const struct kvf_plain *plain;
    int fd;
    uint64_t bytes; /* of an answer */
};

/* A connected pair over loopback. 0 or -errno. */
static int connect_pair(int *ret_near, int *ret_far)
{
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t name_bytes = sizeof(name);
    int one = 1;
    int near = -1;
    int far = -1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_up = listener >= 0 && bind(listener, (struct sockaddr *)&name, name_bytes) == 0 &&
                 listen(listener, 1) == 0 &&
                 getsockname(listener, (struct sockaddr *)&name, &name_bytes) == 0;
    near = is_up ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    is_up = near >= 0 && connect(near, (struct sockaddr *)&name, name_bytes) == 0;
    far = is_up ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    is_up = far >= 0 && setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0 &&
            setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0;
    int err = errno;
    if (listener >= 0) {
        close(listener);
    }
    if (is_up) {
        *ret_near = near;
        *ret_far = far;
        return 0;
    }
    if (near >= 0) {
        close(near);
    }
    if (far >= 0) {
        close(far);
    }
    return -err;
}

static bool send_all(int fd, const unsigned char *bytes, uint64_t count)
{
    while (count > 0) {
        ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
        if (n <= 0) {
            return false;
        }
        bytes += n;
        count -= (uint64_t)n;
    }
    return true;
}

static bool receive_all(int fd, unsigned char *bytes, uint64_t count)
{
    while (count > 0) {
        ssize_t n = recv(fd, bytes, count, 0);
        if (n <= 0) {
            return false;
        }
        bytes += n;
        count -= (uint64_t)n;
    }
    return true;
}

/* The next piece of memory that is walked through in a circle. */
static uint64_t piece_at(const struct kvf_plain *plain, uint64_t *at, uint64_t *ret_off)
{
    uint64_t piece = plain->bytes < PIECE_BYTES ? plain->bytes : PIECE_BYTES;
    if (*at + piece > plain->bytes) {
        *at = 0;
    }
    *ret_off = *at;
    *at += piece;
    return piece;
}

static void *read_stream(void *arg)
{
    struct far_end *far = arg;
    uint64_t at = 0;
    kvf_cpu_pin(far->plain->cpus.sink);
    for (;;) {
        uint64_t off;
        uint64_t piece = piece_at(far->plain, &at, &off);
        if (recv(far->fd, far->plain->to + off, piece, 0) <= 0) {
            return NULL;
        }
    }
}

int kvf_plain_stream(const struct kvf_plain *plain, uint64_t total_bytes, double *ret_mb_per_s)
{
    struct far_end far = {.plain = plain};
    pthread_t thread;
    int near;
    uint64_t sent = 0;
    uint64_t at = 0;
    int rc = connect_pair(&near, &far.fd);
    if (rc != 0) {
        return rc;
    }
    rc = pthread_create(&thread, NULL, read_stream, &far);
    if (rc != 0) {
        close(near);
        close(far.fd);
        return -rc;
    }
    kvf_cpu_pin(plain->cpus.source);
    uint64_t begin = kvf_bench_now_ns();
    while (rc == 0 && sent < total_bytes) {
        uint64_t off;
        uint64_t piece = piece_at(plain, &at, &off);
        rc = send_all(near, plain->from + off, piece) ? 0 : -EPIPE;
        sent += piece;
    }
    close(near);
    pthread_join(thread, NULL);
    double seconds = (double)(kvf_bench_now_ns() - begin) / 1e9;
    close(far.fd);
    kvf_cpu_pin(plain->cpus.engine);
    if (rc == 0) {
        *ret_mb_per_s = (double)sent / seconds / 1e6;
    }
    return rc;
}

static void *answer(void *arg)
{
    struct far_end *far = arg;
    unsigned char question[QUESTION_BYTES];
    kvf_cpu_pin(far->plain->cpus.source);
    while (receive_all(far->fd, question, sizeof(question)) &&
           send_all(far->fd, far->plain->from, far->bytes)) {
    }
    return NULL;
}

int kvf_plain_ask(const struct kvf_plain *plain, uint64_t bytes, uint32_t count,
                  struct kvf_series *series)
{
    static const unsigned char question[QUESTION_BYTES];
    struct far_end far = {.plain = plain, .bytes = bytes};
    pthread_t thread;
    int near;
    int rc = connect_pair(&near, &far.fd);
    if (rc != 0) {
        return rc;
    }
    rc = pthread_create(&thread, NULL, answer, &far);
    if (rc != 0) {
        close(near);
        close(far.fd);
        return -rc;
    }
    kvf_cpu_pin(plain->cpus.sink);
    for (uint32_t i = 0; rc == 0 && i < count + WARM_QUESTIONS; i++) {
        uint64_t begin = kvf_bench_now_ns();
        rc = send_all(near, question, sizeof(question)) && receive_all(near, plain->to, bytes)
                 ? 0
                 : -EPIPE;
        if (i >= WARM_QUESTIONS) {
            kvf_series_add(series, (double)(kvf_bench_now_ns() - begin) / 1e3);
        }
    }
    close(near);
    pthread_join(thread, NULL);
    close(far.fd);
    kvf_cpu_pin(plain->cpus.engine);
    return rc;
}

double kvf_plain_copy(const struct kvf_plain *plain, const int32_t *pages, uint32_t count,
                      uint64_t page_bytes, uint64_t total_bytes)
{
    uint64_t moved = 0;
    kvf_cpu_pin(plain->cpus.source);
    uint64_t begin = kvf_bench_now_ns();
    for (uint32_t i = 0; moved < total_bytes; i = i + 1 == count ? 0 : i + 1) {
        uint64_t off = (uint64_t)pages[i] * page_bytes;
        memcpy(plain->to + off, plain->from + off, page_bytes);
        moved += page_bytes;
    }
    double seconds = (double)(kvf_bench_now_ns() - begin) / 1e9;
    kvf_cpu_pin(plain->cpus.engine);
    return (double)moved / seconds / 1e6;
}

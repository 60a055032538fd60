#include "tests/proxy/test_rig.h"

#include <criterion/criterion.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "sidecar/core/wire.h"

#define LIMIT_MS 5000

uint64_t rig_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

void rig_start(struct rig *rig, const char *rules, uint64_t seed)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;
    rig->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(rig->listen_fd, 0);
    cr_assert_eq(bind(rig->listen_fd, (struct sockaddr *)&at, bytes), 0);
    cr_assert_eq(listen(rig->listen_fd, 16), 0);
    cr_assert_eq(getsockname(rig->listen_fd, (struct sockaddr *)&at, &bytes), 0);
    snprintf(rig->server, sizeof rig->server, "127.0.0.1:%u", ntohs(at.sin_port));
    int rc =
        kvf_proxy_start(&rig->proxy, KVF_TEST_PROXY, "127.0.0.1:0", rig->server, rules, seed);
    cr_assert_eq(rc, 0, "the proxy does not start: %s", strerror(-rc));
}

void rig_stop(struct rig *rig)
{
    kvf_proxy_stop(&rig->proxy);
    close(rig->listen_fd);
}

int rig_knock(const struct rig *rig)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int one = 1;
    to.sin_port = htons((uint16_t)atoi(strrchr(rig->proxy.listen, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_geq(fd, 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

int rig_accept(struct rig *rig)
{
    struct pollfd wait = {.fd = rig->listen_fd, .events = POLLIN};
    cr_assert_eq(poll(&wait, 1, LIMIT_MS), 1, "the proxy did not connect");
    return accept4(rig->listen_fd, NULL, NULL, SOCK_CLOEXEC);
}

struct pair rig_connect(struct rig *rig, enum first_frame first, uint32_t lane)
{
    unsigned char frame[256];
    unsigned char got[256];
    struct kvf_wire_hello hello = {.version_major = KVF_WIRE_VERSION_MAJOR};
    struct kvf_wire_lane_hello lane_hello = {.lane_idx = lane};
    struct pair pair = {.client = rig_knock(rig)};
    cr_assert_geq(pair.client, 0);
    pair.server = rig_accept(rig);
    int n = first == FIRST_NOTHING ? 0
            : first == FIRST_HELLO
                ? kvf_wire_put_hello(frame, sizeof frame, 0, &hello)
                : kvf_wire_put_lane_hello(frame, sizeof frame, 0, &lane_hello);
    rig_write(pair.client, frame, (size_t)n);
    cr_assert_eq(rig_read(pair.server, got, (size_t)n, LIMIT_MS), (size_t)n);
    cr_assert_eq(memcmp(frame, got, (size_t)n), 0);
    return pair;
}

void rig_tell(struct rig *rig, const char *command)
{
    char answer[200] = "";
    int rc = kvf_proxy_tell(&rig->proxy, command, answer, sizeof answer);
    cr_assert_eq(rc, 0, "%s: %s", command, answer);
}

void pair_close(struct pair *pair)
{
    close(pair->client);
    close(pair->server);
}

size_t rig_read(int fd, unsigned char *out, size_t bytes, uint32_t limit_ms)
{
    uint64_t until_ms = rig_now_ms() + limit_ms;
    size_t count = 0;
    while (count < bytes && rig_now_ms() < until_ms) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, (int)(until_ms - rig_now_ms())) != 1) {
            break;
        }
        ssize_t n = recv(fd, out + count, bytes - count, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            break;
        }
        count += n > 0 ? (size_t)n : 0;
    }
    return count;
}

void rig_write(int fd, const unsigned char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
        cr_assert_gt(n, 0, "send: %s", strerror(errno));
        bytes += n;
        count -= (size_t)n;
    }
}

int rig_end_of(int fd, uint32_t limit_ms)
{
    uint64_t until_ms = rig_now_ms() + limit_ms;
    unsigned char bytes[4096];
    while (rig_now_ms() < until_ms) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (poll(&wait, 1, (int)(until_ms - rig_now_ms())) != 1) {
            break;
        }
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n == 0) {
            return 0;
        }
        if (n < 0 && errno != EAGAIN) {
            return -errno;
        }
    }
    return -EAGAIN;
}

void rig_fill(unsigned char *bytes, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(seed >> 56);
    }
}

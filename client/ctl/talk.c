#include "client/ctl/talk.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "ring/codes.h"

#define ANSWER_MS 10000 /* the daemon itself gives up before */
#define NS_PER_MS UINT64_C(1000000)

uint64_t kvf_ctl_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u * NS_PER_MS + (uint64_t)now.tv_nsec;
}

void kvf_ctl_sleep_ms(uint32_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000u, .tv_nsec = (long)(ms % 1000u) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

int kvf_ctl_connect(const char *socket_path, int *ret_fd, char ret_why[KVF_CTL_WHY_BYTES])
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    (void)snprintf(addr.sun_path, sizeof addr.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0) {
        *ret_fd = fd;
        return 0;
    }
    int err = errno;
    const char *what = err == ENOENT || err == ECONNREFUSED
                           ? "no daemon serves there; --name and --run-dir say which is meant"
                       : err == EACCES ? "no right to the socket: its group may, and root"
                                       : strerror(err);
    (void)snprintf(ret_why, KVF_CTL_WHY_BYTES, "%s: %s", socket_path, what);
    if (fd >= 0) {
        close(fd);
    }
    return -err;
}

static int take_refusal(const struct kvf_attach_rep *rep, char ret_why[KVF_CTL_WHY_BYTES])
{
    size_t i = 0;
    for (; i + 1u < sizeof rep->text && rep->text[i] != '\0'; i++) {
        char ch = rep->text[i];
        ret_why[i] = ch >= ' ' && ch <= '~' ? ch : '?'; /* it goes to a terminal */
    }
    ret_why[i] = '\0';
    return rep->code != 0 && rep->code <= INT32_MAX ? (int)rep->code : KVF_E_PROTOCOL;
}

static size_t row_bytes_of(uint32_t command)
{
    return command == KVF_OPERATE_ROOMS ? sizeof(struct kvf_operate_room)
                                        : sizeof(struct kvf_operate_peer);
}

static int check(const struct kvf_operate_req *req, const struct kvf_operate_rep *rep,
                 size_t got)
{
    size_t head = offsetof(struct kvf_operate_rep, rows);
    const struct kvf_attach_header *h = &rep->h;
    if (got < sizeof *h || h->magic != KVF_ATTACH_MAGIC || h->bytes != got ||
        h->layout_major != KVF_LAYOUT_MAJOR) {
        return -EPROTO;
    }
    if (h->op == KVF_REP_REFUSED) {
        return got >= sizeof(struct kvf_attach_rep) ? 0 : -EPROTO;
    }
    bool is_whole = h->op == KVF_REP_OPERATED && h->serial == req->h.serial && got >= head &&
                    rep->row_count <= KVF_OPERATE_PEERS_MAX &&
                    got - head == rep->row_count * row_bytes_of(req->command);
    return is_whole ? 0 : -EPROTO;
}

int kvf_ctl_ask(int fd, const struct kvf_operate_req *req, struct kvf_operate_rep *ret_rep,
                char ret_why[KVF_CTL_WHY_BYTES])
{
    static uint32_t serial;
    struct kvf_operate_req out = *req;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    out.h = (struct kvf_attach_header){.magic = KVF_ATTACH_MAGIC,
                                       .op = KVF_REQ_OPERATE,
                                       .layout_major = KVF_LAYOUT_MAJOR,
                                       .serial = ++serial,
                                       .bytes = sizeof out};
    (void)snprintf(ret_why, KVF_CTL_WHY_BYTES, "the daemon hung up before it answered");
    if (send(fd, &out, sizeof out, MSG_NOSIGNAL) != (ssize_t)sizeof out) {
        return -EPIPE;
    }
    if (poll(&p, 1, ANSWER_MS) != 1) {
        (void)snprintf(ret_why, KVF_CTL_WHY_BYTES, "the daemon did not answer within %d s",
                       ANSWER_MS / 1000);
        return -ETIMEDOUT;
    }
    ssize_t got = recv(fd, ret_rep, sizeof *ret_rep, MSG_DONTWAIT | MSG_TRUNC);
    if (got <= 0) {
        return -EPIPE;
    }
    int err = (size_t)got <= sizeof *ret_rep ? check(&out, ret_rep, (size_t)got) : -EPROTO;
    if (err != 0) {
        (void)snprintf(ret_why, KVF_CTL_WHY_BYTES,
                       "the daemon's answer is not one that this version knows");
        return err;
    }
    if (ret_rep->h.op == KVF_REP_REFUSED) {
        struct kvf_attach_rep refusal;
        memcpy(&refusal, ret_rep, sizeof refusal);
        return take_refusal(&refusal, ret_why);
    }
    return 0;
}

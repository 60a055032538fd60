#include "tests/daemon/hostile.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/room_word.h"

#define REPLY_MS 5000

static int connect_to(const struct daemon *d)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%.107s", d->socket_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0,
          "cannot connect to %s: %s", d->socket_path, strerror(errno));
    return fd;
}

static void send_packet(int socket_fd, void *packet, uint32_t bytes, int fd)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = packet, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    (void)!sendmsg(socket_fd, &msg, MSG_NOSIGNAL);
}

/* One packet; its descriptors into ret_fds. Bytes, or 0 at a hang-up. */
static ssize_t receive(int socket_fd, struct kvf_attach_rep *ret_rep, int *ret_fds,
                       int *ret_fd_count)
{
    union {
        struct cmsghdr head;
        unsigned char bytes[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = ret_rep, .iov_len = sizeof *ret_rep};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    struct pollfd wait = {.fd = socket_fd, .events = POLLIN};
    *ret_fd_count = 0;
    CHECK(poll(&wait, 1, REPLY_MS) == 1, "no reply within %d ms", REPLY_MS);
    ssize_t n = recvmsg(socket_fd, &msg, MSG_CMSG_CLOEXEC);
    if (n <= 0) {
        return 0;
    }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
        size_t fds_bytes = c->cmsg_len - CMSG_LEN(0);
        memcpy(ret_fds, CMSG_DATA(c), fds_bytes);
        *ret_fd_count = (int)(fds_bytes / sizeof(int));
    }
    return n;
}

int hostile_request(struct hostile *h, void *packet, uint32_t bytes, int fd,
                    struct kvf_attach_rep *ret_rep)
{
    struct kvf_attach_header *head = packet;
    head->magic = KVF_ATTACH_MAGIC;
    head->layout_major = KVF_LAYOUT_MAJOR;
    head->serial = ++h->serial;
    head->bytes = bytes;
    send_packet(h->socket_fd, packet, bytes, fd);
    for (;;) {
        int fds[8];
        int fd_count;
        if (receive(h->socket_fd, ret_rep, fds, &fd_count) == 0) {
            return -1;
        }
        for (int i = 0; i < fd_count; i++) {
            h->other_fds[h->other_count++] = fds[i];
        }
        if (ret_rep->h.op < KVF_NOTE) {
            return ret_rep->h.op;
        }
    }
}

static void attach(struct hostile *h)
{
    struct kvf_attach_req req = {.h = {.op = KVF_REQ_ATTACH},
                                 .layout_minor = KVF_LAYOUT_MINOR,
                                 .rooms_max = 64,
                                 .cmd_slots = 64,
                                 .event_slots = 64,
                                 .arena_bytes = 65536,
                                 .name = "hostile"};
    struct kvf_attach_rep rep;
    CHECK_IS(hostile_request(h, &req, sizeof req, -1, &rep), KVF_REP_ATTACHED, "attach");
    CHECK_IS(h->other_count, 5, "descriptors of an attachment");
    h->epoch = rep.epoch;
    CHECK_IS(kvf_segment_map(h->other_fds[0], true, &h->segment), 0, "map of the segment");
    close(h->other_fds[0]);
    h->doorbell_fd = h->other_fds[3];
    h->other_fds[0] = h->other_fds[4];
    h->other_count = 3;
    kvf_spsc_producer_init(&h->commands, h->segment.cmd_slots, h->segment.limits.cmd_slots, 0);
}

static void add_region(struct hostile *h)
{
    struct kvf_region_req *req = calloc(1, sizeof *req);
    struct kvf_attach_rep rep;
    CHECK(req != NULL && h->geometry.plane_count == 1, "one plane");
    req->h.op = KVF_REQ_REGION_ADD;
    req->plane_count = 1;
    req->page_count = h->geometry.page_count;
    req->memory_bytes = kvf_pool_bytes(h->pool);
    req->planes[0].stride = h->geometry.page_bytes;
    req->planes[0].page_bytes = h->geometry.page_bytes;
    CHECK_IS(hostile_request(h, req, sizeof *req, kvf_pool_fd(h->pool), &rep), KVF_REP_REGION,
             "region");
    h->region = rep.region;
    free(req);
}

struct hostile *hostile_start(const struct daemon *d, const struct geometry *g)
{
    struct hostile *h = calloc(1, sizeof *h);
    CHECK(h != NULL, "no memory");
    h->geometry = *g;
    h->socket_fd = connect_to(d);
    attach(h);
    h->pool = pool_make(geometry_bytes(g));
    add_region(h);
    return h;
}

void hostile_bell(struct hostile *h)
{
    (void)eventfd_write(h->doorbell_fd, 1);
}

bool hostile_push(struct hostile *h, const struct kvf_cmd_shm *cmd)
{
    bool is_in = kvf_spsc_push_seq_cst(&h->commands, cmd, 1) == 1;
    hostile_bell(h);
    return is_in;
}

static struct kvf_addr_shm address(const char *text)
{
    struct kvf_addr_shm addr = {.family = 4};
    char host[64];
    snprintf(host, sizeof host, "%s", text);
    char *colon = strrchr(host, ':');
    CHECK(colon != NULL, "%s", text);
    *colon = '\0';
    CHECK_IS(inet_pton(AF_INET, host, addr.addr), 1, text);
    addr.port = (uint16_t)atoi(colon + 1);
    return addr;
}

void hostile_open_sink(struct hostile *h, uint32_t slot, uint64_t generation, uint64_t key,
                       uint32_t region, uint32_t first, uint32_t count, const char *writer)
{
    struct {
        struct kvf_open_shm head;
        struct kvf_writer_shm writer;
        struct kvf_run_shm run;
    } record = {
        .head = {.writer_count = 1, .run_count = 1, .region = region, .aux_region = UINT32_MAX},
        .writer = {.addr = address(writer), .count = count},
        .run = {.region = region, .first = first, .count = count}};
    uint32_t bytes = (uint32_t)(sizeof record.head + sizeof record.writer + sizeof record.run);
    uint32_t off = slot * 128u;
    struct kvf_intent_shm *intent = &h->segment.intents[slot];
    memcpy(h->segment.arena + off, &record, bytes);
    atomic_store_explicit(&intent->lease_word, kvf_lease_word_make(generation),
                          memory_order_relaxed);
    atomic_store_explicit(&intent->epoch, h->epoch, memory_order_relaxed);
    atomic_store_explicit(&intent->generation, generation, memory_order_relaxed);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_OPEN_SINK,
                              .slot = slot,
                              .generation = generation,
                              .worker_epoch = h->epoch,
                              .label = key & 0xffff,
                              .key = key,
                              .arena_off = off,
                              .arena_bytes = bytes};
    CHECK(hostile_push(h, &cmd), "the command ring is full");
}

uint64_t hostile_word(const struct hostile *h, uint32_t slot)
{
    return atomic_load_explicit(&h->segment.rooms[slot].word, memory_order_acquire);
}

static bool is_drained_at(const struct hostile *h, uint32_t slot, uint64_t generation)
{
    uint64_t word = hostile_word(h, slot);
    return kvf_word_generation(word) == generation && kvf_word_is_drained(word);
}

uint32_t hostile_wait_drained(struct hostile *h, uint32_t slot, uint64_t generation,
                              uint32_t limit_ms)
{
    WAIT_FOR(is_drained_at(h, slot, generation), limit_ms,
             "slot %u is not drained at generation %llu: word %llx", slot,
             (unsigned long long)generation, (unsigned long long)hostile_word(h, slot));
    return atomic_load_explicit(&h->segment.rooms[slot].reason, memory_order_relaxed);
}

static bool has_hung_up(const struct hostile *h)
{
    struct kvf_attach_rep rep;
    ssize_t n = recv(h->socket_fd, &rep, sizeof rep, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

bool hostile_is_dropped(struct hostile *h, uint32_t limit_ms)
{
    uint64_t until_ns = now_ns() + limit_ms * UINT64_C(1000000);
    while (!has_hung_up(h)) {
        if (now_ns() > until_ns) {
            return false;
        }
        sleep_us(1000);
    }
    return true;
}

void hostile_end(struct hostile *h)
{
    close(h->socket_fd);
    close(h->doorbell_fd);
    for (int i = 0; i < h->other_count; i++) {
        close(h->other_fds[i]);
    }
    kvf_segment_unmap(&h->segment);
    kvf_pool_destroy(h->pool);
    free(h);
}

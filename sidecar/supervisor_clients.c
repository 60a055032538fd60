/* Engines coming and going. Packets are the world's: every request is checked on a copy and answered with
 * one reply, or refused with a code and a sentence. A hang-up means "close its rooms"; only the pidfd of
 * the engine says that it is gone; only the worker's word "quiet" lets its memory go. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ring/codes.h"
#include "sidecar/daemon_stats.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/host/process.h"
#include "sidecar/supervisor_internal.h"

#define ACCEPTS_PER_EVENT 8u
#define ACCEPT_PAUSE_NS (200 * KVF_NS_PER_MS)

static struct kvf_region_req packet; /* the longest request; one at a time */

/* ---- replies ---------------------------------------------------------------------------------------------- */

static int send_reply(int fd, const struct kvf_attach_rep *rep, const int *fds, int fd_count)
{
    struct kvf_attach_rep out = *rep;
    out.h.magic = KVF_ATTACH_MAGIC;
    out.h.layout_major = KVF_LAYOUT_MAJOR;
    out.h.bytes = sizeof(out);
    return kvf_packet_send(fd, &out, sizeof(out), fds, fd_count);
}

static void fill_refusal(struct kvf_attach_rep *rep, uint32_t serial, uint32_t code,
                         uint64_t lender, const char *text)
{
    *rep = (struct kvf_attach_rep){
        .h = {.op = KVF_REP_REFUSED, .serial = serial}, .code = code, .lender = lender};
    snprintf(rep->text, sizeof(rep->text), "%s",
             text != NULL ? text : kvf_code_text((int)code));
}

int kvf_sup_send_refusal(int fd, uint32_t serial, uint32_t code, const char *text)
{
    struct kvf_attach_rep rep;
    fill_refusal(&rep, serial, code, 0, text);
    return send_reply(fd, &rep, NULL, 0);
}

static void watch_client(struct kvf_supervisor *s, struct sup_client *c)
{
    uint32_t events =
        EPOLLRDHUP | (c->pending_op == 0 ? EPOLLIN : 0u) | (c->owes_note ? EPOLLOUT : 0u);
    kvf_sup_rewatch(s, c->socket_fd, events, SUP_EPOLL_CLIENT, c->idx);
}

void kvf_sup_reply(struct kvf_supervisor *s, struct sup_client *c,
                   const struct kvf_attach_rep *rep, const int *fds, int fd_count)
{
    if (c->socket_fd < 0) {
        return;
    }
    int err = send_reply(c->socket_fd, rep, fds, fd_count);
    if (err != 0) {
        /* One request is answered before the next is read: who does not take one reply is no library. */
        kvf_log(KVF_LOG_WARN, "client %u (%s) does not take its reply: %s", c->idx, c->name,
                strerror(-err));
        kvf_sup_client_hang_up(s, c);
        return;
    }
    watch_client(s, c);
}

void kvf_sup_refuse(struct kvf_supervisor *s, struct sup_client *c, uint32_t serial,
                    uint32_t code, uint64_t lender, const char *text)
{
    struct kvf_attach_rep rep;
    fill_refusal(&rep, serial, code, lender, text);
    kvf_log(KVF_LOG_INFO, "client %u (%s) refused: %s", c->idx, c->name, rep.text);
    kvf_sup_reply(s, c, &rep, NULL, 0);
}

/* ---- attach ------------------------------------------------------------------------------------------------- */

static struct sup_client *find_free(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < s->config.clients; i++) {
        if (!s->clients[i].is_used) {
            return &s->clients[i];
        }
    }
    return NULL;
}

static uint32_t create_segment(struct sup_client *c, const struct kvf_attach_req *req,
                               const char **ret_text)
{
    struct kvf_segment_limits limits = {.rooms_max = req->rooms_max,
                                        .cmd_slots = req->cmd_slots,
                                        .event_slots = req->event_slots,
                                        .arena_bytes = req->arena_bytes,
                                        .regions_max = KVF_REGIONS_PER_CLIENT_MAX};
    if (kvf_segment_check_limits(&limits) != 0) {
        *ret_text = NULL;
        return KVF_E_LIMIT_RANGE;
    }
    uint64_t client_id = 0;
    int err = kvf_random_bytes(&client_id, sizeof(client_id));
    if (err == 0) {
        err = kvf_segment_create(&limits, client_id, &c->segment_fd);
    }
    if (err == 0) {
        err = kvf_segment_map(c->segment_fd, true, &c->segment);
    }
    *ret_text = NULL;
    return (uint32_t)-err;
}

static bool is_attached(struct kvf_supervisor *s, int segment_fd)
{
    struct stat mine;
    struct stat other;
    if (fstat(segment_fd, &mine) != 0) {
        return true;
    }
    for (uint32_t i = 0; i < s->config.clients; i++) {
        if (s->clients[i].is_used && s->clients[i].segment_fd != segment_fd &&
            fstat(s->clients[i].segment_fd, &other) == 0 && other.st_dev == mine.st_dev &&
            other.st_ino == mine.st_ino) {
            return true;
        }
    }
    return false;
}

/* A segment handed in by an engine whose earlier daemon is gone: checked like a hostile one. Its
 * generations go on, and what its rooms' worker proved by ending is published here. */
static uint32_t adopt_segment(struct kvf_supervisor *s, struct sup_client *c,
                              const char **ret_text)
{
    if (is_attached(s, c->segment_fd)) {
        *ret_text = "this segment is attached already; its rooms are still being drained";
        return EBUSY;
    }
    int err = kvf_segment_map(c->segment_fd, true, &c->segment);
    if (err != 0) {
        *ret_text = err == -ENOTSUP ? NULL : "the segment handed in is not one of a daemon's";
        return err == -ENOTSUP ? KVF_E_LAYOUT : err == -EPERM ? KVF_E_NO_SEAL : KVF_E_PROTOCOL;
    }
    /* E1 (release): no epoch is open while its rooms are walked. */
    atomic_store_explicit(&c->segment.shm->worker_epoch, 0, memory_order_release);
    kvf_sup_reap_rooms(s, c);
    return 0;
}

static uint32_t create_wakers(struct sup_client *c)
{
    int pair[2];
    c->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->doorbell_fd < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return (uint32_t)errno;
    }
    c->event_fd = pair[0];
    c->client_event_fd = pair[1];
    return 0;
}

static void watch_engine(struct kvf_supervisor *s, struct sup_client *c)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof(peer);
    (void)getsockopt(c->socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
    c->engine_pid = (int)peer.pid;
    int err = kvf_pidfd_of_peer(c->socket_fd, &c->engine_fd);
    if (err != 0) {
        c->engine_fd = -1;
        kvf_log(
            KVF_LOG_WARN,
            "client %u (%s): its process cannot be watched (%s): leases it leaves behind will "
            "never be proven",
            c->idx, c->name, strerror(-err));
        return;
    }
    (void)kvf_sup_watch(s, c->engine_fd, EPOLLIN, SUP_EPOLL_ENGINE, c->idx);
}

static void free_client(struct kvf_supervisor *s, struct sup_client *c)
{
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        kvf_sup_region_free(s, c, slot);
    }
    kvf_sup_region_unpark(c);
    kvf_sup_groups_free(c);
    if (c->segment.shm != NULL) {
        kvf_segment_unmap(&c->segment);
    }
    kvf_close_fd(&c->segment_fd);
    kvf_close_fd(&c->doorbell_fd);
    kvf_close_fd(&c->event_fd);
    kvf_close_fd(&c->client_event_fd);
    kvf_close_fd(&c->socket_fd);
    kvf_close_fd(&c->engine_fd);
    *c = (struct sup_client){.idx = c->idx};
}

static uint32_t fill_client(struct kvf_supervisor *s, struct sup_client *c,
                            const struct kvf_attach_req *req, bool is_handed_in,
                            const char **ret_text)
{
    uint32_t code =
        is_handed_in ? adopt_segment(s, c, ret_text) : create_segment(c, req, ret_text);
    if (code == 0 && c->segment.limits.rooms_max > s->config.rooms) {
        *ret_text = "more rooms than this daemon's --rooms allows for one client";
        code = KVF_E_LIMIT_RANGE;
    }
    if (code == 0) {
        *ret_text = NULL;
        code = create_wakers(c);
    }
    if (code != 0) {
        return code;
    }
    struct kvf_segment_shm *shm = c->segment.shm;
    shm->lanes_per_peer = s->config.lanes;
    shm->bound_usual_us = kvf_bound_usual_us(&s->config);
    shm->bound_worst_us = kvf_bound_worst_us(&s->config);
    atomic_store_explicit(&shm->stopping, s->is_draining, memory_order_relaxed);
    return 0;
}

/* 0, or a code. On 0 the client owns `fd` and the handed-in segment. */
static uint32_t attach(struct kvf_supervisor *s, int fd, size_t bytes, int *fds, int fd_count,
                       const char **ret_text)
{
    const struct kvf_attach_req *req = (const struct kvf_attach_req *)(const void *)&packet;
    if (bytes < sizeof(*req) || fd_count > 1) {
        *ret_text =
            "an attach request is shorter than its fields, or carries more than a segment";
        return KVF_E_PROTOCOL;
    }
    if (s->is_stopping) {
        return ESHUTDOWN;
    }
    struct sup_client *c = find_free(s);
    if (c == NULL) {
        *ret_text =
            "all places for clients are taken, those still draining included: --clients";
        return KVF_E_CLIENTS_FULL;
    }
    *c = (struct sup_client){.is_used = true,
                             .idx = c->idx,
                             .segment_fd = fd_count == 1 ? fds[0] : -1,
                             .doorbell_fd = -1,
                             .event_fd = -1,
                             .client_event_fd = -1,
                             .socket_fd = fd,
                             .engine_fd = -1,
                             .pending_op = KVF_REQ_ATTACH,
                             .pending_serial = req->h.serial};
    fds[0] = -1;
    kvf_sup_set_name(c->name, req->name);
    uint32_t code = fill_client(s, c, req, fd_count == 1, ret_text);
    if (code != 0) {
        c->socket_fd = -1; /* stays the caller's, for the refusal */
        free_client(s, c);
        return code;
    }
    watch_engine(s, c);
    watch_client(s, c);
    kvf_log(KVF_LOG_INFO, "client %u (%s, pid %d) attaches%s: %u rooms", c->idx, c->name,
            c->engine_pid, fd_count == 1 ? " again" : "", c->segment.limits.rooms_max);
    kvf_sup_sync(s);
    return 0;
}

/* ---- half-open connections ------------------------------------------------------------------------------------ */

void kvf_sup_accept(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < ACCEPTS_PER_EVENT; i++) {
        int fd = accept4(s->dir.listener_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                kvf_log(KVF_LOG_WARN, "cannot accept a client: %s", strerror(errno));
                /* The connection waits in the queue, and so do we, or this would be said for ever. */
                kvf_sup_rewatch(s, s->dir.listener_fd, 0, SUP_EPOLL_LISTENER, 0);
                s->accept_again_ns = s->now_ns + ACCEPT_PAUSE_NS;
            }
            return;
        }
        uint32_t idx = 0;
        for (uint32_t k = 0; k < KVF_HALF_OPEN_MAX; k++) {
            if (s->half_open[k].fd < 0) {
                idx = k;
                break;
            }
            if (s->half_open[k].deadline_ns < s->half_open[idx].deadline_ns) {
                idx = k; /* all are taken: the one that has been silent longest goes */
            }
        }
        kvf_close_fd(&s->half_open[idx].fd);
        s->half_open[idx] = (struct half_open){
            .fd = fd, .deadline_ns = s->now_ns + KVF_HALF_OPEN_MS * KVF_NS_PER_MS};
        if (kvf_sup_watch(s, fd, EPOLLIN | EPOLLRDHUP, SUP_EPOLL_HALF_OPEN, idx) != 0) {
            kvf_close_fd(&s->half_open[idx].fd);
        }
    }
}

void kvf_sup_half_open_expire(struct kvf_supervisor *s)
{
    if (s->accept_again_ns != 0 && s->now_ns >= s->accept_again_ns) {
        s->accept_again_ns = 0;
        kvf_sup_rewatch(s, s->dir.listener_fd, EPOLLIN, SUP_EPOLL_LISTENER, 0);
    }
    for (uint32_t i = 0; i < KVF_HALF_OPEN_MAX; i++) {
        if (s->half_open[i].fd >= 0 && s->now_ns >= s->half_open[i].deadline_ns) {
            kvf_log(KVF_LOG_INFO, "a connection that did not attach within %u ms is closed",
                    KVF_HALF_OPEN_MS);
            kvf_close_fd(&s->half_open[i].fd);
        }
    }
}

/* Header of the request in `packet`. NULL, or what is wrong with it. */
static const char *check_header(size_t bytes)
{
    const struct kvf_attach_header *h = &packet.h;
    if (bytes < sizeof(*h) || h->magic != KVF_ATTACH_MAGIC || h->bytes != bytes) {
        return "this is no packet of a library";
    }
    return NULL;
}

static uint32_t first_request(struct kvf_supervisor *s, int fd, size_t bytes, int *fds,
                              int fd_count, const char **ret_text)
{
    static char text[128];
    *ret_text = check_header(bytes);
    if (*ret_text != NULL) {
        return KVF_E_PROTOCOL;
    }
    if (packet.h.layout_major != KVF_LAYOUT_MAJOR) {
        snprintf(text, sizeof(text),
                 "the library speaks layout version %u, this daemon %u; upgrade the older one",
                 packet.h.layout_major, KVF_LAYOUT_MAJOR);
        *ret_text = text;
        return KVF_E_LAYOUT;
    }
    if (packet.h.op == KVF_REQ_OPERATE) {
        return kvf_sup_operator_first(
            s, fd, (const struct kvf_operate_req *)(const void *)&packet, bytes, ret_text);
    }
    if (packet.h.op != KVF_REQ_ATTACH) {
        *ret_text = "the first request of a connection must be an attach";
        return KVF_E_PROTOCOL;
    }
    return attach(s, fd, bytes, fds, fd_count, ret_text);
}

void kvf_sup_half_open_ready(struct kvf_supervisor *s, uint32_t idx)
{
    struct half_open *h = &s->half_open[idx];
    if (h->fd < 0) {
        return; /* closed earlier in this round of events */
    }
    int fds[KVF_PACKET_FDS_MAX] = {-1};
    int fd_count = 0;
    int got = kvf_packet_receive(h->fd, &packet, sizeof(packet), fds, &fd_count);
    if (got == -EAGAIN) {
        return;
    }
    int fd = h->fd;
    h->fd = -1;
    const char *text = NULL;
    uint32_t code = KVF_E_PROTOCOL;
    if (got > 0) {
        code = first_request(s, fd, (size_t)got, fds, fd_count, &text);
    }
    kvf_close_fds(fds, fd_count);
    if (code == 0) {
        return; /* the client has the socket */
    }
    if (got > 0) {
        struct kvf_attach_rep rep;
        fill_refusal(&rep, packet.h.serial, code, 0, text);
        kvf_log(KVF_LOG_INFO, "an attach is refused: %s", rep.text);
        (void)send_reply(fd, &rep, NULL, 0);
    }
    close(fd);
}

/* ---- requests of attached clients -------------------------------------------------------------------------------- */

static void take_request(struct kvf_supervisor *s, struct sup_client *c, size_t bytes, int *fds,
                         int fd_count)
{
    const char *text = check_header(bytes);
    uint32_t code = text == NULL ? 0 : KVF_E_PROTOCOL;
    uint16_t op = code == 0 ? packet.h.op : 0;
    uint64_t lender = 0;
    if (code == 0) {
        switch (op) { /* a number of the client's, not one of our states */
        case KVF_REQ_REGION_ADD:
            code = s->is_stopping ? ESHUTDOWN
                                  : kvf_sup_region_add(s, c, &packet, bytes, fds, fd_count,
                                                       &lender, &text);
            break;
        case KVF_REQ_REGION_REMOVE:
            code = bytes < offsetof(struct kvf_region_req, plane_count)
                       ? KVF_E_PROTOCOL
                       : kvf_sup_region_remove(s, c, packet.region, &text);
            break;
        case KVF_REQ_GROUP_ADD:
            code = s->is_stopping
                       ? ESHUTDOWN
                       : kvf_sup_group_add(s, c,
                                           (const struct kvf_group_req *)(const void *)&packet,
                                           bytes, &text);
            break;
        case KVF_REQ_GROUP_SKIP:
            code = kvf_sup_group_skip(
                c, (const struct kvf_group_skip_req *)(const void *)&packet, bytes, &text);
            break;
        case KVF_REQ_DETACH:
            kvf_sup_client_close(s, c, KVF_E_ABORTED);
            break;
        default:
            text = "a request is unknown, or an attach came twice";
            code = KVF_E_PROTOCOL;
            break;
        }
    }
    if (code != 0) {
        kvf_sup_refuse(s, c, packet.h.serial, code, lender, text);
        return;
    }
    c->pending_op = op;
    c->pending_serial = packet.h.serial;
    watch_client(s, c);
    kvf_sup_sync(s);
}

/* An event may be of a client that had this place before, read in the same round. */
bool kvf_sup_has_hung_up(int socket_fd)
{
    struct pollfd p = {.fd = socket_fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

void kvf_sup_client_ready(struct kvf_supervisor *s, uint32_t idx, uint32_t events)
{
    struct sup_client *c = &s->clients[idx];
    if (!c->is_used || c->socket_fd < 0) {
        return; /* gone earlier in this round of events */
    }
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0 &&
        kvf_sup_has_hung_up(c->socket_fd)) {
        kvf_log(KVF_LOG_INFO, "client %u (%s, pid %d) hung up", c->idx, c->name, c->engine_pid);
        kvf_sup_client_hang_up(s, c);
        return;
    }
    if ((events & EPOLLOUT) != 0 && c->owes_note) {
        kvf_sup_client_note(s, c);
    }
    for (uint32_t i = 0; i < KVF_PACKETS_PER_EVENT && (events & EPOLLIN) != 0; i++) {
        if (c->pending_op != 0 || c->socket_fd < 0) {
            return;
        }
        int fds[KVF_PACKET_FDS_MAX] = {-1};
        int fd_count = 0;
        int got = kvf_packet_receive(c->socket_fd, &packet, sizeof(packet), fds, &fd_count);
        if (got == -EAGAIN) {
            return;
        }
        if (got <= 0) {
            kvf_sup_client_hang_up(s, c);
            return;
        }
        take_request(s, c, (size_t)got, fds, fd_count);
        kvf_close_fds(fds, fd_count);
    }
}

/* ---- ends ----------------------------------------------------------------------------------------------------------- */

void kvf_sup_client_close(struct kvf_supervisor *s, struct sup_client *c, uint32_t code)
{
    if (!c->is_closing) {
        c->is_closing = true;
        c->close_code = code;
        /* E1 (release): an engine that lives on opens nothing that would never be read. */
        atomic_store_explicit(&c->segment.shm->worker_epoch, 0, memory_order_release);
        kvf_sup_sync(s);
    }
}

void kvf_sup_client_hang_up(struct kvf_supervisor *s, struct sup_client *c)
{
    kvf_close_fd(&c->socket_fd);
    c->pending_op = 0;
    kvf_sup_region_unpark(c);
    c->owes_note = false;
    kvf_sup_client_close(s, c, KVF_E_ENGINE_GONE);
}

void kvf_sup_engine_ended(struct kvf_supervisor *s, uint32_t idx)
{
    struct sup_client *c = &s->clients[idx];
    /* The event may be of an engine that had this place before, read in the same round: ask this one. */
    if (!c->is_used || c->engine_fd < 0 || kvf_pidfd_wait(c->engine_fd, 0) != 1) {
        return;
    }
    kvf_log(KVF_LOG_INFO, "the engine of client %u (%s, pid %d) has ended", c->idx, c->name,
            c->engine_pid);
    kvf_close_fd(&c->engine_fd);
    c->is_reaped = true;
    kvf_sup_client_hang_up(s, c); /* a forked child may still hold the other end */
    kvf_sup_sync(s);
}

/* ---- answers of the worker -------------------------------------------------------------------------------------------- */

void kvf_sup_client_note(struct kvf_supervisor *s, struct sup_client *c)
{
    if (c->socket_fd < 0) {
        return;
    }
    struct kvf_attach_rep rep = {.h = {.op = KVF_NOTE_WORKER}, .epoch = s->epoch};
    int err = send_reply(c->socket_fd, &rep, &s->worker_fd, 1);
    c->owes_note = err == -EAGAIN;
    if (err != 0 && err != -EAGAIN) {
        kvf_log(KVF_LOG_WARN, "client %u (%s) was not told of the new worker: %s", c->idx,
                c->name, strerror(-err));
    }
    watch_client(s, c);
}

static void answer_attach(struct kvf_supervisor *s, struct sup_client *c)
{
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_ATTACHED, .serial = c->pending_serial},
                                 .epoch = s->epoch};
    int fds[] = {c->segment_fd, s->stats_read_fd, s->worker_fd, c->doorbell_fd,
                 c->client_event_fd};
    c->pending_op = 0;
    kvf_sup_reply(s, c, &rep, fds, 5);
    kvf_close_fd(&c->client_event_fd);
}

void kvf_sup_client_open(struct kvf_supervisor *s, struct sup_client *c)
{
    if (c->is_open || c->is_closing || c->add != TOLD_ANSWERED || s->worker != WORKER_SERVING) {
        return;
    }
    for (uint32_t slot = 0; slot < KVF_REGIONS_PER_CLIENT_MAX; slot++) {
        const struct sup_region *r = c->regions[slot];
        if (r != NULL && r->is_serving && r->add != TOLD_ANSWERED) {
            return;
        }
    }
    if (!kvf_sup_groups_are_served(c)) {
        return;
    }
    c->is_open = true;
    if (c->pending_op != KVF_REQ_ATTACH) {
        kvf_sup_client_note(
            s, c); /* the pidfd first: no room of this epoch is judged by another's */
    }
    /* E1 (release): rooms of earlier epochs are published, segment and regions are with the worker. */
    atomic_store_explicit(&c->segment.shm->worker_epoch, s->epoch, memory_order_release);
    if (c->pending_op == KVF_REQ_ATTACH) {
        answer_attach(s, c);
    }
}

void kvf_sup_client_added(struct kvf_supervisor *s, struct sup_client *c, uint32_t code)
{
    if (code == 0) {
        c->add = TOLD_ANSWERED;
        kvf_sup_client_open(s, c);
        kvf_sup_sync(s);
        return;
    }
    if (c->pending_op == KVF_REQ_ATTACH) {
        uint32_t serial = c->pending_serial;
        c->pending_op = 0;
        kvf_sup_refuse(s, c, serial, code, 0, NULL);
        /* No worker ever had it: nothing of it is lent. */
        free_client(s, c);
        return;
    }
    /* Its rooms may have leases out, or be in quarantine. Nobody gets its memory anew before a worker has
     * taken it and found it quiet. */
    c->add = TOLD_REFUSED;
    kvf_log(KVF_LOG_ERROR,
            "client %u (%s) was not taken by the new worker (%s); its memory is withheld",
            c->idx, c->name, kvf_code_name((int)code));
    kvf_sup_client_bad(s, c, code);
    kvf_sup_sync(s);
}

void kvf_sup_client_quiet(struct kvf_supervisor *s, struct sup_client *c)
{
    kvf_log(KVF_LOG_INFO, "client %u (%s) is quiet; its memory is let go", c->idx, c->name);
    kvf_sup_groups_depart(s, c);
    if (c->pending_op == KVF_REQ_DETACH) {
        struct kvf_attach_rep rep = {.h = {.op = KVF_REP_OK, .serial = c->pending_serial}};
        c->pending_op = 0;
        kvf_sup_reply(s, c, &rep, NULL, 0);
    }
    free_client(s, c);
}

void kvf_sup_client_bad(struct kvf_supervisor *s, struct sup_client *c, uint32_t code)
{
    kvf_log(KVF_LOG_WARN, "client %u (%s, pid %d) is dropped: %s", c->idx, c->name,
            c->engine_pid, kvf_code_text((int)code));
    if (c->socket_fd >= 0) {
        struct kvf_attach_rep rep;
        fill_refusal(&rep, 0, code, 0, NULL);
        (void)send_reply(c->socket_fd, &rep, NULL, 0);
    }
    c->close_code = code;
    kvf_sup_client_hang_up(s, c);
}

/* Operators: who they are, what they may, and what of their word outlives a worker. The kernel says who asks
 * (SO_PEERCRED); requests are the world's and are checked on a copy. What they changed (a drain, peers held
 * down, the log level) is kept here and told to every worker; what only the worker knows is asked of it, one
 * question at a time, and an operator who waits for the answer holds up nobody. */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ring/codes.h"
#include "ring/room_word.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/supervisor_internal.h"

#define IDLE_NS (2 * KVF_NS_PER_S)   /* without a request */
#define ANSWER_NS (5 * KVF_NS_PER_S) /* for the worker's answer */
#define PHASES_ALL ((1u << (KVF_PHASE_DRAINED + 1)) - 1u)

static void watch(struct kvf_supervisor *s, struct sup_operator *o)
{
    uint32_t events = EPOLLRDHUP | (o->is_asking ? 0u : EPOLLIN);
    kvf_sup_rewatch(s, o->fd, events, SUP_EPOLL_OPERATOR, (uint32_t)(o - s->operators));
}

static void hang_up(struct sup_operator *o)
{
    kvf_close_fd(&o->fd);
    o->is_asking = false;
    o->is_sent = false;
}

static void refuse(struct kvf_supervisor *s, struct sup_operator *o, uint32_t code,
                   const char *text)
{
    o->is_asking = false;
    o->is_sent = false;
    o->deadline_ns = s->now_ns + IDLE_NS;
    if (kvf_sup_send_refusal(o->fd, o->req.h.serial, code, text) != 0) {
        hang_up(o);
        return;
    }
    watch(s, o);
}

/* ---- answers ------------------------------------------------------------------------------------------------ */

static void fill_status(const struct kvf_supervisor *s, struct kvf_operate_status *status)
{
    bool has_worker = s->worker != WORKER_NONE;
    status->worker_epoch = has_worker ? s->epoch : 0;
    status->supervisor_pid = (int32_t)getpid();
    status->worker_pid = has_worker ? (int32_t)s->worker_pid : 0;
    status->is_serving = s->worker == WORKER_SERVING;
    status->is_draining = s->is_draining;
    status->is_stopping = s->is_stopping;
    status->log_level = s->config.log_level;
    for (uint32_t i = 0; i < s->config.clients; i++) {
        const struct sup_client *c = &s->clients[i];
        status->clients += c->is_used;
        status->clients_waiting += c->is_used && c->add != TOLD_ANSWERED;
    }
    for (uint32_t i = 0; i < KVF_PEERS_DOWN_MAX; i++) {
        status->peers_down += s->holds[i].is_used && s->holds[i].is_down;
    }
}

static void name_clients(const struct kvf_supervisor *s, struct kvf_operate_rep *rep)
{
    for (uint32_t i = 0; i < rep->row_count; i++) {
        struct kvf_operate_room *row = &rep->rows.rooms[i];
        if (row->client < s->config.clients && s->clients[row->client].is_used) {
            const struct sup_client *c = &s->clients[row->client];
            row->engine_pid = c->engine_pid;
            row->is_engine_gone = c->is_reaped;
            memcpy(row->name, c->name, sizeof(row->name));
        }
    }
}

static void answer(struct kvf_supervisor *s, struct sup_operator *o,
                   struct kvf_operate_rep *rep)
{
    size_t row_bytes = o->req.command == KVF_OPERATE_ROOMS ? sizeof(rep->rows.rooms[0])
                                                           : sizeof(rep->rows.peers[0]);
    size_t bytes = offsetof(struct kvf_operate_rep, rows) + rep->row_count * row_bytes;
    fill_status(s, &rep->status);
    rep->h = (struct kvf_attach_header){.magic = KVF_ATTACH_MAGIC,
                                        .op = KVF_REP_OPERATED,
                                        .layout_major = KVF_LAYOUT_MAJOR,
                                        .serial = o->req.h.serial,
                                        .bytes = (uint32_t)bytes};
    o->is_asking = false;
    o->is_sent = false;
    o->deadline_ns = s->now_ns + IDLE_NS;
    if (kvf_packet_send(o->fd, rep, bytes, NULL, 0) != 0) {
        hang_up(o); /* one answer fits its socket; who does not read it is no tool of ours */
        return;
    }
    watch(s, o);
}

static const char *release_refusal(uint32_t code)
{
    switch ((int)code) {
    case KVF_E_UNKNOWN_ROOM:
        return "no such client or slot: kvfence-ctl rooms --quarantined lists what may be "
               "released";
    case KVF_E_STALE_ROOM:
        return "the slot holds another generation: kvfence-ctl rooms --quarantined lists what "
               "may "
               "be released";
    case EINVAL:
        return "the room is not in quarantine: only what no proof can be had for may be "
               "released, "
               "everything else ends by proof";
    default:
        return NULL;
    }
}

void kvf_sup_operated(struct kvf_supervisor *s, struct kvf_link_operated *msg)
{
    struct sup_operator *o = NULL;
    s->is_worker_asked = false;
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX; i++) {
        if (s->operators[i].is_sent && s->operators[i].ask == msg->h.value) {
            o = &s->operators[i];
        }
    }
    if (o == NULL) {
        return; /* who asked has gone, or waited too long */
    }
    if (o->req.command == KVF_OPERATE_RELEASE) {
        kvf_log(
            KVF_LOG_WARN,
            "operator (uid %u, pid %d) %s client %u slot %u generation %llu from quarantine "
            "WITHOUT PROOF%s%s",
            o->uid, (int)o->pid, msg->h.code == 0 ? "released" : "wanted to release",
            o->req.client, o->req.slot, (unsigned long long)o->req.generation,
            msg->h.code == 0 ? "" : ": refused: ",
            msg->h.code == 0 ? "" : kvf_code_name((int)msg->h.code));
    }
    if (msg->h.code != 0) {
        refuse(s, o, msg->h.code, release_refusal(msg->h.code));
        return;
    }
    if (o->req.command == KVF_OPERATE_ROOMS) {
        name_clients(s, &msg->rep);
    }
    answer(s, o, &msg->rep);
}

/* ---- what outlives a worker ------------------------------------------------------------------------------- */

static bool is_hold_of(const struct sup_hold *h, const struct kvf_operate_req *req)
{
    return h->is_used && h->peer_id == req->peer_id &&
           (req->peer_id != 0 || memcmp(&h->addr, &req->addr, sizeof(h->addr)) == 0);
}

static uint32_t hold(struct kvf_supervisor *s, const struct kvf_operate_req *req, bool is_down,
                     const char **ret_text)
{
    struct sup_hold *free_one = NULL;
    struct sup_hold *h = NULL;
    for (uint32_t i = 0; i < KVF_PEERS_DOWN_MAX; i++) {
        struct sup_hold *at = &s->holds[i];
        h = is_hold_of(at, req) ? at : h;
        free_one = !at->is_used && free_one == NULL ? at : free_one;
    }
    if (h == NULL && !is_down) {
        *ret_text = "this peer is not down: kvfence-ctl peers shows which are";
        return ENOENT;
    }
    if (h == NULL && free_one == NULL) {
        *ret_text = "64 peers are down already, which is the maximum: let one up first";
        return KVF_E_RESOURCES;
    }
    if (h == NULL) {
        h = free_one;
        *h = (struct sup_hold){.is_used = true, .peer_id = req->peer_id, .addr = req->addr};
    }
    if (h->is_down != is_down) {
        h->is_down = is_down;
        h->told = TOLD_NOT;
        if (!is_down && s->worker != WORKER_SERVING) {
            *h = (struct sup_hold){0}; /* the next worker begins with none */
        }
    }
    return 0;
}

void kvf_sup_show_stopping(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < s->config.clients; i++) {
        struct sup_client *c = &s->clients[i];
        if (c->is_used && c->segment.shm != NULL) {
            atomic_store_explicit(&c->segment.shm->stopping, s->is_stopping || s->is_draining,
                                  memory_order_relaxed);
        }
    }
}

static void set_draining(struct kvf_supervisor *s, bool is_draining)
{
    if (s->is_draining != is_draining) {
        s->is_draining = is_draining;
        s->drain = TOLD_NOT;
        kvf_sup_show_stopping(s);
    }
}

void kvf_sup_operators_worker_ended(struct kvf_supervisor *s)
{
    s->is_worker_asked = false;
    s->drain = TOLD_NOT;
    s->level = TOLD_SENT; /* the next one is started with it */
    for (uint32_t i = 0; i < KVF_PEERS_DOWN_MAX; i++) {
        struct sup_hold *h = &s->holds[i];
        h->told = TOLD_NOT;
        if (h->is_used && !h->is_down) {
            *h = (struct sup_hold){0};
        }
    }
    static struct kvf_operate_rep rep;
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX; i++) {
        struct sup_operator *o = &s->operators[i];
        if (o->fd < 0 || !o->is_asking) {
            continue;
        }
        bool needs_worker = o->req.command == KVF_OPERATE_PEERS ||
                            o->req.command == KVF_OPERATE_ROOMS ||
                            o->req.command == KVF_OPERATE_RELEASE;
        memset(&rep, 0, offsetof(struct kvf_operate_rep, rows));
        if (needs_worker) {
            refuse(s, o, KVF_E_WORKER_GONE, "the worker ended before it answered: ask again");
        } else {
            answer(s, o, &rep);
        }
    }
}

static bool send_msg(struct kvf_supervisor *s, uint32_t op, uint32_t code)
{
    struct kvf_link_msg msg = {.op = op, .code = code};
    return kvf_packet_send(s->link_fd, &msg, sizeof(msg), NULL, 0) == 0;
}

static bool sync_hold(struct kvf_supervisor *s, struct sup_hold *h)
{
    struct kvf_link_hold msg = {
        .h = {.op = KVF_LINK_PEER_HOLD, .code = h->is_down, .value = h->peer_id},
        .addr = h->addr};
    if (kvf_packet_send(s->link_fd, &msg, sizeof(msg), NULL, 0) != 0) {
        return false;
    }
    h->told = TOLD_SENT;
    if (!h->is_down) {
        *h = (struct sup_hold){0};
    }
    return true;
}

bool kvf_sup_operators_sync(struct kvf_supervisor *s)
{
    if (s->level == TOLD_NOT) {
        if (!send_msg(s, KVF_LINK_LOG_LEVEL, s->config.log_level)) {
            return false;
        }
        s->level = TOLD_SENT;
    }
    for (uint32_t i = 0; i < KVF_PEERS_DOWN_MAX; i++) {
        if (s->holds[i].is_used && s->holds[i].told == TOLD_NOT &&
            !sync_hold(s, &s->holds[i])) {
            return false;
        }
    }
    if (s->drain == TOLD_NOT) {
        if (!send_msg(s, KVF_LINK_DRAIN, s->is_draining)) {
            return false;
        }
        s->drain = TOLD_SENT;
    }
    return true;
}

bool kvf_sup_operators_ask(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX && !s->is_worker_asked; i++) {
        struct sup_operator *o = &s->operators[i];
        if (o->fd < 0 || !o->is_asking) {
            continue;
        }
        o->ask = ++s->asks;
        struct kvf_link_operate msg = {.h = {.op = KVF_LINK_OPERATE, .value = o->ask},
                                       .req = o->req};
        if (kvf_packet_send(s->link_fd, &msg, sizeof(msg), NULL, 0) != 0) {
            return false;
        }
        o->is_sent = true;
        s->is_worker_asked = true;
    }
    return true;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

static bool is_change(uint32_t command)
{
    return command != KVF_OPERATE_STATUS && command != KVF_OPERATE_PEERS &&
           command != KVF_OPERATE_ROOMS;
}

static uint32_t check_peer(struct kvf_operate_req *req, const char **ret_text)
{
    uint8_t family = req->addr.family;
    *ret_text = "a peer is named by ADDR:PORT or by the id that kvfence-ctl peers shows";
    if (req->peer_id != 0 ? family != 0 : family != 4 && family != 6) {
        return KVF_E_OPTION;
    }
    /* Compared as a whole from here on. */
    req->addr.pad_ = 0;
    if (family == 4) {
        req->addr.scope = 0;
        memset(req->addr.addr + 4, 0, sizeof(req->addr.addr) - 4u);
    }
    *ret_text = NULL;
    return 0;
}

/* 0, or why it is refused. What needs no worker has happened then. */
static uint32_t act(struct kvf_supervisor *s, struct sup_operator *o, const char **ret_text)
{
    struct kvf_operate_req *req = &o->req;
    switch (req->command) { /* a number of the world's */
    case KVF_OPERATE_STATUS:
        return 0;
    case KVF_OPERATE_PEERS:
    case KVF_OPERATE_ROOMS:
        *ret_text = "the worker is just being started: ask again";
        req->phases &= PHASES_ALL;
        return s->worker == WORKER_SERVING ? 0 : KVF_E_WORKER_GONE;
    case KVF_OPERATE_RELEASE:
        if (req->word != KVF_OPERATE_WORD) {
            *ret_text = "a release from quarantine needs the operator's explicit word";
            return EPERM;
        }
        *ret_text = "the worker is just being started: ask again";
        if (s->worker != WORKER_SERVING) {
            return KVF_E_WORKER_GONE;
        }
        /* Whoever asks may be gone before the worker has answered: the wish is on record before it. */
        kvf_log(
            KVF_LOG_WARN,
            "operator (uid %u, pid %d) asks to release client %u slot %u generation %llu from "
            "quarantine WITHOUT PROOF",
            o->uid, (int)o->pid, req->client, req->slot, (unsigned long long)req->generation);
        return 0;
    case KVF_OPERATE_DRAIN:
    case KVF_OPERATE_UNDRAIN:
        if (s->is_stopping) {
            *ret_text = "the daemon is stopping, which no drain or undrain changes";
            return ESHUTDOWN;
        }
        set_draining(s, req->command == KVF_OPERATE_DRAIN);
        return 0;
    case KVF_OPERATE_PEER_DOWN:
    case KVF_OPERATE_PEER_UP: {
        uint32_t code = check_peer(req, ret_text);
        return code != 0 ? code : hold(s, req, req->command == KVF_OPERATE_PEER_DOWN, ret_text);
    }
    case KVF_OPERATE_LOG_LEVEL:
        if (req->level > KVF_LOG_DEBUG) {
            *ret_text = "error, warn, info and debug are log levels";
            return KVF_E_OPTION;
        }
        s->config.log_level = req->level;
        s->level = TOLD_NOT;
        kvf_log_set_level((enum kvf_log_level)req->level);
        return 0;
    default:
        *ret_text = "this daemon does not know that command: it is older than kvfence-ctl";
        return KVF_E_PROTOCOL;
    }
}

static void log_change(const struct sup_operator *o)
{
    static const char *const names[] = {[KVF_OPERATE_DRAIN] = "drain",
                                        [KVF_OPERATE_UNDRAIN] = "undrain",
                                        [KVF_OPERATE_PEER_DOWN] = "peer down",
                                        [KVF_OPERATE_PEER_UP] = "peer up",
                                        [KVF_OPERATE_LOG_LEVEL] = "log-level"};
    char addr[64] = "";
    if (o->req.command == KVF_OPERATE_PEER_DOWN || o->req.command == KVF_OPERATE_PEER_UP) {
        if (o->req.peer_id != 0) {
            snprintf(addr, sizeof(addr), " id %016llx", (unsigned long long)o->req.peer_id);
        } else {
            addr[0] = ' ';
            kvf_addr_format(&o->req.addr, addr + 1, sizeof(addr) - 1u);
        }
    }
    kvf_log(KVF_LOG_WARN, "operator (uid %u, pid %d): %s%s", o->uid, (int)o->pid,
            names[o->req.command], addr);
}

static void take(struct kvf_supervisor *s, struct sup_operator *o,
                 const struct kvf_operate_req *req)
{
    const char *text = NULL;
    uint32_t code = 0;
    o->req = *req;
    if (is_change(req->command) && o->uid != 0 && o->uid != geteuid()) {
        text = "only root and the user that the daemon runs as may change something";
        code = EPERM;
    } else {
        code = act(s, o, &text);
    }
    if (code != 0) {
        kvf_log(KVF_LOG_INFO, "operator (uid %u, pid %d) refused: %s", o->uid, (int)o->pid,
                text != NULL ? text : kvf_code_text((int)code));
        refuse(s, o, code, text);
        return;
    }
    if (is_change(req->command) && req->command != KVF_OPERATE_RELEASE) {
        log_change(o); /* a release is logged with what became of it */
    }
    if (s->worker != WORKER_SERVING) {
        static struct kvf_operate_rep rep;
        memset(&rep, 0, offsetof(struct kvf_operate_rep, rows));
        answer(s, o, &rep); /* the next worker is told */
        return;
    }
    o->is_asking = true;
    o->deadline_ns = s->now_ns + ANSWER_NS;
    watch(s, o);
    kvf_sup_sync(s);
}

/* ---- connections ----------------------------------------------------------------------------------------------- */

static bool is_request(const struct kvf_operate_req *req, size_t bytes)
{
    return bytes == sizeof(*req) && req->h.magic == KVF_ATTACH_MAGIC && req->h.bytes == bytes &&
           req->h.layout_major == KVF_LAYOUT_MAJOR && req->h.op == KVF_REQ_OPERATE;
}

uint32_t kvf_sup_operator_first(struct kvf_supervisor *s, int fd,
                                const struct kvf_operate_req *req, size_t bytes,
                                const char **ret_text)
{
    struct ucred who;
    socklen_t who_bytes = sizeof(who);
    if (!is_request(req, bytes)) {
        *ret_text = "this is no request of kvfence-ctl";
        return KVF_E_PROTOCOL;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) != 0) {
        return (uint32_t)errno;
    }
    struct sup_operator *free_one = NULL;
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX; i++) {
        struct sup_operator *o = &s->operators[i];
        if (o->fd >= 0 && o->uid == who.uid) {
            *ret_text = "another kvfence-ctl of this user is being answered: one at a time";
            return EBUSY;
        }
        free_one = o->fd < 0 && free_one == NULL ? o : free_one;
    }
    if (free_one == NULL) {
        *ret_text = "as many operators as allowed are being answered: try again";
        return EBUSY;
    }
    uint32_t idx = (uint32_t)(free_one - s->operators);
    /* The epoll entry of the half-open connection names another table. */
    kvf_sup_rewatch(s, fd, EPOLLRDHUP, SUP_EPOLL_OPERATOR, idx);
    *free_one = (struct sup_operator){.fd = fd, .uid = who.uid, .pid = who.pid};
    take(s, free_one, req);
    return 0;
}

void kvf_sup_operator_ready(struct kvf_supervisor *s, uint32_t idx, uint32_t events)
{
    struct sup_operator *o = &s->operators[idx];
    if (o->fd < 0) {
        return; /* gone earlier in this round of events */
    }
    struct kvf_operate_req req;
    int fds[KVF_PACKET_FDS_MAX] = {-1};
    int fd_count = 0;
    int got =
        o->is_asking ? -EAGAIN : kvf_packet_receive(o->fd, &req, sizeof(req), fds, &fd_count);
    if (got == -EAGAIN &&
        ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) == 0 || !kvf_sup_has_hung_up(o->fd))) {
        return;
    }
    kvf_close_fds(fds, fd_count);
    if (got <= 0 || !is_request(&req, (size_t)got)) {
        hang_up(o);
        return;
    }
    take(s, o, &req);
}

void kvf_sup_operators_expire(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX; i++) {
        struct sup_operator *o = &s->operators[i];
        if (o->fd < 0 || s->now_ns < o->deadline_ns) {
            continue;
        }
        if (o->is_asking) {
            (void)kvf_sup_send_refusal(o->fd, o->req.h.serial, ETIMEDOUT,
                                       "the worker did not answer within 5 s; what was changed "
                                       "holds for the next one");
        }
        hang_up(o);
    }
}

uint64_t kvf_sup_operators_deadline(const struct kvf_supervisor *s)
{
    uint64_t deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < KVF_OPERATORS_MAX; i++) {
        const struct sup_operator *o = &s->operators[i];
        deadline_ns = o->fd >= 0 && o->deadline_ns < deadline_ns ? o->deadline_ns : deadline_ns;
    }
    return deadline_ns;
}

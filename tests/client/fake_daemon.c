#include "tests/client/fake_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring/codes.h"
#include "ring/ledger.h"

extern char **environ;

#define FAKE_FDS_MAX 8

/* A test's own mistake or a machine that gives nothing: ends the test program. */
#define MUST(condition)                                                                        \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);  \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/* ---- packets --------------------------------------------------------------------------------------- */

static void send_reply(struct fake_daemon *fake, struct kvf_attach_rep *rep, const int *fds,
                       int fd_count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FAKE_FDS_MAX * sizeof(int))];
    } control = {.bytes = {0}};
    rep->h.magic = fake->is_garbled ? 1 : KVF_ATTACH_MAGIC;
    rep->h.layout_major = fake->layout_major;
    rep->h.bytes = sizeof *rep;
    struct iovec iov = {.iov_base = rep, .iov_len = sizeof *rep};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, (size_t)fd_count * sizeof(int));
    }
    (void)sendmsg(fake->conn_fd, &msg, MSG_NOSIGNAL);
}

static ssize_t receive(int fd, void *packet, size_t cap, int *fds, int *fd_count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FAKE_FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = packet, .iov_len = cap};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    *fd_count = 0;
    if (got <= 0) {
        return got;
    }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            memcpy(&fds[(*fd_count)++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        }
    }
    return got;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static void map_segment(struct fake_daemon *fake)
{
    MUST(kvf_segment_map(fake->segment_fd, false, &fake->own) == 0);
    fake->view = &fake->own;
    uint64_t push;
    uint64_t pop;
    MUST(kvf_spsc_recover(fake->own.cmd_slots, fake->own.limits.cmd_slots, &push, &pop) == 0);
    kvf_spsc_consumer_init(&fake->cmds, fake->own.cmd_slots, fake->own.limits.cmd_slots, pop);
    MUST(kvf_spsc_recover(fake->own.event_slots, fake->own.limits.event_slots, &push, &pop) ==
         0);
    kvf_spsc_producer_init(&fake->events, fake->own.event_slots, fake->own.limits.event_slots,
                           push);
    atomic_store(&fake->own.shm->worker_epoch, fake->epoch);
    fake->own.shm->lanes_per_peer = 2;
    fake->own.shm->bound_usual_us = 3750000;
    fake->own.shm->bound_worst_us = 9750000;
}

static void do_attach(struct fake_daemon *fake, const struct kvf_attach_req *req, int *fds,
                      int fd_count)
{
    if (fd_count == 1) {
        close_fd(&fake->segment_fd);
        fake->segment_fd = fds[0];
        fds[0] = -1;
        kvf_segment_unmap(&fake->own);
    } else {
        struct kvf_segment_limits limits = {.rooms_max = req->rooms_max,
                                            .cmd_slots = req->cmd_slots,
                                            .event_slots = req->event_slots,
                                            .arena_bytes = req->arena_bytes,
                                            .regions_max = KVF_REGIONS_PER_CLIENT_MAX};
        MUST(kvf_segment_create(&limits, 0x1234567890abcdef, &fake->segment_fd) == 0);
    }
    map_segment(fake);
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    close_fd(&fake->event_fd);
    close_fd(&fake->doorbell_fd);
    fake->event_fd = pair[0];
    fake->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int stats_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out[5] = {fake->segment_fd, stats_fd, fake->worker_fd, fake->doorbell_fd, pair[1]};
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_ATTACHED, .serial = req->h.serial},
                                 .epoch = fake->epoch};
    send_reply(fake, &rep, out, 5);
    close(stats_fd);
    close(pair[1]);
    atomic_fetch_add(&fake->attached_count, 1);
}

static int make_ledger(uint64_t page_count, uint32_t handle)
{
    int fd;
    void *addr;
    uint64_t bytes = kvf_ledger_bytes(page_count);
    MUST(kvf_memory_create("fake-ledger", bytes, &fd) == 0);
    MUST(kvf_memory_map(fd, 0, bytes, true, false, &addr) == 0);
    kvf_ledger_format(addr, page_count, handle);
    kvf_memory_unmap(addr, bytes);
    return fd;
}

static void do_region_add(struct fake_daemon *fake, const struct kvf_region_req *req, int *fds,
                          int fd_count)
{
    uint32_t slot = 0;
    if (fd_count == 2) {
        slot = req->region & 0xffu;
        atomic_fetch_add(&fake->readded_count, 1);
    } else {
        while (fake->regions[slot].handle != 0) {
            slot++;
        }
    }
    struct fake_region *region = &fake->regions[slot];
    region->handle = fd_count == 2 ? req->region : ++fake->region_epoch << 8 | slot;
    region->page_count = req->page_count;
    region->memory = req->h.bytes == sizeof *req ? req->memory : KVF_REGION_MEMORY_HOST;
    region->memory_fd = fds[0];
    region->ledger_fd = fd_count == 2 ? fds[1] : make_ledger(req->page_count, region->handle);
    fds[0] = -1;
    fds[1] = -1;
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_REGION, .serial = req->h.serial},
                                 .region = region->handle + fake->wrong_region};
    send_reply(fake, &rep, &region->ledger_fd, 1);
}

static void drop_regions(struct fake_daemon *fake)
{
    for (uint32_t i = 0; i < KVF_REGIONS_PER_CLIENT_MAX; i++) {
        if (fake->regions[i].handle != 0) {
            close_fd(&fake->regions[i].memory_fd);
            close_fd(&fake->regions[i].ledger_fd);
            fake->regions[i].handle = 0;
        }
    }
}

static void do_region_remove(struct fake_daemon *fake, const struct kvf_region_req *req)
{
    struct fake_region *region = &fake->regions[req->region & 0xffu];
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_OK, .serial = req->h.serial}};
    if (region->handle != req->region) {
        rep.h.op = KVF_REP_REFUSED;
        rep.code = KVF_E_UNKNOWN_REGION;
    } else {
        close_fd(&region->memory_fd);
        close_fd(&region->ledger_fd);
        region->handle = 0;
    }
    send_reply(fake, &rep, NULL, 0);
}

static void do_group_add(struct fake_daemon *fake, const struct kvf_group_req *req)
{
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_GROUP, .serial = req->h.serial}};
    rep.region = req->group != 0 ? req->group : ++fake->group_count;
    fake->group = *req;
    rep.region += fake->wrong_region;
    atomic_fetch_add(&fake->group_requests, 1);
    send_reply(fake, &rep, NULL, 0);
}

static void do_group_skip(struct fake_daemon *fake, const struct kvf_group_skip_req *req)
{
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_OK, .serial = req->h.serial}};
    fake->skip = *req;
    atomic_fetch_add(&fake->skip_requests, 1);
    send_reply(fake, &rep, NULL, 0);
}

static void answer(struct fake_daemon *fake, const struct kvf_attach_header *h, int *fds,
                   int fd_count)
{
    if (atomic_load(&fake->is_silent)) {
        return;
    }
    if (atomic_load(&fake->refuse_op) == h->op) {
        struct kvf_attach_rep rep = {.h = {.op = KVF_REP_REFUSED, .serial = h->serial},
                                     .code = atomic_load(&fake->refuse_code)};
        send_reply(fake, &rep, NULL, 0);
        return;
    }
    switch (h->op) {
    case KVF_REQ_ATTACH:
        do_attach(fake, (const void *)h, fds, fd_count);
        break;
    case KVF_REQ_REGION_ADD:
        do_region_add(fake, (const void *)h, fds, fd_count);
        break;
    case KVF_REQ_REGION_REMOVE:
        do_region_remove(fake, (const void *)h);
        break;
    case KVF_REQ_GROUP_ADD:
        do_group_add(fake, (const void *)h);
        break;
    case KVF_REQ_GROUP_SKIP:
        do_group_skip(fake, (const void *)h);
        break;
    case KVF_REQ_DETACH: {
        struct kvf_attach_rep rep = {.h = {.op = KVF_REP_OK, .serial = h->serial}};
        atomic_fetch_add(&fake->detached_count, 1);
        send_reply(fake, &rep, NULL, 0);
        break;
    }
    default:
        MUST(h->op == KVF_REQ_DETACH); /* the library makes no other request */
    }
}

static void *serve(void *arg)
{
    struct fake_daemon *fake = arg;
    static _Thread_local union {
        struct kvf_attach_header h;
        struct kvf_region_req region;
    } packet;
    for (;;) {
        struct pollfd fds[3] = {{.fd = fake->stop_fd, .events = POLLIN},
                                {.fd = fake->listen_fd, .events = POLLIN},
                                {.fd = fake->conn_fd, .events = POLLIN}};
        MUST(poll(fds, 3, -1) > 0);
        if (fds[0].revents != 0) {
            return NULL;
        }
        if (fds[2].revents != 0) {
            int in[FAKE_FDS_MAX];
            int count;
            ssize_t got = receive(fake->conn_fd, &packet, sizeof packet, in, &count);
            if (got <= 0) {
                close_fd(&fake->conn_fd);
                drop_regions(fake);
                atomic_fetch_add(&fake->hung_up_count, 1);
                continue;
            }
            answer(fake, &packet.h, in, count);
            for (int i = 0; i < count; i++) {
                close_fd(&in[i]);
            }
        } else if (fds[1].revents != 0 && fake->conn_fd < 0) {
            fake->conn_fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        }
    }
}

/* ---- life --------------------------------------------------------------------------------------------- */

void fake_supervisor_start(struct fake_daemon *fake)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", fake->path);
    unlink(fake->path);
    fake->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(bind(fake->listen_fd, (const struct sockaddr *)&addr, sizeof addr) == 0);
    MUST(listen(fake->listen_fd, 8) == 0);
    fake->stop_fd = eventfd(0, EFD_CLOEXEC);
    MUST(pthread_create(&fake->thread, NULL, serve, fake) == 0);
}

void fake_supervisor_kill(struct fake_daemon *fake)
{
    MUST(eventfd_write(fake->stop_fd, 1) == 0);
    pthread_join(fake->thread, NULL);
    unlink(fake->path);
    close_fd(&fake->stop_fd);
    close_fd(&fake->listen_fd);
    close_fd(&fake->conn_fd);
    drop_regions(fake);
}

void fake_worker_start(struct fake_daemon *fake, uint64_t epoch)
{
    /* Reads a pipe that only this process can end, so that it cannot outlive a test that crashed. */
    char *argv[] = {(char *)"cat", NULL};
    int life[2];
    posix_spawn_file_actions_t actions;
    int execed[2];
    MUST(pipe2(life, O_CLOEXEC) == 0);
    MUST(pipe2(execed, O_CLOEXEC) == 0);
    int last = fcntl(execed[1], F_DUPFD_CLOEXEC, 500);
    MUST(last >= 0);
    close(execed[1]);
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, life[0], 0) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0);
    MUST(posix_spawnp(&fake->worker_pid, "cat", &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(life[0]);
    /* The child runs on before its exec has closed its copies of our sockets, which would hide a hang-up for
     * a moment. They are closed in order, this one last. */
    char byte;
    close(last);
    MUST(read(execed[0], &byte, 1) == 0);
    close(execed[0]);
    close_fd(&fake->life_fd);
    fake->life_fd = life[1];
    fake->worker_fd = (int)syscall(SYS_pidfd_open, fake->worker_pid, 0);
    if (fake->worker_fd < 0 && errno == ENOSYS) {
        fake->worker_fd =
            eventfd(0, EFD_CLOEXEC); /* under valgrind: a worker that never ends */
    }
    MUST(fake->worker_fd >= 0);
    fake->epoch = epoch;
    if (fake->own.shm != NULL) {
        atomic_store(&fake->own.shm->worker_epoch, epoch);
    }
}

void fake_worker_kill(struct fake_daemon *fake)
{
    if (fake->worker_pid > 0) {
        kill(fake->worker_pid, SIGKILL);
        MUST(waitpid(fake->worker_pid, NULL, 0) == fake->worker_pid);
        fake->worker_pid = 0;
        close_fd(&fake->worker_fd);
        close_fd(&fake->life_fd);
    }
}

void fake_note_worker(struct fake_daemon *fake)
{
    struct kvf_attach_rep rep = {.h = {.op = KVF_NOTE_WORKER}, .epoch = fake->epoch};
    send_reply(fake, &rep, &fake->worker_fd, 1);
}

void fake_note_refused(struct fake_daemon *fake, uint32_t code)
{
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_REFUSED}, .code = code};
    send_reply(fake, &rep, NULL, 0);
}

/* A test that fails or crashes does not reach fake_stop. The folder then goes with the end of this process:
 * the sweeper reads a pipe that nobody writes. */
static void start_sweeper(struct fake_daemon *fake)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)"read -r none; rm -rf \"$0\"",
                    fake->dir, NULL};
    int life[2];
    posix_spawn_file_actions_t actions;
    MUST(pipe2(life, O_CLOEXEC) == 0);
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, life[0], 0) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0);
    MUST(posix_spawnp(&fake->sweeper_pid, "sh", &actions, NULL, argv, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(life[0]);
    fake->sweeper_fd = life[1];
}

static void stop_sweeper(struct fake_daemon *fake)
{
    kill(fake->sweeper_pid, SIGKILL);
    MUST(waitpid(fake->sweeper_pid, NULL, 0) == fake->sweeper_pid);
    close_fd(&fake->sweeper_fd);
}

void fake_start(struct fake_daemon *fake)
{
    memset(fake, 0, sizeof *fake);
    fake->layout_major = KVF_LAYOUT_MAJOR;
    fake->listen_fd = fake->conn_fd = fake->stop_fd = -1;
    fake->segment_fd = fake->worker_fd = fake->doorbell_fd = fake->event_fd = -1;
    fake->life_fd = -1;
    snprintf(fake->dir, sizeof fake->dir, "/tmp/kvf-fake-XXXXXX");
    MUST(mkdtemp(fake->dir) != NULL);
    start_sweeper(fake);
    snprintf(fake->path, sizeof fake->path, "%s/gpu0.sock", fake->dir);
    fake_worker_start(fake, 0x1001);
    fake_supervisor_start(fake);
}

void fake_stop(struct fake_daemon *fake)
{
    if (fake->listen_fd >= 0) {
        fake_supervisor_kill(fake);
    }
    fake_worker_kill(fake);
    if (fake->own.shm != NULL) {
        kvf_segment_unmap(&fake->own);
    }
    close_fd(&fake->segment_fd);
    close_fd(&fake->doorbell_fd);
    close_fd(&fake->event_fd);
    MUST(rmdir(fake->dir) == 0);
    stop_sweeper(fake);
}

int fake_attach(struct fake_daemon *fake, uint32_t rooms, uint32_t slots, uint32_t arena,
                kvf_client **ret_client)
{
    struct kvf_attach_opts opts = {.size_bytes = sizeof opts,
                                   .timeout_ms = 2000,
                                   .socket_path = fake->path,
                                   .rooms_max = rooms,
                                   .cmd_slots = slots,
                                   .event_slots = slots,
                                   .arena_bytes = arena};
    return kvf_attach(&opts, ret_client);
}

void fake_memory_make(kvf_client *client, uint32_t page_count, struct fake_memory *ret_memory)
{
    struct kvf_pool_opts pool = {.size_bytes = sizeof pool,
                                 .numa_node = -1,
                                 .bytes = (uint64_t)page_count * 4096u,
                                 .huge_pages = 2};
    MUST(kvf_pool_create(&pool, &ret_memory->pool) == 0);
    struct kvf_plane plane = {.off = 0, .stride = 4096, .page_bytes = 4096};
    struct kvf_region_opts region = {.size_bytes = sizeof region,
                                     .fd = kvf_pool_fd(ret_memory->pool),
                                     .memory_bytes = pool.bytes,
                                     .page_count = page_count,
                                     .planes = &plane,
                                     .plane_count = 1};
    MUST(kvf_region_register(client, &region, &ret_memory->region) == 0);
}

/* ---- the worker ---------------------------------------------------------------------------------------- */

int fake_pop_unread(struct fake_daemon *fake, struct kvf_cmd_shm *ret_cmd)
{
    return (int)kvf_spsc_pop(&fake->cmds, ret_cmd, 1);
}

int fake_pop(struct fake_daemon *fake, struct kvf_cmd_shm *ret_cmd)
{
    int got = fake_pop_unread(fake, ret_cmd);
    atomic_store_explicit(&fake->view->shm->cmd_consumed, fake->cmds.pos, memory_order_release);
    return got;
}

const void *fake_record(const struct fake_daemon *fake, const struct kvf_cmd_shm *cmd)
{
    return fake->view->arena + cmd->arena_off;
}

static void tell(struct fake_daemon *fake)
{
    struct kvf_segment_shm *shm = fake->view->shm;
    if (atomic_load_explicit(&shm->events_armed, memory_order_seq_cst) != 0 &&
        atomic_exchange_explicit(&shm->events_armed, 0, memory_order_seq_cst) != 0) {
        (void)send(fake->event_fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

void fake_publish(struct fake_daemon *fake, kvf_room room, enum kvf_phase phase,
                  enum kvf_outcome outcome, enum kvf_proof proof, enum kvf_poll_state state,
                  uint64_t flags)
{
    uint32_t slot = fake_slot(room);
    struct kvf_room_shm *line = &fake->view->rooms[slot];
    uint64_t word = kvf_word_make(fake_generation(room), phase, outcome, proof, state, flags);
    atomic_store_explicit(&line->epoch, fake->epoch, memory_order_relaxed);
    atomic_store_explicit(&line->word, word, memory_order_release);
    struct kvf_event_shm event = {
        .slot = slot, .generation = fake_generation(room), .word = word};
    if (kvf_spsc_push_seq_cst(&fake->events, &event, 1) == 0) {
        fake_lose_event(fake);
    }
    tell(fake);
}

void fake_lose_event(struct fake_daemon *fake)
{
    atomic_fetch_add(&fake->view->shm->events_lost, 1);
}

void fake_open(struct fake_daemon *fake, kvf_room room, enum kvf_poll_state state)
{
    fake_publish(fake, room, KVF_PHASE_OPEN, KVF_OUTCOME_NONE, KVF_PROOF_NONE, state, 0);
}

void fake_succeed(struct fake_daemon *fake, kvf_room room)
{
    fake_publish(fake, room, KVF_PHASE_DRAINED, KVF_OUTCOME_SUCCESS, KVF_PROOF_LANDED,
                 KVF_STATE_SUCCESS, KVF_WORD_VISIBLE);
}

void fake_fail(struct fake_daemon *fake, kvf_room room, enum kvf_proof proof, uint32_t reason)
{
    struct kvf_room_shm *line = &fake->view->rooms[fake_slot(room)];
    atomic_store_explicit(&line->reason, reason, memory_order_relaxed);
    fake_publish(fake, room, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED, proof, KVF_STATE_FAILED,
                 KVF_WORD_FAILED_EARLY);
}

void fake_sleep(struct fake_daemon *fake, bool is_asleep)
{
    atomic_store(&fake->view->shm->sleeping, is_asleep);
}

uint64_t fake_rings(struct fake_daemon *fake)
{
    eventfd_t count = 0;
    return eventfd_read(fake->doorbell_fd, &count) == 0 ? count : 0;
}

/* ---- short forms ------------------------------------------------------------------------------------------ */

int fake_open_sink(kvf_client *client, uint32_t region, const int32_t *pages, size_t page_count,
                   kvf_room *ret_room)
{
    const char *writers[] = {"127.0.0.1:7000"};
    struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                 .region = region,
                                 .label = 7,
                                 .key = 99,
                                 .pages = pages,
                                 .page_count = page_count,
                                 .writers = writers,
                                 .writer_count = 1};
    return kvf_open_sink(client, &opts, ret_room);
}

int fake_open_source(kvf_client *client, uint32_t region, kvf_room *ret_room)
{
    struct kvf_source_opts opts = {
        .size_bytes = sizeof opts, .region = region, .label = 7, .key = 99};
    return kvf_open_source(client, &opts, ret_room);
}

int fake_submit(kvf_client *client, kvf_room room, uint32_t region, const int32_t *pages,
                size_t page_count, uint32_t start, uint32_t flags)
{
    struct kvf_piece_opts opts = {.size_bytes = sizeof opts,
                                  .region = region,
                                  .pages = pages,
                                  .page_count = page_count,
                                  .start = start,
                                  .flags = flags};
    return kvf_submit(client, room, &opts);
}

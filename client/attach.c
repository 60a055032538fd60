/* Attaching to a daemon, coming back to the next one, and leaving. */
#include "client/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define KVF_LIMIT_DEFAULT 1024u
#define KVF_ARENA_DEFAULT (UINT32_C(4) << 20)
#define KVF_CHUNKS_MAX (UINT32_C(1) << 21)
#define KVF_INTERVALS_PER_ROOM 16u

/* Descriptors of KVF_REP_ATTACHED, in this order. */
enum {
    KVF_FD_SEGMENT,
    KVF_FD_STATS,
    KVF_FD_WORKER,
    KVF_FD_DOORBELL,
    KVF_FD_EVENTS,
    KVF_FD_COUNT
};

/* ---- options --------------------------------------------------------------------------------------------- */

static int copy_text(char *ret, size_t ret_bytes, const char *text)
{
    size_t text_bytes = strlen(text);
    if (text_bytes == 0 || text_bytes >= ret_bytes) {
        return -KVF_E_OPTION;
    }
    memcpy(ret, text, text_bytes + 1u);
    return 0;
}

static const char *env_of(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static int find_socket_path(const struct kvf_attach_opts *o, char *ret_path, size_t ret_bytes)
{
    const char *path = o->socket_path != NULL ? o->socket_path : env_of("KVFENCE_SOCKET");
    if (path != NULL) {
        return copy_text(ret_path, ret_bytes, path);
    }
    const char *name = o->daemon_name != NULL ? o->daemon_name : "gpu0";
    const char *dir = env_of("KVFENCE_RUN_DIR");
    const char *below = "";
    if (dir == NULL && geteuid() == 0) {
        dir = "/run/kvfence";
    }
    if (dir == NULL) {
        dir = env_of("XDG_RUNTIME_DIR");
        below = "/kvfence";
    }
    if (dir == NULL) {
        return -KVF_E_NO_DAEMON;
    }
    if (name[0] == '\0' || strchr(name, '/') != NULL) {
        return -KVF_E_OPTION;
    }
    int bytes = snprintf(ret_path, ret_bytes, "%s%s/%s.sock", dir, below, name);
    return bytes > 0 && (size_t)bytes < ret_bytes ? 0 : -KVF_E_OPTION;
}

static int check_opts(const struct kvf_attach_opts *opts, struct kvf_attach_opts *o)
{
    int err = kvf_client_copy_opts(o, sizeof *o, opts);
    if (err != 0) {
        return err;
    }
    if (!kvf_client_is_zero(o->pad_, sizeof o->pad_)) {
        return -KVF_E_OPTION;
    }
    o->rooms_max = o->rooms_max != 0 ? o->rooms_max : KVF_LIMIT_DEFAULT;
    o->cmd_slots = o->cmd_slots != 0 ? o->cmd_slots : KVF_LIMIT_DEFAULT;
    o->event_slots = o->event_slots != 0 ? o->event_slots : KVF_LIMIT_DEFAULT;
    o->arena_bytes = o->arena_bytes != 0 ? o->arena_bytes : KVF_ARENA_DEFAULT;
    struct kvf_segment_limits limits = {.rooms_max = o->rooms_max,
                                        .cmd_slots = o->cmd_slots,
                                        .event_slots = o->event_slots,
                                        .arena_bytes = o->arena_bytes,
                                        .regions_max = KVF_REGIONS_PER_CLIENT_MAX};
    return kvf_segment_check_limits(&limits) == 0 ? 0 : -KVF_E_LIMIT_RANGE;
}

/* ---- private memory --------------------------------------------------------------------------------------- */

struct private_layout {
    uint64_t slots_off;
    uint64_t counted_off;
    uint64_t marks_off;
    uint64_t runs_off;
    uint64_t chunks_off;
    uint64_t intervals_off;
    uint64_t bytes;
    uint32_t mark_count;
    uint32_t runs_max;
    uint32_t chunk_count;
    uint32_t interval_count;
};

static uint64_t place(uint64_t *bytes, uint64_t wanted)
{
    uint64_t off = *bytes;
    *bytes += (wanted + KVF_PAGE_BYTES - 1u) & ~(uint64_t)(KVF_PAGE_BYTES - 1u);
    return off;
}

/* Sized for the worst that the limits allow; only what is used is ever touched. */
static struct private_layout lay_out(const struct kvf_segment_limits *limits)
{
    struct private_layout l = {.bytes = 0};
    l.mark_count = limits->cmd_slots * 2u;
    l.runs_max = limits->arena_bytes / (uint32_t)sizeof(struct kvf_run_shm);
    if (l.runs_max > KVF_RUNS_PER_LIST_MAX) {
        l.runs_max = KVF_RUNS_PER_LIST_MAX;
    }
    uint64_t chunks = (uint64_t)limits->rooms_max * 4u + limits->arena_bytes / 32u;
    l.chunk_count = chunks > KVF_CHUNKS_MAX ? KVF_CHUNKS_MAX : (uint32_t)chunks;
    l.interval_count = limits->rooms_max * KVF_INTERVALS_PER_ROOM + limits->cmd_slots;
    l.slots_off = place(&l.bytes, (uint64_t)limits->rooms_max * sizeof(struct kvf_slot));
    l.counted_off = place(&l.bytes, ((uint64_t)limits->rooms_max + 63u) / 64u * 8u);
    l.marks_off = place(&l.bytes, (uint64_t)l.mark_count * sizeof(struct kvf_arena_mark));
    l.runs_off = place(&l.bytes, (uint64_t)l.runs_max * sizeof(struct kvf_run_shm));
    l.chunks_off = place(&l.bytes, (uint64_t)l.chunk_count * sizeof(struct kvf_run_chunk));
    l.intervals_off = place(&l.bytes, (uint64_t)l.interval_count * sizeof(struct kvf_interval));
    return l;
}

static int init_private(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    const struct kvf_segment *segment = &cold->segment;
    struct private_layout l = lay_out(&segment->limits);
    void *memory;
    int err = kvf_memory_map_private(l.bytes, 0, &memory);
    if (err != 0) {
        return err;
    }
    unsigned char *base = memory;
    cold->private_memory = memory;
    cold->private_bytes = l.bytes;
    cold->slots = (struct kvf_slot *)(void *)(base + l.slots_off);
    cold->counted = (_Atomic uint64_t *)(void *)(base + l.counted_off);
    cold->runs = (struct kvf_run_shm *)(void *)(base + l.runs_off);
    cold->runs_max = l.runs_max;
    kvf_nodes_init(&cold->chunk_nodes, base + l.chunks_off, sizeof(struct kvf_run_chunk),
                   l.chunk_count);
    kvf_nodes_init(&cold->interval_nodes, base + l.intervals_off, sizeof(struct kvf_interval),
                   l.interval_count);
    kvf_arena_init(&cold->arena, segment->arena, segment->limits.arena_bytes,
                   (struct kvf_arena_mark *)(void *)(base + l.marks_off), l.mark_count);
    return 0;
}

/* ---- attach ------------------------------------------------------------------------------------------------ */

static int init_rings(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    const struct kvf_segment *segment = &cold->segment;
    uint64_t producer_pos;
    uint64_t consumer_pos;
    if (kvf_spsc_recover(segment->cmd_slots, segment->limits.cmd_slots, &producer_pos,
                         &consumer_pos) != 0) {
        return -KVF_E_PROTOCOL;
    }
    kvf_spsc_producer_init(&cold->cmds, segment->cmd_slots, segment->limits.cmd_slots,
                           producer_pos);
    if (kvf_spsc_recover(segment->event_slots, segment->limits.event_slots, &producer_pos,
                         &consumer_pos) != 0) {
        return -KVF_E_PROTOCOL;
    }
    kvf_spsc_consumer_init(&cold->events, segment->event_slots, segment->limits.event_slots,
                           consumer_pos);
    cold->events_lost_seen =
        atomic_load_explicit(&segment->shm->events_lost, memory_order_relaxed);
    cold->epoch_seen =
        atomic_load_explicit(&segment->shm->worker_epoch, memory_order_acquire); /* E1 */
    return 0;
}

static void init_slots(kvf_client *client)
{
    struct kvf_cold *cold = &client->cold;
    for (uint32_t idx = 0; idx < cold->segment.limits.rooms_max; idx++) {
        struct kvf_slot *slot = &cold->slots[idx];
        /* Never below anything that was ever written here. */
        slot->generation =
            atomic_load_explicit(&cold->segment.intents[idx].generation, memory_order_relaxed);
        slot->chunks = KVF_NO_INDEX;
        slot->intervals = KVF_NO_INDEX;
        slot->state = KVF_SLOT_FREE;
        atomic_store_explicit(&client->hot.handles[idx], kvf_client_no_handle(idx),
                              memory_order_relaxed);
        kvf_client_slot_queue_push(client, &cold->free_slots, idx);
    }
    client->hot.rooms_off = (uint64_t)((uintptr_t)cold->segment.rooms - (uintptr_t)cold);
    client->hot.is_ours = 1;
}

static int segment_refusal(int err)
{
    switch (err) {
    case -ENOTSUP:
        return -KVF_E_LAYOUT;
    case -EPROTO:
    case -EPERM:
    case -EAGAIN:
        return -KVF_E_PROTOCOL;
    default:
        return err;
    }
}

/* The daemon's answer, with or without a worker at this moment. */
static int check_reply(const struct kvf_reply *reply)
{
    if (reply->rep.h.layout_major != KVF_LAYOUT_MAJOR) {
        return -KVF_E_LAYOUT;
    }
    return reply->fd_count == KVF_FD_COUNT ? 0 : -KVF_E_PROTOCOL;
}

static int init_locks(struct kvf_cold *cold)
{
    pthread_mutex_t *locks[] = {&cold->lock, &cold->socket_lock, &cold->wait_lock};
    pthread_mutexattr_t attr;
    int err = -pthread_mutexattr_init(&attr);
    if (err != 0) {
        return err;
    }
    /* Adaptive: spins a little before it asks the kernel; holders are in the middle of short calls. */
    err = -pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    for (size_t i = 0; err == 0 && i < sizeof locks / sizeof locks[0]; i++) {
        err = -pthread_mutex_init(locks[i], &attr);
    }
    pthread_mutexattr_destroy(&attr);
    return err;
}

static int request_attach(kvf_client *client, int fd, const struct kvf_attach_opts *o,
                          const int *segment_fd, uint64_t deadline_ns,
                          struct kvf_reply *ret_reply)
{
    struct kvf_attach_req req = {.h.op = KVF_REQ_ATTACH,
                                 .layout_minor = KVF_LAYOUT_MINOR,
                                 .rooms_max = o->rooms_max,
                                 .cmd_slots = o->cmd_slots,
                                 .event_slots = o->event_slots,
                                 .arena_bytes = o->arena_bytes};
    memcpy(req.name, client->cold.client_name, sizeof req.name);
    uint64_t least_ns = kvf_client_now_ns() + KVF_REPLY_MS_MIN * UINT64_C(1000000);
    int err = kvf_socket_request(client, fd, &req.h, sizeof req, segment_fd,
                                 segment_fd != NULL ? 1 : 0, KVF_REP_ATTACHED,
                                 deadline_ns > least_ns ? deadline_ns : least_ns, ret_reply);
    if (err == 0) {
        err = check_reply(ret_reply);
        if (err != 0) {
            kvf_reply_close(ret_reply);
        }
    }
    return err;
}

/* One daemon that hangs up before it answered, or has no worker yet, is one that is not there yet. */
static bool is_too_early(int err)
{
    return err == -KVF_E_DAEMON_GONE || err == -EAGAIN;
}

static int connect_and_attach(kvf_client *client, const struct kvf_attach_opts *o,
                              const int *segment_fd, int *ret_fd, struct kvf_reply *ret_reply)
{
    uint64_t deadline_ns = kvf_client_now_ns() + o->timeout_ms * UINT64_C(1000000);
    for (;;) {
        int fd;
        int err = kvf_socket_connect(client->cold.socket_path, deadline_ns, &fd);
        if (err != 0) {
            return err;
        }
        err = request_attach(client, fd, o, segment_fd, deadline_ns, ret_reply);
        if (err == 0) {
            *ret_fd = fd;
            return 0;
        }
        close(fd);
        if (!is_too_early(err)) {
            return err == -ETIMEDOUT ? -KVF_E_NO_DAEMON : err;
        }
        struct timespec pause = {.tv_nsec = KVF_ATTACH_RETRY_MS * 1000000};
        if (kvf_client_ms_until(deadline_ns, KVF_ATTACH_RETRY_MS) == 0) {
            return -KVF_E_NO_DAEMON;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* Everything after the daemon said yes. Takes the reply's descriptors it uses. */
static int adopt(kvf_client *client, struct kvf_reply *reply)
{
    struct kvf_cold *cold = &client->cold;
    int err =
        segment_refusal(kvf_segment_map(reply->fds[KVF_FD_SEGMENT], true, &cold->segment));
    if (err != 0) {
        return err;
    }
    cold->doorbell_fd = kvf_reply_take(reply, KVF_FD_DOORBELL);
    cold->event_fd = kvf_reply_take(reply, KVF_FD_EVENTS);
    cold->segment_fd = kvf_reply_take(reply, KVF_FD_SEGMENT);
    err = init_private(client);
    if (err == 0) {
        err = init_rings(client);
    }
    if (err == 0) {
        err = kvf_client_wait_init(client);
    }
    if (err != 0) {
        return err;
    }
    if (reply->rep.epoch != 0) {
        kvf_client_worker_add(client, reply->rep.epoch, kvf_reply_take(reply, KVF_FD_WORKER));
    }
    init_slots(client);
    return 0;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

/* In a child only what it has copies of: its private memory. Descriptors there may be anybody's by now. */
static void client_free(kvf_client *client, bool is_child)
{
    struct kvf_cold *cold = &client->cold;
    kvf_client_regions_free(client, is_child);
    if (!is_child) {
        kvf_client_workers_close(client);
        if (cold->engine_fd >= 0) {
            kvf_client_wait_close(client);
        }
        if (cold->segment.shm != NULL) {
            kvf_segment_unmap(&cold->segment);
        }
        close_fd(&cold->segment_fd);
        close_fd(&cold->socket_fd);
        close_fd(&cold->doorbell_fd);
        close_fd(&cold->event_fd);
    }
    if (cold->private_memory != NULL) {
        kvf_memory_unmap(cold->private_memory, cold->private_bytes);
    }
    kvf_memory_unmap(client, sizeof *client);
}

static int client_new(const struct kvf_attach_opts *o, kvf_client **ret_client)
{
    void *memory;
    int err = kvf_memory_map_private(sizeof(struct kvf_client),
                                     offsetof(struct kvf_client, cold), &memory);
    if (err != 0) {
        return err;
    }
    kvf_client *client = memory;
    struct kvf_cold *cold = &client->cold;
    cold->not_a_word = UINT64_MAX;
    cold->segment_fd = -1;
    cold->socket_fd = -1;
    cold->doorbell_fd = -1;
    cold->event_fd = -1;
    cold->engine_fd = -1;
    err = init_locks(cold);
    if (err == 0) {
        err = find_socket_path(o, cold->socket_path, sizeof cold->socket_path);
    }
    if (err == 0) {
        err =
            copy_text(cold->client_name, sizeof cold->client_name,
                      o->client_name != NULL ? o->client_name : program_invocation_short_name);
    }
    if (err != 0) {
        kvf_memory_unmap(client, sizeof *client);
        return err;
    }
    *ret_client = client;
    return 0;
}

int kvf_attach(const struct kvf_attach_opts *opts, kvf_client **ret_client)
{
    if (opts == NULL || ret_client == NULL) {
        return -EINVAL;
    }
    struct kvf_attach_opts o;
    kvf_client *client;
    int err = check_opts(opts, &o);
    if (err == 0) {
        err = client_new(&o, &client);
    }
    if (err != 0) {
        return err;
    }
    struct kvf_reply reply;
    err = connect_and_attach(client, &o, NULL, &client->cold.socket_fd, &reply);
    if (err == 0) {
        err = adopt(client, &reply);
        kvf_reply_close(&reply);
    }
    if (err != 0) {
        client_free(client, false);
        return err;
    }
    *ret_client = client;
    return 0;
}

/* ---- detach -------------------------------------------------------------------------------------------------- */

static uint32_t count_undrained(const kvf_client *client)
{
    uint32_t count = 0;
    for (uint32_t idx = 0; idx < client->cold.segment.limits.rooms_max; idx++) {
        const struct kvf_slot *slot = &client->cold.slots[idx];
        bool is_used = slot->state == KVF_SLOT_LIVE || slot->state == KVF_SLOT_ZOMBIE;
        count += is_used && !kvf_client_is_drained(client, idx, slot->generation);
    }
    return count;
}

int kvf_detach(kvf_client *client, uint32_t timeout_ms, uint32_t *ret_undrained)
{
    if (client == NULL) {
        return -EINVAL;
    }
    int err = kvf_client_enter(client);
    if (err != 0) {
        client_free(client, true);
        return err;
    }
    struct kvf_cold *cold = &client->cold;
    uint64_t deadline_ns = kvf_client_now_ns() + timeout_ms * UINT64_C(1000000);
    err = -KVF_E_DAEMON_GONE;
    if (!atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
        struct kvf_attach_header req = {.op = KVF_REQ_DETACH};
        struct kvf_reply reply;
        err = kvf_socket_request(client, cold->socket_fd, &req, sizeof req, NULL, 0, KVF_REP_OK,
                                 deadline_ns, &reply);
        if (err == 0) {
            kvf_reply_close(&reply);
        }
    }
    if (err == -KVF_E_DAEMON_GONE) {
        /* Nobody is left to answer: the worker's own end is the answer. */
        atomic_store_explicit(&cold->is_supervisor_gone, true, memory_order_relaxed);
        err = kvf_client_wait_workers(client, deadline_ns) ? 0 : -ETIMEDOUT;
    }
    if (ret_undrained != NULL) {
        *ret_undrained = count_undrained(client);
    }
    client_free(client, false);
    return err;
}

/* ---- re-attach ------------------------------------------------------------------------------------------------ */

/* Puts a new descriptor under the old number, so that a thread that uses the number just now uses one or
 * the other and never a stranger's. */
static int replace_fd(int old_fd, int new_fd)
{
    int rc = dup3(new_fd, old_fd, O_CLOEXEC);
    return rc < 0 ? -errno : 0;
}

static bool is_same_file(int a, int b)
{
    struct stat sa;
    struct stat sb;
    return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
           sa.st_ino == sb.st_ino;
}

static int adopt_again(kvf_client *client, int *socket_fd, struct kvf_reply *reply)
{
    struct kvf_cold *cold = &client->cold;
    if (!is_same_file(reply->fds[KVF_FD_SEGMENT], cold->segment_fd)) {
        return -KVF_E_PROTOCOL;
    }
    int err = replace_fd(cold->socket_fd, *socket_fd);
    if (err == 0) {
        err = replace_fd(cold->doorbell_fd, reply->fds[KVF_FD_DOORBELL]);
    }
    if (err == 0) {
        pthread_mutex_lock(&cold->wait_lock);
        err = replace_fd(cold->event_fd, reply->fds[KVF_FD_EVENTS]);
        if (err == 0) {
            err = kvf_client_wait_watch(client);
        }
        pthread_mutex_unlock(&cold->wait_lock);
    }
    if (err == 0) {
        err = kvf_client_regions_readd(client);
    }
    if (err == 0) {
        err = kvf_client_groups_readd(client);
    }
    if (err != 0) {
        /* Half attached is not attached: the daemon sees us go, and the next try begins anew. */
        (void)shutdown(cold->socket_fd, SHUT_RDWR);
        return err;
    }
    if (reply->rep.epoch != 0) {
        kvf_client_worker_add(client, reply->rep.epoch, kvf_reply_take(reply, KVF_FD_WORKER));
    }
    atomic_store_explicit(&cold->dropped_code, 0, memory_order_relaxed);
    atomic_store_explicit(&cold->must_scan, true, memory_order_relaxed);
    /* W2 (release). Last: opens are refused until every region and group is known to the new daemon. */
    atomic_store_explicit(&cold->is_supervisor_gone, false, memory_order_release);
    return 0;
}

static int reattach_locked(kvf_client *client, uint32_t timeout_ms)
{
    struct kvf_cold *cold = &client->cold;
    uint64_t deadline_ns = kvf_client_now_ns() + timeout_ms * UINT64_C(1000000);
    if (!kvf_client_wait_workers(client, deadline_ns)) {
        return -EBUSY;
    }
    int ms_left = kvf_client_ms_until(deadline_ns, INT32_MAX);
    const struct kvf_segment_limits *limits = &cold->segment.limits;
    struct kvf_attach_opts o = {.timeout_ms = (uint32_t)ms_left,
                                .rooms_max = limits->rooms_max,
                                .cmd_slots = limits->cmd_slots,
                                .event_slots = limits->event_slots,
                                .arena_bytes = limits->arena_bytes};
    int socket_fd = -1;
    struct kvf_reply reply;
    int err = connect_and_attach(client, &o, &cold->segment_fd, &socket_fd, &reply);
    if (err != 0) {
        return err;
    }
    err = adopt_again(client, &socket_fd, &reply);
    kvf_reply_close(&reply);
    close(socket_fd);
    return err;
}

int kvf_reattach(kvf_client *client, uint32_t timeout_ms)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    (void)kvf_client_look(client);
    struct kvf_cold *cold = &client->cold;
    pthread_mutex_lock(&cold->socket_lock);
    if (atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
        err = reattach_locked(client, timeout_ms);
    }
    pthread_mutex_unlock(&cold->socket_lock);
    return err;
}

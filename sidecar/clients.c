#include "sidecar/clients_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "ring/codes.h"
#include "sidecar/control.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/reap.h"

#define REFRESH_ROOMS_MAX 32u /* per client and call */

int kvf_clients_create(const struct kvf_clients_config *config, struct kvf_core *core,
                       struct kvf_helper *helper, const struct kvf_clients_host *host,
                       struct kvf_clients **ret_clients)
{
    struct kvf_clients *all =
        calloc(1, sizeof(*all) + config->clients_max * sizeof(struct client));
    if (all == NULL) {
        return -ENOMEM;
    }
    all->config = *config;
    all->core = core;
    all->helper = helper;
    all->host = *host;
    for (uint32_t i = 0; i < config->clients_max; i++) {
        all->table[i].idx = i;
        all->table[i].all = all;
    }
    *ret_clients = all;
    return 0;
}

static struct client *client_at(struct kvf_clients *all, uint32_t client)
{
    assert(client < all->config.clients_max);
    return &all->table[client];
}

static bool is_in_core(const struct client *c)
{
    return c->state == CLIENT_LIVE || c->state == CLIENT_CLOSED;
}

/* ---- helper thread -------------------------------------------------------------------------------- */

static int find_positions(struct client *c)
{
    const struct kvf_segment *s = &c->segment;
    uint64_t produced = 0;
    uint64_t consumed = 0;
    int err = kvf_spsc_recover(s->cmd_slots, s->limits.cmd_slots, &produced, &consumed);
    if (err != 0) {
        return err;
    }
    kvf_spsc_consumer_init(&c->commands, s->cmd_slots, s->limits.cmd_slots, consumed);
    err = kvf_spsc_recover(s->event_slots, s->limits.event_slots, &produced, &consumed);
    if (err != 0) {
        return err;
    }
    kvf_spsc_producer_init(&c->events, s->event_slots, s->limits.event_slots, produced);
    return 0;
}

static void map_work(struct kvf_job *job)
{
    struct client *c = (struct client *)job;
    c->err = kvf_segment_map(c->segment_fd, true, &c->segment);
    kvf_close_fd(&c->segment_fd);
    if (c->err != 0) {
        return;
    }
    c->is_mapped = true;
    uint32_t rooms_max = c->segment.limits.rooms_max;
    c->slots = calloc(rooms_max, sizeof(*c->slots));
    c->moving = calloc(rooms_max, sizeof(*c->moving));
    c->err = c->slots == NULL || c->moving == NULL ? -ENOMEM : find_positions(c);
    if (c->err == 0) {
        kvf_client_find_rooms(c);
    }
}

static void unmap_work(struct kvf_job *job)
{
    struct client *c = (struct client *)job;
    /* The engine lives on (dropped, or detaching): what it opened and we never read is its again. */
    for (uint32_t slot = 0; c->err == 0 && !c->is_reaped && slot < c->segment.limits.rooms_max;
         slot++) {
        kvf_reap_unread(&c->segment, slot, c->close_reason);
    }
    if (c->is_mapped) {
        kvf_segment_unmap(&c->segment);
    }
    free(c->slots);
    free(c->moving);
    kvf_close_fd(&c->segment_fd);
    kvf_close_fd(&c->doorbell_fd);
    kvf_close_fd(&c->event_fd);
}

/* ---- coming and going ------------------------------------------------------------------------------ */

int kvf_clients_add(struct kvf_clients *clients, uint32_t client, const int fds[3])
{
    struct client *c = client_at(clients, client);
    if (c->state != CLIENT_FREE) {
        for (int i = 0; i < 3; i++) {
            close(fds[i]);
        }
        return -EEXIST;
    }
    *c = (struct client){.job = {.work_fn = map_work},
                         .state = CLIENT_MAPPING,
                         .idx = client,
                         .all = clients,
                         .segment_fd = fds[0],
                         .doorbell_fd = fds[1],
                         .event_fd = fds[2]};
    clients->used_count++;
    kvf_helper_push(clients->helper, &c->job);
    return 0;
}

static void start_unmap(struct kvf_clients *all, struct client *c)
{
    c->state = CLIENT_UNMAPPING;
    c->job.work_fn = unmap_work;
    kvf_helper_push(all->helper, &c->job);
}

static int start_serving(struct kvf_clients *all, struct client *c, uint64_t now_ns)
{
    if (c->err != 0) {
        return c->err;
    }
    /* The doorbell is edge-triggered and never read, so nothing a client does to it can block us. */
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET,
                             .data.u64 = (uint64_t)KVF_EPOLL_KIND_DOORBELL << 32 | c->idx};
    if (epoll_ctl(all->config.epoll_fd, EPOLL_CTL_ADD, c->doorbell_fd, &ev) != 0) {
        return -errno;
    }
    int err = kvf_core_client_add(all->core, c->idx, c->segment.limits.rooms_max);
    if (err != 0) {
        return err;
    }
    atomic_store_explicit(&c->segment.shm->sleeping, 0, memory_order_relaxed);
    /* C3 (release): everything before this position was copied by an earlier worker, or died with it. */
    atomic_store_explicit(&c->segment.shm->cmd_consumed, c->commands.pos, memory_order_release);
    c->state = CLIENT_LIVE;
    kvf_client_adopt_rooms(all, c, now_ns);
    return 0;
}

static void map_back(struct kvf_clients *all, uint64_t now_ns, struct client *c)
{
    int err = start_serving(all, c, now_ns);
    if (err != 0) {
        kvf_log(KVF_LOG_WARN, "client %u not taken: its segment cannot be used: %s", c->idx,
                kvf_code_text(err));
        c->err = err;
        start_unmap(all, c); /* and then the answer: the place is free by then */
        return;
    }
    all->worker_gone_count += c->ended_on_take;
    all->worker_gone_success_count += c->succeeded_on_take;
    all->host.added_fn(all->host.ctx, c->idx, 0);
    if (c->close_reason != 0 || c->is_reaped) {
        kvf_clients_close(all, now_ns, c->idx,
                          c->close_reason != 0 ? c->close_reason : KVF_E_ENGINE_GONE);
    }
    if (c->is_reaped) {
        kvf_core_client_reaped(all->core, now_ns, c->idx);
        kvf_client_quarantine_unread(all, c, now_ns);
    }
    if (c->is_whole) {
        kvf_core_regions_whole(all->core, c->idx, c->whole_slots);
    }
}

bool kvf_clients_job_back(struct kvf_clients *clients, uint64_t now_ns, struct kvf_job *job)
{
    if (job->work_fn != map_work && job->work_fn != unmap_work) {
        return false;
    }
    struct client *c = (struct client *)job;
    if (c->state == CLIENT_MAPPING) {
        map_back(clients, now_ns, c);
        return true;
    }
    assert(c->state == CLIENT_UNMAPPING);
    clients->used_count--;
    int err = c->err;
    *c = (struct client){.idx = c->idx, .all = clients};
    if (err != 0) {
        clients->host.added_fn(clients->host.ctx, c->idx, (uint32_t)-err);
    } else {
        clients->host.removed_fn(clients->host.ctx, c->idx);
    }
    return true;
}

void kvf_clients_close(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                       uint32_t reason)
{
    struct client *c = client_at(clients, client);
    if (c->state == CLIENT_MAPPING || c->state == CLIENT_LIVE) {
        c->close_reason = reason;
    }
    if (c->state == CLIENT_LIVE) {
        c->state = CLIENT_CLOSED;
        kvf_core_client_close(clients->core, now_ns, client, reason);
    }
}

void kvf_clients_regions_whole(struct kvf_clients *clients, uint32_t client, uint32_t slots)
{
    struct client *c = client_at(clients, client);
    if (c->state == CLIENT_FREE || c->state == CLIENT_UNMAPPING) {
        return;
    }
    c->is_whole = true;
    c->whole_slots = slots;
    if (c->state != CLIENT_MAPPING) {
        kvf_core_regions_whole(clients->core, client, slots);
    }
}

void kvf_clients_reaped(struct kvf_clients *clients, uint64_t now_ns, uint32_t client)
{
    struct client *c = client_at(clients, client);
    if (c->is_reaped || c->state == CLIENT_FREE || c->state == CLIENT_UNMAPPING) {
        return;
    }
    c->is_reaped = true;
    if (c->state == CLIENT_MAPPING) {
        return;
    }
    kvf_clients_close(clients, now_ns, client, KVF_E_ENGINE_GONE);
    kvf_core_client_reaped(clients->core, now_ns, client);
    kvf_client_quarantine_unread(clients, c, now_ns);
}

bool kvf_clients_is_quiet(struct kvf_clients *clients, uint64_t now_ns, uint32_t client)
{
    struct client *c = &clients->table[client];
    if (c->state != CLIENT_CLOSED || !kvf_core_client_is_quiet(clients->core, client)) {
        return false;
    }
    if (kvf_client_has_unread_leases(c)) {
        if (c->is_reaped) {
            kvf_client_quarantine_unread(clients, c, now_ns); /* its slot was taken before */
        }
        return false;
    }
    return true;
}

void kvf_clients_remove(struct kvf_clients *clients, uint32_t client)
{
    struct client *c = client_at(clients, client);
    assert(c->state == CLIENT_CLOSED);
    start_unmap(clients, c);
}

void kvf_clients_fail(struct kvf_clients *clients, uint64_t now_ns, uint32_t client,
                      uint32_t code, const char *why)
{
    struct client *c = client_at(clients, client);
    if (c->state != CLIENT_LIVE) {
        return;
    }
    kvf_log(KVF_LOG_WARN, "client %u dropped: %s", client, why);
    kvf_clients_close(clients, now_ns, client, code);
    clients->host.bad_fn(clients->host.ctx, client, code);
}

uint32_t kvf_clients_client_of(const struct kvf_clients *clients, const struct kvf_job *job)
{
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        if (&clients->table[i].job == job) {
            return i;
        }
    }
    return KVF_NONE;
}

/* ---- turns ----------------------------------------------------------------------------------------- */

static uint32_t take_commands(struct kvf_clients *all, struct client *c, uint64_t now_ns)
{
    uint32_t count = 0;
    uint64_t record_bytes = 0;
    uint64_t begin_ns = kvf_clock_now_ns();
    struct kvf_cmd_shm cmd;
    /* Long page lists count too, by their bytes and by their time, since one run can name very many
     * pages: one client's must not hold up the others, nor the heartbeat. */
    while (count < KVF_CLIENT_TURN_COMMANDS && record_bytes < KVF_CLIENT_TURN_BYTES &&
           c->state == CLIENT_LIVE && kvf_clock_now_ns() - begin_ns < KVF_CLIENT_TURN_NS &&
           kvf_spsc_pop(&c->commands, &cmd, 1) == 1) {
        count++;
        record_bytes += cmd.arena_bytes;
        const char *why = kvf_client_take_command(all, c, now_ns, &cmd);
        if (why != NULL) {
            all->bad_count++;
            kvf_clients_fail(all, now_ns, c->idx, KVF_E_CLIENT_DROPPED, why);
        }
    }
    if (count > 0) {
        /* C3 (release): every record of these commands was copied; the library may write over them. */
        atomic_store_explicit(&c->segment.shm->cmd_consumed, c->commands.pos,
                              memory_order_release);
    }
    return count;
}

static uint32_t take_dirty(struct kvf_clients *all, struct client *c, uint64_t now_ns)
{
    uint32_t slots[KVF_CLIENT_TURN_DIRTY];
    uint32_t count = kvf_dirty_take(c->segment.dirty, c->segment.limits.rooms_max, slots,
                                    KVF_CLIENT_TURN_DIRTY);
    for (uint32_t i = 0; i < count; i++) {
        kvf_client_take_dirty(all, c, now_ns, slots[i]);
    }
    return count;
}

uint32_t kvf_clients_turn(struct kvf_clients *clients, uint64_t now_ns)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        struct client *c = &clients->table[i];
        if (c->state == CLIENT_LIVE) {
            taken += take_commands(clients, c, now_ns);
        }
        if (is_in_core(c)) {
            taken += take_dirty(clients, c, now_ns);
        }
    }
    return taken;
}

void kvf_clients_refresh(struct kvf_clients *clients)
{
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        struct client *c = &clients->table[i];
        if (!is_in_core(c)) {
            continue;
        }
        uint32_t count =
            c->moving_count < REFRESH_ROOMS_MAX ? c->moving_count : REFRESH_ROOMS_MAX;
        for (uint32_t k = 0; k < count; k++) {
            uint32_t slot = c->moving[c->refresh_at++ % c->moving_count];
            struct kvf_core_room_view view;
            kvf_core_room_view(clients->core, i, slot, &view);
            struct kvf_room_shm *room = &c->segment.rooms[slot];
            atomic_store_explicit(&room->placed_bytes, view.placed_bytes, memory_order_relaxed);
        }
    }
}

/* ---- idle ladder ------------------------------------------------------------------------------------ */

bool kvf_clients_sleep(struct kvf_clients *clients)
{
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        if (is_in_core(&clients->table[i])) {
            /* D1 (seq_cst): of this store and the library's push, one is seen by the other side's look:
             * ours below, or the library's look at this flag. */
            atomic_store_explicit(&clients->table[i].segment.shm->sleeping, 1,
                                  memory_order_seq_cst);
        }
    }
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        struct client *c = &clients->table[i];
        if ((c->state == CLIENT_LIVE && kvf_spsc_is_pending(&c->commands)) ||
            (is_in_core(c) && kvf_dirty_is_pending(c->segment.dirty))) {
            return false;
        }
    }
    return true;
}

void kvf_clients_awake(struct kvf_clients *clients)
{
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        if (is_in_core(&clients->table[i])) {
            atomic_store_explicit(&clients->table[i].segment.shm->sleeping, 0,
                                  memory_order_relaxed);
        }
    }
}

void kvf_clients_beat(struct kvf_clients *clients, uint64_t loop_count)
{
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        if (is_in_core(&clients->table[i])) {
            atomic_store_explicit(&clients->table[i].segment.shm->loop_count, loop_count,
                                  memory_order_relaxed);
        }
    }
}

bool kvf_clients_has_unread(const struct kvf_clients *clients)
{
    for (uint32_t i = 0; i < clients->config.clients_max; i++) {
        const struct client *c = &clients->table[i];
        if (c->state == CLIENT_LIVE && kvf_spsc_is_pending(&c->commands)) {
            return true;
        }
    }
    return false;
}

uint32_t kvf_clients_count(const struct kvf_clients *clients)
{
    return clients->used_count;
}

void kvf_clients_count_into(const struct kvf_clients *clients, uint64_t counters[KVF_COUNTERS],
                            uint64_t *ret_bad)
{
    counters[KVF_COUNT_ROOMS_SUCCEEDED] += clients->worker_gone_success_count;
    counters[KVF_COUNT_ROOMS_FAILED] +=
        clients->worker_gone_count - clients->worker_gone_success_count;
    counters[KVF_COUNT_PROOF_FIRST + KVF_PROOF_WORKER_GONE] += clients->worker_gone_count;
    counters[KVF_COUNT_STALE_COMMANDS] += clients->stale_count;
    *ret_bad = clients->bad_count;
}

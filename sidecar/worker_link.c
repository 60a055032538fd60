/* The worker's talk with its supervisor, and what follows from it for clients and regions. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/codes.h"
#include "sidecar/host/clock.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/worker_internal.h"

#define MESSAGES_PER_TURN 32u
#define STOP_TELL_NS KVF_NS_PER_S

/* ---- answers ---------------------------------------------------------------------------------------------- */

void kvf_worker_link_flush(struct kvf_worker *w)
{
    while (w->out_count > 0) {
        const struct kvf_link_msg *msg = &w->out[w->out_first];
        int err = kvf_packet_send(w->link_fd, msg, sizeof(*msg), NULL, 0);
        if (err != 0) {
            return; /* -EAGAIN: next turn; hung up: the next read says so */
        }
        w->out_first = (w->out_first + 1u) % KVF_WORKER_OUT_MAX;
        w->out_count--;
    }
    if (w->answer_bytes > 0 &&
        kvf_packet_send(w->link_fd, &w->answer, w->answer_bytes, NULL, 0) == 0) {
        w->answer_bytes = 0;
    }
}

void kvf_worker_tell(struct kvf_worker *w, uint32_t op, uint32_t client, uint32_t region,
                     uint32_t code, uint64_t value)
{
    assert(w->out_count < KVF_WORKER_OUT_MAX);
    w->out[(w->out_first + w->out_count) % KVF_WORKER_OUT_MAX] = (struct kvf_link_msg){
        .op = op, .client = client, .region = region, .code = code, .value = value};
    w->out_count++;
    kvf_worker_link_flush(w);
}

/* ---- clients and regions --------------------------------------------------------------------------------- */

static void on_client_added(void *ctx, uint32_t client, uint32_t code)
{
    kvf_worker_tell(ctx, KVF_LINK_CLIENT_ADDED, client, 0, code, 0);
}

static void on_client_bad(void *ctx, uint32_t client, uint32_t code)
{
    kvf_worker_tell(ctx, KVF_LINK_CLIENT_BAD, client, 0, code, 0);
}

static void on_client_removed(void *ctx, uint32_t client)
{
    struct kvf_worker *w = ctx;
    /* One that was never taken has been answered by its ADDED. */
    if (w->is_leaving[client]) {
        w->is_leaving[client] = false;
        kvf_worker_tell(w, KVF_LINK_CLIENT_QUIET, client, 0, 0, 0);
    }
}

/* The last of a leaving client's regions takes the client with it. */
static void check_left(struct kvf_worker *w, uint32_t client)
{
    if (w->is_leaving[client] && kvf_regions_held(w->regions, client) == 0) {
        kvf_clients_remove(w->clients, client);
    }
}

static void on_region_added(void *ctx, uint32_t client, uint32_t region, uint32_t code)
{
    kvf_worker_tell(ctx, KVF_LINK_REGION_ADDED, client, region, code, 0);
    check_left(ctx, client);
}

static void on_region_removed(void *ctx, uint32_t client, uint32_t region)
{
    struct kvf_worker *w = ctx;
    if (!w->is_leaving[client]) {
        kvf_worker_tell(w, KVF_LINK_REGION_REMOVED, client, region, 0, 0);
    }
    check_left(w, client);
}

int kvf_worker_tables_create(struct kvf_worker *w)
{
    struct kvf_clients_config config = {.clients_max = w->config.clients,
                                        .worker_epoch = w->epoch,
                                        .past_epoch = w->past_epoch,
                                        .past_ended_ns = w->past_ended_ns,
                                        .covered = &w->covered,
                                        .epoll_fd = w->epoll_fd,
                                        .stats = w->stats};
    struct kvf_clients_host clients = {.ctx = w,
                                       .added_fn = on_client_added,
                                       .bad_fn = on_client_bad,
                                       .removed_fn = on_client_removed};
    struct kvf_regions_host regions = {
        .ctx = w, .added_fn = on_region_added, .removed_fn = on_region_removed};
    struct kvf_regions_device device;
    int err = kvf_clients_create(&config, w->core, w->helper, &clients, &w->clients);
    if (err == 0) {
        err = kvf_regions_create(w->config.clients, w->core, w->helper, &regions,
                                 kvf_worker_device(w, &device), &w->regions);
    }
    return err;
}

void kvf_worker_helper_ready(struct kvf_worker *w)
{
    struct kvf_job *job;
    while ((job = kvf_helper_take(w->helper)) != NULL) {
        bool is_ours = kvf_clients_job_back(w->clients, w->now_ns, job) ||
                       kvf_regions_job_back(w->regions, w->now_ns, job);
        assert(is_ours);
        (void)is_ours;
    }
}

/* Ten times what the loop itself may stand still: one job is at most a step of a mapping, or one call of a device
 * over a whole region, which pins every page of it: that has a second more for each GiB. Pinning took 0.12 s a GiB under
 * an emulated processor, and zeroing pages that were not there, or an IOMMU, cost a few times that. Counted in looks that
 * were not late themselves, as the supervisor does it for the loop. */
#define HELPER_LIMIT_WATCHDOGS 10u
#define HELPER_NS_PER_GIB KVF_NS_PER_S
#define HELPER_LOOK_MAX_NS (500 * KVF_NS_PER_MS)

void kvf_worker_helper_watch(struct kvf_worker *w)
{
    uint64_t seq = 0;
    const struct kvf_job *job = kvf_helper_oldest(w->helper, &seq);
    uint64_t since_ns = w->now_ns - w->helper_looked_ns;
    w->helper_looked_ns = w->now_ns;
    if (job == NULL || seq != w->helper_seq) {
        w->helper_seq = seq;
        w->helper_still_ns = 0;
        return;
    }
    w->helper_still_ns += since_ns < HELPER_LOOK_MAX_NS ? since_ns : HELPER_LOOK_MAX_NS;
    uint64_t limit_ns = HELPER_LIMIT_WATCHDOGS * w->config.watchdog_ms * KVF_NS_PER_MS +
                        (kvf_regions_device_bytes(w->regions, job) >> 30) * HELPER_NS_PER_GIB;
    if (w->is_helper_stuck || w->helper_still_ns < limit_ns) {
        return;
    }
    w->is_helper_stuck = true;
    uint32_t client = kvf_regions_client_of(w->regions, job);
    client = client == KVF_NONE ? kvf_clients_client_of(w->clients, job) : client;
    kvf_log(KVF_LOG_ERROR,
            "a call on the memory of client %u does not return; this worker must be ended, "
            "since the "
            "other clients wait behind it",
            client);
    kvf_worker_tell(w, KVF_LINK_ESCALATE, client, 0, KVF_E_MEMORY_FAULT, 0);
}

/* ---- messages ---------------------------------------------------------------------------------------------- */

static void add_client(struct kvf_worker *w, const struct kvf_link_msg *msg, const int *fds)
{
    int err = kvf_clients_add(w->clients, msg->client, fds);
    if (err != 0) {
        kvf_worker_tell(w, KVF_LINK_CLIENT_ADDED, msg->client, 0, (uint32_t)-err, 0);
    }
}

static void add_region(struct kvf_worker *w, const struct kvf_link_region *msg, int memory_fd)
{
    int err = kvf_regions_add(w->regions, msg, memory_fd);
    if (err != 0) {
        kvf_worker_tell(w, KVF_LINK_REGION_ADDED, msg->h.client, msg->h.region, (uint32_t)-err,
                        0);
    }
}

static void remove_region(struct kvf_worker *w, const struct kvf_link_msg *msg)
{
    int err = kvf_regions_remove(w->regions, msg->client, msg->region);
    if (err != 0) {
        kvf_worker_tell(w, KVF_LINK_REGION_REMOVED, msg->client, msg->region, (uint32_t)-err,
                        0);
    }
}

/* Adopted rooms of this client join the group now, and ask. */
static void add_group(struct kvf_worker *w, const struct kvf_link_group *msg)
{
    static struct kvf_core_group group;
    group.group_id = msg->group_id;
    group.rank = msg->rank;
    group.member_count = msg->member_count;
    _Static_assert(sizeof(group.members) == sizeof(msg->members), "the same addresses");
    memcpy(group.members, msg->members, sizeof(group.members));
    int err = kvf_core_group_add(w->core, w->now_ns, msg->h.client, msg->h.region, &group);
    kvf_worker_tell(w, KVF_LINK_GROUP_ADDED, msg->h.client, msg->h.region, (uint32_t)-err, 0);
}

static void skip_key(struct kvf_worker *w, const struct kvf_link_msg *msg)
{
    int err = kvf_core_group_skip(w->core, msg->client, msg->region, msg->value);
    kvf_worker_tell(w, KVF_LINK_GROUP_SKIPPED, msg->client, msg->region, (uint32_t)-err, 0);
}

static uint32_t rooms_left(const struct kvf_worker *w)
{
    const uint64_t *gauges = kvf_core_gauges(w->core);
    return (uint32_t)(gauges[KVF_GAUGE_ROOMS_OPEN] + gauges[KVF_GAUGE_ROOMS_CLOSING] +
                      gauges[KVF_GAUGE_ROOMS_FENCING]);
}

static void stop_all(struct kvf_worker *w)
{
    w->stop = STOP_ALL;
    w->stop_ended = rooms_left(w);
    uint64_t bound_us = kvf_bound_usual_us(&w->config) + kvf_bound_flush_us(&w->config);
    w->stop_deadline_ns = w->now_ns + bound_us * KVF_NS_PER_US;
    if (w->stop_ended > 0) {
        kvf_log(KVF_LOG_WARN, "the grace period is over: %u rooms are closed now",
                w->stop_ended);
    }
    kvf_core_shutdown(w->core, w->now_ns, true);
}

static void shut_down(struct kvf_worker *w, const struct kvf_link_msg *msg)
{
    if (w->stop == STOP_NOT) {
        w->stop = STOP_GRACE;
        w->stop_deadline_ns = w->now_ns + msg->value;
        kvf_core_shutdown(w->core, w->now_ns, false);
        kvf_stats_begin(w->stats);
        kvf_daemon_stats_state(w->stats, KVF_STATS_STOPPING);
        kvf_stats_end(w->stats);
    }
    if (msg->code == 1 && w->stop == STOP_GRACE) {
        stop_all(w);
    }
}

void kvf_worker_stop_turn(struct kvf_worker *w)
{
    if (w->stop == STOP_NOT || w->stop == STOP_TOLD) {
        return;
    }
    uint32_t left = rooms_left(w);
    if (left > 0 && w->stop == STOP_GRACE && w->now_ns >= w->stop_deadline_ns) {
        stop_all(w);
        return;
    }
    if (left == 0 && kvf_core_untold(w->core) > 0) {
        /* Other ranks of what was ended here would wait for a daemon that is gone. */
        w->stop_tell_ns = w->stop_tell_ns == 0 ? w->now_ns + STOP_TELL_NS : w->stop_tell_ns;
        if (w->now_ns < w->stop_tell_ns) {
            return;
        }
    }
    if (left == 0 || (w->stop == STOP_ALL && w->now_ns >= w->stop_deadline_ns)) {
        kvf_worker_stats_copy(w);
        w->stop = STOP_TOLD;
        kvf_worker_tell(w, KVF_LINK_STOPPED, 0, 0, left, w->stop_ended);
    }
}

static void take_message(struct kvf_worker *w, const struct kvf_link_region *packet, int *fds)
{
    const struct kvf_link_msg *msg = &packet->h;
    switch ((enum kvf_link_op)msg->op) {
    case KVF_LINK_CLIENT_ADD:
        add_client(w, msg, fds);
        return;
    case KVF_LINK_CLIENT_CLOSE:
        kvf_clients_close(w->clients, w->now_ns, msg->client, msg->code);
        kvf_clients_regions_whole(w->clients, msg->client, (uint32_t)msg->value);
        return;
    case KVF_LINK_CLIENT_REAPED:
        kvf_clients_reaped(w->clients, w->now_ns, msg->client);
        (void)kvf_worker_actions(w); /* words that wait to be published go first */
        kvf_worker_check_quiet(w, msg->client);
        return;
    case KVF_LINK_REGION_ADD:
        add_region(w, packet, fds[0]);
        return;
    case KVF_LINK_REGION_REMOVE:
        remove_region(w, msg);
        return;
    case KVF_LINK_GROUP_ADD:
        add_group(w, (const struct kvf_link_group *)(const void *)packet);
        return;
    case KVF_LINK_GROUP_SKIP:
        skip_key(w, msg);
        return;
    case KVF_LINK_GROUP_DEPARTED:
        kvf_core_group_departed(w->core, msg->value, msg->code);
        return;
    case KVF_LINK_GROUPS_WHOLE:
        kvf_core_groups_hold(w->core, w->now_ns, false);
        return;
    case KVF_LINK_LOG_LEVEL:
        w->config.log_level = msg->code;
        kvf_log_set_level((enum kvf_log_level)msg->code);
        return;
    case KVF_LINK_DRAIN:
        kvf_worker_set_draining(w, msg->code != 0);
        return;
    case KVF_LINK_PEER_HOLD:
        kvf_worker_hold_peer(w, (const struct kvf_link_hold *)(const void *)packet);
        return;
    case KVF_LINK_OPERATE:
        kvf_worker_operate(w, (const struct kvf_link_operate *)(const void *)packet);
        return;
    case KVF_LINK_COUNT:
        kvf_worker_stats_count(w, msg->code, msg->value);
        return;
    case KVF_LINK_SHUTDOWN:
        shut_down(w, msg);
        return;
    case KVF_LINK_START:
    case KVF_LINK_READY:
    case KVF_LINK_CLIENT_ADDED:
    case KVF_LINK_CLIENT_QUIET:
    case KVF_LINK_CLIENT_BAD:
    case KVF_LINK_REGION_ADDED:
    case KVF_LINK_REGION_REMOVED:
    case KVF_LINK_GROUP_ADDED:
    case KVF_LINK_GROUP_SKIPPED:
    case KVF_LINK_ESCALATE:
    case KVF_LINK_OPERATED:
    case KVF_LINK_STOPPED:
        break;
    }
    assert(false && "a message of the wrong direction");
}

void kvf_worker_link_ready(struct kvf_worker *w)
{
    for (uint32_t i = 0; i < MESSAGES_PER_TURN; i++) {
        static struct kvf_link_region packet;
        int fds[KVF_PACKET_FDS_MAX];
        int fd_count = 0;
        int got = kvf_packet_receive(w->link_fd, &packet, sizeof(packet), fds, &fd_count);
        if (got == -EAGAIN) {
            return;
        }
        if (got <= 0) {
            /* The supervisor has ended, or wants us to: whatever we lent goes with us. */
            _exit(0);
        }
        take_message(w, &packet, fds);
    }
}

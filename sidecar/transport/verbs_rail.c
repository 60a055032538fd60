/* A rail: one device, its port, its completion queues and what it has to tell. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "sidecar/transport/verbs_lane.h"

/* What one look at a rail's events takes at most; more is found by the next, the descriptors stay readable. */
#define EVENTS_MAX 64u

/* ---- ports and addresses ------------------------------------------------------------------------------- */

int kvf_verbs_port_query(const struct kvf_verbs *v, const struct kvf_verbs_rail *rail,
                         struct ibv_port_attr *ret_attr)
{
    struct ibv_port_attr attr;
    memset(&attr, 0, sizeof(attr)); /* the function fills the part that its ABI had first */
    if (v->lib->query_port(rail->context, (uint8_t)v->verbs.port,
                           (struct _compat_ibv_port_attr *)(void *)&attr) != 0) {
        return -ENETDOWN;
    }
    *ret_attr = attr;
    return 0;
}

static bool is_zero(const uint8_t gid[16])
{
    static const uint8_t zero[16];
    return memcmp(gid, zero, sizeof(zero)) == 0;
}

static bool is_ipv4(const uint8_t gid[16])
{
    static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(gid, prefix, sizeof(prefix)) == 0;
}

/* How much an address is wanted when none was named: IPv4, then IPv6, then what is valid on one link only. */
static int preference(const uint8_t gid[16])
{
    if (is_ipv4(gid)) {
        return 3;
    }
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? 1 : 2;
}

/* Indices move when addresses come and go, so that only the type and the address itself name an entry. */
int kvf_verbs_gid_find(const struct kvf_verbs *v, const struct kvf_verbs_rail *rail,
                       struct ibv_gid_entry *entries, const uint8_t *gid, uint8_t ret_gid[16])
{
    const uint8_t *wanted = gid != NULL ? gid : v->verbs.gid;
    ssize_t count = v->lib->query_gid_table(rail->context, entries, KVF_VERBS_GIDS_MAX, 0,
                                            sizeof(entries[0]));
    int best = -1;
    for (ssize_t i = 0; i < count; i++) {
        const struct ibv_gid_entry *entry = &entries[i];
        if (entry->port_num != v->verbs.port || entry->gid_type != IBV_GID_TYPE_ROCE_V2 ||
            is_zero(entry->gid.raw)) {
            continue;
        }
        if (!is_zero(wanted)) {
            if (memcmp(entry->gid.raw, wanted, 16) == 0) {
                best = (int)i;
                break;
            }
        } else if (best < 0 || preference(entry->gid.raw) > preference(entries[best].gid.raw)) {
            best = (int)i;
        }
    }
    if (best < 0) {
        return -EADDRNOTAVAIL;
    }
    memcpy(ret_gid, entries[best].gid.raw, 16);
    return (int)entries[best].gid_index;
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static struct ibv_context *open_named(const struct kvf_verbs *v, const char *name)
{
    int count = 0;
    struct ibv_device **list = v->lib->get_device_list(&count);
    struct ibv_context *context = NULL;
    for (int i = 0; list != NULL && i < count; i++) {
        if (strcmp(v->lib->get_device_name(list[i]), name) == 0) {
            context = v->lib->open_device(list[i]);
            break;
        }
    }
    if (list != NULL) {
        v->lib->free_device_list(list);
    }
    return context;
}

static uint32_t mtu_of(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 1024u;
}

uint32_t kvf_verbs_mtu(const struct kvf_verbs *v, const struct ibv_port_attr *port)
{
    uint32_t port_mtu = mtu_of(port->active_mtu);
    uint32_t asked = v->verbs.mtu_bytes;
    return asked != 0 && asked < port_mtu ? asked : port_mtu;
}

static uint32_t least(uint32_t a, int device_max)
{
    return device_max > 0 && (uint32_t)device_max < a ? (uint32_t)device_max : a;
}

static void set_limits(const struct kvf_verbs *v, struct kvf_verbs_rail *rail,
                       const struct ibv_device_attr *device, const struct ibv_port_attr *port)
{
    rail->is_infiniband = port->link_layer == IBV_LINK_LAYER_INFINIBAND;
    uint64_t most = port->max_msg_sz > 0 ? port->max_msg_sz : KVF_VERBS_WRITE_BYTES_MAX;
    rail->write_bytes_max = most < KVF_VERBS_WRITE_BYTES_MAX ? most : KVF_VERBS_WRITE_BYTES_MAX;
    rail->sges_max = least(KVF_VERBS_SGES_MAX, device->max_sge);
    rail->cq_slots = least(KVF_VERBS_CQ_SLOTS, device->max_cqe);
    rail->send_depth = least(KVF_VERBS_SEND_DEPTH, device->max_qp_wr);
    rail->send_depth =
        rail->send_depth < rail->cq_slots ? rail->send_depth : rail->cq_slots - 1u;
    rail->receive_depth = v->verbs.receives_per_lane + KVF_VERBS_RECEIVE_BATCH;
    if (rail->receive_depth + 1u > rail->cq_slots) {
        rail->cq_slots = least(rail->receive_depth + 1u, device->max_cqe);
    }
}

static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? 0 : -errno;
}

/* What no cable and no address will ever change: a wrong name is found at start. */
static int check_limits(const struct kvf_verbs *v, struct kvf_verbs_rail *rail,
                        const char *name, char *ret_error, size_t error_cap)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    memset(&device, 0, sizeof(device));
    if (v->lib->query_device(rail->context, &device) != 0 ||
        v->verbs.port > device.phys_port_cnt) {
        (void)snprintf(ret_error, error_cap, "device %s has no port %u", name, v->verbs.port);
        return -ENOENT;
    }
    if (kvf_verbs_port_query(v, rail, &port) != 0) {
        (void)snprintf(ret_error, error_cap, "port %u of device %s cannot be asked",
                       v->verbs.port, name);
        return -EIO;
    }
    set_limits(v, rail, &device, &port);
    if (rail->receive_depth + 1u > rail->cq_slots || rail->send_depth < 2u ||
        least(rail->receive_depth, device.max_qp_wr) < rail->receive_depth) {
        (void)snprintf(ret_error, error_cap,
                       "device %s takes fewer work requests than a lane of %u receives needs",
                       name, v->verbs.receives_per_lane);
        return -EINVAL;
    }
    return 0;
}

/* Could a lane be made just now? Each looks again by itself. */
static int check_port(const struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct ibv_port_attr port;
    uint8_t gid[16];
    int rc = kvf_verbs_port_query(v, rail, &port);
    if (rc == 0 && port.state != IBV_PORT_ACTIVE) {
        rc = -ENETDOWN;
    }
    if (rc == 0 && !rail->is_infiniband) {
        rc = kvf_verbs_gid_find(v, rail, rail->entries, NULL, gid);
    }
    return rc < 0 ? rc : 0;
}

/* ---- what the host is told -------------------------------------------------------------------------------- */

static void tell(const struct kvf_verbs *v, const struct kvf_verbs_rail *rail, int err,
                 bool is_final, const char *why)
{
    if (v->host.rail_fn != NULL) {
        v->host.rail_fn(v->host.ctx, v->verbs.rails[rail->idx], err, is_final, why);
    }
}

static void say_state(const struct kvf_verbs *v, const struct kvf_verbs_rail *rail, int err)
{
    char why[64] = "the device failed";
    if (err == 0) {
        (void)snprintf(why, sizeof(why), "port %u is active", v->verbs.port);
    } else if (err == -ENETDOWN) {
        (void)snprintf(why, sizeof(why), "port %u is not active", v->verbs.port);
    } else if (err == -EADDRNOTAVAIL) {
        (void)snprintf(why, sizeof(why), "port %u has no %s", v->verbs.port,
                       is_zero(v->verbs.gid) ? "RoCE v2 address" : "such RoCE v2 address");
    }
    tell(v, rail, err, false, why);
}

void kvf_verbs_rail_note(struct kvf_verbs *v, struct kvf_verbs_rail *rail, int err)
{
    bool is_up = err == 0;
    if (rail->is_up != is_up) {
        rail->is_up = is_up;
        say_state(v, rail, err);
    }
}

/* ---- the devices ------------------------------------------------------------------------------------------- */

static int rail_open(struct kvf_verbs *v, struct kvf_verbs_rail *rail, const char *name,
                     char *ret_error, size_t error_cap)
{
    rail->context = open_named(v, name);
    if (rail->context == NULL) {
        (void)snprintf(ret_error, error_cap,
                       "there is no RDMA device %s, or it cannot be opened", name);
        return -ENOENT;
    }
    if (rail->context->device->transport_type != IBV_TRANSPORT_IB) {
        /* Of iWARP a completion says that bytes were sent, and other kinds have no ordered queue pairs at all. */
        (void)snprintf(ret_error, error_cap, "device %s speaks neither InfiniBand nor RoCE",
                       name);
        return -EOPNOTSUPP;
    }
    int rc = check_limits(v, rail, name, ret_error, error_cap);
    if (rc != 0) {
        return rc;
    }
    rail->pd = v->lib->alloc_pd(rail->context);
    rail->channel = v->lib->create_comp_channel(rail->context);
    if (rail->pd == NULL || rail->channel == NULL) {
        (void)snprintf(ret_error, error_cap, "device %s has no room for another user", name);
        return -ENOMEM;
    }
    rc = set_nonblocking(rail->channel->fd);
    if (rc == 0) {
        rc = set_nonblocking(rail->context->async_fd);
    }
    if (rc != 0) {
        (void)snprintf(ret_error, error_cap, "the events of device %s cannot be read", name);
    }
    return rc;
}

/* What the device refuses here ends with the process: the descriptor that all of it hangs on is closed then. */
static void rail_shut(const struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    if (rail->channel != NULL) {
        (void)v->lib->destroy_comp_channel(rail->channel);
    }
    if (rail->pd != NULL) {
        (void)v->lib->dealloc_pd(rail->pd);
    }
    if (rail->context != NULL) {
        (void)v->lib->close_device(rail->context);
    }
    rail->channel = NULL;
    rail->pd = NULL;
    rail->context = NULL;
}

/* Lanes use what works now before what may come to work, so that a daemon with few lanes does not wait for a link
 * that is down beside one that is up. From then on the order stays: what a lane wrote through is known by it. */
static void order_lane_rails(struct kvf_verbs *v)
{
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < v->rail_count; i++) {
            if (v->rails[i].context != NULL && v->rails[i].is_up == (pass == 0)) {
                v->lane_rails[v->lane_rail_count++] = (uint8_t)i;
            }
        }
    }
}

int kvf_verbs_rails_open(struct kvf_verbs *v, char *ret_error, size_t error_cap)
{
    int refusal = 0;
    for (uint32_t i = 0; i < v->verbs.rail_count; i++) {
        struct kvf_verbs_rail *rail = &v->rails[i];
        char why[160] = "";
        rail->idx = i;
        pthread_mutex_init(&rail->numbers_lock, NULL);
        rail->look_job = (struct kvf_verbs_job){.rail = i};
        v->rail_count = i + 1;
        int rc = rail_open(v, rail, v->verbs.rails[i], why, sizeof(why));
        if (rc != 0) {
            rail_shut(v, rail);
            tell(v, rail, rc, true, why);
            if (refusal == 0) {
                refusal = rc;
                (void)snprintf(ret_error, error_cap, "%s", why);
            }
            continue;
        }
        rc = check_port(v, rail);
        rail->is_up = rc == 0;
        if (rc != 0) {
            say_state(v, rail, rc);
        }
    }
    order_lane_rails(v);
    return v->lane_rail_count > 0 ? 0 : refusal;
}

void kvf_verbs_rails_close(struct kvf_verbs *v)
{
    for (uint32_t i = 0; i < v->rail_count; i++) {
        struct kvf_verbs_rail *rail = &v->rails[i];
        kvf_verbs_flusher_close(v, rail);
        for (uint32_t j = 0; j < rail->cq_count; j++) {
            if (rail->cqs[j].cq != NULL) {
                (void)v->lib->destroy_cq(rail->cqs[j].cq);
            }
        }
        rail_shut(v, rail);
        pthread_mutex_destroy(&rail->numbers_lock);
    }
}

/* ---- completion queues ---------------------------------------------------------------------------------- */

struct kvf_verbs_cq *kvf_verbs_cq_take(struct kvf_verbs_rail *rail, uint32_t slots)
{
    for (uint32_t i = 0; i < KVF_VERBS_CQS_MAX; i++) {
        struct kvf_verbs_cq *cq = &rail->cqs[i];
        if (i == rail->cq_count) {
            *cq = (struct kvf_verbs_cq){.rail = rail->idx};
            rail->cq_count++;
        }
        if (!cq->is_broken && slots <= rail->cq_slots &&
            cq->slots_used <= rail->cq_slots - slots) {
            cq->slots_used += slots;
            return cq;
        }
    }
    return NULL;
}

void kvf_verbs_cq_give(struct kvf_verbs *v, struct kvf_verbs_cq *cq, uint32_t slots)
{
    assert(cq->slots_used >= slots);
    cq->slots_used -= slots;
    if (cq->is_broken && !cq->is_leaving && cq->slots_used == 0) {
        cq->is_leaving = true;
        cq->job = (struct kvf_verbs_job){.rail = cq->rail, .cq = cq};
        kvf_verbs_push(v, &cq->job, KVF_VERBS_CQ_DESTROY);
    }
}

/* ---- events --------------------------------------------------------------------------------------------- */

static void lose_rail(struct kvf_verbs *v, const struct kvf_verbs_rail *rail, int err)
{
    for (uint32_t i = 0; i < v->config.lanes_max; i++) {
        struct kvf_verbs_lane *lane = &v->lanes[i];
        if (lane->state != KVF_VERBS_FREE && lane->rail == rail) {
            kvf_verbs_lose(v, lane, err);
        }
    }
}

/* Completions of these lanes were lost and cannot be waited for: a fence of them that reaps goes on at once. */
static void break_cq(struct kvf_verbs *v, struct kvf_verbs_cq *cq)
{
    if (cq->is_broken) {
        return; /* some devices say so for each completion that was lost */
    }
    cq->is_broken = true;
    v->counts.queues_broken++;
    if (cq == &v->rails[cq->rail].flusher.cq) {
        kvf_verbs_flusher_lost(&v->rails[cq->rail], false);
        return;
    }
    for (uint32_t i = 0; i < v->config.lanes_max; i++) {
        struct kvf_verbs_lane *lane = &v->lanes[i];
        if (lane->state == KVF_VERBS_FREE || lane->cq != cq) {
            continue;
        }
        kvf_verbs_lose(v, lane, EIO);
        if (lane->state == KVF_VERBS_FENCING && lane->phase == KVF_VERBS_REAPING) {
            kvf_verbs_destroy_lane(v, lane);
        }
    }
}

/* Which addresses are left is asked by the helper: it is a call of the system for each. */
static void look(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    if (rail->look_out) {
        rail->look_again = true;
        return;
    }
    rail->look_out = true;
    kvf_verbs_push(v, &rail->look_job, KVF_VERBS_LOOK);
}

static bool was_seen(const struct kvf_verbs_rail *rail, const uint8_t gid[16])
{
    for (uint32_t i = 0; i < rail->seen_count; i++) {
        if (memcmp(rail->seen[i], gid, 16) == 0) {
            return true;
        }
    }
    return false;
}

void kvf_verbs_look_back(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    rail->look_out = false;
    for (uint32_t i = 0; i < v->config.lanes_max && !rail->is_infiniband; i++) {
        struct kvf_verbs_lane *lane = &v->lanes[i];
        if (lane->state == KVF_VERBS_FREE || lane->rail != rail) {
            continue;
        }
        if (lane->job_out) {
            rail->look_again = true; /* its job may have found the address before it went */
        } else if (lane->job.has_gid && !was_seen(rail, lane->job.end.gid)) {
            kvf_verbs_lose(v, lane, EADDRNOTAVAIL);
        }
    }
    if (rail->look_again) {
        rail->look_again = false;
        look(v, rail);
    }
}

/* Lanes come back by themselves, with their next attempt. */
static void on_port(struct kvf_verbs *v, struct kvf_verbs_rail *rail, enum ibv_event_type type)
{
    if (type == IBV_EVENT_PORT_ACTIVE) {
        v->counts.events_other++;
        kvf_verbs_rail_note(v, rail, 0);
        if (v->has_device_memory) {
            kvf_verbs_flusher_prepare(v, rail);
        }
        return;
    }
    lose_rail(v, rail, ENETDOWN);
    if (type == IBV_EVENT_PORT_ERR) {
        kvf_verbs_rail_note(v, rail, -ENETDOWN);
    }
}

static void on_event(struct kvf_verbs *v, struct kvf_verbs_rail *rail,
                     const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        if (event->element.qp->qp_context !=
            NULL) { /* else a flusher: its completions say it */
            kvf_verbs_lose(v, event->element.qp->qp_context, EIO);
        }
        break;
    case IBV_EVENT_CQ_ERR:
        break_cq(v, event->element.cq->cq_context);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        lose_rail(v, rail, EIO);
        kvf_verbs_flusher_lost(rail, true);
        kvf_verbs_rail_note(v, rail, -EIO);
        break;
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
        if (event->element.port_num == (int)v->verbs.port) {
            on_port(v, rail, event->event_type);
        }
        break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_PKEY_CHANGE:
        look(v, rail);
        break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_WQ_FATAL:
        v->counts.events_other++;
        break;
    }
}

void kvf_verbs_rail_events(struct kvf_verbs *v, struct kvf_verbs_rail *rail)
{
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    /* A destroy waits until each event of its queue was acknowledged, so nothing is put off here. */
    for (uint32_t i = 0; i < EVENTS_MAX; i++) {
        if (v->lib->get_cq_event(rail->channel, &cq, &context) != 0) {
            break;
        }
        v->lib->ack_cq_events(cq, 1);
    }
    for (uint32_t i = 0; i < EVENTS_MAX; i++) {
        struct ibv_async_event event;
        if (v->lib->get_async_event(rail->context, &event) != 0) {
            break;
        }
        on_event(v, rail, &event);
        v->lib->ack_async_event(&event);
    }
}

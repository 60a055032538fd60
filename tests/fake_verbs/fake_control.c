/* What tests turn and see of the fake devices, and their time. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake_verbs/fake_internal.h"

static void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

/* As soft RoCE shows them: a link-local address and an IPv4 one, each of both types. */
static void default_gids(struct fake_device *device, uint32_t number)
{
    uint8_t local[16] = {0xfe, 0x80};
    uint8_t ipv4[16] = {0, 0, 0,    0,    0,  0, 0, 0,
                        0, 0, 0xff, 0xff, 10, 0, 0, (uint8_t)(10 + number)};
    local[15] = (uint8_t)(1 + number);
    for (uint32_t i = 0; i < 4; i++) {
        struct ibv_gid_entry *entry = &device->gids[i];
        memcpy(entry->gid.raw, i < 2 ? local : ipv4, 16);
        entry->gid_index = i;
        entry->port_num = 1;
        entry->gid_type = i % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
        device->has_gid[i] = true;
    }
}

void fake_reset(void)
{
    lock();
    while (fake.packets != NULL) {
        struct fake_packet *packet = fake.packets;
        fake.packets = packet->next;
        free(packet->data);
        free(packet);
    }
    fake.now_ns = 1000000000u;
    fake.knobs = (struct fake_knobs){.delay_ns = 20000};
    fake.counts = (struct fake_counts){0};
    memset(fake.devices, 0, sizeof(fake.devices));
    for (uint32_t i = 0; i < FAKE_DEVICES; i++) {
        struct fake_device *device = &fake.devices[i];
        (void)snprintf(device->name, sizeof(device->name), "fake%u", i);
        device->state = IBV_PORT_ACTIVE;
        device->link_layer = IBV_LINK_LAYER_ETHERNET;
        device->mr_next = 50u * i; /* no key of one device fits another */
        default_gids(device, i);
    }
    unlock();
}

void fake_get(struct fake_knobs *ret_knobs)
{
    lock();
    *ret_knobs = fake.knobs;
    unlock();
}

void fake_set(const struct fake_knobs *knobs)
{
    lock();
    fake.knobs = *knobs;
    pthread_cond_broadcast(&fake.changed);
    unlock();
}

void fake_counts(struct fake_counts *ret_counts)
{
    lock();
    *ret_counts = fake.counts;
    unlock();
}

uint64_t fake_now_ns(void)
{
    lock();
    uint64_t now_ns = fake.now_ns;
    unlock();
    return now_ns;
}

uint64_t fake_next_ns(void)
{
    lock();
    uint64_t due_ns = fake_due_ns();
    unlock();
    return due_ns;
}

void fake_advance(uint64_t until_ns)
{
    lock();
    fake_step();
    while (fake_due_ns() <= until_ns) {
        uint64_t due_ns = fake_due_ns();
        fake.now_ns = due_ns > fake.now_ns ? due_ns : fake.now_ns;
        fake_step();
    }
    fake.now_ns = until_ns > fake.now_ns ? until_ns : fake.now_ns;
    unlock();
}

static struct fake_qp *find_qp(uint32_t device, uint32_t qpn)
{
    return qpn < FAKE_QPS ? fake.devices[device].qps[qpn] : NULL;
}

void fake_qp(uint32_t device, uint32_t qpn, struct fake_qp_view *ret_view)
{
    lock();
    const struct fake_qp *qp = find_qp(device, qpn);
    *ret_view = (struct fake_qp_view){.exists = qp != NULL};
    if (qp != NULL) {
        ret_view->state = qp->state;
        ret_view->access = qp->access;
        ret_view->dest_qpn = qp->dest_qpn;
        ret_view->send_psn = qp->first_psn;
        ret_view->expected_psn = qp->expected_psn;
        ret_view->retry = qp->retry;
        ret_view->rnr_retry = qp->rnr_retry;
        ret_view->timeout = qp->timeout;
        ret_view->mtu_bytes = qp->mtu;
        ret_view->receives = qp->recv_tail - qp->recv_head;
        ret_view->dlid = qp->dlid;
        ret_view->is_global = qp->is_global;
        ret_view->sgid_index = qp->sgid_index;
    }
    unlock();
}

void fake_qp_break(uint32_t device, uint32_t qpn, bool has_event)
{
    lock();
    struct fake_qp *qp = find_qp(device, qpn);
    if (qp != NULL) {
        fake_qp_to_err(qp);
        if (has_event) {
            fake_raise(qp->device, &(struct fake_async){.type = IBV_EVENT_QP_FATAL, .qp = qp});
        }
    }
    unlock();
}

void fake_qp_starve(uint32_t device, uint32_t qpn)
{
    lock();
    struct fake_qp *qp = find_qp(device, qpn);
    assert(qp != NULL);
    qp->recv_head = qp->recv_tail;
    unlock();
}

void fake_ghost(uint32_t device, uint32_t qpn, uint32_t psn, uint64_t addr, uint32_t rkey,
                const void *bytes, uint32_t count)
{
    struct fake_packet *packet = calloc(1, sizeof(*packet));
    assert(packet != NULL);
    *packet = (struct fake_packet){.kind = FAKE_REQUEST,
                                   .to = &fake.devices[device],
                                   .to_qpn = qpn,
                                   .psn = psn & 0xffffffu,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .is_last = true,
                                   .addr = addr,
                                   .rkey = rkey,
                                   .bytes = count};
    packet->data = malloc(count + 1u);
    assert(packet->data != NULL);
    memcpy(packet->data, bytes, count);
    lock();
    fake_packet_add(packet, fake.now_ns);
    unlock();
}

void fake_event(uint32_t device, enum ibv_event_type type, uint32_t qpn)
{
    lock();
    struct fake_async event = {.type = type};
    if (qpn != 0) {
        event.qp = find_qp(device, qpn);
        assert(event.qp != NULL);
    }
    fake_raise(&fake.devices[device], &event);
    unlock();
}

void fake_gid(uint32_t device, uint32_t index, const uint8_t gid[16], enum ibv_gid_type type)
{
    lock();
    struct fake_device *d = &fake.devices[device];
    d->has_gid[index] = gid != NULL;
    if (gid != NULL) {
        memcpy(d->gids[index].gid.raw, gid, 16);
        d->gids[index].gid_index = index;
        d->gids[index].port_num = 1;
        d->gids[index].gid_type = (uint32_t)type;
    }
    unlock();
}

void fake_port(uint32_t device, enum ibv_port_state state, uint8_t link_layer, uint16_t lid)
{
    lock();
    fake.devices[device].state = state;
    fake.devices[device].link_layer = link_layer;
    fake.devices[device].lid = lid;
    unlock();
}

void fake_transport(uint32_t device, enum ibv_transport_type type)
{
    lock();
    fake.devices[device].ibv.transport_type = type;
    unlock();
}

/* Devices and their objects: what libibverbs' functions do. The network is fake_nic.c. */
#include "tests/fake_verbs/fake_verbs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fake_verbs/fake_internal.h"

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&fake.lock);
}

static struct fake_device *device_of(struct ibv_context *context)
{
    return (struct fake_device *)(void *)context->device;
}

/* Calls that a test wants to stop in the middle. Under the lock. */
static void pass_gate(void)
{
    fake.counts.gated++;
    while (fake.knobs.is_gated) {
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
    fake.counts.gated--;
}

/* ---- devices, ports, addresses ------------------------------------------------------------------------------ */

static struct ibv_device **get_device_list(int *ret_count)
{
    struct ibv_device **list = calloc(FAKE_DEVICES + 1u, sizeof(struct ibv_device *));
    assert(list != NULL);
    for (uint32_t i = 0; i < FAKE_DEVICES; i++) {
        list[i] = &fake.devices[i].ibv;
    }
    *ret_count = (int)FAKE_DEVICES;
    return list;
}

static void free_device_list(struct ibv_device **list)
{
    free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
    return ((struct fake_device *)(void *)device)->name;
}

static struct ibv_context *open_device(struct ibv_device *ibv)
{
    struct fake_device *device = (struct fake_device *)(void *)ibv;
    lock();
    if (device->is_open) { /* one user is all that the tests need */
        unlock();
        errno = EBUSY;
        return NULL;
    }
    device->is_open = true;
    device->context = (struct ibv_context){.device = ibv};
    device->context.ops.poll_cq = fake_poll_cq;
    device->context.ops.req_notify_cq = fake_req_notify_cq;
    device->context.ops.post_send = fake_post_send;
    device->context.ops.post_recv = fake_post_recv;
    device->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    device->event_head = 0;
    device->event_tail = 0;
    unlock();
    return &device->context;
}

static int close_device(struct ibv_context *context)
{
    lock();
    close(context->async_fd);
    device_of(context)->is_open = false;
    unlock();
    return 0;
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *ret_attr)
{
    (void)context;
    uint32_t cq_max = fake.knobs.cq_slots_max;
    *ret_attr = (struct ibv_device_attr){.max_qp_wr = 16384,
                                         .max_sge = (int)FAKE_SGES,
                                         .max_cqe = cq_max > 0 ? (int)cq_max : 32767,
                                         .phys_port_cnt = 1};
    return 0;
}

static int query_port(struct ibv_context *context, uint8_t port,
                      struct _compat_ibv_port_attr *ret_attr)
{
    const struct fake_device *device = device_of(context);
    struct ibv_port_attr *attr = (struct ibv_port_attr *)(void *)ret_attr;
    if (port != 1) {
        return EINVAL;
    }
    lock();
    attr->state = device->state;
    attr->active_mtu = IBV_MTU_4096;
    attr->max_mtu = IBV_MTU_4096;
    attr->max_msg_sz = 1u << 23;
    attr->gid_tbl_len = FAKE_GIDS;
    attr->lid = device->lid;
    attr->link_layer = device->link_layer;
    unlock();
    return 0;
}

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *ret_entries,
                               size_t entries_max, uint32_t flags, size_t entry_bytes)
{
    const struct fake_device *device = device_of(context);
    size_t count = 0;
    (void)flags;
    assert(entry_bytes == sizeof(*ret_entries));
    lock();
    for (uint32_t i = 0; i < FAKE_GIDS && count < entries_max; i++) {
        if (device->has_gid[i]) {
            ret_entries[count++] = device->gids[i];
        }
    }
    unlock();
    return (ssize_t)count;
}

struct fake_device *fake_device_by_gid(const uint8_t gid[16])
{
    for (uint32_t d = 0; d < FAKE_DEVICES; d++) {
        for (uint32_t i = 0; i < FAKE_GIDS; i++) {
            if (fake.devices[d].has_gid[i] &&
                memcmp(fake.devices[d].gids[i].gid.raw, gid, 16) == 0) {
                return &fake.devices[d];
            }
        }
    }
    return NULL;
}

/* ---- events -------------------------------------------------------------------------------------------------- */

static int get_async_event(struct ibv_context *context, struct ibv_async_event *ret_event)
{
    struct fake_device *device = device_of(context);
    uint64_t one;
    if (read(context->async_fd, &one, sizeof(one)) != (ssize_t)sizeof(one)) {
        return -1;
    }
    lock();
    if (device->event_head == device->event_tail) { /* of a queue pair that is gone */
        unlock();
        errno = EAGAIN;
        return -1;
    }
    struct fake_async event = device->events[device->event_head++ % FAKE_EVENTS];
    ret_event->event_type = event.type;
    if (event.qp != NULL) {
        event.qp->async_taken++;
        ret_event->element.qp = &event.qp->ibv;
    } else if (event.cq != NULL) {
        event.cq->async_taken++;
        ret_event->element.cq = &event.cq->ibv;
    } else {
        ret_event->element.port_num = 1;
    }
    unlock();
    return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
    lock();
    switch ((int)event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        ((struct fake_qp *)(void *)event->element.qp)->async_taken--;
        break;
    case IBV_EVENT_CQ_ERR:
        ((struct fake_cq *)(void *)event->element.cq)->async_taken--;
        break;
    default:
        break;
    }
    pthread_cond_broadcast(&fake.changed);
    unlock();
}

/* Events of an object that goes are never seen. */
static void forget_events(struct fake_device *device, const struct fake_qp *qp,
                          const struct fake_cq *cq)
{
    uint32_t to = device->event_head;
    for (uint32_t from = device->event_head; from != device->event_tail; from++) {
        struct fake_async event = device->events[from % FAKE_EVENTS];
        bool is_its = (qp != NULL && event.qp == qp) || (cq != NULL && event.cq == cq);
        if (!is_its) {
            device->events[to++ % FAKE_EVENTS] = event;
        }
    }
    device->event_tail = to;
}

/* ---- domains and memory ---------------------------------------------------------------------------------------- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    assert(pd != NULL);
    pd->context = context;
    lock();
    fake.counts.objects++;
    unlock();
    return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    const struct fake_device *device = device_of(pd->context);
    lock();
    bool is_used = device->qp_count > 0;
    for (uint32_t i = 0; i < FAKE_MRS; i++) {
        is_used |= device->mrs[i] != NULL;
    }
    if (!is_used) {
        fake.counts.objects--;
        free(pd);
    }
    unlock();
    return is_used ? EBUSY : 0;
}

/* Keys are an index and 8 bits that change with every use of it. */
static struct fake_mr *mr_new(struct ibv_pd *pd, uint64_t iova, void *ptr, uint64_t bytes)
{
    struct fake_device *device = device_of(pd->context);
    struct fake_mr *mr = calloc(1, sizeof(*mr));
    assert(mr != NULL);
    uint32_t at = 0;
    while (device->mrs[at] != NULL) {
        at++;
        assert(at < FAKE_MRS);
    }
    device->mr_next++;
    *mr = (struct fake_mr){.device = device, .iova = iova, .ptr = ptr, .bytes = bytes};
    mr->ibv.context = pd->context;
    mr->ibv.pd = pd;
    mr->ibv.addr = ptr;
    mr->ibv.length = bytes;
    mr->ibv.lkey = at << 8 | (device->mr_next & 0xffu);
    mr->ibv.rkey = mr->ibv.lkey;
    device->mrs[at] = mr;
    fake.counts.objects++;
    return mr;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access)
{
    lock();
    struct fake_mr *mr = mr_new(pd, (uint64_t)(uintptr_t)base, base, bytes);
    mr->access = access;
    unlock();
    return &mr->ibv;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, size_t bytes,
                                    uint64_t iova, int fd, int access)
{
    lock();
    bool is_taken = fake.knobs.takes_dmabuf;
    struct fake_mr *mr = NULL;
    if (is_taken) {
        void *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)off);
        assert(ptr != MAP_FAILED);
        mr = mr_new(pd, iova, ptr, bytes);
        mr->access = access;
        mr->is_mapped = true;
    }
    unlock();
    if (mr == NULL) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return &mr->ibv;
}

struct fake_mr *fake_mr_find(struct fake_device *device, uint32_t key, uint64_t addr,
                             uint64_t bytes)
{
    uint32_t at = key >> 8;
    struct fake_mr *mr = at < FAKE_MRS ? device->mrs[at] : NULL;
    bool is_in = mr != NULL && mr->ibv.rkey == key && addr >= mr->iova && bytes <= mr->bytes &&
                 addr - mr->iova <= mr->bytes - bytes;
    return is_in ? mr : NULL;
}

static int dereg_mr(struct ibv_mr *ibv)
{
    struct fake_mr *mr = (struct fake_mr *)(void *)ibv;
    struct fake_device *device = mr->device;
    lock();
    if (fake.knobs.deregs_refused > 0) {
        fake.knobs.deregs_refused--;
        unlock();
        return EINVAL;
    }
    for (uint32_t i = 0; i < FAKE_QPS; i++) { /* copies into it end first */
        struct fake_qp *qp = device->qps[i];
        if (qp != NULL && qp->copy.is_under_way && qp->copy.to >= mr->ptr &&
            qp->copy.to < mr->ptr + mr->bytes) {
            fake_land(qp, qp->state != IBV_QPS_ERR);
        }
    }
    device->mrs[mr->ibv.lkey >> 8] = NULL;
    fake.counts.objects--;
    unlock();
    if (mr->is_mapped) {
        munmap(mr->ptr, mr->bytes);
    }
    free(mr);
    return 0;
}

/* ---- completion queues ------------------------------------------------------------------------------------------ */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct fake_channel *channel = calloc(1, sizeof(*channel));
    assert(channel != NULL);
    channel->ibv.context = context;
    channel->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    lock();
    fake.counts.objects++;
    unlock();
    return &channel->ibv;
}

static int destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    close(ibv->fd);
    lock();
    fake.counts.objects--;
    unlock();
    free(ibv);
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int slots, void *cq_context,
                                struct ibv_comp_channel *channel, int vector)
{
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    assert(cq != NULL && vector == 0 && slots > 0);
    cq->wcs = calloc((size_t)slots, sizeof(*cq->wcs));
    assert(cq->wcs != NULL);
    cq->cap = (uint32_t)slots; /* not one more than asked */
    cq->device = device_of(context);
    cq->ibv.context = context;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = cq_context;
    cq->ibv.cqe = slots;
    lock();
    fake.counts.objects++;
    unlock();
    return &cq->ibv;
}

static int destroy_cq(struct ibv_cq *ibv)
{
    struct fake_cq *cq = (struct fake_cq *)(void *)ibv;
    lock();
    if (cq->users > 0) {
        unlock();
        return EBUSY;
    }
    while (cq->async_taken > 0 || cq->events_taken > 0) {
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
    forget_events(cq->device, NULL, cq);
    struct fake_channel *channel = (struct fake_channel *)(void *)ibv->channel;
    uint32_t to = channel->head;
    for (uint32_t from = channel->head; from != channel->tail; from++) {
        struct fake_cq *event = channel->events[from % FAKE_EVENTS];
        if (event != cq) {
            channel->events[to++ % FAKE_EVENTS] = event;
        }
    }
    channel->tail = to;
    fake.counts.objects--;
    unlock();
    free(cq->wcs);
    free(cq);
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **ret_cq,
                        void **ret_context)
{
    struct fake_channel *channel = (struct fake_channel *)(void *)ibv;
    uint64_t one;
    if (read(ibv->fd, &one, sizeof(one)) != (ssize_t)sizeof(one)) {
        return -1;
    }
    lock();
    if (channel->head == channel->tail) {
        unlock();
        errno = EAGAIN;
        return -1;
    }
    struct fake_cq *cq = channel->events[channel->head++ % FAKE_EVENTS];
    cq->events_taken++;
    *ret_cq = &cq->ibv;
    *ret_context = cq->ibv.cq_context;
    unlock();
    return 0;
}

static void ack_cq_events(struct ibv_cq *ibv, unsigned int count)
{
    lock();
    ((struct fake_cq *)(void *)ibv)->events_taken -= count;
    pthread_cond_broadcast(&fake.changed);
    unlock();
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------- */

/* A device gives more than asked: of a power of two, one less. */
static uint32_t rounded(uint32_t asked)
{
    uint32_t cap = 1;
    while (cap <= asked) {
        cap *= 2;
    }
    return cap - 1u;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct fake_device *device = device_of(pd->context);
    lock();
    pass_gate();
    if (fake.knobs.makes_refused > 0) {
        fake.knobs.makes_refused--;
        unlock();
        errno = ENOMEM;
        return NULL;
    }
    uint32_t qpn = FAKE_FIRST_QPN;
    while (device->qps[qpn] != NULL) {
        qpn++;
        assert(qpn < FAKE_QPS);
    }
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    assert(qp != NULL && attr->qp_type == IBV_QPT_RC);
    qp->device = device;
    qp->send_cq = (struct fake_cq *)(void *)attr->send_cq;
    qp->recv_cq = (struct fake_cq *)(void *)attr->recv_cq;
    qp->send_cq->users++;
    qp->recv_cq->users++;
    attr->cap.max_send_wr = rounded(attr->cap.max_send_wr);
    qp->send_cap = attr->cap.max_send_wr;
    qp->recv_cap = attr->cap.max_recv_wr;
    qp->sends = calloc(qp->send_cap, sizeof(*qp->sends));
    qp->receives = calloc(qp->recv_cap, sizeof(*qp->receives));
    assert(qp->sends != NULL && qp->receives != NULL);
    qp->ibv.context = pd->context;
    qp->ibv.qp_context = attr->qp_context;
    qp->ibv.pd = pd;
    qp->ibv.send_cq = attr->send_cq;
    qp->ibv.recv_cq = attr->recv_cq;
    qp->ibv.qp_num = qpn;
    qp->ibv.qp_type = IBV_QPT_RC;
    qp->state = IBV_QPS_RESET;
    device->qps[qpn] = qp;
    device->qp_count++;
    fake.counts.qps_made++;
    fake.counts.objects++;
    unlock();
    return &qp->ibv;
}

static int to_init(struct fake_qp *qp, const struct ibv_qp_attr *attr)
{
    qp->access = attr->qp_access_flags;
    return attr->port_num == 1 ? 0 : EINVAL;
}

static int to_rtr(struct fake_qp *qp, const struct ibv_qp_attr *attr)
{
    uint8_t idx = attr->ah_attr.grh.sgid_index;
    if (attr->ah_attr.is_global && (idx >= FAKE_GIDS || !qp->device->has_gid[idx])) {
        return EINVAL;
    }
    bool is_loop = attr->dest_qp_num == qp->ibv.qp_num &&
                   fake_device_by_gid(attr->ah_attr.grh.dgid.raw) == qp->device;
    if (is_loop && fake.knobs.loops_need_link && qp->device->state != IBV_PORT_ACTIVE) {
        return EINVAL;
    }
    qp->dest_qpn = attr->dest_qp_num;
    qp->expected_psn = attr->rq_psn;
    qp->mtu = 128u << attr->path_mtu;
    qp->is_global = attr->ah_attr.is_global != 0;
    qp->sgid_index = idx;
    qp->dlid = attr->ah_attr.dlid;
    memcpy(qp->dest_gid, attr->ah_attr.grh.dgid.raw, 16);
    return 0;
}

static int to_rts(struct fake_qp *qp, const struct ibv_qp_attr *attr)
{
    qp->first_psn = attr->sq_psn;
    qp->next_psn = attr->sq_psn;
    qp->acked_psn = attr->sq_psn;
    qp->timeout = attr->timeout;
    qp->retry = attr->retry_cnt;
    qp->rnr_retry = attr->rnr_retry;
    qp->retries_left = attr->retry_cnt;
    qp->rnr_left = attr->rnr_retry;
    return 0;
}

static int modify_locked(struct fake_qp *qp, const struct ibv_qp_attr *attr)
{
    int rc = EINVAL;
    pass_gate();
    switch (attr->qp_state) {
    case IBV_QPS_INIT:
        rc = qp->state == IBV_QPS_RESET ? to_init(qp, attr) : EINVAL;
        break;
    case IBV_QPS_RTR:
        rc = qp->state == IBV_QPS_INIT ? to_rtr(qp, attr) : EINVAL;
        break;
    case IBV_QPS_RTS:
        rc = qp->state == IBV_QPS_RTR ? to_rts(qp, attr) : EINVAL;
        break;
    case IBV_QPS_ERR:
        if (fake.knobs.stops_refused > 0) {
            fake.knobs.stops_refused--;
            return EIO;
        }
        fake_qp_to_err(qp); /* a packet that is being copied goes on */
        return 0;
    case IBV_QPS_RESET:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
    case IBV_QPS_UNKNOWN:
        fake.counts.resets++;
        break;
    }
    if (rc == 0) {
        qp->state = attr->qp_state;
    }
    return rc;
}

static int modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    assert((mask & IBV_QP_STATE) != 0); /* access flags alone are no fence */
    lock();
    int rc = modify_locked((struct fake_qp *)(void *)ibv, attr);
    unlock();
    return rc;
}

static int destroy_qp(struct ibv_qp *ibv)
{
    struct fake_qp *qp = (struct fake_qp *)(void *)ibv;
    struct fake_device *device = qp->device;
    lock();
    pass_gate();
    if (fake.knobs.destroys_refused > 0) {
        fake.knobs.destroys_refused--;
        unlock();
        return EBUSY;
    }
    fake_land(qp, false);
    while (qp->async_taken > 0) {
        pthread_cond_wait(&fake.changed, &fake.lock);
    }
    forget_events(device, qp, NULL);
    qp->send_cq->users--;
    qp->recv_cq->users--;
    device->qps[ibv->qp_num] = NULL;
    device->qp_count--;
    fake.counts.objects--;
    unlock();
    free(qp->sends);
    free(qp->receives);
    free(qp);
    return 0;
}

static const struct kvf_verbs_lib lib = {
    .get_device_list = get_device_list,
    .free_device_list = free_device_list,
    .get_device_name = get_device_name,
    .open_device = open_device,
    .close_device = close_device,
    .query_device = query_device,
    .query_port = query_port,
    .query_gid_table = query_gid_table,
    .get_async_event = get_async_event,
    .ack_async_event = ack_async_event,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .reg_mr = reg_mr,
    .reg_dmabuf_mr = reg_dmabuf_mr,
    .dereg_mr = dereg_mr,
    .create_comp_channel = create_comp_channel,
    .destroy_comp_channel = destroy_comp_channel,
    .create_cq = create_cq,
    .destroy_cq = destroy_cq,
    .get_cq_event = get_cq_event,
    .ack_cq_events = ack_cq_events,
    .create_qp = create_qp,
    .modify_qp = modify_qp,
    .destroy_qp = destroy_qp,
};

const struct kvf_verbs_lib *fake_lib(void)
{
    return &lib;
}

/* Registrations. They change nothing that the loop uses, so the worker's own helper makes them beside it. */
#include <errno.h>
#include <stdlib.h>

#include "sidecar/transport/verbs_lane.h"

int kvf_verbs_register(struct kvf_transport *t, void *base, uint64_t bytes, int dmabuf_fd,
                       uint64_t dmabuf_off, struct kvf_verbs_memory **ret_memory)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    /* Only a flush reads, and only what is not the host's: no queue pair of a lane allows it. */
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                 (dmabuf_fd < 0 ? 0 : IBV_ACCESS_REMOTE_READ);
    struct kvf_verbs_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL) {
        return -ENOMEM;
    }
    memory->verbs = v;
    memory->base = (uint64_t)(uintptr_t)base;
    memory->bytes = bytes;
    for (uint32_t i = 0; i < v->rail_count; i++) {
        struct ibv_pd *pd = v->rails[i].pd;
        if (pd == NULL) {
            continue; /* a device that no lane uses */
        }
        errno = 0;
        struct ibv_mr *mr =
            dmabuf_fd < 0
                ? v->lib->reg_mr(pd, base, bytes, access)
                : v->lib->reg_dmabuf_mr(pd, dmabuf_off, bytes, memory->base, dmabuf_fd, access);
        if (mr == NULL) {
            int rc = errno > 0 ? -errno : -EIO;
            if (kvf_verbs_unregister(t, memory) != 0) {
                *ret_memory = memory; /* a device keeps it: nobody was told its key */
            }
            return rc;
        }
        memory->mrs[i] = mr;
        memory->local_keys[i] = mr->lkey;
        memory->remote_keys[i] = mr->rkey;
    }
    *ret_memory = memory;
    return 0;
}

int kvf_verbs_unregister(struct kvf_transport *t, struct kvf_verbs_memory *memory)
{
    struct kvf_verbs *v = kvf_verbs_of(t);
    int rc = 0;
    for (uint32_t i = 0; i < v->rail_count; i++) {
        if (memory->mrs[i] == NULL) {
            continue;
        }
        int refused = v->lib->dereg_mr(memory->mrs[i]);
        if (refused == 0) {
            memory->mrs[i] = NULL;
        } else {
            rc = refused > 0 ? -refused : refused;
        }
    }
    if (rc == 0) {
        free(memory);
    }
    return rc;
}

void kvf_verbs_keys(const struct kvf_verbs_memory *memory, uint64_t *ret_base,
                    uint32_t ret_keys[KVF_RAILS_MAX], uint32_t *ret_key_count)
{
    *ret_base = memory->base;
    *ret_key_count = memory->verbs->rail_count;
    for (uint32_t i = 0; i < memory->verbs->rail_count; i++) {
        ret_keys[i] = memory->remote_keys[i];
    }
}

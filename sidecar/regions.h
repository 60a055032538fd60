/* The worker's mappings of client memory. Mapping and unmapping happen on the helper thread; the table
 * is read and changed by the loop alone, and an entry in the helper's hands is used by nobody else.
 *
 * The pages are never touched through the mapping by a load or store of ours, only by system calls that
 * fail with EFAULT when an engine punched a hole: a fault costs that client only. */
#ifndef KVF_SIDECAR_REGIONS_H
#define KVF_SIDECAR_REGIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "sidecar/core/core.h"
#include "sidecar/host/helper.h"
#include "sidecar/link.h"
#include "sidecar/transport/transport.h"

enum kvf_region_state {
    KVF_REGION_FREE = 0,
    KVF_REGION_MAPPING,   /* helper */
    KVF_REGION_LIVE,      /* the core and the transport may use it */
    KVF_REGION_UNMAPPING, /* helper */
    KVF_REGION_WITHHELD, /* a device did not let go of it: asked again, until it does or this worker ends */
};

struct kvf_regions;

/* Both report a region whose job has ended. code: 0, or a positive code and its place is free again. */
struct kvf_regions_host {
    void *ctx;
    void (*added_fn)(void *ctx, uint32_t client, uint32_t region, uint32_t code);
    void (*removed_fn)(void *ctx, uint32_t client, uint32_t region);
};

/* What devices know of a mapping: their registration, and what peers are told of it. */
struct kvf_regions_memory {
    struct kvf_verbs_memory *memory;
    uint64_t base;
    uint32_t keys[KVF_WIRE_KEYS_MAX];
    uint32_t key_count;
};
/* Called on the helper thread, between mapping and unmapping. 0 or -errno. A mapping that unregister_fn did not
 * return 0 for is neither unmapped nor reported removed: a device may still reach it. It is asked again
 * (kvf_regions_tick). */
struct kvf_regions_device {
    void *ctx;
    /* dmabuf_fd -1: host memory mapped at base. Else base is NULL, and [dmabuf_off, + bytes) of that dma-buf. On an
     * error ret_memory->memory stays NULL, or names what must be unregistered all the same. */
    int (*register_fn)(void *ctx, void *base, uint64_t bytes, int dmabuf_fd,
                       uint64_t dmabuf_off, struct kvf_regions_memory *ret_memory);
    int (*unregister_fn)(void *ctx, struct kvf_verbs_memory *memory);
    /* Loop: memory of a device is there from now on. NULL: nobody wants to know. */
    void (*expect_flushes_fn)(void *ctx);
};

/* device NULL: memory is known to no device. 0 or -ENOMEM. */
int kvf_regions_create(uint32_t clients_max, struct kvf_core *core, struct kvf_helper *helper,
                       const struct kvf_regions_host *host,
                       const struct kvf_regions_device *device,
                       struct kvf_regions **ret_regions);

/* Starts mapping. The descriptor is taken over, also on failure. 0; -EEXIST: the slot is not free;
 * -ENOMEM. added_fn follows only after 0. */
int kvf_regions_add(struct kvf_regions *regions, const struct kvf_link_region *msg,
                    int memory_fd);
/* 0: removed_fn follows. -KVF_E_REGION_BUSY, -KVF_E_UNKNOWN_REGION: nothing changed. */
int kvf_regions_remove(struct kvf_regions *regions, uint32_t client, uint32_t region);
/* A quiet client leaves: the core has forgotten its regions. removed_fn follows for each. */
void kvf_regions_drop_client(struct kvf_regions *regions, uint32_t client);
/* How many of this client are not free: it may be forgotten at 0. */
uint32_t kvf_regions_held(const struct kvf_regions *regions, uint32_t client);
uint32_t kvf_regions_live(const struct kvf_regions *regions);

/* A job of ours came back from the helper; returns false if it is somebody else's. */
bool kvf_regions_job_back(struct kvf_regions *regions, uint64_t now_ns, struct kvf_job *job);
/* Whose job this is; KVF_NONE: none of ours. */
uint32_t kvf_regions_client_of(const struct kvf_regions *regions, const struct kvf_job *job);
/* Bytes that this job hands to, or takes from, devices in one call, which cannot be cut in steps; else 0. */
uint64_t kvf_regions_device_bytes(const struct kvf_regions *regions, const struct kvf_job *job);
/* Asks devices again for memory that they withhold: 100 ms after a refusal, then twice as long after each, up to
 * half a minute. For times when nothing is in a hurry; a look where nothing is withheld costs one compare. */
void kvf_regions_tick(struct kvf_regions *regions, uint64_t now_ns);

struct kvf_regions_counts {
    uint64_t refused; /* registrations that a device refused, since create */
    uint64_t
        withheld; /* regions that a device did not let go of when asked first, since create ... */
    uint64_t asked_again; /* ... and how often it was asked again for one */
    uint64_t withheld_now;
};
void kvf_regions_count(const struct kvf_regions *regions,
                       struct kvf_regions_counts *ret_counts);

/* For the transport: NULL unless LIVE. */
const struct kvf_transport_region *kvf_regions_find(const struct kvf_regions *regions,
                                                    uint32_t client, uint32_t region);

#endif

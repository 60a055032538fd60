/* The RDMA devices of a host, as its sysfs describes them. Nothing is opened but small files: a machine without
 * devices, or with ones that are gone the next moment, costs a sentence and no fault. */
#ifndef KVF_HOST_RDMA_DEVICES_H
#define KVF_HOST_RDMA_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "sidecar/host/sysfs.h"

#define KVF_RDMA_DEVICES_MAX 256
#define KVF_NODE_UNKNOWN (-1)
#define KVF_NODE_MAX 1023

struct kvf_rdma_device {
    char name[KVF_SYSFS_NAME_BYTES];
    char netdev[16]; /* empty: none, or it lives in another network namespace */
    char uverbs[16]; /* its file below /dev/infiniband; empty: not known */
    char path
        [KVF_SYSFS_PATH_BYTES]; /* of its PCI function, relative to the root; empty: a device of software */
    char refusal[KVF_SYSFS_PATH_BYTES]; /* why it cannot be used now, or empty */
    bool
        is_waiting; /* ... and that is its port's state alone, which may change; `port` is the first such one */
    int32_t node;  /* KVF_NODE_UNKNOWN is no node at all, and least of all node 0 */
    uint32_t port; /* the first active one, else see is_waiting, or 0 */
    bool is_ethernet;
    bool is_vf;
};

/* Fills up to `max` devices in the order of their names. dev_dir is where their files are ("/dev/infiniband"): a
 * device whose file this process may not open is refused here rather than later; NULL: not looked at. Returns
 * how many devices there are, which may be above `max`; 0 if the host knows no RDMA at all. */
int kvf_rdma_devices_read(const char *root, const char *dev_dir,
                          struct kvf_rdma_device *ret_devices, int max);

#endif

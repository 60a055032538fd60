/* Where a worker belongs: which RDMA devices it uses, on which processor it runs, and on which node its rings and
 * queues lie. A pure function of a sysfs tree, the processors that are allowed, and what was asked for: the same
 * question has the same answer each time, whatever the order in which folders list their entries.
 *
 * Nearness to the memory that is served, in this order:
 *   switch      the path down the PCI tree parts at a bridge: traffic need not pass the processor
 *   root        it parts at the host bridge
 *   node        the same NUMA node
 *   other node  nearer nodes first (the kernel's node distances)
 *   unknown     numa_node is -1, or the device is one of software
 * Within a class the deeper common bridge comes first, then fewer steps, then the name ("mlx5_2" before
 * "mlx5_10"). */
#ifndef KVF_HOST_PLACEMENT_H
#define KVF_HOST_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sidecar/host/numa.h"

#define KVF_PLACEMENT_RAILS_MAX 8u
#define KVF_RAIL_NAME_BYTES 64
#define KVF_PLACEMENT_WHY_BYTES 900

enum kvf_near {
    KVF_NEAR_SWITCH = 1,
    KVF_NEAR_ROOT,
    KVF_NEAR_NODE,
    KVF_NEAR_OTHER_NODE,
    KVF_NEAR_UNKNOWN,
};

struct kvf_rail {
    char name[KVF_RAIL_NAME_BYTES]; /* of the RDMA device */
    char netdev[16];                /* empty: none that is seen here */
    int32_t node;                   /* -1: unknown */
    uint32_t port;                  /* its first active one, from 1 */
    uint32_t near;                  /* enum kvf_near */
    bool is_ethernet;               /* RoCE; else InfiniBand */
    bool is_vf;
};

struct kvf_rails {
    int32_t
        memory_node; /* where rings and queues belong; -1: near the worker's processor, wherever that is */
    uint32_t count;
    struct kvf_rail at[KVF_PLACEMENT_RAILS_MAX]; /* the first one decides node and processor */
};

struct kvf_placement_ask {
    const char *sysfs;   /* NULL: "/sys" */
    const char *dev_dir; /* NULL: files of devices are not looked at; else "/dev/infiniband" */
    const char *devices; /* "auto", or "NAME[,NAME...]": these, in this order */
    const char
        *near; /* the memory: "auto", a PCI address ("0000:3b:00.0", "3b:00.0"), or "nodeN" */
    uint32_t rails_max; /* most that auto takes, 1 to KVF_PLACEMENT_RAILS_MAX */
    int cpu;            /* a number, KVF_CPU_AUTO or KVF_CPU_NONE */
    const int *allowed; /* processors, in rising order */
    int allowed_count;
};

struct kvf_placed {
    struct kvf_rails rails;
    /* Processors for KVF_CPU_AUTO, the best one first and never one that is not allowed: the caller takes the first
     * that nobody else has. Empty if a number or none was asked for, or if at most one is allowed. First those near
     * the first rail, then the others. In each part: away from processor 0 and its siblings before these, one of
     * each core before a second one, higher numbers before lower. Processor 0 is left out of the second part, and
     * so is the first allowed one: these are everybody's. */
    uint32_t near_cpu_count;
    uint32_t cpu_count;
    uint16_t cpus[KVF_CPUS_MAX];
};

/* Is this how `devices` and `near` may look? For options; says nothing of what exists. 0, or -EINVAL with half a
 * sentence in ret_why ("names 'a b', ..."). */
int kvf_placement_check_devices(const char *devices, char *ret_why, size_t cap);
int kvf_placement_check_near(const char *near, char *ret_why, size_t cap);

/* auto takes the active devices that are equally near as the nearest one (the same class, parting at the same
 * bridge), rails_max of them at most. Without a hint (near auto) the memory is taken to be on the node of the
 * processor asked for, else on the one node that all allowed processors belong to, else on that of the first
 * active device whose node has an allowed processor.
 * A device that was named is taken with a port that is not active, too: it may become so.
 * 0, and in ret_why what was decided and what was left out, as text behind kvf_placement_line. -ENODEV: no device
 * is active, -EINVAL: a device or a place asked for by name is not there or can never be used; a sentence in ret_why
 * says what there is. -ENOMEM. Reads small files for some milliseconds, so not on a worker's loop. */
int kvf_placement_choose(const struct kvf_placement_ask *ask, struct kvf_placed *ret,
                         char *ret_why, size_t cap);

/* "rail mlx5_0 node 1, cpu 37, memory node 1"; a negative cpu is "unpinned". Returns ret_text. */
const char *kvf_placement_line(const struct kvf_rails *rails, int cpu, char *ret_text,
                               size_t cap);

#endif

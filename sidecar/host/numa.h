/* Processors and memory nodes. Containers restrict both: nothing here takes a number for granted. */
#ifndef KVF_HOST_NUMA_H
#define KVF_HOST_NUMA_H

#include <stdint.h>

#define KVF_CPU_AUTO (-1)
#define KVF_CPU_NONE (-2)
#define KVF_CPUS_MAX 4096

/* Processors that the calling thread may run on now, in rising order. Returns how many (at least 1), or
 * -errno; ret_cpus holds up to `max` of them. */
int kvf_cpu_allowed(int *ret_cpus, int max);
/* Pins the calling thread. 0 or -errno (-EINVAL: this processor is not allowed here). */
int kvf_cpu_pin(int cpu);
/* Prefers memory of the node that `cpu` belongs to. 1: bound; 0: there is only one node, or none is
 * known; -errno: the host refuses (containers answer -EPERM): run unbound. */
int kvf_numa_prefer_near(int cpu);
/* The same for a node whose number is known; negative: unknown. -EINVAL: the host has no such node, or gives
 * this process no memory of it. Preferred and not forced: a node that is full costs distance, and no start. */
int kvf_numa_prefer_node(int node);

#endif

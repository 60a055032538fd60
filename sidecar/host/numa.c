#include "sidecar/host/numa.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>

#define MASK_WORDS (KVF_CPUS_MAX / 64)

int kvf_cpu_allowed(int *ret_cpus, int max)
{
    cpu_set_t *set = CPU_ALLOC(KVF_CPUS_MAX);
    if (set == NULL) {
        return -ENOMEM;
    }
    size_t bytes = CPU_ALLOC_SIZE(KVF_CPUS_MAX);
    CPU_ZERO_S(bytes, set);
    int count = 0;
    if (sched_getaffinity(0, bytes, set) != 0) {
        count = -errno;
    }
    for (int cpu = 0; count >= 0 && cpu < KVF_CPUS_MAX; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, bytes, set)) {
            continue;
        }
        if (count < max) {
            ret_cpus[count] = cpu;
        }
        count++;
    }
    CPU_FREE(set);
    return count;
}

int kvf_cpu_pin(int cpu)
{
    if (cpu < 0 || cpu >= KVF_CPUS_MAX) {
        return -EINVAL;
    }
    cpu_set_t *set = CPU_ALLOC(KVF_CPUS_MAX);
    if (set == NULL) {
        return -ENOMEM;
    }
    size_t bytes = CPU_ALLOC_SIZE(KVF_CPUS_MAX);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S((size_t)cpu, bytes, set);
    int rc = sched_setaffinity(0, bytes, set) == 0 ? 0 : -errno;
    CPU_FREE(set);
    return rc;
}

int kvf_numa_prefer_near(int cpu)
{
    if (cpu < 0 || numa_available() < 0) {
        return 0;
    }
    return kvf_numa_prefer_node(numa_node_of_cpu(cpu));
}

/* The library's own setters print to stderr and go on when the host refuses, so the policy is set by
 * the bare call; it only answers which nodes there are. */
int kvf_numa_prefer_node(int node)
{
    if (node < 0 || node >= 64 * MASK_WORDS || numa_available() < 0 || numa_max_node() < 1) {
        return 0;
    }
    unsigned long mask[MASK_WORDS] = {0};
    mask[node / 64] = 1ul << (node % 64);
    return set_mempolicy(MPOL_PREFERRED, mask, 64ul * MASK_WORDS) == 0 ? 1 : -errno;
}

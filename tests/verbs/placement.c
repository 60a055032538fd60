/* Placement on this machine's own sysfs, kernel and memory: what the fixture trees of tests/unit cannot show. Meant for
 * a guest with two nodes (numa=fake=2, or real ones); says what it can on any machine, and exits with 77 where there
 * are fewer than two nodes with memory and allowed processors.
 * exit status: 0 all as promised, 1 not, 77 skipped */
#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sidecar/host/placement.h"
#include "sidecar/host/sysfs.h"

#define NODES_MAX 64
#define PAGES 512

static int checks;
static int failures;
static int allowed[KVF_CPUS_MAX];
static int allowed_count;
static struct kvf_placed placed;
static char why[KVF_PLACEMENT_WHY_BYTES];

__attribute__((format(printf, 2, 3))) static void check(bool is_right, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%s %d - ", is_right ? "ok" : "not ok", ++checks);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    failures += !is_right;
}

static int choose(const char *near, int cpu)
{
    allowed_count = kvf_cpu_allowed(allowed, KVF_CPUS_MAX);
    struct kvf_placement_ask ask = {.devices = "auto",
                                    .near = near,
                                    .rails_max = KVF_PLACEMENT_RAILS_MAX,
                                    .cpu = cpu,
                                    .allowed = allowed,
                                    .allowed_count = allowed_count};
    int rc = kvf_placement_choose(&ask, &placed, why, sizeof(why));
    printf("# near %s: %s\n", near, why);
    return rc;
}

/* The kernel is asked itself, not the function whose answer is judged. */
static bool is_all_allowed(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < placed.cpu_count; i++) {
        if (!CPU_ISSET(placed.cpus[i], &set)) {
            return false;
        }
    }
    return true;
}

static bool is_on_node(int cpu, int node)
{
    char path[64];
    struct kvf_cpus cpus;
    snprintf(path, sizeof(path), "devices/system/node/node%d/cpulist", node);
    return cpu >= 0 && kvf_sysfs_cpus("/sys", path, &cpus) == 0 &&
           kvf_cpus_has(&cpus, (uint32_t)cpu);
}

/* The first allowed processor of a node, or -1. */
static int cpu_of_node(int node)
{
    for (int i = 0; i < allowed_count; i++) {
        if (is_on_node(allowed[i], node)) {
            return allowed[i];
        }
    }
    return -1;
}

/* Nodes that have memory which this process may use, and an allowed processor. */
static int find_nodes(int *ret_nodes)
{
    int count = 0;
    if (numa_available() < 0) {
        return 0;
    }
    struct bitmask *mems = numa_get_mems_allowed();
    for (int node = 0; node <= numa_max_node() && count < NODES_MAX; node++) {
        if (numa_bitmask_isbitset(mems, (unsigned)node) && numa_node_size64(node, NULL) > 0 &&
            cpu_of_node(node) >= 0) {
            ret_nodes[count++] = node;
        }
    }
    numa_free_nodemask(mems);
    return count;
}

/* How many of fresh, touched pages lie on a node. */
static int pages_on(int node)
{
    static void *pages[PAGES];
    static int status[PAGES];
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *memory =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return -1;
    }
    for (size_t i = 0; i < PAGES; i++) {
        pages[i] = memory + i * page;
        memory[i * page] = 1;
        status[i] = -1;
    }
    int count = 0;
    int first = -1;
    if (move_pages(0, PAGES, pages, NULL, status, 0) != 0 ||
        get_mempolicy(&first, NULL, 0, memory, MPOL_F_NODE | MPOL_F_ADDR) != 0) {
        count = -1;
    }
    for (size_t i = 0; count >= 0 && i < PAGES; i++) {
        count += status[i] == node;
    }
    if (count >= 0 && (first == node) != (status[0] == node)) {
        count = -1;
    }
    munmap(memory, PAGES * page);
    return count;
}

static void any_machine(void)
{
    int rc = choose("auto", KVF_CPU_AUTO);
    char line[256];
    check(rc == 0 || rc == -ENODEV, "there is an answer (%d)", rc);
    if (rc == 0) {
        int cpu = placed.cpu_count > 0 ? placed.cpus[0] : KVF_CPU_NONE;
        printf("# placed: %s\n", kvf_placement_line(&placed.rails, cpu, line, sizeof(line)));
        check(is_all_allowed(), "all %u processors offered are allowed", placed.cpu_count);
        check((placed.cpu_count > 0) == (allowed_count > 1),
              "one is offered if more than one is allowed (%d)", allowed_count);
    }
    check(kvf_numa_prefer_node(-1) == 0, "no memory is bound for an unknown node");
    check(kvf_numa_prefer_node(1 << 20) == 0, "nor for a number that is no node's");
}

/* Bound from a processor of another node, where unbound memory would lie. */
static void memory_of(int node, int from_node)
{
    int from = cpu_of_node(from_node);
    check(kvf_cpu_pin(from) == 0, "pinned to cpu %d of node %d", from, from_node);
    int rc = kvf_numa_prefer_node(node);
    check(rc == 1, "memory is bound to node %d (%d)", node, rc);
    int count = pages_on(node);
    check(count == PAGES, "%d of %d touched pages are on node %d", count, PAGES, node);
}

static void restore(const cpu_set_t *all)
{
    check(sched_setaffinity(0, sizeof(*all), all) == 0, "the mask is as before");
    (void)set_mempolicy(MPOL_DEFAULT, NULL, 0);
}

static void place_at(int node, int other, const cpu_set_t *all)
{
    char near[16];
    snprintf(near, sizeof(near), "node%d", node);
    int rc = choose(near, KVF_CPU_AUTO);
    if (rc == -ENODEV) {
        printf("# no RDMA device here: what is chosen for node %d is not looked at\n", node);
    } else {
        int cpu = placed.cpu_count > 0 ? placed.cpus[0] : -1;
        int rail_node = placed.rails.at[0].node;
        int wanted = rail_node >= 0 ? rail_node : node;
        check(rc == 0 && placed.rails.memory_node == wanted, "memory belongs to node %d",
              placed.rails.memory_node);
        check(is_all_allowed(), "all %u processors offered are allowed", placed.cpu_count);
        check(is_on_node(cpu, wanted), "cpu %d is one of node %d", cpu, wanted);
    }
    memory_of(node, other);
    restore(all);
}

/* A container's mask: what is offered shrinks with it. */
static void shrink(int node, const cpu_set_t *all)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu_of_node(node), &one);
    check(sched_setaffinity(0, sizeof(one), &one) == 0, "one processor of node %d is left",
          node);
    int rc = choose("auto", KVF_CPU_AUTO);
    check(rc == -ENODEV || (rc == 0 && placed.cpu_count == 0), "then none is offered");
    restore(all);
}

int main(void)
{
    int nodes[NODES_MAX];
    cpu_set_t all;
    setvbuf(stdout, NULL, _IOLBF, 0);
    any_machine();
    int count = find_nodes(nodes);
    if (failures == 0 && count < 2) {
        printf("skipped: %d node with memory and allowed processors, the rest needs two "
               "(numa=fake=2 on the kernel's command line)\n",
               count);
        return 77;
    }
    if (count >= 2 && sched_getaffinity(0, sizeof(all), &all) == 0) {
        for (int i = 0; i < count; i++) {
            place_at(nodes[i], nodes[(i + 1) % count], &all);
            shrink(nodes[i], &all);
        }
    }
    printf("1..%d\n# %d failed\n", checks, failures);
    return failures == 0 ? 0 : 1;
}

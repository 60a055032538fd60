/* Trees in the shape of a host's sysfs, made in a temporary folder: what kvf_placement_choose reads, and no more.
 * Named for the shape of server that they imitate; none is a copy of a particular machine's. */
#ifndef KVF_TEST_SYSFS_TREE_H
#define KVF_TEST_SYSFS_TREE_H

#include <criterion/criterion.h>

#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sidecar/host/placement.h"

#define TREE_UNUSED __attribute__((unused))

static char tree_root[64];

static int tree_unlink_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

TREE_UNUSED static void tree_open(void)
{
    snprintf(tree_root, sizeof(tree_root), "/tmp/kvfence-sysfs-XXXXXX");
    cr_assert_neq(mkdtemp(tree_root), NULL);
}

TREE_UNUSED static void tree_close(void)
{
    (void)nftw(tree_root, tree_unlink_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void tree_path(char ret_path[1024], const char *path)
{
    cr_assert_lt(snprintf(ret_path, 1024, "%s/%s", tree_root, path), 1024);
}

static void tree_parents(const char *full)
{
    char part[1024];
    snprintf(part, sizeof(part), "%s", full);
    for (char *at = part + strlen(tree_root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        cr_assert(mkdir(part, 0755) == 0 || errno == EEXIST, "%s: %s", part, strerror(errno));
        *at = '/';
    }
}

static void tree_folder(const char *path)
{
    char full[1024];
    tree_path(full, path);
    tree_parents(full);
    cr_assert(mkdir(full, 0755) == 0 || errno == EEXIST, "%s: %s", full, strerror(errno));
}

__attribute__((format(printf, 2, 3))) static void tree_file(const char *path,
                                                            const char *format, ...)
{
    char full[1024];
    tree_path(full, path);
    tree_parents(full);
    FILE *f = fopen(full, "w");
    cr_assert_neq(f, NULL, "%s: %s", full, strerror(errno));
    va_list args;
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    cr_assert_eq(fclose(f), 0);
}

/* `target` as a path of the tree; the link itself is relative, as sysfs makes them, so that the tree can move. */
static void tree_link(const char *path, const char *target)
{
    char full[1024];
    char up[1024] = "";
    tree_path(full, path);
    tree_parents(full);
    for (const char *at = strchr(path, '/'); at != NULL; at = strchr(at + 1, '/')) {
        strcat(up, "../");
    }
    strcat(up, target);
    (void)unlink(full);
    cr_assert_eq(symlink(up, full), 0, "%s: %s", full, strerror(errno));
}

TREE_UNUSED static void tree_remove(const char *path)
{
    char full[1024];
    tree_path(full, path);
    cr_assert_eq(nftw(full, tree_unlink_one, 16, FTW_DEPTH | FTW_PHYS), 0, "%s", full);
}

TREE_UNUSED static void tree_node(int node, const char *cpus, const char *distances)
{
    char path[128];
    snprintf(path, sizeof(path), "devices/system/node/node%d/cpulist", node);
    tree_file(path, "%s\n", cpus);
    snprintf(path, sizeof(path), "devices/system/node/node%d/distance", node);
    tree_file(path, "%s\n", distances);
}

/* Processors from..to-1, each a core with the one `apart` above it. Costs time: for tests of their order. */
TREE_UNUSED static void tree_cores(int from, int to, int apart)
{
    char path[128];
    for (int cpu = from; cpu < to; cpu++) {
        for (int thread = 0; thread < 2; thread++) {
            snprintf(path, sizeof(path),
                     "devices/system/cpu/cpu%d/topology/thread_siblings_list",
                     cpu + thread * apart);
            tree_file(path, "%d,%d\n", cpu, cpu + apart);
        }
    }
}

/* A PCI function at a path below the root, and its place among all of them. */
TREE_UNUSED static void tree_pci(const char *path, int node, const char *cpus)
{
    char part[640];
    snprintf(part, sizeof(part), "%s/numa_node", path);
    tree_file(part, "%d\n", node);
    snprintf(part, sizeof(part), "%s/local_cpulist", path);
    tree_file(part, "%s\n", cpus);
    snprintf(part, sizeof(part), "bus/pci/devices/%s", strrchr(path, '/') + 1);
    tree_link(part, path);
}

TREE_UNUSED static void tree_port(const char *device_path, int port, const char *state,
                                  const char *layer)
{
    char part[640];
    snprintf(part, sizeof(part), "%s/ports/%d/state", device_path, port);
    tree_file(part, "%s\n", state);
    snprintf(part, sizeof(part), "%s/ports/%d/link_layer", device_path, port);
    tree_file(part, "%s\n", layer);
}

/* An RDMA device of the PCI function at `path`, with an active port and a network device. */
TREE_UNUSED static void tree_nic(const char *path, const char *name, const char *netdev)
{
    char device[512];
    char part[640];
    snprintf(device, sizeof(device), "%s/infiniband/%s", path, name);
    tree_port(device, 1, "4: ACTIVE", "InfiniBand");
    snprintf(part, sizeof(part), "%s/device", device);
    tree_link(part, path);
    snprintf(part, sizeof(part), "class/infiniband/%s", name);
    tree_link(part, device);
    if (netdev != NULL) {
        snprintf(device, sizeof(device), "%s/net/%s", path, netdev);
        tree_folder(device);
        snprintf(part, sizeof(part), "%s/device", device);
        tree_link(part, path);
        snprintf(part, sizeof(part), "class/net/%s", netdev);
        tree_link(part, device);
    }
}

TREE_UNUSED static void tree_port_state(const char *name, int port, const char *state)
{
    char path[256];
    snprintf(path, sizeof(path), "class/infiniband/%s/ports/%d/state", name, port);
    tree_file(path, "%s\n", state);
}

/* rxe: no PCI function at all, only the network device that it was put on. */
TREE_UNUSED static void tree_rxe(const char *name, const char *netdev)
{
    char device[256];
    char part[640];
    snprintf(device, sizeof(device), "devices/virtual/infiniband/%s", name);
    tree_port(device, 1, "4: ACTIVE", "Ethernet");
    snprintf(part, sizeof(part), "%s/parent", device);
    tree_file(part, "%s\n", netdev);
    snprintf(part, sizeof(part), "class/infiniband/%s", name);
    tree_link(part, device);
}

TREE_UNUSED static void tree_veth(const char *netdev)
{
    char device[256];
    char part[640];
    snprintf(device, sizeof(device), "devices/virtual/net/%s", netdev);
    tree_folder(device);
    snprintf(part, sizeof(part), "class/net/%s", netdev);
    tree_link(part, device);
}

/* ---- servers ----------------------------------------------------------------------------------------- */

#define HGX_NODE0 "0-55,112-167"
#define HGX_NODE1 "56-111,168-223"

/* Two sockets of 56 cores, eight GPUs and eight NICs, `per_switch` of each behind one PCI switch. GPU i is
 * 0000:XY:00.0 as hgx_gpu says, its NIC mlx5_i. `is_numa` off: as the firmware leaves it with node interleaving. */
TREE_UNUSED static void tree_hgx(int per_switch, bool is_numa)
{
    if (is_numa) {
        tree_node(0, HGX_NODE0, "10 21");
        tree_node(1, HGX_NODE1, "21 10");
    } else {
        tree_node(0, "0-223", "10");
    }
    for (int i = 0; i < 8; i++) {
        char up[256];
        char path[384];
        char name[24];
        char netdev[24];
        int node = !is_numa ? -1 : i / 4;
        const char *cpus = !is_numa ? "0-223" : node == 0 ? HGX_NODE0 : HGX_NODE1;
        int bus = 0x10 + i / per_switch * 0x10;
        int port = i % per_switch * 2;
        snprintf(up, sizeof(up), "devices/pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus,
                 bus + 1);
        snprintf(path, sizeof(path), "%s/0000:%02x:%02x.0/0000:%02x:00.0", up, bus + 2, port,
                 bus + 3 + port);
        tree_pci(path, node, cpus);
        snprintf(path, sizeof(path), "%s/0000:%02x:%02x.0/0000:%02x:00.0", up, bus + 2,
                 port + 1, bus + 4 + port);
        tree_pci(path, node, cpus);
        snprintf(name, sizeof(name), "mlx5_%d", i);
        snprintf(netdev, sizeof(netdev), "ibs%d", i);
        tree_nic(path, name, netdev);
    }
}

TREE_UNUSED static const char *hgx_gpu(int i, int per_switch)
{
    static char address[16];
    snprintf(address, sizeof(address), "0000:%02x:00.0",
             0x10 + i / per_switch * 0x10 + 3 + i % per_switch * 2);
    return address;
}

/* ---- asking ------------------------------------------------------------------------------------------ */

TREE_UNUSED static struct kvf_placed placed;
TREE_UNUSED static char why[KVF_PLACEMENT_WHY_BYTES];
TREE_UNUSED static int allowed[KVF_CPUS_MAX];

/* Asks with the processors from..to-1 allowed. */
TREE_UNUSED static int ask(const char *devices, const char *near, int cpu, int from, int to)
{
    for (int i = from; i < to; i++) {
        allowed[i - from] = i;
    }
    struct kvf_placement_ask a = {.sysfs = tree_root,
                                  .devices = devices,
                                  .near = near,
                                  .rails_max = KVF_PLACEMENT_RAILS_MAX,
                                  .cpu = cpu,
                                  .allowed = allowed,
                                  .allowed_count = to - from};
    why[0] = '\0';
    memset(&placed, 0, sizeof(placed));
    return kvf_placement_choose(&a, &placed, why, sizeof(why));
}

/* "mlx5_0 mlx5_1" */
TREE_UNUSED static const char *rails(void)
{
    static char text[KVF_PLACEMENT_RAILS_MAX * KVF_RAIL_NAME_BYTES];
    text[0] = '\0';
    for (uint32_t i = 0; i < placed.rails.count; i++) {
        strcat(strcat(text, i == 0 ? "" : " "), placed.rails.at[i].name);
    }
    return text;
}

#endif

#include "sidecar/host/rdma_devices.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORTS_MAX 16
#define PORT_MAX 255ul
#define STATE_DOWN 1
#define STATE_ACTIVE 4 /* "4: ACTIVE" */
#define STATE_ACTIVE_DEFER 5

/* `tail` of the device: a path below class/infiniband/NAME. */
static const char *below(const struct kvf_rdma_device *d, const char *tail, char *ret_path)
{
    snprintf(ret_path, KVF_SYSFS_PATH_BYTES, "class/infiniband/%s/%s", d->name, tail);
    return ret_path;
}

static bool is_name(const char *text)
{
    return text[0] != '\0' && text[0] != '.' && strchr(text, '/') == NULL;
}

/* A PCI function names its own network devices, a device of software its parent; a container may see
 * neither. */
static void read_netdev(const char *root, struct kvf_rdma_device *d)
{
    char path[KVF_SYSFS_PATH_BYTES];
    struct kvf_sysfs_name name;
    if (kvf_sysfs_list(root, below(d, "device/net", path), "", &name, 1) <= 0 &&
        kvf_sysfs_text(root, below(d, "parent", path), name.text, sizeof(name.text)) != 0 &&
        kvf_sysfs_text(root, below(d, "ports/1/gid_attrs/ndevs/0", path), name.text,
                       sizeof(name.text)) != 0) {
        return;
    }
    size_t bytes = strlen(name.text) + 1u;
    if (is_name(name.text) && bytes <= sizeof(d->netdev)) {
        memcpy(d->netdev, name.text, bytes);
    }
}

static bool is_virtual(const char *path)
{
    return strncmp(path, "devices/virtual/", strlen("devices/virtual/")) == 0;
}

/* rxe over a real card is as near as that card is. */
static void read_path(const char *root, struct kvf_rdma_device *d)
{
    char path[KVF_SYSFS_PATH_BYTES];
    int err = kvf_sysfs_resolve(root, below(d, "device", path), d->path, sizeof(d->path));
    if (err != 0 || is_virtual(d->path)) {
        d->path[0] = '\0';
        if (d->netdev[0] != '\0') {
            snprintf(path, sizeof(path), "class/net/%s/device", d->netdev);
            err = kvf_sysfs_resolve(root, path, d->path, sizeof(d->path));
        }
    }
    if (err != 0 || is_virtual(d->path)) {
        d->path[0] = '\0';
    }
}

static void read_node(const char *root, struct kvf_rdma_device *d)
{
    char path[KVF_SYSFS_PATH_BYTES + 16];
    d->node = KVF_NODE_UNKNOWN;
    if (d->path[0] != '\0') {
        snprintf(path, sizeof(path), "%s/numa_node", d->path);
        (void)kvf_sysfs_int(root, path, KVF_NODE_UNKNOWN, KVF_NODE_MAX, &d->node);
    }
}

/* "4: ACTIVE" */
static bool read_port(const char *root, struct kvf_rdma_device *d, uint32_t port)
{
    char tail[40];
    char path[KVF_SYSFS_PATH_BYTES];
    char state[32];
    snprintf(tail, sizeof(tail), "ports/%" PRIu32 "/state", port);
    int err = kvf_sysfs_text(root, below(d, tail, path), state, sizeof(state));
    char *end = NULL;
    long number = err == 0 ? strtol(state, &end, 10) : -1;
    if (err != 0 || end == state || *end != ':') {
        snprintf(d->refusal, sizeof(d->refusal), "the state of port %" PRIu32 " cannot be read",
                 port);
        return false;
    }
    bool is_active = number == STATE_ACTIVE;
    if (!is_active && d->is_waiting) {
        return false;
    }
    if (!is_active) {
        snprintf(d->refusal, sizeof(d->refusal), "port %" PRIu32 " is %.20s", port,
                 end + strspn(end, ": "));
    }
    if (number < STATE_DOWN || number > STATE_ACTIVE_DEFER) {
        return false;
    }
    char layer[32] = "";
    snprintf(tail, sizeof(tail), "ports/%" PRIu32 "/link_layer", port);
    (void)kvf_sysfs_text(root, below(d, tail, path), layer, sizeof(layer));
    d->is_ethernet = strcmp(layer, "Ethernet") == 0;
    d->port = port;
    d->is_waiting = !is_active;
    if (is_active) {
        d->refusal[0] = '\0';
    }
    return is_active;
}

/* The first active port is the one that is used; without one, the first that may become it. */
static void read_ports(const char *root, struct kvf_rdma_device *d)
{
    char path[KVF_SYSFS_PATH_BYTES];
    struct kvf_sysfs_name ports[PORTS_MAX];
    int count = kvf_sysfs_list(root, below(d, "ports", path), "", ports, PORTS_MAX);
    if (count < 0) {
        snprintf(d->refusal, sizeof(d->refusal), "its ports cannot be read: %s",
                 strerror(-count));
        return;
    }
    snprintf(d->refusal, sizeof(d->refusal), "it has no port");
    for (int i = 0; i < count && i < PORTS_MAX; i++) {
        const char *digits = ports[i].text;
        size_t count_digits = strspn(digits, "0123456789");
        unsigned long port = strtoul(digits, NULL, 10);
        if (digits[count_digits] == '\0' && port > 0 && port <= PORT_MAX &&
            read_port(root, d, (uint32_t)port)) {
            return;
        }
    }
}

static void read_device(const char *root, struct kvf_rdma_device *d)
{
    char path[KVF_SYSFS_PATH_BYTES];
    char target[KVF_SYSFS_PATH_BYTES];
    read_netdev(root, d);
    read_path(root, d);
    read_node(root, d);
    d->is_vf =
        kvf_sysfs_resolve(root, below(d, "device/physfn", path), target, sizeof(target)) == 0;
    read_ports(root, d);
}

/* Which file below /dev/infiniband is whose. */
static void read_files(const char *root, struct kvf_rdma_device *devices, int count)
{
    static const char class[] = "class/infiniband_verbs";
    struct kvf_sysfs_name *files = calloc(KVF_RDMA_DEVICES_MAX, sizeof(files[0]));
    int file_count =
        files == NULL ? 0 : kvf_sysfs_list(root, class, "uverbs", files, KVF_RDMA_DEVICES_MAX);
    for (int i = 0; i < file_count && i < KVF_RDMA_DEVICES_MAX; i++) {
        char path[KVF_SYSFS_PATH_BYTES];
        char name[KVF_SYSFS_NAME_BYTES];
        snprintf(path, sizeof(path), "%s/%s/ibdev", class, files[i].text);
        size_t bytes = strlen(files[i].text) + 1u;
        if (bytes > sizeof(devices[0].uverbs) ||
            kvf_sysfs_text(root, path, name, sizeof(name)) != 0) {
            continue;
        }
        for (int k = 0; k < count; k++) {
            if (strcmp(devices[k].name, name) == 0) {
                memcpy(devices[k].uverbs, files[i].text, bytes);
            }
        }
    }
    free(files);
}

/* A container sees every device of its host in sysfs, and the files of those that it was given. */
static void check_file(const char *dev_dir, struct kvf_rdma_device *d)
{
    char path[PATH_MAX];
    if (d->uverbs[0] == '\0' || (d->refusal[0] != '\0' && !d->is_waiting) ||
        kvf_sysfs_join(dev_dir, d->uverbs, path, sizeof(path)) != 0) {
        return;
    }
    if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) != 0) {
        snprintf(d->refusal, sizeof(d->refusal), "%s may not be opened: %s", d->uverbs,
                 strerror(errno));
        d->is_waiting = false;
    }
}

int kvf_rdma_devices_read(const char *root, const char *dev_dir,
                          struct kvf_rdma_device *ret_devices, int max)
{
    assert(max > 0 && max <= KVF_RDMA_DEVICES_MAX);
    struct kvf_sysfs_name *names = calloc((size_t)max, sizeof(names[0]));
    int count = names == NULL ? 0 : kvf_sysfs_list(root, "class/infiniband", "", names, max);
    if (count < 0) {
        count = 0;
    }
    int kept = count < max ? count : max;
    for (int i = 0; i < kept; i++) {
        struct kvf_rdma_device *d = &ret_devices[i];
        memset(d, 0, sizeof(*d));
        memcpy(d->name, names[i].text, sizeof(d->name));
        read_device(root, d);
    }
    free(names);
    read_files(root, ret_devices, kept);
    for (int i = 0; dev_dir != NULL && i < kept; i++) {
        check_file(dev_dir, &ret_devices[i]);
    }
    return count;
}

#include "sidecar/host/placement.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/host/rdma_devices.h"
#include "sidecar/host/sysfs.h"

#define NODES_MAX 256
#define TEXT_ALWAYS 96 /* room for what follows a list of devices that was cut off */

/* The memory that rails should be near to. */
struct hint {
    char path[KVF_SYSFS_PATH_BYTES]; /* of a PCI function; empty: only a node, or nothing */
    int32_t node;
    char name[64]; /* for sentences */
};

struct rank {
    enum kvf_near near;
    uint32_t
        up; /* steps from the memory to where the paths part, or the distance of another node */
    uint32_t down; /* from there to the device */
};

struct work {
    const struct kvf_placement_ask *ask;
    const char *root;
    struct hint hint;
    struct kvf_cpus allowed;
    struct kvf_sysfs_name nodes[NODES_MAX];
    int node_count;
    struct kvf_rdma_device devices[KVF_RDMA_DEVICES_MAX];
    struct rank ranks[KVF_RDMA_DEVICES_MAX];
    int device_count;
    int chosen[KVF_PLACEMENT_RAILS_MAX]; /* positions in devices */
    uint32_t chosen_count;
};

/* ---- sentences --------------------------------------------------------------------------------- */

struct text {
    char *at;
    size_t cap;
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(t->at + t->used, t->cap - t->used, format, args);
    va_end(args);
    if (bytes > 0) {
        size_t more = (size_t)bytes;
        t->used = more < t->cap - t->used ? t->used + more : t->cap - 1u;
    }
}

static bool has_space(const struct text *t)
{
    return t->cap - t->used > TEXT_ALWAYS + KVF_SYSFS_NAME_BYTES;
}

__attribute__((format(printf, 3, 4))) static int refuse(char *ret_why, size_t cap,
                                                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(ret_why, cap, format, args);
    va_end(args);
    return -EINVAL;
}

/* What there is, each with the reason why it cannot be used, until the text is full. */
static void say_devices(struct text *t, const struct work *w)
{
    if (w->device_count == 0) {
        say(t, "this host has no RDMA device");
        return;
    }
    const char *before = "there are ";
    for (int i = 0; i < w->device_count; i++) {
        const struct kvf_rdma_device *d = &w->devices[i];
        if (!has_space(t)) {
            say(t, ", and %d more", w->device_count - i);
            return;
        }
        say(t, "%s%s", before, d->name);
        if (d->refusal[0] != '\0') {
            say(t, " (%.80s)", d->refusal);
        }
        before = ", ";
    }
}

static void say_near(struct text *t, enum kvf_near near, const struct hint *hint)
{
    switch (near) {
    case KVF_NEAR_SWITCH:
        say(t, "behind the same PCI bridge as %s", hint->name);
        return;
    case KVF_NEAR_ROOT:
        say(t, "at the same host bridge as %s", hint->name);
        return;
    case KVF_NEAR_NODE:
        say(t, "on the node of %s", hint->name);
        return;
    case KVF_NEAR_OTHER_NODE:
        say(t, "on another node than %s", hint->name);
        return;
    case KVF_NEAR_UNKNOWN:
        say(t, "how near is unknown");
        return;
    }
}

static bool is_chosen(const struct work *w, int i)
{
    for (uint32_t k = 0; k < w->chosen_count; k++) {
        if (w->chosen[k] == i) {
            return true;
        }
    }
    return false;
}

/* What was asked for by name leaves nothing out that anybody would wonder about. */
static void say_left_out(struct text *t, const struct work *w)
{
    const char *before = "; left out: ";
    bool is_auto = strcmp(w->ask->devices, "auto") == 0;
    int left = 0;
    for (int i = 0; is_auto && i < w->device_count; i++) {
        const struct kvf_rdma_device *d = &w->devices[i];
        if (is_chosen(w, i)) {
            continue;
        }
        left++;
        if (!has_space(t)) {
            continue;
        }
        say(t, "%s%s (", before, d->name);
        if (d->refusal[0] != '\0') {
            say(t, "%.80s", d->refusal);
        } else {
            say_near(t, w->ranks[i].near, &w->hint);
        }
        say(t, ")");
        before = ", ";
        left--;
    }
    if (left > 0) {
        say(t, " and %d more", left);
    }
}

static void say_chosen(struct text *t, const struct work *w, const struct kvf_placed *p)
{
    for (uint32_t k = 0; k < w->chosen_count; k++) {
        const struct kvf_rail *rail = &p->rails.at[k];
        say(t, "%s%s port %u%s%s%s ", k == 0 ? "" : ", ", rail->name, rail->port,
            rail->netdev[0] == '\0' ? "" : " (", rail->netdev,
            rail->netdev[0] == '\0' ? "" : ")");
        say_near(t, (enum kvf_near)rail->near, &w->hint);
        if (w->devices[w->chosen[k]].refusal[0] != '\0') {
            say(t, " (%.80s)", w->devices[w->chosen[k]].refusal);
        }
    }
    if (w->ask->cpu == KVF_CPU_AUTO && w->ask->allowed_count < 2) {
        say(t, "; at most one processor is allowed here and none is taken");
    } else if (w->ask->cpu == KVF_CPU_AUTO && p->near_cpu_count == 0) {
        say(t,
            p->rails.memory_node >= 0
                ? "; no processor of node %d is allowed here: another one is taken"
                : "; its node is unknown: any processor is as near",
            p->rails.memory_node);
    }
    say_left_out(t, w);
}

const char *kvf_placement_line(const struct kvf_rails *rails, int cpu, char *ret_text,
                               size_t cap)
{
    struct text t = {.at = ret_text, .cap = cap};
    ret_text[0] = '\0';
    for (uint32_t i = 0; i < rails->count; i++) {
        const struct kvf_rail *rail = &rails->at[i];
        say(&t, "%s%s ", i == 0 ? (rails->count > 1 ? "rails " : "rail ") : ", ", rail->name);
        say(&t, rail->node >= 0 ? "node %d" : "node unknown", rail->node);
    }
    say(&t, cpu >= 0 ? ", cpu %d" : ", unpinned", cpu);
    say(&t, rails->memory_node >= 0 ? ", memory node %d" : ", memory near the processor",
        rails->memory_node);
    return ret_text;
}

/* ---- what was asked for ------------------------------------------------------------------------- */

/* One name of a list with commas; returns what follows it, or NULL after the last. */
static const char *next_name(const char *list, char *ret_name, size_t cap)
{
    size_t bytes = strcspn(list, ",");
    snprintf(ret_name, cap, "%.*s", (int)(bytes < cap ? bytes : cap - 1u), list);
    return list[bytes] == ',' ? list + bytes + 1 : NULL;
}

int kvf_placement_check_devices(const char *devices, char *ret_why, size_t cap)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    char names[KVF_PLACEMENT_RAILS_MAX][KVF_SYSFS_NAME_BYTES + 1];
    uint32_t count = 0;
    for (const char *at = devices; at != NULL; count++) {
        if (count == KVF_PLACEMENT_RAILS_MAX) {
            return refuse(ret_why, cap, "names more than %u devices", KVF_PLACEMENT_RAILS_MAX);
        }
        at = next_name(at, names[count], sizeof(names[count]));
        const char *name = names[count];
        size_t bytes = strlen(name);
        if (bytes == 0 || bytes >= KVF_SYSFS_NAME_BYTES || name[0] == '.' ||
            name[strspn(name, allowed)] != '\0') {
            return refuse(ret_why, cap,
                          "names '%s', which is no device: must be auto, or names of devices "
                          "with commas between them and no spaces",
                          name);
        }
        for (uint32_t i = 0; i < count; i++) {
            if (strcmp(names[i], name) == 0) {
                return refuse(ret_why, cap, "names %s twice", name);
            }
        }
    }
    return 0;
}

static bool read_hex(const char **at, unsigned digits_min, unsigned digits_max, char behind,
                     uint32_t *ret_value)
{
    size_t digits = strspn(*at, "0123456789abcdefABCDEF");
    if (digits < digits_min || digits > digits_max || (*at)[digits] != behind) {
        return false;
    }
    *ret_value = (uint32_t)strtoul(*at, NULL, 16);
    *at += digits + (behind != '\0');
    return true;
}

/* "0000:3b:00.0"; also as the tools of GPUs write it: without a domain, with eight digits of it, in capitals. */
static bool read_pci(const char *text, char *ret_address, size_t cap)
{
    uint32_t domain = 0;
    uint32_t bus;
    uint32_t slot;
    uint32_t function;
    const char *first = strchr(text, ':');
    if (first != NULL && strchr(first + 1, ':') != NULL &&
        !read_hex(&text, 4, 8, ':', &domain)) {
        return false;
    }
    if (!read_hex(&text, 2, 2, ':', &bus) || !read_hex(&text, 2, 2, '.', &slot) ||
        !read_hex(&text, 1, 1, '\0', &function) || slot > 31 || function > 7) {
        return false;
    }
    snprintf(ret_address, cap, "%04" PRIx32 ":%02" PRIx32 ":%02" PRIx32 ".%" PRIx32, domain,
             bus, slot, function);
    return true;
}

static bool read_node_word(const char *text, int32_t *ret_node)
{
    const char *digits = text + strlen("node");
    if (strncmp(text, "node", strlen("node")) != 0 || *digits == '\0' || strlen(digits) > 4 ||
        digits[strspn(digits, "0123456789")] != '\0' ||
        strtoul(digits, NULL, 10) > KVF_NODE_MAX) {
        return false;
    }
    *ret_node = (int32_t)strtoul(digits, NULL, 10);
    return true;
}

int kvf_placement_check_near(const char *near, char *ret_why, size_t cap)
{
    char address[32];
    int32_t node;
    if (strcmp(near, "auto") == 0 || read_node_word(near, &node) ||
        read_pci(near, address, sizeof(address))) {
        return 0;
    }
    return refuse(ret_why, cap, "must be auto, a PCI address as in 0000:3b:00.0, or nodeN");
}

/* ---- where the memory is --------------------------------------------------------------------------- */

static int node_number(const struct kvf_sysfs_name *name)
{
    int32_t node = KVF_NODE_UNKNOWN;
    (void)read_node_word(name->text, &node);
    return node;
}

static int node_cpus(const struct work *w, int node, struct kvf_cpus *ret_cpus)
{
    char path[64];
    snprintf(path, sizeof(path), "devices/system/node/node%d/cpulist", node);
    return kvf_sysfs_cpus(w->root, path, ret_cpus);
}

static bool has_common(const struct kvf_cpus *a, const struct kvf_cpus *b)
{
    uint64_t common = 0;
    for (size_t i = 0; i < sizeof(a->words) / sizeof(a->words[0]); i++) {
        common |= a->words[i] & b->words[i];
    }
    return common != 0;
}

static bool is_within(const struct kvf_cpus *part, const struct kvf_cpus *whole)
{
    uint64_t outside = 0;
    for (size_t i = 0; i < sizeof(part->words) / sizeof(part->words[0]); i++) {
        outside |= part->words[i] & ~whole->words[i];
    }
    return outside == 0;
}

/* The node that holds all of them, or unknown. */
static int32_t node_of_cpus(const struct work *w, const struct kvf_cpus *cpus)
{
    struct kvf_cpus own;
    for (int i = 0; i < w->node_count; i++) {
        int node = node_number(&w->nodes[i]);
        if (node >= 0 && node_cpus(w, node, &own) == 0 && has_common(cpus, &own) &&
            is_within(cpus, &own)) {
            return node;
        }
    }
    return KVF_NODE_UNKNOWN;
}

/* Without any hint the worker may go to any node: to that of the first device that it can be near to, of those that
 * were named the first one. */
static void guess_by_devices(struct work *w)
{
    struct kvf_cpus own;
    char name[KVF_SYSFS_NAME_BYTES];
    bool is_auto = strcmp(w->ask->devices, "auto") == 0;
    (void)next_name(w->ask->devices, name, sizeof(name));
    for (int i = 0; i < w->device_count; i++) {
        const struct kvf_rdma_device *d = &w->devices[i];
        if (d->refusal[0] == '\0' && (is_auto || strcmp(d->name, name) == 0) && d->node >= 0 &&
            node_cpus(w, d->node, &own) == 0 && has_common(&own, &w->allowed)) {
            w->hint.node = d->node;
            snprintf(w->hint.name, sizeof(w->hint.name), "%.40s (the first)", d->name);
            return;
        }
    }
}

static void find_memory_alone(struct work *w)
{
    struct kvf_cpus cpus = {{0}};
    int cpu = w->ask->cpu;
    if (cpu >= 0 && cpu < KVF_CPUS_MAX) {
        kvf_cpus_add(&cpus, (uint32_t)cpu);
        w->hint.node = node_of_cpus(w, &cpus);
        snprintf(w->hint.name, sizeof(w->hint.name), "cpu %d", cpu);
    } else {
        w->hint.node = node_of_cpus(w, &w->allowed);
        snprintf(w->hint.name, sizeof(w->hint.name), "the allowed processors");
    }
    if (w->hint.node < 0) {
        snprintf(w->hint.name, sizeof(w->hint.name), "the memory");
        guess_by_devices(w);
    }
}

static int find_memory(struct work *w, char *ret_why, size_t cap)
{
    char path[KVF_SYSFS_PATH_BYTES + 32];
    char address[32];
    const char *near = w->ask->near;
    w->hint.node = KVF_NODE_UNKNOWN;
    if (strcmp(near, "auto") == 0) {
        find_memory_alone(w);
        return 0;
    }
    if (read_node_word(near, &w->hint.node)) {
        snprintf(w->hint.name, sizeof(w->hint.name), "the memory");
        snprintf(path, sizeof(path), "devices/system/node/node%d", w->hint.node);
        char real[KVF_SYSFS_PATH_BYTES];
        return kvf_sysfs_resolve(w->root, path, real, sizeof(real)) == 0
                   ? 0
                   : refuse(ret_why, cap, "--rdma-near %s: this host has no such node", near);
    }
    bool is_pci = read_pci(near, address, sizeof(address));
    assert(is_pci);
    snprintf(w->hint.name, sizeof(w->hint.name), "%s", address);
    snprintf(path, sizeof(path), "bus/pci/devices/%s", address);
    int err = kvf_sysfs_resolve(w->root, path, w->hint.path, sizeof(w->hint.path));
    if (err != 0) {
        return refuse(ret_why, cap, "--rdma-near %s: there is no PCI device %s here (%s)", near,
                      address, strerror(-err));
    }
    snprintf(path, sizeof(path), "%s/numa_node", w->hint.path);
    (void)kvf_sysfs_int(w->root, path, KVF_NODE_UNKNOWN, KVF_NODE_MAX, &w->hint.node);
    return 0;
}

/* ---- how near a device is -------------------------------------------------------------------------- */

static uint32_t count_steps(const char *path)
{
    uint32_t steps = 0;
    for (const char *at = path; *at != '\0'; at++) {
        steps += at[0] != '/' && (at == path || at[-1] == '/');
    }
    return steps;
}

/* Bytes of the longest common beginning that ends at the end of a folder's name in both. */
static size_t common_bytes(const char *a, const char *b)
{
    size_t common = 0;
    for (size_t i = 0;; i++) {
        bool is_end_a = a[i] == '/' || a[i] == '\0';
        bool is_end_b = b[i] == '/' || b[i] == '\0';
        if (is_end_a && is_end_b) {
            common = i;
        }
        if (a[i] != b[i] || a[i] == '\0') {
            return common;
        }
    }
}

/* What kind of thing the last folder of a path's first `bytes` is: a PCI function, the host bridge, or nothing
 * that would bring two devices near to each other. */
static enum kvf_near kind_of_fork(const char *path, size_t bytes)
{
    char last[KVF_SYSFS_NAME_BYTES];
    char address[32];
    size_t from = bytes;
    while (from > 0 && path[from - 1u] != '/') {
        from--;
    }
    snprintf(last, sizeof(last), "%.*s", (int)(bytes - from), path + from);
    if (read_pci(last, address, sizeof(address))) {
        return KVF_NEAR_SWITCH;
    }
    return strncmp(last, "pci", 3) == 0 ? KVF_NEAR_ROOT : KVF_NEAR_UNKNOWN;
}

/* Entry `to` of the kernel's list of distances from `from`; 0 if it says nothing. */
static uint32_t node_distance(const struct work *w, int from, int to)
{
    char path[64];
    char text[1024];
    snprintf(path, sizeof(path), "devices/system/node/node%d/distance", from);
    if (kvf_sysfs_text(w->root, path, text, sizeof(text)) != 0) {
        return 0;
    }
    /* One entry per node that exists, in their order. */
    char *rest = NULL;
    char *word = strtok_r(text, " ", &rest);
    for (int i = 0; i < w->node_count && word != NULL; i++) {
        if (node_number(&w->nodes[i]) == to) {
            return (uint32_t)(strtoul(word, NULL, 10) & UINT16_MAX);
        }
        word = strtok_r(NULL, " ", &rest);
    }
    return 0;
}

static struct rank rank_of(const struct work *w, const struct kvf_rdma_device *d)
{
    const struct hint *hint = &w->hint;
    bool is_known = hint->node >= 0 && d->node >= 0;
    if (hint->path[0] != '\0' && d->path[0] != '\0') {
        size_t common = common_bytes(hint->path, d->path);
        enum kvf_near near = kind_of_fork(hint->path, common);
        /* Below one host bridge of a virtual machine there may be devices of several nodes. */
        if (near == KVF_NEAR_SWITCH ||
            (near == KVF_NEAR_ROOT && (!is_known || hint->node == d->node))) {
            return (struct rank){.near = near,
                                 .up = count_steps(hint->path + common),
                                 .down = count_steps(d->path + common)};
        }
    }
    if (!is_known) {
        return (struct rank){.near = KVF_NEAR_UNKNOWN};
    }
    if (hint->node == d->node) {
        return (struct rank){.near = KVF_NEAR_NODE};
    }
    return (struct rank){.near = KVF_NEAR_OTHER_NODE,
                         .up = node_distance(w, hint->node, d->node)};
}

/* Devices stand in the order of their names, so that of equals the first one is meant. */
static bool is_nearer(const struct rank *a, const struct rank *b)
{
    if (a->near != b->near) {
        return a->near < b->near;
    }
    if (a->up != b->up) {
        return a->up < b->up;
    }
    return a->down < b->down;
}

static int nearest_left(const struct work *w)
{
    int best = -1;
    for (int i = 0; i < w->device_count; i++) {
        if (w->devices[i].refusal[0] == '\0' && !is_chosen(w, i) &&
            (best < 0 || is_nearer(&w->ranks[i], &w->ranks[best]))) {
            best = i;
        }
    }
    return best;
}

static int choose_nearest(struct work *w, char *ret_why, size_t cap)
{
    for (int best = nearest_left(w); best >= 0 && w->chosen_count < w->ask->rails_max;
         best = nearest_left(w)) {
        const struct rank *first = &w->ranks[w->chosen_count > 0 ? w->chosen[0] : best];
        if (w->ranks[best].near != first->near || w->ranks[best].up != first->up) {
            break;
        }
        w->chosen[w->chosen_count++] = best;
    }
    if (w->chosen_count == 0) {
        struct text t = {.at = ret_why, .cap = cap};
        say(&t, "no RDMA device has an active port: ");
        say_devices(&t, w);
        return -ENODEV;
    }
    return 0;
}

static int choose_named(struct work *w, char *ret_why, size_t cap)
{
    char name[KVF_SYSFS_NAME_BYTES];
    for (const char *at = w->ask->devices; at != NULL;) {
        at = next_name(at, name, sizeof(name));
        int found = 0;
        while (found < w->device_count && strcmp(w->devices[found].name, name) != 0) {
            found++;
        }
        /* A link that is down may come up, and keeps no daemon from starting beside it. */
        if (found < w->device_count &&
            (w->devices[found].refusal[0] == '\0' || w->devices[found].is_waiting)) {
            w->chosen[w->chosen_count++] = found;
            continue;
        }
        struct text t = {.at = ret_why, .cap = cap};
        say(&t, "--rdma-devices %s: ", name);
        if (found < w->device_count) {
            say(&t, "%.200s; ", w->devices[found].refusal);
        } else {
            say(&t, "there is no such RDMA device; ");
        }
        say_devices(&t, w);
        return -EINVAL;
    }
    return 0;
}

/* ---- processors ------------------------------------------------------------------------------------ */

struct candidate {
    uint16_t cpu;
    uint8_t is_last;     /* 1: shares its core with processor 0; 2: is processor 0 */
    uint8_t in_core_idx; /* how many of its core stand before it */
    bool is_near;
};

static int compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left;
    const struct candidate *b = right;
    if (a->is_near != b->is_near) {
        return a->is_near ? -1 : 1;
    }
    if (a->is_last != b->is_last) {
        return a->is_last < b->is_last ? -1 : 1;
    }
    if (a->in_core_idx != b->in_core_idx) {
        return a->in_core_idx < b->in_core_idx ? -1 : 1;
    }
    return (a->cpu < b->cpu) - (a->cpu > b->cpu);
}

static struct candidate look_at_cpu(const struct work *w, uint32_t cpu,
                                    const struct kvf_cpus *near)
{
    char path[80];
    struct kvf_cpus core = {{0}};
    snprintf(path, sizeof(path),
             "devices/system/cpu/cpu%" PRIu32 "/topology/thread_siblings_list", cpu);
    (void)kvf_sysfs_cpus(w->root, path, &core);
    struct candidate c = {.cpu = (uint16_t)cpu,
                          .is_last = cpu == 0 ? 2 : kvf_cpus_has(&core, 0),
                          .is_near = kvf_cpus_has(near, cpu)};
    for (uint32_t other = cpu + 1; other < KVF_CPUS_MAX && c.in_core_idx < UINT8_MAX; other++) {
        c.in_core_idx = (uint8_t)(c.in_core_idx + (kvf_cpus_has(&core, other) &&
                                                   kvf_cpus_has(&w->allowed, other)));
    }
    return c;
}

/* The processors near the first rail, or none if that is unknown. */
static void find_near_cpus(const struct work *w, int32_t memory_node, struct kvf_cpus *ret_near)
{
    const struct kvf_rdma_device *first = &w->devices[w->chosen[0]];
    char path[KVF_SYSFS_PATH_BYTES + 32];
    memset(ret_near, 0, sizeof(*ret_near));
    snprintf(path, sizeof(path), "%s/local_cpulist", first->path);
    if (first->path[0] != '\0' && kvf_sysfs_cpus(w->root, path, ret_near) == 0 &&
        (first->node >= 0 ? has_common(ret_near, &w->allowed)
                          : !is_within(&w->allowed, ret_near))) {
        return;
    }
    memset(ret_near, 0, sizeof(*ret_near));
    if (memory_node >= 0) {
        (void)node_cpus(w, memory_node, ret_near);
    }
}

static int order_cpus(const struct work *w, struct kvf_placed *p)
{
    const struct kvf_placement_ask *ask = w->ask;
    if (ask->cpu != KVF_CPU_AUTO || ask->allowed_count < 2) {
        return 0;
    }
    struct candidate *all = calloc((size_t)ask->allowed_count, sizeof(all[0]));
    if (all == NULL) {
        return -ENOMEM;
    }
    struct kvf_cpus near;
    find_near_cpus(w, p->rails.memory_node, &near);
    uint32_t near_count = 0;
    for (int i = 0; i < ask->allowed_count; i++) {
        all[i] = look_at_cpu(w, (uint32_t)ask->allowed[i], &near);
        near_count += all[i].is_near;
    }
    qsort(all, (size_t)ask->allowed_count, sizeof(all[0]), compare_candidates);
    for (int i = 0; i < ask->allowed_count; i++) {
        const struct candidate *c = &all[i];
        bool is_everybodys = c->is_near ? c->cpu == 0 && near_count > 1
                                        : c->cpu == 0 || (int)c->cpu == ask->allowed[0];
        if (!is_everybodys) {
            p->cpus[p->cpu_count++] = c->cpu;
            p->near_cpu_count += c->is_near;
        }
    }
    free(all);
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------------- */

static void fill_rails(const struct work *w, struct kvf_rails *rails)
{
    for (uint32_t k = 0; k < w->chosen_count; k++) {
        const struct kvf_rdma_device *d = &w->devices[w->chosen[k]];
        struct kvf_rail *rail = &rails->at[k];
        memcpy(rail->name, d->name, sizeof(rail->name));
        memcpy(rail->netdev, d->netdev, sizeof(rail->netdev));
        rail->node = d->node;
        rail->port = d->port;
        rail->near = w->ranks[w->chosen[k]].near;
        rail->is_ethernet = d->is_ethernet;
        rail->is_vf = d->is_vf;
    }
    rails->count = w->chosen_count;
    rails->memory_node = rails->at[0].node >= 0 ? rails->at[0].node : w->hint.node;
}

static int choose(struct work *w, struct kvf_placed *p, char *ret_why, size_t cap)
{
    const struct kvf_placement_ask *ask = w->ask;
    for (int i = 0; i < ask->allowed_count; i++) {
        assert(ask->allowed[i] >= 0 && ask->allowed[i] < KVF_CPUS_MAX);
        kvf_cpus_add(&w->allowed, (uint32_t)ask->allowed[i]);
    }
    int count = kvf_sysfs_list(w->root, "devices/system/node", "node", w->nodes, NODES_MAX);
    w->node_count = count < 0 ? 0 : count < NODES_MAX ? count : NODES_MAX;
    count = kvf_rdma_devices_read(w->root, ask->dev_dir, w->devices, KVF_RDMA_DEVICES_MAX);
    w->device_count = count < KVF_RDMA_DEVICES_MAX ? count : KVF_RDMA_DEVICES_MAX;
    int err = find_memory(w, ret_why, cap);
    if (err != 0) {
        return err;
    }
    for (int i = 0; i < w->device_count; i++) {
        w->ranks[i] = rank_of(w, &w->devices[i]);
    }
    err = strcmp(ask->devices, "auto") == 0 ? choose_nearest(w, ret_why, cap)
                                            : choose_named(w, ret_why, cap);
    if (err != 0) {
        return err;
    }
    fill_rails(w, &p->rails);
    err = order_cpus(w, p);
    if (err != 0) {
        snprintf(ret_why, cap, "no memory");
        return err;
    }
    struct text t = {.at = ret_why, .cap = cap};
    say_chosen(&t, w, p);
    return 0;
}

int kvf_placement_choose(const struct kvf_placement_ask *ask, struct kvf_placed *ret,
                         char *ret_why, size_t cap)
{
    assert(cap >= 4 * TEXT_ALWAYS);
    assert(ask->rails_max >= 1 && ask->rails_max <= KVF_PLACEMENT_RAILS_MAX);
    struct work *w = calloc(1, sizeof(*w));
    struct kvf_placed *p = calloc(1, sizeof(*p));
    int err = -ENOMEM;
    snprintf(ret_why, cap, "no memory");
    if (w != NULL && p != NULL) {
        w->ask = ask;
        w->root = ask->sysfs == NULL ? "/sys" : ask->sysfs;
        err = choose(w, p, ret_why, cap);
        if (err == 0) {
            *ret = *p;
        }
    }
    free(p);
    free(w);
    return err;
}

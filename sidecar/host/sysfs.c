#include "sidecar/host/sysfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* No number of a processor list is larger on any machine: what is, is garbage. */
#define CPU_SANE_MAX 65535u
#define CPU_LIST_BYTES 4096

void kvf_cpus_add(struct kvf_cpus *cpus, uint32_t cpu)
{
    cpus->words[cpu / 64u] |= UINT64_C(1) << (cpu % 64u);
}

bool kvf_cpus_has(const struct kvf_cpus *cpus, uint32_t cpu)
{
    return cpu < KVF_CPUS_MAX && (cpus->words[cpu / 64u] >> (cpu % 64u) & 1u) != 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns the first unread char, or NULL. */
static const char *read_cpu(const char *at, uint32_t *ret_cpu)
{
    uint32_t cpu = 0;
    if (!is_digit(*at)) {
        return NULL;
    }
    for (; is_digit(*at); at++) {
        cpu = cpu * 10u + (uint32_t)(*at - '0');
        if (cpu > CPU_SANE_MAX) {
            return NULL;
        }
    }
    *ret_cpu = cpu;
    return at;
}

int kvf_cpus_parse(const char *text, struct kvf_cpus *ret_cpus)
{
    struct kvf_cpus cpus = {{0}};
    const char *at = text;
    while (*at != '\0') {
        uint32_t low = 0;
        at = read_cpu(at, &low);
        uint32_t high = low;
        if (at != NULL && *at == '-') {
            at = read_cpu(at + 1, &high);
        }
        if (at == NULL || low > high || (*at != ',' && *at != '\0') ||
            (*at == ',' && at[1] == '\0')) {
            return -EINVAL;
        }
        for (uint32_t cpu = low; cpu <= high && cpu < KVF_CPUS_MAX; cpu++) {
            kvf_cpus_add(&cpus, cpu);
        }
        at += *at == ',';
    }
    *ret_cpus = cpus;
    return 0;
}

/* Runs of digits are compared as numbers: by their length without leading zeros, then as text. */
int kvf_sysfs_compare(const char *a, const char *b)
{
    const char *whole_a = a;
    const char *whole_b = b;
    while (*a != '\0' && *b != '\0') {
        if (!is_digit(*a) || !is_digit(*b)) {
            if (*a != *b) {
                return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            }
            a++;
            b++;
            continue;
        }
        a += strspn(a, "0");
        b += strspn(b, "0");
        size_t digits_a = strspn(a, "0123456789");
        size_t digits_b = strspn(b, "0123456789");
        if (digits_a != digits_b) {
            return digits_a < digits_b ? -1 : 1;
        }
        int order = memcmp(a, b, digits_a);
        if (order != 0) {
            return order;
        }
        a += digits_a;
        b += digits_b;
    }
    if (*a != *b) {
        return *a == '\0' ? -1 : 1;
    }
    return strcmp(whole_a, whole_b);
}

/* What is read here ends in logs, one line each. */
static bool is_printable(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            return false;
        }
    }
    return true;
}

int kvf_sysfs_join(const char *root, const char *path, char *ret_path, size_t cap)
{
    int bytes = snprintf(ret_path, cap, "%s/%s", root, path);
    return bytes >= 0 && (size_t)bytes < cap ? 0 : -ENAMETOOLONG;
}

static ssize_t read_whole(int fd, char *ret_text, size_t cap)
{
    size_t have = 0;
    while (have < cap) {
        ssize_t got = read(fd, ret_text + have, cap - have);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -errno;
        }
        if (got == 0) {
            return (ssize_t)have;
        }
        have += (size_t)got;
    }
    return -EFBIG;
}

/* Opened without waiting: whatever lies there, a pipe without a writer holds up nobody. */
int kvf_sysfs_text(const char *root, const char *path, char *ret_text, size_t cap)
{
    char text[CPU_LIST_BYTES + 2];
    char full[PATH_MAX];
    int err = kvf_sysfs_join(root, path, full, sizeof(full));
    if (err != 0) {
        return err;
    }
    int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return -errno;
    }
    struct stat st;
    ssize_t bytes = fstat(fd, &st) != 0    ? -errno
                    : !S_ISREG(st.st_mode) ? -EINVAL
                                           : read_whole(fd, text, sizeof(text) - 1u);
    close(fd);
    if (bytes < 0) {
        return (int)bytes;
    }
    if (bytes > 0 && text[bytes - 1] == '\n') {
        bytes--;
    }
    text[bytes] = '\0';
    if (strlen(text) != (size_t)bytes || !is_printable(text)) {
        return -EINVAL;
    }
    if ((size_t)bytes >= cap) {
        return -EFBIG;
    }
    memcpy(ret_text, text, (size_t)bytes);
    ret_text[bytes] = '\0';
    return 0;
}

int kvf_sysfs_int(const char *root, const char *path, int min, int max, int *ret_value)
{
    char text[16];
    int err = kvf_sysfs_text(root, path, text, sizeof(text));
    if (err != 0) {
        return err;
    }
    const char *digits = text + (text[0] == '-');
    if (*digits == '\0' || strlen(digits) > 9 || digits[strspn(digits, "0123456789")] != '\0') {
        return -EINVAL;
    }
    long value = strtol(text, NULL, 10); /* nine digits: no overflow */
    if (value < min || value > max) {
        return -EINVAL;
    }
    *ret_value = (int)value;
    return 0;
}

int kvf_sysfs_cpus(const char *root, const char *path, struct kvf_cpus *ret_cpus)
{
    char text[CPU_LIST_BYTES];
    int err = kvf_sysfs_text(root, path, text, sizeof(text));
    return err == 0 ? kvf_cpus_parse(text, ret_cpus) : err;
}

int kvf_sysfs_resolve(const char *root, const char *path, char *ret_path, size_t cap)
{
    char full[PATH_MAX];
    char real_root[PATH_MAX];
    char real[PATH_MAX];
    int err = kvf_sysfs_join(root, path, full, sizeof(full));
    if (err != 0) {
        return err;
    }
    if (realpath(root, real_root) == NULL || realpath(full, real) == NULL) {
        return -errno;
    }
    size_t root_bytes = strcmp(real_root, "/") == 0 ? 0 : strlen(real_root);
    if (strncmp(real, real_root, root_bytes) != 0 || real[root_bytes] != '/') {
        return -EXDEV;
    }
    const char *rest = real + root_bytes + 1;
    size_t bytes = strlen(rest) + 1u;
    if (bytes > cap) {
        return -ENAMETOOLONG;
    }
    memcpy(ret_path, rest, bytes);
    return 0;
}

/* Keeps the `max` first names in order; a folder lists its entries in none. The name fits. */
static int keep_name(struct kvf_sysfs_name *names, int count, int max, const char *name)
{
    int at = count < max ? count : max;
    while (at > 0 && kvf_sysfs_compare(name, names[at - 1].text) < 0) {
        at--;
    }
    if (at < max) {
        int kept = count < max ? count : max - 1;
        memmove(&names[at + 1], &names[at], (size_t)(kept - at) * sizeof(names[0]));
        memcpy(names[at].text, name, strlen(name) + 1u);
    }
    return count + 1;
}

int kvf_sysfs_list(const char *root, const char *path, const char *prefix,
                   struct kvf_sysfs_name *ret_names, int max)
{
    char full[PATH_MAX];
    int err = kvf_sysfs_join(root, path, full, sizeof(full));
    if (err != 0) {
        return err;
    }
    DIR *dir = opendir(full);
    if (dir == NULL) {
        return -errno;
    }
    int count = 0;
    size_t prefix_bytes = strlen(prefix);
    for (int seen = 0; seen < KVF_SYSFS_ENTRIES_MAX; seen++) {
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            break;
        }
        const char *name = entry->d_name;
        if (name[0] != '.' && strlen(name) < KVF_SYSFS_NAME_BYTES && is_printable(name) &&
            strncmp(name, prefix, prefix_bytes) == 0) {
            count = keep_name(ret_names, count, max, name);
        }
    }
    closedir(dir);
    return count;
}

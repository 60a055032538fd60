/* Small files of a sysfs, read with suspicion: the root may be a container's copy or a test's, a device may
 * vanish between two reads, and what stands in a file is the world's. Every read is bounded, only regular
 * files are read, and no answer is guessed. All paths are relative to the root. Any thread. */
#ifndef KVF_HOST_SYSFS_H
#define KVF_HOST_SYSFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sidecar/host/numa.h"

#define KVF_SYSFS_PATH_BYTES 512
#define KVF_SYSFS_NAME_BYTES 64

struct kvf_cpus {
    uint64_t words[KVF_CPUS_MAX / 64];
};

struct kvf_sysfs_name {
    char text[KVF_SYSFS_NAME_BYTES];
};

void kvf_cpus_add(struct kvf_cpus *cpus, uint32_t cpu); /* below KVF_CPUS_MAX */
bool kvf_cpus_has(const struct kvf_cpus *cpus, uint32_t cpu);
/* "0-3,8", as the kernel writes it; an empty text is the empty set. What lies beyond KVF_CPUS_MAX is left out.
 * 0 or -EINVAL. */
int kvf_cpus_parse(const char *text, struct kvf_cpus *ret_cpus);

/* The order of names in which "mlx5_2" stands before "mlx5_10": below, equal to or above 0. */
int kvf_sysfs_compare(const char *a, const char *b);

/* Joins root and path. 0 or -ENAMETOOLONG. */
int kvf_sysfs_join(const char *root, const char *path, char *ret_path, size_t cap);
/* The text of a file without its last newline. 0; -EFBIG: it does not fit; -EINVAL: no regular file, or not a
 * text; -errno (-ENOENT, -ELOOP, -ENODEV of a device that went away). */
int kvf_sysfs_text(const char *root, const char *path, char *ret_text, size_t cap);
/* A decimal number within bounds and nothing behind it. 0, -EINVAL, or as above. */
int kvf_sysfs_int(const char *root, const char *path, int min, int max, int *ret_value);
int kvf_sysfs_cpus(const char *root, const char *path, struct kvf_cpus *ret_cpus);
/* Where a path leads when all links are followed, relative to the root. 0; -EXDEV: out of the root; -errno. */
int kvf_sysfs_resolve(const char *root, const char *path, char *ret_path, size_t cap);
/* Names in a folder that begin with `prefix`, in the order above; of more than `max` the first ones. Returns
 * how many there are (at most KVF_SYSFS_ENTRIES_MAX are looked at), which may be above `max`, or -errno. */
#define KVF_SYSFS_ENTRIES_MAX 16384
int kvf_sysfs_list(const char *root, const char *path, const char *prefix,
                   struct kvf_sysfs_name *ret_names, int max);

#endif

/* Memory that a daemon accepts: a memfd that cannot shrink, reserved to the last byte. */
#include "client/internal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define KVF_HUGE_BYTES (UINT64_C(2) << 20)
#define KVF_NUMA_NODES_MAX 1024u

enum { KVF_HUGE_IF_FREE = 0, KVF_HUGE_REQUIRED = 1, KVF_HUGE_NEVER = 2 };

struct kvf_pool {
    const uint64_t *is_ours; /* reads 0 in a forked child, which has no such mapping to unmap */
    void *addr;
    uint64_t bytes;
    uint32_t page_bytes;
    int fd; /* ours */
};

/* Binds what will be reserved later. A machine or container without memory policies serves unbound: where
 * the pages lie is a matter of speed. */
static void bind_to_node(void *addr, uint64_t bytes, int32_t node)
{
    if (node < 0) {
        return;
    }
    unsigned long mask[KVF_NUMA_NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    size_t bits = 8 * sizeof mask[0];
    mask[(size_t)node / bits] = 1UL << ((size_t)node % bits);
    (void)syscall(SYS_mbind, addr, bytes, MPOL_BIND, mask, (unsigned long)KVF_NUMA_NODES_MAX,
                  0);
}

static int make_memory(const struct kvf_pool_opts *o, bool is_huge, struct kvf_pool *pool)
{
    uint64_t unit = is_huge ? KVF_HUGE_BYTES : KVF_PAGE_BYTES;
    uint64_t bytes = (o->bytes + unit - 1u) / unit * unit;
    unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (is_huge) {
        flags |= MFD_HUGETLB | MFD_HUGE_2MB;
    }
    int fd = memfd_create("kvfence-pool", flags);
    if (fd < 0) {
        return -errno;
    }
    void *addr = NULL;
    int err = ftruncate(fd, (off_t)bytes) == 0 ? 0 : -errno;
    if (err == 0) {
        err = kvf_memory_map(fd, 0, bytes, true, true, &addr);
    }
    if (err != 0) {
        goto close_fd;
    }
    bind_to_node(addr, bytes, o->numa_node);
    err = kvf_memory_reserve(fd, bytes);
    if (err == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        err = -errno;
    }
    if (err != 0) {
        goto unmap;
    }
    pool->addr = addr;
    pool->bytes = bytes;
    pool->page_bytes = (uint32_t)unit;
    pool->fd = fd;
    return 0;
unmap:
    kvf_memory_unmap(addr, bytes);
close_fd:
    close(fd);
    return err;
}

static int pool_alloc(struct kvf_pool **ret_pool)
{
    struct kvf_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return -ENOMEM;
    }
    void *guard;
    int err = kvf_memory_map_private(KVF_PAGE_BYTES, KVF_PAGE_BYTES, &guard);
    if (err != 0) {
        free(pool);
        return err;
    }
    *(uint64_t *)guard = 1;
    pool->is_ours = guard;
    *ret_pool = pool;
    return 0;
}

static void pool_free(struct kvf_pool *pool)
{
    kvf_memory_unmap((void *)(uintptr_t)pool->is_ours, KVF_PAGE_BYTES);
    free(pool);
}

static int memory_refusal(int err)
{
    return err == -ENOSPC || err == -EFBIG ? -ENOMEM : err;
}

int kvf_pool_create(const struct kvf_pool_opts *opts, kvf_pool **ret_pool)
{
    if (opts == NULL || ret_pool == NULL) {
        return -EINVAL;
    }
    struct kvf_pool_opts o;
    int err = kvf_client_copy_opts(&o, sizeof o, opts);
    if (err != 0) {
        return err;
    }
    if (o.huge_pages > KVF_HUGE_NEVER || o.numa_node < -1 ||
        o.numa_node >= (int32_t)KVF_NUMA_NODES_MAX ||
        !kvf_client_is_zero(o.pad_, sizeof o.pad_)) {
        return -KVF_E_OPTION;
    }
    if (o.bytes == 0) {
        return -EINVAL;
    }
    if (o.bytes > (uint64_t)INT64_MAX - KVF_HUGE_BYTES) {
        return -ENOMEM;
    }
    struct kvf_pool *pool;
    err = pool_alloc(&pool);
    if (err != 0) {
        return err;
    }
    /* A pool that is smaller than one huge page would waste most of it. */
    bool is_huge = o.huge_pages == KVF_HUGE_REQUIRED ||
                   (o.huge_pages == KVF_HUGE_IF_FREE && o.bytes >= KVF_HUGE_BYTES);
    err = is_huge ? make_memory(&o, true, pool) : -ENOMEM;
    if (err != 0 && o.huge_pages != KVF_HUGE_REQUIRED) {
        err = make_memory(&o, false, pool);
    }
    if (err != 0) {
        pool_free(pool);
        /* Without huge pages in the kernel or the container it is the same answer as without free ones. */
        return is_huge && o.huge_pages == KVF_HUGE_REQUIRED ? -ENOMEM : memory_refusal(err);
    }
    *ret_pool = pool;
    return 0;
}

int kvf_pool_adopt(int fd, uint64_t bytes, kvf_pool **ret_pool)
{
    if (ret_pool == NULL) {
        return -EINVAL;
    }
    int err = kvf_memory_check_seal(fd);
    if (err != 0) {
        return err == -EPERM || err == -EINVAL ? -KVF_E_NO_SEAL : err;
    }
    struct stat st;
    struct statfs fs;
    if (fstat(fd, &st) != 0 || fstatfs(fd, &fs) != 0) {
        return -errno;
    }
    if (bytes == 0 || bytes > (uint64_t)st.st_size) {
        return -KVF_E_MEMORY_RANGE;
    }
    bool is_huge = fs.f_type == HUGETLBFS_MAGIC;
    if (is_huge && bytes % (uint64_t)fs.f_bsize != 0) {
        return -KVF_E_MEMORY_RANGE;
    }
    struct kvf_pool *pool;
    err = pool_alloc(&pool);
    if (err != 0) {
        return err;
    }
    pool->bytes = bytes;
    pool->page_bytes = is_huge ? (uint32_t)fs.f_bsize : KVF_PAGE_BYTES;
    pool->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    err = pool->fd >= 0 ? kvf_memory_map(pool->fd, 0, bytes, true, true, &pool->addr) : -errno;
    if (err != 0) {
        if (pool->fd >= 0) {
            close(pool->fd);
        }
        pool_free(pool);
        return err;
    }
    *ret_pool = pool;
    return 0;
}

void *kvf_pool_addr(const kvf_pool *pool)
{
    return pool != NULL && *pool->is_ours != 0 ? pool->addr : NULL;
}

uint64_t kvf_pool_bytes(const kvf_pool *pool)
{
    return pool != NULL ? pool->bytes : 0;
}

int kvf_pool_fd(const kvf_pool *pool)
{
    return pool != NULL ? pool->fd : -EINVAL;
}

uint32_t kvf_pool_page_bytes(const kvf_pool *pool)
{
    return pool != NULL ? pool->page_bytes : 0;
}

void kvf_pool_destroy(kvf_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    if (*pool->is_ours != 0) {
        kvf_memory_unmap(pool->addr, pool->bytes);
        close(pool->fd);
    }
    pool_free(pool);
}

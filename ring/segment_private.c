/* Memory of one process: nothing here crosses a process boundary, but mappings are made in ring/segment*
 * and nowhere else. */
#include "ring/segment.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

int kvf_memory_map_private(uint64_t bytes, uint64_t wipe_bytes, void **ret_addr)
{
    if (bytes == 0 || bytes > SIZE_MAX || wipe_bytes > bytes ||
        wipe_bytes % KVF_PAGE_BYTES != 0) {
        return -EINVAL;
    }
    /* MAP_NORESERVE: sized for the worst case, and only what is touched is ever there. */
    void *addr = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addr == MAP_FAILED) {
        return -errno;
    }
    if (wipe_bytes != 0 && madvise(addr, (size_t)wipe_bytes, MADV_WIPEONFORK) != 0) {
        int err = -errno;
        munmap(addr, (size_t)bytes);
        return err;
    }
    *ret_addr = addr;
    return 0;
}

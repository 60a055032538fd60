/* Descriptors that pass for dma-bufs, on machines that make none: this takes the place of the C library's
 * fstatfs in the program that includes it. One file per program. */
#ifndef KVF_TESTS_CLIENT_PRETEND_DMABUF_H
#define KVF_TESTS_CLIENT_PRETEND_DMABUF_H

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

static ino_t pretend_inode; /* of the file that passes for one; 0: none */

int fstatfs(int fd, struct statfs *ret_fs)
{
    struct stat st;
    int rc = (int)syscall(SYS_fstatfs, fd, ret_fs);
    if (rc == 0 && pretend_inode != 0 && fstat(fd, &st) == 0 && st.st_ino == pretend_inode) {
        ret_fs->f_type = DMA_BUF_MAGIC;
    }
    return rc;
}

static inline void pretend_dmabuf(int fd)
{
    struct stat st;
    pretend_inode = fstat(fd, &st) == 0 ? st.st_ino : 0;
}

#endif

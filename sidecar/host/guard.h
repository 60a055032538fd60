/* Copies between client memory, which an engine may take away at any moment.
 *
 * A file that was truncated or punched, or a page the machine lost, makes the kernel send SIGBUS to whoever
 * touches it; memory that is not mapped, SIGSEGV. Within a guarded copy that ends the copy and says where;
 * anywhere else such a signal is a bug of ours and ends the process, as without this file. */
#ifndef KVF_HOST_GUARD_H
#define KVF_HOST_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_guard_run {
    void *to;
    const void *from;
    size_t bytes;
};

/* Takes the two signals over for the whole process. Once is enough; again changes nothing. 0 or -errno. */
int kvf_guard_install(void);

/* Copies the runs in order; to and from of one run may overlap. True if all was copied. False: something
 * faulted, an unknown part of the runs is copied, and *ret_fault is the address, which for huge pages may
 * be the start of the page. Makes no system call. Any thread, one call at a time on each; not from signal
 * handlers. Needs kvf_guard_install. */
bool kvf_guard_copy(const struct kvf_guard_run *runs, uint32_t count, const void **ret_fault);

#endif

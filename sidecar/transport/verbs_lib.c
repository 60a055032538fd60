#include "sidecar/transport/verbs_lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where a function's address goes. Functions and data have pointers of one size on every system that has
 * dlsym: POSIX asks for it. */
struct lib_symbol {
    const char *name;
    size_t off;
};
#define SYMBOL(member)                                                                         \
    {                                                                                          \
        "ibv_" #member, offsetof(struct kvf_verbs_lib, member)                                 \
    }
static const struct lib_symbol symbols[] = {
    SYMBOL(get_device_list),
    SYMBOL(free_device_list),
    SYMBOL(get_device_name),
    SYMBOL(open_device),
    SYMBOL(close_device),
    SYMBOL(query_device),
    SYMBOL(query_port),
    {"_ibv_query_gid_table", offsetof(struct kvf_verbs_lib, query_gid_table)},
    SYMBOL(get_async_event),
    SYMBOL(ack_async_event),
    SYMBOL(alloc_pd),
    SYMBOL(dealloc_pd),
    SYMBOL(reg_mr),
    SYMBOL(reg_dmabuf_mr),
    SYMBOL(dereg_mr),
    SYMBOL(create_comp_channel),
    SYMBOL(destroy_comp_channel),
    SYMBOL(create_cq),
    SYMBOL(destroy_cq),
    SYMBOL(get_cq_event),
    SYMBOL(ack_cq_events),
    SYMBOL(create_qp),
    SYMBOL(modify_qp),
    SYMBOL(destroy_qp),
};
_Static_assert(sizeof(symbols) / sizeof(symbols[0]) ==
                   sizeof(struct kvf_verbs_lib) / sizeof(void *),
               "every member has its symbol");

int kvf_verbs_lib_load(const struct kvf_verbs_lib **ret_lib, char *ret_error, size_t error_cap)
{
    static struct kvf_verbs_lib lib;
    static void *handle;
    if (handle != NULL) {
        *ret_lib = &lib;
        return 0;
    }
    /* RTLD_LOCAL: its names stay out of everybody else's way; its providers link to it by themselves. */
    void *opened = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        const char *why = dlerror();
        (void)snprintf(ret_error, error_cap, "libibverbs cannot be loaded: %s",
                       why != NULL ? why : "no reason given");
        return -ENOENT;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *address = dlsym(opened, symbols[i].name);
        if (address == NULL) {
            (void)snprintf(ret_error, error_cap, "libibverbs is too old: it has no %s",
                           symbols[i].name);
            (void)dlclose(opened);
            return -ENOENT;
        }
        memcpy((char *)&lib + symbols[i].off, &address, sizeof(address));
    }
    handle = opened;
    *ret_lib = &lib;
    return 0;
}

/* The functions of libibverbs that transport verbs calls, found at run time: a daemon that moves no byte by RDMA
 * needs no library for it, and tests put a device of their own behind the same table.
 *
 * What verbs.h defines inline (posting, polling, arming) goes through the context that open_device gave, so a
 * test's context brings its own. Each member is the function of that name with "ibv_" before it and means
 * exactly what its man page says. Only files named verbs* in this folder, and tests, include this. */
#ifndef KVF_TRANSPORT_VERBS_LIB_H
#define KVF_TRANSPORT_VERBS_LIB_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kvf_verbs_lib {
    struct ibv_device **(*get_device_list)(int *ret_count);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *ret_attr);
    /* Fills less than all of struct ibv_port_attr: zero it before. */
    int (*query_port)(struct ibv_context *context, uint8_t port,
                      struct _compat_ibv_port_attr *ret_attr);
    ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *ret_entries,
                               size_t entries_max, uint32_t flags, size_t entry_bytes);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *ret_event);
    void (*ack_async_event)(struct ibv_async_event *event);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *base, size_t bytes, int access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t off, size_t bytes,
                                    uint64_t iova, int fd, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int slots, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
                        void **ret_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned int count);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
};

/* Loads libibverbs.so.1, once; it stays loaded. 0 and the table, or -ENOENT with a sentence. Not thread-safe. */
int kvf_verbs_lib_load(const struct kvf_verbs_lib **ret_lib, char *ret_error, size_t error_cap);

#endif

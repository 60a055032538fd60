/* What people and programs read. The JSON is a contract: members are added, never renamed or removed. */
#ifndef KVF_CTL_PRINT_H
#define KVF_CTL_PRINT_H

#include <stdio.h>

#include "client/ctl/options.h"

#define KVF_CTL_ADDR_BYTES 64u

const char *kvf_ctl_addr(const struct kvf_addr_shm *addr, char ret_text[KVF_CTL_ADDR_BYTES]);

void kvf_ctl_print_status(FILE *out, const struct kvf_ctl_options *o,
                          const struct kvf_operate_status *status);
void kvf_ctl_print_peers(FILE *out, const struct kvf_ctl_options *o,
                         const struct kvf_operate_peer *peers, uint32_t count);
/* Rows of one answer; head and tail once around all of them. */
void kvf_ctl_print_rooms_head(FILE *out, const struct kvf_ctl_options *o);
void kvf_ctl_print_rooms(FILE *out, const struct kvf_ctl_options *o,
                         const struct kvf_operate_room *rooms, uint32_t count, uint64_t before);
void kvf_ctl_print_rooms_tail(FILE *out, const struct kvf_ctl_options *o, uint64_t count);
/* A change that was made: one sentence. */
void kvf_ctl_print_change(FILE *out, const struct kvf_ctl_options *o,
                          const struct kvf_operate_status *status);
/* Why it was not, for programs: {"error": ..., "code": ...}. */
void kvf_ctl_print_error(FILE *out, int code, const char *why);

#endif

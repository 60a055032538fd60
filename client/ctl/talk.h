/* One question to a daemon, and its answer. */
#ifndef KVF_CTL_TALK_H
#define KVF_CTL_TALK_H

#include <stdint.h>

#include "ring/operate.h"

#define KVF_CTL_WHY_BYTES 320u

/* Monotonic. */
uint64_t kvf_ctl_now_ns(void);
void kvf_ctl_sleep_ms(uint32_t ms);

/* Connects; on an error ret_why says what to do about it. 0 or -errno. The descriptor is the caller's. */
int kvf_ctl_connect(const char *socket_path, int *ret_fd, char ret_why[KVF_CTL_WHY_BYTES]);

/* Asks and waits for the answer, some seconds at most. 0; a positive code: the daemon refused, and ret_why is
 * its sentence; negative: no answer. The answer is the world's: its rows are counted against its bytes. */
int kvf_ctl_ask(int fd, const struct kvf_operate_req *req, struct kvf_operate_rep *ret_rep,
                char ret_why[KVF_CTL_WHY_BYTES]);

#endif

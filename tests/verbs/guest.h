/* What programs that start real daemons do to the guest's network, and what they ask its kernel about devices. A case
 * that is not in the guest of scripts/rdma-guest fails, saying so. */
#ifndef KVF_TESTS_VERBS_GUEST_H
#define KVF_TESTS_VERBS_GUEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GUEST_FIRST "rxe0"  /* 10.0.0.10 */
#define GUEST_SECOND "rxe1" /* 10.0.1.11 */
#define GUEST_PAIRS_MAX 64u

struct guest_pair { /* a queue pair's number, and that of the one it is joined with */
    uint32_t own;
    uint32_t other;
};

/* Skips the case where there is no such guest. */
void guest_expect(void);
/* Runs guest-net with these words. */
__attribute__((format(printf, 1, 2))) void guest_net(const char *format, ...);
/* What the router does from now on to what it sends "forth", "back" or "both" ways, as guest-net's "set", but within
 * milliseconds: guest-net starts half a dozen programs, which takes seconds where the machine is busy. */
void guest_router(const char *direction, const char *netem);
/* Lets go of what that needed. The router stays as it is. */
void guest_router_stop(void);
/* The queue pairs that process has on the device. At most GUEST_PAIRS_MAX. */
uint32_t guest_pairs(const char *device, pid_t pid, struct guest_pair *ret_pairs);
/* How many "qp", "cq", "mr" or "pd" that process has, on all devices. */
uint32_t guest_count(const char *what, pid_t pid);

#endif

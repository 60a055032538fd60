/* The guest's network between the two devices, and a rig over it, for tests that run in the guest.
 *
 * Everything of a test is on rxe0 (the source's) and rxe1 (the sink's); guest-net makes the network bad, by
 * direction: "forth" carries what the source sends, "back" what answers. */
#ifndef KVF_TESTS_VERBS_NET_H
#define KVF_TESTS_VERBS_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/contract/rig_verbs.h"

/* Of a suite: skips where there is no guest, and gives each test a whole network, with nothing late in it. */
void net_begin(void);

/* guest-net with these words, as printf's; the test fails if it does. */
void net(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct net_count {
    uint64_t sent;
    uint64_t dropped;
    uint64_t queued; /* packets that are late now */
};
struct net_count net_count(const char *dir);
/* Until nothing of that direction waits any more, and what came has been taken by its device. */
void net_drain(const char *dir);

/* `pages` pages of `planes` planes of 4096 bytes as region 0 and handle 1; lane 0 is up at epoch 5. */
struct rig *net_rig(uint32_t pages, uint32_t planes);
struct kvf_verbs_counts net_counts_of(struct rig_end *end);
/* As the suite's: returns when it answered. */
void net_fence(struct rig_end *end, uint32_t lane, uint32_t epoch);
void net_each_completed_once(const struct rig *rig);
/* Every work request and receive of destroyed queue pairs has had its completion, and there was no other. */
void net_accounts_are_closed(struct rig *rig);

uint64_t net_now_ns(void);
/* Polls both ends for so long. */
void net_turn_for(struct rig *rig, uint64_t ns);

#endif

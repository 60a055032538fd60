/* What the files of the world say to each other. */
#ifndef KVF_TESTS_CORE_PAIR_INTERNAL_H
#define KVF_TESTS_CORE_PAIR_INTERNAL_H

#include "tests/core/pair.h"

uint32_t pair_daemon_at(const struct kvf_addr_shm *addr);
/* Its core may be called: alive, not frozen, not raw. */
bool pair_is_awake(const struct pair *p, uint32_t daemon);
/* Its worker is gone, with connections, streams, core and the shadow of its pages. */
void pair_daemon_end(struct pair *p, uint32_t daemon);

/* pair_lane.c */
void pair_net_fence(struct pair *p, uint32_t daemon, uint32_t lane, uint32_t epoch);
void pair_net_detach(struct pair *p, uint32_t daemon, uint32_t lane, uint32_t epoch,
                     uint64_t cookie);
void pair_net_lane_open(struct pair *p, uint32_t daemon, const struct kvf_action *action);
void pair_net_lane_join(struct pair *p, uint32_t daemon, const struct kvf_action *action);
void pair_net_wants_post(struct pair *p, uint32_t daemon, uint32_t lane, uint32_t epoch);
uint32_t pair_stream_move(struct pair *p, struct pair_stream *s, uint32_t units);
void pair_stream_close_side(struct pair_stream *s, int side);
void pair_stream_free(struct pair_stream *s);

/* pair_group.c */
/* A room shows Failed: every room of its key at the other ranks must be drained. */
void pair_group_check(struct pair *p, const struct pair_room *r);
void pair_group_keep(struct pair *p, uint32_t daemon, const struct kvf_action *action);
uint64_t pair_group_id_of(const struct pair *p, uint32_t daemon, uint32_t client,
                          uint32_t handle);

/* pair_room.c */
void pair_room_reaped(struct pair *p, struct pair_room *r, uint64_t word);

/* pair_net.c */
void pair_net_close(struct pair *p, uint32_t daemon, uint32_t peer);
struct pair_conn *pair_net_connect(struct pair *p, uint32_t daemon, uint32_t peer, uint32_t to);
void pair_net_daemon_died(struct pair *p, uint32_t daemon);
uint32_t pair_net_move_all(struct pair *p);
void pair_net_free(struct pair *p);

#endif

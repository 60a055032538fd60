/* Rows of peers, lanes and rooms as words. What they hold is the world's: any number, any bytes. */
#ifndef KVF_STAT_ROWS_H
#define KVF_STAT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/stats.h"

#define KVF_ROW_PEER_BYTES 72u
#define KVF_ROW_REASON_BYTES 48u

/* Where it listens, "10.0.0.7:7000"; of one that connected to us its id, "id-0123456789abcdef". */
const char *kvf_row_peer(const struct kvf_stats_peer_shm *peer,
                         char ret_text[KVF_ROW_PEER_BYTES]);
/* Which way pages go: "from" it, or "to" it. */
const char *kvf_row_direction(const struct kvf_stats_peer_shm *peer);
const char *kvf_row_peer_state(const struct kvf_stats_peer_shm *peer);
bool kvf_row_is_peer_up(const struct kvf_stats_peer_shm *peer);
const char *kvf_row_lane_state(const struct kvf_stats_lane_shm *lane);
/* False: a device places what this lane brings, and nobody here sees it. */
bool kvf_row_is_moved_known(const struct kvf_stats_lane_shm *lane,
                            const struct kvf_stats_peer_shm *peer);
/* "KVF_E_ENGINE_GONE", "none", or "engine:7" for a reason of an engine's own. */
const char *kvf_row_reason(uint32_t reason, char ret_text[KVF_ROW_REASON_BYTES]);

bool kvf_row_is_same_peer(const struct kvf_stats_peer_shm *a,
                          const struct kvf_stats_peer_shm *b);
/* While an old connection of a peer is taken apart beside its new one, both have a row. One of them, that which is
 * up if there is one, stands for the peer where a name may appear once. */
bool kvf_row_is_first_of_peer(const struct kvf_stats_rows_shm *rows, uint64_t idx);
bool kvf_row_is_first_of_lane(const struct kvf_stats_rows_shm *rows, uint64_t idx);

#endif

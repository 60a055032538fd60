#include "sidecar/core/show.h"

#include <assert.h>
#include <string.h>

#include "sidecar/core/internal.h"

static const uint32_t peer_states[] = {
    [KVF_PEER_IDLE] = KVF_OPERATE_AT_IDLE,
    [KVF_PEER_CONNECTING] = KVF_OPERATE_AT_CONNECTING,
    [KVF_PEER_RETRY] = KVF_OPERATE_AT_RETRYING,
    [KVF_PEER_HELLO] = KVF_OPERATE_AT_HELLO,
    [KVF_PEER_UP] = KVF_OPERATE_AT_UP,
    [KVF_PEER_LOST] = KVF_OPERATE_AT_LOST,
};

static const uint32_t lane_states[] = {
    [KVF_LANE_DOWN] = KVF_STATS_LANE_WAITING,
    [KVF_LANE_OPENING] = KVF_STATS_LANE_OPENING,
    [KVF_LANE_UP] = KVF_STATS_LANE_UP,
    [KVF_LANE_FENCING] = KVF_STATS_LANE_FENCING,
};

static void show_lane(const struct kvf_core *core, uint32_t peer, uint32_t lane_idx,
                      uint32_t peer_row, struct kvf_stats_lane_shm *ret_row)
{
    const struct kvf_lane *lane = &core->lanes[kvf_lane_id(peer, lane_idx)];
    uint32_t receives = core->peers[peer].receives_per_lane;
    *ret_row = (struct kvf_stats_lane_shm){
        .moved_bytes = lane->moved_bytes,
        .posted_bytes = lane->posted_bytes,
        .window_bytes = lane->window_bytes,
        .fence_since_ns = lane->state == KVF_LANE_FENCING ? lane->fence_since_ns : 0,
        .peer = peer_row,
        .lane = lane_idx,
        .state = lane_states[lane->state],
        .opened = lane->epoch,
        .credits_out = lane->credits_out,
        .credits_max = receives < core->config.lane_rooms ? receives : core->config.lane_rooms,
        .is_device = lane->is_queue_pair};
}

static void show_lanes(const struct kvf_core *core, uint32_t peer, uint32_t peer_row,
                       struct kvf_stats_rows_shm *rows, uint32_t *ret_up)
{
    *ret_up = 0;
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        const struct kvf_lane *lane = &core->lanes[kvf_lane_id(peer, i)];
        *ret_up += lane->state == KVF_LANE_UP;
        if (lane->epoch == 0) {
            continue;
        }
        if (rows->lane_count == KVF_STATS_LANES_MAX) {
            rows->left_out++;
            continue;
        }
        show_lane(core, peer, i, peer_row, &rows->lanes[rows->lane_count++]);
    }
}

void kvf_core_show(const struct kvf_core *core, struct kvf_stats_rows_shm *ret_rows)
{
    assert(core->limits.peers_max <= KVF_STATS_PEERS_MAX);
    ret_rows->peer_count = 0;
    ret_rows->lane_count = 0;
    ret_rows->left_out = 0;
    for (uint32_t i = 0; i < core->limits.peers_max; i++) {
        const struct kvf_peer *p = &core->peers[i];
        if (p->role == KVF_PEER_FREE) {
            continue;
        }
        uint32_t row_idx = (uint32_t)ret_rows->peer_count++;
        struct kvf_stats_peer_shm *row = &ret_rows->peers[row_idx];
        uint32_t lanes_up = 0;
        show_lanes(core, i, row_idx, ret_rows, &lanes_up);
        *row = (struct kvf_stats_peer_shm){.peer_id = p->supervisor_id,
                                           .heard_ns = p->heard_ns,
                                           .worker_starts = p->worker_starts,
                                           .state = peer_states[p->state],
                                           .is_sink = p->role == KVF_PEER_IN,
                                           .is_down = kvf_hold_has_peer(core, i),
                                           .grants = p->grants.count,
                                           .waiting = p->waiting.count,
                                           .lanes_up = lanes_up,
                                           .dials = p->dial_count};
        if (p->role == KVF_PEER_OUT) {
            row->addr = p->addr;
        }
        _Static_assert(sizeof row->name == sizeof p->name, "the same bytes");
        memcpy(row->name, p->name, sizeof row->name);
    }
}

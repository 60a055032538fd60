#include "client/stat/rows.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ring/codes.h"
#include "ring/operate.h"

const char *kvf_row_peer(const struct kvf_stats_peer_shm *peer,
                         char ret_text[KVF_ROW_PEER_BYTES])
{
    char addr[INET6_ADDRSTRLEN] = "?";

    if (peer->addr.family == 4) {
        (void)inet_ntop(AF_INET, peer->addr.addr, addr, sizeof addr);
        (void)snprintf(ret_text, KVF_ROW_PEER_BYTES, "%s:%u", addr, peer->addr.port);
    } else if (peer->addr.family == 6) {
        (void)inet_ntop(AF_INET6, peer->addr.addr, addr, sizeof addr);
        (void)snprintf(ret_text, KVF_ROW_PEER_BYTES, "[%s]:%u", addr, peer->addr.port);
    } else {
        (void)snprintf(ret_text, KVF_ROW_PEER_BYTES, "id-%016" PRIx64, peer->peer_id);
    }
    return ret_text;
}

const char *kvf_row_direction(const struct kvf_stats_peer_shm *peer)
{
    return peer->is_sink != 0 ? "to" : "from";
}

const char *kvf_row_peer_state(const struct kvf_stats_peer_shm *peer)
{
    static const char *const names[] = {"none",  "idle", "connecting", "retrying",
                                        "hello", "up",   "lost"};
    return peer->state < sizeof names / sizeof names[0] ? names[peer->state] : "?";
}

bool kvf_row_is_peer_up(const struct kvf_stats_peer_shm *peer)
{
    return peer->state == KVF_OPERATE_AT_UP;
}

const char *kvf_row_lane_state(const struct kvf_stats_lane_shm *lane)
{
    static const char *const names[] = {"?", "opening", "up", "fencing", "waiting"};
    return lane->state < sizeof names / sizeof names[0] ? names[lane->state] : "?";
}

bool kvf_row_is_moved_known(const struct kvf_stats_lane_shm *lane,
                            const struct kvf_stats_peer_shm *peer)
{
    return lane->is_device == 0 || peer->is_sink != 0;
}

const char *kvf_row_reason(uint32_t reason, char ret_text[KVF_ROW_REASON_BYTES])
{
    if (reason == 0) {
        (void)snprintf(ret_text, KVF_ROW_REASON_BYTES, "none");
    } else if (reason >= KVF_E_NO_DAEMON && reason <= KVF_E_LAST) {
        (void)snprintf(ret_text, KVF_ROW_REASON_BYTES, "%s", kvf_code_name((int)reason));
    } else {
        (void)snprintf(ret_text, KVF_ROW_REASON_BYTES, "engine:%" PRIu32, reason);
    }
    return ret_text;
}

static bool is_address(const struct kvf_stats_peer_shm *peer)
{
    return peer->addr.family == 4 || peer->addr.family == 6;
}

bool kvf_row_is_same_peer(const struct kvf_stats_peer_shm *a,
                          const struct kvf_stats_peer_shm *b)
{
    if ((a->is_sink != 0) != (b->is_sink != 0) || is_address(a) != is_address(b)) {
        return false;
    }
    if (!is_address(a)) {
        return a->peer_id == b->peer_id;
    }
    return a->addr.family == b->addr.family && a->addr.port == b->addr.port &&
           memcmp(a->addr.addr, b->addr.addr, a->addr.family == 4 ? 4 : 16) == 0;
}

bool kvf_row_is_first_of_peer(const struct kvf_stats_rows_shm *rows, uint64_t idx)
{
    const struct kvf_stats_peer_shm *one = &rows->peers[idx];

    for (uint64_t i = 0; i < rows->peer_count; i++) {
        const struct kvf_stats_peer_shm *other = &rows->peers[i];
        if (i == idx || !kvf_row_is_same_peer(one, other)) {
            continue;
        }
        if (kvf_row_is_peer_up(other) != kvf_row_is_peer_up(one) ? kvf_row_is_peer_up(other)
                                                                 : i < idx) {
            return false;
        }
    }
    return true;
}

bool kvf_row_is_first_of_lane(const struct kvf_stats_rows_shm *rows, uint64_t idx)
{
    for (uint64_t i = 0; i < idx; i++) {
        if (rows->lanes[i].peer == rows->lanes[idx].peer &&
            rows->lanes[i].lane == rows->lanes[idx].lane) {
            return false;
        }
    }
    return true;
}

/* Turns of lanes. Each marked lane gets one turn of a poll; the lanes on turn go on round by round until
 * their budget is spent or nothing more moves. A round plans one call per lane, has the engine make all of
 * them, books all of them, and tells the host last. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "sidecar/transport/tcp_lane.h"
#include "sidecar/transport/tcp_socket.h"

/* ---- slots ------------------------------------------------------------------------------------------- */

int kvf_tcp_slots_create(struct kvf_tcp *tcp)
{
    uint32_t count = tcp->engine->batch_max;
    size_t entries = (size_t)count * KVF_TCP_IOVS_MAX;
    tcp->slots = calloc(count, sizeof(*tcp->slots));
    tcp->turns = calloc(count, sizeof(*tcp->turns));
    tcp->calls = calloc(count, sizeof(*tcp->calls));
    /* Zero pages until so many lanes are on turn at once. */
    tcp->iovs = calloc(entries, sizeof(*tcp->iovs));
    tcp->headers = calloc(entries, KVF_LANE_HEADER_BYTES);
    tcp->plans = calloc(entries, sizeof(*tcp->plans));
    if (tcp->slots == NULL || tcp->turns == NULL || tcp->calls == NULL || tcp->iovs == NULL ||
        tcp->headers == NULL || tcp->plans == NULL) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        size_t first = (size_t)i * KVF_TCP_IOVS_MAX;
        tcp->turns[i] = &tcp->slots[i];
        tcp->slots[i].iovs = tcp->iovs + first;
        tcp->slots[i].headers = tcp->headers + first * KVF_LANE_HEADER_BYTES;
        tcp->slots[i].plans = tcp->plans + first;
    }
    return 0;
}

void kvf_tcp_slots_free(struct kvf_tcp *tcp)
{
    free(tcp->plans);
    free(tcp->headers);
    free(tcp->iovs);
    free(tcp->calls);
    free(tcp->turns);
    free(tcp->slots);
}

/* ---- before a lane moves payload ---------------------------------------------------------------------- */

static uint64_t up_turn(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    lane->owes_up = false;
    tcp->host.up_fn(tcp->host.ctx, lane_idx, lane->epoch);
    return 1;
}

static uint64_t connecting_turn(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    if (lane->open_err != 0) {
        kvf_tcp_lose(tcp, lane_idx, lane->open_err);
        return 1;
    }
    if (!lane->is_writable) {
        return 0;
    }
    int rc = kvf_socket_connect_result(lane->fd);
    if (rc == -EINPROGRESS) {
        lane->is_writable = false;
        return 0;
    }
    if (rc != 0) {
        kvf_tcp_lose(tcp, lane_idx, -rc);
        return 1;
    }
    lane->state = KVF_TCP_GREETING;
    return 1;
}

/* The lane is up for us once the socket has taken its LANE_HELLO: what the other side thinks of it shows
 * in the stream. */
static uint64_t greeting_turn(struct kvf_tcp *tcp, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    struct kvf_tcp_sink *sink = &lane->sink;
    if (!lane->is_writable) {
        return 0;
    }
    ssize_t n;
    do {
        n = send(lane->fd, sink->greeting + sink->greeting_sent,
                 KVF_TCP_GREETING_BYTES - sink->greeting_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        lane->is_writable = false;
        return 0;
    }
    if (n < 0) {
        kvf_tcp_lose(tcp, lane_idx, errno);
        return 1;
    }
    sink->greeting_sent += (uint32_t)n;
    if (sink->greeting_sent < KVF_TCP_GREETING_BYTES) {
        lane->is_writable = false;
        return (uint64_t)n;
    }
    lane->state = KVF_TCP_UP;
    return (uint64_t)n + up_turn(tcp, lane_idx);
}

static bool may_send(const struct kvf_tcp_lane *lane)
{
    return !lane->is_sink && lane->is_writable && kvf_tcp_source_has_work(lane);
}

/* Whether the lane could go on without a word from epoll. */
static bool has_more(const struct kvf_tcp_lane *lane)
{
    switch ((enum kvf_tcp_state)lane->state) {
    case KVF_TCP_CONNECTING:
    case KVF_TCP_GREETING:
        return lane->is_writable;
    case KVF_TCP_UP:
        return lane->is_readable || may_send(lane);
    case KVF_TCP_FREE:
    case KVF_TCP_LOST:
    case KVF_TCP_FENCING:
        return false;
    }
    return false;
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

static bool is_same_stream(const struct kvf_tcp *tcp, const struct kvf_tcp_slot *slot)
{
    return tcp->lanes[slot->lane_idx].serial == slot->serial;
}

static bool may_move(const struct kvf_tcp *tcp, const struct kvf_tcp_slot *slot)
{
    const struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    return is_same_stream(tcp, slot) && lane->state == KVF_TCP_UP &&
           slot->moved < tcp->config.turn_bytes_max &&
           (lane->is_sink ? lane->is_readable : may_send(lane));
}

/* Begins the turn of a lane: all that comes before payload. Calls back, so no round may be under way. */
static void turn_begin(struct kvf_tcp *tcp, struct kvf_tcp_slot *slot, uint32_t lane_idx)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[lane_idx];
    slot->lane_idx = lane_idx;
    slot->serial = lane->serial;
    slot->moved = 0;
    slot->is_alone = false;
    if (lane->state == KVF_TCP_CONNECTING) {
        slot->moved += connecting_turn(tcp, lane_idx);
    }
    if (is_same_stream(tcp, slot) && lane->state == KVF_TCP_GREETING) {
        slot->moved += greeting_turn(tcp, lane_idx);
    }
    if (is_same_stream(tcp, slot) && lane->state == KVF_TCP_UP && lane->owes_up) {
        slot->moved += up_turn(tcp, lane_idx);
    }
    if (is_same_stream(tcp, slot) && lane->state == KVF_TCP_UP && !lane->is_sink &&
        lane->is_readable && !kvf_tcp_source_hears_nothing(tcp, lane_idx)) {
        slot->moved++;
    }
}

static void turn_end(struct kvf_tcp *tcp, const struct kvf_tcp_slot *slot)
{
    struct kvf_tcp_lane *lane = &tcp->lanes[slot->lane_idx];
    if (is_same_stream(tcp, slot) && lane->epoll_events != 0) {
        kvf_tcp_update_watch(tcp, slot->lane_idx);
    }
    if (has_more(lane)) {
        kvf_tcp_mark(tcp, slot->lane_idx);
    }
}

static void run_round(struct kvf_tcp *tcp)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < tcp->slot_count; i++) {
        struct kvf_tcp_slot *slot = tcp->turns[i];
        slot->step = KVF_TCP_STEP_NONE;
        if (!may_move(tcp, slot)) {
            continue; /* a callback of a lane that began its turn later fenced it */
        }
        uint64_t budget = tcp->config.turn_bytes_max - slot->moved;
        budget = budget < KVF_TCP_BATCH_BYTES_MAX ? budget : KVF_TCP_BATCH_BYTES_MAX;
        if (tcp->lanes[slot->lane_idx].is_sink) {
            kvf_tcp_sink_plan(tcp, slot, budget);
        } else {
            kvf_tcp_source_plan(tcp, slot, budget);
        }
        if (slot->step == KVF_TCP_STEP_CALL) {
            tcp->calls[count++] = &slot->call;
        }
    }
    if (count > 0) {
        tcp->engine->ops->run(tcp->engine, tcp->calls, count);
    }
    for (uint32_t i = 0; i < tcp->slot_count; i++) {
        struct kvf_tcp_slot *slot = tcp->turns[i];
        if (slot->step == KVF_TCP_STEP_CALL && tcp->lanes[slot->lane_idx].is_sink) {
            kvf_tcp_sink_book(tcp, slot);
        } else if (slot->step == KVF_TCP_STEP_CALL) {
            kvf_tcp_source_book(tcp, slot);
        }
    }
    for (uint32_t i = 0; i < tcp->slot_count; i++) {
        struct kvf_tcp_slot *slot = tcp->turns[i];
        if (!is_same_stream(tcp, slot)) {
            continue; /* a callback fenced it, and nothing of that stream is told after its fence */
        }
        if (tcp->lanes[slot->lane_idx].is_sink) {
            kvf_tcp_sink_tell(tcp, slot);
        } else {
            kvf_tcp_source_tell(tcp, slot);
        }
    }
}

/* Ends the turns that are over; the others keep their order. Returns what those moved. */
static uint64_t end_turns(struct kvf_tcp *tcp)
{
    uint64_t moved = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < tcp->slot_count; i++) {
        struct kvf_tcp_slot *slot = tcp->turns[i];
        if (may_move(tcp, slot)) {
            tcp->turns[i] = tcp->turns[kept];
            tcp->turns[kept++] = slot;
        } else {
            turn_end(tcp, slot);
            moved += slot->moved;
        }
    }
    tcp->slot_count = kept;
    return moved;
}

uint64_t kvf_tcp_poll(struct kvf_transport *t)
{
    struct kvf_tcp *tcp = (struct kvf_tcp *)(void *)t;
    uint64_t moved = 0;
    /* Lanes marked on the way wait for the next poll: one turn each. */
    uint32_t left = tcp->mark_count;
    assert(tcp->slot_count == 0);
    while (left > 0 || tcp->slot_count > 0) {
        while (left > 0 && tcp->slot_count < tcp->engine->batch_max) {
            struct kvf_tcp_slot *slot = tcp->turns[tcp->slot_count];
            left--;
            turn_begin(tcp, slot, kvf_tcp_unmark_first(tcp));
            if (may_move(tcp, slot)) {
                tcp->slot_count++;
            } else {
                turn_end(tcp, slot);
                moved += slot->moved;
            }
        }
        run_round(tcp);
        moved += end_turns(tcp);
    }
    return moved;
}

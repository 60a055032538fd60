/* Connections of this daemon to itself: an engine that names its own daemon as writer.
 *
 * To the core these are two peers like any other, one that it dialled and one that it accepted, and they
 * speak the same frames. Between them there is no socket: a turn asks the core for what one end owes and
 * gives it to the core as what the other end received. Whole frames only, so nothing is ever half way, and
 * no system call is made. What one end still owed when it ended is lost with it, as on a socket. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "sidecar/control_internal.h"

void kvf_control_loop_want(struct kvf_control *control, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    if (!peer->is_queued) {
        peer->is_queued = true;
        control->loop_queue[control->loop_count++] = peer_idx;
    }
}

static void begin(struct kvf_control *control, uint32_t peer_idx, uint32_t partner)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    assert(peer->state == KVF_CONTROL_FREE);
    peer->state = KVF_CONTROL_UP;
    peer->is_loop = true;
    peer->is_partner_gone = false;
    peer->partner = partner;
    peer->serial++;
}

void kvf_control_loop_connect(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    begin(control, peer_idx, KVF_NONE); /* until its HELLO is accepted */
    kvf_core_peer_connected(control->core, now_ns, peer_idx);
}

void kvf_control_loop_end(struct kvf_control *control, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    if (peer->partner != KVF_NONE) {
        struct kvf_control_peer *partner = &control->peers[peer->partner];
        assert(partner->is_loop && partner->partner == peer_idx);
        partner->partner = KVF_NONE;
        partner->is_partner_gone = true; /* a turn tells the core */
        kvf_control_loop_want(control, peer->partner);
    }
    peer->state = KVF_CONTROL_FREE;
    peer->is_loop = false;
    peer->partner = KVF_NONE;
    peer->serial++;
}

static void refuse(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx, int code)
{
    unsigned char frame[KVF_CONTROL_FIRST_BYTES];
    struct kvf_wire_header header;
    size_t bytes = kvf_core_refusal(control->core, (uint32_t)code, frame, sizeof(frame));
    int rc = kvf_wire_get_header(frame, &header);
    assert(rc == 0);
    assert(bytes == KVF_WIRE_HEADER_BYTES + header.payload_bytes);
    control->peers[peer_idx].is_partner_gone = true;
    kvf_control_loop_want(control, peer_idx);
    kvf_core_frame(control->core, now_ns, peer_idx, header.type, header.seq,
                   frame + KVF_WIRE_HEADER_BYTES, header.payload_bytes);
}

/* The dialling end's first frame is its HELLO: it makes the accepting end. */
static void meet(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx,
                 const struct kvf_wire_header *header, const unsigned char *payload)
{
    uint32_t partner;
    assert(header->type == KVF_WIRE_HELLO && header->seq == 0);
    int rc =
        kvf_core_peer_accept(control->core, now_ns, payload, header->payload_bytes, &partner);
    if (rc != 0) {
        refuse(control, now_ns, peer_idx, -rc);
        return;
    }
    assert(partner < control->config.peers_max && partner != peer_idx);
    kvf_control_peer_end(control, partner); /* the connection that this one replaces */
    begin(control, partner, peer_idx);
    control->peers[peer_idx].partner = partner;
    kvf_control_loop_want(control, partner); /* owes its own HELLO */
}

/* Gives whole frames of one end to the core as the other end's. They are the core's own bytes, so that none
 * of them can be wrong. */
static void deliver(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx,
                    size_t bytes)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    size_t off = 0;
    while (off < bytes) {
        struct kvf_wire_header header;
        assert(bytes - off >= KVF_WIRE_HEADER_BYTES);
        int rc = kvf_wire_get_header(peer->out + off, &header);
        assert(rc == 0);
        const unsigned char *payload = peer->out + off + KVF_WIRE_HEADER_BYTES;
        off += KVF_WIRE_HEADER_BYTES + header.payload_bytes;
        assert(off <= bytes);
        if (peer->partner == KVF_NONE) {
            if (peer->is_partner_gone) {
                return; /* refused a moment ago: nobody hears the rest */
            }
            meet(control, now_ns, peer_idx, &header, payload);
        } else {
            kvf_core_frame(control->core, now_ns, peer->partner, header.type, header.seq,
                           payload, header.payload_bytes);
        }
    }
}

static uint32_t end_turn(struct kvf_control *control, uint64_t now_ns, uint32_t peer_idx)
{
    struct kvf_control_peer *peer = &control->peers[peer_idx];
    uint32_t moved = 0;
    while (peer->is_loop && !peer->is_partner_gone) {
        if (moved == KVF_CONTROL_WRITES_MAX) {
            kvf_control_loop_want(control, peer_idx);
            return moved;
        }
        size_t bytes =
            kvf_core_emit(control->core, now_ns, peer_idx, peer->out, KVF_CONTROL_FRAME_BYTES);
        assert(bytes <= KVF_CONTROL_FRAME_BYTES);
        if (bytes == 0) {
            return moved;
        }
        deliver(control, now_ns, peer_idx, bytes);
        moved++;
    }
    if (peer->is_loop) {
        kvf_control_peer_end(control, peer_idx);
        kvf_core_peer_lost(control->core, now_ns, peer_idx, ECONNRESET);
        moved++;
    }
    return moved;
}

uint32_t kvf_control_turn(struct kvf_control *control, uint64_t now_ns)
{
    uint32_t moved = 0;
    uint32_t count = control->loop_count;
    if (count == 0) {
        return 0;
    }
    /* Ends that come into the queue on the way wait for the next turn. */
    control->loop_count = 0;
    memcpy(control->loop_turn, control->loop_queue, count * sizeof(control->loop_queue[0]));
    for (uint32_t i = 0; i < count; i++) {
        control->peers[control->loop_turn[i]].is_queued = false;
    }
    for (uint32_t i = 0; i < count; i++) {
        moved += end_turn(control, now_ns, control->loop_turn[i]);
    }
    return moved;
}

bool kvf_control_has_work(const struct kvf_control *control)
{
    return control->loop_count > 0;
}

bool kvf_control_is_loop(const struct kvf_control *control, uint32_t peer_idx)
{
    return peer_idx < control->config.peers_max && control->peers[peer_idx].is_loop;
}

/* ---- whose address is it? ----------------------------------------------------------------------------- */

static bool is_zero(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

/* 127.0.0.0/8 and ::1. */
static bool is_loopback(const struct kvf_addr_shm *addr)
{
    return addr->family == 4 ? addr->addr[0] == 127
                             : is_zero(addr->addr, 15) && addr->addr[15] == 1;
}

/* Who listens on every address of a family also listens on its loopback addresses, and nobody else can
 * listen there at that port. Any other address of this host may be a relay's: it is dialled. */
bool kvf_control_is_own(const struct kvf_control *control, const struct kvf_addr_shm *addr)
{
    const struct kvf_addr_shm *own = &control->config.listen;
    size_t bytes = own->family == 4 ? 4 : 16;
    if (addr->family != own->family || addr->port != control->port) {
        return false;
    }
    if (is_zero(own->addr, bytes)) {
        return is_loopback(addr) || is_zero(addr->addr, bytes);
    }
    return memcmp(addr->addr, own->addr, bytes) == 0 &&
           (own->family == 4 || addr->scope == own->scope);
}

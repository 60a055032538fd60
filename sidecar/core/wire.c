/* Bytes in, structs out, and back. Nothing here knows what a message means; it only makes sure that what
 * comes out has the shape wire.h promises, so that nobody above needs to doubt a count or an index.
 *
 * Every message has one canonical encoding: a decoder refuses reserved bytes that are not zero, and what
 * it accepts encodes to the same bytes again. That is what the property tests check. Byte order is made
 * with shifts, so the code is the same on every machine and never reads a misaligned integer. */
#include "sidecar/core/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ring/layout.h"

#define REGION_HEAD_BYTES 32u
#define LANE_BYTES 40u
#define PLANE_BYTES 20u
#define GRANT_HEAD_BYTES 88u
#define RUN_BYTES 12u
#define ALL_LANES ((1u << KVF_LANES_MAX) - 1u)

_Static_assert(GRANT_HEAD_BYTES + KVF_WIRE_RUNS_PER_FRAME * RUN_BYTES <= KVF_WIRE_PAYLOAD_MAX,
               "a full GRANT fragment fits a frame");
_Static_assert(REGION_HEAD_BYTES + KVF_WIRE_KEYS_MAX * 4u + KVF_WIRE_PLANES_MAX * PLANE_BYTES <=
                   KVF_WIRE_PAYLOAD_MAX,
               "a REGION of all planes and keys fits a frame");

/* ---- integers --------------------------------------------------------------------------------- */

static unsigned char *put_u8(unsigned char *at, uint8_t value)
{
    at[0] = value;
    return at + 1;
}

static unsigned char *put_u16(unsigned char *at, uint16_t value)
{
    at[0] = (unsigned char)(value & 0xffu);
    at[1] = (unsigned char)(value >> 8);
    return at + 2;
}

static unsigned char *put_u32(unsigned char *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++) {
        at[i] = (unsigned char)((value >> (8u * i)) & 0xffu);
    }
    return at + 4;
}

static unsigned char *put_u64(unsigned char *at, uint64_t value)
{
    at = put_u32(at, (uint32_t)(value & UINT32_MAX));
    return put_u32(at, (uint32_t)(value >> 32));
}

static uint16_t get_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] | (unsigned)at[1] << 8);
}

static uint32_t get_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
           (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const unsigned char *at)
{
    return (uint64_t)get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

/* ---- frame header ------------------------------------------------------------------------------- */

/* magic 4 | version_major 1 | type 1 | reserved 2 | payload_bytes 4 | seq 4 */
void kvf_wire_put_header(unsigned char *out, const struct kvf_wire_header *h)
{
    unsigned char *at = put_u32(out, KVF_WIRE_MAGIC);
    at = put_u8(at, h->version_major);
    at = put_u8(at, h->type);
    at = put_u16(at, 0);
    at = put_u32(at, h->payload_bytes);
    put_u32(at, h->seq);
}

int kvf_wire_get_header(const unsigned char *in, struct kvf_wire_header *ret_h)
{
    struct kvf_wire_header h = {
        .version_major = in[4],
        .type = in[5],
        .payload_bytes = get_u32(in + 8),
        .seq = get_u32(in + 12),
    };
    if (get_u32(in) != KVF_WIRE_MAGIC) {
        return -EPROTO;
    }
    /* Another version may use the rest of the header as it likes, so this answer comes first. */
    if (h.version_major != KVF_WIRE_VERSION_MAJOR) {
        return -ENOTSUP;
    }
    if (get_u16(in + 6) != 0 || h.payload_bytes > KVF_WIRE_PAYLOAD_MAX) {
        return -EPROTO;
    }
    if (h.type < KVF_WIRE_HELLO || h.type > KVF_WIRE_PONG) {
        return -ENOTSUP;
    }
    *ret_h = h;
    return 0;
}

/* Where the payload goes, or NULL if the frame does not fit. */
static unsigned char *begin_frame(unsigned char *out, size_t cap, uint8_t type, uint32_t seq,
                                  size_t payload_bytes)
{
    assert(payload_bytes <= KVF_WIRE_PAYLOAD_MAX);
    if (cap < KVF_WIRE_HEADER_BYTES + payload_bytes) {
        return NULL;
    }
    struct kvf_wire_header h = {
        .version_major = KVF_WIRE_VERSION_MAJOR,
        .type = type,
        .payload_bytes = (uint32_t)payload_bytes,
        .seq = seq,
    };
    kvf_wire_put_header(out, &h);
    return out + KVF_WIRE_HEADER_BYTES;
}

/* ---- HELLO and LANE_HELLO ------------------------------------------------------------------------ */

/* The name goes into logs and tables of the other side: printable characters, then zeros to the end. */
static bool name_is_plain(const unsigned char *name)
{
    size_t i = 0;
    while (i < KVF_WIRE_NAME_BYTES && name[i] >= 0x20 && name[i] <= 0x7e) {
        i++;
    }
    if (i == KVF_WIRE_NAME_BYTES) {
        return false;
    }
    while (i < KVF_WIRE_NAME_BYTES) {
        if (name[i++] != 0) {
            return false;
        }
    }
    return true;
}

/* version_major 2 | version_minor 2 | caps 4 | supervisor_id 8 | worker_starts 4 | code 4 | session 8 |
 * transport 1 | placement 1 | lane_count 1 | auth_kind 1 | receives_per_lane 4 | name 32 */
int kvf_wire_put_hello(unsigned char *out, size_t cap, uint32_t seq,
                       const struct kvf_wire_hello *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_HELLO, seq, KVF_WIRE_HELLO_BYTES);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u16(at, m->version_major);
    at = put_u16(at, m->version_minor);
    at = put_u32(at, m->caps);
    at = put_u64(at, m->supervisor_id);
    at = put_u32(at, m->worker_starts);
    at = put_u32(at, m->code);
    at = put_u64(at, m->session);
    at = put_u8(at, m->transport);
    at = put_u8(at, m->placement);
    at = put_u8(at, m->lane_count);
    at = put_u8(at, m->auth_kind);
    at = put_u32(at, m->receives_per_lane);
    memcpy(at, m->name, KVF_WIRE_NAME_BYTES);
    at += KVF_WIRE_NAME_BYTES;
    return (int)(at - out);
}

/* version, caps and auth_kind pass whatever they say: the core refuses those with a reason of its own.
 * A HELLO that carries a code is a refusal and need not describe lanes. */
int kvf_wire_get_hello(const unsigned char *payload, size_t bytes, struct kvf_wire_hello *ret_m)
{
    if (bytes != KVF_WIRE_HELLO_BYTES) {
        return -EPROTO;
    }
    struct kvf_wire_hello m = {
        .version_major = get_u16(payload),
        .version_minor = get_u16(payload + 2),
        .caps = get_u32(payload + 4),
        .supervisor_id = get_u64(payload + 8),
        .worker_starts = get_u32(payload + 16),
        .code = get_u32(payload + 20),
        .session = get_u64(payload + 24),
        .transport = payload[32],
        .placement = payload[33],
        .lane_count = payload[34],
        .auth_kind = payload[35],
        .receives_per_lane = get_u32(payload + 36),
    };
    if (m.transport > KVF_WIRE_LOCAL || m.placement > KVF_PLACEMENT_POSTED ||
        m.lane_count > KVF_LANES_MAX || !name_is_plain(payload + 40)) {
        return -EPROTO;
    }
    if (m.code == 0 && (m.transport == 0 || m.placement == 0 || m.lane_count == 0)) {
        return -EPROTO;
    }
    memcpy(m.name, payload + 40, KVF_WIRE_NAME_BYTES);
    *ret_m = m;
    return 0;
}

/* session 8 | lane_idx 4 | epoch 4 */
int kvf_wire_put_lane_hello(unsigned char *out, size_t cap, uint32_t seq,
                            const struct kvf_wire_lane_hello *m)
{
    unsigned char *at =
        begin_frame(out, cap, KVF_WIRE_LANE_HELLO, seq, KVF_WIRE_LANE_HELLO_BYTES);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->session);
    at = put_u32(at, m->lane_idx);
    at = put_u32(at, m->epoch);
    return (int)(at - out);
}

int kvf_wire_get_lane_hello(const unsigned char *payload, size_t bytes,
                            struct kvf_wire_lane_hello *ret_m)
{
    if (bytes != KVF_WIRE_LANE_HELLO_BYTES || get_u32(payload + 8) >= KVF_LANES_MAX) {
        return -EPROTO;
    }
    ret_m->session = get_u64(payload);
    ret_m->lane_idx = get_u32(payload + 8);
    ret_m->epoch = get_u32(payload + 12);
    return 0;
}

/* lane_idx 4 | epoch 4 | qpn 4 | psn 4 | gid 16 | mtu_bytes 4 | reserved 4 */
int kvf_wire_put_lane(unsigned char *out, size_t cap, uint32_t seq,
                      const struct kvf_wire_lane *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_LANE, seq, LANE_BYTES);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u32(at, m->lane_idx);
    at = put_u32(at, m->epoch);
    at = put_u32(at, m->end.qpn);
    at = put_u32(at, m->end.psn);
    memcpy(at, m->end.gid, sizeof m->end.gid);
    at = put_u32(at + sizeof m->end.gid, m->end.mtu_bytes);
    at = put_u32(at, (uint32_t)m->end.lid << 16 | m->end.rail);
    return (int)(at - out);
}

int kvf_wire_get_lane(const unsigned char *payload, size_t bytes, struct kvf_wire_lane *ret_m)
{
    if (bytes != LANE_BYTES || get_u32(payload) >= KVF_LANES_MAX ||
        (get_u32(payload + 8) | get_u32(payload + 12)) >> 24 != 0 ||
        (get_u32(payload + 36) & 0xffffu) >= KVF_WIRE_KEYS_MAX) {
        return -EPROTO;
    }
    *ret_m = (struct kvf_wire_lane){.lane_idx = get_u32(payload),
                                    .epoch = get_u32(payload + 4),
                                    .end = {.qpn = get_u32(payload + 8),
                                            .psn = get_u32(payload + 12),
                                            .mtu_bytes = get_u32(payload + 32),
                                            .lid = (uint16_t)(get_u32(payload + 36) >> 16),
                                            .rail = (uint8_t)get_u32(payload + 36)}};
    memcpy(ret_m->end.gid, payload + 16, sizeof ret_m->end.gid);
    return 0;
}

/* ---- REGION ---------------------------------------------------------------------------------------- */

/* region 4 | epoch 4 | page_count 8 | base 8 | plane_count 4 | key_count 4 | keys 4 each |
 * planes: off 8, stride 8, page_bytes 4 each */
int kvf_wire_put_region(unsigned char *out, size_t cap, uint32_t seq,
                        const struct kvf_wire_region *m)
{
    assert(m->plane_count <= KVF_WIRE_PLANES_MAX);
    assert(m->key_count <= KVF_WIRE_KEYS_MAX);
    size_t payload_bytes =
        REGION_HEAD_BYTES + (size_t)m->key_count * 4u + (size_t)m->plane_count * PLANE_BYTES;
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_REGION, seq, payload_bytes);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u32(at, m->region);
    at = put_u32(at, m->epoch);
    at = put_u64(at, m->page_count);
    at = put_u64(at, m->base);
    at = put_u32(at, m->plane_count);
    at = put_u32(at, m->key_count);
    for (uint32_t i = 0; i < m->key_count; i++) {
        at = put_u32(at, m->keys[i]);
    }
    for (uint32_t i = 0; i < m->plane_count; i++) {
        at = put_u64(at, m->planes[i].off);
        at = put_u64(at, m->planes[i].stride);
        at = put_u32(at, m->planes[i].page_bytes);
    }
    return (int)(at - out);
}

/* Every byte of the plane has an offset below 2^63, and no two pages share one. */
static bool plane_is_sound(const struct kvf_wire_plane *plane, uint64_t page_count)
{
    uint64_t limit = UINT64_C(1) << 63;
    if (plane->page_bytes == 0 || (page_count > 1 && plane->stride < plane->page_bytes)) {
        return false;
    }
    if (plane->stride >= limit / page_count || plane->off >= limit) {
        return false;
    }
    uint64_t span = plane->stride * (page_count - 1) + plane->page_bytes;
    return span <= limit - plane->off;
}

static void get_plane(const unsigned char *at, struct kvf_wire_plane *ret_plane)
{
    ret_plane->off = get_u64(at);
    ret_plane->stride = get_u64(at + 8);
    ret_plane->page_bytes = get_u32(at + 16);
}

int kvf_wire_get_region(const unsigned char *payload, size_t bytes,
                        struct kvf_wire_region *ret_m)
{
    if (bytes < REGION_HEAD_BYTES) {
        return -EPROTO;
    }
    uint64_t page_count = get_u64(payload + 8);
    uint32_t plane_count = get_u32(payload + 24);
    uint32_t key_count = get_u32(payload + 28);
    if (page_count == 0 || page_count > KVF_REGION_PAGES_MAX || plane_count == 0 ||
        plane_count > KVF_WIRE_PLANES_MAX || key_count > KVF_WIRE_KEYS_MAX) {
        return -EPROTO;
    }
    size_t planes_off = REGION_HEAD_BYTES + (size_t)key_count * 4u;
    if (bytes != planes_off + (size_t)plane_count * PLANE_BYTES) {
        return -EPROTO;
    }
    struct kvf_wire_plane plane;
    for (uint32_t i = 0; i < plane_count; i++) {
        get_plane(payload + planes_off + (size_t)i * PLANE_BYTES, &plane);
        if (!plane_is_sound(&plane, page_count)) {
            return -EPROTO;
        }
    }
    memset(ret_m, 0, sizeof(*ret_m));
    ret_m->region = get_u32(payload);
    ret_m->epoch = get_u32(payload + 4);
    ret_m->page_count = page_count;
    ret_m->base = get_u64(payload + 16);
    ret_m->plane_count = plane_count;
    ret_m->key_count = key_count;
    for (uint32_t i = 0; i < key_count; i++) {
        ret_m->keys[i] = get_u32(payload + REGION_HEAD_BYTES + (size_t)i * 4u);
    }
    for (uint32_t i = 0; i < plane_count; i++) {
        get_plane(payload + planes_off + (size_t)i * PLANE_BYTES, &ret_m->planes[i]);
    }
    return 0;
}

/* ---- GRANT ----------------------------------------------------------------------------------------- */

size_t kvf_wire_grant_bytes(uint32_t run_count)
{
    return KVF_WIRE_HEADER_BYTES + GRANT_HEAD_BYTES + (size_t)run_count * RUN_BYTES;
}

/* nonce 8 | label 8 | key 8 | handle 4 | lane_mask 4 | lane_epochs 8 x 4 | page_count 4 | total_runs 4 |
 * first_run 4 | run_count 4 | past_nonce 8 | runs: region 4, first 4, count 4 each */
int kvf_wire_put_grant(unsigned char *out, size_t cap, uint32_t seq,
                       const struct kvf_wire_grant *m, const struct kvf_wire_run *runs)
{
    assert(m->run_count <= KVF_WIRE_RUNS_PER_FRAME);
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_GRANT, seq,
                                    kvf_wire_grant_bytes(m->run_count) - KVF_WIRE_HEADER_BYTES);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->nonce);
    at = put_u64(at, m->label);
    at = put_u64(at, m->key);
    at = put_u32(at, m->handle);
    at = put_u32(at, m->lane_mask);
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        at = put_u32(at, m->lane_epochs[i]);
    }
    at = put_u32(at, m->page_count);
    at = put_u32(at, m->total_runs);
    at = put_u32(at, m->first_run);
    at = put_u32(at, m->run_count);
    at = put_u64(at, m->past_nonce);
    for (uint32_t i = 0; i < m->run_count; i++) {
        at = put_u32(at, runs[i].region);
        at = put_u32(at, runs[i].first);
        at = put_u32(at, runs[i].count);
    }
    return (int)(at - out);
}

static bool grant_head_is_sound(const struct kvf_wire_grant *m)
{
    if (m->nonce == 0 || m->nonce == m->past_nonce || m->lane_mask == 0 ||
        (m->lane_mask & ~ALL_LANES) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        if ((m->lane_mask >> i & 1u) == 0 && m->lane_epochs[i] != 0) {
            return false;
        }
    }
    /* Every run holds a page at least, so a list cannot have more runs than pages. */
    if (m->total_runs == 0 || m->total_runs > KVF_RUNS_PER_LIST_MAX ||
        m->page_count < m->total_runs) {
        return false;
    }
    return m->run_count != 0 && m->run_count <= KVF_WIRE_RUNS_PER_FRAME &&
           m->first_run < m->total_runs && m->run_count <= m->total_runs - m->first_run;
}

int kvf_wire_get_grant(const unsigned char *payload, size_t bytes, struct kvf_wire_grant *ret_m)
{
    if (bytes < GRANT_HEAD_BYTES) {
        return -EPROTO;
    }
    struct kvf_wire_grant m = {
        .nonce = get_u64(payload),
        .label = get_u64(payload + 8),
        .key = get_u64(payload + 16),
        .handle = get_u32(payload + 24),
        .lane_mask = get_u32(payload + 28),
        .page_count = get_u32(payload + 64),
        .total_runs = get_u32(payload + 68),
        .first_run = get_u32(payload + 72),
        .run_count = get_u32(payload + 76),
        .past_nonce = get_u64(payload + 80),
    };
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        m.lane_epochs[i] = get_u32(payload + 32 + (size_t)i * 4u);
    }
    if (!grant_head_is_sound(&m) ||
        bytes != GRANT_HEAD_BYTES + (size_t)m.run_count * RUN_BYTES) {
        return -EPROTO;
    }
    uint64_t pages = 0;
    for (uint32_t i = 0; i < m.run_count; i++) {
        struct kvf_wire_run run;
        kvf_wire_get_run(payload, i, &run);
        if (run.count == 0 || run.first >= KVF_REGION_PAGES_MAX ||
            run.count > KVF_REGION_PAGES_MAX - run.first) {
            return -EPROTO;
        }
        pages += run.count;
    }
    /* The rest of the list, in other fragments, holds one page a run at least. */
    if (pages + (m.total_runs - m.run_count) > m.page_count) {
        return -EPROTO;
    }
    *ret_m = m;
    return 0;
}

void kvf_wire_get_run(const unsigned char *payload, uint32_t run_idx,
                      struct kvf_wire_run *ret_run)
{
    const unsigned char *at = payload + GRANT_HEAD_BYTES + (size_t)run_idx * RUN_BYTES;
    ret_run->region = get_u32(at);
    ret_run->first = get_u32(at + 4);
    ret_run->count = get_u32(at + 8);
}

/* ---- the small ones -------------------------------------------------------------------------------- */

/* nonce 8 */
int kvf_wire_put_accept(unsigned char *out, size_t cap, uint32_t seq,
                        const struct kvf_wire_accept *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_ACCEPT, seq, 8);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->nonce);
    return (int)(at - out);
}

int kvf_wire_get_accept(const unsigned char *payload, size_t bytes,
                        struct kvf_wire_accept *ret_m)
{
    if (bytes != 8 || get_u64(payload) == 0) {
        return -EPROTO;
    }
    ret_m->nonce = get_u64(payload);
    return 0;
}

/* nonce 8 | reason 4 | detail 4 */
int kvf_wire_put_decline(unsigned char *out, size_t cap, uint32_t seq,
                         const struct kvf_wire_decline *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_DECLINE, seq, 16);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->nonce);
    at = put_u32(at, m->reason);
    at = put_u32(at, m->detail);
    return (int)(at - out);
}

int kvf_wire_get_decline(const unsigned char *payload, size_t bytes,
                         struct kvf_wire_decline *ret_m)
{
    if (bytes != 16 || get_u64(payload) == 0) {
        return -EPROTO;
    }
    ret_m->nonce = get_u64(payload);
    ret_m->reason = get_u32(payload + 8);
    ret_m->detail = get_u32(payload + 12);
    return 0;
}

/* nonce 8, 0 when the GRANT never left | label 8 | key 8 | reason 4 */
int kvf_wire_put_abort(unsigned char *out, size_t cap, uint32_t seq,
                       const struct kvf_wire_abort *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_ABORT, seq, 28);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->nonce);
    at = put_u64(at, m->label);
    at = put_u64(at, m->key);
    at = put_u32(at, m->reason);
    return (int)(at - out);
}

int kvf_wire_get_abort(const unsigned char *payload, size_t bytes, struct kvf_wire_abort *ret_m)
{
    if (bytes != 28) {
        return -EPROTO;
    }
    ret_m->nonce = get_u64(payload);
    ret_m->label = get_u64(payload + 8);
    ret_m->key = get_u64(payload + 16);
    ret_m->reason = get_u32(payload + 24);
    return 0;
}

/* nonce 8 | reason 4 | broken_lanes 4 */
int kvf_wire_put_ended(unsigned char *out, size_t cap, uint32_t seq,
                       const struct kvf_wire_ended *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_ENDED, seq, 16);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->nonce);
    at = put_u32(at, m->reason);
    at = put_u32(at, m->broken_lanes);
    return (int)(at - out);
}

int kvf_wire_get_ended(const unsigned char *payload, size_t bytes, struct kvf_wire_ended *ret_m)
{
    if (bytes != 16 || get_u64(payload) == 0 || (get_u32(payload + 12) & ~ALL_LANES) != 0) {
        return -EPROTO;
    }
    ret_m->nonce = get_u64(payload);
    ret_m->reason = get_u32(payload + 8);
    ret_m->broken_lanes = get_u32(payload + 12);
    return 0;
}

/* group_id 8 | key 8 | from_rank 4 | to_rank 4 | state 1 | is_answer 1 | reserved 2 */
int kvf_wire_put_group(unsigned char *out, size_t cap, uint32_t seq,
                       const struct kvf_wire_group *m)
{
    unsigned char *at = begin_frame(out, cap, KVF_WIRE_GROUP, seq, KVF_WIRE_GROUP_BYTES);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->group_id);
    at = put_u64(at, m->key);
    at = put_u32(at, m->from_rank);
    at = put_u32(at, m->to_rank);
    at = put_u8(at, m->state);
    at = put_u8(at, m->is_answer);
    at = put_u16(at, 0);
    return (int)(at - out);
}

int kvf_wire_get_group(const unsigned char *payload, size_t bytes, struct kvf_wire_group *ret_m)
{
    if (bytes != KVF_WIRE_GROUP_BYTES || get_u16(payload + 26) != 0) {
        return -EPROTO;
    }
    struct kvf_wire_group m = {.group_id = get_u64(payload),
                               .key = get_u64(payload + 8),
                               .from_rank = get_u32(payload + 16),
                               .to_rank = get_u32(payload + 20),
                               .state = payload[24],
                               .is_answer = payload[25]};
    if (m.group_id == 0 || m.from_rank >= KVF_GROUP_MEMBERS_MAX ||
        m.to_rank >= KVF_GROUP_MEMBERS_MAX || m.from_rank == m.to_rank || m.is_answer > 1) {
        return -EPROTO;
    }
    /* Who asks has a room: that it never opened one is an answer only. */
    uint8_t last = m.is_answer != 0 ? KVF_GROUP_NEVER_OPENED : KVF_GROUP_DRAINED;
    if (m.state < KVF_GROUP_CLOSED || m.state > last) {
        return -EPROTO;
    }
    *ret_m = m;
    return 0;
}

/* seq 8, the asker's own count */
static int put_ping_of(unsigned char *out, size_t cap, uint8_t type, uint32_t seq,
                       const struct kvf_wire_ping *m)
{
    unsigned char *at = begin_frame(out, cap, type, seq, 8);
    if (at == NULL) {
        return -ENOSPC;
    }
    at = put_u64(at, m->seq);
    return (int)(at - out);
}

int kvf_wire_put_ping(unsigned char *out, size_t cap, uint32_t seq,
                      const struct kvf_wire_ping *m)
{
    return put_ping_of(out, cap, KVF_WIRE_PING, seq, m);
}

int kvf_wire_put_pong(unsigned char *out, size_t cap, uint32_t seq,
                      const struct kvf_wire_ping *m)
{
    return put_ping_of(out, cap, KVF_WIRE_PONG, seq, m);
}

int kvf_wire_get_ping(const unsigned char *payload, size_t bytes, struct kvf_wire_ping *ret_m)
{
    if (bytes != 8) {
        return -EPROTO;
    }
    ret_m->seq = get_u64(payload);
    return 0;
}

/* ---- lane frames ------------------------------------------------------------------------------------ */

/* magic 4 | kind 1 | reserved 1 | plane_first 2 | plane_count 2 | reserved 2 | handle 4 | position 4 |
 * page_count 4 | payload_bytes 4 | seq 4 */
void kvf_wire_put_lane_frame(unsigned char *out, const struct kvf_lane_frame *f)
{
    unsigned char *at = put_u32(out, KVF_LANE_MAGIC);
    at = put_u8(at, f->kind);
    at = put_u8(at, 0);
    at = put_u16(at, f->plane_first);
    at = put_u16(at, f->plane_count);
    at = put_u16(at, 0);
    at = put_u32(at, f->handle);
    at = put_u32(at, f->position);
    at = put_u32(at, f->page_count);
    at = put_u32(at, f->payload_bytes);
    put_u32(at, f->seq);
}

static bool lane_frame_is_sound(const struct kvf_lane_frame *f)
{
    if (f->kind == KVF_LANE_END || f->kind == KVF_LANE_DRAIN) {
        return f->plane_first == 0 && f->plane_count == 0 && f->position == 0 &&
               f->page_count == 0 && f->payload_bytes == 0;
    }
    if (f->kind != KVF_LANE_DATA || f->page_count == 0 || f->plane_count == 0 ||
        f->payload_bytes == 0) {
        return false;
    }
    if (f->plane_first >= KVF_WIRE_PLANES_MAX ||
        f->plane_count > KVF_WIRE_PLANES_MAX - f->plane_first) {
        return false;
    }
    if (f->page_count > 1 && f->plane_first != 0) {
        return false; /* several pages travel only whole */
    }
    return f->page_count <= UINT32_MAX - f->position;
}

int kvf_wire_get_lane_frame(const unsigned char *in, struct kvf_lane_frame *ret_f)
{
    struct kvf_lane_frame f = {
        .kind = in[4],
        .plane_first = get_u16(in + 6),
        .plane_count = get_u16(in + 8),
        .handle = get_u32(in + 12),
        .position = get_u32(in + 16),
        .page_count = get_u32(in + 20),
        .payload_bytes = get_u32(in + 24),
        .seq = get_u32(in + 28),
    };
    if (get_u32(in) != KVF_LANE_MAGIC || in[5] != 0 || get_u16(in + 10) != 0 ||
        !lane_frame_is_sound(&f)) {
        return -EPROTO;
    }
    *ret_f = f;
    return 0;
}

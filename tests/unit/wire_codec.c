/* The codec: what goes in comes out, and nothing else comes in.
 *
 * Every message type is generated at random within its bounds, encoded, and decoded. Then the same bytes
 * are cut at every length, lengthened, and damaged. Payloads lie at the end of a block of exactly their
 * size, so that a read past the end is seen under ASan. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ring/layout.h"
#include "sidecar/core/wire.h"

#define FRAME_MAX (KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX)
#define ROUNDS 200

static uint64_t state;

static uint64_t rnd(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint32_t rnd32(void)
{
    uint64_t x = rnd();
    /* The edges come often. */
    return x % 8 == 0 ? 0 : x % 8 == 1 ? UINT32_MAX : (uint32_t)(x >> 20);
}

static uint32_t below(uint32_t limit)
{
    return (uint32_t)(rnd() % limit);
}

/* ---- one description per message type ------------------------------------------------------------------- */

union any {
    struct kvf_wire_hello hello;
    struct kvf_wire_lane_hello lane_hello;
    struct kvf_wire_region region;
    struct kvf_wire_lane lane;
    struct kvf_wire_accept accept;
    struct kvf_wire_decline decline;
    struct kvf_wire_abort abort;
    struct kvf_wire_ended ended;
    struct kvf_wire_ping ping;
    struct kvf_wire_group group;
    struct kvf_wire_grant grant;
};
static struct kvf_wire_run runs[KVF_WIRE_RUNS_PER_FRAME];

static void make_hello(union any *m)
{
    m->hello = (struct kvf_wire_hello){
        .version_major = (uint16_t)rnd(),
        .version_minor = (uint16_t)rnd(),
        .caps = rnd32(),
        .supervisor_id = rnd(),
        .worker_starts = rnd32(),
        .code = below(2) ? 0 : rnd32(),
        .session = rnd(),
        .transport = (uint8_t)(1 + below(3)),
        .placement = (uint8_t)(1 + below(2)),
        .lane_count = (uint8_t)(1 + below(KVF_LANES_MAX)),
        .auth_kind = (uint8_t)rnd(),
        .receives_per_lane = rnd32(),
    };
    uint32_t chars = below(KVF_WIRE_NAME_BYTES);
    for (uint32_t i = 0; i < chars; i++) {
        m->hello.name[i] = (char)(0x20 + below(0x7f - 0x20));
    }
}

static void make_lane_hello(union any *m)
{
    m->lane_hello = (struct kvf_wire_lane_hello){
        .session = rnd(), .lane_idx = below(KVF_LANES_MAX), .epoch = rnd32()};
}

static void make_region(union any *m)
{
    memset(&m->region, 0, sizeof(m->region));
    m->region.region = rnd32();
    m->region.epoch = rnd32();
    m->region.page_count = 1 + below(KVF_REGION_PAGES_MAX);
    m->region.base = rnd();
    m->region.plane_count = 1 + below(below(4) ? 8 : KVF_WIRE_PLANES_MAX);
    m->region.key_count = below(KVF_WIRE_KEYS_MAX + 1);
    for (uint32_t i = 0; i < m->region.key_count; i++) {
        m->region.keys[i] = rnd32();
    }
    for (uint32_t i = 0; i < m->region.plane_count; i++) {
        struct kvf_wire_plane *plane = &m->region.planes[i];
        plane->page_bytes = 1 + below(1u << 20);
        plane->stride = plane->page_bytes + below(4096);
        plane->off = rnd() >> 8;
    }
}

static void make_lane(union any *m)
{
    m->lane = (struct kvf_wire_lane){.lane_idx = below(KVF_LANES_MAX),
                                     .epoch = rnd32(),
                                     .end = {.qpn = rnd32() & 0xffffffu,
                                             .psn = rnd32() & 0xffffffu,
                                             .mtu_bytes = rnd32(),
                                             .lid = (uint16_t)rnd32(),
                                             .rail = (uint8_t)(rnd32() % KVF_WIRE_KEYS_MAX)}};
    for (uint32_t i = 0; i < sizeof(m->lane.end.gid); i++) {
        m->lane.end.gid[i] = (uint8_t)rnd();
    }
}

static void make_accept(union any *m)
{
    m->accept.nonce = rnd();
}

static void make_decline(union any *m)
{
    m->decline =
        (struct kvf_wire_decline){.nonce = rnd(), .reason = rnd32(), .detail = rnd32()};
}

static void make_abort(union any *m)
{
    m->abort = (struct kvf_wire_abort){
        .nonce = below(2) ? rnd() : 0, .label = rnd(), .key = rnd(), .reason = rnd32()};
}

static void make_ended(union any *m)
{
    m->ended = (struct kvf_wire_ended){
        .nonce = rnd(), .reason = rnd32(), .broken_lanes = below(1u << KVF_LANES_MAX)};
}

static void make_ping(union any *m)
{
    m->ping.seq = rnd();
}

static void make_group(union any *m)
{
    uint32_t is_answer = below(2);
    uint32_t from = below(KVF_GROUP_MEMBERS_MAX);
    m->group = (struct kvf_wire_group){
        .group_id = rnd() | 1u,
        .key = rnd(),
        .from_rank = from,
        .to_rank = (from + 1 + below(KVF_GROUP_MEMBERS_MAX - 1)) % KVF_GROUP_MEMBERS_MAX,
        .state = (uint8_t)(KVF_GROUP_CLOSED + below(is_answer != 0 ? 3 : 2)),
        .is_answer = (uint8_t)is_answer};
}

static void make_grant(union any *m)
{
    struct kvf_wire_grant *g = &m->grant;
    memset(g, 0, sizeof(*g));
    g->nonce = rnd();
    g->past_nonce = below(2) != 0 ? rnd() : 0;
    g->label = rnd();
    g->key = rnd();
    g->handle = rnd32();
    g->lane_mask = 1 + below((1u << KVF_LANES_MAX) - 1);
    for (uint32_t i = 0; i < KVF_LANES_MAX; i++) {
        g->lane_epochs[i] = g->lane_mask >> i & 1u ? rnd32() : 0;
    }
    g->run_count = 1 + below(below(8) ? 20 : KVF_WIRE_RUNS_PER_FRAME);
    g->first_run = below(KVF_RUNS_PER_LIST_MAX - g->run_count + 1);
    g->total_runs = g->first_run + g->run_count;
    g->total_runs += below(KVF_RUNS_PER_LIST_MAX - g->total_runs + 1);
    uint32_t pages = 0;
    for (uint32_t i = 0; i < g->run_count; i++) {
        runs[i].region = rnd32();
        runs[i].count = 1 + below(100);
        runs[i].first = below(KVF_REGION_PAGES_MAX - runs[i].count + 1);
        pages += runs[i].count;
    }
    g->page_count = pages + (g->total_runs - g->run_count) + below(1000);
}

#define PUT_GET(name)                                                                          \
    static int put_##name(unsigned char *out, size_t cap, uint32_t seq, const union any *m)    \
    {                                                                                          \
        return kvf_wire_put_##name(out, cap, seq, &m->name);                                   \
    }                                                                                          \
    static int get_##name(const unsigned char *payload, size_t bytes, union any *ret_m)        \
    {                                                                                          \
        return kvf_wire_get_##name(payload, bytes, &ret_m->name);                              \
    }
PUT_GET(hello)
PUT_GET(lane_hello)
PUT_GET(region)
PUT_GET(lane)
PUT_GET(accept)
PUT_GET(decline)
PUT_GET(abort)
PUT_GET(ended)
PUT_GET(ping)
PUT_GET(group)

static int put_pong(unsigned char *out, size_t cap, uint32_t seq, const union any *m)
{
    return kvf_wire_put_pong(out, cap, seq, &m->ping);
}

static int put_grant(unsigned char *out, size_t cap, uint32_t seq, const union any *m)
{
    return kvf_wire_put_grant(out, cap, seq, &m->grant, runs);
}

static int get_grant(const unsigned char *payload, size_t bytes, union any *ret_m)
{
    return kvf_wire_get_grant(payload, bytes, &ret_m->grant);
}

static const struct message {
    const char *name;
    uint8_t type;
    size_t struct_bytes;
    void (*make)(union any *m);
    int (*put)(unsigned char *out, size_t cap, uint32_t seq, const union any *m);
    int (*get)(const unsigned char *payload, size_t bytes, union any *ret_m);
} messages[] = {
    {"hello", KVF_WIRE_HELLO, sizeof(struct kvf_wire_hello), make_hello, put_hello, get_hello},
    {"lane_hello", KVF_WIRE_LANE_HELLO, sizeof(struct kvf_wire_lane_hello), make_lane_hello,
     put_lane_hello, get_lane_hello},
    {"region", KVF_WIRE_REGION, sizeof(struct kvf_wire_region), make_region, put_region,
     get_region},
    {"grant", KVF_WIRE_GRANT, sizeof(struct kvf_wire_grant), make_grant, put_grant, get_grant},
    {"accept", KVF_WIRE_ACCEPT, sizeof(struct kvf_wire_accept), make_accept, put_accept,
     get_accept},
    {"decline", KVF_WIRE_DECLINE, sizeof(struct kvf_wire_decline), make_decline, put_decline,
     get_decline},
    {"abort", KVF_WIRE_ABORT, sizeof(struct kvf_wire_abort), make_abort, put_abort, get_abort},
    {"ended", KVF_WIRE_ENDED, sizeof(struct kvf_wire_ended), make_ended, put_ended, get_ended},
    {"lane", KVF_WIRE_LANE, sizeof(struct kvf_wire_lane), make_lane, put_lane, get_lane},
    {"ping", KVF_WIRE_PING, sizeof(struct kvf_wire_ping), make_ping, put_ping, get_ping},
    {"pong", KVF_WIRE_PONG, sizeof(struct kvf_wire_ping), make_ping, put_pong, get_ping},
    {"group", KVF_WIRE_GROUP, sizeof(struct kvf_wire_group), make_group, put_group, get_group},
};
#define MESSAGES (sizeof(messages) / sizeof(messages[0]))

/* ---- helpers --------------------------------------------------------------------------------------------- */

static union any made, got;
static unsigned char frame[FRAME_MAX], again[FRAME_MAX];

/* Decodes a copy that ends where the block ends. */
static int get_exact(const struct message *message, const unsigned char *payload, size_t bytes,
                     union any *ret_m)
{
    unsigned char *copy = malloc(bytes > 0 ? bytes : 1);
    if (bytes > 0) {
        memcpy(copy, payload, bytes);
    }
    int rc = message->get(copy, bytes, ret_m);
    free(copy);
    return rc;
}

/* A random frame of this type. Its bytes. */
static size_t make_frame(const struct message *message, uint32_t seq)
{
    memset(&made, 0, sizeof(made));
    message->make(&made);
    int bytes = message->put(frame, sizeof(frame), seq, &made);
    cr_assert_gt(bytes, 0);
    return (size_t)bytes;
}

/* Whatever the decoder accepted encodes to these very bytes. */
static void assert_canonical(const struct message *message, const unsigned char *payload,
                             size_t bytes, uint32_t seq)
{
    if (message->get == get_grant) {
        for (uint32_t i = 0; i < got.grant.run_count; i++) {
            kvf_wire_get_run(payload, i, &runs[i]);
        }
    }
    int n = message->put(again, sizeof(again), seq, &got);
    cr_assert_eq((size_t)n, KVF_WIRE_HEADER_BYTES + bytes, "%s", message->name);
    cr_assert_eq(memcmp(again + KVF_WIRE_HEADER_BYTES, payload, bytes), 0, "%s", message->name);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

Test(wire, every_message_comes_out_as_it_went_in)
{
    state = 1;
    for (size_t k = 0; k < MESSAGES; k++) {
        for (uint32_t round = 0; round < ROUNDS; round++) {
            size_t bytes = make_frame(&messages[k], round);
            struct kvf_wire_header header;
            cr_assert_eq(kvf_wire_get_header(frame, &header), 0);
            cr_assert_eq(header.version_major, KVF_WIRE_VERSION_MAJOR);
            cr_assert_eq(header.type, messages[k].type);
            cr_assert_eq(header.seq, round);
            cr_assert_eq(header.payload_bytes, bytes - KVF_WIRE_HEADER_BYTES);
            memset(&got, 0, sizeof(got));
            cr_assert_eq(get_exact(&messages[k], frame + KVF_WIRE_HEADER_BYTES,
                                   header.payload_bytes, &got),
                         0, "%s round %u", messages[k].name, round);
            cr_assert_eq(memcmp(&got, &made, messages[k].struct_bytes), 0, "%s",
                         messages[k].name);
            if (messages[k].get == get_grant) {
                cr_assert_eq(bytes, kvf_wire_grant_bytes(made.grant.run_count));
                for (uint32_t i = 0; i < made.grant.run_count; i++) {
                    struct kvf_wire_run run;
                    kvf_wire_get_run(frame + KVF_WIRE_HEADER_BYTES, i, &run);
                    cr_assert_eq(memcmp(&run, &runs[i], sizeof(run)), 0);
                }
            }
        }
    }
}

Test(wire, a_payload_cut_or_lengthened_anywhere_is_refused_and_leaves_the_output_alone)
{
    state = 2;
    for (size_t k = 0; k < MESSAGES; k++) {
        for (uint32_t round = 0; round < 8; round++) {
            size_t bytes = make_frame(&messages[k], 0) - KVF_WIRE_HEADER_BYTES;
            union any *before = &made;
            memset(before, 0x5e, sizeof(*before));
            for (size_t cut = 0; cut < bytes + 30; cut++) {
                if (cut == bytes) {
                    continue;
                }
                memset(&got, 0x5e, sizeof(got));
                cr_assert_eq(get_exact(&messages[k], frame + KVF_WIRE_HEADER_BYTES, cut, &got),
                             -EPROTO, "%s of %zu cut to %zu", messages[k].name, bytes, cut);
                cr_assert_eq(memcmp(&got, before, sizeof(got)), 0, "%s", messages[k].name);
            }
        }
    }
}

Test(wire, a_frame_that_does_not_fit_is_not_begun)
{
    state = 3;
    for (size_t k = 0; k < MESSAGES; k++) {
        size_t bytes = make_frame(&messages[k], 0);
        unsigned char *out = malloc(bytes);
        for (size_t cap = 0; cap < bytes; cap += 1 + cap / 16) {
            unsigned char *small = malloc(cap > 0 ? cap : 1);
            cr_assert_eq(messages[k].put(small, cap, 0, &made), -ENOSPC);
            free(small);
        }
        cr_assert_eq(messages[k].put(out, bytes, 0, &made), (int)bytes, "and fits exactly");
        free(out);
    }
}

/* Any accepted bytes are canonical: flipping bits of good frames, and pure noise. */
Test(wire, damaged_and_random_payloads_are_refused_or_mean_what_they_say)
{
    state = 4;
    for (size_t k = 0; k < MESSAGES; k++) {
        uint32_t accepted = 0;
        for (uint32_t round = 0; round < 3000; round++) {
            size_t bytes = make_frame(&messages[k], 0) - KVF_WIRE_HEADER_BYTES;
            unsigned char *payload = frame + KVF_WIRE_HEADER_BYTES;
            if (round % 3 == 0) {
                for (size_t i = 0; i < bytes; i++) {
                    payload[i] = (unsigned char)rnd();
                }
            } else {
                for (uint32_t i = 0; i <= round % 4; i++) {
                    payload[below((uint32_t)bytes)] ^= (unsigned char)(1u << below(8));
                }
            }
            memset(&got, 0, sizeof(got));
            if (get_exact(&messages[k], payload, bytes, &got) == 0) {
                accepted++;
                assert_canonical(&messages[k], payload, bytes, 0);
            }
        }
        cr_log_info("%s: %u of 3000 accepted\n", messages[k].name, accepted);
    }
}

/* Offsets that nobody encodes on purpose. Each flips one field out of range. */
static void assert_refused(const struct message *message, size_t off, size_t bytes,
                           uint64_t value)
{
    size_t payload_bytes = make_frame(message, 0) - KVF_WIRE_HEADER_BYTES;
    for (size_t i = 0; i < bytes; i++) {
        frame[KVF_WIRE_HEADER_BYTES + off + i] = (unsigned char)(value >> (8 * i));
    }
    cr_assert_eq(get_exact(message, frame + KVF_WIRE_HEADER_BYTES, payload_bytes, &got),
                 -EPROTO, "%s: %lu at %zu", message->name, (unsigned long)value, off);
}

Test(wire, fields_out_of_range_are_refused)
{
    state = 5;
    for (uint32_t round = 0; round < 50; round++) {
        const struct message *hello = &messages[0], *lane = &messages[1],
                             *region = &messages[2];
        const struct message *grant = &messages[3], *ended = &messages[7];
        assert_refused(hello, 32, 1, 5);                 /* transport */
        assert_refused(hello, 33, 1, 3);                 /* placement */
        assert_refused(hello, 34, 1, KVF_LANES_MAX + 1); /* lanes */
        assert_refused(hello, 40, 2, 'a' | '\n' << 8);   /* a name for a log file */
        assert_refused(hello, 71, 1, 'x');               /* a name without an end */
        assert_refused(lane, 8, 4, KVF_LANES_MAX);
        assert_refused(region, 8, 8, 0); /* no pages */
        assert_refused(region, 8, 8, KVF_REGION_PAGES_MAX + 1ull);
        assert_refused(region, 8, 8, UINT64_MAX);
        assert_refused(region, 24, 4, 0); /* no planes */
        assert_refused(region, 24, 4, KVF_WIRE_PLANES_MAX + 1);
        assert_refused(region, 24, 4, UINT32_MAX);
        assert_refused(region, 28, 4, KVF_WIRE_KEYS_MAX + 1);
        assert_refused(grant, 0, 8, 0);  /* nonce */
        assert_refused(grant, 28, 4, 0); /* an empty mask */
        assert_refused(grant, 28, 4, 1u << KVF_LANES_MAX);
        assert_refused(grant, 64, 4, 0); /* no pages */
        assert_refused(grant, 68, 4, 0); /* no runs at all */
        assert_refused(grant, 68, 4, KVF_RUNS_PER_LIST_MAX + 1);
        assert_refused(grant, 72, 4, UINT32_MAX); /* first run */
        assert_refused(grant, 76, 4, 0);          /* no runs here */
        assert_refused(grant, 76, 4, KVF_WIRE_RUNS_PER_FRAME + 1);
        assert_refused(grant, 76, 4, UINT32_MAX);
        assert_refused(grant, 88 + 8, 4, 0); /* an empty run */
        assert_refused(grant, 88 + 8, 4, UINT32_MAX);
        assert_refused(grant, 88 + 4, 4, UINT32_MAX); /* a run over the end of 32 bits */
        assert_refused(grant, 88 + 4, 4, KVF_REGION_PAGES_MAX);
        size_t payload_bytes = make_frame(grant, round) - KVF_WIRE_HEADER_BYTES;
        memcpy(frame + KVF_WIRE_HEADER_BYTES + 80, frame + KVF_WIRE_HEADER_BYTES, 8);
        cr_assert_eq(get_exact(grant, frame + KVF_WIRE_HEADER_BYTES, payload_bytes, &got),
                     -EPROTO, "a grant in its own place");
        assert_refused(&messages[8], 0, 4, KVF_LANES_MAX);
        assert_refused(&messages[8], 8, 4, 1u << 24);           /* queue pair number */
        assert_refused(&messages[8], 12, 4, 1u << 24);          /* packet sequence number */
        assert_refused(&messages[8], 36, 2, KVF_WIRE_KEYS_MAX); /* rail */
        assert_refused(ended, 0, 8, 0);
        assert_refused(ended, 12, 4, 1u << KVF_LANES_MAX);
        const struct message *group = &messages[11];
        assert_refused(group, 0, 8, 0); /* no id */
        assert_refused(group, 16, 4, KVF_GROUP_MEMBERS_MAX);
        assert_refused(group, 20, 4, KVF_GROUP_MEMBERS_MAX);
        assert_refused(group, 20, 4, UINT32_MAX);
        assert_refused(group, 16, 8, UINT64_C(5) << 32 | 5); /* a rank that asks itself */
        assert_refused(group, 24, 1, 0);                     /* states */
        assert_refused(group, 24, 1, KVF_GROUP_NEVER_OPENED + 1);
        assert_refused(group, 24, 2, KVF_GROUP_NEVER_OPENED); /* as a question */
        assert_refused(group, 25, 1, 2);
        assert_refused(group, 26, 2, 1); /* reserved */
        assert_refused(&messages[4], 0, 8, 0);
        assert_refused(&messages[5], 0, 8, 0);
    }
}

Test(wire, planes_that_overlap_their_own_pages_or_the_end_of_addresses_are_refused)
{
    state = 6;
    for (uint32_t round = 0; round < 200; round++) {
        make_region(&made);
        made.region.page_count = 2 + below(1000);
        struct kvf_wire_plane *plane = &made.region.planes[below(made.region.plane_count)];
        switch (round % 5) {
        case 0:
            plane->page_bytes = 0;
            break;
        case 1:
            plane->stride = plane->page_bytes - 1u;
            break;
        case 2:
            plane->off = (UINT64_C(1) << 63) - 1;
            break;
        case 3:
            plane->stride = UINT64_MAX;
            break;
        case 4:
            plane->off = UINT64_MAX - 5;
            break;
        }
        int bytes = kvf_wire_put_region(frame, sizeof(frame), 0, &made.region);
        cr_assert_eq(get_exact(&messages[2], frame + KVF_WIRE_HEADER_BYTES,
                               (size_t)bytes - KVF_WIRE_HEADER_BYTES, &got),
                     -EPROTO, "case %u", round % 5);
    }
}

Test(wire, a_refusing_hello_need_not_describe_lanes_and_a_greeting_one_must)
{
    struct kvf_wire_hello hello = {.version_major = 1, .code = 1027, .name = "gpu0"};
    int bytes = kvf_wire_put_hello(frame, sizeof(frame), 0, &hello);
    cr_assert_eq(bytes, KVF_WIRE_HEADER_BYTES + KVF_WIRE_HELLO_BYTES);
    cr_assert_eq(
        kvf_wire_get_hello(frame + KVF_WIRE_HEADER_BYTES, KVF_WIRE_HELLO_BYTES, &got.hello), 0);
    cr_assert_eq(got.hello.code, 1027);
    hello.code = 0;
    kvf_wire_put_hello(frame, sizeof(frame), 0, &hello);
    cr_assert_eq(
        kvf_wire_get_hello(frame + KVF_WIRE_HEADER_BYTES, KVF_WIRE_HELLO_BYTES, &got.hello),
        -EPROTO);
}

Test(wire, a_header_is_refused_for_each_of_its_fields)
{
    struct kvf_wire_header header = {
        .version_major = 2, .type = KVF_WIRE_PING, .payload_bytes = 8, .seq = 3};
    struct kvf_wire_header back;
    unsigned char bytes[KVF_WIRE_HEADER_BYTES];
    kvf_wire_put_header(bytes, &header);
    cr_assert_eq(kvf_wire_get_header(bytes, &back), 0);
    cr_assert_eq(memcmp(bytes, "kvfC\x02\x0b\0\0\x08\0\0\0\x03\0\0", 16), 0,
                 "the bytes of version 2");
    for (uint32_t type = 0; type < 256; type++) {
        header.type = (uint8_t)type;
        kvf_wire_put_header(bytes, &header);
        int want = type >= KVF_WIRE_HELLO && type <= KVF_WIRE_PONG ? 0 : -ENOTSUP;
        cr_assert_eq(kvf_wire_get_header(bytes, &back), want);
    }
    header.type = KVF_WIRE_PING;
    for (uint32_t off = 0; off < 4; off++) {
        kvf_wire_put_header(bytes, &header);
        bytes[off] ^= 1;
        cr_assert_eq(kvf_wire_get_header(bytes, &back), -EPROTO);
    }
    for (uint32_t off = 6; off < 8; off++) {
        kvf_wire_put_header(bytes, &header);
        bytes[off] = 1;
        cr_assert_eq(kvf_wire_get_header(bytes, &back), -EPROTO);
    }
    header.version_major = 1; /* whose GRANT names no past */
    kvf_wire_put_header(bytes, &header);
    cr_assert_eq(kvf_wire_get_header(bytes, &back), -ENOTSUP);
    header.version_major = 2;
    header.payload_bytes = KVF_WIRE_PAYLOAD_MAX + 1;
    kvf_wire_put_header(bytes, &header);
    cr_assert_eq(kvf_wire_get_header(bytes, &back), -EPROTO);
    header.payload_bytes = KVF_WIRE_PAYLOAD_MAX;
    kvf_wire_put_header(bytes, &header);
    cr_assert_eq(kvf_wire_get_header(bytes, &back), 0);
}

Test(wire, a_full_grant_fragment_fits_a_frame)
{
    cr_assert_leq(kvf_wire_grant_bytes(KVF_WIRE_RUNS_PER_FRAME), FRAME_MAX);
}

/* ---- lane frames -------------------------------------------------------------------------------------------- */

static struct kvf_lane_frame make_lane_frame(void)
{
    struct kvf_lane_frame f = {
        .kind = (uint8_t)(1 + below(3)), .handle = rnd32(), .seq = rnd32()};
    if (f.kind == KVF_LANE_DATA) {
        f.page_count = below(2) ? 1 : 1 + below(1u << 20);
        f.position = below(UINT32_MAX - f.page_count);
        f.plane_first = f.page_count > 1 ? 0 : (uint16_t)below(KVF_WIRE_PLANES_MAX);
        f.plane_count = (uint16_t)(1 + below(KVF_WIRE_PLANES_MAX - f.plane_first));
        f.payload_bytes = 1 + below(UINT32_MAX);
    }
    return f;
}

Test(wire, lane_frames_come_out_as_they_went_in_and_noise_is_refused_or_canonical)
{
    state = 7;
    unsigned char bytes[KVF_LANE_HEADER_BYTES], back[KVF_LANE_HEADER_BYTES];
    struct kvf_lane_frame f, g;
    for (uint32_t round = 0; round < 5000; round++) {
        f = make_lane_frame();
        memset(&g, 0, sizeof(g));
        kvf_wire_put_lane_frame(bytes, &f);
        cr_assert_eq(kvf_wire_get_lane_frame(bytes, &g), 0);
        cr_assert(f.kind == g.kind && f.plane_first == g.plane_first &&
                  f.plane_count == g.plane_count && f.handle == g.handle &&
                  f.position == g.position && f.page_count == g.page_count &&
                  f.payload_bytes == g.payload_bytes && f.seq == g.seq);
        for (uint32_t i = 0; i < 1 + round % 3; i++) {
            bytes[below(sizeof(bytes))] ^= (unsigned char)(1u << below(8));
        }
        if (kvf_wire_get_lane_frame(bytes, &g) == 0) {
            kvf_wire_put_lane_frame(back, &g);
            cr_assert_eq(memcmp(back, bytes, sizeof(bytes)), 0);
        }
    }
}

static int get_lane_frame_of(const struct kvf_lane_frame *f)
{
    unsigned char bytes[KVF_LANE_HEADER_BYTES];
    struct kvf_lane_frame g;
    kvf_wire_put_lane_frame(bytes, f);
    return kvf_wire_get_lane_frame(bytes, &g);
}

Test(wire, lane_frames_out_of_range_are_refused)
{
    const struct kvf_lane_frame good = {
        .kind = KVF_LANE_DATA, .plane_count = 4, .page_count = 1, .payload_bytes = 100};
    struct kvf_lane_frame f = good;
    cr_assert_eq(get_lane_frame_of(&f), 0);
    f.kind = 0;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f.kind = 4;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = good;
    f.page_count = 0;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = good;
    f.plane_count = 0;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f.plane_count = KVF_WIRE_PLANES_MAX + 1;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = good;
    f.plane_first = KVF_WIRE_PLANES_MAX - 3;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = good;
    f.payload_bytes = 0;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = good;
    f.page_count = 2;
    cr_assert_eq(get_lane_frame_of(&f), 0);
    f.plane_first = 1;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO, "several pages travel only whole");
    f = good;
    f.position = UINT32_MAX;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    const struct kvf_lane_frame marker = {.kind = KVF_LANE_DRAIN, .handle = 7};
    f = marker;
    cr_assert_eq(get_lane_frame_of(&f), 0);
    f.payload_bytes = 1;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = marker;
    f.position = 1;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
    f = marker;
    f.page_count = 1;
    cr_assert_eq(get_lane_frame_of(&f), -EPROTO);
}

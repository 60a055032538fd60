#include "tests/torture/schedule.h"

#include <stdbool.h>
#include <string.h>

#include "tests/torture/pattern.h"

/* Shares in thousandths. Of the requests large enough to be donors: */
#define SHARE_IN_FLIGHT 830u
#define SHARE_NEAR_END 20u
/* Of all requests (what is left runs to its end): */
#define SHARE_BEFORE_GRANT 30u
#define SHARE_QUEUED 30u
#define SHARE_TIMEOUT 30u
/* Of the aborted ones: */
#define SHARE_BY_SOURCE 250u
#define SHARE_BY_BOTH 150u
#define SHARE_FORGET_HAND_ON 250u
#define SHARE_FORGET_FREE 100u

/* Decode holds the pages this long per generated token: real answers stream for seconds, and what
 * matters here is that pages of different requests come back out of order. */
#define HOLD_US_PER_TOKEN 20u
#define HOLD_US_MAX 20000u

/* Pages that a source keeps between its abort and its last post, beyond the posted window: what its
 * engine sees of the sink's progress is a little old. */
#define SOURCE_MARGIN_PAGES 4u

/* A stream of random numbers of its own per request, so that a request does not depend on how many
 * numbers the ones before it drew. */
struct dice {
    uint64_t state;
};

static uint64_t roll(struct dice *dice)
{
    dice->state += UINT64_C(0x9e3779b97f4a7c15);
    return kvf_pattern_mix(dice->state);
}

/* In [from, to). The bias of a 64-bit modulus is far below anything a run could show. */
static uint32_t roll_range(struct dice *dice, uint32_t from, uint32_t to)
{
    return from + (uint32_t)(roll(dice) % (to - from));
}

static bool roll_share(struct dice *dice, uint32_t thousandths)
{
    return roll_range(dice, 0, 1000) < thousandths;
}

static enum kvf_abort_kind choose_kind(struct dice *dice, bool may_donate)
{
    uint32_t any = roll_range(dice, 0, 1000);
    if (any < SHARE_BEFORE_GRANT) {
        return KVF_ABORT_BEFORE_GRANT;
    }
    if (any < SHARE_BEFORE_GRANT + SHARE_QUEUED) {
        return KVF_ABORT_QUEUED;
    }
    if (any < SHARE_BEFORE_GRANT + SHARE_QUEUED + SHARE_TIMEOUT) {
        return KVF_ABORT_TIMEOUT;
    }
    uint32_t large = roll_range(dice, 0, 1000);
    if (may_donate && large < SHARE_IN_FLIGHT) {
        return KVF_ABORT_IN_FLIGHT;
    }
    if (may_donate && large < SHARE_IN_FLIGHT + SHARE_NEAR_END) {
        return KVF_ABORT_NEAR_END;
    }
    return KVF_ABORT_NONE;
}

/* A source that has posted its last byte has nothing left to abort: such requests are the sink's. */
static bool may_source_abort(const struct kvf_schedule_config *config,
                             const struct kvf_request *r)
{
    uint64_t page_bytes = config->geometry.page_bytes;
    uint64_t total = r->page_count * page_bytes;
    uint64_t at = total / 1000000 * r->abort_ppm;
    if (r->abort_kind == KVF_ABORT_NEAR_END) {
        return false;
    }
    return r->abort_kind != KVF_ABORT_IN_FLIGHT ||
           at + config->room_window_bytes + SOURCE_MARGIN_PAGES * page_bytes <= total;
}

static void choose_abort(struct dice *dice, const struct kvf_schedule_config *config,
                         struct kvf_request *r)
{
    r->abort_kind = (uint8_t)choose_kind(dice, r->page_count >= config->donor_pages_min);
    r->abort_ppm = r->abort_kind == KVF_ABORT_NEAR_END ? roll_range(dice, 900000, 990000)
                                                       : roll_range(dice, 50000, 650001);
    r->abort_delay_us = r->abort_kind == KVF_ABORT_QUEUED ? roll_range(dice, 200, 5000)
                                                          : roll_range(dice, 2000, 120000);
    uint32_t side = roll_range(dice, 0, 1000);
    if (side < SHARE_BY_SOURCE && may_source_abort(config, r)) {
        r->abort_side = KVF_SIDE_SOURCE;
    } else if (side >= SHARE_BY_SOURCE && side < SHARE_BY_SOURCE + SHARE_BY_BOTH) {
        r->abort_side = KVF_SIDE_BOTH;
    }
    if (roll_share(dice, SHARE_FORGET_HAND_ON)) {
        r->forget = KVF_FORGET_HAND_ON;
    } else if (roll_share(dice, SHARE_FORGET_FREE)) {
        r->forget = KVF_FORGET_FREE;
    }
    if (r->abort_kind == KVF_ABORT_NONE) {
        r->abort_ppm = 0;
        r->abort_side = KVF_SIDE_SINK;
        r->forget = KVF_FORGET_NOT;
    }
}

/* Requests are dealt to pairs of engines in shuffled rounds: every lane gets the same number. */
static void choose_pair(const struct kvf_schedule_config *config, uint32_t idx,
                        struct kvf_request *r)
{
    uint32_t pairs = config->prefill_count * config->decode_count;
    uint32_t deck[256];
    struct dice dice = {kvf_pattern_mix(config->seed) ^ kvf_pattern_mix(idx / pairs)};
    for (uint32_t i = 0; i < pairs; i++) {
        deck[i] = i;
    }
    for (uint32_t i = pairs; i > 1; i--) {
        uint32_t j = roll_range(&dice, 0, i);
        uint32_t swap = deck[i - 1];
        deck[i - 1] = deck[j];
        deck[j] = swap;
    }
    r->prefill = (uint16_t)(deck[idx % pairs] % config->prefill_count);
    r->decode = (uint16_t)(deck[idx % pairs] / config->prefill_count);
}

void kvf_schedule_make(const struct kvf_schedule_config *config, const struct kvf_trace *trace,
                       uint32_t count, struct kvf_request *ret_requests)
{
    for (uint32_t i = 0; i < count; i++) {
        struct kvf_request *r = &ret_requests[i];
        const struct kvf_trace_row *row = &trace->rows[i % trace->row_count];
        struct dice dice = {kvf_pattern_mix(config->seed + UINT64_C(0x5eed)) +
                            (uint64_t)i * UINT64_C(0xd1b54a32d192ed03)};
        uint64_t pages = kvf_geometry_pages(&config->geometry, row->input_tokens);
        uint64_t hold_us = (uint64_t)row->output_tokens * HOLD_US_PER_TOKEN;
        memset(r, 0, sizeof(*r));
        r->key = kvf_pattern_mix(kvf_pattern_mix(config->seed) + i + 1);
        r->label = i % KVF_LABELS;
        r->trace_row = i % trace->row_count;
        r->page_count = pages > config->pages_max ? config->pages_max : (uint32_t)pages;
        r->hold_us = hold_us > HOLD_US_MAX ? HOLD_US_MAX : (uint32_t)hold_us;
        r->piece_count = (uint8_t)roll_range(&dice, 1, 5);
        if (r->piece_count > r->page_count) {
            r->piece_count = (uint8_t)r->page_count;
        }
        choose_pair(config, i, r);
        choose_abort(&dice, config, r);
    }
}

static size_t put(unsigned char *to, size_t at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[at + i] = (unsigned char)(value >> (8 * i));
    }
    return at + bytes;
}

/* Over the values in a fixed order, little-endian, so that the hash is the same on every machine. */
void kvf_schedule_hash(const struct kvf_request *requests, uint32_t count,
                       char ret_hex[KVF_SHA256_HEX_BYTES])
{
    struct kvf_sha256 sha;
    kvf_sha256_init(&sha);
    for (uint32_t i = 0; i < count; i++) {
        const struct kvf_request *r = &requests[i];
        unsigned char bytes[64];
        size_t at = put(bytes, 0, r->key, 8);
        at = put(bytes, at, r->label, 8);
        at = put(bytes, at, r->trace_row, 4);
        at = put(bytes, at, r->page_count, 4);
        at = put(bytes, at, r->abort_ppm, 4);
        at = put(bytes, at, r->abort_delay_us, 4);
        at = put(bytes, at, r->hold_us, 4);
        at = put(bytes, at, r->prefill, 2);
        at = put(bytes, at, r->decode, 2);
        at = put(bytes, at, r->abort_kind, 1);
        at = put(bytes, at, r->abort_side, 1);
        at = put(bytes, at, r->forget, 1);
        at = put(bytes, at, r->piece_count, 1);
        kvf_sha256_add(&sha, bytes, at);
    }
    kvf_sha256_hex(&sha, ret_hex);
}

const char *kvf_abort_kind_name(enum kvf_abort_kind kind)
{
    switch (kind) {
    case KVF_ABORT_NONE:
        return "none";
    case KVF_ABORT_IN_FLIGHT:
        return "in_flight";
    case KVF_ABORT_NEAR_END:
        return "near_end";
    case KVF_ABORT_BEFORE_GRANT:
        return "before_grant";
    case KVF_ABORT_QUEUED:
        return "queued";
    case KVF_ABORT_TIMEOUT:
        return "timeout";
    case KVF_ABORT_KINDS:
        break;
    }
    return "?";
}

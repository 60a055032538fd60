/* What will be asked of the fleet, decided before anything runs: which request, how large, through which
 * engines, and whether, when and by whom it is aborted. It follows from the trace, the geometry and the
 * seed alone, so that every release policy meets the same requests; its hash is printed to prove it. */
#ifndef KVF_TORTURE_SCHEDULE_H
#define KVF_TORTURE_SCHEDULE_H

#include <stdint.h>

#include "tests/torture/geometry.h"
#include "tests/torture/sha256.h"
#include "tests/torture/trace.h"

/* When a request is aborted. */
enum kvf_abort_kind {
    KVF_ABORT_NONE = 0,
    KVF_ABORT_IN_FLIGHT,    /* at a share of its bytes, uniform in 5..65 % */
    KVF_ABORT_NEAR_END,     /* at 90..99 % */
    KVF_ABORT_BEFORE_GRANT, /* right after it was opened */
    KVF_ABORT_QUEUED,       /* while it waits for a grant, some time after it was opened */
    KVF_ABORT_TIMEOUT,      /* some time after it was opened, wherever it stands then */
    KVF_ABORT_KINDS
};

/* Which engine calls kvf_abort. */
enum kvf_abort_side { KVF_SIDE_SINK = 0, KVF_SIDE_SOURCE, KVF_SIDE_BOTH, KVF_ABORT_SIDES };

/* How a release path forgets to ask the room (used by the policies ledger and forgetful only). */
enum kvf_forget_path {
    KVF_FORGET_NOT = 0,
    KVF_FORGET_HAND_ON, /* the pages go to the next owner in line */
    KVF_FORGET_FREE,    /* the pages go to the free list, for any request */
};

struct kvf_request {
    uint64_t key;   /* unique */
    uint64_t label; /* recycled, as engines recycle room numbers */
    uint32_t trace_row;
    uint32_t page_count;
    uint32_t abort_ppm;      /* IN_FLIGHT, NEAR_END: millionths of its bytes */
    uint32_t abort_delay_us; /* QUEUED, TIMEOUT: after open */
    uint32_t hold_us;        /* how long decode keeps the pages after Success */
    uint16_t prefill;
    uint16_t decode;
    uint8_t abort_kind;
    uint8_t abort_side;
    uint8_t forget;
    uint8_t piece_count; /* in how many pieces the source submits */
    uint8_t pad_[4];
};

struct kvf_schedule_config {
    uint64_t seed;
    uint32_t prefill_count;
    uint32_t decode_count;
    uint32_t pages_max;       /* longer prompts are cut */
    uint32_t donor_pages_min; /* smaller ones are never aborted in flight */
    uint64_t
        room_window_bytes; /* a source aborts in flight only where its last post is still to come */
    struct kvf_geometry geometry;
};

#define KVF_LABELS 64u /* labels in use: recycled on purpose */

/* Fills `count` requests; the trace is gone through again and again. Deterministic. */
void kvf_schedule_make(const struct kvf_schedule_config *config, const struct kvf_trace *trace,
                       uint32_t count, struct kvf_request *ret_requests);
void kvf_schedule_hash(const struct kvf_request *requests, uint32_t count,
                       char ret_hex[KVF_SHA256_HEX_BYTES]);
const char *kvf_abort_kind_name(enum kvf_abort_kind kind);

#endif

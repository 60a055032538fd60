/* A reuse probe: the next owner of pages writes its canary into all of them through the engine's own
 * mapping, and then looks whether every byte stays. It opens no room and asks nobody. */
#ifndef KVF_TORTURE_PROBE_H
#define KVF_TORTURE_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/torture/engine.h"

struct kvf_probe {
    uint64_t owner_key; /* of the canary */
    uint64_t donor_key; /* of the request whose pages these were */
    uint64_t began_ns;
    uint64_t swept_ns;
    uint64_t foreign_bytes; /* seen by the last sweep */
    uint64_t owned_bytes;   /* of these, the donor's own pattern */
    bool is_out;
};

/* Writes the canary into all bytes of the pages. */
void kvf_probe_begin(struct kvf_engine *engine, struct kvf_probe *probe, const int32_t *pages,
                     uint32_t page_count, uint64_t donor_key);
/* Looks at every byte. */
void kvf_probe_sweep(struct kvf_engine *engine, struct kvf_probe *probe, const int32_t *pages,
                     uint32_t page_count);

#endif

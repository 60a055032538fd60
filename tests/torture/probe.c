#include "tests/torture/probe.h"

#include "tests/torture/pattern.h"

#define OWNER_FAMILY UINT64_C(0x6e6578746f776e72)

void kvf_probe_begin(struct kvf_engine *engine, struct kvf_probe *probe, const int32_t *pages,
                     uint32_t page_count, uint64_t donor_key)
{
    const struct kvf_geometry *g = &engine->plan->geometry;
    probe->is_out = true;
    probe->donor_key = donor_key;
    probe->owner_key = kvf_pattern_mix(donor_key ^ OWNER_FAMILY);
    probe->foreign_bytes = 0;
    probe->owned_bytes = 0;
    for (uint32_t plane = 0; plane < g->plane_count; plane++) {
        for (uint32_t i = 0; i < page_count; i++) {
            kvf_pattern_fill(kvf_engine_piece(engine, pages[i], plane), g->piece_bytes,
                             kvf_canary_seed(probe->owner_key, i, plane));
        }
    }
    probe->began_ns = kvf_torture_now_ns();
    probe->swept_ns = probe->began_ns;
}

void kvf_probe_sweep(struct kvf_engine *engine, struct kvf_probe *probe, const int32_t *pages,
                     uint32_t page_count)
{
    const struct kvf_geometry *g = &engine->plan->geometry;
    uint64_t foreign = 0;
    uint64_t owned = 0;
    for (uint32_t plane = 0; plane < g->plane_count; plane++) {
        for (uint32_t i = 0; i < page_count; i++) {
            const unsigned char *piece = kvf_engine_piece(engine, pages[i], plane);
            uint64_t seed = kvf_canary_seed(probe->owner_key, i, plane);
            size_t wrong = kvf_pattern_check(piece, g->piece_bytes, seed);
            if (wrong != 0) {
                foreign += wrong;
                owned += kvf_pattern_attribute(piece, g->piece_bytes, seed,
                                               kvf_pattern_seed(probe->donor_key, i, plane));
            }
        }
    }
    probe->foreign_bytes = foreign;
    probe->owned_bytes = owned;
    probe->swept_ns = kvf_torture_now_ns();
}

/* Page geometries named after real models. The piece of a page in one plane (one layer's K or V buffer)
 * keeps its real size, since that is what a transfer scatters by; how many planes and how many tokens
 * there are is divided by stated factors so that a run fits on a small machine. */
#ifndef KVF_TORTURE_GEOMETRY_H
#define KVF_TORTURE_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>

struct kvf_geometry_preset {
    const char *name;
    const char *about;
    uint32_t plane_count; /* of the real model */
    uint32_t piece_bytes; /* of one page in one plane */
    uint32_t page_tokens;
    uint32_t plane_divisor; /* defaults */
    uint32_t token_divisor;
};

/* What a run uses. Planes lie one after the other, as an engine's layer buffers do:
 * piece (page, plane) begins at plane * page_count * piece_bytes + page * piece_bytes. */
struct kvf_geometry {
    char name[32];
    uint32_t plane_count;
    uint32_t piece_bytes;
    uint32_t page_tokens;
    uint32_t plane_divisor;
    uint32_t token_divisor;
    uint32_t page_bytes; /* over all planes */
};

/* Presets by number; NULL past the last. */
const struct kvf_geometry_preset *kvf_geometry_preset_at(size_t i);
/* divisors: 0 takes the preset's. 0; -ENOENT no such preset; -ERANGE a divisor leaves no plane. */
int kvf_geometry_make(const char *preset, uint32_t plane_divisor, uint32_t token_divisor,
                      struct kvf_geometry *ret_geometry);
/* Pages that a prompt of so many tokens needs after the division, at least 1. */
uint64_t kvf_geometry_pages(const struct kvf_geometry *geometry, uint64_t tokens);
uint64_t kvf_geometry_region_bytes(const struct kvf_geometry *geometry, uint64_t page_count);
/* Byte offset of a piece in a region of page_count pages. */
uint64_t kvf_geometry_piece_off(const struct kvf_geometry *geometry, uint64_t page_count,
                                uint64_t page, uint32_t plane);

#endif

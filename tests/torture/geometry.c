#include "tests/torture/geometry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct kvf_geometry_preset presets[] = {
    /* 80 layers x K and V; 16 tokens x 1 KV head (8 heads over 8 ranks) x 128 x 2 bytes. */
    {"llama3-70b-tp8", "Llama-3-70B at TP8, 16-token pages: 160 planes of 4 KiB", 160, 4096, 16,
     10, 16},
    /* 61 layers, one latent buffer each: 64 tokens x (512 + 64) x 2 bytes. */
    {"deepseek-v3-mla", "DeepSeek-V3 MLA, 64-token pages: 61 planes of 72 KiB", 61, 73728, 64,
     61, 4},
};

const struct kvf_geometry_preset *kvf_geometry_preset_at(size_t i)
{
    return i < sizeof(presets) / sizeof(presets[0]) ? &presets[i] : NULL;
}

int kvf_geometry_make(const char *preset, uint32_t plane_divisor, uint32_t token_divisor,
                      struct kvf_geometry *ret_geometry)
{
    const struct kvf_geometry_preset *p = NULL;
    for (size_t i = 0; (p = kvf_geometry_preset_at(i)) != NULL; i++) {
        if (strcmp(p->name, preset) == 0) {
            break;
        }
    }
    if (p == NULL) {
        return -ENOENT;
    }
    struct kvf_geometry g = {.piece_bytes = p->piece_bytes, .page_tokens = p->page_tokens};
    g.plane_divisor = plane_divisor == 0 ? p->plane_divisor : plane_divisor;
    g.token_divisor = token_divisor == 0 ? p->token_divisor : token_divisor;
    g.plane_count = p->plane_count / g.plane_divisor;
    if (g.plane_count == 0) {
        return -ERANGE;
    }
    g.page_bytes = g.plane_count * g.piece_bytes;
    snprintf(g.name, sizeof(g.name), "%s", p->name);
    *ret_geometry = g;
    return 0;
}

uint64_t kvf_geometry_pages(const struct kvf_geometry *geometry, uint64_t tokens)
{
    uint64_t fewer = (tokens + geometry->token_divisor - 1) / geometry->token_divisor;
    uint64_t pages = (fewer + geometry->page_tokens - 1) / geometry->page_tokens;
    return pages == 0 ? 1 : pages;
}

uint64_t kvf_geometry_region_bytes(const struct kvf_geometry *geometry, uint64_t page_count)
{
    return page_count * geometry->page_bytes;
}

uint64_t kvf_geometry_piece_off(const struct kvf_geometry *geometry, uint64_t page_count,
                                uint64_t page, uint32_t plane)
{
    return ((uint64_t)plane * page_count + page) * geometry->piece_bytes;
}

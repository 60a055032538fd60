/* Memory of the cores: used again and again, by one worker after another. */
#include <string.h>

#include "sidecar/core/internal.h"
#include "tests/sim/parts.h"

/* All of it but the tails of the peers' region tables, which are most of it and stay zero: wire numbers of
 * regions are below SIM_CLIENTS times the regions of a client. Pages fresh from the kernel would cost more. */
static void wipe(const struct sim_world *w, struct sim_host *h)
{
    unsigned char *memory = h->core_memory;
    if (h->peers_off == 0) {
        return; /* never used */
    }
    size_t head_bytes =
        offsetof(struct kvf_peer, remote) +
        SIM_CLIENTS * KVF_REGIONS_PER_CLIENT_MAX * sizeof(struct kvf_remote_region);
    memset(memory, 0, h->peers_off);
    for (uint32_t i = 0; i < SIM_PEERS; i++) {
        memset(memory + h->peers_off + i * sizeof(struct kvf_peer), 0, head_bytes);
    }
    size_t end_off = h->peers_off + SIM_PEERS * sizeof(struct kvf_peer);
    memset(memory + end_off, 0, w->core_bytes - end_off);
}

void sim_core_make(const struct sim_world *w, struct sim_host *h,
                   const struct kvf_core_config *config, const uint64_t seed[4])
{
    wipe(w, h);
    h->core = kvf_core_init(h->core_memory, &w->limits, config, seed);
    h->peers_off = (size_t)((unsigned char *)h->core->peers - (unsigned char *)h->core_memory);
}

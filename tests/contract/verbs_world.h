/* One transport verbs over fake devices, with a host that keeps what it is told: for tests of what happens between
 * the transport and its devices, where no second end is needed. */
#ifndef KVF_TESTS_CONTRACT_VERBS_WORLD_H
#define KVF_TESTS_CONTRACT_VERBS_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "sidecar/transport/transport.h"
#include "tests/fake_verbs/fake_verbs.h"

#define WORLD_LANES 16u
#define WORLD_EPOCH 1u
#define WORLD_TOLD 256u
#define WORLD_BYTES UINT64_C(65536)
#define WORLD_BASE UINT64_C(0x700000000000)

struct world {
    struct kvf_transport *t;
    int create_err;
    char why[200];
    struct kvf_lane_end ends[WORLD_LANES];
    bool ready[WORLD_LANES];
    int lost[WORLD_LANES];
    bool fenced[WORLD_LANES];
    /* flushes, in the order of their answers */
    uint32_t told;
    bool is_told; /* at least one */
    uint64_t cookies[WORLD_TOLD];
    int errs[WORLD_TOLD];
    /* of rails, the last word of each; by the number in the device's name */
    uint32_t rail_told[FAKE_DEVICES + 6u];
    int rail_errs[FAKE_DEVICES + 6u];
    bool rail_is_final[FAKE_DEVICES + 6u];
    int memfd; /* stands for a dma-buf of WORLD_BYTES */
    struct kvf_verbs_memory *memory;
};

/* Devices "fakeN" for each digit N of `rails`, which the caller has set as they shall be (fake_reset first). lib NULL: the
 * fake's own. A lane that is lost is fenced at once, as the core does with its next action. */
void world_begin(struct world *w, const char *rails, const struct kvf_verbs_lib *lib);
/* Until that is true, or for as long as such a thing ever takes. */
bool world_until(struct world *w, const bool *flag);
void world_turn(struct world *w);
void world_turns(struct world *w, uint32_t count);
void world_wait_told(struct world *w, uint32_t count);
int world_open_sink(struct world *w, uint32_t lane);
/* The devices take dma-bufs from here on. */
int world_take_memory(struct world *w);
/* Everything is given back: no object of the devices is left. */
void world_end(struct world *w);
uint64_t world_reads(void);
uint64_t world_objects(void);
uint64_t world_qps_made(void);

#endif

/* What tests of transport verbs need beside the rig: its parts, and what it was told. */
#ifndef KVF_TESTS_CONTRACT_RIG_VERBS_H
#define KVF_TESTS_CONTRACT_RIG_VERBS_H

#include "tests/contract/rig.h"
#include "tests/fake_verbs/fake_verbs.h"

#define RIG_SOURCE_DEVICE 0u
#define RIG_SINK_DEVICE 1u

/* For rigs created from now on. `rails` are the rig's own. */
extern struct kvf_verbs_config rig_verbs_config;
extern uint32_t
    rig_verbs_rails; /* 1 or 2 an end, of the fake: fake0 and fake2, fake1 and fake3 */
extern bool rig_verbs_keeps_fake; /* the next rig finds the fake as it is: nothing is reset */
extern bool rig_verbs_leaves_something; /* this test's devices keep objects at the end */

/* What real devices get instead of rig_verbs_config's: 18 and 6 (1 s, seven times), as emulated ones share their
 * processor with much else. */
extern uint8_t rig_verbs_real_timeout;
extern uint8_t rig_verbs_real_retry;

/* NULL, or why the fake is not there: KVF_RIG_VERBS names real devices. */
const char *rig_verbs_is_real(void);
struct kvf_transport *rig_verbs_transport(struct rig_end *end);
/* This end's end of the lane, as ready_fn told it last. */
const struct kvf_lane_end *rig_verbs_lane_end(const struct rig_end *end, uint32_t lane);
struct kvf_verbs_memory *rig_verbs_memory(const struct rig_end *end, uint32_t region);
/* What the source is told of the sink's region instead of the truth. NULL: the truth. */
void rig_verbs_lie(struct rig *rig, const struct kvf_remote_view *view);
/* The steps of lane_open. */
int rig_verbs_open(struct rig_end *end, uint32_t lane, uint32_t epoch,
                   const struct kvf_lane_end *peer);
bool rig_verbs_wait_ready(struct rig_end *end, uint32_t lane);
/* Asks for a fence and does not wait for it, as a core does. */
void rig_verbs_ask_fence(struct rig_end *end, uint32_t lane, uint32_t epoch);

#endif

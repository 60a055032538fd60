/* Makes a failing scenario smaller, as long as it fails in the same way. */
#ifndef KVF_TESTS_SIM_SHRINK_H
#define KVF_TESTS_SIM_SHRINK_H

#include "tests/sim/options.h"
#include "tests/sim/world.h"

/* What a play in a child process came to. A crash is a verdict like others. */
struct sim_outcome {
    struct sim_failure failure;
    struct sim_figures figures;
    uint64_t hash;
};

/* Plays one scenario in a child, so that an assert of the core ends that child and not us. Of the child: its
 * standard error is closed unless is_loud. */
void sim_play(const struct sim_scenario *scenario, uint32_t plants, bool is_loud,
              struct sim_outcome *ret_outcome);
/* *scenario fails. Takes out operations and simplifies what is left; *ret_easy gets the steps. Returns the number of
 * plays it took. */
uint32_t sim_shrink(struct sim_scenario *scenario, uint32_t plants, uint16_t *ret_easy);

#endif

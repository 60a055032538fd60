/* What kvfence-sim was asked for. */
#ifndef KVF_TESTS_SIM_OPTIONS_H
#define KVF_TESTS_SIM_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/scenario.h"

#define SIM_JOBS_MAX 256u

struct sim_options {
    uint64_t seeds;
    uint64_t from;
    uint32_t jobs;
    bool has_seeds;
    bool is_one; /* --seed: play `from` alone, with its history */
    bool is_json;
    bool is_traced; /* the whole history, not only what concerns the failure */
    bool has_no_shrink;
    bool has_keep;
    enum sim_flavour flavour; /* SIM_FLAVOURS: the seed chooses */
    enum sim_traffic traffic; /* SIM_TRAFFICS: the seed chooses */
    uint32_t plants;          /* bits by enum sim_plant */
    bool is_kept[SIM_OPS_MAX];
    uint16_t easy[SIM_OPS_MAX]; /* bits by step of sim_op_ease */
};

enum sim_exit {
    SIM_EXIT_PASSED = 0,
    SIM_EXIT_FAILED = 1,
    SIM_EXIT_USAGE = 2,
    SIM_EXIT_DOES_NOT_COUNT = 4,
    SIM_EXIT_GO_ON = -1
};

/* SIM_EXIT_GO_ON, or the status to end with: help and version were printed, or what was wrong was said. */
int sim_options_parse(int argc, char **argv, struct sim_options *ret_options);
/* Takes out what was not kept and applies the simplifications. */
void sim_options_apply(const struct sim_options *options, struct sim_scenario *scenario);
/* The command line that plays this scenario again, as far as it differs from its seed's. */
void sim_options_print(const struct sim_options *options, uint64_t seed,
                       const struct sim_scenario *scenario, const uint16_t *easy);

#endif

/* The contract over the simulated stream. */
#include <criterion/criterion.h>

#include "tests/contract/suite.h"

#define KVF_CONTRACT_TEST(name)                                                                \
    Test(sim, name)                                                                            \
    {                                                                                          \
        contract_##name(&rig_sim_kind);                                                        \
    }
KVF_CONTRACT_TESTS(KVF_CONTRACT_TEST)

/* The contract over the simulated NIC. What a NIC cannot promise by its nature is skipped; the reasons stand in
 * rig_sim_nic_kind. */
#include <criterion/criterion.h>

#include "tests/contract/suite.h"

#define KVF_CONTRACT_TEST(name)                                                                \
    Test(sim_nic, name)                                                                        \
    {                                                                                          \
        contract_##name(&rig_sim_nic_kind);                                                    \
    }
KVF_CONTRACT_TESTS(KVF_CONTRACT_TEST)

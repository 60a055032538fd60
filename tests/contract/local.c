/* The contract over local. */
#include <criterion/criterion.h>

#include "tests/contract/suite.h"

#define KVF_CONTRACT_TEST(name)                                                                \
    Test(local, name)                                                                          \
    {                                                                                          \
        contract_##name(&rig_local_kind);                                                      \
    }
KVF_CONTRACT_TESTS(KVF_CONTRACT_TEST)

/* The contract over tcp. */
#include <criterion/criterion.h>

#include "tests/contract/suite.h"

#define KVF_CONTRACT_TEST(name)                                                                \
    Test(tcp, name)                                                                            \
    {                                                                                          \
        contract_##name(&rig_tcp_kind);                                                        \
    }
KVF_CONTRACT_TESTS(KVF_CONTRACT_TEST)

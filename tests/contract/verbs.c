/* The contract over verbs: over fake devices, or over those that KVF_RIG_VERBS names. */
#include <criterion/criterion.h>

#include "tests/contract/rig_verbs.h"
#include "tests/contract/suite.h"

#define KVF_CONTRACT_TEST(name)                                                                \
    Test(verbs, name)                                                                          \
    {                                                                                          \
        bool is_real = rig_verbs_is_real() != NULL;                                            \
        contract_##name(is_real ? &rig_verbs_real_kind : &rig_verbs_kind);                     \
    }
KVF_CONTRACT_TESTS(KVF_CONTRACT_TEST)

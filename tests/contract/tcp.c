/* The contract over tcp. Built once per engine; KVF_RIG_KIND is its rig. */
#include <criterion/criterion.h>

#include "tests/contract/suite.h"

static void skip_unless_allowed(void)
{
    const struct rig_kind *kind = &KVF_RIG_KIND;
    const char *reason = kind->refused_because == NULL ? NULL : kind->refused_because();
    if (reason != NULL) {
        cr_skip_test("%s", reason);
    }
}

TestSuite(tcp, .init = skip_unless_allowed);

#define KVF_CONTRACT_TEST(name)                                                                \
    Test(tcp, name)                                                                            \
    {                                                                                          \
        contract_##name(&KVF_RIG_KIND);                                                        \
    }
KVF_CONTRACT_TESTS(KVF_CONTRACT_TEST)

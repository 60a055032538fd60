/* The words that say how a proxy misbehaves. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "tests/proxy/rule.h"

static struct kvf_rule rule_of(const char *text)
{
    struct kvf_rule rule;
    char why[200] = "";
    int rc = kvf_rule_parse(text, strlen(text), &rule, why, sizeof why);
    cr_assert_eq(rc, 0, "%s: %s", text, why);
    return rule;
}

static void expect_refused(const char *text, const char *words)
{
    struct kvf_rule rules[4];
    char why[200] = "";
    cr_assert_eq(kvf_rules_parse(text, rules, 4, why, sizeof why), -EINVAL, "%s", text);
    cr_assert(strstr(why, words) != NULL, "%s: \"%s\" does not say \"%s\"", text, why, words);
}

Test(rule, a_bare_action_holds_at_once_for_good_and_for_all)
{
    struct kvf_rule rule = rule_of("delay:5");
    cr_assert_eq(rule.action, KVF_RULE_DELAY);
    cr_assert_eq(rule.value, 5000000u);
    cr_assert_eq(rule.at, 0u);
    cr_assert_not(rule.is_at_bytes);
    cr_assert_eq(rule.for_ns, 0u);
    cr_assert_eq(rule.kinds, KVF_KINDS_ALL);
    cr_assert_eq(rule.directions, 3u);
    cr_assert_eq(rule.lane, KVF_LANE_ANY);
}

Test(rule, a_moment_and_a_length_are_times_and_a_place_is_bytes)
{
    struct kvf_rule rule = rule_of("stall@2s:500ms");
    cr_assert_not(rule.is_at_bytes);
    cr_assert_eq(rule.at, UINT64_C(2000000000));
    cr_assert_eq(rule.for_ns, UINT64_C(500000000));
    rule = rule_of("reset@64K/lane3");
    cr_assert(rule.is_at_bytes);
    cr_assert_eq(rule.at, 65536u);
    cr_assert_eq(rule.kinds, KVF_KIND_LANE);
    cr_assert_eq(rule.lane, 3u);
    rule = rule_of("cut/back@5s:1500ms");
    cr_assert_eq(rule.directions, 1u << KVF_BACK);
    cr_assert_eq(rule.at, UINT64_C(5000000000));
    cr_assert_eq(rule.for_ns, UINT64_C(1500000000));
    rule = rule_of("corrupt@100/back/control");
    cr_assert_eq(rule.at, 100u);
    cr_assert_eq(rule.directions, 1u << KVF_BACK);
    cr_assert_eq(rule.kinds, KVF_KIND_CONTROL);
}

Test(rule, a_list_is_all_of_its_rules_or_nothing)
{
    struct kvf_rule rules[4];
    char why[200];
    cr_assert_eq(kvf_rules_parse("split:7,delay:5,cut/back", rules, 4, why, sizeof why), 3);
    cr_assert_eq(rules[0].action, KVF_RULE_SPLIT);
    cr_assert_eq(rules[2].directions, 1u << KVF_BACK);
    memset(rules, 0x55, sizeof rules);
    struct kvf_rule before = rules[0];
    cr_assert_eq(kvf_rules_parse("split:7,nonsense", rules, 4, why, sizeof why), -EINVAL);
    cr_assert_eq(memcmp(&before, &rules[0], sizeof before), 0, "a refused list left something");
}

Test(rule, what_is_wrong_is_refused_with_what_is_right)
{
    expect_refused("", "characters");
    expect_refused("split:7,", "characters");
    expect_refused("slow", "there are delay");
    expect_refused("split", "1 to 65536");
    expect_refused("split:0", "1 to 65536");
    expect_refused("split:65537", "1 to 65536");
    expect_refused("delay:60001", "1 to 60000");
    expect_refused("delay:-1", "1 to 60000");
    expect_refused("stall:5", "takes no value");
    expect_refused("stall@soon", "neither a moment");
    expect_refused("stall@2s:often", "no length");
    expect_refused("stall@2s:0ms", "no length");
    expect_refused("reset@1s/lane@2s", "one @");
    expect_refused("reset@1X", "neither a moment");
    expect_refused("reset/lane8", "no place");
    expect_refused("reset/somewhere", "no place");
    expect_refused("cut", "its direction");
    expect_refused("cut/forth/back", "its direction");
    expect_refused("corrupt@10", "its direction");
    expect_refused("stall@99999999999999999999s", "neither a moment");
    expect_refused("stall,stall,stall,stall,stall", "more than 4");
}

#include "tests/proxy/rule.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RULE_BYTES_MAX 120u
#define NS_PER_MS UINT64_C(1000000)
#define DELAY_MS_MAX 60000u
#define RATE_MAX 100000u
#define SPLIT_MAX 65536u

const char kvf_rules_help[] =
    "A rule is ACTION[:VALUE][@WHEN[:FOR]][/WHERE...], several stand with commas between "
    "them.\n"
    "  delay:MS     every byte comes so much later, each way\n"
    "  rate:MB      so many MB/s, each way of each connection\n"
    "  split:N      writes of 1 to N bytes, as the seed says\n"
    "  stall        connections stay open, nothing is forwarded\n"
    "  cut/forth, cut/back   the same in one direction\n"
    "  reset        both ends get a reset: connections that are open at that moment, or each "
    "at that place\n"
    "  drop         connections are closed; while it holds, connecting is refused\n"
    "  corrupt/forth, corrupt/back   one bit of one byte is flipped, in the same connections\n"
    "WHEN   500ms, 2s: so long after the rule was given; 4096, 64K, 1M: at that place of a "
    "stream.\n"
    "       FOR, a time, ends it. Without WHEN at once, without FOR for good.\n"
    "WHERE  /control, /lane or /lane0 to /lane7: connections of that kind, told by their first "
    "frame;\n"
    "       /forth: from the side that connects, /back: to it. Without it all of them.\n"
    "Examples: split:7   delay:5   stall@2s:500ms   cut/back   reset@1M/lane0   "
    "corrupt@100/back/lane\n";

struct parse {
    char text[RULE_BYTES_MAX];
    char *why;
    size_t why_cap;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct parse *p,
                                                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(p->why, p->why_cap, format, args);
    va_end(args);
    return -EINVAL;
}

/* Digits, then a unit. False if there are no digits or too many. */
static bool read_number(const char *text, uint64_t *ret_value, const char **ret_unit)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    *ret_value = value;
    *ret_unit = end;
    return errno == 0 && value <= UINT64_MAX >> 31;
}

static bool read_time(const char *text, uint64_t *ret_ns)
{
    const char *unit;
    uint64_t value;
    if (!read_number(text, &value, &unit)) {
        return false;
    }
    if (strcmp(unit, "ms") == 0) {
        *ret_ns = value * NS_PER_MS;
    } else if (strcmp(unit, "s") == 0) {
        *ret_ns = value * 1000u * NS_PER_MS;
    } else if (strcmp(unit, "us") == 0) {
        *ret_ns = value * 1000u;
    } else {
        return false;
    }
    return true;
}

static bool read_size(const char *text, uint64_t *ret_bytes)
{
    static const char units[] = "KMG";
    const char *unit;
    uint64_t value;
    if (!read_number(text, &value, &unit)) {
        return false;
    }
    if (unit[0] == '\0') {
        *ret_bytes = value;
        return true;
    }
    const char *known = strchr(units, unit[0]);
    if (known == NULL || unit[1] != '\0') {
        return false;
    }
    *ret_bytes = value << 10 * (unsigned int)(known - units + 1);
    return true;
}

static const struct {
    const char *name;
    const char *value; /* what it must be; NULL: there is none */
    uint64_t max;
    uint64_t factor;
    bool needs_direction;
} actions[KVF_RULE_ACTIONS] = {
    [KVF_RULE_DELAY] = {"delay", "1 to 60000 ms", DELAY_MS_MAX, NS_PER_MS, false},
    [KVF_RULE_RATE] = {"rate", "1 to 100000 MB/s", RATE_MAX, 1000000, false},
    [KVF_RULE_SPLIT] = {"split", "1 to 65536 bytes", SPLIT_MAX, 1, false},
    [KVF_RULE_STALL] = {"stall", NULL, 0, 0, false},
    [KVF_RULE_CUT] = {"cut", NULL, 0, 0, true},
    [KVF_RULE_RESET] = {"reset", NULL, 0, 0, false},
    [KVF_RULE_DROP] = {"drop", NULL, 0, 0, false},
    [KVF_RULE_CORRUPT] = {"corrupt", NULL, 0, 0, true},
};

static int take_action(struct parse *p, char *word, struct kvf_rule *rule)
{
    char *value = strchr(word, ':');
    if (value != NULL) {
        *value++ = '\0';
    }
    uint32_t i = 0;
    while (i < KVF_RULE_ACTIONS && strcmp(actions[i].name, word) != 0) {
        i++;
    }
    if (i == KVF_RULE_ACTIONS) {
        return refuse(p,
                      "no action is called '%s'; there are delay, rate, split, stall, cut, "
                      "reset, drop and corrupt",
                      word);
    }
    rule->action = (enum kvf_rule_action)i;
    if (actions[i].value == NULL) {
        return value == NULL ? 0 : refuse(p, "%s takes no value", word);
    }
    const char *unit = "";
    uint64_t number = 0;
    if (value == NULL || !read_number(value, &number, &unit) || number == 0 ||
        number > actions[i].max || (unit[0] != '\0' && strcmp(unit, "ms") != 0)) {
        return refuse(p, "%s needs a value: %s", word, actions[i].value);
    }
    rule->value = number * actions[i].factor;
    return 0;
}

static int take_when(const struct parse *p, char *word, struct kvf_rule *rule)
{
    char *length = strchr(word, ':');
    if (length != NULL) {
        *length++ = '\0';
        if (!read_time(length, &rule->for_ns) || rule->for_ns == 0) {
            return refuse(p, "'%s' is no length of time: 500ms or 2s, for example", length);
        }
    }
    if (read_time(word, &rule->at)) {
        return 0;
    }
    rule->is_at_bytes = true;
    return read_size(word, &rule->at)
               ? 0
               : refuse(p, "'%s' is neither a moment (2s) nor a place (64K)", word);
}

static int take_where(const struct parse *p, const char *word, struct kvf_rule *rule)
{
    if (strcmp(word, "forth") == 0 || strcmp(word, "back") == 0) {
        rule->directions |= (uint8_t)(1u << (word[0] == 'f' ? KVF_FORTH : KVF_BACK));
    } else if (strcmp(word, "control") == 0) {
        rule->kinds |= KVF_KIND_CONTROL;
    } else if (strncmp(word, "lane", 4) == 0 && word[4] == '\0') {
        rule->kinds |= KVF_KIND_LANE;
    } else if (strncmp(word, "lane", 4) == 0 && word[4] >= '0' && word[4] <= '7' &&
               word[5] == '\0') {
        rule->kinds |= KVF_KIND_LANE;
        rule->lane = (uint8_t)(word[4] - '0');
    } else {
        return refuse(p, "'/%s' is no place: /control, /lane, /lane0, /forth, /back", word);
    }
    return 0;
}

int kvf_rule_parse(const char *text, size_t bytes, struct kvf_rule *ret_rule, char *ret_why,
                   size_t why_cap)
{
    struct parse p = {.why = ret_why, .why_cap = why_cap};
    struct kvf_rule rule = {.lane = KVF_LANE_ANY};
    if (bytes == 0 || bytes >= sizeof p.text) {
        return refuse(&p, "a rule has 1 to %u characters", RULE_BYTES_MAX - 1u);
    }
    memcpy(p.text, text, bytes);
    char *rest = p.text;
    bool has_when = false;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && rest != NULL; i++) {
        char *word = strsep(&rest, "/");
        char *when =
            strchr(word, '@'); /* behind any of the words: cut/back@2s and cut@2s/back */
        if (when != NULL) {
            *when++ = '\0';
        }
        rc = i == 0 ? take_action(&p, word, &rule) : take_where(&p, word, &rule);
        if (rc == 0 && when != NULL) {
            rc = has_when ? refuse(&p, "one @ is enough") : take_when(&p, when, &rule);
            has_when = true;
        }
    }
    if (rc != 0) {
        return rc;
    }
    if (actions[rule.action].needs_direction && rule.directions != 1u << KVF_FORTH &&
        rule.directions != 1u << KVF_BACK) {
        return refuse(&p, "%s needs its direction: /forth or /back", actions[rule.action].name);
    }
    rule.kinds = rule.kinds == 0 ? KVF_KINDS_ALL : rule.kinds;
    rule.directions = rule.directions == 0 ? 3u : rule.directions;
    *ret_rule = rule;
    return 0;
}

int kvf_rules_parse(const char *text, struct kvf_rule *ret_rules, uint32_t max, char *ret_why,
                    size_t why_cap)
{
    struct kvf_rule rules[KVF_RULES_MAX];
    uint32_t count = 0;
    for (;;) {
        size_t bytes = strcspn(text, ",");
        if (count == KVF_RULES_MAX || count == max) {
            snprintf(ret_why, why_cap, "more than %u rules",
                     max < KVF_RULES_MAX ? max : KVF_RULES_MAX);
            return -EINVAL;
        }
        int rc = kvf_rule_parse(text, bytes, &rules[count], ret_why, why_cap);
        if (rc != 0) {
            return rc;
        }
        count++;
        if (text[bytes] == '\0') {
            break;
        }
        text += bytes + 1u;
    }
    memcpy(ret_rules, rules, count * sizeof rules[0]);
    return (int)count;
}

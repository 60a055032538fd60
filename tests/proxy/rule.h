/* How a proxy misbehaves: rules, each one word. Pure: text in, structs out.
 *
 *   ACTION[:VALUE][@WHEN[:FOR]][/WHERE...]
 *
 * WHEN is a moment (500ms, 2s; counted from the moment the rule is given) or a place in a stream (a number of
 * bytes: 4096, 64K, 1M). FOR is a length of time. WHERE narrows it: control, lane, lane0 .. lane7; forth (from
 * the side that connects) or back. Without WHEN a rule holds at once, without FOR for good, without WHERE for
 * all connections and both directions. */
#ifndef KVF_TESTS_PROXY_RULE_H
#define KVF_TESTS_PROXY_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_RULES_MAX 32u

enum kvf_rule_action {
    KVF_RULE_DELAY = 0, /* VALUE ms, each way */
    KVF_RULE_RATE,      /* VALUE MB/s, of one direction of one connection */
    KVF_RULE_SPLIT,     /* writes of 1 .. VALUE bytes */
    KVF_RULE_STALL,     /* the connection stays open, nothing is forwarded */
    KVF_RULE_CUT,       /* the same, in the one direction that WHERE must name */
    KVF_RULE_RESET, /* RST to both ends, once for each connection that is open at that moment */
    KVF_RULE_DROP,  /* closed; while it holds, connecting is refused */
    KVF_RULE_CORRUPT, /* one bit is flipped, as reset; WHERE must name the direction */
    KVF_RULE_ACTIONS
};

#define KVF_FORTH 0u /* from the side that connected */
#define KVF_BACK 1u

enum kvf_rule_kind { KVF_KIND_OTHER = 1, KVF_KIND_CONTROL = 2, KVF_KIND_LANE = 4 };
#define KVF_KINDS_ALL 7u
#define KVF_LANE_ANY 0xffu

struct kvf_rule {
    enum kvf_rule_action action;
    uint64_t value; /* ns, bytes a second, bytes */
    bool is_at_bytes;
    uint64_t at;     /* ns from when it was given, or a position in a stream */
    uint64_t for_ns; /* 0: for good */
    uint8_t kinds;
    uint8_t lane;
    uint8_t directions; /* bit per direction */
};

/* One rule of `bytes` characters. 0, or -EINVAL with a sentence in ret_why. */
int kvf_rule_parse(const char *text, size_t bytes, struct kvf_rule *ret_rule, char *ret_why,
                   size_t why_cap);
/* A list with commas; the count, or -EINVAL with a sentence. */
int kvf_rules_parse(const char *text, struct kvf_rule *ret_rules, uint32_t max, char *ret_why,
                    size_t why_cap);
/* What the rules are, for --help of whoever takes them. */
extern const char kvf_rules_help[];

#endif

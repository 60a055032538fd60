#include "tests/torture/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tests/proxy/rule.h"
#include "tests/torture/inject.h"

#define TIMER_MS_MAX 60000u
#define DAEMON_OPTIONS_GIVEN_MAX 16u
#define LANE_RATE 100u
/* Over verbs a lane's window is all that paces it, and devices of a virtual machine choke on much. */
#define ROOM_WINDOW_BYTES (UINT64_C(1) << 20)
#define LANE_WINDOW_BYTES (UINT64_C(4) << 20)
#define VERBS_ROOM_WINDOW_BYTES (UINT64_C(512) << 10)
#define VERBS_LANE_WINDOW_BYTES (UINT64_C(1) << 20)

enum option_id {
    OPT_TRANSPORT = 256,
    OPT_RDMA_DEVICES,
    OPT_RELEASE,
    OPT_COMPARE,
    OPT_SEED,
    OPT_TRACE,
    OPT_GEOMETRY,
    OPT_PLACEMENT,
    OPT_INJECT,
    OPT_ROOM_WINDOW,
    OPT_LANE_WINDOW,
    OPT_DAEMON_OPTION,
    OPT_PROXY,
    OPT_KVFENCED,
    OPT_KEEP_LOGS,
    OPT_JSON,
    OPT_QUIET,
    OPT_HELP,
    OPT_VERSION,
    OPT_NUMBERS /* from here: the table below */
};

/* Numbers of 32 bits with a range each; values[i] belongs to numbers[i]. */
enum number_id {
    NUM_DONORS = 0,
    NUM_PREFILL,
    NUM_DECODE,
    NUM_LANE_RATE,
    NUM_LANES,
    NUM_LANE_ROOMS,
    NUM_PAGES_MAX,
    NUM_PLANE_DIVISOR,
    NUM_TOKEN_DIVISOR,
    NUM_TIME_LIMIT,
    NUM_COUNT
};
struct number {
    const char *name;
    uint32_t standard;
    uint32_t min;
    uint32_t max;
};
static const struct number numbers[NUM_COUNT] = {
    [NUM_DONORS] = {"donors", 2000, 1, 1000000},
    [NUM_PREFILL] = {"prefill", 2, 1, KVF_ENGINES_OF_KIND_MAX},
    [NUM_DECODE] = {"decode", 1, 1, KVF_ENGINES_OF_KIND_MAX},
    [NUM_LANE_RATE] = {"lane-rate", LANE_RATE, 0, 100000},
    [NUM_LANES] = {"lanes", 1, 1, 8},
    [NUM_LANE_ROOMS] = {"lane-rooms", 4, 1, 64},
    [NUM_PAGES_MAX] = {"pages-max", 40, 16, 4096},
    [NUM_PLANE_DIVISOR] = {"plane-divisor", 0, 1, 512},
    [NUM_TOKEN_DIVISOR] = {"token-divisor", 0, 1, 65536},
    [NUM_TIME_LIMIT] = {"time-limit", 0, 1, 86400},
};

static const struct option other_options[] = {
    {"transport", required_argument, NULL, OPT_TRANSPORT},
    {"rdma-devices", required_argument, NULL, OPT_RDMA_DEVICES},
    {"release", required_argument, NULL, OPT_RELEASE},
    {"compare", required_argument, NULL, OPT_COMPARE},
    {"seed", required_argument, NULL, OPT_SEED},
    {"trace", required_argument, NULL, OPT_TRACE},
    {"geometry", required_argument, NULL, OPT_GEOMETRY},
    {"tcp-placement", required_argument, NULL, OPT_PLACEMENT},
    {"inject", required_argument, NULL, OPT_INJECT},
    {"room-window", required_argument, NULL, OPT_ROOM_WINDOW},
    {"lane-window", required_argument, NULL, OPT_LANE_WINDOW},
    {"daemon-option", required_argument, NULL, OPT_DAEMON_OPTION},
    {"proxy", required_argument, NULL, OPT_PROXY},
    {"kvfenced", required_argument, NULL, OPT_KVFENCED},
    {"keep-logs", required_argument, NULL, OPT_KEEP_LOGS},
    {"json", no_argument, NULL, OPT_JSON},
    {"quiet", no_argument, NULL, OPT_QUIET},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
};
/* -h is taken too; every other short option is unknown. */
static const char short_options[] = ":h";

/* Of daemons over verbs, unless given: such devices are mostly a virtual machine's, which gets its CPU late and
 * answers late. A device is asked again after 1.07 s and not after 67 ms; a lane may have a quarter of the
 * cooperative deadline's worth under way, and keeps a delayed link busy only if that is more than a round trip; and a
 * queue pair that is destroyed while its processor is wanted by all others takes seconds. */
static const char *const verbs_daemon_options[] = {"rdma-timeout=18", "cooperative-ms=2000",
                                                   "fence-ms=8000", "liveness-ms=5000",
                                                   "watchdog-ms=5000"};
#define OTHER_COUNT (sizeof(other_options) / sizeof(other_options[0]))

struct parse {
    struct kvf_options options;
    uint32_t values[NUM_COUNT];
    bool is_given[NUM_COUNT];
    const char *geometry;
    bool has_release;
    FILE *err;
};

static int refuse(struct parse *p, const char *name, const char *value, const char *allowed)
{
    fprintf(p->err, "kvfence-torture: --%s %s: %s\n", name, value, allowed);
    return 2;
}

static bool parse_u64(const char *text, uint64_t *ret_value)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (errno != 0 || *end != 0) {
        return false;
    }
    *ret_value = value;
    return true;
}

/* A size with an optional K, M or G. */
static bool parse_size(const char *text, uint64_t *ret_bytes)
{
    static const char suffixes[] = "KMG";
    char digits[24];
    size_t n = strlen(text);
    unsigned int shift = 0;
    uint64_t value;
    if (n == 0 || n >= sizeof(digits)) {
        return false;
    }
    memcpy(digits, text, n + 1);
    const char *suffix = strchr(suffixes, digits[n - 1]);
    if (suffix != NULL) {
        shift = 10 * (unsigned int)(suffix - suffixes + 1);
        digits[n - 1] = 0;
    }
    if (!parse_u64(digits, &value) || value > UINT64_MAX >> shift) {
        return false;
    }
    *ret_bytes = value << shift;
    return true;
}

int kvf_policy_parse(const char *text, struct kvf_policy *ret_policy)
{
    static const struct {
        const char *name;
        enum kvf_release_mode mode;
    } plain[] = {{"early", KVF_RELEASE_EARLY},
                 {"drained", KVF_RELEASE_DRAINED},
                 {"ledger", KVF_RELEASE_LEDGER},
                 {"forgetful", KVF_RELEASE_FORGETFUL}};
    struct kvf_policy policy = {.timer_us = 0};
    uint64_t ms;
    size_t n = strlen(text);
    if (n >= sizeof(policy.name)) {
        return -EINVAL;
    }
    memcpy(policy.name, text, n + 1);
    if (strncmp(text, "timer:", 6) == 0) {
        if (!parse_u64(text + 6, &ms)) {
            return -EINVAL;
        }
        if (ms > TIMER_MS_MAX) {
            return -ERANGE;
        }
        policy.mode = KVF_RELEASE_TIMER;
        policy.timer_us = (uint32_t)ms * 1000;
        *ret_policy = policy;
        return 0;
    }
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        if (strcmp(plain[i].name, text) == 0) {
            policy.mode = plain[i].mode;
            *ret_policy = policy;
            return 0;
        }
    }
    return -EINVAL;
}

static int take_policy(struct parse *p, const char *option, const char *text)
{
    struct kvf_options *o = &p->options;
    if (o->policy_count == KVF_POLICIES_MAX) {
        return refuse(p, option, text, "at most 8 policies");
    }
    int rc = kvf_policy_parse(text, &o->policies[o->policy_count]);
    if (rc == -ERANGE) {
        return refuse(p, option, text, "a timer waits 0 to 60000 ms");
    }
    if (rc != 0) {
        return refuse(p, option, text,
                      "a policy is early, timer:MS, drained, ledger or forgetful");
    }
    o->policy_count++;
    return 0;
}

static int take_policies(struct parse *p, char *list)
{
    char *rest = list;
    char *word;
    p->options.policy_count = 0;
    p->options.is_compare = true;
    while ((word = strsep(&rest, ",")) != NULL) {
        int rc = take_policy(p, "compare", word);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int take_window(struct parse *p, const char *name, const char *text, uint64_t *ret_bytes)
{
    if (!parse_size(text, ret_bytes) || *ret_bytes < 65536 || *ret_bytes > UINT64_C(1) << 30) {
        return refuse(p, name, text, "a window is 64K to 1G (K, M and G are powers of 1024)");
    }
    return 0;
}

static int take_inject(struct parse *p, const char *text)
{
    for (int i = KVF_INJECT_FLIP_BYTE; i < KVF_INJECTS; i++) {
        if (strcmp(kvf_inject_name((enum kvf_inject)i), text) == 0) {
            p->options.inject = (enum kvf_inject)i;
            return 0;
        }
    }
    return refuse(p, "inject", text,
                  "a fault is flip-byte, skip-plane, swap-pages or drained-at-once");
}

static int take_daemon_option(struct parse *p, const char *text)
{
    struct kvf_options *o = &p->options;
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || equals - text > 40 || text[0] == '-') {
        return refuse(p, "daemon-option", text, "it is NAME=VALUE, for example fence-ms=500");
    }
    if (o->daemon_option_count == DAEMON_OPTIONS_GIVEN_MAX) {
        return refuse(p, "daemon-option", text, "at most 16 of them");
    }
    o->daemon_options[o->daemon_option_count++] = text;
    return 0;
}

/* Rules of several --proxy add up. */
static int take_proxy(struct parse *p, const char *text)
{
    struct kvf_options *o = &p->options;
    struct kvf_rule rules[KVF_RULES_MAX];
    char why[200];
    size_t used = strlen(o->proxy);
    int count = kvf_rules_parse(text, rules, KVF_RULES_MAX, why, sizeof(why));
    if (count < 0) {
        return refuse(p, "proxy", text, why);
    }
    if (used + 1 + strlen(text) >= sizeof(o->proxy)) {
        return refuse(p, "proxy", text, "its rules have at most 479 characters together");
    }
    snprintf(o->proxy + used, sizeof(o->proxy) - used, "%s%s", used > 0 ? "," : "", text);
    for (int i = 0; i < count; i++) {
        enum kvf_rule_action action = rules[i].action;
        bool is_harmless =
            action == KVF_RULE_DELAY || action == KVF_RULE_RATE || action == KVF_RULE_SPLIT;
        o->has_planned_faults = o->has_planned_faults || !is_harmless;
    }
    return 0;
}

static int take_number(struct parse *p, enum number_id id, const char *text)
{
    const struct number *n = &numbers[id];
    char allowed[80];
    uint64_t value;
    snprintf(allowed, sizeof(allowed), "a whole number, %u to %u", n->min, n->max);
    if (!parse_u64(text, &value) || value < n->min || value > n->max) {
        return refuse(p, n->name, text, allowed);
    }
    p->values[id] = (uint32_t)value;
    p->is_given[id] = true;
    return 0;
}

static int take_placement(struct parse *p, const char *text)
{
    p->options.is_checked = strcmp(text, "checked") == 0;
    if (!p->options.is_checked && strcmp(text, "posted") != 0) {
        return refuse(p, "tcp-placement", text, "it is posted or checked");
    }
    return 0;
}

/* Two devices, so that bytes leave one and reach the other: the decode daemon's, then the prefill daemons'. */
static int take_devices(struct parse *p, const char *text)
{
    const char *comma = strchr(text, ',');
    size_t first = comma == NULL ? strlen(text) : (size_t)(comma - text);
    const char *second = comma == NULL ? text : comma + 1;
    size_t cap = sizeof(p->options.rdma_devices[0]);
    if (first == 0 || first >= cap || second[0] == 0 || strlen(second) >= cap ||
        strchr(second, ',') != NULL) {
        return refuse(p, "rdma-devices", text, "it is DECODE,PREFILL, or one name for both");
    }
    snprintf(p->options.rdma_devices[0], cap, "%.*s", (int)first, text);
    snprintf(p->options.rdma_devices[1], cap, "%s", second);
    return 0;
}

static int take_option(struct parse *p, int id, char *text)
{
    struct kvf_options *o = &p->options;
    switch (id) {
    case OPT_TRANSPORT:
        o->is_local = strcmp(text, "local") == 0;
        o->is_verbs = strcmp(text, "verbs") == 0;
        return o->is_local || o->is_verbs || strcmp(text, "tcp") == 0
                   ? 0
                   : refuse(p, "transport", text, "it is tcp, verbs or local");
    case OPT_RDMA_DEVICES:
        return take_devices(p, text);
    case OPT_RELEASE:
        o->policy_count = 0;
        p->has_release = true;
        return take_policy(p, "release", text);
    case OPT_COMPARE:
        return take_policies(p, text);
    case OPT_SEED:
        return parse_u64(text, &o->seed) ? 0 : refuse(p, "seed", text, "a number of 64 bits");
    case OPT_TRACE:
        o->trace = text;
        return 0;
    case OPT_GEOMETRY:
        p->geometry = text;
        return 0;
    case OPT_PLACEMENT:
        return take_placement(p, text);
    case OPT_INJECT:
        return take_inject(p, text);
    case OPT_ROOM_WINDOW:
        return take_window(p, "room-window", text, &o->room_window_bytes);
    case OPT_LANE_WINDOW:
        return take_window(p, "lane-window", text, &o->lane_window_bytes);
    case OPT_DAEMON_OPTION:
        return take_daemon_option(p, text);
    case OPT_PROXY:
        return take_proxy(p, text);
    case OPT_KVFENCED:
        o->kvfenced = text;
        return 0;
    case OPT_KEEP_LOGS:
        o->keep_logs = text;
        return 0;
    case OPT_JSON:
        o->is_json = true;
        return 0;
    case OPT_QUIET:
        o->is_quiet = true;
        return 0;
    case 'h':
    case OPT_HELP:
        o->is_help = true;
        return 0;
    case OPT_VERSION:
        o->is_version = true;
        return 0;
    default: /* an int from getopt, no enum */
        return id >= OPT_NUMBERS && id < OPT_NUMBERS + NUM_COUNT
                   ? take_number(p, (enum number_id)(id - OPT_NUMBERS), text)
                   : 2;
    }
}

/* What getopt could make nothing of. */
static int refuse_word(struct parse *p, int why, const char *word)
{
    fprintf(p->err,
            why == ':' ? "kvfence-torture: %s needs a value; --help lists the options\n"
                       : "kvfence-torture: %s is no option of it; --help lists them\n",
            word);
    return 2;
}

static void store_numbers(struct parse *p)
{
    struct kvf_options *o = &p->options;
    o->donors = p->values[NUM_DONORS];
    o->prefill_count = p->values[NUM_PREFILL];
    o->decode_count = p->values[NUM_DECODE];
    o->lane_rate = p->values[NUM_LANE_RATE];
    o->lanes = p->values[NUM_LANES];
    o->lane_rooms = p->values[NUM_LANE_ROOMS];
    o->pages_max = p->values[NUM_PAGES_MAX];
    o->time_limit_s = p->values[NUM_TIME_LIMIT];
}

static bool has_daemon_option(const struct kvf_options *o, const char *option)
{
    size_t name = strcspn(option, "=") + 1;
    for (uint32_t i = 0; i < o->daemon_option_count; i++) {
        if (strncmp(o->daemon_options[i], option, name) == 0) {
            return true;
        }
    }
    return false;
}

/* What was not given. */
static void choose_standards(struct parse *p)
{
    struct kvf_options *o = &p->options;
    if (o->is_verbs && !p->is_given[NUM_LANE_RATE]) {
        o->lane_rate = 0; /* nobody paces a device */
    }
    if (o->room_window_bytes == 0) {
        o->room_window_bytes = o->is_verbs ? VERBS_ROOM_WINDOW_BYTES : ROOM_WINDOW_BYTES;
    }
    if (o->lane_window_bytes == 0) {
        uint64_t window = o->is_verbs ? VERBS_LANE_WINDOW_BYTES : LANE_WINDOW_BYTES;
        o->lane_window_bytes = window > o->room_window_bytes ? window : o->room_window_bytes;
    }
    size_t count = sizeof(verbs_daemon_options) / sizeof(verbs_daemon_options[0]);
    for (size_t i = 0; o->is_verbs && i < count; i++) {
        if (!has_daemon_option(o, verbs_daemon_options[i])) {
            o->daemon_options[o->daemon_option_count++] = verbs_daemon_options[i];
        }
    }
}

/* What only the options together can tell. */
static int check_together(struct parse *p)
{
    struct kvf_options *o = &p->options;
    int rc = kvf_geometry_make(p->geometry, p->values[NUM_PLANE_DIVISOR],
                               p->values[NUM_TOKEN_DIVISOR], &o->geometry);
    if (rc == -ENOENT) {
        return refuse(p, "geometry", p->geometry,
                      "the presets are llama3-70b-tp8 and deepseek-v3-mla");
    }
    if (rc != 0) {
        return refuse(p, "geometry", p->geometry, "this plane divisor leaves no plane");
    }
    if (p->has_release && o->is_compare) {
        fprintf(p->err, "kvfence-torture: --release runs one policy and --compare several: "
                        "give one of the two\n");
        return 2;
    }
    if (o->lane_window_bytes < o->room_window_bytes) {
        fprintf(p->err,
                "kvfence-torture: --lane-window is smaller than --room-window; a lane's window "
                "covers all of its rooms\n");
        return 2;
    }
    bool is_drained = o->policies[0].mode == KVF_RELEASE_DRAINED;
    if (o->inject == KVF_INJECT_DRAINED_AT_ONCE && (o->policy_count != 1 || !is_drained)) {
        fprintf(p->err,
                "kvfence-torture: --inject drained-at-once goes with --release drained\n");
        return 2;
    }
    return 0;
}

int kvf_options_parse(int argc, char **argv, FILE *err, struct kvf_options *ret_options)
{
    struct parse p = {.err = err, .geometry = "llama3-70b-tp8"};
    struct option table[OTHER_COUNT + NUM_COUNT + 1];
    int id;
    memset(table, 0, sizeof(table));
    memcpy(table, other_options, sizeof(other_options));
    for (int i = 0; i < NUM_COUNT; i++) {
        table[OTHER_COUNT + (size_t)i] =
            (struct option){numbers[i].name, required_argument, NULL, OPT_NUMBERS + i};
        p.values[i] = numbers[i].standard;
    }
    p.options.seed = 1;
    kvf_policy_parse("drained", &p.options.policies[0]);
    p.options.policy_count = 1;
    optind = 0; /* a fresh start, also for a second parse in one process */
    opterr = 0;
    while ((id = getopt_long(argc, argv, short_options, table, NULL)) != -1) {
        if (id == '?' || id == ':') {
            return refuse_word(&p, id, argv[optind - 1]);
        }
        int rc = take_option(&p, id, optarg);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind < argc) {
        fprintf(err, "kvfence-torture: '%s': only options are taken; --help lists them\n",
                argv[optind]);
        return 2;
    }
    store_numbers(&p);
    choose_standards(&p);
    int rc = check_together(&p);
    if (rc == 0) {
        *ret_options = p.options;
    }
    return rc;
}

static const char help_text[] =
    "usage: kvfence-torture [--release POLICY | --compare POLICY,POLICY,...] [options]\n"
    "\n"
    "Starts kvfenced daemons and inference engines on this machine, replays real "
    "requests through\n"
    "them, aborts many in flight, hands their KV pages to the next owner and looks at "
    "every byte.\n"
    "A policy says when the pages go to their next owner; nothing else differs between "
    "two runs:\n"
    "  early      at the abort (the bug: the old write lands in the new owner's pages)\n"
    "  timer:MS   MS milliseconds later, whatever happens (the usual patch)\n"
    "  drained    when kvfence shows that nothing can touch them any more (the default)\n"
    "  ledger     as drained, but some paths forget the room; the allocator asks the "
    "page ledger\n"
    "  forgetful  as ledger, but nobody asks\n"
    "\n"
    "what to run\n"
    "  --release POLICY      one policy\n"
    "  --compare LIST        several, one after the other with the same requests, in one "
    "table;\n"
    "                        a list without early or timer has no control\n"
    "  --donors N            requests to abort in flight, per policy. Default 2000\n"
    "  --seed S              same seed, same requests. Default 1\n"
    "  --trace FILE          CSV (timestamp_ms,input_tokens,output_tokens) or JSON lines "
    "(timestamp,\n"
    "                        input_length, output_length). Default: the table of the "
    "tree, 12,031\n"
    "                        requests of a chat service\n"
    "  --prefill N, --decode M   engines. Default 2 and 1, at most 8\n"
    "  --inject FAULT        flip-byte, skip-plane, swap-pages, drained-at-once: shows "
    "that the\n"
    "                        checker can see; must end with 10\n"
    "how pages look\n"
    "  --geometry NAME       llama3-70b-tp8 (planes / 10, tokens / 16: pages of 64 KiB; "
    "the default)\n"
    "                        or deepseek-v3-mla (planes / 61, tokens / 4: pages of 72 "
    "KiB)\n"
    "  --plane-divisor N, --token-divisor N   instead of the preset's\n"
    "  --pages-max N         longer prompts are cut to so many pages. Default 40\n";

static const char help_more[] =
    "how bytes move\n"
    "  --transport tcp|verbs|local   tcp (default): a daemon beside each engine. verbs: the "
    "same over\n"
    "                        RDMA devices. local: one daemon for all, which copies between "
    "them\n"
    "  --rdma-devices DECODE,PREFILL   with verbs: the device of the decode daemons, and of "
    "the "
    "prefill\n"
    "                        daemons. Default: the first two of this machine, so that bytes "
    "leave one\n"
    "                        and reach the other\n"
    "  --tcp-placement posted|checked   posted (default) places what was posted, as an "
    "RDMA NIC\n"
    "                        does; checked refuses it once the daemon has seen the abort, "
    "so that\n"
    "                        only bytes of the moment before are exposed\n"
    "  --lane-rate MB/s      pace of a lane; 0 = unpaced. Default 100, over verbs 0: nobody "
    "paces devices\n"
    "  --lanes N, --lane-rooms N, --room-window BYTES, --lane-window BYTES\n"
    "                        as of kvfenced. Default 1, 4, 1M, 4M; over verbs 1, 4, 512K, "
    "1M\n"
    "  --daemon-option NAME=VALUE   one more option for every daemon: --daemon-option "
    "fence-ms=500\n"
    "                        Over verbs also rdma-timeout=18, cooperative-ms=2000, "
    "fence-ms=8000,\n"
    "                        liveness-ms=5000, watchdog-ms=5000, each unless another value is "
    "given\n"
    "  --proxy RULES         a kvfence-proxy in front of each prefill daemon: "
    "split:700, delay:5,\n"
    "                        stall@2s:500ms; kvfence-proxy --help has all. Rooms that "
    "fail by a\n"
    "                        stall, cut, reset or drop count as planned, and must be as "
    "clean as all\n"
    "how it runs\n"
    "  --json                one JSON object on standard output instead of the table\n"
    "  --quiet               no progress on standard error\n"
    "  --time-limit S        give up after S seconds per policy\n"
    "  --keep-logs DIR       keep the daemons' logs there\n"
    "  --kvfenced PATH       the daemon to start. Default: the one beside this program\n"
    "  --version, --help (-h)\n"
    "\n"
    "exit status (of a comparison: see below)\n"
    "   0  clean\n"
    "   2  usage, or a bad trace file\n"
    "   3  could not run\n"
    "   4  control too weak: early, timer or forgetful did no harm that could be told "
    "from none\n"
    "  10  foreign bytes in a reuse probe, or wrong bytes in a request that arrived\n"
    "  11  pages, rooms or requests lost, leaked or quarantined\n"
    "  12  a proof took longer than the bound\n"
    "A comparison ends with 0 if its controls showed the bug and its other policies were "
    "clean:\n"
    "early foreign in at least 1/2 of its probes, timer in at least 1/5, and bytes "
    "landed after the\n"
    "abort in at least 4/5 of the probes of drained (posted placement). Else 4; no "
    "retry.\n";

void kvf_options_help(FILE *out)
{
    fputs(help_text, out);
    fputs(help_more, out);
}

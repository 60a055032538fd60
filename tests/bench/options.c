#include "tests/bench/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MIN 64u
#define SIZE_MAX_BYTES (UINT64_C(64) << 20)

static const char *const command_names[KVF_BENCH_COMMANDS] = {
    [KVF_BENCH_RING] = "ring",   [KVF_BENCH_POLL] = "poll",   [KVF_BENCH_TRANSFER] = "transfer",
    [KVF_BENCH_ABORT] = "abort", [KVF_BENCH_SCALE] = "scale",
};
static const char *const command_texts[KVF_BENCH_COMMANDS] = {
    [KVF_BENCH_RING] = "the command ring between two cores, beside a bare cache line going "
                       "there and back",
    [KVF_BENCH_POLL] = "what asking for a room's state costs, beside one load",
    [KVF_BENCH_TRANSFER] = "rooms between two engines through real daemons, beside iperf3, "
                           "memcpy or perftest",
    [KVF_BENCH_ABORT] = "from abort to proof, beside bytes in flight / rate + one round trip",
    [KVF_BENCH_SCALE] = "a command and a poll with 1 to 65,536 rooms open",
};
static const char *const transport_names[] = {"tcp", "local", "verbs"};
static const char *const beside_names[] = {"auto",   "none",   "plain",
                                           "iperf3", "memcpy", "perftest"};

enum option_id {
    OPT_TRANSPORT = 256,
    OPT_SIZES,
    OPT_ROOM_BYTES,
    OPT_BYTES,
    OPT_IN_FLIGHT,
    OPT_SINGLE_ROOMS,
    OPT_LANES,
    OPT_LANE_RATE,
    OPT_ROOMS,
    OPT_REPEATS,
    OPT_BESIDE,
    OPT_SOURCE_DEVICE,
    OPT_SINK_DEVICE,
    OPT_GID_INDEX,
    OPT_DAEMON_OPTION,
    OPT_SOURCE_OPTION,
    OPT_SINK_OPTION,
    OPT_CPUS,
    OPT_KVFENCED,
    OPT_JUDGE,
    OPT_JSON,
    OPT_QUIET,
    OPT_HELP,
    OPT_VERSION
};

#define FOR(command) (1u << KVF_BENCH_##command)
#define FOR_ALL ((1u << KVF_BENCH_COMMANDS) - 1u)
#define FOR_DAEMONS (FOR_ALL & ~FOR(RING))
#define FOR_MOVES (FOR(TRANSFER) | FOR(ABORT))

/* One line of help each; the numbers are those of numbers[] below. */
struct known {
    const char *name;
    int id;
    const char *value; /* NULL: a flag */
    unsigned int commands;
    const char *text;
};
static const struct known known[] = {
    {"transport", OPT_TRANSPORT, "KIND", FOR_MOVES,
     "tcp, verbs, or local: one daemon for both engines (tcp)"},
    {"sizes", OPT_SIZES, "BYTES,...", FOR_MOVES, "of a page, one after another (4K,64K,1M)"},
    {"room-bytes", OPT_ROOM_BYTES, "BYTES", FOR_MOVES,
     "of a room, in whole pages, at least one (4M)"},
    {"bytes", OPT_BYTES, "BYTES", FOR(TRANSFER), "moved in each repeat (64M)"},
    {"in-flight", OPT_IN_FLIGHT, "N", FOR(TRANSFER), "rooms open at a time (8)"},
    {"single-rooms", OPT_SINGLE_ROOMS, "N", FOR(TRANSFER),
     "rooms of one page, one after another, in each repeat (50)"},
    {"lanes", OPT_LANES, "N", FOR_MOVES, "of the daemons (1)"},
    {"lane-rate", OPT_LANE_RATE, "MB/s", FOR_MOVES,
     "pace of a lane, 0: unpaced (transfer 0; abort over tcp 100)"},
    {"rooms", OPT_ROOMS, "N,...", FOR(SCALE), "open at a time (1,16,256,4096,65536)"},
    {"repeats", OPT_REPEATS, "N", FOR_ALL,
     "taking turns (ring, scale 50, poll 500, transfer 9, abort 200)"},
    {"beside", OPT_BESIDE, "KIND", FOR(TRANSFER),
     "auto, none, plain, iperf3 (tcp), memcpy (local), perftest (verbs)"},
    {"source-device", OPT_SOURCE_DEVICE, "NAME", FOR_MOVES,
     "its RDMA device, for the daemon and for perftest"},
    {"sink-device", OPT_SINK_DEVICE, "NAME", FOR_MOVES,
     "its RDMA device, for the daemon and for perftest"},
    {"gid-index", OPT_GID_INDEX, "N", FOR(TRANSFER), "perftest's, on both sides (1)"},
    {"daemon-option", OPT_DAEMON_OPTION, "NAME=VALUE", FOR_DAEMONS,
     "handed to each kvfenced as --NAME VALUE; NAME alone is a flag"},
    {"source-option", OPT_SOURCE_OPTION, "NAME=VALUE", FOR_MOVES,
     "the same, for the source's daemon alone"},
    {"sink-option", OPT_SINK_OPTION, "NAME=VALUE", FOR_MOVES,
     "the same, for the sink's daemon alone"},
    {"kvfenced", OPT_KVFENCED, "PATH", FOR_DAEMONS, "another daemon than the one beside this"},
    {"cpus", OPT_CPUS, "A,B[,C]", FOR_ALL,
     "processors of source, sink and engine (the last ones allowed)"},
    {"judge", OPT_JUDGE, NULL, FOR_ALL, "end with 1 if a figure misses its target"},
    {"json", OPT_JSON, NULL, FOR_ALL, "one JSON object instead of the table"},
    {"quiet", OPT_QUIET, NULL, FOR_ALL, "no progress on standard error"},
    {"help", OPT_HELP, NULL, FOR_ALL, "this"},
    {"version", OPT_VERSION, NULL, FOR_ALL, "of this program"},
};
#define KNOWN_COUNT (sizeof(known) / sizeof(known[0]))

struct number {
    int id;
    uint32_t min;
    uint32_t max;
};
static const struct number numbers[] = {
    {OPT_IN_FLIGHT, 1, 64},
    {OPT_SINGLE_ROOMS, 0, 10000},
    {OPT_LANES, 1, 8},
    {OPT_LANE_RATE, 0, 100000},
    {OPT_REPEATS, 1, KVF_BENCH_REPEATS_MAX},
    {OPT_GID_INDEX, 0, 255},
};

const char *kvf_bench_command_name(enum kvf_bench_command command)
{
    return command_names[command];
}

const char *kvf_bench_transport_name(enum kvf_bench_transport transport)
{
    return transport_names[transport];
}

static int refuse(FILE *err, const char *name, const char *value, const char *allowed)
{
    fprintf(err, "kvfence-bench: --%s %s: %s\n", name, value, allowed);
    return 2;
}

/* A size with an optional K, M or G. Stops at the end or at a comma; the rest goes to ret_rest. */
static bool take_size(const char *text, uint64_t *ret_bytes, const char **ret_rest)
{
    char *end;
    unsigned int shift = 0;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end == 'K' || *end == 'M' || *end == 'G') {
        shift = *end == 'K' ? 10 : *end == 'M' ? 20 : 30;
        end++;
    }
    if (errno != 0 || value > UINT64_MAX >> shift || (*end != 0 && *end != ',')) {
        return false;
    }
    *ret_bytes = (uint64_t)value << shift;
    *ret_rest = *end == ',' ? end + 1 : NULL;
    return true;
}

static bool take_one_size(const char *text, uint64_t min, uint64_t max, uint64_t *ret_bytes)
{
    const char *rest;
    uint64_t bytes;
    if (!take_size(text, &bytes, &rest) || rest != NULL || bytes < min || bytes > max) {
        return false;
    }
    *ret_bytes = bytes;
    return true;
}

static int take_list(const char *text, uint64_t min, uint64_t max, uint64_t *ret_values,
                     uint32_t *ret_count)
{
    const char *at = text;
    uint32_t count = 0;
    while (at != NULL) {
        if (count == KVF_BENCH_SIZES_MAX || !take_size(at, &ret_values[count], &at) ||
            ret_values[count] < min || ret_values[count] > max) {
            return -EINVAL;
        }
        count++;
    }
    *ret_count = count;
    return 0;
}

static int take_word(const char *const *words, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(words[i], text) == 0) {
            return (int)i;
        }
    }
    return -EINVAL;
}

static int take_daemon_option(struct kvf_bench_options *o, enum kvf_bench_side side,
                              const char *name, const char *text, FILE *err)
{
    size_t used = strcspn(text, "=");
    if (used == 0 || used > 40 || text[0] == '-') {
        return refuse(err, name, text, "it is NAME=VALUE without dashes, as lane-window=8M");
    }
    if (o->daemon_option_count == KVF_BENCH_DAEMON_OPTIONS_MAX) {
        return refuse(err, name, text, "at most 32 of them");
    }
    o->daemon_options[o->daemon_option_count++] =
        (struct kvf_daemon_option){.text = text, .side = side};
    return 0;
}

static uint32_t *number_of(struct kvf_bench_options *o, int id)
{
    switch (id) {
    case OPT_IN_FLIGHT:
        return &o->in_flight;
    case OPT_SINGLE_ROOMS:
        return &o->single_rooms;
    case OPT_LANES:
        return &o->lanes;
    case OPT_LANE_RATE:
        return &o->lane_rate;
    case OPT_REPEATS:
        return &o->repeats;
    case OPT_GID_INDEX:
        return &o->gid_index;
    default: /* an int from getopt, no enum */
        return NULL;
    }
}

static int take_number(struct kvf_bench_options *o, int id, const char *name, const char *text,
                       FILE *err)
{
    char allowed[64];
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        uint64_t value;
        if (numbers[i].id != id) {
            continue;
        }
        if (take_one_size(text, numbers[i].min, numbers[i].max, &value)) {
            *number_of(o, id) = (uint32_t)value;
            return 0;
        }
        snprintf(allowed, sizeof(allowed), "a whole number, %u to %u", numbers[i].min,
                 numbers[i].max);
        return refuse(err, name, text, allowed);
    }
    return 2;
}

static int take_counts(struct kvf_bench_options *o, const char *text, FILE *err)
{
    uint64_t values[KVF_BENCH_SIZES_MAX];
    if (take_list(text, 1, 65536, values, &o->count_count) != 0) {
        return refuse(err, "rooms", text, "up to 8 numbers, 1 to 65536, with commas");
    }
    for (uint32_t i = 0; i < o->count_count; i++) {
        o->counts[i] = (uint32_t)values[i];
    }
    return 0;
}

static int take_sizes(struct kvf_bench_options *o, int id, const char *name, const char *text,
                      FILE *err)
{
    if (id == OPT_SIZES) {
        return take_list(text, SIZE_MIN, SIZE_MAX_BYTES, o->sizes, &o->size_count) == 0
                   ? 0
                   : refuse(err, name, text, "up to 8 sizes, 64 to 64M, with commas");
    }
    uint64_t *to = id == OPT_BYTES ? &o->bytes : &o->room_bytes;
    return take_one_size(text, SIZE_MIN, UINT64_C(1) << 40, to)
               ? 0
               : refuse(err, name, text, "64 to 1024G (K, M and G are powers of 1024)");
}

static int take_choice(struct kvf_bench_options *o, int id, const char *text, FILE *err)
{
    int word;
    if (id == OPT_TRANSPORT) {
        word = take_word(transport_names, 3, text);
        o->transport = word < 0 ? KVF_BENCH_TCP : (enum kvf_bench_transport)word;
        return word < 0 ? refuse(err, "transport", text, "it is tcp, local or verbs") : 0;
    }
    word = take_word(beside_names, sizeof(beside_names) / sizeof(beside_names[0]), text);
    o->beside = word < 0 ? KVF_BESIDE_AUTO : (enum kvf_bench_beside)word;
    return word < 0 ? refuse(err, "beside", text,
                             "it is auto, none, plain, iperf3, memcpy or perftest")
                    : 0;
}

static int take_option(struct kvf_bench_options *o, const struct known *k, const char *text,
                       FILE *err)
{
    switch (k->id) {
    case OPT_TRANSPORT:
    case OPT_BESIDE:
        return take_choice(o, k->id, text, err);
    case OPT_SIZES:
    case OPT_BYTES:
    case OPT_ROOM_BYTES:
        return take_sizes(o, k->id, k->name, text, err);
    case OPT_ROOMS:
        return take_counts(o, text, err);
    case OPT_DAEMON_OPTION:
        return take_daemon_option(o, KVF_SIDE_BOTH, k->name, text, err);
    case OPT_SOURCE_OPTION:
        return take_daemon_option(o, KVF_SIDE_SOURCE, k->name, text, err);
    case OPT_SINK_OPTION:
        return take_daemon_option(o, KVF_SIDE_SINK, k->name, text, err);
    case OPT_SOURCE_DEVICE:
        o->source_device = text;
        return 0;
    case OPT_SINK_DEVICE:
        o->sink_device = text;
        return 0;
    case OPT_KVFENCED:
        o->kvfenced = text;
        return 0;
    case OPT_CPUS:
        o->cpus = text;
        return 0;
    case OPT_JUDGE:
        o->is_judge = true;
        return 0;
    case OPT_JSON:
        o->is_json = true;
        return 0;
    case OPT_QUIET:
        o->is_quiet = true;
        return 0;
    case OPT_HELP:
        o->is_help = true;
        return 0;
    case OPT_VERSION:
        o->is_version = true;
        return 0;
    default: /* an int from getopt, no enum */
        return take_number(o, k->id, k->name, text, err);
    }
}

static void set_defaults(struct kvf_bench_options *o)
{
    static const uint32_t repeats[KVF_BENCH_COMMANDS] = {
        [KVF_BENCH_RING] = 50,   [KVF_BENCH_POLL] = 500, [KVF_BENCH_TRANSFER] = 9,
        [KVF_BENCH_ABORT] = 200, [KVF_BENCH_SCALE] = 50,
    };
    static const uint64_t sizes[] = {4096, 65536, 1048576};
    static const uint32_t counts[] = {1, 16, 256, 4096, 65536};
    if (o->repeats == 0) {
        o->repeats = repeats[o->command];
    }
    if (o->size_count == 0) {
        memcpy(o->sizes, sizes, sizeof(sizes));
        o->size_count = 3;
        if (o->command == KVF_BENCH_ABORT) {
            o->sizes[0] = 65536;
            o->size_count = 1;
        }
    }
    if (o->count_count == 0) {
        memcpy(o->counts, counts, sizeof(counts));
        o->count_count = sizeof(counts) / sizeof(counts[0]);
    }
    if (o->lane_rate == UINT32_MAX) {
        bool is_paced = o->command == KVF_BENCH_ABORT && o->transport == KVF_BENCH_TCP;
        o->lane_rate = is_paced ? 100 : 0;
    }
}

/* Which transport goes with which measure beside it. */
static int check_together(struct kvf_bench_options *o, FILE *err)
{
    static const bool fits[3][6] = {
        [KVF_BENCH_TCP] = {true, true, true, true, false, false},
        [KVF_BENCH_LOCAL] = {true, true, false, false, true, false},
        [KVF_BENCH_VERBS] = {true, true, false, false, false, true},
    };
    if (!fits[o->transport][o->beside]) {
        fprintf(err, "kvfence-bench: --beside %s does not go with --transport %s\n",
                beside_names[o->beside], transport_names[o->transport]);
        return 2;
    }
    if (o->transport == KVF_BENCH_VERBS && o->command == KVF_BENCH_TRANSFER &&
        o->beside != KVF_BESIDE_NONE && (o->source_device == NULL || o->sink_device == NULL)) {
        fprintf(err, "kvfence-bench: perftest needs --source-device and --sink-device; "
                     "--beside none does without\n");
        return 2;
    }
    for (uint32_t i = 0; i < o->size_count; i++) {
        uint64_t room = o->room_bytes < o->sizes[i] ? o->sizes[i] : o->room_bytes;
        if (room / o->sizes[i] > 1000000 || room * o->in_flight > UINT64_C(1) << 40) {
            fprintf(err, "kvfence-bench: rooms of %llu bytes in pages of %llu: too many\n",
                    (unsigned long long)room, (unsigned long long)o->sizes[i]);
            return 2;
        }
    }
    return 0;
}

static const struct known *known_of(int id)
{
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        if (known[i].id == id) {
            return &known[i];
        }
    }
    return NULL;
}

static int take_command(int argc, char **argv, FILE *err, struct kvf_bench_options *o)
{
    int word = argc > 1 ? take_word(command_names, KVF_BENCH_COMMANDS, argv[1]) : -EINVAL;
    if (word >= 0) {
        o->command = (enum kvf_bench_command)word;
        return 0;
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        o->command = KVF_BENCH_COMMANDS;
        o->is_help = true;
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        o->is_version = true;
        return 0;
    }
    fprintf(err,
            "kvfence-bench: %s%sthe first word is ring, poll, transfer, abort or scale; "
            "--help says more\n",
            argc > 1 ? argv[1] : "", argc > 1 ? ": " : "");
    return 2;
}

int kvf_bench_options_parse(int argc, char **argv, FILE *err,
                            struct kvf_bench_options *ret_options)
{
    struct kvf_bench_options o = {.room_bytes = 4u << 20,
                                  .bytes = 64u << 20,
                                  .in_flight = 8,
                                  .single_rooms = 50,
                                  .lanes = 1,
                                  .lane_rate = UINT32_MAX,
                                  .gid_index = 1};
    struct option table[KNOWN_COUNT + 1];
    int id;
    int rc = take_command(argc, argv, err, &o);
    if (rc != 0) {
        return rc;
    }
    if (o.is_help || o.is_version) {
        *ret_options = o;
        return 0;
    }
    memset(table, 0, sizeof(table));
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        table[i] = (struct option){known[i].name,
                                   known[i].value != NULL ? required_argument : no_argument,
                                   NULL, known[i].id};
    }
    optind = 0; /* a fresh start, also for a second parse in one process */
    opterr = 0;
    while ((id = getopt_long(argc - 1, argv + 1, ":h", table, NULL)) != -1) {
        const struct known *k = known_of(id == 'h' ? OPT_HELP : id);
        if (k == NULL || (k->commands & 1u << o.command) == 0) {
            fprintf(err,
                    id == ':' ? "kvfence-bench: %s needs a value; %s --help lists the options\n"
                              : "kvfence-bench: %s is no option here; %s --help lists them\n",
                    k != NULL ? k->name : argv[optind], command_names[o.command]);
            return 2;
        }
        rc = take_option(&o, k, optarg, err);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind < argc - 1) {
        fprintf(err, "kvfence-bench: '%s': only options are taken; --help lists them\n",
                argv[optind + 1]);
        return 2;
    }
    set_defaults(&o);
    rc = o.is_help || o.is_version ? 0 : check_together(&o, err);
    if (rc == 0) {
        *ret_options = o;
    }
    return rc;
}

const char *kvf_bench_daemon_value(const struct kvf_bench_options *options,
                                   enum kvf_bench_side side, const char *name)
{
    const char *value = NULL;
    size_t bytes = strlen(name);
    for (uint32_t i = 0; i < options->daemon_option_count; i++) {
        const struct kvf_daemon_option *o = &options->daemon_options[i];
        if (((unsigned)o->side & (unsigned)side) != 0 && strncmp(o->text, name, bytes) == 0 &&
            o->text[bytes] == '=') {
            value = o->text + bytes + 1;
        }
    }
    return value;
}

static const char top_text[] =
    "usage: kvfence-bench COMMAND [options]        sizes take K, M, G (powers of 1024)\n"
    "\n"
    "Measures kvfence on this machine beside what the machine does without it: both take\n"
    "turns, both are pinned, and the ratio of their medians is printed with the target that\n"
    "it should meet. Figures of one run belong together; those of a busy machine say little,\n"
    "so the load is printed too. COMMAND --help lists the options of each.\n"
    "\n";
static const char bottom_text[] =
    "\n"
    "Exit status: 0 measured (with --judge: every target met); 1 with --judge a target was\n"
    "missed; 2 usage; 3 could not run, or what was asked to stand beside is not here; 4 a "
    "room\n"
    "did not end as it should. tests/bench/README.md says what each figure means.\n";

static const char *const examples[KVF_BENCH_COMMANDS] = {
    [KVF_BENCH_RING] = "  kvfence-bench ring --cpus 2,3\n",
    [KVF_BENCH_POLL] = "  kvfence-bench poll --json\n",
    [KVF_BENCH_TRANSFER] =
        "  kvfence-bench transfer                              tcp beside iperf3\n"
        "  kvfence-bench transfer --transport local            beside memcpy\n"
        "  kvfence-bench transfer --transport verbs --source-device rxe1 --sink-device rxe0\n"
        "                                                      beside perftest\n",
    [KVF_BENCH_ABORT] = "  kvfence-bench abort --daemon-option tcp-placement=posted\n",
    [KVF_BENCH_SCALE] = "  kvfence-bench scale --rooms 1,65536\n",
};

void kvf_bench_options_help(FILE *out, const struct kvf_bench_options *options)
{
    if (options->command == KVF_BENCH_COMMANDS) {
        fputs(top_text, out);
        for (int i = 0; i < KVF_BENCH_COMMANDS; i++) {
            fprintf(out, "  %-9s %s\n", command_names[i], command_texts[i]);
        }
        fputs(bottom_text, out);
        return;
    }
    fprintf(out, "usage: kvfence-bench %s [options]\n\nMeasures %s.\n\n",
            command_names[options->command], command_texts[options->command]);
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        if ((known[i].commands & 1u << options->command) != 0) {
            char name[48];
            snprintf(name, sizeof(name), "--%s %s", known[i].name,
                     known[i].value != NULL ? known[i].value : "");
            fprintf(out, "  %-27s%s%s\n", name, strlen(name) >= 27 ? "\n" : "", known[i].text);
        }
    }
    fprintf(out, "\n%s%s", examples[options->command], bottom_text);
}

#include "sidecar/host/config_internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sidecar/host/log.h"
#include "sidecar/host/numa.h"
#include "sidecar/host/placement.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define MB UINT64_C(1000000)

static const struct option_word transport_words[] = {{"tcp", KVF_CONFIG_TCP},
                                                     {"verbs", KVF_CONFIG_VERBS},
                                                     {"local", KVF_CONFIG_LOCAL},
                                                     {NULL, 0}};
static const struct option_word on_off_words[] = {{"on", 1}, {"off", 0}, {NULL, 0}};
static const struct option_word placement_words[] = {
    {"checked", KVF_CONFIG_CHECKED}, {"posted", KVF_CONFIG_POSTED}, {NULL, 0}};
static const struct option_word engine_words[] = {{"auto", KVF_CONFIG_AUTO},
                                                  {"sockets", KVF_CONFIG_SOCKETS},
                                                  {"uring", KVF_CONFIG_URING},
                                                  {NULL, 0}};
static const struct option_word mtu_words[] = {{"auto", 0},    {"256", 256},   {"512", 512},
                                               {"1024", 1024}, {"2048", 2048}, {"4096", 4096},
                                               {NULL, 0}};
static const struct option_word spin_words[] = {
    {"auto", KVF_SPIN_AUTO}, {"on", KVF_SPIN_ON}, {"off", KVF_SPIN_OFF}, {NULL, 0}};
static const struct option_word level_words[] = {{"error", KVF_LOG_ERROR},
                                                 {"warn", KVF_LOG_WARN},
                                                 {"info", KVF_LOG_INFO},
                                                 {"debug", KVF_LOG_DEBUG},
                                                 {NULL, 0}};

/* clang-format off */
static const struct option options[] = {
    {.name = "name", .kind = OPTION_TEXT, .off = AT(name), .max = KVF_CONFIG_NAME_BYTES,
     .preset_text = "gpu0", .value = "NAME",
     .help = "what engines and operators call this daemon; letters, digits, '.', '_', '-'"},
    {.name = "config", .kind = OPTION_TEXT, .off = AT(config_file), .max = KVF_CONFIG_PATH_BYTES,
     .preset_text = "", .value = "FILE",
     .help = "read options from there first; those of the command line win. One a line, as in\n"
             "\"lanes = 4\", by the names below without their dashes, yes or no for a flag; # begins a\n"
             "comment. --print-config writes such a file"},
    {.name = "run-dir", .kind = OPTION_TEXT, .off = AT(run_dir), .max = KVF_CONFIG_DIR_BYTES,
     .preset_text = "", .value = "DIR",
     .help = "holds NAME.sock, NAME.stats and NAME.lock. Default: $KVFENCE_RUN_DIR, else /run/kvfence\n"
             "as root, else $XDG_RUNTIME_DIR/kvfence. Created if missing, its parents are not"},
    {.name = "listen", .kind = OPTION_ADDR, .off = AT(listen), .preset_text = "127.0.0.1:0",
     .value = "ADDR:PORT",
     .help = "where other daemons reach this one; numeric, [ADDR]:PORT for IPv6, port 0 = any free one.\n"
             "Loopback only, unless --insecure-listen"},
    {.name = "insecure-listen", .kind = OPTION_FLAG, .off = AT(is_listen_insecure),
     .help = "allow a listen address that other hosts reach. Peers are NOT authenticated: whoever\n"
             "reaches the port may write into pages that a room granted. Trusted networks only"},
    {.name = "transport", .kind = OPTION_WORD, .off = AT(transport), .preset = KVF_CONFIG_TCP,
     .words = transport_words, .value = "tcp|verbs|local",
     .help = "what moves bytes between daemons. verbs: RDMA devices write them, see --rdma-*. local: nothing does,\n"
             "rooms are between engines of this daemon alone; --listen is then the address by which they\n"
             "name it, and nobody listens"},
    {.name = "local", .kind = OPTION_WORD, .off = AT(local), .preset = 1, .words = on_off_words,
     .value = "on|off",
     .help = "on: rooms between engines of this daemon are copied from memory to memory.\n"
             "off: they go through its own socket like those of other daemons"},
    {.name = "tcp-placement", .kind = OPTION_WORD, .off = AT(placement),
     .preset = 0, .words = placement_words, .value = "checked|posted",
     .help = "checked: the grant is looked at before every receive, so an aborted room is idle at once.\n"
             "posted: what was posted lands until the marker, as an RDMA NIC does. Both are safe.\n"
             "With --transport verbs it is posted, and can be nothing else"},
    {.name = "tcp-engine", .kind = OPTION_WORD, .off = AT(tcp_engine), .preset = KVF_CONFIG_AUTO,
     .words = engine_words, .value = "auto|uring|sockets",
     .help = "who makes tcp's calls. uring: io_uring, the lanes of a round by one system call; no start\n"
             "where the host forbids it. sockets: plain calls. auto: uring for rounds of several lanes\n"
             "where it is allowed, else sockets"},
    {.name = "rdma-devices", .kind = OPTION_TEXT, .off = AT(rdma_devices),
     .max = KVF_CONFIG_DEVICES_BYTES, .preset_text = "auto", .value = "auto|NAME[,NAME...]",
     .help = "rails of transport verbs. auto: the devices with an active port that are nearest to the\n"
             "memory, all that are equally near. NAMES: these and no others; the first one decides\n"
             "where the worker runs"},
    {.name = "rdma-near", .kind = OPTION_TEXT, .off = AT(rdma_near), .max = KVF_CONFIG_NEAR_BYTES,
     .preset_text = "auto", .value = "auto|PCI|nodeN",
     .help = "the memory that rails are to be near to: the PCI address of its GPU (0000:3b:00.0), or a\n"
             "NUMA node. auto: the node of --cpu N, else the one of all allowed processors, else that\n"
             "of the first active device"},
    {.name = "rdma-rails", .kind = OPTION_COUNT, .off = AT(rdma_rails), .min = 1,
     .max = KVF_PLACEMENT_RAILS_MAX, .preset = KVF_PLACEMENT_RAILS_MAX, .value = "N",
     .help = "rails that --rdma-devices auto takes at most"},
    {.name = "sysfs", .kind = OPTION_TEXT, .off = AT(sysfs), .max = KVF_CONFIG_DIR_BYTES,
     .preset_text = "/sys", .value = "DIR",
     .help = "where devices, nodes and processors are described, for containers that mount it elsewhere"},
    {.name = "rdma-port", .kind = OPTION_COUNT, .off = AT(rdma_port), .max = 255, .preset = 0,
     .value = "N", .help = "port of every rail; 0 = the first active one of the first rail"},
    {.name = "rdma-gid", .kind = OPTION_TEXT, .off = AT(rdma_gid), .max = KVF_CONFIG_GID_BYTES,
     .preset_text = "any", .value = "any|ADDR",
     .help = "address of ours that lanes use, IPv4 or IPv6; the rail that has it is found at each connect.\n"
             "any: the rail's first RoCE v2 address, IPv4 before IPv6"},
    {.name = "rdma-mtu", .kind = OPTION_WORD, .off = AT(rdma_mtu), .preset = 0,
     .words = mtu_words, .value = "auto|256|512|1024|2048|4096",
     .help = "bytes of one packet; auto: what the port is set to. The smaller of both ends' counts"},
    {.name = "rdma-traffic-class", .kind = OPTION_COUNT, .off = AT(rdma_traffic_class), .max = 255,
     .preset = 0, .value = "N", .help = "traffic class of lanes (DSCP times 4), as the network's lossless class wants it"},
    {.name = "rdma-service-level", .kind = OPTION_COUNT, .off = AT(rdma_service_level), .max = 7,
     .preset = 0, .value = "N", .help = "service level of lanes"},
    {.name = "rdma-timeout", .kind = OPTION_COUNT, .off = AT(rdma_timeout), .min = 1, .max = 31,
     .preset = 14, .value = "N", .why = ": the device waits 4.096 us times 2 to the power N, and 0 means for ever",
     .help = "a device sends again after 4.096 us times 2 to the power N (14: 67 ms)"},
    {.name = "rdma-retry", .kind = OPTION_COUNT, .off = AT(rdma_retry), .max = 6, .preset = 6,
     .value = "N", .why = ": 7 means for ever on some devices, and a lane that never gives up tells nobody",
     .help = "and so often, then the lane is lost; at most 6"},
    {.name = "rdma-stall-ms", .kind = OPTION_MS, .off = AT(rdma_stall_ms), .max = 600000,
     .preset = 0, .value = "MS",
     .help = "a lane whose posts see no completion this long is lost, whatever its device says;\n"
             "0 = a little more than four times what --rdma-timeout and --rdma-retry amount to"},
    {.name = "lane-rate", .kind = OPTION_RATE, .off = AT(lane_rate_bytes), .min = 0,
     .max = 1000000 * MB, .preset = 0, .value = "MB/s",
     .help = "pace of one lane in millions of bytes per second; 0 = unpaced"},
    {.name = "lanes", .kind = OPTION_COUNT, .off = AT(lanes), .min = 1, .max = KVF_CONFIG_LANES_MAX,
     .preset = 1, .value = "N", .help = "streams to each peer"},
    {.name = "lane-rooms", .kind = OPTION_COUNT, .off = AT(lane_rooms), .min = 1, .max = 4096,
     .preset = 256, .value = "N",
     .help = "rooms granted at a time on one lane; more wait as Bootstrapping"},
    {.name = "room-window", .kind = OPTION_SIZE, .off = AT(room_window_bytes), .min = 4 * KIB,
     .max = 1024 * MIB, .preset = 256 * KIB, .value = "BYTES",
     .help = "posted and not completed, most for one room on one lane: what another room's bytes wait\n"
             "behind. Never more than the lane's window"},
    {.name = "lane-window", .kind = OPTION_SIZE, .off = AT(lane_window_bytes), .min = 4 * KIB,
     .max = 1024 * MIB, .preset = 4 * MIB, .value = "BYTES",
     .help = "the same for one lane, all rooms together. With --lane-rate it is held under a quarter\n"
             "of --cooperative-ms, so that one abort never outlasts that deadline"},
    {.name = "post-bytes", .kind = OPTION_SIZE, .off = AT(post_bytes), .min = 4 * KIB,
     .max = 64 * MIB, .preset = 64 * KIB, .value = "BYTES",
     .help = "one post covers more than one page only up to this size"},
    {.name = "stripe-min", .kind = OPTION_SIZE, .off = AT(stripe_bytes_min), .min = 0,
     .max = 1024 * 1024 * MIB, .preset = 8 * MIB, .value = "BYTES",
     .help = "rooms of at least this size use all lanes of a peer, smaller ones a single lane"},
    {.name = "bootstrap-ms", .kind = OPTION_MS, .off = AT(bootstrap_ms), .min = 10, .max = 86400000,
     .preset = 30000, .value = "MS", .help = "a room that waits this long for its peer fails"},
    {.name = "connect-ms", .kind = OPTION_MS, .off = AT(connect_ms), .min = 10, .max = 600000,
     .preset = 5000, .value = "MS", .help = "a peer unreachable this long fails the rooms that wait for it"},
    {.name = "cooperative-ms", .kind = OPTION_MS, .off = AT(cooperative_ms), .min = 10, .max = 60000,
     .preset = 500, .value = "MS", .help = "a closed grant without its marker after this long is fenced"},
    {.name = "fence-ms", .kind = OPTION_MS, .off = AT(fence_ms), .min = 10, .max = 60000,
     .preset = 2000, .value = "MS", .help = "a fence that misses this deadline ends the worker"},
    {.name = "liveness-ms", .kind = OPTION_MS, .off = AT(liveness_ms), .min = 50, .max = 60000,
     .preset = 1250, .value = "MS", .help = "a peer without progress this long is lost"},
    {.name = "watchdog-ms", .kind = OPTION_MS, .off = AT(watchdog_ms), .min = 100, .max = 60000,
     .preset = 1000, .value = "MS", .help = "a worker whose loop stands still this long is ended"},
    {.name = "kill-ms", .kind = OPTION_MS, .off = AT(kill_ms), .min = 100, .max = 600000,
     .preset = 5000, .value = "MS", .help = "time allowed for the kernel to take an ended worker apart"},
    {.name = "grace-ms", .kind = OPTION_MS, .off = AT(grace_ms), .min = 0, .max = 3600000,
     .preset = 5000, .value = "MS",
     .help = "after SIGTERM running rooms go on this long; a second SIGTERM ends the wait"},
    {.name = "cpu", .kind = OPTION_CPU, .off = AT(cpu), .max = KVF_CPUS_MAX - 1, .value = "auto|none|N",
     .help = "where the worker is pinned. auto: the last allowed processor that no other daemon of\n"
             "this run dir has taken, never the first, and none if only one is allowed. With\n"
             "transport verbs first those near its first rail, one of each core before a second"},
    {.name = "spin", .kind = OPTION_WORD, .off = AT(spin), .preset = KVF_SPIN_AUTO,
     .words = spin_words, .value = "auto|on|off",
     .help = "on: never sleep (for a processor of its own). off: sleep whenever nothing is to do.\n"
             "auto: sleep 50 us after the last activity, at once if only one processor is allowed"},
    {.name = "clients", .kind = OPTION_COUNT, .off = AT(clients), .min = 1, .max = 64, .preset = 16,
     .value = "N", .help = "engines attached at a time, those still draining included"},
    {.name = "rooms", .kind = OPTION_COUNT, .off = AT(rooms), .min = 1,
     .max = KVF_ROOMS_PER_CLIENT_MAX, .preset = KVF_ROOMS_PER_CLIENT_MAX, .value = "N",
     .help = "open rooms that one client may ask for"},
    {.name = "log-level", .kind = OPTION_WORD, .off = AT(log_level), .preset = KVF_LOG_INFO,
     .words = level_words, .value = "error|warn|info|debug", .help = "what is written to stderr"},
    {.name = "check", .kind = OPTION_FLAG, .off = AT(is_check),
     .help = "validate options, file, processor and run directory and exit; binds and starts nothing"},
    {.name = "print-config", .kind = OPTION_FLAG, .off = AT(is_print),
     .help = "print the whole effective configuration, and where each value is from, as --config reads it"},
    {.name = "version", .kind = OPTION_FLAG, .off = AT(is_version), .help = "print the versions of program, shared memory and wire, and the build"},
    {.name = "help", .kind = OPTION_FLAG, .off = AT(is_help), .help = "print this and exit"},
};
/* clang-format on */
#define OPTION_COUNT_ALL ((uint32_t)(sizeof(options) / sizeof(options[0])))
_Static_assert(OPTION_COUNT_ALL <= KVF_CONFIG_OPTIONS_MAX, "origins have a place for each");

const struct option *kvf_config_option(uint32_t i)
{
    return i < OPTION_COUNT_ALL ? &options[i] : NULL;
}

uint32_t kvf_config_option_idx(const struct option *o)
{
    return (uint32_t)(o - options);
}

bool kvf_config_is_action(const struct option *o)
{
    return o->off == AT(is_check) || o->off == AT(is_print) || o->off == AT(is_version) ||
           o->off == AT(is_help);
}

static char *field_at(const struct option *o, struct kvf_config *config)
{
    return (char *)config + o->off;
}

const char *kvf_config_field(const struct option *o, const struct kvf_config *config)
{
    return (const char *)config + o->off;
}

int kvf_config_refuse(char *ret_error, size_t cap, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(ret_error, cap, format, args);
    va_end(args);
    return -EINVAL;
}

/* ---- values ------------------------------------------------------------------------------------ */

/* Decimal digits only; a sign, a space or an overflow is no number. Returns the first unread char. */
static const char *read_number(const char *text, uint64_t *ret_value)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        if (value > (UINT64_MAX - digit) / 10u) {
            return NULL;
        }
        value = value * 10u + digit;
    }
    if (at == text) {
        return NULL;
    }
    *ret_value = value;
    return at;
}

static int read_scaled(const char *text, bool has_suffix, uint64_t *ret_value)
{
    uint64_t value = 0;
    const char *rest = read_number(text, &value);
    if (rest == NULL) {
        return -EINVAL;
    }
    unsigned shift = 0;
    if (has_suffix && *rest != '\0') {
        const char *unit = strchr("KkMmGg", *rest);
        if (unit == NULL) {
            return -EINVAL;
        }
        shift = 10u * (unsigned)((unit - "KkMmGg") / 2 + 1);
        rest++;
    }
    if (*rest != '\0' || value > UINT64_MAX >> shift) {
        return -EINVAL;
    }
    *ret_value = value << shift;
    return 0;
}

const char *kvf_config_size_text(uint64_t value, char *ret_text, size_t cap)
{
    static const char *const units[] = {"", "K", "M", "G"};
    unsigned unit = 0;
    while (value != 0 && value % KIB == 0 && unit < 3) {
        value /= KIB;
        unit++;
    }
    snprintf(ret_text, cap, "%" PRIu64 "%s", value, units[unit]);
    return ret_text;
}

int kvf_addr_parse(const char *text, struct kvf_addr_shm *ret_addr)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    size_t host_bytes = colon == NULL ? 0 : (size_t)(colon - text);
    if (host_bytes == 0 || host_bytes >= sizeof(host)) {
        return -EINVAL;
    }
    memcpy(host, text, host_bytes);
    host[host_bytes] = '\0';
    uint64_t port = 0;
    const char *rest = read_number(colon + 1, &port);
    if (rest == NULL || *rest != '\0' || port > UINT16_MAX) {
        return -EINVAL;
    }
    struct kvf_addr_shm addr = {.port = (uint16_t)port};
    if (host[0] == '[' && host[host_bytes - 1u] == ']') {
        host[host_bytes - 1u] = '\0';
        addr.family = 6;
        if (inet_pton(AF_INET6, host + 1, addr.addr) != 1) {
            return -EINVAL;
        }
    } else {
        addr.family = 4;
        if (inet_pton(AF_INET, host, addr.addr) != 1) {
            return -EINVAL;
        }
    }
    *ret_addr = addr;
    return 0;
}

const char *kvf_addr_format(const struct kvf_addr_shm *addr, char *ret_text, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool is_v6 = addr->family == 6;
    inet_ntop(is_v6 ? AF_INET6 : AF_INET, addr->addr, host, sizeof(host));
    snprintf(ret_text, cap, is_v6 ? "[%s]:%u" : "%s:%u", host, (unsigned)addr->port);
    return ret_text;
}

bool kvf_addr_is_loopback(const struct kvf_addr_shm *addr)
{
    if (addr->family == 4) {
        return addr->addr[0] == 127;
    }
    static const unsigned char one[16] = {[15] = 1};
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(addr->addr, one, sizeof(one)) == 0 ||
           (memcmp(addr->addr, mapped, sizeof(mapped)) == 0 && addr->addr[12] == 127);
}

/* ---- one option ----------------------------------------------------------------------------------- */

static void store_number(const struct option *o, struct kvf_config *config, uint64_t value)
{
    if (o->kind == OPTION_SIZE || o->kind == OPTION_RATE) {
        memcpy(field_at(o, config), &value, sizeof(value));
    } else {
        uint32_t small = (uint32_t)value;
        memcpy(field_at(o, config), &small, sizeof(small));
    }
}

uint64_t kvf_config_number(const struct option *o, const struct kvf_config *config)
{
    if (o->kind == OPTION_SIZE || o->kind == OPTION_RATE) {
        uint64_t value;
        memcpy(&value, kvf_config_field(o, config), sizeof(value));
        return value;
    }
    uint32_t small;
    memcpy(&small, kvf_config_field(o, config), sizeof(small));
    return small;
}

static int parse_number(const struct option *o, const char *text, struct kvf_config *config,
                        char *ret_error, size_t cap)
{
    uint64_t unit = o->kind == OPTION_RATE ? MB : 1u;
    uint64_t value = 0;
    int rc = read_scaled(text, o->kind == OPTION_SIZE, &value);
    if (rc == 0 && value <= o->max / unit && value * unit >= o->min) {
        store_number(o, config, value * unit);
        return 0;
    }
    if (o->kind == OPTION_SIZE) {
        char low[32];
        char high[32];
        return kvf_config_refuse(
            ret_error, cap,
            "--%s %s: must be a size from %s to %s (a number with an optional K, M or G)",
            o->name, text, kvf_config_size_text(o->min, low, sizeof(low)),
            kvf_config_size_text(o->max, high, sizeof(high)));
    }
    return kvf_config_refuse(
        ret_error, cap, "--%s %s: must be a whole number from %" PRIu64 " to %" PRIu64 "%s",
        o->name, text, o->min / unit, o->max / unit,
        o->kind == OPTION_MS     ? " (milliseconds)"
        : o->kind == OPTION_RATE ? " (MB/s)"
        : o->why != NULL         ? o->why
                                 : "");
}

static int parse_word(const struct option *o, const char *text, struct kvf_config *config,
                      char *ret_error, size_t cap)
{
    for (const struct option_word *w = o->words; w->text != NULL; w++) {
        if (strcmp(w->text, text) == 0) {
            store_number(o, config, w->value);
            return 0;
        }
    }
    return kvf_config_refuse(ret_error, cap, "--%s %s: must be %s", o->name, text, o->value);
}

static int parse_cpu(const struct option *o, const char *text, struct kvf_config *config,
                     char *ret_error, size_t cap)
{
    uint64_t number = 0;
    const char *rest = read_number(text, &number);
    if (strcmp(text, "auto") == 0) {
        config->cpu = KVF_CPU_AUTO;
    } else if (strcmp(text, "none") == 0) {
        config->cpu = KVF_CPU_NONE;
    } else if (rest != NULL && *rest == '\0' && number <= o->max) {
        config->cpu = (int32_t)number;
    } else {
        return kvf_config_refuse(
            ret_error, cap, "--cpu %s: must be auto, none, or a processor from 0 to %" PRIu64,
            text, o->max);
    }
    return 0;
}

static int parse_flag(const struct option *o, const char *text, struct kvf_config *config,
                      char *ret_error, size_t cap)
{
    bool is_no = text != NULL && strcmp(text, "no") == 0;
    if (text != NULL && !is_no && strcmp(text, "yes") != 0) {
        return kvf_config_refuse(ret_error, cap, "--%s %s: must be yes or no", o->name, text);
    }
    *(bool *)(void *)field_at(o, config) = !is_no;
    return 0;
}

int kvf_config_set(const struct option *o, const char *text, struct kvf_config *config,
                   char *ret_error, size_t cap)
{
    switch (o->kind) {
    case OPTION_TEXT:
        if (strlen(text) >= o->max) {
            return kvf_config_refuse(ret_error, cap, "--%s: longer than %" PRIu64 " bytes",
                                     o->name, o->max - 1);
        }
        snprintf(field_at(o, config), o->max, "%s", text);
        return 0;
    case OPTION_ADDR:
        if (kvf_addr_parse(text, &config->listen) != 0) {
            return kvf_config_refuse(
                ret_error, cap,
                "--%s %s: must be a numeric ADDR:PORT or [ADDR]:PORT (names are not "
                "resolved), port 0 to 65535",
                o->name, text);
        }
        return 0;
    case OPTION_COUNT:
    case OPTION_MS:
    case OPTION_SIZE:
    case OPTION_RATE:
        return parse_number(o, text, config, ret_error, cap);
    case OPTION_WORD:
        return parse_word(o, text, config, ret_error, cap);
    case OPTION_CPU:
        return parse_cpu(o, text, config, ret_error, cap);
    case OPTION_FLAG:
        break;
    }
    assert(o->kind == OPTION_FLAG);
    return parse_flag(o, text, config, ret_error, cap);
}

void kvf_config_presets(struct kvf_config *config)
{
    memset(config, 0, sizeof(*config));
    for (uint32_t i = 0; i < OPTION_COUNT_ALL; i++) {
        const struct option *o = &options[i];
        if (o->kind == OPTION_TEXT) {
            snprintf(field_at(o, config), o->max, "%s", o->preset_text);
        } else if (o->kind == OPTION_ADDR) {
            int rc = kvf_addr_parse(o->preset_text, &config->listen);
            assert(rc == 0);
            (void)rc;
        } else if (o->kind == OPTION_CPU) {
            config->cpu = KVF_CPU_AUTO;
        } else if (o->kind != OPTION_FLAG) {
            store_number(o, config, o->preset);
        }
    }
}

const struct option *kvf_config_find(const char *name, size_t name_bytes)
{
    for (uint32_t i = 0; i < OPTION_COUNT_ALL; i++) {
        if (strlen(options[i].name) == name_bytes &&
            strncmp(options[i].name, name, name_bytes) == 0) {
            return &options[i];
        }
    }
    return NULL;
}

/* Insertions, removals and replacements that make one of the other; names are short. */
static uint32_t distance(const char *a, size_t a_bytes, const char *b)
{
    uint32_t row[KVF_CONFIG_KEY_BYTES + 1u];
    size_t b_bytes = strlen(b);
    assert(b_bytes <= KVF_CONFIG_KEY_BYTES);
    for (size_t j = 0; j <= b_bytes; j++) {
        row[j] = (uint32_t)j;
    }
    for (size_t i = 1; i <= a_bytes; i++) {
        uint32_t corner = row[0];
        row[0] = (uint32_t)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            uint32_t replaced = corner + (a[i - 1] != b[j - 1]);
            uint32_t added = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1u;
            corner = row[j];
            row[j] = replaced < added ? replaced : added;
        }
    }
    return row[b_bytes];
}

const char *kvf_config_nearest(const char *name, size_t name_bytes)
{
    const char *nearest = NULL;
    uint32_t least = (uint32_t)(name_bytes / 3u + 1u);
    if (name_bytes == 0 || name_bytes > KVF_CONFIG_KEY_BYTES) {
        return NULL;
    }
    for (uint32_t i = 0; i < OPTION_COUNT_ALL; i++) {
        uint32_t far = distance(name, name_bytes, options[i].name);
        if (far < least || (far == least && nearest == NULL)) {
            least = far;
            nearest = options[i].name;
        }
    }
    return nearest;
}

uint64_t kvf_config_lane_window(const struct kvf_config *config)
{
    uint64_t paced = config->lane_rate_bytes / 1000u * config->cooperative_ms / 4u;
    if (config->lane_rate_bytes == 0 || config->lane_window_bytes <= paced) {
        return config->lane_window_bytes;
    }
    /* Below one post nothing would move at all. */
    return paced > config->post_bytes ? paced : config->post_bytes;
}

uint64_t kvf_config_room_window(const struct kvf_config *config)
{
    uint64_t lane = kvf_config_lane_window(config);
    return config->room_window_bytes < lane ? config->room_window_bytes : lane;
}

bool kvf_config_moves_device_memory(const struct kvf_config *config)
{
    return config->transport == KVF_CONFIG_VERBS;
}

#include "client/ctl/options.h"

#include <errno.h>
#include <getopt.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/internal.h"
#include "ring/about/about.h"
#include "ring/room_word.h"

#define RELEASE_OPTION "yes-pages-may-be-overwritten"
#define TIMEOUT_S_MAX 86400u

static const char help_text[] =
    "usage: kvfence-ctl [--run-dir DIR] [--name NAME] [--json] COMMAND\n"
    "\n"
    "Tells a running kvfenced what to do, over the socket that engines attach to.\n"
    "Whoever may open the socket may look; commands marked with * are for root and\n"
    "for the user that the daemon runs as.\n"
    "\n"
    "  status       its processes, rooms by phase, what operators have changed\n"
    "* drain [--wait [--timeout S]]\n"
    "               engines' opens are refused with -ESHUTDOWN, rooms that wait for a\n"
    "               grant close, running ones go on; the daemon stays up. --wait: until\n"
    "               no room is undrained, S seconds at most (1 to 86400; else without\n"
    "               end), and says on standard error how it goes\n"
    "* undrain      takes it back\n"
    "  peers        connections to other daemons: address, id, state, rooms\n"
    "* peer down PEER\n"
    "               its rooms fail, and their pages come back by proof as always; its\n"
    "               lanes are fenced; opens that name it are refused with\n"
    "               KVF_E_PEER_HELD. PEER is HOST:PORT where it listens, or its id as\n"
    "               `peers` shows it, which is the only name of one that connected to\n"
    "               this daemon\n"
    "* peer up PEER\n"
    "               takes it back: the same PEER as before\n"
    "  rooms [--quarantined]\n"
    "               rooms whose pages are not idle: whose they are, for how long, and\n"
    "               why; or only those that no proof can be had for\n"
    "* release-quarantine CLIENT SLOT GENERATION --yes-pages-may-be-overwritten\n"
    "               lets the pages of one quarantined room go WITHOUT PROOF. What a dead\n"
    "               engine left to a GPU or a disk may still write into them, and then\n"
    "               their next owner reads it. Say it once the device was reset or is\n"
    "               known to be idle. The numbers are those of `rooms --quarantined`.\n"
    "               Logged, and counted as proof_operator_total\n"
    "* log-level LEVEL\n"
    "               error, warn, info or debug, for supervisor and worker\n"
    "\n"
    "What was changed holds over a worker's end, and not over the daemon's.\n"
    "\n"
    "  --run-dir DIR  where the daemon runs. Default: $KVFENCE_RUN_DIR, else\n"
    "                 /run/kvfence as root, else $XDG_RUNTIME_DIR/kvfence\n"
    "  --name NAME    which daemon. Default: gpu0\n"
    "  --json         the answer as one JSON object on standard output\n"
    "  --version      versions of program, layout and wire, and the build\n"
    "  -h, --help     this text\n"
    "\n"
    "exit status:\n"
    "   0  as asked\n"
    "   2  usage\n"
    "   3  no daemon, or no answer\n"
    "   4  it refused\n"
    "   5  drain --wait: rooms are left at the end of --timeout\n"
    "   6  drain --wait: what is left is in quarantine, which no time ends\n";

static const char *const level_names[] = {"error", "warn", "info", "debug", NULL};

const char *kvf_ctl_level_name(uint32_t level)
{
    return level < sizeof level_names / sizeof level_names[0] ? level_names[level] : NULL;
}

struct words { /* what stands on the command line */
    const char *run_dir;
    const char *name;
    const char *timeout;
    bool is_quarantined;
    bool is_undrained;
    bool is_word;
    char *args[6];
    int arg_count;
};

__attribute__((format(printf, 2, 3))) static int wrong(FILE *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("kvfence-ctl: ", err);
    vfprintf(err, format, args);
    fputs("\n", err);
    va_end(args);
    return -1;
}

static int parse_number(const char *text, int base, uint64_t max, uint64_t *ret_number)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, base);
    bool is_number = base == 16 || (text[0] >= '0' && text[0] <= '9');
    if (!is_number || errno != 0 || *end != '\0' || number > max) {
        return -EINVAL;
    }
    *ret_number = number;
    return 0;
}

/* ---- commands -------------------------------------------------------------------------------------------- */

static int no_more(const struct words *w, FILE *err, int wanted)
{
    return w->arg_count == wanted
               ? 0
               : wrong(err, "%s takes %d word%s behind it; --help says which", w->args[0],
                       wanted - 1, wanted == 2 ? "" : "s");
}

static int parse_drain(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    uint64_t seconds = 0;
    o->req.command = KVF_OPERATE_DRAIN;
    if (w->timeout != NULL && !o->is_waiting) {
        return wrong(err, "--timeout belongs to drain --wait");
    }
    if (w->timeout != NULL &&
        (parse_number(w->timeout, 10, TIMEOUT_S_MAX, &seconds) != 0 || seconds == 0)) {
        return wrong(err, "--timeout \"%s\": 1 to 86400 seconds are allowed", w->timeout);
    }
    o->timeout_s = (uint32_t)seconds;
    return no_more(w, err, 1);
}

static bool is_peer_id(const char *text)
{
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

static int parse_peer(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    if (w->arg_count != 3 ||
        (strcmp(w->args[1], "down") != 0 && strcmp(w->args[1], "up") != 0)) {
        return wrong(err, "peer needs down or up and a peer: HOST:PORT, or an id of `peers`");
    }
    const char *peer = w->args[2];
    o->req.command =
        strcmp(w->args[1], "down") == 0 ? KVF_OPERATE_PEER_DOWN : KVF_OPERATE_PEER_UP;
    (void)snprintf(o->peer, sizeof o->peer, "%s", peer);
    if (is_peer_id(peer)) {
        (void)parse_number(peer, 16, UINT64_MAX, &o->req.peer_id);
        return o->req.peer_id != 0 ? 0 : wrong(err, "0 is no peer's id");
    }
    if (kvf_client_addr_parse(peer, &o->req.addr) != 0) {
        return wrong(
            err,
            "\"%s\" is no peer: HOST:PORT, IPV4:PORT, [IPV6]:PORT or the 16 hex digits "
            "that `peers` shows are allowed",
            peer);
    }
    return 0;
}

static int parse_release(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    uint64_t client = 0;
    uint64_t slot = 0;
    o->req.command = KVF_OPERATE_RELEASE;
    if (w->arg_count != 4 || parse_number(w->args[1], 10, UINT32_MAX, &client) != 0 ||
        parse_number(w->args[2], 10, UINT32_MAX, &slot) != 0 ||
        parse_number(w->args[3], 10, KVF_GENERATION_MAX, &o->req.generation) != 0) {
        return wrong(err, "release-quarantine needs CLIENT SLOT GENERATION as `rooms "
                          "--quarantined` shows them");
    }
    if (!w->is_word) {
        return wrong(
            err, "pages in quarantine may still be written: if they may go to the next owner "
                 "all the same, say --" RELEASE_OPTION);
    }
    o->req.client = (uint32_t)client;
    o->req.slot = (uint32_t)slot;
    o->req.word = KVF_OPERATE_WORD;
    return 0;
}

static int parse_level(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    o->req.command = KVF_OPERATE_LOG_LEVEL;
    for (uint32_t i = 0; w->arg_count == 2 && level_names[i] != NULL; i++) {
        if (strcmp(w->args[1], level_names[i]) == 0) {
            o->req.level = i;
            return 0;
        }
    }
    return wrong(err, "log-level needs one of error, warn, info and debug");
}

static int parse_rooms(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    o->req.command = KVF_OPERATE_ROOMS;
    o->req.phases = w->is_quarantined ? 1u << KVF_PHASE_QUARANTINED : UINT32_MAX;
    if (w->is_quarantined && w->is_undrained) {
        return wrong(err, "--quarantined and --undrained exclude each other");
    }
    return no_more(w, err, 1);
}

static int parse_command(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    const char *command = w->args[0];
    bool is_drain = strcmp(command, "drain") == 0;
    bool is_rooms = strcmp(command, "rooms") == 0;
    bool is_release = strcmp(command, "release-quarantine") == 0;
    if ((o->is_waiting || w->timeout != NULL) && !is_drain) {
        return wrong(err, "--wait and --timeout belong to drain");
    }
    if ((w->is_quarantined || w->is_undrained) && !is_rooms) {
        return wrong(err, "--quarantined and --undrained belong to rooms");
    }
    if (w->is_word && !is_release) {
        return wrong(err, "--" RELEASE_OPTION " belongs to release-quarantine");
    }
    if (is_drain) {
        return parse_drain(o, w, err);
    }
    if (is_rooms) {
        return parse_rooms(o, w, err);
    }
    if (is_release) {
        return parse_release(o, w, err);
    }
    if (strcmp(command, "peer") == 0) {
        return parse_peer(o, w, err);
    }
    if (strcmp(command, "log-level") == 0) {
        return parse_level(o, w, err);
    }
    static const struct {
        const char *word;
        uint32_t command;
    } plain[] = {{"status", KVF_OPERATE_STATUS},
                 {"undrain", KVF_OPERATE_UNDRAIN},
                 {"peers", KVF_OPERATE_PEERS}};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(command, plain[i].word) == 0) {
            o->req.command = plain[i].command;
            return no_more(w, err, 1);
        }
    }
    return wrong(err,
                 "\"%s\" is no command of it: status, drain, undrain, peers, peer, rooms, "
                 "release-quarantine and log-level are",
                 command);
}

/* ---- where the daemon is --------------------------------------------------------------------------------- */

static int find_socket(struct kvf_ctl_options *o, const struct words *w, FILE *err)
{
    const char *set = getenv("KVFENCE_RUN_DIR");
    const char *user = getenv("XDG_RUNTIME_DIR");
    const char *dir = w->run_dir;
    const char *below = "";
    o->name = w->name != NULL ? w->name : "gpu0";
    if (strchr(o->name, '/') != NULL || o->name[0] == '.' || o->name[0] == '\0' ||
        strlen(o->name) > 31u) {
        return wrong(err,
                     "--name \"%s\": a daemon's name has 1 to 31 bytes, no \"/\", and does not "
                     "begin with \".\"",
                     o->name);
    }
    if (dir == NULL && set != NULL && set[0] != '\0') {
        dir = set;
    }
    if (dir == NULL && geteuid() == 0) {
        dir = "/run/kvfence";
    }
    if (dir == NULL && user != NULL && user[0] != '\0') {
        dir = user;
        below = "/kvfence";
    }
    if (dir == NULL) {
        return wrong(err,
                     "no run directory: set --run-dir, KVFENCE_RUN_DIR or XDG_RUNTIME_DIR");
    }
    int n =
        snprintf(o->socket_path, sizeof o->socket_path, "%s%s/%s.sock", dir, below, o->name);
    return n > 0 && (size_t)n < sizeof o->socket_path
               ? 0
               : wrong(err, "the path of the socket is longer than 107 bytes: choose another "
                            "--run-dir");
}

/* ---- the line ------------------------------------------------------------------------------------------------ */

static int take_option(int option, struct kvf_ctl_options *o, struct words *w)
{
    switch (option) {
    case 'j':
        o->is_json = true;
        return 0;
    case 'd':
        w->run_dir = optarg;
        return 0;
    case 'n':
        w->name = optarg;
        return 0;
    case 'w':
        o->is_waiting = true;
        return 0;
    case 't':
        w->timeout = optarg;
        return 0;
    case 'q':
        w->is_quarantined = true;
        return 0;
    case 'u':
        w->is_undrained = true;
        return 0;
    case 'y':
        w->is_word = true;
        return 0;
    default:
        return -1;
    }
}

static int read_words(int argc, char **argv, FILE *out, FILE *err, struct kvf_ctl_options *o,
                      struct words *w)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},
        {"run-dir", required_argument, NULL, 'd'},
        {"name", required_argument, NULL, 'n'},
        {"wait", no_argument, NULL, 'w'},
        {"timeout", required_argument, NULL, 't'},
        {"quarantined", no_argument, NULL, 'q'},
        {"undrained", no_argument, NULL, 'u'},
        {RELEASE_OPTION, no_argument, NULL, 'y'},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;
    optind = 0; /* a fresh start, also for a second run in one process */
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (option == 'V') {
            kvf_about_print("kvfence-ctl", out);
            return 1;
        }
        if (option == 'h') {
            fputs(help_text, out);
            return 1;
        }
        if (option == ':') {
            return wrong(err, "%s needs a value", argv[optind - 1]);
        }
        if (take_option(option, o, w) != 0) {
            return wrong(err, "%s is no option of it; --help lists them", argv[optind - 1]);
        }
    }
    for (int i = optind; i < argc; i++) {
        if (w->arg_count == (int)(sizeof w->args / sizeof w->args[0])) {
            return wrong(err, "\"%s\" is one word too many; --help shows the commands",
                         argv[i]);
        }
        w->args[w->arg_count++] = argv[i];
    }
    return w->arg_count > 0 ? 0 : wrong(err, "needs a command; --help lists them");
}

int kvf_ctl_parse(int argc, char **argv, FILE *out, FILE *err,
                  struct kvf_ctl_options *ret_options)
{
    struct words w = {.run_dir = NULL};
    *ret_options = (struct kvf_ctl_options){.is_json = false};
    int rc = read_words(argc, argv, out, err, ret_options, &w);
    if (rc == 0) {
        rc = parse_command(ret_options, &w, err);
    }
    return rc != 0 ? rc : find_socket(ret_options, &w, err);
}

/* kvfence-proxy: stands between two daemons and misbehaves as told. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/proxy/relay.h"

#define EXIT_USAGE 2
#define EXIT_BROKEN 3
#define LINE_BYTES 4096

static const char help_head[] =
    "usage: kvfence-proxy --listen ADDR:PORT --to ADDR:PORT [--rule RULE[,RULE...]] [--seed "
    "S]\n"
    "\n"
    "Takes TCP connections at one address and makes one to the other for each; forwards both "
    "ways,\n"
    "except where its rules say otherwise. In front of a kvfenced: engines name the proxy's "
    "address\n"
    "as the writer's, and that daemon's control connection and lanes go through it.\n"
    "\n"
    "  --listen ADDR:PORT   port 0: any free one; the ready line says which\n"
    "  --to ADDR:PORT       where connections go\n"
    "  --rule RULES         may be given several times\n"
    "  --seed S             of the sizes of split; default 1\n"
    "\n";
static const char help_tail[] =
    "\n"
    "Standard input, a terminal or a pipe, takes commands, one a line; each is answered by a "
    "line\n"
    "\"ok ...\" or \"error: ...\". Its end is the proxy's end; from /dev/null there are none.\n"
    "  RULES            more rules, counted from now\n"
    "  clear            no rules any more: what was held back goes on\n"
    "  to ADDR:PORT     where new connections go\n"
    "  stat             counts: connections, bytes forth and back, refused by an end that was "
    "gone, held\n"
    "  quit\n"
    "\n"
    "exit status: 0 told to end, 2 usage, 3 could not listen\n";

struct proxy {
    struct kvf_relay *relay;
    struct kvf_relay_address listen;
    struct kvf_relay_address to;
    struct kvf_rule rules[KVF_RULES_MAX];
    uint32_t rule_count;
    uint64_t seed;
    bool has_listen;
    bool has_to;
    bool must_end;
    char line[LINE_BYTES];
    size_t line_bytes;
};

/* ---- options ---------------------------------------------------------------------------------------- */

static int refuse(const char *option, const char *value, const char *why)
{
    fprintf(stderr, "kvfence-proxy: --%s %s: %s\n", option, value, why);
    return EXIT_USAGE;
}

static int take_rules(struct proxy *p, const char *text)
{
    char why[200];
    int count = kvf_rules_parse(text, p->rules + p->rule_count, KVF_RULES_MAX - p->rule_count,
                                why, sizeof why);
    if (count < 0) {
        return refuse("rule", text, why);
    }
    p->rule_count += (uint32_t)count;
    return 0;
}

static int take_option(struct proxy *p, int id, const char *text)
{
    char *end;
    switch (id) {
    case 'l':
        p->has_listen = true;
        return kvf_relay_address_parse(text, &p->listen) == 0
                   ? 0
                   : refuse("listen", text, "it is ADDR:PORT, numeric");
    case 't':
        p->has_to = true;
        return kvf_relay_address_parse(text, &p->to) == 0
                   ? 0
                   : refuse("to", text, "it is ADDR:PORT, numeric");
    case 'r':
        return take_rules(p, text);
    case 's':
        errno = 0;
        p->seed = strtoull(text, &end, 0);
        return errno == 0 && end != text && *end == '\0' && text[0] != '-'
                   ? 0
                   : refuse("seed", text, "a number of 64 bits");
    default:
        return EXIT_USAGE;
    }
}

/* 0: go on; -1: help was shown; EXIT_USAGE. */
static int parse(struct proxy *p, int argc, char **argv)
{
    static const struct option options[] = {
        {"listen", required_argument, NULL, 'l'}, {"to", required_argument, NULL, 't'},
        {"rule", required_argument, NULL, 'r'},   {"seed", required_argument, NULL, 's'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
    int id;
    opterr = 0;
    while ((id = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        if (id == 'h') {
            printf("%s%s%s", help_head, kvf_rules_help, help_tail);
            return -1;
        }
        if (id == '?' || id == ':') {
            fprintf(stderr, "kvfence-proxy: %s %s; --help lists its options\n",
                    argv[optind - 1], id == ':' ? "needs a value" : "is no option of it");
            return EXIT_USAGE;
        }
        int rc = take_option(p, id, optarg);
        if (rc != 0) {
            return rc;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "kvfence-proxy: '%s': only options are taken; --help lists them\n",
                argv[optind]);
        return EXIT_USAGE;
    }
    if (!p->has_listen || !p->has_to) {
        fprintf(stderr, "kvfence-proxy: --listen and --to are both needed; --help says more\n");
        return EXIT_USAGE;
    }
    return 0;
}

/* ---- commands --------------------------------------------------------------------------------------- */

static void say_counts(const struct proxy *p)
{
    struct kvf_relay_counts c;
    kvf_relay_count(p->relay, &c);
    printf("ok open=%u control=%u lanes=%u accepted=%llu forth=%llu back=%llu "
           "refused_forth=%llu refused_back=%llu held_forth=%llu held_back=%llu struck=%llu "
           "flipped=%llu\n",
           c.open, c.control, c.lanes, (unsigned long long)c.accepted,
           (unsigned long long)c.bytes[KVF_FORTH], (unsigned long long)c.bytes[KVF_BACK],
           (unsigned long long)c.refused[KVF_FORTH], (unsigned long long)c.refused[KVF_BACK],
           (unsigned long long)c.held[KVF_FORTH], (unsigned long long)c.held[KVF_BACK],
           (unsigned long long)c.struck, (unsigned long long)c.flipped);
}

static void add_rules(struct proxy *p, const char *text)
{
    struct kvf_rule rules[KVF_RULES_MAX];
    char why[200];
    int count = kvf_rules_parse(text, rules, KVF_RULES_MAX, why, sizeof why);
    if (count < 0) {
        printf("error: %s\n", why);
    } else if (kvf_relay_add(p->relay, rules, (uint32_t)count) != 0) {
        printf("error: more than %u rules in all; clear removes them\n", KVF_RULES_MAX);
    } else {
        printf("ok %d more\n", count);
    }
}

static void command(struct proxy *p, const char *line)
{
    struct kvf_relay_address to;
    if (strcmp(line, "clear") == 0) {
        kvf_relay_clear(p->relay);
        puts("ok");
    } else if (strcmp(line, "stat") == 0) {
        say_counts(p);
    } else if (strcmp(line, "quit") == 0) {
        p->must_end = true;
        puts("ok");
    } else if (strncmp(line, "to ", 3) == 0) {
        if (kvf_relay_address_parse(line + 3, &to) == 0) {
            kvf_relay_aim(p->relay, &to);
            puts("ok");
        } else {
            puts("error: to takes ADDR:PORT, numeric");
        }
    } else {
        add_rules(p, line);
    }
    fflush(stdout);
}

static void read_commands(struct proxy *p)
{
    ssize_t n = read(STDIN_FILENO, p->line + p->line_bytes, LINE_BYTES - 1u - p->line_bytes);
    if (n <= 0) {
        p->must_end = true; /* nobody can tell it anything any more */
        return;
    }
    p->line_bytes += (size_t)n;
    p->line[p->line_bytes] = '\0';
    char *rest = p->line;
    char *end;
    while ((end = strchr(rest, '\n')) != NULL) {
        *end = '\0';
        command(p, rest);
        rest = end + 1;
    }
    p->line_bytes = strlen(rest);
    memmove(p->line, rest, p->line_bytes);
    if (p->line_bytes == LINE_BYTES - 1u) {
        p->line_bytes = 0;
        puts("error: a line has at most 4,095 characters");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    static struct proxy p = {.seed = 1};
    char listens[80];
    char to[80];
    int rc = parse(&p, argc, argv);
    if (rc != 0) {
        return rc < 0 ? 0 : rc;
    }
    signal(SIGPIPE, SIG_IGN);
    rc = kvf_relay_create(&p.listen, &p.to, p.seed, &p.relay);
    if (rc != 0) {
        kvf_relay_address_text(&p.listen, listens, sizeof listens);
        fprintf(stderr, "kvfence-proxy: cannot listen on %s: %s\n", listens, strerror(-rc));
        return EXIT_BROKEN;
    }
    kvf_relay_add(p.relay, p.rules, p.rule_count);
    /* A file or /dev/null cannot be waited for: then there are no commands, and a signal ends it. */
    (void)kvf_relay_watch(p.relay, STDIN_FILENO);
    kvf_relay_listens_at(p.relay, listens, sizeof listens);
    kvf_relay_address_text(&p.to, to, sizeof to);
    printf("kvfence-proxy: ready listen=%s to=%s\n", listens, to);
    fflush(stdout);
    while (!p.must_end) {
        bool is_readable = false;
        rc = kvf_relay_turn(p.relay, &is_readable);
        if (rc != 0) {
            fprintf(stderr, "kvfence-proxy: epoll: %s\n", strerror(-rc));
            break;
        }
        if (is_readable) {
            read_commands(&p);
        }
    }
    kvf_relay_destroy(p.relay);
    return rc == 0 ? 0 : EXIT_BROKEN;
}

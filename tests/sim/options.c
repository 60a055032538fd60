/* The command line of kvfence-sim. */
#include "tests/sim/options.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/about/about.h"
#include "tests/sim/parts.h"

const char *const sim_plant_names[SIM_PLANTS] = {
    [SIM_PLANT_UNSTRICT_FENCE] = "unstrict-fence",
    [SIM_PLANT_TRUST_FLUSH] = "fence-only-flushes",
    [SIM_PLANT_CONSTANT_PSN] = "constant-psn",
    [SIM_PLANT_REUSE_EARLY] = "engine-reuses-early",
    [SIM_PLANT_REUSE_ON_EARLY_FAIL] = "engine-reuses-when-failure-is-told",
    [SIM_PLANT_REAP_AT_KILL] = "supervisor-publishes-before-reap",
    [SIM_PLANT_LEASE_IGNORED] = "lease-ignored",
    [SIM_PLANT_OLD_EPOCH] = "old-epoch-accepted",
    [SIM_PLANT_HANG_UP_IS_REAPED] = "hang-up-is-death",
    [SIM_PLANT_DEVICE_LEASE_FREED] = "device-lease-freed",
    [SIM_PLANT_COMPLETION_LOST] = "completion-lost",
    [SIM_PLANT_NO_WATCHDOG] = "no-watchdog",
};
static const char *const plant_texts[SIM_PLANTS] = {
    [SIM_PLANT_UNSTRICT_FENCE] = "a fence returns before the last packet is placed",
    [SIM_PLANT_TRUST_FLUSH] = "a fence flushes, and its queue pair goes on answering",
    [SIM_PLANT_CONSTANT_PSN] = "queue pairs reuse their numbers and begin at one PSN",
    [SIM_PLANT_REUSE_EARLY] = "engines reuse pages once they have aborted",
    [SIM_PLANT_REUSE_ON_EARLY_FAIL] = "engines reuse pages once failure is told, not release",
    [SIM_PLANT_REAP_AT_KILL] = "the supervisor publishes at SIGKILL, not after the reap",
    [SIM_PLANT_LEASE_IGNORED] = "the worker tells its core that no lease is out",
    [SIM_PLANT_OLD_EPOCH] = "a new worker takes an old worker's opens for its own",
    [SIM_PLANT_HANG_UP_IS_REAPED] = "an engine's hang-up counts as its end",
    [SIM_PLANT_DEVICE_LEASE_FREED] =
        "a dead engine's gpu and direct-io leases count as returned",
    [SIM_PLANT_COMPLETION_LOST] = "the transport forgets a completion now and then",
    [SIM_PLANT_NO_WATCHDOG] = "nobody ends a worker that stands still or whose fence hangs",
};

/* ---- help ------------------------------------------------------------------------------------------------------- */

static void print_help(void)
{
    puts(
        "kvfence-sim: daemons, engines, networks and NICs under virtual time, driven by "
        "seeds.\n"
        "\n"
        "usage: kvfence-sim [--seeds N] [--from S] [--jobs N] [--kind K] [--traffic T] "
        "[--json]\n"
        "       kvfence-sim --seed S [--keep LIST] [--easy LIST] [--trace]\n"
        "\n"
        "Every seed is a world of 2 to 5 hosts whose daemons run the real core, with faults. A "
        "shadow owner of\n"
        "every page says whether a byte landed, or was read, where it must not. After the "
        "faults every room\n"
        "must end within the promised bound, pages must be idle or in visible quarantine, "
        "counters must\n"
        "balance, and transfers must work again. The same seed is the same history on every "
        "machine.\n"
        "\n"
        "  --seeds N     how many seeds; 1000\n"
        "  --from S      the first seed; 1\n"
        "  --jobs N      processes; as many as CPUs are allowed\n"
        "  --kind K      calm, aborts, deaths, partitions, leases or mixed; the seed chooses\n"
        "  --traffic T   checked or posted (streams), nic (queue pairs); the seed chooses\n"
        "  --plant NAME  a planted misbehaviour: the run must fail. May be given more than "
        "once\n"
        "  --json        one object on stdout: seeds, failed, events, rooms, aborts, fences, "
        "crashes,\n"
        "                late_writes_refused, unsafe_landings, bound_violations, and more\n"
        "  --no-shrink   do not make the first failing seed smaller\n"
        "\n"
        "  --seed S      plays one seed and shows its operations and, if it fails, its "
        "history\n"
        "  --keep LIST   of these operations only: --keep 3,17,18 (what a shrunk seed prints)\n"
        "  --easy LIST   with these simplified: --easy 3.0,17.2 (the same)\n"
        "  --trace       shows the whole history, not only what concerns the failing page and "
        "rooms\n"
        "  --help (-h), --version\n"
        "\n"
        "plants:");
    for (uint32_t i = 0; i < SIM_PLANTS; i++) {
        printf("  %-36s %s\n", sim_plant_names[i], plant_texts[i]);
    }
    puts(
        "\n"
        "exit status: 0 all seeds passed; 1 a seed failed; 2 usage; 4 all passed, but faults "
        "stayed so near\n"
        "to zero that the run does not count (200 seeds or more, without --kind, --traffic, "
        "--plant)\n"
        "\n"
        "examples:\n"
        "  kvfence-sim --seeds 100000               the usual proof\n"
        "  kvfence-sim --seeds 500 --kind deaths    what happens when things die\n"
        "  kvfence-sim --seed 4711 --trace | less   every event of one seed\n"
        "  kvfence-sim --seeds 500 --plant unstrict-fence    a control: must exit 1\n"
        "  kvfence-sim --seeds 500 --kind deaths --plant no-watchdog    the same; without "
        "--kind "
        "this one\n"
        "                                           needs more seeds, since few of them hold a "
        "worker up");
}

static int refuse(const char *what, const char *text)
{
    fprintf(stderr, "kvfence-sim: %s \"%s\"; --help says what is known\n", what, text);
    return SIM_EXIT_USAGE;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

static bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret_value)
{
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\0' || value < min || value > max) {
        return false;
    }
    *ret_value = value;
    return true;
}

static uint32_t find_name(const char *const *names, uint32_t count, const char *text)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(names[i], text) == 0) {
            return i;
        }
    }
    return count;
}

/* "3,17,18", or "3.0,17.2" if step is wanted. */
static bool parse_list(const char *text, bool has_steps, struct sim_options *o)
{
    static char copy[16 * SIM_OPS_MAX * SIM_EASY_STEPS];
    char *rest = NULL;
    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *item = strtok_r(copy, ",", &rest); item != NULL;
         item = strtok_r(NULL, ",", &rest)) {
        uint64_t op;
        uint64_t step = 0;
        char *dot = strchr(item, '.');
        if (has_steps != (dot != NULL)) {
            return false;
        }
        if (dot != NULL) {
            *dot = '\0';
            if (!parse_number(dot + 1, 0, SIM_EASY_STEPS - 1u, &step)) {
                return false;
            }
        }
        if (!parse_number(item, 0, SIM_OPS_MAX - 1u, &op)) {
            return false;
        }
        if (has_steps) {
            o->easy[op] = (uint16_t)(o->easy[op] | 1u << step);
        } else {
            o->is_kept[op] = true;
        }
    }
    return true;
}

static uint32_t cpus_allowed(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    uint32_t count = (uint32_t)CPU_COUNT(&set);
    return count < 1 ? 1 : count > SIM_JOBS_MAX ? SIM_JOBS_MAX : count;
}

/* ---- the line --------------------------------------------------------------------------------------------------- */

enum {
    OPT_SEEDS = 256,
    OPT_FROM,
    OPT_JOBS,
    OPT_KIND,
    OPT_TRAFFIC,
    OPT_PLANT,
    OPT_JSON,
    OPT_NO_SHRINK,
    OPT_SEED,
    OPT_KEEP,
    OPT_EASY,
    OPT_TRACE,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {{"seeds", required_argument, NULL, OPT_SEEDS},
                                             {"from", required_argument, NULL, OPT_FROM},
                                             {"jobs", required_argument, NULL, OPT_JOBS},
                                             {"kind", required_argument, NULL, OPT_KIND},
                                             {"traffic", required_argument, NULL, OPT_TRAFFIC},
                                             {"plant", required_argument, NULL, OPT_PLANT},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"no-shrink", no_argument, NULL, OPT_NO_SHRINK},
                                             {"seed", required_argument, NULL, OPT_SEED},
                                             {"keep", required_argument, NULL, OPT_KEEP},
                                             {"easy", required_argument, NULL, OPT_EASY},
                                             {"trace", no_argument, NULL, OPT_TRACE},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {"version", no_argument, NULL, OPT_VERSION},
                                             {NULL, 0, NULL, 0}};

static int take_choice(struct sim_options *o, int option, const char *text)
{
    uint32_t idx;
    switch (option) {
    case OPT_KIND:
        idx = find_name(sim_flavour_names, SIM_FLAVOURS, text);
        o->flavour = (enum sim_flavour)idx;
        return idx < SIM_FLAVOURS ? SIM_EXIT_GO_ON : refuse("no kind of seed is called", text);
    case OPT_TRAFFIC:
        idx = find_name(sim_traffic_names, SIM_TRAFFICS, text);
        o->traffic = (enum sim_traffic)idx;
        return idx < SIM_TRAFFICS ? SIM_EXIT_GO_ON : refuse("no traffic is called", text);
    default:
        idx = find_name(sim_plant_names, SIM_PLANTS, text);
        o->plants |= idx < SIM_PLANTS ? 1u << idx : 0u;
        return idx < SIM_PLANTS ? SIM_EXIT_GO_ON : refuse("no plant is called", text);
    }
}

static int take_number(struct sim_options *o, int option, const char *text)
{
    uint64_t value = 0;
    uint64_t max = option == OPT_JOBS ? SIM_JOBS_MAX : UINT64_C(1) << 62;
    uint64_t min = option == OPT_FROM || option == OPT_SEED ? 0 : 1;
    if (!parse_number(text, min, max, &value)) {
        return refuse("not a number that is allowed here:", text);
    }
    switch (option) {
    case OPT_SEEDS:
        o->has_seeds = true;
        o->seeds = value;
        break;
    case OPT_JOBS:
        o->jobs = (uint32_t)value;
        break;
    case OPT_SEED:
        o->is_one = true;
        o->from = value;
        break;
    default:
        o->from = value;
        break;
    }
    return SIM_EXIT_GO_ON;
}

static int take_option(struct sim_options *o, int option, const char *text)
{
    switch (option) {
    case OPT_SEEDS:
    case OPT_FROM:
    case OPT_JOBS:
    case OPT_SEED:
        return take_number(o, option, text);
    case OPT_KIND:
    case OPT_TRAFFIC:
    case OPT_PLANT:
        return take_choice(o, option, text);
    case OPT_KEEP:
        o->has_keep = true;
        return parse_list(text, false, o) ? SIM_EXIT_GO_ON
                                          : refuse("not a list of operations:", text);
    case OPT_EASY:
        return parse_list(text, true, o) ? SIM_EXIT_GO_ON
                                         : refuse("not a list of simplifications:", text);
    case OPT_JSON:
        o->is_json = true;
        return SIM_EXIT_GO_ON;
    case OPT_NO_SHRINK:
        o->has_no_shrink = true;
        return SIM_EXIT_GO_ON;
    case OPT_TRACE:
        o->is_traced = true;
        return SIM_EXIT_GO_ON;
    case 'h':
    case OPT_HELP:
        print_help();
        return SIM_EXIT_PASSED;
    case OPT_VERSION:
        kvf_about_print("kvfence-sim", stdout);
        return SIM_EXIT_PASSED;
    default: /* getopt said what was wrong */
        fputs("kvfence-sim: --help says what is known\n", stderr);
        return SIM_EXIT_USAGE;
    }
}

int sim_options_parse(int argc, char **argv, struct sim_options *ret_options)
{
    struct sim_options *o = ret_options;
    *o = (struct sim_options){.seeds = 1000,
                              .from = 1,
                              .jobs = cpus_allowed(),
                              .flavour = SIM_FLAVOURS,
                              .traffic = SIM_TRAFFICS};
    int option;
    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
        int status = take_option(o, option, optarg);
        if (status != SIM_EXIT_GO_ON) {
            return status;
        }
    }
    if (optind < argc) {
        return refuse("not an option:", argv[optind]);
    }
    if (o->is_one && (o->has_seeds || o->is_json)) {
        fputs("kvfence-sim: --seed plays one seed and shows it; --seeds and --json are about "
              "many: "
              "--from S --seeds 1 --json\n",
              stderr);
        return SIM_EXIT_USAGE;
    }
    if ((o->has_keep || o->is_traced) && !o->is_one) {
        fputs(
            "kvfence-sim: --keep, --easy and --trace are about one seed: name it with --seed\n",
            stderr);
        return SIM_EXIT_USAGE;
    }
    return SIM_EXIT_GO_ON;
}

void sim_options_apply(const struct sim_options *options, struct sim_scenario *scenario)
{
    for (uint32_t i = 0; i < scenario->op_count; i++) {
        scenario->ops[i].is_off = options->has_keep && !options->is_kept[i];
        for (uint32_t step = 0; step < SIM_EASY_STEPS; step++) {
            if ((options->easy[i] >> step & 1u) != 0) {
                (void)sim_op_ease(&scenario->ops[i], step);
            }
        }
    }
}

void sim_options_print(const struct sim_options *options, uint64_t seed,
                       const struct sim_scenario *scenario, const uint16_t *easy)
{
    printf("kvfence-sim --seed %llu", (unsigned long long)seed);
    if (options->flavour < SIM_FLAVOURS) {
        printf(" --kind %s", sim_flavour_names[options->flavour]);
    }
    if (options->traffic < SIM_TRAFFICS) {
        printf(" --traffic %s", sim_traffic_names[options->traffic]);
    }
    for (uint32_t i = 0; i < SIM_PLANTS; i++) {
        if ((options->plants >> i & 1u) != 0) {
            printf(" --plant %s", sim_plant_names[i]);
        }
    }
    const char *before = " --keep ";
    for (uint32_t i = 0; i < scenario->op_count; i++) {
        if (!scenario->ops[i].is_off) {
            printf("%s%u", before, i);
            before = ",";
        }
    }
    before = " --easy ";
    for (uint32_t i = 0; i < scenario->op_count; i++) {
        for (uint32_t step = 0; step < SIM_EASY_STEPS; step++) {
            if (!scenario->ops[i].is_off && (easy[i] >> step & 1u) != 0) {
                printf("%s%u.%u", before, i, step);
                before = ",";
            }
        }
    }
    putchar('\n');
}

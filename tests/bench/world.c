#include "tests/bench/world.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/report.h"

#define READY_MS 15000u
#define DAEMON_END_MS 10000u
#define ATTACH_MS 5000u
#define DETACH_MS 5000u
#define ARGS_MAX 96u
#define EVENTS_MAX 64
#define PAUSE_MS 1
#define LOOKS_PER_CLOCK 64u

static const char *const end_names[KVF_ENDS] = {"source", "sink"};

static int broken(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int broken(const char *format, ...)
{
    va_list args;
    fprintf(stderr, "kvfence-bench: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return KVF_BENCH_BROKEN;
}

/* ---- daemons -------------------------------------------------------------------------------------- */

struct args {
    char *argv[ARGS_MAX];
    uint32_t count;
    char text[8192];
    size_t used;
};

static void arg_add(struct args *args, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void arg_add(struct args *args, const char *format, ...)
{
    va_list list;
    size_t left = sizeof(args->text) - args->used;
    va_start(list, format);
    int n = vsnprintf(args->text + args->used, left, format, list);
    va_end(list);
    if (n >= 0 && (size_t)n < left && args->count + 1 < ARGS_MAX) {
        args->argv[args->count++] = args->text + args->used;
        args->argv[args->count] = NULL;
        args->used += (size_t)n + 1;
    }
}

static void arg_pair(struct args *args, const char *name, const char *value)
{
    arg_add(args, "--%s", name);
    arg_add(args, "%s", value);
}

/* What was asked for by hand stands last and so wins. */
static void add_asked(struct args *args, const struct kvf_bench_options *o, unsigned int sides)
{
    for (uint32_t i = 0; i < o->daemon_option_count; i++) {
        const struct kvf_daemon_option *d = &o->daemon_options[i];
        const char *equals = strchr(d->text, '=');
        if (((unsigned int)d->side & sides) == 0) {
            continue;
        }
        if (equals == NULL) {
            arg_add(args, "--%s", d->text);
        } else {
            arg_add(args, "--%.*s", (int)(equals - d->text), d->text);
            arg_add(args, "%s", equals + 1);
        }
    }
}

static void daemon_args(const struct kvf_world *world, const struct kvf_world_plan *plan,
                        uint32_t i, struct args *args)
{
    const struct kvf_bench_options *o = world->options;
    int cpu = i == KVF_AT_SOURCE ? world->cpus.source : world->cpus.sink;
    unsigned int side = i == KVF_AT_SOURCE ? KVF_SIDE_SOURCE : KVF_SIDE_SINK;
    arg_add(args, "%s", world->self_path);
    arg_add(args, "--role=daemon:%d", (int)getpid());
    arg_add(args, "%s", world->daemon_path);
    arg_pair(args, "name", world->daemons[i].name);
    arg_pair(args, "run-dir", world->run_dir);
    arg_pair(args, "listen", "127.0.0.1:0");
    arg_pair(args, "transport", kvf_bench_transport_name(plan->transport));
    arg_pair(args, "log-level", "warn");
    arg_add(args, "--lanes");
    arg_add(args, "%u", o->lanes);
    if (o->lane_rate > 0) {
        arg_add(args, "--lane-rate");
        arg_add(args, "%u", o->lane_rate);
    }
    arg_add(args, "--cpu");
    if (cpu >= 0) {
        arg_add(args, "%d", cpu);
    } else {
        arg_add(args, "none");
    }
    const char *device = i == KVF_AT_SOURCE ? o->source_device : o->sink_device;
    if (plan->transport == KVF_BENCH_VERBS && device != NULL) {
        arg_pair(args, "rdma-devices", device);
    }
    /* Rooms of a measurement wait as long as it takes. */
    arg_pair(args, "bootstrap-ms", "3600000");
    add_asked(args, o, world->daemon_count == 1 ? KVF_SIDE_BOTH : side);
}

static void last_words(const struct kvf_world *world, uint32_t i, char *ret_text, size_t cap)
{
    char path[160];
    char line[256];
    snprintf(path, sizeof(path), "%s/%s.log", world->run_dir, world->daemons[i].name);
    FILE *log = fopen(path, "re");
    snprintf(ret_text, cap, "it left no word");
    while (log != NULL && fgets(line, sizeof(line), log) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] != 0) {
            snprintf(ret_text, cap, "%s", line);
        }
    }
    if (log != NULL) {
        fclose(log);
    }
}

static int spawn_daemon(struct kvf_world *world, const struct kvf_world_plan *plan, uint32_t i)
{
    struct args args = {.count = 0};
    char log_path[160];
    struct kvf_child *child = &world->daemons[i];
    daemon_args(world, plan, i, &args);
    snprintf(log_path, sizeof(log_path), "%s/%s.log", world->run_dir, child->name);
    struct kvf_spawn spawn = {.path = world->self_path,
                              .argv = args.argv,
                              .handed_fd = -1,
                              .log_path = log_path,
                              .has_output = true};
    int rc = kvf_child_spawn(child, &spawn);
    return rc == 0 ? 0 : broken("cannot start %s: %s", world->daemon_path, strerror(-rc));
}

/* The word behind " NAME=" in the daemon's line. */
static void take_word(const char *line, const char *name, char *ret_word, size_t cap)
{
    const char *at = strstr(line, name);
    if (at != NULL) {
        at += strlen(name);
        snprintf(ret_word, cap, "%.*s", (int)strcspn(at, " "), at);
    }
}

static int await_daemon(struct kvf_world *world, uint32_t i)
{
    struct kvf_child *child = &world->daemons[i];
    char line[512];
    char words[256];
    int rc;
    do {
        rc = kvf_child_read_line(child, READY_MS, line, sizeof(line));
    } while (rc >= 0 && strncmp(line, "kvfenced: ready ", 16) != 0);
    if (rc == -EINTR) {
        return broken("interrupted by signal %d", kvf_process_signal());
    }
    if (rc >= 0) {
        take_word(line, " listen=", world->listen[i], sizeof(world->listen[i]));
        take_word(line, " engine=", world->engine, sizeof(world->engine));
        return 0;
    }
    last_words(world, i, words, sizeof(words));
    bool is_bad_option = kvf_child_wait(child, DAEMON_END_MS) && WIFEXITED(child->status) &&
                         WEXITSTATUS(child->status) == 2;
    (void)broken("daemon %s did not become ready: %s; it says: %s", child->name,
                 rc == -EPIPE ? "it ended" : strerror(-rc), words);
    return is_bad_option ? KVF_BENCH_USAGE : KVF_BENCH_BROKEN;
}

/* ---- start and end -------------------------------------------------------------------------------- */

static int find_programs(struct kvf_world *world)
{
    if (kvf_program_path(NULL, world->self_path, sizeof(world->self_path)) != 0 ||
        kvf_program_path("kvfenced", world->daemon_path, sizeof(world->daemon_path)) != 0) {
        return broken("cannot tell where this program lies");
    }
    if (world->options->kvfenced != NULL) {
        snprintf(world->daemon_path, sizeof(world->daemon_path), "%s",
                 world->options->kvfenced);
    }
    return access(world->daemon_path, X_OK) == 0
               ? 0
               : broken("%s: %s; --kvfenced PATH names another daemon", world->daemon_path,
                        strerror(errno));
}

static int attach(struct kvf_world *world, uint32_t at, const struct kvf_world_plan *plan)
{
    char socket_path[160];
    uint32_t daemon = world->daemon_count == 1 ? 0 : at;
    struct kvf_attach_opts opts = {.size_bytes = sizeof(opts),
                                   .timeout_ms = ATTACH_MS,
                                   .socket_path = socket_path,
                                   .client_name = end_names[at],
                                   .rooms_max = plan->rooms_max,
                                   .arena_bytes = 16u << 20};
    snprintf(socket_path, sizeof(socket_path), "%s/%s.sock", world->run_dir,
             world->daemons[daemon].name);
    int rc = kvf_attach(&opts, &world->ends[at].client);
    if (rc != 0) {
        world->ends[at].client = NULL;
        return broken("cannot attach to %s: %s", socket_path, kvf_strerror(rc));
    }
    world->ends[at].event_fd = kvf_event_fd(world->ends[at].client);
    return 0;
}

static int start_daemons(struct kvf_world *world, const struct kvf_world_plan *plan)
{
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        const char *name = world->daemon_count == 1 ? plan->name : end_names[i];
        snprintf(world->daemons[i].name, sizeof(world->daemons[i].name), "%s",
                 name != NULL ? name : "bench");
        int rc = spawn_daemon(world, plan, i);
        if (rc != 0) {
            return rc;
        }
    }
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        int rc = await_daemon(world, i);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int kvf_world_start(struct kvf_world *world, const struct kvf_bench_options *options,
                    const struct kvf_cpus *cpus, const struct kvf_world_plan *plan)
{
    memset(world, 0, sizeof(*world));
    world->options = options;
    world->cpus = *cpus;
    world->daemon_count = plan->is_single || plan->transport == KVF_BENCH_LOCAL ? 1 : 2;
    world->end_count = plan->is_single ? 1 : 2;
    int rc = find_programs(world);
    if (rc != 0) {
        return rc;
    }
    rc = kvf_run_dir_create(world->run_dir, sizeof(world->run_dir));
    if (rc != 0) {
        world->run_dir[0] = 0;
        return broken("cannot make a run directory: %s", strerror(-rc));
    }
    kvf_cpu_pin(-1); /* what starts now takes its processors from its options */
    rc = start_daemons(world, plan);
    for (uint32_t at = 0; rc == 0 && at < world->end_count; at++) {
        rc = attach(world, at, plan);
    }
    kvf_cpu_pin(cpus->engine);
    return rc;
}

static void drop_region(struct kvf_end *end)
{
    if (end->pool != NULL) {
        (void)kvf_region_unregister(end->client, end->region);
        kvf_pool_destroy(end->pool);
        end->pool = NULL;
    }
}

void kvf_world_end(struct kvf_world *world)
{
    for (uint32_t at = 0; at < world->end_count; at++) {
        struct kvf_end *end = &world->ends[at];
        if (end->client != NULL) {
            (void)kvf_detach(end->client, DETACH_MS, NULL);
            end->client = NULL;
        }
        if (end->pool != NULL) {
            kvf_pool_destroy(end->pool);
            end->pool = NULL;
        }
    }
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        if (world->daemons[i].pid > 0 && !kvf_child_has_ended(&world->daemons[i])) {
            kill(world->daemons[i].pid, SIGTERM);
        }
    }
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        (void)kvf_child_wait(&world->daemons[i], DAEMON_END_MS);
    }
    if (world->run_dir[0] != 0) {
        kvf_run_dir_remove(world->run_dir, NULL, NULL);
        world->run_dir[0] = 0;
    }
}

static int make_region(struct kvf_end *end, uint64_t page_bytes, uint64_t page_count)
{
    uint64_t bytes = (page_bytes * page_count + 4095) / 4096 * 4096;
    struct kvf_pool_opts pool = {.size_bytes = sizeof(pool), .numa_node = -1, .bytes = bytes};
    struct kvf_plane plane = {.stride = page_bytes, .page_bytes = page_bytes};
    struct kvf_region_opts region = {.size_bytes = sizeof(region),
                                     .memory_bytes = bytes,
                                     .page_count = page_count,
                                     .planes = &plane,
                                     .plane_count = 1};
    int rc = kvf_pool_create(&pool, &end->pool);
    if (rc != 0) {
        end->pool = NULL;
        return broken("no memory for %llu bytes of pages: %s", (unsigned long long)bytes,
                      kvf_strerror(rc));
    }
    /* Mapped in full before anything is measured; no page of it is the shared one of zeros. */
    memset(kvf_pool_addr(end->pool), 0x11, bytes);
    region.fd = kvf_pool_fd(end->pool);
    rc = kvf_region_register(end->client, &region, &end->region);
    return rc == 0 ? 0 : broken("cannot register pages: %s", kvf_strerror(rc));
}

int kvf_world_regions(struct kvf_world *world, uint64_t page_bytes, uint64_t page_count)
{
    for (uint32_t at = 0; at < world->end_count; at++) {
        drop_region(&world->ends[at]);
        int rc = make_region(&world->ends[at], page_bytes, page_count);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* ---- while it runs -------------------------------------------------------------------------------- */

int kvf_world_check(struct kvf_world *world)
{
    char words[256];
    if (kvf_process_signal() != 0) {
        return broken("interrupted by signal %d", kvf_process_signal());
    }
    for (uint32_t i = 0; i < world->daemon_count; i++) {
        if (kvf_child_has_ended(&world->daemons[i])) {
            last_words(world, i, words, sizeof(words));
            return broken("daemon %s has ended; it says: %s", world->daemons[i].name, words);
        }
    }
    return 0;
}

void kvf_world_pause(struct kvf_world *world)
{
    struct kvf_event events[EVENTS_MAX];
    struct pollfd wait[KVF_ENDS];
    if (!world->cpus.is_crowded) {
        kvf_cpu_relax();
        return;
    }
    for (uint32_t at = 0; at < world->end_count; at++) {
        struct kvf_end *end = &world->ends[at];
        if (kvf_events_next(end->client, events, EVENTS_MAX) != 0) {
            return; /* something changed: look at once */
        }
        wait[at] = (struct pollfd){.fd = end->event_fd, .events = POLLIN};
    }
    (void)poll(wait, world->end_count, PAUSE_MS);
}

int kvf_world_await(struct kvf_world *world, uint32_t at, kvf_room room, uint32_t timeout_ms)
{
    uint64_t end_ns = kvf_bench_now_ns() + timeout_ms * UINT64_C(1000000);
    for (uint32_t looks = 1;; looks++) {
        int state = kvf_poll(world->ends[at].client, room);
        if (state <= KVF_FAILED || state == KVF_SUCCESS) {
            return state;
        }
        if (looks % LOOKS_PER_CLOCK == 0 &&
            (kvf_bench_now_ns() > end_ns || kvf_process_signal() != 0)) {
            return -ETIMEDOUT;
        }
        kvf_world_pause(world);
    }
}

int kvf_world_blame(struct kvf_world *world, uint32_t at, kvf_room room, const char *what)
{
    struct kvf_room_info info = {.size_bytes = sizeof(info)};
    if (kvf_world_check(world) != 0) {
        return KVF_BENCH_BROKEN;
    }
    int rc = kvf_room_info(world->ends[at].client, room, &info);
    if (rc != 0) {
        fprintf(stderr, "kvfence-bench: %s: the %s room: %s\n", what, end_names[at],
                kvf_strerror(rc));
    } else {
        fprintf(stderr, "kvfence-bench: %s: the %s room reads %s: %s\n", what, end_names[at],
                kvf_state_name(info.state),
                info.reason != 0 ? kvf_strerror((int)info.reason) : "it has not ended in time");
    }
    return KVF_BENCH_FAILED;
}

int kvf_world_role(const char *role, int argc, char **argv)
{
    const char *colon = strchr(role, ':');
    if (colon == NULL || argc < 1 || strncmp(role, "daemon:", 7) != 0) {
        return 2;
    }
    if (kvf_process_tie_to_parent((pid_t)atoi(colon + 1), SIGTERM) != 0) {
        return 3;
    }
    execv(argv[0], argv);
    fprintf(stderr, "kvfence-bench: %s: %s\n", argv[0], strerror(errno));
    return 127;
}

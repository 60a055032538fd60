#include "tests/torture/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/torture/devices.h"
#include "tests/torture/engine.h"
#include "tests/torture/report.h"

#define READY_MS 60000u
#define DAEMON_END_MS 8000u
#define STAT_MS 3000u
#define CTL_MS 10000u
#define STAT_TRIES 30u
#define STAT_PAUSE_NS 100000000L
#define ARGS_MAX 96u
#define STAT_TEXT_BYTES (256u * 1024u)

int kvf_launch_fail(struct kvf_launch *launch, const char *format, ...)
{
    va_list args;
    if (launch->result->broken[0] == 0) {
        va_start(args, format);
        vsnprintf(launch->result->broken, sizeof(launch->result->broken), format, args);
        va_end(args);
    }
    return -1;
}

int kvf_launch_prepare(struct kvf_launch *launch, const struct kvf_options *options,
                       struct kvf_result *result)
{
    memset(launch, 0, sizeof(*launch));
    launch->options = options;
    launch->result = result;
    launch->count = options->prefill_count + options->decode_count;
    launch->daemon_count = options->is_local ? 1 : launch->count;
    if (kvf_program_path(NULL, launch->self_path, sizeof(launch->self_path)) != 0 ||
        kvf_program_path("kvfenced", launch->daemon_path, sizeof(launch->daemon_path)) != 0 ||
        kvf_program_path("kvfence-proxy", launch->proxy_path, sizeof(launch->proxy_path)) !=
            0 ||
        kvf_program_path("kvfence-stat", launch->stat_path, sizeof(launch->stat_path)) != 0 ||
        kvf_program_path("kvfence-ctl", launch->ctl_path, sizeof(launch->ctl_path)) != 0) {
        return kvf_launch_fail(launch, "cannot tell where this program lies");
    }
    if (options->kvfenced != NULL) {
        snprintf(launch->daemon_path, sizeof(launch->daemon_path), "%s", options->kvfenced);
    }
    if (access(launch->daemon_path, X_OK) != 0) {
        return kvf_launch_fail(launch, "%s: %s; --kvfenced PATH names another daemon",
                               launch->daemon_path, strerror(errno));
    }
    if (options->is_verbs) {
        kvf_devices_choose(options, result->rdma_devices);
    }
    int rc = kvf_run_dir_create(launch->run_dir, sizeof(launch->run_dir));
    if (rc != 0) {
        launch->run_dir[0] = 0;
        return kvf_launch_fail(launch, "cannot make a run directory: %s", strerror(-rc));
    }
    return 0;
}

/* ---- daemons -------------------------------------------------------------------------------------- */

struct args {
    char *argv[ARGS_MAX];
    uint32_t count;
    char text[4096];
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

static void add_pair(struct args *args, const char *name, uint64_t value)
{
    arg_add(args, "--%s", name);
    arg_add(args, "%llu", (unsigned long long)value);
}

static void daemon_args(const struct kvf_launch *launch, const char *name, bool is_prefill,
                        struct args *args)
{
    const struct kvf_options *o = launch->options;
    arg_add(args, "%s", launch->self_path);
    arg_add(args, "--role=daemon:%d", (int)getpid());
    arg_add(args, "%s", launch->daemon_path);
    arg_add(args, "--name");
    arg_add(args, "%s", name);
    arg_add(args, "--run-dir");
    arg_add(args, "%s", launch->run_dir);
    arg_add(args, "--listen");
    arg_add(args, "127.0.0.1:0");
    arg_add(args, "--transport");
    arg_add(args, o->is_local ? "local" : o->is_verbs ? "verbs" : "tcp");
    const char *device = launch->result->rdma_devices[is_prefill ? 1 : 0];
    if (device[0] != 0) {
        arg_add(args, "--rdma-devices");
        arg_add(args, "%s", device);
    }
    arg_add(args, "--tcp-placement");
    arg_add(args, "%s", o->is_checked ? "checked" : "posted");
    add_pair(args, "lane-rate", o->lane_rate);
    add_pair(args, "lanes", o->lanes);
    add_pair(args, "lane-rooms", o->lane_rooms);
    add_pair(args, "room-window", o->room_window_bytes);
    add_pair(args, "lane-window", o->lane_window_bytes);
    /* Several workers share this machine's few cores with the engines: none owns one. */
    arg_add(args, "--cpu");
    arg_add(args, "none");
    arg_add(args, "--spin");
    arg_add(args, "off");
    for (uint32_t i = 0; i < o->daemon_option_count; i++) {
        const char *equals = strchr(o->daemon_options[i], '=');
        arg_add(args, "--%.*s", (int)(equals - o->daemon_options[i]), o->daemon_options[i]);
        arg_add(args, "%s", equals + 1);
    }
}

static void name_of(const struct kvf_launch *launch, uint32_t i, char *ret_name, size_t cap)
{
    uint32_t prefills = launch->options->prefill_count;
    bool is_prefill = i < prefills;
    snprintf(ret_name, cap, "%s%u", is_prefill ? "prefill" : "decode",
             is_prefill ? i : i - prefills);
}

/* The last line of a log that is not empty: what a daemon that ended had to say. */
static void last_words(const char *log_path, char *ret_text, size_t cap)
{
    char line[256];
    FILE *log = fopen(log_path, "re");
    ret_text[0] = 0;
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

static int spawn_daemon(struct kvf_launch *launch, uint32_t i)
{
    struct kvf_child *child = &launch->daemons[i];
    struct args args = {.count = 0};
    char log_path[160];
    if (launch->options->is_local) {
        snprintf(child->name, sizeof(child->name), "%s", KVF_LOCAL_DAEMON);
    } else {
        name_of(launch, i, child->name, sizeof(child->name));
    }
    daemon_args(launch, child->name, i < launch->options->prefill_count, &args);
    snprintf(log_path, sizeof(log_path), "%s/%s.log", launch->run_dir, child->name);
    struct kvf_spawn spawn = {.path = launch->self_path,
                              .argv = args.argv,
                              .handed_fd = -1,
                              .log_path = log_path,
                              .has_output = true};
    int rc = kvf_child_spawn(child, &spawn);
    return rc == 0 ? 0
                   : kvf_launch_fail(launch, "cannot start %s: %s", launch->daemon_path,
                                     strerror(-rc));
}

static int await_daemon(struct kvf_launch *launch, uint32_t i)
{
    struct kvf_child *child = &launch->daemons[i];
    char line[512];
    char words[256];
    char log_path[160];
    int rc;
    do {
        rc = kvf_child_read_line(child, READY_MS, line, sizeof(line));
    } while (rc >= 0 && strncmp(line, "kvfenced: ready ", 16) != 0);
    if (rc == -EINTR) {
        return kvf_launch_fail(launch, "interrupted by signal %d", kvf_process_signal());
    }
    const char *listen = rc < 0 ? NULL : strstr(line, " listen=");
    if (listen == NULL) {
        snprintf(log_path, sizeof(log_path), "%s/%s.log", launch->run_dir, child->name);
        last_words(log_path, words, sizeof(words));
        launch->result->is_bad_option = kvf_child_wait(child, DAEMON_END_MS) &&
                                        WIFEXITED(child->status) &&
                                        WEXITSTATUS(child->status) == KVF_EXIT_USAGE;
        return kvf_launch_fail(launch, "daemon %s did not become ready: %s%s%s", child->name,
                               rc < 0 ? strerror(-rc) : "its line names no listen address",
                               words[0] == 0 ? "" : "; it says: ", words);
    }
    const char *engine = strstr(line, " engine=");
    if (engine != NULL) {
        engine += strlen(" engine=");
        snprintf(launch->result->transport_engine, sizeof(launch->result->transport_engine),
                 "%.*s", (int)strcspn(engine, " "), engine);
    }
    struct kvf_fleet_plan *plan = &launch->fleet->shm->plan;
    listen += strlen(" listen=");
    for (uint32_t k = 0; k < launch->options->prefill_count; k++) {
        if (k == i || launch->options->is_local) {
            snprintf(plan->prefill_addr[k], sizeof(plan->prefill_addr[k]), "%.*s",
                     (int)strcspn(listen, " "), listen);
        }
    }
    return 0;
}

/* Engines then name the proxy as the writer. */
static int start_proxy(struct kvf_launch *launch, uint32_t i)
{
    const struct kvf_options *o = launch->options;
    struct kvf_fleet_plan *plan = &launch->fleet->shm->plan;
    struct kvf_proxy *proxy = &launch->proxies[i];
    int rc = kvf_proxy_start(proxy, launch->proxy_path, "127.0.0.1:0", plan->prefill_addr[i],
                             o->proxy, o->seed + i);
    if (rc != 0) {
        return kvf_launch_fail(launch, "cannot start %s: %s", launch->proxy_path,
                               strerror(-rc));
    }
    snprintf(plan->prefill_addr[i], sizeof(plan->prefill_addr[i]), "%s", proxy->listen);
    return 0;
}

int kvf_launch_daemons(struct kvf_launch *launch, struct kvf_fleet *fleet)
{
    launch->fleet = fleet;
    for (uint32_t i = 0; i < launch->daemon_count; i++) {
        if (spawn_daemon(launch, i) != 0) {
            return -1;
        }
    }
    for (uint32_t i = 0; i < launch->daemon_count; i++) {
        if (await_daemon(launch, i) != 0) {
            return -1;
        }
    }
    for (uint32_t i = 0; launch->options->proxy[0] != 0 && i < launch->options->prefill_count;
         i++) {
        if (start_proxy(launch, i) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- engines -------------------------------------------------------------------------------------- */

int kvf_launch_engines(struct kvf_launch *launch)
{
    for (uint32_t i = 0; i < launch->count; i++) {
        struct kvf_child *child = &launch->engines[i];
        struct args args = {.count = 0};
        uint32_t prefills = launch->options->prefill_count;
        bool is_prefill = i < prefills;
        name_of(launch, i, child->name, sizeof(child->name));
        arg_add(&args, "%s", launch->self_path);
        arg_add(&args, "--role=%s:%d", is_prefill ? "prefill" : "decode", (int)getpid());
        arg_add(&args, "%u", is_prefill ? i : i - prefills);
        struct kvf_spawn spawn = {
            .path = launch->self_path, .argv = args.argv, .handed_fd = launch->fleet->fd};
        int rc = kvf_child_spawn(child, &spawn);
        if (rc != 0) {
            return kvf_launch_fail(launch, "cannot start engine %s: %s", child->name,
                                   strerror(-rc));
        }
    }
    return 0;
}

static const struct kvf_engine_shm *shm_of(const struct kvf_launch *launch, uint32_t i)
{
    uint32_t prefills = launch->options->prefill_count;
    return i < prefills ? &launch->fleet->shm->prefill[i]
                        : &launch->fleet->shm->decode[i - prefills];
}

static void describe_end(const struct kvf_child *child, char *ret_text, size_t cap)
{
    if (WIFSIGNALED(child->status)) {
        snprintf(ret_text, cap, "signal %d", WTERMSIG(child->status));
    } else {
        snprintf(ret_text, cap, "status %d", WEXITSTATUS(child->status));
    }
}

static int engine_broke(struct kvf_launch *launch, uint32_t i)
{
    const struct kvf_engine_shm *shm = shm_of(launch, i);
    char end[32];
    describe_end(&launch->engines[i], end, sizeof(end));
    return kvf_launch_fail(launch, "engine %s ended with %s: %s", launch->engines[i].name, end,
                           shm->error[0] == 0 ? "it left no word" : shm->error);
}

static int daemon_broke(struct kvf_launch *launch, uint32_t i)
{
    const struct kvf_child *child = &launch->daemons[i];
    char end[32];
    char words[256];
    char log_path[160];
    describe_end(child, end, sizeof(end));
    snprintf(log_path, sizeof(log_path), "%s/%s.log", launch->run_dir, child->name);
    last_words(log_path, words, sizeof(words));
    return kvf_launch_fail(launch, "daemon %s ended during the run with %s%s%s", child->name,
                           end, words[0] == 0 ? "" : "; it says: ", words);
}

int kvf_launch_check(struct kvf_launch *launch)
{
    for (uint32_t i = 0; i < launch->count; i++) {
        if (i < launch->daemon_count && kvf_child_has_ended(&launch->daemons[i])) {
            return daemon_broke(launch, i);
        }
        if (kvf_child_has_ended(&launch->engines[i])) {
            return engine_broke(launch, i);
        }
    }
    return 0;
}

int kvf_launch_await_engines(struct kvf_launch *launch, uint32_t timeout_ms)
{
    int rc = 0;
    for (uint32_t i = 0; i < launch->count; i++) {
        struct kvf_child *child = &launch->engines[i];
        if (!kvf_child_wait(child, timeout_ms)) {
            rc = kvf_launch_fail(launch, "engine %s did not come to an end", child->name);
        } else if (!WIFEXITED(child->status) || WEXITSTATUS(child->status) != 0) {
            rc = engine_broke(launch, i);
        }
    }
    return rc;
}

/* ---- what the daemons say of themselves ---------------------------------------------------------- */

/* Adds up "name": NUMBER over all daemons of the text; or takes the largest. */
static uint64_t find_number(const char *text, const char *name, bool is_sum)
{
    char quoted[80];
    uint64_t found = 0;
    snprintf(quoted, sizeof(quoted), "\"%s\":", name);
    while ((text = strstr(text, quoted)) != NULL) {
        text += strlen(quoted);
        uint64_t value = strtoull(text, NULL, 10);
        found = is_sum ? found + value : (value > found ? value : found);
    }
    return found;
}

static void take_stats(struct kvf_result *result, const char *text)
{
    static const char *const held[] = {
        "rooms_open", "rooms_closing",     "rooms_fencing", "rooms_quarantined",
        "pages_held", "pages_quarantined", "grants_out",    "grants_in",
        "parked",     "posted_bytes",      "clients",       "regions"};
    result->has_stats = true;
    result->stat_opened = find_number(text, "rooms_opened_total", true);
    result->stat_ended = find_number(text, "rooms_succeeded_total", true) +
                         find_number(text, "rooms_failed_total", true);
    result->stat_left = 0;
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        result->stat_left += find_number(text, held[i], true);
    }
    result->devices = (struct kvf_device_counts){
        .pairs_made = find_number(text, "queue_pairs_made_total", true),
        .pairs_destroyed = find_number(text, "queue_pairs_destroyed_total", true),
        .work_posted = find_number(text, "work_requests_posted_total", true),
        .work_reaped = find_number(text, "work_requests_reaped_total", true),
        .work_written_off = find_number(text, "work_requests_written_off_total", true),
        .fences_failed = find_number(text, "device_fences_failed_total", true),
        .memory_refused = find_number(text, "device_memory_refused_total", true)};
    result->terms = (struct kvf_bound_terms){
        .detection_us = find_number(text, "bound_detection_us", false),
        .cooperative_us = find_number(text, "bound_cooperative_us", false),
        .fence_us = find_number(text, "bound_fence_us", false),
        .watchdog_us = find_number(text, "bound_watchdog_us", false),
        .kill_us = find_number(text, "bound_kill_us", false),
        .visibility_us = find_number(text, "bound_visibility_us", false)};
}

static int take_down(struct kvf_launch *launch, const char *name, const char *peer)
{
    struct kvf_child child = {.out_fd = -1};
    struct args args = {.count = 0};
    arg_add(&args, "%s", launch->ctl_path);
    arg_add(&args, "--run-dir");
    arg_add(&args, "%s", launch->run_dir);
    arg_add(&args, "--name");
    arg_add(&args, "%s", name);
    arg_add(&args, "peer");
    arg_add(&args, "down");
    arg_add(&args, "%s", peer);
    struct kvf_spawn spawn = {
        .path = launch->ctl_path, .argv = args.argv, .handed_fd = -1, .has_output = true};
    char said[256];
    if (kvf_child_spawn(&child, &spawn) != 0) {
        return kvf_launch_fail(launch, "cannot start %s", launch->ctl_path);
    }
    (void)kvf_child_read_all(&child, CTL_MS, said, sizeof(said));
    bool has_ended = kvf_child_wait(&child, CTL_MS) && WIFEXITED(child.status);
    return has_ended && WEXITSTATUS(child.status) == 0
               ? 0
               : kvf_launch_fail(launch, "daemon %s does not take its peer %s down", name,
                                 peer);
}

int kvf_launch_end_lanes(struct kvf_launch *launch)
{
    const struct kvf_options *o = launch->options;
    const struct kvf_fleet_plan *plan = &launch->fleet->shm->plan;
    for (uint32_t d = 0; o->is_verbs && d < o->decode_count; d++) {
        for (uint32_t k = 0; k < o->prefill_count; k++) {
            const char *name = launch->daemons[o->prefill_count + d].name;
            if (take_down(launch, name, plan->prefill_addr[k]) != 0) {
                return -1;
            }
        }
    }
    return 0;
}

static int ask_stat(struct kvf_launch *launch, char *text)
{
    struct kvf_child child = {.out_fd = -1};
    struct args args = {.count = 0};
    arg_add(&args, "%s", launch->stat_path);
    arg_add(&args, "--json");
    arg_add(&args, "--run-dir");
    arg_add(&args, "%s", launch->run_dir);
    struct kvf_spawn spawn = {
        .path = launch->stat_path, .argv = args.argv, .handed_fd = -1, .has_output = true};
    if (kvf_child_spawn(&child, &spawn) != 0) {
        return -1;
    }
    int rc = kvf_child_read_all(&child, STAT_MS, text, STAT_TEXT_BYTES);
    kvf_child_wait(&child, STAT_MS);
    return rc < 0 || !WIFEXITED(child.status) || WEXITSTATUS(child.status) != 0 ? -1 : 0;
}

void kvf_launch_read_stats(struct kvf_launch *launch)
{
    struct kvf_result *result = launch->result;
    char *text = malloc(STAT_TEXT_BYTES);
    for (uint32_t i = 0; text != NULL && i < STAT_TRIES; i++) {
        struct timespec pause = {.tv_nsec = STAT_PAUSE_NS};
        if (ask_stat(launch, text) != 0) {
            break;
        }
        take_stats(result, text);
        if (result->stat_left == 0 && result->stat_opened == result->stat_ended &&
            result->devices.pairs_made == result->devices.pairs_destroyed) {
            break;
        }
        nanosleep(&pause, NULL); /* daemons write their stats now and then */
    }
    free(text);
}

/* ---- the end -------------------------------------------------------------------------------------- */

void kvf_launch_end(struct kvf_launch *launch)
{
    for (uint32_t i = 0; i < launch->count; i++) {
        if (!kvf_child_has_ended(&launch->engines[i])) {
            kill(launch->engines[i].pid, SIGKILL);
        }
        kvf_child_wait(&launch->engines[i], DAEMON_END_MS);
    }
    for (uint32_t i = 0; i < launch->daemon_count; i++) {
        if (!kvf_child_has_ended(&launch->daemons[i])) {
            kill(launch->daemons[i].pid, SIGTERM);
        }
    }
    for (uint32_t i = 0; i < launch->daemon_count; i++) {
        struct kvf_child *child = &launch->daemons[i];
        if (child->pid == 0) {
            continue;
        }
        bool is_clean = kvf_child_wait(child, DAEMON_END_MS) && WIFEXITED(child->status) &&
                        WEXITSTATUS(child->status) == 0;
        launch->result->daemons_unclean += !is_clean;
    }
    for (uint32_t i = 0; i < KVF_ENGINES_OF_KIND_MAX; i++) {
        kvf_proxy_stop(&launch->proxies[i]);
    }
    if (launch->run_dir[0] != 0) {
        kvf_run_dir_remove(launch->run_dir, launch->options->keep_logs,
                           launch->result->policy.name);
    }
}

/* ---- roles ---------------------------------------------------------------------------------------- */

int kvf_launch_role(const char *role, int argc, char **argv)
{
    const char *colon = strchr(role, ':');
    if (colon == NULL || argc < 1) {
        return 2;
    }
    bool is_daemon = strncmp(role, "daemon:", 7) == 0;
    /* Daemons are asked to stop, so that they clean up; an engine has nothing to clean up. */
    if (kvf_process_tie_to_parent((pid_t)atoi(colon + 1), is_daemon ? SIGTERM : SIGKILL) != 0) {
        return 3;
    }
    if (is_daemon) {
        execv(argv[0], argv);
        fprintf(stderr, "kvfence-torture: %s: %s\n", argv[0], strerror(errno));
        return 127;
    }
    uint32_t index = (uint32_t)strtoul(argv[0], NULL, 10);
    if (strncmp(role, "prefill:", 8) == 0) {
        return kvf_prefill_main(KVF_HANDED_FD, index);
    }
    return strncmp(role, "decode:", 7) == 0 ? kvf_decode_main(KVF_HANDED_FD, index) : 2;
}

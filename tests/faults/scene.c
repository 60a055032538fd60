#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/faults/faults.h"

#define LANE_RATE "30"
#define SERVE_MS 10000u
#define PORT_FIRST 20000u
#define PORT_COUNT 10000u
#define MACHINE_STEP_US 1000u

struct geometry sink_geometry(void)
{
    return (struct geometry){.plane_count = 8,
                             .page_bytes = 4096,
                             .page_count = settings.sink_slots * ROOM_PAGES + SPARE_PAGES};
}

const struct geometry source_geometry = {.plane_count = 8,
                                         .page_bytes = 4096,
                                         .page_count = CO_ROOMS_MAX * ROOM_PAGES + SPARE_PAGES};

void violated(struct scene *s, const char *file, int line, const char *format, ...)
{
    struct case_result *r = s->result;
    va_list args;
    va_start(args, format);
    int used = vsnprintf(r->violation, sizeof r->violation, format, args);
    va_end(args);
    if (used > 0 && (size_t)used < sizeof r->violation) {
        snprintf(
            r->violation + used, sizeof r->violation - (size_t)used,
            " [since the fault this machine kept a sleeper from its CPU for up to %llu ms]",
            (unsigned long long)machine_late_ms());
    }
    struct daemon *both[] = {s->source, s->sink};
    for (uint32_t i = 0; i < 2; i++) {
        if (both[i]->pid != 0) {
            daemon_show(both[i]);
        }
    }
    test_fail(file, line, "the promise of this case", "%s at %u %%: %s", s->fault->name,
              settings.shares[r->share], r->violation);
}

static _Atomic uint64_t late_ns;

static void *watch_machine(void *ctx)
{
    (void)ctx;
    for (;;) {
        uint64_t before_ns = now_ns();
        sleep_us(MACHINE_STEP_US);
        uint64_t slept_ns = now_ns() - before_ns;
        if (slept_ns > atomic_load_explicit(&late_ns, memory_order_relaxed)) {
            atomic_store_explicit(&late_ns, slept_ns, memory_order_relaxed);
        }
    }
    return NULL;
}

void machine_watch(void)
{
    pthread_t thread;
    CHECK_IS(pthread_create(&thread, NULL, watch_machine, NULL), 0, "thread");
    pthread_detach(thread);
}

void machine_begin(void)
{
    atomic_store_explicit(&late_ns, 0, memory_order_relaxed);
}

uint64_t machine_late_ms(void)
{
    return atomic_load_explicit(&late_ns, memory_order_relaxed) / 1000000u;
}

/* A port that no connection of this machine takes by chance while its daemon is dead. */
static void choose_listen(char *ret_text, size_t cap)
{
    static uint64_t state;
    state += state == 0 ? (uint64_t)getpid() + now_ns() : 0;
    for (uint32_t i = 0; i < 1000; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        uint16_t port = (uint16_t)(PORT_FIRST + random_below(&state, PORT_COUNT));
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        at.sin_port = htons(port);
        bool is_free = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
        close(fd);
        if (is_free) {
            snprintf(ret_text, cap, "127.0.0.1:%u", port);
            return;
        }
    }
    CHECK(false, "no free port");
}

/* Shorter deadlines than by default: a fault is survived in seconds, and the bound follows. */
static struct daemon *start_daemon(const char *name)
{
    char listen[64];
    char names[DAEMON_OPTIONS_MAX][64];
    const char *extra[2 * DAEMON_OPTIONS_MAX + 1] = {NULL};
    choose_listen(listen, sizeof listen);
    for (uint32_t i = 0; i < settings.daemon_option_count; i++) {
        const char *option = settings.daemon_options[i];
        snprintf(names[i], sizeof names[i], "--%.*s", (int)strcspn(option, "="), option);
        extra[2 * i] = names[i];
        extra[2 * i + 1] = strchr(option, '=') + 1;
    }
    if (settings.is_verbs) {
        return daemon_start(name, "--listen", listen, "--transport", "verbs", "--rdma-devices",
                            devices_of(name), "--rdma-timeout", "17", "--rdma-retry", "2",
                            "--room-window", "512K", "--lane-window", "1M", "--liveness-ms",
                            "4000", "--cooperative-ms", "1000", "--fence-ms", "5000",
                            "--watchdog-ms", "3000", "--cpu", "none", "--spin", "off", extra[0],
                            extra[1], extra[2], extra[3], extra[4], extra[5], extra[6],
                            extra[7], NULL);
    }
    return daemon_start(
        name, "--listen", listen, "--tcp-placement", settings.is_checked ? "checked" : "posted",
        "--lane-rate", LANE_RATE, "--liveness-ms", "1000", "--cooperative-ms", "500",
        "--fence-ms", "1000", "--watchdog-ms", "1000", "--cpu", "none", "--spin", "off",
        extra[0], extra[1], extra[2], extra[3], extra[4], extra[5], extra[6], extra[7], NULL);
}

void scene_network(struct scene *s, const char *rules)
{
    if (settings.is_verbs) {
        devices_network(rules);
    }
    scene_control(s, rules);
}

void scene_control(struct scene *s, const char *rules)
{
    char answer[200] = "";
    int rc = kvf_proxy_tell(&s->network, rules, answer, sizeof answer);
    CHECK(rc == 0, "the network does not take \"%s\": %s", rules, answer);
}

uint64_t scene_bound_us(const struct daemon *d, enum which_bound which)
{
    return daemon_stat(d, which == BOUND_WORST ? "bound_worst_us" : "bound_usual_us");
}

/* ---- engines ---------------------------------------------------------------------------------------- */

struct engine *engine_on(struct daemon *d, kvf_pool *pool, const struct geometry *geometry)
{
    struct engine *e = calloc(1, sizeof *e);
    CHECK(e != NULL, "no memory");
    e->daemon = d;
    e->geometry = *geometry;
    e->pool = pool;
    e->base = kvf_pool_addr(pool);
    e->page_bytes = geometry->plane_count * geometry->page_bytes;
    for (uint32_t i = 0; i < geometry->plane_count; i++) {
        e->plane_off[i] = i * geometry->page_count * geometry->page_bytes;
    }
    return e;
}

/* argv: socket, address of the writer or "-", descriptor of the memory, slots of the sink, then KEY FIRST pairs. */
int role_engine(int argc, char **argv)
{
    struct daemon own;
    struct daemon writer;
    kvf_pool *pool = NULL;
    bool is_sink = strcmp(argv[1], "-") != 0;
    settings.sink_slots = (uint32_t)atoi(argv[3]);
    const struct geometry to = sink_geometry();
    const struct geometry *g = is_sink ? &to : &source_geometry;
    memset(&own, 0, sizeof own);
    memset(&writer, 0, sizeof writer);
    snprintf(own.name, sizeof own.name, "helper");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    snprintf(writer.listen, sizeof writer.listen, "%s", argv[1]);
    CHECK_CODE(kvf_pool_adopt(atoi(argv[2]), geometry_bytes(g), &pool), 0, "adopt");
    struct engine *e = engine_on(&own, pool, g);
    e->client = client_attach(&own, 0);
    e->region = region_register(e->client, pool, g);
    for (int i = 4; i + 1 < argc; i += 2) {
        uint64_t key = strtoull(argv[i], NULL, 10);
        int32_t first = (int32_t)atoi(argv[i + 1]);
        if (is_sink) {
            (void)engine_sink(e, key, first, ROOM_PAGES, &writer);
        } else {
            kvf_room room = engine_source(e, key);
            engine_submit(e, room, first, ROOM_PAGES, 0, true);
        }
    }
    role_say("open");
    for (;;) {
        pause();
    }
}

void scene_start_helper(struct scene *s, const uint64_t *keys, const int32_t *firsts)
{
    bool is_sink = s->fault->kills_sink_engine;
    struct engine *e = is_sink ? s->to : s->from;
    char slots[16];
    char words[1 + 2 * ROOMS][32];
    int fd = kvf_pool_fd(e->pool);
    snprintf(words[0], sizeof words[0], "%d", fd);
    for (uint32_t i = 0; i < ROOMS; i++) {
        snprintf(words[1 + 2 * i], sizeof words[0], "%llu", (unsigned long long)keys[i]);
        snprintf(words[2 + 2 * i], sizeof words[0], "%d", (int)firsts[i]);
    }
    snprintf(slots, sizeof slots, "%u", settings.sink_slots);
    fcntl(fd, F_SETFD, 0);
    s->helper =
        helper_start("engine", e->daemon->socket_path, is_sink ? s->via.listen : "-", words[0],
                     slots, words[1], words[2], words[3], words[4], words[5], words[6], NULL);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    helper_expect(s->helper, "open", SERVE_MS);
}

/* The engine does nothing but what its documents ask for: re-attach when its daemon was replaced. */
void scene_await_engine(struct scene *s, struct engine *e)
{
    uint64_t until_ns = now_ns() + SERVE_MS * UINT64_C(1000000);
    for (;;) {
        int rc = kvf_daemon_check(e->client);
        if (rc == -KVF_E_DAEMON_GONE) {
            rc = kvf_reattach(e->client, 100);
        }
        if (rc == 0) {
            return;
        }
        PROMISE(s, now_ns() < until_ns,
                "P6 Death: daemon %s does not serve its engine again after %u ms: %d %s",
                e->daemon->name, SERVE_MS, rc, kvf_code_name_of(rc));
        sleep_us(1000);
    }
}

/* ---- start and end ---------------------------------------------------------------------------------- */

static void start_flows(struct scene *s)
{
    uint32_t wanted = s->fault->flows;
    if (wanted & FLOW_OTHER_CLIENT) {
        s->flows[s->flow_count++] =
            flow_start(s, &s->via, s->sink, "other engines of the same daemons");
    }
    if (wanted & FLOW_TO_OTHER_SINK) {
        s->flows[s->flow_count++] =
            flow_start(s, s->source, s->other_sink, "from the same source to another sink");
    }
    if (wanted & FLOW_FROM_OTHER_SOURCE) {
        s->flows[s->flow_count++] =
            flow_start(s, s->other_source, s->sink, "from another source to the same sink");
    }
    if (wanted & FLOW_ELSEWHERE) {
        s->flows[s->flow_count++] =
            flow_start(s, s->other_source, s->other_sink, "between two other daemons");
    }
}

void scene_start(struct scene *s, const struct fault_case *fault, struct case_result *result)
{
    memset(s, 0, sizeof *s);
    s->fault = fault;
    s->result = result;
    machine_watch();
    s->source = start_daemon("source");
    s->sink = start_daemon("sink");
    s->other_source = start_daemon("other-source");
    s->other_sink = start_daemon("other-sink");
    int rc = kvf_proxy_start(&s->network, KVF_TEST_PROXY, "127.0.0.1:0", s->source->listen,
                             NETWORK_DELAY, settings.seed);
    CHECK(rc == 0, "%s does not start: %s", KVF_TEST_PROXY, strerror(-rc));
    s->via = *s->source;
    snprintf(s->via.listen, sizeof s->via.listen, "%s", s->network.listen);
    if (settings.is_verbs) {
        devices_network(NETWORK_DELAY);
    }
    result->has_started = true;
    start_flows(s);
    const struct geometry to = sink_geometry();
    if (fault->kills_sink_engine) {
        s->to = engine_on(s->sink, pool_make(geometry_bytes(&to)), &to);
    } else {
        s->to = engine_start(s->sink, &to, 0);
    }
    if (fault->kills_source_engine) {
        s->from =
            engine_on(&s->via, pool_make(geometry_bytes(&source_geometry)), &source_geometry);
    } else {
        s->from = engine_start(&s->via, &source_geometry, 0);
    }
    s->source_regions = daemon_stat(s->source, "regions");
    s->sink_regions = daemon_stat(s->sink, "regions");
}

static void stop_engine(struct engine *e)
{
    if (e->client != NULL) {
        engine_stop(e);
    } else {
        kvf_pool_destroy(e->pool);
        free(e);
    }
}

void scene_stop(struct scene *s)
{
    for (uint32_t i = 0; i < s->flow_count; i++) {
        flow_stop(s->flows[i]);
    }
    stop_engine(s->from);
    stop_engine(s->to);
    if (settings.is_verbs) {
        devices_network("clear");
        devices_stop();
    }
    daemons_stop();
    kvf_proxy_stop(&s->network);
}

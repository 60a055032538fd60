#include "tests/bench/tools.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/report.h"
#include "tests/torture/process.h"

#define LISTEN_MS 10000u
#define RUN_MS 120000u
#define END_MS 3000u
#define STEP_NS 2000000L
#define TEXT_BYTES 65536u
#define WORDS_MAX 40u
#define IPERF3_BYTES_MIN (UINT64_C(256) << 20)
#define WRITES_MIN 20u
#define WRITES_MAX 20000u
#define LATENCY_WRITES_MAX 1000u

int kvf_tool_find(const char *program, char *ret_path, size_t cap)
{
    const char *at = getenv("PATH");
    char path[512];
    while (at != NULL && *at != 0) {
        size_t bytes = strcspn(at, ":");
        int n = snprintf(path, sizeof(path), "%.*s/%s", (int)bytes, at, program);
        if (n > 0 && (size_t)n < sizeof(path) && (size_t)n < cap && access(path, X_OK) == 0) {
            memcpy(ret_path, path, (size_t)n + 1);
            return 0;
        }
        at += bytes + (at[bytes] == ':');
    }
    return -ENOENT;
}

int kvf_tool_row(const char *text, uint64_t first, uint32_t column, double *ret_value)
{
    const char *line = text;
    while (line != NULL && *line != 0) {
        char *end;
        const char *at = line + strspn(line, " \t");
        unsigned long long number = strtoull(at, &end, 10);
        if (end != at && number == first && (*end == ' ' || *end == '\t')) {
            double value = (double)number;
            uint32_t i = 0;
            for (at = end; i < column; i++, at = end) {
                value = strtod(at, &end);
                if (end == at || strcspn(at, "\n") < (size_t)(end - at)) {
                    break;
                }
            }
            if (i == column && isfinite(value)) {
                *ret_value = value;
                return 0;
            }
            if (i == column) {
                return -ERANGE;
            }
        }
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return -ENOENT;
}

int kvf_tool_iperf3_rate(const char *text, double *ret_mb_per_s)
{
    const char *end = strstr(text, "\"end\"");
    const char *sum = end == NULL ? NULL : strstr(end, "\"sum_received\"");
    const char *rate = sum == NULL ? NULL : strstr(sum, "\"bits_per_second\"");
    const char *colon = rate == NULL ? NULL : strchr(rate, ':');
    double bits = colon == NULL ? 0 : strtod(colon + 1, NULL);
    if (bits <= 0) {
        return -ENOENT;
    }
    *ret_mb_per_s = bits / 8e6;
    return 0;
}

/* ---- a server and a client ------------------------------------------------------------------------ */

struct words {
    char *argv[WORDS_MAX];
    char text[WORDS_MAX][128];
    uint32_t count;
};

static void word(struct words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void word(struct words *words, const char *format, ...)
{
    va_list args;
    if (words->count + 1 == WORDS_MAX) {
        return;
    }
    va_start(args, format);
    vsnprintf(words->text[words->count], sizeof(words->text[0]), format, args);
    va_end(args);
    words->argv[words->count] = words->text[words->count];
    words->argv[++words->count] = NULL;
}

/* A port that was free a moment ago; 0 if there is none. */
static uint16_t free_port(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof(name);
    uint16_t port = 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name, bytes) == 0 &&
        getsockname(fd, (struct sockaddr *)&name, &bytes) == 0) {
        port = ntohs(name.sin_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    return port;
}

/* Servers print that they wait into a buffer; the kernel knows it at once. */
static bool is_listening(uint16_t port)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    char line[256];
    bool is_found = false;
    for (int i = 0; i < 2 && !is_found; i++) {
        FILE *file = fopen(tables[i], "re");
        while (file != NULL && !is_found && fgets(line, sizeof(line), file) != NULL) {
            char local[48];
            char remote[48];
            unsigned int state;
            const char *colon;
            if (sscanf(line, " %*s %47s %47s %x", local, remote, &state) == 3 &&
                (colon = strrchr(local, ':')) != NULL) {
                is_found = state == 10 && strtoul(colon + 1, NULL, 16) == port;
            }
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    return is_found;
}

static bool await_listening(struct kvf_child *server, uint16_t port)
{
    uint64_t end_ns = kvf_bench_now_ns() + LISTEN_MS * UINT64_C(1000000);
    while (!is_listening(port)) {
        struct timespec step = {.tv_nsec = STEP_NS};
        if (kvf_child_has_ended(server) || kvf_process_signal() != 0 ||
            kvf_bench_now_ns() > end_ns) {
            return false;
        }
        nanosleep(&step, NULL);
    }
    return true;
}

static int start_on(struct kvf_child *child, struct words *words, int cpu)
{
    struct kvf_spawn spawn = {.path = words->argv[0],
                              .argv = words->argv,
                              .handed_fd = -1,
                              .log_path = "/dev/null",
                              .has_output = true};
    kvf_cpu_pin(cpu); /* a child begins where its parent is */
    return kvf_child_spawn(child, &spawn);
}

static int tool_failed(const char *program, const char *what)
{
    if (kvf_process_signal() != 0) {
        fprintf(stderr, "kvfence-bench: interrupted by signal %d\n", kvf_process_signal());
        return KVF_BENCH_BROKEN;
    }
    fprintf(stderr,
            "kvfence-bench: %s %s; --beside names something else to stand beside, or none\n",
            program, what);
    return KVF_BENCH_BROKEN;
}

static void stop(struct kvf_child *child)
{
    if (child->pid > 0 && !kvf_child_has_ended(child)) {
        kill(child->pid, SIGTERM);
    }
    (void)kvf_child_wait(child, END_MS);
}

/* Runs both; what the client printed goes to ret_text. 0, or an exit status after a sentence. */
static int run_pair(const struct kvf_cpus *cpus, struct words *server_words, uint16_t port,
                    struct words *client_words, char *ret_text, size_t cap)
{
    struct kvf_child server = {.out_fd = -1};
    struct kvf_child client = {.out_fd = -1};
    const char *program = server_words->argv[0];
    int rc = 0;
    if (port == 0 || start_on(&server, server_words, cpus->sink) != 0 ||
        !await_listening(&server, port)) {
        rc = tool_failed(program, "does not listen as a server");
    } else if (start_on(&client, client_words, cpus->source) != 0 ||
               kvf_child_read_all(&client, RUN_MS, ret_text, cap) < 0) {
        rc = tool_failed(program, "gave no answer");
    } else if (!kvf_child_wait(&client, END_MS) || !WIFEXITED(client.status) ||
               WEXITSTATUS(client.status) != 0) {
        rc = tool_failed(program, "failed as a client");
    }
    stop(&client);
    stop(&server);
    kvf_cpu_pin(cpus->engine);
    return rc;
}

int kvf_tool_iperf3(const struct kvf_cpus *cpus, uint64_t bytes, double *ret_mb_per_s)
{
    static char text[TEXT_BYTES];
    struct words server = {.count = 0};
    struct words client = {.count = 0};
    char path[512];
    uint16_t port = free_port();
    if (kvf_tool_find("iperf3", path, sizeof(path)) != 0) {
        return tool_failed("iperf3", "is not installed");
    }
    word(&server, "%s", path);
    word(&server, "-s");
    word(&server, "-1");
    word(&server, "-p");
    word(&server, "%u", port);
    word(&client, "%s", path);
    word(&client, "-c");
    word(&client, "127.0.0.1");
    word(&client, "-p");
    word(&client, "%u", port);
    word(&client, "-J");
    word(&client, "-l");
    word(&client, "128K");
    word(&client, "-n");
    word(&client, "%" PRIu64, bytes < IPERF3_BYTES_MIN ? IPERF3_BYTES_MIN : bytes);
    int rc = run_pair(cpus, &server, port, &client, text, sizeof(text));
    if (rc == 0 && kvf_tool_iperf3_rate(text, ret_mb_per_s) != 0) {
        rc = tool_failed("iperf3", "printed no rate");
    }
    return rc;
}

/* The host of ADDR:PORT or [ADDR]:PORT. */
static void host_of(const char *listen, char *ret_host, size_t cap)
{
    const char *text = listen == NULL ? "127.0.0.1:0" : listen;
    size_t bytes = strcspn(text, text[0] == '[' ? "]" : ":");
    bool is_bracketed = text[0] == '[';
    snprintf(ret_host, cap, "%.*s", (int)(bytes - is_bracketed), text + is_bracketed);
}

static void perftest_words(struct words *words, const char *path, const char *device,
                           const struct kvf_bench_options *options, uint16_t port,
                           uint64_t page_bytes, uint32_t writes)
{
    word(words, "%s", path);
    word(words, "-F"); /* a processor's changing clock is no reason to end */
    word(words, "-d");
    word(words, "%s", device);
    word(words, "-x");
    word(words, "%u", options->gid_index);
    word(words, "-p");
    word(words, "%u", port);
    word(words, "-s");
    word(words, "%" PRIu64, page_bytes);
    word(words, "-n");
    word(words, "%u", writes);
}

static int run_perftest(const struct kvf_bench_options *options, const struct kvf_cpus *cpus,
                        const char *program, uint64_t page_bytes, uint32_t writes,
                        bool is_bandwidth, char *ret_text, size_t cap)
{
    struct words server = {.count = 0};
    struct words client = {.count = 0};
    struct words *sides[] = {&server, &client};
    char path[512];
    char host[64];
    uint16_t port = free_port();
    if (kvf_tool_find(program, path, sizeof(path)) != 0) {
        return tool_failed(program, "is not installed (perftest)");
    }
    host_of(kvf_bench_daemon_value(options, KVF_SIDE_SINK, "listen"), host, sizeof(host));
    perftest_words(&server, path, options->sink_device, options, port, page_bytes, writes);
    perftest_words(&client, path, options->source_device, options, port, page_bytes, writes);
    for (int i = 0; is_bandwidth && i < 2; i++) {
        word(sides[i], "-q");
        word(sides[i], "%u", options->lanes);
        word(sides[i], "--report_gbits");
    }
    word(&client, "%s", host);
    return run_pair(cpus, &server, port, &client, ret_text, cap);
}

/* As many writes as a repeat of ours moves bytes, within what says something and what ends in time: an emulated
 * device moves a few megabytes a second. */
static uint32_t writes_for(const struct kvf_bench_options *options, uint64_t page_bytes,
                           uint32_t max)
{
    uint64_t writes = options->bytes / page_bytes / options->lanes;
    return writes < WRITES_MIN ? WRITES_MIN : writes > max ? max : (uint32_t)writes;
}

/* 0 with a number, or with 0 if it could not tell how fast its processor's clock is and printed inf or nan. */
static int take_row(const char *program, const char *text, uint64_t page_bytes, uint32_t column,
                    double *ret_value)
{
    double value = 0;
    int rc = kvf_tool_row(text, page_bytes, column, &value);
    if (rc == -ENOENT || value < 0) {
        return tool_failed(program, "printed no row for this size");
    }
    *ret_value = value;
    return 0;
}

int kvf_tool_write_bw(const struct kvf_bench_options *options, const struct kvf_cpus *cpus,
                      uint64_t page_bytes, double *ret_mb_per_s)
{
    static char text[TEXT_BYTES];
    uint32_t writes = writes_for(options, page_bytes, WRITES_MAX);
    double gbits = 0;
    int rc = run_perftest(options, cpus, "ib_write_bw", page_bytes, writes, true, text,
                          sizeof(text));
    /* #bytes, #iterations, peak, average, message rate */
    rc = rc != 0 ? rc : take_row("ib_write_bw", text, page_bytes, 3, &gbits);
    if (rc == 0) {
        *ret_mb_per_s = gbits * 125;
    }
    return rc;
}

int kvf_tool_write_lat(const struct kvf_bench_options *options, const struct kvf_cpus *cpus,
                       uint64_t page_bytes, double *ret_us)
{
    static char text[TEXT_BYTES];
    uint32_t writes = writes_for(options, page_bytes, LATENCY_WRITES_MAX);
    double us = 0;
    int rc = run_perftest(options, cpus, "ib_write_lat", page_bytes, writes, false, text,
                          sizeof(text));
    /* #bytes, #iterations, min, max, typical, average, ... */
    rc = rc != 0 ? rc : take_row("ib_write_lat", text, page_bytes, 4, &us);
    if (rc == 0) {
        *ret_us = us;
    }
    return rc;
}

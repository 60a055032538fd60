/* One thread of the library serves all connections, and never waits for one of them: an answer is made in memory
 * and sent as its reader takes it. The daemons' files are read in that thread alone. */
#include "client/stat/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/stat/collect.h"
#include "client/stat/health.h"
#include "client/stat/json.h"
#include "client/stat/prometheus.h"

static int parse_port(const char *text, uint16_t *ret_port)
{
    char *end = NULL;
    long port = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : -1;

    if (port < 0 || port > UINT16_MAX || *end != '\0') {
        return -EINVAL;
    }
    *ret_port = (uint16_t)port;
    return 0;
}

int kvf_serve_parse(const char *text, struct sockaddr_storage *ret_addr)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    char host[INET6_ADDRSTRLEN];
    uint16_t port = 0;
    const char *colon = strrchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : 0;
    bool is_v6 = n >= 2u && text[0] == '[' && text[n - 1u] == ']';

    if (parse_port(colon != NULL ? colon + 1 : text, &port) != 0 || n >= sizeof host) {
        return -EINVAL;
    }
    if (colon != NULL) {
        (void)snprintf(host, sizeof host, "%.*s", (int)(is_v6 ? n - 2u : n),
                       is_v6 ? text + 1 : text);
        if (inet_pton(is_v6 ? AF_INET6 : AF_INET, host,
                      is_v6 ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) != 1) {
            return -EINVAL;
        }
    }
    v4.sin_port = htons(port);
    v6.sin6_port = htons(port);
    memset(ret_addr, 0, sizeof *ret_addr);
    if (is_v6) {
        memcpy(ret_addr, &v6, sizeof v6);
    } else {
        memcpy(ret_addr, &v4, sizeof v4);
    }
    return 0;
}

#ifdef KVF_STAT_HTTP
#include <microhttpd.h>

#define CONNECTION_MEMORY_BYTES (32u * 1024u) /* of a request's head; a longer one is refused */
#define STOP_LOOKS_MAX 50
#define STOP_LOOK_NS 20000000

bool kvf_serve_is_built(void)
{
    return true;
}

static const char index_text[] = "kvfence-stat serves\n"
                                 "/metrics  Prometheus' text format\n"
                                 "/json     all of it as JSON\n"
                                 "/health   200 if all daemons are well, else 503, and why\n";

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status,
                                   const char *type, char *text, size_t bytes, bool is_owned)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        bytes, text, is_owned ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    enum MHD_Result queued = MHD_NO;

    if (response == NULL) {
        if (is_owned) {
            free(text);
        }
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result answer_constant(struct MHD_Connection *connection, unsigned status,
                                       const char *text)
{
    return answer_text(connection, status, "text/plain; charset=utf-8", (char *)(uintptr_t)text,
                       strlen(text), false);
}

/* Writes the page of `url` and returns its status; 0: there is no such page. */
static unsigned print_page(FILE *out, const char *url, const struct kvf_stat_look *look,
                           bool is_named, const char **ret_type)
{
    *ret_type = "text/plain; charset=utf-8";
    if (strcmp(url, "/metrics") == 0) {
        *ret_type = KVF_PROMETHEUS_CONTENT_TYPE;
        kvf_prometheus_print(out, look);
        return MHD_HTTP_OK;
    }
    if (strcmp(url, "/json") == 0) {
        *ret_type = "application/json";
        kvf_stat_print_json(out, look->daemons, look->daemon_count, look->problems,
                            look->problem_count);
        return MHD_HTTP_OK;
    }
    if (strcmp(url, "/health") == 0) {
        return kvf_stat_print_health(out, look, is_named, false) == KVF_STAT_HEALTHY
                   ? MHD_HTTP_OK
                   : MHD_HTTP_SERVICE_UNAVAILABLE;
    }
    return 0;
}

static enum MHD_Result answer_page(const struct kvf_serve_config *config,
                                   struct MHD_Connection *connection, const char *url)
{
    char *text = NULL;
    size_t bytes = 0;
    const char *type = NULL;
    struct kvf_stat_look *look =
        kvf_stat_look_at(config->run_dir, config->names, config->name_count);
    FILE *out = look != NULL ? open_memstream(&text, &bytes) : NULL;

    if (out == NULL) {
        kvf_stat_look_free(look);
        return answer_constant(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    }
    unsigned status = print_page(out, url, look, config->name_count > 0, &type);
    kvf_stat_look_free(look);
    if (fclose(out) != 0) {
        free(text);
        return answer_constant(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    }
    return answer_text(connection, status, type, text, bytes, true);
}

static enum MHD_Result answer(void *ctx, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **request)
{
    static char is_seen;
    const struct kvf_serve_config *config = ctx;
    bool is_read =
        strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    bool is_page = strcmp(url, "/metrics") == 0 || strcmp(url, "/json") == 0 ||
                   strcmp(url, "/health") == 0;

    (void)version;
    (void)upload;
    if (*request == NULL) { /* the head; what a body there is comes in later calls */
        *request = &is_seen;
        return MHD_YES;
    }
    if (*upload_bytes != 0) { /* nobody asked for it */
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (!is_read) {
        return answer_constant(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
                               "only GET and HEAD are answered\n");
    }
    if (strcmp(url, "/") == 0) {
        return answer_constant(connection, MHD_HTTP_OK, index_text);
    }
    return is_page ? answer_page(config, connection, url)
                   : answer_constant(connection, MHD_HTTP_NOT_FOUND,
                                     "no such page: /metrics, /json and /health there are\n");
}

static void say_where(const struct kvf_serve_config *config, uint16_t port, FILE *err)
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool is_v6 = config->addr.ss_family == AF_INET6;
    const void *addr =
        is_v6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)&config->addr)
                    ->sin6_addr
              : (const void *)&((const struct sockaddr_in *)(const void *)&config->addr)
                    ->sin_addr;

    (void)inet_ntop(config->addr.ss_family, addr, host, sizeof host);
    fprintf(err, "kvfence-stat: serving http://%s%s%s:%u/metrics\n", is_v6 ? "[" : "", host,
            is_v6 ? "]" : "", port);
    (void)fflush(err);
}

/* Nobody new is let in, and answers under way have a moment: a reader that takes its time is cut off. */
static void stop(struct MHD_Daemon *http)
{
    int listener = MHD_quiesce_daemon(http);

    for (int i = 0; i < STOP_LOOKS_MAX; i++) {
        const struct timespec step = {.tv_nsec = STOP_LOOK_NS};
        const union MHD_DaemonInfo *info =
            MHD_get_daemon_info(http, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        if (info == NULL || info->num_connections == 0) {
            break;
        }
        (void)nanosleep(&step, NULL);
    }
    MHD_stop_daemon(http);
    if (listener >= 0) {
        (void)close(listener);
    }
}

int kvf_serve(const struct kvf_serve_config *config, FILE *err)
{
    sigset_t signals;
    int signum = 0;
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_USE_ITC;

    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL); /* the library's thread inherits it */
    (void)signal(SIGPIPE, SIG_IGN);
    if (config->addr.ss_family == AF_INET6) {
        flags |= MHD_USE_IPv6;
    }
    errno = 0;
    struct MHD_Daemon *http = MHD_start_daemon(
        flags, 0, NULL, NULL, answer, (void *)(uintptr_t)config, MHD_OPTION_SOCK_ADDR,
        &config->addr, MHD_OPTION_CONNECTION_LIMIT, KVF_SERVE_CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, KVF_SERVE_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_END);
    if (http == NULL) {
        int rc = errno != 0 ? -errno : -EIO;
        fprintf(err, "kvfence-stat: cannot listen there: %s; choose another --listen\n",
                strerror(-rc));
        return rc;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http, MHD_DAEMON_INFO_BIND_PORT);
    say_where(config, info != NULL ? info->port : 0, err);
    (void)sigwait(&signals, &signum);
    stop(http);
    return 0;
}

#else

bool kvf_serve_is_built(void)
{
    return false;
}

int kvf_serve(const struct kvf_serve_config *config, FILE *err)
{
    (void)config;
    fputs("kvfence-stat: built without libmicrohttpd, so there is no --listen\n", err);
    return -ENOSYS;
}
#endif

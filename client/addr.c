/* Peer addresses as engines write them. A numeric one costs no system call; a name is resolved here, so
 * that the daemon never waits for a resolver. */
#include "client/internal.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define KVF_HOST_BYTES_MAX 256u

static int parse_number(const char *text, uint64_t max, uint64_t *ret_number)
{
    uint64_t number = 0;
    if (*text == '\0') {
        return -KVF_E_PEER_UNRESOLVED;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return -KVF_E_PEER_UNRESOLVED;
        }
        number = number * 10u + (uint64_t)(*text - '0');
        if (number > max) {
            return -KVF_E_PEER_UNRESOLVED;
        }
    }
    *ret_number = number;
    return 0;
}

/* Takes "host:port" or "[host]:port" apart. */
static int split(const char *text, char *ret_host, uint64_t *ret_port, bool *ret_is_bracketed)
{
    const char *host = text;
    const char *colon;
    size_t host_bytes;
    bool is_bracketed = text[0] == '[';
    if (is_bracketed) {
        const char *end = strchr(text, ']');
        if (end == NULL || end[1] != ':') {
            return -KVF_E_PEER_UNRESOLVED;
        }
        host++;
        host_bytes = (size_t)(end - host);
        colon = end + 1;
    } else {
        colon = strrchr(text, ':');
        /* More than one colon without brackets: an IPv6 address whose port cannot be told. */
        if (colon == NULL || memchr(text, ':', (size_t)(colon - text)) != NULL) {
            return -KVF_E_PEER_UNRESOLVED;
        }
        host_bytes = (size_t)(colon - host);
    }
    if (host_bytes == 0 || host_bytes >= KVF_HOST_BYTES_MAX) {
        return -KVF_E_PEER_UNRESOLVED;
    }
    int err = parse_number(colon + 1, UINT16_MAX, ret_port);
    if (err != 0 || *ret_port == 0) {
        return -KVF_E_PEER_UNRESOLVED;
    }
    memcpy(ret_host, host, host_bytes);
    ret_host[host_bytes] = '\0';
    *ret_is_bracketed = is_bracketed;
    return 0;
}

static int parse_numeric(char *host, bool is_bracketed, struct kvf_addr_shm *ret_addr)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (!is_bracketed) {
        if (inet_pton(AF_INET, host, &v4) != 1) {
            return -ENOENT;
        }
        ret_addr->family = 4;
        memcpy(ret_addr->addr, &v4, sizeof v4);
        return 0;
    }
    uint64_t scope = 0;
    char *percent = strchr(host, '%');
    /* A scope that is a name needs the kernel: left to the resolver. */
    if (percent != NULL && parse_number(percent + 1, UINT32_MAX, &scope) != 0) {
        return -ENOENT;
    }
    if (percent != NULL) {
        *percent = '\0';
    }
    if (inet_pton(AF_INET6, host, &v6) != 1) {
        return -KVF_E_PEER_UNRESOLVED;
    }
    ret_addr->family = 6;
    ret_addr->scope = (uint32_t)scope;
    memcpy(ret_addr->addr, &v6, sizeof v6);
    return 0;
}

/* One address has to be chosen and no second one is ever tried. A name that has both kinds gets its IPv4
 * one: that is what a daemon listens on unless told otherwise. */
static int resolve(const char *host, struct kvf_addr_shm *ret_addr)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    if (getaddrinfo(host, NULL, &hints, &list) != 0) {
        return -KVF_E_PEER_UNRESOLVED;
    }
    int err = -KVF_E_PEER_UNRESOLVED;
    for (const struct addrinfo *ai = list; ai != NULL; ai = ai->ai_next) {
        if (ai->ai_family == AF_INET) {
            const struct sockaddr_in *in = (const void *)ai->ai_addr;
            ret_addr->family = 4;
            ret_addr->scope = 0;
            memset(ret_addr->addr, 0, sizeof ret_addr->addr);
            memcpy(ret_addr->addr, &in->sin_addr, sizeof in->sin_addr);
            err = 0;
            break;
        }
        if (ai->ai_family == AF_INET6 && err != 0) {
            const struct sockaddr_in6 *in6 = (const void *)ai->ai_addr;
            ret_addr->family = 6;
            ret_addr->scope = in6->sin6_scope_id;
            memcpy(ret_addr->addr, &in6->sin6_addr, sizeof in6->sin6_addr);
            err = 0;
        }
    }
    freeaddrinfo(list);
    return err;
}

int kvf_client_addr_parse(const char *text, struct kvf_addr_shm *ret_addr)
{
    char host[KVF_HOST_BYTES_MAX];
    uint64_t port;
    bool is_bracketed;
    int err = split(text, host, &port, &is_bracketed);
    if (err != 0) {
        return err;
    }
    struct kvf_addr_shm addr = {.port = (uint16_t)port};
    err = parse_numeric(host, is_bracketed, &addr);
    if (err == -ENOENT) {
        err = resolve(host, &addr);
    }
    if (err == 0) {
        *ret_addr = addr;
    }
    return err;
}

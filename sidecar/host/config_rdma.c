/* How the options of transport verbs fit together. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "sidecar/host/config.h"

#define STALL_SLACK_MS 100u

int kvf_config_gid(const struct kvf_config *config, uint8_t ret_gid[16])
{
    uint8_t gid[16] = {0};
    if (strcmp(config->rdma_gid, "any") != 0 &&
        inet_pton(AF_INET6, config->rdma_gid, gid) != 1) {
        memset(gid, 0, sizeof(gid));
        if (inet_pton(AF_INET, config->rdma_gid, gid + 12) != 1) {
            return -EINVAL;
        }
        gid[10] = 0xff;
        gid[11] = 0xff;
    }
    memcpy(ret_gid, gid, sizeof(gid));
    return 0;
}

uint64_t kvf_config_retries_ms(const struct kvf_config *config)
{
    uint64_t once_ns = UINT64_C(4096) << config->rdma_timeout;
    return (config->rdma_retry + UINT64_C(1)) * 4u * once_ns / 1000000u + 1u;
}

int kvf_config_check_rdma(struct kvf_config *config, char *ret_error, size_t cap)
{
    bool is_verbs = config->transport == KVF_CONFIG_VERBS;
    if (is_verbs && config->placement == KVF_CONFIG_CHECKED) {
        snprintf(
            ret_error, cap,
            "--tcp-placement checked: with --transport verbs devices place the bytes and ask "
            "nobody; leave it out, or say posted");
        return -EINVAL;
    }
    if (config->placement == 0) {
        config->placement = is_verbs ? KVF_CONFIG_POSTED : KVF_CONFIG_CHECKED;
    }
    uint8_t gid[16];
    if (kvf_config_gid(config, gid) != 0) {
        snprintf(ret_error, cap,
                 "--rdma-gid %s: must be any, or a numeric IPv4 or IPv6 address (no port)",
                 config->rdma_gid);
        return -EINVAL;
    }
    uint64_t retries_ms = kvf_config_retries_ms(config);
    if (config->rdma_stall_ms == 0) {
        uint64_t stall_ms = retries_ms + STALL_SLACK_MS;
        config->rdma_stall_ms = stall_ms < UINT32_MAX ? (uint32_t)stall_ms : UINT32_MAX;
    } else if (config->rdma_stall_ms <= retries_ms && is_verbs) {
        snprintf(ret_error, cap,
                 "--rdma-stall-ms %" PRIu32 ": the device itself may take %" PRIu64
                 " ms until it gives a lane up (--rdma-timeout %" PRIu32
                 ", --rdma-retry %" PRIu32 "); must be longer, or 0",
                 config->rdma_stall_ms, retries_ms, config->rdma_timeout, config->rdma_retry);
        return -EINVAL;
    }
    return 0;
}

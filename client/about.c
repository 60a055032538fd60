/* What the library says of itself, and small helpers that every file uses. */
#include "client/internal.h"

#include <string.h>
#include <time.h>

#include "ring/codes.h"

#define KVF_OPTS_BYTES_MAX 4096u

const char *kvf_version(void)
{
    return KVF_VERSION;
}

uint32_t kvf_layout_version(void)
{
    return KVF_LAYOUT_MAJOR << 16 | KVF_LAYOUT_MINOR;
}

const char *kvf_strerror(int code)
{
    return kvf_code_text(code);
}

const char *kvf_code_name_of(int code)
{
    return kvf_code_name(code);
}

const char *kvf_state_name(int state)
{
    static const char *const names[] = {
        [KVF_FAILED] = "Failed",
        [KVF_BOOTSTRAPPING] = "Bootstrapping",
        [KVF_WAITING_FOR_INPUT] = "WaitingForInput",
        [KVF_TRANSFERRING] = "Transferring",
        [KVF_SUCCESS] = "Success",
    };
    return state >= 0 && state <= KVF_SUCCESS ? names[state] : "?";
}

const char *kvf_proof_name(int proof)
{
    static const char *const names[] = {
        [KVF_NEVER_POSTED] = "NEVER_POSTED", [KVF_LANDED] = "LANDED",
        [KVF_SOURCE_IDLE] = "SOURCE_IDLE",   [KVF_PEER_DRAINED] = "PEER_DRAINED",
        [KVF_REVOKED] = "REVOKED",           [KVF_FENCED] = "FENCED",
        [KVF_WORKER_GONE] = "WORKER_GONE",   [KVF_ENGINE_GONE] = "ENGINE_GONE",
        [KVF_OPERATOR] = "OPERATOR",
    };
    return proof >= KVF_NEVER_POSTED && proof <= KVF_OPERATOR ? names[proof] : "?";
}

bool kvf_client_is_zero(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

int kvf_client_copy_opts(void *ret, size_t ret_bytes, const void *opts)
{
    uint32_t size_bytes;
    memcpy(&size_bytes, opts, sizeof size_bytes);
    if (size_bytes < ret_bytes || size_bytes > KVF_OPTS_BYTES_MAX) {
        return -KVF_E_OPTION;
    }
    /* A newer program may have set a field whose meaning is unknown here: refused, never ignored. */
    if (!kvf_client_is_zero((const unsigned char *)opts + ret_bytes, size_bytes - ret_bytes)) {
        return -KVF_E_OPTION;
    }
    memcpy(ret, opts, ret_bytes);
    return 0;
}

int kvf_client_copy_out(void *ret, const void *from, size_t from_bytes, size_t first_bytes)
{
    uint32_t size_bytes;
    memcpy(&size_bytes, ret, sizeof size_bytes);
    if (size_bytes < first_bytes || size_bytes > KVF_OPTS_BYTES_MAX) {
        return -KVF_E_OPTION;
    }
    size_t known_bytes = size_bytes < from_bytes ? size_bytes : from_bytes;
    memcpy((unsigned char *)ret + sizeof size_bytes,
           (const unsigned char *)from + sizeof size_bytes, known_bytes - sizeof size_bytes);
    memset((unsigned char *)ret + known_bytes, 0, size_bytes - known_bytes);
    return 0;
}

uint64_t kvf_client_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int kvf_client_ms_until(uint64_t deadline_ns, int max_ms)
{
    uint64_t now_ns = kvf_client_now_ns();
    if (now_ns >= deadline_ns) {
        return 0;
    }
    uint64_t ms = (deadline_ns - now_ns + 999999u) / 1000000u;
    return ms > (uint64_t)max_ms ? max_ms : (int)ms;
}

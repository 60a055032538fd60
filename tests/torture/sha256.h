/* SHA-256 (FIPS 180-4), so that a report can name the trace and the schedule it ran on exactly. */
#ifndef KVF_TORTURE_SHA256_H
#define KVF_TORTURE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define KVF_SHA256_HEX_BYTES 65 /* with the NUL */

struct kvf_sha256 {
    uint32_t state[8];
    uint64_t total_bytes;
    unsigned char block[64];
};

void kvf_sha256_init(struct kvf_sha256 *sha);
void kvf_sha256_add(struct kvf_sha256 *sha, const void *bytes, size_t count);
/* Ends the sum and writes 64 lower-case hex digits and a NUL. */
void kvf_sha256_hex(struct kvf_sha256 *sha, char ret_hex[KVF_SHA256_HEX_BYTES]);

#endif

/* What moves bytes without kvfence: one TCP stream, and memcpy. Both between the memory that rooms use, by two
 * threads pinned where the daemons are. */
#ifndef KVF_BENCH_PLAIN_H
#define KVF_BENCH_PLAIN_H

#include <stdint.h>

#include "tests/bench/machine.h"
#include "tests/bench/series.h"

struct kvf_plain {
    unsigned char *from;
    unsigned char *to;
    uint64_t bytes; /* of each */
    struct kvf_cpus cpus;
};

/* One stream over loopback, written and read in pieces of 128 KiB as iperf3 does. 0 or -errno. */
int kvf_plain_stream(const struct kvf_plain *plain, uint64_t total_bytes, double *ret_mb_per_s);
/* The sink asks with 64 bytes, the source answers with `bytes`; `count` times over one connection. A sample in
 * microseconds each. 0 or -errno. */
int kvf_plain_ask(const struct kvf_plain *plain, uint64_t bytes, uint32_t count,
                  struct kvf_series *series);
/* memcpy of `count` blocks in the order of `pages`, again until total_bytes are moved. */
double kvf_plain_copy(const struct kvf_plain *plain, const int32_t *pages, uint32_t count,
                      uint64_t page_bytes, uint64_t total_bytes);

#endif

/* The programs that rooms are measured beside: iperf3, and perftest's ib_write_bw and ib_write_lat. Each run starts
 * a server on the sink's side and a client on the source's, pinned where the daemons are. */
#ifndef KVF_BENCH_TOOLS_H
#define KVF_BENCH_TOOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/bench/machine.h"
#include "tests/bench/options.h"

/* The program's path from $PATH. 0 or -ENOENT. */
int kvf_tool_find(const char *program, char *ret_path, size_t cap);

/* One stream over loopback. 0, or an exit status after a sentence. */
int kvf_tool_iperf3(const struct kvf_cpus *cpus, uint64_t bytes, double *ret_mb_per_s);
/* RDMA writes of page_bytes over as many queue pairs as there are lanes. The server is reached at the address that
 * the sink's daemon listens on. perftest counts a processor's cycles; where it could not tell how long one is, which
 * happens on busy emulated machines, the answer is 0. */
int kvf_tool_write_bw(const struct kvf_bench_options *options, const struct kvf_cpus *cpus,
                      uint64_t page_bytes, double *ret_mb_per_s);
/* Half of a round trip of RDMA writes, typical. */
int kvf_tool_write_lat(const struct kvf_bench_options *options, const struct kvf_cpus *cpus,
                       uint64_t page_bytes, double *ret_us);

/* What the tools print. The number in that column (the first is 0) of the row that begins with `first`; -ENOENT, or
 * -ERANGE: it is inf or nan. */
int kvf_tool_row(const char *text, uint64_t first, uint32_t column, double *ret_value);
/* iperf3's JSON: what the receiver took. -ENOENT. */
int kvf_tool_iperf3_rate(const char *text, double *ret_mb_per_s);

#endif

/* The command line of kvfence-bench. */
#ifndef KVF_BENCH_OPTIONS_H
#define KVF_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define KVF_BENCH_SIZES_MAX 8u
#define KVF_BENCH_DAEMON_OPTIONS_MAX 32u
#define KVF_BENCH_REPEATS_MAX 10000u

enum kvf_bench_command {
    KVF_BENCH_RING = 0,
    KVF_BENCH_POLL,
    KVF_BENCH_TRANSFER,
    KVF_BENCH_ABORT,
    KVF_BENCH_SCALE,
    KVF_BENCH_COMMANDS
};

enum kvf_bench_transport { KVF_BENCH_TCP = 0, KVF_BENCH_LOCAL, KVF_BENCH_VERBS };

/* What a transfer stands beside; AUTO: the best that this machine has. */
enum kvf_bench_beside {
    KVF_BESIDE_AUTO = 0,
    KVF_BESIDE_NONE,
    KVF_BESIDE_PLAIN,
    KVF_BESIDE_IPERF3,
    KVF_BESIDE_MEMCPY,
    KVF_BESIDE_PERFTEST
};

/* Bits: whose daemon an option is for. */
enum kvf_bench_side { KVF_SIDE_SOURCE = 1, KVF_SIDE_SINK = 2, KVF_SIDE_BOTH = 3 };

struct kvf_daemon_option {
    const char *text; /* NAME=VALUE, or NAME alone for a flag */
    enum kvf_bench_side side;
};

struct kvf_bench_options {
    enum kvf_bench_command command;
    enum kvf_bench_transport transport;
    enum kvf_bench_beside beside;
    bool is_json;
    bool is_quiet;
    bool is_judge;
    bool is_help;
    bool is_version;
    uint64_t sizes[KVF_BENCH_SIZES_MAX]; /* bytes of a page */
    uint32_t size_count;
    uint64_t room_bytes;
    uint64_t bytes; /* of one repeat */
    uint32_t in_flight;
    uint32_t single_rooms; /* of one page, one by one, in each repeat */
    uint32_t lanes;
    uint32_t lane_rate; /* MB/s, 0: unpaced */
    uint32_t repeats;
    uint32_t counts[KVF_BENCH_SIZES_MAX]; /* of open rooms */
    uint32_t count_count;
    const char *cpus;          /* NULL: chosen */
    const char *kvfenced;      /* NULL: beside this program */
    const char *source_device; /* perftest's -d and -x */
    const char *sink_device;
    uint32_t gid_index;
    struct kvf_daemon_option daemon_options[KVF_BENCH_DAEMON_OPTIONS_MAX];
    uint32_t daemon_option_count;
};

/* 0, or 2 with a sentence on err. The strings point into argv. */
int kvf_bench_options_parse(int argc, char **argv, FILE *err,
                            struct kvf_bench_options *ret_options);
/* Without a command what there is, with one its options. */
void kvf_bench_options_help(FILE *out, const struct kvf_bench_options *options);
const char *kvf_bench_command_name(enum kvf_bench_command command);
const char *kvf_bench_transport_name(enum kvf_bench_transport transport);
/* The value that an option of this side was given last, or NULL: "listen" of --sink-option listen=ADDR. */
const char *kvf_bench_daemon_value(const struct kvf_bench_options *options,
                                   enum kvf_bench_side side, const char *name);

#endif

/* The command line of kvfence-torture. */
#ifndef KVF_TORTURE_OPTIONS_H
#define KVF_TORTURE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/torture/fleet.h"

#define KVF_POLICIES_MAX 8u
#define KVF_DAEMON_OPTIONS_MAX 20u /* 16 given, and what verbs adds */
#define KVF_PROXY_RULES_BYTES 480u

struct kvf_policy {
    char name[24]; /* as written: "timer:5" */
    enum kvf_release_mode mode;
    uint32_t timer_us;
};

struct kvf_options {
    struct kvf_policy policies[KVF_POLICIES_MAX];
    uint32_t policy_count;
    bool is_compare;
    bool is_json;
    bool is_quiet;
    bool is_help;
    bool is_version;
    bool is_checked; /* placement */
    bool is_local;   /* one daemon for all engines, transport local */
    bool is_verbs;
    char rdma_devices[2][64];          /* of decode and of prefill daemons; "": they choose */
    bool has_planned_faults;           /* a proxy ends connections or keeps them waiting */
    char proxy[KVF_PROXY_RULES_BYTES]; /* rules of the proxies in front of prefill; "": none */
    enum kvf_inject inject;
    struct kvf_geometry geometry;
    const char *trace;     /* NULL: the table of the tree */
    const char *kvfenced;  /* NULL: beside this program */
    const char *keep_logs; /* NULL: logs go with the run directory */
    const char *daemon_options[KVF_DAEMON_OPTIONS_MAX]; /* NAME=VALUE */
    uint32_t daemon_option_count;
    uint64_t seed;
    uint32_t donors;
    uint32_t prefill_count;
    uint32_t decode_count;
    uint32_t lane_rate; /* MB/s, 0 = unpaced */
    uint32_t lanes;
    uint32_t lane_rooms;
    uint32_t pages_max;
    uint32_t time_limit_s; /* 0: chosen from the number of donors */
    uint64_t room_window_bytes;
    uint64_t lane_window_bytes;
};

/* 0, or 2 with a sentence on err. The strings point into argv. */
int kvf_options_parse(int argc, char **argv, FILE *err, struct kvf_options *ret_options);
void kvf_options_help(FILE *out);
/* "early", "timer:MS", "drained", "ledger", "forgetful". 0 or -EINVAL (-ERANGE: MS). */
int kvf_policy_parse(const char *text, struct kvf_policy *ret_policy);

#endif

/* kvfence-torture: the product's proof and its demo. See README.md of this folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/kvfence.h"
#include "ring/about/about.h"
#include "tests/torture/launch.h"
#include "tests/torture/options.h"
#include "tests/torture/report.h"

/* Requests prepared per donor wanted; about 1.7 are used. */
#define REQUESTS_PER_DONOR 4u
#define REQUESTS_EXTRA 256u
#define DONOR_PAGES_MIN 16u

#define TRACE_IN_TREE "tests/data/conversation.csv"
#define TRACE_INSTALLED "share/kvfence/conversation.csv"

/* The table of the tree: from where this program was built, where it is installed, or from the source tree. */
static const char *standard_trace(char *buf, size_t cap)
{
    if (kvf_program_path("../../" TRACE_IN_TREE, buf, cap) == 0 && access(buf, R_OK) == 0) {
        char *real = realpath(buf, NULL);
        if (real != NULL && strlen(real) < cap) {
            memcpy(buf, real, strlen(real) + 1);
        }
        free(real);
        return buf;
    }
    if (kvf_program_path("../" TRACE_INSTALLED, buf, cap) == 0 && access(buf, R_OK) == 0) {
        return buf;
    }
    return KVF_SOURCE_DIR "/" TRACE_IN_TREE;
}

static int read_trace(const char *path, struct kvf_trace *ret_trace)
{
    struct kvf_trace_fault fault;
    if (kvf_trace_read(path, ret_trace, &fault) == 0) {
        return 0;
    }
    fprintf(stderr, "kvfence-torture: %s", path);
    if (fault.line != 0) {
        fprintf(stderr, ", line %u", fault.line);
    }
    if (fault.field[0] != 0) {
        fprintf(stderr, ", %s", fault.field);
    }
    fprintf(stderr, ": %s%s%s\n", kvf_trace_fault_text(fault.code),
            fault.detail != 0 ? ": " : "", fault.detail != 0 ? strerror(fault.detail) : "");
    return KVF_EXIT_USAGE;
}

static struct kvf_request *make_requests(const struct kvf_options *o,
                                         const struct kvf_trace *trace, uint32_t count)
{
    struct kvf_request *requests = calloc(count, sizeof(*requests));
    struct kvf_schedule_config config = {.seed = o->seed,
                                         .prefill_count = o->prefill_count,
                                         .decode_count = o->decode_count,
                                         .pages_max = o->pages_max,
                                         .donor_pages_min = DONOR_PAGES_MIN,
                                         .room_window_bytes = o->room_window_bytes,
                                         .geometry = o->geometry};
    if (requests == NULL) {
        fprintf(stderr, "kvfence-torture: not enough memory for %u requests\n", count);
        return NULL;
    }
    kvf_schedule_make(&config, trace, count, requests);
    return requests;
}

static int run_policies(const struct kvf_options *o, const char *trace_path,
                        const struct kvf_trace *trace, const struct kvf_request *requests,
                        uint32_t request_count)
{
    static struct kvf_result results[KVF_POLICIES_MAX];
    char hash[KVF_SHA256_HEX_BYTES];
    char why[768];
    struct kvf_plan_inputs inputs = {o, requests, request_count};
    struct kvf_report report = {.options = o,
                                .trace_path = trace_path,
                                .trace_sha256 = trace->sha256,
                                .trace_rows = trace->row_count,
                                .schedule_hash = hash,
                                .results = results};
    kvf_schedule_hash(requests, request_count, hash);
    for (uint32_t i = 0; i < o->policy_count; i++) {
        report.result_count = i + 1;
        if (kvf_coordinator_run(&inputs, &o->policies[i], &results[i]) != 0) {
            fprintf(stderr, "kvfence-torture: %s: %s\n", o->policies[i].name,
                    results[i].broken);
            break;
        }
    }
    enum kvf_exit status = o->is_compare ? kvf_report_judge_all(&report, why, sizeof(why))
                                         : kvf_report_judge(&results[0], why, sizeof(why));
    if (o->is_json) {
        kvf_report_json(stdout, &report, status);
    } else if (results[0].has_run) {
        kvf_report_table(stdout, &report);
        if (o->is_compare) {
            printf("\n  together   %s\n", why);
        }
    }
    return (int)status;
}

int main(int argc, char **argv)
{
    struct kvf_options options;
    struct kvf_trace trace;
    char path[4096];
    if (argc > 2 && strncmp(argv[1], "--role=", 7) == 0) {
        return kvf_launch_role(argv[1] + 7, argc - 2, argv + 2);
    }
    int rc = kvf_options_parse(argc, argv, stderr, &options);
    if (rc != 0) {
        return rc;
    }
    if (options.is_help || options.is_version) {
        if (options.is_help) {
            kvf_options_help(stdout);
        } else {
            kvf_about_print("kvfence-torture", stdout);
        }
        return 0;
    }
    const char *trace_path =
        options.trace != NULL ? options.trace : standard_trace(path, sizeof(path));
    rc = read_trace(trace_path, &trace);
    if (rc != 0) {
        return rc;
    }
    kvf_process_catch_signals();
    uint32_t count = options.donors * REQUESTS_PER_DONOR + REQUESTS_EXTRA;
    struct kvf_request *requests = make_requests(&options, &trace, count);
    rc = requests == NULL ? KVF_EXIT_BROKEN
                          : run_policies(&options, trace_path, &trace, requests, count);
    free(requests);
    kvf_trace_free(&trace);
    if (fflush(stdout) != 0) {
        perror("kvfence-torture: standard output");
        return KVF_EXIT_BROKEN;
    }
    return rc;
}

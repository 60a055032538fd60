/* What kvfence-bench says of its samples, what it reads from other programs, and what it refuses. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/options.h"
#include "tests/bench/report.h"
#include "tests/bench/series.h"
#include "tests/bench/tools.h"

/* ---- samples -------------------------------------------------------------------------------------- */

static struct kvf_series series_of(uint32_t count)
{
    struct kvf_series series;
    cr_assert_eq(kvf_series_make(&series, count), 0);
    for (uint32_t i = 0; i < count; i++) {
        kvf_series_add(&series, (double)(i * 7919 % count + 1)); /* 1 .. count in no order */
    }
    return series;
}

Test(bench_series, percentiles_of_a_time_run_towards_the_longest)
{
    struct kvf_series series = series_of(1000);
    struct kvf_summary s;
    cr_assert_eq(kvf_series_summarize(&series, false, &s), 0);
    cr_assert_eq(s.count, 1000);
    cr_assert_float_eq(s.median, 500.5, 0);
    cr_assert_float_eq(s.p99, 990, 0);
    cr_assert_float_eq(s.p999, 999, 0);
    cr_assert_float_eq(s.min, 1, 0);
    cr_assert_float_eq(s.max, 1000, 0);
    kvf_series_free(&series);
}

Test(bench_series, percentiles_of_a_rate_run_towards_the_slowest)
{
    struct kvf_series series = series_of(1000);
    struct kvf_summary s;
    cr_assert_eq(kvf_series_summarize(&series, true, &s), 0);
    cr_assert_float_eq(s.median, 500.5, 0);
    cr_assert_float_eq(s.p99, 11, 0);
    cr_assert_float_eq(s.p999, 2, 0);
    cr_assert_float_eq(s.min, 1, 0);
    kvf_series_free(&series);
}

Test(bench_series, the_worst_of_few_samples_is_no_percentile_of_more)
{
    struct kvf_series series = series_of(3);
    struct kvf_summary s;
    cr_assert_eq(kvf_series_summarize(&series, false, &s), 0);
    cr_assert_float_eq(s.median, 2, 0);
    cr_assert_float_eq(s.p99, 3, 0);
    kvf_series_free(&series);
    cr_assert_eq(kvf_series_make(&series, 1), 0);
    cr_assert_eq(kvf_series_summarize(&series, false, &s), 0);
    cr_assert_eq(s.count, 0);
    cr_assert_float_eq(s.median, 0, 0);
    kvf_series_free(&series);
}

/* One slow repeat of both is no change of the ratio: neighbours are compared. */
Test(bench_series, the_ratio_is_that_of_neighbours)
{
    struct kvf_series mine;
    struct kvf_series beside;
    cr_assert_eq(kvf_series_make(&mine, 5), 0);
    cr_assert_eq(kvf_series_make(&beside, 5), 0);
    static const double machine[] = {100, 10, 1000, 1, 50};
    for (int i = 0; i < 5; i++) {
        kvf_series_add(&mine, machine[i] * 0.9);
        kvf_series_add(&beside, machine[i]);
    }
    cr_assert_float_eq(kvf_series_ratio(&mine, &beside), 0.9, 1e-9);
    beside.count = 4; /* medians then: 45 of ours beside 55 */
    cr_assert_float_eq(kvf_series_ratio(&mine, &beside), 45.0 / 55.0, 1e-9);
    beside.count = 0;
    cr_assert_float_eq(kvf_series_ratio(&mine, &beside), 0, 0);
    kvf_series_free(&mine);
    kvf_series_free(&beside);
}

/* ---- verdicts ------------------------------------------------------------------------------------- */

static bool is_met(double value, enum kvf_target kind, double target, bool is_absolute)
{
    static struct kvf_bench_report report;
    static struct kvf_bench_options options;
    memset(&report, 0, sizeof(report));
    report.options = &options;
    struct kvf_figure *f = kvf_report_figure(&report, "test", 1, 1);
    kvf_series_add(&f->series, value);
    kvf_series_add(&f->beside, 2);
    f->target_kind = kind;
    f->target = target;
    f->is_target_absolute = is_absolute;
    kvf_report_close(&report);
    bool met = kvf_report_is_met(&report);
    kvf_report_free(&report);
    return met;
}

Test(bench_report, a_target_is_of_the_ratio_or_of_the_median)
{
    cr_assert(is_met(2, KVF_TARGET_AT_MOST, 1.0, false));
    cr_assert(!is_met(2.1, KVF_TARGET_AT_MOST, 1.0, false));
    cr_assert(is_met(2, KVF_TARGET_AT_LEAST, 0.95, false));
    cr_assert(!is_met(1.8, KVF_TARGET_AT_LEAST, 0.95, false));
    cr_assert(is_met(1.8, KVF_TARGET_AT_MOST, 2, true));
    cr_assert(!is_met(2.2, KVF_TARGET_AT_MOST, 2, true));
    cr_assert(is_met(1000, KVF_TARGET_NONE, 0, false));
}

/* ---- what other programs print -------------------------------------------------------------------- */

static const char write_bw[] =
    " Dual-port       : OFF\t\tDevice         : rxe1\n"
    " Number of qps   : 1\t\tTransport type : IB\n"
    " remote address: LID 0000 QPN 0x0012 PSN 0x1e2b3c RKey 0x0005a3 VAddr 0x007f0000000000\n"
    "---------------------------------------------------------------------------------------\n"
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    " 65536      1000             3.41               3.25  \t\t   0.006199\n"
    "---------------------------------------------------------------------------------------\n";
static const char write_lat[] =
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
    "t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
    " 4096    1000          61.22          910.11       72.50     \t       75.00       \t"
    "10.00   \t\t99.00    \t\t911.00\n";

Test(bench_tools, a_row_is_found_by_its_size_and_read_by_its_column)
{
    double value;
    cr_assert_eq(kvf_tool_row(write_bw, 65536, 3, &value), 0);
    cr_assert_float_eq(value, 3.25, 0);
    cr_assert_eq(kvf_tool_row(write_lat, 4096, 4, &value), 0);
    cr_assert_float_eq(value, 72.5, 0);
}

Test(bench_tools, what_is_not_there_is_no_number)
{
    double value = -1;
    cr_assert_eq(kvf_tool_row(write_bw, 4096, 3, &value), -ENOENT);
    cr_assert_eq(kvf_tool_row(write_bw, 65536, 5, &value), -ENOENT);
    cr_assert_eq(kvf_tool_row("65536 1\n2 3 4\n", 65536, 3, &value), -ENOENT);
    cr_assert_eq(kvf_tool_row("65536 20 inf nan\n", 65536, 2, &value), -ERANGE);
    cr_assert_eq(kvf_tool_row("65536 20 inf nan\n", 65536, 3, &value), -ERANGE);
    cr_assert_eq(kvf_tool_row("", 65536, 3, &value), -ENOENT);
    cr_assert_eq(kvf_tool_iperf3_rate("{\"error\": \"unable to connect\"}", &value), -ENOENT);
    cr_assert_float_eq(value, -1, 0);
}

Test(bench_tools, iperf3s_rate_is_the_receivers_at_the_end)
{
    static const char json[] =
        "{\"intervals\": [{\"sum\": {\"bits_per_second\": 1}}],\n"
        " \"end\": {\"sum_sent\": {\"bits_per_second\": 9e9},\n"
        "          \"sum_received\": {\"bytes\": 5, \"bits_per_second\":\t8e9}}}";
    double value;
    cr_assert_eq(kvf_tool_iperf3_rate(json, &value), 0);
    cr_assert_float_eq(value, 1000, 1e-9);
}

/* ---- options -------------------------------------------------------------------------------------- */

static int parse(const char *line, struct kvf_bench_options *ret_options)
{
    static char words[512];
    static char error[1024];
    char *argv[40] = {"kvfence-bench"};
    int argc = 1;
    char *rest = words;
    char *word;
    FILE *err = fmemopen(error, sizeof(error), "w");
    snprintf(words, sizeof(words), "%s", line);
    while ((word = strsep(&rest, " ")) != NULL && argc < 39) {
        if (*word != 0) {
            argv[argc++] = word;
        }
    }
    int rc = kvf_bench_options_parse(argc, argv, err, ret_options);
    fclose(err);
    cr_assert(rc == 0 || strlen(error) > 20, "no sentence for: %s", line);
    return rc;
}

Test(bench_options, each_side_gets_the_options_that_are_meant_for_it)
{
    struct kvf_bench_options o;
    cr_assert_eq(parse("transfer --transport verbs --source-device rxe1 --sink-device rxe0 "
                       "--daemon-option insecure-listen --sink-option listen=10.0.0.10:0 "
                       "--source-option listen=10.0.1.11:0 --sizes 4K,64K,1M --lanes 2",
                       &o),
                 0);
    cr_assert_eq(o.transport, KVF_BENCH_VERBS);
    cr_assert_eq(o.lanes, 2);
    cr_assert_eq(o.size_count, 3);
    cr_assert_eq(o.sizes[2], 1048576);
    cr_assert_str_eq(kvf_bench_daemon_value(&o, KVF_SIDE_SINK, "listen"), "10.0.0.10:0");
    cr_assert_str_eq(kvf_bench_daemon_value(&o, KVF_SIDE_SOURCE, "listen"), "10.0.1.11:0");
    cr_assert_null(kvf_bench_daemon_value(&o, KVF_SIDE_SINK, "insecure-listen"));
    cr_assert_eq(o.daemon_options[0].side, KVF_SIDE_BOTH);
}

Test(bench_options, defaults_follow_the_command)
{
    struct kvf_bench_options o;
    cr_assert_eq(parse("transfer", &o), 0);
    cr_assert_eq(o.lane_rate, 0);
    cr_assert_eq(o.sizes[0], 4096);
    cr_assert_eq(parse("abort", &o), 0);
    cr_assert_eq(o.lane_rate, 100);
    cr_assert_eq(o.sizes[0], 65536);
    cr_assert_eq(o.repeats, 200);
    cr_assert_eq(parse("abort --transport local", &o), 0);
    cr_assert_eq(o.lane_rate, 0);
    cr_assert_eq(parse("scale", &o), 0);
    cr_assert_eq(o.counts[o.count_count - 1], 65536);
}

Test(bench_options, what_is_out_of_range_is_refused_with_a_sentence)
{
    static const char *const lines[] = {
        "",
        "nothing",
        "ring --transport tcp",
        "transfer --transport udp",
        "transfer --sizes 4K,",
        "transfer --sizes 63",
        "transfer --sizes 4Q",
        "transfer --sizes 1K,2K,3K,4K,5K,6K,7K,8K,9K",
        "transfer --sizes -1",
        "transfer --in-flight 0",
        "transfer --in-flight 65",
        "transfer --lanes 9",
        "transfer --repeats 99999999999999999999",
        "transfer --transport local --beside iperf3",
        "transfer --transport verbs",
        "transfer --beside perftest",
        "transfer --daemon-option =5",
        "transfer --daemon-option --lanes=2",
        "transfer --sizes 64 --room-bytes 1G",
        "transfer more",
        "scale --rooms 0",
        "scale --rooms 65537",
        "poll --sizes 4K",
        "transfer --sizes",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct kvf_bench_options o = {.repeats = 77};
        cr_assert_eq(parse(lines[i], &o), 2, "taken: %s", lines[i]);
        cr_assert_eq(o.repeats, 77, "an output of a refusal was touched: %s", lines[i]);
    }
}

/* The command line: what is out of range is refused with a sentence, and verdicts are as promised. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/torture/options.h"
#include "tests/torture/report.h"

static int parse(struct kvf_options *options, char *words, char *ret_error, size_t cap)
{
    char *argv[32] = {"kvfence-torture"};
    int argc = 1;
    char *rest = words;
    char *word;
    FILE *err = fmemopen(ret_error, cap, "w");
    while ((word = strsep(&rest, " ")) != NULL && argc < 31) {
        if (*word != 0) {
            argv[argc++] = word;
        }
    }
    int rc = kvf_options_parse(argc, argv, err, options);
    fclose(err);
    return rc;
}

static void refused(const char *line)
{
    struct kvf_options options;
    char words[256];
    char error[512] = "";
    snprintf(words, sizeof(words), "%s", line);
    cr_assert_eq(parse(&options, words, error, sizeof(error)), 2, "taken: %s", line);
    cr_assert_gt(strlen(error), 20, "no sentence for: %s", line);
}

Test(options, defaults_are_those_of_the_demo)
{
    struct kvf_options o;
    char words[] = "";
    char error[256];
    cr_assert_eq(parse(&o, words, error, sizeof(error)), 0);
    cr_assert_eq(o.policies[0].mode, KVF_RELEASE_DRAINED);
    cr_assert_eq(o.donors, 2000);
    cr_assert_eq(o.prefill_count, 2);
    cr_assert_eq(o.decode_count, 1);
    cr_assert_eq(o.lane_rate, 100);
    cr_assert_eq(o.lane_rooms, 4);
    cr_assert_eq(o.room_window_bytes, 1 << 20);
    cr_assert_eq(o.lane_window_bytes, 4 << 20);
    cr_assert_eq(o.geometry.page_bytes, 65536);
    cr_assert(!o.is_checked && !o.is_compare);
}

Test(options, over_verbs_what_is_not_given_suits_devices_that_answer_late)
{
    struct kvf_options o;
    char words[] = "--transport verbs --daemon-option rdma-timeout=14 --room-window 2M";
    char error[256];
    cr_assert_eq(parse(&o, words, error, sizeof(error)), 0);
    cr_assert_eq(o.lane_rate, 0);
    cr_assert_eq(o.room_window_bytes, 2 << 20);
    cr_assert_eq(o.lane_window_bytes, 2 << 20, "never smaller than a room's");
    cr_assert_eq(o.daemon_option_count, 5, "the given one is there once");
    cr_assert_str_eq(o.daemon_options[0], "rdma-timeout=14");
    cr_assert_str_eq(o.daemon_options[1], "cooperative-ms=2000");
    char paced[] = "--transport verbs --lane-rate 7";
    cr_assert_eq(parse(&o, paced, error, sizeof(error)), 0);
    cr_assert_eq(o.lane_rate, 7);
    cr_assert_eq(o.lane_window_bytes, 1 << 20);
    char tcp[] = "--transport tcp";
    cr_assert_eq(parse(&o, tcp, error, sizeof(error)), 0);
    cr_assert_eq(o.daemon_option_count, 0);
    cr_assert_eq(o.lane_rate, 100);
}

Test(options, rules_of_the_proxy_add_up_and_faults_are_told_from_what_is_harmless)
{
    struct kvf_options o;
    char error[256];
    char harmless[] = "--proxy split:7 --proxy delay:5,rate:3";
    cr_assert_eq(parse(&o, harmless, error, sizeof(error)), 0);
    cr_assert_str_eq(o.proxy, "split:7,delay:5,rate:3");
    cr_assert_not(o.has_planned_faults);
    char faults[] = "--proxy split:7 --proxy stall@2s:500ms";
    cr_assert_eq(parse(&o, faults, error, sizeof(error)), 0);
    cr_assert(o.has_planned_faults);
    refused("--proxy explode");
    refused("--proxy cut");
}

Test(options, a_comparison_takes_policies_in_order)
{
    struct kvf_options o;
    char words[] = "--compare early,timer:5,drained --donors 7 --seed 0x10 --room-window 512K";
    char error[256];
    cr_assert_eq(parse(&o, words, error, sizeof(error)), 0);
    cr_assert(o.is_compare);
    cr_assert_eq(o.policy_count, 3);
    cr_assert_eq(o.policies[1].mode, KVF_RELEASE_TIMER);
    cr_assert_eq(o.policies[1].timer_us, 5000);
    cr_assert_eq(o.policies[2].mode, KVF_RELEASE_DRAINED);
    cr_assert_eq(o.donors, 7);
    cr_assert_eq(o.seed, 16);
    cr_assert_eq(o.room_window_bytes, 512 << 10);
}

Test(options, what_is_out_of_range_is_refused_with_a_sentence)
{
    refused("--donors 0");
    refused("--donors 1000001");
    refused("--donors -1");
    refused("--donors many");
    refused("--prefill 9");
    refused("--decode 0");
    refused("--lane-rate 100001");
    refused("--lanes 9");
    refused("--pages-max 15");
    refused("--release soon");
    refused("--release timer:");
    refused("--release drained --compare early,drained");
    refused("--compare early,drained --release drained");
    refused("--nope");
    refused("-x");
    refused("--seed");
    refused("--release timer:60001");
    refused("--compare early,,drained");
    refused("--compare early,early,early,early,early,early,early,early,early");
    refused("--transport carrier-pigeon");
    refused("--tcp-placement hoped");
    refused("--inject luck");
    refused("--inject drained-at-once --release early");
    refused("--geometry gpt-1");
    refused("--plane-divisor 161");
    refused("--room-window 1");
    refused("--room-window 2G");
    refused("--room-window 8M --lane-window 4M");
    refused("--seed 18446744073709551616");
    refused("--daemon-option fence-ms");
    refused("left over");
}

static struct kvf_result clean(enum kvf_release_mode mode)
{
    struct kvf_result r;
    memset(&r, 0, sizeof(r));
    r.has_run = true;
    r.policy.mode = mode;
    r.tallies[KVF_TALLY_DONORS] = 100;
    r.tallies[KVF_TALLY_PROBES] = 100;
    r.tallies[KVF_TALLY_EXPOSED] = 100;
    return r;
}

static enum kvf_exit judge(const struct kvf_result *r)
{
    char why[640];
    return kvf_report_judge(r, why, sizeof(why));
}

Test(judge, each_fault_has_its_exit_status)
{
    struct kvf_result r = clean(KVF_RELEASE_DRAINED);
    cr_assert_eq(judge(&r), KVF_EXIT_CLEAN);
    r.tallies[KVF_TALLY_BOUND_BROKEN] = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_BOUND);
    r.tallies[KVF_TALLY_PAGES_LOST] = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
    r.tallies[KVF_TALLY_OTHER_FOREIGN] = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_FOREIGN);
    r.tallies[KVF_TALLY_OTHER_FOREIGN] = 0;
    r.tallies[KVF_TALLY_WRONG_BYTES] = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_FOREIGN);
    r.has_run = false;
    cr_assert_eq(judge(&r), KVF_EXIT_BROKEN);
    r = clean(KVF_RELEASE_DRAINED);
    r.has_stats = true;
    r.stat_opened = 5;
    r.stat_ended = 4;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
    r = clean(KVF_RELEASE_DRAINED);
    r.tallies[KVF_TALLY_REQUESTS] = 200;
    r.tallies[KVF_TALLY_UNPLANNED_FAILURES] = 2;
    cr_assert_eq(judge(&r), KVF_EXIT_CLEAN);
    r.tallies[KVF_TALLY_UNPLANNED_FAILURES] = 3;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
    r = clean(KVF_RELEASE_LEDGER);
    r.tallies[KVF_TALLY_ROOMS_OPENED] = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
    r = clean(KVF_RELEASE_DRAINED);
    r.daemons_unclean = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
}

Test(judge, work_that_a_device_took_and_nobody_saw_again_is_lost)
{
    struct kvf_result r = clean(KVF_RELEASE_DRAINED);
    r.devices = (struct kvf_device_counts){.pairs_made = 3,
                                           .pairs_destroyed = 3,
                                           .work_posted = 9,
                                           .work_reaped = 7,
                                           .work_written_off = 2};
    cr_assert_eq(judge(&r), KVF_EXIT_CLEAN);
    r.devices.work_reaped = 6;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
    r.devices.work_reaped = 7;
    r.devices.pairs_destroyed = 2;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
    r.devices.pairs_destroyed = 3;
    r.devices.fences_failed = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_LOST);
}

Test(judge, a_control_alone_is_foreign_or_too_weak)
{
    struct kvf_result r = clean(KVF_RELEASE_EARLY);
    cr_assert_eq(judge(&r), KVF_EXIT_WEAK);
    r.tallies[KVF_TALLY_FOREIGN] = 1;
    cr_assert_eq(judge(&r), KVF_EXIT_FOREIGN);
}

static enum kvf_exit judge_three(uint64_t early, uint64_t timer, uint64_t drained,
                                 uint64_t exposed)
{
    static struct kvf_options options;
    struct kvf_result r[3] = {clean(KVF_RELEASE_EARLY), clean(KVF_RELEASE_TIMER),
                              clean(KVF_RELEASE_DRAINED)};
    struct kvf_report report = {.options = &options, .results = r, .result_count = 3};
    char why[768];
    r[0].tallies[KVF_TALLY_FOREIGN] = early;
    r[1].tallies[KVF_TALLY_FOREIGN] = timer;
    r[2].tallies[KVF_TALLY_FOREIGN] = drained;
    r[2].tallies[KVF_TALLY_EXPOSED] = exposed;
    return kvf_report_judge_all(&report, why, sizeof(why));
}

Test(judge, a_comparison_needs_strong_controls_and_a_zero_that_means_something)
{
    cr_assert_eq(judge_three(50, 20, 0, 80), KVF_EXIT_CLEAN);
    cr_assert_eq(judge_three(49, 20, 0, 80), KVF_EXIT_WEAK);
    cr_assert_eq(judge_three(50, 19, 0, 80), KVF_EXIT_WEAK);
    cr_assert_eq(judge_three(50, 20, 0, 79), KVF_EXIT_WEAK);
    cr_assert_eq(judge_three(100, 100, 1, 100), KVF_EXIT_FOREIGN);
    cr_assert_eq(judge_three(0, 0, 1, 0), KVF_EXIT_FOREIGN);
}

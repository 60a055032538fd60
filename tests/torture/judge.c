#include "tests/torture/report.h"

#include <inttypes.h>
#include <stdbool.h>

/* A daemon that gets no CPU for half a second is fenced by its peers, and requests on that lane fail with
 * a reason and with proof: nothing is lost, so a few are shown and no more. Many are a fault. */
#define UNPLANNED_ONE_IN 100u

static uint64_t tally(const struct kvf_result *r, enum kvf_tally t)
{
    return r->tallies[t];
}

/* Policies that reuse pages without any proof: they are there to show the bug. */
static bool is_control(const struct kvf_result *r)
{
    switch (r->policy.mode) {
    case KVF_RELEASE_EARLY:
    case KVF_RELEASE_TIMER:
    case KVF_RELEASE_FORGETFUL:
        return true;
    case KVF_RELEASE_DRAINED:
    case KVF_RELEASE_LEDGER:
    case KVF_RELEASE_MODES:
        break;
    }
    return false;
}

/* What must not be lost under any policy: pages, rooms, requests, and what the daemons hold. */
static bool has_lost(const struct kvf_result *r, char *ret_why, size_t cap)
{
    uint64_t opened = tally(r, KVF_TALLY_ROOMS_OPENED);
    uint64_t ended = tally(r, KVF_TALLY_ROOMS_ENDED);
    if (tally(r, KVF_TALLY_PAGES_LOST) + tally(r, KVF_TALLY_PAGES_QUARANTINED) +
            tally(r, KVF_TALLY_BAD_GIVES) >
        0) {
        snprintf(ret_why, cap,
                 "%" PRIu64 " pages lost, %" PRIu64 " of them quarantined, %" PRIu64
                 " given back by a stranger",
                 tally(r, KVF_TALLY_PAGES_LOST), tally(r, KVF_TALLY_PAGES_QUARANTINED),
                 tally(r, KVF_TALLY_BAD_GIVES));
    } else if (opened != ended || tally(r, KVF_TALLY_ROOMS_UNDRAINED) > 0) {
        snprintf(ret_why, cap, "%" PRIu64 " rooms opened, %" PRIu64 " ended", opened, ended);
    } else if (tally(r, KVF_TALLY_UNPLANNED_FAILURES) * UNPLANNED_ONE_IN >
               tally(r, KVF_TALLY_REQUESTS)) {
        snprintf(ret_why, cap, "%" PRIu64 " requests failed that nobody aborted; %s",
                 tally(r, KVF_TALLY_UNPLANNED_FAILURES), r->note);
    } else if (r->has_stats && (r->stat_left > 0 || r->stat_opened != r->stat_ended)) {
        snprintf(ret_why, cap,
                 "the daemons count %" PRIu64 " rooms opened and %" PRIu64
                 " ended, and still hold something",
                 r->stat_opened, r->stat_ended);
    } else if (r->daemons_unclean > 0) {
        snprintf(ret_why, cap, "%u daemons did not end cleanly", r->daemons_unclean);
    } else {
        return false;
    }
    return true;
}

/* Every work request that a device took came back or was written off as its queue pair was destroyed; and all queue
 * pairs were. */
static bool has_lost_work(const struct kvf_result *r, char *ret_why, size_t cap)
{
    const struct kvf_device_counts *d = &r->devices;
    if (d->pairs_made == d->pairs_destroyed && d->fences_failed == 0 &&
        d->work_posted == d->work_reaped + d->work_written_off) {
        return false;
    }
    snprintf(ret_why, cap,
             "%" PRIu64 " queue pairs made, %" PRIu64 " destroyed, %" PRIu64
             " refused to be; %" PRIu64 " work requests posted, %" PRIu64 " reaped, %" PRIu64
             " written off",
             d->pairs_made, d->pairs_destroyed, d->fences_failed, d->work_posted,
             d->work_reaped, d->work_written_off);
    return true;
}

static uint64_t foreign_in_all(const struct kvf_result *r)
{
    return tally(r, KVF_TALLY_FOREIGN) + tally(r, KVF_TALLY_OTHER_FOREIGN);
}

/* The verdict apart from foreign canaries, whose meaning depends on the policy. */
static enum kvf_exit judge_common(const struct kvf_result *r, char *ret_why, size_t cap)
{
    if (!r->has_run) {
        snprintf(ret_why, cap, "could not run: %s", r->broken);
        return r->is_bad_option ? KVF_EXIT_USAGE : KVF_EXIT_BROKEN;
    }
    if (tally(r, KVF_TALLY_WRONG_BYTES) > 0) {
        snprintf(ret_why, cap,
                 "%" PRIu64 " wrong bytes in %" PRIu64 " checks of requests that arrived",
                 tally(r, KVF_TALLY_WRONG_BYTES), tally(r, KVF_TALLY_WRONG_ROOMS));
        return KVF_EXIT_FOREIGN;
    }
    if (has_lost(r, ret_why, cap) || has_lost_work(r, ret_why, cap)) {
        return KVF_EXIT_LOST;
    }
    if (tally(r, KVF_TALLY_BOUND_BROKEN) > 0) {
        snprintf(ret_why, cap,
                 "%" PRIu64 " rooms took longer than the bound of %" PRIu64 " us; %s",
                 tally(r, KVF_TALLY_BOUND_BROKEN), r->bound_worst_us, r->note);
        return KVF_EXIT_BOUND;
    }
    return KVF_EXIT_CLEAN;
}

enum kvf_exit kvf_report_judge(const struct kvf_result *result, char *ret_why, size_t cap)
{
    enum kvf_exit status = judge_common(result, ret_why, cap);
    if (status == KVF_EXIT_BROKEN || status == KVF_EXIT_USAGE) {
        return status;
    }
    if (foreign_in_all(result) > 0) {
        snprintf(ret_why, cap, "foreign bytes in %" PRIu64 " of %" PRIu64 " reuse probes",
                 foreign_in_all(result),
                 tally(result, KVF_TALLY_PROBES) + tally(result, KVF_TALLY_OTHER_PROBES));
        return KVF_EXIT_FOREIGN;
    }
    if (status != KVF_EXIT_CLEAN) {
        return status;
    }
    if (is_control(result)) {
        snprintf(ret_why, cap,
                 "no foreign byte, although nothing was proven: the control is too weak");
        return KVF_EXIT_WEAK;
    }
    if (result->note[0] != 0) {
        snprintf(ret_why, cap, "clean, but %s", result->note);
    } else {
        snprintf(ret_why, cap, "clean");
    }
    return KVF_EXIT_CLEAN;
}

/* Of its probes, a control must spoil at least 1 in `one_in`. */
static bool is_weak(const struct kvf_result *r, uint64_t one_in)
{
    uint64_t probes = tally(r, KVF_TALLY_PROBES);
    return probes == 0 || tally(r, KVF_TALLY_FOREIGN) * one_in < probes;
}

static enum kvf_exit judge_in_comparison(const struct kvf_report *report,
                                         const struct kvf_result *r, char *ret_why, size_t cap)
{
    enum kvf_exit status;
    if (!is_control(r)) {
        uint64_t donors = tally(r, KVF_TALLY_DONORS);
        status = kvf_report_judge(r, ret_why, cap);
        if (status == KVF_EXIT_CLEAN && r->policy.mode == KVF_RELEASE_DRAINED &&
            !report->options->is_checked && tally(r, KVF_TALLY_EXPOSED) * 5 < donors * 4) {
            snprintf(ret_why, cap,
                     "bytes landed after the abort in only %" PRIu64 " of %" PRIu64
                     " probes: a zero on the others proves nothing",
                     tally(r, KVF_TALLY_EXPOSED), donors);
            return KVF_EXIT_WEAK;
        }
        return status;
    }
    status = judge_common(r, ret_why, cap);
    uint64_t one_in = r->policy.mode == KVF_RELEASE_EARLY ? 2 : 5;
    bool is_too_weak =
        r->policy.mode == KVF_RELEASE_FORGETFUL ? foreign_in_all(r) == 0 : is_weak(r, one_in);
    if (status == KVF_EXIT_CLEAN && is_too_weak) {
        snprintf(ret_why, cap,
                 "control too weak: foreign in only %" PRIu64 " of %" PRIu64 " probes",
                 tally(r, KVF_TALLY_FOREIGN), tally(r, KVF_TALLY_PROBES));
        return KVF_EXIT_WEAK;
    }
    return status;
}

/* The gravest verdict wins; a weak control only matters if nothing is worse. */
static int gravity(enum kvf_exit status)
{
    switch (status) {
    case KVF_EXIT_CLEAN:
        return 0;
    case KVF_EXIT_WEAK:
        return 1;
    case KVF_EXIT_BOUND:
        return 2;
    case KVF_EXIT_LOST:
        return 3;
    case KVF_EXIT_FOREIGN:
        return 4;
    case KVF_EXIT_USAGE:
    case KVF_EXIT_BROKEN:
        break;
    }
    return 5;
}

enum kvf_exit kvf_report_judge_all(const struct kvf_report *report, char *ret_why, size_t cap)
{
    enum kvf_exit worst = KVF_EXIT_CLEAN;
    snprintf(ret_why, cap, "as promised");
    for (uint32_t i = 0; i < report->result_count; i++) {
        char why[640];
        enum kvf_exit status =
            judge_in_comparison(report, &report->results[i], why, sizeof(why));
        if (gravity(status) > gravity(worst)) {
            worst = status;
            snprintf(ret_why, cap, "%s: %s", report->results[i].policy.name, why);
        }
    }
    return worst;
}

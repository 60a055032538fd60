/* The faults, one by one. A strike is what happens to the world; a mend is what somebody does about it once
 * every affected room has ended. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/faults/faults.h"

#define WORKER_MS 12000u
#define GONE_MS 5000u
#define LATE_US 300000u /* what was held back arrives, and the daemon's counts are copied */
#define THAW_EXTRA_NS UINT64_C(1000000000)
/* Three times 4.096 us x 2^17, and some. */
#define RETRIES_NS UINT64_C(2500000000)

static void network_as_before(struct scene *s)
{
    scene_network(s, "clear");
    scene_network(s, NETWORK_DELAY);
}

/* ---- workers ---------------------------------------------------------------------------------------- */

static void signal_worker(struct scene *s, struct daemon *d, int signal_number)
{
    (void)s;
    CHECK(kill(d->worker, signal_number) == 0, "signal to worker %d of %s: %s", (int)d->worker,
          d->name, strerror(errno));
}

static void mend_worker(struct scene *s, struct daemon *d, struct engine *e)
{
    daemon_wait_worker(d, WORKER_MS);
    scene_await_engine(s, e);
    s->ready_ns = now_ns();
}

static void kill_sink_worker(struct scene *s)
{
    signal_worker(s, s->sink, SIGKILL);
}

static void kill_source_worker(struct scene *s)
{
    signal_worker(s, s->source, SIGKILL);
}

static void stop_sink_worker(struct scene *s)
{
    signal_worker(s, s->sink, SIGSTOP);
}

static void stop_source_worker(struct scene *s)
{
    signal_worker(s, s->source, SIGSTOP);
}

static void mend_sink_worker(struct scene *s)
{
    mend_worker(s, s->sink, s->to);
}

static void mend_source_worker(struct scene *s)
{
    mend_worker(s, s->source, s->from);
}

/* ---- daemons ---------------------------------------------------------------------------------------- */

/* Nobody waits for the end of who is killed: what is to be proven must not need that. */
static void kill_sink_supervisor(struct scene *s)
{
    daemon_signal(s->sink, SIGKILL);
}

static void kill_source_supervisor(struct scene *s)
{
    daemon_signal(s->source, SIGKILL);
}

static void kill_both(struct daemon *d)
{
    kill(d->worker, SIGKILL);
    daemon_signal(d, SIGKILL);
}

static void kill_sink_both(struct scene *s)
{
    kill_both(s->sink);
}

static void kill_source_both(struct scene *s)
{
    kill_both(s->source);
}

static void start_next(struct scene *s, struct daemon *d)
{
    (void)daemon_wait(d, GONE_MS);
    daemon_start_again(d);
    s->ready_ns = now_ns();
}

static void start_sink(struct scene *s)
{
    start_next(s, s->sink);
}

static void start_source(struct scene *s)
{
    start_next(s, s->source);
}

/* ---- engines ---------------------------------------------------------------------------------------- */

static void kill_engine(struct scene *s)
{
    helper_kill(s->helper);
    s->helper = NULL;
}

static void mend_nothing(struct scene *s)
{
    s->ready_ns = now_ns();
}

/* ---- frozen ----------------------------------------------------------------------------------------- */

/* The supervisor first, or its watchdog ends the worker. What it had sent is in its machine's queues or under
 * way; a frozen machine sends and hears nothing. */
static void freeze(struct scene *s, struct daemon *d)
{
    daemon_signal(d, SIGSTOP);
    CHECK(kill(d->worker, SIGSTOP) == 0, "stop: %s", strerror(errno));
    scene_control(s, "stall"); /* a device goes on with what it has, whoever is frozen */
}

/* After the bound and a second more. What the frozen side had under way goes on at once, before it hears that
 * nobody wants it any more. */
static void thaw(struct scene *s, struct daemon *d, struct engine *e, const char *deaf_way)
{
    uint64_t bound_us = scene_bound_us(d, BOUND_USUAL);
    uint64_t until_ns = s->strike_ns + bound_us * 1000u + THAW_EXTRA_NS;
    while (now_ns() < until_ns) {
        sleep_us(2000);
    }
    CHECK(kill(d->worker, SIGCONT) == 0, "continue: %s", strerror(errno));
    daemon_signal(d, SIGCONT);
    scene_control(s, "clear");
    scene_control(s, deaf_way);
    sleep_us(LATE_US);
    network_as_before(s);
    /* Its supervisor may have found the worker asleep too long and started the next. */
    scene_await_engine(s, e);
    d->worker = daemon_worker_now(d);
    s->ready_ns = now_ns();
}

static void freeze_source(struct scene *s)
{
    freeze(s, s->source);
}

static void thaw_source(struct scene *s)
{
    thaw(s, s->source, s->from, "cut/forth");
}

static void freeze_sink(struct scene *s)
{
    freeze(s, s->sink);
}

static void thaw_sink(struct scene *s)
{
    thaw(s, s->sink, s->to, "cut/back");
}

/* ---- the network ------------------------------------------------------------------------------------ */

static void cut_both_ways(struct scene *s)
{
    scene_network(s, "stall");
}

static void cut_forth(struct scene *s)
{
    scene_network(s, "cut/forth");
}

static void cut_back(struct scene *s)
{
    scene_network(s, "cut/back");
}

static void reset_all(struct scene *s)
{
    scene_network(s, "reset");
}

static void reset_lane(struct scene *s)
{
    if (settings.is_verbs) {
        devices_cut_lane(s->sink, s->source);
        return;
    }
    scene_network(s, "reset/lane0");
}

static void link_down(struct scene *s)
{
    (void)s;
    devices_link(false);
}

/* Not before every device has given up asking again. */
static void await_retries(const struct scene *s)
{
    uint64_t until_ns = s->strike_ns + RETRIES_NS;
    while (settings.is_verbs && now_ns() < until_ns) {
        sleep_us(2000);
    }
}

static void link_up(struct scene *s)
{
    await_retries(s);
    devices_link(true);
    s->ready_ns = now_ns();
}

static void mend_network(struct scene *s)
{
    await_retries(s);
    network_as_before(s);
    s->ready_ns = now_ns();
    sleep_us(LATE_US / 3u);
}

static void mend_lane(struct scene *s)
{
    if (settings.is_verbs) {
        devices_mend();
    }
    mend_network(s);
}

/* ---- replaced --------------------------------------------------------------------------------------- */

/* The next daemon answers at the address while rooms of the old one are still to be proven; the engine of
 * that side re-attaches meanwhile. */
static void replace(struct scene *s, struct daemon *d, struct engine *e)
{
    start_next(s, d);
    if (!settings.is_quiet) {
        fprintf(stderr, "     replaced %llu ms after the kill\n",
                (unsigned long long)(s->ready_ns - s->strike_ns) / 1000000u);
    }
    scene_await_engine(s, e);
}

static void replace_sink(struct scene *s)
{
    replace(s, s->sink, s->to);
}

static void replace_source(struct scene *s)
{
    replace(s, s->source, s->from);
}

#define SINK_ELSEWHERE (FLOW_TO_OTHER_SINK | FLOW_ELSEWHERE)
#define SOURCE_ELSEWHERE (FLOW_FROM_OTHER_SOURCE | FLOW_ELSEWHERE)
#define OTHER_PEERS (FLOW_TO_OTHER_SINK | FLOW_FROM_OTHER_SOURCE)

const struct fault_case fault_cases[] = {
    {.name = "kill-worker-sink",
     .what = "SIGKILL to the worker that receives",
     .strike_fn = kill_sink_worker,
     .ends_workers = true,
     .mend_fn = mend_sink_worker,
     .sink_bound = BOUND_WORST,
     .flows = SINK_ELSEWHERE},
    {.name = "kill-worker-source",
     .what = "SIGKILL to the worker that sends",
     .strike_fn = kill_source_worker,
     .ends_workers = true,
     .mend_fn = mend_source_worker,
     .source_bound = BOUND_WORST,
     .flows = SOURCE_ELSEWHERE},
    {.name = "kill-super-sink",
     .what = "SIGKILL to the supervisor of the daemon that receives",
     .strike_fn = kill_sink_supervisor,
     .mend_fn = start_sink,
     .flows = SINK_ELSEWHERE},
    {.name = "kill-super-source",
     .what = "SIGKILL to the supervisor of the daemon that sends",
     .strike_fn = kill_source_supervisor,
     .mend_fn = start_source,
     .flows = SOURCE_ELSEWHERE},
    {.name = "kill-both-sink",
     .what = "SIGKILL to both processes of the daemon that receives",
     .strike_fn = kill_sink_both,
     .mend_fn = start_sink,
     .flows = SINK_ELSEWHERE},
    {.name = "kill-both-source",
     .what = "SIGKILL to both processes of the daemon that sends",
     .strike_fn = kill_source_both,
     .mend_fn = start_source,
     .flows = SOURCE_ELSEWHERE},
    {.name = "kill-engine-sink",
     .what = "SIGKILL to the engine whose pages are written",
     .strike_fn = kill_engine,
     .mend_fn = mend_nothing,
     .flows = FLOW_OTHER_CLIENT | OTHER_PEERS,
     .kills_sink_engine = true},
    {.name = "kill-engine-source",
     .what = "SIGKILL to the engine whose pages are read",
     .strike_fn = kill_engine,
     .mend_fn = mend_nothing,
     .flows = FLOW_OTHER_CLIENT | OTHER_PEERS,
     .kills_source_engine = true},
    {.name = "freeze-source",
     .what =
         "the daemon that sends and its network stand still for the bound and 1 s, then go on",
     .strike_fn = freeze_source,
     .mend_fn = thaw_source,
     .flows = SOURCE_ELSEWHERE,
     .freezes_source = true,
     .needs_late_bytes = true},
    {.name = "freeze-sink",
     .what = "the daemon that receives and its network stand still for the bound and 1 s",
     .strike_fn = freeze_sink,
     .mend_fn = thaw_sink,
     .flows = SINK_ELSEWHERE,
     .freezes_sink = true},
    {.name = "stop-worker-sink",
     .what = "SIGSTOP to the worker that receives; it must be killed and replaced",
     .strike_fn = stop_sink_worker,
     .ends_workers = true,
     .mend_fn = mend_sink_worker,
     .sink_bound = BOUND_WORST,
     .flows = SINK_ELSEWHERE},
    {.name = "stop-worker-source",
     .what = "SIGSTOP to the worker that sends; it must be killed and replaced",
     .strike_fn = stop_source_worker,
     .ends_workers = true,
     .mend_fn = mend_source_worker,
     .source_bound = BOUND_WORST,
     .flows = SOURCE_ELSEWHERE},
    {.name = "cut",
     .what =
         "connections stay open, nothing is forwarded; what was held arrives after the proof",
     .strike_fn = cut_both_ways,
     .mend_fn = mend_network,
     .flows = OTHER_PEERS,
     .needs_late_bytes = true},
    {.name = "cut-forth",
     .what = "nothing is forwarded from the sink's daemon to the source's",
     .strike_fn = cut_forth,
     .mend_fn = mend_network,
     .flows = OTHER_PEERS,
     .always_holds_back = true},
    {.name = "cut-back",
     .what = "nothing is forwarded from the source's daemon to the sink's",
     .strike_fn = cut_back,
     .mend_fn = mend_network,
     .flows = OTHER_PEERS,
     .needs_late_bytes = true},
    {.name = "abort-cut-back",
     .what = "the engine aborts, and what is under way is held back until the room is drained",
     .strike_fn = cut_back,
     .mend_fn = mend_network,
     .flows = OTHER_PEERS,
     .aborts = true,
     .needs_late_bytes = true},
    {.name = "reset",
     .what = "every connection between the two daemons is reset",
     .strike_fn = reset_all,
     .mend_fn = mend_network,
     .flows = OTHER_PEERS,
     .never_holds_back = true},
    {.name = "replace-source",
     .what = "the daemon that sends is killed and another one starts at its address at once",
     .strike_fn = kill_source_supervisor,
     .mend_fn = replace_source,
     .flows = SOURCE_ELSEWHERE,
     .mends_at_once = true},
    {.name = "replace-sink",
     .what = "the daemon that receives is killed and another one starts at its address at once",
     .strike_fn = kill_sink_supervisor,
     .mend_fn = replace_sink,
     .flows = SINK_ELSEWHERE,
     .mends_at_once = true},
    {.name = "link-down",
     .what = "the link of the device that receives is down for longer than the retries",
     .strike_fn = link_down,
     .mend_fn = link_up,
     .flows = FLOW_TO_OTHER_SINK,
     .wants_devices = true},
    {.name = "fence-co-rooms",
     .what = "one lane is reset under eight rooms, all of which get new grants and succeed",
     .strike_fn = reset_lane,
     .mend_fn = mend_lane,
     .flows = OTHER_PEERS,
     .never_holds_back = true,
     .needs_success = true,
     .rooms = CO_ROOMS_MAX},
};
const uint32_t fault_case_count = sizeof fault_cases / sizeof fault_cases[0];

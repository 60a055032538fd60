/* Time is the monotonic clock. Steps of the wall clock are nobody's business here. */
#include <criterion/criterion.h>

#include <time.h>

#include "sidecar/host/clock.h"

static uint64_t ns_of(clockid_t clock)
{
    struct timespec ts;
    cr_assert_eq(clock_gettime(clock, &ts), 0);
    return (uint64_t)ts.tv_sec * KVF_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* Between two readings of the monotonic clock, and years away from the wall clock, which steps. */
Test(host_clock, e6_time_is_the_monotonic_clock_which_no_step_of_the_wall_clock_moves)
{
    for (uint32_t i = 0; i < 1000; i++) {
        uint64_t before_ns = ns_of(CLOCK_MONOTONIC);
        uint64_t now_ns = kvf_clock_now_ns();
        uint64_t after_ns = ns_of(CLOCK_MONOTONIC);
        cr_assert_leq(before_ns, now_ns);
        cr_assert_leq(now_ns, after_ns);
    }
    cr_assert_lt(kvf_clock_now_ns(), ns_of(CLOCK_REALTIME) / 2);
}

Test(host_clock, the_time_of_a_thread_stands_while_it_sleeps)
{
    uint64_t cpu_ns = kvf_clock_thread_cpu_ns();
    uint64_t wall_ns = kvf_clock_now_ns();
    struct timespec ts = {.tv_nsec = 20000000};
    cr_assert_eq(nanosleep(&ts, NULL), 0);
    cr_assert_lt(kvf_clock_thread_cpu_ns() - cpu_ns, kvf_clock_now_ns() - wall_ns);
}

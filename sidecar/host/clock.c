#include "sidecar/host/clock.h"

#include <assert.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;
    int rc = clock_gettime(id, &ts);
    assert(rc == 0);
    (void)rc;
    return (uint64_t)ts.tv_sec * KVF_NS_PER_S + (uint64_t)ts.tv_nsec;
}

uint64_t kvf_clock_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t kvf_clock_thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

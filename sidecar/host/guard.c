/* The way back from a fault is a jump out of the signal handler into the copy that caused it. That is sound
 * here because the handler runs on the faulting thread, inside memmove, which holds nothing. Neither the
 * jump nor its preparation saves the signal mask, so a copy that does not fault makes no system call;
 * SA_NODEFER keeps the signals unblocked across the jump. */
#include "sidecar/host/guard.h"

#include <assert.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/* Of each thread. The handler reads what the same thread wrote: lock-free atomics are enough for that. */
static _Thread_local struct {
    _Atomic bool is_copying;
    const void *fault;
    sigjmp_buf back;
} guard;

static const int signals[] = {SIGBUS, SIGSEGV};
#define SIGNAL_COUNT (sizeof(signals) / sizeof(signals[0]))
static struct sigaction earlier[SIGNAL_COUNT];
static _Atomic bool is_installed;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (number == SIGBUS && info->si_code == BUS_MCEERR_AO) {
        return; /* lost memory that nobody is touching: whoever does gets a signal of its own */
    }
    /* A positive code comes from the kernel, for an access of this thread; kill() has none. */
    if (info->si_code > 0 && atomic_load_explicit(&guard.is_copying, memory_order_relaxed)) {
        guard.fault = info->si_addr;
        siglongjmp(guard.back, 1);
    }
    /* Not ours: the same access, or the same signal, again under what was in force before. */
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        if (signals[i] == number) {
            (void)sigaction(number, &earlier[i], NULL);
        }
    }
    if (info->si_code <= 0) {
        (void)raise(number);
    }
}

int kvf_guard_install(void)
{
    if (atomic_exchange_explicit(&is_installed, true, memory_order_relaxed)) {
        return 0;
    }
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) {
        if (sigaction(signals[i], &action, &earlier[i]) != 0) {
            int err = errno;
            atomic_store_explicit(&is_installed, false, memory_order_relaxed);
            return -err;
        }
    }
    return 0;
}

/* In a function of its own: nothing it keeps in registers is needed after a jump. */
__attribute__((noinline)) static void copy_runs(const struct kvf_guard_run *runs,
                                                uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        memmove(runs[i].to, runs[i].from, runs[i].bytes);
    }
}

bool kvf_guard_copy(const struct kvf_guard_run *runs, uint32_t count, const void **ret_fault)
{
    assert(atomic_load_explicit(&is_installed, memory_order_relaxed));
    /* Before sigsetjmp, which the compiler knows nothing of, so that no copy is moved before it. Nothing
     * can fault until the first run. */
    atomic_store_explicit(&guard.is_copying, true, memory_order_relaxed);
    if (sigsetjmp(guard.back, 0) != 0) {
        atomic_store_explicit(&guard.is_copying, false, memory_order_relaxed);
        *ret_fault = guard.fault;
        return false;
    }
    copy_runs(runs, count);
    /* B1 (release): no access of a run is moved behind it. */
    atomic_store_explicit(&guard.is_copying, false, memory_order_release);
    return true;
}

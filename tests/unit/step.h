/* Stops a call behind every one of its instructions and lets something else happen there: what another thread
 * or process could do at that moment, each moment once, without luck.
 *
 * The processor's trap flag raises SIGTRAP behind each instruction, and the handler counts. It shows every
 * order of whole instructions; what a processor reorders among them it does not show (that is what the thread
 * sanitizer and the models are for). x86-64 only, and not beside a sanitizer, whose own
 * instructions would be stepped through too; elsewhere STEP_IS_HERE is 0 and such tests are skipped. */
#ifndef KVF_TESTS_UNIT_STEP_H
#define KVF_TESTS_UNIT_STEP_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define STEP_IS_HERE 1
/* The red zone below the stack pointer may hold the caller's values. */
#define STEP_FLAGS(operation)                                                                  \
    __asm__ volatile("leaq -128(%%rsp), %%rsp\n\tpushfq\n\t" operation                         \
                     "popfq\n\tleaq 128(%%rsp), %%rsp" ::                                      \
                         : "memory", "cc")
#else
#define STEP_IS_HERE 0
#define STEP_FLAGS(operation) (void)0
#endif

struct step {
    uint32_t at;   /* stop behind this instruction */
    uint32_t seen; /* instructions so far */
    void (*other_fn)(void *ctx);
    void *ctx;
};

static struct step step_now;

static void step_trap(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    if (++step_now.seen < step_now.at) {
        return;
    }
#if STEP_IS_HERE
    /* The rest of the call runs at full speed. */
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100LL;
#else
    (void)context;
#endif
    if (step_now.seen == step_now.at) {
        step_now.other_fn(step_now.ctx);
    }
}

/* Runs call_fn(ctx); behind its instruction `at`, other_fn(ctx). False: it has fewer instructions. */
static bool step_call(uint32_t at, void (*call_fn)(void *ctx), void (*other_fn)(void *ctx),
                      void *ctx)
{
    struct sigaction action = {.sa_sigaction = step_trap, .sa_flags = SA_SIGINFO};
    struct sigaction before;
    (void)sigaction(SIGTRAP, &action, &before);
    step_now = (struct step){.at = at, .other_fn = other_fn, .ctx = ctx};
    STEP_FLAGS("orq $0x100, (%%rsp)\n\t");
    call_fn(ctx);
    STEP_FLAGS("andq $~0x100, (%%rsp)\n\t");
    (void)sigaction(SIGTRAP, &before, NULL);
    return step_now.seen >= at;
}

#endif

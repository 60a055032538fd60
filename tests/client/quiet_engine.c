/* An engine that must not make a system call: the filter below ends its thread's process at the first one.
 *
 * The daemon of the test lives in other threads of this process, which the filter does not cover. What is
 * asked for: open, submit, abort, poll, leases, ledger and release make no system call while the worker is
 * awake; poll and its like never make one, also while it sleeps. The other way round, a sleeping worker
 * must cost one: the filter is seen to bite.
 *
 * Exit: 0 all quiet; 1 a call was made; 77 the kernel does not let us install the filter. */
#include "tests/client/fake_daemon.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SKIP 77

static _Thread_local const char *what = "start";

/* The engine's thread is alone in this handler; the filter traps, so write is made through the one way that
 * stays open: a number the filter allows. */
static void on_trap(int signo, siginfo_t *info, void *context)
{
    (void)signo;
    (void)context;
    bool is_control = strcmp(what, "open while the worker sleeps") == 0;
    char text[128];
    int bytes = snprintf(text, sizeof text, "quiet_engine: system call %d in: %s%s\n",
                         info->si_syscall, what, is_control ? " (as it must be)" : "");
    (void)!write(STDERR_FILENO, text, (size_t)bytes);
    _exit(is_control ? 0 : 1);
}

/* Everything traps but a write to stderr, the exit and the return from the handler. */
static int install(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, STDERR_FILENO, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) {
        return -errno;
    }
    return 0;
}

static void fail(const char *why, long number)
{
    char text[160];
    int bytes = snprintf(text, sizeof text, "%s: %s (%ld)\n", what, why, number);
    (void)!write(STDERR_FILENO, text, (size_t)bytes);
    _exit(1);
}

#define IS(actual, wanted)                                                                     \
    do {                                                                                       \
        long is = (long)(actual);                                                              \
        if (is != (long)(wanted)) {                                                            \
            fail(#actual, is);                                                                 \
        }                                                                                      \
    } while (0)

/* The whole life of one sink and one source room. The words are published by this thread through the
 * daemon's mapping: stores, no calls. */
static void live_quietly(struct fake_daemon *fake, kvf_client *client, uint32_t region)
{
    struct kvf_cmd_shm cmd;
    kvf_room sink;
    kvf_room source;
    int32_t pages[] = {1, 2, 5};
    int32_t pieces[] = {8, 9, 10};
    what = "open";
    IS(fake_open_sink(client, region, pages, 3, &sink), 0);
    IS(fake_open_source(client, region, &source), 0);
    what = "poll";
    IS(kvf_poll(client, sink), KVF_BOOTSTRAPPING);
    IS(kvf_drained(client, sink), -EAGAIN);
    what = "submit";
    IS(fake_submit(client, source, region, pieces, 3, 0, KVF_LAST_PIECE), 0);
    while (fake_pop(fake, &cmd) == 1) {
    }
    what = "ledger";
    IS(kvf_pages_are_idle(client, region, pages, 3, NULL), 0);
    IS(kvf_pages_are_idle(client, region, pieces, 3, NULL), 0);
    what = "leases";
    IS(kvf_lease(client, sink, KVF_KIND_GPU), 0);
    IS(kvf_lease_give_back(client, sink, KVF_KIND_GPU), 0);
    fake_open(fake, sink, KVF_STATE_TRANSFERRING);
    what = "poll";
    IS(kvf_poll(client, sink), KVF_TRANSFERRING);
    fake_succeed(fake, source);
    fake_succeed(fake, sink);
    IS(kvf_poll(client, sink), KVF_SUCCESS);
    IS(kvf_visible(client, sink), 1);
    int32_t states[2];
    kvf_room rooms[] = {sink, source};
    IS(kvf_poll_many(client, rooms, 2, states), 2);
    what = "ledger with counts to undo";
    IS(kvf_pages_are_idle(client, region, pieces, 3, NULL), 1);
    what = "release";
    IS(kvf_release(client, sink), 0);
    IS(kvf_release(client, source), 0);
    what = "abort";
    IS(fake_open_sink(client, region, pages, 3, &sink), 0);
    IS(kvf_abort(client, sink, 7), 0);
    while (fake_pop(fake, &cmd) == 1) {
    }
    IS(kvf_failed_early(client, sink), 0);
    fake_fail(fake, sink, KVF_PROOF_NEVER_POSTED, 7);
    IS(kvf_poll(client, sink), KVF_FAILED);
    IS(kvf_release(client, sink), 0);
}

static bool is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

int main(void)
{
    if (is_sanitized()) {
        fprintf(stderr, "skipped: a sanitizer makes system calls of its own\n");
        return SKIP;
    }
    struct fake_daemon fake;
    struct fake_memory memory;
    kvf_client *client;
    fake_start(&fake);
    if (fake_attach(&fake, 16, 64, 0, &client) != 0) {
        return 1;
    }
    fake_memory_make(client, 64, &memory);
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    int err = install();
    if (err != 0) {
        fprintf(stderr, "skipped: no seccomp filter here: %s\n", strerror(-err));
        return SKIP;
    }
    for (int i = 0; i < 100; i++) {
        live_quietly(&fake, client, memory.region);
    }
    /* A sleeping worker: polling stays quiet, an open rings the bell and is caught at it. */
    kvf_room room;
    int32_t page = 3;
    IS(fake_open_sink(client, memory.region, &page, 1, &room), 0);
    fake_sleep(&fake, true);
    what = "poll while the worker sleeps";
    IS(kvf_poll(client, room), KVF_BOOTSTRAPPING);
    IS(kvf_pages_are_idle(client, memory.region, &page, 1, NULL), 0);
    what = "open while the worker sleeps";
    (void)fake_open_source(client, memory.region, &room);
    fail("the doorbell was not rung, or the filter does not bite", 0);
    return 1;
}

#include "tests/bench/machine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* As this process was started: pinning a thread must not narrow what the next one may have. */
static cpu_set_t start_set;
static bool has_start_set;

static const cpu_set_t *allowed_set(void)
{
    if (!has_start_set) {
        CPU_ZERO(&start_set);
        (void)sched_getaffinity(0, sizeof(start_set), &start_set);
        has_start_set = true;
    }
    return &start_set;
}

static void read_cpu_name(char *ret_text, size_t cap)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(ret_text, cap, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            colon += strspn(colon, ": \t");
            snprintf(ret_text, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static const char *policy_name(int policy)
{
    switch (policy) {
    case SCHED_OTHER:
        return "other";
    case SCHED_BATCH:
        return "batch";
    case SCHED_IDLE:
        return "idle";
    case SCHED_FIFO:
        return "fifo";
    case SCHED_RR:
        return "rr";
    default: /* an int of the kernel's, no enum */
        return "unknown";
    }
}

static double read_load(void)
{
    double load[1] = {0};
    return getloadavg(load, 1) == 1 ? load[0] : 0;
}

void kvf_machine_read(struct kvf_machine *ret_machine)
{
    struct utsname name;
    struct kvf_machine machine = {.load_begin = read_load()};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    read_cpu_name(machine.cpu, sizeof(machine.cpu));
    snprintf(machine.kernel, sizeof(machine.kernel), "unknown");
    if (uname(&name) == 0) {
        snprintf(machine.kernel, sizeof(machine.kernel), "%.16s %.60s", name.sysname,
                 name.release);
    }
    snprintf(machine.build, sizeof(machine.build), "%s, %s", KVF_BENCH_COMPILER,
             KVF_BENCH_BUILD);
    snprintf(machine.policy, sizeof(machine.policy), "%s", policy_name(sched_getscheduler(0)));
    machine.cores = cores > 0 ? (uint32_t)cores : 1;
    machine.allowed = (uint32_t)CPU_COUNT(allowed_set());
    machine.load_end = machine.load_begin;
    *ret_machine = machine;
}

void kvf_machine_read_end(struct kvf_machine *machine)
{
    machine->load_end = read_load();
}

static bool is_allowed(long cpu)
{
    return cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET((size_t)cpu, allowed_set());
}

static int take_list(const char *list, struct kvf_cpus *ret_cpus)
{
    int *places[] = {&ret_cpus->source, &ret_cpus->sink, &ret_cpus->engine};
    const char *at = list;
    uint32_t count = 0;
    for (;;) {
        char *end;
        errno = 0;
        long cpu = strtol(at, &end, 10);
        if (end == at || errno != 0 || count == 3 || !is_allowed(cpu)) {
            return -EINVAL;
        }
        *places[count++] = (int)cpu;
        if (*end == 0) {
            break;
        }
        if (*end != ',') {
            return -EINVAL;
        }
        at = end + 1;
    }
    return count >= 2 ? 0 : -EINVAL;
}

int kvf_cpus_choose(const char *list, struct kvf_cpus *ret_cpus)
{
    struct kvf_cpus cpus = {.source = -1, .sink = -1, .engine = -1};
    int allowed[CPU_SETSIZE];
    int count = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (is_allowed(cpu)) {
            allowed[count++] = cpu;
        }
    }
    if (list != NULL) {
        int rc = take_list(list, &cpus);
        if (rc != 0) {
            return rc;
        }
    } else if (count >= 2) {
        cpus.source = allowed[count - 1];
        cpus.sink = allowed[count - 2];
        cpus.engine = count >= 3 ? allowed[count - 3] : -1;
    }
    cpus.is_crowded = count < 4;
    *ret_cpus = cpus;
    return 0;
}

void kvf_cpu_pin(int cpu)
{
    cpu_set_t one;
    if (cpu < 0) {
        (void)sched_setaffinity(0, sizeof(start_set), allowed_set());
        return;
    }
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    (void)sched_setaffinity(0, sizeof(one), &one);
}

uint64_t kvf_bench_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* What a run ran on, its clock, and which processors its sides are pinned to. */
#ifndef KVF_BENCH_MACHINE_H
#define KVF_BENCH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvf_machine {
    char cpu[80];
    char kernel[80];
    char build[120];
    char policy[24];   /* of the scheduler, as this program was started */
    uint32_t cores;    /* online */
    uint32_t allowed;  /* to this process, as it was started */
    double load_begin; /* mean of the last minute */
    double load_end;
};

/* Where the two sides of a measurement and the engine's thread run; -1: wherever the kernel likes. */
struct kvf_cpus {
    int source; /* first side */
    int sink;   /* second side */
    int engine;
    bool is_crowded; /* fewer processors than things that would spin */
};

void kvf_machine_read(struct kvf_machine *ret_machine);
/* The load at the end of a run: how busy others kept the machine. */
void kvf_machine_read_end(struct kvf_machine *machine);
/* list: "A,B" or "A,B,C", or NULL: the last ones allowed, never the first where there are enough. 0, or
 * -EINVAL: a word that is no allowed processor. */
int kvf_cpus_choose(const char *list, struct kvf_cpus *ret_cpus);
/* The calling thread, and what it starts. -1 gives all back. */
void kvf_cpu_pin(int cpu);

/* Between two looks at memory that another core writes. */
static inline void kvf_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* CLOCK_MONOTONIC. */
uint64_t kvf_bench_now_ns(void);

#endif

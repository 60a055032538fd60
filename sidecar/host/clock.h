/* The only place that reads time. All of it is monotonic: a step of the wall clock changes nothing. */
#ifndef KVF_HOST_CLOCK_H
#define KVF_HOST_CLOCK_H

#include <stdint.h>

#define KVF_NS_PER_US UINT64_C(1000)
#define KVF_NS_PER_MS UINT64_C(1000000)
#define KVF_NS_PER_S UINT64_C(1000000000)

/* CLOCK_MONOTONIC in nanoseconds. Any thread; no system call where the vDSO serves it. */
uint64_t kvf_clock_now_ns(void);
/* Processor time that the calling thread has used. A system call: not for every turn of a loop. */
uint64_t kvf_clock_thread_cpu_ns(void);

#endif

/* Virtual time: a binary heap of what is to happen and when.
 *
 * Nothing here reads a real clock. Events of the same nanosecond run in the order in which they were put in,
 * so a run is a function of its seed alone. The heap grows to the largest number of events that were ever
 * pending and then never again: no allocation per event after warm-up. One thread. */
#ifndef KVF_TESTS_SIM_CLOCK_H
#define KVF_TESTS_SIM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_NEVER UINT64_MAX

typedef void (*sim_event_fn)(void *ctx, uint64_t a, uint64_t b);

struct sim_clock_event {
    uint64_t when_ns;
    uint64_t seq;
    sim_event_fn fn;
    void *ctx;
    uint64_t a;
    uint64_t b;
};

struct sim_clock {
    uint64_t now_ns;
    uint64_t next_seq;
    uint64_t run_count; /* events run since the last reset */
    struct sim_clock_event *heap;
    uint32_t count;
    uint32_t cap;
};

void sim_clock_init(struct sim_clock *clock);
void sim_clock_free(struct sim_clock *clock);
/* Forgets all events and begins at `now_ns`; keeps the memory. */
void sim_clock_reset(struct sim_clock *clock, uint64_t now_ns);
/* An event of the past happens now. It cannot be taken back: give it a serial in a or b by which it finds
 * out that it is no longer wanted. */
void sim_clock_at(struct sim_clock *clock, uint64_t when_ns, sim_event_fn fn, void *ctx,
                  uint64_t a, uint64_t b);
/* Time of the earliest event; SIM_NEVER: none. */
uint64_t sim_clock_next_ns(const struct sim_clock *clock);
/* Goes to the earliest event and runs it. false: there is none. */
bool sim_clock_run_one(struct sim_clock *clock);
/* Runs everything up to and including when_ns and ends there. */
void sim_clock_run_until(struct sim_clock *clock, uint64_t when_ns);

#endif

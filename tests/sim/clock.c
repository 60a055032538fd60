#include "tests/sim/clock.h"

#include <assert.h>
#include <stdlib.h>

#define EVENTS_MIN 1024u

void sim_clock_init(struct sim_clock *clock)
{
    *clock = (struct sim_clock){.cap = EVENTS_MIN};
    clock->heap = malloc(EVENTS_MIN * sizeof(*clock->heap));
    assert(clock->heap != NULL);
}

void sim_clock_free(struct sim_clock *clock)
{
    free(clock->heap);
    *clock = (struct sim_clock){0};
}

void sim_clock_reset(struct sim_clock *clock, uint64_t now_ns)
{
    clock->now_ns = now_ns;
    clock->next_seq = 0;
    clock->run_count = 0;
    clock->count = 0;
}

static bool is_before(const struct sim_clock_event *a, const struct sim_clock_event *b)
{
    return a->when_ns < b->when_ns || (a->when_ns == b->when_ns && a->seq < b->seq);
}

void sim_clock_at(struct sim_clock *clock, uint64_t when_ns, sim_event_fn fn, void *ctx,
                  uint64_t a, uint64_t b)
{
    assert(when_ns != SIM_NEVER);
    if (clock->count == clock->cap) {
        struct sim_clock_event *heap =
            realloc(clock->heap, (size_t)clock->cap * 2 * sizeof(*heap));
        assert(heap != NULL);
        clock->heap = heap;
        clock->cap *= 2;
    }
    struct sim_clock_event event = {.when_ns =
                                        when_ns < clock->now_ns ? clock->now_ns : when_ns,
                                    .seq = clock->next_seq++,
                                    .fn = fn,
                                    .ctx = ctx,
                                    .a = a,
                                    .b = b};
    uint32_t at = clock->count++;
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (!is_before(&event, &clock->heap[parent])) {
            break;
        }
        clock->heap[at] = clock->heap[parent];
        at = parent;
    }
    clock->heap[at] = event;
}

uint64_t sim_clock_next_ns(const struct sim_clock *clock)
{
    return clock->count > 0 ? clock->heap[0].when_ns : SIM_NEVER;
}

static void pop(struct sim_clock *clock, struct sim_clock_event *ret_event)
{
    *ret_event = clock->heap[0];
    struct sim_clock_event last = clock->heap[--clock->count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= clock->count) {
            break;
        }
        if (child + 1 < clock->count &&
            is_before(&clock->heap[child + 1], &clock->heap[child])) {
            child++;
        }
        if (!is_before(&clock->heap[child], &last)) {
            break;
        }
        clock->heap[at] = clock->heap[child];
        at = child;
    }
    clock->heap[at] = last;
}

bool sim_clock_run_one(struct sim_clock *clock)
{
    if (clock->count == 0) {
        return false;
    }
    struct sim_clock_event event;
    pop(clock, &event);
    assert(event.when_ns >= clock->now_ns);
    clock->now_ns = event.when_ns;
    clock->run_count++;
    event.fn(event.ctx, event.a, event.b);
    return true;
}

void sim_clock_run_until(struct sim_clock *clock, uint64_t when_ns)
{
    while (sim_clock_next_ns(clock) <= when_ns && sim_clock_run_one(clock)) {
    }
    if (clock->now_ns < when_ns) {
        clock->now_ns = when_ns;
    }
}

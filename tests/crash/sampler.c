#include "tests/crash/sampler.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void sleep_until(uint64_t at_ns)
{
    struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u),
                          .tv_nsec = (long)(at_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {
    }
}

/* What the engine's allocator would do; the planted bug stands in place of the library's answer. */
static int ask(struct sampler *s, int32_t page)
{
    if (s->is_injected && atomic_load_explicit(&s->killed_ns, memory_order_relaxed) != 0) {
        return 1;
    }
    return kvf_pages_are_idle(s->engine->client, s->engine->region, &page, 1, NULL);
}

/* One page of this room was found idle. `had_ended` was known before it was asked about, and proof and pidfd
 * are looked at after: neither is ever taken back, so what they deny now was not there then. */
static void judge(struct sampler *s, uint32_t idx, bool was_leased, bool had_ended)
{
    int proof = kvf_drained(s->engine->client, s->rooms[idx].room);
    bool has_ended = had_ended || crash_has_ended(s->pidfd);
    bool is_by_end = proof == KVF_WORKER_GONE || proof == KVF_ENGINE_GONE;
    if (was_leased || proof <= 0 || (is_by_end && !has_ended)) {
        s->early_room = s->early == 0 ? idx : s->early_room;
        s->early_proof = s->early == 0 ? proof : s->early_proof;
        s->early++;
    } else if (is_by_end && !had_ended) {
        s->edge++;
    } else {
        s->idle++;
    }
}

/* Returns how many pages were idle. */
static uint32_t sample(struct sampler *s, bool had_ended)
{
    uint32_t idle_count = 0;
    for (uint32_t i = 0; i < s->room_count; i++) {
        struct sampler_room *room = &s->rooms[i];
        for (uint32_t k = 0; k < room->count; k++) {
            /* Still out after the answer means out when it was given. */
            int idle = ask(s, room->first + (int32_t)k);
            bool was_leased = atomic_load_explicit(&room->is_leased, memory_order_acquire);
            CHECK(idle == 0 || idle == 1, "pages_are_idle: %d %s", idle,
                  kvf_code_name_of(idle));
            if (idle == 1) {
                judge(s, i, was_leased, had_ended);
                idle_count++;
            }
        }
    }
    return idle_count;
}

static uint32_t page_count(const struct sampler *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->room_count; i++) {
        count += s->rooms[i].count;
    }
    return count;
}

static void *run(void *ctx)
{
    struct sampler *s = ctx;
    uint32_t pages = page_count(s);
    uint64_t due_ns = now_ns();
    uint64_t last_ns = 0;
    bool is_all_idle = false;
    while (!atomic_load_explicit(&s->is_ending, memory_order_relaxed)) {
        sleep_until(due_ns);
        /* Acquire: the signal was not sent before this time was stored. */
        bool is_killed = atomic_load_explicit(&s->killed_ns, memory_order_acquire) != 0;
        bool had_ended = crash_has_ended(s->pidfd);
        uint64_t start_ns = now_ns();
        if (had_ended && atomic_load_explicit(&s->reaped_ns, memory_order_relaxed) == 0) {
            atomic_store_explicit(&s->reaped_ns, start_ns, memory_order_relaxed);
        }
        bool is_counted = is_killed && !is_all_idle;
        is_all_idle = sample(s, had_ended) == pages;
        if (is_counted) {
            s->samples_alive += !had_ended;
            s->samples_reaped += had_ended;
            s->asked += pages;
            if (last_ns != 0 && s->interval_count < SAMPLER_INTERVALS_MAX) {
                s->intervals_ns[s->interval_count++] = start_ns - last_ns;
            }
        }
        last_ns = start_ns;
        /* What was missed is not made up for: the next sample is the next that can be on time. */
        uint64_t now = now_ns();
        due_ns += SAMPLER_INTERVAL_NS;
        if (due_ns < now) {
            due_ns += (now - due_ns) / SAMPLER_INTERVAL_NS * SAMPLER_INTERVAL_NS;
        }
    }
    return NULL;
}

/* Where a real-time priority is allowed, other programs do not keep the samples apart. */
static bool prefer(pthread_t thread)
{
    struct sched_param first = {.sched_priority = 1};
    return pthread_setschedparam(thread, SCHED_RR, &first) == 0;
}

void sampler_start(struct sampler *s)
{
    s->intervals_ns = calloc(SAMPLER_INTERVALS_MAX, sizeof *s->intervals_ns);
    CHECK(s->intervals_ns != NULL, "no memory");
    CHECK_IS(pthread_create(&s->thread, NULL, run, s), 0, "thread");
    s->is_real_time = prefer(s->thread);
}

void sampler_stop(struct sampler *s)
{
    atomic_store_explicit(&s->is_ending, true, memory_order_relaxed);
    CHECK_IS(pthread_join(s->thread, NULL), 0, "join");
}

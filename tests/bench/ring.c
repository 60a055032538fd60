/* The command ring between two cores. A round trip of one command and its answer stands beside a bare cache line
 * that goes there and back: nothing between two cores can be faster. A stream of commands stands beside a plain
 * ring of the textbook, a sequence number per slot, written as anyone would write it, and beside ck_ring where
 * Concurrency Kit was found. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef KVF_BENCH_HAS_CK
#include <ck_ring.h>
#endif

#include "ring/spsc.h"
#include "tests/bench/commands.h"

#define SLOTS 1024u
#define TRIPS_PER_SAMPLE 100u
#define SAMPLES_PER_REPEAT 20u
#define WARM_SAMPLES 5u
#define STREAM_COMMANDS 200000u
#define SPINS_BEFORE_YIELD 4096u

enum kind { LINE = 0, RING, STREAM, PLAIN_STREAM, CK_STREAM, KINDS };

struct plain_slot {
    _Alignas(64) _Atomic uint64_t seq;
    unsigned char payload[KVF_SLOT_PAYLOAD_BYTES];
};

/* Far enough apart that no prefetcher takes them for one. */
static _Alignas(4096) _Atomic uint64_t there;
static _Alignas(4096) _Atomic uint64_t back;
static _Alignas(4096) unsigned char there_slots[SLOTS * KVF_SLOT_BYTES];
static _Alignas(4096) unsigned char back_slots[SLOTS * KVF_SLOT_BYTES];
static _Alignas(4096) struct plain_slot plain_slots[SLOTS];
static _Alignas(4096) _Atomic int is_peer_ready;

struct peer {
    enum kind kind;
    uint64_t count; /* trips or commands */
    int cpu;
    uint64_t sum; /* of what was read, so that nothing is left out */
};

struct command {
    uint64_t seq;
    uint64_t words[7];
};
_Static_assert(sizeof(struct command) == KVF_SLOT_BYTES, "a command is a slot");

#ifdef KVF_BENCH_HAS_CK
CK_RING_PROTOTYPE(command, command)
static _Alignas(4096) struct command ck_slots[SLOTS];
static _Alignas(64) ck_ring_t ck_ring;
static const bool has_ck = true;

static bool ck_push(struct command *command)
{
    return ck_ring_enqueue_spsc_command(&ck_ring, ck_slots, command);
}

static bool ck_pop(struct command *ret_command)
{
    return ck_ring_dequeue_spsc_command(&ck_ring, ck_slots, ret_command);
}

static void ck_format(void)
{
    ck_ring_init(&ck_ring, SLOTS);
}
#else
static const bool has_ck = false;

static bool ck_push(struct command *command)
{
    (void)command;
    return true;
}

static bool ck_pop(struct command *ret_command)
{
    (void)ret_command;
    return true;
}

static void ck_format(void) {}
#endif

/* Spins; gives the processor away where the other side may need the same one. */
static void relax(uint32_t *spins)
{
    kvf_cpu_relax();
    if (++*spins == SPINS_BEFORE_YIELD) {
        *spins = 0;
        sched_yield();
    }
}

/* ---- the plain ring ------------------------------------------------------------------------------- */

static bool plain_push(uint64_t at, const struct command *command)
{
    struct plain_slot *slot = &plain_slots[at % SLOTS];
    if (atomic_load_explicit(&slot->seq, memory_order_acquire) != at) {
        return false;
    }
    memcpy(slot->payload, command->words, sizeof(slot->payload));
    atomic_store_explicit(&slot->seq, at + 1, memory_order_release);
    return true;
}

static bool plain_pop(uint64_t at, struct command *ret_command)
{
    struct plain_slot *slot = &plain_slots[at % SLOTS];
    if (atomic_load_explicit(&slot->seq, memory_order_acquire) != at + 1) {
        return false;
    }
    memcpy(ret_command->words, slot->payload, sizeof(slot->payload));
    atomic_store_explicit(&slot->seq, at + SLOTS, memory_order_release);
    return true;
}

/* ---- the far side --------------------------------------------------------------------------------- */

static void echo_line(uint64_t count)
{
    uint32_t spins = 0;
    for (uint64_t i = 1; i <= count; i++) {
        while (atomic_load_explicit(&there, memory_order_acquire) != i) {
            relax(&spins);
        }
        atomic_store_explicit(&back, i, memory_order_release);
    }
}

static void echo_ring(uint64_t count)
{
    struct kvf_spsc_consumer in;
    struct kvf_spsc_producer out;
    struct command command;
    uint32_t spins = 0;
    kvf_spsc_consumer_init(&in, there_slots, SLOTS, 0);
    kvf_spsc_producer_init(&out, back_slots, SLOTS, 0);
    for (uint64_t i = 0; i < count; i++) {
        while (kvf_spsc_pop(&in, &command, 1) == 0) {
            relax(&spins);
        }
        while (kvf_spsc_push(&out, &command, 1) == 0) {
            relax(&spins);
        }
    }
}

/* The kind is a constant in each caller, so that no loop asks for it. */
static inline uint64_t drain(uint64_t count, enum kind kind)
{
    struct kvf_spsc_consumer in;
    struct command command;
    uint32_t spins = 0;
    uint64_t sum = 0;
    kvf_spsc_consumer_init(&in, there_slots, SLOTS, 0);
    for (uint64_t i = 0; i < count; i++) {
        while (kind == PLAIN_STREAM ? !plain_pop(i, &command)
               : kind == CK_STREAM  ? !ck_pop(&command)
                                    : kvf_spsc_pop(&in, &command, 1) == 0) {
            relax(&spins);
        }
        sum += command.words[0];
    }
    return sum;
}

static void *run_peer(void *arg)
{
    struct peer *peer = arg;
    kvf_cpu_pin(peer->cpu);
    atomic_store_explicit(&is_peer_ready, 1, memory_order_release);
    switch (peer->kind) {
    case LINE:
        echo_line(peer->count);
        break;
    case RING:
        echo_ring(peer->count);
        break;
    case STREAM:
        peer->sum = drain(peer->count, STREAM);
        break;
    case PLAIN_STREAM:
        peer->sum = drain(peer->count, PLAIN_STREAM);
        break;
    case CK_STREAM:
        peer->sum = drain(peer->count, CK_STREAM);
        break;
    case KINDS:
        break;
    }
    return NULL;
}

/* ---- the near side -------------------------------------------------------------------------------- */

static void trip_line(uint64_t number, uint32_t *spins)
{
    atomic_store_explicit(&there, number, memory_order_release);
    while (atomic_load_explicit(&back, memory_order_acquire) != number) {
        relax(spins);
    }
}

static void trip_ring(struct kvf_spsc_producer *out, struct kvf_spsc_consumer *in,
                      struct command *command, uint32_t *spins)
{
    while (kvf_spsc_push(out, command, 1) == 0) {
        relax(spins);
    }
    while (kvf_spsc_pop(in, command, 1) == 0) {
        relax(spins);
    }
}

static void time_trips(enum kind kind, struct kvf_series *series)
{
    struct kvf_spsc_producer out;
    struct kvf_spsc_consumer in;
    struct command command = {.seq = 0};
    uint32_t spins = 0;
    uint64_t number = 0;
    kvf_spsc_producer_init(&out, there_slots, SLOTS, 0);
    kvf_spsc_consumer_init(&in, back_slots, SLOTS, 0);
    for (uint32_t i = 0; i < WARM_SAMPLES + SAMPLES_PER_REPEAT; i++) {
        uint64_t begin_ns = kvf_bench_now_ns();
        for (uint32_t k = 0; k < TRIPS_PER_SAMPLE; k++) {
            if (kind == LINE) {
                trip_line(++number, &spins);
            } else {
                trip_ring(&out, &in, &command, &spins);
            }
        }
        double ns = (double)(kvf_bench_now_ns() - begin_ns);
        if (i >= WARM_SAMPLES) {
            kvf_series_add(series, ns / TRIPS_PER_SAMPLE);
        }
    }
}

static inline void push(enum kind kind, uint64_t count)
{
    struct kvf_spsc_producer out;
    struct command command = {.seq = 0};
    uint32_t spins = 0;
    kvf_spsc_producer_init(&out, there_slots, SLOTS, 0);
    for (uint64_t i = 0; i < count; i++) {
        command.words[0] = i;
        while (kind == PLAIN_STREAM ? !plain_push(i, &command)
               : kind == CK_STREAM  ? !ck_push(&command)
                                    : kvf_spsc_push(&out, &command, 1) == 0) {
            relax(&spins);
        }
    }
}

static void push_stream(enum kind kind, uint64_t count)
{
    if (kind == PLAIN_STREAM) {
        push(PLAIN_STREAM, count);
    } else if (kind == CK_STREAM) {
        push(CK_STREAM, count);
    } else {
        push(STREAM, count);
    }
}

static void format_all(void)
{
    kvf_spsc_format(there_slots, SLOTS, 0);
    kvf_spsc_format(back_slots, SLOTS, 0);
    ck_format();
    for (uint64_t i = 0; i < SLOTS; i++) {
        atomic_store_explicit(&plain_slots[i].seq, i, memory_order_relaxed);
    }
    atomic_store_explicit(&there, 0, memory_order_relaxed);
    atomic_store_explicit(&back, 0, memory_order_relaxed);
    atomic_store_explicit(&is_peer_ready, 0, memory_order_relaxed);
}

static int measure(enum kind kind, const struct kvf_cpus *cpus, struct kvf_series *series)
{
    bool is_trips = kind == LINE || kind == RING;
    uint64_t trips = (uint64_t)(WARM_SAMPLES + SAMPLES_PER_REPEAT) * TRIPS_PER_SAMPLE;
    struct peer peer = {
        .kind = kind, .count = is_trips ? trips : STREAM_COMMANDS, .cpu = cpus->sink};
    pthread_t thread;
    uint32_t spins = 0;
    format_all();
    int rc = pthread_create(&thread, NULL, run_peer, &peer);
    if (rc != 0) {
        fprintf(stderr, "kvfence-bench: no thread: %s\n", strerror(rc));
        return KVF_BENCH_BROKEN;
    }
    kvf_cpu_pin(cpus->source);
    while (atomic_load_explicit(&is_peer_ready, memory_order_acquire) == 0) {
        relax(&spins);
    }
    uint64_t begin_ns = kvf_bench_now_ns();
    if (is_trips) {
        time_trips(kind, series);
        pthread_join(thread, NULL);
        return 0;
    }
    push_stream(kind, peer.count);
    pthread_join(thread, NULL);
    double us = (double)(kvf_bench_now_ns() - begin_ns) / 1e3;
    if (peer.sum != peer.count * (peer.count - 1) / 2) {
        fprintf(stderr, "kvfence-bench: commands that came out are not those that went in\n");
        return KVF_BENCH_FAILED;
    }
    kvf_series_add(series, (double)peer.count / us);
    return 0;
}

static void describe_trip(struct kvf_figure *f)
{
    snprintf(f->name, sizeof(f->name), "a command there and its answer back");
    snprintf(f->unit, sizeof(f->unit), "ns");
    snprintf(f->beside_name, sizeof(f->beside_name), "a bare cache line there and back");
    f->target_kind = KVF_TARGET_AT_MOST;
    f->target = 1.25;
}

static void describe_stream(struct kvf_figure *f, const char *beside)
{
    snprintf(f->name, sizeof(f->name), "a stream of commands");
    snprintf(f->unit, sizeof(f->unit), "M/s");
    snprintf(f->beside_name, sizeof(f->beside_name), "%s", beside);
    f->is_rate = true;
}

int kvf_bench_ring(const struct kvf_bench_options *options, struct kvf_bench_report *report)
{
    uint32_t repeats = options->repeats;
    uint32_t samples = repeats * SAMPLES_PER_REPEAT;
    struct kvf_figure *trip = kvf_report_figure(report, "ring.round_trip", samples, samples);
    struct kvf_figure *stream = kvf_report_figure(report, "ring.stream", repeats, repeats);
    struct kvf_figure *ck =
        has_ck ? kvf_report_figure(report, "ring.stream_ck", repeats, repeats) : stream;
    if (trip == NULL || stream == NULL || ck == NULL) {
        return KVF_BENCH_BROKEN;
    }
    snprintf(report->setting, sizeof(report->setting),
             "commands of 64 bytes, one at a time, %u slots, %u repeats", SLOTS, repeats);
    describe_trip(trip);
    if (has_ck) {
        describe_stream(ck, "ck_ring, SPSC, 64 bytes by value");
        ck->target_kind = KVF_TARGET_AT_LEAST;
        ck->target = 2;
    }
    describe_stream(stream, "a plain ring, a sequence per slot");
    struct kvf_series *series[KINDS] = {[LINE] = &trip->beside,
                                        [RING] = &trip->series,
                                        [STREAM] = &stream->series,
                                        [PLAIN_STREAM] = &stream->beside,
                                        [CK_STREAM] = &ck->beside};
    uint32_t kinds = has_ck ? KINDS : CK_STREAM;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < repeats; i++) {
        kvf_progress(options, "repeats", i, repeats);
        for (uint32_t k = 0; rc == 0 && k < kinds; k++) {
            enum kind kind = (enum kind)((k + i) % kinds); /* each is first now and then */
            rc = measure(kind, &report->cpus, series[kind]);
        }
    }
    for (uint32_t i = 0; has_ck && i < stream->series.count; i++) {
        kvf_series_add(&ck->series, stream->series.values[i]);
    }
    kvf_cpu_pin(-1);
    return rc;
}

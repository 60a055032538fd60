/* Drives the command ring as hard as two cores allow and checks every word of every command.
 *
 *   ring_stress [--commands N] [--slots N] [--batch N] [--one-mapping | --processes] [--sleep]
 *
 * Default: two threads, each with its own mapping of one sealed memfd, as engine and daemon have.
 * --processes uses two processes. --one-mapping lets both threads use one mapping, which is what a thread
 * sanitizer needs to see a race. --sleep lets the consumer sleep without a timeout whenever the ring is
 * empty, so one lost wake-up ends the run by its alarm. Exit: 0 right, 1 wrong or stuck, 2 usage. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ring/segment.h"
#include "ring/spsc.h"

#define BATCH_MAX 64u
#define STUCK_SECONDS 120u
#define SPINS_BEFORE_YIELD 200u
#define PAYLOAD_WORDS 7u

struct options {
    uint64_t commands;
    uint32_t slots;
    uint32_t batch;
    bool is_one_mapping;
    bool is_processes;
    bool is_sleeping;
};

/* The first page of the shared memory: what the sleepers need. The ring follows. */
struct shared_page {
    _Alignas(64) _Atomic uint32_t sleeping; /* written by the consumer */
    _Alignas(64) _Atomic uint32_t wake_count;
    _Alignas(64) _Atomic uint32_t is_spoiled; /* a wrong word was seen */
};

struct command {
    uint64_t seq;
    uint64_t words[PAYLOAD_WORDS];
};
_Static_assert(sizeof(struct command) == KVF_SLOT_BYTES, "command");

struct side {
    const struct options *options;
    struct shared_page *page;
    unsigned char *slots;
    int cpu_rank;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Pins to the rank-th allowed CPU. Returns it, or -1. */
static int pin(int rank)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
        return -1;
    }
    int seen = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed)) {
            continue;
        }
        if (seen++ == rank) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            return sched_setaffinity(0, sizeof one, &one) == 0 ? (int)cpu : -1;
        }
    }
    return -1;
}

static uint64_t word_of(uint64_t number, uint64_t word_idx)
{
    uint64_t x = number * PAYLOAD_WORDS + word_idx;
    return x * UINT64_C(0x9e3779b97f4a7c15) ^ x;
}

static void relax(uint32_t *spins)
{
    if (++*spins >= SPINS_BEFORE_YIELD) {
        *spins = 0;
        sched_yield();
    }
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void wake_if_sleeping(struct shared_page *page)
{
    /* D1 (seq_cst). */
    if (atomic_load_explicit(&page->sleeping, memory_order_seq_cst) != 0) {
        atomic_fetch_add_explicit(&page->wake_count, 1, memory_order_release);
        futex_wake(&page->wake_count);
    }
}

static void produce(struct side *side)
{
    const struct options *options = side->options;
    struct kvf_spsc_producer producer;
    struct command batch[BATCH_MAX] = {0};
    uint64_t number = 0;
    uint32_t spins = 0;
    pin(side->cpu_rank);
    kvf_spsc_producer_init(&producer, side->slots, options->slots, 0);
    while (number < options->commands) {
        uint64_t left = options->commands - number;
        uint32_t count = left < options->batch ? (uint32_t)left : options->batch;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < PAYLOAD_WORDS; j++) {
                batch[i].words[j] = word_of(number + i, j);
            }
        }
        for (uint32_t pushed = 0; pushed < count;) {
            uint32_t got =
                options->is_sleeping
                    ? kvf_spsc_push_seq_cst(&producer, &batch[pushed], count - pushed)
                    : kvf_spsc_push(&producer, &batch[pushed], count - pushed);
            pushed += got;
            if (got > 0 && options->is_sleeping) {
                wake_if_sleeping(side->page);
            }
            if (got == 0) {
                relax(&spins);
            }
        }
        number += count;
    }
}

static void sleep_until_woken(struct side *side, const struct kvf_spsc_consumer *consumer)
{
    struct shared_page *page = side->page;
    uint32_t seen = atomic_load_explicit(&page->wake_count, memory_order_acquire);
    /* D1 (seq_cst). */
    atomic_store_explicit(&page->sleeping, 1, memory_order_seq_cst);
    if (!kvf_spsc_is_pending(consumer)) {
        syscall(SYS_futex, &page->wake_count, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
    atomic_store_explicit(&page->sleeping, 0, memory_order_relaxed);
}

static void consume(struct side *side)
{
    const struct options *options = side->options;
    struct kvf_spsc_consumer consumer;
    struct command batch[BATCH_MAX];
    uint32_t spins = 0;
    pin(side->cpu_rank);
    kvf_spsc_consumer_init(&consumer, side->slots, options->slots, 0);
    for (uint64_t number = 0; number < options->commands;) {
        uint32_t got = kvf_spsc_pop(&consumer, batch, options->batch);
        for (uint32_t i = 0; i < got; i++, number++) {
            uint64_t diff = batch[i].seq ^ (number + 1u);
            for (uint32_t j = 0; j < PAYLOAD_WORDS; j++) {
                diff |= batch[i].words[j] ^ word_of(number, j);
            }
            if (diff != 0) {
                fprintf(stderr, "ring_stress: command %llu is wrong\n",
                        (unsigned long long)number);
                atomic_store_explicit(&side->page->is_spoiled, 1, memory_order_relaxed);
                exit(1);
            }
        }
        if (got == 0 && options->is_sleeping) {
            sleep_until_woken(side, &consumer);
        } else if (got == 0) {
            relax(&spins);
        }
    }
}

static void *produce_thread(void *ctx)
{
    produce(ctx);
    return NULL;
}

static int run_threads(struct side *producer, struct side *consumer)
{
    pthread_t thread;
    int err = pthread_create(&thread, NULL, produce_thread, producer);
    if (err != 0) {
        fprintf(stderr, "ring_stress: no thread: %s\n", strerror(err));
        return 1;
    }
    consume(consumer);
    pthread_join(thread, NULL);
    return 0;
}

static int run_processes(struct side *producer, struct side *consumer)
{
    pid_t child = fork();
    if (child < 0) {
        perror("ring_stress: fork");
        return 1;
    }
    if (child == 0) {
        alarm(STUCK_SECONDS);
        produce(producer);
        _exit(0);
    }
    consume(consumer);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "ring_stress: the producer's process ended with %d\n", status);
        return 1;
    }
    return 0;
}

static uint64_t number_of(const char *text, uint64_t min, uint64_t max)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || end == text || value < min || value > max) {
        fprintf(stderr, "ring_stress: \"%s\" is not a number from %llu to %llu\n", text,
                (unsigned long long)min, (unsigned long long)max);
        exit(2);
    }
    return value;
}

static struct options parse(int argc, char **argv)
{
    struct options options = {.commands = 20000000, .slots = 1024, .batch = 1};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--commands") == 0) {
            options.commands = number_of(value, 1, UINT64_C(1) << 48);
            i++;
        } else if (strcmp(argv[i], "--slots") == 0) {
            options.slots = (uint32_t)number_of(value, KVF_SPSC_SLOTS_MIN, KVF_CMD_SLOTS_MAX);
            i++;
        } else if (strcmp(argv[i], "--batch") == 0) {
            options.batch = (uint32_t)number_of(value, 1, BATCH_MAX);
            i++;
        } else if (strcmp(argv[i], "--one-mapping") == 0) {
            options.is_one_mapping = true;
        } else if (strcmp(argv[i], "--processes") == 0) {
            options.is_processes = true;
        } else if (strcmp(argv[i], "--sleep") == 0) {
            options.is_sleeping = true;
        } else {
            fprintf(stderr, "usage: ring_stress [--commands N] [--slots N] [--batch N] "
                            "[--one-mapping | --processes] [--sleep]\n");
            exit(2);
        }
    }
    if ((options.slots & (options.slots - 1u)) != 0) {
        fprintf(stderr, "ring_stress: --slots takes a power of two\n");
        exit(2);
    }
    return options;
}

static struct side map_side(const struct options *options, int fd, int cpu_rank)
{
    void *addr;
    uint64_t bytes = KVF_PAGE_BYTES + (uint64_t)options->slots * KVF_SLOT_BYTES;
    int err = kvf_memory_map(fd, 0, bytes, true, false, &addr);
    if (err != 0) {
        fprintf(stderr, "ring_stress: no mapping: %s\n", strerror(-err));
        exit(1);
    }
    return (struct side){.options = options,
                         .page = addr,
                         .slots = (unsigned char *)addr + KVF_PAGE_BYTES,
                         .cpu_rank = cpu_rank};
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    int fd;
    int err = kvf_memory_create("ring_stress",
                                KVF_PAGE_BYTES + (uint64_t)options.slots * KVF_SLOT_BYTES, &fd);
    if (err != 0) {
        fprintf(stderr, "ring_stress: no memory: %s\n", strerror(-err));
        return 1;
    }
    struct side producer = map_side(&options, fd, 0);
    struct side consumer = producer;
    if (!options.is_one_mapping) {
        consumer = map_side(&options, fd, 1);
    }
    consumer.cpu_rank = 1;
    kvf_spsc_format(producer.slots, options.slots, 0);

    alarm(STUCK_SECONDS); /* a stuck run ends by SIGALRM */
    uint64_t start = now_ns();
    err = options.is_processes ? run_processes(&producer, &consumer)
                               : run_threads(&producer, &consumer);
    double seconds = (double)(now_ns() - start) / 1e9;
    if (err != 0) {
        return err;
    }
    printf("ring_stress: %llu commands of 64 bytes right, %s, %u slots, batch %u%s: %.1f M/s, "
           "%.1f ns each\n",
           (unsigned long long)options.commands,
           options.is_processes     ? "two processes"
           : options.is_one_mapping ? "two threads, one mapping"
                                    : "two threads, two mappings",
           options.slots, options.batch, options.is_sleeping ? ", sleeping consumer" : "",
           (double)options.commands / seconds / 1e6, seconds * 1e9 / (double)options.commands);
    return 0;
}

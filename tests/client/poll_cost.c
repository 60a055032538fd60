/* What asking costs: nanoseconds a call, or, under valgrind --tool=callgrind, instructions a call.
 *
 * The time of an empty function called the same way is printed beside it. Medians of repeats that take
 * turns; the numbers of one run belong together and to the machine they were made on. */
#include "tests/client/fake_daemon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 15
#define POLLS 2000000u
#define LEDGER_PAGES 4096u
#define LEDGER_CALLS 500u

/* Not inlined and not known to the caller: costs what any call of a library costs. */
__attribute__((noinline)) static int nothing(kvf_client *client, kvf_room room)
{
    __asm__ volatile("" : : "r"(client), "r"(room) : "memory");
    return 4;
}
static int (*volatile call_nothing)(kvf_client *, kvf_room) = nothing;
static int (*volatile call_poll)(kvf_client *, kvf_room) = kvf_poll;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof values[0], compare);
    return values[ROUNDS / 2];
}

static double time_calls(int (*fn)(kvf_client *, kvf_room), kvf_client *client,
                         const kvf_room *rooms, uint32_t room_count, uint32_t calls)
{
    uint32_t sum = 0;
    uint32_t at = 0;
    double begin = now_ns();
    for (uint32_t i = 0; i < calls; i++) {
        sum += (uint32_t)fn(client, rooms[at]);
        at = at + 1u == room_count ? 0 : at + 1u;
    }
    double spent = now_ns() - begin;
    __asm__ volatile("" : : "r"(sum));
    return spent / calls;
}

static double time_ledger(kvf_client *client, uint32_t region, const int32_t *pages)
{
    int answer = 0;
    double begin = now_ns();
    for (uint32_t i = 0; i < LEDGER_CALLS; i++) {
        answer += kvf_pages_are_idle(client, region, pages, LEDGER_PAGES, NULL);
    }
    double spent = now_ns() - begin;
    if (answer != (int)LEDGER_CALLS) {
        printf("pages are lent: nothing was measured\n");
        exit(1);
    }
    return spent / LEDGER_CALLS / LEDGER_PAGES;
}

static void measure_poll(struct fake_daemon *fake, uint32_t region, uint32_t room_count)
{
    kvf_client *client;
    (void)region;
    if (fake_attach(fake, room_count, 65536, 0, &client) != 0) {
        exit(1);
    }
    struct fake_memory memory;
    fake_memory_make(client, 8, &memory);
    kvf_room *rooms = calloc(room_count, sizeof *rooms);
    struct kvf_cmd_shm cmd;
    for (uint32_t i = 0; i < room_count; i++) {
        if (rooms == NULL || fake_open_source(client, memory.region, &rooms[i]) != 0) {
            exit(1);
        }
        (void)fake_pop(fake, &cmd);
        fake_open(fake, rooms[i], KVF_STATE_TRANSFERRING);
    }
    double base[ROUNDS];
    double poll[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        base[i] = time_calls(call_nothing, client, rooms, room_count, POLLS);
        poll[i] = time_calls(call_poll, client, rooms, room_count, POLLS);
    }
    double b = median(base);
    double p = median(poll);
    printf("poll, %5u rooms: %.2f ns a call, %.2f ns of it beyond an empty call\n", room_count,
           p, p - b);
    kvf_detach(client, 1000, NULL);
    kvf_pool_destroy(memory.pool);
    free(rooms);
}

static void measure_ledger(struct fake_daemon *fake)
{
    kvf_client *client;
    struct fake_memory memory;
    static int32_t pages[LEDGER_PAGES];
    if (fake_attach(fake, 1024, 1024, 0, &client) != 0) {
        exit(1);
    }
    fake_memory_make(client, LEDGER_PAGES, &memory);
    double fresh[ROUNDS];
    double used[ROUNDS];
    for (uint32_t i = 0; i < LEDGER_PAGES; i++) {
        pages[i] = (int32_t)((i * 2654435761u) % LEDGER_PAGES);
    }
    for (int i = 0; i < ROUNDS; i++) {
        fresh[i] = time_ledger(client, memory.region, pages);
    }
    /* Every page was lent to one of 512 rooms that have ended: the allocator's daily case. */
    struct kvf_cmd_shm cmd;
    for (uint32_t i = 0; i < 512; i++) {
        kvf_room room;
        int32_t list[8];
        for (uint32_t k = 0; k < 8; k++) {
            list[k] = (int32_t)(i * 8u + k);
        }
        if (fake_open_sink(client, memory.region, list, 8, &room) != 0) {
            exit(1);
        }
        (void)fake_pop(fake, &cmd);
        fake_succeed(fake, room);
        kvf_release(client, room);
    }
    for (int i = 0; i < ROUNDS; i++) {
        used[i] = time_ledger(client, memory.region, pages);
    }
    printf("ledger, %u pages in random order: %.2f ns a page never lent, %.2f ns a page of "
           "ended rooms\n",
           LEDGER_PAGES, median(fresh), median(used));
    kvf_detach(client, 1000, NULL);
    kvf_pool_destroy(memory.pool);
}

int main(int argc, char **argv)
{
    struct fake_daemon fake;
    fake_start(&fake);
    if (argc == 3 && strcmp(argv[1], "--count") == 0) {
        /* For an instruction counter: that many polls of one open room. */
        kvf_client *client;
        struct fake_memory memory;
        kvf_room room;
        if (fake_attach(&fake, 4, 8, 0, &client) != 0) {
            return 1;
        }
        fake_memory_make(client, 8, &memory);
        if (fake_open_source(client, memory.region, &room) != 0) {
            return 1;
        }
        fake_open(&fake, room, KVF_STATE_TRANSFERRING);
        (void)time_calls(call_poll, client, &room, 1, (uint32_t)strtoul(argv[2], NULL, 10));
        kvf_detach(client, 1000, NULL);
        kvf_pool_destroy(memory.pool);
    } else {
        measure_poll(&fake, 0, 1);
        measure_poll(&fake, 0, 1024);
        measure_poll(&fake, 0, 65536);
        measure_ledger(&fake);
    }
    fake_stop(&fake);
    return 0;
}

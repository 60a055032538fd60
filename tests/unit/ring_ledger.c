#include <criterion/criterion.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ring/ledger.h"
#include "ring/room_word.h"

#define PAGES 64u
#define ROOMS 4u

struct world {
    struct kvf_ledger_shm *shm;
    _Atomic uint64_t *words;
    struct kvf_room_shm rooms[ROOMS];
};

static void world_init(struct world *world)
{
    memset(world, 0, sizeof *world);
    world->shm = calloc(1, kvf_ledger_bytes(PAGES));
    kvf_ledger_format(world->shm, PAGES, 9);
    world->words = kvf_ledger_words(world->shm);
}

static void publish(struct world *world, uint32_t slot, uint64_t generation,
                    enum kvf_phase phase)
{
    atomic_store_explicit(&world->rooms[slot].word,
                          kvf_word_make(generation, phase, KVF_OUTCOME_NONE, KVF_PROOF_NONE,
                                        KVF_STATE_TRANSFERRING, 0),
                          memory_order_release);
}

static int is_idle(const struct world *world, uint64_t page)
{
    return kvf_ledger_is_idle(atomic_load_explicit(&world->words[page], memory_order_acquire),
                              world->rooms, ROOMS);
}

static int lend(struct world *world, const struct kvf_run_shm *runs, uint32_t run_count,
                uint32_t slot, uint64_t generation, uint64_t *ret_position)
{
    return kvf_ledger_lend_sink(world->words, world->rooms, ROOMS, runs, run_count, slot,
                                generation, ret_position);
}

static int lend_source(struct world *world, const struct kvf_run_shm *runs, uint32_t run_count,
                       uint64_t *ret_position)
{
    return kvf_ledger_lend_source(world->words, world->rooms, ROOMS, runs, run_count,
                                  ret_position);
}

static uint32_t lent_pages(const struct world *world)
{
    uint32_t count = 0;
    for (uint64_t page = 0; page < PAGES; page++) {
        count += !is_idle(world, page);
    }
    return count;
}

Test(ring_ledger, a_fresh_ledger_is_idle_and_names_itself)
{
    struct world world;
    world_init(&world);
    cr_assert_eq(world.shm->magic, KVF_LEDGER_MAGIC);
    cr_assert_eq(world.shm->page_count, PAGES);
    cr_assert_eq(world.shm->region, 9);
    cr_assert_eq(kvf_ledger_bytes(PAGES), 64 + 8 * PAGES);
    cr_assert_eq(lent_pages(&world), 0);
    free(world.shm);
}

Test(ring_ledger, a_lent_page_is_busy_before_the_daemon_knows_until_drained)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm runs[] = {{.first = 10, .count = 3}, {.first = 2, .count = 1}};
    uint64_t position = 77;
    cr_assert_eq(lend(&world, runs, 2, 1, 1, &position), 0);
    cr_assert_eq(position, 77);
    cr_assert_eq(lent_pages(&world), 4);
    for (int phase = KVF_PHASE_OPEN; phase < KVF_PHASE_DRAINED; phase++) {
        publish(&world, 1, 1, (enum kvf_phase)phase);
        cr_assert_eq(lent_pages(&world), 4, "phase %d", phase);
    }
    publish(&world, 1, 1, KVF_PHASE_DRAINED);
    cr_assert_eq(lent_pages(&world), 0);
    free(world.shm);
}

Test(ring_ledger, a_newer_generation_of_the_lender_means_idle_and_an_older_one_lent)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm run = {.first = 5, .count = 1};
    uint64_t position;
    publish(&world, 2, 6, KVF_PHASE_DRAINED);
    cr_assert_eq(lend(&world, &run, 1, 2, 7, &position), 0);
    cr_assert_not(is_idle(&world, 5), "drained, but of the generation before");
    publish(&world, 2, 7, KVF_PHASE_OPEN);
    cr_assert_not(is_idle(&world, 5));
    publish(&world, 2, 8, KVF_PHASE_OPEN);
    cr_assert(is_idle(&world, 5));
    free(world.shm);
}

Test(ring_ledger, generations_are_compared_across_the_wrap_of_40_bits)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm run = {.first = 5, .count = 1};
    uint64_t position;
    publish(&world, 3, KVF_GENERATION_MAX - 1, KVF_PHASE_DRAINED);
    cr_assert_eq(lend(&world, &run, 1, 3, KVF_GENERATION_MAX, &position), 0);
    cr_assert_not(is_idle(&world, 5));
    publish(&world, 3, KVF_GENERATION_MAX, KVF_PHASE_OPEN);
    cr_assert_not(is_idle(&world, 5));
    publish(&world, 3, 0, KVF_PHASE_OPEN);
    cr_assert(is_idle(&world, 5), "0 follows 2^40 - 1");
    cr_assert_eq(lend(&world, &run, 1, 3, 1, &position), 0);
    publish(&world, 3, KVF_GENERATION_MAX, KVF_PHASE_DRAINED);
    cr_assert_not(is_idle(&world, 5), "2^40 - 1 is older than 1");
    free(world.shm);
}

Test(ring_ledger, a_word_that_names_no_room_of_the_client_is_not_idle)
{
    struct world world;
    world_init(&world);
    publish(&world, 0, 1, KVF_PHASE_DRAINED);
    cr_assert_not(kvf_ledger_is_idle(kvf_ledger_sink(ROOMS, 1), world.rooms, ROOMS));
    cr_assert_not(kvf_ledger_is_idle(UINT64_C(3) << 62, world.rooms, ROOMS));
    cr_assert_not(kvf_ledger_is_idle(1, world.rooms, ROOMS));
    free(world.shm);
}

Test(ring_ledger, a_refused_sink_lends_nothing_and_names_the_position)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm first = {.first = 20, .count = 2};
    uint64_t position;
    cr_assert_eq(lend(&world, &first, 1, 0, 1, &position), 0);
    const struct kvf_run_shm second[] = {
        {.first = 30, .count = 3}, {.first = 7, .count = 0}, {.first = 19, .count = 3}};
    cr_assert_eq(lend(&world, second, 3, 1, 1, &position), -EBUSY);
    cr_assert_eq(position, 4);
    cr_assert_eq(lent_pages(&world), 2);
    cr_assert_not(is_idle(&world, 20));
    cr_assert_not(is_idle(&world, 21));
    free(world.shm);
}

Test(ring_ledger, a_page_twice_in_one_list_is_refused_at_its_second_position)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm runs[] = {{.first = 8, .count = 4}, {.first = 11, .count = 2}};
    uint64_t position;
    cr_assert_eq(lend(&world, runs, 2, 1, 1, &position), -EEXIST);
    cr_assert_eq(position, 4);
    cr_assert_eq(lent_pages(&world), 0);
    free(world.shm);
}

Test(ring_ledger, a_page_the_room_already_holds_stays_lent_when_its_second_list_is_refused)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm first = {.first = 8, .count = 1};
    const struct kvf_run_shm second = {.first = 7, .count = 2};
    uint64_t position;
    cr_assert_eq(lend(&world, &first, 1, 1, 1, &position), 0);
    cr_assert_eq(lend(&world, &second, 1, 1, 1, &position), -EEXIST);
    cr_assert_eq(position, 1);
    cr_assert(is_idle(&world, 7));
    cr_assert_not(is_idle(&world, 8));
    free(world.shm);
}

Test(ring_ledger, undo_of_a_sink_leaves_pages_of_other_rooms_alone)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm mine = {.first = 0, .count = 2};
    const struct kvf_run_shm other = {.first = 2, .count = 2};
    const struct kvf_run_shm all = {.first = 0, .count = 8};
    uint64_t position;
    cr_assert_eq(lend(&world, &mine, 1, 1, 5, &position), 0);
    cr_assert_eq(lend(&world, &other, 1, 2, 5, &position), 0);
    kvf_ledger_undo_sink(world.words, &all, 1, 1, 5);
    cr_assert(is_idle(&world, 0));
    cr_assert(is_idle(&world, 1));
    cr_assert_not(is_idle(&world, 2));
    cr_assert_not(is_idle(&world, 3));
    free(world.shm);
}

Test(ring_ledger, source_pages_have_many_readers_and_are_idle_after_the_last)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm shared[] = {{.first = 40, .count = 4}};
    const struct kvf_run_shm twice[] = {{.first = 41, .count = 1}, {.first = 41, .count = 1}};
    uint64_t position;
    cr_assert_eq(lend_source(&world, shared, 1, &position), 0);
    cr_assert_eq(lend_source(&world, twice, 2, &position), 0);
    cr_assert_eq(kvf_ledger_readers(world.words[41]), 3);
    kvf_ledger_undo_source(world.words, shared, 1);
    cr_assert_eq(lent_pages(&world), 1);
    kvf_ledger_undo_source(world.words, twice, 2);
    cr_assert_eq(lent_pages(&world), 0);
    cr_assert_eq(world.words[41], 0);
    kvf_ledger_undo_source(world.words, twice, 2);
    cr_assert_eq(world.words[41], 0, "no reader, nothing to undo");
    free(world.shm);
}

Test(ring_ledger, a_sink_takes_no_page_under_readers_and_a_source_none_under_a_sink)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm low = {.first = 0, .count = 4};
    const struct kvf_run_shm high = {.first = 4, .count = 4};
    const struct kvf_run_shm both = {.first = 0, .count = 8};
    const struct kvf_run_shm back[] = {{.first = 4, .count = 4}, {.first = 3, .count = 1}};
    uint64_t position;
    cr_assert_eq(lend(&world, &low, 1, 0, 1, &position), 0);
    cr_assert_eq(lend_source(&world, &high, 1, &position), 0);
    cr_assert_eq(lend(&world, &both, 1, 1, 1, &position), -EBUSY);
    cr_assert_eq(position, 0);
    cr_assert_eq(lend_source(&world, back, 2, &position), -EBUSY);
    cr_assert_eq(position, 4);
    for (uint64_t page = 4; page < 8; page++) {
        cr_assert_eq(kvf_ledger_readers(world.words[page]), 1, "the refused reader is undone");
    }
    publish(&world, 0, 1, KVF_PHASE_DRAINED);
    cr_assert_eq(lend_source(&world, back, 2, &position), 0, "a drained lender is none");
    cr_assert_eq(kvf_ledger_readers(world.words[3]), 1);
    free(world.shm);
}

Test(ring_ledger, the_count_of_readers_never_runs_over)
{
    struct world world;
    world_init(&world);
    const struct kvf_run_shm run = {.first = 0, .count = 2};
    uint64_t position;
    world.words[1] = (uint64_t)KVF_LEDGER_SOURCE << 62 | UINT32_MAX;
    cr_assert_eq(lend_source(&world, &run, 1, &position), -EOVERFLOW);
    cr_assert_eq(position, 1);
    cr_assert(is_idle(&world, 0));
    cr_assert_eq(kvf_ledger_readers(world.words[1]), UINT32_MAX);
    free(world.shm);
}

/* Two threads: one has read its last byte of a page and takes its count back, the other sees the page idle
 * and fills it. Under a thread sanitizer this shows the edge G1 itself. */
struct refill {
    struct world world;
    unsigned char bytes[PAGES];
};

static void *fill_what_is_idle(void *arg)
{
    struct refill *refill = arg;
    for (uint64_t page = 0; page < PAGES; page++) {
        while (!is_idle(&refill->world, page)) {
            sched_yield();
        }
        refill->bytes[page] = 0xee;
    }
    return NULL;
}

static void read_and_take_back(bool is_source)
{
    static struct refill refill;
    world_init(&refill.world);
    memset(refill.bytes, 0x11, sizeof refill.bytes);
    struct kvf_run_shm all = {.region = 9, .first = 0, .count = PAGES};
    publish(&refill.world, 1, 5, KVF_PHASE_OPEN);
    cr_assert_eq(is_source ? lend_source(&refill.world, &all, 1, NULL)
                           : lend(&refill.world, &all, 1, 1, 5, NULL),
                 0);
    pthread_t filler;
    cr_assert_eq(pthread_create(&filler, NULL, fill_what_is_idle, &refill), 0);
    for (uint32_t page = 0; page < PAGES; page++) {
        struct kvf_run_shm one = {.region = 9, .first = page, .count = 1};
        cr_assert_eq(refill.bytes[page], 0x11, "page %u was filled while it was lent", page);
        if (is_source) {
            kvf_ledger_undo_source(refill.world.words, &one, 1);
        } else {
            kvf_ledger_undo_sink(refill.world.words, &one, 1, 1, 5);
        }
    }
    cr_assert_eq(pthread_join(filler, NULL), 0);
    cr_assert_eq(refill.bytes[PAGES - 1], 0xee);
    free(refill.world.shm);
}

Test(ring_ledger, whoever_sees_a_source_page_idle_is_behind_its_last_reader)
{
    read_and_take_back(true);
}

Test(ring_ledger, whoever_sees_a_page_given_back_is_behind_who_gave_it_back)
{
    read_and_take_back(false);
}

/* A fake daemon, a client attached to it and one region: what most tests of the library begin with. */
#ifndef KVF_TESTS_CLIENT_WORLD_H
#define KVF_TESTS_CLIENT_WORLD_H

#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "client/internal.h"
#include "ring/codes.h"
#include "ring/lease_word.h"
#include "tests/client/fake_daemon.h"

#define WORLD_ROOMS 4u
#define WORLD_SLOTS 8u
#define WORLD_ARENA 4096u
#define WORLD_PAGES 64u

struct world {
    struct fake_daemon fake;
    kvf_client *client;
    struct fake_memory memory;
};

static inline void world_begin_with(struct world *w, uint32_t rooms, uint32_t slots,
                                    uint32_t arena)
{
    fake_start(&w->fake);
    cr_assert_eq(fake_attach(&w->fake, rooms, slots, arena, &w->client), 0);
    fake_memory_make(w->client, WORLD_PAGES, &w->memory);
}

static inline void world_begin(struct world *w)
{
    world_begin_with(w, WORLD_ROOMS, WORLD_SLOTS, WORLD_ARENA);
}

static inline void world_end(struct world *w)
{
    (void)kvf_detach(w->client, 1000, NULL);
    kvf_pool_destroy(w->memory.pool);
    fake_stop(&w->fake);
}

static inline kvf_room world_sink(struct world *w, int32_t first, size_t count)
{
    int32_t pages[WORLD_PAGES];
    for (size_t i = 0; i < count; i++) {
        pages[i] = first + (int32_t)i;
    }
    kvf_room room = 0;
    int err = fake_open_sink(w->client, w->memory.region, pages, count, &room);
    cr_assert_eq(err, 0, "%s", kvf_code_name(err));
    return room;
}

static inline kvf_room world_source(struct world *w)
{
    kvf_room room = 0;
    int err = fake_open_source(w->client, w->memory.region, &room);
    cr_assert_eq(err, 0, "%s", kvf_code_name(err));
    return room;
}

static inline int world_submit(struct world *w, kvf_room room, int32_t first, size_t count,
                               uint32_t start, uint32_t flags)
{
    int32_t pages[WORLD_PAGES];
    for (size_t i = 0; i < count; i++) {
        pages[i] = first + (int32_t)i;
    }
    return fake_submit(w->client, room, w->memory.region, pages, count, start, flags);
}

static inline int world_is_idle(struct world *w, int32_t page)
{
    return kvf_pages_are_idle(w->client, w->memory.region, &page, 1, NULL);
}

/* Takes one command off the ring; ends the test if there is none. */
static inline struct kvf_cmd_shm world_pop(struct world *w)
{
    struct kvf_cmd_shm cmd;
    cr_assert_eq(fake_pop(&w->fake, &cmd), 1);
    return cmd;
}

#endif

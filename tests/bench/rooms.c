#include "tests/bench/rooms.h"

#include <errno.h>
#include <stdio.h>

#include "tests/bench/report.h"

#define LOOKS_PER_CLOCK 64u

void kvf_scatter(int32_t *ret_pages, uint32_t first, uint32_t count)
{
    uint32_t at = 0;
    for (uint32_t parity = 0; parity < 2; parity++) {
        for (uint32_t i = parity; i < count; i += 2) {
            ret_pages[at++] = (int32_t)(first + i);
        }
    }
}

uint64_t kvf_pair_key(void)
{
    static uint64_t last;
    return ++last;
}

static int refused(const char *what, int rc)
{
    fprintf(stderr, "kvfence-bench: %s: %s\n", what, kvf_strerror(rc));
    return KVF_BENCH_FAILED;
}

int kvf_pair_open_source(struct kvf_world *world, struct kvf_room_pair *pair, uint64_t key)
{
    struct kvf_source_opts opts = {.size_bytes = sizeof(opts),
                                   .region = world->ends[KVF_AT_SOURCE].region,
                                   .label = key,
                                   .key = key};
    int rc =
        kvf_open_source(world->ends[KVF_AT_SOURCE].client, &opts, &pair->rooms[KVF_AT_SOURCE]);
    return rc == 0 ? 0 : refused("a source room was refused", rc);
}

int kvf_pair_submit(struct kvf_world *world, struct kvf_room_pair *pair)
{
    struct kvf_piece_opts piece = {.size_bytes = sizeof(piece),
                                   .region = world->ends[KVF_AT_SOURCE].region,
                                   .pages = pair->pages,
                                   .page_count = pair->page_count,
                                   .flags = KVF_LAST_PIECE};
    int rc = kvf_submit(world->ends[KVF_AT_SOURCE].client, pair->rooms[KVF_AT_SOURCE], &piece);
    return rc == 0 ? 0 : refused("a piece was refused", rc);
}

int kvf_pair_open_sink(struct kvf_world *world, struct kvf_room_pair *pair, uint64_t key)
{
    const char *writers[] = {world->listen[0]};
    struct kvf_sink_opts opts = {.size_bytes = sizeof(opts),
                                 .region = world->ends[KVF_AT_SINK].region,
                                 .label = key,
                                 .key = key,
                                 .pages = pair->pages,
                                 .page_count = pair->page_count,
                                 .writers = writers,
                                 .writer_count = 1};
    pair->sink_end_ns = 0;
    pair->begin_ns = kvf_bench_now_ns();
    int rc = kvf_open_sink(world->ends[KVF_AT_SINK].client, &opts, &pair->rooms[KVF_AT_SINK]);
    return rc == 0 ? 0 : refused("a sink room was refused", rc);
}

int kvf_pair_await_grant(struct kvf_world *world, struct kvf_room_pair *pair)
{
    uint64_t end_ns = pair->begin_ns + KVF_ROOM_MS * UINT64_C(1000000);
    for (uint32_t looks = 1;; looks++) {
        int state = kvf_poll(world->ends[KVF_AT_SOURCE].client, pair->rooms[KVF_AT_SOURCE]);
        if (state == KVF_WAITING_FOR_INPUT) {
            return 0;
        }
        bool is_late = looks % LOOKS_PER_CLOCK == 0 && kvf_bench_now_ns() > end_ns;
        if (state <= KVF_FAILED || is_late) {
            return kvf_world_blame(world, KVF_AT_SOURCE, pair->rooms[KVF_AT_SOURCE],
                                   "no grant came");
        }
        kvf_world_pause(world);
    }
}

int kvf_pair_end(struct kvf_world *world, struct kvf_room_pair *pair, int state)
{
    /* The sink first: where it failed before its grant left, the source waits on and knows no reason. */
    static const uint32_t order[KVF_ENDS] = {KVF_AT_SINK, KVF_AT_SOURCE};
    for (uint32_t i = 0; i < KVF_ENDS; i++) {
        uint32_t at = order[i];
        int is = kvf_world_await(world, at, pair->rooms[at], KVF_ROOM_MS);
        if (is != state) {
            return kvf_world_blame(world, at, pair->rooms[at],
                                   state == KVF_SUCCESS ? "a transfer did not succeed"
                                                        : "an abort did not end the room");
        }
    }
    for (uint32_t at = 0; at < KVF_ENDS; at++) {
        (void)kvf_release(world->ends[at].client, pair->rooms[at]);
        pair->rooms[at] = 0;
    }
    return 0;
}

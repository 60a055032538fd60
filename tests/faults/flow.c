/* Others: engines with clients of their own that transfer all the time. A fault that is none of their business
 * must cost them nothing: every room ends in success, with right bytes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/faults/faults.h"

#define FLOW_PAGES 8u
#define FLOW_ROOMS_MAX 16u
#define FLOW_PAUSE_US 3000u
#define FLOW_ROOM_MS 10000u

struct flow {
    struct scene *scene;
    const char *what;
    struct engine *source;
    struct engine *sink;
    pthread_t thread;
    _Atomic bool is_ending;
    _Atomic uint64_t count;
};

static void expect_success(const struct flow *f, struct engine *e, kvf_room room)
{
    int state = kvf_wait(e->client, room, settings.patience * FLOW_ROOM_MS);
    if (state != KVF_SUCCESS) {
        struct kvf_room_info info = {.size_bytes = sizeof info};
        (void)kvf_room_info(e->client, room, &info);
        violated(f->scene, __FILE__, __LINE__,
                 "P5 Independence: a room of others (%s) is %s on daemon %s: %s (%s), phase %d",
                 f->what, kvf_state_name(state), e->daemon->name,
                 kvf_strerror((int)info.reason), kvf_code_name_of((int)info.reason),
                 info.phase);
    }
}

static void *run(void *ctx)
{
    struct flow *f = ctx;
    while (!atomic_load_explicit(&f->is_ending, memory_order_relaxed)) {
        uint64_t key = key_next() | UINT64_C(1) << 40;
        pattern_fill(f->source, key, 0, FLOW_PAGES);
        kvf_room in = engine_sink(f->sink, key, 0, FLOW_PAGES, f->source->daemon);
        kvf_room out = engine_source(f->source, key);
        engine_submit(f->source, out, 0, FLOW_PAGES, 0, true);
        expect_success(f, f->sink, in);
        expect_success(f, f->source, out);
        uint64_t wrong = pattern_count_wrong(f->sink, key, 0, FLOW_PAGES);
        PROMISE(f->scene, wrong == 0,
                "P5 Independence: %llu wrong bytes in a room of others (%s)",
                (unsigned long long)wrong, f->what);
        room_release(f->sink, in);
        room_release(f->source, out);
        atomic_fetch_add_explicit(&f->count, 1, memory_order_relaxed);
        sleep_us(FLOW_PAUSE_US);
    }
    return NULL;
}

struct flow *flow_start(struct scene *s, struct daemon *source, struct daemon *sink,
                        const char *what)
{
    static const struct geometry g = {
        .plane_count = 2, .page_bytes = 4096, .page_count = FLOW_PAGES};
    struct flow *f = calloc(1, sizeof *f);
    CHECK(f != NULL, "no memory");
    f->scene = s;
    f->what = what;
    f->source = engine_start(source, &g, FLOW_ROOMS_MAX);
    f->sink = engine_start(sink, &g, FLOW_ROOMS_MAX);
    CHECK_IS(pthread_create(&f->thread, NULL, run, f), 0, "thread");
    return f;
}

uint64_t flow_count(const struct flow *f)
{
    return atomic_load_explicit(&f->count, memory_order_relaxed);
}

void flow_stop(struct flow *f)
{
    atomic_store_explicit(&f->is_ending, true, memory_order_relaxed);
    pthread_join(f->thread, NULL);
    engine_stop(f->source);
    engine_stop(f->sink);
    free(f);
}

/* The engine that makes a whole round by one system call. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "sidecar/host/uring.h"
#include "sidecar/transport/tcp_engine.h"

/* Lanes of one round. More lanes take several; each costs the buffers of a slot (tcp_lane.h). */
#define BATCH_MAX 32u

struct uring_engine {
    struct kvf_tcp_engine engine;
    bool is_one_plain;
    struct kvf_uring *uring; /* NULL once the kernel took no more calls */
    int32_t results[BATCH_MAX];
};

static struct uring_engine *uring_of(struct kvf_tcp_engine *engine)
{
    return (struct uring_engine *)(void *)engine;
}

static void give_up(struct uring_engine *e)
{
    kvf_uring_close(e->uring);
    e->uring = NULL;
    e->engine.name = "sockets";
}

static void uring_run(struct kvf_tcp_engine *engine, struct kvf_tcp_call *const *calls,
                      uint32_t count)
{
    struct uring_engine *e = uring_of(engine);
    assert(count <= BATCH_MAX);
    if (count == 1 && e->is_one_plain) {
        kvf_tcp_call_plainly(calls[0]);
        engine->calls++;
        engine->enters++;
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        e->results[i] = KVF_URING_NOT_MADE;
        if (e->uring != NULL && calls[i]->is_send) {
            kvf_uring_send(e->uring, calls[i]->fd, &calls[i]->msg);
        } else if (e->uring != NULL) {
            kvf_uring_receive(e->uring, calls[i]->fd, &calls[i]->msg);
        }
    }
    if (e->uring != NULL) {
        uint64_t before = kvf_uring_enters(e->uring);
        int rc = kvf_uring_run(e->uring, e->results);
        engine->enters += kvf_uring_enters(e->uring) - before;
        if (rc != 0) {
            give_up(e);
        }
    }
    engine->calls += count;
    for (uint32_t i = 0; i < count; i++) {
        calls[i]->result = e->results[i];
        if (e->results[i] == KVF_URING_NOT_MADE || e->results[i] == -EINTR) {
            kvf_tcp_call_plainly(calls[i]);
            engine->enters++;
        }
    }
}

static void uring_close(struct kvf_tcp_engine *engine)
{
    struct uring_engine *e = uring_of(engine);
    if (e->uring != NULL) {
        kvf_uring_close(e->uring);
    }
    free(e);
}

static const struct kvf_tcp_engine_ops uring_ops = {.run = uring_run, .close = uring_close};

int kvf_tcp_uring_create(bool is_one_plain, struct kvf_tcp_engine **ret_engine)
{
    struct uring_engine *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return -ENOMEM;
    }
    int rc = kvf_uring_create(BATCH_MAX, &e->uring);
    if (rc != 0) {
        free(e);
        return rc;
    }
    e->is_one_plain = is_one_plain;
    e->engine.ops = &uring_ops;
    e->engine.name = "uring";
    e->engine.batch_max = BATCH_MAX;
    *ret_engine = &e->engine;
    return 0;
}

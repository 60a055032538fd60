/* The engine of plain system calls. */
#include <errno.h>
#include <stdlib.h>

#include "sidecar/transport/tcp_engine.h"

void kvf_tcp_call_plainly(struct kvf_tcp_call *call)
{
    ssize_t n;
    do {
        n = call->is_send ? sendmsg(call->fd, &call->msg, MSG_DONTWAIT | MSG_NOSIGNAL)
                          : recvmsg(call->fd, &call->msg, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    call->result = n < 0 ? -errno : n;
}

static void sockets_run(struct kvf_tcp_engine *engine, struct kvf_tcp_call *const *calls,
                        uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        kvf_tcp_call_plainly(calls[i]);
    }
    engine->calls += count;
    engine->enters += count;
}

static void sockets_close(struct kvf_tcp_engine *engine)
{
    free(engine);
}

static const struct kvf_tcp_engine_ops sockets_ops = {.run = sockets_run,
                                                      .close = sockets_close};

int kvf_tcp_sockets_create(struct kvf_tcp_engine **ret_engine)
{
    struct kvf_tcp_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return -ENOMEM;
    }
    engine->ops = &sockets_ops;
    engine->name = "sockets";
    engine->batch_max = 1;
    *ret_engine = engine;
    return 0;
}

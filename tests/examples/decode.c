#include <errno.h>
#include <kvfence.h>
#include <stdio.h>
#include <stdlib.h>

/* decode ADDR:PORT KEY: receives three KV pages of 64 KiB from the prefill daemon there. */
int main(int argc, char **argv)
{
    const int32_t pages[] = {3, 5, 7};
    const char *writers[] = {argc > 1 ? argv[1] : "127.0.0.1:7000"};
    uint64_t key =
        argc > 2 ? strtoull(argv[2], NULL, 0) : 1; /* unique per request and attempt */
    struct kvf_plane plane = {.off = 0, .stride = 65536, .page_bytes = 65536};
    struct kvf_attach_opts attach = {.size_bytes = sizeof attach, .timeout_ms = 5000};
    struct kvf_pool_opts mem = {.size_bytes = sizeof mem, .numa_node = -1, .bytes = 1 << 20};
    struct kvf_region_opts region = {.size_bytes = sizeof region, .memory_bytes = 1 << 20};
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink, .label = 17, .key = key};
    struct kvf_room_info info = {.size_bytes = sizeof info};
    kvf_client *client = NULL;
    kvf_pool *pool = NULL;
    kvf_room room = 0;
    attach.daemon_name = "decode";
    int rc = kvf_attach(&attach, &client);
    rc = rc != 0 ? rc : kvf_pool_create(&mem, &pool);
    region.fd = rc == 0 ? kvf_pool_fd(pool) : -1;
    region.page_count = 16, region.planes = &plane, region.plane_count = 1;
    rc = rc != 0 ? rc : kvf_region_register(client, &region, &sink.region);
    sink.pages = pages, sink.page_count = 3, sink.writers = writers, sink.writer_count = 1;
    rc = rc != 0 ? rc : kvf_open_sink(client, &sink, &room); /* from here the pages are lent */
    if (rc == 0 && kvf_wait(client, room, 2000) == -ETIMEDOUT) {
        kvf_abort(client, room, 0); /* the request is over; its pages are not free yet */
    }
    while (rc == 0 && (rc = kvf_drained(client, room)) == -EAGAIN) {
        rc = 0; /* no proof yet; a dead daemon becomes one, and the wait notices it */
        (void)kvf_wait(client, room, 1000);
    }
    if (rc > 0 && kvf_room_info(client, room, &info) == 0) { /* the pages are ours again */
        printf("decode: %s, proof %s: %s\n", kvf_state_name(info.state), kvf_proof_name(rc),
               info.reason != 0 ? kvf_strerror((int)info.reason) : "the pages are here");
    } else {
        printf("decode: %s\n", kvf_strerror(rc));
    }
    int is_received = rc > 0 && kvf_visible(client, room) == 1;
    kvf_detach(client, 1000, NULL);
    kvf_pool_destroy(pool);
    return is_received ? 0 : 1;
}

#include <errno.h>
#include <kvfence.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* prefill KEY: sends the three pages that decode waits for: same label, same key. */
int main(int argc, char **argv)
{
    uint64_t key = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    const int32_t pages[] = {0, 1, 2};
    struct kvf_plane plane = {.off = 0, .stride = 65536, .page_bytes = 65536};
    struct kvf_attach_opts attach = {.size_bytes = sizeof attach, .timeout_ms = 5000};
    struct kvf_pool_opts mem = {.size_bytes = sizeof mem, .numa_node = -1, .bytes = 1 << 20};
    struct kvf_region_opts region = {.size_bytes = sizeof region, .memory_bytes = 1 << 20};
    struct kvf_source_opts source = {.size_bytes = sizeof source, .label = 17, .key = key};
    struct kvf_piece_opts piece = {.size_bytes = sizeof piece, .flags = KVF_LAST_PIECE};
    struct kvf_room_info info = {.size_bytes = sizeof info};
    kvf_client *client = NULL;
    kvf_pool *pool = NULL;
    kvf_room room = 0;
    attach.daemon_name = "prefill";
    int rc = kvf_attach(&attach, &client);
    rc = rc != 0 ? rc : kvf_pool_create(&mem, &pool);
    region.fd = rc == 0 ? kvf_pool_fd(pool) : -1;
    region.page_count = 16, region.planes = &plane, region.plane_count = 1;
    rc = rc != 0 ? rc : kvf_region_register(client, &region, &source.region);
    rc = rc != 0 ? rc : kvf_open_source(client, &source, &room);
    if (rc == 0) {
        memset(kvf_pool_addr(pool), 0x5a, 3 * 65536); /* the KV that was computed */
    }
    piece.region = source.region, piece.pages = pages, piece.page_count = 3;
    rc = rc != 0 ? rc : kvf_submit(client, room, &piece); /* from here the pages are lent */
    if (rc == 0 && (rc = kvf_wait(client, room, 20000)) == -ETIMEDOUT) {
        kvf_abort(client, room, 0); /* nobody took them; the detach below waits for the proof */
    }
    if (rc >= 0 && kvf_room_info(client, room, &info) == 0) {
        printf("prefill: %s, proof %s: %s\n", kvf_state_name(info.state),
               kvf_proof_name(info.proof),
               info.reason != 0 ? kvf_strerror((int)info.reason) : "the pages were sent");
    } else {
        printf("prefill: %s\n", kvf_strerror(rc));
    }
    kvf_detach(client, 1000, NULL);
    kvf_pool_destroy(pool);
    return rc == KVF_SUCCESS ? 0 : 1;
}

/* An engine that leaves a quarantine behind: it opens a sink room, takes a lease for a device that nobody can ask,
 * says so, and waits to be killed. usage: lease_holder WRITER_ADDR:PORT (KVFENCE_SOCKET names its daemon) */
#include <kvfence.h>
#include <stdio.h>
#include <unistd.h>

#define PAGES 5
#define PAGE_BYTES 4096u

int main(int argc, char **argv)
{
    const int32_t pages[PAGES] = {0, 1, 2, 3, 4};
    const char *writers[] = {argc > 1 ? argv[1] : "127.0.0.1:9"};
    struct kvf_plane plane = {.off = 0, .stride = PAGE_BYTES, .page_bytes = PAGE_BYTES};
    struct kvf_attach_opts attach = {.size_bytes = sizeof attach, .timeout_ms = 10000};
    struct kvf_pool_opts mem = {.size_bytes = sizeof mem, .numa_node = -1, .bytes = 65536};
    struct kvf_region_opts region = {.size_bytes = sizeof region, .memory_bytes = 65536};
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink, .label = 1, .key = 77};
    kvf_client *client = NULL;
    kvf_pool *pool = NULL;
    kvf_room room = 0;
    int rc = kvf_attach(&attach, &client);

    rc = rc != 0 ? rc : kvf_pool_create(&mem, &pool);
    region.fd = rc == 0 ? kvf_pool_fd(pool) : -1;
    region.page_count = 16;
    region.planes = &plane;
    region.plane_count = 1;
    rc = rc != 0 ? rc : kvf_region_register(client, &region, &sink.region);
    sink.pages = pages;
    sink.page_count = PAGES;
    sink.writers = writers;
    sink.writer_count = 1;
    rc = rc != 0 ? rc : kvf_open_sink(client, &sink, &room);
    rc = rc != 0 ? rc : kvf_lease(client, room, KVF_KIND_GPU);
    if (rc != 0) {
        printf("lease_holder: %s\n", kvf_strerror(rc));
        return 1;
    }
    puts("held");
    (void)fflush(stdout);
    for (;;) {
        (void)pause();
    }
}

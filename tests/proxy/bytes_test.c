/* What a proxy does to bytes: none is lost, added or moved, whatever the writes look like; only corrupt changes
 * one, and only where it was told to. */
#include <criterion/criterion.h>

#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/proxy/test_rig.h"

#define LIMIT_MS 10000
#define STREAM_BYTES (3u << 20)

struct sender {
    int fd;
    const unsigned char *bytes;
    size_t count;
};

static void *send_all(void *ctx)
{
    const struct sender *s = ctx;
    rig_write(s->fd, s->bytes, s->count);
    return NULL;
}

/* Sends from one end to the other; what came must be what went. */
static void expect_same(int from, int to, size_t count, uint64_t seed)
{
    static unsigned char out[STREAM_BYTES];
    static unsigned char in[STREAM_BYTES];
    struct sender sender = {from, out, count};
    pthread_t thread;
    rig_fill(out, count, seed);
    memset(in, 0, count);
    cr_assert_eq(pthread_create(&thread, NULL, send_all, &sender), 0);
    size_t got = rig_read(to, in, count, LIMIT_MS);
    pthread_join(thread, NULL);
    cr_assert_eq(got, count);
    cr_assert_eq(memcmp(in, out, count), 0);
}

Test(bytes, pass_both_ways_as_they_are)
{
    struct rig rig;
    rig_start(&rig, NULL, 1);
    struct pair pair = rig_connect(&rig, FIRST_NOTHING, 0);
    expect_same(pair.client, pair.server, STREAM_BYTES, 11);
    expect_same(pair.server, pair.client, STREAM_BYTES, 12);
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "forth"), STREAM_BYTES);
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "back"), STREAM_BYTES);
    pair_close(&pair);
    rig_stop(&rig);
}

/* The sizes in which 400 bytes arrive, written at once and read one by one as they come. */
static size_t arrival_sizes(struct rig *rig, uint32_t *ret_sizes, size_t max)
{
    static unsigned char bytes[400];
    struct pair pair = rig_connect(rig, FIRST_NOTHING, 0);
    size_t count = 0;
    size_t got = 0;
    rig_tell(rig,
             "rate:1"); /* half a millisecond between two writes: they do not run together */
    rig_write(pair.client, bytes, sizeof bytes);
    while (got < sizeof bytes && count < max) {
        ssize_t n = recv(pair.server, bytes, sizeof bytes, 0);
        cr_assert_gt(n, 0);
        ret_sizes[count++] = (uint32_t)n;
        got += (size_t)n;
    }
    pair_close(&pair);
    return count;
}

Test(bytes, split_writes_are_small_and_lose_nothing)
{
    uint32_t sizes[400];
    struct rig rig;
    rig_start(&rig, "split:7", 5);
    size_t count = arrival_sizes(&rig, sizes, 400);
    cr_assert_geq(count, 30u, "400 bytes came in %zu pieces", count);
    rig_tell(&rig, "clear");
    rig_tell(&rig, "split:1000");
    struct pair pair = rig_connect(&rig, FIRST_NOTHING, 0);
    expect_same(pair.client, pair.server, STREAM_BYTES / 8u, 13);
    expect_same(pair.server, pair.client, STREAM_BYTES / 8u, 14);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(bytes, a_delay_holds_each_byte_that_long_and_keeps_their_order)
{
    static unsigned char byte[1] = {9};
    struct rig rig;
    rig_start(&rig, "delay:60", 1);
    struct pair pair = rig_connect(&rig, FIRST_NOTHING, 0);
    uint64_t start_ms = rig_now_ms();
    rig_write(pair.client, byte, 1);
    cr_assert_eq(rig_read(pair.server, byte, 1, LIMIT_MS), 1u);
    cr_assert_geq(rig_now_ms() - start_ms, 59u, "it came after %llu ms",
                  (unsigned long long)(rig_now_ms() - start_ms));
    start_ms = rig_now_ms();
    rig_write(pair.server, byte, 1);
    cr_assert_eq(rig_read(pair.client, byte, 1, LIMIT_MS), 1u);
    cr_assert_geq(rig_now_ms() - start_ms, 59u);
    expect_same(pair.client, pair.server, STREAM_BYTES, 15);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(bytes, a_rate_is_kept)
{
    static unsigned char bytes[600000];
    struct rig rig;
    rig_start(&rig, "rate:2", 1);
    struct pair pair = rig_connect(&rig, FIRST_NOTHING, 0);
    uint64_t start_ms = rig_now_ms();
    expect_same(pair.client, pair.server, sizeof bytes, 16);
    uint64_t took_ms = rig_now_ms() - start_ms;
    cr_assert_geq(took_ms, 285u, "600 kB at 2 MB/s took %llu ms", (unsigned long long)took_ms);
    pair_close(&pair);
    rig_stop(&rig);
}

Test(bytes, corrupt_flips_one_bit_of_the_byte_it_names_in_one_direction)
{
    static unsigned char out[5000];
    static unsigned char in[5000];
    struct rig rig;
    rig_start(&rig, "corrupt@1234/back", 1);
    struct pair pair = rig_connect(&rig, FIRST_NOTHING, 0);
    expect_same(pair.client, pair.server, sizeof out, 17);
    rig_fill(out, sizeof out, 18);
    rig_write(pair.server, out, sizeof out);
    cr_assert_eq(rig_read(pair.client, in, sizeof in, LIMIT_MS), sizeof in);
    cr_assert_eq(in[1234] ^ out[1234], 0x40);
    in[1234] = out[1234];
    cr_assert_eq(memcmp(in, out, sizeof in), 0, "another byte was changed too");
    expect_same(pair.server, pair.client, sizeof out, 19); /* once is once */
    cr_assert_eq(kvf_proxy_count(&rig.proxy, "struck"), 1u);
    pair_close(&pair);
    rig_stop(&rig);
}

/* Everything that is wrong has its own code and sentence, leaks nothing, and no other room notices: each
 * case runs beside two engines that transfer all the time. What only a client without the library can do
 * is in bad_bytes.c. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/engine.h"

#define WAIT_MS 10000u

static const struct geometry geometry = SIXTEEN_BY_FOUR;

static struct daemon *prefill;
static struct daemon *decode;
static struct engine *from;
static struct engine *to;
static struct bystander *bystander;

static void start_with(const char *option, const char *value)
{
    prefill = daemon_start("prefill", option, value, NULL);
    decode = daemon_start("decode", option, value, NULL);
    bystander = bystander_start(prefill, decode);
    from = engine_start(prefill, &geometry, 0);
    to = engine_start(decode, &geometry, 0);
}

static void start(void)
{
    start_with("--lanes", "1");
}

static void stop(void)
{
    bystander_stop(bystander, 5, NULL);
    engine_stop(from);
    engine_stop(to);
    daemons_stop();
}

/* A refusal of the library: this code, and a sentence for it. */
#define REFUSED(call, code)                                                                    \
    do {                                                                                       \
        CHECK_CODE((call), -(code), #call);                                                    \
        CHECK(strlen(kvf_strerror(-(code))) > 20, "no sentence for %d", (code));               \
    } while (0)

/* ---- handles ---------------------------------------------------------------------------------------- */

static void unknown_room(void)
{
    start();
    const int32_t page = 1;
    struct kvf_room_info info = {.size_bytes = sizeof info};
    const kvf_room unknown[] = {0, 1, UINT64_MAX, UINT64_C(5) << 24 | 7,
                                UINT64_C(1) << 24 | 4000};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        REFUSED(kvf_poll(to->client, unknown[i]), KVF_E_UNKNOWN_ROOM);
        REFUSED(kvf_drained(to->client, unknown[i]), KVF_E_UNKNOWN_ROOM);
        REFUSED(kvf_abort(to->client, unknown[i], 0), KVF_E_UNKNOWN_ROOM);
        REFUSED(kvf_release(to->client, unknown[i]), KVF_E_UNKNOWN_ROOM);
        REFUSED(kvf_room_info(to->client, unknown[i], &info), KVF_E_UNKNOWN_ROOM);
        REFUSED(kvf_wait(to->client, unknown[i], 10), KVF_E_UNKNOWN_ROOM);
        REFUSED(kvf_lease(to->client, unknown[i], KVF_KIND_CPU), KVF_E_UNKNOWN_ROOM);
        REFUSED(engine_try_submit(to, unknown[i], &page, 1, 0, true), KVF_E_UNKNOWN_ROOM);
    }
    stop();
}

static void stale_room(void)
{
    start();
    const int32_t page = 1;
    struct kvf_room_info info = {.size_bytes = sizeof info};
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 4, prefill);
    (void)room_end(to, in, WAIT_MS);
    for (int round = 0; round < 2; round++) {
        REFUSED(kvf_poll(to->client, in), KVF_E_STALE_ROOM);
        REFUSED(kvf_drained(to->client, in), KVF_E_STALE_ROOM);
        REFUSED(kvf_abort(to->client, in, 0), KVF_E_STALE_ROOM);
        REFUSED(kvf_release(to->client, in), KVF_E_STALE_ROOM);
        REFUSED(kvf_room_info(to->client, in, &info), KVF_E_STALE_ROOM);
        REFUSED(kvf_lease(to->client, in, KVF_KIND_CPU), KVF_E_STALE_ROOM);
        REFUSED(engine_try_submit(to, in, &page, 1, 0, true), KVF_E_STALE_ROOM);
        /* Again when the slot serves a newer room: it is not touched by the old handle. */
        if (round == 0) {
            for (int i = 0; i < 1500; i++) {
                kvf_room next = engine_sink(to, key_next(), 0, 4, prefill);
                (void)room_end(to, next, WAIT_MS);
            }
        }
    }
    stop();
}

/* ---- pages ------------------------------------------------------------------------------------------- */

static void pages(void)
{
    start();
    kvf_room room = 0;
    kvf_room out = engine_source(from, key_next());
    const int32_t high[] = {3, 1024};
    const int32_t low[] = {-1};
    const int32_t twice[] = {4, 5, 6, 5};
    const int64_t wide[] = {INT64_C(1) << 32};
    const int64_t wide_low[] = {INT64_MIN};
    const char *writers[] = {prefill->listen};
    struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                 .region = to->region,
                                 .pages64 = wide,
                                 .page_count = 1,
                                 .writers = writers,
                                 .writer_count = 1};
    REFUSED(engine_try_sink(to, 1, high, 2, prefill->listen, &room), KVF_E_PAGE_RANGE);
    REFUSED(engine_try_sink(to, 1, low, 1, prefill->listen, &room), KVF_E_PAGE_RANGE);
    REFUSED(kvf_open_sink(to->client, &opts, &room), KVF_E_PAGE_RANGE);
    opts.pages64 = wide_low;
    REFUSED(kvf_open_sink(to->client, &opts, &room), KVF_E_PAGE_RANGE);
    REFUSED(engine_try_submit(from, out, high, 2, 0, false), KVF_E_PAGE_RANGE);
    REFUSED(engine_try_submit(from, out, low, 1, 0, false), KVF_E_PAGE_RANGE);
    REFUSED(kvf_pages_are_idle(to->client, to->region, high, 2, NULL), KVF_E_PAGE_RANGE);
    REFUSED(kvf_pages_are_idle64(to->client, to->region, wide, 1, NULL), KVF_E_PAGE_RANGE);
    REFUSED(kvf_page_lender(to->client, to->region, 1024, &room), KVF_E_PAGE_RANGE);
    REFUSED(engine_try_sink(to, 1, twice, 4, prefill->listen, &room), KVF_E_PAGE_TWICE);
    REFUSED(engine_try_sink(to, 1, twice, 0, prefill->listen, &room), KVF_E_NO_PAGES);
    REFUSED(engine_try_submit(from, out, twice, 0, 0, true), KVF_E_NO_PAGES);
    CHECK(room == 0, "a refusal touched its output");
    CHECK_IS(kvf_poll(from->client, out), KVF_BOOTSTRAPPING, "a refused piece changes nothing");
    kvf_room in = engine_sink(to, key_next(), 4, 2, prefill);
    const int32_t lent[] = {2, 5};
    REFUSED(engine_try_sink(to, 1, lent, 2, prefill->listen, &room), KVF_E_PAGE_LENT);
    CHECK_CODE(kvf_page_lender(to->client, to->region, 5, &room), 0, "lender");
    CHECK(room == in, "the lender is not the room that has the page");
    (void)room_end(to, in, WAIT_MS);
    (void)room_end(from, out, WAIT_MS);
    stop();
}

/* ---- regions ----------------------------------------------------------------------------------------- */

static int register_with(kvf_client *client, int fd, uint64_t bytes, uint64_t page_count,
                         const struct kvf_plane *planes, uint32_t plane_count,
                         uint32_t *ret_region)
{
    struct kvf_region_opts opts = {.size_bytes = sizeof opts,
                                   .fd = fd,
                                   .memory_bytes = bytes,
                                   .page_count = page_count,
                                   .planes = planes,
                                   .plane_count = plane_count};
    return kvf_region_register(client, &opts, ret_region);
}

/* Registering touches nothing that the engine did not have: a sparse file stays sparse. A page that no
 * frame can carry is refused before a transfer meets it. */
static void unusual_memory(void)
{
    start();
    const uint64_t bytes = UINT64_C(256) << 20;
    const struct kvf_plane plane = {.stride = 4096, .page_bytes = 4096};
    const struct kvf_plane wide = {.stride = bytes, .page_bytes = bytes};
    int fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
              fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
          "sparse memory");
    uint32_t region = 77;
    REFUSED(register_with(to->client, fd, bytes, 1, &wide, 1, &region), KVF_E_MEMORY_RANGE);
    CHECK_CODE(register_with(to->client, fd, bytes, 16, &plane, 1, &region), 0, "register");
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512u < bytes / 16u,
          "registering allocated %llu of %llu bytes", (unsigned long long)st.st_blocks * 512u,
          (unsigned long long)bytes);
    CHECK_CODE(kvf_region_unregister(to->client, region), 0, "unregister");
    close(fd);
    stop();
}

static void regions(void)
{
    start();
    const struct kvf_plane plane = {.stride = 4096, .page_bytes = 4096};
    const struct kvf_plane overlap[] = {{.stride = 8192, .page_bytes = 8192},
                                        {.off = 4096, .stride = 8192, .page_bytes = 4096}};
    const struct kvf_plane far = {.off = UINT64_MAX - 4095, .stride = 4096, .page_bytes = 4096};
    const struct kvf_plane narrow = {.stride = 100, .page_bytes = 4096};
    uint32_t region = 77;
    kvf_client *other = client_attach(decode, 0);
    kvf_room room = 0;
    const int32_t page = 0;
    /* Another client's number names nothing here. */
    struct engine stranger = {
        .daemon = decode, .client = other, .region = to->region, .geometry = geometry};
    REFUSED(engine_try_sink(&stranger, 1, &page, 1, prefill->listen, &room),
            KVF_E_UNKNOWN_REGION);
    REFUSED(kvf_region_unregister(other, to->region), KVF_E_UNKNOWN_REGION);
    REFUSED(kvf_pages_are_idle(other, to->region, &page, 1, NULL), KVF_E_UNKNOWN_REGION);
    /* Memory that could shrink, or is no memfd at all. */
    int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    kvf_pool *pool = NULL;
    CHECK(fd >= 0 && ftruncate(fd, 65536) == 0, "memfd");
    REFUSED(register_with(other, fd, 65536, 16, &plane, 1, &region), KVF_E_NO_SEAL);
    REFUSED(kvf_pool_adopt(fd, 65536, &pool), KVF_E_NO_SEAL);
    close(fd);
    pool = pool_make(65536);
    fd = kvf_pool_fd(pool);
    REFUSED(register_with(other, fd, 65536, 17, &plane, 1, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 131072, 16, &plane, 1, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 65536, 0, &plane, 1, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 65536, 16, &plane, 0, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 65536, 4, overlap, 2, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 65536, 16, &far, 1, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 65536, 16, &narrow, 1, &region), KVF_E_MEMORY_RANGE);
    REFUSED(register_with(other, fd, 65536, UINT64_C(1) << 27, &plane, 1, &region),
            KVF_E_MEMORY_RANGE);
    CHECK_IS(region, 77, "a refusal touched its output");
    /* One memory, one live registration. */
    CHECK_CODE(register_with(other, fd, 65536, 16, &plane, 1, &region), 0, "register");
    uint32_t second = 0;
    REFUSED(register_with(to->client, fd, 65536, 16, &plane, 1, &second),
            KVF_E_MEMORY_REGISTERED);
    REFUSED(register_with(other, fd, 65536, 16, &plane, 1, &second), KVF_E_MEMORY_REGISTERED);
    CHECK_CODE(kvf_region_unregister(other, region), 0, "unregister");
    REFUSED(kvf_region_unregister(other, region), KVF_E_UNKNOWN_REGION);
    CHECK_CODE(register_with(to->client, fd, 65536, 16, &plane, 1, &second), 0,
               "register once it is free");
    CHECK_CODE(kvf_region_unregister(to->client, second), 0, "unregister");
    CHECK_CODE(kvf_detach(other, 5000, NULL), 0, "detach");
    kvf_pool_destroy(pool);
    stop();
}

static void busy_region(void)
{
    start();
    kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
    kvf_room out = engine_source(from, key_next());
    engine_submit(from, out, 0, 4, 0, false);
    REFUSED(kvf_region_unregister(to->client, to->region), KVF_E_REGION_BUSY);
    REFUSED(kvf_region_unregister(from->client, from->region), KVF_E_REGION_BUSY);
    CHECK_IS(kvf_poll(to->client, in) >= 0, 1, "the room after a refused unregister");
    (void)room_end(to, in, WAIT_MS);
    (void)room_end(from, out, WAIT_MS);
    transfer_once(from, to, key_next(), 0, 20); /* the region is as good as before */
    stop();
}

static void geometry_differs(void)
{
    static const struct geometry others[] = {
        {.plane_count = 15, .page_bytes = 4096, .page_count = 64},
        {.plane_count = 16, .page_bytes = 8192, .page_count = 64}};
    start();
    for (size_t i = 0; i < 2; i++) {
        struct engine *other = engine_start(decode, &others[i], 0);
        uint64_t key = key_next();
        kvf_room in = engine_sink(other, key, 0, 8, prefill);
        kvf_room out = engine_source(from, key);
        /* The pieces are refused once the room has failed for it. */
        int32_t pages[8];
        pages_count_up(pages, 8, 0);
        int rc = engine_try_submit(from, out, pages, 8, 0, true);
        CHECK(rc == 0 || rc == -KVF_E_GEOMETRY, "submit: %d %s", rc, kvf_code_name_of(rc));
        room_expect_reason(other, in, KVF_E_GEOMETRY, WAIT_MS);
        room_expect_proof(other, in, KVF_NEVER_POSTED);
        CHECK_IS(room_info(other, in).placed_bytes, 0, "placed bytes");
        room_expect_reason(from, out, KVF_E_GEOMETRY, WAIT_MS);
        room_release(other, in);
        room_release(from, out);
        engine_stop(other);
    }
    stop();
}

/* ---- too many ----------------------------------------------------------------------------------------- */

static void too_many(void)
{
    start();
    kvf_client *client = client_attach(decode, 4);
    const struct geometry g = {.plane_count = 1, .page_bytes = 4096, .page_count = 16};
    kvf_pool *pools[17];
    uint32_t handles[17];
    for (int i = 0; i < 17; i++) {
        pools[i] = pool_make(65536);
        if (i < 16) {
            handles[i] = region_register(client, pools[i], &g);
        }
    }
    const struct kvf_plane plane = {.stride = 4096, .page_bytes = 4096};
    REFUSED(register_with(client, kvf_pool_fd(pools[16]), 65536, 16, &plane, 1, &handles[16]),
            KVF_E_REGIONS_FULL);
    struct engine small = {
        .daemon = decode, .client = client, .region = handles[3], .geometry = g};
    kvf_room rooms[4];
    kvf_room fifth = 0;
    const int32_t page = 9;
    for (int i = 0; i < 4; i++) {
        rooms[i] = engine_sink(&small, key_next(), i, 1, prefill);
    }
    REFUSED(engine_try_sink(&small, 1, &page, 1, prefill->listen, &fifth), KVF_E_ROOMS_FULL);
    CHECK_IS(kvf_pages_are_idle(client, small.region, &page, 1, NULL), 1,
             "page of the refused room");
    for (int i = 0; i < 4; i++) {
        (void)room_end(&small, rooms[i], WAIT_MS);
    }
    (void)room_end(&small, engine_sink(&small, key_next(), 9, 1, prefill), WAIT_MS);
    for (int i = 0; i < 17; i++) {
        if (i < 16) {
            CHECK_CODE(kvf_region_unregister(client, handles[i]), 0, "unregister");
        }
        kvf_pool_destroy(pools[i]);
    }
    CHECK_CODE(kvf_detach(client, 5000, NULL), 0, "detach");
    stop();
}

static void too_many_clients(void)
{
    start_with("--clients", "3");
    struct kvf_attach_opts opts = {
        .size_bytes = sizeof opts, .timeout_ms = 500, .socket_path = decode->socket_path};
    kvf_client *third = client_attach(decode, 4); /* beside the bystander's and ours */
    kvf_client *fourth = NULL;
    REFUSED(kvf_attach(&opts, &fourth), KVF_E_CLIENTS_FULL);
    CHECK(fourth == NULL, "a refusal touched its output");
    CHECK_CODE(kvf_detach(third, 5000, NULL), 0, "detach");
    CHECK_CODE(kvf_attach(&opts, &fourth), 0, "attach once one has left");
    CHECK_CODE(kvf_detach(fourth, 5000, NULL), 0, "detach");
    stop();
}

static void too_many_rooms_for_the_daemon(void)
{
    prefill = daemon_start("prefill", "--rooms", "100", NULL);
    struct kvf_attach_opts opts = {.size_bytes = sizeof opts,
                                   .timeout_ms = 500,
                                   .socket_path = prefill->socket_path,
                                   .rooms_max = 101};
    kvf_client *client = NULL;
    REFUSED(kvf_attach(&opts, &client), KVF_E_LIMIT_RANGE);
    opts.rooms_max = 100;
    CHECK_CODE(kvf_attach(&opts, &client), 0, "attach at the limit");
    CHECK_CODE(kvf_detach(client, 5000, NULL), 0, "detach");
    daemons_stop();
}

/* ---- peers --------------------------------------------------------------------------------------------- */

static void addresses(void)
{
    start_with("--connect-ms", "300");
    const int32_t page = 3;
    kvf_room room = 0;
    const char *bad[] = {"",
                         "nonsense",
                         "127.0.0.1",
                         "127.0.0.1:",
                         ":80",
                         "127.0.0.1:99999",
                         "127.0.0.1:x",
                         "[::1",
                         "no-such-host.invalid:7000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int rc = engine_try_sink(to, 1, &page, 1, bad[i], &room);
        CHECK(rc == -KVF_E_PEER_UNRESOLVED, "\"%s\": %d %s", bad[i], rc, kvf_code_name_of(rc));
    }
    CHECK(strlen(kvf_strerror(KVF_E_PEER_UNRESOLVED)) > 20, "no sentence");
    CHECK_IS(kvf_pages_are_idle(to->client, to->region, &page, 1, NULL), 1, "ledger");
    /* Nobody listens there. */
    uint64_t start_ns = now_ns();
    kvf_room in = engine_sink_pages(to, key_next(), &page, 1, "127.0.0.1:1");
    room_expect_reason(to, in, KVF_E_PEER_UNREACHABLE, WAIT_MS);
    room_expect_proof(to, in, KVF_NEVER_POSTED);
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    CHECK(took_ms < 2000, "%llu ms until the room failed; the deadline is 300",
          (unsigned long long)took_ms);
    room_release(to, in);
    stop();
}

/* A listener whose queue is full: the kernel drops what knocks, as a cut cable would. */
static void never_answers(void)
{
    start_with("--connect-ms", "300");
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_bytes = sizeof addr;
    char text[64];
    int filler[4];
    const int32_t page = 3;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&addr, sizeof addr) == 0 &&
              listen(listener, 0) == 0 &&
              getsockname(listener, (struct sockaddr *)&addr, &addr_bytes) == 0,
          "listener: %s", strerror(errno));
    for (int i = 0; i < 4; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(filler[i], (struct sockaddr *)&addr, sizeof addr);
    }
    snprintf(text, sizeof text, "127.0.0.1:%u", (unsigned)ntohs(addr.sin_port));
    uint64_t start_ns = now_ns();
    kvf_room in = engine_sink_pages(to, key_next(), &page, 1, text);
    room_expect_reason(to, in, KVF_E_PEER_UNREACHABLE, 5000);
    room_expect_proof(to, in, KVF_NEVER_POSTED);
    uint64_t took_ms = (now_ns() - start_ns) / 1000000u;
    CHECK(took_ms < 2000, "%llu ms until the room failed; the deadline is 300",
          (unsigned long long)took_ms);
    room_release(to, in);
    /* A room aborted while the daemon still knocks. */
    in = engine_sink_pages(to, key_next(), &page, 1, text);
    (void)room_end(to, in, WAIT_MS);
    for (int i = 0; i < 4; i++) {
        close(filler[i]);
    }
    stop();
    close(listener);
}

static void nobody_opens(void)
{
    start_with("--bootstrap-ms", "300");
    kvf_room in = engine_sink(to, key_next(), 0, 4, prefill);
    kvf_room out = engine_source(from, key_next());
    engine_submit(from, out, 0, 4, 0, true);
    room_expect_reason(to, in, KVF_E_BOOTSTRAP_TIMEOUT, WAIT_MS);
    room_expect_reason(from, out, KVF_E_BOOTSTRAP_TIMEOUT, WAIT_MS);
    int proof = kvf_drained(to->client, in);
    CHECK(proof == KVF_NEVER_POSTED || proof == KVF_REVOKED, "drained by %s",
          kvf_proof_name(proof));
    room_expect_proof(from, out, KVF_NEVER_POSTED);
    room_release(to, in);
    room_release(from, out);
    stop();
}

static void peer_counts(void)
{
    start();
    const int32_t list[] = {0, 1, 2, 3};
    const char *writers[17];
    for (int i = 0; i < 17; i++) {
        writers[i] = prefill->listen;
    }
    static const struct {
        uint32_t writers;
        bool has_ranges;
        uint32_t starts[2];
        uint32_t counts[2];
    } bad[] = {
        {0, false, {0, 0}, {0, 0}}, {17, false, {0, 0}, {0, 0}},
        {2, false, {0, 0}, {0, 0}}, {2, true, {0, 1}, {2, 3}}, /* overlap */
        {2, true, {0, 3}, {2, 1}},                             /* a hole */
        {2, true, {0, 2}, {2, 3}},                             /* beyond */
        {2, true, {0, 4}, {4, 0}},                             /* nothing for one */
        {1, true, {0, 0}, {3, 0}},                             /* short */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvf_room room = 0;
        struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                     .region = to->region,
                                     .pages = list,
                                     .page_count = 4,
                                     .writers = writers,
                                     .writer_count = bad[i].writers,
                                     .range_starts = bad[i].has_ranges ? bad[i].starts : NULL,
                                     .range_counts = bad[i].has_ranges ? bad[i].counts : NULL};
        int rc = kvf_open_sink(to->client, &opts, &room);
        CHECK(rc == -KVF_E_PEER_COUNT, "row %zu: %d %s", i, rc, kvf_code_name_of(rc));
    }
    struct kvf_source_opts source = {
        .size_bytes = sizeof source, .region = from->region, .sink_count = 17};
    kvf_room room = 0;
    REFUSED(kvf_open_source(from->client, &source, &room), KVF_E_PEER_COUNT);
    stop();
}

/* ---- pieces -------------------------------------------------------------------------------------------- */

static void pieces(void)
{
    start();
    int32_t list[20];
    pages_count_up(list, 20, 0);
    uint64_t key = key_next();
    kvf_room in = engine_sink(to, key, 0, 10, prefill);
    kvf_room out = engine_source(from, key);
    REFUSED(engine_try_submit(to, in, list, 4, 0, false), KVF_E_ROLE);
    engine_submit_pages(from, out, list, 4, 0, false);
    REFUSED(engine_try_submit(from, out, list, 4, 3, false), KVF_E_PIECE_OVERLAP);
    REFUSED(engine_try_submit(from, out, list, 1, 0, false), KVF_E_PIECE_OVERLAP);
    room_wait_state(from, out, KVF_TRANSFERRING, WAIT_MS);
    REFUSED(engine_try_submit(from, out, list, 7, 4, true), KVF_E_PIECE_RANGE);
    REFUSED(engine_try_submit(from, out, list, 1, 10, true), KVF_E_PIECE_RANGE);
    REFUSED(engine_try_submit(from, out, list, 1, UINT32_MAX, true), KVF_E_PIECE_RANGE);
    /* A refused piece changes nothing: the right one follows. */
    engine_submit_pages(from, out, list + 4, 6, 4, true);
    int rc = engine_try_submit(from, out, list, 1, 9, true);
    CHECK(rc == -KVF_E_PIECES_CLOSED, "a piece after the last: %d %s", rc,
          kvf_code_name_of(rc));
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, out, KVF_SUCCESS, WAIT_MS);
    room_release(to, in);
    room_release(from, out);
    /* The last piece leaves a hole: a former tenant's bytes would be served. */
    key = key_next();
    in = engine_sink(to, key, 0, 10, prefill);
    out = engine_source(from, key);
    engine_submit_pages(from, out, list, 4, 0, false);
    engine_submit_pages(from, out, list, 5, 5, true);
    room_expect_reason(from, out, KVF_E_PIECE_HOLE, WAIT_MS);
    room_expect(to, in, KVF_FAILED, WAIT_MS);
    CHECK_IS(kvf_visible(to->client, in), 0, "visible with a hole");
    room_release(to, in);
    room_release(from, out);
    /* The same before any grant: too long, and too short. */
    for (uint32_t count = 9; count <= 11; count += 2) {
        key = key_next();
        out = engine_source(from, key);
        engine_submit_pages(from, out, list, count, 0, true);
        in = engine_sink(to, key, 0, 10, prefill);
        room_expect_reason(from, out, count < 10 ? KVF_E_PIECE_HOLE : KVF_E_PIECE_RANGE,
                           WAIT_MS);
        room_expect(to, in, KVF_FAILED, WAIT_MS);
        room_release(to, in);
        room_release(from, out);
    }
    stop();
}

static void keys_and_lengths(void)
{
    start();
    uint64_t key = key_next();
    kvf_room first = engine_source(from, key);
    kvf_room second = engine_source(from, key);
    room_expect_reason(from, second, KVF_E_KEY_IN_USE, WAIT_MS);
    room_expect_proof(from, second, KVF_NEVER_POSTED);
    CHECK_IS(kvf_poll(from->client, first), KVF_BOOTSTRAPPING, "the first of that key");
    kvf_room in = engine_sink(to, key, 0, 4, prefill);
    engine_submit(from, first, 0, 4, 0, true);
    room_expect(to, in, KVF_SUCCESS, WAIT_MS);
    room_expect(from, first, KVF_SUCCESS, WAIT_MS);
    room_release(from, first);
    room_release(from, second);
    room_release(to, in);
    /* Two sinks that grant lists of different lengths. */
    key = key_next();
    struct kvf_source_opts opts = {.size_bytes = sizeof opts,
                                   .region = from->region,
                                   .label = key & 0xffff,
                                   .key = key,
                                   .sink_count = 2};
    kvf_room out = 0;
    CHECK_CODE(kvf_open_source(from->client, &opts, &out), 0, "open_source");
    kvf_room ten = engine_sink(to, key, 0, 10, prefill);
    room_wait_state(to, ten, KVF_WAITING_FOR_INPUT, WAIT_MS);
    struct engine *other = engine_start(prefill, &geometry, 0);
    kvf_room nine = engine_sink(other, key, 0, 9, prefill);
    room_expect_reason(other, nine, KVF_E_GRANT_LENGTH, WAIT_MS);
    room_expect_proof(other, nine, KVF_NEVER_POSTED);
    room_release(other, nine);
    (void)room_end(to, ten, WAIT_MS);
    (void)room_end(from, out, WAIT_MS);
    engine_stop(other);
    stop();
}

/* ---- structs and limits ----------------------------------------------------------------------------------- */

static void structs(void)
{
    start();
    kvf_room room = 0;
    kvf_client *client = NULL;
    kvf_pool *pool = NULL;
    uint32_t group = 0;
    const int32_t page = 0;
    const char *writers[] = {prefill->listen};
    const char *members[] = {prefill->listen, decode->listen};
    struct kvf_sink_opts sink = {.region = to->region,
                                 .pages = &page,
                                 .page_count = 1,
                                 .writers = writers,
                                 .writer_count = 1};
    REFUSED(kvf_open_sink(to->client, &sink, &room), KVF_E_OPTION); /* no size */
    sink.size_bytes = sizeof sink;
    sink.pad_[1] = 1;
    REFUSED(kvf_open_sink(to->client, &sink, &room), KVF_E_OPTION);
    sink.pad_[1] = 0;
    sink.group = 5;
    REFUSED(kvf_open_sink(to->client, &sink, &room), KVF_E_UNKNOWN_GROUP);
    REFUSED(kvf_group_skip(to->client, 5, 1), KVF_E_UNKNOWN_GROUP);
    struct kvf_group_opts groups = {
        .size_bytes = sizeof groups, .rank = 2, .members = members, .member_count = 2};
    REFUSED(kvf_group_register(to->client, &groups, &group), KVF_E_GROUP_MEMBERS);
    CHECK_IS(kvf_open_sink(NULL, &sink, &room), -EINVAL, "no client");
    CHECK_IS(kvf_open_sink(to->client, NULL, &room), -EINVAL, "no options");
    CHECK_IS(kvf_open_sink(to->client, &sink, NULL), -EINVAL, "no output");
    REFUSED(kvf_abort(to->client, 0, 65536), KVF_E_OPTION);
    static const struct kvf_attach_opts bad[] = {
        {.size_bytes = sizeof bad[0], .rooms_max = 65537},
        {.size_bytes = sizeof bad[0], .cmd_slots = 3},
        {.size_bytes = sizeof bad[0], .cmd_slots = 131072},
        {.size_bytes = sizeof bad[0], .event_slots = 1},
        {.size_bytes = sizeof bad[0], .arena_bytes = 2048},
        {.size_bytes = sizeof bad[0], .arena_bytes = 12288},
        {.size_bytes = sizeof bad[0], .arena_bytes = UINT32_C(1) << 29}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvf_attach_opts opts = bad[i];
        opts.socket_path = decode->socket_path;
        int rc = kvf_attach(&opts, &client);
        CHECK(rc == -KVF_E_LIMIT_RANGE, "row %zu: %d %s", i, rc, kvf_code_name_of(rc));
    }
    struct kvf_attach_opts attach = {.socket_path = decode->socket_path};
    REFUSED(kvf_attach(&attach, &client), KVF_E_OPTION);
    struct kvf_pool_opts empty = {.size_bytes = sizeof empty, .numa_node = -1};
    CHECK_IS(kvf_pool_create(&empty, &pool), -EINVAL, "a pool of no bytes");
    kvf_room in = engine_sink(to, key_next(), 0, 1, prefill);
    REFUSED(kvf_lease(to->client, in, 3), KVF_E_LEASE_KIND);
    REFUSED(kvf_lease(to->client, in, -1), KVF_E_LEASE_KIND);
    CHECK_IS(kvf_lease_give_back(to->client, in, KVF_KIND_GPU), -ENOENT, "none is out");
    (void)room_end(to, in, WAIT_MS);
    stop();
}

static void sentences(void)
{
    for (int code = 1001; code <= 1052; code++) {
        const char *text = kvf_strerror(code);
        CHECK(text != NULL && strlen(text) > 15, "code %d: \"%s\"", code, text);
        CHECK(text == kvf_strerror(-code), "code -%d has another sentence", code);
        CHECK(strncmp(kvf_code_name_of(-code), "KVF_E_", 6) == 0, "name of %d: %s", code,
              kvf_code_name_of(-code));
        for (int other = 1001; other < code; other++) {
            CHECK(strcmp(text, kvf_strerror(other)) != 0, "%d and %d have one sentence", code,
                  other);
        }
    }
    CHECK(kvf_strerror(0) != NULL && kvf_strerror(99999) != NULL &&
              kvf_strerror(-99999) != NULL,
          "NULL for a number that is no code");
}

/* ---- kvfenced's options ------------------------------------------------------------------------------------- */

static void options(void)
{
    static const char *const bad[][2] = {
        {"--lanes", "0"},
        {"--lanes", "9"},
        {"--lanes", "two"},
        {"--lane-rate", "-1"},
        {"--lane-rooms", "0"},
        {"--room-window", "1"},
        {"--lane-window", "9999G"},
        {"--post-bytes", "64Q"},
        {"--cooperative-ms", "1"},
        {"--fence-ms", "999999"},
        {"--liveness-ms", ""},
        {"--watchdog-ms", "1e3"},
        {"--kill-ms", "0"},
        {"--clients", "65"},
        {"--rooms", "65537"},
        {"--tcp-placement", "guessed"},
        {"--transport", "pigeon"},
        {"--spin", "maybe"},
        {"--cpu", "-3"},
        {"--log-level", "loud"},
        {"--listen", "localhost:1"},
        {"--listen", "127.0.0.1:65536"},
        {"--name", "a/b"},
        {"--no-such-option", "1"},
    };
    char out[4096];
    char err[4096];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(),
                                bad[i][0], bad[i][1], NULL);
        CHECK(status == 2, "%s %s: exit status %d", bad[i][0], bad[i][1], status);
        CHECK(strstr(err, bad[i][0] + 2) != NULL && strlen(err) > 20,
              "%s %s: the sentence does not name it: \"%s\"", bad[i][0], bad[i][1], err);
        CHECK(out[0] == '\0', "%s %s printed to stdout: \"%s\"", bad[i][0], bad[i][1], out);
    }
    int status =
        daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(), "--lanes", NULL);
    CHECK(status == 2 && strstr(err, "lanes") != NULL, "an option without value: %d \"%s\"",
          status, err);
    status =
        daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(), "--check", NULL);
    CHECK(status == 0, "--check of good options: %d \"%s\"", status, err);
    status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(), "--version",
                        NULL);
    CHECK(status == 0 && strstr(out, kvf_version()) != NULL, "--version: %d \"%s\"", status,
          out);
    status = daemon_try(out, sizeof out, err, sizeof err, "--help", NULL);
    CHECK(status == 0 && strstr(out, "--tcp-placement") != NULL, "--help: %d", status);
    status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(),
                        "--print-config", "--lanes", "3", NULL);
    CHECK(status == 0 && strstr(out, "lanes = 3") != NULL, "--print-config: %d \"%s\"", status,
          out);
}

/* Could not start: exit status 3 and a sentence. */
static void cannot_start(void)
{
    char out[512];
    char err[8192];
    struct daemon *d = daemon_start("gpu0", NULL);
    int status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(), "--name",
                            "gpu0", NULL);
    CHECK(status == 3 && strlen(err) > 20, "the name is taken: %d \"%s\"", status, err);
    status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(), "--name",
                        "gpu1", "--listen", d->listen, NULL);
    CHECK(status == 3 && strlen(err) > 20, "the address is taken: %d \"%s\"", status, err);
    status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", "/proc/nowhere", NULL);
    CHECK(status == 3 && strlen(err) > 20, "no run directory: %d \"%s\"", status, err);
    /* Not knowing whether an earlier worker has ended is no proof that it has. */
    char path[512];
    snprintf(path, sizeof path, "%s/gpu2.worker", case_dir());
    CHECK(mkdir(path, 0700) == 0, "a name that cannot be read: %s", strerror(errno));
    status = daemon_try(out, sizeof out, err, sizeof err, "--run-dir", case_dir(), "--name",
                        "gpu2", NULL);
    CHECK(status == 3 && strstr(err, "earlier daemon") != NULL, "unknown worker: %d \"%s\"",
          status, err);
    CHECK(rmdir(path) == 0, "rmdir");
    struct engine *e = engine_start(d, &geometry, 0); /* the first one serves as before */
    engine_stop(e);
    daemons_stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"an_unknown_room_is_refused", unknown_room, 0},
        {"a_stale_generation_is_refused", stale_room, 0},
        {"pages_out_of_range_twice_none_or_lent_are_refused", pages, 0},
        {"regions_of_others_without_seal_or_out_of_memory_are_refused", regions, 0},
        {"sparse_memory_stays_sparse_and_a_page_no_frame_carries_is_refused", unusual_memory,
         0},
        {"a_region_with_rooms_is_not_unregistered", busy_region, 0},
        {"geometry_that_differs_between_peers_is_refused", geometry_differs, 0},
        {"too_many_rooms_and_regions_are_refused", too_many, 0},
        {"too_many_clients_are_refused", too_many_clients, 0},
        {"more_rooms_than_the_daemon_allows_are_refused", too_many_rooms_for_the_daemon, 0},
        {"addresses_that_do_not_resolve_or_refuse_fail_the_room", addresses, 0},
        {"an_address_that_never_answers_fails_the_room_at_the_connect_deadline", never_answers,
         0},
        {"a_room_whose_peer_never_opens_fails_at_the_bootstrap_deadline", nobody_opens, 0},
        {"writers_and_ranges_that_do_not_fit_are_refused", peer_counts, 0},
        {"pieces_that_do_not_cover_the_grant_exactly_once_fail_the_room", pieces, 0},
        {"a_key_in_use_and_grants_of_two_lengths_are_refused", keys_and_lengths, 0},
        {"structs_limits_and_arguments_are_checked", structs, 0},
        {"every_code_has_its_own_sentence", sentences, 0},
        {"options_out_of_range_are_refused_with_a_sentence", options, 0},
        {"a_daemon_that_cannot_start_says_why", cannot_start, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

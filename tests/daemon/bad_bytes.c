/* Clients that write into their segment what no library writes. The worst that happens is that they are
 * dropped: two engines transfer beside them all the time and notice nothing. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "ring/codes.h"
#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "tests/daemon/hostile.h"

#define WAIT_MS 10000u
#define FUZZ_ROUNDS 60

static const struct geometry geometry = {
    .plane_count = 1, .page_bytes = 8192, .page_count = 64};

static struct daemon *prefill;
static struct daemon *decode;
static struct bystander *bystander;

static void start(void)
{
    prefill = daemon_start("prefill", "--connect-ms", "300", NULL);
    decode = daemon_start("decode", "--connect-ms", "300", NULL);
    bystander = bystander_start(prefill, decode);
}

static void stop(void)
{
    bystander_stop(bystander, bystander_count(bystander) + 5, NULL);
    daemons_stop();
}

/* The control: what a well-behaved client does by hand works, so what follows is refused for its bytes. */
static void by_hand(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    hostile_open_sink(h, 5, 1, key_next(), h->region, 3, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 5)) == 1, WAIT_MS, "the open was not taken");
    atomic_store_explicit(&h->segment.intents[5].abort_cell,
                          UINT64_C(1) << KVF_GENERATION_SHIFT | KVF_ABORT_SET | 33,
                          memory_order_release);
    kvf_dirty_mark(h->segment.dirty, 5);
    hostile_bell(h);
    CHECK_IS(hostile_wait_drained(h, 5, 1, WAIT_MS), 33, "reason");
    CHECK(!hostile_is_dropped(h, 20), "dropped for nothing");
    hostile_end(h);
    stop();
}

static void second_open(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    hostile_open_sink(h, 2, 10, key_next(), h->region, 0, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 2)) == 10, WAIT_MS, "the open was not taken");
    uint64_t before = daemon_stat(decode, "stale_commands_total");
    /* The same generation, a newer and an older one, on a slot whose room is not drained. */
    hostile_open_sink(h, 2, 10, key_next(), h->region, 8, 4, prefill->listen);
    hostile_open_sink(h, 2, 11, key_next(), h->region, 16, 4, prefill->listen);
    hostile_open_sink(h, 2, 3, key_next(), h->region, 24, 4, prefill->listen);
    WAIT_FOR(daemon_stat(decode, "stale_commands_total") == before + 3 ||
                 daemon_stat(decode, "bad_client_bytes_total") == 1,
             WAIT_MS, "second opens of a live slot: %llu counted",
             (unsigned long long)(daemon_stat(decode, "stale_commands_total") - before));
    uint64_t word = hostile_word(h, 2);
    CHECK_IS(kvf_word_generation(word), 10, "generation of the slot's room");
    CHECK(strlen(kvf_strerror(KVF_E_SLOT_IN_USE)) > 20, "no sentence for a second open");
    hostile_end(h);
    stop();
}

/* Refused by the daemon, not by dropping the client: rooms whose lists name what is not theirs. */
static void refused_rooms(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    struct engine *owner = engine_start(decode, &geometry, 0);
    const uint32_t unknown = h->region ^ 0x300u;
    uint32_t reason;
    hostile_open_sink(h, 1, 1, key_next(), unknown, 0, 4, prefill->listen);
    reason = hostile_wait_drained(h, 1, 1, WAIT_MS);
    CHECK_CODE((int)reason, KVF_E_UNKNOWN_REGION, "a region of nobody");
    if (owner->region != h->region) {
        hostile_open_sink(h, 2, 1, key_next(), owner->region, 0, 4, prefill->listen);
        reason = hostile_wait_drained(h, 2, 1, WAIT_MS);
        CHECK_CODE((int)reason, KVF_E_UNKNOWN_REGION, "another client's region");
    }
    hostile_open_sink(h, 3, 1, key_next(), h->region, 62, 4, prefill->listen);
    reason = hostile_wait_drained(h, 3, 1, WAIT_MS);
    CHECK_CODE((int)reason, KVF_E_PAGE_RANGE, "pages beyond the region");
    hostile_open_sink(h, 4, 1, key_next(), h->region, UINT32_MAX - 1u, 4, prefill->listen);
    reason = hostile_wait_drained(h, 4, 1, WAIT_MS);
    CHECK_CODE((int)reason, KVF_E_PAGE_RANGE, "pages that wrap around");
    hostile_open_sink(h, 5, 1, key_next(), h->region, 3, 0, prefill->listen);
    reason = hostile_wait_drained(h, 5, 1, WAIT_MS);
    CHECK_CODE((int)reason, KVF_E_NO_PAGES, "no pages");
    /* The worker's own owner table, behind the back of the ledger. */
    hostile_open_sink(h, 6, 1, key_next(), h->region, 10, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 6)) == 1, WAIT_MS, "the open was not taken");
    hostile_open_sink(h, 7, 1, key_next(), h->region, 13, 4, prefill->listen);
    reason = hostile_wait_drained(h, 7, 1, WAIT_MS);
    CHECK_CODE((int)reason, KVF_E_PAGE_LENT, "a page of another room");
    CHECK(!kvf_word_is_drained(hostile_word(h, 6)), "the room that has the page was touched");
    CHECK(!hostile_is_dropped(h, 20), "dropped for rooms that were refused");
    engine_stop(owner);
    hostile_end(h);
    stop();
}

/* Commands that no library writes: each costs the client its connection, with its open room drained. */
static void bad_commands(void)
{
    start();
    const struct kvf_cmd_shm bad[] = {
        {.op = 0, .slot = 0, .generation = 1},
        {.op = 99, .slot = 0, .generation = 1},
        {.op = KVF_CMD_OPEN_SINK, .slot = 64, .generation = 1},
        {.op = KVF_CMD_OPEN_SINK, .slot = UINT32_MAX, .generation = 1},
        {.op = KVF_CMD_OPEN_SINK, .slot = 0, .generation = 0},
        {.op = KVF_CMD_OPEN_SINK, .slot = 0, .generation = UINT64_MAX},
        {.op = KVF_CMD_OPEN_SINK, .slot = 0, .generation = 1, .arena_bytes = 3},
        {.op = KVF_CMD_OPEN_SINK,
         .slot = 0,
         .generation = 1,
         .arena_off = 65536,
         .arena_bytes = 64},
        {.op = KVF_CMD_OPEN_SINK,
         .slot = 0,
         .generation = 1,
         .arena_off = 65528,
         .arena_bytes = 64},
        {.op = KVF_CMD_OPEN_SINK,
         .slot = 0,
         .generation = 1,
         .arena_off = 8,
         .arena_bytes = UINT32_MAX},
        {.op = KVF_CMD_OPEN_SINK,
         .slot = 0,
         .generation = 1,
         .arena_off = 4,
         .arena_bytes = 64},
        {.op = KVF_CMD_SUBMIT, .slot = 0, .generation = 1, .arena_off = 0, .arena_bytes = 11},
        {.op = KVF_CMD_SUBMIT, .slot = 0, .generation = 1, .flags = 0x80, .arena_bytes = 12}};
    size_t count = sizeof bad / sizeof bad[0];
    for (size_t i = 0; i < count; i++) {
        struct hostile *h = hostile_start(decode, &geometry);
        hostile_open_sink(h, 9, 1, key_next(), h->region, 0, 8, prefill->listen);
        WAIT_FOR(kvf_word_generation(hostile_word(h, 9)) == 1, WAIT_MS,
                 "the open was not taken");
        struct kvf_cmd_shm cmd = bad[i];
        cmd.worker_epoch = h->epoch;
        CHECK(hostile_push(h, &cmd), "full");
        CHECK(hostile_is_dropped(h, WAIT_MS), "row %zu: not dropped", i);
        uint32_t reason = hostile_wait_drained(h, 9, 1, WAIT_MS);
        CHECK_CODE((int)reason, KVF_E_CLIENT_DROPPED, "reason of its other room");
        hostile_end(h);
    }
    WAIT_FOR(daemon_stat(decode, "bad_client_bytes_total") == count, WAIT_MS,
             "bad_client_bytes_total is %llu",
             (unsigned long long)daemon_stat(decode, "bad_client_bytes_total"));
    stop();
}

/* A record whose own counts lie about its length. */
static void bad_records(void)
{
    start();
    const struct kvf_open_shm bad[] = {{.writer_count = 17, .run_count = 1},
                                       {.writer_count = 1, .run_count = 65537},
                                       {.writer_count = 1, .run_count = UINT32_MAX},
                                       {.writer_count = UINT32_MAX, .run_count = 1},
                                       {.writer_count = 1, .run_count = 100},
                                       {.writer_count = 0, .run_count = 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hostile *h = hostile_start(decode, &geometry);
        struct kvf_open_shm record = bad[i];
        record.region = h->region;
        record.aux_region = UINT32_MAX;
        memset(h->segment.arena, 0xff, 256);
        memcpy(h->segment.arena, &record, sizeof record);
        struct kvf_cmd_shm cmd = {.op = KVF_CMD_OPEN_SINK,
                                  .slot = 0,
                                  .generation = 1,
                                  .worker_epoch = h->epoch,
                                  .arena_bytes = 64};
        CHECK(hostile_push(h, &cmd), "full");
        CHECK(hostile_is_dropped(h, WAIT_MS), "row %zu: not dropped", i);
        hostile_end(h);
    }
    stop();
}

/* Stale commands are counted and change nothing. */
/* Well-formed to its last byte, and half of it behind the end of the arena, in lines that a client can write. */
static void record_behind_the_arena(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    hostile_open_sink(h, 0, 1, key_next(), h->region, 0, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 0)) == 1, WAIT_MS, "the open was not taken");
    uint32_t arena_bytes = h->segment.limits.arena_bytes;
    memmove(h->segment.arena + arena_bytes - 16, h->segment.arena, 60);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_OPEN_SINK,
                              .slot = 7,
                              .generation = 1,
                              .worker_epoch = h->epoch,
                              .key = key_next(),
                              .arena_off = arena_bytes - 16,
                              .arena_bytes = 60};
    CHECK(hostile_push(h, &cmd), "full");
    CHECK(hostile_is_dropped(h, WAIT_MS), "a record that leaves its arena was taken");
    hostile_end(h);
    stop();
}

/* Whoever wrote that word: an engine that reads it may have reused the pages already. */
static void open_of_a_drained_room(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    uint64_t before = daemon_stat(decode, "stale_commands_total");
    uint64_t word = kvf_word_make(5, KVF_PHASE_DRAINED, KVF_OUTCOME_FAILED,
                                  KVF_PROOF_WORKER_GONE, KVF_STATE_FAILED, 0);
    atomic_store_explicit(&h->segment.rooms[9].word, word, memory_order_release);
    hostile_open_sink(h, 9, 5, key_next(), h->region, 0, 4, prefill->listen);
    hostile_open_sink(h, 9, 4, key_next(), h->region, 0, 4, prefill->listen);
    WAIT_FOR(daemon_stat(decode, "stale_commands_total") == before + 2, WAIT_MS,
             "%llu stale commands",
             (unsigned long long)(daemon_stat(decode, "stale_commands_total") - before));
    CHECK(hostile_word(h, 9) == word, "a room that read as drained was opened");
    hostile_open_sink(h, 9, 6, key_next(), h->region, 0, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 9)) == 6, WAIT_MS, "the next one is not");
    hostile_end(h);
    stop();
}

static void stale_commands(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_SUBMIT,
                              .slot = 3,
                              .generation = 7,
                              .worker_epoch = h->epoch,
                              .arena_off = 4096,
                              .arena_bytes = sizeof(struct kvf_run_shm)};
    uint64_t before = daemon_stat(decode, "stale_commands_total");
    CHECK(hostile_push(h, &cmd), "full"); /* a room that never was */
    hostile_open_sink(h, 3, 8, key_next(), h->region, 0, 4, prefill->listen);
    CHECK(hostile_push(h, &cmd), "full"); /* an older generation */
    cmd.generation = 8;
    cmd.worker_epoch = h->epoch - 1u;
    CHECK(hostile_push(h, &cmd), "full"); /* an older worker */
    WAIT_FOR(daemon_stat(decode, "stale_commands_total") == before + 3, WAIT_MS,
             "%llu stale commands",
             (unsigned long long)(daemon_stat(decode, "stale_commands_total") - before));
    CHECK_IS(kvf_word_generation(hostile_word(h, 3)), 8, "generation");
    CHECK(!kvf_word_is_drained(hostile_word(h, 3)), "a stale command ended a room");
    /* An OPEN of an older worker is answered: nothing was posted for it. */
    h->epoch--;
    hostile_open_sink(h, 4, 1, key_next(), h->region, 8, 4, prefill->listen);
    (void)hostile_wait_drained(h, 4, 1, WAIT_MS);
    CHECK_IS(kvf_word_proof(hostile_word(h, 4)), KVF_PROOF_NEVER_POSTED, "proof");
    CHECK(!hostile_is_dropped(h, 20), "dropped for stale commands");
    hostile_end(h);
    stop();
}

/* An abort cell, lease word and dirty bits of every kind of nonsense, while a room of the slot is open. */
static void bad_lines(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    for (uint32_t slot = 0; slot < 8; slot++) {
        hostile_open_sink(h, slot, 1, key_next(), h->region, slot * 4, 4, prefill->listen);
    }
    uint64_t state = 9;
    for (int i = 0; i < 2000; i++) {
        struct kvf_intent_shm *intent = &h->segment.intents[random_below(&state, 64)];
        atomic_store_explicit(&intent->abort_cell, random_next(&state), memory_order_relaxed);
        atomic_store_explicit(&intent->lease_word, random_next(&state), memory_order_relaxed);
        atomic_store_explicit(&intent->generation, random_next(&state), memory_order_relaxed);
        kvf_dirty_mark(h->segment.dirty, (uint32_t)random_below(&state, 64));
        if (i % 100 == 0) {
            for (uint32_t w = 0; w < KVF_DIRTY_SUMMARY_WORDS; w++) {
                atomic_store_explicit(&h->segment.dirty[w], UINT64_MAX, memory_order_release);
            }
            sleep_us(500);
        }
        hostile_bell(h);
    }
    hostile_end(h); /* its rooms end, whatever stands in their lease words */
    stop();
}

/* All but the lease words (a lease that this living process claims is waited for, and rightly so) and the
 * records of the open rooms (their addresses would be anybody's). */
static void spoil_segment(struct hostile *h, uint64_t *state)
{
    unsigned char *bytes = (unsigned char *)h->segment.shm;
    uint64_t intents_off = (uint64_t)((unsigned char *)h->segment.intents - bytes);
    uint64_t intents_end = intents_off + 64u * sizeof(struct kvf_intent_shm);
    for (int k = 0; k < 4000; k++) {
        uint64_t off = random_below(state, h->segment.bytes);
        uint64_t arena_off = (uint64_t)(h->segment.arena - bytes);
        uint64_t in_line = (off - intents_off) % sizeof(struct kvf_intent_shm);
        bool is_lease = off >= intents_off && off < intents_end &&
                        in_line / 8u == offsetof(struct kvf_intent_shm, lease_word) / 8u;
        if (!is_lease && (off < arena_off || off >= arena_off + 1024u)) {
            bytes[off] = (unsigned char)random_next(state);
        }
    }
    hostile_bell(h);
}

/* Random bytes over everything the client may write, while it has rooms open. */
static void fuzz(void)
{
    start();
    uint64_t state = 21;
    for (int round = 0; round < FUZZ_ROUNDS; round++) {
        struct hostile *h = hostile_start(decode, &geometry);
        for (uint32_t slot = 0; slot < 4; slot++) {
            hostile_open_sink(h, slot, 1, key_next(), h->region, slot * 8, 8, prefill->listen);
        }
        for (uint32_t i = 0; i < h->segment.limits.cmd_slots; i++) {
            struct kvf_cmd_shm cmd;
            unsigned char *to = (unsigned char *)&cmd;
            for (size_t b = 0; b < sizeof cmd; b++) {
                to[b] = (unsigned char)random_next(&state);
            }
            if (round % 3 != 0) { /* nearly right is worse than noise */
                cmd.op = (uint8_t)(1u + random_below(&state, 3));
                cmd.flags &= KVF_SUBMIT_LAST;
                cmd.slot %= 8u;
                cmd.generation = 1u + random_below(&state, 4);
                cmd.worker_epoch = h->epoch;
                cmd.arena_off = (uint32_t)random_below(&state, 65536) & ~7u;
                cmd.arena_bytes = (uint32_t)random_below(&state, 200);
            }
            for (int k = 0; k < 16; k++) {
                h->segment.arena[random_below(&state, 65536)] =
                    (unsigned char)random_next(&state);
            }
            (void)hostile_push(h, &cmd);
        }
        if (round % 5 == 4) { /* the header and the ring's own numbers too */
            spoil_segment(h, &state);
        }
        (void)hostile_is_dropped(h, 20);
        hostile_end(h);
    }
    test_say("%llu of %d clients were dropped for their bytes",
             (unsigned long long)daemon_stat(decode, "bad_client_bytes_total"), FUZZ_ROUNDS);
    CHECK(daemon_stat(decode, "bad_client_bytes_total") > 0, "nothing was noticed");
    CHECK_IS(daemon_stat(decode, "worker_starts"), 1, "worker starts");
    stop();
}

/* A client that fills its ring and says nothing more, with no bell, for every slot. */
static void flood(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    uint64_t until_ns = now_ns() + UINT64_C(1000000000);
    uint64_t before = bystander_count(bystander);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_SUBMIT,
                              .slot = 1,
                              .generation = 1,
                              .worker_epoch = h->epoch,
                              .arena_bytes = sizeof(struct kvf_run_shm)};
    while (now_ns() < until_ns) {
        (void)hostile_push(h, &cmd);
    }
    uint64_t rooms = bystander_count(bystander) - before;
    test_say("%llu rooms beside the flood", (unsigned long long)rooms);
    CHECK(rooms >= 10, "a flood of commands stopped the others: %llu rooms in a second",
          (unsigned long long)rooms);
    hostile_end(h);
    stop();
}

static void set_abort(struct hostile *h, uint32_t slot, uint64_t generation)
{
    atomic_store_explicit(&h->segment.intents[slot].abort_cell,
                          generation << KVF_GENERATION_SHIFT | KVF_ABORT_SET | 33,
                          memory_order_release);
    kvf_dirty_mark(h->segment.dirty, slot);
    hostile_bell(h);
}

static void strange_abort(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    hostile_open_sink(h, 5, 7, key_next(), h->region, 3, 4, prefill->listen);
    hostile_open_sink(h, 6, 7, key_next(), h->region, 13, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 6)) == 7, WAIT_MS, "the opens were not taken");
    set_abort(h, 5, 6);
    set_abort(h, 5, 8);
    set_abort(h, 6, 7); /* looked at behind those two */
    CHECK_IS(hostile_wait_drained(h, 6, 7, WAIT_MS), 33, "reason");
    CHECK(!kvf_word_is_drained(hostile_word(h, 5)), "aborted for another generation");
    hostile_end(h);
    stop();
}

/* More than the worker takes in one turn stands before the OPEN, so its look at the marks comes first. */
static void early_abort(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    struct kvf_cmd_shm cmd = {.op = KVF_CMD_SUBMIT,
                              .slot = 3,
                              .generation = 7,
                              .worker_epoch = h->epoch,
                              .arena_bytes = h->segment.limits.arena_bytes};
    CHECK(kill(decode->worker, SIGSTOP) == 0, "stop");
    for (int i = 0; i < 12; i++) {
        CHECK(hostile_push(h, &cmd), "full");
    }
    hostile_open_sink(h, 5, 1, key_next(), h->region, 3, 4, prefill->listen);
    set_abort(h, 5, 1);
    CHECK(kill(decode->worker, SIGCONT) == 0, "continue");
    CHECK_IS(hostile_wait_drained(h, 5, 1, WAIT_MS), 33, "reason");
    hostile_end(h);
    stop();
}

/* It shares its doorbell with the daemon, flags and count alike: it makes reads of it block, and empties it
 * as fast as anybody rings. The daemon never reads it. */
static void spoiled_doorbell(void)
{
    start();
    struct hostile *h = hostile_start(decode, &geometry);
    int flags = fcntl(h->doorbell_fd, F_GETFL);
    CHECK(flags >= 0 && fcntl(h->doorbell_fd, F_SETFL, flags & ~O_NONBLOCK) == 0, "flags: %s",
          strerror(errno));
    uint64_t before = bystander_count(bystander);
    uint64_t until_ns = now_ns() + UINT64_C(500000000);
    while (now_ns() < until_ns) {
        eventfd_t count;
        hostile_bell(h);
        (void)eventfd_read(h->doorbell_fd, &count); /* never blocks: it was just rung */
    }
    CHECK(bystander_count(bystander) >= before + 5, "%llu rooms beside a spoiled doorbell",
          (unsigned long long)(bystander_count(bystander) - before));
    CHECK_IS(daemon_stat(decode, "worker_starts"), 1, "worker starts");
    hostile_open_sink(h, 5, 1, key_next(), h->region, 3, 4, prefill->listen);
    WAIT_FOR(kvf_word_generation(hostile_word(h, 5)) == 1, WAIT_MS, "it is not served itself");
    hostile_end(h);
    stop();
}

/* Requests on the socket that no library makes. */
static void bad_requests(void)
{
    start();
    for (int i = 0; i < 6; i++) {
        struct hostile *h = hostile_start(decode, &geometry);
        struct kvf_attach_rep rep = {.code = 0};
        struct kvf_region_req *req = calloc(1, sizeof *req);
        CHECK(req != NULL, "no memory");
        req->h.op = i == 0 ? 55 : i == 1 ? KVF_REQ_ATTACH : KVF_REQ_REGION_ADD;
        req->plane_count = i == 2 ? KVF_PLANES_MAX + 1u : 1;
        req->page_count = i == 3 ? UINT64_MAX : 4;
        req->memory_bytes = 65536;
        req->planes[0].stride = i == 4 ? 1 : 8192;
        req->planes[0].page_bytes = i == 5 ? UINT64_MAX : 8192;
        kvf_pool *pool = pool_make(65536);
        int op = hostile_request(h, req, sizeof *req, kvf_pool_fd(pool), &rep);
        CHECK(op == -1 || op == KVF_REP_REFUSED, "request %d was answered with %d", i, op);
        CHECK(op == -1 || (rep.code != 0 && rep.text[0] != '\0'), "request %d: no sentence", i);
        hostile_end(h);
        kvf_pool_destroy(pool);
        free(req);
    }
    stop();
}

/* Memory that is said to be a device's, by a client that does not look itself. */
static void device_memory(void)
{
    static const struct {
        uint32_t memory;
        uint32_t cut_bytes;
        uint32_t code;
    } requests[] = {{KVF_REGION_MEMORY_DMABUF, 0, KVF_E_NO_DMABUF},
                    {KVF_REGION_MEMORY_COUNT, 0, KVF_E_PROTOCOL},
                    /* An older library's packet has no such field. */
                    {KVF_REGION_MEMORY_DMABUF, 8, 0}};
    start();
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        struct hostile *h = hostile_start(decode, &geometry);
        struct kvf_attach_rep rep = {.code = 0};
        struct kvf_region_req *req = calloc(1, sizeof *req);
        CHECK(req != NULL, "no memory");
        req->h.op = KVF_REQ_REGION_ADD;
        req->plane_count = 1;
        req->page_count = 4;
        req->memory_bytes = 65536;
        req->planes[0].stride = 8192;
        req->planes[0].page_bytes = 8192;
        req->memory = requests[i].memory;
        kvf_pool *pool = pool_make(65536);
        int op = hostile_request(h, req, (uint32_t)sizeof *req - requests[i].cut_bytes,
                                 kvf_pool_fd(pool), &rep);
        CHECK_IS(op, requests[i].code == 0 ? KVF_REP_REGION : KVF_REP_REFUSED, "answer");
        CHECK_IS(rep.code, requests[i].code, "code");
        CHECK(rep.code == 0 || rep.text[0] != '\0', "no sentence");
        hostile_end(h);
        kvf_pool_destroy(pool);
        free(req);
    }
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_case cases[] = {
        {"what_a_library_writes_works_by_hand", by_hand, 0},
        {"a_second_open_of_a_live_slot_is_counted_and_changes_nothing", second_open, 0},
        {"rooms_on_pages_that_are_not_theirs_are_refused_by_the_daemon", refused_rooms, 0},
        {"a_bad_command_costs_the_client_its_connection", bad_commands, 0},
        {"a_record_that_lies_about_its_length_costs_the_connection", bad_records, 0},
        {"a_record_that_leaves_its_arena_costs_the_connection", record_behind_the_arena, 0},
        {"stale_commands_are_counted_and_change_nothing", stale_commands, 0},
        {"an_open_of_a_room_that_reads_as_drained_is_dropped", open_of_a_drained_room, 0},
        {"nonsense_in_the_clients_lines_hurts_only_itself", bad_lines, 0},
        {"i4_random_bytes_in_a_segment_hurt_only_its_client", fuzz, 0},
        {"a_flood_of_commands_leaves_the_others_their_share", flood, 0},
        {"an_abort_cell_of_another_generation_aborts_nobody", strange_abort, 0},
        {"h36_an_abort_that_is_looked_at_before_its_open_is_read_is_not_lost", early_abort, 0},
        {"h22_a_spoiled_doorbell_blocks_nobody", spoiled_doorbell, 0},
        {"bad_requests_on_the_socket_are_refused", bad_requests, 0},
        {"memory_that_is_no_dma_buf_is_not_taken_for_a_devices", device_memory, 0},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, NULL);
}

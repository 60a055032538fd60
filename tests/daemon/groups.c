/* Groups over real daemons: three ranks, each with its own daemon, and one worker that fills all of them.
 *
 * What is checked everywhere: no rank shows Failed while another rank's room is not drained. `look` asks
 * the last rank first, so a violation cannot hide between two polls. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/room_word.h"
#include "tests/daemon/hostile.h"

#define RANKS 3u
#define WAIT_MS 12000u

static const struct geometry geometry = SIXTEEN_BY_FOUR;
static const struct geometry plain = {.plane_count = 1, .page_bytes = 4096, .page_count = 64};

static struct daemon *prefill;
static struct daemon *decode[RANKS];
static struct engine *from;
static struct engine *to[RANKS];
static uint32_t group[RANKS];

struct request {
    uint64_t key;
    kvf_room in[RANKS];
    kvf_room out[RANKS];
};

/* ---- set up ------------------------------------------------------------------------------------------- */

static struct daemon *start_one(const char *name, const char *rate)
{
    bool is_slow = is_sanitized_build();
    return daemon_start(name, "--tcp-placement", "posted", "--lane-rate", rate, "--liveness-ms",
                        is_slow ? "3000" : "600", "--cooperative-ms", is_slow ? "500" : "300",
                        "--fence-ms", "1000", "--watchdog-ms", is_slow ? "2500" : "1000", NULL);
}

static void start_daemons(const char *rate)
{
    static const char *const names[RANKS] = {"rank0", "rank1", "rank2"};
    prefill = start_one("prefill", rate);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        decode[rank] = start_one(names[rank], rate);
    }
}

static uint32_t join(kvf_client *client, uint32_t rank)
{
    const char *members[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        members[i] = decode[i]->listen;
    }
    struct kvf_group_opts opts = {
        .size_bytes = sizeof opts, .rank = rank, .members = members, .member_count = RANKS};
    uint32_t number = 0;
    CHECK_CODE(kvf_group_register(client, &opts, &number), 0, "group_register");
    CHECK(number != 0, "a group of three is group 0");
    return number;
}

static void start_engines(uint32_t mask)
{
    from = engine_start(prefill, &geometry, 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if ((mask >> rank & 1u) != 0) {
            to[rank] = engine_start(decode[rank], &geometry, 0);
            group[rank] = join(to[rank]->client, rank);
        }
    }
}

static void start(const char *rate)
{
    start_daemons(rate);
    start_engines(7u);
}

static void stop(void)
{
    engine_stop(from);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (to[rank] != NULL) {
            engine_stop(to[rank]);
        }
    }
    daemons_stop();
}

/* ---- rooms ---------------------------------------------------------------------------------------------- */

static uint64_t label_of(uint64_t key, uint32_t rank)
{
    return key << 4 | rank;
}

static int try_in(struct engine *e, uint64_t key, uint32_t rank, uint32_t number, int32_t first,
                  uint32_t count, kvf_room *ret_room)
{
    const char *writers[] = {prefill->listen};
    int32_t pages[1024];
    pages_count_up(pages, count, first);
    struct kvf_sink_opts opts = {.size_bytes = sizeof opts,
                                 .region = e->region,
                                 .label = label_of(key, rank),
                                 .key = key,
                                 .group = number,
                                 .pages = pages,
                                 .page_count = count,
                                 .writers = writers,
                                 .writer_count = 1};
    return kvf_open_sink(e->client, &opts, ret_room);
}

static kvf_room open_in(uint64_t key, uint32_t rank, int32_t first, uint32_t count)
{
    kvf_room room = 0;
    int rc;
    WAIT_FOR((rc = try_in(to[rank], key, rank, group[rank], first, count, &room)) != -EAGAIN,
             5000, "open_sink answers EAGAIN");
    CHECK_CODE(rc, 0, "open_sink");
    return room;
}

static kvf_room open_out(uint64_t key, uint32_t rank)
{
    struct kvf_source_opts opts = {.size_bytes = sizeof opts,
                                   .region = from->region,
                                   .label = label_of(key, rank),
                                   .key = key};
    kvf_room room = 0;
    int rc;
    WAIT_FOR((rc = kvf_open_source(from->client, &opts, &room)) != -EAGAIN, 5000,
             "open_source answers EAGAIN");
    CHECK_CODE(rc, 0, "open_source");
    return room;
}

/* Ranks of the mask open; the worker that fills them serves all. */
static struct request begin(uint32_t mask, int32_t first, uint32_t count)
{
    struct request q = {.key = key_next()};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        q.out[rank] = open_out(q.key, rank);
        if ((mask >> rank & 1u) != 0) {
            q.in[rank] = open_in(q.key, rank, first, count);
        }
    }
    return q;
}

static void submit(struct request *q, uint32_t rank, int32_t first, uint32_t count)
{
    engine_submit(from, q->out[rank], first, count, 0, true);
}

static void end(struct request *q)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        (void)room_end(from, q->out[rank], WAIT_MS);
        if (q->in[rank] != 0 && to[rank] != NULL) {
            room_release(to[rank], q->in[rank]);
        }
    }
}

/* True once every rank of the mask shows Failed. Ends the case if one does while another may still move:
 * drained is asked after poll, so an answer "not drained" was true when the poll was made. */
static bool look(const struct request *q, uint32_t mask)
{
    uint32_t failed = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if ((mask >> rank & 1u) != 0 && kvf_poll(to[rank]->client, q->in[rank]) == KVF_FAILED) {
            failed |= 1u << rank;
        }
    }
    for (uint32_t rank = 0; failed != 0 && rank < RANKS; rank++) {
        CHECK((mask >> rank & 1u) == 0 || kvf_drained(to[rank]->client, q->in[rank]) > 0,
              "ranks %#x show Failed while rank %u is not drained", failed, rank);
    }
    return failed == mask;
}

static void expect_all_failed(const struct request *q, uint32_t mask, uint32_t limit_ms)
{
    WAIT_FOR(look(q, mask), limit_ms, "not every rank shows Failed after %u ms: %s %s %s",
             limit_ms, kvf_state_name(kvf_poll(to[0]->client, q->in[0])),
             (mask & 2u) != 0 ? kvf_state_name(kvf_poll(to[1]->client, q->in[1])) : "-",
             (mask & 4u) != 0 ? kvf_state_name(kvf_poll(to[2]->client, q->in[2])) : "-");
}

static void expect_reason(uint32_t rank, const struct request *q, uint32_t reason)
{
    CHECK_CODE((int)room_info(to[rank], q->in[rank]).reason, (int)reason, "reason");
}

/* ---- cases ------------------------------------------------------------------------------------------------ */

static void nothing_is_sent(void)
{
    start("0");
    for (uint32_t i = 0; i < 60; i++) {
        struct request q = begin(7u, (int32_t)(i % 8) * 16, 4);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            submit(&q, rank, (int32_t)(i % 8) * 16, 4);
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            room_expect(to[rank], q.in[rank], KVF_SUCCESS, WAIT_MS);
            room_expect(from, q.out[rank], KVF_SUCCESS, WAIT_MS);
        }
        end(&q);
    }
    sleep_us(400000); /* longer than the period of questions */
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        CHECK_IS(daemon_stat(decode[rank], "group_messages_sent_total"), 0, "messages sent");
        CHECK_IS(daemon_stat(decode[rank], "peers_up"), 1, "connections");
    }
    stop();
}

/* Rank 0 aborts in flight. Rank 1 still copies: nobody shows Failed, and all do once it has ended. */
static void abort_in_flight(void)
{
    enum { PAGES = 200 };
    start("50");
    struct request q = begin(7u, 0, PAGES);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        submit(&q, rank, 0, PAGES);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        room_wait_placed(to[rank], q.in[rank], 1, WAIT_MS);
    }
    CHECK_CODE(kvf_lease(to[1]->client, q.in[1], KVF_KIND_GPU), 0, "lease");
    CHECK_CODE(kvf_abort(to[0]->client, q.in[0], 77), 0, "abort");
    WAIT_FOR(kvf_drained(to[0]->client, q.in[0]) > 0 && kvf_drained(to[2]->client, q.in[2]) > 0,
             WAIT_MS, "ranks 0 and 2 are not drained");
    sleep_us(500000);
    CHECK(!look(&q, 7u), "shown as failed");
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        CHECK_IS(kvf_poll(to[rank]->client, q.in[rank]), KVF_TRANSFERRING, "poll");
        CHECK_IS(kvf_failed_early(to[rank]->client, q.in[rank]), 1, "failed early");
    }
    /* Its own pages are idle, whatever the others do. */
    const int32_t page = 3;
    CHECK_IS(kvf_pages_are_idle(to[0]->client, to[0]->region, &page, 1, NULL), 1, "ledger");
    WAIT_FOR(room_info(to[0], q.in[0]).group_waits == 2u, 2000, "rank 0 waits for %llx",
             (unsigned long long)room_info(to[0], q.in[0]).group_waits);
    WAIT_FOR(daemon_stat(decode[0], "group_rooms_waiting") == 1, 2000, "no room waits");
    CHECK_IS(daemon_stat(decode[0], "group_waits_rank"), 1, "the rank that is missing");
    CHECK(daemon_stat(decode[0], "group_waits_id") != 0, "of no group");
    uint64_t start_ns = now_ns();
    CHECK_CODE(kvf_lease_give_back(to[1]->client, q.in[1], KVF_KIND_GPU), 0, "give back");
    expect_all_failed(&q, 7u, 2000);
    test_say("all ranks failed %llu us after the last lease",
             (unsigned long long)((now_ns() - start_ns) / 1000u));
    expect_reason(0, &q, 77);
    expect_reason(1, &q, KVF_E_GROUP_CLOSED);
    expect_reason(2, &q, KVF_E_GROUP_CLOSED);
    end(&q);
    stop();
}

/* argv: socket, the writer's address, key, rank, addresses of all ranks. */
static int role_rank(int argc, char **argv)
{
    CHECK_IS(argc, 4 + (int)RANKS, "arguments");
    static struct daemon own;
    static struct daemon writer;
    static struct daemon all[RANKS];
    snprintf(own.name, sizeof own.name, "helper");
    snprintf(own.socket_path, sizeof own.socket_path, "%s", argv[0]);
    snprintf(writer.listen, sizeof writer.listen, "%s", argv[1]);
    prefill = &writer;
    for (uint32_t i = 0; i < RANKS; i++) {
        snprintf(all[i].listen, sizeof all[i].listen, "%s", argv[4 + i]);
        decode[i] = &all[i];
    }
    uint32_t rank = (uint32_t)atoi(argv[3]);
    to[rank] = engine_start(&own, &geometry, 0);
    group[rank] = join(to[rank]->client, rank);
    (void)open_in(strtoull(argv[2], NULL, 10), rank, 0, 100);
    role_say("open");
    for (;;) {
        pause();
    }
}

/* The engine of rank 1 is killed: its daemon tells the others, and lets its memory go. */
static void engine_killed(void)
{
    char key[32];
    start_daemons("50");
    start_engines(5u);
    struct request q = begin(5u, 0, 100);
    snprintf(key, sizeof key, "%llu", (unsigned long long)q.key);
    struct helper *h =
        helper_start("rank", decode[1]->socket_path, prefill->listen, key, "1",
                     decode[0]->listen, decode[1]->listen, decode[2]->listen, NULL);
    helper_expect(h, "open", WAIT_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        submit(&q, rank, 0, 100);
    }
    room_wait_placed(to[0], q.in[0], 1, WAIT_MS);
    helper_kill(h);
    expect_all_failed(&q, 5u, WAIT_MS);
    expect_reason(0, &q, KVF_E_GROUP_CLOSED);
    expect_reason(2, &q, KVF_E_GROUP_CLOSED);
    WAIT_FOR(daemon_stat(decode[1], "clients") == 0, 8000, "the dead engine is still held");
    /* The rank has departed: what it never opened does not hang the others. */
    struct request next = begin(5u, 0, 4);
    CHECK_CODE(kvf_abort(to[0]->client, next.in[0], 0), 0, "abort");
    expect_all_failed(&next, 5u, 2000);
    CHECK_IS(daemon_stat(decode[1], "group_tombstones"), 0,
             "keys kept for an engine that left");
    /* ... also under the next worker of its daemon. */
    CHECK(kill(decode[1]->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode[1], 5000);
    struct request last = begin(5u, 8, 4);
    CHECK_CODE(kvf_abort(to[0]->client, last.in[0], 0), 0, "abort");
    expect_all_failed(&last, 5u, 4000);
    end(&q);
    end(&next);
    end(&last);
    stop();
}

/* The worker of rank 1 is killed: drained by its end at once, and the next one tells the others. */
static void worker_killed(void)
{
    enum { PAGES = 900 }; /* longer than the next worker takes to start */
    start(is_sanitized_build() ? "15" : "50");
    struct request q = begin(7u, 0, PAGES);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        submit(&q, rank, 0, PAGES);
    }
    room_wait_placed(to[1], q.in[1], 1, WAIT_MS);
    uint64_t start_ns = now_ns();
    CHECK(kill(decode[1]->worker, SIGKILL) == 0, "kill");
    WAIT_FOR(kvf_drained(to[1]->client, q.in[1]) > 0, 3000, "not drained by the worker's end");
    room_expect_proof(to[1], q.in[1], KVF_WORKER_GONE);
    expect_all_failed(&q, 7u, WAIT_MS);
    test_say("all ranks failed %llu ms after the kill",
             (unsigned long long)((now_ns() - start_ns) / 1000000u));
    expect_reason(1, &q, KVF_E_WORKER_GONE);
    daemon_wait_worker(decode[1], 5000);
    WAIT_FOR(kvf_daemon_check(to[1]->client) == 0, 5000, "the next worker does not serve");
    end(&q);
    /* The group number is good under the next worker. */
    struct request next = begin(7u, 1000, 4);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        submit(&next, rank, 1000, 4);
        room_expect(to[rank], next.in[rank], KVF_SUCCESS, WAIT_MS);
    }
    end(&next);
    stop();
}

/* A lease at rank 1 outlives its worker: the others wait through the restart. */
static void worker_killed_with_lease(void)
{
    start("0");
    struct request q = begin(7u, 0, 4);
    room_wait_state(to[1], q.in[1], KVF_WAITING_FOR_INPUT, WAIT_MS);
    CHECK_CODE(kvf_lease(to[1]->client, q.in[1], KVF_KIND_CPU), 0, "lease");
    CHECK(kill(decode[1]->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode[1], 5000);
    WAIT_FOR(kvf_daemon_check(to[1]->client) == 0, 5000, "the next worker does not serve");
    WAIT_FOR(kvf_drained(to[0]->client, q.in[0]) > 0 && kvf_drained(to[2]->client, q.in[2]) > 0,
             WAIT_MS, "the others were not closed");
    sleep_us(600000);
    CHECK(!look(&q, 7u), "shown as failed");
    CHECK_IS(kvf_drained(to[1]->client, q.in[1]), -EAGAIN, "drained under a lease");
    CHECK_IS(daemon_stat(decode[1], "rooms_adopted_total"), 1, "rooms taken over");
    CHECK_CODE(kvf_lease_give_back(to[1]->client, q.in[1], KVF_KIND_CPU), 0, "give back");
    expect_all_failed(&q, 7u, 2000);
    end(&q);
    stop();
}

static void late_joiner(void)
{
    start("0");
    struct request q = begin(3u, 0, 4);
    CHECK_CODE(kvf_abort(to[0]->client, q.in[0], 0), 0, "abort");
    expect_all_failed(&q, 3u, 2000);
    WAIT_FOR(daemon_stat(decode[2], "group_tombstones") == 1, 2000, "no tombstone");
    q.in[2] = open_in(q.key, 2, 0, 4);
    room_expect_reason(to[2], q.in[2], KVF_E_GROUP_CLOSED, 2000);
    room_expect_proof(to[2], q.in[2], KVF_NEVER_POSTED);
    WAIT_FOR(daemon_stat(decode[2], "group_tombstones") == 0, 2000, "the tombstone stays");
    end(&q);
    stop();
}

/* ... also when the worker that promised it is not the one that reads the open. */
static void late_joiner_of_next_worker(void)
{
    start("0");
    struct request q = begin(3u, 0, 4);
    CHECK_CODE(kvf_abort(to[0]->client, q.in[0], 0), 0, "abort");
    expect_all_failed(&q, 3u, 2000);
    CHECK(kill(decode[2]->worker, SIGKILL) == 0, "kill");
    daemon_wait_worker(decode[2], 5000);
    WAIT_FOR(kvf_daemon_check(to[2]->client) == 0, 5000, "the next worker does not serve");
    q.in[2] = open_in(q.key, 2, 0, 4);
    room_expect_reason(to[2], q.in[2], KVF_E_GROUP_CLOSED, 2000);
    room_expect_proof(to[2], q.in[2], KVF_NEVER_POSTED);
    end(&q);
    /* And when the whole daemon was replaced meanwhile. */
    q = begin(3u, 0, 4);
    CHECK_CODE(kvf_abort(to[0]->client, q.in[0], 0), 0, "abort");
    expect_all_failed(&q, 3u, 2000);
    daemon_kill(decode[2]);
    WAIT_FOR(kvf_daemon_check(to[2]->client) == -KVF_E_DAEMON_GONE, 5000, "not noticed");
    daemon_start_again(decode[2]);
    CHECK_CODE(kvf_reattach(to[2]->client, 5000), 0, "reattach");
    q.in[2] = open_in(q.key, 2, 0, 4);
    room_expect_reason(to[2], q.in[2], KVF_E_GROUP_CLOSED, 2000);
    end(&q);
    stop();
}

static void spoil_lines(struct hostile *h, uint64_t *state)
{
    for (uint32_t slot = 0; slot < h->segment.limits.rooms_max; slot++) {
        struct kvf_intent_shm *intent = &h->segment.intents[slot];
        struct kvf_room_shm *room = &h->segment.rooms[slot];
        uint64_t generation = 1u + random_below(state, 3);
        atomic_store(&intent->generation, generation);
        atomic_store(&intent->group, (uint32_t)random_below(state, 20));
        atomic_store(&intent->key, random_below(state, 4));
        atomic_store(&room->word,
                     generation << KVF_GENERATION_SHIFT | (random_next(state) & 0xffffffu));
        atomic_store(&room->group_waits, random_next(state));
        atomic_store(&room->reason, (uint32_t)random_next(state));
    }
    for (uint32_t i = 0; i < KVF_GROUP_KEYS_MAX; i++) {
        atomic_store(&h->segment.group_keys[i].group, (uint32_t)random_below(state, 20));
        atomic_store(&h->segment.group_keys[i].key, random_below(state, 4));
    }
}

/* A client's memory is what its next worker reads: nonsense in it spoils rooms of that client alone. */
static void spoiled_lines(void)
{
    start("0");
    uint64_t state = 11;
    struct bystander *b = bystander_start(prefill, decode[0]);
    struct hostile *h = hostile_start(decode[1], &plain);
    struct kvf_group_req add = {.h.op = KVF_REQ_GROUP_ADD, .group_id = 99, .member_count = 2};
    struct kvf_attach_rep rep = {.code = 0};
    for (uint32_t i = 0; i < 2; i++) {
        add.members[i] = (struct kvf_addr_shm){
            .family = 4, .port = (uint16_t)(1 + i), .addr = {127, 0, 0, 1}};
    }
    CHECK_IS(hostile_request(h, &add, sizeof add, -1, &rep), KVF_REP_GROUP, "a group");
    for (int round = 0; round < 3; round++) {
        spoil_lines(h, &state);
        CHECK(kill(decode[1]->worker, SIGKILL) == 0, "kill");
        daemon_wait_worker(decode[1], 5000);
        WAIT_FOR(kvf_daemon_check(to[1]->client) == 0, 5000, "the next worker does not serve");
        struct request q = begin(7u, 0, 4);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            submit(&q, rank, 0, 4);
            room_expect(to[rank], q.in[rank], KVF_SUCCESS, WAIT_MS);
        }
        end(&q);
        q = begin(7u, 0, 4);
        CHECK_CODE(kvf_abort(to[1]->client, q.in[1], 0), 0, "abort");
        expect_all_failed(&q, 7u, 3000);
        end(&q);
    }
    CHECK_IS(daemon_stat(decode[1], "worker_starts"), 4, "worker starts: none fell over it");
    hostile_end(h);
    bystander_stop(b, 20, NULL);
    stop();
}

/* Requests for groups that no library makes. */
static void bad_group_requests(void)
{
    start("0");
    for (int i = 0; i < 9; i++) {
        struct hostile *h = hostile_start(decode[1], &plain);
        struct kvf_attach_rep rep = {.code = 0};
        struct kvf_group_req add = {.h.op = KVF_REQ_GROUP_ADD,
                                    .group = i == 1 ? 17u : 0,
                                    .rank = i == 2 ? 2u : 0,
                                    .group_id = i == 3 ? 0 : 55,
                                    .member_count = i == 4   ? 65u
                                                    : i == 5 ? 1u
                                                             : 2u};
        for (uint32_t k = 0; k < KVF_GROUP_MEMBERS_MAX; k++) {
            add.members[k].family = i == 6 ? 9u : 4u;
        }
        struct kvf_group_skip_req skip = {.h.op = KVF_REQ_GROUP_SKIP, .group = 3};
        uint32_t bytes = i == 0 ? 40u : sizeof add;
        int op = i == 7   ? hostile_request(h, &skip, sizeof skip, -1, &rep)
                 : i == 8 ? hostile_request(h, &skip, 20, -1, &rep)
                          : hostile_request(h, &add, bytes, -1, &rep);
        CHECK(op == -1 || op == KVF_REP_REFUSED, "request %d was answered with %d", i, op);
        CHECK(op == -1 || (rep.code != 0 && rep.text[0] != '\0'), "request %d: no sentence", i);
        hostile_end(h);
    }
    stop();
}

static void never_opened(void)
{
    start("0");
    struct request q[3];
    for (uint32_t i = 0; i < 3; i++) {
        q[i] = begin(1u, (int32_t)i * 8, 4);
        CHECK_CODE(kvf_abort(to[0]->client, q[i].in[0], 0), 0, "abort");
        expect_all_failed(&q[i], 1u, 2000);
    }
    WAIT_FOR(daemon_stat(decode[1], "group_tombstones") == 3, 2000, "no tombstones");
    CHECK_CODE(kvf_group_skip(to[1]->client, group[1], q[0].key), 0, "skip");
    CHECK_CODE(kvf_group_skip(to[1]->client, group[1], q[1].key), 0, "skip");
    CHECK_CODE(kvf_group_skip(to[1]->client, 9, q[1].key), -KVF_E_UNKNOWN_GROUP, "skip");
    WAIT_FOR(daemon_stat(decode[1], "group_tombstones") == 1, 2000, "tombstones stay");
    for (uint32_t i = 0; i < 3; i++) {
        end(&q[i]);
    }
    stop();
}

/* The whole daemon of rank 1 is gone: its engine's pages are proven idle, its rank is out of reach, and the
 * others wait until its engine has re-attached to the next daemon. */
static void daemon_gone_and_back(void)
{
    start("0");
    struct request q = begin(7u, 0, 4);
    struct request lost = begin(7u, 8, 4);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        room_wait_state(to[rank], lost.in[rank], KVF_WAITING_FOR_INPUT, WAIT_MS);
    }
    daemon_kill(decode[1]);
    WAIT_FOR(kvf_daemon_check(to[1]->client) == -KVF_E_DAEMON_GONE, 5000, "not noticed");
    room_expect_proof(to[1], q.in[1], KVF_WORKER_GONE);
    CHECK_IS(kvf_poll(to[1]->client, q.in[1]), KVF_TRANSFERRING, "poll without any daemon");
    CHECK_CODE(kvf_abort(to[0]->client, q.in[0], 0), 0, "abort");
    WAIT_FOR(kvf_drained(to[0]->client, q.in[0]) > 0, WAIT_MS, "not drained");
    sleep_us(600000);
    CHECK(!look(&q, 7u), "shown as failed");
    WAIT_FOR(daemon_stat(decode[0], "group_waits_rank") == 1, 2000, "the rank is not named");
    daemon_start_again(decode[1]);
    CHECK_CODE(kvf_reattach(to[1]->client, 5000), 0, "reattach");
    expect_all_failed(&q, 7u, 5000);
    expect_all_failed(&lost, 7u, 5000);
    end(&q);
    end(&lost);
    stop();
}

/* A daemon that is told to stop ends its rooms, tells the other ranks, and only then goes. */
static void sigterm_tells(void)
{
    start("0");
    struct request q = begin(7u, 0, 4);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        room_wait_state(to[rank], q.in[rank], KVF_WAITING_FOR_INPUT, WAIT_MS);
    }
    daemon_signal(decode[1], SIGTERM); /* twice: no grace for rooms that were granted */
    sleep_us(50000);
    daemon_signal(decode[1], SIGTERM);
    CHECK_IS(daemon_wait(decode[1], 5000), 4, "exit status: a room had to be ended");
    expect_all_failed(&q, 5u, 2000);
    CHECK(kvf_drained(to[1]->client, q.in[1]) > 0, "its own room");
    expect_reason(0, &q, KVF_E_GROUP_CLOSED);
    expect_reason(2, &q, KVF_E_GROUP_CLOSED);
    daemon_start_again(decode[1]);
    WAIT_FOR(kvf_daemon_check(to[1]->client) == -KVF_E_DAEMON_GONE, 5000, "not noticed");
    CHECK_CODE(kvf_reattach(to[1]->client, 5000), 0, "reattach");
    expect_all_failed(&q, 7u, 2000);
    end(&q);
    stop();
}

/* Two engines behind one daemon, as two ranks; and one rank that two engines cannot hold. */
static void two_ranks_behind_one_daemon(void)
{
    start_daemons("0");
    decode[1] = decode[0];
    start_engines(7u);
    struct engine *third = engine_start(decode[0], &geometry, 0);
    const char *members[] = {decode[0]->listen, decode[0]->listen, decode[2]->listen};
    struct kvf_group_opts opts = {
        .size_bytes = sizeof opts, .rank = 1, .members = members, .member_count = RANKS};
    uint32_t number = 9;
    CHECK_CODE(kvf_group_register(third->client, &opts, &number), -KVF_E_GROUP_RANK_TAKEN,
               "a rank that is held");
    CHECK_IS(number, 9, "output of a refusal");
    opts.rank = 3;
    CHECK_CODE(kvf_group_register(third->client, &opts, &number), -KVF_E_GROUP_MEMBERS,
               "a rank beyond the members");
    engine_stop(third);
    struct request q = begin(7u, 0, 4);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        room_wait_state(to[rank], q.in[rank], KVF_WAITING_FOR_INPUT, WAIT_MS);
    }
    CHECK_CODE(kvf_abort(to[2]->client, q.in[2], 0), 0, "abort");
    expect_all_failed(&q, 7u, 3000);
    end(&q);
    stop();
}

/* Requests begin, fail and succeed all the time, with one rank's worker killed now and then. */
static void storm(void)
{
    start("0");
    uint64_t random = 7;
    uint32_t failed = 0;
    for (uint32_t i = 0; i < 120; i++) {
        if (i == 40 || i == 80) {
            uint32_t rank = i / 40;
            CHECK(kill(decode[rank]->worker, SIGKILL) == 0, "kill");
            daemon_wait_worker(decode[rank], 5000);
            WAIT_FOR(kvf_daemon_check(to[rank]->client) == 0, 5000, "no next worker");
        }
        struct request q = begin(7u, 0, 8);
        uint32_t what = (uint32_t)random_below(&random, 4);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if (what != 3 || rank != 1) {
                submit(&q, rank, 0, 8);
            }
        }
        if (what != 0) {
            /* One that nobody fills cannot have ended before its abort. */
            uint32_t rank = what == 3 ? 1u : (uint32_t)random_below(&random, RANKS);
            sleep_us(random_below(&random, 1500));
            CHECK_CODE(kvf_abort(to[rank]->client, q.in[rank], 0), 0, "abort");
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            int state = kvf_wait(to[rank]->client, q.in[rank], WAIT_MS);
            CHECK(state == KVF_FAILED || state == KVF_SUCCESS, "rank %u of request %u: %s",
                  rank, i, kvf_state_name(state));
            failed += state == KVF_FAILED;
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            CHECK(kvf_drained(to[rank]->client, q.in[rank]) > 0, "not drained");
        }
        end(&q);
    }
    test_say("%u of %u rooms failed", failed, 120u * RANKS);
    CHECK(failed > 60, "only %u rooms failed", failed);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        WAIT_FOR(daemon_stat(decode[rank], "group_rooms_waiting") == 0, 2000, "rooms wait");
    }
    stop();
}

int main(int argc, char **argv)
{
    static const struct test_role roles[] = {{"rank", role_rank}, {NULL, NULL}};
    static const struct test_case cases[] = {
        {"nothing_is_sent_while_all_goes_well", nothing_is_sent, 0},
        {"an_abort_in_flight_fails_all_ranks_after_all_are_drained", abort_in_flight, 0},
        {"a_killed_engine_ends_the_request_on_every_rank", engine_killed, 0},
        {"a_killed_workers_successor_tells_the_others", worker_killed, 0},
        {"a_lease_that_outlives_its_worker_holds_every_rank", worker_killed_with_lease, 0},
        {"a_late_joiner_fails_at_once", late_joiner, 0},
        {"a_late_joiner_fails_under_the_next_worker_and_daemon_too", late_joiner_of_next_worker,
         0},
        {"a_rank_that_never_opens_hangs_nobody", never_opened, 0},
        {"nonsense_for_the_next_worker_hurts_only_its_client", spoiled_lines, 60},
        {"bad_requests_for_groups_are_refused", bad_group_requests, 0},
        {"a_daemon_that_is_gone_keeps_them_waiting_until_it_is_back", daemon_gone_and_back, 0},
        {"a_daemon_that_stops_tells_the_other_ranks_first", sigterm_tells, 0},
        {"two_ranks_behind_one_daemon_agree", two_ranks_behind_one_daemon, 0},
        {"a_storm_of_requests_leaves_nobody_waiting", storm, 60},
        {NULL, NULL, 0}};
    return test_main(argc, argv, cases, roles);
}

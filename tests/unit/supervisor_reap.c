/* A worker may end between any two of its steps, and its supervisor wakes who slept on that worker's word: whatever of
 * "word, event, flag, datagram" was done, an engine that sleeps on its descriptor alone hears of it. */
#include <criterion/criterion.h>

#include <poll.h>
#include <sys/socket.h>

#include "ring/lease_word.h"
#include "ring/room_word.h"
#include "sidecar/supervisor_internal.h"

#define GENERATION 9u

static struct kvf_supervisor supervisor;
static struct sup_client client;
static int engine_fd;

static void begin(enum kvf_phase phase, enum kvf_proof proof, uint32_t armed)
{
    const struct kvf_segment_limits limits = {.rooms_max = 4,
                                              .cmd_slots = 8,
                                              .event_slots = 8,
                                              .arena_bytes = 4096,
                                              .regions_max = 1};
    int pair[2];
    cr_assert_eq(kvf_segment_create(&limits, 1, &client.segment_fd), 0);
    cr_assert_eq(kvf_segment_map(client.segment_fd, true, &client.segment), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    client.event_fd = pair[0];
    engine_fd = pair[1];
    supervisor.worker = WORKER_SERVING; /* its counts are the worker's to write */
    atomic_store(&client.segment.intents[0].lease_word, kvf_lease_word_make(GENERATION));
    atomic_store(&client.segment.intents[0].generation, GENERATION);
    atomic_store(
        &client.segment.rooms[0].word,
        kvf_word_make(GENERATION, phase, KVF_OUTCOME_NONE, proof, KVF_STATE_TRANSFERRING, 0));
    atomic_store(&client.segment.shm->events_armed, armed);
}

static void expect_woken(void)
{
    uint32_t lost = atomic_load(&client.segment.shm->events_lost);
    kvf_sup_reap_rooms(&supervisor, &client);
    struct pollfd p = {.fd = engine_fd, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, 0), 1, "its descriptor is quiet");
    cr_assert_neq(atomic_load(&client.segment.shm->events_lost), lost, "nor told to look");
    cr_assert_eq(atomic_load(&client.segment.shm->events_armed), 0);
    cr_assert(kvf_word_is_drained(atomic_load(&client.segment.rooms[0].word)));
}

Test(supervisor_reap, an_engine_that_sleeps_hears_of_rooms_that_the_end_drains)
{
    begin(KVF_PHASE_OPEN, KVF_PROOF_NONE, 1);
    expect_woken();
}

/* The worker took the flag, and ended before its datagram. */
Test(supervisor_reap, a_wake_that_the_worker_owed_is_sent_in_its_place)
{
    begin(KVF_PHASE_OPEN, KVF_PROOF_NONE, 0);
    expect_woken();
}

/* ... or ended behind the word: the room is drained, so nothing is left to reap, and nobody has said so. */
Test(supervisor_reap, a_word_whose_event_never_came_is_told)
{
    begin(KVF_PHASE_DRAINED, KVF_PROOF_LANDED, 1);
    expect_woken();
}

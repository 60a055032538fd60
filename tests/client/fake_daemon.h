/* A daemon for tests of the library: speaks ring/attach.h on a real socket, from a thread of the test, and
 * plays the worker only as far as a test tells it to. Nothing moves by itself: a test pops a command, looks
 * at it, and publishes the word it wants the library to see. */
#ifndef KVF_TESTS_CLIENT_FAKE_DAEMON_H
#define KVF_TESTS_CLIENT_FAKE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/kvfence.h"
#include "ring/attach.h"
#include "ring/layout.h"
#include "ring/room_word.h"
#include "ring/segment.h"
#include "ring/spsc.h"

struct fake_region {
    uint32_t handle;
    int memory_fd;
    int ledger_fd;
    uint32_t memory; /* as the library said */
    uint64_t page_count;
};

struct fake_daemon {
    char dir[64];
    char path[96];
    int listen_fd;
    int conn_fd; /* of the one client */
    pthread_t thread;
    int stop_fd;

    /* What a test may set before a client asks. */
    _Atomic uint32_t refuse_op;    /* this request is refused ... */
    _Atomic uint32_t refuse_code;  /* ... with this code */
    _Atomic bool is_silent;        /* requests are read and never answered */
    _Atomic bool is_garbled;       /* replies carry a wrong magic */
    _Atomic uint32_t wrong_region; /* added to the handle that a registration answers */
    uint16_t layout_major;

    /* The segment. `view` is what the fake worker reads and writes through: its own mapping, or the
     * library's, so that a thread sanitizer sees one memory. */
    int segment_fd;
    struct kvf_segment own;
    struct kvf_segment *view;
    struct kvf_spsc_consumer cmds;
    struct kvf_spsc_producer events;
    uint64_t epoch;
    pid_t worker_pid; /* a process that does nothing but live */
    int worker_fd;
    pid_t sweeper_pid; /* removes the folder when this process has ended, however it did */
    int sweeper_fd;
    int life_fd; /* closed with this process, ends the worker's */
    int doorbell_fd;
    int event_fd;
    _Atomic uint32_t attached_count;
    _Atomic uint32_t detached_count;
    _Atomic uint32_t hung_up_count;
    _Atomic uint32_t readded_count;
    struct fake_region regions[KVF_REGIONS_PER_CLIENT_MAX];
    uint32_t region_epoch;
    /* Read by a test once the library's call has returned. */
    struct kvf_group_req group;
    struct kvf_group_skip_req skip;
    uint32_t group_count;
    _Atomic uint32_t group_requests;
    _Atomic uint32_t skip_requests;
};

/* Listens in a directory of its own. */
void fake_start(struct fake_daemon *fake);
/* Ends it and checks that nothing of it is left. */
void fake_stop(struct fake_daemon *fake);
/* A worker that lives: a process, and its epoch in the segment. */
void fake_worker_start(struct fake_daemon *fake, uint64_t epoch);
void fake_worker_kill(struct fake_daemon *fake);
/* Tells the client of the worker that runs now. */
void fake_note_worker(struct fake_daemon *fake);
/* Says REFUSED with serial 0, as before a hang-up. */
void fake_note_refused(struct fake_daemon *fake, uint32_t code);
/* The supervisor goes: socket closed, listening ended. The segment stays with the client. */
void fake_supervisor_kill(struct fake_daemon *fake);
/* The next supervisor of that name listens again and knows nothing. */
void fake_supervisor_start(struct fake_daemon *fake);

/* Attaches with small limits (rooms, ring slots, arena); 0 takes the library's default. */
int fake_attach(struct fake_daemon *fake, uint32_t rooms, uint32_t slots, uint32_t arena,
                kvf_client **ret_client);
/* A pool with one region of equal pages in one plane. */
struct fake_memory {
    kvf_pool *pool;
    uint32_t region;
};
void fake_memory_make(kvf_client *client, uint32_t page_count, struct fake_memory *ret_memory);

/* ---- the worker ---------------------------------------------------------------------------------- */

/* Pops one command: 1, or 0. The record stays in the arena; cmd_consumed moves on. */
int fake_pop(struct fake_daemon *fake, struct kvf_cmd_shm *ret_cmd);
/* Leaves cmd_consumed where it is. */
int fake_pop_unread(struct fake_daemon *fake, struct kvf_cmd_shm *ret_cmd);
const void *fake_record(const struct fake_daemon *fake, const struct kvf_cmd_shm *cmd);
/* Stores the line and the word (release), pushes an event, wakes an armed client. */
void fake_publish(struct fake_daemon *fake, kvf_room room, enum kvf_phase phase,
                  enum kvf_outcome outcome, enum kvf_proof proof, enum kvf_poll_state state,
                  uint64_t flags);
/* The same with an event ring that is full. */
void fake_lose_event(struct fake_daemon *fake);
void fake_open(struct fake_daemon *fake, kvf_room room, enum kvf_poll_state state);
void fake_succeed(struct fake_daemon *fake, kvf_room room);
void fake_fail(struct fake_daemon *fake, kvf_room room, enum kvf_proof proof, uint32_t reason);
void fake_sleep(struct fake_daemon *fake, bool is_asleep);
/* Doorbell rings since the last call. */
uint64_t fake_rings(struct fake_daemon *fake);

static inline uint32_t fake_slot(kvf_room room)
{
    return (uint32_t)(room & KVF_SLOT_MASK);
}
static inline uint64_t fake_generation(kvf_room room)
{
    return room >> KVF_GENERATION_SHIFT;
}

/* Opens with one writer at a numeric address; the rest as given. */
int fake_open_sink(kvf_client *client, uint32_t region, const int32_t *pages, size_t page_count,
                   kvf_room *ret_room);
int fake_open_source(kvf_client *client, uint32_t region, kvf_room *ret_room);
int fake_submit(kvf_client *client, kvf_room room, uint32_t region, const int32_t *pages,
                size_t page_count, uint32_t start, uint32_t flags);

#endif

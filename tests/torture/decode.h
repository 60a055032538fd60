/* A decode engine's tables. engine_decode.c has the scheduler loop and what happens to requests that
 * arrive; release.c has what happens to the pages of those that do not. */
#ifndef KVF_TORTURE_DECODE_H
#define KVF_TORTURE_DECODE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/torture/engine.h"
#include "tests/torture/probe.h"

enum kvf_seat_state {
    KVF_SEAT_FREE = 0,
    KVF_SEAT_ROOM,    /* its room is open, and nobody aborted it as far as we know */
    KVF_SEAT_ABORTED, /* it is to fail; its pages go the way of the release policy */
    KVF_SEAT_ANSWER   /* Success: the answer streams, the pages are in use */
};

/* One request that is being served. */
struct kvf_seat {
    enum kvf_seat_state state;
    uint32_t request_idx;
    const struct kvf_request *request;
    kvf_room room;
    int32_t *pages; /* plan.pages_max of them */
    uint64_t opened_ns;
    uint64_t answer_until_ns;
    /* of an abort */
    uint64_t abort_ns;    /* kvf_abort was called, by whichever engine */
    uint64_t observed_ns; /* this engine knew: release policies count from here */
    uint64_t drained_ns;  /* 0: not yet proven */
    uint64_t released_ns; /* 0: the pages are still the request's */
    uint64_t placed_at_abort;
    uint64_t placed_in_all;
    bool is_forgotten; /* the release path that did not ask the room was taken */
    bool is_donor;
    bool is_exposed; /* a donor of which bytes landed after the abort */
    bool is_lost_race;
    bool has_no_pages; /* they went to the free list */
    struct kvf_probe probe;
};

struct kvf_decode {
    struct kvf_engine engine;
    struct kvf_seat *seats;
    uint32_t seat_count;
    int32_t *page_memory;
    kvf_room *rooms; /* seats with a room, packed, and their states, for kvf_poll_many */
    int32_t *states;
    struct kvf_seat **polled;
    bool *was_donated; /* per page: a donor's, and no real room has been checked on it since */
};

/* release.c ------------------------------------------------------------------------------------------- */

/* This engine aborts the room, or (by_us false) learned that the source did. 0 or -1. */
int kvf_seat_abort(struct kvf_decode *d, struct kvf_seat *seat);
int kvf_seat_observe_abort(struct kvf_decode *d, struct kvf_seat *seat);
/* One turn of an aborted room. state: of kvf_poll. */
int kvf_seat_turn_aborted(struct kvf_decode *d, struct kvf_seat *seat, int state);
/* Counts what a seat still held when the run gave up. */
void kvf_seat_give_up(struct kvf_decode *d, struct kvf_seat *seat);

/* engine_decode.c -------------------------------------------------------------------------------------- */

/* Success: checks every byte; the answer begins. */
int kvf_seat_arrive(struct kvf_decode *d, struct kvf_seat *seat);
/* How much of the request has landed. placed: what the daemon says; of devices it says nothing before the end, so
 * pieces that begin as they should are counted, as long as the pages are the request's. */
uint64_t kvf_seat_landed(const struct kvf_decode *d, const struct kvf_seat *seat,
                         uint64_t placed);
/* The seat's request has ended and all its counts are in. */
void kvf_seat_end(struct kvf_decode *d, struct kvf_seat *seat);

/* The question of an allocator that asks the ledger. ctx: the engine. */
bool kvf_ask_ledger(void *ctx, int32_t page);

#endif

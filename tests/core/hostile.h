/* A daemon that the test speaks for, as sink or as source of an honest one. */
#ifndef KVF_TESTS_CORE_HOSTILE_H
#define KVF_TESTS_CORE_HOSTILE_H

#include "tests/core/pair.h"

#define FRAME_MAX (KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX)

/* Daemon 0 is honest, daemon 1 is the test, daemon 2 is an honest bystander. */
struct hostile {
    struct pair *p;
    struct pair_conn *c;
    int side; /* ours: PAIR_SINK when we asked daemon 0 to be our source */
    uint32_t seq;
    uint64_t session;
};

struct pair *hostile_world(uint8_t placement);
struct pair *hostile_world_of_queue_pairs(void);
/* The bystander is served, whatever happened; then everything ends. */
void hostile_finish(struct pair *p);

/* A hostile sink: it connects, and daemon 0 is its source. */
struct hostile hostile_as_sink(struct pair *p);
/* A hostile source: daemon 0 has a sink room that names it, and waits for what it says. Streams are answered;
 * queue pairs wait for a LANE. */
struct hostile hostile_as_source(struct pair *p);

/* bytes: what kvf_wire_put_* returned. */
void hostile_send(struct hostile *h, const unsigned char *frame, int bytes);
struct kvf_wire_hello hostile_hello(uint64_t session);
void hostile_say_hello(struct hostile *h, const struct kvf_wire_hello *m);
/* qpn 0: a stream's. HOSTILE_QPN: nobody's. */
#define HOSTILE_QPN 0x900000u
void hostile_send_lane(struct hostile *h, uint32_t lane_idx, uint32_t epoch, uint32_t qpn);
struct kvf_wire_grant hostile_read_grant(struct hostile *h);
void hostile_send_region(struct hostile *h, uint32_t region, uint32_t epoch, uint64_t pages);
/* Four pages of one run over lane 0 at epoch 1. */
struct kvf_wire_grant hostile_grant(uint64_t nonce, uint64_t key);
void hostile_send_grant(struct hostile *h, const struct kvf_wire_grant *m,
                        const struct kvf_wire_run *runs);
/* ACCEPT, DECLINE, ENDED or ABORT. */
void hostile_send_simple(struct hostile *h, uint8_t type, uint64_t nonce);

#endif

/* What kvfence-ctl and a supervisor say to each other, over the socket that engines attach to. A connection
 * whose first packet is KVF_REQ_OPERATE is an operator's: requests are answered in order, one at a time, and
 * a connection that says nothing for two seconds is closed. Refusals are KVF_REP_REFUSED, as everywhere.
 *
 * Whoever may connect may look; what changes something is taken from root and from the daemon's own user
 * only (SO_PEERCRED). Values are the world's: checked on a copy. The link between supervisor and worker
 * carries the same structs. */
#ifndef KVF_RING_OPERATE_H
#define KVF_RING_OPERATE_H

#include <stdint.h>

#include "ring/attach.h"

#define KVF_OPERATE_ROOMS_MAX 64u  /* rows of one answer; ask again from `next` for more */
#define KVF_OPERATE_PEERS_MAX 128u /* connections, and addresses that are held down */
#define KVF_OPERATE_NAME_BYTES 32u

enum kvf_operate_command {
    KVF_OPERATE_STATUS = 1,
    KVF_OPERATE_DRAIN, /* changes; so do all below but PEERS and ROOMS */
    KVF_OPERATE_UNDRAIN,
    KVF_OPERATE_PEERS,
    KVF_OPERATE_PEER_DOWN, /* .peer_id, or .addr if that is 0 */
    KVF_OPERATE_PEER_UP,
    KVF_OPERATE_ROOMS,     /* from .client and .slot on; .phases */
    KVF_OPERATE_RELEASE,   /* .client, .slot, .generation; .word must be KVF_OPERATE_WORD */
    KVF_OPERATE_LOG_LEVEL, /* .level */
};

/* An operator has said that the pages may be overwritten. */
#define KVF_OPERATE_WORD UINT64_C(0x6b76662d796f6c6f)

struct kvf_operate_req {
    struct kvf_attach_header h; /* op KVF_REQ_OPERATE */
    uint32_t command;
    uint32_t client;
    uint32_t slot;
    uint32_t phases; /* bit per enum kvf_phase */
    uint32_t level;  /* enum kvf_log_level */
    uint32_t pad_;
    uint64_t generation;
    uint64_t word;
    uint64_t peer_id; /* a peer's supervisor, as kvf_operate_peer shows it */
    struct kvf_addr_shm addr;
};
_Static_assert(sizeof(struct kvf_operate_req) == 88, "request of an operator");

struct kvf_operate_status {
    uint64_t worker_epoch;
    int32_t supervisor_pid;
    int32_t worker_pid;  /* 0: none */
    uint32_t is_serving; /* 0: no worker serves now, so the numbers of rooms are not known */
    uint32_t is_draining;
    uint32_t is_stopping;
    uint32_t log_level;
    uint32_t clients;         /* known, those that drain after their end included */
    uint32_t clients_waiting; /* ... of which so many are not with this worker yet */
    uint32_t is_unread;       /* some engine's commands were not read yet */
    uint32_t peers_down;      /* by an operator's word */
    uint64_t rooms_open;
    uint64_t rooms_closing;
    uint64_t rooms_fencing;
    uint64_t rooms_quarantined;
};
_Static_assert(sizeof(struct kvf_operate_status) == 80, "status");

enum kvf_operate_peer_state {
    KVF_OPERATE_AT_NONE = 0, /* no connection: listed because it is held down */
    KVF_OPERATE_AT_IDLE,
    KVF_OPERATE_AT_CONNECTING,
    KVF_OPERATE_AT_RETRYING,
    KVF_OPERATE_AT_HELLO, /* connected, and has not said who it is */
    KVF_OPERATE_AT_UP,
    KVF_OPERATE_AT_LOST, /* its lanes are being fenced */
};

struct kvf_operate_peer {
    struct kvf_addr_shm
        addr;         /* where it listens; family 0: it connected to us, from where it likes */
    uint64_t peer_id; /* its supervisor; 0: not known */
    uint32_t worker_starts; /* with peer_id: its incarnation */
    uint32_t state;         /* enum kvf_operate_peer_state */
    uint32_t is_sink; /* it writes nothing here: it connected to us, as sink of our sources */
    uint32_t is_down; /* by an operator's word */
    uint32_t rooms;   /* grants that are not proven yet */
    uint32_t lanes_up;
    char name[KVF_OPERATE_NAME_BYTES]; /* what it calls itself, any bytes */
};
_Static_assert(sizeof(struct kvf_operate_peer) == 88, "peer");

struct kvf_operate_room {
    uint32_t client;
    uint32_t slot;
    uint64_t generation;
    uint64_t label;
    uint64_t key;
    uint64_t
        age_ns;     /* since it closed; while it is open, since it was opened or lost a grant */
    uint64_t pages; /* 0: not known yet */
    uint32_t phase; /* enum kvf_phase */
    uint32_t is_sink;  /* 1; 0: a source. Of rooms of an earlier worker this is not known: 2 */
    uint32_t reason;   /* 0, a KVF_E_*, or its engine's */
    uint32_t unproven; /* (grant, lane) pairs of a sink, posts of a source */
    int32_t engine_pid;
    uint32_t is_engine_gone;
    char name[64]; /* of the client */
};
_Static_assert(sizeof(struct kvf_operate_room) == 136, "room");

struct kvf_operate_rep {        /* sent up to the last row */
    struct kvf_attach_header h; /* op KVF_REP_OPERATED */
    uint32_t row_count;
    uint32_t has_more; /* ROOMS: ask again from here */
    uint32_t next_client;
    uint32_t next_slot;
    struct kvf_operate_status status;
    union {
        struct kvf_operate_peer peers[KVF_OPERATE_PEERS_MAX];
        struct kvf_operate_room rooms[KVF_OPERATE_ROOMS_MAX];
    } rows;
};

#endif

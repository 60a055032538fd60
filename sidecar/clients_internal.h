/* Shared by clients.c (coming, going, turns) and client_rooms.c (commands and lines of rooms). */
#ifndef KVF_SIDECAR_CLIENTS_INTERNAL_H
#define KVF_SIDECAR_CLIENTS_INTERNAL_H

#include "ring/room_word.h"
#include "ring/spsc.h"
#include "sidecar/clients.h"

#define KVF_RECORD_BYTES_MAX                                                                   \
    (sizeof(struct kvf_open_shm) + KVF_PEERS_PER_ROOM_MAX * sizeof(struct kvf_writer_shm) +    \
     KVF_RUNS_PER_LIST_MAX * sizeof(struct kvf_run_shm))

enum client_state {
    CLIENT_FREE = 0,
    CLIENT_MAPPING,   /* helper */
    CLIENT_LIVE,      /* commands are read */
    CLIENT_CLOSED,    /* rooms drain, nothing is read but aborts' and leases' bits */
    CLIENT_UNMAPPING, /* helper */
};

/* What the loop remembers of a slot; never read back from shared memory. */
struct client_slot {
    uint64_t generation; /* of the room the core has or had here */
    uint64_t abort_seen; /* abort cell that was acted on */
    uint64_t opened_ns;
    uint32_t moving_idx;  /* index + 1 in the list of rooms whose counts change */
    bool is_found;        /* an earlier worker's room, for the core to adopt */
    bool is_end_recorded; /* in the histograms, or not ours to record */
};

struct client {
    struct kvf_job job;
    enum client_state state;
    uint32_t idx;
    struct kvf_clients *all;
    struct kvf_segment segment;
    bool is_mapped;
    int segment_fd;  /* ours until mapped */
    int doorbell_fd; /* ours; never read: its sender could make that read block */
    int event_fd;    /* ours */
    int err;         /* of the job ... */
    uint32_t
        ended_on_take; /* ... which found so many rooms that its predecessor's end had drained */
    uint32_t succeeded_on_take; /* ... of which so many end in Success */
    uint32_t close_reason;      /* 0: not asked to close, maybe while the helper has it */
    bool is_reaped;
    bool is_whole; /* no regions come but those of ... */
    uint32_t whole_slots;
    struct kvf_spsc_consumer commands;
    struct kvf_spsc_producer events;
    struct client_slot *slots;
    uint32_t *moving; /* slots whose byte counts change */
    uint32_t moving_count;
    uint32_t refresh_at;
    uint32_t found_count; /* slots to adopt */
};

struct kvf_clients {
    struct kvf_clients_config config;
    struct kvf_core *core;
    struct kvf_helper *helper;
    struct kvf_clients_host host;
    uint32_t used_count;
    uint64_t bad_count;
    uint64_t stale_count;
    uint64_t worker_gone_success_count;
    uint64_t worker_gone_count; /* rooms of earlier workers that taking them over drained */
    _Alignas(8) unsigned char record[KVF_RECORD_BYTES_MAX + 8u];
    struct client table[];
};

/* ---- client_rooms.c ------------------------------------------------------------------------------ */

/* Acts on a copy of a command. NULL, or a sentence: these are not the bytes of a library. */
const char *kvf_client_take_command(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                                    const struct kvf_cmd_shm *cmd);
/* A marked slot: an abort, or the last lease came back. */
void kvf_client_take_dirty(struct kvf_clients *all, struct client *c, uint64_t now_ns,
                           uint32_t slot);
/* Walks a segment taken over from an earlier worker (helper thread), then hands the core what it found:
 * rooms whose external leases are out, and drained ones that belong to a group. */
void kvf_client_find_rooms(struct client *c);
void kvf_client_adopt_rooms(struct kvf_clients *all, struct client *c, uint64_t now_ns);
/* Of a closed client: may external leases still touch pages of rooms whose OPEN will never be read? They were lent to
 * nobody, but the engine, or a device after its end, may write them. Closes their lease words. */
bool kvf_client_has_unread_leases(const struct client *c);
/* Of a closed client whose engine was reaped: what it left to a device in such rooms becomes the core's, in
 * quarantine like all others, so that an operator can see and release it. */
void kvf_client_quarantine_unread(struct kvf_clients *all, struct client *c, uint64_t now_ns);

#endif

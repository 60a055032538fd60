/* What an engine and its daemon share, byte by byte.
 *
 * A client segment is one sealed memfd per client handle. The supervisor lays it out, the library and
 * the worker map it at different addresses, so nothing in it is a pointer: sections are found through
 * the table in the header, and everything inside a section by index. Each 64-byte line has one writer;
 * the lease word is the one exception and is changed by compare-and-swap only.
 *
 * Rules of change: append and bump KVF_LAYOUT_MINOR, or move and bump KVF_LAYOUT_MAJOR. The golden dump
 * in tests/unit/layout.golden changes in the same commit. Reserved bytes (pad_) are written as zero and
 * ignored on read. All integers are native-endian; endian_tag refuses a segment of the other order. */
#ifndef KVF_RING_LAYOUT_H
#define KVF_RING_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_LAYOUT_MAJOR 1u
#define KVF_LAYOUT_MINOR                                                                       \
    3u /* 1: key and group in the client's line, group_waits in the daemon's; 2: KVF_E_PEER_HELD; 3: KVF_E_NO_KEY,
          and memory of devices: device_regions in the client's line, memory in a registration */
#define KVF_SEGMENT_MAGIC UINT64_C(0x31656e6566766b00) /* "\0kvfene1" */
#define KVF_ENDIAN_TAG UINT32_C(0x01020304)
#define KVF_LINE_BYTES 64u
#define KVF_PAGE_BYTES 4096u

/* Bounds of what a segment may ask for; each has its own refusal. */
#define KVF_ROOMS_PER_CLIENT_MAX 65536u
#define KVF_CMD_SLOTS_MAX 65536u
#define KVF_EVENT_SLOTS_MAX 65536u
#define KVF_ARENA_BYTES_MAX (UINT32_C(1) << 28)
#define KVF_REGIONS_PER_CLIENT_MAX 16u
#define KVF_PLANES_MAX 512u
#define KVF_REGION_PAGES_MAX (UINT32_C(1) << 26)
#define KVF_PEERS_PER_ROOM_MAX 16u
#define KVF_RUNS_PER_LIST_MAX 65536u
#define KVF_GROUPS_PER_CLIENT_MAX 16u
#define KVF_GROUP_MEMBERS_MAX 64u /* ranks are bits of one word */
#define KVF_GROUP_KEYS_MAX 1024u

/* Whose memory a region is; kvfence.h repeats the numbers. */
enum kvf_region_memory {
    KVF_REGION_MEMORY_HOST = 0,   /* a sealed memfd */
    KVF_REGION_MEMORY_DMABUF = 1, /* a device's, exported as a dma-buf: nobody maps it */
    KVF_REGION_MEMORY_COUNT
};

/* ---- section table ---------------------------------------------------------------------------- */

enum kvf_section {
    KVF_SECTION_CMD_RING = 0, /* cmd_slots x struct kvf_cmd_shm       client -> worker */
    KVF_SECTION_ARENA,        /* arena_bytes, open records and runs   client -> worker */
    KVF_SECTION_DAEMON_LINES, /* rooms_max x struct kvf_room_shm      worker, or supervisor */
    KVF_SECTION_CLIENT_LINES, /* rooms_max x struct kvf_intent_shm    client */
    KVF_SECTION_DIRTY,      /* struct kvf_dirty words, see below    client sets, worker takes */
    KVF_SECTION_EVENT_RING, /* event_slots x struct kvf_event_shm   worker -> client, hints only */
    KVF_SECTION_GROUP_KEYS, /* KVF_GROUP_KEYS_MAX x struct kvf_group_key_shm  worker -> next worker.
                               Since minor 1; KVF_SECTIONS_BEFORE are in every segment */
    KVF_SECTION_COUNT
};

#define KVF_SECTIONS_BEFORE 6u /* of layout minor 0 */

struct kvf_section_shm {
    uint32_t id;
    uint32_t pad_;
    uint64_t off;
    uint64_t bytes;
};
_Static_assert(sizeof(struct kvf_section_shm) == 24, "section entry");

struct kvf_segment_shm {
    /* line 0: identity. Written by the supervisor, magic last (edge S1). */
    _Atomic uint64_t magic;
    uint16_t layout_major;
    uint16_t layout_minor;
    uint32_t endian_tag;
    uint64_t segment_bytes;
    uint64_t client_id; /* random, names this segment for ever */
    uint32_t rooms_max;
    uint32_t cmd_slots;   /* power of two, at least 2 */
    uint32_t event_slots; /* power of two, at least 2 */
    uint32_t arena_bytes; /* power of two */
    uint32_t regions_max;
    uint32_t pad0_;
    uint64_t pad1_;

    /* line 1: daemon -> client, slow. Epoch 0 means that no worker serves this segment. */
    _Atomic uint64_t worker_epoch; /* edge E1 */
    _Atomic uint32_t stopping;     /* 1: opens answer -ESHUTDOWN */
    uint32_t lanes_per_peer;
    uint64_t bound_usual_us; /* detection + cooperative + fence + visibility */
    uint64_t bound_worst_us; /* the same + watchdog + kill */
    uint64_t pad2_[4];

    /* line 2: daemon -> client, every turn of the loop. */
    _Atomic uint64_t loop_count;
    _Atomic uint64_t cmd_consumed; /* free-running; arena up to here may be reused (edge C3) */
    _Atomic uint32_t sleeping;     /* Dekker with the command ring (edge D1, seq_cst) */
    _Atomic uint32_t events_lost;  /* events dropped since start: scan the rooms */
    uint64_t pad3_[5];

    /* line 3: client -> daemon. */
    _Atomic uint32_t events_armed; /* 1: a thread waits on the event descriptor (Dekker, D2) */
    uint32_t pad4_;
    _Atomic uint64_t events_consumed;
    uint64_t pad5_[6];

    /* line 4..: the table. */
    struct kvf_section_shm sections[KVF_SECTION_COUNT];
    uint64_t pad6_[11];
};
_Static_assert(offsetof(struct kvf_segment_shm, worker_epoch) == 64, "line 1");
_Static_assert(offsetof(struct kvf_segment_shm, loop_count) == 128, "line 2");
_Static_assert(offsetof(struct kvf_segment_shm, events_armed) == 192, "line 3");
_Static_assert(offsetof(struct kvf_segment_shm, sections) == 256, "line 4");
_Static_assert(sizeof(struct kvf_segment_shm) == 512, "header");

/* ---- commands: client -> worker ---------------------------------------------------------------- */

enum kvf_cmd_op {
    KVF_CMD_OPEN_SINK = 1,   /* arena: struct kvf_open_shm, writers, runs (the pages) */
    KVF_CMD_OPEN_SOURCE = 2, /* arena: struct kvf_open_shm alone */
    KVF_CMD_SUBMIT = 3, /* arena: runs of one piece; start = position in the grant's list */
};

#define KVF_SUBMIT_LAST 1u /* cmd.flags: no piece follows */

/* Every command names the room's incarnation and the worker epoch it was written under: a new worker
 * answers an OPEN of an older epoch with NEVER_POSTED and drops everything else that is old. */
struct kvf_cmd_shm {
    _Atomic uint64_t seq; /* ring protocol, see spsc.h */
    uint8_t op;
    uint8_t flags;
    uint16_t sinks; /* OPEN_SOURCE: how many sinks it serves (1..KVF_PEERS_PER_ROOM_MAX) */
    uint32_t slot;
    uint64_t generation;
    uint64_t worker_epoch;
    uint64_t label;     /* OPEN: the engine's own room number, never an identity */
    uint64_t key;       /* OPEN: unique per request and attempt, equal on all ranks */
    uint32_t arena_off; /* start of the record in the arena, multiple of 8; it never wraps */
    uint32_t arena_bytes;
    uint32_t start; /* SUBMIT: first position of the piece */
    uint32_t group; /* OPEN: handle of a registered group, 0 = none */
};
_Static_assert(sizeof(struct kvf_cmd_shm) == 64, "command slot");
_Static_assert(offsetof(struct kvf_cmd_shm, op) == 8, "payload follows the sequence");

struct kvf_addr_shm {
    uint8_t family; /* 4 or 6 */
    uint8_t pad_;
    uint16_t port; /* host order */
    uint32_t scope;
    uint8_t addr[16]; /* network order; IPv4 in the first four bytes */
};
_Static_assert(sizeof(struct kvf_addr_shm) == 24, "address");

/* One writer of a sink room and its part [start, start + count) of the room's page list. Its grant
 * counts positions from 0 at `start`. Parts of one room do not overlap and cover the list. */
struct kvf_writer_shm {
    struct kvf_addr_shm addr;
    uint32_t start;
    uint32_t count;
};
_Static_assert(sizeof(struct kvf_writer_shm) == 32, "writer");

/* A run of contiguous pages of one region. Lists of runs keep the engine's order of pages. */
struct kvf_run_shm {
    uint32_t region; /* region handle: slot in its client (low 8 bits) and epoch (upper 24) */
    uint32_t first;
    uint32_t count;
};
_Static_assert(sizeof(struct kvf_run_shm) == 12, "run");

struct kvf_open_shm {
    uint32_t writer_count; /* OPEN_SOURCE: 0 */
    uint32_t run_count;    /* OPEN_SOURCE: 0 */
    uint32_t region;       /* OPEN_SOURCE: the region its pieces come from */
    uint32_t aux_region;   /* OPEN_SOURCE: UINT32_MAX = none */
    /* struct kvf_writer_shm writers[writer_count]; struct kvf_run_shm runs[run_count]; */
};
_Static_assert(sizeof(struct kvf_open_shm) == 16, "open record");

/* ---- rooms -------------------------------------------------------------------------------------- */

/* Written by the daemon side alone. The word is the truth; everything else in the line is stored
 * before it (edge R1) and is a hint until the word says DRAINED. */
struct kvf_room_shm {
    _Atomic uint64_t word;         /* room_word.h */
    _Atomic uint64_t epoch;        /* worker epoch that serves this generation */
    _Atomic uint32_t reason;       /* 0 or a KVF_E_* code, positive */
    _Atomic uint32_t detail;       /* errno or the peer's reason */
    _Atomic uint64_t placed_bytes; /* sink: landed so far; source: handed to its lanes */
    _Atomic uint64_t total_bytes;  /* of all grants, or granted sinks; 0 = not known yet */
    _Atomic uint32_t total_pages;  /* length of the grant's page list, 0 = not known yet */
    _Atomic uint32_t unproven;     /* (grant, lane) pairs without proof */
    _Atomic uint64_t close_to_drained_ns; /* from the close to drained */
    _Atomic uint64_t
        group_waits; /* bit per rank that has not settled, a hint like the counts */
};
_Static_assert(sizeof(struct kvf_room_shm) == 64, "daemon's line of a room");

/* Written by the library alone, but for lease_word (compare-and-swap by both sides). */
struct kvf_intent_shm {
    _Atomic uint64_t generation; /* stored before the OPEN is pushed (edge O1) */
    _Atomic uint64_t epoch;      /* worker epoch the OPEN was written under */
    _Atomic uint64_t abort_cell; /* generation << 24 | KVF_ABORT_SET | reason; edge A1 */
    _Atomic uint64_t lease_word; /* lease_word.h */
    _Atomic uint64_t key;        /* of the OPEN; stored before `generation`, like the next */
    _Atomic uint32_t group;      /* its group's handle, 0: none */
    /* Sink: bit per slot of a region with pages of this room that is memory of a device, like the two above.
     * Such a room is not drained by the end of its worker alone. Since minor 3. */
    _Atomic uint32_t device_regions;
    uint64_t pad_[2];
};
_Static_assert(sizeof(struct kvf_intent_shm) == 64, "client's line of a room");

#define KVF_ABORT_SET UINT64_C(0x800000)
#define KVF_ABORT_REASON_MASK UINT64_C(0xffff)

/* A key that other ranks ended before this client opened it: the next worker must know it too. */
struct kvf_group_key_shm {
    _Atomic uint64_t key;   /* stored before `group` */
    _Atomic uint32_t group; /* handle, 0: unused */
    uint32_t pad_;
};
_Static_assert(sizeof(struct kvf_group_key_shm) == 16, "kept key");

/* Two levels, so that a look costs two lines whatever rooms_max is: summary bit i says that leaf word i
 * is not zero. The client sets the leaf bit, then the summary bit; the worker takes the summary word,
 * then the leaf words it names (edge A1). summary words come first, then the leaves. */
#define KVF_DIRTY_SUMMARY_WORDS (KVF_ROOMS_PER_CLIENT_MAX / 64u / 64u)
_Static_assert(KVF_DIRTY_SUMMARY_WORDS == 16, "summary is two lines");

/* ---- events: worker -> client, hints only ------------------------------------------------------- */

struct kvf_event_shm {
    _Atomic uint64_t seq;
    uint32_t slot;
    uint32_t pad0_;
    uint64_t generation;
    uint64_t word; /* the room word that was published */
    uint64_t pad_[4];
};
_Static_assert(sizeof(struct kvf_event_shm) == 64, "event slot");

#endif

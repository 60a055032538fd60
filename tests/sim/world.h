/* The world of kvfence-sim: hosts with a supervisor, a worker (the real core) and engines, under virtual time.
 *
 * One struct sim_world is one seed. Everything in it moves by events of the virtual clock; nothing in it
 * knows real time, threads or the operating system, so that a seed is the same history on every machine.
 *
 *   scenario.c  seed -> list of operations     ops.c      carries them out
 *   engine.c    engines, their library's shadow  lease.c  external leases and what writes under them
 *   host.c      supervisors, deaths, restarts   worker.c  the loop around a core
 *   control.c   control connections             lanes.c   between core and simulated transport
 *   oracle.c    who owns a page, which words are legal, what must be clean at the end
 *   history.c   what happened, for people       run.c     one seed from start to verdict
 *
 * Ownership: the world owns all its memory, made once by sim_world_create and wiped between seeds. Nothing
 * is allocated per event. Single-threaded. Times are virtual nanoseconds, sizes bytes unless named. */
#ifndef KVF_TESTS_SIM_WORLD_H
#define KVF_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring/layout.h"
#include "ring/room_word.h"
#include "ring/segment.h"
#include "sidecar/core/core.h"
#include "tests/sim/clock.h"
#include "tests/sim/fabric.h"
#include "tests/sim/random.h"
#include "tests/sim/scenario.h"

#define SIM_CLIENTS 4u /* places for engines in a host's tables */
#define SIM_SLOTS 16u  /* rooms of one engine */
#define SIM_REGIONS 2u /* main and auxiliary */
#define SIM_PAGES_MAX 40u
#define SIM_PAGE_BYTES_MAX 256u
#define SIM_WORDS_PER_PAGE (SIM_PAGE_BYTES_MAX / 8u)
#define SIM_CMDS 32u
#define SIM_PEERS 24u
#define SIM_LANES (SIM_PEERS * KVF_LANES_MAX)
#define SIM_ROOMS_MAX 1024u
#define SIM_CONNS_MAX 256u
#define SIM_FRAMES_MAX 4096u
#define SIM_FRAME_BYTES 1024u
#define SIM_PREFIXES 4u
#define SIM_LEASES_MAX 512u
#define SIM_ARMED_MAX 32u
#define SIM_KEYS_MAX 64u                     /* keys that other ranks ended, of one engine */
#define SIM_EXTRA_MAX (5u * SIM_WORLD_HOSTS) /* a round a lane, and one more */
#define SIM_REQUESTS_MAX (SIM_OPS_MAX + SIM_EXTRA_MAX)
#define SIM_RUNS_MAX 24u
#define SIM_NO_ROOM UINT32_MAX

#define SIM_US UINT64_C(1000)
#define SIM_MS UINT64_C(1000000)
#define SIM_S UINT64_C(1000000000)

struct sim_world;

/* ---- what happened ------------------------------------------------------------------------------------ */

/* One line of the history. The table in history.c says how each is printed. */
enum sim_happening {
    SIM_OP = 1,
    SIM_LEND,
    SIM_OPEN_READ,
    SIM_SUBMIT_READ,
    SIM_GRANT,
    SIM_FRAME,
    SIM_POST,
    SIM_READ,
    SIM_COMPLETE,
    SIM_LAND,
    SIM_SCRATCH,
    SIM_MARKER,
    SIM_FENCE,
    SIM_FENCED,
    SIM_LANE_UP,
    SIM_LANE_LOST,
    SIM_ABORT,
    SIM_WORD,
    SIM_DRAINED,
    SIM_REUSE,
    SIM_LEASE_TAKE,
    SIM_LEASE_TOUCH,
    SIM_LEASE_RETURN,
    SIM_LEASE_CLOSE,
    SIM_CONNECT,
    SIM_CONN_UP,
    SIM_CONN_END,
    SIM_WORKER_START,
    SIM_WORKER_SERVES,
    SIM_WORKER_FREEZE,
    SIM_WORKER_THAW,
    SIM_WORKER_KILL,
    SIM_WORKER_REAP,
    SIM_ESCALATE,
    SIM_SUPERVISOR_KILL,
    SIM_SUPERVISOR_START,
    SIM_HOST_CRASH,
    SIM_ENGINE_START,
    SIM_ENGINE_HANG_UP,
    SIM_ENGINE_REAP,
    SIM_ENGINE_FREEZE,
    SIM_ENGINE_THAW,
    SIM_CLIENT_QUIET,
    SIM_ROUTE,
    SIM_HAPPENINGS
};

struct sim_note {
    uint64_t now_ns;
    uint8_t kind; /* enum sim_happening */
    uint8_t host;
    uint32_t room; /* index of a room, or SIM_NO_ROOM */
    uint32_t page; /* sim_page_id, or SIM_NO_ROOM */
    uint64_t a;
    uint64_t b;
};

/* ---- failures ------------------------------------------------------------------------------------------ */

/* A seed is shrunk as long as it fails in the same way. */
enum sim_verdict {
    SIM_PASSED = 0,
    SIM_UNSAFE_LANDING, /* a byte lands in a page its room no longer owns, or a stranger's byte */
    SIM_UNSAFE_READ,    /* a byte is read from a page its room no longer owns */
    SIM_UNSAFE_LEASE,   /* drained while work under an external lease still touches the page */
    SIM_WRONG_CONTENT,    /* Success with wrong bytes */
    SIM_WORD_BACKWARDS,   /* a room word went backwards, or is none of the legal ones */
    SIM_LEDGER_WRONG,     /* the ledger calls a page idle that is owned, or the other way */
    SIM_BOUND_BROKEN,     /* a room was not drained in the time that is promised */
    SIM_NEVER_ENDS,       /* after the faults stopped a room did not end */
    SIM_NOT_CLEAN,        /* counters, gauges or tables do not balance at the end */
    SIM_NO_SERVICE,       /* after the faults stopped a transfer does not succeed */
    SIM_QUARANTINE_WRONG, /* pages withheld without a reason */
    SIM_GROUP_WRONG, /* a rank is told Failed before another is drained, or talk for nothing */
    SIM_PROTOCOL_ERROR, /* daemons of one kind call each other liars */
    SIM_CRASHED,        /* an assert, a signal, or no end in sight */
    SIM_VERDICTS
};

/* ---- rooms and pages ----------------------------------------------------------------------------------- */

struct sim_page_at {
    uint8_t region; /* index, not handle */
    uint8_t page;
};

/* One incarnation of one room, as the oracle knows it. */
struct sim_room {
    uint64_t generation;
    uint64_t key;
    uint64_t label;
    uint64_t opened_ns;
    uint64_t closed_ns; /* first moment from which the bound runs; KVF_NO_TIME: still open */
    uint64_t drained_ns;
    uint64_t
        frozen_before_ns; /* how long its host's workers had stood still before the close */
    uint64_t word;        /* last seen */
    uint32_t slot;
    uint16_t request;
    uint8_t member; /* of the request: sinks first, then sources */
    uint8_t host;
    uint8_t client;
    uint8_t page_count;
    bool is_sink;
    bool is_drained;      /* its word says so, or the library may conclude it */
    bool is_moot;         /* its segment ended with its host or its last supervisor */
    bool is_seen;         /* its engine took the pages back */
    bool has_lost_worker; /* its worker died or stood still: the bound's worst part counts */
    bool is_bound_off;    /* an external lease of a living engine is not in the bound */
    bool is_quarantined;
    bool is_stillborn; /* ended by the very event that read its open, or never read */
    uint8_t leases[3];
    struct sim_page_at pages[SIM_ROOM_PAGES_MAX];
};

/* Shadow of one page. */
struct sim_page {
    uint32_t owner; /* sink room that may be written now, index; or SIM_NO_ROOM */
    uint8_t position;
    uint8_t is_held;  /* the engine's allocator has handed it out */
    uint16_t readers; /* source rooms that may be read now */
    uint64_t words[SIM_WORDS_PER_PAGE];
};

struct sim_region {
    uint32_t handle;
    uint32_t key; /* of its registration with the NIC; 0: none */
    uint32_t page_count;
    uint32_t page_bytes;
    struct kvf_core_plane plane;
    uint32_t owners[SIM_PAGES_MAX];         /* the core's */
    _Atomic uint64_t ledger[SIM_PAGES_MAX]; /* the library's */
    struct sim_page pages[SIM_PAGES_MAX];
    struct kvf_transport_region seen;  /* as transports see it */
    uint8_t free_pages[SIM_PAGES_MAX]; /* a stack: what was freed last is reused first */
    uint32_t free_count;
};

/* ---- engines ------------------------------------------------------------------------------------------- */

struct sim_cmd {
    uint8_t op; /* enum kvf_cmd_op */
    bool is_last;
    uint8_t sinks;
    uint8_t writer_count;
    uint8_t run_count;
    uint32_t slot;
    uint32_t group;
    uint32_t start;
    uint32_t room; /* of the oracle */
    uint64_t generation;
    uint64_t epoch;
    uint64_t label;
    uint64_t key;
    uint32_t region;
    uint32_t aux_region;
    struct kvf_writer_shm writers[SIM_WRITERS_MAX];
    struct kvf_run_shm runs[SIM_RUNS_MAX];
};

/* A few pages of a common prefix, read by many rooms at once. */
struct sim_prefix {
    uint32_t id; /* 0: none */
    uint32_t refs;
    uint8_t count;
    uint8_t pages[SIM_PREFIX_PAGES_MAX];
};

enum sim_process {
    SIM_ABSENT = 0,
    SIM_RUNS,
    SIM_FROZEN,
    SIM_DYING /* killed, not reaped */,
    SIM_REAPED
};

/* One place of a host's client tables, and the engine that holds it: the engine's process and library, the
 * segment, and what supervisor and worker remember of it. Each keeps to its own part. */
struct sim_client {
    /* the engine */
    enum sim_process process;
    uint32_t incarnation;     /* events of an earlier engine in this place are dropped */
    uint8_t engine;           /* which of the host's engines it is */
    bool is_attached;         /* a supervisor has its segment */
    bool was_served;          /* a worker knew it, and so the ranks it has */
    bool has_detached;        /* it left in order */
    bool is_supervisor_gone;  /* its library saw the hang-up */
    uint64_t ended_epochs[8]; /* workers whose end its library concluded */
    uint32_t ended_count;
    uint32_t room_of[SIM_SLOTS];
    uint32_t slot_queue[SIM_SLOTS]; /* first-in first-out */
    uint32_t slot_count;
    uint64_t generations[SIM_SLOTS];
    struct sim_prefix prefixes[SIM_PREFIXES];
    struct sim_region regions[SIM_REGIONS];

    /* the segment */
    struct kvf_segment segment; /* rooms and intents point below */
    struct kvf_room_shm rooms[SIM_SLOTS];
    struct kvf_intent_shm intents[SIM_SLOTS];
    uint64_t worker_epoch;
    struct sim_cmd cmds[SIM_CMDS];
    uint32_t cmd_head, cmd_tail;
    uint32_t dirty;
    struct {
        uint32_t group;
        uint64_t key;
    } keys[SIM_KEYS_MAX]; /* worker to next worker */

    /* the supervisor */
    bool is_used;
    bool is_closing;
    bool is_reaped_known;
    uint32_t close_reason;

    /* the worker */
    bool is_in_core;
    bool is_closed_told;
    bool is_reaped_told;
    struct {
        uint64_t generation;
        uint64_t abort_seen;
    } slots[SIM_SLOTS];
};

/* ---- control connections -------------------------------------------------------------------------------- */

struct sim_frame {
    uint32_t next;
    uint32_t bytes;
    uint64_t due_ns;
    unsigned char data[SIM_FRAME_BYTES];
};

enum { SIM_DIALS = 0, SIM_ACCEPTS = 1 };

struct sim_pipe {        /* to one side */
    uint32_t head, tail; /* frames, index; KVF_NONE: none */
    uint32_t count;
    bool has_event;
    bool has_end; /* after the last frame the other side's end is seen */
    uint64_t end_ns;
};

struct sim_conn {
    bool is_used;
    uint32_t serial; /* events of an earlier connection in this place are dropped */
    uint8_t host[2];
    uint32_t life[2]; /* of the worker that holds that side */
    uint32_t peer[2]; /* KVF_NONE: not accepted yet */
    bool is_open[2];
    bool is_up;   /* the dialling side was told that it is connected */
    bool is_dead; /* something in the middle forgot it: nothing moves any more */
    bool wants_write[2];
    uint64_t flow_ns[2]; /* of the network, to that side */
    struct sim_pipe to[2];
};

/* Faults that are on from host a to host b. They may overlap: each ends on its own. */
struct sim_route {
    uint16_t cuts;
    uint16_t stalls;
    uint16_t storms;
};

/* ---- hosts ---------------------------------------------------------------------------------------------- */

enum sim_worker_state {
    SIM_WORKER_NONE = 0,
    SIM_WORKER_STARTING,
    SIM_WORKER_SERVING,
    SIM_WORKER_KILLED /* not reaped yet */
};

struct sim_host {
    struct sim_world *world;
    uint32_t idx;
    uint64_t clock_lead_ns; /* its clock's lead over the world's */
    /* machine and supervisor */
    bool is_up;
    bool has_supervisor;
    uint32_t machine_life; /* bumped when the machine crashes */
    uint32_t supervisor_life;
    uint64_t supervisor_id;
    uint32_t worker_starts;
    uint64_t epoch;
    enum sim_worker_state worker;
    bool is_frozen;
    uint32_t freezes;  /* faults that freeze it now */
    uint32_t refusals; /* faults that refuse connections now */
    uint32_t life;     /* bumped at every start and end of a worker */
    uint64_t frozen_since_ns;
    uint64_t frozen_total_ns; /* of all its workers, up to the last thaw or end */
    /* the worker */
    void *core_memory;
    size_t peers_off;      /* in core_memory; 0: no core was there yet */
    struct kvf_core *core; /* NULL: none */
    struct kvf_transport *transport;
    bool is_kicked;
    bool is_syncing;
    uint64_t timer_ns; /* earliest timer event that is out */
    uint32_t conn_of_peer[SIM_PEERS];
    uint32_t lane_epochs[SIM_LANES];
    struct {            /* as source over queue pairs: who may come for this lane */
        uint32_t epoch; /* 0: nobody */
        uint64_t session;
    } ends[SIM_LANES];
    bool is_post_lane[SIM_LANES];
    uint32_t post_lanes[SIM_LANES];
    uint32_t post_lane_count;
    struct sim_client clients[SIM_CLIENTS];
    uint32_t client_of[SIM_ENGINES]; /* KVF_NONE: that engine is not there */
    uint32_t engine_starts[SIM_ENGINES];
    bool has_departed[SIM_GROUPS]
                     [SIM_SINKS_MAX]; /* ranks whose engine left, for the next worker */
};

/* ---- requests -------------------------------------------------------------------------------------------- */

struct sim_request {
    const struct sim_plan *plan;
    uint32_t landings;             /* ranges of bytes in its sinks' pages */
    uint16_t armed[SIM_ARMED_MAX]; /* operations that wait for a number of them */
    uint8_t armed_count;
    uint64_t key;
    uint32_t rooms[SIM_MEMBERS]; /* SIM_NO_ROOM: not open (yet) */
    bool is_abort_wished[SIM_MEMBERS];
    uint32_t abort_reason[SIM_MEMBERS];
    uint8_t tries[SIM_MEMBERS];
    uint8_t pieces_out[SIM_WRITERS_MAX];
    uint8_t submit_tries[SIM_WRITERS_MAX];
    uint32_t engine_starts[SIM_MEMBERS]; /* of its engines, when the request began */
    uint8_t prefix_of[SIM_WRITERS_MAX];  /* index + 1 of the prefix that its source counts */
};

/* Work under a lease: a copy, a restore from a disk, another library's transfer. */
struct sim_lease {
    bool is_used;
    uint8_t kind;
    uint8_t host, client;
    uint32_t incarnation;
    uint32_t room;
    uint64_t step_ns;
};

/* ---- figures --------------------------------------------------------------------------------------------- */

#define SIM_FIGURES(X)                                                                         \
    X(events)                                                                                  \
    X(requests)                                                                                \
    X(rooms)                                                                                   \
    X(rooms_succeeded)                                                                         \
    X(rooms_failed)                                                                            \
    X(aborts)                                                                                  \
    X(leases)                                                                                  \
    X(lease_touches)                                                                           \
    X(fences)                                                                                  \
    X(fences_hung)                                                                             \
    X(regrants)                                                                                \
    X(escalations)                                                                             \
    X(worker_kills)                                                                            \
    X(worker_freezes)                                                                          \
    X(watchdog_kills)                                                                          \
    X(supervisor_kills)                                                                        \
    X(stops)                                                                                   \
    X(host_crashes)                                                                            \
    X(engine_deaths)                                                                           \
    X(engine_freezes)                                                                          \
    X(crashes)                                                                                 \
    X(partitions)                                                                              \
    X(cuts)                                                                                    \
    X(late_writes_refused)                                                                     \
    X(landings)                                                                                \
    X(reads)                                                                                   \
    X(frames)                                                                                  \
    X(posts)                                                                                   \
    X(quarantines)                                                                             \
    X(pages_reused)                                                                            \
    X(grants_parked)                                                                           \
    X(never_posted)                                                                            \
    X(landed)                                                                                  \
    X(source_idle)                                                                             \
    X(peer_drained)                                                                            \
    X(revoked)                                                                                 \
    X(fenced)                                                                                  \
    X(worker_gone)                                                                             \
    X(engine_gone)                                                                             \
    X(stale_commands)                                                                          \
    X(stale_messages)                                                                          \
    X(stale_lane_events)                                                                       \
    X(opens_refused)                                                                           \
    X(group_rooms)                                                                             \
    X(group_rooms_failed)                                                                      \
    X(group_waits)                                                                             \
    X(group_closed)                                                                            \
    X(group_messages)                                                                          \
    X(unsafe_landings)                                                                         \
    X(bound_violations)                                                                        \
    X(history)

struct sim_figures {
#define SIM_FIGURE(name) uint64_t name;
    SIM_FIGURES(SIM_FIGURE)
#undef SIM_FIGURE
};

/* ---- the world ------------------------------------------------------------------------------------------- */

enum sim_phase {
    SIM_FAULTS,   /* operations and faults */
    SIM_ENDING,   /* faults are over: every room must end */
    SIM_SERVICE,  /* one more transfer between neighbours must succeed */
    SIM_SETTLING, /* tables must empty */
    SIM_OVER
};

struct sim_failure {
    enum sim_verdict verdict;
    char text[256];
    uint32_t room;
    uint32_t page;
};

struct sim_world {
    struct sim_clock clock;
    struct sim_scenario scenario;
    struct sim_fabric *fabric;
    struct sim_random luck;
    struct sim_link calm; /* every link without a fault */
    struct sim_link storm;
    enum sim_phase phase;
    uint64_t phase_end_ns;
    uint64_t calm_from_ns; /* the last fault is over by then */
    uint64_t quiet_since_ns;
    uint32_t service_first; /* request */
    uint32_t service_rounds;
    struct sim_failure failure;
    struct sim_figures figures;
    uint64_t hash;   /* of the whole history */
    uint32_t plants; /* bits by enum sim_plant */

    struct kvf_core_limits limits;
    struct kvf_core_config config;
    size_t core_bytes;
    uint64_t bound_usual_ns;
    uint64_t bound_worst_ns;
    uint64_t watchdog_ns;

    struct sim_host hosts[SIM_WORLD_HOSTS];
    struct sim_route routes[SIM_WORLD_HOSTS][SIM_WORLD_HOSTS];
    struct sim_room rooms[SIM_ROOMS_MAX];
    uint32_t room_count;
    uint32_t undrained;     /* rooms that are neither drained, moot nor quarantined */
    uint32_t group_waiting; /* rooms whose word says drained and waits for other ranks */
    struct sim_request requests[SIM_REQUESTS_MAX];
    struct sim_lease leases[SIM_LEASES_MAX];
    uint32_t lease_count;
    uint32_t request_count; /* those of the scenario by their operation's number, then others */
    struct sim_plan extra_plans[SIM_EXTRA_MAX];
    uint32_t extra_count;

    struct sim_conn conns[SIM_CONNS_MAX];
    struct sim_frame frames[SIM_FRAMES_MAX];
    uint32_t frame_free;
    uint32_t frames_fresh;
    unsigned char emit_buffer[KVF_WIRE_HEADER_BYTES + KVF_WIRE_PAYLOAD_MAX];

    struct sim_note *notes; /* NULL: no history is kept */
    uint64_t note_count;
};

#endif

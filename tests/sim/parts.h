/* What the parts of the world call of each other. Who may touch which member of struct sim_world is the table
 * at the head of world.h; everything here runs within an event of the virtual clock. */
#ifndef KVF_TESTS_SIM_PARTS_H
#define KVF_TESTS_SIM_PARTS_H

#include "tests/sim/world.h"

/* ---- plants: misbehaviour of the harness that a run must notice ------------------------------------------- */

enum sim_plant {
    SIM_PLANT_UNSTRICT_FENCE = 0, /* a fence answers before the last packet is placed */
    SIM_PLANT_TRUST_FLUSH,        /* a fence flushes, and its queue pair goes on answering */
    SIM_PLANT_CONSTANT_PSN, /* queue pairs begin at one PSN and numbers come back at once */
    SIM_PLANT_REUSE_EARLY,  /* an engine reuses pages as soon as it has aborted */
    SIM_PLANT_REUSE_ON_EARLY_FAIL, /* an engine reuses pages as soon as failure is told */
    SIM_PLANT_REAP_AT_KILL,      /* the supervisor publishes at the kill, not after the reap */
    SIM_PLANT_LEASE_IGNORED,     /* the worker tells the core that no lease is out */
    SIM_PLANT_OLD_EPOCH,         /* a new worker takes opens of an older epoch for its own */
    SIM_PLANT_HANG_UP_IS_REAPED, /* an engine's hang-up counts as its end */
    SIM_PLANT_DEVICE_LEASE_FREED, /* a dead engine's gpu and direct-io leases count as returned */
    SIM_PLANT_COMPLETION_LOST,    /* the transport forgets a completion now and then */
    SIM_PLANT_NO_WATCHDOG, /* nobody ends a worker that stands still or whose fence hangs */
    SIM_PLANTS
};
extern const char *const sim_plant_names[SIM_PLANTS];
static inline bool sim_has_plant(const struct sim_world *w, enum sim_plant plant)
{
    return (w->plants >> plant & 1u) != 0;
}

/* ---- history.c -------------------------------------------------------------------------------------------- */

#define SIM_NOTES_MAX (1u << 18)

static inline void sim_note(struct sim_world *w, enum sim_happening kind, uint32_t host,
                            uint32_t room, uint32_t page, uint64_t a, uint64_t b)
{
    uint64_t x = w->clock.now_ns ^ (uint64_t)kind << 56 ^ (uint64_t)host << 48 ^
                 (uint64_t)room << 20 ^ page;
    w->hash = sim_random_mix(w->hash + x + a * 3u + b * UINT64_C(0x9e3779b97f4a7c15));
    if (w->notes != NULL) {
        w->notes[w->note_count++ % SIM_NOTES_MAX] =
            (struct sim_note){w->clock.now_ns, (uint8_t)kind, (uint8_t)host, room, page, a, b};
    }
}
/* The first failure of a seed counts; the run ends after the current event. */
void sim_fail(struct sim_world *w, enum sim_verdict verdict, uint32_t room, uint32_t page,
              const char *format, ...) __attribute__((format(printf, 5, 6)));
extern const char *const sim_verdict_names[SIM_VERDICTS];

/* A page's number over the whole world, for the history. */
static inline uint32_t sim_page_id(uint32_t host, uint32_t client, uint32_t region,
                                   uint32_t page)
{
    return ((host * SIM_CLIENTS + client) * SIM_REGIONS + region) * 256u + page;
}

/* ---- oracle.c --------------------------------------------------------------------------------------------- */

/* A new room, not yet in its slot. SIM_NO_ROOM: the seed has made too many. */
uint32_t sim_room_new(struct sim_world *w, uint32_t request, uint32_t member, uint32_t host,
                      uint32_t client);
/* From the moment the library's call lends it: this room's, at its next position. */
void sim_oracle_lend_sink(struct sim_world *w, uint32_t room, uint32_t region, uint32_t page);
void sim_oracle_lend_source(struct sim_world *w, uint32_t room, uint32_t region, uint32_t page);
/* The push failed: as if it had never been lent. */
void sim_oracle_unlend(struct sim_world *w, uint32_t room);
/* The room is to end, whoever wants it: the bound runs from here. Later calls change nothing. */
void sim_oracle_closed(struct sim_world *w, uint32_t room);
/* Somebody stored this slot's room word: looks at it. view: of the core, or NULL if a supervisor stored it. */
void sim_oracle_word(struct sim_world *w, uint32_t host, uint32_t client, uint32_t slot,
                     const struct kvf_core_room_view *view);
/* The library concludes, with no supervisor left, that the room is drained by its worker's end. */
void sim_oracle_concluded(struct sim_world *w, uint32_t room);
/* Segment and engine are gone: nobody will ever see it. */
void sim_oracle_moot(struct sim_world *w, uint32_t room);
/* All rooms of this host's worker: it died or stood still. */
void sim_oracle_worker_lost(struct sim_world *w, uint32_t host);
/* Work under a lease touches the room's pages. */
void sim_oracle_touch(struct sim_world *w, uint32_t room, uint32_t nth);
int sim_oracle_land(void *ctx, const struct sim_touch *touch, uint64_t tag, const void *buffer);
int sim_oracle_read(void *ctx, const struct sim_touch *touch, uint64_t *ret_tag, void *buffer);
/* What a source's page holds. */
void sim_oracle_fill(struct sim_world *w, uint32_t room, uint32_t writer, uint32_t position,
                     struct sim_region *reg, uint32_t page);
void sim_oracle_fill_prefix(uint32_t prefix_id, uint32_t host, uint32_t position,
                            struct sim_region *reg, uint32_t page);
void sim_oracle_poison(struct sim_region *reg, uint32_t page);
static inline struct sim_room *sim_room_at(struct sim_world *w, uint32_t room)
{
    return &w->rooms[room];
}

/* ---- verify.c, which knows the core's tables ------------------------------------------------------------------------- */

/* What must be clean at the end of a seed. */
void sim_verify_end(struct sim_world *w);
/* Whether tables and gauges of every worker are empty. */
bool sim_is_settled(struct sim_world *w);
/* What is counted by others than the world itself: cores and fabric. Once, at the end. */
void sim_sum_up(struct sim_world *w);
/* Adds up what this worker's core counted, before it ends. */
void sim_count_core(struct sim_world *w, struct sim_host *h);

/* ---- engine.c --------------------------------------------------------------------------------------------- */

void sim_engine_start(struct sim_world *w, uint32_t host, uint32_t engine);
/* Events: an open, or the next piece, of a request. */
void sim_engine_open(void *world, uint64_t request, uint64_t member);
void sim_engine_submit(void *world, uint64_t request, uint64_t writer);
void sim_engine_abort(struct sim_world *w, uint32_t room, uint32_t reason);
/* The library looks at its rooms: takes back what is drained, at once. */
void sim_engine_look(struct sim_world *w, struct sim_host *h, uint32_t client);
/* One room of it, whose word was just stored. */
void sim_engine_see(struct sim_world *w, struct sim_host *h, uint32_t client, uint32_t slot);
/* The library's answer to "is it drained". */
bool sim_library_is_drained(const struct sim_client *c, uint32_t slot, uint64_t generation);
/* The library saw its supervisor hang up and that worker's pidfd readable. */
void sim_library_conclude(struct sim_world *w, struct sim_host *h, uint32_t client,
                          uint64_t epoch);
/* The process of this place is gone, or leaves. */
void sim_engine_kill(struct sim_world *w, struct sim_host *h, uint32_t engine,
                     uint64_t reap_after_ns);
void sim_engine_detach(struct sim_world *w, struct sim_host *h, uint32_t engine);
void sim_engine_freeze(struct sim_world *w, struct sim_host *h, uint32_t engine,
                       uint64_t for_ns);
/* Its supervisor died: nobody will hear of it if it is dead, or leaves. */
void sim_engine_orphaned(struct sim_world *w, struct sim_host *h, uint32_t client);
/* Everything of this place is forgotten; another engine may take it. */
void sim_client_free(struct sim_world *w, struct sim_host *h, uint32_t client);

/* ---- lease.c ---------------------------------------------------------------------------------------------- */

void sim_lease_start(struct sim_world *w, uint32_t room, uint32_t kind, uint64_t for_ns);

/* ---- host.c ----------------------------------------------------------------------------------------------- */

void sim_host_boot(struct sim_world *w, uint32_t host);
void sim_host_crash(struct sim_world *w, uint32_t host, uint64_t for_ns);
void sim_worker_kill(struct sim_world *w, uint32_t host, uint64_t reap_after_ns);
void sim_worker_freeze(struct sim_world *w, uint32_t host, uint64_t for_ns);
void sim_fence_hang(struct sim_world *w, uint32_t host, uint64_t for_ns);
void sim_supervisor_kill(struct sim_world *w, uint32_t host, uint64_t for_ns);
/* SIGTERM: waiting rooms close, after grace_ns all others, then supervisor and worker end. */
void sim_supervisor_stop(struct sim_world *w, uint32_t host, uint64_t grace_ns);
void sim_supervisor_escalated(struct sim_world *w, struct sim_host *h);
/* The worker let go of this client's memory. */
void sim_client_quiet(struct sim_world *w, struct sim_host *h, uint32_t client);
/* The supervisor tells the worker what it does not know yet, soon. */
void sim_supervisor_sync(struct sim_world *w, struct sim_host *h);
static inline uint64_t sim_host_clock(const struct sim_host *h)
{
    return h->world->clock.now_ns + h->clock_lead_ns;
}
static inline bool sim_host_serves(const struct sim_host *h)
{
    return h->worker == SIM_WORKER_SERVING && !h->is_frozen;
}
/* A worker exists and may run: its core may be called. */
static inline bool sim_worker_is_awake(const struct sim_host *h)
{
    return (h->worker == SIM_WORKER_SERVING || h->worker == SIM_WORKER_STARTING) &&
           h->core != NULL && !h->is_frozen;
}

/* ---- ranks.c ---------------------------------------------------------------------------------------------------- */

/* Handle of the group to which this member of a request belongs; 0: none. */
uint32_t sim_group_of(const struct sim_world *w, uint32_t request, uint32_t member);
/* Tells a worker of this client's groups; after its rooms were adopted. */
void sim_ranks_tell(struct sim_world *w, struct sim_host *h, uint32_t client);
/* Tells a new worker which ranks left under earlier ones. */
void sim_ranks_tell_departed(struct sim_world *w, struct sim_host *h);
/* The worker let go of this client: its ranks open nothing any more. */
void sim_ranks_depart(struct sim_world *w, struct sim_host *h, uint32_t client);
/* A room's word was stored. */
void sim_ranks_check(struct sim_world *w, uint32_t room);
/* Every room that waits for other ranks has a reason to. */
bool sim_ranks_are_settled(struct sim_world *w, uint32_t *ret_room);

/* ---- worker.c --------------------------------------------------------------------------------------------- */

void sim_worker_create(struct sim_world *w, struct sim_host *h);
void sim_worker_destroy(struct sim_world *w, struct sim_host *h);
/* A turn of its loop, soon. */
void sim_worker_kick(struct sim_world *w, struct sim_host *h);
/* After an event of its core: takes the actions, now or at the next turn. */
void sim_worker_after(struct sim_world *w, struct sim_host *h);
void sim_worker_take_client(struct sim_world *w, struct sim_host *h, uint32_t client);
void sim_worker_client_closed(struct sim_world *w, struct sim_host *h, uint32_t client);
void sim_worker_client_reaped(struct sim_world *w, struct sim_host *h, uint32_t client);

/* ---- core_memory.c ---------------------------------------------------------------------------------------- */

/* h->core, in memory that is zero again. */
void sim_core_make(const struct sim_world *w, struct sim_host *h,
                   const struct kvf_core_config *config, const uint64_t seed[4]);

/* ---- lanes.c ---------------------------------------------------------------------------------------------- */

void sim_lanes_fabric(struct sim_world *w);
int sim_lanes_create(struct sim_world *w, struct sim_host *h);
void sim_lanes_open(struct sim_host *h, const struct kvf_lane_open *open);
/* As sink: a stream's LANE_OPEN, a queue pair's LANE_JOIN. */
void sim_lanes_connect(struct sim_host *h, const struct kvf_action *a);
/* LANE_OPEN of queue pairs, both sides: the core is told that this end exists. */
void sim_lanes_make_end(struct sim_host *h, const struct kvf_action *a);
void sim_lanes_post(struct sim_world *w, struct sim_host *h);
void sim_lanes_want_post(struct sim_host *h, uint32_t lane);

/* ---- control.c -------------------------------------------------------------------------------------------- */

struct kvf_addr_shm sim_addr(uint32_t host);
void sim_control_connect(struct sim_world *w, struct sim_host *h, uint32_t peer,
                         const struct kvf_addr_shm *addr);
void sim_control_close(struct sim_world *w, struct sim_host *h, uint32_t peer);
void sim_control_write(struct sim_world *w, struct sim_host *h, uint32_t peer);
/* The worker's process is gone: its kernel ends its connections. is_silent: nobody is told. */
void sim_control_end_all(struct sim_world *w, struct sim_host *h, bool is_silent);
/* The links of this host, or its worker, move again. */
void sim_control_resume(struct sim_world *w);
/* Connections between two hosts break: how each end sees it is luck. */
void sim_control_reset_between(struct sim_world *w, uint32_t a, uint32_t b,
                               struct sim_random *luck);

/* ---- ops.c ------------------------------------------------------------------------------------------------ */

void sim_ops_schedule(struct sim_world *w);
/* Bytes landed in a page of this request's sinks: operations that waited for it begin. */
void sim_ops_landed(struct sim_world *w, uint32_t request);
void sim_routes_apply(struct sim_world *w);
static inline const struct sim_plan *sim_plan_of(const struct sim_world *w, uint32_t request)
{
    return w->requests[request].plan;
}
/* Makes a request that is not in the scenario: the transfer after the faults. Its index, or SIM_NO_ROOM. */
uint32_t sim_request_extra(struct sim_world *w, const struct sim_plan *plan);

/* ---- run.c ------------------------------------------------------------------------------------------------ */

struct sim_world *sim_world_create(void);
void sim_world_destroy(struct sim_world *w);
/* One seed: w->scenario is what is played. The verdict is in w->failure. */
void sim_world_run(struct sim_world *w);

#endif

/* A seed's scenario: what happens when, as a list of operations, so that a failing one can be made shorter.
 *
 * Made from the seed alone, before anything runs. An operation names hosts, engines and other operations by
 * number and carries its own durations; taking one out leaves all others as they were. Luck while the
 * scenario runs comes from streams of (seed, entity, counter). Times are virtual nanoseconds from the start. */
#ifndef KVF_TESTS_SIM_SCENARIO_H
#define KVF_TESTS_SIM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_WORLD_HOSTS 5u
#define SIM_ENGINES 2u /* a host */
#define SIM_OPS_MAX 192u
#define SIM_SINKS_MAX 3u
#define SIM_WRITERS_MAX 3u
#define SIM_MEMBERS (SIM_SINKS_MAX + SIM_WRITERS_MAX) /* sinks first, then sources */
#define SIM_ROOM_PAGES_MAX 16u
#define SIM_PREFIX_PAGES_MAX 3u
#define SIM_PIECES_MAX 3u
#define SIM_GROUPS 3u /* the last one is of sources, the others of sinks */

/* What a seed is mostly made of. */
enum sim_flavour {
    SIM_CALM = 0,   /* requests and a few aborts */
    SIM_ABORTS,     /* aborts at every moment, from both sides */
    SIM_DEATHS,     /* engines, workers, supervisors, machines */
    SIM_PARTITIONS, /* links cut, stalled, slow and lossy; connections reset */
    SIM_LEASES,     /* external leases, with aborts and deaths */
    SIM_MIXED,
    SIM_FLAVOURS
};

/* How bytes travel. */
enum sim_traffic { SIM_CHECKED = 0, SIM_POSTED, SIM_VERBS, SIM_TRAFFICS };

enum sim_op_kind {
    SIM_OP_REQUEST = 0,
    SIM_OP_ABORT,           /* a room of a request */
    SIM_OP_LEASE,           /* work under an external lease on a room of a request */
    SIM_OP_CUT_LINK,        /* what goes from a to b is lost */
    SIM_OP_STALL_LINK,      /* what goes from a to b waits */
    SIM_OP_STORM,           /* losses, duplicates and delays between a and b */
    SIM_OP_RESET,           /* control connections between a and b break */
    SIM_OP_BREAK_LANE,      /* a lane of a breaks */
    SIM_OP_REFUSE,          /* host a refuses connections */
    SIM_OP_KILL_WORKER,     /* of host a */
    SIM_OP_FREEZE_WORKER,   /* of host a */
    SIM_OP_HANG_FENCE,      /* fences of host a do not return */
    SIM_OP_KILL_SUPERVISOR, /* of host a; another takes its place */
    SIM_OP_STOP,            /* SIGTERM to the supervisor of host a; another takes its place */
    SIM_OP_CRASH_HOST,      /* a loses power and comes back */
    SIM_OP_KILL_ENGINE,     /* of host a */
    SIM_OP_FREEZE_ENGINE,   /* of host a */
    SIM_OP_DETACH_ENGINE,   /* of host a, in good order */
    SIM_OP_KINDS
};

struct sim_party {
    uint8_t host;
    uint8_t engine;
};

/* One request: `sink_count` engines want the same pages, `writer_count` engines supply a part each. */
struct sim_plan {
    uint32_t label;
    uint32_t
        prefix_id; /* 0: none; else the first prefix_pages of every part are that prefix's */
    uint8_t sink_count;
    uint8_t writer_count;
    uint8_t aux_pages; /* at the end of the last part, from the auxiliary region */
    uint8_t prefix_pages;
    struct sim_party sinks[SIM_SINKS_MAX];
    struct sim_party writers[SIM_WRITERS_MAX];
    uint8_t part_pages[SIM_WRITERS_MAX];
    uint8_t pieces[SIM_WRITERS_MAX];
    bool is_backwards; /* pieces are submitted last part first */
    bool is_early;     /* pieces are submitted whether or not a grant came */
    bool has_hole;     /* the last piece leaves one page out */
    uint8_t
        group; /* 0: none; else its number + 1: its sinks, or sources, are that group's ranks */
    uint8_t missing; /* bit by member: never opens */
    uint64_t open_after_ns[SIM_MEMBERS];
    uint64_t piece_after_ns[SIM_WRITERS_MAX];
};

/* Engines that are the ranks of requests, in rank order. */
struct sim_group {
    uint8_t count;
    struct sim_party ranks[SIM_SINKS_MAX];
};

struct sim_op {
    uint8_t kind; /* enum sim_op_kind */
    bool is_off;  /* taken out by the shrinker */
    uint8_t a, b; /* hosts */
    uint8_t engine;
    uint8_t member; /* ABORT, LEASE: of the request. BREAK_LANE: luck */
    bool is_both_ways;
    uint8_t lease_kind;
    uint16_t request; /* the operation that is the request it comes with, or is about */
    uint16_t
        trigger; /* 0: at its time. Else when so many ranges of bytes of that request landed */
    uint32_t reason;
    uint64_t at_ns;
    uint64_t for_ns; /* how long it lasts, or until what was killed is reaped, or is back */
    struct sim_plan plan;
};

struct sim_scenario {
    uint64_t seed;
    enum sim_flavour flavour;
    enum sim_traffic traffic;
    uint32_t hosts;
    uint32_t lanes;
    uint32_t lane_rooms;
    uint32_t post_pages; /* largest post */
    uint32_t
        window_pages;  /* posted and not completed, per grant; a lane's is four times that */
    uint64_t delay_ns; /* of a link without a fault, at least; at most three times that */
    bool are_actions_late; /* the worker takes actions once a turn, not after every event */
    bool
        aborts_at_end; /* engines give up what is left when the faults stop; else deadlines do */
    bool is_striped;
    struct sim_group groups[SIM_GROUPS];
    uint64_t end_ns;        /* faults stop here */
    uint32_t request_count; /* the first operations */
    uint32_t op_count;
    struct sim_op ops[SIM_OPS_MAX];
};

extern const char *const sim_flavour_names[SIM_FLAVOURS];
extern const char *const sim_traffic_names[SIM_TRAFFICS];
extern const char *const sim_op_names[SIM_OP_KINDS];

/* flavour, traffic: SIM_FLAVOURS and SIM_TRAFFICS let the seed choose. Without that choice a seed's operations are
 * those of the same seed and choice, always. */
void sim_scenario_make(uint64_t seed, enum sim_flavour flavour, enum sim_traffic traffic,
                       struct sim_scenario *ret_scenario);
/* Makes one operation simpler in the step-th way, if it is not that simple already. */
#define SIM_EASY_STEPS 12u
bool sim_op_ease(struct sim_op *op, uint32_t step);
/* One operation in a line of text, without a newline. */
void sim_op_text(const struct sim_scenario *s, uint32_t op, char *text, uint32_t text_bytes);

#endif

/* kvfence-faults: faults struck into real daemons and engines under load, and what each must leave true.
 *
 * A case has daemons of its own: two that send (source, other_source) and two that receive (sink, other_sink).
 * The transfers that a fault meets go from source to sink, through a proxy that also makes the network between
 * them: what left the one arrives at the other some milliseconds later, whoever dies meanwhile. */
#ifndef KVF_TESTS_FAULTS_FAULTS_H
#define KVF_TESTS_FAULTS_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/daemon/engine.h"
#include "tests/proxy/driver.h"

#define SHARES_MAX 3u /* at 10, 50 and 90 % */
#define ROOMS 3u      /* in flight at a time, on each side */
#define CO_ROOMS_MAX 8u
#define ROOM_PAGES 96u
#define SINK_SLOTS_MAX 40u   /* of ROOM_PAGES pages; those under a probe are not used again */
#define SINK_SLOTS_VERBS 14u /* a guest takes its time to register memory */
#define SPARE_PAGES 16u
#define SAMPLES_MAX 8192u
#define CASES_MAX 32u
#define FLOWS_MAX 3u
#define DAEMON_OPTIONS_MAX 4u
#define NETWORK_DELAY "delay:30"
#define PATIENCE_VERBS 4u /* a virtual machine without hardware help is slow in all it does */

struct settings {
    uint32_t times;
    uint32_t jobs;               /* cases at a time */
    uint32_t shares[SHARES_MAX]; /* percent */
    uint32_t share_count;
    uint32_t probe_ms; /* how long a canary is watched after drained */
    uint64_t seed;
    bool is_checked; /* placement */
    bool is_json;
    bool is_quiet;
    bool is_quick;
    bool
        is_verbs; /* in the guest of scripts/rdma-guest, whose router is the devices' network */
    uint32_t sink_slots;
    uint32_t patience;       /* times the limits that are the test's own */
    bool is_drained_at_once; /* planted: engines take the fault for the proof */
    const char *daemon_options[DAEMON_OPTIONS_MAX]; /* NAME=VALUE */
    uint32_t daemon_option_count;
};
extern struct settings settings;

/* ---- results: in memory that the case's process shares with the program --------------------------------- */

struct share_result {
    uint32_t rounds;
    uint32_t affected;  /* rooms in flight when the fault struck */
    uint32_t succeeded; /* of them, all the same */
    uint32_t drained_count;
    uint32_t drained_us[SAMPLES_MAX];
    uint32_t bound_us;
    uint64_t
        refused_bytes; /* came after the proof and were refused: by the daemon, or by its kernel */
    uint64_t
        unaffected; /* rooms of others meanwhile: all of them in success with right bytes */
    uint32_t new_room_us; /* slowest, from the moment somebody serves again */
    uint32_t probes;      /* canaries that were watched to the end */
};

struct case_result {
    struct share_result shares[SHARES_MAX];
    uint32_t share; /* at work on */
    bool has_started;
    bool is_passed;
    double seconds;
    char violation[400];
};

/* ---- the scene ------------------------------------------------------------------------------------------ */

struct flow; /* transfers of others, all the time, which must not notice anything */

enum flow_kind {
    FLOW_OTHER_CLIENT = 1, /* source to sink, other engines */
    FLOW_TO_OTHER_SINK = 2,
    FLOW_FROM_OTHER_SOURCE = 4,
    FLOW_ELSEWHERE = 8, /* other source to other sink */
};

struct scene {
    const struct fault_case *fault;
    struct case_result *result;
    struct daemon *source;
    struct daemon *sink;
    struct daemon *other_source;
    struct daemon *other_sink;
    struct daemon via; /* the source daemon, by the proxy's address */
    struct kvf_proxy network;
    struct engine *from; /* NULL while a helper plays it */
    struct engine *to;
    struct helper *helper; /* an engine that is to be killed */
    struct engine *own;    /* the living engine of a case with a helper */
    struct flow *flows[FLOWS_MAX];
    uint32_t flow_count;
    uint64_t source_regions; /* registrations of engines that stay */
    uint64_t sink_regions;
    uint64_t strike_ns;
    uint64_t ready_ns; /* when somebody serves again; 0: not yet */
    uint64_t refused_before;
    uint32_t worker_ends;
};

enum which_bound { BOUND_USUAL, BOUND_WORST };

struct fault_case {
    const char *name;
    const char *what;
    void (*strike_fn)(struct scene *s);
    /* Makes everything serve again, once all affected rooms have ended. */
    void (*mend_fn)(struct scene *s);
    enum which_bound sink_bound;
    enum which_bound source_bound;
    uint32_t flows; /* bits of enum flow_kind: who must not notice */
    bool ends_workers;
    bool kills_sink_engine;
    bool kills_source_engine;
    bool mends_at_once; /* before the rooms have ended */
    bool
        freezes_sink; /* its own rooms can only end after it thaws, within the bound from then */
    bool freezes_source;
    bool aborts;           /* the sink's engine aborts its rooms as the fault strikes */
    bool needs_late_bytes; /* some bytes must come after the proof, or the case shows nothing */
    /* The source holds its last pages back, so that nothing succeeds before the fault is seen: always, or
     * never, because rooms may survive it; else where so little is left that it would all arrive. */
    bool always_holds_back;
    bool never_holds_back;
    bool needs_success; /* all rooms end in success: only grants die */
    bool wants_devices; /* only with transport verbs */
    uint32_t rooms;     /* 0: ROOMS */
};

extern const struct fault_case fault_cases[];
extern const uint32_t fault_case_count;

/* Says which promise is broken, and ends the case. */
__attribute__((format(printf, 4, 5), noreturn)) void
violated(struct scene *s, const char *file, int line, const char *format, ...);
#define PROMISE(s, condition, ...)                                                             \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            violated(s, __FILE__, __LINE__, __VA_ARGS__);                                      \
        }                                                                                      \
    } while (0)

/* scene.c */
void scene_start(struct scene *s, const struct fault_case *fault, struct case_result *result);
void scene_stop(struct scene *s);
/* What the network does to control connections and lanes; its own delay stays. */
void scene_network(struct scene *s, const char *rules);
/* The same to what goes through the proxy alone: with devices, the control connection. */
void scene_control(struct scene *s, const char *rules);
uint64_t scene_bound_us(const struct daemon *d, enum which_bound which);
/* Starts the engine that is to be killed; its rooms are open when this returns. */
void scene_start_helper(struct scene *s, const uint64_t *keys, const int32_t *firsts);
void scene_await_engine(struct scene *s, struct engine *e);
struct engine *engine_on(struct daemon *d, kvf_pool *pool, const struct geometry *geometry);
int role_engine(int argc, char **argv);
struct geometry sink_geometry(void);
extern const struct geometry source_geometry;

/* How long this machine kept somebody who wanted to run from a CPU: whoever judges a deadline wants to know.
 * begin forgets what was before. */
void machine_watch(void);
void machine_begin(void);
uint64_t machine_late_ms(void);

/* devices.c: the guest's network between its two devices, as the proxy is to streams. The sink is on the first one, the
 * source on the second; others are where no byte of theirs crosses the router while it is struck. */
const char *devices_of(const char *daemon);
void devices_network(const char *rules);
/* Packets of the lane between the two are lost, and no others. */
void devices_cut_lane(const struct daemon *sink, const struct daemon *source);
void devices_link(bool is_up);
/* Flows too are as before. */
void devices_mend(void);
void devices_stop(void);

/* flow.c */
struct flow *flow_start(struct scene *s, struct daemon *source, struct daemon *sink,
                        const char *what);
uint64_t flow_count(const struct flow *f);
void flow_stop(struct flow *f);

/* round.c */
void rounds_run(struct scene *s);

/* pattern.c: every word of a page is another one, for each seed. */
void pattern_fill(struct engine *e, uint64_t seed, int32_t first, uint32_t count);
/* Bytes that are not the seed's. */
uint64_t pattern_count_wrong(struct engine *e, uint64_t seed, int32_t first, uint32_t count);
/* Bytes of words that are the seed's. */
uint64_t pattern_count_right(struct engine *e, uint64_t seed, int32_t first, uint32_t count);
/* Bytes of pieces that begin with the seed's first word: how much has landed, cheaply. */
uint64_t pattern_count_begun(const struct engine *e, uint64_t seed, int32_t first,
                             uint32_t count);

/* report.c */
void report_table(FILE *out, const struct fault_case *const *cases,
                  const struct case_result *results, uint32_t count);
void report_json(FILE *out, const struct fault_case *const *cases,
                 const struct case_result *results, uint32_t count, int exit_status);

#endif

/* A few hosts on a simulated fabric, for its own tests: memory that counts bytes, and a process that keeps books. */
#ifndef KVF_TESTS_SIM_BENCH_H
#define KVF_TESTS_SIM_BENCH_H

#include "tests/sim/fabric.h"

#define BENCH_HOSTS 4u
#define BENCH_LANES 8u
#define BENCH_PAGES 64u
#define BENCH_PAGE_BYTES 256u /* four packets */
#define BENCH_MTU 64u
#define BENCH_POSTS 1024u
#define BENCH_US UINT64_C(1000)
#define BENCH_MS UINT64_C(1000000)
#define BENCH_S UINT64_C(1000000000)

/* What one host's process was told. */
struct bench_process {
    struct bench *bench;
    uint32_t host;
    struct kvf_transport *t;
    uint32_t ups;
    uint32_t losses;
    int lost_err;
    uint32_t fences;
    uint32_t completions;
    uint32_t post_completions[BENCH_POSTS];
    int status[BENCH_POSTS];
    uint32_t markers;
    uint32_t places;
    uint64_t placed_bytes;
    uint64_t scratch_bytes;
    bool is_scratch;  /* what place_fn answers */
    bool is_stopped;  /* bench_run does not poll it */
    bool is_refusing; /* LANE_HELLOs */
};

struct bench {
    struct sim_clock clock;
    struct sim_fabric_options options;
    struct sim_transport_options process_options[BENCH_HOSTS];
    struct sim_fabric *fabric;
    struct bench_process process[BENCH_HOSTS];
    uint32_t posts;
    uint64_t landed[BENCH_HOSTS][BENCH_PAGES]; /* bytes that landed in this page, ever */
    uint64_t landed_tag[BENCH_HOSTS][BENCH_PAGES];
    uint64_t landed_bytes; /* everywhere */
    uint64_t late_bytes;
    uint64_t ghost_bytes;
    uint64_t read_bytes;
    uint32_t wakes;
    uint32_t hellos;
    uint32_t key;        /* what remote_fn says */
    uint64_t page_bytes; /* of what is posted */
    uint64_t hash;       /* of everything that was told */
    /* What must not happen once a fence has returned (or a process was reaped, which a test says): epochs up to
     * these are over. */
    uint32_t fenced_epoch[BENCH_HOSTS][BENCH_LANES];
    uint64_t
        touches_after_end; /* landings and reads of an epoch that is over, reads of completed posts */
};

/* Hosts 0 .. hosts - 1; host h listens at bench_address(h). Set process_options before bench_start. */
void bench_init(struct bench *bench, enum sim_kind kind, uint32_t hosts);
void bench_start(struct bench *bench, uint64_t seed);
void bench_stop(struct bench *bench);
struct kvf_addr_shm bench_address(uint32_t host);
void bench_process_start(struct bench *bench, uint32_t host);

/* Begins to open lane `lane` at both ends, sink connects to source. */
void bench_open(struct bench *bench, uint32_t sink, uint32_t source, uint32_t lane,
                uint32_t epoch);
/* The same, and runs until both are up. */
void bench_connect(struct bench *bench, uint32_t sink, uint32_t source, uint32_t lane,
                   uint32_t epoch);
/* Posts `pages` pages from page_first on, to the same pages. Number of the post. */
uint32_t bench_post(struct bench *bench, uint32_t source, uint32_t lane, uint32_t page_first,
                    uint32_t pages);
uint32_t bench_mark(struct bench *bench, uint32_t source, uint32_t lane);
void bench_fence(struct bench *bench, uint32_t host, uint32_t lane, uint32_t epoch);

/* Polls whoever has work and is not stopped, and runs events, for so long. */
void bench_run(struct bench *bench, uint64_t ns);
void bench_link(struct bench *bench, uint32_t from, uint32_t to, struct sim_link link);
const struct sim_fabric_counters *bench_counters(const struct bench *bench);

#endif

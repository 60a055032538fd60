/* Real daemons and the engines of a measurement. The engines are two attachments of this one process, so that both
 * ends of a room are read by one clock; an engine does nothing but stores and loads in shared memory. */
#ifndef KVF_BENCH_WORLD_H
#define KVF_BENCH_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "client/kvfence.h"
#include "tests/bench/machine.h"
#include "tests/bench/options.h"
#include "tests/torture/process.h"

enum { KVF_AT_SOURCE = 0, KVF_AT_SINK = 1, KVF_ENDS = 2 };

struct kvf_end {
    kvf_client *client;
    kvf_pool *pool; /* NULL: no region */
    uint32_t region;
    int event_fd;
};

struct kvf_world_plan {
    const char *name; /* of the daemon, where there is one alone */
    enum kvf_bench_transport transport;
    bool is_single; /* one daemon, one engine: nothing is moved */
    uint32_t rooms_max;
};

struct kvf_world {
    const struct kvf_bench_options *options;
    struct kvf_cpus cpus;
    char run_dir[96];
    char daemon_path[512];
    char self_path[512];
    struct kvf_child daemons[KVF_ENDS];
    char listen[KVF_ENDS][64];
    char engine[16]; /* of the transport, as the daemon says it; "" if it says none */
    uint32_t daemon_count;
    uint32_t end_count;
    struct kvf_end ends[KVF_ENDS];
};

/* Starts the daemons and attaches. 0, or an exit status after a sentence on stderr. kvf_world_end is legal then
 * too. */
int kvf_world_start(struct kvf_world *world, const struct kvf_bench_options *options,
                    const struct kvf_cpus *cpus, const struct kvf_world_plan *plan);
/* Gives each end a region of that many pages in one plane, instead of the one it had; its memory is touched. 0, or
 * an exit status after a sentence. No room may be open. */
int kvf_world_regions(struct kvf_world *world, uint64_t page_bytes, uint64_t page_count);
/* 0, or an exit status after a sentence: a daemon has ended, a signal asked us to stop. */
int kvf_world_check(struct kvf_world *world);
/* Between two looks at rooms: lets others run where processors are few, until an event or a millisecond. */
void kvf_world_pause(struct kvf_world *world);
/* Waits until the room reads Failed or Success and returns which; -ETIMEDOUT. */
int kvf_world_await(struct kvf_world *world, uint32_t at, kvf_room room, uint32_t timeout_ms);
/* Says on stderr why a room did not end as it should; returns the exit status for it. */
int kvf_world_blame(struct kvf_world *world, uint32_t at, kvf_room room, const char *what);
void kvf_world_end(struct kvf_world *world);

/* The hidden role of this program in which a daemon is started, so that it ends with us. Does not return on
 * success. */
int kvf_world_role(const char *role, int argc, char **argv);

#endif

/* What a daemon keeps in its run directory, all of it named after the daemon:
 *
 *   NAME.lock    held (flock) while a supervisor of that name lives; never removed. It decides only who may
 *                start: a lock proves nothing about memory
 *   NAME.worker  pid, start time and boot of the last worker, written before that opened anything
 *   NAME.rails   transport verbs: which devices each supervisor of this boot wrote through, written before any of
 *                its workers opened one. Memory of devices that an earlier one left is proven through those
 *   NAME.sock    where engines attach (0660)
 *   NAME.stats   what kvfence-stat reads (0644); stays after the end, and is removed if the start failed
 *   .cpu-N.lock  held by the daemon whose worker is pinned to processor N
 *
 * Every file is opened relative to the directory's descriptor, no symbolic link is followed, and what
 * belongs to somebody else, or is not of the expected kind, is refused and left alone. Functions log
 * why they fail. */
#ifndef KVF_SIDECAR_RUN_DIR_H
#define KVF_SIDECAR_RUN_DIR_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/stats.h"
#include "sidecar/host/config.h"
#include "sidecar/host/placement.h"
#include "sidecar/host/process.h"

struct kvf_run_dir {
    const struct kvf_config *config;
    int dir_fd; /* all four are ours until the process ends */
    int lock_fd;
    int cpu_lock_fd; /* -1: none */
    int listener_fd;
};

/* Creates the directory (0755 as root, else 0700) and takes the name. 0; -EBUSY: a daemon of that name
 * lives; -errno. */
int kvf_run_dir_open(const struct kvf_config *config, struct kvf_run_dir *ret_dir);

/* Would a start get past its processor and its run directory? Makes and takes nothing, so the answer is
 * for now. 0 or -errno. */
int kvf_run_dir_check(const struct kvf_config *config);

/* Waits until the worker of an earlier supervisor of this name has ended, and ends it if it lives on:
 * nothing may be registered before. 0, or -ETIMEDOUT. */
int kvf_run_dir_await_worker(struct kvf_run_dir *dir);
int kvf_run_dir_write_worker(struct kvf_run_dir *dir, const struct kvf_process_id *id);
void kvf_run_dir_remove_worker(struct kvf_run_dir *dir);

/* Supervisors by their id (upper 40 bits of their epochs) whose devices are all here. Others, and those that nobody
 * remembers, are not among them. */
#define KVF_COVERED_MAX 64u
struct kvf_covered {
    uint32_t count;
    uint32_t pad_;
    uint64_t ids[KVF_COVERED_MAX];
};

/* Notes the devices of this supervisor (their first `port`, or 0: each one's own), and says which earlier ones, of
 * this boot, used no others. The last KVF_COVERED_MAX are remembered. 0, or -errno: nothing was noted, and nothing
 * may be opened. */
int kvf_run_dir_note_rails(struct kvf_run_dir *dir, uint64_t supervisor_id,
                           const struct kvf_rails *rails, uint32_t port,
                           struct kvf_covered *ret_covered);
bool kvf_covered_has(const struct kvf_covered *covered, uint64_t epoch);

/* Makes a fresh stats file and replaces the one of an earlier daemon. Both descriptors are the caller's. */
int kvf_run_dir_create_stats(struct kvf_run_dir *dir, int *ret_fd, int *ret_read_only_fd,
                             struct kvf_stats_shm **ret_shm);
/* Of a daemon that never served: nobody should be shown it. */
void kvf_run_dir_remove_stats(struct kvf_run_dir *dir);

/* Binds and listens; a stale socket of ours is replaced, which the lock makes safe. */
int kvf_run_dir_listen(struct kvf_run_dir *dir);
void kvf_run_dir_unlisten(struct kvf_run_dir *dir);

/* Which processor the worker is to be pinned to, by the options and what is allowed and free: its number
 * or KVF_CPU_NONE; and for transport verbs the rails. 0, also where verbs finds no device of its own choice: the
 * processor is then that of any transport, and ret_rails is empty. -EINVAL: the configured processor is not
 * allowed here, or a device asked for by name cannot be used. */
int kvf_run_dir_place(struct kvf_run_dir *dir, struct kvf_rails *ret_rails, int *ret_cpu);

#endif

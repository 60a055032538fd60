/* What a worker's end means for the rooms in a segment.
 *
 * A reaped worker can touch no page (its construction makes it so), therefore a room that it served is
 * drained as soon as no external lease is out. The supervisor walks the segment between reaping one
 * worker and starting the next; rooms whose leases are out go to the next worker, which walks the
 * segment again when it takes it over. Never both at a time: one writer per line. The same goes for rooms
 * with pages in memory that the host does not own: the next worker flushes it before they are drained.
 *
 * A room whose client's line names a group is drained by the same proof, but its word goes on saying
 * Transferring and "group waits" until a worker has heard of the other ranks. */
#ifndef KVF_SIDECAR_REAP_H
#define KVF_SIDECAR_REAP_H

#include <stdbool.h>
#include <stdint.h>

#include "ring/segment.h"

enum kvf_reap {
    KVF_REAP_NOTHING,     /* never used, or drained already at its generation */
    KVF_REAP_WORKER_GONE, /* drained now */
    KVF_REAP_ENGINE_GONE, /* drained now; the engine's own end proved its leases of kind cpu */
    KVF_REAP_LEASED, /* closed; external leases are out, or pages in a device's memory are not flushed */
    KVF_REAP_HELD, /* leases of a dead engine that prove nothing: quarantined */
};

/* One room of a segment whose last worker was reaped. is_engine_gone: the engine's process was reaped
 * too. ret_generation (may be NULL): the incarnation that this is about. */
enum kvf_reap kvf_reap_room(const struct kvf_segment *segment, uint32_t slot,
                            bool is_engine_gone, uint64_t *ret_generation);

/* Of a room that was drained just now: did it end in Success? For counting. */
bool kvf_reap_has_succeeded(const struct kvf_segment *segment, uint32_t slot);

/* A room of a living worker whose OPEN was never read because its client was closed first: nothing was
 * posted for it. Only when every room that was read is drained. */
void kvf_reap_unread(const struct kvf_segment *segment, uint32_t slot, uint32_t reason);

#endif

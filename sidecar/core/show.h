/* Peers and lanes as operators see them without asking: rows of the stats file, filled a few times a second.
 * A walk over small tables that changes nothing. */
#ifndef KVF_CORE_SHOW_H
#define KVF_CORE_SHOW_H

#include "ring/stats.h"
#include "sidecar/core/core.h"

/* Fills peers, lanes, their counts and left_out; rooms are the caller's. A lane that was never opened has no
 * row. moved_bytes of a lane begin anew with its connection's place in the core, and with the worker. */
void kvf_core_show(const struct kvf_core *core, struct kvf_stats_rows_shm *ret_rows);

#endif

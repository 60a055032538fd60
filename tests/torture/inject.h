/* Faults planted on purpose: each must make the checker cry, or the checker sees nothing. */
#ifndef KVF_TORTURE_INJECT_H
#define KVF_TORTURE_INJECT_H

#include <stdbool.h>

#include "tests/torture/fleet.h"
#include "tests/torture/schedule.h"

/* Names for the command line; NULL past the last. */
const char *kvf_inject_name(enum kvf_inject inject);
/* Is this request one that the fault is planted in? Only requests that run to their end: the others are
 * not checked byte by byte. */
bool kvf_inject_hits(enum kvf_inject inject, const struct kvf_request *request);

#endif

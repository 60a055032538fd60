/* The RDMA devices of this machine, as far as the torture chooses among them. */
#ifndef KVF_TORTURE_DEVICES_H
#define KVF_TORTURE_DEVICES_H

#include "tests/torture/options.h"

/* Names of the devices of decode and of prefill daemons: those of the options, else the machine's first two by
 * name, so that bytes leave one and reach the other; where there is one it is both's. "" where there is none: the
 * daemons say so. */
void kvf_devices_choose(const struct kvf_options *options, char ret_names[2][64]);

#endif

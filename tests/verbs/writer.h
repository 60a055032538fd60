/* What verbs_writer reads from its input and writes to its output.
 *
 * In: struct writer_orders at the start; later one byte, the word to write. Its end ends the program, which closes its
 * transport. Out: its own struct kvf_lane_end; later one byte, when its device has been given the write. */
#ifndef KVF_TESTS_VERBS_WRITER_H
#define KVF_TESTS_VERBS_WRITER_H

#include "sidecar/transport/transport.h"

#define WRITER_BYTE 0x77 /* its pages are full of it */

struct writer_orders {
    struct kvf_lane_end sink_end;
    uint64_t base; /* of the sink's region: one plane of 4096 bytes a page */
    uint32_t key;
    uint32_t page_count; /* all of them are written, by one post */
};

#endif

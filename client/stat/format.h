/* Numbers as people read them. Each writes at most KVF_FORMAT_BYTES bytes and returns its buffer. */
#ifndef KVF_STAT_FORMAT_H
#define KVF_STAT_FORMAT_H

#include <stdint.h>

#define KVF_FORMAT_BYTES 32u

const char *kvf_format_count(char *ret_text, uint64_t value); /* 1,234,567 */
const char *kvf_format_us(char *ret_text, uint64_t us);       /* 850 us, 26.1 ms, 3.75 s */
const char *kvf_format_age(char *ret_text, uint64_t ns); /* 3 s, 4 m 05 s, 2 h 03 m, 5 d 02 h */
const char *kvf_format_bytes(char *ret_text, uint64_t bytes); /* 512 B, 1.5 GiB */
const char *kvf_format_rate(char *ret_text,
                            uint64_t bytes_per_s); /* 100 MB/s; 0 is "unpaced" */

#endif

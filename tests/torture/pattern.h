/* Bytes that say whose they are. A piece (one page in one plane) is filled with words that follow from
 * a 64-bit seed; the seed follows from request, page position and plane, so a byte at the wrong offset,
 * plane, page or request is wrong almost surely (one word in 2^64 by chance). A canary is the same
 * with a seed of another family. Filling and checking run at memory speed. */
#ifndef KVF_TORTURE_PATTERN_H
#define KVF_TORTURE_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* The finalizer of splitmix64: a bijection that spreads every bit. */
uint64_t kvf_pattern_mix(uint64_t x);

/* Seed of one piece of a request's KV. position: the page's place in the request's page list, since
 * its index differs between prefill and decode. */
uint64_t kvf_pattern_seed(uint64_t request_key, uint32_t position, uint32_t plane);
/* Seed of one piece of an owner's canary; never of the family above for the same numbers. */
uint64_t kvf_canary_seed(uint64_t owner_key, uint32_t position, uint32_t plane);

void kvf_pattern_fill(void *piece, size_t bytes, uint64_t seed);
/* How many bytes differ from what kvf_pattern_fill would have written. */
size_t kvf_pattern_check(const void *piece, size_t bytes, uint64_t seed);
/* How many bytes of the piece differ from `seed` and are what `other` would have there: bytes whose owner
 * is known. (Of a stranger's bytes, 1 in 256 would be taken for `other`'s.) */
size_t kvf_pattern_attribute(const void *piece, size_t bytes, uint64_t seed, uint64_t other);

#endif

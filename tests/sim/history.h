/* The history of a failing seed, for people. Only of a world that keeps one (w->notes). */
#ifndef KVF_TESTS_SIM_HISTORY_H
#define KVF_TESTS_SIM_HISTORY_H

#include <stdint.h>
#include <stdio.h>

struct sim_world;

/* The last lines_max lines that concern the failing page and its rooms. */
void sim_history_print(FILE *out, const struct sim_world *w, uint32_t lines_max);
/* Everything that is still in the ring. */
void sim_history_print_all(FILE *out, const struct sim_world *w);

#endif

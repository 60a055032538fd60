/* What a run came to, for people and for programs. */
#ifndef KVF_TESTS_SIM_REPORT_H
#define KVF_TESTS_SIM_REPORT_H

#include "tests/sim/jobs.h"

void sim_report_text(const struct sim_options *options, const struct sim_totals *totals);
void sim_report_json(const struct sim_totals *totals);
/* NULL, or which figure stayed so near to zero that the run does not count. */
const char *sim_report_shortfall(const struct sim_options *options,
                                 const struct sim_totals *totals);

#endif

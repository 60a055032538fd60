/* Samples of one quantity and what is said of them. */
#ifndef KVF_BENCH_SERIES_H
#define KVF_BENCH_SERIES_H

#include <stdbool.h>
#include <stdint.h>

struct kvf_series {
    double *values; /* owned, in the order they were taken */
    uint32_t count;
    uint32_t max;
};

/* Percentiles run towards the worse: of a time p99 is what 99 of 100 samples stay under, of a rate what 99 of
 * 100 reach. All 0 for a series without samples. */
struct kvf_summary {
    uint32_t count;
    double median;
    double p99;
    double p999;
    double min;
    double max;
};

/* Memory for `max` samples, touched, so that taking one costs no fault. 0 or -ENOMEM. */
int kvf_series_make(struct kvf_series *series, uint32_t max);
void kvf_series_free(struct kvf_series *series);
/* A sample beyond max is a programmer's error. */
void kvf_series_add(struct kvf_series *series, double value);
/* is_rate: more is better. Leaves the series as it is. 0 or -ENOMEM. */
int kvf_series_summarize(const struct kvf_series *series, bool is_rate,
                         struct kvf_summary *ret_summary);
/* Median of mine[i] / beside[i], for repeats that took turns; of the medians where the numbers of samples
 * differ. 0 if there is none. */
double kvf_series_ratio(const struct kvf_series *mine, const struct kvf_series *beside);

#endif

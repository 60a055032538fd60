#include "tests/bench/series.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int kvf_series_make(struct kvf_series *series, uint32_t max)
{
    double *values = malloc(max * sizeof(values[0]));
    if (values == NULL) {
        return -ENOMEM;
    }
    memset(values, 0xff, max * sizeof(values[0]));
    *series = (struct kvf_series){.values = values, .max = max};
    return 0;
}

void kvf_series_free(struct kvf_series *series)
{
    free(series->values);
    *series = (struct kvf_series){.values = NULL};
}

void kvf_series_add(struct kvf_series *series, double value)
{
    assert(series->count < series->max);
    series->values[series->count++] = value;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest sample that `share` of all do not exceed. */
static double quantile(const double *sorted, uint32_t count, double share)
{
    double at = share * count;
    uint32_t rank = (uint32_t)at;
    if ((double)rank < at) {
        rank++;
    }
    return sorted[rank == 0 ? 0 : rank - 1];
}

static double median_of(const double *sorted, uint32_t count)
{
    return count % 2 == 1 ? sorted[count / 2]
                          : (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0;
}

static double *sorted_copy(const double *values, uint32_t count)
{
    double *sorted = malloc(count * sizeof(sorted[0]));
    if (sorted != NULL) {
        memcpy(sorted, values, count * sizeof(sorted[0]));
        qsort(sorted, count, sizeof(sorted[0]), by_size);
    }
    return sorted;
}

int kvf_series_summarize(const struct kvf_series *series, bool is_rate,
                         struct kvf_summary *ret_summary)
{
    struct kvf_summary summary = {.count = series->count};
    uint32_t n = series->count;
    if (n > 0) {
        double *sorted = sorted_copy(series->values, n);
        if (sorted == NULL) {
            return -ENOMEM;
        }
        summary.median = median_of(sorted, n);
        summary.min = sorted[0];
        summary.max = sorted[n - 1];
        if (is_rate) {
            for (uint32_t i = 0; i < n / 2; i++) {
                double other = sorted[i];
                sorted[i] = sorted[n - 1 - i];
                sorted[n - 1 - i] = other;
            }
        }
        summary.p99 = quantile(sorted, n, 0.99);
        summary.p999 = quantile(sorted, n, 0.999);
        free(sorted);
    }
    *ret_summary = summary;
    return 0;
}

double kvf_series_ratio(const struct kvf_series *mine, const struct kvf_series *beside)
{
    struct kvf_summary a;
    struct kvf_summary b;
    struct kvf_series ratios;
    if (mine->count == 0 || beside->count == 0) {
        return 0;
    }
    if (mine->count != beside->count) {
        if (kvf_series_summarize(mine, false, &a) != 0 ||
            kvf_series_summarize(beside, false, &b) != 0) {
            return 0;
        }
        return b.median > 0 ? a.median / b.median : 0;
    }
    if (kvf_series_make(&ratios, mine->count) != 0) {
        return 0;
    }
    for (uint32_t i = 0; i < mine->count; i++) {
        double under = beside->values[i];
        kvf_series_add(&ratios, under > 0 ? mine->values[i] / under : 0);
    }
    int rc = kvf_series_summarize(&ratios, false, &a);
    kvf_series_free(&ratios);
    return rc == 0 ? a.median : 0;
}

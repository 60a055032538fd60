/* What each number of a stats file is called in Prometheus, and what it means. The README's table is made from
 * this one, and tests/tools holds the two together. */
#ifndef KVF_STAT_METRICS_H
#define KVF_STAT_METRICS_H

#include <stdint.h>
#include <stdio.h>

enum kvf_metric_type { KVF_METRIC_COUNTER, KVF_METRIC_GAUGE, KVF_METRIC_HISTOGRAM };

/* Where the samples of a family come from. */
enum kvf_metric_source {
    KVF_FROM_VALUES,    /* those values of the file that name it */
    KVF_FROM_HISTOGRAM, /* the histogram `stat` */
    KVF_FROM_MAXIMUM,   /* ... its maximum */
    KVF_FROM_OTHERS,    /* values whose name this version does not know */
    KVF_FROM_DAEMON,    /* what is known of a daemon whether it lives or not */
    KVF_FROM_PEERS,     /* rows of peers */
    KVF_FROM_LANES,
    KVF_FROM_ROOMS,
    KVF_FROM_READER, /* this program */
};

struct kvf_metric_family {
    const char *name;
    enum kvf_metric_type type;
    enum kvf_metric_source source;
    const char *stat;   /* HISTOGRAM, MAXIMUM: its name in the file */
    const char *labels; /* beside "daemon"; "" none */
    const char *help;   /* one sentence, ASCII, no backslash and no bar */
};

enum kvf_metric_scale {
    KVF_SCALE_ONE,
    KVF_SCALE_US,       /* microseconds in the file, seconds as metric */
    KVF_SCALE_PLUS_ONE, /* the file has it plus one, so that 0 says none: -1 */
};

/* One value of the file as a sample of a family. */
struct kvf_metric_value {
    const char *stat;
    const char *family; /* NULL: no metric, or part of an info metric */
    const char *label;  /* "phase=\"open\"", or "" */
    enum kvf_metric_scale scale;
};

const struct kvf_metric_family *kvf_metric_families(uint32_t *ret_count);
const struct kvf_metric_value *kvf_metric_values(uint32_t *ret_count);
/* NULL: this version has no name for it. */
const struct kvf_metric_value *kvf_metric_find(const char *stat);
/* The table as Markdown: name, type, labels, meaning. */
void kvf_metric_print_table(FILE *out);

#endif

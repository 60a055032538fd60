/* Prometheus' text exposition format 0.0.4: all daemons of one look, family by family. */
#ifndef KVF_STAT_PROMETHEUS_H
#define KVF_STAT_PROMETHEUS_H

#include <stdio.h>

#include "client/stat/collect.h"

#define KVF_PROMETHEUS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Seconds and bytes, counters end in _total, histograms are cumulative and +Inf is their count. A family has one
 * HELP and one TYPE line, and no line at all without a sample; no two samples have the same name and labels. */
void kvf_prometheus_print(FILE *out, const struct kvf_stat_look *look);

#endif

/* The operator's view: rows of at most 100 columns, one question per row. */
#ifndef KVF_STAT_TABLE_H
#define KVF_STAT_TABLE_H

#include <stdio.h>

#include "client/stat/snapshot.h"

#define KVF_TABLE_COLUMNS 100u

/* Marks the entries it showed; what it does not know stands under "other" with its unit. */
void kvf_stat_print_table(FILE *out, struct kvf_stat_daemon *daemon);
/* Its first line alone: the name, how it is, since when, its version. */
void kvf_stat_print_line(FILE *out, const struct kvf_stat_daemon *daemon);

#endif

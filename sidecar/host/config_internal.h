/* What the files of the options share: the table, and one option's value in and out. config.c has the table,
 * config_read.c takes the command line, config_file.c the file, config_print.c writes. */
#ifndef KVF_HOST_CONFIG_INTERNAL_H
#define KVF_HOST_CONFIG_INTERNAL_H

#include <stddef.h>

#include "sidecar/host/config.h"

enum option_kind {
    OPTION_TEXT,
    OPTION_ADDR,
    OPTION_COUNT, /* uint32_t */
    OPTION_MS,    /* uint32_t */
    OPTION_SIZE,  /* uint64_t bytes, K M G suffixes */
    OPTION_RATE,  /* uint64_t bytes per second, given in MB/s */
    OPTION_WORD,  /* uint32_t, one of a list */
    OPTION_CPU,
    OPTION_FLAG,
};

struct option_word {
    const char *text;
    uint32_t value;
};

struct option {
    const char *name;
    enum option_kind kind;
    size_t off;
    uint64_t min;
    uint64_t max;
    uint64_t preset;                 /* default of a number */
    const char *preset_text;         /* default of a text or address */
    const struct option_word *words; /* ends with a NULL text */
    const char *value;               /* how the help names the argument */
    const char *why;                 /* why a number has its bound, if that is not plain */
    const char *help;
};

#define AT(field) offsetof(struct kvf_config, field)

/* Option `i` of the table, NULL behind the last: an index is an option's name within one program. */
const struct option *kvf_config_option(uint32_t i);
uint32_t kvf_config_option_idx(const struct option *o);
/* The option of that name, without dashes; NULL if there is none. */
const struct option *kvf_config_find(const char *name, size_t name_bytes);
/* The name that is nearest to what was written, or NULL if none is near. */
const char *kvf_config_nearest(const char *name, size_t name_bytes);
/* What is done instead of serving is no part of a configuration, nor is the file it stands in. */
bool kvf_config_is_action(const struct option *o);

void kvf_config_presets(struct kvf_config *config);
/* 0, or -EINVAL with a sentence that begins with "--NAME". Of a flag `text` is NULL, "yes" or "no". */
int kvf_config_set(const struct option *o, const char *text, struct kvf_config *config,
                   char *ret_error, size_t cap);
const char *kvf_config_field(const struct option *o, const struct kvf_config *config);
uint64_t kvf_config_number(const struct option *o, const struct kvf_config *config);
const char *kvf_config_size_text(uint64_t value, char *ret_text, size_t cap);
__attribute__((format(printf, 3, 4))) int kvf_config_refuse(char *ret_error, size_t cap,
                                                            const char *format, ...);

/* Reads the file `path` over config and says in origins which line each value came from. 0, or -EINVAL with a
 * sentence for every bad line, one a line: "PATH:LINE: CODE: what is wrong and what is allowed". */
int kvf_config_read_file(const char *path, struct kvf_config *config,
                         struct kvf_config_origins *origins, char *ret_error, size_t cap);

#endif

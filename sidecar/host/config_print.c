/* What is written about options: values, one line each, the whole as a file, the help. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "sidecar/host/config_internal.h"
#include "sidecar/host/numa.h"

#define MB UINT64_C(1000000)
#define PRINT_COLUMN 40

static const char *word_of(const struct option *o, uint64_t value)
{
    for (const struct option_word *w = o->words; w->text != NULL; w++) {
        if (w->value == value) {
            return w->text;
        }
    }
    return "?";
}

static void format_value(const struct option *o, const struct kvf_config *config,
                         char *ret_text, size_t cap)
{
    switch (o->kind) {
    case OPTION_TEXT:
        snprintf(ret_text, cap, "%s", kvf_config_field(o, config));
        return;
    case OPTION_ADDR:
        kvf_addr_format(&config->listen, ret_text, cap);
        return;
    case OPTION_COUNT:
    case OPTION_MS:
        snprintf(ret_text, cap, "%" PRIu64, kvf_config_number(o, config));
        return;
    case OPTION_SIZE:
        kvf_config_size_text(kvf_config_number(o, config), ret_text, cap);
        return;
    case OPTION_RATE:
        snprintf(ret_text, cap, "%" PRIu64, kvf_config_number(o, config) / MB);
        return;
    case OPTION_WORD:
        snprintf(ret_text, cap, "%s", word_of(o, kvf_config_number(o, config)));
        return;
    case OPTION_CPU:
        if (config->cpu < 0) {
            snprintf(ret_text, cap, "%s", config->cpu == KVF_CPU_AUTO ? "auto" : "none");
        } else {
            snprintf(ret_text, cap, "%d", config->cpu);
        }
        return;
    case OPTION_FLAG:
        snprintf(ret_text, cap, "%s",
                 *(const bool *)(const void *)kvf_config_field(o, config) ? "yes" : "no");
        return;
    }
}

/* What it is in force with and what was asked; the same but for windows that were lowered. */
static void format_both(const struct option *o, const struct kvf_config *config,
                        char *ret_value, char *ret_asked, size_t cap)
{
    struct kvf_config effective = *config;
    effective.lane_window_bytes = kvf_config_lane_window(config);
    effective.room_window_bytes = kvf_config_room_window(config);
    format_value(o, &effective, ret_value, cap);
    format_value(o, config, ret_asked, cap);
}

const char *kvf_config_line(const struct kvf_config *config, uint32_t i, char *ret_text,
                            size_t cap)
{
    const struct option *o = kvf_config_option(i);
    if (o == NULL || kvf_config_is_action(o)) {
        return NULL;
    }
    char value[KVF_CONFIG_DEVICES_BYTES];
    char asked[KVF_CONFIG_DEVICES_BYTES];
    format_both(o, config, value, asked, sizeof(value));
    bool is_as_asked = strcmp(value, asked) == 0;
    snprintf(ret_text, cap, "%s = %s%s%s%s", o->name, value, is_as_asked ? "" : "   (asked ",
             is_as_asked ? "" : asked, is_as_asked ? "" : ")");
    return ret_text;
}

void kvf_config_print(const struct kvf_config *config, const struct kvf_config_origins *origins,
                      FILE *out)
{
    fprintf(out, "# kvfenced %s, effective configuration%s%s\n", KVF_VERSION,
            config->config_file[0] != '\0' ? ", from " : "", config->config_file);
    const struct option *o;
    for (uint32_t i = 0; (o = kvf_config_option(i)) != NULL && !kvf_config_is_action(o); i++) {
        if (o->off == AT(config_file)) {
            continue; /* a file cannot name a file */
        }
        char value[KVF_CONFIG_DEVICES_BYTES];
        char asked[KVF_CONFIG_DEVICES_BYTES];
        char from[KVF_CONFIG_FROM_BYTES];
        format_both(o, config, value, asked, sizeof(value));
        bool is_as_asked = strcmp(value, asked) == 0;
        int written = fprintf(out, "%s = %s", o->name, value);
        fprintf(out, "%*s # %s%s%s\n", written < PRINT_COLUMN ? PRINT_COLUMN - written : 0, "",
                kvf_config_origin(origins, i, config, from, sizeof(from)),
                is_as_asked ? "" : ", asked ", is_as_asked ? "" : asked);
    }
}

static void print_help_text(const char *text, FILE *out)
{
    for (const char *at = text; *at != '\0';) {
        size_t bytes = strcspn(at, "\n");
        fprintf(out, "      %.*s\n", (int)bytes, at);
        at += bytes + (at[bytes] == '\n');
    }
}

void kvf_config_help(FILE *out)
{
    struct kvf_config presets;
    kvf_config_presets(&presets);
    presets.placement = KVF_CONFIG_CHECKED; /* of tcp, which is the default too */
    fprintf(out,
            "kvfenced: moves KV pages between workers and proves when they may be reused.\n"
            "Run one beside each GPU worker; engines attach through libkvfence.\n\n"
            "usage: kvfenced [options]        sizes take K, M, G (powers of 1024)\n"
            "  kvfenced --name gpu0                    a daemon for engines on this host\n"
            "  kvfenced --name gpu0 --print-config     what it would run with\n"
            "  kvfenced --config FILE --check          whether it could; every bad line of "
            "FILE\n\n");
    const struct option *o;
    for (uint32_t i = 0; (o = kvf_config_option(i)) != NULL; i++) {
        char value[KVF_CONFIG_DEVICES_BYTES] = "";
        format_value(o, &presets, value, sizeof(value));
        if (o->kind == OPTION_FLAG) {
            fprintf(out, "  --%s\n", o->name);
        } else if (value[0] == '\0') {
            fprintf(out, "  --%s %s\n", o->name, o->value);
        } else {
            fprintf(out, "  --%s %s   (default %s)\n", o->name, o->value, value);
        }
        print_help_text(o->help, out);
    }
    fprintf(
        out,
        "\nWhen it serves it prints one line beginning with \"kvfenced: ready\" on stdout.\n"
        "Exit status: 0 clean; 1 internal error; 2 bad options or a bad file; 3 could not "
        "start;\n"
        "4 the grace period was over and rooms had to be fenced.\n");
}

/* The command line over the file over the defaults, and how the values fit together. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sidecar/host/config_internal.h"
#include "sidecar/host/placement.h"

/* ---- the whole ------------------------------------------------------------------------------------ */

static int check_name(const struct kvf_config *config, char *ret_error, size_t cap)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *name = config->name;
    if (name[0] == '\0' || name[0] == '.' || name[0] == '-' ||
        name[strspn(name, allowed)] != '\0') {
        return kvf_config_refuse(
            ret_error, cap,
            "--name '%s': must be letters, digits, '.', '_' or '-', and begin with a "
            "letter, a digit or '_'",
            name);
    }
    return 0;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

static int find_run_dir(struct kvf_config *config, char *ret_error, size_t cap)
{
    if (config->run_dir[0] != '\0') {
        return 0;
    }
    char path[4096];
    if (is_set("KVFENCE_RUN_DIR")) {
        snprintf(path, sizeof(path), "%s", getenv("KVFENCE_RUN_DIR"));
    } else if (geteuid() == 0) {
        snprintf(path, sizeof(path), "/run/kvfence");
    } else if (is_set("XDG_RUNTIME_DIR")) {
        snprintf(path, sizeof(path), "%s/kvfence", getenv("XDG_RUNTIME_DIR"));
    } else {
        return kvf_config_refuse(
            ret_error, cap,
            "no run directory: give --run-dir, or set KVFENCE_RUN_DIR or XDG_RUNTIME_DIR");
    }
    size_t path_bytes = strlen(path) + 1u;
    if (path_bytes > sizeof(config->run_dir)) {
        return kvf_config_refuse(ret_error, cap,
                                 "run directory %.80s...: longer than %zu bytes", path,
                                 sizeof(config->run_dir) - 1u);
    }
    memcpy(config->run_dir, path, path_bytes);
    return 0;
}

static int check_placement(const struct kvf_config *config, char *ret_error, size_t cap)
{
    char why[256];
    if (kvf_placement_check_devices(config->rdma_devices, why, sizeof(why)) != 0) {
        return kvf_config_refuse(ret_error, cap, "--rdma-devices %s: %s", config->rdma_devices,
                                 why);
    }
    if (kvf_placement_check_near(config->rdma_near, why, sizeof(why)) != 0) {
        return kvf_config_refuse(ret_error, cap, "--rdma-near %s: %s", config->rdma_near, why);
    }
    if (config->sysfs[0] != '/') {
        return kvf_config_refuse(ret_error, cap, "--sysfs %s: must be an absolute path",
                                 config->sysfs);
    }
    return 0;
}

static int check_whole(struct kvf_config *config, char *ret_error, size_t cap)
{
    char text[64];
    int rc = check_name(config, ret_error, cap);
    if (rc == 0) {
        rc = check_placement(config, ret_error, cap);
    }
    if (rc != 0) {
        return rc;
    }
    if (!config->is_listen_insecure && !kvf_addr_is_loopback(&config->listen)) {
        return kvf_config_refuse(
            ret_error, cap,
            "--listen %s: other hosts reach this address and peers are not authenticated, so "
            "whoever connects could write into granted pages; use a loopback address, or say "
            "--insecure-listen if this network is trusted",
            kvf_addr_format(&config->listen, text, sizeof(text)));
    }
    if (config->transport == KVF_CONFIG_LOCAL && config->local == 0) {
        return kvf_config_refuse(
            ret_error, cap, "--local off: with --transport local nothing would move any byte");
    }
    rc = kvf_config_check_rdma(config, ret_error, cap);
    if (rc == 0) {
        rc = find_run_dir(config, ret_error, cap);
    }
    if (rc != 0) {
        return rc;
    }
    size_t path_bytes = strlen(config->run_dir) + 1u + strlen(config->name) + sizeof(".sock");
    if (path_bytes > sizeof(((struct sockaddr_un *)0)->sun_path)) {
        return kvf_config_refuse(
            ret_error, cap,
            "%s/%s.sock: %zu bytes, a Unix socket's path takes at most %zu; choose a "
            "shorter --run-dir or --name",
            config->run_dir, config->name, path_bytes - 1u,
            sizeof(((struct sockaddr_un *)0)->sun_path) - 1u);
    }
    return 0;
}

/* ---- the command line ----------------------------------------------------------------------------- */

static int refuse_word(const char *word, size_t name_bytes, char *ret_error, size_t cap)
{
    if (word[0] != '-') {
        return kvf_config_refuse(
            ret_error, cap,
            "'%s': kvfenced takes options only, no argument; --help lists them all", word);
    }
    const char *nearest = kvf_config_nearest(word + (name_bytes > 0 ? 2 : 1), name_bytes);
    return kvf_config_refuse(ret_error, cap, "%s: unknown option;%s%s%s --help lists them all",
                             word, nearest != NULL ? " did you mean --" : "",
                             nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
}

static int take_words(int argc, char *const *argv, struct kvf_config *config,
                      struct kvf_config_origins *origins, char *ret_error, size_t cap)
{
    for (int i = 1; i < argc; i++) {
        const char *word = strcmp(argv[i], "-h") == 0 ? "--help" : argv[i];
        size_t name_bytes = strncmp(word, "--", 2) == 0 ? strcspn(word + 2, "=") : 0;
        const struct option *o = name_bytes > 0 ? kvf_config_find(word + 2, name_bytes) : NULL;
        if (o == NULL) {
            return refuse_word(word, name_bytes, ret_error, cap);
        }
        const char *value = word[2 + name_bytes] == '=' ? word + 3 + name_bytes : NULL;
        if (value != NULL && kvf_config_is_action(o)) {
            return kvf_config_refuse(ret_error, cap, "--%s: takes no value", o->name);
        }
        if (o->kind != OPTION_FLAG && value == NULL) {
            if (i + 1 >= argc) {
                return kvf_config_refuse(ret_error, cap, "--%s: needs a value, %s", o->name,
                                         o->value);
            }
            value = argv[++i];
        }
        int rc = kvf_config_set(o, value, config, ret_error, cap);
        if (rc != 0) {
            return rc;
        }
        origins->lines[kvf_config_option_idx(o)] = KVF_CONFIG_LINE_COMMAND;
    }
    return 0;
}

/* What is wrong with the whole names an option: if that stands in the file, so does the line. */
static void blame_line(const struct kvf_config *config,
                       const struct kvf_config_origins *origins, char *error, size_t cap)
{
    size_t name_bytes = strncmp(error, "--", 2) == 0 ? strcspn(error + 2, " :") : 0;
    const struct option *o = name_bytes > 0 ? kvf_config_find(error + 2, name_bytes) : NULL;
    uint32_t line = o != NULL ? origins->lines[kvf_config_option_idx(o)] : 0;
    if (line == 0 || line == KVF_CONFIG_LINE_COMMAND) {
        return;
    }
    char text[KVF_CONFIG_ERROR_BYTES];
    snprintf(text, sizeof(text), "%s:%u: bad-value: %.512s", config->config_file, line,
             error + 2);
    snprintf(error, cap, "%s", text);
}

int kvf_config_read(int argc, char *const *argv, struct kvf_config *ret_config,
                    struct kvf_config_origins *ret_origins, char *ret_error, size_t error_cap)
{
    struct kvf_config config;
    struct kvf_config_origins origins = {0};
    kvf_config_presets(&config);
    int rc = take_words(argc, argv, &config, &origins, ret_error, error_cap);
    bool is_told_only = config.is_help || config.is_version;
    if (rc == 0 && config.config_file[0] != '\0' && !is_told_only) {
        char path[KVF_CONFIG_PATH_BYTES];
        memcpy(path, config.config_file, sizeof(path));
        kvf_config_presets(&config);
        memset(&origins, 0, sizeof(origins));
        rc = kvf_config_read_file(path, &config, &origins, ret_error, error_cap);
        if (rc == 0) {
            rc = take_words(argc, argv, &config, &origins, ret_error, error_cap);
        }
    }
    if (rc == 0 && !is_told_only) {
        rc = check_whole(&config, ret_error, error_cap);
        if (rc != 0) {
            blame_line(&config, &origins, ret_error, error_cap);
        }
    }
    if (rc == 0) {
        *ret_config = config;
        *ret_origins = origins;
    }
    return rc;
}

int kvf_config_parse(int argc, char *const *argv, struct kvf_config *ret_config,
                     char *ret_error, size_t error_cap)
{
    struct kvf_config_origins origins;
    return kvf_config_read(argc, argv, ret_config, &origins, ret_error, error_cap);
}

const char *kvf_config_origin(const struct kvf_config_origins *origins, uint32_t i,
                              const struct kvf_config *config, char *ret_text, size_t cap)
{
    const struct option *o = kvf_config_option(i);
    uint32_t line = origins->lines[i];
    if (line == KVF_CONFIG_LINE_COMMAND) {
        snprintf(ret_text, cap, "command line");
    } else if (line != 0) {
        snprintf(ret_text, cap, "%s:%u", config->config_file, line);
    } else if (o->off == AT(run_dir)) {
        snprintf(ret_text, cap, "%s",
                 is_set("KVFENCE_RUN_DIR") ? "$KVFENCE_RUN_DIR"
                 : geteuid() == 0          ? "default"
                                           : "$XDG_RUNTIME_DIR");
    } else {
        snprintf(ret_text, cap, "default");
    }
    return ret_text;
}

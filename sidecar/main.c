/* kvfenced: reads its options and becomes the supervisor, or, started by one, its worker. */
#include <stdio.h>
#include <string.h>

#include "ring/about/about.h"
#include "sidecar/host/config.h"
#include "sidecar/host/log.h"
#include "sidecar/run_dir.h"
#include "sidecar/supervisor.h"
#include "sidecar/worker.h"

/* Each sentence on a line of its own, a file has one for each bad line. */
static int read_config(int argc, char **argv, struct kvf_config *ret_config,
                       struct kvf_config_origins *ret_origins)
{
    static char error[KVF_CONFIG_ERROR_BYTES];
    int rc = kvf_config_read(argc, argv, ret_config, ret_origins, error, sizeof(error));
    for (const char *at = error; rc != 0 && *at != '\0';) {
        size_t bytes = strcspn(at, "\n");
        fprintf(stderr, "kvfenced: %.*s\n", (int)bytes, at);
        at += bytes + (at[bytes] == '\n');
    }
    return rc;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "--worker") == 0) {
        return kvf_worker_main();
    }
    struct kvf_config config;
    struct kvf_config_origins origins;
    if (read_config(argc, argv, &config, &origins) != 0) {
        return KVF_EXIT_USAGE;
    }
    if (config.is_help) {
        kvf_config_help(stdout);
        return KVF_EXIT_CLEAN;
    }
    if (config.is_version) {
        kvf_about_print("kvfenced", stdout);
        return KVF_EXIT_CLEAN;
    }
    if (config.is_print) {
        kvf_config_print(&config, &origins, stdout);
    }
    if (config.is_check) {
        char who[64];
        snprintf(who, sizeof(who), "%s/check", config.name);
        kvf_log_init(who, (enum kvf_log_level)config.log_level);
        if (kvf_run_dir_check(&config) != 0 || kvf_worker_check(&config) != 0) {
            return KVF_EXIT_START;
        }
        printf("kvfenced: the options are valid, and so are processor and run directory; "
               "whether the name and the port are free shows at the start\n");
    }
    return config.is_print || config.is_check ? KVF_EXIT_CLEAN : kvf_supervisor_main(&config);
}

#include "tests/torture/devices.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_DIR "/sys/class/infiniband"

static int is_device(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

void kvf_devices_choose(const struct kvf_options *options, char ret_names[2][64])
{
    struct dirent **found = NULL;
    int count = 0;
    memcpy(ret_names, options->rdma_devices, sizeof(options->rdma_devices));
    if (ret_names[0][0] == 0) {
        count = scandir(DEVICES_DIR, &found, is_device, alphasort);
    }
    for (int i = 0; i < count; i++) {
        for (int side = i; side < 2; side++) {
            snprintf(ret_names[side], sizeof(ret_names[side]), "%.63s", found[i]->d_name);
        }
        free(found[i]);
    }
    free(found);
}

#include <stdio.h>

#include "client/stat/run.h"

int main(int argc, char **argv)
{
    int rc = kvf_stat_run(argc, argv, stdout, stderr);

    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("kvfence-stat: the output could not be written\n", stderr);
        return KVF_STAT_EXIT_FAILED;
    }
    return rc;
}

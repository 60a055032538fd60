#include <stdio.h>

#include "client/ctl/run.h"

int main(int argc, char **argv)
{
    int rc = kvf_ctl_run(argc, argv, stdout, stderr);

    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("kvfence-ctl: the output could not be written\n", stderr);
        return KVF_CTL_EXIT_NO_ANSWER;
    }
    return rc;
}

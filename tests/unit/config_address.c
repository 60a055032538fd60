#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "sidecar/host/config.h"

Test(config_address, numeric_addresses_are_read_and_written_back)
{
    static const char *const good[] = {"127.0.0.1:80", "10.1.2.3:65535", "0.0.0.0:0",
                                       "[::1]:80", "[fe80::1]:1"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct kvf_addr_shm addr;
        char text[64];
        cr_assert_eq(kvf_addr_parse(good[i], &addr), 0, "%s", good[i]);
        cr_assert_str_eq(kvf_addr_format(&addr, text, sizeof(text)), good[i]);
    }
}

Test(config_address, anything_else_is_refused_and_leaves_the_output)
{
    static const char *const bad[] = {
        "",
        ":80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:8x",
        "localhost:80",
        "::1:80",
        "[::1]80",
        "[::1:80",
        "[]:80",
        "1.2.3:80",
        "1.2.3.4.5:80",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kvf_addr_shm addr;
        memset(&addr, 0x5a, sizeof(addr));
        struct kvf_addr_shm before = addr;
        cr_assert_eq(kvf_addr_parse(bad[i], &addr), -EINVAL, "%s", bad[i]);
        cr_assert_eq(memcmp(&addr, &before, sizeof(addr)), 0, "%s", bad[i]);
    }
}

#include "client_world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kvf_pool_opts good(uint64_t bytes)
{
    return (struct kvf_pool_opts){
        .size_bytes = sizeof(struct kvf_pool_opts), .numa_node = -1, .bytes = bytes};
}

Test(client_pool, is_sealed_reserved_and_mapped)
{
    struct kvf_pool_opts o = good(10000);
    o.huge_pages = 2;
    kvf_pool *pool;
    cr_assert_eq(kvf_pool_create(&o, &pool), 0);
    cr_assert_eq(kvf_pool_bytes(pool), 12288);
    cr_assert_eq(kvf_pool_page_bytes(pool), 4096);
    int fd = kvf_pool_fd(pool);
    cr_assert_neq(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK, 0);
    cr_assert_neq(ftruncate(fd, 4096), 0);
    struct stat st;
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_geq(st.st_blocks * 512, 12288, "no SIGBUS later");
    cr_assert_neq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    memset(kvf_pool_addr(pool), 7, 12288);
    kvf_pool_destroy(pool);
}

Test(client_pool, options_out_of_range_are_refused)
{
    kvf_pool *pool = NULL;
    struct kvf_pool_opts o = good(0);
    cr_assert_eq(kvf_pool_create(&o, &pool), -EINVAL);
    o = good(4096);
    o.huge_pages = 3;
    cr_assert_eq(kvf_pool_create(&o, &pool), -KVF_E_OPTION);
    o = good(4096);
    o.numa_node = -2;
    cr_assert_eq(kvf_pool_create(&o, &pool), -KVF_E_OPTION);
    o.numa_node = 100000;
    cr_assert_eq(kvf_pool_create(&o, &pool), -KVF_E_OPTION);
    o = good(4096);
    o.pad_[0] = 1;
    cr_assert_eq(kvf_pool_create(&o, &pool), -KVF_E_OPTION);
    o = good(4096);
    o.size_bytes = 3;
    cr_assert_eq(kvf_pool_create(&o, &pool), -KVF_E_OPTION);
    o = good(UINT64_C(1) << 62);
    cr_assert_eq(kvf_pool_create(&o, &pool), -ENOMEM);
    o = good(UINT64_MAX);
    cr_assert_eq(kvf_pool_create(&o, &pool), -ENOMEM);
    cr_assert_null(pool);
}

Test(client_pool, takes_huge_pages_where_there_are_any_and_says_so_where_there_are_none)
{
    struct kvf_pool_opts o = good(UINT64_C(4) << 20);
    kvf_pool *pool;
    o.numa_node = 0;
    cr_assert_eq(kvf_pool_create(&o, &pool), 0, "falls back to small ones");
    cr_assert(kvf_pool_page_bytes(pool) == 4096 || kvf_pool_page_bytes(pool) == 2u << 20);
    memset(kvf_pool_addr(pool), 1, kvf_pool_bytes(pool));
    kvf_pool_destroy(pool);
    o.huge_pages = 1;
    o.bytes = UINT64_C(1) << 40;
    cr_assert_eq(kvf_pool_create(&o, &pool), -ENOMEM);
    o.huge_pages = 1;
    o.bytes = 4096;
    int err = kvf_pool_create(&o, &pool);
    cr_assert(err == 0 || err == -ENOMEM, "%s", kvf_code_name(err));
    if (err == 0) {
        cr_assert_eq(kvf_pool_bytes(pool), 2u << 20);
        kvf_pool_destroy(pool);
    }
}

Test(client_pool, adopts_memory_that_cannot_shrink)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    kvf_pool *pool = NULL;
    cr_assert_eq(ftruncate(fd, 8192), 0);
    cr_assert_eq(kvf_pool_adopt(fd, 8192, &pool), -KVF_E_NO_SEAL);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    cr_assert_eq(kvf_pool_adopt(fd, 8193, &pool), -KVF_E_MEMORY_RANGE);
    cr_assert_eq(kvf_pool_adopt(fd, 0, &pool), -KVF_E_MEMORY_RANGE);
    cr_assert_eq(kvf_pool_adopt(-1, 8192, &pool) < 0, 1);
    cr_assert_null(pool);
    cr_assert_eq(kvf_pool_adopt(fd, 8192, &pool), 0);
    cr_assert_neq(kvf_pool_fd(pool), fd, "a duplicate");
    close(fd);
    memset(kvf_pool_addr(pool), 3, 8192);
    kvf_pool_destroy(pool);
    int plain = open("/dev/null", O_RDWR | O_CLOEXEC);
    cr_assert_eq(kvf_pool_adopt(plain, 1, &pool), -KVF_E_NO_SEAL);
    close(plain);
}

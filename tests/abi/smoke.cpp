// A C++17 program with the installed header and library: compiles without a warning, links, and is refused
// politely where no daemon is.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <kvfence.h>

int main()
{
    kvf_attach_opts opts{};
    opts.size_bytes = sizeof opts;
    opts.socket_path = "/nowhere/at.all";
    kvf_client *client = nullptr;
    const int rc = kvf_attach(&opts, &client);
    kvf_pool_opts pool_opts{};
    pool_opts.size_bytes = sizeof pool_opts;
    pool_opts.numa_node = -1;
    pool_opts.bytes = 8192;
    pool_opts.huge_pages = 2;
    kvf_pool *pool = nullptr;
    const int made = kvf_pool_create(&pool_opts, &pool);
    if (made == 0) {
        std::memset(kvf_pool_addr(pool), 1, kvf_pool_bytes(pool));
    }
    std::printf("%s: %s; pool of %llu bytes\n", kvf_code_name_of(rc), kvf_strerror(rc),
                static_cast<unsigned long long>(kvf_pool_bytes(pool)));
    kvf_pool_destroy(pool);
    return rc == -KVF_E_NO_DAEMON && client == nullptr && made == 0 &&
                   kvf_poll(nullptr, 1) == -EINVAL
               ? 0
               : 1;
}

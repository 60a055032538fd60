/* Libraries that are not the one the Python package speaks to, each by one thing: WRONG_VERSION another
 * minor version, WRONG_CODES other names for the numbers, WRONG_SIZE longer option structs. */
#include <errno.h>
#include <stdint.h>

#include "ring/codes.h"

#define SHOWN __attribute__((visibility("default")))
/* clang-format off */
#define EMPTY(name) SHOWN int name(void); SHOWN int name(void) { return 0; }
/* clang-format on */

SHOWN const char *kvf_version(void);
SHOWN const char *kvf_version(void)
{
#ifdef WRONG_VERSION
    return "0.2.0";
#else
    return "0.1.7";
#endif
}

SHOWN const char *kvf_code_name_of(int code);
SHOWN const char *kvf_code_name_of(int code)
{
#ifdef WRONG_CODES
    code += 1;
#endif
    return kvf_code_name(code);
}

SHOWN int kvf_pool_create(const void *opts, void **ret_pool);
SHOWN int kvf_pool_create(const void *opts, void **ret_pool)
{
    (void)opts;
    (void)ret_pool;
#ifdef WRONG_SIZE
    return -KVF_E_OPTION;
#else
    return -EINVAL;
#endif
}

SHOWN int kvf_attach(const void *opts, void **ret_client);
SHOWN int kvf_attach(const void *opts, void **ret_client)
{
    (void)opts;
    (void)ret_client;
    return -KVF_E_LIMIT_RANGE;
}

#ifndef WRONG_SYMBOLS
EMPTY(kvf_layout_version)
#endif
EMPTY(kvf_strerror)
EMPTY(kvf_state_name)
EMPTY(kvf_proof_name)
EMPTY(kvf_detach)
EMPTY(kvf_reattach)
EMPTY(kvf_daemon_check)
EMPTY(kvf_daemon_info)
EMPTY(kvf_pool_adopt)
EMPTY(kvf_pool_bytes)
EMPTY(kvf_pool_fd)
EMPTY(kvf_pool_page_bytes)
EMPTY(kvf_pool_destroy)
EMPTY(kvf_region_register)
EMPTY(kvf_last_refusal)
EMPTY(kvf_region_unregister)
EMPTY(kvf_pages_are_idle)
EMPTY(kvf_pages_are_idle64)
EMPTY(kvf_page_lender)
EMPTY(kvf_open_sink)
EMPTY(kvf_open_source)
EMPTY(kvf_submit)
EMPTY(kvf_abort)
EMPTY(kvf_poll)
EMPTY(kvf_poll_many)
EMPTY(kvf_failed_early)
EMPTY(kvf_drained)
EMPTY(kvf_visible)
EMPTY(kvf_room_info)
EMPTY(kvf_wait)
EMPTY(kvf_release)
EMPTY(kvf_lease)
EMPTY(kvf_lease_give_back)
EMPTY(kvf_event_fd)
EMPTY(kvf_events_next)
EMPTY(kvf_group_register)
EMPTY(kvf_group_skip)

#include "tests/torture/inject.h"

#include <stddef.h>

#define ONE_REQUEST_IN 4u

const char *kvf_inject_name(enum kvf_inject inject)
{
    switch (inject) {
    case KVF_INJECT_NOTHING:
        return "nothing";
    case KVF_INJECT_FLIP_BYTE:
        return "flip-byte";
    case KVF_INJECT_SKIP_PLANE:
        return "skip-plane";
    case KVF_INJECT_SWAP_PAGES:
        return "swap-pages";
    case KVF_INJECT_DRAINED_AT_ONCE:
        return "drained-at-once";
    case KVF_INJECTS:
        break;
    }
    return NULL;
}

bool kvf_inject_hits(enum kvf_inject inject, const struct kvf_request *request)
{
    switch (inject) {
    case KVF_INJECT_FLIP_BYTE:
    case KVF_INJECT_SKIP_PLANE:
        return request->abort_kind == KVF_ABORT_NONE && request->key % ONE_REQUEST_IN == 0;
    case KVF_INJECT_SWAP_PAGES:
        return request->abort_kind == KVF_ABORT_NONE && request->key % ONE_REQUEST_IN == 0 &&
               request->page_count >= 2;
    case KVF_INJECT_NOTHING:
    case KVF_INJECT_DRAINED_AT_ONCE:
    case KVF_INJECTS:
        break;
    }
    return false;
}

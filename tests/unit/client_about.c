#include "client_world.h"

Test(client_about, every_code_has_a_name_and_a_sentence)
{
    cr_assert_str_eq(kvf_version(), KVF_VERSION);
    cr_assert_eq(kvf_layout_version(), KVF_LAYOUT_MAJOR << 16 | KVF_LAYOUT_MINOR);
    for (int code = KVF_E_NO_DAEMON; code <= KVF_E_LEASE_KIND; code++) {
        cr_assert_eq(strncmp(kvf_code_name_of(code), "KVF_E_", 6), 0, "%d", code);
        cr_assert_gt(strlen(kvf_strerror(-code)), 15, "%d", code);
        cr_assert_str_eq(kvf_strerror(code), kvf_strerror(-code));
    }
    cr_assert_not_null(kvf_strerror(123456));
    cr_assert_not_null(kvf_strerror(INT32_MIN));
    cr_assert_str_eq(kvf_state_name(KVF_WAITING_FOR_INPUT), "WaitingForInput");
    cr_assert_str_eq(kvf_state_name(5), "?");
    cr_assert_str_eq(kvf_state_name(-1), "?");
    cr_assert_str_eq(kvf_proof_name(KVF_FENCED), "FENCED");
    cr_assert_str_eq(kvf_proof_name(0), "?");
    cr_assert_str_eq(kvf_proof_name(10), "?");
    /* The numbers of the installed header are those inside. */
    cr_assert_eq((int)KVF_SUCCESS, (int)KVF_STATE_SUCCESS);
    cr_assert_eq((int)KVF_OPERATOR, (int)KVF_PROOF_OPERATOR);
    cr_assert_eq((int)KVF_KIND_DIRECT_IO, (int)KVF_LEASE_DIRECT_IO);
}

Test(client_about, null_is_refused_where_none_is_allowed)
{
    kvf_room room;
    uint32_t number;
    int32_t state;
    int32_t page = 0;
    int64_t wide = 0;
    struct kvf_event event;
    struct kvf_sink_opts sink = {.size_bytes = sizeof sink};
    struct kvf_source_opts source = {.size_bytes = sizeof source};
    struct kvf_piece_opts piece = {.size_bytes = sizeof piece};
    struct kvf_region_opts region = {.size_bytes = sizeof region};
    struct kvf_group_opts group = {.size_bytes = sizeof group};
    struct kvf_room_info info = {.size_bytes = sizeof info};
    struct kvf_daemon_info daemon = {.size_bytes = sizeof daemon};
    cr_assert_eq(kvf_detach(NULL, 0, NULL), -EINVAL);
    cr_assert_eq(kvf_reattach(NULL, 0), -EINVAL);
    cr_assert_eq(kvf_daemon_check(NULL), -EINVAL);
    cr_assert_eq(kvf_daemon_info(NULL, &daemon), -EINVAL);
    cr_assert_eq(kvf_region_register(NULL, &region, &number), -EINVAL);
    cr_assert_eq(kvf_region_unregister(NULL, 1), -EINVAL);
    cr_assert_eq(kvf_last_refusal(NULL, NULL, 0), -EINVAL);
    cr_assert_eq(kvf_pages_are_idle(NULL, 1, &page, 1, NULL), -EINVAL);
    cr_assert_eq(kvf_pages_are_idle64(NULL, 1, &wide, 1, NULL), -EINVAL);
    cr_assert_eq(kvf_page_lender(NULL, 1, 0, &room), -EINVAL);
    cr_assert_eq(kvf_open_sink(NULL, &sink, &room), -EINVAL);
    cr_assert_eq(kvf_open_source(NULL, &source, &room), -EINVAL);
    cr_assert_eq(kvf_submit(NULL, 1, &piece), -EINVAL);
    cr_assert_eq(kvf_abort(NULL, 1, 0), -EINVAL);
    cr_assert_eq(kvf_poll(NULL, 1), -EINVAL);
    cr_assert_eq(kvf_poll_many(NULL, &room, 1, &state), -EINVAL);
    cr_assert_eq(kvf_failed_early(NULL, 1), -EINVAL);
    cr_assert_eq(kvf_drained(NULL, 1), -EINVAL);
    cr_assert_eq(kvf_visible(NULL, 1), -EINVAL);
    cr_assert_eq(kvf_room_info(NULL, 1, &info), -EINVAL);
    cr_assert_eq(kvf_wait(NULL, 1, 0), -EINVAL);
    cr_assert_eq(kvf_release(NULL, 1), -EINVAL);
    cr_assert_eq(kvf_lease(NULL, 1, 0), -EINVAL);
    cr_assert_eq(kvf_lease_give_back(NULL, 1, 0), -EINVAL);
    cr_assert_eq(kvf_event_fd(NULL), -EINVAL);
    cr_assert_eq(kvf_events_next(NULL, &event, 1), -EINVAL);
    cr_assert_eq(kvf_group_register(NULL, &group, &number), -EINVAL);
    cr_assert_eq(kvf_pool_create(NULL, NULL), -EINVAL);
    cr_assert_eq(kvf_pool_adopt(0, 1, NULL), -EINVAL);
    cr_assert_null(kvf_pool_addr(NULL));
    cr_assert_eq(kvf_pool_bytes(NULL), 0);
    cr_assert_eq(kvf_pool_fd(NULL), -EINVAL);
    cr_assert_eq(kvf_pool_page_bytes(NULL), 0);
    kvf_pool_destroy(NULL);
    struct world w;
    world_begin(&w);
    cr_assert_eq(kvf_open_sink(w.client, NULL, &room), -EINVAL);
    cr_assert_eq(kvf_open_sink(w.client, &sink, NULL), -EINVAL);
    cr_assert_eq(kvf_open_source(w.client, NULL, &room), -EINVAL);
    cr_assert_eq(kvf_open_source(w.client, &source, NULL), -EINVAL);
    cr_assert_eq(kvf_daemon_info(w.client, NULL), -EINVAL);
    cr_assert_eq(kvf_group_register(w.client, NULL, &number), -EINVAL);
    cr_assert_eq(kvf_group_register(w.client, &group, NULL), -EINVAL);
    world_end(&w);
}

Test(client_about, daemon_info_tells_bounds_and_epoch)
{
    struct world w;
    world_begin(&w);
    struct kvf_daemon_info info = {.size_bytes = sizeof info};
    cr_assert_eq(kvf_daemon_info(w.client, &info), 0);
    cr_assert_eq(info.worker_epoch, w.fake.epoch);
    cr_assert_eq(info.bound_usual_us, 3750000);
    cr_assert_eq(info.bound_worst_us, 9750000);
    cr_assert_eq(info.lanes_per_peer, 2);
    info.size_bytes = 12;
    cr_assert_eq(kvf_daemon_info(w.client, &info), -KVF_E_OPTION);
    world_end(&w);
}

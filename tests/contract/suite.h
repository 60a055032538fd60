/* The promises T1 to T7 of transport.h as tests over any transport. A transport's own file names its kind and
 * expands KVF_CONTRACT_TESTS; see tcp.c. */
#ifndef KVF_TESTS_CONTRACT_SUITE_H
#define KVF_TESTS_CONTRACT_SUITE_H

#include "tests/contract/rig.h"

#define KVF_CONTRACT_TESTS(X)                                                                  \
    X(t1_every_post_completes_once_when_nothing_fails)                                         \
    X(t1_every_post_completes_once_through_a_fence)                                            \
    X(t1_every_post_completes_once_through_a_detach)                                           \
    X(t1_every_post_completes_once_through_a_read_fault)                                       \
    X(t1_a_read_fault_blames_its_own_post)                                                     \
    X(t1_a_callback_may_detach_fence_and_open_again)                                           \
    X(t1_a_full_queue_refuses_and_recovers)                                                    \
    X(t1_a_detach_makes_room_at_once)                                                          \
    X(t2_posts_complete_in_order_and_the_marker_is_behind_all_bytes)                           \
    X(t2_a_detached_end_leaves_as_drain)                                                       \
    X(t3_nothing_lands_after_the_sink_fenced)                                                  \
    X(t3_nothing_is_read_from_pages_after_the_source_fenced)                                   \
    X(t3_all_completions_come_before_fenced)                                                   \
    X(t3_a_fence_of_another_epoch_answers_and_harms_nothing)                                   \
    X(t3_a_fenced_lane_opens_again_under_the_next_epoch)                                       \
    X(t4_a_closed_grant_gets_not_one_byte_more)                                                \
    X(t4_a_refused_place_ends_the_stream)                                                      \
    X(t5_a_broken_lane_leaves_the_other_lanes_alone)                                           \
    X(t6_a_stopped_reader_blocks_no_call_and_no_other_lane)                                    \
    X(t7_truncated_source_memory_is_an_error_and_no_signal)                                    \
    X(t7_truncated_sink_memory_is_an_error_and_no_signal)                                      \
    X(t7_a_region_that_is_gone_is_an_error)                                                    \
    X(a_detached_frame_goes_on_from_filler_and_the_lane_stays_in_step)                         \
    X(pages_of_every_odd_size_arrive_whole)                                                    \
    X(many_planes_and_many_pages_arrive_whole)                                                 \
    X(scattered_posts_of_many_rooms_arrive_whole)

#define KVF_CONTRACT_DECLARE(name) void contract_##name(const struct rig_kind *kind);
KVF_CONTRACT_TESTS(KVF_CONTRACT_DECLARE)
#undef KVF_CONTRACT_DECLARE

#endif

/* What a program that was built against kvfence.h relies on: numbers, sizes, offsets, one a line. */
#include <stddef.h>
#include <stdio.h>

#include "client/kvfence.h"

#define NUMBER(name) printf("number %s %lld\n", #name, (long long)(name))
#define STRUCT(name) printf("struct %s %zu\n", #name, sizeof(struct name))
#define FIELD(name, field)                                                                     \
    printf("field %s.%s %zu %zu\n", #name, #field, offsetof(struct name, field),               \
           sizeof(((struct name *)0)->field))

static void print_codes(void)
{
    NUMBER(KVF_E_NO_DAEMON);
    NUMBER(KVF_E_DAEMON_GONE);
    NUMBER(KVF_E_LAYOUT);
    NUMBER(KVF_E_UNKNOWN_ROOM);
    NUMBER(KVF_E_STALE_ROOM);
    NUMBER(KVF_E_PAGE_RANGE);
    NUMBER(KVF_E_PAGE_TWICE);
    NUMBER(KVF_E_NO_PAGES);
    NUMBER(KVF_E_PAGE_LENT);
    NUMBER(KVF_E_UNKNOWN_REGION);
    NUMBER(KVF_E_NO_SEAL);
    NUMBER(KVF_E_GEOMETRY);
    NUMBER(KVF_E_SLOT_IN_USE);
    NUMBER(KVF_E_ROOMS_FULL);
    NUMBER(KVF_E_REGIONS_FULL);
    NUMBER(KVF_E_PEER_UNRESOLVED);
    NUMBER(KVF_E_PEER_UNREACHABLE);
    NUMBER(KVF_E_PIECE_OVERLAP);
    NUMBER(KVF_E_PIECE_HOLE);
    NUMBER(KVF_E_PIECE_RANGE);
    NUMBER(KVF_E_PEER_COUNT);
    NUMBER(KVF_E_GROUP_UNSUPPORTED);
    NUMBER(KVF_E_OPTION);
    NUMBER(KVF_E_ABORTED);
    NUMBER(KVF_E_PEER_ABORTED);
    NUMBER(KVF_E_PEER_LOST);
    NUMBER(KVF_E_PEER_REFUSED);
    NUMBER(KVF_E_LANE_LOST);
    NUMBER(KVF_E_BOOTSTRAP_TIMEOUT);
    NUMBER(KVF_E_PEER_ROOM_GONE);
    NUMBER(KVF_E_PEER_BUSY);
    NUMBER(KVF_E_ENGINE_GONE);
    NUMBER(KVF_E_WORKER_GONE);
    NUMBER(KVF_E_SHUTDOWN);
    NUMBER(KVF_E_MEMORY_FAULT);
    NUMBER(KVF_E_REGION_BUSY);
    NUMBER(KVF_E_MEMORY_REGISTERED);
    NUMBER(KVF_E_SHORT);
    NUMBER(KVF_E_PROTOCOL);
    NUMBER(KVF_E_CLIENT_DROPPED);
    NUMBER(KVF_E_FORKED);
    NUMBER(KVF_E_PIECES_CLOSED);
    NUMBER(KVF_E_KEY_IN_USE);
    NUMBER(KVF_E_ROLE);
    NUMBER(KVF_E_GRANT_LENGTH);
    NUMBER(KVF_E_QUARANTINED);
    NUMBER(KVF_E_CLIENTS_FULL);
    NUMBER(KVF_E_RESOURCES);
    NUMBER(KVF_E_MEMORY_RANGE);
    NUMBER(KVF_E_LIMIT_RANGE);
    NUMBER(KVF_E_LEASE_CLOSED);
    NUMBER(KVF_E_LEASE_KIND);
    NUMBER(KVF_E_UNKNOWN_GROUP);
    NUMBER(KVF_E_GROUP_MEMBERS);
    NUMBER(KVF_E_GROUPS_FULL);
    NUMBER(KVF_E_GROUP_RANK_TAKEN);
    NUMBER(KVF_E_GROUP_CLOSED);
    NUMBER(KVF_E_GROUP_TOMBSTONES);
    NUMBER(KVF_E_PEER_HELD);
    NUMBER(KVF_E_NO_KEY);
    NUMBER(KVF_E_DEVICE_MEMORY);
    NUMBER(KVF_E_HOST_MEMORY_ONLY);
    NUMBER(KVF_E_NO_DMABUF);
    NUMBER(KVF_E_DMABUF_REFUSED);
    NUMBER(KVF_E_DEVICE_COPY);
}

static void print_numbers(void)
{
    NUMBER(KVF_FAILED);
    NUMBER(KVF_BOOTSTRAPPING);
    NUMBER(KVF_WAITING_FOR_INPUT);
    NUMBER(KVF_TRANSFERRING);
    NUMBER(KVF_SUCCESS);
    NUMBER(KVF_NEVER_POSTED);
    NUMBER(KVF_LANDED);
    NUMBER(KVF_SOURCE_IDLE);
    NUMBER(KVF_PEER_DRAINED);
    NUMBER(KVF_REVOKED);
    NUMBER(KVF_FENCED);
    NUMBER(KVF_WORKER_GONE);
    NUMBER(KVF_ENGINE_GONE);
    NUMBER(KVF_OPERATOR);
    NUMBER(KVF_MEMORY_HOST);
    NUMBER(KVF_MEMORY_DMABUF);
    NUMBER(KVF_KIND_CPU);
    NUMBER(KVF_KIND_GPU);
    NUMBER(KVF_KIND_DIRECT_IO);
    NUMBER(KVF_LAST_PIECE);
}

static void print_structs_of_attach_and_memory(void)
{
    STRUCT(kvf_attach_opts);
    FIELD(kvf_attach_opts, size_bytes);
    FIELD(kvf_attach_opts, timeout_ms);
    FIELD(kvf_attach_opts, socket_path);
    FIELD(kvf_attach_opts, daemon_name);
    FIELD(kvf_attach_opts, client_name);
    FIELD(kvf_attach_opts, rooms_max);
    FIELD(kvf_attach_opts, cmd_slots);
    FIELD(kvf_attach_opts, event_slots);
    FIELD(kvf_attach_opts, arena_bytes);
    FIELD(kvf_attach_opts, pad_);
    STRUCT(kvf_daemon_info);
    FIELD(kvf_daemon_info, size_bytes);
    FIELD(kvf_daemon_info, lanes_per_peer);
    FIELD(kvf_daemon_info, worker_epoch);
    FIELD(kvf_daemon_info, bound_usual_us);
    FIELD(kvf_daemon_info, bound_worst_us);
    FIELD(kvf_daemon_info, loop_count);
    FIELD(kvf_daemon_info, events_lost);
    STRUCT(kvf_pool_opts);
    FIELD(kvf_pool_opts, size_bytes);
    FIELD(kvf_pool_opts, numa_node);
    FIELD(kvf_pool_opts, bytes);
    FIELD(kvf_pool_opts, huge_pages);
    FIELD(kvf_pool_opts, pad_);
    STRUCT(kvf_plane);
    FIELD(kvf_plane, off);
    FIELD(kvf_plane, stride);
    FIELD(kvf_plane, page_bytes);
    STRUCT(kvf_region_opts);
    FIELD(kvf_region_opts, size_bytes);
    FIELD(kvf_region_opts, fd);
    FIELD(kvf_region_opts, memory_off);
    FIELD(kvf_region_opts, memory_bytes);
    FIELD(kvf_region_opts, page_count);
    FIELD(kvf_region_opts, planes);
    FIELD(kvf_region_opts, plane_count);
    FIELD(kvf_region_opts, timeout_ms);
    FIELD(kvf_region_opts, memory);
    FIELD(kvf_region_opts, pad_);
}

static void print_structs_of_rooms(void)
{
    STRUCT(kvf_sink_opts);
    FIELD(kvf_sink_opts, size_bytes);
    FIELD(kvf_sink_opts, region);
    FIELD(kvf_sink_opts, label);
    FIELD(kvf_sink_opts, key);
    FIELD(kvf_sink_opts, pages);
    FIELD(kvf_sink_opts, pages64);
    FIELD(kvf_sink_opts, page_count);
    FIELD(kvf_sink_opts, aux_region);
    FIELD(kvf_sink_opts, aux_count);
    FIELD(kvf_sink_opts, aux_pages);
    FIELD(kvf_sink_opts, writers);
    FIELD(kvf_sink_opts, writer_count);
    FIELD(kvf_sink_opts, group);
    FIELD(kvf_sink_opts, range_starts);
    FIELD(kvf_sink_opts, range_counts);
    FIELD(kvf_sink_opts, pad_);
    STRUCT(kvf_source_opts);
    FIELD(kvf_source_opts, size_bytes);
    FIELD(kvf_source_opts, region);
    FIELD(kvf_source_opts, label);
    FIELD(kvf_source_opts, key);
    FIELD(kvf_source_opts, sink_count);
    FIELD(kvf_source_opts, has_aux);
    FIELD(kvf_source_opts, aux_region);
    FIELD(kvf_source_opts, group);
    FIELD(kvf_source_opts, pad_);
    STRUCT(kvf_piece_opts);
    FIELD(kvf_piece_opts, size_bytes);
    FIELD(kvf_piece_opts, region);
    FIELD(kvf_piece_opts, pages);
    FIELD(kvf_piece_opts, pages64);
    FIELD(kvf_piece_opts, page_count);
    FIELD(kvf_piece_opts, start);
    FIELD(kvf_piece_opts, flags);
    FIELD(kvf_piece_opts, pad_);
    STRUCT(kvf_room_info);
    FIELD(kvf_room_info, size_bytes);
    FIELD(kvf_room_info, state);
    FIELD(kvf_room_info, phase);
    FIELD(kvf_room_info, proof);
    FIELD(kvf_room_info, reason);
    FIELD(kvf_room_info, detail);
    FIELD(kvf_room_info, placed_bytes);
    FIELD(kvf_room_info, total_bytes);
    FIELD(kvf_room_info, close_to_drained_ns);
    FIELD(kvf_room_info, total_pages);
    FIELD(kvf_room_info, unproven);
    FIELD(kvf_room_info, leases_cpu);
    FIELD(kvf_room_info, leases_gpu);
    FIELD(kvf_room_info, leases_direct_io);
    FIELD(kvf_room_info, pad_);
    FIELD(kvf_room_info, group_waits);
    STRUCT(kvf_event);
    FIELD(kvf_event, room);
    FIELD(kvf_event, state);
    FIELD(kvf_event, is_drained);
    STRUCT(kvf_group_opts);
    FIELD(kvf_group_opts, size_bytes);
    FIELD(kvf_group_opts, rank);
    FIELD(kvf_group_opts, members);
    FIELD(kvf_group_opts, member_count);
    FIELD(kvf_group_opts, pad0_);
    FIELD(kvf_group_opts, group_id);
    FIELD(kvf_group_opts, pad_);
}

int main(void)
{
    print_codes();
    print_numbers();
    print_structs_of_attach_and_memory();
    print_structs_of_rooms();
    return 0;
}

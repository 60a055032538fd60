/* Prints the shared layout byte by byte: versions, every struct with each field's offset and size, every
 * number that means something on the other side. tests/unit/layout.golden is this output; a change of it
 * without a new version would let two builds read each other's bytes wrongly.
 *
 *   layout_dump                 prints
 *   layout_dump --check FILE    compares; 0 equal, 1 different with a sentence, 2 usage
 *
 * A struct whose fields leave a gap, or end before its size, fails too: a new field must be named here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring/attach.h"
#include "ring/codes.h"
#include "ring/layout.h"
#include "ring/lease_word.h"
#include "ring/ledger.h"
#include "ring/room_word.h"
#include "ring/spsc.h"
#include "ring/stats.h"

static FILE *out;
static const char *struct_name;
static size_t struct_end;
static int gap_count;

static void field(const char *name, size_t off, size_t bytes)
{
    fprintf(out, "  %4zu %6zu %s\n", off, bytes, name);
    if (off != struct_end) {
        fprintf(stderr, "layout_dump: struct %s has bytes before %s that no field names\n",
                struct_name, name);
        gap_count++;
    }
    struct_end = off + bytes;
}

static void begin(const char *name, size_t bytes)
{
    fprintf(out, "struct %s %zu\n", name, bytes);
    struct_name = name;
    struct_end = 0;
}

static void end(size_t bytes)
{
    if (struct_end != bytes) {
        fprintf(stderr, "layout_dump: struct %s ends with bytes that no field names\n",
                struct_name);
        gap_count++;
    }
}

#define BEGIN(tag) begin(#tag, sizeof(struct tag))
#define FIELD(tag, name)                                                                       \
    field(#name, offsetof(struct tag, name), sizeof(((struct tag *)0)->name))
#define END(tag) end(sizeof(struct tag))
#define NUMBER(name) fprintf(out, "%s %llu\n", #name, (unsigned long long)(name))

static void dump_kvf_section_shm(void)
{
    BEGIN(kvf_section_shm);
    FIELD(kvf_section_shm, id);
    FIELD(kvf_section_shm, pad_);
    FIELD(kvf_section_shm, off);
    FIELD(kvf_section_shm, bytes);
    END(kvf_section_shm);
}

static void dump_kvf_segment_shm(void)
{
    BEGIN(kvf_segment_shm);
    FIELD(kvf_segment_shm, magic);
    FIELD(kvf_segment_shm, layout_major);
    FIELD(kvf_segment_shm, layout_minor);
    FIELD(kvf_segment_shm, endian_tag);
    FIELD(kvf_segment_shm, segment_bytes);
    FIELD(kvf_segment_shm, client_id);
    FIELD(kvf_segment_shm, rooms_max);
    FIELD(kvf_segment_shm, cmd_slots);
    FIELD(kvf_segment_shm, event_slots);
    FIELD(kvf_segment_shm, arena_bytes);
    FIELD(kvf_segment_shm, regions_max);
    FIELD(kvf_segment_shm, pad0_);
    FIELD(kvf_segment_shm, pad1_);
    FIELD(kvf_segment_shm, worker_epoch);
    FIELD(kvf_segment_shm, stopping);
    FIELD(kvf_segment_shm, lanes_per_peer);
    FIELD(kvf_segment_shm, bound_usual_us);
    FIELD(kvf_segment_shm, bound_worst_us);
    FIELD(kvf_segment_shm, pad2_);
    FIELD(kvf_segment_shm, loop_count);
    FIELD(kvf_segment_shm, cmd_consumed);
    FIELD(kvf_segment_shm, sleeping);
    FIELD(kvf_segment_shm, events_lost);
    FIELD(kvf_segment_shm, pad3_);
    FIELD(kvf_segment_shm, events_armed);
    FIELD(kvf_segment_shm, pad4_);
    FIELD(kvf_segment_shm, events_consumed);
    FIELD(kvf_segment_shm, pad5_);
    FIELD(kvf_segment_shm, sections);
    FIELD(kvf_segment_shm, pad6_);
    END(kvf_segment_shm);
}

static void dump_kvf_cmd_shm(void)
{
    BEGIN(kvf_cmd_shm);
    FIELD(kvf_cmd_shm, seq);
    FIELD(kvf_cmd_shm, op);
    FIELD(kvf_cmd_shm, flags);
    FIELD(kvf_cmd_shm, sinks);
    FIELD(kvf_cmd_shm, slot);
    FIELD(kvf_cmd_shm, generation);
    FIELD(kvf_cmd_shm, worker_epoch);
    FIELD(kvf_cmd_shm, label);
    FIELD(kvf_cmd_shm, key);
    FIELD(kvf_cmd_shm, arena_off);
    FIELD(kvf_cmd_shm, arena_bytes);
    FIELD(kvf_cmd_shm, start);
    FIELD(kvf_cmd_shm, group);
    END(kvf_cmd_shm);
}

static void dump_kvf_addr_shm(void)
{
    BEGIN(kvf_addr_shm);
    FIELD(kvf_addr_shm, family);
    FIELD(kvf_addr_shm, pad_);
    FIELD(kvf_addr_shm, port);
    FIELD(kvf_addr_shm, scope);
    FIELD(kvf_addr_shm, addr);
    END(kvf_addr_shm);
}

static void dump_kvf_writer_shm(void)
{
    BEGIN(kvf_writer_shm);
    FIELD(kvf_writer_shm, addr);
    FIELD(kvf_writer_shm, start);
    FIELD(kvf_writer_shm, count);
    END(kvf_writer_shm);
}

static void dump_kvf_run_shm(void)
{
    BEGIN(kvf_run_shm);
    FIELD(kvf_run_shm, region);
    FIELD(kvf_run_shm, first);
    FIELD(kvf_run_shm, count);
    END(kvf_run_shm);
}

static void dump_kvf_open_shm(void)
{
    BEGIN(kvf_open_shm);
    FIELD(kvf_open_shm, writer_count);
    FIELD(kvf_open_shm, run_count);
    FIELD(kvf_open_shm, region);
    FIELD(kvf_open_shm, aux_region);
    END(kvf_open_shm);
}

static void dump_kvf_room_shm(void)
{
    BEGIN(kvf_room_shm);
    FIELD(kvf_room_shm, word);
    FIELD(kvf_room_shm, epoch);
    FIELD(kvf_room_shm, reason);
    FIELD(kvf_room_shm, detail);
    FIELD(kvf_room_shm, placed_bytes);
    FIELD(kvf_room_shm, total_bytes);
    FIELD(kvf_room_shm, total_pages);
    FIELD(kvf_room_shm, unproven);
    FIELD(kvf_room_shm, close_to_drained_ns);
    FIELD(kvf_room_shm, group_waits);
    END(kvf_room_shm);
}

static void dump_kvf_intent_shm(void)
{
    BEGIN(kvf_intent_shm);
    FIELD(kvf_intent_shm, generation);
    FIELD(kvf_intent_shm, epoch);
    FIELD(kvf_intent_shm, abort_cell);
    FIELD(kvf_intent_shm, lease_word);
    FIELD(kvf_intent_shm, key);
    FIELD(kvf_intent_shm, group);
    FIELD(kvf_intent_shm, device_regions);
    FIELD(kvf_intent_shm, pad_);
    END(kvf_intent_shm);
}

static void dump_kvf_event_shm(void)
{
    BEGIN(kvf_event_shm);
    FIELD(kvf_event_shm, seq);
    FIELD(kvf_event_shm, slot);
    FIELD(kvf_event_shm, pad0_);
    FIELD(kvf_event_shm, generation);
    FIELD(kvf_event_shm, word);
    FIELD(kvf_event_shm, pad_);
    END(kvf_event_shm);
}

static void dump_kvf_attach_header(void)
{
    BEGIN(kvf_attach_header);
    FIELD(kvf_attach_header, magic);
    FIELD(kvf_attach_header, op);
    FIELD(kvf_attach_header, layout_major);
    FIELD(kvf_attach_header, serial);
    FIELD(kvf_attach_header, bytes);
    END(kvf_attach_header);
}

static void dump_kvf_attach_req(void)
{
    BEGIN(kvf_attach_req);
    FIELD(kvf_attach_req, h);
    FIELD(kvf_attach_req, layout_minor);
    FIELD(kvf_attach_req, rooms_max);
    FIELD(kvf_attach_req, cmd_slots);
    FIELD(kvf_attach_req, event_slots);
    FIELD(kvf_attach_req, arena_bytes);
    FIELD(kvf_attach_req, pad_);
    FIELD(kvf_attach_req, name);
    END(kvf_attach_req);
}

static void dump_kvf_region_req(void)
{
    BEGIN(kvf_region_req);
    FIELD(kvf_region_req, h);
    FIELD(kvf_region_req, region);
    FIELD(kvf_region_req, plane_count);
    FIELD(kvf_region_req, page_count);
    FIELD(kvf_region_req, memory_off);
    FIELD(kvf_region_req, memory_bytes);
    FIELD(kvf_region_req, planes);
    FIELD(kvf_region_req, memory);
    FIELD(kvf_region_req, pad_);
    END(kvf_region_req);
}

static void dump_kvf_group_key_shm(void)
{
    BEGIN(kvf_group_key_shm);
    FIELD(kvf_group_key_shm, key);
    FIELD(kvf_group_key_shm, group);
    FIELD(kvf_group_key_shm, pad_);
    END(kvf_group_key_shm);
}

static void dump_kvf_group_req(void)
{
    BEGIN(kvf_group_req);
    FIELD(kvf_group_req, h);
    FIELD(kvf_group_req, group);
    FIELD(kvf_group_req, rank);
    FIELD(kvf_group_req, group_id);
    FIELD(kvf_group_req, member_count);
    FIELD(kvf_group_req, pad_);
    FIELD(kvf_group_req, members);
    END(kvf_group_req);
}

static void dump_kvf_group_skip_req(void)
{
    BEGIN(kvf_group_skip_req);
    FIELD(kvf_group_skip_req, h);
    FIELD(kvf_group_skip_req, group);
    FIELD(kvf_group_skip_req, pad_);
    FIELD(kvf_group_skip_req, key);
    END(kvf_group_skip_req);
}

static void dump_kvf_attach_rep(void)
{
    BEGIN(kvf_attach_rep);
    FIELD(kvf_attach_rep, h);
    FIELD(kvf_attach_rep, code);
    FIELD(kvf_attach_rep, region);
    FIELD(kvf_attach_rep, epoch);
    FIELD(kvf_attach_rep, lender);
    FIELD(kvf_attach_rep, text);
    END(kvf_attach_rep);
}

static void dump_kvf_stats_name_shm(void)
{
    BEGIN(kvf_stats_name_shm);
    FIELD(kvf_stats_name_shm, name);
    FIELD(kvf_stats_name_shm, unit);
    FIELD(kvf_stats_name_shm, kind);
    FIELD(kvf_stats_name_shm, index);
    END(kvf_stats_name_shm);
}

static void dump_kvf_histogram_shm(void)
{
    BEGIN(kvf_histogram_shm);
    FIELD(kvf_histogram_shm, count);
    FIELD(kvf_histogram_shm, sum);
    FIELD(kvf_histogram_shm, max);
    FIELD(kvf_histogram_shm, pad_);
    FIELD(kvf_histogram_shm, buckets);
    END(kvf_histogram_shm);
}

static void dump_kvf_stats_peer_shm(void)
{
    BEGIN(kvf_stats_peer_shm);
    FIELD(kvf_stats_peer_shm, peer_id);
    FIELD(kvf_stats_peer_shm, heard_ns);
    FIELD(kvf_stats_peer_shm, addr);
    FIELD(kvf_stats_peer_shm, worker_starts);
    FIELD(kvf_stats_peer_shm, state);
    FIELD(kvf_stats_peer_shm, is_sink);
    FIELD(kvf_stats_peer_shm, is_down);
    FIELD(kvf_stats_peer_shm, grants);
    FIELD(kvf_stats_peer_shm, waiting);
    FIELD(kvf_stats_peer_shm, lanes_up);
    FIELD(kvf_stats_peer_shm, dials);
    FIELD(kvf_stats_peer_shm, name);
    FIELD(kvf_stats_peer_shm, pad_);
    END(kvf_stats_peer_shm);
}

static void dump_kvf_stats_lane_shm(void)
{
    BEGIN(kvf_stats_lane_shm);
    FIELD(kvf_stats_lane_shm, moved_bytes);
    FIELD(kvf_stats_lane_shm, posted_bytes);
    FIELD(kvf_stats_lane_shm, window_bytes);
    FIELD(kvf_stats_lane_shm, fence_since_ns);
    FIELD(kvf_stats_lane_shm, peer);
    FIELD(kvf_stats_lane_shm, lane);
    FIELD(kvf_stats_lane_shm, state);
    FIELD(kvf_stats_lane_shm, opened);
    FIELD(kvf_stats_lane_shm, credits_out);
    FIELD(kvf_stats_lane_shm, credits_max);
    FIELD(kvf_stats_lane_shm, is_device);
    FIELD(kvf_stats_lane_shm, pad0_);
    FIELD(kvf_stats_lane_shm, pad_);
    END(kvf_stats_lane_shm);
}

static void dump_kvf_stats_room_shm(void)
{
    BEGIN(kvf_stats_room_shm);
    FIELD(kvf_stats_room_shm, generation);
    FIELD(kvf_stats_room_shm, label);
    FIELD(kvf_stats_room_shm, key);
    FIELD(kvf_stats_room_shm, closed_ns);
    FIELD(kvf_stats_room_shm, pages);
    FIELD(kvf_stats_room_shm, client);
    FIELD(kvf_stats_room_shm, slot);
    FIELD(kvf_stats_room_shm, phase);
    FIELD(kvf_stats_room_shm, side);
    FIELD(kvf_stats_room_shm, reason);
    FIELD(kvf_stats_room_shm, is_engine_gone);
    FIELD(kvf_stats_room_shm, pad_);
    END(kvf_stats_room_shm);
}

static void dump_kvf_stats_rows_shm(void)
{
    BEGIN(kvf_stats_rows_shm);
    FIELD(kvf_stats_rows_shm, seq);
    FIELD(kvf_stats_rows_shm, peer_count);
    FIELD(kvf_stats_rows_shm, lane_count);
    FIELD(kvf_stats_rows_shm, room_count);
    FIELD(kvf_stats_rows_shm, left_out);
    FIELD(kvf_stats_rows_shm, written_ns);
    FIELD(kvf_stats_rows_shm, pad_);
    FIELD(kvf_stats_rows_shm, peers);
    FIELD(kvf_stats_rows_shm, lanes);
    FIELD(kvf_stats_rows_shm, rooms);
    END(kvf_stats_rows_shm);
}

static void dump_kvf_stats_shm(void)
{
    BEGIN(kvf_stats_shm);
    FIELD(kvf_stats_shm, magic);
    FIELD(kvf_stats_shm, major);
    FIELD(kvf_stats_shm, minor);
    FIELD(kvf_stats_shm, endian_tag);
    FIELD(kvf_stats_shm, file_bytes);
    FIELD(kvf_stats_shm, name_count);
    FIELD(kvf_stats_shm, value_count);
    FIELD(kvf_stats_shm, histogram_count);
    FIELD(kvf_stats_shm, pad0_);
    FIELD(kvf_stats_shm, names_off);
    FIELD(kvf_stats_shm, values_off);
    FIELD(kvf_stats_shm, histograms_off);
    FIELD(kvf_stats_shm, rows_off);
    FIELD(kvf_stats_shm, rows_bytes);
    FIELD(kvf_stats_shm, layout_major);
    FIELD(kvf_stats_shm, layout_minor);
    FIELD(kvf_stats_shm, wire_major);
    FIELD(kvf_stats_shm, wire_minor);
    FIELD(kvf_stats_shm, pad1_);
    FIELD(kvf_stats_shm, seq);
    FIELD(kvf_stats_shm, heartbeat_ns);
    FIELD(kvf_stats_shm, started_ns);
    FIELD(kvf_stats_shm, worker_epoch);
    FIELD(kvf_stats_shm, state);
    FIELD(kvf_stats_shm, worker_pid);
    FIELD(kvf_stats_shm, pad2_);
    FIELD(kvf_stats_shm, daemon_name);
    FIELD(kvf_stats_shm, version);
    END(kvf_stats_shm);
}

static void dump_kvf_ledger_shm(void)
{
    BEGIN(kvf_ledger_shm);
    FIELD(kvf_ledger_shm, magic);
    FIELD(kvf_ledger_shm, page_count);
    FIELD(kvf_ledger_shm, region);
    FIELD(kvf_ledger_shm, pad0_);
    FIELD(kvf_ledger_shm, pad_);
    END(kvf_ledger_shm);
}

static void dump_layout_numbers(void)
{
    NUMBER(KVF_SEGMENT_MAGIC);
    NUMBER(KVF_ENDIAN_TAG);
    NUMBER(KVF_LINE_BYTES);
    NUMBER(KVF_PAGE_BYTES);
    NUMBER(KVF_ROOMS_PER_CLIENT_MAX);
    NUMBER(KVF_CMD_SLOTS_MAX);
    NUMBER(KVF_EVENT_SLOTS_MAX);
    NUMBER(KVF_ARENA_BYTES_MAX);
    NUMBER(KVF_REGIONS_PER_CLIENT_MAX);
    NUMBER(KVF_PLANES_MAX);
    NUMBER(KVF_REGION_PAGES_MAX);
    NUMBER(KVF_PEERS_PER_ROOM_MAX);
    NUMBER(KVF_RUNS_PER_LIST_MAX);
    NUMBER(KVF_SECTION_CMD_RING);
    NUMBER(KVF_SECTION_ARENA);
    NUMBER(KVF_SECTION_DAEMON_LINES);
    NUMBER(KVF_SECTION_CLIENT_LINES);
    NUMBER(KVF_SECTION_DIRTY);
    NUMBER(KVF_SECTION_EVENT_RING);
    NUMBER(KVF_SECTION_GROUP_KEYS);
    NUMBER(KVF_SECTION_COUNT);
    NUMBER(KVF_CMD_OPEN_SINK);
    NUMBER(KVF_CMD_OPEN_SOURCE);
    NUMBER(KVF_CMD_SUBMIT);
    NUMBER(KVF_SUBMIT_LAST);
    NUMBER(KVF_ABORT_SET);
    NUMBER(KVF_ABORT_REASON_MASK);
    NUMBER(KVF_DIRTY_SUMMARY_WORDS);
}

static void dump_room_word_numbers(void)
{
    NUMBER(KVF_GENERATION_SHIFT);
    NUMBER(KVF_GENERATION_MAX);
    NUMBER(KVF_SLOT_MASK);
    NUMBER(KVF_STATE_FAILED);
    NUMBER(KVF_STATE_BOOTSTRAPPING);
    NUMBER(KVF_STATE_WAITING_FOR_INPUT);
    NUMBER(KVF_STATE_TRANSFERRING);
    NUMBER(KVF_STATE_SUCCESS);
    NUMBER(KVF_PHASE_FREE);
    NUMBER(KVF_PHASE_OPEN);
    NUMBER(KVF_PHASE_CLOSING);
    NUMBER(KVF_PHASE_FENCING);
    NUMBER(KVF_PHASE_QUARANTINED);
    NUMBER(KVF_PHASE_DRAINED);
    NUMBER(KVF_OUTCOME_NONE);
    NUMBER(KVF_OUTCOME_SUCCESS);
    NUMBER(KVF_OUTCOME_FAILED);
    NUMBER(KVF_PROOF_NONE);
    NUMBER(KVF_PROOF_NEVER_POSTED);
    NUMBER(KVF_PROOF_LANDED);
    NUMBER(KVF_PROOF_SOURCE_IDLE);
    NUMBER(KVF_PROOF_PEER_DRAINED);
    NUMBER(KVF_PROOF_REVOKED);
    NUMBER(KVF_PROOF_FENCED);
    NUMBER(KVF_PROOF_WORKER_GONE);
    NUMBER(KVF_PROOF_ENGINE_GONE);
    NUMBER(KVF_PROOF_OPERATOR);
    NUMBER(KVF_PROOF_COUNT);
    NUMBER(KVF_WORD_VISIBLE);
    NUMBER(KVF_WORD_GROUP_WAITS);
    NUMBER(KVF_WORD_FAILED_EARLY);
    NUMBER(KVF_WORD_STARTED);
}

static void dump_lease_word_numbers(void)
{
    NUMBER(KVF_LEASE_CPU);
    NUMBER(KVF_LEASE_GPU);
    NUMBER(KVF_LEASE_DIRECT_IO);
    NUMBER(KVF_LEASE_CLOSED);
}

static void dump_ledger_numbers(void)
{
    NUMBER(KVF_LEDGER_MAGIC);
    NUMBER(KVF_LEDGER_IDLE);
    NUMBER(KVF_LEDGER_SINK);
    NUMBER(KVF_LEDGER_SOURCE);
}

static void dump_spsc_numbers(void)
{
    NUMBER(KVF_SLOT_BYTES);
    NUMBER(KVF_SLOT_PAYLOAD_BYTES);
}

static void dump_stats_numbers(void)
{
    NUMBER(KVF_STATS_MAGIC);
    NUMBER(KVF_STATS_MAJOR);
    NUMBER(KVF_STATS_MINOR);
    NUMBER(KVF_STATS_VALUES_MAX);
    NUMBER(KVF_STATS_HISTOGRAMS_MAX);
    NUMBER(KVF_STATS_PEERS_MAX);
    NUMBER(KVF_STATS_LANES_MAX);
    NUMBER(KVF_STATS_ROOMS_MAX);
    NUMBER(KVF_STATS_LANE_OPENING);
    NUMBER(KVF_STATS_LANE_UP);
    NUMBER(KVF_STATS_LANE_FENCING);
    NUMBER(KVF_STATS_LANE_WAITING);
    NUMBER(KVF_HISTOGRAM_BUCKETS);
    NUMBER(KVF_STATS_COUNTER);
    NUMBER(KVF_STATS_GAUGE);
    NUMBER(KVF_STATS_HISTOGRAM);
    NUMBER(KVF_STATS_STARTING);
    NUMBER(KVF_STATS_RUNNING);
    NUMBER(KVF_STATS_STOPPING);
    NUMBER(KVF_STATS_STOPPED);
}

static void dump_attach_numbers(void)
{
    NUMBER(KVF_ATTACH_MAGIC);
    NUMBER(KVF_REQ_ATTACH);
    NUMBER(KVF_REQ_REGION_ADD);
    NUMBER(KVF_REQ_REGION_REMOVE);
    NUMBER(KVF_REQ_GROUP_ADD);
    NUMBER(KVF_REQ_DETACH);
    NUMBER(KVF_REP_ATTACHED);
    NUMBER(KVF_REP_REGION);
    NUMBER(KVF_REP_OK);
    NUMBER(KVF_REP_REFUSED);
    NUMBER(KVF_NOTE);
    NUMBER(KVF_NOTE_WORKER);
}

static void dump_codes_numbers(void)
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
    NUMBER(KVF_E_LAST);
    NUMBER(KVF_REGION_MEMORY_HOST);
    NUMBER(KVF_REGION_MEMORY_DMABUF);
}

static int dump(FILE *to)
{
    static void (*const parts[])(void) = {
        dump_kvf_section_shm,    dump_kvf_segment_shm,    dump_kvf_cmd_shm,
        dump_kvf_addr_shm,       dump_kvf_writer_shm,     dump_kvf_run_shm,
        dump_kvf_open_shm,       dump_kvf_room_shm,       dump_kvf_intent_shm,
        dump_kvf_event_shm,      dump_kvf_attach_header,  dump_kvf_attach_req,
        dump_kvf_region_req,     dump_kvf_attach_rep,     dump_kvf_stats_name_shm,
        dump_kvf_histogram_shm,  dump_kvf_stats_peer_shm, dump_kvf_stats_lane_shm,
        dump_kvf_stats_room_shm, dump_kvf_stats_rows_shm, dump_kvf_stats_shm,
        dump_kvf_ledger_shm,     dump_layout_numbers,     dump_room_word_numbers,
        dump_lease_word_numbers, dump_ledger_numbers,     dump_spsc_numbers,
        dump_stats_numbers,      dump_attach_numbers,     dump_codes_numbers,
        dump_kvf_group_req,      dump_kvf_group_skip_req, dump_kvf_group_key_shm,
    };
    out = to;
    fprintf(out, "layout %u.%u\n", KVF_LAYOUT_MAJOR, KVF_LAYOUT_MINOR);
    fprintf(out, "stats %u.%u\n", KVF_STATS_MAJOR, KVF_STATS_MINOR);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i]();
    }
    return gap_count == 0 ? 0 : 1;
}

static const char *line_after(const char *text)
{
    const char *newline = strchr(text, '\n');
    return newline == NULL ? text + strlen(text) : newline + 1;
}

static int line_bytes(const char *text)
{
    return (int)strcspn(text, "\n");
}

/* The two version lines come first: has either changed? */
static int has_new_version(const char *kept, const char *now)
{
    const char *kept_end = line_after(line_after(kept));
    size_t bytes = (size_t)(kept_end - kept);
    return strncmp(kept, now, bytes) != 0;
}

static int compare(const char *path, const char *kept, const char *now)
{
    const char *k = kept;
    const char *n = now;
    for (int line = 1; *k != '\0' || *n != '\0'; line++, k = line_after(k), n = line_after(n)) {
        if (line_bytes(k) == line_bytes(n) && strncmp(k, n, (size_t)line_bytes(k)) == 0) {
            continue;
        }
        fprintf(stderr, "%s:%d: kept \"%.*s\", now \"%.*s\"\n", path, line, line_bytes(k), k,
                line_bytes(n), n);
        if (has_new_version(kept, now)) {
            fprintf(stderr,
                    "The version is new: write the output of layout_dump to %s in the "
                    "same commit.\n",
                    path);
        } else {
            fprintf(stderr,
                    "The shared layout changed and its version did not: bump "
                    "KVF_LAYOUT_MINOR after appending, KVF_LAYOUT_MAJOR after moving "
                    "anything (KVF_STATS_* for the stats file), then write the output of "
                    "layout_dump to %s in the same commit.\n",
                    path);
        }
        return 1;
    }
    return 0;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return NULL;
    }
    const size_t bytes_max = 1u << 20;
    char *text = calloc(1, bytes_max);
    if (text != NULL) {
        size_t bytes = fread(text, 1, bytes_max - 1u, file);
        text[bytes] = '\0';
    }
    fclose(file);
    return text;
}

static int check(const char *path)
{
    char *now = NULL;
    size_t now_bytes = 0;
    FILE *memory = open_memstream(&now, &now_bytes);
    if (memory == NULL) {
        perror("layout_dump");
        return 2;
    }
    int err = dump(memory);
    fclose(memory);
    char *kept = read_file(path);
    if (kept == NULL) {
        perror(path);
        free(now);
        return 2;
    }
    int diff = compare(path, kept, now);
    free(kept);
    free(now);
    return err != 0 ? err : diff;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--check") == 0) {
        return check(argv[2]);
    }
    if (argc != 1) {
        fprintf(stderr, "usage: layout_dump [--check FILE]\n");
        return 2;
    }
    return dump(stdout);
}

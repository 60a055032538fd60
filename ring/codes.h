/* Reasons and refusals, one number and one sentence each. kvfence.h repeats the numbers for engines;
 * tests/unit/ring_codes.c compares both, so they cannot drift apart. Functions return them negated. Where an
 * errno says it best (EAGAIN, EBUSY, ESTALE, ETIMEDOUT, ESHUTDOWN, ENOMEM, EINVAL) it is used as it is. */
#ifndef KVF_RING_CODES_H
#define KVF_RING_CODES_H

#define KVF_E_NO_DAEMON 1001
#define KVF_E_DAEMON_GONE 1002
#define KVF_E_LAYOUT 1003
#define KVF_E_UNKNOWN_ROOM 1004
#define KVF_E_STALE_ROOM 1005
#define KVF_E_PAGE_RANGE 1006
#define KVF_E_PAGE_TWICE 1007
#define KVF_E_NO_PAGES 1008
#define KVF_E_PAGE_LENT 1009
#define KVF_E_UNKNOWN_REGION 1010
#define KVF_E_NO_SEAL 1011
#define KVF_E_GEOMETRY 1012
#define KVF_E_SLOT_IN_USE 1013
#define KVF_E_ROOMS_FULL 1014
#define KVF_E_REGIONS_FULL 1015
#define KVF_E_PEER_UNRESOLVED 1016
#define KVF_E_PEER_UNREACHABLE 1017
#define KVF_E_PIECE_OVERLAP 1018
#define KVF_E_PIECE_HOLE 1019
#define KVF_E_PIECE_RANGE 1020
#define KVF_E_PEER_COUNT 1021
#define KVF_E_GROUP_UNSUPPORTED 1022
#define KVF_E_OPTION 1023
#define KVF_E_ABORTED 1024
#define KVF_E_PEER_ABORTED 1025
#define KVF_E_PEER_LOST 1026
#define KVF_E_PEER_REFUSED 1027
#define KVF_E_LANE_LOST 1028
#define KVF_E_BOOTSTRAP_TIMEOUT 1029
#define KVF_E_PEER_ROOM_GONE 1030
#define KVF_E_PEER_BUSY 1031
#define KVF_E_ENGINE_GONE 1032
#define KVF_E_WORKER_GONE 1033
#define KVF_E_SHUTDOWN 1034
#define KVF_E_MEMORY_FAULT 1035
#define KVF_E_REGION_BUSY 1036
#define KVF_E_MEMORY_REGISTERED 1037
#define KVF_E_SHORT 1038
#define KVF_E_PROTOCOL 1039
#define KVF_E_CLIENT_DROPPED 1040
#define KVF_E_FORKED 1041
#define KVF_E_PIECES_CLOSED 1042
#define KVF_E_KEY_IN_USE 1043
#define KVF_E_ROLE 1044
#define KVF_E_GRANT_LENGTH 1045
#define KVF_E_QUARANTINED 1046
#define KVF_E_CLIENTS_FULL 1047
#define KVF_E_RESOURCES 1048
#define KVF_E_MEMORY_RANGE 1049
#define KVF_E_LIMIT_RANGE 1050
#define KVF_E_LEASE_CLOSED 1051
#define KVF_E_LEASE_KIND 1052
#define KVF_E_UNKNOWN_GROUP 1053
#define KVF_E_GROUP_MEMBERS 1054
#define KVF_E_GROUPS_FULL 1055
#define KVF_E_GROUP_RANK_TAKEN 1056
#define KVF_E_GROUP_CLOSED 1057
#define KVF_E_GROUP_TOMBSTONES 1058
#define KVF_E_PEER_HELD 1059
#define KVF_E_NO_KEY 1060
#define KVF_E_DEVICE_MEMORY 1061
#define KVF_E_HOST_MEMORY_ONLY 1062
#define KVF_E_NO_DMABUF 1063
#define KVF_E_DMABUF_REFUSED 1064
#define KVF_E_DEVICE_COPY 1065
#define KVF_E_LAST 1065

/* A static sentence for a positive or negative code of this list or an errno; never NULL. What was
 * wrong and what is allowed. Any thread. */
const char *kvf_code_text(int code);
/* "KVF_E_PAGE_LENT", or the errno's name, for logs and JSON; never NULL. */
const char *kvf_code_name(int code);

#endif

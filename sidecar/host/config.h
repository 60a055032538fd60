/* The options of kvfenced. One table drives parsing, --help and the printed configuration, so that what
 * is documented is what is read. A value out of range is refused with a sentence; nothing is guessed. */
#ifndef KVF_HOST_CONFIG_H
#define KVF_HOST_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ring/layout.h"

#define KVF_CONFIG_NAME_BYTES 32
#define KVF_CONFIG_DIR_BYTES 104
#define KVF_CONFIG_DEVICES_BYTES 256
#define KVF_CONFIG_NEAR_BYTES 32
#define KVF_CONFIG_GID_BYTES 48
#define KVF_CONFIG_PATH_BYTES 256
#define KVF_CONFIG_LANES_MAX 8u
#define KVF_CONFIG_OPTIONS_MAX 96u
#define KVF_CONFIG_KEY_BYTES 32u
/* What is wrong with a whole file, a sentence for each of its lines, KVF_CONFIG_FAULTS_MAX of them at most. */
#define KVF_CONFIG_FAULTS_MAX 16u
#define KVF_CONFIG_ERROR_BYTES 16384

/* The numbers of the wire (worker.c asserts it): this folder knows no protocol. */
enum kvf_config_transport { KVF_CONFIG_TCP = 1, KVF_CONFIG_VERBS = 2, KVF_CONFIG_LOCAL = 4 };
enum kvf_config_placement { KVF_CONFIG_CHECKED = 1, KVF_CONFIG_POSTED = 2 };
enum kvf_config_engine { KVF_CONFIG_AUTO = 0, KVF_CONFIG_SOCKETS = 1, KVF_CONFIG_URING = 2 };
enum kvf_spin { KVF_SPIN_AUTO = 0, KVF_SPIN_ON = 1, KVF_SPIN_OFF = 2 };

struct kvf_config {
    char config_file[KVF_CONFIG_PATH_BYTES]; /* "": none was read */
    char name[KVF_CONFIG_NAME_BYTES];
    char run_dir[KVF_CONFIG_DIR_BYTES];
    struct kvf_addr_shm listen;
    uint32_t transport;  /* enum kvf_wire_transport */
    uint32_t local;      /* 1: rooms between clients of this daemon are copied; 0: not */
    uint32_t placement;  /* enum kvf_placement */
    uint32_t tcp_engine; /* enum kvf_config_engine */
    char rdma_devices[KVF_CONFIG_DEVICES_BYTES]; /* these four as in struct kvf_placement_ask */
    char rdma_near[KVF_CONFIG_NEAR_BYTES];
    uint32_t rdma_rails;
    uint32_t rdma_port; /* 0: the first active one */
    char rdma_gid[KVF_CONFIG_GID_BYTES];
    uint32_t rdma_mtu; /* 0: the port's */
    uint32_t rdma_traffic_class;
    uint32_t rdma_service_level;
    uint32_t rdma_timeout;
    uint32_t rdma_retry;
    uint32_t rdma_stall_ms;
    char sysfs[KVF_CONFIG_DIR_BYTES];
    uint64_t lane_rate_bytes; /* per second; 0: unpaced */
    uint32_t lanes;
    uint32_t lane_rooms;
    uint64_t room_window_bytes;
    uint64_t lane_window_bytes;
    uint64_t post_bytes;
    uint64_t stripe_bytes_min;
    uint32_t bootstrap_ms;
    uint32_t connect_ms;
    uint32_t cooperative_ms;
    uint32_t fence_ms;
    uint32_t liveness_ms;
    uint32_t watchdog_ms;
    uint32_t kill_ms;
    uint32_t grace_ms;
    int32_t cpu; /* a number, KVF_CPU_AUTO or KVF_CPU_NONE */
    uint32_t spin;
    uint32_t clients;
    uint32_t rooms; /* most that one client may ask for */
    uint32_t log_level;
    bool is_listen_insecure;
    bool is_check;
    bool is_print;
    bool is_version;
    bool is_help;
};

/* Where each value came from, by the option's place in the table. */
struct kvf_config_origins {
    uint32_t lines[KVF_CONFIG_OPTIONS_MAX]; /* of the file; 0: the default */
};
#define KVF_CONFIG_LINE_COMMAND UINT32_MAX /* the command line */
#define KVF_CONFIG_FROM_BYTES (KVF_CONFIG_PATH_BYTES + 16)

/* Reads the command line over the file that --config names over the defaults, checks every value and how they
 * fit together. 0, or -EINVAL with a sentence in ret_error; of a file with a sentence for every bad line, each
 * "PATH:LINE: CODE: SENTENCE" on a line of its own (host/README.md has the codes). Outputs are untouched then.
 * Reads $KVFENCE_RUN_DIR and $XDG_RUNTIME_DIR if no run-dir is given. */
int kvf_config_read(int argc, char *const *argv, struct kvf_config *ret_config,
                    struct kvf_config_origins *ret_origins, char *ret_error, size_t error_cap);
/* The same without the origins. */
int kvf_config_parse(int argc, char *const *argv, struct kvf_config *ret_config,
                     char *ret_error, size_t error_cap);

/* "127.0.0.1:80", "[::1]:80". Numeric only: names are resolved by the library. 0 or -EINVAL. */
int kvf_addr_parse(const char *text, struct kvf_addr_shm *ret_addr);
/* Writes what kvf_addr_parse reads; returns ret_text. 64 bytes are always enough. */
const char *kvf_addr_format(const struct kvf_addr_shm *addr, char *ret_text, size_t cap);
bool kvf_addr_is_loopback(const struct kvf_addr_shm *addr);

/* How RDMA's options fit together; fills in what follows from others (placement, the stall's time). 0, or -EINVAL
 * with a sentence. */
int kvf_config_check_rdma(struct kvf_config *config, char *ret_error, size_t cap);
/* --rdma-gid as devices write it, IPv4 mapped into IPv6; all zero: any. 0 or -EINVAL. */
int kvf_config_gid(const struct kvf_config *config, uint8_t ret_gid[16]);
/* A device has given a lane up after this: (retry + 1) times four times the ACK timeout, since it may wait so much
 * longer than it was told. */
uint64_t kvf_config_retries_ms(const struct kvf_config *config);

/* What the posted window of a lane may be at its pace: a quarter of the cooperative deadline's worth, so
 * that one abort never outlasts it. The configured value if that is smaller or the lane is unpaced. */
uint64_t kvf_config_lane_window(const struct kvf_config *config);
uint64_t kvf_config_room_window(const struct kvf_config *config);

/* Whether rooms may name memory of devices: its bytes are moved by network devices or not at all. */
bool kvf_config_moves_device_memory(const struct kvf_config *config);

void kvf_config_help(FILE *out);
/* The effective values as a file that --config reads; behind each, as a comment, where it came from, and what
 * was asked if a window was lowered. */
void kvf_config_print(const struct kvf_config *config, const struct kvf_config_origins *origins,
                      FILE *out);
/* "default", "command line", "PATH:LINE" or "$NAME", for the option in place `i`. Returns ret_text. */
const char *kvf_config_origin(const struct kvf_config_origins *origins, uint32_t i,
                              const struct kvf_config *config, char *ret_text, size_t cap);
/* "name = value" of option `i`, or NULL after the last: for logs. Behind a window that was lowered stands
 * "   (asked VALUE)". Of this size none is cut. */
#define KVF_CONFIG_LINE_BYTES (2 * KVF_CONFIG_DEVICES_BYTES + 64)
const char *kvf_config_line(const struct kvf_config *config, uint32_t i, char *ret_text,
                            size_t cap);

#endif

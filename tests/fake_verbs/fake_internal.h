/* What the files of the fake devices share. */
#ifndef KVF_TESTS_FAKE_INTERNAL_H
#define KVF_TESTS_FAKE_INTERNAL_H

#include <pthread.h>

#include "tests/fake_verbs/fake_verbs.h"

#define FAKE_QPS 4096u
#define FAKE_MRS 1024u
#define FAKE_GIDS 8u
#define FAKE_EVENTS 256u
#define FAKE_SGES 32u
#define FAKE_WINDOW 64u /* packets of a queue pair on the network */
#define FAKE_FIRST_QPN 17u

struct fake_device;

struct fake_cq {
    struct ibv_cq ibv;
    struct fake_device *device;
    struct ibv_wc *wcs; /* a ring of cap + 1 */
    uint32_t cap;
    uint32_t head;
    uint32_t tail;
    bool is_armed;
    uint32_t users;
    uint32_t events_taken; /* and not acknowledged */
    uint32_t async_taken;
};

struct fake_channel {
    struct ibv_comp_channel ibv;
    struct fake_cq *events[FAKE_EVENTS];
    uint32_t head;
    uint32_t tail;
};

struct fake_wr {
    uint64_t wr_id;
    enum ibv_wr_opcode opcode;
    bool is_signalled;
    struct ibv_sge sges[FAKE_SGES];
    uint32_t sge_count;
    uint64_t addr;
    uint32_t rkey;
    uint32_t imm;
    uint64_t bytes;
    uint32_t first_psn;
    uint32_t packets;
    bool has_psn;
};

/* A packet that was accepted and is being copied: it lands with the next step, or before a destroy returns. */
struct fake_copy {
    bool is_under_way;
    unsigned char *to;
    unsigned char *data;
    uint32_t bytes;
    bool is_last;
    bool takes_receive;
    bool is_write;
    uint32_t imm;
    uint32_t psn;
};

struct fake_qp {
    struct ibv_qp ibv;
    struct fake_device *device;
    struct fake_cq *send_cq;
    struct fake_cq *recv_cq;
    enum ibv_qp_state state;
    uint32_t access;
    uint32_t dest_qpn;
    uint8_t dest_gid[16];
    uint32_t mtu;
    uint32_t expected_psn;
    uint32_t first_psn;
    uint32_t next_psn;
    uint32_t timeout;
    uint32_t retry;
    uint32_t rnr_retry;
    uint32_t dlid;
    bool is_global;
    uint8_t sgid_index;
    /* send queue, indices run free: [head, tail), of them up to `sending` have a PSN */
    struct fake_wr *sends;
    uint32_t send_cap; /* more than asked */
    uint32_t head;
    uint32_t tail;
    uint32_t sending;    /* the one whose packets leave next ... */
    uint32_t sending_at; /* ... from this packet on */
    uint32_t acked_psn;  /* the next one that is not acknowledged */
    uint32_t retries_left;
    uint32_t rnr_left;
    uint64_t progress_ns; /* for the timer */
    uint64_t hold_ns;     /* RNR: nothing leaves before */
    uint64_t leaves_ns;   /* pace */
    uint64_t *receives;   /* wr_ids */
    uint32_t recv_cap;
    uint32_t recv_head;
    uint32_t recv_tail;
    struct fake_copy copy;
    uint32_t async_taken;
};

struct fake_mr {
    struct ibv_mr ibv;
    struct fake_device *device;
    uint64_t iova;
    unsigned char *ptr;
    uint64_t bytes;
    int access;
    bool is_mapped; /* by us: a dma-buf */
};

enum fake_packet_kind { FAKE_REQUEST, FAKE_ACK, FAKE_NAK, FAKE_RNR };
struct fake_packet {
    struct fake_packet *next;
    uint64_t due_ns;
    enum fake_packet_kind kind;
    struct fake_device *to;
    struct fake_device *from;
    uint32_t to_qpn;
    uint32_t from_qpn;
    uint32_t psn;
    enum ibv_wr_opcode opcode;
    bool is_last;
    uint64_t addr;
    uint32_t rkey;
    uint32_t imm;
    uint32_t bytes;
    unsigned char *data;
};

struct fake_async {
    enum ibv_event_type type;
    struct fake_qp *qp;
    struct fake_cq *cq;
};

struct fake_device {
    struct ibv_device ibv;
    struct ibv_context context;
    char name[16];
    bool is_open;
    enum ibv_port_state state;
    uint8_t link_layer;
    uint16_t lid;
    struct ibv_gid_entry gids[FAKE_GIDS];
    bool has_gid[FAKE_GIDS];
    struct fake_async events[FAKE_EVENTS];
    uint32_t event_head;
    uint32_t event_tail;
    struct fake_qp *qps[FAKE_QPS];
    uint32_t qp_count;
    struct fake_mr *mrs[FAKE_MRS];
    uint32_t mr_next;
};

struct fake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t now_ns;
    struct fake_knobs knobs;
    struct fake_counts counts;
    struct fake_device devices[FAKE_DEVICES];
    struct fake_packet *packets; /* by time */
};
extern struct fake fake;

/* fake_nic.c: under the lock */
void fake_push_wc(struct fake_qp *qp, struct fake_cq *cq, const struct ibv_wc *wc);
void fake_qp_to_err(struct fake_qp *qp);
void fake_land(struct fake_qp *qp, bool is_alive);
void fake_raise(struct fake_device *device, const struct fake_async *event);
void fake_step(void);
uint64_t fake_due_ns(void);
int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wcs);
int fake_req_notify_cq(struct ibv_cq *ibv, int solicited_only);
struct fake_mr *fake_mr_find(struct fake_device *device, uint32_t key, uint64_t addr,
                             uint64_t bytes);
struct fake_device *fake_device_by_gid(const uint8_t gid[16]);
void fake_packet_add(struct fake_packet *packet, uint64_t due_ns);

#endif

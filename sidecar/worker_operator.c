/* What an operator wants of the worker. The supervisor has checked who asks and what; the core does it. */
#include <assert.h>
#include <stddef.h>

#include "ring/codes.h"
#include "sidecar/host/log.h"
#include "sidecar/worker_internal.h"

_Static_assert(KVF_PEERS_DOWN_MAX == KVF_CORE_HOLDS_MAX, "the supervisor counts them");

void kvf_worker_set_draining(struct kvf_worker *w, bool is_draining)
{
    kvf_core_drain(w->core, w->now_ns, is_draining);
    (void)kvf_worker_actions(w);
}

void kvf_worker_hold_peer(struct kvf_worker *w, const struct kvf_link_hold *hold)
{
    int err =
        kvf_core_peer_hold(w->core, w->now_ns, &hold->addr, hold->h.value, hold->h.code != 0);
    assert(err == 0);
    (void)err;
    (void)kvf_worker_actions(w);
}

static void fill_status(struct kvf_worker *w, struct kvf_operate_status *ret_status)
{
    const uint64_t *gauges = kvf_core_gauges(w->core);
    *ret_status =
        (struct kvf_operate_status){.is_unread = kvf_clients_has_unread(w->clients),
                                    .rooms_open = gauges[KVF_GAUGE_ROOMS_OPEN],
                                    .rooms_closing = gauges[KVF_GAUGE_ROOMS_CLOSING],
                                    .rooms_fencing = gauges[KVF_GAUGE_ROOMS_FENCING],
                                    .rooms_quarantined = gauges[KVF_GAUGE_ROOMS_QUARANTINED]};
}

static size_t list_rooms(struct kvf_worker *w, const struct kvf_operate_req *req,
                         struct kvf_operate_rep *rep)
{
    rep->next_client = req->client;
    rep->next_slot = req->slot;
    rep->row_count =
        kvf_core_list_rooms(w->core, w->now_ns, req->phases, &rep->next_client, &rep->next_slot,
                            rep->rows.rooms, KVF_OPERATE_ROOMS_MAX);
    rep->has_more = rep->next_client < w->config.clients;
    return rep->row_count * sizeof(rep->rows.rooms[0]);
}

void kvf_worker_operate(struct kvf_worker *w, const struct kvf_link_operate *ask)
{
    const struct kvf_operate_req *req = &ask->req;
    struct kvf_operate_rep *rep = &w->answer.rep;
    size_t rows_bytes = 0;
    int err = 0;
    assert(w->answer_bytes == 0);
    *rep = (struct kvf_operate_rep){.row_count = 0};
    switch ((enum kvf_operate_command)req->command) {
    case KVF_OPERATE_PEERS:
        rep->row_count = kvf_core_list_peers(w->core, rep->rows.peers, KVF_OPERATE_PEERS_MAX);
        rows_bytes = rep->row_count * sizeof(rep->rows.peers[0]);
        break;
    case KVF_OPERATE_ROOMS:
        rows_bytes = list_rooms(w, req, rep);
        break;
    case KVF_OPERATE_RELEASE:
        err = kvf_core_release(w->core, w->now_ns, req->client, req->slot, req->generation);
        (void)kvf_worker_actions(w); /* the word is stored before the operator is told */
        if (err == 0) {
            kvf_worker_check_quiet(w, req->client);
        }
        break;
    case KVF_OPERATE_STATUS:
    case KVF_OPERATE_DRAIN:
    case KVF_OPERATE_UNDRAIN:
    case KVF_OPERATE_PEER_DOWN:
    case KVF_OPERATE_PEER_UP:
    case KVF_OPERATE_LOG_LEVEL:
        break; /* the messages before this one have done it */
    }
    fill_status(w, &rep->status);
    w->answer.h = (struct kvf_link_msg){
        .op = KVF_LINK_OPERATED, .value = ask->h.value, .code = (uint32_t)-err};
    w->answer_bytes = offsetof(struct kvf_link_operated, rep.rows) + rows_bytes;
    kvf_worker_link_flush(w);
}

/* Groups that engines have registered: checked here on a copy, kept like regions, and told to every worker
 * after it has taken the client's segment over, so that the rooms it found there can go on asking. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ring/codes.h"
#include "sidecar/host/log.h"
#include "sidecar/host/packet.h"
#include "sidecar/supervisor_internal.h"

/* ---- requests -------------------------------------------------------------------------------------------------- */

static struct sup_group *find(const struct sup_client *c, uint32_t handle)
{
    return handle >= 1u && handle <= KVF_GROUPS_PER_CLIENT_MAX ? c->groups[handle - 1u] : NULL;
}

static uint32_t check(const struct kvf_group_req *req)
{
    if (req->group_id == 0 || req->member_count < 2u ||
        req->member_count > KVF_GROUP_MEMBERS_MAX || req->rank >= req->member_count) {
        return KVF_E_GROUP_MEMBERS;
    }
    for (uint32_t i = 0; i < req->member_count; i++) {
        if (req->members[i].family != 4u && req->members[i].family != 6u) {
            return KVF_E_GROUP_MEMBERS;
        }
    }
    return 0;
}

/* Two engines that live and hold one rank: a question could not tell whom it means. */
static bool is_held(const struct kvf_supervisor *s, const struct kvf_group_req *req)
{
    for (uint32_t i = 0; i < s->config.clients; i++) {
        const struct sup_client *c = &s->clients[i];
        for (uint32_t k = 0; k < KVF_GROUPS_PER_CLIENT_MAX; k++) {
            const struct sup_group *g = c->is_used && !c->is_closing ? c->groups[k] : NULL;
            if (g != NULL && g->group_id == req->group_id && g->rank == req->rank) {
                return true;
            }
        }
    }
    return false;
}

static uint32_t choose_handle(const struct sup_client *c, uint32_t wanted, uint32_t *ret_handle)
{
    if (wanted != 0) {
        bool is_good = wanted <= KVF_GROUPS_PER_CLIENT_MAX && find(c, wanted) == NULL;
        *ret_handle = wanted;
        return is_good ? 0 : KVF_E_PROTOCOL;
    }
    for (uint32_t handle = 1; handle <= KVF_GROUPS_PER_CLIENT_MAX; handle++) {
        if (find(c, handle) == NULL) {
            *ret_handle = handle;
            return 0;
        }
    }
    return KVF_E_GROUPS_FULL;
}

static void end_record(struct kvf_supervisor *s, uint64_t group_id, uint32_t rank)
{
    for (uint32_t i = 0; i < KVF_DEPARTED_MAX; i++) {
        if (s->departed[i].group_id == group_id && s->departed[i].rank == rank) {
            s->departed[i] = (struct sup_departed){0};
        }
    }
}

uint32_t kvf_sup_group_add(struct kvf_supervisor *s, struct sup_client *c,
                           const struct kvf_group_req *req, size_t bytes, const char **ret_text)
{
    uint32_t handle = 0;
    if (bytes < sizeof(*req)) {
        *ret_text = "a registration of a group is shorter than its members";
        return KVF_E_PROTOCOL;
    }
    uint32_t code = check(req);
    if (code == 0 && is_held(s, req)) {
        code = KVF_E_GROUP_RANK_TAKEN;
    }
    if (code == 0) {
        code = choose_handle(c, req->group, &handle);
        *ret_text = code == KVF_E_PROTOCOL
                        ? "the group handed on names a handle that is no group's or is taken"
                        : NULL;
    }
    if (code != 0) {
        return code;
    }
    size_t members_bytes = req->member_count * sizeof(req->members[0]);
    struct sup_group *g = calloc(1, sizeof(*g) + members_bytes);
    if (g == NULL) {
        return ENOMEM;
    }
    g->rank = req->rank;
    g->member_count = req->member_count;
    g->group_id = req->group_id;
    memcpy(g->members, req->members, members_bytes);
    end_record(s, g->group_id, g->rank);
    c->groups[handle - 1u] = g;
    c->pending_region = handle;
    return 0;
}

uint32_t kvf_sup_group_skip(struct sup_client *c, const struct kvf_group_skip_req *req,
                            size_t bytes, const char **ret_text)
{
    if (bytes < sizeof(*req)) {
        *ret_text = "a skip is shorter than its key";
        return KVF_E_PROTOCOL;
    }
    if (find(c, req->group) == NULL) {
        return KVF_E_UNKNOWN_GROUP;
    }
    c->skip_group = req->group;
    c->skip_key = req->key;
    c->skip = TOLD_NOT;
    return 0;
}

/* ---- what the worker is owed -------------------------------------------------------------------------------------- */

static bool send_group(struct kvf_supervisor *s, const struct sup_client *c, uint32_t handle)
{
    static struct kvf_link_group msg;
    struct sup_group *g = c->groups[handle - 1u];
    memset(&msg, 0, sizeof(msg));
    msg.h = (struct kvf_link_msg){.op = KVF_LINK_GROUP_ADD, .client = c->idx, .region = handle};
    msg.group_id = g->group_id;
    msg.rank = g->rank;
    msg.member_count = g->member_count;
    memcpy(msg.members, g->members, g->member_count * sizeof(g->members[0]));
    if (kvf_packet_send(s->link_fd, &msg, sizeof(msg), NULL, 0) != 0) {
        return false;
    }
    g->add = TOLD_SENT;
    return true;
}

bool kvf_sup_groups_sync(struct kvf_supervisor *s, struct sup_client *c)
{
    for (uint32_t handle = 1; handle <= KVF_GROUPS_PER_CLIENT_MAX; handle++) {
        const struct sup_group *g = find(c, handle);
        if (g != NULL && g->add == TOLD_NOT && !send_group(s, c, handle)) {
            return false;
        }
    }
    const struct sup_group *g = find(c, c->skip_group);
    struct kvf_link_msg skip = {.op = KVF_LINK_GROUP_SKIP,
                                .client = c->idx,
                                .region = c->skip_group,
                                .value = c->skip_key};
    if (c->pending_op == KVF_REQ_GROUP_SKIP && c->skip == TOLD_NOT && g != NULL &&
        g->add == TOLD_ANSWERED) {
        if (kvf_packet_send(s->link_fd, &skip, sizeof(skip), NULL, 0) != 0) {
            return false;
        }
        c->skip = TOLD_SENT;
    }
    return true;
}

bool kvf_sup_groups_departed_sync(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < KVF_DEPARTED_MAX; i++) {
        struct sup_departed *d = &s->departed[i];
        struct kvf_link_msg msg = {
            .op = KVF_LINK_GROUP_DEPARTED, .value = d->group_id, .code = d->rank};
        if (d->group_id == 0 || d->told != TOLD_NOT) {
            continue;
        }
        if (kvf_packet_send(s->link_fd, &msg, sizeof(msg), NULL, 0) != 0) {
            return false;
        }
        d->told = TOLD_SENT;
    }
    return true;
}

void kvf_sup_groups_forget_told(struct sup_client *c)
{
    for (uint32_t i = 0; i < KVF_GROUPS_PER_CLIENT_MAX; i++) {
        if (c->groups[i] != NULL) {
            c->groups[i]->add = TOLD_NOT;
        }
    }
    c->skip = TOLD_NOT;
}

void kvf_sup_departed_forget_told(struct kvf_supervisor *s)
{
    for (uint32_t i = 0; i < KVF_DEPARTED_MAX; i++) {
        s->departed[i].told = TOLD_NOT;
    }
}

bool kvf_sup_groups_are_served(const struct sup_client *c)
{
    for (uint32_t i = 0; i < KVF_GROUPS_PER_CLIENT_MAX; i++) {
        if (c->groups[i] != NULL && c->groups[i]->is_serving &&
            c->groups[i]->add != TOLD_ANSWERED) {
            return false;
        }
    }
    return true;
}

bool kvf_sup_groups_are_sent(const struct sup_client *c)
{
    if (c->add == TOLD_REFUSED) {
        return true; /* this worker knows none of its ranks, and so answers for none */
    }
    for (uint32_t i = 0; i < KVF_GROUPS_PER_CLIENT_MAX; i++) {
        if (c->groups[i] != NULL && c->groups[i]->add == TOLD_NOT) {
            return false;
        }
    }
    return true;
}

/* ---- ends ------------------------------------------------------------------------------------------------------------ */

void kvf_sup_groups_depart(struct kvf_supervisor *s, struct sup_client *c)
{
    for (uint32_t i = 0; i < KVF_GROUPS_PER_CLIENT_MAX; i++) {
        const struct sup_group *g = c->groups[i];
        if (g == NULL) {
            continue;
        }
        struct kvf_group_req same = {.group_id = g->group_id, .rank = g->rank};
        end_record(s, g->group_id, g->rank);
        if (!is_held(s, &same)) {
            /* This worker knows it already; the next one is told. */
            s->departed[s->departed_next++ % KVF_DEPARTED_MAX] = (struct sup_departed){
                .group_id = g->group_id, .rank = g->rank, .told = TOLD_SENT};
        }
    }
}

void kvf_sup_groups_free(struct sup_client *c)
{
    for (uint32_t i = 0; i < KVF_GROUPS_PER_CLIENT_MAX; i++) {
        free(c->groups[i]);
        c->groups[i] = NULL;
    }
}

/* ---- answers of the worker ------------------------------------------------------------------------------------------ */

void kvf_sup_group_added(struct kvf_supervisor *s, struct sup_client *c, uint32_t handle,
                         uint32_t code)
{
    struct sup_group *g = find(c, handle);
    if (g == NULL || g->add != TOLD_SENT) {
        return;
    }
    bool is_asked = c->pending_op == KVF_REQ_GROUP_ADD && c->pending_region == handle;
    uint32_t serial = c->pending_serial;
    if (is_asked) {
        c->pending_op = 0;
    }
    if (code != 0) {
        bool was_serving = g->is_serving;
        free(g);
        c->groups[handle - 1u] = NULL;
        if (is_asked) {
            kvf_sup_refuse(s, c, serial, code, 0, NULL);
        }
        if (was_serving && !c->is_closing) {
            kvf_log(KVF_LOG_ERROR, "client %u (%s): group %u was not taken by the new worker",
                    c->idx, c->name, handle);
            kvf_sup_client_bad(s, c, code);
        }
        return;
    }
    g->add = TOLD_ANSWERED;
    if (is_asked) {
        g->is_serving = true;
        struct kvf_attach_rep rep = {.h = {.op = KVF_REP_GROUP, .serial = serial},
                                     .region = handle};
        kvf_log(KVF_LOG_INFO, "client %u (%s) is rank %u of %u of group %llx", c->idx, c->name,
                g->rank, g->member_count, (unsigned long long)g->group_id);
        kvf_sup_reply(s, c, &rep, NULL, 0);
    }
    kvf_sup_client_open(s, c);
    kvf_sup_sync(s);
}

void kvf_sup_group_skipped(struct kvf_supervisor *s, struct sup_client *c, uint32_t code)
{
    if (c->pending_op != KVF_REQ_GROUP_SKIP || c->skip != TOLD_SENT) {
        return;
    }
    c->pending_op = 0;
    c->skip_group = 0;
    if (code != 0) {
        kvf_sup_refuse(s, c, c->pending_serial, code, 0, NULL);
        return;
    }
    struct kvf_attach_rep rep = {.h = {.op = KVF_REP_OK, .serial = c->pending_serial}};
    kvf_sup_reply(s, c, &rep, NULL, 0);
}

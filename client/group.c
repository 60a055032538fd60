/* Groups: registered once, kept for the next daemon, named by opens. */
#include "client/internal.h"

#include <string.h>

/* The same on every rank that passes the same members: no byte of it depends on this host. */
static uint64_t derive_id(const struct kvf_group_req *req)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (uint32_t i = 0; i < req->member_count; i++) {
        const struct kvf_addr_shm *m = &req->members[i];
        unsigned char bytes[19] = {m->family, (unsigned char)(m->port >> 8),
                                   (unsigned char)(m->port & 0xffu)};
        memcpy(bytes + 3, m->addr, sizeof m->addr);
        for (size_t k = 0; k < sizeof bytes; k++) {
            hash = (hash ^ bytes[k]) * UINT64_C(0x100000001b3);
        }
    }
    return hash != 0 ? hash : 1;
}

static int fill(const struct kvf_group_opts *o, struct kvf_group_req *req)
{
    if (o->member_count == 0 || o->member_count > KVF_GROUP_MEMBERS_MAX ||
        o->rank >= o->member_count) {
        return -KVF_E_GROUP_MEMBERS;
    }
    if (o->members == NULL) {
        return -EINVAL;
    }
    *req = (struct kvf_group_req){
        .rank = o->rank, .group_id = o->group_id, .member_count = o->member_count};
    for (uint32_t i = 0; i < o->member_count; i++) {
        if (o->members[i] == NULL) {
            return -EINVAL;
        }
        int err = kvf_client_addr_parse(o->members[i], &req->members[i]);
        if (err != 0) {
            return err;
        }
    }
    req->group_id = req->group_id != 0 ? req->group_id : derive_id(req);
    return 0;
}

static int daemon_refusal(kvf_client *client, int err)
{
    if (err == -KVF_E_DAEMON_GONE) {
        atomic_store_explicit(&client->cold.is_supervisor_gone, true, memory_order_relaxed);
    }
    return err;
}

static int request(kvf_client *client, struct kvf_group_req *req, uint32_t *ret_group)
{
    struct kvf_reply reply;
    req->h.op = KVF_REQ_GROUP_ADD;
    int err = kvf_socket_request(client, client->cold.socket_fd, &req->h, sizeof *req, NULL, 0,
                                 KVF_REP_GROUP, 0, &reply);
    if (err != 0) {
        return daemon_refusal(client, err);
    }
    *ret_group = reply.rep.region;
    kvf_reply_close(&reply);
    bool is_good = *ret_group >= 1u && *ret_group <= KVF_GROUPS_PER_CLIENT_MAX &&
                   (req->group == 0 || req->group == *ret_group);
    return is_good ? 0 : -KVF_E_PROTOCOL;
}

/* The handle under which the same group is registered, or 0. */
static uint32_t find_same(const kvf_client *client, const struct kvf_group_req *req)
{
    for (uint32_t group = 1; group <= KVF_GROUPS_PER_CLIENT_MAX; group++) {
        const struct kvf_group_req *known = &client->cold.groups[group - 1u];
        if (kvf_client_has_group(client, group) && known->group_id == req->group_id &&
            known->rank == req->rank && known->member_count == req->member_count &&
            memcmp(known->members, req->members, sizeof req->members) == 0) {
            return group;
        }
    }
    return 0;
}

static int register_locked(kvf_client *client, struct kvf_group_req *req, uint32_t *ret_group)
{
    struct kvf_cold *cold = &client->cold;
    uint32_t group = find_same(client, req);
    if (group == 0) {
        if (atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
            return -KVF_E_DAEMON_GONE;
        }
        int err = request(client, req, &group);
        if (err != 0) {
            return err;
        }
        if (kvf_client_has_group(client, group)) {
            return -KVF_E_PROTOCOL;
        }
        cold->groups[group - 1u] = *req;
        cold->groups[group - 1u].group = group;
        atomic_fetch_or_explicit(&cold->groups_known, UINT32_C(1) << (group - 1u),
                                 memory_order_relaxed);
    }
    *ret_group = group;
    return 0;
}

int kvf_group_register(kvf_client *client, const struct kvf_group_opts *opts,
                       uint32_t *ret_group)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (opts == NULL || ret_group == NULL) {
        return -EINVAL;
    }
    struct kvf_group_opts o;
    err = kvf_client_copy_opts(&o, sizeof o, opts);
    if (err != 0) {
        return err;
    }
    if (o.pad0_ != 0 || !kvf_client_is_zero(o.pad_, sizeof o.pad_)) {
        return -KVF_E_OPTION;
    }
    struct kvf_group_req req;
    err = fill(&o, &req);
    if (err != 0) {
        return err;
    }
    if (req.member_count == 1) {
        *ret_group = 0; /* it waits for nobody: its rooms are rooms without a group */
        return 0;
    }
    pthread_mutex_lock(&client->cold.socket_lock);
    err = register_locked(client, &req, ret_group);
    pthread_mutex_unlock(&client->cold.socket_lock);
    return err;
}

int kvf_group_skip(kvf_client *client, uint32_t group, uint64_t key)
{
    int err = kvf_client_enter(client);
    if (err != 0) {
        return err;
    }
    if (!kvf_client_has_group(client, group)) {
        return -KVF_E_UNKNOWN_GROUP;
    }
    if (group == 0) {
        return 0; /* nobody asks for a key without a group */
    }
    struct kvf_cold *cold = &client->cold;
    struct kvf_group_skip_req req = {.h.op = KVF_REQ_GROUP_SKIP, .group = group, .key = key};
    pthread_mutex_lock(&cold->socket_lock);
    err = -KVF_E_DAEMON_GONE;
    if (!atomic_load_explicit(&cold->is_supervisor_gone, memory_order_relaxed)) {
        struct kvf_reply reply;
        err = kvf_socket_request(client, cold->socket_fd, &req.h, sizeof req, NULL, 0,
                                 KVF_REP_OK, 0, &reply);
        if (err == 0) {
            kvf_reply_close(&reply);
        }
        err = daemon_refusal(client, err);
    }
    pthread_mutex_unlock(&cold->socket_lock);
    return err;
}

int kvf_client_groups_readd(kvf_client *client)
{
    for (uint32_t group = 1; group <= KVF_GROUPS_PER_CLIENT_MAX; group++) {
        struct kvf_group_req req = client->cold.groups[group - 1u];
        uint32_t same;
        int err = kvf_client_has_group(client, group) ? request(client, &req, &same) : 0;
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

#include "tests/sim/fabric_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MTU_BYTES 4096u
#define RTO_NS UINT64_C(200000000)
#define USER_TIMEOUT_NS UINT64_C(10000000000)

/* ---- pools: whatever was allocated once is used again, until the fabric goes --------------------------- */

struct sim_packet *simnet_packet_get(struct sim_fabric *f)
{
    if (f->packet_free == NULL) {
        struct sim_chunk *chunk =
            malloc(sizeof(*chunk) + SIM_PACKETS_PER_CHUNK * sizeof(struct sim_packet));
        assert(chunk != NULL);
        chunk->next = f->chunks;
        f->chunks = chunk;
        struct sim_packet *packets = (struct sim_packet *)(void *)(chunk + 1);
        for (uint32_t i = 0; i < SIM_PACKETS_PER_CHUNK; i++) {
            packets[i].next = f->packet_free;
            f->packet_free = &packets[i];
        }
    }
    struct sim_packet *packet = f->packet_free;
    f->packet_free = packet->next;
    packet->next = NULL;
    packet->buffer = NULL;
    return packet;
}

void simnet_packet_put(struct sim_fabric *f, struct sim_packet *packet)
{
    simnet_buffer_put(f, packet->buffer);
    packet->next = f->packet_free;
    f->packet_free = packet;
}

bool simnet_fabric_has_bytes(const struct sim_fabric *f)
{
    return f->options.carries_bytes || f->options.read_fn == NULL || f->options.land_fn == NULL;
}

unsigned char *simnet_buffer_get(struct sim_fabric *f)
{
    if (!simnet_fabric_has_bytes(f)) {
        return NULL;
    }
    if (f->buffer_free == NULL) {
        struct sim_chunk *chunk = malloc(sizeof(*chunk) + f->buffer_bytes);
        assert(chunk != NULL);
        chunk->next = f->buffer_chunks;
        f->buffer_chunks = chunk;
        return (unsigned char *)(chunk + 1);
    }
    void *buffer = f->buffer_free;
    memcpy(&f->buffer_free, buffer, sizeof(f->buffer_free));
    return buffer;
}

void simnet_buffer_put(struct sim_fabric *f, unsigned char *buffer)
{
    if (buffer != NULL) {
        memcpy(buffer, &f->buffer_free, sizeof(f->buffer_free));
        f->buffer_free = buffer;
    }
}

static void free_chunks(struct sim_chunk *chunk)
{
    while (chunk != NULL) {
        struct sim_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
}

/* ---- life ------------------------------------------------------------------------------------------------- */

static void set_options(struct sim_fabric *f, const struct sim_fabric_options *options,
                        uint64_t seed)
{
    assert(options->hosts > 0 && options->hosts <= SIM_HOSTS_MAX);
    assert(options->kind == SIM_STREAM || options->remote_fn != NULL);
    f->options = *options;
    f->seed = seed;
    f->options.mtu_bytes = options->mtu_bytes != 0 ? options->mtu_bytes : MTU_BYTES;
    f->options.rto_ns = options->rto_ns != 0 ? options->rto_ns : RTO_NS;
    f->options.user_timeout_ns =
        options->user_timeout_ns != 0 ? options->user_timeout_ns : USER_TIMEOUT_NS;
    uint32_t bytes =
        f->options.mtu_bytes < sizeof(void *) ? (uint32_t)sizeof(void *) : f->options.mtu_bytes;
    if (bytes > f->buffer_bytes) {
        free_chunks(f->buffer_chunks); /* no packet is out: the old ones are too small */
        f->buffer_chunks = NULL;
        f->buffer_free = NULL;
        f->buffer_bytes = bytes;
    }
}

static void reset_routes(struct sim_fabric *f)
{
    for (uint32_t i = 0; i < SIM_HOSTS_MAX * SIM_HOSTS_MAX; i++) {
        f->routes[i].link = f->options.link;
        f->routes[i].held_count = 0;
    }
}

struct sim_fabric *sim_fabric_create(struct sim_clock *clock,
                                     const struct sim_fabric_options *options, uint64_t seed)
{
    struct sim_fabric *f = calloc(1, sizeof(*f));
    if (f == NULL) {
        return NULL;
    }
    f->clock = clock;
    f->routes = calloc((size_t)SIM_HOSTS_MAX * SIM_HOSTS_MAX, sizeof(*f->routes));
    if (f->routes == NULL) {
        free(f);
        return NULL;
    }
    set_options(f, options, seed);
    reset_routes(f);
    return f;
}

static void reset_node(struct sim_node *n)
{
    assert(n->transport == NULL);
    struct sim_node kept = {.qps = n->qps,
                            .qp_cap = n->qp_cap,
                            .qp_free = n->qp_free,
                            .registrations = n->registrations,
                            .registration_cap = n->registration_cap,
                            .qp_made = n->qp_made};
    for (uint32_t i = 0; i < n->qp_count; i++) {
        assert(n->qps[i]->state == SIM_QP_FREE);
        n->qps[i]->gen =
            0; /* numbers begin anew, so that a seed is the same whatever ran before */
    }
    *n = kept;
}

void sim_fabric_reset(struct sim_fabric *f, const struct sim_fabric_options *options,
                      uint64_t seed)
{
    for (uint32_t i = 0; i < SIM_HOSTS_MAX; i++) {
        reset_node(&f->nodes[i]);
    }
    /* Packets were owned by events that are gone: all of them are free again. */
    f->packet_free = NULL;
    for (struct sim_chunk *chunk = f->chunks; chunk != NULL; chunk = chunk->next) {
        struct sim_packet *packets = (struct sim_packet *)(void *)(chunk + 1);
        for (uint32_t i = 0; i < SIM_PACKETS_PER_CHUNK; i++) {
            packets[i].next = f->packet_free;
            f->packet_free = &packets[i];
        }
    }
    f->buffer_free = NULL;
    for (struct sim_chunk *chunk = f->buffer_chunks; chunk != NULL; chunk = chunk->next) {
        simnet_buffer_put(f, (unsigned char *)(chunk + 1));
    }
    f->duct_free_count = 0;
    for (uint32_t i = f->duct_count; i > 0; i--) {
        simnet_duct_forget(f->ducts[i - 1]);
        f->duct_free[f->duct_free_count++] = i - 1;
    }
    f->listener_count = 0;
    f->next_tie = 0;
    f->next_incarnation = 0;
    f->counters = (struct sim_fabric_counters){0};
    set_options(f, options, seed);
    reset_routes(f);
}

void sim_fabric_destroy(struct sim_fabric *f)
{
    for (uint32_t i = 0; i < SIM_HOSTS_MAX; i++) {
        struct sim_node *n = &f->nodes[i];
        assert(n->transport == NULL);
        for (uint32_t k = 0; k < n->qp_made; k++) {
            free(n->qps[k]->sq);
            free(n->qps[k]);
        }
        free(n->qps);
        free(n->qp_free);
        free(n->registrations);
    }
    for (uint32_t i = 0; i < SIM_HOSTS_MAX * SIM_HOSTS_MAX; i++) {
        free(f->routes[i].held);
    }
    for (uint32_t i = 0; i < f->duct_count; i++) {
        free(f->ducts[i]->segments);
        free(f->ducts[i]);
    }
    free(f->ducts);
    free(f->duct_free);
    free(f->routes);
    free_chunks(f->chunks);
    free_chunks(f->buffer_chunks);
    free(f);
}

const struct sim_fabric_counters *sim_fabric_counters(const struct sim_fabric *f)
{
    return &f->counters;
}

/* ---- links ------------------------------------------------------------------------------------------------ */

struct sim_route *simnet_fabric_route(struct sim_fabric *f, uint32_t from, uint32_t to)
{
    assert(from < f->options.hosts && to < f->options.hosts);
    return &f->routes[from * SIM_HOSTS_MAX + to];
}

void sim_link_get(const struct sim_fabric *f, uint32_t from, uint32_t to,
                  struct sim_link *ret_link)
{
    assert(from < f->options.hosts && to < f->options.hosts);
    *ret_link = f->routes[from * SIM_HOSTS_MAX + to].link;
}

void sim_link_set(struct sim_fabric *f, uint32_t from, uint32_t to, const struct sim_link *link)
{
    struct sim_route *route = simnet_fabric_route(f, from, to);
    route->link = *link;
    if (link->is_stalled) {
        return;
    }
    for (uint32_t i = 0; i < route->held_count; i++) {
        const struct sim_held *held = &route->held[i];
        sim_clock_at(f->clock, f->clock->now_ns, held->fn, held->ctx, held->a, held->b);
    }
    route->held_count = 0;
}

uint64_t simnet_fabric_delay(const struct sim_link *link, struct sim_random *luck)
{
    return sim_random_between(luck, link->delay_min_ns, link->delay_max_ns);
}

bool simnet_fabric_passes(struct sim_fabric *f, uint32_t from, uint32_t to, sim_event_fn fn,
                          void *ctx, uint64_t a, uint64_t b, bool *ret_held)
{
    struct sim_route *route = simnet_fabric_route(f, from, to);
    *ret_held = false;
    if (route->link.is_stalled) {
        if (route->held_count == route->held_cap) {
            uint32_t cap = route->held_cap == 0 ? 64 : 2 * route->held_cap;
            struct sim_held *held = realloc(route->held, cap * sizeof(*held));
            assert(held != NULL);
            route->held = held;
            route->held_cap = cap;
        }
        route->held[route->held_count++] = (struct sim_held){fn, ctx, a, b};
        *ret_held = true;
        return false;
    }
    return !route->link.is_cut && !f->nodes[to].is_down;
}

uint64_t sim_link_arrival(struct sim_fabric *f, uint32_t from, uint32_t to,
                          struct sim_random *luck, uint64_t *flow_ns)
{
    const struct sim_link *link = &simnet_fabric_route(f, from, to)->link;
    if (link->is_cut || link->is_stalled || f->nodes[from].is_down || f->nodes[to].is_down) {
        return SIM_NEVER;
    }
    uint64_t when_ns = f->clock->now_ns + simnet_fabric_delay(link, luck);
    /* TCP backs off: a link that loses everything would never be left otherwise. */
    for (uint32_t tries = 0; tries < 6 && sim_random_chance(luck, link->loss_per_million);
         tries++) {
        when_ns += f->options.rto_ns << tries;
    }
    *flow_ns = when_ns > *flow_ns ? when_ns : *flow_ns;
    return *flow_ns;
}

/* ---- addresses --------------------------------------------------------------------------------------------- */

static bool is_same_address(const struct kvf_addr_shm *a, const struct kvf_addr_shm *b)
{
    return a->family == b->family && a->port == b->port &&
           memcmp(a->addr, b->addr, sizeof(a->addr)) == 0;
}

void sim_fabric_listen(struct sim_fabric *f, uint32_t host, const struct kvf_addr_shm *addr)
{
    assert(host < f->options.hosts);
    for (uint32_t i = 0; i < f->listener_count; i++) {
        if (is_same_address(&f->listeners[i].addr, addr)) {
            f->listeners[i].host = host;
            return;
        }
    }
    assert(f->listener_count < SIM_HOSTS_MAX);
    f->listeners[f->listener_count++] = (struct sim_listener){.addr = *addr, .host = host};
}

uint32_t sim_fabric_host_at(const struct sim_fabric *f, const struct kvf_addr_shm *addr)
{
    for (uint32_t i = 0; i < f->listener_count; i++) {
        if (is_same_address(&f->listeners[i].addr, addr)) {
            return f->listeners[i].host;
        }
    }
    return KVF_NONE;
}

/* ---- registrations ----------------------------------------------------------------------------------------- */

uint32_t sim_fabric_register(struct sim_fabric *f, uint32_t host, uint32_t client,
                             uint32_t region)
{
    assert(host < f->options.hosts);
    struct sim_node *n = &f->nodes[host];
    if (n->registration_count == n->registration_cap) {
        uint32_t cap = n->registration_cap == 0 ? 64 : 2 * n->registration_cap;
        struct sim_registration *list = realloc(n->registrations, cap * sizeof(*list));
        assert(list != NULL);
        n->registrations = list;
        n->registration_cap = cap;
    }
    n->registrations[n->registration_count++] =
        (struct sim_registration){.client = client, .region = region, .is_live = true};
    return n->registration_count;
}

void sim_fabric_deregister(struct sim_fabric *f, uint32_t host, uint32_t key)
{
    struct sim_node *n = &f->nodes[host];
    assert(key > 0 && key <= n->registration_count);
    n->registrations[key - 1].is_live = false;
    for (uint32_t i = 0; i < n->qp_count; i++) {
        if (n->qps[i]->placing_head != NULL) {
            simnet_qp_place_all(f, n->qps[i]); /* whoever holds a reference is waited for */
        }
    }
}

/* ---- touching memory ---------------------------------------------------------------------------------------- */

/* Copies between a buffer and a page's planes in order. */
static int copy_page(struct sim_transport *t, const struct sim_touch *touch, void *out,
                     const void *in)
{
    const struct kvf_transport_region *region =
        t->calls.region_fn(t->calls.ctx, touch->client, touch->region);
    if (region == NULL || region->base == NULL || touch->page >= region->page_count) {
        return -EFAULT;
    }
    uint64_t off = touch->off;
    uint64_t moved = 0;
    for (uint32_t i = 0; i < region->plane_count && moved < touch->bytes; i++) {
        const struct kvf_core_plane *plane = &region->planes[i];
        if (off >= plane->page_bytes) {
            off -= plane->page_bytes;
            continue;
        }
        uint64_t n = plane->page_bytes - off;
        n = n < touch->bytes - moved ? n : touch->bytes - moved;
        unsigned char *at = region->base + plane->off + touch->page * plane->stride + off;
        if (out != NULL) {
            memcpy((unsigned char *)out + moved, at, n);
        } else {
            memcpy(at, (const unsigned char *)in + moved, n);
        }
        moved += n;
        off = 0;
    }
    return moved == touch->bytes ? 0 : -EFAULT;
}

int simnet_fabric_read(struct sim_fabric *f, struct sim_transport *t,
                       const struct sim_touch *touch, uint64_t *ret_tag, void *buffer)
{
    f->counters.reads++;
    *ret_tag = 0;
    return f->options.read_fn != NULL
               ? f->options.read_fn(f->options.ctx, touch, ret_tag, buffer)
               : copy_page(t, touch, buffer, NULL);
}

int simnet_fabric_land(struct sim_fabric *f, struct sim_transport *t,
                       const struct sim_touch *touch, uint64_t tag, const void *buffer)
{
    int rc = f->options.land_fn != NULL ? f->options.land_fn(f->options.ctx, touch, tag, buffer)
                                        : copy_page(t, touch, NULL, buffer);
    if (rc == 0) {
        f->counters.landings++;
        f->counters.landings_late += touch->is_late;
        f->counters.landings_ghost += touch->is_ghost;
        f->counters.bytes_landed += touch->bytes;
    }
    return rc;
}

/* ---- processes and hosts ------------------------------------------------------------------------------------- */

void simnet_fabric_wake(struct sim_fabric *f, uint32_t host)
{
    struct sim_node *n = &f->nodes[host];
    if (n->transport == NULL || n->is_killed || n->transport->is_awake) {
        return;
    }
    n->transport->is_awake = true;
    if (n->is_frozen) {
        n->owes_wake = true;
    } else if (f->options.wake_fn != NULL) {
        f->options.wake_fn(f->options.ctx, host);
    }
}

void sim_fabric_freeze(struct sim_fabric *f, uint32_t host)
{
    f->nodes[host].is_frozen = true;
}

void sim_fabric_thaw(struct sim_fabric *f, uint32_t host)
{
    struct sim_node *n = &f->nodes[host];
    if (!n->is_frozen) {
        return;
    }
    n->is_frozen = false;
    if (n->owes_wake) {
        n->owes_wake = false;
        if (f->options.wake_fn != NULL && !n->is_killed) {
            f->options.wake_fn(f->options.ctx, host);
        }
    }
    while (n->held_head != NULL && !n->is_frozen && !n->is_killed) {
        struct sim_duct *d = n->held_head;
        n->held_head = d->held_next;
        simnet_duct_ask(f, d);
    }
}

void sim_fabric_kill(struct sim_fabric *f, uint32_t host)
{
    assert(f->nodes[host].transport != NULL);
    f->nodes[host].is_killed = true;
}

/* Whoever waits in the backlog of a process that is gone is reset. (Words of a host that is down never leave it.) */
static void drop_held(struct sim_fabric *f, struct sim_node *n)
{
    while (n->held_head != NULL) {
        struct sim_duct *d = n->held_head;
        n->held_head = d->held_next;
        simnet_duct_refuse(f, d);
    }
}

void simnet_fabric_end_process(struct sim_fabric *f, struct sim_transport *t, bool is_silent)
{
    struct sim_node *n = &f->nodes[t->host];
    assert(n->transport == t);
    assert(!t->is_gone);
    for (uint32_t i = 0; i < t->config.lanes_max; i++) {
        struct sim_lane *lane = &t->lanes[i];
        struct sim_duct *d = simnet_duct_of_lane(t, i);
        if (d != NULL) {
            enum sim_side side = lane->is_sink ? SIM_SINK : SIM_SOURCE;
            simnet_duct_end(f, d, side, false, is_silent);
        }
    }
    /* Queue pairs that a planted fence left behind are the kernel's to destroy too. */
    for (uint32_t i = 0; i < n->qp_count; i++) {
        if (n->qps[i]->state != SIM_QP_FREE) {
            simnet_qp_destroy(f, n->qps[i]);
        }
    }
    for (uint32_t i = 0; i < n->registration_count; i++) {
        n->registrations[i].is_live = false;
    }
    drop_held(f, n);
    simnet_duct_refuse_all(f, t->host);
    t->is_gone = true;
    n->transport = NULL;
    n->is_killed = false;
    n->is_frozen = false;
    n->owes_wake = false;
    n->hang_until_ns = 0;
}

void sim_fabric_reap(struct sim_fabric *f, uint32_t host)
{
    struct sim_node *n = &f->nodes[host];
    assert(n->is_killed);
    simnet_fabric_end_process(f, n->transport, false);
}

void sim_fabric_host_down(struct sim_fabric *f, uint32_t host)
{
    struct sim_node *n = &f->nodes[host];
    n->is_down = true;
    if (n->transport != NULL) {
        simnet_fabric_end_process(f, n->transport, true);
    }
}

/* A NIC that was without power counts its queue pairs from the beginning again: only a random PSN stands
 * between the ghosts of before and the new ones. */
void sim_fabric_host_up(struct sim_fabric *f, uint32_t host)
{
    struct sim_node *n = &f->nodes[host];
    n->is_down = false;
    n->qp_free_head = 0;
    n->qp_free_tail = 0;
    for (uint32_t i = 0; i < n->qp_count; i++) {
        n->qps[i]->qpn = 0;
        n->qp_free[n->qp_free_tail++] = i;
    }
}

static void on_hang_over(void *ctx, uint64_t host, uint64_t until_ns)
{
    struct sim_fabric *f = ctx;
    struct sim_node *n = &f->nodes[host];
    if (n->hang_until_ns == until_ns) {
        n->hang_until_ns = 0;
        if (n->transport != NULL) {
            simnet_fences_go_on(n->transport);
        }
    }
}

void sim_fabric_fence_hang(struct sim_fabric *f, uint32_t host, uint64_t until_ns)
{
    f->nodes[host].hang_until_ns = until_ns;
    if (until_ns == 0) {
        on_hang_over(f, host, 0);
    } else if (until_ns != SIM_NEVER) {
        sim_clock_at(f->clock, until_ns, on_hang_over, f, host, until_ns);
    }
}

void sim_fabric_refuse(struct sim_fabric *f, int token)
{
    struct sim_duct *d = simnet_duct_of_token(f, token);
    if (d != NULL && d->is_asking) {
        d->is_asking = false;
        simnet_duct_refuse(f, d);
    }
}

void sim_fabric_break_lane(struct sim_fabric *f, uint32_t host, uint32_t lane)
{
    struct sim_transport *t = f->nodes[host].transport;
    struct sim_duct *d = t == NULL ? NULL : simnet_duct_of_lane(t, lane);
    if (d == NULL) {
        return;
    }
    if (f->options.kind == SIM_NIC) {
        struct sim_qp *qp = simnet_qp_of_end(f, &d->end[t->lanes[lane].is_sink ? 0 : 1]);
        if (qp != NULL) {
            simnet_qp_to_error(f, qp);
        }
        simnet_duct_break(f, d, t->lanes[lane].is_sink ? SIM_SINK : SIM_SOURCE, EIO);
        return;
    }
    simnet_duct_tell(f, d, SIM_SINK, ECONNRESET);
    simnet_duct_tell(f, d, SIM_SOURCE, ECONNRESET);
}

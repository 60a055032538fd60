/* Lanes: ordered streams of posts, handed to the kernel and landing half a page at a time. */
#include "tests/core/pair_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding --------------------------------------------------------------------------------------- */

struct pair_stream *pair_stream(struct pair *p, uint32_t sink, uint32_t source,
                                uint32_t lane_idx)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        if (s->is_used && s->is_open[PAIR_SINK] && s->is_open[PAIR_SOURCE] &&
            s->daemon[PAIR_SINK] == sink && s->daemon[PAIR_SOURCE] == source &&
            s->lane_idx == lane_idx) {
            return s;
        }
    }
    return NULL;
}

static struct pair_stream *stream_of_lane(struct pair *p, uint32_t daemon, uint32_t lane,
                                          uint32_t epoch, int *ret_side)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        for (int side = 0; side < 2; side++) {
            if (s->is_used && s->is_open[side] && s->daemon[side] == daemon &&
                s->lane[side] == lane && s->epoch == epoch) {
                *ret_side = side;
                return s;
            }
        }
    }
    return NULL;
}

static struct pair_stream *new_stream(struct pair *p, const struct pair_stream *s)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        if (!p->streams[i].is_used) {
            p->streams[i] = *s;
            return &p->streams[i];
        }
    }
    pair_fail(p, "more than %u streams", PAIR_STREAMS_MAX);
}

/* ---- posts in a stream ------------------------------------------------------------------------------ */

static void free_post(struct pair_post *post)
{
    free(post->tags);
    free(post);
}

/* What a NIC's work request says: address and key come from the peer's REGION alone. */
static void address(struct pair *p, const struct pair_stream *s, struct pair_post *q)
{
    struct kvf_remote_view view;
    const struct kvf_post *post = &q->post;
    if (s->qpn[PAIR_SOURCE] == 0 || post->kind != KVF_LANE_DATA) {
        return;
    }
    uint32_t rail = s->lane_idx % p->options.rails;
    if (!kvf_core_remote(p->daemons[s->daemon[PAIR_SOURCE]].core, s->lane[PAIR_SOURCE],
                         post->remote_region, &view) ||
        view.plane_count != 1 || rail >= view.key_count) {
        pair_fail(p, "a post names a region that its peer has not told");
    }
    q->remote = view.base + view.planes[0].off +
                (uint64_t)post->remote_page_first * view.planes[0].stride;
    q->remote_key = view.keys[rail];
}

static void append_post(struct pair *p, struct pair_stream *s, const struct kvf_post *post)
{
    struct pair_post *q = calloc(1, sizeof *q);
    q->post = *post;
    q->kind = post->kind;
    q->halves = post->kind == KVF_LANE_DATA ? 2 * post->page_count : 1;
    q->tags = calloc(q->halves, sizeof *q->tags);
    address(p, s, q);
    if (s->tail != NULL) {
        s->tail->next = q;
    } else {
        s->head = q;
    }
    s->tail = q;
    s->count++;
}

static void remove_post(struct pair_stream *s, struct pair_post *wanted)
{
    struct pair_post *before = NULL;
    for (struct pair_post *q = s->head; q != wanted; q = q->next) {
        before = q;
    }
    if (before != NULL) {
        before->next = wanted->next;
    } else {
        s->head = wanted->next;
    }
    s->tail = s->tail == wanted ? before : s->tail;
    s->count--;
    free_post(wanted);
}

static void complete(struct pair *p, struct pair_stream *s, struct pair_post *q, int status)
{
    if (q->is_completed) {
        return;
    }
    q->is_completed = true;
    kvf_core_completed(p->daemons[s->daemon[PAIR_SOURCE]].core,
                       pair_clock(p, s->daemon[PAIR_SOURCE]), s->lane[PAIR_SOURCE], s->epoch,
                       &q->post, status);
}

static struct pair_post *first_unhanded(const struct pair_stream *s)
{
    struct pair_post *q = s->head;
    while (q != NULL && q->handed == q->halves) {
        q = q->next;
    }
    return q;
}

static bool can_land(const struct pair_stream *s)
{
    return s->head != NULL && s->head->delivered < s->head->handed;
}

/* ---- the end of a stream ---------------------------------------------------------------------------- */

/* What was handed stays under way when the source goes; nothing of it arrives when the sink goes. */
void pair_stream_close_side(struct pair_stream *s, int side)
{
    s->is_open[side] = false;
    s->owes_ready[side] = false;
    if (side == PAIR_SINK) {
        for (struct pair_post *q = s->head; q != NULL; q = q->next) {
            q->delivered = q->handed;
        }
        return;
    }
    struct pair_post *q = s->head;
    while (q != NULL) {
        struct pair_post *next = q->next;
        q->is_completed = true; /* by the fence, or its owner is dead */
        if (q->handed == 0) {
            remove_post(s, q);
        }
        q = next;
    }
}

void pair_net_fence(struct pair *p, uint32_t daemon, uint32_t lane, uint32_t epoch)
{
    int side = PAIR_SINK;
    struct pair_stream *s = stream_of_lane(p, daemon, lane, epoch, &side);
    if (s != NULL) {
        if (side == PAIR_SOURCE) {
            for (struct pair_post *q = s->head; q != NULL; q = q->next) {
                complete(p, s, q, -ECONNABORTED);
            }
        }
        pair_stream_close_side(s, side);
    }
    kvf_core_lane_fenced(p->daemons[daemon].core, pair_clock(p, daemon), lane, epoch);
}

void pair_stream_free(struct pair_stream *s)
{
    while (s->head != NULL) {
        remove_post(s, s->head);
    }
    s->is_used = false;
}

void pair_stream_lose(struct pair *p, struct pair_stream *s, int side)
{
    uint32_t daemon = s->daemon[side];
    if (s->lane[side] == KVF_NONE) {
        pair_stream_close_side(s, side);
        return;
    }
    kvf_core_lane_lost(p->daemons[daemon].core, pair_clock(p, daemon), s->lane[side], s->epoch,
                       ECONNRESET);
    pair_drain(p, daemon);
}

/* ---- what the core asks for ------------------------------------------------------------------------- */

/* Posts not yet started are taken back; a started frame goes on from filler; an END not yet started leaves as
 * DRAIN, so that the lane still gets its one marker. */
void pair_net_detach(struct pair *p, uint32_t daemon, uint32_t lane, uint32_t epoch,
                     uint64_t cookie)
{
    int side = PAIR_SINK;
    struct pair_stream *s = stream_of_lane(p, daemon, lane, epoch, &side);
    if (s == NULL || side != PAIR_SOURCE) {
        return;
    }
    struct pair_post *q = s->head;
    while (q != NULL) {
        struct pair_post *next = q->next;
        if (q->post.cookie == cookie && !q->is_completed) {
            if (q->kind != KVF_LANE_DATA) {
                q->kind = KVF_LANE_DRAIN;
            } else if (q->handed == 0) {
                complete(p, s, q, -ECANCELED);
                remove_post(s, q);
            } else {
                q->is_filler = true;
                complete(p, s, q, -ECANCELED);
            }
        }
        q = next;
    }
}

static void ready(struct pair *p, struct pair_stream *s, int side)
{
    uint32_t daemon = s->daemon[side];
    struct kvf_lane_end end = {.qpn = s->qpn[side],
                               .psn = s->qpn[side] * 31u & 0xffffffu,
                               .gid = {0xfe, 0x80, (uint8_t)daemon},
                               .mtu_bytes = 1024,
                               .rail = (uint8_t)(s->lane_idx % p->options.rails)};
    s->owes_ready[side] = false;
    kvf_core_lane_ready(p->daemons[daemon].core, pair_clock(p, daemon), s->lane[side], s->epoch,
                        &end);
}

void pair_ready_now(struct pair *p, uint32_t daemon)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        for (int side = 0; side < 2; side++) {
            if (s->is_used && s->is_open[side] && s->daemon[side] == daemon &&
                s->owes_ready[side]) {
                ready(p, s, side);
                pair_drain(p, daemon);
            }
        }
    }
}

static struct pair_stream *by_sink_end(struct pair *p, uint32_t source,
                                       const struct kvf_lane_end *end)
{
    for (uint32_t i = 0; i < PAIR_STREAMS_MAX; i++) {
        struct pair_stream *s = &p->streams[i];
        if (s->is_used && s->is_open[PAIR_SINK] && s->qpn[PAIR_SINK] == end->qpn &&
            s->qpn[PAIR_SOURCE] == 0 && s->daemon[PAIR_SOURCE] == source &&
            end->gid[0] == 0xfe && end->gid[2] == s->daemon[PAIR_SINK]) {
            return s;
        }
    }
    return NULL;
}

/* Our end of a queue pair. The source's may name a sink's that is gone by now, or never was: it is joined to it
 * all the same, and nobody answers. */
static void open_queue_pair(struct pair *p, uint32_t daemon, const struct kvf_action *a)
{
    int side = a->end.qpn == 0 ? PAIR_SINK : PAIR_SOURCE;
    struct pair_stream *s = side == PAIR_SINK ? NULL : by_sink_end(p, daemon, &a->end);
    if (s == NULL) {
        s = new_stream(p, &(struct pair_stream){.is_used = true,
                                                .daemon = {daemon, daemon},
                                                .lane = {KVF_NONE, KVF_NONE},
                                                .epoch = a->epoch,
                                                .lane_idx = a->lane % KVF_LANES_MAX,
                                                .is_accepted = true});
        if (side == PAIR_SINK && pair_daemon_at(&a->addr) < p->options.daemons) {
            s->daemon[PAIR_SOURCE] = pair_daemon_at(&a->addr);
        }
    }
    s->daemon[side] = daemon;
    s->lane[side] = a->lane;
    s->is_open[side] = true;
    s->qpn[side] = ++p->last_qpn;
    s->owes_ready[side] = true;
    if (!p->daemons[daemon].hold_ready) {
        ready(p, s, side);
    }
}

void pair_net_lane_join(struct pair *p, uint32_t daemon, const struct kvf_action *a)
{
    int side = PAIR_SINK;
    struct pair_stream *s = stream_of_lane(p, daemon, a->lane, a->epoch, &side);
    if (s == NULL || side != PAIR_SINK || s->qpn[PAIR_SINK] == 0) {
        pair_fail(p, "daemon %u joins lane %u, which it has not opened", daemon, a->lane);
    }
    s->is_joined = s->qpn[PAIR_SOURCE] == a->end.qpn;
    if (!s->is_joined && !p->is_hostile) {
        pair_fail(p, "daemon %u joins lane %u to somebody else", daemon, a->lane);
    }
    kvf_core_lane_up(p->daemons[daemon].core, pair_clock(p, daemon), a->lane, a->epoch);
}

void pair_net_lane_open(struct pair *p, uint32_t daemon, const struct kvf_action *a)
{
    if (p->options.are_queue_pairs) {
        open_queue_pair(p, daemon, a);
        return;
    }
    uint32_t to = pair_daemon_at(&a->addr);
    bool is_there =
        to < p->options.daemons && !p->daemons[to].is_dead && !p->daemons[to].is_unreachable;
    if (!is_there) {
        kvf_core_lane_lost(p->daemons[daemon].core, pair_clock(p, daemon), a->lane, a->epoch,
                           ECONNREFUSED);
        return;
    }
    (void)new_stream(p, &(struct pair_stream){.is_used = true,
                                              .daemon = {daemon, to},
                                              .lane = {a->lane, KVF_NONE},
                                              .epoch = a->epoch,
                                              .lane_idx = a->lane % KVF_LANES_MAX,
                                              .session = a->session,
                                              .is_open = {true, true}});
    kvf_core_lane_up(p->daemons[daemon].core, pair_clock(p, daemon), a->lane, a->epoch);
}

void pair_net_wants_post(struct pair *p, uint32_t daemon, uint32_t lane, uint32_t epoch)
{
    int side = PAIR_SINK;
    struct pair_stream *s = stream_of_lane(p, daemon, lane, epoch, &side);
    if (s != NULL && side == PAIR_SOURCE) {
        s->wants_post = true;
    }
}

/* ---- movement -------------------------------------------------------------------------------------- */

uint32_t pair_take_posts(struct pair *p, struct pair_stream *s, uint32_t posts)
{
    uint32_t source = s->daemon[PAIR_SOURCE];
    uint32_t taken = 0;
    while (taken < posts && s->is_open[PAIR_SOURCE] && s->lane[PAIR_SOURCE] != KVF_NONE &&
           s->wants_post && s->count < p->post_queue_max && pair_is_awake(p, source)) {
        struct kvf_post post;
        if (kvf_core_next_post(p->daemons[source].core, pair_clock(p, source),
                               s->lane[PAIR_SOURCE], &post) == 0) {
            s->wants_post = false;
        } else {
            append_post(p, s, &post);
            taken++;
        }
        pair_drain(p, source);
    }
    return taken;
}

static void hand_half(struct pair *p, struct pair_stream *s, struct pair_post *q)
{
    if (q->kind == KVF_LANE_DATA) {
        q->tags[q->handed] =
            q->is_filler ? PAIR_FILLER
                         : pair_read_half(p, s->daemon[PAIR_SOURCE], &q->post, q->handed);
    }
    q->handed++;
    if (!s->is_open[PAIR_SINK]) {
        q->delivered = q->handed; /* nobody will read it */
    }
    if (q->handed == q->halves) {
        complete(p, s, q, q->kind == q->post.kind ? 0 : -ECANCELED);
    }
}

static void free_landed(struct pair_stream *s)
{
    while (s->head != NULL && s->head->delivered == s->head->halves) {
        remove_post(s, s->head);
    }
}

uint32_t pair_hand(struct pair *p, struct pair_stream *s, uint32_t halves)
{
    uint32_t source = s->daemon[PAIR_SOURCE];
    uint32_t handed = 0;
    bool has_answer = s->qpn[PAIR_SOURCE] == 0 || s->is_open[PAIR_SINK];
    while (handed < halves && s->is_open[PAIR_SOURCE] && has_answer &&
           pair_is_awake(p, source)) {
        struct pair_post *q = first_unhanded(s);
        if (q == NULL) {
            break;
        }
        hand_half(p, s, q);
        handed++;
        pair_drain(p, source);
        free_landed(s);
    }
    return handed;
}

/* The sink's NIC looks the address and the key up, and asks nobody. */
static int land_by_device(struct pair *p, const struct pair_stream *s,
                          const struct pair_post *q)
{
    uint32_t sink = s->daemon[PAIR_SINK];
    uint32_t rail = s->lane_idx % p->options.rails;
    for (uint32_t c = 0; c < PAIR_CLIENTS; c++) {
        for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
            const struct pair_region *reg = &p->daemons[sink].clients[c].regions[i];
            if (reg->handle == 0 || reg->key + rail != q->remote_key || q->remote < reg->base) {
                continue;
            }
            struct kvf_placement_at at = {
                .client = c,
                .region = reg->handle,
                .page_first = (uint32_t)((q->remote - reg->base) / reg->plane.stride)};
            pair_write_half(p, sink, &at, q->delivered / 2, q->delivered % 2,
                            q->tags[q->delivered]);
            p->landed_halves++;
            return 0;
        }
    }
    return -EACCES;
}

static int land_data(struct pair *p, struct pair_stream *s, const struct pair_post *q)
{
    if (s->qpn[PAIR_SINK] != 0) {
        return land_by_device(p, s, q);
    }
    uint32_t sink = s->daemon[PAIR_SINK];
    struct kvf_core *core = p->daemons[sink].core;
    struct kvf_placement_at at;
    int err = kvf_core_place(core, s->lane[PAIR_SINK], s->epoch, q->post.handle,
                             q->post.position, q->post.page_count, &at);
    if (err != 0) {
        return err;
    }
    if (at.where == KVF_PLACE_PAGES) {
        pair_write_half(p, sink, &at, q->delivered / 2, q->delivered % 2,
                        q->tags[q->delivered]);
        p->landed_halves++;
    } else {
        p->scratch_halves++;
    }
    kvf_core_placed(core, pair_clock(p, sink), s->lane[PAIR_SINK], s->epoch, q->post.handle,
                    q->post.payload_bytes / q->halves, at.where == KVF_PLACE_SCRATCH);
    return 0;
}

static int land_half(struct pair *p, struct pair_stream *s, struct pair_post *q)
{
    uint32_t sink = s->daemon[PAIR_SINK];
    if (s->lane[PAIR_SINK] == KVF_NONE) { /* a raw sink reads whatever comes */
        s->raw_pages += q->kind == KVF_LANE_DATA ? q->delivered % 2 : 0;
        s->raw_ends += q->kind == KVF_LANE_END ? 1 : 0;
        s->raw_drains += q->kind == KVF_LANE_DRAIN ? 1 : 0;
        return 0;
    }
    return q->kind == KVF_LANE_DATA
               ? land_data(p, s, q)
               : kvf_core_marker(p->daemons[sink].core, pair_clock(p, sink), s->lane[PAIR_SINK],
                                 s->epoch, q->post.handle, q->kind);
}

uint32_t pair_land(struct pair *p, struct pair_stream *s, uint32_t halves)
{
    uint32_t sink = s->daemon[PAIR_SINK];
    uint32_t landed = 0;
    bool is_reader = pair_is_awake(p, sink) || p->daemons[sink].is_raw;
    while (landed < halves && is_reader && s->is_open[PAIR_SINK] && can_land(s)) {
        int err = land_half(p, s, s->head);
        s->head->delivered++;
        landed++;
        if (err != 0) { /* the stream must end */
            kvf_core_lane_lost(p->daemons[sink].core, pair_clock(p, sink), s->lane[PAIR_SINK],
                               s->epoch, EPROTO);
        }
        pair_drain(p, sink);
        free_landed(s);
    }
    return landed;
}

void pair_complete_with(struct pair *p, struct pair_stream *s, int status)
{
    struct pair_post *q = s->head;
    while (q != NULL && q->is_completed) {
        q = q->next;
    }
    if (q == NULL) {
        pair_fail(p, "no post is out");
    }
    complete(p, s, q, status);
    remove_post(s, q);
    pair_drain(p, s->daemon[PAIR_SOURCE]);
}

static uint32_t say_hello(struct pair *p, struct pair_stream *s)
{
    uint32_t source = s->daemon[PAIR_SOURCE];
    if (s->is_accepted || !s->is_open[PAIR_SOURCE] || !s->is_open[PAIR_SINK]) {
        return 0;
    }
    if (p->daemons[source].is_raw) {
        s->is_accepted = true;
        return 1;
    }
    if (!pair_is_awake(p, source)) {
        return 0;
    }
    struct kvf_wire_lane_hello hello = {
        .session = s->session, .lane_idx = s->lane_idx, .epoch = s->epoch};
    uint32_t lane;
    s->is_accepted = true;
    if (kvf_core_lane_accept(p->daemons[source].core, pair_clock(p, source), &hello, &lane) ==
        0) {
        s->lane[PAIR_SOURCE] = lane;
    } else {
        pair_stream_close_side(s, PAIR_SOURCE);
    }
    pair_drain(p, source);
    return 1;
}

static uint32_t notice_end(struct pair *p, struct pair_stream *s)
{
    if ((s->qpn[PAIR_SINK] | s->qpn[PAIR_SOURCE]) != 0) {
        /* Only a post that nobody acknowledges tells: the sink's end never hears of the source's. */
        if (s->is_open[PAIR_SOURCE] && !s->is_open[PAIR_SINK] && first_unhanded(s) != NULL &&
            pair_is_awake(p, s->daemon[PAIR_SOURCE])) {
            pair_stream_lose(p, s, PAIR_SOURCE);
            return s->is_open[PAIR_SOURCE] ? 0 : 1;
        }
        return 0;
    }
    if (s->is_open[PAIR_SOURCE] && !s->is_open[PAIR_SINK] &&
        (s->lane[PAIR_SOURCE] == KVF_NONE || pair_is_awake(p, s->daemon[PAIR_SOURCE]))) {
        pair_stream_lose(p, s, PAIR_SOURCE);
        return s->is_open[PAIR_SOURCE] ? 0 : 1;
    }
    if (s->is_open[PAIR_SINK] && !s->is_open[PAIR_SOURCE] && !can_land(s) &&
        (s->lane[PAIR_SINK] == KVF_NONE || pair_is_awake(p, s->daemon[PAIR_SINK]))) {
        pair_stream_lose(p, s, PAIR_SINK);
        return s->is_open[PAIR_SINK] ? 0 : 1;
    }
    return 0;
}

uint32_t pair_stream_move(struct pair *p, struct pair_stream *s, uint32_t units)
{
    const struct pair_link *link = &p->links[s->daemon[PAIR_SINK]][s->daemon[PAIR_SOURCE]];
    uint32_t bit = 1u << s->lane_idx;
    uint32_t moved = 0;
    if ((link->hold_lane_hello & bit) == 0) {
        moved += say_hello(p, s);
    }
    if ((link->hold_post & bit) == 0) {
        moved += pair_take_posts(p, s, units);
    }
    if ((link->hold_hand & bit) == 0 && !s->hold_hand) {
        moved += pair_hand(p, s, units);
    }
    if ((link->hold_deliver & bit) == 0 && !s->hold_deliver) {
        moved += pair_land(p, s, units);
    }
    if ((link->hold_reset & bit) == 0) {
        moved += notice_end(p, s);
    }
    if (!s->is_open[PAIR_SINK] && !s->is_open[PAIR_SOURCE]) {
        pair_stream_free(s);
    }
    return moved;
}

/* ---- raw sides ------------------------------------------------------------------------------------- */

int pair_raw_data(struct pair *p, struct pair_stream *s, uint32_t handle, uint32_t position,
                  uint32_t pages)
{
    uint64_t tag = PAIR_HOSTILE;
    struct pair_post q = {.post = {.handle = handle,
                                   .position = position,
                                   .page_count = pages,
                                   .payload_bytes = PAIR_BYTES(pages)},
                          .halves = 2 * pages,
                          .tags = &tag};
    int err = 0;
    uint32_t sink = s->daemon[PAIR_SINK];
    while (err == 0 && q.delivered < q.halves && s->is_open[PAIR_SINK]) {
        struct pair_post one = q;
        uint64_t tags[2 * 64];
        for (uint32_t i = 0; i < q.halves; i++) {
            tags[i] = tag;
        }
        one.tags = tags;
        err = land_data(p, s, &one);
        q.delivered++;
    }
    if (err != 0) {
        kvf_core_lane_lost(p->daemons[sink].core, pair_clock(p, sink), s->lane[PAIR_SINK],
                           s->epoch, EPROTO);
    }
    pair_drain(p, sink);
    return err;
}

int pair_raw_marker(struct pair *p, struct pair_stream *s, uint32_t handle, uint8_t kind)
{
    uint32_t sink = s->daemon[PAIR_SINK];
    int err = kvf_core_marker(p->daemons[sink].core, pair_clock(p, sink), s->lane[PAIR_SINK],
                              s->epoch, handle, kind);
    if (err != 0) {
        kvf_core_lane_lost(p->daemons[sink].core, pair_clock(p, sink), s->lane[PAIR_SINK],
                           s->epoch, EPROTO);
    }
    pair_drain(p, sink);
    return err;
}

struct pair_stream *pair_raw_lane(struct pair *p, struct pair_conn *c, uint64_t session,
                                  uint32_t lane_idx, uint32_t epoch, int *ret_rc)
{
    uint32_t source = c->daemon[PAIR_SOURCE];
    struct kvf_wire_lane_hello hello = {
        .session = session, .lane_idx = lane_idx, .epoch = epoch};
    uint32_t lane = KVF_NONE;
    *ret_rc =
        kvf_core_lane_accept(p->daemons[source].core, pair_clock(p, source), &hello, &lane);
    struct pair_stream *s = NULL;
    if (*ret_rc == 0) {
        s = new_stream(p, &(struct pair_stream){.is_used = true,
                                                .daemon = {c->daemon[PAIR_SINK], source},
                                                .lane = {KVF_NONE, lane},
                                                .epoch = epoch,
                                                .lane_idx = lane_idx,
                                                .session = session,
                                                .is_open = {true, true},
                                                .is_accepted = true});
    }
    pair_drain(p, source);
    return s;
}

#include "tests/proxy/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define READS_PER_TURN 8u
#define WRITES_PER_TURN 256u
#define FLIPPED_BIT 0x40u

/* ---- rules ----------------------------------------------------------------------------------------- */

static bool is_meant(const struct kvf_rule *rule, const struct kvf_seen *seen,
                     uint8_t direction)
{
    if ((rule->directions & 1u << direction) == 0) {
        return false;
    }
    if (rule->kinds == KVF_KINDS_ALL) {
        return true;
    }
    return (rule->kinds & seen->kind) != 0 &&
           (seen->kind != KVF_KIND_LANE || rule->lane == KVF_LANE_ANY ||
            rule->lane == seen->lane);
}

/* From when on the rule holds for this connection. */
static uint64_t begins_ns(const struct kvf_ruling *ruling, const struct kvf_seen *seen,
                          uint32_t i)
{
    const struct kvf_rule *rule = &ruling->rules[i];
    if (!rule->is_at_bytes) {
        return ruling->since_ns[i] + rule->at;
    }
    return (seen->reached & UINT32_C(1) << i) != 0 ? seen->reached_ns[i] : KVF_NEVER;
}

static bool holds(const struct kvf_ruling *ruling, const struct kvf_seen *seen, uint32_t i,
                  uint64_t now_ns)
{
    uint64_t from_ns = begins_ns(ruling, seen, i);
    uint64_t for_ns = ruling->rules[i].for_ns;
    return from_ns != KVF_NEVER && now_ns >= from_ns &&
           (for_ns == 0 || now_ns - from_ns < for_ns);
}

static void lower(uint64_t *wake_ns, uint64_t at_ns)
{
    if (at_ns < *wake_ns) {
        *wake_ns = at_ns;
    }
}

void kvf_ruling_wake(const struct kvf_ruling *ruling, const struct kvf_seen *seen,
                     uint64_t now_ns, uint64_t *wake_ns)
{
    for (uint32_t i = 0; i < ruling->count; i++) {
        uint64_t from_ns = begins_ns(ruling, seen, i);
        if (from_ns == KVF_NEVER) {
            continue;
        }
        if (now_ns < from_ns) {
            lower(wake_ns, from_ns);
        } else if (ruling->rules[i].for_ns != 0 && now_ns - from_ns < ruling->rules[i].for_ns) {
            lower(wake_ns, from_ns + ruling->rules[i].for_ns);
        }
    }
}

bool kvf_ruling_refuses(const struct kvf_ruling *ruling, uint64_t now_ns, uint64_t *wake_ns)
{
    static const struct kvf_seen nothing_seen;
    bool refuses = false;
    kvf_ruling_wake(ruling, &nothing_seen, now_ns, wake_ns);
    for (uint32_t i = 0; i < ruling->count; i++) {
        refuses = refuses || (ruling->rules[i].action == KVF_RULE_DROP &&
                              ruling->rules[i].kinds == KVF_KINDS_ALL &&
                              holds(ruling, &nothing_seen, i, now_ns));
    }
    return refuses;
}

static bool is_stalled(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                       const struct kvf_seen *seen, uint64_t now_ns)
{
    for (uint32_t i = 0; i < ruling->count; i++) {
        const struct kvf_rule *rule = &ruling->rules[i];
        if ((rule->action == KVF_RULE_STALL || rule->action == KVF_RULE_CUT) &&
            is_meant(rule, seen, stream->direction) && holds(ruling, seen, i, now_ns)) {
            return true;
        }
    }
    return false;
}

static uint64_t delay_of(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                         const struct kvf_seen *seen, uint64_t now_ns)
{
    uint64_t delay_ns = 0;
    for (uint32_t i = 0; i < ruling->count; i++) {
        const struct kvf_rule *rule = &ruling->rules[i];
        if (rule->action == KVF_RULE_DELAY && is_meant(rule, seen, stream->direction) &&
            holds(ruling, seen, i, now_ns)) {
            delay_ns += rule->value;
        }
    }
    return delay_ns;
}

/* ---- the queue ------------------------------------------------------------------------------------- */

int kvf_stream_create(struct kvf_stream *stream, uint8_t direction, uint64_t seed)
{
    *stream = (struct kvf_stream){.direction = direction, .random = seed};
    stream->bytes = malloc(KVF_STREAM_BYTES);
    stream->marks = calloc(KVF_STREAM_MARKS, sizeof *stream->marks);
    if (stream->bytes == NULL || stream->marks == NULL) {
        kvf_stream_destroy(stream);
        return -ENOMEM;
    }
    return 0;
}

void kvf_stream_destroy(struct kvf_stream *stream)
{
    free(stream->bytes);
    free(stream->marks);
    stream->bytes = NULL;
    stream->marks = NULL;
}

bool kvf_stream_has_room(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                         const struct kvf_seen *seen, uint64_t now_ns)
{
    uint64_t held = stream->read_count - stream->sent_count;
    uint64_t limit =
        delay_of(stream, ruling, seen, now_ns) != 0 ? KVF_STREAM_BYTES : KVF_STREAM_AHEAD_BYTES;
    return stream->is_deaf ||
           (held < limit && stream->mark_tail - stream->mark_head < KVF_STREAM_MARKS);
}

/* As much as fits in one piece of the ring. */
static uint32_t room_at(uint64_t count)
{
    return KVF_STREAM_BYTES - (uint32_t)(count % KVF_STREAM_BYTES);
}

void kvf_stream_end(struct kvf_stream *stream, bool is_reset, uint64_t due_ns)
{
    stream->is_ended = true;
    stream->is_reset = is_reset;
    stream->end_due_ns = due_ns;
}

void kvf_stream_read(struct kvf_stream *stream, int fd, const struct kvf_ruling *ruling,
                     const struct kvf_seen *seen, uint64_t now_ns)
{
    uint64_t due_ns = now_ns + delay_of(stream, ruling, seen, now_ns);
    for (uint32_t i = 0; i < READS_PER_TURN && !stream->is_ended; i++) {
        if (!kvf_stream_has_room(stream, ruling, seen, now_ns)) {
            return;
        }
        uint64_t left = KVF_STREAM_BYTES - (stream->read_count - stream->sent_count);
        uint64_t fit = room_at(stream->read_count);
        fit = fit < left ? fit : left;
        fit = fit < KVF_STREAM_AHEAD_BYTES / 4u ? fit : KVF_STREAM_AHEAD_BYTES / 4u;
        unsigned char *to = stream->bytes + stream->read_count % KVF_STREAM_BYTES;
        ssize_t n = recv(fd, to, fit, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            kvf_stream_end(stream, n < 0, due_ns);
            return;
        }
        stream->read_count += (uint64_t)n;
        struct kvf_mark *mark = &stream->marks[stream->mark_tail % KVF_STREAM_MARKS];
        *mark = (struct kvf_mark){.end = stream->read_count, .due_ns = due_ns};
        stream->mark_tail++;
        if (stream->is_deaf) {
            stream->refused_count += stream->read_count - stream->sent_count;
            stream->sent_count = stream->read_count;
            stream->mark_head = stream->mark_tail;
        }
    }
}

uint32_t kvf_stream_peek(const struct kvf_stream *stream, unsigned char *out, uint32_t max)
{
    uint64_t held = stream->read_count - stream->sent_count;
    uint32_t n = held < max ? (uint32_t)held : max;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = stream->bytes[(stream->sent_count + i) % KVF_STREAM_BYTES];
    }
    return n;
}

/* ---- handing on ------------------------------------------------------------------------------------- */

/* Bytes whose moment has come. */
static uint64_t count_due(struct kvf_stream *stream, uint64_t now_ns, uint64_t *wake_ns)
{
    while (stream->mark_head != stream->mark_tail &&
           stream->marks[stream->mark_head % KVF_STREAM_MARKS].end <= stream->sent_count) {
        stream->mark_head++;
    }
    uint64_t end = stream->sent_count;
    for (uint32_t i = stream->mark_head; i != stream->mark_tail; i++) {
        const struct kvf_mark *mark = &stream->marks[i % KVF_STREAM_MARKS];
        if (mark->due_ns > now_ns) {
            lower(wake_ns, mark->due_ns);
            break;
        }
        end = mark->end;
    }
    return end - stream->sent_count;
}

/* Notes which places this stream stands at, and shortens the next write so that it ends at the next one. */
static void look_for_places(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                            struct kvf_seen *seen, uint64_t now_ns, uint64_t *limit)
{
    for (uint32_t i = 0; i < ruling->count; i++) {
        const struct kvf_rule *rule = &ruling->rules[i];
        uint32_t bit = UINT32_C(1) << i;
        if (!rule->is_at_bytes || (seen->reached & bit) != 0 ||
            !is_meant(rule, seen, stream->direction)) {
            continue;
        }
        if (stream->sent_count >= rule->at) {
            seen->reached |= bit;
            seen->reached_ns[i] = now_ns;
        } else if (*limit > rule->at - stream->sent_count) {
            *limit = rule->at - stream->sent_count;
        }
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* What strikes once at a moment strikes the connections that are open then; with a length of time, or at a
 * place, each of them. */
static bool has_to_strike(const struct kvf_ruling *ruling, const struct kvf_seen *seen,
                          uint32_t i)
{
    const struct kvf_rule *rule = &ruling->rules[i];
    bool is_moment = !rule->is_at_bytes && rule->for_ns == 0 && rule->action != KVF_RULE_DROP;
    return (seen->struck & UINT32_C(1) << i) == 0 &&
           (!is_moment || seen->born_ns <= ruling->since_ns[i] + rule->at);
}

/* What the rules that hold make of the next write: a strike, or how long it may be. */
static enum kvf_strike apply(struct kvf_stream *stream, const struct kvf_ruling *ruling,
                             struct kvf_seen *seen, uint64_t now_ns, uint64_t *limit,
                             uint64_t *ret_rate)
{
    for (uint32_t i = 0; i < ruling->count; i++) {
        const struct kvf_rule *rule = &ruling->rules[i];
        uint32_t bit = UINT32_C(1) << i;
        if (!is_meant(rule, seen, stream->direction) || !holds(ruling, seen, i, now_ns)) {
            continue;
        }
        switch (rule->action) {
        case KVF_RULE_STALL:
        case KVF_RULE_CUT:
            *limit = 0;
            break;
        case KVF_RULE_SPLIT:
            if (stream->piece == 0) {
                stream->piece = 1u + next_random(&stream->random) % rule->value;
            }
            *limit = stream->piece < *limit ? stream->piece : *limit;
            break;
        case KVF_RULE_RATE:
            *ret_rate = *ret_rate == 0 || rule->value < *ret_rate ? rule->value : *ret_rate;
            break;
        case KVF_RULE_CORRUPT:
            if (*limit > 0 && has_to_strike(ruling, seen, i)) {
                seen->struck |= bit;
                stream->bytes[stream->sent_count % KVF_STREAM_BYTES] ^= FLIPPED_BIT;
            }
            break;
        case KVF_RULE_RESET:
        case KVF_RULE_DROP:
            if (has_to_strike(ruling, seen, i)) {
                seen->struck |= bit;
                return rule->action == KVF_RULE_RESET ? KVF_STRIKE_RESET : KVF_STRIKE_DROP;
            }
            break;
        case KVF_RULE_DELAY:
        case KVF_RULE_ACTIONS:
            break;
        }
    }
    return KVF_STRIKE_NOTHING;
}

void kvf_stream_refuse(struct kvf_stream *stream)
{
    stream->is_deaf = true;
    stream->refused_count += stream->read_count - stream->sent_count;
    stream->sent_count = stream->read_count;
    stream->mark_head = stream->mark_tail;
}

/* A millisecond's worth at a time, so that a rate is smooth and one write does not overdraw it by much. */
static bool is_paced(const struct kvf_stream *stream, uint64_t rate, uint64_t now_ns,
                     uint64_t *limit, uint64_t *wake_ns)
{
    if (rate == 0) {
        return false;
    }
    if (now_ns < stream->paced_ns) {
        lower(wake_ns, stream->paced_ns);
        return true;
    }
    uint64_t piece = rate / 1000u > 512 ? rate / 1000u : 512;
    *limit = *limit < piece ? *limit : piece;
    return false;
}

enum kvf_strike kvf_stream_write(struct kvf_stream *stream, int fd,
                                 const struct kvf_ruling *ruling, struct kvf_seen *seen,
                                 uint64_t now_ns, uint64_t *wake_ns)
{
    for (uint32_t i = 0; i < WRITES_PER_TURN; i++) {
        uint64_t rate = 0;
        uint64_t limit = count_due(stream, now_ns, wake_ns);
        look_for_places(stream, ruling, seen, now_ns, &limit);
        enum kvf_strike strike = apply(stream, ruling, seen, now_ns, &limit, &rate);
        if (strike != KVF_STRIKE_NOTHING) {
            return strike;
        }
        uint64_t piece = room_at(stream->sent_count);
        limit = limit < piece ? limit : piece;
        if (limit == 0 || stream->is_blocked ||
            is_paced(stream, rate, now_ns, &limit, wake_ns)) {
            return KVF_STRIKE_NOTHING;
        }
        ssize_t n = send(fd, stream->bytes + stream->sent_count % KVF_STREAM_BYTES, limit,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            stream->is_blocked = true;
            return KVF_STRIKE_NOTHING;
        }
        if (n < 0) {
            kvf_stream_refuse(stream);
            return KVF_STRIKE_NOTHING;
        }
        stream->sent_count += (uint64_t)n;
        stream->piece = 0;
        if (rate != 0) {
            stream->paced_ns = now_ns + (uint64_t)n * 1000000000u / rate;
        }
    }
    *wake_ns = now_ns; /* more of it the next turn: other streams want theirs */
    return KVF_STRIKE_NOTHING;
}

bool kvf_stream_may_tell_end(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                             const struct kvf_seen *seen, uint64_t now_ns, uint64_t *wake_ns)
{
    if (!stream->is_ended || stream->is_end_told || stream->sent_count != stream->read_count ||
        is_stalled(stream, ruling, seen, now_ns)) {
        return false;
    }
    if (now_ns < stream->end_due_ns) {
        lower(wake_ns, stream->end_due_ns);
        return false;
    }
    return true;
}

/* One direction of one connection: a bounded queue of bytes with the moment from which each may go on, and
 * what the rules make of it. */
#ifndef KVF_TESTS_PROXY_STREAM_H
#define KVF_TESTS_PROXY_STREAM_H

#include "tests/proxy/rule.h"

/* What a delay of some milliseconds holds at a lane's rate; without a delay a stream reads less ahead. */
#define KVF_STREAM_BYTES (UINT32_C(1) << 20)
#define KVF_STREAM_AHEAD_BYTES (UINT32_C(256) << 10)
#define KVF_STREAM_MARKS 4096u
#define KVF_NEVER UINT64_MAX

/* Rules in force, and since when each was given. */
struct kvf_ruling {
    struct kvf_rule rules[KVF_RULES_MAX];
    uint64_t since_ns[KVF_RULES_MAX];
    uint32_t count;
};

/* What one connection has seen of the rules: both of its streams share it. */
struct kvf_seen {
    uint8_t kind; /* enum kvf_rule_kind; 0: not known yet */
    uint8_t lane;
    uint64_t born_ns;
    uint32_t reached; /* bit per rule: its place in the stream was passed */
    uint32_t struck;  /* bit per rule: it had its one effect */
    uint64_t reached_ns[KVF_RULES_MAX];
};

struct kvf_mark {
    uint64_t end;    /* bytes before this count in the stream ... */
    uint64_t due_ns; /* ... may go on from here */
};

struct kvf_stream {
    unsigned char *bytes;   /* owned, KVF_STREAM_BYTES of them */
    struct kvf_mark *marks; /* owned, KVF_STREAM_MARKS of them */
    uint64_t read_count;    /* these counts run free */
    uint64_t sent_count;
    uint64_t refused_count;
    uint32_t mark_head;
    uint32_t mark_tail;
    uint64_t paced_ns; /* a rate lets nothing go before */
    uint64_t random;   /* state of the seeded sizes */
    uint64_t piece;    /* drawn for the next write; 0: none */
    uint8_t direction;
    uint64_t end_due_ns; /* an end travels as long as bytes do */
    bool is_ended;       /* its writer has closed, or was reset */
    bool is_reset;
    bool is_end_told; /* and the reader knows */
    bool is_deaf;     /* its reader is gone: what comes is counted and thrown away */
    bool is_blocked;  /* the reader's socket takes no more */
};

/* What is to be done with the connection after a look at its rules. */
enum kvf_strike { KVF_STRIKE_NOTHING = 0, KVF_STRIKE_RESET, KVF_STRIKE_DROP };

int kvf_stream_create(struct kvf_stream *stream, uint8_t direction, uint64_t seed);
void kvf_stream_destroy(struct kvf_stream *stream);
bool kvf_stream_has_room(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                         const struct kvf_seen *seen, uint64_t now_ns);
/* Reads what is there, within the room and a budget. */
void kvf_stream_read(struct kvf_stream *stream, int fd, const struct kvf_ruling *ruling,
                     const struct kvf_seen *seen, uint64_t now_ns);
/* Its writer has closed, or was reset; its reader may know from then on. */
void kvf_stream_end(struct kvf_stream *stream, bool is_reset, uint64_t due_ns);
/* Hands on what may go. Lowers *wake_ns to the moment from which more may. */
enum kvf_strike kvf_stream_write(struct kvf_stream *stream, int fd,
                                 const struct kvf_ruling *ruling, struct kvf_seen *seen,
                                 uint64_t now_ns, uint64_t *wake_ns);
/* The reader is gone: what waits for it, and what is still to come, is refused. */
void kvf_stream_refuse(struct kvf_stream *stream);
/* True if its reader may hear of its end: everything before it went on and nothing holds it back. */
bool kvf_stream_may_tell_end(const struct kvf_stream *stream, const struct kvf_ruling *ruling,
                             const struct kvf_seen *seen, uint64_t now_ns, uint64_t *wake_ns);
/* The first bytes, to tell what the connection is; how many there are of at most `max`. */
uint32_t kvf_stream_peek(const struct kvf_stream *stream, unsigned char *out, uint32_t max);

/* Whether connecting is refused now; lowers *wake_ns to when that changes. */
bool kvf_ruling_refuses(const struct kvf_ruling *ruling, uint64_t now_ns, uint64_t *wake_ns);
/* The moments at which a rule begins or ends to hold. */
void kvf_ruling_wake(const struct kvf_ruling *ruling, const struct kvf_seen *seen,
                     uint64_t now_ns, uint64_t *wake_ns);

#endif

/* Lines are put one below the other and cut at the right edge. The numbers of one daemon have a fixed number of
 * lines; peers, lanes and quarantined rooms share what is left, the quarantine first. */
#include "client/stat/screen.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "client/stat/format.h"
#include "client/stat/health.h"
#include "client/stat/rows.h"

#define TEXT_BYTES 24u

static void put(struct kvf_screen *s, enum kvf_screen_look look, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void put(struct kvf_screen *s, enum kvf_screen_look look, const char *format, ...)
{
    va_list args;
    unsigned columns =
        s->columns < KVF_SCREEN_COLUMNS_MAX ? s->columns : KVF_SCREEN_COLUMNS_MAX;

    if (s->used >= s->rows || s->used >= KVF_SCREEN_ROWS_MAX) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(s->lines[s->used], columns + 1u, format, args);
    va_end(args);
    s->looks[s->used++] = look;
}

/* A sentence over as many lines as it takes, broken between words. */
static void put_sentence(struct kvf_screen *s, enum kvf_screen_look look, const char *text)
{
    size_t columns = s->columns < KVF_SCREEN_COLUMNS_MAX ? s->columns : KVF_SCREEN_COLUMNS_MAX;

    while (*text != '\0' && columns > 0 && s->used < s->rows) {
        size_t bytes = strlen(text);
        if (bytes > columns) {
            bytes = columns;
            while (bytes > 0 && text[bytes] != ' ') {
                bytes--;
            }
            bytes = bytes > 0 ? bytes : columns; /* one word of more than a line */
        }
        put(s, look, "%.*s", (int)bytes, text);
        text += bytes;
        text += *text == ' ' ? 1 : 0;
    }
}

static unsigned left(const struct kvf_screen *s)
{
    return s->rows > s->used ? s->rows - s->used : 0;
}

/* ---- texts ------------------------------------------------------------------------------------------- */

static const char *count_text(char *text, double value)
{
    if (value < 1000.0) {
        (void)snprintf(text, TEXT_BYTES, value < 9.95 && value > 0.0 ? "%.1f" : "%.0f", value);
    } else if (value < 1e6) {
        (void)snprintf(text, TEXT_BYTES, "%.1f k", value / 1e3);
    } else {
        (void)snprintf(text, TEXT_BYTES, "%.1f M", value / 1e6);
    }
    return text;
}

static const char *bytes_text(char *text, double per_s)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;

    while (per_s >= 999.5 && unit < 4) {
        per_s /= 1000.0;
        unit++;
    }
    (void)snprintf(text, TEXT_BYTES, per_s < 9.95 && unit > 0 ? "%.1f %s/s" : "%.0f %s/s",
                   per_s, units[unit]);
    return text;
}

/* "12.0/s"; "-" where two looks cannot be compared. */
static const char *rate(char *text, const struct kvf_watched *w, const char *name)
{
    double per_s = 0.0;

    if (!kvf_stat_rate(w->before, w->now, name, &per_s)) {
        (void)snprintf(text, TEXT_BYTES, "-");
        return text;
    }
    (void)count_text(text, per_s);
    (void)strncat(text, "/s", TEXT_BYTES - strlen(text) - 1u);
    return text;
}

static const char *byte_rate(char *text, const struct kvf_watched *w, const char *name)
{
    double per_s = 0.0;

    if (!kvf_stat_rate(w->before, w->now, name, &per_s)) {
        (void)snprintf(text, TEXT_BYTES, "-");
        return text;
    }
    return bytes_text(text, per_s);
}

/* Several numbers in one line need as many texts. */
struct texts {
    char text[8][KVF_FORMAT_BYTES];
};

static const char *now_text(struct texts *t, unsigned i, const struct kvf_watched *w,
                            const char *name)
{
    return kvf_format_count(t->text[i], kvf_stat_value(w->now, name));
}

static const char *us_text(struct texts *t, unsigned i, uint64_t us)
{
    return us == 0 ? "<1 us" : kvf_format_us(t->text[i], us);
}

/* ---- one daemon in one line ------------------------------------------------------------------------- */

static const char *state_of(const struct kvf_watched *w)
{
    return w->now != NULL ? kvf_stat_health_name(w->now->health) : "not there";
}

static bool is_alarming(const struct kvf_watched *w)
{
    char sentence[KVF_STAT_SENTENCE_BYTES];
    enum kvf_stat_verdict verdict;

    if (w->now == NULL || w->now->health == KVF_STAT_STOPPED) {
        return w->now == NULL;
    }
    verdict = kvf_stat_health_of(w->now, false, sentence);
    return verdict != KVF_STAT_HEALTHY && verdict != KVF_STAT_NOT_READY;
}

/* "-": no room has failed yet. */
static const char *drain_text(struct texts *t, unsigned i, const struct kvf_stat_daemon *daemon)
{
    const struct kvf_histogram_shm *h = kvf_stat_histogram(daemon, "abort_to_drained_us");
    return h != NULL && atomic_load_explicit(&h->count, memory_order_relaxed) > 0
               ? us_text(t, i, kvf_histogram_quantile(h, 990))
               : "-";
}

static uint64_t histogram_quantile(const struct kvf_stat_daemon *daemon, const char *name,
                                   uint32_t per_mille)
{
    const struct kvf_histogram_shm *h = kvf_stat_histogram(daemon, name);
    return h != NULL ? kvf_histogram_quantile(h, per_mille) : 0;
}

static void put_daemon(struct kvf_screen *s, const struct kvf_watched *w, bool is_selected)
{
    struct texts t;
    char in[TEXT_BYTES];
    char out[TEXT_BYTES];
    char said[KVF_STAT_WHY_BYTES];
    enum kvf_screen_look look = is_alarming(w) ? KVF_LOOK_WARN : KVF_LOOK_PLAIN;

    if (w->now == NULL) {
        (void)kvf_watched_say(w, 0, said, sizeof said);
        put(s, look, "%c %-12.12s %s", is_selected ? '>' : ' ', w->name, said);
        return;
    }
    put(s, look, "%c %-12.12s %-9s %7s %7s %7s %7s %11s %11s %9s %9s", is_selected ? '>' : ' ',
        w->name, state_of(w), now_text(&t, 0, w, "rooms_open"),
        now_text(&t, 1, w, "rooms_closing"), now_text(&t, 2, w, "rooms_fencing"),
        now_text(&t, 3, w, "rooms_quarantined"), byte_rate(in, w, "bytes_placed_total"),
        byte_rate(out, w, "bytes_posted_total"), drain_text(&t, 4, w->now),
        now_text(&t, 5, w, "pages_held"));
}

/* The selected one is always among those that are shown. */
static void put_daemons(struct kvf_screen *s, const struct kvf_watch *watch, uint32_t selected)
{
    uint32_t shown = s->rows / 4u > 2u ? s->rows / 4u : 2u;
    uint32_t first = 0;

    if (watch->count < 2u) {
        return;
    }
    shown = shown < watch->count ? shown : watch->count;
    first = selected >= shown ? selected - shown + 1u : 0;
    put(s, KVF_LOOK_HEAD, "  %-12s %-9s %7s %7s %7s %7s %11s %11s %9s %9s", "DAEMON", "STATE",
        "OPEN", "CLOSING", "FENCING", "QUARANT", "IN", "OUT", "DRAIN P99", "HELD");
    for (uint32_t i = first; i < first + shown; i++) {
        put_daemon(s, &watch->daemons[i], i == selected);
    }
    if (shown < watch->count) {
        put(s, KVF_LOOK_DIM, "  %" PRIu32 " of %" PRIu32 " daemons; n and p go through them",
            shown, watch->count);
    }
}

/* ---- one daemon's numbers --------------------------------------------------------------------------- */

static void put_title(struct kvf_screen *s, const struct kvf_watched *w, uint64_t now_ns)
{
    struct texts t;
    char said[KVF_STAT_WHY_BYTES];
    bool is_said = kvf_watched_say(w, now_ns, said, sizeof said);

    if (w->now == NULL) {
        char sentence[KVF_STAT_WHY_BYTES + KVF_STAT_NAME_BYTES + 2u];
        (void)snprintf(sentence, sizeof sentence, "%s: %s", w->name, said);
        put_sentence(s, KVF_LOOK_WARN, sentence);
        return;
    }
    put(s, KVF_LOOK_HEAD,
        "%s %s   up %s   version %s   worker pid %" PRIu32 ", start %s   clients %s", w->name,
        kvf_stat_health_name(w->now->health), kvf_format_age(t.text[0], w->now->up_ns),
        w->now->version, w->now->worker_pid, now_text(&t, 1, w, "worker_starts"),
        now_text(&t, 2, w, "clients"));
    if (is_said) {
        put(s, KVF_LOOK_WARN, "! %s", said);
    }
}

static void put_rooms(struct kvf_screen *s, const struct kvf_watched *w)
{
    struct texts t;
    char r[5][TEXT_BYTES];
    bool is_quarantined = kvf_stat_value(w->now, "rooms_quarantined") != 0;

    put(s, is_quarantined ? KVF_LOOK_WARN : KVF_LOOK_PLAIN,
        "rooms       open %-9s closing %-7s fencing %-7s quarantined %-7s pages held %s",
        now_text(&t, 0, w, "rooms_open"), now_text(&t, 1, w, "rooms_closing"),
        now_text(&t, 2, w, "rooms_fencing"), now_text(&t, 3, w, "rooms_quarantined"),
        now_text(&t, 4, w, "pages_held"));
    put(s, KVF_LOOK_PLAIN,
        "ended       opened %-9s success %-9s failed %-9s aborted %-9s by peers %s",
        rate(r[0], w, "rooms_opened_total"), rate(r[1], w, "rooms_succeeded_total"),
        rate(r[2], w, "rooms_failed_total"), rate(r[3], w, "aborts_total"),
        rate(r[4], w, "peer_aborts_total"));
}

static void put_moved(struct kvf_screen *s, const struct kvf_watched *w)
{
    struct texts t;
    char r[4][TEXT_BYTES];

    put(s, KVF_LOOK_PLAIN,
        "moved       in %-12s out %-12s local %-12s refused %-12s in flight %s",
        byte_rate(r[0], w, "bytes_placed_total"), byte_rate(r[1], w, "bytes_posted_total"),
        byte_rate(r[2], w, "local_bytes_total"), byte_rate(r[3], w, "bytes_refused_total"),
        kvf_format_bytes(t.text[0], kvf_stat_value(w->now, "posted_bytes")));
    put(s, KVF_LOOK_PLAIN,
        "grants      out %-7s in %-7s parked %-7s sent %-9s declined %-9s anew %s",
        now_text(&t, 0, w, "grants_out"), now_text(&t, 1, w, "grants_in"),
        now_text(&t, 2, w, "parked"), rate(r[0], w, "grants_sent_total"),
        rate(r[1], w, "grants_declined_total"), rate(r[2], w, "regrants_total"));
}

/* Measured beside promised, over the whole life and since the last look. */
static void put_drained(struct kvf_screen *s, const struct kvf_watched *w)
{
    struct texts t;
    struct kvf_histogram_shm recent;
    const struct kvf_histogram_shm *h = kvf_stat_histogram(w->now, "abort_to_drained_us");
    uint64_t usual_us = kvf_stat_value(w->now, "bound_usual_us");
    uint64_t worst_us = kvf_stat_value(w->now, "bound_worst_us");
    uint64_t count = h != NULL ? atomic_load_explicit(&h->count, memory_order_relaxed) : 0;
    uint64_t max_us = h != NULL ? atomic_load_explicit(&h->max, memory_order_relaxed) : 0;

    if (count == 0) {
        put(s, KVF_LOOK_PLAIN, "drained in  no room has failed yet");
    } else {
        char last[96] = "";
        if (kvf_stat_between(w->before, w->now, "abort_to_drained_us", &recent) &&
            atomic_load_explicit(&recent.count, memory_order_relaxed) > 0) {
            (void)snprintf(
                last, sizeof last, "   since the last look: p99 %s of %s",
                us_text(&t, 4, kvf_histogram_quantile(&recent, 990)),
                kvf_format_count(t.text[5],
                                 atomic_load_explicit(&recent.count, memory_order_relaxed)));
        }
        put(s, KVF_LOOK_PLAIN, "drained in  p50 %s   p99 %s   max %s   of %s%s",
            us_text(&t, 0, kvf_histogram_quantile(h, 500)),
            us_text(&t, 1, kvf_histogram_quantile(h, 990)), us_text(&t, 2, max_us),
            kvf_format_count(t.text[3], count), last);
    }
    put(s, max_us > worst_us ? KVF_LOOK_WARN : KVF_LOOK_PLAIN,
        "bound       usual %s   worst %s   %s", us_text(&t, 0, usual_us),
        us_text(&t, 1, worst_us),
        max_us > worst_us   ? "BROKEN: a room took longer than the worst bound"
        : max_us > usual_us ? "a room took longer than the usual bound, within the worst"
        : count > 0         ? "kept: every room within the usual bound"
                            : "");
}

static void put_loop(struct kvf_screen *s, const struct kvf_watched *w)
{
    struct texts t;
    char r[TEXT_BYTES];
    const struct kvf_histogram_shm *h = kvf_stat_histogram(w->now, "loop_us");
    uint64_t max_us = h != NULL ? atomic_load_explicit(&h->max, memory_order_relaxed) : 0;

    put(s, KVF_LOOK_PLAIN,
        "loop        p50 %s   p99 %s   max %s   turns %s   off the CPU at most %s",
        us_text(&t, 0, histogram_quantile(w->now, "loop_us", 500)),
        us_text(&t, 1, histogram_quantile(w->now, "loop_us", 990)), us_text(&t, 2, max_us),
        rate(r, w, "loop_count"), us_text(&t, 3, kvf_stat_value(w->now, "off_cpu_max_us")));
}

/* Proofs that room ends earned since the daemon's start, and what went wrong. */
static void put_proofs(struct kvf_screen *s, const struct kvf_watched *w)
{
    static const char *const proofs[][2] = {
        {"landed", "proof_landed_total"},        {"idle", "proof_source_idle_total"},
        {"drained", "proof_peer_drained_total"}, {"revoked", "proof_revoked_total"},
        {"fenced", "proof_fenced_total"},        {"never", "proof_never_posted_total"},
        {"worker", "proof_worker_gone_total"},   {"engine", "proof_engine_gone_total"},
        {"OPERATOR", "proof_operator_total"},
    };
    struct texts t;
    char text[KVF_SCREEN_COLUMNS_MAX] = "proofs     ";
    char r[3][TEXT_BYTES];

    for (size_t i = 0; i < sizeof proofs / sizeof proofs[0]; i++) {
        uint64_t value = kvf_stat_value(w->now, proofs[i][1]);
        size_t used = strlen(text);
        if (value != 0) {
            (void)snprintf(text + used, sizeof text - used, " %s %s", proofs[i][0],
                           kvf_format_count(t.text[0], value));
        }
    }
    put(s, KVF_LOOK_PLAIN, "%s", text);
    put(s, KVF_LOOK_PLAIN,
        "trouble     fences %s (%s)   peers lost %s (%s)   protocol errors %s   stale %s   "
        "refused %s",
        now_text(&t, 1, w, "fences_total"), rate(r[0], w, "fences_total"),
        now_text(&t, 2, w, "peers_lost_total"), rate(r[1], w, "peers_lost_total"),
        now_text(&t, 3, w, "protocol_errors_total"), rate(r[2], w, "stale_messages_total"),
        now_text(&t, 4, w, "rooms_refused_total"));
}

static void put_group(struct kvf_screen *s, const struct kvf_watched *w)
{
    struct texts t;

    if (kvf_stat_value(w->now, "group_rooms_waiting") != 0) {
        put(s, KVF_LOOK_WARN,
            "group       %s rooms wait, the oldest for rank %" PRIu64 " of group %" PRIx64,
            now_text(&t, 0, w, "group_rooms_waiting"),
            kvf_stat_value(w->now, "group_waits_rank"),
            kvf_stat_value(w->now, "group_waits_id"));
    }
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static void put_more(struct kvf_screen *s, uint64_t count, uint64_t shown, const char *what)
{
    if (shown < count) {
        put(s, KVF_LOOK_DIM, "  and %" PRIu64 " more %s", count - shown, what);
    }
}

static void put_quarantine(struct kvf_screen *s, const struct kvf_stat_daemon *d,
                           uint64_t shown)
{
    static const char *const sides[] = {"source", "sink", "unknown"};
    char reason[KVF_ROW_REASON_BYTES];
    struct texts t;

    put(s, KVF_LOOK_HEAD, "%-10s %6s %6s %11s %9s %11s  %s", "QUARANTINE", "CLIENT", "SLOT",
        "GENERATION", "PAGES", "FOR", "WHY");
    for (uint64_t i = 0; i < shown; i++) {
        const struct kvf_stats_room_shm *r = &d->rows->rooms[i];
        uint64_t age_ns = r->closed_ns <= d->read_ns ? d->read_ns - r->closed_ns : 0;
        put(s, KVF_LOOK_WARN, "%-10s %6" PRIu32 " %6" PRIu32 " %11" PRIu64 " %9s %11s  %s%s",
            sides[r->side < 3u ? r->side : 2u], r->client, r->slot, r->generation,
            kvf_format_count(t.text[0], r->pages), kvf_format_age(t.text[1], age_ns),
            kvf_row_reason(r->reason, reason), r->is_engine_gone != 0 ? ", engine dead" : "");
    }
    put_more(s, d->rows->room_count, shown, "rooms in quarantine");
}

static void put_peers(struct kvf_screen *s, const struct kvf_stat_daemon *d, uint64_t shown)
{
    struct texts t;
    char peer[KVF_ROW_PEER_BYTES];
    char name[sizeof d->rows->peers[0].name + 1u];

    put(s, KVF_LOOK_HEAD, "%-5s %-24s %-14s %-10s %7s %8s %6s %6s  %s", "PEERS",
        "ADDRESS OR ID", "NAME", "STATE", "GRANTS", "WAITING", "LANES", "DIALS", "HEARD");
    for (uint64_t i = 0; i < shown; i++) {
        const struct kvf_stats_peer_shm *p = &d->rows->peers[i];
        bool is_heard = p->heard_ns != 0 && p->heard_ns <= d->read_ns;
        kvf_stat_printable(p->name, sizeof p->name, name);
        put(s, kvf_row_is_peer_up(p) ? KVF_LOOK_PLAIN : KVF_LOOK_WARN,
            "%-5s %-24.24s %-14.14s %-10s %7" PRIu32 " %8" PRIu32 " %6" PRIu32 " %6" PRIu32
            "  %s%s",
            kvf_row_direction(p), kvf_row_peer(p, peer), name[0] != '\0' ? name : "-",
            p->is_down != 0 ? "DOWN" : kvf_row_peer_state(p), p->grants, p->waiting,
            p->lanes_up, p->dials,
            is_heard ? kvf_format_age(t.text[0], d->read_ns - p->heard_ns) : "-",
            is_heard ? " ago" : "");
    }
    put_more(s, d->rows->peer_count, shown, "peers");
}

static void put_lane(struct kvf_screen *s, const struct kvf_watched *w, uint64_t idx)
{
    const struct kvf_stats_rows_shm *rows = w->now->rows;
    const struct kvf_stats_lane_shm *l = &rows->lanes[idx];
    static const struct kvf_stats_peer_shm nobody;
    const struct kvf_stats_peer_shm *p =
        l->peer < rows->peer_count ? &rows->peers[l->peer] : &nobody;
    struct texts t;
    char peer[KVF_ROW_PEER_BYTES];
    char moved[TEXT_BYTES] = "-";
    char credits[KVF_FORMAT_BYTES] = "-";
    double per_s = 0.0;

    if (kvf_row_is_moved_known(l, p) && kvf_stat_lane_rate(w->before, w->now, idx, &per_s)) {
        (void)bytes_text(moved, per_s);
    }
    if (p->is_sink == 0) { /* a source holds no receives */
        (void)snprintf(credits, sizeof credits, "%" PRIu32 "/%" PRIu32, l->credits_out,
                       l->credits_max);
    }
    put(s, l->state == KVF_STATS_LANE_UP ? KVF_LOOK_PLAIN : KVF_LOOK_WARN,
        "%-5s %-24.24s %4" PRIu32 "  %-8s %11s %10s %10s %10s %7" PRIu32, kvf_row_direction(p),
        kvf_row_peer(p, peer), l->lane, kvf_row_lane_state(l), moved,
        kvf_format_bytes(t.text[0], l->posted_bytes),
        kvf_format_bytes(t.text[1], l->window_bytes), credits,
        l->opened > 0 ? l->opened - 1u : 0);
}

static void put_lanes(struct kvf_screen *s, const struct kvf_watched *w, uint64_t shown)
{
    put(s, KVF_LOOK_HEAD, "%-5s %-24s %4s  %-8s %11s %10s %10s %10s %7s", "LANES", "PEER",
        "LANE", "STATE", "RATE", "IN FLIGHT", "WINDOW", "CREDITS", "RETRIES");
    for (uint64_t i = 0; i < shown; i++) {
        put_lane(s, w, i);
    }
    put_more(s, w->now->rows->lane_count, shown, "lanes");
}

/* What a section of `count` rows may have of `room` lines: its head, and a last line if not all fit. */
static uint64_t fit(uint64_t count, unsigned room)
{
    if (count == 0 || room < 2u) {
        return 0;
    }
    return count <= room - 1u ? count : room > 2u ? room - 2u : 0;
}

static void put_rows(struct kvf_screen *s, const struct kvf_watched *w)
{
    const struct kvf_stats_rows_shm *rows = w->now->rows;
    unsigned room = left(s) > 1u ? left(s) - 1u : 0; /* the last line is the foot's */

    if (rows == NULL) {
        put(s, KVF_LOOK_DIM, "peers, lanes: this daemon does not list them in its stats file");
        return;
    }
    /* Half of the room at most for quarantine, then a third of the rest for peers if lanes want it. */
    uint64_t rooms_shown = fit(rows->room_count, room / 2u);
    if (rows->room_count > 0) {
        put_quarantine(s, w->now, rooms_shown);
        room = left(s) > 1u ? left(s) - 1u : 0;
    }
    unsigned for_lanes = (unsigned)(rows->lane_count + 1u);
    unsigned for_peers = room > for_lanes + 2u && rows->lane_count > 0 ? room - for_lanes
                         : rows->lane_count > 0                        ? room / 3u
                                                                       : room;
    if (rows->peer_count > 0) {
        put_peers(s, w->now, fit(rows->peer_count, for_peers));
        room = left(s) > 1u ? left(s) - 1u : 0;
    }
    if (rows->lane_count > 0) {
        put_lanes(s, w, fit(rows->lane_count, room));
    }
}

void kvf_screen_draw(struct kvf_screen *screen, const struct kvf_watch *watch,
                     const struct kvf_screen_state *state)
{
    screen->used = 0;
    screen->rows = screen->rows < KVF_SCREEN_ROWS_MAX ? screen->rows : KVF_SCREEN_ROWS_MAX;
    put(screen, KVF_LOOK_DIM, "kvfence-stat %s   %s   every %.3g s%s", KVF_VERSION,
        state->clock, state->interval_s, state->is_paused ? "   PAUSED" : "");
    if (watch->problem[0] != '\0') {
        put_sentence(screen, KVF_LOOK_WARN, watch->problem);
    }
    put_daemons(screen, watch, state->selected);
    if (state->selected < watch->count) {
        const struct kvf_watched *w = &watch->daemons[state->selected];
        put_title(screen, w, watch->now_ns);
        if (w->now != NULL) {
            put_rooms(screen, w);
            put_group(screen, w);
            put_moved(screen, w);
            put_drained(screen, w);
            put_proofs(screen, w);
            put_loop(screen, w);
            put_rows(screen, w);
        }
    }
    while (left(screen) > 1u) {
        put(screen, KVF_LOOK_PLAIN, "%s", "");
    }
    put(screen, KVF_LOOK_DIM, "q quit   space %s%s", state->is_paused ? "go on" : "pause",
        watch->count > 1u ? "   n p other daemon" : "");
}

void kvf_screen_print_line(FILE *out, const struct kvf_watched *w, uint64_t now_ns,
                           const char *clock)
{
    struct texts t;
    char in[TEXT_BYTES];
    char sent[TEXT_BYTES];
    char ended[TEXT_BYTES];
    char said[KVF_STAT_WHY_BYTES];
    bool is_said = kvf_watched_say(w, now_ns, said, sizeof said);

    if (w->now == NULL) {
        fprintf(out, "%s %s not there: %s\n", clock, w->name, said);
        return;
    }
    fprintf(out,
            "%s %s %s open %s closing %s fencing %s quarantined %s in %s out %s failed %s "
            "drained p99 %s",
            clock, w->name, state_of(w), now_text(&t, 0, w, "rooms_open"),
            now_text(&t, 1, w, "rooms_closing"), now_text(&t, 2, w, "rooms_fencing"),
            now_text(&t, 3, w, "rooms_quarantined"), byte_rate(in, w, "bytes_placed_total"),
            byte_rate(sent, w, "bytes_posted_total"), rate(ended, w, "rooms_failed_total"),
            drain_text(&t, 4, w->now));
    if (is_said) {
        fprintf(out, ": %s", said);
    }
    fputc('\n', out);
}

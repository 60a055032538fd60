/* What happened, kept in a ring while a failing seed is played again, and told in lines. */
#include "tests/sim/history.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/parts.h"

const char *const sim_verdict_names[SIM_VERDICTS] = {
    [SIM_PASSED] = "passed",
    [SIM_UNSAFE_LANDING] = "unsafe landing",
    [SIM_UNSAFE_READ] = "unsafe read",
    [SIM_UNSAFE_LEASE] = "drained under a lease",
    [SIM_WRONG_CONTENT] = "success with wrong bytes",
    [SIM_WORD_BACKWARDS] = "illegal room word",
    [SIM_LEDGER_WRONG] = "ledger and owner disagree",
    [SIM_BOUND_BROKEN] = "bound broken",
    [SIM_NEVER_ENDS] = "a room never ends",
    [SIM_NOT_CLEAN] = "not clean at the end",
    [SIM_NO_SERVICE] = "no service after the faults",
    [SIM_QUARANTINE_WRONG] = "quarantine without a reason",
    [SIM_GROUP_WRONG] = "group disagrees",
    [SIM_PROTOCOL_ERROR] = "protocol error among equals",
    [SIM_CRASHED] = "crashed",
};

void sim_fail(struct sim_world *w, enum sim_verdict verdict, uint32_t room, uint32_t page,
              const char *format, ...)
{
    if (w->failure.verdict != SIM_PASSED) {
        return;
    }
    w->failure.verdict = verdict;
    w->failure.room = room;
    w->failure.page = page;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(w->failure.text, sizeof w->failure.text, format, args);
    va_end(args);
}

/* ---- words --------------------------------------------------------------------------------------------- */

static const char *const happening_names[SIM_HAPPENINGS] = {
    [SIM_OP] = "operation",
    [SIM_LEND] = "lend",
    [SIM_OPEN_READ] = "open read",
    [SIM_SUBMIT_READ] = "piece read",
    [SIM_GRANT] = "grant",
    [SIM_FRAME] = "frame",
    [SIM_POST] = "post",
    [SIM_READ] = "read",
    [SIM_COMPLETE] = "complete",
    [SIM_LAND] = "LAND",
    [SIM_SCRATCH] = "scratch",
    [SIM_MARKER] = "marker",
    [SIM_FENCE] = "fence",
    [SIM_FENCED] = "fenced",
    [SIM_LANE_UP] = "lane up",
    [SIM_LANE_LOST] = "lane lost",
    [SIM_ABORT] = "abort",
    [SIM_WORD] = "word",
    [SIM_DRAINED] = "DRAINED",
    [SIM_REUSE] = "reuse",
    [SIM_LEASE_TAKE] = "lease",
    [SIM_LEASE_TOUCH] = "lease touch",
    [SIM_LEASE_RETURN] = "lease back",
    [SIM_LEASE_CLOSE] = "leases closed",
    [SIM_CONNECT] = "connect",
    [SIM_CONN_UP] = "connected",
    [SIM_CONN_END] = "connection ends",
    [SIM_WORKER_START] = "worker start",
    [SIM_WORKER_SERVES] = "worker serves",
    [SIM_WORKER_FREEZE] = "worker frozen",
    [SIM_WORKER_THAW] = "worker thaws",
    [SIM_WORKER_KILL] = "worker killed",
    [SIM_WORKER_REAP] = "worker reaped",
    [SIM_ESCALATE] = "ESCALATE",
    [SIM_SUPERVISOR_KILL] = "supervisor dies",
    [SIM_SUPERVISOR_START] = "supervisor",
    [SIM_HOST_CRASH] = "host crashes",
    [SIM_ENGINE_START] = "engine start",
    [SIM_ENGINE_HANG_UP] = "engine hangs up",
    [SIM_ENGINE_REAP] = "engine reaped",
    [SIM_ENGINE_FREEZE] = "engine frozen",
    [SIM_ENGINE_THAW] = "engine thaws",
    [SIM_CLIENT_QUIET] = "client quiet",
    [SIM_ROUTE] = "links",
};

static const char *const frame_names[] = {"?",      "HELLO",   "LANE_HELLO", "REGION", "GRANT",
                                          "ACCEPT", "DECLINE", "ABORT",      "ENDED",  "LANE",
                                          "GROUP",  "PING",    "PONG"};
static const char *const phase_names[] = {"FREE",        "OPEN",    "CLOSING", "FENCING",
                                          "QUARANTINED", "DRAINED", "?",       "?"};
static const char *const outcome_names[] = {"-", "Success", "Failed", "?"};
static const char *const proof_names[] = {
    "-",       "NEVER_POSTED", "LANDED",      "SOURCE_IDLE", "PEER_DRAINED",
    "REVOKED", "FENCED",       "WORKER_GONE", "ENGINE_GONE", "OPERATOR"};
static const char *const kind_names[] = {"?", "DATA", "END", "DRAIN"};

static void print_word(FILE *out, uint64_t word)
{
    uint32_t proof = (uint32_t)kvf_word_proof(word);
    fprintf(out, "%s %s %s%s%s", phase_names[kvf_word_phase(word)],
            outcome_names[kvf_word_outcome(word)],
            proof < KVF_PROOF_COUNT ? proof_names[proof] : "?",
            (word & KVF_WORD_VISIBLE) != 0 ? " visible" : "",
            (word & KVF_WORD_GROUP_WAITS) != 0 ? " group waits" : "");
}

static void print_where(FILE *out, const struct sim_world *w, const struct sim_note *n)
{
    if (n->room < w->room_count) {
        const struct sim_room *r = &w->rooms[n->room];
        fprintf(out, " %s#%u(request %u, slot %u.%llu)", r->is_sink ? "sink" : "source",
                n->room, r->request, r->slot, (unsigned long long)r->generation);
    }
    if (n->page != SIM_NO_ROOM) {
        fprintf(out, " page %u%s of client %u", n->page % 256u,
                n->page / 256u % SIM_REGIONS != 0 ? "(aux)" : "",
                n->page / 256u / SIM_REGIONS % SIM_CLIENTS);
    }
}

static void print_op(FILE *out, const struct sim_world *w, uint64_t op)
{
    char text[512];
    if (op < w->scenario.op_count) {
        sim_op_text(&w->scenario, (uint32_t)op, text, sizeof text);
        fprintf(out, " %s", text);
    } else {
        fprintf(out, " %llu", (unsigned long long)op);
    }
}

static void print_rest(FILE *out, const struct sim_world *w, const struct sim_note *n)
{
    unsigned long long a = n->a;
    unsigned long long b = n->b;
    switch ((enum sim_happening)n->kind) {
    case SIM_OP:
        print_op(out, w, n->a);
        return;
    case SIM_WORD:
    case SIM_DRAINED:
        fputc(' ', out);
        print_word(out, n->a);
        if (n->b != 0) {
            fprintf(out, " reason %llu", b);
        }
        return;
    case SIM_FRAME:
        fprintf(out, " %s from h%llu", a < 13 ? frame_names[a] : "?", b);
        return;
    case SIM_POST:
    case SIM_COMPLETE:
        fprintf(out, " %s handle %llx lane %llu.%llu status %lld", kind_names[a >> 32 & 3u],
                a & 0xffffffffu, b >> 8 & 0xffffffu, b >> 32, -(long long)(b & 0xffu));
        return;
    case SIM_LAND:
    case SIM_READ:
        fprintf(out, " bytes %llu+%llu lane %llu.%llu%s", a >> 16 & 0xffffu, a & 0xffffu,
                b & 0xffffffffu, b >> 32, (a >> 32 & 1u) != 0 ? " late" : "");
        return;
    case SIM_MARKER:
        fprintf(out, " %s handle %llx lane %llu.%llu", kind_names[a >> 32 & 3u],
                a & 0xffffffffu, b & 0xffffffffu, b >> 32);
        return;
    case SIM_FENCE:
    case SIM_FENCED:
    case SIM_LANE_UP:
    case SIM_LANE_LOST:
    case SIM_ESCALATE:
        fprintf(out, " lane %llu.%llu (peer %llu)", a, b, a / KVF_LANES_MAX);
        return;
    case SIM_CONNECT:
    case SIM_CONN_UP:
    case SIM_CONN_END:
        fprintf(out, " peer %lld to h%llu", a == KVF_NONE ? -1LL : (long long)a, b);
        return;
    default: /* the others say all with their two numbers */
        if ((n->a | n->b) != 0) {
            fprintf(out, " %llu %llu", a, b);
        }
        return;
    }
}

static void print_note(FILE *out, const struct sim_world *w, const struct sim_note *n)
{
    fprintf(out, "%11.6f ms h%u  %-15s", (double)n->now_ns / 1e6, n->host,
            happening_names[n->kind]);
    print_where(out, w, n);
    print_rest(out, w, n);
    fputc('\n', out);
}

/* ---- which lines ---------------------------------------------------------------------------------------- */

/* Rooms that held the failing page, and the failing room's request: their lines are told, and the faults. */
struct relevance {
    bool is_room[SIM_ROOMS_MAX];
    bool is_host[SIM_WORLD_HOSTS];
    uint32_t page;
    bool is_all;
};

static void find_rooms(const struct sim_world *w, struct relevance *rel)
{
    uint32_t request =
        w->failure.room < w->room_count ? w->rooms[w->failure.room].request : UINT32_MAX;
    uint64_t first = w->note_count > SIM_NOTES_MAX ? w->note_count - SIM_NOTES_MAX : 0;
    rel->page = w->failure.page;
    for (uint64_t i = first; i < w->note_count; i++) {
        const struct sim_note *n = &w->notes[i % SIM_NOTES_MAX];
        if (rel->page != SIM_NO_ROOM && n->page == rel->page && n->room < w->room_count) {
            rel->is_room[n->room] = true;
        }
    }
    for (uint32_t i = 0; i < w->room_count; i++) {
        rel->is_room[i] = rel->is_room[i] || w->rooms[i].request == request;
        if (rel->is_room[i]) {
            rel->is_host[w->rooms[i].host] = true;
        }
    }
    rel->is_all = w->failure.room >= w->room_count && w->failure.page == SIM_NO_ROOM;
}

static bool is_relevant(const struct sim_world *w, const struct relevance *rel,
                        const struct sim_note *n)
{
    if (rel->is_all) {
        return n->kind != SIM_READ;
    }
    if (n->room < w->room_count) {
        return rel->is_room[n->room] && n->kind != SIM_READ;
    }
    if (n->page != SIM_NO_ROOM) {
        return n->page == rel->page;
    }
    switch ((enum sim_happening)n->kind) {
    case SIM_FRAME:
        return n->a != KVF_WIRE_PING && n->a != KVF_WIRE_PONG && rel->is_host[n->host];
    case SIM_OP:
        return true;
    default: /* what happens to a host happens to its rooms */
        return n->host < SIM_WORLD_HOSTS && rel->is_host[n->host];
    }
}

void sim_history_print(FILE *out, const struct sim_world *w, uint32_t lines_max)
{
    static struct relevance rel;
    memset(&rel, 0, sizeof rel);
    if (w->notes == NULL) {
        return;
    }
    find_rooms(w, &rel);
    uint64_t first = w->note_count > SIM_NOTES_MAX ? w->note_count - SIM_NOTES_MAX : 0;
    uint64_t from = w->note_count;
    uint32_t count = 0;
    while (from > first && count < lines_max) {
        from--;
        count += is_relevant(w, &rel, &w->notes[from % SIM_NOTES_MAX]) ? 1u : 0u;
    }
    for (uint64_t i = from; i < w->note_count; i++) {
        const struct sim_note *n = &w->notes[i % SIM_NOTES_MAX];
        if (is_relevant(w, &rel, n)) {
            print_note(out, w, n);
        }
    }
}

void sim_history_print_all(FILE *out, const struct sim_world *w)
{
    uint64_t first = w->note_count > SIM_NOTES_MAX ? w->note_count - SIM_NOTES_MAX : 0;
    for (uint64_t i = first; w->notes != NULL && i < w->note_count; i++) {
        print_note(out, w, &w->notes[i % SIM_NOTES_MAX]);
    }
}

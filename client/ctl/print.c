#include "client/ctl/print.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <string.h>

#include "client/stat/format.h"
#include "client/stat/json.h"
#include "ring/codes.h"
#include "ring/room_word.h"

static const char *const phase_names[] = {
    [KVF_PHASE_FREE] = "free",
    [KVF_PHASE_OPEN] = "open",
    [KVF_PHASE_CLOSING] = "closing",
    [KVF_PHASE_FENCING] = "fencing",
    [KVF_PHASE_QUARANTINED] = "quarantined",
    [KVF_PHASE_DRAINED] = "drained",
};

static const char *const peer_states[] = {
    [KVF_OPERATE_AT_NONE] = "none",
    [KVF_OPERATE_AT_IDLE] = "idle",
    [KVF_OPERATE_AT_CONNECTING] = "connecting",
    [KVF_OPERATE_AT_RETRYING] = "retrying",
    [KVF_OPERATE_AT_HELLO] = "hello",
    [KVF_OPERATE_AT_UP] = "up",
    [KVF_OPERATE_AT_LOST] = "lost",
};

static const char *name_of(const char *const *names, size_t count, uint32_t at)
{
    return at < count ? names[at] : "unknown";
}
#define NAME_OF(names, at) name_of(names, sizeof(names) / sizeof(names)[0], at)

static const char *yes(uint32_t is_so)
{
    return is_so != 0 ? "true" : "false";
}

/* Names come from engines and peers: nothing of them reaches a terminal but printable ASCII. */
static const char *printable(const char *name, size_t name_bytes, char *ret_text)
{
    size_t i = 0;
    for (; i + 1u < name_bytes && name[i] != '\0'; i++) {
        ret_text[i] = name[i] > ' ' && name[i] <= '~' ? name[i] : '?';
    }
    ret_text[i] = '\0';
    return ret_text;
}

const char *kvf_ctl_addr(const struct kvf_addr_shm *addr, char ret_text[KVF_CTL_ADDR_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "";
    if (addr->family != 4 && addr->family != 6) {
        return "-";
    }
    (void)inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->addr, host, sizeof host);
    if (addr->family == 4) {
        (void)snprintf(ret_text, KVF_CTL_ADDR_BYTES, "%s:%u", host, addr->port);
    } else if (addr->scope != 0) {
        (void)snprintf(ret_text, KVF_CTL_ADDR_BYTES, "[%s%%%u]:%u", host, addr->scope,
                       addr->port);
    } else {
        (void)snprintf(ret_text, KVF_CTL_ADDR_BYTES, "[%s]:%u", host, addr->port);
    }
    return ret_text;
}

static const char *state_of(const struct kvf_operate_status *s)
{
    return s->is_stopping       ? "stopping"
           : s->is_serving == 0 ? "waits for its next worker"
           : s->is_draining     ? "draining"
                                : "serving";
}

/* ---- status ---------------------------------------------------------------------------------------------- */

static void status_json(FILE *out, const struct kvf_ctl_options *o,
                        const struct kvf_operate_status *s)
{
    const char *level = kvf_ctl_level_name(s->log_level);
    fputs("{ \"name\": ", out);
    kvf_json_string(out, o->name);
    fprintf(out,
            ", \"supervisor_pid\": %d, \"worker_pid\": %d, \"worker_epoch\": \"%" PRIu64
            "\", \"is_serving\": %s, \"is_draining\": %s, \"is_stopping\": %s, \"log_level\": "
            "\"%s\", \"clients\": %u, \"clients_waiting\": %u, \"peers_down\": %u",
            s->supervisor_pid, s->worker_pid, s->worker_epoch, yes(s->is_serving),
            yes(s->is_draining), yes(s->is_stopping), level != NULL ? level : "unknown",
            s->clients, s->clients_waiting, s->peers_down);
    if (s->is_serving != 0) {
        fprintf(out,
                ", \"rooms_open\": %" PRIu64 ", \"rooms_closing\": %" PRIu64
                ", \"rooms_fencing\": %" PRIu64 ", \"rooms_quarantined\": %" PRIu64,
                s->rooms_open, s->rooms_closing, s->rooms_fencing, s->rooms_quarantined);
    }
    fputs(" }\n", out);
}

void kvf_ctl_print_status(FILE *out, const struct kvf_ctl_options *o,
                          const struct kvf_operate_status *s)
{
    const char *level = kvf_ctl_level_name(s->log_level);
    if (o->is_json) {
        status_json(out, o, s);
        return;
    }
    fprintf(out, "%s   %s   supervisor %d   worker %d   epoch %" PRIu64 "\n", o->name,
            state_of(s), s->supervisor_pid, s->worker_pid, s->worker_epoch);
    if (s->is_serving != 0) {
        fprintf(out,
                "  rooms   open %" PRIu64 "   closing %" PRIu64 "   fencing %" PRIu64
                "   quarantined %" PRIu64 "\n",
                s->rooms_open, s->rooms_closing, s->rooms_fencing, s->rooms_quarantined);
    }
    fprintf(out, "  clients %u", s->clients);
    if (s->clients_waiting > 0) {
        fprintf(out, " (%u are being taken over)", s->clients_waiting);
    }
    fprintf(out, "   peers down %u   log level %s\n", s->peers_down,
            level != NULL ? level : "unknown");
}

/* ---- peers ------------------------------------------------------------------------------------------------- */

static void peer_json(FILE *out, const struct kvf_operate_peer *p)
{
    char addr[KVF_CTL_ADDR_BYTES];
    char name[KVF_OPERATE_NAME_BYTES];
    fputs("{ \"address\": ", out);
    if (p->addr.family == 0) {
        fputs("null", out);
    } else {
        kvf_json_string(out, kvf_ctl_addr(&p->addr, addr));
    }
    fputs(", \"name\": ", out);
    kvf_json_string(out, printable(p->name, sizeof p->name, name));
    if (p->peer_id == 0) {
        fputs(", \"id\": null", out);
    } else {
        fprintf(out, ", \"id\": \"%016" PRIx64 "\"", p->peer_id);
    }
    fprintf(
        out,
        ", \"worker_starts\": %u, \"direction\": \"%s\", \"state\": \"%s\", \"is_down\": %s, "
        "\"rooms\": %u, \"lanes_up\": %u }",
        p->worker_starts, p->is_sink != 0 ? "to" : "from", NAME_OF(peer_states, p->state),
        yes(p->is_down), p->rooms, p->lanes_up);
}

static void peer_row(FILE *out, const struct kvf_operate_peer *p)
{
    char addr[KVF_CTL_ADDR_BYTES];
    char name[KVF_OPERATE_NAME_BYTES];
    char id[24] = "-";
    if (p->peer_id != 0) {
        (void)snprintf(id, sizeof id, "%016" PRIx64, p->peer_id);
    }
    const char *shown = printable(p->name, sizeof p->name, name);
    fprintf(out, "%-5s %-22s %-16s %-16s %9u  %-10s %5u %5u%s\n",
            p->is_sink != 0 ? "to" : "from", kvf_ctl_addr(&p->addr, addr),
            shown[0] != '\0' ? shown : "-", id, p->worker_starts,
            NAME_OF(peer_states, p->state), p->rooms, p->lanes_up,
            p->is_down != 0 ? "   DOWN" : "");
}

void kvf_ctl_print_peers(FILE *out, const struct kvf_ctl_options *o,
                         const struct kvf_operate_peer *peers, uint32_t count)
{
    if (o->is_json) {
        fputs("{ \"peers\": [", out);
        for (uint32_t i = 0; i < count; i++) {
            fputs(i > 0 ? ",\n  " : "\n  ", out);
            peer_json(out, &peers[i]);
        }
        fputs(count > 0 ? "\n] }\n" : "] }\n", out);
        return;
    }
    if (count == 0) {
        fputs("no peers\n", out);
        return;
    }
    fputs(
        "pages ADDRESS                NAME             ID                 WORKERS  STATE      "
        "ROOMS LANES\n",
        out);
    for (uint32_t i = 0; i < count; i++) {
        peer_row(out, &peers[i]);
    }
}

/* ---- rooms ------------------------------------------------------------------------------------------------- */

static const char *side_of(const struct kvf_operate_room *r)
{
    return r->is_sink == 1u ? "sink" : r->is_sink == 0 ? "source" : "unknown";
}

static void room_json(FILE *out, const struct kvf_operate_room *r)
{
    char name[sizeof r->name];
    fprintf(out,
            "{ \"client\": %u, \"slot\": %u, \"generation\": %" PRIu64 ", \"phase\": \"%s\", "
            "\"side\": \"%s\", \"label\": \"%" PRIu64 "\", \"key\": \"%" PRIu64
            "\", \"pages\": %" PRIu64 ", \"age_s\": %.3f, \"unproven\": %u, ",
            r->client, r->slot, r->generation, NAME_OF(phase_names, r->phase), side_of(r),
            r->label, r->key, r->pages, (double)r->age_ns / 1e9, r->unproven);
    if (r->reason == 0) {
        fputs("\"reason\": null", out);
    } else {
        fprintf(out, "\"reason\": %u, \"reason_name\": ", r->reason);
        kvf_json_string(out, kvf_code_name((int)r->reason));
    }
    fprintf(out, ", \"engine_pid\": %d, \"is_engine_gone\": %s, \"engine\": ", r->engine_pid,
            yes(r->is_engine_gone));
    kvf_json_string(out, printable(r->name, sizeof r->name, name));
    fputs(" }", out);
}

static void room_row(FILE *out, const struct kvf_operate_room *r)
{
    char age[KVF_FORMAT_BYTES];
    char pages[KVF_FORMAT_BYTES];
    char name[sizeof r->name];
    fprintf(out,
            "%6u %5u %10" PRIu64 "  %-11s %-7s %16" PRIx64 " %16" PRIx64
            " %9s %11s  %s%s%s (%d)%s\n",
            r->client, r->slot, r->generation, NAME_OF(phase_names, r->phase), side_of(r),
            r->label, r->key, kvf_format_count(pages, r->pages), kvf_format_age(age, r->age_ns),
            r->reason != 0 ? kvf_code_name((int)r->reason) : "", r->reason != 0 ? " " : "",
            printable(r->name, sizeof r->name, name), r->engine_pid,
            r->is_engine_gone != 0 ? " dead" : "");
}

void kvf_ctl_print_rooms_head(FILE *out, const struct kvf_ctl_options *o)
{
    fputs(o->is_json
              ? "{ \"rooms\": ["
              : "CLIENT  SLOT GENERATION  PHASE       SIDE               LABEL              "
                "KEY     PAGES         FOR  WHY, ENGINE (PID)\n",
          out);
}

void kvf_ctl_print_rooms(FILE *out, const struct kvf_ctl_options *o,
                         const struct kvf_operate_room *rooms, uint32_t count, uint64_t before)
{
    for (uint32_t i = 0; i < count; i++) {
        if (o->is_json) {
            fputs(i + before > 0 ? ",\n  " : "\n  ", out);
            room_json(out, &rooms[i]);
        } else {
            room_row(out, &rooms[i]);
        }
    }
}

void kvf_ctl_print_rooms_tail(FILE *out, const struct kvf_ctl_options *o, uint64_t count)
{
    if (o->is_json) {
        fputs(count > 0 ? "\n] }\n" : "] }\n", out);
    } else {
        fprintf(out, "%" PRIu64 " room%s\n", count, count == 1 ? "" : "s");
    }
}

/* ---- changes ------------------------------------------------------------------------------------------------ */

void kvf_ctl_print_change(FILE *out, const struct kvf_ctl_options *o,
                          const struct kvf_operate_status *status)
{
    if (o->is_json) {
        status_json(out, o, status);
        return;
    }
    fprintf(out, "%s: ", o->name);
    switch ((enum kvf_operate_command)o->req.command) {
    case KVF_OPERATE_DRAIN:
        fputs("drains: opens are refused, running rooms go on\n", out);
        return;
    case KVF_OPERATE_UNDRAIN:
        fputs("takes new rooms again\n", out);
        return;
    case KVF_OPERATE_PEER_DOWN:
        fprintf(out, "%s is down\n", o->peer);
        return;
    case KVF_OPERATE_PEER_UP:
        fprintf(out, "%s is up again, for rooms to come\n", o->peer);
        return;
    case KVF_OPERATE_RELEASE:
        fprintf(out,
                "client %u slot %u generation %" PRIu64
                " is released without proof: its pages may be overwritten\n",
                o->req.client, o->req.slot, o->req.generation);
        return;
    case KVF_OPERATE_LOG_LEVEL:
        fprintf(out, "logs %s and above\n", kvf_ctl_level_name(o->req.level));
        return;
    case KVF_OPERATE_STATUS:
    case KVF_OPERATE_PEERS:
    case KVF_OPERATE_ROOMS:
        break; /* printed as what they are */
    }
}

void kvf_ctl_print_error(FILE *out, int code, const char *why)
{
    fputs("{ \"error\": ", out);
    kvf_json_string(out, why);
    fputs(", \"code\": ", out);
    kvf_json_string(out, kvf_code_name(code));
    fputs(" }\n", out);
}

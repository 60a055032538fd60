/* The end of a seed: what must have come back to zero, and that what was counted adds up. */
#include "sidecar/core/internal.h"
#include "tests/sim/parts.h"

static uint64_t count_of(const struct sim_host *h, uint32_t counter)
{
    return kvf_core_counters(h->core)[counter];
}

static uint64_t gauge_of(const struct sim_host *h, uint32_t gauge)
{
    return kvf_core_gauges(h->core)[gauge];
}

void sim_count_core(struct sim_world *w, struct sim_host *h)
{
    struct sim_figures *f = &w->figures;
    f->grants_parked += count_of(h, KVF_COUNT_GRANTS_PARKED);
    f->stale_commands += count_of(h, KVF_COUNT_STALE_COMMANDS);
    f->stale_messages += count_of(h, KVF_COUNT_STALE_MESSAGES);
    f->stale_lane_events += count_of(h, KVF_COUNT_STALE_LANE_EVENTS);
    f->group_closed += count_of(h, KVF_COUNT_GROUP_CLOSED);
    f->regrants += count_of(h, KVF_COUNT_REGRANTS);
    if (count_of(h, KVF_COUNT_PROTOCOL_ERRORS) != 0) {
        sim_fail(w, SIM_PROTOCOL_ERROR, SIM_NO_ROOM, SIM_NO_ROOM,
                 "h%u counts %llu protocol errors of its own kind", h->idx,
                 (unsigned long long)count_of(h, KVF_COUNT_PROTOCOL_ERRORS));
    }
}

/* Rooms in quarantine keep their pages, and so their lists. */
static bool may_stay(const struct sim_host *h, uint32_t gauge)
{
    bool has_quarantine = gauge_of(h, KVF_GAUGE_ROOMS_QUARANTINED) != 0;
    switch (gauge) {
    case KVF_GAUGE_PEERS_UP:
    case KVF_GAUGE_LANES_UP:
    case KVF_GAUGE_ROOMS_QUARANTINED:
    case KVF_GAUGE_GROUP_TOMBSTONES: /* until their engine opens the key or leaves */
    case KVF_GAUGE_GROUP_WAITING:    /* asked room by room: sim_ranks_are_settled */
    case KVF_GAUGE_GROUP_WAITS_ID:
    case KVF_GAUGE_GROUP_WAITS_RANK:
        return true;
    case KVF_GAUGE_PAGES_HELD:
    case KVF_GAUGE_PAGES_QUARANTINED:
    case KVF_GAUGE_RUNS_USED:
        return has_quarantine;
    default: /* an index, not a state */
        return false;
    }
}

static bool is_host_settled(const struct sim_host *h, uint32_t *ret_gauge)
{
    for (uint32_t g = 0; g < KVF_GAUGES; g++) {
        if (gauge_of(h, g) != 0 && !may_stay(h, g)) {
            *ret_gauge = g;
            return false;
        }
    }
    *ret_gauge = KVF_GAUGES;
    return count_of(h, KVF_COUNT_POSTS) == count_of(h, KVF_COUNT_COMPLETIONS);
}

bool sim_is_settled(struct sim_world *w)
{
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        uint32_t gauge;
        if (w->hosts[i].core != NULL && !is_host_settled(&w->hosts[i], &gauge)) {
            return false;
        }
    }
    return true;
}

static void check_sums(struct sim_world *w, const struct sim_host *h)
{
    uint64_t ended =
        count_of(h, KVF_COUNT_ROOMS_SUCCEEDED) + count_of(h, KVF_COUNT_ROOMS_FAILED);
    uint64_t opened =
        count_of(h, KVF_COUNT_ROOMS_OPENED) + count_of(h, KVF_COUNT_ROOMS_ADOPTED);
    uint64_t held = gauge_of(h, KVF_GAUGE_ROOMS_QUARANTINED);
    uint64_t proofs = 0;
    for (uint32_t i = KVF_COUNT_PROOF_FIRST; i <= KVF_COUNT_PROOF_LAST; i++) {
        proofs += count_of(h, i);
    }
    if (opened != ended + held || proofs != ended || count_of(h, KVF_COUNT_PROOF_FIRST) != 0) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "h%u: %llu rooms opened, %llu ended, %llu in quarantine, %llu proofs", h->idx,
                 (unsigned long long)opened, (unsigned long long)ended,
                 (unsigned long long)held, (unsigned long long)proofs);
    }
    if (count_of(h, KVF_COUNT_POSTS) != count_of(h, KVF_COUNT_COMPLETIONS)) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "h%u: %llu posts, %llu completions", h->idx,
                 (unsigned long long)count_of(h, KVF_COUNT_POSTS),
                 (unsigned long long)count_of(h, KVF_COUNT_COMPLETIONS));
    }
}

static void check_tables(struct sim_world *w, struct sim_host *h)
{
    struct kvf_core *core = h->core;
    for (uint32_t i = 0; i < core->grant_fresh; i++) {
        if (core->grants[i].state != KVF_GRANT_FREE) {
            sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                     "h%u: grant %u is left in state %u", h->idx, i, core->grants[i].state);
        }
    }
    for (uint32_t i = 0; i < core->source_fresh; i++) {
        if (core->sources[i].state != KVF_SOURCE_FREE) {
            sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                     "h%u: source grant %u is left in state %u", h->idx, i,
                     core->sources[i].state);
        }
    }
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        if (core->lanes[i].credits_out != 0 || core->lanes[i].posted_bytes != 0) {
            sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                     "h%u: lane %u keeps %u credits and %llu posted bytes", h->idx, i,
                     core->lanes[i].credits_out,
                     (unsigned long long)core->lanes[i].posted_bytes);
        }
    }
    uint32_t pieces = 0;
    for (uint32_t at = core->piece_free; at != 0; at = core->pieces[at - 1u].next) {
        pieces++;
    }
    if (pieces != core->piece_fresh) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM, "h%u: %u of %u pieces came back",
                 h->idx, pieces, core->piece_fresh);
    }
}

/* The core's private owner table and the oracle agree on every page. */
static void check_owners(struct sim_world *w, struct sim_host *h)
{
    for (uint32_t c = 0; c < SIM_CLIENTS; c++) {
        const struct sim_client *client = &h->clients[c];
        for (uint32_t i = 0; i < SIM_REGIONS && client->is_in_core; i++) {
            const struct sim_region *reg = &client->regions[i];
            for (uint32_t page = 0; page < reg->page_count; page++) {
                bool is_owned =
                    reg->pages[page].owner != SIM_NO_ROOM || reg->pages[page].readers != 0;
                if (!is_owned && reg->owners[page] != 0) {
                    sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, sim_page_id(h->idx, c, i, page),
                             "h%u: the worker's owner table keeps page %u of client %u", h->idx,
                             page, c);
                }
            }
        }
    }
}

void sim_verify_end(struct sim_world *w)
{
    if (w->figures.group_rooms_failed == 0 && w->figures.group_messages != 0) {
        sim_fail(w, SIM_GROUP_WRONG, SIM_NO_ROOM, SIM_NO_ROOM,
                 "%llu group messages though no room of a group failed",
                 (unsigned long long)w->figures.group_messages);
    }
    if (w->scenario.flavour == SIM_CALM && w->figures.fences != 0) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "%llu lanes were fenced though nothing is wrong with any of them",
                 (unsigned long long)w->figures.fences);
    }
    uint64_t rnr_naks = sim_fabric_counters(w->fabric)->rnr_naks;
    if (rnr_naks != 0) {
        sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                 "%llu markers found no receive: more grants were out than credits",
                 (unsigned long long)rnr_naks);
    }
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        struct sim_host *h = &w->hosts[i];
        uint32_t gauge;
        if (h->core == NULL) {
            continue;
        }
        check_sums(w, h);
        if (!is_host_settled(h, &gauge) && gauge < KVF_GAUGES) {
            sim_fail(w, SIM_NOT_CLEAN, SIM_NO_ROOM, SIM_NO_ROOM,
                     "h%u: gauge %u is %llu at the end", h->idx, gauge,
                     (unsigned long long)gauge_of(h, gauge));
        }
        if (gauge_of(h, KVF_GAUGE_ROOMS_QUARANTINED) == 0) {
            check_tables(w, h);
        }
        check_owners(w, h);
    }
}

void sim_sum_up(struct sim_world *w)
{
    struct sim_figures *f = &w->figures;
    const struct sim_fabric_counters *n = sim_fabric_counters(w->fabric);
    for (uint32_t i = 0; i < w->scenario.hosts; i++) {
        if (w->hosts[i].core != NULL) {
            sim_count_core(w, &w->hosts[i]);
        }
    }
    f->late_writes_refused +=
        n->refused_no_qp + n->refused_qp_state + n->refused_key + n->segments_refused;
    f->crashes = f->worker_kills + f->supervisor_kills + f->host_crashes + f->engine_deaths;
}

/* The network of transport verbs: the router of the guest, by its command guest-net. */
#include <string.h>

#include "tests/faults/faults.h"
#include "tests/verbs/guest.h"

/* What paces the lanes, as no daemon can. */
#define SLOW_AND_LATE "delay 30ms rate 80mbit"
#define LOST "loss 100%"

const char *devices_of(const char *daemon)
{
    return strcmp(daemon, "sink") == 0 || strcmp(daemon, "other-source") == 0 ? GUEST_FIRST
                                                                              : GUEST_SECOND;
}

void devices_network(const char *rules)
{
    static const struct {
        const char *rules;
        const char *direction;
        const char *netem;
    } table[] = {{NETWORK_DELAY, "both", SLOW_AND_LATE},
                 {"clear", "both", ""},
                 {"stall", "both", LOST},
                 {"cut/forth", "forth", LOST},
                 {"cut/back", "back", LOST}};
    if (strcmp(rules, "reset") == 0) {
        return; /* there is no connection to reset; the control connection's end is the fault */
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].rules, rules) == 0) {
            guest_router(table[i].direction, table[i].netem);
            return;
        }
    }
    CHECK(false, "the guest's network knows no \"%s\"", rules);
}

void devices_stop(void)
{
    guest_router_stop();
}

void devices_mend(void)
{
    guest_net("clear");
    devices_network(NETWORK_DELAY);
}

void devices_link(bool is_up)
{
    guest_net(is_up ? "link-up " GUEST_FIRST : "link-down " GUEST_FIRST);
}

void devices_cut_lane(const struct daemon *sink, const struct daemon *source)
{
    struct guest_pair here[GUEST_PAIRS_MAX];
    struct guest_pair there[GUEST_PAIRS_MAX];
    uint32_t here_count = guest_pairs(GUEST_FIRST, sink->worker, here);
    uint32_t there_count = guest_pairs(GUEST_SECOND, source->worker, there);
    uint32_t cut = 0;
    for (uint32_t i = 0; i < here_count; i++) {
        for (uint32_t k = 0; k < there_count; k++) {
            if (here[i].own == there[k].other && here[i].other == there[k].own) {
                guest_net("flow back qpn:%u loss 100%%", here[i].own);
                cut++;
            }
        }
    }
    CHECK(cut > 0, "no lane between the two: %u queue pairs of the sink, %u of the source",
          here_count, there_count);
}

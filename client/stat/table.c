/* The table is made from rows, a row from items that wrap at the right edge. An item whose name the file
 * does not have is left out, and a name no row asks for stands under "other": so a table of this build
 * shows a daemon of an older or newer one. */
#include "client/stat/table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "client/stat/format.h"

#define LABEL_COLUMNS 14u
#define ITEM_BYTES 128u

enum item_form {
    FORM_COUNT,
    FORM_BYTES,
    FORM_RATE,
    FORM_US,
    FORM_PLACEMENT,
    FORM_ENGINE,
    FORM_VISIBILITY,
    FORM_TRANSPORT,
    FORM_CPU, /* number plus one, 0 is none */
    FORM_BOOL
};

struct item {
    const char *name;  /* in the file */
    const char *label; /* in the table */
    enum item_form form;
};

struct row {
    FILE *out;
    const char *label;
    unsigned column; /* 0: nothing printed yet */
};

static void add(struct row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct row *row, const char *format, ...)
{
    char text[ITEM_BYTES];
    va_list args;

    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    unsigned columns = (unsigned)strlen(text);
    if (row->column == 0) {
        fprintf(row->out, "  %-*s", (int)LABEL_COLUMNS - 2, row->label);
        row->column = LABEL_COLUMNS;
    } else if (row->column + 3u + columns > KVF_TABLE_COLUMNS) {
        fprintf(row->out, "\n%*s", (int)LABEL_COLUMNS, "");
        row->column = LABEL_COLUMNS;
    } else {
        fputs("   ", row->out);
        row->column += 3u;
    }
    fputs(text, row->out);
    row->column += columns;
}

static void end_row(struct row *row)
{
    if (row->column != 0) {
        fputc('\n', row->out);
    }
}

static void add_entry(struct row *row, struct kvf_stat_entry *entry, const char *label,
                      enum item_form form)
{
    char text[KVF_FORMAT_BYTES];
    const char *shown = NULL;

    switch (form) {
    case FORM_COUNT:
        shown = kvf_format_count(text, entry->value);
        break;
    case FORM_BYTES:
        shown = kvf_format_bytes(text, entry->value);
        break;
    case FORM_RATE:
        shown = kvf_format_rate(text, entry->value);
        break;
    case FORM_US:
        shown = kvf_format_us(text, entry->value);
        break;
    case FORM_PLACEMENT:
        shown = entry->value == 1   ? "checked"
                : entry->value == 2 ? "posted"
                                    : kvf_format_count(text, entry->value);
        break;
    case FORM_ENGINE:
        shown = entry->value == 1   ? "sockets"
                : entry->value == 2 ? "io_uring"
                                    : kvf_format_count(text, entry->value);
        break;
    case FORM_VISIBILITY:
        shown = entry->value == 0   ? "none"
                : entry->value == 1 ? "flush read"
                                    : kvf_format_count(text, entry->value);
        break;
    case FORM_TRANSPORT:
        shown = entry->value == 1   ? "tcp"
                : entry->value == 2 ? "verbs"
                : entry->value == 4 ? "local"
                                    : kvf_format_count(text, entry->value);
        break;
    case FORM_CPU:
        shown = entry->value == 0 ? "none" : kvf_format_count(text, entry->value - 1u);
        break;
    case FORM_BOOL:
        shown = entry->value != 0 ? "yes" : "no";
        break;
    }
    add(row, "%s %s", label, shown);
    entry->is_shown = true;
}

static void add_items(struct row *row, struct kvf_stat_daemon *daemon, const struct item *items,
                      size_t item_count)
{
    for (size_t i = 0; i < item_count; i++) {
        struct kvf_stat_entry *entry = kvf_stat_find(daemon, items[i].name);
        if (entry != NULL && entry->kind != KVF_STATS_HISTOGRAM) {
            add_entry(row, entry, items[i].label, items[i].form);
        }
    }
}

static void print_row(FILE *out, struct kvf_stat_daemon *daemon, const char *label,
                      const struct item *items, size_t item_count)
{
    struct row row = {.out = out, .label = label};

    add_items(&row, daemon, items, item_count);
    end_row(&row);
}
#define PRINT_ROW(out, daemon, label, items)                                                   \
    print_row(out, daemon, label, items, sizeof(items) / sizeof(items)[0])

/* What was measured in whole microseconds and is 0 was shorter than one, and not nothing. */
static const char *format_measured(char *text, uint64_t us)
{
    return us == 0 ? "under 1 us" : kvf_format_us(text, us);
}

/* Returns the entry, so that a row can say more about it; NULL if the file has none. */
static struct kvf_stat_entry *add_histogram(struct row *row, struct kvf_stat_daemon *daemon,
                                            const char *name)
{
    struct kvf_stat_entry *entry = kvf_stat_find(daemon, name);
    char text[KVF_FORMAT_BYTES];

    if (entry == NULL || entry->kind != KVF_STATS_HISTOGRAM) {
        return NULL;
    }
    entry->is_shown = true;
    uint64_t count = atomic_load_explicit(&entry->histogram->count, memory_order_relaxed);
    if (count == 0) {
        add(row, "none yet");
        return entry;
    }
    add(row, "p50 %s", format_measured(text, kvf_histogram_quantile(entry->histogram, 500)));
    add(row, "p99 %s", format_measured(text, kvf_histogram_quantile(entry->histogram, 990)));
    add(row, "max %s",
        format_measured(text,
                        atomic_load_explicit(&entry->histogram->max, memory_order_relaxed)));
    add(row, "of %s", kvf_format_count(text, count));
    return entry;
}

static void print_head(FILE *out, const struct kvf_stat_daemon *daemon)
{
    char text[KVF_FORMAT_BYTES];

    fprintf(out, "%s   ", daemon->name);
    if (daemon->health == KVF_STAT_STALE && daemon->has_silence) {
        fprintf(out, "stale since %s", kvf_format_age(text, daemon->silent_ns));
    } else if (daemon->health == KVF_STAT_STALE) {
        fputs("stale since before this boot, or never alive", out);
    } else if (daemon->health == KVF_STAT_STOPPED && daemon->has_silence) {
        fprintf(out, "stopped %s ago", kvf_format_age(text, daemon->silent_ns));
    } else {
        fputs(kvf_stat_health_name(daemon->health), out);
    }
    fprintf(out, "   %s %s",
            daemon->health == KVF_STAT_STALE || daemon->health == KVF_STAT_STOPPED ? "was up"
                                                                                   : "up",
            kvf_format_age(text, daemon->up_ns));
    fprintf(out, "   version %s\n", daemon->version);
    if (daemon->is_torn) {
        fputs("  torn          its writer stopped inside an update: numbers may be of two "
              "moments\n",
              out);
    }
}

void kvf_stat_print_line(FILE *out, const struct kvf_stat_daemon *daemon)
{
    print_head(out, daemon);
}

static void print_proofs(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const char prefix[] = "proof_";
    static const char suffix[] = "_total";
    struct row row = {.out = out, .label = "proofs"};
    char text[KVF_FORMAT_BYTES];

    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        struct kvf_stat_entry *entry = &daemon->entries[i];
        size_t n = strlen(entry->name);
        if (entry->kind != KVF_STATS_COUNTER || n <= sizeof prefix + sizeof suffix - 2u ||
            strncmp(entry->name, prefix, sizeof prefix - 1u) != 0 ||
            strcmp(entry->name + n - (sizeof suffix - 1u), suffix) != 0) {
            continue;
        }
        entry->is_shown = true;
        if (strcmp(entry->name, "proof_none_total") == 0 && entry->value == 0) {
            continue; /* no room is drained without a proof: worth a word only if one is */
        }
        add(&row, "%.*s %s", (int)(n - (sizeof prefix - 1u) - (sizeof suffix - 1u)),
            entry->name + sizeof prefix - 1u, kvf_format_count(text, entry->value));
    }
    end_row(&row);
}

static uint64_t value_or_0(struct kvf_stat_daemon *daemon, const char *name)
{
    struct kvf_stat_entry *entry = kvf_stat_find(daemon, name);
    return entry != NULL && entry->kind != KVF_STATS_HISTOGRAM ? entry->value : 0;
}

/* Measured beside promised: the row an operator looks at first after an abort storm. */
static void print_drained(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const struct item usual[] = {
        {"bound_usual_us", "usual", FORM_US},
        {"bound_detection_us", "= detection", FORM_US},
        {"bound_cooperative_us", "+ cooperative", FORM_US},
        {"bound_fence_us", "+ fence", FORM_US},
        {"bound_visibility_us", "+ visibility", FORM_US},
    };
    static const struct item worst[] = {
        {"bound_worst_us", "worst", FORM_US},
        {"bound_watchdog_us", "= usual + watchdog", FORM_US},
        {"bound_kill_us", "+ kill", FORM_US},
    };
    static const struct item device[] = {
        {"bound_flush_us", "device memory: + flush", FORM_US},
        {"bound_next_worker_us", "after a worker's end +", FORM_US},
    };
    struct row row = {.out = out, .label = "drained in"};
    uint64_t usual_us = value_or_0(daemon, "bound_usual_us");
    uint64_t worst_us = value_or_0(daemon, "bound_worst_us");

    const struct kvf_stat_entry *entry = add_histogram(&row, daemon, "abort_to_drained_us");
    if (entry != NULL && usual_us != 0 && worst_us != 0) {
        uint64_t max = atomic_load_explicit(&entry->histogram->max, memory_order_relaxed);
        if (max > worst_us) {
            add(&row, "OVER THE WORST BOUND");
        } else if (max > usual_us) {
            add(&row, "over the usual bound, within the worst");
        } else if (max > 0) {
            add(&row, "within the usual bound");
        }
    }
    end_row(&row);
    PRINT_ROW(out, daemon, "bound", usual);
    PRINT_ROW(out, daemon, "", worst);
    if (value_or_0(daemon, "bound_flush_us") != 0) {
        PRINT_ROW(out, daemon, "", device);
        return;
    }
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) {
        struct kvf_stat_entry *term = kvf_stat_find(daemon, device[i].name);
        if (term != NULL) {
            term->is_shown = true; /* no room has memory of a device here */
        }
    }
}

static void print_loop(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const struct item loop[] = {
        {"off_cpu_max_us", "off the CPU at most", FORM_US},
        {"loop_count", "turns", FORM_COUNT},
    };
    struct row row = {.out = out, .label = "loop"};

    (void)add_histogram(&row, daemon, "loop_us");
    end_row(&row);
    PRINT_ROW(out, daemon, row.column != 0 ? "" : "loop", loop);
}

static void print_other(FILE *out, const struct kvf_stat_daemon *daemon)
{
    struct row row = {.out = out, .label = "other"};
    char text[KVF_FORMAT_BYTES];

    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        const struct kvf_stat_entry *entry = &daemon->entries[i];
        const char *space = entry->unit[0] != '\0' ? " " : "";
        if (entry->is_shown) {
            continue;
        }
        if (entry->kind == KVF_STATS_HISTOGRAM) {
            char p99[KVF_FORMAT_BYTES];
            add(&row, "%s p50 %s p99 %s%s%s", entry->name,
                kvf_format_count(text, kvf_histogram_quantile(entry->histogram, 500)),
                kvf_format_count(p99, kvf_histogram_quantile(entry->histogram, 990)), space,
                entry->unit);
        } else {
            add(&row, "%s %s%s%s", entry->name, kvf_format_count(text, entry->value), space,
                entry->unit);
        }
    }
    end_row(&row);
}

static void print_rooms(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const struct item now[] = {
        {"rooms_open", "open", FORM_COUNT},
        {"rooms_closing", "closing", FORM_COUNT},
        {"rooms_fencing", "fencing", FORM_COUNT},
        {"rooms_quarantined", "quarantined", FORM_COUNT},
    };
    static const struct item ever[] = {
        {"rooms_opened_total", "opened", FORM_COUNT},
        {"rooms_succeeded_total", "succeeded", FORM_COUNT},
        {"rooms_failed_total", "failed", FORM_COUNT},
        {"rooms_refused_total", "refused", FORM_COUNT},
        {"aborts_total", "aborted", FORM_COUNT},
        {"peer_aborts_total", "by peers", FORM_COUNT},
        {"aborts_late_total", "too late", FORM_COUNT},
        {"rooms_adopted_total", "taken over", FORM_COUNT},
        {"regrants_total", "granted anew", FORM_COUNT},
    };
    static const struct item pages[] = {
        {"pages_held", "held", FORM_COUNT},
        {"pages_quarantined", "quarantined", FORM_COUNT},
    };

    PRINT_ROW(out, daemon, "rooms now", now);
    PRINT_ROW(out, daemon, "rooms ever", ever);
    PRINT_ROW(out, daemon, "pages", pages);
}

/* Rooms that are drained and not shown as failed, since another rank of their group has not settled. */
static void print_group(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const struct item group[] = {
        {"group_messages_sent_total", "messages sent", FORM_COUNT},
        {"group_messages_received_total", "received", FORM_COUNT},
        {"group_messages_stale_total", "stale", FORM_COUNT},
        {"rooms_closed_by_group_total", "rooms closed by others", FORM_COUNT},
        {"group_tombstones", "keys kept for late ranks", FORM_COUNT},
    };
    struct row row = {.out = out, .label = "group"};
    char text[KVF_FORMAT_BYTES];
    uint64_t rooms = value_or_0(daemon, "group_rooms_waiting");
    static const char *const waiting[] = {"group_rooms_waiting", "group_waits_id",
                                          "group_waits_rank"};

    for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++) {
        struct kvf_stat_entry *entry = kvf_stat_find(daemon, waiting[i]);
        if (entry != NULL) {
            entry->is_shown = true;
        }
    }
    if (rooms > 0) {
        add(&row, "%s rooms wait, the oldest for rank %" PRIu64 " of group %" PRIx64,
            kvf_format_count(text, rooms), value_or_0(daemon, "group_waits_rank"),
            value_or_0(daemon, "group_waits_id"));
    }
    if (rooms + value_or_0(daemon, "group_messages_sent_total") +
            value_or_0(daemon, "group_messages_received_total") ==
        0) {
        for (size_t i = 0; i < sizeof group / sizeof group[0]; i++) {
            struct kvf_stat_entry *entry = kvf_stat_find(daemon, group[i].name);
            if (entry != NULL) {
                entry->is_shown = true; /* no group has ever had anything to say */
            }
        }
        return;
    }
    add_items(&row, daemon, group, sizeof group / sizeof group[0]);
    end_row(&row);
}

static void print_traffic(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const struct item moved[] = {
        {"bytes_placed_total", "placed", FORM_BYTES},
        {"bytes_posted_total", "posted", FORM_BYTES},
        {"bytes_refused_total", "refused", FORM_BYTES},
        {"local_bytes_total", "local", FORM_BYTES},
        {"posted_bytes", "in flight", FORM_BYTES},
        {"posts_total", "posts", FORM_COUNT},
        {"completions_total", "completions", FORM_COUNT},
    };
    static const struct item grants[] = {
        {"grants_sent_total", "sent", FORM_COUNT},
        {"grants_accepted_total", "accepted", FORM_COUNT},
        {"grants_declined_total", "declined", FORM_COUNT},
        {"grants_parked_total", "ever parked", FORM_COUNT},
        {"grants_out", "out", FORM_COUNT},
        {"grants_in", "in", FORM_COUNT},
        {"parked", "parked", FORM_COUNT},
        {"markers_end_total", "END", FORM_COUNT},
        {"markers_drain_total", "DRAIN", FORM_COUNT},
        {"fences_total", "fences", FORM_COUNT},
    };
    static const struct item peers[] = {
        {"peers_up", "up", FORM_COUNT},
        {"lanes_up", "lanes up", FORM_COUNT},
        {"peers_lost_total", "lost", FORM_COUNT},
        {"transport", "transport", FORM_TRANSPORT},
        {"lane_rate_bytes_per_s", "lane rate", FORM_RATE},
        {"placement", "placement", FORM_PLACEMENT},
    };
    static const struct item tcp[] = {
        {"tcp_engine", "engine", FORM_ENGINE},
        {"tcp_calls_total", "sends and receives", FORM_COUNT},
        {"tcp_system_calls_total", "system calls for them", FORM_COUNT},
    };
    static const struct item devices[] = {
        {"queue_pairs_made_total", "queue pairs made", FORM_COUNT},
        {"queue_pairs_destroyed_total", "destroyed", FORM_COUNT},
        {"work_requests_posted_total", "work posted", FORM_COUNT},
        {"work_requests_reaped_total", "reaped", FORM_COUNT},
        {"work_requests_written_off_total", "written off", FORM_COUNT},
        {"stale_completions_total", "stale completions", FORM_COUNT},
        {"device_events_total", "events", FORM_COUNT},
        {"device_fences_failed_total", "fences failed", FORM_COUNT},
        {"device_memory_refused_total", "memory refused", FORM_COUNT},
        {"device_memory_withheld_total", "memory withheld", FORM_COUNT},
        {"device_memory_withheld", "still withheld", FORM_COUNT},
        {"device_memory_asked_again_total", "asked again", FORM_COUNT},
        {"rails_up", "rails up", FORM_COUNT},
    };
    static const struct item visibility[] = {
        {"visibility_step", "step", FORM_VISIBILITY},
        {"flush_reads_total", "flushes", FORM_COUNT},
        {"flush_reads_failed_total", "failed", FORM_COUNT},
    };
    static const struct item stale[] = {
        {"stale_messages_total", "messages", FORM_COUNT},
        {"stale_commands_total", "commands", FORM_COUNT},
        {"stale_lane_events_total", "lane events", FORM_COUNT},
        {"protocol_errors_total", "protocol errors", FORM_COUNT},
        {"bad_client_bytes_total", "bad client bytes", FORM_COUNT},
    };

    PRINT_ROW(out, daemon, "moved", moved);
    PRINT_ROW(out, daemon, "grants", grants);
    PRINT_ROW(out, daemon, "peers", peers);
    PRINT_ROW(out, daemon, "tcp", tcp);
    PRINT_ROW(out, daemon, "devices", devices);
    PRINT_ROW(out, daemon, "visibility", visibility);
    PRINT_ROW(out, daemon, "stale", stale);
}

void kvf_stat_print_table(FILE *out, struct kvf_stat_daemon *daemon)
{
    static const struct item clients[] = {
        {"clients", "attached", FORM_COUNT},
        {"regions", "regions", FORM_COUNT},
        {"runs_used", "page runs used", FORM_COUNT},
    };
    static const struct item pinned[] = {
        {"pinned_cpu_plus_1", "pinned to CPU", FORM_CPU},
        {"numa_bound", "NUMA-bound", FORM_BOOL},
        {"worker_starts", "starts", FORM_COUNT},
    };
    struct row row = {.out = out, .label = "worker"};

    for (uint32_t i = 0; i < daemon->entry_count; i++) {
        daemon->entries[i].is_shown = false;
    }
    print_head(out, daemon);
    add(&row, "pid %" PRIu32, daemon->worker_pid);
    add(&row, "epoch %" PRIu64, daemon->worker_epoch);
    add_items(&row, daemon, pinned, sizeof pinned / sizeof pinned[0]);
    end_row(&row);
    PRINT_ROW(out, daemon, "clients", clients);
    print_rooms(out, daemon);
    print_group(out, daemon);
    print_proofs(out, daemon);
    print_drained(out, daemon);
    row = (struct row){.out = out, .label = "success in"};
    (void)add_histogram(&row, daemon, "open_to_success_us");
    end_row(&row);
    print_traffic(out, daemon);
    print_loop(out, daemon);
    print_other(out, daemon);
}

#include "client/ctl/run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/ctl/options.h"
#include "client/ctl/print.h"
#include "client/ctl/talk.h"

#define NS_PER_S UINT64_C(1000000000)
#define BUSY_TRIES 30u /* another kvfence-ctl of ours is answered in a moment */
#define BUSY_PAUSE_MS 100u
#define WAIT_PAUSE_MS 200u
#define SAY_EVERY_NS (2 * NS_PER_S)

struct run {
    struct kvf_ctl_options options;
    FILE *out;
    FILE *err;
    struct kvf_operate_rep rep;
    char why[KVF_CTL_WHY_BYTES];
};

static int fail(struct run *run, int code)
{
    bool is_refusal = code > 0;
    fprintf(run->err, "kvfence-ctl: %s%s\n", is_refusal ? "refused: " : "", run->why);
    if (run->options.is_json) {
        kvf_ctl_print_error(run->out, code, run->why);
    }
    return is_refusal ? KVF_CTL_EXIT_REFUSED : KVF_CTL_EXIT_NO_ANSWER;
}

/* A connection of its own for each question: none is held while this program waits. The caller's once it is
 * 0. */
static int ask_first(struct run *run, const struct kvf_operate_req *req, int *ret_fd)
{
    for (uint32_t i = 0;; i++) {
        int fd = -1;
        int rc = kvf_ctl_connect(run->options.socket_path, &fd, run->why);
        if (rc != 0) {
            return rc;
        }
        rc = kvf_ctl_ask(fd, req, &run->rep, run->why);
        if (rc == 0) {
            *ret_fd = fd;
            return 0;
        }
        close(fd);
        if (rc != EBUSY || i == BUSY_TRIES) {
            return rc;
        }
        kvf_ctl_sleep_ms(BUSY_PAUSE_MS);
    }
}

static int ask_once(struct run *run, const struct kvf_operate_req *req)
{
    int fd = -1;
    int rc = ask_first(run, req, &fd);
    if (rc == 0) {
        close(fd);
    }
    return rc;
}

static int show_rooms(struct run *run)
{
    struct kvf_operate_req req = run->options.req;
    uint64_t count = 0;
    int fd = -1;
    int rc = ask_first(run, &req, &fd);
    if (rc != 0) {
        return fail(run, rc);
    }
    kvf_ctl_print_rooms_head(run->out, &run->options);
    for (;;) {
        kvf_ctl_print_rooms(run->out, &run->options, run->rep.rows.rooms, run->rep.row_count,
                            count);
        count += run->rep.row_count;
        bool goes_on = run->rep.next_client > req.client ||
                       (run->rep.next_client == req.client && run->rep.next_slot > req.slot);
        if (run->rep.has_more == 0 || !goes_on) {
            break;
        }
        req.client = run->rep.next_client;
        req.slot = run->rep.next_slot;
        rc = kvf_ctl_ask(fd, &req, &run->rep, run->why);
        if (rc != 0) {
            close(fd);
            return fail(run, rc); /* what was printed has no end, and so is seen to be a part */
        }
    }
    kvf_ctl_print_rooms_tail(run->out, &run->options, count);
    close(fd);
    return KVF_CTL_EXIT_OK;
}

/* ---- drain --wait ---------------------------------------------------------------------------------------- */

static void say_left(struct run *run, const struct kvf_operate_status *s)
{
    if (s->is_serving == 0 || s->clients_waiting > 0) {
        fprintf(run->err, "%s: a new worker takes over\n", run->options.name);
        return;
    }
    fprintf(run->err,
            "%s: open %" PRIu64 ", closing %" PRIu64 ", fencing %" PRIu64
            ", quarantined %" PRIu64 "\n",
            run->options.name, s->rooms_open, s->rooms_closing, s->rooms_fencing,
            s->rooms_quarantined);
}

static bool is_known(const struct kvf_operate_status *s)
{
    return s->is_serving != 0 && s->clients_waiting == 0 && s->is_unread == 0;
}

static int wait_drained(struct run *run)
{
    const struct kvf_operate_status *s = &run->rep.status;
    struct kvf_operate_req req = {.command = KVF_OPERATE_STATUS};
    uint64_t start_ns = kvf_ctl_now_ns();
    uint64_t said_ns = 0;
    for (;;) {
        uint64_t moving = s->rooms_open + s->rooms_closing + s->rooms_fencing;
        if (is_known(s) && moving == 0) {
            break;
        }
        if (s->is_draining == 0 && s->is_stopping == 0) {
            (void)snprintf(run->why, sizeof run->why,
                           "somebody took the drain back, or the daemon was replaced");
            return fail(run, ECANCELED);
        }
        uint64_t now_ns = kvf_ctl_now_ns();
        if (said_ns == 0 || now_ns - said_ns >= SAY_EVERY_NS) {
            said_ns = now_ns;
            say_left(run, s);
        }
        if (run->options.timeout_s > 0 &&
            now_ns - start_ns >= run->options.timeout_s * NS_PER_S) {
            fprintf(run->err, "kvfence-ctl: rooms are left after %u s; `rooms` lists them\n",
                    run->options.timeout_s);
            return KVF_CTL_EXIT_TIMEOUT;
        }
        kvf_ctl_sleep_ms(WAIT_PAUSE_MS);
        int rc = ask_once(run, &req);
        if (rc != 0) {
            return fail(run, rc);
        }
    }
    if (s->rooms_quarantined > 0) {
        fprintf(
            run->err,
            "kvfence-ctl: %" PRIu64
            " rooms are in quarantine, which no time ends; `rooms --quarantined` lists them\n",
            s->rooms_quarantined);
        return KVF_CTL_EXIT_QUARANTINE;
    }
    return KVF_CTL_EXIT_OK;
}

/* ---- all together ------------------------------------------------------------------------------------------ */

static int run_command(struct run *run)
{
    const struct kvf_ctl_options *o = &run->options;
    if (o->req.command == KVF_OPERATE_ROOMS) {
        return show_rooms(run);
    }
    int rc = ask_once(run, &o->req);
    if (rc != 0) {
        return fail(run, rc);
    }
    if (o->req.command == KVF_OPERATE_STATUS) {
        kvf_ctl_print_status(run->out, o, &run->rep.status);
        return KVF_CTL_EXIT_OK;
    }
    if (o->req.command == KVF_OPERATE_PEERS) {
        kvf_ctl_print_peers(run->out, o, run->rep.rows.peers, run->rep.row_count);
        return KVF_CTL_EXIT_OK;
    }
    rc = o->is_waiting ? wait_drained(run) : KVF_CTL_EXIT_OK;
    if (rc == KVF_CTL_EXIT_OK && o->is_waiting && !o->is_json) {
        fprintf(run->out, "%s: drained; undrain lets it take new rooms\n", o->name);
    } else if (rc == KVF_CTL_EXIT_OK || o->is_json) {
        kvf_ctl_print_change(run->out, o, &run->rep.status);
    }
    return rc;
}

int kvf_ctl_run(int argc, char **argv, FILE *out, FILE *err)
{
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        fputs("kvfence-ctl: out of memory\n", err);
        return KVF_CTL_EXIT_NO_ANSWER;
    }
    run->out = out;
    run->err = err;
    int rc = kvf_ctl_parse(argc, argv, out, err, &run->options);
    if (rc == 0) {
        rc = run_command(run);
    } else {
        rc = rc > 0 ? KVF_CTL_EXIT_OK : KVF_CTL_EXIT_USAGE;
    }
    free(run);
    return rc;
}

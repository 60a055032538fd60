#include "client/stat/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/stat/screen.h"
#include "client/stat/terminal.h"

struct watch_run {
    struct kvf_watch watch;
    struct kvf_screen screen;
    struct kvf_screen_state state;
    FILE *out;
    bool is_screen;
    int rc;
};

static void read_clock(char ret_text[16])
{
    time_t now = time(NULL);
    struct tm local;

    ret_text[0] = '\0';
    if (localtime_r(&now, &local) != NULL) {
        (void)strftime(ret_text, 16, "%H:%M:%S", &local);
    }
}

static void look(struct watch_run *run)
{
    kvf_watch_look(&run->watch);
    read_clock(run->state.clock);
}

static void show(struct watch_run *run)
{
    if (run->is_screen) {
        kvf_terminal_size(&run->screen.rows, &run->screen.columns);
        kvf_screen_draw(&run->screen, &run->watch, &run->state);
        kvf_terminal_show(&run->screen);
        return;
    }
    if (run->watch.problem[0] != '\0') {
        fprintf(run->out, "%s %s\n", run->state.clock, run->watch.problem);
    }
    for (uint32_t i = 0; i < run->watch.count; i++) {
        kvf_screen_print_line(run->out, &run->watch.daemons[i], run->watch.now_ns,
                              run->state.clock);
    }
    if (fflush(run->out) != 0 || ferror(run->out)) {
        run->rc = -EPIPE;
    }
}

/* False: the user has seen enough. Arrow keys come as escape sequences, whose last letters mean nothing here. */
static bool take_key(struct watch_run *run, int key)
{
    uint32_t count = run->watch.count;

    switch (key) {
    case 'q':
    case 'Q':
    case 3: /* Ctrl-C where the terminal makes no signal of it */
        return false;
    case ' ':
        run->state.is_paused = !run->state.is_paused;
        break;
    case 'n':
    case '\t':
        run->state.selected = count > 0 ? (run->state.selected + 1u) % count : 0;
        break;
    case 'p':
        run->state.selected = count > 0 ? (run->state.selected + count - 1u) % count : 0;
        break;
    default:
        break;
    }
    return true;
}

static void loop(struct watch_run *run, uint64_t interval_ns)
{
    uint64_t next_ns = kvf_stat_now_ns();

    while (run->rc == 0) {
        uint64_t now_ns = kvf_stat_now_ns();
        int key = 0;
        if (now_ns >= next_ns) {
            next_ns = now_ns + interval_ns;
            if (!run->state.is_paused) {
                look(run);
            }
            show(run);
            continue;
        }
        switch (kvf_terminal_wait(next_ns - now_ns, &key)) {
        case KVF_TERMINAL_END:
            return;
        case KVF_TERMINAL_KEY:
            if (!take_key(run, key)) {
                return;
            }
            show(run);
            break;
        case KVF_TERMINAL_RESIZE:
            if (run->is_screen) {
                show(run);
            }
            break;
        case KVF_TERMINAL_TIME:
            break;
        }
    }
}

int kvf_watch_run(const char *run_dir, char *const *names, uint32_t name_count,
                  uint64_t interval_ns, FILE *out, FILE *err)
{
    struct watch_run *run = calloc(1, sizeof *run);

    if (run == NULL) {
        fputs("kvfence-stat: out of memory\n", err);
        return -ENOMEM;
    }
    run->watch.run_dir = run_dir;
    run->watch.names = names;
    run->watch.name_count = name_count;
    run->state.interval_s = (double)interval_ns / 1e9;
    run->out = out;
    kvf_terminal_signals();
    run->is_screen =
        isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1 && kvf_terminal_enter() == 0;
    loop(run, interval_ns);
    kvf_terminal_leave();
    int rc = run->rc;
    kvf_watch_forget(&run->watch);
    free(run);
    return rc;
}

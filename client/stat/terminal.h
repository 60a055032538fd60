/* A terminal taken over for a screen, and given back as it was. Plain escapes of every terminal of today. */
#ifndef KVF_STAT_TERMINAL_H
#define KVF_STAT_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

#include "client/stat/screen.h"

enum kvf_terminal_event {
    KVF_TERMINAL_TIME,   /* the wait is over */
    KVF_TERMINAL_KEY,    /* *ret_key */
    KVF_TERMINAL_RESIZE, /* draw again */
    KVF_TERMINAL_END,    /* a signal to end by, or the terminal has gone */
};

/* Signal handlers for SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP: for a program's main. They are seen in
 * kvf_terminal_wait alone. */
void kvf_terminal_signals(void);
/* Standard input and output must be terminals. 0 or -errno. */
int kvf_terminal_enter(void);
void kvf_terminal_leave(void);
void kvf_terminal_size(unsigned *ret_rows, unsigned *ret_columns);
void kvf_terminal_show(const struct kvf_screen *screen);
/* Waits for a key, a signal, or the time. Works without kvf_terminal_enter, then without keys. */
enum kvf_terminal_event kvf_terminal_wait(uint64_t timeout_ns, int *ret_key);

#endif

#include "client/stat/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S UINT64_C(1000000000)

static struct termios before;
static bool is_entered;
static sigset_t waiting_mask; /* that of the program: our signals come in the wait only */
static _Atomic int ended;
static _Atomic int resized;
static _Atomic int suspended;

static void on_signal(int signum)
{
    _Atomic int *flag = signum == SIGWINCH ? &resized : signum == SIGTSTP ? &suspended : &ended;
    atomic_store_explicit(flag, 1, memory_order_relaxed);
}

void kvf_terminal_signals(void)
{
    static const int signums[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked;

    sigemptyset(&action.sa_mask);
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof signums / sizeof signums[0]; i++) {
        (void)sigaction(signums[i], &action, NULL);
        sigaddset(&blocked, signums[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &blocked, &waiting_mask);
    for (size_t i = 0; i < sizeof signums / sizeof signums[0]; i++) {
        sigdelset(&waiting_mask, signums[i]);
    }
}

static void write_all(const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(STDOUT_FILENO, text, bytes);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return; /* the terminal has gone; the next wait says so */
        }
        if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
}

static void write_text(const char *text)
{
    write_all(text, strlen(text));
}

int kvf_terminal_enter(void)
{
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, &before) != 0) {
        return -errno;
    }
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* signals of keys stay */
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) != 0) {
        return -errno;
    }
    is_entered = true;
    write_text("\x1b[?1049h\x1b[?25l\x1b[2J"); /* the other screen, no cursor, empty */
    return 0;
}

void kvf_terminal_leave(void)
{
    if (is_entered) {
        is_entered = false;
        write_text("\x1b[0m\x1b[?25h\x1b[?1049l");
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    }
}

void kvf_terminal_size(unsigned *ret_rows, unsigned *ret_columns)
{
    struct winsize size = {.ws_row = 0};

    *ret_rows = 30;
    *ret_columns = 100;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
        *ret_rows = size.ws_row;
        *ret_columns = size.ws_col;
    }
}

/* Line by line over what stood there, without clearing first: so nothing flickers. */
void kvf_terminal_show(const struct kvf_screen *screen)
{
    static const char *const looks[] = {"\x1b[0m", "\x1b[0;1m", "\x1b[0;2m", "\x1b[0;1;31m"};
    static char text[KVF_SCREEN_ROWS_MAX * (KVF_SCREEN_COLUMNS_MAX + 32u)];
    size_t used = 0;

    for (unsigned i = 0; i < screen->used; i++) {
        int n = snprintf(text + used, sizeof text - used, "\x1b[%u;1H%s%s\x1b[0m\x1b[K", i + 1u,
                         looks[screen->looks[i]], screen->lines[i]);
        used += n > 0 && (size_t)n < sizeof text - used ? (size_t)n : 0;
    }
    write_all(text, used);
    write_text("\x1b[J");
}

/* Ctrl-Z: the shell finds its terminal as it was, and we draw anew when we are back. */
static void suspend(void)
{
    bool was_entered = is_entered;

    kvf_terminal_leave();
    (void)raise(SIGSTOP);
    if (was_entered) {
        (void)kvf_terminal_enter();
    }
}

enum kvf_terminal_event kvf_terminal_wait(uint64_t timeout_ns, int *ret_key)
{
    struct pollfd p = {.fd = is_entered ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                               .tv_nsec = (long)(timeout_ns % NS_PER_S)};
    unsigned char key = 0;

    (void)ppoll(&p, 1, &timeout, &waiting_mask);
    if (atomic_load_explicit(&ended, memory_order_relaxed) != 0) {
        return KVF_TERMINAL_END;
    }
    if (atomic_exchange_explicit(&suspended, 0, memory_order_relaxed) != 0) {
        suspend();
        return KVF_TERMINAL_RESIZE;
    }
    if (atomic_exchange_explicit(&resized, 0, memory_order_relaxed) != 0) {
        if (is_entered) {
            write_text("\x1b[2J");
        }
        return KVF_TERMINAL_RESIZE;
    }
    if ((p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        return KVF_TERMINAL_END;
    }
    if ((p.revents & POLLIN) != 0) {
        if (read(STDIN_FILENO, &key, 1) != 1) {
            return KVF_TERMINAL_END;
        }
        *ret_key = key;
        return KVF_TERMINAL_KEY;
    }
    return KVF_TERMINAL_TIME;
}

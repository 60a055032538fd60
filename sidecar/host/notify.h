/* What a service manager is told: systemd's notification protocol (sd_notify(3)), one datagram at a time over
 * $NOTIFY_SOCKET. Without a manager every call does nothing. Nothing here blocks: what the manager has no room
 * for is owed and said again, since a READY that is lost would be a start that never ends. */
#ifndef KVF_HOST_NOTIFY_H
#define KVF_HOST_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define KVF_NOTIFY_STATUS_BYTES 192

struct kvf_notify {
    int fd; /* -1: nobody is told */
    socklen_t addr_bytes;
    struct sockaddr_un addr;
    uint64_t watchdog_ns; /* 0: the manager expects no beats */
    uint64_t beat_at_ns;
    uint64_t again_at_ns; /* what is owed is tried again then; 0: nothing is */
    uint64_t extend_us;
    bool owes_ready;
    bool owes_stopping;
    bool owes_status;
    char status[KVF_NOTIFY_STATUS_BYTES];
};

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and takes them out of the environment, so that no child
 * speaks for us. An address that cannot be used is logged once, and nobody is told then. */
void kvf_notify_open(struct kvf_notify *notify, uint64_t now_ns);
/* It serves; said once per start. */
void kvf_notify_ready(struct kvf_notify *notify);
/* One line for people, the last one said counts. */
__attribute__((format(printf, 2, 3))) void kvf_notify_status(struct kvf_notify *notify,
                                                             const char *format, ...);
/* It ends, and that may take so long. */
void kvf_notify_stopping(struct kvf_notify *notify, uint64_t most_us);
/* Sends what is owed, and the beat if it is time: once in a turn of the loop that the beat vouches for. */
void kvf_notify_turn(struct kvf_notify *notify, uint64_t now_ns);
/* When the next turn is wanted; UINT64_MAX: not at all. */
uint64_t kvf_notify_deadline(const struct kvf_notify *notify);

#endif

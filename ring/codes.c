#include "ring/codes.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

struct code_entry {
    int code;
    const char *name;
    const char *text;
};

#define ENTRY(code, text)                                                                      \
    {                                                                                          \
        code, #code, text                                                                      \
    }

/* In the order of codes.h, without a gap: looked up by index. */
static const struct code_entry own_entries[] = {
    ENTRY(KVF_E_NO_DAEMON,
          "no daemon listens on that socket: start kvfenced, or name its socket or "
          "run directory; a longer deadline waits for it"),
    ENTRY(KVF_E_DAEMON_GONE,
          "the daemon has gone: its rooms are read as before and new ones are "
          "refused until the client attaches again"),
    ENTRY(KVF_E_LAYOUT,
          "the two sides speak different major versions of the shared layout: install "
          "library and daemon of the same major version"),
    ENTRY(KVF_E_UNKNOWN_ROOM,
          "no room has this number: pass a handle that an open of this client "
          "returned"),
    ENTRY(KVF_E_STALE_ROOM,
          "the room of this handle has ended and its slot was given on: a handle is "
          "good until the room is released"),
    ENTRY(KVF_E_PAGE_RANGE,
          "a page index lies outside its region: 0 to page_count - 1 are allowed"),
    ENTRY(KVF_E_PAGE_TWICE,
          "a page stands in the list twice: each page of a sink room may be listed "
          "once"),
    ENTRY(KVF_E_NO_PAGES, "the page list is empty: a list has at least one page"),
    ENTRY(KVF_E_PAGE_LENT,
          "a page is still lent to another room: wait until that room is drained, "
          "kvf_page_lender names it"),
    ENTRY(KVF_E_UNKNOWN_REGION, "no live region of this client has this number: pass one that "
                                "kvf_region_register returned and nobody unregistered"),
    ENTRY(KVF_E_NO_SEAL, "the memory could shrink under the daemon: pass a memfd sealed with "
                         "F_SEAL_SHRINK"),
    ENTRY(KVF_E_GEOMETRY,
          "the two regions differ in page bytes or number of planes: both sides must "
          "use the same geometry"),
    ENTRY(KVF_E_SLOT_IN_USE,
          "the slot holds a room that is not drained yet: one room at a time may use "
          "a slot"),
    ENTRY(KVF_E_ROOMS_FULL,
          "all rooms of this client are in use or not yet drained: release some, or "
          "attach with a larger rooms_max (at most 65,536)"),
    ENTRY(KVF_E_REGIONS_FULL, "this client has its 16 live regions: unregister one first"),
    ENTRY(KVF_E_PEER_UNRESOLVED, "the peer's address does not resolve: HOST:PORT, IPV4:PORT or "
                                 "[IPV6]:PORT of its daemon is allowed"),
    ENTRY(KVF_E_PEER_UNREACHABLE,
          "the peer's daemon refused the connection or did not answer within "
          "the connect deadline"),
    ENTRY(KVF_E_PIECE_OVERLAP,
          "two pieces cover the same position of the grant: each position may be "
          "submitted once"),
    ENTRY(KVF_E_PIECE_HOLE,
          "the last piece was submitted and the pieces leave positions of the grant "
          "uncovered: together they must cover it exactly once"),
    ENTRY(KVF_E_PIECE_RANGE,
          "a piece reaches beyond the grant's page list: start + pages may be at "
          "most its length"),
    ENTRY(KVF_E_PEER_COUNT,
          "the number of writers or sinks, or their ranges, are not usable: 1 to 16 "
          "peers whose ranges cover the page list without overlap"),
    ENTRY(KVF_E_GROUP_UNSUPPORTED,
          "this daemon is older than groups of several ranks: upgrade it, or use group 0"),
    ENTRY(KVF_E_OPTION,
          "an option is out of range or its struct has an unknown size: set size_bytes "
          "with sizeof and reserved fields to zero"),
    ENTRY(KVF_E_ABORTED, "the engine aborted the room"),
    ENTRY(KVF_E_PEER_ABORTED, "the peer's engine aborted its room"),
    ENTRY(KVF_E_PEER_LOST,
          "the peer's daemon ended, froze, or was replaced while the room was open"),
    ENTRY(KVF_E_PEER_REFUSED,
          "the peer's daemon refused this one: version, capabilities, or what it "
          "was asked for do not fit; its log says which"),
    ENTRY(KVF_E_LANE_LOST,
          "a lane broke under this room, and there was no new grant for it: too many "
          "before, or no lane came up again in time"),
    ENTRY(KVF_E_BOOTSTRAP_TIMEOUT,
          "the other side did not open its room of this label and key within "
          "the bootstrap deadline"),
    ENTRY(KVF_E_PEER_ROOM_GONE,
          "the peer's room of this label and key has ended already: open a new "
          "room with a new key on both sides"),
    ENTRY(KVF_E_PEER_BUSY,
          "the peer has too many grants waiting for their source rooms: try again "
          "later"),
    ENTRY(KVF_E_ENGINE_GONE, "the engine that owned the room ended or detached"),
    ENTRY(KVF_E_WORKER_GONE,
          "the daemon's worker ended: its rooms are drained by that, new ones wait "
          "for the next worker"),
    ENTRY(KVF_E_SHUTDOWN,
          "the daemon is stopping: rooms that wait are closed and new ones refused"),
    ENTRY(KVF_E_MEMORY_FAULT,
          "the room's memory could not be touched: a hole was punched into it or "
          "it was truncated; registered memory must stay whole"),
    ENTRY(KVF_E_REGION_BUSY,
          "a room that is not drained names pages of this region: unregister it "
          "after its last room is drained"),
    ENTRY(KVF_E_MEMORY_REGISTERED,
          "this memory has a live registration: it is free once that one is "
          "unregistered and all its rooms are drained"),
    ENTRY(KVF_E_SHORT, "the peer marked the end before every byte of its grant had arrived: "
                       "the room failed, its "
                       "bytes are not to be read"),
    ENTRY(KVF_E_PROTOCOL,
          "bytes that the protocol does not allow here: the connection was closed"),
    ENTRY(KVF_E_CLIENT_DROPPED,
          "the daemon dropped this client because of bad bytes in its segment or "
          "on its socket: its rooms are closed, attach again"),
    ENTRY(KVF_E_FORKED,
          "the handle belongs to the parent process: a child attaches for itself"),
    ENTRY(KVF_E_PIECES_CLOSED,
          "the last piece of this room was submitted already: no piece may "
          "follow it"),
    ENTRY(KVF_E_KEY_IN_USE,
          "an open source room of this daemon has the same label and key: keys are "
          "unique per request and attempt"),
    ENTRY(KVF_E_ROLE, "a sink room takes no pieces: submit to a source room"),
    ENTRY(KVF_E_GRANT_LENGTH,
          "the sinks of this source room granted page lists of different lengths: "
          "all sinks of a room must have the same"),
    ENTRY(KVF_E_QUARANTINED,
          "pages of this memory are in quarantine, no proof could be had for them: "
          "an operator must release them by an explicit word"),
    ENTRY(KVF_E_CLIENTS_FULL,
          "the daemon serves as many clients as it was started for: detach one, or "
          "start it with a larger --clients"),
    ENTRY(KVF_E_RESOURCES,
          "a table of the daemon is full: it takes more when rooms have drained"),
    ENTRY(KVF_E_MEMORY_RANGE,
          "the region does not fit its memory: every plane must lie in it, planes "
          "may not overlap, at most 67,108,864 pages and 512 planes"),
    ENTRY(KVF_E_LIMIT_RANGE,
          "a limit of the attachment is out of range: rooms 1 to 65,536; ring slots "
          "a power of two, 2 to 65,536; arena a power of two, 4 KiB to 256 MiB"),
    ENTRY(KVF_E_LEASE_CLOSED,
          "the room is closing or drained: no new lease, do not start the work"),
    ENTRY(KVF_E_LEASE_KIND,
          "no such kind of lease: cpu (0), gpu (1) and direct-io (2) are allowed"),
    ENTRY(KVF_E_UNKNOWN_GROUP,
          "no such group: use 0, or a number that kvf_group_register gave to this client"),
    ENTRY(KVF_E_GROUP_MEMBERS,
          "a group has 1 to 64 members, a rank below that, and a numeric address or a name per "
          "member"),
    ENTRY(KVF_E_GROUPS_FULL, "this client has registered 16 groups, which is the maximum"),
    ENTRY(KVF_E_GROUP_RANK_TAKEN,
          "a living engine of this daemon, maybe this one, holds this rank of this group "
          "with other members"),
    ENTRY(KVF_E_GROUP_CLOSED,
          "another rank of its group ended this request; all of them end with it"),
    ENTRY(KVF_E_GROUP_TOMBSTONES,
          "too many keys that other ranks ended were neither opened nor skipped here: call "
          "kvf_group_skip for them, then open under a new key"),
    ENTRY(KVF_E_PEER_HELD,
          "an operator has taken this peer down: its rooms are closed and new ones are refused "
          "until kvfence-ctl peer up"),
    ENTRY(
        KVF_E_NO_KEY,
        "the sink's daemon told no key under which the device of this lane may write its "
        "region: start both with --transport verbs, and look for refused registrations in its "
        "log"),
    ENTRY(KVF_E_DEVICE_MEMORY,
          "a device of the daemon refused to register this memory: the daemon's log says which "
          "and why (locked memory limit, registrations in use, no dma-buf support)"),
    ENTRY(KVF_E_HOST_MEMORY_ONLY, "this daemon moves host memory only: memory of a device "
                                  "needs one that was started with "
                                  "--transport verbs"),
    ENTRY(
        KVF_E_NO_DMABUF,
        "the descriptor is no dma-buf: export the device's memory as one, or register a sealed "
        "memfd as host memory"),
    ENTRY(
        KVF_E_DMABUF_REFUSED,
        "a network device of the daemon does not take this dma-buf: its driver, or that of the "
        "memory's device, cannot share it"),
    ENTRY(
        KVF_E_DEVICE_COPY,
        "rooms between engines of one daemon are copied by it, and it cannot copy memory of a "
        "device: use host memory on both sides"),
};
_Static_assert(sizeof own_entries / sizeof own_entries[0] == KVF_E_LAST - KVF_E_NO_DAEMON + 1,
               "one entry per code");

static const struct code_entry errno_entries[] = {
    {0, "OK", "nothing was wrong"},
    ENTRY(EAGAIN, "not yet, or full at the moment: ask again"),
    ENTRY(EBUSY, "still in use by another: it is free once that one is drained or has ended"),
    ENTRY(ESTALE, "names an incarnation that is not the current one"),
    ENTRY(ETIMEDOUT, "the deadline has passed: nothing was changed by waiting"),
    ENTRY(ESHUTDOWN, "the daemon is stopping and takes nothing new"),
    ENTRY(ENOMEM, "not enough memory: lower the sizes asked for, or free some"),
    ENTRY(EINVAL, "an argument is not allowed: NULL, zero, or a number outside its range"),
    ENTRY(EOVERFLOW,
          "a counter is full, or records were lost: give some back, or ask for the whole "
          "state"),
    ENTRY(ENOENT, "there is nothing of that name or kind"),
    ENTRY(EEXIST, "it is there already: each may be named once"),
    ENTRY(E2BIG, "a number is over its limit"),
    ENTRY(EPROTO, "bytes that are not of this protocol or layout"),
    ENTRY(ENOTSUP, "another major version, or not supported here"),
    ENTRY(EPERM, "not permitted: a right or a seal is missing"),
    ENTRY(EACCES, "no right to the file or socket: ask for membership of its group"),
    ENTRY(ENOSPC, "the file system or table is full"),
    ENTRY(EFBIG, "larger than the file system allows"),
    ENTRY(EMFILE, "the process has no descriptor left: raise its limit"),
    ENTRY(ENFILE, "the machine has no descriptor left"),
    ENTRY(ENODEV, "no such device"),
    ENTRY(ENXIO, "nobody serves the other end"),
    ENTRY(EIO, "the device or file system failed"),
    ENTRY(EFAULT, "an address is not mapped"),
    ENTRY(EINTR, "a signal came first: call again"),
    ENTRY(EBADF, "not an open descriptor"),
    ENTRY(EPIPE, "the other end was closed"),
    ENTRY(ECANCELED, "taken back before it was started"),
    ENTRY(EMSGSIZE, "the message is longer than allowed"),
    ENTRY(ENAMETOOLONG, "the name is longer than allowed"),
    ENTRY(ENOSYS, "the kernel does not know this call"),
    ENTRY(ENOTCONN, "not connected"),
    ENTRY(EADDRINUSE, "the address is in use by another process: choose another port"),
    ENTRY(EADDRNOTAVAIL, "the address is not one of this machine's"),
    ENTRY(ECONNREFUSED, "nobody listens at that address"),
    ENTRY(ECONNRESET, "the other side reset the connection"),
    ENTRY(ECONNABORTED, "the connection was ended before it was used"),
    ENTRY(EHOSTUNREACH, "no route to that host"),
    ENTRY(ENETUNREACH, "no route to that network"),
};

/* Negating INT_MIN would overflow; it is no code. */
static int positive_of(int code)
{
    return code < 0 && code >= -KVF_E_LAST ? -code : code;
}

static const struct code_entry *find(int code)
{
    int positive = positive_of(code);
    if (positive >= KVF_E_NO_DAEMON && positive <= KVF_E_LAST) {
        return &own_entries[positive - KVF_E_NO_DAEMON];
    }
    for (size_t i = 0; i < sizeof errno_entries / sizeof errno_entries[0]; i++) {
        if (errno_entries[i].code == positive) {
            return &errno_entries[i];
        }
    }
    return NULL;
}

const char *kvf_code_text(int code)
{
    const struct code_entry *entry = find(code);
    const char *text = entry != NULL ? entry->text : strerrordesc_np(positive_of(code));
    return text != NULL ? text : "a code that this version does not know";
}

const char *kvf_code_name(int code)
{
    const struct code_entry *entry = find(code);
    const char *name = entry != NULL ? entry->name : strerrorname_np(positive_of(code));
    return name != NULL ? name : "UNKNOWN";
}

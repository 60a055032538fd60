"""Codes, and one exception class per family of them.

Every exception has ``code`` (positive), ``name`` ("KVF_E_PAGE_LENT"), ``sentence`` (the library's own) and
``call`` (the function that answered so). What was refused has changed nothing.
"""

from __future__ import annotations

import errno
from enum import IntEnum, unique
from typing import Dict, Type


@unique
class Code(IntEnum):
    """Numbers of kvfence.h, ``KVF_E_`` left away. Compared with the library at import."""

    NO_DAEMON = 1001
    DAEMON_GONE = 1002
    LAYOUT = 1003
    UNKNOWN_ROOM = 1004
    STALE_ROOM = 1005
    PAGE_RANGE = 1006
    PAGE_TWICE = 1007
    NO_PAGES = 1008
    PAGE_LENT = 1009
    UNKNOWN_REGION = 1010
    NO_SEAL = 1011
    GEOMETRY = 1012
    SLOT_IN_USE = 1013
    ROOMS_FULL = 1014
    REGIONS_FULL = 1015
    PEER_UNRESOLVED = 1016
    PEER_UNREACHABLE = 1017
    PIECE_OVERLAP = 1018
    PIECE_HOLE = 1019
    PIECE_RANGE = 1020
    PEER_COUNT = 1021
    GROUP_UNSUPPORTED = 1022
    OPTION = 1023
    ABORTED = 1024
    PEER_ABORTED = 1025
    PEER_LOST = 1026
    PEER_REFUSED = 1027
    LANE_LOST = 1028
    BOOTSTRAP_TIMEOUT = 1029
    PEER_ROOM_GONE = 1030
    PEER_BUSY = 1031
    ENGINE_GONE = 1032
    WORKER_GONE = 1033
    SHUTDOWN = 1034
    MEMORY_FAULT = 1035
    REGION_BUSY = 1036
    MEMORY_REGISTERED = 1037
    SHORT = 1038
    PROTOCOL = 1039
    CLIENT_DROPPED = 1040
    FORKED = 1041
    PIECES_CLOSED = 1042
    KEY_IN_USE = 1043
    ROLE = 1044
    GRANT_LENGTH = 1045
    QUARANTINED = 1046
    CLIENTS_FULL = 1047
    RESOURCES = 1048
    MEMORY_RANGE = 1049
    LIMIT_RANGE = 1050
    LEASE_CLOSED = 1051
    LEASE_KIND = 1052
    UNKNOWN_GROUP = 1053
    GROUP_MEMBERS = 1054
    GROUPS_FULL = 1055
    GROUP_RANK_TAKEN = 1056
    GROUP_CLOSED = 1057
    GROUP_TOMBSTONES = 1058
    PEER_HELD = 1059
    NO_KEY = 1060
    DEVICE_MEMORY = 1061
    HOST_MEMORY_ONLY = 1062
    NO_DMABUF = 1063
    DMABUF_REFUSED = 1064
    DEVICE_COPY = 1065


class KvfenceError(Exception):
    """A refusal, or the reason of a room that failed."""

    code: int  # positive: a Code, an errno, or an engine's own abort reason
    name: str
    sentence: str
    call: str

    def __init__(self, code: int, name: str, sentence: str, call: str) -> None:
        super().__init__(code, name, sentence, call)  # all of them, so that it can be pickled
        self.code = code
        self.name = name
        self.sentence = sentence
        self.call = call

    def __str__(self) -> str:
        return f"{self.call}: {self.name}: {self.sentence}"


class DaemonError(KvfenceError):
    """The daemon: not there, gone, stopping, another version, full, or it dropped this client."""


class TryAgain(KvfenceError):
    """Not yet, or full at the moment (-EAGAIN): the same call may do a moment later."""


class RoomError(KvfenceError):
    """The handle, the role or the number of rooms."""


class PagesError(KvfenceError):
    """A page list, or the pieces that have to cover one."""


class RegionError(KvfenceError):
    """Memory: its seal, size, geometry, registrations, devices."""


class QuarantinedError(RegionError):
    """Nothing proves these pages idle: an operator must release them (kvfence-ctl)."""


class PeerError(KvfenceError):
    """The other side, or the way to it."""


class GroupError(KvfenceError):
    """A group of ranks, or another rank of it."""


class LeaseError(KvfenceError):
    """An external lease that may not be taken, or that is not out."""


class OptionError(KvfenceError, ValueError):
    """An argument outside of what is allowed."""


class WaitTimeout(KvfenceError, TimeoutError):
    """The time was over. Nothing has changed: pages that were lent still are."""


class ClosedError(KvfenceError):
    """Used after close()."""


class BusyError(KvfenceError):
    """close() found other calls of this client under way, and left it attached."""


class ForkedError(KvfenceError):
    """Used in a forked child, which has to attach for itself."""


class UndrainedError(KvfenceError, TimeoutError):
    """The client is detached, and ``undrained`` rooms of it were not proven yet: the daemon goes on
    draining, their pages must not be reused."""

    undrained: int

    def __init__(self, code: int, name: str, sentence: str, call: str, undrained: int = 0) -> None:
        super().__init__(code, name, sentence, call)
        self.args = (code, name, sentence, call, undrained)
        self.undrained = undrained


class LibraryError(ImportError):
    """libkvfence was not found, or is not the one this package was written for."""


_FAMILIES: Dict[Type[KvfenceError], str] = {
    DaemonError: "NO_DAEMON DAEMON_GONE LAYOUT ENGINE_GONE WORKER_GONE SHUTDOWN PROTOCOL"
    " CLIENT_DROPPED CLIENTS_FULL RESOURCES",
    RoomError: "UNKNOWN_ROOM STALE_ROOM SLOT_IN_USE ROOMS_FULL ROLE KEY_IN_USE ABORTED",
    PagesError: "PAGE_RANGE PAGE_TWICE NO_PAGES PAGE_LENT PIECE_OVERLAP PIECE_HOLE PIECE_RANGE"
    " PIECES_CLOSED GRANT_LENGTH SHORT",
    RegionError: "UNKNOWN_REGION NO_SEAL GEOMETRY REGIONS_FULL MEMORY_FAULT REGION_BUSY"
    " MEMORY_REGISTERED MEMORY_RANGE NO_KEY DEVICE_MEMORY HOST_MEMORY_ONLY NO_DMABUF DMABUF_REFUSED"
    " DEVICE_COPY",
    QuarantinedError: "QUARANTINED",
    PeerError: "PEER_UNRESOLVED PEER_UNREACHABLE PEER_COUNT PEER_ABORTED PEER_LOST PEER_REFUSED"
    " LANE_LOST BOOTSTRAP_TIMEOUT PEER_ROOM_GONE PEER_BUSY PEER_HELD",
    GroupError: "GROUP_UNSUPPORTED UNKNOWN_GROUP GROUP_MEMBERS GROUPS_FULL GROUP_RANK_TAKEN"
    " GROUP_CLOSED GROUP_TOMBSTONES",
    LeaseError: "LEASE_CLOSED LEASE_KIND",
    OptionError: "OPTION LIMIT_RANGE",
    ForkedError: "FORKED",
}

FAMILY_OF: Dict[int, Type[KvfenceError]] = {
    int(Code[name]): family for family, names in _FAMILIES.items() for name in names.split()
}
FAMILY_OF.update(
    {
        errno.EAGAIN: TryAgain,
        errno.EBUSY: DaemonError,
        errno.ESHUTDOWN: DaemonError,
        errno.EACCES: DaemonError,
        errno.ETIMEDOUT: WaitTimeout,
        errno.ENOMEM: RegionError,
        errno.E2BIG: PagesError,
        errno.EOVERFLOW: LeaseError,
        errno.ENOENT: LeaseError,
        errno.EINVAL: OptionError,
    }
)

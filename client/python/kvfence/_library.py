"""libkvfence through ctypes: found, looked at, and described.

Nothing here is for engines. Two views of one library: ``lib`` lets other threads run during a call,
``quick`` does not and is for what takes no lock and makes no system call.
"""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, List, Tuple, Type

from ._codes import FAMILY_OF, Code, KvfenceError, LibraryError

VERSION = (0, 1)  # of the library that the structs below describe: major, minor
SONAME = "libkvfence.so.0"
UINT32_MAX = (1 << 32) - 1
UINT64_MAX = (1 << 64) - 1


class AttachOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("timeout_ms", c_uint32),
        ("socket_path", c_char_p),
        ("daemon_name", c_char_p),
        ("client_name", c_char_p),
        ("rooms_max", c_uint32),
        ("cmd_slots", c_uint32),
        ("event_slots", c_uint32),
        ("arena_bytes", c_uint32),
        ("pad_", c_uint32 * 4),
    ]


class DaemonInfoStruct(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("lanes_per_peer", c_uint32),
        ("worker_epoch", c_uint64),
        ("bound_usual_us", c_uint64),
        ("bound_worst_us", c_uint64),
        ("loop_count", c_uint64),
        ("events_lost", c_uint64),
    ]


class PoolOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("numa_node", c_int32),
        ("bytes", c_uint64),
        ("huge_pages", c_uint32),
        ("pad_", c_uint32 * 5),
    ]


class PlaneStruct(Structure):
    _fields_ = [("off", c_uint64), ("stride", c_uint64), ("page_bytes", c_uint64)]


class RegionOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("fd", c_int32),
        ("memory_off", c_uint64),
        ("memory_bytes", c_uint64),
        ("page_count", c_uint64),
        ("planes", POINTER(PlaneStruct)),
        ("plane_count", c_uint32),
        ("timeout_ms", c_uint32),
        ("memory", c_uint32),
        ("pad_", c_uint32 * 1),
    ]


class SinkOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("region", c_uint32),
        ("label", c_uint64),
        ("key", c_uint64),
        ("pages", c_void_p),
        ("pages64", c_void_p),
        ("page_count", c_size_t),
        ("aux_region", c_uint32),
        ("aux_count", c_uint32),
        ("aux_pages", c_void_p),
        ("writers", POINTER(c_char_p)),
        ("writer_count", c_uint32),
        ("group", c_uint32),
        ("range_starts", POINTER(c_uint32)),
        ("range_counts", POINTER(c_uint32)),
        ("pad_", c_uint32 * 4),
    ]


class SourceOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("region", c_uint32),
        ("label", c_uint64),
        ("key", c_uint64),
        ("sink_count", c_uint32),
        ("has_aux", c_uint32),
        ("aux_region", c_uint32),
        ("group", c_uint32),
        ("pad_", c_uint32 * 4),
    ]


class PieceOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("region", c_uint32),
        ("pages", c_void_p),
        ("pages64", c_void_p),
        ("page_count", c_size_t),
        ("start", c_uint32),
        ("flags", c_uint32),
        ("pad_", c_uint32 * 4),
    ]


class RoomInfoStruct(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("state", c_int32),
        ("phase", c_int32),
        ("proof", c_int32),
        ("reason", c_uint32),
        ("detail", c_uint32),
        ("placed_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("close_to_drained_ns", c_uint64),
        ("total_pages", c_uint32),
        ("unproven", c_uint32),
        ("leases_cpu", c_uint32),
        ("leases_gpu", c_uint32),
        ("leases_direct_io", c_uint32),
        ("pad_", c_uint32),
        ("group_waits", c_uint64),
    ]


class EventStruct(Structure):
    _fields_ = [("room", c_uint64), ("state", c_int32), ("is_drained", c_int32)]


class GroupOpts(Structure):
    _fields_ = [
        ("size_bytes", c_uint32),
        ("rank", c_uint32),
        ("members", POINTER(c_char_p)),
        ("member_count", c_uint32),
        ("pad0_", c_uint32),
        ("group_id", c_uint64),
        ("pad_", c_uint32 * 2),
    ]


STRUCTS: List[Tuple[str, Type[Structure]]] = [  # as kvfence.h names them
    ("kvf_attach_opts", AttachOpts),
    ("kvf_daemon_info", DaemonInfoStruct),
    ("kvf_pool_opts", PoolOpts),
    ("kvf_plane", PlaneStruct),
    ("kvf_region_opts", RegionOpts),
    ("kvf_sink_opts", SinkOpts),
    ("kvf_source_opts", SourceOpts),
    ("kvf_piece_opts", PieceOpts),
    ("kvf_room_info", RoomInfoStruct),
    ("kvf_event", EventStruct),
    ("kvf_group_opts", GroupOpts),
]

_CLIENT = c_void_p
_ROOM = c_uint64
_PROTOTYPES: List[Tuple[str, Any, List[Any]]] = [
    ("kvf_version", c_char_p, []),
    ("kvf_layout_version", c_uint32, []),
    ("kvf_strerror", c_char_p, [c_int]),
    ("kvf_code_name_of", c_char_p, [c_int]),
    ("kvf_state_name", c_char_p, [c_int]),
    ("kvf_proof_name", c_char_p, [c_int]),
    ("kvf_attach", c_int, [POINTER(AttachOpts), POINTER(c_void_p)]),
    ("kvf_detach", c_int, [_CLIENT, c_uint32, POINTER(c_uint32)]),
    ("kvf_reattach", c_int, [_CLIENT, c_uint32]),
    ("kvf_daemon_check", c_int, [_CLIENT]),
    ("kvf_daemon_info", c_int, [_CLIENT, POINTER(DaemonInfoStruct)]),
    ("kvf_pool_create", c_int, [POINTER(PoolOpts), POINTER(c_void_p)]),
    ("kvf_pool_adopt", c_int, [c_int, c_uint64, POINTER(c_void_p)]),
    ("kvf_pool_bytes", c_uint64, [c_void_p]),
    ("kvf_pool_fd", c_int, [c_void_p]),
    ("kvf_pool_page_bytes", c_uint32, [c_void_p]),
    ("kvf_pool_destroy", None, [c_void_p]),
    ("kvf_region_register", c_int, [_CLIENT, POINTER(RegionOpts), POINTER(c_uint32)]),
    ("kvf_last_refusal", c_int, [_CLIENT, c_char_p, c_size_t]),
    ("kvf_region_unregister", c_int, [_CLIENT, c_uint32]),
    ("kvf_pages_are_idle", c_int, [_CLIENT, c_uint32, c_void_p, c_size_t, POINTER(c_size_t)]),
    ("kvf_pages_are_idle64", c_int, [_CLIENT, c_uint32, c_void_p, c_size_t, POINTER(c_size_t)]),
    ("kvf_page_lender", c_int, [_CLIENT, c_uint32, ctypes.c_int64, POINTER(c_uint64)]),
    ("kvf_open_sink", c_int, [_CLIENT, POINTER(SinkOpts), POINTER(c_uint64)]),
    ("kvf_open_source", c_int, [_CLIENT, POINTER(SourceOpts), POINTER(c_uint64)]),
    ("kvf_submit", c_int, [_CLIENT, _ROOM, POINTER(PieceOpts)]),
    ("kvf_abort", c_int, [_CLIENT, _ROOM, c_uint32]),
    ("kvf_poll", c_int, [_CLIENT, _ROOM]),
    ("kvf_poll_many", c_int, [_CLIENT, POINTER(c_uint64), c_size_t, POINTER(c_int32)]),
    ("kvf_failed_early", c_int, [_CLIENT, _ROOM]),
    ("kvf_drained", c_int, [_CLIENT, _ROOM]),
    ("kvf_visible", c_int, [_CLIENT, _ROOM]),
    ("kvf_room_info", c_int, [_CLIENT, _ROOM, POINTER(RoomInfoStruct)]),
    ("kvf_wait", c_int, [_CLIENT, _ROOM, c_uint32]),
    ("kvf_release", c_int, [_CLIENT, _ROOM]),
    ("kvf_lease", c_int, [_CLIENT, _ROOM, c_int]),
    ("kvf_lease_give_back", c_int, [_CLIENT, _ROOM, c_int]),
    ("kvf_event_fd", c_int, [_CLIENT]),
    ("kvf_events_next", c_int, [_CLIENT, POINTER(EventStruct), c_int]),
    ("kvf_group_register", c_int, [_CLIENT, POINTER(GroupOpts), POINTER(c_uint32)]),
    ("kvf_group_skip", c_int, [_CLIENT, c_uint32, c_uint64]),
]


def _candidates() -> List[str]:
    """Where the library may lie. A name that was given outright is the only one."""
    given = os.environ.get("KVFENCE_LIBRARY")
    if given:
        return [given]
    beside = Path(__file__).resolve().parent / SONAME
    return ([str(beside)] if beside.exists() else []) + [SONAME]


def _load() -> Tuple[str, ctypes.CDLL, ctypes.PyDLL]:
    path = _candidates()[0]
    try:
        return path, ctypes.CDLL(path), ctypes.PyDLL(path)
    except OSError as err:
        raise LibraryError(
            f"cannot load libkvfence: {err}. It is looked for in $KVFENCE_LIBRARY, beside this package,"
            f" and as {SONAME} where the system's libraries are"
        ) from None


def _declare(path: str, library: ctypes.CDLL) -> None:
    for name, result, arguments in _PROTOTYPES:
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryError(
                f"{path} has no function {name}: it is no libkvfence, or one older than this package"
            ) from None
        function.restype = result
        function.argtypes = arguments


def _check_numbers(path: str, library: ctypes.CDLL) -> None:
    text = library.kvf_version().decode("ascii", "replace")
    parts = text.split(".")
    wanted = [str(number) for number in VERSION]
    if parts[:2] != wanted:
        raise LibraryError(
            f"{path} is libkvfence {text}, and this package speaks {'.'.join(wanted)}: install the package"
            " that came with the library"
        )
    for code in Code:
        name = library.kvf_code_name_of(code).decode("ascii", "replace")
        if name != f"KVF_E_{code.name}":
            raise LibraryError(
                f"{path} calls code {int(code)} {name}, and this package KVF_E_{code.name}: the two do not"
                " belong together"
            )


def _check_sizes(path: str, library: ctypes.CDLL) -> None:
    """Both probes are refused, and by which refusal says whether the struct had the right size."""
    nothing = c_void_p()
    pool = PoolOpts(size_bytes=ctypes.sizeof(PoolOpts), numa_node=-1, bytes=0)
    attach = AttachOpts(size_bytes=ctypes.sizeof(AttachOpts), rooms_max=UINT32_MAX)
    probes = [
        ("kvf_pool_opts", library.kvf_pool_create(pool, nothing), -errno.EINVAL),
        ("kvf_attach_opts", library.kvf_attach(attach, nothing), -Code.LIMIT_RANGE),
    ]
    for name, answer, wanted in probes:
        if answer != wanted:
            raise LibraryError(
                f"{path} has another struct {name} than this package: the two do not belong together"
            )


def _open() -> Tuple[str, ctypes.CDLL, ctypes.PyDLL]:
    path, slow, fast = _load()
    for library in (slow, fast):
        _declare(path, library)
    _check_numbers(path, slow)
    _check_sizes(path, slow)
    return path, slow, fast


PATH, lib, quick = _open()


def name_of(code: int) -> str:
    """The code's name, for example "KVF_E_PAGE_LENT"."""
    return str(quick.kvf_code_name_of(code).decode())


def sentence_of(code: int) -> str:
    """What was wrong and what is allowed, as the library says it."""
    return str(quick.kvf_strerror(code).decode())


def error_of(code: int, call: str) -> KvfenceError:
    """The exception for a code, negative or positive."""
    positive = abs(code)
    family = FAMILY_OF.get(positive, KvfenceError)
    return family(positive, name_of(positive), sentence_of(positive), call)


def version() -> str:
    """Version of the library, "MAJOR.MINOR.PATCH"."""
    return str(quick.kvf_version().decode())


def layout_version() -> Tuple[int, int]:
    """Version of the shared-memory layout, major and minor. A daemon of another major refuses."""
    number = int(quick.kvf_layout_version())
    return number >> 16, number & 0xFFFF

"""The attachment to one daemon, and what is opened through it."""

from __future__ import annotations

import ctypes
import errno
import warnings
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from ._codes import Code, KvfenceError, UndrainedError
from ._events import Events
from ._handle import Handle
from ._library import (
    AttachOpts,
    DaemonInfoStruct,
    GroupOpts,
    SinkOpts,
    SourceOpts,
    error_of,
    lib,
    name_of,
    quick,
)
from ._memory import Plane, Pool, Region, register
from ._rooms import Room, State
from ._values import (
    Integers,
    Writable,
    integers,
    integers32,
    milliseconds,
    option_error,
    text,
    texts,
    u32,
    u64,
    unsigned,
    words,
)


class Event(NamedTuple):
    """Something changed. A hint: the room's own poll() rules."""

    room: int  # its handle
    state: State
    is_drained: bool


@dataclass(frozen=True)
class DaemonInfo:
    lanes_per_peer: int
    worker_epoch: int  # 0: no worker serves now
    bound_usual_us: int  # abort, error or death to drained, usual part
    bound_worst_us: int  # and with watchdog and the worker's end
    loop_count: int  # turns of the worker's loop
    events_lost: int


class Group:
    """This process's rank among the ranks of one request (TP, PP, CP). Client.register_group makes it.

    Rooms of all ranks that were opened with it and one key belong together: when one fails the others are
    closed, and none shows FAILED before all are drained. There is no taking back but the client's close.
    """

    def __init__(self, client: "Client", number: int, rank: int) -> None:
        self.client = client
        self.number = number  # 0: a group of one rank, which is none
        self.rank = rank

    def skip(self, key: int) -> None:
        """Says that this rank will never open the key; else the daemon keeps every key that other ranks
        ended, 1024 at most. Blocks until the daemon has it. Raises DaemonError: say it again after
        Client.reattach."""
        self.client._handle.need(lib.kvf_group_skip, self.number, u64("key", key))

    def __repr__(self) -> str:
        return f"<kvfence.Group {self.number}, rank {self.rank}>"


class Client:
    """An attachment to the kvfenced beside this engine.

    ``name``: of the daemon, None: "gpu0", found in the run directory ($KVFENCE_RUN_DIR, /run/kvfence as
    root, else $XDG_RUNTIME_DIR/kvfence); ``socket``: its path outright, None: $KVFENCE_SOCKET, then by
    name. ``timeout``: seconds to wait for a daemon that is not there yet. ``client_name``: for logs and
    stats, at most 63 bytes. Limits, 0 for the library's own: ``rooms`` open at a time (1024; at most
    65,536), ``command_slots`` and ``event_slots`` (1024; powers of two), ``arena_bytes`` (4 MiB), which
    bounds the page lists that may wait unread.

    Raises DaemonError (nobody listens there, another layout, full, stopping, no right), OptionError.

    Every method may be called by any thread of this process, and lets other threads run while it may
    block. After a fork the child's object answers ForkedError everywhere, and close() drops it. Detach by
    close() or ``with``; an object that is dropped warns and detaches without waiting. At the interpreter's
    end nothing is done: an engine's end closes its rooms with proof.
    """

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        socket: Optional[str] = None,
        timeout: float = 0.0,
        client_name: Optional[str] = None,
        rooms: int = 0,
        command_slots: int = 0,
        event_slots: int = 0,
        arena_bytes: int = 0,
    ) -> None:
        opts = AttachOpts(
            size_bytes=ctypes.sizeof(AttachOpts),
            timeout_ms=milliseconds("timeout", timeout),
            socket_path=text("socket", socket),
            daemon_name=text("name", name),
            client_name=text("client_name", client_name),
            rooms_max=u32("rooms", rooms),
            cmd_slots=u32("command_slots", command_slots),
            event_slots=u32("event_slots", event_slots),
            arena_bytes=u32("arena_bytes", arena_bytes),
        )
        pointer = ctypes.c_void_p()
        answer = lib.kvf_attach(opts, pointer)
        if answer != 0:
            raise error_of(answer, "kvf_attach")
        self._handle = Handle(pointer)
        self._events = Events(self._handle)
        self._dropped = weakref.finalize(self, _drop, self._handle)
        # At the interpreter's end threads may still be inside calls.
        self._dropped.atexit = False

    # ---- the attachment --------------------------------------------------------------------------------

    def close(self, timeout: float = 5.0) -> None:
        """Ends the attachment: all rooms are closed (aborted), tasks that wait get ClosedError, then the
        handle is freed; the second time it does nothing. Waits ``timeout`` seconds at most for other
        threads' calls and for the daemon to let go of the memory.

        Raises UndrainedError: detached, but some rooms are not proven, so their pages must not be reused;
        BusyError: a call of another thread is still under way, and nothing was closed.
        """
        limit_ms = milliseconds("timeout", timeout)
        was_closed = self._handle.undrained is not None
        undrained = self._handle.detach(limit_ms)
        self._events.close()
        self._dropped.detach()
        if undrained and not was_closed:
            code = errno.ETIMEDOUT
            said = f"{undrained} rooms were not proven idle: their pages must not be reused"
            raise UndrainedError(code, name_of(code), said, "kvf_detach", undrained)

    @property
    def is_closed(self) -> bool:
        return self._handle.is_closed

    def reattach(self, timeout: float = 0.0) -> None:
        """After DAEMON_GONE: attaches the same memory, regions, rooms and groups to the next daemon of
        that name, within ``timeout`` seconds. Rooms that the old worker served are drained once it was
        reaped, with proof WORKER_GONE. Raises DaemonError (none yet; EBUSY: the old worker lives).
        """
        self._handle.need(lib.kvf_reattach, milliseconds("timeout", timeout))

    def check(self) -> None:
        """Asks the kernel who is alive. Raises DaemonError: DAEMON_GONE (rooms in host memory without
        leases then read as drained, WORKER_GONE; see reattach), WORKER_GONE (the next one is starting),
        ESHUTDOWN (it is stopping). Waits do this by themselves; others call it from a slow loop."""
        self._handle.need(lib.kvf_daemon_check)

    def info(self) -> DaemonInfo:
        """What the daemon publishes for its engines: its bound, its epoch."""
        shown = DaemonInfoStruct(size_bytes=ctypes.sizeof(DaemonInfoStruct))
        self._handle.need(lib.kvf_daemon_info, shown)
        return DaemonInfo(
            lanes_per_peer=int(shown.lanes_per_peer),
            worker_epoch=int(shown.worker_epoch),
            bound_usual_us=int(shown.bound_usual_us),
            bound_worst_us=int(shown.bound_worst_us),
            loop_count=int(shown.loop_count),
            events_lost=int(shown.events_lost),
        )

    # ---- memory ----------------------------------------------------------------------------------------

    def register(
        self,
        memory: Union[Pool, int],
        *,
        page_bytes: Optional[int] = None,
        planes: Optional[Sequence[Plane]] = None,
        page_count: Optional[int] = None,
        off: int = 0,
        size: Optional[int] = None,
        device: bool = False,
        timeout: float = 0.0,
    ) -> Region:
        """Registers memory whose pages rooms may name: a Pool, or a descriptor (a sealed memfd; with
        ``device`` a dma-buf), which stays the caller's.

        Either ``page_bytes``: one plane over all of it; or ``planes`` (1 to 512) and ``page_count``.
        ``off`` and ``size``: the part of the memory that is the region, in bytes; ``off`` a multiple of
        4096. ``timeout`` seconds for memory whose dead engine's rooms are not proven yet, 0: as long as
        that may take. Blocks until the daemon has mapped it. At most 16 regions.

        Raises RegionError (no seal, planes leave the memory or overlap, registered elsewhere; its notes
        have the daemon's own sentence), QuarantinedError, DaemonError, OptionError.
        """
        return register(self, memory, planes, page_bytes, page_count, off, size, device, timeout)

    # ---- rooms -----------------------------------------------------------------------------------------

    def open_sink(
        self,
        region: Region,
        pages: Integers,
        *,
        label: int,
        key: int,
        writers: Union[str, Sequence[str]],
        ranges: Optional[Sequence[Tuple[int, int]]] = None,
        aux_region: Optional[Region] = None,
        aux_pages: Optional[Integers] = None,
        group: Optional[Group] = None,
    ) -> Room:
        """Opens a sink room and lends it the pages: when this returns the ledger shows them lent.

        Rooms meet when ``label`` and ``key`` are equal; the key is unique per request and attempt.
        ``writers``: "host:port" of each source's daemon, 1 to 16 (names are resolved here, which may
        block). ``ranges``: (first position, count) of each writer's part of the list, needed with several
        writers. ``aux_pages`` of ``aux_region`` are appended to the list.

        Raises TryAgain (ring or arena full), PagesError (PAGE_LENT: Region.lender says to whom), PeerError,
        RoomError (all in use), DaemonError (none serves at the moment), GroupError, RegionError.
        """
        listed = integers("pages", pages)
        addresses = texts("writers", writers)
        opts = SinkOpts(
            size_bytes=ctypes.sizeof(SinkOpts),
            region=region.number,
            label=u64("label", label),
            key=u64("key", key),
            page_count=listed.length,
            writers=addresses,
            writer_count=len(addresses),
            group=self._group_number(group),
        )
        if listed.item_bytes == 4:
            opts.pages = listed.address
        else:
            opts.pages64 = listed.address
        if ranges is not None:
            pairs = [(u32("ranges", first), u32("ranges", count)) for first, count in ranges]
            if len(pairs) != len(addresses):
                raise error_of(Code.PEER_COUNT, "kvf_open_sink")
            opts.range_starts = (ctypes.c_uint32 * len(pairs))(*[first for first, _ in pairs])
            opts.range_counts = (ctypes.c_uint32 * len(pairs))(*[count for _, count in pairs])
        aux = integers32("aux_pages", aux_pages) if aux_pages is not None else None
        if (aux is None) != (aux_region is None):
            raise option_error("aux_pages and aux_region go together")
        if aux is not None and aux_region is not None:
            opts.aux_region = aux_region.number
            opts.aux_count = aux.length
            opts.aux_pages = aux.address
        self._same(region, aux_region)
        room = ctypes.c_uint64()
        self._handle.need(lib.kvf_open_sink, opts, room)
        return Room(self, room.value, region)

    def open_source(
        self,
        region: Region,
        *,
        label: int,
        key: int,
        sinks: int = 1,
        aux_region: Optional[Region] = None,
        group: Optional[Group] = None,
    ) -> Room:
        """Opens a source room, which waits for the grants of its ``sinks`` (1 to 16). Lends nothing yet:
        Room.submit does. Raises as open_sink; that the key is in use arrives as the reason of a failed
        room."""
        self._same(region, aux_region)
        opts = SourceOpts(
            size_bytes=ctypes.sizeof(SourceOpts),
            region=region.number,
            label=u64("label", label),
            key=u64("key", key),
            sink_count=unsigned("sinks", sinks, 16),
            has_aux=0 if aux_region is None else 1,
            aux_region=0 if aux_region is None else aux_region.number,
            group=self._group_number(group),
        )
        room = ctypes.c_uint64()
        self._handle.need(lib.kvf_open_source, opts, room)
        return Room(self, room.value, region)

    def room(self, handle: int) -> Room:
        """A Room for a handle that an open of this client returned, for example out of an Event."""
        return Room(self, handle)

    def _same(self, *regions: Optional[Region]) -> None:
        """Numbers of regions repeat among clients, and the wrong memory would be lent."""
        for region in regions:
            if region is not None and region.client is not self:
                raise error_of(Code.UNKNOWN_REGION, "kvf_open")

    def _group_number(self, group: Optional[Group]) -> int:
        if group is None:
            return 0
        if group.client is not self:
            raise error_of(Code.UNKNOWN_GROUP, "kvf_open")
        return group.number

    def poll_many(self, rooms: Writable, states: Writable) -> int:
        """Room.poll of many at once: ``rooms`` an array of 64-bit handles, ``states`` one of 32-bit
        numbers at least as long, which is written: State, or a negative code (-Code.STALE_ROOM). Both
        stay where they are (array("Q"), array("i"), numpy). Returns how many are FAILED or SUCCESS.
        No system call, no allocation but what a call in Python takes."""
        first_room, count = words("rooms", rooms, 8, False)
        first_state, state_count = words("states", states, 4, True)
        if state_count < count:
            raise option_error(f"states has {state_count} places for {count} rooms")
        if count == 0:
            return 0
        answer = quick.kvf_poll_many(self._handle.pointer, first_room, count, first_state)
        if answer < 0:
            raise self._handle.refusal(quick.kvf_poll_many, answer)
        return int(answer)

    # ---- events ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The event descriptor, for an engine's own epoll; owned by the client. Readable after the next
        change of a room, once events() has returned nothing."""
        return self._handle.need(lib.kvf_event_fd)

    def events(self, most: int = 64) -> Optional[List[Event]]:
        """Up to ``most`` events (64 at most come at once). An empty list: there are none, and the
        descriptor is armed, so wait only after one. None: some were lost, ask every room. Tasks that wait
        in asyncio are woken by what is taken here."""
        taken, was_lost = self._events.poll(max(1, unsigned("most", most, (1 << 31) - 1)))
        if was_lost:
            return None
        return [Event(room, State(state), is_drained) for room, state, is_drained in taken]

    # ---- groups ----------------------------------------------------------------------------------------

    def register_group(self, members: Sequence[str], rank: int, *, group_id: int = 0) -> Group:
        """Registers this process's rank once, for all rooms. ``members``: addresses of all ranks' daemons
        in rank order, own included, 1 to 64. ``group_id``: equal on all ranks; 0: made from the members'
        addresses. Stays good through restarts of the daemon. Blocks until the daemon has it. Raises
        GroupError, PeerError, DaemonError."""
        addresses = texts("members", members)
        opts = GroupOpts(
            size_bytes=ctypes.sizeof(GroupOpts),
            rank=u32("rank", rank),
            members=addresses,
            member_count=len(addresses),
            group_id=u64("group_id", group_id),
        )
        number = ctypes.c_uint32()
        self._handle.need(lib.kvf_group_register, opts, number)
        return Group(self, int(number.value), rank)

    # ---- with ------------------------------------------------------------------------------------------

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.close()
        except KvfenceError as closing:
            if error is None:
                raise
            error.add_note(f"and at the end of the client: {closing}")

    def __repr__(self) -> str:
        return f"<kvfence.Client {'closed' if self.is_closed else 'attached'}>"


def _drop(handle: Handle) -> None:
    """Of a client that nobody can reach any more, so that no call of it can be under way."""
    if handle.undrained is None and not handle.is_forked:
        warnings.warn("a kvfence.Client was dropped and not closed", ResourceWarning, stacklevel=2)
    handle.detach(0)
